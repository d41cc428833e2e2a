//! What users want of the CloneSet next, and how they answer its hooks.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt, pin_mut};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};

use super::{BUDGET, NAME};
use crate::history::HOOKS;
use crate::kit::{Look, Test};
use crate::liveness::Random;
use crate::player::on_played_nodes;

/// Numbers as this module wants them.
pub(super) trait Choose {
    fn number(&mut self, bound: u64) -> u64;
    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool;
    fn milliseconds(&mut self, bound: u64) -> Duration;
}

impl Choose for Random {
    fn number(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.number(times) == 0
    }

    fn milliseconds(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.number(bound))
    }
}

/// A hook of the CloneSet: a label and its value, or a finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Label,
    Finalizer,
    Both,
}

/// The hooks of the CloneSet, and who answers them.
#[derive(Debug, Clone, Default)]
pub(super) struct Hooks {
    before_delete: Option<Hook>,
    around_update: Option<Hook>,
    before_normal: Option<Hook>,
    /// Pods that wait for these are taken out of service.
    not_ready: bool,
    /// An answer takes at most that long.
    milliseconds: u64,
}

impl Hooks {
    fn new(random: &mut Random) -> Self {
        let kinds = [None, None, Some(Hook::Label), Some(Hook::Finalizer), Some(Hook::Both)];
        let mut one = || random.one_of(&kinds).copied().flatten();
        Self {
            before_delete: one(),
            around_update: one(),
            before_normal: one(),
            not_ready: random.once_in(2),
            milliseconds: random.number(800) + 1,
        }
    }

    /// Whether there is one before a deletion and one around an update.
    pub(super) fn has_both(&self) -> bool {
        self.before_delete.is_some() && self.around_update.is_some()
    }

    fn all(&self) -> [(&'static str, Option<Hook>); 3] {
        [("preDelete", self.before_delete), ("inPlaceUpdate", self.around_update), ("preNormal", self.before_normal)]
    }

    fn lifecycle(&self) -> Value {
        let mut lifecycle = json!({});
        for (name, hook) in self.all() {
            let Some(hook) = hook else { continue };
            lifecycle[name] = json!({});
            if hook != Hook::Finalizer {
                lifecycle[name]["labelsHandler"] = json!({ format!("{HOOKS}{name}"): "on" });
            }
            if hook != Hook::Label {
                lifecycle[name]["finalizersHandler"] = json!([format!("{HOOKS}{name}")]);
            }
            if self.not_ready && name != "preNormal" {
                lifecycle[name]["markPodNotReady"] = true.into();
            }
        }
        lifecycle
    }

    /// Puts the label and the finalizer of a hook onto an object, or takes them off.
    fn set(hook: Hook, name: &str, on: bool, metadata: &mut Value) {
        let key = format!("{HOOKS}{name}");
        if hook != Hook::Finalizer {
            metadata["labels"][&key] = if on { "on".into() } else { Value::Null };
        }
        if hook != Hook::Label {
            let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
            finalizers.retain(|f| *f != key);
            if on {
                finalizers.push(key.into());
            }
            metadata["finalizers"] = finalizers.into();
        }
    }

    /// What the users behind the hooks do about a Pod, as a merge patch.
    fn answer(&self, pod: &Value) -> Option<Value> {
        let deleting = pod.has("/metadata/deletionTimestamp");
        let state = pod.text("/metadata/labels/lifecycle.apps.kruise.io~1state");
        let before = json!({ "labels": {}, "finalizers": pod.array("/metadata/finalizers") });
        let mut metadata = before.clone();
        for (name, hook) in self.all() {
            let Some(hook) = hook else { continue };
            let on = match (name, state) {
                // somebody else deleted it
                _ if deleting => false,
                ("preDelete", "PreparingDelete") | ("inPlaceUpdate", "PreparingUpdate") => false,
                ("inPlaceUpdate", "Updated") | ("preNormal", "PreparingNormal") => true,
                _ => continue,
            };
            Self::set(hook, name, on, &mut metadata);
        }
        let is_so = |(key, value): (&String, &Value)| {
            pod["metadata"]["labels"].get(key) == Some(value).filter(|v| !v.is_null())
        };
        let labels = metadata["labels"].as_object()?;
        if metadata["finalizers"] == before["finalizers"] && labels.iter().all(is_so) {
            return None;
        }
        metadata["resourceVersion"] = pod.text("/metadata/resourceVersion").into();
        Some(json!({ "metadata": metadata }))
    }

    /// Answers the hooks of all Pods, each after a while. What has changed meanwhile is looked at anew.
    pub(super) async fn play(self, api: Api<DynamicObject>, mut random: Random) {
        let events = watcher(api.clone(), watcher::Config::default());
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
            let answer = |pod: &DynamicObject| self.answer(&serde_json::to_value(pod).ok()?);
            if answer(&pod).is_none() {
                continue;
            }
            let (hooks, api, pause) = (self.clone(), api.clone(), random.milliseconds(self.milliseconds));
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let name = pod.metadata.name.unwrap_or_default();
                if let Ok(Some(pod)) = api.get_opt(&name).await
                    && let Some(patch) = serde_json::to_value(pod).ok().and_then(|pod| hooks.answer(&pod))
                {
                    // after a conflict the watch shows the newer one
                    let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                }
            });
        }
    }
}

