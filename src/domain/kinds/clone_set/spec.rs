//! The normalised spec: what the controller reads of a CloneSet, with every default applied.
//!
//! A field that cannot be read stops what needs it and nothing else: Pods are refreshed and the status is written all the
//! same. So each such field is a `Result` of its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::diff::Wanted;
pub use crate::domain::workload::rollout::Invalid;
use crate::{
    api::apps::{
        clone_set::{CloneSet, UpdateStrategy},
        lifecycle::Lifecycle,
        strategies::UpdateType,
    },
    domain::workload::{
        claims, make,
        pod_order::{Base, PodOrder, Priority},
        rollout,
    },
    k8s::int_or_percent::IntOrPercent,
};

/// `revisionHistoryLimit`, where the spec says nothing.
const HISTORY: i32 = 10;
/// A progress deadline that means none.
const NO_DEADLINE: i32 = i32::MAX;

/// What the controller reads of a CloneSet.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// `spec.replicas`.
    pub replicas: i32,
    /// `spec.selector`.
    pub selector: LabelSelector,
    /// `spec.template`, as it is stored.
    pub template: Value,
    /// Whether Pods of the template would stay its Pods.
    is_selected: Result<(), Invalid>,
    /// `spec.volumeClaimTemplates`, as they are stored.
    pub claim_templates: Vec<Value>,
    /// `scaleStrategy.podsToDelete`.
    pub pods_to_delete: Vec<String>,
    /// Whether a new Pod may get the claims of a lost one: `scaleStrategy.disablePVCReuse`.
    pub reuses_claims: bool,
    /// `updateStrategy.type`; a value that is not known counts as the default.
    pub update_type: UpdateType,
    /// No Pod is updated for now.
    pub is_paused: bool,
    /// The order of updates, without what an update that is under way adds to it.
    pub order: Result<PodOrder, Invalid>,
    /// Seconds between NotReady and the change in place.
    pub grace_seconds: i64,
    /// How many Pods stay on old revisions.
    pub kept_old: Result<i32, Invalid>,
    /// `updateStrategy.maxUnavailable` and `maxSurge`.
    limits: Result<(IntOrPercent, IntOrPercent), Invalid>,
    /// How many Pods may be unavailable while Pods are added.
    scale_max_unavailable: Result<i32, Invalid>,
    /// `spec.revisionHistoryLimit`.
    pub revision_history_limit: i32,
    /// Seconds for which a Pod has to be Ready to be available.
    pub min_ready_seconds: i32,
    /// Hooks.
    pub lifecycle: Lifecycle,
    /// Whether the spec has `lifecycle` at all: an update passes through Updated then.
    pub has_lifecycle: bool,
    /// Seconds within which a roll-out has to make progress, if there is such a deadline.
    pub progress_deadline: Option<i32>,
}

impl Spec {
    /// From a stored CloneSet, whether admission has seen it or not.
    pub fn of(clone_set: &CloneSet) -> Self {
        let spec = &clone_set.spec;
        let (scale, update) = (&spec.scale_strategy, &spec.update_strategy);
        let replicas = spec.replicas.unwrap_or(1).max(0);
        let grace = update.in_place_update_strategy.as_ref().map_or(0, |strategy| strategy.grace_period_seconds);
        Self {
            replicas,
            selector: spec.selector.clone(),
            template: spec.template.clone(),
            is_selected: make::not_selected(&spec.selector, &spec.template).map_or(Ok(()), |why| Err(Invalid(why))),
            claim_templates: claims::templates(spec.volume_claim_templates.as_ref()).to_vec(),
            pods_to_delete: scale.pods_to_delete.clone(),
            reuses_claims: !scale.disable_pvc_reuse,
            update_type: update.update_type(),
            is_paused: update.paused,
            order: order(update),
            grace_seconds: i64::from(grace.max(0)),
            kept_old: kept_old(update, replicas),
            limits: limits(update),
            scale_max_unavailable: rollout::number(
                "scaleStrategy.maxUnavailable",
                scale.max_unavailable.as_ref(),
                IntOrPercent::Int(i32::MAX),
            )
            .map(|limit| rollout::scale_limit(limit, replicas)),
            revision_history_limit: spec.revision_history_limit.unwrap_or(HISTORY),
            min_ready_seconds: spec.min_ready_seconds.max(0),
            lifecycle: spec.lifecycle.clone().unwrap_or_default(),
            has_lifecycle: spec.lifecycle.is_some(),
            progress_deadline: spec.progress_deadline_seconds.filter(|deadline| *deadline != NO_DEADLINE),
        }
    }

