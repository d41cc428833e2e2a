//! What is wrong with a WorkloadSpread by itself. Node terms, tolerations and patches are the API server's to judge.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{
    inject::{FIXED_FIELDS, FIXED_LABELS, INSTRUCTIONS},
    spec::TargetKind,
};
use crate::{
    api::apps::workload_spread::{ADAPTIVE, FIXED, WorkloadSpread, WorkloadSpreadSpec},
    domain::workload::target,
    k8s::{int_or_percent, selector},
};

/// A field, and what is wrong with it.
pub type SpreadProblem = (String, String);

/// The most subsets.
pub const MOST_SUBSETS: usize = 64;
/// The longest name of a subset.
const LONGEST_NAME: usize = 253;
/// What [`WorkloadSpreadSpec::schedule_strategy`] may wait in all its subsets together.
const MOST_SECONDS: i64 = 295;

/// Everything that is wrong. `is_permitted` says whether a target of some API group and kind may be spread.
pub fn problems(object: &WorkloadSpread, is_permitted: impl Fn(&str, &str) -> bool) -> Vec<SpreadProblem> {
    let spec = &object.spec;
    let mut found = Vec::new();
    target(spec, is_permitted, &mut found);
    filter(spec, &mut found);
    subsets(spec, &mut found);
    limits(spec, &mut found);
    strategy(spec, &mut found);
    found
}

fn target(spec: &WorkloadSpreadSpec, is_permitted: impl Fn(&str, &str) -> bool, found: &mut Vec<SpreadProblem>) {
    let target = &spec.target_ref;
    let before = found.len();
    let problems = target::problems(&target.api_version, &target.kind, &target.name);
    found.extend(problems.into_iter().map(|problem| (problem.field, problem.why)));
    if found.len() == before && !is_permitted(target.group(), &target.kind) {
        found.push((
            "spec.targetRef.kind".into(),
            format!(
                "{:?} of {:?} is not allowed; want a CloneSet, Deployment, ReplicaSet, StatefulSet, Advanced StatefulSet or Job, or a kind that the ConfigMap kruise-configuration names",
                short(&target.kind),
                short(&target.api_version)
            ),
        ));
    }
}

fn filter(spec: &WorkloadSpreadSpec, found: &mut Vec<SpreadProblem>) {
    let Some(filter) = &spec.target_filter else { return };
    // An empty one is for all Pods.
    if let Some(given) = &filter.selector {
        let problems = selector::term_problems(given, "spec.targetFilter.selector");
        found.extend(problems.into_iter().map(|problem| (problem.field, problem.why)));
    }
    for (index, path) in filter.replicas_path_list.iter().enumerate() {
        if path.is_empty() || path.split('.').any(str::is_empty) {
            found.push((
                format!("spec.targetFilter.replicasPathList[{index}]"),
                format!("{:?} is not allowed; want a path such as spec.tfReplicaSpecs.Worker.replicas", short(path)),
            ));
        }
    }
}

fn subsets(spec: &WorkloadSpreadSpec, found: &mut Vec<SpreadProblem>) {
    if spec.subsets.is_empty() || spec.subsets.len() > MOST_SUBSETS {
        found
            .push(("spec.subsets".into(), format!("{} are not allowed; want 1 to {MOST_SUBSETS}", spec.subsets.len())));
    }
    let mut names = BTreeSet::new();
    for (index, subset) in spec.subsets.iter().enumerate() {
        let field = format!("spec.subsets[{index}].name");
        if subset.name.is_empty() {
            found.push((field, "it is empty; want a name".into()));
        } else if subset.name.len() > LONGEST_NAME {
            found.push((field, format!("{} bytes are not allowed; want up to {LONGEST_NAME}", subset.name.len())));
        } else if !names.insert(&subset.name) {
            found.push((field, format!("{:?} is the name of another subset too", short(&subset.name))));
        }
        let field = format!("spec.subsets[{index}].patch");
        match subset.patch.as_ref().filter(|patch| !patch.is_null()) {
            Some(patch) if !patch.is_object() => {
                let text: String = patch.to_string().chars().take(80).collect();
                found.push((field, format!("{text} is not allowed; want an object")));
            }
            Some(patch) => found.extend(patch_problems(patch).map(|(below, why)| (format!("{field}.{below}"), why))),
            None => {}
        }
    }
}

