//! Writes the status of objects: only what has changed, not too often, and never over what somebody else has written.

use std::{collections::HashMap, fmt::Debug, sync::Mutex, time::Duration};

use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    apply::{code, patch_status},
    lock,
    pass::AFTER_CONFLICT,
    watches::Store,
};
use crate::k8s::time::Now;

/// Between two writes of a status that differ in nothing but counts, which change with every Pod.
const PAUSE: Duration = Duration::from_secs(1);

/// The API server's answer to a write, if one was due, and the check by which an error means that the object was stale.
type Answer<K> = (kube::Result<Option<K>>, fn(&kube::Error) -> bool);

/// What came of it.
#[derive(Clone, Debug)]
pub enum Outcome<K> {
    /// There was nothing to write.
    Unchanged,
    /// It was written; this is the object now.
    Written(K),
    /// It can wait: look again then.
    Later(Duration),
    /// The object had changed and has been read again: look again after [`AFTER_CONFLICT`].
    Outdated,
    /// The object is gone.
    Gone,
}

impl<K> Outcome<K> {
    /// When to look again, if there is something to wait for.
    pub fn look_after(&self) -> Option<Duration> {
        match self {
            Self::Later(after) => Some(*after),
            Self::Outdated => Some(AFTER_CONFLICT),
            Self::Unchanged | Self::Written(_) | Self::Gone => None,
        }
    }

    /// The same for what is done next with the version that was looked at: that is no longer the last one if this has written
    /// one, so look again at once.
    pub fn look_again(&self) -> Option<Duration> {
        match self {
            Self::Written(_) => Some(Duration::ZERO),
            other => other.look_after(),
        }
    }
}

/// A status as JSON, for [`StatusWriter::write`]: an object without one has no field at all, so that zeros too are written
/// the first time. They stand in columns.
///
/// # Errors
/// It cannot be made JSON.
pub fn json_of(status: Option<&impl Serialize>) -> kube::Result<Value> {
    status.map_or(Ok(json!({})), |status| serde_json::to_value(status).map_err(kube::Error::SerdeError))
}

/// The writer of statuses of one controller.
#[derive(Default)]
pub struct StatusWriter {
    /// When statuses were written last, by UID, for as long as that matters.
    written: Mutex<HashMap<String, Duration>>,
}

impl StatusWriter {
    /// Writes `wanted` as the status of `object`, if it differs from `recorded` and the object is still the version that was
    /// looked at. What can wait is written [`PAUSE`] after the last write. After a conflict the object is read again, for
    /// the next pass.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn write<K, S>(
        &self,
        (api, store): (&Api<K>, &Store<K>),
        object: &K,
        (recorded, wanted): (&S, &S),
        can_wait: bool,
        now: Now,
    ) -> kube::Result<Outcome<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
        S: Serialize + PartialEq,
    {
        if recorded == wanted {
            return Ok(Outcome::Unchanged);
        }
        let left = self.left(object.meta().uid.as_deref().unwrap_or_default(), now);
        if can_wait && !left.is_zero() {
            return Ok(Outcome::Later(left));
        }
        let written = patch_status(api, object, recorded, wanted).await;
        self.written((api, store), object, (written, |error| code(error) == Some(409)), now).await
    }

    /// The same with a JSON patch that tests what it rests on. When a test fails the object is read again, as after a conflict.
    ///
    /// # Errors
    /// Those of the API server, but 404, 409 and 422.
    pub async fn write_json<K>(
        &self,
        (api, store): (&Api<K>, &Store<K>),
        object: &K,
        patch: &Value,
        can_wait: bool,
        now: Now,
    ) -> kube::Result<Outcome<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let left = self.left(object.meta().uid.as_deref().unwrap_or_default(), now);
        if can_wait && !left.is_zero() {
            return Ok(Outcome::Later(left));
        }
        let patch = serde_json::from_value(patch.clone()).map_err(kube::Error::SerdeError)?;
        let name = object.meta().name.as_deref().unwrap_or_default();
        let written = api.patch_status(name, &PatchParams::default(), &Patch::<Value>::Json(patch)).await;
        self.written((api, store), object, (written.map(Some), is_outdated), now).await
    }

    async fn written<K>(
        &self,
        (api, store): (&Api<K>, &Store<K>),
        object: &K,
        (answer, is_outdated): Answer<K>,
        now: Now,
    ) -> kube::Result<Outcome<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        match answer {
            Ok(None) => Ok(Outcome::Unchanged),
            Ok(Some(newer)) => {
                let uid = object.meta().uid.clone().unwrap_or_default();
                let mut written = lock(&self.written);
                written.retain(|_, at| now.mono.saturating_sub(*at) < PAUSE);
                written.insert(uid, now.mono);
                store.upsert(newer.clone());
                Ok(Outcome::Written(newer))
            }
            Err(error) if code(&error) == Some(404) => Ok(Outcome::Gone),
            Err(error) if is_outdated(&error) => {
                let name = object.meta().name.as_deref().unwrap_or_default();
                if let Some(newer) = api.get_opt(name).await? {
                    store.upsert(newer);
                }
                Ok(Outcome::Outdated)
            }
            Err(error) => Err(error),
        }
    }

    /// Nothing has been written, as far as it remembers.
    #[cfg(test)]
    pub fn forget(&self) {
        lock(&self.written).clear();
    }

    /// The rest of the pause after the last write.
    fn left(&self, uid: &str, now: Now) -> Duration {
        let written = lock(&self.written).get(uid).copied();
        written.map_or(Duration::ZERO, |at| PAUSE.saturating_sub(now.mono.saturating_sub(at)))
    }
}

