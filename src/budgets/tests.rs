use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::{Method, Request, Response, StatusCode};
use futures::future::join_all;
use http_body_util::BodyExt;
use kube::client::Body;

use super::*;
use crate::runtime::fake_api;
use crate::{
    api::policy::pod_unavailable_budget::PodUnavailableBudgetStatus,
    domain::budgets::unavailable::{Counting, Total},
    runtime::{metrics::own_memory, replicas::Kind},
};

/// An API server with Pods and one budget, whose version grows with every write.
#[derive(Default)]
struct Server {
    budget: Mutex<Value>,
    pods: Mutex<Vec<Value>>,
    replicas: AtomicUsize,
    /// How often it was scaled.
    scales: AtomicUsize,
    watches_of_sets: AtomicUsize,
    writes: AtomicUsize,
    conflicts: AtomicUsize,
    lists: AtomicUsize,
    budget_lists: AtomicUsize,
    /// Whether the scale of a Rollout may be read.
    may_scale: AtomicBool,
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "set", "controller": true}]},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

impl Server {
    fn new(pods: usize, spec: Value) -> Arc<Self> {
        let server = Self::default();
        *lock(&server.pods) = (0..pods).map(|i| pod(&format!("p{i}"))).collect();
        server.replicas.store(pods, Ordering::SeqCst);
        let mut budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "b", "namespace": "a", "uid": "b", "generation": 1, "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}}});
        json_patch::merge(&mut budget["spec"], &spec);
        *lock(&server.budget) = budget;
        Arc::new(server)
    }

    fn clone_set(&self) -> Value {
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "web", "namespace": "a", "uid": "set",
            "resourceVersion": (1000 + self.scales.load(Ordering::SeqCst)).to_string()},
            "spec": {"replicas": self.replicas.load(Ordering::SeqCst), "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}}}})
    }

    fn scale(&self, replicas: usize) {
        self.replicas.store(replicas, Ordering::SeqCst);
        self.scales.fetch_add(1, Ordering::SeqCst);
    }

