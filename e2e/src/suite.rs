//! `make test`, stage by stage, with the time of each at the end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::cmd::{Answer, CommandExt, cmd};
use crate::paths::Paths;
use crate::process::until;
use crate::tools::UsedBy;
use crate::{cluster, deploy, others, process, product, tools};

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

/// So many failed tests of a program are run once more; when there are more of them, the product or the cluster is ill.
pub(crate) const RUN_AGAIN: usize = 2;

/// The programs of tests, and how many tests run beside each other. Most of a test is waiting, so there are many more of them
/// than processors.
pub(crate) const PROGRAMS: [(&str, usize); 2] = [("parallel", 8), ("serial", 1)];

/// With the same features as the end-to-end tests: other features would build the dependencies once more. Those of the
/// libraries alone: the programs have none, and would need the product compiled once more, without its tests.
const UNIT_TESTS: [&str; 6] = ["test", "--workspace", "--features", "e2e/cluster", "--lib", "--locked"];

/// The examples in the documentation of the crate that other programs use, by itself: with the features that it asks for and
/// none that other crates add, so its dependencies are built once more.
const API_EXAMPLES: [&str; 5] = ["test", "--doc", "--package", "kruise-rs-api", "--locked"];

struct Stages {
    done: Vec<(String, Duration, bool)>,
    /// The tests that took longest, with their seconds.
    tests: Vec<(String, f64)>,
    /// The tests that failed among others and passed by themselves.
    again: Vec<String>,
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
    let mut stages = Stages { done: Vec::new(), tests: Vec::new(), again: Vec::new() };
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
    if !stages.again.is_empty() {
        println!("\nfailed among others, passed by themselves (find out why): {}", stages.again.join(", "));
    }
    if result.is_err() && !options.keep {
        println!("logs of the cluster: {}", paths.kept_logs().display());
    }
    result
}

fn all(paths: &Paths, options: &Options, stages: &mut Stages) -> Result<()> {
    stages.run("packages", tools::packages)?;
    // Each of the two leaves a processor idle at times.
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
    for round in 0..options.rounds.max(1) {
        let mut again = Vec::new();
        let (beside, threads) = PROGRAMS[0];
        let parallel = stages.run("e2e, in parallel", || tests(paths, options, beside, threads, &mut again));
        // the others too, so that one run says all that is wrong
        let with_units = round == 0 && !options.only_e2e;
        let serial = disruptive(paths, options, with_units, stages, &mut again);
        stages.again.append(&mut again);
        stages.tests = slowest(&fs::read_to_string(paths.durations()).unwrap_or_default());
        parallel.and(serial)?;
    }
    Ok(())
}

/// The disruptive tests wait more than they work: the unit tests are built and run meanwhile.
fn disruptive(
    paths: &Paths,
    options: &Options,
    with_units: bool,
    stages: &mut Stages,
    again: &mut Vec<String>,
) -> Result<()> {
    let (alone, one) = PROGRAMS[1];
    std::thread::scope(|scope| {
        let units = with_units.then(|| scope.spawn(move || unit_tests(paths)));
        let serial = stages.run("e2e, disruptive", || tests(paths, options, alone, one, again));
        let Some(units) = units else { return serial };
        let (answers, time) = units.join().map_err(|_| anyhow!("the unit tests panicked"))?;
        let passed = answers.and_then(|answers| {
            for answer in &answers {
                println!("==> unit tests\n{}{}", answer.stderr, answer.stdout);
            }
            ensure!(answers.iter().all(|answer| answer.ok), "unit tests failed");
            Ok(())
        });
        stages.done.push(("unit tests, meanwhile".into(), time, passed.is_ok()));
        serial.and(passed)
    })
}

/// What they and the examples said and how long they took. They stand back where the cluster wants a processor.
fn unit_tests(paths: &Paths) -> (Result<Vec<Answer>>, Duration) {
    // Two cargos build one after the other, and the tests of the cluster are built already.
    let _ = until("the disruptive tests to begin", Duration::from_secs(60), &[], || {
        ensure!(!process::find(|args| args[0].contains("/deps/serial-")).is_empty(), "they have not");
        Ok(())
    });
    let start = Instant::now();
    let run = |args: &[&str]| cmd("nice", ["-n", "10", "cargo"]).args(args).current_dir(&paths.repo).answer();
    let answers = [&UNIT_TESTS[..], &API_EXAMPLES[..]].into_iter().map(run).collect();
    (answers, start.elapsed())
}

