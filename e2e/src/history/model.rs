//! What the manager may do: a plain model, which judges each event by what has happened before.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::seen::{Claim, Pod, Spec};
use super::{Acts, Event, Theirs};

struct Known {
    pod: Pod,
    /// It became ready since the manager last reported what is available: the manager may not have seen it.
    fresh: bool,
    /// Down by a fault.
    struck: bool,
    /// When the manager took it out of service for an update, while it is.
    held_since: Option<Timestamp>,
}

#[derive(Default)]
struct KnownClaim {
    claim: Claim,
    /// A Pod has had it.
    used: bool,
    /// Writes of the manager's status since no Pod has it.
    free_for: u32,
}

/// What is known of a CloneSet after so many events, and judges the next one.
#[derive(Default)]
pub(super) struct Model {
    specs: BTreeMap<i64, Spec>,
    observed: i64,
    pods: BTreeMap<String, Known>,
    claims: BTreeMap<String, KnownClaim>,
    theirs: Theirs,
    /// Pods that failed or that users deleted, until the manager has reported twice since that all is well: the first time
    /// it may not have seen them.
    failures: i64,
    /// Those of them that it has not reported about once.
    new_failures: i64,
    /// Instances whose Pods the manager did not delete.
    lost: BTreeSet<String>,
    /// Pods of new instances since the last status.
    new_instances: usize,
    /// `maxUnavailable` of the budget, by its generation; what is observed of it.
    budgets: BTreeMap<i64, i64>,
    budget_observed: i64,
    /// Numbers of Pods that were wanted, and until when.
    wanted: Vec<(Timestamp, i64)>,
    pub(super) acts: Acts,
}

/// How long a budget may go by an older number of wanted Pods.
const REPLICAS_LAG: SignedDuration = SignedDuration::from_secs(20);
/// How long a budget may not have counted an update. Updates do not ask: their feature gate is off by default.
const UPDATE_LAG: SignedDuration = SignedDuration::from_secs(6);

impl Model {
    /// Before anything has happened. `theirs` is what users are about to do.
    pub(super) fn of(theirs: Theirs) -> Self {
        Self { theirs, ..Self::default() }
    }

    /// Claims of Pods that the manager has deleted, which are there yet.
    pub(super) fn claims_left(&self) -> impl Iterator<Item = &Claim> {
        let there = self.claims.values().map(|known| &known.claim).filter(|claim| !claim.deleting);
        there.filter(move |claim| !self.has_pod(&claim.instance) && !self.lost.contains(&claim.instance))
    }

    /// Specs on which the manager may have acted.
    fn allowed(&self) -> impl Iterator<Item = &Spec> {
        self.specs.range(self.observed..).map(|(_, spec)| spec)
    }

    fn count(&self, fits: impl Fn(&Known) -> bool) -> i64 {
        self.pods.values().filter(|k| fits(k)).count() as i64
    }

    fn available(&self, at: Timestamp, min_ready: i64) -> i64 {
        self.count(|k| k.pod.available(at, min_ready))
    }

    /// For whichever spec.
    fn longest_ready(&self) -> i64 {
        self.allowed().map(|spec| spec.min_ready).max().unwrap_or_default()
    }

    fn has_pod(&self, instance: &str) -> bool {
        self.pods.values().any(|k| k.pod.instance == instance)
    }

