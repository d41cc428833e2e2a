//! Renders `manifests/` from the tables: CRDS, CONTROLLERS, HANDLERS and the rights that each role states beside its code.
//!
//! The output is committed; a test fails when it is stale. What may be applied again and again must never carry data
//! that the running program owns: the Lease and the Secret are empty, and the webhook configurations have no CA and none of
//! the entries that the webhook keeps, so that `kubectl apply` keeps what is there.

mod chart;
mod components;
mod external_certs;
mod network_policy;
mod policies;
mod reads;
mod roles;
mod workloads;
pub mod writes;

use std::{collections::BTreeMap, fs, io, path::Path};

use serde_json::{Value, json};

use crate::{
    api::{CRDS, DEFAULT_NAMESPACE, feature_gates::gate, labels},
    domain::deletion_protection as protection,
};
use components::COMPONENTS;
use roles::{access, added_access, roles};
use workloads::{daemon_set, manager_objects, webhook_objects};
pub use workloads::{is_shipped, leftovers, registrations, serves};

const NAMESPACE: &str = DEFAULT_NAMESPACE;
const HEADER: &str = "# Written by `make manifests` from the program's own tables; changes here are overwritten.\n";
/// Annotations by which tools that apply from Git delete no object that has left it.
const KEEPS_OF_GITOPS: [(&str, &str); 2] = [
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
];

/// The files of the base and their objects.
fn base() -> [(&'static str, Vec<Value>); 5] {
    let [manager, webhook, daemon] = roles();
    [
        ("installation.yaml", vec![namespace(), feature_gates()]),
        (
            "manager.yaml",
            [access(&manager), added_access(&manager, labels::AGGREGATE_TO_MANAGER), manager_objects(&manager)]
                .concat(),
        ),
        (
            "webhook.yaml",
            [access(&webhook), added_access(&webhook, labels::AGGREGATE_TO_WEBHOOK), webhook_objects(&webhook)]
                .concat(),
        ),
        ("daemon.yaml", [access(&daemon), vec![daemon_set(&daemon)]].concat()),
        ("policies.yaml", policies::objects()),
    ]
}

/// A page with what stands between two markers made new. None: it has no markers.
fn renewed(page: &str, (begin, end): (&str, &str), table: &str) -> Option<String> {
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{table}\n{end}{after}"))
}

/// The policies that an installation has in force over an account of ours, which its role looks for.
pub fn policies_over(account: &str) -> Vec<&'static str> {
    policies::over(account)
}

/// Every object of an installation but the custom resource definitions.
pub fn objects() -> Vec<Value> {
    base().into_iter().flat_map(|(_, objects)| objects).collect()
}

/// The ClusterRoleBindings and RoleBindings of an installation with all components.
pub fn bindings() -> Vec<Value> {
    let components = COMPONENTS.iter().flat_map(|component| (component.objects)());
    let is_binding = |object: &Value| object["kind"] == "ClusterRoleBinding" || object["kind"] == "RoleBinding";
    objects().into_iter().chain(components).filter(is_binding).collect()
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
        add(&format!("crds/{}", crd_file(crd.name)), &[custom_resource_definition(crd.render())])?;
    }
    let crd_files: Vec<String> = CRDS.iter().map(|crd| crd_file(crd.name)).collect();
    add("crds/kustomization.yaml", &[kustomization(&crd_files, json!([]))])?;

    let base = base();
    for (file, documents) in &base {
        add(&format!("base/{file}"), documents)?;
    }
    add("base/kustomization.yaml", &[kustomization(&base.each_ref().map(|(file, _)| (*file).to_owned()), json!([]))])?;
    for component in COMPONENTS {
        let (objects, patches) = ((component.objects)(), (component.patches)());
        let file = format!("{}.yaml", component.name);
        let directory = format!("components/{}", component.name);
        let resources = if objects.is_empty() { vec![] } else { vec![file.clone()] };
        let mut list = kustomization(&resources, patches);
        list["apiVersion"] = "kustomize.config.k8s.io/v1alpha1".into();
        list["kind"] = "Component".into();
        add(&format!("{directory}/kustomization.yaml"), &[list])?;
        if !objects.is_empty() {
            add(&format!("{directory}/{file}"), &objects)?;
        }
    }
    for (overlay, patch, components) in overlays() {
        let both = ["../../crds".to_owned(), "../../base".to_owned()];
        let mut list = kustomization(&both, patch);
        if !components.is_empty() {
            list["components"] = components.into();
        }
        add(&format!("overlays/{overlay}/kustomization.yaml"), &[list])?;
    }
    add("kustomization.yaml", &[kustomization(&["overlays/containerd".to_owned()], json!([]))])?;
    Ok(files)
}

