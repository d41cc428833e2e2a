//! Renders `manifests/` from the tables: CRDS, CONTROLLERS, HANDLERS and the rights that each role states beside its code.
//!
//! The output is committed; a test fails when it is stale. What may be applied again and again must never carry data
//! that the running program owns: the Lease and the Secret are empty and the webhook configuration has no CA, so that
//! `kubectl apply` keeps what is there.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde_json::{Value, json};

use crate::{
    api::{CRDS, DEFAULT_NAMESPACE, apps, feature_gates::FeatureGates, labels},
    controllers::{self, CONTROLLERS},
    daemon,
    domain::pull_secrets as rules,
    k8s::rbac::Rule,
    pull_secrets,
    webhook::{
        self, HANDLERS, Phase,
        configuration::{self, Endpoint, Wanted},
        deletion_protection::policy as protection,
        failure_policies::FailurePolicies,
        installation,
    },
};

const NAMESPACE: &str = DEFAULT_NAMESPACE;
const HEADER: &str =
    "# Written by `kruise-rs manifests` from the program's own tables; changes here are overwritten.\n";
const CLAIM: &str = "authentication.kubernetes.io/node-name";

/// A role of the program and the objects that run it.
struct Role {
    /// The subcommand.
    name: &'static str,
    /// Value of the label `control-plane`, as OpenKruise has it.
    control_plane: &'static str,
    /// Name of ServiceAccount and roles.
    account: &'static str,
    cluster_rules: Vec<Rule>,
    own_namespace_rules: Vec<Rule>,
}

fn roles() -> [Role; 3] {
    let handlers = HANDLERS.iter().flat_map(|handler| handler.rbac);
    [
        Role {
            name: "manager",
            control_plane: "controller-manager",
            account: "kruise-manager",
            cluster_rules: distinct(
                CONTROLLERS
                    .iter()
                    .flat_map(|controller| controller.rules)
                    .chain(controllers::BASE_RULES)
                    .chain(pull_secrets::RBAC),
            ),
            own_namespace_rules: [controllers::NAMESPACE_RULES, pull_secrets::OWN_NAMESPACE_RBAC].concat(),
        },
        Role {
            name: "webhook",
            control_plane: "webhook",
            account: "kruise-webhook",
            cluster_rules: distinct(handlers.chain(installation::RBAC)),
            own_namespace_rules: installation::OWN_NAMESPACE_RBAC.to_vec(),
        },
        Role {
            name: "daemon",
            control_plane: "daemon",
            account: "kruise-daemon",
            cluster_rules: daemon::RBAC.to_vec(),
            own_namespace_rules: daemon::OWN_NAMESPACE_RBAC.to_vec(),
        },
    ]
}

/// What several parts ask for in the same words is written once.
fn distinct<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<Rule> {
    let mut distinct: Vec<Rule> = Vec::new();
    for rule in rules {
        if !distinct.contains(rule) {
            distinct.push(*rule);
        }
    }
    distinct
}

