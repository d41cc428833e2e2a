//! Copies of Secrets and ConfigMaps in many namespaces, on a real API server: behind the gate ResourceDistributionGate and with its
//! component.

use anyhow::{Context, Result, ensure};
use e2e::clients::{self, appliable, applied_on_the_server, apply, no_difference_in_either_way, removed, samples};
use e2e::guide::{GATED, examples, refusals};
use e2e::kit::{Build, Look, PATIENCE, Test, condition, events_of, in_namespace, poll, restoring};
use e2e::paths::SYSTEM;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

const KIND: &str = "ResourceDistribution";
const GATE: &str = "ResourceDistributionGate";

/// Applies or deletes the objects of the component.
pub(crate) async fn component(t: &Test, on: bool) -> Result<()> {
    t.component("resource-distribution", ("delete", "secrets"), on).await
}

/// One that distributes to namespaces by their names.
fn distribution(name: &str, resource: Value, namespaces: &[&str]) -> Value {
    let list: Vec<Value> = namespaces.iter().map(|name| json!({ "name": name })).collect();
    json!({ "kind": KIND, "metadata": { "name": name },
        "spec": { "resource": resource, "targets": { "includedNamespaces": { "list": list } } } })
}

fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "k": "v" } })
}

fn secret(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { "k": "v" } })
}

/// With the gate off nobody would make the copies.
pub(crate) async fn refused_while_off(t: &Test) -> Result<()> {
    let (code, message) = t.refused(distribution("off", config_map("off"), &[&t.namespace])).await?;
    ensure!(code == 403 && message.contains(GATE), "{code}: {message}");
    Ok(())
}

/// Those of the guide, which the parallel tests leave out.
pub(crate) async fn every_example_of_the_guide_is_accepted(t: &Test) -> Result<()> {
    let mut examples = examples(&t.paths.repo)?;
    examples.retain(|(_, object)| GATED.contains(&object.text("/kind")));
    ensure!(examples.len() >= 2, "only {} examples", examples.len());
    let refused = refusals(t, examples);
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(())
}

/// Programs in Go and Python, server-side apply and `kubectl diff`: the parallel tests have other kinds for them.
pub(crate) async fn programs_of_others_work_with_it() -> Result<()> {
    in_namespace("distribution-clients", async |t| restoring(used_by_others(t), removed(t)).await).await
}

async fn used_by_others(t: &Test) -> Result<()> {
    let (mut go, mut python) = (clients::go(&t.paths, &t.namespace), clients::python(&t.paths, &t.namespace));
    go.args(["-kinds", KIND, "-gates", GATE]);
    python.args(["--kinds", KIND, "--gates", GATE]);
    for program in [go, python] {
        let answer = t.run(program).await?;
        ensure!(answer.ok, "{}\n{}", answer.stdout, answer.stderr);
        let checks = answer.stdout.lines().filter(|line| line.starts_with("ok ")).count();
        ensure!(checks > 4 && !answer.stdout.contains("refused while"), "{}", answer.stdout);
    }

    let mut samples = samples(t)?;
    samples.retain(|sample| sample.object.text("/kind") == KIND);
    ensure!(samples.len() == 1 && samples[0].has_the_field(), "{samples:?}");
    applied_on_the_server(t, &samples).await.context("server-side apply")?;
    t.remove(KIND, &t.namespace).await?;
    t.gone(KIND, &t.namespace).await?;

    let mut examples = examples(&t.paths.repo)?;
    examples.retain(|(_, object)| object.text("/kind") == KIND);
    let mut objects = appliable(t, examples);
    objects.extend(samples.into_iter().map(|sample| sample.object));
    apply(t, &[], &objects).await?;
    no_difference_in_either_way(t, &objects).await
}

async fn find(t: &Test, namespace: &str, kind: &str, name: &str) -> Result<Option<Value>> {
    let found = t.api_in(namespace, kind).get_opt(name).await?;
    Ok(found.map(serde_json::to_value).transpose()?)
}

/// Waits until the object in a namespace fits; None: it is not there.
async fn wait_for(
    t: &Test,
    (namespace, kind, name): (&str, &str, &str),
    what: &str,
    fits: impl Fn(Option<&Value>) -> bool,
) -> Result<()> {
    poll(&format!("{kind} {namespace}/{name} {what}"), PATIENCE, async || {
        let found = find(t, namespace, kind, name).await?;
        ensure!(fits(found.as_ref()), "{found:#?}");
        Ok(())
    })
    .await
}

