//! How many Pods workloads want, followed by watches: one for each kind about which somebody asks, and none otherwise.
//!
//! Of an object nothing is decoded but its name, its version and that number.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Api, Client, api::ApiResource, core::DynamicResourceScope, runtime::watcher::Config};
use serde::{Deserialize, Deserializer};
use tokio::sync::watch;

use super::{
    lock,
    watches::{self, Change, ObjectKey, Store},
};
use crate::{
    api::{
        apps,
        kinds::{BUILT_IN_WORKLOADS, KINDS, KRUISE_WORKLOADS},
    },
    k8s::rbac::Rule,
};

/// The rights to follow the workloads of `apps`.
pub const WATCH_BUILT_IN: Rule = Rule::new(&["apps"], &BUILT_IN_WORKLOADS, &["list", "watch"]);
/// And those of our group.
pub const WATCH_KRUISE: Rule = Rule::new(&[apps::GROUP], &KRUISE_WORKLOADS, &["list", "watch"]);

/// A kind that can be followed, by its place in [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(usize);

impl Kind {
    /// The kind of this name, if it can be followed.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        Self::all().find(|known| (KINDS[known.0].group, KINDS[known.0].kind) == (group, kind))
    }

    /// Its API group and its name.
    pub fn names(self) -> (&'static str, &'static str) {
        (KINDS[self.0].group, KINDS[self.0].kind)
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..KINDS.len()).filter(|i| KINDS[*i].workload.is_some()).map(Self)
    }

    fn resource(self) -> ApiResource {
        let kind = &KINDS[self.0];
        ApiResource {
            group: kind.group.to_owned(),
            version: kind.version().to_owned(),
            api_version: kind.api_version(),
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
        }
    }
}

/// What is decoded of a workload.
#[derive(Clone, Debug, PartialEq)]
struct Scaled {
    /// Namespace, name, UID, resourceVersion and deletion time; nothing else is kept.
    metadata: ObjectMeta,
    /// How many Pods it wants, if it says so.
    desired: Option<i32>,
}

impl Scaled {
    /// Wakes those who have to look again.
    fn facts(&self) -> (Option<&str>, bool, Option<i32>) {
        (self.metadata.uid.as_deref(), self.metadata.deletion_timestamp.is_some(), self.desired)
    }
}

impl<'de> Deserialize<'de> for Scaled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Option<Spec>,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            deletion_timestamp: Option<Time>,
        }
        #[derive(Deserialize)]
        struct Spec {
            #[serde(default)]
            replicas: Option<i32>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            #[serde(default)]
            desired_number_scheduled: Option<i32>,
        }
        let Wire { metadata, spec, status } = Wire::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        };
        // Only DaemonSets have the second, and they have no first.
        let scheduled = || status.and_then(|status| status.desired_number_scheduled);
        Ok(Self { metadata, desired: spec.and_then(|spec| spec.replicas).or_else(scheduled) })
    }
}

impl kube::Resource for Scaled {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;
    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }
    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }
    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }
    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The numbers of the kinds that are followed.
pub struct Replicas {
    client: Client,
    wanted: watch::Sender<BTreeSet<Kind>>,
    stores: Mutex<HashMap<Kind, Arc<Store<Scaled>>>>,
}

impl Replicas {
    /// Nothing is followed yet.
    pub fn new(client: Client) -> Self {
        Self { client, wanted: watch::Sender::default(), stores: Mutex::default() }
    }

