use serde_json::{Value, json};

use super::*;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn node(images: Value, statuses: Value) -> NodeImage {
    serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": {"name": "n"},
        "spec": {"images": images}, "status": {"imageStatuses": statuses},
    }))
    .unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn entry(image: &str, tag: &str) -> Entry {
    Entry { image: image.into(), tag: tag.into() }
}

/// F1: upstream joins both with a colon.
#[test]
fn f1_digests_are_joined_with_an_at_sign() {
    for (image, tag, want) in [
        ("busybox", "1.36", "busybox:1.36".to_owned()),
        ("r.example:5000/a/b", "v1", "r.example:5000/a/b:v1".to_owned()),
        ("busybox", DIGEST, format!("busybox@{DIGEST}")),
    ] {
        assert_eq!(entry(image, tag).reference(), Ok(want));
    }
    assert_eq!(entry("a", DIGEST).digest(), Some(DIGEST));
    assert_eq!(entry("a", "v1").digest(), None);
}

#[test]
fn what_is_no_reference_is_named() {
    for (image, tag) in
        [("", "v1"), ("a b", "v1"), ("a:v1", "v2"), ("a", ""), ("a", "sha256:12"), ("a@b", "c"), ("Ä", "1")]
    {
        let Invalid(error) = entry(image, tag).reference().unwrap_err();
        assert!(error.contains("is no image reference: want"), "{error}");
    }
}

#[test]
fn what_is_complete_is_not_pulled_again_until_its_version_grows() {
    let images = json!({"a": {"tags": [
        {"tag": "done", "version": 2}, {"tag": "failed"}, {"tag": "again", "version": 3}, {"tag": "running"}, {"tag": "new"},
    ]}});
    let statuses = json!({"a": {"tags": [
        {"tag": "done", "phase": "Succeeded", "version": 2, "completionTime": "2026-01-01T00:00:00Z"},
        {"tag": "failed", "phase": "Failed", "completionTime": "2026-01-01T00:00:00Z"},
        {"tag": "again", "phase": "Succeeded", "version": 2, "completionTime": "2026-01-01T00:00:00Z"},
        {"tag": "running", "phase": "Pulling", "startTime": "2026-01-01T00:00:00Z"},
    ]}});
    let tags: Vec<String> = orders(&node(images, statuses)).into_iter().map(|order| order.entry.tag).collect();
    assert_eq!(tags, ["again", "new", "running"]);
}

#[test]
fn what_was_asked_for_first_is_pulled_first() {
    let images = json!({
        "a": {"tags": [{"tag": "late", "createdAt": "2026-01-01T00:00:02Z"}, {"tag": "untimed"}]},
        "b": {"tags": [{"tag": "early", "createdAt": "2026-01-01T00:00:01Z"}]},
    });
    let tags: Vec<String> = orders(&node(images, json!({}))).into_iter().map(|order| order.entry.tag).collect();
    assert_eq!(tags, ["early", "late", "untimed"]);
}

#[test]
fn e13_an_order_carries_the_policy_the_sandbox_and_the_owners() {
    let images = json!({"a": {
        "pullSecrets": [{"namespace": "x", "name": "y"}],
        "sandboxConfig": {"labels": {"l": "1"}, "annotations": {"n": "2"}},
        "tags": [{"tag": "t", "version": 4, "imagePullPolicy": "IfNotPresent",
            "pullPolicy": {"timeoutSeconds": 7, "backoffLimit": 0, "activeDeadlineSeconds": 9},
            "ownerReferences": [{"kind": "ImagePullJob", "namespace": "x", "name": "j", "uid": "u"}]}],
    }});
    let order = orders(&node(images, json!({}))).remove(0);
    let keys: Vec<&str> = order.annotations.keys().map(String::as_str).collect();
    assert_eq!(keys, ["apps.kruise.io/pulling-image-by", "n"]);
    assert_eq!((order.labels["l"].as_str(), order.owners[0].name.as_deref()), ("1", Some("j")));
    assert!(order.if_not_present && order.has_secrets);
    assert_eq!((order.version, order.attempts), (4, 1));
    assert_eq!((order.attempt_limit, order.limit), (Duration::from_secs(7), Some(Duration::from_secs(9))));

    let plain = orders(&node(json!({"a": {"tags": [{"tag": "t"}]}}), json!({}))).remove(0);
    assert_eq!((plain.attempts, plain.attempt_limit, plain.limit), (4, Duration::from_secs(600), None));
    assert!(!plain.if_not_present && !plain.has_secrets, "nothing written behaves like Always");
    let deadline =
        json!({"a": {"tags": [{"tag": "t", "pullPolicy": {"activeDeadlineSeconds": -1, "backoffLimit": -1}}]}});
    let odd = orders(&node(deadline, json!({}))).remove(0);
    assert_eq!((odd.attempts, odd.limit), (4, Some(Duration::ZERO)));
}

