//! What is kept of a SidecarSet and of a Namespace: enough to know whether it selects a Pod, and the spec as text. Of fifty
//! thousand SidecarSets hardly any is looked at in a second; parsing one takes less than keeping all of them parsed costs.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

use crate::{
    api::{
        apps::sidecar_set::SidecarSet,
        labels::{
            POD_LEVEL_RESOURCES, SIDECAR_SET_CUSTOM_VERSION, SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE,
            SIDECAR_SET_NAME,
        },
    },
    domain::kinds::sidecar_set::{claims, defaults, inject::PodLevel, matching::Aim, revision},
    k8s::{invalid::Invalid, pod::Labels, process_hash::process_hash},
    runtime::{guarded::identity, watches::StoreIndex},
};

/// A SidecarSet as injection needs it.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: Arc<str>,
    pub aim: Aim,
    /// Why it cannot be read, so that nobody knows for which Pods it is. It is injected into none.
    pub unreadable: Option<Box<str>>,
    /// The spec with its defaults, as JSON.
    spec: Box<str>,
    pub hash: Box<str>,
    pub hash_without_image: Box<str>,
    /// The name of the revision that the spec is.
    pub revision: Box<str>,
    pub pod_level: PodLevel,
    /// Of what others must not have in the same Pods.
    claims: Box<[u32]>,
}

impl Entry {
    /// The hashes of [`claims`].
    pub(super) fn claims(&self) -> &[u32] {
        &self.claims
    }

    /// Whether it says the same of the same Pods.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.spec == other.spec && self.aim == other.aim && self.pod_level == other.pod_level
    }

    /// What the spec says. It was written by us, so it can be read.
    pub(super) fn spec(&self) -> Value {
        serde_json::from_str(&self.spec).unwrap_or_default()
    }
}

/// An entry in an index, by its name.
#[derive(Clone, Debug)]
pub(super) struct Indexed(pub Arc<Entry>);

impl AsRef<str> for Indexed {
    fn as_ref(&self) -> &str {
        &self.0.name
    }
}

/// A SidecarSet as it comes from the API server.
#[derive(Clone, Debug)]
pub(super) struct RawSidecarSet {
    metadata: ObjectMeta,
    /// What an entry is made of, as JSON: a page of a list is kept until all of it is read, and text is a small part of what it is
    /// parsed into.
    object: Box<str>,
}

/// A SidecarSet as the store holds it.
#[derive(Clone, Debug)]
pub(super) struct WireSidecarSet {
    metadata: ObjectMeta,
    /// What the entry was made of, as a number.
    content: u64,
    pub entry: Arc<Entry>,
}

/// Members of a spec that injection does not look at, and that are large.
const NOT_INJECTED: [&str; 3] = ["selector", "namespaceSelector", "revisionHistoryLimit"];
/// Annotations that an entry depends on.
const ANNOTATIONS: [&str; 3] = [SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, POD_LEVEL_RESOURCES];

impl RawSidecarSet {
    /// As the store holds it. `held` is what is there already: most news are of the status, which every new Pod changes, and
    /// the entry is the same. Making one takes many times as long.
    pub(super) fn known(self, held: Option<&WireSidecarSet>) -> WireSidecarSet {
        let Self { metadata, object } = self;
        let content = process_hash(&object);
        let same = held.filter(|held| held.content == content && held.metadata.uid == metadata.uid);
        let entry = same.map_or_else(
            || Arc::new(Entry::of(&serde_json::from_str(&object).unwrap_or_default())),
            |held| held.entry.clone(),
        );
        WireSidecarSet { metadata, content, entry }
    }
}

#[cfg(test)]
impl RawSidecarSet {
    pub(super) fn text(&self) -> &str {
        &self.object
    }
}

/// Everything that an entry is made of.
fn needed(object: &mut Value) -> Value {
    let spec = object.get_mut("spec").map(Value::take).unwrap_or_default();
    let metadata = &object["metadata"];
    let note = |key: &&str| Some(((*key).to_owned(), metadata["annotations"].get(*key)?.clone()));
    let annotations: Map<String, Value> = ANNOTATIONS.iter().filter_map(note).collect();
    json!({"metadata": {"name": metadata["name"], "annotations": annotations}, "spec": spec,
        "status": {"collisionCount": object["status"]["collisionCount"]}})
}

