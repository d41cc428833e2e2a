//! The owner of a NodePodProbe: its Node, with which the garbage collector removes it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{AFTER_WATCHED_CONFLICT, Controller, NodeFacts, lock, node_key};
use crate::{
    api::apps::node_pod_probe::NodePodProbe,
    k8s::time::doubled,
    runtime::{apply, clock, queue::Requeue},
};

/// Until it is tried again after the first failure; twice as long after each further one.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Nodes whose NodePodProbes could not be given their owner. It can be lost.
#[derive(Debug, Default)]
pub(super) struct Unowned(HashMap<Arc<str>, Failures>);

#[derive(Debug)]
struct Failures {
    count: u32,
    /// When it is tried again, in monotonic time.
    due: Duration,
    /// The code of the last answer.
    code: Option<u16>,
}

impl Unowned {
    /// How long it is not to be tried yet.
    fn pause(&self, node: &str, now: Duration) -> Option<Duration> {
        let left = self.0.get(node)?.due.saturating_sub(now);
        (!left.is_zero()).then_some(left)
    }

    /// Notes a failure. Returns the pause before the next attempt, and whether to report it: the first failure, or one with
    /// another code than before.
    fn failed(&mut self, node: &str, code: Option<u16>, now: Duration) -> (Duration, bool) {
        let before = self.0.get(node);
        let (count, is_news) = before.map_or((0, true), |before| (before.count, before.code != code));
        let pause = doubled(FIRST, count, LONGEST);
        self.0.insert(node.into(), Failures { count: count.saturating_add(1), due: now + pause, code });
        (pause, is_news)
    }

    /// It has its owner, or is gone.
    fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }
}

pub(super) fn owner(node: &str, facts: &NodeFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.to_owned(),
        uid: facts.uid.clone(),
        ..OwnerReference::default()
    }
}

impl Controller {
    /// Gives the object of a node its Node as owner, which OpenKruise does not: nothing would remove it with the Node.
    ///
    /// This is a separate write: an admission plugin or a policy may refuse owners, and probes have to change all the same.
    /// After each failure the pause before the next attempt is longer, whatever else happens on the node.
    pub(super) async fn own(&self, node: &str) -> kube::Result<Requeue> {
        let Some(probes) = self.probes.get(&node_key(node)).filter(|probes| !probes.is_owned) else {
            lock(&self.unowned).forget(node);
            return Ok(Requeue::Await);
        };
        if let Some(left) = lock(&self.unowned).pause(node, clock::now().mono) {
            return Ok(Requeue::After(left));
        }
        // Without its Node nobody can own it.
        let Some(found) = self.context.nodes.find(node).await? else { return Ok(Requeue::Await) };
        let meta = &probes.metadata;
        let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version,
            "ownerReferences": [owner(node, &NodeFacts::of(&found))] } });
        let api: Api<NodePodProbe> = Api::all(self.context.client.clone());
        match self.take(api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await) {
            Ok(Some(_)) => {
                lock(&self.unowned).forget(node);
                Ok(Requeue::Await)
            }
            Ok(None) => Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
            // No refusal: the queue tries again.
            Err(error) if !matches!(apply::code(&error), Some(400 | 403 | 422)) => Err(error),
            Err(error) => {
                let (pause, is_news) = lock(&self.unowned).failed(node, apply::code(&error), clock::now().mono);
                if is_news {
                    tracing::warn!(node, %error, "the NodePodProbe cannot be given its Node as owner");
                }
                Ok(Requeue::After(pause))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_for_good_is_tried_seldom_and_said_once() {
        let mut unowned = Unowned::default();
        let mut now = Duration::from_secs(100);
        assert_eq!(unowned.pause("n", now), None);
        for (code, pause, is_news) in [
            (Some(403), 10, true),
            (Some(403), 20, false),
            (Some(403), 40, false),
            (Some(422), 80, true),
            (Some(422), 160, false),
            (Some(403), 320, true),
            (Some(403), 600, false),
            (Some(403), 600, false),
        ] {
            let pause = Duration::from_secs(pause);
            assert_eq!(unowned.failed("n", code, now), (pause, is_news), "{code:?} {pause:?}");
            assert_eq!(unowned.pause("n", now), Some(pause));
            assert_eq!(unowned.pause("other", now), None);
            now += pause;
            assert_eq!(unowned.pause("n", now), None, "it is due");
        }
        unowned.forget("n");
        assert_eq!(unowned.failed("n", Some(403), now), (FIRST, true));
    }
}
