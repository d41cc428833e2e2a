//! Tests that disturb the whole cluster: one after the other, each leaves it working.

#![allow(clippy::disallowed_methods, reason = "tests look at the clock")]

mod components;
mod daemon;
mod installation;
mod methods;
mod plugin;
mod policies;
mod restarts_go_on;
mod used_rights;

use anyhow::Result;
use e2e::kit::{Test, in_namespace};
use e2e::process::Process;

/// A test that kills the daemon. It begins and ends with one that was never restarted, because kubelet waits longer
/// before each restart.
async fn with_daemon(name: &str, body: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    in_namespace(name, async |t| {
        t.node().daemon_ready().await?;
        let result = body(t).await;
        let mended = t.node().fresh_daemon().await;
        result.and(mended)
    })
    .await
}

/// A process that is stopped (SIGSTOP) until this goes out of scope.
struct Frozen(Process);

impl Frozen {
    fn new(process: Process) -> Self {
        process.signal("STOP");
        Self(process)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}
