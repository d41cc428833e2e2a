//! The command line: `kruise-rs ROLE [FLAGS]`.
//!
//! Flags carry the names that OpenKruise's manager and daemon use, so that people's scripts keep working. Flags of
//! features that do not exist here are accepted and named in the log; unknown ones are refused.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, parser::ValueSource};

use crate::{
    api::feature_gates::FeatureGates,
    k8s::invalid::Invalid,
    plugin,
    roles::{
        all::{self, AllArgs},
        daemon::{self, DaemonArgs},
        manager::{self, ManagerArgs},
        webhook::{self, WebhookArgs},
    },
    runtime::{
        client::{self, ClientOptions},
        shutdown,
        telemetry::{self, LogFormat},
    },
};

/// Flags of OpenKruise's manager whose features do not exist here, or not yet.
const IGNORED_BY_MANAGER: &[&str] = &[
    "allow-privileged",
    "assign-bcj-pods-by-scheduler",
    "assign-pods-by-scheduler",
    "controller-cache-sync-timeout",
    "disable-no-deepcopy",
    "enable-pprof",
    "expectation-timeout",
    "pprof-addr",
    "protection-log-path",
    "rate-limiter-base-delay",
    "rate-limiter-bucket-size",
    "rate-limiter-max-delay",
    "rate-limiter-qps",
    SYNC_PERIOD,
    "webhook-initialize-timeout",
    "ws-enabled-versioned-status",
    "broadcastjob-workers",
    "nodepodprobe-workers",
];

/// It would promise something that does not happen: only its default is taken.
const SYNC_PERIOD: &str = "sync-period";

/// The same for OpenKruise's daemon.
const IGNORED_BY_DAEMON: &[&str] =
    &["enable-pprof", "max-workers-for-pull-image", "plugin-bin-dir", "plugin-config-file", "pprof-addr"];

/// Flags of the logging library that both use.
const IGNORED_FOR_LOGGING: &[&str] = &[
    "add_dir_header",
    "alsologtostderr",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-json-split-stream",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "logtostderr",
    "one_output",
    "skip_headers",
    "skip_log_headers",
    "stderrthreshold",
    "vmodule",
];

/// Restart containers inside running Pods: OpenKruise's API in one executable that takes a role at start.
#[derive(Debug, Parser)]
#[command(name = "kruise-rs", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run the controllers: deadlines, readiness, cleaning up. One replica acts, the others stand by.
    Manager {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        args: Box<ManagerArgs>,
    },
    /// Run the admission server; every replica serves.
    Webhook {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        args: Box<WebhookArgs>,
    },
    /// Run on a node: restart the containers of its Pods through the container runtime.
    Daemon {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        args: DaemonArgs,
    },
    /// Run manager, webhook and daemon in one process, for a laptop.
    All {
        #[command(flatten)]
        common: CommonArgs,
        #[command(flatten)]
        args: Box<AllArgs>,
    },
    /// Print a completion script for a shell.
    Completions {
        /// For example: kruise-rs completions bash > /etc/bash_completion.d/kruise-rs
        shell: clap_complete::Shell,
    },
}

/// Flags that all roles have.
#[derive(Clone, Debug, clap::Args)]
struct CommonArgs {
    /// Feature gates, as NAME=true,OTHER=false; AllAlpha and AllBeta name whole groups. They win over the
    /// installation's own (KRUISE_FEATURE_GATES).
    #[arg(long, default_value = "", hide_default_value = true, value_name = "GATES", help_heading = "Common options")]
    feature_gates: String,
    /// File that says how to reach the API server. Default: KUBECONFIG, ~/.kube/config, or the Pod's service account.
    #[arg(long, value_name = "FILE", help_heading = "Common options")]
    kubeconfig: Option<PathBuf>,
    /// Requests to the API server a second, on average; 0 or less: no limit, which is the default: the API server's
    /// own priority and fairness decides.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = "Common options")]
    rest_config_qps: Option<f32>,
    /// Requests to the API server at once.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, help_heading = "Common options")]
    rest_config_burst: Option<i32>,
    /// Form of log lines: text or json.
    #[arg(long, default_value_t, value_name = "FORMAT", help_heading = "Common options")]
    logging_format: LogFormat,
    /// Verbosity of the log: 0, 4 (also -v alone) for debugging, 6 for everything. RUST_LOG wins over it.
    #[arg(short, long = "v", value_name = "LEVEL", num_args = 0..=1, default_value_t = 0, default_missing_value = "4",
        help_heading = "Common options")]
    verbosity: u8,
}