    /// The next event of a watch of CloneSets.
    async fn next_scale(&self, query: &str) -> String {
        self.watches_of_sets.fetch_add(1, Ordering::SeqCst);
        let seen = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap();
        let seen: usize = seen.parse().unwrap();
        while 1000 + self.scales.load(Ordering::SeqCst) <= seen {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fake_api::event("MODIFIED", &self.clone_set())
    }

    /// What the manager has counted.
    fn count(&self, budgets: &Budgets, [total, desired, current, allowed]: [i64; 4]) {
        let mut budget = lock(&self.budget);
        budget["status"] = json!({"observedGeneration": 1, "totalReplicas": total, "desiredAvailable": desired,
            "currentAvailable": current, "unavailableAllowed": allowed});
        let version: u64 = budget["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        budget["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        budgets.store.upsert(serde_json::from_value(budget.clone()).unwrap());
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let status = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "" };
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}))
        };
        let list = |items: Value| {
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1000"}, "items": items}))
        };
        let budgets = "/apis/policy.kruise.io/v1alpha1/namespaces/a/podunavailablebudgets";
        if path.starts_with(&format!("{budgets}/b")) && lock(&self.budget).is_null() {
            return status(404);
        }
        if *method == Method::PATCH && path == format!("{budgets}/b/status") {
            let patch: Value = serde_json::from_slice(body).unwrap();
            let mut budget = lock(&self.budget);
            if patch["metadata"]["resourceVersion"] != budget["metadata"]["resourceVersion"] {
                self.conflicts.fetch_add(1, Ordering::SeqCst);
                return status(409);
            }
            let version: u64 = budget["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            json_patch::merge(&mut budget, &json!({"status": patch["status"]}));
            budget["metadata"]["resourceVersion"] = (version + 1).to_string().into();
            self.writes.fetch_add(1, Ordering::SeqCst);
            return (200, budget.clone());
        }
        if *method != Method::GET {
            return status(405);
        }
        match path {
            "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets" => {
                self.budget_lists.fetch_add(1, Ordering::SeqCst);
                let budget = lock(&self.budget).clone();
                list(if budget.is_null() { json!([]) } else { json!([budget]) })
            }
            "/apis/argoproj.io" => {
                let served = json!({"groupVersion": "argoproj.io/v1alpha1", "version": "v1alpha1"});
                (200, json!({"kind": "APIGroup", "apiVersion": "v1", "name": "argoproj.io", "versions": [served]}))
            }
            "/apis/argoproj.io/v1alpha1" => (
                200,
                json!({"kind": "APIResourceList", "groupVersion": "argoproj.io/v1alpha1", "resources": [
                    {"name": "rollouts", "singularName": "", "namespaced": true, "kind": "Rollout", "verbs": ["get"]},
                    {"name": "rollouts/scale", "singularName": "", "namespaced": true, "kind": "Scale", "verbs": ["get"]}]}),
            ),
            "/apis/argoproj.io/v1alpha1/namespaces/a/rollouts/web/scale" => match self.may_scale.load(Ordering::SeqCst)
            {
                true => (
                    200,
                    json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "a"},
                        "spec": match self.replicas.load(Ordering::SeqCst) { 0 => json!({}), n => json!({"replicas": n}) },
                        "status": {"replicas": 0, "selector": "app=web"}}),
                ),
                false => status(403),
            },
            "/apis/apps/v1/namespaces/a/deployments/web" => (
                200,
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "uid": "deployment"},
                    "spec": {"replicas": self.replicas.load(Ordering::SeqCst), "selector": {"matchLabels": {"app": "web"}},
                        "template": {"metadata": {"labels": {"app": "web"}}}}}),
            ),
            // Of a roll-out: one that is scaled to 0 and still has Pods, and its successor.
            "/apis/apps/v1/namespaces/a/replicasets/old" | "/apis/apps/v1/namespaces/a/replicasets/new" => {
                let name = path.rsplit('/').next().unwrap();
                (
                    200,
                    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 0}, "metadata": {"name": name, "uid": name,
                        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "deployment", "controller": true}]}}),
                )
            }
            "/apis/apps/v1/namespaces/a/replicasets/web-1" => (
                200,
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-1", "uid": "set",
                    "ownerReferences": [{"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": "rollout", "controller": true}]}}),
            ),
            _ if path == format!("{budgets}/b") => (200, lock(&self.budget).clone()),
            "/api/v1/namespaces/a/pods" => {
                self.lists.fetch_add(1, Ordering::SeqCst);
                list(json!(*lock(&self.pods)))
            }
            "/apis/apps.kruise.io/v1alpha1/namespaces/a/clonesets/web" => (200, self.clone_set()),
            "/apis/apps.kruise.io/v1alpha1/clonesets" => list(json!([self.clone_set()])),
            _ => status(404),
        }
    }

    /// One process.
    fn replica(self: &Arc<Self>, gates: &str) -> Arc<Budgets> {
        let server = self.clone();
        let service = tower::service_fn(move |http: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = http.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let query = parts.uri.query().unwrap_or_default();
                if query.contains("watch=true") {
                    if !parts.uri.path().ends_with("/clonesets") {
                        return std::future::pending().await;
                    }
                    let event = server.next_scale(query).await;
                    return Ok::<_, std::convert::Infallible>(Response::new(Body::from(event.into_bytes())));
                }
                tokio::task::yield_now().await;
                let (code, object) = server.answer(&parts.method, parts.uri.path(), &body);
                tokio::task::yield_now().await;
                let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
                Ok::<_, std::convert::Infallible>(response.body(Body::from(object.to_string().into_bytes())).unwrap())
            }
        });
        let gates = FeatureGates::parse(&[gates], None).unwrap();
        Budgets::new(Client::new(service, "default"), Arc::new(gates))
    }

    fn status(&self) -> PodUnavailableBudgetStatus {
        serde_json::from_value(lock(&self.budget)["status"].clone()).unwrap()
    }
}

fn view(name: &str) -> PodView {
    serde_json::from_value(pod(name)).unwrap()
}

async fn delete(budgets: &Budgets, name: &str) -> Result<(), Refusal> {
    budgets.take(&view(name), Operation::Delete, false).await
}

