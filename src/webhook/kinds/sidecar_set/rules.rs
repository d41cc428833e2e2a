//! The rules of a SidecarSet that need no look-up.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    api::{
        apps::sidecar_set::{
            AFTER_APP_CONTAINER, BEFORE_APP_CONTAINER, COLD_UPGRADE, HOT_UPGRADE, INJECT_ALWAYS, INJECT_PARTIAL,
            NOT_UPDATE, PATCH_MERGE_JSON, PATCH_OVERWRITE, PATCH_RETAIN, ROLLING_UPDATE, SHARE_DISABLED, SHARE_ENABLED,
        },
        labels,
    },
    domain::{
        kinds::sidecar_set::{
            expression::{Expression, Variable},
            hash::is_native_sidecar,
            inject::PodLevel,
            repair::EVICT,
            resources,
        },
        pod::launch_priority,
    },
    k8s::{
        int_or_percent::IntOrPercent,
        invalid::Invalid,
        name::{LONGEST_LABEL, is_dns_label, is_label_value, is_qualified_name},
    },
    webhook::validate::{Findings, Object, is_set, show_text, shown},
};

/// The most members of a list: everything here is read for every Pod that is created.
const MOST_ITEMS: usize = 200;
/// The longest name of a hot-upgraded container: `-1` and `-2` are added, and annotations have it as their key.
const LONGEST_HOT_NAME: usize = LONGEST_LABEL - 2;
const STRATEGY: &str = "spec.updateStrategy.";

/// Judges an object.
pub(super) fn judge(object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(object) = object.as_object() else {
        found.wrong_type("the object", object, "a SidecarSet");
        return found;
    };
    let metadata = found.object(object, "", "metadata").unwrap_or(&none);
    if is_new {
        found.object_name(metadata, Some((LONGEST_LABEL, ": it is the value of a label of its revisions")));
        let name = found.text(metadata, "metadata.", "name");
        if name.contains('.') {
            found.deny("metadata.name", format!("{} is not allowed; want no '.'", show_text(name)));
        }
    }
    let Some(spec) = found.object(object, "", "spec") else {
        found.deny("spec", "it is missing; want at least selector and containers");
        return found;
    };
    found.selector(spec, "spec.", "selector");
    namespaces(&mut found, spec);
    version(&mut found, metadata, spec);
    one_of(&mut found, metadata, labels::REPAIR_UNINJECTED, &[EVICT]);
    one_of(&mut found, metadata, labels::POD_LEVEL_RESOURCES, &PodLevel::NAMES);
    containers(&mut found, spec);
    for key in ["volumes", "imagePullSecrets"] {
        bounded(&mut found, spec, "spec.", key);
    }
    found.integer(spec, "spec.", "revisionHistoryLimit", 0);
    update_strategy(&mut found, spec);
    injection_strategy(&mut found, spec);
    metadata_patches(&mut found, spec);
    found
}

/// A list with no more members than it may have.
fn bounded<'v>(found: &mut Findings, parent: &'v Object, at: &str, key: &str) -> &'v [Value] {
    let list = found.list(parent, at, key);
    if list.len() > MOST_ITEMS {
        found.deny(format!("{at}{key}"), format!("it has {} items; want up to {MOST_ITEMS}", list.len()));
    }
    &list[..list.len().min(MOST_ITEMS)]
}

fn namespaces(found: &mut Findings, spec: &Object) {
    let namespace = found.text(spec, "spec.", "namespace");
    if !namespace.is_empty() && !is_dns_label(namespace) {
        found.deny("spec.namespace", format!("{} is not allowed; want the name of a namespace", show_text(namespace)));
    }
    if spec.get("namespaceSelector").is_some_and(|selector| !selector.is_null()) {
        found.selector(spec, "spec.", "namespaceSelector");
        if !namespace.is_empty() && spec.get("namespaceSelector") != Some(&super::of_namespace(namespace)) {
            found.deny(
                "spec.namespace",
                format!("{} is not allowed together with namespaceSelector; want one of them", show_text(namespace)),
            );
        }
    }
}

/// An annotation of ours is one of some words.
fn one_of(found: &mut Findings, metadata: &Object, key: &str, words: &[&str]) {
    let value = metadata.get("annotations").and_then(|annotations| annotations.get(key)?.as_str());
    if let Some(value) = value.filter(|value| !words.contains(value)) {
        let message = format!("{} is not allowed; want {}, or leave it out", show_text(value), words.join(" or "));
        found.deny(format!("metadata.annotations[{key}]"), message);
    }
}

