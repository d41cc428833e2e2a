//! Random histories of the plan on played nodes: nodes join, leave, break and come back, templates change, some are bad. What
//! the plan does is held against a model that knows only what a user is promised.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::super::{
    pass::plan,
    plan::{Action, Observed, Outage},
    pod::{self, Node, Pod},
    spec::Spec,
};
use super::fixtures::*;
use crate::{
    api::labels::NODE_NOT_READY_SINCE,
    domain::{
        node::backoff::Failures,
        pod::{inplace::Allowed, lifecycle::State},
        workload::{revisions::KnownRevision, steps::PodAction, turns::Turns},
    },
    k8s::revision,
    liveness::{self, Acts, Random},
};

/// What a template does to its Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Template {
    Good,
    /// They never become ready.
    Bad,
    /// And their node breaks.
    BreaksNodes,
    /// They become Ready, and their node breaks before they count as available.
    BreaksNodesLater,
}

const BAD: [Template; 3] = [Template::Bad, Template::BreaksNodes, Template::BreaksNodesLater];
/// `minReadySeconds`, and after how many seconds a node breaks at the earliest. A step takes up to five.
const MIN_READY: i64 = 12;
const LATER: i64 = 4;
/// Of so many nodes one is disturbed in every second step.
const FEW: usize = 50;
/// How many kinds of [`World::disturb`] there are. The last one is a mark of a user, which takes the Pod of a lost node besides
/// those that an update takes.
const KINDS: usize = 6;

fn name_of(i: usize) -> String {
    format!("n{i:04}")
}

/// A node that is played.
#[derive(Clone, Debug)]
struct Machine {
    zone: String,
    created: i64,
    /// Effect of a taint that no Pod of the set tolerates.
    taint: Option<&'static str>,
    /// Since when it is not Ready, and whether its kubelet reports that.
    down: Option<(i64, bool)>,
    /// The manager has seen it Ready before that.
    was_seen: bool,
}

impl Machine {
    /// As the node controller shows it.
    fn node(&self, name: &str, spec: &Spec) -> Node {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let mut taints: Vec<Value> = self.taint.iter().map(|effect| taint("dedicated", effect)).collect();
        let (status, since) = match self.down {
            None => ("True", self.created),
            Some((since, reports)) => {
                let (status, key) = if reports { ("False", "not-ready") } else { ("Unknown", "unreachable") };
                let key = format!("node.kubernetes.io/{key}");
                taints.extend(["NoSchedule", "NoExecute"].map(|effect| taint(&key, effect)));
                (status, since)
            }
        };
        let (created, since) = (time(self.created).to_string(), time(since).to_string());
        let view = json!({
            "metadata": {"name": name, "creationTimestamp": created, "labels": {"zone": self.zone}},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}});
        let node = Node::of(&serde_json::from_value(view).unwrap(), spec);
        Node { saw_outage_begin: self.was_seen && node.not_ready_since.is_some(), ..node }
    }

    /// Whether its kubelet does anything.
    fn acts(&self) -> bool {
        self.down.is_none_or(|(_, reports)| reports)
    }
}

/// A Pod that is played.
struct Played {
    pod: Pod,
    /// Since when it is Ready.
    ready_at: Option<i64>,
    /// It works, or would if its node were Ready.
    works: bool,
}

struct World {
    random: Random,
    spec: Spec,
    nodes: BTreeMap<String, (Machine, Node)>,
    pods: Vec<Played>,
    templates: Vec<(Template, i64)>,
    revisions: Vec<KnownRevision>,
    failures: Failures,
    outages: BTreeMap<String, Outage>,
    now: i64,
    made: usize,
    /// Nodes whose Pod was available when an update took it, or worked on a node that was lost, until they have an available
    /// one again.
    taken: BTreeSet<String>,
    /// Nodes whose Pod the last template replaced or updated, Ready or not, until they have an available one.
    replaced: BTreeSet<String>,
    /// The most of either at a time, and of them in one zone.
    most: (usize, usize),
    /// The most nodes with two Pods that stay.
    most_pairs: usize,
    acts: Acts,
    /// In how many of a hundred steps the manager starts anew, and has forgotten outages.
    restarts: usize,
    /// By how many seconds the clocks of kubelets are behind.
    behind: i64,
    /// How many of [`KINDS`] happen.
    kinds: usize,
}

