//! The controller against an API server in memory that keeps one Pod and its requests.

use std::sync::Mutex;

use axum::http::{Method, request::Parts};
use serde_json::Value;

use super::*;
use crate::{
    controllers::{fake::in_paused_time, in_memory},
    liveness::{self, Acts, Random},
    runtime::lock,
};

const POD: &str = "/api/v1/namespaces/ns/pods/p";
const REQUESTS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/containerrecreaterequests";

#[derive(Default)]
struct Played {
    pod: Value,
    requests: Vec<Value>,
    writes: Vec<(String, Value)>,
    refuse: u16,
    refused: u64,
    version: u64,
}

impl Played {
    fn answer(&mut self, parts: &Parts, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let path = parts.uri.path();
        let refused = |code: u16| (code, json!({"kind": "Status", "code": code, "message": "not here"}));
        if parts.method != Method::GET {
            self.writes.push((format!("{} {path}", parts.method), body.clone()));
            if self.refuse != 0 {
                self.refused += 1;
                return refused(self.refuse);
            }
        }
        self.version += 1;
        match (&parts.method, path.strip_prefix(REQUESTS)) {
            (&Method::POST, Some("")) => {
                if self.requests.iter().any(|there| there["metadata"]["name"] == body["metadata"]["name"]) {
                    return refused(409);
                }
                let mut made = body;
                made["metadata"]["uid"] = format!("r{}", self.version).into();
                made["metadata"]["resourceVersion"] = self.version.to_string().into();
                self.requests.push(made.clone());
                (201, made)
            }
            (&Method::GET, Some(name)) => {
                let found =
                    self.requests.iter().find(|there| there["metadata"]["name"] == name.trim_start_matches('/'));
                found.map_or_else(|| refused(404), |found| (200, found.clone()))
            }
            (&Method::GET, None) => (200, self.pod.clone()),
            (&Method::PATCH, None) => {
                assert_eq!(body["metadata"]["uid"], "u1");
                let seen = &body["metadata"]["resourceVersion"];
                if !seen.is_null() && *seen != self.pod["metadata"]["resourceVersion"] {
                    return refused(409);
                }
                super::super::fake::strategic(&mut self.pod, &body);
                self.pod["metadata"]["resourceVersion"] = self.version.to_string().into();
                (200, self.pod.clone())
            }
            other => panic!("{other:?} {path}"),
        }
    }
}

struct World {
    played: Arc<Mutex<Played>>,
    controller: Controller,
}

impl World {
    fn new(policy: &str, env: &[&str]) -> Self {
        Self::with_hooks(policy, env, json!(null))
    }

