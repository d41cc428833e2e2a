//! SidecarSet: containers that are put into Pods when they are created, and updated in place.
//!
//! v1beta1 is stored and v1alpha1 is served from the same schema, with the fields of both: `namespace`, which OpenKruise's
//! v1beta1 lacks, and `customVersion`, which its v1alpha1 has as a label. Of containers only what is Kruise's own has a type;
//! the rest, and volumes, stay raw JSON: a field that this release does not know must survive every write, and hashes and
//! the names of revisions are made from their bytes.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::LocalObjectReference,
    apimachinery::pkg::{
        apis::meta::v1::{Condition, LabelSelector},
        util::intstr::IntOrString,
    },
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    clone_set::{PriorityStrategy, ScatterTerm},
    strategies::SidecarUpdateType,
};
use crate::conditions;

/// What a SidecarSet should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "SidecarSet",
    plural = "sidecarsets",
    shortname = "scs",
    doc = "SidecarSet puts containers into the Pods that its selector matches, when they are created, and updates the images of these containers in place: the Pod and its other containers go on running.",
    status = "SidecarSetStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"MATCHED","type":"integer","jsonPath":".status.matchedPods","description":"Pods that have its containers"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedPods","description":"Of them, those that have them as they are now"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyPods","description":"Of them, those that are ready"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"UNINJECTED","type":"integer","jsonPath":".status.uninjectedPods","description":"Pods that are to have its containers and do not","priority":1}"#,
    printcolumn = r#"{"name":"NOT-UPGRADABLE","type":"integer","jsonPath":".status.notUpgradablePods","description":"Pods that have to be replaced to be up to date","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSetSpec {
    /// The Pods that get the containers, by their labels. At least one label has to be named.
    #[serde(default)]
    #[x_kube(validation = Rule::new("size(self.?matchLabels.orValue({})) + size(self.?matchExpressions.orValue([])) > 0").message("spec.selector must not be empty: name at least one label"))]
    pub selector: LabelSelector,
    /// Only Pods of this namespace. Of namespace and namespaceSelector one is enough; admission keeps the other one in step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Only Pods of namespaces with these labels. Default: Pods of all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Init containers to put into Pods. Those with restartPolicy Always are updated in place like containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<SidecarContainer>,
    /// Containers to put into Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<SidecarContainer>,
    /// Volumes that they mount, as a Pod has them. Those that none of them mounts are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "raw_list")]
    pub volumes: Vec<Value>,
    /// How Pods that are there get to another image.
    #[serde(default)]
    pub update_strategy: SidecarSetUpdateStrategy,
    /// What new Pods get.
    #[serde(default)]
    pub injection_strategy: SidecarSetInjectionStrategy,
    /// Secrets for the registries of the images, in the namespaces of the Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How many revisions are kept in total. Those in use are never deleted, even where they are more. Default 10, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Annotations that the Pods get. The ConfigMap kruise-configuration says which are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch_pod_metadata: Vec<PatchPodMetadata>,
    /// A name for the present containers, by which injectionStrategy can refer to them later: a valid label value. The
    /// label `apps.kruise.io/sidecarset-custom-version` says the same; admission copies it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub custom_version: String,
}

/// A container as a Pod has it, and how it gets into Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SidecarContainer {
    /// Its name, in the SidecarSet and in Pods.
    pub name: String,
    /// Where it stands in Pods: BeforeAppContainer or AfterAppContainer. Default BeforeAppContainer, of init containers
    /// AfterAppContainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_inject_policy: Option<String>,
    /// How it gets to another image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<UpgradeStrategy>,
    /// Whether it mounts what the containers of the Pod mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_volume_policy: Option<SharePolicy>,
    /// Whether it gets the volume devices of the containers of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_volume_device_policy: Option<SharePolicy>,
    /// Environment variables that it takes over from containers of the Pod.
    #[serde(rename = "transferEnv", default, skip_serializing_if = "Vec::is_empty")]
    pub transfer_env: Vec<TransferEnv>,
    /// Requests and limits that follow from those of the containers of the Pod. Not together with resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources_policy: Option<ResourcesPolicy>,
    /// Everything else that a container of a Pod has, but its name.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

