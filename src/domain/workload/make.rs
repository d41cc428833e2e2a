//! Pods and ControllerRevisions of a workload, as raw JSON: fields newer than this release survive.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::{Map, Value, json};

use super::{claims, owner::OwnerRef};
use crate::{
    api::labels,
    k8s::{
        name::{LONGEST_LABEL, cut},
        pod::Labels,
        revision,
        selector::Selector,
    },
};

/// The readiness gates of Pods that are updated in place and taken out of service by their controller.
pub const READINESS_GATES: [&str; 2] = [labels::CONDITION_INPLACE_UPDATE_READY, labels::CONDITION_KRUISE_POD_READY];

/// Why a template is refused whose labels the selector does not match, if it does not: each Pod would be let go of as soon as it is
/// made or updated, and another one made in its place, without end. An empty selector lets no Pod go.
pub fn not_selected(selector: &LabelSelector, template: &Value) -> Option<String> {
    let wanted = Selector::of(selector).ok()?;
    let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
    let labels: Labels = serde_json::from_value(labels).unwrap_or_default();
    if wanted.matches(&labels) {
        return None;
    }
    let keys = wanted.keys();
    let looked_at = labels.iter().filter(|(key, _)| keys.contains(key));
    let shown: Vec<String> = looked_at.map(|(key, value)| format!("{key}={value}")).collect();
    let shown = shown.join(",");
    Some(format!(
        "spec.template.metadata.labels: {shown:?} is not matched by spec.selector; want labels that it matches"
    ))
}

/// What a Pod has besides its template.
pub struct PodParts<'a> {
    /// Its owner, which controls it.
    pub owner: &'a OwnerRef,
    /// Its name.
    pub name: String,
    /// `metadata.generateName`.
    pub generate_name: String,
    /// Laid over the labels of the template.
    pub labels: Vec<(&'a str, String)>,
    /// Laid over the annotations of the template.
    pub annotations: Vec<(&'a str, String)>,
    /// Readiness gates that it gets if the template has none of their name.
    pub readiness_gates: &'a [&'a str],
    /// Its claims: names of volume and claim.
    pub claims: Vec<(String, String)>,
}

/// A Pod. Everything that its template says is kept.
pub fn pod(template: &Value, parts: PodParts<'_>) -> Value {
    let PodParts { owner, name, generate_name, labels, annotations, readiness_gates, claims } = parts;
    let part = |key: &str| template.pointer(&format!("/metadata/{key}")).filter(|v| !v.is_null()).cloned();
    let map = |key: &str| part(key).and_then(|v| v.as_object().cloned()).unwrap_or_default();
    let over = |key: &str, more: Vec<(&str, String)>| {
        let mut all = map(key);
        all.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value.into())));
        all
    };
    let mut metadata = json!({
        "name": name, "generateName": generate_name, "namespace": owner.namespace,
        "labels": over("labels", labels), "ownerReferences": [owner.controller()],
    });
    let annotations = over("annotations", annotations);
    if !annotations.is_empty() {
        metadata["annotations"] = annotations.into();
    }
    if let Some(finalizers) = part("finalizers") {
        metadata["finalizers"] = finalizers;
    }
    let mut spec = template.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    put_readiness_gates(&mut spec, readiness_gates);
    claims::put_volumes(&mut spec, &claims);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// What the names of Pods begin with that end with a hash of at most so many characters. A workload may have a longer name than
/// a Pod, whose name is to be a host name.
pub fn name_prefix(workload: &str, longest_hash: usize) -> String {
    format!("{}-", cut(workload, LONGEST_LABEL - longest_hash - 1))
}

fn put_readiness_gates(spec: &mut Map<String, Value>, wanted: &[&str]) {
    if wanted.is_empty() {
        return;
    }
    let gates = spec.entry("readinessGates").or_insert_with(|| json!([]));
    let Some(gates) = gates.as_array_mut() else { return };
    for gate in wanted {
        if !gates.iter().any(|there| there["conditionType"] == *gate) {
            gates.push(json!({"conditionType": gate}));
        }
    }
}

