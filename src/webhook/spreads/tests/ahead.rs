//! Places that are recorded ahead of the Pods that take them: few writes, and never a Pod more than there is room for.

use jiff::SignedDuration;

use super::*;
use crate::{
    liveness::Random,
    runtime::clock,
    webhook::spreads::ahead::{LONGEST_UNREAD, source},
};

const MILLI: Duration = Duration::from_millis(1);

/// A Pod that was created: its key, and its subset.
fn key_of(name: &str, placed: &Placed) -> (String, String) {
    let note = placed.pod.as_ref().unwrap()["metadata"]["annotations"]["apps.kruise.io/matched-workloadspread"].clone();
    let note: Value = serde_json::from_str(note.as_str().unwrap()).unwrap();
    (note["uid"].as_str().unwrap_or(name).to_owned(), note["subset"].as_str().unwrap().to_owned())
}

/// The manager: `pods` are those that there are, by key; `seen` says which it has seen, also of those that are gone.
fn count(server: &Server, pods: &BTreeMap<String, String>, seen: impl Fn(&str) -> bool) {
    let mut objects = lock(&server.objects);
    let object = objects.get_mut(SPREAD).unwrap();
    let mut status: WorkloadSpread = serde_json::from_value(object.clone()).unwrap();
    let status = status.status.as_mut().unwrap();
    for entry in status.versioned_subset_statuses.values_mut().flatten() {
        entry.creating_pods.retain(|key, _| !seen(key));
        let there = pods.iter().filter(|(key, of)| **of == entry.name && !entry.creating_pods.contains_key(*key));
        entry.replicas = i32::try_from(there.count()).unwrap();
        entry.deleting_pods.clear();
    }
    object["status"] = json!(status);
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

#[tokio::test(start_paused = true)]
async fn while_pods_come_fast_most_of_them_wait_for_no_write_and_what_is_not_used_is_given_back() {
    let server = Server::new(subsets(&[("a", json!(1000)), ("b", Value::Null)]));
    let spreads = server.replica();
    let mut pods = BTreeMap::new();
    for i in 0..200 {
        let name = format!("web-{i}");
        let (key, subset) = key_of(&name, &place(&spreads, pod(&name)).await);
        assert_eq!(subset, "a");
        let status = server.spread().status.unwrap();
        let recorded = &status.versioned_subset_statuses["versionIgnored"][0].creating_pods;
        assert!(recorded.contains_key(&key), "{key} is on record");
        assert!(pods.insert(key.clone(), subset).is_none(), "{key} is given to two Pods");
        tokio::time::sleep(10 * MILLI).await;
    }
    let writes = server.writes.load(Ordering::SeqCst);
    assert!(writes <= 30, "{writes} writes for 200 Pods");
    tokio::time::sleep(ahead_lasts()).await;
    assert_eq!(server.recorded()["a"], 200, "nothing else is left on record");
    assert_eq!(server.conflicts.load(Ordering::SeqCst), 0);
}

/// Until the last place is given back.
fn ahead_lasts() -> Duration {
    crate::domain::kinds::workload_spread::ahead::LONGEST + 100 * MILLI
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_slowly_are_recorded_one_by_one() {
    let server = Server::new(subsets(&[("a", json!(1000)), ("b", Value::Null)]));
    let spreads = server.replica();
    for i in 0..20 {
        place(&spreads, pod(&format!("web-{i}"))).await;
        assert_eq!(server.recorded()["a"], i + 1);
        tokio::time::sleep(100 * MILLI).await;
    }
}

#[tokio::test(start_paused = true)]
async fn places_of_another_spec_or_of_a_subset_without_places_are_not_given_away() {
    for changes in [
        json!({"metadata": {"generation": 2}}),
        json!({"metadata": {"uid": "another"}}),
        json!({"status": {"subsetStatuses": [{"name": "a", "replicas": 0, "missingReplicas": 0,
            "conditions": [{"type": "Schedulable", "status": "False"}]}]}}),
    ] {
        let strategy = json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 30}});
        let mut spec = subsets(&[("a", json!(1000)), ("b", Value::Null)]);
        spec["scheduleStrategy"] = strategy;
        let server = Server::new(spec);
        let spreads = server.replica();
        for i in 0..20 {
            place(&spreads, pod(&format!("web-{i}"))).await;
        }
        let is_ahead = |placed: &Placed| key_of("by name", placed).0.starts_with("ahead:");
        assert!(is_ahead(&place(&spreads, pod("next")).await));
        let mut object = json!(server.spread());
        json_patch::merge(&mut object, &changes);
        object["metadata"]["resourceVersion"] = "1000".into();
        server.put(SPREAD, object.clone());
        spreads.know(&[object]);
        assert!(!is_ahead(&place(&spreads, pod("last")).await), "{changes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_percentage_is_of_what_is_wanted_now_so_nothing_is_recorded_ahead() {
    let server = Server::new(subsets(&[("a", json!("50%")), ("b", json!("50%"))]));
    server.put(CLONE_SET, clone_set(1000));
    let spreads = server.replica();
    for i in 0..50 {
        place(&spreads, pod(&format!("web-{i}"))).await;
    }
    assert_eq!(server.recorded()["a"], 50);
}

#[tokio::test(start_paused = true)]
async fn while_pods_come_fast_few_of_them_wait_for_a_look_at_subsets_that_are_full() {
    let server = Server::new(subsets(&[("a", json!(50)), ("b", json!(150)), ("c", Value::Null)]));
    let spreads = server.replica();
    let mut next = 0;
    let mut come = async |count: usize| {
        let mut found = BTreeMap::<String, usize>::new();
        for _ in 0..count {
            next += 1;
            *found.entry(subset_of(&place(&spreads, pod(&format!("web-{next}"))).await)).or_default() += 1;
            tokio::time::sleep(10 * MILLI).await;
        }
        found
    };
    let wanted = |found: &[(&str, usize)]| found.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(come(200).await, wanted(&[("a", 50), ("b", 150)]));
    let (reads, writes) = (server.rereads.load(Ordering::SeqCst), server.writes.load(Ordering::SeqCst));
    assert!(reads <= 10, "{reads} reads while each write brings the status");
    assert_eq!(come(200).await, wanted(&[("c", 200)]));
    let reads = server.rereads.load(Ordering::SeqCst) - reads;
    assert!((10..=25).contains(&reads), "{reads} reads in two seconds");
    assert_eq!(server.writes.load(Ordering::SeqCst), writes);

    // Room comes back of which the watch brings nothing.
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"]["versionIgnored"][0] =
        json!({"name": "a", "replicas": 45, "missingReplicas": 5});
    object["metadata"]["resourceVersion"] = "1000".into();
    server.put(SPREAD, object);
    let found = come(40).await;
    assert_eq!((found["a"], found.get("b")), (5, None), "{found:?}");
    // After a pause the first Pod waits for a look.
    tokio::time::sleep(LONGEST_UNREAD).await;
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"]["versionIgnored"][0] =
        json!({"name": "a", "replicas": 49, "missingReplicas": 1});
    object["metadata"]["resourceVersion"] = "2000".into();
    server.put(SPREAD, object);
    assert_eq!(come(1).await, wanted(&[("a", 1)]));
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_slowly_wait_for_a_look_at_subsets_that_are_full_each() {
    let server = Server::new(subsets(&[("a", json!(0)), ("b", Value::Null)]));
    let spreads = server.replica();
    for i in 1..=20 {
        assert_eq!(subset_of(&place(&spreads, pod(&format!("web-{i}"))).await), "b");
        assert_eq!(server.rereads.load(Ordering::SeqCst), i);
        tokio::time::sleep(100 * MILLI).await;
    }
}

#[tokio::test(start_paused = true)]
async fn that_every_subset_is_full_is_not_said_by_what_was_read_a_moment_ago() {
    let server = Server::new(subsets(&[("a", json!(40))]));
    let spreads = server.replica();
    for i in 0..40 {
        assert_eq!(subset_of(&place(&spreads, pod(&format!("web-{i}"))).await), "a");
    }
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"]["versionIgnored"][0] =
        json!({"name": "a", "replicas": 39, "missingReplicas": 1});
    object["metadata"]["resourceVersion"] = "1000".into();
    server.put(SPREAD, object);
    assert_eq!(subset_of(&place(&spreads, pod("next")).await), "a");
    assert_eq!(subset_of(&place(&spreads, pod("last")).await), "none");
}

#[tokio::test(start_paused = true)]
async fn beside_places_of_another_replica_a_small_part_of_the_room_is_taken() {
    for (others, kept) in [(json!({}), 100 / 3), (json!({"ahead:1:other:0": "2026-01-01T00:00:00Z"}), 99 / 8)] {
        let server = Server::new(subsets(&[("a", json!(150)), ("b", Value::Null)]));
        let mut object = json!(server.spread());
        let known = json!({"name": "a", "replicas": 0, "missingReplicas": 150, "creatingPods": others});
        object["status"]["versionedSubsetStatuses"] = json!({"versionIgnored": [known]});
        object["metadata"]["resourceVersion"] = "2".into();
        server.put(SPREAD, object);
        let before = server.recorded()["a"];
        let spreads = server.replica();
        join_all((0..50).map(|i| place(&spreads, pod(&format!("web-{i}"))))).await;
        assert_eq!(server.recorded()["a"] - before, 50 + kept);
    }
}

#[tokio::test(start_paused = true)]
async fn places_whose_write_had_no_answer_are_given_back() {
    let server = Server::new(subsets(&[("a", json!(100)), ("b", Value::Null)]));
    let spreads = server.replica();
    let come = |from: usize| join_all((from..from + 40).map(|i| place(&spreads, pod(&format!("web-{i}")))));
    let mut placed = come(0).await;
    server.loses_answers.store(true, Ordering::SeqCst);
    placed.extend(come(40).await);
    assert!(placed.iter().any(|placed| placed.pod.is_none()), "some waited for a write");
    let is_ahead = |key: &String| key.starts_with("ahead:");
    let given: Vec<String> =
        placed.iter().filter(|placed| placed.pod.is_some()).map(|placed| key_of("", placed).0).collect();
    let on_record = || {
        let status = server.spread().status.unwrap();
        let recorded = status.versioned_subset_statuses["versionIgnored"][0].creating_pods.clone();
        recorded.into_keys().filter(is_ahead).filter(|key| !given.contains(key)).count()
    };
    assert!(on_record() > 0);
    server.loses_answers.store(false, Ordering::SeqCst);
    tokio::time::sleep(LIMIT + 100 * MILLI).await;
    assert_eq!(on_record(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_nothing_is_given_back() {
    let server = Server::new(subsets(&[("a", json!(100)), ("b", Value::Null)]));
    let spreads = server.replica();
    let come = |from: usize| join_all((from..from + 40).map(|i| place(&spreads, pod(&format!("web-{i}")))));
    come(0).await;
    server.refuses.store(true, Ordering::SeqCst);
    assert!(come(40).await.iter().any(|placed| placed.pod.is_none()), "some waited for a write");
    let spread = server.spread();
    assert_eq!(spreads.ahead.unused(&ObjectKey::of(&spread), &source(&spread), Instant::now()), []);
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_when_the_status_was_read_is_waited_for() {
    let now = clock::now().wall;
    // It is given back 40 ms from now.
    let until = (now - SignedDuration::from_millis(10)).as_millisecond();
    let server = Server::new(subsets(&[("a", json!(1)), ("b", Value::Null)]));
    let mut object = json!(server.spread());
    object["status"]["versionedSubsetStatuses"] = json!({"versionIgnored": [{"name": "a", "replicas": 0, "missingReplicas": 0,
        "creatingPods": {format!("ahead:{until}:other:0"): "2026-01-01T00:00:00Z"}}]});
    server.put(SPREAD, object);
    let spreads = server.replica();
    let spread = server.spread();
    let spec = SpreadSpec::of(&spread).unwrap();
    let kept = || spreads.kept_by_others(&spread, &spec, ("versionIgnored", 1), Duration::ZERO);
    let key = ObjectKey::of(&spread);
    let at = Instant::now();
    spreads.ahead.asked(&key, "versionIgnored", at);
    tokio::time::advance(80 * MILLI).await;
    assert_eq!(kept(), None, "it was given back 40 ms ago");
    spreads.ahead.was_read(&key, &source(&spread), at);
    assert!(kept().is_some(), "as far as is known from a read 80 ms ago it is kept");
}

/// Three replicas with different loads, watches that lag, a manager that counts now and then, Pods that are deleted, creations
/// that are refused after the webhook.
#[tokio::test(start_paused = true)]
async fn no_random_history_passes_a_limit_and_the_first_subset_is_filled_before_the_next() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let (limits, has_deletions) = ([20 + random.below(200), 10 + random.below(100)], random.chance(50));
        let server = Server::new(subsets(&[("a", json!(limits[0])), ("b", json!(limits[1])), ("c", Value::Null)]));
        let replicas = [server.replica(), server.replica(), server.replica()];
        let (mut pods, mut ever, mut made) = (BTreeMap::new(), BTreeSet::new(), 0);
        let in_subset = |pods: &BTreeMap<String, String>, name: &str| pods.values().filter(|of| *of == name).count();
        for _ in 0..150 {
            match random.below(20) {
                0..=9 => {
                    let at_once = 1 + random.below(8);
                    let names: Vec<String> = (0..at_once).map(|i| format!("web-{}", made + i)).collect();
                    made += at_once;
                    // Some replicas get more of them than others.
                    let chosen: Vec<usize> = names.iter().map(|_| [0, 0, 0, 1, 1, 2][random.below(6)]).collect();
                    let asked = names.iter().zip(chosen).map(|(name, of)| place(&replicas[of], pod(name)));
                    for (name, placed) in names.iter().zip(join_all(asked).await) {
                        assert_eq!(placed.warning, None, "seed {seed}");
                        let (key, subset) = key_of(name, &placed);
                        assert!(ever.insert(key.clone()), "seed {seed}: {key} is given to two Pods");
                        pods.insert(key, subset);
                    }
                    for (subset, limit) in ["a", "b"].iter().zip(limits) {
                        let there = in_subset(&pods, subset);
                        assert!(there <= limit, "seed {seed}: {there} Pods in {subset}, which may have {limit}");
                    }
                }
                10..=13 => tokio::time::sleep(MILLI * u32::try_from(random.below(60)).unwrap()).await,
                14 => tokio::time::sleep(MILLI * u32::try_from(random.below(1000)).unwrap()).await,
                15 | 16 => replicas[random.below(3)].know(&[json!(server.spread())]),
                17 | 18 => {
                    let lag = random.below(4);
                    count(&server, &pods, |key| ever.contains(key) && key.len() % 4 != lag);
                }
                _ if has_deletions => {
                    let keys: Vec<String> = pods.keys().cloned().collect();
                    if let Some(key) = random.one_of(&keys) {
                        pods.remove(key);
                        count(&server, &pods, |key| ever.contains(key));
                    }
                }
                _ => {}
            }
        }
        tokio::time::sleep(ahead_lasts()).await;
        count(&server, &pods, |key| ever.contains(key));
        assert_eq!(server.recorded().values().sum::<usize>(), 0, "seed {seed}: no place is kept for ever");
        if !has_deletions {
            let (a, b) = (made.min(limits[0]), made.saturating_sub(limits[0]).min(limits[1]));
            assert_eq!((in_subset(&pods, "a"), in_subset(&pods, "b")), (a, b), "seed {seed}: of {made} Pods");
        }
    }
}
