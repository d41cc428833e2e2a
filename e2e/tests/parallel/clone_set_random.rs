//! Random histories of CloneSets, see [`e2e::random`].

use anyhow::Result;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_and_faults_break_no_promise() -> Result<()> {
    e2e::random::sequences(10).await
}