impl SidecarContainer {
    /// Its image; empty if there is none.
    pub fn image(&self) -> &str {
        self.rest.get("image").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it is an init container that goes on running beside the others, if it stands among the init containers.
    pub fn is_native_sidecar(&self) -> bool {
        self.rest.get("restartPolicy").is_some_and(|policy| policy == "Always")
    }

    /// Whether it stands twice in a Pod, and gets to another image by turns.
    pub fn is_hot_upgrade(&self) -> bool {
        self.upgrade_strategy.as_ref().is_some_and(|strategy| strategy.upgrade_type == HOT_UPGRADE)
    }

    /// The image of that of its twins which is not at work.
    pub fn empty_image(&self) -> &str {
        self.upgrade_strategy.as_ref().map_or("", |strategy| strategy.hot_upgrade_empty_image.as_str())
    }

    /// The container as a Pod has it: without what is Kruise's own.
    pub fn container(&self) -> Map<String, Value> {
        let mut container = self.rest.clone();
        container.insert("name".into(), self.name.clone().into());
        container
    }
}

/// Fields of [`SidecarContainer`] that a container of a Pod does not have.
pub const OWN_FIELDS: [&str; 6] = [
    "podInjectPolicy",
    "upgradeStrategy",
    "shareVolumePolicy",
    "shareVolumeDevicePolicy",
    "transferEnv",
    "resourcesPolicy",
];

/// The names of the two containers that a hot-upgraded container is in a Pod.
pub fn twin_names(name: &str) -> [String; 2] {
    [1, 2].map(|twin| format!("{name}-{twin}"))
}

/// Value of [`UpgradeStrategy::upgrade_type`]: the container is restarted with the other image.
pub const COLD_UPGRADE: &str = "ColdUpgrade";
/// Value of [`UpgradeStrategy::upgrade_type`]: a second container takes over from the first one.
pub const HOT_UPGRADE: &str = "HotUpgrade";
/// Value of [`SidecarContainer::pod_inject_policy`].
pub const BEFORE_APP_CONTAINER: &str = "BeforeAppContainer";
/// Value of [`SidecarContainer::pod_inject_policy`].
pub const AFTER_APP_CONTAINER: &str = "AfterAppContainer";
/// Value of [`SharePolicy::type_`].
pub const SHARE_ENABLED: &str = "enabled";
/// Value of [`SharePolicy::type_`].
pub const SHARE_DISABLED: &str = "disabled";

/// How a container gets to another image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpgradeStrategy {
    /// ColdUpgrade (the default): it is restarted with the other image. HotUpgrade: it stands twice in each Pod, and one of the
    /// two takes over from the other. It cannot be changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub upgrade_type: String,
    /// The image of the idle one of the two containers. Required with HotUpgrade.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hot_upgrade_empty_image: String,
}

/// Whether something of the other containers is shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SharePolicy {
    /// enabled or disabled (the default).
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
}

/// Environment variables that are taken over from a container of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TransferEnv {
    /// Name of the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source_container_name: String,
    /// Where the Pod says the name of the container. It wins over sourceContainerName.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_container_name_from: Option<SourceContainerNameFrom>,
    /// Name of one variable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub env_name: String,
    /// Names of further ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
}

/// Where a Pod says the name of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceContainerNameFrom {
    /// A label or an annotation of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<PodFieldRef>,
}

/// A label or an annotation of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFieldRef {
    /// v1, the default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
    pub field_path: String,
}

/// Requests and limits that follow from those of the containers of the Pod, when it is created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcesPolicy {
    /// sum or max: how the values of several containers are combined.
    #[schemars(extend("enum" = ["sum", "max"]))]
    pub target_containers_mode: String,
    /// Which containers of the Pod count: a regular expression that fits a part of their names. Default `.*`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_containers_name_regex: String,
    /// How the sidecar's limits and requests are computed from them.
    pub resources_expr: ResourcesExpressions,
}

/// What is made of the requests and limits of the containers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResourcesExpressions {
    /// The sidecar's limits, from those of the containers. It gets none if one of the containers has no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceExpression>,
    /// The sidecar's requests, from those of the containers. A container without a request counts as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceExpression>,
}

/// One expression for each resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResourceExpression {
    /// In the variable cpu: `max(cpu*50%, 50m)`, for example. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpu: String,
    /// In the variable memory: `200Mi`, for example. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub memory: String,
}

/// Value of [`SidecarSetUpdateStrategy::type_`]: Pods get to another image in place.
pub const ROLLING_UPDATE: &str = SidecarUpdateType::RollingUpdate.as_str();
/// Value of [`SidecarSetUpdateStrategy::type_`]: Pods stay as they are.
pub const NOT_UPDATE: &str = SidecarUpdateType::NotUpdate.as_str();

/// How Pods that are there get to another image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarSetUpdateStrategy {
    /// RollingUpdate (the default): in place. NotUpdate: they stay as they are.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// true: no Pod is updated. New Pods get the revision that injectionStrategy names, if it names one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Only Pods with these labels are updated. Not together with partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// How many Pods are kept as they are: a number, or a percentage rounded up. With two Pods or more, less than
    /// 100% leaves at least one to be updated. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// How many Pods may be unavailable while others are updated: a number, or a percentage rounded up. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Which Pods are updated first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_strategy: Option<PriorityStrategy>,
    /// Labels whose Pods are spread over the whole roll-out. `*` stands for every value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scatter_strategy: Vec<ScatterTerm>,
}

