//! Several requests at once: for one Pod strictly one after the other, for many Pods all together.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, app, crr, in_namespace, pod, poll, shell, stubborn, written};
use futures::future::try_join_all;
use jiff::Timestamp;

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
        let slow = t.containers("web").await?["slow"].id.clone();
        // Longer than anybody waits: the test ends it when it has seen the second one wait.
        let first = crr("first", "web", &["slow"]).with("/spec/strategy/terminationGracePeriodSeconds", 300);
        t.create(first).await?;
        t.wait_for(CRR, "first", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
        let (one, two) = (t.record(CRR, "first").await?, t.record(CRR, "second").await?);
        t.restart("second", "web", &["quick"]).await?;
        t.wait_for(CRR, "second", "to be Pending", PATIENCE, |o| o.text("/status/phase") == "Pending").await?;
        assert_eq!(t.containers("web").await?["quick"].restarts, 0, "nothing happens before its turn");
        t.node().signal(&slow, "KILL").await?;
        let ends = t.succeeded("first").await?.text("/status/completionTime").parse::<Timestamp>()?;
        let stops = "/status/containerRecreateStates/0/killStartedAt";
        let begins = t.succeeded("second").await?.text(stops).parse::<Timestamp>()?;
        let (_, ended) = one.seen("the end of the first", |o| o.text("/status/phase") == "Completed").await?;
        let (_, began) = two.seen("the begin of the second", |o| o.text("/status/phase") == "Recreating").await?;
        ensure!(written(&began) > written(&ended), "the second began before the first had ended");
        // By itself the daemon looks again after 15 s.
        let pause = begins.duration_since(ends);
        ensure!(pause.as_secs() < 10, "the next one was woken only {pause:#} after the first had ended");
        Ok(())
    })
    .await
}

/// None of them ends by itself: that all have been asked to end while all run shows that no stop waits for another one.
#[tokio::test]
async fn twenty_pods_are_restarted_at_the_same_moment() -> Result<()> {
    in_namespace("twenty", async |t| {
        let names: Vec<String> = (0..20).map(|i| format!("p{i:02}")).collect();
        let tells = || vec![shell("main", "trap 'echo asked' TERM")];
        let start = |name: &String| t.create(pod(name, tells()).with("/metadata/labels/round", "twenty"));
        try_join_all(names.iter().map(start)).await?;
        for name in &names {
            t.wait_for("Pod", name, "to be Ready", PATIENCE * 2, |p| e2e::kit::condition(p, "Ready") == "True").await?;
        }
        let mut old = Vec::new();
        for name in &names {
            old.push(t.containers(name).await?["main"].id.clone());
        }
        let request = |name: &String| {
            t.create(crr(name, name, &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 300))
        };
        try_join_all(names.iter().map(request)).await?;
        poll("all twenty to be asked to end", PATIENCE * 2, async || {
            let said = t.kubectl(&["logs", "-l", "round=twenty", "--prefix"]).await?;
            let asked: BTreeSet<&str> = said.lines().filter(|line| line.ends_with(" asked")).collect();
            ensure!(asked.len() == names.len(), "{} of {} were asked: they queue", asked.len(), names.len());
            Ok(())
        })
        .await?;
        for name in &names {
            assert_eq!(t.containers(name).await?["main"].restarts, 0, "{name} has not ended yet");
        }
        let node = t.node();
        try_join_all(old.iter().map(|id| node.signal(id, "KILL"))).await?;
        for name in &names {
            t.succeeded(name).await?;
            assert_eq!(t.containers(name).await?["main"].restarts, 1);
        }
        Ok(())
    })
    .await
}
