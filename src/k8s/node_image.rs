//! A NodeImage as the manager keeps it. There is one for every node, and most of what stands in it is what a job wrote
//! thousands of nodes: that is held once.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{
    node::CompactMeta,
    owner,
    pod::Labels,
    shared::{Pool, Text, Weigh},
};
use crate::api::apps::{
    GROUP,
    image_pull_job::SandboxConfig,
    node_image::{
        ImageSpec, ImageTagSpec, NodeImage, NodeImageSpec, NodeImageStatus, PullPhase, SecretReference, TagPullPolicy,
    },
};

/// The compact form of a NodeImage. Its spec can be had back without loss.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "NodeImage")]
pub struct NodeImageView {
    /// Name, UID, resourceVersion, creation and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// `metadata.labels`.
    pub labels: Labels,
    /// The images, by name.
    pub images: Box<[ImageView]>,
    /// Versions of what stands in the status alone: image, tag, version.
    pub left_over: Box<[(Text, Text, i64)]>,
}

/// What the node is to have of one repository.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageView {
    /// Its name.
    pub name: Text,
    /// Everything but the tags.
    common: Arc<Common>,
    /// The tags, in their order.
    pub tags: Box<[TagView]>,
}

/// One image that the node is to have, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TagView {
    /// The tag, or the digest.
    pub tag: Text,
    /// `createdAt`.
    pub created_at: Option<Timestamp>,
    /// `version`.
    pub version: i64,
    /// `pullPolicy.ttlSecondsAfterFinished`: it differs from node to node.
    ttl: Option<i32>,
    /// Everything else.
    shared: Arc<Shared>,
    /// What the status says of this tag, whatever version it is about.
    pub status: Option<TagStatusView>,
}

/// What the status says of a tag.
#[derive(Clone, Debug, PartialEq)]
pub struct TagStatusView {
    /// The version that it is about.
    pub version: i64,
    /// How far it is.
    pub phase: PullPhase,
    /// When the pull began.
    pub start_time: Option<Timestamp>,
    /// When it ended.
    pub completion_time: Option<Timestamp>,
    /// Why it failed; of other phases nothing is kept.
    pub message: Text,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Common {
    pull_secrets: Vec<SecretReference>,
    sandbox_config: Option<SandboxConfig>,
    /// As text, because numbers in JSON have no hash.
    unknown: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shared {
    owners: Vec<Owner>,
    has_policy: bool,
    timeout_seconds: Option<i32>,
    backoff_limit: Option<i32>,
    active_deadline_seconds: Option<i64>,
    image_pull_policy: String,
    unknown: BTreeMap<String, String>,
    policy_unknown: BTreeMap<String, String>,
}

/// One of those who want an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    resource_version: Option<String>,
    field_path: Option<String>,
}

impl Owner {
    /// Whether it is an ImagePullJob, in whatever version.
    pub fn is_job(&self) -> bool {
        owner::is_kind((&self.api_version, &self.kind), (GROUP, "ImagePullJob"))
    }
}

impl From<&ObjectReference> for Owner {
    fn from(from: &ObjectReference) -> Self {
        Self {
            api_version: from.api_version.clone().unwrap_or_default(),
            kind: from.kind.clone().unwrap_or_default(),
            namespace: from.namespace.clone().unwrap_or_default(),
            name: from.name.clone().unwrap_or_default(),
            uid: from.uid.clone().unwrap_or_default(),
            resource_version: from.resource_version.clone(),
            field_path: from.field_path.clone(),
        }
    }
}

impl From<&Owner> for ObjectReference {
    fn from(from: &Owner) -> Self {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            api_version: some(&from.api_version),
            kind: some(&from.kind),
            namespace: some(&from.namespace),
            name: some(&from.name),
            uid: some(&from.uid),
            resource_version: from.resource_version.clone(),
            field_path: from.field_path.clone(),
        }
    }
}

// NodeImages are written by the manager and by daemons.
impl Weigh for Common {
    fn weight(&self) -> usize {
        size_of::<Self>()
    }
}

impl Weigh for Shared {
    fn weight(&self) -> usize {
        size_of::<Self>()
    }
}

macro_rules! as_ref_of_itself {
    ($($name:ty),*) => { $(impl AsRef<$name> for $name {
        fn as_ref(&self) -> &Self {
            self
        }
    })* };
}
as_ref_of_itself!(Common, Shared);

