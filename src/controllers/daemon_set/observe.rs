//! Everything that a pass looks at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::{api::GetParams, core::Request};
use serde_json::{Map, Value, json};

use super::{Controller, Job, Pass};
use crate::{
    api::labels,
    controllers::BY_CONTROLLER,
    domain::{
        kinds::daemon_set::{
            backoff::Failures,
            make,
            plan::Observed,
            pod::{self, Newest, Node, Pod},
        },
        pod::inplace::Allowed,
        workload::{
            revisions::{Known, is_same_data},
            status::Progress,
        },
    },
    k8s::{path, pod::PodView, pod_template::looks_defaulted, revision, selector::Selector, time::Now},
    runtime::{
        apply::code,
        clock,
        pass::AFTER_REFUSAL,
        pod_template::{self, Refused},
        revisions::{History, Naming},
    },
};

/// Revisions of DaemonSets have the hash in the label that Pods have it in.
const NAMING: Naming = Naming { hash_label: labels::CONTROLLER_REVISION_HASH, hash: revision::hash_of };

/// The revision that a set goes to.
#[derive(Clone)]
pub(super) struct Resolved {
    /// Its name.
    pub(super) update: String,
    /// How often the name of a new revision was taken.
    pub(super) collisions: i32,
    /// Hashes of other revisions with the same template: duplicates, and those of the built-in DaemonSet, which has written
    /// the defaults of the API server into its own.
    pub(super) same: Vec<String>,
    /// All revisions, oldest first. None while nobody has needed them.
    pub(super) known: Option<Arc<Vec<Known>>>,
}

impl Resolved {
    /// The hash of the revision.
    pub(super) fn hash(&self) -> &str {
        revision::short(&self.update)
    }
}

/// Nodes, and the Pods of a set.
pub(super) struct Seen {
    /// All nodes, by name.
    pub(super) nodes: Vec<Node>,
    /// The Pods, as the rules see them.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The same Pods, by name.
    pub(super) views: BTreeMap<String, Arc<PodView>>,
    /// Failed Pods of nodes.
    failures: Failures,
    /// Nodes that were lost before their Pods went.
    lost: BTreeMap<String, i64>,
    now: Now,
}

fn history(job: &Job) -> History<'_> {
    History {
        owner: &job.owner,
        selector: &job.spec.selector,
        naming: NAMING,
        labels: make::revision_labels(&job.spec),
        annotations: make::revision_annotations(&job.set),
        newest_annotations: Map::new(),
    }
}

impl Controller {
    /// The Pods that the set controls. Whoever may create Pods in another namespace can write the set's UID into them.
    fn owned(&self, job: &Job) -> Vec<Arc<PodView>> {
        let mut pods = self.context.pods.by_index(&BY_CONTROLLER, &job.owner.uid);
        pods.retain(|pod| pod.namespace() == &*job.key.namespace && job.owner.controls(pod));
        pods
    }

