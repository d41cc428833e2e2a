//! Admission of ResourceDistributions, without a look-up: the rules of the API server for Secrets and ConfigMaps are known here, so
//! the webhook needs no right to create some, not even in a dry run.
//!
//! CREATE fails closed, UPDATE fails open: the controller follows the same rules. That kind and name stay is CEL in the schema,
//! and that the author may read what is referred to is an admission policy. An update is not refused for what it does not
//! change.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    api::{
        apps::resource_distribution::ResourceDistributionSpec,
        feature_gates::{FeatureGates, gate},
    },
    domain::kinds::resource_distribution::{
        content::left_out,
        spec::{TargetSpec, problems},
    },
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        validate::is_judged,
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move { decide(&context.gates, &request) })
}

/// Decides.
///
/// # Errors
/// The gate is off, or a value is not allowed.
pub fn decide(gates: &FeatureGates, request: &Request) -> Decision {
    if !is_judged(request) {
        return Ok(Admitted::unchanged());
    }
    let is_new = request.operation == "CREATE";
    let gate = gate::RESOURCE_DISTRIBUTION;
    if is_new && !gates.enabled(gate) {
        let message = format!("feature gate {gate} is off: nobody would make the copies; switch it on");
        return Err(Denied::forbidden(message));
    }
    let read = |object: &Value| ResourceDistributionSpec::deserialize(&object["spec"]);
    let spec = read(&request.object).map_err(|error| Denied::bad_request(format!("spec: {error}")))?;
    let mut found = problems(&spec);
    if !is_new && let Ok(old) = read(&request.old_object) {
        let before = problems(&old);
        found.retain(|problem| !before.contains(problem));
    }
    if !found.is_empty() {
        let causes = found.into_iter().map(|(field, message)| Cause { field, message });
        return Err(Denied::invalid(causes.collect()));
    }
    let left_out = spec.resource.iter().flat_map(left_out);
    let mut warnings: Vec<String> = left_out.map(|field| format!("{field} is not copied")).collect();
    if TargetSpec::of(&spec).is_for_nobody() {
        warnings.push("spec.targets: no namespace is meant".into());
    }
    Ok(Admitted { warnings, ..Admitted::unchanged() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gates() -> FeatureGates {
        FeatureGates::parse(&["ResourceDistributionGate=true"], None).unwrap()
    }

    fn request(spec: Value) -> Request {
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution",
            "metadata": {"name": "d"}, "spec": spec});
        Request { operation: "CREATE".into(), object, ..Request::default() }
    }

    fn with_resource(resource: Value) -> Value {
        let mut whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}});
        json_patch::merge(&mut whole, &resource);
        json!({"resource": whole, "targets": {"includedNamespaces": {"list": [{"name": "a"}]}}})
    }

    fn with_secret(resource: Value) -> Value {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
        json_patch::merge(&mut secret, &resource);
        json!({"resource": secret, "targets": {"allNamespaces": true}})
    }

    fn with_targets(targets: Value) -> Value {
        let mut spec = with_resource(json!({}));
        spec["targets"] = targets;
        spec
    }

    fn fields(spec: Value) -> Vec<String> {
        match decide(&gates(), &request(spec)) {
            Ok(_) => vec![],
            Err(denied) => {
                assert_eq!(denied.code, 422, "{denied:?}");
                denied.causes.into_iter().map(|cause| cause.field).collect()
            }
        }
    }

    #[test]
    fn with_the_gate_off_new_ones_are_refused_and_stored_ones_can_be_changed() {
        let off = FeatureGates::default();
        let mut new = request(with_resource(json!({})));
        let denied = decide(&off, &new).unwrap_err();
        assert_eq!(denied.code, 403);
        assert!(denied.message.contains("ResourceDistributionGate"), "{}", denied.message);
        new.operation = "UPDATE".into();
        new.old_object = new.object.clone();
        assert!(decide(&off, &new).is_ok());
    }

    #[test]
    fn every_field_of_the_resource_is_judged_and_named() {
        let none: [&str; 0] = [];
        assert_eq!(fields(with_resource(json!({}))), none);
        assert_eq!(fields(with_resource(json!({"apiVersion": "v2"}))), ["spec.resource.kind"]);
        assert_eq!(fields(with_resource(json!({"kind": "Pod"}))), ["spec.resource.kind"]);
        assert_eq!(fields(with_resource(json!({"metadata": {"name": "A"}}))), ["spec.resource.metadata.name"]);
        assert_eq!(fields(with_resource(json!({"metadata": null}))), ["spec.resource.metadata.name"]);
        let labels =
            json!({"metadata": {"labels": {"a b": "c", "d": "e f"}, "annotations": {"ok": "any text", "x/y/z": ""}}});
        assert_eq!(
            fields(with_resource(labels)),
            [
                "spec.resource.metadata.labels[a b]",
                "spec.resource.metadata.labels[d]",
                "spec.resource.metadata.annotations[x/y/z]"
            ]
        );
        let finalizers = json!({"metadata": {"finalizers": ["example.com/hold", "a b"]}});
        assert_eq!(fields(with_resource(finalizers)), ["spec.resource.metadata.finalizers[1]"]);
        let data = json!({"data": {"../x": "v", "n": 1, "both": ""}, "binaryData": {"both": "", "bad": "?"}});
        assert_eq!(
            fields(with_resource(data)),
            [
                "spec.resource.data[../x]",
                "spec.resource.data[n]",
                "spec.resource.binaryData[bad]",
                "spec.resource.binaryData"
            ]
        );
        assert_eq!(fields(with_resource(json!({"stringData": {"a": "b"}}))), ["spec.resource.stringData"]);
        assert_eq!(fields(with_resource(json!({"type": "Opaque"}))), ["spec.resource.type"]);
        assert_eq!(fields(with_resource(json!({"immutable": "yes"}))), ["spec.resource.immutable"]);
        let large = "x".repeat(1024 * 1024);
        assert_eq!(fields(with_resource(json!({"data": {"k": large}}))), none);
        assert_eq!(fields(with_resource(json!({"data": {"k": large, "l": "y"}}))), ["spec.resource.data"]);
    }

    #[test]
    fn secrets_are_judged_as_the_api_server_judges_them() {
        let none: [&str; 0] = [];
        assert_eq!(fields(with_secret(json!({"stringData": {"a": "b"}}))), none);
        assert_eq!(fields(with_secret(json!({"data": {"a": "Yg==\n"}}))), none);
        assert_eq!(fields(with_secret(json!({"data": {"a": "plain text"}}))), ["spec.resource.data[a]"]);
        assert_eq!(fields(with_secret(json!({"binaryData": {"a": ""}}))), ["spec.resource.binaryData"]);
        let of_type = |type_: &str, data: Value| fields(with_secret(json!({"type": type_, "stringData": data})));
        assert_eq!(of_type("kubernetes.io/tls", json!({"tls.crt": ""})), ["spec.resource.data[tls.key]"]);
        assert_eq!(of_type("kubernetes.io/tls", json!({"tls.crt": "", "tls.key": ""})), none);
        assert_eq!(of_type("kubernetes.io/ssh-auth", json!({})), ["spec.resource.data[ssh-privatekey]"]);
        assert_eq!(of_type("kubernetes.io/basic-auth", json!({"password": "x"})), none);
        assert_eq!(of_type("kubernetes.io/basic-auth", json!({})), ["spec.resource.data[username]"]);
        let docker = "kubernetes.io/dockerconfigjson";
        assert_eq!(of_type(docker, json!({".dockerconfigjson": "{}"})), none);
        assert_eq!(of_type(docker, json!({".dockerconfigjson": "{"})), ["spec.resource.data[.dockerconfigjson]"]);
        assert_eq!(of_type("kubernetes.io/dockercfg", json!({})), ["spec.resource.data[.dockercfg]"]);
        for forbidden in ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"] {
            assert_eq!(of_type(forbidden, json!({})), ["spec.resource.type"], "{forbidden}");
        }
    }

    #[test]
    fn no_answer_quotes_a_value() {
        let secret = "c2VjcmV0LXZhbHVl?";
        let spec = with_secret(
            json!({"data": {"a": secret}, "immutable": secret, "metadata": {"labels": {"l": "x ".repeat(9)}}}),
        );
        let denied = decide(&gates(), &request(spec)).unwrap_err();
        assert_eq!(denied.causes.len(), 3, "{denied:?}");
        assert!(!format!("{denied:?}").contains(secret), "{denied:?}");
    }

    /// F5: OpenKruise tries to create the object in its own namespace, and has to bear with one that is there.
    #[test]
    fn f5_validation_rests_on_no_object_and_no_right() {
        let ours =
            |handler: &&crate::webhook::server::handler::Handler| handler.name.starts_with("vresourcedistribution");
        let handlers: Vec<_> = crate::webhook::HANDLERS.iter().filter(ours).collect();
        assert_eq!(handlers.len(), 2);
        assert!(handlers.iter().all(|handler| handler.rbac.is_empty() && handler.gate.is_none()));
        assert!(fields(with_resource(json!({"metadata": {"name": "kruise-feature-gates"}}))).is_empty());
    }

    #[test]
    fn targets_and_references_are_judged_and_named() {
        let list = |names: &[&str]| json!({"list": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
        let none: [&str; 0] = [];
        assert_eq!(
            fields(with_targets(json!({"includedNamespaces": list(&["a", "B", ""])}))),
            ["spec.targets.includedNamespaces.list[1].name", "spec.targets.includedNamespaces.list[2].name"]
        );
        let both = json!({"includedNamespaces": list(&["a", "b"]), "excludedNamespaces": list(&["c", "b", "x.y"])});
        assert_eq!(
            fields(with_targets(both)),
            ["spec.targets.excludedNamespaces.list[1].name", "spec.targets.excludedNamespaces.list[2].name"]
        );
        let selector = |selector: Value| fields(with_targets(json!({"namespaceLabelSelector": selector})));
        assert_eq!(selector(json!({})), none, "unused");
        assert_eq!(selector(json!({"matchLabels": {"team": "shop"}})), none);
        let at = "spec.targets.namespaceLabelSelector";
        assert_eq!(selector(json!({"matchLabels": {"a b": "c"}})), [format!("{at}.matchLabels[a b]")]);
        let expression = |operator: &str, values: Value| {
            selector(json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}))
        };
        assert_eq!(expression("In", json!(["a"])), none);
        assert_eq!(expression("In", json!([])), [format!("{at}.matchExpressions[0].values")]);
        assert_eq!(expression("Exists", json!(["a"])), [format!("{at}.matchExpressions[0].values")]);
        assert_eq!(expression("Like", json!([])), [format!("{at}.matchExpressions[0].operator")]);

        let reference = |kind: &str, namespace: &str, name: &str| {
            fields(json!({"resourceRef": {"kind": kind, "namespace": namespace, "name": name}, "targets": {}}))
        };
        assert_eq!(reference("Secret", "a", "b.c"), none);
        assert_eq!(reference("Pod", "a", "b"), ["spec.resourceRef.kind"]);
        assert_eq!(reference("Secret", "a/b", "c?"), ["spec.resourceRef.namespace", "spec.resourceRef.name"]);
        assert_eq!(fields(json!({"targets": {}})), ["spec"]);
        let mut both = with_resource(json!({}));
        both["resourceRef"] = json!({"kind": "Secret", "namespace": "a", "name": "b"});
        assert_eq!(fields(both), ["spec"]);
    }

    #[test]
    fn what_is_not_copied_and_a_target_that_means_nobody_are_warned_of() {
        let spec = with_resource(json!({"metadata": {"namespace": "a", "ownerReferences": []}, "status": {}}));
        let warnings = decide(&gates(), &request(spec)).unwrap().warnings;
        assert_eq!(
            warnings,
            [
                "spec.resource.status is not copied",
                "spec.resource.metadata.namespace is not copied",
                "spec.resource.metadata.ownerReferences is not copied"
            ]
        );
        let list = json!({"list": [{"name": "a"}]});
        for targets in [json!({}), json!({"namespaceLabelSelector": {}}), json!({"excludedNamespaces": list})] {
            let warnings = decide(&gates(), &request(with_targets(targets.clone()))).unwrap().warnings;
            assert_eq!(warnings, ["spec.targets: no namespace is meant"], "{targets}");
        }
        let warnings = decide(&gates(), &request(with_targets(json!({"allNamespaces": true})))).unwrap().warnings;
        assert!(warnings.is_empty());
    }

    #[test]
    fn an_update_is_not_refused_for_what_it_does_not_change() {
        let mut update = request(with_resource(json!({"data": {"../x": "v"}})));
        update.operation = "UPDATE".into();
        update.old_object = update.object.clone();
        assert!(decide(&gates(), &update).is_ok());
        update.object["spec"]["resource"]["data"]["../y"] = "v".into();
        let denied = decide(&gates(), &update).unwrap_err();
        assert_eq!(denied.causes.len(), 1);
        update.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(decide(&gates(), &update).is_ok(), "finalizers can be removed");
        let wrong = request(json!({"targets": "all"}));
        assert_eq!(decide(&gates(), &wrong).unwrap_err().code, 400);
    }
}
