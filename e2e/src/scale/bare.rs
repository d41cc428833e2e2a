//! The bare client: the Pods of every side, and the requests by which they are made and deleted.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{GATES, IMAGES, IN_FLIGHT, REVISIONS};
use crate::kit::{Look, Test};
use crate::player::on_played_nodes;

/// What the tables call the bare client whose Pods are those of the workload beside it.
pub(super) const SAME_PODS: &str = "bare client, the same Pods";
/// What they call it with the manager's account.
pub(super) const LIMITED: &str = "bare client under the same policies";

/// Who brings Pods up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Bare,
    /// The bare client, whose Pods have the labels and readiness gates of a CloneSet's, and who opens those: the writes
    /// that any client has to make for the same Pods.
    Gated,
    CloneSet,
    Deployment,
}

impl Way {
    pub(super) fn text(self) -> String {
        match self {
            Self::Bare => format!("bare client, {IN_FLIGHT} in flight"),
            Self::Gated => SAME_PODS.into(),
            Self::CloneSet => "CloneSet".into(),
            Self::Deployment => "Deployment".into(),
        }
    }
}

/// 20 %, as CloneSet rounds it.
pub(super) fn max_unavailable(count: usize) -> usize {
    count.div_ceil(5)
}

/// Connections are made before anything is measured.
pub(super) async fn warm(t: &Test) -> Result<()> {
    // The manager's account may read Pods one by one; there need not be one.
    let look = |_| async { t.find("Pod", "warm").await };
    stream::iter(0..IN_FLIGHT).map(look).buffer_unordered(IN_FLIGHT).try_for_each(|_| future::ready(Ok(()))).await
}

/// The Pod template of every side.
pub(super) fn template(app: &str) -> Value {
    let spec = json!({ "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": IMAGES[0] }] });
    json!({ "metadata": { "labels": { "app": app } }, "spec": on_played_nodes(spec) })
}

pub(super) fn workload(kind: &str, name: &str, replicas: usize) -> Value {
    json!({ "kind": kind, "metadata": { "name": name }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": { "app": name } }, "template": template(name) } })
}

pub(super) fn deployment(name: &str, replicas: usize) -> Value {
    workload("Deployment", name, replicas)
}

pub(super) fn clone_set(name: &str, replicas: usize) -> Value {
    let mut object = workload("CloneSet", name, replicas);
    object["spec"]["updateStrategy"] = json!({ "type": "InPlaceIfPossible", "maxUnavailable": "20%" });
    object
}

pub(super) fn many_name(index: usize) -> String {
    format!("many-{index:04}")
}

pub(super) fn bare_name(app: &str, index: usize) -> String {
    format!("{app}-{index:05}")
}

pub(super) fn bare_pod(app: &str, index: usize) -> Value {
    let mut pod = template(app);
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = bare_name(app, index).into();
    pod
}

/// With the labels and readiness gates of a CloneSet's Pod: the API server's work for a write grows with what is there.
pub(super) fn gated_pod(app: &str, index: usize) -> Value {
    let mut pod = bare_pod(app, index);
    pod["metadata"]["generateName"] = format!("{app}-").into();
    pod["metadata"]["labels"] = json!({ "app": app, "apps.kruise.io/cloneset-instance-id": format!("{index:05}"),
        "controller-revision-hash": format!("{app}-{}", REVISIONS[0]), "pod-template-hash": REVISIONS[0] });
    pod["spec"]["readinessGates"] = GATES.iter().map(|gate| json!({ "conditionType": gate })).collect();
    pod
}

/// All Pods, by requests or by the number in the spec.
pub(super) async fn create(t: &Test, way: Way, name: &str, count: usize) -> Result<()> {
    match way {
        Way::CloneSet | Way::Deployment => resize(t, way, name, count).await,
        Way::Bare => {
            let make = |index: usize| async move { t.create(bare_pod(name, index)).await.map(drop) };
            stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
        }
        Way::Gated => create_gated(t, count, Marks::StateAndHash, |index| gated_pod(name, index)).await,
    }
}

/// Pods with readiness gates, which are opened.
pub(super) async fn create_gated(t: &Test, count: usize, marks: Marks, pod: impl Fn(usize) -> Value) -> Result<()> {
    let (api, open, params) = (&t.api("Pod"), &gate_patch(&GATES, true, marks), &PatchParams::default());
    let make = |index: usize| {
        let pod = pod(index);
        async move {
            let name = pod.text("/metadata/name").to_owned();
            t.create(pod).await?;
            let opened = api.patch_status(&name, params, open).await;
            opened.map(drop).map_err(anyhow::Error::from)
        }
    };
    stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
}

/// Deletes Pods by their names.
pub(super) async fn delete_bare(t: &Test, names: impl Iterator<Item = String>) -> Result<()> {
    let api = &t.api("Pod");
    let delete = |name: String| async move { api.delete(&name, &DeleteParams::default()).await.map(drop) };
    Ok(stream::iter(names).map(delete).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?)
}

/// None, in the same way.
pub(super) async fn delete(t: &Test, way: Way, name: &str, count: usize) -> Result<()> {
    if matches!(way, Way::CloneSet | Way::Deployment) {
        return resize(t, way, name, 0).await;
    }
    delete_bare(t, (0..count).map(|index| bare_name(name, index))).await
}

async fn resize(t: &Test, way: Way, name: &str, replicas: usize) -> Result<()> {
    let kind = if way == Way::CloneSet { "CloneSet" } else { "Deployment" };
    t.patch(kind, name, json!({ "spec": { "replicas": replicas } })).await.map(drop)
}

/// What the controller of a kind writes to its Pods besides gates, revision and image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// The lifecycle state and the hash of the template, as of CloneSets.
    StateAndHash,
    /// The lifecycle state, as of StatefulSets.
    State,
    /// As of DaemonSets.
    Nothing,
}

/// Opens or closes readiness gates, as the controller of a kind does.
pub(super) fn gate_patch(gates: &[&str], open: bool, marks: Marks) -> Patch<Value> {
    let (text, now) = (if open { "True" } else { "False" }, Timestamp::now());
    let condition = |gate| json!({ "type": gate, "status": text, "lastTransitionTime": now });
    let mut conditions: Vec<Value> = gates.iter().map(condition).collect();
    if !open {
        conditions.push(json!({ "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
            "message": format!("the status of pod readiness gate \"{}\" is not \"True\", but False", gates[0]) }));
    }
    let state = if open { "Normal" } else { "Updating" };
    let metadata = match marks {
        Marks::Nothing => json!({}),
        Marks::StateAndHash | Marks::State => json!({ "labels": { "lifecycle.apps.kruise.io/state": state },
            "annotations": { "lifecycle.apps.kruise.io/timestamp": now } }),
    };
    Patch::Strategic(json!({ "metadata": metadata, "status": { "conditions": conditions } }))
}
