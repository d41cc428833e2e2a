//! What is recorded of the Pods of a target, and what is cleared.
//!
//! The node of a Ready Pod, the labels of that node and the Pod's annotations are recorded. The record stays while the
//! Pod is away. It goes with the target, with a scale-down below the Pod, and when it can hold the Pod nowhere any more: its
//! node is gone (the API server says so; a node that is not Ready is not gone), or has not been Ready for the time that an
//! annotation sets, or has other labels now, and no other node has the same labels.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::spec::{LONGEST_VALUE, StateSpec};
use crate::{
    api::apps::persistent_pod_state::{PersistentPodStateStatus, PodState},
    domain::workload::numbering::{Ordinals, Reserved, ordinal_of},
    k8s::{bounded_json, conditions, node::NodeView},
};

/// The most bytes of all records together: an object has room for 1.5 MB.
pub const MOST_BYTES: usize = 1 << 20;

/// A record and the name of its node, as [`MOST_PARTS`](crate::k8s::bounded_json::MOST_PARTS) counts them.
const PARTS_OF_A_RECORD: usize = bounded_json::PARTS_OF_A_MAP + 1;
/// So many bytes count as one part: both limits are reached at the same time, with some room for the rest of the object.
const SHARE_OF_A_PART: usize = MOST_BYTES / (bounded_json::MOST_PARTS - 5000) + 1;

/// The target, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateTargetView {
    /// Its UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub is_going: bool,
    /// The ordinals that it wants.
    pub ordinals: Ordinals,
}

impl StateTargetView {
    /// For a target with so many replicas. Ordinals begin at 0 unless the kind says otherwise.
    pub fn new(uid: &str, is_going: bool, replicas: i32, start: i32, reserved: &Reserved) -> Self {
        Self { uid: uid.to_owned(), is_going, ordinals: Ordinals::new(replicas, start, reserved) }
    }
}

/// Annotations of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Notes {
    /// None are asked for.
    #[default]
    NotAsked,
    /// Those that are asked for and that it has.
    Known(BTreeMap<String, String>),
    /// They could not be read.
    Unread,
}

/// A Pod of the target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacedPod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node that it is bound to; empty if it is bound to none.
    pub node: String,
    /// It is Ready, is not being deleted and has not ended.
    pub is_ready: bool,
    /// It is not being deleted and has not ended.
    pub is_active: bool,
    /// Its annotations.
    pub notes: Notes,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeFacts {
    /// It is there; how long it has not been Ready, if it is not.
    There(Arc<NodeView>, Option<Duration>),
    /// The API server has no Node of this name.
    Gone,
    /// It could not be read.
    Unknown,
}

/// What there is.
#[derive(Clone, Debug, Default)]
pub struct StateFacts {
    /// The target; None: there is none.
    pub target: Option<StateTargetView>,
    /// Its Pods.
    pub pods: Vec<PlacedPod>,
    /// Nodes of Pods and of records, by name.
    pub nodes: HashMap<String, NodeFacts>,
    /// All nodes.
    pub all_nodes: Vec<Arc<NodeView>>,
}

/// Why the place of a Pod is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// Its node is gone.
    NodeGone,
    /// Its node has not been Ready for too long.
    NodeNotReady,
    /// No node has the labels any more that the Pod needs, not even its own.
    LabelsGone,
}