    /// Nodes and the set's Pods, as the stores have them.
    pub(super) fn see(&self, job: &Job, resolved: &Resolved) -> Seen {
        let now = clock::now();
        let mut nodes: Vec<Node> = self.context.nodes.list().iter().map(|node| Node::of(node, &job.spec)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let newest = Newest { hash: resolved.hash(), same: &resolved.same };
        let (mut pods, mut views) = (Vec::new(), BTreeMap::new());
        for view in self.owned(job) {
            if let Some(pod) = Pod::of(&view, &job.spec, newest, now) {
                pods.push(Arc::new(pod));
                views.insert(view.name().to_owned(), view);
            }
        }
        pod::sort(&mut pods);
        let (failures, lost) = self.remembered(job, &nodes, pods.len());
        Seen { nodes, pods, views, failures, lost, now }
    }

    /// What is remembered of nodes. What is over is forgotten.
    fn remembered(&self, job: &Job, nodes: &[Node], pods: usize) -> (Failures, BTreeMap<String, i64>) {
        let generation = job.generation();
        let is_so = |name: &String, since: &i64| {
            let found = nodes.binary_search_by(|node| node.name.cmp(name)).ok();
            found.and_then(|at| nodes[at].not_ready_since).is_some_and(|now| now.as_second() == *since)
        };
        let remembered = self.memories.with(&job.key, |memory| {
            memory.pods = pods.max(nodes.len());
            if memory.failures.0 != generation {
                memory.failures = (generation, Failures::default());
            }
            memory.lost.retain(|name, since| is_so(name, since));
            (memory.failures.1.clone(), memory.lost.clone())
        });
        remembered.unwrap_or_default()
    }

    /// Adopts and releases Pods. One that cannot be keeps nothing from being done.
    pub(super) async fn claim(&self, job: &Job, pass: &mut Pass) {
        let Ok(selector) = Selector::of(&job.spec.selector) else { return };
        for pod in self.owned(job) {
            if selector.matches(&pod.labels) {
                continue;
            }
            match self.pods.release(&job.owner, &pod).await {
                Ok(()) => {
                    let message = format!("Pod {} no longer matches the selector", pod.name());
                    self.pods.normal(&job.owner, "Released", &message);
                }
                Err(error) if matches!(code(&error), Some(404 | 409)) => pass.common.again = true,
                Err(error) => pass.note(Err(error)),
            }
        }
        for orphan in self.orphans(job, &selector) {
            match self.pods.adopt(&job.owner, &orphan).await {
                Ok(true) => {
                    let message = format!("Pod {} matches the selector and had no controller", orphan.name());
                    self.pods.normal(&job.owner, "Adopted", &message);
                }
                // It cannot be adopted now: nothing may ever change in it, so it is looked for again.
                Ok(false) => {
                    self.search_again(job);
                    pass.common.look_after(Some(AFTER_REFUSAL));
                }
                Err(error) => {
                    self.search_again(job);
                    pass.note(Err(error));
                }
            }
        }
    }

    fn search_again(&self, job: &Job) {
        self.memories.with(&job.key, |memory| memory.searched = None);
    }

    /// Pods that nobody controls and that match the selector. All Pods are searched once for each generation, and after news
    /// of such a Pod.
    fn orphans(&self, job: &Job, selector: &Selector) -> Vec<Arc<PodView>> {
        let generation = job.set.metadata.generation;
        let was_searched = self.memories.with(&job.key, |memory| {
            std::mem::replace(&mut memory.searched, generation) == generation && generation.is_some()
        });
        if was_searched == Some(true) {
            return Vec::new();
        }
        self.context.pods.select(|pod| {
            pod.controller.is_none()
                && !pod.is_deleting()
                && !pod.is_finished()
                && pod.namespace() == &*job.key.namespace
                && selector.matches(&pod.labels)
        })
    }

    /// What is told while a built-in DaemonSet of the same name selects Pods of ours, or the other way round: every node
    /// would have two. Nothing is read while it was not there so short a time ago.
    pub(super) async fn built_in(&self, job: &Job, pause: Duration) -> kube::Result<Option<Progress>> {
        let now = clock::now().mono;
        let alone = self.memories.with(&job.key, |memory| memory.alone).flatten();
        if alone.is_some_and(|since| now.saturating_sub(since) < pause) {
            return Ok(None);
        }
        let sets = path::in_namespace("apps", "v1", &job.key.namespace, "daemonsets");
        let request =
            Request::new(sets).get(&job.key.name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let other: Value = match self.context.client.request(request).await {
            Ok(other) => other,
            Err(error) if code(&error) == Some(404) => Value::Null,
            Err(error) => return Err(error),
        };
        let selects = |selector: &Value, template: &Value| {
            let selector = serde_json::from_value(selector.clone()).ok().and_then(|s| Selector::of(&s).ok());
            let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
            let labels = serde_json::from_value(labels).unwrap_or_default();
            selector.is_some_and(|selector| selector.matches(&labels))
        };
        let ours = serde_json::to_value(&job.spec.selector).unwrap_or_default();
        let overlaps = other.is_object()
            && (selects(&other["spec"]["selector"], &job.spec.template) || selects(&ours, &other["spec"]["template"]));
        self.memories.with(&job.key, |memory| memory.alone = (!overlaps).then_some(now));
        Ok(overlaps.then(|| Progress::Stalled {
            reason: "BuiltInDaemonSet".into(),
            message: format!(
                "the built-in DaemonSet {} (apps/v1) selects the same Pods; delete it with --cascade=orphan to have its Pods taken over",
                job.key.name
            ),
        }))
    }

    /// Finds out the revision, and makes a new one for a new template. Nothing is read while the status says that the spec
    /// has been seen and the name fits.
    pub(super) async fn resolve(&self, job: &Job) -> kube::Result<Resolved> {
        let generation = job.generation();
        let remembered = self.memories.with(&job.key, |memory| memory.resolved.clone()).flatten();
        if let Some((of, resolved)) = remembered
            && of == generation
        {
            return Ok(resolved);
        }
        let status = job.set.status.clone().unwrap_or_default();
        let collisions = status.collision_count.unwrap_or(0);
        let data = revision::data(&job.spec.template);
        let name = NAMING.name(&job.spec.name, &data, collisions);
        let is_known = status.observed_generation == generation && status.update_revision == revision::short(&name);
        let resolved = if is_known {
            Resolved { update: name, collisions, same: Vec::new(), known: None }
        } else {
            let chosen = self.revisions.choose(&history(job), &data, collisions).await?;
            let same = self.same_as(job, &chosen.name, &data, &chosen.known).await?;
            let known = Some(Arc::new(chosen.known));
            Resolved { update: chosen.name, collisions: chosen.collisions, same, known }
        };
        self.keep(job, &resolved);
        Ok(resolved)
    }

    /// Hashes of other revisions with the same template.
    async fn same_as(&self, job: &Job, update: &str, data: &Value, known: &[Known]) -> kube::Result<Vec<String>> {
        let others = || known.iter().filter(|known| known.name != update);
        let same = |data: &Value| -> BTreeSet<String> {
            let equal = others().filter(|known| is_same_data(&known.data, data));
            equal.map(|known| revision::short(&known.name).to_owned()).collect()
        };
        let mut hashes = same(data);
        // Those of the built-in DaemonSet have the defaults of the API server.
        if !looks_defaulted(&job.spec.template) && others().next().is_some() {
            let body = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"generateName": "dry-run-"},
                "template": job.spec.template});
            match pod_template::dry_run(&self.context.client, &job.key.namespace, &body).await {
                Ok(answer) => hashes.extend(same(&revision::data(&answer.object["template"]))),
                // All Pods would be replaced on a guess.
                Err(error @ Refused::Unavailable(_)) => {
                    return Err(kube::Error::Service(error.to_string().into()));
                }
                // Its Pods would be refused in the same words; that is told where they are made.
                Err(Refused::Invalid(_) | Refused::Undecodable(_)) => {}
            }
        }
        Ok(hashes.into_iter().collect())
    }

    fn keep(&self, job: &Job, resolved: &Resolved) {
        self.memories.with(&job.key, |memory| memory.resolved = Some((job.generation(), resolved.clone())));
    }

    /// The revisions with their data, and what may be changed in place, if a Pod is to leave a revision.
    pub(super) async fn with_needed(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
    ) -> kube::Result<(Resolved, Allowed)> {
        if seen.pods.iter().all(|pod| pod.is_new) {
            return Ok((resolved.clone(), Allowed::default()));
        }
        let mut resolved = resolved.clone();
        if resolved.known.is_none() {
            let known = self.revisions.list(&history(job)).await?;
            let data = revision::data(&job.spec.template);
            resolved.same = self.same_as(job, &resolved.update, &data, &known).await?;
            resolved.known = Some(Arc::new(known));
            self.keep(job, &resolved);
        }
        let allowed = match job.spec.rolling.in_place {
            true => self.in_place.allowed(&self.context.gates).await?,
            false => Allowed::default(),
        };
        Ok((resolved, allowed))
    }

    /// When every Pod is where it is to be: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(&self, job: &Job, resolved: &Resolved, seen: &Seen) -> kube::Result<()> {
        let Some(known) = &resolved.known else { return Ok(()) };
        let hashes = seen.pods.iter().map(|pod| pod.hash.as_str()).filter(|hash| !hash.is_empty());
        let live: BTreeSet<&str> = hashes.chain([resolved.update.as_str()]).collect();
        let limit = job.spec.revision_history_limit;
        let left = self.revisions.truncate(&job.key.namespace, known, &live, limit).await?;
        let is_settled = seen.pods.iter().all(|pod| revision::is_same(&pod.hash, resolved.hash()));
        if is_settled {
            self.memories.with(&job.key, |memory| memory.waits_in.clear());
        }
        let known = (!is_settled).then(|| Arc::new(left));
        self.keep(job, &Resolved { known, ..resolved.clone() });
        Ok(())
    }

    pub(super) fn observed<'a>(
        &self,
        job: &'a Job,
        resolved: &'a Resolved,
        seen: &'a Seen,
        allowed: Allowed,
    ) -> Observed<'a> {
        let revisions = resolved.known.as_ref().map(|known| known.as_slice()).unwrap_or_default();
        let update = revisions.iter().find(|known| known.name == resolved.update);
        Observed {
            spec: &job.spec,
            nodes: &seen.nodes,
            pods: &seen.pods,
            update: resolved.hash(),
            update_since: update.and_then(|known| known.created),
            revisions,
            allowed,
            failures: &seen.failures,
            lost: &seen.lost,
            now: seen.now,
        }
    }
}