    /// The hooks alone, for whoever looks at one Pod and needs nothing else of the spec.
    pub fn hooks_of(clone_set: &CloneSet) -> Option<&Lifecycle> {
        clone_set.spec.lifecycle.as_ref()
    }

    /// The hooks, if the spec has any.
    pub fn hooks(&self) -> Option<&Lifecycle> {
        self.has_lifecycle.then_some(&self.lifecycle)
    }

    /// How many Pods may be unavailable during an update or a deletion, and how many there may be beyond replicas. A
    /// paused update has no surge.
    ///
    /// # Errors
    /// A number that cannot be read.
    pub fn limits(&self, is_paused: bool) -> Result<(i32, i32), Invalid> {
        let (max_unavailable, max_surge) = self.limits.clone()?;
        Ok(rollout::limits(max_unavailable, max_surge, self.replicas, is_paused))
    }

    /// What it asks for, in numbers.
    ///
    /// # Errors
    /// A number that cannot be read, or a template whose Pods would be none of its own.
    pub fn wanted(&self, rolls_back: bool, excludes_preparing_delete: bool) -> Result<Wanted, Invalid> {
        self.is_selected.clone()?;
        let (max_unavailable, max_surge) = self.limits(self.is_paused)?;
        Ok(Wanted {
            replicas: self.replicas,
            scale_max_unavailable: self.scale_max_unavailable.clone()?,
            partition: self.kept_old.clone()?,
            max_unavailable,
            max_surge,
            rolls_back,
            excludes_preparing_delete,
        })
    }
}

fn kept_old(strategy: &UpdateStrategy, replicas: i32) -> Result<i32, Invalid> {
    let partition = strategy.partition.as_ref();
    let partition = rollout::number("updateStrategy.partition", partition, IntOrPercent::Int(0))?;
    Ok(rollout::kept_old(partition, replicas))
}

fn limits(strategy: &UpdateStrategy) -> Result<(IntOrPercent, IntOrPercent), Invalid> {
    let max_unavailable = rollout::number(
        "updateStrategy.maxUnavailable",
        strategy.max_unavailable.as_ref(),
        rollout::DEFAULT_MAX_UNAVAILABLE,
    )?;
    let max_surge = rollout::number("updateStrategy.maxSurge", strategy.max_surge.as_ref(), IntOrPercent::Int(0))?;
    Ok((max_unavailable, max_surge))
}

