use super::*;
use crate::{
    k8s::pod_template::Tolerated,
    runtime::pod_template::{Answer, Refused},
};

fn clone_set(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()}});
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "nginx:1"}]}})
}

fn gates(list: &[&str]) -> FeatureGates {
    FeatureGates::parse(list, None).unwrap()
}

fn create(object: Value) -> Request {
    Request { operation: "CREATE".into(), namespace: "a".into(), object, ..Request::default() }
}

fn update(old_object: Value, object: Value) -> Request {
    Request { operation: "UPDATE".into(), namespace: "a".into(), object, old_object, ..Request::default() }
}

/// An API server that knows these defaults and finds nothing wrong.
fn defaulted(body: &Value) -> Value {
    let mut answer = body.clone();
    answer["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
    for container in answer["template"]["spec"]["containers"].as_array_mut().into_iter().flatten() {
        container["terminationMessagePath"] = "/dev/termination-log".into();
        container["resources"] = container.get("resources").cloned().unwrap_or_else(|| json!({}));
        // It knows none of these.
        for future in ["fieldOfTheFuture", "flagOfTheFuture"] {
            container.as_object_mut().unwrap().remove(future);
        }
    }
    answer
}

#[test]
fn only_a_united_deployment_of_ours_counts() {
    for (api_version, controls, want) in [
        ("apps.kruise.io/v1alpha1", true, true),
        ("apps.kruise.io/v1alpha1", false, false),
        ("example.com/v1", true, false),
    ] {
        let owner = json!({"apiVersion": api_version, "kind": "UnitedDeployment", "controller": controls});
        let object = json!({"metadata": {"ownerReferences": [owner]}});
        assert_eq!(is_of_united(&object), want, "{api_version} {controls}");
    }
    assert!(!is_of_united(&json!({})));
}

/// Everything but the reads.
fn decide_with(
    gates: &FeatureGates,
    request: Request,
    answers: impl FnOnce(&CloneSetAdmission) -> Answers,
) -> Decision {
    let admission = check(gates, request)?;
    let answers = answers(&admission);
    admit(&admission, &answers)
}

/// An answer about the template alone.
fn answered(trial: Option<Result<Answer, Refused>>) -> Answers {
    Answers { templates: template::Answers { trial, old_template: None }, ..Answers::default() }
}

fn consenting(admission: &CloneSetAdmission) -> Answers {
    let trial =
        admission.templates().trial().map(|trial| Ok(Answer { object: defaulted(&trial.body()), ..Answer::default() }));
    answered(trial)
}

fn decide(request: Request) -> Decision {
    decide_with(&FeatureGates::default(), request, consenting)
}

/// What is stored, and the warnings.
fn stored_by(gates: &FeatureGates, request: Request) -> (Value, Vec<String>) {
    let mut object = request.object.clone();
    let Admitted { patch, warnings } = decide_with(gates, request, consenting).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    (object, warnings)
}

fn stored(request: Request) -> Value {
    stored_by(&FeatureGates::default(), request).0
}

/// The fields and messages of a refusal.
fn causes(request: Request) -> Vec<(String, String)> {
    let denied = decide(request).unwrap_err();
    assert_eq!(denied.code, 422, "{denied:?}");
    denied.causes.into_iter().map(|Cause { field, message }| (field, message)).collect()
}

#[test]
fn every_default_of_the_spec() {
    let spec = &stored(create(clone_set(json!({}))))["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["revisionHistoryLimit"], &spec["scaleStrategy"]),
        (&json!(1), &json!(10), &json!({}))
    );
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "ReCreate", "partition": 0, "maxUnavailable": "20%", "maxSurge": 0})
    );
    assert_eq!(
        spec["template"],
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}}, "spec": {"dnsPolicy": "ClusterFirst", "containers": [
            {"name": "main", "image": "nginx:1", "imagePullPolicy": "Always", "resources": {}, "terminationMessagePath": "/dev/termination-log"}]}})
    );
    for (kind, want) in
        [("InPlaceIfPossible", json!({})), ("InPlaceOnly", json!({})), ("OnDelete", json!(null)), ("", json!(null))]
    {
        let spec = &stored(create(clone_set(json!({"updateStrategy": {"type": kind}}))))["spec"];
        assert_eq!(spec["updateStrategy"]["inPlaceUpdateStrategy"], want, "{kind}");
        assert_eq!(spec["updateStrategy"]["type"], if kind.is_empty() { "ReCreate" } else { kind });
    }
}

