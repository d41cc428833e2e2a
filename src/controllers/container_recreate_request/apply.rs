//! I/O: carries actions out, in order; the only writer of this controller.
//!
//! Every write of a request is bound to the version that the plan was made from, and the answer is what the next
//! action builds on.

use kube::{
    Api,
    api::{Patch, PatchParams, Request},
};
use serde_json::{Value, json};

use super::{Controller, lock, pod_key};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerRecreateState, Phase},
        labels,
    },
    domain::{
        node::recreate::{
            kstatus::with_kstatus,
            manager::{self, Action},
        },
        pod::readiness::{self, NotReadyKey},
    },
    k8s::{
        name::is_dns_subdomain,
        path,
        time::{Now, rfc3339, whole_seconds},
    },
    runtime::{
        apply::{code, patch_status},
        clock,
        events::reference,
        metrics::ResultLabels,
        stored::only_version,
        watches::ObjectKey,
    },
};

/// Attempts to change a Pod that others write at the same time.
const POD_ATTEMPTS: usize = 5;

/// How far the actions got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// To the end.
    All,
    /// The request had changed; it has been read again, and a new plan is due.
    Outdated,
    /// The request is gone.
    Gone,
}

/// What a change of readiness makes of a Pod's raw JSON.
pub(super) type Change = fn(&Value, &NotReadyKey, Now) -> Option<Value>;

