//! `make test`, stage by stage, with the time of each at the end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::cmd::{CommandExt, cmd};
use crate::paths::Paths;
use crate::tools::UsedBy;
use crate::{cluster, deploy, product, tools};

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Leave out the unit tests.
    pub only_e2e: bool,
    /// Leave the cluster running.
    pub keep: bool,
    /// How often the end-to-end tests are run.
    pub rounds: u32,
    /// Parts of test names, and other arguments for the test programs.
    pub filter: Vec<String>,
    /// Stages that are already done, with their seconds.
    pub before: Vec<(String, u64)>,
}

/// So many of the tests that took longest are named.
const SLOWEST: usize = 12;

struct Stages {
    done: Vec<(String, Duration, bool)>,
    /// The tests that took longest, with their seconds.
    tests: Vec<(String, f64)>,
}

impl Stages {
    fn run(&mut self, name: &str, stage: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let start = Instant::now();
        let result = stage();
        self.done.push((name.to_owned(), start.elapsed(), result.is_ok()));
        result
    }
}

pub fn run(paths: &Paths, options: &Options) -> Result<()> {
    let start = Instant::now();
    let mut stages = Stages { done: Vec::new(), tests: Vec::new() };
    stages.done.extend(options.before.iter().map(|(n, s)| (n.clone(), Duration::from_secs(*s), true)));
    let result = all(paths, options, &mut stages);
    if options.keep {
        println!("the cluster is kept: KUBECONFIG={}", paths.kubeconfig().display());
    } else {
        let _ = stages.run("cluster down", || cluster::down(paths));
    }
    println!("\n{:<28}{:>8}", "stage", "seconds");
    for (name, time, ok) in &stages.done {
        println!("{name:<28}{:>8.1}{}", time.as_secs_f64(), if *ok { "" } else { "  FAILED" });
    }
    let before: u64 = options.before.iter().map(|(_, seconds)| seconds).sum();
    println!("{:<28}{:>8.1}", "total", start.elapsed().as_secs_f64() + before as f64);
    if !stages.tests.is_empty() {
        println!("\n{:<28}{:>8}", "the longest tests", "seconds");
    }
    for (name, seconds) in &stages.tests {
        println!("{name:<28}{seconds:>8.1}");
    }
    if result.is_err() && !options.keep {
        println!("logs of the cluster: {}", paths.kept_logs().display());
    }
    result
}

fn all(paths: &Paths, options: &Options, stages: &mut Stages) -> Result<()> {
    stages.run("packages and Go tools", || tools::install(paths, &[UsedBy::Tests]))?;
    // Most of the image's build is one long link that leaves a processor idle.
    std::thread::scope(|scope| {
        let image = scope.spawn(|| {
            let start = Instant::now();
            (product::build(paths), start.elapsed())
        });
        let others = meanwhile(paths, options, stages);
        let (built, time) = image.join().map_err(|_| anyhow!("the build of the image panicked"))?;
        stages.done.push(("image, meanwhile".into(), time, built.is_ok()));
        others.and(built)
    })?;
    stages.run("deploy", || deploy::deploy(paths))?;
    for _ in 0..options.rounds.max(1) {
        // most of a test is waiting, so there are many more of them than processors
        let result = stages
            .run("e2e, in parallel", || tests(paths, options, "parallel", 8))
            .and_then(|()| stages.run("e2e, disruptive", || tests(paths, options, "serial", 1)));
        stages.tests = slowest(&fs::read_to_string(paths.durations()).unwrap_or_default());
        result?;
    }
    Ok(())
}

/// What needs no image.
fn meanwhile(paths: &Paths, options: &Options, stages: &mut Stages) -> Result<()> {
    if !options.only_e2e {
        // With the same features as the end-to-end tests: other features would build the dependencies once more.
        let unit = ["test", "--workspace", "--features", "e2e/cluster", "--lib", "--bins", "--locked"];
        stages.run("unit tests", || cargo(paths, &unit).show())?;
    }
    stages.run("build the e2e tests", || e2e_tests(paths, "parallel").args(["--test", "serial", "--no-run"]).show())?;
    stages.run("cluster up", || cluster::up(paths, false))
}

/// Of lines of seconds and a name, the longest first.
fn slowest(lines: &str) -> Vec<(String, f64)> {
    let mut all: Vec<(String, f64)> = lines
        .lines()
        .filter_map(|line| {
            let (seconds, name) = line.split_once(' ')?;
            Some((name.to_owned(), seconds.parse().ok()?))
        })
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(SLOWEST);
    all
}

fn cargo(paths: &Paths, args: &[&str]) -> Command {
    let mut command = cmd("cargo", args);
    command.current_dir(&paths.repo);
    command
}

fn e2e_tests(paths: &Paths, name: &str) -> Command {
    cargo(paths, &["test", "--locked", "--workspace", "--features", "e2e/cluster", "--test", name])
}

fn tests(paths: &Paths, options: &Options, name: &str, threads: usize) -> Result<()> {
    let mut command = e2e_tests(paths, name);
    command.args(["--quiet", "--", &format!("--test-threads={threads}")]).args(&options.filter);
    command.env("KRUISE_E2E_STATE", &paths.state).show()
}
