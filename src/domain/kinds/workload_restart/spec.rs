//! The normalised spec: what a pass reads of a WorkloadRestart, with every default applied. Its triggers are read by
//! [`WorkloadRestart::triggers`], as watches have to be chosen from them before a pass.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::{
    api::{
        crr::RecreateStrategy,
        wr::{DEFAULT_MAX_UNAVAILABLE, Order, TargetRef, WorkloadRestart},
    },
    k8s::{
        int_or_percent::{self, Round},
        selector::Selector,
    },
};

/// What a pass reads of a WorkloadRestart.
#[derive(Clone, Debug, PartialEq)]
pub struct RestartSpec {
    /// Whose Pods are restarted.
    pub target: RestartTarget,
    /// Names of the containers to restart. Empty: all.
    pub containers: Vec<String>,
    /// How many Pods may be unavailable, as the field says it.
    pub max_unavailable: IntOrString,
    /// How many Pods stay as they are.
    partition: IntOrString,
    /// How many failed Pods end the round.
    threshold: IntOrString,
    /// Which Pods come first. None: that depends on the target.
    order: Option<Order>,
    /// No further Pod is begun.
    pub is_paused: bool,
    /// How long a restarted Pod has to stay ready.
    pub min_ready: Duration,
    /// How long a round may take, if there is a limit.
    pub deadline: Option<Duration>,
    /// How long it is kept after its end. None: for good.
    pub time_to_live: Option<Duration>,
    /// Seconds that the restart of one Pod may take, as requests get it.
    pub pod_deadline_seconds: Option<i64>,
    /// How containers are restarted, as requests get it.
    pub strategy: Option<RecreateStrategy>,
}

/// Whose Pods are restarted.
#[derive(Clone, Debug, PartialEq)]
pub enum RestartTarget {
    /// Those of a workload.
    Workload(TargetRef),
    /// Those with such labels.
    Labels(Selector),
    /// Nobody's: what is wrong with the spec.
    Invalid(String),
}

impl RestartSpec {
    /// From a stored object, whether its schema was checked or not.
    pub fn of(restart: &WorkloadRestart) -> Self {
        let spec = &restart.spec;
        let seconds = |seconds: i64| Duration::from_secs(seconds.try_into().unwrap_or(0));
        let threshold = spec.failure_policy.as_ref().and_then(|policy| policy.threshold.clone());
        let default_maximum = || IntOrString::String(DEFAULT_MAX_UNAVAILABLE.into());
        Self {
            target: RestartTarget::of(restart),
            containers: spec.containers.clone(),
            max_unavailable: spec.max_unavailable.clone().unwrap_or_else(default_maximum),
            partition: spec.partition.clone().unwrap_or(IntOrString::Int(0)),
            threshold: threshold.unwrap_or(IntOrString::Int(1)),
            order: spec.order,
            is_paused: spec.paused,
            min_ready: seconds(spec.min_ready_seconds.into()),
            deadline: spec.active_deadline_seconds.map(seconds),
            time_to_live: spec.ttl_seconds_after_finished.map(|ttl| seconds(ttl.into())),
            pod_deadline_seconds: spec.pod_deadline_seconds,
            strategy: spec.strategy.clone(),
        }
    }

    /// How many of so many Pods may be unavailable.
    pub(super) fn limit(&self, wanted: usize) -> usize {
        int_or_percent::number(&self.max_unavailable, wanted, Round::Down).unwrap_or(1).max(1)
    }

    /// How many of so many Pods stay as they are.
    pub(super) fn kept(&self, total: usize) -> usize {
        int_or_percent::number(&self.partition, total, Round::Up).unwrap_or(0)
    }

    /// How many failures among so many Pods end the round.
    pub(super) fn failures(&self, total: usize) -> usize {
        int_or_percent::number(&self.threshold, total, Round::Up).unwrap_or(1).max(1)
    }

