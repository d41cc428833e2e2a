//! A node and its Pods: what is found goes on the Pods, what is to be probed into its NodePodProbe.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use kube::{
    Api,
    api::{GetParams, Patch, PatchParams, Request},
};
use serde_json::Value;

use super::{
    Controller, LOOK_AGAIN, NodeFacts, lock,
    marker::{is_deleting, is_noted},
    node_key,
    spec::{LeftOut, Plan, Wanted},
    view::NodeProbes,
};
use crate::{
    api::apps::pod_probe_marker::{MarkedProbe, PodProbeMarker},
    domain::node::probes::{
        FAILED, SUCCEEDED, UNKNOWN, entries, full_name, is_eligible,
        marks::{self, Gone, Keys, MarkedResult},
        name_of, parts_of, selection,
    },
    k8s::{
        path,
        pod::{PodObject, PodView},
    },
    runtime::{apply, queue::Requeue, watches::ObjectKey},
};

/// A Pod of a node and what it is to be brought to.
struct Judged<'a> {
    /// The PodProbeMarkers that probe it.
    markers: Vec<&'a PodProbeMarker>,
    /// PodProbeMarkers whose probes stay as they are for now.
    held: Vec<Box<str>>,
    outcomes: Vec<MarkedResult<'a>>,
    /// What it may still carry and nobody wants.
    gone: Gone,
}

/// What a Pod is to be brought to.
fn judge<'a>(
    pod: &PodView,
    probes: Option<&'a NodeProbes>,
    (markers, unreadable): (&'a [Arc<PodProbeMarker>], &[Arc<str>]),
    left_out: &LeftOut,
    is_virtual: bool,
) -> Judged<'a> {
    let fits = |marker: &PodProbeMarker, probe: &str| !left_out.has(pod.uid(), &full_name(name_of(marker), probe));
    let entry = probes.and_then(|probes| probes.entry(pod.uid()));
    let has_entry = |marker: &PodProbeMarker| {
        let mut names = entry.into_iter().flat_map(|entry| &entry.probes);
        names.any(|probe| parts_of(&probe.name).is_some_and(|(name, _)| name == name_of(marker)))
    };
    let mut judged = Judged { markers: Vec::new(), held: Vec::new(), outcomes: Vec::new(), gone: Gone::default() };
    let (mut wanted, mut gone, mut is_noted_all) = (Keys::default(), Keys::default(), true);
    // The Pod itself shows it, as its NodePodProbe may be gone.
    let mut cleaned: BTreeSet<String> = marks::marked_by(pod).map(str::to_owned).collect();
    cleaned.retain(|name| !unreadable.iter().any(|left_alone| **left_alone == **name));
    for marker in markers {
        let marker = marker.as_ref();
        let selected = selection::selects(marker, &pod.labels);
        if selected && !is_deleting(marker) {
            // Nothing stays of a probe that is left out.
            let (current, noted) = (Keys::of_some(marker, |name| fits(marker, name)), Keys::noted(marker));
            wanted.add(&current);
            cleaned.remove(name_of(marker));
            judged.markers.push(marker);
            if !is_noted(marker) {
                is_noted_all = false;
                wanted.add(&noted);
                continue;
            }
            gone.add(&noted.without(&current));
            let probes_in = marker.spec.probes.iter().filter(|probe| fits(marker, &probe.name));
            judged.outcomes.extend(probes_in.filter_map(|probe| match is_virtual {
                true => of_condition(marker, probe, pod),
                false => of_state(marker, probe, probes?, pod),
            }));
        } else if has_entry(marker) || cleaned.contains(name_of(marker)) || (selected && is_deleting(marker)) {
            cleaned.insert(name_of(marker).to_owned());
            gone.add(&Keys::noted(marker));
            // While it is being deleted its spec can still be changed, by users who may not write its keys on Pods.
            if !is_deleting(marker) {
                gone.add(&Keys::of(marker));
            }
        }
    }
    judged.gone = Gone { keys: gone.without(&wanted), markers: cleaned };
    if !is_noted_all {
        // Nothing is added before everything is noted; what goes does not wait for that.
        judged.outcomes.clear();
        judged.held = judged.markers.drain(..).map(|marker| name_of(marker).into()).collect();
    }
    judged.held.extend(unreadable.iter().map(|name| Box::<str>::from(&**name)));
    judged
}

