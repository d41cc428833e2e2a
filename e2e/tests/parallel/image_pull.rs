//! Images ahead of time on the real node: a real registry, one with a password, one with faults; the real containerd.

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, ctr, kubectl};
use e2e::config::PULLER;
use e2e::images::{push_data, push_new, remote};
use e2e::kit::{Build, Look, PATIENCE, Test, events_of, in_namespace, poll, restoring};
use e2e::paths::{NODE, SYSTEM};
use e2e::registry_proxy::{Fault, RegistryProxy};
use serde_json::{Value, json};

use crate::clone_set::{in_place, pods, rolled_out, set_image, started, uids};

const JOB: &str = "ImagePullJob";
const MIB: usize = 1 << 20;

/// A repository that no other run has had: what the node has of an image from before would be pulled no more.
fn new(t: &Test, repository: &str) -> String {
    format!("{repository}-{}", t.namespace)
}

fn job(name: &str, image: &str) -> Value {
    json!({ "kind": JOB, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name }, "spec": {
        "image": image, "selector": { "names": [NODE] }, "completionPolicy": { "type": "Always" },
        "pullPolicy": { "timeoutSeconds": 60, "backoffLimit": 0 } } })
}

async fn pushed(t: &Test, name: &str, tag: &str, bytes: usize) -> Result<String> {
    let (paths, name, tag) = (t.paths.clone(), name.to_owned(), tag.to_owned());
    tokio::task::spawn_blocking(move || push_new(&paths, &name, &tag, bytes)).await?
}

