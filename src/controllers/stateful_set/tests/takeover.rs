//! Sets that somebody else has run before: the built-in StatefulSet of Kubernetes 1.30 and of 1.34 after
//! `kubectl delete --cascade=orphan`, and OpenKruise's with claims.

use super::*;
use crate::controllers::tests::recorded::{self, Left, left_by};

/// What is left of a built-in set: its Pods, claims and revisions, without owners. The same manifest with the other
/// apiVersion, as our admission stores it, is there too.
fn taken_over(left: &Left) -> World {
    let world = World::new();
    // Newer than everything that was recorded.
    lock(&world.server).version = 1_000_000_000;
    for revision in &left.revisions {
        let name = revision["metadata"]["name"].as_str().unwrap();
        lock(&world.server).put(&format!("{REVISIONS}{name}"), revision.clone());
    }
    left.pods.iter().for_each(|pod| world.put_pod(pod.clone()));
    for claim in &left.claims {
        world.put_claim(claim["metadata"]["name"].as_str().unwrap(), claim.clone());
    }
    assert_eq!(left.set["metadata"]["name"], "web", "{}", left.file);
    let mut set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "ns", "uid": "set", "generation": 0}, "spec": left.set["spec"]});
    // Whatever the version of the API server.
    set["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
    lock(&world.server).objects.insert(SET.into(), set);
    world.put_set(json!({}));
    world
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_20_pods_of_apps_v1_of_1_30_and_1_34_get_an_owner_and_no_other_write() {
    for left in &left_by("StatefulSet") {
        let (world, file) = (taken_over(left), &left.file);
        world.settle_all().await;
        let mut adopted = Vec::new();
        for (method, path, body) in world.writes().into_iter().filter(|(_, path, _)| !path.ends_with("/web/status")) {
            assert_eq!(method, Method::PATCH, "{file}: {path} {body}");
            let fields: Vec<&str> = body["metadata"].as_object().unwrap().keys().map(String::as_str).collect();
            assert!(fields.iter().all(|key| ["ownerReferences", "resourceVersion", "uid"].contains(key)), "{body}");
            assert_eq!(body.as_object().unwrap().len(), 1, "{file}: {body}");
            adopted.push(path);
        }
        adopted.sort();
        let below =
            |path: &'static str, objects| recorded::names(objects).into_iter().map(move |name| format!("{path}{name}"));
        let mut wanted: Vec<String> = below(PODS, &left.pods).chain(below(REVISIONS, &left.revisions)).collect();
        wanted.sort();
        assert_eq!(adopted, wanted, "{file}: no claim");
        let status = world.status();
        let revision = &left.set["status"]["updateRevision"];
        assert_eq!((&status["currentRevision"], &status["updateRevision"]), (revision, revision), "{file}");
        assert_eq!(status["updatedReplicas"], left.set["spec"]["replicas"], "{file}");
        assert!(world.condition("Ready").is_some(), "{file}: {status}");
        // A manager that knows nothing finds the same.
        world.controller.common.memories.clear();
        world.settle_all().await;
        assert_eq!(world.sent(), Vec::<String>::new(), "{file}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_apps_v1_lack_readiness_gates_and_are_replaced_by_their_first_update_or_named() {
    let recorded = left_by("StatefulSet");
    let cases = [("InPlaceIfPossible", vec!["DELETE pods/web-2"]), ("InPlaceOnly", vec![])];
    for (left, (policy, want)) in recorded.iter().flat_map(|left| cases.iter().map(move |case| (left, case))) {
        let world = taken_over(left);
        world.settle_all().await;
        world.writes();
        let mut containers = left.set["spec"]["template"]["spec"]["containers"].clone();
        containers[0]["image"] = "i:2".into();
        world.put_set(json!({"template": {"spec": {"containers": containers}},
            "updateStrategy": {"rollingUpdate": {"podUpdatePolicy": policy}}}));
        world.settle_all().await;
        let sent: Vec<String> = world.sent().into_iter().filter(|write| write.contains(" pods/")).collect();
        assert_eq!(sent, *want, "{} {policy}", left.file);
        let stalled = world.condition("Stalled").unwrap_or_default();
        let names_all = stalled.starts_with("Pods web-2, web-1 and web-0 ") && stalled.contains("InPlaceUpdateReady");
        assert_eq!(names_all, want.is_empty(), "{stalled}");
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
        assert_eq!(world.sent(), Vec::<String>::new(), "no Pod, no claim and no revision");
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
        let writes = world.writes();
        assert!(writes.len() <= 1, "{} {policy}: {writes:?}", stage["stage"]);
        for (method, path, body) in writes {
            assert!(path.ends_with("/statefulsets/asts/status"), "{} {policy}: {method} {path} {body}", stage["stage"]);
        }
        let status = lock(&world.server).objects[NAMESPACE]["status"].clone();
        assert_eq!(status["volumeClaims"][0]["compatibleReadyReplicas"], set["status"]["replicas"], "{status}");
    }
}
