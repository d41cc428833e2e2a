//! Everything that a pass looks at.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::core::{ObjectList, Request};
use serde::Deserialize;

use super::{BY_SET, Controller, Job, Pass};
use crate::{
    api::feature_gates::gate,
    controllers::{
        BY_NAMESPACE,
        pod_set::{ASIDE_PAUSE, Aside},
    },
    domain::{
        kinds::stateful_set::{
            claims::is_grown,
            numbering::{self, Ordinals},
            plan::{self, Action, Observed, Plan},
            pod::{self, Pod},
        },
        pod::inplace::Allowed,
        workload::{
            make::{revision_annotations, revision_labels},
            owner::OwnerRef,
            status::Progress,
        },
    },
    k8s::{claim::SizedClaim, path, pod::PodView, selector::Selector},
    runtime::{
        clock,
        queue::Requeue,
        revisions::{History, Naming, Recorded, Resolved},
        watches::ObjectKey,
    },
};

/// Pods and claims of a set.
pub(super) struct Seen {
    /// The Pods, as the rules see them, by ordinal.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The same Pods, by name.
    pub(super) views: BTreeMap<String, Arc<PodView>>,
    /// The claims of its Pods, by name.
    pub(super) claims: BTreeMap<String, Arc<SizedClaim>>,
}

/// What is read of a StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StorageClass {
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    allow_volume_expansion: bool,
}

fn history<'a>(job: &'a Job, owner: &'a OwnerRef) -> History<'a> {
    History {
        owner,
        selector: &job.spec.selector,
        naming: Naming::BY_DATA,
        labels: revision_labels(&job.spec.template),
        annotations: revision_annotations(&job.set.metadata),
        newest_annotations: serde_json::Map::new(),
    }
}

/// Storage classes and whether they let volumes grow, or for how long they could not be read.
type Classes<'a> = Result<&'a BTreeMap<String, bool>, Duration>;

impl Controller {
    /// The set's Pods and claims as the stores have them.
    pub(super) fn see_again(&self, job: &Job) -> Seen {
        let now = clock::now();
        let has_index = self.context.gates.enabled(gate::POD_INDEX_LABEL);
        let mut seen = Seen { pods: Vec::new(), views: BTreeMap::new(), claims: BTreeMap::new() };
        for view in self.common.owned(&job.owner) {
            if let Some(pod) = Pod::of(&view, &job.spec, has_index, now) {
                seen.pods.push(Arc::new(pod));
                seen.views.insert(view.name().to_owned(), view);
            }
        }
        pod::sort(&mut seen.pods);
        for name in plan::claim_names(&job.spec, &seen.pods) {
            if let Some(claim) = self.claims.get(&ObjectKey::new(&job.key.namespace, &name)) {
                seen.claims.insert(name, claim);
            }
        }
        // Those of ordinals without a Pod that go with the set.
        for claim in self.claims.by_index(&BY_SET, &job.owner.uid) {
            if claim.metadata.namespace.as_deref() == Some(&*job.key.namespace) {
                seen.claims.insert(claim.name().to_owned(), claim);
            }
        }
        self.common.memories.with(&job.key, |memory| memory.common.pods = seen.pods.len().max(job.spec.ordinals.len()));
        seen
    }

    /// The same, after Pods were adopted and released. A Pod that cannot be keeps nothing from being done.
    pub(super) async fn see(&self, job: &Job, pass: &mut Pass) -> Seen {
        let selector = match Selector::of(&job.spec.selector) {
            Ok(selector) if !selector.is_empty() => selector,
            // Nobody could say which Pods are meant: admission refuses it, and letting go of all would be worst.
            _ => return self.see_again(job),
        };
        let of = (&job.key, &job.owner, job.set.metadata.generation);
        let has_name = |pod: &PodView| numbering::ordinal_of(&job.spec.name, pod.name()).is_some();
        self.common.claim(of, &selector, has_name, pass).await;
        self.see_again(job)
    }

    /// Why nothing may be made or deleted: a built-in StatefulSet would make and delete Pods of the same names. Or why
    /// nothing is while Pods begin at `ordinals.start` without its gate.
    pub(super) async fn aside(&self, job: &Job) -> Option<Aside> {
        let of = (&job.spec.selector, &job.spec.template);
        let aside = self.common.aside(&job.key, of, job.set.metadata.generation).await;
        // Nothing wakes it when those Pods are gone.
        let stalled = |progress| Aside { progress, then: Ok(Requeue::After(ASIDE_PAUSE)) };
        aside.or_else(|| self.start_without_gate(job).map(stalled))
    }