async fn edit(t: &Test, namespace: &str, kind: &str, name: &str, change: Value) -> Result<()> {
    t.api_in(namespace, kind).patch(name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)?;
    Ok(())
}

async fn numbers(t: &Test, name: &str, desired: i64, succeeded: i64) -> Result<Value> {
    let fits = |o: &Value| {
        o.int("/status/desired") == desired
            && o.int("/status/succeeded") == succeeded
            && o.int("/status/observedGeneration") == o.int("/metadata/generation")
    };
    t.wait_for(KIND, name, &format!("to have {succeeded} of {desired} copies"), PATIENCE, fits).await
}

fn listed(object: &Value, type_: &str) -> Vec<String> {
    let found = object.array("/status/conditions").iter().find(|condition| condition.text("/type") == type_);
    let names = found.map(|condition| condition.array("/failedNamespace").to_vec()).unwrap_or_default();
    names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Namespaces and ResourceDistributions with names of a test, which go with it.
async fn with_namespaces(name: &str, body: impl AsyncFn(&Test, [&str; 3]) -> Result<()>) -> Result<()> {
    in_namespace(name, async |t| {
        let names = ["a", "b", "late"].map(|part| format!("{}-{part}", t.namespace));
        let [a, b, late] = names.each_ref().map(String::as_str);
        for namespace in [a, b] {
            t.create(
                json!({ "kind": "Namespace", "metadata": { "name": namespace, "labels": { "e2e": t.namespace } } }),
            )
            .await?;
        }
        let undo = async {
            for object in t.list(KIND, "").await? {
                if object.text("/metadata/name").starts_with(&t.namespace) {
                    t.remove(KIND, object.text("/metadata/name")).await?;
                }
            }
            for namespace in [a, b, late] {
                t.remove("Namespace", namespace).await?;
            }
            Ok(())
        };
        restoring(body(t, [a, b, late]), undo).await
    })
    .await
}

pub(crate) async fn copies_are_where_they_are_wanted() -> Result<()> {
    with_namespaces("distribution", async |t, [a, b, late]| {
        config_maps(t, [a, b, late]).await.context("ConfigMaps")?;
        secrets(t, [a, b]).await.context("Secrets")
    })
    .await
}

async fn config_maps(t: &Test, [a, b, late]: [&str; 3]) -> Result<()> {
    let name = format!("{}-map", t.namespace);
    let is_copy = |o: Option<&Value>| o.is_some_and(|o| o["data"] == json!({ "k": "v" }));
    t.create(distribution(&name, config_map("spread"), &[a, b, late])).await?;
    let status = numbers(t, &name, 3, 2).await?;
    ensure!(listed(&status, "NamespaceNotExists") == [late], "{status:#}");
    // A namespace that comes is served at once.
    t.create(json!({ "kind": "Namespace", "metadata": { "name": late } })).await?;
    wait_for(t, (late, "ConfigMap", "spread"), "to be made", is_copy).await?;
    let status = numbers(t, &name, 3, 3).await?;
    ensure!(condition(&status, "Ready") == "True", "{status:#}");
    let get = t.kubectl(&["get", "distributor", &name]).await?;
    let columns = get.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(columns == "NAME TOTAL SUCCEED FAILED AGE", "{get}");
    // What others do to copies is undone; what they add beside the content stays.
    edit(
        t,
        a,
        "ConfigMap",
        "spread",
        json!({ "metadata": { "labels": { "theirs": "1" } }, "data": { "k": "x", "more": "y" } }),
    )
    .await?;
    let restored = |o: Option<&Value>| is_copy(o) && o.is_some_and(|o| o.text("/metadata/labels/theirs") == "1");
    wait_for(t, (a, "ConfigMap", "spread"), "to be put back", restored).await?;
    t.api_in(b, "ConfigMap").delete("spread", &DeleteParams::default()).await?;
    wait_for(t, (b, "ConfigMap", "spread"), "to be made again", is_copy).await?;
    // Kind and name stay.
    let (code, message) =
        refused_change(t, &name, json!({ "spec": { "resource": { "metadata": { "name": "other" } } } })).await?;
    ensure!(code == 422 && message.contains("cannot be changed"), "{code}: {message}");
    // A namespace refuses.
    edit(t, b, "Namespace", b, json!({ "metadata": { "annotations": { "kruise.rs/refuse-distribution": "true" } } }))
        .await?;
    wait_for(t, (b, "ConfigMap", "spread"), "to go", |o| o.is_none()).await?;
    let status = numbers(t, &name, 2, 2).await?;
    ensure!(listed(&status, "NamespaceRefused") == [b], "{status:#}");
    edit(t, b, "Namespace", b, json!({ "metadata": { "annotations": { "kruise.rs/refuse-distribution": null } } }))
        .await?;
    numbers(t, &name, 3, 3).await?;
    // A conflict ends when the blocker goes.
    let rival = format!("{}-rival", t.namespace);
    t.create(config_map("blocked").with("/metadata/namespace", a).with("/data/k", "mine")).await?;
    t.create(distribution(&rival, config_map("blocked"), &[a, b])).await?;
    let status = numbers(t, &rival, 2, 1).await?;
    ensure!(listed(&status, "ConflictOccurred") == [a] && condition(&status, "Reconciling") == "True", "{status:#}");
    poll("an event about the conflict", PATIENCE, async || {
        let events = events_of(&t.list_in("default", "Event", "").await?, KIND, &rival);
        ensure!(events.iter().any(|event| event.starts_with("ConflictOccurred")), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(find(t, a, "ConfigMap", "blocked").await?.is_some_and(|o| o.text("/data/k") == "mine"), "it was changed");
    t.api_in(a, "ConfigMap").delete("blocked", &DeleteParams::default()).await?;
    numbers(t, &rival, 2, 2).await?;
    // Copies go with their ResourceDistribution.
    t.remove(KIND, &rival).await?;
    for namespace in [a, b] {
        wait_for(t, (namespace, "ConfigMap", "blocked"), "to go", |o| o.is_none()).await?;
    }
    Ok(())
}

async fn secrets(t: &Test, [a, b]: [&str; 2]) -> Result<()> {
    let name = format!("{}-secret", t.namespace);
    t.create(secret("taken").with("/metadata/namespace", b).with("/stringData/k", "mine")).await?;
    let by_label = json!({ "namespaceLabelSelector": { "matchLabels": { "e2e": t.namespace } } });
    t.create(distribution(&name, secret("taken"), &[]).with("/spec/targets", by_label)).await?;
    let status = numbers(t, &name, 2, 1).await?;
    ensure!(listed(&status, "ConflictOccurred") == [b], "{status:#}");
    let value = |text: &'static str| move |o: Option<&Value>| o.is_some_and(|o| o["data"] == json!({ "k": text }));
    wait_for(t, (a, "Secret", "taken"), "to be made", value("dg==")).await?;
    // A change is written to copies that somebody has edited, too.
    edit(t, a, "Secret", "taken", json!({ "data": { "more": "eA==" } })).await?;
    t.patch(KIND, &name, json!({ "spec": { "resource": { "stringData": { "k": "w" } } } })).await?;
    wait_for(t, (a, "Secret", "taken"), "to be changed", value("dw==")).await?;
    ensure!(find(t, b, "Secret", "taken").await?.is_some_and(|o| o.text("/data/k") == "bWluZQ=="), "it was changed");
    // What others do to copies is undone soon, as there are few.
    edit(t, a, "Secret", "taken", json!({ "data": { "k": "eA==" } })).await?;
    wait_for(t, (a, "Secret", "taken"), "to be put back", value("dw==")).await?;
    t.api_in(a, "Secret").delete("taken", &DeleteParams::default()).await?;
    wait_for(t, (a, "Secret", "taken"), "to be made again", value("dw==")).await?;
    // The namespace is no longer meant.
    edit(t, a, "Namespace", a, json!({ "metadata": { "labels": { "e2e": null } } })).await?;
    wait_for(t, (a, "Secret", "taken"), "to go", |o| o.is_none()).await?;
    // Whoever takes the blocker away need not tell anybody.
    t.api_in(b, "Secret").delete("taken", &DeleteParams::default()).await?;
    poll("the Secret in the place of the blocker", PATIENCE * 2, async || {
        let found = find(t, b, "Secret", "taken").await?;
        ensure!(value("dw==")(found.as_ref()), "{found:#?}");
        Ok(())
    })
    .await?;
    numbers(t, &name, 1, 1).await.map(drop)
}

async fn refused_change(t: &Test, name: &str, change: Value) -> Result<(u16, String)> {
    match t.api(KIND).patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        other => anyhow::bail!("{name} was changed: {other:?}"),
    }
}

pub(crate) async fn a_referenced_secret_is_followed_with_the_rights_of_its_author() -> Result<()> {
    with_namespaces("distribution-ref", async |t, [a, b, _]| {
        let name = format!("{}-ref", t.namespace);
        let author = format!("e2e-{}", t.namespace);
        let rule = "--verb=create,get,patch,delete,list";
        t.kubectl(&["create", "clusterrole", &author, rule, "--resource=resourcedistributions.apps.kruise.io"]).await?;
        t.kubectl(&[
            "create",
            "clusterrolebinding",
            &author,
            &format!("--clusterrole={author}"),
            &format!("--user={author}"),
        ])
        .await?;
        let undo = async { t.kubectl(&["delete", "clusterrole,clusterrolebinding", &author]).await.map(drop) };
        restoring(referenced(t, &name, &author, [a, b]), undo).await
    })
    .await
}

async fn referenced(t: &Test, name: &str, author: &str, [a, b]: [&str; 2]) -> Result<()> {
    t.create(secret("source").with("/metadata/namespace", a).with("/metadata/labels", json!({ "of": "source" })))
        .await?;
    let targets = json!({ "namespaceLabelSelector": { "matchLabels": { "e2e": t.namespace } } });
    let object = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": KIND, "metadata": { "name": name },
        "spec": { "resourceRef": { "kind": "Secret", "namespace": a, "name": "source" }, "targets": targets } });
    let file = std::env::temp_dir().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string())?;
    let file = file.to_string_lossy();
    let create = ["create", "-f", &file, "--as", author];
    poll("the author to lack the right to get the Secret", PATIENCE, async || {
        let Err(error) = t.kubectl(&create).await else { anyhow::bail!("it was created") };
        ensure!(format!("{error:#}").contains("requires permission to get the object"), "{error:#}");
        Ok(())
    })
    .await?;
    let by_name = ["create", "role", "source", "-n", a, "--resource=secrets", "--resource-name=source"];
    t.kubectl(&[&by_name[..], &["--verb=get,list,watch"]].concat()).await?;
    t.kubectl(&["create", "rolebinding", "author", "-n", a, "--role=source", &format!("--user={author}")]).await?;
    poll("the author to have it", PATIENCE, async || t.kubectl(&create).await.map(drop)).await?;
    // The manager has no right to read it yet.
    let refused = |o: &Value| condition(o, "ReferenceFailed") == "True";
    let status = t.wait_for(KIND, name, "to say that the Secret cannot be read", PATIENCE, refused).await?;
    ensure!(condition(&status, "Reconciling") == "True", "{status:#}");
    let manager = format!("--serviceaccount={SYSTEM}:kruise-manager");
    t.kubectl(&["create", "rolebinding", "manager", "-n", a, "--role=source", &manager]).await?;
    let is = |text: &'static str| move |o: Option<&Value>| o.is_some_and(|o| o["data"] == json!({ "k": text }));
    wait_for(t, (b, "Secret", "source"), "to be copied", is("dg==")).await?;
    let copied = find(t, b, "Secret", "source").await?.context("the copy")?;
    ensure!(!copied.has("/metadata/labels/of"), "{copied:#}");
    let status = numbers(t, name, 1, 1).await?;
    ensure!(condition(&status, "ReferenceFailed") == "False", "{status:#}");
    edit(t, a, "Secret", "source", json!({ "data": { "k": "dw==" } })).await?;
    wait_for(t, (b, "Secret", "source"), "to follow", is("dw==")).await?;
    // Without it the copies stay.
    t.api_in(a, "Secret").delete("source", &DeleteParams::default()).await?;
    let missing = |o: &Value| condition(o, "ReferenceFailed") == "True";
    let status = t.wait_for(KIND, name, "to miss the Secret", PATIENCE, missing).await?;
    ensure!(status.int("/status/succeeded") == 1, "{status:#}");
    ensure!(find(t, b, "Secret", "source").await?.is_some_and(|o| is("dw==")(Some(&o))), "the copy has gone");
    let report = t.plugin(&["doctor", "--return"]).await?.stdout;
    ensure!(report.contains("OpenKruise does not know spec.resourceRef"), "{report}");
    Ok(())
}