impl CommonArgs {
    fn gates(&self) -> anyhow::Result<FeatureGates> {
        let installed = std::env::var("KRUISE_FEATURE_GATES").unwrap_or_default();
        let custom_resources = std::env::var("CUSTOM_RESOURCE_ENABLE").ok();
        self.gates_beside(&installed, custom_resources.as_deref())
    }

    /// The installation's gates, and over them those of the flag.
    fn gates_beside(&self, installed: &str, custom_resources: Option<&str>) -> anyhow::Result<FeatureGates> {
        FeatureGates::parse(&[installed, &self.feature_gates], custom_resources)
            .context("--feature-gates (or KRUISE_FEATURE_GATES)")
    }

    fn client_options(&self, user_agent: &'static str, qps: f32, burst: u32) -> ClientOptions {
        ClientOptions {
            kubeconfig: self.kubeconfig.clone(),
            context: None,
            act_as: None,
            act_as_groups: Vec::new(),
            user_agent,
            qps: self.rest_config_qps.unwrap_or(qps),
            burst: self.rest_config_burst.and_then(|b| b.try_into().ok()).filter(|b| *b > 0).unwrap_or(burst),
        }
    }
}

/// `--sync-period`: 0, which is OpenKruise's default, asks for nothing.
fn no_period(text: &str) -> Result<String, Invalid> {
    let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.' | b'h' | b'm' | b's' | b'n' | b'u'));
    if is_zero && text.contains('0') {
        return Ok(text.to_owned());
    }
    let why = "there is no resync period: objects are reconciled when something changes or becomes due, and silent \
               watches are reopened; leave the flag out, or set it to 0";
    Err(Invalid(why.to_owned()))
}

/// The grammar, with the flags that are accepted and do nothing.
fn command() -> clap::Command {
    let ignored = |list: &'static [&'static str]| {
        move |mut role: clap::Command| {
            for name in list.iter().chain(IGNORED_FOR_LOGGING) {
                if !role.get_arguments().any(|arg| arg.get_long() == Some(name)) {
                    let flag = Arg::new(*name).long(*name).hide(true).num_args(0..=1).action(ArgAction::Append);
                    role = role.arg(if *name == SYNC_PERIOD { flag.value_parser(no_period) } else { flag });
                }
            }
            role
        }
    };
    Cli::command()
        .mut_subcommand("manager", ignored(IGNORED_BY_MANAGER))
        .mut_subcommand("webhook", ignored(IGNORED_BY_MANAGER))
        .mut_subcommand("daemon", ignored(IGNORED_BY_DAEMON))
        .mut_subcommand("all", ignored(IGNORED_BY_MANAGER))
}

/// The command lines that the reference describes.
pub fn programs() -> [clap::Command; 2] {
    [Cli::command(), plugin::command()]
}

/// Names of flags on the command line that do nothing here.
fn ignored_flags(matches: &ArgMatches) -> Vec<String> {
    let Some((_, role)) = matches.subcommand() else { return Vec::new() };
    let known =
        |id: &str| [IGNORED_BY_MANAGER, IGNORED_BY_DAEMON, IGNORED_FOR_LOGGING].iter().any(|list| list.contains(&id));
    let given = role.ids().map(clap::Id::as_str).filter(|id| known(id));
    let given = given.filter(|id| role.value_source(id) == Some(ValueSource::CommandLine));
    given.map(|id| format!("--{id}")).collect()
}

/// Reads the command line and runs the role to its end.
pub fn run() -> ExitCode {
    if let Some(program) = std::env::args_os().next().and_then(|path| plugin::Program::called_as(&path)) {
        return plugin::run(program);
    }
    let parsed = command().try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version come as errors too, and go to standard output.
            if error.use_stderr() {
                write_termination_log(&error.to_string());
            }
            error.exit()
        }
    };
    match dispatch(cli, &matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("{error:#}");
            if tracing::dispatcher::has_been_set() {
                tracing::error!("{message}");
            } else {
                eprintln!("kruise-rs: {message}");
            }
            write_termination_log(&message);
            ExitCode::FAILURE
        }
    }
}

/// kubelet shows this file's text as the reason in the Pod's status. Elsewhere there is no such file.
fn write_termination_log(message: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().append(true).open("/dev/termination-log") {
        // What cannot be reported this way is on standard error.
        let _ = std::io::Write::write_all(&mut log, message.as_bytes());
    }
}

