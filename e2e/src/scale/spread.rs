//! WorkloadSpread and UnitedDeployment: what the choice of a subset adds to the creation of a Pod, and subsets beside one
//! workload.
//!
//! Pods that are only created have a scheduling gate, and belong to a Job that says that another program manages it: nobody
//! has work with them. Those that are created beside them have the label and the annotation already that the others get.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::at_once::answer_at_once;
use super::paced::{at_a_pace, rank, store};
use super::{Census, IMAGES, LONG, Scale, clone_set, in_turn, on_played_nodes, template, warm};
use crate::kit::{Build, Look, PATIENCE, Test, poll};
use crate::measure::{calls, settle};

const NOTE: &str = "/metadata/annotations/apps.kruise.io~1matched-workloadspread";
const UNITED: &str = "UnitedDeployment";
const SUBSETS: [&str; 3] = ["a", "b", "c"];
/// Pods of each side, and how many a second: so many that what comes in one slow moment of the API server is less than a hundredth.
const PACED: (usize, u32) = (2700, 90);
/// Pods of one side before it is the other's turn.
const TURN: usize = 150;
/// What the figures are about.
const CREATION: &str = "Pod creation under a WorkloadSpread of 3 subsets";

/// The Job that Pods belong to. No controller of the cluster looks at it.
fn job() -> Value {
    json!({ "kind": "Job", "metadata": { "name": "web" }, "spec": { "managedBy": "example.com/bench", "parallelism": 1,
        "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": IMAGES[0] }] } } } })
}

/// Three subsets, of which the first two may have so many Pods each, and the third any number.
fn spread(most: usize) -> Value {
    let subset = |name: &&str| {
        let mut subset = json!({ "name": name, "patch": { "metadata": { "labels": { "subset": name } } } });
        if *name != SUBSETS[2] {
            subset["maxReplicas"] = most.into();
        }
        subset
    };
    json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "WorkloadSpread", "metadata": { "name": "ws" }, "spec": {
        "targetRef": { "apiVersion": "batch/v1", "kind": "Job", "name": "web" },
        "subsets": SUBSETS.iter().map(subset).collect::<Vec<_>>() } })
}

/// A Pod of the Job that nobody runs.
fn pod(name: &str, job_uid: &str) -> Value {
    let owner = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "web", "uid": job_uid, "controller": true });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "schedulingGates": [{ "name": "example.com/never" }],
        "containers": [{ "name": "main", "image": "registry.example/main:v1" }] });
    json!({ "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" }, "ownerReferences": [owner] },
        "spec": on_played_nodes(spec) })
}

/// The same with what a subset gives, under other names.
fn written_out(name: &str, job_uid: &str) -> Value {
    let note = json!({ "name": "ws", "subset": "a" }).to_string();
    pod(name, job_uid)
        .with("/metadata/labels/other", "a")
        .with("/metadata/annotations", json!({ "example.com/matched-with-nothing": note }))
}

/// What is asked about new Pods of a side.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    /// A WorkloadSpread.
    Spread,
    /// Nobody.
    Nobody,
    /// A webhook that answers at once, that there is nothing to change.
    AtOnce,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Spread => "under a WorkloadSpread",
            Self::Nobody => "without a WorkloadSpread",
            Self::AtOnce => "that a webhook is asked about which answers at once",
        })
    }
}

const SIDES: [Asked; 3] = [Asked::Spread, Asked::Nobody, Asked::AtOnce];

/// One side: a namespace with the Job, and with the WorkloadSpread or without.
struct Pods {
    t: Test,
    job_uid: String,
    asked: Asked,
    /// Seconds that each of the paced ones took.
    times: Vec<f64>,
    /// Pods a second that were created as fast as it goes.
    rates: Vec<f64>,
    /// Pods of the first two subsets beyond their limit.
    over: usize,
    without_subset: usize,
}

