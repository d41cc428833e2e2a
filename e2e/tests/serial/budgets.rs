//! PodUnavailableBudgets beyond deletion, behind the gate PodUnavailableBudgetUpdateGate: updates, resizes, container
//! restarts; and `kubectl drain`, which cordons the only node.

use anyhow::{Context, Result, ensure};
use e2e::cmd::kubectl;
use e2e::images::{BUSYBOX, remote, remote_tag};
use e2e::kit::{
    Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restart_of, restoring, shell, workload,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const BUDGET: &str = "PodUnavailableBudget";
const DEFINITION: &str = "podunavailablebudgets.policy.kruise.io";

/// What a patch of a Pod is answered: HTTP code and message.
async fn patched(t: &Test, name: &str, resize: bool, patch: Value) -> (u16, String) {
    let patch = Patch::Strategic(patch);
    let answer = match resize {
        false => t.api("Pod").patch(name, &PatchParams::default(), &patch).await,
        true => t.api("Pod").patch_subresource("resize", name, &PatchParams::default(), &patch).await,
    };
    match answer {
        Ok(_) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.message),
        Err(error) => (0, error.to_string()),
    }
}

fn image(tag: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": remote_tag("busybox", tag) }] } })
}

fn processor(amount: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": amount } } }] } })
}

fn budget(name: &str, app: &str, most: i64) -> Value {
    json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "tier": app } }, "maxUnavailable": most } })
}

async fn whole(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(BUDGET, name, "to allow one", PATIENCE, |b| b.int("/status/unavailableAllowed") == 1).await
}

/// Makes a Pod ready once its container has restarted so often. What its readiness goes by is gone with each container: until
/// then it is not ready, however fast the restart was.
async fn let_be_ready(t: &Test, name: &str, restarts: i64) -> Result<()> {
    t.wait_for("Pod", name, "to run anew", PATIENCE, |p| {
        let main = "/status/containerStatuses/0";
        p.int(&format!("{main}/restartCount")) == restarts && p.has(&format!("{main}/state/running"))
    })
    .await?;
    t.exec(name, "main", "touch /tmp/ready").await?;
    t.ready(name).await.map(drop)
}

async fn updates_resizes_and_restarts(t: &Test) -> Result<()> {
    let probe = json!({ "periodSeconds": 1, "exec": { "command": ["test", "-e", "/tmp/ready"] } });
    let main = shell("main", "").with("/image", remote("busybox")).with("/readinessProbe", probe);
    let main = main.with("/resources/requests/cpu", "10m");
    for name in ["a", "b"] {
        t.create(pod(name, vec![main.clone()]).with("/metadata/labels/tier", "web")).await?;
    }
    for name in ["a", "b"] {
        let_be_ready(t, name, 0).await?;
    }
    t.create(budget("web", "web", 1)).await?;
    let status = whole(t, "web").await?;
    ensure!(condition(&status, "ProtectsUpdates") == "True", "{status}");
    // An update takes the place; the other Pod waits, whatever is wanted of it.
    assert_eq!(patched(t, "a", false, image("v2")).await.0, 200);
    for (resize, patch) in [(false, image("v2")), (true, processor("20m"))] {
        let (code, message) = patched(t, "b", resize, patch).await;
        ensure!(code == 403 && message.contains("podunavailablebudget.policy.kruise.io \"web\""), "{code} {message}");
    }
    let (code, message) = t.refused(crr("restart", "b", &["main"])).await?;
    ensure!(code == 403 && message.contains("podunavailablebudget.policy.kruise.io \"web\""), "{code} {message}");
    // What restarts nothing is nobody's business.
    let label = json!({ "metadata": { "labels": { "other": "label" } } });
    assert_eq!(patched(t, "b", false, label).await.0, 200);
    // The first is back: the second's turn, as soon as it is seen.
    let_be_ready(t, "a", 1).await?;
    whole(t, "web").await?;
    // A resize may be over soon.
    let recorded = t.record(BUDGET, "web").await?;
    assert_eq!(patched(t, "b", true, processor("20m")).await.0, 200);
    let is_listed = |b: &Value| b.has("/status/unavailablePods/b") && !b.has("/status/disruptedPods");
    recorded.seen("the resize in the list of what is unavailable", is_listed).await?;
    whole(t, "web").await?;
    t.create(crr("restart", "b", &["main"])).await?;
    let (code, _) = patched(t, "a", false, image("v1")).await;
    assert_eq!(code, 403, "a restart holds the place");
    let_be_ready(t, "b", 1).await?;
    t.succeeded("restart").await?;
    whole(t, "web").await.map(drop)
}

