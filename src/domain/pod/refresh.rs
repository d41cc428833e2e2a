//! What a Pod of a workload needs so that its own state is right: gates opened, its lifecycle state, the next batch of an
//! update in place. Shared by the workloads that update in place.
//!
//! Decided from the compact [`PodView`]; only writing a batch needs the whole Pod. Everything that can be said in one
//! patch of `pods/status` is: the API server takes labels and annotations along with the conditions there.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{
    inplace::{self, Annotations, ObservedPod, Step, UpdateSpec},
    lifecycle::{self, Hooked, State},
    readiness::{self, NotReadyKey, Readiness},
};
use crate::{
    api::{
        apps::{self, lifecycle::Lifecycle},
        kinds, labels,
    },
    k8s::{
        pod::PodView,
        revision,
        time::{Now, rfc3339},
    },
};

/// Key in KruisePodReady while a Pod waits for its deletion, if its hook wants that.
pub const PRE_DELETE_KEY: &str = "preDeleteHook";
/// Key in KruisePodReady while a Pod waits for its update, if its hook wants that.
pub const PRE_UPDATE_KEY: &str = "preUpdateHook";

/// What a Pod needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Refresh {
    /// Nothing.
    Nothing,
    /// Nothing yet.
    Wait {
        /// When to look again, if nothing happens before.
        after: Option<Duration>,
        /// What is waited for, in words.
        for_what: String,
    },
    /// To be decided with the whole Pod at hand.
    WholePod,
    /// A strategic merge patch of `pods/status`.
    Status(Value),
    /// The next containers of an update in place have to be changed.
    Batch(UpdateSpec),
    /// A pending change that nobody wants any more has to be forgotten.
    DropGrace,
}

impl Hooked for PodView {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }
    fn has_finalizer(&self, name: &str) -> bool {
        self.rare().finalizers.iter().any(|finalizer| finalizer == name)
    }
}

/// The lifecycle state of a Pod.
pub fn state_of(pod: &PodView) -> State {
    State::parse(pod.labels.get(labels::LIFECYCLE_STATE))
}

/// Whether the first conditions of a Pod come from the controller of its workload, all in one write.
pub fn gets_first_conditions_from_workload(pod: &PodView) -> bool {
    pod.controller.as_ref().is_some_and(|owner| {
        kinds::Kind::of_owner(&owner.api_version, &owner.kind).is_some_and(kinds::Kind::makes_pods)
    }) && pod.has_readiness_gate(labels::CONDITION_INPLACE_UPDATE_READY)
        && pod.condition(labels::CONDITION_INPLACE_UPDATE_READY).is_none()
}

/// Whether it is to have the label `pod-template-hash` and lacks it: Pods of CloneSets have it, those of other kinds do not.
fn lacks_template_hash(pod: &PodView) -> bool {
    let is_wanted = pod.controller.as_ref().is_none_or(|owner| owner.is(apps::GROUP, "CloneSet"));
    is_wanted && pod.labels.get(labels::POD_TEMPLATE_HASH).is_none()
}

/// Whether there is nothing to do for a Pod, as for most Pods most of the time. An unbound Pod whose preNormal hook is complete
/// is looked for apart, by [`is_let_in`].
pub fn is_at_rest(pod: &PodView) -> bool {
    let gate = labels::CONDITION_INPLACE_UPDATE_READY;
    let is_unbound_and_new = pod.node_name.is_empty() && pod.in_place().is_none() && pod.condition(gate).is_none();
    // The first conditions and the first state of a Pod go into one write, when it has a node.
    is_unbound_and_new
        || matches!(state_of(pod), State::None | State::Normal | State::PreparingDelete | State::Unknown(_))
            && pod.in_place().is_none()
            && (pod.condition_is_true(gate) || !pod.has_readiness_gate(gate))
            && !lacks_template_hash(pod)
}

/// Whether a Pod leaves its preparation without having a node: its preNormal hook is complete.
fn is_let_in(pod: &PodView, lifecycle: Option<&Lifecycle>) -> bool {
    let observed =
        lifecycle::ObservedPod { lifecycle, is_scheduled: false, is_on_update_revision: false, is_updated: false };
    let state = state_of(pod);
    state == State::PreparingNormal && lifecycle::refresh(&state, &observed, pod).is_some()
}

