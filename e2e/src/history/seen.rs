//! What is read of a CloneSet, of its Pods and of their claims.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::kit::Look;

/// How the labels and finalizers begin that stand for hooks.
pub const HOOKS: &str = "hooks.e2e/";
pub(super) const INSTANCE: &str = "/metadata/labels/apps.kruise.io~1cloneset-instance-id";
const GRACE: &str = "/metadata/annotations/apps.kruise.io~1inplace-update-grace";
const IN_PLACE: &str = "/metadata/annotations/apps.kruise.io~1inplace-update-state";

/// Labels, as KEY=VALUE, and finalizers, as their names.
pub type Tags = BTreeSet<String>;

/// A hook of a spec. An empty one is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hook(pub Tags);

impl Hook {
    fn of(clone_set: &Value, name: &str) -> Self {
        let hook = clone_set.pointer(&format!("/spec/lifecycle/{name}")).cloned().unwrap_or_default();
        let labels = hook["labelsHandler"].as_object().cloned().unwrap_or_default();
        let labels = labels.into_iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        let finalizers = hook.array("/finalizersHandler").iter().filter_map(Value::as_str).map(str::to_owned);
        Self(labels.chain(finalizers).collect())
    }

    pub(super) fn holds(&self, pod: &Pod) -> bool {
        !self.0.is_disjoint(&pod.tags)
    }

    pub(super) fn is_answered(&self, pod: &Pod) -> bool {
        self.0.is_subset(&pod.tags)
    }
}

/// A spec with its numbers worked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub replicas: i64,
    /// Pods that are to stay on other images.
    pub partition: i64,
    pub max_unavailable: i64,
    /// 0 while paused.
    pub max_surge: i64,
    pub image: String,
    pub pods_to_delete: Vec<String>,
    /// Seconds.
    pub min_ready: i64,
    pub before_delete: Hook,
    pub around_update: Hook,
    pub before_normal: Hook,
    /// Pods that wait for their hook before deletion do not count.
    pub excludes_waiting: bool,
    pub has_claims: bool,
    pub reuses_claims: bool,
}

/// A number, or a percentage of `of` as a real number.
fn number(value: Option<&Value>, of: i64) -> f64 {
    match value {
        Some(Value::String(text)) => text.trim_end_matches('%').parse::<f64>().unwrap_or_default() * of as f64 / 100.0,
        Some(value) => value.as_f64().unwrap_or_default(),
        None => 0.0,
    }
}

impl Spec {
    pub fn of(clone_set: &Value) -> Self {
        let strategy = |key: &str| clone_set.pointer(&format!("/spec/updateStrategy/{key}"));
        let replicas = clone_set.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        let paused = strategy("paused") == Some(&Value::Bool(true));
        let max_surge = if paused { 0 } else { number(strategy("maxSurge"), replicas).ceil() as i64 };
        let twenty = Value::from("20%");
        let unavailable = number(strategy("maxUnavailable").or(Some(&twenty)), replicas);
        let max_unavailable = if max_surge == 0 { unavailable.ceil() } else { unavailable.floor() } as i64;
        let mut partition = number(strategy("partition"), replicas).ceil() as i64;
        // a percentage below 100 updates at least one of several
        if let Some(Value::String(text)) = strategy("partition")
            && partition == replicas
            && replicas > 1
            && text != "100%"
        {
            partition -= 1;
        }
        let names = clone_set.array("/spec/scaleStrategy/podsToDelete").iter().filter_map(Value::as_str);
        let excludes = "/metadata/labels/apps.kruise.io~1cloneset-scaling-exclude-preparing-delete";
        Self {
            replicas,
            partition: partition.clamp(0, replicas),
            max_unavailable,
            max_surge,
            image: clone_set.text("/spec/template/spec/containers/0/image").to_owned(),
            pods_to_delete: names.map(str::to_owned).collect(),
            min_ready: clone_set.int("/spec/minReadySeconds"),
            before_delete: Hook::of(clone_set, "preDelete"),
            around_update: Hook::of(clone_set, "inPlaceUpdate"),
            before_normal: Hook::of(clone_set, "preNormal"),
            excludes_waiting: clone_set.text(excludes) == "true",
            has_claims: !clone_set.array("/spec/volumeClaimTemplates").is_empty(),
            reuses_claims: clone_set.pointer("/spec/scaleStrategy/disablePVCReuse") != Some(&Value::Bool(true)),
        }
    }
}

