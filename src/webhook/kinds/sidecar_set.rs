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
    k8s::rbac::Rule,
    runtime::kruise_configuration,
    webhook::{
        Context,
        server::{
            handler::MatchCondition,
            review::{Admitted, Decision, Denied, Request},
        },
        sidecars,
        template::{self, READ_BUDGET},
        validate::{Findings, is_judged},
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

/// When an update is judged: its spec, its version or its hashes change, and the object is not being deleted.
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
            context.sidecars.announce(&admission.wanted["spec"]).await;
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
    if let Some(warning) = widened(old.as_ref(), &wanted) {
        found.warnings.push(warning);
    }
    write_hashes(&mut wanted);
    Ok(SidecarSetAdmission { object, wanted, old, found })
}

fn write_hashes(object: &mut Value) {
    let hashes = hash::of(object.get("spec").unwrap_or(&Value::Null));
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if annotations.is_null() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(labels::SIDECAR_SET_HASH.into(), hashes.hash.into());
        annotations.insert(labels::SIDECAR_SET_HASH_WITHOUT_IMAGE.into(), hashes.without_image.into());
    }
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
    let of_old = |path: &[&str]| old.map_or("", |old| text(old, path));
    let namespace = text(object, NAMESPACE).to_owned();
    let (label, version) = (text(object, LABEL).to_owned(), text(object, VERSION).to_owned());
    let (label_was, version_was) = (of_old(LABEL), of_old(VERSION));
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let selector = spec.get("namespaceSelector").filter(|selector| !selector.is_null());
        let is_left_over = selector.is_some_and(|selector| *selector == of_namespace(of_old(NAMESPACE)));
        if !namespace.is_empty() && (selector.is_none() || is_left_over) {
            spec.insert("namespaceSelector".into(), of_namespace(&namespace));
        }
        let is_removed = !label_was.is_empty() && label.is_empty() && version == version_was;
        let is_relabelled = label != label_was && (version.is_empty() || version == version_was);
        if is_removed {
            spec.remove("customVersion");
        } else if !label.is_empty() && (is_relabelled || version.is_empty() && version_was.is_empty()) {
            spec.insert("customVersion".into(), label.clone().into());
        }
    }
    let is_renamed = !label.is_empty() && label == label_was && version != version_was && version != label;
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut)
        && is_renamed
    {
        match version.is_empty() {
            true => labels.remove(labels::SIDECAR_SET_CUSTOM_VERSION),
            false => labels.insert(labels::SIDECAR_SET_CUSTOM_VERSION.into(), version.into()),
        };
    }
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
    found.causes.extend(judged.causes);
    found.warnings.extend(judged.warnings);
    if let Some(whitelist) = &answers.whitelist {
        match whitelist {
            Ok(text) => found.causes.extend(answers::judge_metadata(wanted, text.as_deref(), is_open).causes),
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
