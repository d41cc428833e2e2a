//! The messages in a request's status: why a request waits or has ended, and how far each container is.
//!
//! The API has no other field for these reasons. The rules use the enums of this module; texts are made here alone, and
//! the few that a later pass has to recognise are parsed here alone.

use std::{fmt, time::Duration};

use super::spelling::Unsuitable;
use crate::api::{
    crr::{ContainerRecreateRequest, ContainerRecreateState, Phase},
    labels,
};

const POD_GONE: &str = "pod has gone";
const NO_RESPONSE: &str = "daemon has not responded for a long time";
const DEADLINE_EXCEEDED: &str = "recreating has exceeded the activeDeadlineSeconds";
const WAITING_FOR_DAEMON: &str = "waiting for a ready kruise-daemon on node ";
const WAITING_FOR_RUNTIME: &str = "waiting for runtime ";
const ALREADY_RECREATED: &str = "already recreated: another instance replaced the one that was meant";
const HOOK_NOT_REPEATED: &str = "preStop was started before a restart of the daemon and is not run again";
const BACK_OFF: &str = "it has restarted under this image within the last 10 minutes (back-off)";

/// Part of a container's message when its hook could not be run.
pub const HOOK_LEFT_OUT: &str =
    "preStop was not run: other hooks of this node took all places for the whole grace period";

/// Why a request waits or has ended: `status.message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestMessage {
    /// Its Pod does not exist any more.
    PodGone,
    /// No daemon has taken it up.
    NoResponse(NoResponse),
    /// It took longer than `activeDeadlineSeconds`.
    DeadlineExceeded(BeforeDeadline),
    /// There is no ready daemon on its node.
    WaitingForDaemon {
        /// The node.
        node: String,
    },
    /// The container runtime cannot be called.
    WaitingForRuntime {
        /// The runtime.
        runtime: String,
        /// What the call returned.
        error: String,
    },
    /// A stop call failed and is repeated.
    RepeatingStop {
        /// What the call returned.
        error: String,
    },
    /// The container runtime could not be called for too long.
    RuntimeGone {
        /// The runtime.
        runtime: String,
        /// For how long.
        lasted: Duration,
        /// What the last call returned.
        error: String,
        /// Whether a stop is on record.
        stopping: bool,
    },
    /// Its node has had no ready daemon for too long.
    DaemonGone {
        /// The node.
        node: String,
        /// For how long.
        lasted: Duration,
    },
    /// Its node does not exist any more.
    NodeGone {
        /// The node.
        node: String,
    },
    /// Another request of its Pod comes first.
    WaitingForRequest {
        /// That request.
        name: String,
    },
}

/// Why no daemon has taken a request up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoResponse {
    /// It lacks the labels that admission sets.
    NotAdmitted,
    /// No daemon is ready on this node.
    NoReadyDaemon(String),
    /// Unknown.
    Unknown,
}

/// How far a request was at its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeforeDeadline {
    /// Not begun.
    NotBegun,
    /// No daemon had taken it up.
    NotTakenUp,
    /// Another request of its Pod came first.
    BehindAnother,
    /// Not begun; with what it waited for.
    WaitingFor(String),
    /// Begun; with its message.
    Begun(String),
}

impl BeforeDeadline {
    /// As the request's status says.
    pub fn of(request: &ContainerRecreateRequest) -> Self {
        match (request.phase(), message_of(request)) {
            (Phase::Empty, _) if request.is_served_by_manager() => Self::NotBegun,
            (Phase::Empty, "") => Self::NotTakenUp,
            (Phase::Pending, "") => Self::BehindAnother,
            (Phase::Empty | Phase::Pending, message) => Self::WaitingFor(message.to_owned()),
            (_, message) => Self::Begun(message.to_owned()),
        }
    }
}

impl fmt::Display for BeforeDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBegun => f.write_str(": it was never executed"),
            Self::NotTakenUp => f.write_str(": it was never executed, no daemon had taken it up"),
            Self::BehindAnother => f.write_str(": it was never executed, another request of the Pod came first"),
            Self::WaitingFor(message) => write!(f, ": it was never executed, {message}"),
            Self::Begun(message) if message.is_empty() => Ok(()),
            Self::Begun(message) => write!(f, ": {message}"),
        }
    }
}

