//! A cluster whose workloads, jobs and copies were made by OpenKruise 1.9: objects recorded from it are loaded, then the manager
//! starts.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::bench::writes;
use e2e::cmd::{cmd, kubectl};
use e2e::kit::{Build, Look, PATIENCE, Test, in_namespace, poll, restoring};
use e2e::player::Nodes;
use e2e::scale::reconciles;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::gone::scaled;
use crate::{LONG, MANAGER};

const RECORDED: &str = "e2e/testdata/openkruise-1.9";
/// The namespace of the recorded objects.
const GOLDEN: &str = "golden";
/// The node of the recorded Pods has this name here: it is there, and nobody plays its Pods.
const NODE: &str = "taken-over-";
/// What a takeover must not touch.
const UNTOUCHED: [&str; 3] = ["ControllerRevision", "PersistentVolumeClaim", "Pod"];
/// The workloads, as the toolkit calls them.
const SETS: [&str; 3] = ["CloneSet", "AdvancedStatefulSet", "AdvancedDaemonSet"];
const DAEMON_SET: &str = "AdvancedDaemonSet";
const DAEMON_SETS: &str = "daemonsets.apps.kruise.io";
/// Recorded objects beside the workloads and jobs. The status of each says which generation was looked at.
const OTHERS: [(&str, &str); 3] =
    [("ResourceDistribution", "golden-rd"), ("UnitedDeployment", "united"), ("WorkloadSpread", "spread")];

#[tokio::test]
async fn workloads_of_openkruise_are_taken_over_without_touching_a_pod_or_a_revision() -> Result<()> {
    in_namespace("takeover", async |t| {
        let nodes = Nodes::make(t, NODE, 0..1, true).await?;
        let stages = RefCell::new(Vec::<Test>::new());
        let undo = async {
            let mut undone = stored_versions(t, DAEMON_SETS, json!(["v1beta1"])).await;
            let made = stages.borrow().clone();
            // all of them, whatever becomes of one
            for stage in &made {
                undone = undone.and(remove(stage).await);
            }
            undone.and(nodes.remove().await)
        };
        restoring(workloads_are_taken_over(t, &stages), undo).await
    })
    .await
}

/// `made` gets the namespaces that are made.
async fn workloads_are_taken_over(t: &Test, made: &RefCell<Vec<Test>>) -> Result<()> {
    let loaded = async {
        t.node().scale(MANAGER, 0).await?;
        for name in ["created", "updated", "preparing-delete", "daemon-set"] {
            let stage = Test::new(&format!("takeover-{name}")).await?;
            made.borrow_mut().push(stage.clone());
            load(&stage, name, &SETS).await.with_context(|| name.to_owned())?;
        }
        // as after an OpenKruise that had stored the older version
        stored_versions(t, DAEMON_SETS, json!(["v1alpha1", "v1beta1"])).await?;
        let stages = made.borrow().clone();
        all_versions(&stages).await
    };
    let before = restoring(loaded, scaled(t, MANAGER)).await?;
    let mut stages = made.borrow().clone();
    for stage in &stages {
        seen(stage).await?;
    }
    quiet(t).await?;
    let daemon_set = stages.pop().context("the stage of the DaemonSet")?;
    let prefix = format!("{}/", daemon_set.namespace);
    let (of_daemon_set, before) = before.into_iter().partition(|(name, _)| name.starts_with(&prefix));
    daemon_set_unchanged(&daemon_set, &of_daemon_set).await?;
    stored_versions(t, DAEMON_SETS, json!(["v1beta1"])).await?;
    unchanged(&stages, &before).await?;

    // the user's own manifest, without the defaults that the stored objects have
    let [created, ..] = stages.as_slice() else { unreachable!("three were loaded") };
    let specs = specs(created).await?;
    let manifest = std::fs::read_to_string(t.paths.repo.join(RECORDED).join("applied.yaml"))?;
    let file = std::env::temp_dir().join(format!("{}.yaml", created.namespace));
    std::fs::write(&file, manifest.replace("namespace: golden", &format!("namespace: {}", created.namespace)))?;
    for how in [&["apply"][..], &["replace"], &["apply", "--server-side", "--force-conflicts"]] {
        let mut command = kubectl(&t.paths, how);
        command.arg("-f").arg(&file);
        let answer = t.run(command).await?;
        ensure!(answer.ok, "kubectl {}: {}{}", how.join(" "), answer.stdout, answer.stderr);
        assert_eq!(self::specs(created).await?, specs, "kubectl {}: the stored specs", how.join(" "));
        seen(created).await?;
    }
    let _ = std::fs::remove_file(&file);
    quiet(t).await?;
    unchanged(&stages, &before).await
}

