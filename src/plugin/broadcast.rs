//! `broadcast`: a command once on each node, by a BroadcastJob, with its exit codes.

use std::{collections::HashSet, time::Duration};

use clap::builder::PossibleValuesParser;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    connection::{Connection, ConnectionArgs},
    follow::{FRAME, refused},
    requests::{all_pages, create, reference, resource, value},
    restart::positive,
    rules::{
        JsonPointer,
        broadcast::{Broadcast, BroadcastOptions, has_no_node, job, label, outcome},
        exit::{Exit, Stop, of_error, with_sources},
        outcome::{Line, Outcome},
        progress::Stopwatch,
        request,
        table::span,
    },
    view::{Format, View, print, print_objects, report},
    workloads::DryRun,
};
use crate::{
    api::{apps::strategies::BroadcastFailure, labels},
    k8s::name::is_dns_label,
    runtime::clock,
};

/// How long a job is kept after its end, where the user does not say.
const TTL: &str = "1h";
const FAILURE_POLICIES: [&str; 2] = [BroadcastFailure::Continue.as_str(), BroadcastFailure::FailFast.as_str()];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// Run a command once on each node, by a BroadcastJob, and show how it ends on each of them.
///
/// It waits for the end and exits with 0 if the command did so on all nodes. The job and its Pods, with their logs, are kept for
/// --ttl.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl kruise broadcast busybox -- df -h                                      on every node without taints
  kubectl kruise broadcast busybox --host --all-nodes -- chroot /host crictl rmi --prune
  kubectl kruise broadcast busybox --node-selector disk=ssd --parallelism 10% -- sh -c 'sleep 5'
  kubectl kruise broadcast busybox --dry-run=client -o yaml -- true              the manifest, for a file
  kubectl logs -l broadcastjob-name=NAME --prefix --tail=-1                      what it has printed

Exit codes: see kubectl kruise --help")]
pub(super) struct BroadcastArgs {
    /// The image.
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The command and its arguments. Default: those of the image.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Always, IfNotPresent or Never.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", ignore_case = true,
        value_parser = PossibleValuesParser::new(PULL_POLICIES))]
    image_pull_policy: String,
    /// Name of the BroadcastJob. Default: broadcast- and five characters.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only nodes with these labels; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    node_selector: Vec<(String, String)>,
    /// Also nodes that are tainted or cordoned.
    #[arg(long)]
    all_nodes: bool,
    /// As an administrator of the node: privileged, in its namespaces of processes and network, with its file system at /host.
    #[arg(long)]
    host: bool,
    /// So many nodes, or so many percent of them, at a time. Default: all.
    #[arg(long, value_name = "COUNT|PERCENT", value_parser = request::max_unavailable)]
    parallelism: Option<String>,
    /// When the command fails on a node: Continue with the others, or FailFast and stop them.
    #[arg(long, value_name = "POLICY", default_value = FAILURE_POLICIES[0], ignore_case = true,
        value_parser = PossibleValuesParser::new(FAILURE_POLICIES))]
    failure_policy: String,
    /// Stop it on all nodes where it has not ended after this time, for example 10m.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    deadline: Option<Duration>,
    /// Delete the job so long after its end.
    #[arg(long, value_name = "DURATION", default_value = TTL, value_parser = positive)]
    ttl: Duration,
    /// Do not wait for the end.
    #[arg(long)]
    detach: bool,
    /// Wait no longer than this, for example 90s or 5m; the job goes on.
    #[arg(long, value_name = "DURATION", conflicts_with = "detach", value_parser = positive)]
    timeout: Option<Duration>,
    /// Send nothing that is kept.
    #[arg(long, value_name = "HOW", value_enum, default_value_t, num_args = 0..=1, require_equals = true,
        default_missing_value = "server", hide_possible_values = false)]
    dry_run: DryRun,
    /// Print the job; progress then goes to standard error.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

impl BroadcastArgs {
    fn options(&self) -> Result<BroadcastOptions, Stop> {
        if let Some(name) = self.name.as_deref().filter(|name| !is_dns_label(name)) {
            return Err(Stop::usage(format!("--name: {name:?} is no name of a BroadcastJob")));
        }
        let seconds = |time: Duration| i64::try_from(time.as_secs().max(1)).unwrap_or(i64::MAX);
        let one_of = |all: &[&str], typed: &str| {
            all.iter()
                .find(|one| one.eq_ignore_ascii_case(typed))
                .map_or_else(|| typed.to_owned(), |one| (*one).to_owned())
        };
        Ok(BroadcastOptions {
            name: self.name.clone(),
            image: self.image.clone(),
            pull_policy: one_of(&PULL_POLICIES, &self.image_pull_policy),
            command: self.command.clone(),
            node_selector: self.node_selector.iter().cloned().collect(),
            tolerates_all: self.all_nodes,
            of_host: self.host,
            parallelism: self.parallelism.clone(),
            failure_policy: one_of(&FAILURE_POLICIES, &self.failure_policy),
            deadline: self.deadline.map(seconds),
            ttl: Some(seconds(self.ttl).min(i32::MAX.into())),
        })
    }
}

