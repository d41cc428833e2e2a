//! The normalised spec: what the controller reads of a DaemonSet, with every default applied. Percentages are resolved
//! against the nodes of a pass ([`Spec::numbers`]).

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use serde_json::Value;

use super::tolerations;
pub use crate::domain::workload::rollout::Invalid;
use crate::{
    api::{
        apps::{
            daemon_set::{DaemonSet, RollingUpdateDaemonSet},
            lifecycle::Lifecycle,
            strategies::{RollingUpdateType, SetUpdateType},
        },
        labels,
    },
    domain::{
        pod::placement::{self, Placement},
        workload::{make, rollout},
    },
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        name::is_qualified_name,
        pod::Labels,
        selector::Selector,
    },
};

/// `maxUnavailable` and `maxSurge` with [`RollingUpdateType::Surging`], where the spec says nothing.
pub const SURGING_LIMITS: (i32, i32) = (0, 1);
/// The same where the spec gives neither of them.
pub const LIMITS: (i32, i32) = (1, 0);
/// `burstReplicas`, where the spec says nothing.
pub const BURST: i32 = 250;
/// `revisionHistoryLimit`, where the spec says nothing.
pub const HISTORY: i32 = 10;

/// What the controller reads of a DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Name of the set.
    pub name: String,
    /// UID of the set.
    pub uid: String,
    /// When the set was created, if it is known.
    pub created: Option<Timestamp>,
    /// `spec.selector`.
    pub selector: LabelSelector,
    /// `spec.template`, as it is stored.
    pub template: Value,
    /// On which nodes Pods run.
    pub placement: Placement,
    /// Pods are updated by the controller; false: OnDelete.
    pub is_rolling: bool,
    /// How Pods are updated.
    pub rolling: Rolling,
    /// Seconds for which a Pod has to be Ready to be available.
    pub min_ready_seconds: i32,
    /// Hooks.
    pub lifecycle: Lifecycle,
    /// Whether the spec has `lifecycle` at all: an update passes through Updated then.
    pub has_lifecycle: bool,
    /// Pods are created only as far as the partition goes.
    pub partitioned_scaling: bool,
    /// Annotation `kruise.rs/strict-max-unavailable`.
    pub is_strict: bool,
    /// Annotation `kruise.rs/max-unavailable-per-topology`: the label of nodes, and the limit.
    pub per_topology: Option<(String, i32)>,
    /// Annotation `kruise.rs/stay-away-after-eviction`.
    pub stays_away: bool,
    /// `spec.burstReplicas`.
    pub burst: IntOrPercent,
    /// `spec.revisionHistoryLimit`.
    pub revision_history_limit: i32,
    /// Annotation `deprecated.daemonset.template.generation`, if it is a number.
    pub template_generation: Option<i64>,
}

/// `spec.updateStrategy.rollingUpdate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rolling {
    /// Pods are updated in place where that is possible.
    pub in_place: bool,
    /// How many nodes may be without an available Pod.
    pub max_unavailable: IntOrPercent,
    /// On how many nodes two Pods may run.
    pub max_surge: IntOrPercent,
    /// Only Pods on nodes with fitting labels are updated.
    pub selector: Option<Selector>,
    /// On how many nodes Pods stay on old revisions.
    pub partition: IntOrPercent,
    /// Pods are not updated for now.
    pub paused: bool,
    /// Seconds between NotReady and a change in place.
    pub grace_seconds: i64,
}

/// Percentages of a spec as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Nodes that may be without an available Pod.
    pub max_unavailable: i32,
    /// Nodes that may have two; 0 with OnDelete.
    pub max_surge: i32,
    /// Nodes whose Pods stay on old revisions.
    pub partition: i32,
    /// Pods that are created, and Pods that are deleted or updated, in one pass.
    pub burst: usize,
}

