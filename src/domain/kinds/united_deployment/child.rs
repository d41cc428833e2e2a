//! The workload of a subset, as it was observed.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    make,
    pods::SubsetPods,
    spec::{ChildKind, REQUIRED_TERMS, SubsetSpec},
};
use crate::api::labels;

/// Whether two objects have the same under some keys. What is empty may be missing in the one that is stored.
fn is_same(a: &Value, b: &Value, keys: &[&str]) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    };
    let of = |object: &Value, key: &str| object.get(key).filter(|value| !is_empty(value)).cloned();
    keys.iter().all(|key| of(a, key) == of(b, key))
}

/// The workload of a subset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildSeen {
    /// Its kind. None: of a kind that is not known, which does not happen.
    pub kind: Option<ChildKind>,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was read.
    pub version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The name of its subset.
    pub subset: String,
    /// It is being deleted.
    pub is_deleting: bool,
    /// `metadata.labels`, `metadata.annotations`, `metadata.ownerReferences` and `spec`.
    pub object: Value,
    /// `status`.
    pub status: Value,
    /// Its Pods.
    pub pods: SubsetPods,
}

impl ChildSeen {
    pub(super) fn spec(&self) -> Option<&serde_json::Map<String, Value>> {
        self.object.get("spec").and_then(Value::as_object)
    }

    /// How many Pods it is asked to have.
    pub fn replicas(&self) -> i32 {
        let replicas = self.spec().and_then(|spec| spec.get("replicas")).and_then(Value::as_i64);
        replicas.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1)
    }

    /// A count of its status.
    pub fn count(&self, key: &str) -> i32 {
        let count = self.status.get(key).and_then(Value::as_i64);
        count.and_then(|count| i32::try_from(count).ok()).unwrap_or(0)
    }

    /// Whether its status is about its spec as it is now.
    pub fn is_observed(&self) -> bool {
        self.status.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0) >= self.generation
    }

    /// How many Pods its own controller has on its template. A changed patch of the subset is no new revision of ours: by their
    /// label all Pods seem to be updated.
    pub fn updated(&self) -> i32 {
        if self.is_observed() { self.count("updatedReplicas") } else { 0 }
    }

    /// Pods that are available and on its template. Its status is not asked before it is about its spec: Pods that have just been
    /// made would look like old ones.
    pub(super) fn own_available(&self) -> i32 {
        if !self.is_observed() {
            return self.pods.own_available;
        }
        let others = self.pods.available.saturating_sub(self.not_on_template(self.pods.there));
        self.pods.own_available.min(self.updated()).min(others).max(0)
    }

    /// How many of so many Pods that look alike are not on its template. Only a number in the status of a Deployment tells its
    /// Pods apart: with a surge the old ones are available while the new ones are not.
    pub(super) fn not_on_template(&self, pods: i32) -> i32 {
        let is_deployment = self.kind == Some(ChildKind::Deployment);
        if is_deployment { pods.saturating_sub(self.updated()).max(0) } else { 0 }
    }

    /// The number that we have written over the maxUnavailable of its template.
    pub(super) fn noted_limit(&self) -> Option<i32> {
        let noted =
            self.object.pointer("/metadata/annotations").and_then(|all| all.get(labels::SUBSET_MAX_UNAVAILABLE));
        noted.and_then(Value::as_str).and_then(|noted| noted.parse().ok())
    }

    /// Its revision label.
    pub fn revision(&self) -> &str {
        let labels = self.object.pointer("/metadata/labels").and_then(|all| all.get(labels::UNITED_REVISION));
        labels.and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn partition(&self) -> i32 {
        let kind = self.kind.unwrap_or(ChildKind::Deployment);
        let partition = self.spec().map_or(0, |spec| make::partition(kind, spec));
        i32::try_from(partition).unwrap_or(i32::MAX).max(0)
    }

    /// Whether it has the label of its subset, by which people and tools find it.
    pub(super) fn is_labelled(&self) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(|all| all.get(labels::SUBSET_NAME));
        labels.and_then(Value::as_str) == Some(&*self.subset)
    }

    /// Whether it was made for this revision and with this patch, and for the nodes of the subset.
    pub(super) fn is_for(&self, revision: &str, subset: &SubsetSpec) -> bool {
        let patch = self.object.pointer("/metadata/annotations").and_then(|all| all.get(labels::SUBSET_PATCH));
        let patch = patch.and_then(Value::as_str).unwrap_or_default();
        let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
        self.revision() == revision
            && (patch == subset.patch_text
                || (!patch.is_empty() && parsed(patch).is_some() && parsed(patch) == subset.patch))
            && self.has_nodes_of(subset)
    }

    /// Whether its Pods require the nodes of the subset and tolerate what it says. Neither can be changed, but a subset that was
    /// removed may come back with others before its workload has gone. What a patch may have written over is not looked at.
    fn has_nodes_of(&self, subset: &SubsetSpec) -> bool {
        let writes = |at: &str| {
            subset.patch_text.contains("\"$") || subset.patch.as_ref().is_some_and(|patch| patch.pointer(at).is_some())
        };
        let pods = self.object.pointer("/spec/template/spec");
        let list = |at: &str| pods.and_then(|pods| pods.pointer(at)).and_then(Value::as_array);
        let has = |all: Option<&Vec<Value>>, wanted: &[Value], keys: &[&str]| {
            wanted.iter().all(|wanted| all.into_iter().flatten().any(|there| is_same(there, wanted, keys)))
        };
        let requires = |term: &Value| {
            let there = term.get("matchExpressions").and_then(Value::as_array);
            has(there, &subset.expressions, &["key", "operator", "values"])
        };
        let terms = list(REQUIRED_TERMS);
        let requires_all = || terms.is_some_and(|terms| !terms.is_empty() && terms.iter().all(requires));
        let tolerates_all = || {
            has(list("/tolerations"), &subset.tolerations, &["key", "operator", "value", "effect", "tolerationSeconds"])
        };
        (subset.expressions.is_empty() || writes("/spec/affinity") || requires_all())
            && (writes("/spec/tolerations") || tolerates_all())
    }
}
