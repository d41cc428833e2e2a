//! WorkloadRestarts: every Pod once, in order, within the budget. What was unavailable is judged from a watch of Pods,
//! never from what the product says of itself.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::kit::{
    Build, Container, Look, PATIENCE, Test, app, condition, in_namespace, poll, restart_of, shell, workload,
};
use e2e::paths::SYSTEM;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::{Value, json};

const WR: &str = "WorkloadRestart";
const CRR: &str = "ContainerRecreateRequest";
const LONG: Duration = Duration::from_secs(150);

/// Creates a workload and waits for its Pods.
async fn rolled_out(t: &Test, object: Value) -> Result<Vec<Value>> {
    let (kind, name) = (object.text("/kind").to_owned(), object.text("/metadata/name").to_owned());
    let made = t.create(object).await?;
    t.wait_for(&kind, &name, "to be ready", PATIENCE * 2, |o| {
        let wanted = if kind == "DaemonSet" { 1 } else { made.int("/spec/replicas") };
        o.int("/status/readyReplicas").max(o.int("/status/numberReady")) == wanted
    })
    .await?;
    pods(t, &name).await
}

/// The Pods of a workload that stay, by name.
async fn pods(t: &Test, name: &str) -> Result<Vec<Value>> {
    let mut pods = t.list("Pod", &format!("app={name}")).await?;
    pods.retain(|p| !p.has("/metadata/deletionTimestamp"));
    pods.sort_by_key(|p| p.text("/metadata/name").to_owned());
    Ok(pods)
}

async fn ended(t: &Test, name: &str, condition_: &str) -> Result<Value> {
    let what = format!("to be {condition_}");
    let ends = |o: &Value| condition(o, "Complete") == "True" || condition(o, "Failed") == "True";
    let found = t.wait_for(WR, name, &what, LONG, ends).await?;
    ensure!(condition(&found, condition_) == "True", "not {condition_}: {}", found["status"]);
    Ok(found)
}

async fn reason(t: &Test, name: &str, reason: &str) -> Result<Value> {
    t.wait_for(WR, name, &format!("to say {reason}"), PATIENCE, |o| reason_of(o) == reason).await
}

fn reason_of(object: &Value) -> &str {
    let conditions = object.array("/status/conditions");
    conditions.iter().find(|c| c.text("/type") == "Progressing").map_or("", |c| c.text("/reason"))
}

/// Restart counts of one container in all Pods.
fn restarts(pods: &[Value], container: &str) -> Vec<i64> {
    pods.iter().map(|p| Container::all(p)[container].restarts).collect()
}

fn uids(pods: &[Value]) -> Vec<&str> {
    pods.iter().map(|p| p.text("/metadata/uid")).collect()
}

/// Names of the Pods for which there are requests, in the order in which those were made, as far as seconds tell.
async fn requested(t: &Test) -> Result<Vec<String>> {
    let mut requests = t.list(CRR, "kruise.rs/workload-restart").await?;
    requests.sort_by_key(|o| o.text("/metadata/creationTimestamp").to_owned());
    Ok(requests.iter().map(|o| o.text("/spec/podName").to_owned()).collect())
}

