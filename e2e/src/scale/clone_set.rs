//! CloneSet beside the bare client and beside Deployment: Pods come, are updated in place, and go.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::bare::{LIMITED, Marks, SAME_PODS, Way, clone_set, create, delete, deployment, gated_pod};
use super::bare::{max_unavailable, template, warm};
use super::census::Census;
use super::in_place::{Updater, Updates};
use super::{LONG, Scale, Side, Step, in_turn, limited, of_rounds, ratio_of_rounds};
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

/// A side beside others: what it is called, what is wanted of it, and its seconds, one for each round.
type Beside<'a> = (String, &'a str, &'a [f64]);

/// The seconds of one side; none if it was not measured.
fn of(times: &Times, way: Way) -> &[f64] {
    times.get(&way).map_or(&[], Vec::as_slice)
}

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
        self.compare_ways(&format!("0 -> {count} Pods ready{limits}{shows}"), "1.15x", &up);
        self.compare_ways(&format!("{count} -> 0{limits}"), "1.2x", &down);
        if let Some(seconds) = median(&used) {
            let goal = if limits.is_empty() { "1.5 s" } else { "" };
            self.rows.row(&format!("manager: processor time, 0 -> {count}{limits}"), goal, format!("{seconds:.2} s"));
        }
        Ok(memory)
    }

    /// What is there before the Pods are.
    async fn prepare(&self, way: Way, name: &str) -> Result<()> {
        let (kind, object) = match way {
            Way::Bare | Way::Gated => return warm(&self.t).await,
            Way::CloneSet => ("CloneSet", clone_set(name, 0)),
            Way::Deployment => ("Deployment", deployment(name, 0)),
        };
        self.t.create(object).await?;
        let seen = |o: &Value| o.int("/status/observedGeneration") >= 1;
        self.t.wait_for(kind, name, "to be seen", PATIENCE, seen).await.map(drop)
    }

    /// The rows of one step, with what is wanted of the CloneSet.
    fn compare_ways(&mut self, what: &str, goal: &str, times: &Times) {
        let sides = [Way::Bare, Way::Gated, Way::CloneSet, Way::Deployment].map(|way| {
            let wanted = if way == Way::CloneSet { goal } else { "" };
            (way.text(), wanted, of(times, way))
        });
        self.compare(what, &sides);
        self.clone_set_beside(what, goal, of(times, Way::CloneSet), ("the same Pods", of(times, Way::Gated)));
    }

    /// One row for each side that was measured: the median of its rounds, and of their ratios to the same rounds of the first
    /// side.
    fn compare(&mut self, what: &str, sides: &[Beside<'_>]) {
        for (index, (text, goal, seconds)) in sides.iter().enumerate() {
            let Some(middle) = of_rounds(seconds, |seconds| format!("{seconds:.1}"), " s") else { continue };
            let ratio = if index == 0 { None } else { ratio_of_rounds(seconds, sides[0].2) };
            let value = ratio.map_or(middle.clone(), |ratio| format!("{ratio}: {middle}"));
            self.rows.row(&format!("{what}: {text}"), goal, value);
        }
    }

    /// One row: the seconds of the CloneSet beside those of another side in the same rounds.
    fn clone_set_beside(&mut self, what: &str, goal: &str, ours: &[f64], (whom, others): (&str, &[f64])) {
        if let Some(ratio) = ratio_of_rounds(ours, others) {
            self.rows.row(&format!("{what}: CloneSet beside {whom}"), goal, ratio);
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
        let at_once = max_unavailable(count);
        let how_many = (count, at_once, Marks::StateAndHash);
        let (mut times, mut costs) = (Updates::default(), InPlace::default());
        let sides = [(Side::Bare, Updater::Bare), (Side::Limited, Updater::Limited), (Side::CloneSet, Updater::Ours)];
        let measured = sides.into_iter().filter(|(side, _)| self.has(*side));
        let updaters: Vec<Updater> = measured.map(|(_, updater)| updater).collect();
        for round in 0..self.options.rounds {
            for updater in in_turn(&updaters, round) {
                let name = format!("{}-c{round}", format!("{updater:?}").to_lowercase());
                let pod = |index: usize| gated_pod(&name, index);
                let seconds = match updater {
                    Updater::Bare => self.client_in_place((&t, SAME_PODS), &name, how_many, pod).await?,
                    Updater::Limited => self.limited_in_place(&name, how_many, pod).await?,
                    Updater::Ours => self.in_place_own(&name, &mut costs).await?,
                };
                times.of(updater).push(seconds);
            }
        }
        let what = format!("{count} updates in place, maxUnavailable 20 %");
        let sides = [
            (SAME_PODS.to_owned(), "", times.bare.as_slice()),
            (LIMITED.to_owned(), "", times.limited.as_slice()),
            (Way::CloneSet.text(), "1.2x", times.ours.as_slice()),
        ];
        self.compare(&what, &sides);
        self.clone_set_beside(&what, "", &times.ours, (limited::BESIDE, &times.limited));
        if let Some(most) = costs.not_ready.iter().max() {
            let what = format!("{count} updates in place: most that were not ready");
            self.rows.row(&what, &at_once.to_string(), most.to_string());
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

    /// An image update of a CloneSet: the seconds it took.
    async fn in_place_own(&mut self, name: &str, costs: &mut InPlace) -> Result<f64> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let pods = Census::begin(&t, name).await?;
        self.prepare(Way::CloneSet, name).await?;
        create(&t, Way::CloneSet, name, count).await?;
        pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
        let whose = ("CloneSet", "CloneSet");
        let (step, not_ready) = self.workload_updates(whose, (name, &pods, count), template(name)).await?;
        costs.not_ready.push(not_ready);
        let written = writes(self.paths, step.span)?;
        costs.writes.push(written.values().sum::<usize>() as f64 / count as f64);
        costs.processor.push(step.manager);
        costs.reconciles.push(step.reconciles as f64 / count as f64);
        for (what, n) in &written {
            println!("  {n:>6}  {what}");
        }
        self.each_was_restarted_once(name).await?;
        delete(&t, Way::CloneSet, name, count).await?;
        pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
        Ok(step.seconds)
    }
}
