use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::manifests::feature_gates;

mod scripts;

/// What is written by hand below `templates` and `files`.
const BY_HAND: [&str; 4] =
    ["templates/NOTES.txt", "templates/_helpers.tpl", "templates/checks.yaml", "templates/monitoring.yaml"];

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/kruise-rs")
}

fn read(path: &str) -> String {
    fs::read_to_string(dir().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_yaml::from_str(&read(path)).unwrap()
}

fn files_below(path: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path.strip_prefix(dir()).unwrap().to_str().unwrap().to_owned()),
        }
    }
}

#[test]
fn the_committed_chart_is_that_of_the_program() {
    let mut rendered = render().unwrap();
    for (from, to) in COPIES {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(from);
        rendered.insert(to.to_owned(), fs::read_to_string(source).unwrap());
    }
    let stale: Vec<&String> = rendered
        .iter()
        .filter(|(path, text)| fs::read_to_string(dir().join(path)).ok().as_ref() != Some(text))
        .map(|(path, _)| path)
        .collect();
    assert!(stale.is_empty(), "stale below charts/kruise-rs: {stale:?}; mend with `make manifests`");
    let mut found = Vec::new();
    for folder in ["templates", "files"] {
        files_below(&dir().join(folder), &mut found);
    }
    for path in found.iter().filter(|path| !BY_HAND.contains(&path.as_str())) {
        assert!(rendered.contains_key(path), "charts/kruise-rs/{path} is not rendered any more; remove it");
    }
}

#[test]
fn the_chart_is_of_this_release() {
    let chart = yaml("Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
    // Without an annotation for the gates of the manifests, the Pods of both are the same.
    let shipped = feature_gates()["data"]["feature-gates"].as_str().unwrap().to_owned();
    assert_eq!(yaml("values.yaml")["featureGates"], shipped);
    assert!(read("templates/_helpers.tpl").contains(&format!("ne .Values.featureGates \"{shipped}\"")));
}

#[test]
fn every_component_has_a_value() {
    let valued = COMPONENT_VALUES.iter().map(|(name, _)| *name).chain(["external-certs"]).collect::<BTreeSet<_>>();
    assert_eq!(valued, components::COMPONENTS.iter().map(|component| component.name).collect());
}

/// Paths of values in a template: what follows `.Values.`.
fn named(template: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let paths = template.split(".Values.").skip(1);
    paths
        .map(|rest| rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())].trim_end_matches('.').to_owned())
        .collect()
}

#[test]
fn every_value_is_in_the_values_and_in_their_schema() {
    let values = yaml("values.yaml");
    let mut files = Vec::new();
    files_below(&dir().join("templates"), &mut files);
    let mut used = BTreeSet::new();
    for path in files {
        used.append(&mut named(&read(&path)));
    }
    for path in used {
        let pointer = format!("/{}", path.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), ".Values.{path} is not in values.yaml");
    }
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    judge(&values, &schema, &schema, "");
}

