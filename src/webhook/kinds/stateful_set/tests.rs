use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::*;
use crate::{
    api::apps::stateful_set::StatefulSet, domain::workload::revisions::is_same_data, k8s::revision,
    runtime::pod_template::Answer, webhook::server::review::Cause,
};

fn set(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}, "serviceName": "db", "template": template()}});
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "main", "image": "db:1"}]}})
}

fn gates(list: &[&str]) -> FeatureGates {
    FeatureGates::parse(list, None).unwrap()
}

fn resizing() -> FeatureGates {
    gates(&["StatefulSetAutoResizePVCGate=true"])
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
    }
    answer
}

fn consenting(admission: &StatefulSetAdmission) -> Answers {
    let trial = admission.templates().trial();
    let trial = trial.map(|trial| Ok(Answer { object: defaulted(&trial.body()), ..Answer::default() }));
    let templates = template::Answers { trial, ..template::Answers::default() };
    let overrides = admission.trials().into_iter().map(|(i, _)| (i, Ok(()))).collect();
    Answers { templates, classes: Some(Ok(Vec::new())), overrides }
}

/// Everything but the reads.
fn decide_with(
    gates: &FeatureGates,
    request: Request,
    answers: impl FnOnce(&StatefulSetAdmission) -> Answers,
) -> Decision {
    let admission = check(gates, request)?;
    let answers = answers(&admission);
    admit(&admission, &answers)
}

fn stored_with(gates: &FeatureGates, request: Request) -> (Value, Vec<String>) {
    let mut object = request.object.clone();
    let Admitted { patch, warnings } = decide_with(gates, request, consenting).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    (object, warnings)
}

fn stored(request: Request) -> Value {
    stored_with(&FeatureGates::default(), request).0
}

/// The fields and messages of a refusal.
fn causes_with(gates: &FeatureGates, request: Request) -> Vec<(String, String)> {
    let denied = decide_with(gates, request, consenting).unwrap_err();
    assert_eq!(denied.code, 422, "{denied:?}");
    denied.causes.into_iter().map(|Cause { field, message }| (field, message)).collect()
}

fn causes(request: Request) -> Vec<(String, String)> {
    causes_with(&FeatureGates::default(), request)
}

fn fields(spec: Value) -> Vec<String> {
    causes(create(set(spec))).into_iter().map(|(field, _)| field).collect()
}

/// What is stored of `old` with another spec.
fn changed(old: &Value, spec: Value) -> Request {
    let mut new = old.clone();
    json_patch::merge(&mut new["spec"], &spec);
    update(old.clone(), new)
}

fn with_annotation(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"] = json!({ key: value });
    object
}

const IN_PLACE: &str = "/spec/updateStrategy/rollingUpdate/podUpdatePolicy";

/// A spec that may be updated in place.
fn in_place(policy: &str) -> Value {
    json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": policy}},
        "template": {"spec": {"readinessGates": [{"conditionType": "InPlaceUpdateReady"}]}}})
}

#[test]
fn every_default_of_2_2_and_2_3() {
    let spec = &stored(create(set(json!({}))))["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["revisionHistoryLimit"], 10);
    assert_eq!(spec["podManagementPolicy"], "OrderedReady");
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate":
            {"partition": 0, "maxUnavailable": 1, "podUpdatePolicy": "ReCreate", "minReadySeconds": 0}})
    );
    assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
    assert_eq!(spec.get("volumeClaimUpdateStrategy"), None, "only with the gate");
    assert_eq!(spec.get("scaleStrategy"), None);
    assert_eq!(
        spec["template"],
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "db"}}, "spec": {"dnsPolicy": "ClusterFirst", "containers": [
            {"name": "main", "image": "db:1", "imagePullPolicy": "Always", "resources": {}, "terminationMessagePath": "/dev/termination-log"}]}})
    );
    let with_gate = stored_with(&resizing(), create(set(json!({"volumeClaimUpdateStrategy": {}})))).0;
    assert_eq!(with_gate["spec"]["volumeClaimUpdateStrategy"], json!({"type": "OnDelete"}));
    let without = stored_with(&gates(&["StatefulSetAutoDeletePVC=false"]), create(set(json!({})))).0;
    assert_eq!(without["spec"].get("persistentVolumeClaimRetentionPolicy"), None);
    let on_delete = stored(create(set(json!({"updateStrategy": {"type": "OnDelete"}}))));
    assert_eq!(on_delete["spec"]["updateStrategy"], json!({"type": "OnDelete"}), "nothing below rollingUpdate");
    let in_place = stored(create(set(in_place("InPlaceIfPossible"))));
    assert_eq!(in_place["spec"]["updateStrategy"]["rollingUpdate"].get("inPlaceUpdateStrategy"), None);
}

