//! Sidecars of Pods that run to an end: what ends them when the main containers have ended.
//!
//! A sidecar is a container with the variable `KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT` or `..._WITH_IMAGE`; every other one is a
//! main container. Until all main containers are over nothing is done: a sidecar that crashes before is restarted as the Pod's
//! policy says.
//!
//! ```text
//! sidecar whose exit code counts          request: its daemon runs preStop and stops it
//!   ... that kubelet would start again      and the Pod's phase, once the stop has begun: kubelet restarts nothing of a Pod that is over
//! sidecar whose exit code is ignored      the Pod's phase, from the main containers alone: kubelet runs preStop and stops it
//!   ... that runs on after its grace        request
//! on a virtual node                       its other image, which exits at once; without one the Pod's phase
//! ```
//!
//! The phase is written before a sidecar whose exit code is ignored is stopped, because kubelet makes a Pod Failed as soon as it
//! has seen that exit code. There is no request beside it: preStop would run twice. For the same reason the phase waits while a
//! request of a user runs preStop of a container.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateState, Phase},
        labels,
    },
    k8s::{
        pod::{ContainerState, ContainerView, EndsWithJob, PodView},
        time::{Now, doubled},
    },
};

/// How long kubelet may take longer than the grace of a Pod that is over, and a daemon than that of a request.
const SLACK: Duration = Duration::from_secs(30);
/// The grace of a Pod or a request that does not say.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// The pause after a request that has ended and left a sidecar running; it doubles with each.
const RETRY: Duration = Duration::from_secs(10);
/// The longest such pause.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// How the names of requests begin.
const PREFIX: &str = "sidecar-termination-";

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminatorStep {
    /// These containers get these images.
    SwapImages(Vec<(String, String)>),
    /// A request of this name stops these containers.
    Stop {
        /// Name of the request.
        request: String,
        /// The containers.
        containers: Vec<String>,
    },
    /// The Pod is over: Succeeded or Failed.
    End {
        /// Its phase.
        phase: &'static str,
    },
}

/// What to do, and when to look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminatorPlan {
    /// What is done now, if anything.
    pub step: Option<TerminatorStep>,
    /// None: an event will come.
    pub look: Option<Duration>,
}

impl TerminatorPlan {
    fn step(step: TerminatorStep) -> Self {
        Self { step: Some(step), look: None }
    }

    /// The same, with the end of the Pod put off while a hook runs: `longest` is what [`hook_lasts`] says, `seen_for` for how long
    /// such a hook has been seen.
    pub fn after_hook(self, longest: Option<Duration>, seen_for: Duration) -> Self {
        let left = longest.unwrap_or_default().saturating_sub(seen_for);
        match self.step {
            Some(TerminatorStep::End { .. }) if !left.is_zero() => Self { step: None, look: Some(left) },
            _ => self,
        }
    }
}

/// The latest hook that a request runs in this Pod: when it began, and how long it is waited for at most, because the request of a
/// lost node stays open. Kubelet would run the hook once more in a Pod that is over. `open` are the open requests for this Pod,
/// whoever made them.
pub fn hook_lasts(pod: &PodView, open: &[Arc<ContainerRecreateRequest>]) -> Option<(Timestamp, Duration)> {
    let is_in_hook = |state: &ContainerRecreateState| {
        let has_ended = matches!(state.phase, Phase::Succeeded | Phase::Failed);
        state.hook_started_at.is_some() && !state.is_killed && !has_ended
    };
    // Native sidecars too: kubelet runs the hook of whatever still runs in a Pod that is over.
    let may_run = |name: &str| {
        let status = pod.container_status(name);
        status.is_some_and(|status| !matches!(status.state, ContainerState::Terminated { .. }))
    };
    let begun = |request: &ContainerRecreateRequest| {
        let states = request.status.iter().flat_map(|status| &status.container_recreate_states);
        let in_hook = states.filter(|state| is_in_hook(state) && may_run(&state.name));
        in_hook.filter_map(|state| state.hook_started_at).max()
    };
    let limit = |request: &ContainerRecreateRequest| {
        grace(request.strategy().termination_grace_period_seconds).saturating_add(SLACK)
    };
    let open = open.iter().filter(|request| request.is_open());
    open.filter_map(|request| Some((begun(request)?, limit(request)))).max()
}

/// A grace period as it is written.
fn grace(seconds: Option<i64>) -> Duration {
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
}

/// Whether a Pod has sidecars that are to be ended at some time.
pub fn is_concerned(pod: &PodView) -> bool {
    let runs_to_an_end = ["Never", "OnFailure"].contains(&pod.spec.restart_policy.as_str());
    runs_to_an_end && !pod.is_deleting() && !pod.is_mirror && has_sidecars(pod)
}

