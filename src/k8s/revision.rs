//! Names and data of ControllerRevisions, byte for byte as OpenKruise writes them.

use serde_json::{Map, Value, json};

use super::{canonical_json, hash};

/// What is kept of a workload's name in the name of its revision.
const LONGEST_OWNER: usize = 223;

/// The data of a revision: the template alone, as a patch that replaces the one in the workload.
pub fn data(template: &Value) -> Value {
    let mut template = template.as_object().cloned().unwrap_or_else(Map::new);
    template.insert("$patch".into(), "replace".into());
    json!({"spec": {"template": template}})
}

/// The template that a revision's data holds.
pub fn template(data: &Value) -> Option<Value> {
    let mut template = data.pointer("/spec/template")?.as_object()?.clone();
    template.remove("$patch");
    Some(template.into())
}

/// The hash of a revision's data. A collision with other data is counted in the workload's status.
pub fn hash_of(data: &Value, collision_count: i32) -> String {
    let mut bytes = canonical_json::encode(data).into_bytes();
    bytes.extend_from_slice(collision_count.to_string().as_bytes());
    hash::safe_encode(hash::fnv1_32(bytes))
}

/// The body of the request that creates a ControllerRevision.
///
/// The API server stores `data` in the bytes that it is sent, and OpenKruise compares bytes: a `<` that Go would have
/// escaped would roll every Pod of the workload after a move back.
pub fn body(controller_revision: &Value) -> Vec<u8> {
    canonical_json::encode(controller_revision).into_bytes()
}

/// The name of a revision.
pub fn name(owner: &str, hash: &str) -> String {
    // Object names are ASCII, so this is no place inside a character.
    format!("{}-{hash}", owner.get(..LONGEST_OWNER).unwrap_or(owner))
}

/// The hash in a full revision name, or the text itself if it is only a hash.
pub fn short(revision: &str) -> &str {
    revision.rsplit_once('-').map_or(revision, |(_, hash)| hash)
}

/// Whether two revision labels mean the same: Pods that carry the full name and Pods that carry the hash alone coexist.
pub fn is_same(a: &str, b: &str) -> bool {
    a == b || short(a) == short(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from a cluster: owner's kind, owner, revision name, data.
    const RECORDED: &str = include_str!("testdata/revisions.tsv");

    fn recorded() -> impl Iterator<Item = (&'static str, &'static str, &'static str, &'static str)> {
        RECORDED.lines().map(|line| {
            let mut fields = line.splitn(4, '\t');
            let mut next = || fields.next().unwrap();
            (next(), next(), next(), next())
        })
    }

    #[test]
    fn recorded_data_is_written_back_byte_for_byte() {
        for (_, _, revision, bytes) in recorded() {
            let parsed: Value = serde_json::from_str(bytes).unwrap();
            assert_eq!(canonical_json::encode(&parsed), bytes, "{revision}");
            assert_eq!(data(&template(&parsed).unwrap()), parsed, "{revision}");
        }
    }

    #[test]
    fn recorded_clone_set_revisions_have_the_names_we_compute() {
        let mut checked = 0;
        for (kind, owner, revision, bytes) in recorded().filter(|(kind, ..)| ["CloneSet", "StatefulSet"].contains(kind))
        {
            let parsed: Value = serde_json::from_str(bytes).unwrap();
            assert_eq!(name(owner, &hash_of(&parsed, 0)), revision, "{kind}");
            checked += 1;
        }
        assert_eq!(checked, 14);
    }

    /// Decision 34.
    #[test]
    fn recorded_revisions_are_reproduced_byte_for_byte() {
        let mut escaped = 0;
        for (kind, _, revision, bytes) in recorded() {
            let parsed: Value = serde_json::from_str(bytes).unwrap();
            let object = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
                "metadata": {"name": revision}, "data": data(&template(&parsed).unwrap())});
            let body = String::from_utf8(body(&object)).unwrap();
            let (_, data) = body.split_once("\"data\":").unwrap();
            let (data, _) = data.split_once(",\"kind\":").unwrap();
            assert_eq!(data, bytes, "{kind} {revision}");
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), object);
            escaped += usize::from(bytes.contains("\\u0026") || bytes.contains("\\u003c"));
        }
        assert!(escaped >= 4, "{escaped} recorded revisions have characters that Go escapes");
    }

    #[test]
    fn all_that_go_escapes_is_escaped_in_a_body() {
        let body = body(&json!({"data": data(&json!({"x": "<>&\u{2028}\u{2029}"}))}));
        let text = String::from_utf8(body).unwrap();
        assert!(text.contains(r#""x":"\u003c\u003e\u0026\u2028\u2029""#), "{text}");
    }

    #[test]
    fn a_collision_gives_another_name() {
        let template = json!({"metadata": {"creationTimestamp": null, "labels": {"app": "demo"}},
            "spec": {"containers": [{"image": "nginx:1.18", "name": "main", "resources": {}}]}});
        assert_eq!(hash_of(&data(&template), 0), "56d8c567b5");
        assert_eq!(hash_of(&data(&template), 1), "56d8c567b4");
    }

    #[test]
    fn case_36_full_and_short_labels_mean_the_same() {
        assert!(is_same("web-56d8c567b5", "56d8c567b5"));
        assert!(is_same("56d8c567b5", "web-56d8c567b5"));
        assert!(!is_same("web-56d8c567b5", "web-56d8c567b4"));
        assert!(is_same("", "") && !is_same("", "x"));
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(name(&"x".repeat(253), "4").len(), 225);
    }
}
