//! One pass over a BroadcastJob: everything to do now, from what was observed.
//!
//! A plan is complete and rests on objects as they are, so a crash between any two of its steps is harmless. Ended Pods are
//! never touched: they are the record of what was done on which node.

use std::{collections::BTreeMap, time::Duration};

use super::{
    pod::{BroadcastNode, BroadcastPod, PodStage},
    spec::BroadcastSpec,
};
use crate::{
    api::apps::{broadcast_job::BroadcastJobStatus, strategies::BroadcastFailure},
    domain::node::backoff::Failures,
    k8s::time::{Now, sooner},
};

/// What a pass looks at.
#[derive(Clone, Copy)]
pub struct BroadcastObserved<'a> {
    /// The job.
    pub spec: &'a BroadcastSpec,
    /// Its recorded status.
    pub recorded: &'a BroadcastJobStatus,
    /// All nodes.
    pub nodes: &'a [BroadcastNode],
    /// The Pods that the job controls.
    pub pods: &'a [BroadcastPod],
    /// How long ago the job began.
    pub age: Duration,
    /// How long ago the job ended, if it has.
    pub ended: Duration,
    /// Pods that were made for nodes a short time ago.
    pub tries: &'a Failures,
    /// Now.
    pub now: Now,
}

/// Why a Pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// It is not to run on its node, or has none.
    Unfit,
    /// Another Pod of the job is there for its node.
    Surplus,
    /// The job has failed.
    JobFailed,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BroadcastAction {
    /// Make a Pod for a node.
    Create {
        /// The node.
        node: String,
    },
    /// Delete a Pod that has not ended.
    Delete {
        /// The Pod.
        pod: String,
        /// Why.
        because: Because,
    },
    /// Stop a Pod whose containers were restarted too often; it stays.
    Stop {
        /// The Pod.
        pod: String,
    },
    /// Set `spec.paused`, and note how many failed Pods that answers.
    Pause {
        /// So many.
        failed: i32,
    },
    /// Note how many failed Pods need no answer any more: more than when the job was paused, because further ones failed
    /// meanwhile, or fewer, because somebody has deleted some to try again.
    Remember {
        /// So many.
        failed: i32,
    },
    /// Delete the job: its time to live is over.
    DeleteJob,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BroadcastState {
    /// It goes on.
    #[default]
    Running,
    /// Nothing is made or deleted until somebody sets `spec.paused` to false.
    Paused,
    /// It ends now, every node is done.
    Completes,
    /// It ends now.
    Fails {
        /// One word.
        reason: &'static str,
        /// In words.
        message: String,
    },
    /// It was over before.
    Over,
}

/// Numbers of the status, and what they rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BroadcastCounts {
    /// Nodes that are to have a Pod, or have one.
    pub desired: usize,
    /// Pods that have not ended and are not being deleted.
    pub active: usize,
    /// Nodes whose Pod has succeeded.
    pub succeeded: usize,
    /// Nodes whose Pod has failed.
    pub failed: usize,
    /// Nodes that are to get a Pod.
    pub missing: usize,
    /// The first Pod that has failed, with its node.
    pub first_failed: Option<(String, String)>,
    /// Nodes that have more than one Pod, the first of them.
    pub doubled: Option<String>,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BroadcastPlan {
    /// Each of them whatever becomes of the others, in this order.
    pub actions: Vec<BroadcastAction>,
    /// How far the job is.
    pub state: BroadcastState,
    /// Numbers.
    pub counts: BroadcastCounts,
    /// When something that is waited for is due, if nothing happens before.
    pub look: Option<Duration>,
    /// More Pods run than `parallelism` allows.
    pub is_over_limit: bool,
}

impl BroadcastPlan {
    fn look_after(&mut self, after: Duration) {
        self.look = sooner(self.look, Some(after));
    }

    fn delete(&mut self, pod: &BroadcastPod, because: Because) {
        self.actions.push(BroadcastAction::Delete { pod: pod.name.clone(), because });
    }
}

/// A number of a status.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// What nodes and Pods say.
#[derive(Default)]
struct Slots<'a> {
    counts: BroadcastCounts,
    /// Nodes that are to get a Pod, by name.
    missing: Vec<&'a str>,
    /// Pods that have not ended and are not wanted.
    unwanted: Vec<(&'a BroadcastPod, Because)>,
    /// Nodes whose next Pod waits until the last one is gone.
    leaving: usize,
}

/// Holds Pods against the nodes that they are meant for.
fn slots<'a>(observed: &BroadcastObserved<'a>) -> Slots<'a> {
    let mut by_node: BTreeMap<&str, (Option<&BroadcastNode>, Vec<&BroadcastPod>)> = BTreeMap::new();
    for node in observed.nodes {
        by_node.entry(&node.name).or_default().0 = Some(node);
    }
    for pod in observed.pods {
        by_node.entry(&pod.node).or_default().1.push(pod);
    }
    let mut slots = Slots::default();
    for (name, (node, mut pods)) in by_node {
        // Nobody knows for which node they are meant: they count, and are left alone.
        if name.is_empty() {
            slots.counts.active += pods.iter().filter(|pod| pod.stage == PodStage::Active).count();
            continue;
        }
        pods.sort_by(|a, b| a.rank().cmp(&b.rank()));
        slots.add(name, node, &pods);
    }
    slots
}

