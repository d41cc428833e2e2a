//! What has to be done for a UnitedDeployment now: pure, from what was observed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde_json::Value;

use super::{
    make::{self, Controls},
    pods::SubsetPods,
    schedule::{self, Places},
    spec::{ChildKind, SubsetSpec, UnitedSpec, pointer},
    waves::{self, DeploymentTurn, WaveDeployment, WaveSubset},
};
use crate::{
    api::{apps::united_deployment::UnitedDeploymentStatus, labels},
    domain::workload::{
        allocation::{AllocationMode, AllocationSubset, allocate},
        numbering::{Ordinals, Reserved},
        owner::OwnerRef,
    },
    k8s::{invalid::Invalid, time::Now},
};

/// The workload of a subset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildSeen {
    /// Its kind. None: of a kind that is not known, which does not happen.
    pub kind: Option<ChildKind>,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was read.
    pub version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The name of its subset.
    pub subset: String,
    /// It is being deleted.
    pub is_deleting: bool,
    /// `metadata.labels`, `metadata.annotations` and `spec`.
    pub object: Value,
    /// `status`.
    pub status: Value,
    /// Its Pods.
    pub pods: SubsetPods,
}

impl ChildSeen {
    fn spec(&self) -> Option<&serde_json::Map<String, Value>> {
        self.object.get("spec").and_then(Value::as_object)
    }