#[tokio::test]
async fn a_budget_that_nobody_has_counted_is_counted_on_the_spot() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    let budgets = server.replica("");
    delete(&budgets, "p0").await.unwrap();
    let refused = delete(&budgets, "p1").await.unwrap_err();
    assert_eq!(
        refused.message(),
        "podunavailablebudget.policy.kruise.io \"b\" is forbidden: pub unavailable allowed is negative, no further Pod may be taken out of service now: 3 of 4 Pods are available, and 3 have to stay"
    );
    let status = server.status();
    assert_eq!((status.unavailable_allowed, status.current_available, status.total_replicas), (0, 3, 4));
    assert_eq!(status.disrupted_pods.keys().collect::<Vec<_>>(), ["p0"]);
}

#[tokio::test]
async fn a_status_about_an_older_spec_does_not_count() {
    let server = Server::new(4, json!({"maxUnavailable": 0}));
    lock(&server.budget)["status"] = json!({"observedGeneration": 0, "unavailableAllowed": 3, "desiredAvailable": 1});
    delete(&server.replica(""), "p0").await.unwrap_err();
}

#[tokio::test]
async fn b12_a_dry_run_says_the_truth_and_writes_nothing() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    let budgets = server.replica("");
    for name in ["p0", "p1"] {
        budgets.take(&view(name), Operation::Evict, true).await.unwrap();
    }
    assert_eq!(server.writes.load(Ordering::SeqCst), 0);
    delete(&budgets, "p0").await.unwrap();
    budgets.take(&view("p1"), Operation::Evict, true).await.unwrap_err();
}

#[tokio::test]
async fn what_one_budget_refuses_uses_up_nothing_of_another() {
    let server = Server::new(4, json!({"maxUnavailable": 0}));
    let budgets = server.replica("");
    let mut first = lock(&server.budget).clone();
    let counted = json!({"observedGeneration": 1, "totalReplicas": 4, "desiredAvailable": 3, "currentAvailable": 4,
        "unavailableAllowed": 1});
    let changes = json!({"metadata": {"name": "a", "uid": "a", "resourceVersion": "5000"},
        "spec": {"maxUnavailable": 1}, "status": counted});
    json_patch::merge(&mut first, &changes);
    let first: PodUnavailableBudget = serde_json::from_value(first).unwrap();
    budgets.note(&first);
    budgets.store.upsert(first);
    let refused = delete(&budgets, "p0").await.unwrap_err();
    // The API server of these tests knows nothing of the one that is asked first: a write of its consent would fail.
    assert!(matches!(&refused, Refusal::Budget { name, .. } if name == "b"), "{refused:?}");
}

/// A hundred requests at once through two processes, against a budget of three.
#[tokio::test]
async fn a_hundred_requests_through_two_processes_take_exactly_what_is_allowed() {
    let server = Server::new(100, json!({"maxUnavailable": 3}));
    let replicas = [server.replica(""), server.replica("")];
    let asked = (0..100).map(|i| {
        let budgets = replicas[i % 2].clone();
        async move { delete(&budgets, &format!("p{i}")).await }
    });
    let answers = join_all(asked).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(|why| matches!(why, Refusal::Budget { .. })));
    assert_eq!((server.status().disrupted_pods.len(), server.status().unavailable_allowed), (3, 0));
    assert!(server.writes.load(Ordering::SeqCst) <= 3, "what comes together is written together");
}

#[tokio::test]
async fn requests_for_one_pod_that_race_cost_one_place() {
    let server = Server::new(10, json!({"maxUnavailable": 3}));
    let replicas = [server.replica(""), server.replica("")];
    let answers = join_all((0..20).map(|i| delete(&replicas[i % 2], "p0"))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((server.status().disrupted_pods.len(), server.status().unavailable_allowed), (1, 2));
}

#[tokio::test]
async fn requests_that_are_given_up_hold_nobody_up() {
    let server = Server::new(10, json!({"maxUnavailable": 3}));
    let budgets = server.replica("");
    for i in 0..5 {
        // Polled a few times and dropped, at another place each time.
        let mut asked = Box::pin(delete(&budgets, "p0"));
        for _ in 0..i {
            let _ = futures::poll!(&mut asked);
            tokio::task::yield_now().await;
        }
    }
    delete(&budgets, "p1").await.unwrap();
}

#[tokio::test]
async fn b6_a_workload_that_was_scaled_down_loses_its_pods() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    let budgets = server.replica("");
    delete(&budgets, "p0").await.unwrap();
    server.replicas.store(1, Ordering::SeqCst);
    lock(&budgets.recounts).clear();
    for name in ["p1", "p2", "p3"] {
        delete(&budgets, name).await.unwrap();
    }
}

