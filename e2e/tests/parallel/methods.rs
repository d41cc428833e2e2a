//! Method PodSpec: kubelet restarts the container because its image is spelled differently. Native sidecars, and what is
//! said about kubelet's back-off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, Container, Look, PATIENCE, Recording, crr, in_namespace, pod, poll, restoring, shell, written};
use kube::api::DeleteParams;
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

/// A container whose image was pulled from a registry that is not Docker's, so that it has a digest.
fn pulled(name: &str) -> Value {
    json!({ "name": name, "image": remote("pause") })
}

fn by(method: &str, name: &str, pod: &str, containers: &[&str]) -> Value {
    crr(name, pod, containers).with("/spec/strategy/recreateMethod", method)
}

fn by_pod_spec(name: &str, pod: &str, containers: &[&str]) -> Value {
    by("PodSpec", name, pod, containers)
}

fn image<'a>(pod: &'a Value, container: &str) -> &'a str {
    let containers = pod.array("/spec/containers").iter().chain(pod.array("/spec/initContainers"));
    containers.into_iter().find(|c| c.text("/name") == container).map_or("", |c| c.text("/image"))
}

fn image_id<'a>(pod: &'a Value, container: &str) -> &'a str {
    let statuses = pod.array("/status/containerStatuses").iter().chain(pod.array("/status/initContainerStatuses"));
    statuses.into_iter().find(|c| c.text("/name") == container).map_or("", |c| c.text("/imageID"))
}

/// Whether kubelet held a container of the Pod back at any time that was recorded.
fn was_held_back(pod: &Recording) -> bool {
    pod.states().iter().any(|(_, pod)| pod.to_string().contains("CrashLoopBackOff"))
}

