//! KruisePodReady: several parties may hold a Pod NotReady, each under its own key.
//!
//! The condition's message is data: a sorted JSON array of keys. The condition is False exactly while the array is not
//! empty. Patches name only the conditions they mean, so nothing else of the status is
//! touched; `metadata.resourceVersion` in the patch makes the API server refuse it if the Pod has changed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::labels::{CONDITION_INPLACE_UPDATE_READY, CONDITION_KRUISE_POD_READY},
    k8s::{
        name::is_dns_subdomain,
        pod::PodView,
        time::{Now, rfc3339},
    },
};

/// The party of ContainerRecreateRequests, as OpenKruise names it.
const OF_REQUESTS: &str = "ContainerRecreateRequest";

/// An entry that keeps a Pod NotReady.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReadyKey {
    /// The party.
    pub user_agent: String,
    /// What tells its entries apart.
    pub key: String,
}

impl NotReadyKey {
    /// The key of a lifecycle hook with `markPodNotReady`.
    pub fn of_hook(hook: &str) -> Self {
        Self { user_agent: "Lifecycle".into(), key: hook.into() }
    }

    /// The key of a ContainerRecreateRequest.
    pub fn of_request(namespace: &str, name: &str) -> Self {
        Self { user_agent: OF_REQUESTS.into(), key: format!("{namespace}/{name}") }
    }

    /// The name of the ContainerRecreateRequest in a Pod's namespace whose key it is; None if it is somebody else's.
    pub fn request_in(&self, namespace: &str) -> Option<&str> {
        let name = self.key.strip_prefix(namespace)?.strip_prefix('/')?;
        (self.user_agent == OF_REQUESTS && is_dns_subdomain(name)).then_some(name)
    }
}

/// The keys in a condition's message, sorted. A message that cannot be read holds none.
pub fn keys(message: &str) -> Vec<NotReadyKey> {
    let mut keys: Vec<NotReadyKey> = serde_json::from_str(message).unwrap_or_default();
    keys.sort();
    keys.dedup();
    keys
}

/// The patch of `pods/status` that makes the Pod NotReady under `key`; None if it is so already or the Pod lacks the gate.
///
/// The Ready condition is turned False in the same write: endpoints follow at once instead of when kubelet notices.
pub fn add_key(pod: &Value, key: &NotReadyKey, now: Now) -> Option<Value> {
    with_key(&pod.into(), key, now).map(|conditions| patch(pod, conditions))
}

/// The conditions of [`add_key`].
pub fn with_key(pod: &Readiness<'_>, key: &NotReadyKey, now: Now) -> Option<Vec<Value>> {
    let condition = pod.condition_of_gated()?;
    let mut keys = condition.map(|c| keys(c.message)).unwrap_or_default();
    if keys.contains(key) && condition.is_some_and(|c| c.status == "False") {
        return None;
    }
    if !keys.contains(key) {
        keys.push(key.clone());
        keys.sort();
    }
    let mut patched = vec![written(condition, &keys, now.wall)];
    patched.extend(pod.ready_now_false(CONDITION_KRUISE_POD_READY, now.wall));
    Some(patched)
}

/// The patch that drops `key`; None if it is not there. kubelet makes the Pod Ready again once the last key is gone.
pub fn remove_key(pod: &Value, key: &NotReadyKey, now: Now) -> Option<Value> {
    without_keys(&pod.into(), std::slice::from_ref(key), now).map(|condition| patch(pod, vec![condition]))
}

/// The condition without some keys; None if none of them is there.
pub fn without_keys(pod: &Readiness<'_>, unwanted: &[NotReadyKey], now: Now) -> Option<Value> {
    let condition = pod.condition_of_gated()??;
    let mut keys = keys(condition.message);
    let before = keys.len();
    keys.retain(|k| !unwanted.contains(k));
    (keys.len() < before).then(|| written(Some(condition), &keys, now.wall))
}