    /// From now on these kinds are to be followed.
    pub fn want(&self, kinds: BTreeSet<Kind>) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != kinds;
            *wanted = kinds;
            changed
        });
    }

    /// From now on this kind is to be followed too.
    pub fn want_also(&self, kind: Kind) {
        self.wanted.send_if_modified(|wanted| wanted.insert(kind));
    }

    /// Whether all objects of a kind are known.
    pub fn knows(&self, kind: Kind) -> bool {
        lock(&self.stores).get(&kind).is_some_and(|store| store.is_synced())
    }

    /// How many Pods a workload wants. None: it is not known, not there, on its way out, or does not say so.
    pub fn desired(&self, kind: Kind, workload: &ObjectKey) -> Option<i32> {
        let store = lock(&self.stores).get(&kind).filter(|store| store.is_synced())?.clone();
        let found = store.get(workload).filter(|found| found.metadata.deletion_timestamp.is_none())?;
        found.desired
    }

    /// Follows what is wanted, for ever, in one namespace or in all; `changed` learns which workloads want another number
    /// of Pods than before, came or went.
    pub async fn follow(&self, only_namespace: Option<&str>, changed: impl Fn(Kind, &ObjectKey) + Send + Sync) {
        join_all(Kind::all().map(|kind| self.follow_kind(kind, only_namespace, &changed))).await;
    }

    async fn follow_kind(
        &self,
        kind: Kind,
        only_namespace: Option<&str>,
        changed: &(impl Fn(Kind, &ObjectKey) + Send + Sync),
    ) {
        let (mut wanted, resource) = (self.wanted.subscribe(), kind.resource());
        let api: Api<Scaled> = match only_namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        // The sender lives as long as `self`: it does not end.
        while wanted.wait_for(|wanted| wanted.contains(&kind)).await.is_ok() {
            tracing::debug!(kind = resource.kind, group = resource.group, "following replicas");
            let store = Store::new(None);
            lock(&self.stores).insert(kind, store.clone());
            let report = |change: Change<'_, Scaled>| match change {
                Change::Applied { old, new, .. } if old.map(|old| old.facts()) == Some(new.facts()) => {}
                Change::Applied { new, .. } => changed(kind, &ObjectKey::of(new.as_ref())),
                Change::Deleted(old) => changed(kind, &ObjectKey::of(old.as_ref())),
                Change::Undecodable { key, .. } => changed(kind, key),
            };
            tokio::select! {
                () = watches::watch_dynamic(api.clone(), &resource, Config::default(), store, report) => {}
                _ = wanted.wait_for(|wanted| !wanted.contains(&kind)) => {}
            }
            lock(&self.stores).remove(&kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_workload_only_the_number_is_read() {
        let read = |object| serde_json::from_value::<Scaled>(object).unwrap();
        let set = read(
            json!({"metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"replicas": 4, "template": {"spec": {}}}, "status": {"replicas": 9}}),
        );
        assert_eq!(set.facts(), (Some("u"), false, Some(4)));
        assert_eq!((set.metadata.labels, set.metadata.resource_version.as_deref()), (None, Some("7")));
        let daemons = read(json!({"metadata": {"name": "web"}, "spec": {}, "status": {"desiredNumberScheduled": 3}}));
        assert_eq!(daemons.desired, Some(3));
        assert_eq!(read(json!({"metadata": {"name": "web"}})).desired, None);
    }

    #[tokio::test]
    async fn a_kind_that_is_wanted_too_takes_nothing_from_the_others() {
        let replicas = Replicas::new(crate::runtime::fake_api::nobody());
        let [a, b] =
            [("apps", "Deployment"), (apps::GROUP, "CloneSet")].map(|(group, kind)| Kind::of(group, kind).unwrap());
        let wanted = replicas.wanted.subscribe();
        replicas.want(BTreeSet::from([a]));
        replicas.want_also(b);
        replicas.want_also(a);
        assert_eq!(*wanted.borrow(), BTreeSet::from([a, b]));
        replicas.want(BTreeSet::from([b]));
        assert_eq!(*wanted.borrow(), BTreeSet::from([b]));
    }

    #[test]
    fn known_kinds_have_the_resources_that_may_be_followed() {
        for kind in Kind::all() {
            let resource = kind.resource();
            let rule =
                [WATCH_BUILT_IN, WATCH_KRUISE].into_iter().find(|rule| rule.groups == [&*resource.group]).unwrap();
            assert!(rule.resources.contains(&&*resource.plural), "{resource:?}");
        }
        assert_eq!(Kind::of("argoproj.io", "Rollout"), None);
        assert_ne!(Kind::of("apps", "StatefulSet"), Kind::of(apps::GROUP, "StatefulSet"));
    }
}
