//! Updates in place, their hooks, and what they cost.

use super::*;

fn image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}})
}

/// One Pod whose updates two handlers hold.
async fn hooked(mark_pod_not_ready: bool) -> World {
    let world = World::new();
    let hook = json!({"labelsHandler": {"a": "yes", "b": "yes"}, "markPodNotReady": mark_pod_not_ready});
    world.put_set(json!({"replicas": 1, "lifecycle": {"inPlaceUpdate": hook},
        "template": {"metadata": {"labels": {"a": "yes", "b": "yes"}}}}));
    world.go_on().await;
    assert_eq!(state(&world), "Normal");
    world.writes();
    world
}

fn state(world: &World) -> Value {
    world.objects(PODS)["web-0"]["metadata"]["labels"][labels::LIFECYCLE_STATE].clone()
}

fn image_of(world: &World) -> Value {
    world.objects(PODS)["web-0"]["spec"]["containers"][0]["image"].clone()
}

fn handlers(world: &World) -> [Value; 2] {
    ["a", "b"].map(|key| world.objects(PODS)["web-0"]["metadata"]["labels"][key].clone())
}

/// Whoever the hook is for sets its labels.
fn label(world: &World, labels: &[(&str, &str)]) {
    let mut pod = world.objects(PODS)["web-0"].clone();
    for (key, value) in labels {
        pod["metadata"]["labels"][*key] = (*value).into();
    }
    world.put_pod(pod);
}