fn version(found: &mut Findings, metadata: &Object, spec: &Object) {
    let version = found.text(spec, "spec.", "customVersion");
    if !is_label_value(version) {
        found.deny(
            "spec.customVersion",
            format!("{} is not allowed; want what the value of a label may be", show_text(version)),
        );
    }
    let label = metadata.get("labels").and_then(|labels| labels.get(labels::SIDECAR_SET_CUSTOM_VERSION)?.as_str());
    if let Some(label) = label.filter(|label| !version.is_empty() && *label != version) {
        found.deny(
            "spec.customVersion",
            format!(
                "{} is not what the label {} says: {}; want one of them, or both alike",
                show_text(version),
                labels::SIDECAR_SET_CUSTOM_VERSION,
                show_text(label)
            ),
        );
    }
}

fn containers(found: &mut Findings, spec: &Object) {
    let (plain, init) = (bounded(found, spec, "spec.", "containers"), bounded(found, spec, "spec.", "initContainers"));
    if plain.is_empty() && init.is_empty() {
        found.deny("spec.containers", "it is empty; want at least one container or init container");
    }
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (key, list) in [("containers", plain), ("initContainers", init)] {
        for (i, container) in list.iter().enumerate() {
            let at = format!("spec.{key}[{i}]");
            let Some(sidecar) = container.as_object() else {
                found.wrong_type(&at, container, "a container");
                continue;
            };
            if key == "containers"
                && let Err(Invalid(why)) = launch_priority::priority(container)
            {
                found.deny(format!("{at}.env"), why);
            }
            let is_plain_init = key == "initContainers" && !is_native_sidecar(container);
            let own = sidecar_container(found, sidecar, &format!("{at}."), is_plain_init);
            // Its own name is the last: of a hot sidecar that is there twice, those of its twins need no word.
            if let Some(name) = own.iter().rev().find(|name| names.contains(*name)) {
                let why = format!("{} is there twice; want each name once", show_text(name));
                found.deny(format!("{at}.name"), why);
            }
            names.extend(own);
        }
    }
}

/// Judges what is Kruise's own in a container. The names that it has in Pods.
fn sidecar_container(found: &mut Findings, sidecar: &Object, at: &str, is_plain_init: bool) -> Vec<String> {
    let name = found.text(sidecar, at, "name").to_owned();
    found.one_of(sidecar, at, "podInjectPolicy", &[BEFORE_APP_CONTAINER, AFTER_APP_CONTAINER]);
    for policy in ["shareVolumePolicy", "shareVolumeDevicePolicy"] {
        if let Some(share) = found.object(sidecar, at, policy) {
            found.one_of(share, &format!("{at}{policy}."), "type", &[SHARE_ENABLED, SHARE_DISABLED]);
        }
    }
    for (i, transfer) in bounded(found, sidecar, at, "transferEnv").iter().enumerate() {
        match transfer.as_object() {
            Some(transfer) => transfer_env(found, transfer, &format!("{at}transferEnv[{i}].")),
            None => found.wrong_type(&format!("{at}transferEnv[{i}]"), transfer, "an object"),
        }
    }
    resources_policy(found, sidecar, at, is_plain_init);
    let Some(upgrade) = found.object(sidecar, at, "upgradeStrategy") else { return vec![name] };
    let upgrade_at = format!("{at}upgradeStrategy.");
    let kind = found.one_of(upgrade, &upgrade_at, "upgradeType", &[COLD_UPGRADE, HOT_UPGRADE]);
    if kind != HOT_UPGRADE {
        return vec![name];
    }
    if is_plain_init {
        found.deny(
            format!("{upgrade_at}upgradeType"),
            format!("{HOT_UPGRADE} is not allowed for an init container that ends; want {COLD_UPGRADE}"),
        );
    }
    if found.text(upgrade, &upgrade_at, "hotUpgradeEmptyImage").is_empty() {
        found.deny(
            format!("{upgrade_at}hotUpgradeEmptyImage"),
            "it is missing; want the image of the container that is not at work",
        );
    }
    if name.len() > LONGEST_HOT_NAME {
        found.deny(
            format!("{at}name"),
            format!("{} is not allowed with {HOT_UPGRADE}; want up to {LONGEST_HOT_NAME} characters", show_text(&name)),
        );
    }
    vec![format!("{name}-1"), format!("{name}-2"), name]
}

