use super::*;
use crate::webhook::server::review::Cause;

fn united(changes: Value) -> Value {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment", "metadata": {"name": "web"},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}}, "template": {"cloneSetTemplate": child()},
            "topology": {"subsets": [{"name": "a"}, {"name": "b"}]}}});
    json_patch::merge(&mut object, &changes);
    object
}

fn child() -> Value {
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}});
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"template": template}})
}

fn of_kind(member: &str, changes: Value) -> Value {
    let mut child = child();
    json_patch::merge(&mut child, &changes);
    united(json!({"spec": {"template": {"cloneSetTemplate": null, member: child}}}))
}

fn subsets(subsets: Value) -> Value {
    united(json!({"spec": {"topology": {"subsets": subsets}}}))
}

fn create(object: Value) -> Request {
    Request { operation: "CREATE".into(), namespace: "a".into(), object, ..Request::default() }
}

fn update(old_object: Value, object: Value) -> Request {
    Request { operation: "UPDATE".into(), namespace: "a".into(), object, old_object, ..Request::default() }
}

/// An API server that has defaults and finds fault with containers without an image.
fn answers(admission: &UnitedAdmission) -> Answers {
    let answer = |trial: &TemplateTrial| {
        let mut object = trial.trial().body();
        let has_image = |c: &Value| c["image"].is_string();
        if !object["template"]["spec"]["containers"].as_array().unwrap().iter().all(has_image) {
            return Err(Refused::Invalid(vec![("template.spec.containers[0].image".into(), "Required value".into())]));
        }
        object["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
        Ok(Answer { object, ..Answer::default() })
    };
    admission.trials.iter().map(answer).collect()
}

fn decide(request: Request) -> Decision {
    let admission = check(&FeatureGates::default(), request)?;
    let answers = answers(&admission);
    admit(&admission, &answers)
}

fn stored_by(request: Request) -> Value {
    let mut object = request.object.clone();
    let Admitted { patch, .. } = decide(request).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    object
}

fn stored(object: Value) -> Value {
    stored_by(create(object))
}

fn causes(request: Request) -> Vec<(String, String)> {
    let denied = decide(request).unwrap_err();
    assert_eq!(denied.code, 422, "{denied:?}");
    denied.causes.into_iter().map(|Cause { field, message }| (field, message)).collect()
}

fn fields(object: Value) -> Vec<String> {
    causes(create(object)).into_iter().map(|(field, _)| field).collect()
}

#[test]
fn what_a_user_wrote_is_stored_as_openkruise_stores_it() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../domain/kinds/united_deployment/testdata/recorded.json")).unwrap();
    let recorded = &recorded["unitedDeployment"];
    let applied = &recorded["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    let applied: Value = serde_json::from_str(applied.as_str().unwrap()).unwrap();
    assert_eq!(stored(applied.clone())["spec"], recorded["spec"]);
    // And again over what is stored: nothing changes.
    assert_eq!(stored_by(update(recorded.clone(), recorded.clone()))["spec"], recorded["spec"]);
    assert_eq!(stored_by(update(recorded.clone(), applied))["spec"], recorded["spec"]);
}

#[test]
fn defaults_of_templates_are_those_of_stateful_sets_alone() {
    let pod = |member: &str| {
        stored(of_kind(member, json!({})))["spec"]["template"][member]["spec"]["template"]["spec"].clone()
    };
    assert_eq!(pod("statefulSetTemplate")["dnsPolicy"], "ClusterFirst");
    for member in ["advancedStatefulSetTemplate", "cloneSetTemplate", "deploymentTemplate"] {
        assert_eq!(pod(member).get("dnsPolicy"), None, "{member}");
        assert_eq!(pod(member)["containers"][0]["resources"], json!({}), "{member}");
    }
    let strategies = |member: &str| stored(of_kind(member, json!({})))["spec"]["template"][member]["spec"].clone();
    assert_eq!(strategies("deploymentTemplate")["strategy"], json!({}));
    assert_eq!(strategies("statefulSetTemplate")["updateStrategy"], json!({}));
}

#[test]
fn shortfall_the_total_has_a_default_unless_every_subset_has_a_number() {
    let total = |list: Value| {
        let mut object = subsets(list);
        object["spec"].as_object_mut().unwrap().remove("replicas");
        stored(object)["spec"].get("replicas").cloned()
    };
    assert_eq!(total(json!([{"name": "a"}])), Some(json!(1)));
    assert_eq!(total(json!([{"name": "a", "maxReplicas": 1}, {"name": "b"}])), Some(json!(1)));
    assert_eq!(total(json!([{"name": "a", "replicas": 2}, {"name": "b", "replicas": 3}])), None);
    let bounds = stored(subsets(json!([{"name": "a", "maxReplicas": 1}, {"name": "b"}])));
    assert!(bounds["spec"]["topology"]["subsets"].as_array().unwrap().iter().all(|subset| subset["minReplicas"] == 0));
}

#[test]
fn a_status_that_is_applied_is_dropped() {
    assert_eq!(stored(united(json!({"status": {"replicas": 3}}))).get("status"), None);
}

#[test]
fn exactly_one_template_whose_labels_the_selector_matches() {
    assert_eq!(fields(united(json!({"spec": {"template": {"cloneSetTemplate": null}}}))), ["spec.template"]);
    assert_eq!(fields(united(json!({"spec": {"template": {"deploymentTemplate": child()}}}))), ["spec.template"]);
    let at = "spec.template.deploymentTemplate";
    assert_eq!(
        fields(of_kind("deploymentTemplate", json!({"metadata": {"labels": {"app": "x"}}}))),
        [format!("{at}.metadata.labels")]
    );
    let other = json!({"spec": {"template": {"metadata": {"labels": {"app": "x"}}}}});
    assert_eq!(fields(of_kind("deploymentTemplate", other)), [format!("{at}.spec.template.metadata.labels")]);
    assert_eq!(fields(united(json!({"spec": {"selector": {"matchLabels": null}}}))), ["spec.selector"]);
}

#[test]
fn edge_d10_valid_clone_set_templates_are_not_rejected() {
    let bare = json!({"metadata": null, "spec": {"selector": {"matchLabels": {"app": "web"}}, "replicas": 3,
        "updateStrategy": {"partition": 1, "type": "InPlaceIfPossible"}}});
    decide(create(of_kind("cloneSetTemplate", bare))).unwrap();
}

#[test]
fn what_the_controller_writes_is_not_the_users_to_say() {
    for member in ["statefulSetTemplate", "advancedStatefulSetTemplate", "deploymentTemplate"] {
        assert_eq!(
            fields(of_kind(member, json!({"spec": {"replicas": 3}}))),
            [format!("spec.template.{member}.spec.replicas")]
        );
    }
    let partition = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 1}}}});
    assert_eq!(
        fields(of_kind("statefulSetTemplate", partition)),
        ["spec.template.statefulSetTemplate.spec.updateStrategy.rollingUpdate.partition"]
    );
}

