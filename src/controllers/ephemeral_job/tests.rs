//! The controller against an API server in memory.

use std::sync::Mutex;

use axum::http::Method;

use super::*;
use crate::{
    controllers::{
        fake::{Fault, Server, in_paused_time},
        in_memory,
    },
    k8s::pod::PodView,
    liveness::{self, Acts, Random},
    runtime::lock,
};

const JOBS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/ephemeraljobs";
const PODS: &str = "/api/v1/namespaces/ns/pods";

struct World {
    server: Arc<Mutex<Server>>,
    writes: Arc<Mutex<Vec<(Method, String, Value)>>>,
    refused: Arc<Mutex<Vec<String>>>,
    /// The codes of the answers to the next writes of the job's annotations, and of its status.
    notes: Arc<Mutex<Vec<u16>>>,
    statuses: Arc<Mutex<Vec<u16>>>,
    controller: Controller,
}

/// What the API server makes of a patch of `pods/ephemeralcontainers`: containers are added by name.
fn add_containers(server: &mut Server, path: &str, body: &Value) -> (u16, Value) {
    let Some(pod) = server.objects.get(path).cloned() else {
        return (404, json!({"kind": "Status", "code": 404, "message": "gone"}));
    };
    if body["metadata"]["uid"] != pod["metadata"]["uid"] {
        return (409, json!({"kind": "Status", "code": 409, "message": "another Pod"}));
    }
    let mut pod = Value::clone(&pod);
    let mut all = pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    for container in body["spec"]["ephemeralContainers"].as_array().unwrap() {
        match all.iter().find(|there| there["name"] == container["name"]) {
            Some(there) if there == container => {}
            Some(_) => {
                return (
                    422,
                    json!({"kind": "Status", "code": 422, "message": "existing ephemeral containers may not be changed"}),
                );
            }
            None => all.push(container.clone()),
        }
    }
    pod["spec"]["ephemeralContainers"] = all.into();
    (200, server.put(path, pod))
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let (writes, refused): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<String>>>) = Default::default();
        let notes: Arc<Mutex<Vec<u16>>> = Arc::default();
        let statuses: Arc<Mutex<Vec<u16>>> = Arc::default();
        let context = in_memory::context({
            let (server, writes, refused) = (server.clone(), writes.clone(), refused.clone());
            let (notes, statuses) = (notes.clone(), statuses.clone());
            move |request, body| {
                let mut server = lock(&server);
                let path = request.uri.path();
                let json: Value = serde_json::from_slice(body).unwrap_or_default();
                if request.method != Method::GET {
                    lock(&writes).push((request.method.clone(), path.to_owned(), json.clone()));
                }
                let job = (request.method == Method::PATCH).then(|| path.strip_prefix(JOBS)).flatten();
                let codes = job.map(|path| if path.ends_with("/status") { &statuses } else { &notes });
                if let Some(code) = codes.and_then(|codes| lock(codes).pop()) {
                    return (code, json!({"kind": "Status", "code": code, "message": "refused by a test"}));
                }
                let fault = path.ends_with("/ephemeralcontainers").then(|| server.faults.pop_front()).flatten();
                if let Some(fault) = fault {
                    let is_lost = matches!(fault, Fault::Lost);
                    server.acts.note(if is_lost { "lost answers" } else { "refused writes" });
                }
                if let Some(Fault::Error(code)) = fault {
                    return (code, json!({"kind": "Status", "code": code, "message": "refused at random"}));
                }
                let answer = match path.strip_suffix("/ephemeralcontainers") {
                    Some(pod) if lock(&refused).iter().any(|name| pod.ends_with(&format!("/{name}"))) => {
                        (403, json!({"kind": "Status", "code": 403, "message": "no debug containers here"}))
                    }
                    Some(pod) => add_containers(&mut server, pod, &json),
                    None => server.answer(request, body),
                };
                if fault.is_some() { (504, json!({"kind": "Status", "code": 504, "message": "lost"})) } else { answer }
            }
        });
        Self { server, writes, refused, notes, statuses, controller: Controller::new(&context) }
    }

    fn job(&self, spec: Value) {
        let mut whole = json!({"selector": {"matchLabels": {"app": "web"}}, "parallelism": 2,
            "template": {"ephemeralContainers": [{"name": "look", "image": "busybox", "env": [{"name": "A", "value": "1"}]}]}});
        json_patch::merge(&mut whole, &spec);
        let job = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob",
            "metadata": {"name": "j", "namespace": "ns", "uid": "u1", "generation": 1}, "spec": whole});
        self.put(&format!("{JOBS}/j"), job);
    }

    fn pod(&self, name: &str, change: Value) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "labels": {"app": "web"}}, "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}, "status": {"phase": "Running"}});
        json_patch::merge(&mut pod, &change);
        self.put(&format!("{PODS}/{name}"), pod);
    }

    fn put(&self, path: &str, object: Value) {
        lock(&self.server).put(path, object);
        self.watch();
    }

    fn change(&self, path: &str, change: &Value) {
        lock(&self.server).change(path, change);
        self.watch();
    }

    fn remove(&self, path: &str) {
        lock(&self.server).remove(path);
        self.watch();
    }

    fn ends(&self, pod: &str, code: i32) {
        let status = json!([{"name": "look", "state": {"terminated": {"exitCode": code}}}]);
        self.change(&format!("{PODS}/{pod}"), &json!({"status": {"ephemeralContainerStatuses": status}}));
    }

    /// Delivers what happened to the stores.
    fn watch(&self) {
        let mut server = lock(&self.server);
        while let Some(path) = server.news.pop_front() {
            let object = server.objects.get(&path).map(|object| Value::clone(object));
            let key = ObjectKey::new("ns", path.rsplit('/').next().unwrap());
            let pods = &self.controller.context.pods;
            match (object, path.starts_with(PODS)) {
                (Some(pod), true) => drop(pods.upsert(serde_json::from_value::<PodView>(pod).unwrap())),
                (None, true) => drop(pods.remove(&key, None)),
                (Some(job), false) => match serde_json::from_value::<Packed<EphemeralJob>>(job) {
                    Ok(job) => drop(self.controller.jobs.upsert(job)),
                    Err(error) => {
                        self.controller.jobs.remove(&key, None);
                        self.controller.job_changed(&Change::Undecodable { key: &key, error: &error.to_string() });
                    }
                },
                (None, false) => drop(self.controller.jobs.remove(&key, None)),
            }
        }
    }

    async fn look(&self) -> kube::Result<Requeue> {
        self.controller.status.forget();
        self.controller.memories.for_each(|memory| memory.noted = None);
        let result = self.controller.reconcile(&ObjectKey::new("ns", "j")).await;
        self.watch();
        result
    }

    async fn settle(&self) -> Requeue {
        for _ in 0..20 {
            let before = lock(&self.writes).len();
            let requeue = self.look().await.unwrap();
            if lock(&self.writes).len() == before {
                return requeue;
            }
        }
        panic!("it goes on and on: {:?}", lock(&self.writes));
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[&format!("{JOBS}/j")]["status"].clone()
    }

    /// Writes to Pods, by name.
    fn pod_writes(&self) -> Vec<String> {
        let writes = lock(&self.writes);
        let of_pods =
            writes.iter().filter_map(|(_, path, _)| path.strip_prefix(&format!("{PODS}/")).map(str::to_owned));
        of_pods.collect()
    }
}

