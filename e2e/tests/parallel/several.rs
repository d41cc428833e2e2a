//! Several requests at once: for one Pod strictly one after the other, for many Pods all together.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, RuntimeEvents, app, crr, in_namespace, pod, shell, stubborn, written};
use futures::future::try_join_all;

const CRR: &str = "ContainerRecreateRequest";

#[tokio::test]
async fn two_requests_at_once_for_one_container_end_and_stop_it_once() -> Result<()> {
    in_namespace("two", async |t| {
        t.start(pod("web", vec![shell("main", ""), app("other")])).await?;
        let old = t.containers("web").await?;
        futures::try_join!(t.restart("a", "web", &["main"]), t.restart("b", "web", &["main"]))?;
        let done = [t.succeeded("a").await?, t.succeeded("b").await?];
        let now = t.containers("web").await?;
        assert_eq!(now["main"].restarts, 1, "stopped once");
        assert_eq!(now["other"], old["other"]);
        let messages = done.each_ref().map(|d| d.text("/status/containerRecreateStates/0/message").to_owned());
        let skipped = messages.iter().filter(|m| m.contains("already recreated")).count();
        assert_eq!(skipped, 1, "the second says that it did nothing: {messages:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn five_requests_at_once_for_five_containers_all_end_and_stop_each_once() -> Result<()> {
    in_namespace("five", async |t| {
        let names = ["one", "two", "three", "four", "five"];
        t.start(pod("web", names.map(app).to_vec())).await?;
        try_join_all(names.map(|name| t.create(crr(name, "web", &[name])))).await?;
        for name in names {
            t.succeeded(name).await?;
        }
        let now = t.containers("web").await?;
        assert_eq!(names.map(|name| now[name].restarts), [1; 5]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_request_that_waits_is_pending_and_goes_on_as_soon_as_the_other_ends() -> Result<()> {
    in_namespace("queue", async |t| {
        t.start(pod("web", vec![stubborn("slow"), app("quick")])).await?;
        // Long enough for a busy machine to show that the second one waits.
        let first = crr("first", "web", &["slow"]).with("/spec/strategy/terminationGracePeriodSeconds", 15);
        t.create(first).await?;
        t.wait_for(CRR, "first", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
        let (one, two) = (t.record(CRR, "first").await?, t.record(CRR, "second").await?);
        t.restart("second", "web", &["quick"]).await?;
        let soon = Duration::from_secs(10);
        t.wait_for(CRR, "second", "to be Pending", soon, |o| o.text("/status/phase") == "Pending").await?;
        assert_eq!(t.containers("web").await?["quick"].restarts, 0, "nothing happens before its turn");
        t.succeeded("first").await?;
        t.succeeded("second").await?;
        let (ended_at, ended) = one.seen("the end of the first", |o| o.text("/status/phase") == "Completed").await?;
        let (began_at, began) =
            two.seen("the begin of the second", |o| o.text("/status/phase") == "Recreating").await?;
        ensure!(written(&began) > written(&ended), "the second began before the first had ended");
        let pause = began_at.saturating_duration_since(ended_at);
        ensure!(pause < Duration::from_secs(4), "the next one was woken only {pause:?} after the first had ended");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn twenty_pods_are_restarted_at_the_same_moment() -> Result<()> {
    in_namespace("twenty", async |t| {
        let names: Vec<String> = (0..20).map(|i| format!("p{i:02}")).collect();
        // each stop takes its whole grace of four seconds: one after the other would be 80 seconds
        try_join_all(names.iter().map(|n| t.create(pod(n, vec![stubborn("main")])))).await?;
        for name in &names {
            t.wait_for("Pod", name, "to be Ready", PATIENCE * 2, |p| e2e::kit::condition(p, "Ready") == "True").await?;
        }
        let mut old = Vec::new();
        for name in &names {
            old.push(t.containers(name).await?["main"].id.clone());
        }
        let events = RuntimeEvents::listen()?;
        let request = |name: &String| {
            t.create(crr(name, name, &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 4))
        };
        try_join_all(names.iter().map(request)).await?;
        let mut exits = Vec::new();
        for id in &old {
            exits.push(events.exit(id, Duration::from_secs(40)).await?.at);
        }
        for name in &names {
            t.succeeded(name).await?;
            assert_eq!(t.containers(name).await?["main"].restarts, 1);
        }
        exits.sort();
        let spread = exits[exits.len() - 1].duration_since(exits[0]).as_secs_f64();
        // One after the other they would take 80 s, four at a time 20 s.
        ensure!(spread < 10.0, "20 stops of 4 s each ended within {spread} s of each other: they queued");
        Ok(())
    })
    .await
}