#[test]
fn what_is_set_stays_and_a_second_call_changes_nothing() {
    let spec = json!({"replicas": 0, "revisionHistoryLimit": 0, "scaleStrategy": {"disablePVCReuse": true}, "minReadySeconds": 3,
        "updateStrategy": {"type": "InPlaceIfPossible", "partition": "12.5%", "maxUnavailable": 0, "maxSurge": "1%", "paused": true,
            "inPlaceUpdateStrategy": {"gracePeriodSeconds": 7}}, "progressDeadlineSeconds": 4});
    let once = stored(create(clone_set(spec.clone())));
    for (key, value) in spec.as_object().unwrap() {
        assert_eq!(once["spec"][key], *value, "{key}");
    }
    assert_eq!(stored(create(once.clone())), once);
    let changed = update(once.clone(), {
        let mut new = once.clone();
        new["spec"]["replicas"] = 5.into();
        new
    });
    assert_eq!(decide(changed).unwrap(), Admitted::unchanged());
}

#[test]
fn the_answer_changes_nothing_that_it_does_not_mean() {
    let mut object = clone_set(json!({"fieldOfTheFuture": {"a": [{}]}, "updateStrategy": {"fieldOfTheFuture": 1},
        "scaleStrategy": {"fieldOfTheFuture": null}, "lifecycle": {"preDelete": {"fieldOfTheFuture": [0]}, "fieldOfTheFuture": ""}}));
    object["metadata"]["fieldOfTheFuture"] = json!({});
    object["status"] = json!({"fieldOfTheFuture": true});
    object["spec"]["scaleStrategy"]["fieldOfTheFuture"] = json!(null);
    object["spec"]["template"]["spec"]["containers"][0]["fieldOfTheFuture"] = json!({"deep": [{"deeper": false}]});
    object["spec"]["template"]["spec"]["containers"][0]["flagOfTheFuture"] = json!(false);
    let before = object.clone();
    let after = stored(create(object));
    for pointer in [
        "/spec/fieldOfTheFuture",
        "/spec/updateStrategy/fieldOfTheFuture",
        "/spec/scaleStrategy/fieldOfTheFuture",
        "/spec/lifecycle",
        "/metadata",
        "/status",
        "/spec/template/spec/containers/0/fieldOfTheFuture",
        "/spec/template/spec/containers/0/flagOfTheFuture",
    ] {
        assert_eq!(after.pointer(pointer), before.pointer(pointer), "{pointer}");
        assert!(after.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn template_no_defaults_stores_templates_as_they_are_written() {
    let on = gates(&["TemplateNoDefaults=true"]);
    let (object, _) =
        stored_by(&on, create(clone_set(json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}))));
    assert_eq!(
        object["spec"]["template"],
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "nginx:1", "resources": {}}]}})
    );
    assert_eq!(
        object["spec"]["volumeClaimTemplates"],
        json!([{"metadata": {"creationTimestamp": null, "name": "d"}, "spec": {}, "status": {}}])
    );
    assert_eq!(object["spec"]["replicas"], 1, "the other defaults are not the template's");
}

#[test]
fn claim_templates_get_their_phase() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let object = stored(create(clone_set(json!({ "volumeClaimTemplates": [claim] }))));
    let mut want = claim.clone();
    want["metadata"]["creationTimestamp"] = json!(null);
    want["status"] = json!({"phase": "Pending"});
    assert_eq!(object["spec"]["volumeClaimTemplates"], json!([want]));
}

