//! I/O: the target, its Pods, their requests and budgets. No decision.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    Controller, Memory,
    plan::{self, Target},
};
use crate::{
    api::{
        apps,
        crr::ContainerRecreateRequest,
        labels,
        wr::{TargetRef, WorkloadRestart},
    },
    domain::{
        budget::Budget,
        recreate::manager::{self, Sighting},
    },
    k8s::{name::is_dns_subdomain, pod::PodView, selector::Selector, time::Now},
    runtime::{apply::code, watches::ObjectKey},
};

/// Kinds that the manager may read by itself: group, kind, resource, and where they say how many Pods they want.
const KNOWN: &[(&str, &str, &str, &str)] = &[
    ("apps", "Deployment", "deployments", "/spec/replicas"),
    ("apps", "ReplicaSet", "replicasets", "/spec/replicas"),
    ("apps", "StatefulSet", "statefulsets", "/spec/replicas"),
    ("apps", "DaemonSet", "daemonsets", "/status/desiredNumberScheduled"),
    (apps::GROUP, "CloneSet", "clonesets", "/spec/replicas"),
    (apps::GROUP, "StatefulSet", "statefulsets", "/spec/replicas"),
    (apps::GROUP, "DaemonSet", "daemonsets", "/status/desiredNumberScheduled"),
];
/// Owners of ReplicaSets that are remembered; all are forgotten when there are more.
const OWNERS: usize = 10_000;

