//! Holds docs/ and the README to the program: links lead somewhere, examples are accepted, quoted messages and metrics
//! exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::{CronJob, Job},
    core::v1::{ConfigMap, Namespace, Pod, PodTemplateSpec, ResourceQuota, Secret, ServiceAccount},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    api::{CRDS, apps::clone_set::CloneSet, feature_gates::FeatureGates, kinds::KINDS, kruise},
    controllers::pod_set::ASIDE_PAUSE,
    daemon::{images, prober::Prober, recreate::Recreator, runtimes::Runtimes},
    runtime::{
        events::Recorder,
        metrics::{Metrics, ReconcileLabels, ResultLabels},
        queue::{Backoff, Queue},
        watches::Store,
    },
    webhook::{
        self,
        kinds::container_recreate_request,
        server::{
            metrics::{RequestLabels, WebhookLabels},
            review,
        },
    },
};

mod integrations;
mod site;

/// Kinds that examples may show although their definitions are not at hand here.
const OF_OTHERS: &str = include_str!("../docs/kinds-of-others.txt");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", name(path)))
}

/// Every page for readers.
fn pages() -> Vec<PathBuf> {
    let mut pages = files_below("docs", "md");
    pages.extend(["README.md", "ARCHITECTURE.md", "SECURITY.md"].map(|page| root().join(page)));
    pages
}

/// The fenced blocks of a page in a language, each with the number of its first line, and the page without any block.
fn blocks(page: &str, language: &str) -> (Vec<(usize, String)>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut open: Option<(String, usize, String)> = None;
    for (number, line) in page.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some((of, first, text))) => {
                if of == language {
                    found.push((first, text));
                }
            }
            (Some(of), None) => open = Some((of.trim().to_owned(), number + 2, String::new())),
            (None, Some((of, first, mut text))) => {
                text.push_str(line);
                text.push('\n');
                open = Some((of, first, text));
            }
            (None, None) => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a block is not closed");
    (found, rest)
}

#[track_caller]
fn assert_none(problems: &[String], how_to_mend: &str) {
    assert!(problems.is_empty(), "\n  {}\n{how_to_mend}\n", problems.join("\n  "));
}

// ---- links ----

/// What a forge makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(page: &str) -> BTreeSet<String> {
    let (_, prose) = blocks(page, "");
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut problems = Vec::new();
    for path in pages() {
        let (_, prose) = blocks(&read(&path), "");
        // In code nothing is a link.
        let prose: String = prose.split('`').step_by(2).collect();
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let there = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            if !there.exists() {
                problems.push(format!("{}: {target}: no such file", name(&path)));
            } else if !fragment.is_empty() && !anchors(&read(&there)).contains(fragment) {
                problems.push(format!("{}: {target}: no such heading", name(&path)));
            }
        }
    }
    assert_none(&problems, "Mend the link, or the heading it names.");
}

#[test]
fn every_page_is_in_the_index() {
    let index = read(&root().join("docs/README.md"));
    let missing: Vec<String> = files_below("docs", "md")
        .iter()
        .filter_map(|path| path.strip_prefix(root().join("docs")).ok()?.to_str().map(str::to_owned))
        .filter(|page| !["README.md", "SUMMARY.md"].contains(&page.as_str()) && !index.contains(&format!("]({page})")))
        .collect();
    assert_none(&missing, "Add a line to docs/README.md.");
}

/// Kinds of OpenKruise, by their names.
fn of_openkruise() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter(|kind| kind.definition.is_some() && kind.group != kruise::GROUP).map(|kind| kind.kind)
}

#[test]
fn every_kind_is_named_where_a_reader_asks_which_there_are() {
    let mut problems = Vec::new();
    for page in ["README.md", "CHANGELOG.md", "docs/moving-from-openkruise.md"] {
        let text = read(&root().join(page));
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        problems.extend(of_openkruise().filter(|kind| !words.contains(kind)).map(|kind| format!("{page}: {kind}")));
    }
    assert_none(&problems, "Name the kind there.");
}

#[test]
fn every_admission_webhook_is_in_the_table_of_what_waits() {
    let page = read(&root().join("docs/when-the-webhook-is-down.md"));
    let missing: Vec<String> = webhook::HANDLERS
        .iter()
        .map(|handler| format!("`{}`", handler.name))
        .filter(|name| !page.contains(name))
        .collect();
    assert_none(&missing, "Add a line to docs/when-the-webhook-is-down.md.");
}