fn dispatch(cli: Cli, matches: &ArgMatches) -> anyhow::Result<()> {
    let ignored = ignored_flags(matches);
    match cli.role {
        Role::Manager { common, args } => {
            let options = common.client_options("kruise-manager", 0.0, 50);
            start(&common, &ignored, options, async |gates, client, stop| {
                manager::run(*args, gates, client, stop).await
            })
        }
        Role::Webhook { common, args } => {
            let options = common.client_options("kruise-webhook", 0.0, 50);
            start(&common, &ignored, options, async |gates, client, stop| {
                webhook::run(*args, gates, client, stop).await
            })
        }
        Role::Daemon { common, args } => {
            let options = common.client_options("kruise-daemon", 0.0, 10);
            start(&common, &ignored, options, async |gates, client, stop| daemon::run(args, gates, client, stop).await)
        }
        Role::All { common, args } => {
            let options = common.client_options("kruise-rs", 0.0, 50);
            start(&common, &ignored, options, async |gates, client, stop| all::run(*args, gates, client, stop).await)
        }
        Role::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "kruise-rs", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// What every role does first: log, gates, client; and meanwhile: check the API server's version.
///
/// One thread runs everything: roles wait far more than they compute, and each further thread costs memory.
fn start(
    common: &CommonArgs,
    ignored: &[String],
    options: ClientOptions,
    role: impl AsyncFnOnce(FeatureGates, kube::Client, shutdown::Shutdown) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    telemetry::init(common.logging_format, common.verbosity).context("RUST_LOG")?;
    if !ignored.is_empty() {
        tracing::warn!(flags = ignored.join(" "), "these flags have no effect in kruise-rs");
    }
    let gates = common.gates()?;
    client::install_crypto();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("async runtime")?;
    let result = runtime.block_on(async {
        let stop = shutdown::on_signals().context("signal handlers")?;
        let client = client::connect(&options).await?;
        let refused = async {
            let retry = |error: &kube::Error| tracing::warn!(%error, "the API server cannot be reached yet");
            match client::check_server(&client, retry).await {
                Ok((major, minor)) => {
                    tracing::info!(version = format!("{major}.{minor}"), "connected to the API server");
                    std::future::pending().await
                }
                Err(error) => error,
            }
        };
        tokio::select! {
            ended = role(gates, client.clone(), stop) => ended,
            error = refused => Err(error.into()),
        }
    });
    // A blocking call (a name look-up) must not hold up the end.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    fn parse(line: &str) -> Result<(Cli, ArgMatches), clap::Error> {
        let matches = command().try_get_matches_from(format!("kruise-rs {line}").split_whitespace())?;
        Ok((Cli::from_arg_matches(&matches)?, matches))
    }
    fn manager_of(line: &str) -> (CommonArgs, ManagerArgs) {
        match parse(&format!("manager {line}")).unwrap().0.role {
            Role::Manager { common, args } => (common, *args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_committed_reference_is_that_of_the_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let fresh = committed == reference::render(&programs());
        assert!(fresh, "docs/reference.md is stale; mend with `make manifests`");
    }

    #[test]
    fn scripts_for_openkruise_keep_working() {
        let (common, args) = manager_of(
            "--enable-leader-election=true --metrics-addr=127.0.0.1:8080 --health-probe-addr=:8000 --leader-election-namespace=kruise-system \
             --logging-format=json --v=4 --feature-gates=ImagePullJobGate=true --sync-period=0 --enable-pprof=false --crr-workers=7 \
             --rest-config-qps=50 --rest-config-burst=100 --logtostderr=true --leader-election-lease-duration=1m30s --pprof-addr :8090",
        );
        assert!(args.enable_leader_election);
        assert_eq!((args.workers.get("crr-workers"), args.metrics_addr.as_str()), (Some(7), "127.0.0.1:8080"));
        assert_eq!(args.leader_election_lease_duration.as_secs(), 90);
        assert_eq!((common.verbosity, common.logging_format), (4, LogFormat::Json));
        let options = common.client_options("kruise-manager", 0.0, 50);
        assert_eq!((options.qps, options.burst), (50.0, 100));

        let (common, args) = manager_of("--enable-leader-election=false -v");
        assert!(!args.enable_leader_election && common.verbosity == 4);
        assert!(manager_of("--enable-leader-election").1.enable_leader_election);
        parse(
            "daemon --node n1 --socket-file=containerd/containerd.sock --max-workers-for-pull-image=-1 --addr :10221",
        )
        .unwrap();
    }

    /// kubelet begins to remove images at 85 % and stops at 80 %: that is where it leaves disks.
    #[test]
    fn by_default_images_are_pulled_onto_disks_that_kubelet_has_cleaned_up() {
        let Role::Daemon { args, .. } = parse("daemon --node n1").unwrap().0.role else { panic!() };
        let unsaid = DaemonArgs::of_node("n1".into());
        assert_eq!([args.image_fs_limit_percent, unsaid.image_fs_limit_percent], [85; 2]);
    }

    #[test]
    fn a_period_of_resynchronisation_is_refused_unless_it_is_none() {
        for (period, is_taken) in
            [("0", true), ("0s", true), ("0h0m0s", true), ("10h", false), ("1h0m0s", false), ("-1s", false)]
        {
            for role in ["manager", "webhook", "all --node n1"] {
                let parsed = parse(&format!("{role} --sync-period={period}"));
                assert_eq!(parsed.is_ok(), is_taken, "{role} {period}");
                if let Err(error) = parsed {
                    assert!(error.to_string().contains("leave the flag out, or set it to 0"), "{error}");
                }
            }
        }
    }

    /// OpenKruise reads this one before its command line, so that it has no effect there either.
    #[test]
    fn shortfall_ws_enabled_versioned_status_is_named_as_a_flag_without_effect() {
        for role in ["manager", "webhook", "all --node n1"] {
            let (_, matches) = parse(&format!("{role} --ws-enabled-versioned-status=deployment,cloneset")).unwrap();
            assert_eq!(ignored_flags(&matches), ["--ws-enabled-versioned-status"], "{role}");
        }
    }

    #[test]
    fn flags_without_effect_are_named_and_unknown_ones_refused() {
        let (_, matches) = parse("manager --nodepodprobe-workers=5 --allow-privileged --crr-workers 2").unwrap();
        assert_eq!(ignored_flags(&matches), ["--nodepodprobe-workers", "--allow-privileged"]);
        for bad in [
            "manager --cloneset-worker=5",
            "manager --crr-workers=0",
            "manager --leader-election-resource-lock=configmaps",
            "nothing",
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn one_process_takes_the_flags_of_all_roles() {
        parse("all --node n1 --crr-workers=2 --webhook-port 9999 --enable-leader-election=false").unwrap();
    }

    #[test]
    fn an_unknown_gate_is_a_start_error_that_names_it() {
        let (common, _) = manager_of("--feature-gates=Nope=true");
        let error = format!("{:#}", common.gates().unwrap_err());
        assert!(
            error.starts_with("--feature-gates (or KRUISE_FEATURE_GATES): unknown feature gate \"Nope\""),
            "{error}"
        );
    }

    #[test]
    fn gates_of_the_flag_are_added_to_those_of_the_installation() {
        let both = ["EnableExternalCerts", "ImagePullJobGate"];
        for (installed, flag, on) in [
            // The component `external-certs` beside the ConfigMap as it is installed.
            ("ImagePullJobGate=true", "EnableExternalCerts=true", [true, true]),
            ("", "EnableExternalCerts=true", [true, false]),
            ("EnableExternalCerts=true,ImagePullJobGate=true", "", [true, true]),
            ("EnableExternalCerts=true,ImagePullJobGate=true", "EnableExternalCerts=false", [false, true]),
            ("ImagePullJobGate=true", "AllAlpha=false,EnableExternalCerts=true", [true, false]),
        ] {
            let (common, _) = manager_of(&format!("--feature-gates={flag}"));
            let gates = common.gates_beside(installed, None).unwrap();
            assert_eq!(both.map(|gate| gates.enabled(gate)), on, "{installed:?} and {flag:?}");
        }
    }

    #[test]
    fn a_rate_of_zero_or_less_is_no_limit() {
        let (common, _) = manager_of("--rest-config-qps=-1 --rest-config-burst=-1");
        let options = common.client_options("kruise-manager", 0.0, 50);
        assert_eq!((options.qps, options.burst), (-1.0, 50));
    }

    #[test]
    fn help_names_every_role_and_hides_what_has_no_effect() {
        let help = command().render_long_help().to_string();
        for role in ["manager", "webhook", "daemon", "all", "completions"] {
            assert!(help.contains(role), "{help}");
        }
        let help = command().find_subcommand_mut("manager").unwrap().render_long_help().to_string();
        assert!(help.contains("--crr-workers") && !help.contains("nodepodprobe-workers"), "{help}");
    }
}
