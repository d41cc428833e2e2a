//! A WorkloadSpread as the rules read it.

use std::time::Duration;

use serde_json::Value;

use crate::{
    api::{
        apps::{
            self,
            workload_spread::{ADAPTIVE, SpreadSubset, WorkloadSpread},
        },
        labels,
    },
    domain::workload::{allocation::in_order, target::WorkloadTarget},
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
        selector::Selector,
    },
};

/// The version under which Pods are counted of workloads whose versions do not have room of their own.
pub const VERSION_IGNORED: &str = "versionIgnored";

/// What a target is, as far as the rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// CloneSet.
    CloneSet,
    /// Deployment.
    Deployment,
    /// ReplicaSet.
    ReplicaSet,
    /// StatefulSet of either group: its Pods have ordinals.
    StatefulSet,
    /// Job.
    Job,
    /// Any other: the ConfigMap kruise-configuration has to name it.
    Custom,
}

impl TargetKind {
    /// By API group and kind.
    pub fn of(group: &str, kind: &str) -> Self {
        match (group, kind) {
            (apps::GROUP, "CloneSet") => Self::CloneSet,
            ("apps", "Deployment") => Self::Deployment,
            ("apps", "ReplicaSet") => Self::ReplicaSet,
            ("apps" | apps::GROUP, "StatefulSet") => Self::StatefulSet,
            ("batch", "Job") => Self::Job,
            _ => Self::Custom,
        }
    }

    /// That of the target of a stored object. None: it names none that can exist.
    pub fn of_target(spread: &WorkloadSpread) -> Option<Self> {
        named_target(spread).ok().map(|target| Self::of(target.group, target.kind))
    }

    /// Whether each version of the workload has room of its own.
    pub fn is_versioned(self) -> bool {
        matches!(self, Self::Deployment | Self::ReplicaSet)
    }

    /// Whether the deletion cost of its Pods decides which of them go first.
    pub fn regards_costs(self) -> bool {
        matches!(self, Self::CloneSet | Self::Deployment | Self::ReplicaSet)
    }

    /// Whether the subset of a Pod follows from its ordinal alone.
    pub fn has_ordinals(self) -> bool {
        self == Self::StatefulSet
    }
}

/// A WorkloadSpread.
#[derive(Clone, Debug, PartialEq)]
pub struct SpreadSpec {
    /// Its name.
    pub name: String,
    /// Group and version of the target.
    pub api_version: String,
    /// API group of the target.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub target: String,
    /// What the target is.
    pub target_kind: TargetKind,
    /// Which Pods are meant; None: all.
    pub filter: Option<Selector>,
    /// Where the target says how many Pods it wants; empty: where its kind has it.
    pub replicas_paths: Vec<String>,
    /// The subsets, in the order in which they are filled.
    pub subsets: Vec<SubsetSpec>,
    /// Whether subsets in which Pods find no place get no more.
    pub is_adaptive: bool,
    /// How long a Pod may look for a place; None: for ever.
    pub reschedule_after: Option<Duration>,
    /// Whether Pods that were missed get labels and annotations of the patch.
    pub patches_missed: bool,
}

/// One subset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubsetSpec {
    /// Its name.
    pub name: String,
    /// A node selector term.
    pub required: Option<Value>,
    /// Node selector terms with weights.
    pub preferred: Vec<Value>,
    /// Tolerations.
    pub tolerations: Vec<Value>,
    /// The most Pods; None: no limit.
    pub max: Option<IntOrPercent>,
    /// A strategic merge patch.
    pub patch: Option<Value>,
}