#[tokio::test]
async fn a_deployment_is_restarted_within_max_unavailable_and_stays_as_it_is() -> Result<()> {
    in_namespace("wr-deployment", async |t| {
        let before = rolled_out(t, workload("Deployment", "web", 6, vec![app("main"), app("other")])).await?;
        let deployment = t.get("Deployment", "web").await?;
        let availability = t.availability("app=web").await?;
        t.create(restart_of("roll", "Deployment", "web", json!({ "containers": ["main"], "maxUnavailable": 2 })))
            .await?;
        let done = ended(t, "roll", "Complete").await?;
        let after = pods(t, "web").await?;
        assert_eq!((restarts(&after, "main"), restarts(&after, "other")), (vec![1; 6], vec![0; 6]));
        assert_eq!(uids(&before), uids(&after), "no Pod was replaced");
        let most = availability.most_unavailable();
        ensure!((1..=2).contains(&most), "{most} Pods were unavailable at once, 2 are allowed");
        let counts =
            ["total", "restarted", "restarting", "failed", "skipped"].map(|c| done.int(&format!("/status/{c}")));
        assert_eq!((counts, done.text("/status/progress")), ([6, 6, 0, 0, 0], "6/6"));
        let now = t.get("Deployment", "web").await?;
        assert_eq!(now.int("/metadata/generation"), deployment.int("/metadata/generation"));
        assert_eq!(now["spec"]["template"], deployment["spec"]["template"]);
        assert_eq!(t.list("ReplicaSet", "").await?.len(), 1, "no other revision");
        // the requests are its own, and go with it
        let requests = t.list(CRR, "").await?;
        assert_eq!(requests.len(), 6);
        ensure!(requests.iter().all(|o| o.text("/metadata/ownerReferences/0/name") == "roll"), "owner: {requests:?}");
        t.wait_events(WR, "roll", |e| {
            e.iter().any(|e| e.starts_with("Restarting: ")) && e.iter().any(|e| e.starts_with("Completed: 6 of 6"))
        })
        .await?;
        t.remove(WR, "roll").await?;
        for request in requests {
            t.gone(CRR, request.text("/metadata/name")).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stateful_set_goes_by_ordinal_and_waits_for_partition_and_pause() -> Result<()> {
    in_namespace("wr-ordinal", async |t| {
        rolled_out(t, workload("StatefulSet", "db", 4, vec![app("main")])).await?;
        let availability = t.availability("app=db").await?;
        let spec = json!({ "maxUnavailable": 1, "partition": 3, "paused": true });
        t.create(restart_of("roll", "StatefulSet", "db", spec)).await?;
        reason(t, "roll", "Paused").await?;
        ensure!(requested(t).await?.is_empty(), "nothing is begun while it is paused");
        t.patch(WR, "roll", json!({ "spec": { "paused": false } })).await?;
        let reached = reason(t, "roll", "PartitionReached").await?;
        assert_eq!((requested(t).await?, reached.text("/status/progress")), (vec!["db-3".to_owned()], "1/4"));
        // one by one, so that the order in which they are begun is that of their creation times
        for (partition, pod) in [(2, "db-2"), (1, "db-1"), (0, "db-0")] {
            t.patch(WR, "roll", json!({ "spec": { "partition": partition } })).await?;
            let done = format!("{}/4", 4 - partition);
            t.wait_for(WR, "roll", "to go on", PATIENCE, |o| o.text("/status/progress") == done).await?;
            ensure!(requested(t).await?.contains(&pod.to_owned()), "{pod} is next");
        }
        ended(t, "roll", "Complete").await?;
        assert_eq!(restarts(&pods(t, "db").await?, "main"), [1; 4]);
        assert_eq!(availability.most_unavailable(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_highest_ordinal_is_begun_first_and_the_next_when_it_is_ready() -> Result<()> {
    in_namespace("wr-order", async |t| {
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/tmp/ready"] } });
        let main = shell("main", "sleep 1; touch /tmp/ready").with("/readinessProbe", probe);
        rolled_out(t, workload("StatefulSet", "db", 3, vec![main])).await?;
        t.create(restart_of("roll", "StatefulSet", "db", json!({ "maxUnavailable": 1, "minReadySeconds": 2 }))).await?;
        ended(t, "roll", "Complete").await?;
        assert_eq!(requested(t).await?, ["db-2", "db-1", "db-0"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_daemon_set_a_replica_set_and_a_selection_are_restarted_and_the_restart_goes_after_its_time() -> Result<()> {
    in_namespace("wr-kinds", async |t| {
        rolled_out(t, workload("DaemonSet", "agent", 1, vec![app("main"), app("other")])).await?;
        rolled_out(t, workload("ReplicaSet", "set", 2, vec![app("main")])).await?;
        t.start(e2e::kit::pod("alone", vec![app("main")])).await?;
        t.create(restart_of("agent", "DaemonSet", "agent", json!({ "ttlSecondsAfterFinished": 5 }))).await?;
        t.create(restart_of("set", "ReplicaSet", "set", json!({ "maxUnavailable": "100%" }))).await?;
        t.create(restart_of("alone", "Pod", "alone", json!({ "order": "NodeByNode" }))).await?;
        for name in ["agent", "set", "alone"] {
            ended(t, name, "Complete").await?;
        }
        let agent = pods(t, "agent").await?;
        assert_eq!((restarts(&agent, "main"), restarts(&agent, "other")), (vec![1], vec![1]), "all containers");
        assert_eq!(restarts(&pods(t, "set").await?, "main"), [1, 1]);
        assert_eq!(restarts(&pods(t, "alone").await?, "main"), [1]);
        t.gone(WR, "agent").await?;
        let requests = t.list(CRR, "").await?;
        for request in requests.iter().filter(|o| o.text("/metadata/ownerReferences/0/name") == "agent") {
            t.gone(CRR, request.text("/metadata/name")).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_that_come_meanwhile_need_no_restart_and_pods_that_go_leave_the_count() -> Result<()> {
    in_namespace("wr-meanwhile", async |t| {
        let old = rolled_out(t, workload("Deployment", "web", 2, vec![app("main")])).await?;
        t.create(restart_of("roll", "Deployment", "web", json!({ "paused": true, "maxUnavailable": 1 }))).await?;
        reason(t, "roll", "Paused").await?;
        tokio::time::sleep(Duration::from_millis(1100)).await; // creation times have whole seconds
        t.remove("Pod", old[0].text("/metadata/name")).await?;
        t.gone("Pod", old[0].text("/metadata/name")).await?;
        // The status may still be that of before.
        poll("another Pod in its place", PATIENCE, async || {
            let now = pods(t, "web").await?;
            ensure!(now.len() == 2 && now.iter().all(|p| condition(p, "Ready") == "True"), "{:?}", uids(&now));
            Ok(())
        })
        .await?;
        t.patch(WR, "roll", json!({ "spec": { "paused": false } })).await?;
        let done = ended(t, "roll", "Complete").await?;
        let counts = ["total", "restarted", "skipped"].map(|c| done.int(&format!("/status/{c}")));
        assert_eq!((counts, done.text("/status/progress")), ([2, 1, 1], "2/2"));
        for pod in pods(t, "web").await? {
            let was_there = pod.text("/metadata/uid") == old[1].text("/metadata/uid");
            assert_eq!(Container::all(&pod)["main"].restarts, i64::from(was_there));
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_that_does_not_come_back_stops_the_restart() -> Result<()> {
    in_namespace("wr-failing", async |t| {
        // starts once, and never becomes ready again
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/tmp/ready"] } });
        let main = shell("main", "[ -e /kept/ran ] || touch /tmp/ready; touch /kept/ran")
            .with("/readinessProbe", probe)
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = workload("Deployment", "web", 3, vec![main])
            .with("/spec/template/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        rolled_out(t, web).await?;
        t.create(restart_of("roll", "Deployment", "web", json!({ "maxUnavailable": 1, "podDeadlineSeconds": 6 })))
            .await?;
        let failed = ended(t, "roll", "Failed").await?;
        assert_eq!((reason_of(&failed), failed.int("/status/failed")), ("FailureThresholdReached", 1));
        ensure!(failed.text("/status/message").contains("activeDeadlineSeconds"), "{}", failed.text("/status/message"));
        // kubelet may tell of the new instance after the deadline only
        poll("the restart of the first one to show, and no other", PATIENCE, async || {
            let mut counts = restarts(&pods(t, "web").await?, "main");
            counts.sort_unstable();
            ensure!(counts == [0, 0, 1], "{counts:?}");
            Ok(())
        })
        .await?;
        t.wait_events(WR, "roll", |e| e.iter().any(|e| e.starts_with("FailureThresholdReached: 1 of 3 Pods"))).await?;
        Ok(())
    })
    .await
}

fn budget(name: &str, min_available: i64) -> Value {
    json!({ "kind": "PodDisruptionBudget", "metadata": { "name": name },
        "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": name } } } })
}

/// Creates a budget and waits until the cluster has counted its Pods.
async fn counted_budget(t: &Test, name: &str, min_available: i64, allowed: i64) -> Result<()> {
    t.create(budget(name, min_available)).await?;
    t.wait_for("PodDisruptionBudget", name, "to be counted", PATIENCE, |o| {
        o.has("/status/observedGeneration") && o.int("/status/disruptionsAllowed") == allowed
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_disruption_budget_is_honoured_by_two_restarts_at_once() -> Result<()> {
    in_namespace("wr-budget", async |t| {
        rolled_out(t, workload("Deployment", "web", 4, vec![app("main"), app("other")])).await?;
        counted_budget(t, "web", 4, 0).await?;
        for container in ["main", "other"] {
            let spec = json!({ "containers": [container], "maxUnavailable": "100%" });
            t.create(restart_of(container, "Deployment", "web", spec)).await?;
        }
        for name in ["main", "other"] {
            let waiting = reason(t, name, "WaitingForBudget").await?;
            ensure!(waiting.text("/status/message").contains("PodDisruptionBudget web"), "{}", waiting["status"]);
        }
        ensure!(requested(t).await?.is_empty(), "nothing is begun while the budget allows nothing");
        let availability = t.availability("app=web").await?;
        t.patch("PodDisruptionBudget", "web", json!({ "spec": { "minAvailable": 3 } })).await?;
        for name in ["main", "other"] {
            ended(t, name, "Complete").await?;
        }
        let after = pods(t, "web").await?;
        assert_eq!((restarts(&after, "main"), restarts(&after, "other")), (vec![1; 4], vec![1; 4]));
        assert_eq!(availability.most_unavailable(), 1, "Pods unavailable at once, of which the budget allows one");
        Ok(())
    })
    .await
}

/// Lets so many Pods be ready that go by a file in their volume.
async fn let_be_ready(t: &Test, count: usize) -> Result<()> {
    poll("the Pods to be told", PATIENCE * 2, async || {
        let pods = pods(t, "web").await?;
        ensure!(pods.len() == count, "{} of {count} are there", pods.len());
        for pod in pods.iter().filter(|pod| condition(pod, "Ready") != "True") {
            t.exec(pod.text("/metadata/name"), "main", "touch /kept/ready").await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_a_drain_has_taken_from_the_budget_is_left_to_it() -> Result<()> {
    in_namespace("wr-drain", async |t| {
        // Each Pod is ready when the test says so, once for all restarts: the budget stays used up until then.
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/kept/ready"] } });
        let main = shell("main", "")
            .with("/readinessProbe", probe)
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = workload("Deployment", "web", 3, vec![main])
            .with("/spec/template/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        let (before, ()) = futures::try_join!(rolled_out(t, web), let_be_ready(t, 3))?;
        counted_budget(t, "web", 2, 1).await?;
        let typed: Api<Pod> = Api::namespaced(t.client.clone(), &t.namespace);
        let availability = t.availability("app=web").await?;
        typed.evict(before[0].text("/metadata/name"), &EvictParams::default()).await?;
        t.create(restart_of("roll", "Deployment", "web", json!({ "maxUnavailable": "100%" }))).await?;
        let waiting = reason(t, "roll", "WaitingForBudget").await?;
        ensure!(waiting.text("/status/message").contains("allows no disruption"), "{}", waiting["status"]);
        ensure!(requested(t).await?.is_empty(), "begun although the drain has used the budget up");
        let_be_ready(t, 3).await?;
        ended(t, "roll", "Complete").await?;
        assert_eq!(availability.most_unavailable(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_drain_beside_a_restart_exceeds_the_budget_by_one_pod_at_most() -> Result<()> {
    in_namespace("wr-race", async |t| {
        rolled_out(t, workload("Deployment", "web", 5, vec![app("main")])).await?;
        counted_budget(t, "web", 4, 1).await?;
        let availability = t.availability("app=web").await?;
        let typed: Api<Pod> = Api::namespaced(t.client.clone(), &t.namespace);
        // It stops after its first Pod, so that one is certainly evicted while it is under way.
        t.create(restart_of("roll", "Deployment", "web", json!({ "maxUnavailable": "100%", "partition": 4 }))).await?;
        reason(t, "roll", "PartitionReached").await?;
        let begun = requested(t).await?;
        let before = pods(t, "web").await?;
        let is_left = |pod: &&Value| !begun.iter().any(|name| name == pod.text("/metadata/name"));
        let left = before.iter().find(is_left).context("a Pod that was not restarted")?;
        poll("a Pod to be evicted", PATIENCE, async || {
            typed.evict(left.text("/metadata/name"), &EvictParams::default()).await?;
            Ok(())
        })
        .await?;
        // The restart finds the budget used up, or the Pod's successor not counted yet.
        t.patch(WR, "roll", json!({ "spec": { "partition": 0 } })).await?;
        let mut evicted = 1;
        for attempt in 0..200 {
            let pods = pods(t, "web").await?;
            let Some(pod) = pods.get(attempt % 5) else { continue };
            match typed.evict(pod.text("/metadata/name"), &EvictParams::default()).await {
                Ok(_) => evicted += 1,
                Err(kube::Error::Api(status)) if [404, 409, 429].contains(&status.code) => {}
                Err(error) => return Err(error.into()),
            }
            if condition(&t.get(WR, "roll").await?, "Complete") == "True" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ended(t, "roll", "Complete").await?;
        let most = availability.most_unavailable();
        ensure!(
            (1..=2).contains(&most),
            "{most} Pods were unavailable at once, the budget allows 1 and the race 1 more"
        );
        println!("{evicted} Pods were evicted beside the restart, {most} were unavailable at once");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_cannot_be_restarted_is_said_with_the_reason() -> Result<()> {
    in_namespace("wr-errors", async |t| {
        rolled_out(t, workload("Deployment", "web", 1, vec![app("main")])).await?;
        let target = |version: &str, kind: &str, name: &str| {
            json!({ "kind": WR, "spec": { "targetRef": { "apiVersion": version, "kind": kind, "name": name } } })
        };
        for (name, object, reason, says) in [
            ("gone", target("apps/v1", "Deployment", "none"), "TargetNotFound", "Deployment \"none\""),
            ("clone", target("apps.kruise.io/v1alpha1", "CloneSet", "none"), "TargetNotFound", "CloneSet \"none\""),
            ("sts", target("apps.kruise.io/v1beta1", "StatefulSet", "none"), "TargetNotFound", "StatefulSet \"none\""),
            ("ds", target("apps.kruise.io/v1alpha1", "DaemonSet", "none"), "TargetNotFound", "DaemonSet \"none\""),
            ("sts2", target("apps/v1", "StatefulSet", "none"), "TargetNotFound", "StatefulSet \"none\""),
            ("kind", target("v1", "Wardrobe", "none"), "TargetNotFound", "v1 has no kind \"Wardrobe\""),
            ("group", target("wood.example/v1", "Wardrobe", "none"), "TargetNotFound", "wood.example/v1"),
            ("scale", target("v1", "ConfigMap", "none"), "InvalidTarget", "no scale subresource"),
            (
                "names",
                restart_of("", "Deployment", "web", json!({ "containers": ["nope"] })),
                "ContainerNotFound",
                "spec.containers: no Pod has a container named \"nope\" that can be restarted; Pod web-",
            ),
        ] {
            t.create(object.with("/metadata/name", name)).await?;
            let said = t.wait_for(WR, name, "to say why", PATIENCE, |o| reason_of(o) == reason).await?;
            ensure!(said.text("/status/message").contains(says), "{name}: {}", said.text("/status/message"));
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_schema_refuses_what_makes_no_sense() -> Result<()> {
    in_namespace("wr-schema", async |t| {
        let web = |spec: Value| restart_of("bad", "Deployment", "web", spec);
        let both = web(json!({})).with("/spec/selector/matchLabels/app", "web");
        for (object, says) in [
            (both, "spec: set exactly one of targetRef and selector"),
            (json!({ "kind": WR, "metadata": { "name": "bad" }, "spec": {} }), "exactly one of targetRef and selector"),
            (restart_of("bad", "Pod", "web", json!({})).with("/spec/selector", json!({})), "spec.selector must not be empty"),
            (web(json!({ "maxUnavailable": 0 })), "spec.maxUnavailable: want a number from 1 on"),
            (web(json!({ "maxUnavailable": "0%" })), "spec.maxUnavailable: want a number from 1 on"),
            (web(json!({ "maxUnavailable": "ten" })), "spec.maxUnavailable: want a number from 1 on"),
            (web(json!({ "partition": -1 })), "spec.partition: want a number from 0 on"),
            (web(json!({ "failurePolicy": { "threshold": 0 } })), "spec.failurePolicy.threshold: want a number from 1 on"),
            (web(json!({ "containers": ["a", "a"] })), "spec.containers[1]: Duplicate value"),
            (web(json!({ "order": "Random" })), "spec.order: Unsupported value"),
            (web(json!({ "triggers": [] })), "spec.triggers"),
            (web(json!({ "triggers": [{ "kind": "Pod", "name": "x" }] })), "spec.triggers[0].kind"),
            (
                web(json!({ "triggers": [{ "kind": "Secret", "name": "x" }], "ttlSecondsAfterFinished": 1 })),
                "spec.ttlSecondsAfterFinished: a WorkloadRestart with triggers never finishes",
            ),
            (web(json!({})).with("/spec/targetRef/name", "../x"), "spec.targetRef.name"),
            (web(json!({ "strategy": { "recreateMethod": "Magic" } })), "spec.strategy.recreateMethod"),
        ] {
            let (code, message) = t.refused(object.clone()).await?;
            ensure!(code == 422 && message.contains(says), "{}: {code} {message}, expected {says:?}", object["spec"]);
        }
        let spec = json!({ "paused": true, "containers": ["main"], "order": "OldestFirst", "strategy": { "minStartedSeconds": 1 } });
        t.create(restart_of("roll", "Deployment", "web", spec)).await?;
        for (change, says) in [
            (json!({ "targetRef": { "name": "other" } }), "spec.targetRef cannot be changed"),
            (json!({ "containers": ["other"] }), "spec.containers cannot be changed"),
            (json!({ "order": null }), "spec.order cannot be changed"),
            (json!({ "strategy": null }), "spec.strategy cannot be changed"),
            (json!({ "triggers": [{ "kind": "Secret", "name": "x" }] }), "spec.triggers can be changed, but neither added"),
        ] {
            match t.patch(WR, "roll", json!({ "spec": change })).await {
                Ok(_) => bail!("changed: {change}"),
                Err(error) => ensure!(format!("{error:#}").contains(says), "{change}: {error:#}"),
            }
        }
        let change = json!({ "maxUnavailable": 3, "partition": "10%", "minReadySeconds": 2, "activeDeadlineSeconds": 9,
            "podDeadlineSeconds": 9, "ttlSecondsAfterFinished": 9, "failurePolicy": { "threshold": "5%" } });
        t.patch(WR, "roll", json!({ "spec": change })).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn any_kind_with_a_scale_is_restarted_once_the_manager_may_read_it() -> Result<()> {
    in_namespace("wr-scale", async |t| {
        rolled_out(t, workload("ReplicationController", "rc", 2, vec![app("main")])).await?;
        t.create(restart_of("roll", "ReplicationController", "rc", json!({ "maxUnavailable": 1 }))).await?;
        let waiting = reason(t, "roll", "Forbidden").await?;
        for part in ["kruise.rs/aggregate-to-manager", "resources [replicationcontrollers/scale], verbs [get]"] {
            ensure!(waiting.text("/status/message").contains(part), "{}", waiting.text("/status/message"));
        }
        let role = json!({ "kind": "ClusterRole", "metadata": { "name": t.namespace, "labels": { "kruise.rs/aggregate-to-manager": "true" } },
            "rules": [{ "apiGroups": [""], "resources": ["replicationcontrollers/scale"], "verbs": ["get"] }] });
        t.create(role).await?;
        let done = ended(t, "roll", "Complete").await;
        t.remove("ClusterRole", &t.namespace).await?;
        done?;
        assert_eq!(restarts(&pods(t, "rc").await?, "main"), [1, 1]);
        Ok(())
    })
    .await
}

/// Lets the manager watch a ConfigMap and a Secret by their names, as the documentation shows.
async fn grant(t: &Test, config_map: &str, secret: &str) -> Result<()> {
    let rule = |resource: &str, name: &str| json!({ "apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": ["list", "watch"] });
    t.create(json!({ "kind": "Role", "metadata": { "name": "kruise-triggers" },
        "rules": [rule("configmaps", config_map), rule("secrets", secret)] }))
        .await?;
    t.create(json!({ "kind": "RoleBinding", "metadata": { "name": "kruise-triggers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kruise-triggers" },
        "subjects": [{ "kind": "ServiceAccount", "name": "kruise-manager", "namespace": SYSTEM }] }))
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_change_of_a_config_map_or_secret_reaches_environment_file_and_sub_path() -> Result<()> {
    in_namespace("wr-triggers", async |t| {
        t.create(json!({ "kind": "ConfigMap", "metadata": { "name": "app" }, "data": { "word": "one" } })).await?;
        t.create(json!({ "kind": "Secret", "metadata": { "name": "key" }, "stringData": { "word": "one" } })).await?;
        let env = |name: &str, source: Value| json!({ "name": name, "valueFrom": source });
        let main = shell("main", "")
            .with("/env", json!([
                env("FROM_MAP", json!({ "configMapKeyRef": { "name": "app", "key": "word" } })),
                env("FROM_SECRET", json!({ "secretKeyRef": { "name": "key", "key": "word" } })),
            ]))
            .with("/volumeMounts", json!([
                { "name": "map", "mountPath": "/map" },
                { "name": "map", "mountPath": "/one/word", "subPath": "word" },
                { "name": "secret", "mountPath": "/secret" },
                { "name": "secret", "mountPath": "/two/word", "subPath": "word" },
            ]));
        let web = workload("Deployment", "web", 2, vec![main]).with("/spec/template/spec/volumes", json!([
            { "name": "map", "configMap": { "name": "app" } },
            { "name": "secret", "secret": { "secretName": "key" } },
        ]));
        rolled_out(t, web).await?;
        let read = async || -> Result<Vec<String>> {
            let script = "tr '\\0' '\\n' </proc/1/environ | sort | sed -n 's/^FROM_[A-Z]*=//p' | tr '\\n' ' '; cat /map/word /secret/word /one/word /two/word | tr -d '\\n'";
            let mut words = Vec::new();
            for pod in pods(t, "web").await? {
                words.push(t.exec(pod.text("/metadata/name"), "main", script).await?);
            }
            Ok(words)
        };
        assert_eq!(read().await?, ["one one oneoneoneone"; 2]);

        let triggers = json!([{ "kind": "ConfigMap", "name": "app" }, { "kind": "Secret", "name": "key" }]);
        t.create(restart_of("follow", "Deployment", "web", json!({ "triggers": triggers, "maxUnavailable": 1 }))).await?;
        let readable = |o: &Value, value: &str| condition(o, "TriggersReadable") == value;
        // the answers about the two may come one after the other: the condition names both in the end
        let missing = |o: &Value| {
            let conditions = o.array("/status/conditions").iter();
            let mut messages = conditions.filter(|c| c.text("/type") == "TriggersReadable").map(|c| c.text("/message"));
            readable(o, "False")
                && messages.any(|m| {
                    m.contains("ConfigMap app, Secret key cannot be watched")
                        && m.contains("verbs list and watch, resource configmaps, resourceNames [app]")
                })
        };
        t.wait_for(WR, "follow", "to lack the rights", PATIENCE, missing).await?;
        grant(t, "app", "key").await?;
        t.wait_for(WR, "follow", "to have the right", PATIENCE, |o| readable(o, "True")).await?;
        reason(t, "follow", "WaitingForChange").await?;
        // not the data: no change
        t.patch("ConfigMap", "app", json!({ "metadata": { "labels": { "a": "b" } } })).await?;

        let availability = t.availability("app=web").await?;
        for (round, kind, name, change, want) in [
            (1, "ConfigMap", "app", json!({ "data": { "word": "two" } }), "two one twoonetwoone"),
            (2, "Secret", "key", json!({ "stringData": { "word": "two" } }), "two two twotwotwotwo"),
        ] {
            t.patch(kind, name, change).await?;
            let done = |o: &Value| o.int("/status/round") == round && condition(o, "Complete") == "True";
            t.wait_for(WR, "follow", "to have followed", LONG, done).await?;
            assert_eq!(read().await?, [want; 2], "after the change of {kind} {name}");
            assert_eq!(restarts(&pods(t, "web").await?, "main"), [round; 2]);
        }
        assert_eq!(availability.most_unavailable(), 1);
        assert_eq!(t.list("ReplicaSet", "").await?.len(), 1, "no template drift");
        let rounds = async || -> Result<usize> { Ok(t.list(CRR, "").await?.len()) };
        poll("requests of earlier rounds to go", PATIENCE, async || {
            let left = rounds().await?;
            ensure!(left <= 2, "{left} requests");
            Ok(())
        })
        .await
    })
    .await
}
