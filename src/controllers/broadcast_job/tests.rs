//! The controller against an API server in memory, with kubelets that are played.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::request::Parts;
use serde_json::{Value, json};

use super::{
    super::{
        fake::{Fault, Server},
        in_memory,
    },
    Controller,
};
use crate::{
    k8s::pod::PodView,
    liveness::Random,
    runtime::{lock, queue::Requeue, watches::ObjectKey},
};

mod simulation;

const JOB: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/broadcastjobs/job";
const PODS: &str = "/api/v1/namespaces/ns/pods/";

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "job")
}

impl World {
    fn new(nodes: usize, spec: &Value) -> Self {
        Self::with_admission(nodes, spec, |_, _| Ok(()))
    }

    fn with_admission(nodes: usize, spec: &Value, admit: fn(&mut Server, &mut Value) -> Result<(), u16>) -> Self {
        let server = Arc::new(Mutex::new(Server::new(admit)));
        let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob",
            "metadata": {"name": "job", "namespace": "ns", "uid": "j", "generation": 1},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}], "newer": 1}}, "newer": 2}});
        json_patch::merge(&mut object["spec"], spec);
        lock(&server).put(JOB, object);
        let world = Self { controller: controller(&server), server };
        (0..nodes).for_each(|node| world.node(node, json!({})));
        world
    }

    /// The manager was started anew: nothing is remembered.
    fn restart(&mut self) {
        let nodes = self.controller.context.nodes.list();
        self.controller = controller(&self.server);
        for node in nodes {
            self.controller.context.nodes.store().upsert((*node).clone());
        }
    }

    fn node(&self, node: usize, change: Value) {
        let mut object = json!({"metadata": {"name": format!("n{node}"), "uid": format!("n{node}")}});
        json_patch::merge(&mut object, &change);
        self.controller.context.nodes.store().upsert(serde_json::from_value(object).unwrap());
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        let server = lock(&self.server);
        let pods = server.of(PODS);
        for known in self.controller.context.pods.list() {
            if !pods.iter().any(|(_, pod)| pod["metadata"]["uid"] == known.uid()) {
                self.controller.context.pods.remove(&ObjectKey::of(known.as_ref()), Some(known.uid()));
            }
        }
        for (_, pod) in pods {
            self.controller.context.pods.upsert(serde_json::from_value(Value::clone(&pod)).unwrap());
        }
        match server.objects.get(JOB) {
            Some(job) => drop(self.controller.jobs.upsert(serde_json::from_value(Value::clone(job)).unwrap())),
            None => drop(self.controller.jobs.remove(&key(), Some("j"))),
        }
    }

    async fn pass(&self) -> kube::Result<Requeue> {
        self.deliver();
        self.controller.reconcile(&key()).await
    }

    /// Passes and time, while kubelets do `play` with every Pod that has not ended.
    async fn settle(&self, play: impl Fn(&str) -> Value) {
        for _ in 0..30 {
            // A refusal backs off; here it is tried again.
            let _ = self.pass().await;
            self.play(&play);
            tokio::time::advance(Duration::from_secs(2)).await;
        }
    }

    /// Kubelets do something with each Pod that has not ended. `play` gets the node.
    fn play(&self, play: impl Fn(&str) -> Value) {
        let mut server = lock(&self.server);
        for (path, pod) in server.of(PODS) {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            if ["Succeeded", "Failed"].contains(&phase) {
                continue;
            }
            let view: PodView = serde_json::from_value(Value::clone(&pod)).unwrap();
            let mut change = json!({"spec": {"nodeName": view.node_meant()}});
            json_patch::merge(&mut change, &play(view.node_meant()));
            // Its time is over.
            if pod["spec"]["activeDeadlineSeconds"] == 1 {
                change["status"]["phase"] = "Failed".into();
            }
            server.change(&path, &change);
        }
    }

    fn change(&self, change: &Value) {
        let mut server = lock(&self.server);
        let generation = server.objects[JOB]["metadata"]["generation"].as_i64().unwrap();
        let mut all = json!({"metadata": {"generation": generation + 1}});
        json_patch::merge(&mut all, change);
        server.change(JOB, &all);
    }

    fn job(&self) -> Value {
        Value::clone(&lock(&self.server).objects[JOB])
    }

    fn numbers(&self) -> [i64; 4] {
        let status = self.job()["status"].clone();
        ["desired", "active", "succeeded", "failed"].map(|field| status[field].as_i64().unwrap())
    }

    fn phase(&self) -> String {
        self.job()["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn pods(&self) -> Vec<Value> {
        lock(&self.server).of(PODS).into_iter().map(|(_, pod)| Value::clone(&pod)).collect()
    }
}

