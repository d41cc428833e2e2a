//! New images are pulled before Pods are updated to them.

use super::*;

const JOBS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/imagepulljobs";
const ON: [&str; 1] = ["PreDownloadImageForInPlaceUpdate=true"];

impl World {
    fn below(&self, path: &str) -> Vec<Value> {
        lock(&self.server).objects.iter().filter(|(p, _)| p.starts_with(path)).map(|(_, o)| o.clone()).collect()
    }

    /// Labels of the newest revision.
    fn marks(&self) -> Vec<String> {
        let mut all = self.below("/apis/apps/v1/namespaces/ns/controllerrevisions/");
        all.sort_by_key(|revision| revision["revision"].as_i64());
        let newest = all.pop().unwrap();
        let labels = newest["metadata"]["labels"].as_object().unwrap();
        labels.keys().filter(|key| key.contains("predownload")).cloned().collect()
    }

    async fn with_pods(gates: &[&str], replicas: i32) -> Self {
        let world = Self::with_gates(gates);
        world.put_clone_set(json!({"replicas": replicas}));
        world.go_on().await;
        world.writes();
        world
    }

    fn new_image(&self) {
        self.put_clone_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    }
}

#[tokio::test]
async fn jobs_are_made_once_and_go_when_the_update_is_done() {
    let world = World::with_pods(&ON, 5).await;
    assert_eq!((world.below(JOBS).len(), world.marks().len()), (0, 0), "the first revision carries no mark");
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    world.settle().await.unwrap();
    let jobs = world.below(JOBS);
    assert_eq!(jobs.len(), 1);
    let name = format!("{}-main", world.status()["updateRevision"].as_str().unwrap());
    assert_eq!((&jobs[0]["metadata"]["name"], &jobs[0]["spec"]["image"]), (&json!(name), &json!("i:2")));
    assert_eq!(world.marks(), ["apps.kruise.io/pre-predownload-created"]);
    world.writes();
    world.settle().await.unwrap();
    let again = |(method, path, _): &(Method, String, Value)| *method == Method::POST && path.starts_with(JOBS);
    assert!(!world.writes().iter().any(again), "once");
    world.go_on().await;
    assert_eq!(images(&world.pods()), ["i:2"; 5]);
    assert_eq!(world.below(JOBS), [] as [Value; 0], "deleted with the end of the update");
    let writes = world.writes();
    let mut deletions = writes.iter().filter(|write| write.0 == Method::DELETE && write.1.starts_with(JOBS));
    assert!(deletions.all(|write| write.2["preconditions"]["uid"] == jobs[0]["metadata"]["uid"]), "no namesake of it");
}

#[tokio::test]
async fn few_pods_are_not_worth_a_job() {
    let world = World::with_pods(&ON, 2).await;
    world.new_image();
    world.settle().await.unwrap();
    assert_eq!(
        (world.below(JOBS).len(), world.marks()),
        (0, vec!["apps.kruise.io/image-predownload-ignored".to_owned()])
    );
}

#[tokio::test]
async fn without_either_gate_nothing_is_asked() {
    for gates in [&[][..], &["PreDownloadImageForInPlaceUpdate=true,KruiseDaemon=false"]] {
        let world = World::with_pods(gates, 5).await;
        world.new_image();
        world.settle().await.unwrap();
        assert_eq!((world.below(JOBS).len(), world.marks().len()), (0, 0), "{gates:?}");
    }
}

#[tokio::test]
async fn shortfall_21_a_failed_creation_is_tried_again_and_holds_nothing_up() {
    let world = World::with_pods(&ON, 5).await;
    lock(&world.server).faults.push((Method::POST, JOBS.into(), 500));
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    let key = ObjectKey::new("ns", "web");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!((world.below(JOBS).len(), world.marks().len()), (0, 0), "not marked before it is done");
    assert!(images(&world.pods()).contains(&"i:2"), "Pods are updated meanwhile");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!((world.below(JOBS).len(), world.marks().len()), (1, 1));
}

#[tokio::test]
async fn an_api_server_without_such_jobs_is_asked_once_in_a_while() {
    let world = World::with_gates(&ON);
    let list = "/apis/apps.kruise.io/v1alpha1/imagepulljobs";
    lock(&world.server).faults.push((Method::GET, list.into(), 404));
    world.put_clone_set(json!({"replicas": 5}));
    world.go_on().await;
    world.new_image();
    world.settle().await.unwrap();
    assert_eq!((world.below(JOBS).len(), world.marks().len()), (0, 0), "the one 404 is remembered");
    assert!(lock(&world.server).faults.is_empty(), "it was asked");
}
