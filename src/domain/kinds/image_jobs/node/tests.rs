use serde_json::{Value, json};

use super::*;
use crate::api::apps::image_pull_job::ImagePullJob;

fn now() -> Now {
    Now { wall: "2026-01-01T01:00:00Z".parse().unwrap(), mono: Duration::from_secs(10_000) }
}

fn job(uid: &str, namespace: &str, changes: Value) -> Arc<Job> {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
        "metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": {"image": "app:v1"}});
    json_patch::merge(&mut object, &changes);
    Arc::new(Job::of(&serde_json::from_value::<ImagePullJob>(object).unwrap()).unwrap())
}

fn complete(uid: &str, changes: Value) -> Arc<Job> {
    let mut whole = json!({"status": {"completionTime": "2026-01-01T00:30:00Z"}});
    json_patch::merge(&mut whole, &changes);
    job(uid, "a", whole)
}

fn node(spec: Value, status: Value) -> NodeImageView {
    serde_json::from_value(
        json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"images": spec}, "status": status}),
    )
    .unwrap()
}

fn owner(uid: &str) -> Value {
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "a", "name": uid, "uid": uid})
}

/// An entry of `app:v1` for these owners, and what became of it.
fn entry(owners: &[&str], changes: Value) -> Value {
    let mut tag = json!({"tag": "v1", "createdAt": "2026-01-01T00:00:00Z", "imagePullPolicy": "IfNotPresent",
        "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3, "ttlSecondsAfterFinished": 2000},
        "ownerReferences": owners.iter().map(|uid| owner(uid)).collect::<Vec<_>>()});
    json_patch::merge(&mut tag, &changes);
    json!({"app": {"tags": [tag]}})
}

fn says(phase: &str, changes: Value) -> Value {
    let mut status = json!({"tag": "v1", "phase": phase});
    if ["Succeeded", "Failed"].contains(&phase) {
        status["completionTime"] = "2026-01-01T00:30:00Z".into();
    }
    json_patch::merge(&mut status, &changes);
    json!({"imageStatuses": {"app": {"tags": [status]}}})
}

struct Case {
    node: NodeImageView,
    jobs: Vec<Arc<Job>>,
    begin: Vec<Arc<Job>>,
    age: u64,
}

impl Case {
    fn pass(&self) -> NodePlan {
        let owner = |owner: &Owner| match self.jobs.iter().chain(&self.begin).find(|job| job.uid == owner.uid) {
            Some(job) => Wants::Of(job.clone()),
            None if owner.is_job() => Wants::Nothing,
            None => Wants::Whatever,
        };
        let age = |_: &str, _: &TagView| Duration::from_secs(self.age);
        pass(&ObservedNode { node: &self.node, begin: &self.begin, owner: &owner, age: &age, default_ttl: 300 }, now())
    }
    /// The spec after the pass.
    fn spec(&self) -> Value {
        let spec = self.pass().spec.unwrap_or_else(|| self.node.spec());
        serde_json::to_value(spec).unwrap()
    }
}

fn of(node: NodeImageView, jobs: &[Arc<Job>]) -> Case {
    Case { node, jobs: jobs.to_vec(), begin: Vec::new(), age: 0 }
}

fn beginning(node: NodeImageView, jobs: &[Arc<Job>], begin: Arc<Job>) -> Case {
    Case { begin: vec![begin], ..of(node, jobs) }
}