#[test]
fn every_field_that_is_not_allowed_is_named_with_its_value() {
    for (spec, field, words) in [
        (json!({"replicas": -1}), "spec.replicas", &["-1", "0 or more"][..]),
        (json!({"revisionHistoryLimit": -1}), "spec.revisionHistoryLimit", &["-1", "0 or more"]),
        (json!({"minReadySeconds": -5}), "spec.minReadySeconds", &["-5", "0 or more"]),
        (json!({"progressDeadlineSeconds": -1}), "spec.progressDeadlineSeconds", &["-1"]),
        (
            json!({"progressDeadlineSeconds": 5, "minReadySeconds": 5}),
            "spec.progressDeadlineSeconds",
            &["5", "more than minReadySeconds (5)"],
        ),
        (json!({"selector": null}), "spec.selector", &["missing"]),
        (json!({"selector": {"matchLabels": null}}), "spec.selector", &["empty"]),
        (json!({"selector": {"matchLabels": {"a b": "c"}}}), "spec.selector.matchLabels[a b]", &["\"a b\"", "key"]),
        (json!({"selector": {"matchLabels": {"app": "a/b"}}}), "spec.selector.matchLabels[app]", &["\"a/b\"", "value"]),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["web"]}]}}),
            "spec.selector.matchExpressions[0].operator",
            &["\"Is\"", "NotIn"],
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}),
            "spec.selector.matchExpressions[0].values",
            &["missing", "In"],
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["x"]}]}}),
            "spec.selector.matchExpressions[0].values",
            &["leave it out"],
        ),
        (
            json!({"selector": {"matchLabels": {"app": "other"}}}),
            "spec.template.metadata.labels",
            &["\"app=web\"", "not matched by spec.selector"],
        ),
        (json!({"template": null}), "spec.template", &["missing"]),
        (json!({"template": {"spec": null}}), "spec.template.spec", &["missing"]),
        (json!({"template": {"metadata": null}}), "spec.template.metadata.labels", &["not matched"]),
        (
            json!({"template": {"spec": {"restartPolicy": "Never"}}}),
            "spec.template.spec.restartPolicy",
            &["\"Never\"", "want Always"],
        ),
        (
            json!({"template": {"spec": {"activeDeadlineSeconds": 5}}}),
            "spec.template.spec.activeDeadlineSeconds",
            &["5", "leave it out"],
        ),
        (json!({"volumeClaimTemplates": [{"spec": {}}]}), "spec.volumeClaimTemplates[0].metadata.name", &["missing"]),
        (
            json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}, {"metadata": {"name": "d"}, "spec": {}}]}),
            "spec.volumeClaimTemplates[1].metadata.name",
            &["\"d\"", "twice"],
        ),
        (
            json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}}]}),
            "spec.volumeClaimTemplates[0].spec",
            &["missing"],
        ),
        (
            json!({"scaleStrategy": {"podsToDelete": ["web-1"]}}),
            "spec.scaleStrategy.podsToDelete[0]",
            &["\"web-1\"", "new CloneSet has no Pods"],
        ),
        (json!({"scaleStrategy": {"podsToDelete": ["../x"]}}), "spec.scaleStrategy.podsToDelete[0]", &["\"../x\""]),
        (json!({"scaleStrategy": {"maxUnavailable": "x"}}), "spec.scaleStrategy.maxUnavailable", &["\"x\"", "20%"]),
        (
            json!({"updateStrategy": {"type": "Rolling"}}),
            "spec.updateStrategy.type",
            &["\"Rolling\"", "InPlaceOnly", "OnDelete"],
        ),
        (json!({"updateStrategy": {"partition": -1}}), "spec.updateStrategy.partition", &["-1", "0 or more"]),
        (json!({"updateStrategy": {"partition": "-5%"}}), "spec.updateStrategy.partition", &["-5%", "0 or more"]),
        (json!({"updateStrategy": {"partition": "5"}}), "spec.updateStrategy.partition", &["\"5\"", "20%"]),
        (json!({"updateStrategy": {"maxUnavailable": -1}}), "spec.updateStrategy.maxUnavailable", &["-1"]),
        (json!({"updateStrategy": {"maxSurge": -1}}), "spec.updateStrategy.maxSurge", &["-1"]),
        (
            json!({"updateStrategy": {"maxUnavailable": 0}}),
            "spec.updateStrategy.maxUnavailable",
            &["0", "maxSurge is 0 too"],
        ),
        (
            json!({"updateStrategy": {"maxUnavailable": "0%", "maxSurge": "0%"}}),
            "spec.updateStrategy.maxUnavailable",
            &["\"0%\""],
        ),
        (
            json!({"updateStrategy": {"type": "InPlaceOnly", "maxSurge": 1}}),
            "spec.updateStrategy.maxSurge",
            &["1", "InPlaceOnly"],
        ),
        (
            json!({"updateStrategy": {"inPlaceUpdateStrategy": {"gracePeriodSeconds": -1}}}),
            "spec.updateStrategy.inPlaceUpdateStrategy.gracePeriodSeconds",
            &["-1"],
        ),
        (
            json!({"updateStrategy": {"priorityStrategy": {}}}),
            "spec.updateStrategy.priorityStrategy",
            &["exactly one", "neither"],
        ),
        (
            json!({"updateStrategy": {"priorityStrategy": {"orderPriority": [{"orderedKey": "a"}], "weightPriority": [{"weight": 1, "matchSelector": {"matchLabels": {"a": "b"}}}]}}}),
            "spec.updateStrategy.priorityStrategy",
            &["both"],
        ),
        (
            json!({"updateStrategy": {"priorityStrategy": {"orderPriority": [{}]}}}),
            "spec.updateStrategy.priorityStrategy.orderPriority[0].orderedKey",
            &["missing"],
        ),
        (
            json!({"updateStrategy": {"priorityStrategy": {"weightPriority": [{"weight": 101, "matchSelector": {"matchLabels": {"a": "b"}}}]}}}),
            "spec.updateStrategy.priorityStrategy.weightPriority[0].weight",
            &["101", "0 to 100"],
        ),
        (
            json!({"updateStrategy": {"priorityStrategy": {"weightPriority": [{"weight": 1, "matchSelector": {}}]}}}),
            "spec.updateStrategy.priorityStrategy.weightPriority[0].matchSelector",
            &["empty"],
        ),
        (
            json!({"updateStrategy": {"scatterStrategy": [{"value": "b"}]}}),
            "spec.updateStrategy.scatterStrategy[0].key",
            &["missing"],
        ),
        (
            json!({"updateStrategy": {"scatterStrategy": [{"key": "a", "value": "b"}, {"key": "a", "value": "b"}]}}),
            "spec.updateStrategy.scatterStrategy[1]",
            &["a=b", "twice"],
        ),
        (
            json!({"lifecycle": {"preDelete": {"labelsHandler": {"a b": "c"}}}}),
            "spec.lifecycle.preDelete.labelsHandler[a b]",
            &["key"],
        ),
        (
            json!({"lifecycle": {"preNormal": {"labelsHandler": {"a": "/"}}}}),
            "spec.lifecycle.preNormal.labelsHandler[a]",
            &["\"/\"", "value"],
        ),
        (
            json!({"lifecycle": {"inPlaceUpdate": {"finalizersHandler": ["a b"]}}}),
            "spec.lifecycle.inPlaceUpdate.finalizersHandler[0]",
            &["\"a b\""],
        ),
    ] {
        let found = causes(create(clone_set(spec.clone())));
        assert!(found.len() == 1 && found[0].0 == field, "{spec}: {found:?}");
        for word in words {
            assert!(found[0].1.contains(word), "{spec}: {word}: {found:?}");
        }
    }
}