impl Controller {
    pub(super) async fn apply(&self, request: &ContainerRecreateRequest, actions: &[Action]) -> kube::Result<Applied> {
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), namespace);
        let mut current = request.clone();
        for action in actions {
            match self.apply_one(&api, &current, action).await {
                Ok(None) => {}
                Ok(Some(written)) => {
                    // The answer to the write that lets a deleted request go must not bring it back into the store.
                    if !written.is_deleting() {
                        self.requests.upsert(written.clone());
                    }
                    current = written;
                }
                // It stays in the store until the watch shows its end: once removed, a late event of its past would
                // bring it back, and a key acquired for that ghost would never be released.
                Err(error) if code(&error) == Some(404) => return Ok(Applied::Gone),
                Err(error) if code(&error) == Some(409) => return self.read_again(&api, request).await,
                Err(error) => return Err(error),
            }
        }
        Ok(Applied::All)
    }

    async fn read_again(
        &self,
        api: &Api<ContainerRecreateRequest>,
        request: &ContainerRecreateRequest,
    ) -> kube::Result<Applied> {
        match api.get_opt(&ObjectKey::of(request).name).await? {
            Some(newer) => {
                self.requests.upsert(newer);
                Ok(Applied::Outdated)
            }
            None => Ok(Applied::Gone),
        }
    }

    /// Some: the request as it was written.
    async fn apply_one(
        &self,
        api: &Api<ContainerRecreateRequest>,
        request: &ContainerRecreateRequest,
        action: &Action,
    ) -> kube::Result<Option<ContainerRecreateRequest>> {
        let about = || reference(request);
        match action {
            Action::AddFinalizer => {
                let mut finalizers: Vec<&str> = manager::other_finalizers(request);
                finalizers.push(labels::CRR_UNREADY_FINALIZER);
                patch_metadata(api, request, json!({"finalizers": finalizers})).await.map(Some)
            }
            Action::AcquireKey => {
                if self.change_pod(request, readiness::add_key).await? {
                    let message =
                        format!("Made Pod {} NotReady before its containers are stopped", request.spec.pod_name);
                    self.context.events.normal(&about(), "UnreadyAcquired", &message);
                }
                Ok(None)
            }
            Action::RecordCondition(time) => {
                let mut status = request.status.clone().unwrap_or_default();
                status.conditions = manager::with_grace_condition(request, *time);
                let status = with_kstatus(request, &status, clock::now().wall);
                patch_status(api, request, &request.status.clone().unwrap_or_default(), &status).await
            }
            Action::RecordAnnotation(time) => {
                let annotations = json!({labels::CRR_UNREADY_ACQUIRED: rfc3339(*time)});
                patch_metadata(api, request, json!({"annotations": annotations})).await.map(Some)
            }
            Action::ReleaseKey => {
                if self.change_pod(request, readiness::remove_key).await? {
                    let message = format!("Pod {} is no longer held NotReady by this request", request.spec.pod_name);
                    self.context.events.normal(&about(), "UnreadyReleased", &message);
                }
                Ok(None)
            }
            Action::Complete { message, states } => self.complete(api, request, message, states).await,
            Action::Detach => self.detach(api, request).await.map(Some),
            Action::Delete => {
                // Somebody may just have prolonged its time to live.
                let (uid, version) = (request.metadata.uid.as_deref(), request.metadata.resource_version.as_deref());
                api.delete(&ObjectKey::of(request).name, &only_version(uid.unwrap_or_default(), version)).await?;
                Ok(None)
            }
            Action::LeaveBehind { condition, message } => {
                let mut status = request.status.clone().unwrap_or_default();
                status.conditions = manager::with_condition(request, condition.clone());
                status.message.clone_from(message);
                let status = with_kstatus(request, &status, clock::now().wall);
                let written = patch_status(api, request, &request.status.as_ref(), &Some(&status)).await?;
                self.context.events.warning(&about(), "DaemonGone", message);
                Ok(written)
            }
            Action::ReportNoDaemon(message) => {
                let status = ContainerRecreateRequestStatus {
                    message: message.clone(),
                    ..request.status.clone().unwrap_or_default()
                };
                let status = with_kstatus(request, &status, clock::now().wall);
                let written = patch_status(api, request, &request.status.as_ref(), &Some(&status)).await?;
                self.context.events.warning(&about(), "NoReadyDaemon", message);
                if let Some((_, memory)) = lock(&self.memories).get_mut(&ObjectKey::of(request)) {
                    memory.reported_no_daemon = true;
                }
                Ok(written)
            }
        }
    }

    /// Ends the request.
    async fn complete(
        &self,
        api: &Api<ContainerRecreateRequest>,
        request: &ContainerRecreateRequest,
        message: &str,
        states: &[ContainerRecreateState],
    ) -> kube::Result<Option<ContainerRecreateRequest>> {
        tracing::info!(request = %ObjectKey::of(request), reason = message, "ending the request");
        let before = request.status.clone().unwrap_or_default();
        let status = ContainerRecreateRequestStatus {
            phase: Phase::Completed,
            completion_time: Some(whole_seconds(clock::now().wall)),
            message: message.to_owned(),
            container_recreate_states: states.to_vec(),
            ..before.clone()
        };
        let status = with_kstatus(request, &status, clock::now().wall);
        let written = patch_status(api, request, &before, &status).await?;
        if request.is_served_by_manager() {
            self.report_outcome(request, &status);
        }
        Ok(written)
    }

    /// Removes the finalizer and the active label.
    async fn detach(
        &self,
        api: &Api<ContainerRecreateRequest>,
        request: &ContainerRecreateRequest,
    ) -> kube::Result<ContainerRecreateRequest> {
        let others = manager::other_finalizers(request);
        let finalizers = if others.is_empty() { Value::Null } else { json!(others) };
        let changes = json!({"finalizers": finalizers, "labels": {labels::CRR_ACTIVE: null}});
        let written = patch_metadata(api, request, changes).await?;
        // Once for each request: the active label goes once. One without is reported when it is completed.
        let active = request.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::CRR_ACTIVE));
        if let Some(status) = request.status.as_ref().filter(|s| active && s.phase == Phase::Completed) {
            self.report_outcome(request, status);
        }
        Ok(written)
    }

    pub(super) fn report_outcome(&self, request: &ContainerRecreateRequest, status: &ContainerRecreateRequestStatus) {
        let (succeeded, message) = manager::outcome(status);
        let result = if succeeded { "succeeded" } else { "failed" };
        self.context.metrics.requests_completed.get_or_create(&ResultLabels { result }).inc();
        if succeeded {
            self.context.events.normal(&reference(request), "Completed", &message);
        } else {
            self.context.events.warning(&reference(request), "CompletedWithFailures", &message);
        }
    }

    /// Applies a change to the readiness of the request's Pod; whether anything was written. A Pod that is gone, or is
    /// another one than the request means, is left alone.
    async fn change_pod(&self, request: &ContainerRecreateRequest, change: Change) -> kube::Result<bool> {
        let key = NotReadyKey::of_request(&ObjectKey::of(request).namespace, &ObjectKey::of(request).name);
        self.write_readiness(&pod_key(request), request.pod_uid(), &key, change).await
    }

    /// Applies a change to the readiness of a Pod, unless it is gone or its UID is another one; an empty UID stands for
    /// any. Whether anything was written.
    pub(super) async fn write_readiness(
        &self,
        pod_key: &ObjectKey,
        uid: &str,
        key: &NotReadyKey,
        change: Change,
    ) -> kube::Result<bool> {
        if !is_dns_subdomain(&pod_key.name) {
            return Ok(false); // No Pod can have such a name, and it would make another path.
        }
        let pods = Request::new(path::pods(&pod_key.namespace));
        let build = kube::Error::BuildRequest;
        let mut attempt = 0;
        loop {
            attempt += 1;
            // The raw object: what this program does not know must survive, and Ready is judged from the newest state.
            let get = pods.get(&pod_key.name, &kube::api::GetParams::default()).map_err(build)?;
            let pod: Value = match self.context.client.request(get).await {
                Err(error) if code(&error) == Some(404) => return Ok(false),
                other => other?,
            };
            if !uid.is_empty() && pod["metadata"]["uid"] != uid {
                return Ok(false);
            }
            let Some(patch) = change(&pod, key, clock::now()) else { return Ok(false) };
            let patch = Patch::Strategic(patch);
            let write =
                pods.patch_subresource("status", &pod_key.name, &PatchParams::default(), &patch).map_err(build)?;
            match self.context.client.request::<Value>(write).await {
                Ok(_) => return Ok(true),
                Err(error) if code(&error) == Some(404) => return Ok(false),
                Err(error) if code(&error) == Some(409) && attempt < POD_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn patch_metadata(
    api: &Api<ContainerRecreateRequest>,
    request: &ContainerRecreateRequest,
    mut changes: Value,
) -> kube::Result<ContainerRecreateRequest> {
    changes["resourceVersion"] = json!(request.metadata.resource_version);
    changes["uid"] = json!(request.metadata.uid);
    let patch = Patch::Merge(json!({"metadata": changes}));
    api.patch(&ObjectKey::of(request).name, &PatchParams::default(), &patch).await
}
