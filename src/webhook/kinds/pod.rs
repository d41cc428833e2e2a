//! Admission of Pods, CREATE only: the subset of a WorkloadSpread, sidecars, the readiness gate KruisePodReady, launch
//! priorities, and what a PersistentPodState has recorded of the Pod before this one, in this order.
//!
//! Fails open: a Pod that was missed runs without its sidecars and without the gate, which the manager finds and reports,
//! and starts its containers at once. Conditions in the webhook's registration keep the API server from calling for Pods
//! that need nothing; the same rules are here again, because a registration may lag behind.
//!
//! A Pod is created whatever is wrong with a SidecarSet: that one is left out, with a warning and an annotation. Only in
//! namespaces that are labelled `kruise.rs/sidecars: required` such a Pod is refused; they have an entry of their own, which
//! fails closed.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    api::{
        apps::{self, persistent_pod_state::PersistentPodState},
        feature_gates::{FeatureGates, gate},
        group_of,
        labels::{self, CONDITION_KRUISE_POD_READY},
    },
    domain::{
        kinds::{
            persistent_pod_state::restore,
            sidecar_set::inject::{LeftOut, Outcome},
        },
        pod::launch_priority,
    },
    k8s::{name, rbac::Rule},
    runtime::{kruise_configuration, random},
    webhook::{
        Context,
        server::handler::MatchCondition,
        server::review::{Admitted, Decision, Denied, Request},
        sidecars::{self, NotRead},
        spreads::Placed,
    },
};

/// What is read in our own namespace: revisions that SidecarSets name, and the kinds that WorkloadSpreads may be for.
pub const OWN_NAMESPACE_RBAC: &[Rule] = &[sidecars::REVISIONS, kruise_configuration::READ];

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        answer(&context, &request, false).await
    })
}

/// Answers the API server for a Pod that is not to be created without its sidecars. The entry does not go with the gate: that is
/// asked here.
pub fn handle_required(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        let is_off = !context.gates.enabled(gate::POD_WEBHOOK);
        if is_off || request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        answer(&context, &request, true).await
    })
}

/// A Pod that is refused without its sidecars gets no second answer, without its subset, after this time: both together would
/// take longer than the API server waits.
const SECOND_ANSWER: Duration = Duration::from_secs(1);

async fn answer(context: &Context, request: &Request, is_required: bool) -> Decision {
    let begun = Instant::now();
    // What a subset makes of a Pod is a Pod as any other to all that follows. A dry run would count a Pod that never comes.
    let placed = match request.dry_run {
        true => Placed::default(),
        false => context.spreads.place(&request.namespace, &request.object).await,
    };
    let pod = placed.pod.as_ref().unwrap_or(&request.object);
    match (admit_placed(context, request, pod, is_required).await, &placed.pod) {
        (Ok(admitted), _) => Ok(with_subset(&request.object, pod, admitted, placed.warning)),
        // Without its subset it is as its author wrote it.
        (Err(denied), Some(_)) if !is_required || begun.elapsed() < SECOND_ANSWER => {
            let admitted =
                admit_placed(context, request, &request.object, is_required).await.map_err(|_| denied.clone())?;
            let warning = format!("the Pod is created in no subset: {}", denied.message);
            Ok(with_subset(&request.object, &request.object, admitted, Some(warning)))
        }
        (Err(denied), _) => Err(denied),
    }
}

/// The answer for a Pod, after the changes that its subset makes.
fn with_subset(pod: &Value, placed: &Value, admitted: Admitted, warning: Option<String>) -> Admitted {
    let mut warnings: Vec<String> = warning.into_iter().chain(admitted.warnings).collect();
    warnings.truncate(MOST_WARNINGS);
    let patch = json_patch::Patch([json_patch::diff(pod, placed).0, admitted.patch.0].concat());
    Admitted { patch, warnings }
}