fn controller(server: &Arc<Mutex<Server>>) -> Controller {
    let answers = server.clone();
    Controller::new(&in_memory::context(move |parts: &Parts, body: &[u8]| lock(&answers).answer(parts, body)))
}

fn runs(_: &str) -> Value {
    json!({"status": {"phase": "Running"}})
}
fn succeeds(_: &str) -> Value {
    json!({"status": {"phase": "Succeeded"}})
}
fn fails(_: &str) -> Value {
    json!({"status": {"phase": "Failed"}})
}

#[tokio::test(start_paused = true)]
async fn c2_2_a_job_runs_on_every_node_completes_and_writes_nothing_more() {
    let world = World::new(3, &json!({}));
    world.pass().await.unwrap();
    assert_eq!((world.numbers(), world.phase()), ([3, 3, 0, 0], "running".into()));
    let pod = &world.pods()[0];
    assert_eq!(pod["spec"]["newer"], 1, "fields that this release does not know are kept");
    assert_eq!(pod["metadata"]["labels"]["broadcastjob-name"], "job");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "j");
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([3, 0, 3, 0], "completed".into()));
    let job = world.job();
    assert_eq!((&job["spec"]["newer"], &job["status"]["observedGeneration"]), (&json!(2), &json!(1)));
    let before = lock(&world.server).objects.clone();
    world.settle(succeeds).await;
    assert_eq!(lock(&world.server).objects, before);
}

#[tokio::test(start_paused = true)]
async fn no_more_pods_run_at_a_time_than_parallelism_says() {
    let world = World::new(7, &json!({"parallelism": "30%"}));
    let mut most = 0;
    for round in 0..60 {
        world.pass().await.unwrap();
        let active = world.pods().iter().filter(|pod| pod["status"]["phase"] != "Succeeded").count();
        most = most.max(active);
        if round % 2 == 1 {
            world.play(succeeds);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!((most, world.numbers(), world.phase()), (3, [7, 0, 7, 0], "completed".into()));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_a_job_that_never_ends_gets_a_pod_and_ended_ones_are_not_run_again() {
    let world = World::new(1, &json!({"completionPolicy": {"type": "Never"}}));
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([1, 0, 1, 0], "running".into()));
    world.node(1, json!({}));
    world.node(0, json!({"spec": {"unschedulable": true}}));
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.pods().len()), ([2, 0, 2, 0], 2));
    world.node(0, json!({}));
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.pods().len()), ([2, 0, 2, 0], 2), "finished Pods are never recounted");
}

#[tokio::test(start_paused = true)]
async fn fail_fast_ends_the_job_and_deletes_what_runs() {
    let world = World::new(3, &json!({}));
    world.settle(|node| if node == "n1" { fails(node) } else { runs(node) }).await;
    assert_eq!((world.numbers(), world.phase()), ([3, 0, 0, 1], "failed".into()));
    assert_eq!(world.pods().len(), 1, "the one that failed stays, with its logs");
    let conditions = world.job()["status"]["conditions"].clone();
    let failed = conditions.as_array().unwrap().iter().find(|condition| condition["type"] == "Failed").unwrap().clone();
    assert!(failed["message"].as_str().unwrap().ends_with("on node n1"), "{failed}");
}

