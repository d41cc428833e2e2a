//! Whose turn it is among the requests of one Pod.

use jiff::Timestamp;

use super::{
    is_left_behind,
    message::{RequestMessage, RequestReason},
};
use crate::api::crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, Phase};

/// Whose turn it is among the requests of one Pod.
#[derive(Debug, PartialEq)]
pub struct Pick<'a> {
    /// The request to work on.
    pub current: Option<&'a ContainerRecreateRequest>,
    /// Requests that wait and do not say so yet.
    pub has_to_wait: Vec<&'a ContainerRecreateRequest>,
}

/// Chooses the request to work on: one that is under way, else the oldest; ties by name. Requests of all methods count,
/// whoever serves them.
pub fn pick<'a>(requests: impl IntoIterator<Item = &'a ContainerRecreateRequest>) -> Pick<'a> {
    let mut open: Vec<_> = requests.into_iter().filter(|r| r.is_open()).collect();
    open.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut open = open.into_iter();
    Pick { current: open.next(), has_to_wait: open.filter(|r| waits_unreported(r)).collect() }
}

/// Requests that wait for one that is being worked on and do not say so yet. It may have ended or be deleted: a stop that
/// was sent is still waited for.
pub fn behind<'a>(
    served: &ContainerRecreateRequest,
    requests: impl IntoIterator<Item = &'a ContainerRecreateRequest>,
) -> Vec<&'a ContainerRecreateRequest> {
    let others = requests.into_iter().filter(|r| r.is_open() && r.metadata.uid != served.metadata.uid);
    others.filter(|r| waits_unreported(r)).collect()
}

/// Whether a request that has to wait says nothing yet, or something that is over.
fn waits_unreported(request: &ContainerRecreateRequest) -> bool {
    match request.phase() {
        Phase::Empty => true,
        Phase::Pending => {
            matches!(RequestReason::of(request), RequestReason::WaitingForDaemon | RequestReason::WaitingForRuntime)
        }
        _ => false,
    }
}

/// The same for the requests that the manager serves: one that was left behind holds up no other.
pub fn pick_by_manager<'a>(requests: impl IntoIterator<Item = &'a ContainerRecreateRequest>) -> Pick<'a> {
    pick(requests.into_iter().filter(|request| !is_left_behind(request)))
}

fn order(request: &ContainerRecreateRequest) -> (bool, bool, Option<Timestamp>, &str, &str) {
    let meta = &request.metadata;
    (
        // The daemon that has come back ends it first.
        !is_left_behind(request),
        *request.phase() != Phase::Recreating,
        meta.creation_timestamp.as_ref().map(|t| t.0),
        meta.name.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default(),
    )
}

/// The status of a request that has to wait for another one.
pub fn waiting_status(current: &ContainerRecreateRequest) -> ContainerRecreateRequestStatus {
    let name = current.metadata.name.clone().unwrap_or_default();
    ContainerRecreateRequestStatus {
        phase: Phase::Pending,
        message: RequestMessage::WaitingForRequest { name }.to_string(),
        ..ContainerRecreateRequestStatus::default()
    }
}
