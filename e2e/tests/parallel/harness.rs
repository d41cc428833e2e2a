//! The toolkit itself, against a bare stop by the runtime: what these show, the other tests rely on.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{PATIENCE, RuntimeEvents, app, in_namespace, pod, shell};

#[tokio::test]
async fn a_bare_stop_is_seen_in_the_runtime_and_in_the_status() -> Result<()> {
    in_namespace("bare-stop", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let before = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        let asked = jiff::Timestamp::now();
        t.node().signal(&before["main"].id, "SIGTERM").await?;
        let exit = events.exit(&before["main"].id, Duration::from_secs(5)).await?;
        ensure!(exit.at > asked && exit.status == 0, "{exit:?}, asked at {asked}");
        t.wait_for("Pod", "web", "to be restarted", PATIENCE, |p| {
            let now = e2e::kit::Container::all(p);
            now.get("main").is_some_and(|c| c.restarts == 1 && c.ready && c.id != before["main"].id)
        })
        .await?;
        assert_eq!(t.containers("web").await?["other"], before["other"], "the other container is as it was");
        ensure!(events.exits(&before["other"].id).is_empty(), "the other container exited");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_shell_container_answers_and_ends_quickly() -> Result<()> {
    in_namespace("shell", async |t| {
        t.start(pod("sh", vec![shell("main", "echo started > /tmp/log")])).await?;
        assert_eq!(t.exec("sh", "main", "cat /tmp/log").await?, "started");
        let id = t.containers("sh").await?["main"].id.clone();
        let process = t.node().process(&id).await?;
        ensure!(t.node().shim(&id).await?.alive(), "the shim runs");
        t.node().signal(&id, "SIGTERM").await?;
        ensure!(process.wait_end(Duration::from_secs(2)), "a shell with a trap ends at once");
        Ok(())
    })
    .await
}
