use serde_json::json;

use super::*;

const NOW: &str = "2026-01-01T00:01:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A Pod in service, with changes.
fn pod(name: &str, changes: Value) -> Arc<PodView> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "a"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]},
    });
    json_patch::merge(&mut pod, &changes);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn pods(count: usize) -> Vec<Arc<PodView>> {
    (0..count).map(|i| pod(&format!("p{i}"), json!({}))).collect()
}

fn budget(changes: Value) -> PodUnavailableBudget {
    let mut budget = json!({"metadata": {"name": "b", "namespace": "a", "generation": 2},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}});
    json_patch::merge(&mut budget, &changes);
    serde_json::from_value(budget).unwrap()
}

fn manager<'a>(known_for: &'a dyn Fn(&str, Timestamp) -> Duration) -> Counting<'a> {
    Counting::Manager { known_for, is_restarting: &|_| false }
}

/// What the manager counts, entries having been known for some seconds.
fn counted(budget: &PodUnavailableBudget, pods: &[Arc<PodView>], total: i32, seconds: u64) -> Counted {
    let known_for = move |_: &str, _| Duration::from_secs(seconds);
    count(budget, &FeatureGates::default(), pods, Total::Known(total), manager(&known_for), at(NOW))
}

/// Allowed, available, desired, total.
fn numbers(status: &Status) -> [i32; 4] {
    [status.unavailable_allowed, status.current_available, status.desired_available, status.total_replicas]
}

fn ask(pod: &str, operation: Operation) -> Ask {
    Ask { pod: pod.into(), created: Some(at("2026-01-01T00:00:00Z")), operation }
}

#[test]
fn what_may_be_taken_is_what_is_available_beyond_what_has_to_stay() {
    for (spec, total, available, want) in [
        (json!({}), 4, 4, [1, 4, 3, 4]),
        (json!({}), 4, 3, [0, 3, 3, 4]),
        (json!({}), 4, 1, [0, 1, 3, 4]),
        // A share is rounded up, of both kinds.
        (json!({"maxUnavailable": "30%"}), 4, 4, [2, 4, 2, 4]),
        (json!({"maxUnavailable": null, "minAvailable": "30%"}), 4, 4, [2, 4, 2, 4]),
        (json!({"maxUnavailable": null, "minAvailable": 3}), 4, 4, [1, 4, 3, 4]),
        // More Pods than are wanted, while a workload is scaled down.
        (json!({}), 2, 4, [3, 4, 1, 2]),
        // Both stored before the schema: maxUnavailable wins.
        (json!({"minAvailable": 4}), 4, 4, [1, 4, 3, 4]),
        // A share over 100 stored before the schema.
        (json!({"maxUnavailable": "200%"}), 4, 4, [4, 4, 0, 4]),
        (json!({"maxUnavailable": 0}), 4, 4, [0, 4, 4, 4]),
    ] {
        let counted = counted(&budget(json!({"spec": spec})), &pods(available), total, 0);
        assert_eq!(numbers(&counted.status), want, "{spec}");
        assert_eq!((counted.status.observed_generation, counted.again), (2, None));
    }
}

#[test]
fn a_budget_cannot_ask_for_more_than_the_workload_wants() {
    let least = budget(json!({"spec": {"maxUnavailable": null, "minAvailable": 3}}));
    assert_eq!(numbers(&counted(&least, &pods(3), 0, 0).status), [3, 3, 0, 0], "scaling to 0 ends");
}