#[tokio::test]
async fn d3_7_a_job_runs_to_its_end_with_one_write_for_each_pod() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.pod(name, json!({}));
    }
    world.job(json!({}));
    world.settle().await;
    assert_eq!(world.pod_writes(), ["a/ephemeralcontainers", "b/ephemeralcontainers"], "two at a time");
    let added =
        lock(&world.writes).iter().find(|(_, path, _)| path.ends_with("a/ephemeralcontainers")).unwrap().2.clone();
    let want = json!([{"name": "look", "image": "busybox",
        "env": [{"name": "A", "value": "1"}, {"name": "KRUISE_EJOB_ID", "value": "u1"}]}]);
    assert_eq!((&added["metadata"], &added["spec"]["ephemeralContainers"]), (&json!({"uid": "uid-a"}), &want));
    let status = world.status();
    assert_eq!((&status["match"], &status["unreported"], &status["running"]), (&json!(3), &json!(2), &json!(0)));
    world.ends("a", 0);
    world.settle().await;
    assert_eq!(world.pod_writes().len(), 3);
    world.ends("b", 0);
    world.ends("c", 0);
    world.settle().await;
    let status = world.status();
    assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(3)));
    assert_eq!(world.pod_writes().len(), 3);
    let writes = lock(&world.writes).len();
    assert!(
        matches!(world.settle().await, Requeue::After(left) if left > Duration::from_secs(1700)),
        "its time to live"
    );
    assert_eq!(lock(&world.writes).len(), writes);
}

