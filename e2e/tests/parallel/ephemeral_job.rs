//! EphemeralJobs on a real node: containers in Pods that run, their ends, and what is refused.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, in_namespace, pod, poll, shell};
use serde_json::{Value, json};

const JOB: &str = "EphemeralJob";

/// A job whose containers run a script in the Pods with label `app: NAME`.
fn job(name: &str, app: &str, script: &str, spec: Value) -> Value {
    // The image of the Pods' own containers: it is on the node.
    let image = shell("x", "").text("/image").to_owned();
    let container = json!({ "name": name, "image": image, "command": ["sh", "-c", script] });
    let mut object = json!({ "kind": JOB, "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "app": app } }, "parallelism": 5,
        "template": { "ephemeralContainers": [container] } } });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

async fn start(t: &Test, name: &str, app: &str) -> Result<Value> {
    t.start(pod(name, vec![shell("main", "")]).with("/metadata/labels", json!({ "app": app }))).await
}

async fn over(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(JOB, name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await
}

fn counts(job: &Value) -> [i64; 5] {
    ["match", "succeeded", "failed", "running", "waiting"].map(|field| job.int(&format!("/status/{field}")))
}

#[tokio::test]
async fn containers_run_in_pods_that_run_already_and_two_jobs_share_them() -> Result<()> {
    in_namespace("ephemeral", async |t| {
        for name in ["web-0", "web-1"] {
            start(t, name, "web").await?;
        }
        let uid = t.get("Pod", "web-0").await?.text("/metadata/uid").to_owned();
        let made = t.create(job("look", "web", "echo seen; exit 0", json!({}))).await?;
        let container = made.pointer("/spec/template/ephemeralContainers/0").cloned().unwrap_or_default();
        ensure!(container.text("/imagePullPolicy") == "IfNotPresent", "{container:#}");
        let done = over(t, "look").await?;
        ensure!(done.text("/status/phase") == "Succeeded" && counts(&done) == [2, 2, 0, 0, 0], "{done:#}");
        let logs = t.kubectl(&["logs", "web-0", "-c", "look"]).await?;
        ensure!(logs.trim() == "seen", "{logs}");
        // A mix of results: the second job ends as Failed, in the same Pods.
        t.create(job("mixed", "web", "[ $(hostname) = web-0 ]", json!({}))).await?;
        let done = over(t, "mixed").await?;
        ensure!(done.text("/status/phase") == "Failed" && counts(&done) == [2, 1, 1, 0, 0], "{done:#}");
        let pod = t.get("Pod", "web-0").await?;
        ensure!(pod.text("/metadata/uid") == uid, "the Pod is the same");
        ensure!(pod.array("/spec/ephemeralContainers").len() == 2, "{pod:#}");
        let get = t.kubectl(&["get", "ejob", "look"]).await?;
        let columns = get.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(columns == "NAME STATUS MATCH SUCCEED FAILED RUNNING WAITING AGE", "{get}");
        let has = |events: &[String], reason: &str| events.iter().any(|event| event.starts_with(reason));
        t.wait_events(JOB, "mixed", |events| has(events, "SuccessfulCreate") && has(events, "JobFailed")).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_deadline_holds_while_paused_and_a_job_goes_after_its_time_to_live() -> Result<()> {
    in_namespace("ephemeral-late", async |t| {
        start(t, "a", "late").await?;
        start(t, "b", "late").await?;
        let spec = json!({ "parallelism": 1, "activeDeadlineSeconds": 25, "ttlSecondsAfterFinished": 10 });
        t.create(job("late", "late", "sleep 600", spec)).await?;
        t.wait_for(JOB, "late", "to run", PATIENCE, |o| o.int("/status/running") == 1).await?;
        t.patch(JOB, "late", json!({ "spec": { "paused": true } })).await?;
        t.wait_for(JOB, "late", "to be paused", PATIENCE, |o| o.text("/status/phase") == "Paused").await?;
        let done = over(t, "late").await?;
        ensure!(done.text("/status/phase") == "Failed" && counts(&done) == [2, 0, 0, 1, 0], "{done:#}");
        let reason = done.array("/status/conditions").iter().find(|c| c.text("/type") == "JobFailed");
        ensure!(reason.is_some_and(|c| c.text("/reason") == "DeadlineExceeded"), "{done:#}");
        t.gone(JOB, "late").await?;
        let untouched = t.get("Pod", "b").await?;
        ensure!(untouched.array("/spec/ephemeralContainers").is_empty(), "{untouched:#}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_named_and_the_job_waits() -> Result<()> {
    in_namespace("ephemeral-image", async |t| {
        start(t, "a", "web").await?;
        let container = json!([{ "name": "look", "image": "registry.invalid/nothing:v1" }]);
        t.create(job("stuck", "web", "", json!({ "template": { "ephemeralContainers": container } }))).await?;
        let blocked = |o: &Value| {
            o.array("/status/conditions")
                .iter()
                .any(|c| c.text("/type") == "ContainersBlocked" && c.text("/status") == "True")
        };
        let seen = t.wait_for(JOB, "stuck", "to say what is wrong", PATIENCE, blocked).await?;
        ensure!(seen.text("/status/phase") == "Waiting" && seen.int("/status/waiting") == 1, "{seen:#}");
        // OpenKruise's finalizer is let go.
        let finalizers = json!(["apps.kruise.io/ephemeralcontainers-cleanup"]);
        t.patch(JOB, "stuck", json!({ "metadata": { "finalizers": finalizers } })).await?;
        t.remove(JOB, "stuck").await?;
        t.gone(JOB, "stuck").await
    })
    .await
}

#[tokio::test]
async fn jobs_are_refused_with_the_field_the_value_and_what_is_allowed() -> Result<()> {
    in_namespace("ephemeral-refused", async |t| {
        let image = json!({ "name": "a", "image": "b" });
        for (spec, says) in [
            (json!({ "selector": {} }), "spec.selector"),
            (json!({ "replicas": -1 }), "spec.replicas"),
            (json!({ "template": { "ephemeralContainers": [] } }), "spec.template.ephemeralContainers"),
            (json!({ "template": { "ephemeralContainers": [image, image] } }), "ephemeralContainers[1].name"),
            (
                json!({ "template": { "ephemeralContainers": [image.clone().with("/env", json!([{ "name": "" }]))] } }),
                "ephemeralContainers[0].env[0].name",
            ),
            (
                json!({ "template": { "ephemeralContainers": [image.clone().with("/ports", json!([{ "containerPort": 1 }]))] } }),
                "ephemeralContainers[0].ports",
            ),
        ] {
            let (code, message) = t.refused(job("bad", "web", "", spec.clone())).await?;
            ensure!(code == 422 && message.contains(says), "{spec}: {code} {message}");
        }
        // Nothing matches, and then the template stays.
        t.create(job("kept", "nothing", "true", json!({}))).await?;
        t.wait_for(JOB, "kept", "to have begun", PATIENCE, |o| o.has("/status/startTime")).await?;
        let patch = json!({ "spec": { "template": { "ephemeralContainers": [image] } } });
        let answer = t.patch(JOB, "kept", patch).await.map_err(|error| format!("{error:#}"));
        ensure!(answer.as_ref().is_err_and(|error| error.contains("cannot be changed once the job has begun")), "{answer:?}");
        t.patch(JOB, "kept", json!({ "spec": { "parallelism": 3 } })).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_author_needs_the_right_to_add_ephemeral_containers() -> Result<()> {
    in_namespace("ephemeral-rights", async |t| {
        let role = |name: &str, group: &str, resource: &str, verbs: &[&str]| {
            json!({ "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": name },
                "rules": [{ "apiGroups": [group], "resources": [resource], "verbs": verbs }] })
        };
        t.create(json!({ "kind": "ServiceAccount", "metadata": { "name": "author" } })).await?;
        let user = format!("--as=system:serviceaccount:{}:author", t.namespace);
        let bind = |name: &str| {
            json!({ "kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
                "subjects": [{ "kind": "ServiceAccount", "name": "author", "namespace": t.namespace }] })
        };
        t.create(role("jobs", "apps.kruise.io", "ephemeraljobs", &["create", "get", "patch"])).await?;
        t.create(bind("jobs")).await?;
        let file = std::env::temp_dir().join(format!("{}-job.json", t.namespace));
        let object = job("look", "nothing", "true", json!({})).with("/apiVersion", "apps.kruise.io/v1alpha1");
        std::fs::write(&file, object.to_string())?;
        let path = file.to_string_lossy().into_owned();
        let create = ["create", "-f", path.as_str(), user.as_str()];
        let account = format!("system:serviceaccount:{}:author", t.namespace);
        t.may(&account, "create", "ephemeraljobs").await?;
        let refused = t.kubectl(&create).await.map_err(|error| format!("{error:#}"));
        ensure!(
            refused
                .as_ref()
                .is_err_and(|error| error.contains("requires permission to patch pods/ephemeralcontainers")),
            "{refused:?}"
        );
        t.create(role("debug", "", "pods/ephemeralcontainers", &["patch"])).await?;
        t.create(bind("debug")).await?;
        t.may(&account, "patch", "pods/ephemeralcontainers").await?;
        // The policy asks another authorizer, which learns of it a moment later or earlier.
        poll("the author to be allowed", PATIENCE, async || t.kubectl(&create).await.map(drop)).await?;
        let _ = std::fs::remove_file(&file);
        Ok(())
    })
    .await
}
