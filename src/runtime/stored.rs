//! One object in the API server and in a store of ours: what an answer to a write says goes into the store at once, and a
//! 404 or 409, which says that the store was behind, corrects it.

use std::fmt::Debug;

use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Preconditions},
};
use serde::de::DeserializeOwned;

use super::{
    apply::code,
    watches::{ObjectKey, Store, StoredObject},
};

/// Objects that are read at a time.
const PAGE: u32 = 500;

/// Reads the objects of a namespace that a label selector matches: nothing that is there now is missing from the store
/// afterwards, however late the watch is.
///
/// # Errors
/// Those of the API server.
pub async fn read_all<W, K>(api: &Api<W>, store: &Store<K>, selector: &str) -> kube::Result<()>
where
    W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Into<K>,
    K: StoredObject,
{
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(|object| drop(store.upsert(object.into())));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Deletes one object and no namesake of it.
pub fn only(uid: &str) -> DeleteParams {
    only_version(uid, None)
}

/// Deletes one object, if it is still in the version that was looked at.
pub fn only_version(uid: &str, version: Option<&str>) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: version.map(str::to_owned) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Corrects the store after a write of `object` was refused because the store was behind: after 404 the object is gone, after
/// 409 it is read again. Any other answer says nothing about the object. True: the store was behind.
///
/// # Errors
/// Those of the API server while it is read.
pub async fn correct<W, K>(api: &Api<W>, store: &Store<K>, object: &K, error: &kube::Error) -> kube::Result<bool>
where
    W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Into<K>,
    K: StoredObject,
{
    let key = ObjectKey::of(object);
    match code(error) {
        Some(404) => drop(store.remove(&key, object.object_uid())),
        Some(409) => match api.get_opt(&key.name).await? {
            Some(newer) => drop(store.upsert(newer.into())),
            None => drop(store.remove(&key, object.object_uid())),
        },
        _ => return Ok(false),
    }
    Ok(true)
}

/// Deletes an object gracefully, and no namesake of it. False: it was gone already, or another one has its name.
///
/// # Errors
/// Those of the API server, but 404 and 409.
pub async fn delete<W, K>(api: &Api<W>, store: &Store<K>, object: &K) -> kube::Result<bool>
where
    W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Into<K>,
    K: StoredObject,
{
    delete_version(api, store, object, None).await
}

/// The same, if it is still in the version that was looked at, where one is given. False: it has changed, too.
///
/// # Errors
/// Those of the API server, but 404 and 409.
pub async fn delete_version<W, K>(
    api: &Api<W>,
    store: &Store<K>,
    object: &K,
    version: Option<&str>,
) -> kube::Result<bool>
where
    W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Into<K>,
    K: StoredObject,
{
    let key = ObjectKey::of(object);
    let uid = object.object_uid();
    match api.delete(&key.name, &only_version(uid.unwrap_or_default(), version)).await {
        Ok(answer) => match answer.left().filter(|left| left.meta().deletion_timestamp.is_some()) {
            Some(ending) => drop(store.upsert(ending.into())),
            None => drop(store.remove(&key, uid)),
        },
        Err(error) => {
            if !correct(api, store, object, &error).await? {
                return Err(error);
            }
            return Ok(false);
        }
    }
    Ok(true)
}
