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
    let selecting = |values: Value, subset: &str| {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        spread(json!({"spec": {"targetFilter": {"selector": selector}, "subsets": [{"name": subset}]}}))
    };
    let stored = selecting(json!([]), "a");
    assert_eq!(judge(&stored, None, "")[0].field, "spec.targetFilter.selector.matchExpressions[0].values");
    assert_eq!(judge(&selecting(json!([]), "b"), Some(&stored), ""), [], "another field is changed");
    assert_eq!(judge(&selecting(json!(["x"]), "a"), Some(&stored), ""), [], "it is mended");
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
fn a_patch_of_a_label_by_which_the_target_selects_its_pods_is_a_cause() {
    let target = json!({"kind": "CloneSet", "metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}}});
    for (labels, refused) in [
        (json!({"app": "other"}), true),
        (json!({"app": null}), true),
        (json!({"$patch": "replace", "zone": "a"}), true),
        (json!({"app": "web", "zone": "a"}), false),
    ] {
        let subset = json!({"name": "a", "patch": {"metadata": {"labels": labels}}});
        let (tried, causes) = trials(&spread(json!({"spec": {"subsets": [subset]}})), None, Some(&target)).unwrap();
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        let wanted: &[&str] = if refused { &["spec.subsets[0].patch.metadata.labels"] } else { &[] };
        assert_eq!((tried.len(), fields.as_slice()), (usize::from(!refused), wanted), "{labels}");
    }
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

/// What the API server was asked: method and path, with the body of what was sent.
type Asked = Arc<std::sync::Mutex<Vec<(String, Value)>>>;

/// An API server with one StatefulSet of each group, which finds no fault with a template.
fn context(gates: &[&str]) -> (Arc<Context>, Asked) {
    let asked = Asked::default();
    let log = asked.clone();
    let client = crate::runtime::fake_api::answering(move |parts, body| {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let path = parts.uri.path();
        log.lock().unwrap().push((format!("{} {path}", parts.method), body.clone()));
        let container = |image: &str| json!({"name": "main", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/d"}]});
        let set = |image: &str| {
            json!({"metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [container(image)]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}})
        };
        match path {
            "/apis/apps/v1/namespaces/ns/statefulsets/web" => (200, set("native")),
            "/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/web" => (200, set("advanced")),
            "/apis/apps.kruise.io/v1alpha1/namespaces/ns/workloadspreads" => {
                (200, json!({"metadata": {}, "items": []}))
            }
            path if path.ends_with("/podtemplates") => (201, body),
            _ => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"})),
        }
    });
    let gates = crate::api::feature_gates::FeatureGates::parse(gates, None).unwrap();
    (Arc::new(Context::new(gates, client, "kruise-system".into(), Default::default()).0), asked)
}

fn creation(spread: &WorkloadSpread) -> Request {
    let object = json!(spread);
    serde_json::from_value(
        json!({"uid": "r", "operation": "CREATE", "namespace": "ns", "name": "ws", "object": object}),
    )
    .unwrap()
}

#[tokio::test]
async fn c1_with_its_gate_off_none_can_be_created() {
    let (context, asked) = context(&["WorkloadSpread=false"]);
    let denied = handle(context, creation(&spread(json!({})))).await.unwrap_err();
    assert!(denied.code == 403 && denied.message.contains("WorkloadSpread is off"), "{denied:?}");
    assert_eq!(*asked.lock().unwrap(), []);
}

#[tokio::test]
async fn c11_a_patch_is_tried_on_the_stateful_set_of_its_own_group() {
    for (api_version, image) in [("apps/v1", "native"), ("apps.kruise.io/v1alpha1", "advanced")] {
        let (context, asked) = context(&[]);
        let target = json!({"apiVersion": api_version, "kind": "StatefulSet"});
        let patch = json!({"metadata": {"labels": {"zone": "a"}}});
        let object = spread(json!({"spec": {"targetRef": target, "subsets": [{"name": "a", "patch": patch}]}}));
        handle(context, creation(&object)).await.unwrap();
        let asked = asked.lock().unwrap();
        let tried: Vec<&Value> =
            asked.iter().filter(|(what, _)| what.starts_with("POST")).map(|(_, body)| &body["template"]).collect();
        assert_eq!(tried.len(), 1, "{asked:?}");
        assert_eq!(
            (&tried[0]["spec"]["containers"][0]["image"], &tried[0]["metadata"]["labels"]["zone"]),
            (&json!(image), &json!("a"))
        );
        assert_eq!(tried[0]["spec"]["volumes"][0]["name"], "data", "claims are volumes");
    }
}

#[test]
fn what_surge_pods_and_pods_of_a_job_will_not_get_is_a_remark() {
    let two = json!([{"name": "a", "maxReplicas": "30%"}, {"name": "b", "maxReplicas": "70%"}]);
    let open = json!([{"name": "a", "maxReplicas": "30%"}, {"name": "b"}]);
    let surging = json!({"spec": {"replicas": 10, "updateStrategy": {"maxSurge": 1}}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job"});
    let adaptive = json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 30}});
    let ignoring = json!({"spec": {"podFailurePolicy": {"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}}});
    for (spec, target, wanted) in [
        (json!({"subsets": two}), &surging, Some("spec.subsets: every subset may be full when CloneSet \"web\"")),
        (json!({"subsets": open}), &surging, None),
        (
            json!({"subsets": open, "targetRef": job, "scheduleStrategy": adaptive}),
            &json!({}),
            Some("spec.scheduleStrategy: no Pod of Job \"web\" is evicted"),
        ),
        (json!({"subsets": open, "targetRef": job, "scheduleStrategy": adaptive}), &ignoring, None),
        (json!({"subsets": open, "targetRef": job}), &json!({}), None),
        (json!({"subsets": open, "scheduleStrategy": adaptive}), &json!({}), None),
    ] {
        let found = remarks(&spread(json!({"spec": spec})), target);
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{found:?}");
        assert!(found.iter().all(|remark| remark.starts_with(wanted.unwrap())), "{found:?}");
    }
}
