//! StatefulSet beside a bare client, whose Pods are the same and get the same writes, and beside the built-in StatefulSet.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::bare::{Marks, SAME_PODS};
use super::in_place::{Updater, Updates};
use super::{A_SECOND, Census, GATES, LONG, REVISIONS, Scale, create_gated, delete_bare, in_turn};
use super::{limited, template, warm, workload};
use crate::kit::{Look, PATIENCE, Test};
use crate::measure::{Usage, megabytes, settle, writes};

/// Pods that are made one after the other.
const ORDERED: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Bare,
    Ours,
    BuiltIn,
}

impl Who {
    fn kind(self) -> &'static str {
        if self == Self::BuiltIn { "StatefulSet" } else { "AdvancedStatefulSet" }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Bare => SAME_PODS,
            Self::Ours => "StatefulSet",
            Self::BuiltIn => "built-in StatefulSet",
        }
    }
}

/// Seconds, one value for each round.
#[derive(Default)]
struct Times {
    bare: Vec<f64>,
    ours: Vec<f64>,
    built_in: Vec<f64>,
}

impl Times {
    fn of(&mut self, who: Who) -> &mut Vec<f64> {
        match who {
            Who::Bare => &mut self.bare,
            Who::Ours => &mut self.ours,
            Who::BuiltIn => &mut self.built_in,
        }
    }
}

fn pod_name(app: &str, ordinal: usize) -> String {
    format!("{app}-{ordinal}")
}

/// With everything that a Pod of the StatefulSet has. `owner` is an owner reference.
fn bare_pod(app: &str, ordinal: usize, owner: &Value) -> Value {
    let (mut pod, name) = (template(app), pod_name(app, ordinal));
    pod["kind"] = "Pod".into();
    pod["metadata"] = json!({ "name": name, "generateName": format!("{app}-"), "labels": { "app": app,
        "apps.kubernetes.io/pod-index": ordinal.to_string(), "statefulset.kubernetes.io/pod-name": name,
        "controller-revision-hash": format!("{app}-{}", REVISIONS[0]), "lifecycle.apps.kruise.io/state": "Normal" },
        "annotations": { "lifecycle.apps.kruise.io/timestamp": Timestamp::now() }, "ownerReferences": [owner] });
    pod["spec"]["hostname"] = name.into();
    pod["spec"]["subdomain"] = app.into();
    pod["spec"]["readinessGates"] = GATES.iter().map(|gate| json!({ "conditionType": gate })).collect();
    pod
}

/// A set whose Pods come and go all at once; ours updates them in place.
fn set(who: Who, name: &str, replicas: usize) -> Value {
    let mut set = workload("StatefulSet", name, replicas);
    set["spec"]["serviceName"] = name.into();
    set["spec"]["podManagementPolicy"] = "Parallel".into();
    if who == Who::Ours {
        set["apiVersion"] = "apps.kruise.io/v1beta1".into();
        set["spec"]["template"]["spec"]["readinessGates"] = json!([{ "conditionType": GATES[0] }]);
        set["spec"]["updateStrategy"] =
            json!({ "rollingUpdate": { "podUpdatePolicy": "InPlaceIfPossible", "maxUnavailable": "20%" } });
    }
    set
}

fn ordered(who: Who, name: &str, replicas: usize) -> Value {
    let mut set = set(who, name, replicas);
    set["spec"]["podManagementPolicy"] = "OrderedReady".into();
    if who == Who::Ours {
        set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = 1.into();
    }
    set
}

async fn resize(t: &Test, who: Who, name: &str, replicas: usize) -> Result<()> {
    t.patch(who.kind(), name, json!({ "spec": { "replicas": replicas } })).await.map(drop)
}

