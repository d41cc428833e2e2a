//! Random histories of CloneSets, see [`e2e::random`], while the managers that look after them die.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{PATIENCE, Test, condition, in_namespace, poll};
use e2e::paths::SYSTEM;
use e2e::random::{Managers, sequences};
use kube::api::DeleteParams;

use crate::MANAGER;
use crate::leaders::{another_leads, leading};

/// The leader dies, or is asked to end, again and again; each has some seconds.
async fn managers_die(t: &Test) -> Result<()> {
    for turn in 0_u32.. {
        tokio::time::sleep(Duration::from_secs(8)).await;
        let (identity, manager) = leading(t).await?;
        let dies = turn % 2 == 0;
        if dies {
            t.node().process_of(&manager).await?.signal("KILL");
        }
        // A new Pod: kubelet waits longer before each restart.
        let params = if dies { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        t.api_in(SYSTEM, "Pod").delete(manager["metadata"]["name"].as_str().unwrap_or_default(), &params).await?;
        another_leads(t, &identity).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_and_faults_while_managers_die_break_no_promise() -> Result<()> {
    in_namespace("random-managers", async |t| {
        let mut sequences = pin!(sequences(6, Managers::Die));
        let result = tokio::select! {
            result = &mut sequences => result,
            // To their end: they remove what they have made.
            result = managers_die(t) => result.and(sequences.await),
        };
        poll("the managers to be back", PATIENCE, async || {
            let managers = t.node().replicas(MANAGER).await?;
            let ready = managers.iter().filter(|p| condition(p, "Ready") == "True").count();
            ensure!(ready >= 2, "{ready} are ready");
            Ok(())
        })
        .await?;
        result
    })
    .await
}