    /// How many Pods it is asked to have.
    pub fn replicas(&self) -> i32 {
        let replicas = self.spec().and_then(|spec| spec.get("replicas")).and_then(Value::as_i64);
        replicas.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1)
    }

    /// A count of its status.
    pub fn count(&self, key: &str) -> i32 {
        let count = self.status.get(key).and_then(Value::as_i64);
        count.and_then(|count| i32::try_from(count).ok()).unwrap_or(0)
    }

    /// Whether its status is about its spec as it is now.
    pub fn is_observed(&self) -> bool {
        self.status.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0) >= self.generation
    }

    /// How many Pods its own controller has on its template. A changed patch of the subset is no new revision of ours: by their
    /// label all Pods seem to be updated.
    pub fn updated(&self) -> i32 {
        if self.is_observed() { self.count("updatedReplicas") } else { 0 }
    }

    /// Pods that are available and on its template. Its status is not asked before it is about its spec: Pods that have just been
    /// made would look like old ones.
    fn own_available(&self) -> i32 {
        if !self.is_observed() {
            return self.pods.own_available;
        }
        let others = self.pods.available.saturating_sub(self.not_on_template(self.pods.there));
        self.pods.own_available.min(self.updated()).min(others).max(0)
    }

    /// Of so many Pods that look alike, those that are not on its template. Nothing but a number in its status tells the Pods of a
    /// Deployment apart: with a surge the old ones are available while the new ones are not.
    fn not_on_template(&self, pods: i32) -> i32 {
        let is_deployment = self.kind == Some(ChildKind::Deployment);
        if is_deployment { pods.saturating_sub(self.updated()).max(0) } else { 0 }
    }

    /// The number that we have written over the maxUnavailable of its template.
    fn noted_limit(&self) -> Option<i32> {
        let noted =
            self.object.pointer("/metadata/annotations").and_then(|all| all.get(labels::SUBSET_MAX_UNAVAILABLE));
        noted.and_then(Value::as_str).and_then(|noted| noted.parse().ok())
    }

    /// Its revision label.
    pub fn revision(&self) -> &str {
        let labels = self.object.pointer("/metadata/labels").and_then(|all| all.get(labels::UNITED_REVISION));
        labels.and_then(Value::as_str).unwrap_or_default()
    }

    fn partition(&self) -> i32 {
        let kind = self.kind.unwrap_or(ChildKind::Deployment);
        let partition = self.spec().map_or(0, |spec| make::partition(kind, spec));
        i32::try_from(partition).unwrap_or(i32::MAX).max(0)
    }

    /// Whether it has the label of its subset, by which people and tools find it.
    fn is_labelled(&self) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(|all| all.get(labels::SUBSET_NAME));
        labels.and_then(Value::as_str) == Some(&*self.subset)
    }

    /// Whether it was made for this revision and with this patch.
    pub(super) fn is_for(&self, revision: &str, subset: &SubsetSpec) -> bool {
        let patch = self.object.pointer("/metadata/annotations").and_then(|all| all.get(labels::SUBSET_PATCH));
        let patch = patch.and_then(Value::as_str).unwrap_or_default();
        let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
        self.revision() == revision
            && (patch == subset.patch_text
                || (!patch.is_empty() && parsed(patch).is_some() && parsed(patch) == subset.patch))
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum SubsetStep {
    /// Creates the workload of a subset.
    Create {
        /// The subset.
        subset: String,
        /// The object.
        body: Value,
    },
    /// Changes a workload.
    Change {
        /// The subset.
        subset: String,
        /// Name of the workload.
        name: String,
        /// Its UID.
        uid: String,
        /// The version that was looked at.
        version: String,
        /// The merge patch.
        patch: Value,
    },
    /// Deletes a workload.
    Delete {
        /// Whether its subset has another one.
        is_second: bool,
        /// Its kind.
        kind: ChildKind,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The version that was looked at.
        version: String,
    },
}

/// What is to be done, and what was found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitedPlan {
    /// What to do.
    pub steps: Vec<SubsetStep>,
    /// By subset: its replicas.
    pub replicas: BTreeMap<String, i32>,
    /// By subset: how many Pods it keeps on old revisions now.
    pub partitions: BTreeMap<String, i32>,
    /// By subset: whether Pods find a place.
    pub places: BTreeMap<String, Places>,
    /// The names of the workloads that the subsets have, by subset.
    pub chosen: BTreeMap<String, String>,
    /// When to look again at the latest.
    pub look: Option<Duration>,
    /// Why nothing can be done: somebody has to change the spec.
    pub impossible: Option<(&'static str, String)>,
    /// What is waited for.
    pub wait: Option<(&'static str, String)>,
    /// Whether the user's partitions keep Pods on old revisions.
    pub is_held: bool,
}

/// What was observed.
#[derive(Clone, Copy, Debug)]
pub struct UnitedSeen<'a> {
    /// The object.
    pub owner: &'a OwnerRef,
    /// Every workload that it controls.
    pub children: &'a [ChildSeen],
    /// Its status.
    pub recorded: &'a UnitedDeploymentStatus,
    /// The revision to get to.
    pub update: &'a str,
}

/// The workload of each subset: of several the one with the most ready Pods, then the oldest.
pub fn chosen<'a>(spec: &UnitedSpec, children: &'a [ChildSeen]) -> BTreeMap<&'a str, &'a ChildSeen> {
    let mut chosen: BTreeMap<&str, &ChildSeen> = BTreeMap::new();
    let rank = |child: &ChildSeen| (child.is_deleting, Reverse(child.pods.ready), child.created, child.name.clone());
    for child in children.iter().filter(|child| child.kind == Some(spec.template.kind)) {
        let entry = chosen.entry(&child.subset).or_insert(child);
        if rank(child) < rank(entry) {
            *entry = child;
        }
    }
    chosen.retain(|name, _| spec.subsets.iter().any(|subset| subset.name == *name));
    chosen
}

/// Decides.
pub fn plan(spec: &UnitedSpec, seen: UnitedSeen<'_>, now: Now) -> UnitedPlan {
    let mut plan = UnitedPlan::default();
    let chosen = chosen(spec, seen.children);
    plan.chosen = chosen.iter().map(|(subset, child)| ((*subset).to_owned(), child.name.clone())).collect();
    for subset in &spec.subsets {
        let none = SubsetPods::default();
        let (pods, replicas) = chosen.get(&*subset.name).map_or((&none, 0), |child| (&child.pods, child.replicas()));
        let places = schedule::places(spec, seen.recorded, &subset.name, pods, replicas, now);
        plan.look = [plan.look, places.look, pods.until_available].into_iter().flatten().min();
        plan.places.insert(subset.name.clone(), places);
    }
    let replicas = match allocate(spec.mode, spec.replicas, &subsets(spec, &chosen, &plan.places)) {
        Ok(replicas) => replicas,
        Err(error) => {
            plan.impossible = Some(("ReplicasDoNotFit", format!("spec.topology.subsets: {error}")));
            return plan;
        }
    };
    plan.replicas = spec.subsets.iter().map(|subset| subset.name.clone()).zip(replicas).collect();
    for (subset, places) in &mut plan.places {
        let current = chosen.get(&**subset).map_or(0, |child| child.replicas());
        let grows = plan.replicas.get(subset).is_some_and(|replicas| *replicas > current);
        if places.is_on_trial && places.is_schedulable && grows {
            schedule::mark_again(places, seen.recorded, subset, now);
        }
    }
    let controls = controls(spec, seen, &chosen, &mut plan);
    for subset in &spec.subsets {
        if let Err(Invalid(why)) = step(spec, seen, subset, &chosen, controls.get(&*subset.name), &mut plan) {
            plan.impossible.get_or_insert(("PatchDoesNotFit", why));
        }
    }
    remove(spec, seen, &chosen, &mut plan);
    plan
}