impl Cleared {
    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NodeGone => "node_gone",
            Self::NodeNotReady => "node_not_ready",
            Self::LabelsGone => "labels_gone",
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatePlan {
    /// What is recorded, by Pod.
    pub states: BTreeMap<String, PodState>,
    /// Places that are not kept any more: the Pod, its node, and why.
    pub cleared: Vec<(String, String, Cleared)>,
    /// UIDs of Pods that wait for a node although nothing that is recorded holds them to one any more.
    pub free: Vec<(String, String)>,
    /// Pods of which nothing could be recorded for now.
    pub unread: Vec<String>,
    /// Pods of which something is not recorded because it would be too much.
    pub left_out: BTreeSet<String>,
    /// When a node will have been away for too long.
    pub look_after: Option<Duration>,
}

/// Takes out of a status what is recorded of a target that is gone, of which another one has the name now: as if a pass had
/// come between the two. Its Pods that the new one has adopted are recorded again while they are Ready.
pub fn forget_another(recorded: &mut PersistentPodStateStatus, target: Option<&StateTargetView>) {
    if target.is_some_and(|target| recorded.is_of_another(&target.uid)) {
        recorded.pod_states.clear();
    }
}

/// Decides.
pub fn plan(spec: &StateSpec, recorded: &BTreeMap<String, PodState>, facts: &StateFacts) -> StatePlan {
    let mut plan = StatePlan::default();
    let Some(target) = facts.target.as_ref().filter(|target| !target.is_going) else { return plan };
    let pods: HashMap<&str, &PlacedPod> = facts.pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
    let mut places = Places { spec, facts, known: HashMap::new() };
    let is_wanted = |name: &str| ordinal_of(&spec.name, name).is_some_and(|ordinal| target.ordinals.contains(ordinal));
    for (name, state) in recorded {
        let pod = pods.get(name.as_str());
        if pod.is_some_and(|pod| pod.is_ready) {
            continue;
        }
        if !spec.keeps_surplus && pod.is_none() && !is_wanted(name) {
            continue;
        }
        let (kept, cleared) = places.keep(state, &mut plan.look_after);
        plan.cleared.extend(cleared.map(|why| (name.clone(), state.node_name.clone(), why)));
        plan.states.extend(kept.map(|kept| (name.clone(), kept)));
    }
    for pod in facts.pods.iter().filter(|pod| pod.is_ready && !pod.node.is_empty()) {
        match (record(spec, pod, facts.nodes.get(&pod.node)), recorded.get(&pod.name)) {
            (Recorded::Is(state, is_cut), _) => {
                if is_cut {
                    plan.left_out.insert(pod.name.clone());
                }
                plan.states.insert(pod.name.clone(), state);
            }
            (Recorded::NodeGone, Some(state)) => {
                let (kept, cleared) = places.keep(state, &mut plan.look_after);
                plan.cleared.extend(cleared.map(|why| (pod.name.clone(), state.node_name.clone(), why)));
                plan.states.extend(kept.map(|kept| (pod.name.clone(), kept)));
            }
            (Recorded::NodeGone, None) => {}
            (Recorded::Unread, before) => {
                plan.unread.push(pod.name.clone());
                plan.states.extend(before.map(|before| (pod.name.clone(), before.clone())));
            }
        }
    }
    fit(&mut plan);
    let holds = |plan: &StatePlan, name: &str| {
        let labels = plan.states.get(name).map(|state| &state.node_topology_labels);
        labels.is_some_and(|labels| spec.required.iter().any(|key| labels.contains_key(key)))
    };
    let waiting = facts.pods.iter().filter(|pod| pod.is_active && pod.node.is_empty());
    let free = waiting.filter(|pod| !holds(&plan, &pod.name)).map(|pod| (pod.name.clone(), pod.uid.clone()));
    plan.free = free.collect();
    plan
}

enum Recorded {
    /// What is recorded, and whether some of it is left out.
    Is(PodState, bool),
    NodeGone,
    Unread,
}

/// What is recorded of a Pod that is Ready.
fn record(spec: &StateSpec, pod: &PlacedPod, node: Option<&NodeFacts>) -> Recorded {
    let node = match node {
        Some(NodeFacts::There(node, _)) => node,
        Some(NodeFacts::Gone) => return Recorded::NodeGone,
        Some(NodeFacts::Unknown) | None => return Recorded::Unread,
    };
    let labels = spec.keys.iter().filter_map(|key| Some((key.clone(), node.labels.get(key)?.to_owned())));
    let mut is_cut = false;
    let annotations = match &pod.notes {
        Notes::NotAsked => BTreeMap::new(),
        Notes::Unread => return Recorded::Unread,
        Notes::Known(notes) => {
            let asked = notes.iter().filter(|(key, _)| spec.annotations.contains(*key));
            let mut asked: BTreeMap<String, String> = asked.map(|(key, value)| (key.clone(), value.clone())).collect();
            let before = asked.len();
            asked.retain(|_, value| value.len() <= LONGEST_VALUE);
            is_cut = asked.len() < before;
            asked
        }
    };
    let state = PodState { node_name: pod.node.clone(), node_topology_labels: labels.collect(), annotations };
    Recorded::Is(state, is_cut)
}

/// Where Pods can come back to.
struct Places<'a> {
    spec: &'a StateSpec,
    facts: &'a StateFacts,
    /// Whether there is another node with these labels, which has to be Ready or not: many Pods have the same.
    known: HashMap<(BTreeMap<String, String>, bool), bool>,
}