/// The gate for ResourceDistributions is on, and nothing else uses the manager meanwhile.
pub(crate) async fn jobs_subsets_and_copies_of_openkruise_are_taken_over_without_touching_any() -> Result<()> {
    in_namespace("takeover-jobs", async |t| {
        let nodes = Nodes::make(t, NODE, 0..1, true).await?;
        let undo = async {
            // it is in no namespace
            t.remove("ResourceDistribution", "golden-rd").await?;
            remove(t).await?;
            nodes.remove().await
        };
        restoring(others_are_taken_over(t), undo).await
    })
    .await
}

async fn others_are_taken_over(t: &Test) -> Result<()> {
    let loaded = async {
        t.node().scale(MANAGER, 0).await?;
        load(t, "jobs", &OTHERS.map(|(kind, _)| kind)).await?;
        Ok((contents(t).await?, written(t)?))
    };
    let (before, written_before) = restoring(loaded, scaled(t, MANAGER)).await?;
    for (kind, name) in OTHERS {
        let seen = |o: &Value| o.int("/status/observedGeneration") == o.int("/metadata/generation");
        t.wait_for(kind, name, "to be observed", LONG, seen).await?;
    }
    let paused = |o: &Value| o.array("/status/conditions").iter().any(|c| c.text("/reason") == "Paused");
    let cron = t.wait_for("AdvancedCronJob", "cron", "to be observed", LONG, paused).await?;
    assert_eq!(cron.text("/status/lastScheduleTime"), "2026-11-21T09:52:00Z");
    quiet(t).await?;

    assert_eq!(contents(t).await?, before);
    for (what, count) in written(t)? {
        let count = count.saturating_sub(written_before.get(&what).copied().unwrap_or_default());
        let most = match what.split(' ').nth(1).unwrap_or_default() {
            // dry runs, which store nothing
            "podtemplates/" => continue,
            // one for each object
            "broadcastjobs/status" => 4,
            "clonesets/status" => 3,
            "advancedcronjobs/status" | "resourcedistributions/status" => 1,
            "uniteddeployments/status" | "workloadspreads/status" => 1,
            _ => 0,
        };
        ensure!(count <= most, "{what}: {count} times, and not {most}");
    }
    Ok(())
}

/// What there is, each with its version, or where it has a status, with its generation.
async fn contents(t: &Test) -> Result<BTreeMap<String, String>> {
    let (version, generation) = ("/metadata/resourceVersion", "/metadata/generation");
    let mut found = BTreeMap::new();
    for (kind, part) in [
        ("Pod", version),
        ("ConfigMap", version),
        ("ControllerRevision", version),
        ("Job", generation),
        ("BroadcastJob", generation),
        ("ImageListPullJob", generation),
        ("AdvancedCronJob", generation),
        ("CloneSet", generation),
        ("AdvancedStatefulSet", generation),
        ("Deployment", generation),
        ("UnitedDeployment", generation),
        ("WorkloadSpread", generation),
    ] {
        for object in t.list(kind, "").await? {
            let at = object.pointer(part).unwrap_or(&Value::Null);
            let what = format!("{} at {at}", object.text("/metadata/uid"));
            found.insert(format!("{kind} {}", object.text("/metadata/name")), what);
        }
    }
    // Kubernetes makes it in each namespace, at some time.
    found.remove("ConfigMap kube-root-ca.crt");
    Ok(found)
}

/// What the product has written, in the namespace and to ResourceDistributions.
fn written(t: &Test) -> Result<BTreeMap<String, usize>> {
    let mut found = writes(&t.paths, &t.namespace)?;
    let without_namespace = writes(&t.paths, "")?;
    found.extend(without_namespace.into_iter().filter(|(what, _)| what.contains(" resourcedistributions/")));
    Ok(found)
}

