//! An object that cannot be read is left alone, but for a finalizer that nobody else would take off: once the object is being
//! deleted, it goes. That takes metadata alone, which can always be read.

use std::{collections::HashSet, fmt::Debug, sync::Mutex, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{apply::code, lock, object_key::ObjectKey};

/// Between two looks at one: the watch does not show its end.
pub const LOOK_FOR_ITS_END: Duration = Duration::from_secs(60);
/// After our finalizer was taken off, or the object had changed. Watches may be behind.
const AFTER_RELEASE: Duration = Duration::from_secs(5);

/// The objects of a kind that are stored in a form that this release cannot read.
#[derive(Debug, Default)]
pub struct UnreadableObjects(Mutex<HashSet<ObjectKey>>);

/// What became of an object that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is none, or can be read again.
    Unknown,
    /// It does not exist any more.
    Gone,
    /// It is still there: look again after this time.
    There(Duration),
}

impl Presence {
    /// When to look again.
    pub fn look_again(self) -> Option<Duration> {
        match self {
            Self::There(after) => Some(after),
            Self::Unknown | Self::Gone => None,
        }
    }
}

impl UnreadableObjects {
    /// The watch has brought one.
    pub fn note(&self, key: &ObjectKey) {
        lock(&self.0).insert(key.clone());
    }

    /// It can be read again, or is gone.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.0).remove(key);
    }

    /// Whether it is one.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        lock(&self.0).contains(key)
    }

    /// Whether there are none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Looks at an object that the store has not, and takes `finalizer` off one that cannot be read and is being deleted.
    ///
    /// # Errors
    /// The API server's.
    pub async fn look<K>(&self, api: &Api<K>, key: &ObjectKey, finalizer: &str) -> kube::Result<Presence>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if !self.contains(key) {
            return Ok(Presence::Unknown);
        }
        let live = match api.get_metadata(&key.name).await {
            Err(error) if code(&error) == Some(404) => {
                self.forget(key);
                return Ok(Presence::Gone);
            }
            live => live?,
        };
        let was_held = release(api, key, &live.metadata, finalizer).await?;
        Ok(Presence::There(if was_held { AFTER_RELEASE } else { LOOK_FOR_ITS_END }))
    }
}

/// Takes `finalizer` off an object that is being deleted, if its version is still that of `live`. Returns whether `live` is being
/// deleted and has the finalizer: true also if the object is gone by now or has changed.
///
/// # Errors
/// The API server's, but not 404 and 409: the object is gone or has changed.
pub async fn release<K>(api: &Api<K>, key: &ObjectKey, live: &ObjectMeta, finalizer: &str) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let Some(others) = others_to_keep(live, finalizer) else { return Ok(false) };
    let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version, "finalizers": others}});
    match api.patch_metadata(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => {
            tracing::info!(kind = %K::kind(&()), object = %key, "released, as it is being deleted and cannot be read");
        }
        // It is gone, or has changed.
        Err(error) if matches!(code(&error), Some(404 | 409)) => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// The finalizers of an object without this one, if it is there and is to go.
fn others_to_keep<'a>(live: &'a ObjectMeta, finalizer: &str) -> Option<Vec<&'a str>> {
    let all = live.finalizers.as_deref().unwrap_or_default();
    let others: Vec<&str> = all.iter().map(String::as_str).filter(|name| *name != finalizer).collect();
    (live.deletion_timestamp.is_some() && others.len() < all.len()).then_some(others)
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use serde_json::Value;

    use super::*;
    use crate::{api::apps::ephemeral_job::EphemeralJob, runtime::fake_api::answering};

    #[test]
    fn a_finalizer_goes_from_what_is_being_deleted_and_those_of_others_stay() {
        for (deleted, finalizers, expected) in [
            (true, json!(["own"]), Some(vec![])),
            (true, json!(["a", "own", "b"]), Some(vec!["a", "b"])),
            (true, json!(["a"]), None),
            (true, Value::Null, None),
            (false, json!(["own"]), None),
        ] {
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"deletionTimestamp": deleted, "finalizers": finalizers});
            let live: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
            assert_eq!(others_to_keep(&live, "own"), expected, "{metadata}");
        }
    }

    #[tokio::test]
    async fn one_is_looked_at_until_it_is_gone() {
        let key = ObjectKey::new("ns", "j");
        let (soon, later) = (Some(Presence::There(AFTER_RELEASE)), Some(Presence::There(LOOK_FOR_ITS_END)));
        for (held, read, patched, expected) in [
            (true, 200, 200, soon),
            (true, 200, 404, soon),
            (true, 200, 409, soon),
            (true, 200, 403, None),
            (true, 500, 200, None),
            (false, 200, 500, later),
            (true, 404, 500, Some(Presence::Gone)),
        ] {
            let finalizer = if held { "own" } else { "other" };
            let object = json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "finalizers": [finalizer], "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": 3});
            let client = answering(move |parts, _| {
                let code = if parts.method == Method::GET { read } else { patched };
                let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "test"});
                (code, if code == 200 { object.clone() } else { status })
            });
            let api: Api<EphemeralJob> = Api::namespaced(client, "ns");
            let objects = UnreadableObjects::default();
            assert_eq!(objects.look(&api, &key, "own").await.unwrap(), Presence::Unknown, "not one");
            objects.note(&key);
            assert_eq!(objects.look(&api, &key, "own").await.ok(), expected, "{held} {read} {patched}");
            assert_eq!(objects.is_empty(), read == 404);
            objects.note(&key);
            objects.forget(&key);
            assert_eq!(objects.look(&api, &key, "own").await.unwrap(), Presence::Unknown, "it can be read again");
        }
    }
}
