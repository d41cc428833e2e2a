//! PURE: what a WorkloadRestart does next.
//!
//! [`begin`] decides from the object and its triggers alone: whether a round begins, is under way, or has ended.
//! [`advance`] moves a round on: which Pods to restart now, and what to say. A round is first written down and only then
//! acted on, and the only record of a Pod's restart is its request: whoever plans next finds the same state.
//!
//! ```text
//!  no round --created | trigger changed--> round --all Pods done--> Complete --TTL--> deleted
//!                                            |                         |
//!                                            +--threshold, deadline--> Failed --trigger changed--> next round
//! ```

use std::time::Duration;

use jiff::Timestamp;

use self::status::progress;
pub use self::status::set_kstatus;
use crate::{
    api::{
        crr::ContainerRecreateRequest,
        wr::{WorkloadRestart, WorkloadRestartStatus},
    },
    domain::budgets::disruption::Budget,
    k8s::{
        conditions,
        pod::PodView,
        time::{Now, sooner},
    },
};

mod advance;
mod choose;
mod rounds;
mod spec;
mod stage;
mod status;

pub use self::{
    advance::advance,
    rounds::begin,
    spec::{RestartSpec, RestartTarget},
};

/// How long a Pod waits after its node was asked to refresh its volumes. kubelet acts on the changed Pod at once, mounts
/// anew within two of its 100 ms loops, and reads ConfigMaps and Secrets through watches, which it opens again within a
/// second; measured on a busy node, the new file was there within 0.3 s of the touch.
pub const REFRESH: Duration = Duration::from_secs(5);
/// A request, or a refresh of volumes, that was refused this often is a failure of its Pod; before that the Pod may only have
/// looked different to admission than to us.
pub const REFUSALS: u32 = 3;
/// Time between two attempts after a refusal.
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// The target's size is read again this often while a round goes on.
pub const TARGET_AGE: Duration = Duration::from_secs(10);
/// The most triggers that are followed in one namespace. Each is a connection to the API server of its own, and one that may
/// not be watched is asked for again every few seconds: without a bound those of one namespace could use up what the manager
/// has for all.
pub const MOST_TRIGGERS: usize = 128;
/// Names in a message.
const NAMES: usize = 4;

/// What is known of a trigger.
#[derive(Clone, Debug, PartialEq)]
pub enum TriggerContent {
    /// Not read yet.
    Unknown,
    /// The API server does not let us watch it, with its words.
    Forbidden(String),
    /// It is not followed: older WorkloadRestarts of its namespace have [`MOST_TRIGGERS`] others.
    Surplus,
    /// It does not exist.
    Missing,
    /// It exists.
    Present {
        /// Of its data.
        hash: String,
        /// Its last change by the API server's clock.
        changed: Option<Timestamp>,
    },
}

/// What is known of the target.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Its Pods are known.
    Known {
        /// How many Pods it wants, if it says so.
        desired: Option<usize>,
        /// Whether its Pods have ordinals.
        ordinals: bool,
    },
    /// It does not exist, in words.
    Missing(String),
    /// It cannot be read until somebody changes something.
    Unreadable {
        /// Of the condition.
        reason: &'static str,
        /// In words.
        message: String,
    },
}

/// A container that a SidecarSet put into a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// Its name in the SidecarSet.
    pub name: String,
    /// Its name in the Pod: of the two containers of a hot-upgraded one, that which is at work.
    pub container: String,
}

/// One Pod of the target.
#[derive(Clone, Debug)]
pub struct PodFacts<'a> {
    pub pod: &'a PodView,
    /// If the target is a SidecarSet, what it put into the Pod: nothing else is restarted.
    pub sidecars: Option<&'a [Sidecar]>,
    /// The request of this round for it.
    pub request: Option<&'a ContainerRecreateRequest>,
    /// Whether a request of another round or another WorkloadRestart is under way for it.
    pub busy: bool,
    /// How often a request for it, or the refresh of its volumes, was refused in this round, when last, and why.
    pub refused: Option<(u32, Duration, &'a str)>,
    /// How long it has been ready since its restart. None: it is not ready.
    pub ready_for: Option<Duration>,
    /// How long ago its node was asked to refresh its volumes, for this round.
    pub refreshed: Option<Duration>,
}

/// Everything that [`advance`] decides from.
#[derive(Clone, Debug)]
pub struct ObservedPods<'a> {
    /// Only its metadata, its status and its triggers are read.
    pub restart: &'a WorkloadRestart,
    pub spec: &'a RestartSpec,
    pub target: Target,
    /// All Pods of the target, in no order.
    pub pods: Vec<PodFacts<'a>>,
    /// The budgets of the namespace.
    pub budgets: Vec<Budget>,
    /// How long ago the round began.
    pub age: Duration,
}

/// A Pod whose restart begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub pod: String,
    pub uid: String,
    pub containers: Vec<String>,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What to do now, and when to look again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestartPlan {
    /// Pods (name and UID) whose volumes their node has to refresh.
    pub touch: Vec<(String, String)>,
    /// Pods to restart.
    pub start: Vec<Start>,
    /// The status to record.
    pub status: WorkloadRestartStatus,
    /// To be emitted once the status is recorded.
    pub event: Option<Event>,
    /// Requests of earlier rounds can go.
    pub forget_earlier_rounds: bool,
    /// The time to live is over.
    pub delete: bool,
    /// None: an event will come, or nothing is left to do.
    pub requeue: Option<Duration>,
}

impl RestartPlan {
    /// Looks again then, or earlier.
    pub fn look_after(&mut self, delay: Duration) {
        self.requeue = sooner(self.requeue, Some(delay));
    }

    /// Says in the status that requests cannot be made; they are tried again.
    pub fn requests_failed(&mut self, error: &str, now: Now) {
        let message = format!("requests cannot be made and are tried again: {error}");
        progress(&mut self.status, true, "RequestsFailing", message, now);
    }

    /// Says that a PodUnavailableBudget does not let a Pod be restarted now; it is asked again soon.
    pub fn waits_for_budget(&mut self, why: String, now: Now) {
        if self.start.is_empty() {
            progress(&mut self.status, true, "WaitingForBudget", why, now);
        }
        self.look_after(AFTER_REFUSAL);
    }
}

/// Whether a round is under way, so that Pods have to be looked at.
pub fn is_active(restart: &WorkloadRestart) -> bool {
    let Some(status) = &restart.status else { return !restart.is_triggered() };
    // What had been begun when the round ended is still counted to its end.
    let under_way = !status.has_ended() || status.restarting > 0;
    !restart.is_deleting() && under_way && (status.round > 0 || !restart.is_triggered())
}

fn status_of(restart: &WorkloadRestart) -> WorkloadRestartStatus {
    let mut status = restart.status.clone().unwrap_or_default();
    status.observed_generation = restart.metadata.generation.unwrap_or_default();
    if status.has_ended() {
        conditions::still_hold(&mut status.conditions, Some(status.observed_generation));
    }
    status
}

/// A few of the names, and how many more there are.
pub fn listed(names: &[String], separator: &str) -> String {
    let shown = names.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(separator);
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