/// Creates what was recorded. Only what the API server gives out itself differs: UIDs, versions, generations and times;
/// the node has another name. Of the kinds in `looked_at` the manager has to say that it has looked.
async fn load(t: &Test, stage: &str, looked_at: &[&str]) -> Result<()> {
    let text = std::fs::read_to_string(t.paths.repo.join(RECORDED).join(stage).with_extension("jsonl"))?;
    let mut uids: BTreeMap<String, String> = BTreeMap::new();
    for line in text.lines() {
        let line = line.replace(&format!("\"{GOLDEN}\""), &format!("\"{}\"", t.namespace));
        let line = line.replace(&format!("\\\"{GOLDEN}\\\""), &format!("\\\"{}\\\"", t.namespace));
        let mut object: Value = serde_json::from_str(&line)?;
        let (kind, name) = (object.text("/kind").to_owned(), object.text("/metadata/name").to_owned());
        let uid = object.text("/metadata/uid").to_owned();
        let status = object["status"].take();
        let metadata = object["metadata"].as_object_mut().context("metadata")?;
        for given in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
            metadata.remove(given);
        }
        own(metadata, &uids);
        if kind == "Pod" && object.text("/metadata/ownerReferences/0/kind") == "DaemonSet" {
            // made by a release that did not know v1beta1
            object = object.with("/metadata/ownerReferences/0/apiVersion", "apps.kruise.io/v1alpha1");
        }
        object.as_object_mut().context("an object")?.remove("status");
        if kind == "AdvancedCronJob" {
            // the times of its schedule since then are due
            object = object.with("/spec/paused", true);
        }
        let time_to_live = "/spec/completionPolicy/ttlSecondsAfterFinished";
        if object.has(time_to_live) {
            // it is over since
            object = object.with(time_to_live, i32::MAX);
        }
        if object.has("/spec/nodeName") {
            object = object.with("/spec/nodeName", format!("{NODE}0000"));
        }
        let made = t.create(object.clone()).await.with_context(|| format!("{kind} {name}"))?;
        for part in ["spec", "data"] {
            assert_eq!(made[part], object[part], "{kind} {name}: admission has changed its {part}");
        }
        uids.insert(uid, made.text("/metadata/uid").to_owned());
        if let Some(status) = status.as_object() {
            let mut status = status.clone();
            let set = SETS.into_iter().find(|set| set.trim_start_matches("Advanced") == kind);
            if looked_at.contains(&set.unwrap_or(&kind)) {
                status.remove("observedGeneration");
            }
            let patch = Patch::Merge(json!({ "status": status }));
            t.api(set.unwrap_or(&kind))
                .patch_status(&name, &PatchParams::default(), &patch)
                .await
                .context(format!("{kind} {name}"))?;
        }
    }
    Ok(())
}

/// Owners have new UIDs. One that is not here (a UnitedDeployment) is left out: the garbage collector would look for it.
fn own(metadata: &mut Map<String, Value>, uids: &BTreeMap<String, String>) {
    let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") else { return };
    owners.retain(|owner| uids.contains_key(owner.text("/uid")));
    for owner in owners {
        let uid = uids[owner.text("/uid")].clone();
        owner["uid"] = uid.into();
    }
}

/// Waits until every workload was reconciled as it is now.
async fn seen(t: &Test) -> Result<()> {
    for kind in SETS {
        for set in t.list(kind, "").await? {
            let seen = |o: &Value| o.int("/status/observedGeneration") == o.int("/metadata/generation");
            t.wait_for(kind, set.text("/metadata/name"), "to be observed", LONG, seen).await?;
        }
    }
    Ok(())
}

async fn stored_versions(t: &Test, definition: &str, stored: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": { "storedVersions": stored } }));
    t.api("CustomResourceDefinition").patch_status(definition, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The recorded Pod and the revisions are as they were. The nodes of this cluster, which the DaemonSet did not know, get Pods of
/// the recorded revision; its own node has a taint by now, where the Pod stays.
async fn daemon_set_unchanged(t: &Test, before: &BTreeMap<String, String>) -> Result<()> {
    let set =
        t.wait_for(DAEMON_SET, "ads", "to see its Pod", LONG, |o| o.int("/status/numberMisscheduled") == 1).await?;
    let hash = "b6855ddc6";
    for field in ["updateRevision", "daemonSetHash"] {
        assert_eq!(set.text(&format!("/status/{field}")), hash);
    }
    let now = versions(t).await?;
    for (name, version) in before {
        ensure!(now.get(name) == Some(version), "{name} has version {:?}, had {version}", now.get(name));
    }
    for name in now.keys().filter(|name| !before.contains_key(*name)) {
        ensure!(name.contains("/Pod/"), "{name} was made");
    }
    for pod in t.list("Pod", "app=ads").await? {
        assert_eq!(pod.text("/metadata/labels/controller-revision-hash"), hash, "{}", pod["metadata"]);
    }
    Ok(())
}

/// Waits until the manager reconciles no CloneSet any more.
async fn quiet(t: &Test) -> Result<()> {
    let last = Cell::new((0, Instant::now()));
    poll("the manager to be done with the CloneSets", LONG, async || {
        let count = reconciles(t).await?;
        if count != last.get().0 {
            last.set((count, Instant::now()));
        }
        let quiet = last.get().1.elapsed();
        ensure!(quiet > Duration::from_secs(3), "it reconciled until {quiet:?} ago");
        Ok(())
    })
    .await
}

/// Versions of what must not be touched. A Pod without a node is the scheduler's: it says again and again why.
async fn versions(t: &Test) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for kind in UNTOUCHED {
        for object in t.list(kind, "").await? {
            let name = format!("{}/{kind}/{}", t.namespace, object.text("/metadata/name"));
            let is_pending = kind == "Pod" && object.text("/spec/nodeName").is_empty();
            let version = if is_pending { "" } else { object.text("/metadata/resourceVersion") };
            found.insert(name, version.to_owned());
        }
    }
    Ok(found)
}

async fn all_versions(stages: &[Test]) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for stage in stages {
        found.append(&mut versions(stage).await?);
    }
    Ok(found)
}

