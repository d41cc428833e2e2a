//! `kruise-rs all`: manager, webhook and daemon in one process, for a laptop.

use clap::Parser;
use kube::Client;

use super::{
    daemon::{self, DaemonArgs},
    manager::{self, ManagerArgs},
    webhook::{self, WebhookArgs},
};
use crate::{api::feature_gates::FeatureGates, runtime::shutdown::Shutdown};

/// Flags of all roles together. The webhook's other settings come from its environment variables.
#[derive(Clone, Debug, clap::Args)]
pub struct AllArgs {
    /// Of the manager.
    #[command(flatten)]
    pub manager: ManagerArgs,
    /// Of the daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// Host name or address under which the API server reaches this process's webhook.
    #[arg(long, env = "WEBHOOK_HOST", default_value = "localhost", value_name = "HOST")]
    pub webhook_host: String,
    /// Port of the webhook.
    #[arg(long, env = "WEBHOOK_PORT", default_value_t = 9876, value_name = "PORT")]
    pub webhook_port: u16,
}

/// The webhook's flags with nothing on the command line.
#[derive(Parser)]
struct FromEnvironment {
    #[command(flatten)]
    args: WebhookArgs,
}

/// Runs all roles until `shutdown` turns true, or until one of them fails.
///
/// # Errors
/// The first error of a role.
pub async fn run(args: AllArgs, gates: FeatureGates, client: Client, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut webhook = FromEnvironment::try_parse_from(["kruise-rs"])?.args;
    webhook.namespace.clone_from(&args.manager.own_namespace);
    webhook.webhook_host = args.webhook_host;
    webhook.webhook_port = args.webhook_port;
    // Probes and metrics of this process are the manager's.
    webhook.metrics_addr = "0".into();
    webhook.health_probe_addr = "0".into();
    futures::try_join!(
        manager::run(args.manager, gates.clone(), client.clone(), shutdown.clone()),
        webhook::run(webhook, gates.clone(), client.clone(), shutdown.clone()),
        daemon::run(args.daemon, gates, client, shutdown),
    )?;
    Ok(())
}
