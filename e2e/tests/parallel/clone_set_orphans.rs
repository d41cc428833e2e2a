//! CloneSet: Pods and claims that nobody controls any more are its own again, if it asks for that.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, app, in_namespace, poll};
use serde_json::json;

use crate::clone_set::{CLONE_SET, clone_set, rolled_out, started, uids, volume};

const CLAIM: &str = "PersistentVolumeClaim";

/// As after a restore by Velero: no object has an owner, and the CloneSet has another UID and no status.
#[tokio::test]
async fn pods_and_claims_that_were_left_behind_are_adopted_and_none_is_made_beside_them() -> Result<()> {
    in_namespace("cs-orphans", async |t| {
        let volumes = [volume(t, 0).await?, volume(t, 1).await?];
        let claim = json!({ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": t.namespace, "resources": { "requests": { "storage": "1Mi" } } } });
        let set = clone_set("web", 2, vec![app("main")])
            .with("/spec/volumeClaimTemplates", json!([claim]))
            .with("/metadata/annotations/kruise.rs~1adopt-orphans", "true");
        let before = started(t, set.clone()).await?;
        let claims = t.list(CLAIM, "app=web").await?;
        assert_eq!(claims.len(), 2);
        let revision = t.get(CLONE_SET, "web").await?.text("/status/updateRevision").to_owned();
        let made = |events: &[String]| events.iter().filter(|e| e.starts_with("SuccessfulCreate: ")).count();
        t.wait_events(CLONE_SET, "web", |e| made(e) == 2).await?;

        t.kubectl(&["delete", "cloneset/web", "--cascade=orphan"]).await?;
        for kind in ["Pod", CLAIM, "ControllerRevision"] {
            let left = t.list(kind, "app=web").await?;
            let is_left = left.iter().all(|o| o.array("/metadata/ownerReferences").is_empty());
            ensure!(!left.is_empty() && is_left, "{kind}: {left:?}");
        }

        let after = started(t, set).await?;
        assert_eq!(uids(&after), uids(&before));
        let events = t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("Adopted: Pod "))).await?;
        assert_eq!(made(&events), 2, "not even for a moment: {events:?}");
        assert_eq!(uids(&t.list(CLAIM, "app=web").await?), uids(&claims));
        let set = t.get(CLONE_SET, "web").await?;
        assert_eq!(set.text("/status/updateRevision"), revision);
        let uid = set.text("/metadata/uid");
        for kind in ["Pod", CLAIM, "ControllerRevision"] {
            poll("owners", PATIENCE, async || {
                let all = t.list(kind, "app=web").await?;
                let is_owned = all.iter().all(|o| o.text("/metadata/ownerReferences/0/uid") == uid);
                ensure!(is_owned, "{kind}: {all:?}");
                Ok(())
            })
            .await?;
        }

        // They are its own in everything.
        t.patch(CLONE_SET, "web", json!({ "spec": { "replicas": 1 } })).await?;
        rolled_out(t, "web").await?;
        poll("one claim", PATIENCE, async || {
            ensure!(t.list(CLAIM, "app=web").await?.len() == 1, "the claim of the Pod that is gone");
            Ok(())
        })
        .await?;
        t.remove(CLONE_SET, "web").await?;
        for claim in &claims {
            t.gone(CLAIM, claim.text("/metadata/name")).await?;
        }
        for volume in volumes {
            t.remove("PersistentVolume", &volume).await?;
        }
        Ok(())
    })
    .await
}
