//! `spread`: the subsets of a WorkloadSpread or a UnitedDeployment, and how they stand.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource,
    api::{GetParams, ListParams},
};
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs},
    requests::all_pages,
    rules::{
        exit::{Exit, Stop, of_error},
        spread::{of_spread, of_united, report},
    },
    view::print,
};
use crate::{
    api::apps::{united_deployment::UnitedDeployment, workload_spread::WorkloadSpread},
    k8s::{name::is_dns_subdomain, path},
    runtime::object::{self, Found},
};

/// Show the subsets of a WorkloadSpread or a UnitedDeployment: how many Pods are wanted in each, how many are there, and why
/// others are missing.
#[derive(Debug, clap::Args)]
pub(super) struct SpreadArgs {
    /// NAME of a WorkloadSpread, or else of a UnitedDeployment; ws/NAME or ud/NAME where both have one.
    #[arg(value_name = "NAME")]
    name: String,
}

/// The kind that a prefix names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Spread,
    United,
}

pub(super) async fn run(args: SpreadArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let (kind, name) = parse(&args.name)?;
    let connection = connection.open().await?;
    let spread = match kind {
        Some(Kind::United) => None,
        _ => read::<WorkloadSpread>(&connection, name).await?,
    };
    let report = match spread {
        Some(spread) => {
            let target = target(&connection, &spread).await?;
            let pods = pods(&connection).await?;
            let rows = of_spread(&spread, target.as_ref(), &pods);
            let rows = rows.map_err(|why| Stop::new(Exit::Failed, format!("WorkloadSpread {name}: {why}")))?;
            report(&json!(spread), rows)
        }
        None if kind == Some(Kind::Spread) => return Err(missing("WorkloadSpread", name)),
        None => match read::<UnitedDeployment>(&connection, name).await? {
            Some(united) => {
                let pods = pods(&connection).await?;
                report(&json!(united), of_united(&united, &pods))
            }
            None if kind.is_none() => return Err(missing("WorkloadSpread or UnitedDeployment", name)),
            None => return Err(missing("UnitedDeployment", name)),
        },
    };
    print(&report)?;
    Ok(Exit::Success)
}

fn parse(text: &str) -> Result<(Option<Kind>, &str), Stop> {
    let (kind, name) = match text.split_once('/') {
        None => (None, text),
        Some(("ws" | "workloadspread" | "workloadspreads" | "workloadspreads.apps.kruise.io", name)) => {
            (Some(Kind::Spread), name)
        }
        Some(("ud" | "uniteddeployment" | "uniteddeployments" | "uniteddeployments.apps.kruise.io", name)) => {
            (Some(Kind::United), name)
        }
        Some((other, _)) => return Err(Stop::usage(format!("{other:?} is not allowed; want ws/NAME or ud/NAME"))),
    };
    if !is_dns_subdomain(name) {
        return Err(Stop::usage(format!("{name:?} is no name of a WorkloadSpread or UnitedDeployment")));
    }
    Ok((kind, name))
}

fn missing(kind: &str, name: &str) -> Stop {
    Stop::new(Exit::NotFound, format!("there is no {kind} {name:?} in this namespace"))
}

/// None: it is not there, or the kind is not.
async fn read<K>(connection: &Connection, name: &str) -> Result<Option<K>, Stop>
where
    K: Resource<DynamicType = ()> + serde::de::DeserializeOwned,
{
    let path = path::in_namespace(&K::group(&()), &K::version(&()), &connection.namespace, &K::plural(&()));
    let get = kube::core::Request::new(path).get(name, &GetParams::default());
    let get = get.map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
    match connection.client.request(get).await {
        Ok(found) => Ok(Some(found)),
        Err(error) => match of_error(&format!("{} {name}", K::kind(&())), &error) {
            stop if stop.exit == Exit::NotFound => Ok(None),
            stop => Err(stop),
        },
    }
}

/// The target. None: it is not there, or may not be read.
async fn target(connection: &Connection, spread: &WorkloadSpread) -> Result<Option<Value>, Stop> {
    let target = &spread.spec.target_ref;
    let names = (target.api_version.as_str(), target.kind.as_str(), target.name.as_str());
    let read = object::read(&connection.client, &connection.namespace, names).await;
    let read = read.map_err(|error| of_error(&format!("{} {}", target.kind, target.name), &error))?;
    Ok(match read {
        Found::Object(object) => Some(object),
        Found::Missing | Found::Forbidden(..) | Found::Impossible => None,
    })
}

async fn pods(connection: &Connection) -> Result<Vec<Value>, Stop> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let pods = all_pages("pods", ListParams::default(), async |params| api.list(params).await).await?;
    Ok(pods.iter().map(|pod| json!(pod)).collect())
}