/// A conflict, or a test of a JSON patch that fails: the API server answers as to a patch that cannot be applied. To a status
/// that is invalid it answers with causes.
fn is_outdated(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) if status.code == 422 => {
            status.details.as_ref().is_none_or(|details| details.causes.is_empty())
        }
        error => code(error) == Some(409),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::api::apps::clone_set::{CloneSet, CloneSetStatus};
    use axum::http::{Request, Response, StatusCode};
    use kube::{Client, client::Body};

    fn object(version: &str) -> Value {
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": version},
            "spec": {"selector": {}, "template": {}}})
    }
    fn status(replicas: i32) -> CloneSetStatus {
        CloneSetStatus { replicas, ..CloneSetStatus::default() }
    }
    fn at(millis: u64) -> Now {
        Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), mono: Duration::from_millis(millis) }
    }

    /// An API server that answers a patch with a code and a read with version 9, and notes what comes.
    fn server(code: u16) -> (Api<CloneSet>, Arc<Mutex<Vec<String>>>) {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = seen.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let method = request.method().to_string();
            lock(&notes).push(method.clone());
            let (code, body) = match (method.as_str(), code) {
                ("GET", _) => (200, object("9")),
                (_, 200) => (200, object("8")),
                (_, code) => (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Test"})),
            };
            let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
            async move {
                Ok::<_, std::convert::Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        (Api::namespaced(Client::new(service, "default"), "ns"), seen)
    }

    async fn write(writer: &StatusWriter, api: &Api<CloneSet>, to: i32, can_wait: bool, now: Now) -> String {
        let store = Store::new(None);
        let set: CloneSet = serde_json::from_value(object("7")).unwrap();
        let outcome = writer.write((api, &store), &set, (&status(0), &status(to)), can_wait, now).await.unwrap();
        let version = |set: &CloneSet| set.metadata.resource_version.clone().unwrap_or_default();
        let held = store.list().first().map(|set| version(set)).unwrap_or_default();
        match outcome {
            Outcome::Unchanged => "unchanged".into(),
            Outcome::Written(set) => format!("written {} {held}", version(&set)),
            Outcome::Later(after) => format!("later {} {held}", after.as_millis()),
            Outcome::Outdated => format!("outdated {held}"),
            Outcome::Gone => "gone".into(),
        }
    }

    #[tokio::test]
    async fn only_what_has_changed_is_written_and_counts_a_second_apart() {
        let (writer, (api, seen)) = (StatusWriter::default(), server(200));
        assert_eq!(write(&writer, &api, 0, true, at(5000)).await, "unchanged");
        assert_eq!(write(&writer, &api, 1, true, at(5000)).await, "written 8 8");
        assert_eq!(write(&writer, &api, 2, true, at(5400)).await, "later 600 ");
        assert_eq!(write(&writer, &api, 2, false, at(5400)).await, "written 8 8", "what is news does not wait");
        assert_eq!(write(&writer, &api, 3, true, at(6400)).await, "written 8 8");
        assert_eq!(*lock(&seen), ["PATCH"; 3]);
    }

    #[tokio::test]
    async fn after_a_conflict_the_object_is_read_again() {
        let (writer, (api, seen)) = (StatusWriter::default(), server(409));
        assert_eq!(write(&writer, &api, 1, false, at(5000)).await, "outdated 9");
        assert_eq!(*lock(&seen), ["PATCH", "GET"]);
        let (api, _) = server(404);
        assert_eq!(write(&writer, &api, 1, false, at(5000)).await, "gone");
    }
}