/// What new Pods get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarSetInjectionStrategy {
    /// true: new Pods get nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// A former state of the SidecarSet, for new Pods. Default: as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<InjectRevision>,
    /// Short for revision.revisionName.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// Short for revision.customVersion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_version: Option<String>,
}

impl SidecarSetInjectionStrategy {
    /// The former state that new Pods get, written in either way. None: they get the present one.
    pub fn pinned(&self) -> Option<InjectRevision> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let long = self.revision.clone().unwrap_or_default();
        let pinned = InjectRevision {
            revision_name: given(&long.revision_name).or_else(|| given(&self.revision_name)),
            custom_version: given(&long.custom_version).or_else(|| given(&self.custom_version)),
            policy: long.policy,
        };
        (pinned.revision_name.is_some() || pinned.custom_version.is_some()).then_some(pinned)
    }
}

/// Value of [`InjectRevision::policy`]: every new Pod gets the former state.
pub const INJECT_ALWAYS: &str = "Always";
/// Value of [`InjectRevision::policy`]: new Pods get the former state as far as selector and partition keep Pods on it.
pub const INJECT_PARTIAL: &str = "Partial";

/// A former state of a SidecarSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectRevision {
    /// By the name of its ControllerRevision. It wins over customVersion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// By its customVersion; the latest one with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_version: Option<String>,
    /// Always (the default): every new Pod gets it. Partial: Pods outside updateStrategy.selector get it, and of the others
    /// as many in a hundred as a partition in percent keeps.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["Always", "Partial"]))]
    pub policy: String,
}

/// Value of [`PatchPodMetadata::patch_policy`]: what the Pod has stays.
pub const PATCH_RETAIN: &str = "Retain";
/// Value of [`PatchPodMetadata::patch_policy`]: what the Pod has is replaced.
pub const PATCH_OVERWRITE: &str = "Overwrite";
/// Value of [`PatchPodMetadata::patch_policy`]: JSON is merged into what the Pod has.
pub const PATCH_MERGE_JSON: &str = "MergePatchJson";

/// Annotations that Pods get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchPodMetadata {
    /// Keys and values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Retain (the default): only what a new Pod does not have. Overwrite: in any case, with updates too. MergePatchJson: the
    /// value is a JSON merge patch for what the Pod has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub patch_policy: String,
}

/// What a SidecarSet is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarSetStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Pods that have its containers.
    pub matched_pods: i32,
    /// Of them, those that have them as they are now.
    pub updated_pods: i32,
    /// Of matchedPods, those that are ready and run the images of their spec.
    pub ready_pods: i32,
    /// Of updatedPods, those that are ready and run the images of their spec.
    pub updated_ready_pods: i32,
    /// Of matchedPods, those that do not have its containers as they are now.
    pub outdated_pods: i32,
    /// Of outdatedPods, those that cannot be updated in place: only another Pod in their place helps. The condition Upgradable
    /// says why.
    pub not_upgradable_pods: i32,
    /// Pods that its selectors match and that do not have its containers: they are older than it, or admission could not
    /// put them in.
    pub uninjected_pods: i32,
    /// The name of the latest ControllerRevision, in the namespace of Kruise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub latest_revision: String,
    /// How often the name of a new revision was taken.
    pub collision_count: i32,
    /// Ready, Reconciling and Stalled, as kstatus reads them; Upgradable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// No schema for the items: whatever a newer API server knows is kept.
