use super::{
    answers::{FoundWhitelist, judge_metadata, judge_template},
    *,
};
use crate::{
    runtime::pod_template::{Answer, Refused},
    webhook::sidecars::{Sidecars, Stored},
};

fn set(spec: Value) -> Value {
    let mut whole =
        json!({"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": "agent", "image": "a:1"}]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": "logs"}, "spec": whole})
}

fn request(object: Value, old: Option<Value>) -> Request {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    Request { operation: operation.into(), object, old_object: old.unwrap_or_default(), ..Request::default() }
}

fn causes(found: &Findings) -> Vec<&str> {
    found.causes.iter().map(|cause| cause.field.as_str()).collect()
}

fn fields(spec: Value) -> Vec<String> {
    let admission = check(request(set(spec), None)).unwrap();
    admission.found.causes.into_iter().map(|cause| cause.field).collect()
}

fn good() -> Answers {
    let answer = Answer { object: json!({}), ..Answer::default() };
    Answers { template: template::Answers { trial: Some(Ok(answer)), old_template: None }, ..Answers::default() }
}

#[test]
fn a_set_gets_its_defaults_and_hashes() {
    let admission = check(request(set(json!({})), None)).unwrap();
    assert_eq!(causes(&admission.found), Vec::<&str>::new());
    let (wanted, annotations) = (&admission.wanted, &admission.wanted["metadata"]["annotations"]);
    assert_eq!(wanted["spec"]["updateStrategy"], json!({"type": "RollingUpdate", "partition": 0, "maxUnavailable": 1}));
    let hashes = hash::of(&wanted["spec"]);
    assert_eq!(annotations[labels::SIDECAR_SET_HASH], hashes.hash);
    assert_eq!(annotations[labels::SIDECAR_SET_HASH_WITHOUT_IMAGE], hashes.without_image);
    assert!(!admit(&admission, &good(), false).unwrap().patch.0.is_empty());
    let again = check(request(wanted.clone(), Some(wanted.clone()))).unwrap();
    assert!(admit(&again, &Answers::default(), false).unwrap().patch.0.is_empty(), "A7.5: an unchanged object");
}

#[test]
fn annotations_that_say_what_is_done_have_words_that_are_known() {
    let (repair, level) = (labels::REPAIR_UNINJECTED, labels::POD_LEVEL_RESOURCES);
    for (key, value, wanted) in [
        (repair, "evict", None),
        (repair, "true", Some("\"true\" is not allowed; want evict, or leave it out")),
        (level, "pad", None),
        (level, "share", None),
        (level, "shared", Some("\"shared\" is not allowed; want pad or share, or leave it out")),
    ] {
        let mut object = set(json!({}));
        object["metadata"]["annotations"] = json!({key: value});
        let found = check(request(object, None)).unwrap().found;
        let told: Vec<(&str, &str)> =
            found.causes.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        let field = format!("metadata.annotations[{key}]");
        let wanted: Vec<(&str, &str)> = wanted.into_iter().map(|message| (field.as_str(), message)).collect();
        assert_eq!(told, wanted);
        let judged = &on_update(&FeatureGates::default())[0].expression;
        assert!(judged.contains(key), "an update that changes nothing else is judged too");
    }
}

