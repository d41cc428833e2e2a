//! `spread`: the subsets of a WorkloadSpread or a UnitedDeployment, and how they stand.

use clap::builder::{NonEmptyStringValueParser, TypedValueParser as _};
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
    api::{
        DEFAULT_NAMESPACE,
        apps::{united_deployment::UnitedDeployment, workload_spread::WorkloadSpread},
    },
    domain::kinds::workload_spread::spec::TargetKind,
    k8s::{
        name::{Namespace, is_dns_subdomain},
        path,
    },
    runtime::{
        apply::code,
        kruise_configuration as configuration,
        object::{self, Found},
    },
};

/// Show the subsets of a WorkloadSpread or a UnitedDeployment: how many Pods are wanted in each, how many are there, and why
/// others are missing.
#[derive(Debug, clap::Args)]
pub(super) struct SpreadArgs {
    /// NAME of a WorkloadSpread, or else of a UnitedDeployment; ws/NAME or ud/NAME where both have one.
    #[arg(value_name = "NAME")]
    name: String,
    /// Kinds by configuration: the namespace of the installation, which has the ConfigMap that names them.
    #[arg(long, default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE",
        value_parser = NonEmptyStringValueParser::new().try_map(|text| Namespace::parse(&text)))]
    system_namespace: Namespace,
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
            let target = target(&connection, &spread, &args.system_namespace).await?;
            let target = target.as_ref().map(|(target, configured)| (target, configured.as_deref()));
            let pods = pods(&connection).await?;
            let rows = of_spread(&spread, target, &pods);
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

/// The target, and the path to its number of Pods if the ConfigMap gives one for its kind. None: what says the number is not
/// there, or may not be read.
async fn target(
    connection: &Connection,
    spread: &WorkloadSpread,
    system: &str,
) -> Result<Option<(Value, Option<String>)>, Stop> {
    let target = &spread.spec.target_ref;
    let names = (target.api_version.as_str(), target.kind.as_str(), target.name.as_str());
    let read = object::read(&connection.client, &connection.namespace, names).await;
    let read = read.map_err(|error| of_error(&format!("{} {}", target.kind, target.name), &error))?;
    let Found::Object(object) = read else { return Ok(None) };
    let has_paths = spread.spec.target_filter.as_ref().is_some_and(|filter| !filter.replicas_path_list.is_empty());
    if has_paths || TargetKind::of(target.group(), &target.kind) != TargetKind::Custom {
        return Ok(Some((object, None)));
    }
    let list = match configuration::text(&connection.client, system, configuration::SPREAD_TARGETS).await {
        Ok(list) => list.unwrap_or_default(),
        // It cannot be read as it is written: the status of the WorkloadSpread says so.
        Err(kube::Error::SerdeError(_)) => return Ok(None),
        Err(error) if code(&error) == Some(403) => return Ok(None),
        Err(error) => return Err(of_error(&format!("ConfigMap {}", configuration::NAME), &error)),
    };
    let is_named = configuration::names_kind(&list, target.group(), &target.kind);
    Ok(is_named.then(|| (object, configuration::replicas_path(&list, target.group(), &target.kind))))
}

async fn pods(connection: &Connection) -> Result<Vec<Value>, Stop> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let pods = all_pages("pods", ListParams::default(), async |params| api.list(params).await).await?;
    Ok(pods.iter().map(|pod| json!(pod)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fake_api;

    #[tokio::test]
    async fn the_number_of_a_kind_by_configuration_is_known_where_the_config_map_may_be_read() {
        let list = |kind: &str| {
            json!({"workloads": [{"Group": "example.com", "Kind": kind, "replicasPath": "spec.size"}]}).to_string()
        };
        let map = |text: String| {
            let data = json!({configuration::SPREAD_TARGETS: text});
            json!({"metadata": {"name": "kruise-configuration"}, "data": data})
        };
        let failure = |code: u16| json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"});
        for (answer, paths, found) in [
            ((200, map(list("Database"))), json!([]), Some(Some("spec.size".to_owned()))),
            ((200, map(list("Other"))), json!([]), None),
            ((200, map("{".to_owned())), json!([]), None),
            ((403, failure(403)), json!([]), None),
            ((404, failure(404)), json!([]), None),
            ((403, failure(403)), json!(["spec.size"]), Some(None)),
        ] {
            let client = fake_api::answering(move |parts, _| match parts.uri.path() {
                "/apis/example.com/v1" => {
                    let resource = json!({"name": "databases", "singularName": "", "namespaced": true,
                        "kind": "Database", "verbs": ["get"]});
                    (200, json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [resource]}))
                }
                "/apis/example.com/v1/namespaces/shop/databases/db" => (200, json!({"metadata": {"name": "db"}})),
                "/api/v1/namespaces/kruise/configmaps/kruise-configuration" => answer.clone(),
                path => panic!("{path}"),
            });
            let spread: WorkloadSpread = serde_json::from_value(json!({"metadata": {"name": "ws"}, "spec": {
                "targetRef": {"apiVersion": "example.com/v1", "kind": "Database", "name": "db"},
                "targetFilter": {"replicasPathList": paths}, "subsets": [{"name": "a"}]}}))
            .unwrap();
            let connection = Connection { client, namespace: "shop".into() };
            let target = target(&connection, &spread, "kruise").await.unwrap();
            assert_eq!(target.map(|(_, path)| path), found, "{paths}");
        }
    }
}
