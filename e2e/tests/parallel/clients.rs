//! What programs of others do with our kinds: typed clients in Go, the Python client, kubectl.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::clients::{self, REQUEST, appliable, apply, no_difference_in_either_way, removed, samples};
use e2e::guide::{GATED, examples};
use e2e::images::remote;
use e2e::kit::{Look, Test, app, in_namespace, pod, restoring};
use serde_json::{Value, json};

/// Runs a program that prints a line for each check.
async fn checks(t: &Test, program: Command) -> Result<()> {
    restoring(checked(t, program), removed(t)).await
}

async fn checked(t: &Test, program: Command) -> Result<()> {
    // For the requests to restart its container.
    t.start(pod("clients", vec![app("main")])).await?;
    let answer = t.run(program).await?;
    ensure!(answer.ok, "{}\n{}", answer.stdout, answer.stderr);
    let checks = answer.stdout.lines().filter(|line| line.starts_with("ok ")).count();
    ensure!(checks > 50, "only {checks} checks:\n{}", answer.stdout);
    Ok(())
}

#[tokio::test]
async fn the_types_in_go_are_those_of_the_definitions_and_serve_every_kind_in_every_version() -> Result<()> {
    in_namespace("clients-go", async |t| {
        t.run(clients::go_types(&t.paths)).await.and_then(|answer| {
            ensure!(answer.ok, "{}", answer.stderr);
            Ok(())
        })?;
        checks(t, clients::go(&t.paths, &t.namespace)).await
    })
    .await
}

#[tokio::test]
async fn the_python_client_applies_patches_and_scales_every_kind_in_every_version() -> Result<()> {
    in_namespace("clients-python", async |t| checks(t, clients::python(&t.paths, &t.namespace)).await).await
}

#[tokio::test]
async fn kubectl_applies_every_kind_on_the_server_and_conflicts_name_the_manager() -> Result<()> {
    in_namespace("clients-apply", async |t| restoring(applied_on_the_server(t), removed(t)).await).await
}

async fn applied_on_the_server(t: &Test) -> Result<()> {
    t.start(pod("clients", vec![app("main")])).await?;
    let mut samples = samples(t)?;
    samples.retain(|sample| sample.gate.is_none());
    let with_the_field = samples.iter().filter(|sample| sample.has_the_field()).count();
    ensure!(with_the_field > 5, "only {with_the_field} samples change a field that they have");
    clients::applied_on_the_server(t, &samples).await
}

#[tokio::test]
async fn kubectl_diff_shows_nothing_after_apply_of_every_kind_and_every_example_of_the_guide() -> Result<()> {
    in_namespace("clients-diff", async |t| restoring(without_a_difference(t), removed(t)).await).await
}

async fn without_a_difference(t: &Test) -> Result<()> {
    t.start(pod("clients", vec![app("main")])).await?;
    let mut examples = examples(&t.paths.repo)?;
    examples.retain(|(_, object)| !GATED.contains(&object.text("/kind")));
    // Requests want a Pod that runs.
    for (_, request) in examples.iter().filter(|(_, object)| object.text("/kind") == REQUEST) {
        let name = request.text("/spec/podName");
        if t.api("Pod").get_opt(name).await?.is_none() {
            t.start(containers_of_all_requests(&examples, name)).await?;
        }
    }
    // What is applied is looked at, and not what comes of it.
    let quota = json!({ "kind": "ResourceQuota", "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    t.create(quota).await?;

    let mut samples = samples(t)?;
    samples.retain(|sample| sample.gate.is_none());
    let mut objects = appliable(t, examples);
    ensure!(objects.len() > 35, "the guide has only {} examples", objects.len());
    objects.extend(samples.into_iter().map(|sample| sample.object));
    apply(t, &[], &objects).await?;
    // Requests by themselves, and last: they are carried out meanwhile, and each step of one is a difference for whoever looks
    // just then.
    let (requests, objects): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|object| object.text("/kind") == REQUEST);
    ensure!(requests.len() > 5, "only {} requests", requests.len());
    let before = specs(t, &requests).await?;
    apply(t, &[], &requests).await?;
    assert_eq!(specs(t, &requests).await?, before, "applied again");
    no_difference_in_either_way(t, &objects).await?;
    no_difference_in_either_way(t, &requests).await.context("requests")?;
    assert_eq!(specs(t, &requests).await?, before, "applied again on the server");
    Ok(())
}

/// The specs of objects as they are stored, each with its generation.
async fn specs(t: &Test, objects: &[Value]) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for object in objects {
        let stored = t.stored(object).await?;
        found.push(json!([stored["spec"], stored["metadata"]["generation"]]));
    }
    Ok(found)
}

/// A Pod with the containers that any example restarts in it.
fn containers_of_all_requests(examples: &[(String, Value)], name: &str) -> Value {
    let requests = examples.iter().filter(|(_, object)| object.text("/spec/podName") == name);
    let mut containers: Vec<&str> =
        requests.flat_map(|(_, request)| request.array("/spec/containers")).map(|c| c.text("/name")).collect();
    containers.sort_unstable();
    containers.dedup();
    // Pulled, so that it has a digest, as method PodSpec needs.
    pod(name, containers.into_iter().map(|name| json!({ "name": name, "image": remote("pause") })).collect())
}
