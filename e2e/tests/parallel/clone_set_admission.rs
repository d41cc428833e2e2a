//! Admission of CloneSets on a real API server: what is stored of what a user applies, and what is refused.
//!
//! Nothing here runs a Pod: the replicas are 0.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, in_namespace, poll, workload};
use serde_json::{Value, json};

const CLONE_SET: &str = "CloneSet";
/// What a user applied to OpenKruise, and what it stored.
const APPLIED: &str = include_str!("../../../src/k8s/testdata/applied_clone_sets.json");
const STORED: &str = include_str!("../../../src/k8s/testdata/created_clone_sets.json");

/// A manifest as a user writes it.
fn manifest(name: &str) -> Value {
    // As a user writes it, without a pull policy. No Pod is made.
    let main = json!({ "name": "main", "image": e2e::images::PAUSE });
    workload(CLONE_SET, name, 0, vec![main]).with("/apiVersion", "apps.kruise.io/v1alpha1")
}

fn with_template(name: &str, pointer: &str, value: impl Into<Value>) -> Value {
    manifest(name).with(&format!("/spec/template{pointer}"), value)
}

/// Refuses with 422, and a message that holds every one of `words`.
async fn refused(t: &Test, object: Value, words: &[&str]) -> Result<()> {
    let (code, message) = t.refused(object).await?;
    ensure!(code == 422, "code {code}: {message}");
    for word in words {
        ensure!(message.contains(word), "{word:?} is not named in: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_stored_equals_what_open_kruise_stored() -> Result<()> {
    in_namespace("cs-defaults", async |t| {
        let applied: Vec<Value> = serde_json::from_str(APPLIED)?;
        let stored: Vec<Value> = serde_json::from_str(STORED)?;
        for mut object in applied {
            let name = object.text("/metadata/name").to_owned();
            let stored = stored.iter().find(|o| o.text("/metadata/name") == name).context("it was recorded")?;
            object["metadata"] = json!({ "name": name });
            let made = t.create(object.with("/spec/replicas", 0)).await?;
            assert_eq!(made["spec"], stored["spec"].clone().with("/replicas", 0), "{name}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn applying_the_original_again_changes_nothing() -> Result<()> {
    in_namespace("cs-again", async |t| {
        let original = manifest("web").with("/spec/template/spec/containers/0/resources/limits/cpu", "0.5");
        t.apply(&original).await?;
        let first = t.get(CLONE_SET, "web").await?;
        assert_eq!(first.text("/spec/template/spec/containers/0/resources/limits/cpu"), "500m");
        // kubectl sends its lists without our defaults and says "configured"; what is stored does not change.
        let answer = t.apply(&original).await?;
        ensure!(answer.ok, "{answer:?}");
        let again = t.get(CLONE_SET, "web").await?;
        assert_eq!((&again["spec"], again.int("/metadata/generation")), (&first["spec"], 1));
        // As a program that writes the whole object does; the manager's status may come in between.
        poll("the whole object to be written", PATIENCE, async || {
            let mut whole = original.clone();
            whole["metadata"] = t.get(CLONE_SET, "web").await?["metadata"].clone();
            let whole = serde_json::from_value(whole)?;
            let replaced = t.api(CLONE_SET).replace("web", &kube::api::PostParams::default(), &whole).await?;
            let replaced = serde_json::to_value(replaced)?;
            assert_eq!((&replaced["spec"], replaced.int("/metadata/generation")), (&first["spec"], 1));
            Ok(())
        })
        .await?;
        let patch = kube::api::Patch::Apply(&original);
        let mine = kube::api::PatchParams::apply("e2e").force();
        let applied = serde_json::to_value(t.api(CLONE_SET).patch("web", &mine, &patch).await?)?;
        assert_eq!(
            (&applied["spec"], applied.int("/metadata/generation")),
            (&first["spec"], 1),
            "applied by the server"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn fields_that_we_do_not_type_survive() -> Result<()> {
    in_namespace("cs-fields", async |t| {
        // Behind a feature gate in the API server, and newer than the types that we are built with.
        let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [7] } }]);
        let object = with_template("web", "/spec/containers/0/restartPolicyRules", rules.clone())
            .with("/spec/template/spec/containers/0/restartPolicy", "Never")
            .with(
                "/spec/template/spec/containers/0/fieldOfTheFuture",
                json!({ "deep": [{ "deeper": false }], "empty": "" }),
            )
            .with("/spec/template/spec/flagOfTheFuture", "")
            .with("/spec/template/fieldOfTheFuture", json!({}));
        let answer = t.apply(&object).await?;
        ensure!(answer.ok, "{answer:?}");
        for field in ["containers[0].fieldOfTheFuture", "flagOfTheFuture", "template.fieldOfTheFuture"] {
            ensure!(answer.stderr.contains(field), "nobody is warned of {field}: {}", answer.stderr);
        }
        let stored = t.get(CLONE_SET, "web").await?;
        let container = &stored["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["restartPolicyRules"], rules);
        assert_eq!(container["fieldOfTheFuture"], json!({ "deep": [{ "deeper": false }], "empty": "" }));
        assert_eq!(stored["spec"]["template"]["spec"]["flagOfTheFuture"], "");
        assert_eq!(stored["spec"]["template"]["fieldOfTheFuture"], json!({}));
        assert_eq!(container["terminationMessagePolicy"], "File", "the defaults are there too");
        let changed = t.patch(
            CLONE_SET,
            "web",
            json!({ "spec": { "template": { "metadata": { "annotations": { "a": "b" } } } } }),
        );
        let changed = changed.await?;
        assert_eq!(changed["spec"]["template"]["spec"], stored["spec"]["template"]["spec"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_not_allowed_is_refused_by_its_field() -> Result<()> {
    in_namespace("cs-admission-refused", async |t| {
        for (object, words) in [
            (manifest("a").with("/spec/replicas", -1), &["spec.replicas", "-1"][..]),
            (
                manifest("a").with("/spec/updateStrategy/type", "Rolling"),
                &["updateStrategy.type", "Rolling", "OnDelete"],
            ),
            (manifest("a").with("/spec/updateStrategy/maxUnavailable", "x"), &["maxUnavailable", "20%"]),
            (manifest("a").with("/spec/updateStrategy/partition", "-1%"), &["partition", "-1%"]),
            (manifest("a").with("/spec/scaleStrategy/podsToDelete", json!(["a-1"])), &["podsToDelete", "a-1"]),
            (
                manifest("a").with("/spec/selector/matchLabels", json!({ "app": "b" })),
                &["spec.template.metadata.labels", "app=a"],
            ),
            (manifest("a").with("/spec/progressDeadlineSeconds", 0), &["progressDeadlineSeconds", "minReadySeconds"]),
            (with_template("a", "/spec/restartPolicy", "OnFailure"), &["restartPolicy", "OnFailure", "Always"]),
            (with_template("a", "/spec/activeDeadlineSeconds", 5), &["activeDeadlineSeconds"]),
            (
                with_template("a", "/spec/containers/0/image", ""),
                &["spec.template.spec.containers[0].image", "Required"],
            ),
            (with_template("a", "/spec/containers/0/name", "A_b"), &["spec.template.spec.containers[0].name", "A_b"]),
            (
                with_template("a", "/spec/containers/0/volumeMounts", json!([{ "name": "none", "mountPath": "/x" }])),
                &["spec.template.spec.containers[0].volumeMounts[0].name", "none"],
            ),
            (
                manifest("a")
                    .with("/spec/volumeClaimTemplates", json!([{ "metadata": { "name": "data" }, "spec": {} }])),
                &["spec.volumeClaimTemplates[0].spec.accessModes"],
            ),
            (
                manifest("a")
                    .with("/spec/volumeClaimTemplates", json!([{ "metadata": { "name": "A_b" }, "spec": {} }])),
                &["spec.volumeClaimTemplates[0].metadata.name", "A_b"],
            ),
            (manifest(&"a".repeat(53)), &["metadata.name", "53", "CloneSetShortHash"]),
        ] {
            refused(t, object, words).await?;
        }
        let (code, message) = t.refused(with_template("a", "/spec/containers", "x")).await?;
        ensure!(code == 400 && message.contains("spec.template"), "{code}: {message}");
        let both = manifest("a").with("/spec/replicas", -1).with("/spec/template/spec/containers/0/image", "");
        refused(t, both, &["spec.replicas", "spec.template.spec.containers[0].image"]).await
    })
    .await
}

#[tokio::test]
async fn a_mount_of_a_claim_is_no_mount_of_nothing() -> Result<()> {
    in_namespace("cs-admission-claims", async |t| {
        let claim = json!({ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1024Mi" } } } });
        let object =
            with_template("a", "/spec/containers/0/volumeMounts", json!([{ "name": "data", "mountPath": "/x" }]))
                .with("/spec/volumeClaimTemplates", json!([claim]));
        let made = t.create(object).await?;
        let mut want = claim.with("/metadata/creationTimestamp", Value::Null).with("/status/phase", "Pending");
        want["spec"]["resources"]["requests"]["storage"] = "1Gi".into();
        assert_eq!(made["spec"]["volumeClaimTemplates"], json!([want]));
        ensure!(!made.has("/spec/template/spec/volumes"), "claims become volumes of Pods, not of the template");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kubectl_prints_each_field_on_a_line() -> Result<()> {
    in_namespace("cs-admission-kubectl", async |t| {
        let object = manifest("web").with("/spec/replicas", -1).with("/spec/updateStrategy/type", "x");
        let answer = t.apply(&object).await?;
        ensure!(!answer.ok, "it was accepted");
        let lines: Vec<&str> = answer.stderr.trim().lines().collect();
        ensure!(lines.first().is_some_and(|line| line.starts_with("The CloneSet \"web\" is invalid")), "{lines:#?}");
        for line in [
            "* spec.replicas: -1 is not allowed; want 0 or more",
            "* spec.updateStrategy.type: \"x\" is not allowed; want ReCreate, InPlaceIfPossible, InPlaceOnly or OnDelete",
        ] {
            ensure!(lines.contains(&line), "{line:?} is missing: {lines:#?}");
        }
        Ok(())
    })
    .await
}

/// The API server refuses them in a Pod template, and names no defaults of one.
#[tokio::test]
async fn values_that_open_kruise_admits_are_stored_with_a_warning() -> Result<()> {
    in_namespace("cs-tolerated", async |t| {
        let selector = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["-bad value"] }] });
        let term = json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": selector }]);
        let affinity = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term } });
        let annotations = json!({ "controller.kubernetes.io/pod-deletion-cost": "abc" });
        let limits = json!({ "cpu": "1", "hugepages-2Mi": "3Mi" });
        let object = with_template("web", "/metadata/annotations", annotations.clone())
            .with("/spec/template/spec/affinity", affinity.clone())
            .with("/spec/template/spec/containers/0/resources/limits", limits.clone());
        let answer = t.apply(&object).await?;
        ensure!(answer.ok, "{}", answer.stderr);
        for field in [
            "spec.template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: ",
            ".labelSelector.matchExpressions[0].values[0]: ",
            "spec.template.spec.containers[0].resources.limits[hugepages-2Mi]: ",
        ] {
            ensure!(answer.stderr.contains(field), "{field} is not warned of: {}", answer.stderr);
        }
        let template = t.get(CLONE_SET, "web").await?["spec"]["template"].clone();
        assert_eq!(template["metadata"]["annotations"], annotations);
        assert_eq!(template["spec"]["affinity"], affinity);
        assert_eq!(template["spec"]["containers"][0]["resources"]["limits"], limits);
        assert_eq!(template["spec"]["dnsPolicy"], "ClusterFirst", "it has its defaults");
        let mut containers = template["spec"]["containers"].clone();
        containers[0]["image"] = e2e::images::BUSYBOX.into();
        t.patch(CLONE_SET, "web", json!({ "spec": { "template": { "spec": { "containers": containers } } } })).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn updates_are_judged_by_what_they_change() -> Result<()> {
    in_namespace("cs-update", async |t| {
        t.create(manifest("web").with("/spec/updateStrategy/type", "InPlaceOnly")).await?;
        let change = async |patch: Value, words: &[&str]| {
            let error = t.patch(CLONE_SET, "web", patch).await.err().context("the change was accepted")?;
            let message = format!("{error:#}");
            for word in words {
                ensure!(message.contains(word), "{word:?} is not named in: {message}");
            }
            Ok(())
        };
        change(json!({ "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": "b" } } } } }),
            &["spec.selector is immutable"]).await?;
        change(json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } } }),
            &["spec.selector: it is immutable", "spec.template.metadata.labels", "not matched by spec.selector"]).await?;
        change(json!({ "spec": { "template": { "spec": { "hostNetwork": true } } } }), &["spec.template.spec.hostNetwork: was added", "InPlaceOnly"]).await?;
        change(json!({ "spec": { "scaleStrategy": { "podsToDelete": ["absent"] } } }), &["podsToDelete", "absent", "no Pod"]).await?;
        change(json!({ "spec": { "replicas": -1 } }), &["spec.replicas", "-1"]).await?;
        let image = json!([{ "name": "main", "image": e2e::images::BUSYBOX }]);
        let changed = t.patch(CLONE_SET, "web", json!({ "spec": { "template": { "spec": { "containers": image } } } })).await;
        // A merge patch replaces the list, so that the defaults are lost and come again.
        assert_eq!(changed?.text("/spec/template/spec/containers/0/imagePullPolicy"), "Always");
        t.kubectl(&["scale", "cloneset", "web", "--replicas=0"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_finalizer_can_be_removed_from_what_is_invalid_by_now() -> Result<()> {
    in_namespace("cs-admission-finalizer", async |t| {
        t.create(manifest("web").with("/metadata/finalizers", json!(["example.com/hold"]))).await?;
        t.remove(CLONE_SET, "web").await?;
        t.wait_for(CLONE_SET, "web", "to be deleted", PATIENCE, |o| o.has("/metadata/deletionTimestamp")).await?;
        t.patch(CLONE_SET, "web", json!({ "metadata": { "finalizers": null } })).await?;
        t.gone(CLONE_SET, "web").await
    })
    .await
}