/// Writes every rendered file below a directory.
///
/// # Errors
/// The directory cannot be written.
pub fn write_to(dir: &Path) -> io::Result<()> {
    write_files(dir, render_all().map_err(io::Error::other)?)?;
    // In a checkout, the Helm chart is beside the directory.
    let chart = dir.join("../charts/kruise-rs");
    if chart.join("Chart.yaml").exists() {
        let mut files = chart::render().map_err(io::Error::other)?;
        for (from, to) in chart::COPIES {
            files.insert(to.to_owned(), fs::read_to_string(dir.join("..").join(from))?);
        }
        write_files(&chart, files)?;
    }
    // In a checkout, the tables of reads and of writes are in the page beside the directory.
    let page = dir.join("../SECURITY.md");
    if let Ok(text) = fs::read_to_string(&page)
        && let Some(renewed) = reads::renew(&text).as_deref().and_then(writes::renew)
    {
        fs::write(page, renewed)?;
    }
    Ok(())
}

fn write_files(dir: &Path, files: BTreeMap<String, String>) -> io::Result<()> {
    for (path, text) in files {
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

/// Where the socket of a runtime is on the node, and where the daemon looks for it.
struct Runtime {
    name: &'static str,
    host: &'static str,
    /// Type of the `hostPath`.
    kind: &'static str,
    inside: &'static str,
}

/// Those besides containerd, for which the DaemonSet is made.
const RUNTIMES: [Runtime; 3] = [
    Runtime { name: "k3s", host: "/run/k3s/containerd", kind: "Directory", inside: "/hostvarrun/k3s/containerd" },
    Runtime { name: "crio", host: "/run/crio", kind: "Directory", inside: "/hostvarrun/crio" },
    // Its socket lies in /run itself and belongs to a systemd socket unit, so it outlives restarts of the service.
    Runtime {
        name: "cri-dockerd",
        host: "/run/cri-dockerd.sock",
        kind: "Socket",
        inside: "/hostvarrun/cri-dockerd.sock",
    },
];

/// The overlays: each with its patches and components.
fn overlays() -> Vec<(&'static str, Value, Vec<String>)> {
    let of_runtime = |runtime: &Runtime| {
        let host = json!({ "path": runtime.host, "type": runtime.kind });
        let operations = json!([
            { "op": "replace", "path": "/spec/template/spec/volumes/0/hostPath", "value": host },
            { "op": "replace", "path": "/spec/template/spec/containers/0/volumeMounts/0/mountPath", "value": runtime.inside },
        ]);
        let patch = serde_yaml::to_string(&operations).unwrap_or_default();
        let patches = json!([{ "target": { "kind": "DaemonSet", "name": "kruise-daemon" }, "patch": patch }]);
        (runtime.name, patches, components::defaults())
    };
    let containerd = ("containerd", json!([]), components::defaults());
    // That of containerd with no right that single namespaces can give instead.
    let hardened = ("hardened", json!([]), vec![]);
    [containerd, hardened].into_iter().chain(RUNTIMES.iter().map(of_runtime)).collect()
}

fn custom_resource_definition(
    crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
) -> Value {
    let mut crd = json!(crd);
    // With a definition go all objects of its kind and their Pods. So Flux and Argo CD leave it when the installation goes.
    for (key, value) in KEEPS_OF_GITOPS {
        crd["metadata"]["annotations"][key] = value.into();
    }
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

/// The binding that is there while the gate ResourcesDeletionProtection is on, and the gate.
pub const GATED_BINDING: (&str, &str) = (protection::NAME, gate::DELETION_PROTECTION);

/// Rights that go with a feature gate: the component, the ClusterRoleBinding in it, and the gate.
pub const GATED_RIGHTS: (&str, &str, &str) =
    ("resource-distribution", "kruise-manager-resource-distribution", gate::RESOURCE_DISTRIBUTION);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{
        account::{MANAGER, WEBHOOK},
        path,
    };

    #[test]
    fn the_rights_that_go_with_a_gate_are_those_of_a_component_that_nobody_has_unasked() {
        let (component, binding, _) = GATED_RIGHTS;
        let component = COMPONENTS.iter().find(|one| one.name == component).unwrap();
        assert!(!component.is_default);
        let is_it = |object: &Value| object["kind"] == "ClusterRoleBinding" && object["metadata"]["name"] == binding;
        assert!((component.objects)().iter().any(is_it));
    }

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
        assert!(stale.is_empty(), "stale below manifests/: {}; mend with `make manifests`", stale.join(", "));
    }

    /// The client refuses paths of other subresources before they are sent.
    #[test]
    fn every_subresource_in_a_role_may_be_sent() {
        for role in roles::roles() {
            for resource in role.cluster_rules.iter().chain(&role.own_namespace_rules).flat_map(|rule| rule.resources) {
                let Some((_, subresource)) = resource.split_once('/') else { continue };
                // Never called: some API servers ask for this right when an owner reference is written.
                let is_sent = subresource != "finalizers";
                assert!(!is_sent || path::SUBRESOURCES.contains(&subresource), "{}: {resource}", role.name);
            }
        }
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
    fn rights_that_are_added_are_those_of_labelled_roles_and_none_unasked() {
        let all = objects();
        let named = |kind: &str, name: &str| {
            all.iter()
                .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
                .unwrap_or_else(|| panic!("{kind} {name}"))
        };
        let added = [(MANAGER, labels::AGGREGATE_TO_MANAGER), (WEBHOOK, labels::AGGREGATE_TO_WEBHOOK)];
        for (account, label) in added {
            let name = format!("{account}-added");
            let role = named("ClusterRole", &name);
            assert_eq!(role.get("rules"), None, "{name}: applied again, it would lose what was filled in");
            let selectors = json!({ "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] });
            assert_eq!(role["aggregationRule"], selectors, "{name}");
            let binding = named("ClusterRoleBinding", &name);
            assert_eq!(binding["roleRef"]["name"], name.as_str());
            let subjects = json!([{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }]);
            assert_eq!(binding["subjects"], subjects, "{name}");
        }
        // Nothing of ours has such a label, and the daemon's rights cannot be added to.
        let components = COMPONENTS.iter().flat_map(|component| (component.objects)());
        for object in all.iter().cloned().chain(components) {
            let name = &object["metadata"]["name"];
            for (_, label) in added {
                assert_eq!(object["metadata"]["labels"].get(label), None, "{name}");
            }
            let is_added = object.get("aggregationRule").is_some();
            assert!(!is_added || name == "kruise-manager-added" || name == "kruise-webhook-added", "{name}");
        }
    }

    #[test]
    fn no_tool_that_applies_from_git_prunes_a_definition() {
        for definition in CRDS.iter().map(|crd| custom_resource_definition(crd.render())) {
            for (key, value) in KEEPS_OF_GITOPS {
                assert_eq!(definition["metadata"]["annotations"][key], value, "{}", definition["metadata"]["name"]);
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