fn subsets(
    spec: &UnitedSpec,
    chosen: &BTreeMap<&str, &ChildSeen>,
    places: &BTreeMap<String, Places>,
) -> Vec<AllocationSubset> {
    let one = |subset: &SubsetSpec| {
        let child = chosen.get(&*subset.name);
        let places = places.get(&subset.name);
        let is_on_trial = places.is_some_and(|places| places.is_on_trial);
        let current = child.map_or(0, |child| child.replicas());
        // Pods that are still to be made in a subset on trial have not run either.
        let missing = child.filter(|_| is_on_trial).map_or(0, |child| current.saturating_sub(child.pods.there).max(0));
        AllocationSubset {
            name: subset.name.clone(),
            fixed: subset.fixed,
            min: subset.min,
            max: subset.max,
            current,
            ready: child.map_or(0, |child| child.pods.ready),
            reserved: child.map_or(0, |child| child.pods.reserved.saturating_add(missing)),
            is_schedulable: places.is_none_or(|places| places.is_schedulable),
            is_on_trial,
        }
    };
    spec.subsets.iter().map(one).collect()
}

/// What is written into each workload. None for a subset: its workload keeps its template for now.
fn controls(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    chosen: &BTreeMap<&str, &ChildSeen>,
    plan: &mut UnitedPlan,
) -> BTreeMap<String, (Controls, bool)> {
    let total: i64 = plan.replicas.values().copied().map(i64::from).sum();
    // What is held takes no Pod out of service, and would never be done.
    let budget = spec.budget_of(i32::try_from(total).unwrap_or(i32::MAX)).filter(|_| spec.template.holds().is_none());
    let kept =
        |subset: &SubsetSpec, replicas: i32| spec.partitions.get(&subset.name).copied().unwrap_or(0).clamp(0, replicas);
    let wanted: Vec<(&SubsetSpec, i32)> =
        spec.subsets.iter().map(|subset| (subset, plan.replicas.get(&subset.name).copied().unwrap_or(0))).collect();
    let has_partition = spec.template.kind.partition_pointer().is_some();
    plan.is_held = has_partition && wanted.iter().any(|(subset, replicas)| kept(subset, *replicas) > 0);
    let seconds = seconds(spec, seen, chosen);
    let made_up = made_up(spec, chosen, &wanted);
    let waves = budget.filter(|_| has_partition).map(|budget| {
        let mut subsets: Vec<WaveSubset> = wanted
            .iter()
            .zip(&made_up)
            .map(|((subset, replicas), made_up)| {
                let child = chosen.get(&*subset.name).copied();
                wave(spec, seen, subset, child, (*replicas, kept(subset, *replicas)), *made_up)
            })
            .collect();
        subsets.extend(seconds.iter().map(|(subset, child)| second_wave(spec, seen, subset, child)));
        waves::partitions(budget, &subsets)
    });
    let turns = budget.filter(|_| !has_partition).map(|budget| {
        let mut deployments: Vec<WaveDeployment> = wanted
            .iter()
            .zip(&made_up)
            .map(|((subset, replicas), made_up)| {
                deployment(spec, seen, subset, chosen.get(&*subset.name).copied(), *replicas, *made_up)
            })
            .collect();
        deployments.extend(seconds.iter().map(|(subset, child)| second_deployment(spec, seen, subset, child)));
        waves::turns(budget, &deployments)
    });
    let mut all = BTreeMap::new();
    for (index, (subset, replicas)) in wanted.into_iter().enumerate() {
        let child = chosen.get(&*subset.name).copied();
        let user = kept(subset, replicas);
        let partition = match &waves {
            Some(waves) => waves.get(index).copied().unwrap_or(user).clamp(user, replicas),
            None => user,
        };
        let own = spec.template.limit(replicas);
        let turn = turns.as_ref().and_then(|turns| turns.get(index));
        let may_roll = turn != Some(&DeploymentTurn::Waits);
        let placeless = placeless(spec, child, replicas);
        let (limit, more) = match turn {
            Some(DeploymentTurn::Rolls(limit)) => (*limit, made_up.get(index).copied().unwrap_or_default()),
            // Where there is a budget, the partition keeps it.
            Some(DeploymentTurn::Waits) | None => (own, placeless),
        };
        let limit = match placeless {
            // It may be in the middle of an older roll-out.
            _ if !may_roll => child.and_then(ChildSeen::noted_limit),
            0 => Some(limit).filter(|limit| *limit < own),
            _ => Some(with_placeless(limit, more, replicas)),
        };
        if !may_roll || partition > user {
            plan.wait.get_or_insert_with(|| {
                let budget = budget.unwrap_or_default();
                (
                    "WaitsForBudget",
                    format!("subset {} is updated when the budget of {budget} Pods has room", subset.name),
                )
            });
        }
        plan.partitions.insert(subset.name.clone(), if has_partition { partition } else { 0 });
        all.insert(subset.name.clone(), (Controls { replicas, partition, limit }, may_roll));
    }
    all
}