    fn with_hooks(policy: &str, env: &[&str], hooks: Value) -> Self {
        let env: Vec<Value> = env.iter().map(|name| json!({"name": name, "value": "true"})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "restartPolicy": policy,
                "containers": [{"name": "main", "image": "m:1"}, {"name": "proxy", "image": "p:1", "env": env, "lifecycle": hooks}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": 0}}}, {"name": "proxy", "state": {"running": {}}}]}});
        let played = Arc::new(Mutex::new(Played { pod: pod.clone(), version: 1, ..Played::default() }));
        let context = in_memory::context({
            let played = played.clone();
            move |parts, body| lock(&played).answer(parts, body)
        });
        let world = Self { played, controller: Controller::new(&context) };
        world.see(pod);
        world
    }

    fn see(&self, pod: Value) {
        self.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }

    async fn look(&self) -> kube::Result<Requeue> {
        self.controller.reconcile(&ObjectKey::new("ns", "p")).await
    }

    fn writes(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut lock(&self.played).writes)
    }
}

const SWITCH: &str = labels::ENV_TERMINATE_SIDECAR;

#[tokio::test]
async fn sw_b3_a_sidecar_whose_exit_code_counts_gets_one_request() {
    let world = World::new("Never", &[SWITCH]);
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    let writes = world.writes();
    assert_eq!(writes.len(), 1);
    let (call, made) = &writes[0];
    assert_eq!(call, &format!("POST {REQUESTS}"));
    assert_eq!(made["metadata"]["name"], "sidecar-termination-u1");
    assert_eq!(
        made["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}])
    );
    let spec = json!({"podName": "p", "containers": [{"name": "proxy"}], "ttlSecondsAfterFinished": 600,
        "strategy": {"forceRecreate": true, "failurePolicy": "Ignore"}});
    assert_eq!(made["spec"], spec);
}

#[test]
fn the_event_about_a_request_has_the_words_of_openkruise() {
    let said = stopping(&["proxy".to_owned(), "logs".to_owned()]);
    assert_eq!(said, "Kruise SidecarTerminator is trying to terminate sidecar [proxy logs] using crr");
}

#[tokio::test]
async fn sw_b5_an_ignored_exit_code_ends_the_pod_by_one_write_of_its_phase() {
    let both = [SWITCH, labels::ENV_IGNORE_EXIT_CODE];
    let world = World::with_hooks("Never", &both, json!({"preStop": {"exec": {}}}));
    world.look().await.unwrap();
    let writes = world.writes();
    assert_eq!((writes.len(), writes[0].0.as_str()), (1, &*format!("PATCH {POD}/status")));
    let (patch, condition) = (&writes[0].1, &writes[0].1["status"]["conditions"][0]);
    assert_eq!((&patch["status"]["phase"], &patch["metadata"]["resourceVersion"]), (&json!("Succeeded"), &json!("1")));
    assert_eq!((&condition["type"], &condition["status"]), (&json!("SidecarTerminated"), &json!("True")));
    assert_eq!(condition["message"], "Terminated by Sidecar Terminator");
    assert_eq!(condition["reason"], Value::Null);
    // kubelet stops it: nothing is written meanwhile.
    assert!(matches!(world.look().await.unwrap(), Requeue::After(left) if left > Duration::from_secs(50)));
    assert!(world.writes().is_empty());
    assert!(lock(&world.played).requests.is_empty(), "preStop would run twice");

    let world = World::new("Never", &both);
    world.look().await.unwrap();
    world.look().await.unwrap();
    let calls: Vec<String> = world.writes().into_iter().map(|(call, _)| call).collect();
    assert_eq!(calls, [format!("PATCH {POD}/status"), format!("POST {REQUESTS}")], "nothing would run twice");
}

#[tokio::test]
async fn a_request_of_openkruise_for_the_pod_is_waited_for_and_then_followed_by_one_of_ours() {
    let world = World::new("Never", &[SWITCH]);
    let theirs = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "sidecar-termination-u1", "namespace": "ns", "uid": "x", "resourceVersion": "5",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]},
        "spec": {"podName": "p", "containers": [{"name": "proxy"}]}, "status": {"phase": "Recreating"}});
    lock(&world.played).requests.push(theirs);
    assert_eq!(world.look().await.unwrap(), Requeue::After(AGAIN));
    lock(&world.played).requests[0]["status"] = json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z"});
    assert_eq!(world.look().await.unwrap(), Requeue::After(AFTER_CONFLICT));
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(lock(&world.played).requests[1]["metadata"]["name"], "sidecar-termination-u1-2");
}

