//! How far a roll-out is, read from the status of each kind.

use serde_json::Value;

use crate::{
    api::apps::{sidecar_set::NOT_UPDATE, strategies::SetUpdateType},
    domain::{
        kinds::{daemon_set::spec::nodes_kept_old, sidecar_set::spec::Spec},
        workload::{
            rollout::kept_old,
            status::{AVAILABLE, ON_DELETE, PARTITION, SELECTOR},
        },
    },
    k8s::int_or_percent::IntOrPercent,
    plugin::rules::JsonPointer,
};

/// How far a roll-out is, as the status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    /// Pods that the spec wants.
    pub(super) replicas: i64,
    /// Of them, those that the roll-out is to update.
    pub(super) expected: i64,
    /// Those that are updated.
    pub(super) updated: i64,
    /// Of them, available.
    pub(super) available: i64,
    /// Old Pods beyond those that the spec wants, which have not been deleted yet.
    pub(super) surplus: i64,
    /// The revision that Pods are updated to.
    pub(super) revision: String,
    /// What holds it for now.
    pub(super) held: Option<String>,
    /// Why it does not continue until somebody deletes Pods, or changes the spec.
    pub(super) left: Option<String>,
}

fn is_on_delete(object: &Value) -> bool {
    object.text("/spec/updateStrategy/type") == SetUpdateType::OnDelete.as_str()
}

/// `old`: how many Pods of other revisions there are. Where there is none, as at the first start, new ones are on their way.
fn left_to_deletions(object: &Value, old: i64) -> Option<String> {
    let says_so = object.true_condition("Ready").is_some_and(|ready| ready.text("/reason") == ON_DELETE);
    let is_left = is_on_delete(object) && (says_so || old > 0);
    is_left.then(|| "updateStrategy.type is OnDelete: a Pod is updated when somebody deletes it".to_owned())
}

/// How many of `whole` Pods the partition does not keep on an older revision.
fn without_kept(object: &Value, whole: i64, kept_old: impl Fn(IntOrPercent, i32) -> i32) -> i64 {
    let partition = object.pointer("/spec/updateStrategy/rollingUpdate/partition").filter(|_| !is_on_delete(object));
    let partition = partition.and_then(|partition| IntOrPercent::parse(partition).ok());
    let number = i32::try_from(whole).unwrap_or(i32::MAX);
    (whole - partition.map_or(0, |partition| i64::from(kept_old(partition, number)))).clamp(0, whole.max(0))
}

/// Of a CloneSet.
pub(super) fn clone_set(object: &Value) -> Figures {
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let there = object.int("/status/replicas");
    let (expected, updated) = (object.int("/status/expectedUpdatedReplicas"), object.int("/status/updatedReplicas"));
    // Updated Pods that a scale-down deletes, or a hook holds, have nothing to do with the roll-out.
    let old = there.saturating_sub(updated).saturating_sub(replicas.saturating_sub(expected));
    Figures {
        replicas,
        expected,
        updated,
        available: object.int("/status/updatedAvailableReplicas"),
        surplus: there.saturating_sub(replicas).min(old).max(0),
        revision: object.text("/status/updateRevision").to_owned(),
        held: None,
        left: left_to_deletions(object, there.saturating_sub(updated)),
    }
}

/// Of a StatefulSet of Kruise.
pub(super) fn stateful_set(object: &Value) -> Figures {
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    // `replicas` has Pods that are being deleted too, and `updatedReplicas` has not.
    let is_one_revision = object.text("/status/currentRevision") == object.text("/status/updateRevision");
    let old = if is_one_revision { 0 } else { object.int("/status/currentReplicas") };
    Figures {
        replicas,
        expected: without_kept(object, replicas, kept_old),
        updated: object.int("/status/updatedReplicas"),
        available: object.int("/status/updatedAvailableReplicas"),
        surplus: 0,
        revision: object.text("/status/updateRevision").to_owned(),
        held: None,
        left: left_to_deletions(object, old),
    }
}

/// Of a DaemonSet of Kruise.
pub(super) fn daemon_set(object: &Value) -> Figures {
    let nodes = object.int("/status/desiredNumberScheduled");
    let updated = object.int("/status/updatedNumberScheduled");
    // With a selector the status does not say how many nodes are meant: it is over when the set says so. One that is paused
    // or OnDelete is Ready too.
    let has_selector = object.pointer("/spec/updateStrategy/rollingUpdate/selector").is_some_and(Value::is_object);
    let ready = object.true_condition("Ready");
    let is_over = ready.is_some_and(|ready| matches!(ready.text("/reason"), AVAILABLE | SELECTOR | PARTITION));
    let expected = if has_selector && is_over { updated } else { without_kept(object, nodes, nodes_kept_old) };
    // The status does not say which Pods are available: the new ones, except as many as are not.
    let there = object.int("/status/currentNumberScheduled");
    let unavailable = there.saturating_sub(object.int("/status/numberAvailable"));
    Figures {
        replicas: nodes,
        expected,
        updated,
        available: updated.saturating_sub(unavailable.max(0)).max(0),
        surplus: 0,
        revision: revision_of(object),
        held: None,
        left: left_to_deletions(object, there.saturating_sub(updated)),
    }
}

/// Of a SidecarSet.
pub(super) fn sidecar_set(object: &Value) -> Figures {
    let matched = object.int("/status/matchedPods");
    let updated = object.int("/status/updatedPods");
    let spec = Spec::of(object).ok();
    let whole = i32::try_from(matched).unwrap_or(i32::MAX);
    let kept = spec.as_ref().map_or(0, |spec| i64::from(kept_old(spec.partition, whole)));
    let (ready, waits) = (object.true_condition("Ready"), object.true_condition("Reconciling"));
    // With a selector the status does not say how many Pods are meant: it is over when the SidecarSet says so.
    let is_over = ready.is_some_and(|ready| matches!(ready.text("/reason"), AVAILABLE | SELECTOR));
    let left = ready.filter(|ready| matches!(ready.text("/reason"), NOT_UPDATE | "NotUpgradable"));
    let held = waits.filter(|waits| matches!(waits.text("/reason"), "BudgetRefused" | "FailedUpdatePod"));
    Figures {
        replicas: matched,
        expected: if is_over { updated } else { (matched - kept).clamp(0, matched.max(0)) },
        updated,
        available: object.int("/status/updatedReadyPods"),
        surplus: 0,
        revision: object.text("/status/latestRevision").to_owned(),
        held: held.map(|waits| format!("{}: {}", waits.text("/reason"), waits.text("/message"))),
        left: left.map(|ready| ready.text("/message").to_owned()),
    }
}

/// The name of the revision of a DaemonSet, whose status has the hash alone.
fn revision_of(object: &Value) -> String {
    match object.text("/status/updateRevision") {
        "" => String::new(),
        hash => format!("{}-{hash}", object.text("/metadata/name")),
    }
}
