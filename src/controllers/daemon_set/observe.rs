//! Everything that a pass looks at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::{Controller, Job, KIND, Pass};
use crate::{
    api::labels,
    controllers::{BY_NODE, pod_set::Aside},
    domain::{
        kinds::daemon_set::{
            away::{self, Departures},
            make,
            plan::{self, Observed, Outage, Turn},
            pod::{self, Newest, Node, Pod},
            spec::Spec,
        },
        node::backoff::Failures,
        pod::inplace::Allowed,
        workload::{
            make::{revision_annotations, revision_labels},
            owner::OwnerRef,
            revisions::is_same_data,
            turns::Turns,
        },
    },
    k8s::{
        node::NodeView, pod::PodView, pod_template::looks_defaulted, revision, selector::Selector, shared::Text,
        time::Now,
    },
    runtime::{
        clock,
        pod_template::{self, Refused},
        revisions::{self, History, Naming, Recorded},
        wake,
        watches::ObjectKey,
    },
};

/// Revisions of DaemonSets have the hash in the label that Pods have it in.
const NAMING: Naming = Naming { hash_label: labels::CONTROLLER_REVISION_HASH, hash: revision::hash_of };

/// The revision that a set goes to.
#[derive(Clone, Default)]
pub(super) struct Resolved {
    /// It, and those that there are besides. The one to come from is that which the status names.
    pub(super) revisions: revisions::Resolved,
    /// Hashes of other revisions with the same template: duplicates, and those of the built-in DaemonSet, which has written
    /// the defaults of the API server into its own. None while nobody has looked.
    pub(super) same: Option<Vec<String>>,
}

impl Resolved {
    /// The one that the status names.
    pub(super) fn recorded(job: &Job) -> Self {
        let hash = job.set.status.as_ref().map(|status| status.update_revision.as_str()).unwrap_or_default();
        let update = revision::name(&job.spec.name, hash);
        Self { revisions: revisions::Resolved { update, ..revisions::Resolved::default() }, same: None }
    }

    /// The hash of the revision.
    pub(super) fn hash(&self) -> &str {
        revision::short(&self.revisions.update)
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
    /// Nodes that are not Ready, as they were when that was seen first.
    outages: BTreeMap<String, Outage>,
    /// What was refused.
    turns: Turns<Turn>,
    /// How many Pods had been made for a node before anything was looked at.
    pub(super) made: Arc<BTreeMap<Text, u32>>,
    now: Now,
}

/// What is remembered of nodes and Pods.
#[derive(Default)]
struct Remembered {
    failures: Failures,
    outages: BTreeMap<String, Outage>,
    /// How the last Pods of nodes went.
    departures: Departures,
    turns: Turns<Turn>,
}

fn history(job: &Job) -> History<'_> {
    History {
        owner: &job.owner,
        selector: &job.spec.selector,
        naming: NAMING,
        labels: revision_labels(&job.spec.template),
        annotations: revision_annotations(&job.set.metadata),
        newest_annotations: Map::new(),
    }
}

