//! The messages in a request's status: why a request waits or has ended, and how far each container is.
//!
//! Texts are made here alone, and read here alone: a container's by `fill_in`, a request's by [`RequestReason::of`].
//! Everybody else uses the fields of a container's state and the enums of this module.

use std::{fmt, time::Duration};

use super::spelling::Unsuitable;
use crate::api::{
    crr::{ContainerRecreateRequest, ContainerRecreateState, HookNote, Phase},
    labels,
};

const POD_GONE: &str = "pod has gone";
const NO_RESPONSE: &str = "daemon has not responded for a long time";
const DEADLINE_EXCEEDED: &str = "recreating has exceeded the activeDeadlineSeconds";
const WAITING_FOR_DAEMON: &str = "waiting for a ready kruise-daemon on node ";
const WAITING_FOR_RUNTIME: &str = "waiting for runtime ";
const ALREADY_RECREATED: &str = "already recreated: another instance replaced the one that was meant";
const HOOK_NOT_REPEATED: &str = "preStop was started before a restart of the daemon and is not run again";
const WAIT_BEGINS: &str = "kubelet will start it in about ";
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

/// What a request's message says, as far as rules ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestReason {
    /// It is empty.
    Nothing,
    /// The Pod does not exist any more.
    PodGone,
    /// It waits for a daemon.
    WaitingForDaemon,
    /// It waits for the container runtime, or for a stop call that is repeated.
    WaitingForRuntime,
    /// Anything else.
    Other,
}

impl RequestReason {
    /// Reads the text. OpenKruise and older releases write the message of the same requests, and would leave a field of ours
    /// beside it as it is: it would belong to an earlier message.
    pub fn of(request: &ContainerRecreateRequest) -> Self {
        match message_of(request) {
            "" => Self::Nothing,
            POD_GONE => Self::PodGone,
            text if text.starts_with(WAITING_FOR_DAEMON) => Self::WaitingForDaemon,
            text if text.starts_with(WAITING_FOR_RUNTIME) => Self::WaitingForRuntime,
            _ => Self::Other,
        }
    }
}

fn message_of(request: &ContainerRecreateRequest) -> &str {
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
        }
    }
}

/// What is said about a hook that was not run, or not again. It stays in the message to the end.
fn hook_text(note: &HookNote) -> &'static str {
    match note {
        HookNote::NotRepeated => HOOK_NOT_REPEATED,
        HookNote::LeftOut => HOOK_LEFT_OUT,
        HookNote::Unknown(_) => "",
    }
}

/// A container's message, in its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerMessage {
    pub(super) progress: Progress,
    /// kubelet is expected to delay the start for this time.
    pub(super) back_off: Option<Duration>,
    pub(super) hook: Option<HookNote>,
}

impl ContainerMessage {
    /// Records it, and what a later pass needs of it in fields.
    pub(super) fn write(self, state: &mut ContainerRecreateState) {
        state.message = self.to_string();
        state.expected_back_off_seconds = self.back_off.map(|wait| i64::try_from(wait.as_secs()).unwrap_or(i64::MAX));
        state.hook_note = self.hook;
    }
}

impl fmt::Display for ContainerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.progress.to_string(),
            self.back_off.map(wait_expected).unwrap_or_default(),
            self.hook.as_ref().map_or("", hook_text).to_owned(),
        ];
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        f.write_str(&parts.join("; "))
    }
}

/// Sets how far a container is. A note about its hook stays.
pub(super) fn say(state: &mut ContainerRecreateState, progress: Progress) {
    let hook = state.hook_note.take();
    ContainerMessage { progress, back_off: None, hook }.write(state);
}

/// Sets the fields that are in the message alone: a release that did not have them has written it.
pub(super) fn fill_in(state: &mut ContainerRecreateState) {
    state.is_skipped |= state.message.starts_with("already recreated");
    let parts: Vec<&str> = state.message.split("; ").collect();
    let notes = [HookNote::NotRepeated, HookNote::LeftOut];
    let hook = notes.into_iter().find(|note| parts.contains(&hook_text(note)));
    let wait = parts.iter().find_map(|part| expected_wait(part));
    state.hook_note = state.hook_note.take().or(hook);
    state.expected_back_off_seconds = state.expected_back_off_seconds.or(wait);
}