/// The files of the base and their objects.
fn base() -> [(&'static str, Vec<Value>); 5] {
    let [manager, webhook, daemon] = roles();
    [
        ("installation.yaml", vec![namespace(), feature_gates()]),
        (
            "manager.yaml",
            [
                access(&manager),
                added_access(&manager, labels::AGGREGATE_TO_MANAGER),
                secrets_access(&manager),
                manager_objects(&manager),
            ]
            .concat(),
        ),
        (
            "webhook.yaml",
            [access(&webhook), added_access(&webhook, labels::AGGREGATE_TO_WEBHOOK), webhook_objects(&webhook)]
                .concat(),
        ),
        ("daemon.yaml", [access(&daemon), vec![daemon_set(&daemon)]].concat()),
        ("policies.yaml", policies(&manager, &daemon)),
    ]
}

/// Every object of an installation.
pub fn objects() -> Vec<Value> {
    let crds = CRDS.iter().map(|crd| custom_resource_definition((crd.render)()));
    crds.chain(base().into_iter().flat_map(|(_, objects)| objects)).collect()
}

/// Every rendered file: path below `manifests/` and content.
///
/// # Errors
/// An object that cannot be written as YAML; none is.
pub fn render_all() -> Result<BTreeMap<String, String>, serde_yaml::Error> {
    let mut files = BTreeMap::new();
    let mut add = |path: &str, documents: &[Value]| {
        let texts: Vec<String> = documents.iter().map(serde_yaml::to_string).collect::<Result<_, _>>()?;
        files.insert(path.to_owned(), format!("{HEADER}{}", texts.join("---\n")));
        Ok::<(), serde_yaml::Error>(())
    };
    let crd_file = |name: &str| format!("{name}.yaml");
    for crd in CRDS {
        add(&format!("crds/{}", crd_file(crd.name)), &[custom_resource_definition((crd.render)())])?;
    }
    let crd_files: Vec<String> = CRDS.iter().map(|crd| crd_file(crd.name)).collect();
    add("crds/kustomization.yaml", &[kustomization(&crd_files, json!([]))])?;

    let base = base();
    for (file, documents) in &base {
        add(&format!("base/{file}"), documents)?;
    }
    add("base/kustomization.yaml", &[kustomization(&base.each_ref().map(|(file, _)| (*file).to_owned()), json!([]))])?;
    for (overlay, patch) in overlays() {
        let both = ["../../crds".to_owned(), "../../base".to_owned()];
        add(&format!("overlays/{overlay}/kustomization.yaml"), &[kustomization(&both, patch)])?;
    }
    add("kustomization.yaml", &[kustomization(&["overlays/containerd".to_owned()], json!([]))])?;
    Ok(files)
}

/// Writes every rendered file below a directory.
///
/// # Errors
/// The directory cannot be written.
pub fn write_to(dir: &Path) -> io::Result<()> {
    for (path, text) in render_all().map_err(io::Error::other)? {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

fn kustomization(resources: &[String], patches: Value) -> Value {
    let mut file =
        json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources });
    if patches.as_array().is_some_and(|patches| !patches.is_empty()) {
        file["patches"] = patches;
    }
    file
}

/// Where the socket of each runtime is on the node, and where the daemon looks for it.
fn overlays() -> [(&'static str, Value); 4] {
    let mount = |host: &str, kind: &str, inside: &str| {
        let operations = json!([
            { "op": "replace", "path": "/spec/template/spec/volumes/0/hostPath", "value": { "path": host, "type": kind } },
            { "op": "replace", "path": "/spec/template/spec/containers/0/volumeMounts/0/mountPath", "value": inside },
        ]);
        let patch = serde_yaml::to_string(&operations).unwrap_or_default();
        json!([{ "target": { "kind": "DaemonSet", "name": "kruise-daemon" }, "patch": patch }])
    };
    [
        ("containerd", json!([])),
        ("k3s", mount("/run/k3s/containerd", "Directory", "/hostvarrun/k3s/containerd")),
        ("crio", mount("/run/crio", "Directory", "/hostvarrun/crio")),
        // Its socket lies in /run itself and belongs to a systemd socket unit, so it outlives restarts of the service.
        ("cri-dockerd", mount("/run/cri-dockerd.sock", "Socket", "/hostvarrun/cri-dockerd.sock")),
    ]
}

fn custom_resource_definition(
    crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
) -> Value {
    let mut crd = json!(crd);
    // Written out: a conversion webhook that another installation left would make the definition invalid.
    crd["spec"]["conversion"] = json!({ "strategy": "None", "webhook": null });
    crd
}

fn metadata(name: &str, namespaced: bool) -> Value {
    let mut metadata = json!({ "name": name, "labels": { "app.kubernetes.io/name": "kruise-rs" } });
    if namespaced {
        metadata["namespace"] = NAMESPACE.into();
    }
    metadata
}

fn namespace() -> Value {
    let mut metadata = metadata(NAMESPACE, false);
    // Webhooks of OpenKruise and others leave a namespace alone that has this label.
    metadata["labels"][labels::CONTROL_PLANE] = "controller-manager".into();
    // The daemon needs the host network and the directory of the runtime's socket.
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = "privileged".into();
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

fn feature_gates() -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("kruise-feature-gates", true),
        "data": { "feature-gates": "ImagePullJobGate=true" } })
}

