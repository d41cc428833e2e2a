//! Random histories of a StatefulSet against a plain model: Pods that break, end and get stuck, hooks, templates, limits
//! and numbers that change, in any order. What is held to it: never two Pods of one identity, never more Pods down by us
//! than the limit, the partition kept, claims never lost, nobody updated before its turn by `kruise.rs/update-order` or
//! by OrderedReady; and once nothing stands in the way, everything is as asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::json;

use super::{
    super::{claims, numbering},
    fixtures::*,
    *,
};
use crate::{
    api::apps::lifecycle::Hook,
    domain::{
        kinds::stateful_set::spec::Spec,
        pod::{
            inplace::Allowed,
            lifecycle::{self, LifecycleRules as _, State},
            order::Phase,
        },
        workload::revisions::KnownRevision,
    },
    k8s::{claim::SizedClaim, revision},
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};
use std::{sync::Arc, time::Duration};

const HOLD: &str = "hold";
const ROLE: &str = "role";

struct Player {
    pod: Pod,
    /// When kubelet is done with what it does.
    due: i64,
    ready_since: Option<i64>,
    /// When it was made or was last ready.
    down_since: i64,
    is_stuck: bool,
    /// Counts its changes.
    version: u64,
}

struct World {
    fields: serde_json::Value,
    pods: BTreeMap<i32, Player>,
    claims: BTreeMap<String, SizedClaim>,
    /// Templates of which no Pod becomes ready.
    bad: BTreeSet<usize>,
    version: usize,
    time: i64,
    made: usize,
    queue: VecDeque<Action>,
    candidates: Plan,
    is_dirty: bool,
    look: Option<i64>,
    /// The versions of Pods that the plan rests on.
    seen: BTreeMap<i32, u64>,
    /// The same Pods.
    planned: Vec<Arc<Pod>>,
    /// Pods are updated in the order of their roles.
    has_roles: bool,
    /// The last change takes all Pods away, and none of them is ready ever again.
    ends_at_nothing: bool,
    /// Wanted Pods that we took out of service and that are not available again.
    down: BTreeSet<i32>,
    acts: Acts,
}

/// The Pod that an action changes.
fn pod_of(action: &Action) -> Option<i32> {
    match action {
        Action::Change { pod, .. } | Action::Delete { pod } => Some(World::ordinal(pod)),
        _ => None,
    }
}

fn name_of(version: usize) -> String {
    format!("web-v{version}")
}

/// Gives a Pod a label, or takes it away; the others stay.
fn set_label(pod: &mut Pod, key: &str, value: Option<&str>) {
    let others = pod.labels.iter().filter(|(other, _)| *other != key);
    let all = others.chain(value.map(|value| (key, value)));
    let all: BTreeMap<String, String> = all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    pod.labels = serde_json::from_value(json!(all)).unwrap();
}

impl World {
    fn new() -> Self {
        let fields = json!({"replicas": 3, "claims": [{"metadata": {"name": "data"}, "spec": {}}], "retention": {}});
        Self {
            fields,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            bad: BTreeSet::new(),
            version: 1,
            time: 0,
            made: 0,
            queue: VecDeque::new(),
            candidates: Plan::default(),
            is_dirty: true,
            look: None,
            seen: BTreeMap::new(),
            planned: Vec::new(),
            has_roles: false,
            ends_at_nothing: false,
            down: BTreeSet::new(),
            acts: Acts::default(),
        }
    }

    fn spec(&self) -> Spec {
        let mut spec = spec(self.fields.clone());
        if self.has_roles {
            spec.update_order = UpdateOrder::parse("role=observer,leader").unwrap();
        }
        spec
    }

    fn update_revision(&self) -> String {
        name_of(self.version)
    }

    fn facts(&self, player: &Player, spec: &Spec) -> Pod {
        let left = player.ready_since.map(|since| since + i64::from(spec.min_ready_seconds) - self.time);
        Pod {
            until_available: left.map(|left| Duration::from_secs(u64::try_from(left).unwrap_or(0))),
            is_ready: player.ready_since.is_some(),
            down_for: match player.ready_since {
                Some(_) => Duration::ZERO,
                None => Duration::from_secs(u64::try_from(self.time - player.down_since).unwrap_or(0)),
            },
            ..player.pod.clone()
        }
    }

