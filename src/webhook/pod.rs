//! Admission of Pods, CREATE only: the readiness gate KruisePodReady.
//!
//! Fails open: a Pod that was missed runs without the gate, which the manager finds and reports. Conditions in the
//! webhook's registration keep the API server from calling for Pods that need nothing; the same rules are here again,
//! because a registration may lag behind.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::{
    api::{
        apps,
        feature_gates::{FeatureGates, gate},
        labels::CONDITION_KRUISE_POD_READY,
    },
    webhook::{
        Context, MatchCondition,
        review::{Admitted, Decision, Denied, Request},
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        admit(&context.gates, &request.object)
    })
}

/// Adds the gate to Pods of Kruise workloads, or to all with the feature gate KruisePodReadinessGate.
///
/// # Errors
/// The object is no Pod.
pub fn admit(gates: &FeatureGates, pod: &Value) -> Decision {
    let gates_of_pod = match pod.pointer("/spec/readinessGates") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Denied::bad_request("spec.readinessGates is not allowed; want a list")),
    };
    if !pod.pointer("/spec").is_some_and(Value::is_object) {
        return Err(Denied::bad_request("spec is not allowed; want the spec of a Pod"));
    }
    let has_gate = gates_of_pod.iter().any(|g| g["conditionType"] == CONDITION_KRUISE_POD_READY);
    if has_gate || !(gates.enabled(gate::KRUISE_POD_READINESS_GATE) || is_controlled_by_kruise(pod)) {
        return Ok(Admitted::unchanged());
    }
    let mut wanted = pod.clone();
    let mut list = gates_of_pod.to_vec();
    list.push(json!({ "conditionType": CONDITION_KRUISE_POD_READY }));
    wanted["spec"]["readinessGates"] = list.into();
    Ok(Admitted::changed(pod, &wanted))
}

fn is_controlled_by_kruise(pod: &Value) -> bool {
    pod.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten().any(|owner| {
        let group = owner["apiVersion"].as_str().and_then(|version| version.split_once('/')).map(|(group, _)| group);
        owner["controller"] == true && group == Some(apps::GROUP)
    })
}

/// The rules of [`admit`] in CEL, so that the API server calls us only for Pods that we would change.
pub fn match_conditions(gates: &FeatureGates) -> Vec<MatchCondition> {
    let lacks_gate = format!(
        "!has(object.spec.readinessGates) || !object.spec.readinessGates.exists(g, g.conditionType == '{CONDITION_KRUISE_POD_READY}')"
    );
    let owned = format!(
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.apiVersion.startsWith('{}/'))",
        apps::GROUP
    );
    let mut conditions = vec![MatchCondition { name: "lacks-kruise-pod-ready", expression: lacks_gate }];
    if !gates.enabled(gate::KRUISE_POD_READINESS_GATE) {
        conditions.push(MatchCondition { name: "controlled-by-kruise-workload", expression: owned });
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(api_version: &str, controller: bool, readiness: &[&str]) -> Value {
        let gates: Vec<Value> = readiness.iter().map(|g| json!({ "conditionType": g })).collect();
        let mut pod = json!({"metadata": {"ownerReferences": [
            {"apiVersion": api_version, "kind": "CloneSet", "name": "web", "uid": "u", "controller": controller}]},
            "spec": {"containers": [{"name": "main", "fieldOfTheFuture": 1}]}});
        if !gates.is_empty() {
            pod["spec"]["readinessGates"] = gates.into();
        }
        pod
    }

    fn patch(gates: &FeatureGates, pod: &Value) -> Value {
        json!(admit(gates, pod).unwrap().patch)
    }

    #[test]
    fn pods_of_kruise_workloads_get_the_gate_once() {
        let gates = FeatureGates::default();
        let kruise = "apps.kruise.io/v1alpha1";
        assert_eq!(
            patch(&gates, &pod(kruise, true, &[])),
            json!([{"op": "add", "path": "/spec/readinessGates", "value": [{"conditionType": "KruisePodReady"}]}])
        );
        assert_eq!(
            patch(&gates, &pod(kruise, true, &["InPlaceUpdateReady"])),
            json!([{"op": "add", "path": "/spec/readinessGates/1", "value": {"conditionType": "KruisePodReady"}}])
        );
        assert_eq!(patch(&gates, &pod(kruise, true, &["KruisePodReady"])), json!([]));
    }

    #[test]
    fn other_pods_get_it_only_with_the_feature_gate() {
        let defaults = FeatureGates::default();
        for other in [
            pod("apps/v1", true, &[]),
            pod("apps.kruise.io/v1alpha1", false, &[]),
            pod("apps.kruise.io.example/v1", true, &[]),
            json!({"metadata": {}, "spec": {}}),
        ] {
            assert_eq!(patch(&defaults, &other), json!([]), "{other}");
            let all = FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap();
            assert_eq!(patch(&all, &other)[0]["path"], "/spec/readinessGates", "{other}");
        }
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        for bad in [json!(null), json!({"spec": 1}), json!({"spec": {"readinessGates": "x"}})] {
            assert_eq!(admit(&FeatureGates::default(), &bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