#[test]
fn a_percentage_that_the_stateful_sets_of_subsets_would_be_refused_for_is_refused() {
    const AT: &str = "spec.template.advancedStatefulSetTemplate.spec";
    for (spec, field) in [
        (json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "12.5%"}}}), "updateStrategy.rollingUpdate"),
        (json!({"scaleStrategy": {"maxUnavailable": "12.5%"}}), "scaleStrategy"),
    ] {
        let fields = fields(of_kind("advancedStatefulSetTemplate", json!({"spec": spec})));
        assert_eq!(fields, [format!("{AT}.{field}.maxUnavailable")]);
    }
    let whole = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "12%"}},
        "scaleStrategy": {"maxUnavailable": 1}}});
    decide(create(of_kind("advancedStatefulSetTemplate", whole))).unwrap();
}

#[test]
fn subsets_have_names_and_numbers_that_fit() {
    const AT: &str = "spec.topology.subsets";
    for (list, wanted) in [
        (json!([{"name": "A"}]), vec!["[0].name"]),
        (json!([{"name": "a"}, {"name": "a"}]), vec!["[1].name"]),
        (json!([{"name": "a", "replicas": -1}]), vec!["[0].replicas"]),
        (json!([{"name": "a", "replicas": "101%"}, {"name": "b"}]), vec!["[0].replicas"]),
        (json!([{"name": "a", "replicas": "1.5%"}, {"name": "b"}]), vec!["[0].replicas"]),
        (json!([{"name": "a", "minReplicas": "50.0%"}, {"name": "b"}]), vec!["[0].minReplicas"]),
        (json!([{"name": "a", "replicas": 2}, {"name": "b", "minReplicas": 1}]), vec!["[0].replicas"]),
        (json!([{"name": "a", "minReplicas": 3, "maxReplicas": 2}, {"name": "b"}]), vec!["[0].minReplicas"]),
        (json!([{"name": "a", "maxReplicas": 3}]), vec![""]),
        (json!([{"name": "a", "replicas": 7}, {"name": "b"}]), vec![""]),
        (json!([{"name": "a", "replicas": 3}, {"name": "b", "replicas": 2}]), vec![""]),
    ] {
        let wanted: Vec<String> = wanted.into_iter().map(|field| format!("{AT}{field}")).collect();
        assert_eq!(fields(subsets(list.clone())), wanted, "{list}");
    }
    let adaptive = json!({"type": "Adaptive"});
    let fixed = united(
        json!({"spec": {"topology": {"scheduleStrategy": adaptive, "subsets": [{"name": "a", "replicas": 2}, {"name": "b"}]}}}),
    );
    assert_eq!(fields(fixed), ["spec.topology.subsets[0].replicas"]);
    let odd = json!({"type": "Sometimes", "adaptive": {"rescheduleCriticalSeconds": -1}});
    assert_eq!(
        fields(united(json!({"spec": {"topology": {"scheduleStrategy": odd}}}))),
        ["spec.topology.scheduleStrategy.type", "spec.topology.scheduleStrategy.adaptive.rescheduleCriticalSeconds"]
    );
    let reserving = json!({"spec": {"topology": {"scheduleStrategy": {"type": "Adaptive", "adaptive": {"reserveUnschedulablePods": true}}}}});
    let mut of_stateful_sets = of_kind("statefulSetTemplate", json!({}));
    json_patch::merge(&mut of_stateful_sets, &reserving);
    assert_eq!(fields(of_stateful_sets), ["spec.topology.scheduleStrategy.adaptive.reserveUnschedulablePods"]);
    decide(create(united(reserving))).unwrap();
}