/// Names of tests in a page: in code, in lower case, of at least four words.
fn named_tests(page: &str) -> BTreeSet<&str> {
    let code = page.split('`').skip(1).step_by(2);
    let is_name = |text: &&str| {
        text.split('_').count() > 3 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    code.filter(is_name).collect()
}

#[test]
fn tests_that_the_page_on_security_names_exist() {
    let page = read(&root().join("SECURITY.md"));
    let sources: Vec<String> =
        ["src", "e2e/tests"].iter().flat_map(|folder| files_below(folder, "rs")).map(|path| read(&path)).collect();
    let named: BTreeSet<&str> =
        named_tests(&page).into_iter().filter(|name| *name != "kruise_admission_policies_missing").collect();
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<String> = named
        .into_iter()
        .filter(|name| !sources.iter().any(|source| source.contains(&format!("fn {name}("))))
        .map(str::to_owned)
        .collect();
    assert_none(&missing, "SECURITY.md names these tests, and there is no function of that name.");
}

// ---- examples ----

/// What a structural schema says about a value: unknown fields, wrong types, missing fields, values that are not allowed.
fn judge(schema: &Value, value: &Value, at: &str, problems: &mut Vec<String>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        problems.push(format!("{at}: {value} is not of type {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        problems.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(required).is_none() {
            problems.push(format!("{at}.{required} is missing"));
        }
    }
    for (field, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{field}");
        match (schema["properties"].get(field), &schema["additionalProperties"]) {
            (Some(schema), _) => judge(schema, inner, &at, problems),
            (None, values @ Value::Object(_)) => judge(values, inner, &at, problems),
            (None, _) if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            (None, _) if schema["properties"].is_object() => problems.push(format!("{at} is unknown")),
            (None, _) => {}
        }
    }
    for (i, inner) in value.as_array().into_iter().flatten().enumerate() {
        judge(&schema["items"], inner, &format!("{at}[{i}]"), problems);
    }
}

/// What of a value is lost when the type reads it.
fn lost<K: DeserializeOwned + Serialize>(object: &Value, problems: &mut Vec<String>) {
    fn compare(given: &Value, kept: Option<&Value>, at: &str, problems: &mut Vec<String>) {
        match (given, kept) {
            (Value::Object(given), Some(kept)) => {
                for (field, value) in given {
                    compare(value, kept.get(field), &format!("{at}.{field}"), problems);
                }
            }
            (Value::Array(given), Some(kept)) => {
                for (i, value) in given.iter().enumerate() {
                    compare(value, kept.get(i), &format!("{at}[{i}]"), problems);
                }
            }
            // What is empty need not be written again.
            (Value::Object(map), None) if map.is_empty() => {}
            (Value::Array(list), None) if list.is_empty() => {}
            (_, None) => problems.push(format!("{at} is unknown")),
            (_, Some(_)) => {}
        }
    }
    match serde_json::from_value::<K>(object.clone()) {
        Ok(read) => compare(object, Some(&serde_json::json!(read)), "", problems),
        Err(error) => problems.push(error.to_string()),
    }
}

fn judge_object(object: &Value, problems: &mut Vec<String>) {
    let (Some(version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        return; // a part of something
    };
    if ["CloneSet", "StatefulSet", "DaemonSet"].contains(&kind) {
        // In its schema a template may be anything.
        lost::<PodTemplateSpec>(&object["spec"]["template"], problems);
    }
    for definition in CRDS.iter().map(|crd| serde_json::json!(crd.render())) {
        let spec = &definition["spec"];
        if spec["names"]["kind"] != *kind || !version.starts_with(&format!("{}/", spec["group"].as_str().unwrap())) {
            continue;
        }
        let found =
            spec["versions"].as_array().unwrap().iter().find(|v| version.ends_with(v["name"].as_str().unwrap()));
        let Some(found) = found else {
            problems.push(format!("apiVersion {version} is not served"));
            return;
        };
        let mut schema = found["schema"]["openAPIV3Schema"].clone();
        for (field, of) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
            schema["properties"][field] = serde_json::json!({ "type": of });
        }
        judge(&schema, object, "", problems);
        if kind == "ContainerRecreateRequest" {
            let request = review::Request { object: object.clone(), namespace: "default".into(), ..Default::default() };
            if let Err(denied) = container_recreate_request::check(&FeatureGates::default(), request) {
                problems.push(format!("admission refuses it: {}", denied.message));
            }
        }
        return;
    }
    match kind {
        "CloneSet" => lost::<CloneSet>(object, problems),
        "ClusterRole" => lost::<ClusterRole>(object, problems),
        "ClusterRoleBinding" => lost::<ClusterRoleBinding>(object, problems),
        "ConfigMap" => lost::<ConfigMap>(object, problems),
        "CronJob" => lost::<CronJob>(object, problems),
        "DaemonSet" => lost::<DaemonSet>(object, problems),
        "Deployment" => lost::<Deployment>(object, problems),
        "HorizontalPodAutoscaler" => lost::<HorizontalPodAutoscaler>(object, problems),
        "Job" => lost::<Job>(object, problems),
        "Namespace" => lost::<Namespace>(object, problems),
        "NetworkPolicy" => lost::<NetworkPolicy>(object, problems),
        "Pod" => lost::<Pod>(object, problems),
        "PodDisruptionBudget" => lost::<PodDisruptionBudget>(object, problems),
        "ResourceQuota" => lost::<ResourceQuota>(object, problems),
        "Role" => lost::<Role>(object, problems),
        "Secret" => lost::<Secret>(object, problems),
        "RoleBinding" => lost::<RoleBinding>(object, problems),
        "ServiceAccount" => lost::<ServiceAccount>(object, problems),
        "StatefulSet" => lost::<StatefulSet>(object, problems),
        "ValidatingAdmissionPolicy" => lost::<ValidatingAdmissionPolicy>(object, problems),
        "ValidatingAdmissionPolicyBinding" => lost::<ValidatingAdmissionPolicyBinding>(object, problems),
        other if OF_OTHERS.lines().any(|kind| kind == other) => {}
        other => problems.push(format!("kind {other:?} of {version:?} is not known to this test")),
    }
}

/// An example as an object: on the page of a workload, a spec alone is a part of one.
fn whole(page: &Path, example: &Value) -> Value {
    let (version, kind) = match page.file_name().and_then(|name| name.to_str()) {
        Some("clone-set.md") => ("v1alpha1", "CloneSet"),
        Some("statefulset.md") => ("v1beta1", "StatefulSet"),
        Some("daemonset.md") => ("v1beta1", "DaemonSet"),
        _ => return example.clone(),
    };
    if !example["kind"].is_null() {
        return example.clone();
    }
    let mut object = serde_json::json!({ "apiVersion": format!("apps.kruise.io/{version}"), "kind": kind,
        "spec": { "selector": {}, "template": { "spec": { "containers": [] } } } });
    json_patch::merge(&mut object, example);
    object
}

fn documents(text: &str) -> Result<Vec<Value>, serde_yaml::Error> {
    serde_yaml::Deserializer::from_str(text).map(Value::deserialize).collect()
}

#[test]
fn every_example_is_read_and_known() {
    let mut problems = Vec::new();
    let (mut objects, mut requests) = (0, 0);
    for path in pages() {
        for (line, text) in blocks(&read(&path), "yaml").0 {
            let mut wrong = Vec::new();
            match documents(&text) {
                Ok(found) => {
                    for object in &found {
                        judge_object(&whole(&path, object), &mut wrong);
                        objects += 1;
                        requests += usize::from(object["kind"] == "ContainerRecreateRequest");
                    }
                }
                Err(error) => wrong.push(error.to_string()),
            }
            problems.extend(wrong.into_iter().map(|problem| format!("{}:{line}: {problem}", name(&path))));
        }
    }
    assert_none(&problems, "An example must be one that the API server would take.");
    assert!(objects > 20 && requests > 8, "only {objects} examples were found, {requests} of them requests");
}

#[test]
fn the_judge_of_examples_finds_what_is_wrong() {
    for (example, want) in [
        (
            "{apiVersion: apps.kruise.io/v1alpha1, kind: ContainerRecreateRequest, spec: {podName: p, containers: [{name: a, nam: b}]}}",
            ".spec.containers[0].nam is unknown",
        ),
        (
            "{apiVersion: apps.kruise.io/v1alpha1, kind: ContainerRecreateRequest, spec: {podName: p}}",
            ".spec.containers is missing",
        ),
        (
            "{apiVersion: apps.kruise.io/v2, kind: ContainerRecreateRequest}",
            "apiVersion apps.kruise.io/v2 is not served",
        ),
        (
            "{apiVersion: apps.kruise.io/v1alpha1, kind: ContainerRecreateRequest, spec: {podName: p, containers: [{name: a}], activeDeadlineSeconds: 1}}",
            "admission refuses it: spec.activeDeadlineSeconds: 1 is not allowed; want 3 or more",
        ),
        (
            "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a, imag: b}]}}",
            ".spec.containers[0].imag is unknown",
        ),
        ("{apiVersion: v1, kind: Sandwich}", "kind \"Sandwich\" of \"v1\" is not known to this test"),
    ] {
        let mut problems = Vec::new();
        judge_object(&documents(example).unwrap()[0], &mut problems);
        assert!(problems.contains(&want.to_owned()), "{example}: {problems:?}");
    }
}

// ---- messages ----

/// Whether a file is no test, by its name or as a module of tests of the crate.
fn is_product(path: &Path) -> bool {
    let root = read(&root().join("src/lib.rs"));
    let declared = root.split("#[cfg(test)]").skip(1).filter_map(|rest| rest.split(';').next());
    let tests = declared.filter_map(|module| module.split_whitespace().last());
    let name = name(path);
    let top = name.trim_start_matches("src/").split(['/', '.']).next().unwrap_or_default();
    !crate::tidy::is_for_tests(&name) && !tests.into_iter().any(|module: &str| module == top)
}

/// Without the lines that are comments alone. What `clap` makes of a comment is help, not a message.
fn uncommented(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// The sources, without tests and comments, with string literals as they come out: continued lines joined, quotes unescaped.
fn spoken() -> String {
    let mut all = String::new();
    for path in files_below("src", "rs").iter().chain([&root().join("manifests/uninstall.sh")]) {
        if !is_product(path) {
            continue;
        }
        let text = uncommented(&crate::tidy::product(&read(path)));
        let mut lines = text.split("\\\n");
        all.push_str(lines.next().unwrap_or_default());
        for line in lines {
            all.push_str(line.trim_start());
        }
        all.push('\n');
    }
    all.replace("\\\"", "\"").replace("{{", "{").replace("}}", "}")
}

/// Constants of the sources, and values of a label, that stand before other texts.
const BEGINNINGS: [&str; 5] =
    ["forbidden by ResourcesProtectionDeletion for", "kill container error:", "is forbidden:", "=Always", "=Cascading"];

/// The part of a message that is one literal: without what joins it to the parts around it.
fn said(part: &str) -> &str {
    let part = part.trim_matches([' ', ':']);
    let rest = BEGINNINGS.into_iter().find_map(|beginning| part.strip_prefix(beginning));
    rest.map_or(part, str::trim_start)
}

/// The first part of a message that the sources do not have; `…` stands for what the program fills in.
fn unsaid<'a>(spoken: &str, message: &'a str) -> Option<&'a str> {
    let mut parts = message.split('…').filter(|part| part.trim().len() > 2).peekable();
    if parts.peek().is_none() {
        return Some(message);
    }
    parts.find(|part| !spoken.contains(said(part)))
}

