//! `restart`: a Pod by a ContainerRecreateRequest, a workload, a SidecarSet or a selector by a WorkloadRestart.

use std::{collections::BTreeSet, time::Duration};

use clap::builder::PossibleValuesParser;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs},
    follow::follow,
    requests::{all_pages, create, reference},
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error},
        request::{self, RestartOptions, Workload},
        sidecar_set::has_sidecars,
        target::{self, Target},
    },
    view::{Format, View, print, print_objects, report},
    workloads::DryRun,
};
use crate::{api::crr::RecreateStrategy, k8s::invalid::Invalid};

/// Restart containers in place: of a Pod, of a workload's Pods, of Pods with some labels, or those of a SidecarSet.
///
/// A Pod gets a ContainerRecreateRequest; a workload or a selector a WorkloadRestart, which works through its Pods within
/// --max-unavailable. Of a SidecarSet the containers that it put into Pods of the namespace are restarted, likewise. Pods keep
/// their UID, IP, node and volumes, and their other containers keep running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl kruise restart pod/web-0 --wait                        all regular containers of a Pod
  kubectl kruise restart pod/web-0 -c app -c proxy               two of them
  kubectl kruise restart deployment/web --max-unavailable 10% --wait
  kubectl kruise restart -l app=web --dry-run=server             would admission take it?
  kubectl kruise restart sidecarset/log-agent -A --wait          its containers, in all namespaces
  kubectl kruise restart pod/web-0 -o yaml --dry-run=client      the manifest, for a file

Exit codes: see kubectl kruise --help")]
pub(super) struct RestartArgs {
    /// TYPE/NAME or TYPE NAME..., TYPE being pod, deployment, statefulset, daemonset, replicaset, cloneset,
    /// statefulset.apps.kruise.io, daemonset.apps.kruise.io or sidecarset.
    #[arg(value_name = "TYPE/NAME", required_unless_present = "selector")]
    targets: Vec<String>,
    /// Restart the Pods with these labels, as kubectl takes them: app=web,tier in (a,b),!canary.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "targets")]
    selector: Option<String>,
    /// SidecarSets: in all namespaces, with a WorkloadRestart and its --max-unavailable in each that has such Pods.
    #[arg(short = 'A', long, conflicts_with = "selector")]
    all_namespaces: bool,
    /// Containers to restart, in this order; may be given several times. Default: all regular containers, of a SidecarSet
    /// all of its containers.
    #[arg(short = 'c', long = "containers", alias = "container", value_name = "NAME", value_delimiter = ',')]
    containers: Vec<String>,
    /// Who stops the containers: Runtime (the node's daemon; the default), PodSpec (kubelet, by another spelling of
    /// the same image; needs no daemon) or Auto.
    #[arg(long, value_name = "METHOD", ignore_case = true,
        value_parser = PossibleValuesParser::new(["Runtime", "PodSpec", "Auto"]))]
    method: Option<String>,
    /// Workloads: so many Pods, or so many percent of them, may be unavailable at a time.
    #[arg(long, value_name = "COUNT|PERCENT", value_parser = request::max_unavailable)]
    max_unavailable: Option<String>,
    /// Wait for the end and show the progress.
    #[arg(short, long)]
    wait: bool,
    /// Wait no longer than this, for example 90s or 5m; the restart goes on.
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = positive)]
    timeout: Option<Duration>,
    /// Send nothing that is kept.
    #[arg(long, value_name = "HOW", value_enum, default_value_t, num_args = 0..=1, require_equals = true,
        default_missing_value = "server", hide_possible_values = false)]
    dry_run: DryRun,
    /// Print the objects; progress then goes to standard error.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    #[command(flatten)]
    fields: FieldArgs,
}

/// Flags that have the names of fields.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Fields of the request (kubectl explain crr.spec)")]
struct FieldArgs {
    /// What a failed container means: Fail (the first failure ends the request) or Ignore.
    #[arg(long, value_name = "POLICY", ignore_case = true, value_parser = PossibleValuesParser::new(["Fail", "Ignore"]))]
    failure_policy: Option<String>,
    /// Touch a container only after the one before it has been restarted.
    #[arg(long, alias = "ordered")]
    ordered_recreate: bool,
    /// Stop whatever instance is there, even one that is still starting.
    #[arg(long, alias = "force")]
    force_recreate: bool,
    /// Method PodSpec: a new tag before the image's digest for each restart, so that kubelet never delays one.
    #[arg(long)]
    vary_image_tag: bool,
    /// Seconds for preStop and stop together; 0 kills at once. Default: the Pod's own.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    termination_grace_period_seconds: Option<i64>,
    /// First make the Pod NotReady (readiness gate KruisePodReady), wait so many seconds, then stop.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    unready_grace_period_seconds: Option<i64>,
    /// A new instance has to be ready and to have run longer than this.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..))]
    min_started_seconds: Option<i32>,
    /// End the request after so many seconds, at least 3.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(3..))]
    active_deadline_seconds: Option<i64>,
    /// Delete the request so many seconds after its end. Default: it is kept.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..))]
    ttl_seconds_after_finished: Option<i32>,
}