impl fmt::Display for RequestMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodGone => f.write_str(POD_GONE),
            Self::NoResponse(NoResponse::NotAdmitted) => write!(
                f,
                "{NO_RESPONSE}: labels {} and {} are not set, the request was stored without passing admission",
                labels::CRR_POD_UID,
                labels::CRR_NODE_NAME
            ),
            Self::NoResponse(NoResponse::NoReadyDaemon(node)) => {
                write!(f, "{NO_RESPONSE}: no ready kruise-daemon on node {node}")
            }
            Self::NoResponse(NoResponse::Unknown) => f.write_str(NO_RESPONSE),
            Self::DeadlineExceeded(before) => write!(f, "{DEADLINE_EXCEEDED}{before}"),
            Self::WaitingForDaemon { node } => write!(f, "{WAITING_FOR_DAEMON}{node}"),
            Self::WaitingForRuntime { runtime, error } => write!(f, "{WAITING_FOR_RUNTIME}{runtime}: {error}"),
            Self::RepeatingStop { error } => {
                write!(f, "{WAITING_FOR_RUNTIME}{error}; asked again until the grace period is over")
            }
            Self::RuntimeGone { runtime, lasted, error, stopping } => {
                let unknown = if *stopping { "; whether the recorded stop was carried out is not known" } else { "" };
                write!(f, "runtime {runtime} could not be asked for {} s: {error}{unknown}", lasted.as_secs())
            }
            Self::DaemonGone { node, lasted } => {
                write!(f, "node {node} has had no ready kruise-daemon for {} s", lasted.as_secs())
            }
            Self::NodeGone { node } => write!(f, "node {node} has been deleted"),
            Self::WaitingForRequest { name } => write!(f, "waiting for request {name} of the same Pod"),
        }
    }
}

/// Whether a request that has ended did so because its Pod does not exist any more.
pub fn is_pod_gone(request: &ContainerRecreateRequest) -> bool {
    request.is_completed() && message_of(request) == POD_GONE
}

/// Whether a request says that it waits for a daemon or for the container runtime.
pub(super) fn waits_for_node(request: &ContainerRecreateRequest) -> bool {
    let message = message_of(request);
    message.starts_with(WAITING_FOR_DAEMON) || message.starts_with(WAITING_FOR_RUNTIME)
}

pub(super) fn message_of(request: &ContainerRecreateRequest) -> &str {
    request.status.as_ref().map_or("", |status| status.message.as_str())
}

/// How far a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing to say.
    #[default]
    Silent,
    /// The Pod has to be NotReady for this time first.
    WaitingUntilNotReady(Duration),
    /// The runtime knows no such container.
    NotFound,
    /// kubelet restarts all containers of the Pod by a restart rule.
    RestartRule,
    /// Its instance had ended before.
    HadStopped,
    /// Its instance had been replaced before.
    AlreadyRecreated,
    /// The same; the other one has ended, and kubelet says this of the start of the next.
    AlreadyRecreatedAndKubeletSays(String),
    /// Its hook is run, then it is stopped.
    RunningHook,
    /// It is being stopped.
    Stopping,
    /// It is being stopped again after an error.
    StoppingAgain(String),
    /// It is stopped; something else is said of its start.
    Stopped,
    /// It is stopped and has to be started by kubelet.
    StoppedAndWaiting,
    /// It is stopped, and kubelet says this of its start.
    StoppedAndKubeletSays(String),
    /// Its new instance runs and is not ready.
    Started,
    /// Its image is spelled differently. The policy is named where kubelet does not repeat a failed start.
    Respelled {
        /// Restart policy of the container.
        not_tried_again: Option<String>,
    },
    /// Its image was changed before.
    ImageChanged(String),
    /// Somebody else changed its image while it was being restarted.
    ImageChangedByOther(String),
    /// What another version or this one has written, and nobody has to recognise.
    Other(String),
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => Ok(()),
            Self::WaitingUntilNotReady(grace) => {
                write!(f, "waiting until the Pod has been NotReady for {} s", grace.as_secs())
            }
            Self::NotFound => f.write_str("not found container on Node"),
            Self::RestartRule => {
                f.write_str("waiting: kubelet is restarting all containers of the Pod by a restart rule")
            }
            Self::HadStopped => f.write_str("it had already stopped; waiting for kubelet to start it"),
            Self::AlreadyRecreated => f.write_str(ALREADY_RECREATED),
            Self::AlreadyRecreatedAndKubeletSays(text) => write!(f, "{ALREADY_RECREATED}; kubelet: {text}"),
            Self::RunningHook => f.write_str("running preStop, then stopping"),
            Self::Stopping => f.write_str("stopping"),
            Self::StoppingAgain(error) => write!(f, "stopping again: {error}"),
            Self::Stopped => f.write_str("stopped"),
            Self::StoppedAndWaiting => f.write_str("stopped; waiting for kubelet to start it"),
            Self::StoppedAndKubeletSays(text) => write!(f, "stopped; kubelet: {text}"),
            Self::Started => f.write_str("started; waiting until it is ready"),
            Self::Respelled { not_tried_again } => {
                f.write_str("its image is spelled differently; waiting for kubelet to restart it")?;
                match not_tried_again {
                    None => Ok(()),
                    Some(policy) => write!(f, "; a start that fails is not tried again: restartPolicy is {policy}"),
                }
            }
            Self::ImageChanged(image) => {
                write!(f, "its image was changed to {image} meanwhile; waiting for kubelet to restart it for that")
            }
            Self::ImageChangedByOther(image) => write!(
                f,
                "its image was changed to {image} by somebody else; waiting for kubelet to restart it for that"
            ),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// What is said about a hook that was not run, or not again. It stays in the message to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookNote {
    NotRepeated,
    LeftOut,
}

