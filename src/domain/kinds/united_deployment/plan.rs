//! What has to be done for a UnitedDeployment now: pure, from what was observed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde_json::Value;

use super::{
    child::ChildSeen,
    make::{self, Controls},
    pods::SubsetPods,
    schedule::{self, Places},
    spec::{ChildKind, SubsetSpec, UnitedSpec, pointer},
    waves::{self, DeploymentTurn, WaveDeployment, WaveSubset},
};
use crate::{
    api::apps::united_deployment::UnitedDeploymentStatus,
    domain::workload::{
        allocation::{AllocationMode, AllocationSubset, allocate},
        numbering::{Ordinals, Reserved},
        owner::OwnerRef,
    },
    k8s::{invalid::Invalid, time::Now},
};

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
    let decided = decide(spec, seen, &chosen, &mut plan);
    for subset in &spec.subsets {
        if let Err(Invalid(why)) = step(spec, seen, subset, &chosen, decided.get(&*subset.name), &mut plan) {
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
            below_ready: child.filter(|_| spec.is_adaptive()).map_or(0, |child| below_ready(child)),
            reserved: child.map_or(0, |child| child.pods.reserved.saturating_add(missing)),
            is_schedulable: places.is_none_or(|places| places.is_schedulable),
            is_on_trial,
        }
    };
    spec.subsets.iter().map(one).collect()
}

/// A workload of a subset, as the budget of the whole sees it.
#[derive(Clone, Copy)]
struct SubsetWorkload<'a> {
    subset: &'a SubsetSpec,
    /// None: it is still to be created.
    child: Option<&'a ChildSeen>,
    /// How many Pods it is to have.
    replicas: i32,
    /// How many of them stay on old revisions, as the user says.
    kept: i32,
    /// Unschedulable Pods that use up no budget: other workloads replace them, and the replacements count as down until they are
    /// available.
    compensated: i32,
}

impl SubsetWorkload<'_> {
    /// How many of its Pods are down only because they find no place.
    fn unschedulable(&self, spec: &UnitedSpec) -> i32 {
        let pods = self.child.filter(|_| spec.mode == AllocationMode::Reserving).map(|child| &child.pods);
        pods.map_or(0, |pods| pods.reserved_down.min(self.replicas.saturating_sub(pods.ready)).max(0))
    }
}

/// What the budget of the whole allows a workload; without a budget nothing is said.
#[derive(Clone, Copy, Default)]
struct Allowed {
    /// How many Pods stay on old revisions for now.
    partition: Option<i32>,
    /// Whether a Deployment rolls.
    turn: Option<DeploymentTurn>,
}

/// What is decided for the workload of a subset.
struct Decided {
    controls: Controls,
    /// Otherwise it keeps its template for now.
    may_roll: bool,
}

/// What is written into the workload of each subset.
fn decide(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    chosen: &BTreeMap<&str, &ChildSeen>,
    plan: &mut UnitedPlan,
) -> BTreeMap<String, Decided> {
    let total: i64 = plan.replicas.values().copied().map(i64::from).sum();
    // What is held takes no Pod out of service, and would never be done.
    let budget = spec.budget_of(i32::try_from(total).unwrap_or(i32::MAX)).filter(|_| spec.template.holds().is_none());
    let workloads = workloads(spec, chosen, &plan.replicas);
    let has_partition = spec.template.kind.partition_pointer().is_some();
    plan.is_held = has_partition && workloads.iter().any(|workload| workload.kept > 0);
    let allowed = match budget {
        Some(budget) => allowed(spec, seen, budget, &workloads, &duplicate_workloads(spec, seen, chosen)),
        None => vec![Allowed::default(); workloads.len()],
    };
    let mut all = BTreeMap::new();
    for (workload, allowed) in workloads.iter().zip(allowed) {
        let name = &workload.subset.name;
        let decided = controls(spec, workload, allowed);
        let partition = decided.controls.partition;
        if !decided.may_roll || partition > workload.kept {
            plan.wait.get_or_insert_with(|| {
                let budget = budget.unwrap_or_default();
                ("WaitsForBudget", format!("subset {name} is updated when the budget of {budget} Pods has room"))
            });
        }
        plan.partitions.insert(name.clone(), if has_partition { partition } else { 0 });
        all.insert(name.clone(), decided);
    }
    all
}