    fn observe(&self, spec: &Spec) -> Vec<Arc<Pod>> {
        self.pods.values().map(|player| Arc::new(self.facts(player, spec))).collect()
    }

    fn plan(&self) -> Plan {
        let spec = self.spec();
        let pods = self.observe(&spec);
        let known = |version: usize| KnownRevision {
            name: name_of(version),
            data: revision::data(&json!({"spec": {"containers": [{"name": "main", "image": format!("i:{version}")}]}})),
            ..KnownRevision::default()
        };
        let revisions: Vec<KnownRevision> = (1..=self.version).map(known).collect();
        plan(&Observed {
            spec: &spec,
            pods: &pods,
            claims: &self.claims.iter().map(|(name, claim)| (name.clone(), Arc::new(claim.clone()))).collect(),
            classes: Ok(&BTreeMap::new()),
            update_revision: &self.update_revision(),
            revisions: &revisions,
            allowed: Some(Allowed::default()),
            waited: &BTreeMap::new(),
            announced_is_updated: false,
            now: at(self.time),
        })
    }

    /// The next thing that the controller does; None: it has nothing to do.
    fn control(&mut self) -> Result<Option<String>, String> {
        let action = self.queue.pop_front();
        if action.is_none() && !self.candidates.creations.is_empty() {
            let made = self.candidates.creations.remove(0);
            return self.create(&made).map(Some);
        }
        let action = action.or_else(|| self.candidates.next_wave(1).pop().map(|candidate| candidate.action));
        if let Some(action) = action {
            // A Pod that has changed is looked at anew, as the API server and the store see to.
            if pod_of(&action).is_some_and(|n| self.pods.get(&n).map(|p| p.version) != self.seen.get(&n).copied()) {
                self.is_dirty = true;
                return Ok(Some(String::new()));
            }
            return self.carry_out(&action).map(Some);
        }
        if !self.is_dirty {
            return Ok(None);
        }
        self.is_dirty = false;
        if let Some(refreshed) = self.refresh() {
            return Ok(Some(refreshed));
        }
        let mut plan = self.plan();
        self.planned = self.observe(&self.spec());
        self.seen = self.pods.iter().map(|(ordinal, player)| (*ordinal, player.version)).collect();
        self.queue = plan.actions.drain(..).collect();
        self.look = plan.look.map(|look| self.time + i64::try_from(look.as_secs()).unwrap_or(0));
        self.candidates = plan;
        Ok(if self.queue.is_empty() && self.candidates.is_idle() { None } else { Some(String::new()) })
    }

    /// The state of each Pod moves on by itself.
    fn refresh(&mut self) -> Option<String> {
        let (spec, revision) = (self.spec(), self.update_revision());
        for player in self.pods.values_mut() {
            let observed = lifecycle::ObservedPod {
                lifecycle: spec.hooks(),
                is_scheduled: true,
                is_on_update_revision: player.pod.is_on(&revision),
                is_updated: player.ready_since.is_some(),
            };
            if let Some(next) = lifecycle::refresh(&player.pod.state, &observed, &player.pod) {
                let said = format!("{} is {}", player.pod.name, next.as_str());
                player.pod.state = next;
                self.is_dirty = true;
                return Some(said);
            }
        }
        None
    }

    fn ordinal(name: &str) -> i32 {
        numbering::ordinal_of("web", name).unwrap()
    }

    /// We take a Pod out of service: within the limit.
    fn take_down(&mut self, ordinal: i32) -> Result<(), String> {
        let spec = self.spec();
        let pod = self.facts(&self.pods[&ordinal], &spec);
        if !spec.ordinals.contains(ordinal) || !pod.is_serving() {
            return Ok(());
        }
        let limit = spec.rolling().map_or(1, |rolling| rolling.max_unavailable);
        let is_up = |n: &i32| self.pods.get(n).is_some_and(|player| self.facts(player, &spec).is_serving());
        let is_available = pod.is_available();
        let others = self.down.iter().filter(|n| **n != ordinal && (is_available || !is_up(n))).count();
        if i32::try_from(others).unwrap_or(i32::MAX) >= limit {
            return Err(format!(
                "{} is taken down, although {:?} are down by us and {limit} may be",
                pod.name, self.down
            ));
        }
        self.down.insert(ordinal);
        self.acts.note("taken down");
        Ok(())
    }