impl Entry {
    /// Whatever is stored is an entry, also one that nobody can read.
    fn of(object: &Value) -> Self {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let (mut spec, hashes) = defaults::effective(object);
        let (aim, unreadable) = match Aim::of(&spec) {
            Ok(aim) => (aim, None),
            Err(Invalid(why)) => (Aim::of_namespaces(&spec), Some(why.into())),
        };
        // From the content: the status may be of the spec before this one.
        let collisions = object["status"]["collisionCount"].as_i64().and_then(|count| i32::try_from(count).ok());
        let revision = revision::name(name, &spec, collisions.unwrap_or_default());
        if let Some(members) = spec.as_object_mut() {
            members.retain(|member, _| !NOT_INJECTED.contains(&member.as_str()));
        }
        let claims = claims::hashes(&spec);
        let pod_level = PodLevel::of(object["metadata"]["annotations"][POD_LEVEL_RESOURCES].as_str());
        Self {
            name: name.into(),
            aim,
            unreadable,
            spec: spec.to_string().into(),
            hash: hashes.hash.into(),
            hash_without_image: hashes.without_image.into(),
            revision: revision.into(),
            pod_level,
            claims,
        }
    }
}

impl<'de> Deserialize<'de> for RawSidecarSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        let metadata = identity(&object);
        Ok(Self { metadata, object: needed(&mut object).to_string().into() })
    }
}

impl<'de> Deserialize<'de> for WireSidecarSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawSidecarSet::deserialize(deserializer).map(|raw| raw.known(None))
    }
}

/// A Namespace with its labels.
#[derive(Clone, Debug)]
pub(super) struct NamespaceView {
    metadata: ObjectMeta,
    pub labels: Labels,
}

impl<'de> Deserialize<'de> for NamespaceView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let labels = match &object["metadata"]["labels"] {
            Value::Null => Labels::default(),
            labels => Labels::deserialize(labels).map_err(D::Error::custom)?,
        };
        Ok(Self { metadata: identity(&object), labels })
    }
}

/// A ControllerRevision of a SidecarSet that has a custom version: what it is found by, and nothing of what it holds.
#[derive(Clone, Debug)]
pub(super) struct Versioned {
    metadata: ObjectMeta,
    pub number: i64,
    /// [`Self::text_of`].
    text: Box<str>,
}

/// Revisions by SidecarSet and custom version.
pub(super) const BY_VERSION: StoreIndex<Versioned> =
    StoreIndex::new("custom version", |revision| Some(revision.text.to_string()));

impl Versioned {
    /// A SidecarSet with a custom version, as one text. No part of it has a slash.
    pub(super) fn text_of(set: &str, version: &str) -> String {
        format!("{set}/{version}")
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Versioned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let label = |key: &str| object["metadata"]["labels"][key].as_str().unwrap_or_default();
        Ok(Self {
            metadata: identity(&object),
            number: object["revision"].as_i64().unwrap_or_default(),
            text: Self::text_of(label(SIDECAR_SET_NAME), label(SIDECAR_SET_CUSTOM_VERSION)).into(),
        })
    }
}

macro_rules! resource {
    ($own:ty, $kind:ty) => {
        impl Resource for $own {
            type DynamicType = ();
            type Scope = <$kind as Resource>::Scope;
            fn kind(_: &()) -> Cow<'_, str> {
                <$kind as Resource>::kind(&())
            }
            fn group(_: &()) -> Cow<'_, str> {
                <$kind as Resource>::group(&())
            }
            fn version(_: &()) -> Cow<'_, str> {
                <$kind as Resource>::version(&())
            }
            fn plural(_: &()) -> Cow<'_, str> {
                <$kind as Resource>::plural(&())
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(RawSidecarSet, SidecarSet);
resource!(WireSidecarSet, SidecarSet);
resource!(NamespaceView, Namespace);
resource!(Versioned, ControllerRevision);