fn order(strategy: &UpdateStrategy) -> Result<PodOrder, Invalid> {
    let field = "spec.updateStrategy.priorityStrategy";
    let scatter = strategy.scatter_strategy.iter().map(|term| (term.key.clone(), term.value.clone()));
    Ok(PodOrder {
        base: Base::LeastUseful,
        priority: Priority::of(field, strategy.priority_strategy.as_ref())?,
        scatter: scatter.collect(),
        last: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value) -> Spec {
        let mut object = json!({"metadata": {"name": "web"}, "spec": {"selector": {}, "template": {}}});
        json_patch::merge(&mut object["spec"], &spec);
        Spec::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_spec_without_defaults_is_read_with_them() {
        let spec = read(json!({}));
        assert_eq!((spec.replicas, spec.revision_history_limit, spec.progress_deadline), (1, 10, None));
        assert_eq!((spec.update_type, spec.is_paused, spec.reuses_claims), (UpdateType::ReCreate, false, true));
        assert_eq!((spec.limits(false), spec.kept_old.clone()), (Ok((1, 0)), Ok(0)));
        assert_eq!((spec.hooks(), spec.order.clone()), (None, Ok(PodOrder::default())));
        let wanted = spec.wanted(true, false).unwrap();
        assert_eq!((wanted.scale_max_unavailable, wanted.rolls_back, wanted.partition), (i32::MAX, true, 0));
    }

    #[test]
    fn fields_that_admission_refuses_are_read_as_the_least_that_they_can_mean() {
        let strategy = json!({"type": "Sideways", "inPlaceUpdateStrategy": {"gracePeriodSeconds": -9}});
        let spec = read(json!({"replicas": -3, "minReadySeconds": -1, "updateStrategy": strategy}));
        assert_eq!((spec.replicas, spec.min_ready_seconds, spec.grace_seconds), (0, 0, 0));
        assert_eq!(spec.update_type, UpdateType::ReCreate);
    }

    #[test]
    fn percentages_are_of_the_replicas_and_a_pause_has_no_surge() {
        let strategy = json!({"partition": "50%", "maxUnavailable": "35%", "maxSurge": "15%", "paused": true});
        let spec =
            read(json!({"replicas": 10, "updateStrategy": strategy, "scaleStrategy": {"maxUnavailable": "11%"}}));
        assert_eq!((spec.limits(false), spec.limits(true)), (Ok((3, 2)), Ok((4, 0))));
        let wanted = spec.wanted(false, true).unwrap();
        assert_eq!((wanted.partition, wanted.max_unavailable, wanted.max_surge), (5, 4, 0));
        assert_eq!((wanted.scale_max_unavailable, wanted.excludes_preparing_delete), (2, true));
    }

    #[test]
    fn a_field_that_cannot_be_read_stops_only_what_needs_it() {
        let named = |error: Option<Invalid>, field: &str| error.is_some_and(|Invalid(why)| why.contains(field));
        let spec = read(json!({"scaleStrategy": {"maxUnavailable": "many"}}));
        assert!(named(spec.wanted(false, false).err(), "spec.scaleStrategy.maxUnavailable: \"many\""));
        assert_eq!((spec.limits(false), spec.kept_old), (Ok((1, 0)), Ok(0)));
        let spec = read(json!({"updateStrategy": {"maxSurge": "many"}}));
        assert!(named(spec.limits(false).err(), "spec.updateStrategy.maxSurge") && spec.kept_old.is_ok());
        let spec = read(json!({"updateStrategy": {"partition": "many"}}));
        assert!(named(spec.wanted(false, false).err(), "spec.updateStrategy.partition") && spec.limits(false).is_ok());
        let wrong = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        let priority = json!({"weightPriority": [{"weight": 1, "matchSelector": wrong}]});
        let spec = read(json!({"updateStrategy": {"priorityStrategy": priority}}));
        assert!(named(spec.order.clone().err(), "weightPriority[0].matchSelector"));
        assert!(spec.wanted(false, false).is_ok());
    }

    #[test]
    fn no_pod_is_made_or_updated_by_a_template_that_the_selector_does_not_match() {
        let with = |labels: Value| {
            let selector = json!({"matchLabels": {"app": "web"}});
            let spec = read(json!({"selector": selector, "template": {"metadata": {"labels": labels}}}));
            spec.wanted(false, false).map(|_| ())
        };
        assert_eq!(with(json!({"app": "web", "tier": "a"})), Ok(()));
        for (labels, shown) in [(json!({"app": "db", "tier": "a"}), "app=db"), (json!({}), "")] {
            let why = format!("{shown:?} is not matched by spec.selector; want labels that it matches");
            assert_eq!(with(labels), Err(Invalid(format!("spec.template.metadata.labels: {why}"))));
        }
    }

    #[test]
    fn the_largest_deadline_means_none() {
        assert_eq!(read(json!({"progressDeadlineSeconds": i32::MAX})).progress_deadline, None);
        assert_eq!(read(json!({"progressDeadlineSeconds": 600})).progress_deadline, Some(600));
    }
}
