//! What the API server refuses, and what the stores learn from it.

use super::*;

fn foreign(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "metadata": {"name": name, "namespace": "ns",
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]}})
}

#[tokio::test(start_paused = true)]
async fn an_ordinal_whose_name_is_taken_keeps_no_later_one_from_being_made() {
    let world = World::new();
    lock(&world.server).put(&format!("{PODS}web-1"), foreign("web-1"));
    world.put_set(json!({"replicas": 6}));
    let _ = world.settle().await;
    assert_eq!(names(&world.objects(PODS)), ["web-0", "web-1", "web-2", "web-3", "web-4", "web-5"]);
    assert!(world.condition("FailedCreatePod").unwrap().contains("Pod web-1"), "{:?}", world.status());
    world.writes();
    assert!(world.controller.reconcile(&ObjectKey::new("ns", "web")).await.is_err(), "it backs off");
    assert_eq!(world.sent(), ["POST pods/web-1"]);
}

#[tokio::test(start_paused = true)]
async fn ordinals_that_were_refused_are_tried_after_the_others() {
    let world = World::new();
    for ordinal in 0..30 {
        let name = format!("web-{ordinal}");
        lock(&world.server).put(&format!("{PODS}{name}"), foreign(&name));
    }
    world.put_set(json!({"replicas": 32}));
    for pass in 0..5 {
        world.writes();
        assert!(world.controller.reconcile(&ObjectKey::new("ns", "web")).await.is_err());
        let tried = world.sent().iter().filter(|write| write.starts_with("POST pods/")).count();
        assert!(tried <= 16, "pass {pass}: {tried}");
    }
    let pods = world.objects(PODS);
    assert!(pods.contains_key("web-30") && pods.contains_key("web-31"), "{:?}", names(&pods));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_there_already_is_looked_at_before_its_pod_is_made() {
    let world = World::new();
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-web-0", "namespace": "ns", "deletionTimestamp": AT, "finalizers": ["x/y"]}});
    lock(&world.server).put(&format!("{CLAIMS}data-web-0"), claim.clone());
    world.put_set(json!({"replicas": 1, "volumeClaimTemplates": with_claims()}));
    world.settle_all().await;
    assert_eq!(names(&world.objects(PODS)), Vec::<&str>::new());
    assert!(world.condition("Reconciling").unwrap().contains("data-web-0"), "{:?}", world.status());
    assert!(world.controller.claims.get(&ObjectKey::new("ns", "data-web-0")).is_some(), "the store knows it");
    claim["metadata"] = json!({"name": "data-web-0", "namespace": "ns", "uid": "next"});
    let claim = lock(&world.server).put(&format!("{CLAIMS}data-web-0"), claim);
    world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    world.settle_all().await;
    assert_eq!(names(&world.objects(PODS)), ["web-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_changed_is_read_before_it_is_written_again() {
    let world = World::new();
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    world.put_set(json!({"volumeClaimTemplates": with_claims(), "persistentVolumeClaimRetentionPolicy": policy}));
    world.go_on().await;
    // Changed, and the watch has not delivered it.
    let path = format!("{CLAIMS}data-web-2");
    let mut claim = lock(&world.server).objects[&path].clone();
    claim["metadata"]["annotations"] = json!({"somebody": "else"});
    lock(&world.server).put(&path, claim);
    world.writes();
    world.put_set(json!({"replicas": 2}));
    let key = ObjectKey::new("ns", "web");
    world.controller.reconcile(&key).await.unwrap();
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.sent(), ["PATCH persistentvolumeclaims/data-web-2"; 2], "the second one fits");
    let claim = world.objects(CLAIMS)["data-web-2"].clone();
    assert_eq!(claim["metadata"]["ownerReferences"][0]["name"], "web-2");
}

/// A scale-down made the Pod the owner of its claim and got no further. It is wanted again, and outdated.
#[tokio::test(start_paused = true)]
async fn a_pod_goes_only_when_its_claim_does_not_go_with_it_although_the_next_one_needs_it() {
    for code in [409, 403] {
        let world = World::new();
        world.put_set(json!({"replicas": 1, "volumeClaimTemplates": with_claims(),
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Retain"},
            "updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "ReCreate"}}}));
        world.go_on().await;
        let uid_of_claim = || world.objects(CLAIMS)["data-web-0"]["metadata"]["uid"].clone();
        let (claim, pods) = (uid_of_claim(), uids(&world));
        lock(&world.server).faults.push((Method::DELETE, format!("{PODS}web-0"), 403));
        world.put_set(json!({"replicas": 0}));
        assert!(world.settle().await.is_err());
        let owners = || world.objects(CLAIMS)["data-web-0"]["metadata"]["ownerReferences"].clone();
        assert_eq!(owners()[0]["name"], "web-0");
        world.writes();
        lock(&world.server).faults.push((Method::PATCH, format!("{CLAIMS}data-web-0"), code));
        let mut again = with_image("i:2");
        again["replicas"] = 1.into();
        world.put_set(again);
        let passed = world.controller.reconcile(&ObjectKey::new("ns", "web")).await;
        assert_eq!(passed.is_ok(), code == 409);
        let sent: Vec<String> = world.sent().into_iter().filter(|write| !write.contains("revisions")).collect();
        assert_eq!(sent, ["PATCH persistentvolumeclaims/data-web-0"], "{code}");
        let why = world.condition("Reconciling").unwrap();
        assert_eq!(why, "Pod web-0 is replaced when it does not own its claim data-web-0 any more");
        world.go_on().await;
        assert_eq!((uid_of_claim(), owners()), (claim, json!([])));
        assert_ne!(uids(&world), pods);
        assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_revision_that_was_deleted_by_hand_is_made_again_and_replaces_no_pod() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = of_each(&world.objects(PODS), "/metadata/uid");
    world.put_set(json!({"updateStrategy": {"rollingUpdate": {"partition": 2}},
        "template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}));
    world.go_on().await;
    let update = world.status()["updateRevision"].as_str().unwrap().to_owned();
    lock(&world.server).objects.remove(&format!("{REVISIONS}{update}")).unwrap();
    // As after a restart.
    world.controller.common.forget();
    let mut set = lock(&world.server).objects[SET].clone();
    set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 0.into();
    let set = lock(&world.server).put(SET, set);
    world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    world.go_on().await;
    let pods = world.objects(PODS);
    assert_eq!(of_each(&pods, "/metadata/uid"), before, "in place");
    assert_eq!(of_each(&pods, "/spec/containers/0/image"), ["i:2"; 3]);
    assert!(world.objects(REVISIONS).contains_key(&update), "made again under its name");
}

#[tokio::test(start_paused = true)]
async fn a_revision_is_deleted_only_as_it_was_read() {
    let world = World::new();
    world.put_set(json!({"revisionHistoryLimit": 0}));
    world.go_on().await;
    world.put_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    world.writes();
    world.go_on().await;
    let deletions: Vec<Value> = world
        .writes()
        .into_iter()
        .filter(|(method, path, _)| *method == Method::DELETE && path.contains("revision"))
        .map(|(_, _, body)| body)
        .collect();
    assert_eq!(deletions.len(), 1);
    let preconditions = &deletions[0]["preconditions"];
    assert!(preconditions["uid"].is_string() && preconditions["resourceVersion"].is_string(), "{preconditions}");
}

#[tokio::test(start_paused = true)]
async fn while_revisions_cannot_be_read_or_made_surplus_pods_go_and_none_is_made() {
    for (method, code) in [(Method::GET, 500), (Method::POST, 403)] {
        let world = World::new();
        world.put_set(json!({}));
        world.go_on().await;
        world.writes();
        let before = world.status();
        world.put_set(json!({"replicas": 2, "reserveOrdinals": [1],
            "template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}));
        let fault = (method.clone(), REVISIONS.trim_end_matches('/').to_owned(), code);
        lock(&world.server).faults.extend(vec![fault; 3]);
        assert!(world.controller.reconcile(&ObjectKey::new("ns", "web")).await.is_err(), "it backs off");
        let status = world.status();
        let ready = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("RevisionUnknown")));
        assert!(world.condition("Reconciling").unwrap().contains("found out: test"), "{status}");
        for field in ["observedGeneration", "currentRevision", "updateRevision", "replicas"] {
            assert_eq!(status[field], before[field], "{field}");
        }
        let sent: Vec<String> = world.sent().into_iter().filter(|write| write.contains(" pods")).collect();
        assert_eq!(sent, ["DELETE pods/web-1"], "{method}");
        lock(&world.server).faults.clear();
        world.go_on().await;
        let pods = world.objects(PODS);
        assert_eq!(
            (names(&pods), of_each(&pods, "/spec/containers/0/image")),
            (vec!["web-0", "web-2"], vec![json!("i:2"); 2])
        );
        assert!(world.condition("Ready").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn while_no_revision_can_be_made_an_ordered_scale_down_stops_at_several_broken_pods_as_ever() {
    let world = World::new();
    world.put_set(json!({"podManagementPolicy": "OrderedReady"}));
    world.go_on().await;
    for name in ["web-1", "web-2"] {
        let mut pod = world.objects(PODS)[name].clone();
        let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": clock::now().wall});
        strategic(&mut pod["status"], &json!({"conditions": [ready]}));
        world.put_pod(pod);
    }
    world.writes();
    let mut fewer = with_image("i:2");
    fewer["replicas"] = 1.into();
    world.put_set(fewer);
    lock(&world.server).faults.push((Method::POST, REVISIONS.trim_end_matches('/').to_owned(), 403));
    let deleted = || world.sent().into_iter().filter(|write| write.starts_with("DELETE")).collect::<Vec<_>>();
    assert!(world.controller.reconcile(&ObjectKey::new("ns", "web")).await.is_err());
    assert_eq!(deleted(), Vec::<String>::new());
    world.settle().await.unwrap();
    assert_eq!(deleted(), ["DELETE pods/web-2"], "the newest template, which is known now, does not reach it");
}

#[tokio::test(start_paused = true)]
async fn claims_of_ordinals_without_a_pod_stay_when_the_policy_has_changed_to_that() {
    let policy = |deleted: &str| json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": "Retain"}});
    let owners = |world: &World| of_each(&world.objects(CLAIMS), "/metadata/ownerReferences/0/name");
    let world = World::new();
    world.put_set(json!({"volumeClaimTemplates": with_claims()}));
    world.put_set(policy("Delete"));
    world.go_on().await;
    world.put_set(json!({"replicas": 1}));
    world.go_on().await;
    assert_eq!((world.objects(PODS).len(), owners(&world)), (1, vec![json!("web"); 3]));
    // Another set's is not ours to change.
    world.put_claim(
        "data-other-0",
        json!({"metadata": {"ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1",
        "kind": "StatefulSet", "name": "other", "uid": "other"}]}}),
    );
    // Nor is one that somebody has made for the set, under another name.
    world.put_claim(
        "scratch",
        json!({"metadata": {"ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1",
        "kind": "StatefulSet", "name": "web", "uid": "set"}]}}),
    );
    world.put_set(policy("Retain"));
    world.go_on().await;
    assert_eq!(owners(&world), [json!("other"), Value::Null, Value::Null, Value::Null, json!("web")]);
    world.writes();
    world.put_set(policy("Delete"));
    world.go_on().await;
    assert_eq!(world.sent(), ["PATCH persistentvolumeclaims/data-web-0"], "claims without a Pod are not given away");
}

/// Of the built-in set, whose `ordinals.start` has an effect, under ours, where a gate is off.
#[tokio::test(start_paused = true)]
async fn pods_from_a_start_ordinal_on_are_adopted_with_its_gate_and_never_deleted_without() {
    for gate in [false, true] {
        let world = World::with_gates(if gate { &["StatefulSetStartOrdinal=true"] } else { &[] });
        let begun = World::of(world.server.clone(), &["StatefulSetStartOrdinal=true"]);
        begun.put_set(json!({"ordinals": {"start": 5}}));
        begun.go_on().await;
        assert_eq!(names(&begun.objects(PODS)), ["web-5", "web-6", "web-7"]);
        for (_, mut pod) in world.objects(PODS) {
            pod["metadata"]["ownerReferences"] = json!([]);
            world.put_pod(pod);
        }
        world.writes();
        world.put_set(json!({}));
        world.settle_all().await;
        let mut sent: Vec<String> = world.sent().into_iter().filter(|write| write.contains(" pods")).collect();
        sent.sort();
        if gate {
            assert_eq!(sent, ["PATCH pods/web-5", "PATCH pods/web-6", "PATCH pods/web-7"], "adopted");
            continue;
        }
        assert_eq!(sent, Vec::<String>::new());
        let stalled = world.condition("Stalled").unwrap();
        assert!(stalled.contains("web-5") && stalled.contains("StatefulSetStartOrdinal"), "{stalled}");
        world.put_set(json!({"ordinals": {"start": 0}, "replicas": 8}));
        world.go_on().await;
        assert_eq!(world.objects(PODS).len(), 8, "without a start they are ordinals as others are");
    }
}

/// How often a Pod has left service for an update in place.
fn left_service(world: &World) -> usize {
    world.writes().iter().filter(|(.., body)| body.to_string().contains("StartInPlaceUpdate")).count()
}

#[tokio::test(start_paused = true)]
async fn while_updates_in_place_are_denied_no_pod_leaves_service_after_the_first_ones() {
    let world = World::new();
    let strategy = json!({"rollingUpdate": {"podUpdatePolicy": "InPlaceIfPossible", "maxUnavailable": 2}});
    world.put_set(json!({"replicas": 6, "updateStrategy": strategy}));
    world.go_on().await;
    lock(&world.server).denied = Some("i:2");
    let template = json!({"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}});
    world.put_set(json!({"template": template}));
    world.writes();
    assert!(world.settle().await.is_err());
    let first = left_service(&world);
    assert!((1..=2).contains(&first), "{first} within maxUnavailable");
    for _ in 0..20 {
        assert!(world.settle().await.is_err());
        world.play();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(left_service(&world), 0);
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:1"; 6]);
    lock(&world.server).denied = None;
    for _ in 0..10 {
        world.settle().await.unwrap();
        world.play();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 6]);
}

/// Who reads the counts takes them to be about the generation that the status names.
#[tokio::test(start_paused = true)]
async fn while_the_built_in_set_cannot_be_read_a_status_is_of_the_generation_whose_revision_it_counts() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = world.status();
    lock(&world.server).faults.push((Method::GET, BUILT_IN.into(), 403));
    world.put_set(with_image("i:2"));
    assert!(world.settle().await.is_err(), "it is tried again");
    let status = world.status();
    assert!(world.condition("Reconciling").unwrap().contains("built-in StatefulSet web"), "{status}");
    for field in ["observedGeneration", "updateRevision", "updatedReplicas"] {
        assert_eq!(status[field], before[field], "{field}");
    }
    world.go_on().await;
    assert_eq!((&world.status()["observedGeneration"], &before["observedGeneration"]), (&json!(2), &json!(1)));
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 3]);
}

fn with_image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}})
}

fn uids(world: &World) -> Vec<Value> {
    of_each(&world.objects(PODS), "/metadata/uid")
}

/// As a backup of another cluster, or a release before, leaves it.
#[tokio::test(start_paused = true)]
async fn a_status_that_is_stale_stops_nothing_and_is_made_right() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let pods = uids(&world);
    for stale in [
        json!({"observedGeneration": 99, "replicas": 7, "readyReplicas": 7, "updatedReplicas": 7, "updatedReadyReplicas": 7,
            "currentRevision": "web-gone", "updateRevision": "web-gone-too", "collisionCount": 0}),
        json!({"observedGeneration": 1}),
        json!(null),
    ] {
        let mut set = lock(&world.server).objects[SET].clone();
        set["status"] = stale.clone();
        lock(&world.server).put(SET, set);
        // A manager that remembers nothing.
        let world = World::of(world.server.clone(), &[]);
        for pod in world.objects(PODS).into_values() {
            world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
        }
        let next = if world.objects(PODS)["web-0"]["spec"]["containers"][0]["image"] == "i:1" { "i:2" } else { "i:1" };
        world.put_set(with_image(next));
        for _ in 0..2 {
            world.settle_all().await;
        }
        assert_eq!(world.condition("Reconciling").unwrap(), "Pod web-2 is in lifecycle state Updating", "{stale}");
        world.go_on().await;
        let status = world.status();
        for count in ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas"] {
            assert_eq!(status[count], 3, "{count} after {stale}: {status}");
        }
        assert_eq!(status["currentRevision"], status["updateRevision"], "{status}");
        assert!(world.condition("Ready").is_some(), "{status}");
        let images = of_each(&world.objects(PODS), "/spec/containers/0/image");
        assert_eq!((images, uids(&world)), (vec![json!(next); 3], pods.clone()), "after {stale}");
    }
}

/// The watch has expired, and shows Pods that are gone and others as they were.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_behind_stops_nothing() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let first = uids(&world);
    {
        let mut server = lock(&world.server);
        server.objects.remove(&format!("{PODS}web-2"));
        let mut changed = server.objects[&format!("{PODS}web-1")].clone();
        changed["metadata"]["labels"]["by"] = "somebody".into();
        server.put(&format!("{PODS}web-1"), changed);
    }
    world.put_set(with_image("i:2"));
    for _ in 0..2 {
        world.settle_all().await;
    }
    assert_eq!(world.condition("Reconciling").unwrap(), "Pod web-2 is not Ready", "the one that was made anew");
    world.go_on().await;
    let pods = world.objects(PODS);
    assert_eq!(of_each(&pods, "/spec/containers/0/image"), [json!("i:2"), json!("i:2"), json!("i:2")]);
    assert_eq!(pods["web-1"]["metadata"]["labels"]["by"], "somebody");
    let now = uids(&world);
    assert_eq!((&now[0], &now[1]), (&first[0], &first[1]), "in place");
    assert_ne!(now[2], first[2]);
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn claims_whose_webhook_does_not_answer_keep_no_pod_from_being_updated() {
    let world = World::new();
    world.put_set(json!({"volumeClaimTemplates": with_claims()}));
    world.go_on().await;
    let fault = (Method::PATCH, CLAIMS.trim_end_matches('/').to_owned(), 500);
    lock(&world.server).faults.extend(vec![fault; 500]);
    let mut changes = with_image("i:2");
    changes["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
    world.put_set(changes);
    for _ in 0..20 {
        assert!(world.settle().await.is_err());
        world.play();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 3]);
}
