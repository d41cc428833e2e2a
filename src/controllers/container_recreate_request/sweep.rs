//! Removes NotReady keys whose request does not exist: its finalizer was removed by somebody else, or its labels were
//! changed before a policy refused that. No other code would remove them.
//!
//! A key is checked under the name of its request, in the same queue, so that a new request of that name cannot acquire
//! the key at the same time.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;

use super::{Controller, SWEEP_AFTER, lock};
use crate::{
    api::{crr::ContainerRecreateRequest, labels},
    domain::{
        node::recreate::manager,
        pod::readiness::{self, NotReadyKey},
    },
    k8s::{pod::PodView, time::Now},
    runtime::{apply::code, queue::Requeue, watches::ObjectKey},
};

/// Keys of one Pod that are looked at; the others have their turn when these are gone. Whoever writes conditions decides
/// how many there are.
const KEYS_OF_A_POD: usize = 64;

/// Pods that are held NotReady under keys of requests: the UIDs of the Pods, by request.
#[derive(Default)]
pub(super) struct Held(HashMap<ObjectKey, BTreeMap<ObjectKey, String>>);

impl Held {
    /// Takes over a Pod; requests whose keys have appeared on it.
    pub(super) fn update(&mut self, pod: &ObjectKey, old: Option<&PodView>, new: Option<&PodView>) -> Vec<ObjectKey> {
        let (before, now) = (old.map(requests_of).unwrap_or_default(), new.map(requests_of).unwrap_or_default());
        for gone in before.iter().filter(|request| !now.contains(request)) {
            if let Some(pods) = self.0.get_mut(gone) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.0.remove(gone);
                }
            }
        }
        let uid = new.map(PodView::uid).unwrap_or_default();
        for request in &now {
            self.0.entry(request.clone()).or_default().insert(pod.clone(), uid.to_owned());
        }
        now.into_iter().filter(|request| !before.contains(request)).collect()
    }

    /// The Pods that are held under the key of a request, and their UIDs.
    pub(super) fn by(&self, request: &ObjectKey) -> Vec<(ObjectKey, String)> {
        let pods = self.0.get(request).into_iter().flatten();
        pods.map(|(pod, uid)| (pod.clone(), uid.clone())).collect()
    }
}

fn requests_of(pod: &PodView) -> Vec<ObjectKey> {
    let condition = pod.condition(labels::CONDITION_KRUISE_POD_READY);
    let held = condition.map(|condition| readiness::keys(&condition.message)).unwrap_or_default();
    let of_requests = held.iter().filter_map(|key| key.request_in(pod.namespace()));
    of_requests.take(KEYS_OF_A_POD).map(|name| ObjectKey::new(pod.namespace(), name)).collect()
}

impl Controller {
    /// Sweeps the keys of a request that has ended and holds none any more, for example because somebody else removed its
    /// finalizer: the request may stay until its TTL is over. Returns when to look again, if it has ended just now: the watch
    /// of Pods may not have shown yet that the key was released.
    pub(super) async fn sweep_what_is_left(
        &self,
        request: &ContainerRecreateRequest,
        now: Now,
    ) -> kube::Result<Option<Duration>> {
        let key = ObjectKey::of(request);
        let holds = |(_, uid): &(ObjectKey, String)| manager::holds_key(&request.metadata, uid);
        if !request.is_completed() || lock(&self.held).by(&key).iter().all(holds) {
            return Ok(None);
        }
        let ended = request.status.as_ref().and_then(|status| status.completion_time);
        let wait = ended.map_or(Duration::ZERO, |ended| SWEEP_AFTER.saturating_sub(now.since(ended)));
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        self.sweep(&key).await?;
        Ok(None)
    }

    /// Takes the key of a request off Pods that it does not hold, if the API server says so itself: the store may be
    /// older than the request.
    pub(super) async fn sweep(&self, request: &ObjectKey) -> kube::Result<Requeue> {
        let held = lock(&self.held).by(request);
        if held.is_empty() {
            return Ok(Requeue::Await);
        }
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), &request.namespace);
        // Its metadata alone: a request whose other fields cannot be read holds its key all the same.
        let live = match api.get_metadata(&request.name).await {
            Err(error) if code(&error) == Some(404) => None,
            other => Some(other?),
        };
        let key = NotReadyKey::of_request(&request.namespace, &request.name);
        for (pod, uid) in held {
            if live.as_ref().is_some_and(|live| manager::holds_key(&live.metadata, &uid)) {
                continue;
            }
            if self.write_readiness(&pod, &uid, &key, readiness::remove_key).await? {
                tracing::info!(%pod, %request, "released a Pod that no request holds NotReady any more");
                let about = ObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    namespace: Some(pod.namespace.to_string()),
                    name: Some(pod.name.to_string()),
                    uid: Some(uid),
                    ..ObjectReference::default()
                };
                let message = format!(
                    "No longer held NotReady by ContainerRecreateRequest {}, which has left it so",
                    request.name
                );
                self.context.events.normal(&about, "UnreadyReleased", &message);
            }
        }
        Ok(Requeue::Await)
    }
}
