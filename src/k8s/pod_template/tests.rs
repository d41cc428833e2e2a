use super::*;

/// What a user applied, and what OpenKruise made of it.
fn recorded() -> Vec<(String, Value, Value)> {
    let read = |text: &str| -> Vec<Value> { serde_json::from_str(text).unwrap() };
    let applied = read(include_str!("../testdata/applied_clone_sets.json"));
    let stored = read(include_str!("../testdata/created_clone_sets.json"));
    let pairs = applied.into_iter().map(|applied| {
        let name = applied["metadata"]["name"].as_str().unwrap().to_owned();
        let stored = stored.iter().find(|stored| stored["metadata"]["name"] == *name).unwrap();
        (name, applied["spec"].clone(), stored["spec"].clone())
    });
    pairs.collect()
}

fn claims_of(spec: &Value) -> &[Value] {
    spec["volumeClaimTemplates"].as_array().map_or(&[], Vec::as_slice)
}

/// What Kubernetes 1.34 answers, played: it knows `stored` to be the template with all defaults.
fn answer(trial: &Trial<'_>, stored: &Value, claims: &[Value]) -> Value {
    let mut template = stored.clone();
    template["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    let spec = template["spec"].as_object_mut().unwrap();
    if let Some(name) = spec.get("serviceAccountName").cloned() {
        spec.insert("serviceAccount".into(), name);
    }
    let mut body = trial.body();
    let asked = body["template"]["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let own = list(spec, "volumes").to_vec();
    let added = asked.into_iter().skip(own.len()).zip(claims).map(|(mut volume, claim)| {
        if let Some(ephemeral) = volume.pointer_mut("/ephemeral/volumeClaimTemplate") {
            ephemeral["spec"] = claim["spec"].clone();
            ephemeral["spec"]["volumeMode"] = "Filesystem".into();
        }
        volume
    });
    let volumes: Vec<Value> = own.into_iter().chain(added).collect();
    if !volumes.is_empty() {
        spec.insert("volumes".into(), volumes.into());
    }
    body["template"] = template;
    body
}

/// Through a dry run that answers with the recorded template.
fn stored(applied: &Value, recorded: &Value) -> Stored {
    let trial = Trial::new(&applied["template"], claims_of(applied), true);
    trial.stored(&answer(&trial, &recorded["template"], claims_of(recorded)), &[], true)
}

#[test]
fn what_a_user_applied_becomes_what_open_kruise_stored() {
    for (name, applied, recorded) in recorded() {
        let got = stored(&applied, &recorded);
        assert_eq!(got.template, recorded["template"], "{name}");
        assert_eq!(got.claims, claims_of(&recorded), "{name}");
        let bytes = |template| crate::k8s::canonical_json::encode(&crate::k8s::revision::data(template));
        assert_eq!(bytes(&got.template), bytes(&recorded["template"]), "{name}");
    }
    assert_eq!(recorded().len(), 7);
}

#[test]
fn what_is_stored_stays_as_it_is() {
    for (name, _, recorded) in recorded() {
        let got = stored(&recorded, &recorded);
        assert_eq!(got.template, recorded["template"], "{name}");
        assert_eq!(got.claims, claims_of(&recorded), "{name}");
    }
}

#[test]
fn an_answer_of_an_older_api_server_gives_the_same() {
    for (name, applied, recorded) in recorded() {
        let trial = Trial::new(&applied["template"], claims_of(&applied), true);
        let mut answer = answer(&trial, &recorded["template"], claims_of(&recorded));
        answer["template"]["metadata"]["creationTimestamp"] = Value::Null;
        assert_eq!(trial.stored(&answer, &[], true).template, recorded["template"], "{name}");
    }
}

fn template(container: Value) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}})
}

/// Lays an answer over a template without claims.
fn laid(mine: &Value, theirs: Value, unknown: &[&str]) -> Value {
    let unknown: Vec<String> = unknown.iter().map(|field| (*field).to_owned()).collect();
    Trial::new(mine, &[], true).stored(&json!({ "template": theirs }), &unknown, true).template
}