/// A label of Pods, by which they may be sorted, and its values.
const COLOR: &str = "color";
const COLORS: [&str; 2] = ["a-1", "b-2"];

/// One of these values, and the patch that gives it to a Pod.
pub(super) fn color(random: &mut Random) -> (&'static str, Value) {
    let color = COLORS[random.below(COLORS.len())];
    (color, json!({ "metadata": { "labels": { COLOR: color } } }))
}

/// Which Pods are updated first.
#[derive(Debug, Clone, Copy)]
enum Order {
    Any,
    Weights,
    Keys,
    Scattered,
}

impl Order {
    const ALL: [Self; 4] = [Self::Any, Self::Weights, Self::Keys, Self::Scattered];

    /// The priority strategy, which is nothing or has one list that is not empty, and the scatter strategy.
    fn strategies(self) -> (Value, Value) {
        let [a, b] = COLORS;
        let weight = |weight: u64, color: &str| json!({ "weight": weight, "matchSelector": { "matchLabels": { COLOR: color } } });
        // A merge patch keeps the list that it does not name.
        let priority = match self {
            Self::Weights => json!({ "weightPriority": [weight(10, a), weight(20, b)], "orderPriority": [] }),
            Self::Keys => json!({ "weightPriority": [], "orderPriority": [{ "orderedKey": COLOR }] }),
            Self::Any | Self::Scattered => Value::Null,
        };
        let scatter = match self {
            Self::Scattered => json!([{ "key": COLOR, "value": a }, { "key": COLOR, "value": b }]),
            Self::Any | Self::Weights | Self::Keys => json!([]),
        };
        (priority, scatter)
    }
}

/// What the CloneSet is to be next.
pub(super) struct Wanted {
    pub(super) replicas: u64,
    pub(super) image: String,
    /// A broken image was wanted at some time: Pods that stay on it never run.
    pub(super) was_broken: bool,
    /// `maxUnavailable` of the PodUnavailableBudget of its Pods, if there is one.
    pub(super) protection: Option<u64>,
    pub(super) partition: Value,
    pub(super) max_unavailable: Value,
    pub(super) max_surge: Value,
    pub(super) paused: bool,
    pub(super) kind: &'static str,
    pub(super) grace: u64,
    pub(super) min_ready: u64,
    pub(super) hooks: Hooks,
    pub(super) with_hooks: bool,
    /// The node of Pods with claims: without a scheduler claims need no volume.
    node: Option<String>,
    pub(super) reuses_claims: bool,
    /// `scaleStrategy.maxUnavailable`.
    scale_most: Option<u64>,
    order: Order,
}

impl Wanted {
    pub(super) fn new(random: &mut Random, nodes: &str) -> Self {
        let seconds = [0, 0, 1, 2];
        let mut wanted = Self {
            replicas: 2 + random.number(5),
            image: "v0".into(),
            was_broken: false,
            protection: [None, None, Some(1), Some(2)][random.below(4)],
            partition: json!(0),
            max_unavailable: json!(1),
            max_surge: json!(0),
            paused: false,
            kind: random.one_of(&["ReCreate", "InPlaceIfPossible"]).copied().unwrap_or_default(),
            grace: random.one_of(&seconds).copied().unwrap_or_default(),
            min_ready: random.one_of(&seconds).copied().unwrap_or_default(),
            hooks: if random.once_in(3) { Hooks::default() } else { Hooks::new(random) },
            with_hooks: true,
            node: random.once_in(3).then(|| format!("{nodes}{:04}", random.number(3))),
            reuses_claims: !random.once_in(3),
            scale_most: None,
            order: Order::Any,
        };
        wanted.budget(random);
        wanted.scale(random);
        wanted.sort(random);
        wanted
    }

    pub(super) fn has_claims(&self) -> bool {
        self.node.is_some()
    }

    /// Another limit for Pods that are unavailable while some are added; what it is.
    pub(super) fn scale(&mut self, random: &mut Random) -> String {
        self.scale_most = [None, None, Some(1), Some(2)][random.below(4)];
        format!("scaleStrategy.maxUnavailable {:?}", self.scale_most)
    }

    /// Another order of updates; what it is.
    pub(super) fn sort(&mut self, random: &mut Random) -> String {
        self.order = Order::ALL[random.below(Order::ALL.len())];
        format!("order {:?}", self.order)
    }

