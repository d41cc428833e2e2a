//! Played nodes: they are ready as long as somebody says so.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::PLAYED;
use crate::kit::{Look, Test};

/// The node controller asks for a sign of life every 50 s.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Nodes that nobody but this harness plays; ready until [`Nodes::remove`].
pub struct Nodes {
    t: Test,
    names: Vec<String>,
    heartbeats: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Makes them. `heartbeats` is for a cluster whose node controller asks for signs of life.
    pub async fn make(t: &Test, prefix: &str, count: std::ops::Range<usize>, heartbeats: bool) -> Result<Self> {
        Self::make_with(t, prefix, count, heartbeats, &json!({})).await
    }

    /// The same with a status that they have when they are created, as kubelet registers its node.
    pub async fn make_with(
        t: &Test,
        prefix: &str,
        count: std::ops::Range<usize>,
        heartbeats: bool,
        status: &Value,
    ) -> Result<Self> {
        let names: Vec<String> = count.map(|i| format!("{prefix}{i:04}")).collect();
        let make = |name: &String| {
            let node = json!({ "kind": "Node", "metadata": { "name": name, "labels": {
                PLAYED: "true", "kubernetes.io/hostname": name } },
                "spec": { "taints": [{ "key": PLAYED, "value": "true", "effect": "NoSchedule" }] },
                "status": status });
            async move { t.create(node).await.map(drop) }
        };
        stream::iter(&names).map(make).buffer_unordered(16).try_collect::<()>().await.context("make played nodes")?;
        let api = t.api("Node");
        beat(&api, &names).await?;
        let beats = |names: Vec<String>| async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                if let Err(error) = beat(&api, &names).await {
                    eprintln!("a played node was not heard: {error:#}");
                }
            }
        };
        let heartbeats = heartbeats.then(|| tokio::spawn(beats(names.clone())));
        Ok(Self { t: t.clone(), names, heartbeats })
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Waits until Pods can be scheduled on them: the API server gives new nodes a taint that the node controller takes off.
    pub async fn schedulable(&self) -> Result<()> {
        let wanted: BTreeSet<&str> = self.names.iter().map(String::as_str).collect();
        let start = Instant::now();
        loop {
            let nodes = self.t.list("Node", PLAYED).await?;
            let free = nodes.iter().filter(|n| n.array("/spec/taints").len() == 1);
            let free = free.filter(|n| wanted.contains(n.text("/metadata/name"))).count();
            if free == wanted.len() {
                return Ok(());
            }
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(120),
                "{free} of {} played nodes are free of the taint of new ones after 120 s",
                wanted.len()
            );
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    pub async fn remove(self) -> Result<()> {
        for name in &self.names {
            self.t.remove("Node", name).await?;
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats.abort();
        }
    }
}

async fn beat(api: &Api<DynamicObject>, names: &[String]) -> Result<()> {
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "250" });
    let status = json!({ "status": { "capacity": room, "allocatable": room,
        "addresses": [{ "type": "InternalIP", "address": "10.127.0.1" }],
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played",
            "lastHeartbeatTime": now, "lastTransitionTime": now }] } });
    let say = |name: &String| {
        let (name, patch) = (name.clone(), Patch::Strategic(status.clone()));
        async move { api.patch_status(&name, &PatchParams::default(), &patch).await.map(drop) }
    };
    stream::iter(names)
        .map(say)
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
        .context("say that played nodes are ready")
}