#[test]
fn what_is_allowed_is_not_refused() {
    for spec in [
        json!({"replicas": 0, "updateStrategy": {"maxUnavailable": 0}}),
        json!({"progressDeadlineSeconds": 2_147_483_647, "minReadySeconds": 2_147_483_647}),
        json!({"updateStrategy": {"partition": 1000, "maxUnavailable": "250%", "maxSurge": "0.1%"}}),
        json!({"updateStrategy": {"type": "InPlaceOnly", "maxSurge": "0%"}}),
        json!({"updateStrategy": {"scatterStrategy": [{"key": "a", "value": "b"}, {"key": "a", "value": "c"}]}}),
        json!({"scaleStrategy": {"maxUnavailable": "12.5%"}}),
        json!({"lifecycle": {"preDelete": {"labelsHandler": {"a/b": ""}, "finalizersHandler": ["a/b", "c"], "markPodNotReady": true}}}),
        json!({"template": {"spec": {"restartPolicy": "Always"}}}),
    ] {
        stored(create(clone_set(spec)));
    }
}

#[test]
fn case_19_2_on_delete_is_accepted() {
    assert_eq!(
        stored(create(clone_set(json!({"updateStrategy": {"type": "OnDelete"}}))))["spec"]["updateStrategy"]["type"],
        "OnDelete"
    );
}

