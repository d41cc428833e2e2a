//! ResourceDistribution: one Secret or ConfigMap in many namespaces.
//!
//! What has to hold of new objects is judged at admission, not by the schema: stored objects of OpenKruise may break a rule.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::date_time;

/// What is distributed, and to which namespaces.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "ResourceDistribution",
    plural = "resourcedistributions",
    shortname = "distributor",
    doc = "ResourceDistribution keeps a copy of one Secret or ConfigMap in each of many namespaces, which are listed, selected by their labels, or all. Changes reach every copy, and a copy goes when its namespace is no longer wanted or the ResourceDistribution is deleted. An object of the same name that it does not control is never changed. Whoever may write ResourceDistributions writes to every namespace: treat it as a right of administrators.",
    status = "ResourceDistributionStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.desired","description":"Namespaces that are to have a copy"}"#,
    printcolumn = r#"{"name":"SUCCEED","type":"integer","jsonPath":".status.succeeded","description":"Namespaces that have it as it should be"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Namespaces that do not"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What is waited for, in words","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("oldSelf.?resource.?kind.orValue(oldSelf.?resourceRef.?kind.orValue('')) in ['', self.?resource.?kind.orValue(self.?resourceRef.?kind.orValue(''))] && oldSelf.?resource.?apiVersion.orValue('v1') in [self.?resource.?apiVersion.orValue('v1')]").message("the kind of what is distributed cannot be changed: create another ResourceDistribution"))]
#[x_kube(validation = Rule::new("oldSelf.?resource.?metadata.?name.orValue(oldSelf.?resourceRef.?name.orValue('')) in ['', self.?resource.?metadata.?name.orValue(self.?resourceRef.?name.orValue(''))]").message("the name of what is distributed cannot be changed: create another ResourceDistribution"))]
pub struct ResourceDistributionSpec {
    /// The Secret or ConfigMap itself, as a manifest: what every copy has, with its labels, annotations and finalizers.
    /// Kind and name cannot be changed. Either this or resourceRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource")]
    pub resource: Option<Value>,
    /// A Secret or ConfigMap that is there already, whose content every copy has and follows. Whoever writes this needs the
    /// right to get it, and Kruise's manager has to be given the right to get, list and watch it, by its name; the
    /// condition ReferenceFailed says when it cannot be read. Not known to OpenKruise. Either this or resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "reference")]
    pub resource_ref: Option<ResourceRef>,
    /// The namespaces: those of includedNamespaces and of namespaceLabelSelector together, or all, but none of
    /// excludedNamespaces. The namespace of Kruise itself gets no copy, nor does one with the label or annotation
    /// kruise.rs/refuse-distribution=true.
    pub targets: ResourceTargets,
}

/// A Secret or ConfigMap in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRef {
    /// Secret or ConfigMap. Cannot be changed.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// The namespace in which it is. It gets no copy.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name, which is that of the copies too. Cannot be changed.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// Which namespaces get a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceTargets {
    /// All namespaces, those that come later and kube-system too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_namespaces: bool,
    /// Namespaces by their names. They need not exist: one that is created later gets its copy at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub included_namespaces: Option<NamespaceNames>,
    /// Namespaces that get no copy in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_namespaces: Option<NamespaceNames>,
    /// Namespaces by their labels. An empty selector selects none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_label_selector: Option<LabelSelector>,
}

/// Namespaces by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceNames {
    /// The names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<NamespaceName>,
}

/// A namespace by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceName {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Where the copies are. Written by Kruise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceDistributionStatus {
    /// The generation that was looked at last.
    #[serde(default)]
    pub observed_generation: i64,
    /// Namespaces that are to have a copy; those that refuse it do not count.
    #[serde(default)]
    pub desired: i32,
    /// Namespaces whose copy is as it should be.
    #[serde(default)]
    pub succeeded: i32,
    /// Namespaces that lack it, or whose copy is not as it should be.
    #[serde(default)]
    pub failed: i32,
    /// GetResourceFailed, CreateResourceFailed, UpdateResourceFailed, DeleteResourceFailed, ConflictOccurred and
    /// NamespaceNotExists, each with the namespaces that it is about; NamespaceRefused; ReferenceFailed, if there is a
    /// resourceRef; and Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<DistributionCondition>,
}

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DistributionCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True or False.
    #[serde(default)]
    pub status: String,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_transition_time: Option<Timestamp>,
    /// Why, in one word or in the words of an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The namespaces that it is about, two hundred at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_namespace: Vec<String>,
}

impl ResourceDistribution {
    /// Whether somebody deleted it.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

/// Any object; what identifies it is named, so that a rule can compare it.
fn resource(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "apiVersion": { "type": "string", "maxLength": 253, "description": "v1." },
            "kind": { "type": "string", "maxLength": 63, "description": "Secret or ConfigMap." },
            "metadata": {
                "type": "object",
                "description": "Name, labels, annotations and finalizers of the copies. Other members are left out.",
                "x-kubernetes-preserve-unknown-fields": true,
                "properties": { "name": { "type": "string", "maxLength": 253, "description": "The name of the copies." } },
            },
        },
    })
}

/// Never null: rules and policies look into it.
fn reference(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<ResourceRef>()
}

fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<DistributionCondition>();
    json_schema!({ "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As OpenKruise 1.9.0 had stored it.
    const RECORDED: &str = include_str!("testdata/resource_distribution.json");

    #[test]
    fn a_recorded_object_is_read_without_loss_and_its_zeros_are_written() {
        let recorded: Value = serde_json::from_str(RECORDED).unwrap();
        let stored = &recorded["distribution"];
        let read: ResourceDistribution = serde_json::from_value(stored.clone()).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["spec"], stored["spec"]);
        let mut status = stored["status"].clone();
        status["failed"] = json!(0);
        assert_eq!(written["status"], status);
        assert_eq!((read.name(), read.is_deleting()), ("golden-rd", false));
    }

    #[test]
    fn every_field_of_openkruise_is_kept() {
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution", "metadata": {"name": "d"},
            "spec": {"resource": {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "any": {"x": 1}},
                    "stringData": {"k": "v"}, "type": "Opaque", "newer": [1]},
                "targets": {"allNamespaces": true, "includedNamespaces": {"list": [{"name": "a"}]},
                    "excludedNamespaces": {"list": [{"name": "b"}]},
                    "namespaceLabelSelector": {"matchLabels": {"x": "y"},
                        "matchExpressions": [{"key": "k", "operator": "In", "values": ["1"]}]}}}});
        let read: ResourceDistribution = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), object);
    }
}