impl Spec {
    /// From a stored set, whether admission has seen it or not.
    ///
    /// # Errors
    /// Naming a field that cannot be read: nothing is done on a guess.
    pub fn of(set: &DaemonSet) -> Result<Self, Invalid> {
        let spec = &set.spec;
        let annotation = |key: &str| set.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let invalid = |key: &'static str| move |Invalid(why): Invalid| Invalid(format!("annotation {key}: {why}"));
        let strategy = &spec.update_strategy;
        let Some(update_type) = SetUpdateType::parse(&strategy.type_) else {
            return Err(Invalid(format!("spec.updateStrategy.type: {:?} is not known", strategy.type_)));
        };
        if let Some((field, why)) = wrong_about_nodes(&spec.template, strategy.rolling_update.as_ref()) {
            return Err(Invalid(format!("{field}: {why}")));
        }
        if let Some(why) = make::not_selected(&spec.selector, &spec.template) {
            return Err(Invalid(why));
        }
        let mut rolling = Rolling::of(&strategy.rolling_update.clone().unwrap_or_default())?;
        rolling.grace_seconds = grace_seconds(annotation(labels::IN_PLACE_GRACE_SECONDS))
            .map_err(invalid(labels::IN_PLACE_GRACE_SECONDS))?;
        let scaling = spec.scale_strategy.as_ref().and_then(|scale| scale.partitioned_scaling);
        let burst = rollout::number("burstReplicas", spec.burst_replicas.as_ref(), IntOrPercent::Int(BURST))?;
        Ok(Self {
            name: set.metadata.name.clone().unwrap_or_default(),
            uid: set.metadata.uid.clone().unwrap_or_default(),
            created: set.metadata.creation_timestamp.as_ref().map(|created| created.0),
            selector: spec.selector.clone(),
            placement: tolerations::placement(&spec.template),
            template: spec.template.clone(),
            is_rolling: update_type == SetUpdateType::RollingUpdate,
            rolling,
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0).max(0),
            lifecycle: spec.lifecycle.clone().unwrap_or_default(),
            has_lifecycle: spec.lifecycle.is_some(),
            partitioned_scaling: scaling.unwrap_or(annotation(labels::PROGRESSIVE_CREATE) == Some("true")),
            is_strict: flag(annotation(labels::STRICT_MAX_UNAVAILABLE))
                .map_err(invalid(labels::STRICT_MAX_UNAVAILABLE))?,
            stays_away: flag(annotation(labels::STAY_AWAY_AFTER_EVICTION))
                .map_err(invalid(labels::STAY_AWAY_AFTER_EVICTION))?,
            per_topology: per_topology(annotation(labels::MAX_UNAVAILABLE_PER_TOPOLOGY))
                .map_err(invalid(labels::MAX_UNAVAILABLE_PER_TOPOLOGY))?,
            burst,
            revision_history_limit: spec.revision_history_limit.unwrap_or(HISTORY),
            template_generation: annotation(labels::TEMPLATE_GENERATION).and_then(|text| text.parse().ok()),
        })
    }

    /// Whether it has limits that the built-in DaemonSet does not know, and that hold whatever was down before.
    pub fn has_own_limits(&self) -> bool {
        self.is_strict || self.per_topology.is_some()
    }

    /// The hooks alone, for whoever needs nothing else of the spec, or cannot have it.
    pub fn hooks_of(set: &DaemonSet) -> Option<&Lifecycle> {
        set.spec.lifecycle.as_ref()
    }

    /// Whether the selector of a stored set selects Pods with these labels: an empty one selects none.
    pub fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
        Selector::of(selector).is_ok_and(|selector| !selector.is_empty() && selector.matches(labels))
    }

    /// The hooks, if the spec has any.
    pub fn hooks(&self) -> Option<&Lifecycle> {
        self.has_lifecycle.then_some(&self.lifecycle)
    }

    /// Percentages as numbers, for so many nodes that are to have a Pod in this pass.
    pub fn numbers(&self, nodes: usize) -> Numbers {
        let total = i32::try_from(nodes).unwrap_or(i32::MAX);
        let Rolling { max_unavailable, max_surge, partition, .. } = &self.rolling;
        // With OnDelete a marked Pod is deleted before the next one is made, within maxUnavailable.
        let max_surge = if self.is_rolling { max_surge.resolve(total, Round::Up).max(0) } else { 0 };
        let max_unavailable = max_unavailable.resolve(total, Round::Up);
        Numbers {
            // Both 0 would stop every update.
            max_unavailable: max_unavailable.max(i32::from(max_surge == 0)),
            max_surge,
            partition: nodes_kept_old(*partition, total),
            // A part of a Pod is none, and none would stop everything.
            burst: usize::try_from(self.burst.resolve(total, Round::Down).max(1)).unwrap_or(1),
        }
    }

    /// Whether an old and a new Pod run side by side during an update.
    pub fn has_surge(&self) -> bool {
        self.numbers(1).max_surge > 0
    }
}

