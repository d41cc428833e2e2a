use serde_json::{Value, json};

use super::*;

/// What is changed, in words, and how.
type Case = (&'static str, fn(&mut Value));

const ACCOUNT: &str = "system:serviceaccount:kruise-system:kruise-daemon";

fn review(change: impl FnOnce(&mut Value)) -> TokenReviewStatus {
    let mut status = json!({
        "authenticated": true, "audiences": [AUDIENCE],
        "user": {"username": ACCOUNT, "extra": {NODE_NAME: ["n1"], POD_NAME: ["d"], POD_UID: ["u"]}},
    });
    change(&mut status);
    serde_json::from_value(status).unwrap()
}

#[test]
fn a_daemon_is_known_by_the_node_in_its_token() {
    assert_eq!(caller(&review(|_| {}), ACCOUNT), Ok(Caller::OfNode("n1".into())));
    let without = review(|s| s["user"]["extra"].as_object_mut().unwrap().remove(NODE_NAME).map(drop).unwrap());
    assert_eq!(caller(&without, ACCOUNT), Ok(Caller::InPod("d".into(), "u".into())));
}

#[test]
fn nobody_else_is_let_in() {
    let cases: [Case; 8] = [
        ("not valid", |s| s["authenticated"] = false.into()),
        ("gone", |s| *s = json!({"authenticated": false, "error": "gone"})),
        ("not meant for", |s| s["audiences"] = json!(["https://kubernetes.default.svc"])),
        ("not meant for", |s| s["audiences"] = Value::Null),
        ("is not system:serviceaccount:kruise-system:kruise-daemon", |s| {
            s["user"]["username"] = "system:serviceaccount:team:kruise-daemon".into();
        }),
        ("is not", |s| s["user"] = Value::Null),
        ("not bound to a Pod", |s| s["user"]["extra"] = json!({})),
        ("not bound to a Pod", |s| s["user"]["extra"] = json!({NODE_NAME: ["n1"]})),
    ];
    for (want, change) in cases {
        let error = caller(&review(change), ACCOUNT).unwrap_err().to_string();
        assert!(error.contains(want), "{want}: {error}");
    }
}

fn owner(namespace: &str, job: &str) -> Value {
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": namespace, "name": job,
        "uid": format!("{job}-uid")})
}

fn node(pull_secrets: Value, owners: Value, statuses: Value) -> NodeImage {
    serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": {"name": "n1"},
        "spec": {"images": {"r.example/app": {"pullSecrets": pull_secrets,
            "tags": [{"tag": "v1", "version": 2, "ownerReferences": owners}, {"tag": "v2"}]}}},
        "status": {"imageStatuses": statuses},
    }))
    .unwrap()
}

fn question(image: &str, tag: &str, version: i64) -> Question {
    Question { image: image.into(), tag: tag.into(), version }
}

/// F6: Secrets stand beside the image, jobs beside its tags: each Secret is for the jobs of its own namespace.
#[test]
fn f6_secrets_of_a_namespace_are_for_the_jobs_of_that_namespace() {
    let secrets = json!([{"namespace": "a", "name": "s"}, {"namespace": "b", "name": "s"}, {"namespace": "c", "name": "s"},
        {"namespace": "a", "name": "s", "mode": "batch"}]);
    let foreign = json!({"apiVersion": "other/v1", "kind": "ImagePullJob", "namespace": "c", "name": "x", "uid": "y"});
    let object = node(secrets, json!([owner("a", "one"), owner("a", "two"), foreign]), json!({}));
    let found = candidates(&object, &question("r.example/app", "v1", 2)).unwrap();
    let jobs = vec![("one".to_owned(), "one-uid".to_owned()), ("two".to_owned(), "two-uid".to_owned())];
    assert_eq!(found, [Candidate { namespace: "a".into(), name: "s".into(), leave: Leave::Jobs(jobs) }]);
}

