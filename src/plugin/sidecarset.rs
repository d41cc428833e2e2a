//! `sidecarset`: the Pods of a SidecarSet, and how they stand.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Resource,
    api::{GetParams, ListParams},
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs},
    requests::all_pages,
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error},
        is_active,
        sidecar_set::{Row, report, row},
    },
    view::{self, print},
};
use crate::{
    api::apps::sidecar_set::SidecarSet,
    domain::kinds::sidecar_set::{
        matching::{self, Match},
        spec::Spec,
    },
    k8s::{name::is_dns_subdomain, node::NodeView, path, pod::Labels, selector},
};

/// Show which Pods a SidecarSet selects, which of them have its containers, which are up to date, and why others are not.
#[derive(Debug, clap::Args)]
pub(super) struct SidecarSetArgs {
    /// The SidecarSet.
    #[arg(value_name = "NAME")]
    name: String,
    /// Also list the Pods that are up to date.
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(args: SidecarSetArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let name = args.name.split_once('/').map_or(args.name.as_str(), |(_, name)| name);
    if !is_dns_subdomain(name) {
        return Err(Stop::usage(format!("{name:?} is no name of a SidecarSet")));
    }
    let connection = connection.open().await?;
    let set = read(&connection, name).await?;
    let bad = |error: String| Stop::new(Exit::Failed, format!("SidecarSet {name}: {error}"));
    let spec = Spec::of(&set).map_err(|error| bad(error.to_string()))?;
    let labels = serde_json::from_value(set["spec"]["selector"].clone()).map_err(|error| bad(error.to_string()))?;
    let api: Api<Namespace> = Api::all(connection.client.clone());
    let namespaces = all_pages("namespaces", ListParams::default(), async |params| api.list(params).await).await?;
    let namespaces: Vec<(String, Labels)> =
        namespaces.iter().map(|namespace| of_namespace(&json!(namespace))).collect();
    let api: Api<Pod> = Api::all(connection.client.clone());
    let selected = ListParams::default().labels(&selector::text_of(&labels));
    let pods = all_pages("pods", selected, async |params| api.list(params).await).await?;
    let kubelets = kubelets(&connection, &spec).await?;
    let is_meant = |pod: &Value| {
        let own = Labels::deserialize(&pod["metadata"]["labels"]).unwrap_or_default();
        let name = pod.text("/metadata/namespace");
        let labels = namespaces.iter().find(|(other, _)| other == name).map(|(_, labels)| labels);
        spec.aim.fits(matching::Namespace { name, labels }, &own) == Match::Yes
    };
    let pods = pods.into_iter().map(|pod| json!(pod)).filter(|pod| is_active(pod) && is_meant(pod));
    let kubelet = |pod: &Value| kubelets.get(pod.text("/spec/nodeName")).copied();
    let rows: Vec<Row> = pods.map(|pod| row(&set, &spec, &pod, kubelet(&pod))).collect();
    print(&report(&set, rows, args.all))?;
    Ok(Exit::Success)
}

/// The minor versions of kubelets by node, where they matter.
async fn kubelets(connection: &Connection, spec: &Spec) -> Result<BTreeMap<String, u32>, Stop> {
    if !spec.sidecars.iter().any(|sidecar| sidecar.is_native) {
        return Ok(BTreeMap::new());
    }
    let api: Api<NodeView> = Api::all(connection.client.clone());
    match all_pages("nodes", ListParams::default(), async |params| api.list(params).await).await {
        Ok(nodes) => Ok(nodes.iter().filter_map(|node| Some((node.name().to_owned(), node.kubelet_minor?))).collect()),
        // All the rest can be said without them.
        Err(stop) if stop.exit == Exit::Refused => {
            view::report(&format!("warning: the versions of kubelets are not known: {stop}"));
            Ok(BTreeMap::new())
        }
        Err(stop) => Err(stop),
    }
}

fn of_namespace(namespace: &Value) -> (String, Labels) {
    let labels = Labels::deserialize(&namespace["metadata"]["labels"]).unwrap_or_default();
    (namespace.text("/metadata/name").to_owned(), labels)
}

async fn read(connection: &Connection, name: &str) -> Result<Value, Stop> {
    let path = path::of_cluster(&SidecarSet::group(&()), &SidecarSet::version(&()), &SidecarSet::plural(&()));
    let get = kube::core::Request::new(path).get(name, &GetParams::default());
    let get = get.map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
    connection.client.request(get).await.map_err(|error| of_error(&format!("SidecarSet {name}"), &error))
}
