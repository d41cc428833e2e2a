//! Writes the status.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Resource};
use serde::{Serialize, de::DeserializeOwned};

use super::{Common, Pass, PodSets};
use crate::{
    api::apps::{lifecycle::Lifecycle, stateful_set::StatefulSetCondition},
    domain::workload::{
        conditions::{self, FAILED_CREATE, FAILED_UPDATE},
        owner::OwnerRef,
        status::{Progress, READY, STALLED},
    },
    runtime::{
        clock,
        queue::{Queue, Requeue},
        status_writer::json_of,
        watches::{ObjectKey, Store},
    },
};

/// The status of a kind.
pub trait SetStatus: Clone + Default + PartialEq + Serialize {
    /// Its conditions.
    fn conditions(&self) -> &[StatefulSetCondition];
    /// With other conditions, about this generation, of which nothing else is known: no Pod counts as updated to it.
    fn with_conditions(self, conditions: Vec<StatefulSetCondition>, generation: i64) -> Self;
    /// Without what may be written a little later: counts, which change with every Pod. [`words_cleared`] is for its
    /// conditions.
    fn without_counts(&self) -> Self;
}

/// Conditions without the words that change with every Pod.
pub fn words_cleared(conditions: &[StatefulSetCondition]) -> Vec<StatefulSetCondition> {
    let cleared = |condition: &StatefulSetCondition| StatefulSetCondition {
        message: String::new(),
        reason: String::new(),
        ..condition.clone()
    };
    conditions.iter().map(cleared).collect()
}

/// The generation that counts are about, of a set that does nothing but wait or is stalled. While it waits nobody knows which
/// revision its spec has, and Pods count as updated by that of an earlier one. A set that is being deleted gets no other.
pub fn counted_generation(set: &ObjectMeta, recorded: i64, progress: &Progress) -> i64 {
    let is_unresolved = matches!(progress, Progress::Waiting { .. }) && set.deletion_timestamp.is_none();
    if is_unresolved { recorded } else { set.generation.unwrap_or_default() }
}

impl<M: Default + AsMut<Common>> PodSets<M> {
    /// Writes the status of a set, if it says anything new. Counts are written a second apart, unless they are the last
    /// word. Zeros are written too, the first time: columns and the scale subresource read them. Returns when to look again.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn write_status<K, S>(
        &self,
        store: &Store<K>,
        set: &K,
        recorded: Option<&S>,
        wanted: &S,
    ) -> kube::Result<Option<Duration>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        S: SetStatus,
    {
        if recorded == Some(wanted) {
            return Ok(None);
        }
        let is_settled = wanted.conditions().iter().any(|c| c.type_ == READY && c.status == "True");
        let is_stalled = |status: &S| status.conditions().iter().any(|c| c.type_ == STALLED && c.status == "True");
        if is_stalled(wanted) && !recorded.is_some_and(is_stalled) {
            self.metrics.stalls.inc();
        }
        let before = recorded.map(SetStatus::without_counts).unwrap_or_default();
        let can_wait = !is_settled && before == wanted.without_counts();
        let namespace = set.meta().namespace.as_deref().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.context.client.clone(), namespace);
        let (recorded, wanted) = (json_of(recorded)?, json_of(Some(wanted))?);
        let outcome = self.status.write((&api, store), set, (&recorded, &wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }

    /// A spec that cannot be followed: nothing is done on a guess, and the status says why. `queue` is that of the sets.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn record_invalid<K, S>(
        &self,
        (store, queue): (&Store<K>, &Queue<ObjectKey>),
        set: &K,
        (recorded, lifecycle): (Option<&S>, Option<&Lifecycle>),
        (reason, message): (&str, String),
    ) -> kube::Result<Requeue>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        S: SetStatus,
    {
        let mut pass = Pass::default();
        self.refresh_without_spec(set, lifecycle, &mut pass).await;
        let before = recorded.map(S::conditions).unwrap_or_default();
        if !before.iter().any(|c| c.type_ == STALLED && c.message == message) {
            self.pods.warning(&OwnerRef::of(set), reason, &message);
        }
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, Some(message.as_str()))];
        let progress = Progress::Stalled { reason: reason.to_owned(), message: message.clone() };
        let conditions = conditions::merged(before, &progress, failures, clock::now());
        let generation = set.meta().generation.unwrap_or_default();
        let wanted = recorded.cloned().unwrap_or_default().with_conditions(conditions, generation);
        // It waits for another spec, not for time.
        pass.common.look_after(self.write_status(store, set, recorded, &wanted).await?);
        pass.common.end(|after| queue.add_after(ObjectKey::of(set), after))
    }

    /// Nothing has been written, as far as it remembers; and nothing else is remembered either, as after a restart.
    #[cfg(test)]
    pub fn forget(&self) {
        self.memories.clear();
        self.status.forget();
    }

    /// The progress of a set that is being deleted: its Pods go with it, by their owner references.
    pub fn leaving(&self) -> Progress {
        let message = format!("the {} is being deleted", self.kind.0);
        Progress::Waiting { reason: "Terminating".into(), message }
    }

    /// How long the next pass of a set waits for further events; zero below 100 Pods.
    pub(super) fn batch_delay(&self, key: &ObjectKey) -> Duration {
        crate::runtime::wake::pause(self.with(key, |memory| memory.pods))
    }

    /// Whether passes of a set wait for further events, and what cannot wait is done beside them.
    pub fn is_large(&self, key: &ObjectKey) -> bool {
        !self.batch_delay(key).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn counts_are_about_the_new_generation_when_its_revision_is_known_or_none_comes() {
        let waits = || Progress::Waiting { reason: "RevisionUnknown".into(), message: String::new() };
        let stalled = || Progress::Stalled { reason: "BuiltInDaemonSet".into(), message: String::new() };
        for (progress, is_deleted, want) in
            [(waits(), false, 1), (waits(), true, 2), (stalled(), false, 2), (stalled(), true, 2)]
        {
            let deletion_timestamp = is_deleted.then(|| Time(clock::now().wall));
            let set = ObjectMeta { generation: Some(2), deletion_timestamp, ..ObjectMeta::default() };
            assert_eq!(counted_generation(&set, 1, &progress), want, "{progress:?}, deleted: {is_deleted}");
        }
    }
}
