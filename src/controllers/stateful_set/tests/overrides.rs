//! Annotation `kruise.rs/ordinal-overrides`: changes of the template for single ordinals.

use super::*;

const HASH: &str = labels::ORDINAL_OVERRIDE_HASH;

impl World {
    /// The annotation alone: it makes no new generation.
    pub(super) fn put_overrides(&self, overrides: Value) {
        let set = {
            let mut server = lock(&self.server);
            let mut set = server.objects[SET].clone();
            let text = if overrides.is_null() { Value::Null } else { overrides.to_string().into() };
            json_patch::merge(&mut set, &json!({"metadata": {"annotations": {labels::ORDINAL_OVERRIDES: text}}}));
            server.put(SET, set)
        };
        self.controller.sets.upsert(serde_json::from_value(set).unwrap());
    }

    fn images(&self) -> Vec<Value> {
        of_each(&self.objects(PODS), "/spec/containers/0/image")
    }

    fn uids(&self) -> Vec<Value> {
        of_each(&self.objects(PODS), "/metadata/uid")
    }

    fn hashes(&self) -> Vec<bool> {
        let pods = self.objects(PODS);
        pods.values().map(|pod| pod["metadata"]["annotations"][HASH].is_string()).collect()
    }
}

fn image(ordinals: &str, image: &str) -> Value {
    json!([{"ordinals": ordinals, "containers": {"main": {"image": image}}}])
}

#[tokio::test(start_paused = true)]
async fn new_pods_are_made_with_their_override_and_revisions_know_nothing_of_it() {
    let world = World::new();
    world.put_set(json!({}));
    world.put_overrides(image("1-2", "i:9"));
    world.go_on().await;
    assert_eq!(world.images(), ["i:1", "i:9", "i:9"]);
    assert_eq!(world.hashes(), [false, true, true]);
    let revisions = world.objects(REVISIONS);
    assert_eq!(revisions.len(), 1);
    assert!(!revisions.values().next().unwrap()["data"].to_string().contains("i:9"));
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
    world.writes();
    world.settle_all().await;
    assert_eq!(world.sent(), Vec::<String>::new(), "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn a_changed_override_updates_in_place_the_pods_that_it_concerns() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = world.uids();
    world.writes();
    world.put_overrides(image("2-9", "i:9"));
    world.settle().await.unwrap();
    assert!(world.condition("Ready").is_none());
    world.go_on().await;
    assert_eq!((world.images(), world.uids()), (vec![json!("i:1"), json!("i:1"), json!("i:9")], before.clone()));
    assert!(world.sent().iter().all(|write| write.contains("web-2")), "nobody else was touched");
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());

    // The same change for one more ordinal, and another template below it.
    world.put_overrides(image("1-2", "i:9"));
    world.go_on().await;
    assert_eq!(world.images(), ["i:1", "i:9", "i:9"]);
    world.put_set(json!({"template": {"metadata": {"annotations": {"note": "x"}}}}));
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/metadata/annotations/note"), ["x"; 3]);
    assert_eq!(world.images(), ["i:1", "i:9", "i:9"]);

    world.put_overrides(Value::Null);
    world.go_on().await;
    assert_eq!((world.images(), world.uids()), (vec![json!("i:1"); 3], before), "all the way back, in place");
    assert_eq!(world.hashes(), [false; 3]);
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn an_override_that_no_running_pod_can_take_replaces_it_within_the_limits() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = world.uids();
    world.put_overrides(json!([{"ordinals": "0-1", "nodeSelector": {"disk": "fast"}}]));
    world.settle().await.unwrap();
    let ending = of_each(&world.objects(PODS), "/metadata/deletionTimestamp");
    assert_eq!(ending.iter().filter(|time| time.is_string()).count(), 1, "maxUnavailable is 1");
    world.go_on().await;
    let after = world.uids();
    assert!(after[0] != before[0] && after[1] != before[1] && after[2] == before[2]);
    let disks = of_each(&world.objects(PODS), "/spec/nodeSelector/disk");
    assert_eq!(disks, [json!("fast"), json!("fast"), Value::Null]);
}