#[tokio::test]
async fn requests_of_another_namespace_or_of_another_kind_of_owner_keep_no_sidecar_running() {
    for (namespace, version) in [("elsewhere", "v1"), ("ns", "example.com/v1")] {
        let world = World::new("Never", &[SWITCH]);
        let theirs = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "other", "namespace": namespace, "uid": "x", "resourceVersion": "5",
                "labels": {labels::SIDECAR_TERMINATION: "u1"},
                "ownerReferences": [{"apiVersion": version, "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]},
            "spec": {"podName": "p", "containers": [{"name": "proxy"}]}, "status": {"phase": "Recreating"}});
        world.controller.requests.upsert(serde_json::from_value(theirs).unwrap());
        world.look().await.unwrap();
        let writes = world.writes();
        assert_eq!(writes.len(), 1, "{namespace} {version}");
        assert_eq!(writes[0].0, format!("POST {REQUESTS}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_a_request_of_a_user_runs_is_awaited_before_the_pod_ends() {
    let request = |namespace: &str, version: u32, state: Value| {
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "users", "namespace": namespace, "uid": "x", "resourceVersion": version.to_string(),
                "labels": {labels::CRR_ACTIVE: "true", labels::CRR_POD_UID: "u1"}},
            "spec": {"podName": "p", "containers": [{"name": "proxy"}],
                "strategy": {"terminationGracePeriodSeconds": 20}},
            "status": {"phase": "Recreating", "containerRecreateStates": [state]}})
    };
    let begun = "2026-01-01T00:00:00Z";
    let hook = json!({"name": "proxy", "phase": "Recreating", "killStartedAt": begun, "hookStartedAt": begun});
    let mut killed = hook.clone();
    killed["isKilled"] = true.into();
    let see = |world: &World, request: Value| {
        let request: ContainerRecreateRequest = serde_json::from_value(request).unwrap();
        world.controller.active.upsert(request);
    };
    let waits = |looked: Requeue| matches!(looked, Requeue::After(left) if left > AFTER_CONFLICT);
    for comes_to_an_end in [true, false] {
        let world = World::new("Never", &[SWITCH, labels::ENV_IGNORE_EXIT_CODE]);
        see(&world, request("ns", 5, hook.clone()));
        assert!(waits(world.look().await.unwrap()));
        tokio::time::advance(Duration::from_secs(49)).await;
        assert!(waits(world.look().await.unwrap()));
        assert!(world.writes().is_empty());
        match comes_to_an_end {
            true => see(&world, request("ns", 6, killed.clone())),
            false => tokio::time::advance(Duration::from_secs(1)).await,
        }
        world.look().await.unwrap();
        assert_eq!(world.writes()[0].0, format!("PATCH {POD}/status"), "{comes_to_an_end}");
    }

    let world = World::new("Never", &[SWITCH, labels::ENV_IGNORE_EXIT_CODE]);
    see(&world, request("ns", 5, hook.clone()));
    assert!(waits(world.look().await.unwrap()));
    tokio::time::advance(Duration::from_secs(40)).await;
    let mut next = hook.clone();
    next["hookStartedAt"] = "2026-01-01T00:00:41Z".into();
    see(&world, request("ns", 6, next));
    assert!(waits(world.look().await.unwrap()));
    tokio::time::advance(Duration::from_secs(40)).await;
    assert!(waits(world.look().await.unwrap()), "each hook has its own time");
    assert!(world.writes().is_empty());
    tokio::time::advance(Duration::from_secs(10)).await;
    world.look().await.unwrap();
    assert_eq!(world.writes().len(), 1);

    let world = World::new("Never", &[SWITCH, labels::ENV_IGNORE_EXIT_CODE]);
    see(&world, request("elsewhere", 5, hook));
    world.look().await.unwrap();
    assert_eq!(world.writes()[0].0, format!("PATCH {POD}/status"), "anybody may write the UID of the Pod");
}

#[tokio::test]
async fn sw_b1_e29_without_the_node_the_request_is_made_all_the_same() {
    let world = World::new("Never", &[SWITCH]);
    assert!(world.controller.context.nodes.get("n").is_none());
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(world.writes()[0].0, format!("POST {REQUESTS}"));
}

#[tokio::test]
async fn sw_b2_on_a_virtual_node_the_image_of_the_sidecar_is_swapped() {
    let world = World::new("Never", &[SWITCH]);
    let node =
        json!({"metadata": {"name": "n", "uid": "n", "resourceVersion": "1", "labels": {"type": "virtual-kubelet"}}});
    world.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
    let mut pod = lock(&world.played).pod.clone();
    pod["spec"]["containers"][1]["env"] =
        json!([{"name": labels::ENV_TERMINATE_SIDECAR_WITH_IMAGE, "value": "exit:1"}]);
    pod["metadata"]["resourceVersion"] = "2".into();
    lock(&world.played).pod = pod.clone();
    lock(&world.played).version = 2;
    world.see(pod);
    world.look().await.unwrap();
    world.look().await.unwrap();
    let writes = world.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(
        (writes[0].0.as_str(), &writes[0].1["spec"]),
        (&*format!("PATCH {POD}"), &json!({"containers": [{"name": "proxy", "image": "exit:1"}]}))
    );
}

