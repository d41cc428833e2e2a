//! What is promised of UnitedDeployments, in plain terms.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::cloud::{
    HISTORY, Mode, PODS, PassSeen, REVISIONS, Seen, UNITED, Wanted, WorkloadKnown, is_available, is_deleting,
    is_marked, is_ready, number, partition, subset_of, text, workload_of, workloads,
};
use crate::{
    api::labels,
    domain::kinds::united_deployment::spec::ChildKind,
    liveness::{Acts, Model},
};

#[derive(Default)]
pub(super) struct Promises {
    /// The generation at which it has come to rest. Whoever looks again then has something to do for a moment.
    rested: Option<i64>,
    pub(super) acts: Acts,
}

type Objects = BTreeMap<String, Arc<Value>>;

/// The workloads of the object with this UID.
fn own(objects: &Objects, uid: &str) -> Vec<(ChildKind, String, Arc<Value>)> {
    let is_own = |object: &Value| {
        let owner = &object["metadata"]["ownerReferences"][0];
        owner["uid"] == uid && owner["apiVersion"] == "apps.kruise.io/v1alpha1" && owner["kind"] == "UnitedDeployment"
    };
    workloads(objects).into_iter().filter(|(_, _, object)| is_own(object)).collect()
}

fn pods(objects: &Objects) -> impl Iterator<Item = (&String, &Arc<Value>)> {
    objects.range(PODS.to_owned()..).take_while(|(path, _)| path.starts_with(PODS))
}

/// What a workload is in a pass, beside its Pods: a status is not ours.
fn without_status(object: &Value) -> Value {
    let mut object = object.clone();
    object["status"] = Value::Null;
    object["metadata"]["resourceVersion"] = Value::Null;
    object
}

/// A Pod without the one label that may be written.
fn without_mark(pod: &Value) -> Value {
    let mut pod = without_status(pod);
    let mark = pod.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    mark.map(|labels| labels.remove(labels::RESERVED_POD));
    pod
}

impl Wanted {
    /// Whether a subset may get so many replicas. What is ready elsewhere stays there although a minimum is not met, if Pods
    /// move to where there is room.
    fn may_have(&self, name: &str, replicas: i64) -> bool {
        let Some(subset) = self.subset(name) else { return false };
        let open = i64::try_from(self.subsets.iter().filter(|subset| subset.fixed.is_none()).count()).unwrap();
        let fixed: i64 = self.subsets.iter().filter_map(|subset| subset.fixed).sum();
        match (self.mode, subset.fixed) {
            (Mode::Shares, Some(fixed)) => replicas == fixed,
            (Mode::Shares, None) => {
                let rest = self.total - fixed;
                replicas == rest / open || (rest % open > 0 && replicas == rest / open + 1)
            }
            _ => {
                let is_enough = self.subsets.iter().map(|subset| subset.min).sum::<i64>() <= self.total;
                let may_be_less = !is_enough || self.mode == Mode::Adaptive;
                replicas <= self.total.min(subset.max.unwrap_or(self.total)) && (may_be_less || replicas >= subset.min)
            }
        }
    }

    /// How all replicas are divided. For those that wait for a place there are others elsewhere.
    fn wrong_division(&self, replicas: &BTreeMap<String, i64>, waiting: i64) -> Option<String> {
        let sum: i64 = replicas.values().sum();
        let of = |name: &str| replicas.get(name).copied().unwrap_or_default();
        if sum - waiting != self.total {
            return Some(format!("{replicas:?} are {sum} and not {}, and {waiting} wait", self.total));
        }
        if let Some(subset) = self.subsets.iter().find(|subset| !self.may_have(subset.name, of(subset.name))) {
            return Some(format!("{replicas:?} with {subset:?}"));
        }
        if waiting == 0 && (self.mode == Mode::Bounds || self.mode == Mode::Reserving) {
            for (index, subset) in self.subsets.iter().enumerate() {
                let later = &self.subsets[index + 1..];
                let is_short = of(subset.name) < subset.min && later.iter().any(|later| of(later.name) > 0);
                let has_room = of(subset.name) < subset.max.unwrap_or(i64::MAX);
                if is_short || (has_room && later.iter().any(|later| of(later.name) > later.min)) {
                    return Some(format!("{replicas:?} are not in order: {:?}", self.subsets));
                }
            }
        }
        None
    }

