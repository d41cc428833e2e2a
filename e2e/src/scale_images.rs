//! Part of `make bench-scale`: one ImagePullJob on a thousand nodes, which are played through their NodeImages
//! ([`node_images`](crate::node_images)). What counts is what the manager writes for each of them, by the API server's own
//! log; daemons answer at once, so the time is the manager's.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kit::{Look, Test, poll};
use crate::measure::{Table, settle, writes};
use crate::node_images::{Daemons, PLAYED, played};
use crate::paths::Paths;

const JOB: &str = "ImagePullJob";
const PATIENCE: Duration = Duration::from_secs(300);

/// `t` makes the nodes and plays the daemons: a user whom the audit log leaves out.
pub(crate) async fn measure(t: &Test, paths: &Paths, nodes: usize, table: &mut Table) -> Result<()> {
    let set = played(t, nodes).await?;
    let daemons = Daemons::start(t, &set, 0..usize::MAX);
    settle().await;
    let (from, begun) = (Timestamp::now(), Instant::now());
    let job = json!({ "kind": JOB, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": "many" }, "spec": {
        "image": "registry.example/app:v1", "parallelism": nodes.div_ceil(10),
        "selector": { "matchLabels": { PLAYED: set } },
        "completionPolicy": { "type": "Always" } } });
    t.create(job).await?;
    let done = t.wait_for(JOB, "many", "to be over", PATIENCE, |o| o.has("/status/completionTime")).await?;
    let took = begun.elapsed().as_secs_f64();
    let count = i64::try_from(nodes)?;
    ensure!((done.int("/status/desired"), done.int("/status/succeeded")) == (count, count), "{done:#}");
    let what = format!("one ImagePullJob, {nodes} nodes, a tenth of them at a time");
    table.row(&format!("{what}: to its end"), "", format!("{took:.1} s"));
    table.row("most nodes at a time", &nodes.div_ceil(10).to_string(), daemons.most().to_string());

    // What it told the nodes goes with it.
    t.remove(JOB, "many").await?;
    let of_set = format!("{PLAYED}={set}");
    poll("what the job told the nodes to go", PATIENCE, async || {
        let all = t.list("NodeImage", &of_set).await?;
        let is_empty = |o: &&Value| o["spec"]["images"].as_object().is_none_or(serde_json::Map::is_empty);
        let empty = all.iter().filter(is_empty).count();
        ensure!(empty == nodes, "{empty} of {nodes} are empty");
        Ok(())
    })
    .await?;
    settle().await;
    let written = writes(paths, (from, Timestamp::now()))?;
    println!("what the manager wrote for an ImagePullJob on {nodes} nodes, with its deletion:");
    for (what, n) in &written {
        println!("  {n:>6}  {:>6.3} a node  {what}", *n as f64 / nodes as f64);
    }
    let total: usize = written.values().sum();
    let each = format!("{:.2}", total as f64 / nodes as f64);
    table.row("manager: API writes per node, with the job's deletion", "3", each);
    daemons.remove(t).await
}
