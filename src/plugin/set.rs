//! `set image`: new images for containers of workloads.

use clap::Subcommand;
use serde_json::Value;

use super::{
    connection::ConnectionArgs,
    rules::{
        exit::{Exit, Stop},
        images,
    },
    workloads::{ChangeArgs, WorkloadChange, change, find},
};

/// Change one thing of workloads.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Image(ImageArgs),
}

/// Give containers of a workload or a SidecarSet new images, and change nothing else.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl kruise set image cloneset/web main=nginx:1.29
  kubectl kruise set image clone web main=nginx:1.29 sidecar=proxy:2
  kubectl kruise set image cloneset -l app=web '*=nginx:1.29' --dry-run=server

Exit codes: see kubectl kruise --help")]
struct ImageArgs {
    /// TYPE/NAME or TYPE NAME..., TYPE being cloneset, statefulset.apps.kruise.io, daemonset.apps.kruise.io or sidecarset,
    /// and CONTAINER=IMAGE for each container, init containers too; *=IMAGE is for all of them.
    #[arg(value_name = "TYPE/NAME CONTAINER=IMAGE", required = true)]
    arguments: Vec<String>,
    /// Those of one TYPE with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    #[command(flatten)]
    how: ChangeArgs,
}

pub(super) async fn run(args: SetArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let What::Image(args) = args.what;
    let (targets, images) = images::split(&args.arguments)?;
    let connection = connection.open().await?;
    let workloads = find(&connection, &targets, args.selector.as_deref()).await?;
    let judge = async |object: &Value| {
        let write = images::set(object, &images)?;
        let words = if write.is_some() { "image updated" } else { "image unchanged" };
        Ok(WorkloadChange { write, words: words.to_owned(), warning: None })
    };
    change(&connection, workloads, &args.how, judge).await
}
