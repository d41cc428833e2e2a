use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;

/// Sidecars that know these SidecarSets, an API server that answers by path, and how often it was asked.
fn sidecars(
    sets: &[Value],
    answer: impl Fn(&str) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> (Arc<Sidecars>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        counter.fetch_add(1, Ordering::Relaxed);
        let uri = request.uri().to_string();
        let (code, body) = answer(&uri);
        let body = kube::client::Body::from(body.to_string().into_bytes());
        async move { Ok::<_, tower::BoxError>(http::Response::builder().status(code).body(body).unwrap()) }
    });
    let client = Client::new(service, "default");
    let sidecars = Sidecars::new(client, &FeatureGates::default(), "kruise-system".into());
    sidecars.know(sets);
    (sidecars, asked)
}

fn nobody(path: &str) -> (u16, Value) {
    panic!("nobody is to be asked: {path}")
}

fn set(name: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": format!("c-{name}"), "image": "a:1"}]}});
    json_patch::merge(&mut object, &more);
    object
}

fn pod() -> Value {
    json!({"metadata": {"generateName": "web-", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}})
}

async fn outcome(sidecars: &Sidecars) -> Outcome {
    sidecars.outcome(&name::Namespace::parse("shop").unwrap(), &pod(), None, "seed").await.unwrap()
}

fn not_found() -> (u16, Value) {
    (
        404,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone"}),
    )
}

#[tokio::test]
async fn what_selects_a_pod_is_injected_by_the_defaults_of_admission() {
    let (sidecars, _) = sidecars(
        &[
            set("a", json!({})),
            set("other", json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}})),
            set("paused", json!({"spec": {"injectionStrategy": {"paused": true}}})),
            set("bank", json!({"spec": {"namespace": "bank"}})),
        ],
        nobody,
    );
    let done = outcome(&sidecars).await;
    assert_eq!((done.injected, done.left_out), (vec!["a".to_owned()], vec![]));
    let container = done.patch.iter().find(|operation| operation["path"] == "/spec/containers/0").unwrap();
    assert_eq!(container["value"]["imagePullPolicy"], "IfNotPresent", "one that admission has not seen");
}

#[tokio::test]
async fn a_pod_gets_the_sidecars_of_its_labels_before_a_patch_too() {
    let db = set("db", json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}}));
    let both = set(
        "both",
        json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": [{"key": "app", "operator": "Exists"}]}}}),
    );
    let (sidecars, _) = sidecars(&[set("a", json!({})), db, both], nobody);
    let shop = name::Namespace::parse("shop").unwrap();
    let mut patched = pod();
    patched["metadata"]["labels"]["app"] = "db".into();
    let alone = sidecars.outcome(&shop, &patched, None, "seed").await.unwrap();
    assert_eq!(alone.injected, ["both", "db"]);
    let with_before = sidecars.outcome(&shop, &patched, Some(&pod()), "seed").await.unwrap();
    assert_eq!(with_before.injected, ["a", "both", "db"]);
}

