//! `make bench`: the figures that kruise-rs promises, measured in one run and printed beside what they must reach.
//!
//! kubelet looks at its containers once a second, so every time that ends with kubelet carries up to a second of noise.
//! Requests and bare stops beside them are counted from the moment before the call that begins them. The own share is therefore measured directly: from the answer to the creation of a request to the exit of the old
//! instance in the runtime's own event, and from the new instance being ready in a Pod watch to Completed in a watch of
//! the request. Requests begin at random moments, and each container is restarted once: kubelet delays the second
//! restart. Relations within one run count; nothing here is a test.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;

use crate::bare_stops::BareStops;
use crate::kit::{Build, Container, Look, PATIENCE, RuntimeEvents, Test, app, crr, pod};
use crate::measure::{Jitter, Table, Usage, follow, processes, summary};
use crate::paths::{Paths, SYSTEM};
use crate::{at_once, audit, bench_images, bench_methods, bench_probes, bench_workload};

const CRR: &str = "ContainerRecreateRequest";
const CONTAINERS_PER_POD: usize = 10;

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Requests whose times are measured; as many bare stops are measured beside them.
    pub requests: usize,
    /// Requests made at full speed, to count those that never end; 0 leaves this out.
    pub endurance: usize,
    /// Seconds over which idle roles are watched.
    pub idle: u64,
    /// Requests made at the same moment; 0 leaves this out.
    pub at_once: usize,
    /// Pods of the workload that is restarted as a whole; 0 leaves this out.
    pub workload: usize,
    /// Requests of method PodSpec whose times are measured beside bare stops; 0 leaves this out.
    pub methods: usize,
    /// Images that are pulled by jobs, and as many beside them by the runtime alone; 0 leaves this out.
    pub images: usize,
    /// Seconds over which probes of a hundred containers are measured, for each handler; 0 leaves this out.
    pub probes: u64,
}

pub fn run(paths: &Paths, options: Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let test = Test::new("bench").await?;
        let result = measure(&test, paths, options).await;
        test.remove("Namespace", &test.namespace).await?;
        result
    })
}

/// Restarts so many containers by requests, beside as many bare stops, and prints the times; those from the call to Completed, in
/// seconds.
pub fn restarts(paths: &Paths, requests: usize) -> Result<Vec<f64>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let test = Test::new("restarts").await?;
        let mut table = Table::default();
        let times = latency(&test, paths, requests, &mut table).await;
        test.remove("Namespace", &test.namespace).await?;
        times
    })
}

async fn measure(t: &Test, paths: &Paths, options: Options) -> Result<()> {
    let mut table = Table::default();
    let executable = fs::metadata(paths.product_image().with_file_name("context").join("kruise-rs"));
    if let Ok(executable) = executable {
        table.row("executable, stripped", "22 MB", format!("{:.1} MB", executable.len() as f64 / 1e6));
    }
    if options.idle > 0 {
        idle(t, options.idle, &mut table).await?;
    }
    if options.requests > 0 {
        latency(t, paths, options.requests, &mut table).await?;
        memory_with_many_pods(t, &mut table).await?;
    }
    if options.methods > 0 {
        bench_methods::measure(t, paths, options.methods, &mut table).await?;
    }
    if options.at_once > 0 {
        at_once::measure(t, paths, options.at_once, &mut table).await?;
    }
    if options.workload > 0 {
        bench_workload::measure(t, paths, options.workload, &mut table).await?;
    }
    if options.images > 0 {
        bench_images::measure(t, paths, options.images, &mut table).await?;
    }
    if options.probes > 0 {
        bench_probes::measure(t, options.probes, &mut table).await?;
    }
    if options.endurance > 0 {
        let open = endurance(t, options.endurance).await?;
        table.row(&format!("requests that never end, of {}", options.endurance), "0", open.to_string());
    }
    table.print();
    Ok(())
}

/// Memory and processor time of every role while nothing happens.
async fn idle(t: &Test, seconds: u64, table: &mut Table) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = roles(t).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    for (role, now) in roles(t).await? {
        let limit = match role.as_str() {
            r if r.contains("daemon") => "10 MB",
            r if r.contains("controller") => "14 MB",
            _ => "",
        };
        table.row(&format!("{role}: memory, idle"), limit, format!("{:.1} MB", now.memory));
        let used = before.get(&role).map_or(0.0, |then| now.cpu - then.cpu);
        table.row(&format!("{role}: processor time, idle, {seconds} s"), "0.1 s", format!("{used:.2} s"));
    }
    Ok(())
}