/// The workloads that the subsets have or get, in the order of the subsets.
fn workloads<'a>(
    spec: &'a UnitedSpec,
    chosen: &BTreeMap<&str, &'a ChildSeen>,
    replicas: &BTreeMap<String, i32>,
) -> Vec<SubsetWorkload<'a>> {
    let one = |subset: &'a SubsetSpec| {
        let replicas = replicas.get(&subset.name).copied().unwrap_or(0);
        let kept = spec.partitions.get(&subset.name).copied().unwrap_or(0).clamp(0, replicas);
        SubsetWorkload { subset, child: chosen.get(&*subset.name).copied(), replicas, kept, compensated: 0 }
    };
    let mut all: Vec<SubsetWorkload<'_>> = spec.subsets.iter().map(one).collect();
    let mut left = substitutes(spec, &all);
    for workload in &mut all {
        workload.compensated = workload.unschedulable(spec).min(left);
        left -= workload.compensated;
    }
    all
}

/// How many Pods workloads have been asked to have in the place of unschedulable ones. Where all other subsets are full, or there
/// are none, nobody makes up for them.
fn substitutes(spec: &UnitedSpec, workloads: &[SubsetWorkload<'_>]) -> i32 {
    let asked = |workload: &SubsetWorkload<'_>| {
        let child = workload.child.filter(|child| !child.is_deleting);
        child.map_or(0, |child| i64::from(child.replicas().min(workload.replicas)))
    };
    let asked: i64 = workloads.iter().map(asked).sum();
    let more = asked - spec.replicas.map_or(asked, i64::from);
    i32::try_from(more.max(0)).unwrap_or(i32::MAX)
}

