//! Random histories of the plan on played nodes: nodes join, leave, break and come back, templates change, some of them bad.
//! What the plan does is held against a model that knows only what a user is promised.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    pass::plan,
    plan::{Action, Observed, Remember},
    pod::{Node, Pod},
    spec::Spec,
};
use super::fixtures::*;
use crate::{
    domain::{
        node::backoff::Failures,
        pod::{inplace::Allowed, lifecycle::State, placement::Fit},
        workload::turns::Turns,
    },
    liveness::Random,
};

/// What a template does to its Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Template {
    Good,
    /// They never become ready.
    Bad,
    /// And their node breaks.
    BreaksNodes,
}

struct World {
    random: Random,
    spec: Spec,
    nodes: BTreeMap<String, Node>,
    pods: Vec<Pod>,
    templates: Vec<(Template, i64)>,
    failures: Failures,
    lost: BTreeMap<String, i64>,
    now: i64,
    made: usize,
    /// Nodes whose available Pod an update took while they were Ready, until they have one again.
    taken: BTreeSet<String>,
    /// Nodes that were Ready when the last template replaced their Pod, until they have an available one.
    replaced: BTreeSet<String>,
    /// The most of either at a time, and of them in one zone.
    most: (usize, usize),
    /// The most nodes with two Pods that stay.
    most_pairs: usize,
}

impl World {
    fn new(seed: u64, fields: serde_json::Value, nodes: usize) -> Self {
        let mut world = Self {
            random: Random(seed),
            spec: spec(fields),
            nodes: BTreeMap::new(),
            pods: Vec::new(),
            templates: vec![(Template::Good, -10)],
            failures: Failures::default(),
            lost: BTreeMap::new(),
            now: 0,
            made: 0,
            taken: BTreeSet::new(),
            replaced: BTreeSet::new(),
            most: (0, 0),
            most_pairs: 0,
        };
        (0..nodes).for_each(|i| world.join(i));
        world
    }

    fn join(&mut self, i: usize) {
        let name = format!("n{i:04}");
        let node = Node { zone: format!("z{}", i % 5), ..node(&name) };
        self.nodes.insert(name, node);
    }

    fn roll_out(&mut self, template: Template) {
        self.templates.push((template, self.now));
        self.replaced.clear();
    }

    fn revision(&self) -> String {
        format!("r{}", self.templates.len() - 1)
    }

    fn template_of(&self, pod: &Pod) -> Template {
        self.templates[pod.hash[1..].parse::<usize>().unwrap()].0
    }

    /// One pass, and what the kubelets make of it.
    fn step(&mut self) {
        self.now += 1;
        self.pass();
        self.play();
        self.check();
    }