#[test]
fn a9_each_rule_names_its_field() {
    let sidecar = |more: Value| {
        let mut sidecar = json!({"name": "agent", "image": "a:1"});
        sidecar.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"containers": [sidecar]})
    };
    let strategy = |strategy: Value| json!({"updateStrategy": strategy});
    let reference = |path: &str| json!({"sourceContainerNameFrom": {"fieldRef": {"fieldPath": path}}, "envName": "E"});
    for (spec, wanted) in [
        (json!({"selector": {}}), vec!["spec.selector"]),
        (json!({"selector": null}), vec!["spec.selector"]),
        (json!({"containers": []}), vec!["spec.containers"]),
        (json!({"namespaceSelector": {}}), vec!["spec.namespaceSelector"]),
        (
            json!({"namespace": "A_"}),
            vec!["spec.namespace", "spec.namespaceSelector.matchLabels[kubernetes.io/metadata.name]"],
        ),
        (json!({"namespace": "a", "namespaceSelector": {"matchLabels": {"b": "c"}}}), vec!["spec.namespace"]),
        (json!({"customVersion": "a b"}), vec!["spec.customVersion"]),
        (sidecar(json!({"podInjectPolicy": "Somewhere"})), vec!["spec.containers[0].podInjectPolicy"]),
        (sidecar(json!({"shareVolumePolicy": {"type": "on"}})), vec!["spec.containers[0].shareVolumePolicy.type"]),
        (
            sidecar(json!({"upgradeStrategy": {"upgradeType": "Warm"}})),
            vec!["spec.containers[0].upgradeStrategy.upgradeType"],
        ),
        (
            sidecar(json!({"transferEnv": [{"envName": "E"}]})),
            vec!["spec.containers[0].transferEnv[0].sourceContainerName"],
        ),
        (
            sidecar(json!({"transferEnv": [reference("metadata.name")]})),
            vec!["spec.containers[0].transferEnv[0].sourceContainerNameFrom.fieldRef.fieldPath"],
        ),
        (sidecar(json!({"transferEnv": [reference("metadata.labels['a.b/c']")]})), vec![]),
        (sidecar(json!({"transferEnv": [reference("metadata.annotations['A']")]})), vec![]),
        (
            sidecar(json!({"resources": {"limits": {"cpu": "1"}}, "resourcesPolicy": {"targetContainersMode": "sum",
                "resourcesExpr": {"limits": {"cpu": "cpu"}}}})),
            vec!["spec.containers[0].resourcesPolicy"],
        ),
        (
            sidecar(
                json!({"resourcesPolicy": {"targetContainersMode": "min", "targetContainersNameRegex": "(", "resourcesExpr": {}}}),
            ),
            vec![
                "spec.containers[0].resourcesPolicy.targetContainersMode",
                "spec.containers[0].resourcesPolicy.targetContainersNameRegex",
                "spec.containers[0].resourcesPolicy.resourcesExpr",
            ],
        ),
        (
            sidecar(
                json!({"resourcesPolicy": {"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu*cpu"},
                "requests": {"memory": "memory-100Mi", "cpu": "max(cpu*50%, 50m"}}}}),
            ),
            vec![
                "spec.containers[0].resourcesPolicy.resourcesExpr.limits.cpu",
                "spec.containers[0].resourcesPolicy.resourcesExpr.requests.cpu",
            ],
        ),
        (
            sidecar(json!({"resourcesPolicy": {"resourcesExpr": {"limits": {"cpu": "cpu*50%"}}}})),
            vec!["spec.containers[0].resourcesPolicy.targetContainersMode"],
        ),
        (strategy(json!({"type": "Sometimes"})), vec!["spec.updateStrategy.type"]),
        (strategy(json!({"partition": "5"})), vec!["spec.updateStrategy.partition"]),
        (strategy(json!({"partition": -1})), vec!["spec.updateStrategy.partition"]),
        (strategy(json!({"partition": "12.5%"})), vec!["spec.updateStrategy.partition"]),
        (strategy(json!({"maxUnavailable": "50.0%"})), vec!["spec.updateStrategy.maxUnavailable"]),
        (strategy(json!({"maxUnavailable": "101%"})), vec!["spec.updateStrategy.maxUnavailable"]),
        (strategy(json!({"maxUnavailable": 0})), vec!["spec.updateStrategy.maxUnavailable"]),
        (strategy(json!({"type": "NotUpdate", "maxUnavailable": 0})), vec![]),
        (
            strategy(json!({"partition": 1, "selector": {"matchLabels": {"a": "b"}}})),
            vec!["spec.updateStrategy.partition"],
        ),
        (strategy(json!({"partition": 0, "selector": {"matchLabels": {"a": "b"}}})), vec![]),
        (
            strategy(
                json!({"scatterStrategy": [{"key": "a", "value": "*"}, {"key": "a", "value": "*"}, {"value": "x"}]}),
            ),
            vec!["spec.updateStrategy.scatterStrategy[1]", "spec.updateStrategy.scatterStrategy[2].key"],
        ),
        (json!({"injectionStrategy": {"revision": {}}}), vec!["spec.injectionStrategy.revision"]),
        (
            json!({"injectionStrategy": {"revision": {"revisionName": "a", "policy": "No"}}}),
            vec!["spec.injectionStrategy.revision.policy"],
        ),
        (json!({"injectionStrategy": {"revisionName": "a"}}), vec![]),
        (json!({"patchPodMetadata": [{}]}), vec!["spec.patchPodMetadata[0].annotations"]),
        (
            json!({"patchPodMetadata": [{"annotations": {"a": "1"}}, {"annotations": {"a": "1"}, "patchPolicy": "Add"}]}),
            vec!["spec.patchPodMetadata[1].patchPolicy", "spec.patchPodMetadata[1].annotations[a]"],
        ),
        (json!({"volumes": vec![json!({"name": "v"}); 201]}), vec!["spec.volumes"]),
    ] {
        assert_eq!(fields(spec.clone()), wanted, "{spec}");
    }
}

