//! Older revisions that SidecarSets pin for new Pods. Each is read by its name when a Pod needs it, and kept for a few
//! seconds; which name has a custom version is known from a watch. A list of revisions, which are those of all SidecarSets,
//! would take longer than a Pod should wait.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, Client, api::GetParams, runtime::watcher::Config};
use serde_json::{Map, Value};

use super::known::{BY_VERSION, Versioned};

use crate::{
    api::labels::{SIDECAR_SET_CUSTOM_VERSION, SIDECAR_SET_NAME},
    domain::kinds::sidecar_set::{choice::Pin, hash, revision},
    k8s::{name::is_dns_subdomain, path},
    runtime::{
        clock, lock,
        watches::{self, Store},
    },
};

/// How long an answer is used.
const FRESH: Duration = Duration::from_secs(5);
/// The most answers that are kept.
const MOST: usize = 512;
/// What one look-up may take; Pods wait for it.
const LIMIT: Duration = Duration::from_secs(1);

/// A revision that was restored.
#[derive(Debug, PartialEq)]
pub(super) struct Restored {
    pub name: String,
    pub spec: Value,
    pub hash: String,
    pub hash_without_image: String,
}

/// Why a revision cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PinError {
    /// The API server does not say.
    #[error("{0}: {1}")]
    Read(String, String),
    /// There is none.
    #[error("{0}: there is no such ControllerRevision")]
    None(String),
    /// It is of another SidecarSet, or of something else.
    #[error("{0}: it is no revision of this SidecarSet")]
    Foreign(String),
}

/// A SidecarSet, and the name of a revision.
type Asked = (Arc<str>, String);
type Answer = Result<Arc<Restored>, PinError>;

/// The revisions of this process.
pub(super) struct Pinned {
    client: Client,
    namespace: Arc<str>,
    /// Those that have a custom version.
    versions: Arc<Store<Versioned>>,
    /// When each was read, and what came of it.
    known: Mutex<HashMap<Asked, (Duration, Answer)>>,
}

impl Pinned {
    /// Nothing is known yet; revisions are in this namespace.
    pub(super) fn new(client: Client, namespace: Arc<str>) -> Self {
        Self { client, namespace, versions: Store::new([BY_VERSION]), known: Mutex::default() }
    }

    /// Watches which revisions have a custom version, for ever.
    pub(super) async fn follow(&self) {
        let api: Api<Versioned> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = Config::default().labels(&format!("{SIDECAR_SET_NAME},{SIDECAR_SET_CUSTOM_VERSION}"));
        watches::watch(api, config, self.versions.clone(), |_| {}).await;
    }

    /// These revisions are known by their custom versions.
    #[cfg(test)]
    pub(super) fn know(&self, revisions: &[Value]) {
        for revision in revisions {
            self.versions.upsert(serde_json::from_value(revision.clone()).unwrap());
        }
    }

    /// The revision that a SidecarSet pins.
    ///
    /// # Errors
    /// There is none, it is of another SidecarSet, or the API server does not answer in time.
    pub(super) async fn restored(&self, set: &Arc<str>, pin: &Pin) -> Answer {
        let what = match pin {
            Pin::Name(name) => format!("injectionStrategy.revision.revisionName {name:?}"),
            Pin::CustomVersion(version) => format!("injectionStrategy.revision.customVersion {version:?}"),
        };
        match pin {
            Pin::Name(name) if !is_dns_subdomain(name) => Err(PinError::None(what)),
            Pin::Name(name) => self.of_name(set, name.clone(), what).await,
            Pin::CustomVersion(version) => match self.newest(set, version).await {
                Some(newest) => self.of_name(set, newest.name().to_owned(), what).await,
                None if self.versions.is_synced() => Err(PinError::None(what)),
                None => Err(PinError::Read(what, "the revisions are still being read".into())),
            },
        }
    }

    async fn newest(&self, set: &str, version: &str) -> Option<Arc<Versioned>> {
        // A replica that has just started: the list is there in a moment.
        let _ = tokio::time::timeout(LIMIT, self.versions.wait_synced()).await;
        let all = self.versions.by_index(&BY_VERSION, &Versioned::text_of(set, version));
        all.into_iter().max_by_key(|revision| revision.number)
    }

    async fn of_name(&self, set: &Arc<str>, name: String, what: String) -> Answer {
        let key = (set.clone(), name);
        let now = clock::now().mono;
        if let Some((at, answer)) = lock(&self.known).get(&key)
            && now.saturating_sub(*at) < FRESH
        {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(LIMIT, self.read(&key.1)).await {
            Ok(Ok(Some(object))) => restored(set, &object).map(Arc::new).ok_or(PinError::Foreign(what)),
            Ok(Ok(None)) => Err(PinError::None(what)),
            Ok(Err(error)) => Err(PinError::Read(what, error.to_string())),
            Err(_) => Err(PinError::Read(what, format!("no answer within {} s", LIMIT.as_secs()))),
        };
        let mut known = lock(&self.known);
        if known.len() >= MOST {
            known.retain(|_, (at, _)| now.saturating_sub(*at) < FRESH);
        }
        if known.len() < MOST {
            known.insert(key, (now, answer.clone()));
        }
        answer
    }

    async fn read(&self, name: &str) -> Result<Option<Value>, kube::Error> {
        let path = path::in_namespace("apps", "v1", &self.namespace, "controllerrevisions");
        let get = kube::core::Request::new(path).get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request::<Value>(get).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            other => other.map(Some),
        }
    }
}

/// None: it is no revision of this SidecarSet.
///
/// Its annotations are those that the SidecarSet had when it was recorded. Where admission was away then, the hashes among them
/// are of the spec before.
fn restored(set: &str, object: &Value) -> Option<Restored> {
    let metadata = &object["metadata"];
    if metadata["labels"][SIDECAR_SET_NAME] != set {
        return None;
    }
    let spec: Map<String, Value> = revision::restore(&object["data"])?;
    let spec = Value::Object(spec);
    let hash::Hashes { hash, without_image } = hash::of(&spec);
    Some(Restored { name: metadata["name"].as_str()?.to_owned(), hash, hash_without_image: without_image, spec })
}
