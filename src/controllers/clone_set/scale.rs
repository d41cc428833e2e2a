//! Brings the number of Pods in order: makes and deletes Pods and their claims.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use serde_json::{Value, json};

use super::{CloneSetJob, CloneSetObjects, Controller, Pass, Resolved};
use crate::{
    api::{feature_gates::gate, labels},
    budgets::refusals::Refusals,
    controllers::pod_set::{Tried, kept_by_budgets, leaves_room, may_be_done},
    domain::{
        budgets::unavailable::Operation,
        kinds::clone_set::{
            make, plan,
            room::{Charge, Room},
            scale::{self, Cancel, Create, Deletion, ScalePlan},
        },
        pod::{lifecycle::State, order::Constraint},
        workload::{owner::OwnerRef, rollout, steps},
    },
    k8s::{claim::ClaimView, pod::PodView},
    runtime::{
        apply::{is_refusal, namespace_is_ending, said},
        clock,
        pod_control::{Created, Part},
        random,
        slow_start::{each, slow_start},
        watches::ObjectKey,
    },
};

/// Pods made in one pass.
const MOST_PER_PASS: usize = 128;

pub(super) fn id_of(pod: &PodView) -> &str {
    pod.labels.get(labels::INSTANCE_ID).unwrap_or_default()
}

impl Controller {
    /// Brings the number of Pods in order. True: something was done, or may have been done: updates are for the next pass.
    /// What is refused ends nothing.
    pub(super) async fn scale(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
        pass: &mut Pass,
    ) -> bool {
        let zones = self.zones(job, seen);
        let constraints: Vec<Constraint<'_>> = zones.iter().map(|(key, values)| Constraint { key, values }).collect();
        let mut pods = seen.pods.clone();
        loop {
            let observed = plan::ObservedCloneSet { pods: &pods, ..self.observed(job, resolved, seen, &constraints) };
            let ScalePlan { cancels, create, deletions, room, limited } = match scale::scale(&observed) {
                Ok(plan) => plan,
                Err(rollout::Invalid(why)) => {
                    // It waits for another spec, not for time.
                    pass.outcome.impossible = Some(why.clone());
                    pass.outcome.scale_error = Some(why);
                    return true;
                }
            };
            self.report_limit(job, limited);
            let deletions: VecDeque<Leaving> =
                deletions.iter().filter_map(|deletion| leaving(seen, deletion)).collect();
            let (cancelled, refused) = self.cancel(job, seen, cancels, pass).await;
            let created = match create {
                Some(create) => {
                    let (done, failure) = self.create(job, resolved, seen, create).await;
                    note(pass, done, failure).0
                }
                None => false,
            };
            if cancelled || created {
                return true;
            }
            if refused.is_empty() {
                return self.delete_some(job, seen, deletions, room, pass).await;
            }
            // Each round there are fewer that can be refused.
            pods = scale::as_if_cancelled(&job.spec, &pods, &refused);
        }
    }

    /// Cancels what is not wanted any more. Whether something was done, or may have been done, and what was refused.
    async fn cancel(
        &self,
        job: &CloneSetJob,
        seen: &CloneSetObjects,
        cancels: Vec<Cancel>,
        pass: &mut Pass,
    ) -> (bool, Vec<Cancel>) {
        let (mut changed, mut refused) = (false, Vec::new());
        for cancel in cancels {
            let Some(pod) = seen.view(cancel.pod()) else { continue };
            let result = match &cancel {
                Cancel::Deletion { state, .. } => self.move_to(job, pod, state.clone(), false).await,
                Cancel::Mark { label, .. } => self.unmark(job, pod, *label).await,
            };
            let (done, failure) = result.map_or_else(|error| (false, Some(error)), |done| (done, None));
            let (done, is_refused) = note(pass, done, failure);
            changed |= done;
            if is_refused {
                refused.push(cancel);
            }
        }
        (changed, refused)
    }