#[tokio::test]
async fn a_refusal_is_tried_again_and_pods_of_our_own_namespace_are_left_alone() {
    let world = World::new("Never", &[SWITCH]);
    lock(&world.played).refuse = 403;
    assert!(world.look().await.is_err());
    lock(&world.played).refuse = 0;
    assert!(world.look().await.is_ok());
    let mut own = World::new("Never", &[SWITCH]);
    own.controller.context.namespace = "ns".into();
    assert_eq!(own.look().await.unwrap(), Requeue::Await);
    assert!(own.writes().is_empty());
}

#[test]
fn a_pod_is_looked_at_when_its_main_containers_have_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let world = World::new("Never", &[SWITCH]);
    let due = world.controller.context.pods.list().remove(0);
    world.controller.pod_changed(&Change::Applied { old: None, new: &due, initial: true });
    assert_eq!(world.controller.queue.begin(), Some(ObjectKey::new("ns", "p")));
    let mut early = PodView::clone(&due);
    early.phase = "Pending".into();
    let other = Arc::new(early);
    let queue = &world.controller.queue;
    queue.done::<kube::Error>(ObjectKey::new("ns", "p"), Ok(Requeue::Await));
    world.controller.pod_changed(&Change::Applied { old: None, new: &other, initial: false });
    assert_eq!(queue.begin(), None);
}

impl World {
    /// The manager was started anew: nothing is remembered, and everything is seen.
    fn restart(&mut self) {
        let context = self.controller.context.clone();
        self.controller = Controller::new(&context);
        self.deliver();
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        let (pod, requests) = {
            let played = lock(&self.played);
            (played.pod.clone(), played.requests.clone())
        };
        self.see(pod);
        for request in requests {
            self.controller.requests.upsert(serde_json::from_value(request).unwrap());
        }
    }

    /// Something changes what is there.
    fn play(&self, change: impl FnOnce(&mut Played)) {
        let mut played = lock(&self.played);
        let before = (played.pod.clone(), played.requests.clone());
        change(&mut played);
        played.version += 1;
        let version: Value = played.version.to_string().into();
        if played.pod != before.0 {
            played.pod["metadata"]["resourceVersion"] = version.clone();
        }
        for (request, before) in played.requests.iter_mut().zip(before.1) {
            if *request != before {
                request["metadata"]["resourceVersion"] = version.clone();
            }
        }
    }

    fn pod(&self) -> Value {
        lock(&self.played).pod.clone()
    }
}

/// How the containers of a history behave.
struct Script {
    policy: &'static str,
    /// The exit code of the main container in the end.
    main: i64,
    /// That of the sidecar when it is stopped.
    proxy: i64,
    /// Things still go wrong.
    is_rough: bool,
}

fn exit_code(pod: &Value, container: usize) -> Option<i64> {
    pod["status"]["containerStatuses"][container]["state"]["terminated"]["exitCode"].as_i64()
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap())
}

/// The main container has ended for good.
fn main_is_over(pod: &Value, script: &Script) -> bool {
    exit_code(pod, 0).is_some_and(|code| code == 0 || script.policy == "Never")
}

/// kubelet runs containers, starts them again, and ends a Pod that is over.
fn kubelet(pod: &mut Value, script: &Script, random: &mut Random) {
    let terminated = |code: i64| json!({"terminated": {"exitCode": code}});
    for container in 0..2 {
        let state = match exit_code(pod, container) {
            None if is_over(pod) => random.chance(50).then(|| terminated(script.proxy)),
            None if container == 0 => random.chance(20).then(|| {
                let fails = script.is_rough && random.chance(30);
                terminated(if fails && script.policy == "OnFailure" { 1 } else { script.main })
            }),
            None => (script.is_rough && random.chance(5)).then(|| terminated(1)),
            Some(code) if code != 0 && script.policy == "OnFailure" && !is_over(pod) => {
                random.chance(50).then(|| json!({"running": {}}))
            }
            Some(_) => None,
        };
        if let Some(state) = state {
            pod["status"]["containerStatuses"][container]["state"] = state;
        }
    }
    let codes = [exit_code(pod, 0), exit_code(pod, 1)];
    let has_ended = |code: &Option<i64>| code.is_some_and(|code| code == 0 || script.policy == "Never");
    if !is_over(pod) && codes.iter().all(has_ended) {
        let phase = if codes == [Some(0), Some(0)] { "Succeeded" } else { "Failed" };
        pod["status"]["phase"] = phase.into();
    }
}

