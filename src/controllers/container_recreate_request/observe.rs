//! I/O: what is known of a request's Pod. No decision.

use std::sync::Arc;

use kube::Api;

use super::{Controller, pod_key};
use crate::{
    api::crr::ContainerRecreateRequest,
    domain::recreate::manager::{self, PodKnowledge},
    k8s::{name::is_dns_subdomain, pod::PodView},
    runtime::apply::code,
};

/// The Pod that bears the name in the request.
pub(super) enum PodRead {
    Present(Arc<PodView>),
    Gone,
    Failed(kube::Error),
}

impl PodRead {
    pub(super) fn knowledge(&self) -> PodKnowledge<'_> {
        match self {
            Self::Present(pod) => PodKnowledge::Present(pod),
            Self::Gone => PodKnowledge::Gone,
            Self::Failed(_) => PodKnowledge::Unknown,
        }
    }
}

impl Controller {
    /// From the store; that a Pod is gone or replaced is believed only when the API server says so itself, because the
    /// store may be older than the request.
    pub(super) async fn read_pod(&self, request: &ContainerRecreateRequest) -> PodRead {
        let key = pod_key(request);
        let cached = self.context.pods.get(&key);
        if let Some(pod) = &cached
            && manager::is_meant(request, pod)
        {
            return PodRead::Present(pod.clone());
        }
        let ended = request.is_completed() || request.is_deleting();
        if ended && !manager::has_finalizer(request) {
            // Nothing is left that depends on the Pod.
            return cached.map_or(PodRead::Gone, PodRead::Present);
        }
        // Stored while admission was away: no Pod can have such a name, and it would make another path.
        if !is_dns_subdomain(&key.name) {
            return PodRead::Gone;
        }
        let api: Api<PodView> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match api.get(&key.name).await {
            Ok(pod) => PodRead::Present(Arc::new(pod)),
            Err(error) if code(&error) == Some(404) => PodRead::Gone,
            Err(error) => PodRead::Failed(error),
        }
    }
}