    /// A Pod that is Ready is updated, or that is announced to it: those of earlier places are done, as the plan saw
    /// them.
    fn comes_in_turn(&mut self, ordinal: i32) -> Result<(), String> {
        self.keeps_strict_order(ordinal)?;
        let (spec, revision) = (self.spec(), self.update_revision());
        let (Some(order), Some(rolling)) = (&spec.update_order, spec.rolling()) else { return Ok(()) };
        let find = |wanted: i32| self.planned.iter().find(|pod| pod.ordinal == wanted);
        let Some(pod) = find(ordinal).filter(|pod| pod.until_available.is_some() && !pod.is_specified) else {
            return Ok(());
        };
        if !spec.ordinals.contains(ordinal) || pod.is_finished || pod.is_terminating {
            return Ok(());
        }
        let partition = usize::try_from(rolling.partition).unwrap();
        let unfinished = |(rank, other): (usize, i32)| {
            let Some(pod) = find(other) else { return Some((0, other)) };
            let may_be_old = rolling.unordered.is_some() || rank < partition;
            let is_done = pod.is_available() && (may_be_old || pod.is_on(&revision));
            (!is_done).then(|| (order.place(&pod.labels), other))
        };
        let (place, first) = (order.place(&pod.labels), spec.ordinals.iter().enumerate().filter_map(unfinished).min());
        if let Some((before, first)) = first.filter(|(before, _)| *before < place) {
            return Err(format!("{} is of place {place} and goes before web-{first} of place {before}", pod.name));
        }
        if place > 0 {
            self.acts.note("in their turn");
        }
        Ok(())
    }

    /// With OrderedReady a Pod that serves is updated when no higher one that serves has to be, as the plan saw them.
    fn keeps_strict_order(&mut self, ordinal: i32) -> Result<(), String> {
        let (spec, revision) = (self.spec(), self.update_revision());
        let Some(rolling) = spec.rolling().filter(|_| spec.is_ordered) else { return Ok(()) };
        let serving = |wanted: i32| {
            let pod = self.planned.iter().find(|pod| pod.ordinal == wanted)?;
            (pod.is_serving() && !pod.is_specified).then_some(pod)
        };
        let place = |pod: &Pod| spec.update_order.as_ref().map_or(0, |order| order.place(&pod.labels));
        let Some(pod) = serving(ordinal).filter(|_| spec.ordinals.contains(ordinal)) else { return Ok(()) };
        // What has been done about a Pod, or has happened to it, since the plan was made is another matter.
        let is_as_planned = |planned: &Pod| {
            self.pods.get(&planned.ordinal).is_some_and(|player| {
                let is_same = (&player.pod.uid, &player.pod.state) == (&planned.uid, &planned.state);
                let is_there = !player.pod.is_terminating && player.pod.revision == planned.revision;
                is_same && is_there && self.seen.get(&planned.ordinal) == Some(&player.version)
            })
        };
        let partition = usize::try_from(rolling.partition).unwrap();
        let comes_before = |(rank, other): &(usize, i32)| {
            let is_due = |other: &Pod| !other.is_on(&revision) && place(other) == place(pod) && is_as_planned(other);
            *other > ordinal && *rank >= partition && serving(*other).is_some_and(|other| is_due(other))
        };
        if let Some((_, other)) = spec.ordinals.iter().enumerate().find(comes_before) {
            return Err(format!("{} goes before web-{other}, in strict order", pod.name));
        }
        self.acts.note("in strict order");
        Ok(())
    }

    /// With OrderedReady surplus Pods go one at a time, the highest one first.
    fn goes_alone(&self, ordinal: i32) -> Result<(), String> {
        let spec = self.spec();
        if !spec.is_ordered || spec.ordinals.contains(ordinal) {
            return Ok(());
        }
        match self.pods.keys().find(|other| **other > ordinal && !spec.ordinals.contains(**other)) {
            Some(other) => Err(format!("web-{ordinal} goes before web-{other} is gone")),
            None => Ok(()),
        }
    }

    /// None of the Pods is wanted any more, all are on the newest template, and with that they never get ready.
    fn all_break_and_go(&mut self) -> String {
        let (version, revision) = (self.version, self.update_revision());
        self.bad.insert(version);
        self.fields["replicas"] = json!(0);
        for player in self.pods.values_mut() {
            player.pod.revision.clone_from(&revision);
            (player.ready_since, player.down_since, player.is_stuck) = (None, self.time, false);
            player.version += 1;
        }
        let stay = self.pods.values().filter(|player| !player.pod.is_terminating && !player.pod.is_finished);
        if stay.count() > 1 {
            self.acts.note("several broken surplus Pods");
        }
        format!("replicas: 0, and template {version} never gets ready")
    }