#[tokio::test]
async fn pod_spec_restarts_one_container_of_the_same_image_and_nothing_else() -> Result<()> {
    in_namespace("respell", async |t| {
        let before = t.start(pod("web", vec![pulled("main"), pulled("other")])).await?;
        let old = Container::all(&before);
        let answer = t.apply(&by_pod_spec("once", "web", &["main"])).await?;
        ensure!(answer.ok && answer.stderr.contains("has no controller"), "{}", answer.stderr);
        let done = t.succeeded("once").await?;
        assert_eq!(done.text("/metadata/labels/crr.kruise.rs~1method"), "PodSpec");
        ensure!(!done.has("/metadata/labels/crr.apps.kruise.io~1active"), "a daemon would serve it as well");
        let after = t.ready("web").await?;
        let new = Container::all(&after);
        assert_eq!(new["main"].restarts, old["main"].restarts + 1);
        assert_eq!(new["other"], old["other"], "the other container");
        assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
        assert_eq!(image_id(&after, "main"), image_id(&before, "main"), "the same bytes");
        let digest = image_id(&before, "main").split_once('@').context("a digest")?.1;
        assert_eq!(image(&after, "main"), format!("{}@{digest}", remote("pause")));
        let state = &done.array("/status/containerRecreateStates")[0];
        assert_eq!(state.text("/previousContainerID"), format!("containerd://{}", old["main"].id));
        assert_eq!(state.text("/containerID"), format!("containerd://{}", new["main"].id));
        assert_eq!(state.text("/image"), image(&after, "main"));
        t.wait_events(CRR, "once", |e| e.iter().any(|e| e.starts_with("Completed: Recreated containers: main")))
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn three_quick_restarts_meet_no_back_off_and_the_fourth_is_announced() -> Result<()> {
    in_namespace("three", async |t| {
        t.start(pod("web", vec![pulled("main")])).await?;
        let recording = t.record("Pod", "web").await?;
        for i in 0..3 {
            let name = format!("r{i}");
            t.create(by_pod_spec(&name, "web", &["main"])).await?;
            t.succeeded(&name).await?;
        }
        ensure!(!was_held_back(&recording), "one of three was held back");
        // A slow machine may need longer than the back-off from one to the next: it grows until it is met.
        for i in 3..8 {
            let name = format!("r{i}");
            let answer = t.apply(&by_pod_spec(&name, "web", &["main"])).await?;
            if !answer.stderr.contains("kubelet will start it in about") {
                t.succeeded(&name).await?;
                continue;
            }
            ensure!(answer.stderr.contains("spec.strategy.varyImageTag avoids that"), "{}", answer.stderr);
            t.wait_events(CRR, &name, |e| e.iter().any(|e| e.starts_with("BackOffExpected: "))).await?;
            let held =
                |o: &Value| o.text("/status/containerRecreateStates/0/message").contains("kubelet: CrashLoopBackOff");
            // A kubelet with much to do may start it before it has said that it waits: then the next one waits longer.
            let told = |o: &Value| held(o) || o.text("/status/phase") == "Completed";
            let told = t.wait_for(CRR, &name, "to show kubelet's own words, or to be over", PATIENCE, told).await?;
            t.completed_within(&name, PATIENCE * 3).await?;
            assert_eq!(t.containers("web").await?["main"].restarts, i + 1);
            if held(&told) {
                return Ok(());
            }
        }
        anyhow::bail!("no restart was ever announced to be held back, and then held back")
    })
    .await
}

#[tokio::test]
async fn ten_quick_restarts_with_varied_tags_meet_no_back_off() -> Result<()> {
    in_namespace("ten", async |t| {
        let before = t.start(pod("web", vec![pulled("main")])).await?;
        let recording = t.record("Pod", "web").await?;
        for i in 0..10 {
            let name = format!("r{i}");
            t.create(by_pod_spec(&name, "web", &["main"]).with("/spec/strategy/varyImageTag", true)).await?;
            t.succeeded(&name).await?;
        }
        ensure!(!was_held_back(&recording), "one of ten was held back");
        let after = t.get("Pod", "web").await?;
        assert_eq!(Container::all(&after)["main"].restarts, 10);
        assert_eq!(image_id(&after, "main"), image_id(&before, "main"));
        let events = t.events("Pod", "web").await?;
        let bad = events.iter().find(|e| e.contains("BackOff") || e.starts_with("Pulling") && e.contains('@'));
        ensure!(bad.is_none(), "{bad:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn running_containers_of_never_and_on_failure_pods_are_restarted() -> Result<()> {
    in_namespace("policies", async |t| {
        for policy in ["Never", "OnFailure"] {
            let name = policy.to_lowercase();
            t.start(pod(&name, vec![pulled("main")]).with("/spec/restartPolicy", policy)).await?;
            let answer = t.apply(&by("Auto", &name, &name, &["main"])).await?;
            ensure!(answer.stderr.contains("method PodSpec is used"), "{policy}: {}", answer.stderr);
            t.succeeded(&name).await?;
            t.ready(&name).await?;
            assert_eq!(t.containers(&name).await?["main"].restarts, 1, "{policy}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn requests_of_both_methods_have_one_order() -> Result<()> {
    in_namespace("order", async |t| {
        // It says that it has been asked to end, and the test ends it when it has seen the second one wait.
        let slow = shell("main", "trap 'echo asked' TERM").with("/image", remote("busybox"));
        t.start(pod("web", vec![slow, pulled("other")]).with("/spec/terminationGracePeriodSeconds", 120)).await?;
        for (round, first, second) in [("a", "Runtime", "PodSpec"), ("b", "PodSpec", "Runtime")] {
            let (one, two) = (format!("{round}1"), format!("{round}2"));
            let (one_seen, two_seen) = (t.record(CRR, &one).await?, t.record(CRR, &two).await?);
            let old = t.containers("web").await?["main"].id.clone();
            t.create(by(first, &one, "web", &["main"])).await?;
            t.wait_for(CRR, &one, "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
            t.create(by(second, &two, "web", &["other"])).await?;
            let waits = |o: &Value| o.text("/status/message").contains(&format!("waiting for request {one}"));
            t.wait_for(CRR, &two, "to wait", PATIENCE, waits).await?;
            poll("the container to be asked to end", PATIENCE, async || {
                let said = t.kubectl(&["logs", "web", "-c", "main"]).await?;
                ensure!(said.contains("asked"), "{said}");
                Ok(())
            })
            .await?;
            t.node().signal(&old, "KILL").await?;
            t.succeeded(&one).await?;
            t.succeeded(&two).await?;
            let (_, ended) = one_seen.seen("the end of the first", |o| o.text("/status/phase") == "Completed").await?;
            let (_, begun) = two_seen.seen("the second begin", |o| o.text("/status/phase") == "Recreating").await?;
            ensure!(written(&begun) > written(&ended), "{second} began before {first} had ended");
        }
        // It would take its whole grace.
        t.api("Pod").delete("web", &DeleteParams::default().grace_period(1)).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_policy_that_denies_the_new_spelling_refuses_the_request() -> Result<()> {
    in_namespace("denied", async |t| {
        let name = t.namespace.clone();
        let policy = json!({
            "kind": "ValidatingAdmissionPolicy", "apiVersion": "admissionregistration.k8s.io/v1", "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
                    "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"] }],
                },
                "validations": [{ "expression": "object.spec.containers.all(c, !c.image.contains('@'))", "message": "no digests here" }],
            },
        });
        let binding = json!({
            "kind": "ValidatingAdmissionPolicyBinding", "apiVersion": "admissionregistration.k8s.io/v1", "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        });
        t.start(pod("web", vec![pulled("main"), pulled("other")])).await?;
        let body = async {
            t.create(policy).await?;
            t.create(binding).await?;
            // A new policy counts after a moment.
            let start = Instant::now();
            let other = format!("main={}@sha256:{}", remote("pause"), "0".repeat(64));
            loop {
                let tried = t.kubectl(&["set", "image", "pod/web", &other, "--dry-run=server"]).await;
                if tried.err().is_some_and(|e| format!("{e:#}").contains("no digests here")) {
                    break;
                }
                ensure!(start.elapsed() < PATIENCE, "the policy does not work");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let before = t.containers("web").await?;
            t.create(by_pod_spec("once", "web", &["main", "other"])).await?;
            let done = t.completed("once").await?;
            ensure!(done.text("/status/message").contains("no digests here"), "{}", done["status"]);
            for state in done.array("/status/containerRecreateStates") {
                assert_eq!(state.text("/phase"), "Failed");
                ensure!(!state.has("/killStartedAt"), "nothing was done: {state}");
            }
            assert_eq!(t.containers("web").await?, before);
            Ok(())
        };
        let undo = async {
            t.remove("ValidatingAdmissionPolicyBinding", &name).await?;
            t.remove("ValidatingAdmissionPolicy", &name).await
        };
        restoring(body, undo).await
    })
    .await
}

#[tokio::test]
async fn no_workload_recreates_or_reports_a_pod_whose_image_is_spelled_differently() -> Result<()> {
    in_namespace("workloads", async |t| {
        let template = |restart: &str| {
            let template = pod("x", vec![pulled("main")]);
            json!({ "metadata": { "labels": { "app": "x" } }, "spec": template["spec"].clone().with("/restartPolicy", restart) })
        };
        let selector = json!({ "matchLabels": { "app": "x" } });
        let workloads = [
            ("ReplicaSet", "apps/v1", json!({ "replicas": 1, "selector": selector, "template": template("Always") })),
            ("Deployment", "apps/v1", json!({ "replicas": 1, "selector": selector, "template": template("Always") })),
            ("StatefulSet", "apps/v1", json!({ "serviceName": "x", "replicas": 1, "selector": selector, "template": template("Always") })),
            ("DaemonSet", "apps/v1", json!({ "selector": selector, "template": template("Always") })),
            ("Job", "batch/v1", json!({ "template": template("Never") })),
        ];
        for (kind, version, spec) in &workloads {
            // One label for each, so that nobody adopts another one's Pods.
            let mine = format!("w-{}", kind.to_lowercase());
            let mut spec = spec.clone().with("/template/metadata/labels/app", mine.as_str());
            if spec.has("/selector") {
                spec = spec.with("/selector/matchLabels/app", mine.as_str());
            }
            t.create(json!({ "apiVersion": version, "kind": kind, "metadata": { "name": mine }, "spec": spec })).await?;
        }
        let mut pods = Vec::new();
        for (kind, ..) in &workloads {
            let mine = format!("w-{}", kind.to_lowercase());
            let start = Instant::now();
            let name = loop {
                let found = t.list("Pod", &format!("app={mine}")).await?;
                if let Some(pod) = found.first() {
                    break pod.text("/metadata/name").to_owned();
                }
                ensure!(start.elapsed() < PATIENCE, "{kind} makes no Pod");
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            let before = t.ready(&name).await?;
            pods.push((*kind, mine, name, before));
        }
        let mut workloads_before = Vec::new();
        for (kind, mine, ..) in &pods {
            let settled = |o: &Value| match *kind {
                "Job" => o.int("/status/ready") == 1,
                _ => {
                    let ready = o.int("/status/readyReplicas") + o.int("/status/numberReady");
                    o.int("/status/observedGeneration") == o.int("/metadata/generation") && ready == 1
                }
            };
            workloads_before.push(t.wait_for(kind, mine, "to be observed", PATIENCE, settled).await?);
        }
        for (kind, mine, name, _) in &pods {
            let answer = t.apply(&by_pod_spec(mine, name, &["main"])).await?;
            ensure!(answer.ok && !answer.stderr.contains("has no controller"), "{kind}: {}", answer.stderr);
        }
        for (_, mine, name, _) in &pods {
            t.succeeded(mine).await?;
            t.ready(name).await?;
        }
        for ((kind, mine, name, before), workload) in pods.iter().zip(workloads_before) {
            let all = t.list("Pod", &format!("app={mine}")).await?;
            assert_eq!(all.len(), 1, "{kind} made another Pod");
            assert_eq!(all[0].text("/metadata/uid"), before.text("/metadata/uid"), "{kind}");
            assert_eq!(Container::all(&all[0])["main"].restarts, 1, "{kind} {name}");
            ensure!(image(&all[0], "main").contains('@'), "{kind}: {}", image(&all[0], "main"));
            let mut known = vec!["/metadata/generation", "/status/observedGeneration", "/status/replicas", "/status/updatedReplicas"];
            known.extend(["/status/currentRevision", "/status/updateRevision", "/status/updatedNumberScheduled", "/status/active"]);
            let now = t.wait_for(kind, mine, "to show its Pod as before", PATIENCE, |o| {
                known.iter().all(|field| o.pointer(field) == workload.pointer(field))
            });
            now.await.context(*kind)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn native_sidecars_are_restarted_by_both_methods() -> Result<()> {
    in_namespace("methods-sidecars", async |t| {
        let sidecar = pulled("mesh").with("/restartPolicy", "Always");
        let setup = json!({ "name": "setup", "image": remote("busybox"), "command": ["true"] });
        let web = pod("web", vec![pulled("main")]).with("/spec/initContainers", json!([setup, sidecar]));
        let before = t.start(web).await?;
        let restarts = async || {
            let pod = t.get("Pod", "web").await?;
            let all = pod.array("/status/initContainerStatuses").iter().chain(pod.array("/status/containerStatuses"));
            let of = |name: &str| all.clone().find(|s| s.text("/name") == name).map_or(-1, |s| s.int("/restartCount"));
            anyhow::Ok((of("setup"), of("mesh"), of("main")))
        };
        t.create(by("Runtime", "stopped", "web", &["mesh"])).await?;
        t.succeeded("stopped").await?;
        assert_eq!(restarts().await?, (0, 1, 0));
        let respelled = by_pod_spec("respelled", "web", &["mesh"]);
        if t.kubelet_minor(&before).await? < 32 {
            let (_, message) = t.refused(respelled).await?;
            ensure!(message.contains("older than 1.32, ignores a change of its image"), "{message}");
        } else {
            t.create(respelled).await?;
            t.succeeded("respelled").await?;
            assert_eq!(restarts().await?, (0, 2, 0));
        }
        assert_eq!(image_id(&t.get("Pod", "web").await?, "mesh"), image_id(&before, "mesh"));
        let (_, message) = t.refused(crr("init", "web", &["setup"])).await?;
        ensure!(message.contains("\"setup\" is an init container"), "{message}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stop_that_kubelet_will_hold_back_is_announced() -> Result<()> {
    in_namespace("announced", async |t| {
        t.start(pod("web", vec![pulled("main")])).await?;
        t.create(by("Runtime", "first", "web", &["main"])).await?;
        t.succeeded("first").await?;
        t.create(by("Runtime", "second", "web", &["main"])).await?;
        // A kubelet with much to do may start it before it has said that it waits; then there are no words to show.
        let held = |o: &Value| {
            let words = o.text("/status/containerRecreateStates/0/message").contains("back-off 10s");
            words || o.text("/status/phase") == "Completed"
        };
        t.wait_for(CRR, "second", "to show kubelet's own words, or to be over", PATIENCE, held).await?;
        let second = t.succeeded("second").await?;
        let killed = |o: &Value| o.text("/status/containerRecreateStates/0/killedAt").parse::<jiff::Timestamp>();
        let apart = killed(&second)?.duration_since(killed(&t.get(CRR, "first").await?)?);
        // On a busy machine the back-off may be over by then.
        if apart.as_secs() < 10 {
            t.wait_events(CRR, "second", |e| {
                e.iter()
                    .any(|e| e.starts_with("BackOffExpected: ") && e.contains("kubelet will start it in about 10 s"))
            })
            .await?;
        }
        // Auto avoids the wait.
        let answer = t.apply(&by("Auto", "third", "web", &["main"])).await?;
        ensure!(answer.stderr.contains("method PodSpec is used"), "{}", answer.stderr);
        let done = t.succeeded("third").await?;
        assert_eq!(done.text("/spec/strategy/recreateMethod"), "Auto", "what the user wrote stays");
        assert_eq!(done.text("/metadata/labels/crr.kruise.rs~1method"), "PodSpec");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_with_its_own_rules_starts_again_after_a_stop() -> Result<()> {
    in_namespace("rules", async |t| {
        // A signal that nobody handles ends it with 137 or 143; the Pod itself never restarts anything.
        let rule = |codes: Value| json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": codes } }]);
        let main = json!({ "name": "main", "image": remote("busybox"), "command": ["sleep", "100000"], "restartPolicy": "Never" });
        let web = pod("web", vec![main.clone().with("/restartPolicyRules", rule(json!([137, 143]))), pulled("other")]);
        t.start(web.with("/spec/restartPolicy", "Never")).await?;
        t.create(by("Runtime", "once", "web", &["main"])).await?;
        t.succeeded("once").await?;
        assert_eq!(t.containers("web").await?["main"].restarts, 1);

        let unfit = pod("unfit", vec![main.with("/restartPolicyRules", rule(json!([42]))), pulled("other")]);
        t.start(unfit.with("/spec/restartPolicy", "Never")).await?;
        t.create(by("Runtime", "ended", "unfit", &["main"])).await?;
        let done = t.completed("ended").await?;
        let message = done.text("/status/containerRecreateStates/0/message");
        ensure!(message.contains("no rule in restartPolicyRules is for exit code"), "{message}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_without_a_registry_digest_is_refused_and_auto_says_why_it_stays_with_runtime() -> Result<()> {
    in_namespace("no-digest", async |t| {
        // Imported into the runtime, never pulled.
        t.start(pod("web", vec![e2e::kit::app("main")])).await?;
        let (code, message) = t.refused(by_pod_spec("r", "web", &["main"])).await?;
        ensure!(code == 400 && message.contains("has no registry digest"), "{code} {message}");
        t.create(by("Runtime", "first", "web", &["main"])).await?;
        t.succeeded("first").await?;
        let answer = t.apply(&by("Auto", "second", "web", &["main"])).await?;
        ensure!(answer.stderr.contains("Runtime is used although"), "{}", answer.stderr);
        t.remove(CRR, "second").await?;
        Ok(())
    })
    .await
}