#[tokio::test]
async fn e13_the_revision_is_that_of_the_content_and_not_of_a_status_that_lags() {
    let stale = json!({"status": {"latestRevision": "a-old", "collisionCount": 0}});
    let (sidecars, _) = sidecars(&[set("a", stale)], nobody);
    let done = outcome(&sidecars).await;
    let annotations = &done.patch[0]["value"];
    let note: Value = serde_json::from_str(annotations["kruise.io/sidecarset-hash"].as_str().unwrap()).unwrap();
    let (spec, _) = crate::domain::kinds::sidecar_set::defaults::effective(&set("a", json!({})));
    let wanted = crate::domain::kinds::sidecar_set::revision::name("a", &spec, 0);
    assert_eq!(note["a"]["controllerRevision"], wanted);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_a_sidecar_set_that_was_let_through_a_moment_ago() {
    let version = |version: &str, image: &str| {
        let containers = json!([{"name": "c-a", "image": image}]);
        set("a", json!({"metadata": {"resourceVersion": version}, "spec": {"containers": containers}}))
    };
    let (sidecars, _) = sidecars(&[], nobody);
    let waits = async |brought: Vec<Value>| {
        let begun = clock::now().mono;
        let news = async {
            for object in &brought {
                tokio::time::sleep(Duration::from_millis(20)).await;
                sidecars.know(std::slice::from_ref(object));
            }
        };
        let asked = async {
            let done = outcome(&sidecars).await;
            (done, clock::now().mono - begun)
        };
        let ((done, waited), ()) = tokio::join!(asked, news);
        let container = done.patch.iter().find(|operation| operation["path"] == "/spec/containers/0");
        (container.map(|operation| operation["value"]["image"].clone()), waited)
    };
    let image = |image: &str| Some(Value::from(image));

    sidecars.expect(&set("db", json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}})));
    assert_eq!(waits(vec![]).await, (None, Duration::ZERO), "it is for other Pods");

    sidecars.expect(&version("1", "a:1"));
    let (got, waited) = waits(vec![version("1", "a:1")]).await;
    assert_eq!(got, image("a:1"));
    assert!(waited > Duration::ZERO && waited < coming::LONGEST, "{waited:?}");
    assert_eq!(waits(vec![]).await, (image("a:1"), Duration::ZERO), "it has come");

    sidecars.expect(&version("", "a:2"));
    let (got, waited) = waits(vec![version("2", "a:1"), version("3", "a:2")]).await;
    assert_eq!(got, image("a:2"), "a status that is written meanwhile has the spec before");
    assert!(waited > Duration::from_millis(20) && waited < coming::LONGEST, "{waited:?}");

    sidecars.expect(&version("", "a:3"));
    let (got, waited) = waits(vec![]).await;
    assert_eq!(got, image("a:2"), "somebody else has refused it");
    assert!(waited >= coming::LONGEST);
    assert_eq!(waits(vec![]).await, (image("a:2"), Duration::ZERO), "nobody waits for it again");

    sidecars.expect(&version("", "a:2"));
    assert_eq!(waits(vec![]).await, (image("a:2"), Duration::ZERO), "it is there as it is");

    sidecars.expect(&version("", "a:4"));
    sidecars.expect(&version("", "a:2"));
    let (got, waited) = waits(vec![version("5", "a:4"), version("6", "a:2")]).await;
    assert_eq!(got, image("a:2"), "it was another one in between");
    assert!(waited > Duration::from_millis(20) && waited < coming::LONGEST, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn e33_before_the_first_list_nothing_is_known() {
    let (sidecars, _) = sidecars(&[], nobody);
    sidecars.scope.send_replace(None);
    let asked = sidecars.outcome(&name::Namespace::parse("shop").unwrap(), &pod(), None, "seed").await;
    assert_eq!(asked.unwrap_err(), NotRead::Reading);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_comes_delays_no_pod_for_ever() {
    let (sidecars, _) = sidecars(&[], nobody);
    sidecars.scope.send_replace(None);
    let wait = async || {
        let begun = clock::now().mono;
        let asked = sidecars.outcome(&name::Namespace::parse("shop").unwrap(), &pod(), None, "seed").await;
        assert_eq!(asked.unwrap_err(), NotRead::Reading);
        clock::now().mono - begun
    };
    assert!(!sidecars.is_late());
    assert!(wait().await >= LIMIT);
    tokio::time::advance(FIRST_LIST).await;
    assert!(sidecars.is_late());
    assert!(wait().await < LIMIT);
    sidecars.know_of_none();
    assert!(!sidecars.is_late());
}

#[tokio::test(start_paused = true)]
async fn while_the_first_list_does_not_come_it_is_asked_why() {
    let list = json!({"kind": "SidecarSetList", "apiVersion": "apps.kruise.io/v1alpha1", "metadata": {}, "items": []});
    let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "may not list"});
    for (answer, wanted, waits) in [
        ((200, list), "the SidecarSets are still being read", true),
        (not_found(), "the kind SidecarSet is not installed", false),
        ((403, refused), "the SidecarSets cannot be read: ", true),
    ] {
        let (sidecars, _) = sidecars(&[], move |path| {
            assert!(path.contains("/sidecarsets?") && path.contains("limit=1"), "{path}");
            answer.clone()
        });
        sidecars.scope.send_replace(None);
        let all: Api<RawSidecarSet> = Api::all(sidecars.client.clone());
        let asking = unread::follow(&all, &sidecars.sets, &sidecars.unread);
        assert!(tokio::time::timeout(Duration::from_secs(12), asking).await.is_err(), "the list has not come");
        let begun = clock::now().mono;
        let asked = sidecars.outcome(&name::Namespace::parse("shop").unwrap(), &pod(), None, "seed").await;
        let why = asked.unwrap_err();
        assert!(why.to_string().starts_with(wanted), "{why}");
        assert_eq!(clock::now().mono - begun >= LIMIT, waits, "{why}");
        assert!(why == NotRead::Reading || why == NotRead::NotInstalled || why.to_string().contains("may not list"));
        // Its kind has been installed, or may be read.
        sidecars.sets.has_all();
        unread::follow(&all, &sidecars.sets, &sidecars.unread).await;
    }
}

