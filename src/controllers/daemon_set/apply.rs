//! Carries a plan out. The only writer of Pods; decides nothing but what a refusal means.

use std::{convert::Infallible, sync::Mutex};

use serde_json::json;

use super::{
    Controller, Job, Pass,
    observe::{Resolved, Seen},
};
use crate::{
    api::labels,
    budgets::refusals::Refusals,
    controllers::pod_set::{AboutStep, PodStep, Together, Tried, Waves, Write},
    domain::kinds::daemon_set::{
        away::Departure,
        make,
        plan::{Action, Candidate, Outline, Plan, Turn},
    },
    k8s::pod::PodView,
    runtime::{
        apply::{is_already_there, is_refusal, said},
        clock,
        in_place::Refreshing,
        lock,
        pass::AFTER_REFUSAL,
        pod_control::Created,
        slow_start::{WAVE, each},
        watches::ObjectKey,
    },
};

/// What the status reports of a plan that has been carried out, and when to look again.
pub(super) struct Left {
    pub(super) plan: Outline,
    pub(super) look: Option<std::time::Duration>,
}

impl Waves for Plan {
    type Candidate = Candidate;

    fn wave(&mut self) -> Vec<Candidate> {
        self.next_wave(WAVE)
    }

    fn give_back(&mut self, candidate: &Candidate) {
        self.room.leave(&candidate.zone, candidate.charge);
        self.burst += 1;
    }

    fn creates(candidate: &Candidate) -> Option<String> {
        match &candidate.action {
            Action::Create { node, .. } => Some(for_node(node)),
            _ => None,
        }
    }
}

fn for_node(node: &str) -> String {
    format!("the Pod for node {node}")
}

impl Controller {
    /// Brings every Pod's own state up to date. True: something was written.
    pub(super) async fn refresh_all(&self, job: &Job, resolved: &Resolved, seen: &Seen, pass: &mut Pass) -> bool {
        let by =
            Refreshing { owner: &job.owner, lifecycle: job.spec.hooks(), update_revision: &resolved.revisions.update };
        let together = Together { generation: job.set.metadata.generation, by, for_all: true };
        self.common.refresh_all(&job.key, seen.views.values(), (together, |_: &PodView| by), pass).await
    }

    /// The same by the revision that the status names, while nothing else can be done.
    pub(super) async fn refresh_as_recorded(&self, job: &Job, pass: &mut Pass) {
        let resolved = Resolved::recorded(job);
        let seen = self.see(job, &resolved);
        let written = self.refresh_all(job, &resolved, &seen, pass).await;
        pass.common.again |= written;
    }

    /// Carries out what can be: first what is done in any case, then what finds room. What is refused ends nothing.
    pub(super) async fn carry_out(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        mut plan: Plan,
        pass: &mut Pass,
    ) -> Left {
        let left = Left { plan: plan.outline(), look: plan.look };
        let outages = std::mem::take(&mut plan.outages);
        self.common.memories.with(&job.key, |memory| memory.outages.extend(outages));
        let (creations, others): (Vec<Action>, Vec<Action>) =
            std::mem::take(&mut plan.actions).into_iter().partition(|action| matches!(action, Action::Create { .. }));
        let wants = |action: &Action| action.takes_out(&job.spec.lifecycle).is_some();
        if others.iter().any(wants) || plan.candidates.iter().any(|candidate| wants(&candidate.action)) {
            pass.refusals.wants();
        }
        let mut unsure = self.carry_out_all(job, resolved, seen, others, pass).await;
        unsure |= self.create_all(job, resolved, seen, creations, pass).await;
        // What may have been done is looked at before anything else goes out of service.
        if unsure {
            return left;
        }
        let mut wave = plan.wave();
        while !wave.is_empty() {
            let refusals = &pass.refusals;
            let tried = each(wave, |candidate| async move {
                let tried = self.try_one(job, resolved, seen, &candidate.action, refusals).await;
                Ok::<_, Infallible>((candidate, tried))
            });
            let tried = tried.await.0;
            wave = pass.next_wave(&mut plan, tried);
        }
        // What was done says by itself that there is more to do.
        if plan.is_cut {
            pass.common.look_after(Some(AFTER_REFUSAL));
        }
        left
    }