    /// Takes note of an event: what is wrong about it.
    pub(super) fn event(&mut self, at: Timestamp, event: &Event) -> Vec<String> {
        let mut wrongs = Vec::new();
        match event {
            Event::CloneSet { generation, observed, spec, status, available } => {
                if let Some(before) = self.specs.values().next_back() {
                    self.wanted.push((at, before.replicas));
                }
                self.specs.insert(*generation, (**spec).clone());
                self.observed = self.observed.max(*observed);
                if *status {
                    self.reported(at, *available, &mut wrongs);
                }
            }
            Event::Gone(uid) => {
                // a Pod that nobody plays may go without a deletion timestamp
                if let Some(known) = self.pods.remove(uid)
                    && known.pod.active()
                {
                    self.deleted(at, &known, &mut wrongs);
                }
            }
            Event::Pod(uid, now) => {
                let before = self.pods.remove(uid);
                let now = (**now).clone();
                self.pods
                    .insert(uid.clone(), Known { pod: now.clone(), fresh: false, struck: false, held_since: None });
                match before {
                    None => self.created(&now, &mut wrongs),
                    Some(before) => {
                        let known = self.changed(at, before, &now, &mut wrongs);
                        self.pods.insert(uid.clone(), known);
                    }
                }
            }
            Event::Claim(uid, claim) => {
                let used = self.has_pod(&claim.instance);
                let known = self.claims.entry(uid.clone()).or_default();
                known.claim = claim.clone();
                known.used |= used;
            }
            Event::ClaimGone(uid) => drop(self.claims.remove(uid)),
            Event::Budget { generation, observed, most } => {
                self.budgets.insert(*generation, *most);
                self.budget_observed = self.budget_observed.max(*observed);
            }
            Event::BudgetGone => (self.budgets, self.budget_observed) = Default::default(),
        }
        wrongs
    }

    /// The manager has written its status.
    fn reported(&mut self, at: Timestamp, available: i64, wrongs: &mut Vec<String>) {
        let min_ready = self.longest_ready();
        if min_ready == 0 || self.available(at, min_ready) == available {
            for known in self.pods.values_mut() {
                known.fresh &= !known.pod.available(at, min_ready);
            }
        }
        if let Some(spec) = self.specs.values().next_back()
            && self.available(at, spec.min_ready) >= spec.replicas
        {
            self.failures = std::mem::take(&mut self.new_failures);
        }
        // Since the status before last there was a claim to be used, and another one was made.
        let reuses = self.allowed().all(|spec| spec.has_claims && spec.reuses_claims);
        let instances: BTreeSet<String> = self.pods.values().map(|k| k.pod.instance.clone()).collect();
        for known in self.claims.values_mut() {
            let free = known.used && !known.claim.deleting && reuses && !instances.contains(&known.claim.instance);
            if free && known.free_for >= 3 && self.new_instances > 0 {
                wrongs.push(format!("{} was not used again, although there are new Pods", known.claim.name));
            }
            known.free_for = if free { known.free_for + 1 } else { 0 };
        }
        self.new_instances = 0;
    }

    fn created(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        let active = |spec: &Spec| {
            self.count(|k| k.pod.active() && !(spec.excludes_waiting && k.pod.state == "PreparingDelete"))
        };
        let over = |spec: &Spec| active(spec) - spec.replicas - spec.max_surge;
        let over = self.allowed().map(over).min().unwrap_or_default();
        self.acts.created += 1;
        self.acts.created_at_limit += usize::from(over == 0);
        if over > 0 {
            wrongs.push(format!("{} was created, {over} more than are wanted", now.name));
        }
        if !self.allowed().all(|spec| spec.has_claims) {
            return;
        }
        let claim = self.claims.values_mut().find(|c| c.claim.instance == now.instance && !c.claim.deleting);
        let Some(claim) = claim else {
            wrongs.push(format!("{} was created without a claim", now.name));
            return;
        };
        let again = std::mem::replace(&mut claim.used, true);
        self.acts.claims_reused += usize::from(again);
        self.new_instances += usize::from(!again);
        if again && self.allowed().all(|spec| !spec.reuses_claims) {
            wrongs.push(format!("{} was given the claim of another Pod", now.name));
        }
    }

    /// An active Pod is deleted. `self.pods` holds it as it is now, or no longer.
    fn deleted(&mut self, at: Timestamp, before: &Known, wrongs: &mut Vec<String>) {
        if self.theirs.deleted.contains(&before.pod.name) {
            self.failed();
            self.lost.insert(before.pod.instance.clone());
            return;
        }
        if self.allowed().all(|spec| spec.before_delete.holds(&before.pod)) {
            wrongs.push(format!("{} was deleted while its hook held it: {:?}", before.pod.name, before.pod.tags));
        }
        self.judge_budget(at, before, wrongs);
        if before.pod.available(at, self.longest_ready()) {
            self.taken_down(at, before, wrongs);
        }
    }

