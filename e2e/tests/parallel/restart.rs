//! What a restart changes, and what it leaves alone.

use anyhow::{Context, Result, ensure};
use e2e::kit::{
    Build, Container, Look, PATIENCE, RuntimeEvents, Test, app, condition, crr, in_namespace, pod, shell, stubborn,
};
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

#[tokio::test]
async fn plain_restart_replaces_one_instance_and_nothing_else() -> Result<()> {
    in_namespace("plain", async |t| {
        let main = shell("main", "").with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web =
            pod("web", vec![main, app("other")]).with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        let before = t.start(web).await?;
        t.exec("web", "main", "echo x > /tmp/in-root-file-system; echo y > /kept/in-volume").await?;
        let old = Container::all(&before);

        let recording = t.record(CRR, "once").await?;
        t.restart("once", "web", &["main"]).await?;
        let done = t.succeeded("once").await?;

        let after = t.ready("web").await?;
        let new = Container::all(&after);
        assert_eq!(new["main"].restarts, old["main"].restarts + 1, "restartCount of the restarted container");
        assert_ne!(new["main"].id, old["main"].id, "instance of the restarted container");
        assert_eq!(new["other"], old["other"], "the other container");
        for field in ["/metadata/uid", "/status/podIP", "/spec/nodeName"] {
            assert_eq!(after.text(field), before.text(field), "{field}");
        }
        assert_eq!(t.exec("web", "main", "ls /tmp").await?, "", "a file in the root file system is gone");
        assert_eq!(t.exec("web", "main", "cat /kept/in-volume").await?, "y", "a file in the emptyDir is kept");

        let state = &done.array("/status/containerRecreateStates")[0];
        assert_eq!(state.text("/name"), "main");
        assert_eq!(state.pointer("/isKilled"), Some(&json!(true)));
        assert_eq!(state.text("/previousContainerID"), format!("containerd://{}", old["main"].id));
        assert_eq!(state.text("/containerID"), format!("containerd://{}", new["main"].id));
        let times = ["/killStartedAt", "/killedAt", "/startedAt", "/readyAt"].map(|f| state.text(f).to_owned());
        ensure!(times.iter().all(|t| t.parse::<jiff::Timestamp>().is_ok()), "every step has its time: {times:?}");
        ensure!(done.has("/status/completionTime"), "it has a completion time");
        recording.seen("its end", |o| o.text("/status/phase") == "Completed").await?;
        let phases = recording.changes("/status/phase");
        ensure!(phases.ends_with(&["Recreating".into(), "Completed".into()]), "phases: {phases:?}");

        // the manager takes the label away, so that the daemon's watch stays small
        let active = "/metadata/labels/crr.apps.kruise.io~1active";
        t.wait_for(CRR, "once", "to lose its active label", PATIENCE, |o| !o.has(active)).await?;
        let killing = "Killing: Stopping container main by ContainerRecreateRequest once";
        t.wait_events("Pod", "web", |e| e.iter().any(|e| e == killing)).await?;
        t.wait_events(CRR, "once", |e| !e.is_empty()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn both_api_versions_show_and_take_the_same_request() -> Result<()> {
    in_namespace("versions", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        t.create(crr("new", "web", &["main"]).with("/apiVersion", "apps.kruise.io/v1beta1")).await?;
        t.succeeded("new").await?;
        t.restart("old", "web", &["other"]).await?;
        t.succeeded("old").await?;
        for name in ["old", "new"] {
            let read = async |version: &str| {
                let kind = format!("containerrecreaterequests.{version}.apps.kruise.io");
                let text = t.kubectl(&["get", &kind, name, "-o", "json"]).await?;
                let object: serde_json::Value = serde_json::from_str(&text)?;
                assert_eq!(object.text("/apiVersion"), format!("apps.kruise.io/{version}"));
                Ok::<_, anyhow::Error>((object["spec"].clone(), object["status"].clone()))
            };
            assert_eq!(read("v1alpha1").await?, read("v1beta1").await?);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_post_start_hook_of_ten_seconds_does_not_confuse_it() -> Result<()> {
    in_namespace("post-start", async |t| {
        let main = shell("main", "").with("/lifecycle/postStart/exec/command", json!(["sleep", "10"]));
        t.start(pod("web", vec![main, app("other")])).await?;
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        let now = t.containers("web").await?;
        assert_eq!((now["main"].restarts, now["other"].restarts), (1, 0));
        ensure!(now["main"].ready, "completed only when the new instance is ready");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn ordered_containers_are_stopped_after_the_one_before_is_back() -> Result<()> {
    in_namespace("ordered", async |t| {
        // ready three seconds after the start, so that the order is no chance
        let slow = |name| {
            shell(name, "sleep 3; touch /tmp/ready")
                .with("/readinessProbe", json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/tmp/ready"] } }))
        };
        t.start(pod("web", vec![slow("first"), slow("second"), app("other")])).await?;
        let old = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        t.create(crr("both", "web", &["second", "first"]).with("/spec/strategy/orderedRecreate", true)).await?;
        t.succeeded("both").await?;
        let new = t.containers("web").await?;
        assert_eq!(["first", "second", "other"].map(|c| new[c].restarts), [1, 1, 0]);
        // the order of the request counts, not that of the Pod
        let second = events.exit(&old["second"].id, PATIENCE).await?;
        let first = events.exit(&old["first"].id, PATIENCE).await?;
        let apart = first.at.duration_since(second.at).as_secs_f64();
        ensure!(
            apart >= 3.0,
            "second was back three seconds after its stop at the earliest, first was stopped {apart} s later"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn unordered_containers_come_back_at_the_same_time() -> Result<()> {
    in_namespace("unordered", async |t| {
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/tmp/ready"] } });
        let held = |name| shell(name, "").with("/readinessProbe", probe.clone());
        // A new instance is not ready until the test says so.
        let restarted = async |times: i64| {
            t.wait_for("Pod", "web", "to have both containers up", PATIENCE, |p| {
                let now = Container::all(p);
                now.len() == 2 && now.values().all(|c| c.restarts == times && !c.started.is_empty())
            })
            .await
        };
        let let_be_ready = async || {
            for name in ["first", "second"] {
                t.exec("web", name, "touch /tmp/ready").await?;
            }
            t.ready("web").await
        };
        t.create(pod("web", vec![held("first"), held("second")])).await?;
        restarted(0).await?;
        let_be_ready().await?;
        t.restart("both", "web", &["first", "second"]).await?;
        let both = restarted(1).await?;
        ensure!(Container::all(&both).values().all(|c| !c.ready), "the second does not wait until the first is ready");
        let_be_ready().await?;
        t.succeeded("both").await?;
        let new = t.containers("web").await?;
        assert_eq!(["first", "second"].map(|c| new[c].restarts), [1, 1]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pre_stop_command_runs_once_and_before_the_stop() -> Result<()> {
    in_namespace("pre-stop", async |t| {
        let script = "trap 'echo stop >> /kept/log; exit 0' TERM\nwhile :; do sleep 1000 & wait $!; done";
        let main = shell("main", "")
            .with("/command/2", script)
            .with(
                "/lifecycle/preStop/exec/command",
                json!(["sh", "-c", "echo hook >> /kept/log; sleep 2; echo hooked >> /kept/log"]),
            )
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = pod("web", vec![main])
            .with("/spec/terminationGracePeriodSeconds", 20)
            .with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        t.start(web).await?;
        let made = t.restart("once", "web", &["main"]).await?;
        ensure!(made.has("/spec/containers/0/preStop/exec"), "admission copies the hook");
        let done = t.succeeded("once").await?;
        assert_eq!(t.exec("web", "main", "cat /kept/log").await?, "hook\nhooked\nstop");
        ensure!(done.has("/status/containerRecreateStates/0/hookStartedAt"), "the hook's start is recorded");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pre_stop_request_by_http_reaches_the_pod_by_a_named_port() -> Result<()> {
    in_namespace("pre-stop-http", async |t| {
        let serve = "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho hook >> /kept/log; printf \"Content-Type: text/plain\\r\\n\\r\\nok\"' \
                     > /www/cgi-bin/bye; chmod +x /www/cgi-bin/bye; httpd -p 8080 -h /www";
        let main = shell("main", serve)
            .with("/ports", json!([{ "name": "http", "containerPort": 8080 }]))
            .with("/lifecycle/preStop/httpGet", json!({ "path": "/cgi-bin/bye", "port": "http" }))
            .with("/readinessProbe", json!({ "periodSeconds": 1, "tcpSocket": { "port": 8080 } }))
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = pod("web", vec![main])
            .with("/spec/terminationGracePeriodSeconds", 10)
            .with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        t.start(web).await?;
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        assert_eq!(t.exec("web", "main", "cat /kept/log").await?, "hook");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pre_stop_sleep_is_slept() -> Result<()> {
    in_namespace("pre-stop-sleep", async |t| {
        let main = app("main").with("/lifecycle/preStop/sleep/seconds", 3);
        t.start(pod("web", vec![main]).with("/spec/terminationGracePeriodSeconds", 30)).await?;
        let old = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        let asked = jiff::Timestamp::now();
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        let exit = events.exit(&old["main"].id, PATIENCE).await?;
        let after = exit.at.duration_since(asked).as_secs_f64();
        ensure!((3.0..28.0).contains(&after), "stopped {after} s after the request, the hook sleeps 3 s");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_grace_period_is_honoured_to_its_end() -> Result<()> {
    in_namespace("grace", async |t| {
        t.start(pod("web", vec![stubborn("main")])).await?;
        let old = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        let asked = jiff::Timestamp::now();
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 5)).await?;
        let exit = events.exit(&old["main"].id, PATIENCE).await?;
        let after = exit.at.duration_since(asked).as_secs_f64();
        // Without any grace of its own a Pod has 30 s.
        ensure!((5.0..25.0).contains(&after), "killed after {after} s, the grace period is 5 s");
        assert_eq!(exit.status, 137, "SIGKILL at the end");
        t.succeeded("once").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_grace_period_of_zero_is_immediate_and_skips_the_hook() -> Result<()> {
    in_namespace("no-grace", async |t| {
        let main = shell("main", "trap 'echo asked >> /kept/log' TERM")
            .with("/lifecycle/preStop/exec/command", json!(["sh", "-c", "echo hook >> /kept/log; sleep 30"]))
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = pod("web", vec![main]).with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        t.start(web).await?;
        let old = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 0)).await?;
        let exit = events.exit(&old["main"].id, PATIENCE).await?;
        assert_eq!(exit.status, 137, "SIGKILL");
        t.succeeded("once").await?;
        // Upstream asks it to end first, and waits two seconds even then.
        let log = t.exec("web", "main", "cat /kept/log 2>/dev/null || true").await?;
        assert_eq!(log, "", "no hook and no signal before it");
        Ok(())
    })
    .await
}

/// Creates a request that has to wait for another one, of container "slow", until that one is killed; its instance.
async fn queued(t: &Test, request: Value) -> Result<String> {
    let slow = t.containers("web").await?["slow"].id.clone();
    let before = crr("before", "web", &["slow"]).with("/spec/strategy/terminationGracePeriodSeconds", 300);
    t.create(before).await?;
    t.wait_for(CRR, "before", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
    let name = request.text("/metadata/name").to_owned();
    t.create(request).await?;
    t.wait_for(CRR, &name, "to wait", PATIENCE, |o| o.text("/status/phase") == "Pending").await?;
    Ok(slow)
}

#[tokio::test]
async fn an_instance_that_changed_before_its_turn_is_skipped_and_the_request_says_so() -> Result<()> {
    in_namespace("skipped", async |t| {
        t.start(pod("web", vec![app("main"), stubborn("slow")])).await?;
        let old = t.containers("web").await?;
        let slow = queued(t, crr("once", "web", &["main"])).await?;
        // Behind the request's back.
        t.node().signal(&old["main"].id, "SIGTERM").await?;
        t.wait_for("Pod", "web", "to be back", PATIENCE, |p| Container::all(p)["main"].restarts == 1).await?;
        t.node().signal(&slow, "KILL").await?;
        let done = t.completed("once").await?;
        let state = &done.array("/status/containerRecreateStates")[0];
        assert_eq!(state.text("/phase"), "Succeeded");
        assert_eq!(state.pointer("/isKilled"), Some(&json!(true)), "it counts as handled");
        ensure!(state.text("/message").contains("already recreated"), "message: {:?}", state.text("/message"));
        assert_eq!(t.containers("web").await?["main"].restarts, 1, "no second stop");
        let events = t.events("Pod", "web").await?;
        ensure!(!events.iter().any(|e| e.starts_with("Killing: Stopping container main by")), "{events:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_forced_request_stops_whatever_instance_is_there_once() -> Result<()> {
    in_namespace("forced", async |t| {
        t.start(pod("web", vec![app("main"), app("other"), stubborn("slow")])).await?;
        let old = t.containers("web").await?;
        let forced = crr("once", "web", &["main"]).with("/spec/strategy/forceRecreate", true);
        let slow = queued(t, forced).await?;
        t.node().signal(&old["main"].id, "SIGTERM").await?;
        t.wait_for("Pod", "web", "to be back", PATIENCE, |p| Container::all(p)["main"].restarts == 1).await?;
        t.node().signal(&slow, "KILL").await?;
        t.succeeded("once").await?;
        let now = t.containers("web").await?;
        assert_eq!(now["main"].restarts, 2, "one exit of its own, one by the request");
        assert_eq!(now["other"], old["other"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_deleted_and_made_again_under_its_name_is_not_touched() -> Result<()> {
    in_namespace("same-name", async |t| {
        let first = t.start(pod("web", vec![app("main")])).await?;
        let waiting = crr("old", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 30);
        t.create(waiting).await?;
        t.remove("Pod", "web").await?;
        t.gone("Pod", "web").await?;
        let second = t.start(pod("web", vec![app("main")])).await?;
        assert_ne!(first.text("/metadata/uid"), second.text("/metadata/uid"));
        let done = t.completed("old").await?;
        ensure!(done.text("/status/message").contains("pod has gone"), "message: {}", done.text("/status/message"));
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Failed");
        assert_eq!(t.containers("web").await?["main"].restarts, 0);
        // and the old request is not in the way of a new one
        t.restart("new", "web", &["main"]).await?;
        t.succeeded("new").await?;
        assert_eq!(t.containers("web").await?["main"].restarts, 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_static_pod_is_restarted_in_place() -> Result<()> {
    in_namespace("static", async |t| {
        let name = format!("static-{}", t.namespace);
        let manifest = pod(&name, vec![app("main"), app("other")]).with("/metadata/namespace", t.namespace.as_str());
        let file = t.node().static_pod(&manifest)?;
        // kubelet appends the name of the node
        let name = format!("{name}-{}", e2e::paths::NODE);
        let before = t.ready(&name).await?;
        t.restart("once", &name, &["main"]).await?;
        t.succeeded("once").await?;
        let (old, after) = (Container::all(&before), t.get("Pod", &name).await?);
        let new = Container::all(&after);
        assert_eq!(new["main"].restarts, 1);
        assert_eq!(new["other"], old["other"]);
        assert_eq!(after.text("/status/podIP"), before.text("/status/podIP"));
        drop(file);
        t.gone("Pod", &name).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_finished_request_goes_after_its_time_to_live() -> Result<()> {
    in_namespace("ttl", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let short = t.record(CRR, "short").await?;
        t.create(crr("short", "web", &["main"]).with("/spec/ttlSecondsAfterFinished", 4)).await?;
        t.restart("kept", "web", &["other"]).await?;
        let (_, done) = short.seen("its end", |o| o.text("/status/phase") == "Completed").await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded");
        t.gone(CRR, "short").await?;
        let completed: jiff::Timestamp = done.text("/status/completionTime").parse().context("completionTime")?;
        let lived = jiff::Timestamp::now().duration_since(completed).as_secs_f64();
        ensure!((4.0..60.0).contains(&lived), "deleted {lived} s after its end");
        t.succeeded("kept").await?;
        ensure!(t.find(CRR, "kept").await?.is_some(), "without a time to live it stays");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deleted_request_leaves_the_pod_ready() -> Result<()> {
    in_namespace("deleted", async |t| {
        t.start(
            pod("web", vec![app("main")]).with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }])),
        )
        .await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 60)).await?;
        t.wait_for("Pod", "web", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
        t.remove(CRR, "once").await?;
        t.gone(CRR, "once").await?;
        t.ready("web").await?;
        assert_eq!(t.containers("web").await?["main"].restarts, 0);
        Ok(())
    })
    .await
}