#[tokio::test]
async fn e12_a_namespace_that_the_watch_has_not_brought_is_looked_up_once() {
    let by_label = |tier: &str| json!({"spec": {"namespaceSelector": {"matchLabels": {"tier": tier}}}});
    let sets = [set("a", by_label("gold")), set("b", by_label("gold")), set("c", by_label("tin"))];
    let (known, asked) = sidecars(&sets, |path| {
        assert!(path.contains("/api/v1/namespaces?") && path.contains("fieldSelector=metadata.name%3Dshop"), "{path}");
        let shop = json!({"metadata": {"name": "shop", "labels": {"tier": "gold"}}});
        (200, json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {}, "items": [shop]}))
    });
    assert_eq!(outcome(&known).await.injected, ["a", "b"]);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let view = json!({"metadata": {"name": "shop", "labels": {"tier": "tin"}, "resourceVersion": "2"}});
    known.namespaces.upsert(serde_json::from_value(view).unwrap());
    assert_eq!(outcome(&known).await.injected, ["c"]);
    let (unknown, _) = sidecars(&sets, |_| not_found());
    let done = outcome(&unknown).await;
    assert_eq!((done.injected.len(), done.left_out.len()), (0, 3));
    assert!(done.left_out[0].reason.starts_with("the labels of the Namespace cannot be read: "), "{done:?}");
}

fn revision(name: &str, set: &str, number: i64) -> Value {
    json!({"metadata": {"name": name, "labels": {"kruise.io/sidecarset-name": set},
            "annotations": {"kruise.io/sidecarset-hash": "of the spec before"}}, "revision": number,
        "data": {"spec": {"$patch": "replace", "containers": [{"name": "c-a", "image": format!("a:{number}")}],
            "imagePullSecrets": null, "initContainers": null, "patchPodMetadata": [{"annotations": {"from": name}}], "volumes": null}}})
}

fn images(outcome: &Outcome) -> Vec<&str> {
    outcome.patch.iter().filter_map(|operation| operation["value"]["image"].as_str()).collect()
}

#[tokio::test]
async fn d13_d14_a_pinned_revision_brings_its_own_hash_and_metadata() {
    let by_name = json!({"spec": {"injectionStrategy": {"revision": {"revisionName": "a-1"}},
        "patchPodMetadata": [{"annotations": {"from": "current"}}]}});
    let (sidecars, asked) = sidecars(&[set("a", by_name)], |path| {
        assert!(path.contains("/apis/apps/v1/namespaces/kruise-system/controllerrevisions/a-1"), "{path}");
        (200, revision("a-1", "a", 7))
    });
    let done = outcome(&sidecars).await;
    assert_eq!(images(&done), ["a:7"]);
    let annotations = &done.patch[0]["value"];
    assert_eq!(annotations["from"], "a-1");
    let note: Value = serde_json::from_str(annotations["kruise.io/sidecarset-hash"].as_str().unwrap()).unwrap();
    let own = crate::domain::kinds::sidecar_set::hash::of(&json!({"containers": [{"name": "c-a", "image": "a:7"}]}));
    assert_eq!((&note["a"]["hash"], &note["a"]["controllerRevision"]), (&json!(own.hash), &json!("a-1")));
    outcome(&sidecars).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1, "kept for the next Pod");
}

fn pinning(version: &str) -> Value {
    json!({"spec": {"injectionStrategy": {"revision": {"customVersion": version}}}})
}

fn versioned(name: &str, set: &str, number: i64, version: &str) -> Value {
    let mut revision = revision(name, set, number);
    revision["metadata"]["labels"]["apps.kruise.io/sidecarset-custom-version"] = version.into();
    revision["metadata"]["namespace"] = "kruise-system".into();
    revision
}