    /// The message while Pods begin at `ordinals.start`, and the gate that gives it an effect is off: those that nobody
    /// controls would be adopted, and as surplus all of them would be deleted, those too that OpenKruise has made for the
    /// set.
    fn start_without_gate(&self, job: &Job) -> Option<Progress> {
        let start = job.spec.start_in_spec;
        if start == job.spec.start {
            return None;
        }
        let with_start = Ordinals::new(job.spec.replicas, start, &job.spec.reserved);
        let is_wanted = |pod: &&Arc<PodView>| {
            let ordinal = numbering::ordinal_of(&job.spec.name, pod.name());
            ordinal.is_some_and(|ordinal| with_start.contains(ordinal) && !job.spec.ordinals.contains(ordinal))
        };
        let owned = self.common.owned(&job.owner);
        let selector = Selector::of(&job.spec.selector).ok().filter(|selector| !selector.is_empty());
        let is_next = |pod: &PodView| {
            let ordinal = numbering::ordinal_of(&job.spec.name, pod.name());
            ordinal.is_some_and(|ordinal| ordinal >= start && !job.spec.ordinals.contains(ordinal))
        };
        let mut orphans = self.context.pods.by_index(&BY_NAMESPACE, &job.key.namespace);
        orphans.retain(|pod| {
            pod.controller.is_none()
                && is_next(pod)
                && selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
        });
        let pod = orphans.iter().chain(owned.iter().filter(is_wanted)).map(|pod| pod.name()).min()?;
        Some(Progress::Stalled {
            reason: "StartOrdinalIgnored".into(),
            message: format!(
                "Pod {pod} would be deleted: spec.ordinals.start has no effect while the feature gate {} is off; switch it on, or leave out spec.ordinals.start",
                gate::START_ORDINAL
            ),
        })
    }

    /// Finds out the revisions, and makes a new one for a new template.
    pub(super) async fn resolve(&self, job: &Job) -> kube::Result<Resolved> {
        let status = job.set.status.clone().unwrap_or_default();
        let recorded = Recorded {
            generation: job.set.metadata.generation.unwrap_or_default(),
            observed_generation: status.observed_generation,
            current: &status.current_revision,
            update: &status.update_revision,
            collisions: status.collision_count,
        };
        let remembered = self.common.memories.with(&job.key, |memory| memory.resolved.clone()).flatten();
        let history = history(job, &job.owner);
        let resolved = self.revisions.resolve(&history, &job.spec.template, recorded, remembered).await?;
        self.keep(job, &resolved);
        Ok(resolved)
    }

    fn keep(&self, job: &Job, resolved: &Resolved) {
        self.common.memories.with(&job.key, |memory| memory.resolved = Some(resolved.clone()));
    }

    /// The revisions with their data, if a Pod is to leave one or to be made on an older one. False: they cannot be read,
    /// and only what needs no comparison is done.
    pub(super) async fn with_needed(
        &self,
        job: &Job,
        resolved: Resolved,
        seen: &Seen,
        pass: &mut Pass,
    ) -> (Resolved, bool) {
        let is_settled = resolved.current == resolved.update && seen.pods.iter().all(|pod| pod.is_on(&resolved.update));
        if resolved.known.is_some() || is_settled {
            return (resolved, true);
        }
        let history = history(job, &job.owner);
        match self.revisions.with_known(&history, &job.spec.template, resolved.clone()).await {
            Ok(resolved) => {
                self.keep(job, &resolved);
                (resolved, true)
            }
            Err(error) => {
                pass.note(Err(error));
                (resolved, false)
            }
        }
    }