    /// Which Pods come first.
    pub(super) fn order(&self, has_ordinals: bool) -> Order {
        self.order.unwrap_or(if has_ordinals { Order::Ordinal } else { Order::OldestFirst })
    }
}

impl RestartTarget {
    fn of(restart: &WorkloadRestart) -> Self {
        if let Some(target) = &restart.spec.target_ref {
            return Self::Workload(target.clone());
        }
        match restart.spec.selector.as_ref().map(Selector::of) {
            Some(Ok(selector)) if !selector.is_empty() => Self::Labels(selector),
            Some(Err(error)) => Self::Invalid(format!("spec.selector: {error}")),
            // Stored past the schema.
            Some(Ok(_)) | None => Self::Invalid("spec: neither targetRef nor a selector with labels".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> RestartSpec {
        let object = json!({"apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
            "metadata": {"name": "roll", "namespace": "ns", "uid": "u"}, "spec": spec});
        RestartSpec::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_spec_without_fields_is_read_with_the_defaults() {
        let want = RestartSpec {
            target: RestartTarget::Workload(TargetRef {
                api_version: "apps/v1".into(),
                kind: "Deployment".into(),
                name: "web".into(),
            }),
            containers: Vec::new(),
            max_unavailable: IntOrString::String("10%".into()),
            partition: IntOrString::Int(0),
            threshold: IntOrString::Int(1),
            order: None,
            is_paused: false,
            min_ready: Duration::ZERO,
            deadline: None,
            time_to_live: None,
            pod_deadline_seconds: None,
            strategy: None,
        };
        let spec = read(json!({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}));
        assert_eq!(spec, want);
        assert_eq!((spec.order(true), spec.order(false)), (Order::Ordinal, Order::OldestFirst));
        assert_eq!(read(json!({"order": "NodeByNode"})).order(true), Order::NodeByNode);
    }

    #[test]
    fn numbers_are_rounded_so_that_a_share_of_few_pods_means_something() {
        for (field, total, limit, kept, failures) in [
            (json!(3), 5, 3, 3, 3),
            (json!("50%"), 5, 2, 3, 3),
            (json!("1%"), 5, 1, 1, 1),
            (json!(0), 5, 1, 0, 1),
            // Stored past the schema.
            (json!(-1), 5, 1, 0, 1),
            (json!("many"), 5, 1, 0, 1),
        ] {
            let spec =
                read(json!({"maxUnavailable": field, "partition": field, "failurePolicy": {"threshold": field}}));
            assert_eq!((spec.limit(total), spec.kept(total), spec.failures(total)), (limit, kept, failures), "{field}");
        }
    }

    #[test]
    fn times_that_the_schema_refuses_are_read_as_0() {
        let times = |seconds: i32| {
            let spec = read(json!({"minReadySeconds": seconds, "activeDeadlineSeconds": seconds,
                "ttlSecondsAfterFinished": seconds, "podDeadlineSeconds": seconds}));
            (spec.min_ready.as_secs(), spec.deadline, spec.time_to_live, spec.pod_deadline_seconds)
        };
        let minute = Some(Duration::from_secs(60));
        assert_eq!(times(60), (60, minute, minute, Some(60)));
        assert_eq!(times(-1), (0, Some(Duration::ZERO), Some(Duration::ZERO), Some(-1)));
    }

    #[test]
    fn a_selector_without_labels_is_no_target() {
        let labels = RestartTarget::Labels(Selector::parse("app=web").unwrap());
        assert_eq!(read(json!({"selector": {"matchLabels": {"app": "web"}}})).target, labels);
        let odd = json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]});
        for (spec, want) in [
            (json!({}), "spec: neither targetRef"),
            (json!({"selector": {}}), "spec: neither targetRef"),
            (json!({"selector": odd}), "spec.selector: "),
        ] {
            let RestartTarget::Invalid(why) = read(spec).target else { panic!("{want}") };
            assert!(why.starts_with(want), "{why}");
        }
    }
}
