//! The annotations of an update in place, as OpenKruise writes them.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;

use crate::{
    api::labels,
    k8s::pod::{InPlaceNotes, PodView},
};

/// Labels and annotations that a container reads in its environment. None: the key is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefMetadata {
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Option<String>>,
}

impl RefMetadata {
    pub(super) fn keys(&self) -> impl Iterator<Item = (bool, &str)> {
        self.labels.keys().map(|k| (true, k.as_str())).chain(self.annotations.keys().map(|k| (false, k.as_str())))
    }
}

/// What has to change in a Pod. Also the annotation `apps.kruise.io/inplace-update-grace`, while the grace runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// Name of the target revision.
    pub revision: String,
    /// New images by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_images: BTreeMap<String, String>,
    /// Labels and annotations that containers read in their environment, by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_ref_metadata: BTreeMap<String, RefMetadata>,
    /// New resources by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_resources: BTreeMap<String, Value>,
    /// The other changes of labels and annotations, as a patch in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_data_patch: Option<String>,
    /// Whether an environment changes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub update_env_from_metadata: bool,
    /// Seconds between NotReady and the change.
    #[serde(skip_serializing_if = "is_zero")]
    pub grace_seconds: i64,
}

impl UpdateSpec {
    /// The change of labels and annotations that no container reads in its environment, as a patch of the metadata.
    pub fn metadata(&self) -> Option<Value> {
        decoded(self.meta_data_patch.as_ref()?)?.get_mut("metadata").map(Value::take)
    }
}

/// The image that a container ran before it was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LastStatus {
    /// As in the Pod's status.
    #[serde(rename = "imageID", default)]
    pub image_id: String,
}

/// Containers that have to be ready before the next batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreCheck {
    /// Their names, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers_required_ready: Vec<String>,
}

/// One batch that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// When.
    pub timestamp: Timestamp,
    /// Its containers, sorted.
    pub containers: Vec<String>,
}

/// The annotation `apps.kruise.io/inplace-update-state`, its keys in the order that OpenKruise writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Name of the target revision.
    pub revision: String,
    /// When the update began.
    pub update_timestamp: Timestamp,
    /// Images before the change, of containers whose image was changed. `null` when there are none.
    #[serde(default, deserialize_with = "null_is_empty", serialize_with = "empty_is_null")]
    pub last_container_statuses: BTreeMap<String, LastStatus>,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_env_from_metadata: bool,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_resources: bool,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_images: bool,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_images: BTreeMap<String, String>,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_ref_metadata: BTreeMap<String, RefMetadata>,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_resources: BTreeMap<String, Value>,
    /// What the next batch waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_check_before_next: Option<PreCheck>,
    /// What was written so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_batches_record: Vec<BatchRecord>,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl State {
    /// Whether batches are left.
    pub fn has_next(&self) -> bool {
        !(self.next_container_images.is_empty()
            && self.next_container_ref_metadata.is_empty()
            && self.next_container_resources.is_empty())
    }

    /// The rest of the update.
    pub fn next(&self) -> UpdateSpec {
        UpdateSpec {
            revision: self.revision.clone(),
            container_images: self.next_container_images.clone(),
            container_ref_metadata: self.next_container_ref_metadata.clone(),
            container_resources: self.next_container_resources.clone(),
            update_env_from_metadata: !self.next_container_ref_metadata.is_empty(),
            meta_data_patch: None,
            grace_seconds: 0,
        }
    }
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(d: D) -> Result<BTreeMap<String, LastStatus>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

fn empty_is_null<S: serde::Serializer>(map: &BTreeMap<String, LastStatus>, s: S) -> Result<S::Ok, S::Error> {
    Some(map).filter(|map| !map.is_empty()).serialize(s)
}

/// The annotations of one update, as a Pod has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Annotations {
    /// How far it is.
    pub state: Option<State>,
    /// What it will write when the grace is over.
    pub grace: Option<UpdateSpec>,
}

impl Annotations {
    /// Reads them, under their old names too.
    ///
    /// # Errors
    /// Naming the annotation that cannot be read.
    pub fn of(pod: &Value) -> Result<Self, UnreadableAnnotation> {
        let annotations = pod.get("metadata").and_then(|m| m.get("annotations"));
        let find =
            |keys: [&'static str; 2]| keys.into_iter().find_map(|key| Some((key, annotations?.get(key)?.as_str()?)));
        Self::parse(
            find([labels::IN_PLACE_STATE, labels::IN_PLACE_STATE_LEGACY]),
            find([labels::IN_PLACE_GRACE, labels::IN_PLACE_GRACE_LEGACY]),
        )
    }

    /// The same of a stored Pod.
    ///
    /// # Errors
    /// Naming the annotation that cannot be read.
    pub fn of_view(pod: &PodView) -> Result<Self, UnreadableAnnotation> {
        let notes = pod.in_place();
        Self::parse(
            notes.and_then(|notes| Some((labels::IN_PLACE_STATE, notes.state.as_deref()?))),
            notes.and_then(|notes| Some((labels::IN_PLACE_GRACE, notes.grace.as_deref()?))),
        )
    }

    fn parse(state: Option<Annotation<'_>>, grace: Option<Annotation<'_>>) -> Result<Self, UnreadableAnnotation> {
        fn read<T: DeserializeOwned>(annotation: Option<Annotation<'_>>) -> Result<Option<T>, UnreadableAnnotation> {
            let Some((key, text)) = annotation else { return Ok(None) };
            let longest = InPlaceNotes::LONGEST;
            // A store keeps one that is too long as an empty one.
            if text.is_empty() || text.len() > longest {
                let error = format!("it is empty, or longer than {longest} bytes");
                return Err(UnreadableAnnotation { key, error: serde_json::Error::custom(error) });
            }
            serde_json::from_str(text).map(Some).map_err(|error| UnreadableAnnotation { key, error })
        }
        let grace: Option<UpdateSpec> = read(grace)?;
        let state = match read(state) {
            // The change itself is known, and its state is written anew with it.
            Err(_) if grace.is_some() => None,
            state => state?,
        };
        Ok(Self { state, grace })
    }
}

/// Key and text.
type Annotation<'a> = (&'static str, &'a str);

/// An annotation that is not what OpenKruise or kruise-rs writes.
#[derive(Debug, thiserror::Error)]
#[error("annotation {key} cannot be read: {error}")]
pub struct UnreadableAnnotation {
    key: &'static str,
    error: serde_json::Error,
}

/// The form of [`UpdateSpec::meta_data_patch`].
pub(super) fn encoded(patch: &Value) -> String {
    STANDARD.encode(patch.to_string())
}

/// The patch in [`UpdateSpec::meta_data_patch`], if it can be read.
pub(super) fn decoded(text: &str) -> Option<Value> {
    serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()
}
