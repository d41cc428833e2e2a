//! A SidecarSet as its controller reads it: defaults, numbers and selectors, made once from the stored object.

use serde_json::{Value, json};

use super::{defaults, hash::Hashes, matching::Aim, repair, revision};
use crate::{
    api::{
        apps::sidecar_set::{
            InjectRevision, NOT_UPDATE, SidecarContainer, SidecarSetInjectionStrategy, SidecarSetUpdateStrategy,
            twin_names,
        },
        labels,
    },
    domain::workload::{
        pod_order::Priority,
        rollout::{Invalid, number},
    },
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        null,
        selector::Selector,
    },
};

/// What a SidecarSet wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion`: the version of hot-upgraded sidecars.
    pub version: String,
    /// What identifies its containers.
    pub hashes: Hashes,
    /// Which Pods it is for.
    pub aim: Aim,
    /// Containers, then native sidecars: what is updated in place.
    pub sidecars: Vec<Sidecar>,
    /// Whether Pods that are there are updated.
    pub updates: bool,
    /// No Pod is updated for now.
    pub paused: bool,
    /// Only Pods with these labels are updated.
    pub selector: Option<Selector>,
    /// Of how many Pods the containers stay as they are.
    pub partition: IntOrPercent,
    /// How many Pods may be unavailable because of an update.
    pub max_unavailable: IntOrPercent,
    /// Which Pods come first.
    pub priority: Priority,
    /// Labels, as key and value, whose Pods are spread over the others; `*` is every value.
    pub scatter: Vec<(String, String)>,
    /// `spec.patchPodMetadata`.
    pub patches: Value,
    /// Whether Pods that lack its containers are evicted.
    pub repairs: bool,
    /// Whether new Pods get its containers.
    pub injects: bool,
    /// The former state that new Pods get; None: they get the present one.
    pub pinned: Option<InjectRevision>,
    /// How many revisions are kept.
    pub history: i32,
    /// The name that its author has given to this state; may be empty.
    pub custom_version: String,
    /// What its revision holds.
    pub data: Value,
}

/// A container that is updated in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// Its name in the SidecarSet.
    pub name: String,
    /// Its image.
    pub image: String,
    /// It stands twice in each Pod; the one that is not at work has this image.
    pub empty_image: Option<String>,
    /// It is an init container.
    pub is_native: bool,
}

impl Sidecar {
    /// The names that it has in Pods: one, or those of its twins.
    pub fn names(&self) -> Vec<String> {
        match self.empty_image {
            None => vec![self.name.clone()],
            Some(_) => self.twins().into(),
        }
    }

    /// The names of its twins, if it has some.
    pub fn twins(&self) -> [String; 2] {
        twin_names(&self.name)
    }
}

impl Spec {
    /// Of a SidecarSet as it is stored.
    ///
    /// # Errors
    /// Naming the field that cannot be read.
    pub fn of(object: &Value) -> Result<Self, Invalid> {
        let (spec, hashes) = defaults::effective(object);
        // With type NotUpdate the other fields mean nothing, and admission accepts any values.
        let strategy = match &spec["updateStrategy"]["type"] {
            kind if *kind == NOT_UPDATE => json!({ "type": kind }),
            _ => null::pruned(&spec["updateStrategy"]),
        };
        let strategy: SidecarSetUpdateStrategy =
            serde_json::from_value(strategy).map_err(|error| Invalid(format!("spec.updateStrategy: {error}")))?;
        let injection: SidecarSetInjectionStrategy = match &spec["injectionStrategy"] {
            Value::Null => SidecarSetInjectionStrategy::default(),
            injection => serde_json::from_value(null::pruned(injection))
                .map_err(|error| Invalid(format!("spec.injectionStrategy: {error}")))?,
        };
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let label = object.get("metadata").and_then(|meta| meta.get("labels")?.get(labels::SIDECAR_SET_CUSTOM_VERSION));
        let label = label.and_then(Value::as_str).unwrap_or_default();
        let version = text("/spec/customVersion");
        let selector = strategy.selector.as_ref().map(Selector::of).transpose();
        Ok(Self {
            name: text("/metadata/name"),
            version: text("/metadata/resourceVersion"),
            aim: Aim::of(&spec)?,
            sidecars: sidecars(&spec)?,
            updates: strategy.type_ != NOT_UPDATE,
            paused: strategy.paused,
            selector: selector.map_err(|Invalid(why)| Invalid(format!("spec.updateStrategy.selector: {why}")))?,
            partition: number("updateStrategy.partition", strategy.partition.as_ref(), IntOrPercent::Int(0))?,
            max_unavailable: number(
                "updateStrategy.maxUnavailable",
                strategy.max_unavailable.as_ref(),
                IntOrPercent::Int(1),
            )?,
            priority: Priority::of("spec.updateStrategy.priorityStrategy", strategy.priority_strategy.as_ref())?,
            scatter: strategy.scatter_strategy.into_iter().map(|term| (term.key, term.value)).collect(),
            patches: spec["patchPodMetadata"].clone(),
            repairs: annotation(object, labels::REPAIR_UNINJECTED) == Some(repair::EVICT),
            injects: !injection.paused,
            pinned: injection.pinned(),
            history: spec["revisionHistoryLimit"]
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(defaults::HISTORY)
                .max(1),
            custom_version: if version.is_empty() { label.to_owned() } else { version },
            data: revision::data(&spec),
            hashes,
        })
    }