/// How many Pods of a subset are down only because they find no place.
fn placeless(spec: &UnitedSpec, child: Option<&ChildSeen>, replicas: i32) -> i32 {
    let pods = child.filter(|_| spec.mode == AllocationMode::Reserving).map(|child| &child.pods);
    pods.map_or(0, |pods| pods.reserved_down.min(replicas.saturating_sub(pods.ready)).max(0))
}

/// Of the Pods without a place of each subset, those that use up no budget: workloads have been asked to have others for them,
/// which count as down until they are available. Where all other subsets are full, or there are none, nobody makes up for them.
fn made_up(spec: &UnitedSpec, chosen: &BTreeMap<&str, &ChildSeen>, wanted: &[(&SubsetSpec, i32)]) -> Vec<i32> {
    let child = |subset: &SubsetSpec| chosen.get(&*subset.name).copied();
    let asked = |(subset, replicas): &(&SubsetSpec, i32)| {
        let child = child(subset).filter(|child| !child.is_deleting);
        child.map_or(0, |child| i64::from(child.replicas().min(*replicas)))
    };
    let asked: i64 = wanted.iter().map(asked).sum();
    let more = asked - spec.replicas.map_or(asked, i64::from);
    let mut left = i32::try_from(more.max(0)).unwrap_or(i32::MAX);
    let one = |(subset, replicas): &(&SubsetSpec, i32)| {
        let made_up = placeless(spec, child(subset), *replicas).min(left);
        left -= made_up;
        made_up
    };
    wanted.iter().map(one).collect()
}

/// Pods that find no place would use up maxUnavailable, also after their update, and no other one would be updated: the
/// limit of the template is for the others. Never nothing.
fn with_placeless(limit: i32, placeless: i32, replicas: i32) -> i32 {
    limit.saturating_add(placeless).clamp(1, replicas.max(1))
}