/// Whether a Pod has sidecars of the terminator, whatever its policy.
pub fn has_sidecars(pod: &PodView) -> bool {
    sidecars(pod).next().is_some()
}

/// Whether something is due or awaited: its main containers are over, and a sidecar is not.
pub fn is_due(pod: &PodView) -> bool {
    let has_begun = !["", "Pending"].contains(&pod.phase.as_str());
    is_concerned(pod)
        && has_begun
        && mains_are_over(pod)
        && sidecars(pod).any(|(container, _)| !is_over(pod, container))
}

/// How often the sidecars of a Pod were restarted, if its main containers have ended, else 0: until the Pod has ended too, kubelet
/// may start a sidecar again that was stopped.
pub fn sidecar_restarts_once_mains_ended(pod: &PodView) -> i32 {
    if !is_concerned(pod) || !mains_are_over(pod) {
        return 0;
    }
    let statuses = sidecars(pod).filter_map(|(container, _)| pod.container_status(&container.name));
    statuses.map(|status| status.restart_count).fold(0, i32::saturating_add)
}

fn sidecars(pod: &PodView) -> impl Iterator<Item = (&ContainerView, &EndsWithJob)> {
    pod.spec.containers.iter().filter_map(|container| Some((container, container.env.ends_with_job.as_deref()?)))
}

fn mains(pod: &PodView) -> impl Iterator<Item = &ContainerView> {
    pod.spec.containers.iter().filter(|container| container.env.ends_with_job.is_none())
}

fn state<'p>(pod: &'p PodView, container: &ContainerView) -> &'p ContainerState {
    pod.container_status(&container.name).map_or(&ContainerState::Unknown, |status| &status.state)
}

/// Whether kubelet starts a container again after this exit code.
fn is_restarted(pod: &PodView, container: &ContainerView, exit_code: i32) -> bool {
    let rules = pod.restart_rules_of(&container.name);
    if rules.iter().any(|rule| rule.matches(exit_code) && rule.action.starts_with("Restart")) {
        return true;
    }
    match pod.restart_policy_of(&container.name) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether a container has ended for good.
fn is_over(pod: &PodView, container: &ContainerView) -> bool {
    matches!(state(pod, container), ContainerState::Terminated { exit_code } if !is_restarted(pod, container, *exit_code))
}

fn mains_are_over(pod: &PodView) -> bool {
    let all_reported = pod.spec.containers.iter().all(|container| pod.container_status(&container.name).is_some());
    all_reported && mains(pod).next().is_some() && mains(pod).all(|container| is_over(pod, container))
}

/// The phase of a Pod of which only the main containers count.
fn phase(pod: &PodView) -> &'static str {
    let is_good =
        |container: &ContainerView| matches!(state(pod, container), ContainerState::Terminated { exit_code: 0 });
    if mains(pod).all(is_good) { "Succeeded" } else { "Failed" }
}

/// Decides. `requests` are those that were made for this Pod's sidecars; `ended_for` is for how long the Pod has been seen in a
/// final phase, if it is in one.
pub fn plan(
    pod: &PodView,
    node_is_virtual: bool,
    requests: &[Arc<ContainerRecreateRequest>],
    ended_for: Option<Duration>,
    now: Now,
) -> TerminatorPlan {
    if !is_due(pod) {
        return TerminatorPlan::default();
    }
    if pod.is_finished() {
        return after_the_end(pod, node_is_virtual, requests, ended_for.unwrap_or_default(), now);
    }
    let open: Vec<(&ContainerView, &EndsWithJob)> =
        sidecars(pod).filter(|(container, _)| !is_over(pod, container)).collect();
    if node_is_virtual {
        return on_virtual_node(pod, &open);
    }
    // Their exit codes count: they are stopped before the Pod ends.
    let counts = |ends: &EndsWithJob| !(ends.is_switched_on && ends.ignores_exit_code);
    let stop: Vec<&str> = open
        .iter()
        .filter(|(container, ends)| counts(ends) && awaits_its_stop(pod, container, requests))
        .map(|(container, _)| container.name.as_str())
        .collect();
    if stop.is_empty() {
        return TerminatorPlan::step(TerminatorStep::End { phase: phase(pod) });
    }
    request(pod, &stop, requests, now)
}