/// The conditions that take a Pod out of service before it is changed in place. They are written whatever a cached copy
/// of the Pod says: traffic has to have gone before the change. Empty for a Pod without the gate.
pub fn in_place_begins(pod: &Readiness<'_>, now: Timestamp) -> Vec<Value> {
    if !pod.gates.contains(&CONDITION_INPLACE_UPDATE_READY) {
        return Vec::new();
    }
    let mut conditions = vec![json!({"type": CONDITION_INPLACE_UPDATE_READY, "status": "False",
        "reason": "StartInPlaceUpdate", "lastTransitionTime": rfc3339(now)})];
    conditions.extend(pod.ready_now_false(CONDITION_INPLACE_UPDATE_READY, now));
    conditions
}

/// The condition that puts a Pod into service, after an update in place or for the first time.
pub fn in_place_ended(now: Timestamp) -> Value {
    // Reason and message are nulls: a strategic merge would keep those of the begin.
    json!({"type": CONDITION_INPLACE_UPDATE_READY, "status": "True", "reason": null, "message": null,
        "lastTransitionTime": rfc3339(now)})
}

/// The first condition KruisePodReady, True; None if the Pod has one or needs none.
pub fn first_condition(pod: &PodView, now: Timestamp) -> Option<Value> {
    let missing = pod.has_readiness_gate(CONDITION_KRUISE_POD_READY)
        && pod.condition(CONDITION_KRUISE_POD_READY).is_none()
        && !pod.is_deleting();
    missing.then(|| json!({"type": CONDITION_KRUISE_POD_READY, "status": "True", "lastTransitionTime": rfc3339(now)}))
}

/// The patch that gives a Pod with the gate its first condition, True; None if it has one or needs none.
pub fn default_condition(pod: &PodView, now: Now) -> Option<Value> {
    first_condition(pod, now.wall).map(|condition| {
        json!({
            // Between our reading and this write another writer may have added a False: then this must not win.
            "metadata": {"resourceVersion": pod.resource_version()},
            "status": {"conditions": [condition]},
        })
    })
}

fn written(old: Option<Condition<'_>>, keys: &[NotReadyKey], now: Timestamp) -> Value {
    let status = if keys.is_empty() { "True" } else { "False" };
    let mut new = Map::new();
    new.insert("type".into(), CONDITION_KRUISE_POD_READY.into());
    new.insert("status".into(), status.into());
    // A list of string pairs always serializes; were it not so, an empty list is what readers make of bad text anyway.
    new.insert("message".into(), serde_json::to_string(keys).unwrap_or_else(|_| "[]".into()).into());
    if old.is_none_or(|old| old.status != status) {
        new.insert("lastTransitionTime".into(), rfc3339(now).into());
    }
    Value::Object(new)
}

/// Readiness gates and conditions, of a stored Pod or of a whole one.
#[derive(Clone, Debug)]
pub struct Readiness<'a> {
    gates: Vec<&'a str>,
    conditions: Vec<Condition<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Condition<'a> {
    type_: &'a str,
    status: &'a str,
    /// Of KruisePodReady alone.
    message: &'a str,
}

impl<'a> From<&'a Value> for Readiness<'a> {
    fn from(pod: &'a Value) -> Self {
        let text = |object: &'a Value, field: &str| object[field].as_str().unwrap_or_default();
        let list = |value: &'a Value| value.as_array().map_or(&[][..], Vec::as_slice);
        let gates = list(&pod["spec"]["readinessGates"]).iter().filter_map(|gate| gate["conditionType"].as_str());
        let conditions = list(&pod["status"]["conditions"]).iter().map(|c| Condition {
            type_: text(c, "type"),
            status: text(c, "status"),
            message: text(c, "message"),
        });
        Self { gates: gates.collect(), conditions: conditions.collect() }
    }
}

impl<'a> From<&'a PodView> for Readiness<'a> {
    fn from(pod: &'a PodView) -> Self {
        let conditions =
            pod.conditions.iter().map(|c| Condition { type_: &c.type_, status: &c.status, message: &c.message });
        Self { gates: pod.spec.readiness_gates.iter().map(String::as_str).collect(), conditions: conditions.collect() }
    }
}