async fn over(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(JOB, name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await
}

/// What the node says of an image.
fn entry(object: &Value, image: &str, tag: &str) -> Value {
    let tags = object.pointer("/status/imageStatuses").and_then(|all| all.get(image)?.get("tags")?.as_array().cloned());
    tags.into_iter().flatten().find(|status| status.text("/tag") == tag).unwrap_or_default()
}

async fn wait_for_entry(t: &Test, image: &str, tag: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
    let object = t.wait_for("NodeImage", NODE, what, PATIENCE, |o| fits(&entry(o, image, tag))).await?;
    Ok(entry(&object, image, tag))
}

async fn succeeded(t: &Test, name: &str) -> Result<()> {
    let job = over(t, name).await?;
    ensure!((job.int("/status/succeeded"), job.int("/status/failed")) == (1, 0), "{job:#}");
    Ok(())
}

/// Waits for the end of a job that fails, and returns what the node says.
async fn failed(t: &Test, name: &str, image: &str, tag: &str) -> Result<String> {
    let job = over(t, name).await?;
    ensure!((job.int("/status/succeeded"), job.int("/status/failed")) == (0, 1), "{job:#}");
    Ok(wait_for_entry(t, image, tag, "to say why", |s| s.text("/phase") == "Failed").await?.text("/message").to_owned())
}

#[tokio::test]
async fn a_tag_that_has_moved_is_pulled_again_when_that_is_asked_for() -> Result<()> {
    in_namespace("pull-tag", async |t| {
        let moving = new(t, "moving");
        let image = &format!("registry.example/team/{moving}");
        let reference = format!("{image}:now");
        pushed(t, &moving, "now", MIB).await?;
        t.create(job("first", &reference)).await?;
        succeeded(t, "first").await?;
        let first = entry(&t.get("NodeImage", NODE).await?, image, "now");
        ensure!(first.text("/imageID").starts_with(&format!("{image}@sha256:")), "{first:#}");
        ensure!(
            ctr(["images", "ls", "-q"]).text()?.lines().any(|line| line == reference),
            "containerd does not have it"
        );
        poll("the event of the pull", PATIENCE, async || {
            let events = events_of(&t.list_in("default", "Event", "").await?, "NodeImage", NODE);
            ensure!(events.iter().any(|e| e.starts_with("PullImageSucceed") && e.contains(image)), "{events:#?}");
            Ok(())
        })
        .await?;

        let digest = pushed(t, &moving, "now", MIB).await?;
        t.create(job("lazy", &reference).with("/spec/imagePullPolicy", "IfNotPresent")).await?;
        succeeded(t, "lazy").await?;
        let second = entry(&t.get("NodeImage", NODE).await?, image, "now");
        ensure!(second.text("/imageID") == first.text("/imageID"), "it was there: {second:#}");
        t.create(job("always", &reference).with("/spec/imagePullPolicy", "Always")).await?;
        succeeded(t, "always").await?;
        let third = entry(&t.get("NodeImage", NODE).await?, image, "now");
        ensure!(third.text("/imageID") != first.text("/imageID"), "{third:#}");
        // By its digest, too; upstream's daemon never gets one of these.
        t.create(job("digest", &format!("{image}@{digest}"))).await?;
        succeeded(t, "digest").await?;

        for name in ["first", "lazy", "always", "digest"] {
            t.remove(JOB, name).await?;
        }
        let is_forgotten = |o: &Value| o.pointer("/spec/images").is_none_or(|images| images.get(image).is_none());
        t.wait_for("NodeImage", NODE, "to forget the image", PATIENCE, is_forgotten).await.map(drop)
    })
    .await
}

/// By hand, what the gate PreDownloadImageForInPlaceUpdate does by itself: the image goes to the nodes of the CloneSet's
/// Pods, and the update downloads nothing.
#[tokio::test]
async fn pods_are_updated_in_place_to_an_image_that_was_pulled_ahead() -> Result<()> {
    in_namespace("pull-ahead", async |t| {
        let container = |image: &str| json!({ "name": "main", "image": image, "imagePullPolicy": "IfNotPresent" });
        let before = started(t, in_place("web", 2, vec![container(&remote("pause"))])).await?;
        let ahead = new(t, "ahead");
        pushed(t, &ahead, "v2", MIB).await?;
        let (repository, image) =
            (format!("registry.example/team/{ahead}"), &format!("registry.example/team/{ahead}:v2"));
        t.wait_for("NodeImage", NODE, "to be there", PATIENCE, |_| true).await?;
        t.create(json!({ "kind": JOB, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": "ahead" },
            "spec": { "image": image, "podSelector": { "matchLabels": { "app": "web" } },
                "completionPolicy": { "type": "Always" } } }))
            .await?;
        succeeded(t, "ahead").await?;
        let entry = entry(&t.get("NodeImage", NODE).await?, &repository, "v2");
        ensure!(entry.text("/phase") == "Succeeded" && entry.has("/startTime"), "{entry:#}");
        set_image(t, "web", "main", image).await?;
        rolled_out(t, "web").await?;
        let after = pods(t, "web").await?;
        ensure!(uids(&before) == uids(&after), "they were not updated in place");
        for pod in &after {
            assert_eq!(pod.text("/status/containerStatuses/0/image"), image.as_str());
            let present = format!("Container image \"{image}\" already present on machine");
            t.wait_events("Pod", pod.text("/metadata/name"), |e| e.iter().any(|e| e.contains(&present))).await?;
        }
        Ok(())
    })
    .await
}

/// The runtime of these tests has no image volumes yet. What kubelet mounts is an image of the node, under its reference.
#[tokio::test]
async fn an_image_for_a_volume_is_pulled_like_any_other() -> Result<()> {
    in_namespace("pull-volume", async |t| {
        let (paths, weights) = (t.paths.clone(), new(t, "weights"));
        let image = format!("registry.example/team/{weights}:v1");
        tokio::task::spawn_blocking(move || push_data(&paths, &weights, "v1", MIB)).await??;
        t.create(job("weights", &image)).await?;
        succeeded(t, "weights").await?;
        ensure!(ctr(["images", "ls", "-q"]).text()?.lines().any(|line| line == image), "the runtime does not have it");
        Ok(())
    })
    .await
}

fn docker_config(host: &str, password: &str) -> Value {
    let config = json!({ "auths": { host: { "username": PULLER.0, "password": password } } });
    json!({ "kind": "Secret", "metadata": { "name": "registry" }, "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": config.to_string() } })
}

