//! WorkloadSpread while no webhook answers: Pods are created without a subset, and get theirs when they run. And with
//! three replicas of the webhook.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::kit::{Look, PATIENCE, Test, app, in_namespace, poll, restoring, workload};
use e2e::spread_limits::fifty_creations_within_limits;
use serde_json::{Value, json};

use crate::WEBHOOK;
use crate::away::Member;
use crate::gone::scaled;

const SPREAD: &str = "WorkloadSpread";
const NOTE: &str = "/metadata/annotations/apps.kruise.io~1matched-workloadspread";
const COST: &str = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost";
const SUBSET: &str = "/metadata/labels/e2e-subset";

/// Waits for so many Pods that run, each of a subset with its note and its cost: UIDs by subset.
async fn spread_as(t: &Test, wanted: &[(&str, usize)]) -> Result<BTreeMap<String, Vec<String>>> {
    let total: usize = wanted.iter().map(|(_, count)| count).sum();
    poll("the Pods to be spread", PATIENCE * 2, async || {
        let pods = t.list("Pod", "app=web").await?;
        ensure!(pods.len() == total, "{} Pods", pods.len());
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in &pods {
            ensure!(pod.has("/spec/nodeName") && pod.has(NOTE) && pod.has(COST), "{}", pod["metadata"]);
            found.entry(pod.text(SUBSET).to_owned()).or_default().push(pod.text("/metadata/uid").to_owned());
        }
        found.values_mut().for_each(|uids| uids.sort());
        for (subset, count) in wanted {
            let there = found.get(*subset).map_or(0, Vec::len);
            ensure!(there == *count, "{there} of {subset}");
        }
        Ok(found)
    })
    .await
}

async fn missed(t: &Test, away: &Member<'_>) -> Result<BTreeMap<String, Vec<String>>> {
    away.begin(t).await?;
    // The webhooks of CloneSets are not asked for their scale.
    t.kubectl(&["scale", "clone/web", "--replicas=3"]).await?;
    spread_as(t, &[("a", 1), ("b", 2)]).await
}

pub(crate) async fn pods_that_the_webhook_has_missed_are_counted_noted_and_never_replaced(
    away: Member<'_>,
) -> Result<()> {
    in_namespace("spread-missed", async |t| {
        let subset =
            |name: &str| json!({ "name": name, "patch": { "metadata": { "labels": { "e2e-subset": name } } } });
        let mut first = subset("a");
        first["maxReplicas"] = 1.into();
        t.create(
            json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": SPREAD, "metadata": { "name": "ws" }, "spec": {
            "targetRef": { "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web" },
            "subsets": [first, subset("b")] } }),
        )
        .await?;
        t.create(workload("CloneSet", "web", 1, vec![app("main")])).await?;
        spread_as(t, &[("a", 1)]).await?;
        let before = restoring(missed(t, &away), away.end(t)).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=4"]).await?;
        let after = spread_as(t, &[("a", 1), ("b", 3)]).await?;
        let stays = |(subset, uids): (&String, &Vec<String>)| {
            uids.iter().all(|uid| after.get(subset).is_some_and(|now| now.contains(uid)))
        };
        ensure!(before.iter().all(stays), "none is replaced: {before:?}, then {after:?}");
        let counted = |o: &Value| {
            let of = |name: &str| o.array("/status/subsetStatuses").iter().find(|s| s.text("/name") == name).cloned();
            of("a").is_some_and(|a| (a.int("/replicas"), a.int("/missingReplicas")) == (1, 0))
                && of("b").is_some_and(|b| (b.int("/replicas"), b.int("/missingReplicas")) == (3, -1))
        };
        t.wait_for(SPREAD, "ws", "to have all counted", PATIENCE, counted).await.map(drop)
    })
    .await
}

/// A webhook is called by HTTP/1.1: creations at the same time have a connection each, which are spread over the replicas.
#[tokio::test]
async fn fifty_creations_at_once_pass_no_limit_in_three_replicas_of_the_webhook() -> Result<()> {
    in_namespace("spread-three", async |t| {
        let body = async {
            t.node().scale(WEBHOOK, 3).await?;
            fifty_creations_within_limits(t, PATIENCE * 3).await
        };
        restoring(body, scaled(t, WEBHOOK)).await
    })
    .await
}
