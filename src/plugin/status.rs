//! `status`: requests with their progress, and following those that are under way.

use std::time::Duration;

use serde_json::Value;

use super::{
    connection::ConnectionArgs,
    follow::follow,
    requests::{find, list},
    restart::positive,
    rules::{
        JsonPointer,
        exit::{Exit, Stop},
        progress::{Outcome, STATUS_HEADER, Watched, status_row},
        request::{owner, without_owned_requests},
        table::columns,
        target,
    },
    view::{Format, View, print, print_objects, report},
};
use crate::runtime::clock;

/// What to say where WorkloadRestarts are not among the requests.
const WITHOUT_RESTARTS: &str =
    "Warning: no permission to list workloadrestarts.kruise.rs; the requests that they have made are shown one by one";

/// Show requests and how far they are: all of the namespace, or those that are named.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// NAME, crr/NAME, wr/NAME, or pod/NAME for the requests of a Pod. Default: all of the namespace.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Requests of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["names"])]
    all_namespaces: bool,
    /// Requests with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
    /// Also the requests that a WorkloadRestart has made.
    #[arg(long)]
    owned: bool,
    /// Follow those that have not ended until they have, and exit as restart --wait does.
    #[arg(short, long)]
    wait: bool,
    /// Wait no longer than this, for example 90s or 5m.
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = positive)]
    timeout: Option<Duration>,
    /// Print the objects; progress then goes to standard error.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

pub(super) async fn run(args: StatusArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let subjects = target::subjects(&args.names)?;
    let connection = connection.open().await?;
    let mut objects = match subjects.is_empty() {
        true => {
            let listed = list(&connection, args.all_namespaces, args.selector.as_deref()).await?;
            if !listed.has_restarts {
                report(WITHOUT_RESTARTS);
            }
            if args.owned || !listed.has_restarts { listed.objects } else { without_owned_requests(listed.objects) }
        }
        false => find(&connection, &subjects).await?,
    };
    // The parts of one restart that is named are what its status is made of.
    if !args.wait && objects.iter().any(|object| object.text("/kind") == "WorkloadRestart") && !subjects.is_empty() {
        let named: Vec<String> = objects.iter().map(|object| object.text("/metadata/uid").to_owned()).collect();
        let all = list(&connection, false, None).await?.objects;
        objects.extend(all.into_iter().filter(|o| owner(o).is_some_and(|uid| named.iter().any(|n| n == uid))));
    }
    let mut exit = Exit::Success;
    if args.wait {
        let is_open = |object: &Value| Watched::read(object.clone()).is_ok_and(|seen| seen.outcome() == Outcome::Open);
        if subjects.is_empty() {
            objects.retain(is_open);
        }
        let mut view = View::new(args.output.is_some());
        (objects, exit) = follow(&connection.client, objects, args.timeout, &mut view).await?;
    }
    match args.output {
        Some(format) => print_objects(format, &objects, subjects.len() != 1)?,
        None if args.wait => {}
        None if objects.is_empty() && args.all_namespaces => report("No requests found."),
        None if objects.is_empty() => report(&format!("No requests found in namespace {}.", connection.namespace)),
        None => print(&table(&objects, args.all_namespaces))?,
    }
    Ok(exit)
}

fn table(objects: &[Value], with_namespace: bool) -> String {
    let now = clock::now();
    let row = |object: &Value| {
        let mut row = status_row(object, now);
        if with_namespace {
            row.insert(0, object.text("/metadata/namespace").to_owned());
        }
        row
    };
    let namespace = with_namespace.then_some("NAMESPACE");
    let header: Vec<&str> = namespace.into_iter().chain(STATUS_HEADER.iter().copied()).collect();
    columns(&header, &objects.iter().map(row).collect::<Vec<_>>())
}