/// The daemon carries requests out, step by step.
fn daemon(played: &mut Played, script: &Script, random: &mut Random) {
    let is_open = |request: &&mut Value| request["status"]["phase"] != "Completed";
    let Some(request) = played.requests.iter_mut().find(is_open) else { return };
    let begun = "2026-01-01T00:00:00Z";
    if request["status"].is_null() {
        request["status"] = json!({"phase": "Recreating",
            "containerRecreateStates": [{"name": "proxy", "phase": "Recreating", "killStartedAt": begun}]});
        return;
    }
    let helps = !(script.is_rough && random.chance(30));
    if helps && exit_code(&played.pod, 1).is_none() {
        played.pod["status"]["containerStatuses"][1]["state"] = json!({"terminated": {"exitCode": script.proxy}});
    }
    let now = rfc3339(clock::now().wall);
    request["status"] = json!({"phase": "Completed", "completionTime": now, "containerRecreateStates": [
        {"name": "proxy", "phase": if helps { "Succeeded" } else { "Failed" }, "killStartedAt": begun, "isKilled": helps}]});
}

/// kubelet, daemon and API server do what they want and when they want, writes are refused, the manager is started anew.
/// Every Pod ends, and nothing is written before its main container has ended.
async fn history(seed: u64) -> Acts {
    let (mut random, mut acts) = (Random(seed), Acts::default());
    let policy = ["Never", "OnFailure"][random.below(2)];
    let main = if policy == "Never" && random.chance(50) { 3 } else { 0 };
    let proxy = if random.chance(50) { 143 } else { 0 };
    let ignores = random.chance(50);
    let env: &[&str] = if ignores { &[SWITCH, labels::ENV_IGNORE_EXIT_CODE] } else { &[SWITCH] };
    let mut script = Script { policy, main, proxy, is_rough: true };
    let mut world = World::new(policy, env);
    world.play(|played| played.pod["status"]["containerStatuses"][0]["state"] = json!({"running": {}}));
    world.deliver();
    for round in 0..600 {
        script.is_rough = round < 40;
        lock(&world.played).refuse = 0;
        match random.below(8) {
            0 if script.is_rough => {
                world.restart();
                acts.note("managers that started anew");
            }
            1 if script.is_rough => lock(&world.played).refuse = [403, 409, 500][random.below(3)],
            _ => {}
        }
        let early = !main_is_over(&world.pod(), &script);
        let _ = world.look().await;
        let writes = world.writes();
        assert!(!early || writes.is_empty(), "seed {seed}, round {round}: {writes:?}");
        let open = lock(&world.played).requests.iter().filter(|r| r["status"]["phase"] != "Completed").count();
        assert!(open <= 1, "seed {seed}, round {round}: {open} requests at once");
        let pod = world.pod();
        if is_over(&pod) && (0..2).all(|container| exit_code(&pod, container).is_some()) {
            break;
        }
        world.play(|played| kubelet(&mut played.pod, &script, &mut random));
        if random.chance(50) {
            world.play(|played| daemon(played, &script, &mut random));
        }
        // Watches are late now and then.
        if !script.is_rough || random.chance(70) {
            world.deliver();
        }
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    let pod = world.pod();
    assert!(is_over(&pod) && exit_code(&pod, 1).is_some(), "seed {seed}: {}", pod["status"]);
    // What the main container has done counts, whatever an ignored exit code says.
    let by_us = pod["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty());
    if by_us {
        let want = if exit_code(&pod, 0) == Some(0) { "Succeeded" } else { "Failed" };
        assert_eq!(pod["status"]["phase"], want, "seed {seed}: {}", pod["status"]);
        acts.note("Pods that were ended");
    }
    let played = lock(&world.played);
    acts.add("refused writes", played.refused);
    acts.add("requests", played.requests.len() as u64);
    acts
}

#[test]
fn simulation_of_sidecar_termination() {
    let acts =
        liveness::seeds(200, "simulation_of_sidecar_termination", |seed| Ok(in_paused_time(seed, history(seed))));
    acts.require(&[
        ("managers that started anew", 30),
        ("refused writes", 5),
        // What came of it.
        ("requests", 20),
        ("Pods that were ended", 20),
    ]);
}