/// Whether one literal has all parts of a text, in their order, with nothing between them but what is filled in.
fn is_one_literal(spoken: &str, text: &str) -> bool {
    let parts: Vec<&str> = text.split('…').filter(|part| part.trim().len() > 2).map(said).collect();
    let Some((first, others)) = parts.split_first() else { return false };
    spoken.match_indices(*first).any(|(at, _)| {
        let mut rest = &spoken[at + first.len()..];
        others.iter().all(|part| {
            let Some((between, after)) = rest.split_once(*part) else { return false };
            rest = after;
            !between.contains(['"', '\n'])
        })
    })
}

/// Texts that clients compare, as OpenKruise writes them: messages of conditions and events, refusals, reasons.
const FIXED_TEXTS: &[(&str, &[&str])] = &[
    (
        "CloneSet",
        &[
            "CloneSet is available",
            "CloneSet is paused",
            "CloneSet is progressing",
            "CloneSet has been paused due to partition ready",
            "CloneSet revision … has timed out progressing",
            "succeed to create pod …",
            "succeed to delete pod …",
            "successfully update pod … in-place(revision …)",
            "successfully patch pod … specified-delete for update(revision …)",
        ],
    ),
    ("StatefulSet", &["create Pod … in StatefulSet … successful"]),
    ("DaemonSet", &["Created pod: …", "Deleted pod: …"]),
    (
        "BroadcastJob",
        &["Job completed, …", "… pods succeeded, … pods failed", "… is completed, …", "failed pod is found"],
    ),
    (
        "ContainerRecreateRequest",
        &[
            "pod has gone",
            "daemon has not responded for a long time",
            "recreating has exceeded the activeDeadlineSeconds",
            "not found container on Node",
            "kill container error: …",
            "Stopping container … by ContainerRecreateRequest …",
        ],
    ),
    ("environment from metadata", &["Stopping containerID … by container meta restarter"]),
    (
        "ImagePullJob",
        &[
            "job has completed",
            "job is running, no progress",
            "job is running, progress …%",
            "job exceeds activeDeadlineSeconds",
            "node has not responded for a long time",
            "pulling exceeds the activeDeadlineSeconds",
        ],
    ),
    ("ImageListPullJob", &["Successful create ImagePullJob", "Successful delete ImagePullJob"]),
    ("PodProbeMarker", &["Container(…) is Non-running"]),
    ("UnitedDeployment", &["timeout pending pods found", "updated to revision …"]),
    (
        "PodUnavailableBudget",
        &[
            "podunavailablebudget.policy.kruise.io … is forbidden: …",
            "pub unavailable allowed is negative",
            "DisruptedPods and UnavailablePods map too big - too many unavailable not confirmed by PUB controller",
            "openkruise pub prevents pod deletion",
            "selector and targetRef cannot be modified",
        ],
    ),
    (
        "ResourceDistribution",
        &["conflict with existing resources because of the same namespace, group, version, kind and name"],
    ),
    (
        "deletion protection",
        &[
            "forbidden by ResourcesProtectionDeletion",
            "… and replicas …>0",
            "active pods",
            "\"Bound\" status pvc",
            "active CRs",
            "list pods error: …",
            "list pvc error: …",
            "failed to list CRs of …",
        ],
    ),
];