fn transfer_env(found: &mut Findings, transfer: &Object, at: &str) {
    let source = found.text(transfer, at, "sourceContainerName");
    let from = found.object(transfer, at, "sourceContainerNameFrom");
    if source.is_empty() && from.is_none() {
        found.deny(
            format!("{at}sourceContainerName"),
            "it is missing; want the name of a container, or sourceContainerNameFrom",
        );
    }
    if found.text(transfer, at, "envName").is_empty() && bounded(found, transfer, at, "envNames").is_empty() {
        found.deny(format!("{at}envName"), "it is missing; want envName or envNames");
    }
    let from_at = format!("{at}sourceContainerNameFrom.");
    let Some(reference) = from.and_then(|from| found.object(from, &from_at, "fieldRef")) else { return };
    let at = format!("{from_at}fieldRef.");
    found.one_of(reference, &at, "apiVersion", &["v1"]);
    let path = found.text(reference, &at, "fieldPath");
    let key = |prefix: &str| path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']");
    let is_good = key("metadata.labels").is_some_and(is_qualified_name)
        || key("metadata.annotations").is_some_and(|key| is_qualified_name(&key.to_ascii_lowercase()));
    if !is_good {
        found.deny(
            format!("{at}fieldPath"),
            format!("{} is not allowed; want metadata.labels['KEY'] or metadata.annotations['KEY']", show_text(path)),
        );
    }
}

fn resources_policy(found: &mut Findings, sidecar: &Object, at: &str, is_plain_init: bool) {
    let Some(policy) = found.object(sidecar, at, "resourcesPolicy") else { return };
    let at = format!("{at}resourcesPolicy");
    if is_plain_init {
        found.deny(&at, "not allowed for an init container that ends; leave it out");
    }
    let resources = sidecar.get("resources").and_then(Value::as_object);
    let has =
        |key: &str| resources.and_then(|all| all.get(key)?.as_object()).is_some_and(|amounts| !amounts.is_empty());
    if has("limits") || has("requests") {
        found.deny(&at, "not allowed together with resources; want one of them");
    }
    let at = format!("{at}.");
    if found.one_of(policy, &at, "targetContainersMode", &["sum", "max"]).is_empty() {
        found.deny(format!("{at}targetContainersMode"), "it is missing; want sum or max");
    }
    if let Some(text) = policy.get("targetContainersNameRegex").and_then(Value::as_str) {
        let field = format!("{at}targetContainersNameRegex");
        if text.is_empty() {
            found.deny(field, "it is empty; want a regular expression (RE2)");
        } else if let Err(why) = resources::pattern(text) {
            found.deny(field, format!("{} is not allowed: {why}", show_text(text)));
        }
    }
    let expressions = found.object(policy, &at, "resourcesExpr");
    let is_given = |kind: &str| expressions.is_some_and(|all| all.get(kind).is_some_and(Value::is_object));
    if !is_given("limits") && !is_given("requests") {
        found.deny(format!("{at}resourcesExpr"), "it is empty; want limits or requests");
    }
    for kind in ["limits", "requests"] {
        let Some(of_kind) = expressions.and_then(|all| all.get(kind)?.as_object()) else { continue };
        for variable in Variable::ALL {
            let at = format!("{at}resourcesExpr.{kind}.");
            let expression = found.text(of_kind, &at, variable.name());
            if !expression.is_empty()
                && let Err(why) = Expression::parse(expression, variable)
            {
                let field = format!("{at}{}", variable.name());
                found.deny(field, format!("{} is not allowed: {why}", show_text(expression)));
            }
        }
    }
}

fn update_strategy(found: &mut Findings, spec: &Object) {
    let Some(strategy) = found.object(spec, "spec.", "updateStrategy") else { return };
    let kind = found.one_of(strategy, STRATEGY, "type", &[ROLLING_UPDATE, NOT_UPDATE]);
    found.flag(strategy, STRATEGY, "paused");
    if kind == NOT_UPDATE {
        // The rest says nothing then, and is let in.
        return;
    }
    let partition = found.share_up_to_all(strategy, STRATEGY, "partition");
    if let Some(share) = found.share_up_to_all(strategy, STRATEGY, "maxUnavailable")
        && matches!(share, IntOrPercent::Int(0) | IntOrPercent::Percent(0.0))
    {
        let field = format!("{STRATEGY}maxUnavailable");
        found.deny(field, format!("{} is not allowed; want 1 or more, or paused", shown(strategy, "maxUnavailable")));
    }
    if strategy.get("selector").is_some_and(|selector| !selector.is_null()) {
        found.selector(strategy, STRATEGY, "selector");
        if partition.is_some_and(|partition| partition != IntOrPercent::Int(0)) {
            found.deny(
                format!("{STRATEGY}partition"),
                format!("{} is not allowed together with selector; want one of them", shown(strategy, "partition")),
            );
        }
    }
    found.priority_strategy(strategy, STRATEGY);
    let mut terms = BTreeSet::new();
    for (i, term) in bounded(found, strategy, STRATEGY, "scatterStrategy").iter().enumerate() {
        let at = format!("{STRATEGY}scatterStrategy[{i}]");
        let Some(term) = term.as_object() else {
            found.wrong_type(&at, term, "an object");
            continue;
        };
        let (key, value) = (found.text(term, &format!("{at}."), "key"), found.text(term, &format!("{at}."), "value"));
        if key.is_empty() {
            found.deny(format!("{at}.key"), "it is missing; want the key of a label");
        }
        if !terms.insert((key, value)) {
            found.deny(&at, "it is there twice; want each key with each value once");
        }
    }
}

