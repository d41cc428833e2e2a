//! What a StatefulSet says about itself.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    claims::is_grown,
    plan::Plan,
    pod::Pod,
    spec::{Spec, Update},
};
use crate::{
    domain::workload::{
        status::{ON_DELETE, PARTITION, Progress},
        steps::Wait,
    },
    k8s::claim::SizedClaim,
};

/// The Pods, counted. Zeros are written too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pods that the API server has given a phase, surplus ones included.
    pub replicas: i32,
    /// Of them, Ready.
    pub ready: i32,
    /// Of them, available.
    pub available: i32,
    /// Pods on the current revision that do not end.
    pub current: i32,
    /// Pods on the update revision, with the override of their ordinal, that do not end.
    pub updated: i32,
    /// Of all Pods on the update revision, those that are Ready.
    pub updated_ready: i32,
    /// Of all Pods on the update revision, those that are available.
    pub updated_available: i32,
    /// By claim template, in their order: how many claims of Pods have what it asks for, and how many of those are as
    /// large as they ask to be.
    pub claims: Vec<(String, i32, i32)>,
}

/// Counts the Pods of the set.
pub fn counts(
    spec: &Spec,
    pods: &[Arc<Pod>],
    claims: &BTreeMap<String, Arc<SizedClaim>>,
    (current, update): (&str, &str),
) -> Counts {
    let mut counts = Counts { updated_ready: updated_ready(pods, update), ..Counts::default() };
    for pod in pods.iter().filter(|pod| pod.phase.is_some()) {
        let (is_updated, stays) = (pod.is_updated(update), !pod.is_terminating);
        counts.replicas += 1;
        counts.ready += i32::from(pod.is_ready);
        counts.available += i32::from(pod.is_available());
        counts.current += i32::from(stays && pod.is_on(current));
        counts.updated += i32::from(stays && is_updated);
        counts.updated_available += i32::from(is_updated && pod.is_available());
    }
    for template in &spec.claims {
        let (mut compatible, mut ready) = (0, 0);
        for pod in pods {
            let claim = claims.get(&template.claim_name(&spec.name, pod.ordinal));
            let is_compatible = claim.is_some_and(|claim| template.is_compatible(claim));
            compatible += i32::from(is_compatible);
            ready += i32::from(is_compatible && claim.is_some_and(|claim| is_grown(claim)));
        }
        counts.claims.push((template.name.clone(), compatible, ready));
    }
    counts
}

/// How many Pods are ready on the update revision.
pub fn updated_ready(pods: &[Arc<Pod>], update: &str) -> i32 {
    let ready = pods.iter().filter(|pod| pod.phase.is_some() && pod.is_updated(update) && pod.is_ready);
    i32::try_from(ready.count()).unwrap_or(i32::MAX)
}

/// Whether a rolling update is done: then the update revision becomes the current one. What is counted are the wanted
/// Pods against `spec.replicas`: while one is missing the partition still decides about it.
pub fn is_complete(spec: &Spec, pods: &[Arc<Pod>], update: &str) -> bool {
    let Update::Rolling(rolling) = &spec.update else { return false };
    if spec.replicas == 0 {
        return !rolling.has_partition;
    }
    let wanted = pods.iter().filter(|pod| spec.ordinals.contains(pod.ordinal) && pod.phase.is_some());
    let done = wanted.filter(|pod| !pod.is_terminating && pod.is_ready && pod.is_updated(update)).count();
    i32::try_from(done) == Ok(spec.replicas)
}