    /// A Pod leaves its revision for an update: the partition allows it.
    fn leaves_revision(&mut self, ordinal: i32) -> Result<(), String> {
        let spec = self.spec();
        let revision = self.update_revision();
        let pod = &self.pods[&ordinal].pod;
        if !spec.ordinals.contains(ordinal) || pod.is_on(&revision) || pod.is_specified || pod.is_finished {
            return Ok(());
        }
        let Some(rolling) = spec.rolling() else { return Err(format!("{} is updated with OnDelete", pod.name)) };
        if rolling.paused {
            return Err(format!("{} is updated while paused", pod.name));
        }
        let all: Vec<i32> = spec.ordinals.iter().collect();
        let partition = usize::try_from(rolling.partition).unwrap();
        if rolling.unordered.is_none() {
            let rank = all.iter().position(|n| *n == ordinal).unwrap();
            if rank < partition {
                return Err(format!("{} is updated, rank {rank} of partition {partition}", pod.name));
            }
        } else {
            // What is not there, or ends, comes back on the revision that the number asks for.
            let is_updated = |n: &&i32| {
                **n != ordinal && self.pods.get(n).is_some_and(|p| p.pod.is_on(&revision) && !p.pod.is_terminating)
            };
            let updated = all.iter().filter(is_updated).count();
            if updated + 1 + partition > all.len() {
                return Err(format!("{} is updated, {updated} others are of {partition} to keep", pod.name));
            }
        }
        self.acts.note("updates");
        Ok(())
    }

    fn carry_out(&mut self, action: &Action) -> Result<String, String> {
        let said = text(action);
        self.is_dirty = true;
        match action {
            Action::CreateClaims { ordinal, claims } => self.create_claims(*ordinal, claims),
            Action::SetClaimOwners { claim, owners } => {
                // It may be gone by now.
                if let Some(claim) = self.claims.get_mut(claim) {
                    claim.metadata.owner_references = Some(owners.clone());
                }
            }
            Action::Change { pod, change } => self.change(pod, change)?,
            Action::Delete { pod } => {
                let ordinal = Self::ordinal(pod);
                self.goes_alone(ordinal)?;
                self.comes_in_turn(ordinal)?;
                self.take_down(ordinal)?;
                if self.pods[&ordinal].pod.state != State::PreparingDelete {
                    self.leaves_revision(ordinal)?;
                }
                let player = self.pods.get_mut(&ordinal).unwrap();
                if player.pod.is_terminating {
                    return Err(format!("{pod} is deleted twice"));
                }
                player.pod.is_terminating = true;
                player.due = self.time + 1;
            }
            Action::GrowClaims { .. } | Action::MendLabels { .. } => return Err(format!("nobody asked for: {said}")),
        }
        Ok(said)
    }

    fn change(&mut self, pod: &str, change: &PodAction) -> Result<(), String> {
        let ordinal = Self::ordinal(pod);
        match change {
            PodAction::CancelDeletion => self.set_state(pod, State::Normal),
            PodAction::CancelUpdate => {
                let spec = self.spec();
                let state = lifecycle::after_update(spec.hooks(), &self.pods[&ordinal].pod);
                self.set_state(pod, state);
            }
            PodAction::AnnounceDeletion => {
                self.comes_in_turn(ordinal)?;
                self.take_down(ordinal)?;
                self.acts.note("held by hooks");
                self.set_state(pod, State::PreparingDelete);
            }
            PodAction::AnnounceUpdate { restore } => {
                // With its hook put back it may be on its way back into service.
                if !*restore {
                    self.comes_in_turn(ordinal)?;
                }
                self.take_down(ordinal)?;
                self.acts.note("held by hooks");
                self.set_state(pod, State::PreparingUpdate);
                if *restore {
                    set_label(&mut self.pods.get_mut(&ordinal).unwrap().pod, HOLD, Some("true"));
                }
            }
            PodAction::RestoreHook => {
                set_label(&mut self.pods.get_mut(&ordinal).unwrap().pod, HOLD, Some("true"));
            }
            PodAction::UpdateInPlace { spec } => {
                self.comes_in_turn(ordinal)?;
                self.take_down(ordinal)?;
                self.leaves_revision(ordinal)?;
                self.acts.note("updated in place");
                let player = self.pods.get_mut(&ordinal).unwrap();
                player.pod.revision = spec.revision.clone();
                player.pod.state = State::Updating;
                (player.ready_since, player.down_since, player.due) = (None, self.time, self.time + 2);
            }
        }
        Ok(())
    }

