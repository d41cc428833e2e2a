//! A node that comes gets the Pods of large sets without a pass over all nodes.
//!
//! The rule is that of a pass, asked about one node: [`plan`](crate::domain::kinds::daemon_set::pass::plan). Only Pods are
//! made; everything else, and the status, is for the pass that follows.

use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::Resource;

use super::{Controller, Job, observe::Resolved};
use crate::{
    api::apps::daemon_set::DaemonSet,
    domain::{
        kinds::daemon_set::{pass, plan::Action, pod::Node, spec::Spec},
        workload::owner::OwnerRef,
    },
    k8s::node::NodeView,
    runtime::{packed::Packed, queue::Requeue, watches::ObjectKey},
};

/// Nodes that are served at the same time.
pub(super) const WORKERS: usize = 4;
/// Pods for one node that are made at the same time.
const AT_ONCE: usize = 16;

impl Controller {
    /// Makes the Pods that a node lacks. What fails is done by the passes, with their back-off.
    pub(super) async fn node_arrives(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(node) = self.context.nodes.get(&key.name) else { return Ok(Requeue::Await) };
        let sets = self.sets.list().into_iter().filter(|held| self.common.is_large(&ObjectKey::of(held.as_ref())));
        let serve = |held: Arc<Packed<DaemonSet>>| {
            let node = &node;
            async move { self.serve_node(held, node).await }
        };
        stream::iter(sets.map(serve)).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        Ok(Requeue::Await)
    }

    async fn serve_node(&self, held: Arc<Packed<DaemonSet>>, node: &NodeView) {
        let key = ObjectKey::of(held.as_ref());
        if !self.make_pod_of_node(&key, held, node).await {
            self.common.wake(&self.queue, &key, None);
        }
    }

    /// False: what the node lacks is left to a pass.
    async fn make_pod_of_node(&self, key: &ObjectKey, held: Arc<Packed<DaemonSet>>, node: &NodeView) -> bool {
        // One that cannot be followed waits for another spec.
        let Ok(outline) = self.outline(key, &held) else { return true };
        if !Node::of(node, &outline).fit.should_run {
            return true;
        }
        let Some(resolved) = self.known(key, &held, &outline) else { return false };
        // Mostly there is one, and then the set is not opened.
        if !self.owned_on(&OwnerRef::of(held.as_ref()), node.name()).is_empty() {
            return true;
        }
        let Some(job) = job_of(key, held) else { return false };
        let seen = self.see_node(&job, &resolved, node);
        if !seen.nodes.iter().any(|node| node.fit.should_run) || !seen.pods.is_empty() {
            return true;
        }
        if self.aside(&job).await.is_some() {
            return false;
        }
        let plan = pass::plan(&self.observed(&job, &resolved, &seen, None));
        for action in plan.actions {
            let Action::Create { node, not_ready_since } = action else { continue };
            if let Err(error) = self.create(&job, &resolved, &seen, (&node, not_ready_since)).await {
                tracing::debug!(set = %key, node, %error, "the Pod of a node that came is left to the next pass");
                return false;
            }
        }
        true
    }

    /// The revision that the last pass of a set found out, if one node can be judged by that alone.
    fn known(&self, key: &ObjectKey, held: &Packed<DaemonSet>, outline: &Spec) -> Option<Resolved> {
        let meta = held.meta();
        // How many Pods may be made depends on all of them.
        if meta.deletion_timestamp.is_some() || outline.partitioned_scaling {
            return None;
        }
        let resolved = self.common.memories.with(key, |memory| memory.resolved.clone()).flatten()?;
        (resolved.revisions.generation == meta.generation.unwrap_or_default()).then_some(resolved)
    }
}

/// A set with its template.
fn job_of(key: &ObjectKey, held: Arc<Packed<DaemonSet>>) -> Option<Job> {
    let set = Arc::new(held.open().ok()?);
    let spec = Arc::new(Spec::of(&set).ok()?);
    Some(Job { key: key.clone(), owner: OwnerRef::of(set.as_ref()), held, set, spec })
}