/// Labels that only some Pods of a workload have: all of its replicas would be more than there ever are of these.
#[tokio::test]
async fn of_a_part_of_a_workload_the_pods_themselves_are_counted() {
    let server = Server::new(10, json!({"maxUnavailable": 1}));
    lock(&server.budget)["spec"]["selector"] = json!({"matchLabels": {"tier": "canary"}});
    for pod in &mut lock(&server.pods)[..3] {
        pod["metadata"]["labels"]["tier"] = "canary".into();
    }
    let budgets = server.replica("");
    let canary = |name: &str| {
        let mut pod = pod(name);
        pod["metadata"]["labels"]["tier"] = "canary".into();
        serde_json::from_value::<PodView>(pod).unwrap()
    };
    budgets.take(&canary("p0"), Operation::Delete, false).await.unwrap();
    assert_eq!((server.status().total_replicas, server.status().unavailable_allowed), (3, 0));
    budgets.take(&canary("p1"), Operation::Delete, false).await.unwrap_err();
}

#[tokio::test]
async fn a_refusal_is_looked_into_but_not_every_time() {
    let server = Server::new(4, json!({"maxUnavailable": 0}));
    let budgets = server.replica("");
    for _ in 0..10 {
        delete(&budgets, "p0").await.unwrap_err();
        // As the manager would.
        if server.writes.load(Ordering::SeqCst) == 0 {
            let mut budget = lock(&server.budget);
            budget["status"] = json!({"observedGeneration": 1, "desiredAvailable": 4, "currentAvailable": 4,
                "unavailableAllowed": 0, "totalReplicas": 4});
            let budget: PodUnavailableBudget = serde_json::from_value(budget.clone()).unwrap();
            budgets.store.upsert(budget);
            server.writes.store(1, Ordering::SeqCst);
        }
    }
    assert!(server.lists.load(Ordering::SeqCst) <= 2, "{}", server.lists.load(Ordering::SeqCst));
}

#[tokio::test]
async fn what_needs_no_budget_costs_no_request() {
    let server = Server::new(4, json!({"maxUnavailable": 0}));
    let budgets = server.replica("");
    let mut terminating = pod("p0");
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let terminating: PodView = serde_json::from_value(terminating).unwrap();
    budgets.take(&terminating, Operation::Delete, false).await.unwrap();
    // Updates are not protected unless their gate is on.
    budgets.take(&view("p0"), Operation::Update, false).await.unwrap();
    assert_eq!(server.lists.load(Ordering::SeqCst), 0);
    let guarded = server.replica("PodUnavailableBudgetUpdateGate=true");
    guarded.take(&view("p0"), Operation::Update, false).await.unwrap_err();
    guarded.take(&view("p0"), Operation::Restart, false).await.unwrap_err();
}

#[tokio::test]
async fn a_workload_finds_its_pods_whatever_the_version() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    lock(&server.budget)["spec"] = json!({"maxUnavailable": 1,
        "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    let budgets = server.replica("");
    delete(&budgets, "p0").await.unwrap();
    delete(&budgets, "p1").await.unwrap_err();
    let mut other = pod("x");
    other["metadata"]["ownerReferences"][0]["name"] = "other".into();
    let other: PodView = serde_json::from_value(other).unwrap();
    budgets.take(&other, Operation::Delete, false).await.unwrap();
}

#[tokio::test]
async fn b2_a_budget_that_is_deleted_between_look_up_and_write_holds_nobody() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    lock(&server.budget)["status"] = json!({"observedGeneration": 1, "desiredAvailable": 3, "currentAvailable": 4,
        "unavailableAllowed": 1, "totalReplicas": 4});
    for allowed in [1, 0] {
        let budgets = server.replica("");
        budgets.list().await.unwrap();
        let before = std::mem::take(&mut *lock(&server.budget));
        let ask = Ask { pod: "p0".into(), created: None, operation: Operation::Delete };
        assert_eq!(budgets.ask(ObjectKey::new("a", "b"), ask, false).await, Ok(Answer::Free), "allowed: {allowed}");
        *lock(&server.budget) = before;
        lock(&server.budget)["status"]["unavailableAllowed"] = 0.into();
    }
}