#[test]
fn there_are_no_more_subsets_and_partitions_than_can_be_compared() {
    let list: Vec<Value> = (0..501).map(|i| json!({"name": format!("s{i}")})).collect();
    assert_eq!(fields(subsets(list.into())), ["spec.topology.subsets"]);
    let map: serde_json::Map<String, Value> = (0..501).map(|i| (format!("s{i}"), json!(0))).collect();
    let partitions = united(json!({"spec": {"updateStrategy": {"manualUpdate": {"partitions": map}}}}));
    assert_eq!(fields(partitions), ["spec.updateStrategy.manualUpdate.partitions"]);
}

#[test]
fn workloads_that_are_too_large_together_are_refused() {
    let of = |bytes: usize| {
        let list: Vec<Value> = (0..400).map(|i| json!({"name": format!("s{i}")})).collect();
        let large = json!({"metadata": {"annotations": {"large": "x".repeat(bytes)}}});
        let mut object = of_kind("cloneSetTemplate", large);
        object["spec"]["topology"]["subsets"] = list.into();
        object
    };
    decide(create(of(30 << 10))).unwrap();
    let [(field, why)] = &causes(create(of(50 << 10)))[..] else { panic!() };
    assert_eq!(field, "spec.topology.subsets");
    assert!(why.starts_with("400 workloads of ") && why.ends_with("are not allowed; want up to 16777216"), "{why}");
}

#[test]
fn names_are_those_that_workloads_can_be_named_after() {
    for (member, name, is_good) in [
        ("cloneSetTemplate", "n".repeat(52), true),
        ("cloneSetTemplate", "n".repeat(53), false),
        ("cloneSetTemplate", "a.b".to_owned(), true),
        ("statefulSetTemplate", "a.b".to_owned(), false),
        ("advancedStatefulSetTemplate", "a.b".to_owned(), false),
    ] {
        let mut object = of_kind(member, json!({}));
        object["metadata"]["name"] = name.as_str().into();
        if is_good {
            decide(create(object)).unwrap();
        } else {
            assert_eq!(fields(object), ["metadata.name"], "{member} {name}");
        }
    }
}

#[test]
fn partitions_name_subsets() {
    let partitions = |map: Value| united(json!({"spec": {"updateStrategy": {"manualUpdate": {"partitions": map}}}}));
    let at = "spec.updateStrategy.manualUpdate.partitions";
    assert_eq!(fields(partitions(json!({"x": 1}))), [format!("{at}[x]")]);
    assert_eq!(fields(partitions(json!({"a": -1}))), [format!("{at}.a")]);
    assert_eq!(fields(united(json!({"spec": {"updateStrategy": {"type": "Auto"}}}))), ["spec.updateStrategy.type"]);
}

