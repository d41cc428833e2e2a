//! Renders the custom resource definitions, for the manifests and the reference.
//!
//! The roles do not: the schemas of all kinds would take more than a megabyte of the executable.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{apps, kinds::Crd, kruise, policy};

impl Crd {
    /// Renders the definition.
    ///
    /// # Panics
    /// It has a name that no line of [`KINDS`](crate::kinds::KINDS) has.
    pub fn render(&self) -> CustomResourceDefinition {
        match self.name {
            "containerrecreaterequests.apps.kruise.io" => container_recreate_requests(),
            "workloadrestarts.kruise.rs" => workload_restarts(),
            "clonesets.apps.kruise.io" => clone_sets(),
            "statefulsets.apps.kruise.io" => stateful_sets(),
            "daemonsets.apps.kruise.io" => daemon_sets(),
            "sidecarsets.apps.kruise.io" => sidecar_sets(),
            "broadcastjobs.apps.kruise.io" => broadcast_jobs(),
            "podunavailablebudgets.policy.kruise.io" => pod_unavailable_budgets(),
            "podprobemarkers.apps.kruise.io" => pod_probe_markers(),
            "nodepodprobes.apps.kruise.io" => node_pod_probes(),
            "nodeimages.apps.kruise.io" => node_images(),
            "imagepulljobs.apps.kruise.io" => image_pull_jobs(),
            "imagelistpulljobs.apps.kruise.io" => image_list_pull_jobs(),
            "persistentpodstates.apps.kruise.io" => persistent_pod_states(),
            "ephemeraljobs.apps.kruise.io" => ephemeral_jobs(),
            "advancedcronjobs.apps.kruise.io" => advanced_cron_jobs(),
            "resourcedistributions.apps.kruise.io" => resource_distributions(),
            "uniteddeployments.apps.kruise.io" => united_deployments(),
            "workloadspreads.apps.kruise.io" => workload_spreads(),
            other => panic!("{other} is no definition of ours"),
        }
    }
}

pub(crate) fn container_recreate_requests() -> CustomResourceDefinition {
    let mut crd = one_schema(apps::container_recreate_request::ContainerRecreateRequest::crd(), &["v1beta1"]);
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            schema.x_kubernetes_validations = Some(vec![apps::container_recreate_request::ours_stay()]);
        }
    }
    crd
}

fn workload_restarts() -> CustomResourceDefinition {
    one_schema(kruise::workload_restart::WorkloadRestart::crd(), &[])
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

pub(crate) fn daemon_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::daemon_set::DaemonSet::crd(), &["v1alpha1"]))
}

pub(crate) fn broadcast_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::broadcast_job::BroadcastJob::crd(), &["v1alpha1"]))
}

pub(crate) fn sidecar_sets() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::sidecar_set::SidecarSet::crd(), &["v1alpha1"]))
}

fn united_deployments() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::united_deployment::UnitedDeployment::crd(), &[]))
}

fn workload_spreads() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::workload_spread::WorkloadSpread::crd(), &[]))
}

pub(crate) fn node_images() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::node_image::NodeImage::crd(), &["v1alpha1"]))
}

pub(crate) fn ephemeral_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::ephemeral_job::EphemeralJob::crd(), &[]))
}

fn resource_distributions() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::resource_distribution::ResourceDistribution::crd(), &[]))
}

pub(crate) fn image_pull_jobs() -> CustomResourceDefinition {
    let mut crd = without_defaults(one_schema(apps::image_pull_job::ImagePullJob::crd(), &["v1alpha1"]));
    // As in OpenKruise, whose v1alpha1 alone has this column in the narrow table.
    for version in crd.spec.versions.iter_mut().filter(|version| version.name == "v1alpha1") {
        let columns = version.additional_printer_columns.iter_mut().flatten();
        columns.filter(|column| column.name == "MESSAGE").for_each(|column| column.priority = None);
    }
    crd
}

pub(crate) fn image_list_pull_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::image_list_pull_job::ImageListPullJob::crd(), &["v1alpha1"]))
}

pub(crate) fn advanced_cron_jobs() -> CustomResourceDefinition {
    without_defaults(one_schema(apps::advanced_cron_job::AdvancedCronJob::crd(), &["v1alpha1"]))
}

/// OpenKruise's schemas have none: what is not written stays unwritten until admission writes it.
fn without_defaults(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for_each_schema(&mut crd, &|schema| schema.default = None);
    crd
}

