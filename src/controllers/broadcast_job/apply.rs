//! Carries a plan out. The only writer of Pods and of jobs' specs; decides nothing but what a refusal means.

use std::{convert::Infallible, sync::Mutex};

use kube::{
    Resource,
    api::{Patch, PatchParams},
    core::Status,
};
use serde_json::{Value, json};

use super::{BroadcastSeen, BroadcastWork, Controller};
use crate::{
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::broadcast_job::{
            make,
            plan::{Because, BroadcastAction},
        },
    },
    k8s::pod::PodView,
    runtime::{
        apply::{code, is_already_there, namespace_is_ending, said},
        clock, expiry, lock,
        pass::{AFTER_CONFLICT, AFTER_REFUSAL, Pass},
        pod_control::{Created, Part},
        queue::Requeue,
        slow_start::{each, slow_start},
    },
};

/// What is left to say of a plan that has been carried out.
#[derive(Default)]
pub(super) struct Done {
    /// The first thing that was refused, in words.
    pub(super) refused: Option<String>,
    /// The job itself was written, or is gone: what follows from that is for the next pass.
    pub(super) job_has_changed: bool,
}

/// What came of a step with one Pod.
enum StepResult {
    Done,
    /// The Pod has changed: the next pass decides anew.
    Nothing,
    /// A budget keeps it.
    Refused,
}

impl Controller {
    /// Carries out all of it. What is refused ends nothing.
    pub(super) async fn carry_out(
        &self,
        work: &BroadcastWork,
        seen: &BroadcastSeen,
        actions: Vec<BroadcastAction>,
        pass: &mut Pass,
    ) -> Done {
        let (mut nodes, mut of_pods, mut done) = (Vec::new(), Vec::new(), Done::default());
        let mut of_job = Vec::new();
        for action in actions {
            match action {
                BroadcastAction::Create { node } => nodes.push(node),
                BroadcastAction::Delete { .. } | BroadcastAction::Stop { .. } => of_pods.push(action),
                BroadcastAction::Pause { .. } | BroadcastAction::Remember { .. } | BroadcastAction::DeleteJob => {
                    of_job.push(action);
                }
            }
        }
        for action in of_job {
            match self.write_job(work, &action).await {
                Ok(Requeue::After(after)) => {
                    pass.look_after(Some(after));
                    done.job_has_changed = true;
                }
                Ok(Requeue::Await) => done.job_has_changed = true,
                Err(error) => done.refused = done.refused.or(pass.note(Err(error))),
            }
        }
        let refusals = &Refusals::default();
        let tried =
            each(
                of_pods,
                |action| async move { Ok::<_, Infallible>(self.with_pod(work, seen, &action, refusals).await) },
            );
        for tried in tried.await.0 {
            match tried {
                Ok(StepResult::Done) => pass.again = true,
                Ok(StepResult::Nothing) => pass.look_after(Some(AFTER_CONFLICT)),
                Ok(StepResult::Refused) => pass.look_after(Some(AFTER_REFUSAL)),
                Err(error) => done.refused = done.refused.or(pass.note(Err(error))),
            }
        }
        if let Some((pod, why)) = refusals.first() {
            done.refused.get_or_insert(format!("Pod {} is not deleted: {why}", pod.name));
        }
        // Of a job that was deleted or paused no Pod is made.
        if !done.job_has_changed {
            self.create_all(work, nodes, &mut done, pass).await;
        }
        done
    }

