//! Files of docs/ that are made from the table of kinds: health checks for Argo CD, and metrics of objects for kube-state-metrics.
//!
//! `KRUISE_WRITE_DOCS=1 cargo test --lib docs::integrations` writes them anew.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use serde_json::Value;

use super::{assert_none, documents, read, root};
use crate::api::{
    apps::strategies::SidecarUpdateType,
    kinds::{KINDS, Kind, Scope},
};

/// Made by the manager, one for each node, and not applied by tools. They have no conditions: a tool that reads them takes them as
/// ready, and a condition would cost a write for each change of each node.
const OF_NODES: [&str; 2] = ["NodeImage", "NodePodProbe"];

/// Argo CD 3.5 brings health checks for these.
const WITH_A_CHECK: [&str; 5] = ["AdvancedCronJob", "BroadcastJob", "CloneSet", "DaemonSet", "StatefulSet"];

/// Kinds that we install and users write.
fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.definition.is_some() && !OF_NODES.contains(&kind.kind))
}

/// The schema of the status in the version that is stored.
fn schema(kind: &Kind) -> Value {
    let version = kind.definition.unwrap().render().spec.versions.remove(0);
    serde_json::json!(version.schema.unwrap().open_api_v3_schema)
}

/// Fails when a file is stale, or writes it.
fn assert_written(name: &str, wanted: &str) {
    let path = root().join(name);
    if std::env::var_os("KRUISE_WRITE_DOCS").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let is_fresh = fs::read_to_string(&path).is_ok_and(|text| text == wanted);
    assert!(is_fresh, "{name} is stale: KRUISE_WRITE_DOCS=1 cargo test --lib docs::integrations");
}

// ---- Argo CD ----

/// A merge patch of the ConfigMap `argocd-cm` with one script under the key of each kind.
fn argocd_cm(head: &str, script: &str, is_in: impl Fn(&Kind) -> bool) -> String {
    let mut text = format!("# {head} Made from health.lua, which explains it.\ndata:\n");
    for kind in kinds().filter(|kind| is_in(kind)) {
        writeln!(text, "  resource.customizations.health.{}_{}: |", kind.group, kind.kind).unwrap();
        script.lines().for_each(|line| writeln!(text, "    {line}").unwrap());
    }
    text
}

#[test]
fn every_kind_has_a_health_check_for_argo_cd() {
    let folder = "docs/integrations/argocd";
    let script = read(&root().join(folder).join("health.lua"));
    let has_one = |kind: &Kind| WITH_A_CHECK.contains(&kind.kind);
    let missing = argocd_cm("Health checks for kinds for which Argo CD has none.", &script, |kind| !has_one(kind));
    assert_written(&format!("{folder}/argocd-cm.yaml"), &missing);
    let workloads = argocd_cm("Health checks in place of those of Argo CD.", &script, has_one);
    assert_written(&format!("{folder}/argocd-cm-workloads.yaml"), &workloads);
    let patches = [missing, workloads].map(|text| documents(&text).unwrap().remove(0));
    let keys: usize = patches.iter().map(|patch| patch["data"].as_object().unwrap().len()).sum();
    assert_eq!(keys, kinds().count());
}

/// The script shows as Suspended what is held; a reason that no part of the program writes would never be met.
#[test]
fn reasons_that_the_script_knows_are_written() {
    let script = read(&root().join("docs/integrations/argocd/health.lua"));
    let table = script.split_once("local held = {").unwrap().1.split_once('}').unwrap().0;
    let reasons: Vec<&str> = table.split(',').filter_map(|item| item.trim().strip_suffix(" = true")).collect();
    assert!(reasons.len() > 5, "{reasons:?}");
    // Of values of a strategy that are reasons too only the enum has the spelling.
    let values = SidecarUpdateType::SPELLED.iter().map(|value| format!("\"{value}\""));
    let spoken = super::spoken() + &values.collect::<String>();
    let missing: Vec<String> =
        reasons.into_iter().filter(|reason| !spoken.contains(&format!("\"{reason}\""))).map(str::to_owned).collect();
    assert_none(&missing, "No status has these reasons.");
}

/// What the health checks that come with Argo CD read. They compare numbers without asking whether they are there.
#[test]
fn fields_that_argo_cd_reads_are_there() {
    const SET: [&str; 3] = ["observedGeneration", "updatedReplicas", "updatedAvailableReplicas"];
    for (kind, spec, status) in [
        (
            "CloneSet",
            &["updateStrategy.paused", "updateStrategy.partition"][..],
            &["expectedUpdatedReplicas", "replicas"][..],
        ),
        (
            "StatefulSet",
            &["updateStrategy.rollingUpdate.paused", "updateStrategy.rollingUpdate.partition"],
            &["replicas"],
        ),
        (
            "DaemonSet",
            &["updateStrategy.rollingUpdate.paused", "updateStrategy.rollingUpdate.partition"],
            &[
                "observedGeneration",
                "updatedNumberScheduled",
                "desiredNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
            ],
        ),
        ("BroadcastJob", &["paused"], &["desired", "succeeded", "active", "failed", "phase"]),
        ("AdvancedCronJob", &["paused"], &["lastScheduleTime", "active"]),
    ] {
        let schema = schema(kinds().find(|known| known.kind == kind).unwrap());
        let sets: &[&str] = if ["CloneSet", "StatefulSet"].contains(&kind) { &SET } else { &[] };
        let spec = spec.iter().map(|path| format!("spec.{path}"));
        let status = status.iter().chain(sets).map(|path| format!("status.{path}"));
        for path in spec.chain(status) {
            let pointer: String = path.split('.').map(|part| format!("/properties/{part}")).collect();
            assert!(schema.pointer(&pointer).is_some(), "{kind}: {path}");
        }
    }
}

