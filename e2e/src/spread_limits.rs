//! Many creations at once under a WorkloadSpread: the same look with two and with three replicas of the webhook. And Pods that
//! the webhook misses on a machine that is too busy for an answer in time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream::BoxStream};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use crate::kit::{Build, Look, Test, app, workload};

const KIND: &str = "WorkloadSpread";
const NOTE: &str = "/metadata/annotations/apps.kruise.io~1matched-workloadspread";
/// What was recorded for a Pod that got no answer is given back within half a minute.
const GIVEN_BACK: Duration = Duration::from_secs(40);

/// Deletes Pods that the webhook has missed until this is dropped: others are made in their place. For WorkloadSpread `ws`,
/// where every Pod has a place.
///
/// Such a Pod is first seen without a note; the manager gives it to a subset later, perhaps to another one than the webhook
/// would have.
pub struct Remade {
    task: JoinHandle<()>,
}

impl Remade {
    /// From now on, in the namespace of the test.
    ///
    /// # Errors
    /// The watch does not begin.
    pub async fn follow(t: &Test) -> Result<Self> {
        let mut pods = watcher::watcher(t.api("Pod"), watcher::Config::default()).boxed();
        let mut known = BTreeSet::new();
        loop {
            match pods.next().await.context("the watch has ended")?? {
                Event::InitDone => break,
                Event::InitApply(pod) | Event::Apply(pod) => known.insert(pod.metadata.uid),
                Event::Init | Event::Delete(_) => false,
            };
        }
        Ok(Self { task: tokio::spawn(remake(t.clone(), pods, known)) })
    }
}

impl Drop for Remade {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn remake(
    t: Test,
    mut pods: BoxStream<'static, watcher::Result<Event<DynamicObject>>>,
    mut known: BTreeSet<Option<String>>,
) {
    let mut deletions = JoinSet::new();
    while let Some(event) = pods.next().await {
        let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
        let is_new = known.insert(pod.metadata.uid.clone());
        let Ok(pod) = serde_json::to_value(pod) else { continue };
        let is_ending = pod.has("/metadata/deletionTimestamp");
        if is_new && !is_ending && pod.has("/metadata/ownerReferences") && !pod.has(NOTE) {
            deletions.spawn(remove_missed(t.clone(), pod.text("/metadata/name").to_owned()));
        }
    }
}

/// After no place is on record for it any more: the one in its stead would have to pass over that place.
async fn remove_missed(t: Test, pod: String) {
    println!("{pod} came without an answer of the webhook: another one is made in its place");
    let end = Instant::now() + GIVEN_BACK;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if t.find(KIND, "ws").await.is_ok_and(|spread| spread.is_none_or(|spread| creations(&spread) == 0)) {
            break;
        }
    }
    if let Err(error) = t.remove("Pod", &pod).await {
        println!("{pod} is not deleted: {error:#}");
    }
}

/// How many Pods on their way a WorkloadSpread has on record.
#[must_use]
pub fn creations(spread: &Value) -> usize {
    let versions = spread["status"]["versionedSubsetStatuses"].as_object();
    let subsets = versions.into_iter().flat_map(|versions| versions.values()).filter_map(Value::as_array).flatten();
    subsets.filter_map(|subset| subset["creatingPods"].as_object()).map(serde_json::Map::len).sum()
}

/// A CloneSet creates fifty Pods at once under a WorkloadSpread. At no time are there more in a subset than its limit, and within
/// `patience` all Pods are there and no place is left but those of creations that failed after their admission.
///
/// # Errors
/// That is not so, or the API server refuses something.
pub async fn fifty_creations_within_limits(t: &Test, patience: Duration) -> Result<()> {
    const SUBSET: &str = "/metadata/labels/e2e-subset";
    let subset = |name: &str| json!({ "name": name, "patch": { "metadata": { "labels": { "e2e-subset": name } } } });
    let limited = |name: &str, max: u32| subset(name).with("/maxReplicas", max);
    let target = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web" });
    let subsets = json!([limited("a", 7), limited("b", 11), subset("c")]);
    let spread = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": KIND, "metadata": { "name": "ws" },
        "spec": { "targetRef": target, "subsets": subsets } });
    t.create(spread).await?;
    let _missed = Remade::follow(t).await?;
    t.create(workload("CloneSet", "web", 50, vec![app("main")])).await?;
    let end = Instant::now() + patience;
    loop {
        let mut pods = t.list("Pod", "app=web").await?;
        // One that was missed is deleted, and makes room at once.
        pods.retain(|pod| !pod.has("/metadata/deletionTimestamp"));
        let of = |name: &str| pods.iter().filter(|pod| pod.text(SUBSET) == name).count();
        let found = [of("a"), of("b"), of("c")];
        ensure!(found[0] <= 7 && found[1] <= 11, "{found:?}");
        if found.iter().sum::<usize>() == 50 {
            // A creation that failed after its admission may have taken a place. It was given back when no Pod was left to create.
            let failed = t.events(KIND, "ws").await?.iter().filter(|event| event.contains("CreatePodFailed")).count();
            if 18 - found[0] - found[1] <= failed {
                return Ok(());
            }
        }
        ensure!(Instant::now() < end, "{found:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