impl World {
    /// Nodes that have been there for long, without Pods.
    fn new(seed: u64, fields: Value, nodes: usize) -> Self {
        let mut world = Self {
            random: Random(seed),
            spec: spec(fields),
            nodes: BTreeMap::new(),
            pods: Vec::new(),
            templates: Vec::new(),
            revisions: Vec::new(),
            failures: Failures::default(),
            outages: BTreeMap::new(),
            now: 0,
            made: 0,
            taken: BTreeSet::new(),
            replaced: BTreeSet::new(),
            most: (0, 0),
            most_pairs: 0,
            acts: Acts::default(),
            restarts: 0,
            behind: 0,
            kinds: KINDS,
        };
        for i in 0..nodes {
            world.join(i, -100_000);
        }
        world.roll_out(Template::Good);
        world
    }

    /// With Pods that have been available for long.
    fn running(seed: u64, fields: Value, nodes: usize) -> Self {
        let mut world = Self::new(seed, fields, nodes);
        let names: Vec<String> = world.nodes.keys().cloned().collect();
        for name in names {
            let pod = Pod { hash: world.revision(), created: Some(time(-10_000)), ..pod(&name) };
            world.pods.push(Played { pod, ready_at: Some(-10_000), works: true });
        }
        world
    }

    fn join(&mut self, i: usize, created: i64) -> String {
        let name = name_of(i);
        let machine = Machine { zone: format!("z{}", i % 5), created, taint: None, down: None, was_seen: false };
        let node = machine.node(&name, &self.spec);
        self.nodes.insert(name.clone(), (machine, node));
        name
    }

    fn machine(&mut self, name: &str, change: impl FnOnce(&mut Machine)) {
        let Some((machine, node)) = self.nodes.get_mut(name) else { return };
        change(machine);
        *node = machine.node(name, &self.spec);
    }

    /// A node is not Ready any more.
    fn lose(&mut self, name: &str) {
        self.acts.note("nodes lost");
        let reports = self.random.chance(50);
        // Who says when: its kubelet, or the node controller.
        let (now, since) = (self.now, if reports { self.now - self.behind } else { self.now });
        self.machine(name, |machine| {
            if machine.down.is_none() {
                (machine.down, machine.was_seen) = (Some((since, reports)), machine.created < now);
            }
        });
    }

    fn roll_out(&mut self, template: Template) {
        let number = self.templates.len();
        self.templates.push((template, self.now));
        self.spec.template["spec"]["containers"][0]["image"] = format!("i:{number}").into();
        self.revisions.push(KnownRevision {
            name: format!("agent-r{number}"),
            created: Some(time(self.now)),
            data: revision::data(&self.spec.template),
            ..KnownRevision::default()
        });
        self.replaced.clear();
    }

    fn revision(&self) -> String {
        format!("r{}", self.templates.len() - 1)
    }

    /// One pass, and what the kubelets make of it.
    fn step(&mut self) {
        self.now += 1 + i64::try_from(self.random.below(5)).unwrap();
        self.show();
        if self.restarts > 0 && self.random.chance(self.restarts) {
            self.acts.note("managers that start anew");
            self.outages.clear();
            let names: Vec<String> = self.nodes.keys().cloned().collect();
            names.iter().for_each(|name| self.machine(name, |machine| machine.was_seen = false));
        }
        self.pass();
        self.play();
        self.check();
    }

    fn steps(&mut self, number: usize) {
        (0..number).for_each(|_| self.step());
    }

    /// What the status of each Pod says.
    fn show(&mut self) {
        let (now, minimum) = (self.now, i64::from(self.spec.min_ready_seconds));
        let left = |since: i64| Duration::from_secs(u64::try_from(since + minimum - now).unwrap_or(0));
        for Played { pod, ready_at, .. } in &mut self.pods {
            pod.is_ready = ready_at.is_some();
            pod.until_available = ready_at.map(left);
        }
    }

