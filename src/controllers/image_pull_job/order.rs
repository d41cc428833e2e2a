//! In which order the nodes of a pre-download begin: that in which the owner of the job updates its Pods.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;

use super::{Controller, lock};
use crate::{
    api::apps::{self, clone_set::CloneSet, image_pull_job::ImagePullJob, stateful_set::StatefulSet},
    domain::{
        kinds::{
            clone_set,
            image_jobs::job::{Job, Nodes},
            stateful_set::{
                order,
                spec::{Gates, Spec},
            },
        },
        workload::{pod_order::PodOrder, rollout::Invalid},
    },
    k8s::{name::is_dns_subdomain, owner::controls},
    runtime::watches::ObjectKey,
};

/// A kind that makes such jobs.
#[derive(Clone, Copy, Debug)]
enum OwnerKind {
    CloneSet,
    StatefulSet,
}

impl OwnerKind {
    fn of(owner: &OwnerReference) -> Option<Self> {
        // The name is anybody's text, and becomes part of a URL.
        let can_exist = is_dns_subdomain(&owner.name);
        let kinds = [("CloneSet", Self::CloneSet), ("StatefulSet", Self::StatefulSet)];
        let controls = |kind| can_exist && controls(owner, (apps::GROUP, kind));
        kinds.into_iter().find_map(|(kind, known)| controls(kind).then_some(known))
    }
}

impl Controller {
    /// The order of the workload for which a job pulls ahead. It is read once: what the workload says while the job goes on
    /// is for the next one. None: no workload, or none that can be read; then nodes begin in the order of the Pods alone.
    pub(super) async fn order_of(&self, object: &ImagePullJob, job: &Job) -> Option<Arc<PodOrder>> {
        if !matches!(job.nodes, Nodes::Pods(_)) {
            return None;
        }
        let key = ObjectKey::of(object);
        let known = lock(&self.state).jobs.get(&key).and_then(|memory| memory.order.clone());
        if let Some(known) = known {
            return known;
        }
        let owners = object.metadata.owner_references.iter().flatten();
        let owner = owners.filter_map(|owner| Some((OwnerKind::of(owner)?, owner))).next();
        let order = match owner {
            None => None,
            Some((kind, owner)) => match self.read(kind, &key, owner).await {
                Ok(order) => order.map(Arc::new),
                Err(error) => {
                    tracing::warn!(job = %key, owner = owner.name, %error, "the order of its updates is not known");
                    return None;
                }
            },
        };
        if let Some(memory) = lock(&self.state).jobs.get_mut(&key) {
            memory.order = Some(order.clone());
        }
        order
    }

    async fn read(&self, kind: OwnerKind, key: &ObjectKey, owner: &OwnerReference) -> kube::Result<Option<PodOrder>> {
        let (client, namespace) = (self.context.client.clone(), &key.namespace);
        let is_it = |uid: &Option<String>| uid.as_ref() == Some(&owner.uid);
        let order = match kind {
            OwnerKind::CloneSet => {
                let found = Api::<CloneSet>::namespaced(client, namespace).get_opt(&owner.name).await?;
                let found = found.filter(|found| is_it(&found.metadata.uid));
                found.map(|found| clone_set::spec::Spec::of(&found).order)
            }
            OwnerKind::StatefulSet => {
                let found = Api::<StatefulSet>::namespaced(client, namespace).get_opt(&owner.name).await?;
                let found = found.filter(|found| is_it(&found.metadata.uid));
                found.map(|found| Spec::of(&found, Gates::default()).map(|spec| order::pod_order(&spec)))
            }
        };
        Ok(match order.transpose() {
            Ok(order) => order,
            Err(Invalid(why)) => {
                tracing::debug!(job = %key, why, "nodes begin in the order of the Pods alone");
                None
            }
        })
    }
}