fn wave(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    subset: &SubsetSpec,
    child: Option<&ChildSeen>,
    (replicas, kept): (i32, i32),
    made_up: i32,
) -> WaveSubset {
    let Some(child) = child else {
        // It is made on the new revision, and its Pods are missing until they are there.
        return WaveSubset { replicas, kept, permitted: replicas - kept, ..WaveSubset::default() }.down_first();
    };
    let is_on_update = child.is_for(seen.update, subset);
    let permitted = if is_on_update { replicas.saturating_sub(child.partition()).clamp(0, replicas) } else { 0 };
    let subset = WaveSubset {
        replicas,
        kept,
        permitted,
        permitted_before: if is_on_update { 0 } else { permitted_before(child, replicas, made_up) },
        available: child.pods.available.saturating_add(made_up).min(replicas),
        updated_available: if is_on_update { updated_available(child, made_up) } else { 0 },
        is_unseen: is_on_update && !child.is_deleting && !child.is_observed(),
        ..WaveSubset::default()
    };
    let kind = spec.template.kind;
    if [Some(&spec.template.spec), child.spec()].into_iter().flatten().any(|spec| kind.has_own_order(spec)) {
        // Nobody knows whether what is down is what is updated.
        return subset;
    }
    if !kind.has_ordinals() {
        return subset.down_first();
    }
    let Some(available) = available_places(child, replicas) else { return subset };
    let boundary = replicas - permitted;
    let available_permitted = i32::try_from(available.range(boundary..).count()).unwrap_or(i32::MAX);
    let last_available = available.range(..boundary).next_back().copied().unwrap_or(-1);
    WaveSubset {
        down_permitted: (permitted - available_permitted).max(0),
        down_next: boundary - 1 - last_available,
        ..subset
    }
}

/// The places of the available Pods of a StatefulSet among all its Pods: a partition counts those, and some ordinals may be
/// reserved. None: which ones cannot be read.
fn available_places(child: &ChildSeen, replicas: i32) -> Option<BTreeSet<i32>> {
    let spec = child.spec()?;
    let start = pointer(spec, "/ordinals/start").and_then(Value::as_i64).unwrap_or(0);
    let entries = pointer(spec, "/reserveOrdinals").filter(|entries| !entries.is_null());
    let entries = entries.map(Vec::<IntOrString>::deserialize).transpose().ok()?.unwrap_or_default();
    let ordinals = Ordinals::new(replicas, i32::try_from(start).unwrap_or(0), &Reserved::parse(&entries).ok()?);
    // By the Pods that are there: a user may ask for two billion.
    let wanted = child.pods.available_ordinals.iter().filter(|ordinal| ordinals.contains(**ordinal));
    Some(wanted.map(|ordinal| ordinals.place(*ordinal)).collect())
}

fn deployment(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    subset: &SubsetSpec,
    child: Option<&ChildSeen>,
    replicas: i32,
    made_up: i32,
) -> WaveDeployment {
    // What is not made up for uses up its own limit, but no more than the budget.
    let limit = spec.template.limit(replicas).saturating_add(placeless(spec, child, replicas) - made_up);
    let Some(child) = child else {
        // As one that is rolling: the next one waits until its Pods are there.
        return WaveDeployment { replicas, is_on_update: true, limit, ..WaveDeployment::default() };
    };
    WaveDeployment {
        replicas,
        available: child.pods.available.saturating_add(made_up).min(replicas),
        updated_available: updated_available(child, made_up),
        is_on_update: child.is_for(seen.update, subset),
        rolls_before: !child.is_for(seen.update, subset) && child.pods.available > child.own_available(),
        limit,
    }
}

/// Second workloads of a subset that serve, see [`remove`]. What they have out of service counts, behind all others; they are not
/// written any more.
fn seconds<'a>(
    spec: &'a UnitedSpec,
    seen: UnitedSeen<'a>,
    chosen: &BTreeMap<&str, &ChildSeen>,
) -> Vec<(&'a SubsetSpec, &'a ChildSeen)> {
    let is_second = |child: &&ChildSeen| {
        let serves = child.kind == Some(spec.template.kind) && !child.is_deleting && child.pods.ready > 0;
        serves && chosen.get(&*child.subset).is_some_and(|chosen| chosen.uid != child.uid)
    };
    let with_subset = |child: &'a ChildSeen| Some((spec.subsets.iter().find(|of| of.name == child.subset)?, child));
    seen.children.iter().filter(is_second).filter_map(with_subset).collect()
}

fn second_wave(spec: &UnitedSpec, seen: UnitedSeen<'_>, subset: &SubsetSpec, child: &ChildSeen) -> WaveSubset {
    let replicas = child.replicas().max(0);
    let placeless = placeless(spec, Some(child), replicas);
    let wave = wave(spec, seen, subset, Some(child), (replicas, child.partition().min(replicas)), placeless);
    WaveSubset { is_unseen: false, ..wave }
}