#[test]
fn case_19_25_a_surge_makes_up_for_no_unavailable_pod() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 1});
    let spec = &stored(create(clone_set(json!({"updateStrategy": strategy}))))["spec"]["updateStrategy"];
    assert_eq!((&spec["maxUnavailable"], &spec["maxSurge"]), (&json!(0), &json!(1)));
}

#[test]
fn case_37_text_that_is_no_percentage_is_refused() {
    for field in ["partition", "maxUnavailable", "maxSurge"] {
        for bad in ["3", "20 %", "%", "inf%", "1e3%", ""] {
            let found = causes(create(clone_set(json!({"updateStrategy": {field: bad}}))));
            assert_eq!(found[0].0, format!("spec.updateStrategy.{field}"), "{bad}: {found:?}");
        }
    }
}

#[test]
fn several_fields_are_named_at_once_those_of_the_template_too() {
    let request = create(clone_set(json!({"replicas": -1, "updateStrategy": {"type": "x"}})));
    let denied = decide_with(&FeatureGates::default(), request, |_| {
        let fields = vec![("template.spec.containers[0].image".into(), "Required value".into())];
        answered(Some(Err(Refused::Invalid(fields))))
    });
    let Denied { code, causes, message } = denied.unwrap_err();
    let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(
        (code, fields),
        (422, vec!["spec.replicas", "spec.updateStrategy.type", "spec.template.spec.containers[0].image"])
    );
    assert!(message.contains("spec.replicas: -1") && message.contains("Required value"), "{message}");
}

#[test]
fn what_cannot_be_read_is_a_bad_request() {
    for (spec, words) in [
        (json!({"replicas": "3"}), "spec.replicas: \"3\" is not allowed; want a whole number"),
        (json!({"replicas": 3_000_000_000_i64}), "spec.replicas: 3000000000"),
        (json!({"selector": {"matchLabels": {"app": 1}}}), "spec.selector"),
        (json!({"template": []}), "spec.template: [] is not allowed; want an object"),
        (json!({"template": {"spec": 1}}), "spec.template.spec: 1"),
        (json!({"template": {"metadata": {"labels": {"app": 1}}}}), "spec.template.metadata.labels"),
        (json!({"volumeClaimTemplates": {}}), "spec.volumeClaimTemplates: {}"),
        (
            json!({"updateStrategy": {"paused": "yes"}}),
            "spec.updateStrategy.paused: \"yes\" is not allowed; want true or false",
        ),
        (json!({"updateStrategy": {"partition": 1.5}}), "spec.updateStrategy.partition: 1.5"),
        (json!({"scaleStrategy": {"podsToDelete": [1]}}), "spec.scaleStrategy.podsToDelete[0]: 1"),
        (
            json!({"lifecycle": {"preDelete": {"labelsHandler": {"a": 1}}}}),
            "spec.lifecycle.preDelete.labelsHandler[a]: 1",
        ),
    ] {
        let denied = decide(create(clone_set(spec.clone()))).unwrap_err();
        assert!(denied.code == 400 && denied.message.contains(words), "{spec}: {denied:?}");
    }
    for object in [json!(null), json!([]), json!({"spec": 1})] {
        assert_eq!(decide(create(object.clone())).unwrap_err().code, 400, "{object}");
    }
    let undecodable = "PodTemplate in version \"v1\" cannot be handled as a PodTemplate: json: cannot unmarshal number";
    let denied = decide_with(&FeatureGates::default(), create(clone_set(json!({}))), |_| {
        answered(Some(Err(Refused::Undecodable(undecodable.into()))))
    });
    assert_eq!(denied.unwrap_err(), Denied::bad_request("spec.template: json: cannot unmarshal number"));
    let denied = decide_with(&FeatureGates::default(), create(clone_set(json!({}))), |_| {
        answered(Some(Err(Refused::Unavailable("500 no".into()))))
    });
    assert_eq!(denied.unwrap_err().code, 500);
}

#[test]
fn decision_25_a_long_name_needs_the_gate() {
    let named = |key: &str, length: usize| {
        let mut object = clone_set(json!({}));
        object["metadata"] = json!({ key: "x".repeat(length) });
        create(object)
    };
    for (key, fits, field) in [("name", 52, "metadata.name"), ("generateName", 47, "metadata.generateName")] {
        assert!(decide(named(key, fits)).is_ok(), "{key}");
        let found = causes(named(key, fits + 1));
        assert!(found.len() == 1 && found[0].0 == field && found[0].1.contains("CloneSetShortHash"), "{found:?}");
        let short = gates(&["CloneSetShortHash=true"]);
        assert!(decide_with(&short, named(key, 253), consenting).is_ok(), "{key}");
    }
    let short = gates(&["CloneSetShortHash=true"]);
    assert_eq!(decide_with(&short, named("name", 254), consenting).unwrap_err().causes[0].field, "metadata.name");
}

