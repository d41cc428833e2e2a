//! Admission of Pods, CREATE only: what the provider of a virtual node is to probe, noted on the Pod.
//!
//! Only with the gate EnablePodProbeMarkerOnServerless. Where a Pod will run is not known yet, so every Pod that a
//! PodProbeMarker selects gets the note; on nodes with a daemon nobody reads it. Fails open, and lets every Pod through:
//! one that was missed is not probed by its provider.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::{Api, api::ListParams};
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};

use crate::{
    api::{
        apps::pod_probe_marker::PodProbeMarker,
        feature_gates::gate,
        labels::{SERVERLESS_PROBE_MARKERS, SERVERLESS_PROBES},
    },
    domain::node::probes::{name_of, reserved, selection},
    k8s::{limits::MOST_ANNOTATIONS, pod::PodView, rbac::Rule},
    runtime::guarded::Guarded,
    webhook::{
        Context,
        server::review::{Admitted, Decision, Request},
    },
};

/// What it reads.
pub const RBAC: &[Rule] = &[Rule::new(&["apps.kruise.io"], &["podprobemarkers"], &["list"])];

/// What a new Pod may wait for.
const LIMIT: Duration = Duration::from_secs(1);

/// One probe, as providers read it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Noted {
    name: String,
    container_name: String,
    probe: Value,
    pod_condition_type: String,
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        let is_on = [gate::SERVERLESS_PROBES, gate::POD_PROBE_MARKER].iter().all(|name| context.gates.enabled(name));
        if !is_on || request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        let api: Api<Guarded<PodProbeMarker>> = Api::namespaced(context.client.clone(), &request.namespace);
        let listed = match tokio::time::timeout(LIMIT, api.list(&ListParams::default())).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => {
                tracing::warn!(namespace = %request.namespace, %error, "a new Pod gets no note of its probes");
                return Ok(Admitted::unchanged());
            }
            Err(_) => {
                tracing::warn!(
                    namespace = %request.namespace,
                    "a new Pod gets no note of its probes: no answer in time"
                );
                return Ok(Admitted::unchanged());
            }
        };
        // One that cannot be read probes nothing; its controller says so.
        let markers: Vec<PodProbeMarker> = listed.items.into_iter().filter_map(|item| item.0.ok()).collect();
        Ok(annotate(&request.object, &markers))
    })
}