/// Makes the scheduler bind a Pod to one node and no other. What the template requires of nodes has been judged; its
/// preferences stay.
pub fn aim_at_node(pod: &mut Value, node: &str) {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    // A null would not take a member.
    for part in ["/spec/affinity", "/spec/affinity/nodeAffinity"] {
        if let Some(part) = pod.pointer_mut(part).filter(|part| part.is_null()) {
            *part = json!({});
        }
    }
    // One that is no object has no place for it; the API server refuses the Pod and says why.
    let is_object = |part: &str| pod.pointer(part).is_none_or(Value::is_object);
    if is_object("/spec/affinity") && is_object("/spec/affinity/nodeAffinity") {
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": [term]});
    }
}

/// A ControllerRevision with `data`. `hash_label` is the label that holds the hash; `annotations` are those that it gets.
pub fn controller_revision(
    owner: &OwnerRef,
    labels: &Map<String, Value>,
    annotations: &Map<String, Value>,
    (hash_label, hash): (&str, &str),
    data: &Value,
    number: i64,
) -> Value {
    let mut labels_of = labels.clone();
    labels_of.insert(hash_label.into(), hash.into());
    let mut metadata = json!({"name": revision::name(&owner.name, hash), "namespace": owner.namespace,
        "labels": labels_of, "ownerReferences": [owner.controller()]});
    if !annotations.is_empty() {
        metadata["annotations"] = annotations.clone().into();
    }
    json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": number})
}

/// The labels that a revision gets besides its hash: those of the template.
pub fn revision_labels(template: &Value) -> Map<String, Value> {
    template.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The annotations that a revision gets when it is made: those of its owner.
pub fn revision_annotations(owner: &ObjectMeta) -> Map<String, Value> {
    let own = owner.annotations.iter().flatten();
    own.map(|(key, value)| (key.clone(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerRef {
        OwnerRef {
            api_version: "apps.kruise.io/v1beta1".into(),
            kind: "StatefulSet".into(),
            namespace: "ns".into(),
            name: "db".into(),
            uid: "u".into(),
            ..OwnerRef::default()
        }
    }
    fn parts(owner: &OwnerRef) -> PodParts<'_> {
        PodParts {
            owner,
            name: "db-0".into(),
            generate_name: "db".into(),
            labels: vec![("x", "over".into())],
            annotations: Vec::new(),
            readiness_gates: &[],
            claims: Vec::new(),
        }
    }

    #[test]
    fn a_pod_keeps_everything_of_its_template() {
        let template = json!({"metadata": {"creationTimestamp": null, "labels": {"app": "db", "x": "y"}, "finalizers": ["f"]},
            "spec": {"containers": [{"name": "main", "newField": {"deep": [1]}}], "newer": true}});
        let made = pod(&template, parts(&owner()));
        assert_eq!(
            made["metadata"],
            json!({"name": "db-0", "generateName": "db", "namespace": "ns", "labels": {"app": "db", "x": "over"},
                "finalizers": ["f"], "ownerReferences": [owner().controller()]})
        );
        assert_eq!(made["spec"], template["spec"]);
    }

    #[test]
    fn gates_are_added_once() {
        let owner = owner();
        let template = json!({"spec": {"readinessGates": [{"conditionType": "KruisePodReady"}]}});
        let made = pod(&template, PodParts { readiness_gates: &READINESS_GATES, ..parts(&owner) });
        assert_eq!(
            made["spec"]["readinessGates"],
            json!([{"conditionType": "KruisePodReady"}, {"conditionType": "InPlaceUpdateReady"}])
        );
    }

    #[test]
    fn a_revision_carries_labels_of_the_template_and_annotations_of_its_owner() {
        assert_eq!(json!(revision_labels(&json!({"metadata": {"labels": {"app": "db"}}}))), json!({"app": "db"}));
        assert!(revision_labels(&json!({})).is_empty() && revision_annotations(&ObjectMeta::default()).is_empty());
        let annotations = Some([("a".to_owned(), "b".to_owned())].into());
        let owner = ObjectMeta { annotations, ..ObjectMeta::default() };
        assert_eq!(json!(revision_annotations(&owner)), json!({"a": "b"}));
    }

    #[test]
    fn a_revision_is_named_after_its_owner_and_its_hash() {
        let labels = json!({"app": "db"}).as_object().cloned().unwrap();
        let made = controller_revision(&owner(), &labels, &Map::new(), ("hash", "12"), &json!({"spec": 1}), 3);
        assert_eq!(
            made,
            json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "data": {"spec": 1}, "revision": 3,
                "metadata": {"name": "db-12", "namespace": "ns", "labels": {"app": "db", "hash": "12"},
                    "ownerReferences": [owner().controller()]}})
        );
    }
}
