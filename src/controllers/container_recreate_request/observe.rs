//! I/O: reads a request's Pod and the state of the daemon on its node. No decision.

use std::sync::Arc;

use kube::{Api, api::ListParams};

use super::{Controller, is_ready, lock, pod_key};
use crate::{
    api::{crr::ContainerRecreateRequest, labels},
    domain::node::recreate::{
        is_left_behind,
        manager::{self, Daemon, PodKnowledge},
    },
    k8s::{
        name::is_dns_subdomain,
        pod::{PodObject, PodView},
        time::Now,
    },
    runtime::apply::code,
};

/// The Pod with the name in the request.
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
    /// From the store. That a Pod is gone or was replaced is confirmed by a read from the API server, because the store may be
    /// older than the request.
    pub(super) async fn read_pod(&self, request: &ContainerRecreateRequest) -> PodRead {
        let key = pod_key(request);
        let cached = self.context.pods.get(&key);
        if let Some(pod) = &cached
            && manager::is_meant(request, pod)
        {
            return PodRead::Present(pod.clone());
        }
        let ended = !request.is_open();
        if ended && !manager::has_finalizer(request) {
            // Nothing is left that depends on the Pod.
            return cached.map_or(PodRead::Gone, PodRead::Present);
        }
        // Stored while admission was away: no Pod can have such a name, and it would make another path.
        if !is_dns_subdomain(&key.name) {
            return PodRead::Gone;
        }
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match api.get(&key.name).await {
            Ok(pod) => PodRead::Present(Arc::new(pod.into())),
            Err(error) if code(&error) == Some(404) => PodRead::Gone,
            Err(error) => PodRead::Failed(error),
        }
    }

    /// The daemon on the request's node, by the watch. That it has been missing for too long, or that the node is gone, is
    /// confirmed by a read from the API server: a watch that has stopped would show the same.
    pub(super) async fn daemon_of(
        &self,
        request: &ContainerRecreateRequest,
        now: Now,
    ) -> (Daemon, Option<kube::Error>) {
        let own_labels = request.metadata.labels.as_ref();
        let label = |key: &str| own_labels.and_then(|l| l.get(key)).map(String::as_str);
        let is_virtual = label(labels::NODE_TYPE) == Some(labels::NODE_TYPE_VIRTUAL_KUBELET);
        let node = match label(labels::CRR_NODE_NAME) {
            // Limited to another namespace we do not see the daemons; a virtual node has none.
            Some(node) if self.context.only_namespace.is_none() && !is_virtual && is_dns_subdomain(node) => node,
            _ => return (Daemon::Unknown, None),
        };
        let known = lock(&self.daemons).on(node, now);
        let Daemon::Missing(lasting) = known else { return (known, None) };
        let needless = request.is_served_by_manager() || request.is_completed() || request.is_deleting();
        if needless || is_left_behind(request) || lasting < manager::NO_DAEMON_GRACE {
            return (known, None);
        }
        let read = async {
            if self.context.nodes.find(node).await?.is_none() {
                return Ok(Daemon::NodeGone);
            }
            if lasting >= self.context.settings.requests.daemon_gone_after && self.has_ready_daemon(node).await? {
                return Ok(Daemon::Ready);
            }
            Ok(known)
        };
        match read.await {
            Ok(daemon) => (daemon, None),
            Err(error) => (Daemon::Unknown, Some(error)),
        }
    }

    async fn has_ready_daemon(&self, node: &str) -> kube::Result<bool> {
        let daemons: Api<PodObject> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let selector = format!("{}={}", labels::CONTROL_PLANE, labels::CONTROL_PLANE_DAEMON);
        let list = ListParams::default().labels(&selector).fields(&format!("spec.nodeName={node}"));
        Ok(daemons.list(&list).await?.items.iter().any(|pod| pod.view.node_name == *node && is_ready(&pod.view)))
    }
}
