//! The normalised spec: what the controller reads of a StatefulSet, with every default applied and every number resolved.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{
    claim_template::{ClaimTemplate, wrong_name},
    numbering::{Ordinals, Reserved, ordinal_of},
};
pub use crate::domain::workload::rollout::Invalid;
use crate::{
    api::{
        apps::{
            lifecycle::Lifecycle,
            stateful_set::{RollingUpdate, StatefulSet},
            strategies::{ClaimRetention, ClaimUpdateType, PodManagementPolicy, PodUpdatePolicy, SetUpdateType},
        },
        labels,
    },
    domain::workload::{
        claims, make,
        overrides::{Overrides, Problem},
        pod_order::Priority,
        rollout,
        update_order::UpdateOrder,
    },
    k8s::int_or_percent::IntOrPercent,
};

/// Feature gates that change what a spec means.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gates {
    /// StatefulSetStartOrdinal.
    pub start_ordinal: bool,
    /// StatefulSetAutoDeletePVC.
    pub deletes_claims: bool,
    /// StatefulSetAutoResizePVCGate.
    pub grows_claims: bool,
}

/// What the controller reads of a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Name of the set.
    pub name: String,
    /// UID of the set.
    pub uid: String,
    /// `spec.replicas`.
    pub replicas: i32,
    /// The first ordinal; 0 without gate StatefulSetStartOrdinal.
    pub start: i32,
    /// `spec.ordinals.start`, whether it has an effect or not.
    pub start_in_spec: i32,
    /// The ordinals that are wanted.
    pub ordinals: Ordinals,
    /// Ordinals that no Pod gets.
    pub reserved: Reserved,
    /// OrderedReady: one Pod after the other.
    pub is_ordered: bool,
    /// How many Pods may be unavailable while Pods are created, if that is limited.
    pub scale_max_unavailable: Option<i32>,
    /// How Pods are updated.
    pub update: Update,
    /// Seconds for which a Pod has to be Ready to be available.
    pub min_ready_seconds: i32,
    /// Hooks.
    pub lifecycle: Lifecycle,
    /// Whether the spec has `lifecycle` at all: an update passes through Updated then.
    pub has_lifecycle: bool,
    /// Claim templates, in their order.
    pub claims: Vec<ClaimTemplate>,
    /// Whether claims are grown by a rolling update.
    pub grows_claims: bool,
    /// What becomes of claims; None without gate StatefulSetAutoDeletePVC.
    pub retention: Option<Retention>,
    /// `spec.revisionHistoryLimit`.
    pub revision_history_limit: i32,
    /// `spec.template`, as it is stored.
    pub template: Value,
    /// `spec.serviceName`.
    pub service_name: String,
    /// `spec.selector`.
    pub selector: LabelSelector,
    /// Annotation `kruise.rs/update-order`: which Pods are updated last, by a label.
    pub update_order: Option<UpdateOrder>,
    /// Annotation `kruise.rs/ordinal-overrides`: changes of the template for single ordinals.
    pub overrides: Overrides,
}

/// The most replicas of a StatefulSet. A pass looks at every ordinal: without a bound one set could use up the manager's
/// memory.
pub const MOST_REPLICAS: i32 = 100_000;

/// The most claims of a StatefulSet, replicas times claim templates: a pass looks for every one of them.
pub const MOST_CLAIMS: usize = 200_000;

/// Why a set with so many replicas and claim templates is refused, if it is.
pub fn too_many_claims(replicas: i32, templates: usize) -> Option<String> {
    // Surplus Pods have claims too, when no replica is wanted any more.
    let pods = usize::try_from(replicas).unwrap_or(0).max(1);
    let claims = pods.saturating_mul(templates);
    (claims > MOST_CLAIMS).then(|| {
        format!(
            "{templates} templates with {replicas} replicas are {claims} claims; want up to {MOST_CLAIMS} claims in all"
        )
    })
}