impl Scale<'_> {
    pub(super) async fn stateful_sets(&mut self) -> Result<()> {
        self.sets_up_and_down().await?;
        self.sets_in_order().await?;
        self.sets_in_place().await
    }

    /// An owner of the bare client's Pods, which is there before they are: the owner reference.
    async fn owner(&self, name: &str) -> Result<Value> {
        let owner = self.t.create(json!({ "kind": "ConfigMap", "metadata": { "name": name } })).await?;
        Ok(json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name,
            "uid": owner.text("/metadata/uid"), "controller": true, "blockOwnerDeletion": true }))
    }

    /// The owner of the other Pods.
    async fn prepare_set(&self, who: Who, name: &str, set: Value) -> Result<()> {
        self.t.create(set).await?;
        let seen = |o: &Value| o.int("/status/observedGeneration") >= 1;
        self.t.wait_for(who.kind(), name, "to be seen", PATIENCE, seen).await.map(drop)
    }

    async fn sets_up_and_down(&mut self) -> Result<()> {
        let (count, t) = (self.options.pods, self.t.clone());
        let (mut up, mut down) = (Times::default(), Times::default());
        for round in 0..self.options.rounds {
            for who in in_turn(&[Who::Bare, Who::Ours, Who::BuiltIn], round) {
                let name = format!("sts-{}-a{round}", format!("{who:?}").to_lowercase());
                let pods = Census::begin(&t, &name).await?;
                let owner = match who {
                    Who::Bare => {
                        warm(&t).await?;
                        self.owner(&name).await?
                    }
                    Who::Ours | Who::BuiltIn => {
                        self.prepare_set(who, &name, set(who, &name, 0)).await?;
                        Value::Null
                    }
                };
                let work = async {
                    match who {
                        Who::Bare => {
                            create_gated(&t, count, Marks::State, |ordinal| bare_pod(&name, ordinal, &owner)).await?;
                        }
                        Who::Ours | Who::BuiltIn => resize(&t, who, &name, count).await?,
                    }
                    pods.until("Pods to be ready", LONG, |c| c.ready == count).await
                };
                let step = self.step(&format!("{}, 0 -> {count}", who.text()), work).await?;
                up.of(who).push(step.seconds);
                if who == Who::Ours && round == 0 {
                    let written = writes(self.paths, step.span)?;
                    let each = |n: usize| n as f64 / count as f64;
                    let total = format!("{:.2}", each(written.values().sum()));
                    self.rows.row("StatefulSet: API writes per created Pod, besides Events", "2", total);
                    written.iter().for_each(|(what, n)| println!("  {n:>6}  {:>6.3} a Pod  {what}", each(*n)));
                    let what = format!("StatefulSet: processor time of the manager, 0 -> {count}");
                    self.rows.row(&what, "", format!("{:.2} s", step.manager));
                }
                let work = async {
                    match who {
                        Who::Bare => {
                            delete_bare(&t, (0..count).map(|ordinal| pod_name(&name, ordinal))).await?;
                        }
                        Who::Ours | Who::BuiltIn => resize(&t, who, &name, 0).await?,
                    }
                    pods.until("Pods to be gone", LONG, |c| c.total == 0).await
                };
                let step = self.step(&format!("{}, {count} -> 0", who.text()), work).await?;
                down.of(who).push(step.seconds);
            }
        }
        let what = format!("StatefulSet, 0 -> {count} Parallel");
        self.beside(&what, "1.15x", &up.ours, ("the bare client", &up.bare));
        self.beside(&what, "1.0x", &up.ours, ("the built-in one", &up.built_in));
        let what = format!("StatefulSet, {count} -> 0 Parallel");
        self.beside(&what, "1.2x", &down.ours, ("the bare client", &down.bare));
        self.beside(&what, "", &down.ours, ("the built-in one", &down.built_in));
        Ok(())
    }

    async fn sets_in_order(&mut self) -> Result<()> {
        let (count, t) = (ORDERED.min(self.options.pods), self.t.clone());
        let mut times = Times::default();
        // One after the other takes minutes, and differs little from round to round.
        for who in [Who::Ours, Who::BuiltIn] {
            let name = format!("sts-{}-order", format!("{who:?}").to_lowercase());
            let pods = Census::begin(&t, &name).await?;
            self.prepare_set(who, &name, ordered(who, &name, 0)).await?;
            let patience = LONG + (self.options.start_delay + Duration::from_secs(1)) * u32::try_from(count)?;
            let work = async {
                resize(&t, who, &name, count).await?;
                pods.until("Pods to be ready", patience, |c| c.ready == count).await
            };
            let step = self.step(&format!("{}, 0 -> {count} OrderedReady", who.text()), work).await?;
            times.of(who).push(step.seconds);
            t.remove(who.kind(), &name).await?;
            pods.until("Pods to be gone", patience, |c| c.total == 0).await?;
        }
        let what = format!("StatefulSet, 0 -> {count} OrderedReady");
        self.beside(&what, "1.0x", &times.ours, ("the built-in one", &times.built_in));
        Ok(())
    }

    async fn sets_in_place(&mut self) -> Result<()> {
        let (count, t) = (self.options.pods, self.t.clone());
        let (mut times, mut most) = (Updates::default(), 0);
        // 20 % rounded down, as the StatefulSet does.
        let at_once = (count / 5).max(1);
        let how_many = (count, at_once, Marks::State);
        let updaters = self.updaters();
        for round in 0..self.options.rounds {
            for updater in in_turn(&updaters, round) {
                let name = format!("sts-{}-c{round}", format!("{updater:?}").to_lowercase());
                let seconds = match updater {
                    Updater::Bare => {
                        let owner = self.owner(&name).await?;
                        let pod = |ordinal: usize| bare_pod(&name, ordinal, &owner);
                        self.client_in_place((&t, SAME_PODS), &name, how_many, pod).await?
                    }
                    Updater::Limited => {
                        let pod = |ordinal: usize| bare_pod(&name, ordinal, &Value::Null);
                        self.limited_in_place(&name, how_many, pod).await?
                    }
                    Updater::Ours => {
                        let (seconds, not_ready) = self.set_in_place(&name).await?;
                        most = most.max(not_ready);
                        seconds
                    }
                };
                times.of(updater).push(seconds);
            }
        }
        let what = format!("StatefulSet, {count} updates in place, maxUnavailable 20 %");
        self.beside(&what, "1.2x", &times.ours, ("the bare client", &times.bare));
        self.beside(&what, "", &times.ours, (limited::BESIDE, &times.limited));
        self.rows.row(&format!("{what}: most that were not ready"), &at_once.to_string(), most.to_string());
        Ok(())
    }

    /// An image update of a set of ours: the seconds it took, and how many Pods were not ready at most.
    async fn set_in_place(&mut self, name: &str) -> Result<(f64, usize)> {
        let (count, t, ours) = (self.options.pods, self.t.clone(), Who::Ours);
        let pods = Census::begin(&t, name).await?;
        let object = set(ours, name, count);
        let template = object["spec"]["template"].clone();
        self.prepare_set(ours, name, object).await?;
        pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
        let whose = (ours.kind(), ours.text());
        let (step, not_ready) = self.workload_updates(whose, (name, &pods, count), template).await?;
        self.each_was_restarted_once(name).await?;
        resize(&t, ours, name, 0).await?;
        pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
        Ok((step.seconds, not_ready))
    }

    /// What the manager needs for each Pod of many sets.
    pub(super) async fn many_stateful_sets(&mut self) -> Result<()> {
        let (big_pods, sets, t) = (self.options.big_pods, self.options.clone_sets, self.t.clone());
        let before = self.memory_of_a_new_manager().await?;
        let pods = Census::begin(&t, "many-sts").await?;
        let name = |index: usize| format!("many-sts-{index:04}");
        let make = |index: usize| {
            let replicas = big_pods / sets + usize::from(index < big_pods % sets);
            let (t, name) = (&t, name(index));
            async move {
                let mut object = set(Who::Ours, &name, replicas);
                object["spec"]["selector"] = json!({ "matchLabels": { "set": name } });
                object["spec"]["template"]["metadata"]["labels"] = json!({ "app": "many-sts", "set": name });
                t.create(object).await.map(drop)
            }
        };
        stream::iter(0..sets).map(make).buffer_unordered(16).try_collect::<()>().await?;
        let patience = LONG + Duration::from_secs(big_pods as u64 / A_SECOND);
        pods.until("Pods to be ready", patience, |c| c.ready == big_pods).await?;
        settle().await;
        let used = Usage::of(self.manager().await?.1)?;
        let what = format!("{sets} StatefulSets, {big_pods} Pods");
        self.rows.row(&format!("manager: memory, {what}"), "", megabytes(used.memory));
        let each = |memory: f64| format!("{:.0} bytes", (memory - before) * 1e6 / big_pods as f64);
        self.rows.row("manager: memory for each Pod of a StatefulSet", "2200 bytes", each(used.memory));
        let anew = self.memory_of_a_new_manager().await?;
        self.rows.row("manager: the same, started anew", "2200 bytes", each(anew));
        let remove = |index: usize| {
            let (t, name) = (&t, name(index));
            async move { t.remove(Who::Ours.kind(), &name).await }
        };
        stream::iter(0..sets).map(remove).buffer_unordered(16).try_collect::<()>().await?;
        pods.until("Pods to be gone", patience, |c| c.total == 0).await.map(drop)
    }
}