    fn pass(&mut self) {
        let revision = self.revision();
        let as_seen = |played: &Played| Arc::new(Pod { is_new: played.pod.hash == revision, ..played.pod.clone() });
        let mut pods: Vec<Arc<Pod>> = self.pods.iter().map(as_seen).collect();
        pod::sort(&mut pods);
        let nodes: Vec<Node> = self.nodes.values().map(|(_, node)| node.clone()).collect();
        let lasts = |name: &String, outage: &Outage| {
            let down = self.nodes.get(name).and_then(|(machine, _)| machine.down);
            down.is_some_and(|(since, _)| time(since).as_second() == outage.since)
        };
        self.outages.retain(|name, outage| lasts(name, outage));
        let observed = Observed {
            spec: &self.spec,
            nodes: &nodes,
            pods: &pods,
            update: &revision,
            update_since: Some(time(self.templates.last().unwrap().1)),
            revisions: &self.revisions,
            allowed: Some(Allowed::default()),
            failures: &self.failures,
            outages: &self.outages,
            turns: &Turns::default(),
            now: at(self.now),
        };
        let mut plan = plan(&observed);
        self.outages.extend(std::mem::take(&mut plan.outages));
        let mut actions = std::mem::take(&mut plan.actions);
        let surplus = actions.len();
        // Some are refused, and leave their room to others.
        loop {
            let wave = plan.next_wave(48);
            if wave.is_empty() {
                break;
            }
            for candidate in wave {
                match self.random.chance(10) {
                    true => plan.room.leave(&candidate.zone, candidate.charge),
                    false => actions.push(candidate.action),
                }
            }
        }
        for (i, action) in actions.into_iter().enumerate() {
            self.carry_out(action, i >= surplus, &revision);
        }
    }

    fn carry_out(&mut self, action: Action, is_update: bool, revision: &str) {
        match action {
            Action::Create { node, not_ready_since } => {
                assert!(self.nodes[&node].1.fit.should_run, "a Pod for {node}, which is to have none");
                self.made += 1;
                let new = Pod {
                    name: format!("p{}", self.made),
                    hash: revision.to_owned(),
                    created: Some(time(self.now)),
                    is_bound: false,
                    made_not_ready: not_ready_since,
                    ..unready(pod(&node))
                };
                self.pods.push(Played { pod: new, ready_at: None, works: false });
            }
            Action::Delete { pod, failed_on } => {
                let at = self.position(&pod);
                if let Some(node) = failed_on {
                    self.failures.note(&node, super::fixtures::at(self.now).mono);
                }
                if is_update {
                    self.note_taken(at, revision);
                }
                self.pods[at].pod.is_terminating = true;
            }
            Action::Change { pod, change: PodAction::UpdateInPlace { spec } } => {
                let at = self.position(&pod);
                self.note_taken(at, revision);
                self.acts.note("updated in place");
                let since = |metadata: Value| metadata["labels"][NODE_NOT_READY_SINCE].as_str()?.parse::<i64>().ok();
                let Played { pod, ready_at, works } = &mut self.pods[at];
                (*ready_at, *works) = (None, false);
                pod.hash = revision.to_owned();
                pod.updated_at = Some(time(self.now));
                pod.made_not_ready = spec.metadata().and_then(since).or(pod.made_not_ready);
            }
            other => panic!("{other:?}"),
        }
    }

    fn position(&self, pod: &str) -> usize {
        self.pods.iter().position(|played| played.pod.name == pod).unwrap()
    }

    /// An update takes a Pod out of service.
    fn note_taken(&mut self, at: usize, revision: &str) {
        self.acts.note("taken");
        let Played { pod, works, .. } = &self.pods[at];
        let is_lost = self.nodes[&pod.node].0.down.is_some();
        if pod.is_available() || is_lost && *works {
            self.taken.insert(pod.node.clone());
        }
        if pod.hash != revision {
            self.replaced.insert(pod.node.clone());
        }
    }

