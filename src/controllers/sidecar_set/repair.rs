//! Repair of Pods that lack the containers, where the SidecarSet says so: they are evicted, so that their controllers make
//! others. The rules are in [`domain::sidecar_set::repair`](crate::domain::kinds::sidecar_set::repair).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{Controller, Job, metrics::Repaired, observe::Observed};
use crate::{
    budgets::refusals::{Refusals, Verdict},
    controllers::{BY_CONTROLLER, owned_text},
    domain::{
        budgets::unavailable::Operation,
        kinds::sidecar_set::{
            repair::{self, Member, Progress, RepairStep},
            status::{self, Repair},
        },
        workload::owner::OwnerRef,
    },
    k8s::{path, pod::PodView, time::Now},
    runtime::{
        apply::{code, is_refusal, post, said},
        clock, lock,
        pass::Pass,
        pod_control::decoded,
        slow_start::each,
        watches::ObjectKey,
    },
};

/// Controllers of Pods whose Pods one SidecarSet repairs at the same time.
const MOST_AT_ONCE: usize = 10;
/// Between two looks at the Pods of one SidecarSet.
const PAUSE: Duration = Duration::from_secs(1);

/// What is remembered of repairs. Everything can be lost.
#[derive(Default)]
pub(super) struct Repairs {
    by_set: HashMap<Arc<str>, OfSet>,
}

/// A controller of Pods: its namespace and UID. Whoever may create Pods can write any UID into their owner references.
type Owner = (String, String);

#[derive(Default)]
struct OfSet {
    owners: BTreeMap<Owner, Progress>,
    /// Pods that are not evicted, and why, by their controllers.
    refused: BTreeMap<Owner, (String, String)>,
    /// When the Pods were looked at, and what came of it.
    looked: Option<(Duration, Repair)>,
}

impl Repairs {
    /// Forgets a SidecarSet.
    pub(super) fn forget(&mut self, set: &str) {
        self.by_set.remove(set);
    }

    /// Whether another SidecarSet has evicted a Pod of a controller, and its place is not taken yet.
    fn is_busy(&self, owner: &Owner, set: &str) -> bool {
        let mut others = self.by_set.iter().filter(|(other, _)| ***other != *set);
        others.any(|(_, of)| of.owners.get(owner).is_some_and(Progress::is_under_way))
    }
}

/// The Pods of one controller, and the one of them that is to go.
struct Chosen {
    owner: Owner,
    members: Vec<Member>,
    pod: Arc<PodView>,
}

/// What came of an eviction.
enum Tried {
    /// It was evicted, or nobody knows.
    Evicted,
    /// It is another than the one that was looked at.
    Changed,
    /// Another Pod would lack the containers as well.
    NotInjected(String),
    /// A budget or the API server does not let it go.
    Refused(String),
}

impl Controller {
    /// Evicts Pods that lack the containers, as far as they may be. None: they are not to be repaired.
    pub(super) async fn repair(&self, job: &Job, observed: &Observed, pass: &mut Pass) -> Option<Repair> {
        let name = &*job.spec.name;
        if !job.spec.repairs {
            lock(&self.repairs).forget(name);
            return None;
        }
        if status::has_stopped(&job.before, job.generation()) {
            lock(&self.repairs).forget(name);
            // The recorded condition is kept.
            return Some(Repair::Done);
        }
        if !job.spec.injects {
            return Some(Repair::InjectionPaused);
        }
        let now = clock::now();
        if let Some((left, repair)) = self.looked_lately(name, now) {
            if observed.uninjected > 0 {
                pass.look_after(Some(left));
            }
            return Some(repair);
        }
        let repair = self.repair_now(job, now, pass).await;
        lock(&self.repairs).by_set.entry(name.into()).or_default().looked = Some((now.mono, repair.clone()));
        Some(repair)
    }

    /// How the repair was when it was looked at last: it goes on when updates do not.
    pub(super) fn last_repair(&self, job: &Job, observed: &Observed) -> Option<Repair> {
        if !job.spec.repairs || status::has_stopped(&job.before, job.generation()) {
            // The recorded condition is kept, if it says that the repair has stopped.
            return job.spec.repairs.then_some(Repair::Done);
        }
        if !job.spec.injects {
            return Some(Repair::InjectionPaused);
        }
        let looked = lock(&self.repairs).by_set.get(&*job.spec.name).and_then(|of| of.looked.clone());
        let unknown = if observed.uninjected > 0 { Repair::UnderWay(None) } else { Repair::Done };
        Some(looked.map_or(unknown, |(_, repair)| repair))
    }

    /// The rest of the pause after the last look, and what came of that.
    fn looked_lately(&self, set: &str, now: Now) -> Option<(Duration, Repair)> {
        let repairs = lock(&self.repairs);
        let (looked, repair) = repairs.by_set.get(set)?.looked.as_ref()?;
        let left = (*looked + PAUSE).saturating_sub(now.mono);
        (!left.is_zero()).then(|| (left, repair.clone()))
    }