#[test]
fn an_update_is_not_refused_for_what_it_does_not_change() {
    let mut old = clone_set(json!({"updateStrategy": {"partition": "5"}, "revisionHistoryLimit": -1}));
    old["metadata"]["name"] = "x".repeat(60).into();
    let mut new = old.clone();
    new["spec"]["replicas"] = 3.into();
    assert!(decide(update(old.clone(), new.clone())).is_ok());
    new["spec"]["updateStrategy"]["partition"] = "6".into();
    assert_eq!(causes(update(old, new))[0].0, "spec.updateStrategy.partition");
}

#[test]
fn the_api_server_is_asked_only_about_a_template_that_is_new() {
    let asks = |request: Request| check(&FeatureGates::default(), request).unwrap().templates().trial().is_some();
    let old = clone_set(json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}));
    let with = |pointer: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(pointer).unwrap() = value;
        update(old.clone(), new)
    };
    assert!(asks(create(old.clone())));
    assert!(!asks(with("/spec/selector/matchLabels/app", json!("web"))));
    assert!(asks(with("/spec/template/spec/containers/0/image", json!("nginx:2"))));
    assert!(asks(with("/spec/volumeClaimTemplates/0/spec", json!({"a": 1}))));
    // Claim templates that stay are not judged again.
    let admission =
        check(&FeatureGates::default(), with("/spec/template/spec/containers/0/image", json!("nginx:2"))).unwrap();
    assert!(
        admission.templates().trial().unwrap().body()["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]
            .is_object()
    );
}

#[test]
fn the_original_manifest_applied_again_changes_nothing() {
    let original = clone_set(json!({}));
    let first = stored(create(original.clone()));
    assert_eq!(stored(update(first.clone(), original))["spec"], first["spec"]);
}

#[test]
fn in_place_only_takes_images_and_metadata() {
    let old = stored(create(clone_set(json!({"updateStrategy": {"type": "InPlaceOnly"}}))));
    let with = |pointer: &str, value: Value| {
        let mut new = old.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(&format!("/spec/template{parent}")).unwrap()[key] = value;
        update(old.clone(), new)
    };
    assert!(decide(with("/spec/containers/0/image", json!("nginx:2"))).is_ok());
    assert!(decide(with("/metadata/annotations", json!({"a": "b"}))).is_ok());
    for (pointer, value, field, how) in [
        ("/spec/containers/0/command", json!(["x"]), "spec.template.spec.containers[0].command", "was added"),
        ("/spec/containers/0/name", json!("x"), "spec.template.spec.containers[0].name", "was changed"),
        ("/spec/containers/0/image", json!(null), "spec.template.spec.containers[0]", "has no image"),
        ("/spec/hostNetwork", json!(true), "spec.template.spec.hostNetwork", "was added"),
    ] {
        let message = format!(
            "{how}; with updateStrategy.type InPlaceOnly want nothing but other images, labels and annotations"
        );
        assert_eq!(causes(with(pointer, value)), [(field.to_owned(), message)]);
    }
    let mut other = old.clone();
    other["spec"]["updateStrategy"]["type"] = "InPlaceIfPossible".into();
    other["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    assert!(decide(update(old.clone(), other)).is_ok());
}

#[test]
fn a_changed_selector_is_named_with_what_else_is_wrong() {
    let old = stored(create(clone_set(json!({}))));
    let with = |selector: Value| {
        let mut new = old.clone();
        new["spec"]["selector"] = selector;
        update(old.clone(), new)
    };
    let found = causes(with(json!({"matchLabels": {"app": "other"}})));
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["spec.selector", "spec.template.metadata.labels"]);
    assert!(found[0].1.contains("immutable") && found[0].1.contains("CloneSet"), "{found:?}");
    // That alone the schema refuses.
    assert!(decide(with(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}))).is_ok());
    // Another spelling of the same is no change.
    let mut same = with(json!({"matchLabels": {"app": "web"}, "matchExpressions": []}));
    same.object["spec"]["replicas"] = (-1).into();
    assert_eq!(causes(same)[0].0, "spec.replicas");
}

