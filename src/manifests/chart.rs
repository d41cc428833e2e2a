//! The Helm chart: the objects of `manifests/` as templates, so that both ways to install are the same installation.
//!
//! Written here are the templates of objects and the files beside them. `Chart.yaml`, `values.yaml`, its schema, the
//! notes and `_helpers.tpl` are written by hand.
//!
//! Both ship only the fixed entries of the webhook configurations (`workloads.rs`), and all of them with external certificates:
//! the webhook creates the others at run time, and Helm, which applies on the server, would fail on a field that another
//! manager has changed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{NAMESPACE, RUNTIMES, base, components, custom_resource_definition, external_certs};
use crate::{api::CRDS, webhook};

const HEADER: &str =
    "{{- /* Written by `make manifests` from the program's own tables; changes here are overwritten. */}}\n";
const NAMESPACE_TEXT: &str = r#"{{ include "kruise-rs.namespace" . }}"#;
const KEEP: &str = "helm.sh/resource-policy";
/// The values of the components, and when each is wanted. The patches of `external-certs` are of its own kind.
const COMPONENT_VALUES: [(&str, &str); 3] = [
    ("pull-secrets", ".Values.components.pullSecrets"),
    ("resource-distribution", ".Values.components.resourceDistribution"),
    ("network-policy", ".Values.networkPolicy.enabled"),
];
const EXTERNAL_CERTS: &str = ".Values.externalCerts.enabled";
const SLOT: &str = "CHART-SLOT-";

/// Files of a checkout that are in the chart as they are, and their paths there.
pub(super) const COPIES: [(&str, &str); 2] =
    [("docs/monitoring/alerts.yaml", "files/alerts.yaml"), ("docs/monitoring/dashboard.json", "files/dashboard.json")];

/// What values decide, in place of a field's value or of an item of a list.
#[derive(Clone, Debug)]
enum Slot {
    /// This text.
    Text(String),
    /// A value as YAML.
    Yaml(String),
    /// A value as YAML; without it there is no such field.
    Optional(String),
    /// What a named template makes, as YAML; if that is nothing there is no such field, or no further item.
    Included(String),
}

/// Objects whose slots are names, until they are text.
#[derive(Default)]
struct Slots(Vec<Slot>);

impl Slots {
    fn add(&mut self, slot: Slot) -> Value {
        self.0.push(slot);
        format!("{SLOT}{}", self.0.len() - 1).into()
    }

    fn text(&mut self, text: &str) -> Value {
        self.add(Slot::Text(text.to_owned()))
    }

    fn yaml(&mut self, path: &str) -> Value {
        self.add(Slot::Yaml(path.to_owned()))
    }

    fn optional(&mut self, path: &str) -> Value {
        self.add(Slot::Optional(path.to_owned()))
    }

    fn included(&mut self, call: &str) -> Value {
        self.add(Slot::Included(call.to_owned()))
    }