fn pod_unavailable_budgets() -> CustomResourceDefinition {
    // As in OpenKruise: a status is there as a whole or not at all.
    without_defaults(one_schema(policy::pod_unavailable_budget::PodUnavailableBudget::crd(), &[]))
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
    for_each_schema(&mut crd, &|schema| {
        unwrap_lines(schema);
        mark_atomic(schema);
    });
    crd.spec.conversion = Some(CustomResourceConversion { strategy: "None".into(), webhook: None });
    crd
}

/// Does something to every schema of every version, those of members first.
fn for_each_schema(crd: &mut CustomResourceDefinition, act: &dyn Fn(&mut JSONSchemaProps)) {
    fn visit(schema: &mut JSONSchemaProps, act: &dyn Fn(&mut JSONSchemaProps)) {
        for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
            visit(property, act);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
            visit(items, act);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
            visit(values, act);
        }
        act(schema);
    }
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            visit(schema, act);
        }
    }
}

/// `kubectl explain` wraps lines itself: the line ends of our source would only be in its way.
fn unwrap_lines(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        *text = text.replace('\n', " ");
    }
}

/// Types of Kubernetes that server-side apply takes as one field, by their members: a selector with the labels of two
/// owners would select what neither of them means. The selector of image jobs has the names of nodes too.
const ATOMIC: [&[&str]; 4] = [
    &["matchExpressions", "matchLabels"],
    &["matchExpressions", "matchLabels", "names"],
    &["apiVersion", "fieldPath"],
    &["apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"],
];

fn mark_atomic(schema: &mut JSONSchemaProps) {
    let Some(properties) = &mut schema.properties else { return };
    // Other types have a name alone too, so this one is known by where it is.
    if let Some(secrets) = properties.get_mut("imagePullSecrets")
        && let Some(JSONSchemaPropsOrArray::Schema(reference)) = &mut secrets.items
    {
        reference.x_kubernetes_map_type = Some("atomic".into());
    }
    if ATOMIC.iter().any(|members| properties.keys().eq(members.iter())) {
        schema.x_kubernetes_map_type = Some("atomic".into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::CRDS;

    /// Every schema of a definition, with its place.
    fn schemas(schema: &Value, at: &str, found: &mut Vec<(String, Value)>) {
        found.push((at.to_owned(), schema.clone()));
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            schemas(member, &format!("{at}.{name}"), found);
        }
        for (member, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[member].is_object() {
                schemas(&schema[member], &format!("{at}{mark}"), found);
            }
        }
    }

    fn all_schemas() -> Vec<(String, Value)> {
        let mut found = Vec::new();
        for crd in CRDS {
            for version in json!(crd.render())["spec"]["versions"].as_array().unwrap() {
                let at = format!("{} {} ", crd.name, version["name"].as_str().unwrap());
                schemas(&version["schema"]["openAPIV3Schema"], &at, &mut found);
            }
        }
        found
    }

    #[test]
    fn selectors_and_references_are_one_field_to_server_side_apply() {
        let found = all_schemas();
        let is_atomic = |schema: &Value| schema["x-kubernetes-map-type"] == "atomic";
        let mut selectors = 0;
        for (at, schema) in &found {
            let has = |member: &str| schema["properties"][member].is_object();
            if has("matchLabels") && has("matchExpressions") || has("fieldPath") {
                assert!(is_atomic(schema), "{at}");
                selectors += 1;
            }
        }
        assert!(selectors >= 20, "{selectors}");
        for (place, atomic) in [
            ("sidecarsets.apps.kruise.io v1beta1 .spec.imagePullSecrets[]", true),
            (
                "sidecarsets.apps.kruise.io v1beta1 .spec.containers[].transferEnv[].sourceContainerNameFrom.fieldRef",
                true,
            ),
            ("imagepulljobs.apps.kruise.io v1beta1 .spec.selector", true),
            ("resourcedistributions.apps.kruise.io v1alpha1 .spec.targets.includedNamespaces.list[]", false),
        ] {
            let (_, schema) = found.iter().find(|(at, _)| at == place).unwrap_or_else(|| panic!("no {place}"));
            assert_eq!(is_atomic(schema), atomic, "{place}");
        }
    }

    /// The API server refuses a definition in which a member of an atomic object is compared with what it was.
    #[test]
    fn nothing_inside_an_atomic_object_is_compared_with_what_it_was() {
        let found = all_schemas();
        for (at, _) in found.iter().filter(|(_, schema)| schema["x-kubernetes-map-type"] == "atomic") {
            for (inner, schema) in &found {
                let is_inside = inner.strip_prefix(at).is_some_and(|rest| rest.starts_with(['.', '[', '{']));
                let rules = schema["x-kubernetes-validations"].to_string();
                assert!(!is_inside || !rules.contains("oldSelf"), "{inner}");
            }
        }
    }
}
