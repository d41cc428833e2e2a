//! I/O: serves requests of method PodSpec. What to do is decided by [`crate::domain::node::recreate::pod_spec`].

use std::{sync::Arc, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{AFTER_CONFLICT, BY_POD, Controller, lock, pod_key};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, Phase},
        labels,
    },
    domain::node::recreate::{
        News,
        kstatus::with_kstatus,
        news, node,
        pod_spec::{self, Respelling},
    },
    k8s::pod::{PodObject, PodView},
    runtime::{
        apply::{code, patch_status},
        clock,
        events::reference,
        held::Held,
        watches::ObjectKey,
    },
};

/// Maximum number of steps in one reconcile.
const STEPS: usize = 8;

/// The result of a change of the Pod.
enum Changed {
    Yes,
    /// The Pod has changed meanwhile, and was read again.
    Outdated,
    Gone,
    /// Admission or validation denied it, with this message.
    Denied(String),
}

impl Controller {
    /// Takes all steps that are possible now; returns when to reconcile again at the latest.
    pub(super) async fn serve(&self, key: &ObjectKey, pod: &Arc<PodView>) -> kube::Result<Option<Duration>> {
        self.alone(pod.uid(), self.take_steps(key, pod)).await
    }

    /// Takes steps for a Pod unless another worker does. However they end, the next worker may.
    pub(super) async fn alone(
        &self,
        pod_uid: &str,
        steps: impl Future<Output = kube::Result<Option<Duration>>>,
    ) -> kube::Result<Option<Duration>> {
        let Some(_held) = Held::take(&self.busy, pod_uid) else { return Ok(Some(AFTER_CONFLICT)) };
        steps.await
    }

    async fn take_steps(&self, key: &ObjectKey, pod: &Arc<PodView>) -> kube::Result<Option<Duration>> {
        let mut pod = pod.clone();
        for _ in 0..STEPS {
            let Some(request) = self.requests.get(key).filter(|r| r.is_served_by_manager() && r.pod_uid() == pod.uid())
            else {
                return Ok(None);
            };
            if !request.is_open() {
                return Ok(None);
            }
            // Requests of all methods count, also those of the daemon.
            let all = self.requests.by_index(&BY_POD, &pod_key(&request).to_string());
            let pick = node::pick_by_manager(all.iter().map(AsRef::as_ref).filter(|r| r.pod_uid() == pod.uid()));
            if let Some(first) = pick.current.filter(|first| first.metadata.uid != request.metadata.uid) {
                if *request.phase() == Phase::Empty {
                    self.record(&request, &node::waiting_status(first)).await?;
                }
                return Ok(None); // its end brings us back
            }
            if *request.phase() != Phase::Recreating && !pod_spec::agrees(&request, &pod) {
                match self.read_pod_again(&pod).await? {
                    Some(newer) => pod = newer,
                    None => return Ok(None),
                }
            }

            let now = clock::now();
            let uid = request.metadata.uid.clone().unwrap_or_default();
            let plan = {
                let mut progress = lock(&self.progress);
                pod_spec::plan(&request, &pod, progress.entry(uid).or_default(), now)
            };
            // The trial comes before anything is done to the Pod; meanwhile what is going to be done is recorded.
            let decided_on = pod.resource_version().map(str::to_owned);
            let trial = self.try_images(&mut pod, plan.trial.as_ref());
            let record = async {
                match &plan.status {
                    Some(status) => self.record(&request, status).await,
                    None => Ok(true),
                }
            };
            let (tried, recorded) = tokio::join!(trial, record);
            let recorded = recorded?;
            match tried? {
                Changed::Gone => return Ok(None),
                Changed::Denied(words) => {
                    if let Some(request) = self.requests.get(key)
                        && let Some(status) = pod_spec::denied(&request, &pod, &words, now)
                    {
                        self.record(&request, &status).await?;
                    }
                    continue;
                }
                Changed::Yes | Changed::Outdated => {}
            }
            if !recorded || pod.resource_version() != decided_on.as_deref() {
                continue;
            }
            let Some(respelling) = &plan.respelling else {
                if plan.status.is_some() {
                    continue;
                }
                return Ok(plan.requeue);
            };
            match self.change_images(&mut pod, respelling, false).await? {
                Changed::Yes => {
                    let images: Vec<&str> = respelling.images.iter().map(|(_, image)| image.as_str()).collect();
                    tracing::info!(request = %key, pod = request.spec.pod_name, ?images, "images spelled differently");
                }
                Changed::Outdated => {}
                Changed::Gone => return Ok(None),
                Changed::Denied(words) => {
                    if let Some(request) = self.requests.get(key) {
                        self.record(&request, &pod_spec::denied_later(&request, respelling, &words)).await?;
                    }
                }
            }
        }
        Ok(Some(AFTER_CONFLICT))
    }

