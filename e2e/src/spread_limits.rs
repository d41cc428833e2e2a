//! Many creations at once under a WorkloadSpread: the same look with two and with three replicas of the webhook.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::kit::{Build, Look, Test, app, workload};

/// A CloneSet creates fifty Pods at once under a WorkloadSpread. At no time are there more in a subset than its limit, and within
/// `patience` all Pods are there and no place is left but those of creations that failed after their admission.
///
/// # Errors
/// That is not so, or the API server refuses something.
pub async fn fifty_creations_within_limits(t: &Test, patience: Duration) -> Result<()> {
    const KIND: &str = "WorkloadSpread";
    const SUBSET: &str = "/metadata/labels/e2e-subset";
    let subset = |name: &str| json!({ "name": name, "patch": { "metadata": { "labels": { "e2e-subset": name } } } });
    let limited = |name: &str, max: u32| subset(name).with("/maxReplicas", max);
    let target = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web" });
    let subsets = json!([limited("a", 7), limited("b", 11), subset("c")]);
    let spread = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": KIND, "metadata": { "name": "ws" },
        "spec": { "targetRef": target, "subsets": subsets } });
    t.create(spread).await?;
    t.create(workload("CloneSet", "web", 50, vec![app("main")])).await?;
    let end = Instant::now() + patience;
    loop {
        let pods = t.list("Pod", "app=web").await?;
        let of = |name: &str| pods.iter().filter(|pod| pod.text(SUBSET) == name).count();
        let found = [of("a"), of("b"), of("c")];
        ensure!(found[0] <= 7 && found[1] <= 11, "{found:?}");
        if found.iter().sum::<usize>() == 50 {
            // A creation that failed after its admission may have taken a place. It was given back when no Pod was left to create.
            let failed = t.events(KIND, "ws").await?.iter().filter(|event| event.contains("CreatePodFailed")).count();
            if 18 - found[0] - found[1] <= failed {
                return Ok(());
            }
        }
        ensure!(Instant::now() < end, "{found:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