#[test]
fn attempts_end_with_their_number_or_the_deadline() {
    let images = json!({"a": {"tags": [{"tag": "t",
        "pullPolicy": {"timeoutSeconds": 30, "backoffLimit": 1, "activeDeadlineSeconds": 50}}]}});
    let order = orders(&node(images, json!({}))).remove(0);
    let seconds = Duration::from_secs;
    for (failed, elapsed, want) in
        [(0, 0, Some(30)), (1, 31, Some(19)), (2, 31, None), (1, 50, None), (0, 60, None), (0, 20, Some(30))]
    {
        assert_eq!(order.next_attempt(failed, seconds(elapsed)), want.map(seconds), "{failed} {elapsed}");
    }
    assert!(order.is_overdue(seconds(50)) && !order.is_overdue(seconds(49)));
}

#[test]
fn pauses_double_up_to_half_a_minute() {
    let pauses: Vec<u64> = (1..9).map(|failed| pause(failed).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(pause(u32::MAX).as_secs(), 30);
}

#[test]
fn a_status_follows_the_spec_and_keeps_what_is_recorded() {
    let images = json!({
        "b": {"tags": [{"tag": "z", "version": 1}, {"tag": "a"}]},
        "c": {"tags": [{"tag": "done"}]},
        "empty": {"tags": []},
    });
    let recorded = json!({
        "c": {"tags": [{"tag": "done", "phase": "Failed", "completionTime": "2026-01-01T00:00:00Z", "message": "no answer",
            "newer": 1}], "unknown": true},
        "gone": {"tags": [{"tag": "x", "phase": "Pulling"}]},
    });
    let started = at("2026-01-01T00:00:00.7Z");
    let states = [
        (entry("b", "z"), (1, OrderState::Pulling { started, percent: 40, message: "m".into() })),
        // Of a version that is not wanted any more, and what the manager has given up already.
        (entry("b", "a"), (7, OrderState::Waiting)),
        (entry("c", "done"), (0, OrderState::Ended { started, completed: started, result: Ok("c@id".into()) })),
    ];
    let status = status(&node(images, recorded), &states.into(), at("2026-01-01T00:01:00Z"));
    let written = serde_json::to_value(&status).unwrap();
    assert_eq!(
        written,
        json!({
            "desired": 3, "succeeded": 0, "failed": 1, "pulling": 1, "waiting": 1,
            "imageStatuses": {
                "b": {"tags": [{"tag": "a", "phase": "Waiting", "progress": 0},
                    {"tag": "z", "phase": "Pulling", "progress": 40, "startTime": "2026-01-01T00:00:00Z", "version": 1,
                        "message": "m"}]},
                "c": {"tags": [{"tag": "done", "phase": "Failed", "progress": 0, "completionTime": "2026-01-01T00:00:00Z",
                    "message": "no answer", "newer": 1}], "unknown": true},
            },
        })
    );
}

#[test]
fn messages_fit_into_the_object_and_a_namespace_that_says_little_is_not_cut() {
    let now = at("2026-01-01T00:00:00Z");
    let tag = |name: String, namespace: &str| json!({"tag": name, "ownerReferences": [{"kind": "ImagePullJob", "namespace": namespace}]});
    let of_many: Vec<Value> = (0..1022).map(|i| tag(format!("m{i}"), "many")).collect();
    let images = json!({"a": {"tags": of_many}, "b": {"tags": [tag("few".into(), "few"), {"tag": "by-hand"}]}});
    // What was recorded before there was a limit fits too.
    let recorded = json!({"b": {"tags": [{"tag": "by-hand", "phase": "Failed", "completionTime": "2026-01-01T00:00:00Z",
        "message": "y".repeat(2 << 20)}]}});
    let failed = |image: &str, name: &str, message: String| {
        (entry(image, name), (0, OrderState::Ended { started: now, completed: now, result: Err(PullFailure(message)) }))
    };
    let mut states: BTreeMap<Entry, (i64, OrderState)> =
        (0..1022).map(|i| failed("a", &format!("m{i}"), "<".repeat(100_000))).collect();
    states.extend([failed("b", "few", "x".repeat(LONGEST_MESSAGE))]);
    let status = status(&node(images, recorded), &states, now);
    let messages = |image: &str| status.image_statuses[image].tags.iter().map(|tag| tag.message.as_str());
    let stored = crate::k8s::canonical_json::length_of_text;
    let total: usize = messages("a").chain(messages("b")).map(stored).sum();
    assert!((MESSAGES * 8 / 10..=MESSAGES).contains(&total), "{total}");
    assert_eq!(messages("b").map(str::len).collect::<Vec<_>>(), [LONGEST_MESSAGE, LONGEST_MESSAGE]);
    assert!(messages("a").all(|message| !message.is_empty()));

    let one = node(json!({"a": {"tags": [{"tag": "t"}]}}), json!({}));
    let long = super::status(&one, &[failed("a", "t", "ä".repeat(3000))].into(), now);
    let message = &long.image_statuses["a"].tags[0].message;
    assert!(message.len() <= LONGEST_MESSAGE && message.ends_with("ä..."), "{message}");
}

/// OpenKruise declares it and never fills it.
#[test]
fn f17_the_first_sync_is_recorded_once_when_all_have_ended() {
    let images = json!({"a": {"tags": [{"tag": "x"}, {"tag": "y"}]}});
    let now = at("2026-01-01T00:01:00.9Z");
    let ended = |result| (0, OrderState::Ended { started: now, completed: now, result });
    let mut states = BTreeMap::from([(entry("a", "x"), ended(Ok("a@1".into())))]);
    let mut object = node(images, json!({}));
    assert_eq!(status(&object, &states, now).first_sync_status, None);
    states.insert(entry("a", "y"), ended(Err(PullFailure("no".into()))));
    let done = status(&object, &states, now);
    let first = done.first_sync_status.clone().unwrap();
    assert_eq!((first.sync_at, first.status.as_str()), (Some(at("2026-01-01T00:01:00Z")), "Failed"));
    assert_eq!((done.image_statuses["a"].tags[0].progress, done.succeeded, done.failed), (100, 1, 1));
    object.status = Some(done);
    let later = status(&object, &BTreeMap::new(), at("2026-01-02T00:00:00Z"));
    assert_eq!(later.first_sync_status, Some(first));
    assert_eq!(Some(later), object.status, "nothing has changed: nothing is written");
}

#[test]
fn an_empty_node_has_an_empty_status() {
    let status = status(&node(json!({}), json!({})), &BTreeMap::new(), at("2026-01-01T00:00:00Z"));
    assert_eq!(status, NodeImageStatus::default());
}

#[test]
fn space_is_counted_as_df_does() {
    let space = |total, free, available| Space { total, free, available };
    for (space, used) in [
        (space(100, 100, 100), 0),
        (space(100, 0, 0), 100),
        (space(100, 20, 20), 80),
        // Five are kept for root.
        (space(100, 24, 19), 80),
        (space(1000, 209, 209), 80),
        (space(0, 0, 0), 0),
        (space(5, 9, 9), 0),
        (space(u64::MAX, 1, 1), 100),
    ] {
        assert_eq!(space.used_percent(), used, "{space:?}");
    }
    assert_eq!(space(100, 21, 21).is_short(80), None);
    let short = space(100, 20, 20).is_short(80).unwrap();
    assert!(short.contains("80% full") && short.contains("--image-fs-limit-percent"), "{short}");
    assert_eq!(space(100, 0, 0).is_short(100), None);
}

#[test]
fn disk_pressure_is_what_kubelet_reports_as_true() {
    let with = |type_: &str, status: &str| json!({"status": {"conditions": [{"type": type_, "status": status}]}});
    for (node, expected) in [
        (with("DiskPressure", "True"), true),
        (with("DiskPressure", "False"), false),
        (with("DiskPressure", "Unknown"), false),
        (with("MemoryPressure", "True"), false),
        (json!({}), false),
        (json!({"status": {"conditions": "odd"}}), false),
    ] {
        assert_eq!(is_under_disk_pressure(&node), expected, "{node}");
    }
}

#[test]
fn f19_progress_never_says_complete() {
    for (bytes, total, percent) in [(0, 10, 0), (5, 10, 50), (10, 10, 99), (7, 0, 99), (u64::MAX, u64::MAX, 99)] {
        assert_eq!(Arrived { bytes, total }.percent(), percent);
    }
    let arrived = Arrived { bytes: 3 << 19, total: 10 << 20 };
    let text = progress_message(Duration::from_millis(12_900), Some(arrived), None);
    assert_eq!(text, "pulling for 12 s, 1.5 of 10.0 MiB");
    let text = progress_message(Duration::from_secs(3), None, Some("refused"));
    assert_eq!(text, "pulling for 3 s; the attempt before failed: refused");
}

#[test]
fn layers_are_read_from_manifests_alone() {
    let manifest = json!({"config": {"digest": "sha256:c", "size": 1}, "layers": [
        {"digest": "sha256:a", "size": 10}, {"digest": "sha256:b", "size": 20}]});
    let want = vec![("sha256:a".to_owned(), 10), ("sha256:b".to_owned(), 20)];
    assert_eq!(layers(manifest.to_string().as_bytes()), Some(want));
    for other in [json!({"manifests": []}), json!([]), json!({"layers": [{"digest": 3}]}), json!({"layers": 1})] {
        assert_eq!(layers(other.to_string().as_bytes()), None);
    }
    assert_eq!(layers(b"\xff"), None);
}

#[test]
fn errors_show_no_secret() {
    let secrets = ["p4ss".to_owned(), String::new(), "dXNlcjpwNHNz".to_owned()];
    let error = "GET \"https://auth.example/token?account=me&p=p4ss\": 401 (dXNlcjpwNHNz, p4ss), see http://x/?a=b";
    assert_eq!(presentable(error, &secrets), "GET \"https://auth.example/token\": 401 (***, ***), see http://x/");
    assert_eq!(presentable("no: such/image?", &[]), "no: such/image?");
    let long = presentable(&"ä".repeat(2000), &[]);
    assert!(long.len() <= 1024 && long.ends_with("..."), "{}", long.len());
}