    /// Kubelets: Pods start, get ready, end. Where none acts nothing of that happens, and on a node that is not Ready no
    /// Pod is.
    fn play(&mut self) {
        let Self { nodes, pods, random, templates, now, .. } = self;
        pods.retain(|played| match nodes.get(&played.pod.node) {
            Some((machine, _)) => !(played.pod.is_terminating && machine.acts() && random.chance(50)),
            None => false,
        });
        let mut broken = BTreeSet::new();
        for Played { pod, ready_at, works } in pods.iter_mut() {
            if nodes[&pod.node].0.down.is_some() || !pod.is_live() {
                *ready_at = None;
                continue;
            }
            pod.is_bound = true;
            let starts = random.chance(66);
            match templates[pod.hash[1..].parse::<usize>().unwrap()].0 {
                Template::Good if starts => {
                    ready_at.get_or_insert(*now);
                    *works = true;
                }
                Template::Bad if starts && random.chance(12) => pod.is_finished = true,
                Template::BreaksNodes if starts => {
                    broken.insert(pod.node.clone());
                }
                Template::BreaksNodesLater if starts || ready_at.is_some() => {
                    let since = *ready_at.get_or_insert(*now);
                    if *now - since >= LATER {
                        broken.insert(pod.node.clone());
                    }
                }
                _ => {}
            }
        }
        pods.iter_mut().filter(|played| broken.contains(&played.pod.node)).for_each(|played| played.ready_at = None);
        broken.iter().for_each(|name| self.lose(name));
        self.show();
        let available = self.pods.iter().map(|played| &played.pod).filter(|pod| pod.is_available());
        let available: BTreeSet<&str> = available.map(|pod| pod.node.as_str()).collect();
        let is_out = |name: &String| self.nodes.get(name).is_none_or(|(machine, _)| machine.taint.is_some());
        let is_back = |name: &String| is_out(name) || available.contains(name.as_str());
        self.taken.retain(|name| !is_back(name));
        self.replaced.retain(|name| !is_back(name));
    }

    fn check(&mut self) {
        for lost in [&self.taken, &self.replaced] {
            let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
            lost.iter().for_each(|name| *zones.entry(&self.nodes[name].0.zone).or_default() += 1);
            let worst = zones.values().copied().max().unwrap_or(0);
            self.most = (self.most.0.max(lost.len()), self.most.1.max(worst));
        }
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for played in self.pods.iter().filter(|played| played.pod.is_live()) {
            *live.entry(&played.pod.node).or_default() += 1;
        }
        let pairs = live.values().filter(|count| **count > 1).count();
        self.most_pairs = self.most_pairs.max(pairs);
        assert!(live.values().all(|count| *count <= 2), "second {}: more than two Pods on a node", self.now);
    }

    /// Something that happens to the cluster.
    fn disturb(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let Some(name) = self.random.one_of(&names).cloned() else { return };
        match self.random.below(self.kinds) {
            0 => {
                self.nodes.remove(&name);
                self.pods.retain(|played| played.pod.node != name);
                self.taken.remove(&name);
                self.replaced.remove(&name);
            }
            1 => {
                let mut number = 5000 + usize::try_from(self.now).unwrap();
                while self.nodes.contains_key(&name_of(number)) {
                    number += 1;
                }
                let name = self.join(number, self.now);
                if self.random.chance(50) {
                    self.lose(&name);
                }
            }
            2 => self.lose(&name),
            3 => self.machine(&name, |machine| machine.down = None),
            4 => {
                let taint = [None, None, Some("NoSchedule"), Some("NoExecute")][self.random.below(4)];
                self.machine(&name, |machine| machine.taint = taint);
            }
            _ => {
                if let Some(played) = self.pods.iter_mut().find(|played| played.pod.node == name) {
                    played.pod.is_specified = true;
                }
            }
        }
    }

    /// Things happen while a template is rolled out, the more nodes there are the more.
    fn roll_out_amid(&mut self, template: Template, events: usize) {
        self.roll_out(template);
        for _ in 0..events {
            for _ in 0..self.nodes.len().div_ceil(FEW) {
                if self.random.chance(50) {
                    self.disturb();
                }
            }
            self.step();
        }
    }

    fn heal(&mut self) {
        let is_ill = |machine: &Machine| machine.down.is_some() || machine.taint.is_some();
        let ill: Vec<String> =
            self.nodes.iter().filter(|(_, (machine, _))| is_ill(machine)).map(|(name, _)| name.clone()).collect();
        ill.iter().for_each(|name| self.machine(name, |machine| (machine.down, machine.taint) = (None, None)));
    }

