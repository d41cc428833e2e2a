//! The component `external-certs`: the webhook's certificates are somebody else's to renew, by default cert-manager's.
//!
//! The webhook has no right to write its Secret or to touch its registration, so the registration is shipped complete and
//! the Secret is left to whoever makes the certificates.

use serde_json::{Value, json};

use super::{
    NAMESPACE,
    roles::{distinct, of_webhook_in_own_namespace, own_policies, policy_rule},
};
use crate::{
    api::feature_gates::gate,
    k8s::rbac::Rule,
    webhook::{
        self, HANDLERS,
        server::{
            configuration::{Endpoint, complete},
            handler::Phase,
            installation,
        },
    },
};

const ACCOUNT: &str = "kruise-webhook";
/// By it cert-manager knows whose CA to write into a configuration: NAMESPACE/CERTIFICATE.
const INJECT: &str = "/metadata/annotations";

/// A change of one field: the operation of a JSON patch, the path and the value.
type Operation = (&'static str, &'static str, Value);

/// What changes in which object: its kind and name.
fn changes() -> [(&'static str, &'static str, Vec<Operation>); 5] {
    let endpoint = Endpoint::Service { namespace: NAMESPACE.into(), name: webhook::SERVICE.into() };
    let rules = |rules: &[Rule]| rules.iter().map(policy_rule).collect::<Value>();
    let registration = |phase| {
        let from = format!("{NAMESPACE}/{}", webhook::SECRET);
        vec![
            ("add", INJECT, json!({ "cert-manager.io/inject-ca-from": from })),
            ("add", "/webhooks", complete(phase, &endpoint, NAMESPACE).into()),
        ]
    };
    let handlers = HANDLERS.iter().flat_map(|handler| handler.rbac);
    let cluster = distinct(handlers.chain(installation::EXTERNAL_RBAC).chain(&own_policies(ACCOUNT)));
    let own_namespace = of_webhook_in_own_namespace(installation::EXTERNAL_OWN_NAMESPACE_RBAC);
    let flag = format!("--feature-gates={}=true", gate::EXTERNAL_CERTS);
    [
        ("Deployment", "kruise-webhook", vec![("add", "/spec/template/spec/containers/0/args/-", flag.into())]),
        ("ClusterRole", ACCOUNT, vec![("replace", "/rules", rules(&cluster))]),
        ("Role", ACCOUNT, vec![("replace", "/rules", rules(&own_namespace))]),
        ("MutatingWebhookConfiguration", webhook::CONFIGURATION, registration(Phase::Mutating)),
        ("ValidatingWebhookConfiguration", webhook::VALIDATING_CONFIGURATION, registration(Phase::Validating)),
    ]
}

fn is(object: &Value, kind: &str, name: &str) -> bool {
    object["kind"] == kind && object["metadata"]["name"] == name
}

/// The object as this component leaves it: None if it is not installed at all.
pub(super) fn applied(object: &Value) -> Option<Value> {
    if is(object, "Secret", webhook::SECRET) {
        return None;
    }
    let mut object = object.clone();
    for (kind, name, operations) in changes() {
        for (_, path, value) in operations.into_iter().filter(|_| is(&object, kind, name)).collect::<Vec<_>>() {
            // The last part is a field, or the end of a list.
            let Some((parent, field)) = path.rsplit_once('/') else { continue };
            match object.pointer_mut(parent) {
                Some(Value::Array(list)) => list.push(value),
                Some(Value::Object(fields)) => drop(fields.insert(field.to_owned(), value)),
                _ => {}
            }
        }
    }
    Some(object)
}