/// Decides what a Pod needs now. `update_revision` is the name of the revision that its workload goes to, `whole` the
/// whole Pod, if it has been read.
pub fn refresh(
    pod: &PodView,
    whole: Option<&Value>,
    lifecycle: Option<&Lifecycle>,
    update_revision: &str,
    now: Now,
) -> Refresh {
    if is_at_rest(pod) && !is_let_in(pod, lifecycle) {
        return Refresh::Nothing;
    }
    let is_fresh = pod.condition(labels::CONDITION_INPLACE_UPDATE_READY).is_none() && pod.in_place().is_none();
    let state = state_of(pod);
    // A Pod at hand as a whole may have an annotation that is not kept in stores, for its update is done.
    let (observed, annotations) = match whole {
        Some(whole) => (ObservedPod::from(whole), Annotations::of(whole)),
        None => (ObservedPod::from(pod), Annotations::of_view(pod)),
    };
    let annotations = match annotations {
        Ok(annotations) => annotations,
        Err(error) => return Refresh::Wait { after: None, for_what: format!("somebody to mend its {error}") },
    };
    // During a grace period nothing of the Pod matters but time: it would be read in every pass.
    let state_to_judge = annotations.state.as_ref().filter(|_| annotations.grace.is_none());
    let reads_more = state_to_judge.is_some_and(|state| {
        state.update_env_from_metadata || state.update_resources || inplace::needs_definitions(&observed, state)
    });
    if reads_more && whole.is_none() {
        return Refresh::WholePod;
    }
    let mut opens = false;
    let mut waits = None;
    match inplace::next_step(&observed, &annotations, now.wall) {
        Step::Nothing => {}
        Step::Wait { after, for_what } => waits = Some((after, for_what)),
        Step::DropGrace => return Refresh::DropGrace,
        Step::Apply(spec) | Step::NextBatch(spec) => return Refresh::Batch(spec),
        Step::OpenGate => opens = true,
    }
    let label = pod.labels.get(labels::CONTROLLER_REVISION_HASH).unwrap_or_default();
    let is_updated = inplace::is_complete(&observed, annotations.state.as_ref(), annotations.grace.is_some()).done;
    let observed = lifecycle::ObservedPod {
        lifecycle,
        is_scheduled: !pod.node_name.is_empty(),
        is_on_update_revision: revision::is_same(label, update_revision),
        is_updated,
    };
    let next = lifecycle::refresh(&state, &observed, pod);

    let mut conditions = Vec::new();
    if opens {
        conditions.push(readiness::in_place_ended(now.wall));
    }
    if is_fresh && opens {
        conditions.extend(readiness::first_condition(pod, now.wall));
    }
    let mut change = Change::to(next);
    if lacks_template_hash(pod) && !label.is_empty() {
        change.template_hash = Some(revision::short(label).to_owned());
    }
    match change.patch(pod, conditions, now) {
        Some(patch) => Refresh::Status(patch),
        None => waits.map_or(Refresh::Nothing, |(after, for_what)| Refresh::Wait { after, for_what }),
    }
}

/// The patch that moves a Pod to another state: its label, and the key that its hook wants in KruisePodReady.
/// `restore` puts the labels and finalizers of a hook back. None: there is nothing to change.
pub fn move_to(pod: &PodView, state: State, lifecycle: &Lifecycle, restore: bool, now: Now) -> Option<Value> {
    let mut change = Change::default();
    let hook = match state {
        State::PreparingDelete => lifecycle.pre_delete.as_ref().map(|hook| (hook, PRE_DELETE_KEY)),
        State::PreparingUpdate => lifecycle.in_place_update.as_ref().map(|hook| (hook, PRE_UPDATE_KEY)),
        State::Normal | State::Updated => {
            change.without = vec![PRE_UPDATE_KEY, PRE_DELETE_KEY];
            None
        }
        _ => {
            change.without = vec![PRE_DELETE_KEY];
            None
        }
    };
    if let Some((hook, key)) = hook {
        change.with = hook.mark_pod_not_ready.then_some(key);
    }
    if restore {
        let of_updates = || lifecycle.in_place_update.as_ref().filter(|_| state == State::Updated);
        if let Some(hook) = hook.map(|(hook, _)| hook).or_else(of_updates) {
            change.labels = hook.labels_handler.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            change.finalizers =
                hook.finalizers_handler.iter().filter(|name| !pod.has_finalizer(name)).cloned().collect();
        }
    }
    change.state = (state_of(pod) != state).then_some(state);
    change.patch(pod, Vec::new(), now)
}

