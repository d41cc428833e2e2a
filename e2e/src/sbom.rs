//! What the executable is made of, as a CycloneDX 1.5 document: every crate that is compiled into it or expands macros
//! in it, with its licence, its checksum of Cargo.lock, and what it depends on.
//!
//! The same sources give the same bytes, so the document has neither a time nor a serial number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cmd::{CommandExt, cmd};
use crate::images::sha256;
use crate::paths::Paths;

/// Writes the document of an executable.
pub fn write(paths: &Paths, target: &str, executable: &Path, file: &Path) -> Result<()> {
    let mut document = document(paths, target)?;
    document["metadata"]["component"]["hashes"] = hashes(&sha256(executable)?);
    fs::write(file, serde_json::to_string_pretty(&document)? + "\n").with_context(|| file.display().to_string())
}

fn document(paths: &Paths, target: &str) -> Result<Value> {
    let metadata = cmd("cargo", ["metadata", "--format-version=1", "--locked", "--filter-platform", target])
        .current_dir(&paths.repo)
        .text()?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let checksums = checksums(&fs::read_to_string(paths.repo.join("Cargo.lock"))?);
    let by_id = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|entry| Some((entry["id"].as_str()?.to_owned(), entry.clone()))).collect()
    };
    let (packages, nodes) = (by_id(&metadata["packages"]), by_id(&metadata["resolve"]["nodes"]));
    let root = packages.iter().find(|(_, package)| package["name"] == "kruise-rs").context("no package kruise-rs")?;

    let (mut todo, mut seen) = (vec![root.0.clone()], BTreeSet::new());
    let (mut components, mut graph) = (Vec::new(), Vec::new());
    while let Some(id) = todo.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let package = packages.get(&id).with_context(|| format!("no package {id}"))?;
        // Without a kind it is a dependency of the executable; the others build or test it.
        let deps = nodes.get(&id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let deps =
            deps.filter(|dep| dep["dep_kinds"].as_array().is_some_and(|k| k.iter().any(|k| k["kind"].is_null())));
        let deps: Vec<String> = deps.filter_map(|dep| dep["pkg"].as_str().map(str::to_owned)).collect();
        let mut refs: Vec<String> = deps.iter().filter_map(|id| packages.get(id)).map(purl).collect();
        refs.sort();
        graph.push(json!({"ref": purl(package), "dependsOn": refs}));
        todo.extend(deps);
        if id != *root.0 {
            components.push(component("library", package, &checksums));
        }
    }
    let by = |field: &'static str| move |a: &Value, b: &Value| a[field].as_str().cmp(&b[field].as_str());
    components.sort_by(by("bom-ref"));
    graph.sort_by(by("ref"));
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("application", root.1, &checksums)},
        "components": components,
        "dependencies": graph,
    }))
}

fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default().replace('+', "%2B");
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(kind: &str, package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let mut component = json!({
        "type": kind, "bom-ref": purl(package), "name": text("name"), "version": text("version"), "purl": purl(package),
    });
    if let Some(license) = package["license"].as_str() {
        // The slash is how crates wrote OR before SPDX expressions.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(text("name"), text("version"))) {
        component["hashes"] = hashes(checksum);
    }
    if let Some(repository) = package["repository"].as_str() {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

fn hashes(sha256: &str) -> Value {
    json!([{"alg": "SHA-256", "content": sha256}])
}

/// By name and version. The file is written by cargo, one key per line.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'));
        line.map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    packages.filter_map(|p| Some(((value(p, "name")?, value(p, "version")?), value(p, "checksum")?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lists_what_is_in_the_executable_and_nothing_else() {
        let document = document(&Paths::default(), "x86_64-unknown-linux-gnu").unwrap();
        let components = document["components"].as_array().unwrap();
        let names: BTreeSet<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
        for (name, is_in) in
            [("kube", true), ("rustls", true), ("serde_derive", true), ("proptest", false), ("protox", false)]
        {
            assert_eq!(names.contains(name), is_in, "{name}");
        }
        for component in components {
            // Our own crate has none: it comes from these sources.
            let hash = (component["name"] != "kruise-rs-api").then_some(64);
            assert_eq!(component["hashes"][0]["content"].as_str().map(str::len), hash, "{component}");
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        }
        assert_eq!(document["metadata"]["component"]["name"], "kruise-rs");
        let graph = document["dependencies"].as_array().unwrap();
        let known: BTreeSet<&str> = graph.iter().filter_map(|entry| entry["ref"].as_str()).collect();
        assert_eq!(known.len(), components.len() + 1);
        for dep in graph.iter().flat_map(|entry| entry["dependsOn"].as_array().unwrap()) {
            assert!(known.contains(dep.as_str().unwrap()), "{dep}");
        }
    }
}
