//! Decisions of several replicas against one API server in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::http::{Method, Request, Response};
use futures::future::join_all;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::k8s::pointer::patched;

mod added;
mod ahead;

const SPREAD: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/workloadspreads/ws";

/// Objects by path; the one WorkloadSpread has a version that grows with each write.
#[derive(Default)]
struct Server {
    objects: Mutex<BTreeMap<String, Value>>,
    writes: AtomicUsize,
    conflicts: AtomicUsize,
    /// Writes bound to a version are answered with 500.
    refuses_bound: AtomicBool,
    /// Writes are carried out and answered with 500.
    loses_answers: AtomicBool,
    /// Writes are refused.
    refuses: AtomicBool,
    /// Reads of the WorkloadSpread.
    rereads: AtomicUsize,
    events: Mutex<Vec<String>>,
}

fn failure(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "" };
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": format!("code {code}")}),
    )
}

impl Server {
    fn new(spec: Value) -> Arc<Self> {
        let server = Arc::new(Self::default());
        let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "WorkloadSpread",
            "metadata": {"name": "ws", "namespace": "ns", "uid": "w", "generation": 1, "resourceVersion": "1"},
            "spec": {"targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}},
            "status": {"observedGeneration": 1}});
        json_patch::merge(&mut object["spec"], &spec);
        server.put(SPREAD, object);
        server
    }

    fn put(&self, path: &str, object: Value) {
        lock(&self.objects).insert(path.to_owned(), object);
    }

    fn spread(&self) -> WorkloadSpread {
        serde_json::from_value(lock(&self.objects)[SPREAD].clone()).unwrap()
    }

    /// A replica that knows the object as it is now, and whose watch brings nothing more.
    fn replica(self: &Arc<Self>) -> Arc<Spreads> {
        self.replica_with(&FeatureGates::default())
    }

    fn replica_with(self: &Arc<Self>, gates: &FeatureGates) -> Arc<Spreads> {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                // Others get their turn before and after.
                tokio::task::yield_now().await;
                let (code, answer) = server.answer(&parts.method, parts.uri.path(), &body);
                tokio::task::yield_now().await;
                let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        let client = Client::new(service, "default");
        let (events, send) = Recorder::new(client.clone(), "test", "", Counter::default());
        tokio::spawn(send);
        let spreads = Spreads::new(client, gates, "kruise-system".into(), events);
        spreads.know(&[json!(self.spread())]);
        spreads
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut objects = lock(&self.objects);
        if *method == Method::POST && path.ends_with("/events") {
            lock(&self.events).push(body["reason"].as_str().unwrap().to_owned());
            return (201, body);
        }
        if *method == Method::PATCH && path == format!("{SPREAD}/status") {
            let Some(object) = objects.get_mut(SPREAD) else { return failure(404) };
            if self.refuses.load(Ordering::SeqCst) {
                return failure(403);
            }
            let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            if body.is_array() {
                // A JSON patch is for whatever is stored.
                if !patched(object, &body) {
                    return failure(422);
                }
            } else if self.refuses_bound.load(Ordering::SeqCst) {
                return failure(500);
            } else if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                self.conflicts.fetch_add(1, Ordering::SeqCst);
                return failure(409);
            } else {
                json_patch::merge(object, &json!({"status": body["status"]}));
            }
            object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
            self.writes.fetch_add(1, Ordering::SeqCst);
            if self.loses_answers.load(Ordering::SeqCst) {
                return failure(500);
            }
            return (200, object.clone());
        }
        assert_eq!(*method, Method::GET, "{path}");
        if path == SPREAD {
            self.rereads.fetch_add(1, Ordering::SeqCst);
        }
        match objects.get(path) {
            Some(Value::Number(code)) => failure(code.as_u64().unwrap().try_into().unwrap()),
            Some(object) => (200, object.clone()),
            None => failure(404),
        }
    }

    /// Pods on record, by subset.
    fn recorded(&self) -> BTreeMap<String, usize> {
        let status = self.spread().status.unwrap_or_default();
        let all = status.versioned_subset_statuses.into_values().flatten();
        all.map(|subset| (subset.name, subset.creating_pods.len())).collect()
    }
}

