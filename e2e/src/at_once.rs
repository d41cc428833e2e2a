//! Part of `make bench`: many restarts at the same moment, beside as many bare stops.
//!
//! Both sides have Pods of one container each, which were never restarted. The bare side is one process that sends every
//! StopContainer at once and does nothing else. What is measured ends with kubelet's last word that a new
//! instance is ready, or with the last request being Completed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, future, stream};

use crate::bare_stops::BareStops;
use crate::kit::{Container, Look, PATIENCE, Test, app, condition, crr, pod};
use crate::measure::{Table, follow, processor_times, programs, settle};
use crate::paths::Paths;

const CRR: &str = "ContainerRecreateRequest";

pub(crate) async fn measure(t: &Test, paths: &Paths, count: usize, table: &mut Table) -> Result<()> {
    let names = |side: &str| (0..count).map(|i| format!("{side}-once-{i}")).collect::<Vec<_>>();
    let (asked, bare) = (names("asked"), names("bare"));
    let all: Vec<&String> = asked.iter().chain(&bare).collect();
    let ids = make(t, &all).await?;
    let (ready, completed) = (Moments::default(), Moments::default());
    let (for_pods, for_requests) = (ready.clone(), completed.clone());
    let watches = [
        follow(t, "Pod", move |p| {
            if Container::all(p).get("main").is_some_and(|c| c.ready && c.restarts == 1) {
                for_pods.note(p.text("/metadata/name"));
            }
        }),
        follow(t, CRR, move |o| {
            if o.text("/status/phase") == "Completed"
                && o.text("/status/containerRecreateStates/0/phase") == "Succeeded"
            {
                for_requests.note(o.text("/metadata/name"));
            }
        }),
    ];
    // The connections of this process are no part of what is measured.
    let look = |name: &String| {
        let name = name.clone();
        async move { t.get("Pod", &name).await }
    };
    stream::iter(&asked).map(look).buffer_unordered(count).try_for_each(|_| future::ready(Ok(()))).await?;
    settle().await;

    let programs = programs(t, paths).await?;
    let before = processor_times(&programs);
    let start = Instant::now();
    let create = |name: &String| {
        let request = crr(name, name, &["main"]);
        async move { t.create(request).await.map(drop) }
    };
    stream::iter(&asked).map(create).buffer_unordered(count).try_collect::<()>().await?;
    let took_requests = completed.all(&asked, start).await?;
    let ready_in = ready.all(&asked, start).await?;
    let with_requests = processor_times(&programs);
    settle().await;

    let mut stops = BareStops::connect(paths)?;
    let list: Vec<&str> = bare.iter().map(|name| ids[name.as_str()].as_str()).collect();
    settle().await;
    let settled = processor_times(&programs);
    let start = stops.stop(&list)?;
    let took_bare = ready.all(&bare, start).await?;
    let with_bare = processor_times(&programs);
    stops.end()?;
    for watch in watches {
        watch.abort();
    }

    // Where a difference comes from: other load on the machine does not show here.
    println!("processor time of {count} restarts, requests and bare stops:");
    for (i, (name, _)) in programs.iter().enumerate() {
        println!("  {name:<28}{:>7.2} s{:>7.2} s", with_requests[i] - before[i], with_bare[i] - settled[i]);
    }
    let limit = took_bare.mul_f64(1.15) + Duration::from_secs(1);
    let seconds = |d: Duration| format!("{:.2} s", d.as_secs_f64());
    table.row(&format!("{count} bare stops at once -> the last one ready"), "", seconds(took_bare));
    table.row(&format!("{count} requests at once -> the last one's container ready"), "", seconds(ready_in));
    table.row(
        &format!("{count} requests at once -> the last one Completed"),
        &format!("{} (1.15x + 1 s)", seconds(limit)),
        seconds(took_requests),
    );
    for name in &all {
        t.remove("Pod", name).await?;
    }
    for name in &all {
        t.gone("Pod", name).await?;
    }
    Ok(())
}

/// Makes Pods, and waits until they are ready: the ids of their containers, by the names of the Pods.
async fn make<'n>(t: &Test, names: &[&'n String]) -> Result<BTreeMap<&'n str, String>> {
    for name in names {
        t.create(pod(name, vec![app("main")])).await?;
    }
    let mut ids = BTreeMap::new();
    for name in names {
        t.wait_for("Pod", name, "to be Ready", PATIENCE * 5, |p| condition(p, "Ready") == "True").await?;
        let containers = t.containers(name).await?;
        ids.insert(name.as_str(), containers.get("main").context("the container")?.id.clone());
    }
    Ok(ids)
}

/// When a name was first noted.
#[derive(Clone, Default)]
struct Moments(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Moments {
    fn note(&self, name: &str) {
        if let Ok(mut seen) = self.0.lock() {
            seen.entry(name.to_owned()).or_insert_with(Instant::now);
        }
    }

    /// Waits until every name was noted; the time from `start` to the last one.
    async fn all(&self, names: &[String], start: Instant) -> Result<Duration> {
        let waited = Instant::now();
        loop {
            let moments = self.0.lock().map_err(|_| anyhow::anyhow!("a watch panicked"))?.clone();
            let noted: Vec<&Instant> = names.iter().filter_map(|name| moments.get(name)).collect();
            if noted.len() == names.len() {
                let last = noted.into_iter().max().context("no names")?;
                return Ok(last.duration_since(start));
            }
            ensure!(waited.elapsed() < PATIENCE * 5, "{} of {} came", noted.len(), names.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