#[test]
fn a4_a_pattern_that_injection_cannot_use_is_refused() {
    let policy = |pattern: &str| {
        json!({"containers": [{"name": "agent", "image": "a:1", "resourcesPolicy": {
        "targetContainersMode": "sum", "targetContainersNameRegex": pattern, "resourcesExpr": {"limits": {"cpu": "cpu"}}}}]})
    };
    let field = "spec.containers[0].resourcesPolicy.targetContainersNameRegex";
    let long = "a".repeat(5_000);
    for (pattern, is_good) in
        [("^app-.*$", true), ("(", false), ("", false), (&*long, false), (r"\w{1000}{100}", false)]
    {
        assert_eq!(fields(policy(pattern)), if is_good { vec![] } else { vec![field.to_owned()] }, "{pattern}");
    }
}

#[test]
fn decision_36_a_launch_priority_that_is_none_is_refused() {
    let with = |value: &str| json!([{"name": "agent", "image": "a:1", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": value}]}]);
    assert_eq!(fields(json!({"containers": with("5")})), Vec::<String>::new());
    assert_eq!(fields(json!({"containers": with("soon")})), ["spec.containers[0].env"]);
    assert_eq!(
        fields(json!({"initContainers": with("soon"), "containers": []})),
        Vec::<String>::new(),
        "nobody reads it"
    );
}

#[test]
fn e4_a_word_that_nobody_knows_is_refused_wherever_it_stands() {
    let odd = json!({"name": "agent", "image": "a:1", "podInjectPolicy": "Somewhere", "shareVolumePolicy": {"type": "on"},
        "shareVolumeDevicePolicy": {"type": "on"}, "upgradeStrategy": {"upgradeType": "Warm"},
        "transferEnv": [{"sourceContainerName": "main"}, {"envName": "E",
            "sourceContainerNameFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]});
    for list in ["containers", "initContainers"] {
        let mut native = odd.clone();
        native["restartPolicy"] = "Always".into();
        let found = fields(json!({"containers": [], list: [native]}));
        for field in [
            "podInjectPolicy",
            "shareVolumePolicy.type",
            "shareVolumeDevicePolicy.type",
            "upgradeStrategy.upgradeType",
            "transferEnv[1].sourceContainerNameFrom.fieldRef.fieldPath",
        ] {
            assert!(found.contains(&format!("spec.{list}[0].{field}")), "{list} {field}: {found:?}");
        }
    }
    let patches = json!([{"annotations": {"a": "1"}, "patchPolicy": "Add"}]);
    let mut found = fields(json!({"updateStrategy": {"type": "Sometimes"}, "patchPodMetadata": patches}));
    found.sort();
    assert_eq!(found, ["spec.patchPodMetadata[0].patchPolicy", "spec.updateStrategy.type"]);
}

#[test]
fn e5_limits_that_mean_nothing_are_refused() {
    let weight = |weight: i64| json!({"priorityStrategy": {"weightPriority": [{"weight": weight, "matchSelector": {"matchLabels": {"a": "b"}}}]}});
    for (strategy, field) in [
        (json!({"maxUnavailable": 0}), "maxUnavailable"),
        (json!({"maxUnavailable": "0%"}), "maxUnavailable"),
        (json!({"maxUnavailable": "101%"}), "maxUnavailable"),
        (json!({"partition": "101%"}), "partition"),
        (weight(101), "priorityStrategy.weightPriority[0].weight"),
        (weight(-1), "priorityStrategy.weightPriority[0].weight"),
    ] {
        assert_eq!(fields(json!({"updateStrategy": strategy})), [format!("spec.updateStrategy.{field}")]);
    }
}

#[test]
fn a9_1_names_are_values_of_labels_without_dots() {
    for (name, good) in [("logs", true), ("a.b", false), (&"a".repeat(64), false), (&"a".repeat(63), true)] {
        let mut object = set(json!({}));
        object["metadata"]["name"] = name.into();
        assert_eq!(check(request(object, None)).unwrap().found.causes.is_empty(), good, "{name}");
    }
}

#[test]
fn d25_sets_with_only_init_containers_are_let_in() {
    let init = |more: Value| {
        let mut init = json!({"name": "setup", "image": "a:1"});
        init.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"containers": [], "initContainers": [init]})
    };
    assert_eq!(fields(init(json!({}))), Vec::<String>::new());
    let policy = json!({"resourcesPolicy": {"targetContainersMode": "sum", "resourcesExpr": {"limits": {}}}});
    assert_eq!(fields(init(policy.clone())), ["spec.initContainers[0].resourcesPolicy"]);
    let mut native = policy;
    native["restartPolicy"] = "Always".into();
    assert_eq!(fields(init(native)), Vec::<String>::new());
    let hot = json!({"upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}});
    assert_eq!(fields(init(hot)), ["spec.initContainers[0].upgradeStrategy.upgradeType"]);
    let pod = answers::pod_template(&set(init(json!({"podInjectPolicy": "x"})))["spec"]);
    assert_eq!(pod["spec"]["initContainers"], json!([{"name": "setup", "image": "a:1"}]));
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1, "the API server wants one");
}

#[test]
fn d28_a_number_as_text_is_refused() {
    for key in ["partition", "maxUnavailable"] {
        assert_eq!(fields(json!({"updateStrategy": {key: "5"}})), [format!("spec.updateStrategy.{key}")]);
    }
}

/// D29 says the opposite: OpenKruise does not update them.
#[test]
fn d29_a_native_sidecar_may_be_updated() {
    let native = json!([{"name": "mesh", "image": "m:1", "restartPolicy": "Always"}]);
    assert_eq!(
        fields(json!({"initContainers": native, "updateStrategy": {"type": "RollingUpdate"}})),
        Vec::<String>::new()
    );
}

#[test]
fn e3_a_hot_sidecar_needs_an_empty_image_a_short_name_and_names_for_its_twins() {
    let hot = |name: &str, empty: &str| json!({"name": name, "image": "m:1", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": empty}});
    assert_eq!(fields(json!({"containers": [hot("mesh", "e:1")]})), Vec::<String>::new());
    let at = "spec.containers[0].";
    assert_eq!(fields(json!({"containers": [hot("mesh", "")]})), [format!("{at}upgradeStrategy.hotUpgradeEmptyImage")]);
    assert_eq!(fields(json!({"containers": [hot(&"a".repeat(62), "e")]})), [format!("{at}name")]);
    let plain = json!({"name": "mesh-2", "image": "x:1"});
    assert_eq!(fields(json!({"containers": [hot("mesh", "e"), plain]})), ["spec.containers[1].name"]);
    assert_eq!(fields(json!({"containers": [hot("mesh", "e"), hot("mesh", "e")]})), ["spec.containers[1].name"]);
}

#[test]
fn a_name_that_is_there_twice_is_said_once() {
    let side = json!({"name": "side", "image": "a:1"});
    let admission = check(request(set(json!({"containers": [side, side]})), None)).unwrap();
    let invalid = |field: &str, message: &str| (field.to_owned(), message.to_owned());
    let refused = Refused::Invalid(vec![
        invalid("template.spec.containers[1].name", "Duplicate value: \"side\""),
        invalid("template.spec.volumes[1].name", "Duplicate value: \"logs\""),
    ]);
    let trial = template::Answers { trial: Some(Err(refused)), old_template: None };
    let denied = admit(&admission, &Answers { template: trial, ..Answers::default() }, false).unwrap_err();
    let said: Vec<_> = denied.causes.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
    let wanted = [
        ("spec.containers[1].name", "\"side\" is there twice; want each name once"),
        ("spec.volumes[1].name", "Duplicate value: \"logs\""),
    ];
    assert_eq!((denied.code, said.as_slice()), (422, wanted.as_slice()));
}

#[test]
fn d27_e2_containers_are_not_added_renamed_or_turned_hot() {
    let stored = check(request(set(json!({})), None)).unwrap().wanted;
    let hot = json!({"name": "agent", "image": "a:1", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}});
    let init = json!([{"name": "new", "image": "i:1"}]);
    for (spec, wanted) in [
        (json!({"containers": [{"name": "agent", "image": "a:2"}]}), vec![]),
        (
            json!({"containers": [{"name": "agent", "image": "a:1"}, {"name": "b", "image": "b:1"}]}),
            vec!["spec.containers[1].name"],
        ),
        (json!({"containers": [hot]}), vec!["spec.containers[0].upgradeStrategy.upgradeType"]),
        (json!({"initContainers": init}), vec![]),
        (json!({"containers": [], "initContainers": init}), vec![]),
    ] {
        let admission = check(request(set(spec.clone()), Some(stored.clone()))).unwrap();
        assert_eq!(causes(&admission.found), wanted, "{spec}");
    }
}

#[test]
fn an_update_is_not_refused_for_what_was_let_in_before() {
    let odd = set(json!({"updateStrategy": {"maxUnavailable": 0}}));
    let mut other = odd.clone();
    other["spec"]["containers"][0]["image"] = "a:2".into();
    assert_eq!(causes(&check(request(other, Some(odd))).unwrap().found), Vec::<&str>::new());
}

#[test]
fn e11_namespace_stays_as_it_was_written_and_is_refused_beside_another_selector() {
    let other = json!({"matchLabels": {"team": "x"}});
    assert_eq!(fields(json!({"namespace": "shop", "namespaceSelector": other})), ["spec.namespace"]);
    for spec in [json!({"namespace": "shop"}), json!({"namespace": "shop", "namespaceSelector": of_namespace("shop")})]
    {
        let admission = check(request(set(spec), None)).unwrap();
        assert_eq!(causes(&admission.found), Vec::<&str>::new());
        let (applied, stored) = (&admission.object["spec"], &admission.wanted["spec"]);
        assert_eq!((&stored["namespace"], &stored["namespaceSelector"]), (&json!("shop"), &of_namespace("shop")));
        let again = check(request(set(applied.clone()), Some(admission.wanted.clone()))).unwrap();
        assert_eq!(again.wanted["spec"], *stored, "the same manifest makes no difference");
    }
}

#[test]
fn d30_the_forms_of_v1alpha1_can_be_used_and_those_of_v1beta1_follow() {
    let step = |mut object: Value, old: Option<&Value>| {
        keep_in_step(&mut object, old);
        object
    };
    let created = step(set(json!({"namespace": "a"})), None);
    assert_eq!(created["spec"]["namespaceSelector"], of_namespace("a"));
    let mut moved = created.clone();
    moved["spec"]["namespace"] = "b".into();
    assert_eq!(step(moved, Some(&created))["spec"]["namespaceSelector"], of_namespace("b"));
    let mut removed = created.clone();
    removed["spec"].as_object_mut().unwrap().remove("namespace");
    assert!(widened(Some(&created), &removed).unwrap().contains("namespace a alone"));
}

/// A SidecarSet with its version as a label and as a member; empty: without.
fn versioned(api_version: &str, (label, version): (&str, &str)) -> Value {
    let mut object = set(json!({}));
    object["apiVersion"] = format!("apps.kruise.io/{api_version}").into();
    if !label.is_empty() {
        object["metadata"]["labels"] = json!({labels::SIDECAR_SET_CUSTOM_VERSION: label});
    }
    if !version.is_empty() {
        object["spec"]["customVersion"] = version.into();
    }
    object
}

/// Each state is the label and the member.
#[test]
fn d30_the_version_is_kept_by_clients_of_both_versions() {
    for (old, new, of_v1alpha1, of_v1beta1) in [
        // Created.
        (None, ("", ""), ("", ""), ("", "")),
        (None, ("v1", ""), ("v1", "v1"), ("v1", "v1")),
        (None, ("", "v1"), ("v1", "v1"), ("v1", "v1")),
        (None, ("v1", "v1"), ("v1", "v1"), ("v1", "v1")),
        // Something else is changed by a patch, by a typed client of v1alpha1, and by a manifest of v1beta1.
        (Some(("v1", "v1")), ("v1", "v1"), ("v1", "v1"), ("v1", "v1")),
        (Some(("v1", "v1")), ("v1", ""), ("v1", "v1"), ("", "")),
        (Some(("v1", "v1")), ("", "v1"), ("", ""), ("v1", "v1")),
        // Renamed in one form, and in both.
        (Some(("v1", "v1")), ("v2", "v1"), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v1")), ("v2", ""), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v1")), ("v1", "v2"), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v1")), ("", "v2"), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v1")), ("v2", "v2"), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v1")), ("", ""), ("", ""), ("", "")),
        // Stored by OpenKruise, or before admission wrote the label.
        (Some(("", "v1")), ("", "v1"), ("v1", "v1"), ("v1", "v1")),
        (Some(("", "v1")), ("", ""), ("v1", "v1"), ("", "")),
        (Some(("", "v1")), ("v1", ""), ("v1", "v1"), ("v1", "v1")),
        (Some(("", "v1")), ("v2", "v1"), ("v2", "v2"), ("v2", "v2")),
        // Stored while admission was away.
        (Some(("v1", "")), ("v1", ""), ("v1", "v1"), ("v1", "v1")),
        (Some(("v1", "")), ("", ""), ("", ""), ("", "")),
        (Some(("v1", "")), ("v1", "v2"), ("v2", "v2"), ("v2", "v2")),
        (Some(("v1", "v2")), ("v1", "v2"), ("v1", "v1"), ("v2", "v2")),
    ] {
        for (api_version, wanted) in [("v1alpha1", of_v1alpha1), ("v1beta1", of_v1beta1)] {
            let old = old.map(|old| versioned(api_version, old));
            let admission = check(request(versioned(api_version, new), old.clone())).unwrap();
            let found = (text(&admission.wanted, LABEL), text(&admission.wanted, VERSION));
            assert_eq!(found, wanted, "{api_version} {old:?} {new:?}");
            assert_eq!(causes(&admission.found), Vec::<&str>::new(), "{api_version} {old:?} {new:?}");
        }
    }
}

#[test]
fn d30_a_version_that_is_two_things_is_refused_and_one_that_can_be_no_label_is_not_written_as_one() {
    for api_version in ["v1alpha1", "v1beta1"] {
        for old in [None, Some(versioned(api_version, ("v0", "v0")))] {
            let both = check(request(versioned(api_version, ("v1", "v2")), old)).unwrap();
            assert_eq!(causes(&both.found), ["spec.customVersion"], "{api_version}");
        }
        let odd = versioned(api_version, ("", "a b"));
        let kept = check(request(odd.clone(), Some(odd))).unwrap();
        assert_eq!((causes(&kept.found), text(&kept.wanted, LABEL)), (vec![], ""), "{api_version}");
        assert_eq!(text(&kept.wanted, VERSION), "a b");
    }
}

/// OpenKruise never gives `namespace` back, so its clients change the selector alone.
#[test]
fn e11_a_selector_that_is_changed_takes_the_place_of_a_namespace_that_stays() {
    let selector = |team: &str| json!({"matchLabels": {"team": team}});
    let in_a = json!({"namespace": "a", "namespaceSelector": of_namespace("a")});
    let both = json!({"namespace": "a", "namespaceSelector": selector("x")});
    let refused = vec!["spec.namespace"];
    for (old, new, wanted, causes_wanted, warned) in [
        (None, both.clone(), both.clone(), refused.clone(), false),
        (Some(in_a.clone()), both.clone(), json!({"namespaceSelector": selector("x")}), vec![], true),
        // A webhook that was away has not written the selector.
        (Some(json!({"namespace": "a"})), both.clone(), json!({"namespaceSelector": selector("x")}), vec![], true),
        (Some(json!({"namespace": "a"})), in_a.clone(), in_a.clone(), vec![], false),
        (Some(in_a.clone()), json!({"namespace": "a"}), in_a.clone(), vec![], false),
        (Some(in_a.clone()), json!({"namespace": "a", "namespaceSelector": null}), in_a.clone(), vec![], false),
        // Both are changed, or the namespace alone.
        (
            Some(in_a.clone()),
            json!({"namespace": "b", "namespaceSelector": selector("x")}),
            json!({"namespace": "b", "namespaceSelector": selector("x")}),
            refused.clone(),
            false,
        ),
        // The same manifest once more, after its namespace was removed.
        (
            Some(json!({"namespaceSelector": selector("x")})),
            both.clone(),
            json!({"namespaceSelector": selector("x")}),
            vec![],
            true,
        ),
        (Some(json!({"namespaceSelector": selector("y")})), both.clone(), both.clone(), refused.clone(), false),
        // What was let in before stays.
        (Some(both.clone()), both.clone(), both.clone(), vec![], false),
    ] {
        for api_version in ["v1alpha1", "v1beta1"] {
            let of_version = |spec: &Value| {
                let mut object = set(spec.clone());
                object["apiVersion"] = format!("apps.kruise.io/{api_version}").into();
                object
            };
            let admission = check(request(of_version(&new), old.as_ref().map(of_version))).unwrap();
            let case = format!("{api_version} {old:?} {new}");
            for member in ["namespace", "namespaceSelector"] {
                assert_eq!(admission.wanted["spec"].get(member), wanted.get(member), "{case}");
            }
            assert_eq!(causes(&admission.found), causes_wanted, "{case}");
            let warnings = &admission.found.warnings;
            assert_eq!(
                warnings.iter().any(|text| text.starts_with("spec.namespace: \"a\" was removed")),
                warned,
                "{case}"
            );
        }
    }
}

#[test]
fn e9_what_the_api_server_says_of_containers_is_said_of_the_set() {
    let admission = check(request(set(json!({})), None)).unwrap();
    let refused = |field: &str| Refused::Invalid(vec![(field.into(), "no".into())]);
    let workload = answers::as_workload(&admission.wanted["spec"]);
    for (field, wanted) in [
        ("template.spec.containers[0].image", "spec.containers[0].image"),
        ("template.spec.volumes[1].name", "spec.volumes[1].name"),
    ] {
        let answers = template::Answers { trial: Some(Err(refused(field))), old_template: None };
        let found = judge_template((&workload, None), &answers).unwrap();
        assert_eq!(causes(&found), [wanted]);
    }
    let late = Answers { template: template::Answers::late(), ..Answers::default() };
    assert_eq!(admit(&admission, &late, false).unwrap_err().code, 500, "CREATE fails closed");
    let denied = Answers {
        others: Some(Ok(Findings {
            causes: vec![Cause { field: "f".into(), message: "m".into() }],
            ..Findings::default()
        })),
        ..good()
    };
    assert_eq!(admit(&admission, &denied, false).unwrap_err().code, 422);
    let unread = Answers { whitelist: Some(Err(answers::Unread("no".into()))), ..good() };
    assert_eq!(admit(&admission, &unread, false).unwrap_err().code, 500);
}

#[test]
fn a14_annotations_are_limited_by_the_whitelist() {
    let mut object = set(json!({"patchPodMetadata": [{"annotations": {"mesh.io/a": "1"}}]}));
    object["metadata"]["labels"] = json!({"team": "mesh"});
    let rule = |selector: Value, expression: &str| {
        json!({"rules": [{"selector": selector, "allowedAnnotationKeyExprs": [expression]}]}).to_string()
    };
    let mesh = json!({"matchLabels": {"team": "mesh"}});
    let other = json!({"matchLabels": {"team": "other"}});
    for (whitelist, is_open, good) in [
        (None, false, false),
        (None, true, true),
        (Some(rule(Value::Null, "^mesh\\.io/.*$")), false, true),
        (Some(rule(mesh.clone(), "mesh")), false, true),
        (Some(rule(other.clone(), "mesh")), false, false),
        (Some(rule(other, "mesh")), true, true),
        (Some(rule(mesh, "^other")), true, false),
        (Some("{".to_owned()), true, false),
        (Some(rule(Value::Null, "(")), true, false),
    ] {
        let whitelist = FoundWhitelist { namespace: "kruise-system".into(), text: whitelist };
        let found = judge_metadata(&object, &whitelist, is_open);
        assert_eq!(found.causes.is_empty(), good, "{whitelist:?} {is_open}");
    }
}

#[test]
fn a14_a_refusal_says_where_the_whitelist_is_looked_for_and_what_would_help() {
    let object = set(json!({"patchPodMetadata": [{"annotations": {"mesh.io/a": "1"}}]}));
    let rules = |rules: Value| Some(json!({"rules": rules}).to_string());
    for (text, wanted) in [
        (
            None,
            "not allowed: ConfigMap kruise-configuration in namespace kruise-system is not there or lacks the key SidecarSet_PatchPodMetadata_WhiteList, so no annotation is allowed; want the whitelist there, or feature gate SidecarSetPatchPodMetadataDefaultsAllowed on",
        ),
        (
            rules(json!([])),
            "not allowed: the whitelist, the key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap kruise-configuration in namespace kruise-system, allows this SidecarSet nothing; want a rule for it there, or feature gate SidecarSetPatchPodMetadataDefaultsAllowed on",
        ),
        (
            rules(json!([{"allowedAnnotationKeyExprs": ["^other"]}])),
            "not allowed by the whitelist, the key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap kruise-configuration in namespace kruise-system",
        ),
    ] {
        let whitelist = FoundWhitelist { namespace: "kruise-system".into(), text };
        let found = judge_metadata(&object, &whitelist, false);
        assert_eq!(found.causes[0].message, wanted);
    }
}

#[test]
fn an_annotation_that_updates_leave_alone_is_warned_of() {
    let warnings = |key: &str, policy: &str| {
        let spec = json!({"patchPodMetadata": [{"annotations": {key: "1"}, "patchPolicy": policy}]});
        check(request(set(spec), None)).unwrap().found.warnings.len()
    };
    assert_eq!(warnings("apps.kruise.io/container-launch-priority", "Overwrite"), 1);
    assert_eq!(warnings("apps.kruise.io/container-launch-priority", "Retain"), 0);
    assert_eq!(warnings("mesh.io/a", "Overwrite"), 0);
}

#[test]
fn d26_e7_conflicts_with_every_overlapping_set_are_found() {
    let named = |name: &str, spec: Value| {
        let mut object = set(spec);
        object["metadata"]["name"] = name.into();
        object
    };
    let patch = |policy: &str| json!({"containers": [{"name": "o"}], "patchPodMetadata": [{"annotations": {"a": "1"}, "patchPolicy": policy}]});
    for (own, other, wanted) in [
        (json!({}), json!({}), vec!["spec.containers[0].name"]),
        (json!({}), json!({"selector": {"matchLabels": {"app": "db"}}}), vec![]),
        (
            json!({}),
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}),
            vec![],
        ),
        // E7: a key that one of them does not name keeps nothing apart.
        (
            json!({}),
            json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}),
            vec!["spec.containers[0].name"],
        ),
        (json!({"namespace": "a"}), json!({"namespace": "b"}), vec![]),
        (json!({"namespace": "a"}), json!({}), vec!["spec.containers[0].name"]),
        (json!({"namespace": "a"}), json!({"namespaceSelector": of_namespace("a")}), vec!["spec.containers[0].name"]),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"containers": [{"name": "o"}], "volumes": [{"name": "v", "hostPath": {}}]}),
            vec!["spec.volumes[0].name"],
        ),
        (
            patch("Overwrite"),
            json!({"containers": [{"name": "x"}], "patchPodMetadata": patch("MergePatchJson")["patchPodMetadata"]}),
            vec!["spec.patchPodMetadata"],
        ),
        (
            patch("MergePatchJson"),
            json!({"containers": [{"name": "x"}], "patchPodMetadata": patch("MergePatchJson")["patchPodMetadata"]}),
            vec![],
        ),
        (
            patch("Overwrite"),
            json!({"containers": [{"name": "x"}], "patchPodMetadata": patch("Retain")["patchPodMetadata"]}),
            vec![],
        ),
        (
            json!({"containers": [{"name": "mesh-1"}]}),
            json!({"containers": [{"name": "mesh", "upgradeStrategy": {"upgradeType": "HotUpgrade"}}]}),
            vec!["spec.containers[0].name"],
        ),
    ] {
        let found = conflicts_of(&named("a", own.clone()), None, &[named("b", other.clone())]);
        assert_eq!(causes(&found), wanted, "{own} {other}");
    }
    assert!(conflicts_of(&named("a", json!({})), None, &[named("a", json!({}))]).causes.is_empty(), "itself");
    // What stands beside each other already, because admission was away, can be changed.
    let (stored, other) = (named("a", json!({})), named("b", json!({})));
    let changed = named("a", json!({"containers": [{"name": "agent", "image": "a:2"}]}));
    assert!(conflicts_of(&changed, Some(&stored), std::slice::from_ref(&other)).causes.is_empty());
    let moved = named("a", json!({"selector": {"matchLabels": {"app": "db"}}}));
    assert_eq!(causes(&conflicts_of(&stored, Some(&moved), &[other])), ["spec.containers[0].name"], "that is new");
    let many: Vec<Value> = (0..50).map(|i| named(&format!("b{i}"), json!({}))).collect();
    assert_eq!(conflicts_of(&stored, None, &many).causes.len(), 20);
}