#[test]
fn decision_33_texts_that_clients_compare_are_openkruises() {
    let spoken = spoken();
    let texts = FIXED_TEXTS.iter().flat_map(|(about, texts)| texts.iter().map(move |text| (about, text)));
    let missing = texts.filter(|(_, text)| !is_one_literal(&spoken, text));
    let missing: Vec<String> = missing.map(|(about, text)| format!("{about}: {text}")).collect();
    assert_none(&missing, "Clients of OpenKruise compare these texts.");
    let text = "create Pod … in StatefulSet … successful";
    assert!(!is_one_literal("\"create Pod {}\", \"in StatefulSet {} successful\"", text), "of two literals");
}

#[test]
fn every_quoted_message_is_in_the_sources() {
    let spoken = spoken();
    let mut problems = Vec::new();
    let mut count = 0;
    for page in files_below("docs", "md") {
        for (first, text) in blocks(&read(&page), "text").0 {
            for (i, message) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
                count += 1;
                if let Some(missing) = unsaid(&spoken, message) {
                    problems.push(format!("{}:{}: {missing}", name(&page), first + i));
                }
            }
        }
    }
    assert_none(&problems, "A `text` block quotes messages word for word; `…` stands for what the program fills in.");
    assert!(count > 50, "only {count} messages were found");
    assert!(BEGINNINGS[..3].iter().all(|beginning| spoken.contains(beginning)));
    assert!(!spoken.contains("#[test]"), "a message that only a test has is no message");
}

