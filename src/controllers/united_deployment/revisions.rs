//! Which revision a UnitedDeployment is on, and its history.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use super::{Controller, UnitedJob};
use crate::{
    api::labels,
    domain::{
        kinds::united_deployment::typed,
        workload::revisions::{self, Choice, KnownRevision},
    },
    k8s::revision,
    runtime::{
        apply::code,
        revisions::{History, Naming},
    },
};

/// Revisions that are read at a time.
const PAGE: u32 = 500;

/// The revisions of an object, for one generation of its spec.
#[derive(Clone, Debug)]
pub(super) struct ResolvedFor {
    generation: i64,
    /// The one to get to.
    pub(super) update: String,
    /// How often the name of a new one was taken.
    pub(super) collisions: i32,
    known: Vec<KnownRevision>,
}

impl Controller {
    /// Finds the revision of the template, and makes it if there is none.
    pub(super) async fn resolve(&self, job: &UnitedJob) -> kube::Result<ResolvedFor> {
        let generation = job.object.metadata.generation.unwrap_or_default();
        let remembered = self.memories.with(&job.key, |memory| memory.resolved.clone()).flatten();
        if let Some(resolved) = remembered.filter(|resolved| resolved.generation == generation) {
            return Ok(resolved);
        }
        let selector = revision_selector(&job.spec.selector);
        let labels = revision_labels(job);
        let history = History {
            owner: &job.owner,
            selector: &selector,
            naming: Naming::BY_DATA,
            labels: labels.clone(),
            annotations: Map::new(),
            newest_annotations: Map::new(),
        };
        let data = revision::data(&typed::typed(&job.spec.revision_of));
        let current = &job.recorded.current_revision;
        if !current.is_empty() && !self.revisions.list(&history).await?.iter().any(|known| known.name == *current) {
            if let Some(resolved) = self.as_recorded(job, &data).await? {
                self.memories.with(&job.key, |memory| memory.resolved = Some(resolved.clone()));
                return Ok(resolved);
            }
            self.label_found(job, &labels).await?;
        }
        let chosen = self.revisions.choose(&history, &data, job.recorded.collision_count.unwrap_or(0)).await?;
        let resolved =
            ResolvedFor { generation, update: chosen.name, collisions: chosen.collisions, known: chosen.known };
        self.memories.with(&job.key, |memory| memory.resolved = Some(resolved.clone()));
        Ok(resolved)
    }

    /// The revision of the template among those that the status names, if it is the newest of them. Those of OpenKruise have
    /// no labels by which they could be found; they get them when another one is made, and a takeover writes nothing.
    async fn as_recorded(&self, job: &UnitedJob, data: &Value) -> kube::Result<Option<ResolvedFor>> {
        let updated = job.recorded.update_status.as_ref().map(|status| status.updated_revision.as_str());
        let mut known = Vec::new();
        for name in updated.into_iter().chain([job.recorded.current_revision.as_str()]).collect::<BTreeSet<_>>() {
            known.extend(self.revisions.find(&job.owner, name).await?);
        }
        revisions::sort(&mut known);
        let Choice::Newest(index) = revisions::choose(&known, data) else { return Ok(None) };
        Ok(Some(ResolvedFor {
            generation: job.object.metadata.generation.unwrap_or_default(),
            update: known[index].name.clone(),
            collisions: job.recorded.collision_count.unwrap_or(0),
            known,
        }))
    }

    /// OpenKruise gives its revisions no labels by which they could be found again: those of this object get them.
    async fn label_found(&self, job: &UnitedJob, labels: &Map<String, Value>) -> kube::Result<()> {
        let api: Api<ControllerRevision> = Api::namespaced(self.context.client.clone(), &job.key.namespace);
        let theirs = format!("{},!{}", labels::REVISION_HASH, labels::SUBSET_NAME);
        let mut params = ListParams::default().labels(&theirs).limit(PAGE);
        loop {
            let page = api.list_metadata(&params).await?;
            for found in page.items {
                let mut owners = found.metadata.owner_references.iter().flatten();
                if !owners.any(|owner| owner.controller == Some(true) && owner.uid == job.owner.uid) {
                    continue;
                }
                let has = |(key, value): (&String, &Value)| {
                    found.metadata.labels.as_ref().and_then(|all| all.get(key)).map(String::as_str) == value.as_str()
                };
                if labels.iter().all(has) {
                    continue;
                }
                let patch = json!({"metadata": {"uid": found.metadata.uid, "labels": labels}});
                let name = found.metadata.name.as_deref().unwrap_or_default();
                match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Err(error) if !matches!(code(&error), Some(404 | 409)) => return Err(error),
                    _ => {
                        tracing::info!(united_deployment = %job.key, revision = name, "labelled a revision of OpenKruise")
                    }
                }
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(());
            }
        }
    }

    /// Deletes revisions beyond the history limit that no workload has.
    pub(super) async fn tidy(&self, job: &UnitedJob, resolved: &ResolvedFor, in_use: Vec<String>) -> kube::Result<()> {
        let mut live: BTreeSet<&str> = in_use.iter().map(String::as_str).collect();
        live.extend([resolved.update.as_str(), job.recorded.current_revision.as_str()]);
        let left = self.revisions.truncate(&job.key.namespace, &resolved.known, &live, job.spec.history).await?;
        if left.len() != resolved.known.len() {
            let resolved = ResolvedFor { known: left, ..resolved.clone() };
            self.memories.with(&job.key, |memory| memory.resolved = Some(resolved));
        }
        Ok(())
    }
}

/// The revisions of the object itself: those of its workloads have the same labels and that of their subset.
fn revision_selector(of_pods: &LabelSelector) -> LabelSelector {
    let mut selector = of_pods.clone();
    selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
        key: labels::SUBSET_NAME.into(),
        operator: "DoesNotExist".into(),
        values: None,
    });
    selector
}

/// Labels by which its revisions are found again.
fn revision_labels(job: &UnitedJob) -> Map<String, Value> {
    let template = &job.spec.template;
    let of_pods = template.spec.get("template").and_then(|template| template.pointer("/metadata/labels"));
    let mut all = of_pods.and_then(Value::as_object).cloned().unwrap_or_default();
    all.extend(template.metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default());
    all.extend(job.spec.selector.match_labels.iter().flatten().map(|(key, value)| (key.clone(), json!(value))));
    all.remove(labels::SUBSET_NAME);
    all.remove(labels::UNITED_REVISION);
    all
}