#[test]
fn b3_only_pods_in_service_count() {
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    let gate = |status: &str| {
        json!({"spec": {"readinessGates": [{"conditionType": "InPlaceUpdateReady"}]}, "status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "InPlaceUpdateReady", "status": status}]}})
    };
    for (changes, want) in [
        (json!({}), true),
        (ready("False"), false),
        (json!({"status": {"phase": "Pending"}}), false),
        (json!({"status": {"phase": "Succeeded"}}), false),
        (json!({"metadata": {"deletionTimestamp": NOW}}), false),
        // B10
        (json!({"metadata": {"labels": {"unavailable-pod.kruise.io/x": ""}}}), false),
        // The gate is closed before kubelet has drawn its conclusion.
        (gate("True"), true),
        (gate("False"), false),
        // kubelet has not seen the change.
        (json!({"metadata": {"generation": 3}, "status": {"observedGeneration": 2}}), false),
        (json!({"metadata": {"generation": 3}, "status": {"observedGeneration": 3}}), true),
        (json!({"metadata": {"annotations": {"apps.kruise.io/inplace-update-grace": "{}"}}}), false),
    ] {
        let pod = pod("p", changes.clone());
        assert_eq!(is_available(&pod), want, "{changes}");
        assert_eq!(needs_no_budget(&pod).is_none(), want, "{changes}");
    }
}

#[test]
fn an_image_that_is_pinned_by_its_digest_makes_no_difference() {
    let digest = format!("registry.example/app@sha256:{}", "0".repeat(64));
    let pinned = pod(
        "p",
        json!({"spec": {"containers": [{"name": "main", "image": digest}]}, "status": {"containerStatuses": [
        {"name": "main", "imageID": "sha256:ffffffff", "ready": true}]}}),
    );
    assert!(is_available(&pinned), "runtimes name one image in several ways");
}

#[test]
fn some_pods_are_not_protected() {
    let annotated = |key: &str, value: &str| pod("p", json!({"metadata": {"annotations": {key: value}}}));
    assert!(needs_no_budget(&annotated("pub.kruise.io/no-protect", "true")).is_some());
    assert!(needs_no_budget(&annotated("pub.kruise.io/no-protect", "True")).is_none());
    assert!(needs_no_budget(&annotated("kubernetes.io/config.mirror", "x")).is_some());
}

#[test]
fn a_consent_takes_one_and_is_written_down_by_its_kind() {
    let mut status = counted(&budget(json!({"spec": {"maxUnavailable": 2}})), &pods(3), 3, 0).status;
    assert_eq!(take(&mut status, &ask("p0", Operation::Evict), at(NOW)), Answer::Taken);
    assert_eq!(take(&mut status, &ask("p1", Operation::Resize), at(NOW)), Answer::Taken);
    assert_eq!(numbers(&status), [0, 1, 1, 3]);
    assert_eq!(json!(status.disrupted_pods), json!({"p0": NOW}));
    assert_eq!(json!(status.unavailable_pods), json!({"p1": NOW}), "a resize is no deletion");
    let Answer::Refused(why) = take(&mut status, &ask("p2", Operation::Delete), at(NOW)) else { panic!() };
    assert_eq!(
        why,
        "pub unavailable allowed is negative, no further Pod may be taken out of service now: 1 of 3 Pods are available, and 1 have to stay"
    );
}

#[test]
fn b8_a_second_request_for_the_same_pod_costs_nothing_and_one_for_its_successor_does() {
    let mut status = counted(&budget(json!({})), &pods(3), 3, 0).status;
    assert_eq!(take(&mut status, &ask("p0", Operation::Delete), at(NOW)), Answer::Taken);
    assert_eq!(take(&mut status, &ask("p0", Operation::Delete), at(NOW)), Answer::AlreadyTaken);
    for created in ["2026-01-01T00:01:00Z", "2026-01-01T00:01:05Z"] {
        let successor = Ask { created: Some(at(created)), ..ask("p0", Operation::Delete) };
        assert!(matches!(take(&mut status.clone(), &successor, at(NOW)), Answer::Refused(_)), "{created}");
    }
}

#[test]
fn a_budget_that_asks_for_nothing_writes_nothing() {
    let mut status = counted(&budget(json!({"spec": {"maxUnavailable": "100%"}})), &pods(3), 3, 0).status;
    let before = status.clone();
    assert_eq!(take(&mut status, &ask("p0", Operation::Delete), at(NOW)), Answer::Free);
    assert_eq!(status, before);
}

#[test]
fn lists_do_not_grow_for_ever() {
    let mut status = Status { unavailable_allowed: 9, desired_available: 1, ..Status::default() };
    status.disrupted_pods = (0..MOST_ENTRIES).map(|i| (format!("p{i}"), at(NOW))).collect();
    let answer = take(&mut status, &ask("other", Operation::Delete), at(NOW));
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("2000 Pods")), "{answer:?}");
}

