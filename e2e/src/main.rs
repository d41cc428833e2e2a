//! `e2e`: the real node for kruise-rs, from nothing to nothing. See the library.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use e2e::paths::Paths;
use e2e::tools::UsedBy;
use e2e::versions::{self, Pair};
use e2e::{
    bench, cluster, demo, deploy, load, matrix, others, product, record, releases, reproducible, scale, site, suite,
    tools,
};

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
        /// Build the programs of the end-to-end tests too
        #[arg(long)]
        for_tests: bool,
        /// The Debian packages alone, for building the image
        #[arg(long, conflicts_with_all = ["with_kwok", "for_tests"])]
        only_packages: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Start a fresh cluster
    Up {
        /// Leave a cluster that works as it is
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Run the core tests on every pair of versions, or on those that are named, and print a table
    Versions {
        #[command(flatten)]
        of: Of,
    },
    /// Write the checksums of the Go modules of every pair anew, after their list has changed
    Checksums {
        #[command(flatten)]
        of: Of,
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
    /// Record docs/images/restart.svg: a restart with `kubectl kruise` in a terminal
    Record,
    /// Measure kruise-rs and print the table of figures
    Bench {
        /// Requests whose times are measured, and bare stops beside them; 0 leaves this out
        #[arg(long, default_value_t = 100)]
        requests: usize,
        /// Requests made as fast as they go, to count those that never end
        #[arg(long, default_value_t = 1000)]
        endurance: usize,
        /// Seconds over which the idle roles are watched; 0 leaves this out
        #[arg(long, default_value_t = 60)]
        idle: u64,
        /// Requests made at the same moment, and bare stops beside them; at most 100, a node has room for 250 Pods
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(0..=100))]
        at_once: u16,
        /// Pods of the workload that is restarted as a whole; 0 leaves this out
        #[arg(long, default_value_t = 100)]
        workload: usize,
        /// Requests of method PodSpec whose times are measured, and bare stops beside them; 0 leaves this out
        #[arg(long, default_value_t = 100)]
        methods: usize,
        /// Images that are pulled by jobs, and as many beside them by the runtime alone; 0 leaves this out
        #[arg(long, default_value_t = 10)]
        images: usize,
        /// Seconds over which probes of a hundred containers are measured, for each handler; 0 leaves this out
        #[arg(long, default_value_t = 60)]
        probes: u64,
    },
    /// Build the program that plays nodes and stops containers for the benches
    LoadNodes,
    /// Measure kruise-rs with many nodes, which are played, and print the table of figures
    Load {
        /// Nodes
        #[arg(long, default_value_t = 1000)]
        nodes: usize,
        /// Pods on each, besides the daemon's
        #[arg(long, default_value_t = 10)]
        pods_per_node: usize,
        /// Requests, all of which are kept; some hundred more are made while they are stored
        #[arg(long, default_value_t = 10_000)]
        requests: usize,
        /// Seconds over which they are spread
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Milliseconds from the end of a container to its next start; not counted
        #[arg(long, default_value_t = 1000)]
        restart_delay: u64,
        /// Processes that play the nodes
        #[arg(long, default_value_t = 2)]
        processes: usize,
    },
    /// Measure workloads, SidecarSet, spreading and jobs beside a bare client and the built-in kinds, on played nodes, and print
    /// the table of figures
    Scale {
        /// What is measured
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["clone-set", "stateful-set", "daemon-set"])]
        only: Vec<scale::Part>,
        /// Pods that are brought up, updated and taken down
        #[arg(long, default_value_t = 1000)]
        pods: usize,
        /// Nodes for them
        #[arg(long, default_value_t = 50)]
        nodes: usize,
        /// Pods with which memory and a restart of the manager are measured; 0 leaves this out
        #[arg(long, default_value_t = 20_000)]
        big_pods: usize,
        /// Nodes for them
        #[arg(long, default_value_t = 1000)]
        big_nodes: usize,
        /// CloneSets, or StatefulSets, that they belong to
        #[arg(long, default_value_t = 1000)]
        clone_sets: usize,
        /// How often every side brings the Pods up, updates them in place and takes them down; the figures are medians
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
        rounds: u8,
        /// Milliseconds from the binding of a Pod to its start, for every side
        #[arg(long, default_value_t = 1000)]
        start_delay: u64,
        /// Milliseconds from the deletion of a Pod to the end of its containers, for every side
        #[arg(long, default_value_t = 250)]
        stop_delay: u64,
        /// Beside whom CloneSet is measured; "limited", a client with the manager's account, is for updates in place only, those of
        /// StatefulSet and DaemonSet too
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["bare", "limited", "clone-set", "deployment"])]
        sides: Vec<scale::Side>,
        /// Pods that are deleted with budgets, and as many beside them without, several times; 0 leaves this out
        #[arg(long, default_value_t = 1000)]
        budget_deletions: usize,
        /// Budgets beside the CloneSets with which memory is measured; 0 leaves this out
        #[arg(long, default_value_t = 500)]
        budgets: usize,
        /// Nodes of an ImagePullJob; 0 leaves it out
        #[arg(long, default_value_t = 1000)]
        image_nodes: usize,
        /// SidecarSets with which memory and a start are measured, ten in each namespace; 0 leaves this out
        #[arg(long, default_value_t = 50_000)]
        sidecar_sets: usize,
        /// Namespaces that get one Secret; 0 leaves this out
        #[arg(long, default_value_t = 10_000)]
        namespaces: usize,
    },
    /// Check what docs/ has for Prometheus and Argo CD with promtool and with Argo CD's Lua
    Others,
    /// Build docs/ as static pages into target/site/book, with mdBook
    Site {
        /// Look at each page in a browser too
        #[arg(long)]
        check: bool,
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
        #[command(flatten)]
        of: Of,
        /// Parts of the names of the end-to-end tests to run, and arguments for the test programs
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
}

