//! `kubectl kruise`: this executable under the name `kubectl-kruise`.
//!
//! Each command is one file: its arguments, its reads and writes, nothing else. What it decides and says is in
//! [`rules`], pure. Shared: [`connection`] (to the cluster), [`requests`] (finding and making them), [`workloads`] (finding
//! and changing them), [`follow`] (waiting), [`view`] (the terminal). To add a command: its file, one line in [`What`] and
//! one in [`dispatch`]; a group such as `rollout` or `set` is a file with an enum of its own. A further kind for `rollout`
//! and `set` is a line in [`rules::rollout::ROLLS`].
//!
//! Never: a write that the user did not name. `doctor` writes nothing at all; its one create is a dry run.

mod broadcast;
mod cancel;
mod completion;
mod connection;
mod cronjob;
mod describe;
mod doctor;
mod follow;
mod foreign;
mod requests;
mod restart;
mod rollout;
pub mod rules;
mod set;
mod sidecarset;
mod spread;
mod status;
mod view;
mod workloads;

use std::{ffi::OsStr, io::Write as _, path::Path, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

use self::{
    connection::ConnectionArgs,
    rules::exit::{EXIT_CODES, Exit, Stop},
};

/// What this executable is under the name that it was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The plugin.
    Plugin,
    /// What kubectl asks when a user presses Tab behind `kubectl kruise`.
    Completer,
}

impl Program {
    /// By the first word of the command line; None: it is not the plugin.
    pub fn called_as(path: &OsStr) -> Option<Self> {
        match Path::new(path).file_name()?.to_str()? {
            "kubectl-kruise" => Some(Self::Plugin),
            "kubectl_complete-kruise" => Some(Self::Completer),
            _ => None,
        }
    }
}

/// Restart containers in place, look after the roll-outs of Kruise's workloads, and after kruise-rs itself.
#[derive(Debug, Parser)]
#[command(name = "kubectl-kruise", bin_name = "kubectl kruise", version, max_term_width = 110, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Restart(restart::RestartArgs),
    Rollout(rollout::RolloutArgs),
    Set(set::SetArgs),
    Status(status::StatusArgs),
    Describe(describe::DescribeArgs),
    Sidecarset(sidecarset::SidecarSetArgs),
    Spread(spread::SpreadArgs),
    Broadcast(broadcast::BroadcastArgs),
    Cronjob(cronjob::CronJobArgs),
    Cancel(cancel::CancelArgs),
    Doctor(doctor::DoctorArgs),
    Completion(completion::CompletionArgs),
}

/// The grammar of its command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs to the end.
pub fn run(program: Program) -> ExitCode {
    if program == Program::Completer {
        return completion::complete().into();
    }
    let Cli { connection, what } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            match foreign::instead(&error, &words) {
                Some(stop) => return ended(Err(stop)),
                None => error.exit(),
            }
        }
    };
    ended(dispatch(connection, what))
}

/// The exit code of a command; why it could not go on is shown.
fn ended(result: Result<Exit, Stop>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(stop) => {
            // If this fails too, nobody can be informed.
            let _ = writeln!(std::io::stderr(), "error: {stop}");
            stop.exit.into()
        }
    }
}