impl<'a> Readiness<'a> {
    fn condition(&self, type_: &str) -> Option<Condition<'a>> {
        self.conditions.iter().find(|condition| condition.type_ == type_).copied()
    }

    /// None: the Pod lacks the gate. Some(None): the gate is there but no condition yet.
    fn condition_of_gated(&self) -> Option<Option<Condition<'a>>> {
        self.gates.contains(&CONDITION_KRUISE_POD_READY).then(|| self.condition(CONDITION_KRUISE_POD_READY))
    }

    /// What kubelet would make of Ready once it sees the condition of a gate False; None if there is nothing to change.
    fn ready_now_false(&self, closed: &str, now: Timestamp) -> Option<Value> {
        // Once it is False, kubelet keeps its reasons up to date.
        if self.condition("Ready")?.status == "False" || self.condition("ContainersReady")?.status != "True" {
            return None;
        }
        let reasons: Vec<String> = self
            .gates
            .iter()
            .filter_map(|gate| {
                let status = match *gate {
                    gate if gate == closed => Some("False"),
                    other => self.condition(other).map(|c| c.status),
                };
                match status {
                    None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
                    Some("True") => None,
                    Some(status) => {
                        Some(format!("the status of pod readiness gate {gate:?} is not \"True\", but {status}"))
                    }
                }
            })
            .collect();
        // Not word for word kubelet's text: were it equal, kubelet would see its own work, do nothing, and at its next sync
        // write back the Ready=True that it still remembers. A difference makes it compute the condition at once.
        let message = format!("{} (written by Kruise)", reasons.join(", "));
        Some(json!({"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": message,
            "lastTransitionTime": rfc3339(now)}))
    }
}

