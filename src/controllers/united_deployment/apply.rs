//! Carries out the plan: the only place that writes workloads.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
};

use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Value, json};

use super::{Controller, UnitedJob, observe::parsed};
use crate::{
    api::labels,
    domain::kinds::united_deployment::{
        child::ChildSeen,
        plan::{SubsetStep, UnitedPlan},
        spec::ChildKind,
        status::PassFailures,
    },
    k8s::{
        path,
        pod::{PodObject, PodView},
    },
    runtime::{
        apply::{code, is_refusal, namespace_is_ending, post, said},
        events::reference,
        live, lock,
        pass::{AFTER_WATCHED_CONFLICT, Pass},
        slow_start::{each, slow_start},
        stored::{self, only_version},
    },
};

/// Steps that go together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Create,
    /// A second workload of a subset.
    DeleteSecond,
    Delete,
    Change,
}

impl Sort {
    /// Its place in [`super::UnitedMemory::windows`].
    fn window(self) -> usize {
        match self {
            Self::Create => 0,
            Self::DeleteSecond | Self::Delete => 1,
            Self::Change => 2,
        }
    }
}

fn sort_of(step: &SubsetStep) -> Sort {
    match step {
        SubsetStep::Create { .. } => Sort::Create,
        SubsetStep::Delete { is_second: true, .. } => Sort::DeleteSecond,
        SubsetStep::Delete { .. } => Sort::Delete,
        SubsetStep::Change { .. } => Sort::Change,
    }
}

/// What a step is about: its subset, or the workload that goes.
fn subject(step: &SubsetStep) -> &str {
    match step {
        SubsetStep::Create { subset, .. } | SubsetStep::Change { subset, .. } => subset,
        SubsetStep::Delete { name, .. } => name,
    }
}

/// Whether a failure says nothing about the other workloads. A quota that is used up refuses every creation with a 403; a
/// change or a deletion is refused for what it is.
fn is_of_one(sort: Sort, error: &kube::Error) -> bool {
    match sort {
        Sort::Create => matches!(code(error), Some(409 | 422)),
        Sort::DeleteSecond | Sort::Delete | Sort::Change => is_refusal(error) && code(error) != Some(429),
    }
}

/// What a step does and what came of it, as metrics name it.
fn counted(step: &SubsetStep, written: &kube::Result<Done>) -> (&'static str, &'static str) {
    let operation = match step {
        SubsetStep::Create { .. } => "create",
        SubsetStep::Change { .. } => "update",
        SubsetStep::Delete { .. } => "delete",
    };
    let result = match written {
        Ok(done) if done.is_outdated => "outdated",
        Ok(_) => "done",
        Err(_) => "failed",
    };
    (operation, result)
}

/// What came of a step.
struct Done {
    /// `Create`, `Update` or `Delete`.
    verb: &'static str,
    kind: ChildKind,
    /// Whether the object had changed: the watch brings the change.
    is_outdated: bool,
}

impl Controller {
    /// Does each step. A refusal of one workload keeps no other one from being written; after any other failure, see
    /// [`is_of_one`], no more of the same sort are tried in this pass.
    pub(super) async fn carry_out(&self, job: &UnitedJob, plan: &UnitedPlan, pass: &mut Pass) -> PassFailures {
        let mut failures = PassFailures::default();
        let mut done = Vec::new();
        let is_planned = |failed: &String| plan.steps.iter().any(|step| subject(step) == failed);
        self.memories.with(&job.key, |memory| memory.failed.retain(is_planned));
        for sort in [Sort::Create, Sort::DeleteSecond, Sort::Delete, Sort::Change] {
            let steps: Vec<SubsetStep> = plan.steps.iter().filter(|step| sort_of(step) == sort).cloned().collect();
            if steps.is_empty() {
                continue;
            }
            let (written, failure) = self.carry_out_all(job, sort, steps).await;
            done.extend(written);
            let reason = match sort {
                Sort::DeleteSecond => "FailedDeleteDuplicatedSubsets",
                Sort::Create | Sort::Delete | Sort::Change => "FailedUpdateSubset",
            };
            let words = failure.and_then(|error| self.note(job, pass, error, reason));
            let of_sort = if sort == Sort::Change { &mut failures.update } else { &mut failures.provision };
            *of_sort = of_sort.take().or(words);
        }
        if done.iter().any(|done| done.is_outdated) {
            pass.look_after(Some(AFTER_WATCHED_CONFLICT));
        }
        for verb in ["Create", "Update", "Delete"] {
            self.report(job, verb, &done);
        }
        self.memories.with(&job.key, |memory| memory.failures = failures.clone());
        failures
    }