    /// Deletes or announces Pods, the first ones first, as many as find room. True: as for [`Self::scale`].
    async fn delete_some(
        &self,
        job: &CloneSetJob,
        seen: &CloneSetObjects,
        mut left: VecDeque<Leaving>,
        mut room: Room,
        pass: &mut Pass,
    ) -> bool {
        if !left.is_empty() {
            pass.refusals.wants();
        }
        let refusals = &pass.refusals;
        let try_one = |Leaving { charge, view, held }: Leaving| async move {
            let tried = self.delete_or_announce(job, seen, &view, held, refusals).await;
            Ok::<_, Infallible>((charge, tried))
        };
        let (mut changed, mut has_acted, mut failure) = (false, false, None);
        loop {
            let wave = admitted(&mut left, &mut room);
            if wave.is_empty() {
                break;
            }
            for (charge, tried) in each(wave, try_one).await.0 {
                // The Pod is gone, whatever became of its claims.
                let (tried, left) = match tried {
                    Ok((tried, left)) => (Ok(tried), left),
                    Err(error) => (Err(error), None),
                };
                if leaves_room(&tried) {
                    room.leave(charge);
                }
                has_acted |= may_be_done(&tried);
                changed |= matches!(tried, Ok(Tried::Done));
                failure = failure.or(left).or(tried.err());
            }
        }
        pass.note(failure.map_or(Ok(changed), Err), |outcome| &mut outcome.scale_error);
        pass.next.again |= changed;
        has_acted
    }

    /// Deletes or announces a Pod. With what came of it, why claims of a Pod that was deleted are left.
    async fn delete_or_announce(
        &self,
        job: &CloneSetJob,
        seen: &CloneSetObjects,
        view: &Arc<PodView>,
        held: bool,
        refusals: &Refusals,
    ) -> kube::Result<(Tried, Option<kube::Error>)> {
        let asked = match held {
            true => steps::announced_deletion(&job.spec.lifecycle),
            false => Some(Operation::Delete),
        };
        if let Some(kept) = kept_by_budgets(&self.context.budgets, view, (asked, refusals), false).await {
            return Ok((kept, None));
        }
        if !held {
            return Ok((Tried::Done, self.delete(job, view, seen).await?));
        }
        let done = self.move_to(job, view, State::PreparingDelete, false).await?;
        Ok((Tried::of(done), None))
    }