fn subsets(limits: &[(&str, Value)]) -> Value {
    json!({"subsets": limits.iter().map(|(name, max)| json!({"name": name, "maxReplicas": max})).collect::<Vec<_>>()})
}

fn owner(api_version: &str, kind: &str, name: &str) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true}])
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": owner("apps.kruise.io/v1alpha1", "CloneSet", "web")}, "spec": {"containers": []}})
}

/// The subset in the note of a Pod.
fn subset_of(placed: &Placed) -> String {
    let note = placed
        .pod
        .as_ref()
        .and_then(|pod| pod["metadata"]["annotations"]["apps.kruise.io/matched-workloadspread"].as_str());
    let note: Value = note.map(|note| serde_json::from_str(note).unwrap()).unwrap_or_default();
    note["subset"].as_str().unwrap_or("none").to_owned()
}

async fn place(spreads: &Arc<Spreads>, pod: Value) -> Placed {
    spreads.place("ns", &pod).await
}

fn clone_set(replicas: i32) -> Value {
    json!({"metadata": {"name": "web", "namespace": "ns", "uid": "t"}, "spec": {"replicas": replicas}})
}

const CLONE_SET: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web";

#[tokio::test(start_paused = true)]
async fn fifty_creations_at_once_in_three_replicas_pass_no_limit_and_are_written_together() {
    for limits in [[json!(7), json!(11), Value::Null], [json!("14%"), json!("22%"), Value::Null]] {
        let [a, b, c] = limits;
        let server = Server::new(subsets(&[("a", a), ("b", b), ("c", c)]));
        server.put(CLONE_SET, clone_set(50));
        let replicas = [server.replica(), server.replica(), server.replica()];
        let placed = join_all((0..50).map(|i| place(&replicas[i % 3], pod(&format!("web-{i}"))))).await;
        let mut by_subset: BTreeMap<String, usize> = BTreeMap::new();
        for placed in &placed {
            assert_eq!(placed.warning, None);
            *by_subset.entry(subset_of(placed)).or_default() += 1;
        }
        let wanted = BTreeMap::from([("a".to_owned(), 7), ("b".to_owned(), 11), ("c".to_owned(), 32)]);
        assert_eq!(by_subset, wanted);
        assert_eq!(server.recorded(), BTreeMap::from([("a".into(), 7), ("b".into(), 11), ("c".into(), 0)]));
        let writes = server.writes.load(Ordering::SeqCst);
        assert!(writes <= 18, "{writes} writes for 18 Pods that are counted");
    }
}

#[tokio::test(start_paused = true)]
async fn creations_in_one_replica_that_come_together_cost_two_writes() {
    let server = Server::new(subsets(&[("a", json!(100)), ("b", Value::Null)]));
    let spreads = server.replica();
    join_all((0..50).map(|i| place(&spreads, pod(&format!("web-{i}"))))).await;
    // Some of the places for the next Pods are kept for a moment.
    assert_eq!((server.writes.load(Ordering::SeqCst), server.recorded()["a"]), (2, 50 + 50 / 3));
}

#[tokio::test(start_paused = true)]
async fn c6_a_pod_in_a_subset_without_a_limit_costs_no_write() {
    let server = Server::new(subsets(&[("only", Value::Null)]));
    let placed = place(&server.replica(), pod("web-1")).await;
    assert_eq!(subset_of(&placed), "only");
    let beyond = Server::new(subsets(&[("a", json!(0)), ("rest", Value::Null)]));
    assert_eq!(subset_of(&place(&beyond.replica(), pod("web-1")).await), "rest");
    assert_eq!(server.writes.load(Ordering::SeqCst) + beyond.writes.load(Ordering::SeqCst), 0);
}

