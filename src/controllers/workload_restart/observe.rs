//! I/O: the target, its Pods, their requests and budgets. No decision.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, ResourceExt, api::ListParams};

use super::{Controller, RoundState};
use crate::{
    api::{
        crr::ContainerRecreateRequest,
        labels,
        wr::{TargetRef, WorkloadRestart},
    },
    domain::{
        budgets::disruption::Budget,
        kinds::workload_restart::{self, Target},
        node::recreate::manager,
    },
    k8s::{
        pod::PodView,
        selector::Selector,
        time::{Now, Sighting},
    },
    runtime::{
        watches::{ObjectKey, StoreIndex},
        workload::{self, Scope},
    },
};

/// A target as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub scope: Option<Scope>,
    pub target: Target,
}

impl Workload {
    fn unreadable(reason: &'static str, message: String) -> Self {
        Self { scope: None, target: Target::Unreadable { reason, message } }
    }
}

/// What is known of one Pod, with what it is borrowed from.
pub(super) struct PodRecord {
    pub pod: Arc<PodView>,
    pub request: Option<Arc<ContainerRecreateRequest>>,
    pub busy: bool,
}

/// The requests of a namespace that WorkloadRestarts made.
pub(super) struct Requests(Vec<Arc<ContainerRecreateRequest>>);

impl Requests {
    /// UIDs of the Pods for which one is under way.
    fn busy(&self) -> HashSet<&str> {
        self.0.iter().filter(|r| is_under_way(r)).map(|r| r.pod_uid()).collect()
    }
}

fn is_under_way(request: &ContainerRecreateRequest) -> bool {
    !request.is_completed() || manager::has_finalizer(request)
}

fn is_of(request: &ContainerRecreateRequest, restart: &WorkloadRestart, round: &str) -> bool {
    let label = |key: &str| request.labels().get(key).map(String::as_str);
    label(labels::WORKLOAD_RESTART) == restart.metadata.uid.as_deref()
        && label(labels::WORKLOAD_RESTART_ROUND) == Some(round)
}

impl Controller {
    pub(super) fn requests_in(&self, namespace: &str) -> Requests {
        Requests(self.requests.by_index(&StoreIndex::namespace(), namespace))
    }

    /// Names of the ended requests that earlier rounds made.
    pub(super) fn earlier_requests(&self, restart: &WorkloadRestart, round: i64) -> Vec<ObjectKey> {
        let round = round.to_string();
        let uid = restart.metadata.uid.as_deref();
        let requests = self.requests.by_index(&StoreIndex::namespace(), &restart.namespace().unwrap_or_default());
        let earlier = requests.iter().filter(|request| {
            request.labels().get(labels::WORKLOAD_RESTART).map(String::as_str) == uid
                && !is_of(request, restart, &round)
                && !is_under_way(request)
                && !request.is_deleting()
        });
        earlier.map(|request| ObjectKey::of(request.as_ref())).collect()
    }

    /// The target, read anew when what is remembered is old.
    pub(super) async fn workload(
        &self,
        restart: &WorkloadRestart,
        remembered: Option<(Duration, Workload)>,
        now: Now,
    ) -> kube::Result<(Duration, Workload)> {
        match remembered {
            Some((read, workload))
                if now.mono.saturating_sub(read) < workload_restart::TARGET_AGE && workload.scope.is_some() =>
            {
                Ok((read, workload))
            }
            _ => Ok((now.mono, self.read_workload(restart).await?)),
        }
    }

    async fn read_workload(&self, restart: &WorkloadRestart) -> kube::Result<Workload> {
        if let Some(target) = &restart.spec.target_ref {
            return self.read_target(&restart.namespace().unwrap_or_default(), target).await;
        }
        let selector = restart.spec.selector.as_ref().map(Selector::of);
        Ok(match selector {
            Some(Ok(selector)) if !selector.is_empty() => Workload {
                scope: Some(Scope::Labels(selector)),
                target: Target::Known { desired: None, ordinals: false },
            },
            Some(Err(error)) => Workload::unreadable("InvalidTarget", format!("spec.selector: {error}")),
            // Stored past the schema.
            Some(Ok(_)) | None => {
                Workload::unreadable("InvalidTarget", "spec: neither targetRef nor a selector with labels".to_owned())
            }
        })
    }

    async fn read_target(&self, namespace: &str, target: &TargetRef) -> kube::Result<Workload> {
        let TargetRef { api_version, kind, name } = target;
        Ok(match workload::read(&self.context.client, namespace, (api_version, kind, name)).await? {
            workload::Workload::Found { scope, desired, ordinals, .. } => {
                Workload { scope: Some(scope), target: Target::Known { desired, ordinals } }
            }
            workload::Workload::Missing(message) => Workload { scope: None, target: Target::Missing(message) },
            workload::Workload::Unreadable(reason, message) => Workload::unreadable(reason, message),
        })
    }

