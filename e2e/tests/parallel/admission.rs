//! Bad input: refused at admission with a message that names the field and the value, or survived.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll};
use e2e::paths::SYSTEM;
use e2e::product;
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

/// Refuses with a client error, whose message holds every one of `words`.
async fn refused(t: &Test, object: Value, words: &[&str]) -> Result<()> {
    let (code, message) = t.refused(object).await?;
    ensure!(code == 400 || code == 403 || code == 422, "code {code}: {message}");
    for word in words {
        ensure!(message.contains(word), "{word:?} is not named in: {message}");
    }
    Ok(())
}

/// A namespace with the running Pod `web` of the containers `main` and `other`.
async fn with_web(name: &str, body: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    in_namespace(name, async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        body(t).await
    })
    .await
}

#[tokio::test]
async fn an_unknown_pod_is_refused() -> Result<()> {
    in_namespace("bad-pod", async |t| refused(t, crr("r", "absent", &["main"]), &["podName", "absent"]).await).await
}

#[tokio::test]
async fn an_empty_pod_name_is_refused() -> Result<()> {
    in_namespace("bad-name", async |t| refused(t, crr("r", "", &["main"]), &["podName"]).await).await
}

#[tokio::test]
async fn empty_containers_are_refused() -> Result<()> {
    with_web("bad-empty", async |t| refused(t, crr("r", "web", &[]), &["containers"]).await).await
}

#[tokio::test]
async fn a_name_listed_twice_is_refused() -> Result<()> {
    with_web("bad-twice", async |t| refused(t, crr("r", "web", &["main", "main"]), &["containers"]).await).await
}

#[tokio::test]
async fn an_unknown_container_is_refused() -> Result<()> {
    with_web("bad-container", async |t| {
        refused(t, crr("r", "web", &["main", "absent"]), &["containers", "absent"]).await
    })
    .await
}