/// A tool that reads kstatus waits until the status is about the spec that it has applied.
#[tokio::test]
async fn what_a_job_came_to_holds_for_a_spec_that_is_changed_after_its_end() {
    let world = World::new();
    world.pod("a", json!({}));
    world.job(json!({}));
    world.settle().await;
    world.ends("a", 0);
    world.settle().await;
    let before = world.status();
    assert_eq!((&before["phase"], &before["observedGeneration"]), (&json!("Succeeded"), &json!(1)));
    let change = json!({"metadata": {"generation": 2}, "spec": {"ttlSecondsAfterFinished": 3600}});
    world.change(&format!("{JOBS}/j"), &change);
    assert!(matches!(world.settle().await, Requeue::After(left) if left > Duration::from_secs(3500)));
    let mut wanted = before;
    wanted["observedGeneration"] = 2.into();
    for condition in wanted["conditions"].as_array_mut().unwrap() {
        condition["observedGeneration"] = 2.into();
    }
    assert_eq!(world.status(), wanted);
}

#[tokio::test]
async fn d3_1_d3_2_a_job_is_deleted_when_its_time_is_over_and_openkruises_finalizer_is_let_go() {
    let world = World::new();
    world.pod("a", json!({}));
    world.job(json!({"ttlSecondsAfterFinished": 0}));
    world.settle().await;
    world.ends("a", 1);
    world.settle().await;
    assert!(world.controller.jobs.is_empty());
    let job = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob",
        "metadata": {"name": "j", "namespace": "ns", "uid": "u2", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["example.com/other", "apps.kruise.io/ephemeralcontainers-cleanup"]},
        "spec": {"selector": {}, "template": {}}});
    world.put(&format!("{JOBS}/j"), job);
    assert_eq!(world.settle().await, Requeue::Await);
    let kept = lock(&world.server).objects[&format!("{JOBS}/j")]["metadata"]["finalizers"].clone();
    assert_eq!(kept, json!(["example.com/other"]));
}

