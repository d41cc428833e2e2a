//! The kinds that tests use. Those of ours come from the definitions that the product renders; those of Kubernetes and of
//! tests alone stand here by hand, and so do two names for those of ours that are called as kinds of Kubernetes are.

use std::sync::LazyLock;

use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::Value;

use super::Look;

/// A kind of ours, as its definition under `manifests/crds` says.
pub struct Installed {
    /// API group.
    pub group: String,
    /// As in an object.
    pub kind: String,
    /// As in a path.
    pub plural: String,
    /// The version that is stored.
    pub version: String,
    /// Whether objects have a namespace.
    pub namespaced: bool,
}

/// Every kind of ours.
pub fn installed() -> &'static [Installed] {
    &INSTALLED
}

/// Every kind of ours: its definition is rendered from the product's own table.
static INSTALLED: LazyLock<Vec<Installed>> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/crds");
    let files = std::fs::read_dir(folder).expect("manifests/crds").map(|entry| entry.expect("a file").path());
    let definition = |path: std::path::PathBuf| -> Option<Installed> {
        let text = std::fs::read_to_string(path).expect("a definition");
        let object: Value = serde_yaml::from_str(&text).expect("a definition in YAML");
        let versions = object.pointer("/spec/versions")?.as_array()?;
        let stored = versions.iter().find(|version| version["storage"] == true)?;
        Some(Installed {
            group: object.text("/spec/group").to_owned(),
            kind: object.text("/spec/names/kind").to_owned(),
            plural: object.text("/spec/names/plural").to_owned(),
            version: stored.text("/name").to_owned(),
            namespaced: object.text("/spec/scope") == "Namespaced",
        })
    };
    files.filter_map(definition).collect()
});

/// Resource and scope of the kinds that tests use.
pub(super) fn resource(kind: &str, api_version: Option<&str>) -> (ApiResource, bool) {
    // A StatefulSet or DaemonSet without a version is that of Kubernetes.
    let group = api_version.map_or("", |version| version.split_once('/').map_or("", |(group, _)| group));
    let of_kind = |known: &&Installed| {
        known.kind == kind && (!["StatefulSet", "DaemonSet"].contains(&kind) || known.group == group)
    };
    if let Some(known) = INSTALLED.iter().find(of_kind) {
        let version = api_version.and_then(|version| version.split_once('/')).map_or(&*known.version, |(_, v)| v);
        let resource = GroupVersionKind::gvk(&known.group, version, kind);
        return (ApiResource::from_gvk_with_plural(&resource, &known.plural), known.namespaced);
    }
    let (version, plural, namespaced) = match kind {
        "Namespace" => ("v1", "namespaces", false),
        "Node" => ("v1", "nodes", false),
        "Pod" => ("v1", "pods", true),
        "Service" => ("v1", "services", true),
        "ServiceAccount" => ("v1", "serviceaccounts", true),
        "Event" => ("v1", "events", true),
        "Secret" => ("v1", "secrets", true),
        "ConfigMap" => ("v1", "configmaps", true),
        "Lease" => ("coordination.k8s.io/v1", "leases", true),
        "Deployment" => ("apps/v1", "deployments", true),
        "StatefulSet" => ("apps/v1", "statefulsets", true),
        "DaemonSet" => ("apps/v1", "daemonsets", true),
        "ReplicaSet" => ("apps/v1", "replicasets", true),
        "ResourceQuota" => ("v1", "resourcequotas", true),
        "PersistentVolume" => ("v1", "persistentvolumes", false),
        "PersistentVolumeClaim" => ("v1", "persistentvolumeclaims", true),
        "StorageClass" => ("storage.k8s.io/v1", "storageclasses", false),
        "ControllerRevision" => ("apps/v1", "controllerrevisions", true),
        "HorizontalPodAutoscaler" => ("autoscaling/v2", "horizontalpodautoscalers", true),
        "VerticalPodAutoscaler" => ("autoscaling.k8s.io/v1", "verticalpodautoscalers", true),
        "ReplicationController" => ("v1", "replicationcontrollers", true),
        "PodDisruptionBudget" => ("policy/v1", "poddisruptionbudgets", true),
        "Role" => ("rbac.authorization.k8s.io/v1", "roles", true),
        "RoleBinding" => ("rbac.authorization.k8s.io/v1", "rolebindings", true),
        "ClusterRole" => ("rbac.authorization.k8s.io/v1", "clusterroles", false),
        "ClusterRoleBinding" => ("rbac.authorization.k8s.io/v1", "clusterrolebindings", false),
        "Job" => ("batch/v1", "jobs", true),
        "ValidatingAdmissionPolicy" => ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", false),
        "ValidatingAdmissionPolicyBinding" => {
            ("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", false)
        }
        "EndpointSlice" => ("discovery.k8s.io/v1", "endpointslices", true),
        "CustomResourceDefinition" => ("apiextensions.k8s.io/v1", "customresourcedefinitions", false),
        "MutatingWebhookConfiguration" => ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", false),
        "ValidatingWebhookConfiguration" => {
            ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", false)
        }
        "Ingress" => ("networking.k8s.io/v1", "ingresses", true),
        "Widget" => ("e2e.kruise.rs/v1", "widgets", true),
        "Rollout" => ("e2e.kruise.rs/v1", "rollouts", true),
        // kind StatefulSet; by this name here, because the built-in one has the same
        "AdvancedStatefulSet" => ("apps.kruise.io/v1beta1", "statefulsets", true),
        "AdvancedDaemonSet" => ("apps.kruise.io/v1beta1", "daemonsets", true),
        other => panic!("the toolkit does not know the kind {other:?}; add it here"),
    };
    let version = api_version.unwrap_or(version);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    (ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural), namespaced)
}
