//! The revisions of a SidecarSet: which one it is on, and how many are kept.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Map, Value, json};

use super::{Controller, Job, observe::Observed};
use crate::{
    api::labels,
    domain::{
        kinds::sidecar_set::{plan::Counts, spec::Spec},
        workload::{owner::OwnerRef, revisions},
    },
    k8s::{path, revision},
    runtime::revisions::{History, Naming},
};

/// What the last pass knew of the revisions of a SidecarSet. It can be lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LastRevisions {
    /// The revisions of its Pods.
    used: BTreeSet<String>,
    /// There are no more than are to be kept.
    is_short: bool,
    /// Every Pod was updated, at some time.
    was_settled: bool,
}

impl LastRevisions {
    /// Whether one that was in use may be superfluous now. No event says so: revisions are not watched.
    fn may_shrink(&self, used: &BTreeSet<String>, is_settled: bool) -> bool {
        !self.is_short && (!self.used.is_subset(used) || is_settled && !self.was_settled)
    }
}

impl Controller {
    /// The revision of the SidecarSet, made if there is none, and how often names were taken. Nothing is read while the
    /// status says that the spec has been seen, the name fits, and no revision has gone out of use.
    pub(super) async fn revision(
        &self,
        job: &Job,
        observed: &Observed,
        counts: &Counts,
        seen: &LastRevisions,
    ) -> kube::Result<(String, i32)> {
        let Job { spec, before, .. } = job;
        let name = revision::name(&spec.name, &revision::hash_of(&spec.data, before.collision_count));
        let revisions = observed.judged.iter().map(|pod| pod.revision.clone());
        let used: BTreeSet<String> = revisions.filter(|name| !name.is_empty()).collect();
        let is_settled = counts.matched > 0 && counts.updated == counts.matched;
        let mut now = LastRevisions { used, was_settled: seen.was_settled || is_settled, ..seen.clone() };
        let is_seen = job.generation() == before.observed_generation && before.latest_revision == name;
        let is_looked_at = !is_seen || seen.may_shrink(&now.used, is_settled) || self.is_renamed(job, &name).await?;
        let found = match is_looked_at {
            true => self.find_revision(job, &mut now).await?,
            false => (name, before.collision_count),
        };
        match observed.pods.is_empty() && observed.uninjected == 0 {
            // There are very many without Pods.
            true => self.memories.forget(&job.key),
            false => drop(self.memories.with(&job.key, |memory| memory.seen = now)),
        }
        Ok(found)
    }

    /// Whether the label of the latest revision says another version. One that is a label alone changes without a new generation.
    async fn is_renamed(&self, job: &Job, latest: &str) -> kube::Result<bool> {
        let Job { spec, object, .. } = job;
        let is_label = object["spec"]["customVersion"].as_str().is_none_or(str::is_empty);
        if !is_label || spec.custom_version.is_empty() {
            return Ok(false);
        }
        let of = (&self.context.client, &*self.context.namespace);
        Ok(self.versions.of(of, &spec.name, latest).await?.as_ref() != Some(&spec.custom_version))
    }

