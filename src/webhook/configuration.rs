//! The registration of our webhooks in the API server.
//!
//! [`render`] makes an entry from the table; [`plan`] compares a live configuration with the table and gives the
//! smallest JSON patch. Of entries that are there only `clientConfig`, `rules` and `matchConditions` are ours: time-outs,
//! selectors and the failure policy are the installer's to change. Entries that point at others are never touched.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    api::feature_gates::FeatureGates,
    webhook::{HANDLERS, Handler, OnFailure, Operation},
};

/// How the API server reaches us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through a Service, port 443.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Directly, for an API server outside of the cluster network.
    Url {
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Endpoint {
    /// The name that the serving certificate has to carry.
    pub fn dns_name(&self) -> String {
        match self {
            Self::Service { namespace, name } => format!("{name}.{namespace}.svc"),
            Self::Url { host, port: _ } => host.clone(),
        }
    }

    fn client_config(&self, path: &str, ca_bundle: Option<&str>) -> Value {
        let mut config = match self {
            Self::Service { namespace, name } => {
                json!({ "service": { "namespace": namespace, "name": name, "port": 443, "path": path } })
            }
            Self::Url { host, port } => json!({ "url": format!("https://{host}:{port}{path}") }),
        };
        if let Some(pem) = ca_bundle {
            config["caBundle"] = STANDARD.encode(pem).into();
        }
        config
    }

    /// Whether an entry calls us.
    fn is_called_by(&self, entry: &Value) -> bool {
        let config = &entry["clientConfig"];
        match self {
            Self::Service { namespace, name } => {
                config["service"]["namespace"] == *namespace && config["service"]["name"] == *name
            }
            Self::Url { host, port } => {
                config["url"].as_str().is_some_and(|url| url.starts_with(&format!("https://{host}:{port}/")))
            }
        }
    }
}

/// The entry of one handler. Manifests leave the CA out, so that applying them again keeps the one that is there.
pub fn render(handler: &Handler, gates: &FeatureGates, endpoint: &Endpoint, ca_bundle: Option<&str>) -> Value {
    let own_namespace = match endpoint {
        Endpoint::Service { namespace, name: _ } => namespace,
        Endpoint::Url { .. } => crate::api::DEFAULT_NAMESPACE,
    };
    let namespaces = if handler.spares_system_namespaces {
        json!({ "matchExpressions": [
            { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", own_namespace] }] })
    } else {
        json!({})
    };
    json!({
        "name": handler.name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": endpoint.client_config(path(handler), ca_bundle),
        "failurePolicy": match handler.on_failure { OnFailure::Fail => "Fail", OnFailure::Ignore => "Ignore" },
        "matchConditions": conditions(handler, gates),
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces,
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "rules": rules(handler),
        "sideEffects": "None",
        "timeoutSeconds": handler.timeout_seconds,
    })
}

fn path(handler: &Handler) -> &'static str {
    handler.paths.first().copied().unwrap_or_default()
}

fn rules(handler: &Handler) -> Value {
    let target = handler.target;
    let operation = match target.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
    };
    json!([{ "apiGroups": [target.group], "apiVersions": target.versions, "operations": [operation],
        "resources": [target.resource], "scope": "Namespaced" }])
}

fn conditions(handler: &Handler, gates: &FeatureGates) -> Value {
    (handler.match_conditions)(gates)
        .into_iter()
        .map(|condition| json!({ "name": condition.name, "expression": condition.expression }))
        .collect()
}

/// The JSON patch that brings a live configuration in line; empty if nothing differs.
///
/// It is tied to the version that was looked at: a patch by index must not hit a list that somebody has changed.
pub fn plan(current: &Value, gates: &FeatureGates, endpoint: &Endpoint, ca_bundle: &str) -> Vec<Value> {
    let no_entries = Vec::new();
    let entries = current["webhooks"].as_array().unwrap_or(&no_entries);
    let active: Vec<&Handler> = HANDLERS.iter().filter(|handler| handler.is_active(gates)).collect();
    let mut operations = Vec::new();
    let mut removals = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let name = entry["name"].as_str().unwrap_or_default();
        let Some(handler) = active.iter().find(|handler| handler.name == name) else {
            // It calls us, but nobody answers there: switched off by a gate, or left by another release.
            if endpoint.is_called_by(entry) || HANDLERS.iter().any(|handler| handler.name == name) {
                removals.push(json!({ "op": "remove", "path": format!("/webhooks/{i}") }));
            }
            continue;
        };
        let no_conditions = json!([]);
        let conditions_now = entry.get("matchConditions").unwrap_or(&no_conditions);
        for (field, now, wanted) in [
            ("clientConfig", &entry["clientConfig"], endpoint.client_config(path(handler), Some(ca_bundle))),
            ("rules", &entry["rules"], rules(handler)),
            ("matchConditions", conditions_now, conditions(handler, gates)),
        ] {
            if *now != wanted {
                operations.push(json!({ "op": "add", "path": format!("/webhooks/{i}/{field}"), "value": wanted }));
            }
        }
    }
    // From the back, so that the indexes before stay right.
    operations.extend(removals.into_iter().rev());
    let missing: Vec<Value> = active
        .iter()
        .filter(|handler| !entries.iter().any(|entry| entry["name"] == handler.name))
        .map(|handler| render(handler, gates, endpoint, Some(ca_bundle)))
        .collect();
    if current["webhooks"].is_array() {
        operations
            .extend(missing.into_iter().map(|entry| json!({ "op": "add", "path": "/webhooks/-", "value": entry })));
    } else if !missing.is_empty() {
        operations.push(json!({ "op": "add", "path": "/webhooks", "value": missing }));
    }
    if !operations.is_empty() {
        let version = &current["metadata"]["resourceVersion"];
        operations.insert(0, json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
    }
    operations
}

/// Whether API servers may still hold another CA for one of our entries than the given ones.
pub fn had_another_ca(current: &Value, endpoint: &Endpoint, ca_bundle: &str) -> bool {
    let wanted = STANDARD.encode(ca_bundle);
    current["webhooks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| endpoint.is_called_by(entry))
        .any(|entry| entry["clientConfig"]["caBundle"].as_str().is_some_and(|now| !now.is_empty() && now != wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::Service { namespace: "kruise-system".into(), name: "kruise-webhook-service".into() }
    }

    fn installed(gates: &FeatureGates) -> Value {
        let entries: Vec<Value> = HANDLERS.iter().map(|h| render(h, gates, &endpoint(), None)).collect();
        json!({ "metadata": { "resourceVersion": "7" }, "webhooks": entries })
    }

    fn patched(mut config: Value, gates: &FeatureGates, ca: &str) -> Value {
        let patch: json_patch::Patch = serde_json::from_value(plan(&config, gates, &endpoint(), ca).into()).unwrap();
        json_patch::patch(&mut config, &patch).unwrap();
        config
    }

    #[test]
    fn only_the_ca_is_missing_after_an_installation() {
        let gates = FeatureGates::default();
        let operations = plan(&installed(&gates), &gates, &endpoint(), "PEM");
        let paths: Vec<&str> = operations.iter().map(|o| o["path"].as_str().unwrap()).collect();
        let ca = (0..HANDLERS.len()).map(|i| format!("/webhooks/{i}/clientConfig"));
        let wanted: Vec<String> = std::iter::once("/metadata/resourceVersion".to_owned()).chain(ca).collect();
        assert_eq!(paths, wanted);
        let done = patched(installed(&gates), &gates, "PEM");
        assert_eq!(done["webhooks"][0]["clientConfig"]["caBundle"], "UEVN");
        assert_eq!(plan(&done, &gates, &endpoint(), "PEM"), Vec::<Value>::new());
        assert!(!had_another_ca(&installed(&gates), &endpoint(), "PEM"));
        assert!(had_another_ca(&done, &endpoint(), "NEW PEM"));
    }

    #[test]
    fn what_the_installer_chose_and_what_others_own_stays() {
        let gates = FeatureGates::default();
        let mut config = patched(installed(&gates), &gates, "PEM");
        config["webhooks"][1]["timeoutSeconds"] = 2.into();
        config["webhooks"][1]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
        let foreign =
            json!({"name": "other", "clientConfig": {"service": {"namespace": "x", "name": "y", "path": "/"}}});
        config["webhooks"].as_array_mut().unwrap().insert(0, foreign);
        assert_eq!(plan(&config, &gates, &endpoint(), "PEM"), Vec::<Value>::new());
    }

    #[test]
    fn gates_remove_and_bring_back_entries() {
        let on = FeatureGates::default();
        let off = FeatureGates::parse(&["PodWebhook=false"], None).unwrap();
        let without = patched(installed(&on), &off, "PEM");
        assert_eq!(without["webhooks"].as_array().unwrap().len(), HANDLERS.len() - 1);
        let back = patched(without, &on, "PEM");
        assert_eq!(back["webhooks"].as_array().unwrap().len(), HANDLERS.len());
        assert_eq!(plan(&back, &on, &endpoint(), "PEM"), Vec::<Value>::new());
        let empty = patched(json!({"metadata": {"resourceVersion": "1"}}), &on, "PEM");
        assert_eq!(empty["webhooks"].as_array().unwrap().len(), HANDLERS.len());
    }

    #[test]
    fn the_readiness_gate_for_all_pods_changes_the_condition() {
        let (some, all) =
            (FeatureGates::default(), FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap());
        let condition = |config: &Value| {
            let conditions = config["webhooks"][0]["matchConditions"].as_array().unwrap();
            assert_eq!(conditions.len(), 1);
            conditions[0]["expression"].as_str().unwrap().contains("ownerReferences")
        };
        let config = patched(installed(&some), &all, "PEM");
        assert!(!condition(&config));
        assert!(condition(&patched(config, &some, "PEM")));
    }

    #[test]
    fn entries_of_another_release_that_call_us_in_vain_are_removed() {
        let gates = FeatureGates::default();
        let mut config = installed(&gates);
        let left = json!({"name": "mother.kb.io", "clientConfig": {"service":
            {"namespace": "kruise-system", "name": "kruise-webhook-service", "path": "/mutate-apps-kruise-io-other"}}});
        config["webhooks"].as_array_mut().unwrap().splice(0..0, [left.clone(), left]);
        let names: Vec<Value> = patched(config, &gates, "PEM")["webhooks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].clone())
            .collect();
        assert_eq!(names, HANDLERS.iter().map(|handler| handler.name).collect::<Vec<_>>());
    }

    #[test]
    fn a_host_replaces_the_service() {
        let gates = FeatureGates::default();
        let url = Endpoint::Url { host: "203.0.113.7".into(), port: 9876 };
        let mut config = installed(&gates);
        let patch: json_patch::Patch = serde_json::from_value(plan(&config, &gates, &url, "PEM").into()).unwrap();
        json_patch::patch(&mut config, &patch).unwrap();
        assert_eq!(
            config["webhooks"][0]["clientConfig"],
            json!({"url": "https://203.0.113.7:9876/mutate-pod", "caBundle": "UEVN"})
        );
    }

    #[test]
    fn a_webhook_that_fails_closed_never_stands_in_the_way_of_a_repair() {
        for handler in HANDLERS {
            let is_update = rules(handler)[0]["operations"] == json!(["UPDATE"]);
            assert_eq!(is_update, rules(handler)[0]["operations"] != json!(["CREATE"]), "{}", handler.name);
            assert!(!is_update || handler.on_failure == OnFailure::Ignore, "{}", handler.name);
            let conditions = (handler.match_conditions)(&FeatureGates::default());
            let spares_deleted = conditions.iter().any(|c| c.expression == "!has(object.metadata.deletionTimestamp)");
            assert!(!is_update || spares_deleted, "{}: finalizers have to go", handler.name);
            let is_core = handler.target.group.is_empty();
            assert!(!is_core || handler.on_failure == OnFailure::Ignore, "{}", handler.name);
            assert!(!is_core || handler.spares_system_namespaces, "{}", handler.name);
            assert!(handler.timeout_seconds <= 10, "{}", handler.name);
        }
    }
}