/// Reads a duration that is longer than nothing.
pub(super) fn positive(text: &str) -> Result<Duration, Invalid> {
    let wanted = || Invalid(format!("{text:?}: want a duration such as 90s or 5m, longer than 0"));
    let duration: SignedDuration = text.parse().map_err(|_| wanted())?;
    Duration::try_from(duration).ok().filter(|d| !d.is_zero()).ok_or_else(wanted)
}

impl RestartArgs {
    /// What to restart: the LabelSelector or the targets.
    fn what(&self) -> Result<(Option<Value>, Vec<Target>), Stop> {
        if self.wait && self.dry_run != DryRun::None {
            return Err(Stop::usage("--wait: a dry run has no end to wait for; leave one of them out"));
        }
        let selector = self.selector.as_deref().map(target::selector).transpose()?;
        let targets = target::targets(&self.targets)?;
        if self.max_unavailable.is_some() && targets.iter().any(Target::is_pod) {
            return Err(Stop::usage("--max-unavailable is for workloads and selectors, not for a Pod"));
        }
        if self.all_namespaces && !targets.iter().all(Target::is_of_cluster) {
            return Err(Stop::usage("--all-namespaces is for SidecarSets; want sidecarset/NAME with it"));
        }
        Ok((selector, targets))
    }

    fn options(&self) -> RestartOptions {
        let fields = &self.fields;
        RestartOptions {
            containers: self.containers.clone(),
            strategy: RecreateStrategy {
                failure_policy: fields.failure_policy.as_deref().and_then(request::failure_policy),
                ordered_recreate: fields.ordered_recreate,
                force_recreate: fields.force_recreate,
                termination_grace_period_seconds: fields.termination_grace_period_seconds,
                unready_grace_period_seconds: fields.unready_grace_period_seconds,
                min_started_seconds: fields.min_started_seconds.unwrap_or_default(),
                recreate_method: self.method.as_deref().and_then(request::method),
                vary_image_tag: fields.vary_image_tag,
            },
            active_deadline_seconds: fields.active_deadline_seconds,
            ttl_seconds_after_finished: fields.ttl_seconds_after_finished,
            max_unavailable: self.max_unavailable.clone(),
        }
    }
}

pub(super) async fn run(args: RestartArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let (selector, targets) = args.what()?;
    let options = args.options();
    let connection = connection.open().await?;
    let mut objects = Vec::new();
    if let Some(selector) = &selector {
        objects.push(request::for_workload(&Workload::Selected(selector), &options));
    }
    for target in &targets {
        if args.all_namespaces {
            for namespace in namespaces_of(&connection, &target.name).await? {
                let mut object = request::for_workload(&Workload::Named(target), &options);
                object["metadata"]["namespace"] = namespace.into();
                objects.push(object);
            }
        } else if target.is_pod() {
            let containers = containers_of(&connection, &target.name, &options).await?;
            objects.push(json!(request::for_pod(&target.name, &containers, &options)));
        } else {
            objects.push(request::for_workload(&Workload::Named(target), &options));
        }
    }
    for object in objects.iter_mut().filter(|object| object.text("/metadata/namespace").is_empty()) {
        object["metadata"]["namespace"] = connection.namespace.as_str().into();
    }
    send(&args, &connection, objects).await
}

/// The containers to restart of a Pod. Without names the Pod has to be read; with names admission judges them.
async fn containers_of(connection: &Connection, pod: &str, options: &RestartOptions) -> Result<Vec<String>, Stop> {
    if !options.containers.is_empty() {
        return Ok(options.containers.clone());
    }
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let found = api.get(pod).await.map_err(|error| {
        let mut stop = of_error(&format!("Pod {pod}"), &error);
        if stop.exit == Exit::Refused {
            stop.message += "; name the containers with -c, then the Pod need not be read";
        }
        stop
    })?;
    Ok(request::regular_containers(&json!(found)))
}

/// The namespaces with Pods that have containers of a SidecarSet.
async fn namespaces_of(connection: &Connection, set: &str) -> Result<BTreeSet<String>, Stop> {
    let api: Api<Pod> = Api::all(connection.client.clone());
    let pods = all_pages("pods", ListParams::default(), async |params| api.list_metadata(params).await).await?;
    let with_sidecars = pods.iter().map(|pod| json!(pod)).filter(|pod| has_sidecars(set, pod));
    let found: BTreeSet<String> = with_sidecars.map(|pod| pod.text("/metadata/namespace").to_owned()).collect();
    if found.is_empty() {
        return Err(Stop::new(Exit::NotFound, format!("no Pod has containers of a SidecarSet {set:?}")));
    }
    Ok(found)
}