pub(super) async fn run(args: BroadcastArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let options = args.options()?;
    let connection = connection.open().await?;
    let object = job(&connection.namespace, &options);
    if args.dry_run == DryRun::Client {
        match args.output {
            Some(format) => print_objects(format, &[object], false)?,
            None => print("BroadcastJob would be created (dry run)\n")?,
        }
        return Ok(Exit::Success);
    }
    let dry_run = args.dry_run == DryRun::Server;
    let made = create(&connection, &object, dry_run).await;
    let (mut made, warnings) = made.map_err(|error| of_error("create a BroadcastJob", &error))?;
    for warning in warnings {
        report(&format!("Warning: {warning}"));
    }
    if args.output.is_none() {
        let note = if dry_run { " (server dry run)" } else { "" };
        print(&format!("{} created{note}\n", reference(&made)))?;
    }
    let mut exit = Exit::Success;
    if !dry_run && !args.detach {
        let view = View::new(args.output.is_some());
        let mut followed = Followed::new(&connection, made, view);
        exit = followed.until_its_end(args.timeout).await?;
        made = followed.job;
    }
    if let Some(format) = args.output {
        print_objects(format, &[made], false)?;
    }
    Ok(exit)
}

/// How waiting came to its end.
enum End {
    Over(Outcome),
    Gone,
    TimedOut,
    Interrupted,
}

/// A job and its Pods while they are waited for.
struct Followed<'a> {
    connection: &'a Connection,
    job: Value,
    broadcast: Broadcast,
    view: View,
    watch: Stopwatch,
    /// The connection was lost.
    is_lost: bool,
    /// It was said that no node fits.
    has_warned: bool,
}

impl<'a> Followed<'a> {
    fn new(connection: &'a Connection, job: Value, view: View) -> Self {
        let watch = Stopwatch::new(clock::now());
        Self { connection, job, broadcast: Broadcast::default(), view, watch, is_lost: false, has_warned: false }
    }

    fn pods(&self) -> (Api<DynamicObject>, String) {
        let (client, kind) = (self.connection.client.clone(), ApiResource::erase::<Pod>(&()));
        let api = Api::namespaced_with(client, &self.connection.namespace, &kind);
        (api, format!("{}={}", labels::BROADCAST_JOB_UID, self.job.text("/metadata/uid")))
    }

