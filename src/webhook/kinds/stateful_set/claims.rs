//! Changes of the claim templates of a set whose claims grow with its Pods (OnPodRollingUpdate).
//!
//! What is let in here is what the controller carries out, and nothing else: a claim template may ask for more storage where
//! the StorageClass lets volumes grow; for less while some claims have not grown, which then ask for less; and a template may
//! be added, which replaces Pods. It cannot go, or change what a claim cannot change.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::Value;

use super::rules::ON_POD_ROLLING_UPDATE;
use crate::{
    k8s::claim::amount,
    webhook::validate::{Findings, show, show_text},
};

/// The annotation of the StorageClass that claims without one get.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// What a claim template asks for.
const STORAGE: &str = "/spec/resources/requests/storage";

/// Why StorageClasses could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotListed(pub(super) String);

/// A claim template that asks for more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Growing {
    /// Its field.
    field: String,
    /// Its StorageClass; None is that of the cluster.
    class: Option<String>,
}

/// What counts of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Whether claims without a StorageClass get it.
    pub is_default: bool,
    /// When it was created: of several default ones the newest counts.
    pub created: Option<Timestamp>,
    /// `allowVolumeExpansion`.
    pub expands: bool,
}

impl Class {
    /// From the object.
    pub fn of(class: &StorageClass) -> Self {
        let annotations = class.metadata.annotations.as_ref();
        Self {
            name: class.metadata.name.clone().unwrap_or_default(),
            is_default: annotations.and_then(|all| all.get(IS_DEFAULT)).is_some_and(|value| value == "true"),
            created: class.metadata.creation_timestamp.as_ref().map(|time| time.0),
            expands: class.allow_volume_expansion == Some(true),
        }
    }
}

/// Whether the claims of a set grow when its Pods are updated.
pub(super) fn grow_with_update(object: &Value) -> bool {
    object.pointer("/spec/volumeClaimUpdateStrategy/type").is_some_and(|kind| kind == ON_POD_ROLLING_UPDATE)
}

/// The claim templates that have a name: place, name and template.
fn templates(object: &Value) -> Vec<(usize, &str, &Value)> {
    let list = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(i, claim)| Some((i, claim.pointer("/metadata/name")?.as_str()?, claim)))
        .collect()
}

/// Whether the claims of every Pod are as large as a template asks for, as far as the status says so of the present spec.
fn have_all_grown(set: &Value, template: &str) -> bool {
    let number = |object: &Value, at: &str| object.pointer(at).and_then(Value::as_i64);
    let pods = number(set, "/status/replicas").unwrap_or(0);
    let is_seen = number(set, "/status/observedGeneration") == number(set, "/metadata/generation");
    let all = set.pointer("/status/volumeClaims").and_then(Value::as_array);
    let mut of_template = all.into_iter().flatten().filter(|claims| claims["volumeClaimName"] == template);
    let have_grown = |claims: &Value| {
        ["/compatibleReplicas", "/compatibleReadyReplicas"].iter().all(|count| number(claims, count) >= Some(pods))
    };
    pods > 0 && is_seen && of_template.next().is_some_and(have_grown)
}

