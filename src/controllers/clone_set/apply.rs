//! Carries out what the rules decide, and nothing else writes to Pods and claims of CloneSets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Request,
};
use ring::rand::SecureRandom;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    AFTER_CONFLICT, AFTER_REFUSAL, Controller, Pass, Resolved, Seen, lock, pause,
    revisions::{Ways, from_json},
    uid_of,
};
use crate::{
    api::{
        apps::{clone_set::CloneSet, lifecycle::Lifecycle},
        feature_gates::gate,
        labels,
    },
    domain::{
        clone_set::{
            make,
            one_update::{self, How},
            plan::{self, Action, Pod},
        },
        inplace::{self, Allowed, Annotations, UpdateSpec, resize},
        lifecycle::{self, State},
        pod_order::Constraint,
        readiness,
        refresh::{self, Refresh},
        unavailable_budget::Operation,
    },
    k8s::{
        claim::ClaimView,
        path,
        pod::PodView,
        revision,
        selector::Selector,
        time::{Now, rfc3339},
    },
    runtime::{
        apply::{code, namespace_is_ending},
        clock,
        slow_start::{MOST, each, slow_start},
        watches::ObjectKey,
    },
};

/// Pods made in one pass.
const MOST_PER_PASS: usize = 128;

/// Where a patch of a Pod goes.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    Status,
    Resize,
}

impl Controller {
    fn pods_api(&self, namespace: &str) -> Api<PodView> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    /// Lets go of Pods that the selector does not match any more; others are not adopted.
    pub(super) async fn release(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<bool> {
        let selector = match Selector::of(&clone_set.spec.selector) {
            Ok(selector) if !selector.is_empty() => selector,
            // Nobody could say which Pods are meant: admission refuses it, and letting go of all would be worst.
            _ => return Ok(false),
        };
        let mut released = false;
        for pod in seen.views.iter().filter(|pod| !selector.matches(&pod.labels)) {
            let patch = json!({"metadata": {"uid": pod.uid(),
                "ownerReferences": [{"$patch": "delete", "uid": uid_of(clone_set)}]}});
            self.patch_pod(pod, Part::Whole, &patch).await?;
            self.tell(clone_set, "Released", &format!("Pod {} no longer matches the selector", pod.name()));
            released = true;
        }
        Ok(released)
    }

    /// Brings the number of Pods in order. True: something was done, or could not be done.
    pub(super) async fn scale(&self, clone_set: &CloneSet, resolved: &Resolved, seen: &Seen, pass: &mut Pass) -> bool {
        let zones = match self.zones(clone_set, seen).await {
            Ok(zones) => zones,
            Err(error) => {
                pass.note(Err(error), |outcome| &mut outcome.scale_error);
                return true;
            }
        };
        let constraints: Vec<Constraint<'_>> = zones.iter().map(|(key, values)| Constraint { key, values }).collect();
        let plan = match plan::scale(&self.observed(clone_set, resolved, seen, &constraints)) {
            Ok(plan) => plan,
            Err(plan::Invalid(why)) => {
                // It waits for another spec, not for time.
                pass.outcome.scale_error = Some(why);
                return true;
            }
        };
        self.tell_limit(clone_set, plan.limited);
        let mut deletions = Vec::new();
        let mut changed = false;
        for action in plan.actions {
            match action {
                Action::Create { current, update } => {
                    let made = self.create(clone_set, resolved, seen, (current, update)).await;
                    changed |= !matches!(made, Ok(false));
                    pass.note(made, |outcome| &mut outcome.scale_error);
                }
                Action::Delete { pod, held } => deletions.push((pod, held)),
                Action::KeepAfterAll(name) => {
                    let kept = self.keep_after_all(clone_set, seen, &name).await;
                    changed |= !matches!(kept, Ok(false));
                    pass.note(kept, |outcome| &mut outcome.scale_error);
                }
                Action::Replace(_) | Action::UpdateInPlace { .. } | Action::NotUpdatedAfterAll(_) => {}
            }
        }
        let hook = clone_set.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_delete.as_ref());
        let hook_takes_out = hook.is_some_and(|hook| hook.mark_pod_not_ready);
        let deletes = !deletions.is_empty();
        let refusals = Refusals::default();
        let refusals_of = &refusals;
        let delete = |(name, held): (String, bool)| async move {
            let takes_out = !held || hook_takes_out;
            match seen.view(&name) {
                // One that may not go now does not keep the others.
                Some(pod) if takes_out && !self.may_take(pod, Operation::Delete, refusals_of).await => Ok(false),
                Some(pod) if held => self.announce(clone_set, pod, State::PreparingDelete, false).await,
                Some(pod) => self.delete(clone_set, pod, seen).await.map(|()| true),
                None => Ok(false),
            }
        };
        let (done, failure) = each(deletions, delete).await;
        let deleted = done.contains(&true);
        changed |= deleted || failure.is_some() || refusals.any();
        if deletes {
            self.tell_refusals(clone_set, refusals, pass);
        }
        pass.note(failure.map_or(Ok(deleted), Err), |outcome| &mut outcome.scale_error);
        changed
    }