async fn admit_placed(context: &Context, request: &Request, pod: &Value, is_required: bool) -> Decision {
    let random: [u8; name::SUFFIX] = random::bytes().map_err(|none| Denied::internal(none.to_string()))?;
    // Where sidecars are required, no patch of a subset is a way around them.
    let before = is_required.then_some(&request.object);
    // A replica that has just started waits for both at the same time.
    let (outcome, state) = tokio::join!(
        context.sidecars.outcome(&request.namespace, pod, before, &request.uid),
        context.pod_states.of(&request.namespace, pod),
    );
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) if is_required => return Err(Denied::internal(format!("{error}; {REQUIRED}"))),
        // There are none for it.
        Err(NotRead::NotInstalled) => Outcome::default(),
        Err(error) => {
            tracing::warn!(namespace = %request.namespace, %error, "a new Pod gets no sidecars");
            if !request.dry_run {
                context.sidecars.count_unknown();
            }
            Outcome { remarks: vec![format!("the Pod may lack its sidecars: {error}")], ..Outcome::default() }
        }
    };
    if is_required {
        outcome.left_out.extend(context.sidecars.unreadable(&request.namespace, pod));
    }
    let combined = combine(&context.gates, pod, &mut outcome, is_required, random);
    if !request.dry_run {
        context.sidecars.count(&outcome);
    }
    let admitted = combined?;
    let restored = state.and_then(|state| restored(pod, &admitted, &state));
    Ok(match restored {
        Some(restored) => {
            if !request.dry_run {
                context.pod_states.count();
            }
            restored
        }
        None => admitted,
    })
}

/// The answer with what is recorded of the Pod before this one. None: nothing is, or it cannot be written.
fn restored(pod: &Value, admitted: &Admitted, state: &PersistentPodState) -> Option<Admitted> {
    let mut with = pod.clone();
    json_patch::patch(&mut with, &admitted.patch).ok()?;
    let mut wanted = with.clone();
    let notes = restore::restore(&mut wanted, state)?;
    let patch = json_patch::Patch([admitted.patch.0.clone(), json_patch::diff(&with, &wanted).0].concat());
    let mut warnings = admitted.warnings.clone();
    warnings.extend(notes);
    warnings.truncate(MOST_WARNINGS);
    Some(Admitted { patch, warnings })
}

/// Why a Pod is refused, for whoever asks what to do about it.
const REQUIRED: &str =
    "the namespace is labelled kruise.rs/sidecars: required, so no Pod is created in it without its sidecars";
/// The most warnings of one answer.
const MOST_WARNINGS: usize = 5;

/// The sidecars, and what [`admit`] does with the Pod that has them. What is not injected after all is noted in the outcome.
///
/// # Errors
/// Those of [`admit`]; and a SidecarSet is left out although sidecars are required.
fn combine(
    gates: &FeatureGates,
    pod: &Value,
    outcome: &mut Outcome,
    is_required: bool,
    random: [u8; name::SUFFIX],
) -> Decision {
    let injected = std::mem::take(&mut outcome.injected);
    let left_out = outcome.left_out.iter();
    let mut warnings: Vec<String> =
        left_out.map(|LeftOut { set, reason }| format!("SidecarSet {set} is not injected: {reason}")).collect();
    if is_required && let Some(first) = warnings.first() {
        return Err(Denied::forbidden(format!("{first}; {REQUIRED}")));
    }
    warnings.append(&mut outcome.remarks);
    warnings.truncate(MOST_WARNINGS);
    if outcome.patch.is_empty() {
        return admit(gates, pod, random).map(|admitted| Admitted { warnings, ..admitted });
    }
    let mut with_sidecars = pod.clone();
    let patch = serde_json::from_value::<json_patch::Patch>(std::mem::take(&mut outcome.patch).into())
        .map_err(|error| error.to_string())
        .and_then(|patch| {
            json_patch::patch(&mut with_sidecars, &patch).map_err(|error| error.to_string())?;
            let admitted = admit(gates, &with_sidecars, random).map_err(|denied| denied.message)?;
            Ok(json_patch::Patch([patch.0, admitted.patch.0].concat()))
        });
    match patch {
        Ok(patch) => {
            outcome.injected = injected;
            Ok(Admitted { patch, warnings })
        }
        Err(error) if is_required => {
            Err(Denied::forbidden(format!("the sidecars cannot be injected: {error}; {REQUIRED}")))
        }
        // Without them it is as its author wrote it.
        Err(error) => {
            let admitted = admit(gates, pod, random)?;
            let left_out = injected.into_iter().map(|set| LeftOut { set, reason: error.clone() });
            outcome.left_out.extend(left_out);
            warnings.insert(0, format!("no SidecarSet is injected: {error}"));
            Ok(Admitted { warnings, ..admitted })
        }
    }
}