#[tokio::test]
async fn openkruises_finalizer_is_let_go_from_a_job_that_cannot_be_read_when_it_is_deleted() {
    let path = format!("{JOBS}/j");
    let (soon, later) = (Requeue::After(Duration::from_secs(5)), Requeue::After(Duration::from_secs(60)));
    for others in [json!([]), json!(["example.com/other"])] {
        let world = World::new();
        world.pod("a", json!({}));
        let mut finalizers = others.as_array().unwrap().clone();
        finalizers.push(labels::EPHEMERAL_JOB_FINALIZER.into());
        world.job(json!({}));
        world.change(&path, &json!({"metadata": {"finalizers": finalizers}, "spec": {"selector": 7}}));
        assert_eq!(world.settle().await, later, "it may go unseen");
        assert!(lock(&world.writes).is_empty(), "it is left alone");

        world.change(&path, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        assert_eq!(world.look().await.unwrap(), soon);
        let is_gone = others == json!([]);
        let left = lock(&world.server).objects.get(&path).map(|job| job["metadata"]["finalizers"].clone());
        assert_eq!(left, (!is_gone).then_some(others));
        assert_eq!(world.settle().await, if is_gone { Requeue::Await } else { later });
        world.remove(&path);
        assert_eq!((world.settle().await, lock(&world.writes).len()), (Requeue::Await, 1));
        assert!(world.controller.unreadable.is_empty());
    }
}

#[tokio::test]
async fn a_pod_that_refuses_does_not_hold_up_the_others_and_is_named() {
    let world = World::new();
    lock(&world.refused).push("a".into());
    for name in ["a", "b"] {
        world.pod(name, json!({}));
    }
    world.job(json!({"parallelism": 1}));
    let requeue = world.settle().await;
    assert_eq!(world.pod_writes(), ["a/ephemeralcontainers", "b/ephemeralcontainers"]);
    assert!(matches!(requeue, Requeue::After(left) if left <= Duration::from_secs(10)), "{requeue:?}");
    let status = world.status().to_string();
    assert!(status.contains("\"CreateFailed\"") && status.contains("no debug containers here"), "{status}");
}

#[tokio::test]
async fn a_job_of_openkruise_goes_on_and_no_pod_of_it_is_written_again() {
    let world = World::new();
    let theirs = json!({"spec": {"ephemeralContainers": [{"name": "look", "image": "busybox", "env": [{"name": "KRUISE_EJOB_ID", "value": "u1"}]}]},
        "status": {"ephemeralContainerStatuses": [{"name": "look", "state": {"running": {}}}]}});
    world.pod("a", theirs);
    world.job(json!({"parallelism": 1}));
    world.change(
        &format!("{JOBS}/j"),
        &json!({"metadata": {"finalizers": ["apps.kruise.io/ephemeralcontainers-cleanup"]},
        "status": {"match": 1, "running": 1, "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
    );
    world.settle().await;
    assert_eq!(world.pod_writes(), Vec::<String>::new());
    let statuses = lock(&world.writes).iter().filter(|(_, path, _)| path.ends_with("/j/status")).count();
    assert!(statuses <= 1, "{statuses} writes of the status");
    world.ends("a", 0);
    world.settle().await;
    let status = world.status();
    assert_eq!((&status["phase"], &status["conditions"][0]["reason"]), (&json!("Succeeded"), &json!("Initialized")));
}

#[tokio::test]
async fn counts_survive_pods_that_go_and_a_restart_of_the_manager() {
    let world = World::new();
    for name in ["a", "b"] {
        world.pod(name, json!({}));
    }
    world.job(json!({"parallelism": 1}));
    world.settle().await;
    world.ends("a", 0);
    world.settle().await;
    world.remove(&format!("{PODS}/a"));
    world.settle().await;
    assert_eq!((&world.status()["succeeded"], &world.status()["match"]), (&json!(1), &json!(2)));
    world.controller.memories.clear();
    world.settle().await;
    assert_eq!(world.status()["succeeded"], 1);
    world.ends("b", 2);
    world.settle().await;
    let status = world.status();
    assert_eq!((&status["phase"], &status["succeeded"], &status["failed"]), (&json!("Failed"), &json!(1), &json!(1)));
}

#[tokio::test]
async fn counts_stay_exact_when_pods_go_and_end_while_no_manager_runs() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.pod(name, json!({}));
    }
    world.job(json!({"replicas": 3, "parallelism": 3}));
    world.settle().await;
    world.ends("a", 0);
    world.ends("b", 0);
    world.settle().await;
    assert_eq!(world.status()["succeeded"], 2);
    // No manager runs.
    world.controller.memories.clear();
    world.ends("c", 0);
    world.remove(&format!("{PODS}/a"));
    world.pod("d", json!({}));
    world.settle().await;
    let status = world.status();
    assert_eq!((&status["phase"], &status["succeeded"], &status["match"]), (&json!("Succeeded"), &json!(3), &json!(3)));
    assert_eq!(world.pod_writes().len(), 3, "no further Pod gets the containers");
}

#[tokio::test]
async fn counts_stay_exact_whichever_write_of_them_fails_before_the_manager_ends() {
    let cases: [(Vec<u16>, Vec<u16>); 4] =
        [(vec![], vec![]), (vec![409], vec![]), (vec![], vec![500]), (vec![409], vec![409])];
    for (notes, statuses) in cases {
        let world = World::new();
        for name in ["a", "b", "c"] {
            world.pod(name, json!({}));
        }
        world.job(json!({"replicas": 2, "parallelism": 2}));
        world.settle().await;
        world.ends("a", 0);
        let is_lost = statuses.contains(&500);
        let case = format!("{notes:?} {statuses:?}");
        (*lock(&world.notes), *lock(&world.statuses)) = (notes, statuses);
        if is_lost {
            // The note is written, and the process ends before the status is.
            world.look().await.unwrap_err();
        } else {
            world.settle().await;
        }
        assert_eq!(world.status()["succeeded"], if is_lost { 0 } else { 1 }, "{case}");
        world.controller.memories.clear();
        world.remove(&format!("{PODS}/a"));
        world.ends("b", 0);
        world.settle().await;
        let status = world.status();
        assert_eq!((&status["phase"], &status["succeeded"]), (&json!("Succeeded"), &json!(2)), "{case}");
        assert_eq!(world.pod_writes().len(), 2, "{case}: no further Pod gets the containers");
    }
}

#[tokio::test]
async fn a_status_waits_for_its_note_unless_that_is_forbidden() {
    for (code, written) in [(500, false), (409, false), (429, false), (403, true), (422, true)] {
        let world = World::new();
        for name in ["a", "b"] {
            world.pod(name, json!({}));
        }
        world.job(json!({"parallelism": 2}));
        world.settle().await;
        world.ends("a", 0);
        lock(&world.notes).push(code);
        assert_eq!(world.look().await.is_ok(), code == 409, "{code}");
        assert_eq!(world.status()["succeeded"] == 1, written, "{code}");
        world.settle().await;
        assert_eq!(world.status()["succeeded"], 1, "{code}");
        let job = lock(&world.server).objects[&format!("{JOBS}/j")].clone();
        assert!(job["metadata"]["annotations"]["kruise.rs/counted-pods"].is_string(), "{code}");
    }
}

#[tokio::test]
async fn an_event_claims_no_more_than_was_written() {
    let world = World::new();
    world.pod("a", json!({}));
    world.job(json!({}));
    let key = ObjectKey::new("ns", "j");
    let job = world.controller.jobs.get(&key).unwrap().open().unwrap();
    world.controller.memories.enter(&key, job.uid());
    let pods = world.controller.context.pods.list();
    // Nobody takes events here, so each is counted as dropped.
    let events = || world.controller.context.metrics.events_dropped.get();
    for (code, want) in [(404, 0), (409, 0), (200, 1)] {
        if code != 200 {
            lock(&world.server).faults.push_back(Fault::Error(code));
        }
        let (before, mut pass) = (events(), Pass::default());
        world.controller.add(&key, &job, pods.clone(), &mut pass).await;
        assert!(pass.error.is_none(), "{code}");
        assert_eq!(events() - before, want, "{code}");
    }
}

#[tokio::test]
async fn a_pass_that_met_nothing_but_refusals_is_repeated_after_a_pause() {
    let world = World::new();
    for i in 0..30 {
        let name = format!("p{i:02}");
        lock(&world.refused).push(name.clone());
        world.pod(&name, json!({}));
    }
    world.job(json!({"parallelism": 30}));
    assert_eq!(world.look().await.unwrap(), Requeue::After(AFTER_REFUSAL));
    let asked = world.pod_writes().len();
    assert!(asked < 30, "{asked}");
    lock(&world.refused).clear();
    world.look().await.unwrap();
    assert_eq!(world.pod_writes().len(), 30, "those that were not asked; the others wait");
}

#[tokio::test]
async fn only_changes_that_a_job_reads_wake_it() {
    let world = World::new();
    world.job(json!({}));
    world.pod("a", json!({}));
    let pod = |version: &str, change: Value| {
        let mut pod = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "uid-a", "resourceVersion": version, "labels": {"app": "web"}}});
        json_patch::merge(&mut pod, &change);
        Arc::new(serde_json::from_value::<PodView>(pod).unwrap())
    };
    let wakes = |old: &Arc<PodView>, new: &Arc<PodView>| {
        world.controller.pod_changed(&Change::Applied { old: Some(old), new, initial: false });
        let woken = world.controller.queue.begin().is_some();
        if woken {
            world.controller.queue.done::<kube::Error>(ObjectKey::new("ns", "j"), Ok(Requeue::Await));
        }
        woken
    };
    let first = pod("1", json!({}));
    assert!(!wakes(&first, &pod("2", json!({"status": {"podIP": "10.0.0.1"}}))));
    assert!(wakes(&first, &pod("2", json!({"status": {"phase": "Failed"}}))));
    assert!(wakes(&first, &pod("2", json!({"metadata": {"labels": {"app": "other"}}}))));
    assert!(wakes(&first, &pod("2", json!({"spec": {"nodeName": "n1"}}))), "it can get the containers now");
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "x"}]}});
    assert!(wakes(&first, &pod("2", debug)), "it may have taken the name");
    let other = pod("1", json!({"metadata": {"namespace": "elsewhere"}}));
    assert!(!wakes(&other, &pod("2", json!({"metadata": {"namespace": "elsewhere"}, "status": {"phase": "Failed"}}))));
}

