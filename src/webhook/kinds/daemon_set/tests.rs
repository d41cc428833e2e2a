use super::*;
use crate::{
    domain::workload::revisions::is_same_data, k8s::revision, runtime::pod_template::Answer,
    webhook::server::review::Cause,
};

fn set(spec: Value) -> Value {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet", "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template()}});
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "main", "image": "agent:1"}]}})
}

fn rolling(rolling: Value) -> Value {
    set(json!({"updateStrategy": {"rollingUpdate": rolling}}))
}

fn create(object: Value) -> Request {
    Request { operation: "CREATE".into(), namespace: "a".into(), object, ..Request::default() }
}

fn update(old_object: Value, object: Value) -> Request {
    Request { operation: "UPDATE".into(), namespace: "a".into(), object, old_object, ..Request::default() }
}

/// An API server that has defaults and finds nothing wrong.
fn consenting(admission: &DaemonSetAdmission) -> template::Answers {
    let trial = admission.templates().trial().map(|trial| {
        let mut object = trial.body();
        object["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
        Ok(Answer { object, ..Answer::default() })
    });
    template::Answers { trial, ..template::Answers::default() }
}

fn decide(request: Request) -> Decision {
    let admission = check(request)?;
    let answers = consenting(&admission);
    admit(&admission, &answers)
}

fn admitted(request: Request) -> (Value, Vec<String>) {
    let mut object = request.object.clone();
    let Admitted { patch, warnings } = decide(request).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    (object, warnings)
}

fn stored(object: Value) -> Value {
    admitted(create(object)).0
}

/// The fields of a refusal and the messages.
fn causes(request: Request) -> Vec<(String, String)> {
    let denied = decide(request).unwrap_err();
    assert_eq!(denied.code, 422, "{denied:?}");
    denied.causes.into_iter().map(|Cause { field, message }| (field, message)).collect()
}

fn fields(object: Value) -> Vec<String> {
    causes(create(object)).into_iter().map(|(field, _)| field).collect()
}

fn strategy(object: Value) -> Value {
    stored(object)["spec"]["updateStrategy"]["rollingUpdate"].clone()
}

#[test]
fn every_default_of_4_2() {
    let spec = &stored(set(json!({})))["spec"];
    assert_eq!((&spec["revisionHistoryLimit"], &spec["burstReplicas"]), (&json!(10), &json!(250)));
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"rollingUpdateType": "Standard", "partition": 0, "maxUnavailable": 1, "maxSurge": 0}})
    );
    for absent in ["minReadySeconds", "scaleStrategy", "lifecycle"] {
        assert_eq!(spec.get(absent), None, "{absent}");
    }
    let on_delete = stored(set(json!({"updateStrategy": {"type": "OnDelete"}})));
    assert_eq!(on_delete["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
}

#[test]
fn a_template_gets_no_defaults_but_what_a_typed_client_writes() {
    assert_eq!(
        stored(set(json!({})))["spec"]["template"],
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "agent"}},
            "spec": {"containers": [{"name": "main", "image": "agent:1", "resources": {}}]}})
    );
}

#[test]
fn given_limits_get_no_partner() {
    assert_eq!(
        strategy(rolling(json!({"maxSurge": 2}))),
        json!({"rollingUpdateType": "Standard", "partition": 0, "maxSurge": 2})
    );
    let recorded = json!({"rollingUpdateType": "Standard", "maxUnavailable": 1, "partition": 0});
    assert_eq!(strategy(rolling(recorded.clone())), recorded, "as it was recorded");
}

#[test]
fn surging_becomes_standard_with_a_surge() {
    let standard =
        |surge: Value| json!({"rollingUpdateType": "Standard", "partition": 0, "maxUnavailable": 0, "maxSurge": surge});
    assert_eq!(strategy(rolling(json!({"rollingUpdateType": "Surging"}))), standard(json!(1)));
    let given = json!({"rollingUpdateType": "Surging", "maxSurge": "20%"});
    assert_eq!(strategy(rolling(given)), standard(json!("20%")));
}