/// Its phase is all that says what was done on its node.
#[tokio::test(start_paused = true)]
async fn f40_a_pod_that_has_ended_since_it_was_looked_at_is_neither_deleted_nor_stopped() {
    let world = World::new(2, &json!({}));
    world.pass().await.unwrap();
    world.play(runs);
    world.deliver();
    // The job fails, and the watch has not told yet that the other Pod has succeeded.
    world.play(|node| if node == "n0" { fails(node) } else { succeeds(node) });
    for pod in world.pods().into_iter().filter(|pod| pod["spec"]["nodeName"] == "n0") {
        world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }
    world.controller.reconcile(&key()).await.unwrap();
    assert_eq!((world.pods().len(), world.numbers(), world.phase()), (2, [2, 0, 1, 1], "failed".into()));
    // The same of one whose containers were restarted too often.
    let spec = json!({"failurePolicy": {"type": "Continue"}, "template": {"spec": {"restartPolicy": "OnFailure"}}});
    let world = World::new(1, &spec);
    world.pass().await.unwrap();
    world.play(|_| json!({"status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 1}]}}));
    world.deliver();
    world.play(succeeds);
    world.controller.reconcile(&key()).await.unwrap();
    assert_eq!(world.pods()[0]["metadata"]["labels"]["kruise.rs/stopped-for"], Value::Null);
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([1, 0, 1, 0], "completed".into()));
}

#[tokio::test(start_paused = true)]
async fn f38_a_failure_pauses_the_job_over_a_restart_until_its_user_goes_on() {
    let mut world = World::new(3, &json!({"parallelism": 1, "failurePolicy": {"type": "Pause"}}));
    world.settle(|node| if node == "n0" { fails(node) } else { succeeds(node) }).await;
    assert_eq!((world.job()["spec"]["paused"].clone(), world.phase()), (json!(true), "paused".into()));
    assert_eq!((world.pods().len(), world.numbers()), (1, [3, 0, 0, 1]));
    world.restart();
    world.settle(succeeds).await;
    assert_eq!((world.pods().len(), world.phase()), (1, "paused".into()));
    world.change(&json!({"spec": {"paused": false}}));
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([3, 0, 2, 1], "completed".into()));
}

/// Three Pods run, one after the other they fail, the last two while the job is paused for the first.
#[tokio::test(start_paused = true)]
async fn f38_what_fails_while_a_job_is_paused_does_not_pause_it_again() {
    for restarts in [false, true] {
        let mut world = World::new(5, &json!({"parallelism": 3, "failurePolicy": {"type": "Pause"}}));
        world.settle(|node| if node == "n0" { fails(node) } else { runs(node) }).await;
        assert_eq!((world.job()["spec"]["paused"].clone(), world.numbers()), (json!(true), [5, 2, 0, 1]));
        world.settle(fails).await;
        assert_eq!((world.pods().len(), world.phase(), world.numbers()), (3, "paused".into(), [5, 0, 0, 3]));
        if restarts {
            world.restart();
            lock(&world.server).faults.push_back(Fault::Error(500));
        }
        world.change(&json!({"spec": {"paused": false}}));
        world.settle(|node| if node == "n3" { fails(node) } else { runs(node) }).await;
        assert_eq!(
            (world.job()["spec"]["paused"].clone(), world.numbers()),
            (json!(true), [5, 1, 0, 4]),
            "the next one does"
        );
        world.change(&json!({"spec": {"paused": false}}));
        world.settle(succeeds).await;
        assert_eq!((world.phase(), world.numbers()), ("completed".into(), [5, 0, 1, 4]));
    }
}

#[tokio::test(start_paused = true)]
async fn f35_the_deadline_ends_a_job_after_a_restart_of_the_manager() {
    let mut world = World::new(2, &json!({"completionPolicy": {"activeDeadlineSeconds": 100}}));
    world.pass().await.unwrap();
    world.play(runs);
    tokio::time::advance(Duration::from_secs(90)).await;
    world.restart();
    let next = world.pass().await.unwrap();
    assert!(matches!(next, Requeue::After(after) if after <= Duration::from_secs(11)), "{next:?}");
    assert_eq!(world.phase(), "running");
    tokio::time::advance(Duration::from_secs(11)).await;
    world.settle(runs).await;
    assert_eq!((world.phase(), world.pods().len()), ("failed".into(), 0));
}

#[tokio::test(start_paused = true)]
async fn f35_the_deadline_counts_from_the_start_if_nothing_happens_in_between_too() {
    let world = World::new(0, &json!({"completionPolicy": {"activeDeadlineSeconds": 10}}));
    world.pass().await.unwrap();
    assert_eq!(world.phase(), "running");
    tokio::time::advance(Duration::from_secs(11)).await;
    world.pass().await.unwrap();
    assert_eq!(world.phase(), "failed");
}

#[tokio::test(start_paused = true)]
async fn f39_a_pod_over_its_restart_limit_is_stopped_and_the_job_goes_on() {
    let spec = json!({"failurePolicy": {"type": "Continue", "restartLimit": 1}, "template": {"spec": {"restartPolicy": "OnFailure"}}});
    let world = World::new(2, &spec);
    let crashes = |node: &str| match node {
        "n0" => json!({"status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 2}]}}),
        node => succeeds(node),
    };
    world.settle(crashes).await;
    assert_eq!((world.numbers(), world.phase()), ([2, 0, 1, 1], "completed".into()));
    let stopped = world.pods().into_iter().find(|pod| pod["spec"]["nodeName"] == "n0").unwrap();
    assert_eq!(stopped["metadata"]["labels"]["kruise.rs/stopped-for"], "RestartLimitExceeded");
    assert_eq!(stopped["spec"]["activeDeadlineSeconds"], 1);
}

#[tokio::test(start_paused = true)]
async fn c2_1_a_job_is_deleted_when_its_time_to_live_is_over() {
    let world = World::new(1, &json!({"completionPolicy": {"ttlSecondsAfterFinished": 20}}));
    world.pass().await.unwrap();
    world.play(succeeds);
    while world.phase() != "completed" {
        world.pass().await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    world.pass().await.unwrap();
    tokio::time::advance(Duration::from_secs(15)).await;
    world.pass().await.unwrap();
    assert!(lock(&world.server).objects.contains_key(JOB));
    tokio::time::advance(Duration::from_secs(10)).await;
    world.pass().await.unwrap();
    assert!(!lock(&world.server).objects.contains_key(JOB));
}

/// Its user prolongs its time just before it is over, and the watch has not told yet.
#[tokio::test(start_paused = true)]
async fn a_job_whose_time_to_live_was_prolonged_a_moment_ago_stays() {
    let world = World::new(1, &json!({"completionPolicy": {"ttlSecondsAfterFinished": 20}}));
    world.pass().await.unwrap();
    world.play(succeeds);
    while world.phase() != "completed" {
        world.pass().await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    world.pass().await.unwrap();
    tokio::time::advance(Duration::from_secs(25)).await;
    world.change(&json!({"spec": {"completionPolicy": {"ttlSecondsAfterFinished": 3600}}}));
    let requeue = world.controller.reconcile(&key()).await.unwrap();
    assert!(lock(&world.server).objects.contains_key(JOB));
    assert!(matches!(requeue, Requeue::After(after) if after < Duration::from_secs(1)), "{requeue:?}");
    world.pass().await.unwrap();
    assert!(lock(&world.server).objects.contains_key(JOB));
    tokio::time::advance(Duration::from_secs(3600)).await;
    world.pass().await.unwrap();
    assert!(!lock(&world.server).objects.contains_key(JOB));
}

#[tokio::test(start_paused = true)]
async fn e34_pods_of_nobody_with_the_same_labels_are_ignored() {
    let world = World::new(1, &json!({}));
    for (name, owner) in [
        ("orphan", json!([])),
        (
            "foreign",
            json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "name": "job", "uid": "earlier", "controller": true}]),
        ),
    ] {
        let labels = json!({"broadcastjob-name": "job", "broadcastjob-controller-uid": "j"});
        lock(&world.server).put(&format!("{PODS}{name}"), json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n0"},
            "status": {"phase": "Failed"}, "metadata": {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": owner}}));
    }
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase(), world.pods().len()), ([1, 0, 1, 0], "completed".into(), 3));
}

#[tokio::test(start_paused = true)]
async fn f47_pods_that_were_made_through_v1alpha1_are_its_own() {
    let world = World::new(1, &json!({}));
    let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "BroadcastJob", "name": "job", "uid": "j", "controller": true}]);
    let there = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n0"}, "status": {"phase": "Running"},
        "metadata": {"name": "job-x7k2p", "namespace": "ns", "ownerReferences": owner}});
    lock(&world.server).put(&format!("{PODS}job-x7k2p"), there.clone());
    world.pass().await.unwrap();
    assert_eq!((world.numbers(), world.pods().len()), ([1, 1, 0, 0], 1), "a takeover makes no second Pod");
}