    async fn repair_now(&self, job: &Job, now: Now, pass: &mut Pass) -> Repair {
        let lacking = lock(&self.missed).of(&job.spec.name);
        let lacking: HashMap<ObjectKey, Arc<PodView>> =
            lacking.into_iter().filter_map(|key| Some((key.clone(), self.context.pods.get(&key)?))).collect();
        let (chosen, stopped) = self.choose(&job.spec.name, &lacking, now, pass);
        if let Some(pod) = stopped {
            return self.stop(job, pod);
        }
        let refusals = &Refusals::default();
        let tried = each(chosen, |chosen| async move {
            let tried = self.evict(job, &chosen.pod, refusals).await;
            Ok::<_, Infallible>((chosen, tried))
        });
        let tried = tried.await.0;
        self.note_repairs(job, tried, pass);
        let mut repairs = lock(&self.repairs);
        let of = repairs.by_set.entry(job.spec.name.as_str().into()).or_default();
        let is_under_way = of.owners.values().any(Progress::is_under_way);
        if lacking.is_empty() && !is_under_way {
            Repair::Done
        } else if !lacking.values().any(|pod| owner_of(pod).is_some()) && !is_under_way {
            Repair::NotRepairable
        } else {
            Repair::UnderWay(of.refused.values().next().cloned())
        }
    }

    /// Which Pods are to go now, one of each controller; and a Pod that ends the repair.
    fn choose(
        &self,
        set: &str,
        lacking: &HashMap<ObjectKey, Arc<PodView>>,
        now: Now,
        pass: &mut Pass,
    ) -> (Vec<Chosen>, Option<String>) {
        let mut repairs = lock(&self.repairs);
        let mut owners: BTreeMap<Owner, Progress> =
            lacking.values().filter_map(|pod| Some((owner_of(pod)?, Progress::default()))).collect();
        // What needs no repair any more is forgotten, but for evictions that are under way.
        for (owner, progress) in std::mem::take(&mut repairs.by_set.entry(set.into()).or_default().owners) {
            if progress.is_under_way() || owners.contains_key(&owner) {
                owners.insert(owner, progress);
            }
        }
        let (mut chosen, mut stopped) = (Vec::new(), None);
        let mut under_way = places_taken(&owners, now);
        for (owner, progress) in &mut owners {
            if let Some(left) = progress.pause(now) {
                pass.look_after(Some(left));
                continue;
            }
            let is_full = under_way + chosen.len() >= MOST_AT_ONCE;
            if !progress.is_under_way() && (is_full || repairs.is_busy(owner, set)) {
                pass.look_after(Some(PAUSE));
                continue;
            }
            let pods = self.context.pods.by_index(&BY_CONTROLLER, &owned_text(&owner.0, &owner.1));
            let members: Vec<Member> = pods.iter().map(|pod| member(pod, lacking)).collect();
            let had_place = progress.is_under_way() && !progress.is_stuck(now);
            let step = progress.step(&members, now);
            under_way -= usize::from(had_place && !progress.is_under_way());
            match step {
                RepairStep::Nothing => {}
                RepairStep::Wait(after) => pass.look_after(after),
                RepairStep::Stop(pod) => stopped = Some(pod),
                RepairStep::Evict(uid) => {
                    let pod = pods.iter().find(|pod| pod.uid() == uid).cloned();
                    chosen.extend(pod.map(|pod| Chosen { owner: owner.clone(), members, pod }));
                }
            }
        }
        repairs.by_set.entry(set.into()).or_default().owners = owners;
        (chosen, stopped)
    }