/// Whose Pods are meant.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scope {
    /// Those that the object with this UID controls.
    Owner(String),
    /// Those of the ReplicaSets that the Deployment with this UID controls; its selector.
    Deployment(String, Selector),
    /// Those with fitting labels.
    Labels(Selector),
}

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
        Requests(self.requests.by_index(namespace))
    }

    /// Names of the ended requests that earlier rounds made.
    pub(super) fn earlier_requests(&self, restart: &WorkloadRestart, round: i64) -> Vec<ObjectKey> {
        let round = round.to_string();
        let uid = restart.metadata.uid.as_deref();
        let requests = self.requests.by_index(&restart.namespace().unwrap_or_default());
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
            Some((read, workload)) if now.mono.saturating_sub(read) < plan::TARGET_AGE && workload.scope.is_some() => {
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
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        // They become part of a URL.
        let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
        if !(is_dns_subdomain(name) && is_dns_subdomain(version) && is_word(kind))
            || !(group.is_empty() || is_dns_subdomain(group))
        {
            return Ok(Workload::unreadable("InvalidTarget", format!("spec.targetRef: {target:?} cannot exist")));
        }
        let known = KNOWN.iter().find(|(g, k, ..)| (*g, *k) == (group, kind));
        let missing = |error: &kube::Error| Workload {
            scope: None,
            target: Target::Missing(format!("spec.targetRef: {kind} {name:?} ({api_version}) is not there: {error}")),
        };
        let resource = |plural: &str| ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.clone(),
            kind: kind.clone(),
            plural: plural.to_owned(),
        };
        if let Some((_, _, plural, replicas)) = known {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.context.client.clone(), namespace, &resource(plural));
            return match api.get(name).await {
                Ok(object) => Ok(known_workload(&object, kind, replicas)),
                Err(error) if code(&error) == Some(404) => Ok(missing(&error)),
                Err(error) if code(&error) == Some(403) => Ok(forbidden(plural, group, &error)),
                Err(error) => Err(error),
            };
        }
        let served = match group {
            "" => self.context.client.list_core_api_resources(version).await,
            _ => self.context.client.list_api_group_resources(api_version).await,
        };
        let served = match served {
            Ok(served) => served.resources,
            Err(error) if code(&error) == Some(404) => return Ok(missing(&error)),
            Err(error) => return Err(error),
        };
        let Some(plural) = served.iter().find(|r| r.kind == *kind && !r.name.contains('/')).map(|r| &r.name) else {
            let message = format!("spec.targetRef: {api_version} has no kind {kind:?}");
            return Ok(Workload { scope: None, target: Target::Missing(message) });
        };
        let scale = format!("{plural}/scale");
        if !served.iter().any(|r| r.name == scale) {
            let message =
                format!("spec.targetRef: {kind} of {api_version} has no scale subresource; use spec.selector");
            return Ok(Workload::unreadable("InvalidTarget", message));
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource(plural));
        match api.get_scale(name).await {
            Ok(scale) => {
                let selector = scale.status.and_then(|status| status.selector).unwrap_or_default();
                Ok(match Selector::parse(&selector) {
                    Ok(selector) if !selector.is_empty() => {
                        let desired = scale.spec.and_then(|spec| spec.replicas).and_then(|n| n.try_into().ok());
                        Workload {
                            scope: Some(Scope::Labels(selector)),
                            target: Target::Known { desired, ordinals: false },
                        }
                    }
                    Ok(_) => Workload::unreadable(
                        "InvalidTarget",
                        format!(
                            "spec.targetRef: the scale of {kind} {name:?} has no status.selector; use spec.selector"
                        ),
                    ),
                    Err(error) => Workload::unreadable("InvalidTarget", format!("spec.targetRef: {error}")),
                })
            }
            Err(error) if code(&error) == Some(404) => Ok(missing(&error)),
            Err(error) if code(&error) == Some(403) => Ok(forbidden(&scale, group, &error)),
            Err(error) => Err(error),
        }
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

    /// UID of the Deployment that controls a ReplicaSet, read once for each ReplicaSet.
    async fn owner_of_replica_set(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<Option<String>> {
        if let Some(owner) = super::lock(&self.replica_sets).get(uid) {
            return Ok(owner.clone());
        }
        let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::ReplicaSet>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource);
        let Some(found) = api.get_metadata_opt(name).await? else { return Ok(None) };
        if found.metadata.uid.as_deref() != Some(uid) {
            return Ok(None);
        }
        let owners = found.metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid);
        let mut known = super::lock(&self.replica_sets);
        if known.len() >= OWNERS {
            known.clear();
        }
        known.insert(uid.to_owned(), owner.clone());
        Ok(owner)
    }

    /// Reads the budgets of a namespace from the API server itself: an eviction writes down what it takes before it is
    /// answered, and a watch may show that late. False: there are none.
    pub(super) async fn read_budgets(&self, namespace: &str) -> kube::Result<bool> {
        if self.budgets.by_index(namespace).is_empty() {
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
        let budgets = self.budgets.by_index(namespace);
        if budgets.is_empty() {
            return Vec::new();
        }
        let busy = requests.busy();
        let pods = self.context.pods.select(|pod| pod.namespace() == namespace);
        let with_restarts = || pods.iter().map(|pod| (pod.as_ref(), busy.contains(pod.uid())));
        budgets.iter().filter_map(|budget| Budget::of(budget, with_restarts())).collect()
    }
}

impl Memory {
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

fn known_workload(object: &DynamicObject, kind: &str, replicas: &str) -> Workload {
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let desired = object.data.pointer(replicas).and_then(Value::as_u64).and_then(|n| n.try_into().ok());
    let target = Target::Known { desired, ordinals: kind == "StatefulSet" };
    let scope = if kind == "Deployment" {
        let selector = object.data.pointer("/spec/selector").cloned().unwrap_or_default();
        let selector = serde_json::from_value::<LabelSelector>(selector).map_err(|error| error.to_string());
        match selector.and_then(|selector| Selector::of(&selector)) {
            Ok(selector) => Scope::Deployment(uid, selector),
            Err(error) => {
                return Workload::unreadable("InvalidTarget", format!("spec.targetRef: its selector: {error}"));
            }
        }
    } else {
        Scope::Owner(uid)
    };
    Workload { scope: Some(scope), target }
}

fn forbidden(resource: &str, group: &str, error: &kube::Error) -> Workload {
    let message = format!(
        "spec.targetRef: Kruise's manager may not read it; grant it with a ClusterRole that has the label {}: \"true\" and the rule apiGroups [{group:?}], resources [{resource}], verbs [get]. The API server says: {error}",
        labels::AGGREGATE_TO_MANAGER
    );
    Workload::unreadable("Forbidden", message)
}