#[test]
fn what_open_kruise_admits_is_stored_with_a_warning() {
    let field = "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]";
    let object = clone_set(json!({"template": {"metadata": {"annotations":
        {"controller.kubernetes.io/pod-deletion-cost": "abc"}}}}));
    let decision = decide_with(&FeatureGates::default(), create(object), |admission| {
        let object = defaulted(&admission.templates().trial().unwrap().body());
        let tolerated = Tolerated::of(field, "Invalid value: \"abc\": must be a 32bit integer");
        answered(Some(Ok(Answer { object, tolerated: tolerated.into_iter().collect(), ..Answer::default() })))
    });
    let warning = format!(
        "spec.{field}: Invalid value: \"abc\": must be a 32bit integer; it is stored, and its Pods will be refused"
    );
    assert_eq!(decision.unwrap().warnings, [warning]);
}

#[test]
fn in_place_only_compares_with_the_defaults_that_were_missed() {
    let old = clone_set(json!({"updateStrategy": {"type": "InPlaceOnly"}}));
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:2".into();
    let full = stored(create(old.clone()))["spec"]["template"].clone();
    let decision = decide_with(&FeatureGates::default(), update(old, new), |admission| {
        let mut answers = consenting(admission);
        answers.templates.old_template = Some(full);
        answers
    });
    assert!(decision.is_ok(), "{decision:?}");
}

fn pods_to_delete(old: &[&str], new: &[&str], pods: &[(&str, Option<Value>)]) -> (Vec<String>, Decision) {
    let with = |names: &[&str]| {
        let mut object = clone_set(json!({"scaleStrategy": {"podsToDelete": names}}));
        object["metadata"]["uid"] = "u1".into();
        object
    };
    let admission = check(&FeatureGates::default(), update(with(old), with(new))).unwrap();
    let found = pods.iter().map(|(name, pod)| {
        let pod = pod.clone().map(|pod| serde_json::from_value(pod).unwrap());
        ((*name).to_owned(), pod)
    });
    let answers = Answers { pods: found.collect(), ..Answers::default() };
    (admission.pods.iter().map(|name| name.to_string()).collect(), admit(&admission, &answers))
}

fn owned(uid: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "other", "uid": uid, "controller": true}]})
}

#[test]
fn pods_to_delete_have_to_be_ours() {
    let (read, decision) = pods_to_delete(&[], &["web-a"], &[("web-a", Some(owned("u1")))]);
    assert_eq!((read, decision.is_ok()), (vec!["web-a".to_owned()], true));
    let mut going = owned("u1");
    going["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for (pod, words) in [
        (None, "no Pod in this namespace"),
        (Some(going), "being deleted already"),
        (Some(owned("u2")), "belongs to CloneSet \"other\""),
        (Some(json!({})), "has no controller"),
    ] {
        let (_, decision) = pods_to_delete(&[], &["web-a"], &[("web-a", pod)]);
        let denied = decision.unwrap_err();
        assert!(
            denied.code == 422 && denied.message.contains("\"web-a\"") && denied.message.contains(words),
            "{denied:?}"
        );
    }
}

#[test]
fn case_35_names_that_were_there_are_not_looked_at_again() {
    let (read, decision) = pods_to_delete(&["gone"], &["gone", "web-a"], &[("web-a", Some(owned("u1")))]);
    assert_eq!((read, decision.is_ok()), (vec!["web-a".to_owned()], true));
    let twice = pods_to_delete(&[], &["web-a", "web-a"], &[("web-a", Some(owned("u1")))]).1.unwrap_err();
    assert!(
        twice.code == 422 && twice.message.contains("podsToDelete[1]") && twice.message.contains("twice"),
        "{twice:?}"
    );
}

