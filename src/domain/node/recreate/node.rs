//! What the daemon does about the requests of one Pod.
//!
//! [`pick`] chooses whose turn it is; [`plan`] looks at that request, at the Pod and at the runtime's containers, and
//! says what to record, what to stop and when to look again. The daemon carries that out: first the record, then the
//! stop, then the next look.

use std::time::Duration;

pub use super::{
    container::stop_grace,
    instance::{Hook, Instance, InstanceState, Kill, NodePlan, ObservedContainers},
    memory::{RestartMemory, in_trouble},
    message::{HOOK_LEFT_OUT, wait_expected},
    turn::{Pick, behind, pick, pick_by_manager, waiting_status},
};
use super::{
    container::{Act, ContainerStep},
    instance::{seconds, sooner},
    is_left_behind, is_terminal, left_behind_reason,
    message::{Failure, Progress, RequestMessage, WrongRuntime, fail, say},
    states_of,
};
use crate::{
    api::{
        crr::{
            ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerStatusSnapshot, FailurePolicy, Phase,
        },
        labels,
    },
    k8s::{
        container_id,
        time::{Now, whole_seconds},
    },
};

/// An open request is looked at this often even when nothing was heard.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Decides the next step for a request whose turn it is.
pub fn plan(observed: &ObservedContainers<'_>, memory: &mut RestartMemory, now: Now) -> NodePlan {
    if let Err(reason) = check_runtime(observed.request, observed.runtimes) {
        return refuse(observed, now, &reason.to_string());
    }
    plan_with(observed, memory, now, &mut |step, state, memory, may_stop, plan| {
        if state.previous_container_id.is_empty() {
            step.decide(state, memory, may_stop, plan);
        } else {
            step.carry_on(state, memory, may_stop, plan);
        }
    })
}

/// Ends a request that cannot be carried out at all.
pub(super) fn refuse(observed: &ObservedContainers<'_>, now: Now, reason: &str) -> NodePlan {
    let request = observed.request;
    if !request.is_open() {
        return NodePlan::default();
    }
    let mut status = request.status.clone().unwrap_or_default();
    status.container_recreate_states = super::fail_unfinished(request, reason);
    complete(&mut status, observed, now, reason.to_owned());
    NodePlan { status: Some(status), ..NodePlan::default() }
}

fn complete(status: &mut ContainerRecreateRequestStatus, observed: &ObservedContainers<'_>, now: Now, message: String) {
    status.phase = Phase::Completed;
    status.completion_time = Some(whole_seconds(now.wall));
    status.message = message;
    status.container_status_snapshot = snapshot(observed);
}

/// The steps that all methods have in common, around what this one does to an instance.
pub(super) fn plan_with(
    observed: &ObservedContainers<'_>,
    memory: &mut RestartMemory,
    now: Now,
    act: &mut Act<'_>,
) -> NodePlan {
    let request = observed.request;
    if !request.is_open() {
        return NodePlan::default();
    }
    let recorded = request.status.clone().unwrap_or_default();
    let mut next = recorded.clone();
    next.phase = Phase::Recreating;
    // Whatever it waited for, a daemon or the runtime too, is there now.
    next.message = String::new();
    memory.runtime_answers(now);
    let mut plan = NodePlan::default();
    let outcome = step(observed, memory, now, &mut next, &mut plan, act);
    if let Outcome::Completed(message) = outcome {
        complete(&mut next, observed, now, message);
        plan.requeue = None;
    } else if let Some(error) = memory.repeats() {
        next.message = RequestMessage::RepeatingStop { error: error.to_owned() }.to_string();
    }
    if next != recorded {
        plan.status = Some(next);
    }
    plan
}

enum Outcome {
    Open,
    Completed(String),
}

