//! Method PodSpec: the manager spells the container's image differently, and kubelet restarts it at once.
//!
//! The machine is the one of [`super::node`]; only what is done to an instance differs: instead of a stop in the runtime
//! there is a patch of the Pod, and what the Pod's status shows stands for what the runtime would say. The target is
//! recorded in the request before the Pod is patched, and a container whose image is spelled as recorded has been
//! patched: a crash between any two steps does no harm.
//!
//! ```text
//! trial (server-side dry run) --denied--> Completed, Failed
//!   --> intent and target recorded --> Pod patched --> another containerID --> ready --> Succeeded
//! ```

use super::{
    container::ContainerStep,
    message::{ContainerMessage, Failure, Progress, fail, say},
    node::{self, Instance, InstanceState, RestartMemory},
    spelling::{self, Spellings},
};
use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerRecreateState, Phase},
    k8s::{
        pod::{ContainerState, PodView},
        time::{Now, whole_seconds},
    },
};

/// A change of a Pod: images of containers, and the annotation that remembers them.
#[derive(Clone, Debug, PartialEq)]
pub struct Respelling {
    /// Container and image.
    pub images: Vec<(String, String)>,
    /// The annotation's new value.
    pub annotation: String,
}

/// What to do now, in this order; then look again after `requeue` or when something changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpecPlan {
    /// A change to try by a server-side dry run. If it is denied, the request ends with [`denied`].
    pub trial: Option<Respelling>,
    /// The new status, if it differs from the recorded one.
    pub status: Option<ContainerRecreateRequestStatus>,
    /// A change of the Pod, to be carried out only after `status` has been recorded.
    pub respelling: Option<Respelling>,
    /// When to look again at the latest.
    pub requeue: Option<std::time::Duration>,
}

/// Decides the next step for a request whose turn it is. `pod` is the one that the request means.
pub fn plan(request: &ContainerRecreateRequest, pod: &PodView, memory: &mut RestartMemory, now: Now) -> PodSpecPlan {
    let instances = instances(pod);
    let observed = node::ObservedContainers { request, pod: Some(pod), runtimes: &[], instances: &instances };
    let mut change = Change { spellings: Spellings::of(pod), images: Vec::new() };
    let node::NodePlan { status, kill: _, requeue } =
        node::plan_with(&observed, memory, now, &mut |step, state, _, _, _| {
            if state.previous_container_id.is_empty() {
                change.decide(step, state);
            } else {
                change.carry_on(step, state);
            }
        });
    let completed = status.as_ref().is_some_and(|status| status.phase == Phase::Completed);
    let begins = status.is_some() && *request.phase() != Phase::Recreating && !completed;
    let trial = begins.then(|| trial(request, pod, now)).flatten();
    let respelling = if completed { None } else { change.respelling() };
    PodSpecPlan { trial, status, respelling, requeue }
}

/// Whether a view of the Pod shows what admission saw. If not, it may be older than the request.
pub fn agrees(request: &ContainerRecreateRequest, pod: &PodView) -> bool {
    request.spec.containers.iter().all(|c| {
        let (Some(context), Some(status), Some(container)) =
            (&c.status_context, pod.container_status(&c.name), pod.container(&c.name))
        else {
            return false;
        };
        let image = context.image.is_empty() || context.image == *container.image;
        image && *status.container_id == *context.container_id && status.restart_count == context.restart_count
    })
}

/// The status of a request whose change of the Pod was denied before anything was done.
pub fn denied(
    request: &ContainerRecreateRequest,
    pod: &PodView,
    words: &str,
    now: Now,
) -> Option<ContainerRecreateRequestStatus> {
    let observed = node::ObservedContainers { request, pod: Some(pod), runtimes: &[], instances: &[] };
    let mut status = node::refuse(&observed, now, &Failure::PodNotChanged(words.to_owned()).to_string()).status?;
    // What was to be done may have been recorded already; nothing of it was done.
    for state in status.container_recreate_states.iter_mut().filter(|state| !state.is_killed) {
        state.kill_started_at = None;
        state.image = String::new();
        state.previous_container_id = String::new();
        state.previous_restart_count = None;
    }
    Some(status)
}

/// The status of a request whose change of some containers was denied although the trial was not.
pub fn denied_later(
    request: &ContainerRecreateRequest,
    respelling: &Respelling,
    words: &str,
) -> ContainerRecreateRequestStatus {
    let mut status = request.status.clone().unwrap_or_default();
    status.container_recreate_states = super::states_of(request);
    for state in &mut status.container_recreate_states {
        if respelling.images.iter().any(|(name, _)| *name == state.name) && !super::is_terminal(state) {
            fail(state, &Failure::PodNotChanged(words.to_owned()));
        }
    }
    status
}

/// What the request will change in the end, all at once: a denial comes before anything is drained or stopped.
fn trial(request: &ContainerRecreateRequest, pod: &PodView, now: Now) -> Option<Respelling> {
    let mut change = Change { spellings: Spellings::of(pod), images: Vec::new() };
    let vary = request.strategy().vary_image_tag;
    for name in request.spec.containers.iter().map(|c| c.name.as_str()) {
        if let (Some(container), Some(status)) = (pod.container(name), pod.container_status(name))
            && let Ok(choice) = spelling::choose(container, status, &change.spellings, (vary, None), now.wall)
        {
            change.spellings.note(name, &choice);
            change.images.push((name.to_owned(), choice.image));
        }
    }
    change.respelling()
}