    /// How many Pods may be unavailable because of an update, of so many. A percentage is at least one Pod, so that no update
    /// stands still; 0, which was stored before it was refused, means that no Pod in service is updated.
    pub fn limit(&self, pods: i32) -> i32 {
        match self.max_unavailable {
            IntOrPercent::Int(0) => 0,
            IntOrPercent::Percent(percent) if percent <= 0.0 => 0,
            limit => limit.resolve(pods, Round::Up).max(1),
        }
    }
}

fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

fn sidecars(spec: &Value) -> Result<Vec<Sidecar>, Invalid> {
    let list = |key: &str| -> Result<Vec<SidecarContainer>, Invalid> {
        let list = null::pruned(&spec[key]);
        if list.is_null() {
            return Ok(Vec::new());
        }
        serde_json::from_value(list).map_err(|error| Invalid(format!("spec.{key}: {error}")))
    };
    let sidecar = |container: &SidecarContainer, is_native: bool| Sidecar {
        name: container.name.clone(),
        image: container.image().to_owned(),
        empty_image: container.is_hot_upgrade().then(|| container.empty_image().to_owned()),
        is_native,
    };
    let (containers, init) = (list("containers")?, list("initContainers")?);
    let native = init.iter().filter(|container| container.is_native_sidecar());
    Ok(containers.iter().map(|c| sidecar(c, false)).chain(native.map(|c| sidecar(c, true))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(spec: Value) -> Result<Spec, Invalid> {
        Spec::of(&json!({"metadata": {"name": "logs", "resourceVersion": "7"}, "spec": spec}))
    }

    #[test]
    fn a_bare_set_has_the_defaults() {
        let spec = of(json!({"selector": {"matchLabels": {"a": "b"}}, "containers": [{"name": "c", "image": "i:1"}]}))
            .unwrap();
        assert!(spec.updates && !spec.paused && spec.selector.is_none() && spec.custom_version.is_empty());
        assert!(spec.injects && spec.pinned.is_none());
        assert_eq!(
            (spec.partition, spec.max_unavailable, spec.history),
            (IntOrPercent::Int(0), IntOrPercent::Int(1), 10)
        );
        assert_eq!((spec.name.as_str(), spec.version.as_str()), ("logs", "7"));
        assert_eq!(
            spec.sidecars,
            [Sidecar { name: "c".into(), image: "i:1".into(), empty_image: None, is_native: false }]
        );
    }

    #[test]
    fn native_and_hot_sidecars_are_updated_and_plain_init_containers_are_not() {
        let hot = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e:1"});
        let spec = of(json!({"containers": [{"name": "mesh", "image": "m:1", "upgradeStrategy": hot}],
            "initContainers": [{"name": "setup", "image": "s:1"}, {"name": "log", "image": "l:1", "restartPolicy": "Always"}]}))
        .unwrap();
        let names: Vec<(Vec<String>, bool)> = spec.sidecars.iter().map(|s| (s.names(), s.is_native)).collect();
        assert_eq!(names, [(vec!["mesh-1".into(), "mesh-2".into()], false), (vec!["log".into()], true)]);
    }

    #[test]
    fn d16_a_percentage_never_stops_an_update() {
        let spec = of(json!({"updateStrategy": {"maxUnavailable": "1%"}})).unwrap();
        assert_eq!([0, 1, 10, 1000].map(|pods| spec.limit(pods)), [1, 1, 1, 10]);
        for (limit, wanted) in [(json!(0), 0), (json!("0%"), 0), (json!(null), 1), (json!(2), 2)] {
            let spec = of(json!({"updateStrategy": {"maxUnavailable": limit}})).unwrap();
            assert_eq!(spec.limit(5), wanted, "{limit}");
        }
    }

    #[test]
    fn a2_of_one_that_is_not_updated_the_rest_of_the_strategy_says_nothing() {
        let odd = json!({"type": "NotUpdate", "partition": "many", "maxUnavailable": -1, "selector": {"matchLabels": 1},
            "priorityStrategy": {"weightPriority": [{"weight": "x"}]}, "scatterStrategy": 5});
        let spec = of(json!({"updateStrategy": odd})).unwrap();
        assert!(!spec.updates && spec.selector.is_none() && spec.scatter.is_empty());
        assert_eq!((spec.partition, spec.max_unavailable), (IntOrPercent::Int(0), IntOrPercent::Int(1)));
    }

    #[test]
    fn what_new_pods_get_is_read_in_both_forms() {
        for (injection, version) in [
            (json!({"paused": true, "customVersion": "v1"}), Some("v1")),
            (json!({"paused": true, "revision": {"customVersion": "v2"}}), Some("v2")),
            (json!({"paused": true}), None),
        ] {
            let spec = of(json!({"injectionStrategy": injection})).unwrap();
            assert_eq!(spec.pinned.and_then(|pinned| pinned.custom_version).as_deref(), version);
            assert!(!spec.injects);
        }
    }

    #[test]
    fn nulls_in_the_spec_are_read_as_nothing() {
        let bare = json!({"selector": {"matchLabels": {"a": "b"}}, "containers": [{"name": "c", "image": "i:1"}]});
        let nulls = json!({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": null}, "namespace": null,
            "namespaceSelector": null, "customVersion": null, "initContainers": null, "volumes": null, "imagePullSecrets": null,
            "patchPodMetadata": null, "revisionHistoryLimit": null, "updateStrategy": {"type": null, "paused": null,
                "partition": null, "maxUnavailable": null, "selector": null, "priorityStrategy": null, "scatterStrategy": null},
            "injectionStrategy": {"paused": null, "revision": null, "revisionName": null},
            "containers": [{"name": "c", "image": "i:1", "env": null, "ports": null, "transferEnv": null, "resourcesPolicy": null,
                "upgradeStrategy": {"upgradeType": null, "hotUpgradeEmptyImage": null}, "shareVolumePolicy": null,
                "resources": {"limits": null}, "livenessProbe": null}]});
        let (wanted, read) = (of(bare).unwrap(), of(nulls).unwrap());
        assert_eq!(Spec { patches: wanted.patches.clone(), ..read }, wanted);
    }

    #[test]
    fn repair_is_switched_on_by_one_value_alone() {
        for (annotations, wanted) in [
            (json!({"kruise.rs/repair-uninjected": "evict"}), true),
            (json!({"kruise.rs/repair-uninjected": "true"}), false),
            (json!({}), false),
            (Value::Null, false),
        ] {
            let object = json!({"metadata": {"name": "logs", "annotations": annotations}, "spec": {}});
            assert_eq!(Spec::of(&object).unwrap().repairs, wanted, "{object}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (spec, field) in [
            (json!({"updateStrategy": {"partition": "many"}}), "spec.updateStrategy.partition"),
            (
                json!({"updateStrategy": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}}),
                "spec.updateStrategy.selector",
            ),
            (json!({"containers": [{"image": "a"}]}), "spec.containers"),
            (json!({"injectionStrategy": {"paused": "yes"}}), "spec.injectionStrategy"),
        ] {
            let Invalid(why) = of(spec).unwrap_err();
            assert!(why.starts_with(field), "{why}");
        }
    }
}
