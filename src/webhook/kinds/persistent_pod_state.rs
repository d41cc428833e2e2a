//! Admission of PersistentPodStates: fields, and others for the same target. Nothing is changed.
//!
//! CREATE fails closed, UPDATE fails open and lets every change of an object through that is being deleted. That the target
//! stays is CEL in the schema. An update is not refused for what it does not change.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::{Api, api::ListParams};
use serde_json::Value;

use crate::{
    api::apps::persistent_pod_state::PersistentPodState,
    domain::kinds::persistent_pod_state::spec::{StateProblem, is_same_target, is_stateful_set, problems},
    runtime::{apply::said, kruise_configuration as configuration},
    webhook::{
        Context,
        server::{
            review::{Admitted, Cause, Decision, Denied, Request},
            scope,
        },
        validate::is_judged,
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let state = decoded(&request.object)?;
        let target = &state.spec.target_ref;
        let whitelist = match is_stateful_set(target.group(), &target.kind) {
            true => String::new(),
            false => whitelist(&context).await?,
        };
        let old = (request.operation == "UPDATE").then(|| decoded(&request.old_object).ok()).flatten();
        let mut causes = judge(&state, old.as_ref(), &whitelist);
        if old.is_none() {
            let api: Api<PersistentPodState> = Api::namespaced(context.client.clone(), &request.namespace);
            let others = api.list(&ListParams::default()).await.map_err(|error| {
                let why = said(&error);
                Denied::internal(format!("the other PersistentPodStates of the namespace could not be read: {why}"))
            })?;
            causes.extend(taken(&state, &others.items));
        }
        if !causes.is_empty() {
            return Err(Denied::invalid(causes));
        }
        if !request.dry_run && old.is_none() && !scope::is_never_listed(&request.namespace, &context.namespace) {
            // What is recorded is for the next Pod of a name, which may come right after that.
            context.for_new_pods.announce([request.namespace.to_string()].into()).await;
        }
        Ok(Admitted::unchanged())
    })
}

fn decoded(object: &Value) -> Result<PersistentPodState, Denied> {
    serde_json::from_value(object.clone())
        .map_err(|error| Denied::bad_request(format!("not a PersistentPodState: {error}")))
}

async fn whitelist(context: &Context) -> Result<String, Denied> {
    let text = configuration::text(&context.client, &context.namespace, configuration::STATE_TARGETS).await;
    text.map(Option::unwrap_or_default).map_err(|error| {
        let why = said(&error);
        Denied::internal(format!("the ConfigMap {} could not be read: {why}", configuration::NAME))
    })
}

/// What is wrong with an object by itself. What is wrong with the stored one too may stay.
fn judge(state: &PersistentPodState, old: Option<&PersistentPodState>, whitelist: &str) -> Vec<Cause> {
    let is_permitted =
        |group: &str, kind: &str| is_stateful_set(group, kind) || configuration::names_kind(whitelist, group, kind);
    let before: Vec<StateProblem> = old.map(|old| problems(old, is_permitted)).unwrap_or_default();
    let found = problems(state, is_permitted).into_iter().filter(|problem| !before.contains(problem));
    found.map(|(field, message)| Cause { field, message }).collect()
}

