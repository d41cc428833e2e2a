//! The ConfigMap whose keys let containers start.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::{
    domain::pod::launch_priority::{barrier_of, key_of},
    k8s::pod::PodView,
    runtime::apply,
};

/// The result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// The keys are there.
    Yes {
        /// UID of the ConfigMap.
        config_map: String,
    },
    /// It was changed or deleted meanwhile.
    Changed,
    /// The name is taken.
    Foreign,
}

/// Whose a ConfigMap is.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    ThisPod,
    /// A Pod of the same name before this one. Its keys would let all containers start at once.
    FormerPod,
    Other,
}

/// Creates the keys of some priorities if they are missing. `known` is the UID of the barrier, if it is known.
pub(super) async fn open(
    api: &Api<ConfigMap>,
    pod: &PodView,
    priorities: &BTreeSet<i32>,
    known: Option<&str>,
) -> kube::Result<Opened> {
    let name = barrier_of(pod.name());
    let keys: BTreeMap<String, String> = priorities.iter().map(|p| (key_of(*p), "true".to_owned())).collect();
    if let Some(uid) = known {
        return patch(api, &name, json!({ "metadata": { "uid": uid }, "data": keys })).await;
    }
    let barrier = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: Some(vec![reference(pod)]),
            ..ObjectMeta::default()
        },
        data: Some(keys.clone()),
        ..ConfigMap::default()
    };
    match api.create(&PostParams::default(), &barrier).await {
        Ok(made) => return Ok(Opened::Yes { config_map: made.metadata.uid.unwrap_or_default() }),
        Err(error) if apply::code(&error) == Some(409) => {}
        Err(error) => return Err(error),
    }
    let Some(found) = api.get_opt(&name).await? else { return Ok(Opened::Changed) };
    let data = found.data.unwrap_or_default();
    match owner(&found.metadata, pod) {
        Owner::ThisPod if keys.keys().all(|key| data.contains_key(key)) => {
            Ok(Opened::Yes { config_map: found.metadata.uid.unwrap_or_default() })
        }
        Owner::ThisPod => patch(api, &name, json!({ "metadata": { "uid": found.metadata.uid }, "data": keys })).await,
        Owner::FormerPod => {
            // Taken over rather than deleted: nothing is lost if the garbage collector is quicker.
            let mut data: Map<String, Value> = data.into_keys().map(|key| (key, Value::Null)).collect();
            data.extend(keys.into_iter().map(|(key, value)| (key, value.into())));
            let metadata = json!({ "uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version,
                "ownerReferences": [reference(pod)] });
            patch(api, &name, json!({ "metadata": metadata, "data": data })).await
        }
        Owner::Other => Ok(Opened::Foreign),
    }
}

async fn patch(api: &Api<ConfigMap>, name: &str, patch: Value) -> kube::Result<Opened> {
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(patched) => Ok(Opened::Yes { config_map: patched.metadata.uid.unwrap_or_default() }),
        Err(error) if matches!(apply::code(&error), Some(404 | 409)) => Ok(Opened::Changed),
        Err(error) => Err(error),
    }
}

fn reference(pod: &PodView) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        ..OwnerReference::default()
    }
}

fn owner(metadata: &ObjectMeta, pod: &PodView) -> Owner {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    if owners.iter().any(|owner| owner.uid == pod.uid()) {
        Owner::ThisPod
    } else if owners.iter().any(|owner| owner.api_version == "v1" && owner.kind == "Pod" && owner.name == pod.name()) {
        Owner::FormerPod
    } else {
        Owner::Other
    }
}
