//! Sets the condition KruisePodReady of Pods with that readiness gate to True for the first time.
//!
//! - Watches: Pods. Writes: the one condition, on `pods/status`.
//! - Reports by an event Pods that should have got the gate at admission and did not, because the webhook was down. A gate
//!   cannot be added later.
//! - Never overrides a condition that is there: the patch is bound to the version of the Pod that lacked it.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};

use super::{Context, Registration, Runner, Started};
use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::pod::{readiness, refresh},
    k8s::{
        pod::{PodObject, PodView},
        rbac::Rule,
        time::Now,
    },
    runtime::{
        apply, clock,
        pass::AFTER_WATCHED_CONFLICT,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        watches::{Change, ObjectKey},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: None,
    gate: None,
    rules: &[Rule::new(&[""], &["pods"], &["get", "list", "watch"]), Rule::new(&[""], &["pods/status"], &["patch"])],
    workers_flag: None,
    workers: 3,
    start,
};

const NAME: &str = "pod-readiness-controller";
/// Older Pods are not reported: they may have been created before the installation.
const MISSED_RECENTLY: Duration = Duration::from_secs(600);

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let queue = Queue::new(Backoff::default());
    let context = context.clone();
    let on_pod = {
        let (queue, context) = (queue.clone(), context.clone());
        move |change: &Change<'_, PodView>| {
            let Change::Applied { old, new, .. } = change else { return };
            let now = clock::now();
            if old.is_none() && missed(new, &context.gates, &context.namespace, now) {
                context.events.warning(&new.reference(), "KruisePodReadyNotInjected", NOT_INJECTED);
            }
            if readiness::default_condition(new, now).is_some() && !refresh::gets_first_conditions_from_workload(new) {
                queue.add(ObjectKey::of(new.as_ref()));
            }
        }
    };
    let runner = Runner::new(&context, NAME, shutdown);
    let reconcile = move |key: ObjectKey| {
        let context = context.clone();
        async move { reconcile(&context, &key).await }
    };
    Started::new(runner.run(queue, workers, reconcile)).on_pod(on_pod)
}

const NOT_INJECTED: &str = "readiness gate KruisePodReady was not injected: the admission webhook was not reached when \
    this Pod was created. It cannot be made NotReady before a restart or an update; recreate the Pod to get the gate";

/// Whether admission should have added the gate and did not.
fn missed(pod: &PodView, gates: &FeatureGates, own_namespace: &str, now: Now) -> bool {
    let wanted = pod.is_owned_by_kruise() || gates.enabled(gate::KRUISE_POD_READINESS_GATE);
    let recent = pod.created.is_some_and(|created| now.since(created) < MISSED_RECENTLY);
    gates.enabled(gate::POD_WEBHOOK)
        && wanted
        && !pod.is_exempt_from_admission(own_namespace)
        && recent
        && !pod.is_deleting()
        && !pod.has_readiness_gate(labels::CONDITION_KRUISE_POD_READY)
}

async fn reconcile(context: &Context, key: &ObjectKey) -> kube::Result<Requeue> {
    let Some(pod) = context.pods.get(key) else { return Ok(Requeue::Await) };
    if refresh::gets_first_conditions_from_workload(&pod) {
        return Ok(Requeue::Await);
    }
    let Some(patch) = readiness::default_condition(&pod, clock::now()) else { return Ok(Requeue::Await) };
    let api: Api<PodObject> = Api::namespaced(context.client.clone(), &key.namespace);
    match api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(pod) => {
            context.pods.upsert(pod.into());
            Ok(Requeue::Await)
        }
        Err(error) if apply::code(&error) == Some(404) => Ok(Requeue::Await),
        Err(error) if apply::code(&error) == Some(409) => Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_missed_injection_is_found_only_where_admission_should_have_acted() {
        let at = |seconds: i64| Now {
            wall: "2026-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_secs(seconds),
            mono: Duration::from_secs(1),
        };
        let pod = |changes: Value| -> PodView {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true}]}});
            json_patch::merge(&mut pod, &changes);
            serde_json::from_value(pod).unwrap()
        };
        let defaults = FeatureGates::default();
        let all = FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap();
        let off = FeatureGates::parse(&["PodWebhook=false"], None).unwrap();
        let unowned = json!({"metadata": {"ownerReferences": null}});
        for (name, changes, gates, seconds, want) in [
            ("owned", json!({}), &defaults, 5, true),
            ("our clock is behind", json!({}), &defaults, -100, true),
            ("not owned", unowned.clone(), &defaults, 5, false),
            ("not owned, but the gate is for all", unowned, &all, 5, true),
            ("old", json!({}), &defaults, 600, false),
            ("has it", json!({"spec": {"readinessGates": [{"conditionType": "KruisePodReady"}]}}), &defaults, 5, false),
            ("kube-system", json!({"metadata": {"namespace": "kube-system"}}), &all, 5, false),
            ("our own", json!({"metadata": {"namespace": "kruise-system"}}), &all, 5, false),
            ("static", json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "h"}}}), &all, 5, false),
            ("going", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:01Z"}}), &defaults, 5, false),
            ("no webhook wanted", json!({}), &off, 5, false),
        ] {
            assert_eq!(missed(&pod(changes), gates, "kruise-system", at(seconds)), want, "{name}");
        }
    }
}