#[tokio::test]
async fn an_init_container_is_refused_with_the_reason() -> Result<()> {
    in_namespace("bad-init", async |t| {
        let setup = e2e::kit::shell("setup", "exit 0");
        t.start(pod("web", vec![app("main")]).with("/spec/initContainers", json!([setup]))).await?;
        refused(t, crr("r", "web", &["setup"]), &["setup", "is an init container"]).await
    })
    .await
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() -> Result<()> {
    with_web("bad-numbers", async |t| {
        for (field, value) in [
            ("strategy/terminationGracePeriodSeconds", -1),
            ("strategy/unreadyGracePeriodSeconds", -1),
            ("strategy/minStartedSeconds", -1),
            ("activeDeadlineSeconds", 2),
            ("ttlSecondsAfterFinished", -1),
        ] {
            let name = field.rsplit('/').next().unwrap_or(field);
            let request = crr("r", "web", &["main"]).with(&format!("/spec/{field}"), value);
            refused(t, request, &[name, &value.to_string()]).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_unknown_failure_policy_is_refused() -> Result<()> {
    with_web("bad-policy", async |t| {
        let request = crr("r", "web", &["main"]).with("/spec/strategy/failurePolicy", "Retry");
        refused(t, request, &["failurePolicy", "Retry"]).await
    })
    .await
}

#[tokio::test]
async fn read_only_fields_set_by_the_user_are_refused() -> Result<()> {
    with_web("bad-read-only", async |t| {
        for (field, value) in [
            ("preStop", json!({ "exec": { "command": ["true"] } })),
            ("ports", json!([{ "containerPort": 80 }])),
            ("statusContext", json!({ "containerID": "containerd://x", "restartCount": 0 })),
        ] {
            let request = crr("r", "web", &["main"]).with(&format!("/spec/containers/0/{field}"), value);
            refused(t, request, &[field]).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_spec_cannot_be_changed() -> Result<()> {
    with_web("bad-change", async |t| {
        t.restart("once", "web", &["main"]).await?;
        let change = t.patch(CRR, "once", json!({ "spec": { "activeDeadlineSeconds": 100 } })).await;
        let message = format!("{:#}", change.err().ok_or_else(|| anyhow::anyhow!("the change was accepted"))?);
        ensure!(message.contains("immutable"), "{message}");
        t.succeeded("once").await?;
        // labels of the user's own are free
        t.patch(CRR, "once", json!({ "metadata": { "labels": { "mine": "1" } } })).await?;
        Ok(())
    })
    .await
}

/// Types of OpenKruise leave out of an update what they do not have.
#[tokio::test]
async fn what_openkruise_does_not_have_may_be_left_out_once_the_request_has_ended() -> Result<()> {
    with_web("bad-left-out", async |t| {
        let left_out = json!({ "spec": { "strategy": { "recreateMethod": null } } });
        let request = |name: &str| crr(name, "web", &["main"]).with("/spec/strategy/recreateMethod", "Runtime");
        t.create(request("ended")).await?;
        t.succeeded("ended").await?;
        t.patch(CRR, "ended", left_out.clone()).await?;
        t.create(request("open").with("/spec/strategy/unreadyGracePeriodSeconds", 20)).await?;
        let change = t.patch(CRR, "open", left_out).await;
        let message = format!("{:#}", change.err().ok_or_else(|| anyhow::anyhow!("the change was accepted"))?);
        ensure!(message.contains("may be left out only once the request has ended"), "{message}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn labels_and_annotations_that_are_relied_upon_are_protected() -> Result<()> {
    with_web("bad-labels", async |t| {
        // of a person with every right in the namespace, but not one of ours
        t.kubectl(&["create", "rolebinding", "person", "--clusterrole=cluster-admin", "--user=person"]).await?;
        t.may("person", "patch", "containerrecreaterequests.apps.kruise.io").await?;
        let request = crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 20);
        t.create(request).await?;
        for label in ["active-", "pod-uid=x", "node-name=x"] {
            let label = format!("crr.apps.kruise.io/{label}");
            let change = t.kubectl(&["label", "crr", "once", &label, "--overwrite", "--as=person"]).await;
            let said = change.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(said.contains("is written by Kruise and cannot be changed"), "{label}: {said:?}");
        }
        t.succeeded("once").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_without_a_node_is_refused() -> Result<()> {
    in_namespace("bad-pending", async |t| {
        t.create(pod("web", vec![app("main")]).with("/spec/nodeSelector", json!({ "no": "node" }))).await?;
        refused(t, crr("r", "web", &["main"]), &["web"]).await
    })
    .await
}

#[tokio::test]
async fn a_finished_pod_is_refused() -> Result<()> {
    in_namespace("bad-finished", async |t| {
        let done = app("main").with("/image", e2e::images::BUSYBOX).with("/command", json!(["true"]));
        t.create(pod("web", vec![done]).with("/spec/restartPolicy", "Never")).await?;
        t.wait_for("Pod", "web", "to finish", PATIENCE, |p| p.text("/status/phase") == "Succeeded").await?;
        refused(t, crr("r", "web", &["main"]), &["web", "Succeeded"]).await
    })
    .await
}

#[tokio::test]
async fn a_container_that_would_not_come_back_is_refused() -> Result<()> {
    in_namespace("bad-never", async |t| {
        t.start(pod("web", vec![app("main")]).with("/spec/restartPolicy", "Never")).await?;
        refused(t, crr("r", "web", &["main"]), &["restartPolicy", "Never"]).await
    })
    .await
}

#[tokio::test]
async fn a_name_of_253_characters_works() -> Result<()> {
    with_web("long-name", async |t| {
        let name = "a".repeat(253);
        t.restart(&name, "web", &["main"]).await?;
        t.succeeded(&name).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_name_longer_than_a_label_works() -> Result<()> {
    in_namespace("long-pod", async |t| {
        let name = format!("web-{}", "b".repeat(150));
        // the host name of a Pod and a label have at most 63 characters
        t.start(pod(&name, vec![app("main")]).with("/metadata/labels", json!({}))).await?;
        t.restart("once", &name, &["main"]).await?;
        t.succeeded("once").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_thousand_containers_are_refused() -> Result<()> {
    with_web("bad-thousand", async |t| {
        let names: Vec<String> = (0..1000).map(|i| format!("c{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        refused(t, crr("r", "web", &names), &["containers"]).await
    })
    .await
}

#[tokio::test]
async fn every_role_refuses_an_unknown_feature_gate_by_its_name() -> Result<()> {
    in_namespace("bad-gate", async |t| {
        for role in ["manager", "webhook", "daemon"] {
            let container = json!({
                "name": "main",
                "image": product::reference(),
                "args": [role, "--feature-gates=NoSuchGate=true"],
                "env": [{ "name": "NODE_NAME", "value": e2e::paths::NODE }],
            });
            t.create(pod(role, vec![container]).with("/spec/restartPolicy", "Never")).await?;
            let ended = |p: &Value| p.text("/status/phase") == "Failed";
            let ended = t.wait_for("Pod", role, "to fail", PATIENCE, ended).await?;
            ensure!(ended.int("/status/containerStatuses/0/state/terminated/exitCode") != 0, "the code says so too");
            let log = t.kubectl(&["logs", role]).await?;
            ensure!(log.contains("NoSuchGate"), "{role} does not name the gate: {log}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_refused_object_says_so_in_one_line_to_kubectl() -> Result<()> {
    in_namespace("bad-kubectl", async |t| {
        let answer = t.apply(&crr("r", "absent", &["main"])).await?;
        ensure!(!answer.ok, "it was accepted");
        let line = answer.stderr.trim();
        ensure!(line.lines().count() == 1, "{line}");
        ensure!(line.contains("spec.podName") && line.contains("absent"), "{line}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn only_pods_that_need_it_get_the_readiness_gate() -> Result<()> {
    in_namespace("gate", async |t| {
        let plain = t.start(pod("plain", vec![app("main")])).await?;
        assert_eq!(plain.array("/spec/readinessGates").len(), 0);
        let owner = json!([{
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "LaterKind", "name": "x",
            "uid": "00000000-0000-0000-0000-000000000001", "controller": true,
        }]);
        // never started: the garbage collector takes a Pod whose owner is not there
        let owned = t.create(pod("owned", vec![app("main")]).with("/metadata/ownerReferences", owner)).await?;
        assert_eq!(owned.text("/spec/readinessGates/0/conditionType"), "KruisePodReady");
        for mine in t.list_in(SYSTEM, "Pod", "").await? {
            assert_eq!(mine.array("/spec/readinessGates").len(), 0, "our own Pods do not depend on us");
        }
        poll("our own Pods to be Ready", PATIENCE, async || {
            for mine in t.list_in(SYSTEM, "Pod", "").await? {
                ensure!(condition(&mine, "Ready") == "True", "{} is not", mine.text("/metadata/name"));
            }
            Ok(())
        })
        .await
    })
    .await
}