/// What a patch may not change in a Pod: which one it is, and whose, and what Kruise does with it. And images that only a Pod is
/// refused with, a template is not.
fn patch_problems(patch: &Value) -> impl Iterator<Item = SpreadProblem> {
    let metadata = &patch["metadata"];
    let fixed = FIXED_FIELDS.iter().filter(|key| metadata.get(**key).is_some());
    let fixed =
        fixed.map(|key| (format!("metadata.{key}"), "not allowed; it identifies the Pod or its owner".to_owned()));
    let identity = FIXED_LABELS.iter().filter(|key| metadata["labels"].get(**key).is_some());
    let identity = identity.map(|key| {
        (format!("metadata.labels[{key}]"), "not allowed; its controller knows the Pod by this label".to_owned())
    });
    let instructions = ["labels", "annotations"].into_iter().flat_map(move |field| {
        let there = INSTRUCTIONS.iter().filter(move |key| metadata[field].get(**key).is_some());
        there.map(move |key| {
            (format!("metadata.{field}[{key}]"), "not allowed: Kruise manages this key on Pods".to_owned())
        })
    });
    let images = ["initContainers", "containers"].into_iter().flat_map(|list| {
        let containers = patch["spec"][list].as_array().into_iter().flatten().enumerate();
        containers.filter_map(move |(index, container)| {
            let image = container["image"].as_str().filter(|image| image.trim() != *image)?;
            let why = format!("{:?} is not allowed; want one without white space around it", short(image));
            Some((format!("spec.{list}[{index}].image"), why))
        })
    });
    fixed.chain(identity).chain(instructions).chain(images)
}

fn limits(spec: &WorkloadSpreadSpec, found: &mut Vec<SpreadProblem>) {
    let is_set = TargetKind::of(spec.target_ref.group(), &spec.target_ref.kind).has_ordinals();
    let (mut numbers, mut percentages) = (0, Vec::new());
    for (index, subset) in spec.subsets.iter().enumerate() {
        let Some(max) = &subset.max_replicas else { continue };
        let field = format!("spec.subsets[{index}].maxReplicas");
        let wrong =
            |want: &str| (field.clone(), format!("{:?} is not allowed; want {want}", int_or_percent::text(max)));
        match max {
            IntOrString::Int(number) if *number < 0 => found.push(wrong("0 or more")),
            IntOrString::Int(_) => numbers += 1,
            IntOrString::String(_) if is_set => {
                found.push(wrong("a number: the Pods of a StatefulSet are spread by their ordinals"));
            }
            IntOrString::String(text) => {
                let whole = text.strip_suffix('%').filter(|_| int_or_percent::is_whole_percentage(text));
                match whole.and_then(|digits| digits.parse::<u32>().ok()) {
                    Some(percent) if percent <= 100 => percentages.push(percent),
                    _ => found.push(wrong("a number, or a percentage from 0% to 100%")),
                }
            }
        }
    }
    if numbers > 0 && !percentages.is_empty() {
        found.push(("spec.subsets".into(), "maxReplicas: want numbers in all subsets, or percentages in all".into()));
    }
    let (sum, last) = (percentages.iter().sum::<u32>(), spec.subsets.last());
    if percentages.is_empty() || numbers > 0 {
        return;
    }
    let is_open = last.is_some_and(|last| last.max_replicas.is_none());
    if sum > 100 || (sum < 100 && !is_open) {
        found.push((
            "spec.subsets".into(),
            format!("maxReplicas: the percentages are {sum}% together; want 100%, or less with a last subset without a limit"),
        ));
    }
}

fn strategy(spec: &WorkloadSpreadSpec, found: &mut Vec<SpreadProblem>) {
    let strategy = &spec.schedule_strategy;
    if ![ADAPTIVE, FIXED, ""].contains(&strategy.type_.as_str()) {
        found.push((
            "spec.scheduleStrategy.type".into(),
            format!("{:?} is not allowed; want {ADAPTIVE} or {FIXED}", short(&strategy.type_)),
        ));
    }
    if strategy.adaptive.is_some() && strategy.type_ != ADAPTIVE {
        found.push((
            "spec.scheduleStrategy.adaptive".into(),
            format!("not allowed with type {:?}; want type {ADAPTIVE}", short(&strategy.type_)),
        ));
    }
    let many = i64::try_from(spec.subsets.len()).unwrap_or(i64::MAX);
    let has_limited_end = many > 1 && spec.subsets.last().is_some_and(|last| last.max_replicas.is_some());
    if strategy.type_ == ADAPTIVE && has_limited_end {
        let field = format!("spec.subsets[{}].maxReplicas", many - 1);
        found.push((
            field,
            format!("not allowed in the last subset with type {ADAPTIVE}: it takes what finds no place elsewhere; leave it out"),
        ));
    }
    let seconds = strategy.adaptive.as_ref().and_then(|adaptive| adaptive.reschedule_critical_seconds);
    let most = if many > 1 { MOST_SECONDS / (many - 1) } else { i64::from(i32::MAX) };
    if let Some(seconds) = seconds.map(i64::from).filter(|seconds| !(0..=most).contains(seconds)) {
        found.push((
            "spec.scheduleStrategy.adaptive.rescheduleCriticalSeconds".into(),
            format!("{seconds} is not allowed; want 0 to {most} with {many} subsets"),
        ));
    }
}

/// A text as messages show it.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
