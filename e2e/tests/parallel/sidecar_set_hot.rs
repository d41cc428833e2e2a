//! Hot upgrade on a real node: a sidecar that hands its listening socket over to its twin loses no request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::{NO_RELAY, RELAY, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, condition, in_namespace, pod, poll, restoring, shell};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::sidecar_set::{instance, known, removed, set};

const SET: &str = "SidecarSet";
const TWINS: [&str; 2] = ["relay-1", "relay-2"];
/// Requests during five upgrades, of which none may fail.
const REQUESTS: usize = 10_000;
/// Callers at a time.
const CALLERS: usize = 4;
const PORT: u16 = 8080;

fn relay(tag: &str) -> Value {
    json!({ "name": "relay", "image": remote_tag(RELAY, tag),
        "upgradeStrategy": { "upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": remote_tag(RELAY, NO_RELAY) },
        "lifecycle": { "postStart": { "exec": { "command": ["/relay", "wait"] } } },
        "volumeMounts": [{ "name": "handover", "mountPath": "/handover" }] })
}

/// A Pod that shares the volume of the sidecar, so that the test can hold an instance before it is ready.
fn web() -> Value {
    let main = shell("main", "").with("/volumeMounts", json!([{ "name": "handover", "mountPath": "/handover" }]));
    pod("web", vec![main]).with("/spec/volumes", json!([{ "name": "handover", "emptyDir": {} }]))
}

/// How the twins of a Pod are, as its spec and annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Twins {
    images: BTreeMap<String, String>,
    working: String,
    /// Its own version and that of its twin, by twin.
    versions: BTreeMap<String, (i64, i64)>,
}

impl Twins {
    fn of(pod: &Value) -> Result<Self> {
        let note = |key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let number =
            |key: String| -> Result<i64> { note(&key).parse().with_context(|| format!("{key}: {}", note(&key))) };
        let working = note("kruise.io/sidecarset-working-hotupgrade-container");
        let working: BTreeMap<String, String> = serde_json::from_str(&working).context("which twin works")?;
        let of = |twin: &&str| -> Result<(String, (i64, i64))> {
            let own = number(format!("version.sidecarset.kruise.io/{twin}"))?;
            Ok(((*twin).to_owned(), (own, number(format!("versionalt.sidecarset.kruise.io/{twin}"))?)))
        };
        let images = pod.array("/spec/containers").iter();
        let images = images.map(|c| (c.text("/name").to_owned(), c.text("/image").to_owned()));
        Ok(Self {
            images: images.filter(|(name, _)| TWINS.contains(&name.as_str())).collect(),
            working: working.get("relay").cloned().unwrap_or_default(),
            versions: TWINS.iter().map(of).collect::<Result<_>>()?,
        })
    }

    fn resting(&self) -> &'static str {
        if self.working == TWINS[0] { TWINS[1] } else { TWINS[0] }
    }

    /// One works with this image, and the other one does nothing.
    fn is_done(&self, tag: &str) -> bool {
        self.images.get(&self.working) == Some(&remote_tag(RELAY, tag)) && self.is_reset()
    }

    fn is_reset(&self) -> bool {
        self.images.get(self.resting()) == Some(&remote_tag(RELAY, NO_RELAY))
    }
}

/// What callers have seen.
#[derive(Default)]
struct Seen {
    answered: usize,
    failed: Vec<String>,
    /// The versions of the instances that answered.
    versions: BTreeSet<(i64, i64)>,
}