async fn a_workload_restart_heeds_the_budget(t: &Test) -> Result<()> {
    let set = workload("StatefulSet", "many", 3, vec![app("main")]).with("/spec/template/metadata/labels/tier", "many");
    t.create(set).await?;
    t.wait_for("StatefulSet", "many", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
    t.create(budget("many", "many", 1)).await?;
    whole(t, "many").await?;
    let watched = t.availability("app=many").await?;
    t.create(restart_of("all", "StatefulSet", "many", json!({ "maxUnavailable": "100%" }))).await?;
    t.wait_for("WorkloadRestart", "all", "to be complete", PATIENCE * 2, |o| {
        ensure_not_failed(o);
        condition(o, "Complete") == "True"
    })
    .await?;
    assert_eq!(watched.most_unavailable(), 1);
    Ok(())
}

/// All at once, if it were for the CloneSet alone.
async fn a_roll_out_in_place_heeds_the_budget(t: &Test) -> Result<()> {
    let main = |image: String| json!([{ "name": "main", "image": image }]);
    let spec = pod("rolled", Vec::new())["spec"].clone().with("/containers", main(remote("pause")));
    let labels = json!({ "app": "rolled", "tier": "rolled" });
    let set = json!({ "kind": "CloneSet", "metadata": { "name": "rolled" }, "spec": {
        "replicas": 4, "selector": { "matchLabels": { "app": "rolled" } },
        "template": { "metadata": { "labels": labels }, "spec": spec },
        "updateStrategy": { "type": "InPlaceOnly", "maxUnavailable": "100%" } } });
    t.create(set).await?;
    let is_done = |o: &Value| {
        let status = |field: &str| o.int(&format!("/status/{field}"));
        status("observedGeneration") == o.int("/metadata/generation")
            && (status("updatedReadyReplicas"), status("replicas")) == (4, 4)
    };
    t.wait_for("CloneSet", "rolled", "to be ready", PATIENCE, is_done).await?;
    t.create(budget("rolled", "rolled", 1)).await?;
    whole(t, "rolled").await?;
    let uids = async || -> Result<std::collections::BTreeSet<String>> {
        Ok(t.list("Pod", "app=rolled").await?.iter().map(|p| p.text("/metadata/uid").to_owned()).collect())
    };
    let before = uids().await?;
    let watched = t.availability("app=rolled").await?;
    t.patch(
        "CloneSet",
        "rolled",
        json!({ "spec": { "template": { "spec": { "containers": main(remote_tag("pause", "v2")) } } } }),
    )
    .await?;
    t.wait_for("CloneSet", "rolled", "to be updated", PATIENCE * 2, is_done).await?;
    assert_eq!(watched.most_unavailable(), 1);
    assert_eq!(uids().await?, before, "a Pod was replaced");
    whole(t, "rolled").await.map(drop)
}

/// A Pod that its budget keeps has the old sidecar while the other one gets the new one, and follows when it may.
async fn a_refused_pod_holds_up_no_other_sidecar(t: &Test) -> Result<()> {
    let agent = |tag: &str| json!([{ "name": "agent", "image": remote_tag("pause", tag) }]);
    let set = format!("{}-agent", t.namespace);
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": t.namespace } });
    t.create(json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": { "name": set },
        "spec": { "selector": { "matchLabels": { "team": "shop" } }, "namespaceSelector": here,
            "containers": agent("e2e"), "updateStrategy": { "maxUnavailable": 2 } } }))
        .await?;
    let member = |name: &str| {
        let labels = json!({ "team": "shop", "tier": format!("sidecar-{name}") });
        pod(name, vec![app("main")]).with("/metadata/labels", labels)
    };
    poll("new Pods to be injected", PATIENCE, async || {
        let trial = serde_json::from_value(member("trial"))?;
        let dry_run = kube::api::PostParams { dry_run: true, ..Default::default() };
        let made = serde_json::to_value(t.api("Pod").create(&dry_run, &trial).await?)?;
        ensure!(made.array("/spec/containers").len() == 2, "not injected: {made}");
        Ok(())
    })
    .await?;
    for name in ["kept", "free"] {
        t.create(member(name)).await?;
        t.ready(name).await?;
    }
    t.create(budget("kept", "sidecar-kept", 0)).await?;
    t.wait_for(BUDGET, "kept", "to be counted", PATIENCE, |b| b.int("/status/currentAvailable") == 1).await?;
    t.patch("SidecarSet", &set, json!({ "spec": { "containers": agent("v2") } })).await?;
    let image = |pod: &Value| {
        let found = pod.array("/spec/containers").iter().find(|c| c.text("/name") == "agent");
        found.map(|c| c.text("/image").to_owned()).unwrap_or_default()
    };
    let is_new = |pod: &Value| image(pod) == remote_tag("pause", "v2") && condition(pod, "Ready") == "True";
    t.wait_for("Pod", "free", "to have the new sidecar", PATIENCE * 2, is_new).await?;
    t.wait_for("SidecarSet", &set, "to say what keeps the other one", PATIENCE, |set| {
        let is_told = |c: &Value| c.text("/reason") == "BudgetRefused" && c.text("/message").contains("/kept");
        set.int("/status/updatedReadyPods") == 1 && set.array("/status/conditions").iter().any(is_told)
    })
    .await?;
    assert_eq!(image(&t.get("Pod", "kept").await?), remote_tag("pause", "e2e"));
    t.patch(BUDGET, "kept", json!({ "spec": { "maxUnavailable": 1 } })).await?;
    t.wait_for("Pod", "kept", "to have the new sidecar", PATIENCE * 2, is_new).await.map(drop)
}