/// The Pod with the note of what these PodProbeMarkers, all of its namespace, want probed.
pub fn annotate(pod: &Value, markers: &[PodProbeMarker]) -> Admitted {
    let Ok(view) = PodView::deserialize(pod) else { return Admitted::unchanged() };
    let is_meant = |marker: &&PodProbeMarker| {
        selection::selects(marker, &view.labels) && marker.metadata.deletion_timestamp.is_none()
    };
    let mut meant: Vec<&PodProbeMarker> = markers.iter().filter(is_meant).collect();
    meant.sort_by_key(|marker| name_of(marker));
    let noted = noted(&view, &meant);
    if noted.is_empty() || !pod["metadata"].is_object() {
        return Admitted::unchanged();
    }
    let names: Vec<&str> = meant.iter().map(|marker| name_of(marker)).collect();
    let note = serde_json::to_string(&noted).unwrap_or_default();

    let mut wanted = pod.clone();
    let annotations = &mut wanted["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    annotations[SERVERLESS_PROBES] = note.into();
    annotations[SERVERLESS_PROBE_MARKERS] = names.join(",").into();
    let bytes = annotations.as_object().into_iter().flatten();
    let bytes: usize = bytes.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > MOST_ANNOTATIONS {
        // The API server would refuse the Pod.
        tracing::warn!(markers = ?names, bytes, "a new Pod gets no note of its probes: its annotations are too large");
        return Admitted::unchanged();
    }
    Admitted::changed(pod, &wanted)
}

/// Probes whose result a provider can report: those with a condition, of containers that the Pod has. Of two probes of one
/// name in a container, or with one condition, the first counts.
fn noted(pod: &PodView, markers: &[&PodProbeMarker]) -> Vec<Noted> {
    let (mut names, mut conditions) = (BTreeSet::new(), BTreeSet::new());
    let mut noted = Vec::new();
    for probe in markers.iter().flat_map(|marker| &marker.spec.probes) {
        let type_ = probe.pod_condition_type.as_str();
        let name = (probe.container_name.as_str(), probe.name.as_str());
        if type_.is_empty() || reserved::is_condition(type_) || pod.container(name.0).is_none() {
            continue;
        }
        if names.contains(&name) || conditions.contains(type_) {
            continue;
        }
        names.insert(name);
        conditions.insert(type_);
        noted.push(Noted {
            name: probe.name.clone(),
            container_name: probe.container_name.clone(),
            probe: at_the_pod(&probe.probe),
            pod_condition_type: probe.pod_condition_type.clone(),
        });
    }
    noted
}

/// A probe without the hosts that a stored object may name: it is for the Pod's own address alone.
fn at_the_pod(probe: &Value) -> Value {
    let mut probe = probe.clone();
    for handler in ["httpGet", "tcpSocket"] {
        let Some(handler) = probe.get_mut(handler).and_then(Value::as_object_mut) else { continue };
        handler.remove("host");
        if let Some(headers) = handler.get_mut("httpHeaders").and_then(Value::as_array_mut) {
            headers
                .retain(|header| !header["name"].as_str().is_some_and(|name| name.trim().eq_ignore_ascii_case("host")));
        }
    }
    probe
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::feature_gates::FeatureGates;

    fn marker(name: &str, probes: Value) -> PodProbeMarker {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "probes": probes}}))
        .unwrap()
    }

    fn probe(name: &str, container: &str, condition: &str) -> Value {
        json!({"name": name, "containerName": container, "podConditionType": condition,
            "probe": {"exec": {"command": ["a"]}, "periodSeconds": 5},
            "markerPolicy": [{"state": "Succeeded", "labels": {"a": "b"}}]})
    }

    /// As it comes at admission: without a name of its own, a node or a status.
    fn pod() -> Value {
        json!({"metadata": {"generateName": "web-", "labels": {"app": "web"}, "annotations": {"their": "1"}},
            "spec": {"initContainers": [{"name": "setup"}, {"name": "mesh", "restartPolicy": "Always"}],
                "containers": [{"name": "main", "fieldOfTheFuture": 1}]}})
    }

    fn annotated(pod: &Value, markers: &[PodProbeMarker]) -> Value {
        let mut after = pod.clone();
        json_patch::patch(&mut after, &annotate(pod, markers).patch).unwrap();
        after
    }

    fn names(pod: &Value) -> (Vec<(String, String)>, String) {
        let annotation = |key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let note: Vec<Value> = serde_json::from_str(&annotation(SERVERLESS_PROBES)).unwrap_or_default();
        let text = |probe: &Value, key: &str| probe[key].as_str().unwrap().to_owned();
        let pairs = note.iter().map(|probe| (text(probe, "name"), text(probe, "podConditionType"))).collect();
        (pairs, annotation(SERVERLESS_PROBE_MARKERS))
    }

    #[test]
    fn a_pod_gets_the_note_that_openkruise_writes_and_nothing_else() {
        let before = pod();
        let after = annotated(&before, &[marker("m", json!([probe("idle", "main", "example.com/idle")]))]);
        let mut wanted = before.clone();
        wanted["metadata"]["annotations"]["kruise.io/podprobe"] = concat!(
            r#"[{"name":"idle","containerName":"main","#,
            r#""probe":{"exec":{"command":["a"]},"periodSeconds":5},"podConditionType":"example.com/idle"}]"#
        )
        .into();
        wanted["metadata"]["annotations"]["kruise.io/podprobemarker-list"] = "m".into();
        assert_eq!(after, wanted);
        assert_eq!(annotated(&after, &[marker("m", json!([probe("idle", "main", "example.com/idle")]))]), after);
    }

    #[test]
    fn e31_a_pod_without_any_annotations_is_marked_and_one_without_labels_too() {
        let mut bare = pod();
        bare["metadata"].as_object_mut().unwrap().remove("annotations");
        let one = marker("m", json!([probe("a", "main", "e/a")]));
        assert_eq!(names(&annotated(&bare, std::slice::from_ref(&one))).1, "m");
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        assert_eq!(annotated(&bare, std::slice::from_ref(&one)), bare);
        let mut without = one;
        without.spec.selector =
            serde_json::from_value(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})).unwrap();
        assert_eq!(names(&annotated(&bare, &[without])).1, "m");
    }

    #[test]
    fn f33_the_order_is_that_of_names_and_the_first_of_two_counts() {
        let markers = [
            marker("z", json!([probe("a", "main", "e/z"), probe("own", "main", "e/own")])),
            marker("b", json!([probe("a", "main", "e/a"), probe("same", "main", "e/a"), probe("a", "mesh", "e/mesh")])),
        ];
        let (pairs, list) = names(&annotated(&pod(), &markers));
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!((pairs, list.as_str()), (vec![("a", "e/a"), ("a", "e/mesh"), ("own", "e/own")], "b,z"));
    }

    #[test]
    fn what_a_provider_cannot_report_is_not_noted() {
        let mut other = marker("other", json!([probe("a", "main", "e/a")]));
        other.spec.selector = serde_json::from_value(json!({"matchLabels": {"app": "other"}})).unwrap();
        let mut empty = marker("empty", json!([probe("a", "main", "e/a")]));
        empty.spec.selector = Default::default();
        let mut going = marker("going", json!([probe("a", "main", "e/a")]));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        for marker in [
            other,
            empty,
            going,
            marker("no-condition", json!([probe("a", "main", "")])),
            marker("native", json!([probe("a", "main", "Ready")])),
            marker("no-container", json!([probe("a", "gone", "e/a")])),
            marker("init-container", json!([probe("a", "setup", "e/a")])),
        ] {
            assert_eq!(annotated(&pod(), std::slice::from_ref(&marker)), pod(), "{}", name_of(&marker));
        }
        for bad in [json!(null), json!(1), json!({"spec": {}}), json!({"metadata": 1, "spec": {}})] {
            assert_eq!(annotated(&bad, &[marker("m", json!([probe("a", "main", "e/a")]))]), bad);
        }
    }

    #[test]
    fn e30_f31_hosts_of_stored_objects_are_not_handed_on() {
        let get = json!({"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/",
            "httpHeaders": [{"name": "Host", "value": "x"}, {"name": "A", "value": "b"}]}});
        assert_eq!(
            at_the_pod(&get),
            json!({"httpGet": {"port": 80, "path": "/", "httpHeaders": [{"name": "A", "value": "b"}]}})
        );
        assert_eq!(at_the_pod(&json!({"tcpSocket": {"host": "x", "port": 1}})), json!({"tcpSocket": {"port": 1}}));
        assert_eq!(at_the_pod(&json!(7)), json!(7));
    }

    #[test]
    fn a_note_that_no_object_can_hold_is_left_out() {
        let large = json!({"exec": {"command": ["x".repeat(MOST_ANNOTATIONS)]}});
        let mut large_probe = probe("a", "main", "e/a");
        large_probe["probe"] = large;
        assert_eq!(annotated(&pod(), &[marker("m", json!([large_probe]))]), pod());
    }

    async fn asked(gates: &[&str], list: Result<Value, u16>) -> Value {
        let gates = FeatureGates::parse(gates, None).unwrap();
        let client = crate::runtime::fake_api::answering(move |_, _| match &list {
            Ok(list) => (200, list.clone()),
            Err(code) => (*code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code})),
        });
        let context = Context::new(gates, client, "kruise-system".into(), Default::default()).0;
        let request =
            Request { operation: "CREATE".into(), namespace: "a".into(), object: pod(), ..Request::default() };
        let mut after = pod();
        json_patch::patch(&mut after, &handle(Arc::new(context), request).await.unwrap().patch).unwrap();
        after
    }

    #[tokio::test]
    async fn the_gate_decides_and_no_answer_leaves_a_pod_as_it_is() {
        let unreadable = json!({"metadata": {"name": "odd", "namespace": "a"}, "spec": {"probes": 1}});
        let one = serde_json::to_value(marker("m", json!([probe("a", "main", "e/a")]))).unwrap();
        let list = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarkerList", "metadata": {},
            "items": [unreadable, one]});
        let on = "EnablePodProbeMarkerOnServerless=true";
        assert_eq!(names(&asked(&[on], Ok(list.clone())).await).1, "m");
        for gates in
            [&[][..], &[on, "PodProbeMarkerGate=false"], &[on, "PodWebhook=false"], &[on, "KruiseDaemon=false"]]
        {
            assert_eq!(asked(gates, Ok(list.clone())).await, pod(), "{gates:?}");
        }
        assert_eq!(asked(&[on], Err(403)).await, pod());
    }
}