#[test]
fn an_entry_is_as_recorded() {
    let policy = json!({"spec": {"imagePullPolicy": "IfNotPresent", "pullPolicy": {"timeoutSeconds": 30, "backoffLimit": 2},
        "completionPolicy": {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 300}, "pullSecrets": ["s"], "sandboxConfig": {"labels": {"a": "b"}}}});
    let mut spec = beginning(node(json!({}), json!({})), &[], job("j1", "a", policy)).spec();
    let ttl = spec["images"]["app"]["tags"][0]["pullPolicy"]["ttlSecondsAfterFinished"].take().as_i64().unwrap();
    assert!((600..900).contains(&ttl), "{ttl}");
    assert_eq!(
        spec["images"],
        json!({"app": {"pullSecrets": [{"namespace": "a", "name": "s", "mode": "job"}], "sandboxConfig": {"labels": {"a": "b"}},
            "tags": [{"tag": "v1", "createdAt": "2026-01-01T01:00:00Z", "imagePullPolicy": "IfNotPresent", "ownerReferences": [owner("j1")],
                "pullPolicy": {"activeDeadlineSeconds": 60, "backoffLimit": 2, "timeoutSeconds": 30, "ttlSecondsAfterFinished": null}}]}})
    );
}

#[test]
fn e2_a_second_job_bumps_the_version_and_restarts_the_clock() {
    let second = job(
        "j2",
        "a",
        json!({"spec": {"imagePullPolicy": "Always", "pullPolicy": {"timeoutSeconds": 900, "backoffLimit": 1}}}),
    );
    let view = node(entry(&["j1"], json!({"version": 2})), says("Succeeded", json!({"version": 2})));
    let spec = beginning(view, &[job("j1", "a", json!({}))], second).spec();
    let tag = &spec["images"]["app"]["tags"][0];
    assert_eq!((&tag["version"], &tag["createdAt"]), (&json!(3), &json!("2026-01-01T01:00:00Z")));
    assert_eq!(tag["ownerReferences"], json!([owner("j1"), owner("j2")]));
    assert_eq!(tag["imagePullPolicy"], "Always", "e4: existing entries get it too");
    assert_eq!(
        (&tag["pullPolicy"]["timeoutSeconds"], &tag["pullPolicy"]["backoffLimit"]),
        (&json!(900), &json!(3)),
        "f4"
    );
}

#[test]
fn an_entry_that_comes_back_has_a_version_that_no_status_has() {
    let status = json!({"imageStatuses": {"app": {"tags": [{"tag": "v1", "phase": "Succeeded", "version": 4}]}}});
    let spec = beginning(node(json!({}), status), &[], job("j1", "a", json!({}))).spec();
    assert_eq!(spec["images"]["app"]["tags"][0]["version"], 5);
}

#[test]
fn tags_are_sorted_and_what_others_wrote_stays() {
    let theirs = json!({"app": {"newer": {"a": 1}, "tags": [{"tag": "v2", "createdAt": "2026-01-01T00:00:00Z", "newer": 7}]}, "other": {"tags": [{"tag": "x", "createdAt": "2026-01-01T00:00:00Z"}]}});
    let spec = beginning(node(theirs, json!({})), &[], job("j1", "a", json!({}))).spec();
    let app = &spec["images"]["app"];
    assert_eq!(
        (&app["tags"][0]["tag"], &app["tags"][1]["newer"], &app["newer"]),
        (&json!("v1"), &json!(7), &json!({"a": 1}))
    );
    assert_eq!(spec["images"]["other"]["tags"][0]["tag"], "x");
}

#[test]
fn e3_an_entry_goes_with_the_last_of_its_owners() {
    let both = entry(&["j1", "j2"], json!({}));
    let one = of(node(both.clone(), json!({})), &[job("j1", "a", json!({}))]).spec();
    assert_eq!(one["images"]["app"]["tags"][0]["ownerReferences"], json!([owner("j1")]));
    assert_eq!(of(node(both, json!({})), &[]).spec(), json!({}));
    let recreated = of(node(entry(&["old-uid"], json!({})), json!({})), &[job("new-uid", "a", json!({}))]).spec();
    assert_eq!(recreated, json!({}), "a recreated job is another owner");
}