fn raw_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Every recorded SidecarSet, as the API server gave it: one object, created and updated, in both versions.
    const RECORDED: &str = include_str!("testdata/sidecar_sets.json");

    #[test]
    fn recorded_sidecar_sets_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 6);
        for object in recorded {
            let read: SidecarSet = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["apiVersion"], "apps.kruise.io/v1beta1");
            for member in ["apiVersion", "metadata"] {
                written[member] = object[member].clone();
            }
            let status = written["status"].as_object_mut().unwrap();
            for ours in ["outdatedPods", "notUpgradablePods", "uninjectedPods"] {
                assert_eq!(status.remove(ours), Some(json!(0)));
            }
            if object["status"].get("updatedReadyPods").is_none() {
                assert_eq!(status.remove("updatedReadyPods"), Some(json!(0)));
            }
            assert_eq!(written, object);
        }
    }

    #[test]
    fn zeros_are_written_in_a_status() {
        let written = serde_json::to_value(SidecarSetStatus::default()).unwrap();
        let counts = [
            "observedGeneration",
            "matchedPods",
            "updatedPods",
            "readyPods",
            "updatedReadyPods",
            "outdatedPods",
            "notUpgradablePods",
            "uninjectedPods",
            "collisionCount",
        ];
        let want: Map<String, Value> = counts.iter().map(|count| ((*count).to_owned(), json!(0))).collect();
        assert_eq!(written, Value::Object(want));
    }

    #[test]
    fn empty_structs_of_go_clients_are_read() {
        let read: SidecarSetSpec = serde_json::from_value(json!({
            "selector": {"matchLabels": {"a": "b"}}, "updateStrategy": {}, "injectionStrategy": {},
            "containers": [{"name": "a", "resources": {}, "upgradeStrategy": {}, "shareVolumePolicy": {}}],
        }))
        .unwrap();
        let container = &read.containers[0];
        assert_eq!(container.upgrade_strategy, Some(UpgradeStrategy::default()));
        assert!(!container.is_hot_upgrade() && container.image().is_empty());
        assert_eq!(Value::Object(container.container()), json!({"name": "a", "resources": {}}));
    }

    #[test]
    fn unknown_fields_of_containers_and_volumes_are_kept() {
        let spec = json!({
            "selector": {"matchLabels": {"a": "b"}}, "updateStrategy": {}, "injectionStrategy": {},
            "containers": [{"name": "a", "image": "b", "newer": {"than": ["we"]}, "transferEnv": [{"envName": "X"}]}],
            "volumes": [{"name": "v", "newer": 1}],
        });
        let read: SidecarSetSpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), spec);
    }

    #[test]
    fn a_pinned_revision_is_read_from_its_flat_form_too() {
        let pinned = |value: Value| serde_json::from_value::<SidecarSetInjectionStrategy>(value).unwrap().pinned();
        let by_name = |name: &str| InjectRevision { revision_name: Some(name.into()), ..InjectRevision::default() };
        assert_eq!(pinned(json!({"revisionName": "a"})), Some(by_name("a")));
        assert_eq!(pinned(json!({"revision": {"revisionName": "a"}, "revisionName": "b"})), Some(by_name("a")));
        let partial = pinned(json!({"revision": {"customVersion": "v1", "policy": "Partial"}})).unwrap();
        assert_eq!((partial.custom_version.as_deref(), partial.policy.as_str()), (Some("v1"), INJECT_PARTIAL));
        for none in [json!({}), json!({"revision": {}}), json!({"revision": {"policy": "Always", "revisionName": ""}})]
        {
            assert_eq!(pinned(none), None);
        }
    }

    #[test]
    fn the_definition_is_that_of_a1() {
        let rendered = json!(crate::definitions::sidecar_sets());
        assert_eq!(rendered["spec"]["scope"], "Cluster");
        assert_eq!(rendered["spec"]["names"]["shortNames"], json!(["scs"]));
        assert_eq!(rendered["spec"]["conversion"]["strategy"], "None");
        let versions = rendered["spec"]["versions"].as_array().unwrap();
        let [stored, served] = versions.as_slice() else { panic!("{} versions", versions.len()) };
        for (version, name, storage) in [(stored, "v1beta1", true), (served, "v1alpha1", false)] {
            assert_eq!((&version["name"], &version["storage"]), (&json!(name), &json!(storage)));
            assert_eq!((&version["served"], &version["subresources"]), (&json!(true), &json!({"status": {}})));
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let shown = columns.iter().filter(|c| c["priority"] != 1);
            let shown: Vec<(&str, &str)> =
                shown.map(|c| (c["name"].as_str().unwrap(), c["jsonPath"].as_str().unwrap())).collect();
            assert_eq!(
                shown,
                [
                    ("MATCHED", ".status.matchedPods"),
                    ("UPDATED", ".status.updatedPods"),
                    ("READY", ".status.readyPods"),
                    ("AGE", ".metadata.creationTimestamp"),
                ]
            );
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            for list in ["containers", "initContainers"] {
                let items = &spec[list]["items"];
                assert_eq!(items["x-kubernetes-preserve-unknown-fields"], true);
                assert_eq!(items["required"], json!(["name"]));
                for ours in [
                    "podInjectPolicy",
                    "upgradeStrategy",
                    "shareVolumePolicy",
                    "shareVolumeDevicePolicy",
                    "transferEnv",
                    "resourcesPolicy",
                ] {
                    assert!(items["properties"][ours].is_object(), "{ours}");
                }
            }
            assert_eq!(spec["volumes"]["items"]["x-kubernetes-preserve-unknown-fields"], true);
            let strategy = &spec["updateStrategy"]["properties"];
            for number in ["partition", "maxUnavailable"] {
                assert_eq!(strategy[number]["x-kubernetes-int-or-string"], true, "{number}");
            }
        }
        assert_eq!(stored["schema"], served["schema"]);
        assert!(!rendered.to_string().contains("\"default\""), "defaults are written by admission");
    }
}
