//! Sets that somebody else has run before: the built-in StatefulSet of Kubernetes 1.30 and of 1.34 after
//! `kubectl delete --cascade=orphan`, and OpenKruise's with claims.

use super::*;

const NAME: &str = "web-6f8b5d9c47";

/// The template as the API server stores it, defaults included.
fn template(image: &str) -> Value {
    json!({"metadata": {"creationTimestamp": null, "labels": {"app": "web"}}, "spec": {
        "containers": [{"image": image, "imagePullPolicy": "IfNotPresent", "name": "main", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"mountPath": "/data", "name": "data"}]}],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30}})
}

/// What is left of a built-in set with three Pods: its Pods, claims and its revision, without owners.
fn left_by(minor: u32, world: &World) {
    let mut template = template("i:1");
    template["$patch"] = "replace".into();
    if minor >= 34 {
        template["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    }
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
        "metadata": {"name": NAME, "namespace": "ns", "labels": {"app": "web", "controller.kubernetes.io/hash": "6f8b5d9c47"}},
        "data": {"spec": {"template": template}}});
    lock(&world.server).put(&format!("{REVISIONS}{NAME}"), revision);
    for ordinal in 0..3 {
        let (pod, claim) = (format!("web-{ordinal}"), format!("data-web-{ordinal}"));
        let mut spec = self::template("i:1")["spec"].take();
        spec["hostname"] = pod.as_str().into();
        spec["subdomain"] = "db".into();
        spec["nodeName"] = "n".into();
        spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        world.put_pod(json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": pod, "namespace": "ns", "generateName": "web-", "labels": {"app": "web",
                "apps.kubernetes.io/pod-index": ordinal.to_string(), "controller-revision-hash": NAME,
                "statefulset.kubernetes.io/pod-name": pod}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": AT}],
                "containerStatuses": [{"name": "main", "image": "i:1", "imageID": "id", "containerID": "c://1",
                    "ready": true, "restartCount": 0, "state": {"running": {}}}]}}));
        world.put_claim(
            &claim,
            json!({"metadata": {"labels": {"app": "web"}, "finalizers": ["kubernetes.io/pvc-protection"],
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
                "volumeName": format!("pv-{ordinal}"), "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
        );
    }
}

/// The same manifest with the other apiVersion, as our admission stores it.
fn put(world: &World, changes: Value) {
    let set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "ns", "uid": "set", "generation": 0},
        "spec": {"replicas": 3, "serviceName": "db", "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}}, "template": template("i:1"), "volumeClaimTemplates": with_claims(),
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}}});
    lock(&world.server).objects.entry(SET.into()).or_insert(set);
    world.put_set(changes);
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_20_pods_of_apps_v1_of_1_30_and_1_34_get_an_owner_and_no_other_write() {
    for minor in [30, 34] {
        let world = World::new();
        left_by(minor, &world);
        put(&world, json!({}));
        world.settle_all().await;
        let mut adopted = Vec::new();
        for (method, path, body) in world.writes().into_iter().filter(|(_, path, _)| !path.ends_with("/web/status")) {
            assert_eq!(method, Method::PATCH, "1.{minor}: {path} {body}");
            let fields: Vec<&str> = body["metadata"].as_object().unwrap().keys().map(String::as_str).collect();
            assert!(fields.iter().all(|key| ["ownerReferences", "resourceVersion", "uid"].contains(key)), "{body}");
            assert_eq!(body.as_object().unwrap().len(), 1, "1.{minor}: {body}");
            adopted.push(path);
        }
        adopted.sort();
        let pods = (0..3).map(|ordinal| format!("{PODS}web-{ordinal}"));
        let mut wanted: Vec<String> = pods.chain([format!("{REVISIONS}{NAME}")]).collect();
        wanted.sort();
        assert_eq!(adopted, wanted, "1.{minor}: no claim");
        let status = world.status();
        assert_eq!((&status["currentRevision"], &status["updateRevision"]), (&json!(NAME), &json!(NAME)), "1.{minor}");
        assert_eq!(status["updatedReplicas"], 3);
        assert!(world.condition("Ready").is_some(), "1.{minor}: {status}");
        // A manager that knows nothing finds the same.
        world.controller.common.memories.clear();
        world.settle_all().await;
        assert_eq!(world.told(), Vec::<String>::new(), "1.{minor}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_apps_v1_lack_readiness_gates_and_are_replaced_by_their_first_update_or_named() {
    let next = |policy: &str| json!({"template": template("i:2"), "updateStrategy": {"rollingUpdate": {"podUpdatePolicy": policy}}});
    for (policy, want) in [("InPlaceIfPossible", vec!["DELETE pods/web-2"]), ("InPlaceOnly", vec![])] {
        let world = World::new();
        left_by(34, &world);
        put(&world, json!({}));
        world.settle_all().await;
        world.writes();
        world.put_set(next(policy));
        world.settle_all().await;
        let told: Vec<String> = world.told().into_iter().filter(|write| write.contains(" pods/")).collect();
        assert_eq!(told, want, "{policy}");
        let stalled = world.condition("Stalled").unwrap_or_default();
        assert_eq!(
            stalled.contains("Pod web-") && stalled.contains("InPlaceUpdateReady"),
            want.is_empty(),
            "{stalled}"
        );
    }
}

/// OpenKruise ran with a gate that is off as this program is shipped.
#[tokio::test(start_paused = true)]
async fn pods_that_the_set_controls_from_a_start_ordinal_on_are_never_deleted_without_its_gate() {
    let world = World::new();
    let before = World::of(world.server.clone(), &["StatefulSetStartOrdinal=true"]);
    before.put_set(json!({"ordinals": {"start": 5}, "volumeClaimTemplates": with_claims()}));
    before.go_on().await;
    let pods = names(&before.objects(PODS)).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(pods, ["web-5", "web-6", "web-7"]);
    for (_, pod) in world.objects(PODS) {
        assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
        world.put_pod(pod);
    }
    world.writes();
    for replicas in [3, 2] {
        world.put_set(json!({"replicas": replicas}));
        world.settle_all().await;
        assert_eq!(world.told(), Vec::<String>::new(), "no Pod, no claim and no revision");
        let stalled = world.condition("Stalled").unwrap();
        assert!(stalled.contains("Pod web-5") && stalled.contains("StatefulSetStartOrdinal"), "{stalled}");
    }
    // As it says: none of them is wanted then.
    world.put_set(json!({"ordinals": null}));
    world.go_on().await;
    assert_eq!(names(&world.objects(PODS)), ["web-0", "web-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_without_effect_holds_nothing_while_no_pod_is_where_it_would_begin() {
    let world = World::new();
    for replicas in [3, 1, 2] {
        world.put_set(json!({"ordinals": {"start": 5}, "replicas": replicas}));
        world.go_on().await;
        assert_eq!(world.objects(PODS).len(), replicas);
    }
}

/// What OpenKruise recorded, with a claim for each Pod as it makes them.
#[tokio::test(start_paused = true)]
async fn takeover_of_sets_with_claims_touches_no_pod_no_claim_and_no_revision() {
    const NAMESPACE: &str = "/apis/apps.kruise.io/v1beta1/namespaces/golden/statefulsets/asts";
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    for (stage, policy) in recorded.iter().flat_map(|stage| [(stage, "Retain"), (stage, "Delete")]) {
        let world = World::with_gates(&["StatefulSetAutoResizePVCGate=true"]);
        lock(&world.server).version = 1_000_000;
        let mut set = stage["set"].clone();
        set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}}]);
        set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = policy.into();
        let owner = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "asts",
            "uid": set["metadata"]["uid"]});
        for pod in stage["pods"].as_array().unwrap() {
            let (mut pod, claim) = (pod.clone(), format!("data-{}", pod["metadata"]["name"].as_str().unwrap()));
            let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
            pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
            world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": "golden", "uid": claim, "resourceVersion": "7", "labels": {"app": "asts"},
                    "ownerReferences": if policy == "Delete" { json!([owner]) } else { Value::Null }},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard", "volumeName": "v",
                    "resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
            world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
        }
        for revision in stage["revisions"].as_array().unwrap() {
            let name = revision["metadata"]["name"].as_str().unwrap();
            let path = format!("/apis/apps/v1/namespaces/golden/controllerrevisions/{name}");
            lock(&world.server).objects.insert(path, revision.clone());
        }
        lock(&world.server).objects.insert(NAMESPACE.into(), set.clone());
        world.controller.sets.upsert(serde_json::from_value(set.clone()).unwrap());
        for _ in 0..3 {
            world.controller.reconcile(&ObjectKey::new("golden", "asts")).await.unwrap();
        }
        for (method, path, body) in world.writes() {
            assert!(path.ends_with("/statefulsets/asts/status"), "{} {policy}: {method} {path} {body}", stage["stage"]);
        }
        let status = lock(&world.server).objects[NAMESPACE]["status"].clone();
        assert_eq!(status["volumeClaims"][0]["compatibleReadyReplicas"], set["status"]["replicas"], "{status}");
    }
}