#[test]
fn the_way_from_apps_v1_says_how_often_the_new_object_looks_for_the_old_one() {
    let page = read(&root().join("docs/how-to/from-apps-v1.md"));
    let sentence = format!("The new object looks every {} seconds whether the old one is gone.", ASIDE_PAUSE.as_secs());
    assert!(page.contains(&sentence), "{sentence}");
}

/// Calls that emit an event; their second argument is the reason.
const EMITTERS: [&str; 2] = [".normal(", ".warning("];

/// Calls that hand a reason on, as their first literal if they have one.
const HAND_ON: [&str; 9] = [
    "emit_once(",
    "say_once(",
    "warn_once(",
    "record_invalid(",
    "record_failed(",
    ".impossible(",
    "Situation::Reference(",
    " end(plan, ",
    " end(&mut plan, ",
];

/// Files whose events have reasons that are no literals there, each with the items, by file and how they begin, that hold
/// these reasons. What [`HAND_ON`] finds needs none.
const REASONS_ELSEWHERE: &[(&str, &[(&str, &str)])] = &[
    ("src/budgets/refusals.rs", &[("src/budgets/refusals.rs", "const WAITS_FOR_BUDGET:")]),
    ("src/controllers/advanced_cron_job/apply.rs", &[("src/domain/kinds/cron_job/spec.rs", "pub fn reason(")]),
    ("src/controllers/broadcast_job/record.rs", &[("src/domain/kinds/broadcast_job/plan.rs", "fn failure(")]),
    ("src/controllers/container_recreate_request/pod_spec.rs", &[("src/domain/node/recreate/mod.rs", "pub fn news<")]),
    (
        "src/controllers/ephemeral_job/mod.rs",
        &[
            ("src/domain/kinds/ephemeral_job/status.rs", "const DEADLINE_EXCEEDED:"),
            ("src/domain/kinds/ephemeral_job/status.rs", "const JOB_SUCCEEDED:"),
            ("src/domain/kinds/ephemeral_job/status.rs", "const JOB_FAILED:"),
        ],
    ),
    (
        "src/controllers/image_list_pull_job/mod.rs",
        &[("src/controllers/image_list_pull_job/mod.rs", "let reason = if broken")],
    ),
    (
        "src/controllers/image_pull_job/jobs.rs",
        &[
            ("src/domain/kinds/image_jobs/job.rs", "fn outcome("),
            ("src/domain/kinds/image_jobs/job.rs", "pub fn invalid("),
            ("src/domain/kinds/image_jobs/job.rs", "const PAUSED:"),
        ],
    ),
    ("src/controllers/pod_set/record.rs", &[]),
    (
        "src/controllers/resource_distribution/mod.rs",
        &[
            ("src/domain/kinds/resource_distribution/status.rs", "fn progress("),
            ("src/domain/kinds/resource_distribution/status.rs", "fn type_of("),
            ("src/domain/kinds/resource_distribution/status.rs", "const CONFLICT_OCCURRED:"),
            ("src/domain/kinds/resource_distribution/status.rs", "const NAMESPACE_NOT_EXISTS:"),
        ],
    ),
    ("src/controllers/sidecar_terminator/mod.rs", &[("src/controllers/sidecar_terminator/mod.rs", "const REASON:")]),
    ("src/controllers/stateful_set/record.rs", &[]),
    (
        "src/controllers/united_deployment/mod.rs",
        &[
            ("src/controllers/united_deployment/mod.rs", "let reason ="),
            ("src/controllers/united_deployment/apply.rs", "let reason = match sort"),
        ],
    ),
    (
        "src/controllers/workload_restart/apply.rs",
        &[("src/domain/kinds/workload_restart/rounds.rs", "plan.event = Some(Event {")],
    ),
    ("src/controllers/workload_spread/apply.rs", &[("src/domain/kinds/workload_spread/plan.rs", "pub fn reason(")]),
    ("src/daemon/recreate.rs", &[("src/domain/node/recreate/mod.rs", "pub fn news<")]),
    ("src/runtime/pod_control.rs", &[]),
];