    /// Writes or deletes the job.
    async fn write_job(&self, work: &BroadcastWork, action: &BroadcastAction) -> kube::Result<Requeue> {
        let (api, key) = (self.api(&work.key), &work.key);
        let meta = work.held.meta();
        let (uid, version) = (work.owner.uid.as_str(), meta.resource_version.as_deref());
        let patch: Value = match action {
            BroadcastAction::Pause { failed } => make::pause(*failed, version, uid),
            BroadcastAction::Remember { failed } => make::remember(*failed, version, uid),
            _ => {
                tracing::info!(job = %key, "deleting it, its time to live is over");
                return expiry::delete(&api, &work.held).await;
            }
        };
        match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(newer) => {
                self.jobs.upsert(newer);
                if let BroadcastAction::Pause { failed } = action {
                    let message = format!("{failed} pods failed: paused; set spec.paused to false to go on");
                    self.pods.warning(&work.owner, "Paused", &message);
                }
                Ok(Requeue::After(std::time::Duration::ZERO))
            }
            Err(error) if code(&error) == Some(404) => Ok(Requeue::Await),
            Err(error) if code(&error) == Some(409) => {
                if let Some(newer) = api.get_opt(&key.name).await? {
                    self.jobs.upsert(newer);
                }
                Ok(Requeue::After(AFTER_CONFLICT))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes or stops a Pod, if its budgets let it and nobody else writes it.
    async fn with_pod(
        &self,
        work: &BroadcastWork,
        seen: &BroadcastSeen,
        action: &BroadcastAction,
        refusals: &Refusals,
    ) -> kube::Result<StepResult> {
        let (pod, because) = match action {
            BroadcastAction::Delete { pod, because } => (pod, Some(*because)),
            BroadcastAction::Stop { pod } => (pod, None),
            _ => return Ok(StepResult::Nothing),
        };
        let Some(view) = seen.views.get(pod) else { return Ok(StepResult::Nothing) };
        let Some(_held) = self.pods.hold(view) else { return Ok(StepResult::Nothing) };
        let Some(because) = because else { return self.stop(work, view).await };
        match self.context.budgets.may_take(view, (Operation::Delete, false), refusals).await {
            Verdict::Yes => {}
            Verdict::No | Verdict::Undecided => return Ok(StepResult::Refused),
        }
        // One that has ended since stays: it is the record of what was done on its node.
        let result = self.pods.delete_seen(view).await;
        if !matches!(result, Ok(false)) {
            self.metrics.count("delete", result.is_ok());
        }
        match &result {
            Ok(false) => {}
            Ok(true) => {
                let why = match because {
                    Because::Unfit => format!("it is not to run on node {}", view.node_meant()),
                    Because::Surplus => format!("node {} has another Pod of the job", view.node_meant()),
                    Because::JobFailed => "the job has failed".to_owned(),
                };
                self.pods.normal(&work.owner, "SuccessfulDelete", &format!("Deleted pod: {}, {why}", view.name()));
            }
            Err(error) => {
                let message = format!("Error deleting: {}: {}", view.name(), said(error));
                self.pods.warning(&work.owner, "FailedDelete", &message);
            }
        }
        result.map(|is_deleted| if is_deleted { StepResult::Done } else { StepResult::Nothing })
    }

    async fn stop(&self, work: &BroadcastWork, view: &PodView) -> kube::Result<StepResult> {
        let mut patch = make::stop();
        patch["metadata"]["resourceVersion"] = json!(view.resource_version());
        let result = self.pods.try_patch(view, Part::Whole, &patch).await;
        self.metrics.count("stop", result.is_ok());
        match &result {
            Ok(Some(_)) => {
                let (restarts, limit) = (view.restarts(), work.spec.restart_limit.unwrap_or_default());
                let message = format!(
                    "Stopped pod: {} on node {}, {restarts} restarts are more than restartLimit {limit}",
                    view.name(),
                    view.node_meant()
                );
                self.pods.warning(&work.owner, "RestartLimitExceeded", &message);
                Ok(StepResult::Done)
            }
            Ok(None) => Ok(StepResult::Nothing),
            Err(error) => {
                let message = format!("Error stopping: {}: {}", view.name(), said(error));
                self.pods.warning(&work.owner, "FailedStop", &message);
                result.map(|_| StepResult::Nothing)
            }
        }
    }

    /// Makes Pods, one at first, then more at a time.
    async fn create_all(&self, work: &BroadcastWork, nodes: Vec<String>, done: &mut Done, pass: &mut Pass) {
        if nodes.is_empty() {
            return;
        }
        let mut window = self.memories.with(&work.key, |memory| memory.window).unwrap_or_default();
        // A name that is taken, or a node whose Pod alone is invalid.
        let concerns_one = |error: &kube::Error| matches!(code(error), Some(409 | 422));
        let failed = &Mutex::new(String::new());
        let make = |node: String| async move {
            let made = self.create(work, &node).await;
            self.metrics.count("create", made.is_ok());
            made.inspect_err(|_| *lock(failed) = node)
        };
        let (made, failure) = slow_start(nodes, &mut window, concerns_one, make).await;
        self.memories.with(&work.key, |memory| memory.window = window);
        pass.again |= made > 0;
        let Some(error) = failure.filter(|error| !namespace_is_ending(error)) else { return };
        let node = lock(failed).clone();
        done.refused.get_or_insert(format!("the Pod for node {node} could not be created: {}", said(&error)));
        pass.note(Err(error));
    }

    /// Makes the Pod for a node.
    async fn create(&self, work: &BroadcastWork, node: &str) -> kube::Result<()> {
        let now = clock::now().mono;
        let made = self.memories.with(&work.key, |memory| {
            memory.tries.note(node, now);
            memory.made.get(node).copied().unwrap_or_default()
        });
        let name = make::pod_name(&work.spec, node, made.unwrap_or_default());
        let binds = self.context.settings.binds_broadcast_pods;
        let pod = make::pod(&work.owner, &work.spec, name, node, binds);
        let there = match self.pods.create(&work.owner, &pod).await {
            Ok(Created::New(pod)) => {
                self.pods.normal(&work.owner, "SuccessfulCreate", &format!("Created pod: {}", pod.name()));
                pod
            }
            // Made before, and not seen yet.
            Ok(Created::AlreadyThere(pod)) => pod,
            Err(error) => {
                if is_already_there(&error) {
                    // Its namesake ends, or is somebody else's.
                    self.next_name(work, node);
                }
                self.pods.warning(&work.owner, "FailedCreate", &format!("Error creating: {}", said(&error)));
                return Err(error);
            }
        };
        match there.node_meant() {
            is if is == node => self.next_name(work, node),
            // Its node is not known: its name stays taken, and no second one is made.
            "" => {}
            // Somebody changes where Pods go, perhaps that of each Pod: a further name would make Pods without end.
            other => {
                let message = format!("Pod {} is there already, and is for node {other}", there.name());
                self.pods.warning(&work.owner, "FailedCreate", &format!("Error creating: {message}"));
                return Err(kube::Error::Api(Box::new(Status::failure(&message, "AlreadyExists").with_code(409))));
            }
        }
        Ok(())
    }

    fn next_name(&self, work: &BroadcastWork, node: &str) {
        self.memories.with(&work.key, |memory| *memory.made.entry(node.to_owned()).or_default() += 1);
    }
}