async fn send(args: &RestartArgs, connection: &Connection, objects: Vec<Value>) -> Result<Exit, Stop> {
    if args.dry_run == DryRun::Client {
        match args.output {
            Some(format) => print_objects(format, &objects, false)?,
            None => {
                for object in &objects {
                    print(&format!("{} {} would be created (dry run)\n", object.text("/kind"), prefix(object)))?;
                }
            }
        }
        return Ok(Exit::Success);
    }
    let dry_run = args.dry_run == DryRun::Server;
    if objects.len() > 1 && !dry_run {
        // All or none: the second is not refused after the first has begun.
        for object in &objects {
            create(connection, object, true).await.map_err(|error| refused(object, &error))?;
        }
    }
    let mut created = Vec::new();
    for object in &objects {
        let (object, warnings) = create(connection, object, dry_run).await.map_err(|error| refused(object, &error))?;
        for warning in warnings {
            report(&format!("Warning: {warning}"));
        }
        if args.output.is_none() {
            let place = match args.all_namespaces {
                true => format!(" in namespace {}", object.text("/metadata/namespace")),
                false => String::new(),
            };
            let note = if dry_run { " (server dry run)" } else { "" };
            print(&format!("{} created{place}{note}\n", reference(&object)))?;
        }
        created.push(object);
    }
    if let Some(selector) = args.selector.as_ref().filter(|_| !args.wait)
        && has_no_pod(connection, selector).await
    {
        report(&format!("Warning: no Pod in namespace {} matches {selector}", connection.namespace));
    }
    let mut exit = Exit::Success;
    if args.wait {
        let mut view = View::new(args.output.is_some());
        (created, exit) = follow(&connection.client, created, args.timeout, &mut view).await?;
    }
    if let Some(format) = args.output {
        print_objects(format, &created, false)?;
    }
    Ok(exit)
}

/// Whether it is known that a selector matches nothing. Who restarts need not be able to list Pods.
async fn has_no_pod(connection: &Connection, selector: &str) -> bool {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let found = api.list_metadata(&ListParams::default().labels(selector).limit(1)).await;
    found.is_ok_and(|found| found.items.is_empty() && found.metadata.continue_.is_none_or(|token| token.is_empty()))
}

fn prefix(object: &Value) -> &str {
    object.text("/metadata/generateName")
}

fn refused(object: &Value, error: &kube::Error) -> Stop {
    of_error(&format!("{} {}", object.text("/kind"), prefix(object)), error)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::runtime::fake_api;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        restart: RestartArgs,
    }

    #[tokio::test]
    async fn a_selector_that_matches_nothing_is_told_where_that_is_known() {
        let pod = json!({ "metadata": { "name": "web" } });
        for (code, items, expected) in [(200, json!([]), true), (200, json!([pod]), false), (403, json!([]), false)] {
            let client = fake_api::answering(move |parts, _| {
                let query = parts.uri.query().unwrap_or_default();
                assert!(query.contains("limit=1&") || query.ends_with("limit=1"), "{query}");
                (code, json!({ "metadata": {}, "items": items, "code": code }))
            });
            let connection = Connection { client, namespace: "shop".into() };
            assert_eq!(has_no_pod(&connection, "app=web").await, expected, "{code}");
        }
    }

    #[test]
    fn flags_that_do_not_go_together_are_a_usage_error() {
        let said = |line: &str| {
            let parsed = Only::parse_from(format!("restart {line}").split_whitespace());
            parsed.restart.what().map_err(|stop| (stop.exit, stop.message))
        };
        for (line, words) in [
            ("pod/a --wait --dry-run", "--wait: a dry run has no end"),
            ("pod/a --max-unavailable 1", "--max-unavailable is for workloads"),
            ("-l a", ""),
            ("deploy/a --max-unavailable 1 --dry-run=server", ""),
            ("sidecarset/a -A --max-unavailable 1", ""),
            ("sidecarset/a deploy/b -A", "--all-namespaces is for SidecarSets"),
        ] {
            match said(line) {
                Ok(_) => assert_eq!(words, "", "{line}"),
                Err((exit, message)) => assert!(exit == Exit::Usage && message.starts_with(words), "{line}: {message}"),
            }
        }
    }

    #[test]
    fn a_timeout_is_a_duration_longer_than_nothing() {
        assert_eq!(positive("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(positive("1m30s"), Ok(Duration::from_secs(90)));
        for bad in ["", "0s", "-1s", "90", "soon"] {
            assert!(positive(bad).unwrap_err().0.contains("want a duration such as 90s or 5m"), "{bad}");
        }
    }
}
