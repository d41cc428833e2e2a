//! What there is of each subset, and what is to be done about it: the whole status, deletion costs, Pods that are evicted
//! because they find no place.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    cost,
    count::{entries, missing, there},
    places::{self, SubsetPlaces},
    replicas::version_of,
    spec::SpreadSpec,
};
use crate::{
    api::apps::workload_spread::{SpreadSubsetStatus, WorkloadSpreadStatus},
    domain::pod::{
        order::{Candidate, Phase, sort_for_deletion},
        unplaced::waits_for_place,
    },
    k8s::{
        name::is_label_value,
        pod::PodView,
        time::{Now, sooner},
    },
};

/// How long a Pod that is being created is counted without having been seen. With the pause between two looks it is less than
/// 30 s.
pub const CREATION_LASTS: Duration = Duration::from_secs(28);
/// How long a Pod that is being deleted is not counted although it is there. Between the answer of the webhook and the
/// deletionTimestamp there is one write of the API server, and the manager sees that at once; what takes longer makes room when
/// it is seen, so too short a time passes no limit. A deletion that is refused after the webhook, as an eviction by a
/// PodDisruptionBudget, makes room for so long although the Pod stays.
pub const DELETION_LASTS: Duration = Duration::from_secs(5);

/// Where a Pod belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// To the subset of this place.
    Subset(usize),
    /// To none.
    Nowhere,
    /// It has no note of a subset, and no node yet that would say.
    Unknown,
}

/// A Pod of the target.
#[derive(Clone, Debug)]
pub struct SpreadPod {
    /// The Pod.
    pub pod: Arc<PodView>,
    /// Where it belongs.
    pub home: Home,
}

/// Of which version new Pods are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Newest {
    /// There is one version.
    Only,
    /// Of this one.
    Version(String),
    /// It is not known now: costs stay as they are.
    Unknown,
}

impl Newest {
    fn is(&self, version: &str) -> bool {
        match self {
            Self::Only => true,
            Self::Version(newest) => newest == version,
            Self::Unknown => false,
        }
    }
}

/// What there is.
#[derive(Clone, Debug)]
pub struct SpreadSeen<'a> {
    /// The Pods of the target that the WorkloadSpread is for.
    pub pods: &'a [SpreadPod],
    /// How many the target wants.
    pub total: i32,
    /// Of which version new Pods are.
    pub newest: Newest,
    /// The status that is stored.
    pub recorded: &'a WorkloadSpreadStatus,
    /// How old the records of Pods on their way are, by version, subset and key.
    pub ages: &'a BTreeMap<EntryKey, Duration>,
    /// Whether the target is a Job that does not count an evicted Pod as failed.
    pub ignores_disruptions: bool,
}

/// Which way a Pod goes that is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// It is being created.
    Coming,
    /// It is being deleted.
    Going,
}

/// A record of a Pod on its way: the version, the subset, and the key in its map.
pub type EntryKey = (Way, String, String, String);

/// What is said about the WorkloadSpread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpreadEvent {
    /// A Pod was not created although it was to be: a warning.
    CreatePodFailed(String),
    /// A Pod was not deleted although it was to be: a warning.
    DeletePodFailed(String),
    /// A subset gets Pods again.
    RecoverSchedulable(String),
}

