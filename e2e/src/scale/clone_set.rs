//! CloneSet beside the bare client and beside Deployment: Pods come, are updated in place, and go.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bare::{
    Way, clone_set, create, delete, deployment, gated_pod, in_place_bare, max_unavailable, template, warm,
};
use super::census::Census;
use super::{IMAGES, LONG, Scale, Side, Step, bare::Marks, in_turn, limited, of_rounds};
use crate::kit::{Look, PATIENCE};
use crate::measure::{Usage, median, megabytes, writes};

/// What updates of the CloneSet in place cost, one value for each round.
#[derive(Default)]
struct InPlace {
    not_ready: Vec<usize>,
    writes: Vec<f64>,
    processor: Vec<f64>,
    reconciles: Vec<f64>,
}

/// The seconds of every side, as far as they were measured, one for each round.
type Times = BTreeMap<Way, Vec<f64>>;

impl Scale<'_> {
    /// 0 -> all -> 0, by every side in turn. The memory of the manager while the Pods are there.
    pub(super) async fn up_and_down(&mut self, limits: &str) -> Result<Option<f64>> {
        let count = self.options.pods;
        let (mut up, mut down) = (Times::new(), Times::new());
        let (mut memory, mut used) = (None, Vec::new());
        let tag = if limits.is_empty() { "a" } else { "b" };
        let mut ways = Vec::new();
        if self.has(Side::Bare) {
            ways.push(Way::Bare);
        }
        if self.has(Side::Bare) && self.has(Side::CloneSet) {
            ways.push(Way::Gated);
        }
        if self.has(Side::CloneSet) {
            ways.push(Way::CloneSet);
        }
        if self.has(Side::Deployment) {
            ways.push(Way::Deployment);
        }
        for round in 0..self.options.rounds {
            // The built-in one takes long, and nothing is asked of it.
            for way in in_turn(&ways, round).into_iter().filter(|way| round == 0 || *way != Way::Deployment) {
                let name = format!("{}-{tag}{round}", format!("{way:?}").to_lowercase());
                let pods = Census::begin(&self.t, &name).await?;
                self.prepare(way, &name).await?;
                let (t, what) = (self.t.clone(), way.text());
                let work = async {
                    create(&t, way, &name, count).await?;
                    pods.until("Pods to be ready", LONG, |c| c.ready == count).await
                };
                let step = self.step(&format!("{what}, 0 -> {count}{limits}"), work).await?;
                up.entry(way).or_default().push(step.seconds);
                if way == Way::CloneSet {
                    let usage = Usage::of(self.manager().await?.1)?;
                    memory.get_or_insert(usage.memory);
                    used.push(step.manager);
                    if limits.is_empty() && round == 0 {
                        self.costs_of_pods(&step, usage, count)?;
                    }
                }
                let work = async {
                    delete(&t, way, &name, count).await?;
                    pods.until("Pods to be gone", LONG, |c| c.total == 0).await
                };
                let step = self.step(&format!("{what}, {count} -> 0{limits}"), work).await?;
                down.entry(way).or_default().push(step.seconds);
            }
        }
        // Every side waits for the scheduler there: 1,000 Pods take it as long as its own limit says.
        let shows = if limits.is_empty() { " (shows the scheduler, at its own limit)" } else { "" };
        self.compare(&format!("0 -> {count} Pods ready{limits}{shows}"), "1.15x", &up);
        self.compare(&format!("{count} -> 0{limits}"), "1.2x", &down);
        if let Some(seconds) = median(&used) {
            let goal = if limits.is_empty() { "1.5 s" } else { "" };
            self.rows.row(&format!("manager: processor time, 0 -> {count}{limits}"), goal, format!("{seconds:.2} s"));
        }
        Ok(memory)
    }

    /// What is there before the Pods are.
    async fn prepare(&self, way: Way, name: &str) -> Result<()> {
        let (kind, object) = match way {
            Way::Bare | Way::Gated | Way::Limited => return warm(&self.t).await,
            Way::CloneSet => ("CloneSet", clone_set(name, 0)),
            Way::Deployment => ("Deployment", deployment(name, 0)),
        };
        self.t.create(object).await?;
        let seen = |o: &Value| o.int("/status/observedGeneration") >= 1;
        self.t.wait_for(kind, name, "to be seen", PATIENCE, seen).await.map(drop)
    }

    /// One row for each side: the median of its rounds, and of their ratios to the same round of the bare client.
    fn compare(&mut self, what: &str, goal: &str, times: &Times) {
        let bare = if times.contains_key(&Way::Bare) { Way::Bare } else { Way::Gated };
        let beside = |seconds: &[f64], other: Way| {
            let others = times.get(&other)?;
            let ratios: Vec<f64> = seconds.iter().zip(others).map(|(ours, theirs)| ours / theirs).collect();
            of_rounds(&ratios, |ratio| format!("{ratio:.2}"), "x")
        };
        for (way, seconds) in times {
            let Some(middle) = of_rounds(seconds, |seconds| format!("{seconds:.1}"), " s") else { continue };
            let ratio = beside(seconds, bare).filter(|_| *way != bare);
            let wanted = if *way == Way::CloneSet { goal } else { "" };
            let text = ratio.map_or(middle.clone(), |ratio| format!("{ratio}: {middle}"));
            self.rows.row(&format!("{what}: {}", way.text()), wanted, text);
            for (other, whom, goal) in [(Way::Gated, "the same Pods", goal), (Way::Limited, limited::BESIDE, "")] {
                if *way == Way::CloneSet
                    && other != bare
                    && let Some(ratio) = beside(seconds, other)
                {
                    self.rows.row(&format!("{what}: CloneSet beside {whom}"), goal, ratio);
                }
            }
        }
    }

    /// What the manager used and wrote to bring the Pods up.
    fn costs_of_pods(&mut self, step: &Step, used: Usage, count: usize) -> Result<()> {
        self.rows.row(&format!("manager: memory, {count} Pods"), "25 MB", megabytes(used.memory));
        self.rows.row("manager: memory, peak until then", "", megabytes(used.peak));
        let each = |n: usize| n as f64 / count as f64;
        self.rows.row("reconciles per created Pod", "", format!("{:.2}", each(step.reconciles)));
        let written = writes(self.paths, step.span)?;
        let total: usize = written.values().sum();
        self.rows.row("API writes per created Pod, besides Events", "2", format!("{:.2}", each(total)));
        println!("what the manager wrote for {count} Pods:");
        for (what, n) in &written {
            println!("  {n:>6}  {:>6.3} a Pod  {what}", each(*n));
        }
        Ok(())
    }

    /// Image updates in place, by the CloneSet and by a bare client of either account, each with Pods of its own.
    pub(super) async fn in_place(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let (mut times, mut costs) = (Times::new(), InPlace::default());
        let sides = [(Side::Bare, Way::Gated), (Side::Limited, Way::Limited), (Side::CloneSet, Way::CloneSet)];
        let ways: Vec<Way> = sides.into_iter().filter(|(side, _)| self.has(*side)).map(|(_, way)| way).collect();
        for round in 0..self.options.rounds {
            for way in in_turn(&ways, round) {
                let name = format!("{}-c{round}", format!("{way:?}").to_lowercase());
                if way == Way::Limited {
                    let how_many = (count, max_unavailable(count), Marks::StateAndHash);
                    let seconds = self.limited_in_place(&name, how_many, |index| gated_pod(&name, index)).await?;
                    times.entry(way).or_default().push(seconds);
                    continue;
                }
                let pods = Census::begin(&t, &name).await?;
                self.prepare(way, &name).await?;
                create(&t, way, &name, count).await?;
                pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
                let seconds = match way {
                    Way::CloneSet => self.in_place_own(&name, &pods, &mut costs).await?,
                    _ => {
                        let update = in_place_bare(&t, &name, &pods, count);
                        self.step(&format!("bare client, {count} updates in place"), update).await?.seconds
                    }
                };
                times.entry(way).or_default().push(seconds);
                delete(&t, way, &name, count).await?;
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
            }
        }
        self.compare(&format!("{count} updates in place, maxUnavailable 20 %"), "1.2x", &times);
        if let Some(most) = costs.not_ready.iter().max() {
            let goal = max_unavailable(count).to_string();
            self.rows.row(&format!("{count} updates in place: most that were not ready"), &goal, most.to_string());
        }
        for (what, values, unit) in [
            ("API writes per update in place, besides Events", &costs.writes, ""),
            ("updates in place: processor time of the manager", &costs.processor, " s"),
            ("reconciles per update in place", &costs.reconciles, ""),
        ] {
            if let Some(text) = of_rounds(values, |value| format!("{value:.2}"), unit) {
                self.rows.row(what, "", text);
            }
        }
        Ok(())
    }

    /// An image update of the CloneSet whose Pods are there: the seconds it took.
    async fn in_place_own(&mut self, name: &str, pods: &Census, costs: &mut InPlace) -> Result<f64> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let mut template = template(name);
        template["spec"]["containers"][0]["image"] = IMAGES[1].into();
        pods.begin_lowest();
        let update = async {
            t.patch("CloneSet", name, json!({ "spec": { "template": template } })).await?;
            pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
        };
        let step = self.step(&format!("CloneSet, {count} updates in place"), update).await?;
        costs.not_ready.push(count.saturating_sub(pods.lowest()));
        let written = writes(self.paths, step.span)?;
        costs.writes.push(written.values().sum::<usize>() as f64 / count as f64);
        costs.processor.push(step.manager);
        costs.reconciles.push(step.reconciles as f64 / count as f64);
        for (what, n) in &written {
            println!("  {n:>6}  {what}");
        }
        self.t.list("Pod", &format!("app={name}")).await?.iter().try_for_each(|pod| {
            let restarts = pod.int("/status/containerStatuses/0/restartCount");
            ensure!(restarts == 1, "{} was restarted {restarts} times", pod.text("/metadata/name"));
            Ok(())
        })?;
        Ok(step.seconds)
    }
}