    /// Wherever an object names the namespace of the installation.
    fn namespaces(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if text == NAMESPACE => {
                *value = self.text(r#"{{ include "kruise-rs.namespace" . | quote }}"#)
            }
            Value::String(text) => {
                if let Some(rest) = text.strip_prefix(&format!("{NAMESPACE}/")) {
                    *value = self.text(&format!("{NAMESPACE_TEXT}/{rest}"));
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|item| self.namespaces(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.namespaces(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The object as a template.
    fn render(&self, object: &Value) -> Result<String, serde_yaml::Error> {
        let mut out = String::new();
        for line in serde_yaml::to_string(object)?.lines() {
            // Nothing of ours is meant for Helm but what is in slots.
            let line = line.replace("{{", r#"{{ "{{" }}"#);
            let Some((before, number)) = line.split_once(SLOT) else {
                out += &format!("{line}\n");
                continue;
            };
            let indent = before.len() - before.trim_start().len();
            let (margin, field) = before.split_at(indent);
            let field = field.trim_end();
            // Below the field, also where it is the first one of an item.
            let below = indent + if field.starts_with("- ") { 4 } else { 2 };
            let when = |expression: &str, text: &str| {
                format!("{margin}{{{{- with {expression} }}}}\n{text}{margin}{{{{- end }}}}\n")
            };
            let slot = number.parse().ok().and_then(|number: usize| self.0.get(number));
            out += &match slot {
                Some(Slot::Text(text)) => format!("{before}{text}\n"),
                Some(Slot::Yaml(path)) => format!("{margin}{field} {{{{- toYaml {path} | nindent {below} }}}}\n"),
                Some(Slot::Optional(path)) => {
                    when(path, &format!("{margin}{field} {{{{- toYaml . | nindent {below} }}}}\n"))
                }
                Some(Slot::Included(call)) if field == "-" => {
                    format!("{margin}{{{{- with {call} }}}}{{{{- . | nindent {indent} }}}}{{{{- end }}}}\n")
                }
                Some(Slot::Included(call)) => when(call, &format!("{margin}{field} {{{{- . | nindent {below} }}}}\n")),
                None => format!("{line}\n"),
            };
        }
        Ok(out)
    }
}

/// What the values say about an object of the base.
fn set_up(slots: &mut Slots, object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    match kind.as_str() {
        "Namespace" => object["metadata"]["annotations"] = json!({ KEEP: "keep" }),
        // With external certificates the next release leaves it out, and theirs are in the Secret of this name.
        "Secret" if object["metadata"]["name"] == webhook::SECRET => {
            object["metadata"]["annotations"] = json!({ KEEP: "keep" })
        }
        // Only with external certificates has a configuration annotations: who writes the CA into it knows by them whose.
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration"
            if !object["metadata"]["annotations"].is_null() =>
        {
            object["metadata"]["annotations"] = slots.included(r#"include "kruise-rs.injection" ."#);
        }
        "ConfigMap" if !object["data"].is_null() => {
            object["data"]["feature-gates"] = slots.text("{{ .Values.featureGates | quote }}");
            object["data"]["failure-policies"] = slots.included(r#"include "kruise-rs.failurePolicies" ."#);
        }
        "NetworkPolicy" => {
            for rule in object["spec"]["ingress"].as_array_mut().into_iter().flatten() {
                let of = rule["from"][0]["ipBlock"]["cidr"].as_str().unwrap_or_default();
                let of = of.strip_prefix("SET-CIDR-OF-").unwrap_or_default().to_lowercase();
                let value = if of == "api-servers" { "apiServers".to_owned() } else { of };
                rule["from"] = slots.yaml(&format!(".Values.networkPolicy.{value}"));
            }
        }
        "Deployment" | "DaemonSet" => workload(slots, object),
        _ => {}
    }
}

fn workload(slots: &mut Slots, object: &mut Value) {
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    let values = format!(".Values.{}", container["name"].as_str().unwrap_or_default());
    let is_deployment = object["kind"] == "Deployment";
    if is_deployment {
        object["spec"]["replicas"] = slots.text(&format!("{{{{ {values}.replicas }}}}"));
    }
    let template = &mut object["spec"]["template"];
    let call = format!(r#"include "kruise-rs.podAnnotations" (list . {values}.podAnnotations)"#);
    template["metadata"]["annotations"] = slots.included(&call);
    let own = dict(&template["metadata"]["labels"]);
    let call = format!(r#"include "kruise-rs.podLabels" (list {own} {values}.podLabels)"#);
    template["metadata"]["labels"] = slots.included(&call);
    let spec = &mut template["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or_default();
    let call = format!(r#"{{{{ include "kruise-rs.priorityClass" (list {values}.priorityClassName {class:?}) }}}}"#);
    spec["priorityClassName"] = slots.text(&call);
    spec["imagePullSecrets"] = slots.optional(".Values.imagePullSecrets");
    spec["nodeSelector"] = slots.optional(&format!("{values}.nodeSelector"));
    spec["tolerations"] = slots.optional(&format!("{values}.tolerations"));
    if is_deployment {
        spec["topologySpreadConstraints"] = slots.optional(&format!("{values}.topologySpreadConstraints"));
        // Beside the anti-affinity of the replicas.
        spec["affinity"]["nodeAffinity"] = slots.optional(&format!("{values}.nodeAffinity"));
    } else {
        spec["affinity"] = slots.optional(&format!("{values}.affinity"));
        spec["volumes"][0]["hostPath"] = slots.included(r#"include "kruise-rs.socket.host" ."#);
        spec["containers"][0]["volumeMounts"][0]["mountPath"] =
            slots.text(r#"{{ include "kruise-rs.socket.inside" . }}"#);
    }
    let container = &mut spec["containers"][0];
    container["image"] = slots.text(r#"{{ include "kruise-rs.image" . | quote }}"#);
    container["imagePullPolicy"] = slots.text("{{ .Values.manager.image.pullPolicy }}");
    container["resources"] = slots.yaml(&format!("{values}.resources"));
    let further = slots.included(&format!(r#"include "kruise-rs.args" {values}"#));
    if let Some(args) = container["args"].as_array_mut() {
        args.push(further);
    }
}

/// A map of strings as an expression of a template.
fn dict(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let words = pairs.flat_map(|(key, value)| [key.as_str(), value.as_str().unwrap_or_default()]);
    let words: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    format!("(dict {})", words.join(" "))
}

/// One object of the base, with what external certificates make of it.
fn document(object: &Value) -> Result<String, serde_yaml::Error> {
    let mut slots = Slots::default();
    let mut render = |mut object: Value| {
        set_up(&mut slots, &mut object);
        slots.namespaces(&mut object);
        slots.render(&object)
    };
    let external = external_certs::applied(object);
    if external.as_ref() == Some(object) {
        return Ok(format!("---\n{}", render(object.clone())?));
    }
    let own = render(object.clone())?;
    Ok(match external {
        None => format!("{{{{- if not {EXTERNAL_CERTS} }}}}\n---\n{own}{{{{- end }}}}\n"),
        Some(external) => {
            let external = render(external)?;
            format!("{{{{- if {EXTERNAL_CERTS} }}}}\n---\n{external}{{{{- else }}}}\n---\n{own}{{{{- end }}}}\n")
        }
    })
}

/// The mounts of each runtime, by name.
fn runtimes() -> Result<String, serde_yaml::Error> {
    let daemon_sets =
        base().into_iter().flat_map(|(_, objects)| objects).filter(|object| object["kind"] == "DaemonSet");
    let mut table = BTreeMap::new();
    for object in daemon_sets {
        let spec = &object["spec"]["template"]["spec"];
        let mount = json!({ "host": spec["volumes"][0]["hostPath"],
            "inside": spec["containers"][0]["volumeMounts"][0]["mountPath"] });
        table.insert("containerd", mount);
    }
    for runtime in &RUNTIMES {
        let mount = json!({ "host": { "path": runtime.host, "type": runtime.kind }, "inside": runtime.inside });
        table.insert(runtime.name, mount);
    }
    let table = serde_yaml::to_string(&table)?;
    Ok(format!("{HEADER}{{{{- define \"kruise-rs.runtimes\" }}}}\n{table}{{{{- end }}}}\n"))
}

/// Every rendered file: path below the chart and content.
pub(super) fn render() -> Result<BTreeMap<String, String>, serde_yaml::Error> {
    let mut files = BTreeMap::new();
    let when = |condition: &str, text: String| format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n");
    let mut add = |path: String, text: String| files.insert(path, format!("{HEADER}{text}"));
    for crd in CRDS {
        let mut object = custom_resource_definition(crd.render());
        object["metadata"]["annotations"][KEEP] = "keep".into();
        // A null is for `kubectl apply`; a definition that still has a webhook is refused here.
        object["spec"]["conversion"] = json!({ "strategy": "None" });
        let text = format!("---\n{}", Slots::default().render(&object)?);
        add(format!("templates/crds/{}.yaml", crd.name), when(".Values.crds.managed", text));
    }
    for (file, objects) in base() {
        let mut text = String::new();
        for object in &objects {
            let document = document(object)?;
            text += &match object["kind"] == "Namespace" {
                true => when(".Values.installation.createNamespace", document),
                false => document,
            };
        }
        add(format!("templates/{file}"), text);
    }
    for component in components::COMPONENTS {
        let value = COMPONENT_VALUES.iter().find(|(name, _)| *name == component.name);
        let Some((name, value)) = value else { continue };
        let text: String = (component.objects)().iter().map(document).collect::<Result<_, _>>()?;
        add(format!("templates/components/{name}.yaml"), when(value, text));
    }
    files.insert("templates/_runtimes.tpl".into(), runtimes()?);
    Ok(files)
}

#[cfg(test)]
mod tests;