impl Places<'_> {
    /// What is kept of a record whose Pod is away, and why its place is not.
    fn keep(&mut self, state: &PodState, look_after: &mut Option<Duration>) -> (Option<PodState>, Option<Cleared>) {
        let why = match self.facts.nodes.get(&state.node_name) {
            _ if state.node_topology_labels.is_empty() => return (Some(state.clone()), None),
            // Its node has been gone before.
            _ if state.node_name.is_empty() => Cleared::NodeGone,
            Some(NodeFacts::Gone) => Cleared::NodeGone,
            Some(NodeFacts::There(node, _)) if is_relabelled(self.spec, state, node) => Cleared::LabelsGone,
            Some(NodeFacts::There(_, Some(away))) => match self.spec.clear_after {
                Some(after) if *away >= after => Cleared::NodeNotReady,
                Some(after) => {
                    *look_after = [*look_after, Some(after - *away)].into_iter().flatten().min();
                    return (Some(state.clone()), None);
                }
                None => return (Some(state.clone()), None),
            },
            Some(NodeFacts::There(_, None) | NodeFacts::Unknown) | None => return (Some(state.clone()), None),
        };
        if self.is_left(state, why == Cleared::NodeNotReady) {
            // Other nodes will do as well. While the node is there it may come back.
            let node_name = if why == Cleared::NodeGone { String::new() } else { state.node_name.clone() };
            return (Some(PodState { node_name, ..state.clone() }), None);
        }
        let rest = PodState { node_name: String::new(), node_topology_labels: BTreeMap::new(), ..state.clone() };
        (Some(rest).filter(|rest| !rest.annotations.is_empty()), Some(why))
    }

    /// Whether another node has the labels that a Pod needs; without any that it needs, those that it should have.
    fn is_left(&mut self, state: &PodState, has_to_be_ready: bool) -> bool {
        let needed = |key: &&String| self.spec.required.contains(*key);
        let labels = &state.node_topology_labels;
        let any_needed = labels.keys().any(|key| needed(&key));
        let counts = labels.iter().filter(|(key, _)| !any_needed || needed(key));
        let counts: BTreeMap<String, String> = counts.map(|(key, value)| (key.clone(), value.clone())).collect();
        let nodes = &self.facts.all_nodes;
        *self.known.entry((counts, has_to_be_ready)).or_insert_with_key(|(labels, has_to_be_ready)| {
            nodes.iter().any(|node| {
                !node.is_deleting()
                    && (node.ready || !has_to_be_ready)
                    && labels.iter().all(|(key, value)| node.labels.get(key) == Some(value.as_str()))
            })
        })
    }
}

/// Whether a node that is Ready has other labels than a Pod needs that was there: by its own node the Pod is not held any more.
pub fn is_relabelled(spec: &StateSpec, state: &PodState, node: &NodeView) -> bool {
    let mut needed = state.node_topology_labels.iter().filter(|(key, _)| spec.required.contains(*key));
    node.ready && needed.any(|(key, value)| node.labels.get(key) != Some(value.as_str()))
}

