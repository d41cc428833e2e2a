//! The objects that a StatefulSet makes: Pods, claims, revisions. Raw JSON, so that fields newer than ours survive.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{claim_template::ClaimTemplate, claims, numbering, spec::Spec};
use crate::{
    api::labels,
    domain::{
        pod::lifecycle::first_state,
        workload::{
            self,
            make::{self, PodParts},
            owner::OwnerRef,
        },
    },
    k8s::{
        name::LONGEST_LABEL,
        revision,
        time::{Now, rfc3339},
    },
};

/// The label `controller-revision-hash` of Pods: the full name, or the hash alone where that is too long for a label.
pub fn revision_label(name: &str) -> &str {
    if name.len() > LONGEST_LABEL { revision::short(name) } else { name }
}

/// The Pod of an ordinal.
pub fn pod(
    owner: &OwnerRef,
    spec: &Spec,
    (template, revision): (&Value, &str),
    ordinal: i32,
    has_index: bool,
    now: Now,
) -> Value {
    let name = numbering::pod_name(&spec.name, ordinal);
    let template = &*spec.overrides.laid_over(template, ordinal);
    let state = first_state(&spec.lifecycle, template);
    let mut labels = vec![
        (labels::POD_NAME, name.clone()),
        (labels::CONTROLLER_REVISION_HASH, revision_label(revision).to_owned()),
        (labels::LIFECYCLE_STATE, state.as_str().to_owned()),
    ];
    if has_index {
        labels.push((labels::POD_INDEX, ordinal.to_string()));
    }
    let claim = |template: &ClaimTemplate| (template.name.clone(), template.claim_name(&spec.name, ordinal));
    let mut pod = make::pod(
        template,
        PodParts {
            owner,
            name: name.clone(),
            generate_name: format!("{}-", spec.name),
            labels,
            annotations: vec![(labels::LIFECYCLE_TIMESTAMP, rfc3339(now.wall))],
            // InPlaceUpdateReady stands in the template where it is wanted.
            readiness_gates: &[labels::CONDITION_KRUISE_POD_READY],
            claims: spec.claims.iter().map(claim).collect(),
        },
    );
    pod["spec"]["hostname"] = name.into();
    if !spec.service_name.is_empty() {
        pod["spec"]["subdomain"] = spec.service_name.clone().into();
    }
    pod
}

/// The claim of an ordinal, from the template at a place.
pub fn claim(owner: &OwnerRef, spec: &Spec, place: usize, ordinal: i32) -> Option<Value> {
    let template = spec.claims.get(place)?;
    let selected: BTreeMap<String, String> = spec.selector.match_labels.clone().unwrap_or_default();
    let owners = claims::owners_of_new(spec).into_iter().map(|owner| json!(owner)).collect();
    let name = template.claim_name(&spec.name, ordinal);
    Some(workload::claims::claim(&template.raw, &name, &owner.namespace, selected, owners))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::fixtures::{NEW, at, spec},
        *,
    };
    use crate::domain::workload::overrides::Overrides;

    fn owner() -> OwnerRef {
        OwnerRef {
            api_version: "apps.kruise.io/v1beta1".into(),
            kind: "StatefulSet".into(),
            namespace: "ns".into(),
            name: "web".into(),
            uid: "set".into(),
            ..OwnerRef::default()
        }
    }

    #[test]
    fn edge_24_a_pod_has_the_name_the_index_and_the_claims_of_its_ordinal() {
        let mut spec = spec(json!({"start": 7, "claims": [{"metadata": {"name": "data"}, "spec": {}}]}));
        spec.service_name = "db".into();
        let template = json!({"metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
            "spec": {"containers": [{"name": "main"}], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp"}], "newer": 1}});
        let pod = super::pod(&owner(), &spec, (&template, NEW), 7, true, at(0));
        assert_eq!(
            pod["metadata"]["labels"],
            json!({"app": "web", "statefulset.kubernetes.io/pod-name": "web-7", "apps.kubernetes.io/pod-index": "7",
                "controller-revision-hash": NEW, "lifecycle.apps.kruise.io/state": "Normal"})
        );
        assert_eq!((&pod["metadata"]["name"], &pod["metadata"]["generateName"]), (&json!("web-7"), &json!("web-")));
        assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("web-7"), &json!("db")));
        assert_eq!(pod["spec"]["readinessGates"], json!([{"conditionType": "KruisePodReady"}]));
        assert_eq!(
            pod["spec"]["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-7"}}, {"name": "tmp"}])
        );
        assert_eq!(pod["spec"]["newer"], 1);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
    }

    #[test]
    fn a_pod_has_the_override_of_its_ordinal_and_the_revision_of_its_template() {
        let overrides =
            r#"[{"ordinals": "3-4", "containers": {"main": {"image": "i:9"}}, "nodeSelector": {"disk": "fast"}}]"#;
        let spec = Spec { overrides: Overrides::parse(overrides).unwrap(), ..spec(json!({})) };
        let template = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}});
        let made = |ordinal| super::pod(&owner(), &spec, (&template, NEW), ordinal, false, at(0));
        let pod = made(3);
        assert_eq!(pod["spec"]["containers"][0]["image"], "i:9");
        assert_eq!(pod["spec"]["nodeSelector"], json!({"disk": "fast"}));
        assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], NEW);
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(
            (&annotations["a"], &annotations["kruise.rs/ordinal-override-hash"]),
            (&json!("b"), &json!(spec.overrides.hash(3)))
        );
        assert_eq!(made(2)["spec"]["containers"], template["spec"]["containers"]);
        assert_eq!(made(2)["metadata"]["annotations"].get("kruise.rs/ordinal-override-hash"), None);
    }

    #[test]
    fn a_pod_that_its_hook_has_to_admit_begins_in_preparation() {
        let hook = json!({"lifecycle": {"preNormal": {"labelsHandler": {"in": "yes"}}}});
        for (labels, state) in [(json!({}), "PreparingNormal"), (json!({"in": "yes"}), "Normal")] {
            let template = json!({"metadata": {"labels": labels}, "spec": {}});
            let pod = super::pod(&owner(), &spec(hook.clone()), (&template, NEW), 0, false, at(0));
            assert_eq!(pod["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], state);
        }
    }

    #[test]
    fn edge_20_labels_of_a_claim_template_survive_under_those_of_the_selector() {
        let claims = json!([{"metadata": {"name": "data", "labels": {"app": "other", "tier": "db"}, "annotations": {"a": "b"}}, "spec": {"x": 1}}]);
        let mut spec = spec(json!({"claims": claims, "retention": {"whenDeleted": "Delete"}}));
        spec.selector.match_labels = Some([("app".to_owned(), "web".to_owned())].into());
        let claim = super::claim(&owner(), &spec, 0, 3).unwrap();
        assert_eq!(claim["metadata"]["labels"], json!({"app": "web", "tier": "db"}));
        assert_eq!(
            (&claim["metadata"]["name"], &claim["metadata"]["annotations"]),
            (&json!("data-web-3"), &json!({"a": "b"}))
        );
        assert_eq!(
            claim["metadata"]["ownerReferences"],
            json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "web", "uid": "set"}])
        );
    }

    #[test]
    fn a_revision_name_that_is_too_long_for_a_label_is_cut_to_its_hash() {
        assert_eq!(revision_label("web-86885bdb79"), "web-86885bdb79");
        assert_eq!(revision_label(&format!("{}-86885bdb79", "x".repeat(60))), "86885bdb79");
    }
}