#[tokio::test(start_paused = true)]
async fn under_in_place_only_an_impossible_override_is_reported_and_its_pod_stays() {
    let world = World::new();
    world.put_set(json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "InPlaceOnly"}}}));
    world.go_on().await;
    let before = world.uids();
    world.put_overrides(json!([{"ordinals": 1, "nodeSelector": {"disk": "fast"}}]));
    world.go_on().await;
    assert_eq!(world.uids(), before);
    let message = world.condition("Stalled").unwrap();
    assert!(message.contains("web-1") && message.contains("nodeSelector"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_partition_and_a_pause_hold_overrides_back_and_a_lost_pod_comes_with_them() {
    for hold in [json!({"partition": 3}), json!({"paused": true})] {
        let world = World::new();
        world.put_set(json!({"updateStrategy": {"rollingUpdate": hold}}));
        world.go_on().await;
        world.put_overrides(image("0-2", "i:9"));
        world.go_on().await;
        assert_eq!(world.images(), ["i:1"; 3], "{hold}");
        assert_eq!(world.status()["updatedReplicas"], 0, "none has its override");
        let pod = world.objects(PODS)["web-0"].clone();
        lock(&world.server).objects.remove(&format!("{PODS}web-0"));
        world.controller.context.pods.remove(&ObjectKey::new("ns", "web-0"), pod["metadata"]["uid"].as_str());
        world.go_on().await;
        assert_eq!(world.images(), ["i:9", "i:1", "i:1"], "{hold}");
        let ready = world.status()["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").cloned();
        assert_eq!(ready.unwrap()["status"], "True", "held Pods are ready");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_holds_an_update_for_an_override_and_lets_it_go() {
    let world = World::new();
    let template = json!({"metadata": {"labels": {"hold": "yes"}}});
    let hook = json!({"inPlaceUpdate": {"labelsHandler": {"hold": "yes"}}});
    world.put_set(json!({"lifecycle": hook, "template": template}));
    world.go_on().await;
    world.put_overrides(image("2-2", "i:9"));
    world.go_on().await;
    let state = |world: &World| world.objects(PODS)["web-2"]["metadata"]["labels"][labels::LIFECYCLE_STATE].clone();
    assert_eq!((state(&world), world.images()[2].clone()), (json!("PreparingUpdate"), json!("i:1")));
    // Its controller lets it go.
    let mut pod = world.objects(PODS)["web-2"].clone();
    pod["metadata"]["labels"].as_object_mut().unwrap().remove("hold");
    world.put_pod(pod);
    world.go_on().await;
    assert_eq!((state(&world), world.images()[2].clone()), (json!("Updated"), json!("i:9")));
    let mut pod = world.objects(PODS)["web-2"].clone();
    pod["metadata"]["labels"]["hold"] = "yes".into();
    world.put_pod(pod);
    world.go_on().await;
    assert_eq!(state(&world), "Normal");

    // One that is taken back while the Pod waits touches no container.
    world.put_overrides(image("2-2", "i:10"));
    world.go_on().await;
    assert_eq!(state(&world), "PreparingUpdate");
    world.put_overrides(image("2-2", "i:9"));
    world.go_on().await;
    assert_eq!((state(&world), world.images()[2].clone()), (json!("Normal"), json!("i:9")));
}

#[tokio::test(start_paused = true)]
async fn during_the_grace_period_an_override_counts_as_taken_and_a_newer_one_replaces_it() {
    let world = World::new();
    let strategy = json!({"rollingUpdate": {"inPlaceUpdateStrategy": {"gracePeriodSeconds": 60}}});
    world.put_set(json!({"updateStrategy": strategy}));
    world.go_on().await;
    world.put_overrides(image("2-2", "i:9"));
    world.settle().await.unwrap();
    let grace = |world: &World| world.objects(PODS)["web-2"]["metadata"]["annotations"][labels::IN_PLACE_GRACE].clone();
    assert!(grace(&world).as_str().unwrap().contains("i:9"));
    world.writes();
    world.go_on().await;
    assert!(!world.sent().iter().any(|write| write.contains("PATCH pods/web-2")), "it is begun once");
    world.put_overrides(image("2-2", "i:10"));
    world.go_on().await;
    assert!(grace(&world).as_str().unwrap().contains("i:10"));
    for _ in 0..3 {
        // The grace is measured with the wall clock, which stands still here: it began long ago.
        let mut pod = world.objects(PODS)["web-2"].clone();
        let state = pod["metadata"]["annotations"][labels::IN_PLACE_STATE].as_str().unwrap_or("{}").to_owned();
        let mut state: Value = serde_json::from_str(&state).unwrap();
        state["updateTimestamp"] = AT.into();
        pod["metadata"]["annotations"][labels::IN_PLACE_STATE] = state.to_string().into();
        world.put_pod(pod);
        world.go_on().await;
    }
    assert_eq!((world.images()[2].clone(), grace(&world)), (json!("i:10"), Value::Null));
    assert_eq!(world.hashes(), [false, false, true]);
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_override_is_not_known_any_more_is_replaced() {
    let world = World::new();
    world.put_set(json!({}));
    world.put_overrides(image("1-1", "i:9"));
    world.go_on().await;
    let before = world.uids();
    let mut pod = world.objects(PODS)["web-1"].clone();
    pod["metadata"]["annotations"].as_object_mut().unwrap().remove(labels::ORDINAL_OVERRIDE);
    world.put_pod(pod);
    world.go_on().await;
    assert_eq!(world.uids(), before, "its hash is right");
    world.put_overrides(image("1-1", "i:10"));
    world.go_on().await;
    assert_ne!(world.uids()[1], before[1]);
    assert_eq!(world.images(), ["i:1", "i:10", "i:1"]);
}

#[tokio::test(start_paused = true)]
async fn overrides_that_cannot_be_read_are_reported_and_nothing_is_done() {
    let world = World::new();
    world.put_set(json!({}));
    world.put_overrides(json!([{"ordinals": "x", "nodeSelector": {"a": "b"}}]));
    assert_eq!(world.settle().await.unwrap(), Requeue::Await);
    assert!(world.objects(PODS).is_empty());
    assert!(world.condition("Stalled").unwrap().contains("kruise.rs/ordinal-overrides"));
}