    /// Makes Pods: on the current revision, then on the update revision. Whether anything was done, and the first failure.
    async fn create(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
        Create { current, update }: Create,
    ) -> (bool, Option<kube::Error>) {
        let known = match current {
            0 => Ok(resolved.clone()),
            _ => self.with_known(job, resolved).await,
        };
        let resolved = match known {
            Ok(resolved) => resolved,
            Err(error) => return (false, Some(error)),
        };
        let claimed: BTreeSet<&str> = if job.spec.reuses_claims {
            seen.claims.iter().map(|claim| claim.instance_id.as_str()).filter(|id| !id.is_empty()).collect()
        } else {
            BTreeSet::new()
        };
        let wanted = (current + update).saturating_sub(seen.orphans).min(MOST_PER_PASS);
        // A Pod that has failed gives its id and its claims to its successor, which has its name too: it has to go first.
        let has_claims = |pod: &&Arc<PodView>| claimed.contains(id_of(pod));
        let (ending, failed): (Vec<_>, Vec<_>) =
            seen.inactive.iter().filter(has_claims).partition(|pod| pod.is_deleting());
        let (mut done, mut failure) = (false, None);
        for pod in failed.iter().take(wanted) {
            match self.delete_pod(job, pod).await {
                Ok(_) => done = true,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        // A Pod that is on its way out still has its claims: its successor waits for them, and is woken when it is gone.
        let ending = if job.spec.claim_templates.is_empty() { 0 } else { ending.len() };
        let count = wanted.saturating_sub(ending + failed.len());
        if count > 0 {
            let (made, error) = match self.new_ids(job, seen, &claimed, count) {
                Ok(ids) => self.create_all(job, (&resolved, current), seen, ids).await,
                Err(error) => (0, Some(error)),
            };
            done |= made > 0;
            failure = failure.or(error);
        }
        (done, failure)
    }

    /// The instance ids of Pods to be made.
    fn new_ids(
        &self,
        job: &CloneSetJob,
        seen: &CloneSetObjects,
        claimed: &BTreeSet<&str>,
        count: usize,
    ) -> kube::Result<Vec<String>> {
        let mut unusable: BTreeSet<&str> = seen.views.iter().chain(&seen.inactive).map(|pod| id_of(pod)).collect();
        if !job.spec.reuses_claims {
            unusable.extend(seen.claims.iter().map(|claim| claim.instance_id.as_str()));
        }
        // A Pod that was let go keeps its name, and goes on using the claims.
        let is_taken = |id: &&str| {
            let name = make::pod_name(&job.key.name, id);
            self.context.pods.get(&ObjectKey::new(&job.key.namespace, &name)).is_some()
        };
        unusable.extend(claimed.iter().copied().filter(is_taken));
        let number = || random::bytes().map(u32::from_ne_bytes);
        make::instance_ids(count, claimed, &unusable, number).map_err(|none| kube::Error::Service(none.into()))
    }

    /// Makes Pods: the first `current` of them on the current revision.
    async fn create_all(
        &self,
        job: &CloneSetJob,
        (resolved, current): (&Resolved, usize),
        seen: &CloneSetObjects,
        ids: Vec<String>,
    ) -> (usize, Option<kube::Error>) {
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        let current_template = if current > 0 { resolved.template(&resolved.current) } else { None };
        let have: BTreeSet<&str> = seen.claims.iter().map(|claim| claim.name()).collect();
        let mut window = self.memories.window(&job.key);
        // Pods of one template differ in nothing that one of them could be refused for.
        let concerns_all = |_: &kube::Error| false;
        let ids = ids.into_iter().enumerate().collect();
        let (done, failure) = slow_start(ids, &mut window, concerns_all, |(i, id): (usize, String)| {
            let (have, current_template) = (&have, &current_template);
            async move {
                let revision = match current_template {
                    Some(template) if i < current => (template, resolved.current.as_str()),
                    _ => (&job.spec.template, resolved.update.as_str()),
                };
                let pod = make::pod(&job.owner, &job.spec, revision, &id, short, clock::now());
                self.create_one(job, &id, &pod, have).await
            }
        })
        .await;
        self.memories.keep_window(&job.key, window);
        let failure = failure.filter(|error| !namespace_is_ending(error));
        if let Some(error) = &failure {
            self.pods.warning(&job.owner, "FailedCreate", &format!("failed to create a Pod: {}", said(error)));
        }
        (done, failure)
    }

    /// A mark of ours is for a revision that nobody wants any more. Only if the Pod is still the one we looked at: somebody
    /// may be marking it just now.
    async fn unmark(&self, job: &CloneSetJob, pod: &PodView, label: bool) -> kube::Result<bool> {
        let mut metadata = json!({"uid": pod.uid(), "resourceVersion": pod.resource_version(),
            "annotations": {labels::SPECIFIED_DELETE_FOR: null}});
        if label {
            metadata["labels"] = json!({labels::SPECIFIED_DELETE: null});
        }
        self.pods.try_patch(pod, Part::Whole, &json!({ "metadata": metadata })).await?;
        tracing::info!(clone_set = %job.key, pod = pod.name(), "is not to be replaced any more");
        Ok(true)
    }

    /// Deletes a Pod, and the claims of its instance. Returns why claims are left: they are for the next passes. Both stay if
    /// its hook has taken hold of it again: the next pass sees that.
    async fn delete(
        &self,
        job: &CloneSetJob,
        pod: &Arc<PodView>,
        seen: &CloneSetObjects,
    ) -> kube::Result<Option<kube::Error>> {
        if !self.delete_pod(job, pod).await? {
            return Ok(None);
        }
        let id = id_of(pod);
        let is_its_own = |claim: &&Arc<ClaimView>| !id.is_empty() && claim.instance_id == id;
        let claims: Vec<Arc<ClaimView>> = seen.claims.iter().filter(is_its_own).cloned().collect();
        let left = self.claim_control.delete_all(&claims).await.err();
        if left.is_some() {
            self.memories.note_left(&job.key, id);
        }
        Ok(left)
    }

    /// Deletes claims that could not be deleted together with their Pods: the successors are not to get them. True: some were
    /// deleted. Only this process knows of them: a Pod that is on its way out, marked or not, may have been deleted by somebody who
    /// wants its data kept.
    pub(super) async fn delete_left_claims(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> kube::Result<bool> {
        let before = self.memories.left(&job.key);
        if before.is_empty() {
            return Ok(false);
        }
        let taken_over: BTreeSet<&str> = seen.views.iter().map(|pod| id_of(pod)).collect();
        let is_left = |id: &str| before.contains(id) && !taken_over.contains(id);
        let claims: Vec<Arc<ClaimView>> =
            seen.claims.iter().filter(|claim| is_left(&claim.instance_id)).cloned().collect();
        self.memories.keep_left(&job.key, claims.iter().map(|claim| claim.instance_id.to_string()).collect());
        match claims.is_empty() {
            true => Ok(false),
            false => self.claim_control.delete_all(&claims).await.map(|()| true),
        }
    }

    /// False: it stays, its hook has taken hold of it again.
    async fn delete_pod(&self, job: &CloneSetJob, pod: &PodView) -> kube::Result<bool> {
        let deleted = self.pods.delete_unless_held(pod, &job.spec.lifecycle).await;
        match &deleted {
            Ok(true) => {
                let message = format!("succeed to delete pod {}", pod.name());
                self.pods.normal(&job.owner, "SuccessfulDelete", &message);
            }
            Ok(false) => {}
            Err(error) => {
                let message = format!("failed to delete pod {}: {}", pod.name(), said(error));
                self.pods.warning(&job.owner, "FailedDelete", &message);
            }
        }
        deleted
    }

    fn report_limit(&self, job: &CloneSetJob, limited: i32) {
        let before = self.memories.replace_limited(&job.key, limited);
        if limited > 0 && before != Some(limited) {
            let message =
                format!("{limited} Pods wait for others to become available: scaleStrategy.maxUnavailable is reached");
            self.pods.warning(&job.owner, "ScaleUpLimited", &message);
        }
    }

    /// The values of the template's topology keys on nodes, when Pods to delete have to be chosen by them.
    fn zones(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> Vec<(String, BTreeMap<String, String>)> {
        let constraints = job.spec.template.pointer("/spec/topologySpreadConstraints").and_then(Value::as_array);
        let keys: Vec<&str> = constraints.into_iter().flatten().filter_map(|c| c["topologyKey"].as_str()).collect();
        let replicas = usize::try_from(job.spec.replicas).unwrap_or(0);
        let is_announced = || seen.pods.iter().any(|pod| pod.state == State::PreparingDelete);
        if keys.is_empty() || (seen.pods.len() <= replicas && !is_announced()) {
            return Vec::new();
        }
        let nodes = self.context.nodes.list();
        let values = |key: &str| {
            nodes.iter().filter_map(|node| Some((node.name().to_owned(), node.labels.get(key)?.to_owned()))).collect()
        };
        keys.into_iter().map(|key| (key.to_owned(), values(key))).collect()
    }

    async fn create_one(&self, job: &CloneSetJob, id: &str, pod: &Value, have: &BTreeSet<&str>) -> kube::Result<()> {
        for claim in make::claims(&job.owner, &job.spec, id) {
            if !claim["metadata"]["name"].as_str().is_some_and(|name| have.contains(name)) {
                self.claim_control.create(&job.owner, &claim).await?;
            }
        }
        if let Created::New(made) = self.pods.create(&job.owner, pod).await? {
            self.pods.normal(&job.owner, "SuccessfulCreate", &format!("succeed to create pod {}", made.name()));
        }
        Ok(())
    }

    /// `disablePVCReuse`: claims of no active Pod go, or follow the Pod that still has them. One that is refused keeps
    /// none of the others.
    pub(super) async fn drop_claims(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> kube::Result<bool> {
        let (mut changed, mut failure) = (false, None);
        for claim in &seen.claims {
            if claim.instance_id.is_empty() || seen.views.iter().any(|pod| id_of(pod) == claim.instance_id) {
                continue;
            }
            let dropped = match seen.inactive.iter().find(|pod| id_of(pod) == claim.instance_id) {
                None => self.claim_control.delete(claim).await,
                Some(pod) => self.hand_over(job, claim, pod).await,
            };
            match dropped {
                Ok(dropped) => changed |= dropped,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(changed), Err)
    }

    /// Makes a claim the Pod's, so that it goes with it. False: it is gone, or has changed, which the watch will show.
    async fn hand_over(&self, job: &CloneSetJob, claim: &ClaimView, pod: &PodView) -> kube::Result<bool> {
        let owners = json!([{"$patch": "delete", "uid": job.owner.uid}, OwnerRef::of_pod(pod).controller()]);
        self.claim_control.patch(claim, json!({"metadata": {"ownerReferences": owners}})).await
    }
}

/// A Pod to be deleted or announced.
struct Leaving {
    charge: Charge,
    view: Arc<PodView>,
    held: bool,
}

fn leaving(seen: &CloneSetObjects, Deletion { pod, held }: &Deletion<'_>) -> Option<Leaving> {
    Some(Leaving { charge: Charge::of(pod), view: seen.view(&pod.facts.name)?.clone(), held: *held })
}

/// Those from the front that find room.
fn admitted(left: &mut VecDeque<Leaving>, room: &mut Room) -> Vec<Leaving> {
    let fits = left.iter().take_while(|leaving| room.enter(leaving.charge)).count();
    left.drain(..fits).collect()
}

/// Notes the outcome of a step: whether something was done, or may have been done, and whether it was refused.
fn note(pass: &mut Pass, done: bool, failure: Option<kube::Error>) -> (bool, bool) {
    let is_refused = failure.as_ref().is_some_and(is_refusal);
    let unsure = failure.is_some() && !is_refused;
    pass.note(failure.map_or(Ok(done), Err), |outcome| &mut outcome.scale_error);
    (done || unsure, is_refused)
}