/// What one patch says.
#[derive(Default)]
struct Change {
    state: Option<State>,
    template_hash: Option<String>,
    labels: Map<String, Value>,
    finalizers: Vec<String>,
    with: Option<&'static str>,
    without: Vec<&'static str>,
}

impl Change {
    /// To the next state, if there is one. The keys of hooks that are over are removed.
    fn to(next: Option<State>) -> Self {
        let without = match next {
            Some(State::Normal) => vec![PRE_UPDATE_KEY, PRE_DELETE_KEY],
            Some(State::Updated) => vec![PRE_UPDATE_KEY],
            _ => Vec::new(),
        };
        Self { state: next, without, ..Self::default() }
    }

    fn patch(self, pod: &PodView, mut conditions: Vec<Value>, now: Now) -> Option<Value> {
        // A Pod of which nothing has started yet is read by nobody who would take it out of service; once something
        // runs, another writer may have put a key there that must not be lost.
        let mut is_bound = pod.container_statuses.iter().any(|status| !status.container_id.is_empty());
        let readiness = Readiness::from(pod);
        let keys: Vec<NotReadyKey> = self.without.iter().map(|key| NotReadyKey::of_hook(key)).collect();
        if let Some(condition) = readiness::without_keys(&readiness, &keys, now) {
            is_bound = true;
            conditions.push(condition);
        }
        if let Some(key) = self.with
            && let Some(more) = readiness::with_key(&readiness, &NotReadyKey::of_hook(key), now)
        {
            is_bound = true;
            conditions.extend(more);
        }
        let mut labels = self.labels;
        let mut annotations = Map::new();
        if let Some(state) = self.state {
            labels.insert(labels::LIFECYCLE_STATE.into(), state.as_str().into());
            annotations.insert(labels::LIFECYCLE_TIMESTAMP.into(), rfc3339(now.wall).into());
        }
        if let Some(hash) = self.template_hash {
            labels.insert(labels::POD_TEMPLATE_HASH.into(), hash.into());
        }
        if labels.is_empty() && self.finalizers.is_empty() && conditions.is_empty() {
            return None;
        }
        let mut metadata = json!({"uid": pod.uid()});
        if is_bound {
            metadata["resourceVersion"] = json!(pod.resource_version());
        }
        for (field, map) in [("labels", labels), ("annotations", annotations)] {
            if !map.is_empty() {
                metadata[field] = map.into();
            }
        }
        if !self.finalizers.is_empty() {
            // A strategic merge adds to the list.
            metadata["finalizers"] = self.finalizers.into();
        }
        let mut patch = json!({"metadata": metadata});
        if !conditions.is_empty() {
            patch["status"] = json!({"conditions": conditions});
        }
        Some(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::pod::runtime_meta;

    fn now() -> Now {
        Now { wall: "2026-01-01T01:00:00.7Z".parse().unwrap(), mono: Duration::from_secs(9) }
    }
    const AT: &str = "2026-01-01T01:00:00Z";

    /// A Pod in service; `changes` are merged over it.
    fn pod(changes: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": "web-a", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "labels": {"controller-revision-hash": "web-2", "pod-template-hash": "2", "lifecycle.apps.kruise.io/state": "Normal"},
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i:2"}],
                "readinessGates": [{"conditionType": "InPlaceUpdateReady"}, {"conditionType": "KruisePodReady"}]},
            "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "True"}, {"type": "KruisePodReady", "status": "True"}],
                "containerStatuses": [{"name": "main", "containerID": "c://1", "imageID": "i@sha256:2", "image": "i:2", "ready": true}]},
        });
        json_patch::merge(&mut pod, &changes);
        pod
    }
    fn fresh(changes: Value) -> Value {
        let mut fresh = pod(json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "PreparingNormal"}},
            "status": {"conditions": null, "containerStatuses": null}}));
        json_patch::merge(&mut fresh, &changes);
        fresh
    }
    fn view(pod: &Value) -> PodView {
        serde_json::from_value(pod.clone()).unwrap()
    }
    fn run(pod: &Value, lifecycle: Value) -> Refresh {
        let lifecycle: Option<Lifecycle> = serde_json::from_value(lifecycle).unwrap();
        refresh(&view(pod), None, lifecycle.as_ref(), "web-2", now())
    }
    fn hooks(not_ready: bool) -> Value {
        let hook = json!({"labelsHandler": {"hold": "true"}, "finalizersHandler": ["example.com/f"], "markPodNotReady": not_ready});
        json!({"inPlaceUpdate": hook, "preDelete": hook})
    }
    fn state(pod: &Value, changes: Value) -> Value {
        let mut state =
            json!({"revision": "web-2", "updateTimestamp": "2026-01-01T00:59:00Z", "lastContainerStatuses": null});
        json_patch::merge(&mut state, &changes);
        let mut pod = pod.clone();
        pod["metadata"]["annotations"][labels::IN_PLACE_STATE] = state.to_string().into();
        pod
    }

    #[test]
    fn a_pod_in_service_needs_nothing() {
        assert_eq!(run(&pod(json!({})), Value::Null), Refresh::Nothing);
    }

    #[test]
    fn case_29_a_new_pod_gets_everything_in_one_write_once_it_has_a_node() {
        assert_eq!(run(&fresh(json!({"spec": {"nodeName": null}})), Value::Null), Refresh::Nothing);
        assert_eq!(
            run(&fresh(json!({})), Value::Null),
            Refresh::Status(json!({
                // Not bound to a version: scheduler and kubelet write at the same time, and nothing runs yet.
                "metadata": {"uid": "u", "labels": {"lifecycle.apps.kruise.io/state": "Normal"},
                    "annotations": {"lifecycle.apps.kruise.io/timestamp": AT}},
                "status": {"conditions": [
                    {"type": "InPlaceUpdateReady", "status": "True", "reason": null, "message": null, "lastTransitionTime": AT},
                    {"type": "KruisePodReady", "status": "True", "lastTransitionTime": AT}]},
            }))
        );
    }

    #[test]
    fn a_new_pod_with_a_hook_is_opened_and_stays_in_preparation() {
        let lifecycle = json!({"preNormal": {"labelsHandler": {"in": "yes"}}});
        let Refresh::Status(patch) = run(&fresh(json!({})), lifecycle.clone()) else { panic!() };
        assert_eq!(
            (patch["metadata"].get("labels"), patch["status"]["conditions"][0]["status"].as_str()),
            (None, Some("True"))
        );
        let hooked =
            pod(json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "PreparingNormal", "in": "yes"}}}));
        let Refresh::Status(patch) = run(&hooked, lifecycle) else { panic!() };
        assert_eq!(patch["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Normal");
    }

    #[test]
    fn case_29_a_new_pod_whose_hook_is_complete_needs_no_node() {
        let lifecycle = json!({"preNormal": {"labelsHandler": {"in": "yes"}}});
        let unbound = |labels: Value| fresh(json!({"metadata": {"labels": labels}, "spec": {"nodeName": null}}));
        let Refresh::Status(patch) = run(&unbound(json!({"in": "yes"})), lifecycle.clone()) else { panic!() };
        assert_eq!(patch["metadata"]["labels"], json!({"lifecycle.apps.kruise.io/state": "Normal"}));
        assert_eq!(patch["metadata"].get("resourceVersion"), None, "the scheduler writes at the same time");
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        let types: Vec<&str> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
        assert_eq!(types, ["InPlaceUpdateReady", "KruisePodReady"], "it costs one write, as for a Pod with a node");
        for (labels, lifecycle) in [(json!({"in": "no"}), lifecycle), (json!({"in": "yes"}), Value::Null)] {
            assert_eq!(run(&unbound(labels), lifecycle), Refresh::Nothing);
        }
        assert_eq!(run(&pod(json!({"spec": {"nodeName": null}})), Value::Null), Refresh::Nothing, "nothing is left");
    }

    #[test]
    fn case_10_a_gate_is_opened_on_exactly_the_version_that_was_checked() {
        let closed = json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updating"}},
            "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}]}});
        let updating = state(
            &pod(closed),
            json!({"updateImages": true, "lastContainerStatuses": {"main": {"imageID": "i@sha256:1"}}}),
        );
        let Refresh::Status(patch) = run(&updating, Value::Null) else { panic!() };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(
            patch["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Normal",
            "gate and state in one write"
        );
        assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn an_update_that_is_not_done_is_waited_for() {
        let closed = json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updating"}}, "spec": {"containers": [{"name": "main", "image": "i:3"}]},
            "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}]}});
        let updating = state(
            &pod(closed),
            json!({"updateImages": true, "lastContainerStatuses": {"main": {"imageID": "i@sha256:2"}}}),
        );
        let Refresh::Wait { after: None, for_what } = run(&updating, Value::Null) else { panic!() };
        assert_eq!(for_what, "container main to run image i:3");
    }

    #[test]
    fn a_change_of_the_environment_is_judged_with_the_whole_pod() {
        let closed = json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updating"}},
            "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}]}});
        let updating = state(&pod(closed), json!({"updateEnvFromMetadata": true}));
        assert_eq!(run(&updating, Value::Null), Refresh::WholePod);
        let with = refresh(&view(&updating), Some(&updating), None, "web-2", now());
        assert!(matches!(with, Refresh::Wait { .. }), "{with:?}");
    }

    #[test]
    fn case_06_the_hash_of_kubelet_1_30_is_judged_with_the_whole_pod() {
        let mut updating = state(
            &pod(json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updating"}},
                "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}]}})),
            // Both images have one id, and kubelet shows the name of the first one for it.
            json!({"lastContainerStatuses": {"main": {"imageID": "i@sha256:2"}}}),
        );
        updating["spec"]["containers"][0]["image"] = "i:3".into();
        let [short, long] = runtime_meta::plain_hashes(&updating["spec"]["containers"][0]);
        let report = |id: &str, hash: u64| json!({"containers": [{"name": "main", "containerID": id, "hashes": {"plainHash": hash}}]});
        let with = |report: Value, seen: Value| {
            let mut pod = updating.clone();
            pod["metadata"]["annotations"][labels::RUNTIME_CONTAINERS_META] = report.to_string().into();
            pod["metadata"]["generation"] = 2.into();
            pod["status"]["observedGeneration"] = seen;
            pod
        };
        let of_1_30 = with(report("c://1", long), Value::Null);
        assert_eq!(run(&of_1_30, Value::Null), Refresh::WholePod);
        let done = refresh(&view(&of_1_30), Some(&of_1_30), None, "web-2", now());
        assert!(matches!(done, Refresh::Status(_)), "{done:?}");
        let of_1_31 = with(report("c://1", short), Value::Null);
        assert!(matches!(run(&of_1_31, Value::Null), Refresh::Status(_)), "the view says enough");
        let mut in_grace = with(report("c://1", long), Value::Null);
        let grace = json!({"revision": "web-2", "containerImages": {"main": "i:4"}, "graceSeconds": 600});
        in_grace["metadata"]["annotations"][labels::IN_PLACE_GRACE] = grace.to_string().into();
        for (pod, why) in [
            (in_grace, "time has to pass"),
            (with(report("c://0", long), Value::Null), "the report is about another instance"),
            (with(report("c://1", long), 2.into()), "a kubelet that reports generations has the short hash"),
        ] {
            assert!(matches!(run(&pod, Value::Null), Refresh::Wait { .. }), "{why}");
        }
    }

    #[test]
    fn shortfall_07_every_way_back_into_service_drops_the_key() {
        let held = json!({"type": "KruisePodReady", "status": "False", "message": json!([{"userAgent": "Lifecycle", "key": "preUpdateHook"}]).to_string()});
        for (state, changes) in [
            ("Updated", json!({"metadata": {"labels": {"hold": "true"}, "finalizers": ["example.com/f"]}})),
            ("PreparingUpdate", json!({})),
            ("Updating", json!({})),
        ] {
            let mut pod = pod(json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": state}},
                "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "True"}, held.clone()]}}));
            json_patch::merge(&mut pod, &changes);
            let Refresh::Status(patch) = run(&pod, hooks(true)) else { panic!("{state}") };
            assert_eq!(patch["status"]["conditions"][0]["message"], "[]", "{state}");
            assert_eq!(patch["status"]["conditions"][0]["status"], "True", "{state}");
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "{state}");
        }
    }

    #[test]
    fn a_hook_marks_the_pod_not_ready_in_the_same_write_as_its_state() {
        let lifecycle: Lifecycle = serde_json::from_value(hooks(true)).unwrap();
        let patch = move_to(&view(&pod(json!({}))), State::PreparingDelete, &lifecycle, false, now()).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"lifecycle.apps.kruise.io/state": "PreparingDelete"}));
        assert_eq!(patch["status"]["conditions"][0]["message"], r#"[{"userAgent":"Lifecycle","key":"preDeleteHook"}]"#);
        let plain: Lifecycle = serde_json::from_value(hooks(false)).unwrap();
        let patch = move_to(&view(&pod(json!({}))), State::PreparingDelete, &plain, false, now()).unwrap();
        assert_eq!(patch.get("status"), None);
    }

    #[test]
    fn case_02_the_hook_is_put_back_before_another_update() {
        let lifecycle: Lifecycle = serde_json::from_value(hooks(false)).unwrap();
        let updated = pod(json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updated"}}}));
        let patch = move_to(&view(&updated), State::PreparingUpdate, &lifecycle, true, now()).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"hold": "true", "lifecycle.apps.kruise.io/state": "PreparingUpdate"})
        );
        assert_eq!(patch["metadata"]["finalizers"], json!(["example.com/f"]));
        // A Pod that is not to be updated yet: its hook is not asked to let go again.
        let patch = move_to(&view(&updated), State::Updated, &lifecycle, true, now()).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"hold": "true"}));
        assert_eq!(patch["metadata"]["finalizers"], json!(["example.com/f"]));
    }

    #[test]
    fn pods_of_stateful_sets_get_no_template_hash() {
        let owner = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "s", "uid": "o", "controller": true}]);
        let pod = pod(json!({"metadata": {"labels": {"pod-template-hash": null}, "ownerReferences": owner}}));
        assert_eq!(run(&pod, Value::Null), Refresh::Nothing);
    }

    #[test]
    fn a_missing_template_hash_is_added() {
        let old = pod(json!({"metadata": {"labels": {"pod-template-hash": null}}}));
        let Refresh::Status(patch) = run(&old, Value::Null) else { panic!() };
        assert_eq!(patch["metadata"]["labels"], json!({"pod-template-hash": "2"}));
    }

    #[test]
    fn first_conditions_of_a_workloads_pod_come_from_its_controller() {
        assert!(gets_first_conditions_from_workload(&view(&fresh(json!({})))));
        assert!(!gets_first_conditions_from_workload(&view(&pod(json!({})))));
        let owned_by = |kind: &str| json!({"metadata": {"ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": kind, "name": "s", "uid": "o", "controller": true}]}});
        assert!(gets_first_conditions_from_workload(&view(&fresh(owned_by("StatefulSet")))));
        assert!(gets_first_conditions_from_workload(&view(&fresh(owned_by("DaemonSet")))));
        assert!(!gets_first_conditions_from_workload(&view(&fresh(owned_by("SidecarSet")))));
    }
}