#[test]
fn shortfall_patches_and_templates_are_tried_at_admission() {
    let said = causes(create(subsets(
        json!([{"name": "a", "patch": {"spec": {"containers": [{"name": "side"}]}}}, {"name": "b"}]),
    )));
    let [(field, message)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(field, "spec.topology.subsets[0]");
    assert_eq!(
        message,
        "with it spec.template.cloneSetTemplate.spec.template.spec.containers[0].image: Required value"
    );
    let bad = json!([{"name": "a", "patch": {"spec": {"containers": [{"image": "x"}]}}}, {"name": "b"}]);
    let said = causes(create(subsets(bad.clone())));
    assert!(said[0].0 == "spec.topology.subsets[0].patch" && said[0].1.contains("an entry has no name"), "{said:?}");
    let without = json!({"spec": {"template": {"spec": {"containers": [{"name": "main"}]}}}});
    assert_eq!(
        fields(of_kind("cloneSetTemplate", without)),
        ["spec.template.cloneSetTemplate.spec.template.spec.containers[0].image"]
    );
}

#[test]
fn an_api_server_that_does_not_answer_refuses_creations_and_warns_of_updates() {
    let patched = |image: &str| {
        subsets(
            json!([{"name": "a", "patch": {"spec": {"containers": [{"name": "main", "image": image}]}}}, {"name": "b"}]),
        )
    };
    let silent = |request: Request| {
        let admission = check(&FeatureGates::default(), request)?;
        let answers: Answers = admission.trials.iter().map(|_| Err(Refused::Unavailable("no".into()))).collect();
        admit(&admission, &answers)
    };
    assert_eq!(silent(create(patched("p:1"))).unwrap_err().code, 500);
    let old = stored(patched("p:1"));
    let warned = silent(update(old.clone(), patched("p:2"))).unwrap();
    assert_eq!(warned.warnings.len(), 1, "the template is the same, one patch is new");
    assert_eq!(silent(update(old.clone(), old)).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn nodes_tolerations_and_what_stateful_sets_keep_cannot_be_changed() {
    let with = |values: Value, tolerations: Value| {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]});
        subsets(json!([{"name": "a", "nodeSelectorTerm": term, "tolerations": tolerations}, {"name": "b"}]))
    };
    let old = stored(with(json!(["x"]), json!([])));
    decide(update(old.clone(), with(json!(["x"]), json!(null)))).unwrap();
    let said = causes(update(old, with(json!(["y"]), json!([{"key": "t"}]))));
    let fields: Vec<&str> = said.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["spec.topology.subsets[0].nodeSelectorTerm", "spec.topology.subsets[0].tolerations"]);
    let named = |name: &str| of_kind("statefulSetTemplate", json!({"spec": {"serviceName": name}}));
    let said = causes(update(stored(named("x")), named("y")));
    assert_eq!(said[0].0, "spec.template.statefulSetTemplate.spec.serviceName");
    decide(update(stored(named("x")), united(json!({})))).unwrap();
}

#[test]
fn what_only_some_clients_write_of_a_stateful_set_is_no_change() {
    let with = |member: &str, changes: Value| {
        let mut child = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}});
        json_patch::merge(&mut child, &changes);
        of_kind(member, child)
    };
    for member in ["statefulSetTemplate", "advancedStatefulSetTemplate"] {
        let plain = with(member, json!({}));
        // As the types of apps/v1 have no omitempty there.
        let mut of_go = with(member, json!({"spec": {"serviceName": ""}}));
        of_go["spec"]["template"][member]["spec"]["selector"] = Value::Null;
        for (first, then) in [(&plain, &of_go), (&of_go, &plain)] {
            let old = stored(first.clone());
            let again = stored_by(update(old.clone(), then.clone()));
            assert_eq!(again["spec"], old["spec"], "{member}: no other revision");
        }
        let named = stored(with(member, json!({"spec": {"serviceName": "web"}})));
        let without = causes(update(named, of_go.clone()));
        assert_eq!(without[0].0, format!("spec.template.{member}.spec.serviceName"));

        let old = stored(plain);
        let policy = |policy: &str| with(member, json!({"spec": {"podManagementPolicy": policy}}));
        decide(update(old.clone(), policy("OrderedReady"))).unwrap();
        let at = format!("spec.template.{member}.spec");
        assert_eq!(causes(update(old.clone(), policy("Parallel")))[0].0, format!("{at}.podManagementPolicy"));
        let claim = |amount: &str| {
            let mut object = with(member, json!({}));
            let claim = &mut object["spec"]["template"][member]["spec"]["volumeClaimTemplates"][0];
            claim["spec"]["resources"]["requests"]["storage"] = amount.into();
            object
        };
        // What is stored is the spelling of the API server, and the manifest is applied once more.
        decide(update(old.clone(), claim("1024Mi"))).unwrap();
        assert_eq!(causes(update(old, claim("2Gi")))[0].0, format!("{at}.volumeClaimTemplates"));
    }
}