impl Pods {
    async fn prepare(asked: Asked) -> Result<Self> {
        let name = match asked {
            Asked::Spread => "ws-some",
            Asked::Nobody => "ws-none",
            Asked::AtOnce => "ws-at-once",
        };
        let t = Test::new(name).await?;
        let job_uid = t.create(job()).await?.text("/metadata/uid").to_owned();
        if asked == Asked::AtOnce {
            answer_at_once(&t, pod("try", &job_uid)).await?;
        }
        if asked == Asked::Spread {
            t.create(spread(PACED.0 / 3)).await?;
            poll("new Pods to get a subset", PATIENCE, async || {
                // a dry run gets none
                let tried = t.create(pod("try", &job_uid)).await?;
                t.api("Pod").delete("try", &DeleteParams::default().grace_period(0)).await?;
                ensure!(tried.has(NOTE), "it has none");
                Ok(())
            })
            .await?;
        }
        Ok(Self { t, job_uid, asked, times: Vec::new(), rates: Vec::new(), over: 0, without_subset: 0 })
    }

    fn made(&self, name: &str) -> Value {
        match self.asked {
            Asked::Spread => pod(name, &self.job_uid),
            Asked::Nobody | Asked::AtOnce => written_out(name, &self.job_uid),
        }
    }

    /// Counts those that are where they should not be, now that the first two subsets may have so many each.
    async fn count_wrong(&mut self, most: usize) -> Result<()> {
        let all = self.t.list("Pod", "app=web").await?;
        let of = |name: &str| all.iter().filter(|pod| pod.text("/metadata/labels/subset") == name).count();
        self.over += SUBSETS[..2].iter().map(|name| of(name).saturating_sub(most)).sum::<usize>();
        self.without_subset += all.iter().filter(|pod| !pod.has(NOTE)).count();
        Ok(())
    }

    async fn tidy(&self) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.t.api("Pod").delete_collection(&at_once, &ListParams::default()).await?;
        poll("Pods to be gone", LONG, async || {
            let left = self.t.list("Pod", "").await?.len();
            ensure!(left == 0, "{left} are there");
            Ok(())
        })
        .await
    }
}

/// Creations at a pace.
async fn paced(sides: &mut [Pods]) -> Result<()> {
    let (each, pace) = PACED;
    for turn in 0..each.div_ceil(TURN) {
        for index in in_turn(&[0, 1, 2], u8::try_from(turn % 2)?) {
            let side = &mut sides[index];
            let pods = (0..TURN).map(|i| side.made(&format!("p-{turn:02}-{i:03}"))).collect();
            warm(&side.t).await?;
            let times = at_a_pace(&side.t, pods, pace, &side.asked.to_string()).await?;
            side.times.extend(times);
        }
    }
    sides[0].count_wrong(each / 3).await?;
    for side in sides {
        side.tidy().await?;
    }
    Ok(())
}

/// A UnitedDeployment with five subsets of CloneSets.
fn united(name: &str, replicas: usize) -> Value {
    let labels = json!({ "app": name });
    let mut of_subset = template(name);
    of_subset["metadata"]["labels"] = labels.clone();
    let strategy = json!({ "type": "InPlaceIfPossible", "maxUnavailable": "20%" });
    let subsets: Vec<Value> = (0..5).map(|i| json!({ "name": format!("s{i}") })).collect();
    json!({ "kind": UNITED, "metadata": { "name": name }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": labels },
        "template": { "cloneSetTemplate": { "metadata": { "labels": labels },
            "spec": { "template": of_subset, "updateStrategy": strategy } } },
        "topology": { "subsets": subsets } } })
}