/// The result that the daemon reported.
fn of_state<'a>(
    marker: &'a PodProbeMarker,
    probe: &'a MarkedProbe,
    probes: &'a NodeProbes,
    pod: &PodView,
) -> Option<MarkedResult<'a>> {
    let state = probes.state(pod.uid(), &full_name(name_of(marker), &probe.name))?;
    Some(MarkedResult {
        marker,
        probe,
        state: &state.state,
        message: &state.message,
        probed: state.probed,
        transition: state.transition,
        writes_condition: true,
    })
}

/// The result of a probe of a serverless Pod: somebody else probes, and writes the condition.
fn of_condition<'a>(marker: &'a PodProbeMarker, probe: &'a MarkedProbe, pod: &PodView) -> Option<MarkedResult<'a>> {
    let condition = pod.condition(&probe.pod_condition_type)?;
    let state = match condition.status.as_str() {
        "True" => SUCCEEDED,
        "False" => FAILED,
        _ => UNKNOWN,
    };
    Some(MarkedResult { marker, probe, state, message: "", probed: None, transition: None, writes_condition: false })
}

impl Controller {
    /// Brings the Pods of a node to the results of their probes, then its NodePodProbe to what has to be probed.
    pub(super) async fn reconcile_node(&self, node: &str) -> kube::Result<Requeue> {
        // Before anything is read: what becomes outdated meanwhile is for the next pass.
        let outdated = self.outdated_on(node);
        let probes = self.probes.get(&node_key(node));
        let mut keys = lock(&self.index).pods_on(node);
        for entry in probes.iter().flat_map(|probes| &probes.entries) {
            let key = ObjectKey::new(&entry.namespace, &entry.name);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            self.is_up_to_date(node, &outdated, &HashSet::new());
            self.forget_left_out(node);
            return self.own(node).await;
        }
        let facts = self.context.nodes.find(node).await?.as_deref().map(NodeFacts::of);
        let is_gone = facts.is_none();
        // What is left on its Pods, and its entries, still go, so that nothing waits for them.
        let facts = facts.unwrap_or_default();
        let left_out = self.left_out_on(node);
        let (mut wanted, mut left_alone): (Vec<Wanted>, HashSet<String>) = Default::default();
        let mut unclean: HashSet<Arc<str>> = HashSet::new();
        let mut failure = None;
        // On virtual nodes somebody else probes. In the namespace of the installation nobody does: a policy refuses it.
        let is_ours = |key: &&ObjectKey| key.namespace == self.context.namespace;
        for key in keys.iter().filter(|key| (!facts.is_virtual || self.serverless) && !is_ours(key)) {
            let Some(pod) = self.context.pods.get(key).filter(|pod| &*pod.node_name == node && is_eligible(pod)) else {
                continue;
            };
            let (markers, unreadable) = self.markers_in(&key.namespace);
            let judged = judge(&pod, probes.as_deref(), (&markers, &unreadable), &left_out, facts.is_virtual);
            let (is_clean, marked) = self.mark(&pod, &judged).await;
            let entry = match is_clean {
                true if facts.is_virtual => continue,
                true => self.entry(&pod, judged).await.map(Some),
                false => Ok(None),
            };
            if let Err(error) = &marked {
                tracing::warn!(pod = %key, %error, "the results of its probes cannot be shown on this Pod");
            }
            if !is_clean {
                unclean.insert(key.namespace.clone());
            }
            match (entry, marked) {
                (Ok(Some(entry)), marked) => {
                    wanted.push(entry);
                    failure = marked.err().or(failure);
                }
                // One Pod that cannot be written does not hold up the others.
                (Ok(None), Err(error)) | (Err(error), _) => {
                    left_alone.insert(pod.uid().to_owned());
                    failure = Some(error);
                }
                (Ok(None), Ok(())) => drop(left_alone.insert(pod.uid().to_owned())),
            }
        }
        self.is_up_to_date(node, &outdated, &unclean);
        let only_namespace = self.context.only_namespace.as_deref();
        let (probes, left_alone) = (probes.as_deref(), &left_alone);
        let plan = Plan { node, facts: &facts, probes, wanted, left_alone, only_namespace };
        let written = match self.write_spec(plan).await? {
            Requeue::Await => self.own(node).await?,
            later @ Requeue::After(_) => later,
        };
        // A node that comes back causes no event.
        let written = if is_gone { Requeue::After(LOOK_AGAIN) } else { written };
        failure.map_or(Ok(written), Err)
    }

