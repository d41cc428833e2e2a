//! Claims from the claim templates of a workload. How a claim is called, and who owns it, is for the kind to say.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The claim templates in a field of a spec.
pub fn templates(field: Option<&Value>) -> &[Value] {
    field.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The name of a claim template, which is that of the Pod's volume.
pub fn template_name(template: &Value) -> &str {
    template.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// A claim from a template, with everything that the template's spec says. `labels` are laid over those of the template;
/// `owners` are its owner references, if there are any.
pub fn claim(
    template: &Value,
    name: &str,
    namespace: &str,
    labels: impl IntoIterator<Item = (String, String)>,
    owners: Vec<Value>,
) -> Value {
    let part = |key: &str| {
        template.pointer(&format!("/metadata/{key}")).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let mut labels_of = part("labels");
    labels_of.extend(labels.into_iter().map(|(key, value)| (key, value.into())));
    let mut metadata = Map::new();
    metadata.insert("name".into(), name.into());
    metadata.insert("namespace".into(), namespace.into());
    metadata.insert("labels".into(), labels_of.into());
    if !owners.is_empty() {
        metadata.insert("ownerReferences".into(), owners.into());
    }
    let annotations = part("annotations");
    if !annotations.is_empty() {
        metadata.insert("annotations".into(), annotations.into());
    }
    let mut claim = template.as_object().cloned().unwrap_or_default();
    claim.remove("status");
    claim.insert("apiVersion".into(), "v1".into());
    claim.insert("kind".into(), "PersistentVolumeClaim".into());
    claim.insert("metadata".into(), metadata.into());
    claim.into()
}

/// Puts the volumes of claims into a Pod's spec, in front of the others: `claims` are the names of volume and claim. A
/// volume of the template with the name of a claim template gives way to it.
pub fn put_volumes(spec: &mut Map<String, Value>, claims: &[(String, String)]) {
    if claims.is_empty() {
        return;
    }
    let of_claim =
        |(volume, claim): &(String, String)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
    let mut volumes: Vec<Value> = claims.iter().map(of_claim).collect();
    let names: BTreeSet<&str> = claims.iter().map(|(volume, _)| volume.as_str()).collect();
    let others = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.extend(others.filter(|volume| !volume["name"].as_str().is_some_and(|name| names.contains(name))).cloned());
    spec.insert("volumes".into(), volumes.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_keeps_everything_of_its_template_but_the_status() {
        let template = json!({"metadata": {"name": "data", "labels": {"l": "1", "app": "x"}, "annotations": {"n": "2"}},
            "spec": {"newer": 1}, "status": {}});
        let labels = [("app".to_owned(), "web".to_owned())];
        let made = claim(&template, "data-web-0", "ns", labels, Vec::new());
        assert_eq!(
            made,
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"newer": 1},
                "metadata": {"name": "data-web-0", "namespace": "ns", "labels": {"l": "1", "app": "web"}, "annotations": {"n": "2"}}})
        );
        let owned = claim(&template, "data-web-0", "ns", [], vec![json!({"uid": "u"})]);
        assert_eq!(owned["metadata"]["ownerReferences"], json!([{"uid": "u"}]));
    }

    #[test]
    fn volumes_of_claims_stand_first_and_take_the_place_of_their_namesakes() {
        let mut spec = json!({"volumes": [{"name": "data", "emptyDir": {}}, {"name": "other", "emptyDir": {}}]});
        put_volumes(spec.as_object_mut().unwrap(), &[("data".into(), "data-web-0".into())]);
        assert_eq!(
            spec["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}, {"name": "other", "emptyDir": {}}])
        );
        let mut none = json!({});
        put_volumes(none.as_object_mut().unwrap(), &[]);
        assert_eq!(none, json!({}));
    }
}