static COMMON: Pool<Common> = Pool::new();
static SHARED: Pool<Shared> = Pool::new();

impl NodeImageView {
    /// Name: that of the node.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    /// UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// An entry.
    pub fn tag(&self, image: &str, tag: &str) -> Option<&TagView> {
        let at = self.images.binary_search_by(|view| view.name.as_str().cmp(image)).ok()?;
        self.images[at].tags.iter().find(|view| view.tag == tag)
    }
    /// The version of what the status says of a tag, in the spec or not.
    pub fn status_version(&self, image: &str, tag: &str) -> Option<i64> {
        let left_over =
            || self.left_over.iter().find(|(i, t, _)| *i == image && *t == tag).map(|(_, _, version)| *version);
        self.tag(image, tag).and_then(|view| view.status.as_ref()).map(|status| status.version).or_else(left_over)
    }
    /// The spec, as it is stored.
    pub fn spec(&self) -> NodeImageSpec {
        NodeImageSpec {
            images: self.images.iter().map(|image| (image.name.as_str().to_owned(), image.spec())).collect(),
        }
    }
    /// All entries, with the names of their images.
    pub fn entries(&self) -> impl Iterator<Item = (&Text, &TagView)> {
        self.images.iter().flat_map(|image| image.tags.iter().map(move |tag| (&image.name, tag)))
    }
}

impl ImageView {
    fn spec(&self) -> ImageSpec {
        ImageSpec {
            pull_secrets: self.common.pull_secrets.clone(),
            sandbox_config: self.common.sandbox_config.clone(),
            tags: self.tags.iter().map(TagView::spec).collect(),
            unknown: from_texts(&self.common.unknown),
        }
    }
    /// Whether everything but the tags is the same.
    pub fn has_the_same_common(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.common, &other.common) || self.common == other.common
    }
}

impl TagView {
    /// Who wants it.
    pub fn owners(&self) -> &[Owner] {
        &self.shared.owners
    }
    /// Whether a job of this UID wants it.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.shared.owners.iter().any(|owner| owner.uid == uid)
    }
    /// What the status says of the version that the spec has.
    pub fn current(&self) -> Option<&TagStatusView> {
        self.status.as_ref().filter(|status| status.version == self.version)
    }
    fn spec(&self) -> ImageTagSpec {
        let shared = &self.shared;
        ImageTagSpec {
            tag: self.tag.as_str().to_owned(),
            created_at: self.created_at,
            pull_policy: shared.has_policy.then(|| TagPullPolicy {
                timeout_seconds: shared.timeout_seconds,
                backoff_limit: shared.backoff_limit,
                ttl_seconds_after_finished: self.ttl,
                active_deadline_seconds: shared.active_deadline_seconds,
                unknown: from_texts(&shared.policy_unknown),
            }),
            owner_references: shared.owners.iter().map(ObjectReference::from).collect(),
            version: self.version,
            image_pull_policy: shared.image_pull_policy.clone(),
            unknown: from_texts(&shared.unknown),
        }
    }
}

fn to_texts(fields: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    fields.into_iter().map(|(key, value)| (key, value.to_string())).collect()
}

fn from_texts(fields: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let parsed = |text: &String| serde_json::from_str(text).unwrap_or_default();
    fields.iter().map(|(key, text)| (key.clone(), parsed(text))).collect()
}

fn shared(spec: &ImageTagSpec) -> Shared {
    let policy = spec.pull_policy.clone();
    let has_policy = policy.is_some();
    let policy = policy.unwrap_or_default();
    Shared {
        owners: spec.owner_references.iter().map(Owner::from).collect(),
        has_policy,
        timeout_seconds: policy.timeout_seconds,
        backoff_limit: policy.backoff_limit,
        active_deadline_seconds: policy.active_deadline_seconds,
        image_pull_policy: spec.image_pull_policy.clone(),
        unknown: to_texts(spec.unknown.clone()),
        policy_unknown: to_texts(policy.unknown),
    }
}

