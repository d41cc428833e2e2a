use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::*;
use crate::{
    controllers::in_memory,
    runtime::{events::Recorder, fake_api},
};

fn pod(name: &str, changes: Value) -> PodView {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web"}, "annotations": {"kruise.io/related-pub": "web"},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "set", "controller": true}]},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    json_patch::merge(&mut pod, &changes);
    serde_json::from_value(pod).unwrap()
}

fn budget(changes: Value) -> PodUnavailableBudget {
    let mut budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
        "metadata": {"name": "web", "namespace": "a", "uid": "b", "generation": 1, "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}});
    json_patch::merge(&mut budget, &changes);
    serde_json::from_value(budget).unwrap()
}

/// A controller over an API server that has one budget and a CloneSet of three.
struct World {
    controller: Controller,
    stored: Arc<Mutex<Value>>,
    writes: Arc<AtomicUsize>,
    related: Arc<AtomicUsize>,
    replicas: Arc<AtomicUsize>,
    key: ObjectKey,
}

impl World {
    fn new(budget: &PodUnavailableBudget, pods: Vec<PodView>) -> Self {
        let stored = Arc::new(Mutex::new(json!(budget)));
        let (writes, related) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let replicas = Arc::new(AtomicUsize::new(3));
        let context = {
            let (stored, writes, related) = (stored.clone(), writes.clone(), related.clone());
            let replicas = replicas.clone();
            let answer = move |parts: &axum::http::request::Parts, body: &[u8]| {
                let path = parts.uri.path();
                let status = |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code}));
                let set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
                    "metadata": {"name": "web", "namespace": "a", "uid": "set", "resourceVersion": "1"},
                    "spec": {"replicas": replicas.load(Ordering::SeqCst), "selector": {"matchLabels": {"app": "web"}}}});
                if path.ends_with("/clonesets/web") {
                    return (200, set);
                }
                if path.ends_with("/clonesets") {
                    return (200, json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [set]}));
                }
                let patch: Value = serde_json::from_slice(body).unwrap_or_default();
                if path.contains("/pods/locked") {
                    return status(403);
                }
                if path.contains("/pods/") {
                    related.fetch_add(1, Ordering::SeqCst);
                    let name = path.rsplit('/').next().unwrap();
                    return (
                        200,
                        json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "2",
                        "labels": {"app": "web"}, "annotations": patch["metadata"]["annotations"]}}),
                    );
                }
                let mut stored = lock(&stored);
                if path.ends_with("/status") {
                    if patch["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] {
                        return status(409);
                    }
                    json_patch::merge(&mut stored, &json!({"status": patch["status"]}));
                    let version = stored["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() + 1;
                    stored["metadata"]["resourceVersion"] = version.to_string().into();
                    writes.fetch_add(1, Ordering::SeqCst);
                }
                (200, stored.clone())
            };
            // Watches bring nothing.
            in_memory::context_of_some(move |parts, body| {
                let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
                (!is_watch).then(|| answer(parts, body))
            })
        };
        for pod in pods {
            context.pods.upsert(pod);
        }
        let world = Self {
            controller: Controller::new(&context),
            stored,
            writes,
            related,
            replicas,
            key: ObjectKey::new("a", "web"),
        };
        world.see(budget.clone());
        world
    }

    fn see(&self, budget: PodUnavailableBudget) {
        let budgets = &self.controller.context.budgets;
        let (old, new) = budgets.store.upsert(budget);
        let new = new.unwrap();
        self.controller.budget_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
    }

    fn see_pod(&self, pod: PodView) {
        let (old, new) = self.controller.context.pods.upsert(pod);
        self.controller.pod_changed(&Change::Applied { old: old.as_ref(), new: &new.unwrap(), initial: false });
    }

    async fn pass(&self) -> Requeue {
        self.controller.reconcile(&self.key).await.unwrap()
    }

    fn status(&self) -> Value {
        lock(&self.stored)["status"].clone()
    }

    fn numbers(&self) -> [i64; 4] {
        let status = self.status();
        ["unavailableAllowed", "currentAvailable", "desiredAvailable", "totalReplicas"]
            .map(|key| status[key].as_i64().unwrap_or_default())
    }
}

fn three() -> Vec<PodView> {
    (0..3).map(|i| pod(&format!("p{i}"), json!({}))).collect()
}

const GOING: &str = "2026-01-01T00:01:00Z";