fn injection_strategy(found: &mut Findings, spec: &Object) {
    const AT: &str = "spec.injectionStrategy.";
    let Some(injection) = found.object(spec, "spec.", "injectionStrategy") else { return };
    found.flag(injection, AT, "paused");
    for key in ["revisionName", "customVersion"] {
        found.text(injection, AT, key);
    }
    let Some(revision) = found.object(injection, AT, "revision") else { return };
    let at = format!("{AT}revision.");
    found.one_of(revision, &at, "policy", &[INJECT_ALWAYS, INJECT_PARTIAL]);
    let (name, version) = (found.text(revision, &at, "revisionName"), found.text(revision, &at, "customVersion"));
    let is_flat = ["revisionName", "customVersion"]
        .iter()
        .any(|key| is_set(&Value::Object(injection.clone()), &format!("/{key}")));
    if name.is_empty() && version.is_empty() && !is_flat {
        found.deny(at.trim_end_matches('.'), "it is empty; want revisionName or customVersion");
    }
}

fn metadata_patches(found: &mut Findings, spec: &Object) {
    let mut keys: BTreeSet<&str> = BTreeSet::new();
    for (i, patch) in bounded(found, spec, "spec.", "patchPodMetadata").iter().enumerate() {
        let at = format!("spec.patchPodMetadata[{i}]");
        let Some(patch) = patch.as_object() else {
            found.wrong_type(&at, patch, "an object");
            continue;
        };
        let at = format!("{at}.");
        let policy = found.one_of(patch, &at, "patchPolicy", &[PATCH_RETAIN, PATCH_OVERWRITE, PATCH_MERGE_JSON]);
        let annotations = found.object(patch, &at, "annotations");
        if annotations.is_none_or(Object::is_empty) {
            found.deny(format!("{at}annotations"), "it is empty; want at least one annotation");
        }
        for (key, value) in annotations.into_iter().flatten() {
            let field = format!("{at}annotations[{key}]");
            if !is_qualified_name(&key.to_ascii_lowercase()) {
                found.deny(&field, format!("{} is not allowed; want the key of an annotation", show_text(key)));
            }
            if policy != PATCH_RETAIN && !policy.is_empty() && labels::is_of_system(key) {
                found.warnings.push(format!(
                    "{field}: a key of Kubernetes or Kruise is given when a Pod is created, and not changed by updates in place"
                ));
            }
            if !keys.insert(key) {
                found.deny(&field, "it is there twice; want each key once");
            }
            match value.as_str() {
                None => found.wrong_type(&field, value, "text"),
                Some(text) if policy == PATCH_MERGE_JSON && serde_json::from_str::<Value>(text).is_err() => {
                    found
                        .warnings
                        .push(format!("{field}: it is no JSON, and cannot be merged into a value that is there"));
                }
                Some(_) => {}
            }
        }
    }
}

/// Judges what an update changes: containers are not added or renamed, and stay cold or hot.
pub(super) fn changes(old: &Value, new: &Value) -> Findings {
    let mut found = Findings::default();
    let list = |object: &Value, key: &str| -> Vec<(String, Value)> {
        let list = object.pointer(&format!("/spec/{key}")).and_then(Value::as_array).cloned().unwrap_or_default();
        list.into_iter().map(|c| (c.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(), c)).collect()
    };
    let way = |container: &Value| {
        let way = container.pointer("/upgradeStrategy/upgradeType").and_then(Value::as_str).unwrap_or_default();
        if way.is_empty() { COLD_UPGRADE.to_owned() } else { way.to_owned() }
    };
    for key in ["containers", "initContainers"] {
        let before = list(old, key);
        for (i, (name, container)) in list(new, key).iter().enumerate() {
            let Some((_, was)) = before.iter().find(|(known, _)| known == name) else {
                if key == "containers" {
                    found.deny(
                        format!("spec.containers[{i}].name"),
                        format!(
                            "{} is new; containers cannot be added or renamed: Pods that are there would not get it. Create another SidecarSet",
                            show_text(name)
                        ),
                    );
                }
                continue;
            };
            if way(was) != way(container) {
                found.deny(
                    format!("spec.{key}[{i}].upgradeStrategy.upgradeType"),
                    format!("{} is not allowed; it was {} and cannot be changed", way(container), way(was)),
                );
            }
        }
    }
    found
}
