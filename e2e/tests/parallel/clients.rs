//! What programs of others do with our kinds: typed clients in Go, the Python client, kubectl.

use std::process::Command;
use std::slice;

use anyhow::{Context, Result, ensure};
use e2e::clients::{self, Sample, appliable, apply, no_difference, refused, removed, samples};
use e2e::guide::{GATED, examples};
use e2e::images::remote;
use e2e::kit::{Look, Test, app, in_namespace, pod, restoring};
use serde_json::{Value, json};

const REQUEST: &str = "ContainerRecreateRequest";

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

/// What server-side apply may change of an object that is applied again without a change: nothing.
async fn state(t: &Test, sample: &Sample) -> Result<Value> {
    let found = t.stored(&sample.object).await?;
    let owned = found.array("/metadata/managedFields").iter().filter(|entry| entry["operation"] == "Apply").cloned();
    Ok(json!({ "generation": found["metadata"]["generation"], "owned": owned.collect::<Value>() }))
}

/// The field as the API server names it: of a list, the list.
fn field(path: &str) -> String {
    let parts = path.split('/').skip(1).take_while(|part| part.parse::<usize>().is_err());
    parts.map(|part| format!(".{part}")).collect()
}

#[tokio::test]
async fn kubectl_applies_every_kind_on_the_server_and_conflicts_name_the_manager() -> Result<()> {
    in_namespace("clients-apply", async |t| restoring(applied_on_the_server(t), removed(t)).await).await
}

async fn applied_on_the_server(t: &Test) -> Result<()> {
    t.start(pod("clients", vec![app("main")])).await?;
    let mut samples = samples(t)?;
    samples.retain(|sample| sample.gate.is_none());
    let first = ["--server-side", "--field-manager=first"];
    let changed: Vec<Value> = samples.iter().map(|sample| sample.changed()).collect();
    apply(t, &first, &changed).await?;
    let mut before = Vec::new();
    for sample in &samples {
        before.push(state(t, sample).await?);
    }
    apply(t, &first, &changed).await?;
    for (sample, before) in samples.iter().zip(before) {
        let after = state(t, sample).await?;
        ensure!(after == before, "{} applied again: {before} is {after}", sample.object["kind"]);
    }
    // A request is carried out meanwhile.
    let steady: Vec<Value> = changed.iter().filter(|object| object.text("/kind") != REQUEST).cloned().collect();
    no_difference(t, &first, &steady).await?;

    // Another manager wants the value that the object had without the change, where it had one.
    let others: Vec<&Sample> = samples.iter().filter(|s| s.object.pointer(&s.change.path).is_some()).collect();
    ensure!(others.len() > 5, "only {} samples change a field that they have", others.len());
    for Sample { object, change, .. } in others {
        let said = refused(t, &["--server-side", "--field-manager=second"], slice::from_ref(object)).await?;
        let field = field(&change.path);
        // One conflict is told on one line, and of several each field has a line of its own.
        let names_both = said.contains("with \"first\"") && said.contains(&field);
        ensure!(names_both, "{}: no conflict with first at {field}: {said}", object["kind"]);
    }
    Ok(())
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
    let (plain, on_the_server): (&[&str], _) = (&[], ["--server-side", "--force-conflicts"]);
    // Requests are carried out meanwhile: their statuses differ from one moment to the next.
    let (requests, objects): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|object| object.text("/kind") == REQUEST);
    for request in &requests {
        let before = t.stored(request).await?;
        for how in [plain, &on_the_server] {
            apply(t, how, slice::from_ref(request)).await?;
            let after = t.stored(request).await?;
            let same =
                after["spec"] == before["spec"] && after["metadata"]["generation"] == before["metadata"]["generation"];
            ensure!(same, "applied again by {how:?}: {before} is {after}");
        }
    }
    no_difference(t, plain, &objects).await?;
    // Who goes over to server-side apply: the first one still changes what kubectl has noted in an annotation.
    apply(t, &on_the_server, &objects).await?;
    no_difference(t, &on_the_server, &objects).await.context("by server-side apply")
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