struct Change {
    spellings: Spellings,
    images: Vec<(String, String)>,
}

impl Change {
    fn respelling(self) -> Option<Respelling> {
        let annotation = self.spellings.to_annotation();
        (!self.images.is_empty()).then_some(Respelling { images: self.images, annotation })
    }

    fn decide(&mut self, step: &ContainerStep<'_>, state: &mut ContainerRecreateState) {
        let Some(context) = &step.container.status_context else { return };
        let name = &step.container.name;
        let image = step.pod.container(name).map_or("", |c| &*c.image);
        if !context.image.is_empty() && spelling::was_changed(&context.image, image) && step.newest().is_some() {
            state.phase = Phase::Recreating;
            state.previous_container_id.clone_from(&context.container_id);
            state.previous_restart_count = Some(context.restart_count);
            state.image = image.to_owned();
            say(state, Progress::ImageChanged(image.to_owned()));
            return;
        }
        // One that kubelet holds back is started at once under another spelling.
        let held_back = step.newest().filter(|i| {
            i.state == InstanceState::Exited
                && i.id == context.container_id
                && step.pod.restart_policy_of(name) == "Always"
        });
        let Some(instance) = held_back.or_else(|| step.target(state)) else { return };
        let instance = instance.clone();
        let wait = match self.choose(step, None) {
            Ok((image, wait)) => {
                state.image = image;
                wait
            }
            Err(failure) => return fail(state, &failure),
        };
        step.record_intent(state, &instance);
        let policy = step.pod.restart_policy_of(name);
        let not_tried_again = (policy != "Always").then(|| policy.to_owned());
        let back_off = (!wait.is_zero()).then_some(wait);
        ContainerMessage { progress: Progress::Respelled { not_tried_again }, back_off, hook: None }.write(state);
    }

    fn choose(
        &mut self,
        step: &ContainerStep<'_>,
        before: Option<&str>,
    ) -> Result<(String, std::time::Duration), Failure> {
        let name = &step.container.name;
        let (Some(container), Some(status)) = (step.pod.container(name), step.pod.container_status(name)) else {
            return Err(Failure::NotInPod);
        };
        let vary = step.observed.request.strategy().vary_image_tag;
        let choice = spelling::choose(container, status, &self.spellings, (vary, before), step.now.wall)
            .map_err(Failure::NoSpelling)?;
        self.spellings.note(name, &choice);
        self.images.push((name.clone(), choice.image.clone()));
        Ok((choice.image, choice.wait))
    }

    /// The target was recorded: has the Pod been patched, and has kubelet acted?
    fn carry_on(&mut self, step: &ContainerStep<'_>, state: &mut ContainerRecreateState) {
        let name = &step.container.name;
        let image = step.pod.container(name).map_or("", |c| &*c.image);
        let newest = step.newest();
        let replaced = newest.is_none_or(|i| i.id != state.previous_container_id);
        let ended = newest.is_some_and(|i| i.state == InstanceState::Exited);
        if replaced || (ended && *image == *state.image) {
            state.phase = Phase::Recreating;
            state.is_killed = true;
            state.killed_at = Some(whole_seconds(step.now.wall));
            if ended && state.expected_back_off_seconds.is_none() {
                say(state, Progress::StoppedAndWaiting);
            }
        } else if *image != *state.image {
            let then = step.container.status_context.as_ref().map_or("", |c| &c.image);
            if spelling::was_changed(image, &state.image) || (!then.is_empty() && spelling::was_changed(then, image)) {
                say(state, Progress::ImageChangedByOther(image.to_owned()));
                return;
            }
            let recorded = state.image.clone();
            match self.choose(step, Some(&recorded)) {
                Ok((image, _)) => state.image = image,
                Err(failure) => fail(state, &failure),
            }
        }
    }
}

/// What the Pod's status says of its containers, in the words of the runtime.
fn instances(pod: &PodView) -> Vec<Instance> {
    let known = pod.container_statuses.iter().filter(|status| !status.container_id.is_empty());
    known
        .map(|status| {
            let (state, started_at, exit_code) = match (&status.state, status.last_exit.as_deref()) {
                (ContainerState::Running { started_at }, _) => (InstanceState::Running, *started_at, None),
                (ContainerState::Terminated { exit_code }, _) => (InstanceState::Exited, None, Some(*exit_code)),
                (_, Some(exit)) => (InstanceState::Exited, None, Some(exit.exit_code)),
                (_, None) => (InstanceState::Created, None, None),
            };
            Instance {
                id: status.container_id.to_string(),
                container: status.name.as_str().to_owned(),
                namespace: pod.namespace().to_owned(),
                pod_uid: pod.cri_uid().to_owned(),
                state,
                created_at: status.restart_count.into(),
                started_at,
                exit_code,
                restart_count: status.restart_count,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