/// The seconds in a text of [`wait_expected`].
fn expected_wait(text: &str) -> Option<i64> {
    let (seconds, why) = text.strip_prefix(WAIT_BEGINS)?.split_once(" s: ")?;
    seconds.parse().ok().filter(|_| why == BACK_OFF)
}

/// What a user reads when kubelet is expected to delay the start.
pub fn wait_expected(wait: Duration) -> String {
    format!("{WAIT_BEGINS}{} s: {BACK_OFF}", wait.as_secs())
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
    state.expected_back_off_seconds = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(message: &str) -> ContainerRecreateState {
        ContainerRecreateState { message: message.to_owned(), ..ContainerRecreateState::default() }
    }

    #[test]
    fn what_a_release_without_the_fields_has_written_gets_them_from_its_text() {
        let back_off = Some(Duration::from_secs(20));
        for (progress, back_off, hook, is_skipped) in [
            (Progress::Silent, None, None, false),
            (Progress::AlreadyRecreated, None, None, true),
            (Progress::AlreadyRecreatedAndKubeletSays("A: b; c".into()), None, None, true),
            (Progress::Stopping, back_off, None, false),
            (Progress::Stopped, back_off, Some(HookNote::LeftOut), false),
            (Progress::Silent, None, Some(HookNote::NotRepeated), false),
            (Progress::StoppedAndKubeletSays("A: b; c".into()), None, Some(HookNote::NotRepeated), false),
        ] {
            let mut written = ContainerRecreateState { is_skipped, ..state("") };
            ContainerMessage { progress, back_off, hook }.write(&mut written);
            let mut filled_in = state(&written.message);
            fill_in(&mut filled_in);
            assert_eq!(filled_in, written);
            fill_in(&mut filled_in);
            assert_eq!(filled_in, written, "once is enough");
        }
    }

    #[test]
    fn a_field_that_is_there_counts_whatever_the_text_says() {
        let note = Some(HookNote::Unknown("Later".into()));
        let mut state = ContainerRecreateState {
            hook_note: note.clone(),
            expected_back_off_seconds: Some(7),
            ..state(&format!("stopped; {}; {HOOK_LEFT_OUT}", wait_expected(Duration::from_secs(20))))
        };
        fill_in(&mut state);
        assert_eq!((&state.hook_note, state.expected_back_off_seconds), (&note, Some(7)));
        say(&mut state, Progress::Started);
        assert_eq!((state.hook_note, state.expected_back_off_seconds), (note, None));
        assert_eq!(state.message, "started; waiting until it is ready");
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

    #[test]
    fn rules_know_a_request_by_its_message_whoever_has_written_it() {
        let (node, runtime, error) = ("n1".to_owned(), "containerd".to_owned(), "no answer".to_owned());
        let lasted = Duration::from_secs(600);
        let gone =
            RequestMessage::RuntimeGone { runtime: runtime.clone(), lasted, error: error.clone(), stopping: true };
        for (message, reason) in [
            (RequestMessage::PodGone, RequestReason::PodGone),
            (RequestMessage::NoResponse(NoResponse::Unknown), RequestReason::Other),
            (RequestMessage::DeadlineExceeded(BeforeDeadline::NotBegun), RequestReason::Other),
            (RequestMessage::WaitingForDaemon { node: node.clone() }, RequestReason::WaitingForDaemon),
            (RequestMessage::WaitingForRuntime { runtime, error: error.clone() }, RequestReason::WaitingForRuntime),
            (RequestMessage::RepeatingStop { error }, RequestReason::WaitingForRuntime),
            (gone, RequestReason::Other),
            (RequestMessage::DaemonGone { node: node.clone(), lasted }, RequestReason::Other),
            (RequestMessage::NodeGone { node }, RequestReason::Other),
            (RequestMessage::WaitingForRequest { name: "r1".into() }, RequestReason::Other),
        ] {
            let mut request = ContainerRecreateRequest::default();
            assert_eq!(RequestReason::of(&request), RequestReason::Nothing);
            request.status.get_or_insert_default().message = message.to_string();
            assert_eq!(RequestReason::of(&request), reason, "{message:?}");
        }
    }
}
