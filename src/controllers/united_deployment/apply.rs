//! Carries out the plan: the only place that writes workloads.

use std::{fmt::Write as _, sync::Arc};

use kube::{
    api::{Patch, PatchParams},
    core::Request,
};
use serde_json::{Value, json};

use super::{Controller, UnitedJob, observe::parsed};
use crate::{
    api::labels,
    domain::kinds::united_deployment::{
        plan::{SubsetStep, UnitedPlan},
        spec::ChildKind,
        status::PassFailures,
    },
    k8s::{
        path,
        pod::{PodObject, PodView},
    },
    runtime::{
        apply::{code, namespace_is_ending, post},
        events::reference,
        pass::{AFTER_WATCHED_CONFLICT, Pass},
        slow_start::each,
        stored::only_version,
    },
};

/// What came of a step.
struct Done {
    /// `Create`, `Update` or `Delete`.
    verb: &'static str,
    kind: ChildKind,
    /// Whether the object had changed: the watch brings the change.
    is_outdated: bool,
}

impl Controller {
    /// Does each step; one that fails keeps none of the others.
    pub(super) async fn carry_out(&self, job: &UnitedJob, plan: &UnitedPlan, pass: &mut Pass) -> PassFailures {
        let (changes, others): (Vec<SubsetStep>, Vec<SubsetStep>) =
            plan.steps.iter().cloned().partition(|step| matches!(step, SubsetStep::Change { .. }));
        let mut failures = PassFailures::default();
        let (mut done, failure) =
            each(others, |step: SubsetStep| async move { self.carry_out_one(job, &step).await }).await;
        failures.provision = failure.and_then(|error| self.note(job, pass, error, "FailedRevisionProvision"));
        let (changed, failure) =
            each(changes, |step: SubsetStep| async move { self.carry_out_one(job, &step).await }).await;
        failures.update = failure.and_then(|error| self.note(job, pass, error, "FailedUpdateSubset"));
        done.extend(changed);
        if done.iter().any(|done| done.is_outdated) {
            pass.look_after(Some(AFTER_WATCHED_CONFLICT));
        }
        for verb in ["Create", "Update", "Delete"] {
            self.report(job, verb, &done);
        }
        failures
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
                Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await;
        pass.note(failure.map_or(Ok(!marked.is_empty()), Err));
    }

    fn note(&self, job: &UnitedJob, pass: &mut Pass, error: kube::Error, reason: &str) -> Option<String> {
        if namespace_is_ending(&error) {
            return None;
        }
        self.warn_once(job, reason, &error.to_string());
        pass.note(Err(error))
    }

    fn report(&self, job: &UnitedJob, verb: &'static str, done: &[Done]) {
        let of_verb: Vec<&Done> = done.iter().filter(|done| done.verb == verb && !done.is_outdated).collect();
        let Some(first) = of_verb.first() else { return };
        let mut message = String::new();
        // Writing to a String cannot fail.
        let _ = write!(message, "{verb} {} Subset ({})", of_verb.len(), first.kind.word());
        tracing::info!(united_deployment = %job.key, message, "wrote workloads of subsets");
        self.context.events.normal(&reference(job.object.as_ref()), "SuccessfulUpdateSubset", &message);
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
            SubsetStep::Delete { kind, name, uid, version } => {
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
