//! What runs a role: its workload and the objects that it needs.

use std::path::Path;

use serde_json::{Value, json};

use super::{NAMESPACE, metadata, roles::Role};
use crate::{
    api::{feature_gates::FeatureGates, labels},
    domain::node::pull_secrets as rules,
    pull_secrets,
    webhook::{
        self, HANDLERS,
        server::{
            self,
            configuration::{self, Endpoint, Wanted},
            failure_policies::FailurePolicies,
            handler::Phase,
        },
    },
};

fn selector(role: &Role) -> Value {
    json!({ labels::CONTROL_PLANE: role.control_plane })
}

/// The container of a role, with what all of them have in common.
fn container(role: &Role) -> Value {
    json!({
        "name": role.name,
        "image": concat!("docker.io/kruise-rs/kruise-rs:v", env!("CARGO_PKG_VERSION")),
        "imagePullPolicy": "IfNotPresent",
        "args": [role.name],
        "env": [
            { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
            { "name": "KRUISE_FEATURE_GATES", "valueFrom": { "configMapKeyRef":
                { "name": "kruise-feature-gates", "key": "feature-gates", "optional": true } } },
        ],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn template(role: &Role, spec: Value) -> Value {
    json!({
        "metadata": { "labels": { "app.kubernetes.io/name": "kruise-rs", labels::CONTROL_PLANE: role.control_plane } },
        "spec": spec,
    })
}

fn deployment(name: &str, role: &Role, ports: Value, strategy: Value) -> Value {
    let mut container = container(role);
    let probe =
        |path: &str| json!({ "httpGet": { "path": path, "port": "health" }, "periodSeconds": 5, "timeoutSeconds": 3 });
    container["ports"] = ports;
    container["livenessProbe"] = probe("/healthz");
    container["livenessProbe"]["periodSeconds"] = 10.into();
    container["readinessProbe"] = probe("/readyz");
    container["resources"] =
        json!({ "requests": { "cpu": "20m", "memory": "32Mi" }, "limits": { "cpu": "1", "memory": "512Mi" } });
    let spec = json!({
        "serviceAccountName": role.account,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" } },
        "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 100, "podAffinityTerm":
                { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": selector(role) } } }] } },
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
    });
    let mut metadata = metadata(name, true);
    metadata["labels"][labels::CONTROL_PLANE] = role.control_plane.into();
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {
        "replicas": 2, "selector": { "matchLabels": selector(role) }, "strategy": strategy, "template": template(role, spec) } })
}

fn disruption_budget(name: &str, role: &Role) -> Value {
    json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(name, true),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector(role) } } })
}

pub(super) fn manager_objects(role: &Role) -> Vec<Value> {
    let ports = json!([
        { "name": "health", "containerPort": 8000 },
        { "name": "metrics", "containerPort": 8080 },
        { "name": "pull-secrets", "containerPort": pull_secrets::PORT },
    ]);
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } });
    let service = rules::SERVICE;
    vec![
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata(pull_secrets::SECRET, true), "type": "Opaque" }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(rules::CONFIG_MAP, true) }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(service, true),
            "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": pull_secrets::PORT }], "selector": selector(role) } }),
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata("kruise-manager", true) }),
        deployment("kruise-controller-manager", role, ports, strategy),
        disruption_budget("kruise-controller-manager", role),
    ]
}

pub(super) fn webhook_objects(role: &Role) -> Vec<Value> {
    let ports = json!([
        { "name": "webhook", "containerPort": 9876 },
        { "name": "health", "containerPort": 8000 },
        { "name": "metrics", "containerPort": 8080 },
    ]);
    // Admission of requests fails closed, so a replica leaves only when another one answers.
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    let mut deployment = deployment("kruise-webhook", role, ports, strategy);
    if let Some(env) = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut() {
        env.push(json!({ "name": "KRUISE_FAILURE_POLICIES", "valueFrom": { "configMapKeyRef":
            { "name": "kruise-feature-gates", "key": "failure-policies", "optional": true } } }));
    }
    vec![
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata(webhook::SECRET, true), "type": "Opaque" }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(webhook::SERVICE, true),
            "spec": { "ports": [{ "name": "webhook", "port": 443, "targetPort": 9876 }], "selector": selector(role) } }),
        deployment,
        disruption_budget("kruise-webhook", role),
    ]
    .into_iter()
    .chain(registrations(&FeatureGates::default()).map(without_what_the_webhook_keeps))
    .collect()
}

/// Keeps only the fixed entries (fail closed, no match conditions). The webhook creates all others at run time and administrators
/// tune them; shipping them would overwrite that at every apply.
fn without_what_the_webhook_keeps(mut object: Value) -> Value {
    let is_fixed = |entry: &Value| entry["name"].as_str().is_some_and(is_shipped);
    if let Some(entries) = object.get_mut("webhooks").and_then(Value::as_array_mut) {
        entries.retain(is_fixed);
        // Left out rather than empty: applied again, it takes nothing away.
        if entries.is_empty()
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("webhooks");
        }
    }
    object
}

