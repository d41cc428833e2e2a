//! Older revisions that SidecarSets pin for new Pods. They are read when a Pod needs one, and kept for a few seconds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Client,
    api::{GetParams, ListParams},
};
use serde_json::{Map, Value};

use crate::{
    api::labels::{SIDECAR_SET_CUSTOM_VERSION, SIDECAR_SET_NAME},
    domain::kinds::sidecar_set::{choice::Pin, hash, revision},
    k8s::{name::is_dns_subdomain, path},
    runtime::{clock, lock},
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

type Asked = (Arc<str>, Pin);
type Answer = Result<Arc<Restored>, PinError>;

/// The revisions of this process.
pub(super) struct Pinned {
    client: Client,
    namespace: Arc<str>,
    /// By SidecarSet and pin: when it was read, and what came of it.
    known: Mutex<HashMap<Asked, (Duration, Answer)>>,
}

impl Pinned {
    /// Nothing is known yet; revisions are in this namespace.
    pub(super) fn new(client: Client, namespace: Arc<str>) -> Self {
        Self { client, namespace, known: Mutex::default() }
    }

    /// The revision that a SidecarSet pins.
    ///
    /// # Errors
    /// There is none, it is of another SidecarSet, or the API server does not answer in time.
    pub(super) async fn restored(&self, set: &Arc<str>, pin: &Pin) -> Answer {
        let key = (set.clone(), pin.clone());
        let now = clock::now().mono;
        if let Some((at, answer)) = lock(&self.known).get(&key)
            && now.saturating_sub(*at) < FRESH
        {
            return answer.clone();
        }
        let what = match pin {
            Pin::Name(name) => format!("injectionStrategy.revision.revisionName {name:?}"),
            Pin::CustomVersion(version) => format!("injectionStrategy.revision.customVersion {version:?}"),
        };
        let answer = match tokio::time::timeout(LIMIT, self.read(set, pin)).await {
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

    async fn read(&self, set: &str, pin: &Pin) -> Result<Option<Value>, kube::Error> {
        let path = path::in_namespace("apps", "v1", &self.namespace, "controllerrevisions");
        let base = kube::core::Request::new(path);
        match pin {
            Pin::Name(name) if !is_dns_subdomain(name) => Ok(None),
            Pin::Name(name) => {
                let get = base.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
                match self.client.request::<Value>(get).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                    other => other.map(Some),
                }
            }
            Pin::CustomVersion(version) => {
                let labels = format!("{SIDECAR_SET_NAME}={set},{SIDECAR_SET_CUSTOM_VERSION}={version}");
                let list = base.list(&ListParams::default().labels(&labels)).map_err(kube::Error::BuildRequest)?;
                let mut list: Value = self.client.request(list).await?;
                let revisions = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
                Ok(revisions.into_iter().max_by_key(|revision| revision["revision"].as_i64()))
            }
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