/// ServiceAccount, roles and bindings.
fn access(role: &Role) -> Vec<Value> {
    let name = role.account;
    let subjects = json!([{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }]);
    let rule_objects = |rules: &[Rule]| -> Vec<Value> { rules.iter().map(policy_rule).collect() };
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, true) }),
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(name, false),
            "rules": rule_objects(&role.cluster_rules) }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(name, false),
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name }, "subjects": subjects }),
    ];
    if !role.own_namespace_rules.is_empty() {
        objects.extend([
            json!({ "apiVersion": version, "kind": "Role", "metadata": metadata(name, true),
                "rules": rule_objects(&role.own_namespace_rules) }),
            json!({ "apiVersion": version, "kind": "RoleBinding", "metadata": metadata(name, true),
                "roleRef": { "apiGroup": group, "kind": "Role", "name": name }, "subjects": subjects }),
        ]);
    }
    objects
}

/// Rights that an administrator adds: the role gets the rules of every ClusterRole with the label. The rules are left
/// out here, because the API server fills them in and applying this again must not empty them.
fn added_access(role: &Role, label: &str) -> Vec<Value> {
    let name = format!("{}-added", role.account);
    let version = "rbac.authorization.k8s.io/v1";
    vec![
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(&name, false),
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] } }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(&name, false),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": role.account, "namespace": NAMESPACE }] }),
    ]
}

/// The right to read the Secrets that ImagePullJobs name, by name: nothing lists or watches them. A role of its own, so
/// that an administrator can take the binding away, and bind the role in some namespaces instead.
fn secrets_access(role: &Role) -> Vec<Value> {
    let name = format!("{}-pull-secrets", role.account);
    let version = "rbac.authorization.k8s.io/v1";
    let rules: Vec<Value> = pull_secrets::SECRETS_RBAC.iter().map(policy_rule).collect();
    vec![
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(&name, false), "rules": rules }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(&name, false),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": role.account, "namespace": NAMESPACE }] }),
    ]
}

fn policy_rule(rule: &Rule) -> Value {
    let Rule { groups, resources, verbs, resource_names } = rule;
    let mut object = json!({ "apiGroups": groups, "resources": resources, "verbs": verbs });
    if !resource_names.is_empty() {
        object["resourceNames"] = json!(resource_names);
    }
    object
}

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