#[test]
fn warnings_name_what_is_surely_not_meant() {
    let warnings = |spec: Value| stored_by(&FeatureGates::default(), create(clone_set(spec))).1;
    assert_eq!(warnings(json!({})), Vec::<String>::new());
    assert!(warnings(json!({"scaleStrategy": {"maxUnavailable": "0%"}}))[0].contains("no Pod is ever added"));
    let bad = json!({"template": {"spec": {"containers": [
        {"name": "a", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "high"}]}, {"name": "b"}]}}});
    let priority = &warnings(bad)[0];
    assert!(priority.contains("spec.template.spec.containers") && priority.contains("\"high\""), "{priority}");
    let answered = decide_with(&FeatureGates::default(), create(clone_set(json!({}))), |admission| {
        let mut answers = consenting(admission);
        if let Some(Ok(answer)) = &mut answers.templates.trial {
            answer.unknown = vec!["template.spec.containers[0].imag".into()];
            answer.warnings = vec!["would violate PodSecurity".into()];
        }
        answers
    });
    let warnings = answered.unwrap().warnings;
    assert!(warnings[0].contains("\"spec.template.spec.containers[0].imag\""), "{warnings:?}");
    assert_eq!(warnings[1], "would violate PodSecurity");
}

/// The context of a handler whose API server must not be asked.
fn context() -> Arc<Context> {
    let client = crate::runtime::fake_api::nobody();
    Arc::new(Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default()).0)
}

#[tokio::test]
async fn whoever_takes_a_finalizer_away_gets_through() {
    let mut going = clone_set(json!({"replicas": -1}));
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(handle(context(), update(going.clone(), going.clone())).await, Ok(Admitted::unchanged()));
    let delete = Request { operation: "DELETE".into(), ..create(json!(null)) };
    assert_eq!(handle(context(), delete).await, Ok(Admitted::unchanged()));
    let status = Request { sub_resource: "status".into(), ..update(going.clone(), clone_set(json!({"replicas": -1}))) };
    assert_eq!(handle(context(), status).await, Ok(Admitted::unchanged()));
}

#[tokio::test]
async fn without_the_api_server_nothing_is_consented_to() {
    assert_eq!(handle(context(), create(clone_set(json!({})))).await.unwrap_err().code, 500);
}

#[tokio::test]
async fn without_the_api_server_an_update_goes_on_with_a_warning() {
    let old = clone_set(json!({}));
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:2".into();
    let admitted = handle(context(), update(old.clone(), new.clone())).await.unwrap();
    assert!(admitted.warnings[0].contains("spec.template is not checked"), "{admitted:?}");
    let mut stored = new.clone();
    json_patch::patch(&mut stored, &admitted.patch).unwrap();
    assert_eq!(stored["spec"]["template"], new["spec"]["template"], "the controller gives it its defaults");
    new["spec"]["replicas"] = (-1).into();
    assert_eq!(handle(context(), update(old, new)).await.unwrap_err().code, 422);
}

#[tokio::test]
async fn a_write_of_the_manager_is_left_unchanged_and_those_of_its_namesakes_are_not() {
    let listed = clone_set(json!({"scaleStrategy": {"podsToDelete": ["gone"]}}));
    let by = |username: &str| {
        let mut request = update(listed.clone(), clone_set(json!({})));
        request.user_info.username = username.into();
        handle(context(), request)
    };
    assert_eq!(by("system:serviceaccount:kruise-system:kruise-manager").await, Ok(Admitted::unchanged()));
    for other in
        ["system:serviceaccount:shop:kruise-manager", "system:serviceaccount:kruise-system:kruise-daemon", "ci"]
    {
        assert_ne!(by(other).await.unwrap().patch.0, Vec::new(), "{other}: gets defaults");
    }
}

#[test]
fn of_a_long_list_of_pods_to_delete_the_new_names_are_read_up_to_a_limit() {
    let with = |names: Vec<String>| clone_set(json!({"scaleStrategy": {"podsToDelete": names}}));
    let names = |from: usize, to: usize| (from..to).map(|i| format!("web-{i:05}")).collect::<Vec<_>>();
    let read = |old: Value, new: Value| {
        let admission = check(&FeatureGates::default(), update(old, new)).unwrap();
        (admission.pods.len(), admission.judged.found.warnings.len())
    };
    assert_eq!(read(with(names(0, 20_000)), with(names(0, 20_000))), (0, 0));
    assert_eq!(read(with(names(0, 20_000)), with(names(0, 20_000 + MOST_READ))), (MOST_READ, 0));
    assert_eq!(read(with(names(0, 20_000)), with(names(1, 20_001 + MOST_READ))), (MOST_READ, 1));
}
