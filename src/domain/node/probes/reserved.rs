//! Labels, annotations and conditions that no probe writes: they belong to Kubernetes, to Kruise, or to somebody else, and
//! who may write a PodProbeMarker need not be allowed to write them.
//!
//! Admission refuses them. The manager ignores them in objects that were stored before, and says so in a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::selection;
use crate::{
    api::{apps::pod_probe_marker::PodProbeMarker, labels},
    k8s::{
        invalid::Invalid,
        time::{self, Now},
    },
};

/// Condition types without a prefix that Kubernetes or Kruise write.
pub const NATIVE_CONDITIONS: [&str; 12] = [
    "PodScheduled",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodReadyToStartContainers",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    labels::CONDITION_KRUISE_POD_READY,
    labels::CONDITION_INPLACE_UPDATE_READY,
    labels::CONDITION_ALL_CONTAINERS_RESTARTING,
    labels::CONDITION_SIDECAR_TERMINATED,
];

/// Domains of readiness gates of load balancers.
const GATE_DOMAINS: [&str; 2] = ["k8s.aws", "cloud.google.com"];
/// OpenKruiseGame has probes write conditions of this domain; it is no part of Kruise that reads Pods.
const GAME: &str = "game.kruise.io";
/// Labels without a prefix by which workloads know their Pods.
const IDENTITY_LABELS: [&str; 7] = [
    "pod-template-hash",
    "pod-template-generation",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "broadcastjob-name",
    "broadcastjob-controller-uid",
];
/// Labels of this domain are for users to set.
const LABELS_OF_USERS: &str = "app.kubernetes.io";
/// Annotations that users set on Pods, for controllers to read.
const ANNOTATIONS_OF_USERS: [&str; 2] =
    ["controller.kubernetes.io/pod-deletion-cost", "cluster-autoscaler.kubernetes.io/safe-to-evict"];

fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

/// Whether no probe writes a label.
pub fn is_label(key: &str) -> bool {
    IDENTITY_LABELS.contains(&key) || labels::is_of_system(key) && domain(key) != LABELS_OF_USERS
}

/// Whether no probe writes an annotation.
pub fn is_annotation(key: &str) -> bool {
    labels::is_of_system(key) && !ANNOTATIONS_OF_USERS.contains(&key)
}

/// Whether no probe writes a condition.
pub fn is_condition(type_: &str) -> bool {
    let domain = domain(type_);
    let is_of_others =
        labels::is_of_system(type_) || GATE_DOMAINS.iter().any(|parent| labels::is_below(domain, parent));
    NATIVE_CONDITIONS.contains(&type_) || is_of_others && domain != GAME
}

/// Why a label or annotation is refused, and what is allowed.
pub fn key_message(key: &str) -> String {
    format!(
        "{key} is not allowed; want a key of your own, such as example.com/idle; Kubernetes and Kruise write those of their domains"
    )
}

/// Why a condition is refused, and what is allowed.
pub fn condition_message(type_: &str) -> String {
    format!("{type_} is not allowed; want a type of your own, such as example.com/idle; others write this one")
}

/// What a stored object names and no probe writes: fields and values.
fn found(marker: &PodProbeMarker) -> Vec<String> {
    let mut found = Vec::new();
    for (i, probe) in marker.spec.probes.iter().enumerate() {
        if is_condition(&probe.pod_condition_type) {
            found.push(format!("spec.probes[{i}].podConditionType: {}", probe.pod_condition_type));
        }
        for (j, policy) in probe.marker_policy.iter().enumerate() {
            let at = format!("spec.probes[{i}].markerPolicy[{j}]");
            found.extend(policy.labels.keys().filter(|key| is_label(key)).map(|key| format!("{at}.labels: {key}")));
            let annotations = policy.annotations.keys().filter(|key| is_annotation(key));
            found.extend(annotations.map(|key| format!("{at}.annotations: {key}")));
        }
    }
    found
}