/// Judges how claim templates have changed, and returns which of them ask for more.
pub(super) fn changed(old_set: &Value, new: &Value, found: &mut Findings) -> Vec<Growing> {
    let (before, after) = (templates(old_set), templates(new));
    for (_, name, _) in before.iter().filter(|(_, name, _)| !after.iter().any(|(_, other, _)| other == name)) {
        found.deny(
            "spec.volumeClaimTemplates",
            format!("{} is missing; want the claim templates that were there: with volumeClaimUpdateStrategy {ON_POD_ROLLING_UPDATE} none may go", show_text(name)),
        );
    }
    let mut growing = Vec::new();
    for (i, name, claim) in &after {
        let Some((_, _, old)) = before.iter().find(|(_, other, _)| other == name) else { continue };
        let at = format!("spec.volumeClaimTemplates[{i}].spec");
        compare(&at, old, claim, found);
        let amount = |claim: &Value| claim.pointer(STORAGE).and_then(amount);
        match (amount(old), amount(claim)) {
            (Some(old), Some(new)) if new > old => growing.push(Growing {
                field: format!("{at}.resources.requests.storage"),
                class: claim.pointer("/spec/storageClassName").and_then(Value::as_str).map(str::to_owned),
            }),
            (Some(_), None) => found.deny(
                format!("{at}.resources.requests.storage"),
                format!(
                    "{} is not allowed; want an amount: claims are grown to it",
                    show(claim.pointer(STORAGE).unwrap_or(&Value::Null))
                ),
            ),
            (Some(before), Some(new)) if new < before && have_all_grown(old_set, name) => found.deny(
                format!("{at}.resources.requests.storage"),
                format!(
                    "{} is not allowed; want {} or more: every claim has that already, and volumes do not shrink",
                    show(claim.pointer(STORAGE).unwrap_or(&Value::Null)),
                    show(old.pointer(STORAGE).unwrap_or(&Value::Null))
                ),
            ),
            // The way out for claims that cannot grow to what they ask for.
            (Some(before), Some(new)) if new < before => found.warnings.push(format!(
                "{at}.resources.requests.storage: volumes do not shrink: claims that have grown stay as they are, others ask for less"
            )),
            _ => {}
        }
    }
    growing
}

/// What a claim cannot change has to stay.
fn compare(at: &str, old: &Value, new: &Value, found: &mut Findings) {
    let member = |claim: &Value, key: &str| {
        claim.pointer("/spec").and_then(|spec| spec.get(key)).filter(|value| !value.is_null()).cloned()
    };
    let keys: BTreeSet<&String> =
        [old, new].iter().filter_map(|claim| claim.get("spec")?.as_object()).flat_map(|spec| spec.keys()).collect();
    for key in keys.into_iter().filter(|key| *key != "resources") {
        let (before, after) = (member(old, key), member(new, key));
        let is_same = match key.as_str() {
            // Each of them may be that of the cluster.
            "storageClassName" => before.is_none() || after.is_none() || before == after,
            "volumeMode" => {
                let mode = |value: Option<Value>| value.unwrap_or_else(|| "Filesystem".into());
                mode(before.clone()) == mode(after.clone())
            }
            _ => before == after,
        };
        if !is_same {
            let old = before.as_ref().map_or_else(|| "nothing".to_owned(), show);
            found.deny(
                format!("{at}.{key}"),
                format!("it cannot be changed from {old} with volumeClaimUpdateStrategy {ON_POD_ROLLING_UPDATE}: claims that are there keep it"),
            );
        }
    }
}

/// Judges whether the StorageClasses let volumes grow, as the controller will.
pub(super) fn judge_classes(
    growing: &[Growing],
    classes: Option<&Result<Vec<Class>, NotListed>>,
    found: &mut Findings,
) {
    if growing.is_empty() {
        return;
    }
    let classes = match classes {
        Some(Ok(classes)) => classes,
        // An update fails open: the controller looks again.
        Some(Err(error)) => {
            found.warnings.push(format!("spec.volumeClaimTemplates: StorageClasses are not checked: {error}"));
            return;
        }
        None => {
            found.warnings.push("spec.volumeClaimTemplates: StorageClasses are not checked: no answer".into());
            return;
        }
    };
    for Growing { field, class } in growing {
        let used = match class {
            Some(name) => classes.iter().find(|known| known.name == *name),
            None => classes.iter().filter(|known| known.is_default).max_by_key(|known| known.created),
        };
        match (used, class) {
            (Some(used), _) if used.expands => {}
            (Some(used), _) => found.deny(
                field,
                format!("it cannot grow: StorageClass {} does not have allowVolumeExpansion: true", used.name),
            ),
            (None, Some(name)) => found.deny(field, format!("it cannot grow: there is no StorageClass {name}")),
            // No StorageClass: what the volumes can do is not known.
            (None, None) => {}
        }
    }
}