impl SpreadEvent {
    /// Its reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::CreatePodFailed(_) => "CreatePodFailed",
            Self::DeletePodFailed(_) => "DeletePodFailed",
            Self::RecoverSchedulable(_) => "RecoverSchedulable",
        }
    }

    /// In words.
    pub fn message(&self) -> String {
        match self {
            Self::CreatePodFailed(subset) => {
                format!("a Pod for subset {subset} was not created: its place is given back")
            }
            Self::DeletePodFailed(pod) => format!("Pod {pod} was not deleted: it is counted again"),
            Self::RecoverSchedulable(subset) => format!("subset {subset} gets Pods again"),
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct SpreadPlan {
    /// The subsets, all versions together.
    pub subsets: Vec<SpreadSubsetStatus>,
    /// The subsets by version.
    pub versions: BTreeMap<String, Vec<SpreadSubsetStatus>>,
    /// Pods whose deletion cost is to be another.
    pub costs: Vec<(Arc<PodView>, i32)>,
    /// Pods that find no place, to be evicted when the status is written.
    pub evict: Vec<Arc<PodView>>,
    /// What is said.
    pub events: Vec<SpreadEvent>,
    /// When to look again.
    pub look: Option<Duration>,
    /// Pods on their way.
    pub coming: usize,
    /// Pods above the limits of their subsets.
    pub surplus: usize,
    /// Pods that belong to no subset.
    pub nowhere: usize,
    /// Pods of which nobody knows yet where they belong.
    pub unknown: usize,
}

impl SpreadPlan {
    fn look_after(&mut self, after: Option<Duration>) {
        self.look = sooner(self.look, after);
    }
}

/// The records of Pods on their way.
pub fn records(status: &WorkloadSpreadStatus) -> impl Iterator<Item = (EntryKey, Timestamp)> {
    let versions = status.versioned_subset_statuses.iter().filter(|(version, _)| is_label_value(version));
    versions.flat_map(|(version, subsets)| {
        subsets.iter().flat_map(move |subset| {
            let all = [(Way::Coming, &subset.creating_pods), (Way::Going, &subset.deleting_pods)].into_iter();
            let all = all.flat_map(|(way, records)| records.iter().map(move |(key, since)| (way, key, since)));
            all.map(move |(way, key, since)| ((way, version.clone(), subset.name.clone(), key.clone()), *since))
        })
    })
}

/// Decides.
pub fn plan(spec: &SpreadSpec, seen: &SpreadSeen<'_>, now: Now) -> SpreadPlan {
    let mut plan = SpreadPlan::default();
    let limits = spec.limits(seen.total);
    let mut by_version: BTreeMap<String, Vec<&SpreadPod>> = BTreeMap::new();
    for pod in seen.pods {
        by_version.entry(version_of(spec.target_kind, &pod.pod.labels)).or_default().push(pod);
    }
    let recorded = &seen.recorded.versioned_subset_statuses;
    // No Pod has a label that is none: such records go, however they came.
    let recorded = recorded.keys().filter(|version| is_label_value(version));
    let versions: BTreeSet<&String> = by_version.keys().chain(recorded).collect();
    let mut sums = vec![(0_i32, 0_i32); spec.subsets.len()];
    for version in versions {
        let pods = by_version.get(version).map_or(&[][..], Vec::as_slice);
        let all = Counting { spec, seen, version, limits: &limits }.count(pods, &mut plan);
        let is_empty = |entry: &SpreadSubsetStatus| {
            entry.replicas == 0 && entry.creating_pods.is_empty() && entry.deleting_pods.is_empty()
        };
        if all.iter().all(is_empty) {
            continue;
        }
        for (sum, entry) in sums.iter_mut().zip(&all) {
            *sum = (sum.0.saturating_add(entry.replicas), sum.1.saturating_add(there(entry)));
        }
        plan.versions.insert(version.clone(), all);
    }
    let subsets =
        spec.subsets.iter().zip(sums).zip(&limits).map(|((subset, (replicas, there)), max)| SpreadSubsetStatus {
            name: subset.name.clone(),
            replicas,
            missing_replicas: missing(there, *max),
            ..SpreadSubsetStatus::default()
        });
    plan.subsets = subsets.collect();
    let active_in = |home: Home| seen.pods.iter().filter(|pod| pod.home == home && pod.pod.is_active()).count();
    (plan.nowhere, plan.unknown) = (active_in(Home::Nowhere), active_in(Home::Unknown));
    reschedule(spec, seen, &mut plan, now);
    for (version, pods) in &by_version {
        costs(spec, (&limits, seen), version, pods, &mut plan);
    }
    plan
}

/// Decides while there is no target, or it is being deleted: no Pods count, and none are wanted.
///
/// Records of creations keep their time. A replica of the webhook may still give a place that it has recorded ahead to a Pod of a
/// target that appears now, and writes nothing more about it. What it records meanwhile makes the write of this plan fail or
/// stays beside it (`settled.rs`). Records of deletions are dropped, because the Pods that they are of are no longer counted:
/// kept, they would give away the places of Pods that are coming. Pods that another target adopts count from then on.
pub fn without_pods(
    spec: &SpreadSpec,
    recorded: &WorkloadSpreadStatus,
    ages: &BTreeMap<EntryKey, Duration>,
    now: Now,
) -> SpreadPlan {
    let mut plan = plan(spec, &without_known_target(&[], recorded, ages), now);
    // Nobody has looked whether these Pods came: most did, and went with their target.
    plan.events.retain(|event| !matches!(event, SpreadEvent::CreatePodFailed(_)));
    plan
}

/// Decides while the target cannot be read, or the Pods may be those of another WorkloadSpread. The webhook may go on recording
/// Pods, so records are settled, and `noted`, the Pods that have its note, are those that count. No Pod is written or evicted.
///
/// With percentages the room stays as it is recorded: nobody knows what they are a part of. The webhook does not go by it.
pub fn without_target(
    spec: &SpreadSpec,
    recorded: &WorkloadSpreadStatus,
    noted: &[SpreadPod],
    ages: &BTreeMap<EntryKey, Duration>,
    now: Now,
) -> SpreadPlan {
    let mut plan = plan(spec, &without_known_target(noted, recorded, ages), now);
    plan.evict.clear();
    if spec.needs_total() {
        keep_room(&mut plan.subsets, &recorded.subset_statuses);
        for (version, subsets) in &mut plan.versions {
            keep_room(subsets, recorded.versioned_subset_statuses.get(version).map_or(&[][..], Vec::as_slice));
        }
    }
    plan
}

fn without_known_target<'a>(
    pods: &'a [SpreadPod],
    recorded: &'a WorkloadSpreadStatus,
    ages: &'a BTreeMap<EntryKey, Duration>,
) -> SpreadSeen<'a> {
    SpreadSeen { pods, total: 0, newest: Newest::Unknown, recorded, ages, ignores_disruptions: false }
}