    /// Whether the PodUnavailableBudgets of a Pod let it go out of service. A yes is written down there, so that admission
    /// lets the write pass that follows.
    async fn may_take(&self, pod: &PodView, operation: Operation, refusals: &Refusals) -> bool {
        match self.context.budgets.take(pod, operation, false).await {
            Ok(()) => true,
            Err(refusal) => {
                refusals.note(pod.name(), refusal.message());
                false
            }
        }
    }

    /// Tells of the first Pod that a budget keeps, when none was kept before, and looks again soon.
    fn tell_refusals(&self, clone_set: &CloneSet, refusals: Refusals, pass: &mut Pass) {
        let first = refusals.into_first();
        pass.look_after(first.is_some().then_some(AFTER_REFUSAL));
        let before = lock(&self.memories)
            .get_mut(&ObjectKey::of(clone_set))
            .map(|memory| std::mem::replace(&mut memory.is_refused, first.is_some()));
        if let Some((pod, why)) = first.filter(|_| before == Some(false)) {
            self.warn(clone_set, "WaitsForBudget", &format!("Pod {pod} stays in service for now: {why}"));
        }
    }

    fn tell_limit(&self, clone_set: &CloneSet, limited: i32) {
        let key = ObjectKey::of(clone_set);
        let before = lock(&self.memories).get_mut(&key).map(|memory| std::mem::replace(&mut memory.limited, limited));
        if limited > 0 && before != Some(limited) {
            let message =
                format!("{limited} Pods wait for others to become available: scaleStrategy.maxUnavailable is reached");
            self.warn(clone_set, "ScaleUpLimited", &message);
        }
    }

    /// The values of the template's topology keys on nodes, when Pods to delete have to be chosen by them.
    async fn zones(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<Vec<(String, BTreeMap<String, String>)>> {
        let constraints = clone_set.spec.template.pointer("/spec/topologySpreadConstraints").and_then(Value::as_array);
        let keys: Vec<&str> = constraints.into_iter().flatten().filter_map(|c| c["topologyKey"].as_str()).collect();
        let replicas = usize::try_from(clone_set.spec.replicas.unwrap_or(1)).unwrap_or(0);
        if keys.is_empty() || seen.pods.len() <= replicas {
            return Ok(Vec::new());
        }
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.context.client.clone());
        let nodes = nodes.list_metadata(&kube::api::ListParams::default()).await?;
        let values = |key: &str| {
            let of_node = |node: &kube::core::PartialObjectMeta<_>| {
                Some((node.metadata.name.clone()?, node.metadata.labels.as_ref()?.get(key)?.clone()))
            };
            nodes.items.iter().filter_map(of_node).collect()
        };
        Ok(keys.into_iter().map(|key| (key.to_owned(), values(key))).collect())
    }

    /// Makes Pods: on the current revision, then on the update revision.
    async fn create(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        seen: &Seen,
        (current, update): (usize, usize),
    ) -> kube::Result<bool> {
        let resolved = if current > 0 { self.with_known(clone_set, resolved).await? } else { resolved.clone() };
        let id_of = |pod: &PodView| pod.labels.get(labels::INSTANCE_ID).unwrap_or_default().to_owned();
        let taken: BTreeSet<String> = seen.views.iter().chain(&seen.inactive).map(|pod| id_of(pod)).collect();
        let claimed: BTreeSet<&str> = if clone_set.spec.scale_strategy.disable_pvc_reuse {
            BTreeSet::new()
        } else {
            seen.claims.iter().map(|claim| claim.instance_id.as_str()).filter(|id| !id.is_empty()).collect()
        };
        // A Pod that is on its way out still has its claims: its successor waits for them, and is woken when it is gone.
        let ending =
            seen.inactive.iter().filter(|pod| pod.is_deleting() && claimed.contains(id_of(pod).as_str())).count();
        let waiting = if make::has_claims(clone_set) { ending } else { 0 };
        // Not all at once: those that are there already want to be looked after.
        let count = (current + update).saturating_sub(waiting).min(MOST_PER_PASS);
        if count == 0 {
            return Ok(false);
        }
        let all_claims: BTreeSet<&str> = seen.claims.iter().map(|claim| claim.instance_id.as_str()).collect();
        let mut unusable: BTreeSet<&str> = taken.iter().map(String::as_str).collect();
        if clone_set.spec.scale_strategy.disable_pvc_reuse {
            unusable.extend(&all_claims);
        }
        let random = ring::rand::SystemRandom::new();
        let number = || {
            let mut bytes = [0; 4];
            // Without randomness ids would be equal, and creating them would say so.
            let _ = random.fill(&mut bytes);
            u32::from_ne_bytes(bytes)
        };
        let ids = make::instance_ids(count, &claimed, &unusable, number);
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        let now = clock::now();
        let current_template = if current > 0 { resolved.template(&resolved.current) } else { None };
        let made: Vec<(String, Value)> = ids
            .into_iter()
            .enumerate()
            .map(|(i, id)| {
                let pod = match &current_template {
                    Some(template) if i < current => make::pod(clone_set, template, &resolved.current, &id, short, now),
                    _ => make::pod(clone_set, &clone_set.spec.template, &resolved.update, &id, short, now),
                };
                (id, pod)
            })
            .collect();
        let have: BTreeSet<&str> = seen.claims.iter().map(|claim| claim.name()).collect();
        let key = ObjectKey::of(clone_set);
        let mut window = lock(&self.memories).get(&key).map_or(1, |memory| memory.window);
        let (done, failure) = slow_start(made, &mut window, |(id, pod)| {
            let have = &have;
            async move { self.create_one(clone_set, &id, &pod, have).await }
        })
        .await;
        if let Some(memory) = lock(&self.memories).get_mut(&key) {
            memory.window = window;
        }
        match failure {
            None => Ok(done > 0),
            Some(error) if namespace_is_ending(&error) => Ok(false),
            Some(error) => {
                self.warn(clone_set, "FailedCreate", &format!("failed to create a Pod: {error}"));
                Err(error)
            }
        }
    }

