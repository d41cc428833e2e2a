//! What a stored PersistentPodState asks for, and what is refused in one: by admission when it is written, and left out here
//! when it was written while admission was away.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{
        apps,
        apps::persistent_pod_state::{PersistentPodState, PersistentPodStateSpec, WHEN_DELETED, WHEN_SCALED},
        labels,
    },
    domain::workload::target::{self, WorkloadTarget},
    k8s::{
        invalid::{Invalid, InvalidField},
        name::is_qualified_name,
    },
};

/// The most keys of node labels, required and preferred ones each, and the most preferences.
pub const MOST_KEYS: usize = 16;
/// The most annotations that are recorded.
pub const MOST_ANNOTATIONS: usize = 16;
/// The longest value of an annotation that is recorded, in bytes: the status has those of all Pods.
pub const LONGEST_VALUE: usize = 4 << 10;

/// A field, and what is wrong with its value and what is allowed.
pub type StateProblem = (String, String);

/// What is read of a PersistentPodState.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateSpec {
    /// Group and version of the target.
    pub api_version: String,
    /// API group of the target; empty for core.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub name: String,
    /// Keys of node labels that a Pod needs.
    pub required: BTreeSet<String>,
    /// All keys of node labels that are recorded.
    pub keys: BTreeSet<String>,
    /// Keys of annotations that are recorded.
    pub annotations: BTreeSet<String>,
    /// Records of Pods that the target does not want any more stay.
    pub keeps_surplus: bool,
    /// After so long without being Ready a node holds no Pod any more.
    pub clear_after: Option<Duration>,
}

impl StateSpec {
    /// From a stored object. What cannot be used is left out.
    ///
    /// # Errors
    /// It names what can be no target, or its annotation is no number of seconds: nothing is done on a guess.
    pub fn of(state: &PersistentPodState) -> Result<Self, Invalid> {
        let spec = &state.spec;
        let target = named_target(spec)?;
        let required: BTreeSet<String> = required_keys(spec).map(str::to_owned).collect();
        let preferred = preferences(spec).flat_map(|(_, keys)| keys).map(str::to_owned);
        let keys = required.iter().cloned().chain(preferred).collect();
        Ok(Self {
            api_version: target.api_version.to_owned(),
            group: target.group.to_owned(),
            kind: target.kind.to_owned(),
            name: target.name.to_owned(),
            required,
            keys,
            annotations: annotation_keys(spec).map(str::to_owned).collect(),
            keeps_surplus: spec.persistent_pod_state_retention_policy == WHEN_DELETED,
            clear_after: clear_after(state)?,
        })
    }

    /// The target.
    pub fn target_ref(&self) -> WorkloadTarget<'_> {
        let Self { api_version, group, kind, name, .. } = self;
        WorkloadTarget { api_version, group, kind, name }
    }
}

/// The target of a stored object.
///
/// # Errors
/// It names none that can exist.
pub fn named_target(spec: &PersistentPodStateSpec) -> Result<WorkloadTarget<'_>, Invalid> {
    let target = &spec.target_ref;
    WorkloadTarget::parse(&target.api_version, &target.kind, &target.name)
}

/// Keys of node labels that a Pod needs.
pub fn required_keys(spec: &PersistentPodStateSpec) -> impl Iterator<Item = &str> {
    let keys = spec.required_persistent_topology.iter().flat_map(|topology| &topology.node_topology_keys);
    keys.take(MOST_KEYS).map(String::as_str).filter(|key| is_qualified_name(key))
}

/// Preferences that the API server accepts, each with its keys.
pub fn preferences(spec: &PersistentPodStateSpec) -> impl Iterator<Item = (i32, impl Iterator<Item = &str>)> {
    let weighted = spec.preferred_persistent_topology.iter().take(MOST_KEYS);
    weighted.filter(|preferred| (1..=100).contains(&preferred.weight)).map(|preferred| {
        let keys = preferred.preference.node_topology_keys.iter().take(MOST_KEYS).map(String::as_str);
        (preferred.weight, keys.filter(|key| is_qualified_name(key)))
    })
}

/// Keys of annotations that are recorded.
pub fn annotation_keys(spec: &PersistentPodStateSpec) -> impl Iterator<Item = &str> {
    let keys = spec.persistent_pod_annotations.iter().take(MOST_ANNOTATIONS).map(|annotation| annotation.key.as_str());
    keys.filter(|key| may_be_recorded(key))
}

/// Whether an annotation may be put back. Those of Kruise say what is being done with a Pod, which is another one then.
pub(super) fn may_be_recorded(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    is_qualified_name(key) && !["kruise.io", "kruise.rs"].iter().any(|parent| labels::is_below(domain, parent))
}

/// The annotation `kruise.rs/clear-after-node-not-ready-seconds`.
fn clear_after(state: &PersistentPodState) -> Result<Option<Duration>, Invalid> {
    let key = labels::CLEAR_AFTER_NOT_READY;
    let annotations = state.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|annotations| annotations.get(key)) else { return Ok(None) };
    seconds(text).map(Some).map_err(|Invalid(why)| Invalid(format!("metadata.annotations[{key}]: {why}")))
}

