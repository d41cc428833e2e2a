//! The examples of the user guide, shown to a real API server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::cmd::{CommandExt, kubectl};
use crate::kit::{Build, Look, Test};

/// Kinds whose definitions no test cluster has, or only while one test runs, and what only kubectl itself reads.
const OF_OTHERS: &str = include_str!("../../docs/kinds-of-others.txt");
/// Kinds that are refused until their feature gate is on.
pub const GATED: [&str; 1] = ["ResourceDistribution"];

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
///
/// # Errors
/// A page cannot be read, or a block of it is no YAML.
pub fn examples(root: &Path) -> Result<Vec<(String, Value)>> {
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

/// A SidecarSet is for the namespace of the test alone, beside what else it wants: two with a container of the same name may
/// not be for the same Pods, and tests that run beside have theirs.
pub fn only_here(t: &Test, object: Value) -> Value {
    if object.text("/kind") != "SidecarSet" {
        return object;
    }
    object.with("/spec/namespaceSelector/matchLabels/kubernetes.io~1metadata.name", t.namespace.as_str())
}

/// Creates examples in a dry run of the API server; returns what it says of those that it refuses.
pub fn refusals(t: &Test, examples: Vec<(String, Value)>) -> Vec<String> {
    let mut refused = Vec::new();
    for (page, mut object) in examples {
        // `-n` decides, for what has a namespace.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let object = only_here(t, object);
        let create = ["create", "--dry-run=server", "-o", "name", "-n", &t.namespace, "-f", "-"];
        if let Err(error) = kubectl(&t.paths, create).feed(&object.to_string()) {
            refused.push(format!("{page}: {} {}: {error:#}", object.text("/kind"), object["metadata"]));
        }
    }
    refused
}