    async fn find_revision(&self, job: &Job, now: &mut LastRevisions) -> kube::Result<(String, i32)> {
        let Job { spec, before, object, .. } = job;
        let owner = OwnerRef { namespace: self.context.namespace.to_string(), ..OwnerRef::of(job.set.as_ref()) };
        let of_set = BTreeMap::from([(labels::SIDECAR_SET_NAME.to_owned(), spec.name.clone())]);
        let selector = LabelSelector { match_labels: Some(of_set), ..LabelSelector::default() };
        let map = |member: &str| -> Map<String, Value> {
            object["metadata"][member].as_object().cloned().unwrap_or_default()
        };
        let mut own_labels = map("labels");
        own_labels.insert(labels::SIDECAR_SET_NAME.into(), spec.name.clone().into());
        let mut annotations = map("annotations");
        // The hashes in its annotations may be those of the previous spec, if the webhook was down when it was changed.
        annotations.insert(labels::SIDECAR_SET_HASH.into(), spec.hashes.hash.clone().into());
        annotations.insert(labels::SIDECAR_SET_HASH_WITHOUT_IMAGE.into(), spec.hashes.without_image.clone().into());
        let version = Some(spec.custom_version.clone()).filter(|version| !version.is_empty());
        if let Some(version) = &version {
            own_labels.insert(labels::SIDECAR_SET_CUSTOM_VERSION.into(), version.clone().into());
        }
        let of = History {
            owner: &owner,
            selector: &selector,
            naming: Naming::BY_DATA,
            labels: own_labels,
            annotations,
            newest_annotations: Map::new(),
        };
        // A list reads those of all SidecarSets. A new one has none, unless the name is taken.
        let is_new = job.generation() == 1 && before.observed_generation == 0 && before.latest_revision.is_empty();
        let first = if is_new { self.revisions.make_first(&of, &spec.data).await? } else { None };
        if let Some(first) = first {
            now.is_short = false;
            self.note_version(spec, &first.name);
            return Ok((first.name, 0));
        }
        let chosen = self.revisions.choose(&of, &spec.data, before.collision_count).await?;
        let its_version = chosen.known.iter().find(|known| known.name == chosen.name);
        if let Some(version) = &version
            && its_version.and_then(|known| known.custom_version.as_ref()) != Some(version)
        {
            self.name_version(&owner.namespace, &chosen.name, version).await?;
        }
        self.note_version(spec, &chosen.name);
        let mut live: BTreeSet<&str> = now.used.iter().map(String::as_str).collect();
        live.insert(&chosen.name);
        if let Some(pinned) = &spec.pinned {
            let of_version = pinned.custom_version.as_deref().and_then(|v| revisions::of_version(&chosen.known, v));
            live.extend(pinned.revision_name.as_deref());
            live.extend(of_version.map(|known| known.name.as_str()));
        }
        let superfluous = revisions::superfluous_of_total(&chosen.known, &live, spec.history);
        let left = self.revisions.delete(&owner.namespace, &chosen.known, superfluous).await?;
        let left = left.iter().filter(|known| !known.is_deleting).count();
        now.is_short = i32::try_from(left).is_ok_and(|left| left <= spec.history);
        Ok((chosen.name, chosen.collisions))
    }

    /// The label of the latest revision says the version now.
    fn note_version(&self, spec: &Spec, latest: &str) {
        if !spec.custom_version.is_empty() {
            self.versions.note(&spec.name, latest, &spec.custom_version);
        }
    }

    /// Writes the version into the label of a revision, which may be older than the version.
    async fn name_version(&self, namespace: &str, name: &str, version: &str) -> kube::Result<()> {
        let path = path::in_namespace("apps", "v1", namespace, "controllerrevisions");
        let patch = Patch::Merge(json!({"metadata": {"labels": {labels::SIDECAR_SET_CUSTOM_VERSION: version}}}));
        let request =
            Request::new(path).patch(name, &PatchParams::default(), &patch).map_err(kube::Error::BuildRequest)?;
        self.context.client.request::<Value>(request).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d24_revisions_are_looked_at_when_one_goes_out_of_use() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
        let seen = |used: &[&str], is_short, was_settled| LastRevisions { used: names(used), is_short, was_settled };
        for (before, used, is_settled, wanted) in [
            (LastRevisions::default(), &["a"][..], false, false),
            (LastRevisions::default(), &["a"], true, true),
            (seen(&["a"], false, true), &["a"], true, false),
            (seen(&["a", "b"], false, false), &["a", "b"], false, false),
            (seen(&["a", "b"], false, false), &["b", "c"], false, true),
            (seen(&["a", "b"], true, false), &["b"], true, false),
            (seen(&["a"], false, true), &[], false, true),
        ] {
            assert_eq!(before.may_shrink(&names(used), is_settled), wanted, "{before:?} {used:?} {is_settled}");
        }
    }
}