impl Scale<'_> {
    pub(super) async fn spreads(&mut self) -> Result<()> {
        self.pods_get_subsets().await?;
        self.subsets_come().await
    }

    /// Creations of Pods under a WorkloadSpread beside creations of equal Pods without, which no webhook is asked about, or one
    /// that answers at once.
    async fn pods_get_subsets(&mut self) -> Result<()> {
        let mut sides = stream::iter(SIDES).then(Pods::prepare).try_collect::<Vec<_>>().await?;
        paced(&mut sides).await?;
        self.burst(&mut sides).await?;
        let [with, none, at_once] = sides.as_slice() else { bail!("a side is missing") };
        self.report_wrong(with);
        self.t.remove("MutatingWebhookConfiguration", &at_once.t.namespace).await?;
        self.report(with, (none, "none"), ("p50 8 ms, p99 30 ms", "0.8x"));
        self.report(with, (at_once, "a webhook that answers at once"), ("", ""));
        Ok(())
    }

    /// As many as the options say, as fast as it goes.
    async fn burst(&mut self, sides: &mut [Pods]) -> Result<()> {
        let count = self.options.pods;
        let most = count * 3 / 10;
        sides[0].t.patch("WorkloadSpread", "ws", json!({ "spec": spread(most)["spec"] })).await?;
        settle().await;
        for round in 0..self.options.rounds {
            for index in in_turn(&[0, 1, 2], round) {
                let side = &mut sides[index];
                warm(&side.t).await?;
                let pods: Vec<Value> = (0..count).map(|i| side.made(&format!("q-{round}-{i:04}"))).collect();
                let what = format!("{count} Pods {}", side.asked);
                let work = async {
                    store(&side.t, pods.into_iter()).await?;
                    Ok(Instant::now())
                };
                let step = self.step(&what, work).await?;
                side.rates.push(count as f64 / step.seconds);
                if side.asked == Asked::Spread {
                    self.print_calls(step.span)?;
                    side.count_wrong(most).await?;
                }
                side.tidy().await?;
                settle().await;
            }
        }
        Ok(())
    }

    fn report_wrong(&mut self, with: &Pods) {
        let all = PACED.0 + self.options.pods * usize::from(self.options.rounds);
        self.rows.row(&format!("{CREATION}: over a limit"), "0", format!("{} of {all}", with.over));
        self.rows.row(&format!("{CREATION}: without a subset"), "", format!("{} of {all}", with.without_subset));
    }

    /// Creations under the WorkloadSpread beside those of another side. `goals`: of the times at a pace, and of the throughput.
    fn report(&mut self, with: &Pods, (beside, who): (&Pods, &str), goals: (&str, &str)) {
        let added = |share: f64| (rank(&with.times, share) - rank(&beside.times, share)) * 1e3;
        let value = format!("p50 {:.1} ms, p99 {:.1} ms, n={}", added(0.5), added(0.99), with.times.len());
        self.rows.row(&format!("{CREATION}: added, {} a second, beside {who}", PACED.1), goals.0, value);
        let rates =
            |rates: &[f64]| super::of_rounds(rates, |rate| format!("{rate:.0}"), " a second").unwrap_or_default();
        if let Some(ratio) = super::ratio_of_rounds(&with.rates, &beside.rates) {
            let value = format!("{ratio}: {}, beside {}", rates(&with.rates), rates(&beside.rates));
            self.rows.row(&format!("{CREATION}: throughput, beside {who}"), goals.1, value);
        }
    }

    /// What our processes have asked of the API server in a span of time.
    fn print_calls(&self, span: (Timestamp, Timestamp)) -> Result<()> {
        for ((role, what), n) in calls(self.paths, &[span])?.pop().unwrap_or_default() {
            println!("  {n:>6}  {role}: {what}");
        }
        Ok(())
    }

    /// 0 -> all over five CloneSets, beside one CloneSet.
    async fn subsets_come(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..self.options.rounds {
            for of_five in in_turn(&[false, true], round) {
                let (kind, who) =
                    if of_five { (UNITED, "UnitedDeployment of 5") } else { ("CloneSet", "one CloneSet") };
                let name = format!("ud-{}-{round}", if of_five { "five" } else { "one" });
                let pods = Census::begin(&t, &name).await?;
                t.create(if of_five { united(&name, 0) } else { clone_set(&name, 0) }).await?;
                let seen = |o: &Value| o.int("/status/observedGeneration") >= 1;
                t.wait_for(kind, &name, "to be seen", PATIENCE, seen).await?;
                let work = async {
                    t.patch(kind, &name, json!({ "spec": { "replicas": count } })).await?;
                    pods.until("Pods to be ready", LONG, |c| c.ready == count).await
                };
                let step = self.step(&format!("{who}, 0 -> {count}"), work).await?;
                times[usize::from(of_five)].push(step.seconds);
                t.remove(kind, &name).await?;
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
            }
        }
        let what = format!("UnitedDeployment, 0 -> {count} over 5 CloneSets");
        self.beside(&what, "1.1x", &times[1], ("one CloneSet", &times[0]));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_of_the_three_sides_differ_in_names_alone() {
        let (ours, theirs) = (pod("p", "u"), written_out("p", "u"));
        assert_eq!(ours["spec"], theirs["spec"]);
        assert_eq!(ours["metadata"]["ownerReferences"], theirs["metadata"]["ownerReferences"]);
        assert!(!theirs.has(NOTE) && theirs["metadata"]["labels"]["subset"].is_null());
    }
}