/// Whether the manifests contain the entry of this name, without the component `external-certs`.
pub fn is_shipped(name: &str) -> bool {
    HANDLERS.iter().any(|handler| handler.name == name && configuration::is_fixed(handler))
}

/// Entries of one of our webhook configurations, of this kind, that another program has left there: the name of each, and
/// the kinds it is called for that this release does not serve. `namespace` is that of the installation.
pub fn leftovers(kind: &str, config: &Value, namespace: &str) -> Vec<(String, Vec<String>)> {
    let endpoint = Endpoint::Service { namespace: namespace.into(), name: webhook::SERVICE.into() };
    let phase = if kind.starts_with("Mutating") { Phase::Mutating } else { Phase::Validating };
    let left = configuration::leftovers(config, phase, &endpoint).into_iter();
    left.map(|left| (left.name, left.kinds.iter().map(ToString::to_string).collect())).collect()
}

/// Whether the webhook of an installation with these gates serves a path.
pub fn serves(path: &str, gates: &FeatureGates) -> bool {
    server::served(gates).any(|handler| handler.paths.contains(&path))
}

/// The webhook configurations of an installation with these gates, as the running webhook completes what is shipped; entries for the
/// namespaces of budgets come on top.
pub fn registrations(gates: &FeatureGates) -> [Value; 2] {
    let endpoint = Endpoint::Service { namespace: NAMESPACE.into(), name: webhook::SERVICE.into() };
    let policies = FailurePolicies::default();
    let keeps = std::collections::BTreeSet::new();
    let wanted = Wanted {
        gates,
        endpoint: &endpoint,
        ca_bundle: None,
        policies: &policies,
        with_budgets: None,
        with_budgets_or_counting: None,
        with_sidecars: None,
        keeps: &keeps,
    };
    [
        ("MutatingWebhookConfiguration", webhook::CONFIGURATION, Phase::Mutating),
        ("ValidatingWebhookConfiguration", webhook::VALIDATING_CONFIGURATION, Phase::Validating),
    ]
    .map(|(kind, name, phase)| {
        let mut object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": metadata(name, false) });
        object["webhooks"] = configuration::unlisted(phase, &wanted).into();
        object
    })
}

pub(super) fn daemon_set(role: &Role) -> Value {
    let mut container = container(role);
    if let Some(env) = container["env"].as_array_mut() {
        env.push(json!({ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }));
    }
    // It listens on loopback only; kubelet is on the same host network.
    let probe =
        |path: &str| json!({ "httpGet": { "host": "127.0.0.1", "path": path, "port": 10221 }, "timeoutSeconds": 3 });
    container["livenessProbe"] = probe("/healthz");
    container["livenessProbe"]["periodSeconds"] = 10.into();
    container["readinessProbe"] = probe("/readyz");
    container["readinessProbe"]["periodSeconds"] = 5.into();
    container["resources"] =
        json!({ "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "cpu": "1", "memory": "128Mi" } });
    let token = Path::new(rules::TOKEN_FILE);
    let (token_dir, token_file) = (token.parent(), token.file_name().and_then(|name| name.to_str()));
    // The socket comes first: overlays replace it by its place.
    container["volumeMounts"] = json!([
        { "name": "runtime-socket", "mountPath": "/hostvarrun/containerd", "readOnly": true },
        { "name": "pull-secrets-token", "mountPath": token_dir, "readOnly": true },
    ]);
    let spec = json!({
        "serviceAccountName": role.account,
        "priorityClassName": "system-node-critical",
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "operator": "Exists" }],
        // preStop hooks have to come from the node, as kubelet's do.
        "hostNetwork": true,
        "dnsPolicy": "ClusterFirstWithHostNet",
        // The runtime's socket belongs to root; with no capability left, root is only its owner.
        "securityContext": { "runAsUser": 0, "runAsGroup": 0, "seccompProfile": { "type": "RuntimeDefault" } },
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            { "name": "runtime-socket", "hostPath": { "path": "/run/containerd", "type": "Directory" } },
            // Good for asking the manager for registry credentials, and for nothing else.
            { "name": "pull-secrets-token", "projected": { "sources": [{ "serviceAccountToken":
                { "audience": rules::AUDIENCE, "expirationSeconds": 3600, "path": token_file } }] } },
        ],
    });
    let mut metadata = metadata("kruise-daemon", true);
    metadata["labels"][labels::CONTROL_PLANE] = role.control_plane.into();
    json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {
        "selector": { "matchLabels": selector(role) },
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
        "minReadySeconds": 1,
        "template": template(role, spec) } })
}