#[tokio::test]
async fn b4_pods_without_an_owner_are_protected_by_their_labels() {
    let server = Server::new(3, json!({"maxUnavailable": 1}));
    for pod in lock(&server.pods).iter_mut() {
        pod["metadata"]["ownerReferences"] = json!([]);
    }
    let budgets = server.replica("");
    let alone = |name: &str| -> PodView {
        let mut pod = pod(name);
        pod["metadata"]["ownerReferences"] = json!([]);
        serde_json::from_value(pod).unwrap()
    };
    budgets.take(&alone("p0"), Operation::Delete, false).await.unwrap();
    budgets.take(&alone("p1"), Operation::Delete, false).await.unwrap_err();
    assert_eq!(server.status().total_replicas, 3);
}

#[tokio::test]
async fn b5_pods_of_replica_sets_that_are_scaled_to_zero_count_and_their_deployment_counts_once() {
    let server = Server::new(4, json!({"maxUnavailable": 1}));
    for (i, pod) in lock(&server.pods).iter_mut().enumerate() {
        let set = if i % 2 == 0 { "old" } else { "new" };
        pod["metadata"]["ownerReferences"][0] =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set, "controller": true});
    }
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    for spec in [
        json!({"targetRef": target, "maxUnavailable": 1}),
        json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}),
    ] {
        lock(&server.budget)["spec"] = spec;
        let budgets = server.replica("");
        budgets.list().await.unwrap();
        let budget = budgets.store.get(&ObjectKey::new("a", "b")).unwrap();
        let (pods, total) = budgets.look(&budget).await.unwrap();
        assert_eq!((pods.len(), total), (4, Total::Known(4)), "{:?}", budget.spec);
    }
}

#[tokio::test]
async fn b7_a_budget_is_for_its_own_namespace() {
    let server = Server::new(4, json!({"maxUnavailable": 0}));
    let budgets = server.replica("");
    delete(&budgets, "p0").await.unwrap_err();
    let mut elsewhere = pod("p0");
    elsewhere["metadata"]["namespace"] = "z".into();
    let elsewhere: PodView = serde_json::from_value(elsewhere).unwrap();
    budgets.take(&elsewhere, Operation::Delete, false).await.unwrap();
}

/// Pods of a ReplicaSet of a Rollout, under a budget for the Rollout.
fn under_a_rollout(pods: usize) -> Arc<Server> {
    let server = Server::new(pods, json!({"maxUnavailable": 1}));
    lock(&server.budget)["spec"] = json!({"maxUnavailable": 1,
        "targetRef": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"}});
    for pod in lock(&server.pods).iter_mut() {
        *pod = of_replica_set(pod["metadata"]["name"].as_str().unwrap());
    }
    server
}

fn of_replica_set(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["ownerReferences"][0] =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "set", "controller": true});
    pod
}

#[tokio::test]
async fn b11_a_workload_of_an_unknown_kind_is_found_through_its_replica_sets_and_counted_by_its_scale() {
    let server = under_a_rollout(4);
    server.may_scale.store(true, Ordering::SeqCst);
    server.replicas.store(5, Ordering::SeqCst);
    let budgets = server.replica("");
    let take = async |name: &str| {
        let pod: PodView = serde_json::from_value(of_replica_set(name)).unwrap();
        budgets.take(&pod, Operation::Delete, false).await
    };
    // Four of five are there: the place is taken already.
    take("p0").await.unwrap_err();
    server.replicas.store(4, Ordering::SeqCst);
    lock(&budgets.recounts).clear();
    take("p0").await.unwrap();
    take("p1").await.unwrap_err();
    assert_eq!(server.status().total_replicas, 4);
    // Scaled to 0, which the API leaves out.
    server.replicas.store(0, Ordering::SeqCst);
    lock(&budgets.recounts).clear();
    take("p1").await.unwrap();
    assert_eq!((server.status().total_replicas, server.status().desired_available), (0, 0));
}

