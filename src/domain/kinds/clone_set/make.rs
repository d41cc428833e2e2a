//! The objects that a CloneSet makes: Pods, claims, revisions. Raw JSON, so that fields newer than ours survive.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::spec::Spec;
use crate::{
    api::{apps::clone_set::CloneSet, labels},
    domain::workload::{
        claims,
        make::{self, PodParts},
        owner::OwnerRef,
    },
    k8s::{
        canonical_json, hash, revision,
        time::{Now, rfc3339},
    },
};

/// Letters of instance ids: no vowels, nothing that looks like something else.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const ID_LENGTH: usize = 5;

/// Instance ids for `count` new Pods: first `reusable` ones, whose claims wait for a Pod, then random ones that are not
/// in `taken`. `random` gives any number.
///
/// # Errors
/// That of `random`.
pub fn instance_ids<E>(
    count: usize,
    reusable: &BTreeSet<&str>,
    taken: &BTreeSet<&str>,
    mut random: impl FnMut() -> Result<u32, E>,
) -> Result<Vec<String>, E> {
    let mut ids: Vec<String> = reusable.difference(taken).take(count).map(|id| (*id).to_owned()).collect();
    let mut used: BTreeSet<String> = ids.iter().cloned().collect();
    while ids.len() < count {
        let mut letter = |_| random().map(|number| char::from(LETTERS[number as usize % LETTERS.len()]));
        let id: String = (0..ID_LENGTH).map(&mut letter).collect::<Result<_, E>>()?;
        if !taken.contains(id.as_str()) && !reusable.contains(id.as_str()) && used.insert(id.clone()) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// A CloneSet as the owner of what it makes.
pub fn owner(clone_set: &CloneSet) -> OwnerRef {
    OwnerRef::of(clone_set)
}

/// The name of the Pod of an instance.
pub fn pod_name(clone_set: &str, id: &str) -> String {
    format!("{clone_set}-{id}")
}

/// The label `controller-revision-hash` of Pods: the full name, or the hash alone where the gate CloneSetShortHash is on
/// or the name is too long for a label.
pub fn revision_label(revision_name: &str, short: bool) -> &str {
    if short || revision_name.len() > 63 { revision::short(revision_name) } else { revision_name }
}

/// A Pod on a revision, given by its template and its name.
pub fn pod(
    owner: &OwnerRef,
    spec: &Spec,
    (template, revision_name): (&Value, &str),
    id: &str,
    short: bool,
    now: Now,
) -> Value {
    let name = &owner.name;
    let labels = vec![
        (labels::CONTROLLER_REVISION_HASH, revision_label(revision_name, short).to_owned()),
        (labels::POD_TEMPLATE_HASH, revision::short(revision_name).to_owned()),
        (labels::INSTANCE_ID, id.to_owned()),
        (labels::LIFECYCLE_STATE, "PreparingNormal".to_owned()),
    ];
    let claim = |template: &Value| {
        let template = claims::template_name(template);
        (template.to_owned(), claim_name(template, name, id))
    };
    let parts = PodParts {
        owner,
        name: pod_name(name, id),
        generate_name: format!("{name}-"),
        labels,
        annotations: vec![(labels::LIFECYCLE_TIMESTAMP, rfc3339(now.wall))],
        readiness_gates: &make::READINESS_GATES,
        claims: spec.claim_templates.iter().map(claim).collect(),
    };
    make::pod(template, parts)
}

pub(super) fn claim_name(template: &str, clone_set: &str, id: &str) -> String {
    format!("{template}-{clone_set}-{id}")
}

/// The claims of an instance, always by the templates of today.
pub fn claims(owner: &OwnerRef, spec: &Spec, id: &str) -> Vec<Value> {
    let selected = spec.selector.match_labels.iter().flatten();
    let mut labels_of: BTreeMap<String, String> = selected.map(|(key, value)| (key.clone(), value.clone())).collect();
    labels_of.insert(labels::INSTANCE_ID.into(), id.into());
    let claim = |template: &Value| {
        let name = claim_name(claims::template_name(template), &owner.name, id);
        claims::claim(template, &name, &owner.namespace, labels_of.clone(), vec![owner.controller()])
    };
    spec.claim_templates.iter().map(claim).collect()
}

/// Members of a claim's spec in the order of the Go struct, which the recorded hashes rest on. The others keep the order
/// of the alphabet, which is theirs in Go too, but for the selector.
const CLAIM_SPEC: [&str; 5] = ["accessModes", "selector", "resources", "volumeName", "storageClassName"];
const CLAIM_SPEC_LAST: &str = "volumeMode";

fn in_order(object: &Value, first: &[&str]) -> String {
    let Some(map) = object.as_object() else { return canonical_json::encode(object) };
    let rank =
        |key: &str| first.iter().position(|k| *k == key).unwrap_or(first.len() + usize::from(key != CLAIM_SPEC_LAST));
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_by_key(|key| (rank(key), key.as_str()));
    let members = keys.into_iter().map(|key| {
        let value = match key.as_str() {
            "selector" => in_order(&map[key], &["matchLabels"]),
            _ => canonical_json::encode(&map[key]),
        };
        format!("{}:{value}", canonical_json::encode(&json!(key)))
    });
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// The hash of the claim templates, which a revision carries in an annotation; empty without claims.
pub fn claims_hash(spec: &Spec) -> String {
    let mut templates: Vec<(&str, &Value)> = spec
        .claim_templates
        .iter()
        .map(|t| (t.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default(), t))
        .collect();
    if templates.is_empty() {
        return String::new();
    }
    templates.sort_by_key(|(name, _)| *name);
    let each: Vec<String> = templates
        .iter()
        .map(|(name, template)| {
            let spec = in_order(template.get("spec").unwrap_or(&Value::Null), &CLAIM_SPEC);
            let name = canonical_json::encode(&json!(name));
            format!(r#"{{"metadata":{{"name":{name},"creationTimestamp":null}},"spec":{spec},"status":{{}}}}"#)
        })
        .collect();
    hash::deep_hash(format!("[{}]", each.join(",")).as_bytes()).to_string()
}

/// The annotations that the newest revision always has.
pub fn newest_annotations(spec: &Spec) -> Map<String, Value> {
    Map::from_iter([(labels::CLAIM_TEMPLATES_HASH.to_owned(), claims_hash(spec).into())])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> Now {
        Now { wall: "2026-01-01T01:00:00Z".parse().unwrap(), mono: Duration::from_secs(9) }
    }
    fn clone_set(claims: Value) -> CloneSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": {"a": "b"}},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "volumeClaimTemplates": claims, "template": template()},
        }))
        .unwrap()
    }
    fn template() -> Value {
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}, "annotations": {"x": "y"}, "finalizers": ["example.com/f"]},
            "spec": {"containers": [{"name": "main", "image": "i", "newField": {"deep": [1]}}], "newer": true,
                "volumes": [{"name": "data", "emptyDir": {}}, {"name": "other", "emptyDir": {}}]}})
    }

    fn pod_of(set: &CloneSet, short: bool) -> Value {
        pod(&owner(set), &Spec::of(set), (&template(), "web-12"), "abcde", short, now())
    }

    #[test]
    fn ids_are_reused_then_random_and_never_taken() {
        let mut n = 0;
        let mut random = || {
            n += 1;
            // The first two ids come out equal.
            Ok::<_, ()>(if n <= 10 { 0 } else { n })
        };
        let ids =
            instance_ids(3, &BTreeSet::from(["r2222", "r4444"]), &BTreeSet::from(["r4444", "xxxxx"]), &mut random)
                .unwrap();
        assert_eq!((ids[0].as_str(), ids[1].as_str()), ("r2222", "bbbbb"));
        assert_ne!(ids[2], "bbbbb");
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| id.len() == 5));
        assert_eq!(instance_ids(1, &BTreeSet::new(), &BTreeSet::new(), || Err("none")), Err("none"));
    }

    #[test]
    fn a_pod_keeps_everything_of_its_template() {
        let made = pod_of(&clone_set(json!([])), false);
        assert_eq!(made["metadata"]["name"], "web-abcde");
        assert_eq!(
            made["metadata"]["labels"],
            json!({"app": "web", "apps.kruise.io/cloneset-instance-id": "abcde", "controller-revision-hash": "web-12",
                "lifecycle.apps.kruise.io/state": "PreparingNormal", "pod-template-hash": "12"})
        );
        assert_eq!(made["metadata"]["finalizers"], json!(["example.com/f"]));
        assert_eq!(made["metadata"]["annotations"]["x"], "y");
        assert_eq!(made["spec"]["newer"], true);
        assert_eq!(made["spec"]["containers"], template()["spec"]["containers"]);
        assert_eq!(
            made["spec"]["readinessGates"],
            json!([{"conditionType": "InPlaceUpdateReady"}, {"conditionType": "KruisePodReady"}])
        );
        assert_eq!(made["spec"]["volumes"].as_array().unwrap().len(), 2);
        let short = pod_of(&clone_set(json!([])), true);
        assert_eq!(short["metadata"]["labels"]["controller-revision-hash"], "12");
    }

    #[test]
    fn decision_25_a_long_name_never_becomes_a_label_value() {
        assert_eq!(revision_label(&format!("{}-5cd64f4889", "w".repeat(60)), false), "5cd64f4889");
    }

    #[test]
    fn claims_take_the_place_of_volumes_of_their_name() {
        let set = clone_set(json!([{"metadata": {"name": "data", "labels": {"l": "1"}, "annotations": {"n": "2"}},
            "spec": {"newer": 1}}]));
        let made = pod_of(&set, false);
        assert_eq!(
            made["spec"]["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-abcde"}}, {"name": "other", "emptyDir": {}}])
        );
        let claims = super::claims(&owner(&set), &Spec::of(&set), "abcde");
        assert_eq!(claims.len(), 1);
        assert_eq!(
            (&claims[0]["metadata"]["name"], &claims[0]["spec"]),
            (&json!("data-web-abcde"), &json!({"newer": 1}))
        );
        assert_eq!(
            claims[0]["metadata"]["labels"],
            json!({"l": "1", "app": "web", "apps.kruise.io/cloneset-instance-id": "abcde"})
        );
        assert_eq!(claims[0]["metadata"]["annotations"], json!({"n": "2"}));
    }

    #[test]
    fn the_recorded_hash_of_claim_templates_is_the_one_we_compute() {
        let set = clone_set(json!([{"metadata": {"name": "data", "creationTimestamp": null},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"},
            "status": {}}]));
        assert_eq!(claims_hash(&Spec::of(&set)), "1793648801");
        assert_eq!(claims_hash(&Spec::of(&clone_set(json!([])))), "");
        let spec = json!({"dataSource": 1, "volumeMode": 2, "storageClassName": 3, "selector": {"matchExpressions": 4, "matchLabels": 5}, "accessModes": 6});
        assert_eq!(
            in_order(&spec, &CLAIM_SPEC),
            r#"{"accessModes":6,"selector":{"matchLabels":5,"matchExpressions":4},"storageClassName":3,"volumeMode":2,"dataSource":1}"#
        );
    }

    #[test]
    fn a_revision_carries_labels_annotations_and_the_hash_of_the_claims() {
        let set = clone_set(json!([]));
        assert_eq!(json!(make::revision_labels(&Spec::of(&set).template)), json!({"app": "web"}));
        assert_eq!(json!(make::revision_annotations(&set.metadata)), json!({"a": "b"}));
        let newest = json!({"kruise.io/cloneset-volumeclaimtemplate-hash": ""});
        assert_eq!(json!(newest_annotations(&Spec::of(&set))), newest);
        assert_eq!(owner(&set).controller()["blockOwnerDeletion"], true);
    }
}
