//! `rollout`: looking after the roll-outs of workloads, as `kubectl rollout` does for the built-in kinds.

use std::time::Duration;

use clap::Subcommand;
use kube::{api::DynamicObject, runtime::wait::await_condition};
use serde_json::{Value, json};

use super::{
    connection::{Connection, ConnectionArgs},
    follow::follow_seen,
    requests::{api_of, reference},
    restart::positive,
    rules::{
        JsonPointer,
        exit::{Exit, Stop, with_sources},
        history::{self, Undo},
        progress::Watched,
        rollout::{self, Holds, Pin, Rollout, Until, is_observed},
    },
    view::{Format, View, print, print_objects, report_failure},
    workloads::{ChangeArgs, HistoryPlace, WorkloadChange, change, find, revisions},
};
use crate::runtime::clock;

/// Look after the roll-out of a workload or a SidecarSet: follow it, undo it, pause it, see its revisions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  kubectl kruise rollout status cloneset/web --timeout 5m
  kubectl kruise rollout status cloneset/web --for=updated
  kubectl kruise rollout history cloneset/web
  kubectl kruise rollout undo cloneset/web --to-revision 3
  kubectl kruise rollout pause clone web
  kubectl kruise rollout undo sidecarset/log-agent

Exit codes: see kubectl kruise --help")]
pub(super) struct RolloutArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Status(StatusArgs),
    History(HistoryArgs),
    Undo(UndoArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    Restart(RestartArgs),
}

#[derive(Debug, clap::Args)]
struct Targets {
    /// TYPE/NAME or TYPE NAME..., TYPE being cloneset, statefulset.apps.kruise.io, daemonset.apps.kruise.io or sidecarset.
    #[arg(value_name = "TYPE/NAME", required = true)]
    targets: Vec<String>,
    /// Those of one TYPE with these labels.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

/// Follow a roll-out to its end: all its Pods are updated and available.
#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    of: Targets,
    /// Wait for the end; --watch=false shows how far it is, and fails only if the roll-out has failed.
    #[arg(short, long, value_name = "true|false", default_value_t = true, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    watch: bool,
    /// Wait no longer than this, for example 90s or 5m; the roll-out goes on.
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    timeout: Option<Duration>,
    /// Only the roll-out of this revision: an error when another one is rolled out. 0: whichever it is.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    revision: i64,
    /// What it waits for: that the new Pods are available, or only that they are updated.
    #[arg(long = "for", value_enum, value_name = "STATE", default_value_t)]
    until: Until,
    #[command(flatten)]
    place: HistoryPlace,
}