impl<'de> Deserialize<'de> for NodeImageView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: CompactMeta,
            #[serde(default)]
            spec: NodeImageSpec,
            #[serde(default)]
            status: Option<NodeImageStatus>,
        }
        let Wire { metadata, spec, status } = Wire::deserialize(deserializer)?;
        let (metadata, labels) = metadata.split();
        let mut statuses: BTreeMap<(&str, &str), TagStatusView> = BTreeMap::new();
        let status = status.unwrap_or_default();
        for (image, tags) in &status.image_statuses {
            for tag in &tags.tags {
                let message = if tag.phase == PullPhase::Failed { tag.message.as_str() } else { "" };
                let view = TagStatusView {
                    version: tag.version,
                    phase: tag.phase,
                    start_time: tag.start_time,
                    completion_time: tag.completion_time,
                    message: message.into(),
                };
                statuses.insert((image, &tag.tag), view);
            }
        }
        let images = spec.images.iter().map(|(name, image)| {
            let common = Common {
                pull_secrets: image.pull_secrets.clone(),
                sandbox_config: image.sandbox_config.clone(),
                unknown: to_texts(image.unknown.clone()),
            };
            let tags = image.tags.iter().map(|tag| TagView {
                tag: tag.tag.as_str().into(),
                created_at: tag.created_at,
                version: tag.version,
                ttl: tag.pull_policy.as_ref().and_then(|policy| policy.ttl_seconds_after_finished),
                shared: SHARED.share(shared(tag)),
                status: statuses.remove(&(name.as_str(), tag.tag.as_str())),
            });
            let tags = tags.collect();
            ImageView { name: name.as_str().into(), common: COMMON.share(common), tags }
        });
        let images = images.collect();
        let left_over =
            statuses.into_iter().map(|((image, tag), view)| (image.into(), tag.into(), view.version)).collect();
        Ok(Self { metadata, labels, images, left_over })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node_image() -> Value {
        json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": "7", "labels": {"zone": "a"}},
            "spec": {"images": {"app": {"pullSecrets": [{"namespace": "a", "name": "s"}], "sandboxConfig": {"labels": {"x": "y"}}, "newer": [1],
                "tags": [{"tag": "v1", "createdAt": "2026-01-01T00:00:00Z", "version": 2, "imagePullPolicy": "Always", "newer": {"b": 1.5},
                    "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3, "ttlSecondsAfterFinished": 2345, "newer": true},
                    "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "a", "name": "j", "uid": "j1"}]}]},
                "bare": {"tags": [{"tag": "latest"}]}}},
            "status": {"desired": 1, "imageStatuses": {
                "app": {"tags": [{"tag": "v1", "phase": "Failed", "version": 1, "message": "no such image", "completionTime": "2026-01-01T00:01:00Z"},
                    {"tag": "v0", "phase": "Succeeded", "version": 4}]}}}})
    }

    #[test]
    fn the_spec_comes_back_without_loss() {
        let object = node_image();
        let view: NodeImageView = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(view.spec()).unwrap(), object["spec"]);
        assert_eq!((view.name(), view.labels.get("zone")), ("n1", Some("a")));
    }

    #[test]
    fn statuses_stand_beside_their_entries() {
        let view: NodeImageView = serde_json::from_value(node_image()).unwrap();
        let entry = view.tag("app", "v1").unwrap();
        assert!(entry.is_owned_by("j1") && entry.owners()[0].is_job() && entry.current().is_none());
        assert_eq!(&*entry.status.as_ref().unwrap().message, "no such image");
        assert_eq!((view.status_version("app", "v1"), view.status_version("app", "v0")), (Some(1), Some(4)));
        assert_eq!(view.status_version("app", "v9"), None);
        assert!(view.tag("bare", "latest").unwrap().owners().is_empty());
    }

    #[test]
    fn what_a_job_gave_many_nodes_is_held_once() {
        let of = |name: &str, ttl: i32| {
            let mut object = node_image();
            object["metadata"]["name"] = name.into();
            object["spec"]["images"]["app"]["tags"][0]["pullPolicy"]["ttlSecondsAfterFinished"] = ttl.into();
            serde_json::from_value::<NodeImageView>(object).unwrap()
        };
        let (a, b) = (of("n1", 1), of("n2", 2));
        assert!(Arc::ptr_eq(&a.images[0].common, &b.images[0].common));
        assert!(Arc::ptr_eq(&a.images[0].tags[0].shared, &b.images[0].tags[0].shared));
        assert!(size_of::<TagView>() <= 160, "{}", size_of::<TagView>());
    }
}
