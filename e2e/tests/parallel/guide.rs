//! The user guide's examples, shown to the real API server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use e2e::guide::{GATED, examples, refusals};
use e2e::images::remote;
use e2e::kit::{Look, in_namespace, pod};
use serde_json::json;

#[tokio::test]
async fn every_example_of_the_guide_is_accepted() -> Result<()> {
    in_namespace("guide", async |t| {
        // Those behind a gate are shown where the gate is on.
        let mut examples = examples(&t.paths.repo)?;
        examples.retain(|(_, object)| !GATED.contains(&object.text("/kind")));
        ensure!(examples.len() > 20, "only {} examples", examples.len());
        // A request needs a Pod that runs.
        let mut pods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (_, request) in examples.iter().filter(|(_, object)| object.text("/kind") == "ContainerRecreateRequest") {
            let containers = request.array("/spec/containers").iter().map(|container| container.text("/name"));
            pods.entry(request.text("/spec/podName")).or_default().extend(containers);
        }
        for (name, containers) in pods {
            // Pulled, so that it has a digest, as method PodSpec needs.
            let pulled = |name| json!({ "name": name, "image": remote("pause") });
            t.start(pod(name, containers.into_iter().map(pulled).collect())).await?;
        }
        let refused = refusals(t, examples);
        ensure!(refused.is_empty(), "{}", refused.join("\n"));
        Ok(())
    })
    .await
}
