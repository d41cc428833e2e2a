//! Part of `make bench`: images by job beside the same pulls by the runtime alone, the daemon's memory meanwhile, and what
//! pulling ahead of time is worth when Pods are updated in place from a slow registry.
//!
//! Every image is new, in its own repository, and of random bytes: nothing of it is on the node before. The two ways take
//! turns, so that both meet the same machine.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cmd::cmd;
use crate::images::push_new;
use crate::kit::{Build, Look, PATIENCE, Test, pod};
use crate::load;
use crate::measure::{Table, Usage, median, summary};
use crate::paths::{NODE, Paths, containerd_socket};
use crate::registry_proxy::{Fault, RegistryProxy};

const JOB: &str = "ImagePullJob";
const CLONE_SET: &str = "CloneSet";
const MIB: usize = 1 << 20;
/// Of the images whose times are compared.
const SIZE: usize = 32 * MIB;
/// Of the one during which the daemon's memory is watched.
const BIG: usize = 512 * MIB;
/// Pods that are updated in place.
const PODS: i64 = 20;
/// Of the slow registry, a second; a layer of that many seconds is in its images.
const SLOW: usize = MIB;
const SLOW_SECONDS: usize = 15;

pub(crate) async fn measure(t: &Test, paths: &Paths, count: usize, table: &mut Table) -> Result<()> {
    beside_the_runtime(t, paths, count, table).await?;
    memory(t, paths, table).await?;
    pre_download(t, paths, table).await
}

async fn push(paths: &Paths, name: &str, tag: &str, bytes: usize) -> Result<String> {
    let (paths, name, tag) = (paths.clone(), name.to_owned(), tag.to_owned());
    let image = format!("registry.example/team/{name}:{tag}");
    tokio::task::spawn_blocking(move || push_new(&paths, &name, &tag, bytes)).await??;
    Ok(image)
}

fn job(name: &str, image: &str) -> Value {
    json!({ "kind": JOB, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name }, "spec": {
        "image": image, "selector": { "names": [NODE] }, "completionPolicy": { "type": "Always" } } })
}

/// From the call that creates the job to its end in a watch.
async fn by_job(t: &Test, name: &str, image: &str) -> Result<Duration> {
    let begun = Instant::now();
    t.create(job(name, image)).await?;
    let done = t.wait_for(JOB, name, "to be over", PATIENCE * 5, |o| o.has("/status/completionTime")).await?;
    ensure!(done.int("/status/succeeded") == 1, "{done:#}");
    Ok(begun.elapsed())
}