/// kustomize's `patches`.
pub(super) fn patches() -> Value {
    let mut patches: Vec<Value> = changes()
        .into_iter()
        .map(|(kind, name, operations)| {
            let operations: Vec<Value> = operations
                .into_iter()
                .map(|(op, path, value)| json!({ "op": op, "path": path, "value": value }))
                .collect();
            // A list of plain JSON values; serializing it cannot fail.
            let patch = serde_yaml::to_string(&operations).unwrap_or_default();
            json!({ "target": { "kind": kind, "name": name }, "patch": patch })
        })
        .collect();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "$patch": "delete",
        "metadata": { "name": webhook::SECRET, "namespace": NAMESPACE } });
    patches.push(json!({ "patch": serde_yaml::to_string(&secret).unwrap_or_default() }));
    patches.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::base;

    /// The base with the patches, as kustomize makes it.
    fn patched() -> Vec<Value> {
        let mut objects: Vec<Value> = base().into_iter().flat_map(|(_, objects)| objects).collect();
        for patch in patches().as_array().unwrap() {
            let content: Value = serde_yaml::from_str(patch["patch"].as_str().unwrap()).unwrap();
            let is_meant = |object: &Value, kind: &Value, name: &Value| {
                object["kind"] == *kind && object["metadata"]["name"] == *name
            };
            if content["$patch"] == "delete" {
                let count = objects.len();
                objects.retain(|object| !is_meant(object, &content["kind"], &content["metadata"]["name"]));
                assert_eq!(objects.len(), count - 1, "{content}");
                continue;
            }
            let target = &patch["target"];
            let mut found = objects.iter_mut().filter(|object| is_meant(object, &target["kind"], &target["name"]));
            let object = found.next().unwrap();
            let content: json_patch::Patch = serde_json::from_value(content).unwrap();
            json_patch::patch(object, &content).unwrap();
            assert!(found.next().is_none(), "{target} is not the only one");
        }
        objects
    }

    #[test]
    fn applied_here_it_is_what_kustomize_makes() {
        let base = base().into_iter().flat_map(|(_, objects)| objects);
        assert_eq!(base.filter_map(|object| applied(&object)).collect::<Vec<_>>(), patched());
    }

    /// kustomize's `namespace` changes neither annotations nor selectors; the guide has the replacements.
    #[test]
    fn the_guide_replaces_every_mention_of_the_namespace() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let guide = std::fs::read_to_string(root.join("docs/how-to/certificates.md")).unwrap();
        let mut count = 0;
        for object in patched().iter().filter(|object| object["metadata"]["annotations"].is_object()) {
            for entry in object["webhooks"].as_array().into_iter().flatten() {
                let namespaces = &entry["namespaceSelector"]["matchExpressions"][0]["values"];
                let name = entry["name"].as_str().unwrap();
                let path = format!("- webhooks.[name={name}].namespaceSelector.matchExpressions.0.values.1\n");
                let names_ours = namespaces[1] == NAMESPACE;
                assert_eq!(guide.contains(&path), names_ours, "{name}");
                count += usize::from(names_ours);
            }
        }
        assert!(count > 0);
    }

    #[test]
    fn the_webhook_may_neither_write_its_secret_nor_touch_its_registration() {
        let objects = patched();
        let of = |kind: &str| objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == ACCOUNT).unwrap();
        let rules = |kind: &str| of(kind)["rules"].as_array().unwrap().clone();
        let all = [rules("ClusterRole"), rules("Role")].concat();
        let about = |resource: &str| {
            let names = |rule: &&Value| rule["resources"].as_array().unwrap().contains(&resource.into());
            all.iter().filter(names).flat_map(|rule| rule["verbs"].as_array().unwrap().clone()).collect::<Vec<_>>()
        };
        for resource in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
            assert_eq!(about(resource), Vec::<Value>::new());
        }
        assert_eq!(about("secrets"), ["get", "list", "watch"]);
        assert!(!about("pods").is_empty() && !about("podtemplates").is_empty(), "handlers keep theirs");
        let secrets = objects.iter().filter(|object| object["kind"] == "Secret");
        assert!(secrets.into_iter().all(|secret| secret["metadata"]["name"] != webhook::SECRET));
    }

    #[test]
    fn the_registration_is_complete_and_waits_for_somebody_elses_ca() {
        let objects = patched();
        for (phase, name) in
            [(Phase::Mutating, webhook::CONFIGURATION), (Phase::Validating, webhook::VALIDATING_CONFIGURATION)]
        {
            let found = objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
            let entries = found["webhooks"].as_array().unwrap();
            let wanted: Vec<&str> = HANDLERS.iter().filter(|h| h.phase == phase).map(|h| h.name).collect();
            assert_eq!(entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect::<Vec<_>>(), wanted);
            assert!(entries.iter().all(|entry| entry["clientConfig"]["caBundle"].is_null()));
            // None is for nobody: the running webhook does not add namespaces.
            let nobody = webhook::server::scope::nobody();
            assert!(entries.iter().all(|entry| entry["namespaceSelector"] != nobody));
            let annotation = &found["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
            assert_eq!(*annotation, "kruise-system/kruise-webhook-certs");
        }
        let deployment =
            objects.iter().find(|o| o["kind"] == "Deployment" && o["metadata"]["name"] == "kruise-webhook").unwrap();
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
        assert!(args.contains(&"--feature-gates=EnableExternalCerts=true".into()), "{args:?}");
    }
}