#[test]
fn quantities_come_in_the_text_of_the_api_server() {
    let mine = template(
        json!({"name": "c", "resources": {"limits": {"cpu": 1, "memory": "0.5Gi"}, "requests": {"cpu": "0.05"}}}),
    );
    let theirs = template(
        json!({"name": "c", "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "50m"}}}),
    );
    let got = laid(&mine, theirs, &[]);
    assert_eq!(
        got["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "50m"}})
    );
}

#[test]
fn unknown_fields_survive_at_every_depth() {
    let future = || json!({"a": [{"b": null}], "c": {}, "d": "", "e": false});
    let mut mine = template(
        json!({"name": "c", "future": future(), "env": [{"name": "A", "value": "", "future": future()}],
        "livenessProbe": {"exec": {"command": ["true"], "future": future()}, "future": future()}, "resources": {"future": future()}}),
    );
    mine["future"] = future();
    mine["metadata"]["future"] = future();
    mine["spec"]["future"] = future();
    mine["spec"]["futureFlag"] = json!("");
    mine["spec"]["volumes"] = json!([{"name": "v", "future": future(), "emptyDir": {"future": future()}}]);
    let mut theirs =
        template(json!({"name": "c", "env": [{"name": "A"}], "livenessProbe": {"exec": {"command": ["true"]},
        "timeoutSeconds": 1}, "resources": {}, "terminationMessagePath": "/dev/termination-log"}));
    theirs["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let got = laid(&mine, theirs, &["template.spec.futureFlag"]);
    for at in [
        "",
        "/metadata",
        "/spec",
        "/spec/containers/0",
        "/spec/containers/0/env/0",
        "/spec/containers/0/livenessProbe",
        "/spec/containers/0/livenessProbe/exec",
        "/spec/containers/0/resources",
        "/spec/volumes/0",
        "/spec/volumes/0/emptyDir",
    ] {
        assert_eq!(got.pointer(&format!("{at}/future")), Some(&future()), "{at}");
    }
    assert_eq!(got["spec"]["futureFlag"], "", "an unknown field may be empty");
    assert!(got["spec"]["containers"][0]["env"][0].get("value").is_none(), "a known one that is empty is not written");
    assert_eq!(got["spec"]["containers"][0]["livenessProbe"]["timeoutSeconds"], 1);
}

#[test]
fn a_field_whose_feature_is_off_in_the_api_server_survives() {
    let mine = template(json!({"name": "c", "resizePolicy": [{"resourceName": "cpu"}]})).as_object().cloned().unwrap();
    let mut mine = Value::from(mine);
    mine["spec"]["hostUsers"] = false.into();
    let got = laid(&mine, template(json!({"name": "c"})), &[]);
    assert_eq!(got["spec"]["hostUsers"], false);
    assert_eq!(got["spec"]["containers"][0]["resizePolicy"], json!([{"resourceName": "cpu"}]));
}

#[test]
fn what_says_nothing_is_not_stored() {
    let mut mine = template(
        json!({"name": "c", "command": [], "env": null, "tty": false, "resources": null, "imagePullPolicy": "",
        "ports": [{"containerPort": 80, "hostPort": 0}], "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false, "subPath": ""}]}),
    );
    mine["metadata"]["annotations"] = json!({});
    mine["spec"]["nodeSelector"] = json!({});
    mine["spec"]["hostNetwork"] = false.into();
    let theirs = template(json!({"name": "c", "imagePullPolicy": "Always", "resources": {},
        "ports": [{"containerPort": 80, "protocol": "TCP"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    assert_eq!(
        laid(&mine, theirs.clone(), &[]),
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}}, "spec": theirs["spec"]})
    );
}

#[test]
fn of_the_two_names_of_an_account_only_the_users_is_kept() {
    let theirs = || {
        let mut theirs = template(json!({"name": "c"}));
        theirs["spec"]["serviceAccount"] = "x".into();
        theirs["spec"]["serviceAccountName"] = "x".into();
        theirs
    };
    for keys in [&["serviceAccount"][..], &["serviceAccountName"], &["serviceAccount", "serviceAccountName"], &[]] {
        let mut mine = template(json!({"name": "c"}));
        for key in keys {
            mine["spec"][key] = "x".into();
        }
        let got = laid(&mine, theirs(), &[]);
        for key in ACCOUNTS {
            assert_eq!(got["spec"].get(key).is_some(), keys.contains(&key), "{keys:?}: {key}");
        }
    }
}

#[test]
fn containers_are_pulled_always_and_init_containers_by_their_tag() {
    let mut mine = template(json!({"name": "c", "image": "i:1"}));
    mine["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "d", "imagePullPolicy": "Never"}));
    mine["spec"]["initContainers"] = json!([{"name": "i", "image": "i:1"}]);
    let body = Trial::new(&mine, &[], true).body();
    let policy = |pointer: &str| body.pointer(&format!("/template/spec/{pointer}/imagePullPolicy")).cloned();
    assert_eq!(policy("containers/0"), Some("Always".into()));
    assert_eq!(policy("containers/1"), Some("Never".into()));
    assert_eq!(policy("initContainers/0"), None);
}

#[test]
fn entries_that_somebody_else_adds_to_the_answer_are_not_taken() {
    let theirs = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}, {"name": "injected"}]}});
    let got = laid(&template(json!({"name": "c"})), theirs, &[]);
    assert_eq!(got["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[test]
fn without_defaults_only_what_every_typed_client_writes_is_added() {
    let mine = template(json!({"name": "c", "resources": {"limits": {"cpu": "1000m"}}}));
    let theirs = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"dnsPolicy": "ClusterFirst",
        "containers": [{"name": "c", "imagePullPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]}});
    let claims = [json!({"metadata": {"name": "data"}, "spec": {}})];
    let trial = Trial::new(&mine, &claims, true);
    let got = trial.stored(&json!({ "template": theirs }), &[], false);
    assert_eq!(
        got.template,
        json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}})
    );
}

#[test]
fn claims_become_volumes_for_the_check_and_their_fields_are_named() {
    let mut mine = template(json!({"name": "c"}));
    mine["spec"]["volumes"] = json!([{"name": "cfg"}, {"name": "data"}]);
    let claims = [
        json!({"metadata": {"name": "data", "labels": {"a": "b"}, "name2": 1}, "spec": {"accessModes": []}}),
        json!({"metadata": {"name": "more"}, "spec": {"accessModes": []}}),
    ];
    let trial = Trial::new(&mine, &claims, true);
    let body = trial.body();
    let volumes = body["template"]["spec"]["volumes"].as_array().unwrap();
    let names: Vec<&Value> = volumes.iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["cfg", "data", "claim-template-0", "more"], "the API server would refuse a name twice");
    assert_eq!(
        volumes[2]["ephemeral"]["volumeClaimTemplate"],
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": []}})
    );
    for (named, want) in [
        ("template.spec.containers[0].image", "spec.template.spec.containers[0].image"),
        ("template.spec.volumes[1].name", "spec.template.spec.volumes[1].name"),
        (
            "template.spec.volumes[2].ephemeral.volumeClaimTemplate.spec.accessModes",
            "spec.volumeClaimTemplates[0].spec.accessModes",
        ),
        ("template.spec.volumes[3].name", "spec.volumeClaimTemplates[1].metadata.name"),
        ("template.spec.volumes[4].name", "spec.template.spec.volumes[4].name"),
        ("template.spec.volumes[x]", "spec.template.spec.volumes[x]"),
    ] {
        assert_eq!(trial.field(named), want, "{named}");
    }
    let unjudged = Trial::new(&mine, &claims, false);
    assert_eq!(
        unjudged.body()["template"]["spec"]["volumes"][3],
        json!({"name": "more", "persistentVolumeClaim": {"claimName": "claim"}})
    );
    assert_eq!(
        unjudged.stored(&unjudged.body(), &[], true).claims,
        claims,
        "claims that are not judged stay as they are"
    );
}

#[test]
fn hostile_templates_change_nothing_that_is_no_template() {
    for odd in [
        json!(null),
        json!([]),
        json!({"spec": 1}),
        json!({"spec": {"containers": {}, "volumes": "x"}}),
        json!({"spec": {"containers": [null, 1]}}),
    ] {
        let claims = [json!(null), json!({"spec": 1})];
        let trial = Trial::new(&odd, &claims, true);
        let stored = trial.stored(&trial.body(), &[], true);
        assert_eq!(stored.claims.len(), 2);
        assert!(!looks_defaulted(&odd) && missing_volumes(&odd).is_empty());
    }
}

#[test]
fn recorded_templates_look_defaulted_and_applied_ones_do_not() {
    for (name, applied, recorded) in recorded() {
        assert!(looks_defaulted(&recorded["template"]), "{name}");
        assert!(!looks_defaulted(&applied["template"]), "{name}");
    }
}

#[test]
fn a_part_that_was_added_while_admission_was_away_is_noticed() {
    let (_, _, recorded) = recorded().into_iter().find(|(name, ..)| name == "full").unwrap();
    let with = |pointer: &str, value: Value| {
        let mut template = recorded["template"].clone();
        match template.pointer_mut(pointer).unwrap() {
            Value::Array(list) => list.push(value),
            Value::Object(map) => map.extend(value.as_object().unwrap().clone()),
            other => panic!("{other}"),
        }
        looks_defaulted(&template)
    };
    assert!(!with("/spec/containers", json!({"name": "new", "image": "i"})));
    assert!(!with("/spec/initContainers", json!({"name": "new", "image": "i"})));
    assert!(!with("/spec/volumes", json!({"name": "new", "secret": {"secretName": "s"}})));
    assert!(!with("/spec/containers/0/ports", json!({"containerPort": 1})));
    assert!(!with(
        "/spec/containers/0/env",
        json!({"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    ));
    assert!(!with("/spec/containers/0", json!({"livenessProbe": {"exec": {"command": ["true"]}}})));
    assert!(with("/spec/containers/0/env", json!({"name": "N", "value": "1"})));
    assert!(with("/spec/volumes", json!({"name": "new", "emptyDir": {}})));
    assert!(with("/spec", json!({"fieldOfTheFuture": true})));
}