/// How the set is after a plan was made.
pub fn progress(spec: &Spec, counts: &Counts, plan: &Plan) -> Progress {
    let words = |wait: &Wait| (wait.reason.to_owned(), wait.message.clone());
    if let Some((reason, message)) = plan.impossible.as_ref().map(words) {
        return Progress::Stalled { reason, message };
    }
    if let Some((reason, message)) = plan.wait.as_ref().map(words) {
        return Progress::Waiting { reason, message };
    }
    let is_complete = counts.replicas == spec.replicas && counts.available == spec.replicas;
    if !is_complete || !plan.is_idle() {
        let message = format!("{} of {} Pods are available", counts.available, spec.replicas);
        return Progress::Waiting { reason: "Progressing".into(), message };
    }
    match (plan.is_held, &spec.update) {
        (false, _) => Progress::Available,
        (true, Update::OnDelete) => Progress::held(ON_DELETE, "Pods are updated when they are deleted"),
        (true, Update::Rolling(rolling)) if rolling.paused => Progress::held("Paused", "the update is paused"),
        (true, Update::Rolling(_)) => Progress::held(PARTITION, "the partition keeps Pods on the current revision"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{spec::Gates, tests::fixtures::*},
        *,
    };

    fn counted(spec: &Spec, pods: &[Pod]) -> Counts {
        counts(spec, &shared(pods), &BTreeMap::new(), (OLD, NEW))
    }

    #[test]
    fn pods_are_counted() {
        let spec = spec(json!({"replicas": 3}));
        let pods = [pod(0), old(1), unready(2), terminating(old(3)), Pod { phase: None, ..old(4) }];
        let want = Counts {
            replicas: 4,
            ready: 3,
            available: 2,
            current: 1,
            updated: 2,
            updated_ready: 1,
            updated_available: 1,
            claims: vec![],
        };
        assert_eq!(counted(&spec, &pods), want);
    }

    #[test]
    fn edge_19_every_count_is_part_of_the_status() {
        let spec = spec(json!({"replicas": 1}));
        let fresh = Pod { until_available: Some(std::time::Duration::from_secs(5)), ..pod(0) };
        let (before, after) = (counted(&spec, &[fresh]), counted(&spec, &[pod(0)]));
        assert_eq!((before.available, after.available), (0, 1));
        assert_ne!(before, after);
    }

    #[test]
    fn shortfall_10_1_02_a_roll_out_is_complete_only_when_all_wanted_pods_are_updated_and_ready() {
        let complete = |spec: &Spec, pods: &[Pod]| is_complete(spec, &shared(pods), NEW);
        let three = spec(json!({"replicas": 3, "partition": 1}));
        assert!(!complete(&three, &[pod(1), pod(2)]), "0 is missing, and comes back on the current revision");
        assert!(!complete(&three, &[old(0), pod(1), pod(2)]));
        assert!(complete(&three, &[pod(0), pod(1), pod(2)]));
        assert!(!complete(&three, &[pod(0), pod(1), unready(2)]));
        assert!(!complete(&three, &[pod(1), pod(2), pod(3)]), "a surplus Pod is none of the wanted ones");
        assert!(complete(&three, &[pod(0), pod(1), pod(2), terminating(old(3))]));
        for (partition, want) in [(json!(0), true), (json!(2), false), (json!("30%"), false), (json!("0%"), true)] {
            let stored = json!({"metadata": {"name": "web"}, "spec": {"replicas": 0, "selector": {}, "template": {},
                "updateStrategy": {"rollingUpdate": {"partition": partition}}}});
            let stored = Spec::of(&serde_json::from_value(stored).unwrap(), Gates::default()).unwrap();
            assert_eq!(complete(&stored, &[]), want, "{partition}");
        }
        assert!(!complete(&spec(json!({"replicas": 0, "onDelete": true})), &[]));
    }

    #[test]
    fn shortfall_10_1_17_a_pod_that_waits_for_its_update_stays_on_the_current_revision() {
        let waits = Pod { state: crate::domain::pod::lifecycle::State::PreparingUpdate, ..old(0) };
        assert_eq!(counted(&spec(json!({"replicas": 1})), &[waits]).current, 1);
    }

    #[test]
    fn edge_21_claims_of_pods_are_counted_by_template() {
        let spec = spec(
            json!({"replicas": 2, "claims": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}}]}),
        );
        let claims = claims(&[
            claim("data-web-0", "2Gi", "1Gi"),
            claim("data-web-1", "2Gi", "2Gi"),
            claim("data-web-2", "2Gi", "2Gi"),
        ]);
        let counts = counts(&spec, &shared(&[pod(0), terminating(pod(1))]), &claims, (OLD, NEW));
        assert_eq!(counts.claims, [("data".to_owned(), 2, 1)]);
    }

    #[test]
    fn how_the_set_is() {
        let (spec, plan) = (spec(json!({"replicas": 1})), Plan::default());
        let up = counted(&spec, &[pod(0)]);
        let wait = Wait { reason: "PodNotReady", message: "Pod web-0 is not Ready".into() };
        assert_eq!(progress(&spec, &up, &plan), Progress::Available);
        assert_eq!(
            progress(&spec, &up, &Plan { is_held: true, ..plan.clone() }),
            Progress::held(PARTITION, "the partition keeps Pods on the current revision")
        );
        let waits = Plan { wait: Some(wait.clone()), is_held: true, ..plan.clone() };
        assert_eq!(
            progress(&spec, &up, &waits),
            Progress::Waiting { reason: "PodNotReady".into(), message: wait.message.clone() }
        );
        let stalled = Plan { impossible: Some(wait.clone()), ..waits };
        assert_eq!(
            progress(&spec, &up, &stalled),
            Progress::Stalled { reason: "PodNotReady".into(), message: wait.message }
        );
        assert!(matches!(progress(&spec, &counted(&spec, &[]), &plan), Progress::Waiting { .. }));
    }
}
