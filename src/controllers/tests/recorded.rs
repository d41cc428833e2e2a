//! What `kubectl delete --cascade=orphan` leaves of built-in sets: the files of `controllers/testdata/apps-v1`. Its README
//! says how to record one; every file that is there is tested.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A built-in set, and what belonged to it.
pub(in crate::controllers) struct Left {
    /// The name of the file, for messages.
    pub(in crate::controllers) file: String,
    /// The set as the API server stored it.
    pub(in crate::controllers) set: Value,
    pub(in crate::controllers) revisions: Vec<Value>,
    pub(in crate::controllers) pods: Vec<Value>,
    pub(in crate::controllers) claims: Vec<Value>,
}

/// All that was recorded of a kind. Every object is in namespace `ns`, and nobody owns it.
pub(in crate::controllers) fn left_by(kind: &str) -> Vec<Left> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controllers/testdata/apps-v1");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let begins = format!("{}-", kind.to_lowercase());
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        name.starts_with(&begins) && name.ends_with(".json")
    };
    let mut files: Vec<PathBuf> = files.filter(is_meant).collect();
    files.sort();
    let all: Vec<Left> = files.iter().map(|path| read(path, kind)).collect();
    for version in ["1.30", "1.34"] {
        let count = all.iter().filter(|left| left.file.contains(version)).count();
        assert!(count > 0, "{} has no {kind} of Kubernetes {version}", folder.display());
    }
    all
}

fn read(path: &Path, kind: &str) -> Left {
    let file = path.file_name().unwrap().to_str().unwrap().to_owned();
    let list: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut left = Left { file, set: Value::Null, revisions: Vec::new(), pods: Vec::new(), claims: Vec::new() };
    for object in list["items"].as_array().unwrap() {
        let mut object = object.clone();
        object["metadata"]["namespace"] = "ns".into();
        object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        match object["kind"].as_str().unwrap() {
            "ControllerRevision" => left.revisions.push(object),
            "Pod" => left.pods.push(object),
            "PersistentVolumeClaim" => left.claims.push(object),
            set if set == kind => left.set = object,
            other => panic!("{}: what is a {other} doing there?", left.file),
        }
    }
    let (spec, pods) = (&left.set["spec"], left.pods.len());
    assert!(spec.is_object() && pods > 0 && !left.revisions.is_empty(), "{}: something is missing", left.file);
    left
}

/// The names of objects, sorted.
pub(in crate::controllers) fn names(objects: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}