#[test]
fn a_pod_that_is_let_go_in_the_second_of_its_creation_may_be_asked_for_again() {
    let mut status = Status { desired_available: 1, unavailable_allowed: 1, total_replicas: 2, ..Status::default() };
    let ask = |created: &str| Ask { created: Some(at(created)), ..ask("p0", Operation::Update) };
    assert_eq!(take(&mut status, &ask(NOW), at(NOW)), Answer::Taken);
    assert_eq!(take(&mut status, &ask(NOW), at(NOW)), Answer::AlreadyTaken);
    assert!(
        matches!(take(&mut status, &ask("2030-01-01T00:00:00Z"), at("2030-01-01T00:00:00Z")), Answer::Refused(_)),
        "a successor of the same name"
    );
}

#[test]
fn an_entry_holds_a_pod_unavailable_until_it_is_seen_to_go() {
    let listed =
        |list: &str| budget(json!({"status": {list: {"p0": "2026-01-01T00:00:50Z"}, "unavailableAllowed": 0}}));
    // Known for 5 seconds, the Pod as it was.
    let still = counted(&listed("disruptedPods"), &pods(4), 4, 5);
    assert_eq!(numbers(&still.status), [0, 3, 3, 4]);
    assert_eq!(still.again, Some(Duration::from_secs(15)));
    // Being deleted: out of service by itself.
    let mut going = pods(4);
    going[0] = pod("p0", json!({"metadata": {"deletionTimestamp": NOW}}));
    let seen = counted(&listed("disruptedPods"), &going, 4, 5);
    assert_eq!((numbers(&seen.status), seen.status.disrupted_pods.len()), ([0, 3, 3, 4], 0));
    // Gone.
    assert!(counted(&listed("disruptedPods"), &pods(4)[1..], 4, 5).status.disrupted_pods.is_empty());
    // A successor of the same name.
    let mut next = pods(4);
    next[0] = pod("p0", json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:55Z"}}));
    assert_eq!(numbers(&counted(&listed("disruptedPods"), &next, 4, 5).status), [1, 4, 3, 4]);
}

#[test]
fn entries_end_by_time_and_a_deletion_that_did_not_come_about_is_reported() {
    let listed = |list: &str| budget(json!({"status": {list: {"p0": "2026-01-01T00:00:00Z"}}}));
    let ended = counted(&listed("disruptedPods"), &pods(4), 4, 20);
    assert_eq!((numbers(&ended.status), ended.not_deleted), ([1, 4, 3, 4], vec!["p0".to_owned()]));
    let ended = counted(&listed("unavailablePods"), &pods(4), 4, 10);
    assert_eq!((numbers(&ended.status), ended.not_deleted.len()), ([1, 4, 3, 4], 0));
    // The time in the entry is somebody else's clock, and does not count.
    assert_eq!(counted(&listed("disruptedPods"), &pods(4), 4, 0).again, Some(DISRUPTED_LIMIT));
}

#[test]
fn an_update_that_is_over_gives_its_place_back_at_once() {
    let listed = budget(json!({"status": {"unavailablePods": {"p0": "2026-01-01T00:00:50Z"}}}));
    let mut back = pods(4);
    let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:53Z"}]);
    back[0] = pod("p0", json!({"status": {"conditions": ready}}));
    assert_eq!(numbers(&counted(&listed, &back, 4, 3).status), [1, 4, 3, 4]);
    // Without a sign that it was out of service it is waited for.
    assert_eq!(numbers(&counted(&listed, &pods(4), 4, 3).status), [0, 3, 3, 4]);
}

#[test]
fn a_container_restart_that_waits_holds_its_place() {
    let listed = budget(json!({"status": {"unavailablePods": {"p0": "2026-01-01T00:00:50Z"}}}));
    let known_for = |_: &str, _| Duration::from_secs(100);
    let counting = Counting::Manager { known_for: &known_for, is_restarting: &|pod| pod.name() == "p0" };
    let counted = count(&listed, &FeatureGates::default(), &pods(4), Total::Known(4), counting, at(NOW));
    assert_eq!(numbers(&counted.status), [0, 3, 3, 4]);
}

#[test]
fn others_than_the_manager_leave_entries_alone() {
    let listed =
        budget(json!({"status": {"disruptedPods": {"p0": "2026-01-01T00:00:20Z", "gone": "2026-01-01T00:00:50Z"}}}));
    let beside = |now: &str| {
        let counting = Counting::Beside { now: at(now) };
        count(&listed, &FeatureGates::default(), &pods(4), Total::Known(4), counting, at(now)).status
    };
    // The manager has perhaps not seen yet what we see; a Pod that it drops while we keep it costs nothing.
    assert_eq!((numbers(&beside(NOW)), beside(NOW).disrupted_pods.len()), ([0, 3, 3, 4], 2));
    // While no manager is there, they end all the same.
    assert_eq!(numbers(&beside("2026-01-01T00:01:20Z")), [1, 4, 3, 4]);
}

#[test]
fn b2_without_its_workload_nothing_has_to_stay_and_the_status_says_so() {
    let known_for = |_: &str, _| Duration::ZERO;
    let total = Total::NoWorkload("spec.targetRef: CloneSet \"web\" is not there".into());
    let none = count(&budget(json!({})), &FeatureGates::default(), &pods(2), total, manager(&known_for), at(NOW));
    assert_eq!(numbers(&none.status), [2, 2, 0, 0]);
    let condition = &none.status.conditions[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "TargetMissing"));
}