    /// PodProbeMarkers of which Pods of this node may carry what is not wanted any more.
    fn outdated_on(&self, node: &str) -> Vec<ObjectKey> {
        let outdated = lock(&self.outdated);
        outdated.iter().filter(|(_, (_, nodes))| nodes.contains(node)).map(|(marker, _)| marker.clone()).collect()
    }

    /// No Pod of the node carries what these PodProbeMarkers do not want any more, but for those of some namespaces.
    fn is_up_to_date(&self, node: &str, markers: &[ObjectKey], unclean: &HashSet<Arc<str>>) {
        let mut outdated = lock(&self.outdated);
        for marker in markers.iter().filter(|marker| !unclean.contains(&marker.namespace)) {
            if let Some((_, nodes)) = outdated.get_mut(marker)
                && nodes.remove(node)
                && nodes.is_empty()
            {
                self.marker_queue.add(marker.clone());
            }
        }
    }

    /// Writes the results to the Pod, unless they were written before. Returns whether the Pod carries nothing that nobody
    /// wants, and the error of a write that failed.
    async fn mark(&self, pod: &PodView, judged: &Judged<'_>) -> (bool, kube::Result<()>) {
        let Judged { outcomes, gone, .. } = judged;
        if outcomes.is_empty() && gone.is_nothing(pod) {
            return (true, Ok(()));
        }
        let fingerprint = marks::fingerprint(outcomes, gone);
        if lock(&self.applied).get(pod.uid()) == Some(&fingerprint) {
            return (true, Ok(()));
        }
        let Err(error) = self.bring(pod, outcomes, gone, fingerprint).await else { return (true, Ok(())) };
        // What goes does not wait for room for what comes.
        let is_clean = gone.is_nothing(pod)
            || !outcomes.is_empty() && self.bring(pod, &[], gone, marks::fingerprint(&[], gone)).await.is_ok();
        (is_clean, Err(error))
    }

    async fn bring(
        &self,
        pod: &PodView,
        outcomes: &[MarkedResult<'_>],
        gone: &Gone,
        fingerprint: u64,
    ) -> kube::Result<()> {
        let Some(live) = self.read(pod).await? else { return Ok(()) };
        if let Some(patch) = marks::patch(&live, outcomes, gone) {
            let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), pod.namespace());
            match api.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(changed) => {
                    self.context.pods.upsert(changed.into());
                }
                // It is gone: news of that is on the way.
                Err(error) if apply::code(&error) == Some(404) => return Ok(()),
                Err(error) => return Err(error),
            }
            tracing::info!(pod = %ObjectKey::of(pod), results = ?shown(outcomes), "results of probes shown");
        }
        lock(&self.applied).insert(pod.uid().into(), fingerprint);
        Ok(())
    }

    /// The Pod in full, at least as new as the view of it; from the API server's memory.
    async fn read(&self, pod: &PodView) -> kube::Result<Option<Value>> {
        let get = GetParams::at(pod.resource_version().unwrap_or("0"));
        let pods = Request::new(path::pods(pod.namespace()));
        let request = pods.get(pod.name(), &get).map_err(kube::Error::BuildRequest)?;
        match self.context.client.request::<Value>(request).await {
            Err(error) if apply::code(&error) == Some(404) => Ok(None),
            other => other.map(|live| Some(live).filter(|live| live["metadata"]["uid"] == *pod.uid())),
        }
    }

    /// What is probed in the Pod.
    async fn entry(&self, pod: &PodView, judged: Judged<'_>) -> kube::Result<Wanted> {
        let mut ports = lock(&self.ports).get(pod.uid()).cloned();
        if ports.is_none() && entries::needs_ports(&judged.markers) {
            let read = self.read(pod).await?.as_ref().map(entries::ports_of).unwrap_or_default();
            ports = Some(lock(&self.ports).entry(pod.uid().into()).or_insert(Arc::new(read)).clone());
        }
        let (entry, left_out) = entries::entry(pod, &judged.markers, &ports.unwrap_or_default());
        Ok(Wanted { entry, left_out, held: judged.held })
    }
}

/// For the log.
fn shown(outcomes: &[MarkedResult<'_>]) -> Vec<String> {
    outcomes.iter().map(|o| format!("{}={}", full_name(name_of(o.marker), &o.probe.name), o.state)).collect()
}