    /// Tries all of them, whatever fails. True: a Pod may have gone out of service, and no store shows that.
    async fn carry_out_all(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        actions: Vec<Action>,
        pass: &mut Pass,
    ) -> bool {
        let refusals = &pass.refusals;
        let tried = each(actions, |action| async move {
            let tried = self.try_one(job, resolved, seen, &action, refusals).await;
            if let (Some(turn), Ok(Tried::Refused | Tried::Undecided) | Err(_)) = (action.turn(), &tried) {
                self.common.memories.with(&job.key, |memory| memory.turns.refused(turn));
            }
            let takes_out = action.takes_out(&job.spec.lifecycle).is_some();
            Ok::<_, Infallible>((AboutStep { creates: None, takes_out }, tried))
        });
        let tried = tried.await.0;
        pass.note_all(tried)
    }

    /// Makes Pods, one at first, then more at a time. True: one may have been made that no store shows.
    async fn create_all(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        creations: Vec<Action>,
        pass: &mut Pass,
    ) -> bool {
        let failed = &Mutex::new(String::new());
        let make = |action: Action| async move {
            let Action::Create { node, not_ready_since } = action else { return Ok(()) };
            let made = self.create(job, resolved, seen, (&node, not_ready_since)).await;
            self.common.memories.with(&job.key, |memory| match &made {
                Ok(_) => memory.turns.done(&Turn::Node(node.clone())),
                // Where only some are made, one that may have been made is tried again before another one.
                Err(error) if is_refusal(error) || !job.spec.partitioned_scaling => {
                    memory.turns.refused(Turn::Node(node.clone()));
                }
                Err(_) => {}
            });
            made.map(drop).inspect_err(|_| *lock(failed) = node)
        };
        let Some(error) = self.common.create_all(&job.key, creations, pass, make).await else { return false };
        let unsure = !is_refusal(&error);
        let node = lock(failed).clone();
        pass.failed_to_create(&for_node(&node), error);
        unsure
    }

    /// Makes the Pod for a node. False: its name is another node's, and the next try has another one.
    pub(super) async fn create(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        (node, not_ready_since): (&str, Option<i64>),
    ) -> kube::Result<bool> {
        let hash = resolved.hash();
        let name = self.name_of_next(job, seen, node, hash);
        let pod = make::pod(&job.owner, &job.spec, name, (node, hash), not_ready_since, clock::now());
        let there = match self.common.pods.create(&job.owner, &pod).await {
            Ok(Created::New(pod)) => {
                self.common.metrics.count(Write::Create, true);
                self.common.pods.normal(&job.owner, "SuccessfulCreate", &format!("Created pod: {}", pod.name()));
                pod
            }
            // Made before, and not seen yet.
            Ok(Created::AlreadyThere(pod)) => pod,
            Err(error) => {
                self.common.metrics.count(Write::Create, false);
                if is_already_there(&error) {
                    // Its namesake ends, or is somebody else's.
                    self.next_name(job, node);
                }
                self.common.pods.warning(&job.owner, "FailedCreate", &format!("Error creating: {}", said(&error)));
                return Err(error);
            }
        };
        self.next_name(job, node);
        let is_of_node = there.node_meant() == node;
        // What is noted of its predecessor is over, unless this one has gone meanwhile, and that is noted.
        if is_of_node && self.context.pods.get(&ObjectKey::of(&there)).is_some() {
            self.common.memories.with(&job.key, |memory| {
                memory.departures.remove(node);
            });
        }
        Ok(is_of_node)
    }

