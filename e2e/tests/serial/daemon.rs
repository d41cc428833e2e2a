//! The daemon dies at the worst moments: the request still ends rightly, each container is stopped once, and a hook is
//! run once at most.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, RuntimeEvents, Test, app, crr, pod, poll, shell, stubborn};
use serde_json::{Value, json};

use crate::{CRR, Frozen, LONG, keeping, late, with_daemon};

async fn until_recorded(t: &Test, request: &str, field: &str) -> Result<Value> {
    let pointer = format!("/status/containerRecreateStates/0/{field}");
    t.wait_for(CRR, request, &format!("to record {field}"), PATIENCE, |o| o.has(&pointer)).await
}

async fn restarts(t: &Test, expected: [i64; 2]) -> Result<()> {
    let now = t.containers("web").await?;
    let found = ["main", "other"].map(|c| now[c].restarts);
    ensure!(found == expected, "restarts {found:?}, expected {expected:?}");
    Ok(())
}

#[tokio::test]
async fn killed_between_intent_and_kill() -> Result<()> {
    with_daemon("kill-intent", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let id = t.containers("web").await?["main"].id.clone();
        // with its shim stopped a container cannot be killed, but everything else still works
        let frozen = Frozen::new(t.node().shim(&id).await?);
        t.restart("once", "web", &["main"]).await?;
        until_recorded(t, "once", "killStartedAt").await?;
        t.node().kill_daemon().await?;
        drop(frozen);
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        restarts(t, [1, 0]).await
    })
    .await
}

#[tokio::test]
async fn killed_during_a_hook() -> Result<()> {
    with_daemon("kill-hook", async |t| {
        let hook = json!(["sh", "-c", "echo hook >> /kept/log; sleep 6"]);
        let main = shell("main", "")
            .with("/lifecycle/preStop/exec/command", hook)
            .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        let web = pod("web", vec![main, app("other")])
            .with("/spec/terminationGracePeriodSeconds", 30)
            .with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]));
        t.start(web).await?;
        t.restart("once", "web", &["main"]).await?;
        until_recorded(t, "once", "hookStartedAt").await?;
        // the hook really runs before the daemon dies
        for _ in 0..50 {
            if t.exec("web", "main", "cat /kept/log 2>/dev/null || true").await? == "hook" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        t.node().kill_daemon().await?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        restarts(t, [1, 0]).await?;
        assert_eq!(t.exec("web", "main", "cat /kept/log").await?, "hook", "the hook ran once");
        let message = done.text("/status/containerRecreateStates/0/message");
        ensure!(message.contains("preStop"), "the message says that the hook was not run again: {message:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn killed_during_the_grace_period() -> Result<()> {
    with_daemon("kill-grace", async |t| {
        t.start(pod("web", vec![stubborn("main"), app("other")])).await?;
        let id = t.containers("web").await?["main"].id.clone();
        let events = RuntimeEvents::listen()?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 20)).await?;
        let begun = until_recorded(t, "once", "killStartedAt").await?;
        let begun: jiff::Timestamp = begun.text("/status/containerRecreateStates/0/killStartedAt").parse()?;
        // So that one that is begun anew would be seen: it ends after 34 s at the earliest.
        tokio::time::sleep(Duration::from_secs(14)).await;
        t.node().kill_daemon().await?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        let exit = events.exit(&id, PATIENCE).await?;
        let after = exit.at.duration_since(begun).as_secs_f64();
        ensure!((19.0..33.5).contains(&after), "killed after {after} s: the rest of the 20 s is kept, not begun anew");
        restarts(t, [1, 0]).await
    })
    .await
}

#[tokio::test]
async fn killed_between_kill_and_report() -> Result<()> {
    with_daemon("kill-report", async |t| {
        // two seconds from the signal to the exit: time to cut the daemon off from the API server
        let script = "trap 'sleep 2; exit 0' TERM; while :; do sleep 1000 & wait $!; done";
        t.start(pod("web", vec![shell("main", "").with("/command/2", script), app("other")])).await?;
        let id = t.containers("web").await?["main"].id.clone();
        let events = RuntimeEvents::listen()?;
        let daemon = t.node().daemon_process().await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 20)).await?;
        until_recorded(t, "once", "killStartedAt").await?;
        let frozen = Frozen::new(t.node().program("apiserver")?);
        let exit = events.exit(&id, Duration::from_secs(10)).await;
        daemon.signal("KILL");
        drop(frozen);
        exit?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        restarts(t, [1, 0]).await
    })
    .await
}

#[tokio::test]
async fn killed_while_the_new_instance_starts() -> Result<()> {
    with_daemon("kill-start", async |t| {
        t.start(keeping("web", late("main"), vec![app("other")])).await?;
        t.restart("once", "web", &["main"]).await?;
        until_recorded(t, "once", "killedAt").await?;
        t.node().kill_daemon().await?;
        poll("the new instance to be told", PATIENCE, async || t.exec("web", "main", "touch /kept/go").await.map(drop))
            .await?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        restarts(t, [1, 0]).await
    })
    .await
}

/// Issue 18, item 3. Each hook prints 15 MB, under the 16 MiB of which containerd would say nothing else.
#[tokio::test]
async fn hooks_that_print_very_much_do_not_fill_the_memory_of_the_daemon() -> Result<()> {
    with_daemon("loud-hooks", async |t| {
        const PODS: usize = 12;
        t.node().fresh_daemon().await?;
        let before = t.node().daemon().await?;
        let hook = json!(["sh", "-c", "head -c 15000000 /dev/zero | tr '\\0' x"]);
        let names: Vec<String> = (0..PODS).map(|i| format!("web-{i}")).collect();
        for name in &names {
            let main = shell("main", "").with("/lifecycle/preStop/exec/command", hook.clone());
            t.create(pod(name, vec![main]).with("/spec/terminationGracePeriodSeconds", 60)).await?;
        }
        for name in &names {
            t.ready(name).await?;
        }
        for name in &names {
            t.restart(name, name, &["main"]).await?;
        }
        for name in &names {
            let done = t.completed_within(name, LONG).await?;
            let state = &done["status"]["containerRecreateStates"][0];
            ensure!(state["phase"] == "Succeeded" && !state.text("/message").contains("preStop"), "{state}");
        }
        let after = t.node().daemon().await?;
        let restarts = |daemon: &Value| daemon.int("/status/containerStatuses/0/restartCount");
        ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "it is another daemon");
        assert_eq!(restarts(&after), restarts(&before), "the daemon was restarted");
        let peak = t.node().daemon_process().await?.peak_memory()?;
        println!("loud-hooks: {PODS} hooks, the daemon had {} MiB at most", peak >> 20);
        ensure!(peak < 128 << 20, "{} MiB of 128 MiB", peak >> 20);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn killed_again_and_again_a_forced_request_still_stops_once() -> Result<()> {
    with_daemon("kill-forced", async |t| {
        t.start(keeping("web", late("main"), vec![app("other")])).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/forceRecreate", true)).await?;
        until_recorded(t, "once", "killStartedAt").await?;
        t.node().kill_daemon().await?;
        t.node().daemon_ready().await?;
        t.node().kill_daemon().await?;
        // The stop is over long ago, or else there is no new instance.
        poll("the new instance to be told", PATIENCE, async || {
            ensure!(t.containers("web").await?["main"].restarts == 1, "it is the old one");
            t.exec("web", "main", "touch /kept/go").await.map(drop)
        })
        .await?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        restarts(t, [1, 0]).await
    })
    .await
}