#[tokio::test]
async fn a_target_in_a_version_that_is_not_served_any_more_is_protected_as_before() {
    for (api_version, kind) in [("argoproj.io/v1alpha0", "Rollout"), ("apps/v1beta2", "Deployment")] {
        let server = under_a_rollout(4);
        server.may_scale.store(true, Ordering::SeqCst);
        lock(&server.budget)["spec"]["targetRef"] = json!({"apiVersion": api_version, "kind": kind, "name": "web"});
        let budgets = server.replica("");
        let budget = serde_json::from_value(lock(&server.budget).clone()).unwrap();
        let (members, total) = budgets.members(&budget, Duration::ZERO).await.unwrap();
        assert_eq!(total, Some(Total::Known(4)), "{kind} of {api_version}");
        assert!(matches!(members, Members::Scope(..)), "{members:?}");
    }
}

#[tokio::test]
async fn without_the_right_to_read_the_workload_the_pods_that_can_be_seen_are_protected() {
    let server = under_a_rollout(4);
    let budgets = server.replica("");
    let take = async |name: &str| {
        let pod: PodView = serde_json::from_value(of_replica_set(name)).unwrap();
        budgets.take(&pod, Operation::Delete, false).await
    };
    take("p0").await.unwrap();
    take("p1").await.unwrap_err();
    let status = server.status();
    let resolved = status.conditions.iter().find(|c| c.type_ == "Resolved").unwrap();
    assert_eq!((status.total_replicas, &*resolved.status, &*resolved.reason), (4, "False", "Forbidden"));
    let rule = "apiGroups [\"argoproj.io\"], resources [rollouts/scale], verbs [get]";
    assert!(resolved.message.contains(rule), "{}", resolved.message);
}

