//! `describe`: the steps of a request and their times.

use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs},
    requests::find,
    rules::{
        JsonPointer,
        exit::{Exit, Stop},
        foreign, target,
        timeline::describe,
    },
    view::{print, report},
};
use crate::runtime::clock;

/// Show what happened in a request and when, with the time between the steps, and its events.
#[derive(Debug, clap::Args)]
pub(super) struct DescribeArgs {
    /// NAME, crr/NAME, wr/NAME, or pod/NAME for the requests of a Pod.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

pub(super) async fn run(args: DescribeArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    if let Some(instead) = foreign::instead_of_describe(&args.names) {
        return Err(Stop::usage(instead));
    }
    let subjects = target::subjects(&args.names)?;
    let connection = connection.open().await?;
    let mut texts = Vec::new();
    for object in find(&connection, &subjects).await? {
        let events = events(&connection, &object).await;
        texts.push(describe(&object, &events, clock::now()));
    }
    print(&texts.join("\n---\n\n"))?;
    Ok(Exit::Success)
}

/// Events about the request itself. Without the right to read them the rest is still worth seeing.
async fn events(connection: &Connection, object: &Value) -> Vec<Value> {
    let api: Api<Event> = Api::namespaced(connection.client.clone(), object.text("/metadata/namespace"));
    let about = format!("involvedObject.uid={}", object.text("/metadata/uid"));
    match api.list(&ListParams::default().fields(&about)).await {
        Ok(list) => list.items.into_iter().map(|event| json!(event)).collect(),
        Err(error) => {
            report(&format!("Warning: events: {error}"));
            Vec::new()
        }
    }
}