/// What each role uses; of several replicas the largest.
async fn roles(t: &Test) -> Result<BTreeMap<String, Usage>> {
    let mut found: BTreeMap<String, Usage> = BTreeMap::new();
    for (name, process) in processes(t).await? {
        let usage = Usage::of(process)?;
        match found.get(&name) {
            Some(other) if other.memory > usage.memory => {}
            _ => {
                found.insert(name, usage);
            }
        }
    }
    Ok(found)
}

/// When watches first showed what counts, in one clock.
#[derive(Default)]
struct Seen {
    /// Pod/container to the moments at which an instance was first shown ready, by its restart count.
    ready: BTreeMap<(String, i64), Instant>,
    completed: BTreeMap<String, Instant>,
}

async fn latency(t: &Test, paths: &Paths, requests: usize, table: &mut Table) -> Result<Vec<f64>> {
    let pods = requests.div_ceil(CONTAINERS_PER_POD);
    let names: Vec<String> = (0..CONTAINERS_PER_POD).map(|i| format!("c{i}")).collect();
    let containers = || names.iter().map(|n| app(n)).collect::<Vec<_>>();
    let all: Vec<String> = (0..pods).flat_map(|i| [format!("asked-{i}"), format!("bare-{i}")]).collect();
    for name in &all {
        t.create(pod(name, containers())).await?;
    }
    let mut ids = BTreeMap::new();
    for name in &all {
        t.wait_for("Pod", name, "to be Ready", PATIENCE * 3, |p| crate::kit::condition(p, "Ready") == "True").await?;
        for (container, status) in t.containers(name).await? {
            ids.insert((name.clone(), container), status.id);
        }
    }

    let seen: Arc<Mutex<Seen>> = Arc::default();
    let (for_pods, for_requests) = (Arc::clone(&seen), Arc::clone(&seen));
    let watches = [
        follow(t, "Pod", move |p| {
            let now = Instant::now();
            let Ok(mut seen) = for_pods.lock() else { return };
            for (name, container) in Container::all(p).into_iter().filter(|(_, c)| c.ready) {
                let key = (format!("{}/{name}", p.text("/metadata/name")), container.restarts);
                seen.ready.entry(key).or_insert(now);
            }
        }),
        follow(t, CRR, move |o| {
            let now = Instant::now();
            if o.text("/status/phase") == "Completed"
                && let Ok(mut seen) = for_requests.lock()
            {
                seen.completed.entry(o.text("/metadata/name").to_owned()).or_insert(now);
            }
        }),
    ];
    let (events, mut stops) = (RuntimeEvents::listen()?, BareStops::connect(paths)?);
    tokio::time::sleep(Duration::from_secs(1)).await;

    let mut random = Jitter::new();
    let (mut asked, mut bare) = (Vec::new(), Vec::new());
    for i in 0..requests {
        // one Pod after the other: requests of one Pod would wait for each other
        let (index, container) = (i % pods, &names[i / pods]);
        tokio::time::sleep(random.milliseconds(250, 1250)).await;
        let (name, pod) = (format!("r{i}"), format!("asked-{index}"));
        let called = Instant::now();
        t.create(crr(&name, &pod, &[container])).await?;
        asked.push(Asked { name, pod, container: container.clone(), called, answered: Timestamp::now() });

        tokio::time::sleep(random.milliseconds(250, 1250)).await;
        let pod = format!("bare-{index}");
        let id = ids.get(&(pod.clone(), container.clone())).context("a container has an id")?;
        bare.push((format!("{pod}/{container}"), stops.stop(&[id])?));
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    stops.end()?;
    for watch in watches {
        watch.abort();
    }

    let seen = std::mem::take(&mut *seen.lock().map_err(|_| anyhow::anyhow!("a watch panicked"))?);
    let times = evaluate(&seen, &events, &ids, &asked, &bare, table)?;
    let writes = writes(paths, &t.namespace)?;
    let total: usize = writes.values().sum();
    table.row("API writes per request, besides Events", "4", format!("{:.2}", total as f64 / requests as f64));
    let writes: Vec<String> = writes.iter().map(|(what, n)| format!("{n} {what}")).collect();
    println!("API writes of {requests} requests: {}", writes.join(", "));
    for name in &all {
        t.remove("Pod", name).await?;
    }
    for name in &all {
        t.gone("Pod", name).await?;
    }
    Ok(times)
}

/// One request: the moment before the call, and when it was answered.
struct Asked {
    name: String,
    pod: String,
    container: String,
    called: Instant,
    answered: Timestamp,
}

fn evaluate(
    seen: &Seen,
    events: &RuntimeEvents,
    ids: &BTreeMap<(String, String), String>,
    asked: &[Asked],
    bare: &[(String, Instant)],
    table: &mut Table,
) -> Result<Vec<f64>> {
    let ready = |path: String| seen.ready.get(&(path, 1));
    let (mut to_exit, mut to_completed, mut end_to_end) = (Vec::new(), Vec::new(), Vec::new());
    for request in asked {
        let id = ids.get(&(request.pod.clone(), request.container.clone())).context("a container has an id")?;
        if let Some(exit) = events.exits(id).first() {
            to_exit.push(exit.at.duration_since(request.answered).as_secs_f64());
        }
        let Some(completed) = seen.completed.get(&request.name) else { continue };
        end_to_end.push(completed.duration_since(request.called).as_secs_f64());
        if let Some(ready) = ready(format!("{}/{}", request.pod, request.container)) {
            // the two watches race: Completed may be shown first
            to_completed.push(completed.saturating_duration_since(*ready).as_secs_f64());
        }
    }
    let bare = bare.iter().filter_map(|(path, at)| Some(ready(path.clone())?.duration_since(*at).as_secs_f64()));
    table.row("request answered -> old instance exited", "p50 20 ms, p99 50 ms", summary(&to_exit));
    table.row("new instance ready -> Completed", "p50 15 ms, p99 50 ms", summary(&to_completed));
    table.row("request sent -> Completed", "", summary(&end_to_end));
    table.row("bare StopContainer sent -> ready", "", summary(&bare.collect::<Vec<_>>()));
    let open = asked.len() - end_to_end.len();
    table.row(&format!("not Completed after 6 s, of {}", asked.len()), "0", open.to_string());
    Ok(end_to_end)
}

/// What our service accounts wrote in a namespace, from the API server's audit log.
pub fn writes(paths: &Paths, namespace: &str) -> Result<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    let ours = format!("system:serviceaccount:{SYSTEM}:");
    audit::entries(paths, &ours, |entry| {
        let user = entry.text("/user/username");
        let verb = entry.text("/verb");
        let resource = entry.text("/objectRef/resource");
        let written = ["create", "update", "patch", "delete"].contains(&verb);
        if written && user.starts_with(&ours) && entry.text("/objectRef/namespace") == namespace && resource != "events"
        {
            let sub = entry.text("/objectRef/subresource");
            let role = user.trim_start_matches(&ours);
            *found.entry(format!("{verb} {resource}/{sub} by {role}")).or_default() += 1;
        }
    })?;
    Ok(found)
}