impl HookNote {
    const ALL: [Self; 2] = [Self::NotRepeated, Self::LeftOut];

    fn text(self) -> &'static str {
        match self {
            Self::NotRepeated => HOOK_NOT_REPEATED,
            Self::LeftOut => HOOK_LEFT_OUT,
        }
    }
}

/// A container's message, in its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerMessage {
    pub(super) progress: Progress,
    /// kubelet is expected to delay the start, as [`wait_expected`] says.
    pub(super) back_off: Option<String>,
    pub(super) hook: Option<HookNote>,
}

impl ContainerMessage {
    /// The parts of a recorded message.
    pub(super) fn of(state: &ContainerRecreateState) -> Self {
        let mut message = Self::default();
        let mut rest = Vec::new();
        for part in state.message.split("; ").filter(|part| !part.is_empty()) {
            if let Some(note) = HookNote::ALL.into_iter().find(|note| note.text() == part) {
                message.hook = Some(note);
            } else if part.ends_with(BACK_OFF) {
                message.back_off = Some(part.to_owned());
            } else {
                rest.push(part);
            }
        }
        message.progress = match rest.join("; ") {
            text if text.is_empty() => Progress::Silent,
            text if text.starts_with("already recreated") => Progress::AlreadyRecreated,
            text => Progress::Other(text),
        };
        message
    }

    /// Records it.
    pub(super) fn write(&self, state: &mut ContainerRecreateState) {
        state.message = self.to_string();
    }
}

impl fmt::Display for ContainerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.progress.to_string(),
            self.back_off.clone().unwrap_or_default(),
            self.hook.map_or("", HookNote::text).to_owned(),
        ];
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        f.write_str(&parts.join("; "))
    }
}

/// Sets how far a container is. A note about its hook stays.
pub(super) fn say(state: &mut ContainerRecreateState, progress: Progress) {
    let hook = ContainerMessage::of(state).hook;
    ContainerMessage { progress, back_off: None, hook }.write(state);
}

/// Whether a container's message says that kubelet is expected to delay its start.
pub(super) fn expects_back_off(state: &ContainerRecreateState) -> bool {
    ContainerMessage::of(state).back_off.is_some()
}

/// What a user reads when kubelet is expected to delay the start.
pub fn wait_expected(wait: Duration) -> String {
    format!("kubelet will start it in about {} s: {BACK_OFF}", wait.as_secs())
}

/// Why this daemon cannot carry a request out at all. The container is named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WrongRuntime {
    /// Nobody has written down which instance is meant.
    #[error(
        "container {container}: statusContext.containerID is {id:?}, want <runtime>://<id>; the request did not pass admission"
    )]
    NoIdentity { container: String, id: String },
    /// The containers are of several runtimes.
    #[error("container {container}: runtime {runtime} differs from {other} of the containers before it")]
    Several { container: String, runtime: String, other: String },
    /// The runtime is none of this daemon's.
    #[error("container {container}: this node's daemon talks to [{known}], not to runtime {runtime}")]
    Unknown { container: String, runtime: String, known: String },
}