fn second_deployment(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    subset: &SubsetSpec,
    child: &ChildSeen,
) -> WaveDeployment {
    let replicas = child.replicas().max(0);
    let second = deployment(spec, seen, subset, Some(child), replicas, placeless(spec, Some(child), replicas));
    let available = if second.is_on_update { second.updated_available } else { second.available };
    WaveDeployment { available, is_on_update: false, rolls_before: false, ..second }
}

/// Pods that its template of an older revision or patch permits a workload to take, and that have not come back on it.
fn permitted_before(child: &ChildSeen, replicas: i32, made_up: i32) -> i32 {
    let through = child.own_available().saturating_add(made_up);
    child.replicas().saturating_sub(child.partition()).saturating_sub(through).clamp(0, replicas.max(0))
}

/// Pods on the new revision that a roll-out does not wait for any more.
fn updated_available(child: &ChildSeen, made_up: i32) -> i32 {
    let placeless = child.pods.updated_reserved_down.min(made_up);
    let others = child.not_on_template(child.pods.updated);
    child.pods.updated_available.saturating_add(placeless).saturating_sub(others).min(child.updated()).max(0)
}

/// Creates or changes the workload of a subset.
fn step(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    subset: &SubsetSpec,
    chosen: &BTreeMap<&str, &ChildSeen>,
    controls: Option<&(Controls, bool)>,
    plan: &mut UnitedPlan,
) -> Result<(), Invalid> {
    let Some((controls, may_roll)) = controls else { return Ok(()) };
    let Some(child) = chosen.get(&*subset.name) else {
        let body = make::child(seen.owner, spec, subset, seen.update, *controls)?;
        plan.steps.push(SubsetStep::Create { subset: subset.name.clone(), body });
        return Ok(());
    };
    if child.is_deleting {
        plan.wait.get_or_insert_with(|| ("SubsetIsBeingDeleted", format!("{} is being deleted", child.name)));
        return Ok(());
    }
    let patch = match (child.is_for(seen.update, subset) && child.is_labelled()) || !may_roll {
        true => make::adjust(spec, *controls, &child.object),
        false => make::rewrite(spec, subset, seen.update, *controls, &child.object)?,
    };
    if let Some(patch) = patch {
        let (subset, name) = (subset.name.clone(), child.name.clone());
        let (uid, version) = (child.uid.clone(), child.version.clone());
        plan.steps.push(SubsetStep::Change { subset, name, uid, version, patch });
    }
    Ok(())
}

/// Workloads of subsets that are no more, of another kind, or second ones. What is in service goes only when those that stay
/// have all their Pods.
fn remove(spec: &UnitedSpec, seen: UnitedSeen<'_>, chosen: &BTreeMap<&str, &ChildSeen>, plan: &mut UnitedPlan) {
    let wanted: i64 = spec.replicas.map_or_else(|| plan.replicas.values().copied().map(i64::from).sum(), i64::from);
    // A subset that shrinks gives its Pods up, and those of a surge go again.
    let stays = |child: &&ChildSeen| {
        let planned = plan.replicas.get(&child.subset).copied().unwrap_or(0);
        i64::from(child.pods.available.min(planned).min(child.replicas()))
    };
    let there: i64 = chosen.values().map(stays).sum();
    for child in seen.children.iter().filter(|child| !child.is_deleting) {
        let Some(kind) = child.kind else { continue };
        if chosen.values().any(|chosen| chosen.uid == child.uid) {
            continue;
        }
        let is_second = chosen.contains_key(&*child.subset) && kind == spec.template.kind;
        // A second one was made by somebody else or by mistake: before it serves nobody needs it.
        let is_idle = child.pods.ready == 0 && (is_second || child.count("replicas") == 0);
        if is_idle || there >= wanted {
            let ChildSeen { name, uid, version, .. } = child.clone();
            plan.steps.push(SubsetStep::Delete { is_second, kind, name, uid, version });
        } else {
            let message =
                format!("{} goes when the other workloads have {wanted} available Pods; they have {there}", child.name);
            plan.wait.get_or_insert(("SubsetIsReplaced", message));
        }
    }
}
