//! Admission of SidecarSets: defaults, hashes and rules in one call, for v1beta1 and v1alpha1 alike.
//!
//! [`check`] judges the object alone (`rules`), [`admit`] together with what is looked up (`answers`). CREATE fails closed,
//! UPDATE fails open: hashes and defaults are made again by whoever reads a SidecarSet that admission has not seen
//! ([`defaults::effective`]). An update is never refused for what it does not change.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::{
    api::{
        apps,
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::kinds::sidecar_set::{defaults, hash},
    k8s::{name::is_label_value, rbac::Rule},
    runtime::kruise_configuration,
    webhook::{
        Context,
        server::{
            handler::MatchCondition,
            review::{Admitted, Cause, Decision, Denied, Request},
        },
        sidecars,
        template::{self, READ_BUDGET},
        validate::{Findings, Object, is_judged, show_text},
    },
};

mod answers;
mod conflicts;
mod rules;

use answers::Answers;

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC, Rule::new(&[apps::GROUP], &["sidecarsets"], &["list"])];
/// What it reads in our own namespace: the revision that a SidecarSet names, and the annotations that may be given to Pods.
pub const OWN_NAMESPACE_RBAC: &[Rule] = &[sidecars::REVISIONS, kruise_configuration::READ];

/// A SidecarSet of which every field has the right type.
#[derive(Clone, Debug)]
pub struct SidecarSetAdmission {
    object: Value,
    /// With defaults.
    wanted: Value,
    /// What is stored now, on UPDATE.
    old: Option<Value>,
    found: Findings,
}

/// When an update is judged: its spec, its version, its hashes or an annotation of ours change, and the object is not being
/// deleted.
pub fn on_update(_: &FeatureGates) -> Vec<MatchCondition> {
    let differs = |kind: &str, key: &str| {
        let of = |object: &str| format!("{object}.metadata.?{kind}[?'{key}'].orValue('')");
        format!("{} != {}", of("object"), of("oldObject"))
    };
    let expression = [
        "object.spec != oldObject.spec".to_owned(),
        differs("labels", labels::SIDECAR_SET_CUSTOM_VERSION),
        differs("annotations", labels::SIDECAR_SET_HASH),
        differs("annotations", labels::SIDECAR_SET_HASH_WITHOUT_IMAGE),
        differs("annotations", labels::REPAIR_UNINJECTED),
        differs("annotations", labels::POD_LEVEL_RESOURCES),
    ];
    vec![
        MatchCondition { name: "spec-changed", expression: expression.join(" || ") },
        MatchCondition { name: "not-being-deleted", expression: "!has(object.metadata.deletionTimestamp)".into() },
    ]
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let is_stored = !request.dry_run;
        let admission = check(request)?;
        let asked = answers::ask(&context, &admission.wanted, admission.old.as_ref());
        let late = || Answers { template: template::Answers::late(), ..Answers::default() };
        let answers = tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| late());
        let admitted = admit(&admission, &answers, context.gates.enabled(gate::SIDECAR_SET_METADATA))?;
        if is_stored {
            context.for_new_pods.announce(sidecars::namespaces_of(&admission.wanted["spec"])).await;
            context.sidecars.expect(&admission.wanted);
        }
        Ok(admitted)
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(request: Request) -> Result<SidecarSetAdmission, Denied> {
    let Request { operation, object, old_object, .. } = request;
    let is_new = operation == "CREATE";
    let old = (!is_new).then_some(old_object);
    let mut wanted = object.clone();
    keep_in_step(&mut wanted, old.as_ref());
    let mut found = rules::judge(&wanted, is_new);
    found.refuse_wrong_types()?;
    if let Some(old) = &old {
        found.leave_out(&rules::judge(old, false));
        found.causes.extend(rules::changes(old, &wanted).causes);
    }
    if let Some(spec) = wanted.get("spec") {
        let stored = old.as_ref().map(|old| defaults::effective(old).0);
        wanted["spec"] = defaults::defaulted(spec, stored.as_ref());
    }
    found.warnings.extend([widened(old.as_ref(), &wanted), replaced(&object, &wanted)].into_iter().flatten());
    write_hashes(&mut wanted);
    Ok(SidecarSetAdmission { object, wanted, old, found })
}

