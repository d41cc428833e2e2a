//! `e2e`: the real node for kruise-rs, from nothing to nothing. See the library.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::paths::Paths;
use e2e::{bench, cluster, demo, deploy, product, reproducible, suite, tools};

#[derive(Parser)]
#[command(about = "A real Kubernetes node on this machine with kruise-rs on it", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Install the Debian packages and build the programs of Kubernetes and etcd, as far as they are missing
    Tools {
        /// Build kwok too, which pretends to be thousands of nodes
        #[arg(long)]
        with_kwok: bool,
        /// The Debian packages alone, for building the image
        #[arg(long, conflicts_with = "with_kwok")]
        only_packages: bool,
    },
    /// Start a fresh cluster
    Up {
        /// Leave a cluster that works as it is
        #[arg(long)]
        keep: bool,
    },
    /// Stop the cluster and remove everything it made
    Down,
    /// Show what runs
    Status,
    /// Build the image of kruise-rs
    Image,
    /// Build the executable twice, in different directories, and compare
    Reproducible,
    /// Deploy kruise-rs from its image and manifests
    Deploy,
    /// Remove kruise-rs from the cluster
    Undeploy {
        /// Remove the custom resource definitions too, and with them every request
        #[arg(long)]
        crds: bool,
    },
    /// Restart a container and show what happens
    Demo,
    /// Measure kruise-rs and print the table of figures
    Bench {
        /// Requests whose times are measured, and bare stops beside them
        #[arg(long, default_value_t = 100)]
        requests: usize,
        /// Requests made as fast as they go, to count those that never end
        #[arg(long, default_value_t = 1000)]
        endurance: usize,
        /// Seconds over which the idle roles are watched; 0 leaves this out
        #[arg(long, default_value_t = 60)]
        idle: u64,
        /// Pods of the workload that is restarted as a whole; 0 leaves this out
        #[arg(long, default_value_t = 100)]
        workload: usize,
    },
    /// Run all tests, or the end-to-end tests alone
    Test {
        /// Leave out the unit tests
        #[arg(long)]
        only_e2e: bool,
        /// Leave the cluster running
        #[arg(long)]
        keep: bool,
        /// How often the end-to-end tests are run
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// A stage that is already done, as NAME=SECONDS
        #[arg(long, value_parser = stage)]
        before: Vec<(String, u64)>,
        /// Parts of the names of the end-to-end tests to run, and arguments for the test programs
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<()> {
    let paths = Paths::default();
    match what {
        What::Tools { only_packages: true, .. } => tools::packages(),
        What::Tools { with_kwok, .. } => tools::install(&paths, with_kwok),
        What::Up { keep } => cluster::up(&paths, keep),
        What::Down => cluster::down(&paths),
        What::Status => cluster::status(&paths),
        What::Image => product::build(&paths),
        What::Reproducible => reproducible::check(&paths),
        What::Deploy => deploy::deploy(&paths),
        What::Undeploy { crds } => deploy::undeploy(&paths, crds),
        What::Demo => demo::run(&paths),
        What::Bench { requests, endurance, idle, workload } => {
            bench::run(&paths, bench::Options { requests, endurance, idle, workload })
        }
        What::Test { only_e2e, keep, rounds, before, filter } => {
            suite::run(&paths, &suite::Options { only_e2e, keep, rounds, filter, before })
        }
    }
}

fn stage(text: &str) -> Result<(String, u64), String> {
    let (name, seconds) = text.split_once('=').ok_or("NAME=SECONDS is expected")?;
    Ok((name.to_owned(), seconds.parse().map_err(|e| format!("{seconds}: {e}"))?))
}