/// Words of these items that are the reason of no event.
const NO_REASONS: [&str; 3] = ["Distributing", "FailedPod", "ReplicasDoNotFit"];

/// The arguments of each of these calls.
fn calls<'a>(code: &'a str, names: &[&str]) -> Vec<Vec<&'a str>> {
    names.iter().flat_map(|name| code.split(*name).skip(1)).map(arguments).collect()
}

/// The arguments of a call, from what follows its bracket.
fn arguments(rest: &str) -> Vec<&str> {
    let (mut found, mut from, mut depth) = (Vec::new(), 0, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_text => is_escaped = true,
            '"' => is_text = !is_text,
            _ if is_text => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' | ']' | '}' | ',' if depth == 0 => {
                found.push(rest[from..at].trim());
                from = at + 1;
                if c != ',' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

/// The literal that an argument is, or the first one of a tuple.
fn literal(argument: &str) -> Option<&str> {
    argument.trim_start_matches('(').strip_prefix('"')?.split('"').next()
}

/// An item of a source: a function as a whole, anything else to its first semicolon.
fn item<'a>(code: &'a str, beginning: &str) -> Option<&'a str> {
    let at = code.find(beginning)?;
    let rest = &code[at..];
    if !beginning.contains("fn ") {
        return rest.split(';').next();
    }
    let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
    let indent: String = code[line..].chars().take_while(|c| *c == ' ').collect();
    Some(&rest[..rest.find(&format!("\n{indent}}}\n"))?])
}