    fn set_state(&mut self, pod: &str, state: State) {
        self.pods.get_mut(&Self::ordinal(pod)).unwrap().pod.state = state;
    }

    fn create_claims(&mut self, ordinal: i32, places: &[usize]) {
        let spec = self.spec();
        for place in places {
            let name = spec.claims[*place].claim_name("web", ordinal);
            let mut claim = claim(&name, "1Gi", "1Gi");
            claim.metadata.owner_references = Some(claims::owners_of_new(&spec));
            self.claims.insert(name, claim);
        }
    }

    fn create(&mut self, made: &Creation) -> Result<String, String> {
        self.is_dirty = true;
        let Creation { ordinal, on_update, ref claims } = *made;
        if self.pods.contains_key(&ordinal) {
            return Err(format!("a second Pod web-{ordinal} is made"));
        }
        let spec = self.spec();
        if !spec.ordinals.contains(ordinal) {
            return Err(format!("web-{ordinal} is made and not wanted"));
        }
        self.create_claims(ordinal, claims);
        if !self.claims.contains_key(&format!("data-web-{ordinal}")) {
            return Err(format!("web-{ordinal} is made without its claim"));
        }
        self.made += 1;
        let version = if on_update { self.version } else { 1.max(self.version - 1) };
        let labels = if spec.has_lifecycle { json!({HOLD: "true"}) } else { json!({}) };
        let pod = Pod {
            uid: format!("uid-{}", self.made),
            revision: name_of(version),
            phase: Some(Phase::Pending),
            labels: serde_json::from_value(labels).unwrap(),
            ..pod(ordinal)
        };
        let (down_since, due) = (self.time, self.time + 2);
        self.pods.insert(ordinal, Player { pod, due, ready_since: None, down_since, is_stuck: false, version: 0 });
        Ok(creation(made))
    }

    /// What kubelet, hooks and the garbage collector can do now.
    fn surroundings(&self) -> Vec<(i32, &'static str)> {
        let spec = self.spec();
        let mut can = Vec::new();
        for (ordinal, player) in &self.pods {
            let is_due = player.due <= self.time;
            let version: usize = player.pod.revision.trim_start_matches("web-v").parse().unwrap();
            if player.pod.is_terminating {
                can.extend((is_due && !player.is_stuck).then_some((*ordinal, "goes")));
            } else if player.ready_since.is_none() && !player.pod.is_finished {
                let starts = is_due && !self.bad.contains(&version) && !player.is_stuck;
                can.extend(starts.then_some((*ordinal, "starts")));
            }
            let is_held = spec.lifecycle.holds_deletion(&player.pod);
            match player.pod.state {
                State::PreparingDelete | State::PreparingUpdate if is_held => can.push((*ordinal, "lets go")),
                State::Updated => can.push((*ordinal, "is hooked again")),
                _ => {}
            }
        }
        let is_lost = |claim: &SizedClaim| {
            let owners = claim.owners();
            !owners.is_empty()
                && owners
                    .iter()
                    .all(|owner| owner.kind == "Pod" && !self.pods.values().any(|player| player.pod.uid == owner.uid))
        };
        can.extend(self.claims.values().filter(|claim| is_lost(claim)).map(|claim| {
            (numbering::ordinal_of("web", claim.name().trim_start_matches("data-")).unwrap(), "loses its claim")
        }));
        can
    }

