//! Writes to Pods on behalf of the workload that owns them. Answers go into the store at once, so that the next pass rests
//! on them and no expectations are needed; what turns out to be stale or gone is corrected there.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use kube::{
    Api, Client,
    api::{GetParams, Patch, PatchParams},
    core::Request,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    apply::{code, is_already_there, is_refusal, post},
    events::Recorder,
    held::Held,
    live, stored,
    watches::{ObjectKey, Store},
};
use crate::{
    api::apps::lifecycle::Lifecycle,
    domain::{pod::lifecycle::LifecycleRules, workload::owner::OwnerRef},
    k8s::{
        path,
        pod::{PodObject, PodView},
    },
};

/// Attempts to delete a Pod that others write at the same time.
const DELETIONS: usize = 3;

/// Where a patch of a Pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Metadata and spec.
    Whole,
    /// `pods/status`.
    Status,
    /// `pods/resize`.
    Resize,
    /// `pods/ephemeralcontainers`.
    EphemeralContainers,
}

/// What came of the creation of a Pod.
#[derive(Clone, Debug)]
pub enum Created {
    /// It was made.
    New(PodView),
    /// It was there, and the workload controls it: an earlier attempt has made it.
    AlreadyThere(PodView),
}

/// The writer of Pods of one controller.
pub struct PodControl {
    client: Client,
    pods: Arc<Store<PodView>>,
    events: Recorder,
    /// UIDs of the Pods that are being written: two patches may each be right and contradict each other.
    held: Mutex<HashSet<String>>,
}

impl PodControl {
    /// `pods` are those that the controller reads.
    pub fn new(client: Client, pods: Arc<Store<PodView>>, events: Recorder) -> Self {
        Self { client, pods, events, held: Mutex::default() }
    }