fn patch(pod: &Value, conditions: Vec<Value>) -> Value {
    json!({
        "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]},
        "status": {"conditions": conditions},
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-01T01:00:00Z";

    fn now() -> Now {
        Now { wall: "2026-01-01T01:00:00.7Z".parse().unwrap(), mono: Duration::from_secs(9) }
    }
    fn key(name: &str) -> NotReadyKey {
        NotReadyKey::of_request("ns", name)
    }
    fn kruise(status: &str, message: &str) -> Value {
        json!({"type": "KruisePodReady", "status": status, "message": message, "lastTransitionTime": OLD})
    }
    fn pod(gates: &[&str], conditions: Value) -> Value {
        let gates: Vec<Value> = gates.iter().map(|g| json!({"conditionType": g})).collect();
        json!({"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "7"}, "spec": {"readinessGates": gates},
            "status": {"phase": "Running", "conditions": conditions}})
    }
    fn ready_pod(message: &str) -> Value {
        pod(
            &["KruisePodReady"],
            json!([kruise("True", message),
                {"type": "Ready", "status": "True", "lastTransitionTime": OLD},
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": OLD}]),
        )
    }
    /// What the API server makes of the patch.
    fn apply(pod: &Value, patch: &Value) -> Value {
        assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
        let mut pod = pod.clone();
        for new in patch["status"]["conditions"].as_array().unwrap() {
            let list = pod["status"]["conditions"].as_array_mut().unwrap();
            match list.iter_mut().find(|c| c["type"] == new["type"]) {
                Some(old) => {
                    for (field, value) in new.as_object().unwrap() {
                        old[field] = value.clone();
                    }
                }
                None => list.push(new.clone()),
            }
        }
        pod
    }

    #[test]
    fn keys_of_requests_are_distinguished_from_those_of_others() {
        let key = |user_agent: &str, key: &str| NotReadyKey { user_agent: user_agent.into(), key: key.into() };
        assert_eq!(NotReadyKey::of_request("ns", "web.r-1").request_in("ns"), Some("web.r-1"));
        for other in [
            key("Lifecycle", "ns/r"),
            key("ContainerRecreateRequest", "r"),
            key("ContainerRecreateRequest", "other/r"),
            key("ContainerRecreateRequest", "ns/a/b"),
            key("ContainerRecreateRequest", "ns/../x"),
            key("ContainerRecreateRequest", "ns/r?dryRun=All"),
            key("ContainerRecreateRequest", "ns/"),
            key("", "ns/r"),
        ] {
            assert_eq!(other.request_in("ns"), None, "{other:?}");
        }
    }

    #[test]
    fn case_12_a_pod_without_the_gate_is_left_alone() {
        let pod = pod(&["Other"], json!([kruise("True", "[]")]));
        assert_eq!(add_key(&pod, &key("r"), now()), None);
        assert_eq!(remove_key(&pod, &key("r"), now()), None);
    }

    #[test]
    fn case_09_the_gate_of_an_update_is_closed_whatever_the_copy_says() {
        let gate = |status: &str| json!({"type": "InPlaceUpdateReady", "status": status, "lastTransitionTime": OLD});
        let ready = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": OLD});
        let open = pod(&["InPlaceUpdateReady"], json!([gate("True"), ready("Ready"), ready("ContainersReady")]));
        let written = in_place_begins(&(&open).into(), now().wall);
        assert_eq!(
            written[0],
            json!({"type": "InPlaceUpdateReady", "status": "False", "reason": "StartInPlaceUpdate", "lastTransitionTime": NOW})
        );
        assert_eq!((&written[1]["type"], &written[1]["reason"]), (&json!("Ready"), &json!("ReadinessGatesNotReady")));
        assert_eq!(
            written[1]["message"],
            "the status of pod readiness gate \"InPlaceUpdateReady\" is not \"True\", but False (written by Kruise)"
        );
        let stale = pod(&["InPlaceUpdateReady"], json!([gate("False")]));
        assert_eq!(in_place_begins(&(&stale).into(), now().wall).len(), 1);
        assert_eq!(in_place_begins(&(&pod(&["Other"], json!([]))).into(), now().wall), Vec::<Value>::new());
    }

    #[test]
    fn case_13_removing_a_key_that_is_not_there_writes_nothing() {
        for conditions in [json!([]), json!([kruise("True", "[]")]), json!([kruise("True", "not json")]), Value::Null] {
            assert_eq!(remove_key(&pod(&["KruisePodReady"], conditions), &key("r"), now()), None);
        }
    }

    #[test]
    fn case_14_the_pod_is_ready_only_after_the_last_key_is_gone() {
        let pod = ready_pod("[]");
        let pod = apply(&pod, &add_key(&pod, &key("b"), now()).unwrap());
        let pod = apply(&pod, &add_key(&pod, &key("a"), now()).unwrap());
        let condition = &pod["status"]["conditions"][0];
        assert_eq!(
            condition["message"],
            r#"[{"userAgent":"ContainerRecreateRequest","key":"ns/a"},{"userAgent":"ContainerRecreateRequest","key":"ns/b"}]"#
        );
        assert_eq!(add_key(&pod, &key("a"), now()), None, "already there");
        let pod = apply(&pod, &remove_key(&pod, &key("b"), now()).unwrap());
        assert_eq!(pod["status"]["conditions"][0]["status"], "False");
        let pod = apply(&pod, &remove_key(&pod, &key("a"), now()).unwrap());
        assert_eq!(pod["status"]["conditions"][0]["status"], "True");
        assert_eq!(pod["status"]["conditions"][0]["message"], "[]");
    }

    #[test]
    fn case_15_ready_turns_false_in_the_same_write() {
        let pod = ready_pod("[]");
        let patch = add_key(&pod, &key("r"), now()).unwrap();
        assert_eq!(
            patch["status"]["conditions"][1],
            json!({"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "lastTransitionTime": NOW,
                "message": "the status of pod readiness gate \"KruisePodReady\" is not \"True\", but False (written by Kruise)"})
        );
        assert_eq!(patch["status"].as_object().unwrap().len(), 1, "nothing else of the status is written");
    }

    #[test]
    fn case_15_ready_is_left_alone_while_containers_are_not_ready() {
        let not_ready = |c: Value| pod(&["KruisePodReady"], json!([kruise("True", "[]"), c]));
        for other in [
            json!({"type": "Ready", "status": "True"}),
            json!({"type": "ContainersReady", "status": "True"}),
            json!({"type": "Other", "status": "True"}),
        ] {
            let patch = add_key(&not_ready(other), &key("r"), now()).unwrap();
            assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 1);
        }
    }

    #[test]
    fn case_15_all_gates_are_listed_in_kubelets_words() {
        let pod = pod(
            &["A", "B", "C", "KruisePodReady"],
            json!([{"type": "A", "status": "True"}, {"type": "B", "status": "Unknown"},
                {"type": "Ready", "status": "True", "lastTransitionTime": OLD}, {"type": "ContainersReady", "status": "True"}]),
        );
        let patch = add_key(&pod, &key("r"), now()).unwrap();
        assert_eq!(
            patch["status"]["conditions"][1]["message"],
            "the status of pod readiness gate \"B\" is not \"True\", but Unknown, corresponding condition of pod \
             readiness gate \"C\" does not exist., the status of pod readiness gate \"KruisePodReady\" is not \"True\", but False \
             (written by Kruise)"
        );
    }

    #[test]
    fn a_pod_that_is_not_ready_anyway_keeps_kubelets_reasons() {
        let conditions = json!([{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
        let patch = add_key(&pod(&["KruisePodReady"], conditions), &key("r"), now()).unwrap();
        assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn case_16_the_default_is_true_and_only_for_a_missing_condition() {
        let view = |conditions: Value| serde_json::from_value::<PodView>(pod(&["KruisePodReady"], conditions)).unwrap();
        assert_eq!(
            default_condition(&view(json!([])), now()).unwrap(),
            json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions": [
                {"type": "KruisePodReady", "status": "True", "lastTransitionTime": NOW}]}})
        );
        assert_eq!(default_condition(&view(json!([kruise("False", "[]")])), now()), None);
        assert_eq!(default_condition(&view(json!([kruise("True", "[]")])), now()), None);
        let mut ungated = view(json!([]));
        std::sync::Arc::make_mut(&mut ungated.spec).readiness_gates = Box::default();
        assert_eq!(default_condition(&ungated, now()), None);
        let mut deleting = view(json!([]));
        deleting.rare_mut().deleted = Some(OLD.parse().unwrap());
        assert_eq!(default_condition(&deleting, now()), None);
    }

    #[test]
    fn the_status_follows_the_keys_on_every_write() {
        let held = serde_json::to_string(&[key("a")]).unwrap();
        for (status, message, name, new_status, transition) in [
            ("True", "[]", "a", "False", true),
            // A key beside a True (a race with the default) is made good.
            ("True", held.as_str(), "a", "False", true),
            ("False", held.as_str(), "b", "False", false),
            ("", "[]", "a", "False", true),
            // Text that nobody can read counts as no key.
            ("False", "maintenance", "a", "False", false),
        ] {
            let pod = pod(&["KruisePodReady"], json!([kruise(status, message)]));
            let patch = add_key(&pod, &key(name), now()).unwrap();
            let condition = &patch["status"]["conditions"][0];
            assert_eq!(condition["status"], new_status, "{status} {message}");
            assert_eq!(condition.get("lastTransitionTime").is_some(), transition, "{status} {message}");
        }
        // Removal from a condition whose status is already right does not move the time either.
        let pod = pod(&["KruisePodReady"], json!([kruise("True", &held)]));
        let patch = remove_key(&pod, &key("a"), now()).unwrap();
        assert_eq!(patch["status"]["conditions"][0].get("lastTransitionTime"), None);
    }

    #[test]
    fn shortfall_08_a_first_key_creates_the_condition_with_an_explicit_status() {
        let pod = pod(&["KruisePodReady"], json!([]));
        let patch = add_key(&pod, &key("r"), now()).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["status"], "False");
        assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], NOW);
    }
}