/// Why a container could not be restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Its Pod has ended.
    PodEnded {
        /// Phase of the Pod.
        phase: String,
    },
    /// Its stop failed.
    NotStopped(String),
    /// Its new instances ended.
    Crashed {
        /// How often.
        times: i32,
        /// Exit code of the last one.
        last_exit_code: Option<i32>,
    },
    /// kubelet does not start it again.
    NotStartedAgain {
        /// Its restart policy.
        policy: RestartPolicy,
        /// The exit code that none of its restart rules is for, if it has rules.
        no_rule_for: Option<i32>,
    },
    /// kubelet cannot start it.
    Stuck(String),
    /// Its Pod cannot be changed.
    PodNotChanged(String),
    /// Its Pod has no container of that name any more.
    NotInPod,
    /// Its image has no other spelling.
    NoSpelling(Unsuitable),
    /// The request ended: its message.
    RequestEnded(String),
}

/// A restart policy under which kubelet does not start a container that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Never,
    /// OnFailure, and it exited with 0.
    OnFailure,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodEnded { phase } => write!(f, "the Pod has ended (phase {phase})"),
            Self::NotStopped(why) => write!(f, "kill container error: {why}"),
            Self::Crashed { times, last_exit_code } => {
                write!(f, "it was started again {times} times and ended each time")?;
                last_exit_code.map_or(Ok(()), |code| write!(f, ", last exit code {code}"))
            }
            Self::NotStartedAgain { policy, no_rule_for } => {
                f.write_str(match policy {
                    RestartPolicy::Never => "stopped; kubelet does not start it again: restartPolicy is Never",
                    RestartPolicy::OnFailure => {
                        "stopped; kubelet does not start it again: restartPolicy is OnFailure and it exited with 0"
                    }
                })?;
                no_rule_for
                    .map_or(Ok(()), |code| write!(f, " and no rule in restartPolicyRules is for exit code {code}"))
            }
            Self::Stuck(why) => write!(f, "kubelet cannot start it: {why}"),
            Self::PodNotChanged(why) => write!(f, "the Pod cannot be changed: {why}"),
            Self::NotInPod => f.write_str("the Pod does not have it any more"),
            Self::NoSpelling(why) => why.fmt(f),
            Self::RequestEnded(why) => f.write_str(why),
        }
    }
}

/// Ends a container as failed.
pub(super) fn fail(state: &mut ContainerRecreateState, failure: &Failure) {
    state.phase = Phase::Failed;
    state.message = failure.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(message: &str) -> ContainerRecreateState {
        ContainerRecreateState { message: message.to_owned(), ..ContainerRecreateState::default() }
    }

    #[test]
    fn a_recorded_message_is_read_back_in_its_parts() {
        let back_off = Some(wait_expected(Duration::from_secs(20)));
        for (progress, back_off, hook, read_back) in [
            (Progress::Silent, None, None, Progress::Silent),
            (Progress::AlreadyRecreated, None, None, Progress::AlreadyRecreated),
            (Progress::Stopping, back_off.clone(), None, Progress::Other("stopping".into())),
            (Progress::Stopped, back_off.clone(), Some(HookNote::LeftOut), Progress::Other("stopped".into())),
            (Progress::Silent, None, Some(HookNote::NotRepeated), Progress::Silent),
            (
                Progress::StoppedAndKubeletSays("A: b; c".into()),
                None,
                Some(HookNote::NotRepeated),
                Progress::Other("stopped; kubelet: A: b; c".into()),
            ),
        ] {
            let message = ContainerMessage { progress, back_off, hook };
            let text = message.to_string();
            let read = ContainerMessage::of(&state(&text));
            assert_eq!(read, ContainerMessage { progress: read_back, ..message }, "{text}");
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn a_note_about_a_hook_outlives_every_step() {
        let mut state = state("");
        ContainerMessage { progress: Progress::Stopping, back_off: None, hook: Some(HookNote::LeftOut) }
            .write(&mut state);
        say(&mut state, Progress::Started);
        assert_eq!(state.message, format!("started; waiting until it is ready; {HOOK_LEFT_OUT}"));
        say(&mut state, Progress::Silent);
        assert_eq!(state.message, HOOK_LEFT_OUT);
    }
}
