//! Controllers read the normalised spec of their kind: what a stored field means is said once, in its `spec.rs`.

use std::{collections::BTreeSet, path::Path};

use regex::Regex;

use super::{assert_none, files_below, product};

/// Which fields of a stored spec a controller reads all the same, and what only looks like one.
const ALLOWED: &[(&str, &str)] = &[
    // The API server is asked for the defaults of a template before the normalised spec is made from an object with them.
    ("clone_set/mod.rs", "clone_set.spec.template"),
    ("clone_set/mod.rs", "whole.spec.template"),
    ("stateful_set/mod.rs", "set.spec.template"),
    ("stateful_set/mod.rs", "whole.spec.template"),
    // Of a compact Pod.
    ("sidecar_set/observe.rs", "pod.spec.sidecars"),
];

/// The fields of stored specs that a file in the folder of a controller reads, each with what holds the spec.
fn stored_fields(folder: &str, code: &str) -> BTreeSet<String> {
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let pattern = Regex::new(r"(\w+|[)?\]])\s*\.spec\s*(\.\s*[a-z_]+|;)\s*(\(?)").unwrap();
    // What a pass works on has a normalised spec. A job in the controller of jobs is the stored object.
    let is_normalised =
        |holder: &str| matches!(holder, "self" | "work") || (holder == "job" && !folder.ends_with("_job"));
    let text = code.join("\n");
    let reads = pattern.captures_iter(&text).filter(|read| read[3].is_empty() && !is_normalised(&read[1]));
    reads.map(|read| format!("{}.spec{}", &read[1], read[2].replace(char::is_whitespace, ""))).collect()
}

#[test]
fn controllers_read_normalised_specs() {
    let kinds = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/domain/kinds");
    let mut problems = BTreeSet::new();
    let mut read = 0;
    for (path, text) in files_below("src/controllers") {
        let Some((folder, file)) = path.split_once('/') else { continue };
        let kind = folder.strip_prefix("advanced_").unwrap_or(folder);
        if file.starts_with("tests") || !kinds.join(kind).join("spec.rs").is_file() {
            continue;
        }
        read += 1;
        let fields = stored_fields(folder, &product(&text)).into_iter();
        let others = fields.filter(|field| !ALLOWED.contains(&(path.as_str(), field.as_str())));
        problems.extend(others.map(|field| format!("src/controllers/{path}: {field}")));
    }
    assert!(read > 40, "{read} files");
    assert_none(
        problems,
        "Read the `Spec` of the kind, or give it a function of the stored object like `Spec::hooks_of`.",
    );
}

#[test]
fn fields_of_stored_specs_are_found() {
    for (folder, code, want) in [
        ("clone_set", "f(set.spec.replicas, &set.spec, set.spec.clone());", vec!["set.spec.replicas"]),
        ("clone_set", "let a = set.status; let spec = &set.spec;", vec!["set.spec;"]),
        ("clone_set", "set\n    .spec\n    .template", vec!["set.spec.template"]),
        ("clone_set", "sets.get(key)?.spec.paused", vec!["?.spec.paused"]),
        ("clone_set", "sets.get(key).spec.paused", vec![").spec.paused"]),
        ("clone_set", "job.spec.replicas; self.spec.kind\n// set.spec.x", vec![]),
        ("broadcast_job", "work.spec.replicas; job.spec.replicas", vec!["job.spec.replicas"]),
    ] {
        assert_eq!(Vec::from_iter(stored_fields(folder, code)), want, "{code}");
    }
}