    async fn until_its_end(&mut self, timeout: Option<Duration>) -> Result<Exit, Stop> {
        // Before anything is shown: whoever sees a line may interrupt.
        let handler = signal(SignalKind::interrupt());
        let mut interrupts = handler.map_err(|error| Stop::new(Exit::Failed, format!("signal handler: {error}")))?;
        let (client, namespace) = (self.connection.client.clone(), &self.connection.namespace);
        let kind = resource("BroadcastJob");
        let jobs: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
        let mut jobs = watcher::watch_object(jobs, self.job.text("/metadata/name")).default_backoff().boxed();
        let (pods, selector) = self.pods();
        let mut pods = watcher::watcher(pods, watcher::Config::default().labels(&selector)).default_backoff().boxed();
        let mut listed = HashSet::new();
        let mut frames = tokio::time::interval(FRAME);
        let time_up = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_up);
        let end = loop {
            self.show()?;
            tokio::select! {
                Some(event) = jobs.next() => match event {
                    Ok(object) => {
                        self.found_again()?;
                        let object = object.map(|object| value(object, &kind)).transpose()?;
                        let mine = object.filter(|o| o.text("/metadata/uid") == self.job.text("/metadata/uid"));
                        let Some(object) = mine else { break End::Gone };
                        self.job = object;
                        let outcome = outcome(&self.job);
                        if outcome != Outcome::Open {
                            break End::Over(outcome);
                        }
                    }
                    Err(error) => self.lost(error)?,
                },
                Some(event) = pods.next() => match event {
                    Ok(event) => {
                        self.found_again()?;
                        self.take(event, &mut listed);
                    }
                    Err(error) => self.lost(error)?,
                },
                _ = frames.tick(), if self.view.is_live() => {}
                () = &mut time_up => break End::TimedOut,
                _ = interrupts.recv() => break End::Interrupted,
            }
        };
        self.conclude(end).await
    }

    fn take(&mut self, event: watcher::Event<DynamicObject>, listed: &mut HashSet<String>) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => {
                listed.extend(pod.metadata.uid.clone());
                self.broadcast.set(&json!(pod));
            }
            watcher::Event::InitDone => self.broadcast.keep(listed),
            watcher::Event::Apply(pod) => self.broadcast.set(&json!(pod)),
            watcher::Event::Delete(pod) => self.broadcast.remove(&json!(pod)),
        }
    }

    fn found_again(&mut self) -> Result<(), Stop> {
        if std::mem::take(&mut self.is_lost) { self.view.line("connected again") } else { Ok(()) }
    }

    fn lost(&mut self, error: watcher::Error) -> Result<(), Stop> {
        let error = refused(error)?;
        if std::mem::replace(&mut self.is_lost, true) {
            return Ok(());
        }
        self.view.line(&format!("connection lost, trying again: {}", with_sources(&error)))
    }

    fn lines(&mut self) -> Vec<(Line, Duration)> {
        let now = clock::now();
        // Written to a file, each node has its place; the counts would be a line for each of them.
        let lines = if self.view.is_live() { self.broadcast.picture(&self.job) } else { self.broadcast.lines() };
        lines.into_iter().map(|line| (line.clone(), self.watch.time(&line, now))).collect()
    }

    fn show(&mut self) -> Result<(), Stop> {
        if has_no_node(&self.job) && !std::mem::replace(&mut self.has_warned, true) {
            let why = "no node fits: look at the labels, taints and free room of the nodes; it waits for one that does";
            self.view.line(why)?;
        }
        let lines = self.lines();
        self.view.update(&lines)
    }

    /// The last picture, and the last word.
    async fn conclude(&mut self, end: End) -> Result<Exit, Stop> {
        if matches!(end, End::Over(_)) {
            // The end of the job may be here before that of its last Pod.
            let (api, selector) = self.pods();
            let params = ListParams::default().labels(&selector);
            let pods = all_pages("pods", params, async |params| api.list(params).await).await?;
            self.broadcast.keep(&pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect());
            pods.iter().for_each(|pod| self.broadcast.set(&json!(pod)));
        }
        let elapsed = span(self.watch.elapsed(clock::now()));
        let lines = self.lines();
        self.view.finish(&lines)?;
        for line in self.broadcast.summary() {
            self.view.line(&line)?;
        }
        let (reference, name) = (reference(&self.job), self.job.text("/metadata/name"));
        let goes_on = format!("it goes on; kubectl delete bcj {name} -n {} stops it", self.connection.namespace);
        let (exit, text) = match end {
            End::Over(Outcome::Succeeded | Outcome::Open) => (Exit::Success, format!("succeeded in {elapsed}")),
            End::Over(Outcome::Failed(why) | Outcome::Nothing(why)) => {
                (Exit::Failed, format!("failed after {elapsed}: {why}"))
            }
            End::Gone => (Exit::Failed, format!("was deleted after {elapsed}")),
            End::TimedOut => (Exit::TimedOut, format!("has not ended after {elapsed}: {goes_on}")),
            End::Interrupted => (Exit::Interrupted, format!("was left after {elapsed}: {goes_on}")),
        };
        self.view.line(&format!("{reference} {text}"))?;
        Ok(exit)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        broadcast: BroadcastArgs,
    }

    #[test]
    fn the_command_follows_two_hyphens_and_flags_are_those_of_the_job() {
        let line =
            "broadcast busybox --node-selector a=b,c=d --failure-policy failfast --deadline 90s -- sh -c --all-nodes";
        let options = Only::parse_from(line.split_whitespace()).broadcast.options().unwrap();
        assert_eq!((options.image.as_str(), options.command.join(" ")), ("busybox", "sh -c --all-nodes".into()));
        assert_eq!((options.failure_policy.as_str(), options.tolerates_all), ("FailFast", false));
        assert_eq!((options.deadline, options.ttl, options.node_selector.len()), (Some(90), Some(3600), 2));
        let plain = Only::parse_from(["broadcast", "busybox"]).broadcast.options().unwrap();
        assert_eq!((plain.failure_policy.as_str(), plain.command.len(), plain.deadline), ("Continue", 0, None));
        let bad = Only::parse_from(["broadcast", "busybox", "--name", "A/b"]).broadcast.options().unwrap_err();
        assert_eq!(bad.exit, Exit::Usage);
    }
}