#[test]
fn what_is_set_stays_and_a_second_call_changes_nothing() {
    let spec = json!({"replicas": 0, "revisionHistoryLimit": 0, "podManagementPolicy": "Parallel", "reserveOrdinals": [1, "3-7"],
        "ordinals": {"start": 5}, "scaleStrategy": {"maxUnavailable": "30%"}, "fieldOfTheFuture": {"a": [1]},
        "lifecycle": {"preDelete": {"labelsHandler": {"a": "b"}, "finalizersHandler": ["a.b/c"], "markPodNotReady": true}},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": "50%", "maxUnavailable": "150%", "paused": true,
            "podUpdatePolicy": "InPlaceIfPossible", "minReadySeconds": 300, "inPlaceUpdateStrategy": {"gracePeriodSeconds": 7},
            "unorderedUpdate": {"priorityStrategy": {"weightPriority": [{"weight": 100, "matchSelector": {"matchLabels": {"a": "b"}}}]}}}},
        "template": {"spec": {"readinessGates": [{"conditionType": "InPlaceUpdateReady"}]}}});
    let once = stored(create(set(spec.clone())));
    for (key, value) in spec.as_object().unwrap().iter().filter(|(key, _)| *key != "template") {
        assert_eq!(once["spec"][key], *value, "{key}");
    }
    assert_eq!(stored(create(once.clone())), once);
    let scaled = changed(&once, json!({"replicas": 5}));
    assert_eq!(decide_with(&FeatureGates::default(), scaled, consenting).unwrap().patch.0, []);
}

#[test]
fn shortfall_10_1_01_both_versions_are_admitted_alike_and_lose_nothing() {
    let spec = json!({"reserveOrdinals": ["1-3"], "lifecycle": {"preNormal": {}}, "ordinals": {"start": 0}, "podManagementPolicy": "Parallel",
        "scaleStrategy": {"maxUnavailable": 2}, "volumeClaimUpdateStrategy": {"type": "OnDelete"}});
    let new = stored(create(set(spec.clone())));
    let mut alpha = set(spec);
    alpha["apiVersion"] = "apps.kruise.io/v1alpha1".into();
    let old = stored(create(alpha));
    assert_eq!(old["spec"], new["spec"]);
    assert_eq!(old["apiVersion"], "apps.kruise.io/v1alpha1");
}

#[test]
fn fields_of_a_wrong_type_are_a_400_that_names_them_all() {
    let odd = set(
        json!({"replicas": "3", "reserveOrdinals": {}, "updateStrategy": {"rollingUpdate": {"paused": "yes"}}, "ordinals": 3}),
    );
    let denied = decide_with(&FeatureGates::default(), create(odd), consenting).unwrap_err();
    assert_eq!(denied.code, 400);
    for field in ["spec.replicas", "spec.reserveOrdinals", "rollingUpdate.paused", "spec.ordinals"] {
        assert!(denied.message.contains(field), "{field}: {}", denied.message);
    }
    assert_eq!(decide_with(&FeatureGates::default(), create(json!([])), consenting).unwrap_err().code, 400);
}

#[test]
fn an_invalid_object_is_a_422_with_all_errors() {
    let fields = fields(json!({"replicas": -1, "podManagementPolicy": "Serial", "revisionHistoryLimit": -1,
        "selector": {"matchLabels": {"app": "other"}}, "updateStrategy": {"type": "Sometimes"}}));
    assert_eq!(
        fields,
        [
            "spec.replicas",
            "spec.revisionHistoryLimit",
            "spec.template.metadata.labels",
            "spec.podManagementPolicy",
            "spec.updateStrategy.type"
        ]
    );
}