fn write_hashes(object: &mut Value) {
    let hashes = hash::of(object.get("spec").unwrap_or(&Value::Null));
    if let Some(annotations) = member_of_metadata(object, "annotations") {
        annotations.insert(labels::SIDECAR_SET_HASH.into(), hashes.hash.into());
        annotations.insert(labels::SIDECAR_SET_HASH_WITHOUT_IMAGE.into(), hashes.without_image.into());
    }
}

/// The labels or annotations, which are made if there are none.
fn member_of_metadata<'v>(object: &'v mut Value, member: &str) -> Option<&'v mut Object> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut)?;
    let texts = metadata.entry(member).or_insert_with(|| json!({}));
    if texts.is_null() {
        *texts = json!({});
    }
    texts.as_object_mut()
}

/// The selector of one namespace by its name.
fn of_namespace(namespace: &str) -> Value {
    json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}})
}

fn text<'v>(object: &'v Value, path: &[&str]) -> &'v str {
    let member = path.iter().try_fold(object, |object, key| object.get(*key));
    member.and_then(Value::as_str).unwrap_or_default()
}

const NAMESPACE: &[&str] = &["spec", "namespace"];
const VERSION: &[&str] = &["spec", "customVersion"];
const LABEL: &[&str] = &["metadata", "labels", labels::SIDECAR_SET_CUSTOM_VERSION];

/// `namespace` and the label of the version are those of v1alpha1; the members of v1beta1 say the same, for programs that
/// read them alone. What was changed wins over what was there.
fn keep_in_step(object: &mut Value, old: Option<&Value>) {
    namespaces_in_step(object, old);
    if let Some(version) = version_meant(object, old).map(str::to_owned) {
        write_version(object, &version);
    }
}

fn namespaces_in_step(object: &mut Value, old: Option<&Value>) {
    let selector_of = |spec: &Object| spec.get("namespaceSelector").filter(|selector| !selector.is_null()).cloned();
    let namespace = text(object, NAMESPACE).to_owned();
    let namespace_was = old.map_or("", |old| text(old, NAMESPACE));
    let selector_was = old.and_then(|old| selector_of(old.get("spec")?.as_object()?));
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !namespace.is_empty()) else {
        return;
    };
    let selector = selector_of(spec);
    if selector.as_ref().is_none_or(|selector| *selector == of_namespace(namespace_was)) {
        spec.insert("namespaceSelector".into(), of_namespace(&namespace));
        return;
    }
    let is_left = namespace == namespace_was && selector != selector_was;
    // The same manifest once more.
    let was_removed = namespace_was.is_empty() && selector == selector_was;
    if old.is_some() && (is_left || was_removed) {
        // Clients of OpenKruise never read `namespace` back, so they do not know that it has to go.
        spec.remove("namespace");
    }
}

/// The custom version that is meant. If one form was changed, that form; if both were and differ, None, which the rules refuse.
/// If neither was, the form of the client's API version, in which the API server calls: a v1alpha1 client never sends the
/// member, a v1beta1 manifest usually has no label.
fn version_meant<'v>(object: &'v Value, old: Option<&'v Value>) -> Option<&'v str> {
    let of_old = |path: &[&str]| old.map_or("", |old| text(old, path));
    let (label, version) = (text(object, LABEL), text(object, VERSION));
    let (label_was, version_was) = (of_old(LABEL), of_old(VERSION));
    let is_named = !version.is_empty() && version != version_was;
    let is_labelled = !label.is_empty() && label != label_was;
    let (own, own_was, other) = match text(object, &["apiVersion"]).ends_with("/v1alpha1") {
        // One that has no label yet is not seen by this client, and is kept.
        true => (label, label_was, version_was),
        false => (version, version_was, label),
    };
    match (is_named, is_labelled) {
        (true, true) if version != label => None,
        (true, _) => Some(version),
        (false, true) => Some(label),
        (false, false) if own.is_empty() && own_was.is_empty() => Some(other),
        (false, false) => Some(own),
    }
}

