//! The PersistentPodStates of a cluster as admission of Pods needs them.
//!
//! - Watches: PersistentPodStates, in every replica of the webhook.
//! - Never: writes anything, and keeps no Pod from being created.
//!
//! The rules are [`crate::domain::kinds::persistent_pod_state::restore`].

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{Api, Client, api::ListParams, runtime::watcher::Config};
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    api::apps::persistent_pod_state::PersistentPodState,
    domain::{
        kinds::persistent_pod_state::{restore, spec::named_target},
        workload::target::target_key,
    },
    k8s::rbac::Rule,
    runtime::{
        apply::code,
        guarded::Guarded,
        metrics::Metrics,
        watches::{self, Change, Store, StoreIndex},
    },
};

/// What it reads in the cluster, and what admission of PersistentPodStates reads.
pub const RBAC: &[Rule] = &[Rule::new(&["apps.kruise.io"], &["persistentpodstates"], &["list", "watch"])];

/// How long a Pod waits for the first list: a replica without it is not ready, and gets few Pods.
const FIRST_LIST_LOOK: Duration = Duration::from_millis(300);
/// How long it waits after that for those of its namespace, which are read for it alone.
const LOOK_UP: Duration = Duration::from_millis(700);

/// By namespace and target.
const BY_TARGET: StoreIndex<PersistentPodState> = StoreIndex::new("target", |state| {
    let namespace = state.metadata.namespace.as_deref().unwrap_or_default();
    named_target(&state.spec).ok().map(|target| target.key(namespace))
});

/// The PersistentPodStates, in one process.
pub struct PodStates {
    client: Client,
    states: Arc<Store<PersistentPodState>>,
    scope: watch::Sender<Option<BTreeSet<String>>>,
    restorations: Counter,
    unknown: Counter,
}