/// Show the revisions that there were, oldest first.
#[derive(Debug, clap::Args)]
struct HistoryArgs {
    #[command(flatten)]
    of: Targets,
    /// Show the template of this revision, of a SidecarSet its containers and what else it gives to Pods.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    revision: i64,
    #[command(flatten)]
    place: HistoryPlace,
    /// Print the ControllerRevisions.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// Go back to an earlier revision. Its template replaces the present one as a whole; nothing else is changed.
///
/// Of a SidecarSet these are containers, init containers, volumes, pull secrets, patchPodMetadata, and customVersion if set.
#[derive(Debug, clap::Args)]
struct UndoArgs {
    #[command(flatten)]
    of: Targets,
    /// The revision to go back to, as `history` shows it. 0: the one before the present one.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    to_revision: i64,
    #[command(flatten)]
    how: ChangeArgs,
    #[command(flatten)]
    place: HistoryPlace,
}

/// Stop a roll-out where it is. Scaling goes on.
#[derive(Debug, clap::Args)]
struct PauseArgs {
    #[command(flatten)]
    of: Targets,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Let a paused roll-out go on.
#[derive(Debug, clap::Args)]
struct ResumeArgs {
    #[command(flatten)]
    of: Targets,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Begin a roll-out without a change, by the annotation kubectl.kubernetes.io/restartedAt in the template. To restart
/// containers and keep the Pods: kubectl kruise restart.
#[derive(Debug, clap::Args)]
struct RestartArgs {
    #[command(flatten)]
    of: Targets,
    #[command(flatten)]
    how: ChangeArgs,
}

pub(super) async fn run(args: RolloutArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let connection = connection.open().await?;
    let (of, how) = match &args.what {
        What::Status(args) => return status(args, &connection).await,
        What::History(args) => return history(args, &connection).await,
        What::Undo(UndoArgs { of, how, .. })
        | What::Pause(PauseArgs { of, how })
        | What::Resume(ResumeArgs { of, how })
        | What::Restart(RestartArgs { of, how }) => (of, how),
    };
    let workloads = of.find(&connection).await?;
    let plain = |write, words: &str| WorkloadChange { write: Some(write), words: words.to_owned(), warning: None };
    let judge = async |object: &Value| match &args.what {
        What::Undo(args) => undo(&connection, object, args).await,
        What::Pause(_) => rollout::pause(object).map(|write| plain(write, "paused")),
        What::Resume(_) => rollout::resume(object).map(|write| plain(write, "resumed")),
        What::Restart(_) | What::Status(_) | What::History(_) => {
            let (write, warning) = rollout::restart(object, clock::now().wall)?;
            Ok(WorkloadChange { warning, ..plain(write, "restarted") })
        }
    };
    change(&connection, workloads, how, judge).await
}

impl Targets {
    async fn find(&self, connection: &Connection) -> Result<Vec<Value>, Stop> {
        find(connection, &self.targets, self.selector.as_deref()).await
    }
}

async fn undo(connection: &Connection, object: &Value, args: &UndoArgs) -> Result<WorkloadChange, Stop> {
    let revisions = revisions(connection, object, &args.place).await?;
    Ok(match history::undo(object, &revisions, args.to_revision)? {
        Undo::Back(write, number) => {
            WorkloadChange { write: Some(write), words: format!("rolled back to revision {number}"), warning: None }
        }
        Undo::IsThere(number) => {
            let what = match Holds::of(object) {
                Holds::Template => "template",
                Holds::Sidecars => "spec",
            };
            let words = format!("skipped rollback (current {what} already matches revision {number})");
            WorkloadChange { write: None, words, warning: None }
        }
    })
}

async fn history(args: &HistoryArgs, connection: &Connection) -> Result<Exit, Stop> {
    let mut objects = Vec::new();
    let mut text = String::new();
    for workload in args.of.find(connection).await? {
        let mut revisions = revisions(connection, &workload, &args.place).await?;
        if args.revision > 0 {
            let pin = history::numbered(&workload, &revisions, args.revision)?;
            revisions.retain(|revision| revision.name == pin.name);
            for revision in &revisions {
                let yaml = serde_yaml::to_string(&revision.content().unwrap_or_default());
                let yaml = yaml.map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
                text += &history::details(&reference(&workload), revision, &yaml);
            }
        } else {
            text += &format!("{}\n{}\n", reference(&workload), history::table(&revisions));
        }
        objects.extend(revisions.into_iter().map(|revision| revision.object));
    }
    match args.output {
        Some(format) => print_objects(format, &objects, args.revision == 0)?,
        None => print(&text)?,
    }
    Ok(Exit::Success)
}

async fn status(args: &StatusArgs, connection: &Connection) -> Result<Exit, Stop> {
    let workloads = args.of.find(connection).await?;
    let mut seen = Vec::new();
    for workload in workloads {
        let (workload, pin) = pinned(args, connection, workload).await?;
        seen.push((workload.clone(), Watched::Rollout(Rollout::new(workload, pin).until(args.until))));
    }
    if args.watch {
        let (_, exit) = follow_seen(&connection.client, seen, args.timeout, &mut View::new(false)).await?;
        return Ok(exit);
    }
    let mut exit = Exit::Success;
    for (_, seen) in seen {
        let Watched::Rollout(rollout) = seen else { continue };
        match rollout.at_once() {
            Ok(sentence) => print(&(sentence + "\n"))?,
            Err(stop) => exit = exit.max(report_failure(&stop)),
        }
    }
    Ok(exit)
}

/// The revision that the user has pinned. One that was asked for a moment ago may have no number yet.
async fn pinned(args: &StatusArgs, connection: &Connection, workload: Value) -> Result<(Value, Option<Pin>), Stop> {
    if args.revision == 0 {
        return Ok((workload, None));
    }
    let found = history::numbered(&workload, &revisions(connection, &workload, &args.place).await?, args.revision);
    if found.is_ok() || is_observed(&workload) || !args.watch {
        return Ok((workload, Some(found?)));
    }
    let has_been = |object: Option<&DynamicObject>| object.is_none_or(|object| is_observed(&json!(object)));
    let api = api_of(&connection.client, &workload);
    let observed = await_condition(api, workload.text("/metadata/name"), has_been);
    let late = || Stop::new(Exit::TimedOut, Rollout::new(workload.clone(), None).sentence());
    match args.timeout {
        Some(timeout) => tokio::time::timeout(timeout, observed).await.map_err(|_| late())?,
        None => observed.await,
    }
    .map_err(|error| Stop::new(Exit::NoAnswer, with_sources(&error)))?;
    let found = history::numbered(&workload, &revisions(connection, &workload, &args.place).await?, args.revision)?;
    Ok((workload, Some(found)))
}
