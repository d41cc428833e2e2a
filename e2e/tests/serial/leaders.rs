//! Several managers and one Lease: whoever loses it, by death or by a long sleep, writes nothing any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::audit;
use e2e::kit::{Build, Look, Test, app, crr, in_namespace, pod, poll};
use e2e::paths::{Paths, SYSTEM};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{CRR, Frozen, LONG, MANAGER};

const LEASE: &str = "kruise-manager";
const ACCOUNT: &str = "system:serviceaccount:kruise-system:kruise-manager";

pub(crate) async fn holder(t: &Test) -> Result<String> {
    let lease = serde_json::to_value(t.api_in(SYSTEM, "Lease").get(LEASE).await?)?;
    let holder = lease.text("/spec/holderIdentity");
    ensure!(!holder.is_empty(), "nobody leads");
    Ok(holder.to_owned())
}

pub(crate) async fn another_leads(t: &Test, than: &str) -> Result<()> {
    poll("another manager to lead", Duration::from_secs(90), async || {
        ensure!(holder(t).await? != than, "{than} still does");
        Ok(())
    })
    .await
}

/// The leader's Pod; its name is the beginning of the identity.
async fn leader(t: &Test, identity: &str) -> Result<Value> {
    let managers = t.node().replicas(MANAGER).await?;
    let of = |p: &&Value| identity.starts_with(&format!("{}_", p.text("/metadata/name")));
    managers.iter().find(of).cloned().with_context(|| format!("no Pod of {identity}"))
}

/// The identity of the manager that leads, and its Pod. While one takes over from another there may be none.
pub(crate) async fn leading(t: &Test) -> Result<(String, Value)> {
    poll("a manager to lead", LONG, async || {
        let identity = holder(t).await?;
        let pod = leader(t, &identity).await?;
        Ok((identity, pod))
    })
    .await
}

/// How often the container of each manager has started again, by Pod.
pub(crate) async fn restarts(t: &Test) -> Result<BTreeMap<String, i64>> {
    let managers = t.node().replicas(MANAGER).await?;
    let count =
        |pod: &Value| (pod.text("/metadata/name").to_owned(), pod.int("/status/containerStatuses/0/restartCount"));
    Ok(managers.iter().map(count).collect())
}

/// Every write by a manager since a time is one of the Pod that was the last to write the Lease. Which Pods led, and how many
/// writes they made.
fn only_leaders_wrote(paths: &Paths, since: Timestamp) -> Result<(BTreeSet<String>, usize)> {
    let mut writes = Vec::new();
    audit::entries(paths, ACCOUNT, |e| {
        let at = e.text("/requestReceivedTimestamp").parse::<Timestamp>();
        if e.text("/user/username") == ACCOUNT
            && ["create", "update", "patch", "delete"].contains(&e.text("/verb"))
            && e.int("/responseStatus/code") < 300
            && at.is_ok_and(|at| at >= since)
        {
            writes.push(e.clone());
        }
    })?;
    writes.sort_by_key(|e| e.text("/requestReceivedTimestamp").to_owned());
    let (mut leaders, mut last, mut count) = (BTreeSet::new(), None::<String>, 0);
    for entry in writes {
        let pod = entry.text("/user/extra/authentication.kubernetes.io~1pod-name/0");
        ensure!(!pod.is_empty(), "a write without a Pod's name: {entry}");
        if entry.text("/objectRef/resource") == "leases" {
            leaders.insert(pod.to_owned());
            last = Some(pod.to_owned());
        } else if let Some(last) = &last {
            ensure!(pod == last, "{pod} wrote while {last} was the leader: {entry}");
            count += 1;
        }
    }
    Ok((leaders, count))
}

enum Fate {
    /// Stopped for longer than the Lease lasts, then let go on.
    Sleeps,
    Dies,
}

#[tokio::test]
async fn managers_that_sleep_or_die_by_turns_never_act_together() -> Result<()> {
    in_namespace("leaders", async |t| {
        let names: Vec<String> = (0..6).map(|n| format!("web-{n}")).collect();
        let gate = json!([{ "conditionType": "KruisePodReady" }]);
        let pods =
            names.iter().map(|name| t.start(pod(name, vec![app("main")]).with("/spec/readinessGates", gate.clone())));
        futures::future::try_join_all(pods).await?;
        let body = async {
            let begun = Timestamp::now();
            // Each of these needs the manager four times: finalizer, key, time, release.
            let request = async |name: &String| {
                t.create(crr(name, name, &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 1)).await.map(drop)
            };
            let before_all = restarts(t).await?;
            for (turn, fate) in [Fate::Sleeps, Fate::Dies, Fate::Sleeps].into_iter().enumerate() {
                let (identity, pod) = leading(t).await?;
                let process = t.node().process_of(&pod).await?;
                let [before, after] = [&names[2 * turn], &names[2 * turn + 1]];
                request(before).await?;
                match fate {
                    Fate::Sleeps => {
                        let frozen = Frozen::new(process);
                        // It will find these in its connections when it wakes up.
                        request(after).await?;
                        another_leads(t, &identity).await?;
                        drop(frozen);
                    }
                    Fate::Dies => {
                        process.signal("KILL");
                        request(after).await?;
                        another_leads(t, &identity).await?;
                    }
                }
                for name in [before, after] {
                    t.completed_within(name, LONG).await?;
                    t.succeeded(name).await?;
                    let held = |o: &Value| o.has("/metadata/finalizers/0");
                    t.wait_for(CRR, name, "to be released", LONG, |o| !held(o)).await?;
                    t.ready(name).await?;
                    assert_eq!(t.containers(name).await?["main"].restarts, 1);
                }
            }
            // Only the one that was killed: who loses the Lease stands by.
            let total = |all: BTreeMap<String, i64>| all.into_values().sum::<i64>();
            assert_eq!(total(restarts(t).await?), total(before_all) + 1);
            Ok(begun)
        };
        let begun = t.node().with_replicas(MANAGER, 3, body).await?;
        let (leaders, writes) = only_leaders_wrote(&t.paths, begun)?;
        ensure!(leaders.len() >= 2 && writes >= 24, "{leaders:?} made {writes} writes");
        println!("leaders: {} of them made {writes} writes", leaders.len());
        Ok(())
    })
    .await
}