/// Admission comes before validation.
#[tokio::test(start_paused = true)]
async fn a_label_or_a_name_that_no_pod_can_have_is_not_recorded() {
    let target = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"});
    let mut spec = subsets(&[("a", json!(100)), ("b", Value::Null)]);
    spec["targetRef"] = target;
    let server = Server::new(spec);
    let spreads = server.replica();
    for (hash, subset) in [("x".repeat(300_000), "none"), ("a/b".to_owned(), "none"), ("5cd64f4889".to_owned(), "a")] {
        let mut pod = pod("web-1");
        pod["metadata"]["ownerReferences"] = owner("apps/v1", "ReplicaSet", "web");
        pod["metadata"]["labels"] = json!({"pod-template-hash": hash});
        assert_eq!(subset_of(&place(&spreads, pod).await), subset);
        assert_eq!(server.writes.load(Ordering::SeqCst), usize::from(subset == "a"));
    }
    for name in ["x".repeat(300_000), "a/b".to_owned()] {
        let mut pod = pod(&name);
        pod["metadata"]["ownerReferences"] = owner("apps/v1", "ReplicaSet", "web");
        pod["metadata"]["labels"] = json!({"pod-template-hash": "5cd64f4889"});
        assert_eq!(subset_of(&place(&spreads, pod).await), "none");
    }
    assert_eq!(server.writes.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn room_that_another_replica_has_seen_come_back_is_found() {
    let server = Server::new(subsets(&[("a", json!(1)), ("b", Value::Null)]));
    let (early, late) = (server.replica(), server.replica());
    assert_eq!(subset_of(&place(&early, pod("web-1")).await), "a");
    assert_eq!(subset_of(&place(&late, pod("web-2")).await), "b", "after a conflict it is decided anew");
    // The manager has seen the Pod, and the Pod is deleted: one replica hears of it.
    let mut object = json!(server.spread());
    object["metadata"]["resourceVersion"] = "10".into();
    object["status"]["versionedSubsetStatuses"] =
        json!({"versionIgnored": [{"name": "a", "replicas": 1, "missingReplicas": 0}]});
    server.put(SPREAD, object.clone());
    early.know(&[object.clone()]);
    late.know(&[object]);
    let note = json!({"apps.kruise.io/matched-workloadspread": "{\"name\":\"ws\",\"subset\":\"a\"}"});
    let mut going = pod("web-1");
    json_patch::merge(&mut going["metadata"], &json!({"namespace": "ns", "uid": "u", "annotations": note}));
    let going: PodView = serde_json::from_value(going).unwrap();
    early.deleted(&going).await;
    assert_eq!(server.spread().status.unwrap().versioned_subset_statuses["versionIgnored"][0].deleting_pods.len(), 1);
    assert_eq!(subset_of(&place(&late, pod("web-3")).await), "a", "what its watch has not brought is read");
    assert_eq!(subset_of(&place(&late, pod("web-4")).await), "b");
    let writes = server.writes.load(Ordering::SeqCst);
    early.deleted(&going).await;
    assert_eq!(server.writes.load(Ordering::SeqCst), writes, "it is on record already");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_recorded_for_a_pod_that_counts_and_no_other() {
    let server = Server::new(subsets(&[("a", json!(2)), ("b", Value::Null)]));
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"] =
        json!({"versionIgnored": [{"name": "a", "replicas": 2, "missingReplicas": 0}]});
    server.put(SPREAD, object);
    let spreads = server.replica();
    let going = |changes: Value, note: &str| -> PodView {
        let mut pod = pod("web-1");
        json_patch::merge(&mut pod["metadata"], &json!({"namespace": "ns", "uid": "u"}));
        json_patch::merge(
            &mut pod["metadata"],
            &json!({"annotations": {"apps.kruise.io/matched-workloadspread": note}}),
        );
        json_patch::merge(&mut pod, &changes);
        serde_json::from_value(pod).unwrap()
    };
    let of = |subset: &str, name: &str| format!("{{\"name\":\"{name}\",\"subset\":\"{subset}\"}}");
    for (changes, note) in [
        (json!({}), of("b", "ws")),
        (json!({}), of("gone", "ws")),
        (json!({}), of("a", "other")),
        (json!({}), "no JSON".to_owned()),
        (json!({"status": {"phase": "Succeeded"}}), of("a", "ws")),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), of("a", "ws")),
        (json!({"metadata": {"ownerReferences": null}}), of("a", "ws")),
    ] {
        spreads.deleted(&going(changes.clone(), &note)).await;
        assert_eq!(server.writes.load(Ordering::SeqCst), 0, "{changes} {note}");
    }
    spreads.deleted(&going(json!({}), &of("a", "ws"))).await;
    assert_eq!(server.writes.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn shortfall_a_percentage_is_of_what_the_workload_wants_when_the_pod_comes() {
    let server = Server::new(subsets(&[("a", json!("50%")), ("b", json!("50%"))]));
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"] = json!({"versionIgnored": [{"name": "a", "replicas": 2, "missingReplicas": 0}, {"name": "b", "replicas": 2, "missingReplicas": 0}]});
    server.put(SPREAD, object);
    // It was scaled from 4 to 6, and the manager has not counted since.
    server.put(CLONE_SET, clone_set(6));
    let spreads = server.replica();
    let mut found = Vec::new();
    for i in 0..3 {
        found.push(subset_of(&place(&spreads, pod(&format!("web-{i}"))).await));
    }
    assert_eq!(found, ["a", "b", "none"]);
}

#[tokio::test(start_paused = true)]
async fn shortfall_a_pod_beyond_all_limits_is_created_and_an_event_says_so() {
    let server = Server::new(subsets(&[("a", json!(0))]));
    let placed = place(&server.replica(), pod("web-1")).await;
    assert_eq!(placed.pod, None);
    assert!(placed.warning.unwrap().contains("WorkloadSpread ws: every subset is full"));
    tokio::time::timeout(Duration::from_secs(5), async {
        while lock(&server.events).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(*lock(&server.events), ["NoSubsetLeft"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_name_gets_a_uid_by_which_it_is_known() {
    let server = Server::new(subsets(&[("a", json!(5)), ("b", Value::Null)]));
    let mut nameless = pod("");
    nameless["metadata"] = json!({"generateName": "web-", "ownerReferences": nameless["metadata"]["ownerReferences"]});
    let placed = place(&server.replica(), nameless).await;
    let note = placed.pod.unwrap()["metadata"]["annotations"]["apps.kruise.io/matched-workloadspread"].clone();
    let note: Value = serde_json::from_str(note.as_str().unwrap()).unwrap();
    let status = server.spread().status.unwrap();
    let key = status.versioned_subset_statuses["versionIgnored"][0].creating_pods.keys().next().unwrap().clone();
    assert_eq!(note["uid"], *key);
    assert_eq!(key.len(), 36);
}

#[tokio::test(start_paused = true)]
async fn the_cost_comes_with_the_pod_where_it_counts() {
    let server = Server::new(subsets(&[("a", json!(1)), ("b", Value::Null)]));
    let spreads = server.replica();
    let cost = |placed: Placed| {
        placed.pod.unwrap()["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone()
    };
    assert_eq!(cost(place(&spreads, pod("web-1")).await), "200");
    assert_eq!(cost(place(&spreads, pod("web-2")).await), "100");
}

/// Also of a small part: where its next Pod comes follows from how many Pods the workload wants.
#[tokio::test(start_paused = true)]
async fn with_percentages_the_cost_comes_with_every_pod_and_no_two_have_the_same() {
    let server = Server::new(subsets(&[("a", json!("1%")), ("b", json!("99%"))]));
    server.put(CLONE_SET, clone_set(400));
    let spreads = server.replica();
    let placed = join_all((0..20).map(|i| {
        let spreads = spreads.clone();
        async move { place(&spreads, pod(&format!("web-{i}"))).await.pod.unwrap() }
    }))
    .await;
    let cost = |pod: &Value| pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone();
    let costs: BTreeSet<i64> = placed.iter().map(|pod| cost(pod).as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(costs.len(), 20, "{costs:?}");
    assert_eq!(costs.first(), Some(&(1_000_000 - 301)), "the fourth Pod of 1% comes when there are 301");
    assert_eq!(lock(&spreads.coming).len(), 1);
}

fn target(api_version: &str, kind: &str) -> Value {
    json!({"targetRef": {"apiVersion": api_version, "kind": kind, "name": "web"},
        "subsets": [{"name": "a", "maxReplicas": 2}, {"name": "b"}]})
}

fn of_set(name: &str) -> Value {
    let mut pod = pod("");
    pod["metadata"] = json!({"generateName": format!("{name}-"), "labels": {"pod-template-hash": "5d4f"},
        "ownerReferences": owner("apps/v1", "ReplicaSet", name)});
    pod
}

const REPLICA_SET: &str = "/apis/apps/v1/namespaces/ns/replicasets/web-5d4f";

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_replica_set_is_one_of_its_deployment() {
    let server = Server::new(target("apps/v1", "Deployment"));
    server.put(REPLICA_SET, json!({"metadata": {"name": "web-5d4f", "uid": "uid-web-5d4f", "ownerReferences": owner("apps/v1", "Deployment", "web")}}));
    let spreads = server.replica();
    assert_eq!(subset_of(&place(&spreads, of_set("web-5d4f")).await), "a");
    assert!(server.spread().status.unwrap().versioned_subset_statuses.contains_key("5d4f"));
    assert_eq!(place(&spreads, of_set("other-77")).await, Placed::default(), "of another Deployment");
    assert_eq!(place(&spreads, pod("of-a-clone-set")).await, Placed::default());
    assert_eq!(place(&spreads, json!({"metadata": {"name": "alone"}, "spec": {}})).await, Placed::default());
    assert_eq!(spreads.place("elsewhere", &of_set("web-5d4f")).await, Placed::default());
}

#[tokio::test(start_paused = true)]
async fn of_two_on_one_chain_of_owners_the_older_has_the_pod() {
    for (created, wanted) in [
        (["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"], "ws"),
        (["2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"], "on-set"),
    ] {
        let server = Server::new(target("apps/v1", "Deployment"));
        server.put(REPLICA_SET, json!({"metadata": {"name": "web-5d4f", "uid": "uid-web-5d4f", "ownerReferences": owner("apps/v1", "Deployment", "web")}}));
        let mut on_deployment = json!(server.spread());
        on_deployment["metadata"]["creationTimestamp"] = created[0].into();
        let mut on_set = on_deployment.clone();
        on_set["spec"] = json!({"targetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f"}, "subsets": [{"name": "a"}]});
        json_patch::merge(
            &mut on_set["metadata"],
            &json!({"name": "on-set", "uid": "o", "creationTimestamp": created[1]}),
        );
        let spreads = server.replica();
        spreads.know(&[on_deployment, on_set]);
        let placed = place(&spreads, of_set("web-5d4f")).await.pod.unwrap();
        let note = placed["metadata"]["annotations"]["apps.kruise.io/matched-workloadspread"].as_str().unwrap();
        assert!(note.starts_with(&format!("{{\"name\":\"{wanted}\"")), "{note}");
    }
}

#[tokio::test(start_paused = true)]
async fn c2_a_pod_whose_owner_cannot_be_read_is_created_and_counted_as_unknown() {
    let server = Server::new(target("apps/v1", "Deployment"));
    server.put(REPLICA_SET, json!(500));
    let spreads = server.replica();
    assert_eq!(place(&spreads, of_set("web-5d4f")).await, Placed::default(), "nobody knows that one is for it");
    assert_eq!(unknown(&spreads), 1);
}

/// New Pods of which nobody knows whether one is for them.
fn unknown(spreads: &Spreads) -> u64 {
    spreads.decisions.get_or_create(&DecisionLabels { result: "unknown" }).get()
}

#[tokio::test(start_paused = true)]
async fn replica_sets_whose_names_are_of_no_such_deployment_are_not_read() {
    let server = Server::new(target("apps/v1", "Deployment"));
    let spreads = server.replica();
    for name in ["other-77", "we-77", "webby-77", "web"] {
        server.put(&format!("/apis/apps/v1/namespaces/ns/replicasets/{name}"), json!(500));
        assert_eq!(place(&spreads, of_set(name)).await, Placed::default());
    }
    assert_eq!(unknown(&spreads), 0);
}

#[tokio::test(start_paused = true)]
async fn the_subset_is_one_of_the_spec_that_was_decided_by() {
    let server = Server::new(subsets(&[("a", json!(1)), ("b", Value::Null)]));
    let late = server.replica();
    let mut object = json!(server.spread());
    object["metadata"]["resourceVersion"] = "7".into();
    object["spec"]["subsets"] =
        json!([{"name": "new", "maxReplicas": 5}, {"name": "a", "maxReplicas": 1}, {"name": "b"}]);
    server.put(SPREAD, object);
    assert_eq!(subset_of(&place(&late, pod("web-1")).await), "new", "its watch has not brought the new spec");
    assert_eq!(server.recorded()["new"], 1);
}

#[tokio::test(start_paused = true)]
async fn before_the_first_list_a_pod_waits_a_moment_and_nobody_says_that_there_is_none() {
    let server = Server::new(subsets(&[("a", json!(1))]));
    let known = server.replica();
    let (events, _) = Recorder::new(known.client.clone(), "test", "", Counter::default());
    let spreads = Spreads::new(known.client.clone(), &FeatureGates::default(), "kruise-system".into(), events);
    let begun = Instant::now();
    assert_eq!(place(&spreads, pod("web-1")).await, Placed::default());
    assert_eq!((begun.elapsed(), unknown(&spreads)), (FIRST_LIST_LOOK, 1));
    assert!(FIRST_LIST_LOOK < LIMIT && FIRST_LOOK < LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_patch_leaves_the_labels_by_which_the_owner_selects_its_pods() {
    let patch = json!({"metadata": {"labels": {"app": "other", "tier": "new"}}});
    let server = Server::new(json!({"subsets": [{"name": "a", "patch": patch}]}));
    let mut labelled = pod("web-1");
    labelled["metadata"]["labels"] = json!({"app": "web", "tier": "old"});
    let labels = |placed: Placed| placed.pod.unwrap()["metadata"]["labels"].clone();
    let spreads = server.replica();
    server.put(CLONE_SET, json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}));
    assert_eq!(labels(place(&spreads, labelled.clone()).await), json!({"app": "web", "tier": "new"}));
    server.put(CLONE_SET, json!(500));
    let unread = json!({"app": "web", "tier": "old"});
    assert_eq!(labels(place(&spreads, labelled).await), unread, "where that is not known all of them stay");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_is_a_warning_and_the_pod_is_created() {
    let server = Server::new(subsets(&[("a", json!("50%")), ("b", Value::Null)]));
    server.put(CLONE_SET, json!(403));
    let placed = place(&server.replica(), pod("web-1")).await;
    assert_eq!(placed.pod, None);
    assert!(placed.warning.unwrap().contains("kruise.rs/aggregate-to-webhook"));
    let server = Server::new(json!({"subsets": [{"name": "a", "patch": {"spec": {"containers": [{"image": "x"}]}}}]}));
    let placed = place(&server.replica(), pod("web-1")).await;
    assert!(placed.pod.is_none() && placed.warning.unwrap().contains("the patch of subset \"a\""));
}

#[tokio::test(start_paused = true)]
async fn c1_with_the_gate_off_nothing_is_spread() {
    let server = Server::new(subsets(&[("a", json!(5))]));
    let off = FeatureGates::parse(&["WorkloadSpread=false"], None).unwrap();
    assert_eq!(place(&server.replica_with(&off), pod("web-1")).await, Placed::default());
}

#[tokio::test(start_paused = true)]
async fn c12_the_version_of_an_owner_does_not_count() {
    let server = Server::new(subsets(&[("a", json!(5))]));
    let mut later = pod("web-1");
    later["metadata"]["ownerReferences"] = owner("apps.kruise.io/v1beta1", "CloneSet", "web");
    assert_eq!(subset_of(&place(&server.replica(), later).await), "a");
}

const STATEFUL_SET: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/web";

#[tokio::test(start_paused = true)]
async fn shortfall_ordinals_are_counted_from_the_start_without_those_that_are_reserved() {
    let server = Server::new(target("apps.kruise.io/v1alpha1", "StatefulSet"));
    let set = |spec: Value| json!({"metadata": {"name": "web", "uid": "t"}, "spec": spec});
    server.put(STATEFUL_SET, set(json!({"replicas": 4, "ordinals": {"start": 10}, "reserveOrdinals": [11, "13-14"]})));
    let spreads = server.replica_with(&FeatureGates::parse(&["StatefulSetStartOrdinal=true"], None).unwrap());
    let mut found = Vec::new();
    for ordinal in [10, 12, 15, 16] {
        let mut pod = pod(&format!("web-{ordinal}"));
        pod["metadata"]["ownerReferences"] = owner("apps.kruise.io/v1beta1", "StatefulSet", "web");
        found.push(subset_of(&place(&spreads, pod).await));
    }
    assert_eq!(found, ["a", "a", "b", "b"]);
    assert_eq!(server.writes.load(Ordering::SeqCst), 0, "an ordinal says it all");
    assert!(!spreads.counts("ns"), "so nothing is recorded when one is deleted");
}

#[tokio::test(start_paused = true)]
async fn without_its_gate_the_start_of_an_advanced_stateful_set_does_not_count_and_that_of_a_built_in_one_does() {
    let set = json!({"metadata": {"name": "web", "uid": "t"}, "spec": {"replicas": 4, "ordinals": {"start": 2}}});
    for (api_version, path, ordinals) in [
        ("apps.kruise.io/v1beta1", STATEFUL_SET, 0..4),
        ("apps/v1", "/apis/apps/v1/namespaces/ns/statefulsets/web", 2..6),
    ] {
        let server = Server::new(target(api_version, "StatefulSet"));
        server.put(path, set.clone());
        let spreads = server.replica();
        let mut found = Vec::new();
        for ordinal in ordinals {
            let mut pod = pod(&format!("web-{ordinal}"));
            pod["metadata"]["ownerReferences"] = owner(api_version, "StatefulSet", "web");
            found.push(subset_of(&place(&spreads, pod).await));
        }
        assert_eq!(found, ["a", "a", "b", "b"], "{api_version}");
    }
}

const LIST: &str = "/api/v1/namespaces/kruise-system/configmaps/kruise-configuration";

/// The ConfigMap that names the kind Db, with another one between it and its Pods.
fn list_with(between: &str) -> Value {
    let list = json!({"workloads": [{"Group": "example.com", "Kind": "Db", "replicasPath": "spec.size",
        "subResources": [{"Group": "example.com", "Kind": between}]}]});
    json!({"metadata": {"name": "kruise-configuration"},
        "data": {"WorkloadSpread_Watch_Custom_Workload_WhiteList": list.to_string()}})
}

/// A Db with a Shard and a Slice, both of the name web-0. The list has the Shard.
fn database() -> Arc<Server> {
    let server = Server::new(target("example.com/v1", "Db"));
    server.put(LIST, list_with("Shard"));
    let resource = |kind: &str, plural: &str| json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]});
    let resources = [resource("Shard", "shards"), resource("Slice", "slices")];
    server.put(
        "/apis/example.com/v1",
        json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": resources}),
    );
    for plural in ["shards", "slices"] {
        server.put(
            &format!("/apis/example.com/v1/namespaces/ns/{plural}/web-0"),
            json!({"metadata": {"name": "web-0", "ownerReferences": owner("example.com/v1", "Db", "web")}}),
        );
    }
    server
}

/// A Pod of something of the name web-0.
fn pod_below(kind: &str) -> Value {
    let mut pod = pod("p");
    pod["metadata"]["ownerReferences"] = owner("example.com/v1", kind, "web-0");
    pod
}

#[tokio::test(start_paused = true)]
async fn kinds_by_configuration_may_have_others_between_them_and_their_pods() {
    let server = database();
    let spreads = server.replica();
    assert_eq!(subset_of(&place(&spreads, pod_below("Shard")).await), "a");
    server.put(LIST, json!(500));
    assert_eq!(subset_of(&place(&spreads, pod_below("Shard")).await), "a", "it was read a moment ago");
    assert_eq!(place(&spreads, pod_below("Other")).await, Placed::default(), "nobody has named this kind");
}

#[tokio::test(start_paused = true)]
async fn shortfall_a_changed_list_of_kinds_holds_within_ten_seconds() {
    let server = database();
    let spreads = server.replica();
    let placed = |kind: &'static str| {
        let spreads = spreads.clone();
        async move { place(&spreads, pod_below(kind)).await.pod.is_some() }
    };
    assert!(placed("Shard").await && !placed("Slice").await);
    server.put(LIST, list_with("Slice"));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(placed("Shard").await && !placed("Slice").await, "it was read a moment ago");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(!placed("Shard").await && placed("Slice").await);
}

#[tokio::test(start_paused = true)]
async fn a_filter_decides_which_of_two_is_asked() {
    let server = Server::new(json!({"subsets": [{"name": "a", "maxReplicas": 5}],
        "targetFilter": {"selector": {"matchLabels": {"role": "ps"}}}}));
    let spreads = server.replica();
    let mut other = json!(server.spread());
    other["metadata"]["name"] = "workers".into();
    other["spec"] = json!({"targetRef": other["spec"]["targetRef"], "subsets": [{"name": "w"}],
        "targetFilter": {"selector": {"matchLabels": {"role": "worker"}}}});
    spreads.know(&[other]);
    for (role, wanted) in [("ps", "a"), ("worker", "w"), ("chief", "none")] {
        let mut pod = pod("p");
        pod["metadata"]["labels"] = json!({"role": role});
        assert_eq!(subset_of(&place(&spreads, pod).await), wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_has_counted_yet_is_waited_for_a_moment() {
    let server = Server::new(subsets(&[("a", json!(5))]));
    let mut object = json!(server.spread());
    object.as_object_mut().unwrap().remove("status");
    server.put(SPREAD, object);
    let begun = tokio::time::Instant::now();
    assert_eq!(subset_of(&place(&server.replica(), pod("web-1")).await), "a");
    assert_eq!(begun.elapsed(), FIRST_LOOK);
}

#[tokio::test(start_paused = true)]
async fn the_namespaces_are_told_apart_by_what_is_counted_in_them() {
    let server = Server::new(subsets(&[("a", Value::Null)]));
    let spreads = server.replica();
    assert_eq!(spreads.scope().borrow().clone(), Some(["ns".to_owned()].into()));
    assert_eq!(spreads.counting().borrow().clone(), Some(BTreeSet::new()), "without a limit there is nothing to count");
    let mut other = json!(server.spread());
    other["metadata"]["namespace"] = "other".into();
    other["spec"]["subsets"][0]["maxReplicas"] = 1.into();
    spreads.know(&[other]);
    assert!(spreads.counts("other") && !spreads.counts("ns"));

    // What the watch brings changes what is told of its namespace alone.
    let see = |version: u32, max: Value| {
        let mut object = json!(server.spread());
        object["metadata"]["generation"] = version.into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object["spec"]["subsets"][0]["maxReplicas"] = max;
        spreads.spreads.see(serde_json::from_value(object).unwrap(), |change| spreads.changed(&change));
    };
    let told = || (spreads.scope().borrow().clone().unwrap(), spreads.counting().borrow().clone().unwrap());
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    see(2, json!(3));
    assert_eq!(told(), (names(&["ns", "other"]), names(&["ns", "other"])));
    see(3, Value::Null);
    assert_eq!(told(), (names(&["ns", "other"]), names(&["other"])));
    // Made again with its name while the watch did not run.
    let mut again = json!(server.spread());
    again["metadata"]["uid"] = "again".into();
    again["metadata"]["generation"] = 3.into();
    again["metadata"]["resourceVersion"] = "4".into();
    again["spec"]["subsets"][0]["maxReplicas"] = 3.into();
    spreads.spreads.see(serde_json::from_value(again).unwrap(), |change| spreads.changed(&change));
    assert_eq!(told(), (names(&["ns", "other"]), names(&["ns", "other"])));
    spreads.spreads.see_gone(&ObjectKey::new("ns", "ws"), Some("again"), |change| spreads.changed(&change));
    assert_eq!(told(), (names(&["other"]), names(&["other"])));
}