    /// Another pair of maxUnavailable and maxSurge that is valid: not both are nothing.
    pub(super) fn budget(&mut self, random: &mut Random) {
        let unavailable = [json!(0), json!(1), json!(2), json!("30%"), json!("50%")];
        let surge = [json!(0), json!(0), json!(1), json!(2), json!("40%")];
        self.max_unavailable = random.one_of(&unavailable).cloned().unwrap_or_default();
        self.max_surge = random.one_of(&surge).cloned().unwrap_or_default();
        self.repair();
    }

    pub(super) fn repair(&mut self) {
        if self.kind == "InPlaceOnly" {
            self.max_surge = json!(0);
        }
        if self.max_surge == json!(0) && self.max_unavailable == json!(0) {
            self.max_unavailable = json!(1);
        }
    }

    fn template(&self) -> Value {
        let mut template = template(&self.image);
        for (name, hook) in self.hooks.all() {
            if let Some(hook) = hook
                && name != "preNormal"
            {
                Hooks::set(hook, name, true, &mut template["metadata"]);
            }
        }
        if let Some(node) = &self.node {
            template["spec"]["nodeName"] = node.as_str().into();
        }
        template
    }

    pub(super) fn patch(&self) -> Value {
        let lifecycle = if self.with_hooks { self.hooks.lifecycle() } else { Value::Null };
        let (priority, scatter) = self.order.strategies();
        json!({ "spec": { "replicas": self.replicas, "template": self.template(), "minReadySeconds": self.min_ready,
            "lifecycle": lifecycle,
            "scaleStrategy": { "disablePVCReuse": !self.reuses_claims, "maxUnavailable": self.scale_most },
            "updateStrategy": { "type": self.kind, "partition": self.partition, "paused": self.paused,
                "inPlaceUpdateStrategy": { "gracePeriodSeconds": self.grace },
                "maxUnavailable": self.max_unavailable, "maxSurge": self.max_surge,
                "priorityStrategy": priority, "scatterStrategy": scatter } } })
    }

    /// The PodUnavailableBudget of its Pods becomes what is wanted.
    pub(super) async fn protect(&self, t: &Test) -> Result<()> {
        // both `spec`s have the same fields: what a merge patch leaves out stays
        let budget = |most: u64| {
            json!({ "kind": BUDGET, "metadata": { "name": NAME },
                "spec": { "selector": { "matchLabels": { "app": NAME } }, "maxUnavailable": most } })
        };
        match (self.protection, t.find(BUDGET, NAME).await?) {
            (Some(most), None) => t.create(budget(most)).await.map(drop),
            (Some(most), Some(_)) => t.patch(BUDGET, NAME, budget(most)).await.map(drop),
            (None, Some(_)) => t.remove(BUDGET, NAME).await,
            (None, None) => Ok(()),
        }
    }

    pub(super) fn object(&self, random: &mut Random) -> Value {
        let mut object = self.patch();
        object["kind"] = "CloneSet".into();
        object["metadata"] = json!({ "name": NAME });
        object["spec"]["selector"] = json!({ "matchLabels": { "app": NAME } });
        if self.node.is_some() {
            let spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } },
                "storageClassName": "none" });
            object["spec"]["volumeClaimTemplates"] = json!([{ "metadata": { "name": "data" }, "spec": spec }]);
        }
        if random.once_in(4) {
            object["metadata"]["labels"] =
                json!({ "apps.kruise.io/cloneset-scaling-exclude-preparing-delete": "true" });
        }
        object
    }
}

fn template(image: &str) -> Value {
    let spec = json!({ "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": format!("registry.example/app:{image}") }] });
    json!({ "metadata": { "labels": { "app": NAME } }, "spec": on_played_nodes(spec) })
}

/// Pods that are no business of the CloneSet: another label, and the right label without an owner.
pub(super) fn strangers() -> [Value; 2] {
    [("stranger", "other"), ("orphan", NAME)].map(|(name, app)| {
        let mut pod = template("v0");
        pod["kind"] = "Pod".into();
        pod["metadata"] = json!({ "name": name, "labels": { "app": app } });
        pod
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As admission wants it, and after a merge patch over any other order, too.
    #[test]
    fn an_order_is_one_strategy_or_none() {
        for (order, lists) in [
            (Order::Any, [false, false, false]),
            (Order::Weights, [true, false, false]),
            (Order::Keys, [false, true, false]),
            (Order::Scattered, [false, false, true]),
        ] {
            let (priority, scatter) = order.strategies();
            let is_there = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
            let found = [&priority["weightPriority"], &priority["orderPriority"], &scatter].map(is_there);
            assert_eq!(found, lists, "{order:?}");
            let says_both = priority["weightPriority"].is_array() && priority["orderPriority"].is_array();
            assert!((priority.is_null() || says_both) && scatter.is_array(), "{order:?}");
        }
    }
}