async fn beside_the_runtime(t: &Test, paths: &Paths, count: usize, table: &mut Table) -> Result<()> {
    let mut child = cmd(load::program(paths)?, ["pull", "--socket"])
        .arg(containerd_socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("standard input")?;
    let mut output = BufReader::new(child.stdout.take().context("standard output")?).lines();
    let (mut bare, mut jobs) = (Vec::new(), Vec::new());
    for i in 0..count {
        let image = push(paths, &format!("bench-bare-{i}"), "v1", SIZE).await?;
        writeln!(input, "{image}")?;
        let line = tokio::task::block_in_place(|| output.next()).context("the helper ended")??;
        bare.push(line.trim().parse::<f64>().with_context(|| line.clone())? / 1000.0);
        let image = push(paths, &format!("bench-job-{i}"), "v1", SIZE).await?;
        jobs.push(by_job(t, &format!("job-{i}"), &image).await?.as_secs_f64());
    }
    drop(input);
    ensure!(child.wait()?.success(), "the helper failed");
    table.row("PullImage by the runtime alone, 32 MiB", "", summary(&bare));
    let goal = format!("{:.2} s", median(&bare).context("nothing was pulled")? * 1.1 + 0.3);
    table.row("the same by an ImagePullJob, to its end", &goal, summary(&jobs));
    Ok(())
}

async fn memory(t: &Test, paths: &Paths, table: &mut Table) -> Result<()> {
    let daemon = t.node().daemon_process().await?;
    let before = Usage::of(daemon)?;
    let image = push(paths, "bench-big", "v1", BIG).await?;
    by_job(t, "big", &image).await?;
    let after = Usage::of(daemon)?;
    let what = format!("daemon: peak memory beyond idle, while {} MiB are pulled", BIG / MIB);
    table.row(&what, "does not grow with the image", format!("{:.1} MB", after.peak - before.memory));
    Ok(())
}

/// Twenty Pods from one image to another in place, one at a time, from a registry that takes its time.
async fn pre_download(t: &Test, paths: &Paths, table: &mut Table) -> Result<()> {
    let proxy = RegistryProxy::start().await?;
    let repository = "bench-slow";
    push(paths, repository, "v0", MIB).await?;
    let image = |tag: &str| format!("faulty.example/team/{repository}:{tag}");
    let container = |tag: &str| json!([{ "name": "main", "image": image(tag), "imagePullPolicy": "IfNotPresent" }]);
    let spec = pod("slow", Vec::new())["spec"].clone().with("/containers", container("v0"));
    let set = json!({ "kind": CLONE_SET, "metadata": { "name": "slow" }, "spec": {
        "replicas": PODS, "selector": { "matchLabels": { "app": "slow" } },
        "template": { "metadata": { "labels": { "app": "slow" } }, "spec": spec.with("/terminationGracePeriodSeconds", 0) },
        "updateStrategy": { "type": "InPlaceOnly", "maxUnavailable": "25%" } } });
    t.create(set).await?;
    let is_done = |o: &Value| {
        let status = |field: &str| o.int(&format!("/status/{field}"));
        status("observedGeneration") == o.int("/metadata/generation")
            && (status("updatedReadyReplicas"), status("replicas")) == (PODS, PODS)
    };
    t.wait_for(CLONE_SET, "slow", "to be ready", PATIENCE * 3, is_done).await?;
    proxy.set(&format!("team/{repository}"), Fault::Slow(SLOW));
    for (tag, gates, what) in [
        ("v1", "ImagePullJobGate=true", "without"),
        ("v2", "ImagePullJobGate=true,PreDownloadImageForInPlaceUpdate=true", "with"),
    ] {
        t.set_gates(gates).await?;
        push(paths, repository, tag, SLOW * SLOW_SECONDS).await?;
        let is_ahead = what == "with";
        // As one does it: the new image is named while no Pod may be updated, and let go when the nodes have it.
        let partition = if is_ahead { PODS } else { 0 };
        let strategy = json!({ "partition": partition });
        let template = json!({ "spec": { "containers": container(tag) } });
        let begun = Instant::now();
        t.patch(CLONE_SET, "slow", json!({ "spec": { "template": template, "updateStrategy": strategy } })).await?;
        if is_ahead {
            let is_other = |o: &Value| o.text("/status/updateRevision") != o.text("/status/currentRevision");
            let update = t.wait_for(CLONE_SET, "slow", "to have a new revision", PATIENCE, is_other).await?;
            let name = format!("{}-main", update.text("/status/updateRevision"));
            t.wait_for(JOB, &name, "to be over", PATIENCE * 3, |o| o.has("/status/completionTime")).await?;
            let took = format!("{:.1} s", begun.elapsed().as_secs_f64());
            table.row("  until its job has pulled the image, while all Pods serve", "", took);
            t.patch(CLONE_SET, "slow", json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
        }
        let seen = t.record(CLONE_SET, "slow").await?;
        let begun = Instant::now();
        t.wait_for(CLONE_SET, "slow", "to be updated", PATIENCE * 5, is_done).await?;
        let took = begun.elapsed().as_secs_f64();
        let states = seen.states();
        let ready = |o: &Value| o.int("/status/readyReplicas");
        let least = states.iter().map(|(_, o)| ready(o)).min().unwrap_or(PODS);
        // What users of the service lack: Pods that are out of it, over time.
        let lacking =
            states.windows(2).map(|pair| (PODS - ready(&pair[0].1)) as f64 * (pair[1].0 - pair[0].0).as_secs_f64());
        let lacking: f64 = lacking.sum();
        let figure = format!("{PODS} Pods in place from a slow registry, {what} pre-download");
        table.row(&figure, "", format!("{took:.1} s, at least {least} ready, {lacking:.0} s of Pods out of service"));
    }
    t.set_gates("ImagePullJobGate=true").await?;
    t.remove(CLONE_SET, "slow").await
}
