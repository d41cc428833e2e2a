//! New images are pulled before Pods are updated to them.

use super::*;

const JOBS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/imagepulljobs/";
const CREATED: &str = labels::PRE_DOWNLOAD_CREATED;
const IGNORED: &str = labels::PRE_DOWNLOAD_IGNORED;

impl World {
    async fn pre_downloading(spec: Value) -> Self {
        let world = Self::with_gates(&["PreDownloadImageForInPlaceUpdate=true"]);
        world.put_set(json!({"replicas": 5}));
        world.put_set(spec);
        world.go_on().await;
        world.writes();
        world
    }

    fn new_image(&self) {
        self.put_set(
            json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
        );
    }

    /// Labels of the newest revision that show what was decided.
    fn marks(&self) -> Vec<String> {
        let revisions = self.objects(REVISIONS);
        let newest = revisions.values().max_by_key(|revision| revision["revision"].as_i64()).unwrap();
        let labels = newest["metadata"]["labels"].as_object().unwrap();
        labels.keys().filter(|key| key.contains("predownload")).cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_are_made_once_and_go_when_the_update_is_done() {
    let world = World::pre_downloading(json!({})).await;
    assert_eq!((world.objects(JOBS).len(), world.marks().len()), (0, 0), "the first revision carries no mark");
    world.new_image();
    world.settle().await.unwrap();
    let jobs = world.objects(JOBS);
    let name = format!("{}-main", world.status()["updateRevision"].as_str().unwrap());
    assert_eq!(names(&jobs), [name.as_str()]);
    assert_eq!(jobs[&name]["spec"]["image"], "i:2");
    assert_eq!(jobs[&name]["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
    assert_eq!(world.marks(), [CREATED]);
    world.settle().await.unwrap();
    let made = |(method, path, _): &(Method, String, Value)| *method == Method::POST && path.ends_with("imagepulljobs");
    assert_eq!(world.writes().iter().filter(|write| made(write)).count(), 1, "once");
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 5]);
    assert!(world.objects(JOBS).is_empty(), "deleted with the end of the update");
}

#[tokio::test(start_paused = true)]
async fn jobs_go_in_the_pass_that_finds_the_update_done() {
    let world = World::pre_downloading(json!({})).await;
    world.new_image();
    let is_done = || world.status()["currentRevision"] == world.status()["updateRevision"];
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert!(!is_done() && world.objects(JOBS).len() == 1);
    for _ in 0..20 {
        world.play();
        world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
        if is_done() {
            assert!(world.objects(JOBS).is_empty(), "nothing wakes the set after its last status");
            return;
        }
    }
    panic!("the update does not end");
}

#[tokio::test(start_paused = true)]
async fn edge_17_on_delete_with_pre_download_makes_no_job() {
    let world = World::pre_downloading(json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}})).await;
    world.new_image();
    world.settle().await.unwrap();
    assert_eq!((world.objects(JOBS).len(), world.marks()), (0, vec![IGNORED.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn edge_18_marking_a_revision_for_pre_download_does_not_alter_what_is_remembered_of_it() {
    let world = World::pre_downloading(json!({"updateStrategy": {"rollingUpdate": {"partition": 5}}})).await;
    world.new_image();
    world.settle().await.unwrap();
    assert_eq!(world.marks(), [CREATED]);
    let remembered = world.controller.common.memories.with(&ObjectKey::new("ns", "web"), |memory| {
        memory.resolved.as_ref().and_then(|resolved| resolved.known.clone())
    });
    let known = remembered.flatten().expect("an update is under way");
    let stored = world.objects(REVISIONS);
    assert_eq!(known.len(), 2);
    for known in known.iter() {
        assert_eq!(known.data, stored[&known.name]["data"], "{}", known.name);
    }
    // The mark is a label of the API server's object, and names no other revision.
    let before = names(&stored).len();
    world.put_set(json!({"replicas": 6}));
    world.go_on().await;
    assert_eq!((world.objects(REVISIONS).len(), world.marks()), (before, vec![CREATED.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_22_what_was_not_worth_while_is_when_the_spec_says_so() {
    let anew = json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "ReCreate", "partition": 5}}});
    let world = World::pre_downloading(anew).await;
    world.new_image();
    world.settle().await.unwrap();
    assert_eq!((world.objects(JOBS).len(), world.marks()), (0, vec![IGNORED.to_owned()]));
    world.put_set(json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "InPlaceIfPossible"}}}));
    world.settle().await.unwrap();
    assert_eq!((world.objects(JOBS).len(), world.marks()), (1, vec![CREATED.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn pods_on_the_new_revision_come_first_where_an_annotation_asks_for_them() {
    let world = World::pre_downloading(json!({"updateStrategy": {"rollingUpdate": {"partition": 3}}})).await;
    let set = {
        let mut server = lock(&world.server);
        let mut set = server.objects[SET].clone();
        set["metadata"]["annotations"] = json!({labels::PRE_DOWNLOAD_MIN_UPDATED_READY: "2"});
        server.put(SET, set)
    };
    world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    world.new_image();
    world.settle().await.unwrap();
    assert!(world.objects(JOBS).is_empty());
    world.go_on().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.go_on().await;
    assert_eq!(world.status()["updatedReadyReplicas"], 2);
    assert_eq!(world.objects(JOBS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pass_that_finds_enough_pods_ready_makes_the_job() {
    let world = World::pre_downloading(json!({"updateStrategy": {"rollingUpdate": {"partition": 4}}})).await;
    let set = {
        let mut server = lock(&world.server);
        let mut set = server.objects[SET].clone();
        set["metadata"]["annotations"] = json!({labels::PRE_DOWNLOAD_MIN_UPDATED_READY: "1"});
        server.put(SET, set)
    };
    world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    world.new_image();
    world.follow().await;
    assert_eq!(world.status()["updatedReadyReplicas"], 1);
    assert_eq!(world.objects(JOBS).len(), 1, "nothing wakes the set after this status");
}

#[tokio::test(start_paused = true)]
async fn a_failed_creation_is_tried_again_and_holds_nothing_up() {
    let world = World::pre_downloading(json!({})).await;
    lock(&world.server).faults.push((Method::POST, JOBS.trim_end_matches('/').into(), 500));
    world.new_image();
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!((world.objects(JOBS).len(), world.marks().len()), (0, 0), "not marked before it is done");
    assert!(of_each(&world.objects(PODS), "/spec/containers/0/image").contains(&json!("i:2")), "Pods go on");
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!((world.objects(JOBS).len(), world.marks().len()), (1, 1));
}