    async fn create_one(&self, clone_set: &CloneSet, id: &str, pod: &Value, have: &BTreeSet<&str>) -> kube::Result<()> {
        let namespace = clone_set.metadata.namespace.as_deref().unwrap_or_default();
        for claim in make::claims(clone_set, id) {
            if claim["metadata"]["name"].as_str().is_some_and(|name| have.contains(name)) {
                continue;
            }
            let claims = path::in_namespace(path::CORE, "v1", namespace, "persistentvolumeclaims");
            match self.post(&claims, &claim).await {
                Ok(made) => {
                    self.claims.upsert(decoded(&made)?);
                }
                // Left by an attempt of which the watch has not told yet.
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(error),
            }
        }
        let made = self.post(&path::pods(namespace), pod).await?;
        let made: PodView = decoded(&made)?;
        self.tell(clone_set, "SuccessfulCreate", &format!("succeed to create pod {}", made.name()));
        self.context.pods.upsert(made);
        Ok(())
    }

    async fn post(&self, path: &str, object: &Value) -> kube::Result<String> {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = axum::http::Request::post(path).header("content-type", "application/json").body(body);
        self.context.client.request_text(request.map_err(kube::Error::HttpError)?).await
    }

    /// Patches a Pod and returns all of it, as text; what is stale or gone is made good in the store.
    async fn patch_pod(&self, pod: &PodView, part: Part, patch: &Value) -> kube::Result<String> {
        let requests = Request::new(path::pods(pod.namespace()));
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let request = match part {
            Part::Whole => requests.patch(pod.name(), &params, &patch),
            Part::Status => requests.patch_subresource("status", pod.name(), &params, &patch),
            Part::Resize => requests.patch_subresource("resize", pod.name(), &params, &patch),
        };
        let result = self.context.client.request_text(request.map_err(kube::Error::BuildRequest)?).await;
        match &result {
            Ok(newer) => {
                self.context.pods.upsert(decoded(newer)?);
            }
            Err(error) if code(error) == Some(404) => {
                self.context.pods.remove(&ObjectKey::of(pod), Some(pod.uid()));
            }
            Err(error) if code(error) == Some(409) => match self.pods_api(pod.namespace()).get_opt(pod.name()).await? {
                Some(newer) => {
                    self.context.pods.upsert(newer);
                }
                None => {
                    self.context.pods.remove(&ObjectKey::of(pod), Some(pod.uid()));
                }
            },
            Err(_) => {}
        }
        result
    }

