//! Answers the questions about one WorkloadSpread that wait, with one write of its status.

use std::sync::Arc;

use kube::Api;
use serde_json::{Value, json};

use super::{Settled, Spreads, Unplaced};
use crate::{
    api::apps::workload_spread::WorkloadSpread,
    domain::kinds::workload_spread::{
        count::{SpreadAnswer, SpreadAsk, answer, places},
        spec::SpreadSpec,
    },
    k8s::invalid::Invalid,
    runtime::{
        apply::{code, patch_status},
        clock,
        watches::ObjectKey,
    },
};

/// How often a decision is repeated after a conflict. Each conflict means that another process has written.
const ATTEMPTS: u32 = 50;

impl Spreads {
    /// Answers all waiting questions about a WorkloadSpread, with one write.
    pub(super) async fn settle(&self, key: &ObjectKey, asks: &[SpreadAsk]) -> Vec<Result<Settled, Unplaced>> {
        match self.try_settle(key, asks).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(why) => vec![Err(why); asks.len()],
        }
    }

    async fn try_settle(&self, key: &ObjectKey, asks: &[SpreadAsk]) -> Result<Vec<Settled>, Unplaced> {
        let gone = || vec![Settled { answer: SpreadAnswer::Nothing, spec: None }; asks.len()];
        let Some(mut spread) = self.spreads.get(key) else { return Ok(gone()) };
        let api: Api<WorkloadSpread> = Api::namespaced(self.client.clone(), &key.namespace);
        let (mut is_fresh, mut total) = (false, None);
        for _ in 0..ATTEMPTS {
            let spec = Arc::new(SpreadSpec::of(&spread).map_err(|Invalid(why)| Unplaced::Unusable(why))?);
            if spec.needs_total() && total.is_none() {
                // Who makes a Pod has seen how many there are to be; so do we.
                total = Some(self.total(&spread, &spec).await?);
            }
            let limits = spec.limits(total.unwrap_or_default());
            let before = spread.status.clone().unwrap_or_default();
            let (mut status, now, mut passes_over) = (before.clone(), clock::now().wall, false);
            let mut answers = Vec::with_capacity(asks.len());
            for ask in asks {
                let answered = answer(&spec, &limits, &mut status, ask, now);
                if let SpreadAsk::Create { version, .. } = ask {
                    passes_over |= answered.passes_over(&places(&spec, &before, &limits, version));
                }
                answers.push(Settled { answer: answered, spec: Some(spec.clone()) });
            }
            if passes_over && !is_fresh {
                // A subset is full: a place in it may have become free, which the watch has still to bring.
                match self.reread(&api, key).await? {
                    Some(fresh) => (spread, is_fresh) = (fresh, true),
                    None => return Ok(gone()),
                }
                continue;
            }
            if status == before {
                return Ok(answers);
            }
            match patch_status(&api, spread.as_ref(), &recorded(&spread), &json!(status)).await {
                Ok(newer) => {
                    if let Some(newer) = newer {
                        self.spreads.upsert(newer);
                    }
                    return Ok(answers);
                }
                Err(error) if code(&error) == Some(404) => return Ok(gone()),
                Err(error) if code(&error) == Some(409) => {
                    tracing::debug!(spread = %key, "somebody else has written, deciding again");
                    match self.reread(&api, key).await? {
                        Some(fresh) => (spread, is_fresh) = (fresh, true),
                        None => return Ok(gone()),
                    }
                }
                Err(error) => return Err(Unplaced::ApiServer(format!("its status could not be written: {error}"))),
            }
        }
        Err(Unplaced::KeepsChanging)
    }

    /// The current WorkloadSpread. None: it was deleted.
    async fn reread(
        &self,
        api: &Api<WorkloadSpread>,
        key: &ObjectKey,
    ) -> Result<Option<Arc<WorkloadSpread>>, Unplaced> {
        let read = api.get_opt(&key.name).await;
        let read = read.map_err(|error| Unplaced::ApiServer(format!("it could not be read: {error}")))?;
        if let Some(fresh) = &read {
            self.spreads.upsert(fresh.clone());
        }
        Ok(read.filter(|spread| spread.metadata.deletion_timestamp.is_none()).map(Arc::new))
    }
}

/// The status as it is stored: a first one is written as a whole.
fn recorded(spread: &WorkloadSpread) -> Value {
    spread.status.as_ref().map_or_else(|| json!({}), |status| json!(status))
}