    /// Everything heals, again and again: the Pods of a template that breaks nodes go on breaking them until they are
    /// gone. A good template has to get everywhere.
    fn settle(&mut self, steps: usize) {
        self.roll_out(Template::Good);
        for _ in 0..steps {
            self.heal();
            self.step();
            if self.nodes.keys().all(|name| self.is_updated(name)) {
                return;
            }
        }
        let stuck: Vec<&str> = self.nodes.keys().map(String::as_str).filter(|name| !self.is_updated(name)).collect();
        panic!("second {}: not updated: {stuck:?}", self.now);
    }

    fn is_updated(&self, node: &str) -> bool {
        let revision = self.revision();
        let mut pods = self.pods.iter().map(|played| &played.pod).filter(|pod| pod.node == node);
        pods.next().is_some_and(|pod| pod.is_available() && pod.hash == revision && pod.state == State::None)
            && pods.next().is_none()
    }
}

/// Some of the ways in which a set with these fields is updated.
fn varied(mut fields: Value, random: &mut Random) -> Value {
    if random.chance(50) {
        fields["rollingUpdateType"] = "InPlaceIfPossible".into();
    }
    if random.chance(50) {
        fields["toleratesNotReady"] = true.into();
    }
    fields
}

fn strict(random: &mut Random) -> Value {
    varied(json!({"strict": true, "maxUnavailable": 3, "minReadySeconds": MIN_READY}), random)
}

#[test]
fn strict_a_bad_template_never_takes_more_than_max_unavailable_whatever_happens_to_the_nodes() {
    let acts = liveness::seeds(60, "strict_a_bad_template_never_takes_more", |seed| {
        let random = &mut Random(seed);
        let (template, fields) = (BAD[random.below(3)], strict(random));
        let mut world = World::running(seed, fields.clone(), 40);
        world.roll_out_amid(template, 60);
        assert!(world.most.0 <= 3, "{template:?} took {} Pods: {fields}", world.most.0);
        world.settle(600);
        assert!(world.most.0 <= 3, "the mend of {template:?} took {} Pods: {fields}", world.most.0);
        assert_eq!(world.most_pairs, 0, "{fields}");
        Ok(world.acts)
    });
    acts.require(&[("taken", 200), ("updated in place", 100), ("nodes lost", 200)]);
}

#[test]
fn per_topology_no_zone_loses_more_than_its_limit() {
    let acts = liveness::seeds(60, "per_topology_no_zone_loses_more_than_its_limit", |seed| {
        let random = &mut Random(seed);
        let template = BAD[random.below(3)];
        let fields = varied(json!({"perZone": 1, "maxUnavailable": "50%", "minReadySeconds": MIN_READY}), random);
        let mut world = World::running(seed, fields.clone(), 40);
        world.roll_out_amid(template, 60);
        assert!(world.most.1 <= 1, "a zone lost {} to {template:?}: {fields}", world.most.1);
        world.settle(600);
        assert!(world.most.1 <= 1, "a zone lost {} to the mend of {template:?}: {fields}", world.most.1);
        Ok(world.acts)
    });
    acts.require(&[("taken", 200), ("updated in place", 100), ("nodes lost", 200)]);
}

#[test]
fn every_strategy_gets_a_corrected_template_everywhere() {
    let strategies = [
        json!({"maxUnavailable": 2}),
        json!({"maxUnavailable": 2, "rollingUpdateType": "InPlaceIfPossible"}),
        json!({"maxSurge": 2}),
        json!({"maxSurge": "20%", "strict": true}),
        json!({"maxUnavailable": "10%", "burstReplicas": 3}),
    ];
    liveness::seeds(60, "every_strategy_gets_a_corrected_template_everywhere", |seed| {
        let random = &mut Random(seed);
        let (template, mut fields) = (BAD[random.below(3)], strategies[random.below(strategies.len())].clone());
        if random.chance(50) {
            fields["toleratesNotReady"] = true.into();
        }
        let mut world = World::new(seed, fields.clone(), 30);
        world.settle(600);
        world.roll_out_amid(template, 50);
        world.settle(600);
        assert!(fields.get("maxSurge").is_some() || world.most_pairs == 0, "{fields}");
        Ok(world.acts)
    });
}

