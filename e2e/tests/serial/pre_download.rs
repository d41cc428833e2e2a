//! ImagePullJobs for the new images of a CloneSet.

use anyhow::{Result, ensure};
use e2e::cmd::{CommandExt, ctr};
use e2e::images::{push_new, remote};
use e2e::kit::{Build, Look, PATIENCE, in_namespace, pod};
use serde_json::{Value, json};

const KIND: &str = "ImagePullJob";
const CLONE_SET: &str = "CloneSet";
const PODS: i64 = 4;

/// The new image is nowhere but in the registry. No Pod may be updated yet, and the node has it all the same; the update
/// then downloads nothing.
pub(crate) async fn a_new_image_is_pulled_before_pods_are_updated_to_it() -> Result<()> {
    in_namespace("pre-download", async |t| {
        let container = |image: &str| json!([{ "name": "main", "image": image, "imagePullPolicy": "IfNotPresent" }]);
        let spec = pod("web", Vec::new())["spec"].clone().with("/containers", container(&remote("pause")));
        let set = json!({ "kind": CLONE_SET, "metadata": { "name": "web" }, "spec": {
            "replicas": PODS, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec },
            "updateStrategy": { "type": "InPlaceIfPossible", "maxUnavailable": 1, "partition": PODS } } });
        t.create(set.with("/metadata/annotations/apps.kruise.io~1image-predownload-parallelism", "50%")).await?;
        let counts = |o: &Value| {
            let status = |field: &str| o.int(&format!("/status/{field}"));
            let is_seen = status("observedGeneration") == o.int("/metadata/generation");
            is_seen.then(|| (status("readyReplicas"), status("updatedReadyReplicas")))
        };
        t.wait_for(CLONE_SET, "web", "to be ready", PATIENCE, |o| counts(o) == Some((PODS, PODS))).await?;
        let paths = t.paths.clone();
        // A repository that no other run has had.
        let repository = format!("ahead-by-clone-set-{}", t.namespace);
        let image = format!("registry.example/team/{repository}:v2");
        let image = image.as_str();
        tokio::task::spawn_blocking(move || push_new(&paths, &repository, "v2", 1 << 20)).await??;
        let there = || ctr(["images", "ls", "-q"]).text().map(|all| all.lines().any(|line| line == image));
        ensure!(!there()?, "the image is there before anybody has asked for it");

        let change = json!({ "spec": { "template": { "spec": { "containers": container(image) } } } });
        let changed = t.patch(CLONE_SET, "web", change).await?;
        let is_other = |o: &Value| o.text("/status/updateRevision") != o.text("/status/currentRevision");
        let update = t.wait_for(CLONE_SET, "web", "to have a new revision", PATIENCE, is_other).await?;
        let update = update.text("/status/updateRevision").to_owned();
        let name = format!("{update}-main");
        let job = t.wait_for(KIND, &name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await?;
        assert_eq!((job.text("/spec/image"), job.int("/spec/parallelism")), (image, 2), "{job:#}");
        assert_eq!((job.int("/status/desired"), job.int("/status/succeeded")), (1, 1), "{job:#}");
        assert_eq!(job.text("/metadata/ownerReferences/0/uid"), changed.text("/metadata/uid"));
        ensure!(there()?, "the runtime does not have the image");
        let pods = t.list("Pod", "app=web").await?;
        ensure!(pods.iter().all(|p| p.text("/spec/containers/0/image") == remote("pause")), "a Pod was updated");
        t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("CreatedImagePullJob"))).await?;

        t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
        t.wait_for(CLONE_SET, "web", "to be updated", PATIENCE, |o| {
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