fn revisions(all: &[Value]) -> (u16, Value) {
    (200, json!({"kind": "ControllerRevisionList", "apiVersion": "apps/v1", "metadata": {}, "items": all}))
}

#[tokio::test(start_paused = true)]
async fn a12_by_custom_version_the_newest_revision_counts() {
    let (sidecars, asked) = sidecars(&[set("a", pinning("v1"))], |path| {
        assert!(path.ends_with("/controllerrevisions/a-3"), "it is read by its name: {path}");
        (200, revision("a-3", "a", 3))
    });
    sidecars.pinned.know(&[
        versioned("a-1", "a", 1, "v1"),
        versioned("a-3", "a", 3, "v1"),
        versioned("a-2", "a", 2, "v1"),
        versioned("a-4", "a", 4, "v2"),
        versioned("b-9", "b", 9, "v1"),
    ]);
    assert_eq!(images(&outcome(&sidecars).await), ["a:3"]);
    assert_eq!(images(&outcome(&sidecars).await), ["a:3"]);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// Also that of a role that may not watch: its store never has all.
#[tokio::test(start_paused = true)]
async fn a_custom_version_that_the_watch_has_not_brought_is_listed_once_in_a_while_and_nobody_waits_for_the_watch() {
    for is_synced in [true, false] {
        let (sidecars, asked) = sidecars(&[set("a", pinning("v1"))], |path| {
            let labels =
                "labelSelector=kruise.io%2Fsidecarset-name%3Da%2Capps.kruise.io%2Fsidecarset-custom-version%3Dv1";
            assert!(path.contains(labels), "{path}");
            revisions(&[versioned("a-1", "a", 1, "v1"), versioned("a-3", "a", 3, "v1"), versioned("a-2", "a", 2, "v1")])
        });
        if is_synced {
            sidecars.pinned.know(&[versioned("a-4", "a", 4, "v2")]);
        }
        let begun = tokio::time::Instant::now();
        for _ in 0..3 {
            for done in join_all((0..20).map(|_| outcome(&sidecars))).await {
                assert_eq!(images(&done), ["a:3"]);
            }
        }
        assert_eq!((asked.load(Ordering::Relaxed), begun.elapsed()), (1, Duration::ZERO), "one list for all of them");
        tokio::time::advance(Duration::from_secs(5)).await;
        outcome(&sidecars).await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_custom_version_that_is_not_there_is_left_out_and_not_listed_for_every_pod() {
    for (answer, wanted) in [
        (revisions(&[]), "there is no such ControllerRevision"),
        (
            (
                403,
                json!({"kind": "Status", "status": "Failure", "code": 403, "message": "may not list", "reason": "Forbidden"}),
            ),
            "may not list",
        ),
        (revisions(&[versioned("b-1", "b", 1, "v1")]), "it is no revision of this SidecarSet"),
    ] {
        let (sidecars, asked) = sidecars(&[set("a", pinning("v1"))], move |_| answer.clone());
        for _ in 0..20 {
            let done = outcome(&sidecars).await;
            assert!(
                done.left_out[0].reason.starts_with("injectionStrategy.revision.customVersion \"v1\": "),
                "{done:?}"
            );
            assert!(done.left_out[0].reason.contains(wanted), "{done:?}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
    // What cannot be in a label would be another selector.
    let (odd, asked) = sidecars(&[set("a", pinning("v1,other=x"))], nobody);
    assert!(outcome(&odd).await.left_out[0].reason.ends_with("there is no such ControllerRevision"));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

/// A request that goes on, until it is answered or given up.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_are_few_at_a_time_and_end_in_time_and_so_are_those_that_are_kept() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, peak) = (now.clone(), most.clone());
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let _running = Running(now);
            tokio::time::sleep(Duration::from_millis(400)).await;
            let body = kube::client::Body::from(revisions(&[]).1.to_string().into_bytes());
            Ok::<_, tower::BoxError>(http::Response::builder().status(200).body(body).unwrap())
        }
    });
    let slow = Sidecars::new(Client::new(service, "default"), &FeatureGates::default(), "kruise-system".into());
    slow.know(&(0..20).map(|i| set(&format!("s{i}"), pinning("v1"))).collect::<Vec<Value>>());
    let begun = tokio::time::Instant::now();
    let done = outcome(&slow).await;
    assert!(begun.elapsed() <= LIMIT, "{:?}", begun.elapsed());
    assert_eq!((done.left_out.len(), peak.load(Ordering::Relaxed)), (20, 4));
    let in_time = done.left_out.iter().filter(|left| left.reason.ends_with("there is no such ControllerRevision"));
    assert_eq!(in_time.count(), 8);
    assert_eq!(running.load(Ordering::Relaxed), 0, "what comes too late is given up");
    // Whatever is asked for, only so many answers are kept, and without room for one nothing is listed.
    for i in 0..600 {
        let name: Arc<str> = format!("t{i}").into();
        assert_eq!(slow.pinned.listed(&name, "v1", clock::now().mono).is_some(), i < 512 - 20, "{i}");
    }
}

/// An API server that takes half a second for each answer, and ten SidecarSets of which each pins a revision.
#[tokio::test(start_paused = true)]
async fn revisions_of_several_sidecar_sets_are_read_at_the_same_time() {
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let body = revision(&name, name.trim_end_matches("-1"), 1).to_string();
        let body = kube::client::Body::from(body.into_bytes());
        Ok::<_, tower::BoxError>(http::Response::builder().status(200).body(body).unwrap())
    });
    let slow = Sidecars::new(Client::new(service, "default"), &FeatureGates::default(), "kruise-system".into());
    let pinning = |i: usize| {
        let name = format!("s{i}");
        let pin = json!({"spec": {"injectionStrategy": {"revision": {"revisionName": format!("{name}-1")}}}});
        set(&name, pin)
    };
    slow.know(&(0..10).map(pinning).collect::<Vec<Value>>());
    let begun = tokio::time::Instant::now();
    let done = outcome(&slow).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(done.injected.len() + done.left_out.len(), 10);
}

#[tokio::test]
async fn e8_a_revision_of_another_sidecar_set_is_not_taken() {
    let pinned = json!({"spec": {"injectionStrategy": {"revision": {"revisionName": "b-1"}}}});
    for (answer, wanted) in [
        ((200, revision("b-1", "b", 1)), "it is no revision of this SidecarSet"),
        (
            (200, json!({"metadata": {"name": "b-1", "labels": {"kruise.io/sidecarset-name": "a"}}, "data": {}})),
            "it is no revision of this SidecarSet",
        ),
        (not_found(), "there is no such ControllerRevision"),
        (
            (500, json!({"kind": "Status", "status": "Failure", "code": 500, "message": "broken", "reason": "x"})),
            "broken",
        ),
    ] {
        let (sidecars, _) = sidecars(&[set("a", pinned.clone())], move |_| answer.clone());
        let done = outcome(&sidecars).await;
        assert!(done.left_out[0].reason.contains(wanted), "{done:?}");
        assert!(done.left_out[0].reason.starts_with("injectionStrategy.revision.revisionName \"b-1\": "), "{done:?}");
    }
}

#[tokio::test]
async fn what_was_injected_and_left_out_is_counted() {
    let (sidecars, _) =
        sidecars(&[set("a", json!({})), set("b", json!({"spec": {"containers": [{"name": "x"}]}}))], nobody);
    sidecars.count(&outcome(&sidecars).await);
    let count = |result| sidecars.injections.get_or_create(&InjectionLabels { result }).get();
    assert_eq!((count("injected"), count("left_out")), (1, 1));
}

#[tokio::test]
async fn a_sidecar_set_that_cannot_be_read_is_injected_no_more_and_its_name_is_kept() {
    let (sidecars, _) = sidecars(&[set("a", json!({}))], nobody);
    let known = |spec: Value| -> Arc<WireSidecarSet> {
        Arc::new(serde_json::from_value(set("a", json!({"spec": spec}))).unwrap())
    };
    let odd = |more: Value| {
        let mut spec = json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}});
        json_patch::merge(&mut spec, &more);
        known(spec)
    };
    let (shop, bank) = (name::Namespace::parse("shop").unwrap(), name::Namespace::parse("bank").unwrap());
    let left_out = |namespace| sidecars.unreadable(namespace, &pod()).len();
    let bad = json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Lt"}]}});
    for (set, of_shop, of_bank) in [
        (odd(json!({})), 1, 1),
        (odd(json!({"namespace": "shop"})), 1, 0),
        // The labels of namespaces are not known.
        (odd(json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}})), 1, 1),
        (known(bad.clone()), 1, 1),
        (odd(bad), 1, 1),
        // It would be injected into none.
        (odd(json!({"injectionStrategy": {"paused": true}})), 0, 0),
        (odd(json!({})), 1, 1),
    ] {
        sidecars.changed(&Change::Applied { old: None, new: &set, initial: false });
        assert_eq!((left_out(&shop), left_out(&bank)), (of_shop, of_bank));
        assert!(outcome(&sidecars).await.injected.is_empty());
    }
    let reason = sidecars.unreadable(&shop, &pod())[0].reason.clone();
    assert!(reason.starts_with("it cannot be read: spec.selector: "), "{reason}");
    let ended = json!({"metadata": {}, "spec": {}, "status": {"phase": "Failed"}});
    assert_eq!(sidecars.unreadable(&shop, &ended).len(), 1, "a phase that its creator writes is no way around it");
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}});
    assert!(sidecars.unreadable(&shop, &mirror).is_empty());
    let good = known(json!({}));
    sidecars.changed(&Change::Applied { old: None, new: &good, initial: false });
    assert_eq!((left_out(&shop), outcome(&sidecars).await.injected), (0, vec!["a".to_owned()]));
    let gone = odd(json!({}));
    sidecars.changed(&Change::Applied { old: None, new: &gone, initial: false });
    sidecars.changed(&Change::Deleted(&gone));
    assert_eq!(left_out(&shop), 0);
}