/// The conditions of a PodProbeMarker: Accepted is False while its selector cannot be used or it names what no probe writes,
/// and not there otherwise.
pub fn conditions(marker: &PodProbeMarker, now: Now) -> Vec<Condition> {
    const NAMED: usize = 3;
    let before = marker.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let (accepted, mut conditions): (Vec<_>, Vec<_>) =
        before.into_iter().partition(|condition| condition.type_ == labels::CONDITION_ACCEPTED);
    let selector = selection::problems(marker);
    let (reason, because, found) = match selector.is_empty() {
        true => {
            ("ReservedKeys", "not written on Pods, because they belong to Kubernetes, Kruise or others", found(marker))
        }
        false => {
            let found = selector.into_iter().map(|problem| Invalid::from(problem).0).collect();
            ("InvalidSelector", "no Pod is probed, because the selector is not allowed", found)
        }
    };
    if found.is_empty() {
        return conditions;
    }
    let more = match found.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let named = found.get(..NAMED).unwrap_or(&found).join("; ");
    let since = accepted.into_iter().find(|condition| condition.status == "False");
    conditions.push(Condition {
        type_: labels::CONDITION_ACCEPTED.into(),
        status: "False".into(),
        reason: reason.into(),
        message: format!("{because}: {named}{more}"),
        observed_generation: marker.metadata.generation,
        last_transition_time: since
            .map_or_else(|| Time(time::whole_seconds(now.wall)), |condition| condition.last_transition_time),
    });
    conditions
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn keys_and_conditions_of_kubernetes_and_kruise_are_reserved_by_prefix() {
        for key in [
            "kubernetes.io/metadata.name",
            "node.kubernetes.io/x",
            "pod-security.kubernetes.io/enforce",
            "k8s.io/x",
            "a.b.k8s.io/x",
            "kruise.io/podprobe",
            "apps.kruise.io/x",
            "lifecycle.apps.kruise.io/state",
            "game.kruise.io/gs-opsState",
            "kruise.rs/spelling",
            "x.kruise.rs/y",
        ] {
            assert!(is_label(key) && is_annotation(key), "{key}");
        }
        for key in
            ["role", "example.com/kubernetes.io", "mykubernetes.io/x", "kubernetes.io.example/x", "kruise.io", "a.b/c"]
        {
            assert!(!is_label(key) && !is_annotation(key) && !is_condition(key), "{key}");
        }
        for label in ["pod-template-hash", "controller-revision-hash", "controller.kubernetes.io/pod-deletion-cost"] {
            assert!(is_label(label), "{label}");
        }
        assert!(!is_label("app.kubernetes.io/component") && is_annotation("app.kubernetes.io/component"));
        assert!(!is_annotation("controller.kubernetes.io/pod-deletion-cost"));
        assert!(!is_annotation("cluster-autoscaler.kubernetes.io/safe-to-evict"));
        for condition in [
            "Ready",
            "DisruptionTarget",
            "KruisePodReady",
            "kubernetes.io/x",
            "apps.kruise.io/x",
            "target-health.elbv2.k8s.aws/x",
            "cloud.google.com/load-balancer-neg-ready",
        ] {
            assert!(is_condition(condition), "{condition}");
        }
        for condition in ["", "idle", "example.com/idle", "game.kruise.io/idle"] {
            assert!(!is_condition(condition), "{condition}");
        }
    }

    fn marker(probes: Value) -> PodProbeMarker {
        serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
            "metadata": {"name": "m", "namespace": "a", "generation": 3},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "probes": probes}}))
        .unwrap()
    }

    #[test]
    fn a_stored_object_with_reserved_keys_says_that_they_are_not_written() {
        let now = |second: u64| Now {
            wall: jiff::Timestamp::from_second(1_800_000_000 + i64::try_from(second).unwrap()).unwrap(),
            mono: Duration::from_secs(second),
        };
        let policy =
            json!([{"state": "Failed", "labels": {"kruise.io/a": "1", "mine": "1"}, "annotations": {"k8s.io/b": "1"}}]);
        let probe = |condition: &str| json!({"name": "p", "containerName": "main", "probe": {}, "podConditionType": condition, "markerPolicy": policy});
        let mut bad = marker(json!([probe("Ready"), probe("x.k8s.io/y")]));
        let conditions_now = conditions(&bad, now(0));
        let accepted = &conditions_now[0];
        assert_eq!((accepted.type_.as_str(), accepted.status.as_str()), ("Accepted", "False"));
        assert_eq!(
            accepted.message,
            "not written on Pods, because they belong to Kubernetes, Kruise or others: spec.probes[0].podConditionType: \
             Ready; spec.probes[0].markerPolicy[0].labels: kruise.io/a; spec.probes[0].markerPolicy[0].annotations: \
             k8s.io/b; and 3 more"
        );
        bad.status.get_or_insert_default().conditions.clone_from(&conditions_now);
        assert_eq!(conditions(&bad, now(60)), conditions_now, "it keeps its time");
        bad.spec.probes.clear();
        assert_eq!(conditions(&bad, now(60)), []);
        assert_eq!(
            conditions(
                &marker(json!([{"name": "p", "containerName": "main", "probe": {}, "podConditionType": "a/b"}])),
                now(0)
            ),
            []
        );
    }
}