// ---- kube-state-metrics ----

/// `updatedReplicas` as `updated_replicas`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

const OF_CONDITIONS: &str = "
        labelsFromPath: {type: [type], reason: [reason]}
        valueFrom: [status]";

/// One metric: its name, its help, and the path to its value.
fn gauge(text: &mut String, (name, help): (&str, &str), path: &[&str], more: &str) {
    let path = path.join(", ");
    write!(
        text,
        "    - name: {name}\n      help: {help}\n      each:\n        type: Gauge\n        gauge:\n          path: [{path}]{}\n",
        more.replace("\n", "\n  ")
    )
    .unwrap();
}

fn metrics_of(kind: &Kind, text: &mut String) {
    let schema = schema(kind);
    let namespace = if kind.scope == Scope::Namespaced { "namespace: [metadata, namespace], " } else { "" };
    writeln!(
        text,
        "  - groupVersionKind: {{group: {}, version: {}, kind: {}}}\n    metricNamePrefix: kube_kruise_{}\n    labelsFromPath: {{{namespace}name: [metadata, name]}}\n    errorLogV: 10\n    metrics:",
        kind.group,
        kind.version(),
        kind.kind,
        snake(kind.kind),
    )
    .unwrap();
    gauge(text, ("metadata_generation", "Number of the newest spec."), &["metadata", "generation"], "");
    if kind.workload.is_some_and(|workload| workload.replicas == "/spec/replicas") {
        gauge(text, ("spec_replicas", "Pods that are wanted."), &["spec", "replicas"], "");
    }
    for (field, of) in schema["properties"]["status"]["properties"].as_object().unwrap() {
        let name = format!("status_{}", snake(field));
        if of["type"] == "integer" && field != "collisionCount" {
            gauge(text, (&name, &format!("The number status.{field}.")), &["status", field], "");
        } else if of["format"] == "date-time" {
            let help = format!("The time status.{field}, in seconds since 1970.");
            gauge(text, (&name, &help), &["status", field], "");
        }
    }
    let help = "1 while the condition is True, 0 while it is False or Unknown.";
    gauge(text, ("status_condition", help), &["status", "conditions"], OF_CONDITIONS);
}

#[test]
fn every_kind_has_metrics_by_kube_state_metrics() {
    let mut text =
        "# For kube-state-metrics: --custom-resource-state-config-file. Made from the schemas of the definitions.\n\
                    kind: CustomResourceStateMetrics\nspec:\n  resources:\n"
            .to_owned();
    kinds().for_each(|kind| metrics_of(kind, &mut text));
    assert_written("docs/monitoring/kube-state-metrics.yaml", &text);
}

/// The schema of what a path of kube-state-metrics leads to; a list is followed into its items.
fn at<'s>(schema: &'s Value, path: &[Value]) -> Option<&'s Value> {
    let Some((first, rest)) = path.split_first() else { return Some(schema) };
    let schema = if schema["type"] == "array" { &schema["items"] } else { schema };
    at(schema["properties"].get(first.as_str()?)?, rest)
}

/// By the schemas alone: the file is read as kube-state-metrics documents it, which is not run.
#[test]
fn every_path_of_kube_state_metrics_is_in_the_schema_of_its_kind() {
    let file = documents(&read(&root().join("docs/monitoring/kube-state-metrics.yaml"))).unwrap().remove(0);
    let (mut problems, mut metrics, mut names) = (Vec::new(), 0, BTreeSet::new());
    for resource in file["spec"]["resources"].as_array().unwrap() {
        let of = &resource["groupVersionKind"];
        let kind = kinds().find(|kind| of["kind"] == kind.kind && of["group"] == kind.group).unwrap();
        assert_eq!(of["version"], kind.version(), "{kind:?}");
        let mut schema = schema(kind);
        schema["properties"]["metadata"] = serde_json::json!({ "properties": { "generation": { "type": "integer" },
            "name": { "type": "string" }, "namespace": { "type": "string" } } });
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for metric in resource["metrics"].as_array().unwrap() {
            metrics += 1;
            let name =
                format!("{}_{}", resource["metricNamePrefix"].as_str().unwrap(), metric["name"].as_str().unwrap());
            let gauge = &metric["each"]["gauge"];
            let found = at(&schema, &list(&gauge["path"]));
            let value = found.and_then(|found| at(found, &list(&gauge["valueFrom"])));
            // A number, a time, or the status of a condition: what kube-state-metrics makes a number of.
            let is_number = value.is_some_and(|value| {
                value["type"] == "integer" || value["format"] == "date-time" || gauge["valueFrom"][0] == "status"
            });
            let labels = gauge["labelsFromPath"].as_object().into_iter().flatten();
            let are_texts = labels.map(|(_, path)| found.and_then(|found| at(found, &list(path))));
            if !is_number || are_texts.into_iter().any(|label| label.is_none_or(|label| label["type"] != "string")) {
                problems.push(format!("{name}: {gauge}"));
            }
            assert!(names.insert(name.clone()), "{name} is there twice");
        }
    }
    assert_none(&problems, "docs/monitoring/kube-state-metrics.yaml names what the schema does not have.");
    assert_eq!(file["spec"]["resources"].as_array().unwrap().len(), kinds().count());
    assert!(metrics > 80, "only {metrics} metrics");
}

#[test]
fn alerts_about_objects_name_metrics_of_kube_state_metrics() {
    let alerts = read(&root().join("docs/monitoring/object-alerts.yaml"));
    let names = regex_of(&alerts);
    assert_eq!(names, ["kube_kruise_.+_status_condition"; 2]);
}

/// The expressions for names of metrics in a file of rules.
fn regex_of(text: &str) -> Vec<&str> {
    text.split("__name__=~\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}
