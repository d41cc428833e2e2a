//! Random histories of CloneSets, see [`e2e::random`].

use anyhow::Result;
use e2e::random::{Managers, sequences};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_and_faults_break_no_promise() -> Result<()> {
    sequences(10, Managers::Live).await
}
