//! What deleting a request undoes, and what not.

use serde_json::Value;

use super::{
    JsonPointer,
    progress::{Outcome, Watched},
    request::owner_name,
};
use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateState, Phase},
    domain::node::recreate::states_of,
};

/// Whether there is something to cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Delete it; what becomes of each part, one line each.
    Delete(Vec<String>),
    /// It has ended and stays as a record; how.
    Ended(String),
    /// Somebody has deleted it already.
    Deleting,
    /// The WorkloadRestart of this name would make it again.
    Owned(String),
}

/// Judges one request of either kind. One that cannot be read can still be deleted.
pub fn judge(object: &Value) -> Verdict {
    if object.pointer("/metadata/deletionTimestamp").is_some() {
        return Verdict::Deleting;
    }
    let owned = || owner_name(object).map(|name| Verdict::Owned(name.to_owned()));
    let seen = match Watched::read(object.clone()) {
        Ok(seen) => seen,
        Err(error) => return owned().unwrap_or_else(|| Verdict::Delete(vec![error.to_string()])),
    };
    match (seen.outcome(), &seen) {
        (Outcome::Succeeded, _) => Verdict::Ended("succeeded".into()),
        (Outcome::Failed(why), _) => Verdict::Ended(format!("failed: {why}")),
        (Outcome::Nothing(why), _) => Verdict::Ended(why),
        (Outcome::Open, Watched::Request(request)) => {
            owned().unwrap_or_else(|| Verdict::Delete(parts_of_request(request)))
        }
        (Outcome::Open, Watched::Workload(_)) => Verdict::Delete(parts_of_workload(object)),
        // Never asked: only requests are cancelled.
        (Outcome::Open, Watched::Rollout(_)) => Verdict::Ended("it is no request".into()),
    }
}

fn parts_of_request(request: &ContainerRecreateRequest) -> Vec<String> {
    let line = |state: &ContainerRecreateState| format!("container {}: {}", state.name, fate(state));
    states_of(request).iter().map(line).collect()
}

/// A stop that was sent is not taken back; a hook that runs is.
fn fate(state: &ContainerRecreateState) -> &'static str {
    match state.phase {
        Phase::Succeeded => "was restarted already, nothing is undone",
        Phase::Failed => "had failed already, nothing is undone",
        _ if state.is_killed => "was stopped already; kubelet starts it all the same",
        _ if state.hook_started_at.is_some() => {
            "its preStop hook is cancelled and it keeps running, unless the stop signal was sent meanwhile"
        }
        _ if state.kill_started_at.is_some() => {
            "its stop was sent and is not taken back; kubelet starts it all the same"
        }
        _ => "was not touched and keeps running",
    }
}

fn parts_of_workload(object: &Value) -> Vec<String> {
    let (restarted, under_way) = (object.int("/status/restarted"), object.int("/status/restarting"));
    vec![
        format!("{restarted} Pods were restarted already, nothing is undone"),
        format!(
            "{under_way} Pods are being restarted: their requests are deleted too, stops that were sent are not taken back"
        ),
        "the other Pods are not touched".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(status: &Value) -> Value {
        json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": { "name": "web-x" }, "spec": { "podName": "web", "containers": [{ "name": "main" }] },
            "status": status })
    }

    #[test]
    fn each_state_says_what_is_undone() {
        for (state, words) in [
            (json!({ "phase": "Pending" }), "was not touched and keeps running"),
            (
                json!({ "phase": "Recreating", "killStartedAt": "2026-01-01T00:00:00Z" }),
                "its stop was sent and is not taken back; kubelet starts it all the same",
            ),
            (
                json!({ "phase": "Recreating", "killStartedAt": "2026-01-01T00:00:00Z", "hookStartedAt": "2026-01-01T00:00:00Z" }),
                "its preStop hook is cancelled and it keeps running, unless the stop signal was sent meanwhile",
            ),
            (
                json!({ "phase": "Recreating", "isKilled": true, "killStartedAt": "2026-01-01T00:00:00Z", "hookStartedAt": "2026-01-01T00:00:00Z" }),
                "was stopped already; kubelet starts it all the same",
            ),
            (json!({ "phase": "Succeeded", "isKilled": true }), "was restarted already, nothing is undone"),
            (json!({ "phase": "Failed" }), "had failed already, nothing is undone"),
        ] {
            let mut state = state;
            state["name"] = "main".into();
            let status = json!({ "phase": "Recreating", "containerRecreateStates": [state] });
            assert_eq!(judge(&request(&status)), Verdict::Delete(vec![format!("container main: {words}")]));
        }
        let fresh = judge(&request(&json!({ "phase": "" })));
        assert_eq!(fresh, Verdict::Delete(vec!["container main: was not touched and keeps running".into()]));
    }

    #[test]
    fn a_record_is_kept() {
        let done =
            json!({ "phase": "Completed", "containerRecreateStates": [{ "name": "main", "phase": "Succeeded" }] });
        assert_eq!(judge(&request(&done)), Verdict::Ended("succeeded".into()));
        let failed = json!({ "phase": "Completed", "message": "pod has gone" });
        assert_eq!(judge(&request(&failed)), Verdict::Ended("failed: pod has gone".into()));
        let mut deleting = request(&json!({ "phase": "" }));
        deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(judge(&deleting), Verdict::Deleting);
    }

    #[test]
    fn what_cannot_be_read_can_still_be_deleted() {
        assert!(matches!(judge(&request(&json!({ "phase": 1 }))), Verdict::Delete(parts) if parts.len() == 1));
    }

    #[test]
    fn what_a_workload_restart_would_make_again_is_left_to_it() {
        for (kind, status, owned) in [
            ("WorkloadRestart", json!({ "phase": "" }), true),
            ("WorkloadRestart", json!({ "phase": "Recreating" }), true),
            ("WorkloadRestart", json!({ "phase": 1 }), true),
            // A record of an end stays one.
            ("WorkloadRestart", json!({ "phase": "Completed", "message": "pod has gone" }), false),
            ("Other", json!({ "phase": "" }), false),
        ] {
            let mut object = request(&status);
            object["metadata"]["ownerReferences"] = json!([{ "kind": kind, "name": "roll", "uid": "u" }]);
            assert_eq!(judge(&object) == Verdict::Owned("roll".into()), owned, "{kind} {status}");
        }
    }
}