/// Beside one of a job, in the same image: neither gets what was written for the other.
#[test]
fn secrets_by_hand_are_for_entries_that_no_job_wants_and_those_of_jobs_are_not() {
    let secrets = json!([{"namespace": "a", "name": "of-job", "mode": "job"}, {"namespace": "b", "name": "mine"},
        {"namespace": "b", "name": "mine"}, {"namespace": "kruise-daemon-config", "name": "copy", "mode": "batch"},
        {"namespace": "a", "name": "both"}, {"namespace": "a", "name": "both", "mode": "job"},
        {"namespace": "../x", "name": "mine"}, {"namespace": "b", "name": "a/b"}, {"name": "none"}]);
    let object = node(secrets.clone(), json!([owner("a", "one")]), json!({}));
    let of = |object: &NodeImage, tag: &str, version: i64| {
        let found = candidates(object, &question("r.example/app", tag, version)).unwrap();
        found.into_iter().map(|c| (format!("{}/{}", c.namespace, c.name), c.leave)).collect::<Vec<_>>()
    };
    let jobs = || Leave::Jobs(vec![("one".into(), "one-uid".into())]);
    assert_eq!(of(&object, "v1", 2), [("a/of-job".to_owned(), jobs()), ("a/both".to_owned(), jobs())]);
    assert_eq!(of(&object, "v2", 0), [("b/mine".to_owned(), Leave::Author), ("a/both".to_owned(), Leave::Author)]);
    // What is no job is no reason to keep back what its author may have.
    let other = json!({"apiVersion": "other/v1", "kind": "ImagePullJob", "namespace": "b", "name": "x", "uid": "y"});
    let object = node(secrets, json!([other]), json!({}));
    assert_eq!(of(&object, "v1", 2).len(), 2);
}

#[test]
fn only_open_entries_of_the_node_are_served() {
    let object = |statuses| node(json!([{"namespace": "a", "name": "s"}]), json!([owner("a", "one")]), statuses);
    let open = object(
        json!({"r.example/app": {"tags": [{"tag": "v1", "version": 1, "completionTime": "2026-01-01T00:00:00Z"}]}}),
    );
    assert_eq!(candidates(&open, &question("r.example/app", "v1", 2)).unwrap().len(), 1, "complete is another version");
    for (asked, want) in [
        (question("r.example/other", "v1", 2), "there is no entry r.example/other, v1"),
        (question("r.example/app", "v3", 2), "there is no entry r.example/app, v3"),
        (question("r.example/app", "v1", 1), "has version 2, not 1"),
    ] {
        let error = candidates(&open, &asked).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let done = object(json!({"r.example/app": {"tags": [{"tag": "v1", "version": 2, "phase": "Succeeded",
        "completionTime": "2026-01-01T00:00:00Z"}]}}));
    assert!(candidates(&done, &question("r.example/app", "v1", 2)).unwrap_err().to_string().contains("is complete"));
}

fn job(change: impl FnOnce(&mut Value)) -> ImagePullJob {
    let mut job = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
        "metadata": {"name": "one", "namespace": "a", "uid": "one-uid"},
        "spec": {"image": "r.example/app:v1", "pullSecrets": ["s"], "completionPolicy": {}}});
    change(&mut job);
    serde_json::from_value(job).unwrap()
}