    fn happens(&mut self, (ordinal, what): (i32, &'static str)) -> Result<String, String> {
        self.is_dirty = true;
        match what {
            "goes" => drop(self.pods.remove(&ordinal)),
            "loses its claim" => {
                if self.pods.contains_key(&ordinal) {
                    return Err(format!("the claim of web-{ordinal} is lost"));
                }
                self.acts.note("claims that went");
                self.claims.remove(&format!("data-web-{ordinal}"));
            }
            _ => {
                let time = self.time;
                let player = self.pods.get_mut(&ordinal).unwrap();
                player.version += 1;
                match what {
                    "starts" => {
                        player.ready_since = Some(time);
                        player.pod.phase = Some(Phase::Running);
                    }
                    "lets go" => set_label(&mut player.pod, HOLD, None),
                    _ => set_label(&mut player.pod, HOLD, Some("true")),
                }
            }
        }
        Ok(format!("web-{ordinal} {what}"))
    }

    fn up_again(&mut self) {
        let spec = self.spec();
        let still = |ordinal: &i32| {
            let up = self.pods.get(ordinal).is_some_and(|player| self.facts(player, &spec).is_available());
            spec.ordinals.contains(*ordinal) && !up
        };
        self.down = self.down.iter().copied().filter(still).collect();
    }

    fn one_pod(&self, random: &mut Random) -> Option<i32> {
        random.one_of(&self.pods.keys().copied().collect::<Vec<_>>()).copied()
    }

    fn changes_a_pod(&mut self, random: &mut Random) -> String {
        let what = random.below(5);
        let Some(ordinal) = self.one_pod(random) else { return String::new() };
        let time = self.time;
        let player = self.pods.get_mut(&ordinal).unwrap();
        match what {
            0 => (player.ready_since, player.down_since, player.due) = (None, time, time + 20),
            1 => player.is_stuck = true,
            2 if !player.pod.is_terminating => {
                (player.pod.is_finished, player.ready_since, player.down_since) = (true, None, time);
                self.acts.note("finished Pods");
            }
            3 => {
                player.pod.is_specified = true;
                self.acts.note("specified Pods");
            }
            _ => (player.pod.is_terminating, player.due) = (true, time + 3),
        }
        format!("web-{ordinal}: trouble {what}")
    }

    /// A Pod gets a role: the one of each kind that there is.
    fn elects(&mut self, random: &mut Random) -> String {
        let role = if random.chance(70) { "leader" } else { "observer" };
        let Some(elected) = self.one_pod(random) else { return String::new() };
        for (ordinal, player) in &mut self.pods {
            if *ordinal == elected {
                set_label(&mut player.pod, ROLE, Some(role));
            } else if player.pod.labels.get(ROLE) == Some(role) {
                set_label(&mut player.pod, ROLE, None);
            }
        }
        self.acts.note("elections");
        format!("web-{elected} is {role}")
    }

    fn changes_the_spec(&mut self, random: &mut Random) -> String {
        let (field, value) = match random.below(12) {
            0 | 1 => ("replicas", json!(random.below(6))),
            2 => ("reserve", json!([random.below(4), format!("{}-{}", 2, 2 + random.below(3))])),
            3 => ("reserve", json!([])),
            4 => ("partition", json!(random.below(5))),
            5 => ("maxUnavailable", json!(1 + random.below(3))),
            6 => ("paused", json!(random.chance(50))),
            7 => ("policy", json!(random.one_of(&["ReCreate", "InPlaceIfPossible"]))),
            8 => ("minReadySeconds", json!(random.below(2) * 10)),
            9 => ("retention", json!({"whenScaled": random.one_of(&["Delete", "Retain"])})),
            10 => ("onDelete", json!(random.chance(30))),
            _ => ("scaleMaxUnavailable", json!(1 + random.below(3))),
        };
        self.fields[field] = value.clone();
        format!("{field}: {value}")
    }
}

struct Seen {
    missing: Vec<String>,
}

impl Driver for World {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        // A pass goes on with what it saw, but for the spec: another one begins with every change of it.
        (self.queue, self.candidates, self.is_dirty) = (VecDeque::new(), Plan::default(), true);
        if self.has_roles && random.chance(25) {
            return Ok(self.elects(random));
        }
        Ok(match random.below(10) {
            0..=3 => self.changes_a_pod(random),
            4 | 5 => {
                self.version += 1;
                if random.chance(40) {
                    self.bad.insert(self.version);
                    self.acts.note("bad templates");
                }
                format!("template {}", self.version)
            }
            _ => self.changes_the_spec(random),
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        (self.queue, self.candidates, self.is_dirty) = (VecDeque::new(), Plan::default(), true);
        if self.ends_at_nothing {
            return Ok(self.all_break_and_go());
        }
        self.version += 1;
        for (field, value) in [("partition", json!(0)), ("paused", json!(false)), ("onDelete", json!(false))] {
            self.fields[field] = value;
        }
        self.pods.values_mut().for_each(|player| player.is_stuck = false);
        Ok(format!("template {}, nothing is stuck any more", self.version))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        let can = self.surroundings();
        let said = match random.one_of(&can).copied().filter(|_| random.chance(50)) {
            Some(event) => Some(self.happens(event)?),
            None => match self.control()? {
                Some(said) => Some(said),
                None => match can.first().copied() {
                    Some(event) => Some(self.happens(event)?),
                    None => None,
                },
            },
        };
        self.up_again();
        Ok(match said {
            Some(said) => Step::Worked(said),
            None => {
                let due = self
                    .pods
                    .values()
                    .filter(|player| player.due > self.time && !player.is_stuck)
                    .map(|player| player.due);
                let next = due.chain(self.look.filter(|look| *look > self.time)).min();
                Step::Idle(next.map(|next| Duration::from_secs(u64::try_from(next - self.time).unwrap())))
            }
        })
    }

    async fn advance(&mut self, by: Duration) {
        self.time += i64::try_from(by.as_secs()).unwrap();
        // The controller looks again when it has said so, and not before.
        self.is_dirty |= self.look.is_some_and(|look| look <= self.time);
        self.up_again();
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let (spec, revision) = (self.spec(), self.update_revision());
        let is_right = |ordinal: i32| {
            self.claims.contains_key(&format!("data-web-{ordinal}"))
                && self.pods.get(&ordinal).is_some_and(|player| {
                    self.facts(player, &spec).is_available() && player.pod.is_on(&revision) && !player.pod.is_specified
                })
        };
        let mut missing: Vec<String> =
            spec.ordinals.iter().filter(|n| !is_right(*n)).map(|n| format!("web-{n}")).collect();
        missing.extend(self.pods.keys().filter(|n| !spec.ordinals.contains(**n)).map(|n| format!("no web-{n}")));
        Ok(Seen { missing })
    }
}

struct Plain;

impl Model for Plain {
    type Seen = Seen;
    fn wrongs(&mut self, _: &Seen) -> Vec<String> {
        // The driver refuses each step that breaks a promise.
        Vec::new()
    }
    fn missing(&self, seen: &Seen) -> Vec<String> {
        seen.missing.clone()
    }
}

fn hooks() -> serde_json::Value {
    let hook = Hook { labels_handler: [(HOLD.to_owned(), "true".to_owned())].into(), ..Hook::default() };
    json!({"preDelete": hook, "inPlaceUpdate": hook})
}

#[test]
fn simulation_of_stateful_set_plans() {
    let acts = liveness::seeds(400, "simulation_of_stateful_set_plans", |seed| {
        let mut world = World::new();
        world.has_roles = seed / 300 % 2 == 1;
        world.fields["ordered"] = json!(seed % 3 == 0);
        if seed % 3 == 1 && seed % 2 == 0 {
            world.fields["order"] = json!([]);
        }
        if seed % 4 < 2 {
            world.fields["lifecycle"] = hooks();
        }
        let limits = Limits { changes: 30, ..Limits::default() };
        liveness::at_once(liveness::run(seed, &limits, &mut world, &mut Plain))?;
        Ok(world.acts)
    });
    acts.require(&[
        ("taken down", 150),
        ("updates", 200),
        ("updated in place", 50),
        ("held by hooks", 50),
        ("finished Pods", 50),
        ("specified Pods", 50),
        ("bad templates", 100),
        ("elections", 100),
        ("in their turn", 10),
        ("in strict order", 20),
        ("claims that went", 5),
    ]);
}

/// The built-in set deletes none of several such Pods, ever.
#[test]
fn simulation_of_ordered_stateful_sets_whose_pods_are_never_ready_and_not_wanted_any_more() {
    let name = "simulation_of_ordered_stateful_sets_whose_pods_are_never_ready_and_not_wanted_any_more";
    let acts = liveness::long_seeds(60, 4, name, |seed| {
        let mut world = World::new();
        world.ends_at_nothing = true;
        world.fields["ordered"] = json!(true);
        if seed % 4 < 2 {
            world.fields["lifecycle"] = hooks();
        }
        liveness::at_once(liveness::run(seed, &Limits::default(), &mut world, &mut Plain))?;
        Ok(world.acts)
    });
    acts.require(&[("several broken surplus Pods", 10)]);
}
