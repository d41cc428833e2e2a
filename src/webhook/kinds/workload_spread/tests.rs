use super::*;

fn spread(changes: Value) -> WorkloadSpread {
    let mut object = json!({"metadata": {"name": "ws", "namespace": "ns"}, "spec": {"subsets": [{"name": "a"}],
        "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}}});
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

const DB: &str = r#"{"workloads": [{"Group": "example.com", "Kind": "Db"}]}"#;

#[test]
fn what_is_wrong_with_the_stored_one_too_may_stay() {
    let bad = |api: &str, kind: &str, max: i32| {
        spread(
            json!({"spec": {"targetRef": {"apiVersion": api, "kind": kind}, "subsets": [{"name": "a", "maxReplicas": max}]}}),
        )
    };
    assert_eq!(judge(&bad("example.com/v1", "Db", 1), None, DB), []);
    let custom = bad("example.com/v1", "Db", 1);
    assert_eq!(judge(&custom, None, "")[0].field, "spec.targetRef.kind");
    assert_eq!(judge(&custom, Some(&custom), ""), [], "the list has changed since");
    let worse = bad("example.com/v1", "Db", -1);
    assert_eq!(judge(&worse, Some(&custom), "")[0].field, "spec.subsets[0].maxReplicas");
}

#[test]
fn a_target_has_one_for_each_pod() {
    let named =
        |name: &str, filter: Value| spread(json!({"metadata": {"name": name}, "spec": {"targetFilter": filter}}));
    let role = |role: &str| json!({"selector": {"matchLabels": {"role": role}}});
    let (ps, worker) = (named("ps", role("ps")), named("worker", role("worker")));
    assert_eq!(taken_by(&worker, std::slice::from_ref(&ps)), None, "no Pod fits both");
    let cause = taken_by(&named("all", json!({})), std::slice::from_ref(&ps)).unwrap();
    assert!(cause.message.contains("has WorkloadSpread \"ps\" already"), "{}", cause.message);
    assert_eq!(taken_by(&ps, std::slice::from_ref(&ps)), None, "itself");
    let mut going = ps.clone();
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(taken_by(&named("ps2", role("ps")), &[going]), None);
}

fn placed() -> Value {
    json!({"name": "a", "tolerations": [{"key": "k", "operator": "Exists"}], "patch": {"spec": {"containers": [{"name": "main", "image": "x"}]}}})
}

#[test]
fn a_patch_is_tried_on_the_template_of_the_target() {
    let spread = spread(json!({"spec": {"subsets": [placed(), {"name": "bare"}]}}));
    let target = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}});
    let (tried, causes) = trials(&spread, None, Some(&target)).unwrap();
    assert_eq!((tried.len(), tried[0].index, causes.len()), (1, 0, 0), "a subset without anything is not");
    assert_eq!(tried[0].template["spec"]["containers"], json!([{"name": "main", "image": "x"}]));
    assert!(tried[0].template.get("metadata").is_none_or(|m| m.get("annotations").is_none()), "no note");
    let (tried, _) = trials(&spread, None, None).unwrap();
    let spec = &tried[0].template["spec"];
    assert_eq!((&spec["containers"][0]["image"], &spec["tolerations"][0]["key"]), (&json!("placeholder"), &json!("k")));
    assert_eq!(trials(&spread, Some(&spread), Some(&target)).unwrap().0, [], "it is as it was");
}

#[test]
fn a_patch_that_does_not_merge_is_a_cause() {
    let spread =
        spread(json!({"spec": {"subsets": [{"name": "a", "patch": {"spec": {"containers": [{"image": "x"}]}}}]}}));
    let target = json!({"spec": {"template": {"spec": {"containers": []}}}});
    let (tried, causes) = trials(&spread, None, Some(&target)).unwrap();
    assert_eq!((tried.len(), causes[0].field.as_str()), (0, "spec.subsets[0].patch"));
}

#[test]
fn c8_claim_templates_are_volumes_of_what_is_tried() {
    let template =
        json!({"spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}});
    let claims = [json!({"metadata": {"name": "data"}, "spec": {}})];
    let body = Trial::new(&template, &claims, false).body();
    assert_eq!(
        body["template"]["spec"]["volumes"],
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}])
    );
}