#[test]
fn rules_of_2_2_and_2_3() {
    const ROLLING: &str = "spec.updateStrategy.rollingUpdate";
    let rolling = |rolling: Value| json!({"updateStrategy": {"rollingUpdate": rolling}});
    let parallel =
        |rolling: Value| json!({"podManagementPolicy": "Parallel", "updateStrategy": {"rollingUpdate": rolling}});
    let claims = |replicas: i32| {
        let template = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        json!({"replicas": replicas, "volumeClaimTemplates": [template("a"), template("b"), template("c")]})
    };
    for (spec, field) in [
        (json!({"selector": {"matchLabels": null}}), "spec.selector"),
        (json!({"template": null}), "spec.template"),
        (json!({"template": {"spec": {"restartPolicy": "Never"}}}), "spec.template.spec.restartPolicy"),
        (json!({"template": {"spec": {"activeDeadlineSeconds": 1}}}), "spec.template.spec.activeDeadlineSeconds"),
        (json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}}), ROLLING),
        (rolling(json!({"partition": -1})), "spec.updateStrategy.rollingUpdate.partition"),
        (rolling(json!({"partition": "5"})), "spec.updateStrategy.rollingUpdate.partition"),
        (parallel(json!({"maxUnavailable": 0})), "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        (parallel(json!({"maxUnavailable": "0%"})), "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        (parallel(json!({"maxUnavailable": "5"})), "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        (rolling(json!({"maxUnavailable": 2})), "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        (rolling(json!({"maxUnavailable": "50%"})), "spec.updateStrategy.rollingUpdate.maxUnavailable"),
        (rolling(json!({"podUpdatePolicy": "InPlace"})), "spec.updateStrategy.rollingUpdate.podUpdatePolicy"),
        (rolling(json!({"podUpdatePolicy": "InPlaceIfPossible"})), "spec.updateStrategy.rollingUpdate.podUpdatePolicy"),
        (rolling(json!({"podUpdatePolicy": "InPlaceOnly"})), "spec.updateStrategy.rollingUpdate.podUpdatePolicy"),
        (rolling(json!({"minReadySeconds": 301})), "spec.updateStrategy.rollingUpdate.minReadySeconds"),
        (rolling(json!({"minReadySeconds": -1})), "spec.updateStrategy.rollingUpdate.minReadySeconds"),
        (rolling(json!({"unorderedUpdate": {}})), "spec.updateStrategy.rollingUpdate.unorderedUpdate"),
        (
            parallel(json!({"unorderedUpdate": {"priorityStrategy": {}}})),
            "spec.updateStrategy.rollingUpdate.unorderedUpdate.priorityStrategy",
        ),
        (
            parallel(json!({"unorderedUpdate": {"priorityStrategy": {"orderPriority": [{"orderedKey": ""}]}}})),
            "spec.updateStrategy.rollingUpdate.unorderedUpdate.priorityStrategy.orderPriority[0].orderedKey",
        ),
        (
            parallel(
                json!({"unorderedUpdate": {"priorityStrategy": {"weightPriority": [{"weight": 101, "matchSelector": {"matchLabels": {"a": "b"}}}]}}}),
            ),
            "spec.updateStrategy.rollingUpdate.unorderedUpdate.priorityStrategy.weightPriority[0].weight",
        ),
        (json!({"scaleStrategy": {"maxUnavailable": 3}}), "spec.scaleStrategy.maxUnavailable"),
        (
            json!({"podManagementPolicy": "Parallel", "scaleStrategy": {"maxUnavailable": 0}}),
            "spec.scaleStrategy.maxUnavailable",
        ),
        (claims(66_667), "spec.volumeClaimTemplates"),
        (json!({"reserveOrdinals": [0, "5"]}), "spec.reserveOrdinals[1]"),
        (json!({"reserveOrdinals": [-1]}), "spec.reserveOrdinals[0]"),
        (json!({"reserveOrdinals": ["3-1"]}), "spec.reserveOrdinals[0]"),
        (
            json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Sometimes"}}),
            "spec.persistentVolumeClaimRetentionPolicy.whenScaled",
        ),
        (
            json!({"lifecycle": {"preDelete": {"labelsHandler": {"a b": "c"}}}}),
            "spec.lifecycle.preDelete.labelsHandler[a b]",
        ),
    ] {
        assert_eq!(fields(spec.clone()), [field], "{spec}");
    }
    for spec in [
        parallel(json!({"maxUnavailable": "150%", "partition": "12%"})),
        rolling(json!({"maxUnavailable": 1})),
        claims(66_666),
        json!({"reserveOrdinals": [100, "1-1", "200-300"]}),
        json!({"replicas": 3, "reserveOrdinals": ["0-5", "3-7", "11-2147483647"]}),
        json!({"replicas": 3, "reserveOrdinals": ["0-5", "3-7", "11-4294967295", "4294967295-4294967296"]}),
        json!({"replicas": 2, "ordinals": {"start": i32::MAX - 1}, "reserveOrdinals": ["0-9"]}),
        parallel(json!({"unorderedUpdate": {}})),
    ] {
        decide_with(&FeatureGates::default(), create(set(spec.clone())), consenting)
            .unwrap_or_else(|denied| panic!("{spec}: {denied:?}"));
    }
    let off = gates(&["StatefulSetAutoDeletePVC=false"]);
    let half = set(json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}));
    assert_eq!(causes_with(&off, create(half))[0].0, "spec.persistentVolumeClaimRetentionPolicy.whenDeleted");
}

#[test]
fn item_1_3_a_percentage_is_digits_and_a_sign_of_percent() {
    const ROLLING: &str = "spec.updateStrategy.rollingUpdate.";
    let rolling = |key: &str, value: &str| json!({"podManagementPolicy": "Parallel", "updateStrategy": {"rollingUpdate": {key: value}}});
    for text in ["12.5%", "50.0%", "+5%", "-0%", "5"] {
        for (spec, field) in [
            (rolling("partition", text), format!("{ROLLING}partition")),
            (rolling("maxUnavailable", text), format!("{ROLLING}maxUnavailable")),
            (
                json!({"podManagementPolicy": "Parallel", "scaleStrategy": {"maxUnavailable": text}}),
                "spec.scaleStrategy.maxUnavailable".to_owned(),
            ),
        ] {
            let found = causes(create(set(spec)));
            assert_eq!(found[0].0, field, "{text}");
            let begin = format!("\"{text}\" is not allowed; want a whole number or a ");
            assert!(found[0].1.starts_with(&begin) && found[0].1.ends_with("percentage such as \"20%\""), "{found:?}");
        }
    }
    let negative = causes(create(set(rolling("partition", "-12.5%"))));
    assert_eq!(negative[0].1, "\"-12.5%\" is not allowed; want 0 or more");
    // One that is stored stays, and holds no other change up.
    let old = set(rolling("maxUnavailable", "12.5%"));
    decide_with(&FeatureGates::default(), changed(&old, json!({"replicas": 7})), consenting).unwrap();
    let other = changed(&old, json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "33.3%"}}}));
    assert_eq!(causes(other)[0].0, format!("{ROLLING}maxUnavailable"));
}