#[test]
fn what_is_set_stays_and_a_second_call_changes_nothing() {
    let spec = json!({"minReadySeconds": 5, "revisionHistoryLimit": 0, "burstReplicas": "10%", "fieldOfTheFuture": {"a": [1]},
        "lifecycle": {"preDelete": {"labelsHandler": {"a": "b"}, "finalizersHandler": ["a.b/c"], "markPodNotReady": true},
            "inPlaceUpdate": {}, "preNormal": {}},
        "scaleStrategy": {"partitionedScaling": true},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": "30%",
            "partition": "50%", "paused": true, "selector": {"matchLabels": {"zone": "a"}}}}});
    let once = stored(set(spec.clone()));
    for (key, value) in spec.as_object().unwrap() {
        assert_eq!(once["spec"][key], *value, "{key}");
    }
    assert_eq!(stored(once.clone()), once);
    let mut alpha = set(spec);
    alpha["apiVersion"] = "apps.kruise.io/v1alpha1".into();
    assert_eq!(stored(alpha)["spec"], once["spec"], "both versions are admitted alike");
    let mut changed = once.clone();
    changed["spec"]["minReadySeconds"] = 6.into();
    assert_eq!(decide(update(once, changed)).unwrap().patch.0, []);
}

#[test]
fn edge_43_a_manifest_of_the_built_in_daemon_set_is_admitted() {
    let built_in = set(
        json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0}},
        "minReadySeconds": 0, "revisionHistoryLimit": 10}),
    );
    let (object, warnings) = admitted(create(built_in));
    assert_eq!(warnings, Vec::<String>::new());
    let rolling = json!({"rollingUpdateType": "Standard", "partition": 0, "maxUnavailable": "10%", "maxSurge": 0});
    assert_eq!(object["spec"]["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": rolling}));
}

#[test]
fn shortfall_10_2_38_an_invalid_set_is_a_422_with_all_errors() {
    let wrong = set(json!({"minReadySeconds": -1, "revisionHistoryLimit": -1, "burstReplicas": "many",
        "selector": {"matchLabels": {"app": "other"}},
        "template": {"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 5}},
        "updateStrategy": {"type": "Sometimes", "rollingUpdate": {"rollingUpdateType": "Sideways", "maxUnavailable": "101%", "partition": -1,
            "selector": {}}}}));
    assert_eq!(
        fields(wrong),
        [
            "spec.template.metadata.labels",
            "spec.template.spec.restartPolicy",
            "spec.template.spec.activeDeadlineSeconds",
            "spec.minReadySeconds",
            "spec.revisionHistoryLimit",
            "spec.burstReplicas",
            "spec.updateStrategy.type",
            "spec.updateStrategy.rollingUpdate.rollingUpdateType",
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            "spec.updateStrategy.rollingUpdate.partition",
            "spec.updateStrategy.rollingUpdate.selector",
        ]
    );
}

#[test]
fn exactly_one_limit_is_not_0() {
    let at = |rolling_update: Value| fields(rolling(rolling_update));
    assert_eq!(at(json!({"maxUnavailable": 1, "maxSurge": 1})), ["spec.updateStrategy.rollingUpdate.maxSurge"]);
    for both in [json!({"maxUnavailable": 0}), json!({"maxUnavailable": "0%", "maxSurge": 0}), json!({"maxSurge": 0})] {
        assert_eq!(at(both), ["spec.updateStrategy.rollingUpdate.maxUnavailable"]);
    }
    let in_place = json!({"rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": 0, "maxSurge": 1});
    assert_eq!(at(in_place), ["spec.updateStrategy.rollingUpdate.maxSurge"]);
    let on_delete =
        set(json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}}));
    stored(on_delete);
    // With Surging as they are stored, which has to be let in when it comes again.
    let surging = |limits: Value| {
        let mut object = json!({"rollingUpdateType": "Surging"});
        json_patch::merge(&mut object, &limits);
        object
    };
    for unavailable in [json!(1), json!("10%")] {
        let found = causes(create(rolling(surging(json!({"maxUnavailable": unavailable})))));
        assert_eq!(found[0].0, "spec.updateStrategy.rollingUpdate.maxSurge");
        assert!(found[0].1.starts_with("the default is not allowed while maxUnavailable is "), "{found:?}");
    }
    assert_eq!(at(surging(json!({"maxSurge": 0}))), ["spec.updateStrategy.rollingUpdate.maxUnavailable"]);
    assert_eq!(at(surging(json!({"maxSurge": "many"}))), ["spec.updateStrategy.rollingUpdate.maxSurge"]);
    for limits in [json!({}), json!({"maxSurge": "20%"}), json!({"maxSurge": 0, "maxUnavailable": 1})] {
        let once = stored(rolling(surging(limits)));
        assert_eq!(stored(once.clone()), once);
    }
}