/// The manager may read the scale and the webhook may not: what the manager found is good for both.
#[tokio::test]
async fn what_the_manager_has_found_is_used_by_who_may_not_read_it() {
    let server = under_a_rollout(4);
    lock(&server.budget)["status"] = json!({"observedGeneration": 1, "totalReplicas": 5, "desiredAvailable": 4,
        "currentAvailable": 4, "unavailableAllowed": 0, "selector": "app=web", "conditions": [{"type": "Resolved",
            "status": "True", "reason": "Resolved", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    // Nothing but its labels shows whose Pod this is.
    let mut alone = pod("p0");
    alone["metadata"]["ownerReferences"] = json!([]);
    let alone: PodView = serde_json::from_value(alone).unwrap();
    let budgets = server.replica("");
    budgets.take(&alone, Operation::Delete, false).await.unwrap_err();
    assert!(server.lists.load(Ordering::SeqCst) >= 1, "a refusal is looked into");
    let (pods, total) = budgets.look(&budgets.store.get(&ObjectKey::new("a", "b")).unwrap()).await.unwrap();
    assert_eq!(pods.len(), 4);
    let counting = Counting::Beside { now: clock::now().wall };
    let budget = budgets.store.get(&ObjectKey::new("a", "b")).unwrap();
    let counted = rule::count(&budget, &budgets.gates, &pods, total, counting, clock::now().wall);
    let status = counted.status;
    assert_eq!((status.total_replicas, status.selector.as_deref()), (5, Some("app=web")));
    assert!(status.conditions.iter().any(|c| c.type_ == "Resolved" && c.status == "True"), "{status:?}");
}

#[tokio::test]
async fn who_does_not_follow_the_budgets_lists_them_for_all_who_ask_together() {
    let server = Server::new(100, json!({"maxUnavailable": 100}));
    let budgets = server.replica("");
    join_all((0..100).map(|i| delete(&budgets, if i % 2 == 0 { "p0" } else { "p1" }))).await;
    let lists = server.budget_lists.load(Ordering::SeqCst);
    assert!(lists <= 2, "{lists}");
    // One that has gone is forgotten.
    *lock(&server.budget) = Value::Null;
    delete(&budgets, "p2").await.unwrap();
    assert!(!budgets.guards("a") && budgets.store.is_empty());
}

#[tokio::test]
async fn who_follows_the_budgets_shows_which_namespaces_have_some() {
    let server = Server::new(0, json!({"maxUnavailable": 1}));
    let budgets = server.replica("");
    let mut namespaces = budgets.namespaces();
    assert_eq!(*namespaces.borrow(), None, "unknown is not none");
    let following = budgets.clone();
    let task = tokio::spawn(async move { following.follow().await });
    namespaces.wait_for(Option::is_some).await.unwrap();
    let now = |namespaces: &watch::Receiver<Option<BTreeSet<String>>>| namespaces.borrow().clone().unwrap();
    assert_eq!(now(&namespaces), ["a".to_owned()].into());
    let other = |name: &str| {
        let object = json!({"metadata": {"name": name, "namespace": "b", "uid": name}, "spec": {}});
        serde_json::from_value::<PodUnavailableBudget>(object).unwrap()
    };
    for name in ["x", "y"] {
        budgets.note(&other(name));
        assert_eq!(now(&namespaces), ["a".to_owned(), "b".to_owned()].into());
    }
    for (name, want) in [("x", 2), ("y", 1)] {
        budgets.forget(&ObjectKey::new("b", name));
        assert_eq!(now(&namespaces).len(), want, "a namespace is there until its last budget goes");
    }
    assert_eq!(server.budget_lists.load(Ordering::SeqCst), 1, "one watch is enough");
    task.abort();
}

/// A budget for the CloneSet, half of which has to stay, in a process that follows.
async fn following(pods: usize, replicas: usize) -> (Arc<Server>, Arc<Budgets>, tokio::task::JoinHandle<()>) {
    let server = Server::new(pods, json!({}));
    lock(&server.budget)["spec"] = json!({"maxUnavailable": "50%",
        "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    server.scale(replicas);
    let budgets = server.replica("");
    let task = tokio::spawn({
        let budgets = budgets.clone();
        async move { budgets.follow().await }
    });
    sees(&budgets, Some(replicas)).await;
    (server, budgets, task)
}

/// Waits until the watch has brought this number.
async fn sees(budgets: &Budgets, replicas: Option<usize>) {
    let (kind, workload) = (Kind::of("apps.kruise.io", "CloneSet").unwrap(), ObjectKey::new("a", "web"));
    let number = || budgets.replicas.desired(kind, &workload).map(|number| usize::try_from(number).unwrap());
    let seen = async {
        while !budgets.store.is_synced() || number() != replicas {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.expect("the watch brings it");
}

#[tokio::test]
async fn a_workload_that_was_scaled_up_is_judged_by_its_new_total_at_once() {
    let (server, budgets, task) = following(4, 4).await;
    server.count(&budgets, [4, 2, 4, 2]);
    // Nothing happens to its Pods: there is no room for more.
    server.scale(10);
    sees(&budgets, Some(10)).await;
    for name in ["p0", "p1"] {
        let refused = delete(&budgets, name).await.unwrap_err().message();
        assert!(refused.contains("4 of 10 Pods are available, and 5 have to stay"), "{refused}");
    }
    assert_eq!(server.lists.load(Ordering::SeqCst), 1, "the second goes by what the watch says");
    assert_eq!(server.writes.load(Ordering::SeqCst), 0);
    task.abort();
}

#[tokio::test]
async fn a_workload_that_was_scaled_down_from_10_to_4_is_judged_by_its_new_total_at_once() {
    let (server, budgets, task) = following(5, 10).await;
    server.count(&budgets, [10, 5, 5, 0]);
    delete(&budgets, "p0").await.unwrap_err();
    assert!(!budgets.may_recount(&ObjectKey::new("a", "b")), "it has just been counted anew");
    server.scale(4);
    sees(&budgets, Some(4)).await;
    delete(&budgets, "p0").await.unwrap();
    assert_eq!((server.status().total_replicas, server.status().unavailable_allowed), (4, 2));
    task.abort();
}

#[tokio::test]
async fn a_kind_is_followed_from_its_first_budget_to_its_last() {
    let (server, budgets, task) = following(4, 4).await;
    let (key, other) = (ObjectKey::new("a", "b"), ObjectKey::new("z", "other"));
    assert!(budgets.follows_total(&key) && server.watches_of_sets.load(Ordering::SeqCst) >= 1);
    let of_kind = |kind: &str| {
        let object = json!({"metadata": {"name": "other", "namespace": "z", "uid": "o"}, "spec": {"maxUnavailable": 1,
            "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": kind, "name": "web"}}});
        serde_json::from_value::<PodUnavailableBudget>(object).unwrap()
    };
    budgets.note(&of_kind("CloneSet"));
    budgets.forget(&key);
    sees(&budgets, Some(4)).await;
    budgets.forget(&other);
    sees(&budgets, None).await;
    // One that cannot be followed, and one with a selector, whose workloads are found when it is counted.
    budgets.note(&of_kind("Rollout"));
    assert!(!budgets.follows_total(&other));
    let pods: Vec<Arc<PodView>> = vec![Arc::new(view("p0"))];
    let selector = Members::Selector(Selector::parse("app=web").unwrap());
    budgets.total_of(&key, &selector, &pods, Duration::ZERO).await.unwrap();
    sees(&budgets, Some(4)).await;
    assert!(budgets.follows_total(&key));
    task.abort();
}

#[tokio::test]
async fn a_number_that_was_read_before_the_news_of_another_is_not_remembered() {
    let server = Server::new(4, json!({}));
    lock(&server.budget)["spec"] = json!({"maxUnavailable": 1,
        "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    let budget: PodUnavailableBudget = serde_json::from_value(lock(&server.budget).clone()).unwrap();
    let budgets = server.replica("");
    let total = async || budgets.members(&budget, Duration::from_secs(3600)).await.unwrap().1;
    assert_eq!(total().await, Some(Total::Known(4)));
    let (kind, workload) = (Kind::of("apps.kruise.io", "CloneSet").unwrap(), ObjectKey::new("a", "web"));
    server.scale(9);
    assert_eq!(total().await, Some(Total::Known(4)), "remembered");
    budgets.workloads.forget(kind, &workload);
    // The answer is on its way when it is scaled once more.
    let mut reading = Box::pin(total());
    assert!(futures::poll!(&mut reading).is_pending());
    budgets.workloads.forget(kind, &workload);
    assert_eq!(reading.await, Some(Total::Known(9)));
    server.scale(10);
    assert_eq!(total().await, Some(Total::Known(10)));
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_is_no_consent() {
    let budgets = Budgets::new(crate::runtime::fake_api::nobody(), Arc::new(FeatureGates::default()));
    assert!(matches!(delete(&budgets, "p0").await, Err(Refusal::Undecided(_))));
}

/// What 500 budgets over 20,000 Pods take besides the Pods, and how long it takes to find those of one Pod. Run it alone:
/// `cargo test --lib -- --ignored --nocapture budgets::tests::size`.
#[tokio::test]
#[ignore = "measures"]
async fn size() {
    let of = |i: usize| {
        let mut pod = pod(&format!("web-{i}"));
        pod["metadata"]["labels"]["app"] = format!("app-{}", i % 500).into();
        pod["metadata"]["ownerReferences"] = Value::Null;
        serde_json::from_value::<PodView>(pod).unwrap()
    };
    let pods: Vec<Arc<PodView>> = (0..20_000).map(|i| Arc::new(of(i))).collect();
    let client = Server::new(0, json!({})).replica("").client.clone();
    for count in [1, 10, 100, 500] {
        let before = own_memory();
        let budgets = Budgets::new(client.clone(), Arc::new(FeatureGates::default()));
        let add = |i: usize| {
            let object = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
                "metadata": {"name": format!("b{i}"), "namespace": "a", "uid": format!("b{i}"), "resourceVersion": "1"},
                "spec": {"selector": {"matchLabels": {"app": format!("app-{i}")}}, "maxUnavailable": 1},
                "status": {"totalReplicas": 40, "currentAvailable": 40, "desiredAvailable": 39, "unavailableAllowed": 1}});
            let budget: PodUnavailableBudget = serde_json::from_value(object).unwrap();
            budgets.note(&budget);
            budgets.store.upsert(budget);
        };
        (0..count).for_each(add);
        let begun = std::time::Instant::now();
        let found: usize = pods.iter().map(|pod| budgets.known_to_cover(pod).len()).sum();
        let took = begun.elapsed() / 20_000;
        let taken = own_memory().saturating_sub(before) / 1024;
        println!("{count} budgets: {taken} KiB, {took:?} to find those of a Pod, {found} found");
    }
}