#[test]
fn a_number_that_cannot_be_found_out_is_not_taken_for_none() {
    let known_for = |_: &str, _| Duration::ZERO;
    let unknown = |recorded: i32| {
        let budget = budget(json!({"status": {"totalReplicas": recorded}}));
        let total = Total::Unknown("Forbidden", "no right".into());
        count(&budget, &FeatureGates::default(), &pods(3), total, manager(&known_for), at(NOW)).status
    };
    assert_eq!(numbers(&unknown(0)), [1, 3, 2, 3]);
    assert_eq!(numbers(&unknown(5)), [0, 3, 4, 5], "what was known counts on");
    assert_eq!(unknown(0).conditions[0].reason, "Forbidden");
    // The annotation is stronger than what cannot be read.
    let fixed = budget(json!({"metadata": {"annotations": {"pub.kruise.io/protect-total-replicas": "10"}}}));
    let total = Total::Unknown("Forbidden", "no right".into());
    let status = count(&fixed, &FeatureGates::default(), &pods(3), total, manager(&known_for), at(NOW)).status;
    assert_eq!(numbers(&status), [0, 3, 9, 10]);
}

#[test]
fn a_budget_that_says_no_number_protects_nothing_and_says_so() {
    let none = budget(json!({"spec": {"maxUnavailable": null}}));
    let status = counted(&none, &pods(3), 3, 0).status;
    assert_eq!((status.desired_available, status.conditions[0].reason.as_str()), (0, "InvalidSpec"));
    let odd = budget(json!({"spec": {"maxUnavailable": "5"}}));
    let status = counted(&odd, &pods(3), 3, 0).status;
    assert!(status.conditions[0].message.contains("spec.maxUnavailable: \"5\""), "{status:?}");
}