/// Adds the gate to Pods of Kruise workloads, or to all with the feature gate KruisePodReadinessGate, and puts containers
/// with launch priorities behind their barrier.
///
/// # Errors
/// The object is no Pod, or a launch priority is none.
pub fn admit(gates: &FeatureGates, pod: &Value, random: [u8; name::SUFFIX]) -> Decision {
    let gates_of_pod = match pod.pointer("/spec/readinessGates") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Denied::bad_request("spec.readinessGates is not allowed; want a list")),
    };
    if !pod.pointer("/spec").is_some_and(Value::is_object) {
        return Err(Denied::bad_request("spec is not allowed; want the spec of a Pod"));
    }
    let has_gate = gates_of_pod.iter().any(|g| g["conditionType"] == CONDITION_KRUISE_POD_READY);
    let needs_gate = !has_gate && (gates.enabled(gate::KRUISE_POD_READINESS_GATE) || is_controlled_by_kruise(pod));
    let priorities = launch_priority::wanted(pod).map_err(Denied::bad_request)?;
    if !needs_gate && priorities.is_none() {
        return Ok(Admitted::unchanged());
    }
    let mut wanted = pod.clone();
    if needs_gate {
        let mut list = gates_of_pod.to_vec();
        list.push(json!({ "conditionType": CONDITION_KRUISE_POD_READY }));
        wanted["spec"]["readinessGates"] = list.into();
    }
    // Without any name the API server refuses the Pod anyway.
    if let (Some(priorities), Some((name, is_new))) = (priorities, name_of(pod, random)) {
        launch_priority::inject(&mut wanted, &name, &priorities).map_err(Denied::bad_request)?;
        if is_new {
            wanted["metadata"]["name"] = name.into();
        }
    }
    Ok(Admitted::changed(pod, &wanted))
}

/// The name of a Pod, and whether it was generated here: the name of its barrier depends on it.
fn name_of(pod: &Value, random: [u8; name::SUFFIX]) -> Option<(String, bool)> {
    let text =
        |key: &str| pod.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).filter(|text| !text.is_empty());
    match text("name") {
        Some(name) => Some((name.to_owned(), false)),
        None => Some((format!("{}{}", name::generated_base(text("generateName")?), name::suffix(random)), true)),
    }
}

fn is_controlled_by_kruise(pod: &Value) -> bool {
    pod.pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|owner| owner["controller"] == true && owner["apiVersion"].as_str().map(group_of) == Some(apps::GROUP))
}

