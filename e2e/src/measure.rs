//! What the benchmarks measure with: processor time and memory of processes, watches, calls in the audit log, and the
//! table that is printed.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;

use crate::audit;
use crate::cluster::PROGRAMS;
use crate::kit::{Container, Look, Test};
use crate::paths::{NODE, Paths, SYSTEM};
use crate::process::{self, Process};

/// What a process uses.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Resident, in MB.
    pub(crate) memory: f64,
    /// The most that ever was.
    pub(crate) peak: f64,
    /// Seconds since its start.
    pub(crate) cpu: f64,
}

impl Usage {
    pub(crate) fn of(process: Process) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid))?;
        let megabytes = |name: &str| {
            let value = status.lines().find_map(|l| l.strip_prefix(name)).with_context(|| name.to_owned())?;
            anyhow::Ok(value.trim().trim_end_matches(" kB").parse::<f64>()? / 1000.0)
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid))?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_whitespace().collect();
        // utime and stime, in hundredths of a second on every Linux that matters
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default();
        Ok(Self { memory: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")?, cpu: (ticks(11) + ticks(12)) / 100.0 })
    }
}

/// The processes of the installation on the real node, by the name of their Pod without the hash of its set.
pub(crate) async fn processes(t: &Test) -> Result<Vec<(String, Process)>> {
    let mut found = Vec::new();
    for pod in t.list_in(SYSTEM, "Pod", "").await?.iter().filter(|p| p.text("/spec/nodeName") == NODE) {
        let name = pod.text("/metadata/generateName").trim_end_matches('-');
        let name = match pod.text("/metadata/labels/pod-template-hash") {
            "" => name,
            hash => name.trim_end_matches(hash).trim_end_matches('-'),
        };
        for container in Container::all(pod).into_values() {
            found.push((name.to_owned(), t.node().process(&container.id).await?));
        }
    }
    Ok(found)
}

/// The programs of the cluster, the processes of the installation, and this one, which watches and so costs too.
pub(crate) async fn programs(t: &Test, paths: &Paths) -> Result<Vec<(String, Process)>> {
    let cluster = PROGRAMS.iter().filter_map(|name| Some(((*name).to_owned(), process::running(paths, name)?)));
    let own = Process::of(std::process::id()).map(|own| ("this bench".to_owned(), own));
    Ok(cluster.chain(processes(t).await?).chain(own).collect())
}

pub(crate) fn processor_times(programs: &[(String, Process)]) -> Vec<f64> {
    programs.iter().map(|(_, process)| Usage::of(*process).map_or(0.0, |usage| usage.cpu)).collect()
}

/// kubelet and the API server have nothing left to do from what came before.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// Watches one kind in the test's namespace.
pub(crate) fn follow(
    t: &Test,
    kind: &str,
    mut note: impl FnMut(&Value) + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let stream = watcher::watcher(t.api(kind), watcher::Config::default());
    tokio::spawn(async move {
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            if let Ok(Event::Apply(object) | Event::InitApply(object)) = event
                && let Ok(object) = serde_json::to_value(object)
            {
                note(&object);
            }
        }
    })
}

/// Calls of the product by role and by what they were, in each of some spans of time, from the audit log. The renewal of
/// the Lease is left out: it costs the same whatever is going on.
pub(crate) fn calls(paths: &Paths, spans: &[(Timestamp, Timestamp)]) -> Result<Vec<BTreeMap<(String, String), usize>>> {
    let mut found = vec![BTreeMap::new(); spans.len()];
    let ours = format!("system:serviceaccount:{SYSTEM}:kruise-");
    audit::entries(paths, &ours, |entry| {
        let resource = entry.text("/objectRef/resource");
        let Some(role) = entry.text("/user/username").strip_prefix(&ours) else { return };
        if entry.text("/stage") != "ResponseComplete" || resource == "leases" {
            return;
        }
        let Ok(at) = entry.text("/requestReceivedTimestamp").parse::<Timestamp>() else { return };
        let subresource = entry.text("/objectRef/subresource");
        let slash = if subresource.is_empty() { "" } else { "/" };
        let what =
            format!("{} {resource}{slash}{subresource} {}", entry.text("/verb"), entry.int("/responseStatus/code"));
        for (calls, _) in found.iter_mut().zip(spans).filter(|(_, (from, to))| (*from..*to).contains(&at)) {
            *calls.entry((role.to_owned(), what.clone())).or_default() += 1;
        }
    })?;
    Ok(found)
}

/// What the manager wrote in a span of time besides Events, by what it was.
pub(crate) fn writes(paths: &Paths, span: (Timestamp, Timestamp)) -> Result<BTreeMap<String, usize>> {
    let calls = calls(paths, &[span])?.pop().unwrap_or_default();
    let is_write = |what: &str| {
        ["create ", "update ", "patch ", "delete ", "deletecollection "].iter().any(|verb| what.starts_with(verb))
    };
    let of_manager = calls.into_iter().filter(|((role, what), _)| role == "manager" && is_write(what));
    Ok(of_manager.filter(|((_, what), _)| !what.contains(" events ")).map(|((_, what), n)| (what, n)).collect())
}

/// Enough randomness to begin at no particular moment.
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new() -> Self {
        Self(u64::try_from(Timestamp::now().as_nanosecond() & 0xffff_ffff).unwrap_or(1) | 1)
    }
    pub(crate) fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(from + (self.0 >> 33) % (to - from))
    }
}

/// The middle of some values; of an even number of them the middle of the two.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => sorted.get(middle).copied(),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Median with its 95 % interval by ranks, and the tail.
pub(crate) fn summary(seconds: &[f64]) -> String {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return "nothing measured".to_owned();
    }
    let n = sorted.len();
    let rank = |share: f64| sorted[((n as f64 * share) as usize).min(n - 1)];
    let half = 1.96 * (n as f64).sqrt() / 2.0 / n as f64;
    let text = |s: f64| if s < 0.9 { format!("{:.0} ms", s * 1000.0) } else { format!("{s:.2} s") };
    let (low, high) = (text(rank((0.5 - half).max(0.0))), text(rank(0.5 + half)));
    format!("p50 {} ({low} to {high}), p90 {}, p99 {}, n={n}", text(rank(0.5)), text(rank(0.9)), text(rank(0.99)))
}

/// As the tables print it.
pub(crate) fn megabytes(value: f64) -> String {
    format!("{value:.1} MB")
}

/// The figures, and what each must reach.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 3]>,
}

impl Table {
    pub(crate) fn row(&mut self, figure: &str, goal: &str, value: String) {
        println!("{figure}: {value}");
        self.rows.push([figure.to_owned(), goal.to_owned(), value]);
    }
    pub(crate) fn print(&self) {
        let heads = ["figure".to_owned(), "must reach".to_owned(), "measured".to_owned()];
        let width = |i: usize| self.rows.iter().chain([&heads]).map(|r| r[i].chars().count()).max().unwrap_or_default();
        println!();
        for row in [&heads].into_iter().chain(&self.rows) {
            println!("{:<a$}  {:<b$}  {}", row[0], row[1], row[2], a = width(0), b = width(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{median, summary};

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn the_summary_takes_ranks_of_the_sorted_times() {
        let times: Vec<f64> = (0..100).rev().map(|i| f64::from(i) / 1000.0).collect();
        assert_eq!(summary(&times), "p50 50 ms (40 ms to 59 ms), p90 90 ms, p99 99 ms, n=100");
        assert_eq!(summary(&[]), "nothing measured");
    }
}