fn condition(world: &World, pod: &str, type_: &str) -> Value {
    let pod = world.objects(PODS)[pod].clone();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn edge_11_a_pod_is_normal_again_only_when_all_handlers_are_back() {
    let world = hooked(false).await;
    world.put_set(image("i:2"));
    world.go_on().await;
    assert_eq!((state(&world), image_of(&world)), (json!("PreparingUpdate"), json!("i:1")));
    label(&world, &[("a", "no")]);
    world.go_on().await;
    assert_eq!(image_of(&world), "i:1", "one of several still holds it");
    label(&world, &[("b", "no")]);
    world.go_on().await;
    assert_eq!((state(&world), image_of(&world)), (json!("Updated"), json!("i:2")));
    label(&world, &[("a", "yes")]);
    world.go_on().await;
    assert_eq!(state(&world), "Updated", "one of several is not enough");
    assert!(world.condition("Reconciling").is_some());
    label(&world, &[("b", "yes")]);
    world.go_on().await;
    assert_eq!(state(&world), "Normal");
    assert!(world.condition("Ready").is_some());
}

#[tokio::test(start_paused = true)]
async fn edge_12_a_roll_back_while_a_pod_waits_for_its_hook_touches_no_container() {
    for let_go in [false, true] {
        let world = hooked(false).await;
        world.put_set(image("i:2"));
        world.go_on().await;
        assert_eq!(state(&world), "PreparingUpdate");
        if let_go {
            // One of its handlers has let go, and the roll-back comes before the other one.
            label(&world, &[("a", "no")]);
        }
        world.put_set(image("i:1"));
        world.go_on().await;
        assert_eq!(state(&world), if let_go { "Updated" } else { "Normal" });
        label(&world, &[("a", "yes")]);
        world.go_on().await;
        assert_eq!(state(&world), "Normal");
        assert!(world.condition("Ready").is_some());
        for (_, path, body) in world.writes().into_iter().filter(|(_, path, _)| path.starts_with(PODS)) {
            assert!(body.get("spec").is_none(), "{path} {body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_not_let_in_is_not_in_service_when_its_deletion_is_taken_back() {
    let world = World::new();
    let hook = |key: &str| json!({"labelsHandler": {key: "yes"}});
    world.put_set(json!({"replicas": 1, "lifecycle": {"preNormal": hook("in"), "preDelete": hook("hold")},
        "template": {"metadata": {"labels": {"hold": "yes"}}}}));
    world.go_on().await;
    assert_eq!(state(&world), "PreparingNormal");
    world.put_set(json!({"replicas": 0}));
    world.go_on().await;
    assert_eq!(state(&world), "PreparingDelete");
    world.put_set(json!({"replicas": 1}));
    world.go_on().await;
    world.settle_all().await;
    assert_eq!((state(&world), world.status()["availableReplicas"].clone()), (json!("PreparingNormal"), json!(0)));
    label(&world, &[("in", "yes")]);
    world.go_on().await;
    world.settle_all().await;
    assert_eq!((state(&world), world.status()["availableReplicas"].clone()), (json!("Normal"), json!(1)));
}

/// The watch has not shown yet what somebody has written last.
#[tokio::test(start_paused = true)]
async fn a_hook_that_takes_hold_again_just_before_the_deletion_keeps_the_pod() {
    let (again, other) = (json!({"metadata": {"labels": {"hold": "yes"}}}), json!({"status": {"message": "m"}}));
    for (changes, is_held) in [(again, true), (other, false)] {
        let world = World::new();
        world.put_set(json!({"replicas": 1, "lifecycle": {"preDelete": {"labelsHandler": {"hold": "yes"}}},
            "template": {"metadata": {"labels": {"hold": "yes"}}}}));
        world.go_on().await;
        world.put_set(json!({"replicas": 0}));
        world.go_on().await;
        assert_eq!(state(&world), "PreparingDelete");
        label(&world, &[("hold", "no")]);
        let mut pod = world.objects(PODS)["web-0"].clone();
        json_patch::merge(&mut pod, &changes);
        lock(&world.server).put(&format!("{PODS}web-0"), pod);
        world.writes();
        world.settle().await.unwrap();
        let sent = world.sent();
        let deletions = sent.iter().filter(|write| *write == "DELETE pods/web-0").count();
        assert_eq!(deletions, if is_held { 1 } else { 2 }, "{sent:?}");
        world.go_on().await;
        assert_eq!(world.objects(PODS).contains_key("web-0"), is_held);
    }
}

#[tokio::test(start_paused = true)]
async fn edge_13_an_updated_pod_accepts_another_update_and_has_its_handlers_back() {
    let world = hooked(false).await;
    world.put_set(image("i:2"));
    world.go_on().await;
    label(&world, &[("a", "no"), ("b", "no")]);
    world.go_on().await;
    assert_eq!(state(&world), "Updated");
    world.put_set(image("i:3"));
    world.go_on().await;
    assert_eq!((state(&world), image_of(&world)), (json!("PreparingUpdate"), json!("i:2")));
    assert_eq!(handlers(&world), ["yes", "yes"], "the hook is asked again");
    label(&world, &[("a", "no"), ("b", "no")]);
    world.go_on().await;
    assert_eq!((state(&world), image_of(&world)), (json!("Updated"), json!("i:3")));
}

#[tokio::test(start_paused = true)]
async fn edge_14_a_gate_is_closed_whatever_was_seen_and_opened_only_as_it_was_seen() {
    const GATE: &str = labels::CONDITION_INPLACE_UPDATE_READY;
    let world = World::new();
    world.put_set(json!({"replicas": 1}));
    world.go_on().await;
    // What the watch has shown last looks closed already, and is old.
    let fresh = world.objects(PODS)["web-0"].clone();
    let mut stale = fresh.clone();
    strategic(&mut stale["status"], &json!({"conditions": [{"type": GATE, "status": "False"}]}));
    stale["metadata"]["resourceVersion"] = "1".into();
    world.controller.context.pods.remove(&ObjectKey::new("ns", "web-0"), None);
    world.controller.context.pods.upsert(serde_json::from_value(stale).unwrap());
    world.put_set(image("i:2"));
    world.settle_all().await;
    assert_eq!((condition(&world, "web-0", GATE)["status"].clone(), image_of(&world)), (json!("False"), json!("i:2")));
    world.play();
    // Somebody writes the Pod, and the watch has not delivered it: what was judged is not what is there.
    let path = format!("{PODS}web-0");
    let mut newer = world.objects(PODS)["web-0"].clone();
    newer["metadata"]["annotations"]["somebody"] = "else".into();
    let newer = lock(&world.server).put(&path, newer);
    world.writes();
    world.settle().await.unwrap();
    assert_eq!(world.sent(), ["PATCH pods/web-0/status"]);
    assert_eq!(condition(&world, "web-0", GATE)["status"], "False", "the conflict ends it");
    world.controller.context.pods.upsert(serde_json::from_value(newer).unwrap());
    world.go_on().await;
    assert_eq!(condition(&world, "web-0", GATE)["status"], "True");
    assert!(world.condition("Ready").is_some());
}

/// Whatever keeps its set from going on, a Pod whose update has begun gets back into service.
#[tokio::test(start_paused = true)]
async fn an_update_that_has_begun_ends_although_its_set_cannot_go_on() {
    const TRIALS: &str = "/api/v1/namespaces/ns/podtemplates";
    for way in ["no revision", "no defaults", "invalid", "built-in"] {
        let world = World::new();
        world.put_set(json!({}));
        world.go_on().await;
        world.put_set(image("i:2"));
        world.settle().await.unwrap();
        world.play();
        assert_eq!(condition(&world, "web-2", "Ready")["status"], "False");
        let refuse = |path: &str| {
            lock(&world.server).faults.extend(vec![(Method::POST, path.to_owned(), 403); 9]);
            world.put_set(image("i:3"));
        };
        match way {
            "no revision" => refuse(REVISIONS.trim_end_matches('/')),
            "no defaults" => refuse(TRIALS),
            "invalid" => world.put_set(json!({"reserveOrdinals": ["7"]})),
            _ => world.put_built_in(),
        }
        for _ in 0..3 {
            let _ = world.settle().await;
            world.play();
        }
        assert_eq!(condition(&world, "web-2", "Ready")["status"], "True", "{way}");
        if way.starts_with("no ") {
            let said = world.condition("Reconciling").expect("what is waited for");
            let what =
                if way == "no defaults" { "the defaults of the template" } else { "the revision of the template" };
            assert!(said.starts_with(&format!("{what} cannot be found out: ")), "{said}");
            assert_eq!(world.status()["observedGeneration"], 2, "{way}");
        }
        let images = of_each(&world.objects(PODS), "/spec/containers/0/image");
        assert_eq!(images, ["i:1", "i:1", "i:2"], "{way}: nothing else is begun");
    }
}

#[tokio::test(start_paused = true)]
async fn edge_16_no_tag_is_latest_and_an_image_that_is_the_same_completes() {
    let world = World::new();
    world.put_set(json!({"replicas": 1}));
    world.go_on().await;
    let id = "sha256:same";
    // A tag that is missing, and then one that names the same image as before: its ID does not change.
    for (wanted, shown) in [("i", "docker.io/library/i:latest"), ("i:2", "docker.io/library/i:2")] {
        world.put_set(image(wanted));
        world.settle_all().await;
        assert_eq!(image_of(&world), wanted);
        let mut pod = world.objects(PODS)["web-0"].clone();
        pod["status"]["containerStatuses"] = json!([{"name": "main", "image": shown, "imageID": id, "ready": true,
            "containerID": format!("c://{shown}"), "restartCount": 1, "state": {"running": {}}}]);
        world.put_pod(pod);
        world.settle_all().await;
        assert_eq!(condition(&world, "web-0", labels::CONDITION_INPLACE_UPDATE_READY)["status"], "True", "{wanted}");
        assert_eq!(world.status()["updatedReplicas"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn containers_with_launch_priorities_are_changed_one_after_the_other() {
    let world = World::new();
    let with = |[main, side]: [&str; 2]| {
        let container = |name: &str, image: &str, priority: &str| {
            let barrier = json!({"configMapKeyRef": {"name": "barrier", "key": priority}});
            json!({"name": name, "image": image, "env": [{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": barrier}]})
        };
        let containers = [container("main", main, "p_2"), container("side", side, "p_1")];
        json!({"replicas": 1, "template": {"spec": {"containers": containers}}})
    };
    let images = || {
        let pod = world.objects(PODS)["web-0"].clone();
        ["/spec/containers/0/image", "/spec/containers/1/image"].map(|at| pod.pointer(at).cloned().unwrap_or_default())
    };
    world.put_set(with(["m:1", "s:1"]));
    world.go_on().await;
    let uid = world.objects(PODS)["web-0"]["metadata"]["uid"].clone();
    world.put_set(with(["m:2", "s:2"]));
    world.settle().await.unwrap();
    assert_eq!(images(), ["m:2", "s:1"]);
    world.play();
    let mut pod = world.objects(PODS)["web-0"].clone();
    pod["status"]["containerStatuses"][0]["ready"] = false.into();
    world.put_pod(pod.clone());
    world.settle().await.unwrap();
    assert_eq!(images(), ["m:2", "s:1"], "the first one runs, and is not ready yet");
    pod["status"]["containerStatuses"][0]["ready"] = true.into();
    world.put_pod(pod);
    world.settle().await.unwrap();
    assert_eq!(images(), ["m:2", "s:2"]);
    assert_eq!(condition(&world, "web-0", labels::CONDITION_INPLACE_UPDATE_READY)["status"], "False");
    world.go_on().await;
    assert_eq!(world.objects(PODS)["web-0"]["metadata"]["uid"], uid);
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_07_a_pod_that_goes_right_after_its_update_blocks_no_other_one() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    world.put_set(image("i:2"));
    world.settle().await.unwrap();
    assert_eq!(world.objects(PODS)["web-2"]["spec"]["containers"][0]["image"], "i:2");
    // No watch has shown the update, and none will.
    lock(&world.server).objects.remove(&format!("{PODS}web-2"));
    world.controller.context.pods.remove(&ObjectKey::new("ns", "web-2"), None);
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 3]);
    assert!(world.condition("Ready").is_some());
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_14_every_way_out_of_an_announced_update_takes_its_not_ready_key_back() {
    const READY: &str = labels::CONDITION_KRUISE_POD_READY;
    for way in ["roll back", "no hook", "done"] {
        let world = hooked(true).await;
        // As if the Pod had come without the condition: the first one is explicit.
        let mut pod = world.objects(PODS)["web-0"].clone();
        pod["status"]["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != READY);
        world.put_pod(pod);
        world.put_set(image("i:2"));
        world.settle_all().await;
        let marked = condition(&world, "web-0", READY);
        assert_eq!(marked["status"], "False", "{way}");
        assert!(marked["message"].as_str().unwrap().contains("preUpdateHook"), "{marked}");
        match way {
            "roll back" => world.put_set(image("i:1")),
            "no hook" => world.put_set(json!({"lifecycle": null})),
            _ => label(&world, &[("a", "no"), ("b", "no")]),
        }
        world.go_on().await;
        label(&world, &[("a", "yes"), ("b", "yes")]);
        world.go_on().await;
        let open = condition(&world, "web-0", READY);
        assert_eq!(open["status"], "True", "{way}: {open}");
        assert!(!open["message"].as_str().unwrap_or_default().contains("preUpdateHook"), "{way}: {open}");
        assert_eq!(image_of(&world), if way == "roll back" { "i:1" } else { "i:2" });
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_19_a_grace_period_whose_beginning_cannot_be_read_ends() {
    for broken in [json!("odd"), Value::Null] {
        let world = World::new();
        let rolling =
            json!({"podUpdatePolicy": "InPlaceIfPossible", "inPlaceUpdateStrategy": {"gracePeriodSeconds": 30}});
        world.put_set(json!({"replicas": 1, "updateStrategy": {"rollingUpdate": rolling}}));
        world.go_on().await;
        world.put_set(image("i:2"));
        world.settle().await.unwrap();
        let mut pod = world.objects(PODS)["web-0"].clone();
        assert_eq!(image_of(&world), "i:1", "it is in its grace");
        pod["metadata"]["annotations"][labels::IN_PLACE_STATE] = broken;
        world.put_pod(pod);
        world.go_on().await;
        assert_eq!(image_of(&world), "i:2");
        assert!(world.condition("Ready").is_some(), "{:?}", world.status());
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_21_a_set_at_rest_asks_for_nothing_and_volumes_keep_their_order() {
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let templates = ["m", "z", "a", "k"];
    let world = World::new();
    world.put_set(json!({"replicas": 16, "volumeClaimTemplates": templates.map(claim)}));
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!(world.objects(PODS).len(), 16, "all in one pass");
    world.go_on().await;
    for pod in world.objects(PODS).values() {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let own: Vec<&str> = volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
        assert_eq!(own, templates);
    }
    assert_eq!(world.objects(CLAIMS).len(), 64);
    lock(&world.server).requests = 0;
    for pod in world.objects(PODS).into_values().take(4) {
        world.put_pod(pod);
        world.settle().await.unwrap();
    }
    assert_eq!(lock(&world.server).requests, 0, "not a list, not a read");
}

#[tokio::test(start_paused = true)]
async fn what_keeps_pods_from_being_made_is_reported_once() {
    let world = World::new();
    world.put_set(json!({"scaleStrategy": {"maxUnavailable": 1}}));
    // Nobody sends the events of these tests: all of them count as dropped.
    let events = || world.controller.context.metrics.events_dropped.get();
    let key = ObjectKey::new("ns", "web");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!((world.objects(PODS).len(), events()), (1, 2), "a Pod that is made, and others that are not");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(events(), 2);
    assert!(world.condition("Reconciling").is_some());
}

/// A set of a hundred Pods that have a node and nothing else yet.
async fn bound_pods() -> (World, Vec<ObjectKey>) {
    let world = World::new();
    world.put_set(json!({"replicas": 100}));
    world.settle().await.unwrap();
    world.writes();
    world.play();
    let keys: Vec<ObjectKey> = world.controller.context.pods.list().iter().map(|pod| ObjectKey::of(&**pod)).collect();
    assert_eq!(keys.len(), 100);
    (world, keys)
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_large_set_gets_its_first_state_beside_the_passes() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    assert_eq!(controller.common.pod_queue.depth(), 0);
    controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    let to_pods = |writes: Vec<(Method, String, Value)>| -> Vec<String> {
        writes.into_iter().filter_map(|(_, path, _)| path.strip_prefix(PODS).map(str::to_owned)).collect()
    };
    assert_eq!(
        (to_pods(world.writes()), controller.common.pod_queue.depth()),
        (vec![], keys.len()),
        "none by the pass"
    );
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::After(Duration::ZERO));
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::Await, "once");
    assert_eq!(to_pods(world.writes()), [format!("{}/status", keys[7].name)]);
    let pod = controller.context.pods.get(&keys[7]).unwrap();
    assert_eq!(pod.labels.get(labels::LIFECYCLE_STATE), Some("Normal"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_large_set_waits_for_the_pass_while_its_set_has_another_spec_or_goes() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    world.put_set(json!({"minReadySeconds": 5}));
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::Await);
    controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::After(Duration::ZERO));
    let mut set = lock(&world.server).objects[SET].clone();
    set["metadata"]["deletionTimestamp"] = AT.into();
    controller.sets.upsert(serde_json::from_value(lock(&world.server).put(SET, set)).unwrap());
    assert_eq!(controller.refresh_pod(&keys[8]).await.unwrap(), Requeue::Await);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_large_set_wakes_the_pod_at_once_and_the_pass_later() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    let pod = controller.context.pods.get(&keys[7]).unwrap();
    let depths = || (controller.queue.depth(), controller.common.pod_queue.depth());
    let (passes, _) = depths();
    controller.refresh_pod(&keys[8]).await.unwrap();
    let (_, pods) = depths();
    controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert_eq!(depths(), (passes, pods), "it is in its queue already, and the pass waits");
    controller.common.memories.clear();
    controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert_eq!(depths(), (passes + 1, pods), "a small one has a pass at once");
}
