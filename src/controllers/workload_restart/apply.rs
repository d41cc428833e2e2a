//! I/O: carries a plan out; the only writer of this controller.
//!
//! Requests come before the status: they are the record of what was begun. The status is bound to the version that the
//! plan was made from.

use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Controller, hashed, lock};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestSpec, RecreateContainer},
        labels,
        wr::{WorkloadRestart, WorkloadRestartStatus},
    },
    domain::{
        budgets::unavailable::Operation,
        kinds::workload_restart::{self, RestartPlan, RestartSpec, Start},
    },
    k8s::{pod::PodObject, time::sooner},
    runtime::{
        apply::code, clock, events::reference, expiry, metrics::ResultLabels, pass::AFTER_CONFLICT, queue::Requeue,
        status_writer::Outcome, watches::ObjectKey,
    },
};

/// Writes at a time.
const AT_ONCE: usize = 8;
/// Length of a request's name, so that events about it have room for a suffix.
const NAME_MAX: usize = 200;

impl Controller {
    /// Removes from the plan the Pods whose PodUnavailableBudgets do not allow a restart now. A consent is recorded, so that the
    /// requests that follow are admitted.
    pub(super) async fn ask_budgets(&self, namespace: &str, plan: &mut RestartPlan) {
        let (mut granted, mut why) = (Vec::new(), None);
        for start in std::mem::take(&mut plan.start) {
            let Some(pod) = self.context.pods.get(&ObjectKey::new(namespace, &start.pod)) else { continue };
            match self.context.budgets.take(&pod, Operation::Restart, false).await {
                Ok(()) => granted.push(start),
                Err(refusal) => {
                    why = Some(refusal.message());
                    break;
                }
            }
        }
        plan.start = granted;
        if let Some(why) = why {
            plan.waits_for_budget(why, clock::now());
        }
    }

    /// The part of a plan that other decisions depend on. A Pod that is refused keeps no other one from being restarted.
    pub(super) async fn restart_pods(
        &self,
        restart: &WorkloadRestart,
        spec: &RestartSpec,
        plan: &mut RestartPlan,
    ) -> kube::Result<()> {
        let key = ObjectKey::of(restart);
        let touched = self.touch(&key, &plan.touch).await;
        let started = self.start_pods(&key, (restart, spec), plan).await;
        let mut asked = plan.touch.iter().map(|(_, uid)| uid).chain(plan.start.iter().map(|start| &start.uid));
        let is_refused =
            lock(&self.memories).get(&key).is_some_and(|memory| asked.any(|uid| memory.refused.contains_key(uid)));
        if is_refused {
            plan.look_after(workload_restart::AFTER_REFUSAL);
        }
        touched.and(started)
    }