    fn kept(&self, name: &str, replicas: i64) -> i64 {
        self.partitions.get(name).copied().unwrap_or_default().min(replicas)
    }
}

/// What a pass knew of the Pods of a workload.
fn known(pass: &PassSeen, uid: &str) -> (i64, i64) {
    let own = || pass.pods.iter().filter(|pod| pod.workload == uid);
    let count = |count: usize| i64::try_from(count).unwrap();
    (count(own().filter(|pod| pod.is_ready).count()), count(own().filter(|pod| pod.is_available).count()))
}

/// How many replicas a workload needs so that no Pod goes that was known to be Ready: of those with ordinals the highest goes
/// first. Where more would wait for that than are Ready, they are not kept.
fn needed(pass: &PassSeen, uid: &str) -> i64 {
    let ready = known(pass, uid).0;
    let pods = pass.pods.iter().filter(|pod| pod.workload == uid && pod.is_ready);
    let all = pods.filter_map(|pod| pod.ordinal).max().map_or(ready, |highest| highest + 1);
    if all > 2 * ready { ready } else { all }
}

/// A Pod that is not Ready, under a StatefulSet of `apps/v1`.
fn is_down_under_stateful_set(pod: &Value) -> bool {
    let owner = &pod["metadata"]["ownerReferences"][0];
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    (&owner["apiVersion"], &owner["kind"]) == (&"apps/v1".into(), &"StatefulSet".into())
        && !conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

impl Promises {
    fn pass(&mut self, pass: &PassSeen) -> Vec<String> {
        let mut wrongs = Vec::new();
        let (before, after) = (own(&pass.before, &pass.uid), own(&pass.after, &pass.uid));
        // What is not ours stays as it is.
        let is_ours = |path: &str, of: &[(ChildKind, String, Arc<Value>)]| of.iter().any(|(_, own, _)| own == path);
        for (path, object) in &pass.before {
            if path == UNITED || path.starts_with(REVISIONS) || is_ours(path, &before) {
                continue;
            }
            match pass.after.get(path) {
                Some(now) if Arc::ptr_eq(now, object) => {}
                // One of an old revision that holds up a StatefulSet.
                None if path.starts_with(PODS) && is_down_under_stateful_set(object) => {}
                None => wrongs.push(format!("{path} is deleted and is not ours")),
                Some(now)
                    if path.starts_with(PODS)
                        && without_mark(now) == without_mark(object)
                        && object["status"] == now["status"] => {}
                Some(now) if now != object => wrongs.push(format!("{path} has changed and is not ours: {now}")),
                Some(_) => {}
            }
        }
        let marked = |objects: &Objects| pods(objects).filter(|(_, pod)| is_marked(pod)).count();
        self.acts.add(
            "Pods marked as reserved",
            u64::try_from(marked(&pass.after).saturating_sub(marked(&pass.before))).unwrap(),
        );
        let Some(wanted) = &pass.wanted else { return wrongs };
        self.said(pass, wanted, &mut wrongs);
        self.note_ready_above(pass, wanted);
        for (kind, path, object) in &after {
            let old = pass.before.get(path);
            if old.is_some_and(|old| Arc::ptr_eq(old, object) || without_status(old) == without_status(object)) {
                continue;
            }
            if old.is_none() {
                self.acts.note("workloads made");
                let is_same = |(of, other_path, other): &&(ChildKind, String, Arc<Value>)| {
                    of == kind && other_path != path && subset_of(other) == subset_of(object) && !is_deleting(other)
                };
                if let Some((_, other, _)) = after.iter().find(is_same) {
                    wrongs.push(format!("{path} is made, and there is {other}"));
                }
            }
            self.written(pass, wanted, (*kind, object, old.map(AsRef::as_ref)), &mut wrongs);
        }
        for (kind, path, object) in &before {
            if !pass.after.contains_key(path) {
                self.deleted(pass, wanted, (*kind, object), &mut wrongs);
            }
        }
        wrongs
    }

    /// Whether Pods are known to be Ready above one that is not, in a subset without places.
    fn note_ready_above(&mut self, pass: &PassSeen, wanted: &Wanted) {
        let is_above = |workload: &WorkloadKnown| {
            wanted.mode == Mode::Adaptive
                && workload.kind == Some(wanted.kind)
                && pass.closed.contains(&workload.subset)
                && needed(pass, &workload.uid) > known(pass, &workload.uid).0
        };
        if pass.workloads.iter().any(is_above) {
            self.acts.note("passes with Ready Pods above one without a place");
        }
    }

    /// That it is Ready is said when the controllers of its workloads have told that they are through.
    fn said(&mut self, pass: &PassSeen, wanted: &Wanted, wrongs: &mut Vec<String>) {
        let is_ready = |status: &Value| {
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let status = |objects: &Objects| objects.get(UNITED).map(|united| united["status"].clone()).unwrap_or_default();
        let now = status(&pass.after);
        if !is_ready(&now) || now == status(&pass.before) {
            return;
        }
        self.acts.note("Ready said");
        let there = own(&pass.after, &pass.uid);
        let is_there = |known: &&WorkloadKnown| there.iter().any(|(_, _, of)| text(of, "/metadata/uid") == known.uid);
        for known in pass.workloads_then.iter().filter(is_there) {
            let is_through = match known.told {
                Some((replicas, kept, updated)) => wanted.is_paused || updated >= replicas - kept,
                None => false,
            };
            if !is_through {
                wrongs.push(format!("it is said to be Ready, and {known:?} is not through"));
            }
        }
    }

    /// A workload is made or changed.
    fn written(
        &mut self,
        pass: &PassSeen,
        wanted: &Wanted,
        (kind, object, old): (ChildKind, &Value, Option<&Value>),
        wrongs: &mut Vec<String>,
    ) {
        let (subset, replicas) = (subset_of(object), number(object, "/spec/replicas"));
        let mut wrong = |why: String| wrongs.push(format!("{} of {subset}: {why}", text(object, "/metadata/name")));
        if kind != wanted.kind || wanted.subset(subset).is_none() {
            wrong("it is written and is not wanted".into());
            return;
        }
        if !wanted.fits() {
            wrong("it is written although the numbers do not fit".into());
        }
        if !wanted.may_have(subset, replicas) {
            wrong(format!("it gets {replicas} replicas of {wanted:?}"));
        }
        let (partition, kept) = (partition(kind, &object["spec"]), wanted.kept(subset, replicas));
        if partition < kept || (wanted.budget.is_none() && partition != kept) || partition > replicas {
            wrong(format!("it gets the partition {partition} of {replicas}, and the user wants {kept}"));
        }
        let names = |old: &Value| (old["spec"]["selector"].clone(), old["metadata"]["ownerReferences"].clone());
        if old.is_some_and(|old| names(old) != names(object)) {
            wrong("its selector or its owner has changed".into());
        }
        if wanted.mode != Mode::Adaptive {
            return;
        }
        // No Ready Pod goes because of a verdict, nor because another subset has places again, while the total lasts.
        let of_wanted = || {
            pass.workloads
                .iter()
                .filter(|known| known.kind == Some(wanted.kind) && wanted.subset(&known.subset).is_some())
        };
        let of = |name: &str| of_wanted().filter(|known| known.subset == name).collect::<Vec<_>>();
        if wanted.subsets.iter().any(|subset| of(subset.name).len() > 1) {
            return;
        }
        let stays = |name: &str| {
            let subset = wanted.subset(name).unwrap();
            let least = of(name).first().map_or(0, |workload| needed(pass, &workload.uid));
            least.min(subset.max.unwrap_or(wanted.total).min(wanted.total)).max(subset.min)
        };
        let all: i64 = wanted.subsets.iter().map(|subset| stays(subset.name)).sum();
        if all <= wanted.total && replicas < stays(subset) {
            wrong(format!("it gets {replicas} replicas, and {} stay", stays(subset)));
        }
        if pass.closed.iter().any(|closed| closed == subset) {
            self.acts.note("subsets without places");
            if replicas > stays(subset) {
                wrong(format!("it gets {replicas} replicas where Pods find no place, and {} stay", stays(subset)));
            }
        }
    }

    /// A workload is deleted: a second one, or one of which the others have the Pods.
    fn deleted(
        &mut self,
        pass: &PassSeen,
        wanted: &Wanted,
        (kind, object): (ChildKind, &Value),
        wrongs: &mut Vec<String>,
    ) {
        let (subset, uid) = (subset_of(object), text(object, "/metadata/uid"));
        let is_wanted = kind == wanted.kind && wanted.subset(subset).is_some();
        let others: Vec<_> = pass
            .workloads
            .iter()
            .filter(|other| {
                other.uid != uid
                    && !other.is_deleting
                    && other.kind == Some(wanted.kind)
                    && wanted.subset(&other.subset).is_some()
            })
            .collect();
        let is_same = |other: &&WorkloadKnown| other.uid != uid && other.kind == Some(kind) && other.subset == subset;
        let is_second = is_wanted && pass.workloads.iter().any(|other| is_same(&other));
        if is_wanted && !is_second {
            wrongs.push(format!("{} of {subset} is deleted, and it is the only one", text(object, "/metadata/name")));
        }
        // What it did not know yet it may have read, or the answers to its writes have told it.
        let there = own(&pass.before, &pass.uid).into_iter().filter(|(of, _, other)| {
            let of_wanted = *of == wanted.kind && wanted.subset(subset_of(other)).is_some();
            of_wanted && !is_deleting(other) && text(other, "/metadata/uid") != uid
        });
        let there: Vec<_> = there.map(|(_, _, other)| text(&other, "/metadata/uid").to_owned()).collect();
        let is_up = |pod: &Value| {
            there.iter().any(|uid| uid == workload_of(pod)) && is_available(pod, wanted.min_ready, pass.now)
        };
        let up = i64::try_from(pods(&pass.before).filter(|(_, pod)| is_up(pod)).count()).unwrap();
        let available = others.iter().map(|other| known(pass, &other.uid).1).sum::<i64>().max(up);
        let is_empty = known(pass, uid).0 == 0 && number(object, "/status/replicas") == 0;
        if !is_second && available < wanted.total && !is_empty {
            wrongs.push(format!(
                "{} of {subset} is deleted while the others have {available} of {} Pods",
                text(object, "/metadata/name"),
                wanted.total
            ));
        }
        if !is_second {
            self.acts.note("workloads deleted when they were replaced");
        }
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = seen.pass.as_ref().map(|pass| self.pass(pass)).unwrap_or_default();
        if let Some(budget) = seen.budget {
            if seen.in_flight > budget {
                wrongs
                    .push(format!("roll-outs have {} Pods out of service, and the budget is {budget}", seen.in_flight));
            }
            if seen.in_flight == budget {
                self.acts.note("budgets used up");
            }
        }
        if seen.is_quiet && self.missing(seen).is_empty() {
            let generation = seen.objects.get(UNITED).map(|united| number(united, "/metadata/generation"));
            if self.rested != generation && seen.wanted.total == 0 {
                self.acts.note("at rest without Pods");
            }
            self.rested = generation;
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let generation = seen.objects.get(UNITED).map(|united| number(united, "/metadata/generation"));
        if !seen.is_quiet && self.rested != generation {
            return vec!["there is something to do".into()];
        }
        let mut missing = Vec::new();
        let (wanted, now) = (&seen.wanted, seen.now);
        let Some(united) = seen.objects.get(UNITED) else { return vec!["there is no object".into()] };
        let status = &united["status"];
        if text(united, "/metadata/uid") != seen.uid || status["observedGeneration"] != united["metadata"]["generation"]
        {
            return vec!["the status is of another generation".into()];
        }
        let all = own(&seen.objects, &seen.uid);
        let mut replicas = BTreeMap::new();
        let update = text(status, "/updateStatus/updatedRevision");
        let (mut counts, mut all_waiting) = ([0; 4], 0);
        for (kind, path, object) in &all {
            let subset = subset_of(object).to_owned();
            let Some(of) = wanted.subset(&subset).filter(|_| *kind == wanted.kind && !is_deleting(object)) else {
                missing.push(format!("{path} of {subset} is there and not wanted"));
                continue;
            };
            let (asked, uid) = (number(object, "/spec/replicas"), text(object, "/metadata/uid"));
            if replicas.insert(subset.clone(), asked).is_some() {
                missing.push(format!("{path} is a second one of {subset}"));
            }
            let labels = &object["metadata"]["labels"];
            let template = &object["spec"]["template"];
            let patch = template["metadata"]["annotations"]["patched"].as_str().and_then(|text| text.parse().ok());
            let zone = text(
                template,
                "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/values/0",
            );
            if text(template, "/spec/containers/0/image") != wanted.image
                || labels[labels::UNITED_REVISION] != update
                || labels[labels::SUBSET_NAME] != *subset
                || template["metadata"]["labels"][labels::UNITED_REVISION] != update
                || patch != of.patch
                || zone != subset
            {
                missing.push(format!("{path} of {subset} has not the template that is wanted: {template}"));
            }
            let own: Vec<&Arc<Value>> =
                pods(&seen.objects).map(|(_, pod)| pod).filter(|pod| workload_of(pod) == uid).collect();
            let count = |is: &dyn Fn(&Value) -> bool| i64::try_from(own.iter().filter(|pod| is(pod)).count()).unwrap();
            // Where there is no room Pods may wait for ever.
            let may_wait = wanted.mode == Mode::Reserving && seen.closed.contains(subset.as_str());
            let waiting = if may_wait { count(&|pod| text(pod, "/spec/nodeName").is_empty()) } else { 0 };
            all_waiting += waiting;
            let kept = wanted.kept(&subset, asked);
            if partition(*kind, &object["spec"]) != kept {
                missing.push(format!(
                    "{path} of {subset} keeps {} Pods and not {kept}",
                    partition(*kind, &object["spec"])
                ));
            }
            if wanted.budget.is_none()
                && waiting == 0
                && object["metadata"]["annotations"].get(labels::SUBSET_MAX_UNAVAILABLE).is_some()
            {
                missing.push(format!("{path} of {subset} still has a limit of ours"));
            }
            let is_updated = |pod: &Value| pod["metadata"]["labels"][labels::UNITED_REVISION] == update;
            let up = count(&|pod| is_available(pod, wanted.min_ready, now));
            let is_behind = !wanted.is_paused && count(&is_updated) < asked - kept;
            if (count(&|_| true), up) != (asked, asked - waiting) || is_behind {
                missing.push(format!(
                    "of {asked} Pods of {subset} {} are there and {up} available, {} updated, {waiting} wait",
                    own.len(),
                    count(&is_updated)
                ));
            }
            // Without reservation nobody reads the mark.
            if wanted.mode == Mode::Reserving && count(&is_marked) != waiting {
                missing.push(format!("of {subset} {} Pods are marked, and {waiting} wait", count(&is_marked)));
            }
            let these = [
                count(&|_| true) - waiting,
                count(&is_ready),
                count(&is_updated),
                count(&|pod| is_updated(pod) && is_ready(pod)),
            ];
            counts.iter_mut().zip(these).for_each(|(sum, count)| *sum += count);
            self.missing_of_subset(status, &subset, (asked, these[1], kept, waiting), &mut missing);
        }
        missing.extend(wanted.wrong_division(&replicas, all_waiting));
        let keys = ["replicas", "readyReplicas", "updatedReplicas", "updatedReadyReplicas"];
        for (key, count) in keys.into_iter().zip(counts) {
            if status[key] != count {
                missing.push(format!("{key} is {} and not {count}", status[key]));
            }
        }
        if number(status, "/reservedPods") != all_waiting {
            missing.push(format!("there are reserved Pods: {}, and {all_waiting} wait", status["reservedPods"]));
        }
        let names: Vec<&str> =
            status["subsetStatuses"].as_array().into_iter().flatten().map(|subset| text(subset, "/name")).collect();
        if names != wanted.subsets.iter().map(|subset| subset.name).collect::<Vec<_>>() {
            missing.push(format!("the status is of {names:?}"));
        }
        self.missing_of_conditions(wanted, status, (update, all_waiting > 0), &mut missing);
        self.missing_of_revisions(seen, update, &mut missing);
        missing
    }
}

impl Promises {
    fn missing_of_subset(
        &self,
        status: &Value,
        subset: &str,
        (asked, ready, kept, waiting): (i64, i64, i64, i64),
        missing: &mut Vec<String>,
    ) {
        let of = status["subsetStatuses"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|of| of["name"] == subset)
            .cloned()
            .unwrap_or_default();
        let told = (
            number(&of, "/replicas"),
            number(&of, "/readyReplicas"),
            number(&of, "/partition"),
            number(&of, "/reservedPods"),
        );
        let wants = (asked - waiting, ready, kept, waiting);
        if told != wants || number(status, &format!("/subsetReplicas/{subset}")) != asked {
            missing.push(format!("{subset} has {asked} Pods, {ready} ready, {kept} kept, and the status says {of}"));
        }
        let is_false = |condition: &&Value| condition["type"] == "Schedulable" && condition["status"] == "False";
        match of["conditions"].as_array().into_iter().flatten().find(is_false) {
            Some(condition) if waiting == 0 => {
                missing.push(format!("{subset} is still without places: {condition}"));
            }
            None if waiting > 0 => missing.push(format!("{subset} is said to have places")),
            _ => {}
        }
    }

    fn missing_of_conditions(
        &self,
        wanted: &Wanted,
        status: &Value,
        (update, waits): (&str, bool),
        missing: &mut Vec<String>,
    ) {
        let condition = |type_: &str| {
            let all = status["conditions"].as_array().into_iter().flatten();
            all.filter(|condition| condition["type"] == type_).collect::<Vec<_>>()
        };
        let is_held = wanted.is_paused || wanted.partitions.values().any(|kept| *kept > 0);
        for (type_, wants) in [
            ("Ready", if waits { "False" } else { "True" }),
            ("Reconciling", if waits { "True" } else { "False" }),
            ("Stalled", "False"),
            ("SubsetProvisioned", "True"),
            ("SubsetUpdated", "True"),
            ("UnitedDeploymentUpdated", "True"),
        ] {
            let is_free = type_ == "UnitedDeploymentUpdated" && is_held;
            if !matches!(condition(type_)[..], [one] if one["status"] == wants || is_free) {
                missing.push(format!("{type_}: {:?}", condition(type_)));
            }
        }
        if !condition("SubsetFailure").is_empty() {
            missing.push(format!("something fails: {:?}", condition("SubsetFailure")));
        }
        if !is_held && text(status, "/currentRevision") != update {
            missing.push(format!("the current revision is {} and not {update}", status["currentRevision"]));
        }
    }

    /// Old revisions are kept up to the limit; those in use are none of them.
    fn missing_of_revisions(&self, seen: &Seen, update: &str, missing: &mut Vec<String>) {
        let own = seen.objects.range(REVISIONS.to_owned()..).take_while(|(path, _)| path.starts_with(REVISIONS));
        let own: Vec<&Value> = own
            .map(|(_, revision)| revision.as_ref())
            .filter(|revision| text(revision, "/metadata/ownerReferences/0/uid") == seen.uid)
            .collect();
        let newest = own.iter().max_by_key(|revision| number(revision, "/revision"));
        if newest.is_none_or(|newest| text(newest, "/metadata/name") != update) {
            missing.push(format!("the newest revision is not {update}"));
        }
        if own.len() > HISTORY + 2 {
            missing.push(format!("there are {} revisions", own.len()));
        }
    }
}
