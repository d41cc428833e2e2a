//! Records that several replicas add at the same time: no conflicts, and never a Pod more than there is room for.

use super::*;

/// The status of a subset with so many Pods that are there and these that are on record, beside one without a limit.
fn recorded(replicas: i32, max: i32, creating: &[&str]) -> Value {
    let since = |key: &&str| ((*key).to_owned(), json!("2026-01-01T00:00:00Z"));
    let missing = max - replicas - i32::try_from(creating.len()).unwrap();
    let mut a = json!({"name": "a", "replicas": replicas, "missingReplicas": missing.max(0)});
    if !creating.is_empty() {
        a["creatingPods"] = creating.iter().map(since).collect::<serde_json::Map<_, _>>().into();
    }
    let b = json!({"name": "b", "replicas": 0, "missingReplicas": -1});
    json!({"observedGeneration": 1, "versionedSubsetStatuses": {"versionIgnored": [a, b]}})
}

/// Somebody else writes the status.
fn write(server: &Server, status: Value) {
    let mut objects = lock(&server.objects);
    let object = objects.get_mut(SPREAD).unwrap();
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["status"] = status;
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

fn limited(max: i32, status: Value) -> Arc<Server> {
    let server = Server::new(subsets(&[("a", json!(max)), ("b", Value::Null)]));
    write(&server, status);
    server
}

fn counts(server: &Server) -> (usize, usize) {
    (server.writes.load(Ordering::SeqCst), server.conflicts.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn three_replicas_that_record_at_the_same_time_meet_no_conflict() {
    let server = limited(100, recorded(1, 100, &["other"]));
    let replicas = [server.replica(), server.replica(), server.replica()];
    let placed = join_all((0..3).map(|i| place(&replicas[i], pod(&format!("web-{i}"))))).await;
    assert_eq!(placed.iter().map(subset_of).collect::<Vec<_>>(), ["a", "a", "a"]);
    assert_eq!((counts(&server), server.recorded()["a"]), ((3, 0), 4));
    // What the controller has written meanwhile stays too.
    write(&server, recorded(3, 100, &["web-2", "more"]));
    assert_eq!(subset_of(&place(&replicas[0], pod("web-3")).await), "a");
    assert_eq!((counts(&server), server.recorded()["a"]), ((4, 0), 3));
    assert_eq!(server.spread().status.unwrap().versioned_subset_statuses["versionIgnored"][0].replicas, 3);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_know_that_a_subset_is_full_passes_no_limit() {
    for (replicas, subset, of_subset, writes) in [(18, "a", 2, 1), (19, "b", 1, 2), (20, "b", 1, 2), (40, "b", 1, 2)] {
        let server = limited(20, recorded(1, 20, &["other"]));
        let late = server.replica();
        write(&server, recorded(replicas, 20, &["other"]));
        assert_eq!(subset_of(&place(&late, pod("web-1")).await), subset, "{replicas}");
        let found = (counts(&server), server.recorded()["a"]);
        assert_eq!(found, ((writes, 0), of_subset), "{replicas}: what does not count is taken away");
    }
}

/// Of eight Pods at once with room for three, three go there.
#[tokio::test(start_paused = true)]
async fn what_room_there_is_goes_to_those_that_asked_for_more() {
    let server = limited(30, recorded(1, 30, &["other"]));
    let late = server.replica();
    write(&server, recorded(26, 30, &["other"]));
    let ask = |i: i32| SpreadAsk::Create { key: format!("web-{i}"), version: "versionIgnored".into() };
    let questions: Vec<Question> = (0..8).map(|i| Question::Pod(ask(i))).collect();
    let settled = late.settle(&ObjectKey::new("ns", "ws"), &questions).await;
    let in_subset = |index: usize| {
        let answers = settled.iter().map(|settled| settled.as_ref().unwrap().as_ref().unwrap().answer);
        answers.filter(|answer| matches!(answer, SpreadAnswer::Subset(of, _) if *of == index)).count()
    };
    assert_eq!((in_subset(0), in_subset(1), server.recorded()["a"]), (3, 5, 4));
    assert_eq!(counts(&server), (2, 0));
}

/// The replica that has recorded it was gone before it could see that it does not count.
#[tokio::test(start_paused = true)]
async fn a_record_beyond_the_limit_is_no_place() {
    for (replicas, subset) in [(19, "a"), (20, "b")] {
        let server = limited(20, recorded(replicas, 20, &["web-1"]));
        assert_eq!(subset_of(&place(&server.replica(), pod("web-1")).await), subset, "{replicas}");
        assert_eq!(counts(&server), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_records_are_gone_it_is_decided_again() {
    let server = limited(100, recorded(1, 100, &["other"]));
    let late = server.replica();
    write(&server, recorded(2, 100, &[]));
    assert_eq!(subset_of(&place(&late, pod("web-1")).await), "a");
    let status = server.spread().status.unwrap();
    let a = &status.versioned_subset_statuses["versionIgnored"][0];
    assert_eq!((a.replicas, a.creating_pods.len(), a.missing_replicas), (2, 1, 97));
    assert_eq!(counts(&server), (1, 0));
}

/// They would take room from all others until they are too old.
#[tokio::test(start_paused = true)]
async fn records_that_do_not_count_are_removed_even_if_the_turn_ends_first() {
    let server = limited(20, recorded(1, 20, &["other"]));
    let late = server.replica();
    write(&server, recorded(19, 20, &["other"]));
    server.refuses_bound.store(true, Ordering::SeqCst);
    let placed = place(&late, pod("web-1")).await;
    assert_eq!((subset_of(&placed).as_str(), placed.warning.is_some()), ("none", true));
    assert_eq!(server.recorded()["a"], 2);
    server.refuses_bound.store(false, Ordering::SeqCst);
    tokio::time::sleep(LIMIT + Duration::from_millis(10)).await;
    assert_eq!(server.recorded()["a"], 1);
}