/// What needs no image.
fn meanwhile(paths: &Paths, options: &Options, stages: &mut Stages) -> Result<()> {
    stages.run("tools and more packages", || tools::install(paths, &[UsedBy::Tests]))?;
    if !options.only_e2e {
        stages.run("promtool, Argo CD's Lua", || others::check(paths))?;
    }
    stages.run("build the e2e tests", || build_tests(paths))?;
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

/// Runs one program of tests. Most of what these tests do is wait with a deadline, and a machine may stand still for longer:
/// what fails among others is run once more by itself, and is named in the table at the end when it passes then.
fn tests(paths: &Paths, options: &Options, name: &str, threads: usize, again: &mut Vec<String>) -> Result<()> {
    let failed = failures(paths, name, threads, &options.filter)?;
    if failed.is_empty() {
        return Ok(());
    }
    // a soak looks for what fails now and then
    ensure!(
        failed.len() <= RUN_AGAIN && options.rounds <= 1,
        "{} of the {name} tests failed: {}",
        failed.len(),
        failed.join(", ")
    );
    println!("==> once more, by itself: {}", failed.join(", "));
    let still = failures(paths, name, 1, &exactly(&failed))?;
    ensure!(still.is_empty(), "{name} tests failed again: {}", still.join(", "));
    again.extend(failed);
    Ok(())
}

/// The arguments for the test program that run these tests and no other.
pub(crate) fn exactly(names: &[impl ToString]) -> Vec<String> {
    std::iter::once("--exact".to_owned()).chain(names.iter().map(ToString::to_string)).collect()
}

/// Runs one program of tests, `parallel` or `serial`, so many at a time; which of them fail. An error when the program does not
/// come to its end.
pub(crate) fn failures(paths: &Paths, name: &str, threads: usize, arguments: &[String]) -> Result<Vec<String>> {
    let mut command = e2e_tests(paths, name);
    command.args(["--quiet", "--", &format!("--test-threads={threads}")]).args(arguments);
    let (succeeded, output) = command.env("KRUISE_E2E_STATE", &paths.state).show_and_keep()?;
    let failed = if succeeded { Vec::new() } else { listed(&output) };
    ensure!(succeeded || !failed.is_empty(), "the {name} tests did not come to their end");
    Ok(failed)
}

/// Builds both programs of tests.
pub(crate) fn build_tests(paths: &Paths) -> Result<()> {
    e2e_tests(paths, "parallel").args(["--test", "serial", "--no-run"]).show()
}

/// The names of the tests that failed, from the list at the end of what their program printed.
fn listed(output: &str) -> Vec<String> {
    let Some((_, list)) = output.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod reading {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn the_failed_tests_are_read_from_the_list_at_the_end() {
        let output = "\nrunning 3 tests\n.F\nfailures:\n\n---- a::first stdout ----\n    indented\nError: no\n\n\
                      failures:\n    a::first\n    b::second\n\ntest result: FAILED. 1 passed; 2 failed;\n";
        assert_eq!(listed(output), ["a::first", "b::second"]);
        assert_eq!(listed("test result: ok. 3 passed\n"), Vec::<String>::new());
        assert_eq!(listed("running 3 tests\n.."), Vec::<String>::new(), "a program that was killed");
    }

    /// Nobody would run them.
    #[test]
    fn the_programs_have_no_unit_tests_and_no_modules_of_their_own() {
        let repo = Paths::default().repo;
        for file in ["src/main.rs", "e2e/src/main.rs", "e2e/load-nodes.rs"] {
            let text = fs::read_to_string(repo.join(file)).unwrap();
            let found: Vec<&str> = text
                .lines()
                .map(str::trim_start)
                .filter(|line| {
                    line.contains("#[test]") || line.starts_with("#[tokio::test") || line.starts_with("mod ")
                })
                .collect();
            assert!(found.is_empty(), "{file}: {found:?}");
        }
    }

    /// The lines of a file at which examples begin that rustdoc takes for tests: those in Rust.
    fn examples(text: &str) -> Vec<&str> {
        let docs = text.lines().map(str::trim_start).filter(|line| line.starts_with("//!") || line.starts_with("///"));
        let fences = docs.filter(|line| line[3..].trim_start().starts_with("```"));
        // every second one ends an example
        let begins = fences.step_by(2);
        begins.filter(|line| matches!(line[3..].trim(), "```" | "```rust" | "```no_run" | "```should_panic")).collect()
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// `make test` runs no others.
    #[test]
    fn all_examples_in_rust_are_in_the_crate_whose_examples_are_run() {
        assert_eq!(examples("//! ```\n//! a();\n//! ```\n/// ```text\n/// b\n/// ```\nfn c() {}"), ["//! ```"]);
        let repo = Paths::default().repo;
        let mut files = Vec::new();
        ["src", "e2e/src"].iter().for_each(|folder| sources(&repo.join(folder), &mut files));
        let with: Vec<PathBuf> =
            files.into_iter().filter(|file| !examples(&fs::read_to_string(file).unwrap()).is_empty()).collect();
        assert!(with.iter().any(|file| file.ends_with("src/api/mod.rs")), "{with:?}");
        assert!(with.iter().all(|file| file.starts_with(repo.join("src/api"))), "{with:?}");
    }
}
