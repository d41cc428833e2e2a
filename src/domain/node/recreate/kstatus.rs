//! Ready, Reconciling and Stalled of a request, from which tools read how far it is (kstatus).

use jiff::Timestamp;

use super::manager::outcome;
use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, Phase},
    k8s::conditions::{self, READY, RECONCILING, STALLED},
};

/// Characters of a message.
const LONGEST_MESSAGE: usize = 1024;

/// The status with its three conditions and the generation that it is about, for the write of the status. A request that failed is Stalled: it is not tried
/// again.
pub fn with_kstatus(
    request: &ContainerRecreateRequest,
    status: &ContainerRecreateRequestStatus,
    now: Timestamp,
) -> ContainerRecreateRequestStatus {
    let mut status = status.clone();
    let (true_one, reason, message) = match (&status.phase, outcome(&status)) {
        (Phase::Completed, (true, message)) => (READY, "Recreated", message),
        (Phase::Completed, (false, message)) => (STALLED, "Failed", message),
        _ if status.message.is_empty() => (RECONCILING, "Recreating", "containers are being recreated".to_owned()),
        _ => (RECONCILING, "Recreating", status.message.clone()),
    };
    let message: String = message.chars().take(LONGEST_MESSAGE).collect();
    let generation = request.metadata.generation;
    conditions::set_kstatus(&mut status.conditions, (true_one, reason, &message), generation, now);
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decision_32_a_request_shows_tools_how_far_it_is() {
        let request: ContainerRecreateRequest = serde_json::from_value(json!({
            "metadata": {"name": "r", "generation": 1}, "spec": {"podName": "p", "containers": [{"name": "a"}]}
        }))
        .unwrap();
        for (status, wanted) in [
            (json!({"phase": "Pending"}), [RECONCILING, "Recreating", "containers are being recreated"]),
            (json!({"phase": "Recreating", "message": "waits"}), [RECONCILING, "Recreating", "waits"]),
            (
                json!({"phase": "Completed", "containerRecreateStates": [{"name": "a", "phase": "Succeeded"}]}),
                [READY, "Recreated", "Recreated containers: a"],
            ),
            (
                json!({"phase": "Completed",
                    "containerRecreateStates": [{"name": "a", "phase": "Failed", "message": "no such container"}]}),
                [STALLED, "Failed", "container a: no such container; recreated: none"],
            ),
            (
                json!({"phase": "Completed", "containerRecreateStates": [
                    {"name": "a", "phase": "Succeeded"},
                    {"name": "b", "phase": "Failed", "message": "no such container"}]}),
                [STALLED, "Failed", "container b: no such container; recreated: a"],
            ),
        ] {
            let status: ContainerRecreateRequestStatus = serde_json::from_value(status).unwrap();
            let written = with_kstatus(&request, &status, Timestamp::UNIX_EPOCH);
            let mut conditions = written.conditions.iter().filter(|condition| condition.status == "True");
            let condition = conditions.next().unwrap();
            assert_eq!([&*condition.type_, &condition.reason, &condition.message], wanted);
            // The columns of `kubectl get` read this one.
            let ready = written.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
            assert_eq!([&ready.reason, &ready.message], wanted[1..]);
            assert_eq!(conditions.next(), None);
            assert_eq!(written.observed_generation, Some(1));
        }
    }
}
