//! Answers the questions about one budget that wait, with one write of its status.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;

use super::{ATTEMPTS, Budgets, Question, RECOUNT_PAUSE, RECOUNT_SHARE, Undecided, recorded};
use crate::{
    api::policy::pod_unavailable_budget::{PodUnavailableBudget, PodUnavailableBudgetStatus},
    domain::budgets::unavailable::{self as rule, Answer, Counting, Total},
    k8s::pod::{PodObject, PodView},
    runtime::{
        apply::{code, patch_status, said},
        clock, lock,
        watches::ObjectKey,
    },
};

impl Budgets {
    /// Answers all waiting questions about a budget, with one write.
    pub(super) async fn settle(&self, key: &ObjectKey, waiting: &[Question]) -> Vec<Result<Answer, Undecided>> {
        let all = |answer: Result<Answer, Undecided>| vec![answer; waiting.len()];
        let Some(mut budget) = self.store.get(key) else { return all(Ok(Answer::Free)) };
        let api: Api<PodUnavailableBudget> = Api::namespaced(self.client.clone(), &key.namespace);
        let (mut is_fresh, mut recounts) = (false, false);
        for _ in 0..ATTEMPTS {
            if !is_fresh && (recounts || budget.current_status().is_none()) {
                // The Pods have to be read after the status whose lists they are counted with.
                match self.read(&api, key).await {
                    Ok(Some(fresh)) => (budget, is_fresh) = (fresh, true),
                    Ok(None) => return all(Ok(Answer::Free)),
                    Err(error) => return all(Err(error)),
                }
            }
            let other_total = budget.current_status().and_then(|status| self.other_total(&budget, status));
            if !recounts && other_total.is_some() && self.may_recount(key) {
                // The workload was scaled, and the manager has not counted since.
                (recounts, is_fresh) = (true, false);
                continue;
            }
            let mut status = match budget.current_status() {
                Some(status) if !recounts => match other_total {
                    Some(total) => rule::with_total(status, &budget.spec, total),
                    None => status.clone(),
                },
                _ => match self.recount(&budget).await {
                    Ok(status) => status,
                    Err(error) => return all(Err(error)),
                },
            };
            let now = clock::now().wall;
            let answers: Vec<Answer> = waiting
                .iter()
                .map(|Question { ask, dry_run }| match dry_run {
                    true => rule::take(&mut status.clone(), ask, now),
                    false => rule::take(&mut status, ask, now),
                })
                .collect();
            let any = |fits: fn(&Answer) -> bool| answers.iter().any(fits);
            if !is_fresh && any(|answer| *answer == Answer::AlreadyTaken) {
                // The entry may have ended since.
                recounts = false;
                match self.read(&api, key).await {
                    Ok(Some(fresh)) => (budget, is_fresh) = (fresh, true),
                    Ok(None) => return all(Ok(Answer::Free)),
                    Err(error) => return all(Err(error)),
                }
                continue;
            }
            if !recounts && any(|answer| matches!(answer, Answer::Refused(_))) && self.may_recount(key) {
                // Before a refusal the status is recounted: the workload may have been scaled, the manager may be down.
                (recounts, is_fresh) = (true, false);
                continue;
            }
            let takes =
                answers.iter().zip(waiting).any(|(answer, waiting)| *answer == Answer::Taken && !waiting.dry_run);
            // It is also written that no Pod has to stay available, so that the next question needs no recount.
            let found_free = recounts && any(|answer| *answer == Answer::Free) && waiting.iter().any(|w| !w.dry_run);
            if !takes && !found_free {
                return answers.into_iter().map(Ok).collect();
            }
            match self.write(&api, &budget, &status).await {
                Ok(()) => return answers.into_iter().map(Ok).collect(),
                Err(error) if code(&error) == Some(404) => return all(Ok(Answer::Free)),
                Err(error) if code(&error) == Some(409) => {
                    tracing::debug!(budget = %key, "somebody else has written, deciding again");
                    match self.read(&api, key).await {
                        Ok(Some(fresh)) => (budget, is_fresh, recounts) = (fresh, true, false),
                        Ok(None) => return all(Ok(Answer::Free)),
                        Err(error) => return all(Err(error)),
                    }
                }
                Err(error) => {
                    let failed = format!("PodUnavailableBudget {key} could not be written: {}", said(&error));
                    return all(Err(Undecided::ApiServer(failed)));
                }
            }
        }
        all(Err(Undecided::KeepsChanging(key.to_string())))
    }

    /// The current budget. None: it was deleted.
    async fn read(
        &self,
        api: &Api<PodUnavailableBudget>,
        key: &ObjectKey,
    ) -> Result<Option<Arc<PodUnavailableBudget>>, Undecided> {
        let failed = |error: kube::Error| {
            Undecided::ApiServer(format!("PodUnavailableBudget {key} could not be read: {}", said(&error)))
        };
        let read = api.get_opt(&key.name).await.map_err(failed)?;
        if let Some(fresh) = &read {
            self.store.upsert(fresh.clone());
        }
        Ok(read.filter(|budget| budget.metadata.deletion_timestamp.is_none()).map(Arc::new))
    }

    async fn write(
        &self,
        api: &Api<PodUnavailableBudget>,
        budget: &PodUnavailableBudget,
        status: &PodUnavailableBudgetStatus,
    ) -> kube::Result<()> {
        if let Some(newer) = patch_status(api, budget, &recorded(budget), &json!(status)).await? {
            self.store.upsert(newer);
        }
        Ok(())
    }

    /// Computes the status of a budget from objects read from the API server.
    async fn recount(&self, budget: &PodUnavailableBudget) -> Result<PodUnavailableBudgetStatus, Undecided> {
        let (key, begun) = (ObjectKey::of(budget), clock::now().mono);
        let counted = self.look(budget).await;
        let done = clock::now();
        let pause = RECOUNT_PAUSE.max((done.mono - begun) * RECOUNT_SHARE);
        lock(&self.recounts).insert(key.clone(), done.mono + pause);
        let failed = |error: kube::Error| {
            let why = said(&error);
            Undecided::ApiServer(format!("the Pods of PodUnavailableBudget {key} could not be counted: {why}"))
        };
        let (pods, total) = counted.map_err(failed)?;
        let counting = Counting::Beside { now: done.wall };
        Ok(rule::count(budget, &self.gates, &pods, total, counting, done.wall).status)
    }

    pub(super) fn may_recount(&self, key: &ObjectKey) -> bool {
        lock(&self.recounts).get(key).is_none_or(|from| clock::now().mono >= *from)
    }

    /// The Pods of a budget, and how many there should be, from the API server itself.
    pub(super) async fn look(&self, budget: &PodUnavailableBudget) -> kube::Result<(Vec<Arc<PodView>>, Total)> {
        let namespace = budget.namespace().unwrap_or_default();
        let (members, total) = self.members(budget, Duration::ZERO).await?;
        let api: Api<PodObject> = Api::namespaced(self.client.clone(), &namespace);
        let listing = members.listing(budget);
        let pods = api.list(&ListParams { label_selector: listing, ..ListParams::default() }).await?;
        let pods = self
            .of_members(&namespace, &members, pods.items.into_iter().map(|pod| Arc::new(pod.into())).collect())
            .await?;
        let total = match total {
            Some(total) => total,
            None => self.total_of(&ObjectKey::of(budget), &members, &pods, Duration::ZERO).await?,
        };
        Ok((pods, total))
    }
}