#[test]
fn entries_of_nobody_and_of_strangers_stay() {
    let view = node(entry(&[], json!({})), json!({}));
    assert_eq!(of(view, &[]).pass().spec, None);
    let stranger = json!({"ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SomethingElse", "name": "x", "uid": "x"}]});
    assert_eq!(of(node(entry(&[], stranger), json!({})), &[]).pass().spec, None);
}

#[test]
fn a3_f20_a_bare_entry_is_completed_and_has_the_defaults() {
    let defaults = json!({"timeoutSeconds": 600, "backoffLimit": 3});
    for (policy, wanted) in [
        (json!(null), defaults.clone()),
        (json!({}), defaults.clone()),
        (json!({"timeoutSeconds": 30, "newer": 1}), json!({"timeoutSeconds": 30, "backoffLimit": 3, "newer": 1})),
        (
            json!({"backoffLimit": 0, "ttlSecondsAfterFinished": 5}),
            json!({"timeoutSeconds": 600, "backoffLimit": 0, "ttlSecondsAfterFinished": 5}),
        ),
    ] {
        let view = node(json!({"app": {"tags": [{"tag": "v1", "pullPolicy": policy}]}}), json!({}));
        let spec = of(view, &[]).spec();
        let entry = json!([{"tag": "v1", "createdAt": "2026-01-01T01:00:00Z", "pullPolicy": wanted}]);
        assert_eq!(spec["images"]["app"]["tags"], entry, "{policy}");
        assert_eq!(of(node(spec["images"].clone(), json!({})), &[]).pass().spec, None, "once");
    }
}

#[test]
fn a3_tags_by_hand_are_sorted() {
    let images = |created: Value| {
        let mut images = entry(&[], json!({"tag": "v2", "createdAt": created, "pullPolicy": null}));
        let first = entry(&[], json!({}))["app"]["tags"][0].clone();
        images["app"]["tags"].as_array_mut().unwrap().push(first);
        images
    };
    let applied = images(json!("2026-01-01T00:00:00Z"));
    assert_eq!(of(node(applied, json!({})), &[]).pass().spec, None, "a tool that applies it again is not overruled");
    let spec = of(node(images(json!(null)), json!({})), &[]).spec();
    assert_eq!(spec["images"]["app"]["tags"][1]["pullPolicy"], json!({"timeoutSeconds": 600, "backoffLimit": 3}));
    let tags: Vec<&Value> = spec["images"]["app"]["tags"].as_array().unwrap().iter().map(|tag| &tag["tag"]).collect();
    assert_eq!(tags, ["v1", "v2"]);
    assert_eq!(of(node(spec["images"].clone(), json!({})), &[]).pass().spec, None, "once");
}

#[test]
fn e18_entries_stay_when_the_job_is_over_until_their_time_is() {
    let done = |ttl: Value| {
        node(entry(&["j1"], json!({"pullPolicy": {"ttlSecondsAfterFinished": ttl}})), says("Succeeded", json!({})))
    };
    let over = complete("j1", json!({}));
    assert_eq!(of(done(json!(1800)), std::slice::from_ref(&over)).spec(), json!({}));
    let pass = of(done(json!(1801)), std::slice::from_ref(&over)).pass();
    assert_eq!((pass.spec, pass.next), (None, Some(Duration::from_secs(1))));
    assert_eq!(of(done(json!(null)), std::slice::from_ref(&over)).pass().next, None);
}

#[test]
fn f2_no_entry_goes_while_its_job_runs() {
    let view =
        node(entry(&["j1"], json!({"pullPolicy": {"ttlSecondsAfterFinished": 1}})), says("Succeeded", json!({})));
    assert_eq!(of(view.clone(), &[job("j1", "a", json!({}))]).pass().spec, None);
    let never = job("j1", "a", json!({"spec": {"completionPolicy": {"type": "Never"}}}));
    assert_eq!(of(view, &[never]).spec(), json!({}), "a job without an end renews its entries");
}