fn dispatch(connection: ConnectionArgs, what: What) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Failed, format!("async runtime: {error}")))?;
    let result = runtime.block_on(async {
        match what {
            What::Restart(args) => restart::run(args, &connection).await,
            What::Rollout(args) => rollout::run(args, &connection).await,
            What::Set(args) => set::run(args, &connection).await,
            What::Status(args) => status::run(args, &connection).await,
            What::Describe(args) => describe::run(args, &connection).await,
            What::Sidecarset(args) => sidecarset::run(args, &connection).await,
            What::Spread(args) => spread::run(args, &connection).await,
            What::Broadcast(args) => broadcast::run(args, &connection).await,
            What::Cronjob(args) => cronjob::run(args, &connection).await,
            What::Cancel(args) => cancel::run(args, &connection).await,
            What::Doctor(args) => doctor::run(args, &connection).await,
            What::Completion(args) => completion::script(&args, &mut Cli::command()),
        }
    });
    // A blocking call (a name look-up) must not hold up the end.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_name_decides() {
        for (path, program) in [
            ("/usr/local/bin/kubectl-kruise", Some(Program::Plugin)),
            ("kubectl_complete-kruise", Some(Program::Completer)),
            ("/kruise-rs", None),
            ("kubectl-kruise-more", None),
            ("", None),
        ] {
            assert_eq!(Program::called_as(OsStr::new(path)), program, "{path}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for (line, kind) in [
            ("", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("restart", ErrorKind::MissingRequiredArgument),
            ("restart pod/a -l a=b", ErrorKind::ArgumentConflict),
            ("restart pod/a --method Magic", ErrorKind::InvalidValue),
            ("restart pod/a --timeout 5s", ErrorKind::MissingRequiredArgument),
            ("restart pod/a --wait --timeout soon", ErrorKind::ValueValidation),
            ("restart pod/a --max-unavailable 0", ErrorKind::ValueValidation),
            ("restart pod/a -o xml", ErrorKind::InvalidValue),
            ("cancel", ErrorKind::MissingRequiredArgument),
            ("cancel a --all", ErrorKind::ArgumentConflict),
            ("status a -A", ErrorKind::ArgumentConflict),
            ("describe", ErrorKind::MissingRequiredArgument),
            ("sidecarset", ErrorKind::MissingRequiredArgument),
            ("spread", ErrorKind::MissingRequiredArgument),
            ("cronjob", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("cronjob trigger", ErrorKind::MissingRequiredArgument),
            ("broadcast", ErrorKind::MissingRequiredArgument),
            ("broadcast busybox true", ErrorKind::UnknownArgument),
            ("broadcast busybox --detach --timeout 5s", ErrorKind::ArgumentConflict),
            ("broadcast busybox --parallelism 0", ErrorKind::ValueValidation),
            ("broadcast busybox --node-selector a", ErrorKind::ValueValidation),
            ("restart -A -l a=b", ErrorKind::ArgumentConflict),
            ("rollout history scs/a --system-namespace", ErrorKind::InvalidValue),
            ("rollout history scs/a --system-namespace A/b", ErrorKind::ValueValidation),
            ("rollback x", ErrorKind::InvalidSubcommand),
            ("rollout", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("rollout forward x", ErrorKind::InvalidSubcommand),
            ("rollout undo", ErrorKind::MissingRequiredArgument),
            ("rollout undo clone/a --to-revision -1", ErrorKind::UnknownArgument),
            ("rollout undo clone/a --to-revision=-1", ErrorKind::ValueValidation),
            ("rollout status clone/a --watch=perhaps", ErrorKind::InvalidValue),
            ("rollout status clone/a --timeout 0s", ErrorKind::ValueValidation),
            ("set image", ErrorKind::MissingRequiredArgument),
            ("set picture clone/a", ErrorKind::InvalidSubcommand),
        ] {
            let error = Cli::try_parse_from(format!("kubectl-kruise {line}").split_whitespace()).unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{line}: {error}");
        }
        for line in [
            "restart pod/a -c main -c other --method auto --wait --timeout 90s -n shop --context c -o json",
            "-n shop restart deployment a b --max-unavailable 10% --dry-run=server",
            "restart -l app=web --containers main,other --wait",
            "status --wait -A",
            "doctor --as nobody",
            "sidecarset log-agent --all --context c",
            "spread ws/web -n shop --system-namespace kruise",
            "cronjob trigger nightly -n shop --dry-run -o yaml",
            "broadcast busybox --host --all-nodes --timeout 5m -n ops -- chroot /host uname -a",
            "restart sidecarset/log-agent -A -c agent --wait",
            "rollout undo sidecarset/log-agent --to-revision 2 --system-namespace kruise",
            "rollout undo cloneset/a --to-revision=3 -n shop --dry-run",
            "rollout status clone a b -w --timeout 90s --revision 2",
            "rollout status clone/a --watch=false --context c",
            "rollout history clonesets.apps.kruise.io/a --revision 2 -o yaml",
            "rollout pause clone -l app=web -o name",
            "set image clone/a main=nginx:1 --dry-run=client -o yaml",
            "status --as jane --as-group dev --as-group ops",
        ] {
            Cli::try_parse_from(format!("kubectl-kruise {line}").split_whitespace()).unwrap();
        }
    }
}