/// What the budget allows each of `workloads`. What duplicates have out of service counts, behind all others; they are not written
/// any more.
fn allowed(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    budget: i32,
    workloads: &[SubsetWorkload<'_>],
    duplicates: &[SubsetWorkload<'_>],
) -> Vec<Allowed> {
    if spec.template.kind.partition_pointer().is_some() {
        let mut subsets: Vec<WaveSubset> = workloads.iter().map(|workload| wave(spec, seen, workload)).collect();
        subsets.extend(duplicates.iter().map(|of| WaveSubset { is_unseen: false, ..wave(spec, seen, of) }));
        let partitions = waves::partitions(budget, &subsets).into_iter();
        return partitions.map(|partition| Allowed { partition: Some(partition), turn: None }).collect();
    }
    let mut deployments: Vec<WaveDeployment> = workloads.iter().map(|of| deployment(spec, seen, of)).collect();
    deployments.extend(duplicates.iter().map(|of| duplicate_deployment(spec, seen, of)));
    let turns = waves::turns(budget, &deployments).into_iter();
    turns.map(|turn| Allowed { partition: None, turn: Some(turn) }).collect()
}

/// What is written into one workload.
fn controls(spec: &UnitedSpec, workload: &SubsetWorkload<'_>, allowed: Allowed) -> Decided {
    let SubsetWorkload { child, replicas, kept, .. } = *workload;
    let partition = allowed.partition.map_or(kept, |partition| partition.clamp(kept, replicas));
    let may_roll = allowed.turn != Some(DeploymentTurn::Waits);
    let limit = match may_roll {
        true => limit(spec, workload, allowed.turn),
        // It may be in the middle of an older roll-out.
        false => child.and_then(ChildSeen::noted_limit),
    };
    Decided { controls: Controls { replicas, partition, limit }, may_roll }
}

/// The maxUnavailable of a workload, where that of the template does not do.
fn limit(spec: &UnitedSpec, workload: &SubsetWorkload<'_>, turn: Option<DeploymentTurn>) -> Option<i32> {
    let own = spec.template.limit(workload.replicas);
    let unschedulable = workload.unschedulable(spec);
    let (limit, more) = match turn {
        Some(DeploymentTurn::Rolls(limit)) => (limit, workload.compensated),
        // Where there is a budget, the partition keeps it.
        Some(DeploymentTurn::Waits) | None => (own, unschedulable),
    };
    match unschedulable {
        0 => Some(limit).filter(|limit| *limit < own),
        _ => Some(with_unschedulable(limit, more, workload.replicas)),
    }
}

/// Unschedulable Pods would use up maxUnavailable, also after their update, and no other one would be updated: the limit of the
/// template is for the others. Never nothing.
fn with_unschedulable(limit: i32, unschedulable: i32, replicas: i32) -> i32 {
    limit.saturating_add(unschedulable).clamp(1, replicas.max(1))
}

fn wave(spec: &UnitedSpec, seen: UnitedSeen<'_>, workload: &SubsetWorkload<'_>) -> WaveSubset {
    let SubsetWorkload { subset, child, replicas, kept, compensated } = *workload;
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
        permitted_before: if is_on_update { 0 } else { permitted_before(child, replicas, compensated) },
        available: child.pods.available.saturating_add(compensated).min(replicas),
        updated_available: if is_on_update { updated_available(child, compensated) } else { 0 },
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

/// How many replicas of a StatefulSet are not ready and go only after a ready one, for the highest ordinal goes first. Zero if
/// they are more than the ready ones: then it is better that all are made elsewhere.
fn below_ready(child: &ChildSeen) -> i32 {
    let ready = child.pods.ready;
    if ready == 0 || !child.kind.is_some_and(ChildKind::has_ordinals) {
        return 0;
    }
    // Somebody else may have asked it for fewer than it has: those count like the others.
    let kept = match ordinals(child, i32::MAX) {
        Some(ordinals) => {
            let there = child.pods.ready_ordinals.iter().filter(|ordinal| ordinals.contains(**ordinal));
            there.max().map_or(0, |last| ordinals.place(*last).saturating_add(1))
        }
        None => child.replicas(),
    };
    let below = kept.saturating_sub(ready).max(0);
    if below > ready { 0 } else { below }
}

/// The ordinals of a StatefulSet with so many replicas. None: which ones are reserved cannot be read.
fn ordinals(child: &ChildSeen, replicas: i32) -> Option<Ordinals> {
    let spec = child.spec()?;
    let start = pointer(spec, "/ordinals/start").and_then(Value::as_i64).unwrap_or(0);
    let entries = pointer(spec, "/reserveOrdinals").filter(|entries| !entries.is_null());
    let entries = entries.map(Vec::<IntOrString>::deserialize).transpose().ok()?.unwrap_or_default();
    Some(Ordinals::new(replicas, i32::try_from(start).unwrap_or(0), &Reserved::parse(&entries).ok()?))
}

/// The places of the available Pods of a StatefulSet among all its Pods: a partition counts those, and some ordinals may be
/// reserved. None: which ones cannot be read.
fn available_places(child: &ChildSeen, replicas: i32) -> Option<BTreeSet<i32>> {
    let ordinals = ordinals(child, replicas)?;
    // By the Pods that are there: a user may ask for two billion.
    let wanted = child.pods.available_ordinals.iter().filter(|ordinal| ordinals.contains(**ordinal));
    Some(wanted.map(|ordinal| ordinals.place(*ordinal)).collect())
}

fn deployment(spec: &UnitedSpec, seen: UnitedSeen<'_>, workload: &SubsetWorkload<'_>) -> WaveDeployment {
    let SubsetWorkload { subset, child, replicas, compensated, .. } = *workload;
    let unschedulable = workload.unschedulable(spec);
    // Where new Pods find no place none comes before an old one goes, whatever surge the template asks for.
    let least = i32::from(child.is_some_and(|child| child.pods.updated_unplaced > 0));
    // What is not compensated uses up its own limit, but no more than the budget.
    let limit = spec.template.limit(replicas).max(least).saturating_add(unschedulable - compensated);
    let Some(child) = child else {
        // Its Pods are down, and nothing of it rolls: one that cannot be made holds up the others by what it lacks alone.
        let updated_available = replicas;
        return WaveDeployment { replicas, updated_available, is_on_update: true, limit, ..WaveDeployment::default() };
    };
    let written = child.noted_limit().unwrap_or_else(|| spec.template.limit(child.replicas()));
    let surge = child.pods.there.saturating_sub(replicas).max(0);
    let unplaced = |all: i32| all.saturating_sub(surge).saturating_sub(compensated).max(0);
    WaveDeployment {
        replicas,
        available: child.pods.available.saturating_add(compensated).min(replicas),
        // Whether others make up for a Pod or not, it is updated, and nobody knows when it finds a place.
        updated_available: updated_available(child, unschedulable),
        is_on_update: child.is_for(seen.update, subset),
        rolls_before: !child.is_for(seen.update, subset) && child.pods.available > child.own_available(),
        limit,
        permitted: written.saturating_sub(compensated).max(0),
        unplaced: Some(child.pods.updated_unplaced).filter(|unplaced| *unplaced > 0).map(unplaced),
        is_unseen: !child.is_deleting && !child.is_observed(),
    }
}

/// Further workloads of a subset that serve, see [`remove`].
fn duplicate_workloads<'a>(
    spec: &'a UnitedSpec,
    seen: UnitedSeen<'a>,
    chosen: &BTreeMap<&str, &ChildSeen>,
) -> Vec<SubsetWorkload<'a>> {
    let is_duplicate = |child: &&ChildSeen| {
        let serves = child.kind == Some(spec.template.kind) && !child.is_deleting && child.pods.ready > 0;
        serves && chosen.get(&*child.subset).is_some_and(|chosen| chosen.uid != child.uid)
    };
    let one = |child: &'a ChildSeen| {
        let subset = spec.subsets.iter().find(|subset| subset.name == child.subset)?;
        let replicas = child.replicas().max(0);
        let kept = child.partition().min(replicas);
        let duplicate = SubsetWorkload { subset, child: Some(child), replicas, kept, compensated: 0 };
        Some(SubsetWorkload { compensated: duplicate.unschedulable(spec), ..duplicate })
    };
    seen.children.iter().filter(is_duplicate).filter_map(one).collect()
}

