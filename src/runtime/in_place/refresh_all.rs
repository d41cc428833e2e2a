//! The Pods of one workload in one pass: each one's own state is brought up to date.

use std::{sync::Arc, time::Duration};

use super::{InPlace, Refreshed, Refreshing, Waiting};
use crate::{
    domain::pod::refresh::{self, Refresh},
    k8s::{pod::PodView, time::sooner},
    runtime::{clock, queue::Queue, slow_start::each, watches::ObjectKey},
};

/// What came of it.
#[derive(Debug, Default)]
pub struct AllRefreshed {
    /// Something was written.
    pub written: bool,
    /// When to look again.
    pub look: Option<Duration>,
    /// Pods that were read as a whole and have to wait: the UID of each, and the version that was read.
    pub waits: Vec<(String, String)>,
    /// The first failure. It keeps no other Pod from being refreshed.
    pub failure: Option<kube::Error>,
}

impl InPlace {
    /// Brings each active Pod's own state up to date: its gates, its lifecycle state, the next batch of its update. `by` is by
    /// what a Pod is refreshed, `waits_in` the version in which the Pod with a UID was read as a whole before and had to wait.
    /// A Pod that needs nothing but a write of its status goes into the queue `beside`, if there is one, and the pass does not
    /// wait for it.
    pub async fn refresh_all<'a>(
        &self,
        views: impl Iterator<Item = &'a Arc<PodView>>,
        by: impl Fn(&PodView) -> Refreshing<'a>,
        waits_in: impl Fn(&str) -> Option<String>,
        beside: Option<&Queue<ObjectKey>>,
    ) -> AllRefreshed {
        let now = clock::now();
        let (by, waits_in) = (&by, &waits_in);
        let mut all = AllRefreshed::default();
        let mut work: Vec<(Arc<PodView>, Refresh)> = Vec::new();
        for view in views.filter(|view| view.is_active()) {
            let of = by(view);
            match (refresh::refresh(view, None, of.lifecycle, of.update_revision, now), beside) {
                (Refresh::Nothing, _) => {}
                (Refresh::Wait { after, for_what }, _) => {
                    tracing::debug!(namespace = view.namespace(), pod = view.name(), for_what, "waits");
                    all.look = sooner(all.look, after);
                }
                (Refresh::Status(_), Some(queue)) => queue.add(ObjectKey::of(view.as_ref())),
                (needed, _) => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed)| async move {
            let waits_in = waits_in(view.uid());
            let refreshed = self.refresh(by(&view), &view, needed, waits_in.as_deref(), now).await?;
            Ok::<_, kube::Error>((view, refreshed))
        })
        .await;
        all.failure = failure;
        for (view, refreshed) in done {
            match refreshed {
                Refreshed::Nothing => {}
                Refreshed::Written => all.written = true,
                Refreshed::Later(after) => all.look = sooner(all.look, Some(after)),
                Refreshed::Waits(Waiting { version, look }) => {
                    all.look = sooner(all.look, look);
                    all.waits.push((view.uid().to_owned(), version));
                }
            }
        }
        all
    }

    /// The same for one Pod, beside the passes over its workload, if it needs nothing but a write of its status. Everything else
    /// is for the next pass.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn refresh_status(&self, by: Refreshing<'_>, view: &PodView) -> kube::Result<Refreshed> {
        let now = clock::now();
        match refresh::refresh(view, None, by.lifecycle, by.update_revision, now) {
            needed @ Refresh::Status(_) => self.refresh(by, view, needed, None, now).await,
            _ => Ok(Refreshed::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use prometheus_client::metrics::counter::Counter;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::labels,
        domain::workload::owner::OwnerRef,
        runtime::{events::Recorder, fake_api, lock, pod_control::PodControl, queue::Backoff, watches::Store},
    };

    /// A new Pod, which is to get its first conditions and its first state; `changes` are merged over it.
    fn pod(name: &str, changes: &Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
                "labels": {labels::CONTROLLER_REVISION_HASH: "web-2", labels::POD_TEMPLATE_HASH: "2"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i:2"}],
                "readinessGates": [{"conditionType": labels::CONDITION_INPLACE_UPDATE_READY}]},
            "status": {},
        });
        json_patch::merge(&mut pod, changes);
        pod
    }

    type Asked = Arc<Mutex<Vec<String>>>;

    /// What the API server is asked, a writer, and these Pods as its store has them.
    fn world(pods: &[Value]) -> (Asked, InPlace, Vec<Arc<PodView>>) {
        let asked = Asked::default();
        let (seen, all) = (asked.clone(), pods.to_vec());
        let client = fake_api::answering(move |parts, _| {
            let name = parts.uri.path().split('/').nth(6).unwrap();
            lock(&seen).push(format!("{} {name}", parts.method));
            if name == "refused" {
                return (403, json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no"}));
            }
            let mut pod = all.iter().find(|pod| pod["metadata"]["name"] == name).unwrap().clone();
            if parts.method == "PATCH" {
                pod["metadata"]["resourceVersion"] = json!("2");
            }
            (200, pod)
        });
        let store: Arc<Store<PodView>> = Store::new([]);
        let stored = |pod: &Value| store.upsert(serde_json::from_value(pod.clone()).unwrap()).1.unwrap();
        let views = pods.iter().map(stored).collect();
        let (events, _) = Recorder::new(client.clone(), "test", "", Counter::default());
        let pods = Arc::new(PodControl::new(client.clone(), store, events));
        (asked, InPlace::new(client, pods), views)
    }

    #[tokio::test]
    async fn what_only_a_status_needs_is_left_to_the_queue_if_there_is_one_and_a_refusal_ends_nothing() {
        let ended = pod("ended", &json!({"status": {"phase": "Succeeded"}}));
        let pods = [pod("a", &json!({})), pod("refused", &json!({})), pod("b", &json!({})), ended];
        let (asked, in_place, views) = world(&pods);
        let owner = OwnerRef::default();
        let by = Refreshing { owner: &owner, lifecycle: None, update_revision: "web-2" };
        let queue: Arc<Queue<ObjectKey>> = Queue::new(Backoff::default());

        let all = in_place.refresh_all(views.iter(), |_: &PodView| by, |_: &str| None, Some(&*queue)).await;
        assert_eq!((all.written, all.failure.is_some(), queue.depth()), (false, false, 3));
        assert_eq!(*lock(&asked), [""; 0]);

        let all = in_place.refresh_all(views.iter(), |_: &PodView| by, |_: &str| None, None).await;
        assert_eq!((all.written, all.failure.is_some(), queue.depth()), (true, true, 3));
        lock(&asked).sort();
        assert_eq!(*lock(&asked), ["PATCH a", "PATCH b", "PATCH refused"]);
    }

    #[tokio::test]
    async fn a_pod_that_was_read_and_has_to_wait_is_not_read_again_in_the_same_version() {
        let state =
            json!({"revision": "web-2", "updateTimestamp": "2026-01-01T00:59:00Z", "updateEnvFromMetadata": true});
        let metadata = json!({"labels": {labels::LIFECYCLE_STATE: "Updating"},
            "annotations": {labels::IN_PLACE_STATE: state.to_string()}});
        let closed = json!([{"type": labels::CONDITION_INPLACE_UPDATE_READY, "status": "False"}]);
        let updating = pod("a", &json!({"metadata": metadata, "status": {"conditions": closed}}));
        let (asked, in_place, views) = world(&[updating]);
        let owner = OwnerRef::default();
        let by = Refreshing { owner: &owner, lifecycle: None, update_revision: "web-2" };

        let first = in_place.refresh_all(views.iter(), |_: &PodView| by, |_: &str| None, None).await;
        assert!(first.failure.is_none() && !first.written, "{first:?}");
        assert_eq!(first.waits, [("a".to_owned(), "1".to_owned())]);
        let waits_in = |uid: &str| (uid == "a").then(|| "1".to_owned());
        let again = in_place.refresh_all(views.iter(), |_: &PodView| by, waits_in, None).await;
        assert!(again.waits.is_empty() && again.failure.is_none(), "{again:?}");
        assert_eq!(*lock(&asked), ["GET a"]);
    }
}
