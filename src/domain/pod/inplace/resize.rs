//! Resizing the containers of a Pod in place: processor and memory, through the subresource `resize`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{BatchRecord, State, UpdateSpec, container_of, status_of};
use crate::{api::labels, domain::pod::lifecycle, k8s::quantity};

/// What can be resized.
pub(super) const RESIZABLE: [&str; 2] = ["cpu", "memory"];
const KINDS: [&str; 2] = ["limits", "requests"];

/// The class that kubelet gives a Pod by its resources. It cannot change while the Pod lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Every container has limits for both, and requests equal to them.
    Guaranteed,
    /// Some container has one of them.
    Burstable,
    /// None has any.
    BestEffort,
}

/// The class of a Pod with this spec.
pub fn qos(spec: &Value) -> Qos {
    let lists = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    let (mut any, mut all_limited) = (false, true);
    for container in lists.into_iter().flatten().flatten() {
        for resource in RESIZABLE {
            let amount = |kind: &str| {
                let text = container.get("resources")?.get(kind)?.get(resource).map(text_of)?;
                quantity::parse(&text).filter(|amount| *amount > 0)
            };
            let limit = amount("limits");
            // Without a request the limit is the request.
            let request = amount("requests").or(limit);
            any |= request.is_some();
            all_limited &= limit.is_some() && limit == request;
        }
    }
    match (any, all_limited) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

/// An amount may be written as a number.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Notes a changed amount in what a container's resources become.
pub(super) fn note(resources: &mut Value, kind: &str, resource: &str, amount: &Value) {
    if !resources.is_object() {
        *resources = json!({});
    }
    if let Some(resources) = resources.as_object_mut() {
        let amounts = resources.entry(kind).or_insert_with(|| json!({}));
        if let Some(amounts) = amounts.as_object_mut() {
            amounts.insert(resource.to_owned(), amount.clone());
        }
    }
}

/// The strategic merge patch of the subresource `resize`, with the changed amounts alone. None: nothing is resized.
pub fn patch(resources: &BTreeMap<String, Value>) -> Option<Value> {
    let containers: Vec<Value> =
        resources.iter().map(|(name, resources)| json!({"name": name, "resources": resources})).collect();
    (!containers.is_empty()).then(|| json!({"spec": {"containers": containers}}))
}

/// Whether the Pod has to be out of service for this update: always, unless nothing but resources changes and no container
/// has to be restarted for that.
pub fn needs_not_ready(pod: &Value, spec: &UpdateSpec) -> bool {
    let only_resources = !spec.container_resources.is_empty()
        && spec.container_images.is_empty()
        && spec.container_ref_metadata.is_empty();
    !only_resources || spec.container_resources.iter().any(|(name, wanted)| restarts(pod, name, wanted))
}

/// Whether kubelet restarts a container for a change of these resources.
fn restarts(pod: &Value, name: &str, wanted: &Value) -> bool {
    let policies = container_of(pod, name).and_then(|c| c.get("resizePolicy")).and_then(Value::as_array);
    policies.into_iter().flatten().any(|policy| {
        let resource = policy.get("resourceName").and_then(Value::as_str).unwrap_or_default();
        let changes = KINDS.iter().any(|kind| wanted.get(kind).and_then(|amounts| amounts.get(resource)).is_some());
        changes && policy.get("restartPolicy").and_then(Value::as_str) == Some("RestartContainer")
    })
}

/// The first container that the update has resized and that kubelet has not, and what kubelet says of it.
///
/// Only amounts that can be resized are compared, and only of containers that the update has touched: others may differ
/// for reasons of their own, in spelling, or because one side leaves out what is empty.
pub(super) fn unfinished(pod: &Value, state: &State) -> Option<String> {
    let touched = state.container_batches_record.iter().flat_map(|batch| &batch.containers);
    let name = touched.into_iter().find(|name| differs(pod, name))?;
    Some(match trouble(pod) {
        Some((reason, message)) => format!("kubelet to resize container {name} ({reason}: {message})"),
        None => format!("kubelet to resize container {name}"),
    })
}

/// The containers that an update under way has resized and kubelet has not, for the record of the update that follows. Each of
/// them stands there once: however many updates follow each other, the annotation does not grow.
pub(super) fn left_over(pod: &Value, state: &State) -> Option<BatchRecord> {
    let label = pod.get("metadata").and_then(|m| m.get("labels")).and_then(|l| l.get(labels::LIFECYCLE_STATE));
    // What differs after an update that is done was changed by somebody else, and may never be as it was.
    if !state.update_resources || label.and_then(Value::as_str) != Some(lifecycle::State::Updating.as_str()) {
        return None;
    }
    let touched = state.container_batches_record.iter().flat_map(|batch| &batch.containers);
    let left: BTreeSet<&String> = touched.filter(|name| differs(pod, name)).collect();
    let timestamp = state.container_batches_record.last()?.timestamp;
    (!left.is_empty()).then(|| BatchRecord { timestamp, containers: left.into_iter().cloned().collect() })
}

fn differs(pod: &Value, name: &str) -> bool {
    let wanted = container_of(pod, name).and_then(|c| c.get("resources"));
    let actual = status_of(pod, name).and_then(|s| s.get("resources"));
    let amount = |of: Option<&Value>, kind: &str, resource: &str| Some(text_of(of?.get(kind)?.get(resource)?));
    KINDS.iter().any(|kind| {
        RESIZABLE.iter().any(|resource| match amount(wanted, kind, resource) {
            Some(wanted) => !amount(actual, kind, resource).is_some_and(|actual| quantity::is_same(&wanted, &actual)),
            None => false,
        })
    })
}

/// Why kubelet does not resize the Pod, or not yet: a reason and a message for an event.
pub fn trouble(pod: &Value) -> Option<(String, String)> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let text =
        |object: &Map<String, Value>, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = conditions.filter_map(Value::as_object).find_map(|condition| {
        let (kind, reason) = (text(condition, "type"), text(condition, "reason"));
        let holds = text(condition, "status") == "True";
        let is_trouble = kind == "PodResizePending" || (kind == "PodResizeInProgress" && reason == "Error");
        (holds && is_trouble).then(|| (reason, text(condition, "message")))
    });
    // Kubernetes 1.32 has a field instead of conditions.
    found.or_else(|| {
        let resize = pod.pointer("/status/resize").and_then(Value::as_str)?;
        ["Deferred", "Infeasible"].contains(&resize).then(|| (resize.to_owned(), "kubelet gives no reason".to_owned()))
    })
}