impl PodStates {
    /// None known yet.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            states: Store::new([BY_TARGET]),
            scope: watch::Sender::new(None),
            restorations: Counter::default(),
            unknown: Counter::default(),
        })
    }

    /// Adds the counters to the metrics of this process.
    pub fn register(&self, metrics: &Metrics) {
        let help = "New Pods that got what was recorded of the Pod before them";
        metrics.register("kruise_persistent_pod_state_restorations", help, &self.restorations);
        let help = "New Pods for which it was not known whether anything is recorded of the Pod before them";
        metrics.register("kruise_persistent_pod_state_unknown", help, &self.unknown);
    }

    /// Watches, for ever.
    pub async fn follow(&self) {
        let api: Api<Guarded<PersistentPodState>> = Api::all(self.client.clone());
        let first = async {
            watches::first_list(&api, &self.states).await;
            self.publish_namespaces();
        };
        let watch =
            watches::watch_guarded(api.clone(), Config::default(), self.states.clone(), |change| self.changed(&change));
        tokio::join!(watch, first);
    }

    /// The namespaces in which there may be Pods for a PersistentPodState, as a channel that reports changes. None until they
    /// are known.
    pub fn scope(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.scope.subscribe()
    }

    fn changed(&self, change: &Change<'_, PersistentPodState>) {
        let is_news = match change {
            Change::Applied { old, .. } => old.is_none(),
            Change::Deleted(_) => true,
            Change::Undecodable { key, error } => {
                tracing::error!(state = %key, error, "this PersistentPodState cannot be read and is left alone");
                true
            }
        };
        if is_news && self.scope.borrow().is_some() {
            self.publish_namespaces();
        }
    }

    fn publish_namespaces(&self) {
        let now = self.states.list().iter().filter_map(|state| state.metadata.namespace.clone()).collect();
        self.scope.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&now);
            *known = Some(now);
            changed
        });
    }

    /// The one that a new Pod of a namespace is to be restored from. None: there is none, or nobody knows.
    pub async fn of(&self, namespace: &str, pod: &Value) -> Option<Arc<PersistentPodState>> {
        let target = target_key(namespace, restore::target_of(pod)?);
        if self.scope.borrow().is_none() {
            // A replica that has just started: the list is there in a moment.
            let mut scope = self.scope.subscribe();
            let _ = tokio::time::timeout(FIRST_LIST_LOOK, scope.wait_for(Option::is_some)).await;
        }
        let states = if self.scope.borrow().is_some() {
            self.states.by_index(&BY_TARGET, &target)
        } else {
            self.look_up(namespace, &target).await?
        };
        let first = restore::first(states.iter().map(AsRef::as_ref))?.metadata.name.clone();
        states.into_iter().find(|state| state.metadata.name == first)
    }

    /// Those for a target, from the API server: without the first list the store says nothing about what is not in it.
    async fn look_up(&self, namespace: &str, target: &str) -> Option<Vec<Arc<PersistentPodState>>> {
        let api: Api<Guarded<PersistentPodState>> = Api::namespaced(self.client.clone(), namespace);
        let why = match tokio::time::timeout(LOOK_UP, api.list(&ListParams::default())).await {
            Ok(Ok(all)) => {
                let readable = all.items.into_iter().filter_map(|Guarded(state)| state.ok());
                let of_target =
                    readable.filter(|state| named_target(&state.spec).is_ok_and(|of| of.key(namespace) == target));
                return Some(of_target.map(Arc::new).collect());
            }
            // The kind is not installed.
            Ok(Err(error)) if code(&error) == Some(404) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} ms", LOOK_UP.as_millis()),
        };
        self.unknown.inc();
        tracing::warn!(namespace, target, why, "a new Pod may lack what is recorded of the Pod before it");
        None
    }

    /// Counts a Pod that was restored.
    pub fn count(&self) {
        self.restorations.inc();
    }

    /// There are none, and that is known.
    #[cfg(any(test, fuzzing))]
    pub fn know_of_none(&self) {
        self.publish_namespaces();
    }

    /// These and no others are known.
    #[cfg(test)]
    pub fn know(&self, states: &[Value]) {
        for state in states {
            self.states.upsert(serde_json::from_value(state.clone()).unwrap());
        }
        self.publish_namespaces();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn states() -> Arc<PodStates> {
        PodStates::new(crate::runtime::fake_api::nobody())
    }

    fn state(namespace: &str, name: &str, created: &str, api_version: &str) -> Value {
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PersistentPodState",
            "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "creationTimestamp": created},
            "spec": {"targetRef": {"apiVersion": api_version, "kind": "StatefulSet", "name": "db"}}})
    }

    fn pod(api_version: &str) -> Value {
        let owner =
            json!({"apiVersion": api_version, "kind": "StatefulSet", "name": "db", "uid": "t", "controller": true});
        json!({"metadata": {"name": "db-0", "ownerReferences": [owner]}, "spec": {}})
    }

    #[tokio::test]
    async fn a_pod_is_restored_from_the_oldest_one_for_its_own_target() {
        let states = states();
        states.know(&[
            state("ns", "late", "2026-01-02T00:00:00Z", "apps/v1"),
            state("ns", "early", "2026-01-01T00:00:00Z", "apps/v1"),
            state("ns", "ours", "2026-01-01T00:00:00Z", "apps.kruise.io/v1alpha1"),
            state("other", "elsewhere", "2025-01-01T00:00:00Z", "apps/v1"),
        ]);
        let name = async |namespace: &str, pod: &Value| {
            states.of(namespace, pod).await.and_then(|state| state.metadata.name.clone())
        };
        assert_eq!(name("ns", &pod("apps/v1")).await.as_deref(), Some("early"));
        assert_eq!(name("ns", &pod("apps.kruise.io/v1beta1")).await.as_deref(), Some("ours"), "in any version");
        assert_eq!(name("third", &pod("apps/v1")).await, None);
        assert_eq!(name("ns", &json!({"metadata": {"name": "db-0"}, "spec": {}})).await, None);
        let scope = states.scope().borrow().clone();
        assert_eq!(scope, Some(BTreeSet::from(["ns".to_owned(), "other".to_owned()])));
    }

    /// An API server that knows one, says 403 or says nothing, and no list of a watch.
    fn without_list(answer: Option<(u16, Value)>) -> Arc<PodStates> {
        let server = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let answer = answer.clone();
            async move {
                let Some((code, body)) = answer else { return std::future::pending().await };
                let body = kube::client::Body::from(body.to_string().into_bytes());
                Ok::<_, std::io::Error>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        PodStates::new(Client::new(server, "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_first_list_a_pod_is_looked_up_and_nobody_says_that_there_is_none() {
        let list = |items: Value| json!({"kind": "PersistentPodStateList", "apiVersion": "apps.kruise.io/v1alpha1", "metadata": {}, "items": items});
        let known = list(json!([
            {"metadata": {"name": "broken"}, "spec": 1},
            state("ns", "other", "2026-01-01T00:00:00Z", "apps.kruise.io/v1beta1"),
            state("ns", "keep", "2026-01-02T00:00:00Z", "apps/v1"),
        ]));
        let refused = |code: u16, reason: &str| json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason, "code": code});
        for (what, answer, found, unknown, longest) in [
            ("one is there", Some((200, known)), Some("keep"), 0, FIRST_LIST_LOOK),
            ("none is there", Some((200, list(json!([])))), None, 0, FIRST_LIST_LOOK),
            ("the kind is not installed", Some((404, refused(404, "NotFound"))), None, 0, FIRST_LIST_LOOK),
            ("it may not be read", Some((403, refused(403, "Forbidden"))), None, 1, FIRST_LIST_LOOK),
            ("no answer", None, None, 1, FIRST_LIST_LOOK + LOOK_UP),
        ] {
            let states = without_list(answer);
            let begun = tokio::time::Instant::now();
            let of = states.of("ns", &pod("apps/v1")).await;
            assert_eq!(of.and_then(|state| state.metadata.name.clone()).as_deref(), found, "{what}");
            assert_eq!((states.unknown.get(), begun.elapsed()), (unknown, longest), "{what}");
        }
    }
}