impl SpreadSpec {
    /// Reads an object.
    ///
    /// # Errors
    /// Naming the field that cannot be read.
    pub fn of(object: &WorkloadSpread) -> Result<Self, Invalid> {
        let spec = &object.spec;
        let target = named_target(object)?;
        let filter = spec.target_filter.as_ref();
        let selector = filter.and_then(|filter| filter.selector.as_ref()).map(Selector::of).transpose();
        let selector = selector.map_err(|Invalid(why)| Invalid(format!("spec.targetFilter.selector.{why}")))?;
        if spec.subsets.is_empty() {
            return Err(Invalid("spec.subsets: it is empty; want one or more".into()));
        }
        let subsets = spec.subsets.iter().enumerate().map(|(index, subset)| SubsetSpec::of(index, subset));
        let subsets = subsets.collect::<Result<Vec<_>, Invalid>>()?;
        let is_adaptive = spec.schedule_strategy.type_ == ADAPTIVE;
        let seconds = spec.schedule_strategy.adaptive.as_ref().and_then(|a| a.reschedule_critical_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        let annotations = object.metadata.annotations.as_ref();
        let ignores = annotations.and_then(|all| all.get(labels::IGNORE_PATCH_METADATA));
        Ok(Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            api_version: target.api_version.to_owned(),
            group: target.group.to_owned(),
            kind: target.kind.to_owned(),
            target: target.name.to_owned(),
            target_kind: TargetKind::of(target.group, target.kind),
            filter: selector,
            replicas_paths: filter.map(|filter| filter.replicas_path_list.clone()).unwrap_or_default(),
            subsets,
            is_adaptive,
            reschedule_after: seconds.filter(|_| is_adaptive).map(Duration::from_secs),
            patches_missed: !ignores.is_some_and(|text| text.eq_ignore_ascii_case("true")),
        })
    }

    /// The target.
    pub fn target_ref(&self) -> WorkloadTarget<'_> {
        let Self { api_version, group, kind, target: name, .. } = self;
        WorkloadTarget { api_version, group, kind, name }
    }

    /// Whether the limits depend on how many Pods the workload wants.
    pub fn needs_total(&self) -> bool {
        self.subsets.iter().any(|subset| matches!(subset.max, Some(IntOrPercent::Percent(_))))
    }

    /// Whether Pods have to be counted: some subset has a limit, and ordinals do not decide.
    pub fn counts(&self) -> bool {
        !self.target_kind.has_ordinals() && self.subsets.iter().any(|subset| subset.max.is_some())
    }

    /// The limit of each subset when the workload wants `total` Pods.
    pub fn limits(&self, total: i32) -> Vec<Option<i32>> {
        self.subsets.iter().map(|subset| subset.max.map(|max| max.resolve(total, Round::Up).max(0))).collect()
    }

    /// How many Pods each subset has when `total` of them are made one after another.
    pub fn shares(&self, total: i32) -> Vec<i32> {
        let bounds = self.limits(total).into_iter().map(|max| (0, max.unwrap_or(total).min(total)));
        in_order(total, &bounds.collect::<Vec<_>>())
    }

    /// The place of a subset.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.subsets.iter().position(|subset| subset.name == name)
    }
}

/// The target of a stored object.
///
/// # Errors
/// It names none that can exist.
pub fn named_target(spread: &WorkloadSpread) -> Result<WorkloadTarget<'_>, Invalid> {
    let target = &spread.spec.target_ref;
    WorkloadTarget::parse(&target.api_version, &target.kind, &target.name)
}

impl SubsetSpec {
    fn of(index: usize, subset: &SpreadSubset) -> Result<Self, Invalid> {
        let max = subset.max_replicas.as_ref().map(IntOrPercent::of).transpose();
        let max = max.map_err(|error| Invalid(format!("spec.subsets[{index}].maxReplicas: {error}")))?;
        if subset.name.is_empty() {
            return Err(Invalid(format!("spec.subsets[{index}].name: it is empty")));
        }
        let is_something =
            |value: &&Value| value.as_object().is_none_or(|object| !object.is_empty()) && !value.is_null();
        Ok(Self {
            name: subset.name.clone(),
            required: subset.required_node_selector_term.as_ref().filter(is_something).cloned(),
            preferred: subset.preferred_node_selector_terms.clone(),
            tolerations: subset.tolerations.clone(),
            max,
            patch: subset.patch.as_ref().filter(is_something).cloned(),
        })
    }
}
