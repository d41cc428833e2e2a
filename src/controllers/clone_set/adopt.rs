//! Adopts Pods and claims that nobody controls, for CloneSets that want that.

use std::{collections::BTreeSet, sync::Arc};

use kube::Resource;

use super::{CloneSetJob, Controller, ORPHANED_CLAIMS, Pass, scale::id_of, uid_of};
use crate::{
    api::{apps::clone_set::CloneSet, labels},
    controllers::{BY_CONTROLLER, ORPHANED, owned_text},
    domain::{kinds::clone_set::adopt::Adoption, workload::owner::OwnerRef},
    k8s::{claim::ClaimView, pod::PodView, selector},
    runtime::{
        packed::Packed,
        pass::AFTER_REFUSAL,
        slow_start::each,
        watches::{Change, ObjectKey},
    },
};

impl Controller {
    /// Adopts the CloneSet's own Pods and claims. A refusal of the API server prevents nothing but the creation of a Pod in
    /// the place of the one that was refused, see [`Self::orphans`].
    pub(super) async fn adopt(&self, job: &CloneSetJob, pass: &mut Pass) {
        let CloneSetJob { key, clone_set, owner, .. } = job;
        let Some(adoption) = Adoption::of(clone_set) else { return };
        if !self.memories.has_searched(key) {
            pass.has_written = true;
            if let Err(error) = self.search(job).await {
                return pass.note(Err(error), |outcome| &mut outcome.scale_error);
            }
            self.memories.keep_searched(key);
        }
        let pods = self.orphaned_pods(&adoption, &key.namespace);
        let (mut done, failure) = each(pods, |pod| async move { self.pods.adopt(owner, &pod).await }).await;
        let claims = self.orphaned_claims(clone_set, &adoption, &key.namespace);
        let (of_claims, failure_of_claims) =
            each(claims, |claim| async move { self.adopt_claim(owner, &claim).await }).await;
        done.extend(of_claims);
        if done.contains(&false) {
            // The store may have been behind. Nothing may ever change in it, so it is looked at again.
            pass.has_written = true;
            pass.next.look_after(Some(AFTER_REFUSAL));
        }
        let result = failure.or(failure_of_claims).map_or(Ok(done.contains(&true)), Err);
        pass.note(result, |outcome| &mut outcome.scale_error);
    }

    /// For how many Pods others are there that the CloneSet is still to adopt: these are not created a second time. While
    /// nobody has looked for such Pods, none is created.
    pub(super) fn orphans(&self, job: &CloneSetJob) -> usize {
        let Some(adoption) = Adoption::of(&job.clone_set) else { return 0 };
        match self.memories.has_searched(&job.key) {
            true => self.orphaned_pods(&adoption, &job.key.namespace).len(),
            false => usize::MAX,
        }
    }

    /// Reads what is there: what the watches have not brought yet would be made a second time.
    async fn search(&self, CloneSetJob { key, spec, .. }: &CloneSetJob) -> kube::Result<()> {
        let (namespace, selected) = (&*key.namespace, selector::text_of(&spec.selector));
        self.pods.read_all(namespace, &format!("{selected},{}", labels::INSTANCE_ID)).await?;
        if spec.claim_templates.is_empty() {
            // No claim can be its own.
            return Ok(());
        }
        self.claim_control.read_all(namespace, labels::INSTANCE_ID).await
    }

    fn orphaned_pods(&self, adoption: &Adoption<'_>, namespace: &str) -> Vec<Arc<PodView>> {
        self.context.pods.select_by_index(&ORPHANED, namespace, |pod| adoption.takes_pod(pod))
    }

    fn orphaned_claims(&self, clone_set: &CloneSet, adoption: &Adoption<'_>, namespace: &str) -> Vec<Arc<ClaimView>> {
        let mut claims = self.claims.select_by_index(&ORPHANED_CLAIMS, namespace, |claim| adoption.is_own_claim(claim));
        if !claims.is_empty() {
            let pods = self.context.pods.by_index(&BY_CONTROLLER, &owned_text(namespace, uid_of(clone_set)));
            let instances: BTreeSet<&str> = pods.iter().filter(|pod| pod.is_active()).map(|pod| id_of(pod)).collect();
            claims.retain(|claim| adoption.takes_claim(claim, &instances));
        }
        claims
    }

    async fn adopt_claim(&self, owner: &OwnerRef, claim: &ClaimView) -> kube::Result<bool> {
        let adopted = self.claim_control.adopt(owner, claim).await?;
        if adopted {
            let message = format!("claim {} has the name of one of the CloneSet's and had no controller", claim.name());
            self.pods.normal(owner, "Adopted", &message);
        }
        Ok(adopted)
    }

    /// A Pod that nobody controls may be one to adopt, or has been waited for.
    pub(super) fn orphan_seen(&self, change: &Change<'_, PodView>) {
        let (Change::Applied { new: pod, .. } | Change::Deleted(pod)) = change else { return };
        if pod.controller.is_some() || id_of(pod).is_empty() {
            return;
        }
        let Some((name, _)) = pod.name().rsplit_once('-') else { return };
        let key = ObjectKey::new(pod.namespace(), name);
        if self.clone_sets.get(&key).is_some_and(|set| Adoption::is_wanted(set.meta())) {
            self.wake(&key, None);
        }
    }

    /// A claim that nobody controls may be one to adopt.
    pub(super) fn orphaned_claim_seen(&self, claim: &ClaimView) {
        let may_take = |set: &Packed<CloneSet>| {
            set.meta().namespace == claim.metadata.namespace && Adoption::is_wanted(set.meta())
        };
        for held in self.clone_sets.select(may_take) {
            let takes = |set: CloneSet| Adoption::of(&set).is_some_and(|adoption| adoption.is_own_claim(claim));
            if held.open().is_ok_and(takes) {
                self.wake(&ObjectKey::of(held.as_ref()), None);
            }
        }
    }
}
