//! A refusal of one Pod ends no pass, what is down goes first, and marks of ours are asked for, noted and taken back.

use super::*;

/// Plays kubelet for whom images whose names begin with `bad` cannot be pulled.
fn play(world: &World) {
    world.play();
    let mut server = lock(&world.server);
    for (_, pod) in server.objects.iter_mut().filter(|(path, _)| path.starts_with(NAMESPACE)) {
        if pod["spec"]["containers"][0]["image"].as_str().is_some_and(|image| image.starts_with("bad")) {
            strategic(&mut pod["status"], &json!({"conditions": [{"type": "Ready", "status": "False"}]}));
            world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
        }
    }
}

/// Passes and time, until nothing happens any more.
async fn go_on(world: &World) {
    for _ in 0..30 {
        world.settle().await.unwrap();
        play(world);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
}

fn image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}})
}

fn marks(world: &World) -> Vec<(Value, Value)> {
    let pods = world.pods();
    let of = |pod: &Value| {
        (
            pod["metadata"]["labels"][labels::SPECIFIED_DELETE].clone(),
            pod["metadata"]["annotations"][labels::SPECIFIED_DELETE_FOR].clone(),
        )
    };
    pods.iter().map(of).filter(|(label, note)| !label.is_null() || !note.is_null()).collect()
}

/// Two Pods under a budget of one, one of them made anew with an image that cannot be pulled.
async fn half_broken() -> World {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": "100%"}}));
    go_on(&world).await;
    world.put_budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}));
    world.put_clone_set(image("bad:1"));
    go_on(&world).await;
    let mut now: Vec<String> = images(&world.pods()).iter().map(|image| (*image).to_owned()).collect();
    now.sort();
    assert_eq!(now, ["bad:1", "i:1"], "the budget keeps the other one");
    world
}

