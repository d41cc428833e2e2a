//! The user guide's examples, shown to the real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, kubectl};
use e2e::images::remote;
use e2e::kit::{Look, in_namespace, pod};
use serde::Deserialize;
use serde_json::{Value, json};

/// Kinds whose definitions this cluster does not have, and what only kubectl itself reads.
const OF_OTHERS: &str = include_str!("../../../docs/kinds-of-others.txt");

fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whole objects in fenced YAML blocks, each with its page.
fn examples(root: &Path) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    let mut all = pages(&root.join("docs"))?;
    all.push(root.join("README.md"));
    for page in all {
        let text = std::fs::read_to_string(&page)?;
        let blocks = text.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        for document in blocks.flat_map(serde_yaml::Deserializer::from_str) {
            let object = Value::deserialize(document).with_context(|| page.display().to_string())?;
            if object.has("/apiVersion") && !OF_OTHERS.lines().any(|kind| kind == object.text("/kind")) {
                found.push((page.strip_prefix(root)?.display().to_string(), object));
            }
        }
    }
    Ok(found)
}

#[tokio::test]
async fn every_example_of_the_guide_is_accepted() -> Result<()> {
    in_namespace("guide", async |t| {
        let examples = examples(&t.paths.repo)?;
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
        let mut refused = Vec::new();
        for (page, mut object) in examples {
            // `-n` decides, for what has a namespace.
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("namespace");
            }
            let create = ["create", "--dry-run=server", "-o", "name", "-n", &t.namespace, "-f", "-"];
            if let Err(error) = kubectl(&t.paths, create).feed(&object.to_string()) {
                refused.push(format!("{page}: {} {}: {error:#}", object.text("/kind"), object["metadata"]));
            }
        }
        ensure!(refused.is_empty(), "{}", refused.join("\n"));
        Ok(())
    })
    .await
}
