//! Objects are deleted when their time to live is over.

use std::{fmt::Debug, time::Duration};

use kube::{
    Api, Resource,
    api::{DeleteParams, Preconditions},
};
use serde::de::DeserializeOwned;

use super::{apply::code, pass::AFTER_WATCHED_CONFLICT, queue::Requeue};

/// After admission has refused the deletion, as it does while a label protects the object.
const AFTER_PROTECTION: Duration = Duration::from_secs(300);

/// Deletes an object whose time to live is over, in the version that was looked at: somebody may just have prolonged its time.
/// Says when to look again.
///
/// # Errors
/// As [`after`] says.
pub async fn delete<K>(api: &Api<K>, object: &K) -> kube::Result<Requeue>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let meta = object.meta();
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    after(api.delete(meta.name.as_deref().unwrap_or_default(), &parameters).await)
}

/// What to do after the answer. Nothing, if the object is gone: the watch reports that.
///
/// # Errors
/// The API server's, but for a refusal: that stays so until somebody takes a label away, and is no failure.
fn after<T>(answer: kube::Result<T>) -> kube::Result<Requeue> {
    match answer {
        Err(error) if code(&error) == Some(403) => {
            tracing::info!(%error, "it is kept beyond its time to live");
            Ok(Requeue::After(AFTER_PROTECTION))
        }
        Err(error) if code(&error) == Some(409) => Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
        Err(error) if code(&error) != Some(404) => Err(error),
        _ => Ok(Requeue::Await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected_outlives_its_time_to_live_without_a_failure() {
        let answer = |code: u16| {
            let status = serde_json::json!({"code": code, "message": format!("code {code}")});
            after::<()>(Err(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))).ok()
        };
        assert_eq!(after(Ok(())).ok(), Some(Requeue::Await));
        let changed = Some(Requeue::After(AFTER_WATCHED_CONFLICT));
        assert_eq!((answer(404), answer(409)), (Some(Requeue::Await), changed));
        assert_eq!((answer(403), answer(500)), (Some(Requeue::After(AFTER_PROTECTION)), None));
    }
}