    /// The name of the next Pod of a node: not that of one that still ends, which an earlier manager may have made.
    fn name_of_next(&self, job: &Job, seen: &Seen, node: &str, hash: &str) -> String {
        let ends = |name: &str| {
            let there = self.context.pods.get(&ObjectKey::new(&job.key.namespace, name));
            seen.views.get(name).into_iter().chain(&there).any(|pod| pod.is_deleting())
        };
        // One that another task has made since has this name, and is not made twice.
        let mut made = seen.made.get(node).copied().unwrap_or_default();
        loop {
            let name = make::pod_name(&job.spec, node, hash, made);
            if !ends(&name) {
                return name;
            }
            made += 1;
            // The watch may have counted the same Pod meanwhile.
            self.common.memories.with(&job.key, |memory| memory.has_made(node, made));
        }
    }

    fn next_name(&self, job: &Job, node: &str) {
        self.common.memories.with(&job.key, |memory| memory.has_made(node, memory.made_for(node) + 1));
    }

    async fn try_one(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        action: &Action,
        refusals: &Refusals,
    ) -> kube::Result<Tried> {
        let asked = (action.takes_out(&job.spec.lifecycle), refusals);
        let (pod, step) = match action {
            Action::Create { node, not_ready_since } => {
                return self.create(job, resolved, seen, (node, *not_ready_since)).await.map(Tried::of);
            }
            Action::Delete { pod, failed_on } => {
                let act = async |view: &PodView| self.delete(job, view, failed_on.as_deref()).await;
                return self.common.with_pod(seen.views.get(pod), asked, act).await;
            }
            Action::Relabel { pod } => {
                let label = (labels::CONTROLLER_REVISION_HASH.to_owned(), json!(resolved.hash()));
                (pod, PodStep::SetLabels([label].into_iter().collect()))
            }
            Action::Change { pod, change } => {
                let revision = (resolved.revisions.update.as_str(), resolved.hash());
                (pod, PodStep::Change { owner: &job.owner, revision, change })
            }
        };
        self.common.change(seen.views.get(pod), step, job.spec.hooks(), asked).await
    }

    /// Emits one event for each spec that says why Pods are replaced that were to be updated in place.
    pub(super) fn report_not_in_place(&self, job: &Job, plan: &Plan) {
        let Some(why) = &plan.not_in_place else { return };
        let is_reported = self
            .common
            .memories
            .with(&job.key, |memory| memory.not_in_place.replace(job.generation()) == Some(job.generation()));
        if is_reported == Some(false) {
            let message = format!("Pods are replaced, as they cannot be updated in place: {why}");
            self.common.pods.normal(&job.owner, "InPlaceUpdateImpossible", &message);
        }
    }

    /// Deletes a Pod; `failed_on` is the node on which it has failed. False: it stays, its hook has taken hold of it again.
    async fn delete(&self, job: &Job, view: &PodView, failed_on: Option<&str>) -> kube::Result<bool> {
        if let Some(node) = failed_on {
            let message = format!(
                "Found failed daemon pod {}/{} on node {node}, will try to kill it",
                view.namespace(),
                view.name()
            );
            self.common.pods.warning(&job.owner, "FailedDaemonPod", &message);
        }
        let deleted = self.common.delete(view, &job.spec.lifecycle).await;
        match &deleted {
            Ok(false) => {}
            Ok(true) => {
                let now = clock::now().mono;
                let node = view.node_meant();
                // The answer may say that it is gone, and the watch not yet.
                self.leave_name(&job.key, &job.spec, view);
                self.common.memories.with(&job.key, |memory| {
                    memory.departures.insert(node.to_owned(), Departure::Otherwise);
                    if let Some(node) = failed_on {
                        memory.failures.1.note(node, now);
                    }
                });
                self.common.pods.normal(&job.owner, "SuccessfulDelete", &format!("Deleted pod: {}", view.name()));
            }
            Err(error) => {
                let message = format!("Error deleting: {}: {}", view.name(), said(error));
                self.common.pods.warning(&job.owner, "FailedDelete", &message);
            }
        }
        deleted
    }
}
