//! Workloads of subsets that nobody controls: a restore from a backup and a deletion with `--cascade=orphan` leave them so.
//! They are adopted, as OpenKruise does: others would be made beside them, with other names.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::{
    child::ChildSeen,
    make,
    plan::{self, SubsetStep, UnitedPlan},
    spec::{SubsetSpec, UnitedSpec},
};
use crate::k8s::{pod::Labels, selector::Selector};

/// Which of some workloads that nobody controls are adopted: for each subset without a workload one, that with the most ready
/// Pods, then the oldest. OpenKruise adopts the others too, and then deletes them as duplicates; here they stay as they are.
pub fn adopted(spec: &UnitedSpec, children: &[ChildSeen], orphans: &[ChildSeen]) -> Vec<ChildSeen> {
    // Without a selector nobody could say which ones are meant.
    let Some(selector) = Selector::of(&spec.selector).ok().filter(|selector| !selector.is_empty()) else {
        return Vec::new();
    };
    let chosen = plan::chosen(spec, children);
    let rank = |orphan: &&ChildSeen| (Reverse(orphan.count("readyReplicas")), orphan.created, orphan.name.clone());
    let one = |subset: &SubsetSpec| {
        let all = orphans.iter().filter(|orphan| is_of(spec, subset, orphan) && selector.matches(&labels_of(orphan)));
        all.min_by_key(rank).cloned()
    };
    let without = spec.subsets.iter().filter(|subset| !chosen.contains_key(&*subset.name));
    without.filter_map(one).collect()
}

/// No workload is made in the place of one that is still to be adopted.
pub fn hold_back(plan: &mut UnitedPlan, orphans: &[ChildSeen]) {
    let is_there = |name: &str| orphans.iter().any(|orphan| orphan.subset == name);
    plan.steps.retain(|step| !matches!(step, SubsetStep::Create { subset, .. } if is_there(subset)));
}

/// Whether a workload has the kind, the label and the selector of a subset's. A selector cannot be changed: with another one it
/// would have other Pods.
fn is_of(spec: &UnitedSpec, subset: &SubsetSpec, orphan: &ChildSeen) -> bool {
    let selector =
        orphan.object.pointer("/spec/selector").and_then(|selector| LabelSelector::deserialize(selector).ok());
    orphan.kind == Some(spec.template.kind)
        && !orphan.is_deleting
        && orphan.subset == subset.name
        && orphan.is_labelled()
        && selector.is_some_and(|selector| is_same(&selector, &make::selector(spec, &subset.name)))
}

/// What is empty may be missing in the one that is stored.
fn is_same(a: &LabelSelector, b: &LabelSelector) -> bool {
    let expressions = |of: &LabelSelector| of.match_expressions.clone().unwrap_or_default();
    a.match_labels == b.match_labels && expressions(a) == expressions(b)
}

fn labels_of(orphan: &ChildSeen) -> Labels {
    let labels = orphan.object.pointer("/metadata/labels").cloned();
    labels.and_then(|labels: Value| serde_json::from_value(labels).ok()).unwrap_or_default()
}
