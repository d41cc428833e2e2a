//! PodProbeMarker: probes of a user's own, and what Pods show of their results.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Probe,
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector},
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{conditions, rules::selector_stays};

/// Which Pods are probed, and how.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "PodProbeMarker",
    plural = "podprobemarkers",
    namespaced,
    doc = "PodProbeMarker probes containers of running Pods, from their node as kubelet does, and writes the results on the Pods as conditions, labels and annotations. A probe never restarts a container and, unless a Pod has a readiness gate of its condition, never makes one NotReady.",
    status = "PodProbeMarkerStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeMarkerSpec {
    /// The Pods of the namespace that are probed, by their labels. It cannot be empty and cannot be changed.
    #[x_kube(validation = Rule::new(selector_stays("")).message("spec.selector cannot be changed: what was written on its Pods would stay there; create another PodProbeMarker"))]
    pub selector: LabelSelector,
    /// What is probed; at least one.
    pub probes: Vec<MarkedProbe>,
}

/// One probe of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MarkedProbe {
    /// Its name, unique in the object, without '#'. It cannot be that of a condition that Kubernetes or Kruise write.
    pub name: String,
    /// The container that is probed. A Pod that has no such container is left out.
    pub container_name: String,
    /// How: exec, httpGet or tcpSocket, always in the container or at the Pod's own address. The defaults differ from
    /// kubelet's: periodSeconds 1, timeoutSeconds 1, successThreshold 1, failureThreshold 1, initialDelaySeconds 1 (from the
    /// start of the container). timeoutSeconds is at most 60. The output of a command, or the body of an answer, becomes the
    /// message (up to 1,024 bytes).
    #[schemars(schema_with = "probe")]
    pub probe: Value,
    /// Labels and annotations that the Pod gets while the probe is in a state. Those of the other state are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marker_policy: Vec<MarkerPolicy>,
    /// The condition of the Pod that has the result, such as example.com/idle. Required without markerPolicy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_condition_type: String,
}

/// What a Pod carries while a probe is in a state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MarkerPolicy {
    /// Succeeded or Failed. While it is Unknown, everything stays as it is.
    pub state: String,
    /// Labels. Those of Kubernetes and Kruise are refused, but for app.kubernetes.io.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, for example controller.kubernetes.io/pod-deletion-cost. Others of Kubernetes and Kruise are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeMarkerStatus {
    /// The generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Pods that are probed.
    #[serde(default)]
    pub matched_pods: i64,
    /// Accepted: False while the selector is one that is refused, so that no Pod is probed, or while the object names labels,
    /// annotations or conditions of Kubernetes, Kruise or others, which are not written; its message names them.
    /// AsSpecified: False while probes are left out because they do not fit into the object of a node, or timeouts are
    /// shortened; its message names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Descriptions that replace those of Kubernetes: the defaults differ here, and two fields are of no use.
const MEANINGS: [(&str, &str); 7] = [
    ("initialDelaySeconds", "Seconds from the start of the container to the first probe. Default 1; 0 means 1."),
    ("periodSeconds", "Seconds between two probes. Default 1."),
    ("timeoutSeconds", "Seconds after which a probe has failed. Default 1, at most 60."),
    ("successThreshold", "How many successes in a row make the state Succeeded. Default 1."),
    ("failureThreshold", "How many failures in a row make the state Failed. Default 1."),
    ("terminationGracePeriodSeconds", "Without effect: a probe never ends a container."),
    ("grpc", "Refused: want exec, httpGet or tcpSocket."),
];

/// The schema of a core probe; the value stays raw JSON, so that it is handed on as it was written.
pub(super) fn probe(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Probe::json_schema(generator);
    for (field, meaning) in MEANINGS {
        if let Some(field) = schema.pointer_mut(&format!("/properties/{field}")).and_then(Value::as_object_mut) {
            field.insert("description".into(), meaning.into());
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;
    use crate::apps::node_pod_probe::NodePodProbe;

    #[test]
    fn explain_says_of_each_timing_what_holds_here() {
        let of = |crd: Value, path: &str| {
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            schema.pointer(path).unwrap_or_else(|| panic!("no {path} in {schema}")).clone()
        };
        let probe = "properties/probes/items/properties/probe/properties";
        let marker = of(json!(PodProbeMarker::crd()), &format!("/{probe}"));
        let of_node = of(json!(NodePodProbe::crd()), &format!("/properties/podProbes/items/{probe}"));
        for (field, meaning) in MEANINGS {
            for fields in [&marker, &of_node] {
                assert_eq!(fields[field]["description"], meaning, "{field}");
            }
        }
        // Of whoever adds a field to the probes of Kubernetes.
        let as_there = ["exec", "httpGet", "tcpSocket"];
        let mut known = MEANINGS.iter().map(|(field, _)| *field).chain(as_there).collect::<Vec<_>>();
        known.sort_unstable();
        let mut fields: Vec<&str> = marker.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, known);
    }
}
