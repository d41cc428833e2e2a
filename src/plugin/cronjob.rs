//! `cronjob trigger`: a job of an AdvancedCronJob now.

use clap::Subcommand;
use kube::api::GetParams;
use serde_json::Value;

use super::{
    connection::{Connection, ConnectionArgs},
    requests::reference,
    rules::{
        cron_job,
        exit::{Exit, Stop, of_error},
    },
    view::{Format, print, print_objects},
};
use crate::{
    api::apps::{self, advanced_cron_job::AdvancedCronJob},
    k8s::{name::is_dns_subdomain, path},
    runtime::apply::post,
};

/// AdvancedCronJobs, besides what kubectl does.
#[derive(Debug, clap::Args)]
pub(super) struct CronJobArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Trigger(TriggerArgs),
}

/// Make a job of an AdvancedCronJob now, whatever its schedule says.
///
/// The job belongs to the AdvancedCronJob as those of its schedule do: it counts for concurrencyPolicy and in the history. You
/// need the right to create jobs of its kind.
#[derive(Debug, clap::Args)]
struct TriggerArgs {
    /// The AdvancedCronJob.
    #[arg(value_name = "NAME")]
    name: String,
    /// The API server checks the job, admission included, and makes none.
    #[arg(long)]
    dry_run: bool,
    /// Print the job.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

pub(super) async fn run(args: CronJobArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let What::Trigger(args) = args.what;
    let name = args.name.rsplit_once('/').map_or(args.name.as_str(), |(_, name)| name);
    if !is_dns_subdomain(name) {
        return Err(Stop::usage(format!("{name:?} is no name of an AdvancedCronJob")));
    }
    let connection = connection.open().await?;
    let cron = read(&connection, name).await?;
    let (kind, job) = cron_job::triggered(&cron)?;
    let query = if args.dry_run { "?dryRun=All" } else { "" };
    let path = path::in_namespace(kind.group(), kind.version(), &connection.namespace, kind.plural()) + query;
    let made = post(&connection.client, &path, &job).await;
    let made = made.map_err(|error| of_error(&format!("create a {} of {name}", kind.kind()), &error))?;
    let made: Value = serde_json::from_str(&made).map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
    match args.output {
        Some(format) => print_objects(format, &[made], false)?,
        None => {
            let note = if args.dry_run { " (server dry run)" } else { "" };
            print(&format!("{} created{note}\n", reference(&made)))?;
        }
    }
    Ok(Exit::Success)
}

async fn read(connection: &Connection, name: &str) -> Result<AdvancedCronJob, Stop> {
    let path = path::in_namespace(apps::GROUP, "v1beta1", &connection.namespace, "advancedcronjobs");
    let get = kube::core::Request::new(path).get(name, &GetParams::default());
    let get = get.map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
    connection.client.request(get).await.map_err(|error| of_error(&format!("AdvancedCronJob {name}"), &error))
}