    /// A few at a time at first: what is wrong with one workload is mostly wrong with all. Those that have failed come last, as
    /// failures end the attempts: in the order of the spec the others might never have their turn.
    async fn carry_out_all(
        &self,
        job: &UnitedJob,
        sort: Sort,
        mut steps: Vec<SubsetStep>,
    ) -> (Vec<Done>, Option<kube::Error>) {
        let at = sort.window();
        let (mut window, failed) =
            self.memories.with(&job.key, |memory| (memory.windows[at], memory.failed.clone())).unwrap_or_default();
        steps.sort_by_cached_key(|step| failed.iter().position(|failed| failed == subject(step)));
        let done = Mutex::new(Vec::new());
        let one = |step: SubsetStep| {
            let done = &done;
            async move {
                let written = self.carry_out_one(job, &step).await;
                self.metrics.count(counted(&step, &written));
                self.memories.with(&job.key, |memory| {
                    memory.failed.retain(|failed| failed != subject(&step));
                    memory.failed.extend(written.is_err().then(|| subject(&step).to_owned()));
                });
                lock(done).push(written?);
                Ok::<(), kube::Error>(())
            }
        };
        let (_, failure) = slow_start(steps, &mut window, |error| is_of_one(sort, error), one).await;
        self.memories.with(&job.key, |memory| memory.windows[at] = window);
        let done = std::mem::take(&mut *lock(&done));
        (done, failure)
    }

    /// Makes the object the controller of workloads that nobody controls. Returns those that could not be adopted, and why. A
    /// refusal of one keeps no other one from being adopted.
    pub(super) async fn adopt(
        &self,
        job: &UnitedJob,
        orphans: Vec<ChildSeen>,
        pass: &mut Pass,
    ) -> (Vec<ChildSeen>, Option<String>) {
        let (mut left, mut why) = (Vec::new(), None);
        for orphan in orphans {
            match self.adopt_one(job, &orphan).await {
                Ok(true) => {
                    pass.note(Ok(true));
                    continue;
                }
                // What has changed meanwhile is not watched.
                Ok(false) => pass.look_after(Some(AFTER_WATCHED_CONFLICT)),
                Err(error) => {
                    let words = self.note(job, pass, error, "FailedFindSubsets");
                    why = why.or(words);
                }
            }
            left.push(orphan);
        }
        (left, why)
    }

    /// False: it cannot be adopted now.
    async fn adopt_one(&self, job: &UnitedJob, orphan: &ChildSeen) -> kube::Result<bool> {
        let (client, kind) = (&self.context.client, job.spec.template.kind);
        if !live::may_adopt(client, &job.owner).await? {
            return Ok(false);
        }
        let mut owners = vec![job.owner.controller()];
        let others = orphan.object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.extend(others.into_iter().flatten().cloned());
        // Only the version in which nobody controls it.
        let patch = json!({"metadata": {"uid": orphan.uid, "resourceVersion": orphan.version,
            "ownerReferences": owners}});
        let at = path::in_namespace(kind.group(), kind.version(), &job.key.namespace, kind.plural());
        let request = Request::new(at)
            .patch(&orphan.name, &PatchParams::default(), &Patch::Merge(patch))
            .map_err(kube::Error::BuildRequest)?;
        match client.request::<Value>(request).await {
            Ok(object) => {
                self.children.put(kind, object)?;
                let ChildSeen { name, subset, .. } = orphan;
                let message = format!("{} {name} is that of subset {subset} and had no controller", kind.kind());
                tracing::info!(united_deployment = %job.key, message, "adopted a workload");
                self.context.events.normal(&reference(job.object.as_ref()), "Adopted", &message);
                Ok(true)
            }
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the label of Pods that are kept although they find no place, and of the others, by which autoscalers tell them
    /// apart.
    pub(super) async fn mark(&self, job: &UnitedJob, update: &str, pass: &mut Pass) {
        let wrong = self.wrongly_marked(job, update);
        let (marked, failure) = each(wrong, |(pod, is_reserved): (Arc<PodView>, bool)| async move {
            let patch =
                json!({"metadata": {"uid": pod.uid(), "labels": {labels::RESERVED_POD: is_reserved.to_string()}}});
            let request = Request::new(path::pods(pod.namespace()))
                .patch(pod.name(), &PatchParams::default(), &Patch::Merge(patch))
                .map_err(kube::Error::BuildRequest)?;
            match self.context.client.request::<PodObject>(request).await {
                Ok(newer) => {
                    self.context.pods.upsert(newer.into());
                    Ok(())
                }
                Err(error) => {
                    // Otherwise one that is gone, which the watch has not said yet, would be tried again and again.
                    let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), pod.namespace());
                    let is_behind = stored::correct(&api, &self.context.pods, pod.as_ref(), &error).await?;
                    if is_behind { Ok(()) } else { Err(error) }
                }
            }
        })
        .await;
        pass.note(failure.map_or(Ok(!marked.is_empty()), Err));
    }

