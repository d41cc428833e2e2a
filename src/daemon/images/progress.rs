//! How many bytes of a pull have arrived, where the runtime reports it.
//!
//! containerd reports what is being fetched by digest alone. The manifest that a pull is about is the one of the same
//! repository one of whose layers is being fetched; it says how large they are.

use std::collections::HashMap;

use crate::{
    cri::{client::Client, content::Content, types::CriError},
    domain::node::puller::{self as rules, Arrived},
    k8s::image::ImageRef,
};

/// Labels with which containerd notes the layers of a manifest.
const LAYERS: &str = "containerd.io/gc.ref.content.l.";

/// Follows one pull.
pub(super) struct Progress {
    /// None: the runtime does not report it.
    content: Option<Content>,
    registry: String,
    path: String,
    layers: Vec<(String, u64)>,
}

impl Progress {
    pub(super) fn of(runtime: &Client, image: &str) -> Self {
        let repository = ImageRef::parse(image).map(|image| image.repository()).unwrap_or_default();
        let (registry, path) = repository.split_once('/').unwrap_or_default();
        let content = (!path.is_empty()).then(|| Content::of(runtime));
        Self { content, registry: registry.to_owned(), path: path.to_owned(), layers: Vec::new() }
    }

    /// None: it is not known, or not yet.
    pub(super) async fn look(&mut self) -> Option<Arrived> {
        let content = self.content.clone()?;
        match self.ask(&content).await {
            Ok(arrived) => arrived,
            // It is late now, and may answer the next time.
            Err(error) if error.is_transient() => None,
            Err(error) => {
                tracing::debug!(%error, "the runtime does not report how many bytes have arrived");
                self.content = None;
                None
            }
        }
    }

    async fn ask(&mut self, content: &Content) -> Result<Option<Arrived>, CriError> {
        let fetching = content.fetching().await?;
        // Names end with a digest: layer-sha256:...
        let arriving: HashMap<&str, u64> =
            fetching.iter().filter_map(|(name, bytes)| Some((&name[name.find("sha256:")?..], *bytes))).collect();
        let stored = content.of_repository(&self.registry, &self.path).await?;
        if self.layers.is_empty() {
            let is_this = |labels: &HashMap<String, String>| {
                labels.iter().any(|(key, digest)| key.starts_with(LAYERS) && arriving.contains_key(digest.as_str()))
            };
            let Some(manifest) = stored.iter().find(|stored| is_this(&stored.labels)) else { return Ok(None) };
            self.layers = rules::layers(&content.read(&manifest.digest).await?).unwrap_or_default();
        }
        let is_stored = |digest: &str| stored.iter().any(|stored| stored.digest == digest);
        let arrived = self.layers.iter().map(|(digest, size)| {
            if is_stored(digest) { *size } else { arriving.get(digest.as_str()).copied().unwrap_or_default() }
        });
        let total = self.layers.iter().fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
        let bytes = arrived.fold(0, u64::saturating_add).min(total);
        Ok((total > 0).then_some(Arrived { bytes, total }))
    }
}

#[cfg(test)]
mod tests;