/// The schema names every value, and nothing that is none.
fn judge(values: &Value, schema: &Value, root: &Value, at: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(path) => root.pointer(path.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let Some(properties) = schema["properties"].as_object() else { return };
    let fields = values.as_object().unwrap();
    assert_eq!(schema["additionalProperties"], false, "{at}");
    for (name, value) in fields {
        assert!(properties.contains_key(name), "{at}.{name} is not in the schema");
        judge(value, &properties[name], root, &format!("{at}.{name}"));
    }
    for name in properties.keys().filter(|name| *name != "global") {
        assert!(fields.contains_key(name), "{at}.{name} is not in values.yaml");
    }
}

#[test]
fn nothing_in_a_template_names_the_namespace_and_nothing_is_left_open() {
    for (path, text) in render().unwrap().iter().filter(|(path, _)| path.starts_with("templates/")) {
        assert!(!text.contains(SLOT), "{path}");
        let named =
            text.lines().find(|line| line.contains(NAMESPACE) && !line.trim_start().starts_with("description:"));
        assert!(named.is_none() || path.contains("/crds/"), "{path}: {named:?}");
    }
}

#[test]
fn a_definition_is_kept_and_nothing_that_the_program_owns_is_in_the_chart() {
    let rendered = render().unwrap();
    for crd in CRDS {
        let text = &rendered[&format!("templates/crds/{}.yaml", crd.name)];
        assert!(text.contains("    helm.sh/resource-policy: keep\n"), "{}", crd.name);
    }
    let all: String = rendered.values().cloned().collect();
    assert!(!all.contains("caBundle") && !all.contains("holderIdentity"));
}

/// Applied again, neither of them takes back what the webhook and the administrator have written into their entries.
#[test]
fn of_the_registration_the_manifests_and_the_chart_ship_the_fixed_entries_alone() {
    let objects = base().into_iter().flat_map(|(_, objects)| objects);
    let is_registration = |object: &Value| object["kind"].as_str().unwrap().ends_with("WebhookConfiguration");
    let mut shipped = Vec::new();
    for object in objects.filter(is_registration) {
        let text = document(&object).unwrap();
        let (external, own) = text.split_once("{{- else }}").unwrap();
        assert!(external.matches("clientConfig:").count() > 2, "nobody else adds what is missing: {external}");
        let injection = r#"{{- with include "kruise-rs.injection" . }}"#;
        assert!(external.contains(injection) && !own.contains(injection), "{external}");
        let entries = object["webhooks"].as_array().cloned().unwrap_or_default();
        assert_eq!(own.matches("clientConfig:").count(), entries.len(), "{own}");
        assert!(!entries.is_empty() || object.get("webhooks").is_none(), "an empty list would remove the others");
        for entry in entries {
            let name = entry["name"].as_str().unwrap().to_owned();
            assert!(own.contains(&format!("name: {name}\n")), "{name}: {own}");
            shipped.push(name);
        }
    }
    assert_eq!(shipped, ["mcontainerrecreaterequest.kb.io", "mpod-required.kb.io"]);
    let of_the_secret = format!(r#"(printf "%s/{}" (include "kruise-rs.namespace" .))"#, webhook::SECRET);
    assert!(read("templates/_helpers.tpl").contains(&of_the_secret), "{of_the_secret}");
}

/// What the values say about where Pods of a role run is beside what the manifests say, and not in its place.
#[test]
fn the_pods_of_each_role_can_be_placed_and_named_by_values() {
    let rendered = render().unwrap();
    for (file, role, label, affinity, class) in [
        ("manager.yaml", "manager", "controller-manager", "nodeAffinity", "system-cluster-critical"),
        ("webhook.yaml", "webhook", "webhook", "nodeAffinity", "system-cluster-critical"),
        ("daemon.yaml", "daemon", "daemon", "affinity", "system-node-critical"),
    ] {
        let text = &rendered[&format!("templates/{file}")];
        let own = format!(r#"(dict "app.kubernetes.io/name" "kruise-rs" "control-plane" "{label}")"#);
        for line in [
            format!(
                r#"      {{{{- with include "kruise-rs.podAnnotations" (list . .Values.{role}.podAnnotations) }}}}"#
            ),
            format!(r#"      {{{{- with include "kruise-rs.podLabels" (list {own} .Values.{role}.podLabels) }}}}"#),
            // Also where the values are those of a chart without this one.
            format!(
                r#"      priorityClassName: {{{{ include "kruise-rs.priorityClass" (list .Values.{role}.priorityClassName "{class}") }}}}"#
            ),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{file}: {line}");
        }
        let place = text.split_once(&format!("{{{{- with .Values.{role}.{affinity} }}}}\n"));
        let (before, after) = place.unwrap_or_else(|| panic!("{file} has no {affinity}"));
        assert!(after.trim_start().starts_with(&format!("{affinity}: {{{{- toYaml . | nindent")), "{file}");
        if affinity == "nodeAffinity" {
            assert!(
                before.trim_end().ends_with("affinity:") && after.contains("\n        podAntiAffinity:\n"),
                "{file}"
            );
        }
    }
    let (values, shipped) = (yaml("values.yaml"), base());
    let objects = shipped.into_iter().flat_map(|(_, objects)| objects);
    for object in objects.filter(|object| object["kind"] == "Deployment" || object["kind"] == "DaemonSet") {
        let spec = &object["spec"]["template"]["spec"];
        let role = spec["containers"][0]["name"].as_str().unwrap();
        assert_eq!(values[role]["priorityClassName"], spec["priorityClassName"], "{role}");
    }
}

#[test]
fn what_helm_would_take_for_its_own_is_escaped() {
    let object = json!({ "a": "{{ .x }}", "b": "}}" });
    let text = Slots::default().render(&object).unwrap();
    assert_eq!(text, "a: '{{ \"{{\" }} .x }}'\nb: '}}'\n");
}
