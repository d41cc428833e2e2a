//! `make versions`: the core tests and the time of a restart on every pair of versions, and a table of it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::measure::median;
use crate::paths::Paths;
use crate::tools::UsedBy;
use crate::versions::Pair;
use crate::{bench, cluster, core_tests, deploy, load, product, suite, tools};

/// Restarts whose times are measured on each pair.
const RESTARTS: usize = 32;

/// What was seen of one pair.
struct Seen {
    pair: &'static Pair,
    result: String,
    /// Seconds from the call that creates a request to Completed, the middle of [`RESTARTS`].
    restart: Option<f64>,
    time: Duration,
    good: bool,
}

/// Runs the pairs one after the other and prints the table; it is kept in `target/versions.md`, also while pairs remain.
/// An error when one of them failed.
pub fn run(pairs: &[&'static Pair]) -> Result<()> {
    println!(
        "The core tests and {RESTARTS} measured restarts on each of: {}",
        pairs.iter().map(|p| p.name()).collect::<Vec<_>>().join(", ")
    );
    println!("The first time the programs of a pair are built, which takes minutes. All times are printed at the end.");
    let mut all = Vec::new();
    for pair in pairs {
        println!("\n===> Kubernetes {} with containerd {}", pair.kubernetes, pair.runtime_version());
        let seen = one(pair);
        println!("===> {}: {} ({} s)", pair.name(), seen.result, seen.time.as_secs());
        all.push(seen);
        let kept = Paths::of(pair).repo.join("target/versions.md");
        fs::create_dir_all(kept.parent().context("a file has a directory")?)?;
        fs::write(kept, table(&all))?;
    }
    println!("\n{}\n{}", table(&all), times(&all));
    let bad: Vec<String> = all.iter().filter(|seen| !seen.good).map(|seen| seen.pair.name()).collect();
    ensure!(bad.is_empty(), "not all is well with {}", bad.join(", "));
    Ok(())
}

fn one(pair: &'static Pair) -> Seen {
    let start = Instant::now();
    let seen =
        |result: String, restart: Option<f64>, good: bool| Seen { pair, result, restart, time: start.elapsed(), good };
    if let Some(reason) = pair.impossible {
        return seen(format!("cannot run here: {reason}"), None, true);
    }
    let paths = Paths::of(pair);
    let mut restart = None;
    let outcome = on_cluster(&paths, &mut restart);
    if let Err(error) = cluster::down(&paths) {
        eprintln!("the cluster does not go: {error:#}");
    }
    match outcome {
        Ok(failed) => {
            let tests = suite::PROGRAMS.iter().map(|(program, _)| core_tests::names(program, pair.minor()).len()).sum();
            seen(verdict(tests, &failed), restart, failed.is_empty())
        }
        Err(error) => {
            eprintln!("{error:#}");
            // the first line says what, the others show logs
            let first = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
            seen(format!("did not come to its end: {first}"), restart, false)
        }
    }
}

/// Brings up a cluster, measures and tests on it; the tests that failed.
fn on_cluster(paths: &Paths, restart: &mut Option<f64>) -> Result<Vec<String>> {
    tools::install(paths, &[UsedBy::Tests])?;
    product::build(paths)?;
    // restarts are measured beside the bare stops that it makes
    load::build(paths)?;
    suite::build_tests(paths)?;
    cluster::up(paths, false)?;
    deploy::deploy(paths)?;
    *restart = median(&bench::restarts(paths, RESTARTS)?);
    let mut failed = Vec::new();
    for (program, threads) in suite::PROGRAMS {
        let names = core_tests::names(program, paths.pair.minor());
        let first = suite::failures(paths, program, threads, &suite::exactly(&names))?;
        if first.is_empty() {
            continue;
        }
        // as `make test` does: a machine may stand still for longer than a test waits
        println!("==> once more, by itself: {}", first.join(", "));
        let still = suite::failures(paths, program, 1, &suite::exactly(&first))?;
        failed.extend(still.into_iter().map(|name| format!("{program} {name}")));
    }
    Ok(failed)
}

fn verdict(tests: usize, failed: &[String]) -> String {
    match failed {
        [] => format!("all {tests} core tests pass"),
        failed => format!("{} of {tests} core tests fail: {}", failed.len(), failed.join(", ")),
    }
}

/// In Markdown, as docs/versions.md quotes it.
fn table(all: &[Seen]) -> String {
    let mut text = format!("| Kubernetes | containerd | result | restart, p50 of {RESTARTS} |\n|---|---|---|---|\n");
    for seen in all {
        let restart = seen.restart.map_or_else(|| "-".into(), |seconds| format!("{seconds:.2} s"));
        // a bar would end the cell
        let result = seen.result.replace('|', "/");
        text += &format!("| {} | {} | {result} | {restart} |\n", seen.pair.kubernetes, seen.pair.runtime_version());
    }
    text
}

/// How long each pair took, and all of them.
fn times(all: &[Seen]) -> String {
    let mut text: String =
        all.iter().map(|seen| format!("{}: {} s\n", seen.pair.name(), seen.time.as_secs())).collect();
    let minutes = all.iter().map(|seen| seen.time).sum::<Duration>().as_secs_f64() / 60.0;
    text += &format!("all: {minutes:.0} min");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions;

    #[test]
    fn the_table_has_a_line_for_each_pair() {
        let seen = |at: usize, result: &str, restart| Seen {
            pair: &versions::PAIRS[at],
            result: result.into(),
            restart,
            time: Duration::ZERO,
            good: true,
        };
        let all = [
            seen(0, "cannot run here: no | such thing", None),
            seen(5, &verdict(7, &[]), Some(0.9012)),
            seen(2, &verdict(7, &["serial a::b".into()]), Some(1.8)),
        ];
        assert_eq!(
            table(&all),
            "| Kubernetes | containerd | result | restart, p50 of 32 |\n|---|---|---|---|\n\
             | 1.30.14 | 1.6 (Debian 12) | cannot run here: no / such thing | - |\n\
             | 1.37.2 | 2.4.2 | all 7 core tests pass | 0.90 s |\n\
             | 1.34.4 | 1.6 (Debian 12) | 1 of 7 core tests fail: serial a::b | 1.80 s |\n"
        );
    }

    #[test]
    fn the_times_end_with_that_of_all_pairs() {
        let seen = |at: usize, seconds: u64| Seen {
            pair: &versions::PAIRS[at],
            result: String::new(),
            restart: None,
            time: Duration::from_secs(seconds),
            good: true,
        };
        assert_eq!(times(&[seen(0, 900), seen(5, 1200)]), "1.30+1.6: 900 s\n1.37+2: 1200 s\nall: 35 min");
    }

    #[test]
    fn the_page_on_versions_has_every_pair_and_the_first_page_the_same_table() {
        let [page, first] = ["docs/versions.md", "README.md"]
            .map(|name| fs::read_to_string(Paths::default().repo.join(name)).expect("the page"));
        for pair in &versions::PAIRS {
            let begins = format!("| {} | {} | ", pair.kubernetes, pair.runtime_version());
            let [line, quoted] =
                [&page, &first].map(|page| page.lines().filter(|l| l.starts_with(&begins)).collect::<Vec<_>>());
            assert_eq!(line.len(), 1, "{begins}");
            assert_eq!(quoted, line, "README.md");
        }
    }
}
