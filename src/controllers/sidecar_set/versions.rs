//! What the labels of revisions say of versions. A list of the revisions of one SidecarSet looks through those of all, so they
//! are listed once for all SidecarSets, when one of them has its version as a label.

use std::{collections::HashMap, sync::Mutex};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{Api, Client, api::ListParams};
use tokio::sync::OnceCell;

use crate::{api::labels, runtime::lock};

/// Revisions that are read at a time.
const PAGE: u32 = 500;

/// By SidecarSet, revisions and what their labels say.
type Named = HashMap<String, Vec<(String, String)>>;

/// What the labels of revisions say of versions.
#[derive(Default)]
pub(super) struct Versions(OnceCell<Mutex<Named>>);

impl Versions {
    /// What the label of a revision says. All of them are read the first time.
    pub(super) async fn of(
        &self,
        (client, namespace): (&Client, &str),
        set: &str,
        revision: &str,
    ) -> kube::Result<Option<String>> {
        let named = self.0.get_or_try_init(|| read(client, namespace)).await?;
        let named = lock(named);
        let mut of_set = named.get(set).into_iter().flatten();
        Ok(of_set.find(|(name, _)| name == revision).map(|(_, version)| version.clone()))
    }

    /// The label of the latest revision of a SidecarSet says this now. What the others say is asked no more.
    pub(super) fn note(&self, set: &str, revision: &str, version: &str) {
        if let Some(named) = self.0.get() {
            lock(named).insert(set.to_owned(), vec![(revision.to_owned(), version.to_owned())]);
        }
    }

    /// The SidecarSet is gone.
    pub(super) fn forget(&self, set: &str) {
        if let Some(named) = self.0.get() {
            lock(named).remove(set);
        }
    }
}

async fn read(client: &Client, namespace: &str) -> kube::Result<Mutex<Named>> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let both = format!("{},{}", labels::SIDECAR_SET_NAME, labels::SIDECAR_SET_CUSTOM_VERSION);
    let mut params = ListParams::default().labels(&both).limit(PAGE);
    let mut named = Named::new();
    loop {
        let page = api.list_metadata(&params).await?;
        for found in page.items {
            let mut of = found.metadata.labels.unwrap_or_default();
            let (set, version) = (of.remove(labels::SIDECAR_SET_NAME), of.remove(labels::SIDECAR_SET_CUSTOM_VERSION));
            if let (Some(set), Some(version), Some(name)) = (set, version, found.metadata.name) {
                named.entry(set).or_default().push((name, version));
            }
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(Mutex::new(named));
        }
    }
}