/// Objects of a time without these rules: of two selectors and two numbers, those count that OpenKruise takes.
async fn stored_before_the_rules(t: &Test) -> Result<()> {
    let definition = t.get("CustomResourceDefinition", DEFINITION).await?;
    let versions = definition["spec"]["versions"].clone();
    let set_versions = async |versions: &Value| {
        t.patch("CustomResourceDefinition", DEFINITION, json!({ "spec": { "versions": versions } })).await.map(drop)
    };
    for name in ["a", "b"] {
        t.create(pod(name, vec![app("main")]).with("/metadata/labels/tier", "web")).await?;
    }
    t.create(workload("Deployment", "web", 2, vec![app("main")])).await?;
    t.wait_for("Deployment", "web", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 2).await?;
    set_versions(&without_rules(&versions)).await?;
    let selector = json!({ "matchLabels": { "tier": "web" } });
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
    let old = |name: &str, spec: Value| json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": spec });
    let stored = async {
        for object in [
            old("both", json!({ "selector": selector, "targetRef": target, "maxUnavailable": 1, "minAvailable": 0 })),
            old("neither", json!({ "maxUnavailable": 0 })),
            old("everything", json!({ "selector": {}, "maxUnavailable": 0 })),
            old("much", json!({ "selector": { "matchLabels": { "tier": "other" } }, "maxUnavailable": "200%" })),
            old("numberless", json!({ "selector": { "matchLabels": { "tier": "none" } } })),
        ] {
            // The API server takes a moment to forget a rule.
            poll("an object that is against the rules to be stored", PATIENCE, async || {
                t.create(object.clone()).await.map(drop)
            })
            .await?;
        }
        anyhow::Ok(())
    }
    .await;
    set_versions(&versions).await?;
    stored?;
    let reason = |b: &Value| {
        let resolved = b.array("/status/conditions").iter().find(|c| c.text("/type") == "Resolved");
        resolved.map(|c| c.text("/reason").to_owned()).unwrap_or_default()
    };
    // The rules are back, and the status of what is against them can be written all the same.
    let both =
        t.wait_for(BUDGET, "both", "to be counted", PATIENCE, |b| b.int("/status/currentAvailable") == 2).await?;
    let numbers =
        ["totalReplicas", "desiredAvailable", "unavailableAllowed"].map(|f| both.int(&format!("/status/{f}")));
    assert_eq!((numbers, reason(&both).as_str()), ([2, 1, 1], "Resolved"), "{both}");
    for name in ["neither", "everything", "numberless"] {
        t.wait_for(BUDGET, name, "to say that it protects nothing", PATIENCE, |b| reason(b) == "InvalidSpec").await?;
    }
    t.wait_for(BUDGET, "much", "to be looked at", PATIENCE, |b| b.int("/status/observedGeneration") > 0).await?;
    // None of the Pods with these labels is anybody's but the Deployment's.
    for name in ["a", "b"] {
        t.kubectl(&["delete", "pod", name, "--wait=false"]).await?;
    }
    // Its labels and the like may be changed, its finalizers taken away.
    t.patch(BUDGET, "both", json!({ "metadata": { "labels": { "team": "a" } } })).await?;
    t.patch(BUDGET, "neither", json!({ "metadata": { "finalizers": ["example.com/test"] } })).await?;
    t.remove(BUDGET, "neither").await?;
    t.patch(BUDGET, "neither", json!({ "metadata": { "finalizers": null } })).await?;
    t.gone(BUDGET, "neither").await
}