    /// Patches a Pod of which a newer version may be better informed: then the next pass decides anew.
    async fn try_patch(&self, pod: &PodView, part: Part, patch: &Value) -> kube::Result<Option<String>> {
        match self.patch_pod(pod, part, patch).await {
            Ok(newer) => Ok(Some(newer)),
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves a Pod to another state: for most of them it waits for its hook there.
    async fn announce(&self, clone_set: &CloneSet, pod: &PodView, state: State, restore: bool) -> kube::Result<bool> {
        let lifecycle = clone_set.spec.lifecycle.clone().unwrap_or_default();
        let Some(patch) = refresh::move_to(pod, state.clone(), &lifecycle, restore, clock::now()) else {
            return Ok(false);
        };
        self.try_patch(pod, Part::Status, &patch).await?;
        tracing::info!(clone_set = %ObjectKey::of(clone_set), pod = pod.name(), state = state.as_str(), "has another state");
        Ok(true)
    }

    async fn keep_after_all(&self, clone_set: &CloneSet, seen: &Seen, name: &str) -> kube::Result<bool> {
        let Some(pod) = seen.view(name) else { return Ok(false) };
        // It goes back to where it was: into its update, if one is under way.
        let state = match pod.in_place {
            Some(_) => State::Updating,
            None => State::PreparingNormal,
        };
        self.announce(clone_set, pod, state, false).await
    }

    async fn delete(&self, clone_set: &CloneSet, pod: &Arc<PodView>, seen: &Seen) -> kube::Result<()> {
        let only_this = Preconditions { uid: Some(pod.uid().to_owned()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        let key = ObjectKey::of(pod.as_ref());
        match self.pods_api(pod.namespace()).delete(pod.name(), &params).await {
            Ok(answer) => match answer.left().filter(PodView::is_deleting) {
                Some(ending) => {
                    self.context.pods.upsert(ending);
                }
                None => {
                    self.context.pods.remove(&key, Some(pod.uid()));
                }
            },
            // Gone, or another one of the same name by now.
            Err(error) if matches!(code(&error), Some(404 | 409)) => {
                self.context.pods.remove(&key, Some(pod.uid()));
            }
            Err(error) => {
                self.warn(clone_set, "FailedDelete", &format!("failed to delete pod {}: {error}", pod.name()));
                return Err(error);
            }
        }
        self.tell(clone_set, "SuccessfulDelete", &format!("succeed to delete pod {}", pod.name()));
        let id = pod.labels.get(labels::INSTANCE_ID).unwrap_or_default();
        for claim in seen.claims.iter().filter(|claim| !id.is_empty() && claim.instance_id == id) {
            self.delete_claim(claim).await?;
        }
        Ok(())
    }

    async fn delete_claim(&self, claim: &Arc<ClaimView>) -> kube::Result<()> {
        let key = ObjectKey::of(claim.as_ref());
        let api: Api<ClaimView> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let only_this = Preconditions { uid: claim.metadata.uid.clone(), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        match api.delete(&key.name, &params).await {
            Ok(answer) => match answer.left().filter(ClaimView::is_deleting) {
                Some(ending) => {
                    self.claims.upsert(ending);
                }
                None => {
                    self.claims.remove(&key, claim.metadata.uid.as_deref());
                }
            },
            Err(error) if matches!(code(&error), Some(404 | 409)) => {
                self.claims.remove(&key, claim.metadata.uid.as_deref());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// `disablePVCReuse`: claims of no active Pod go, or follow the Pod that still has them.
    pub(super) async fn drop_claims(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<bool> {
        fn id(pod: &Arc<PodView>) -> &str {
            pod.labels.get(labels::INSTANCE_ID).unwrap_or_default()
        }
        let mut changed = false;
        for claim in &seen.claims {
            if claim.instance_id.is_empty() || seen.views.iter().any(|pod| id(pod) == claim.instance_id) {
                continue;
            }
            changed = true;
            match seen.inactive.iter().find(|pod| id(pod) == claim.instance_id) {
                None => self.delete_claim(claim).await?,
                Some(pod) => {
                    let owners = json!([
                        {"$patch": "delete", "uid": uid_of(clone_set)},
                        {"apiVersion": "v1", "kind": "Pod", "name": pod.name(), "uid": pod.uid(),
                            "controller": true, "blockOwnerDeletion": true}]);
                    let patch = json!({"metadata": {"uid": claim.metadata.uid, "ownerReferences": owners}});
                    let key = ObjectKey::of(claim.as_ref());
                    let api: Api<ClaimView> = Api::namespaced(self.context.client.clone(), &key.namespace);
                    match api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
                        Ok(newer) => {
                            self.claims.upsert(newer);
                        }
                        Err(error) if matches!(code(&error), Some(404 | 409)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(changed)
    }

    /// Brings every Pod's own state up to date. True: something was written.
    pub(super) async fn refresh_all(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        seen: &Seen,
        pass: &mut Pass,
    ) -> bool {
        let now = clock::now();
        let lifecycle = clone_set.spec.lifecycle.as_ref();
        let is_large = !pause(seen.views.len()).is_zero();
        let mut work = Vec::new();
        for view in &seen.views {
            match refresh::refresh(view, None, lifecycle, &resolved.update, now) {
                Refresh::Nothing => {}
                Refresh::Wait { after, for_what } => {
                    tracing::debug!(pod = view.name(), for_what, "waits");
                    pass.look_after(after);
                }
                // What one Pod needs for itself does not hold up the pass.
                Refresh::Status(_) if is_large => self.pod_queue.add(ObjectKey::of(view.as_ref())),
                needed => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed): (Arc<PodView>, Refresh)| async move {
            self.refresh_one(clone_set, &resolved.update, &view, needed, now).await
        })
        .await;
        let mut written = false;
        for done in done {
            match done {
                Refreshed::Written => written = true,
                Refreshed::Nothing => {}
                Refreshed::Later(after) => pass.look_after(Some(after)),
            }
        }
        pass.note(failure.map_or(Ok(written), Err), |outcome| &mut outcome.update_error);
        written
    }

    pub(super) async fn refresh_one(
        &self,
        clone_set: &CloneSet,
        update_revision: &str,
        view: &Arc<PodView>,
        needed: Refresh,
        now: Now,
    ) -> kube::Result<Refreshed> {
        let written = |newer: Option<String>| newer.map_or(Refreshed::Later(AFTER_CONFLICT), |_| Refreshed::Written);
        let Some(_held) = self.hold(view) else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
        match needed {
            Refresh::Nothing | Refresh::Wait { .. } => Ok(Refreshed::Nothing),
            Refresh::Status(patch) => self.try_patch(view, Part::Status, &patch).await.map(written),
            Refresh::DropGrace => {
                let annotations = json!({labels::IN_PLACE_GRACE: null, labels::IN_PLACE_GRACE_LEGACY: null});
                let patch = json!({"metadata": {"uid": view.uid(), "annotations": annotations}});
                self.try_patch(view, Part::Whole, &patch).await.map(written)
            }
            Refresh::WholePod | Refresh::Batch(_) => {
                if self.was_looked_at(clone_set, view) {
                    return Ok(Refreshed::Nothing);
                }
                let Some(whole) = self.read_whole(view).await? else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
                let newer: PodView = from_json(&whole)?;
                let lifecycle = clone_set.spec.lifecycle.as_ref();
                let decided = refresh::refresh(&newer, Some(&whole), lifecycle, update_revision, now);
                match decided {
                    Refresh::Batch(spec) => {
                        let earlier = Annotations::of(&whole).unwrap_or_default().state;
                        let state = earlier.unwrap_or_else(|| inplace::begin(&whole, &spec, None, now.wall));
                        let Some(mut patch) = self.batch(&newer, &whole, &spec, state, now).await? else {
                            return Ok(Refreshed::Later(AFTER_CONFLICT));
                        };
                        if spec.container_resources.is_empty() {
                            patch["metadata"]["resourceVersion"] = json!(newer.metadata.resource_version);
                        }
                        self.try_patch(&newer, Part::Whole, &patch).await.map(written)
                    }
                    Refresh::Status(patch) => self.try_patch(&newer, Part::Status, &patch).await.map(written),
                    Refresh::DropGrace | Refresh::WholePod | Refresh::Nothing | Refresh::Wait { .. } => {
                        if let Some((reason, message)) = resize::trouble(&whole) {
                            let message = format!("kubelet does not resize pod {}: {reason}: {message}", newer.name());
                            self.warn(clone_set, "ResizeNotDone", &message);
                        }
                        if let Refresh::Wait { after, .. } = &decided {
                            if let Some(after) = after {
                                return Ok(Refreshed::Later(*after));
                            }
                            let version = newer.metadata.resource_version.clone().unwrap_or_default();
                            if let Some(memory) = lock(&self.memories).get_mut(&ObjectKey::of(clone_set)) {
                                memory.looked_at.insert(newer.uid().to_owned(), version);
                            }
                        }
                        self.context.pods.upsert(newer);
                        Ok(Refreshed::Nothing)
                    }
                }
            }
        }
    }

    /// Whether exactly this version was looked at as a whole already, and had to wait.
    fn was_looked_at(&self, clone_set: &CloneSet, view: &PodView) -> bool {
        let mut memories = lock(&self.memories);
        let Some(memory) = memories.get_mut(&ObjectKey::of(clone_set)) else { return false };
        memory.looked_at.get(view.uid()) == view.metadata.resource_version.as_ref()
    }

    async fn read_whole(&self, view: &PodView) -> kube::Result<Option<Value>> {
        let requests = Request::new(path::pods(view.namespace()));
        let request = requests.get(view.name(), &kube::api::GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let whole: kube::Result<Value> = self.context.client.request(request).await;
        match whole {
            Ok(whole) if whole["metadata"]["uid"] == view.uid() => Ok(Some(whole)),
            Ok(_) => Ok(None),
            Err(error) if code(&error) == Some(404) => {
                self.context.pods.remove(&ObjectKey::of(view), Some(view.uid()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Updates Pods, as many as may be.
    pub(super) async fn update(&self, clone_set: &CloneSet, resolved: &Resolved, seen: &Seen, pass: &mut Pass) {
        let actions = match plan::update(&self.observed(clone_set, resolved, seen, &[])) {
            Ok(actions) => actions,
            Err(plan::Invalid(why)) => {
                pass.outcome.update_error = Some(why);
                return;
            }
        };
        if actions.is_empty() {
            return;
        }
        let resolved = match self.with_known(clone_set, resolved).await {
            Ok(resolved) => resolved,
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let allowed = match self.allowed().await {
            Ok(allowed) => allowed,
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let mut ways: Ways<Result<UpdateSpec, String>> = BTreeMap::new();
        let mut work = Vec::new();
        let mut impossible = None;
        let find = |name: &str| seen.pods.iter().zip(&seen.views).find(|(pod, _)| pod.facts.name == name);
        for action in actions {
            match action {
                Action::Replace(name) => {
                    if let Some((_, view)) = find(&name) {
                        work.push((view.clone(), How::Replace, resolved.update.clone(), UpdateSpec::default()));
                    }
                }
                Action::UpdateInPlace { pod: name, back } => {
                    let Some((pod, view)) = find(&name) else { continue };
                    let target = if back { &resolved.current } else { &resolved.update };
                    let way = ways
                        .entry(pod.revision.clone())
                        .or_insert_with(|| self.way(clone_set, &resolved, &pod.revision, target, allowed));
                    let spec = way.clone().unwrap_or_default();
                    match self.how(clone_set, pod, way) {
                        How::Impossible(why) => {
                            impossible.get_or_insert_with(|| format!("Pod {name} {why}"));
                        }
                        how => work.push((view.clone(), how, target.clone(), spec)),
                    }
                }
                Action::NotUpdatedAfterAll(name) => {
                    if let Some((_, view)) = find(&name) {
                        work.push((view.clone(), How::LetGo, resolved.update.clone(), UpdateSpec::default()));
                    }
                }
                Action::Create { .. } | Action::Delete { .. } | Action::KeepAfterAll(_) => {}
            }
        }
        let is_busy = AtomicBool::new(false);
        let is_busy = &is_busy;
        let refusals = Refusals::default();
        let refusals_of = &refusals;
        let hook = clone_set.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.in_place_update.as_ref());
        let hook_takes_out = hook.is_some_and(|hook| hook.mark_pod_not_ready);
        // A Pod that is to be replaced stays in service until it is deleted.
        let takes_out = |how: &How| match how {
            How::Now => true,
            How::Announce { .. } => hook_takes_out,
            How::Replace | How::Wait | How::LetGo | How::Impossible(_) => false,
        };
        let begin = |(view, how, target, spec): (Arc<PodView>, How, String, UpdateSpec)| async move {
            let view = view.as_ref();
            let Some(_held) = self.hold(view) else {
                is_busy.store(true, Ordering::Relaxed);
                return Ok(false);
            };
            let operation = match spec.container_images.is_empty() && !spec.container_resources.is_empty() {
                true => Operation::Resize,
                false => Operation::Update,
            };
            if takes_out(&how) && !self.may_take(view, operation, refusals_of).await {
                return Ok(false);
            }
            match how {
                How::Wait | How::Impossible(_) => Ok(false),
                How::LetGo => {
                    let state = lifecycle::after_update(clone_set.spec.lifecycle.as_ref(), view);
                    self.announce(clone_set, view, state, false).await
                }
                How::Announce { restore } => self.announce(clone_set, view, State::PreparingUpdate, restore).await,
                How::Now => self.update_now(clone_set, view, &target, &spec).await,
                How::Replace => self.mark(clone_set, view, &target).await,
            }
        };
        // Pods that are back meanwhile leave room for others, whom only the next pass sees: a pass that has begun something
        // ends.
        let (mut changed, mut failure) = (false, None);
        let mut left = work.into_iter().peekable();
        while !changed && left.peek().is_some() {
            let (done, error) = each(left.by_ref().take(MOST).collect(), begin).await;
            changed = done.contains(&true);
            failure = failure.or(error);
        }
        pass.look_after(is_busy.load(Ordering::Relaxed).then_some(AFTER_CONFLICT));
        self.tell_refusals(clone_set, refusals, pass);
        if let Some(why) = impossible {
            let said = clone_set.status.iter().flat_map(|s| &s.conditions).any(|c| c.message == why);
            if !said {
                self.warn(clone_set, "FailedUpdate", &why);
            }
            pass.outcome.update_error = Some(why);
        }
        pass.note(failure.map_or(Ok(changed), Err), |outcome| &mut outcome.update_error);
    }

    /// Which changes may be made in place in this cluster.
    pub(super) async fn allowed(&self) -> kube::Result<Allowed> {
        let gates = &self.context.gates;
        let env_from_metadata = gates.enabled(gate::IN_PLACE_UPDATE_ENV);
        if !gates.enabled(gate::RESIZE_IN_PLACE) {
            return Ok(Allowed { env_from_metadata, resources: false });
        }
        let asked = *lock(&self.can_resize);
        let resources = match asked {
            Some(can) => can,
            None => {
                let version = self.context.client.apiserver_version().await?;
                let can = resize::has_subresource(&version.git_version);
                *lock(&self.can_resize) = Some(can);
                can
            }
        };
        Ok(Allowed { env_from_metadata, resources })
    }

    /// What has to change between two revisions, or why that needs another Pod.
    pub(super) fn way(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        old: &str,
        target: &str,
        allowed: Allowed,
    ) -> Result<UpdateSpec, String> {
        let gates = &self.context.gates;
        let (Some(from), Some(to)) = (resolved.find(old), resolved.find(target)) else {
            return Err(format!("revision {old:?} of the Pod is not known any more"));
        };
        let in_place_only = clone_set.spec.update_strategy.type_ == "InPlaceOnly";
        if gates.enabled(gate::RECREATE_ON_CLAIM_CHANGE)
            && !in_place_only
            && let (Some(a), Some(b)) = (&from.claims_hash, &to.claims_hash)
            && a != b
        {
            return Err("volumeClaimTemplates differ".into());
        }
        let templates = (revision::template(&from.data), revision::template(&to.data));
        let (Some(from), Some(to)) = templates else { return Err("a revision holds no template".into()) };
        let mut spec = inplace::spec_between(&from, &to, target, allowed)?;
        let strategy = clone_set.spec.update_strategy.in_place_update_strategy.as_ref();
        spec.grace_seconds = i64::from(strategy.map_or(0, |strategy| strategy.grace_period_seconds.max(0)));
        Ok(spec)
    }

    fn how(&self, clone_set: &CloneSet, pod: &Pod, way: &Result<UpdateSpec, String>) -> How {
        let only = clone_set.spec.update_strategy.type_ == "InPlaceOnly";
        let lifecycle: Option<&Lifecycle> = clone_set.spec.lifecycle.as_ref();
        one_update::how(pod, lifecycle, way.as_ref().err().map(String::as_str), only)
    }

    /// Marks a Pod, so that the number of Pods takes it away within the limits.
    async fn mark(&self, clone_set: &CloneSet, view: &PodView, target: &str) -> kube::Result<bool> {
        if view.labels.get(labels::SPECIFIED_DELETE).is_some() {
            return Ok(false);
        }
        let patch = json!({"metadata": {"uid": view.uid(), "labels": {labels::SPECIFIED_DELETE: "true"}}});
        if self.try_patch(view, Part::Whole, &patch).await?.is_some() {
            let message =
                format!("successfully patch pod {} specified-delete for update(revision {target})", view.name());
            self.tell(clone_set, "SuccessfulUpdatePodReCreate", &message);
        }
        Ok(true)
    }

    /// Takes the Pod out of service, then changes it, or says in an annotation what it will be changed to.
    async fn update_now(
        &self,
        clone_set: &CloneSet,
        view: &PodView,
        target: &str,
        spec: &UpdateSpec,
    ) -> kube::Result<bool> {
        let result = self.try_update_now(view, target, spec).await;
        match &result {
            Ok(true) => {
                let message = format!("successfully update pod {} in-place(revision {target})", view.name());
                self.tell(clone_set, "SuccessfulUpdatePodInPlace", &message);
            }
            Ok(false) => {}
            Err(error) => {
                let message = format!("failed to update pod {} in-place(revision {target}): {error}", view.name());
                self.warn(clone_set, "FailedUpdatePodInPlace", &message);
            }
        }
        result.map(|_| true)
    }

    async fn try_update_now(&self, view: &PodView, target: &str, spec: &UpdateSpec) -> kube::Result<bool> {
        let now = clock::now();
        // A change of resources alone may leave the Pod in service: the whole Pod says whether kubelet restarts anything.
        let read = if spec.container_resources.is_empty() { None } else { self.read_whole(view).await? };
        let conditions = match &read {
            Some(whole) if !resize::needs_not_ready(whole, spec) => Vec::new(),
            _ => readiness::in_place_begins(&refresh::compact(view), now.wall),
        };
        let whole = if conditions.is_empty() {
            match read {
                Some(whole) => Some(whole),
                None => self.read_whole(view).await?,
            }
        } else {
            let patch = json!({"metadata": {"uid": view.uid()}, "status": {"conditions": conditions}});
            self.try_patch(view, Part::Status, &patch).await?.map(|whole| decoded(&whole)).transpose()?
        };
        let Some(whole): Option<Value> = whole else { return Ok(false) };
        let earlier = Annotations::of(&whole).unwrap_or_default().state;
        let state = inplace::begin(&whole, spec, earlier.as_ref(), now.wall);
        let mut patch = if spec.grace_seconds > 0 {
            let grace = serde_json::to_string(spec).map_err(kube::Error::SerdeError)?;
            let state = serde_json::to_string(&state).map_err(kube::Error::SerdeError)?;
            json!({"metadata": {"uid": view.uid(), "labels": {},
                "annotations": {labels::IN_PLACE_GRACE: grace, labels::IN_PLACE_STATE: state, labels::IN_PLACE_STATE_LEGACY: null}}})
        } else {
            match self.batch(view, &whole, spec, state, now).await? {
                Some(patch) => patch,
                None => return Ok(false),
            }
        };
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        for (key, value) in [
            (labels::CONTROLLER_REVISION_HASH, make::revision_label(target, short)),
            (labels::POD_TEMPLATE_HASH, revision::short(target)),
            (labels::LIFECYCLE_STATE, State::Updating.as_str()),
        ] {
            patch["metadata"]["labels"][key] = value.into();
        }
        patch["metadata"]["annotations"][labels::LIFECYCLE_TIMESTAMP] = rfc3339(now.wall).into();
        Ok(self.try_patch(view, Part::Whole, &patch).await?.is_some())
    }

    /// The patch of the next batch. Resources have a subresource of their own, which is written before: if we end in
    /// between, the Pod is found on its old revision, and writing them once more changes nothing. None: the Pod has
    /// changed, or is gone.
    async fn batch(
        &self,
        view: &PodView,
        whole: &Value,
        spec: &UpdateSpec,
        state: inplace::State,
        now: Now,
    ) -> kube::Result<Option<Value>> {
        let batch = inplace::batch(whole, spec, state, now.wall);
        if let Some(mut patch) = resize::patch(&batch.resources) {
            patch["metadata"] = json!({"uid": view.uid()});
            if self.try_patch(view, Part::Resize, &patch).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(batch_patch(view.uid(), batch)))
    }

    /// Drops names from `podsToDelete` whose Pods are gone. Only if the list is still the one we looked at.
    pub(super) async fn forget_names(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<()> {
        let listed = &clone_set.spec.scale_strategy.pods_to_delete;
        let left: Vec<&String> = listed.iter().filter(|name| seen.view(name).is_some()).collect();
        if left.len() == listed.len() {
            return Ok(());
        }
        let path = "/spec/scaleStrategy/podsToDelete";
        let change = match left.is_empty() {
            true => json!({"op": "remove", "path": path}),
            false => json!({"op": "replace", "path": path, "value": left}),
        };
        let patch = json!([{"op": "test", "path": path, "value": listed}, change]);
        let patch: json_patch::Patch = from_json(&patch)?;
        let key = ObjectKey::of(clone_set);
        let api: Api<CloneSet> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match api.patch(&key.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(newer) => {
                self.clone_sets.upsert(newer);
                Ok(())
            }
            // Somebody has changed the list: their change comes by the watch.
            Err(error) if matches!(code(&error), Some(404 | 409 | 422)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) enum Refreshed {
    Nothing,
    Written,
    Later(Duration),
}

fn decoded<T: DeserializeOwned>(text: &str) -> kube::Result<T> {
    serde_json::from_str(text).map_err(kube::Error::SerdeError)
}

/// Pods that their budgets keep in service.
#[derive(Default)]
struct Refusals(Mutex<Option<(String, String)>>);

impl Refusals {
    fn note(&self, pod: &str, why: String) {
        lock(&self.0).get_or_insert_with(|| (pod.to_owned(), why));
    }
    fn any(&self) -> bool {
        lock(&self.0).is_some()
    }
    /// The first one, and why.
    fn into_first(self) -> Option<(String, String)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The patch that writes one batch of an update: images, labels, annotations, and how far it is.
fn batch_patch(uid: &str, batch: inplace::Batch) -> Value {
    let mut metadata = batch.metadata;
    metadata["uid"] = uid.into();
    let annotations = &mut metadata["annotations"];
    // A state is made of strings, numbers and times: it always serializes.
    annotations[labels::IN_PLACE_STATE] = serde_json::to_string(&batch.state).unwrap_or_default().into();
    for key in [labels::IN_PLACE_STATE_LEGACY, labels::IN_PLACE_GRACE, labels::IN_PLACE_GRACE_LEGACY] {
        annotations[key] = Value::Null;
    }
    let mut patch = json!({"metadata": metadata});
    if !batch.images.is_empty() {
        let containers = batch.images.iter().map(|(name, image)| json!({"name": name, "image": image}));
        patch["spec"] = json!({"containers": containers.collect::<Vec<_>>()});
    }
    patch
}
