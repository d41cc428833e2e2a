//! One NodeImage: created and deleted with its Node, updated in one patch.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Map, Value, json};

use super::{AFTER_CONFLICT, Controller, lock};
use crate::{
    api::{apps::node_image::NodeImage, labels},
    domain::kinds::image_jobs::{
        job::Job,
        node::{self, GivenUp, NodePlan, ObservedNode},
    },
    k8s::{
        merge_patch,
        node::NodeView,
        node_image::{NodeImageView, Owner, TagView},
        pod::Labels,
        time::{Now, Sighting},
    },
    runtime::{
        apply::{code, is_too_large, said},
        clock,
        events::reference,
        queue::Requeue,
        watches::ObjectKey,
    },
};

impl Controller {
    pub(super) async fn reconcile_node(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let known = self.context.nodes.get(&key.name);
        let node = known.clone().filter(|node| node.can_run_daemon() && !node.is_deleting());
        let Some(image) = self.node_images.get(key) else {
            return match node {
                Some(node) => self.create(&node).await,
                None => Ok(Requeue::Await),
            };
        };
        let is_fake = image.labels.get(labels::FAKE_NODE_IMAGE).is_some();
        if image.is_deleting() {
            return Ok(Requeue::Await);
        }
        if node.is_none() && !is_fake {
            // Where both were made just now the watch of Nodes may be behind. It wakes this again.
            let is_coming = known.is_none() && self.context.nodes.find(&key.name).await?.is_some();
            return if is_coming { Ok(Requeue::Await) } else { self.delete(&image).await };
        }
        self.advance(&image, node.as_deref()).await
    }

    fn api(&self) -> Api<NodeImageView> {
        Api::all(self.context.client.clone())
    }