/// How many of so many nodes keep their Pods of old revisions.
pub fn nodes_kept_old(partition: IntOrPercent, nodes: i32) -> i32 {
    partition.resolve(nodes, Round::Down).clamp(0, nodes.max(0))
}

/// What a set says about nodes that is too much, or cannot be read: the field, and why it is refused. A template that would
/// match no node on a guess would take the Pods of all of them away.
fn wrong_about_nodes(template: &Value, rolling: Option<&RollingUpdateDaemonSet>) -> Option<(String, String)> {
    let selector = rolling.and_then(|rolling| rolling.selector.as_ref());
    let requirements = selector.and_then(|selector| selector.match_expressions.as_ref()).map_or(0, Vec::len);
    let excess = placement::excess(template).or_else(|| excess_of_selector(requirements));
    excess.or_else(|| placement::unreadable(template))
}

/// Why `rollingUpdate.selector` with so many requirements is refused, if it is: the field, and why.
pub fn excess_of_selector(requirements: usize) -> Option<(String, String)> {
    let most = placement::MOST;
    (requirements > most).then(|| {
        let field = "spec.updateStrategy.rollingUpdate.selector.matchExpressions".to_owned();
        (field, format!("it has {requirements} entries; want up to {most}"))
    })
}

impl Rolling {
    fn of(rolling: &RollingUpdateDaemonSet) -> Result<Self, Invalid> {
        let field = |name: &str| format!("updateStrategy.rollingUpdate.{name}");
        let update_type = &rolling.rolling_update_type;
        let Some(update_type) = RollingUpdateType::parse(update_type) else {
            return Err(Invalid(format!("spec.{}: {update_type:?} is not known", field("rollingUpdateType"))));
        };
        let (unavailable, surge) = (&rolling.max_unavailable, &rolling.max_surge);
        let defaults = match (unavailable, surge) {
            _ if update_type == RollingUpdateType::Surging => SURGING_LIMITS,
            (None, None) => LIMITS,
            // Given one, the other is 0.
            _ => (0, 0),
        };
        let number = |name: &str, value: &Option<IntOrString>, default: i32| {
            rollout::number(&field(name), value.as_ref(), IntOrPercent::Int(default))
        };
        let max_surge = number("maxSurge", surge, defaults.1)?;
        let selector = rolling.selector.as_ref().map(Selector::of).transpose();
        Ok(Self {
            in_place: update_type == RollingUpdateType::InPlaceIfPossible && max_surge.resolve(1, Round::Up) <= 0,
            max_unavailable: number("maxUnavailable", unavailable, defaults.0)?,
            max_surge,
            selector: selector.map_err(|error| Invalid(format!("spec.{}: {error}", field("selector"))))?,
            partition: number("partition", &rolling.partition, 0)?,
            paused: rolling.paused == Some(true),
            grace_seconds: 0,
        })
    }
}

/// Reads an annotation that is true or false.
///
/// # Errors
/// It is neither.
pub fn flag(annotation: Option<&str>) -> Result<bool, Invalid> {
    match annotation.map(str::trim) {
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Invalid(format!("{other:?} is not allowed; want true or false"))),
    }
}