#[test]
fn what_says_the_same_stays_in_the_form_in_which_it_is_stored() {
    for member in ["statefulSetTemplate", "advancedStatefulSetTemplate", "cloneSetTemplate", "deploymentTemplate"] {
        let with = |divisor: Option<&str>, labels: Value| {
            let mut reference = json!({"resource": "limits.cpu"});
            if let Some(divisor) = divisor {
                reference["divisor"] = divisor.into();
            }
            let mut child = child();
            let template = &mut child["spec"]["template"];
            template["spec"]["containers"][0]["env"] =
                json!([{"name": "CPUS", "valueFrom": {"resourceFieldRef": reference}}]);
            json_patch::merge(&mut template["metadata"], &json!({"labels": labels}));
            let mut object = united(json!({}));
            object["spec"]["template"] = json!({member: child});
            object
        };
        let of = |object: Value| object["spec"]["template"][member]["spec"]["template"].clone();
        for (first, then) in [(None, Some("0")), (Some("0"), None)] {
            let old = stored(with(first, json!({})));
            let again = stored_by(update(old.clone(), with(then, json!({}))));
            assert_eq!(again["spec"], old["spec"], "{member}: no other revision");
        }
        let old = stored(with(None, json!({})));
        let other = of(stored_by(update(old.clone(), with(Some("1m"), json!({})))));
        assert_eq!(other["spec"]["containers"][0]["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"], "1m");
        let labelled = of(stored_by(update(old, with(None, json!({"divisor": "0", "empty": ""})))));
        assert_eq!(labelled["metadata"]["labels"], json!({"app": "web", "divisor": "0", "empty": ""}));
    }
}

#[test]
fn an_update_is_not_refused_for_what_it_does_not_change() {
    let odd = subsets(json!([{"name": "a", "replicas": 9}, {"name": "b"}]));
    let mut newer = odd.clone();
    newer["spec"]["revisionHistoryLimit"] = 3.into();
    decide(update(odd, newer)).unwrap();
}

#[test]
fn the_budget_of_the_whole_is_judged() {
    let with = |mut object: Value, budget: &str| {
        object["metadata"]["annotations"] = json!({labels::UNITED_MAX_UNAVAILABLE: budget});
        object
    };
    let field = "metadata.annotations[kruise.rs/max-unavailable]";
    assert_eq!(fields(with(united(json!({})), "0")), [field]);
    decide(create(with(united(json!({})), "10%"))).unwrap();
    let recreate = of_kind("deploymentTemplate", json!({"spec": {"strategy": {"type": "Recreate"}}}));
    assert_eq!(fields(with(recreate, "1")), [field]);
}

#[test]
fn wrong_types_are_named() {
    for (changes, says) in [
        (json!({"spec": {"replicas": "six"}}), "spec.replicas"),
        (json!({"spec": {"topology": {"subsets": "a"}}}), "spec.topology.subsets"),
        (json!({"spec": {"template": {"cloneSetTemplate": [1]}}}), "spec.template.cloneSetTemplate"),
        (json!({"spec": {"topology": {"subsets": [7]}}}), "spec.topology.subsets[0]"),
    ] {
        let denied = decide(create(united(changes))).unwrap_err();
        assert!(denied.code == 400 && denied.message.contains(says), "{denied:?}");
    }
}

#[test]
fn templates_are_tried_as_far_as_they_are_no_more_than_can_be_held() {
    let tried = |bytes: usize| {
        let subsets: Vec<Value> =
            (0..8).map(|i| json!({"name": format!("s{i}"), "tolerations": [{"key": "spot"}]})).collect();
        let mut object = united(json!({"spec": {"topology": {"subsets": subsets}}}));
        object["spec"]["template"]["cloneSetTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"] =
            json!(["x".repeat(bytes)]);
        let admission = check(&FeatureGates::default(), create(object)).unwrap();
        (admission.trials.len(), admission.judged.found.warnings)
    };
    assert_eq!(tried(1000), (9, vec![]), "the template, and that of each subset");
    let (count, warnings) = tried(MOST_BYTES / 4);
    let warning =
        "spec.topology.subsets[4] and those after it are not checked: the templates before them are more than 4 MiB";
    assert_eq!((count, warnings), (5, vec![warning.to_owned()]));
}