fn conflicts_of(set: &Value, old: Option<&Value>, others: &[Value]) -> Findings {
    let others: Vec<Stored> = others.iter().filter_map(Stored::of).collect();
    let mut found = Findings::default();
    conflicts::judge(set, old, &others, &mut found);
    found
}

/// With so many SidecarSets a list takes longer than a call may: a page that never comes does not matter.
#[tokio::test(start_paused = true)]
async fn conflicts_are_found_while_the_api_server_does_not_list() {
    let named = |name: &str| {
        let mut object = set(json!({}));
        object["metadata"] = json!({"name": name, "uid": name, "resourceVersion": "1"});
        object
    };
    for (stored, wanted) in [(vec![named("b")], true), (Vec::new(), false)] {
        let is_known = !stored.is_empty();
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
        });
        let client = kube::Client::new(service, "default");
        let sidecars = Sidecars::new(client.clone(), &FeatureGates::default(), "kruise-system".into());
        if is_known {
            sidecars.know(&stored);
        }
        let answer = answers::others(&client, &sidecars, &named("a"), None).await;
        match answer {
            Ok(found) => assert!(is_known && (causes(&found) == ["spec.containers[0].name"]) == wanted),
            Err(why) => assert_eq!((is_known, why.to_string().as_str()), (false, "no answer within 4 s")),
        }
    }
}

#[test]
fn what_is_no_set_is_refused_by_its_types() {
    for spec in [
        json!({"containers": {}}),
        json!({"containers": [1]}),
        json!({"selector": 5}),
        json!({"updateStrategy": {"partition": true}}),
    ] {
        assert_eq!(check(request(set(spec.clone()), None)).unwrap_err().code, 400, "{spec}");
    }
}