/// The rules of [`admit`] in CEL, so that the API server calls us only for Pods that we would change or refuse.
pub fn match_conditions(gates: &FeatureGates) -> Vec<MatchCondition> {
    let lacks_gate = format!(
        "(!has(object.spec.readinessGates) || !object.spec.readinessGates.exists(g, g.conditionType == '{CONDITION_KRUISE_POD_READY}'))"
    );
    let owned = format!(
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.apiVersion.startsWith('{}/'))",
        apps::GROUP
    );
    let ordered = format!(
        "has(object.metadata.annotations) && '{key}' in object.metadata.annotations && object.metadata.annotations['{key}'] == '{}'",
        labels::LAUNCH_PRIORITY_ORDERED,
        key = labels::LAUNCH_PRIORITY,
    );
    let prioritized = format!(
        "object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.name == '{}'))",
        labels::ENV_LAUNCH_PRIORITY
    );
    let readiness = match gates.enabled(gate::KRUISE_POD_READINESS_GATE) {
        true => lacks_gate,
        false => format!("{lacks_gate} && {owned}"),
    };
    let launch = format!("size(object.spec.containers) > 1 && ({ordered} || {prioritized})");
    let expression = format!("({readiness}) || ({launch})");
    vec![MatchCondition { name: "needs-readiness-gate-or-launch-priority", expression }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(api_version: &str, controller: bool, readiness: &[&str]) -> Value {
        let gates: Vec<Value> = readiness.iter().map(|g| json!({ "conditionType": g })).collect();
        let mut pod = json!({"metadata": {"ownerReferences": [
            {"apiVersion": api_version, "kind": "CloneSet", "name": "web", "uid": "u", "controller": controller}]},
            "spec": {"containers": [{"name": "main", "fieldOfTheFuture": 1}]}});
        if !gates.is_empty() {
            pod["spec"]["readinessGates"] = gates.into();
        }
        pod
    }

    fn patch(gates: &FeatureGates, pod: &Value) -> Value {
        json!(admit(gates, pod, [0; 5]).unwrap().patch)
    }

    #[test]
    fn pods_of_kruise_workloads_get_the_gate_once() {
        let gates = FeatureGates::default();
        let kruise = "apps.kruise.io/v1alpha1";
        assert_eq!(
            patch(&gates, &pod(kruise, true, &[])),
            json!([{"op": "add", "path": "/spec/readinessGates", "value": [{"conditionType": "KruisePodReady"}]}])
        );
        assert_eq!(
            patch(&gates, &pod(kruise, true, &["InPlaceUpdateReady"])),
            json!([{"op": "add", "path": "/spec/readinessGates/1", "value": {"conditionType": "KruisePodReady"}}])
        );
        assert_eq!(patch(&gates, &pod(kruise, true, &["KruisePodReady"])), json!([]));
    }

    #[test]
    fn other_pods_get_it_only_with_the_feature_gate() {
        let defaults = FeatureGates::default();
        for other in [
            pod("apps/v1", true, &[]),
            pod("apps.kruise.io/v1alpha1", false, &[]),
            pod("apps.kruise.io.example/v1", true, &[]),
            json!({"metadata": {}, "spec": {}}),
        ] {
            assert_eq!(patch(&defaults, &other), json!([]), "{other}");
            let all = FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap();
            assert_eq!(patch(&all, &other)[0]["path"], "/spec/readinessGates", "{other}");
        }
    }

    fn outcome(patch: Value, left_out: &[(&str, &str)]) -> Outcome {
        let left = |(set, reason): &(&str, &str)| LeftOut { set: (*set).into(), reason: (*reason).into() };
        Outcome {
            patch: patch.as_array().cloned().unwrap_or_default(),
            left_out: left_out.iter().map(left).collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn a_place_comes_after_sidecars_and_launch_priorities_in_one_patch() {
        let gates = FeatureGates::default();
        let pod = json!({"metadata": {"name": "db-0"}, "spec": {"containers": [{"name": "main"}]}});
        let agent = json!({"name": "agent", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]});
        let admitted = combine(&gates, &pod, &mut outcome(add(agent), &[]), false, [0; 5]).unwrap();
        let host = "kubernetes.io/hostname";
        let state: PersistentPodState = serde_json::from_value(json!({"metadata": {"name": "keep"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
                "requiredPersistentTopology": {"nodeTopologyKeys": [host]}},
            "status": {"podStates": {"db-0": {"nodeName": "n1", "nodeTopologyLabels": {host: "n1"}}}}}))
        .unwrap();
        let both = restored(&pod, &admitted, &state).unwrap();
        let mut wanted = pod.clone();
        json_patch::patch(&mut wanted, &both.patch).unwrap();
        assert_eq!(
            (&wanted["spec"]["containers"][0]["name"], &wanted["spec"]["nodeSelector"][host]),
            (&json!("agent"), &json!("n1"))
        );
        assert!(wanted["spec"]["containers"][1]["env"].is_array(), "the barrier is there");
        let other = json!({"metadata": {"name": "db-1"}, "spec": {"containers": [{"name": "main"}]}});
        assert!(restored(&other, &Admitted::unchanged(), &state).is_none());
    }

    fn add(container: Value) -> Value {
        json!([{"op": "add", "path": "/spec/containers/0", "value": container}])
    }

    #[test]
    fn c4_launch_priorities_see_the_sidecars() {
        let gates = FeatureGates::default();
        let mut one = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}});
        let agent = json!({"name": "agent", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]});
        let admitted = combine(&gates, &one, &mut outcome(add(agent), &[]), false, [0; 5]).unwrap();
        json_patch::patch(&mut one, &admitted.patch).unwrap();
        let key = |i: usize| {
            let env = one["spec"]["containers"][i]["env"].as_array().unwrap().last().unwrap().clone();
            env["valueFrom"]["configMapKeyRef"]["key"].as_str().unwrap().to_owned()
        };
        assert_eq!((key(0), key(1)), ("p_1".into(), "p_0".into()));
    }

    #[test]
    fn decision_36_a_pod_is_born_whatever_is_wrong_with_a_sidecar_set() {
        let gates = FeatureGates::default();
        let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}});
        let left = [("mesh", "no image"), ("log", "no volume")];
        let admitted = combine(&gates, &pod, &mut outcome(json!([]), &left), false, [0; 5]).unwrap();
        assert_eq!(
            (admitted.patch.0.len(), admitted.warnings),
            (
                0,
                vec![
                    "SidecarSet mesh is not injected: no image".to_owned(),
                    "SidecarSet log is not injected: no volume".into()
                ]
            )
        );
        // A sidecar by which the Pod would be refused, and a patch that does not apply.
        let bad = json!({"name": "agent", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "soon"}]});
        let nowhere = json!([{"op": "replace", "path": "/spec/none/0", "value": 1}]);
        for patch in [add(bad), nowhere, json!([{"op": "odd"}])] {
            let mut outcome = Outcome { injected: vec!["a".into()], ..outcome(patch, &[]) };
            let admitted = combine(&gates, &pod, &mut outcome, false, [0; 5]).unwrap();
            assert_eq!((outcome.injected.len(), outcome.left_out.len()), (0, 1), "it is counted as what it is");
            assert!(admitted.patch.0.is_empty() && admitted.warnings[0].starts_with("no SidecarSet is injected: "));
        }
        let many: Vec<(&str, &str)> = std::iter::repeat_n(("a", "b"), 50).collect();
        assert_eq!(combine(&gates, &pod, &mut outcome(json!([]), &many), false, [0; 5]).unwrap().warnings.len(), 5);
    }

    #[test]
    fn where_sidecars_are_required_a_pod_without_them_is_refused() {
        let gates = FeatureGates::default();
        let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}});
        let denied = combine(&gates, &pod, &mut outcome(json!([]), &[("mesh", "no image")]), true, [0; 5]).unwrap_err();
        assert_eq!(denied.code, 403);
        assert_eq!(
            denied.message,
            "SidecarSet mesh is not injected: no image; the namespace is labelled kruise.rs/sidecars: required, so no Pod is \
             created in it without its sidecars"
        );
        assert_eq!(
            combine(&gates, &pod, &mut outcome(json!([{"op": "odd"}]), &[]), true, [0; 5]).unwrap_err().code,
            403
        );
        assert!(combine(&gates, &pod, &mut outcome(json!([]), &[]), true, [0; 5]).is_ok());
        assert!(combine(&gates, &pod, &mut outcome(add(json!({"name": "a"})), &[]), true, [0; 5]).is_ok());
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        for bad in [json!(null), json!({"spec": 1}), json!({"spec": {"readinessGates": "x"}})] {
            assert_eq!(admit(&FeatureGates::default(), &bad, [0; 5]).unwrap_err().code, 400, "{bad}");
        }
    }

    /// A Pod with two containers, of which the first has a priority.
    fn prioritized(priority: &str, metadata: Value) -> Value {
        json!({"metadata": metadata, "spec": {"containers": [
            {"name": "first", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": priority}]}, {"name": "second"}]}})
    }

    fn admitted(pod: &Value) -> Value {
        let mut admitted = pod.clone();
        json_patch::patch(&mut admitted, &admit(&FeatureGates::default(), pod, [0, 1, 2, 3, 4]).unwrap().patch)
            .unwrap();
        admitted
    }

    /// D11 of SidecarSet.
    #[test]
    fn d11_a_pod_with_only_generate_name_goes_through_every_step() {
        let gates = FeatureGates::default();
        let pod = prioritized("5", json!({"generateName": "web-"}));
        let agent = add(json!({"name": "agent", "image": "a:1"}));
        let admission = combine(&gates, &pod, &mut outcome(agent, &[]), false, [0, 1, 2, 3, 4]).unwrap();
        let mut admitted = pod;
        json_patch::patch(&mut admitted, &admission.patch).unwrap();
        assert_eq!(admitted["metadata"]["name"], "web-bcdfg");
        let containers = admitted["spec"]["containers"].as_array().unwrap();
        let names: Vec<&Value> = containers.iter().map(|container| &container["name"]).collect();
        assert_eq!(names, ["agent", "first", "second"]);
        for container in containers {
            let barrier = container["env"].as_array().unwrap().last().unwrap();
            assert_eq!(barrier["valueFrom"]["configMapKeyRef"]["name"], "web-bcdfg-barrier", "{container}");
        }
    }

    #[test]
    fn case_31_a_pod_with_only_generate_name_gets_its_name_and_its_barrier() {
        let pod = admitted(&prioritized("5", json!({"generateName": "web-"})));
        assert_eq!(pod["metadata"], json!({"generateName": "web-", "name": "web-bcdfg"}));
        let barriers: Vec<&Value> = pod["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["env"].as_array().unwrap().last().unwrap())
            .collect();
        let barrier = |key: &str| json!({"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"name": "web-bcdfg-barrier", "key": key}}});
        assert_eq!(barriers, [&barrier("p_5"), &barrier("p_0")]);
        let long = admitted(&prioritized("5", json!({"generateName": "x".repeat(100)})));
        assert_eq!(long["metadata"]["name"].as_str().unwrap().len(), 63);
    }

    #[test]
    fn a_name_stays_and_without_any_nothing_is_done() {
        let named = admitted(&prioritized("5", json!({"name": "web", "generateName": "other-"})));
        assert_eq!(named["metadata"]["name"], "web");
        assert_eq!(named["spec"]["containers"][1]["env"][0]["valueFrom"]["configMapKeyRef"]["name"], "web-barrier");
        let nameless = prioritized("5", json!({}));
        assert_eq!(admitted(&nameless), nameless);
    }

    #[test]
    fn gate_and_barrier_come_together() {
        let mut both = pod("apps.kruise.io/v1alpha1", true, &[]);
        both["metadata"]["name"] = "web".into();
        both["spec"]["containers"] = prioritized("1", json!({}))["spec"]["containers"].clone();
        let both = admitted(&both);
        assert_eq!(both["spec"]["readinessGates"][0]["conditionType"], "KruisePodReady");
        assert!(both["spec"]["containers"][1]["env"].is_array());
        assert_eq!(admitted(&both), both, "a second call changes nothing");
    }

    #[test]
    fn decision_26_a_bad_priority_is_a_bad_request() {
        let denied = admit(&FeatureGates::default(), &prioritized("soon", json!({"name": "web"})), [0; 5]).unwrap_err();
        assert!(
            denied.code == 400 && denied.message.contains("first") && denied.message.contains("soon"),
            "{denied:?}"
        );
        let denied =
            admit(&FeatureGates::default(), &prioritized("1", json!({"name": "x".repeat(250)})), [0; 5]).unwrap_err();
        assert!(denied.code == 400 && denied.message.contains("metadata.name"), "{denied:?}");
    }

    /// No API server, and no list of SidecarSets yet; the only subset of a WorkloadSpread has no limit.
    #[tokio::test(start_paused = true)]
    async fn a_pod_refused_without_its_sidecars_is_not_judged_twice_in_the_time_of_one() {
        let client = crate::runtime::fake_api::nobody();
        let (context, _) = Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default());
        context.pod_states.know_of_none();
        context.spreads.know(&[json!({"metadata": {"name": "ws", "namespace": "ns", "uid": "w"},
            "spec": {"targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"},
                "subsets": [{"name": "a"}]}})]);
        let request = json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "object": pod("apps.kruise.io/v1alpha1", true, &[])});
        let request: Request = serde_json::from_value(request).unwrap();
        let begun = Instant::now();
        let denied = handle_required(Arc::new(context), request).await.unwrap_err();
        assert!(denied.message.contains("still being read"), "{}", denied.message);
        assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    }

    /// Nothing is known of SidecarSets: their first list has not come within 30 s.
    #[tokio::test(start_paused = true)]
    async fn the_creator_of_a_pod_is_warned_why_the_sidecar_sets_are_not_known() {
        for (dry_run, counted) in [(false, 1), (true, 0)] {
            let client = crate::runtime::fake_api::nobody();
            let (context, _) =
                Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default());
            context.pod_states.know_of_none();
            context.spreads.know_of_none();
            tokio::time::advance(sidecars::FIRST_LIST + Duration::from_secs(1)).await;
            let context = Arc::new(context);
            let request = json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "dryRun": dry_run,
                "object": pod("apps.kruise.io/v1alpha1", true, &[])});
            let request: Request = serde_json::from_value(request).unwrap();
            let begun = Instant::now();
            let admitted = handle(context.clone(), request).await.unwrap();
            assert_eq!(admitted.warnings, ["the Pod may lack its sidecars: the SidecarSets are still being read"]);
            assert_eq!((admitted.patch.0.len(), begun.elapsed()), (1, Duration::ZERO), "it has its readiness gate");
            assert_eq!(context.sidecars.unknown(), counted);
            let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}});
            let request = json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "object": mirror});
            let request: Request = serde_json::from_value(request).unwrap();
            assert_eq!(handle(context, request).await.unwrap().warnings, Vec::<String>::new(), "it gets none anyway");
        }
    }

    /// There are no SidecarSets where their kind is not installed.
    #[tokio::test(start_paused = true)]
    async fn without_the_kind_nobody_is_warned_of_sidecars_and_where_they_are_required_no_pod_is_created() {
        let client = crate::runtime::fake_api::nobody();
        let (context, _) = Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default());
        context.pod_states.know_of_none();
        context.spreads.know_of_none();
        context.sidecars.know_why(NotRead::NotInstalled);
        let context = Arc::new(context);
        let request =
            json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "object": pod("apps/v1", true, &[])});
        let request: Request = serde_json::from_value(request).unwrap();
        let admitted = handle(context.clone(), request.clone()).await.unwrap();
        assert!(admitted.patch.0.is_empty() && admitted.warnings.is_empty(), "{admitted:?}");
        assert_eq!(context.sidecars.unknown(), 0);
        let denied = handle_required(context, request).await.unwrap_err();
        assert!(denied.message.starts_with("the kind SidecarSet is not installed; "), "{}", denied.message);
    }

    #[tokio::test]
    async fn a_set_that_cannot_be_read_keeps_pods_out_where_sidecars_are_required_and_nowhere_else() {
        let gates = FeatureGates::default();
        let (context, _) =
            Context::new(gates, crate::runtime::fake_api::nobody(), "kruise-system".into(), Default::default());
        context.pod_states.know_of_none();
        context.spreads.know_of_none();
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]});
        let odd = json!({"metadata": {"name": "mesh", "uid": "m", "resourceVersion": "1"},
            "spec": {"namespace": "shop", "selector": selector, "containers": [{"name": "a", "image": "a:1"}]}});
        context.sidecars.know(&[odd]);
        let context = Arc::new(context);
        let request = |namespace: &str| {
            let object = pod("apps/v1", true, &[]);
            let request = json!({"uid": "r", "operation": "CREATE", "namespace": namespace, "object": object});
            serde_json::from_value::<Request>(request).unwrap()
        };
        let denied = handle_required(context.clone(), request("shop")).await.unwrap_err();
        let wanted = "SidecarSet mesh is not injected: it cannot be read: spec.selector: ";
        assert!(denied.code == 403 && denied.message.starts_with(wanted), "{}", denied.message);
        assert!(handle_required(context.clone(), request("bank")).await.is_ok(), "it is for another namespace");
        assert_eq!(handle(context, request("shop")).await.unwrap().warnings, Vec::<String>::new());
    }

    /// Nobody reads the SidecarSets then.
    #[tokio::test]
    async fn with_the_gate_off_a_pod_is_created_without_its_sidecars_where_they_are_required_too() {
        let gates = FeatureGates::parse(&["PodWebhook=false"], None).unwrap();
        let client = crate::runtime::fake_api::nobody();
        let (context, _) = Context::new(gates, client, "kruise-system".into(), Default::default());
        let request = json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "object": pod("apps.kruise.io/v1alpha1", true, &[])});
        let request: Request = serde_json::from_value(request).unwrap();
        let admitted = handle_required(Arc::new(context), request).await.unwrap();
        assert!(admitted.patch.0.is_empty() && admitted.warnings.is_empty(), "{admitted:?}");
    }
}
