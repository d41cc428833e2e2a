//! Workloads that the user named: reading and changing them. Shared by `rollout` and `set`.

use clap::{
    ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser as _},
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use super::{
    connection::Connection,
    requests::{all_pages, api_for, api_of, patch, reference, resource_of, value},
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error},
        history::{self, Revision},
        rollout::{Holds, OF_OTHERS, Rolls, Write},
        target::{self, Kind, targets_among},
    },
    view::{Format, print, print_objects, report, report_failure},
};
use crate::{
    api::{DEFAULT_NAMESPACE, kinds::Scope, labels},
    k8s::name::Namespace,
    runtime::apply,
};

/// How often a change is judged anew because the object has moved meanwhile.
const ATTEMPTS: usize = 5;

/// Whether anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// It is done.
    #[default]
    None,
    /// The API server checks it as if it were done, admission included, and keeps nothing.
    Server,
    /// Nothing is sent but reads; -o shows the object.
    Client,
}

/// How a change is made and reported.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ChangeArgs {
    /// Change nothing that is kept.
    #[arg(long, value_name = "HOW", value_enum, default_value_t, num_args = 0..=1, require_equals = true,
        default_missing_value = "server")]
    dry_run: DryRun,
    /// Print the objects as they have become.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// What a command does to a workload.
pub(super) struct WorkloadChange {
    /// None: nothing is to be done.
    pub(super) write: Option<Write>,
    /// What it is then, for example `paused`.
    pub(super) words: String,
    /// For standard error.
    pub(super) warning: Option<String>,
}

/// The workloads that are named, or those of one type with a selector.
pub(super) async fn find(
    connection: &Connection,
    arguments: &[String],
    selector: Option<&str>,
) -> Result<Vec<Value>, Stop> {
    let rolls = |kind: &Kind| Rolls::of_kind(kind).is_some();
    let Some(selector) = selector else {
        let targets = targets_among(arguments, &rolls, OF_OTHERS)?;
        if targets.is_empty() {
            return Err(Stop::usage("required resource not specified: want TYPE/NAME, for example cloneset/web"));
        }
        let mut found = Vec::new();
        for target in targets {
            let api = api_for(&connection.client, &connection.namespace, &target.kind);
            let object = api.get(&target.name).await;
            let object = object.map_err(|e| of_error(&format!("{}/{}", target.kind.name(), target.name), &e))?;
            found.push(value(object, &resource_of(&target.kind))?);
        }
        return Ok(found);
    };
    // For its errors: the API server reads the text itself.
    target::selector(selector)?;
    let [type_] = arguments else {
        return Err(Stop::usage("--selector: want one TYPE with it and no names, for example cloneset -l app=web"));
    };
    let Some(kind) = Kind::called(type_).filter(rolls) else {
        return Err(Stop::usage(format!("{type_:?} {OF_OTHERS}")));
    };
    let api = api_for(&connection.client, &connection.namespace, &kind);
    let (what, params) = (format!("list {}", kind.plural), ListParams::default().labels(selector));
    let found = all_pages(&what, params, async |params| api.list(params).await).await?;
    if found.is_empty() {
        report(&match kind.scope {
            Scope::Namespaced => format!("No resources found in {} namespace.", connection.namespace),
            Scope::Cluster => "No resources found".to_owned(),
        });
    }
    found.into_iter().map(|object| value(object, &resource_of(&kind))).collect()
}

/// Where revisions are found.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HistoryPlace {
    /// SidecarSets: the namespace of the installation, which has their revisions.
    #[arg(long, default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE",
        value_parser = NonEmptyStringValueParser::new().try_map(|text| Namespace::parse(&text)))]
    system_namespace: Namespace,
}

/// The revisions of a workload, oldest first.
pub(super) async fn revisions(
    connection: &Connection,
    workload: &Value,
    place: &HistoryPlace,
) -> Result<Vec<Revision>, Stop> {
    let (namespace, labels) = match Holds::of(workload) {
        // Those of other namespaces are anybody's, and name any owner.
        Holds::Sidecars => {
            let of_set = format!("{}={}", labels::SIDECAR_SET_NAME, workload.text("/metadata/name"));
            (&*place.system_namespace, of_set)
        }
        // They have the labels of the template, and those match the selector. What else there is is sorted out later.
        Holds::Template => {
            let labels = workload.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
            let labels = labels.into_iter().flatten();
            let labels: Vec<String> =
                labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
            (workload.text("/metadata/namespace"), labels.join(","))
        }
    };
    let api: Api<ControllerRevision> = Api::namespaced(connection.client.clone(), namespace);
    let params = ListParams::default().labels(&labels);
    let found = all_pages("list controllerrevisions.apps", params, async |params| api.list(params).await).await?;
    Ok(history::of(workload, found.iter().map(|object| json!(object)).collect()))
}

/// Changes each workload as `judge` decides, and reports it. One that fails does not keep the others from being changed.
pub(super) async fn change(
    connection: &Connection,
    workloads: Vec<Value>,
    args: &ChangeArgs,
    judge: impl AsyncFn(&Value) -> Result<WorkloadChange, Stop>,
) -> Result<Exit, Stop> {
    let mut exit = Exit::Success;
    let mut changed = Vec::new();
    for workload in workloads {
        match change_one(connection, workload, args, &judge).await {
            Ok(object) => changed.push(object),
            Err(stop) => exit = exit.max(report_failure(&stop)),
        }
    }
    if let Some(format) = args.output.filter(|_| !changed.is_empty()) {
        print_objects(format, &changed, false)?;
    }
    Ok(exit)
}

async fn change_one(
    connection: &Connection,
    mut object: Value,
    args: &ChangeArgs,
    judge: &impl AsyncFn(&Value) -> Result<WorkloadChange, Stop>,
) -> Result<Value, Stop> {
    let mut attempt = 1;
    let (change, done) = loop {
        let change = judge(&object).await?;
        let Some(write) = &change.write else { break (change, object) };
        if args.dry_run == DryRun::Client {
            let done = write.applied(&object)?;
            break (change, done);
        }
        match patch(&connection.client, &object, write, args.dry_run == DryRun::Server).await {
            Ok((done, warnings)) => {
                for warning in warnings {
                    report(&format!("Warning: {warning}"));
                }
                break (change, done);
            }
            Err(error) => {
                let now = moved(connection, &object, &error).await;
                object = now.filter(|_| attempt < ATTEMPTS).ok_or_else(|| of_error(&reference(&object), &error))?;
                attempt += 1;
            }
        }
    };
    if let Some(warning) = &change.warning {
        report(&format!("Warning: {warning}"));
    }
    if args.output.is_none() {
        let note = match args.dry_run {
            _ if change.write.is_none() => "",
            DryRun::None => "",
            DryRun::Server => " (server dry run)",
            DryRun::Client => " (dry run)",
        };
        print(&format!("{} {}{note}\n", reference(&done), change.words))?;
    }
    Ok(done)
}

/// The present object, if a write was refused because the object has changed.
async fn moved(connection: &Connection, object: &Value, error: &kube::Error) -> Option<Value> {
    // A test of a JSON patch that fails is a 422, as is what admission refuses.
    if !matches!(apply::code(error), Some(409 | 422)) {
        return None;
    }
    let now = api_of(&connection.client, object).get(object.text("/metadata/name")).await.ok()?;
    let now = value(now, &resource_of(&Kind::of(object)?)).ok()?;
    let is_same = ["uid", "generation"].iter().all(|field| now["metadata"][field] == object["metadata"][field]);
    (!is_same).then_some(now)
}