    /// The manager has deleted a Pod, which a budget may have been there to keep.
    fn judge_budget(&mut self, at: Timestamp, before: &Known, wrongs: &mut Vec<String>) {
        // before it was observed nobody goes by it
        if self.budget_observed == 0 || before.fresh || !before.pod.serves() || before.pod.state == "Updating" {
            return;
        }
        let is_new = |k: &Known| k.held_since.is_some_and(|since| at.duration_since(since) < UPDATE_LAG);
        let up = self.count(|k| k.pod.serves() || (k.pod.active() && (k.struck || is_new(k)))) + self.failures;
        let now = self.specs.values().next_back().map(|spec| spec.replicas);
        let lately = self.wanted.iter().filter(|(until, _)| at.duration_since(*until) < REPLICAS_LAG);
        let fewest = lately.map(|(_, replicas)| *replicas).chain(now).min().unwrap_or_default();
        let most = self.budgets.range(self.budget_observed..).map(|(_, most)| *most).max().unwrap_or_default();
        let beyond = up - (fewest - most).max(0);
        self.acts.deleted_under_budget += 1;
        self.acts.deleted_at_budget += usize::from(beyond == 0);
        if beyond < 0 {
            wrongs.push(format!("{} was deleted, {} more than the budget lets go", before.pod.name, -beyond));
        }
    }

    /// `self.pods` holds the Pod as it is now.
    fn changed(&mut self, at: Timestamp, before: Known, now: &Pod, wrongs: &mut Vec<String>) -> Known {
        let min_ready = self.longest_ready();
        let (was, is) = (before.pod.available(at, min_ready), now.available(at, min_ready));
        let held_since = if now.in_service() { None } else { before.held_since.or(before.pod.serves().then_some(at)) };
        let mut known = Known { pod: now.clone(), fresh: before.fresh, struck: before.struck && !is, held_since };
        if now.ready.is_some() && now.in_service() && !(before.pod.ready.is_some() && before.pod.in_service()) {
            known.fresh = true;
        }
        if now.deleting && !before.pod.deleting && !now.ended {
            self.deleted(at, &before, wrongs);
        } else if was && !is && !now.in_service() {
            self.taken_down(at, &before, wrongs);
        } else if was && !is {
            known.struck = true;
        }
        if now.ended && !before.pod.ended {
            self.failed();
            self.lost.insert(now.instance.clone());
        }
        if !now.active() {
            return known;
        }
        if now.image != before.pod.image {
            self.moved(now, wrongs);
        }
        if before.pod.grace.is_some_and(|until| now.grace.is_none() && at < until) {
            wrongs.push(format!("the grace period of {} ended before {:?}", now.name, before.pod.grace));
        }
        let after_grace = before.pod.grace.is_some() && now.grace.is_none();
        self.acts.after_grace += usize::from(after_grace);
        if (now.image != before.pod.image || after_grace) && before.pod.gate {
            wrongs.push(format!("{} got another image while it was in service", now.name));
        }
        if now.marked && !before.pod.marked && !self.is_theirs(now) {
            self.marked(now, wrongs);
        }
        if now.state != before.pod.state {
            self.next_state(&before.pod, now, wrongs);
        }
        known
    }

    fn failed(&mut self) {
        self.failures += 1;
        self.new_failures += 1;
    }

    fn is_theirs(&self, pod: &Pod) -> bool {
        self.theirs.marked.contains(&pod.name) || self.allowed().any(|s| s.pods_to_delete.contains(&pod.name))
    }

    /// Hooks hold, until they are answered.
    fn next_state(&mut self, before: &Pod, now: &Pod, wrongs: &mut Vec<String>) {
        self.acts.held += usize::from(["PreparingUpdate", "PreparingDelete"].contains(&now.state.as_str()));
        let (from, to) = (before.state.as_str(), now.state.as_str());
        let is_wrong = |spec: &Spec| match (from, to) {
            ("PreparingNormal", "Normal") => !spec.before_normal.is_answered(before),
            ("PreparingUpdate" | "Updating" | "Updated", "Normal") => !spec.around_update.is_answered(before),
            (_, "Updating") => spec.around_update.holds(before),
            _ => false,
        };
        if self.allowed().all(is_wrong) {
            wrongs.push(format!("{} went from {from} to {to} past its hook: {:?}", now.name, before.tags));
        }
    }