/// A limit of a tenth, so that a good template gets everywhere in about as many steps as in a small fleet.
#[test]
fn of_a_thousand_nodes_bad_templates_take_no_more_than_max_unavailable_and_a_good_one_gets_everywhere() {
    let acts = liveness::long_seeds(2, 100, "of_a_thousand_nodes", |seed| {
        let random = &mut Random(seed);
        let templates = [BAD[random.below(3)], BAD[random.below(3)]];
        let limits = json!({"strict": true, "maxUnavailable": 100, "perZone": 25, "minReadySeconds": MIN_READY});
        let fields = varied(limits, random);
        let mut world = World::running(seed, fields.clone(), 1000);
        templates.into_iter().for_each(|template| world.roll_out_amid(template, 15));
        world.settle(600);
        assert!(
            (1..=100).contains(&world.most.0) && world.most.1 <= 25,
            "{templates:?} and their mend took {:?}: {fields}",
            world.most
        );
        assert_eq!(world.most_pairs, 0, "{fields}");
        Ok(world.acts)
    });
    acts.require(&[("taken", 50_000), ("nodes lost", 4000)]);
}

#[test]
fn strict_two_bad_templates_in_a_row_take_no_more_than_max_unavailable_together_although_managers_start_anew() {
    let acts = liveness::seeds(60, "strict_two_bad_templates_in_a_row", |seed| {
        let random = &mut Random(seed);
        let (templates, fields) = ([BAD[random.below(3)], BAD[random.below(3)]], strict(random));
        let mut world = World::running(seed, fields.clone(), 40);
        (world.restarts, world.behind) = (10, [0, 90][random.below(2)]);
        for template in templates {
            world.roll_out(template);
            world.steps(30);
            assert_eq!(world.taken.len(), 3, "{templates:?}, {template:?}: {fields}");
            assert_eq!(world.most.0, 3, "{templates:?}, {template:?}: {fields}");
        }
        world.settle(600);
        assert_eq!(world.most.0, 3, "{templates:?}: {fields}");
        Ok(world.acts)
    });
    acts.require(&[("managers that start anew", 300), ("updated in place", 100)]);
}

#[test]
fn strict_two_bad_templates_take_no_more_than_max_unavailable_although_nodes_come_and_go_and_managers_start_anew() {
    let acts = liveness::seeds(60, "strict_two_bad_templates_take_no_more", |seed| {
        let random = &mut Random(seed);
        let (templates, fields) = ([BAD[random.below(3)], BAD[random.below(3)]], strict(random));
        let mut world = World::running(seed, fields.clone(), 40);
        (world.restarts, world.behind, world.kinds) = (10, [0, 90][random.below(2)], KINDS - 1);
        templates.into_iter().for_each(|template| world.roll_out_amid(template, 60));
        assert!(world.most.0 <= 3, "{templates:?} took {} Pods: {fields}", world.most.0);
        world.settle(600);
        assert!(world.most.0 <= 3, "the mend of {templates:?} took {} Pods: {fields}", world.most.0);
        Ok(world.acts)
    });
    acts.require(&[("taken", 200), ("updated in place", 100), ("nodes lost", 200), ("managers that start anew", 600)]);
}

#[test]
fn strict_nodes_that_stay_lost_hold_up_nobody_and_when_they_are_back_no_more_than_max_unavailable_are_without_a_pod() {
    liveness::seeds(60, "strict_nodes_that_stay_lost", |seed| {
        let random = &mut Random(seed);
        let fields = strict(random);
        let mut world = World::running(seed, fields.clone(), 40);
        let lost: Vec<String> = world.nodes.keys().step_by(3).cloned().collect();
        lost.iter().for_each(|name| world.lose(name));
        world.step();
        match random.chance(50) {
            true => {
                world.roll_out(Template::Good);
                let updated = |world: &World| world.nodes.keys().filter(|name| world.is_updated(name)).count();
                let mut left = 300;
                while left > 0 && lost.len() + updated(&world) < 40 {
                    world.step();
                    left -= 1;
                }
                assert!(left > 0, "{fields}");
                world.steps(15);
            }
            false => {
                world.roll_out(BAD[random.below(3)]);
                world.steps(20);
                lost.iter().for_each(|name| world.machine(name, |machine| machine.down = None));
                world.steps(20);
            }
        }
        assert!(world.most.0 <= 3, "{} Pods were taken: {fields}", world.most.0);
        world.settle(600);
        assert!(world.most.0 <= 3, "{} Pods were taken in all: {fields}", world.most.0);
        Ok(world.acts)
    });
}