impl<'a> Slots<'a> {
    fn add(&mut self, name: &'a str, node: Option<&BroadcastNode>, pods: &[&'a BroadcastPod]) {
        let counts = &mut self.counts;
        let should_run = node.is_some_and(|node| node.fit.should_run);
        let Some((first, others)) = pods.split_first() else {
            if should_run {
                counts.desired += 1;
                self.missing.push(name);
            }
            return;
        };
        let active = pods.iter().filter(|pod| pod.stage == PodStage::Active);
        counts.active += active.clone().count();
        match first.stage {
            PodStage::Succeeded => {
                counts.desired += 1;
                counts.succeeded += 1;
            }
            PodStage::Failed | PodStage::Exceeded => {
                counts.desired += 1;
                counts.failed += 1;
                counts.first_failed.get_or_insert_with(|| (first.name.clone(), name.to_owned()));
            }
            PodStage::Active => {
                let stays = match node {
                    // It goes with its node; one that has not got there never will.
                    None => first.is_bound,
                    Some(node) if first.is_bound => node.fit.should_continue,
                    Some(node) => node.fit.should_run,
                };
                match stays {
                    true => counts.desired += 1,
                    false => self.unwanted.push((first, Because::Unfit)),
                }
            }
            PodStage::Leaving if should_run => {
                counts.desired += 1;
                self.leaving += 1;
            }
            PodStage::Leaving => {}
        }
        let surplus = others.iter().filter(|pod| pod.stage == PodStage::Active);
        if surplus.clone().next().is_some() {
            counts.doubled.get_or_insert_with(|| name.to_owned());
        }
        self.unwanted.extend(surplus.map(|pod| (*pod, Because::Surplus)));
    }
}

/// Everything to do now.
pub fn plan(observed: &BroadcastObserved<'_>) -> BroadcastPlan {
    let spec = observed.spec;
    let mut slots = slots(observed);
    slots.counts.missing = slots.missing.len();
    let mut plan = BroadcastPlan { counts: slots.counts.clone(), ..BroadcastPlan::default() };
    let is_over = observed.recorded.is_over();
    if spec.paused && !is_over {
        plan.state = BroadcastState::Paused;
        return plan;
    }
    let exceeded = observed.pods.iter().filter(|pod| pod.stage == PodStage::Exceeded);
    plan.actions.extend(exceeded.map(|pod| BroadcastAction::Stop { pod: pod.name.clone() }));
    if is_over {
        after_the_end(observed, &mut plan);
        return plan;
    }
    if spec.on_failure == BroadcastFailure::Pause && answer_failures(observed, &mut plan) {
        plan.state = BroadcastState::Paused;
        return plan;
    }
    if let Some((reason, message)) = failure(observed, &mut plan) {
        plan.state = BroadcastState::Fails { reason, message };
        delete_active(observed, &mut plan);
        return plan;
    }
    for (pod, because) in &slots.unwanted {
        plan.delete(pod, *because);
    }
    create(observed, &slots, &mut plan);
    let BroadcastCounts { desired, active, missing, .. } = plan.counts;
    if spec.ends && desired > 0 && active == 0 && missing == 0 && slots.leaving == 0 {
        plan.state = BroadcastState::Completes;
    }
    plan
}