/// Whether an API server has the subresource, by the `gitVersion` or `major.minor` that it names: from 1.32 on.
pub fn has_subresource(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).map_or(part, |end| &part[..end]);
        digits.parse::<u32>().ok()
    });
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (1, 32),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Allowed, ContainersDone, NotInPlace, batch, begin, spec_between},
        *,
    };

    fn is_complete(pod: &Value, state: Option<&State>, in_grace: bool) -> ContainersDone {
        super::super::is_complete(&pod.into(), state, in_grace)
    }

    const ON: Allowed = Allowed { env_from_metadata: true, resources: true };

    /// One container with requests below its limits, and one without any.
    fn template(change: impl FnOnce(&mut Value)) -> Value {
        let mut template = json!({"spec": {"containers": [
            {"name": "main", "image": "i:1", "resources": {
                "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi", "example.com/gpu": "1"}}},
            {"name": "side", "image": "s:1", "resources": {}}]}});
        change(&mut template["spec"]["containers"][0]["resources"]);
        template
    }

    fn between(new: &Value) -> Result<UpdateSpec, NotInPlace> {
        spec_between(&template(|_| {}), new, "web-2", ON)
    }

    #[test]
    fn processor_and_memory_can_be_replaced_in_place_behind_the_gate() {
        let new = template(|r| {
            r["limits"]["cpu"] = "2".into();
            r["requests"]["memory"] = "600Mi".into();
        });
        let spec = between(&new).unwrap();
        let want = json!({"limits": {"cpu": "2"}, "requests": {"memory": "600Mi"}});
        assert_eq!(spec.container_resources, BTreeMap::from([("main".to_owned(), want.clone())]));
        assert_eq!(
            patch(&spec.container_resources),
            Some(json!({"spec": {"containers": [{"name": "main", "resources": want}]}}))
        );
        assert_eq!(patch(&BTreeMap::new()), None);
        let off = Allowed { resources: false, ..ON };
        let error = spec_between(&template(|_| {}), &new, "web-2", off).unwrap_err().to_string();
        assert!(error.starts_with("template.spec.containers[0].resources.limits.cpu differs"), "{error}");
    }

    #[test]
    fn other_changes_of_resources_need_another_pod() {
        for (name, change) in [
            ("added", (|r: &mut Value| r["limits"]["ephemeral-storage"] = "1Gi".into()) as fn(&mut Value)),
            ("removed", |r| drop(r["limits"].as_object_mut().unwrap().remove("cpu"))),
            ("another resource", |r| r["requests"]["example.com/gpu"] = "2".into()),
            ("all of them", |r| *r = json!({})),
            ("a claim", |r| r["claims"] = json!([{"name": "c"}])),
        ] {
            assert!(between(&template(change)).is_err(), "{name}");
        }
    }

    #[test]
    fn the_class_of_the_pod_must_stay() {
        let guaranteed = template(|r| r["requests"] = json!({"cpu": "1000m", "memory": "1Gi"}));
        assert_eq!(qos(&guaranteed["spec"]), Qos::Burstable, "side has no limits");
        let alone = |change: fn(&mut Value)| {
            let mut template = template(change);
            template["spec"]["containers"].as_array_mut().unwrap().pop();
            template
        };
        let (first, second) = (
            alone(|r| r["requests"] = json!({"cpu": "1000m", "memory": "1Gi"})),
            alone(|r| r["requests"] = json!({"cpu": "900m", "memory": "1Gi"})),
        );
        assert_eq!((qos(&first["spec"]), qos(&second["spec"])), (Qos::Guaranteed, Qos::Burstable));
        let error = spec_between(&first, &second, "web-2", ON).unwrap_err().to_string();
        assert!(error.contains("Guaranteed") && error.contains("Burstable"), "{error}");
        let both =
            alone(|r| *r = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}));
        assert!(spec_between(&first, &both, "web-2", ON).is_ok());
        for (resources, want) in [
            (json!({}), Qos::BestEffort),
            (json!({"limits": {"cpu": "0"}}), Qos::BestEffort),
            (json!({"limits": {"cpu": 1, "memory": "1Gi"}}), Qos::Guaranteed),
            (json!({"limits": {"cpu": 1}}), Qos::Burstable),
            (json!({"requests": {"memory": "1"}}), Qos::Burstable),
        ] {
            assert_eq!(qos(&json!({"containers": [{"resources": resources}]})), want, "{resources}");
        }
    }

    fn pod(actual: Value) -> Value {
        let mut pod = template(|r| r["limits"]["cpu"] = "2".into());
        pod["status"] = json!({"containerStatuses": [{"name": "main", "resources": actual}, {"name": "side", "resources": {"limits": {"cpu": "9"}}}]});
        pod
    }

    fn resizing(pod: &Value) -> State {
        let spec = between(&template(|r| r["limits"]["cpu"] = "2".into())).unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let batch = batch(pod, &spec, begin(pod, &spec, None, now), now);
        assert_eq!(batch.resources, spec.container_resources);
        batch.state
    }

    /// Spelled differently, with more than was asked for, and with an untouched container that differs.
    #[test]
    fn shortfall_11_only_changed_amounts_are_compared() {
        let done = json!({"limits": {"cpu": "2000m", "memory": "1024Mi"}, "requests": {"cpu": "0.5", "memory": "512Mi", "other": "1"}});
        let pending = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi"}});
        for (actual, waits_for) in [
            (done, ""),
            (pending, "kubelet to resize container main"),
            (Value::Null, "kubelet to resize container main"),
        ] {
            let pod = pod(actual);
            assert_eq!(is_complete(&pod, Some(&resizing(&pod)), false).waits_for, waits_for);
        }
    }

    #[test]
    fn shortfall_09_a_resize_that_goes_on_is_waited_for_by_the_next_update_too() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let in_state = |label: &str, cpu: &str| {
            let mut pod =
                pod(json!({"limits": {"cpu": cpu, "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi"}}));
            pod["metadata"]["labels"][labels::LIFECYCLE_STATE] = label.into();
            pod
        };
        let image =
            UpdateSpec { container_images: BTreeMap::from([("side".into(), "s:2".into())]), ..UpdateSpec::default() };
        let next = |pod: &Value, earlier: &State| batch(pod, &image, begin(pod, &image, Some(earlier), now), now).state;
        let midway = in_state("Updating", "1");
        let mut state = next(&midway, &resizing(&midway));
        let waits_for = |pod: &Value, state: &State| is_complete(pod, Some(state), false).waits_for;
        assert_eq!(waits_for(&midway, &state), "kubelet to resize container main");
        for _ in 0..9 {
            state = next(&midway, &state);
        }
        let containers = |state: &State| -> Vec<String> {
            state.container_batches_record.iter().map(|record| record.containers.join(",")).collect()
        };
        assert_eq!(containers(&state), ["main", "side"], "the record does not grow");
        assert_eq!(waits_for(&midway, &state), "kubelet to resize container main");
        assert_eq!(waits_for(&in_state("Updating", "2"), &state), "", "it is over");
        for (label, cpu, why) in [
            ("Updating", "2", "kubelet is done"),
            ("Normal", "1", "the update was done, and somebody else has resized the Pod since"),
        ] {
            let pod = in_state(label, cpu);
            let state = next(&pod, &resizing(&pod));
            assert_eq!((state.update_resources, containers(&state)), (false, vec!["side".to_owned()]), "{why}");
        }
    }

    #[test]
    fn shortfall_11_what_kubelet_says_of_a_resize_is_reported() {
        let with = |status: Value| {
            let mut pod = pod(json!({}));
            json_patch::merge(&mut pod["status"], &status);
            is_complete(&pod, Some(&resizing(&pod)), false).waits_for
        };
        let condition = |kind: &str, reason: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": reason, "message": "m"}]});
        for (status, says) in [
            (condition("PodResizePending", "Deferred"), " (Deferred: m)"),
            (condition("PodResizePending", "Infeasible"), " (Infeasible: m)"),
            (condition("PodResizeInProgress", "Error"), " (Error: m)"),
            (condition("PodResizeInProgress", ""), ""),
            (json!({"resize": "Infeasible"}), " (Infeasible: kubelet gives no reason)"),
            (json!({"resize": "Proposed"}), ""),
        ] {
            assert_eq!(with(status), format!("kubelet to resize container main{says}"));
        }
    }

    #[test]
    fn a_resize_takes_a_pod_out_of_service_only_if_it_restarts_a_container() {
        let spec = between(&template(|r| r["limits"]["cpu"] = "2".into())).unwrap();
        let mut pod = template(|_| {});
        assert!(!needs_not_ready(&pod, &spec));
        for (resource, policy, want) in
            [("cpu", "RestartContainer", true), ("memory", "RestartContainer", false), ("cpu", "NotRequired", false)]
        {
            pod["spec"]["containers"][0]["resizePolicy"] = json!([{"resourceName": resource, "restartPolicy": policy}]);
            assert_eq!(needs_not_ready(&pod, &spec), want, "{resource} {policy}");
        }
        let with_image = UpdateSpec { container_images: BTreeMap::from([("side".into(), "s:2".into())]), ..spec };
        assert!(needs_not_ready(&pod, &with_image) && needs_not_ready(&pod, &UpdateSpec::default()));
    }

    /// Launch priorities: the second container is resized when the first one is ready.
    #[test]
    fn shortfall_06_a_later_batch_of_resources_alone_is_not_forgotten() {
        let barrier = |p: &str| json!([{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"name": "b", "key": p}}}]);
        let with_env = |mut template: Value| {
            template["spec"]["containers"][0]["env"] = barrier("p_1");
            template["spec"]["containers"][1]["env"] = barrier("p_2");
            template["spec"]["containers"][1]["resources"] = json!({"requests": {"cpu": "1m"}});
            template
        };
        let old = with_env(template(|_| {}));
        let mut new = with_env(template(|r| r["limits"]["cpu"] = "2".into()));
        new["spec"]["containers"][1]["resources"]["requests"]["cpu"] = "2m".into();
        let spec = spec_between(&old, &new, "web-2", ON).unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let first = batch(&old, &spec, begin(&old, &spec, None, now), now);
        assert_eq!(first.resources.keys().collect::<Vec<_>>(), ["side"]);
        assert!(first.state.has_next() && !is_complete(&old, Some(&first.state), false).done);
        let second = batch(&old, &first.state.next(), first.state.clone(), now);
        assert_eq!(second.resources.keys().collect::<Vec<_>>(), ["main"]);
        assert!(!second.state.has_next());
    }

    #[test]
    fn case_40_shortfall_10_1_18_versions_of_all_providers_are_understood() {
        for (version, want) in [
            ("1.32+", true),
            ("v1.32.1-gke.5", true),
            ("v1.31.9", false),
            ("1.30", false),
            ("2.0", true),
            ("1", false),
            ("", false),
            ("v1.x", false),
        ] {
            assert_eq!(has_subresource(version), want, "{version}");
        }
    }
}