#[test]
fn a_status_of_an_earlier_version_ends_nothing() {
    let view = node(
        entry(&["j1"], json!({"version": 1, "pullPolicy": {"ttlSecondsAfterFinished": 1}})),
        says("Succeeded", json!({})),
    );
    let pass = of(view, &[complete("j1", json!({}))]).pass();
    assert_eq!((pass.spec, pass.next), (None, Some(Duration::from_secs(600))));
}

#[test]
fn f5_an_edited_job_withdraws_what_it_does_not_want_any_more() {
    let view = || node(entry(&["j1"], json!({})), json!({}));
    for changes in [
        json!({"image": "app:v2"}),
        json!({"selector": {"names": ["n2"]}}),
        json!({"selector": {"matchLabels": {"zone": "b"}}}),
    ] {
        assert_eq!(of(view(), &[job("j1", "a", json!({"spec": changes}))]).spec(), json!({}), "{changes}");
    }
    let over = complete("j1", json!({"spec": {"selector": {"names": ["n2"]}}}));
    assert_eq!(of(view(), &[over]).pass().spec, None, "after its end nothing is withdrawn");
    let by_pods = job("j1", "a", json!({"spec": {"podSelector": {"matchLabels": {"app": "x"}}}}));
    assert_eq!(of(view(), &[by_pods]).pass().spec, None, "Pods come and go");
}

#[test]
fn f4_an_edited_pull_policy_reaches_the_entry() {
    let edited = job("j1", "a", json!({"spec": {"pullPolicy": {"timeoutSeconds": 50, "backoffLimit": 9}}}));
    let spec = of(node(entry(&["j1"], json!({"version": 1})), json!({})), &[edited]).spec();
    let tag = &spec["images"]["app"]["tags"][0];
    assert_eq!(tag["pullPolicy"], json!({"timeoutSeconds": 50, "backoffLimit": 9, "ttlSecondsAfterFinished": 2000}));
    assert_eq!(tag["version"], 1);
}

#[test]
fn e9_missing_secrets_are_added_without_a_new_version_and_e10_e21_f6_unused_ones_and_copies_go() {
    let wants = job("j1", "a", json!({"spec": {"pullSecrets": ["s1", "s2"]}}));
    let mut images = entry(&["j1"], json!({"version": 1}));
    images["app"]["pullSecrets"] = json!([{"namespace": "kruise-daemon-config", "name": "old-1a2b3c", "mode": "batch"}, {"namespace": "a", "name": "s2"}]);
    let spec = of(node(images.clone(), json!({})), &[wants]).spec();
    assert_eq!(
        spec["images"]["app"]["pullSecrets"],
        json!([{"namespace": "a", "name": "s2", "mode": "job"}, {"namespace": "a", "name": "s1", "mode": "job"}])
    );
    assert_eq!(spec["images"]["app"]["tags"][0]["version"], 1);
    let stranger = json!({"tag": "v2", "createdAt": "2026-01-01T00:00:00Z"});
    images["app"]["tags"].as_array_mut().unwrap().push(stranger);
    let spec = of(node(images, json!({})), &[job("j1", "a", json!({}))]).spec();
    assert_eq!(spec["images"]["app"]["pullSecrets"].as_array().unwrap().len(), 2, "somebody else's may be among them");
}