/// Reads the annotation `kruise.rs/max-unavailable-per-topology`.
///
/// # Errors
/// It is no key of a label with a number.
pub fn per_topology(annotation: Option<&str>) -> Result<Option<(String, i32)>, Invalid> {
    let Some(text) = annotation.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong = || {
        Invalid(format!(
            "{text:?} is not allowed; want the key of a node label and a number of 1 or more, such as topology.kubernetes.io/zone=2"
        ))
    };
    let (key, number) = text.split_once('=').ok_or_else(wrong)?;
    let (key, number) = (key.trim(), number.trim().parse::<i32>().ok().filter(|number| *number > 0));
    match number {
        Some(number) if is_qualified_name(key) => Ok(Some((key.to_owned(), number))),
        _ => Err(wrong()),
    }
}

/// Reads the annotation `kruise.rs/in-place-grace-period-seconds`.
///
/// # Errors
/// It is no number of seconds.
pub fn grace_seconds(annotation: Option<&str>) -> Result<i64, Invalid> {
    let Some(text) = annotation.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(0) };
    let number = text.parse::<i32>().ok().filter(|number| *number >= 0);
    let wrong = || Invalid(format!("{text:?} is not allowed; want a number of seconds, 0 or more"));
    number.map(i64::from).ok_or_else(wrong)
}

