//! ImagePullJobs, ImageListPullJobs and NodeImages against the real API server: what users see and what is refused, and
//! jobs of many images on many nodes. Nodes are played through NodeImages without a Node; the real daemon has its own tests.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::cmd::{CommandExt, kubectl};
use e2e::kit::{Build, Look, PATIENCE, Test, condition, in_namespace, poll};
use e2e::node_images::{Daemons, played};
use e2e::paths::NODE;
use serde_json::{Value, json};

const JOB: &str = "ImagePullJob";
const LIST: &str = "ImageListPullJob";
/// The hash of everything in a list but the images: on the list and on its jobs.
const HASH: &str = "/metadata/labels/controller-revision-hash";

fn job(name: &str, played: &str, spec: Value) -> Value {
    let mut object = json!({ "kind": JOB, "metadata": { "name": name }, "spec": {
        "image": "registry.example/app:v1", "selector": { "matchLabels": { "e2e/played-images": played } } } });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn counts(job: &Value) -> [i64; 4] {
    ["desired", "active", "succeeded", "failed"].map(|field| job.int(&format!("/status/{field}")))
}

async fn over(t: &Test, kind: &str, name: &str, patience: Duration) -> Result<Value> {
    t.wait_for(kind, name, "to be over", patience, |o| o.has("/status/completionTime")).await
}

#[tokio::test]
async fn a_job_is_seen_from_its_begin_to_its_end() -> Result<()> {
    in_namespace("image-job", async |t| {
        let nodes = played(t, 5).await?;
        let daemons = Daemons::start(t, &nodes, 0..0);
        // As a user writes it, in the other version, without anything that has a default.
        let spec =
            json!({ "parallelism": 2, "pullSecrets": ["one"], "completionPolicy": { "ttlSecondsAfterFinished": 8 } });
        let made = t.create(job("web", &nodes, spec).with("/apiVersion", "apps.kruise.io/v1alpha1")).await?;
        ensure!(
            made.text("/spec/imagePullPolicy") == "IfNotPresent" && made.int("/spec/pullPolicy/timeoutSeconds") == 600
        );
        let (seen, node) = (t.record(JOB, "web").await?, t.record("NodeImage", &format!("{nodes}-0001")).await?);
        t.wait_for(JOB, "web", "to begin", PATIENCE, |o| counts(o)[1] == 2).await?;
        let get = t.kubectl(&["get", "imagepulljob", "web", "-o", "wide"]).await?;
        let columns = get.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(columns == "NAME TOTAL ACTIVE SUCCEED FAILED AGE MESSAGE IMAGE", "{get}");
        ensure!(daemons.most() <= 2, "{} nodes at a time", daemons.most());
        let wait = ["wait", "imagepulljob/web", "--for=condition=Failed", "--timeout=60s"];
        let (waited, ()) = futures::join!(t.kubectl(&wait), async { daemons.answer("registry.example/app", 0.2) });
        let (_, done) = seen.seen("its end", |o| o.has("/status/completionTime")).await?;
        assert_eq!(condition(&done, "Failed"), "True");
        // On a busy machine kubectl may begin when the time to live of the job is over.
        let is_late = |error: &anyhow::Error| format!("{error:#}").contains("NotFound");
        waited.map(drop).or_else(|error| if is_late(&error) { Ok(()) } else { Err(error) })?;
        assert_eq!(counts(&done), [5, 0, 4, 1], "{done:#}");
        assert_eq!(done.text("/status/message"), "job has completed");
        ensure!(
            done.array("/status/conditions").iter().any(|c| c.text("/message").contains("played failure")),
            "{done:#}"
        );
        ensure!(daemons.most() <= 2, "{} nodes at a time", daemons.most());
        // Its time to live may be over by now: what the node was told is in the recording.
        let (_, entry) = node.seen("the image", |o| o.has("/spec/images/registry.example~1app")).await?;
        let secrets = entry.pointer("/spec/images/registry.example~1app/pullSecrets");
        assert_eq!(secrets, Some(&json!([{ "namespace": t.namespace, "name": "one", "mode": "job" }])));
        let told = |events: &[String], reason: &str| events.iter().any(|event| event.starts_with(reason));
        t.wait_events(JOB, "web", |events| told(events, "PullsFailed") && told(events, "Pulling")).await?;
        // Its time to live, and what it told its nodes, is over.
        t.gone(JOB, "web").await?;
        t.wait_for("NodeImage", &format!("{nodes}-0001"), "to be empty", PATIENCE, |o| {
            !o.has("/spec/images/registry.example~1app")
        })
        .await?;
        daemons.remove(t).await
    })
    .await
}

#[tokio::test]
async fn jobs_are_refused_with_the_field_the_value_and_what_is_allowed() -> Result<()> {
    in_namespace("image-refused", async |t| {
        for (spec, says) in [
            (json!({ "image": "Not An Image" }), "spec.image"),
            (json!({ "image": "a@sha256:0123456789abcdef0123456789abcdef" }), "64 hexadecimal digits"),
            (json!({ "parallelism": "10%" }), "spec.parallelism"),
            (json!({ "podSelector": {} }), "at most one of"),
            (json!({ "selector": { "names": ["a", "a"] } }), "spec.selector.names[1]"),
            (json!({ "completionPolicy": { "activeDeadlineSeconds": 5 } }), "pullPolicy.timeoutSeconds (600)"),
            (json!({ "completionPolicy": { "type": "Never", "ttlSecondsAfterFinished": 5 } }), "type Never"),
        ] {
            let (code, message) = t.refused(job("bad", "nobody", spec.clone())).await?;
            ensure!(code == 422 && message.contains(says), "{spec}: {code} {message}");
        }
        let (code, message) = t
            .refused(json!({ "kind": LIST, "metadata": { "name": "bad" }, "spec": { "images": ["a:1", "b c"] } }))
            .await?;
        ensure!(code == 422 && message.contains("spec.images[1]"), "{code} {message}");
        t.create(job("kept", "nobody", json!({ "pullSecrets": ["a"] }))).await?;
        over(t, JOB, "kept", PATIENCE).await?;
        for (patch, says) in [
            (json!({ "spec": { "pullSecrets": ["b"] } }), "spec.pullSecrets cannot be changed"),
            (json!({ "spec": { "image": "b" } }), "spec.image cannot be changed once the job has completed"),
        ] {
            let answer = t.patch(JOB, "kept", patch).await.map_err(|error| format!("{error:#}"));
            ensure!(answer.as_ref().is_err_and(|error| error.contains(says)), "{answer:?}");
        }
        let explained = t.kubectl(&["explain", "imagepulljob.spec.parallelism"]).await?;
        ensure!(explained.contains("How many nodes pull at a time"), "{explained}");
        let explained = t.kubectl(&["explain", "nodeimage.spec.images.tags.version"]).await?;
        ensure!(explained.contains("A higher version means: pull it again"), "{explained}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_node_has_its_node_image_and_what_openkruise_left_is_cleared() -> Result<()> {
    in_namespace("image-left", async |t| {
        // Tests beside this one label the node.
        poll("the NodeImage to have the labels of its Node", PATIENCE, async || {
            let (real, node) = (t.get("NodeImage", NODE).await?, t.get("Node", NODE).await?);
            let labels = [&real, &node].map(|object| object.pointer("/metadata/labels"));
            ensure!(labels[0] == labels[1], "{labels:?}");
            Ok(())
        })
        .await?;
        // A job that is over, with the finalizer that OpenKruise leaves while it is down.
        let old = job("old", "nobody", json!({})).with("/metadata/finalizers", json!(["apps.kruise.io/deletion-protection"]));
        t.create(old).await?;
        t.wait_for(JOB, "old", "to be let go", PATIENCE, |o| o.array("/metadata/finalizers").is_empty()).await?;
        t.remove(JOB, "old").await?;
        t.gone(JOB, "old").await?;
        // An entry whose daemon has been silent for more than ten minutes.
        let name = format!("{}-silent", t.namespace);
        let long_ago = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(700)).round(jiff::Unit::Second)?.to_string();
        let tag = json!({ "tag": "v1", "createdAt": long_ago, "pullPolicy": {} });
        t.create(json!({ "kind": "NodeImage", "metadata": { "name": name, "labels": { "apps.kruise.io/fake-nodeimage": "true" } },
            "spec": { "images": { "app": { "tags": [tag] } } } })).await?;
        let silent = t.wait_for("NodeImage", &name, "to be given up", PATIENCE, |o| o.int("/status/failed") == 1).await?;
        let status = silent.pointer("/status/imageStatuses/app/tags/0").cloned().unwrap_or_default();
        assert_eq!(status.text("/message"), "node has not responded for a long time");
        // Without the label it is the NodeImage of a Node that is gone.
        t.patch("NodeImage", &name, json!({ "metadata": { "labels": { "apps.kruise.io/fake-nodeimage": null } } })).await?;
        t.gone("NodeImage", &name).await
    })
    .await
}

#[tokio::test]
async fn fifty_images_on_two_hundred_nodes() -> Result<()> {
    in_namespace("image-many", async |t| {
        let nodes = played(t, 200).await?;
        let daemons = Daemons::start(t, &nodes, 0..usize::MAX);
        let images: Vec<String> = (0..50).map(|i| format!("registry.example/team/app{i:02}:v1")).collect();
        let list = json!({ "kind": LIST, "metadata": { "name": "all" }, "spec": { "images": images, "parallelism": 200,
            "selector": { "matchLabels": { "e2e/played-images": nodes } },
            "completionPolicy": { "type": "Always", "ttlSecondsAfterFinished": 10 } } });
        t.create(list).await?;
        let done = over(t, LIST, "all", Duration::from_secs(400)).await?;
        let of = |field: &str| done.int(&format!("/status/{field}"));
        assert_eq!((of("desired"), of("completed"), of("succeeded"), of("active")), (50, 50, 50, 0), "{done:#}");
        assert_eq!(condition(&done, "Complete"), "True");
        t.gone(LIST, "all").await?;
        // Its jobs go with it, and what they told the nodes.
        let is_empty = |o: &Value| !o.has("/spec/images") || o.pointer("/spec/images") == Some(&json!({}));
        t.wait_for("NodeImage", &format!("{nodes}-0199"), "to be empty", Duration::from_secs(120), is_empty).await?;
        let columns = kubectl(&t.paths, ["get", "nodeimage", &format!("{nodes}-0199")]).text()?;
        ensure!(columns.starts_with("NAME"), "{columns}");
        daemons.remove(t).await
    })
    .await
}

#[tokio::test]
async fn a_list_that_is_edited_replaces_its_jobs() -> Result<()> {
    in_namespace("image-list", async |t| {
        let nodes = played(t, 1).await?;
        let daemons = Daemons::start(t, &nodes, 0..0);
        let list = json!({ "kind": LIST, "metadata": { "name": "list" }, "spec": { "images": ["registry.example/a:1", "registry.example/b:1"],
            "selector": { "matchLabels": { "e2e/played-images": nodes } } } });
        t.create(list).await?;
        t.wait_for(LIST, "list", "to begin", PATIENCE, |o| o.int("/status/active") == 2).await?;
        t.patch(LIST, "list", json!({ "spec": { "images": ["registry.example/b:1"], "parallelism": 3 } })).await?;
        daemons.answer("registry.example/b", 0.0);
        let done = over(t, LIST, "list", PATIENCE).await?;
        assert_eq!((done.int("/status/desired"), done.int("/status/succeeded")), (1, 1));
        poll("one job alone, as the list says now", PATIENCE, async || {
            let jobs = t.list(JOB, "").await?;
            let jobs: Vec<_> = jobs.iter().map(|job| (job.text("/spec/image"), job.int("/spec/parallelism"))).collect();
            ensure!(jobs == [("registry.example/b:1", 3)], "{jobs:?}");
            Ok(())
        })
        .await?;
        let columns = t.kubectl(&["get", "imagelistpulljob", "list"]).await?;
        ensure!(columns.split_whitespace().take(5).collect::<Vec<_>>() == ["NAME", "TOTAL", "SUCCEEDED", "COMPLETED", "AGE"], "{columns}");
        t.remove(LIST, "list").await?;
        daemons.remove(t).await
    })
    .await
}

/// Names, UIDs and hash labels of all jobs.
async fn labelled(t: &Test) -> Result<Vec<[String; 3]>> {
    let of = |job: &Value| ["/metadata/name", "/metadata/uid", HASH].map(|field| job.text(field).to_owned());
    Ok(t.list(JOB, "").await?.iter().map(of).collect())
}

#[tokio::test]
async fn a_list_that_wants_the_same_jobs_under_another_label_makes_none_anew() -> Result<()> {
    in_namespace("image-label", async |t| {
        let nodes = played(t, 1).await?;
        let daemons = Daemons::start(t, &nodes, 0..0);
        let images = ["registry.example/a", "registry.example/b"];
        let list = json!({ "kind": LIST, "metadata": { "name": "list" }, "spec": {
            "images": images.map(|image| format!("{image}:1")),
            "selector": { "matchLabels": { "e2e/played-images": nodes } } } });
        t.create(list).await?;
        let list = t.wait_for(LIST, "list", "to begin", PATIENCE, |o| o.int("/status/active") == 2).await?;
        let mut hash = list.text(HASH).to_owned();
        let mut jobs = labelled(t).await?;
        ensure!(!hash.is_empty() && jobs.len() == 2 && jobs.iter().all(|job| job[2] == hash), "{hash}: {jobs:?}");

        // The second is the default, spelled out: a job that is made after it has another name.
        for spec in [json!({ "completionPolicy": { "ttlSecondsAfterFinished": 600 } }), json!({ "parallelism": 1 })] {
            t.patch(LIST, "list", json!({ "spec": spec })).await?;
            let is_other = |o: &Value| o.text(HASH) != hash;
            let list = t.wait_for(LIST, "list", "to get another label", PATIENCE, is_other).await?;
            hash = list.text(HASH).to_owned();
            for job in &mut jobs {
                t.wait_for(JOB, &job[0], "to get it too", PATIENCE, |o| o.text(HASH) == hash).await?;
                job[2].clone_from(&hash);
            }
            assert_eq!(labelled(t).await?, jobs, "{spec}");
        }

        // The label comes back after everything else of a pass: by then another job would have been made.
        let name = &jobs[0][0];
        let bare = json!({ "metadata": { "labels": { "controller-revision-hash": null } } });
        let bare = t.patch(JOB, name, bare).await?;
        ensure!(!bare.has(HASH), "{bare:#}");
        t.wait_for(JOB, name, "to get its label again", PATIENCE, |o| o.text(HASH) == hash).await?;
        assert_eq!(labelled(t).await?, jobs);

        images.iter().for_each(|image| daemons.answer(image, 0.0));
        let done = over(t, LIST, "list", PATIENCE).await?;
        assert_eq!((done.int("/status/desired"), done.int("/status/succeeded")), (2, 2), "{done:#}");
        assert_eq!(labelled(t).await?, jobs);
        let ended = |events: &[String]| events.iter().any(|event| event.starts_with("Completed"));
        let events = t.wait_events(LIST, "list", ended).await?;
        let made: Vec<&String> = events.iter().filter(|event| event.starts_with("Successful")).collect();
        assert_eq!(made, ["Successful create ImagePullJob: created 2 ImagePullJobs"], "{events:#?}");
        t.remove(LIST, "list").await?;
        daemons.remove(t).await
    })
    .await
}