    /// Makes the requests.
    async fn start_pods(
        &self,
        key: &ObjectKey,
        (restart, spec): (&WorkloadRestart, &RestartSpec),
        plan: &RestartPlan,
    ) -> kube::Result<()> {
        if plan.start.is_empty() {
            return Ok(());
        }
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let mut results = Vec::with_capacity(plan.start.len());
        for some in plan.start.chunks(AT_ONCE) {
            let made = some.iter().map(|start| {
                let request = request(restart, spec, plan.status.round, start);
                self.create(&api, restart, request, start)
            });
            let made: Vec<_> = made.collect();
            results.extend(some.iter().zip(join_all(made).await));
        }
        let (mut begun, mut failed) = (Vec::new(), None);
        for (start, result) in results {
            match result {
                Ok(true) => begun.push(start.pod.clone()),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        if !begun.is_empty() {
            tracing::info!(restart = %key, pods = begun.join(","), round = plan.status.round, "restarting Pods");
            let message =
                format!("Restarting {} ({} Pods done)", workload_restart::listed(&begun, ", "), plan.status.progress);
            self.context.events.normal(&reference(restart), "Restarting", &message);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes kubelet sync the Pods, and with them their volumes, by an annotation that is written through `pods/status`.
    async fn touch(&self, key: &ObjectKey, pods: &[(String, String)]) -> kube::Result<()> {
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let mut results = Vec::with_capacity(pods.len());
        for some in pods.chunks(AT_ONCE) {
            let written: Vec<_> = some.iter().map(|(name, uid)| touch_one(&api, name, uid)).collect();
            results.extend(some.iter().zip(join_all(written).await));
        }
        let mut failed = None;
        for ((name, uid), result) in results {
            match result {
                Ok(pod) => {
                    self.context.pods.upsert(pod.into());
                    if let Some(memory) = lock(&self.memories).get_mut(key) {
                        memory.touched.insert(uid.clone(), clock::now().mono);
                        // The refresh succeeded; refusals of the request are counted separately.
                        memory.refused.remove(uid);
                    }
                }
                // It is gone or replaced: the watch will show that.
                Err(error) if matches!(code(&error), Some(404 | 409)) => {}
                // A 422 may mean that it was replaced, too: then the watch shows that before it counts as failed.
                Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                    self.refused(key, (name, uid), format!("its volumes cannot be refreshed: {}", status.message));
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Creates the request for one Pod. False: it exists already, or admission refused it.
    async fn create(
        &self,
        api: &Api<ContainerRecreateRequest>,
        restart: &WorkloadRestart,
        request: ContainerRecreateRequest,
        start: &Start,
    ) -> kube::Result<bool> {
        let name = request.name_any();
        match api.create(&PostParams::default(), &request).await {
            Ok(made) => {
                self.requests.upsert(made);
                self.metrics.pods.inc();
                Ok(true)
            }
            Err(error) if code(&error) == Some(409) => {
                // Made by a process before this one, or not shown to us yet.
                if let Some(found) = api.get_opt(&name).await? {
                    if found.owner_references().iter().all(|owner| Some(&owner.uid) != restart.metadata.uid.as_ref()) {
                        let why =
                            format!("ContainerRecreateRequest {name} is there already and belongs to somebody else");
                        self.refused(&ObjectKey::of(restart), (&start.pod, &start.uid), why);
                    } else {
                        self.requests.upsert(found);
                    }
                }
                Ok(false)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                self.refused(&ObjectKey::of(restart), (&start.pod, &start.uid), status.message.clone());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that a write for a Pod, given by name and UID, was refused.
    fn refused(&self, key: &ObjectKey, (pod, uid): (&str, &str), why: String) {
        tracing::warn!(restart = %key, pod, why, "a write for a Pod was refused");
        if let Some(memory) = lock(&self.memories).get_mut(key) {
            let times = memory.refused.get(uid).map_or(0, |(times, ..)| *times);
            memory.refused.insert(uid.to_owned(), (times + 1, clock::now().mono, why));
        }
    }

    /// The rest of a plan.
    pub(super) async fn record(&self, restart: &WorkloadRestart, mut plan: RestartPlan) -> kube::Result<Requeue> {
        let key = ObjectKey::of(restart);
        let api: Api<WorkloadRestart> = Api::namespaced(self.context.client.clone(), &key.namespace);
        if restart.is_deleting() {
            return Ok(Requeue::Await);
        }
        if plan.delete {
            tracing::info!(restart = %key, "deleting it, its time to live is over");
            return expiry::delete(&api, restart).await;
        }
        let mut requeue = plan.requeue;
        let recorded = restart.status.clone().unwrap_or_default();
        let now = clock::now();
        workload_restart::set_kstatus(&mut plan.status, now);
        // Counts change with every Pod; people read them.
        let can_wait = only_counts(&recorded, &plan.status);
        let statuses = (&recorded, &plan.status);
        match self.status.write((&api, &self.restarts), restart, statuses, can_wait, now).await? {
            Outcome::Unchanged => {}
            Outcome::Written(_) => self.emit_event(restart, &plan),
            Outcome::Later(pause) => requeue = sooner(requeue, Some(pause)),
            Outcome::Outdated => return Ok(Requeue::After(AFTER_CONFLICT)),
            Outcome::Gone => return Ok(Requeue::Await),
        }
        if plan.forget_earlier_rounds {
            let requests: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), &key.namespace);
            for earlier in self.earlier_requests(restart, plan.status.round) {
                match requests.delete(&earlier.name, &DeleteParams::background()).await {
                    Err(error) if code(&error) != Some(404) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(requeue.map_or(Requeue::Await, Requeue::After))
    }

    fn emit_event(&self, restart: &WorkloadRestart, plan: &RestartPlan) {
        let status = &plan.status;
        tracing::info!(
            restart = %ObjectKey::of(restart), round = status.round, progress = status.progress, failed = status.failed,
            message = status.message, "recorded"
        );
        let Some(event) = &plan.event else { return };
        let about = reference(restart);
        if event.warning {
            self.context.events.warning(&about, event.reason, &event.message);
        } else {
            self.context.events.normal(&about, event.reason, &event.message);
        }
        if status.has_ended() {
            let result = if status.is_true(labels::CONDITION_COMPLETE) { "succeeded" } else { "failed" };
            self.metrics.rounds.get_or_create(&ResultLabels { result }).inc();
        }
    }
}

async fn touch_one(api: &Api<PodObject>, name: &str, uid: &str) -> kube::Result<PodObject> {
    let annotations = json!({labels::VOLUMES_REFRESH: clock::now().wall.to_string()});
    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": annotations}}));
    api.patch_status(name, &PatchParams::default(), &patch).await
}

/// The request for one Pod. Its name is derived from round and Pod, so that it cannot be created twice.
fn request(restart: &WorkloadRestart, spec: &RestartSpec, round: i64, start: &Start) -> ContainerRecreateRequest {
    let uid = restart.metadata.uid.clone().unwrap_or_default();
    let round = round.to_string();
    let suffix = hashed(&[&uid, &round, &start.uid], 12);
    let own = restart.name_any();
    let kept = own.get(..NAME_MAX).unwrap_or(&own).trim_end_matches(['.', '-']);
    let containers = start.containers.iter().map(|name| RecreateContainer { name: name.clone(), ..Default::default() });
    let mut request = ContainerRecreateRequest::new(
        &format!("{kept}-{suffix}"),
        ContainerRecreateRequestSpec {
            pod_name: start.pod.clone(),
            containers: containers.collect(),
            strategy: spec.strategy.clone(),
            active_deadline_seconds: spec.pod_deadline_seconds,
            ttl_seconds_after_finished: None,
        },
    );
    request.metadata.namespace = restart.namespace();
    request.metadata.labels = Some(
        [(labels::WORKLOAD_RESTART.to_owned(), uid.clone()), (labels::WORKLOAD_RESTART_ROUND.to_owned(), round)].into(),
    );
    request.metadata.owner_references = Some(vec![OwnerReference {
        api_version: WorkloadRestart::api_version(&()).into_owned(),
        kind: WorkloadRestart::kind(&()).into_owned(),
        name: own,
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    request
}

/// Whether two statuses differ in nothing but numbers and words.
fn only_counts(old: &WorkloadRestartStatus, new: &WorkloadRestartStatus) -> bool {
    let mut with_counts = old.clone();
    let WorkloadRestartStatus { total, restarted, restarting, failed, skipped, progress, message, .. } = new.clone();
    with_counts =
        WorkloadRestartStatus { total, restarted, restarting, failed, skipped, progress, message, ..with_counts };
    for condition in &mut with_counts.conditions {
        if let Some(other) = new.conditions.iter().find(|c| c.type_ == condition.type_) {
            condition.message.clone_from(&other.message);
        }
    }
    with_counts == *new && new.round > 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn restart(name: &str, uid: &str) -> WorkloadRestart {
        serde_json::from_value(json!({
            "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
            "metadata": {"name": name, "namespace": "ns", "uid": uid},
            "spec": {"selector": {}, "podDeadlineSeconds": 60,
                "strategy": {"recreateMethod": "Auto", "unreadyGracePeriodSeconds": 3, "minStartedSeconds": 2, "orderedRecreate": true}},
        }))
        .unwrap()
    }
    fn start(pod: &str, uid: &str) -> Start {
        Start { pod: pod.into(), uid: uid.into(), containers: vec!["main".into(), "mesh".into()] }
    }

    fn request(restart: &WorkloadRestart, round: i64, start: &Start) -> ContainerRecreateRequest {
        super::request(restart, &RestartSpec::of(restart), round, start)
    }

    #[test]
    fn the_name_of_a_request_follows_from_restart_round_and_pod() {
        let name = |uid: &str, round, pod: &str| request(&restart("roll", uid), round, &start("web-0", pod)).name_any();
        assert_eq!(name("u", 1, "p"), name("u", 1, "p"));
        let all = [name("u", 1, "p"), name("v", 1, "p"), name("u", 2, "p"), name("u", 1, "q"), name("u1", 1, "p")];
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        let long = request(&restart(&format!("{}.b", "a".repeat(199)), "u"), 1, &start("web-0", "p")).name_any();
        assert!(crate::k8s::name::is_dns_subdomain(&long), "{long}");
    }

    #[test]
    fn a_request_carries_the_strategy_and_its_owner() {
        let made = serde_json::to_value(request(&restart("roll", "u"), 3, &start("web-0", "p"))).unwrap();
        assert_eq!(
            made["spec"],
            json!({"podName": "web-0", "containers": [{"name": "main"}, {"name": "mesh"}], "activeDeadlineSeconds": 60,
            "strategy": {"recreateMethod": "Auto", "unreadyGracePeriodSeconds": 3, "minStartedSeconds": 2, "orderedRecreate": true}})
        );
        assert_eq!(
            made["metadata"]["labels"],
            json!({"kruise.rs/workload-restart": "u", "kruise.rs/workload-restart-round": "3"})
        );
        assert_eq!(
            made["metadata"]["ownerReferences"],
            json!([{"apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
            "name": "roll", "uid": "u", "controller": true}])
        );
    }

    #[test]
    fn counts_and_words_may_wait_and_conditions_may_not() {
        let old: WorkloadRestartStatus =
            serde_json::from_value(json!({"round": 1, "total": 3, "conditions": [{"type": "Progressing",
            "status": "True", "reason": "Restarting", "message": "a", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
            .unwrap();
        let mut new =
            WorkloadRestartStatus { restarted: 1, progress: "1/3".into(), message: "b".into(), ..old.clone() };
        new.conditions[0].message = "b".into();
        assert!(only_counts(&old, &new));
        new.conditions[0].reason = "WaitingForBudget".into();
        assert!(!only_counts(&old, &new));
        assert!(!only_counts(&old, &WorkloadRestartStatus { round: 2, ..old.clone() }));
    }
}