fn seconds(text: &str) -> Result<Duration, Invalid> {
    let shown: String = text.chars().take(80).collect();
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = text.parse::<u32>().ok().filter(|seconds| is_plain && *seconds > 0);
    let wrong = || Invalid(format!("{shown:?} is not allowed; want a whole number of seconds from 1 to {}", u32::MAX));
    seconds.map(|seconds| Duration::from_secs(seconds.into())).ok_or_else(wrong)
}

/// Whether a kind is one whose Pods have names that stay.
pub fn is_stateful_set(group: &str, kind: &str) -> bool {
    kind == "StatefulSet" && [apps::GROUP, "apps"].contains(&group)
}

/// Whether a reference means another one: the same group, kind and name, whatever the version.
pub fn is_same_target(a: &PersistentPodStateSpec, b: &PersistentPodStateSpec) -> bool {
    target::is_same_target(named_target(a), named_target(b))
}

/// What is wrong with an object, by fields. `is_permitted` says whether a kind may be the target.
pub fn problems(state: &PersistentPodState, is_permitted: impl Fn(&str, &str) -> bool) -> Vec<StateProblem> {
    let spec = &state.spec;
    let mut found = Vec::new();
    let mut deny = |field: &str, why: String| found.push((field.to_owned(), why));
    let target = &spec.target_ref;
    for InvalidField { field, why } in target::problems(&target.api_version, &target.kind, &target.name) {
        deny(&field, why);
    }
    if !target.kind.is_empty() && !target.api_version.is_empty() && !is_permitted(target.group(), &target.kind) {
        let (kind, group) = (short(&target.kind), short(target.group()));
        deny(
            "spec.targetRef.kind",
            format!(
                "{kind} of the group {group} is not allowed; want a StatefulSet of apps or apps.kruise.io, or a kind that PPS_Watch_Custom_Workload_WhiteList in the ConfigMap kruise-configuration names"
            ),
        );
    }
    topology_problems(spec, &mut deny);
    let annotations = &spec.persistent_pod_annotations;
    if annotations.len() > MOST_ANNOTATIONS {
        let count = annotations.len();
        deny(
            "spec.persistentPodAnnotations",
            format!("{count} annotations are not allowed; want up to {MOST_ANNOTATIONS}"),
        );
    }
    for (i, annotation) in annotations.iter().enumerate().filter(|(_, annotation)| !may_be_recorded(&annotation.key)) {
        let key = short(&annotation.key);
        deny(
            &format!("spec.persistentPodAnnotations[{i}].key"),
            format!("{key} is not allowed; want the key of an annotation outside kruise.io and kruise.rs"),
        );
    }
    let policy = &spec.persistent_pod_state_retention_policy;
    if !["", WHEN_SCALED, WHEN_DELETED].contains(&policy.as_str()) {
        deny(
            "spec.persistentPodStateRetentionPolicy",
            format!("{} is not allowed; want {WHEN_SCALED} or {WHEN_DELETED}", short(policy)),
        );
    }
    if let Err(Invalid(why)) = clear_after(state) {
        let (field, why) = why.split_once(": ").map_or(("metadata.annotations", &*why), |parts| parts);
        deny(field, why.to_owned());
    }
    found
}

fn topology_problems(spec: &PersistentPodStateSpec, deny: &mut impl FnMut(&str, String)) {
    let required = spec.required_persistent_topology.as_ref();
    let none = Vec::new();
    let keys = required.map_or(&none, |topology| &topology.node_topology_keys);
    if keys.is_empty() && spec.preferred_persistent_topology.is_empty() {
        deny(
            "spec",
            "there is no topology; want keys of node labels in requiredPersistentTopology or preferredPersistentTopology".into(),
        );
    }
    let preferred = &spec.preferred_persistent_topology;
    if preferred.len() > MOST_KEYS {
        let count = preferred.len();
        deny(
            "spec.preferredPersistentTopology",
            format!("{count} preferences are not allowed; want up to {MOST_KEYS}"),
        );
    }
    let mut lists = vec![("spec.requiredPersistentTopology.nodeTopologyKeys".to_owned(), keys)];
    for (i, preferred) in preferred.iter().enumerate() {
        let at = format!("spec.preferredPersistentTopology[{i}]");
        if !(1..=100).contains(&preferred.weight) {
            deny(&format!("{at}.weight"), format!("{} is not allowed; want 1 to 100", preferred.weight));
        }
        let keys = &preferred.preference.node_topology_keys;
        if keys.is_empty() {
            deny(&format!("{at}.preference.nodeTopologyKeys"), "it is empty; want keys of node labels".into());
        }
        lists.push((format!("{at}.preference.nodeTopologyKeys"), keys));
    }
    for (at, keys) in lists {
        if keys.len() > MOST_KEYS {
            deny(&at, format!("{} keys are not allowed; want up to {MOST_KEYS}", keys.len()));
        }
        for (i, key) in keys.iter().enumerate().filter(|(_, key)| !is_qualified_name(key)) {
            deny(
                &format!("{at}[{i}]"),
                format!(
                    "{} is not allowed; want the key of a node label such as topology.kubernetes.io/zone",
                    short(key)
                ),
            );
        }
    }
}

/// A text as messages show it.
fn short(text: &str) -> String {
    let shown: String = text.chars().take(80).collect();
    format!("{shown:?}")
}