#[tokio::test]
async fn a_new_budget_is_counted_once_and_then_left_alone() {
    let world = World::new(&budget(json!({})), three());
    world.pass().await;
    assert_eq!(world.numbers(), [1, 3, 2, 3]);
    for _ in 0..3 {
        assert_eq!(world.pass().await, Requeue::After(RESYNC_UNFOLLOWED));
    }
    assert_eq!((world.writes.load(Ordering::SeqCst), world.related.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn a_takeover_writes_one_status_and_nothing_of_its_pods() {
    // As OpenKruise left it.
    let status = json!({"observedGeneration": 1, "currentAvailable": 2, "desiredAvailable": 1, "totalReplicas": 2,
        "unavailableAllowed": 1});
    let world = World::new(&budget(json!({ "status": status })), three().split_off(1));
    world.replicas.store(2, Ordering::SeqCst);
    for _ in 0..4 {
        world.pass().await;
    }
    assert_eq!(world.numbers(), [1, 2, 1, 2]);
    assert_eq!((world.writes.load(Ordering::SeqCst), world.related.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn a_budget_for_a_workload_finds_its_pods_by_their_owner() {
    let target = json!({"selector": null, "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    let mut pods = three();
    pods.push(pod("other", json!({"metadata": {"ownerReferences": null}})));
    // Whoever may create Pods in another namespace can write the UID into them.
    pods.push(pod("foreign", json!({"metadata": {"namespace": "b"}})));
    let world = World::new(&budget(json!({"spec": target})), pods);
    world.pass().await;
    assert_eq!(world.numbers(), [1, 3, 2, 3]);
    // A Pod of it that changes is looked at.
    world.see_pod(pod("p0", json!({"metadata": {"resourceVersion": "2", "deletionTimestamp": GOING}})));
    world.pass().await;
    assert_eq!(world.numbers(), [0, 2, 2, 3]);
}

/// Both kinds of budgets: one names the workload, of the other it is found by the Pods.
#[tokio::test]
async fn a_budget_is_counted_anew_when_its_workload_is_scaled_and_nothing_happens_to_its_pods() {
    let target = json!({"selector": null, "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    for spec in [target, json!({})] {
        let world = World::new(&budget(json!({"spec": spec})), three());
        assert_eq!(world.pass().await, Requeue::After(RESYNC_UNFOLLOWED), "no watch would show it");
        assert_eq!(world.numbers(), [1, 3, 2, 3]);
        world.replicas.store(6, Ordering::SeqCst);
        let budgets = &world.controller.context.budgets;
        let reported = Mutex::new(Vec::new());
        let follow = budgets.follow_totals(None, |budget| lock(&reported).push(budget.clone()));
        let seen = async {
            while lock(&reported).is_empty() || !budgets.follows_total(&world.key) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = follow => unreachable!("it follows for ever"),
            seen = tokio::time::timeout(Duration::from_secs(10), seen) => seen.expect("the watch shows it"),
        }
        assert_eq!(lock(&reported)[0], world.key);
        // At once: what was read a moment ago is not gone by.
        assert_eq!(world.pass().await, Requeue::After(RESYNC));
        assert_eq!(world.numbers(), [0, 3, 5, 6]);
    }
}

#[tokio::test]
async fn that_a_budget_covers_no_pod_is_no_warning_and_said_once_until_it_covers_some() {
    let target = json!({"selector": null, "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}});
    for (changes, times) in [
        (json!({}), 2),
        (json!({"spec": target}), 2),
        // Another process has counted already.
        (json!({"status": {"observedGeneration": 1, "currentAvailable": 0}}), 1),
        (json!({"status": {"observedGeneration": 1, "currentAvailable": 1}}), 2),
    ] {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let client = fake_api::answering({
            let heard = heard.clone();
            move |_, body| {
                let event: Value = serde_json::from_slice(body).unwrap();
                lock(&heard).push(format!("{} {}", event["type"].as_str().unwrap(), event["reason"].as_str().unwrap()));
                (201, event)
            }
        });
        let (events, sent) = Recorder::new(client, "test", "", Counter::default());
        let mut world = World::new(&budget(changes.clone()), Vec::new());
        world.controller.context.events = events;
        world.pass().await;
        world.pass().await;
        world.see_pod(pod("p0", json!({})));
        world.pass().await;
        let gone = world.controller.context.pods.remove(&ObjectKey::new("a", "p0"), None).unwrap();
        world.controller.pod_changed(&Change::Deleted(&gone));
        world.pass().await;
        world.pass().await;
        // Ends when nobody can emit any more.
        drop(world);
        sent.await;
        let mut heard = lock(&heard).clone();
        heard.retain(|event| event != "Normal UpdatesNotProtected");
        assert_eq!(heard, vec!["Normal NoPods"; times], "{changes}");
    }
}

#[tokio::test]
async fn pods_from_before_the_budget_get_its_name_and_those_of_a_budget_that_has_gone_too() {
    let noted = |name: &str, related: Value| {
        pod(name, json!({"metadata": {"annotations": {"kruise.io/related-pub": related}}}))
    };
    let pods = vec![noted("p0", Value::Null), noted("p1", json!("gone")), noted("p2", json!("web"))];
    let world = World::new(&budget(json!({})), pods);
    world.pass().await;
    world.pass().await;
    assert_eq!(world.related.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn pods_whose_note_is_refused_keep_none_of_the_others_from_theirs() {
    let bare = |name: String| pod(&name, json!({"metadata": {"annotations": {"kruise.io/related-pub": null}}}));
    let names = (0..20).flat_map(|i| [format!("locked{i}"), format!("p{i}")]);
    let world = World::new(&budget(json!({})), names.map(bare).collect());
    world.pass().await;
    assert_eq!(world.related.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn pods_that_come_and_go_are_followed_without_looking_through_the_namespace() {
    let world = World::new(&budget(json!({})), three());
    world.pass().await;
    world.see_pod(pod("p3", json!({})));
    assert_eq!(lock(&world.controller.following).pods[&world.key].len(), 4);
    world.see_pod(pod("p3", json!({"metadata": {"resourceVersion": "2", "labels": {"app": "other"}}})));
    assert_eq!(lock(&world.controller.following).pods[&world.key].len(), 3);
    let key = ObjectKey::new("a", "p0");
    let old = world.controller.context.pods.remove(&key, None).unwrap();
    world.controller.pod_changed(&Change::Deleted(&old));
    world.pass().await;
    assert_eq!(world.numbers(), [0, 2, 2, 3]);
}

#[tokio::test]
async fn a_grant_that_is_written_meanwhile_is_not_overwritten() {
    let world = World::new(&budget(json!({})), three());
    world.pass().await;
    // The webhook has written; the watch has not shown it yet.
    {
        let mut stored = lock(&world.stored);
        stored["metadata"]["resourceVersion"] = "7".into();
        json_patch::merge(
            &mut stored,
            &json!({"status": {"unavailableAllowed": 0, "currentAvailable": 2, "disruptedPods": {"p0": GOING}}}),
        );
    }
    world.see_pod(pod("p1", json!({"metadata": {"resourceVersion": "2"}, "status": {"conditions": null}})));
    assert_eq!(world.pass().await, Requeue::After(AFTER_CONFLICT));
    world.pass().await;
    assert_eq!(world.numbers()[0], 0);
    assert_eq!(world.status()["disruptedPods"], json!({"p0": GOING}));
}

#[tokio::test]
async fn a_pod_that_went_without_a_grant_is_a_breach_and_one_with_a_grant_is_none() {
    for (entries, want) in [(json!({}), 1), (json!({"p0": GOING}), 0)] {
        let status = json!({"observedGeneration": 1, "unavailableAllowed": 0, "currentAvailable": 2, "desiredAvailable": 3,
            "totalReplicas": 3, "disruptedPods": entries});
        let world = World::new(&budget(json!({"spec": {"maxUnavailable": 0}, "status": status})), three());
        world.see_pod(pod("p0", json!({"metadata": {"resourceVersion": "2", "deletionTimestamp": GOING}})));
        world.pass().await;
        assert_eq!(world.controller.breaches.get(), 0, "the news of the grant may come later");
        for suspect in &mut lock(&world.controller.memories).get_mut(&world.key).unwrap().suspects {
            suspect.seen = suspect.seen.saturating_sub(SUSPICION);
        }
        let due = clock::now().mono + SUSPICION;
        let status: Status = serde_json::from_value(world.status()).unwrap();
        let stored = world.controller.context.budgets.store.get(&world.key).unwrap();
        let now = Now { mono: due, ..clock::now() };
        world.controller.judge_suspects(&world.key, &stored, &status, now);
        assert_eq!(world.controller.breaches.get(), want);
    }
}

#[test]
fn what_nobody_waits_for_may_be_written_later() {
    let old = Status { unavailable_allowed: 1, desired_available: 2, ..Status::default() };
    let tidy = Status {
        current_available: 3,
        disrupted_pods: [("p".to_owned(), Timestamp::UNIX_EPOCH)].into(),
        ..old.clone()
    };
    assert!(is_tidying(&old, &tidy));
    assert!(!is_tidying(&old, &Status { unavailable_allowed: 2, ..old.clone() }));
    assert!(!is_tidying(&old, &Status { observed_generation: 2, ..old.clone() }));
}

#[test]
fn what_nobody_waits_for_comes_in_turns_and_never_late() {
    let (second, now) = (Duration::from_secs(1), Duration::from_secs(100));
    let mut tidying = Tidying::default();
    assert_eq!(tidying.turn(Duration::ZERO, now), now, "at once when nothing else is going on");
    assert_eq!(tidying.turn(Duration::ZERO, now), now + TIDY_EACH, "the next budget a little later");
    assert_eq!(tidying.turn(now, now), now + TIDY_PAUSE, "one that has just been written waits");
    let last = (0..500).map(|_| tidying.turn(Duration::ZERO, now)).max();
    assert_eq!(last, Some(now + TIDY_LATEST), "not longer than that, however many there are");
    assert_eq!(tidying.turn(Duration::ZERO, now + 10 * second), now + 10 * second);
}