/// The recorded job as OpenKruise has left it when it had ended, and while it ran.
#[tokio::test(start_paused = true)]
async fn a_takeover_writes_nothing_but_the_status_once() {
    let recorded = include_str!("../../api/apps/testdata/broadcast_jobs.json");
    let recorded = serde_json::from_str::<Vec<Value>>(recorded).unwrap().remove(1);
    let running = json!({"active": 1, "desired": 1, "failed": 0, "phase": "running", "succeeded": 0,
        "startTime": recorded["status"]["startTime"]});
    for (status, phase) in [(recorded["status"].clone(), "Succeeded"), (running, "Running")] {
        let world = World::new(1, &recorded["spec"]);
        let owner = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "name": "job", "uid": "j",
            "controller": true, "blockOwnerDeletion": true}]);
        let labels = json!({"broadcastjob-name": "job", "broadcastjob-controller-uid": "j"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n0"}, "status": {"phase": phase},
            "metadata": {"name": "job-x7k2p", "namespace": "ns", "labels": labels, "ownerReferences": owner}});
        lock(&world.server).change(JOB, &json!({"status": status}));
        lock(&world.server).put(&format!("{PODS}job-x7k2p"), pod);
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        let newest = || lock(&world.server).objects.values().map(|object| version(object)).max().unwrap();
        let (before, pods) = (newest(), world.pods());
        for _ in 0..4 {
            world.pass().await.unwrap();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(world.pods(), pods, "{status}");
        assert!(newest() - before <= 1, "{status} {}", world.job()["status"]);
        assert_eq!(world.phase(), status["phase"], "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn e35_no_pod_is_made_for_a_job_that_is_being_deleted() {
    let world = World::new(2, &json!({}));
    lock(&world.server)
        .change(JOB, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}}));
    world.settle(succeeds).await;
    assert!(world.pods().is_empty() && world.job()["status"].is_null());
}

