//! The custom resources that kruise-rs serves, and every key it reads or writes on other objects.
//!
//! A crate of its own, so that other programs can use the types with a client of `kube`; they choose the version of Kubernetes by a
//! feature of `k8s-openapi`:
//!
//! ```
//! use kruise_rs_api::apps::clone_set::CloneSet;
//! use kube::Resource;
//!
//! assert_eq!(CloneSet::api_version(&()), "apps.kruise.io/v1alpha1");
//! // let sets: kube::Api<CloneSet> = kube::Api::namespaced(client, "shop");
//! ```
//!
//! LEAF: imports nothing of ours; the executable knows it as `crate::api`. The documentation of the types becomes the text of
//! `kubectl explain`.
//! To add a kind: write its file, add one line to [`kinds::KINDS`] and one to [`Crd::render`]. `manifests/` and start-up follow
//! from the table.

#![warn(missing_docs)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{Schema, SchemaGenerator, json_schema};

pub mod apps;
mod definitions;
pub mod feature_gates;
pub mod kinds;
pub mod kruise;
pub mod labels;
pub mod policy;
mod rules;

pub use apps::container_recreate_request as crr;
pub use kinds::{CRD_NAMES, CRDS, Crd};
pub use kruise::workload_restart as wr;

/// The namespace that kruise-rs is installed into unless `POD_NAMESPACE` says otherwise.
pub const DEFAULT_NAMESPACE: &str = "kruise-system";

/// Group and version of an `apiVersion`; the group of core is empty.
pub fn group_and_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// The group of an `apiVersion`; empty for core.
pub fn group_of(api_version: &str) -> &str {
    group_and_version(api_version).0
}

/// No schema: whatever a newer API server knows is kept.
fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// The same for each item of a list.
fn any_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "x-kubernetes-preserve-unknown-fields": true } })
}

fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Conditions as a list-map by type, as every Kubernetes API has them.
fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<Condition>();
    json_schema!({ "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] })
}