#[tokio::test]
async fn pods_of_other_namespaces_are_left_alone_and_of_many_pods_news_wait_a_little() {
    let world = World::new();
    let theirs = json!({"metadata": {"name": "a", "namespace": "elsewhere", "uid": "x", "labels": {"app": "web"}}});
    world.controller.context.pods.upsert(serde_json::from_value(theirs).unwrap());
    world.pod("b", json!({}));
    world.job(json!({}));
    world.settle().await;
    assert_eq!(world.pod_writes(), ["b/ephemeralcontainers"]);
    let key = ObjectKey::new("ns", "j");
    let looked_at = world.controller.memories.with(&key, |memory| std::mem::replace(&mut memory.pods, 1000));
    assert_eq!(looked_at, Some(1));
    let pod = world.controller.context.pods.get(&ObjectKey::new("ns", "b")).unwrap();
    world.controller.pod_changed(&Change::Deleted(&pod));
    assert_eq!(world.controller.queue.begin(), None, "a tenth of a second for a thousand Pods");
}

/// How the containers of Pods have ended, by UID; true: well.
type Ends = std::collections::BTreeMap<String, bool>;

/// One random thing that users, kubelets or API servers do. Gives whether a manager was lost.
async fn happen(world: &World, random: &mut Random, ends: &mut Ends, made: &mut usize) -> bool {
    let pods = lock(&world.server).of(&format!("{PODS}/"));
    let any = (!pods.is_empty()).then(|| pods[random.below(pods.len())].clone());
    match (random.below(9), any) {
        (0 | 1, _) if *made < 12 => {
            *made += 1;
            world.pod(&format!("p{made}"), json!({"metadata": {"uid": format!("uid-{made}")}}));
        }
        (2, Some((path, _))) => world.remove(&path),
        (3..=5, Some((path, pod))) => kubelet(world, &path, &pod, random, ends),
        (6, _) => {
            let mut server = lock(&world.server);
            server.fail(random);
        }
        (7, _) => {
            let spec = json!({"spec": {"paused": random.below(2) == 0, "parallelism": 1 + random.below(3)}});
            world.change(&format!("{JOBS}/j"), &spec);
        }
        (8, _) if random.below(3) == 0 => {
            world.controller.memories.clear();
            return true;
        }
        _ => tokio::time::advance(Duration::from_secs(15)).await,
    }
    false
}