fn put_mark(world: &World, metadata: &Value) {
    let mut server = lock(&world.server);
    server.version += 1;
    let version = server.version.to_string();
    let is_kept = |pod: &Value| pod["spec"]["containers"][0]["image"] == "i:1";
    let (_, pod) = server.objects.iter_mut().find(|(path, pod)| path.starts_with(NAMESPACE) && is_kept(pod)).unwrap();
    json_patch::merge(&mut pod["metadata"], metadata);
    pod["metadata"]["resourceVersion"] = version.into();
    world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_template_that_was_corrected_reaches_the_broken_pod_although_a_budget_keeps_the_other() {
    // As it was before budgets were asked first: a mark of unknown origin, and the budget refuses the deletion.
    for is_marked in [false, true] {
        let world = half_broken().await;
        if is_marked {
            put_mark(&world, &json!({"labels": {labels::SPECIFIED_DELETE: "true"}}));
            go_on(&world).await;
            assert_eq!(images(&world.pods()).iter().filter(|image| **image == "i:1").count(), 1);
        }
        world.put_clone_set(image("i:2"));
        go_on(&world).await;
        assert_eq!(images(&world.pods()), ["i:2", "i:2"], "marked: {is_marked}");
        assert_eq!(world.status()["updatedAvailableReplicas"], 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_asked_before_the_mark() {
    let world = half_broken().await;
    assert_eq!(marks(&world), [], "the Pod that the budget keeps is not marked");
    let writes = world.writes();
    let note =
        |(_, _, body): &(Method, String, Value)| body["metadata"]["annotations"][labels::SPECIFIED_DELETE_FOR].clone();
    let noted: Vec<Value> = writes.iter().map(note).filter(|note| !note.is_null()).collect();
    assert_eq!(noted, [world.status()["updateRevision"].clone()], "the other one was, for this revision");
}

#[tokio::test(start_paused = true)]
async fn a_mark_of_ours_for_an_old_revision_is_taken_back_and_a_users_mark_stays() {
    let ours = json!({"labels": {labels::SPECIFIED_DELETE: "true"}, "annotations": {labels::SPECIFIED_DELETE_FOR: "web-gone"}});
    let theirs = json!({"labels": {labels::SPECIFIED_DELETE: "true"}});
    // Put over ours by somebody with another value, and left over after somebody took ours away.
    let over =
        json!({"labels": {labels::SPECIFIED_DELETE: ""}, "annotations": {labels::SPECIFIED_DELETE_FOR: "web-gone"}});
    let note = json!({"annotations": {labels::SPECIFIED_DELETE_FOR: "web-gone"}});
    for (mark, left) in [
        (ours, vec![]),
        (theirs, vec![(json!("true"), Value::Null)]),
        (over, vec![(json!(""), Value::Null)]),
        (note, vec![]),
    ] {
        let world = half_broken().await;
        put_mark(&world, &mark);
        go_on(&world).await;
        assert_eq!(marks(&world), left, "{mark}");
        assert!(images(&world.pods()).contains(&"i:1"), "the budget keeps it anyway");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_to_be_replaced_stays_when_the_partition_is_raised() {
    let world = World::new();
    let hook = json!({"labelsHandler": {"hold": "yes"}});
    world.put_clone_set(json!({"lifecycle": {"preDelete": hook}, "updateStrategy": {"type": "ReCreate"},
        "template": {"metadata": {"labels": {"hold": "yes"}}}}));
    go_on(&world).await;
    let of_each = |pointer: &str| -> Vec<Value> {
        world.pods().iter().map(|pod| pod.pointer(pointer).cloned().unwrap_or_default()).collect()
    };
    let states = || of_each("/metadata/labels/lifecycle.apps.kruise.io~1state");
    let uids = of_each("/metadata/uid");
    assert_eq!(states(), ["Normal", "Normal"]);
    world.put_clone_set(image("i:2"));
    go_on(&world).await;
    assert_eq!(states().iter().filter(|state| **state == "PreparingDelete").count(), 1, "its hook holds it");
    assert_eq!(marks(&world).len(), 1);
    world.put_clone_set(json!({"updateStrategy": {"partition": 2}}));
    go_on(&world).await;
    assert_eq!((states(), marks(&world)), (vec![json!("Normal"), json!("Normal")], vec![]));
    assert_eq!(of_each("/metadata/uid"), uids, "nobody took its place");
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_keeps_neither_updates_nor_deletions_from_being_done() {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"maxUnavailable": "100%"}}));
    go_on(&world).await;
    world.put_clone_set(json!({"replicas": 4, "template": image("i:2")["template"]}));
    for _ in 0..60 {
        lock(&world.server).faults.push((Method::POST, NAMESPACE.into(), 403));
    }
    for _ in 0..20 {
        assert!(world.settle().await.is_err());
        play(&world);
    }
    assert_eq!(images(&world.pods()), ["i:2", "i:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_gives_its_instance_id_and_its_claims_to_its_successor() {
    let world = World::new();
    world.put_clone_set(
        json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}]}),
    );
    go_on(&world).await;
    let before = world.pods()[0].clone();
    let mut failed = before.clone();
    failed["status"]["phase"] = "Failed".into();
    failed["metadata"]["resourceVersion"] = "9000".into();
    lock(&world.server).version = 9001;
    let path = format!("{NAMESPACE}/{}", failed["metadata"]["name"].as_str().unwrap());
    lock(&world.server).objects.insert(path, failed.clone());
    world.controller.context.pods.upsert(serde_json::from_value(failed).unwrap());
    world.writes();
    world.settle().await.unwrap();
    let after = world.pods();
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["metadata"]["name"], before["metadata"]["name"]);
    assert_ne!(after[0]["metadata"]["uid"], before["metadata"]["uid"]);
    let label = |pod: &Value| pod["metadata"]["labels"][labels::INSTANCE_ID].clone();
    assert_eq!(label(&after[0]), label(&before));
    let claims = world.writes().iter().filter(|w| w.1.contains("persistentvolumeclaims")).count();
    assert_eq!(claims, 0, "the claim is the one that there was");
}

