//! What is kept of a SidecarSet: as text, because there may be fifty thousand of them and hardly any is looked at in a second.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::{
    api::apps::sidecar_set::SidecarSet, domain::kinds::sidecar_set::matching::Aim, runtime::guarded::identity,
};

/// A SidecarSet as the store holds it.
#[derive(Clone, Debug, Default, Resource)]
#[resource(inherit = "SidecarSet")]
pub(super) struct StoredSidecarSet {
    /// Name, UID, resourceVersion, generation, creation and deletion time; nothing else is kept.
    metadata: ObjectMeta,
    /// All of it but `managedFields`, as JSON.
    text: Box<str>,
    /// Labels and annotations, as a number: a pass depends on them too.
    marks: u64,
    /// New Pods get its containers.
    injects: bool,
}

/// What a pass depends on of a SidecarSet of one UID: its generation, and its labels and annotations as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecVersion(i64, u64);

#[cfg(test)]
impl SpecVersion {
    /// That of another spec.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1, self.1)
    }
}

impl StoredSidecarSet {
    /// Which spec it has, among those of its UID.
    pub(super) fn spec_version(&self) -> SpecVersion {
        SpecVersion(self.generation(), self.marks)
    }

    /// All of it.
    pub(super) fn object(&self) -> Value {
        // It was written by us, so it can be read.
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID.
    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// `metadata.generation`.
    pub(super) fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// When it was created.
    pub(super) fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Whether new Pods get its containers.
    pub(super) fn injects(&self) -> bool {
        self.injects
    }

    /// Whether it is being deleted.
    pub(super) fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether another version of it says the same, but in its status.
    pub(super) fn has_same_spec(&self, other: &Self) -> bool {
        (&self.metadata.uid, self.metadata.generation) == (&other.metadata.uid, other.metadata.generation)
    }

    /// Whether labels and annotations are the same too.
    pub(super) fn wants_the_same(&self, other: &Self) -> bool {
        self.has_same_spec(other) && self.marks == other.marks
    }
}

impl<'de> Deserialize<'de> for StoredSidecarSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let meta = &object["metadata"];
        let time = |member: &str| -> Result<Option<Time>, D::Error> {
            Option::<Time>::deserialize(&meta[member]).map_err(D::Error::custom)
        };
        let metadata = ObjectMeta {
            generation: meta["generation"].as_i64(),
            creation_timestamp: time("creationTimestamp")?,
            deletion_timestamp: time("deletionTimestamp")?,
            ..identity(&object)
        };
        let mut marks = DefaultHasher::new();
        [&meta["labels"], &meta["annotations"]].map(Value::to_string).hash(&mut marks);
        let injects = object["spec"]["injectionStrategy"]["paused"] != true;
        Ok(Self { metadata, marks: marks.finish(), injects, text: object.to_string().into() })
    }
}

/// A SidecarSet in the index: which Pods it is for.
#[derive(Clone, Debug)]
pub(super) struct Target(pub(super) Arc<(Arc<str>, Aim)>);

impl Target {
    /// None: its selectors cannot be read.
    pub(super) fn of(set: &StoredSidecarSet) -> Option<Self> {
        let aim = Aim::of(&set.object()["spec"]).ok()?;
        Some(Self(Arc::new((set.name().into(), aim))))
    }

    /// The name of the SidecarSet.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.0.0
    }

    /// Which Pods it is for.
    pub(super) fn aim(&self) -> &Aim {
        &self.0.1
    }
}

impl AsRef<str> for Target {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::metrics::own_memory;

    fn set(generation: i64, labels: &Value, status: &Value) -> StoredSidecarSet {
        serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": {"name": "logs", "uid": "u", "resourceVersion": "7", "generation": generation, "labels": labels,
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "x"}]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "new": 1}, "status": status}))
        .unwrap()
    }

    #[test]
    fn everything_but_managed_fields_is_kept() {
        let known = set(3, &json!({"a": "b"}), &json!({"matchedPods": 1}));
        let object = known.object();
        assert_eq!((&object["spec"]["new"], &object["status"]["matchedPods"]), (&json!(1), &json!(1)));
        assert!(object["metadata"]["managedFields"].is_null());
        assert_eq!((known.name(), known.uid(), known.metadata.generation), ("logs", "u", Some(3)));
        assert!(known.created().is_some() && !known.is_deleting());
        assert_eq!(SidecarSet::api_version(&()), StoredSidecarSet::api_version(&()));
    }

    #[test]
    fn a_status_is_no_news() {
        let old = set(3, &json!({}), &json!({}));
        for (new, spec, all) in [
            (set(3, &json!({}), &json!({"matchedPods": 1})), true, true),
            (set(3, &json!({"a": "b"}), &json!({})), true, false),
            (set(4, &json!({}), &json!({})), false, false),
        ] {
            assert_eq!((old.has_same_spec(&new), old.wants_the_same(&new)), (spec, all));
        }
    }

    /// Counts this process's memory, so it runs in one of its own.
    #[test]
    #[ignore = "run by the next test"]
    fn memory_of_many_sets() {
        const SETS: usize = 10_000;
        let recorded: Vec<Value> =
            serde_json::from_str(include_str!("../../api/apps/testdata/sidecar_sets.json")).unwrap();
        let store = crate::runtime::watches::Store::<StoredSidecarSet>::new(None);
        let mut index = crate::domain::kinds::sidecar_set::matching::Index::<Target>::default();
        let mut put = |i: usize| {
            let mut object = recorded[0].clone();
            object["metadata"]["name"] = format!("set-{i}").into();
            object["metadata"]["uid"] = format!("{i:08}-1111-4222-8333-444455556666").into();
            object["spec"]["namespace"] = format!("namespace-{}", i / 10).into();
            let known: StoredSidecarSet = serde_json::from_value(object).unwrap();
            let target = Target::of(&known).unwrap();
            index.insert(&target, target.aim());
            store.upsert(known);
        };
        put(SETS);
        let before = own_memory();
        (0..SETS).for_each(&mut put);
        let each = own_memory().saturating_sub(before) / SETS;
        println!("{each} bytes for each SidecarSet");
        assert!(each <= 7_000, "{each} bytes for each SidecarSet: fifty thousand of them have to fit into 350 MB");
    }

    #[test]
    fn a_store_takes_little_memory_for_each_set() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "controllers::sidecar_set::known::tests::memory_of_many_sets";
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