    /// The manager has made an available Pod unavailable.
    fn taken_down(&mut self, at: Timestamp, before: &Known, wrongs: &mut Vec<String>) {
        if before.fresh {
            return;
        }
        let beyond = |spec: &Spec| {
            let up = self.count(|k| k.pod.available(at, spec.min_ready) || (k.struck && k.pod.active()));
            up + self.failures - (spec.replicas - spec.max_unavailable)
        };
        let beyond = self.allowed().map(beyond).max().unwrap_or_default();
        self.acts.taken_down += 1;
        self.acts.taken_down_at_limit += usize::from(beyond == 0);
        if beyond < 0 {
            wrongs.push(format!("{} was taken down, {} more than may be", before.pod.name, -beyond));
        }
    }

    /// The manager has moved a Pod to another image.
    fn moved(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        self.acts.updated_in_place += 1;
        let right = |spec: &Spec| {
            let old = self.count(|k| k.pod.active() && !k.pod.marked && k.pod.image != spec.image) + self.failures;
            now.image == spec.image && old >= spec.partition
        };
        if !self.allowed().any(right) {
            let specs: Vec<&Spec> = self.allowed().collect();
            wrongs.push(format!("{} was updated to {}, which breaks the partition of {specs:?}", now.name, now.image));
        }
    }

    /// The manager has marked a Pod so that another one takes its place.
    fn marked(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        self.acts.marked += 1;
        let right = |spec: &Spec| {
            let old = self.count(|k| k.pod.active() && !k.pod.marked && k.pod.image != spec.image) + self.failures;
            now.image != spec.image && old >= spec.partition
        };
        if !self.allowed().any(right) {
            let specs: Vec<&Spec> = self.allowed().collect();
            wrongs.push(format!(
                "{} ({}) is to be replaced, which breaks the partition of {specs:?}",
                now.name, now.image
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::seen::{HOOKS, Hook};
    use super::*;

    fn spec(replicas: i64, strategy: &Value) -> Spec {
        Spec::of(&json!({ "spec": { "replicas": replicas, "updateStrategy": strategy,
            "template": { "spec": { "containers": [{ "image": "v1" }] } } } }))
    }

    #[test]
    fn numbers_of_a_spec() {
        let of = |replicas, strategy: Value| {
            let s = spec(replicas, &strategy);
            (s.partition, s.max_unavailable, s.max_surge)
        };
        assert_eq!(of(10, json!({})), (0, 2, 0));
        assert_eq!(of(10, json!({ "maxUnavailable": "25%", "maxSurge": "15%" })), (0, 2, 2));
        assert_eq!(of(10, json!({ "maxUnavailable": "25%", "maxSurge": "15%", "paused": true })), (0, 3, 0));
        assert_eq!(of(8, json!({ "partition": "90%" })).0, 7);
        assert_eq!(of(8, json!({ "partition": "100%" })).0, 8);
        assert_eq!(of(5, json!({ "partition": "0.1%" })).0, 1);
        assert_eq!(of(3, json!({ "partition": 7 })).0, 3);
    }

    const START: i64 = 1_000_000;

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(START + seconds).unwrap()
    }

    fn up(name: &str, image: &str) -> Pod {
        Pod { name: name.into(), image: image.into(), ready: Some(second(0)), gate: true, ..Pod::default() }
    }

    fn status(generation: i64, spec: &Spec, available: i64) -> Event {
        Event::CloneSet { generation, observed: generation, spec: Box::new(spec.clone()), status: true, available }
    }

    fn pod(pod: Pod) -> Event {
        Event::Pod(pod.name.clone(), Box::new(pod))
    }

    /// Three Pods of image v1 that are up; the spec wants `image`.
    fn three(strategy: &Value, image: &str) -> Model {
        of_spec(Spec { image: image.into(), ..spec(3, strategy) })
    }

    /// Three Pods of image v1 that are up, with this spec.
    fn of_spec(wanted: Spec) -> Model {
        let mut model = Model::default();
        let old = Spec { image: "v1".into(), before_delete: Hook::default(), ..wanted.clone() };
        assert_eq!(model.event(second(0), &status(1, &old, 0)), NONE);
        for name in ["a", "b", "c"] {
            let claim = Claim { name: format!("data-{name}"), instance: name.into(), deleting: false };
            assert_eq!(model.event(second(0), &Event::Claim(format!("claim-{name}"), claim)), NONE);
            assert_eq!(model.event(second(0), &pod(Pod { instance: name.into(), ..up(name, "v1") })), NONE);
        }
        assert_eq!(model.event(second(0), &status(2, &wanted, 3)), NONE);
        model
    }

    const NONE: [String; 0] = [];

    fn change(model: &mut Model, name: &str, change: impl Fn(&mut Pod)) -> Vec<String> {
        change_at(model, 1, name, change)
    }

    fn change_at(model: &mut Model, at: i64, name: &str, change: impl Fn(&mut Pod)) -> Vec<String> {
        let mut changed = model.pods[name].pod.clone();
        change(&mut changed);
        model.event(second(at), &pod(changed))
    }

    #[test]
    fn one_more_pod_down_than_may_be_is_found() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.gate = false).is_empty());
        let wrongs = change(&mut model, "b", |p| p.gate = false);
        assert_eq!(wrongs, ["b was taken down, 1 more than may be"]);
    }