/// Passes, whether they fail or not.
async fn go_on_anyway(world: &World) {
    for _ in 0..20 {
        let _ = world.settle().await;
        play(world);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_cannot_be_taken_back_stops_no_scaling_and_its_pod_stays() {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": "100%"}}));
    go_on(&world).await;
    let ours = json!({"labels": {labels::SPECIFIED_DELETE: "true"}, "annotations": {labels::SPECIFIED_DELETE_FOR: "web-gone"}});
    put_mark(&world, &ours);
    let name = world.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    for _ in 0..200 {
        lock(&world.server).faults.push((Method::PATCH, format!("{NAMESPACE}/{name}"), 403));
    }
    world.put_clone_set(json!({"replicas": 4}));
    go_on_anyway(&world).await;
    assert_eq!(world.pods().len(), 4);
    assert_eq!(marks(&world).len(), 1, "it cannot be taken back");
    assert_eq!(world.pods().iter().filter(|pod| pod["metadata"]["name"] == name.as_str()).count(), 1);
    assert!(world.settle().await.is_err(), "and is tried again after the back-off");
    world.put_clone_set(json!({"replicas": 1}));
    go_on_anyway(&world).await;
    assert_eq!(world.pods().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_dropped_keep_revisions_from_nothing() {
    let world = World::new();
    world.put_clone_set(json!({"revisionHistoryLimit": 0}));
    go_on(&world).await;
    let path = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web$";
    for _ in 0..200 {
        lock(&world.server).faults.push((Method::PATCH, path.into(), 403));
    }
    world.put_clone_set(json!({"scaleStrategy": {"podsToDelete": ["gone"]}, "template": image("i:2")["template"]}));
    go_on_anyway(&world).await;
    assert_eq!(images(&world.pods()), ["i:2", "i:2"]);
    let is_revision = |path: &&String| path.contains("/controllerrevisions/");
    assert_eq!(lock(&world.server).objects.keys().filter(is_revision).count(), 1, "the old one is beyond the limit");
    assert!(world.settle().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_what_else_is_waited_for_does_not_wait_for_the_back_off() {
    let world = World::new();
    world.put_clone_set(json!({}));
    go_on(&world).await;
    // A Pod that has just become ready.
    let mut pod = world.pods().remove(0);
    let since = json!({"conditions": [{"type": "Ready", "lastTransitionTime": clock::now().wall.to_string()}]});
    strategic(&mut pod["status"], &since);
    pod["metadata"]["resourceVersion"] = "9000".into();
    world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    lock(&world.server).faults.push((Method::POST, NAMESPACE.into(), 403));
    world.put_clone_set(json!({"replicas": 4, "minReadySeconds": 30}));
    let refused = world.settle().await;
    assert_eq!(refused.as_ref().err().and_then(code), Some(403), "{refused:?}");
    let begin = tokio::time::Instant::now();
    let (changed, mut due) = tokio::sync::mpsc::unbounded_channel();
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    let run = world.controller.queue.run(1, shutdown, |key, _| {
        let changed = changed.clone();
        async move {
            let _ = changed.send(key);
            Ok::<_, kube::Error>(Requeue::Await)
        }
    });
    let key = tokio::select! {
        () = run => None,
        key = due.recv() => key,
        () = tokio::time::sleep(Duration::from_secs(60)) => None,
    };
    assert_eq!(key, Some(ObjectKey::new("ns", "web")));
    let waited = begin.elapsed();
    assert!(waited >= AFTER_REFUSAL && waited <= Duration::from_secs(31), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_dropped_keeps_no_other_and_one_that_is_gone_is_no_change() {
    let world = World::new();
    world.put_clone_set(json!({"scaleStrategy": {"disablePVCReuse": true}}));
    let job = world.job();
    let base = "/api/v1/namespaces/ns/persistentvolumeclaims";
    let put = |name: &str, is_there: bool| {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "ns",
            "uid": name, "resourceVersion": "1", "labels": {labels::INSTANCE_ID: name},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web",
                "uid": job.owner.uid, "controller": true}]}});
        if is_there {
            lock(&world.server).objects.insert(format!("{base}/{name}"), claim.clone());
        }
        world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    };
    // Of a Pod that is on its way out.
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web", labels::INSTANCE_ID: "ending"}}});
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
        "name": "web", "uid": job.owner.uid, "controller": true}]);
    world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    let drop = || async { world.controller.drop_claims(&job, &world.controller.see(&job)).await };
    for gone in ["gone", "ending"] {
        put(gone, false);
        assert!(!drop().await.unwrap(), "{gone}: nothing was changed");
        assert!(world.controller.see(&job).claims.is_empty(), "{gone}: it is not tried again and again");
    }
    put("a", true);
    put("b", true);
    lock(&world.server).faults.push((Method::DELETE, format!("{base}/a"), 403));
    assert_eq!(drop().await.as_ref().err().and_then(code), Some(403));
    let left: Vec<String> = lock(&world.server).objects.keys().filter(|path| path.starts_with(base)).cloned().collect();
    assert_eq!(left, [format!("{base}/a")]);
    assert!(drop().await.unwrap(), "and it follows when it may");
}