    fn api(&self, namespace: &str) -> Api<PodObject> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The right to write to a Pod, until it is dropped. None: another task is writing it, or it is not the version in the
    /// store any more.
    pub fn hold(&self, pod: &PodView) -> Option<Held<'_>> {
        let held = Held::take(&self.held, pod.uid())?;
        let current = self.pods.get(&ObjectKey::of(pod))?;
        let is_it = current.uid() == pod.uid() && current.resource_version() == pod.resource_version();
        is_it.then_some(held)
    }

    /// Creates a Pod. One of its name that the same workload controls is accepted in its place, unless it is being deleted.
    ///
    /// # Errors
    /// Those of the API server: 409 while the name is taken by a Pod that cannot stand for the new one.
    pub async fn create(&self, owner: &OwnerRef, pod: &Value) -> kube::Result<Created> {
        let taken = match post(&self.client, &path::pods(&owner.namespace), pod).await {
            Ok(made) => {
                let made: PodView = decoded(&made)?;
                self.pods.upsert(made.clone());
                return Ok(Created::New(made));
            }
            Err(error) if is_already_there(&error) => error,
            Err(error) => return Err(error),
        };
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        match self.api(&owner.namespace).get_opt(name).await? {
            Some(there) => {
                let there = PodView::from(there);
                self.pods.upsert(there.clone());
                let is_it = owner.controls(&there) && !there.is_deleting();
                if is_it { Ok(Created::AlreadyThere(there)) } else { Err(taken) }
            }
            // Gone meanwhile: the next attempt succeeds.
            None => Err(taken),
        }
    }

    /// A strategic merge patch of a Pod, and of nobody else's namesake: the patch names its UID. Returns the whole Pod as
    /// text. What a 404 or 409 says goes into the store.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn patch(&self, pod: &PodView, part: Part, patch: Value) -> kube::Result<String> {
        let result = self.send(pod, part, patch, PatchParams::default()).await;
        match &result {
            Ok(newer) => drop(self.pods.upsert(decoded::<PodView>(newer)?)),
            Err(error) => drop(stored::correct(&self.api(pod.namespace()), &self.pods, pod, error).await?),
        }
        result
    }

    /// A strategic merge patch of the version of a Pod that the decision was made for. None: the Pod has changed, or is gone,
    /// and the next pass decides again.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn try_patch(&self, pod: &PodView, part: Part, patch: &Value) -> kube::Result<Option<String>> {
        match self.patch(pod, part, patch.clone()).await {
            Ok(newer) => Ok(Some(newer)),
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn send(&self, pod: &PodView, part: Part, mut patch: Value, params: PatchParams) -> kube::Result<String> {
        patch["metadata"]["uid"] = pod.uid().into();
        let patch = Patch::Strategic(patch);
        let requests = Request::new(path::pods(pod.namespace()));
        let request = match part {
            Part::Whole => requests.patch(pod.name(), &params, &patch),
            Part::Status => requests.patch_subresource("status", pod.name(), &params, &patch),
            Part::Resize => requests.patch_subresource("resize", pod.name(), &params, &patch),
            Part::EphemeralContainers => requests.patch_subresource("ephemeralcontainers", pod.name(), &params, &patch),
        };
        self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Whether the API server would accept a patch. Nothing is written. False: the Pod has changed, or is gone.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn try_dry_run(&self, pod: &PodView, part: Part, patch: &Value) -> kube::Result<bool> {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        match self.send(pod, part, patch.clone(), params).await {
            Ok(_) => Ok(true),
            Err(error) if stored::correct(&self.api(pod.namespace()), &self.pods, pod, &error).await? => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads all of a Pod. None: it is gone, or another one has its name.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn read(&self, pod: &PodView) -> kube::Result<Option<Value>> {
        let requests = Request::new(path::pods(pod.namespace()));
        let request = requests.get(pod.name(), &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let whole: kube::Result<Value> = self.client.request(request).await;
        match whole {
            Ok(whole) if whole["metadata"]["uid"] == pod.uid() => Ok(Some(whole)),
            Ok(_) => Ok(None),
            Err(error) if code(&error) == Some(404) => {
                self.pods.remove(&ObjectKey::of(pod), Some(pod.uid()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the Pods of a namespace that a label selector matches into the store.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn read_all(&self, namespace: &str, selector: &str) -> kube::Result<()> {
        stored::read_all(&self.api(namespace), &self.pods, selector).await
    }

    /// Takes note of a Pod that was read.
    pub fn note(&self, pod: PodView) {
        self.pods.upsert(pod);
    }

    /// Deletes a Pod gracefully, and nobody else's namesake. One that is gone already counts as deleted.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn delete(&self, pod: &PodView) -> kube::Result<()> {
        stored::delete(&self.api(pod.namespace()), &self.pods, pod).await.map(drop)
    }

    /// Deletes a Pod gracefully, if it is still in the version that was looked at. False: it has changed, or is gone.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn delete_seen(&self, pod: &PodView) -> kube::Result<bool> {
        stored::delete_version(&self.api(pod.namespace()), &self.pods, pod, pod.resource_version()).await
    }

    /// Deletes a Pod gracefully, unless its preDelete hook has taken hold of it since it was looked at. What else has
    /// changed does not matter: kubelet writes the status all the time. False: the next pass decides again. A Pod that is
    /// gone already counts as deleted.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn delete_unless_held(&self, pod: &PodView, hooks: &Lifecycle) -> kube::Result<bool> {
        if !hooks.may_hold_deletion_yet(pod) {
            return self.delete(pod).await.map(|()| true);
        }
        let mut seen = Arc::new(pod.clone());
        for _ in 0..DELETIONS {
            if self.delete_seen(&seen).await? {
                return Ok(true);
            }
            // The refusal has brought the store up to date.
            match self.pods.get(&ObjectKey::of(pod)) {
                Some(newer) if newer.uid() == pod.uid() && !newer.is_deleting() => seen = newer,
                _ => return Ok(true),
            }
            if hooks.holds_deletion(&*seen) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Evicts a Pod, of this version and no other. False: a budget or somebody else refuses. One that is gone counts as
    /// evicted.
    ///
    /// # Errors
    /// Those of the API server that are no refusal.
    pub async fn evict(&self, pod: &PodView, version: &Value) -> kube::Result<bool> {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name(), "namespace": pod.namespace()},
            "deleteOptions": {"preconditions": {"uid": pod.uid(), "resourceVersion": version}}});
        let path = path::pods(pod.namespace()) + &path::path([pod.name(), "eviction"]);
        match post(&self.client, &path, &eviction).await {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some(404) => Ok(true),
            Err(error) if is_refusal(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a workload the controller of a Pod that nobody controls and that its selector matches. An event says so. False: it
    /// cannot be adopted now.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn adopt(&self, owner: &OwnerRef, pod: &PodView) -> kube::Result<bool> {
        if pod.controller.is_some() || pod.is_deleting() || !live::may_adopt(&self.client, owner).await? {
            return Ok(false);
        }
        let patch = json!({"metadata": {"resourceVersion": pod.resource_version(),
            "ownerReferences": [owner.controller()]}});
        let adopted = self.try_patch(pod, Part::Whole, &patch).await?.is_some();
        if adopted {
            let message = format!("Pod {} matches the selector and had no controller", pod.name());
            self.normal(owner, "Adopted", &message);
        }
        Ok(adopted)
    }

    /// Takes a workload off the owners of a Pod that its selector does not match any more. An event says so. False: it is gone,
    /// or another one has its name, which the store shows by now.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn release(&self, owner: &OwnerRef, pod: &PodView) -> kube::Result<bool> {
        let patch = json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner.uid}]}});
        let released = self.try_patch(pod, Part::Whole, &patch).await?.is_some();
        if released {
            let message = format!("Pod {} no longer matches the selector", pod.name());
            self.normal(owner, "Released", &message);
        }
        Ok(released)
    }

    /// An event about a workload that something was done.
    pub fn normal(&self, owner: &OwnerRef, reason: &str, message: &str) {
        let OwnerRef { kind, namespace, name, .. } = owner;
        tracing::info!(kind, namespace, name, reason, message, "done");
        self.events.normal(&owner.reference(), reason, message);
    }

    /// An event about a workload that somebody should look at.
    pub fn warning(&self, owner: &OwnerRef, reason: &str, message: &str) {
        let OwnerRef { kind, namespace, name, .. } = owner;
        tracing::warn!(kind, namespace, name, reason, message, "failed");
        self.events.warning(&owner.reference(), reason, message);
    }
}

/// Reads the text of an answer.
///
/// # Errors
/// It is not what was asked for.
pub fn decoded<T: DeserializeOwned>(text: &str) -> kube::Result<T> {
    serde_json::from_str(text).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;
    use crate::runtime::fake_api;

    #[tokio::test]
    async fn a_pod_that_is_gone_or_has_a_namesake_is_not_released_and_that_is_no_failure() {
        let owner = OwnerRef { namespace: "ns".into(), uid: "u".into(), ..OwnerRef::default() };
        let pod = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "p", "resourceVersion": "1"}});
        let view: PodView = serde_json::from_value(pod.clone()).unwrap();
        for (code, want) in [(200, Some(true)), (404, Some(false)), (409, Some(false)), (403, None)] {
            let (answer, there) = (json!({"status": "Failure", "code": code, "message": "no"}), pod.clone());
            let client = fake_api::answering(move |parts, _| match parts.method == "PATCH" && code != 200 {
                true => (code, answer.clone()),
                false => (200, there.clone()),
            });
            let (events, _) = Recorder::new(client.clone(), "test", "", Counter::default());
            let control = PodControl::new(client, Store::new([]), events);
            assert_eq!(control.release(&owner, &view).await.ok(), want, "{code}");
        }
    }
}