/// The versions that a cluster is made of.
#[derive(Args)]
struct Of {
    /// Kubernetes, as `1.37`; without it the usual one
    #[arg(long, env = "KRUISE_E2E_KUBE")]
    kube: Option<String>,
    /// containerd, `1.6` or `2`
    #[arg(long, env = "KRUISE_E2E_CONTAINERD")]
    containerd: Option<String>,
}

impl Of {
    fn paths(&self) -> Result<Paths> {
        Ok(Paths::of(versions::choose(self.kube.as_deref(), self.containerd.as_deref())?))
    }
    fn pairs(&self) -> Result<Vec<&'static Pair>> {
        versions::fitting(self.kube.as_deref(), self.containerd.as_deref())
    }
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
        What::Tools { with_kwok, for_tests, of, .. } => {
            let others = [(with_kwok, UsedBy::Load), (for_tests, UsedBy::Tests)];
            let wanted: Vec<UsedBy> = others.into_iter().filter(|(wanted, _)| *wanted).map(|(_, by)| by).collect();
            tools::install(&of.paths()?, &wanted)
        }
        What::Up { keep, of } => cluster::up(&of.paths()?, keep),
        What::Versions { of } => matrix::run(&of.pairs()?),
        What::Checksums { of } => releases::record_checksums(&paths, &of.pairs()?),
        What::Down => cluster::down(&paths),
        What::Status => cluster::status(&paths),
        What::Image => product::build(&paths),
        What::Reproducible => reproducible::check(&paths),
        What::Deploy => deploy::deploy(&paths),
        What::Undeploy { crds } => deploy::undeploy(&paths, crds, None),
        What::Demo => demo::run(&paths),
        What::Record => record::run(&paths),
        What::Bench { requests, endurance, idle, at_once, workload, methods, images, probes } => {
            let at_once = at_once.into();
            let options = bench::Options { requests, endurance, idle, at_once, workload, methods, images, probes };
            bench::run(&paths, options)
        }
        What::LoadNodes => load::build(&paths),
        What::Load { nodes, pods_per_node, requests, seconds, restart_delay, processes } => {
            let restart_delay = std::time::Duration::from_millis(restart_delay);
            load::run(&paths, load::Options { nodes, pods_per_node, requests, seconds, restart_delay, processes })
        }
        What::Scale {
            only,
            pods,
            nodes,
            big_pods,
            big_nodes,
            clone_sets,
            rounds,
            start_delay,
            stop_delay,
            sides,
            budget_deletions,
            budgets,
            image_nodes,
            sidecar_sets,
            namespaces,
        } => {
            let start_delay = std::time::Duration::from_millis(start_delay);
            let stop_delay = std::time::Duration::from_millis(stop_delay);
            let options = scale::Options {
                only,
                pods,
                nodes,
                big_pods,
                big_nodes,
                clone_sets,
                rounds,
                start_delay,
                stop_delay,
                sides,
                budget_deletions,
                budgets,
                image_nodes,
                sidecar_sets,
                namespaces,
            };
            scale::run(&paths, options)
        }
        What::Others => {
            others::install(&paths)?;
            others::check(&paths)
        }
        What::Site { check: true } => site::check(&paths),
        What::Site { check: false } => site::build(&paths),
        What::Test { only_e2e, keep, rounds, before, of, filter } => {
            suite::run(&of.paths()?, &suite::Options { only_e2e, keep, rounds, filter, before })
        }
    }
}

fn stage(text: &str) -> Result<(String, u64), String> {
    let (name, seconds) = text.split_once('=').ok_or("NAME=SECONDS is expected")?;
    Ok((name.to_owned(), seconds.parse().map_err(|e| format!("{seconds}: {e}"))?))
}