    #[test]
    fn what_a_fault_took_down_is_not_the_managers_doing() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.ready = None).is_empty());
        assert!(change(&mut model, "b", |p| p.gate = false).is_empty());
        assert_eq!(change(&mut model, "c", |p| p.deleting = true).len(), 1);
    }

    #[test]
    fn a_deletion_beyond_what_the_budget_lets_go_is_found() {
        let budget = |generation, observed, most| Event::Budget { generation, observed, most };
        let delete = |model: &mut Model, name: &str| change(model, name, |p| p.deleting = true);
        let mut model = three(&json!({ "maxUnavailable": 3 }), "v2");
        assert_eq!(model.event(second(0), &budget(1, 0, 1)), NONE);
        assert!(delete(&mut model, "a").is_empty(), "nobody has observed the budget");
        let mut model = three(&json!({ "maxUnavailable": 3 }), "v2");
        assert_eq!(model.event(second(0), &budget(1, 1, 1)), NONE);
        assert!(delete(&mut model, "a").is_empty());
        assert_eq!(delete(&mut model, "b"), ["b was deleted, 1 more than the budget lets go"]);
        assert_eq!(model.event(second(0), &budget(2, 1, 3)), NONE);
        assert!(delete(&mut model, "c").is_empty(), "the new budget may be known already");
        let mut model = three(&json!({ "maxUnavailable": 3 }), "v2");
        for event in [budget(1, 1, 1), Event::BudgetGone] {
            assert_eq!(model.event(second(0), &event), NONE);
        }
        for name in ["a", "b", "c"] {
            assert!(delete(&mut model, name).is_empty());
        }
    }

    #[test]
    fn a_budget_counts_updates_a_moment_later() {
        let budget = Event::Budget { generation: 1, observed: 1, most: 1 };
        for (at, wrongs) in [(6, 0), (8, 1)] {
            let mut model = three(&json!({ "maxUnavailable": 3 }), "v2");
            assert_eq!(model.event(second(0), &budget), NONE);
            assert!(change(&mut model, "a", |p| p.gate = false).is_empty());
            assert_eq!(change_at(&mut model, at, "b", |p| p.deleting = true).len(), wrongs, "at {at} s");
        }
    }

    #[test]
    fn what_is_down_is_deleted_under_any_budget() {
        let mut model = three(&json!({ "maxUnavailable": 3 }), "v2");
        assert_eq!(model.event(second(0), &Event::Budget { generation: 1, observed: 1, most: 1 }), NONE);
        assert!(change(&mut model, "a", |p| p.deleting = true).is_empty());
        assert!(change(&mut model, "b", |p| p.ready = None).is_empty());
        assert!(change(&mut model, "b", |p| (p.ready, p.deleting) = (None, true)).is_empty());
    }

    #[test]
    fn one_more_pod_than_surge_allows_is_found() {
        let mut model = three(&json!({ "maxSurge": 1, "maxUnavailable": 0 }), "v2");
        assert_eq!(model.event(second(1), &pod(up("d", "v2"))), NONE);
        let wrongs = model.event(second(1), &pod(up("e", "v2")));
        assert_eq!(wrongs, ["e was created, 1 more than are wanted"]);
    }

    #[test]
    fn an_update_beyond_the_partition_is_found_in_place_and_by_replacement() {
        let mut model = three(&json!({ "partition": 2, "maxUnavailable": 3 }), "v2");
        for name in ["a", "b"] {
            assert_eq!(change(&mut model, name, |p| p.gate = false), NONE);
        }
        assert_eq!(change(&mut model, "a", |p| p.image = "v2".into()), NONE);
        assert_eq!(change(&mut model, "b", |p| p.image = "v2".into()).len(), 1);
        let mut model = three(&json!({ "partition": 2, "maxUnavailable": 3 }), "v2");
        assert!(change(&mut model, "a", |p| p.marked = true).is_empty());
        assert_eq!(change(&mut model, "b", |p| p.marked = true).len(), 1);
    }

    #[test]
    fn the_manager_may_act_on_a_spec_that_it_has_not_been_seen_to_leave() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        let newer = Event::CloneSet {
            generation: 3,
            observed: 2,
            spec: Box::new(spec(3, &json!({ "maxUnavailable": 3 }))),
            status: false,
            available: 3,
        };
        assert_eq!(model.event(second(1), &newer), NONE);
        assert!(change(&mut model, "a", |p| p.deleting = true).is_empty());
        assert!(change(&mut model, "b", |p| p.deleting = true).is_empty());
    }

    #[test]
    fn a_pod_that_the_manager_did_not_know_to_be_up_may_be_taken_down() {
        let mut model = three(&json!({ "maxUnavailable": 0, "maxSurge": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.ready = None).is_empty());
        assert!(change(&mut model, "a", |p| p.ready = Some(second(1))).is_empty());
        assert!(change(&mut model, "a", |p| p.gate = false).is_empty());
    }

    #[test]
    fn a_pod_is_up_when_it_has_been_ready_long_enough() {
        let mut model = of_spec(Spec { min_ready: 5, ..spec(3, &json!({ "maxUnavailable": 1 })) });
        assert_eq!(model.event(second(6), &status(3, &model.specs[&2].clone(), 3)), NONE);
        assert_eq!(change_at(&mut model, 7, "a", |p| p.gate = false), NONE);
        assert_eq!(change_at(&mut model, 8, "a", |p| (p.gate, p.ready) = (true, Some(second(8)))), NONE);
        assert_eq!(change_at(&mut model, 12, "b", |p| p.deleting = true), ["b was taken down, 1 more than may be"]);
        // by now the first would have been up
        assert_eq!(change_at(&mut model, 13, "c", |p| p.deleting = true), ["c was taken down, 1 more than may be"]);
    }

    #[test]
    fn a_grace_period_that_is_cut_short_and_a_change_in_service_are_found() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        let waits = |p: &mut Pod| (p.image, p.grace) = ("v2".into(), Some(second(5)));
        assert_eq!(change(&mut model, "a", waits), ["a got another image while it was in service"]);
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        assert_eq!(change(&mut model, "a", |p| p.gate = false), NONE);
        assert_eq!(change(&mut model, "a", waits), NONE);
        let wrongs = change_at(&mut model, 4, "a", |p| p.grace = None);
        assert!(wrongs[0].starts_with("the grace period of a ended before"), "{wrongs:?}");
        assert_eq!(model.acts.after_grace, 1);
    }

    fn hook(name: &str) -> Hook {
        Hook([format!("{HOOKS}{name}")].into())
    }

    #[test]
    fn what_goes_past_a_hook_is_found() {
        let hooked = Spec {
            before_delete: hook("delete"),
            around_update: hook("update"),
            before_normal: hook("normal"),
            ..spec(3, &json!({ "maxUnavailable": 3 }))
        };
        let held = |p: &mut Pod| p.tags = [format!("{HOOKS}delete"), format!("{HOOKS}update")].into();
        let mut model = of_spec(hooked.clone());
        assert_eq!(change(&mut model, "a", held), NONE);
        assert_eq!(change(&mut model, "a", |p| p.state = "PreparingDelete".into()), NONE);
        assert_eq!(change(&mut model, "a", |p| p.deleting = true).len(), 1);
        assert_eq!(change(&mut model, "b", |p| p.deleting = true), NONE);
        let mut model = of_spec(hooked);
        assert_eq!(change(&mut model, "a", held), NONE);
        assert_eq!(change(&mut model, "a", |p| p.state = "Updating".into()).len(), 1);
        assert_eq!(change(&mut model, "a", |p| p.state = "Normal".into()), NONE);
        assert_eq!(change(&mut model, "b", |p| p.state = "Updating".into()), NONE);
        assert_eq!(change(&mut model, "b", |p| p.state = "Normal".into()).len(), 1);
        assert_eq!(change(&mut model, "c", |p| p.state = "PreparingNormal".into()), NONE);
        assert_eq!(change(&mut model, "c", |p| p.state = "Normal".into()).len(), 1);
    }

    #[test]
    fn what_a_user_deletes_is_not_the_managers_doing() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        model.theirs.deleted.insert("a".into());
        assert_eq!(change(&mut model, "a", |p| p.deleting = true), NONE);
        assert_eq!(change(&mut model, "b", |p| p.gate = false), NONE);
        assert_eq!(change(&mut model, "c", |p| p.gate = false).len(), 1);
    }

    #[test]
    fn a_failure_that_the_manager_may_not_have_seen_is_not_its_doing() {
        let strategy = json!({ "maxSurge": 1, "maxUnavailable": 0 });
        let reported = status(2, &Spec { image: "v2".into(), ..spec(3, &strategy) }, 3);
        for (tellings, wrong) in [(0, 0), (1, 0), (2, 1)] {
            let mut model = three(&strategy, "v2");
            assert_eq!(model.event(second(1), &pod(up("d", "v2"))), NONE);
            assert_eq!(model.event(second(1), &reported), NONE);
            assert_eq!(change(&mut model, "d", |p| (p.ended, p.ready) = (true, None)), NONE);
            for _ in 0..tellings {
                assert_eq!(model.event(second(1), &reported), NONE);
            }
            assert_eq!(change(&mut model, "a", |p| p.deleting = true).len(), wrong, "{tellings}");
        }
    }

    #[test]
    fn claims_that_are_not_used_again_or_must_not_be_are_found() {
        let wanted = Spec { has_claims: true, ..spec(3, &json!({})) };
        let (instance, reported) =
            (|name: &str| Pod { instance: name.into(), ..up(name, "v2") }, status(2, &wanted, 3));
        let claim = |name: &str| {
            let claim = Claim { name: format!("data-{name}"), instance: name.into(), deleting: false };
            Event::Claim(format!("claim-{name}"), claim)
        };
        let mut model = of_spec(wanted.clone());
        model.theirs.deleted.insert("a".into());
        assert_eq!(model.event(second(1), &Event::Gone("a".into())), NONE);
        for _ in 0..3 {
            assert_eq!(model.event(second(2), &reported), NONE);
        }
        assert_eq!(model.event(second(3), &pod(instance("d"))), ["d was created without a claim"]);
        assert_eq!(model.event(second(3), &Event::Gone("d".into())), NONE);
        assert_eq!(model.event(second(3), &claim("e")), NONE);
        assert_eq!(model.event(second(3), &pod(instance("e"))), NONE);
        assert_eq!(model.event(second(4), &reported).len(), 1);
        // the right one
        assert_eq!(model.event(second(5), &pod(Pod { name: "a2".into(), ..instance("a") })).len(), 1, "one too many");
        assert_eq!(model.acts.claims_reused, 1);
        let mut model = of_spec(Spec { reuses_claims: false, ..wanted });
        model.theirs.deleted.insert("a".into());
        assert_eq!(model.event(second(1), &Event::Gone("a".into())), NONE);
        let wrongs = model.event(second(2), &pod(Pod { name: "a2".into(), ..instance("a") }));
        assert_eq!(wrongs, ["a2 was given the claim of another Pod"]);
    }
}