/// Secrets of jobs stand beside those that somebody wrote by hand for an entry of their own, and go with the jobs.
#[test]
fn secrets_of_jobs_are_marked_and_go_although_an_entry_by_hand_stays() {
    let by_hand = json!({"namespace": "b", "name": "theirs"});
    let both = json!({"namespace": "a", "name": "both"});
    let of_job = |name: &str| json!({"namespace": "a", "name": name, "mode": "job"});
    let wants = job("j1", "a", json!({"spec": {"pullSecrets": ["both", "s1"]}}));
    let mut images = entry(&["j1"], json!({"version": 1}));
    images["app"]["tags"].as_array_mut().unwrap().push(json!({"tag": "v2", "createdAt": "2026-01-01T00:00:00Z"}));
    images["app"]["pullSecrets"] = json!([by_hand, both, of_job("left")]);
    let spec = of(node(images, json!({})), &[wants]).spec();
    let now = json!([by_hand, both, of_job("s1")]);
    assert_eq!(spec["images"]["app"]["pullSecrets"], now, "what was written by hand stays as it is");
    // The job is gone, and its entry.
    let spec = of(node(spec["images"].clone(), json!({})), &[]).spec();
    assert_eq!(spec["images"]["app"]["pullSecrets"], json!([by_hand, both]));
    assert_eq!(spec["images"]["app"]["tags"].as_array().unwrap().len(), 1);
}

#[test]
fn secrets_of_two_namespaces_stand_side_by_side() {
    let one = job("j1", "a", json!({"spec": {"pullSecrets": ["s"]}}));
    let two = job("j2", "b", json!({"spec": {"pullSecrets": ["s"]}}));
    let mut images = entry(&["j1"], json!({}));
    images["app"]["pullSecrets"] = json!([{"namespace": "a", "name": "s"}]);
    let spec = beginning(node(images.clone(), json!({})), std::slice::from_ref(&one), two).spec();
    assert_eq!(
        spec["images"]["app"]["pullSecrets"],
        json!([{"namespace": "a", "name": "s", "mode": "job"}, {"namespace": "b", "name": "s", "mode": "job"}])
    );
}

#[test]
fn f14_the_257th_image_is_refused_and_the_others_go_on() {
    let many: serde_json::Map<String, Value> = (0..256)
        .map(|i| (format!("i{i}"), json!({"tags": [{"tag": "t", "createdAt": "2026-01-01T00:00:00Z"}]})))
        .collect();
    let mut case = beginning(node(many.into(), json!({})), &[], job("j1", "a", json!({})));
    case.begin.push(job("j2", "a", json!({"spec": {"image": "i7:new"}})));
    let pass = case.pass();
    assert_eq!(pass.refused.len(), 1);
    assert!(pass.refused[0].0 == "j1" && pass.refused[0].1.contains("256 images"));
    assert_eq!(pass.spec.unwrap().images["i7"].tags.len(), 2);
}

#[test]
fn jobs_of_one_namespace_hold_up_no_other_namespace() {
    let mut case = of(node(json!({}), json!({})), &[]);
    case.begin = (0..300)
        .map(|i| job(&format!("j{i}"), "a", json!({"spec": {"image": format!("i{i}:v1")}})))
        .chain([job("other", "b", json!({"spec": {"image": "theirs:v1"}}))])
        .collect();
    let pass = case.pass();
    assert_eq!(pass.refused.len(), 300 - 192);
    assert!(pass.refused.iter().all(|(uid, why)| uid != "other" && why.contains("192 of them for this namespace")));
    assert!(pass.spec.unwrap().images.contains_key("theirs"));
}

#[test]
fn several_jobs_are_written_at_once() {
    let mut case = beginning(node(json!({}), json!({})), &[], job("j1", "a", json!({})));
    case.begin.push(job("j2", "b", json!({"spec": {"image": "other:v1"}})));
    case.begin.push(job("j3", "b", json!({"spec": {"image": "app:v1"}})));
    let spec = case.pass().spec.unwrap();
    assert_eq!(spec.images.keys().collect::<Vec<_>>(), ["app", "other"]);
    assert_eq!(spec.images["app"].tags[0].owner_references.len(), 2);
}