fn keep_room(subsets: &mut [SpreadSubsetStatus], recorded: &[SpreadSubsetStatus]) {
    for subset in subsets.iter_mut().filter(|subset| subset.missing_replicas >= 0) {
        let before = recorded.iter().find(|before| before.name == subset.name);
        subset.missing_replicas = before.map_or(0, |before| before.missing_replicas.max(0));
    }
}

/// One version.
struct Counting<'a> {
    spec: &'a SpreadSpec,
    seen: &'a SpreadSeen<'a>,
    version: &'a str,
    limits: &'a [Option<i32>],
}

impl Counting<'_> {
    fn count(&self, pods: &[&SpreadPod], plan: &mut SpreadPlan) -> Vec<SpreadSubsetStatus> {
        let recorded = self.seen.recorded.versioned_subset_statuses.get(self.version);
        let mut all = entries(self.spec, recorded);
        for entry in &mut all {
            entry.replicas = 0;
            entry.conditions.clear();
        }
        let mut active: HashSet<(usize, &str)> = HashSet::new();
        let mut seen = SeenPods::default();
        for SpreadPod { pod, home } in pods {
            seen.add(pod);
            if let Home::Subset(index) = home
                && pod.is_active()
            {
                active.insert((*index, pod.name()));
                all[*index].replicas = all[*index].replicas.saturating_add(1);
            }
        }
        for (index, entry) in all.iter_mut().enumerate() {
            let mut deleting = std::mem::take(&mut entry.deleting_pods);
            deleting.retain(|name, _| {
                active.contains(&(index, name.as_str()))
                    && self.lasts((Way::Going, &entry.name, name), DELETION_LASTS, plan, || {
                        SpreadEvent::DeletePodFailed(name.clone())
                    })
            });
            entry.deleting_pods = deleting;
        }
        for entry in &mut all {
            let mut creating = std::mem::take(&mut entry.creating_pods);
            creating.retain(|key, since| {
                // Whatever subset it went to in the end, it is there.
                !seen.has(key, *since)
                    && self.lasts((Way::Coming, &entry.name, key), CREATION_LASTS, plan, || {
                        SpreadEvent::CreatePodFailed(entry.name.clone())
                    })
            });
            plan.coming += creating.len();
            entry.creating_pods = creating;
        }
        for (entry, max) in all.iter_mut().zip(self.limits) {
            entry.missing_replicas = missing(there(entry), *max);
            let above = max.map_or(0, |max| entry.replicas.saturating_sub(max).max(0));
            plan.surplus += usize::try_from(above).unwrap_or_default();
        }
        all
    }

    /// Whether a record still counts. One that does not is told of.
    fn lasts(
        &self,
        (way, subset, key): (Way, &str, &str),
        limit: Duration,
        plan: &mut SpreadPlan,
        event: impl FnOnce() -> SpreadEvent,
    ) -> bool {
        let at = (way, self.version.to_owned(), subset.to_owned(), key.to_owned());
        let age = self.seen.ages.get(&at).copied().unwrap_or_default();
        let left = limit.saturating_sub(age);
        if left.is_zero() {
            plan.events.push(event());
        } else {
            plan.look_after(Some(left));
        }
        !left.is_zero()
    }
}