fn duplicate_deployment(spec: &UnitedSpec, seen: UnitedSeen<'_>, workload: &SubsetWorkload<'_>) -> WaveDeployment {
    let duplicate = deployment(spec, seen, workload);
    let available = if duplicate.is_on_update { duplicate.updated_available } else { duplicate.available };
    // Down as far as it is, it has no turn, and nobody waits until it has rolled.
    WaveDeployment {
        available,
        is_on_update: true,
        updated_available: workload.replicas,
        rolls_before: false,
        ..duplicate
    }
}

/// Pods that its template of an older revision or patch permits a workload to take, and that have not come back on it.
fn permitted_before(child: &ChildSeen, replicas: i32, compensated: i32) -> i32 {
    let through = child.own_available().saturating_add(compensated);
    child.replicas().saturating_sub(child.partition()).saturating_sub(through).clamp(0, replicas.max(0))
}

/// Pods on the new revision that a roll-out does not wait for any more: available ones, and so many at most that find no place.
fn updated_available(child: &ChildSeen, unschedulable: i32) -> i32 {
    let unschedulable = child.pods.updated_reserved_down.min(unschedulable);
    let others = child.not_on_template(child.pods.updated);
    child.pods.updated_available.saturating_add(unschedulable).saturating_sub(others).min(child.updated()).max(0)
}

/// Creates or changes the workload of a subset.
fn step(
    spec: &UnitedSpec,
    seen: UnitedSeen<'_>,
    subset: &SubsetSpec,
    chosen: &BTreeMap<&str, &ChildSeen>,
    decided: Option<&Decided>,
    plan: &mut UnitedPlan,
) -> Result<(), Invalid> {
    let Some(Decided { controls, may_roll }) = decided else { return Ok(()) };
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
