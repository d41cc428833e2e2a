//! THE recreation state machine: what a ContainerRecreateRequest goes through, in every role.
//!
//! ```text
//!            another request of the Pod is first
//!   (empty) ------------------------------------> Pending
//!      |                                             |
//!      |  its turn                         its turn  |
//!      +--------------> Recreating <-----------------+
//!                           |
//!      all containers ended |  first failure under failurePolicy Fail |  Pod gone, deadline, daemon silent
//!                           v                                         v
//!                       Completed  (terminal; look at the containers for the outcome)
//!
//!   one container:
//!   Pending --intent recorded--> Recreating --old instance gone--> Recreating, isKilled --ready--> Succeeded
//!                                     |                                  |
//!                                     +-- cannot be stopped --> Failed <-+-- does not come back
//! ```
//!
//! - [`node`] decides for the daemon: whose turn it is, what to stop, when a container has been recreated.
//! - [`pod_spec`] decides for the manager where no daemon is used: the same machine, but the image is spelled differently
//!   ([`spelling`]) and kubelet does the rest.
//! - [`message`] has every reason and text that a status shows.
//! - [`manager`] decides for the manager: NotReady keys, what ends a request from outside, cleaning up, what becomes of
//!   a request whose daemon does not come back.
//!
//! Invariants, each with a test: a finished request never moves; a container that ended never moves; a stop is
//! recorded before it is done and hits only the instance that was recorded; a hook is started at most once; an
//! ordered request has one container in flight; Ignore ends all containers; every plan makes progress or waits for
//! something that is named.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::{
    crr::{ContainerRecreateRequest, ContainerRecreateState, Phase},
    labels,
};

mod container;
mod instance;
pub mod kstatus;
pub mod manager;
mod memory;
pub mod message;
pub mod node;
pub mod pod_spec;
pub mod spelling;
mod turn;

/// Whether a stop of the request is on record that is not known to have come to its end: it may happen at any time.
pub fn has_stop_on_record(request: &ContainerRecreateRequest) -> bool {
    states_of(request).iter().any(|state| !is_terminal(state) && state.kill_started_at.is_some())
}

/// Whether the request was left behind: its daemon was gone for too long after a stop had been recorded. It holds up
/// neither its Pod nor later requests, and only what was recorded is still carried out.
pub fn is_left_behind(request: &ContainerRecreateRequest) -> bool {
    left_behind_reason(request).is_some()
}

/// Why the request was left behind, if it was.
pub fn left_behind_reason(request: &ContainerRecreateRequest) -> Option<&str> {
    let conditions = &request.status.as_ref()?.conditions;
    let is_it = |c: &&Condition| c.type_ == labels::CONDITION_DAEMON_GONE && c.status == "True";
    conditions.iter().find(is_it).map(|c| c.message.as_str())
}

/// Whether a container of a request has ended, well or badly. It never moves again.
pub fn is_terminal(state: &ContainerRecreateState) -> bool {
    matches!(state.phase, Phase::Succeeded | Phase::Failed)
}

/// One state per container of the request, in its order: what was recorded, or a fresh Pending.
pub fn states_of(request: &ContainerRecreateRequest) -> Vec<ContainerRecreateState> {
    let recorded = request.status.as_ref().map_or(&[][..], |s| &s.container_recreate_states);
    let state_of = |name: &str| {
        let recorded = recorded.iter().find(|s| s.name == name).cloned();
        let mut state = recorded.unwrap_or_else(|| ContainerRecreateState {
            name: name.to_owned(),
            phase: Phase::Pending,
            ..ContainerRecreateState::default()
        });
        if !is_terminal(&state) {
            message::fill_in(&mut state);
        }
        state
    };
    request.spec.containers.iter().map(|c| state_of(&c.name)).collect()
}

/// The states of a request that ends before its containers did: whatever is unfinished becomes Failed.
pub fn fail_unfinished(request: &ContainerRecreateRequest, reason: &str) -> Vec<ContainerRecreateState> {
    let mut states = states_of(request);
    for state in states.iter_mut().filter(|s| !is_terminal(s)) {
        state.phase = Phase::Failed;
        state.message = reason.to_owned();
        state.expected_back_off_seconds = None;
    }
    states
}

/// Something about a container of a request that its user should hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News<'a> {
    /// The container.
    pub container: &'a str,
    /// Reason of the event.
    pub reason: &'static str,
    /// Whether it is a failure.
    pub is_failure: bool,
    /// The event's text.
    pub message: String,
}

/// What is new in the states that are about to be recorded.
pub fn news<'a>(request: &ContainerRecreateRequest, new: &'a [ContainerRecreateState]) -> Vec<News<'a>> {
    let pod = &request.spec.pod_name;
    let mut all = Vec::new();
    for (old, new) in states_of(request).iter().zip(new) {
        let mut add = |reason, is_failure, what: &str| {
            let message = format!("Container {} of Pod {pod}: {what}", new.name);
            all.push(News { container: &new.name, reason, is_failure, message });
        };
        match new.phase {
            Phase::Succeeded if old.phase != new.phase => {
                add("ContainerRecreated", false, if new.message.is_empty() { "restarted" } else { &new.message });
            }
            Phase::Failed if old.phase != new.phase => add("ContainerRecreateFailed", true, &new.message),
            _ => {
                if new.expected_back_off_seconds.is_some() && old.expected_back_off_seconds.is_none() {
                    add("BackOffExpected", false, &new.message);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