/// Pods by the keys under which they may have been recorded when they were created.
#[derive(Default)]
struct SeenPods<'a> {
    /// Whether one is active, and when the last one was made.
    by_key: HashMap<&'a str, (bool, Option<Timestamp>)>,
}

impl<'a> SeenPods<'a> {
    fn add(&mut self, pod: &'a PodView) {
        for key in [key_of(pod), pod.name()] {
            let (is_active, created) = self.by_key.entry(key).or_default();
            *is_active |= pod.is_active();
            *created = (*created).max(pod.created);
        }
    }

    /// Whether the Pod has come that was recorded then. A namesake that is on its way out and was there before is not it; the
    /// API server says only in which second one was made.
    fn has(&self, key: &str, since: Timestamp) -> bool {
        let is_later = |created: Timestamp| created.as_second() >= since.as_second();
        self.by_key.get(key).is_some_and(|(is_active, created)| *is_active || created.is_some_and(is_later))
    }
}

/// The key under which a Pod was recorded when it was created.
pub(super) fn key_of(pod: &PodView) -> &str {
    let uid = pod.rare().spread.as_ref().and_then(|note| note.uid.as_deref());
    uid.unwrap_or_else(|| pod.name())
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

/// Pods that find no place in a subset but the last: they are evicted, and the subset gets no more for a while. A Pod of a Job that
/// counts it as failed then stays: only those that come after it go elsewhere.
fn reschedule(spec: &SpreadSpec, seen: &SpreadSeen<'_>, plan: &mut SpreadPlan, now: Now) {
    let Some(limit) = spec.reschedule_after else { return };
    let last = spec.subsets.len() - 1;
    let mut all_overdue: Vec<Vec<Arc<PodView>>> = vec![Vec::new(); spec.subsets.len()];
    for pod in seen.pods {
        let Home::Subset(index) = pod.home else { continue };
        let Some(waited) = waits_for_place(&pod.pod, now).filter(|_| index != last) else { continue };
        match limit.saturating_sub(waited) {
            Duration::ZERO => all_overdue[index].push(pod.pod.clone()),
            left => plan.look_after(Some(left)),
        }
    }
    for (index, overdue) in all_overdue.into_iter().enumerate() {
        let name = &spec.subsets[index].name;
        let before = seen.recorded.subset_statuses.iter().find(|subset| subset.name == *name);
        let before = before.map(|subset| subset.conditions.as_slice()).unwrap_or_default();
        let SubsetPlaces { condition, has_recovered, look } = places::judge(before, overdue.len(), index == last, now);
        plan.look_after(look);
        if has_recovered {
            plan.events.push(SpreadEvent::RecoverSchedulable(name.clone()));
        }
        plan.evict.extend(overdue.into_iter().filter(|pod| seen.ignores_disruptions || !is_of_job(pod)));
        plan.subsets[index].conditions = vec![condition.clone()];
        for entries in plan.versions.values_mut() {
            entries[index].conditions = vec![condition.clone()];
        }
    }
}

/// Whether a Job controls it.
fn is_of_job(pod: &PodView) -> bool {
    pod.controller.as_deref().is_some_and(|owner| owner.is("batch", "Job"))
}

/// The deletion costs of the Pods of one version.
fn costs(
    spec: &SpreadSpec,
    (limits, seen): (&[Option<i32>], &SpreadSeen<'_>),
    version: &str,
    pods: &[&SpreadPod],
    plan: &mut SpreadPlan,
) {
    if !spec.target_kind.regards_costs() || seen.newest == Newest::Unknown {
        return;
    }
    let (many, is_newest) = (spec.subsets.len(), seen.newest.is(version));
    let mut set = |pod: &Arc<PodView>, cost: i32| {
        if pod.deletion_cost != cost {
            plan.costs.push((pod.clone(), cost));
        }
    };
    let mut subsets: Vec<Vec<&Arc<PodView>>> = vec![Vec::new(); many];
    for SpreadPod { pod, home } in pods.iter().filter(|pod| pod.pod.is_active()) {
        match home {
            Home::Subset(index) => subsets[*index].push(pod),
            Home::Nowhere => set(pod, cost::nowhere(many)),
            Home::Unknown => {}
        }
    }
    let subsets: Vec<Vec<&Arc<PodView>>> = subsets.into_iter().map(sorted).collect();
    if spec.needs_total() {
        let counts: Vec<i32> = subsets.iter().map(|pods| count(pods.iter())).collect();
        let order = cost::order_of_coming(spec, &counts, seen.total);
        for (index, (pods, order)) in subsets.iter().zip(order).enumerate() {
            let has: Vec<i32> = pods.iter().map(|pod| pod.deletion_cost).collect();
            for (pod, place) in pods.iter().zip(cost::settle(&order, &has, is_newest)) {
                set(pod, place.unwrap_or_else(|| cost::above(many, index, is_newest)));
            }
        }
        return;
    }
    for (index, pods) in subsets.iter().enumerate() {
        let most = limits[index].map_or(pods.len(), |max| usize::try_from(max).unwrap_or_default());
        let surplus = pods.len().saturating_sub(most);
        let (within, above) = (cost::within(many, index, is_newest), cost::above(many, index, is_newest));
        for (place, pod) in pods.iter().enumerate() {
            set(pod, if place < surplus { above } else { within });
        }
    }
}

/// Those that go first come first.
fn sorted(pods: Vec<&Arc<PodView>>) -> Vec<&Arc<PodView>> {
    let candidate = |pod: &Arc<PodView>| {
        let is_ready = pod.condition_is_true("Ready");
        Candidate {
            name: pod.name().to_owned(),
            labels: pod.labels.clone(),
            node: pod.node_name.as_str().to_owned(),
            phase: Phase::of(&pod.phase),
            available: is_ready,
            ready: is_ready,
            ready_since: pod.ready_since,
            restarts: pod.restarts(),
            created: pod.created,
            deletion_cost: pod.deletion_cost,
        }
    };
    let mut candidates: Vec<Candidate> = pods.iter().map(|pod| candidate(pod)).collect();
    sort_for_deletion(&mut candidates, &[]);
    let by_name: BTreeMap<&str, &Arc<PodView>> = pods.iter().map(|pod| (pod.name(), *pod)).collect();
    candidates.iter().filter_map(|candidate| by_name.get(candidate.name.as_str()).copied()).collect()
}