fn manager_objects(role: &Role) -> Vec<Value> {
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

fn webhook_objects(role: &Role) -> Vec<Value> {
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
    .chain(registrations(&FeatureGates::default()))
    .collect()
}

/// The webhook configurations of an installation with these gates.
pub fn registrations(gates: &FeatureGates) -> [Value; 2] {
    let endpoint = Endpoint::Service { namespace: NAMESPACE.into(), name: webhook::SERVICE.into() };
    let policies = FailurePolicies::default();
    let wanted = Wanted { gates, endpoint: &endpoint, ca_bundle: None, policies: &policies, with_budgets: None };
    [
        ("MutatingWebhookConfiguration", webhook::CONFIGURATION, Phase::Mutating),
        ("ValidatingWebhookConfiguration", webhook::VALIDATING_CONFIGURATION, Phase::Validating),
    ]
    .map(|(kind, name, phase)| {
        let mut object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": metadata(name, false) });
        let entries = configuration::shipped(phase, &wanted);
        // Left out rather than empty: applied again, it takes nothing away.
        if !entries.is_empty() {
            object["webhooks"] = entries.into();
        }
        object
    })
}

/// The binding that is there while the gate ResourcesDeletionProtection is on, and the gate.
pub const GATED_BINDING: (&str, &str) = (protection::NAME, crate::api::feature_gates::gate::DELETION_PROTECTION);

fn daemon_set(role: &Role) -> Value {
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

/// Admission policies, evaluated by the API server itself: they hold while every process of ours is down.
fn policies(manager: &Role, daemon: &Role) -> Vec<Value> {
    let user = |role: &Role| format!("system:serviceaccount:{NAMESPACE}:{}", role.account);
    let rule = |resource: &str| {
        json!({ "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1", "v1beta1"],
            "operations": ["UPDATE"], "resources": [resource] }] })
    };
    let policy = |name: &str, spec: Value| {
        [
            json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                "metadata": metadata(name, false), "spec": spec }),
            json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": metadata(name, false), "spec": { "policyName": name, "validationActions": ["Deny"] } }),
        ]
    };
    let unchanged = |member: &str, key: &str| {
        let value = |object: &str| format!("{object}.metadata.?{member}[?'{key}'].orValue('')");
        json!({
            "expression": format!("{} == {}", value("object"), value("oldObject")),
            "message": format!("metadata.{member}: {key} is written by Kruise and cannot be changed"),
            "messageExpression": format!(
                "'metadata.{member}: {key} is written by Kruise and cannot be changed; it is \"' + {} + '\", not \"' + {} + '\"'",
                value("oldObject"), value("object")),
            "reason": "Forbidden",
        })
    };
    let own_fields = json!({
        "failurePolicy": "Fail",
        "matchConstraints": rule("containerrecreaterequests"),
        "matchConditions": [
            { "name": "by-others", "expression": format!("request.userInfo.username != '{}'", user(manager)) },
            // Whoever takes a finalizer away must get through, whatever else the write says.
            { "name": "not-being-deleted", "expression": "!has(oldObject.metadata.deletionTimestamp)" },
        ],
        "validations": [
            unchanged("labels", labels::CRR_POD_UID),
            unchanged("labels", labels::CRR_NODE_NAME),
            unchanged("labels", labels::CRR_ACTIVE),
            unchanged("labels", labels::CRR_METHOD),
            unchanged("annotations", labels::CRR_UNREADY_ACQUIRED),
        ],
    });
    let own_node = json!({
        "failurePolicy": "Fail",
        "matchConstraints": rule("containerrecreaterequests/status"),
        "matchConditions": [
            { "name": "by-a-daemon", "expression": format!("request.userInfo.username == '{}'", user(daemon)) },
        ],
        "variables": [
            { "name": "tokenNode", "expression": format!("request.userInfo.?extra[?'{CLAIM}'][?0].orValue('')") },
            { "name": "requestNode",
                "expression": format!("oldObject.metadata.?labels[?'{}'].orValue('')", labels::CRR_NODE_NAME) },
        ],
        "validations": [{
            "expression": "variables.tokenNode != '' && variables.tokenNode == variables.requestNode",
            "message": "a daemon may only report on requests of its own node",
            "messageExpression":
                "'a daemon may only report on requests of its own node; its token is of node \"' + variables.tokenNode + '\", the request is of node \"' + variables.requestNode + '\"'",
            "reason": "Forbidden",
        }],
    });
    // What a daemon reports of its node has the node's name.
    let reports = |resource: &str, kind: &str, of_what: &str| {
        let message = format!("a daemon may only report on {of_what} of its own node");
        let expression = format!(
            "'{message}; its token is of node \"' + variables.tokenNode + '\", the {kind} is of node \"' + oldObject.metadata.name + '\"'"
        );
        json!({
            "failurePolicy": "Fail",
            "matchConstraints": rule(&format!("{resource}/status")),
            "matchConditions": [
                { "name": "by-a-daemon", "expression": format!("request.userInfo.username == '{}'", user(daemon)) },
            ],
            "variables": [
                { "name": "tokenNode", "expression": format!("request.userInfo.?extra[?'{CLAIM}'][?0].orValue('')") },
            ],
            "validations": [{
                "expression": "variables.tokenNode != '' && variables.tokenNode == oldObject.metadata.name",
                "message": message,
                "messageExpression": expression,
                "reason": "Forbidden",
            }],
        })
    };
    // Method PodSpec needs a right that is wider than what it does: the manager may spell an image differently, and write
    // annotations of its own.
    let name = |image: &str| format!("{image}.split('@')[0].find('^(.*/)?[^:]*')");
    let same_image = format!(
        "c.image.matches('@sha256:[0-9a-f]{{64}}$') && {} == {} && (!o.image.contains('@') || o.image.split('@')[1] == c.image.split('@')[1])",
        name("c.image"),
        name("o.image")
    );
    let images_of = |list: &str| {
        let old = format!("oldObject.spec.?{list}.orValue([])");
        json!({
            "expression": format!(
                "object.spec.?{list}.orValue([]).all(c, {old}.exists(o, o.name == c.name && (o.image == c.image || ({same_image}))))"
            ),
            "message": format!("spec.{list}: the manager may change nothing but how an image is spelled: the name stays, a digest comes or stays"),
            "reason": "Forbidden",
        })
    };
    let same = |field: &str, empty: &str, message: &str| {
        json!({
            "expression": format!("object.metadata.?{field}.orValue({empty}) == oldObject.metadata.?{field}.orValue({empty})"),
            "message": format!("metadata.{field}{message}"),
            "reason": "Forbidden",
        })
    };
    let annotations = |object: &str| format!("{object}.metadata.?annotations.orValue({{}})");
    let (new, old) = (annotations("object"), annotations("oldObject"));
    let others_annotations = |is_own: &str, message: &str| {
        json!({
            "expression": format!(
                "{new}.all(k, {is_own} || (k in {old} && {old}[k] == {new}[k])) && {old}.all(k, {is_own} || k in {new})"
            ),
            "message": message,
            "reason": "Forbidden",
        })
    };
    let by_manager = ": the manager does not change those of Pods";
    let by_daemon = ": a daemon does not change those of Pods";
    let related = labels::RELATED_PUB;
    let is_managers = format!("(k.startsWith('kruise.rs/') || k == '{related}')");
    let only_managers = format!(
        "metadata.annotations: the manager changes only {related} and those of Pods that begin with kruise.rs/"
    );
    let pods = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods", "pods/resize"] }] },
        "matchConditions": [
            { "name": "by-the-manager", "expression": format!("request.userInfo.username == '{}'", user(manager)) },
            // Those of our own workloads it makes, updates in place and lets go of.
            { "name": "not-of-a-kruise-workload", "expression": format!(
                "!oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.apiVersion.startsWith('{}/'))",
                apps::GROUP
            ) },
        ],
        "validations": [
            json!({
                "expression": "request.?subResource.orValue('') != 'resize'",
                "message": "the manager resizes only Pods of Kruise workloads",
                "reason": "Forbidden",
            }),
            images_of("containers"),
            images_of("initContainers"),
            same("labels", "{}", by_manager),
            same("finalizers", "[]", by_manager),
            same("ownerReferences", "[]", by_manager),
            others_annotations(&is_managers, &only_managers),
        ],
    });
    // Whoever may write the status of a Pod may write its labels, annotations and finalizers with it.
    let own_key = labels::RUNTIME_CONTAINERS_META;
    let only_own_key = format!("metadata.annotations: a daemon changes only {own_key} of Pods");
    let node_of_pod = json!([
        { "name": "tokenNode", "expression": format!("request.userInfo.?extra[?'{CLAIM}'][?0].orValue('')") },
        { "name": "podNode", "expression": "oldObject.spec.?nodeName.orValue('')" },
    ]);
    let daemon_pods = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"] }] },
        "matchConditions": [
            { "name": "by-a-daemon", "expression": format!("request.userInfo.username == '{}'", user(daemon)) },
        ],
        "variables": node_of_pod,
        "validations": [
            {
                "expression": "variables.tokenNode != '' && variables.tokenNode == variables.podNode",
                "message": "a daemon may only report on Pods of its own node",
                "messageExpression":
                    "'a daemon may only report on Pods of its own node; its token is of node \"' + variables.tokenNode + '\", the Pod is on node \"' + variables.podNode + '\"'",
                "reason": "Forbidden",
            },
            {
                "expression": "object.status == oldObject.status",
                "message": "status: a daemon does not change that of Pods",
                "reason": "Forbidden",
            },
            same("labels", "{}", by_daemon),
            same("finalizers", "[]", by_daemon),
            same("ownerReferences", "[]", by_daemon),
            others_annotations(&format!("k == '{own_key}'"), &only_own_key),
        ],
    });
    let mut objects = [
        policy("kruise-crr-own-fields", own_fields),
        policy("kruise-daemon-own-node", own_node),
        policy("kruise-daemon-node-images", reports("nodeimages", "NodeImage", "images")),
        policy("kruise-daemon-own-probes", reports("nodepodprobes", "NodePodProbe", "probes")),
        policy("kruise-daemon-pods", daemon_pods),
        policy("kruise-manager-pods", pods),
    ]
    .concat();
    // Without bindings: the webhook role makes that of the first while the gate is on, an administrator the other.
    for (name, spec) in
        [(protection::NAME, protection::spec()), (protection::LABEL_GUARD, protection::label_guard_spec())]
    {
        objects.push(json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(name, false), "spec": spec }));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
    }

    #[test]
    fn committed_manifests_are_those_of_the_program() {
        let stale: Vec<String> = render_all()
            .unwrap()
            .into_iter()
            .filter(|(path, text)| fs::read_to_string(dir().join(path)).ok().as_ref() != Some(text))
            .map(|(path, _)| path)
            .collect();
        assert!(
            stale.is_empty(),
            "stale below manifests/: {}; mend with `cargo run -- manifests` (or `make manifests`)",
            stale.join(", ")
        );
    }

    #[test]
    fn no_file_is_left_over() {
        fn yaml_below(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    yaml_below(&path, found);
                } else if path.extension().is_some_and(|e| e == "yaml") {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        yaml_below(&dir(), &mut found);
        let rendered = render_all().unwrap();
        for path in found {
            let relative = path.strip_prefix(dir()).unwrap().to_str().unwrap().to_owned();
            assert!(rendered.contains_key(&relative), "manifests/{relative} is not rendered any more; remove it");
        }
    }

    #[test]
    fn nobody_may_more_than_named() {
        for role in roles() {
            for rule in role.cluster_rules.iter().chain(&role.own_namespace_rules) {
                let all = [rule.groups, rule.resources, rule.verbs].concat();
                assert!(!all.contains(&"*"), "{}: {rule:?}", role.name);
                let named = [
                    "secrets",
                    "leases",
                    "mutatingwebhookconfigurations",
                    "validatingwebhookconfigurations",
                    "validatingadmissionpolicybindings",
                ];
                let is_create = rule.verbs == ["create"] && rule.resources == ["validatingadmissionpolicybindings"];
                assert!(
                    !rule.resources.iter().any(|r| named.contains(r)) || !rule.resource_names.is_empty() || is_create,
                    "{}: {rule:?}",
                    role.name
                );
                // What a node's token can do to Pods is limited by a policy, and to their status.
                let of_pods = rule.resources.iter().any(|r| r.starts_with("pods"));
                let writes = rule.verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
                assert!(role.name != "daemon" || !of_pods || !writes || rule.resources == ["pods/status"], "{rule:?}");
            }
        }
    }

    #[test]
    fn what_the_program_owns_is_shipped_empty() {
        let files = render_all().unwrap();
        let all: String = files.values().cloned().collect();
        assert!(!all.contains("caBundle") && !all.contains("holderIdentity"));
        assert!(files["crds/containerrecreaterequests.apps.kruise.io.yaml"].contains("webhook: null"));
    }
}