fn step(
    observed: &ObservedContainers<'_>,
    memory: &mut RestartMemory,
    now: Now,
    next: &mut ContainerRecreateRequestStatus,
    plan: &mut NodePlan,
    act: &mut Act<'_>,
) -> Outcome {
    let request = observed.request;
    let strategy = request.strategy();
    next.container_recreate_states = states_of(request);
    // Without the Pod nothing can be verified; with a deletion timestamp it is kubelet's. The manager ends the request.
    let Some(pod) = observed.pod.filter(|pod| !pod.is_deleting()) else { return Outcome::Open };

    if let Some(grace) = strategy.unready_grace_period_seconds {
        let remaining = drain_remaining(request, memory, seconds(grace), now);
        if remaining != Some(Duration::ZERO) {
            for state in next.container_recreate_states.iter_mut().filter(|s| s.phase == Phase::Pending) {
                say(state, Progress::WaitingUntilNotReady(seconds(grace)));
            }
            plan.requeue = remaining;
            return Outcome::Open;
        }
    }

    let left_behind = is_left_behind(request);
    let mut ended = 0;
    let mut failed = None;
    for (index, container) in request.spec.containers.iter().enumerate() {
        let state = &mut next.container_recreate_states[index];
        if left_behind && state.previous_container_id.is_empty() && !is_terminal(state) {
            ended += 1; // it is not begun any more, and fails with the end of the others
            continue;
        }
        let remembered = memory.containers.entry(container.name.clone()).or_default();
        let container_step = ContainerStep { observed, pod, container, now };
        // Stops are issued one after the other: while one is due, the containers behind it are only watched.
        let may_stop = plan.kill.is_none();
        container_step.advance(state, remembered, may_stop, plan, act);
        match state.phase {
            Phase::Succeeded => ended += 1,
            Phase::Failed => {
                ended += 1;
                if strategy.failure_policy.unwrap_or_default() == FailurePolicy::Fail {
                    failed = Some(format!("container {}: {}", state.name, state.message));
                    break;
                }
            }
            _ if strategy.ordered_recreate => break,
            _ => {}
        }
    }
    if let Some(message) = failed {
        // The request ends here: a stop that this pass wanted to begin is neither begun nor recorded.
        plan.kill = None;
        for (state, before) in next.container_recreate_states.iter_mut().zip(states_of(request)) {
            let begun = state.kill_started_at.is_some() && before.kill_started_at.is_none();
            if begun && state.phase == Phase::Recreating {
                *state = before;
            }
        }
        return Outcome::Completed(message);
    }
    if ended == request.spec.containers.len() {
        let Some(reason) = left_behind_reason(request) else { return Outcome::Completed(String::new()) };
        let mut reasons = String::new();
        for state in next.container_recreate_states.iter_mut().filter(|state| !is_terminal(state)) {
            fail(state, &Failure::RequestEnded(reason.to_owned()));
            reason.clone_into(&mut reasons);
        }
        return Outcome::Completed(reasons);
    }
    // Events bring us back; this is the net under them.
    sooner(plan, LOOK_AGAIN);
    Outcome::Open
}

/// Every container needs an identity, of one runtime, that this daemon talks to.
fn check_runtime(request: &ContainerRecreateRequest, runtimes: &[String]) -> Result<(), WrongRuntime> {
    let mut common: Option<&str> = None;
    for container in &request.spec.containers {
        let id = container.status_context.as_ref().map_or("", |c| c.container_id.as_str());
        let container = container.name.clone();
        let Some((runtime, _)) = container_id::split(id) else {
            return Err(WrongRuntime::NoIdentity { container, id: id.to_owned() });
        };
        if let Some(other) = common.filter(|other| *other != runtime) {
            let (runtime, other) = (runtime.to_owned(), other.to_owned());
            return Err(WrongRuntime::Several { container, runtime, other });
        }
        common = Some(runtime);
        if !runtimes.iter().any(|known| known == runtime) {
            let (runtime, known) = (runtime.to_owned(), runtimes.join(", "));
            return Err(WrongRuntime::Unknown { container, runtime, known });
        }
    }
    Ok(())
}

/// Time until the drain is over: None while the Pod has not been made NotReady.
///
/// Measured from when this process first saw it, on its own clock: the manager's clock may be another one.
fn drain_remaining(
    request: &ContainerRecreateRequest,
    memory: &mut RestartMemory,
    grace: Duration,
    now: Now,
) -> Option<Duration> {
    if states_of(request).iter().any(|s| s.kill_started_at.is_some()) {
        return Some(Duration::ZERO); // the drain was over when the first stop was recorded
    }
    let conditions = request.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let acquired = conditions.iter().any(|c| c.type_ == labels::CONDITION_PRE_RECREATE_GRACE && c.status == "True")
        || request.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(labels::CRR_UNREADY_ACQUIRED));
    if !acquired {
        return None;
    }
    let seen = *memory.unready_seen.get_or_insert(now.mono);
    Some(grace.saturating_sub(now.mono.saturating_sub(seen)))
}

/// The Pod's own view of the request's containers.
fn snapshot(observed: &ObservedContainers<'_>) -> Vec<ContainerStatusSnapshot> {
    let statuses = observed.pod.map_or(&[][..], |pod| &pod.container_statuses);
    let of = |name: &str| statuses.iter().find(|s| s.name == name);
    observed
        .request
        .spec
        .containers
        .iter()
        .filter_map(|c| of(&c.name))
        .map(|s| ContainerStatusSnapshot {
            name: s.name.as_str().to_owned(),
            ready: s.ready,
            restart_count: s.restart_count,
            container_id: s.container_id.to_string(),
        })
        .collect()
}