/// Whether a sidecar has to be stopped, or its stop to be awaited, before the Pod may end. Of one that kubelet would start again
/// it is enough that the stop has begun, and that no hook of ours runs: kubelet runs those too.
fn awaits_its_stop(pod: &PodView, container: &ContainerView, requests: &[Arc<ContainerRecreateRequest>]) -> bool {
    let would_restart = is_restarted(pod, container, 1);
    let states = requests.iter().flat_map(|request| request.status.iter().flat_map(|s| &s.container_recreate_states));
    let mut own = states.filter(|state| state.name == container.name);
    let is_under_way = |state: &ContainerRecreateState| {
        state.is_killed || (state.kill_started_at.is_some() && state.hook_started_at.is_none())
    };
    let is_running = matches!(state(pod, container), ContainerState::Running { .. });
    is_running && !(would_restart && own.any(is_under_way))
}

/// A sidecar that kubelet has not stopped although its Pod is over.
fn after_the_end(
    pod: &PodView,
    node_is_virtual: bool,
    requests: &[Arc<ContainerRecreateRequest>],
    ended_for: Duration,
    now: Now,
) -> TerminatorPlan {
    if node_is_virtual || !pod.condition_is_true(labels::CONDITION_SIDECAR_TERMINATED) {
        return TerminatorPlan::default();
    }
    let running = sidecars(pod).map(|(container, _)| container);
    let running = running.filter(|container| matches!(state(pod, container), ContainerState::Running { .. }));
    let patience = grace(pod.spec.termination_grace_period_seconds).saturating_add(SLACK);
    let left = patience.saturating_sub(ended_for);
    // Kubelet may notice the phase only after 90 s. What has no hook need not wait for that: nothing would run twice.
    let (due, later): (Vec<&ContainerView>, Vec<_>) =
        running.partition(|container| left.is_zero() || !container.has_pre_stop);
    let look = (!later.is_empty()).then_some(left);
    if due.is_empty() {
        return TerminatorPlan { step: None, look };
    }
    let due: Vec<&str> = due.into_iter().map(|container| container.name.as_str()).collect();
    let plan = request(pod, &due, requests, now);
    TerminatorPlan { look: plan.look.into_iter().chain(look).min(), ..plan }
}

/// Where no daemon is: another image ends a sidecar, and what has none goes with the Pod.
fn on_virtual_node(pod: &PodView, open: &[(&ContainerView, &EndsWithJob)]) -> TerminatorPlan {
    let with_image = open.iter().filter_map(|(container, ends)| Some((*container, ends.image.as_deref()?)));
    let swaps: Vec<(String, String)> = with_image
        .clone()
        .filter(|(container, image)| *container.image != **image)
        .map(|(container, image)| (container.name.clone(), image.to_owned()))
        .collect();
    if !swaps.is_empty() {
        return TerminatorPlan::step(TerminatorStep::SwapImages(swaps));
    }
    // They exit by themselves now.
    if with_image.count() > 0 {
        return TerminatorPlan::default();
    }
    TerminatorPlan::step(TerminatorStep::End { phase: phase(pod) })
}

/// The request that stops containers: one at a time, and after one that did not help another one, later each time.
fn request(pod: &PodView, containers: &[&str], requests: &[Arc<ContainerRecreateRequest>], now: Now) -> TerminatorPlan {
    if requests.iter().any(|request| request.is_open()) {
        return TerminatorPlan::default();
    }
    let last =
        requests.iter().filter_map(|request| Some((number_of(request, pod.uid())?, request))).max_by_key(|(n, _)| *n);
    let next = match last {
        None => 1,
        Some((number, request)) => {
            let ended = request.status.as_ref().and_then(|status| status.completion_time);
            let before = u32::try_from(requests.len().saturating_sub(1)).unwrap_or(u32::MAX);
            let pause = doubled(RETRY, before, LONGEST_RETRY);
            let left = pause.saturating_sub(ended.map_or(pause, |ended| now.since(ended)));
            if !left.is_zero() {
                return TerminatorPlan { step: None, look: Some(left) };
            }
            number.saturating_add(1)
        }
    };
    let containers = containers.iter().map(|name| (*name).to_owned()).collect();
    TerminatorPlan::step(TerminatorStep::Stop { request: request_name(pod.uid(), next), containers })
}

/// The name of the first request for a Pod is that of OpenKruise, which makes no others.
pub fn request_name(uid: &str, number: u32) -> String {
    match number {
        0 | 1 => format!("{PREFIX}{uid}"),
        _ => format!("{PREFIX}{uid}-{number}"),
    }
}

fn number_of(request: &ContainerRecreateRequest, uid: &str) -> Option<u32> {
    let name = request.metadata.name.as_deref()?;
    let rest = name.strip_prefix(PREFIX)?.strip_prefix(uid)?;
    if rest.is_empty() { Some(1) } else { rest.strip_prefix('-')?.parse().ok() }
}

#[cfg(test)]
mod tests;