/// Callers of the sidecar, until they are dropped.
struct Callers {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

async fn call(address: &str) -> Result<(i64, i64)> {
    let ask = async {
        let mut stream = TcpStream::connect((address, PORT)).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (own, twin) = text.trim().split_once(' ').with_context(|| format!("the answer {text:?}"))?;
        anyhow::Ok((own.parse()?, twin.parse()?))
    };
    tokio::time::timeout(Duration::from_secs(30), ask).await?
}

impl Callers {
    fn begin(address: &str) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let one = |_| {
            let (address, seen) = (address.to_owned(), seen.clone());
            tokio::spawn(async move {
                loop {
                    let answer = call(&address).await;
                    {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        match answer {
                            Ok(versions) => {
                                seen.answered += 1;
                                seen.versions.insert(versions);
                            }
                            Err(error) => seen.failed.push(format!("{error:#}")),
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        };
        let tasks = (0..CALLERS).map(one).collect();
        Self { seen, tasks }
    }

    /// The versions of the instances that have answered so far; an error if a request has failed.
    fn look(&self) -> Result<(usize, BTreeSet<(i64, i64)>)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (answered, failed) = (seen.answered, seen.failed.len());
        ensure!(failed == 0, "{failed} requests failed, and {answered} did not: {:?}", seen.failed.first());
        Ok((answered, seen.versions.clone()))
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// One upgrade to the end: the roles are swapped, and versions are as the sidecar needs them.
async fn upgrade(t: &Test, name: &str, before: &Twins, tag: &str, callers: &Callers) -> Result<Twins> {
    let states = t.record("Pod", "web").await?;
    t.patch(SET, name, json!({ "spec": { "containers": [relay(tag)] } })).await?;
    let is_done =
        |pod: &Value| Twins::of(pod).is_ok_and(|twins| twins.is_done(tag)) && condition(pod, "Ready") == "True";
    let pod = t.wait_for("Pod", "web", "to be upgraded and reset", PATIENCE * 2, is_done).await?;
    let after = Twins::of(&pod)?;
    ensure!(after.working == before.resting(), "the roles were not swapped: {before:?} {after:?}");
    let middle = states.states().iter().filter_map(|(_, pod)| Twins::of(pod).ok()).find(|twins| !twins.is_reset());
    let middle = middle.context("both twins at work")?;
    let ((old, _), (new, _)) = (before.versions[&before.working], middle.versions[&after.working]);
    ensure!(new > old, "{before:?} {middle:?}");
    assert_eq!(middle.images[&before.working], before.images[&before.working], "the old one goes on meanwhile");
    let versions = |working: (i64, i64), resting: (i64, i64)| {
        BTreeMap::from([(after.working.clone(), working), (before.working.clone(), resting)])
    };
    assert_eq!(middle.versions, versions((new, old), (old, new)));
    assert_eq!(after.versions, versions((new, 0), (0, new)));
    // Who answers was started with what the annotations said.
    poll("the new twin to answer", PATIENCE, async || {
        let (_, seen) = callers.look()?;
        ensure!(seen.contains(&(new, old)), "{seen:?}");
        Ok(())
    })
    .await?;
    Ok(after)
}

async fn without_a_failed_request(t: &Test) -> Result<()> {
    let name = known(t, with_volume(set(t, "hot", &[relay("e2e")]))).await?;
    let first = t.start(web()).await?;
    let mut twins = Twins::of(&first)?;
    ensure!(twins.is_done("e2e") && twins.working == TWINS[0], "{twins:?}");
    let versions = BTreeMap::from([(TWINS[0].to_owned(), (1, 0)), (TWINS[1].to_owned(), (0, 1))]);
    assert_eq!(twins.versions, versions);
    let callers = Callers::begin(first.text("/status/podIP"));
    for tag in ["v2", "e2e", "v2", "e2e", "v2"] {
        twins = upgrade(t, &name, &twins, tag, &callers).await?;
        callers.look()?;
    }
    poll("enough requests", PATIENCE * 5, async || {
        let (answered, _) = callers.look()?;
        ensure!(answered >= REQUESTS, "{answered}");
        Ok(())
    })
    .await?;
    let last = t.get("Pod", "web").await?;
    assert_eq!(instance(&last, "main"), instance(&first, "main"), "the Pod's own container went on");
    paused_in_the_middle(t, &name, &twins).await?;
    callers.look().map(drop)
}

fn with_volume(set: Value) -> Value {
    set.with("/spec/volumes", json!([{ "name": "handover", "emptyDir": {} }]))
}

/// A pause keeps what has not begun, and nothing else: both twins do not run for ever.
async fn paused_in_the_middle(t: &Test, name: &str, before: &Twins) -> Result<()> {
    t.exec("web", "main", "touch /handover/hold").await?;
    t.patch(SET, name, json!({ "spec": { "containers": [relay("e2e")] } })).await?;
    let has_begun = |pod: &Value| Twins::of(pod).is_ok_and(|twins| !twins.is_reset());
    t.wait_for("Pod", "web", "to have both twins", PATIENCE, has_begun).await?;
    t.patch(SET, name, json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    let is_seen = |set: &Value| set.int("/status/observedGeneration") == set.int("/metadata/generation");
    t.wait_for(SET, name, "to be seen paused", PATIENCE, is_seen).await?;
    ensure!(has_begun(&t.get("Pod", "web").await?), "the new twin is not ready yet");
    t.exec("web", "main", "rm /handover/hold").await?;
    let is_done = |pod: &Value| Twins::of(pod).is_ok_and(|twins| twins.is_done("e2e"));
    let pod = t.wait_for("Pod", "web", "to be reset while paused", PATIENCE, is_done).await?;
    let after = Twins::of(&pod)?;
    ensure!(after.working == before.resting(), "{before:?} {after:?}");
    t.patch(SET, name, json!({ "spec": { "containers": [relay("v2")] } })).await?;
    t.wait_for(SET, name, "to be seen with the next image", PATIENCE, |set| {
        is_seen(set) && set.int("/status/outdatedPods") == 1
    })
    .await?;
    assert_eq!(Twins::of(&t.get("Pod", "web").await?)?, after, "nothing begins while it is paused");
    Ok(())
}

#[tokio::test]
async fn a_hot_upgrade_loses_no_request() -> Result<()> {
    in_namespace("sidecars-hot", async |t| restoring(without_a_failed_request(t), removed(t, &["hot"])).await).await
}