/// A quota for revisions is used up, or the API server cannot say what defaults a template has.
#[tokio::test]
async fn an_update_in_place_that_has_begun_ends_although_the_revision_of_a_newer_template_is_not_known() {
    let (revisions, defaults) =
        ("/apis/apps/v1/namespaces/ns/controllerrevisions", "/api/v1/namespaces/ns/podtemplates");
    for (refused, reason) in [(revisions, "RevisionUnknown"), (defaults, "DefaultsUnknown")] {
        let world = World::new();
        world.put_clone_set(json!({}));
        world.go_on().await;
        world.put_clone_set(image("i:2"));
        world.settle().await.unwrap();
        let is_ready = || {
            let pods = world.pods();
            let updated = pods.iter().find(|pod| pod["spec"]["containers"][0]["image"] == "i:2").unwrap();
            let conditions = updated["status"]["conditions"].as_array().unwrap();
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        world.play();
        assert!(!is_ready(), "its gate is closed");
        lock(&world.server).refused.insert(refused.into());
        let before = world.status();
        world.put_clone_set(image("i:3"));
        for _ in 0..3 {
            let _ = world.settle().await;
            world.play();
        }
        assert!(is_ready(), "{refused}");
        let mut now: Vec<String> = images(&world.pods()).iter().map(|image| (*image).to_owned()).collect();
        now.sort();
        assert_eq!(now, ["i:1", "i:2"], "and nothing else is begun");
        is_waited_for(&world, &before, reason);
        lock(&world.server).refused.clear();
        world.go_on().await;
        assert_eq!((images(&world.pods()), world.failures()), (vec!["i:3", "i:3"], vec![]));
        assert_eq!(world.status()["observedGeneration"], 3);
    }
}

/// The status says for what reason nobody knows which revision is wanted, in the API server's words, and nothing else has changed.
fn is_waited_for(world: &World, before: &Value, reason: &str) {
    let status = world.status();
    for (type_, is, because) in [
        ("Ready", "False", reason),
        ("Reconciling", "True", reason),
        ("Stalled", "False", "NotStalled"),
        ("FailedUpdate", "True", ""),
    ] {
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        let condition = conditions.find(|condition| condition["type"] == type_).unwrap();
        let text = |key: &str| condition[key].as_str().unwrap_or_default();
        assert_eq!((text("status"), text("reason")), (is, because), "{type_}");
        assert!(type_ == "Stalled" || text("message").contains("test"), "{condition}");
    }
    for (field, value) in before.as_object().unwrap().iter().filter(|(field, _)| *field != "conditions") {
        assert_eq!(status[field], *value, "{field}");
    }
}

/// There is nothing recorded yet that could be kept.
#[tokio::test]
async fn a_new_clone_set_whose_revision_cannot_be_made_says_so() {
    let world = World::new();
    lock(&world.server).refused.insert("/apis/apps/v1/namespaces/ns/controllerrevisions".into());
    world.put_clone_set(json!({}));
    assert!(world.settle().await.is_err(), "it backs off");
    is_waited_for(&world, &json!({"observedGeneration": 0, "replicas": 0, "updatedReplicas": 0}), "RevisionUnknown");
    let statuses = || world.writes().iter().filter(|(_, path, _)| path.ends_with("/clonesets/web/status")).count();
    assert_eq!(statuses(), 1);
    for _ in 0..3 {
        assert!(world.settle().await.is_err());
    }
    assert_eq!(statuses(), 0, "it says so once");
    lock(&world.server).refused.clear();
    world.go_on().await;
    assert_eq!((images(&world.pods()), world.failures()), (vec!["i:1", "i:1"], vec![]));
}

/// How often a Pod has left service for an update in place.
fn left_service(world: &World) -> usize {
    world.writes().iter().filter(|(.., body)| body.to_string().contains("StartInPlaceUpdate")).count()
}

async fn denied(denies_dry_runs: bool) -> World {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 6, "updateStrategy": {"maxUnavailable": 2}}));
    go_on(&world).await;
    {
        let mut server = lock(&world.server);
        (server.denied, server.denies_dry_runs) = (Some("i:2"), denies_dry_runs);
    }
    world.put_clone_set(image("i:2"));
    world.writes();
    world
}