/// Writes the version in both forms; an empty one is removed.
fn write_version(object: &mut Value, version: &str) {
    let is_other = |object: &Value, path: &[&str]| text(object, path) != version;
    if is_other(object, VERSION)
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        match version.is_empty() {
            true => spec.remove("customVersion"),
            false => spec.insert("customVersion".into(), version.into()),
        };
    }
    // The API server refuses a label of another form, also in an update that does not change it.
    if is_other(object, LABEL)
        && is_label_value(version)
        && let Some(labels) = member_of_metadata(object, "labels")
    {
        match version.is_empty() {
            true => labels.remove(labels::SIDECAR_SET_CUSTOM_VERSION),
            false => labels.insert(labels::SIDECAR_SET_CUSTOM_VERSION.into(), version.into()),
        };
    }
}

/// A warning where `namespace` has gone for a selector that was changed, in this update or before.
fn replaced(object: &Value, wanted: &Value) -> Option<String> {
    let namespace = text(object, NAMESPACE);
    (namespace != text(wanted, NAMESPACE)).then(|| {
        let namespace = show_text(namespace);
        format!(
            "spec.namespace: {namespace} was removed: namespaceSelector is kept, and only one of the two may be set"
        )
    })
}

/// A warning where `namespace` was removed and the selector that came with it has stayed.
fn widened(old: Option<&Value>, object: &Value) -> Option<String> {
    let was = old.map(|old| text(old, NAMESPACE)).filter(|was| !was.is_empty())?;
    let stays = object.pointer("/spec/namespaceSelector") == Some(&of_namespace(was));
    (text(object, NAMESPACE).is_empty() && stays).then(|| {
        format!("spec.namespaceSelector: it still selects namespace {was} alone; remove it too if you mean all")
    })
}

/// Decides: all fields that are wrong, or the defaults and hashes. `is_open`: annotations need no whitelist.
fn admit(admission: &SidecarSetAdmission, answers: &Answers, is_open: bool) -> Decision {
    let SidecarSetAdmission { object, wanted, old, found } = admission;
    let mut found = found.clone();
    let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
    let (workload, old_workload) =
        (answers::as_workload(&spec(wanted)), old.as_ref().map(|old| answers::as_workload(&spec(old))));
    let judged = answers::judge_template((&workload, old_workload.as_ref()), &answers.template)?;
    // Of a name that is there twice our own rules have spoken.
    let is_said = |cause: &Cause| {
        cause.message.starts_with("Duplicate value") && found.causes.iter().any(|said| said.field == cause.field)
    };
    let unsaid: Vec<Cause> = judged.causes.into_iter().filter(|cause| !is_said(cause)).collect();
    found.causes.extend(unsaid);
    found.warnings.extend(judged.warnings);
    if let Some(whitelist) = &answers.whitelist {
        match whitelist {
            Ok(whitelist) => found.causes.extend(answers::judge_metadata(wanted, whitelist, is_open).causes),
            // What nobody may have allowed is not let in.
            Err(why) => {
                return Err(Denied::internal(format!("spec.patchPodMetadata: the whitelist cannot be read: {why}")));
            }
        }
    }
    for (field, answer) in [("spec.injectionStrategy.revision", &answers.revision), ("spec", &answers.others)] {
        match answer {
            Some(Ok(judged)) => found.causes.extend(judged.causes.clone()),
            Some(Err(why)) => found.warnings.push(format!("{field} is not checked: {why}")),
            None => {}
        }
    }
    found.refuse()?;
    Ok(Admitted { warnings: found.warnings, ..Admitted::changed(object, wanted) })
}

#[cfg(test)]
mod tests;
