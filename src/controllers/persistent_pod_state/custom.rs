//! Targets of kinds that the ConfigMap `kruise-configuration` names. Nobody watches them: they are read when they are needed,
//! with rights that an administrator has to grant.

use kube::{
    Api,
    api::{ApiResource, DynamicObject},
};
use serde_json::Value;

use super::Controller;
use crate::{
    api::{apps::persistent_pod_state::StateTarget, group_and_version, labels},
    domain::{
        kinds::persistent_pod_state::plan::{Hindrance, StateTargetView},
        workload::numbering::Reserved,
    },
    k8s::name::is_dns_subdomain,
    runtime::{apply::code, kruise_configuration as configuration, watches::ObjectKey},
};

impl Controller {
    /// A target that is no StatefulSet. Its Pods are counted from 0 on.
    ///
    /// # Errors
    /// Those of the API server, but 403 and 404.
    pub(super) async fn custom_target(
        &self,
        key: &ObjectKey,
        target: &StateTarget,
    ) -> kube::Result<Result<Option<StateTargetView>, Hindrance>> {
        let (client, own) = (&self.context.client, &self.context.namespace);
        let whitelist = configuration::text(client, own, configuration::STATE_TARGETS).await?.unwrap_or_default();
        let StateTarget { api_version, kind, name } = target;
        if !configuration::names_kind(&whitelist, target.group(), kind) {
            let key = configuration::STATE_TARGETS;
            return Ok(Err(Hindrance::Invalid(format!(
                "spec.targetRef.kind: {kind:?} of {api_version:?} is not allowed; want a StatefulSet, or a kind that {key} in the ConfigMap kruise-configuration names"
            ))));
        }
        let (group, version) = group_and_version(api_version);
        let is_group = group.is_empty() || is_dns_subdomain(group);
        if !is_group || !is_dns_subdomain(version) || !is_dns_subdomain(name) {
            return Ok(Err(Hindrance::Invalid(format!(
                "spec.targetRef: {kind} {name:?} of {api_version:?} cannot exist"
            ))));
        }
        let served = match group {
            "" => client.list_core_api_resources(version).await,
            _ => client.list_api_group_resources(api_version).await,
        };
        let served = match served {
            Ok(served) => served.resources,
            Err(error) if code(&error) == Some(404) => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        let Some(plural) = served.into_iter().find(|of| of.kind == *kind && !of.name.contains('/')) else {
            return Ok(Ok(None));
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.clone(),
            kind: kind.clone(),
            plural: plural.name,
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, &resource);
        Ok(match api.get_opt(name).await {
            Ok(found) => Ok(found.map(|found| view(&found))),
            Err(error) if code(&error) == Some(403) => Err(Hindrance::Unreadable(forbidden(&resource, &error))),
            Err(error) => return Err(error),
        })
    }
}

fn view(object: &DynamicObject) -> StateTargetView {
    let replicas = object.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default();
    let replicas = i32::try_from(replicas.max(0)).unwrap_or(i32::MAX);
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    StateTargetView::new(uid, object.metadata.deletion_timestamp.is_some(), replicas, 0, &Reserved::default())
}

fn forbidden(resource: &ApiResource, error: &kube::Error) -> String {
    let (group, plural) = (&resource.group, &resource.plural);
    format!(
        "spec.targetRef: Kruise's manager may not read it; grant it with a ClusterRole that has the label {}: \"true\" and the rule apiGroups [{group:?}], resources [{plural}], verbs [get]. The API server says: {error}",
        labels::AGGREGATE_TO_MANAGER
    )
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
            let object: DynamicObject = serde_json::from_value(
                json!({"apiVersion": "g/v1", "kind": "Db", "metadata": {"name": "db", "uid": "u"}, "spec": spec}),
            )
            .unwrap();
            assert_eq!(view(&object).ordinals.len(), wanted, "{spec}");
        }
    }
}