fn is_reason(word: &str) -> bool {
    word.len() > 3
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphabetic())
        && !NO_REASONS.contains(&word)
}

#[test]
fn every_event_is_explained() {
    let page = read(&root().join("docs/troubleshooting.md"));
    let sources: BTreeMap<String, String> = files_below("src", "rs")
        .into_iter()
        .filter(|path| is_product(path))
        .map(|path| (name(&path), crate::tidy::product(&read(&path))))
        .collect();
    let (mut reasons, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    for (file, code) in &sources {
        for arguments in calls(code, &EMITTERS) {
            match arguments.get(1).and_then(|reason| literal(reason)) {
                Some(reason) => drop(reasons.insert(reason.to_owned())),
                None => drop(elsewhere.insert(file.as_str())),
            }
        }
        for arguments in calls(code, &HAND_ON) {
            reasons.extend(arguments.iter().find_map(|argument| literal(argument)).map(str::to_owned));
        }
    }
    let listed: BTreeSet<&str> = REASONS_ELSEWHERE.iter().map(|(file, _)| *file).collect();
    assert_eq!(elsewhere, listed, "REASONS_ELSEWHERE says where the reasons of these events are written");
    for (file, beginning) in REASONS_ELSEWHERE.iter().flat_map(|(_, items)| *items) {
        let found = item(&sources[*file], beginning).unwrap_or_else(|| panic!("{file}: no {beginning}"));
        let words: Vec<&str> = found.split('"').skip(1).step_by(2).filter(|word| is_reason(word)).collect();
        assert!(!words.is_empty(), "{file}: no reason in {beginning}");
        reasons.extend(words.into_iter().map(str::to_owned));
    }
    for reason in ["NoReadyDaemon", "LaunchBarrierTaken", "BackOffExpected", "NoOrdinals", "RoundStarted"] {
        assert!(reasons.contains(reason), "{reason}: {reasons:?}");
    }
    assert!(reasons.len() > 90, "{reasons:?}");
    let missing: Vec<String> = reasons.into_iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert_none(&missing, "Explain these events in docs/troubleshooting.md.");
}

// ---- metrics ----

/// Every metric that a role serves, by the name of its samples, with its type.
async fn served() -> BTreeMap<String, String> {
    let all = Metrics::default();
    all.for_manager();
    let _ = all.reconciles.get_or_create(&ReconcileLabels { controller: "c", result: "success" });
    let _ = all.requests_completed.get_or_create(&ResultLabels { result: "succeeded" });
    let of_webhook = webhook::server::metrics::Metrics::default();
    of_webhook.register(&all);
    let _ = of_webhook.requests.get_or_create(&RequestLabels { webhook: "/", code: 200, outcome: "allowed" });
    let _ = of_webhook.latency.get_or_create(&WebhookLabels { webhook: "/" });
    let client = crate::runtime::fake_api::nobody();
    let (events, _) = Recorder::new(client.clone(), "test", "", all.events_dropped.clone());
    let _ = Prober::new(client.clone(), Store::new(None), Runtimes::default(), "kruise-system", &events, &all);
    let queue = Queue::new(Backoff::default());
    images::Metrics::new(&all);
    let _ = Recreator::new(client, Store::new(None), Store::new(None), Runtimes::default(), queue, events, &all);

    let text = all.render().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = types.map(|(name, kind)| match kind {
        "counter" => (format!("{name}_total"), kind.to_owned()),
        _ => (name.to_owned(), kind.to_owned()),
    });
    let mut served: BTreeMap<String, String> = names.collect();
    // Those of controllers are not made here.
    for name in registered_by(".register_seconds(") {
        served.entry(format!("{name}_seconds")).or_insert_with(|| "histogram".to_owned());
    }
    for name in registered_by(".register_gauge(") {
        served.entry(name).or_insert_with(|| "gauge".to_owned());
    }
    served
}

/// Names that the sources register, without their suffixes: some metrics have no sample before something happens.
fn registered() -> BTreeSet<String> {
    [".register(", ".register_seconds("].into_iter().flat_map(registered_by).collect()
}

/// Those of one call.
fn registered_by(call: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files_below("src", "rs").into_iter().filter(|p| !p.ends_with("docs.rs") && !p.ends_with("tests.rs")) {
        let source = read(&path);
        let code = crate::tidy::product(&source);
        let literals = code.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
        names.extend(literals.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    names
}

/// Whether a name is one of a metric's samples.
fn is_sample(name: &str, served: &BTreeMap<String, String>, registered: &BTreeSet<String>) -> bool {
    let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let is_histogram = |base| served.get(base).is_some_and(|kind| kind == "histogram");
    let counter = name.strip_suffix("_total").is_some_and(|base| registered.contains(base));
    served.contains_key(name) || histogram.is_some_and(is_histogram) || counter
}

/// Names of metrics in an expression of PromQL: words with an underscore that are no function or variable and stand in no selector.
fn metrics_in(expression: &str) -> Vec<String> {
    let (mut names, mut word, mut depth, mut quoted) = (Vec::new(), String::new(), 0, false);
    for c in expression.chars().chain([' ']) {
        quoted ^= c == '"';
        if c.is_ascii_alphanumeric() || "_:$".contains(c) {
            word.push(c);
            continue;
        }
        let word = std::mem::take(&mut word);
        if depth == 0 && !quoted && c != '(' && word.contains('_') && !word.starts_with('$') {
            names.push(word);
        }
        depth += i32::from(c == '{') - i32::from(c == '}');
    }
    names
}

#[test]
fn metrics_are_found_in_expressions() {
    let found = metrics_in(
        "histogram_quantile(0.9, sum by (le) (rate(a_seconds_bucket{x_y=\"b_c\"}[$__range]))) / b_total > 1",
    );
    assert_eq!(found, ["a_seconds_bucket", "b_total"]);
}

#[tokio::test]
async fn dashboards_alerts_and_the_page_name_metrics_that_exist() {
    let (served, registered) = (served().await, registered());
    assert!(registered.len() > 8, "{registered:?}");
    let folder = root().join("docs/monitoring");
    let mut expressions = Vec::new();
    fn expressions_in(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(
                    map.iter().filter(|(k, _)| *k == "expr").filter_map(|(_, v)| v.as_str().map(str::to_owned)),
                );
                map.values().for_each(|value| expressions_in(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| expressions_in(value, found)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&read(&folder.join("dashboard.json"))).unwrap();
    expressions_in(&dashboard, &mut expressions);
    let panels = expressions.len();
    for document in documents(&read(&folder.join("alerts.yaml"))).unwrap() {
        expressions_in(&document, &mut expressions);
    }
    assert!(panels > 8 && expressions.len() > panels + 4, "{panels} {}", expressions.len());
    let mut problems = Vec::new();
    for expression in &expressions {
        let names = metrics_in(expression);
        problems.extend(names.is_empty().then(|| format!("no metric in {expression}")));
        problems.extend(names.into_iter().filter(|name| !is_sample(name, &served, &registered)));
    }
    assert_none(&problems, "docs/monitoring names metrics that no role serves.");

    let page = read(&root().join("docs/metrics.md"));
    let unserved = registered.iter().filter(|base| !served.keys().any(|name| name.starts_with(base.as_str())));
    let unserved = unserved.map(|base| format!("{base}_total"));
    let missing: Vec<String> =
        served.keys().cloned().chain(unserved).filter(|name| !page.contains(&format!("| `{name}` |"))).collect();
    assert_none(&missing, "Add a row for each of these to docs/metrics.md.");
    let named =
        page.split('`').skip(1).step_by(2).filter(|word| {
            ["kruise_", "controller_runtime_", "process_"].iter().any(|prefix| word.starts_with(prefix))
        });
    let unknown: Vec<String> =
        named.flat_map(metrics_in).filter(|name| !is_sample(name, &served, &registered)).collect();
    assert_none(&unknown, "docs/metrics.md names metrics that no role serves.");
}

/// Their output is piped into a deletion.
#[test]
fn the_commands_that_print_what_is_left_of_another_release_leave_out_the_binding_of_the_webhook() {
    let page = read(&root().join("docs/how-to/upgrade.md"));
    let filter = format!("| comm -23 - older | grep -v '/{}$'", crate::domain::deletion_protection::NAME);
    assert!(page.contains(&filter), "{filter}");
}