/// A pass each second that is refused.
async fn refused_for(world: &World, seconds: usize) {
    for _ in 0..seconds {
        assert!(world.settle().await.is_err());
        world.play();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_updates_in_place_are_denied_no_pod_leaves_service_after_the_first_ones() {
    let world = denied(true).await;
    assert!(world.settle().await.is_err());
    let first = left_service(&world);
    assert!((1..=2).contains(&first), "{first} within maxUnavailable");
    refused_for(&world, 20).await;
    assert_eq!(left_service(&world), 0);
    assert_eq!(world.failures(), ["FailedUpdate"]);
    assert_eq!((images(&world.pods()), world.status()["availableReplicas"].clone()), (vec!["i:1"; 6], json!(6)));
    lock(&world.server).denied = None;
    go_on(&world).await;
    assert_eq!(images(&world.pods()), ["i:2"; 6]);
}

/// Updates are denied no more: after a pause all six Pods get theirs.
async fn all_are_updated_after(world: &World, pause: Duration) {
    lock(&world.server).denied = None;
    tokio::time::advance(pause).await;
    go_on(world).await;
    assert_eq!(images(&world.pods()), ["i:2"; 6]);
}

#[tokio::test(start_paused = true)]
async fn where_dry_runs_tell_nothing_a_pod_leaves_service_with_growing_pauses() {
    let world = denied(false).await;
    refused_for(&world, 64).await;
    let often = left_service(&world);
    assert!((6 * 4..=6 * 7).contains(&often), "each of six Pods after 1, 2, 4, 8, 16 and 32 seconds: {often}");
    // The last pause is 64 s.
    all_are_updated_after(&world, Duration::from_secs(64)).await;
}

#[tokio::test(start_paused = true)]
async fn while_a_webhook_for_updates_does_not_answer_no_pod_leaves_service_after_the_first_ones() {
    let world = denied(true).await;
    lock(&world.server).is_silent = true;
    assert!(world.settle().await.is_err());
    let first = left_service(&world);
    assert!((1..=2).contains(&first), "{first} within maxUnavailable");
    refused_for(&world, 20).await;
    assert_eq!(left_service(&world), 0);
    assert_eq!((images(&world.pods()), world.status()["availableReplicas"].clone()), (vec!["i:1"; 6], json!(6)));
    // A Pod whose dry run was not answered has a pause.
    all_are_updated_after(&world, Duration::from_secs(30)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_updated_in_place_uses_up_no_budget() {
    let world = World::with_gates(&["PodUnavailableBudgetUpdateGate=true"]);
    let first = json!({"weightPriority": [{"weight": 9, "matchSelector": {"matchLabels": {"first": "yes"}}}]});
    world.put_clone_set(json!({"updateStrategy": {"priorityStrategy": first}}));
    go_on(&world).await;
    let is_pod = |path: &&String| path.starts_with(NAMESPACE);
    let pods: Vec<String> = lock(&world.server).objects.keys().filter(is_pod).cloned().collect();
    let [denied, other] = pods.as_slice() else { panic!("{pods:?}") };
    {
        let mut server = lock(&world.server);
        server.objects.get_mut(denied).unwrap()["metadata"]["labels"]["first"] = "yes".into();
        server.refused.extend(pods.clone());
    }
    play(&world);
    world.put_clone_set(image("i:2"));
    refused_for(&world, 5).await;
    lock(&world.server).refused.remove(other);
    world.put_budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}));
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(world.settle().await.is_err(), "the first one is refused still");
    let is_updated = |pod: &String| lock(&world.server).objects[pod]["spec"]["containers"][0]["image"] == "i:2";
    assert_eq!((is_updated(denied), is_updated(other)), (false, true));
}

fn claims(world: &World) -> Vec<String> {
    let server = lock(&world.server);
    server.objects.keys().filter(|path| path.contains("/persistentvolumeclaims/")).cloned().collect()
}

/// Three Pods with claims that cannot be deleted, whose Pods are all to go, after a pass over them.
async fn claims_that_stay() -> World {
    let world = World::new();
    let templates = json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}]);
    world.put_clone_set(json!({"replicas": 3, "volumeClaimTemplates": templates}));
    go_on(&world).await;
    let all: Vec<Value> = world.pods().iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    let claims = claims(&world);
    {
        let mut server = lock(&world.server);
        server.is_graceful = true;
        server.refused.extend(claims);
    }
    world.writes();
    world.put_clone_set(json!({"scaleStrategy": {"podsToDelete": all}}));
    assert!(world.settle().await.is_err());
    world
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_claims_cannot_be_deleted_leaves_its_room_to_no_other() {
    let world = claims_that_stay().await;
    assert_eq!(world.touched().1.len(), 1, "maxUnavailable is 1");
    assert_eq!(world.failures(), ["FailedScale"]);
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_pod_that_was_deleted_follow_when_they_may() {
    let world = claims_that_stay().await;
    let id = |pod: &Value| pod["metadata"]["labels"][labels::INSTANCE_ID].as_str().unwrap().to_owned();
    let ending: Vec<String> =
        world.pods().iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_string()).map(id).collect();
    let has_claim = |world: &World| claims(world).iter().any(|path| path.ends_with(&ending[0]));
    assert!(ending.len() == 1 && has_claim(&world));
    lock(&world.server).refused.clear();
    let _ = world.settle().await;
    assert!(!has_claim(&world), "its successor does not get it");
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_pod_that_somebody_else_has_deleted_stay_whatever_marks_it() {
    let mark = json!({"labels": {labels::SPECIFIED_DELETE: "true"}});
    let evicted =
        json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]});
    for (what, changes) in [
        ("marked", json!({"metadata": mark})),
        ("not marked", json!({})),
        ("evicted before its turn", json!({"metadata": mark, "status": evicted})),
    ] {
        let world = World::new();
        let templates = json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}]);
        world.put_clone_set(json!({"replicas": 1, "volumeClaimTemplates": templates}));
        go_on(&world).await;
        let before = claims(&world);
        let mut pod = world.pods()[0].clone();
        json_patch::merge(&mut pod, &changes);
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["metadata"]["resourceVersion"] = "9000".into();
        world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
        let _ = world.settle().await;
        assert_eq!((before.len(), claims(&world).contains(&before[0])), (1, true), "{what}");
    }
}