    /// When every Pod is where it is to be: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(&self, job: &Job, resolved: &Resolved, seen: &Seen) -> kube::Result<()> {
        if resolved.known.is_none() {
            return Ok(());
        }
        // The pass that ends an update has recorded another current revision by now, and nothing wakes the set for that
        // write. If it did not get through, the one before still counts.
        let set = self.sets.get(&job.key).and_then(|held| held.open().ok());
        let recorded = set.as_ref().and_then(|set| Some(set.status.as_ref()?.current_revision.as_str()));
        let current = recorded.and_then(|name| resolved.find(name)).map_or(&resolved.current, |known| &known.name);
        let resolved = Resolved { current: current.clone(), ..resolved.clone() };
        let pods = seen.pods.iter().map(|pod| pod.revision.as_str());
        let limit = job.spec.revision_history_limit;
        let resolved = self.revisions.tidy(&job.key.namespace, &resolved, pods, limit).await?;
        if resolved.known.is_none() {
            self.common.memories.with(&job.key, |memory| memory.common.waits_in.clear());
        }
        self.keep(job, &resolved);
        Ok(())
    }

    /// Storage classes, and whether they let volumes grow. Nothing is read without gate StatefulSetAutoResizePVCGate, or
    /// while no claim is smaller than its template wants it. Err: for how long they could not be read, as far as this process
    /// has seen it.
    pub(super) async fn classes(
        &self,
        job: &Job,
        seen: &Seen,
        pass: &mut Pass,
    ) -> Result<BTreeMap<String, bool>, Duration> {
        let is_small = |ordinal: i32| {
            job.spec.claims.iter().any(|template| {
                let claim = seen.claims.get(&template.claim_name(&job.spec.name, ordinal));
                claim.is_some_and(|claim| claim.requested < template.storage)
            })
        };
        let are_read = match job.spec.grows_claims && seen.pods.iter().any(|pod| is_small(pod.ordinal)) {
            true => self.list_classes().await,
            false => Ok(BTreeMap::new()),
        };
        let now = clock::now().mono;
        let unread_since = self.common.memories.with(&job.key, |memory| match &are_read {
            Ok(_) => memory.unread_since.take(),
            Err(_) => Some(*memory.unread_since.get_or_insert(now)),
        });
        are_read.map_err(|error| {
            pass.note(Err(error));
            now.saturating_sub(unread_since.flatten().unwrap_or(now))
        })
    }

    async fn list_classes(&self) -> kube::Result<BTreeMap<String, bool>> {
        let path = path::of_cluster("storage.k8s.io", "v1", "storageclasses");
        let request = Request::new(path).list(&kube::api::ListParams::default()).map_err(kube::Error::BuildRequest)?;
        let list: ObjectList<StorageClass> = self.context.client.request(request).await?;
        let named = |class: StorageClass| (class.metadata.name.unwrap_or_default(), class.allow_volume_expansion);
        Ok(list.items.into_iter().map(named).collect())
    }

    /// For how long claims have been asked to grow, or have grown, as far as this process has seen it.
    pub(super) fn waited(&self, job: &Job) -> BTreeMap<String, Duration> {
        let now = clock::now().mono;
        let growing = self.common.memories.with(&job.key, |memory| memory.growing.clone()).unwrap_or_default();
        growing.into_iter().map(|(name, since)| (name, now.saturating_sub(since))).collect()
    }

    /// Remembers which claims are asked to grow, and which grow.
    pub(super) fn note_growth(&self, job: &Job, seen: &Seen, plan: &Plan) {
        if !job.spec.grows_claims {
            return;
        }
        let asked = plan.actions.iter().flat_map(|action| match action {
            Action::GrowClaims { claims, .. } => claims.as_slice(),
            _ => &[],
        });
        let grow = seen.claims.values().filter(|claim| claim.capacity.is_some() && !is_grown(claim));
        let names = asked.map(|(name, _)| name.clone()).chain(grow.map(|claim| claim.name().to_owned()));
        let now = clock::now().mono;
        self.common.memories.with(&job.key, |memory| {
            let before = std::mem::take(&mut memory.growing);
            memory.growing =
                names.map(|name| (before.get(&name).copied().unwrap_or(now), name)).map(|(t, n)| (n, t)).collect();
        });
    }

    pub(super) fn observed<'a>(
        &self,
        job: &'a Job,
        resolved: &'a Resolved,
        seen: &'a Seen,
        (classes, waited): (Classes<'a>, &'a BTreeMap<String, Duration>),
        allowed: Option<Allowed>,
    ) -> Observed<'a> {
        Observed {
            spec: &job.spec,
            pods: &seen.pods,
            claims: &seen.claims,
            classes,
            update_revision: &resolved.update,
            revisions: resolved.all(),
            allowed,
            waited,
            announced_is_updated: self.context.gates.enabled(gate::PREPARING_UPDATE_AS_UPDATE),
            now: clock::now(),
        }
    }
}