    fn pass(&mut self) {
        let revision = self.revision();
        let mut pods = self.pods.clone();
        for pod in &mut pods {
            pod.is_new = pod.hash == revision;
        }
        let pods = sorted(&pods);
        let nodes: Vec<Node> = self.nodes.values().cloned().collect();
        self.lost.retain(|name, since| {
            self.nodes.get(name).and_then(|node| node.not_ready_since).is_some_and(|now| now.as_second() == *since)
        });
        let observed = Observed {
            spec: &self.spec,
            nodes: &nodes,
            pods: &pods,
            update: &revision,
            update_since: Some(time(self.templates.last().unwrap().1)),
            revisions: &[],
            allowed: Allowed::default(),
            failures: &self.failures,
            lost: &self.lost,
            turns: &Turns::default(),
            now: at(self.now),
        };
        let mut plan = plan(&observed);
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
                self.made += 1;
                let name = format!("p{}", self.made);
                let new = Pod {
                    name,
                    hash: revision.to_owned(),
                    created: Some(time(self.now)),
                    is_bound: false,
                    made_not_ready: not_ready_since,
                    ..unready(pod(&node))
                };
                self.pods.push(new);
            }
            Action::Delete { pod, remember } => {
                let at = self.pods.iter().position(|other| other.name == pod).unwrap();
                let node = self.pods[at].node.clone();
                match remember {
                    Remember::Nothing => {}
                    Remember::Failure(node) => self.failures.note(&node, super::fixtures::at(self.now).mono),
                    Remember::Lost(node, since) => {
                        self.lost.insert(node, since);
                    }
                }
                let is_ready = self.nodes.get(&node).is_some_and(|node| node.not_ready_since.is_none());
                if is_update && is_ready && self.pods[at].is_available() {
                    self.taken.insert(node.clone());
                }
                if is_update && is_ready && self.pods[at].hash != revision {
                    self.replaced.insert(node);
                }
                self.pods[at].is_terminating = true;
            }
            other => panic!("{other:?}"),
        }
    }

    /// Kubelets: Pods start, get ready, end. A node that is not Ready does nothing, and its Pods are not ready.
    fn play(&mut self) {
        let nodes = &self.nodes;
        let is_up = |pod: &Pod| nodes.get(&pod.node).is_some_and(|node| node.not_ready_since.is_none());
        let random = &mut self.random;
        self.pods
            .retain(|pod| nodes.contains_key(&pod.node) && !(pod.is_terminating && is_up(pod) && random.chance(50)));
        let mut broken = Vec::new();
        for i in 0..self.pods.len() {
            let template = self.template_of(&self.pods[i]);
            let is_up = self.nodes[&self.pods[i].node].not_ready_since.is_none();
            let pod = &mut self.pods[i];
            if !is_up || pod.is_terminating {
                *pod = unready(pod.clone());
                continue;
            }
            pod.is_bound = true;
            let starts = self.random.chance(66);
            match template {
                Template::Good if starts => {
                    pod.is_ready = true;
                    pod.until_available = Some(std::time::Duration::ZERO);
                }
                Template::Bad if starts && self.random.chance(12) => pod.is_finished = true,
                Template::BreaksNodes if starts => broken.push(pod.node.clone()),
                _ => {}
            }
        }
        for name in broken {
            self.nodes.get_mut(&name).unwrap().not_ready_since.get_or_insert(time(self.now));
        }
        let is_back = |name: &String| {
            let has_pod = self.pods.iter().any(|pod| pod.node == *name && pod.is_available());
            has_pod || self.nodes.get(name).is_none_or(|node| !node.fit.should_run)
        };
        self.taken.retain(|name| !is_back(name));
        self.replaced.retain(|name| !is_back(name));
    }

    fn check(&mut self) {
        for lost in [&self.taken, &self.replaced] {
            let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
            lost.iter().for_each(|name| *zones.entry(&self.nodes[name].zone).or_default() += 1);
            let worst = zones.values().copied().max().unwrap_or(0);
            self.most = (self.most.0.max(lost.len()), self.most.1.max(worst));
        }
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.is_live()) {
            *live.entry(&pod.node).or_default() += 1;
        }
        let pairs = live.values().filter(|count| **count > 1).count();
        self.most_pairs = self.most_pairs.max(pairs);
        assert!(live.values().all(|count| *count <= 2), "second {}: more than two Pods on a node", self.now);
    }

    /// Something that happens to the cluster.
    fn disturb(&mut self) {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let Some(name) = names.get(self.random.below(names.len().max(1))) else { return };
        match self.random.below(6) {
            0 => {
                self.nodes.remove(name);
                self.pods.retain(|pod| pod.node != *name);
                self.taken.remove(name);
                self.replaced.remove(name);
            }
            1 => {
                let number = 5000 + self.now.unsigned_abs() as usize;
                self.join(number);
            }
            2 => {
                let node = self.nodes.get_mut(name).unwrap();
                node.not_ready_since.get_or_insert(time(self.now));
            }
            3 => self.nodes.get_mut(name).unwrap().not_ready_since = None,
            4 => {
                let fit = &mut self.nodes.get_mut(name).unwrap().fit;
                let should_run = !fit.should_run;
                *fit = Fit { should_run, should_continue: should_run || self.random.chance(50) };
            }
            _ => {
                if let Some(pod) = self.pods.iter_mut().find(|pod| pod.node == *name) {
                    pod.is_specified = true;
                }
            }
        }
    }

    /// Everything heals, again and again; then the last template, a good one, has to get everywhere.
    fn settle(&mut self, steps: usize) {
        self.roll_out(Template::Good);
        for _ in 0..steps {
            // The Pods of a template that breaks nodes go on breaking them until they are gone.
            for node in self.nodes.values_mut() {
                node.not_ready_since = None;
                node.fit = Fit { should_run: true, should_continue: true };
            }
            self.step();
            if self.is_done() {
                return;
            }
        }
        let stuck: Vec<&str> = self.nodes.keys().map(String::as_str).filter(|name| !self.is_updated(name)).collect();
        panic!("second {}: not updated: {stuck:?}", self.now);
    }

    fn is_updated(&self, node: &str) -> bool {
        let revision = self.revision();
        let mut pods = self.pods.iter().filter(|pod| pod.node == node);
        pods.next().is_some_and(|pod| pod.is_available() && pod.hash == revision && pod.state == State::None)
            && pods.next().is_none()
    }

    fn is_done(&self) -> bool {
        self.nodes.keys().all(|name| self.is_updated(name))
    }
}