/// What counts of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    /// That it has, or is to have after its grace period.
    pub image: String,
    /// A change of its image waits until then.
    pub grace: Option<Timestamp>,
    pub ready: Option<Timestamp>,
    /// The update in place lets it be ready.
    pub gate: bool,
    /// A hook or a restart keeps it from being ready.
    pub drained: bool,
    pub state: String,
    pub deleting: bool,
    /// Failed or Succeeded.
    pub ended: bool,
    pub marked: bool,
    /// Those of hooks.
    pub tags: Tags,
    pub instance: String,
}

impl Pod {
    pub fn of(pod: &Value) -> Self {
        let condition = |kind: &str| crate::kit::condition(pod, kind);
        let since = |kind: &str| {
            let found = pod.array("/status/conditions").iter().find(|c| c.text("/type") == kind)?;
            (found.text("/status") == "True").then(|| found.text("/lastTransitionTime").parse().unwrap_or_default())
        };
        let labels = pod.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        let finalizers = pod.array("/metadata/finalizers").iter().filter_map(Value::as_str).map(str::to_owned);
        let json = |pointer: &str| serde_json::from_str::<Value>(pod.text(pointer)).ok();
        let pending = json(GRACE);
        let image = match pending.as_ref().map_or("", |p| p.text("/containerImages/main")) {
            "" => pod.text("/spec/containers/0/image"),
            waits => waits,
        };
        let grace = pending.as_ref().and_then(|pending| {
            let begun: Timestamp = json(IN_PLACE)?.text("/updateTimestamp").parse().ok()?;
            Some(begun + SignedDuration::from_secs(pending.int("/graceSeconds")))
        });
        Self {
            name: pod.text("/metadata/name").to_owned(),
            image: image.to_owned(),
            grace,
            ready: since("Ready"),
            gate: condition("InPlaceUpdateReady") != "False",
            drained: condition("KruisePodReady") == "False",
            state: pod.text("/metadata/labels/lifecycle.apps.kruise.io~1state").to_owned(),
            deleting: pod.has("/metadata/deletionTimestamp"),
            ended: ["Failed", "Succeeded"].contains(&pod.text("/status/phase")),
            marked: pod.has("/metadata/labels/apps.kruise.io~1specified-delete"),
            tags: labels.chain(finalizers).filter(|tag| tag.starts_with(HOOKS)).collect(),
            instance: pod.text(INSTANCE).to_owned(),
        }
    }

    pub fn active(&self) -> bool {
        !self.deleting && !self.ended
    }

    /// Its state is Normal, or it has none.
    pub fn normal(&self) -> bool {
        ["", "Normal"].contains(&self.state.as_str())
    }

    /// At that time, with so many seconds of readiness.
    pub fn available(&self, at: Timestamp, min_ready: i64) -> bool {
        let ready =
            self.ready.is_some_and(|since| min_ready == 0 || since + SignedDuration::from_secs(min_ready) <= at);
        self.active() && ready && self.in_service()
    }

    /// In service as budgets see it, whatever its lifecycle.
    pub(super) fn serves(&self) -> bool {
        self.active() && self.ready.is_some() && self.gate && !self.drained
    }

    /// The manager lets it be ready, and counts it then.
    pub(super) fn in_service(&self) -> bool {
        self.gate && !self.drained && self.normal()
    }
}

/// What counts of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    pub name: String,
    pub instance: String,
    pub deleting: bool,
}
