//! I/O: the target, its Pods, their requests and budgets. No decision.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};

use super::{Controller, RoundState};
use crate::{
    api::{
        apps,
        crr::ContainerRecreateRequest,
        group_of, labels,
        wr::{TargetRef, WorkloadRestart},
    },
    controllers::{BY_CONTROLLER, BY_NAMESPACE, BY_SIDECAR_SET, owned_text},
    domain::{
        budgets::disruption::Budget,
        kinds::{
            sidecar_set::{notes::PodNotes, pod::annotations},
            workload_restart::{self, RestartSpec, RestartTarget, Sidecar, Target},
        },
        node::recreate::manager,
    },
    k8s::{
        name::is_dns_subdomain,
        pod::PodView,
        time::{Now, Sighting},
    },
    runtime::{
        apply::{code, said},
        watches::{ObjectKey, StoreIndex},
        workload::{self, Scope},
    },
};

/// Whose Pods, of those in the namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Whose {
    /// Those of a workload, or with labels.
    Scope(Scope),
    /// Those into which the SidecarSet of this name was injected.
    SidecarSet(String),
}

/// A target as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub whose: Option<Whose>,
    pub target: Target,
}

impl Workload {
    fn unreadable(reason: &'static str, message: String) -> Self {
        Self { whose: None, target: Target::Unreadable { reason, message } }
    }
}

/// What is known of one Pod, with what it is borrowed from.
pub(super) struct PodRecord {
    pub pod: Arc<PodView>,
    pub request: Option<Arc<ContainerRecreateRequest>>,
    pub busy: bool,
    pub sidecars: Option<Vec<Sidecar>>,
}

/// What a SidecarSet put into a Pod; nothing if the Pod's annotations cannot be read.
fn sidecars_of(pod: &PodView, set: &str) -> Vec<Sidecar> {
    let notes = PodNotes::read(&annotations(pod)).unwrap_or_default();
    let named = |(name, container): (&str, &str)| Sidecar { name: name.to_owned(), container: container.to_owned() };
    notes.sidecars_of(set).into_iter().map(named).collect()
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
        namespace: &str,
        spec: &RestartSpec,
        remembered: Option<(Duration, Workload)>,
        now: Now,
    ) -> kube::Result<(Duration, Workload)> {
        match remembered {
            Some((read, workload))
                if now.mono.saturating_sub(read) < workload_restart::TARGET_AGE && workload.whose.is_some() =>
            {
                Ok((read, workload))
            }
            _ => Ok((now.mono, self.read_workload(namespace, &spec.target).await?)),
        }
    }

    async fn read_workload(&self, namespace: &str, target: &RestartTarget) -> kube::Result<Workload> {
        Ok(match target {
            RestartTarget::Workload(target) => self.read_target(namespace, target).await?,
            RestartTarget::Labels(selector) => Workload {
                whose: Some(Whose::Scope(Scope::Labels(selector.clone()))),
                target: Target::Known { desired: None, ordinals: false },
            },
            RestartTarget::Invalid(why) => Workload::unreadable("InvalidTarget", why.clone()),
        })
    }

    async fn read_target(&self, namespace: &str, target: &TargetRef) -> kube::Result<Workload> {
        let TargetRef { api_version, kind, name } = target;
        if (group_of(api_version), kind.as_str()) == (apps::GROUP, "SidecarSet") {
            return self.read_sidecar_set(name).await;
        }
        Ok(match workload::read(&self.context.client, namespace, (api_version, kind, name)).await? {
            workload::Workload::Found { scope, desired, ordinals, .. } => {
                Workload { whose: Some(Whose::Scope(scope)), target: Target::Known { desired, ordinals } }
            }
            workload::Workload::Missing(message) => Workload { whose: None, target: Target::Missing(message) },
            workload::Workload::Unreadable(reason, message) => Workload::unreadable(reason, message),
        })
    }

    /// Whether a SidecarSet is there; what it put into a Pod is noted on the Pod.
    async fn read_sidecar_set(&self, name: &str) -> kube::Result<Workload> {
        if !is_dns_subdomain(name) {
            let message = format!("spec.targetRef: SidecarSet {name:?} cannot exist");
            return Ok(Workload::unreadable("InvalidTarget", message));
        }
        let resource = ApiResource::erase::<apps::sidecar_set::SidecarSet>(&());
        let api: Api<DynamicObject> = Api::all_with(self.context.client.clone(), &resource);
        match api.get_metadata(name).await {
            Ok(_) => Ok(Workload {
                whose: Some(Whose::SidecarSet(name.to_owned())),
                target: Target::Known { desired: None, ordinals: false },
            }),
            Err(error) if code(&error) == Some(404) => {
                let message = format!("spec.targetRef: SidecarSet {name:?} is not there: {}", said(&error));
                Ok(Workload { whose: None, target: Target::Missing(message) })
            }
            Err(error) if code(&error) == Some(403) => {
                let message = format!("spec.targetRef: Kruise's manager may not read SidecarSets: {}", said(&error));
                Ok(Workload::unreadable("Forbidden", message))
            }
            Err(error) => Err(error),
        }
    }

    /// The Pods of the target with the requests of this round.
    pub(super) async fn pods_of(
        &self,
        restart: &WorkloadRestart,
        whose: &Whose,
        round: i64,
        requests: &Requests,
    ) -> kube::Result<Vec<PodRecord>> {
        let namespace = restart.namespace().unwrap_or_default();
        let select = |fits: &dyn Fn(&PodView) -> bool| {
            let all = self.context.pods.by_index(&BY_NAMESPACE, &namespace).into_iter();
            all.filter(|pod| fits(pod)).collect::<Vec<_>>()
        };
        let mut pods = match whose {
            Whose::Scope(Scope::Owner(uid)) => self.context.pods.by_index(&BY_CONTROLLER, &owned_text(&namespace, uid)),
            Whose::Scope(Scope::Deployment(_, selector)) => select(&|pod| {
                let is_replica_set = pod.controller.as_ref().is_some_and(|owner| owner.kind == "ReplicaSet");
                is_replica_set && selector.matches(&pod.labels)
            }),
            Whose::Scope(Scope::Labels(selector)) => select(&|pod| selector.matches(&pod.labels)),
            Whose::SidecarSet(set) => {
                let injected = self.context.pods.by_index(&BY_SIDECAR_SET, set).into_iter();
                injected.filter(|pod| pod.namespace() == namespace).collect()
            }
        };
        if let Whose::Scope(Scope::Deployment(uid, _)) = whose {
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
                let sidecars = match whose {
                    Whose::SidecarSet(set) => Some(sidecars_of(&pod, set)),
                    Whose::Scope(_) => None,
                };
                PodRecord { busy: !own && busy.contains(pod.uid()), request, pod, sidecars }
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
        let pods = self.context.pods.by_index(&BY_NAMESPACE, namespace);
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