#[test]
fn e11_a_daemon_that_says_nothing_is_given_up_and_one_that_pulls_is_not() {
    let given_up = |status: Value, policy: Value, age: u64| {
        let view = node(entry(&["x"], json!({"pullPolicy": policy, "ownerReferences": []})), status);
        let pass = Case { age, ..of(view, &[]) }.pass();
        (pass.given_up.first().map(|given_up| given_up.message), pass.next.map(|next| next.as_secs()))
    };
    let none = json!({});
    assert_eq!(given_up(none.clone(), none.clone(), 599), (None, Some(1)));
    assert_eq!(given_up(none.clone(), none.clone(), 600), (Some(SILENT), None));
    let pulling = says("Pulling", json!({"startTime": "2026-01-01T00:00:00Z"}));
    // Four attempts of 600 s, the waits between them, and ten minutes.
    assert_eq!(given_up(pulling.clone(), none.clone(), 3100), (None, Some(20)));
    assert_eq!(given_up(pulling.clone(), none.clone(), 3120), (Some(SILENT), None));
    let deadline = json!({"activeDeadlineSeconds": 60});
    assert_eq!(given_up(pulling.clone(), deadline.clone(), 659), (None, Some(1)));
    assert_eq!(given_up(pulling, deadline.clone(), 660), (Some(LATE), None));
    assert_eq!(given_up(says("Waiting", json!({})), none.clone(), 1_000_000), (None, None));
    assert_eq!(given_up(says("Waiting", json!({})), deadline, 660), (Some(LATE), None));
    assert_eq!(given_up(says("Failed", json!({})), none, 1_000_000), (None, Some(200)), "it goes after its time");
}

#[test]
fn a_clock_that_is_off_gives_up_nobody_early() {
    let ahead = says("Pulling", json!({"startTime": "2025-12-31T00:00:00Z"}));
    let view = node(entry(&[], json!({"ownerReferences": []})), ahead);
    assert!(Case { age: 3000, ..of(view, &[]) }.pass().given_up.is_empty());
}

#[test]
fn giving_up_keeps_what_the_daemon_said_of_others() {
    let spec: NodeImageSpec =
        serde_json::from_value(json!({"images": {"app": {"tags": [{"tag": "v2"}, {"tag": "v1", "version": 3}]}}}))
            .unwrap();
    let status: NodeImageStatus = serde_json::from_value(json!({"desired": 2, "newer": true, "firstSyncStatus": {"status": "Succeeded"}, "imageStatuses": {
        "gone": {"tags": [{"tag": "x", "phase": "Succeeded"}]},
        "app": {"tags": [{"tag": "v2", "phase": "Pulling", "progress": 30, "newer": 1}, {"tag": "v1", "phase": "Succeeded", "version": 2}]}}})).unwrap();
    let given_up = GivenUp { image: "app".into(), tag: "v1".into(), version: 3, message: SILENT, owners: Vec::new() };
    let after = serde_json::to_value(give_up(&spec, &status, &[given_up], now())).unwrap();
    assert_eq!(
        after,
        json!({"desired": 2, "succeeded": 0, "failed": 1, "pulling": 1, "waiting": 0, "newer": true, "firstSyncStatus": {"status": "Succeeded"},
        "imageStatuses": {"app": {"tags": [
            {"tag": "v1", "phase": "Failed", "progress": 0, "version": 3, "completionTime": "2026-01-01T01:00:00Z", "message": SILENT},
            {"tag": "v2", "phase": "Pulling", "progress": 30, "newer": 1}]}}})
    );
}

#[test]
fn e5_a_job_without_an_end_is_not_cut_at_half_an_hour() {
    let never = job(
        "j1",
        "a",
        json!({"spec": {"completionPolicy": {"type": "Never"}, "pullPolicy": {"timeoutSeconds": 3000}}}),
    );
    let spec = beginning(node(json!({}), json!({})), &[], never).spec();
    let policy = &spec["images"]["app"]["tags"][0]["pullPolicy"];
    assert_eq!(policy["activeDeadlineSeconds"], 3000, "e5: not cut at 1800");
    assert!((85_800..87_000).contains(&policy["ttlSecondsAfterFinished"].as_i64().unwrap()), "{policy}");
}