/// Leaves records out, the last ones first, as long as they are too much for one object.
fn fit(plan: &mut StatePlan) {
    let bytes = |name: &str, state: &PodState| {
        let pairs = state.node_topology_labels.iter().chain(&state.annotations);
        // Quotes, colons, and a backslash before each character in the worst case.
        let written: usize = pairs.clone().map(|(key, value)| key.len() + 2 * value.len() + 8).sum();
        // Whoever reads it has a limit of its own, to which a short text counts as much as a long one.
        let maps = [&state.node_topology_labels, &state.annotations].iter().filter(|map| !map.is_empty()).count();
        let read = SHARE_OF_A_PART * (PARTS_OF_A_RECORD + bounded_json::PARTS_OF_A_MAP * maps + pairs.count());
        read.max(name.len() + state.node_name.len() + written + 80)
    };
    let mut total = 0;
    for (name, state) in &plan.states {
        total += bytes(name, state);
        if total > MOST_BYTES {
            plan.left_out.insert(name.clone());
        }
    }
    if total > MOST_BYTES {
        let mut kept = 0;
        plan.states.retain(|name, state| {
            kept += bytes(name, state);
            kept <= MOST_BYTES
        });
    }
}

/// Why nothing is recorded, or not everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The spec cannot be read.
    Invalid(String),
    /// Another PersistentPodState is for the same target and was there first.
    Taken(String),
    /// The target cannot be read, and why.
    Unreadable(String),
}

/// The status. `before` is the recorded one.
pub fn status(
    spec: Option<&StateSpec>,
    outcome: Result<(&StatePlan, &StateFacts), &Hindrance>,
    before: &PersistentPodStateStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> PersistentPodStateStatus {
    let mut status = before.clone();
    status.observed_generation = generation.unwrap_or_default();
    let target = spec.map(|spec| format!("{} {}", spec.kind, spec.name)).unwrap_or_default();
    let (type_, reason, message) = match outcome {
        Err(Hindrance::Invalid(why)) => (conditions::STALLED, "InvalidSpec", why.clone()),
        Err(Hindrance::Taken(by)) => (
            conditions::STALLED,
            "TargetTaken",
            format!("PersistentPodState {by} is for {target} and was there first; delete one of the two"),
        ),
        Err(Hindrance::Unreadable(why)) => (conditions::STALLED, "TargetUnreadable", why.clone()),
        Ok((plan, facts)) => {
            status.pod_states = plan.states.clone();
            let target_uid = facts.target.as_ref().filter(|target| !target.is_going).map(|target| target.uid.clone());
            status.target_uid = target_uid.unwrap_or_default();
            progress(plan, facts, &target)
        }
    };
    conditions::set_kstatus(&mut status.conditions, (type_, reason, &message), generation, now);
    status
}

fn progress(plan: &StatePlan, facts: &StateFacts, target: &str) -> (&'static str, &'static str, String) {
    if facts.target.is_none() {
        return (conditions::RECONCILING, "TargetMissing", format!("{target} is not there"));
    }
    if facts.target.as_ref().is_some_and(|target| target.is_going) {
        return (conditions::RECONCILING, "TargetDeleted", format!("{target} is being deleted"));
    }
    if let Some(pod) = plan.unread.first() {
        let message = format!("node or annotations of Pod {pod} could not be read; they are read again");
        return (conditions::RECONCILING, "Unread", message);
    }
    if let Some(pod) = plan.left_out.first() {
        let message = format!(
            "there is too much to record, for example for Pod {pod}; want annotations of up to {LONGEST_VALUE} bytes each, and up to {MOST_BYTES} bytes for all Pods together"
        );
        return (conditions::STALLED, "TooLarge", message);
    }
    (conditions::READY, "Recorded", "the place of every Ready Pod is recorded".into())
}