    /// A Node that has been Ready for a while gets its NodeImage.
    async fn create(&self, node: &NodeView) -> kube::Result<Requeue> {
        let now = clock::now();
        let left = {
            let mut state = lock(&self.state);
            let memory = state.nodes.entry(node.name().into()).or_default();
            if !node.ready {
                memory.ready = None;
                return Ok(Requeue::Await);
            }
            // Without a time it has been so for long.
            let since = node.ready_since.unwrap_or(jiff::Timestamp::UNIX_EPOCH);
            let ready = memory.ready.get_or_insert_with(|| Sighting::found(now, since));
            self.context.settings.images.creation_delay.saturating_sub(ready.age(now))
        };
        if !left.is_zero() {
            return Ok(Requeue::After(left));
        }
        let mut made = NodeImage::default();
        made.metadata.name = Some(node.name().to_owned());
        let own_labels: BTreeMap<String, String> =
            node.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        made.metadata.labels = Some(own_labels).filter(|labels| !labels.is_empty());
        let api: Api<NodeImage> = Api::all(self.context.client.clone());
        match api.create(&PostParams::default(), &made).await {
            Ok(made) => {
                tracing::info!(node = node.name(), "made its NodeImage");
                let view = serde_json::to_value(&made).and_then(serde_json::from_value);
                self.take(view.map_err(kube::Error::SerdeError)?);
                Ok(Requeue::Await)
            }
            // The watch brings it.
            Err(error) if code(&error) == Some(409) => Ok(Requeue::Await),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, image: &NodeImageView) -> kube::Result<Requeue> {
        tracing::info!(node = image.name(), "its Node is gone, deleting its NodeImage");
        let preconditions = Preconditions { uid: Some(image.uid().to_owned()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let api: Api<NodeImage> = Api::all(self.context.client.clone());
        match api.delete(image.name(), &parameters).await {
            Err(error) if code(&error) == Some(409) => {
                if let Some(newer) = self.api().get_opt(image.name()).await? {
                    self.take(newer);
                }
                Ok(Requeue::After(AFTER_CONFLICT))
            }
            Err(error) if code(&error) != Some(404) => Err(error),
            _ => Ok(Requeue::Await),
        }
    }

    /// Takes over the answer to a write, and wakes whom it concerns.
    fn take(&self, view: NodeImageView) {
        if let (old, Some(new)) = self.node_images.upsert(view) {
            self.node_image_changed(old.as_deref(), Some(&new));
        }
    }

    async fn advance(&self, image: &NodeImageView, node: Option<&NodeView>) -> kube::Result<Requeue> {
        let now = clock::now();
        let (pass, begin) = self.pass(image, now);
        let new_labels = node.and_then(|node| label_changes(&image.labels, &node.labels));
        if pass.spec.is_none() && new_labels.is_none() {
            self.settle(image, &pass, &begin);
            let requeue = self.give_up(image, &pass).await?;
            return Ok(if self.has_to_begin(image) { Requeue::After(AFTER_CONFLICT) } else { requeue });
        }
        let mut patch = json!({"metadata": {"uid": image.uid(), "resourceVersion": image.metadata.resource_version}});
        if let Some(changes) = new_labels {
            patch["metadata"]["labels"] = changes;
        }
        if let Some(spec) = &pass.spec {
            let json = |spec| serde_json::to_value(spec).map_err(kube::Error::SerdeError);
            patch["spec"] = merge_patch::diff(&json(&image.spec())?, &json(spec)?).unwrap_or_default();
        }
        match self.api().patch(image.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(newer) => {
                tracing::debug!(node = image.name(), jobs = begin.len(), "wrote its NodeImage");
                self.metrics.entries.inc_by(u64::try_from(begin.len() - pass.refused.len()).unwrap_or(0));
                // First the node's new entries, then that they are settled: in between a job sees it twice, never not at all.
                self.take(newer);
                self.settle(image, &pass, &begin);
                // The answer has put the node into the queue once more.
                Ok(Requeue::Await)
            }
            Err(error) if code(&error) == Some(409) => {
                if let Some(newer) = self.api().get_opt(image.name()).await? {
                    self.take(newer);
                }
                Ok(Requeue::After(AFTER_CONFLICT))
            }
            Err(error) if code(&error) == Some(404) => {
                lock(&self.state).to_begin.remove(image.name());
                Ok(Requeue::Await)
            }
            Err(error) if is_too_large(&error) => self.too_large(image, &begin, error),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                // What the API server does not take it will not take the next time either.
                let why = format!("its NodeImage could not be written: {}", status.message);
                let refused = begin.iter().map(|job| (job.uid.clone(), why.clone())).collect();
                self.settle(image, &NodePlan { refused, ..NodePlan::default() }, &begin);
                Err(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    }

    /// After a write that was too large. It would be refused for ever: what goes is written alone, then one job at a time,
    /// and a job that does not fit alone is refused.
    fn too_large(&self, image: &NodeImageView, begin: &[Arc<Job>], error: kube::Error) -> kube::Result<Requeue> {
        if let [job] = begin {
            let why = format!("its NodeImage would be too large: {}", said(&error));
            let refused = vec![(job.uid.clone(), why)];
            self.settle(image, &NodePlan { refused, ..NodePlan::default() }, begin);
        }
        lock(&self.state).nodes.entry(image.name().into()).or_default().batch =
            Some(if begin.is_empty() { 1 } else { 0 });
        if begin.is_empty() && !self.has_to_begin(image) {
            return Err(error);
        }
        tracing::warn!(node = image.name(), jobs = begin.len(), %error, "its NodeImage would be too large");
        Ok(Requeue::After(AFTER_CONFLICT))
    }

    /// Whether jobs are to begin on the node.
    fn has_to_begin(&self, image: &NodeImageView) -> bool {
        lock(&self.state).to_begin.contains_key(image.name())
    }

    fn pass(&self, image: &NodeImageView, now: Now) -> (NodePlan, Vec<Arc<Job>>) {
        let mut state = lock(&self.state);
        let mut memory = state.nodes.remove(image.name()).unwrap_or_default();
        let to_begin = state.to_begin.get(image.name());
        let batch = memory.batch.filter(|_| to_begin.is_some());
        let begin: Vec<Arc<Job>> =
            to_begin.into_iter().flat_map(BTreeMap::values).take(batch.unwrap_or(usize::MAX)).cloned().collect();
        memory.batch = batch.map(|_| 1);
        // Only what has not ended is waited for.
        let open = |tag: &&TagView| tag.current().is_none_or(|status| !status.phase.has_ended());
        let mut entries = std::mem::take(&mut memory.entries);
        for (name, tag) in image.entries().filter(|(_, tag)| open(tag)) {
            let at = (name.clone(), tag.tag.clone(), tag.version);
            let seen = entries.remove(&at).unwrap_or_else(|| Sighting::found(now, tag.created_at.unwrap_or(now.wall)));
            memory.entries.insert(at, seen);
        }
        let age = |name: &str, tag: &TagView| {
            let at = (name.into(), tag.tag.clone(), tag.version);
            memory.entries.get(&at).map_or(Duration::ZERO, |seen| seen.age(now))
        };
        let owner = |owner: &Owner| self.wants(&state, owner);
        let default_ttl = self.context.settings.images.default_ttl;
        let pass = node::pass(&ObservedNode { node: image, begin: &begin, owner: &owner, age: &age, default_ttl }, now);
        state.nodes.insert(image.name().into(), memory);
        (pass, begin)
    }

    /// What the jobs had left for the node is done, or cannot be.
    fn settle(&self, image: &NodeImageView, pass: &NodePlan, begin: &[Arc<Job>]) {
        if begin.is_empty() {
            return;
        }
        let now = clock::now().mono;
        let mut state = lock(&self.state);
        if let Some(to_begin) = state.to_begin.get_mut(image.name()) {
            for job in begin {
                to_begin.remove(&job.uid);
            }
            if to_begin.is_empty() {
                state.to_begin.remove(image.name());
            }
        }
        for (uid, why) in &pass.refused {
            let Some(job) = begin.iter().find(|job| job.uid == *uid) else { continue };
            let key = super::key_of(job);
            if let Some(memory) = state.jobs.get_mut(&key) {
                memory.refused.insert(image.name().to_owned(), (why.clone(), now));
            }
            self.job_queue.add(key);
        }
    }

    /// Ends entries whose daemon says nothing; says when to look again.
    async fn give_up(&self, image: &NodeImageView, pass: &NodePlan) -> kube::Result<Requeue> {
        if pass.given_up.is_empty() {
            return Ok(pass.next.map_or(Requeue::Await, Requeue::After));
        }
        let api: Api<NodeImage> = Api::all(self.context.client.clone());
        let Some(live) = api.get_opt(image.name()).await? else { return Ok(Requeue::Await) };
        let before = live.status.clone().unwrap_or_default();
        let after = node::give_up(&live.spec, &before, &pass.given_up, clock::now());
        let json = |status: &_| serde_json::to_value(status).map_err(kube::Error::SerdeError);
        let recorded = live.status.as_ref().map_or(Ok(json!({})), json)?;
        let Some(changes) = merge_patch::diff(&recorded, &json(&after)?) else { return Ok(Requeue::Await) };
        let patch = json!({"metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}, "status": changes});
        match self.api().patch_status(image.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(newer) => {
                for given_up in &pass.given_up {
                    self.report_given_up(image, given_up);
                }
                self.take(newer);
                Ok(Requeue::Await)
            }
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(Requeue::After(AFTER_CONFLICT)),
            Err(error) => Err(error),
        }
    }

    fn report_given_up(&self, image: &NodeImageView, given_up: &GivenUp) {
        let GivenUp { image: name, tag, version, message, owners } = given_up;
        tracing::warn!(node = image.name(), image = name, tag, version, message, "gave up on an entry");
        self.metrics.given_up.inc();
        let separator = if tag.contains(':') { '@' } else { ':' };
        let text = format!("image {name}{separator}{tag} on node {}: {message}", image.name());
        let about_node = std::iter::once(reference(image));
        let about: Vec<ObjectReference> = owners.iter().cloned().chain(about_node).collect();
        for about in about {
            self.node_events.warning(&about, "PullImageFailed", &text);
        }
    }
}

/// The merge patch that makes labels those of the Node.
fn label_changes(now: &Labels, wanted: &Labels) -> Option<Value> {
    let mut changes = Map::new();
    for (key, value) in wanted.iter().filter(|(key, value)| now.get(key) != Some(value)) {
        changes.insert(key.to_owned(), value.into());
    }
    for (key, _) in now.iter().filter(|(key, _)| wanted.get(key).is_none()) {
        // Our own mark is not the Node's.
        if key != labels::FAKE_NODE_IMAGE {
            changes.insert(key.to_owned(), Value::Null);
        }
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}