    /// The Pods of the target with the requests of this round.
    pub(super) async fn pods_of(
        &self,
        restart: &WorkloadRestart,
        scope: &Scope,
        round: i64,
        requests: &Requests,
    ) -> kube::Result<Vec<PodRecord>> {
        let namespace = restart.namespace().unwrap_or_default();
        let in_scope = |pod: &PodView| {
            let controller = pod.controller.as_ref();
            match scope {
                Scope::Owner(uid) => controller.is_some_and(|owner| owner.uid == *uid),
                Scope::Deployment(_, selector) => {
                    controller.is_some_and(|owner| owner.kind == "ReplicaSet") && selector.matches(&pod.labels)
                }
                Scope::Labels(selector) => selector.matches(&pod.labels),
            }
        };
        let mut pods = self.context.pods.select(|pod| pod.namespace() == namespace && in_scope(pod));
        if let Scope::Deployment(uid, _) = scope {
            let mut ours = HashMap::new();
            for owner in pods.iter().filter_map(|pod| pod.controller.as_ref()) {
                if !ours.contains_key(&owner.uid) {
                    let deployment = self.owner_of_replica_set(&namespace, &owner.name, &owner.uid).await?;
                    ours.insert(owner.uid.clone(), deployment.as_deref() == Some(uid));
                }
            }
            pods.retain(|pod| pod.controller.as_ref().is_some_and(|owner| ours.get(&owner.uid) == Some(&true)));
        }
        let round = round.to_string();
        let busy = requests.busy();
        let of_round = requests.0.iter().filter(|request| is_of(request, restart, &round));
        let of_round: HashMap<&str, &Arc<ContainerRecreateRequest>> = of_round.map(|r| (r.pod_uid(), r)).collect();
        Ok(pods
            .into_iter()
            .map(|pod| {
                let request = of_round.get(pod.uid()).map(|request| (*request).clone());
                let own = request.as_ref().is_some_and(|request| is_under_way(request));
                PodRecord { busy: !own && busy.contains(pod.uid()), request, pod }
            })
            .collect())
    }

    /// UID of the Deployment that controls a ReplicaSet.
    async fn owner_of_replica_set(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<Option<String>> {
        let owner = self.replica_sets.of(&self.context.client, namespace, name, uid).await?;
        Ok(owner.map(|owner| owner.uid))
    }

    /// Reads the budgets of a namespace from the API server itself: an eviction writes down what it takes before it is
    /// answered, and a watch may show that late. False: there are none.
    pub(super) async fn read_budgets(&self, namespace: &str) -> kube::Result<bool> {
        if self.budgets.by_index(&StoreIndex::namespace(), namespace).is_empty() {
            return Ok(false);
        }
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.context.client.clone(), namespace);
        for budget in api.list(&ListParams::default()).await? {
            self.budgets.upsert(budget);
        }
        Ok(true)
    }

    /// The budgets of a namespace, judged by all of its Pods.
    pub(super) fn budgets(&self, namespace: &str, requests: &Requests) -> Vec<Budget> {
        let budgets = self.budgets.by_index(&StoreIndex::namespace(), namespace);
        if budgets.is_empty() {
            return Vec::new();
        }
        let busy = requests.busy();
        let pods = self.context.pods.select(|pod| pod.namespace() == namespace);
        let with_restarts = || pods.iter().map(|pod| (pod.as_ref(), busy.contains(pod.uid())));
        budgets.iter().filter_map(|budget| Budget::of(budget, with_restarts())).collect()
    }
}

impl RoundState {
    /// Since when restarted Pods have been ready.
    pub(super) fn note_ready(&mut self, pods: &[PodRecord], now: Now) {
        self.ready.retain(|uid, _| pods.iter().any(|record| record.pod.uid() == uid));
        for PodRecord { pod, request, .. } in pods {
            let Some(request) = request else { continue };
            if is_under_way(request) {
                self.begun.insert(pod.uid().to_owned());
                self.ready.remove(pod.uid());
            } else if !pod.condition_is_true("Ready") {
                self.ready.remove(pod.uid());
                self.begun.insert(pod.uid().to_owned());
            } else if !self.ready.contains_key(pod.uid()) {
                let completed = request.status.as_ref().and_then(|status| status.completion_time);
                let sighting = match completed {
                    // It had been ready when this process first saw it.
                    Some(completed) if !self.begun.contains(pod.uid()) => Sighting::found(now, completed),
                    _ => Sighting::live(now),
                };
                self.ready.insert(pod.uid().to_owned(), sighting);
            }
        }
    }
}