/// A target has one.
fn taken(state: &PersistentPodState, others: &[PersistentPodState]) -> Option<Cause> {
    let is_other = |other: &&PersistentPodState| {
        other.metadata.deletion_timestamp.is_none()
            && other.metadata.name != state.metadata.name
            && is_same_target(&other.spec, &state.spec)
    };
    let other = others.iter().find(is_other)?.metadata.name.as_deref().unwrap_or_default();
    let target = &state.spec.target_ref;
    Some(Cause {
        field: "spec.targetRef".into(),
        message: format!(
            "{} {:?} has PersistentPodState {other:?} already; want one for each",
            target.kind, target.name
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{api::feature_gates::FeatureGates, runtime::fake_api};

    const WHITELIST: &str = r#"{"workloads":[{"Group":"db.example","Version":"v1","Kind":"Cluster"}]}"#;

    fn state(changes: Value) -> PersistentPodState {
        let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PersistentPodState",
            "metadata": {"name": "db", "namespace": "ns"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
                "requiredPersistentTopology": {"nodeTopologyKeys": ["kubernetes.io/hostname"]}}});
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }

    fn fields(changes: Value) -> Vec<String> {
        judge(&state(changes), None, WHITELIST).into_iter().map(|cause| cause.field).collect()
    }

    fn target(api_version: &str, kind: &str, name: &str) -> Value {
        json!({"spec": {"targetRef": {"apiVersion": api_version, "kind": kind, "name": name}}})
    }

    #[test]
    fn shortfall_every_field_is_judged_and_named() {
        let none: [&str; 0] = [];
        assert_eq!(fields(json!({})), none);
        assert_eq!(fields(target("apps.kruise.io/v1alpha1", "StatefulSet", "db")), none);
        assert_eq!(fields(target("db.example/v7", "Cluster", "db")), none, "the whitelist names it");
        assert_eq!(fields(target("apps/v1", "Deployment", "db")), ["spec.targetRef.kind"]);
        assert_eq!(fields(target("example.com/v1", "StatefulSet", "db")), ["spec.targetRef.kind"]);
        assert_eq!(fields(target("apps/v1", "StatefulSet", "")), ["spec.targetRef.name"]);
        let spec = |spec: Value| fields(json!({"spec": spec}));
        assert_eq!(spec(json!({"requiredPersistentTopology": null})), ["spec"]);
        assert_eq!(
            spec(json!({"requiredPersistentTopology": {"nodeTopologyKeys": ["a", "b c"]}})),
            ["spec.requiredPersistentTopology.nodeTopologyKeys[1]"]
        );
        let preferred = |weight: i32, keys: Value| {
            spec(json!({"preferredPersistentTopology": [{"weight": weight, "preference": {"nodeTopologyKeys": keys}}]}))
        };
        assert_eq!(preferred(100, json!(["zone"])), none);
        let at = "spec.preferredPersistentTopology[0]";
        assert_eq!(preferred(0, json!(["zone"])), [format!("{at}.weight")]);
        assert_eq!(preferred(101, json!([])), [format!("{at}.weight"), format!("{at}.preference.nodeTopologyKeys")]);
        let policy = |policy: &str| spec(json!({"persistentPodStateRetentionPolicy": policy}));
        assert_eq!((policy("WhenScaled"), policy("WhenDeleted")), (vec![], vec![]));
        assert_eq!(policy("Never"), ["spec.persistentPodStateRetentionPolicy"]);
        let annotation = |key: &str| spec(json!({"persistentPodAnnotations": [{"key": key}]}));
        assert_eq!(annotation("ovn.kubernetes.io/ip_address"), none);
        for key in ["", "a b", "kruise.rs/x", "apps.kruise.io/inplace-update-state"] {
            assert_eq!(annotation(key), ["spec.persistentPodAnnotations[0].key"], "{key}");
        }
        let clear = |text: &str| {
            let key = "kruise.rs/clear-after-node-not-ready-seconds";
            fields(json!({"metadata": {"annotations": {key: text}}}))
        };
        assert_eq!(clear("600"), none);
        for text in ["", "0", "-1", "10m", "1e3", "99999999999"] {
            assert_eq!(clear(text), ["metadata.annotations[kruise.rs/clear-after-node-not-ready-seconds]"], "{text}");
        }
    }

    #[test]
    fn lists_have_a_bound() {
        let many: Vec<String> = (0..17).map(|i| format!("k{i}")).collect();
        let keys = fields(json!({"spec": {"requiredPersistentTopology": {"nodeTopologyKeys": many}}}));
        assert_eq!(keys, ["spec.requiredPersistentTopology.nodeTopologyKeys"]);
        let many: Vec<Value> = (0..17).map(|i| json!({"key": format!("k{i}")})).collect();
        assert_eq!(fields(json!({"spec": {"persistentPodAnnotations": many}})), ["spec.persistentPodAnnotations"]);
    }

    #[test]
    fn an_update_is_not_refused_for_what_it_does_not_change() {
        let stored = state(json!({"spec": {"persistentPodStateRetentionPolicy": "Never"}}));
        assert!(judge(&stored, Some(&stored), "").is_empty());
        let worse = state(json!({"spec": {"persistentPodStateRetentionPolicy": "Ever"}}));
        assert_eq!(judge(&worse, Some(&stored), "").len(), 1);
    }

    #[test]
    fn a_target_has_one_in_whatever_version_it_is_named() {
        let other = |name: &str, changes: Value| {
            let mut other = state(changes);
            other.metadata.name = Some(name.into());
            other
        };
        let same = other("other", json!({}));
        let found = taken(&state(json!({})), std::slice::from_ref(&same)).unwrap();
        assert!(found.field == "spec.targetRef" && found.message.contains("\"other\""), "{found:?}");
        let ours = |version: &str| target(&format!("apps.kruise.io/{version}"), "StatefulSet", "db");
        assert!(taken(&state(ours("v1beta1")), &[other("other", ours("v1alpha1"))]).is_some());
        for harmless in [
            other("db", json!({})),
            other("other", ours("v1beta1")),
            other("other", target("apps/v1", "StatefulSet", "db-2")),
            other("other", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        ] {
            assert!(taken(&state(json!({})), std::slice::from_ref(&harmless)).is_none(), "{harmless:?}");
        }
    }

    #[tokio::test]
    async fn a_new_one_has_the_api_server_call_for_the_pods_of_its_namespace() {
        let creation = |namespace: &str| Request {
            operation: "CREATE".into(),
            namespace: namespace.into(),
            object: json!(state(json!({}))),
            ..Request::default()
        };
        let bad = json!(state(json!({"spec": {"requiredPersistentTopology": null}})));
        let update = Request { operation: "UPDATE".into(), old_object: json!(state(json!({}))), ..creation("ns") };
        for (request, announced) in [
            (creation("ns"), &["ns"][..]),
            (creation("kube-system"), &[]),
            (creation("kruise-system"), &[]),
            (Request { dry_run: true, ..creation("ns") }, &[]),
            (Request { object: bad, ..creation("ns") }, &[]),
            (update, &[]),
        ] {
            let client = fake_api::answering(|_, _| (200, json!({"metadata": {}, "items": []})));
            let context = Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default()).0;
            // API servers know of it already, so that nobody waits.
            context.for_new_pods.registered().send_replace(Some(BTreeSet::from(["ns".to_owned()])));
            let (context, shown) = (Arc::new(context), format!("{request:?}"));
            let _ = handle(context.clone(), request).await;
            let wanted: BTreeSet<String> = announced.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(*context.for_new_pods.scope().borrow(), wanted, "{shown}");
        }
    }
}