#[tokio::test]
async fn a_private_image_needs_the_secret_of_its_job() -> Result<()> {
    in_namespace("pull-private", async |t| {
        t.create(docker_config("private.example/team", PULLER.1)).await?;
        t.create(docker_config("private.example", "stale-password").with("/metadata/name", "stale")).await?;
        t.create(docker_config("other.example", "other-password").with("/metadata/name", "other")).await?;
        t.create(
            json!({ "kind": "Secret", "metadata": { "name": "opaque" }, "stringData": { "password": "opaque-one" } }),
        )
        .await?;
        let jobs = [
            // The first one is refused by the registry, the second one lets it in.
            ("right", vec!["stale", "registry"], ""),
            ("stale", vec!["stale"], "PullImage"),
            ("none", vec![], "PullImage"),
            ("missing", vec!["missing"], "Secret {}/missing: it does not exist"),
            ("opaque", vec!["opaque"], "Secret {}/opaque: its type is \"Opaque\": want kubernetes.io/dockerconfigjson"),
            ("other", vec!["other"], "Secret {}/other: it has nothing for the registry of this image"),
        ];
        let private = |name: &str| new(t, &format!("private-{name}"));
        for (name, secrets, _) in &jobs {
            pushed(t, &private(name), "v1", MIB / 4).await?;
            let image = format!("private.example/team/{}:v1", private(name));
            t.create(job(name, &image).with("/spec/pullSecrets", json!(secrets))).await?;
        }
        for (name, _, message) in &jobs {
            if message.is_empty() {
                succeeded(t, name).await?;
                continue;
            }
            let entry = failed(t, name, &format!("private.example/team/{}", private(name)), "v1").await?;
            ensure!(entry.contains(&message.replace("{}", &t.namespace)), "{name}: {entry}");
        }
        // A Secret is read for each attempt: once mended, it lets the next one in.
        let secret = |password: &str| docker_config("private.example", password).with("/metadata/name", "mended");
        t.create(secret("stale-password")).await?;
        let image = private("mended");
        pushed(t, &image, "v1", MIB / 4).await?;
        let mended =
            job("mended", &format!("private.example/team/{image}:v1")).with("/spec/pullSecrets", json!(["mended"]));
        t.create(mended.with("/spec/pullPolicy/backoffLimit", 8)).await?;
        poll("its first attempt to fail", PATIENCE, async || {
            let log = t.kubectl(&["-n", SYSTEM, "logs", "daemonset/kruise-daemon", "--tail=-1"]).await?;
            let failed = log.lines().any(|line| line.contains(&image) && line.contains("not pulled"));
            ensure!(failed, "no attempt has failed yet");
            Ok(())
        })
        .await?;
        t.patch("Secret", "mended", json!({ "stringData": secret(PULLER.1)["stringData"] })).await?;
        succeeded(t, "mended").await?;
        // Nobody else wrote down what only the registry is to know.
        let node = t.get("NodeImage", NODE).await?.to_string();
        let events = serde_json::to_string(&t.list("Event", "").await?)?
            + &serde_json::to_string(&t.list_in("default", "Event", "").await?)?;
        let logs =
            kubectl(&t.paths, ["logs", "-n", SYSTEM, "-l", "control-plane", "--tail=-1", "--all-containers"]).text()?;
        for secret in [PULLER.1, "stale-password", "other-password", "opaque-one"] {
            for (place, text) in [("NodeImage", &node), ("events", &events), ("logs", &logs)] {
                ensure!(!text.contains(secret), "{place}: a password");
            }
        }
        ensure!(logs.contains("registry credentials served"), "the manager says that it was asked");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_entry_that_is_written_by_hand_gets_the_secret_beside_it() -> Result<()> {
    in_namespace("pull-by-hand", async |t| {
        t.create(docker_config("private.example", PULLER.1)).await?;
        let repository = new(t, "by-hand");
        pushed(t, &repository, "v1", MIB / 4).await?;
        let image = format!("private.example/team/{repository}");
        t.wait_for("NodeImage", NODE, "to be there", PATIENCE, |_| true).await?;
        let write = async |entry: Value| {
            t.patch("NodeImage", NODE, json!({ "spec": { "images": { (image.clone()): entry } } })).await.map(drop)
        };
        let entry = json!({ "pullSecrets": [{ "namespace": t.namespace, "name": "registry" }],
            "tags": [{ "tag": "v1", "pullPolicy": { "timeoutSeconds": 60, "backoffLimit": 1 } }] });
        let pulled = async {
            write(entry).await?;
            let has_ended = |s: &Value| ["Succeeded", "Failed"].contains(&s.text("/phase"));
            let entry = wait_for_entry(t, &image, "v1", "to be over", has_ended).await?;
            ensure!(entry.text("/phase") == "Succeeded", "{entry:#}");
            Ok(())
        };
        restoring(pulled, write(Value::Null)).await
    })
    .await
}

/// All of the faulty registry, because its port is one.
#[tokio::test]
async fn registries_that_are_slow_fail_or_hand_out_something_else() -> Result<()> {
    in_namespace("pull-faults", async |t| {
        let proxy = RegistryProxy::start().await?;
        let path = |repository: &str| format!("team/{}", new(t, repository));
        let name = |repository: &str| format!("faulty.example/{}", path(repository));
        let mut jobs = Vec::new();
        for (repository, bytes) in [("slow", 8 * MIB), ("late", 8 * MIB), ("recovers", MIB / 4), ("corrupt", MIB / 4)] {
            let digest = pushed(t, &new(t, repository), "v1", bytes).await?;
            let fault = match repository {
                "recovers" => Fault::Failing(2),
                "corrupt" => Fault::Corrupt,
                _ => Fault::Slow(MIB / 4),
            };
            proxy.set(&path(repository), fault);
            let job = job(repository, &format!("{}:v1", name(repository)));
            jobs.push(match repository {
                "late" => job.with("/spec/pullPolicy/timeoutSeconds", 3),
                "recovers" => job.with("/spec/pullPolicy/backoffLimit", 3),
                "corrupt" => job.with("/spec/image", format!("{}@{digest}", name(repository))),
                _ => job,
            });
        }
        for job in jobs {
            t.create(job).await?;
        }
        // How far it is, in bytes: 8 MiB take 32 s, and the status is written every 15 s.
        let slow = name("slow");
        let progress = |s: &Value| s.int("/progress") > 0 && s.text("/message").ends_with(" MiB");
        let entry = wait_for_entry(t, &slow, "v1", "to show its progress", progress).await?;
        ensure!(entry.text("/phase") == "Pulling" && entry.int("/progress") < 100, "{entry:#}");
        // Its job goes: so does the pull.
        t.remove(JOB, "slow").await?;
        poll("the runtime to leave the registry", PATIENCE, async || {
            ensure!(proxy.left(&path("slow")) > 0, "it still downloads");
            Ok(())
        })
        .await?;
        let is_gone = |o: &Value| o.pointer("/status/imageStatuses").is_none_or(|images| images.get(&slow).is_none());
        t.wait_for("NodeImage", NODE, "to forget it", PATIENCE, is_gone).await?;
        ensure!(!ctr(["images", "ls", "-q"]).text()?.contains(&slow), "it was pulled all the same");

        let late = failed(t, "late", &name("late"), "v1").await?;
        ensure!(late.contains("the attempt took longer than 3 s"), "{late}");
        poll("the download to be ended", PATIENCE, async || {
            ensure!(proxy.left(&path("late")) > 0, "it still goes on");
            Ok(())
        })
        .await?;
        succeeded(t, "recovers").await?;
        let corrupt = t.get(JOB, "corrupt").await?;
        let digest = corrupt.text("/spec/image").split_once('@').context("a digest")?.1.to_owned();
        let entry = failed(t, "corrupt", &name("corrupt"), &digest).await?;
        ensure!(entry.contains("digest") || entry.contains("size"), "{entry}");
        let (code, message) = t.refused(job("malformed", "faulty.example/Team/app::v1")).await?;
        ensure!((400..500).contains(&code) && message.contains("image"), "{code} {message}");
        Ok(())
    })
    .await
}
