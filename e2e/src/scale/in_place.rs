//! Updates in place, by a bare client of either account and by a workload of ours.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::bare::{Marks, create_gated, delete_bare, gate_patch, warm};
use super::census::Census;
use super::{GATES, IMAGES, IN_FLIGHT, LONG, REVISIONS, Scale, Side, Step};
use crate::kit::{Look, Test};

/// Who updates Pods in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Updater {
    /// The bare client.
    Bare,
    /// The same with the manager's account.
    Limited,
    /// A workload of ours.
    Ours,
}

/// Seconds that updates took each of them, one value for each round.
#[derive(Default)]
pub(super) struct Updates {
    pub(super) bare: Vec<f64>,
    pub(super) limited: Vec<f64>,
    pub(super) ours: Vec<f64>,
}

impl Updates {
    pub(super) fn of(&mut self, updater: Updater) -> &mut Vec<f64> {
        match updater {
            Updater::Bare => &mut self.bare,
            Updater::Limited => &mut self.limited,
            Updater::Ours => &mut self.ours,
        }
    }
}

/// How many Pods, how many of them at the same time, and what else is written to them.
pub(super) type HowMany = (usize, usize, Marks);

impl Scale<'_> {
    /// Who updates the Pods of a kind that is measured in any case.
    pub(super) fn updaters(&self) -> Vec<Updater> {
        let limited = self.has(Side::Limited).then_some(Updater::Limited);
        [Some(Updater::Bare), limited, Some(Updater::Ours)].into_iter().flatten().collect()
    }

    /// The seconds that a client takes to update Pods in place. An administrator creates and deletes them.
    pub(super) async fn client_in_place(
        &mut self,
        client: (&Test, &str),
        name: &str,
        (count, at_once, marks): HowMany,
        pod: impl Fn(usize) -> Value,
    ) -> Result<f64> {
        let t = self.t.clone();
        let pods = Census::begin(&t, name).await?;
        create_gated(&t, count, marks, &pod).await?;
        pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
        self.client_updates(client, (name, &pods), (count, at_once, marks), pod).await
    }

    /// The same of Pods that are there and ready.
    pub(super) async fn client_updates(
        &mut self,
        (client, whose): (&Test, &str),
        (name, pods): (&str, &Census),
        (count, at_once, marks): HowMany,
        pod: impl Fn(usize) -> Value,
    ) -> Result<f64> {
        let names: Vec<String> = (0..count).map(|index| pod(index).text("/metadata/name").to_owned()).collect();
        warm(client).await?;
        let update = write_updates(client, (name, pods, &names), (at_once, marks));
        let step = self.step(&format!("{whose}, {count} updates in place"), update).await?;
        delete_bare(&self.t, names.iter().cloned()).await?;
        pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
        Ok(step.seconds)
    }

    /// An image update of a workload of ours whose Pods are there, and how many of them were not ready at most.
    pub(super) async fn workload_updates(
        &mut self,
        (kind, whose): (&str, &str),
        (name, pods, count): (&str, &Census, usize),
        mut template: Value,
    ) -> Result<(Step, usize)> {
        let t = self.t.clone();
        template["spec"]["containers"][0]["image"] = IMAGES[1].into();
        pods.begin_lowest();
        let update = async {
            t.patch(kind, name, json!({ "spec": { "template": template } })).await?;
            pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
        };
        let step = self.step(&format!("{whose}, {count} updates in place"), update).await?;
        Ok((step, count.saturating_sub(pods.lowest())))
    }

    /// What an update in place does to each Pod.
    pub(super) async fn each_was_restarted_once(&self, name: &str) -> Result<()> {
        for pod in self.t.list("Pod", &format!("app={name}")).await? {
            let restarts = pod.int("/status/containerStatuses/0/restartCount");
            ensure!(restarts == 1, "{} was restarted {restarts} times", pod.text("/metadata/name"));
        }
        Ok(())
    }
}

/// The writes of an update in place, as the controller of a kind makes them, for so many Pods at the same time.
async fn write_updates(
    t: &Test,
    (name, pods, names): (&str, &Census, &[String]),
    (at_once, marks): (usize, Marks),
) -> Result<Instant> {
    let state = json!({ "revision": format!("{name}-{}", REVISIONS[1]), "updateTimestamp": Timestamp::now(),
        "lastContainerStatuses": { "main": { "imageID": crate::player::image_id(IMAGES[0]) } }, "updateImages": true,
        "containerBatchesRecord": [{ "timestamp": Timestamp::now(), "containers": ["main"] }] });
    let mut labels = json!({ "controller-revision-hash": format!("{name}-{}", REVISIONS[1]) });
    if marks == Marks::StateAndHash {
        labels["pod-template-hash"] = REVISIONS[1].into();
    }
    let image = Patch::Strategic(json!({
        "metadata": { "labels": labels,
            "annotations": { "apps.kruise.io/inplace-update-state": state.to_string() } },
        "spec": { "containers": [{ "name": "main", "image": IMAGES[1] }] } }));
    let (api, image, params) = (&t.api("Pod"), &image, &PatchParams::default());
    let requests = &Semaphore::new(IN_FLIGHT);
    let one = |index: usize| {
        let pod = names[index].clone();
        async move {
            let mut state = pods.pod(&pod)?;
            let permit = requests.acquire().await?;
            api.patch_status(&pod, params, &gate_patch(&GATES[..1], false, marks)).await?;
            api.patch(&pod, params, image).await?;
            drop(permit);
            state.wait_for(|s| s.runs == IMAGES[1]).await?;
            let permit = requests.acquire().await?;
            api.patch_status(&pod, params, &gate_patch(&GATES[..1], true, marks)).await?;
            drop(permit);
            state.wait_for(|s| s.ready && s.runs == IMAGES[1]).await?;
            anyhow::Ok(())
        }
    };
    stream::iter(0..names.len()).map(one).buffer_unordered(at_once).try_collect::<()>().await?;
    pods.until("Pods to be updated and ready", LONG, |c| c.updated == names.len()).await
}