/// The versions of a definition without what its schema says beyond the types.
fn without_rules(versions: &Value) -> Value {
    match versions {
        Value::Array(items) => items.iter().map(without_rules).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != "x-kubernetes-validations");
            Value::Object(kept.map(|(name, value)| (name.clone(), without_rules(value))).collect())
        }
        other => other.clone(),
    }
}

#[tokio::test]
async fn b9_objects_from_before_the_schema_are_read_as_openkruise_reads_them() -> Result<()> {
    in_namespace("pub-stored", stored_before_the_rules).await
}

fn ensure_not_failed(object: &Value) {
    assert_ne!(condition(object, "Failed"), "True", "{object}");
}

pub(crate) async fn updates_resizes_and_container_restarts_need_consent() -> Result<()> {
    in_namespace("pub-updates", async |t| {
        // Until the API server calls for this namespace.
        t.create(pod("probe", vec![app("main")]).with("/metadata/labels/tier", "probe")).await?;
        t.ready("probe").await?;
        t.create(budget("probe", "probe", 0)).await?;
        poll("the webhook to be called for the namespace", PATIENCE, async || {
            let unavailable = json!({ "metadata": { "labels": { "unavailable-pod.kruise.io/x": "" } } });
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let answer = t.api("Pod").patch("probe", &params, &Patch::Merge(unavailable)).await;
            ensure!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
            Ok(())
        })
        .await?;
        let dry_run = kube::api::DeleteParams { dry_run: true, ..Default::default() };
        t.api("Pod").delete("probe", &dry_run).await.context("the gate for deletions is off")?;
        updates_resizes_and_restarts(t).await?;
        a_workload_restart_heeds_the_budget(t).await?;
        a_roll_out_in_place_heeds_the_budget(t).await?;
        let removed = async { t.remove("SidecarSet", &format!("{}-agent", t.namespace)).await };
        restoring(a_refused_pod_holds_up_no_other_sidecar(t), removed).await
    })
    .await
}

