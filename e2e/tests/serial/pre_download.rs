//! ImagePullJobs for the new images of a CloneSet and of a StatefulSet.

use anyhow::{Result, ensure};
use e2e::cmd::{CommandExt, ctr};
use e2e::images::{push_new, remote};
use e2e::kit::{Build, Look, PATIENCE, in_namespace, pod};
use serde_json::{Value, json};

const KIND: &str = "ImagePullJob";
const PODS: i64 = 4;

/// How a kind is called, by the toolkit and by others, and how it spells what this test asks of it.
struct Kind {
    called: &'static str,
    kind: &'static str,
    namespace: &'static str,
    /// Updated in place, one Pod at a time; so many Pods are kept on the old revision.
    strategy: fn(i64) -> Value,
}

const CLONE_SET: Kind = Kind {
    called: "CloneSet",
    kind: "CloneSet",
    namespace: "pre-download",
    strategy: |partition| json!({ "type": "InPlaceIfPossible", "maxUnavailable": 1, "partition": partition }),
};
const STATEFUL_SET: Kind = Kind {
    called: "AdvancedStatefulSet",
    kind: "StatefulSet",
    namespace: "pre-download-sts",
    strategy: |partition| json!({ "rollingUpdate": { "podUpdatePolicy": "InPlaceIfPossible", "maxUnavailable": 1, "partition": partition } }),
};

impl Kind {
    fn set(&self, containers: Value) -> Value {
        let spec = pod("web", Vec::new())["spec"].clone().with("/containers", containers);
        let set = json!({ "kind": self.kind, "metadata": { "name": "web" }, "spec": {
            "replicas": PODS, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec },
            "updateStrategy": (self.strategy)(PODS) } });
        let set = set.with("/metadata/annotations/apps.kruise.io~1image-predownload-parallelism", "50%");
        if self.kind == "CloneSet" {
            return set;
        }
        set.with("/apiVersion", "apps.kruise.io/v1beta1")
            .with("/spec/podManagementPolicy", "Parallel")
            .with("/spec/template/spec/readinessGates", json!([{ "conditionType": "InPlaceUpdateReady" }]))
    }
}

pub(crate) async fn a_new_image_is_pulled_before_pods_are_updated_to_it() -> Result<()> {
    tokio::try_join!(of_kind(&CLONE_SET), of_kind(&STATEFUL_SET)).map(drop)
}

/// The new image is nowhere but in the registry. No Pod may be updated yet, and the node has it all the same; the update
/// then downloads nothing.
async fn of_kind(kind: &Kind) -> Result<()> {
    in_namespace(kind.namespace, async |t| {
        let container = |image: &str| json!([{ "name": "main", "image": image, "imagePullPolicy": "IfNotPresent" }]);
        t.create(kind.set(container(&remote("pause")))).await?;
        let counts = |o: &Value| {
            let status = |field: &str| o.int(&format!("/status/{field}"));
            let is_seen = status("observedGeneration") == o.int("/metadata/generation");
            is_seen.then(|| (status("readyReplicas"), status("updatedReadyReplicas")))
        };
        t.wait_for(kind.called, "web", "to be ready", PATIENCE, |o| counts(o) == Some((PODS, PODS))).await?;
        let paths = t.paths.clone();
        // A repository that no other run has had.
        let repository = format!("ahead-{}", t.namespace);
        let image = format!("registry.example/team/{repository}:v2");
        let image = image.as_str();
        tokio::task::spawn_blocking(move || push_new(&paths, &repository, "v2", 1 << 20)).await??;
        let there = || ctr(["images", "ls", "-q"]).text().map(|all| all.lines().any(|line| line == image));
        ensure!(!there()?, "the image is there before anybody has asked for it");

        let change = json!({ "spec": { "template": { "spec": { "containers": container(image) } } } });
        let changed = t.patch(kind.called, "web", change).await?;
        let is_other = |o: &Value| o.text("/status/updateRevision") != o.text("/status/currentRevision");
        let update = t.wait_for(kind.called, "web", "to have a new revision", PATIENCE, is_other).await?;
        let update = update.text("/status/updateRevision").to_owned();
        let name = format!("{update}-main");
        let job = t.wait_for(KIND, &name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await?;
        assert_eq!((job.text("/spec/image"), job.int("/spec/parallelism")), (image, 2), "{job:#}");
        assert_eq!((job.int("/status/desired"), job.int("/status/succeeded")), (1, 1), "{job:#}");
        assert_eq!(job.text("/metadata/ownerReferences/0/uid"), changed.text("/metadata/uid"));
        ensure!(there()?, "the runtime does not have the image");
        let pods = t.list("Pod", "app=web").await?;
        ensure!(pods.iter().all(|p| p.text("/spec/containers/0/image") == remote("pause")), "a Pod was updated");
        t.wait_events(kind.kind, "web", |e| e.iter().any(|e| e.starts_with("CreatedImagePullJob"))).await?;

        t.patch(kind.called, "web", json!({ "spec": { "updateStrategy": (kind.strategy)(0) } })).await?;
        t.wait_for(kind.called, "web", "to be updated", PATIENCE, |o| {
            counts(o) == Some((PODS, PODS)) && o.text("/status/currentRevision") == update
        })
        .await?;
        for pod in &pods {
            let name = pod.text("/metadata/name");
            let now = t.get("Pod", name).await?;
            assert_eq!(now.text("/metadata/uid"), pod.text("/metadata/uid"), "it was updated in place");
            let present = format!("Container image \"{image}\" already present on machine");
            t.wait_events("Pod", name, |e| e.iter().any(|e| e.contains(&present))).await?;
        }
        t.gone(KIND, &name).await?;
        let revision = t.kubectl(&["get", "controllerrevision", &update, "-o", "json"]).await?;
        ensure!(revision.contains("\"apps.kruise.io/pre-predownload-created\": \"true\""), "{revision}");
        Ok(())
    })
    .await
}