/// kubelet gets further with the container of a job: it starts, runs, ends.
fn kubelet(world: &World, path: &str, pod: &Value, random: &mut Random, ends: &mut Ends) {
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    if pod["spec"]["ephemeralContainers"].is_null() || ends.contains_key(&uid) {
        return;
    }
    let state = match random.below(3) {
        0 => json!({"waiting": {"reason": "ContainerCreating"}}),
        1 => json!({"running": {}}),
        _ => {
            let code = random.below(2);
            ends.insert(uid, code == 0);
            json!({"terminated": {"exitCode": code}})
        }
    };
    let statuses = json!([{"name": "look", "state": state}]);
    world.change(path, &json!({"status": {"ephemeralContainerStatuses": statuses}}));
}

/// What must hold whatever happens.
fn check(world: &World, ends: &Ends, seed: u64) {
    let pods = lock(&world.server).of(&format!("{PODS}/"));
    let mut busy = 0;
    for (path, pod) in &pods {
        let added = pod["spec"]["ephemeralContainers"].as_array().map_or(0, Vec::len);
        assert!(added <= 1, "seed {seed}: {path} has {added}");
        busy += usize::from(added == 1 && !ends.contains_key(pod["metadata"]["uid"].as_str().unwrap()));
    }
    assert!(busy <= 3, "seed {seed}: {busy} Pods at a time");
    let status = world.status();
    for (field, well) in [("succeeded", true), ("failed", false)] {
        let truth = ends.values().filter(|end| **end == well).count() as u64;
        assert!(status[field].as_u64().unwrap_or_default() <= truth, "seed {seed}: {field} of {truth}: {status}");
    }
}

