//! The request to stop, which all tasks get at once.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Turns true once, when this process is to stop.
pub type Shutdown = watch::Receiver<bool>;

/// Resolves when the process is to stop; also if nobody is left who could say so.
pub async fn requested(mut shutdown: Shutdown) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Turns true at SIGTERM or SIGINT; a second signal ends the process at once.
///
/// # Errors
/// If the signal handlers cannot be installed.
pub fn on_signals() -> io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, shutdown) = watch::channel(false);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!(signal = name, "stopping");
        stop.send_replace(true);
        let name = next().await;
        tracing::warn!(signal = name, "second signal, leaving without finishing");
        std::process::exit(1);
    });
    Ok(shutdown)
}