#[test]
fn decision_27_while_updates_are_not_protected_the_status_says_so() {
    let updates = |gates: &str| {
        let gates = FeatureGates::parse(&[gates], None).unwrap();
        let known_for = |_: &str, _| Duration::ZERO;
        let counting = manager(&known_for);
        let status = count(&budget(json!({})), &gates, &pods(1), Total::Known(1), counting, at(NOW)).status;
        (status.conditions[1].status.clone(), status.conditions[1].message.clone())
    };
    assert!(updates("").1.starts_with("updates not protected: the feature gate PodUnavailableBudgetUpdateGate"));
    assert_eq!(updates("PodUnavailableBudgetUpdateGate=true").0, "True");
}

#[test]
fn gates_and_annotation_say_what_is_protected() {
    use Operation::{Delete, Evict, Resize, Restart, Update};
    let all = [Delete, Evict, Update, Resize, Restart];
    let on = "PodUnavailableBudgetUpdateGate=true";
    let split = "PodUnavailableBudgetUpdateGate=true,InPlacePodVerticalScaling=true";
    for (gates, annotation, want) in [
        ("", None, [true, true, false, false, false]),
        (on, None, [true, true, true, true, true]),
        (split, None, [true, true, true, false, true]),
        (split, Some("RESIZE"), [false, false, false, true, false]),
        (on, Some("DELETE"), [true, false, false, false, false]),
        (on, Some("EVICT, UPDATE"), [false, true, true, true, true]),
        (on, Some(""), [true, true, true, true, true]),
        (
            "PodUnavailableBudgetDeleteGate=false,PodUnavailableBudgetUpdateGate=true",
            None,
            [false, false, true, true, true],
        ),
        ("PodWebhook=false", None, [false; 5]),
    ] {
        let gates = FeatureGates::parse(&[gates], None).unwrap();
        let annotations = annotation.map(|text| json!({"kruise.io/pub-protect-operations": text}));
        let budget = budget(json!({"metadata": {"annotations": annotations}}));
        assert_eq!(all.map(|operation| protects(&budget, &gates, operation)), want, "{annotation:?}");
    }
}

proptest::proptest! {
    /// Whatever is asked for in whatever order, a budget is never overdrawn by consents.
    #[test]
    fn consents_never_take_more_than_is_allowed(total in 1..20_i32, most in 0..5_i32, asks in proptest::collection::vec(0..20_usize, 0..60)) {
        let budget = budget(json!({"spec": {"maxUnavailable": most}}));
        let mut status = counted(&budget, &pods(total.try_into().unwrap()), total, 0).status;
        let mut taken = std::collections::BTreeSet::new();
        for i in asks.iter().filter(|i| **i < total as usize) {
            let answer = take(&mut status, &ask(&format!("p{i}"), Operation::Delete), at(NOW));
            if matches!(answer, Answer::Taken | Answer::AlreadyTaken | Answer::Free) {
                taken.insert(*i);
            }
        }
        if total > most {
            proptest::prop_assert!(taken.len() <= most as usize);
        }
        proptest::prop_assert!(status.unavailable_allowed >= 0);
    }
}

#[test]
fn of_two_totals_the_one_that_keeps_more_pods_counts() {
    let status = Status {
        total_replicas: 4,
        desired_available: 2,
        current_available: 4,
        unavailable_allowed: 2,
        ..Status::default()
    };
    let spec: PodUnavailableBudgetSpec = serde_json::from_value(serde_json::json!({"maxUnavailable": "50%"})).unwrap();
    for (total, want) in [(4, [4, 2, 2]), (6, [6, 3, 1]), (10, [10, 5, 0]), (2, [4, 2, 2]), (0, [4, 2, 2])] {
        let careful = with_total(&status, &spec, total);
        assert_eq!([careful.total_replicas, careful.desired_available, careful.unavailable_allowed], want, "{total}");
    }
    let unreadable: PodUnavailableBudgetSpec = serde_json::from_value(serde_json::json!({})).unwrap();
    assert_eq!(with_total(&status, &unreadable, 10), status);
}