impl Spec {
    /// From a stored set, whether admission has seen it or not.
    ///
    /// # Errors
    /// Naming a field that cannot be read: nothing is done on a guess.
    pub fn of(set: &StatefulSet, gates: Gates) -> Result<Self, Invalid> {
        let spec = &set.spec;
        let replicas = spec.replicas.unwrap_or(1).max(0);
        if replicas > MOST_REPLICAS {
            return Err(Invalid(format!("spec.replicas: {replicas} is not allowed; want up to {MOST_REPLICAS}")));
        }
        if let Some(why) = make::not_selected(&spec.selector, &spec.template) {
            return Err(Invalid(why));
        }
        let claims = spec.volume_claim_templates.as_ref().and_then(Value::as_array);
        if let Some(message) = too_many_claims(replicas, claims.map_or(0, Vec::len)) {
            return Err(Invalid(format!("spec.volumeClaimTemplates: {message}")));
        }
        let claims: Vec<ClaimTemplate> = claims.into_iter().flatten().map(ClaimTemplate::of).collect();
        // Its Pods would be refused for ever, those too that replace others.
        if let Some(message) = wrong_name(&claims) {
            return Err(Invalid(message));
        }
        let start_in_spec = spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start).max(0);
        let start = if gates.start_ordinal { start_in_spec } else { 0 };
        let reserved = Reserved::parse(&spec.reserve_ordinals)?;
        let is_ordered = PodManagementPolicy::parse(&spec.pod_management_policy) != Some(PodManagementPolicy::Parallel);
        let rolling = spec.update_strategy.rolling_update.as_ref();
        let update_type = &spec.update_strategy.type_;
        let update = match SetUpdateType::parse(update_type) {
            Some(SetUpdateType::RollingUpdate) => {
                Update::Rolling(Rolling::of(&rolling.cloned().unwrap_or_default(), replicas, is_ordered)?)
            }
            Some(SetUpdateType::OnDelete) => Update::OnDelete,
            None => return Err(Invalid(format!("spec.updateStrategy.type: {update_type:?} is not known"))),
        };
        let scale = spec.scale_strategy.as_ref().and_then(|scale| scale.max_unavailable.as_ref());
        let scale =
            scale.map(|value| rollout::number("scaleStrategy.maxUnavailable", Some(value), IntOrPercent::Int(1)));
        let scale = scale.transpose()?.map(|limit| rollout::at_least_one(limit, replicas));
        let policy = spec.persistent_volume_claim_retention_policy.clone().unwrap_or_default();
        let growth = spec.volume_claim_update_strategy.as_ref();
        let growth = growth.and_then(|strategy| ClaimUpdateType::parse(&strategy.type_));
        let deletes = |value: &str| ClaimRetention::parse(value) == Some(ClaimRetention::Delete);
        Ok(Self {
            name: set.metadata.name.clone().unwrap_or_default(),
            uid: set.metadata.uid.clone().unwrap_or_default(),
            replicas,
            start,
            start_in_spec,
            ordinals: Ordinals::new(replicas, start, &reserved),
            reserved,
            is_ordered,
            scale_max_unavailable: scale,
            update,
            min_ready_seconds: rolling.and_then(|rolling| rolling.min_ready_seconds).unwrap_or(0).max(0),
            lifecycle: spec.lifecycle.clone().unwrap_or_default(),
            has_lifecycle: spec.lifecycle.is_some(),
            claims,
            grows_claims: gates.grows_claims && growth == Some(ClaimUpdateType::OnPodRollingUpdate),
            retention: gates.deletes_claims.then(|| Retention {
                delete_with_set: deletes(&policy.when_deleted),
                delete_with_pod: deletes(&policy.when_scaled),
            }),
            revision_history_limit: spec.revision_history_limit.unwrap_or(10),
            template: spec.template.clone(),
            service_name: spec.service_name.clone(),
            selector: spec.selector.clone(),
            update_order: update_order(set)?,
            overrides: overrides(set)?,
        })
    }

    /// The hooks alone, for whoever needs nothing else of the spec, or cannot have it.
    pub fn hooks_of(set: &StatefulSet) -> Option<&Lifecycle> {
        set.spec.lifecycle.as_ref()
    }

    /// The hooks, if the spec has any.
    pub fn hooks(&self) -> Option<&Lifecycle> {
        self.has_lifecycle.then_some(&self.lifecycle)
    }

    /// The rules of a rolling update; None with OnDelete.
    pub fn rolling(&self) -> Option<&Rolling> {
        match &self.update {
            Update::Rolling(rolling) => Some(rolling),
            Update::OnDelete => None,
        }
    }
}

