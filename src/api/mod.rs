//! The custom resources that kruise-rs serves, and every key it reads or writes on other objects.
//!
//! LEAF: imports nothing of ours. The documentation of the types becomes the text of `kubectl explain`.
//! To add a kind: write its file, add one line to [`kinds::KINDS`]. `manifests/` and start-up follow from the table.

#![warn(missing_docs)]

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceConversion, CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
        JSONSchemaPropsOrBool,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

pub mod apps;
pub mod feature_gates;
pub mod kinds;
pub mod kruise;
pub mod labels;
pub mod policy;

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

fn container_recreate_requests() -> CustomResourceDefinition {
    one_schema(crr::ContainerRecreateRequest::crd(), &["v1beta1"])
}

fn workload_restarts() -> CustomResourceDefinition {
    one_schema(wr::WorkloadRestart::crd(), &[])
}

fn pod_probe_markers() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::pod_probe_marker::PodProbeMarker::crd(), &[]))
}

fn persistent_pod_states() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::persistent_pod_state::PersistentPodState::crd(), &[]))
}

fn node_pod_probes() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::node_pod_probe::NodePodProbe::crd(), &[]))
}

fn clone_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::clone_set::CloneSet::crd(), &[]))
}

fn stateful_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::stateful_set::StatefulSet::crd(), &["v1alpha1"]))
}

fn daemon_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::daemon_set::DaemonSet::crd(), &["v1alpha1"]))
}

fn broadcast_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::broadcast_job::BroadcastJob::crd(), &["v1alpha1"]))
}

fn sidecar_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::sidecar_set::SidecarSet::crd(), &["v1alpha1"]))
}

fn united_deployments() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::united_deployment::UnitedDeployment::crd(), &[]))
}

fn workload_spreads() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::workload_spread::WorkloadSpread::crd(), &[]))
}

fn node_images() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::node_image::NodeImage::crd(), &["v1alpha1"]))
}

fn ephemeral_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::ephemeral_job::EphemeralJob::crd(), &[]))
}

fn resource_distributions() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::resource_distribution::ResourceDistribution::crd(), &[]))
}

fn image_pull_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::image_pull_job::ImagePullJob::crd(), &["v1alpha1"]))
}

fn image_list_pull_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::image_list_pull_job::ImageListPullJob::crd(), &["v1alpha1"]))
}

fn advanced_cron_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::advanced_cron_job::AdvancedCronJob::crd(), &["v1alpha1"]))
}

/// OpenKruise's schemas have none: what is not written stays unwritten until admission writes it.
fn without_defaults(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            drop_defaults(schema);
        }
    }
    crd
}

fn pod_unavailable_budgets() -> CustomResourceDefinition {
    let mut crd = one_schema(policy::pod_unavailable_budget::PodUnavailableBudget::crd(), &[]);
    // As in OpenKruise: a status is there as a whole or not at all.
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            drop_defaults(schema);
        }
    }
    crd
}

fn drop_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        drop_defaults(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        drop_defaults(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        drop_defaults(values);
    }
}

/// Serves further versions of a kind from the schema of the version that is stored.
///
/// Conversion is None and its webhook member is written as null, so that a conversion webhook left over from another
/// installation is removed instead of making the definition invalid.
fn one_schema(mut crd: CustomResourceDefinition, also_served: &[&str]) -> CustomResourceDefinition {
    let stored = crd.spec.versions[0].clone();
    for version in also_served {
        let mut served = stored.clone();
        served.name = (*version).to_owned();
        served.storage = false;
        crd.spec.versions.push(served);
    }
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            unwrap_lines(schema);
        }
    }
    crd.spec.conversion = Some(CustomResourceConversion { strategy: "None".into(), webhook: None });
    crd
}

/// `kubectl explain` wraps lines itself: the line ends of our source would only be in its way.
fn unwrap_lines(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        *text = text.replace('\n', " ");
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        unwrap_lines(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        unwrap_lines(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        unwrap_lines(values);
    }
}

fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Conditions as a list-map by type, as every Kubernetes API has them.
fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<Condition>();
    json_schema!({ "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] })
}
