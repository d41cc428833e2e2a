//! Programs that use the API as others do: one in Go with types from the definitions, one in Python, and kubectl, which all
//! read their objects from `clients/samples.yaml`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::slice;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cmd::{CommandExt, cmd, environment, kubectl, tail};
use crate::guide::only_here;
use crate::kit::{Build, Installed, Look, PATIENCE, Test, installed, poll};
use crate::paths::Paths;

/// The kind whose objects are carried out and finished while they are looked at.
pub const REQUEST: &str = "ContainerRecreateRequest";

/// An entry of `samples.yaml`, which says what the members are.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    pub object: Value,
    pub change: Change,
    pub gate: Option<String>,
}

/// What clients change: a path and another value.
#[derive(Debug, Clone, Deserialize)]
pub struct Change {
    pub path: String,
    pub value: Value,
}

impl Sample {
    /// The object with the change.
    pub fn changed(&self) -> Value {
        self.object.clone().with(&self.change.path, self.change.value.clone())
    }

    /// Whether the object has the field that is changed without the change, too.
    pub fn has_the_field(&self) -> bool {
        self.object.has(&self.change.path)
    }
}

fn folder(paths: &Paths) -> PathBuf {
    paths.repo.join("e2e/clients")
}

fn built(paths: &Paths) -> PathBuf {
    paths.cluster.join("clients")
}

/// Builds the program in Go and installs what the one in Python needs.
pub fn install(paths: &Paths) -> Result<()> {
    let (start, to) = (Instant::now(), built(paths));
    fs::create_dir_all(&to)?;
    // Go itself knows what has to be built again.
    let mut go = cmd("go", ["build", "-mod=readonly", "-trimpath", "-o"]);
    go.arg(&to).args([".", "./generate"]).current_dir(folder(paths).join("go")).env("CGO_ENABLED", "0");
    let answer = go.answer()?;
    ensure!(answer.ok, "cannot build e2e/clients/go:\n{}", tail(&answer.stderr, 30));
    python_packages(paths)?;
    let took = start.elapsed().as_secs();
    if took > 3 {
        println!("built the clients in Go and Python in {took} s");
    }
    Ok(())
}

fn python_packages(paths: &Paths) -> Result<()> {
    let environment = built(paths).join("python");
    let wanted = folder(paths).join("python/requirements.txt");
    let pinned = fs::read_to_string(&wanted).with_context(|| wanted.display().to_string())?;
    let stamp = environment.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == pinned) {
        return Ok(());
    }
    cmd("python3", ["-m", "venv", "--clear"]).arg(&environment).text().context("python3-venv")?;
    let mut install = cmd(environment.join("bin/pip"), ["install", "--quiet", "--disable-pip-version-check"]);
    install.args(["--require-hashes", "-r"]).arg(&wanted).text()?;
    fs::write(stamp, pinned)?;
    Ok(())
}

/// The program in Go, for a namespace; arguments may follow.
pub fn go(paths: &Paths, namespace: &str) -> Command {
    let mut command = cmd(built(paths).join("clients"), ["-namespace", namespace, "-samples"]);
    command.arg(folder(paths).join("samples.yaml"));
    environment(paths, &mut command);
    command
}

/// The program that writes the Go types; it fails when they are not as it would write them.
pub fn go_types(paths: &Paths) -> Command {
    let mut command = cmd(built(paths).join("generate"), ["-check", "-root"]);
    command.arg(&paths.repo);
    command
}

/// The program in Python, for a namespace; arguments may follow.
pub fn python(paths: &Paths, namespace: &str) -> Command {
    let mut command = Command::new(built(paths).join("python/bin/python"));
    // No bytecode beside the sources.
    command
        .arg("-B")
        .arg(folder(paths).join("python/clients.py"))
        .arg(folder(paths).join("samples.yaml"))
        .arg(namespace);
    environment(paths, &mut command);
    command
}

/// The objects for kubectl, with names.
///
/// # Errors
/// `samples.yaml` cannot be read.
pub fn samples(t: &Test) -> Result<Vec<Sample>> {
    let text = fs::read_to_string(folder(&t.paths).join("samples.yaml"))?;
    let mut samples: Vec<Sample> = serde_yaml::from_str(&text.replace("NAMESPACE", &t.namespace))?;
    for sample in &mut samples {
        // Some have no namespace: theirs is the name.
        sample.object["metadata"]["name"] = t.namespace.as_str().into();
    }
    Ok(samples)
}

/// kubectl with objects, in the namespace of the test.
async fn with_objects(t: &Test, arguments: &[&str], objects: &[Value]) -> Result<crate::cmd::Answer> {
    let file = t.paths.state.join(format!("{}.json", t.namespace));
    fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string())?;
    let mut command = kubectl(&t.paths, ["-n", &t.namespace]);
    command.args(arguments).arg("-f").arg(&file);
    t.run(command).await
}

/// `kubectl apply` with these arguments.
///
/// # Errors
/// An object is refused.
pub async fn apply(t: &Test, arguments: &[&str], objects: &[Value]) -> Result<()> {
    let answer = with_objects(t, &[&["apply"], arguments].concat(), objects).await?;
    ensure!(answer.ok, "apply {arguments:?}: {}", answer.stderr.trim());
    Ok(())
}

