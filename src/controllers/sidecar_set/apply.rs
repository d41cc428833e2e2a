//! The writes of one pass: the revision, one patch for each Pod, the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Map, Value, json};

use super::{Controller, Observed};
use crate::{
    api::{
        apps::sidecar_set::{SidecarSet, SidecarSetStatus},
        labels,
    },
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::sidecar_set::{
            plan::{Plan, Walk},
            spec::Spec,
            write::{self, Unwritable},
        },
        workload::owner::OwnerRef,
    },
    k8s::{path, pod::PodView, revision},
    runtime::{
        clock,
        pass::{AFTER_REFUSAL, AFTER_WATCHED_CONFLICT, Pass},
        pod_control::Part,
        revisions::{History, Naming},
        status_writer::json_of,
    },
};

/// What came of the Pods.
#[derive(Default)]
pub(super) struct Done {
    /// The first one that a budget keeps in service, and why.
    pub(super) refused: Option<(String, String)>,
    /// The first one that could not be written, and why.
    pub(super) failed: Option<(String, String)>,
}

impl Controller {
    /// The revision of the SidecarSet, made if there is none, and how often names were taken. Nothing is read while the
    /// status says that the spec has been seen and the name fits.
    pub(super) async fn revision(
        &self,
        set: &SidecarSet,
        spec: &Spec,
        observed: &Observed,
    ) -> kube::Result<(String, i32)> {
        let status = set.status.clone().unwrap_or_default();
        let name = revision::name(&spec.name, &revision::hash_of(&spec.data, status.collision_count));
        let is_seen = set.metadata.generation == Some(status.observed_generation);
        if is_seen && status.latest_revision == name {
            return Ok((name, status.collision_count));
        }
        let owner = OwnerRef { namespace: self.context.namespace.to_string(), ..OwnerRef::of(set) };
        let of_set = BTreeMap::from([(labels::SIDECAR_SET_NAME.to_owned(), spec.name.clone())]);
        let selector = LabelSelector { match_labels: Some(of_set), ..LabelSelector::default() };
        let map = |texts: &Option<BTreeMap<String, String>>| -> Map<String, Value> {
            texts.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into())).collect()
        };
        let mut own_labels = map(&set.metadata.labels);
        own_labels.insert(labels::SIDECAR_SET_NAME.into(), spec.name.clone().into());
        if !spec.custom_version.is_empty() {
            own_labels.insert(labels::SIDECAR_SET_CUSTOM_VERSION.into(), spec.custom_version.clone().into());
        }
        let of = History {
            owner: &owner,
            selector: &selector,
            naming: Naming::BY_DATA,
            labels: own_labels,
            annotations: map(&set.metadata.annotations),
            newest_annotations: Map::new(),
        };
        let chosen = self.revisions.choose(&of, &spec.data, status.collision_count).await?;
        if !spec.custom_version.is_empty() {
            self.name_version(&owner.namespace, &chosen.name, &spec.custom_version).await?;
        }
        let pinned = set.spec.injection_strategy.pinned().unwrap_or_default();
        // Which one a version means only the revisions tell: then all of them stay.
        if pinned.custom_version.is_none() {
            let mut live: BTreeSet<&str> = observed.judged.iter().map(|pod| pod.revision.as_str()).collect();
            live.insert(&chosen.name);
            live.extend(pinned.revision_name.as_deref());
            self.revisions.truncate(&owner.namespace, &chosen.known, &live, spec.history).await?;
        }
        Ok((chosen.name, chosen.collisions))
    }

    /// Writes the version into the label of a revision, which may be older than the version.
    async fn name_version(&self, namespace: &str, name: &str, version: &str) -> kube::Result<()> {
        let path = path::in_namespace("apps", "v1", namespace, "controllerrevisions");
        let patch = Patch::Merge(json!({"metadata": {"labels": {labels::SIDECAR_SET_CUSTOM_VERSION: version}}}));
        let request =
            Request::new(path).patch(name, &PatchParams::default(), &patch).map_err(kube::Error::BuildRequest)?;
        self.context.client.request::<Value>(request).await.map(drop)
    }

    /// Resets twins and updates Pods, as many as the plan allows. A refusal of one leaves its place to the next one.
    pub(super) async fn carry_out(
        &self,
        spec: &Spec,
        plan: &Plan,
        observed: &Observed,
        revision: &str,
        pass: &mut Pass,
    ) -> Done {
        let (mut done, refusals) = (Done::default(), Refusals::default());
        for name in &plan.reset {
            let Some(pod) = observed.pods.get(name) else { continue };
            let written = self.write(pod, |live| write::reset(spec, live, clock::now().wall)).await;
            Self::note(name, written, &mut done, pass);
        }
        let mut walk = Walk::of(plan);
        for next in plan.update.iter() {
            if walk.is_over() || !pass.may_go_on() {
                break;
            }
            let Some(pod) = observed.pods.get(&next.name).filter(|_| walk.allows(next)) else { continue };
            if next.is_in_service
                && self.context.budgets.may_take(pod, (Operation::Update, false), &refusals).await != Verdict::Yes
            {
                pass.look_after(Some(AFTER_REFUSAL));
                continue;
            }
            let written = self.write(pod, |live| write::update(spec, live, revision, clock::now().wall)).await;
            if Self::note(&next.name, written, &mut done, pass) {
                walk.took(next);
            }
        }
        done.refused = refusals.first();
        done
    }

    /// Takes note of what came of a write: whether the Pod was written.
    fn note(name: &str, written: kube::Result<Result<bool, Unwritable>>, done: &mut Done, pass: &mut Pass) -> bool {
        match written {
            Ok(Ok(true)) => {
                pass.again = true;
                tracing::info!(pod = name, "sidecars updated in place");
                true
            }
            Ok(Ok(false)) => {
                pass.look_after(Some(AFTER_WATCHED_CONFLICT));
                false
            }
            Ok(Err(why)) => {
                done.failed.get_or_insert_with(|| (name.to_owned(), why.to_string()));
                false
            }
            Err(error) => {
                if let Some(why) = pass.note(Err(error)) {
                    done.failed.get_or_insert_with(|| (name.to_owned(), why));
                }
                false
            }
        }
    }

    /// Writes a Pod with the patch that is made from all of it. false: it is another than the one that was judged.
    async fn write(
        &self,
        pod: &PodView,
        patch: impl FnOnce(&Value) -> Result<Value, Unwritable>,
    ) -> kube::Result<Result<bool, Unwritable>> {
        let Some(live) = self.pods.read(pod).await? else { return Ok(Ok(false)) };
        let version = live.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if version != pod.resource_version() {
            // The watch is behind: what is new may say otherwise.
            self.pods.note(serde_json::from_value(live).map_err(kube::Error::SerdeError)?);
            return Ok(Ok(false));
        }
        let patch = match patch(&live) {
            Ok(patch) => patch,
            Err(why) => return Ok(Err(why)),
        };
        Ok(Ok(self.pods.try_patch(pod, Part::Whole, &patch).await?.is_some()))
    }

    /// Writes the status if it says anything new; counts a second apart. Returns when to look again.
    pub(super) async fn record(&self, set: &SidecarSet, wanted: &SidecarSetStatus) -> kube::Result<Option<Duration>> {
        if set.status.as_ref() == Some(wanted) {
            return Ok(None);
        }
        let words = |status: &SidecarSetStatus| {
            let conditions = status.conditions.iter().map(|c| (c.type_.clone(), c.status.clone()));
            (status.observed_generation, status.latest_revision.clone(), conditions.collect::<Vec<_>>())
        };
        let is_settled = wanted.updated_ready_pods == wanted.matched_pods;
        let can_wait = !is_settled && set.status.as_ref().is_some_and(|recorded| words(recorded) == words(wanted));
        let api: Api<SidecarSet> = Api::all(self.context.client.clone());
        let (recorded, wanted) = (json_of(set.status.as_ref())?, json_of(Some(wanted))?);
        let outcome = self.status.write((&api, &*self.sets), set, (&recorded, &wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }
}