/// Whatever happens, a job ends with exact counts, and each Pod has got one container.
/// At last it is stored in a form that cannot be read, and deleted. OpenKruise's finalizer holds it for a while at most.
async fn unreadable_at_last(world: &World, random: &mut Random, seed: u64) {
    let path = format!("{JOBS}/j");
    let metadata =
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [labels::EPHEMERAL_JOB_FINALIZER]});
    world.change(&path, &json!({"metadata": metadata, "spec": {"selector": 7}}));
    lock(&world.server).fail(random);
    for _ in 0..10 {
        let _ = world.look().await;
    }
    assert!(!lock(&world.server).objects.contains_key(&path), "seed {seed}: its finalizer holds it");
    assert!(world.controller.unreadable.is_empty(), "seed {seed}: it is looked for although it is gone");
}

async fn history(seed: u64) -> Acts {
    let (mut random, mut ends, mut made) = (Random(seed), Ends::new(), 0);
    let world = World::new();
    world.job(json!({"parallelism": 1}));
    let mut managers_lost = 0;
    for _ in 0..60 {
        managers_lost += u64::from(happen(&world, &mut random, &mut ends, &mut made).await);
        let _ = world.look().await;
        check(&world, &ends, seed);
    }
    // From here on everybody works, so the job ends.
    lock(&world.server).faults.clear();
    world.pod("last", json!({"metadata": {"uid": "uid-last"}}));
    for _ in 0..200 {
        world.change(&format!("{JOBS}/j"), &json!({"spec": {"paused": false, "parallelism": 3}}));
        let _ = world.look().await;
        check(&world, &ends, seed);
        if !world.status()["completionTime"].is_null() {
            break;
        }
        let pods = lock(&world.server).of(&format!("{PODS}/"));
        for (path, pod) in pods {
            kubelet(&world, &path, &pod, &mut random, &mut ends);
        }
        tokio::time::advance(Duration::from_secs(20)).await;
    }
    let status = world.status();
    assert!(status["completionTime"].is_string(), "seed {seed}: {status}");
    let counted = ["succeeded", "failed"].map(|field| status[field].as_u64().unwrap());
    let of_match = counted[0] + counted[1];
    assert_eq!(status["match"], of_match, "seed {seed}: {status}");
    let phase = if counted[1] > 0 { "Failed" } else { "Succeeded" };
    assert_eq!(status["phase"], phase, "seed {seed}: {status}");
    if managers_lost == 0 {
        let truth = [true, false].map(|well| ends.values().filter(|end| **end == well).count() as u64);
        assert_eq!(counted, truth, "seed {seed}: {status}");
    }
    unreadable_at_last(&world, &mut random, seed).await;
    let mut acts = lock(&world.server).acts.clone();
    acts.add("managers that were lost", managers_lost);
    acts.add("Pods that succeeded", counted[0]);
    acts.add("Pods that failed", counted[1]);
    acts
}

#[test]
fn simulation_of_ephemeral_jobs() {
    let acts = liveness::seeds(150, "simulation_of_ephemeral_jobs", |seed| Ok(in_paused_time(seed, history(seed))));
    acts.require(&[
        ("refused writes", 50),
        ("lost answers", 10),
        ("managers that were lost", 50),
        // What came of it.
        ("Pods that succeeded", 50),
        ("Pods that failed", 50),
    ]);
}