    pub(super) fn note(
        &self,
        job: &UnitedJob,
        pass: &mut Pass,
        error: kube::Error,
        reason: &'static str,
    ) -> Option<String> {
        if namespace_is_ending(&error) {
            return None;
        }
        self.warn_once(job, reason, &said(&error));
        pass.note(Err(error))
    }

    fn report(&self, job: &UnitedJob, verb: &'static str, done: &[Done]) {
        let of_verb: Vec<&Done> = done.iter().filter(|done| done.verb == verb && !done.is_outdated).collect();
        let Some(first) = of_verb.first() else { return };
        let mut message = String::new();
        // Writing to a String cannot fail.
        let _ = write!(message, "{verb} {} Subset ({})", of_verb.len(), first.kind.word());
        tracing::info!(united_deployment = %job.key, message, "wrote workloads of subsets");
        // Of mere changes there are too many.
        if verb != "Update" {
            self.context.events.normal(&reference(job.object.as_ref()), "SuccessfulUpdateSubset", &message);
        }
    }

    async fn carry_out_one(&self, job: &UnitedJob, step: &SubsetStep) -> kube::Result<Done> {
        let (client, namespace) = (&self.context.client, &*job.key.namespace);
        let kind = job.spec.template.kind;
        let done = |verb: &'static str, kind: ChildKind, is_outdated: bool| Done { verb, kind, is_outdated };
        let at = |kind: ChildKind| path::in_namespace(kind.group(), kind.version(), namespace, kind.plural());
        match step {
            SubsetStep::Create { body, .. } => {
                self.children.put(kind, parsed(&post(client, &at(kind), body).await?)?)?;
                Ok(done("Create", kind, false))
            }
            SubsetStep::Change { name, patch, uid, version, .. } => {
                let mut patch = patch.clone();
                // A change by somebody else in between is looked at first.
                json_patch::merge(&mut patch, &json!({"metadata": {"uid": uid, "resourceVersion": version}}));
                let request = Request::new(at(kind))
                    .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .map_err(kube::Error::BuildRequest)?;
                match client.request::<Value>(request).await {
                    Ok(object) => {
                        self.children.put(kind, object)?;
                        Ok(done("Update", kind, false))
                    }
                    Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(done("Update", kind, true)),
                    Err(error) => Err(error),
                }
            }
            SubsetStep::Delete { kind, name, uid, version, .. } => {
                let parameters = kube::api::DeleteParams {
                    propagation_policy: Some(kube::api::PropagationPolicy::Background),
                    ..only_version(uid, Some(version))
                };
                let request = Request::new(at(*kind)).delete(name, &parameters).map_err(kube::Error::BuildRequest)?;
                match client.request::<Value>(request).await {
                    Ok(_) => Ok(done("Delete", *kind, false)),
                    Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(done("Delete", *kind, true)),
                    Err(error) => Err(error),
                }
            }
        }
    }
}