#[tokio::test]
async fn a_mark_that_is_refused_is_said_by_an_event() {
    let mut world = World::new();
    let context = world.controller.context.clone();
    let (events, send) = crate::runtime::events::Recorder::new(context.client.clone(), "test", "", Default::default());
    tokio::spawn(send);
    world.controller = Controller::new(&Context { events, ..context });
    world.put_clone_set(json!({"updateStrategy": {"type": "ReCreate"}}));
    world.go_on().await;
    let pods: Vec<String> =
        lock(&world.server).objects.keys().filter(|path| path.starts_with(NAMESPACE)).cloned().collect();
    lock(&world.server).refused.extend(pods);
    world.put_clone_set(image("i:2"));
    assert!(world.settle().await.is_err());
    assert_eq!(world.failures(), ["FailedUpdate"]);
    let said = || {
        let server = lock(&world.server);
        let mut events = server.objects.iter().filter(|(path, _)| path.contains("/events/"));
        events.find(|(_, event)| event["reason"] == "FailedUpdatePodReCreate").map(|(_, event)| event.clone())
    };
    // A task of its own sends events.
    for _ in 0..1000 {
        if said().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let said = said().unwrap();
    let message = said["message"].as_str().unwrap();
    assert!(message.starts_with("failed to patch pod web-") && said["type"] == "Warning", "{said}");
}