impl Controller {
    /// Nodes and the set's Pods, as the stores have them.
    pub(super) fn see(&self, job: &Job, resolved: &Resolved) -> Seen {
        let now = clock::now();
        let made = self.common.memories.with(&job.key, |memory| memory.made.clone()).unwrap_or_default();
        let mut nodes: Vec<Node> = self.context.nodes.list().iter().map(|node| Node::of(node, &job.spec)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let newest = Newest { hash: resolved.hash(), same: resolved.same.as_deref().unwrap_or_default() };
        let (mut pods, mut views) = (Vec::new(), BTreeMap::new());
        for view in self.common.owned(&job.owner) {
            if let Some(pod) = Pod::of(&view, &job.spec, newest, now) {
                pods.push(Arc::new(pod));
                views.insert(view.name().to_owned(), view);
            }
        }
        pod::sort(&mut pods);
        let Remembered { failures, outages, departures, turns } = self.remembered(job, &nodes, &pods);
        away::stay_away(&mut nodes, &pods, &departures, now.wall);
        Seen { nodes, pods, views, failures, outages, turns, made, now }
    }

    /// The Pods that a set controls on one node.
    pub(super) fn owned_on(&self, owner: &OwnerRef, node: &str) -> Vec<Arc<PodView>> {
        let is_one = |pod: &PodView| pod.namespace() == owner.namespace && owner.controls(pod);
        self.context.pods.select_by_index(&BY_NODE, node, is_one)
    }

    /// Notes how a Pod went, as the watch reports it: it may be gone before a pass has seen it going.
    pub(super) fn note_gone(&self, pod: &PodView) {
        let Some(key) = wake::owner_of(pod, KIND) else { return };
        let Some(held) = self.sets.get(&key) else { return };
        let owner = OwnerRef::of(held.as_ref());
        if !owner.controls(pod) {
            return;
        }
        let Ok(spec) = self.outline(&key, &held) else { return };
        self.leave_name(&key, &spec, pod);
        if !spec.stays_away {
            return;
        }
        let has_another = self.owned_on(&owner, pod.node_meant()).iter().any(|other| other.is_active());
        let is_from_list = self.context.pods.is_listing();
        if !has_another {
            self.common.memories.with(&key, |memory| away::note_gone(&mut memory.departures, pod, is_from_list));
        }
    }

    /// The next Pod of a node has another name than the one that is gone, also if an earlier manager had made that one.
    pub(super) fn leave_name(&self, key: &ObjectKey, spec: &Spec, pod: &PodView) {
        let (node, label) = (pod.node_meant(), pod.labels.get(labels::CONTROLLER_REVISION_HASH));
        let hash = revision::short(label.unwrap_or_default());
        self.common.memories.with(key, |memory| {
            let made = memory.made_for(node);
            let is_name = |hash: &str| make::pod_name(spec, node, hash, made) == pod.name();
            // An update in place changes the label and not the name: the next Pod has that of the update revision.
            let is_next = memory.resolved.as_ref().is_some_and(|resolved| is_name(resolved.hash()));
            if !node.is_empty() && (is_name(hash) || is_next) {
                memory.has_made(node, made + 1);
            }
        });
    }

    /// One node, and the set's Pods for it.
    pub(super) fn see_node(&self, job: &Job, resolved: &Resolved, node: &NodeView) -> Seen {
        let now = clock::now();
        let remembered = self.common.memories.with(&job.key, |memory| {
            let is_current = memory.failures.0 == job.generation();
            let failures = if is_current { memory.failures.1.clone() } else { Failures::default() };
            (memory.made.clone(), failures, memory.outages.clone(), memory.departures.clone())
        });
        let (made, failures, outages, departures) = remembered.unwrap_or_default();
        let newest = Newest { hash: resolved.hash(), same: resolved.same.as_deref().unwrap_or_default() };
        let views = self.owned_on(&job.owner, node.name());
        let of = |view: &Arc<PodView>| Pod::of(view, &job.spec, newest, now).map(Arc::new);
        let mut pods: Vec<Arc<Pod>> = views.iter().filter_map(of).collect();
        pod::sort(&mut pods);
        let mut nodes = vec![Node::of(node, &job.spec)];
        away::stay_away(&mut nodes, &pods, &departures, now.wall);
        let views = views.into_iter().map(|view| (view.name().to_owned(), view)).collect();
        Seen { nodes, pods, views, failures, outages, turns: Turns::default(), made, now }
    }

    /// What is remembered of nodes. What is over is forgotten.
    fn remembered(&self, job: &Job, nodes: &[Node], pods: &[Arc<Pod>]) -> Remembered {
        let generation = job.generation();
        let goes_on = |name: &String, outage: &Outage| {
            let found = nodes.binary_search_by(|node| node.name.cmp(name)).ok();
            found.and_then(|at| nodes[at].not_ready_since).is_some_and(|now| now.as_second() == outage.since)
        };
        let remembered = self.common.memories.with(&job.key, |memory| {
            memory.common.pods = pods.len().max(nodes.len());
            if memory.failures.0 != generation {
                memory.failures = (generation, Failures::default());
            }
            let is_there = |name: &str| nodes.binary_search_by(|node| node.name.as_str().cmp(name)).is_ok();
            if !memory.made.keys().all(|name| is_there(name)) {
                Arc::make_mut(&mut memory.made).retain(|name, _| is_there(name));
            }
            memory.departures.retain(|name, _| is_there(name));
            memory.outages.retain(|name, outage| goes_on(name, outage));
            let names: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
            memory.turns.retain(|turn| match turn {
                Turn::Node(name) => is_there(name),
                Turn::Pod(name) => names.contains(name.as_str()),
            });
            if job.spec.stays_away {
                let key = |pod: &Pod| ObjectKey::new(&job.key.namespace, &pod.name);
                let is_held = |pod: &Pod| self.context.pods.get(&key(pod)).is_some();
                away::note_leaving(&mut memory.departures, nodes, pods, is_held);
            }
            Remembered {
                failures: memory.failures.1.clone(),
                outages: memory.outages.clone(),
                departures: memory.departures.clone(),
                turns: memory.turns.clone(),
            }
        });
        remembered.unwrap_or_default()
    }

    /// Adopts and releases Pods. One that cannot be keeps nothing from being done.
    pub(super) async fn claim(&self, job: &Job, pass: &mut Pass) {
        let Ok(selector) = Selector::of(&job.spec.selector) else { return };
        let of = (&job.key, &job.owner, job.set.metadata.generation);
        self.common.claim(of, &selector, |pod| !pod.is_finished(), pass).await;
    }

    /// Why nothing may be made or deleted: with a built-in DaemonSet every node would have two Pods.
    pub(super) async fn aside(&self, job: &Job) -> Option<Aside> {
        let of = (&job.spec.selector, &job.spec.template);
        self.common.aside(&job.key, of, job.set.metadata.generation).await
    }

    /// Finds out the revision, and makes a new one for a new template. Nothing is read while the status says that the spec
    /// has been seen and the name fits.
    pub(super) async fn resolve(&self, job: &Job) -> kube::Result<Resolved> {
        let status = job.set.status.clone().unwrap_or_default();
        let update = match status.update_revision.as_str() {
            "" => String::new(),
            hash => revision::name(&job.spec.name, hash),
        };
        let recorded = Recorded {
            generation: job.generation(),
            observed_generation: status.observed_generation,
            current: &update,
            update: &update,
            collisions: status.collision_count.unwrap_or(0),
        };
        let remembered = self.common.memories.with(&job.key, |memory| memory.resolved.clone()).flatten();
        let (before, same) = remembered.map(|Resolved { revisions, same }| (revisions, same)).unzip();
        let same = before.as_ref().filter(|before| before.generation == recorded.generation).and(same).flatten();
        let revisions = self.revisions.resolve(&history(job), &job.spec.template, recorded, before).await?;
        let resolved = Resolved { revisions, same };
        self.keep(job, &resolved);
        Ok(resolved)
    }

    /// Hashes of other revisions with the same template.
    async fn same_as(&self, job: &Job, revisions: &revisions::Resolved) -> kube::Result<Vec<String>> {
        let others = || revisions.all().iter().filter(|known| known.name != revisions.update);
        let same = |data: &Value| -> BTreeSet<String> {
            let equal = others().filter(|known| is_same_data(&known.data, data));
            equal.map(|known| revision::short(&known.name).to_owned()).collect()
        };
        let mut hashes = same(&revision::data(&job.spec.template));
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
                // Its Pods would be refused in the same words; that is reported where they are created.
                Err(Refused::Invalid(_) | Refused::Undecodable(_)) => {}
            }
        }
        Ok(hashes.into_iter().collect())
    }

    fn keep(&self, job: &Job, resolved: &Resolved) {
        self.common.memories.with(&job.key, |memory| memory.resolved = Some(resolved.clone()));
    }

    /// The revisions with their data, which of them have the newest template, and what may be changed in place, if a Pod is
    /// to leave a revision.
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
        if resolved.revisions.known.is_none() || resolved.same.is_none() {
            let revisions = resolved.revisions.clone();
            resolved.revisions = self.revisions.with_known(&history(job), &job.spec.template, revisions).await?;
            resolved.same = Some(self.same_as(job, &resolved.revisions).await?);
            self.keep(job, &resolved);
        }
        let allowed = match job.spec.rolling.in_place {
            true => self.common.in_place.allowed(&self.context.gates).await?,
            false => Allowed::default(),
        };
        Ok((resolved, allowed))
    }

    /// Deletes revisions beyond the history limit. When every Pod is where it is to be, the others are forgotten.
    pub(super) async fn tidy(&self, job: &Job, resolved: &Resolved, seen: &Seen) -> kube::Result<()> {
        if resolved.revisions.known.is_none() {
            return Ok(());
        }
        let pods = seen.pods.iter().map(|pod| pod.hash.as_str());
        let limit = job.spec.revision_history_limit;
        let revisions = self.revisions.tidy(&job.key.namespace, &resolved.revisions, pods, limit).await?;
        if revisions.known.is_none() {
            self.common.memories.with(&job.key, |memory| memory.common.waits_in.clear());
        }
        self.keep(job, &Resolved { revisions, ..resolved.clone() });
        Ok(())
    }

    pub(super) fn observed<'a>(
        &self,
        job: &'a Job,
        resolved: &'a Resolved,
        seen: &'a Seen,
        allowed: Option<Allowed>,
    ) -> Observed<'a> {
        let revisions = resolved.revisions.all();
        Observed {
            spec: &job.spec,
            nodes: &seen.nodes,
            pods: &seen.pods,
            update: resolved.hash(),
            update_since: plan::not_begun_at(revisions),
            revisions,
            allowed,
            failures: &seen.failures,
            outages: &seen.outages,
            turns: &seen.turns,
            now: seen.now,
        }
    }
}
