//! Older revisions that SidecarSets pin for new Pods. Each is read by its name when a Pod needs it, and kept for a few
//! seconds; which name has a custom version is known from a watch. Where the watch says that none has it, it may lag, or the
//! role may not watch: then those of the SidecarSet with the version are listed, once in a few seconds and a few lists at a
//! time, since the API server looks through the revisions of all SidecarSets for each list.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{GetParams, ListParams},
    runtime::watcher::Config,
};
use serde_json::{Map, Value};
use tokio::sync::{OnceCell, Semaphore};

use super::known::{BY_VERSION, Versioned};

use crate::{
    api::labels::{SIDECAR_SET_CUSTOM_VERSION, SIDECAR_SET_NAME},
    domain::kinds::sidecar_set::{choice::Pin, hash, revision},
    k8s::{
        name::{is_dns_subdomain, is_label_value},
        path,
    },
    runtime::{
        apply::said,
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
/// Lists at a time.
const LISTS: usize = 4;

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

/// What a list has brought, and when it was begun. Pods that come meanwhile wait for the same one.
pub(super) struct Listed {
    begun: Duration,
    answer: OnceCell<Answer>,
}

/// The revisions of this process.
pub(super) struct Pinned {
    client: Client,
    namespace: Arc<str>,
    /// Those that have a custom version.
    versions: Arc<Store<Versioned>>,
    /// When each was read, and what came of it.
    known: Mutex<HashMap<Asked, (Duration, Answer)>>,
    /// By SidecarSet and custom version.
    listed: Mutex<HashMap<Asked, Arc<Listed>>>,
    lists: Semaphore,
}

impl Pinned {
    /// Nothing is known yet; revisions are in this namespace.
    pub(super) fn new(client: Client, namespace: Arc<str>) -> Self {
        let versions = Store::new([BY_VERSION]);
        let (known, listed) = (Mutex::default(), Mutex::default());
        Self { client, namespace, versions, known, listed, lists: Semaphore::new(LISTS) }
    }

    /// Watches which revisions have a custom version, for ever.
    pub(super) async fn follow(&self) {
        let api: Api<Versioned> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = Config::default().labels(&format!("{SIDECAR_SET_NAME},{SIDECAR_SET_CUSTOM_VERSION}"));
        watches::watch(api, config, self.versions.clone(), |_| {}).await;
    }

    /// These revisions and no others are known by their custom versions.
    #[cfg(test)]
    pub(super) fn know(&self, revisions: &[Value]) {
        for revision in revisions {
            self.versions.upsert(serde_json::from_value(revision.clone()).unwrap());
        }
        self.versions.has_all();
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
            // Neither can be in a label.
            Pin::CustomVersion(version) if !is_label_value(set) || !is_label_value(version) => {
                Err(PinError::None(what))
            }
            Pin::CustomVersion(version) => match self.newest(set, version) {
                Some(newest) => self.of_name(set, newest.name().to_owned(), what).await,
                None => self.of_list(set, version, what).await,
            },
        }
    }

    /// As the watch has brought it. None: there is none, or not all have come yet.
    fn newest(&self, set: &str, version: &str) -> Option<Arc<Versioned>> {
        let all = self.versions.by_index(&BY_VERSION, &Versioned::text_of(set, version));
        all.into_iter().max_by_key(|revision| revision.number).filter(|_| self.versions.is_synced())
    }

    /// The newest revision with a custom version, as a list says that was begun a moment ago at most.
    async fn of_list(&self, set: &Arc<str>, version: &str, what: String) -> Answer {
        let now = clock::now().mono;
        let Some(listed) = self.listed(set, version, now) else {
            return Err(PinError::Read(what, "too many custom versions are looked for at a time".into()));
        };
        let late = |what: String| PinError::Read(what, format!("no answer within {} s", LIMIT.as_secs()));
        let list = async {
            let list = async {
                let _turn = self.lists.acquire().await;
                self.list(set, version).await
            };
            match tokio::time::timeout(LIMIT, list).await {
                Ok(Ok(Some(newest))) => restored(set, &newest).map(Arc::new).ok_or(PinError::Foreign(what.clone())),
                Ok(Ok(None)) => Err(PinError::None(what.clone())),
                Ok(Err(error)) => Err(PinError::Read(what.clone(), said(&error))),
                Err(_) => Err(late(what.clone())),
            }
        };
        match tokio::time::timeout(LIMIT, listed.answer.get_or_init(|| list)).await {
            Ok(answer) => answer.clone(),
            Err(_) => Err(late(what)),
        }
    }

    /// The list for a custom version. None: there are too many already.
    pub(super) fn listed(&self, set: &Arc<str>, version: &str, now: Duration) -> Option<Arc<Listed>> {
        let mut all = lock(&self.listed);
        let key = (set.clone(), version.to_owned());
        let is_fresh = |listed: &Listed| now.saturating_sub(listed.begun) < FRESH;
        if let Some(listed) = all.get(&key).filter(|listed| is_fresh(listed)) {
            return Some(listed.clone());
        }
        if all.len() >= MOST {
            all.retain(|_, listed| is_fresh(listed));
        }
        if all.len() >= MOST && !all.contains_key(&key) {
            return None;
        }
        let new = Arc::new(Listed { begun: now, answer: OnceCell::new() });
        all.insert(key, new.clone());
        Some(new)
    }

    /// The newest revision with a custom version.
    async fn list(&self, set: &str, version: &str) -> Result<Option<Value>, kube::Error> {
        let path = path::in_namespace("apps", "v1", &self.namespace, "controllerrevisions");
        let labels = format!("{SIDECAR_SET_NAME}={set},{SIDECAR_SET_CUSTOM_VERSION}={version}");
        let list = kube::core::Request::new(path).list(&ListParams::default().labels(&labels));
        let mut list = self.client.request::<Value>(list.map_err(kube::Error::BuildRequest)?).await?;
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(items.into_iter().max_by_key(|revision| revision["revision"].as_i64()))
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
            Ok(Err(error)) => Err(PinError::Read(what, said(&error))),
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