/// A history of one set: `events` things happen while a template of this kind is rolled out.
fn history(seed: u64, fields: serde_json::Value, (nodes, events): (usize, usize), template: Template) -> World {
    let mut world = World::new(seed, fields, nodes);
    world.settle(400);
    world.most = (0, 0);
    world.taken.clear();
    world.roll_out(template);
    for _ in 0..events {
        if world.random.chance(50) {
            world.disturb();
        }
        world.step();
    }
    world
}

#[test]
fn strict_a_bad_template_never_takes_more_than_max_unavailable_whatever_happens_to_the_nodes() {
    for seed in 0..60 {
        for template in [Template::Bad, Template::BreaksNodes] {
            let fields = serde_json::json!({"strict": true, "maxUnavailable": 3});
            let mut world = history(seed, fields, (40, 60), template);
            assert!(world.most.0 <= 3, "seed {seed}: {template:?} took {} Pods", world.most.0);
            world.settle(600);
            assert!(world.most.0 <= 3, "seed {seed}: the mend took {} Pods", world.most.0);
            assert_eq!(world.most_pairs, 0, "seed {seed}");
        }
    }
}

#[test]
fn per_topology_no_zone_loses_more_than_its_limit() {
    for seed in 0..60 {
        let fields = serde_json::json!({"perZone": 1, "maxUnavailable": "50%"});
        let mut world = history(seed, fields, (40, 60), Template::Bad);
        assert!(world.most.1 <= 1, "seed {seed}: a zone lost {}", world.most.1);
        world.settle(600);
        assert!(world.most.1 <= 1, "seed {seed}: a zone lost {} to the mend", world.most.1);
    }
}

#[test]
fn every_strategy_gets_a_corrected_template_everywhere() {
    for seed in 0..60 {
        for fields in [
            serde_json::json!({"maxUnavailable": 2}),
            serde_json::json!({"maxSurge": 2}),
            serde_json::json!({"maxSurge": "20%", "strict": true}),
            serde_json::json!({"maxUnavailable": "10%", "burstReplicas": 3}),
        ] {
            let surge = fields.get("maxSurge").is_some();
            let mut world = history(seed, fields, (30, 50), Template::Bad);
            world.settle(600);
            assert!(surge || world.most_pairs == 0, "seed {seed}");
        }
    }
}

#[test]
fn of_a_thousand_nodes_a_bad_template_takes_no_more_than_max_unavailable() {
    for (template, seed) in [(Template::Bad, 1), (Template::BreaksNodes, 2)] {
        let fields = serde_json::json!({"strict": true, "maxUnavailable": 10, "perZone": 4});
        let world = history(seed, fields, (1000, 40), template);
        assert!((1..=10).contains(&world.most.0) && world.most.1 <= 4, "{template:?} took {:?}", world.most);
    }
}

#[test]
fn strict_two_bad_templates_in_a_row_take_no_more_than_max_unavailable_together() {
    for seed in 0..60 {
        for (first, second) in [(Template::BreaksNodes, Template::BreaksNodes), (Template::BreaksNodes, Template::Bad)]
        {
            let fields = serde_json::json!({"strict": true, "maxUnavailable": 3});
            let mut world = history(seed, fields, (40, 0), first);
            (0..30).for_each(|_| world.step());
            assert_eq!(world.taken.len(), 3, "seed {seed}");
            world.roll_out(second);
            for _ in 0..30 {
                world.step();
                assert!(world.taken.len() <= 3, "seed {seed}: {second:?} took {} Pods in all", world.taken.len());
            }
            world.settle(600);
        }
    }
}