#[tokio::test]
async fn changes_and_deletions_are_followed() {
    let (sidecars, _) = sidecars(&[set("a", json!({}))], nobody);
    let known: Arc<WireSidecarSet> =
        Arc::new(serde_json::from_value(set("a", json!({"spec": {"namespace": "bank"}}))).unwrap());
    sidecars.changed(&Change::Applied { old: None, new: &known, initial: false });
    assert!(outcome(&sidecars).await.injected.is_empty());
    let known: Arc<WireSidecarSet> = Arc::new(serde_json::from_value(set("a", json!({}))).unwrap());
    sidecars.changed(&Change::Applied { old: None, new: &known, initial: false });
    assert_eq!(outcome(&sidecars).await.injected, ["a"]);
    sidecars.changed(&Change::Undecodable { key: &ObjectKey::new("", "a"), error: "odd" });
    assert!(outcome(&sidecars).await.injected.is_empty());
}

/// A page of a list is held as a whole.
#[test]
fn of_a_sidecar_set_from_a_list_only_what_injection_needs_is_held() {
    let raw = |more: Value| -> RawSidecarSet { serde_json::from_value(set("a", more)).unwrap() };
    let field = json!({"manager": "kubectl", "fieldsV1": {"f:spec": {}}});
    let large = json!({"metadata": {"managedFields": vec![field; 1000], "labels": {"a": "b"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "status": {"matchedPods": 7}});
    assert_eq!(raw(large).text(), raw(json!({})).text());
    assert_ne!(raw(json!({"spec": {"namespace": "bank"}})).text(), raw(json!({})).text());
}

/// The kind has been installed since, and the SidecarSet is the first one.
#[tokio::test]
async fn a_sidecar_set_that_is_made_shows_that_its_kind_is_installed() {
    let (sidecars, _) = sidecars(&[], nobody);
    sidecars.know_why(NotRead::NotInstalled);
    sidecars.expect(&set("a", json!({})));
    assert_eq!(*lock(&sidecars.unread), NotRead::Reading);
}

/// Each new Pod changes the status of its SidecarSets.
#[tokio::test]
async fn news_of_a_status_leave_what_was_made_of_a_spec() {
    let (sidecars, _) = sidecars(&[], nobody);
    let see = |version: &str, more: &Value| {
        let mut object = set("a", more.clone());
        object["metadata"]["resourceVersion"] = version.into();
        let raw: RawSidecarSet = serde_json::from_value(object).unwrap();
        sidecars.sets.see(sidecars.view(raw), |change| sidecars.changed(&change));
        lock(&sidecars.index).get("a").unwrap().0.clone()
    };
    let hash = |hash: &str| json!({"metadata": {"annotations": {"kruise.io/sidecarset-hash": hash}}});
    let image = json!([{"name": "c-a", "image": "a:2"}]);
    let mut last = see("1", &json!({}));
    for (version, more, is_same) in [
        ("2", json!({"status": {"matchedPods": 1}}), true),
        ("3", json!({"status": {"matchedPods": 2}, "metadata": {"labels": {"a": "b"}, "generation": 2}}), true),
        ("4", json!({"status": {"collisionCount": 1}}), false),
        ("5", json!({}), false),
        ("6", json!({"spec": {"containers": image}}), false),
        ("7", json!({"spec": {"containers": image}, "status": {"matchedPods": 3}}), true),
        ("8", json!({"spec": {"namespace": "bank"}}), false),
        ("9", hash("x"), false),
        ("10", json!({"metadata": {"annotations": {"kruise.rs/pod-level-resources": "share"}}}), false),
        ("11", json!({}), false),
        ("12", json!({"metadata": {"uid": "another"}}), false),
    ] {
        let now = see(version, &more);
        assert_eq!(Arc::ptr_eq(&now, &last), is_same, "{more}");
        last = now;
        let made: WireSidecarSet = serde_json::from_value(set("a", more.clone())).unwrap();
        assert!(last.is_same(&made.entry) && last.revision == made.entry.revision, "{more}");
    }
    assert_eq!(outcome(&sidecars).await.injected, ["a"]);
}

#[tokio::test]
async fn two_hot_upgraded_sidecars_of_two_sets_are_two_pairs_in_one_pod() {
    let hot = |name: &str| {
        let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
        set(name, json!({"spec": {"containers": [{"name": name, "image": "a:1", "upgradeStrategy": way}]}}))
    };
    let (sidecars, _) = sidecars(&[hot("mesh"), hot("log")], nobody);
    let done = outcome(&sidecars).await;
    assert_eq!((done.injected, done.left_out), (vec!["log".to_owned(), "mesh".to_owned()], vec![]));
    let mut after = pod();
    let patch: json_patch::Patch = serde_json::from_value(done.patch.into()).unwrap();
    json_patch::patch(&mut after, &patch).unwrap();
    let containers = after["spec"]["containers"].as_array().unwrap();
    let images: Vec<(&str, Option<&str>)> =
        containers.iter().map(|made| (made["name"].as_str().unwrap(), made["image"].as_str())).collect();
    let pairs = [("log-1", "a:1"), ("log-2", "empty:1"), ("mesh-1", "a:1"), ("mesh-2", "empty:1")];
    let wanted: Vec<(&str, Option<&str>)> =
        pairs.into_iter().map(|(name, image)| (name, Some(image))).chain([("main", None)]).collect();
    assert_eq!(images, wanted);
    let working = &after["metadata"]["annotations"]["kruise.io/sidecarset-working-hotupgrade-container"];
    assert_eq!(working, r#"{"log":"log-1","mesh":"mesh-1"}"#);
}

#[test]
fn a_sidecar_set_is_announced_in_its_namespaces() {
    let of = |spec: Value| Vec::from_iter(namespaces_of(&spec));
    let selector = json!({"matchLabels": {"a": "b"}});
    assert_eq!(of(json!({"selector": selector, "namespace": "shop"})), ["shop"]);
    assert_eq!(of(json!({"selector": selector})), [ANY]);
}

/// What a Pod costs does not depend on how many SidecarSets there are.
#[tokio::test]
async fn ten_of_a_thousand_are_found_by_namespace_and_label() {
    let sets: Vec<Value> = (0..1000)
        .map(|i| match i % 100 {
            0 => set(&format!("s{i:0>4}"), json!({})),
            _ => set(&format!("s{i:0>4}"), json!({"spec": {"selector": {"matchLabels": {"app": format!("app-{i}")}}}})),
        })
        .collect();
    let (sidecars, _) = sidecars(&sets, nobody);
    let labels = Labels::deserialize(json!({"app": "web", "tier": "a"})).unwrap();
    assert_eq!(lock(&sidecars.index).candidates("shop", &labels).len(), 10);
    let begun = clock::now().mono;
    for _ in 0..20 {
        assert_eq!(outcome(&sidecars).await.injected.len(), 10);
    }
    println!("one Pod with 10 of 1,000 SidecarSets: {:?}", (clock::now().mono - begun) / 20);
}