#[tokio::test(start_paused = true)]
async fn c2_11_f37_what_cannot_be_created_is_said_is_not_active_and_is_tried_again() {
    // Of a quota one Pod is left.
    let world = World::with_admission(3, &json!({"parallelism": 2}), |server, _| {
        if server.of(PODS).iter().any(|(_, pod)| pod["status"]["phase"] != "Succeeded") { Err(403) } else { Ok(()) }
    });
    let _ = world.pass().await;
    assert_eq!(world.numbers(), [3, 1, 0, 0]);
    let conditions = world.job()["status"]["conditions"].clone();
    let reconciling = conditions.as_array().unwrap().iter().find(|c| c["type"] == "Reconciling").unwrap().clone();
    assert_eq!(reconciling["reason"], "FailedWrite");
    assert!(reconciling["message"].as_str().unwrap().contains("could not be created"), "{reconciling}");
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([3, 0, 3, 0], "completed".into()));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_again_and_again_is_made_again_ever_more_slowly() {
    let world = World::new(1, &json!({}));
    let mut made = 0;
    for _ in 0..600 {
        let _ = world.pass().await;
        let pods = lock(&world.server).of(PODS);
        for (path, _) in pods {
            made += 1;
            lock(&world.server).remove(&path);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!((5..12).contains(&made), "{made} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_cannot_be_followed_is_said_and_nothing_is_done() {
    let world = World::new(1, &json!({"template": {"spec": {"restartPolicy": "Always"}}}));
    world.settle(succeeds).await;
    let conditions = world.job()["status"]["conditions"].clone();
    let stalled =
        conditions.as_array().unwrap().iter().find(|condition| condition["type"] == "Stalled").unwrap().clone();
    assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("InvalidSpec")));
    assert!(world.pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_makes_no_second_pod() {
    let mut world = World::new(1, &json!({}));
    lock(&world.server).faults.push_back(Fault::Lost);
    let _ = world.pass().await;
    world.restart();
    world.settle(runs).await;
    assert_eq!((world.pods().len(), world.numbers()), (1, [1, 1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_that_name_for_another_node_is_named_in_the_status() {
    let world = World::new(2, &json!({"parallelism": 1}));
    world.pass().await.unwrap();
    let pod = world.pods().remove(0);
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    // It was made for n0, and somebody has given it to a node that was not to have one.
    lock(&world.server).change(&format!("{PODS}{name}"), &json!({"spec": {"nodeName": "n1", "affinity": null}}));
    world.controller.memories.clear();
    world.change(&json!({"spec": {"parallelism": 2}}));
    assert!(world.pass().await.is_err());
    let conditions = world.job()["status"]["conditions"].clone();
    let reconciling = conditions.as_array().unwrap().iter().find(|c| c["type"] == "Reconciling").unwrap().clone();
    let want = format!("Pod {name} is there already, and is for node n1");
    assert_eq!(reconciling["reason"], "FailedWrite");
    assert!(reconciling["message"].as_str().unwrap().contains(&want), "{reconciling}");
    assert_eq!(world.pods().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn f36_after_a_conflict_the_next_pass_writes_the_status() {
    let world = World::new(1, &json!({}));
    world.deliver();
    // Somebody else writes it, and the watch has not brought that.
    lock(&world.server).change(JOB, &json!({"metadata": {"labels": {"a": "b"}}}));
    let next = world.controller.reconcile(&key()).await.unwrap();
    assert!(matches!(next, Requeue::After(_)), "{next:?}");
    assert!(world.job()["status"].is_null());
    world.controller.reconcile(&key()).await.unwrap();
    assert_eq!((world.phase(), world.numbers()), ("running".into(), [1, 1, 0, 0]));
    assert_eq!(world.job()["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn nodes_wake_the_jobs_for_which_they_are_news() {
    use crate::runtime::watches::Change;
    let world = World::new(0, &json!({"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}));
    world.deliver();
    let node = |labels: Value, unschedulable: bool| {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "n", "uid": "n", "labels": labels},
            "spec": {"unschedulable": unschedulable}}))
            .unwrap(),
        )
    };
    let (other, ssd, cordoned) =
        (node(json!({}), false), node(json!({"disk": "ssd"}), false), node(json!({"disk": "ssd"}), true));
    for (old, new, wakes) in
        [(Some(&other), &other, false), (Some(&other), &ssd, true), (Some(&ssd), &cordoned, true), (None, &ssd, true)]
    {
        let before = world.controller.queue.depth();
        world.controller.node_changed(&Change::Applied { old, new, initial: false });
        let woken = world.controller.queue.depth() > before;
        assert_eq!(woken, wakes);
        while let Some(key) = world.controller.queue.begin() {
            world.controller.queue.done::<String>(key, Ok(Requeue::Await));
        }
    }
    lock(&world.server).change(JOB, &json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}));
    world.deliver();
    world.controller.node_changed(&Change::Applied { old: None, new: &ssd, initial: false });
    assert_eq!(world.controller.queue.depth(), 0, "a job that is over wants to know of no node");
}

/// What a kubelet does with the Pod of its node in a round: mostly it runs on.
fn now_and_then(seed: u64, node: &str) -> Value {
    let of_node = node.bytes().fold(seed, |all, byte| all.wrapping_mul(31).wrapping_add(byte.into()));
    match Random(of_node).below(100) {
        0..30 => succeeds(node),
        30..35 => fails(node),
        _ => runs(node),
    }
}

/// Something that happens to one of the nodes, or to the manager. `nodes` are those that are there, with whether they are
/// cordoned, `next` is the next one that joins: no name comes twice.
fn trouble(world: &mut World, random: &mut Random, nodes: &mut BTreeMap<usize, bool>, next: &mut usize) {
    let names: Vec<usize> = nodes.keys().copied().collect();
    let node = names[random.below(names.len())];
    match random.below(7) {
        0 => world.restart(),
        1 => lock(&world.server).faults.push_back(Fault::Error([403, 409, 500][random.below(3)])),
        2 => lock(&world.server).faults.push_back(Fault::Lost),
        3 => {
            world.node(*next, json!({}));
            nodes.insert(*next, false);
            *next += 1;
        }
        4 => {
            nodes.remove(&node);
            let name = format!("n{node}");
            let uid = name.clone();
            world.controller.context.nodes.store().remove(&ObjectKey::new("", &name), Some(&uid));
            let mut server = lock(&world.server);
            for (path, _) in server.of(PODS).iter().filter(|(_, pod)| pod["spec"]["nodeName"] == *name) {
                server.remove(path);
            }
        }
        _ => {
            let is_cordoned = !nodes[&node];
            nodes.insert(node, is_cordoned);
            world.node(node, json!({"spec": {"unschedulable": is_cordoned}}));
        }
    }
}

/// Nodes join, go and are cordoned, the manager is started anew, writes are refused and answers lost.
#[tokio::test(start_paused = true)]
async fn a_thousand_played_nodes_are_each_done_once_within_parallelism() {
    const NODES: usize = 1000;
    for seed in 0..2 {
        let mut random = Random(seed);
        let spec = json!({"parallelism": "10%", "failurePolicy": {"type": "Continue"}});
        let mut world = World::new(NODES, &spec);
        let (mut nodes, mut next): (BTreeMap<usize, bool>, _) = ((0..NODES).map(|node| (node, false)).collect(), NODES);
        let mut ended: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for round in 0..400 {
            if round < 20 {
                (0..3).for_each(|_| trouble(&mut world, &mut random, &mut nodes, &mut next));
            } else if round == 20 {
                lock(&world.server).faults.clear();
                nodes.keys().for_each(|node| world.node(*node, json!({})));
            }
            let _ = world.pass().await;
            let is_over =
                |pod: &Value| ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or(""));
            let active = world.pods().iter().filter(|pod| !is_over(pod)).count();
            assert!(active <= (NODES + 60).div_ceil(10), "seed {seed}, round {round}: {active} at a time");
            if world.phase() == "completed" {
                break;
            }
            world.play(|node| now_and_then(seed * 1000 + round, node));
            for pod in world.pods().iter().filter(|pod| is_over(pod)) {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                ended.entry(text(&pod["spec"]["nodeName"])).or_default().insert(text(&pod["metadata"]["uid"]));
            }
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(world.phase(), "completed", "seed {seed}: {}", world.job()["status"]);
        // Two Pods have ended for no node, whatever was lost; and each that is there is done.
        assert!(ended.values().all(|pods| pods.len() == 1), "seed {seed}");
        assert!(nodes.keys().all(|node| ended.contains_key(&format!("n{node}"))), "seed {seed}");
        let [desired, active, succeeded, failed] = world.numbers();
        let there = i64::try_from(nodes.len()).unwrap();
        assert_eq!((desired, active, succeeded + failed), (there, 0, there), "seed {seed}");
        assert_eq!(world.pods().len(), nodes.len(), "seed {seed}");
    }
}

/// There is nothing to wait for but what watches say: a Pod that was made and has gone before any watch showed it.
#[tokio::test(start_paused = true)]
async fn f55_what_was_made_and_is_gone_is_made_again_within_seconds() {
    let world = World::new(1, &json!({}));
    world.pass().await.unwrap();
    let (path, _) = lock(&world.server).of(PODS).remove(0);
    lock(&world.server).remove(&path);
    let mut waited = 0;
    while world.pods().is_empty() {
        let _ = world.pass().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        waited += 1;
        assert!(waited < 30, "{}", world.job()["status"]);
    }
    world.settle(succeeds).await;
    assert_eq!((world.numbers(), world.phase()), ([1, 0, 1, 0], "completed".into()));
}