/// Neither are there other objects or other versions, nor did the manager send a write that changed nothing.
async fn unchanged(stages: &[Test], before: &BTreeMap<String, String>) -> Result<()> {
    for stage in stages {
        let written = writes(&stage.paths, &stage.namespace)?;
        let of: BTreeSet<&String> = written
            .keys()
            .filter(|what| ["pods", "controllerrevisions", "persistentvolumeclaims"].iter().any(|r| what.contains(r)))
            .collect();
        ensure!(of.is_empty(), "{}: the product wrote {of:?}", stage.namespace);
    }
    let now = all_versions(stages).await?;
    for (name, version) in &now {
        ensure!(before.get(name) == Some(version), "{name} has version {version}, had {:?}", before.get(name));
    }
    ensure!(now.len() == before.len(), "{} objects, there were {}", now.len(), before.len());
    Ok(())
}

/// The specs of all CloneSets by name, and the templates of all StatefulSets: those have a field of a gate that is off here.
async fn specs(t: &Test) -> Result<BTreeMap<String, Value>> {
    let name = |o: &Value| o.text("/metadata/name").to_owned();
    let clone_sets = t.list("CloneSet", "").await?;
    let stateful_sets = t.list("AdvancedStatefulSet", "").await?;
    let clone_sets = clone_sets.iter().map(|o| (name(o), o["spec"].clone()));
    Ok(clone_sets.chain(stateful_sets.iter().map(|o| (name(o), o["spec"]["template"].clone()))).collect())
}

/// Nobody ends the Pods of a node that nobody plays.
async fn remove(t: &Test) -> Result<()> {
    t.remove("Namespace", &t.namespace).await?;
    poll("the namespace to be gone", PATIENCE, async || {
        for pod in t.list("Pod", "").await? {
            let now = DeleteParams::default().grace_period(0);
            // it may be gone by now
            let _ = t.api("Pod").delete(pod.text("/metadata/name"), &now).await;
        }
        ensure!(t.find("Namespace", &t.namespace).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stored_version_that_we_do_not_have_is_refused_with_the_steps_to_take() -> Result<()> {
    const DEFINITION: &str = "clonesets.apps.kruise.io";
    in_namespace("stored-versions", async |t| {
        let before = t.get("CustomResourceDefinition", DEFINITION).await?;
        // as a later OpenKruise leaves it: another version is stored
        let mut versions = before.array("/spec/versions").to_vec();
        let mut newer = versions.first().context("a version")?.clone();
        (newer["name"], newer["storage"]) = ("v1beta1".into(), false.into());
        versions.push(newer);
        t.patch("CustomResourceDefinition", DEFINITION, json!({ "spec": { "versions": versions } })).await?;
        let store = async |stored: Value| stored_versions(t, DEFINITION, stored).await;
        let refused = async {
            store(json!(["v1alpha1", "v1beta1"])).await?;
            // of its own, beside those that run
            let mut manager = cmd("timeout", ["30"]);
            manager.arg(t.paths.product_executable()).arg("manager").arg("--kubeconfig").arg(t.paths.kubeconfig());
            manager.args(["--metrics-addr=0", "--health-probe-addr=0", "--leader-election-id=stored-versions"]);
            t.run(manager).await
        }
        .await;
        store(before["status"]["storedVersions"].clone()).await?;
        let restored = json!({ "spec": { "versions": before["spec"]["versions"] } });
        t.patch("CustomResourceDefinition", DEFINITION, restored).await?;
        let answer = refused?;
        assert_eq!(answer.code, Some(1), "{}", answer.stderr);
        for part in [
            "CustomResourceDefinition clonesets.apps.kruise.io: status.storedVersions holds v1beta1",
            "kubectl get clonesets.apps.kruise.io -A -o json | kubectl replace -f -",
        ] {
            ensure!(answer.stderr.contains(part), "{part:?} is not in {}", answer.stderr);
        }
        Ok(())
    })
    .await
}