/// Issue 8, item 4. kubectl drain is told to try again, as with a PodDisruptionBudget, and ends when the budget lets it;
/// so does the roll-out of a CloneSet beside it, and a watch never sees more than allowed out of service.
#[tokio::test]
async fn kubectl_drain_and_a_roll_out_wait_for_one_budget() -> Result<()> {
    in_namespace("pub-drain", async |t| {
        let script = "trap 'exit 0' TERM; while :; do sleep 1; done";
        let main = json!({ "name": "main", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", script] });
        let set = workload("CloneSet", "web", 3, vec![main])
            .with("/spec/template/metadata/labels/tier", "drain")
            .with("/spec/updateStrategy", json!({ "type": "ReCreate", "maxUnavailable": "100%" }));
        t.create(set).await?;
        t.wait_for("CloneSet", "web", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
        t.create(budget("web", "drain", 1)).await?;
        whole(t, "web").await?;
        // A budget that allows nothing shows when the API server calls.
        t.create(pod("probe", vec![app("main")]).with("/metadata/labels/tier", "probe")).await?;
        t.ready("probe").await?;
        t.create(budget("probe", "probe", 0)).await?;
        poll("the webhook to be called for the namespace", PATIENCE, async || {
            let dry_run = kube::api::DeleteParams { dry_run: true, ..Default::default() };
            let answer = t.api("Pod").delete("probe", &dry_run).await;
            ensure!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
            Ok(())
        })
        .await?;
        let watched = t.availability("app=web").await?;
        // A roll-out that would replace all of them at once, at the same time.
        let change = json!({ "spec": { "template": { "metadata": { "labels": { "round": "2" } } } } });
        t.patch("CloneSet", "web", change).await?;
        let node = t.list("Node", "").await?.first().map(|n| n.text("/metadata/name").to_owned()).context("a node")?;
        let drain = ["drain", &node, "--pod-selector=tier=drain", "--timeout=120s", "--delete-emptydir-data"];
        let mut drain = kubectl(&t.paths, drain)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .context("kubectl drain")?;
        let body = async {
            // The roll-out alone can use up the budget before the node is closed, and then nobody would open it again.
            t.wait_for("Node", &node, "to be closed", PATIENCE, |n| n["spec"]["unschedulable"] == true).await?;
            // It has been refused once; only then there may be Pods for those that went.
            t.wait(BUDGET, "web", "to be used up", PATIENCE, |b| {
                b.is_some_and(|b| b.int("/status/unavailableAllowed") == 0)
            })
            .await
        };
        restoring(body, async { t.kubectl(&["uncordon", &node]).await.map(drop) }).await?;
        let drained = tokio::task::spawn_blocking(move || {
            let status = drain.wait()?;
            let mut said = String::new();
            std::io::Read::read_to_string(&mut drain.stderr.take().context("standard error")?, &mut said)?;
            anyhow::Ok((status, said))
        });
        let (status, said) = drained.await??;
        ensure!(status.success(), "{said}");
        ensure!(said.contains("will retry after 5s") && said.contains("no further Pod may be taken"), "{said}");
        let whole = |o: &Value| {
            let ready = o.int("/status/updatedReadyReplicas") == 3 && o.int("/status/replicas") == 3;
            ready && o.int("/status/observedGeneration") == o.int("/metadata/generation")
        };
        t.wait_for("CloneSet", "web", "to be rolled out", PATIENCE * 2, whole).await?;
        assert_eq!(watched.most_unavailable(), 1, "{said}");
        Ok(())
    })
    .await
}

/// Issue 18, item 11: the totals of all kinds that can be followed, none of whose Pods is ever scheduled.
async fn scaled(t: &Test) -> Result<()> {
    let replicas = |count: i64| json!({ "spec": { "replicas": count } });
    // Of a DaemonSet the number of nodes is wanted that it fits: none, and then the only one.
    let anywhere = json!({ "spec": { "template": { "spec": { "nodeSelector": null } } } });
    let kinds = [
        ("apps/v1", "Deployment", replicas(3), (2, 3)),
        ("apps/v1", "ReplicaSet", replicas(3), (2, 3)),
        ("apps/v1", "StatefulSet", replicas(3), (2, 3)),
        ("apps/v1", "DaemonSet", anywhere.clone(), (0, 1)),
        ("apps.kruise.io/v1alpha1", "CloneSet", replicas(3), (2, 3)),
        ("apps.kruise.io/v1alpha1", "StatefulSet", replicas(3), (2, 3)),
        ("apps.kruise.io/v1alpha1", "DaemonSet", anywhere, (0, 1)),
    ];
    for (api_version, kind, change, (before, after)) in kinds {
        let name = format!("{}-{}", kind.to_lowercase(), if api_version == "apps/v1" { "apps" } else { "kruise" });
        let object = workload(kind, &name, 2, vec![app("main")])
            .with("/apiVersion", api_version)
            .with("/spec/template/spec/nodeSelector", json!({ "e2e/nowhere": "true" }));
        t.create(object).await?;
        let target = json!({ "apiVersion": api_version, "kind": kind, "name": name });
        let budget = json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": { "targetRef": target, "maxUnavailable": 1 } });
        t.create(budget).await?;
        let knows = |count: i64| {
            move |b: &Value| b.int("/status/observedGeneration") == 1 && b.int("/status/totalReplicas") == count
        };
        t.wait_for(BUDGET, &name, "to be counted", PATIENCE, knows(before)).await?;
        let (group, version) = api_version.split_once('/').context("a group and a version")?;
        let plural = format!("{}s.{version}.{group}", kind.to_lowercase());
        t.kubectl(&["-n", &t.namespace, "patch", &plural, &name, "--type=merge", "-p", &change.to_string()]).await?;
        // Sooner than any budget is counted anyway: every thirty seconds one whose total nobody follows.
        t.wait_for(BUDGET, &name, "to know that it was scaled", std::time::Duration::from_secs(20), knows(after))
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn budgets_learn_at_once_that_workloads_of_any_known_kind_are_scaled() -> Result<()> {
    in_namespace("pub-scaled-kinds", scaled).await
}