/// Whether a claim may be one of the set with this name, whatever its templates are called. A cheap check by name
/// alone: every change of a claim asks all sets of its namespace, and few have it.
pub fn may_have_claim(set: &str, claim: &str) -> bool {
    let Some((parent, ordinal)) = claim.rsplit_once('-') else { return false };
    ordinal.bytes().all(|byte| byte.is_ascii_digit())
        && parent.strip_suffix(set).is_some_and(|template| template.ends_with('-'))
}

/// Whether a claim is one of a set, by its name.
pub fn has_claim(set: &StatefulSet, claim: &str) -> bool {
    let templates = claims::templates(set.spec.volume_claim_templates.as_ref());
    let mut names = templates.iter().filter_map(|template| template.pointer("/metadata/name")?.as_str());
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    names.any(|template| {
        let pod = claim.strip_prefix(template).and_then(|rest| rest.strip_prefix('-'));
        pod.is_some_and(|pod| ordinal_of(set_name, pod).is_some())
    })
}

fn annotation<'s>(set: &'s StatefulSet, key: &str) -> Option<&'s str> {
    set.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key)).map(String::as_str)
}

fn overrides(set: &StatefulSet) -> Result<Overrides, Invalid> {
    let key = labels::ORDINAL_OVERRIDES;
    let invalid = |problems: Vec<Problem>| {
        let first = problems.first().map(Problem::to_string).unwrap_or_default();
        Invalid(format!("annotation {key}: {first}"))
    };
    Overrides::parse(annotation(set, key).unwrap_or_default()).map_err(invalid)
}

fn update_order(set: &StatefulSet) -> Result<Option<UpdateOrder>, Invalid> {
    let order = annotation(set, labels::UPDATE_ORDER).map(UpdateOrder::parse).transpose();
    order.map(Option::flatten).map_err(|why| Invalid(format!("annotation {}: {why}", labels::UPDATE_ORDER)))
}

/// `spec.updateStrategy`.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// Pods are updated when somebody deletes them.
    OnDelete,
    /// Pods are updated by the controller.
    Rolling(Rolling),
}

impl Default for Update {
    fn default() -> Self {
        Self::Rolling(Rolling::default())
    }
}

/// `spec.updateStrategy.rollingUpdate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rolling {
    /// How many Pods stay on the current revision.
    pub partition: i32,
    /// Whether Pods stay on it, also while none are wanted.
    pub has_partition: bool,
    /// How many Pods may be unavailable.
    pub max_unavailable: i32,
    /// How a Pod gets to another revision.
    pub policy: PodUpdatePolicy,
    /// Pods are not updated for now.
    pub paused: bool,
    /// The order of updates, if it is not that of the ordinals.
    pub unordered: Option<Priority>,
    /// Seconds between NotReady and the change in place.
    pub grace_seconds: i64,
}

/// Where priorities stand.
const PRIORITY: &str = "spec.updateStrategy.rollingUpdate.unorderedUpdate.priorityStrategy";

impl Rolling {
    fn of(rolling: &RollingUpdate, replicas: i32, is_ordered: bool) -> Result<Self, Invalid> {
        let field = |name: &str| format!("updateStrategy.rollingUpdate.{name}");
        let partition = rolling.partition.as_ref();
        let partition = rollout::number(&field("partition"), partition, IntOrPercent::Int(0))?;
        let limit = rollout::number(&field("maxUnavailable"), rolling.max_unavailable.as_ref(), IntOrPercent::Int(1))?;
        let policy = &rolling.pod_update_policy;
        let Some(policy) = PodUpdatePolicy::parse(policy) else {
            return Err(Invalid(format!("spec.{}: {policy:?} is not known", field("podUpdatePolicy"))));
        };
        let grace = rolling.in_place_update_strategy.as_ref().map_or(0, |strategy| strategy.grace_period_seconds);
        Ok(Self {
            partition: rollout::kept_old(partition, replicas),
            has_partition: rollout::keeps_old(partition),
            max_unavailable: if is_ordered { 1 } else { rollout::at_least_one(limit, replicas) },
            policy,
            paused: rolling.paused,
            unordered: match rolling.unordered_update.as_ref().filter(|_| !is_ordered) {
                Some(unordered) => Some(Priority::of(PRIORITY, unordered.priority_strategy.as_ref())?),
                None => None,
            },
            grace_seconds: i64::from(grace.max(0)),
        })
    }
}