#[test]
fn item_1_3_a_percentage_is_digits_and_a_sign_of_percent() {
    const AT: &str = "spec.updateStrategy.rollingUpdate.";
    for (object, field) in [
        (rolling(json!({"maxUnavailable": "12.5%"})), format!("{AT}maxUnavailable")),
        // It is not 0, so it is the only finding.
        (rolling(json!({"maxUnavailable": "12.5%", "maxSurge": 0})), format!("{AT}maxUnavailable")),
        (rolling(json!({"maxSurge": "12.5%", "maxUnavailable": 0})), format!("{AT}maxSurge")),
        (rolling(json!({"partition": "12.5%"})), format!("{AT}partition")),
        (set(json!({"burstReplicas": "12.5%"})), "spec.burstReplicas".to_owned()),
    ] {
        let message = "\"12.5%\" is not allowed; want a whole number or a whole percentage such as \"20%\"";
        assert_eq!(causes(create(object)), [(field, message.to_owned())]);
    }
    let old = rolling(json!({"maxUnavailable": "12.5%"}));
    let mut new = old.clone();
    new["spec"]["minReadySeconds"] = 3.into();
    new["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] = 0.into();
    admitted(update(old.clone(), new));
    let mut other = old.clone();
    other["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = "33.3%".into();
    assert_eq!(causes(update(old, other))[0].0, format!("{AT}maxUnavailable"));
}

#[test]
fn fields_of_a_wrong_type_are_a_400_that_names_them_all() {
    let odd = set(json!({"minReadySeconds": "1", "scaleStrategy": {"partitionedScaling": "yes"},
        "updateStrategy": {"rollingUpdate": {"paused": "no", "maxSurge": {}}}}));
    let denied = decide(create(odd)).unwrap_err();
    assert_eq!(denied.code, 400);
    for field in ["spec.minReadySeconds", "partitionedScaling", "rollingUpdate.paused", "rollingUpdate.maxSurge"] {
        assert!(denied.message.contains(field), "{field}: {}", denied.message);
    }
    assert_eq!(decide(create(json!([]))).unwrap_err().code, 400);
}

#[test]
fn an_update_is_not_refused_for_what_it_does_not_change() {
    let old = set(json!({"burstReplicas": "many"}));
    let mut new = old.clone();
    new["spec"]["minReadySeconds"] = 3.into();
    admitted(update(old.clone(), new));
    let mut worse = old.clone();
    worse["spec"]["burstReplicas"] = "more".into();
    assert_eq!(causes(update(old, worse))[0].0, "spec.burstReplicas");
}

#[test]
fn annotations_of_ours_are_judged() {
    let mut object = set(json!({}));
    object["metadata"]["annotations"] = json!({labels::STRICT_MAX_UNAVAILABLE: "yes",
        labels::MAX_UNAVAILABLE_PER_TOPOLOGY: "zone", labels::IN_PLACE_GRACE_SECONDS: "soon"});
    let found = fields(object);
    assert_eq!(found.len(), 3, "{found:?}");
    let conditions = on_update(&FeatureGates::default());
    assert!(ANNOTATIONS.iter().all(|key| conditions[0].expression.contains(key)));
}

#[test]
fn shortfall_10_2_35_the_field_and_the_annotation_of_v1alpha1_say_the_same() {
    const ON: Option<bool> = Some(true);
    const OFF: Option<bool> = Some(false);
    let with = |version: &str, (is_set, text): (Option<bool>, Option<bool>)| {
        let mut object = set(json!({"scaleStrategy": {}}));
        object["apiVersion"] = json!(format!("apps.kruise.io/{version}"));
        if let Some(is_set) = is_set {
            object["spec"]["scaleStrategy"] = json!({"partitionedScaling": is_set});
        }
        if let Some(text) = text {
            object["metadata"]["annotations"] = json!({labels::PROGRESSIVE_CREATE: text.to_string()});
        }
        object
    };
    // Field and annotation: as stored, as sent, and as they become in v1beta1 and in v1alpha1.
    for (old, new, beta, alpha) in [
        (None, (None, None), (None, None), (None, None)),
        (None, (ON, None), (ON, ON), (ON, ON)),
        (None, (None, ON), (ON, ON), (ON, ON)),
        (None, (OFF, ON), (OFF, None), (OFF, None)),
        (None, (None, OFF), (None, OFF), (None, OFF)),
        // One form is changed.
        (Some((ON, ON)), (OFF, ON), (OFF, None), (OFF, None)),
        (Some((ON, ON)), (ON, OFF), (None, OFF), (None, OFF)),
        (Some((OFF, None)), (ON, None), (ON, ON), (ON, ON)),
        (Some((None, None)), (None, ON), (ON, ON), (ON, ON)),
        (Some((OFF, None)), (OFF, ON), (ON, ON), (ON, ON)),
        // One form is taken away: only a client that knows it means it.
        (Some((ON, ON)), (None, ON), (None, None), (ON, ON)),
        (Some((ON, ON)), (ON, None), (ON, ON), (None, None)),
        // Admission has not seen the old object.
        (Some((ON, None)), (None, None), (None, None), (ON, ON)),
        (Some((None, ON)), (None, ON), (ON, ON), (ON, ON)),
    ] {
        for (version, want) in [("v1beta1", beta), ("v1alpha1", alpha)] {
            let mut object = with(version, new);
            keep_in_step(&mut object, old.map(|old| with(version, old)).as_ref());
            assert_eq!((field(&object), annotation(&object)), want, "{version}: {old:?} -> {new:?}");
        }
    }
    let mut bare = json!({"metadata": {"annotations": null}, "spec": {"scaleStrategy": null}});
    bare["metadata"]["annotations"] = json!({labels::PROGRESSIVE_CREATE: "true"});
    keep_in_step(&mut bare, None);
    assert_eq!(bare["spec"]["scaleStrategy"], json!({"partitionedScaling": true}));
    let admitted = stored(with("v1alpha1", (None, ON)));
    assert_eq!(admitted["spec"]["scaleStrategy"], json!({"partitionedScaling": true}));
}

#[test]
fn a_large_fleet_without_guards_is_warned_of() {
    let mut old = set(json!({}));
    old["status"] = json!({"desiredNumberScheduled": 21});
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "agent:2".into();
    let warnings = admitted(update(old.clone(), new.clone())).1;
    assert!(
        warnings[0].contains("21 nodes") && warnings[0].contains("kruise.rs/strict-max-unavailable"),
        "{warnings:?}"
    );
    let warned = |annotations: Value| {
        let mut annotated = new.clone();
        annotated["metadata"]["annotations"] = annotations;
        admitted(update(old.clone(), annotated)).1
    };
    let (strict, per_topology) = (labels::STRICT_MAX_UNAVAILABLE, labels::MAX_UNAVAILABLE_PER_TOPOLOGY);
    assert_eq!(warned(json!({strict: "true"})), Vec::<String>::new());
    assert_eq!(warned(json!({strict: " true ", per_topology: "zone=2"})), Vec::<String>::new());
    for no_limit in [json!({strict: "false"}), json!({strict: ""}), json!({per_topology: " "})] {
        assert_eq!(warned(no_limit.clone()), warnings, "{no_limit}");
    }
    let of_zones = warned(json!({strict: "false", per_topology: "zone=2"}));
    assert!(
        of_zones[0].ends_with("the annotation kruise.rs/strict-max-unavailable: \"true\" keeps that limit in any case"),
        "all zones together have none: {of_zones:?}"
    );
    assert_eq!(admitted(update(old.clone(), old.clone())).1, Vec::<String>::new(), "no new template");
    old["status"] = json!({"desiredNumberScheduled": 20});
    assert_eq!(admitted(update(old, new)).1, Vec::<String>::new());
}

#[test]
fn a_large_fleet_is_warned_of_when_an_update_that_is_not_done_goes_on_without_guards() {
    let (strict, none) = (json!({labels::STRICT_MAX_UNAVAILABLE: "true"}), json!({}));
    let zones = json!({labels::MAX_UNAVAILABLE_PER_TOPOLOGY: "zone=2"});
    let strategy = |fields: Value| json!({"type": "RollingUpdate", "rollingUpdate": fields});
    let (plain, on_delete) = (strategy(json!({})), json!({"type": "OnDelete"}));
    let paused = strategy(json!({"paused": true}));
    let partition = |nodes: Value| strategy(json!({ "partition": nodes }));
    let canary = |label: &str| strategy(json!({"selector": {"matchLabels": {"canary": label}}}));
    let object = |(strategy, annotations): (&Value, &Value), updated: i64| {
        let mut object = set(json!({ "updateStrategy": strategy }));
        object["metadata"]["annotations"] = annotations.clone();
        object["metadata"]["generation"] = 2.into();
        object["status"] =
            json!({"desiredNumberScheduled": 21, "updatedNumberScheduled": updated, "observedGeneration": 2});
        object
    };
    for (what, old, new, is_warned) in [
        ("strict goes off", (&plain, &strict), (&plain, &none), true),
        (
            "it goes off where the partition keeps the rest",
            (&partition(json!(20)), &strict),
            (&partition(json!(20)), &none),
            false,
        ),
        ("the limit per zone stays", (&plain, &strict), (&plain, &zones), true),
        ("it goes off while nothing goes on", (&paused, &strict), (&paused, &none), false),
        ("the limit per zone goes off", (&plain, &zones), (&plain, &none), false),
        ("OnDelete ends", (&on_delete, &none), (&plain, &none), true),
        ("it ends with a limit", (&on_delete, &none), (&plain, &strict), false),
        ("it begins", (&plain, &none), (&on_delete, &none), false),
        ("a pause ends", (&paused, &none), (&plain, &none), true),
        ("another hold begins", (&paused, &none), (&partition(json!("100%")), &none), false),
        ("the partition is lowered", (&partition(json!(20)), &none), (&partition(json!(10)), &none), true),
        ("it is gone", (&partition(json!("50%")), &none), (&plain, &none), true),
        ("it is raised", (&partition(json!(10)), &none), (&partition(json!(20)), &none), false),
        ("all nodes are selected", (&canary("yes"), &none), (&plain, &none), true),
        ("others are selected", (&canary("yes"), &none), (&canary("no"), &none), true),
        ("some are selected", (&plain, &none), (&canary("yes"), &none), false),
        ("nothing changes", (&paused, &none), (&paused, &none), false),
    ] {
        let warnings = |updated: i64| admitted(update(object(old, updated), object(new, updated))).1;
        let begins = "the update of 21 nodes goes on, and Pods that are not available are replaced";
        let is_one = |warnings: &[String]| warnings.len() == 1 && warnings[0].starts_with(begins);
        let unfinished = warnings(20);
        assert_eq!(is_one(&unfinished), is_warned, "{what}: {unfinished:?}");
        assert!(is_warned || unfinished.is_empty(), "{what}: {unfinished:?}");
        assert_eq!(warnings(21), Vec::<String>::new(), "{what}: the update is done");
    }
    let (mut before, after) = (object((&paused, &none), 21), object((&plain, &none), 21));
    before["metadata"]["generation"] = 3.into();
    assert_eq!(admitted(update(before, after)).1.len(), 1, "the status does not know the last spec yet");
}

#[test]
fn a_surge_with_a_host_port_is_warned_of() {
    let mut object = rolling(json!({"maxSurge": 1}));
    object["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
    assert_eq!(admitted(create(object.clone())).1, Vec::<String>::new());
    object["spec"]["template"]["spec"]["containers"][0]["ports"][0]["hostPort"] = 80.into();
    assert!(admitted(create(object)).1[0].contains("hostPort"));
}

#[test]
fn the_recorded_manifest_is_stored_as_it_was_recorded_and_makes_no_revision() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("../../../api/apps/testdata/daemon_sets.json")).unwrap();
    for object in &recorded {
        let template = &object["spec"]["template"];
        let applied = object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str();
        let mut manifest: Value = serde_json::from_str(applied.unwrap()).unwrap();
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] =
            template["spec"]["containers"][0]["image"].clone();
        assert_eq!(stored(manifest.clone())["spec"], object["spec"]);
        assert_eq!(decide(create(object.clone())).unwrap().patch.0, [], "nothing is added to what is stored");
        assert!(is_same_data(&revision::data(&manifest["spec"]["template"]), &revision::data(template)));
    }
}

#[test]
fn what_each_node_would_be_held_against_for_too_long_is_refused_and_what_is_stored_stays() {
    let terms = |number: usize| {
        let expression = json!({"key": "a", "operator": "Exists"});
        let required = json!({"nodeSelectorTerms": vec![json!({"matchExpressions": [expression]}); number]});
        set(
            json!({"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}}),
        )
    };
    let field =
        "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let message = "it has 1002 terms and requirements in all; want up to 1000";
    assert_eq!(causes(create(terms(501))), [(field.to_owned(), message.to_owned())]);
    assert!(decide(create(terms(500))).is_ok());
    let mut changed = terms(501);
    changed["spec"]["minReadySeconds"] = 3.into();
    assert!(decide(update(terms(501), changed)).is_ok(), "it was let in before");
    let exists = vec![json!({"key": "a", "operator": "Exists"}); 1001];
    assert_eq!(
        fields(rolling(json!({"selector": {"matchExpressions": exists}}))),
        ["spec.updateStrategy.rollingUpdate.selector.matchExpressions"]
    );
}