#[test]
fn a_job_has_to_run_and_to_name_the_secret_and_the_image() {
    let entry = |image: &str, tag: &str| Entry { image: image.into(), tag: tag.into() };
    let app = entry("r.example/app", "v1");
    assert!(allows(&job(|_| {}), "one-uid", "s", &app));
    let refused: [Case; 6] = [
        ("another job of the name", |j| j["metadata"]["uid"] = "new".into()),
        ("deleted", |j| j["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()),
        ("ended", |j| j["status"] = json!({"desired": 1, "completionTime": "2026-01-01T00:00:00Z"})),
        ("no longer names it", |j| j["spec"]["pullSecrets"] = json!(["t"])),
        ("another tag", |j| j["spec"]["image"] = "r.example/app:v2".into()),
        ("another repository", |j| j["spec"]["image"] = "r.example/app2:v1".into()),
    ];
    for (what, change) in refused {
        assert!(!allows(&job(change), "one-uid", "s", &app), "{what}");
    }
    // E12, and the digest that counts where a tag is there too.
    let hub = job(|j| j["spec"]["image"] = "docker.io/library/busybox".into());
    assert!(allows(&hub, "one-uid", "s", &entry("busybox", "latest")));
    let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let both = job(|j| j["spec"]["image"] = format!("r.example/app:v1@{digest}").into());
    assert!(allows(&both, "one-uid", "s", &entry("r.example/app", digest)));
}

fn found(auths: Value, image: &str) -> Vec<String> {
    let data = BTreeMap::from([(".dockerconfigjson".to_owned(), json!({ "auths": auths }).to_string().into_bytes())]);
    let found = matching("kubernetes.io/dockerconfigjson", &data, image).unwrap();
    found.into_iter().map(|credential| credential.username).collect()
}

/// E14: on the full path, not on the bare host.
#[test]
fn e14_the_closest_registry_comes_first() {
    let named = |name: &str| json!({"username": name, "password": "p"});
    let auths = json!({
        "r.example": named("host"), "r.example/team": named("team"), "https://r.example/v1/": named("versioned"),
        "r.example/team/app": named("app"), "r.example/tea": named("part of a word"), "r.example:5000": named("port"),
        "*.example": named("star"), "other.example": named("other"), "r.example/v2/team": named("below v2"),
    });
    let of = |image: &str| found(auths.clone(), image);
    assert_eq!(of("r.example/team/app:v1"), ["app", "team", "below v2", "versioned", "host", "star"]);
    assert_eq!(of("r.example/team2/app"), ["versioned", "host", "star"]);
    assert_eq!(of("r.example:5000/x"), ["port"]);
    assert_eq!(of("R.example/x"), ["versioned", "host", "star"]);
    assert_eq!(of("a.r.example/x"), Vec::<String>::new(), "a star is one label");
    let hub = json!({"https://index.docker.io/v1/": named("hub"), "docker.io/team": named("team")});
    assert_eq!(found(hub.clone(), "busybox"), ["hub"]);
    assert_eq!(found(hub, "team/app:v1"), ["team", "hub"]);
    let part = json!({"a*c.example": named("middle"), "*": named("one label"), "*.*": named("two")});
    assert_eq!(found(part, "abbc.example/x"), ["middle", "two"]);
}

/// F10: not only name and password.
#[test]
fn f10_all_ways_of_a_docker_configuration_are_read() {
    let auths = json!({"r.example": {"auth": STANDARD.encode("me:p:w\0"), "serveraddress": "https://r.example",
        "identitytoken": "i", "registrytoken": "r", "email": "e"}});
    let data = BTreeMap::from([(".dockerconfigjson".to_owned(), json!({ "auths": auths }).to_string().into_bytes())]);
    let read = matching("kubernetes.io/dockerconfigjson", &data, "r.example/x").unwrap();
    let want = Credential {
        username: "me".into(),
        password: "p:w".into(),
        server_address: "https://r.example".into(),
        identity_token: "i".into(),
        registry_token: "r".into(),
    };
    assert_eq!(read, [want]);
    assert_eq!(read[0].secrets(), ["p:w", "i", "r", &STANDARD.encode("me:p:w")]);
    assert_eq!(format!("{:?}", read[0]), "Credential(...)");
    let old = BTreeMap::from([(
        ".dockercfg".to_owned(),
        json!({"r.example": {"username": "u", "password": "p"}}).to_string(),
    )]);
    assert_eq!(matching("kubernetes.io/dockercfg", &old, "r.example/x").unwrap()[0].username, "u");
    assert!(found(json!({"r.example": {"auth": ""}}), "r.example/x").is_empty(), "nothing to show");
    assert!(found(Value::Null, "r.example/x").is_empty());
}

#[test]
fn what_is_wrong_with_a_secret_is_reported_without_what_is_in_it() {
    let data = |key: &str, text: &str| BTreeMap::from([(key.to_owned(), text.to_owned())]);
    for (type_, data, want) in [
        (
            "Opaque",
            data("x", "hidden"),
            "its type is \"Opaque\": want kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg",
        ),
        ("kubernetes.io/dockerconfigjson", data("x", "hidden"), "it has no key .dockerconfigjson"),
        ("kubernetes.io/dockerconfigjson", data(".dockerconfigjson", "hidden"), ".dockerconfigjson is not the JSON"),
        (
            "kubernetes.io/dockerconfigjson",
            data(".dockerconfigjson", r#"{"auths": {"r.example": "hidden"}}"#),
            "is not the JSON",
        ),
        ("kubernetes.io/dockercfg", data(".dockercfg", r#"["hidden"]"#), ".dockercfg is not the JSON"),
        (
            "kubernetes.io/dockercfg",
            data(".dockercfg", r#"{"r.example": {"auth": "hidden!"}}"#),
            "its entry for r.example: auth is not base64",
        ),
    ] {
        let error = matching(type_, &data, "r.example/x").unwrap_err().to_string();
        assert!(error.contains(want) && !error.contains("hidden"), "{error}");
    }
}
