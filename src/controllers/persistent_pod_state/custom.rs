//! Targets of kinds that the ConfigMap `kruise-configuration` names. Nobody watches them: they are read when they are needed,
//! with rights that an administrator has to grant.

use std::{sync::Mutex, time::Duration};

use serde_json::Value;

use super::Controller;
use crate::{
    api::labels,
    domain::{
        kinds::persistent_pod_state::plan::{Hindrance, StateTargetView},
        workload::{numbering::Reserved, target::WorkloadTarget},
    },
    runtime::{
        clock, kruise_configuration as configuration, lock,
        object::{self, Found},
        watches::ObjectKey,
    },
};

impl Controller {
    /// A target that is no StatefulSet. Its Pods are counted from 0 on.
    ///
    /// # Errors
    /// Those of the API server, but 403 and 404.
    pub(super) async fn custom_target(
        &self,
        key: &ObjectKey,
        target: WorkloadTarget<'_>,
    ) -> kube::Result<Result<Option<StateTargetView>, Hindrance>> {
        let client = &self.context.client;
        let WorkloadTarget { api_version, kind, name, .. } = target;
        let is_whitelisted = match self.is_whitelisted(target).await {
            Ok(is_whitelisted) => is_whitelisted,
            Err(kube::Error::SerdeError(why)) => return Ok(Err(Hindrance::Unreadable(why.to_string()))),
            Err(error) => return Err(error),
        };
        if !is_whitelisted {
            let key = configuration::STATE_TARGETS;
            return Ok(Err(Hindrance::Invalid(format!(
                "spec.targetRef.kind: {kind:?} of {api_version:?} is not allowed; want a StatefulSet, or a kind that {key} in the ConfigMap kruise-configuration names"
            ))));
        }
        let read = object::read_with(client, &key.namespace, target.names(), &self.known_kinds.plurals).await?;
        if let Some(why) = read.refusal("Kruise's manager", labels::AGGREGATE_TO_MANAGER) {
            return Ok(Err(Hindrance::Unreadable(format!("spec.targetRef: {why}"))));
        }
        Ok(match read {
            Found::Object(target) => Ok(Some(view(&target))),
            Found::Impossible => {
                Err(Hindrance::Invalid(format!("spec.targetRef: {kind} {name:?} of {api_version:?} cannot exist")))
            }
            Found::Missing | Found::Forbidden(..) => Ok(None),
        })
    }
}

/// What is remembered of kinds, so that it is not read again with every change of a Pod.
#[derive(Default)]
pub(super) struct KnownKinds {
    /// The whitelist, and when it was read.
    whitelist: Mutex<Option<(String, Duration)>>,
    plurals: object::Plurals,
}

impl Controller {
    /// Whether the whitelist names a kind. A whitelist that names it is used for a while; otherwise it is read again at once.
    async fn is_whitelisted(&self, target: WorkloadTarget<'_>) -> kube::Result<bool> {
        let now = clock::now().mono;
        let names = |whitelist: &str| configuration::names_kind(whitelist, target.group, target.kind);
        let known = lock(&self.known_kinds.whitelist).clone();
        if known.is_some_and(|(whitelist, at)| now.saturating_sub(at) < object::KNOWN_FOR && names(&whitelist)) {
            return Ok(true);
        }
        let (client, own) = (&self.context.client, &self.context.namespace);
        let whitelist = configuration::text(client, own, configuration::STATE_TARGETS).await?.unwrap_or_default();
        let is_named = names(&whitelist);
        *lock(&self.known_kinds.whitelist) = Some((whitelist, now));
        Ok(is_named)
    }
}

fn view(object: &Value) -> StateTargetView {
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default();
    let replicas = i32::try_from(replicas.max(0)).unwrap_or(i32::MAX);
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let is_going = text("/metadata/deletionTimestamp").is_some();
    StateTargetView::new(text("/metadata/uid").unwrap_or_default(), is_going, replicas, 0, &Reserved::default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn e1_replicas_of_custom_workloads_are_read_as_an_integer() {
        for (spec, wanted) in [
            (json!({"replicas": 3}), 3),
            (json!({}), 0),
            (json!({"replicas": -1}), 0),
            (json!({"replicas": "3"}), 0),
            (json!({"replicas": 9_999_999_999_i64}), 2_147_483_647),
        ] {
            let object =
                json!({"apiVersion": "g/v1", "kind": "Db", "metadata": {"name": "db", "uid": "u"}, "spec": spec});
            assert_eq!(view(&object).ordinals.len(), wanted, "{spec}");
        }
    }
}