    /// Evicts a Pod if a dry run says that another one like it gets the containers, and its budgets let it.
    async fn evict(&self, job: &Job, pod: &PodView, refusals: &Refusals) -> Tried {
        let live = match self.pods.read(pod).await {
            Ok(Some(live)) => live,
            Ok(None) => return Tried::Changed,
            Err(error) => return Tried::Refused(said(&error)),
        };
        let tried =
            post(&self.context.client, &(path::pods(pod.namespace()) + "?dryRun=All"), &repair::trial(&live)).await;
        match tried.and_then(|tried| decoded::<Value>(&tried)) {
            Ok(tried) => {
                if let Some(why) = repair::lacks(&job.spec.name, &tried) {
                    return Tried::NotInjected(why);
                }
            }
            Err(error) => return Tried::Refused(format!("a dry run of its creation: {}", said(&error))),
        }
        if self.context.budgets.may_take(pod, (Operation::Evict, false), refusals).await != Verdict::Yes {
            let why = refusals.first().map_or_else(|| "a PodUnavailableBudget keeps it".to_owned(), |(_, why)| why);
            return Tried::Refused(why);
        }
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name(), "namespace": pod.namespace()},
            "deleteOptions": {"preconditions": {"uid": pod.uid()}}});
        let path = path::pods(pod.namespace()) + &path::path([pod.name(), "eviction"]);
        match post(&self.context.client, &path, &eviction).await {
            Ok(_) => Tried::Evicted,
            Err(error) if matches!(code(&error), Some(404 | 409)) => Tried::Changed,
            Err(error) if is_refusal(&error) => Tried::Refused(said(&error)),
            // Of a Pod with two PodDisruptionBudgets, and while a webhook that is asked about evictions is dead.
            Err(error) if matches!(code(&error), Some(500..=503)) && self.is_there(pod).await => {
                Tried::Refused(said(&error))
            }
            Err(error) => {
                tracing::warn!(set = job.spec.name, pod = pod.name(), %error, "it is not known whether it was evicted");
                Tried::Evicted
            }
        }
    }

    /// Whether a Pod is there and stays, as far as can be told.
    async fn is_there(&self, pod: &PodView) -> bool {
        let live = self.pods.read(pod).await;
        live.is_ok_and(|live| live.is_some_and(|live| live["metadata"]["deletionTimestamp"].is_null()))
    }

    fn note_repairs(&self, job: &Job, tried: Vec<(Chosen, Tried)>, pass: &mut Pass) {
        let now = clock::now();
        let mut repairs = lock(&self.repairs);
        let of = repairs.by_set.entry(job.spec.name.as_str().into()).or_default();
        for (Chosen { owner, members, pod }, tried) in tried {
            let progress = of.owners.entry(owner.clone()).or_default();
            let (result, why) = match tried {
                Tried::Evicted => {
                    progress.evicted(pod.uid(), &members, now);
                    let message = format!(
                        "evicted because it lacks the containers of SidecarSet {}: its controller makes another one",
                        job.spec.name
                    );
                    self.context.events.normal(&pod.reference(), "SidecarSetRepair", &message);
                    (Repaired::Evicted, None)
                }
                Tried::Changed => {
                    pass.look_after(Some(PAUSE));
                    continue;
                }
                Tried::NotInjected(why) => (Repaired::NotInjected, Some(why)),
                Tried::Refused(why) => (Repaired::Refused, Some(why)),
            };
            self.metrics.repaired(result);
            pass.look_after(Some(PAUSE));
            match why {
                None => drop(of.refused.remove(&owner)),
                Some(why) => {
                    progress.refused(now);
                    of.refused.insert(owner, (format!("{}/{}", pod.namespace(), pod.name()), why));
                }
            }
        }
        of.refused.retain(|owner, _| of.owners.contains_key(owner));
    }

    fn stop(&self, job: &Job, pod: String) -> Repair {
        self.metrics.repaired(Repaired::Stopped);
        let message = format!(
            "Pod {pod} was made in the place of an evicted one and lacks the containers too: no other is evicted"
        );
        self.pods.warning(&OwnerRef::of(job.set.as_ref()), "SidecarSetRepairStopped", &message);
        Repair::Stopped(pod)
    }
}

/// The controller of a Pod, if it makes another one in its place.
fn owner_of(pod: &PodView) -> Option<Owner> {
    let owner = pod.controller.as_deref().filter(|owner| repair::recreates(owner))?;
    Some((pod.namespace().to_owned(), owner.uid.clone()))
}

fn member(pod: &PodView, lacking: &HashMap<ObjectKey, Arc<PodView>>) -> Member {
    Member {
        uid: pod.uid().to_owned(),
        name: format!("{}/{}", pod.namespace(), pod.name()),
        created: pod.created,
        lacks: lacking.contains_key(&ObjectKey::of(pod)),
        is_leaving: pod.is_deleting() || pod.is_finished(),
        is_ready: pod.phase == "Running" && pod.condition_is_true("Ready"),
    }
}
/// How many of [`MOST_AT_ONCE`] are taken. However many in one namespace are stuck, they take one place: a tenant whose Pods
/// never become ready stops no repair of others. Where many namespaces are stuck, the containers may be the reason.
fn places_taken(owners: &BTreeMap<Owner, Progress>, now: Now) -> usize {
    let mut stuck = BTreeSet::new();
    let under_way = owners.iter().filter(|(_, progress)| progress.is_under_way());
    under_way.filter(|((namespace, _), progress)| !progress.is_stuck(now) || stuck.insert(namespace)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stuck_in_one_namespace_takes_one_place() {
        let at = |second| Now { mono: Duration::from_secs(second), ..clock::now() };
        let went = |second| {
            let mut progress = Progress::default();
            progress.evicted("u", &[], at(second));
            progress
        };
        let owner = |namespace: &str, uid: u32| (namespace.to_owned(), uid.to_string());
        let mut owners: BTreeMap<Owner, Progress> = (0..10).map(|uid| (owner("mine", uid), went(0))).collect();
        owners.insert(owner("mine", 10), Progress::default());
        assert_eq!(places_taken(&owners, at(10)), 10);
        assert_eq!(places_taken(&owners, at(1000)), 1);
        owners.insert(owner("mine", 11), went(900));
        owners.insert(owner("other", 0), went(0));
        assert_eq!(places_taken(&owners, at(1000)), 3);
    }
}