    /// Records a status. False: the request has changed meanwhile, and was read again.
    async fn record(
        &self,
        request: &ContainerRecreateRequest,
        status: &ContainerRecreateRequestStatus,
    ) -> kube::Result<bool> {
        let key = ObjectKey::of(request);
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let status = with_kstatus(request, status, clock::now().wall);
        match patch_status(&api, request, &request.status.as_ref(), &Some(&status)).await {
            Ok(written) => {
                if let Some(written) = written {
                    self.requests.upsert(written);
                }
            }
            Err(error) if code(&error) == Some(409) => {
                if let Some(newer) = api.get_opt(&key.name).await? {
                    self.requests.upsert(newer);
                }
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        for state in &status.container_recreate_states {
            tracing::debug!(
                request = %key, pod = request.spec.pod_name, container = state.name,
                phase = state.phase.as_str(), killed = state.is_killed, message = state.message, "container"
            );
        }
        for News { reason, is_failure, message, .. } in news(request, &status.container_recreate_states) {
            tracing::info!(request = %key, message, "container");
            match is_failure {
                true => self.context.events.warning(&reference(request), reason, &message),
                false => self.context.events.normal(&reference(request), reason, &message),
            }
        }
        if status.phase == Phase::Completed {
            lock(&self.progress).remove(request.metadata.uid.as_deref().unwrap_or_default());
            self.report_outcome(request, &status);
            self.next_of_the_pod(request);
        }
        Ok(true)
    }

    async fn read_pod_again(&self, pod: &PodView) -> kube::Result<Option<Arc<PodView>>> {
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), pod.namespace());
        let Some(newer) = api.get_opt(pod.name()).await?.map(PodView::from).filter(|newer| newer.uid() == pod.uid())
        else {
            return Ok(None);
        };
        self.context.pods.upsert(newer.clone());
        Ok(Some(Arc::new(newer)))
    }

    /// Tries a change, if there is one, of the Pod as it is by then.
    async fn try_images(&self, pod: &mut Arc<PodView>, trial: Option<&Respelling>) -> kube::Result<Changed> {
        let Some(trial) = trial else { return Ok(Changed::Yes) };
        for _ in 0..STEPS {
            match self.change_images(pod, trial, true).await? {
                Changed::Outdated => {}
                other => return Ok(other),
            }
        }
        Ok(Changed::Outdated)
    }

    /// Patches the Pod, or tries it. `pod` is then the Pod as it is now.
    async fn change_images(
        &self,
        pod: &mut Arc<PodView>,
        respelling: &Respelling,
        dry_run: bool,
    ) -> kube::Result<Changed> {
        let list = |sidecars: bool| {
            let mine = respelling.images.iter().filter(|(name, _)| pod.is_sidecar(name) == sidecars);
            mine.map(|(name, image)| json!({"name": name, "image": image})).collect::<Vec<_>>()
        };
        let (containers, sidecars) = (list(false), list(true));
        let mut spec = json!({});
        for (field, list) in [("containers", containers), ("initContainers", sidecars)] {
            if !list.is_empty() {
                spec[field] = list.into();
            }
        }
        let patch = json!({
            "metadata": {
                "uid": pod.uid(), "resourceVersion": pod.resource_version(),
                "annotations": {labels::IMAGE_SPELLINGS: respelling.annotation},
            },
            "spec": spec,
        });
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), pod.namespace());
        let parameters = PatchParams { dry_run, ..PatchParams::default() };
        match api.patch(pod.name(), &parameters, &Patch::Strategic(patch)).await {
            Ok(changed) => {
                let changed = PodView::from(changed);
                if !dry_run {
                    self.context.pods.upsert(changed.clone());
                    *pod = Arc::new(changed);
                }
                Ok(Changed::Yes)
            }
            Err(error) if code(&error) == Some(404) => Ok(Changed::Gone),
            Err(error) if code(&error) == Some(409) => match self.read_pod_again(pod).await? {
                Some(newer) => {
                    *pod = newer;
                    Ok(Changed::Outdated)
                }
                None => Ok(Changed::Gone),
            },
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                Ok(Changed::Denied(status.message.clone()))
            }
            Err(error) => Err(error),
        }
    }
}