/// Annotations that are part of what a set should be, with what reads them.
pub fn judge_annotations(annotations: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    let get = |key: &str| annotations.get(key).map(String::as_str);
    [
        (labels::STRICT_MAX_UNAVAILABLE, flag(get(labels::STRICT_MAX_UNAVAILABLE)).err()),
        (labels::STAY_AWAY_AFTER_EVICTION, flag(get(labels::STAY_AWAY_AFTER_EVICTION)).err()),
        (labels::MAX_UNAVAILABLE_PER_TOPOLOGY, per_topology(get(labels::MAX_UNAVAILABLE_PER_TOPOLOGY)).err()),
        (labels::IN_PLACE_GRACE_SECONDS, grace_seconds(get(labels::IN_PLACE_GRACE_SECONDS)).err()),
    ]
    .into_iter()
    .filter_map(|(key, error)| Some((key, error?.0)))
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(rolling: Value) -> Value {
        json!({"metadata": {"name": "agent", "uid": "set"}, "spec": {"selector": {}, "template": {},
            "updateStrategy": {"rollingUpdate": rolling}}})
    }
    fn read(object: Value) -> Result<Spec, Invalid> {
        Spec::of(&serde_json::from_value(object).unwrap())
    }
    fn limits(rolling: Value, nodes: usize) -> (i32, i32) {
        let Numbers { max_unavailable, max_surge, .. } = read(object(rolling)).unwrap().numbers(nodes);
        (max_unavailable, max_surge)
    }

    #[test]
    fn a_spec_without_defaults_is_read_with_them() {
        let spec = read(json!({"metadata": {"name": "agent"}, "spec": {"selector": {}, "template": {}}})).unwrap();
        assert!(spec.is_rolling && !spec.rolling.in_place && !spec.rolling.paused && !spec.has_surge());
        assert!(!spec.partitioned_scaling && !spec.is_strict && spec.per_topology.is_none());
        assert_eq!((spec.burst, spec.revision_history_limit), (IntOrPercent::Int(250), 10));
        assert_eq!(spec.numbers(1000), Numbers { max_unavailable: 1, max_surge: 0, partition: 0, burst: 250 });
    }

    #[test]
    fn what_is_read_of_a_stored_set_by_itself() {
        let mut stored = object(json!({}));
        let set = |stored: &Value| serde_json::from_value::<DaemonSet>(stored.clone()).unwrap();
        let labels = |app: &str| serde_json::from_value::<Labels>(json!({"app": app})).unwrap();
        assert!(
            !Spec::selects(&set(&stored).spec.selector, &labels("agent")) && Spec::hooks_of(&set(&stored)).is_none()
        );
        stored["spec"]["lifecycle"] = json!({});
        stored["spec"]["selector"] = json!({"matchLabels": {"app": "agent"}});
        assert!(
            Spec::selects(&set(&stored).spec.selector, &labels("agent"))
                && !Spec::selects(&set(&stored).spec.selector, &labels("web"))
        );
        assert!(Spec::hooks_of(&set(&stored)).is_some());
        stored["spec"]["selector"] = json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        assert!(!Spec::selects(&set(&stored).spec.selector, &labels("agent")));
    }

    #[test]
    fn edge_29_given_one_limit_the_other_is_0_and_given_none_they_are_1_and_0() {
        assert_eq!(limits(json!({}), 10), (1, 0));
        assert_eq!(limits(json!({"maxSurge": 2}), 10), (0, 2));
        assert_eq!(limits(json!({"maxUnavailable": 3}), 10), (3, 0));
        assert_eq!(limits(json!({"maxUnavailable": 0, "maxSurge": 0}), 10), (1, 0), "both 0 would stop everything");
    }

    #[test]
    fn on_delete_has_no_surge_and_replaces_marked_pods_within_one_or_more() {
        let limits = |rolling: Value| {
            let mut object = object(rolling);
            object["spec"]["updateStrategy"]["type"] = "OnDelete".into();
            let Numbers { max_unavailable, max_surge, .. } = read(object).unwrap().numbers(10);
            (max_unavailable, max_surge)
        };
        assert_eq!(limits(json!({"maxSurge": 1})), (1, 0), "0 would replace no Pod, ever");
        assert_eq!(limits(json!({"rollingUpdateType": "Surging", "maxSurge": "30%"})), (1, 0));
        assert_eq!(limits(json!({"maxUnavailable": 3, "maxSurge": 0})), (3, 0));
    }

    #[test]
    fn surging_is_read_as_standard_with_a_surge() {
        assert_eq!(limits(json!({"rollingUpdateType": "Surging"}), 10), (0, 1));
        assert_eq!(limits(json!({"rollingUpdateType": "Surging", "maxSurge": "30%"}), 10), (0, 3));
        assert!(!read(object(json!({"rollingUpdateType": "Surging"}))).unwrap().rolling.in_place);
        let Err(Invalid(message)) = read(object(json!({"rollingUpdateType": "Sideways"}))) else { panic!() };
        assert_eq!(message, "spec.updateStrategy.rollingUpdate.rollingUpdateType: \"Sideways\" is not known");
    }

    #[test]
    fn percentages_are_of_the_nodes_of_the_pass_and_rounded_as_1_3_says() {
        assert_eq!(limits(json!({"maxUnavailable": "11%"}), 10), (2, 0));
        assert_eq!(limits(json!({"maxUnavailable": "11%"}), 0), (1, 0));
        assert_eq!(limits(json!({"maxSurge": "1%"}), 10), (0, 1));
        let partition =
            |value: Value, nodes| read(object(json!({"partition": value}))).unwrap().numbers(nodes).partition;
        assert_eq!((partition(json!("55%"), 10), partition(json!("100%"), 10), partition(json!(99), 10)), (5, 10, 10));
    }

    #[test]
    fn shortfall_10_2_28_a_burst_is_at_least_one_and_one_that_cannot_be_read_is_named() {
        let burst = |value: Value| {
            let mut object = object(json!({}));
            object["spec"]["burstReplicas"] = value;
            read(object).map(|spec| spec.numbers(1000).burst)
        };
        assert_eq!((burst(json!("10%")), burst(json!(0)), burst(json!("0%"))), (Ok(100), Ok(1), Ok(1)));
        let Err(Invalid(message)) = burst(json!("ten")) else { panic!() };
        assert!(message.starts_with("spec.burstReplicas: \"ten\""), "{message}");
    }

    #[test]
    fn shortfall_10_2_35_the_field_wins_over_the_annotation_of_v1alpha1() {
        let scaling = |annotation: Option<&str>, field: Value| {
            let mut object = object(json!({}));
            object["metadata"]["annotations"] = json!({labels::PROGRESSIVE_CREATE: annotation.unwrap_or("")});
            object["spec"]["scaleStrategy"] = field;
            read(object).unwrap().partitioned_scaling
        };
        assert!(scaling(Some("true"), json!(null)) && scaling(Some("true"), json!({})));
        assert!(scaling(None, json!({"partitionedScaling": true})));
        assert!(!scaling(Some("true"), json!({"partitionedScaling": false})));
        assert!(!scaling(Some("yes"), json!(null)));
    }

    #[test]
    fn annotations_of_ours_are_read_or_refused_in_words() {
        assert_eq!(
            per_topology(Some("topology.kubernetes.io/zone=2")).unwrap(),
            Some(("topology.kubernetes.io/zone".into(), 2))
        );
        assert_eq!(per_topology(Some(" ")).unwrap(), None);
        for odd in ["zone", "zone=0", "zone=two", "=2", "zone=-1", "a b=1"] {
            assert!(per_topology(Some(odd)).unwrap_err().0.contains("want the key of a node label"), "{odd}");
        }
        assert_eq!((flag(None), flag(Some("true")), flag(Some("false"))), (Ok(false), Ok(true), Ok(false)));
        assert!(flag(Some("yes")).is_err() && grace_seconds(Some("-1")).is_err());
        assert_eq!(grace_seconds(Some("30")), Ok(30));
        let all = BTreeMap::from([(labels::STRICT_MAX_UNAVAILABLE.to_owned(), "1".to_owned())]);
        assert_eq!(judge_annotations(&all)[0].0, labels::STRICT_MAX_UNAVAILABLE);
    }

    #[test]
    fn what_each_node_would_be_held_against_for_too_long_is_refused() {
        let mut wide = object(json!({}));
        wide["spec"]["template"] = json!({"spec": {"tolerations": vec![json!({"operator": "Exists"}); 1001]}});
        let Err(Invalid(message)) = read(wide) else { panic!() };
        assert_eq!(message, "spec.template.spec.tolerations: it has 1001 entries; want up to 1000");
        let exists = json!({"key": "a", "operator": "Exists"});
        let selecting =
            |number: usize| read(object(json!({"selector": {"matchExpressions": vec![exists.clone(); number]}})));
        assert!(selecting(1000).is_ok());
        let Err(Invalid(message)) = selecting(1001) else { panic!() };
        assert!(
            message.starts_with("spec.updateStrategy.rollingUpdate.selector.matchExpressions: it has 1001"),
            "{message}"
        );
    }

    #[test]
    fn a_template_that_the_selector_does_not_match_is_refused_and_an_empty_selector_elsewhere() {
        let with = |selector: Value, labels: Value| {
            let mut object = object(json!({}));
            object["spec"]["selector"] = selector;
            object["spec"]["template"] = json!({"metadata": {"labels": labels}});
            read(object).map(|_| ())
        };
        let agent = json!({"matchLabels": {"app": "agent"}});
        assert_eq!(with(agent.clone(), json!({"app": "agent", "tier": "a"})), Ok(()));
        assert_eq!(with(json!({}), json!({"app": "agent"})), Ok(()), "nothing is done with one that selects all Pods");
        let exists = json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]});
        for (selector, labels, shown) in [
            (agent.clone(), json!({"app": "web", "tier": "a"}), "app=web"),
            (agent.clone(), json!(null), ""),
            (agent, json!({"app": 1}), ""),
            (exists, json!({"app": "agent"}), ""),
        ] {
            let why = format!("{shown:?} is not matched by spec.selector; want labels that it matches");
            let want = Err(Invalid(format!("spec.template.metadata.labels: {why}")));
            assert_eq!(with(selector.clone(), labels.clone()), want, "{selector} {labels}");
        }
    }

    #[test]
    fn in_place_leaves_no_room_for_a_surge() {
        let spec = read(object(json!({"rollingUpdateType": "InPlaceIfPossible", "maxSurge": 1}))).unwrap();
        assert!(spec.has_surge() && !spec.rolling.in_place, "admission refuses both together");
        assert!(read(object(json!({"rollingUpdateType": "InPlaceIfPossible"}))).unwrap().rolling.in_place);
    }
}