impl Default for Rolling {
    fn default() -> Self {
        Self {
            partition: 0,
            has_partition: false,
            max_unavailable: 1,
            policy: PodUpdatePolicy::ReCreate,
            paused: false,
            unordered: None,
            grace_seconds: 0,
        }
    }
}

/// `persistentVolumeClaimRetentionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Claims go with the set.
    pub delete_with_set: bool,
    /// Claims go with a Pod that is surplus.
    pub delete_with_pod: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value, gates: Gates) -> Result<Spec, Invalid> {
        let mut object = json!({"metadata": {"name": "web", "uid": "set"}, "spec": {"selector": {}, "template": {}}});
        json_patch::merge(&mut object["spec"], &spec);
        Spec::of(&serde_json::from_value(object).unwrap(), gates)
    }
    fn rolling(spec: Value) -> Rolling {
        let strategy =
            json!({"podManagementPolicy": "Parallel", "replicas": 10, "updateStrategy": {"rollingUpdate": spec}});
        let Update::Rolling(rolling) = read(strategy, Gates::default()).unwrap().update else { panic!() };
        rolling
    }

    #[test]
    fn edge_17_a_spec_without_defaults_is_read_with_them() {
        let spec = read(json!({}), Gates::default()).unwrap();
        assert_eq!(
            (spec.replicas, spec.ordinals.len(), spec.is_ordered, spec.scale_max_unavailable),
            (1, 1, true, None)
        );
        assert_eq!((spec.update, spec.retention, spec.revision_history_limit), (Update::default(), None, 10));
        assert!(read(json!({"updateStrategy": {"type": "OnDelete"}}), Gates::default()).unwrap().rolling().is_none());
    }

    #[test]
    fn the_claims_of_a_set_are_known_by_their_names() {
        let templates = json!([{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}, {"spec": {}}]);
        let set = json!({"metadata": {"name": "web"},
            "spec": {"selector": {}, "template": {}, "volumeClaimTemplates": templates}});
        let set: StatefulSet = serde_json::from_value(set).unwrap();
        for (claim, is_its_own) in [
            ("data-web-0", true),
            ("log-web-12", true),
            ("tmp-web-0", false),
            ("data-web", false),
            ("data-web-x", false),
            ("dataweb-0", false),
            ("data-webs-0", false),
            ("web-0", false),
        ] {
            assert_eq!(has_claim(&set, claim), is_its_own, "{claim}");
            assert!(may_have_claim("web", claim) || !is_its_own, "{claim}");
        }
        let claims = ["tmp-web-0", "data-web-x", "data-webs-0", "web-0", "data-web"];
        assert_eq!(claims.map(|claim| may_have_claim("web", claim)), [true, false, false, false, false]);
    }

    #[test]
    fn a_start_without_its_gate_is_read_and_has_no_effect() {
        let start = |value: i32, start_ordinal: bool| {
            let gates = Gates { start_ordinal, ..Gates::default() };
            let spec = read(json!({"ordinals": {"start": value}}), gates).unwrap();
            (spec.start_in_spec, spec.start)
        };
        assert_eq!((start(5, true), start(5, false), start(-5, true)), ((5, 5), (5, 0), (0, 0)));
    }

    #[test]
    fn overrides_are_read_and_one_that_cannot_be_is_named() {
        let with = |value: &str| {
            let set = json!({"metadata": {"name": "web", "annotations": {"kruise.rs/ordinal-overrides": value}},
                "spec": {"selector": {}, "template": {}}});
            Spec::of(&serde_json::from_value(set).unwrap(), Gates::default())
        };
        assert!(with(r#"[{"ordinals": 1, "nodeSelector": {"disk": "fast"}}]"#).unwrap().overrides.of(1).is_some());
        assert!(with("").unwrap().overrides.is_empty());
        let Err(Invalid(message)) = with(r#"[{"ordinals": "x", "nodeSelector": {"a": "b"}}]"#) else { panic!() };
        assert!(message.starts_with("annotation kruise.rs/ordinal-overrides: [0].ordinals: "), "{message}");
    }

    #[test]
    fn so_many_replicas_that_a_pass_could_use_up_the_memory_are_refused() {
        assert!(read(json!({"replicas": MOST_REPLICAS}), Gates::default()).is_ok());
        let Err(Invalid(message)) = read(json!({"replicas": i32::MAX}), Gates::default()) else { panic!() };
        assert_eq!(message, "spec.replicas: 2147483647 is not allowed; want up to 100000");
    }

    #[test]
    fn so_many_claims_that_a_pass_could_use_up_the_memory_are_refused() {
        let with = |replicas: i32, templates: usize| {
            let named = |i: usize| json!({"metadata": {"name": format!("data-{i}")}});
            let templates: Vec<Value> = (0..templates).map(named).collect();
            read(json!({"replicas": replicas, "volumeClaimTemplates": templates}), Gates::default())
        };
        assert_eq!(with(MOST_REPLICAS, 2).unwrap().claims.len(), 2);
        assert!(with(0, 3).is_ok() && with(66_666, 3).is_ok());
        for (replicas, templates, claims) in [(66_667, 3, 200_001), (0, MOST_CLAIMS + 1, MOST_CLAIMS + 1)] {
            let Err(Invalid(message)) = with(replicas, templates) else { panic!() };
            let numbers = format!("{templates} templates with {replicas} replicas are {claims} claims");
            assert_eq!(message, format!("spec.volumeClaimTemplates: {numbers}; want up to 200000 claims in all"));
        }
    }

    #[test]
    fn a_template_that_the_selector_does_not_match_is_refused() {
        let with = |labels: Value| {
            let selector = json!({"matchLabels": {"app": "web"}});
            let spec = json!({"selector": selector, "template": {"metadata": {"labels": labels}}});
            read(spec, Gates::default()).map(|_| ())
        };
        assert_eq!(with(json!({"app": "web", "tier": "a"})), Ok(()));
        for (labels, shown) in [(json!({"app": "db", "tier": "a"}), "app=db"), (json!({}), "")] {
            let why = format!("{shown:?} is not matched by spec.selector; want labels that it matches");
            assert_eq!(with(labels), Err(Invalid(format!("spec.template.metadata.labels: {why}"))));
        }
    }

    #[test]
    fn numbers_are_resolved_against_replicas() {
        let limits = |spec| {
            let rolling = rolling(spec);
            (rolling.partition, rolling.max_unavailable)
        };
        assert_eq!(limits(json!({"partition": 3, "maxUnavailable": "25%"})), (3, 2));
        assert_eq!(limits(json!({"partition": "25%", "maxUnavailable": "1%"})), (3, 1));
        assert_eq!(limits(json!({"partition": 99, "maxUnavailable": 0})), (10, 1));
        let ordered = read(
            json!({"replicas": 10, "updateStrategy": {"rollingUpdate": {"maxUnavailable": 5, "unorderedUpdate": {}}}}),
            Gates::default(),
        );
        let Update::Rolling(ordered) = ordered.unwrap().update else { panic!() };
        assert_eq!((ordered.max_unavailable, ordered.unordered), (1, None), "one by one, and in order");
        assert_eq!(rolling(json!({"unorderedUpdate": {}})).unordered, Some(Priority::None));
        let keys = json!({"unorderedUpdate": {"priorityStrategy": {"orderPriority": [{"orderedKey": "shard"}]}}});
        assert_eq!(rolling(keys).unordered, Some(Priority::Order(vec!["shard".into()])));
    }

    #[test]
    fn gates_switch_the_start_and_claims_on() {
        let spec = json!({"ordinals": {"start": 5}, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
            "volumeClaimUpdateStrategy": {"type": "OnPodRollingUpdate"}});
        let off = read(spec.clone(), Gates::default()).unwrap();
        assert_eq!((off.start, off.retention, off.grows_claims), (0, None, false));
        let on = read(spec, Gates { start_ordinal: true, deletes_claims: true, grows_claims: true }).unwrap();
        let retention = Retention { delete_with_set: false, delete_with_pod: true };
        assert_eq!((on.start, on.retention, on.grows_claims), (5, Some(retention), true));
    }

    #[test]
    fn shortfall_10_1_09_what_cannot_be_read_is_reported() {
        for (spec, word) in [
            (json!({"reserveOrdinals": [1, "5"]}), "reserveOrdinals"),
            (json!({"scaleStrategy": {"maxUnavailable": "5"}}), "scaleStrategy.maxUnavailable"),
            (json!({"updateStrategy": {"rollingUpdate": {"partition": "x"}}}), "partition"),
            (json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "Later"}}}), "podUpdatePolicy"),
            (json!({"updateStrategy": {"type": "Later"}}), "updateStrategy.type"),
        ] {
            let Invalid(why) = read(spec, Gates::default()).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
