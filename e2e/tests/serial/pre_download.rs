//! ImagePullJobs for the new images of a CloneSet.

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, in_namespace, pod};
use serde_json::{Value, json};

const KIND: &str = "ImagePullJob";
const CLONE_SET: &str = "CloneSet";
pub(crate) async fn a_new_image_is_pulled_before_pods_are_updated_to_it() -> Result<()> {
    in_namespace("pre-download", async |t| {
        let spec = pod("web", vec![json!({ "name": "main", "image": remote("pause") })])["spec"].clone();
        let set = json!({ "kind": CLONE_SET, "metadata": { "name": "web" }, "spec": {
                "replicas": 4, "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec },
                "updateStrategy": { "type": "InPlaceIfPossible", "maxUnavailable": 1 } } });
        t.create(set.with("/metadata/annotations/apps.kruise.io~1image-predownload-parallelism", "50%")).await?;
        let is_done = |o: &Value| {
            let status = |field: &str| o.int(&format!("/status/{field}"));
            status("observedGeneration") == o.int("/metadata/generation")
                && (status("updatedReadyReplicas"), status("replicas")) == (4, 4)
                && o.text("/status/currentRevision") == o.text("/status/updateRevision")
        };
        t.wait_for(CLONE_SET, "web", "to be ready", PATIENCE, is_done).await?;
        let image = remote_tag("pause", "v2");
        let container = json!([{ "name": "main", "image": image }]);
        let seen = t.record(CLONE_SET, "web");
        let changed = t
            .patch(CLONE_SET, "web", json!({ "spec": { "template": { "spec": { "containers": container } } } }))
            .await?;
        t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("CreatedImagePullJob"))).await?;
        let job = t.list(KIND, "app=web").await?;
        // It may be gone already when the update was faster than this test.
        for job in &job {
            assert_eq!((job.text("/spec/image"), job.int("/spec/parallelism")), (image.as_str(), 2));
            assert_eq!(job.text("/metadata/ownerReferences/0/uid"), changed.text("/metadata/uid"));
        }
        t.wait_for(CLONE_SET, "web", "to be updated", PATIENCE, is_done).await?;
        let update = seen.changes("/status/updateRevision").pop().unwrap_or_default();
        t.gone(KIND, &format!("{update}-main")).await?;
        let revision = t.kubectl(&["get", "controllerrevision", &update, "-o", "json"]).await?;
        ensure!(revision.contains("\"apps.kruise.io/pre-predownload-created\": \"true\""), "{revision}");
        Ok(())
    })
    .await
}