/// 10.1 item 10, the rules that OpenKruise lacks.
#[test]
fn shortfall_10_1_10_validation_gaps() {
    for (spec, field) in [
        (json!({"ordinals": {"start": -1}}), "spec.ordinals.start"),
        (json!({"volumeClaimUpdateStrategy": {"type": "Sometimes"}}), "spec.volumeClaimUpdateStrategy.type"),
        (
            json!({"updateStrategy": {"rollingUpdate": {"inPlaceUpdateStrategy": {"gracePeriodSeconds": -1}}}}),
            "spec.updateStrategy.rollingUpdate.inPlaceUpdateStrategy.gracePeriodSeconds",
        ),
        (json!({"revisionHistoryLimit": -1}), "spec.revisionHistoryLimit"),
        (json!({"replicas": 3, "ordinals": {"start": i32::MAX}}), "spec.replicas"),
        (json!({"replicas": 100_001}), "spec.replicas"),
        (json!({"replicas": i32::MAX}), "spec.replicas"),
        (json!({"replicas": 3, "reserveOrdinals": ["2-2147483647"]}), "spec.replicas"),
        (json!({"replicas": 4, "reserveOrdinals": ["0-5", "3-7", "11-2147483647"]}), "spec.replicas"),
        (json!({"replicas": 4, "reserveOrdinals": ["0-5", "3-7", "11-99999999999999999999999"]}), "spec.replicas"),
        (
            json!({"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {}}, {"metadata": {"name": "a"}, "spec": {}}]}),
            "spec.volumeClaimTemplates[1].metadata.name",
        ),
    ] {
        assert_eq!(fields(spec.clone()), [field], "{spec}");
    }
    let named = |name: &str| {
        let mut object = set(json!({}));
        object["metadata"]["name"] = name.into();
        create(object)
    };
    decide_with(&FeatureGates::default(), named(&"x".repeat(52)), consenting).unwrap();
    for name in ["x".repeat(53), "a.b".into(), "A".into(), "-a".into()] {
        assert_eq!(causes(named(&name))[0].0, "metadata.name", "{name}");
    }
    let mut long = set(json!({}));
    long["metadata"]["name"] = "x".repeat(60).into();
    let grown = changed(&long, json!({"replicas": 2}));
    decide_with(&FeatureGates::default(), grown, consenting).expect("one that is there may be changed");
}

/// 10.1 item 10: the pattern of OpenKruise lets `imagePullPolicy` through and refuses resources.
#[test]
fn shortfall_10_1_10_in_place_only() {
    let old = stored(create(set(in_place("InPlaceOnly"))));
    let container = |container: Value| {
        let mut all = old["spec"]["template"]["spec"]["containers"].clone();
        json_patch::merge(&mut all[0], &container);
        json!({"template": {"spec": {"containers": all}}})
    };
    let resizing = gates(&["InPlaceWorkloadVerticalScaling=true"]);
    let off = FeatureGates::default();
    let memory = json!({"resources": {"requests": {"cpu": "1"}}});
    let with_memory = stored(changed(
        &stored(create(set(json!({})))),
        json!({"template": {"spec": {"containers":
        [{"name": "main", "image": "db:1", "resources": {"requests": {"cpu": "2"}}}]}}}),
    ));
    assert!(with_memory.pointer(IN_PLACE).is_some());
    for (change, gates, is_admitted) in [
        (container(json!({"image": "db:2"})), &off, true),
        (json!({"template": {"metadata": {"labels": {"more": "1"}, "annotations": {"a": "b"}}}}), &off, true),
        (container(json!({"imagePullPolicy": "Never"})), &off, false),
        (container(json!({"env": [{"name": "A", "value": "b"}]})), &off, false),
        (container(memory.clone()), &off, false),
    ] {
        let decision = decide_with(gates, changed(&old, change.clone()), consenting);
        assert_eq!(decision.is_ok(), is_admitted, "{change}: {decision:?}");
    }
    let mut sized = old.clone();
    sized["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
    let mut resized = sized.clone();
    resized["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "3"}});
    decide_with(&resizing, update(sized.clone(), resized.clone()), consenting).unwrap();
    assert_eq!(causes(update(sized, resized))[0].0, "spec.template.spec.containers[0].resources.requests.cpu");
}

/// 10.1 item 10: a raw old template against a defaulted new one is no change.
#[test]
fn shortfall_10_1_10_in_place_only_compares_templates_with_their_defaults() {
    let raw = set(in_place("InPlaceOnly"));
    let mut new = raw.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "db:2".into();
    let gates = FeatureGates::default();
    let admission = check(&gates, update(raw.clone(), new)).unwrap();
    let mut answers = consenting(&admission);
    let old = stored(create(raw));
    answers.templates.old_template = Some(old["spec"]["template"].clone());
    admit(&admission, &answers).unwrap();
}

fn claims(storage: &str) -> Value {
    json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": storage}}}}])
}

fn growing(old: Value, new: Value, classes: &[(&str, bool, bool)]) -> Decision {
    growing_from("OnPodRollingUpdate", old, new, Ok(classes))
}

fn growing_from(strategy: &str, old: Value, new: Value, classes: Result<&[(&str, bool, bool)], String>) -> Decision {
    let classes = classes.map(|classes| {
        let class = |(i, (name, expands, is_default)): (usize, &(&str, bool, bool))| {
            let created = jiff::Timestamp::from_second(i64::try_from(i).unwrap()).unwrap();
            Class { name: (*name).into(), is_default: *is_default, created: Some(created), expands: *expands }
        };
        classes.iter().enumerate().map(class).collect()
    });
    let classes = classes.map_err(NotListed);
    let old = set(json!({"volumeClaimTemplates": old, "volumeClaimUpdateStrategy": {"type": strategy}}));
    let mut object = old.clone();
    object["spec"]["volumeClaimTemplates"] = new;
    object["spec"]["volumeClaimUpdateStrategy"]["type"] = "OnPodRollingUpdate".into();
    decide_with(&resizing(), update(old, object), |admission| Answers {
        classes: Some(classes),
        ..consenting(admission)
    })
}

#[test]
fn claims_grow_where_the_storage_class_lets_them() {
    let fields = |decision: Decision| -> Vec<String> {
        decision.unwrap_err().causes.into_iter().map(|cause| cause.field).collect()
    };
    const STORAGE: &str = "spec.volumeClaimTemplates[0].spec.resources.requests.storage";
    growing(claims("1Gi"), claims("2Gi"), &[("fast", true, false)]).unwrap();
    growing(claims("1Gi"), claims("1024Mi"), &[]).expect("the same amount");
    assert_eq!(fields(growing(claims("1Gi"), claims("2Gi"), &[("fast", false, false)])), [STORAGE]);
    assert_eq!(fields(growing(claims("1Gi"), claims("2Gi"), &[("other", true, true)])), [STORAGE], "named and missing");
    let without = |storage: &str| {
        let mut claims = claims(storage);
        claims[0]["spec"].as_object_mut().unwrap().remove("storageClassName");
        claims
    };
    growing(without("1Gi"), without("2Gi"), &[]).expect("no default class");
    growing(without("1Gi"), without("2Gi"), &[("old", false, true), ("new", true, true)]).expect("the newest default");
    assert_eq!(
        fields(growing(without("1Gi"), without("2Gi"), &[("old", true, true), ("new", false, true)])),
        [STORAGE]
    );
    let Admitted { warnings, .. } = growing_from("OnPodRollingUpdate", claims("1Gi"), claims("2Gi"), Err("no".into()))
        .expect("an update fails open");
    assert!(warnings[0].contains("not checked"), "{warnings:?}");
    let limit = |limit: &str| {
        let mut claims = claims("1Gi");
        claims[0]["spec"]["resources"]["limits"] = json!({"storage": limit});
        claims
    };
    growing(limit("3Gi"), limit("4Gi"), &[]).expect("limits may change");
}

/// 10.1 item 11: OpenKruise asks by the strategy before, and lets a shrink and an unset `allowVolumeExpansion` through.
#[test]
fn shortfall_10_1_11_resize_check_uses_the_new_strategy() {
    let switched = growing_from("OnDelete", claims("1Gi"), claims("2Gi"), Ok(&[("fast", false, false)]));
    assert_eq!(switched.unwrap_err().code, 422, "to switch and resize at once is judged");
    let shrunk = growing(claims("2Gi"), claims("1Gi"), &[]).expect("the way out of a size that cannot be had");
    assert!(shrunk.warnings[0].contains("volumes do not shrink"), "{:?}", shrunk.warnings);
    let mut without = claims("2Gi");
    without[0]["spec"]["resources"] = json!({});
    assert_eq!(growing(claims("2Gi"), without, &[]).unwrap_err().code, 422);
    // When every claim has the size there is nothing to be got out of.
    let shrunk = |generation: i64, ready: i64| {
        let strategy = json!({"type": "OnPodRollingUpdate"});
        let mut old = set(json!({"volumeClaimTemplates": claims("2Gi"), "volumeClaimUpdateStrategy": strategy}));
        old["metadata"]["generation"] = 3.into();
        old["status"] = json!({"observedGeneration": generation, "replicas": 2, "volumeClaims": [
            {"volumeClaimName": "log", "compatibleReplicas": 0, "compatibleReadyReplicas": 0},
            {"volumeClaimName": "data", "compatibleReplicas": 2, "compatibleReadyReplicas": ready}]});
        let mut object = old.clone();
        object["spec"]["volumeClaimTemplates"] = claims("1Gi");
        decide_with(&resizing(), update(old, object), consenting)
    };
    let causes = shrunk(3, 2).unwrap_err().causes;
    assert_eq!(causes[0].field, "spec.volumeClaimTemplates[0].spec.resources.requests.storage");
    assert_eq!(
        causes[0].message,
        "\"1Gi\" is not allowed; want \"2Gi\" or more: every claim has that already, and volumes do not shrink"
    );
    shrunk(3, 1).expect("one claim has not grown");
    shrunk(2, 2).expect("the status is about an older template");
    let unset: StorageClass =
        serde_json::from_value(json!({"metadata": {"name": "fast"}, "provisioner": "p"})).unwrap();
    assert!(!Class::of(&unset).expands);
}

#[test]
fn of_claims_that_grow_nothing_else_changes() {
    let with = |key: &str, value: Value| {
        let mut claims = claims("1Gi");
        claims[0]["spec"][key] = value;
        claims
    };
    for (key, value) in [
        ("storageClassName", json!("slow")),
        ("accessModes", json!(["ReadWriteMany"])),
        ("volumeMode", json!("Block")),
        ("selector", json!({"matchLabels": {"a": "b"}})),
    ] {
        let denied = growing(claims("1Gi"), with(key, value), &[]).unwrap_err();
        assert_eq!(denied.causes[0].field, format!("spec.volumeClaimTemplates[0].spec.{key}"));
    }
    growing(claims("1Gi"), with("volumeMode", json!("Filesystem")), &[]).expect("its default");
    let gone = growing(claims("1Gi"), json!([]), &[]).unwrap_err();
    assert!(gone.causes[0].message.contains("\"data\" is missing"), "{gone:?}");
    let mut more = claims("1Gi").as_array().unwrap().clone();
    more.push(json!({"metadata": {"name": "log"}, "spec": {"accessModes": ["ReadWriteOnce"]}}));
    growing(claims("1Gi"), more.into(), &[]).expect("10.1 item 6: a template may come");
}

/// Edge case 22.
#[test]
fn edge_22_without_the_resize_gate_no_storage_class_is_read() {
    let old = set(
        json!({"volumeClaimTemplates": claims("2Gi"), "volumeClaimUpdateStrategy": {"type": "OnPodRollingUpdate"}}),
    );
    let mut new = old.clone();
    new["spec"]["volumeClaimTemplates"] = claims("1Gi");
    let admission = check(&FeatureGates::default(), update(old, new)).unwrap();
    assert!(admission.growing.is_empty() && admission.judged.found.causes.is_empty());
    assert!(
        admission.judged.found.warnings[0].contains("StatefulSetAutoResizePVCGate"),
        "{:?}",
        admission.judged.found.warnings
    );
    assert!(
        RBAC.iter().all(|rule| rule.verbs == ["create"] || rule.verbs == ["list"]),
        "it reads and writes nothing else"
    );
}

#[test]
fn without_a_gate_a_field_that_needs_it_is_warned_of() {
    let (_, warnings) = stored_with(&FeatureGates::default(), create(set(json!({"ordinals": {"start": 2}}))));
    assert_eq!(warnings, ["spec.ordinals.start has no effect while the feature gate StatefulSetStartOrdinal is off"]);
    let (_, warnings) =
        stored_with(&gates(&["StatefulSetStartOrdinal=true"]), create(set(json!({"ordinals": {"start": 2}}))));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn a_share_as_partition_is_warned_of_because_others_cannot_read_it() {
    let partition = |value: Value| create(set(json!({"updateStrategy": {"rollingUpdate": {"partition": value}}})));
    let (_, warnings) = stored_with(&FeatureGates::default(), partition(json!("50%")));
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("spec.updateStrategy.rollingUpdate.partition: ") && warnings[0].contains("\"50%\"")
    );
    assert_eq!(stored_with(&FeatureGates::default(), partition(json!(2))).1, Vec::<String>::new());
}

#[test]
fn what_was_let_in_before_does_not_stand_in_the_way() {
    let old = set(
        json!({"replicas": 3, "reserveOrdinals": ["5"], "updateStrategy": {"rollingUpdate": {"minReadySeconds": 900}}}),
    );
    decide_with(&FeatureGates::default(), changed(&old, json!({"replicas": 4})), consenting).unwrap();
    let worse = changed(&old, json!({"reserveOrdinals": ["6"]}));
    assert_eq!(causes(worse)[0].0, "spec.reserveOrdinals[0]");
}

#[test]
fn a_create_without_an_answer_is_refused_and_an_update_passes() {
    let none = |_: &StatefulSetAdmission| Answers { templates: template::Answers::late(), ..Answers::default() };
    let gates = FeatureGates::default();
    assert_eq!(decide_with(&gates, create(set(json!({}))), none).unwrap_err().code, 500);
    let old = set(json!({}));
    let new = changed(&old, json!({"template": {"spec": {"hostNetwork": true}}}));
    let Admitted { warnings, .. } = decide_with(&gates, new, none).unwrap();
    assert!(warnings[0].contains("not checked"), "{warnings:?}");
}

#[test]
fn a_refused_template_is_reported_field_by_field() {
    let refused = |admission: &StatefulSetAdmission| {
        let causes = vec![("template.spec.containers[0].image".into(), "Required value".into())];
        let templates =
            template::Answers { trial: Some(Err(Refused::Invalid(causes))), ..template::Answers::default() };
        Answers { templates, ..consenting(admission) }
    };
    let denied = decide_with(&FeatureGates::default(), create(set(json!({}))), refused).unwrap_err();
    assert_eq!((denied.code, denied.causes[0].field.as_str()), (422, "spec.template.spec.containers[0].image"));
}

#[test]
fn overrides_are_judged_when_they_or_the_template_change() {
    let key = labels::ORDINAL_OVERRIDES;
    let good = r#"[{"ordinals": "0-1", "containers": {"main": {"image": "db:2"}}}]"#;
    let object = with_annotation(set(json!({})), key, good);
    let admission = check(&FeatureGates::default(), create(object.clone())).unwrap();
    let trials = admission.trials();
    assert_eq!(trials.len(), 1);
    assert_eq!(trials[0].1["template"]["spec"]["containers"][0]["image"], "db:2");
    assert_eq!(stored(create(object.clone()))["spec"]["template"]["spec"]["containers"][0]["image"], "db:1");

    let bad =
        with_annotation(set(json!({})), key, r#"[{"ordinals": "x", "containers": {"other": {"image": "db:2"}}}]"#);
    assert_eq!(causes(create(bad.clone()))[0].0, format!("metadata.annotations[{key}][0].ordinals"));
    let unknown =
        with_annotation(set(json!({})), key, r#"[{"ordinals": 1, "containers": {"other": {"image": "db:2"}}}]"#);
    assert_eq!(causes(create(unknown))[0].0, format!("metadata.annotations[{key}][0].containers"));

    let scaled = check(&FeatureGates::default(), changed(&object, json!({"replicas": 2}))).unwrap();
    assert!(scaled.trials().is_empty(), "nothing of it is new");
    let other = check(&FeatureGates::default(), changed(&object, json!({"template": {"spec": {"hostNetwork": true}}})))
        .unwrap();
    assert_eq!(other.trials().len(), 1, "with another template it is tried again");
    decide_with(&FeatureGates::default(), changed(&bad, json!({"replicas": 2})), consenting)
        .expect("it was there before");

    let refused = |admission: &StatefulSetAdmission| {
        let causes = vec![("template.spec.containers[0].image".into(), "Invalid value".into())];
        Answers { overrides: vec![(0, Err(Refused::Invalid(causes)))], ..consenting(admission) }
    };
    let denied = decide_with(&FeatureGates::default(), create(object), refused).unwrap_err();
    assert_eq!(denied.causes[0].field, format!("metadata.annotations[{key}][0]"));
    assert!(denied.causes[0].message.contains("spec.template.spec.containers[0].image"), "{denied:?}");
}

#[test]
fn an_override_brings_nothing_that_the_template_does_not_have() {
    let body = |cost: &str, pages: &str| {
        json!({"template": {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "spec": {"containers": [{"resources": {"limits": {"hugepages-2Mi": pages}}}]}}})
    };
    let pages = "template.spec.containers[0].resources.limits[hugepages-2Mi]";
    let tolerated = || {
        let of = |(field, message)| Tolerated::of(field, message).unwrap();
        let cost = "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]";
        let complaint = "3Mi is not positive integer multiple of hugepages-2Mi";
        [(cost, "must be a 32bit integer"), (pages, complaint)].map(of).to_vec()
    };
    assert_eq!(brings_nothing(tolerated(), &body("abc", "3Mi"), &body("abc", "3Mi")), Ok(()));
    let brought = brings_nothing(tolerated(), &body("abc", "2Mi"), &body("abc", "3Mi"));
    assert!(matches!(brought, Err(Refused::Invalid(causes)) if causes.len() == 1 && causes[0].0 == pages));
}

#[test]
fn an_update_order_is_judged_when_it_changes() {
    let key = labels::UPDATE_ORDER;
    let object = with_annotation(set(json!({})), key, "role");
    assert_eq!(causes(create(object.clone()))[0].0, format!("metadata.annotations[{key}]"));
    decide_with(&FeatureGates::default(), changed(&object, json!({"replicas": 2})), consenting).unwrap();
    decide_with(&FeatureGates::default(), create(with_annotation(set(json!({})), key, "role=leader")), consenting)
        .unwrap();
}

#[test]
fn updates_are_judged_when_spec_or_annotations_of_ours_change() {
    let conditions = on_update(&FeatureGates::default());
    assert_eq!(
        conditions.iter().map(|condition| condition.name).collect::<Vec<_>>(),
        ["spec-changed", "not-being-deleted"]
    );
    for key in ANNOTATIONS {
        assert!(conditions[0].expression.contains(key), "{key}");
    }
}

/// The recorded set as a user applied it, and as OpenKruise stored it.
fn recorded() -> (Value, Value) {
    let stored: Vec<Value> =
        serde_json::from_str(include_str!("../../../api/apps/testdata/stateful_sets.json")).unwrap();
    let stored = stored.into_iter().find(|object| object["apiVersion"] == "apps.kruise.io/v1beta1").unwrap();
    let applied =
        stored["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str().unwrap();
    (serde_json::from_str(applied).unwrap(), stored)
}

/// What Kubernetes 1.34 answers, played: it knows the recorded template to be the one with all defaults.
fn recording(recorded: &Value) -> impl Fn(&StatefulSetAdmission) -> Answers {
    let mut template = recorded["spec"]["template"].clone();
    template["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    move |admission| {
        let trial = admission
            .templates()
            .trial()
            .map(|_| Ok(Answer { object: json!({"template": template}), ..Answer::default() }));
        Answers { templates: template::Answers { trial, ..template::Answers::default() }, ..Answers::default() }
    }
}

#[test]
fn what_a_user_applied_becomes_what_open_kruise_stored() {
    let (applied, recorded) = recorded();
    let gates = resizing();
    let Admitted { patch, .. } = decide_with(&gates, create(applied.clone()), recording(&recorded)).unwrap();
    let mut object = applied;
    json_patch::patch(&mut object, &patch).unwrap();
    assert_eq!(object["spec"], recorded["spec"]);
    serde_json::from_value::<StatefulSet>(object).unwrap();
}

/// The same manifest applied again after a takeover: kubectl's patch leaves the stored defaults.
#[test]
fn the_original_manifest_applied_again_gives_the_recorded_revision() {
    let (applied, recorded) = recorded();
    let data = revision::data(&recorded["spec"]["template"]);
    assert_eq!(revision::name("asts", &revision::hash_of(&data, 0)), recorded["status"]["updateRevision"]);
    // Replaced as a whole, without its defaults: they come back byte for byte.
    let mut replaced = recorded.clone();
    replaced["spec"] = applied["spec"].clone();
    let Admitted { patch, .. } =
        decide_with(&resizing(), update(recorded.clone(), replaced.clone()), recording(&recorded)).unwrap();
    json_patch::patch(&mut replaced, &patch).unwrap();
    assert_eq!(replaced["spec"], recorded["spec"]);
    assert_eq!(revision::body(&revision::data(&replaced["spec"]["template"])), revision::body(&data));
}

/// 10.1 item 20, decision 22: revisions of apps/v1 from 1.30 have `creationTimestamp: null`, those from 1.34 have not.
#[test]
fn shortfall_10_1_20_revisions_of_apps_v1_of_1_30_and_1_34_are_the_same() {
    let (_, recorded) = recorded();
    let of_1_30 = revision::data(&recorded["spec"]["template"]);
    let mut of_1_34 = of_1_30.clone();
    of_1_34["spec"]["template"]["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    of_1_34["spec"]["template"]["spec"]["containers"][0].as_object_mut().unwrap().remove("resources");
    assert_ne!(revision::body(&of_1_30), revision::body(&of_1_34));
    assert!(is_same_data(&of_1_30, &of_1_34));
    let mut other = of_1_34.clone();
    other["spec"]["template"]["spec"]["containers"][0]["image"] = "other".into();
    assert!(!is_same_data(&of_1_30, &other));
}

#[test]
fn a_class_is_read() {
    let class = StorageClass {
        metadata: ObjectMeta {
            name: Some("fast".into()),
            annotations: Some([("storageclass.kubernetes.io/is-default-class".into(), "true".into())].into()),
            creation_timestamp: Some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        },
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    };
    let want =
        Class { name: "fast".into(), is_default: true, created: Some(jiff::Timestamp::UNIX_EPOCH), expands: true };
    assert_eq!(Class::of(&class), want);
}

#[test]
fn shortfall_10_1_a_client_of_v1alpha1_loses_nothing() {
    let stored = json!({"reserveOrdinals": [1], "lifecycle": {"preDelete": {"labelsHandler": {"a": "b"}}},
        "scaleStrategy": {"maxUnavailable": 1}, "ordinals": {"start": 0}, "minReadySeconds": 5,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "volumeClaimUpdateStrategy": {"type": "OnPodRollingUpdate"}});
    let written = |version: &str, operation: &str, spec: Value| {
        let mut object = set(spec);
        object["apiVersion"] = json!(format!("apps.kruise.io/{version}"));
        let mut request = update(set(stored.clone()), object.clone());
        request.operation = operation.into();
        let patch = decide_with(&FeatureGates::default(), request, consenting).unwrap().patch;
        json_patch::patch(&mut object, &patch).unwrap();
        object["spec"].clone()
    };
    let kept = written("v1alpha1", "UPDATE", json!({"replicas": 3}));
    for key in UNKNOWN_TO_V1ALPHA1 {
        assert_eq!(kept[key], stored[key], "{key}");
    }
    assert!(kept.get("minReadySeconds").is_none(), "no field of v1beta1 alone");
    let changed = written("v1alpha1", "UPDATE", json!({"reserveOrdinals": [2]}));
    assert_eq!((&changed["reserveOrdinals"], &changed["lifecycle"]), (&json!([2]), &stored["lifecycle"]));
    for (version, operation) in [("v1beta1", "UPDATE"), ("v1alpha1", "CREATE")] {
        let removed = written(version, operation, json!({"replicas": 3}));
        // One of them has a default.
        assert!(UNKNOWN_TO_V1ALPHA1.iter().all(|key| removed[*key] != stored[*key]), "{version} {operation}");
    }
}

#[test]
fn a_client_of_v1alpha1_is_told_what_is_put_back_and_may_remove_what_kubectl_has_applied() {
    let lifecycle = json!({"preDelete": {"labelsHandler": {"a": "b"}}});
    let alpha = |spec: Value, applied: Option<Value>| {
        let mut object = set(spec);
        object["apiVersion"] = "apps.kruise.io/v1alpha1".into();
        match applied {
            Some(spec) => with_annotation(object, LAST_APPLIED, &json!({"spec": spec}).to_string()),
            None => object,
        }
    };
    let full = json!({"reserveOrdinals": [1], "lifecycle": lifecycle,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}});
    let told = |fields: &[&str]| -> Vec<String> {
        let tell = |field: &&str| {
            format!("spec.{field} is kept: a client of v1alpha1 may not know it; remove it through v1beta1")
        };
        fields.iter().map(tell).collect()
    };
    let kept = |was_applied: Option<Value>, is_applied: Option<Value>| {
        let request = update(alpha(full.clone(), was_applied), alpha(json!({"replicas": 2}), is_applied));
        let (stored, warnings) = stored_with(&FeatureGates::default(), request);
        let there = |key: &str| stored["spec"].get(key) == Some(&full[key]);
        assert!(there("persistentVolumeClaimRetentionPolicy"), "the default: {stored}");
        (there("reserveOrdinals"), there("lifecycle"), warnings)
    };
    let both = told(&["lifecycle", "reserveOrdinals"]);
    // A client in Go: no manifest, or that of somebody before it, which it hands on.
    assert_eq!(kept(None, None), (true, true, both.clone()));
    assert_eq!(kept(Some(full.clone()), Some(full.clone())), (true, true, both.clone()));
    // A manifest that has it no longer, that has never had it, and none any more.
    let without = json!({"replicas": 2, "lifecycle": null});
    assert_eq!(kept(Some(full.clone()), Some(without.clone())), (false, false, vec![]));
    let had = json!({"lifecycle": lifecycle});
    assert_eq!(kept(Some(had), Some(without.clone())), (true, false, told(&["reserveOrdinals"])));
    assert_eq!(kept(Some(without.clone()), Some(without.clone())), (true, true, both.clone()));
    assert_eq!(kept(None, Some(without)), (true, true, both.clone()));
    assert_eq!(kept(Some(full.clone()), None), (true, true, both.clone()));
    // What is not JSON, or no manifest, says nothing.
    for odd in ["", "{", "7", r#"{"spec": 7}"#] {
        let old = alpha(full.clone(), Some(full.clone()));
        let new = with_annotation(alpha(json!({}), None), LAST_APPLIED, odd);
        assert_eq!(stored_with(&FeatureGates::default(), update(old, new)).1, both, "{odd}");
    }
}