/// Pauses the job for failures that nobody has answered yet. Whether nothing else is done.
fn answer_failures(observed: &BroadcastObserved<'_>, plan: &mut BroadcastPlan) -> bool {
    let (failed, noted) = (count(plan.counts.failed), observed.spec.paused_at_failed);
    // Pods go on while a job is paused, and may fail, too. Whoever lets it go on has seen those that its status showed.
    let was_paused_for_failures = noted > 0 && observed.recorded.is_paused();
    let answered = if was_paused_for_failures { noted.max(observed.recorded.failed) } else { noted };
    if failed > answered {
        plan.actions.push(BroadcastAction::Pause { failed });
    } else if failed != noted {
        plan.actions.push(BroadcastAction::Remember { failed });
    }
    // Until more are noted the status stays as it is: what it shows is all that is known of them.
    failed > noted
}

/// Why the job fails now, if it does.
fn failure(observed: &BroadcastObserved<'_>, plan: &mut BroadcastPlan) -> Option<(&'static str, String)> {
    let spec = observed.spec;
    if spec.on_failure == BroadcastFailure::FailFast
        && let Some((pod, node)) = &plan.counts.first_failed
    {
        let message = format!("failed pod is found: {pod} on node {node}");
        return Some(("FailedPod", message));
    }
    let left = spec.deadline?.saturating_sub(observed.age);
    if left.is_zero() {
        let seconds = spec.deadline.unwrap_or_default().as_secs();
        return Some(("DeadlineExceeded", format!("Job was active longer than its deadline of {seconds} s")));
    }
    plan.look_after(left);
    None
}

/// Makes Pods for nodes that have none, as far as `parallelism` goes.
fn create(observed: &BroadcastObserved<'_>, slots: &Slots<'_>, plan: &mut BroadcastPlan) {
    let most = observed.spec.most_active(slots.counts.desired);
    plan.is_over_limit = slots.counts.active > most;
    let free = most.saturating_sub(slots.counts.active);
    let mut due = Vec::new();
    for node in &slots.missing {
        if due.len() == free {
            break;
        }
        let wait = observed.tries.wait(node, observed.now.mono);
        match wait.is_zero() {
            true => due.push(*node),
            false => plan.look_after(wait),
        }
    }
    plan.actions.extend(due.into_iter().map(|node| BroadcastAction::Create { node: node.to_owned() }));
}

fn delete_active(observed: &BroadcastObserved<'_>, plan: &mut BroadcastPlan) {
    for pod in observed.pods.iter().filter(|pod| pod.stage == PodStage::Active) {
        plan.delete(pod, Because::JobFailed);
    }
}

/// A job that is over: of a failed one nothing runs on, and its time to live passes.
fn after_the_end(observed: &BroadcastObserved<'_>, plan: &mut BroadcastPlan) {
    plan.state = BroadcastState::Over;
    if observed.recorded.is_true("Failed").is_some() {
        delete_active(observed, plan);
    }
    if let Some(left) = observed.spec.ttl.map(|ttl| ttl.saturating_sub(observed.ended)) {
        match left.is_zero() {
            true => plan.actions = vec![BroadcastAction::DeleteJob],
            false => plan.look_after(left),
        }
    }
}