async fn memory_with_many_pods(t: &Test, table: &mut Table) -> Result<()> {
    let there = t.api_in("", "Pod").list(&kube::api::ListParams::default()).await?.items.len();
    let names: Vec<String> = (there..110).map(|i| format!("many-{i}")).collect();
    for name in &names {
        t.create(pod(name, vec![app("main")])).await?;
    }
    for name in &names {
        t.wait_for("Pod", name, "to be Ready", PATIENCE * 4, |p| crate::kit::condition(p, "Ready") == "True").await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (role, usage) in roles(t).await? {
        let limit = if role.contains("daemon") { "16 MB" } else { "" };
        table.row(&format!("{role}: memory, 110 Pods"), limit, format!("{:.1} MB", usage.memory));
    }
    for name in &names {
        t.remove("Pod", name).await?;
    }
    for name in &names {
        t.gone("Pod", name).await?;
    }
    Ok(())
}

/// Many requests as fast as they go, each for a container that was never restarted; how many are open at the end.
async fn endurance(t: &Test, requests: usize) -> Result<usize> {
    let round = 10 * CONTAINERS_PER_POD;
    let mut open = 0;
    for start in (0..requests).step_by(round) {
        let names: Vec<String> = (0..CONTAINERS_PER_POD).map(|i| format!("c{i}")).collect();
        let pods: Vec<String> = (0..10).map(|i| format!("e{start}-{i}")).collect();
        for name in &pods {
            t.create(pod(name, names.iter().map(|n| app(n)).collect())).await?;
        }
        for name in &pods {
            let ready = |p: &Value| crate::kit::condition(p, "Ready") == "True";
            t.wait_for("Pod", name, "to be Ready", PATIENCE * 3, ready).await?;
        }
        let mut made = Vec::new();
        for container in &names {
            for pod in &pods {
                let name = format!("{pod}-{container}");
                t.create(crr(&name, pod, &[container]).with("/spec/ttlSecondsAfterFinished", 300)).await?;
                made.push(name);
            }
        }
        for name in &made {
            let done = t.completed_within(name, PATIENCE * 2).await;
            let succeeded = done.is_ok_and(|o| o.text("/status/containerRecreateStates/0/phase") == "Succeeded");
            open += usize::from(!succeeded);
        }
        for name in &pods {
            ensure!(
                t.containers(name).await?.values().all(|c| c.restarts == 1),
                "{name}: each was to be restarted once"
            );
            t.remove("Pod", name).await?;
        }
        println!("{} requests made, {open} of them did not end well", (start + round).min(requests));
    }
    Ok(open)
}
