//! The revision and the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Map, Value, json};

use super::{Controller, Job, known::Known, observe::Observed};
use crate::{
    api::{apps::sidecar_set::SidecarSetStatus, labels},
    domain::workload::{owner::OwnerRef, revisions},
    k8s::{path, revision},
    runtime::{
        clock,
        revisions::{History, Naming},
        status_writer::json_of,
    },
};

impl Controller {
    /// The revision of the SidecarSet, made if there is none, and how often names were taken. Nothing is read while the
    /// status says that the spec has been seen and the name fits.
    pub(super) async fn revision(&self, job: &Job, observed: &Observed) -> kube::Result<(String, i32)> {
        let Job { spec, before, object, .. } = job;
        let name = revision::name(&spec.name, &revision::hash_of(&spec.data, before.collision_count));
        let is_seen = job.generation() == before.observed_generation;
        if is_seen && before.latest_revision == name {
            return Ok((name, before.collision_count));
        }
        let owner = OwnerRef { namespace: self.context.namespace.to_string(), ..OwnerRef::of(job.set.as_ref()) };
        let of_set = BTreeMap::from([(labels::SIDECAR_SET_NAME.to_owned(), spec.name.clone())]);
        let selector = LabelSelector { match_labels: Some(of_set), ..LabelSelector::default() };
        let map = |member: &str| -> Map<String, Value> {
            object["metadata"][member].as_object().cloned().unwrap_or_default()
        };
        let mut own_labels = map("labels");
        own_labels.insert(labels::SIDECAR_SET_NAME.into(), spec.name.clone().into());
        if !spec.custom_version.is_empty() {
            own_labels.insert(labels::SIDECAR_SET_CUSTOM_VERSION.into(), spec.custom_version.clone().into());
        }
        let of = History {
            owner: &owner,
            selector: &selector,
            naming: Naming::BY_DATA,
            labels: own_labels,
            annotations: map("annotations"),
            newest_annotations: Map::new(),
        };
        let chosen = self.revisions.choose(&of, &spec.data, before.collision_count).await?;
        if !spec.custom_version.is_empty() {
            self.name_version(&owner.namespace, &chosen.name, &spec.custom_version).await?;
        }
        let mut live: BTreeSet<&str> = observed.judged.iter().map(|pod| pod.revision.as_str()).collect();
        live.insert(&chosen.name);
        if let Some(pinned) = &spec.pinned {
            let of_version = pinned.custom_version.as_deref().and_then(|v| revisions::of_version(&chosen.known, v));
            live.extend(pinned.revision_name.as_deref());
            live.extend(of_version.map(|known| known.name.as_str()));
        }
        let superfluous = revisions::superfluous_of_total(&chosen.known, &live, spec.history);
        self.revisions.delete(&owner.namespace, &chosen.known, superfluous).await?;
        Ok((chosen.name, chosen.collisions))
    }

    /// Writes the version into the label of a revision, which may be older than the version.
    async fn name_version(&self, namespace: &str, name: &str, version: &str) -> kube::Result<()> {
        let path = path::in_namespace("apps", "v1", namespace, "controllerrevisions");
        let patch = Patch::Merge(json!({"metadata": {"labels": {labels::SIDECAR_SET_CUSTOM_VERSION: version}}}));
        let request =
            Request::new(path).patch(name, &PatchParams::default(), &patch).map_err(kube::Error::BuildRequest)?;
        self.context.client.request::<Value>(request).await.map(drop)
    }

    /// Writes the status if it says anything else than the recorded one; counts a second apart. Returns when to look again.
    pub(super) async fn record(
        &self,
        set: &Known,
        recorded: Option<&SidecarSetStatus>,
        wanted: &SidecarSetStatus,
    ) -> kube::Result<Option<Duration>> {
        if recorded == Some(wanted) {
            return Ok(None);
        }
        let words = |status: &SidecarSetStatus| {
            let conditions = status.conditions.iter().map(|c| (c.type_.clone(), c.status.clone()));
            (status.observed_generation, status.latest_revision.clone(), conditions.collect::<Vec<_>>())
        };
        let is_settled = wanted.updated_ready_pods == wanted.matched_pods;
        let can_wait = !is_settled && recorded.is_some_and(|recorded| words(recorded) == words(wanted));
        let api: Api<Known> = Api::all(self.context.client.clone());
        let (recorded, wanted) = (json_of(recorded)?, json_of(Some(wanted))?);
        let outcome = self.status.write((&api, &*self.sets), set, (&recorded, &wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }
}