/// What `kubectl apply` says of objects that it all refuses.
///
/// # Errors
/// Everything is taken.
pub async fn refused(t: &Test, arguments: &[&str], objects: &[Value]) -> Result<String> {
    let answer = with_objects(t, &[&["apply"], arguments].concat(), objects).await?;
    ensure!(!answer.ok, "apply {arguments:?} is taken: {}", answer.stdout);
    Ok(answer.stderr)
}

/// Waits until `kubectl diff` of objects that were applied shows nothing. It reads an object and asks for a dry run one after
/// the other, so a status that is written in between is a difference, until it is settled.
///
/// # Errors
/// There is a difference that stays.
pub async fn no_difference(t: &Test, arguments: &[&str], objects: &[Value]) -> Result<()> {
    poll("kubectl diff to show nothing", PATIENCE, async || {
        let answer = with_objects(t, &[&["diff"], arguments].concat(), objects).await?;
        match answer.code {
            Some(0) => Ok(()),
            _ => bail!("{arguments:?}: {}{}", answer.stdout, answer.stderr.trim()),
        }
    })
    .await
}

/// `kubectl diff` of objects that `kubectl apply` has applied shows nothing, and nothing after server-side apply by whoever goes
/// over to it: the first one still changes what kubectl has noted in an annotation.
///
/// # Errors
/// There is a difference that stays.
pub async fn no_difference_in_either_way(t: &Test, objects: &[Value]) -> Result<()> {
    let on_the_server = ["--server-side", "--force-conflicts"];
    no_difference(t, &[], objects).await?;
    apply(t, &on_the_server, objects).await?;
    no_difference(t, &on_the_server, objects).await.context("by server-side apply")
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

/// Applies the samples with their changes on the server, and again, which changes nothing. Another manager that wants the
/// values before the change is refused with the name of the first.
///
/// # Errors
/// Something else happens.
pub async fn applied_on_the_server(t: &Test, samples: &[Sample]) -> Result<()> {
    let first = ["--server-side", "--field-manager=first"];
    let changed: Vec<Value> = samples.iter().map(Sample::changed).collect();
    apply(t, &first, &changed).await?;
    let mut before = Vec::new();
    for sample in samples {
        before.push(state(t, sample).await?);
    }
    apply(t, &first, &changed).await?;
    for (sample, before) in samples.iter().zip(before) {
        let after = state(t, sample).await?;
        ensure!(after == before, "{} applied again: {before} is {after}", sample.object["kind"]);
    }
    no_difference(t, &first, &changed).await?;

    for Sample { object, change, .. } in samples.iter().filter(|sample| sample.has_the_field()) {
        let said = refused(t, &["--server-side", "--field-manager=second"], slice::from_ref(object)).await?;
        let field = field(&change.path);
        // One conflict is told on one line, and of several each field has a line of its own.
        let names_both = said.contains("with \"first\"") && said.contains(&field);
        ensure!(names_both, "{}: no conflict with first at {field}: {said}", object["kind"]);
    }
    Ok(())
}

/// Deletes what is left outside of the namespace: names there are that of the namespace, or begin with it.
///
/// # Errors
/// The API server refuses.
pub async fn removed(t: &Test) -> Result<()> {
    let prefix = format!("{}-", t.namespace);
    for Installed { kind, .. } in installed().iter().filter(|known| !known.namespaced) {
        for object in t.list(kind, "").await? {
            let name = object.text("/metadata/name");
            if name == t.namespace || name.starts_with(&prefix) {
                t.remove(kind, name).await?;
            }
        }
    }
    Ok(())
}

/// Examples of the guide of our kinds, so that they can be applied beside each other in the namespace of the test: each with a
/// name of its own, and with nothing that reaches other tests.
pub fn appliable(t: &Test, examples: Vec<(String, Value)>) -> Vec<Value> {
    let is_ours = |object: &Value| {
        let group = object.text("/apiVersion").split('/').next().unwrap_or_default();
        group.ends_with("kruise.io") || group == "kruise.rs"
    };
    let objects = examples.into_iter().map(|(_, object)| object).filter(is_ours);
    objects.enumerate().map(|(number, object)| applied_here(t, number, object)).collect()
}

fn applied_here(t: &Test, number: usize, mut object: Value) -> Value {
    let kind = object.text("/kind").to_owned();
    let name = match object.text("/metadata/generateName") {
        "" => format!("{}-{number}", object.text("/metadata/name")),
        prefix => format!("{prefix}{number}"),
    };
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("namespace");
        metadata.remove("generateName");
    }
    let object = only_here(t, object).with("/metadata/name", name.as_str());
    match &*kind {
        "SidecarSet" => object.with("/metadata/name", format!("{}-{name}", t.namespace)),
        "ResourceDistribution" => {
            let here = json!({ "includedNamespaces": { "list": [{ "name": t.namespace }] } });
            object.with("/metadata/name", format!("{}-{name}", t.namespace)).with("/spec/targets", here)
        }
        // A workload has one.
        "WorkloadSpread" | "PersistentPodState" => object.with("/spec/targetRef/name", name),
        // On no node: the registries of the guide do not exist.
        "ImagePullJob" | "ImageListPullJob" => object.with("/spec/selector", json!({ "names": ["no-such-node"] })),
        // Its time might come.
        "AdvancedCronJob" => object.with("/spec/paused", true),
        _ => object,
    }
}
