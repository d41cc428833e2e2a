//! The spec of a UnitedDeployment with all numbers read and all defaults in place.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use crate::{
    api::{
        apps::united_deployment::{Subset, UnitedDeployment, UnitedScheduleStrategy},
        labels,
    },
    domain::workload::{
        allocation::AllocationMode,
        rollout::{DEFAULT_MAX_UNAVAILABLE, at_least_one, number},
        status::ON_DELETE,
    },
    k8s::{
        canonical_json,
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
        selector::Selector,
    },
};

/// `revisionHistoryLimit` where the spec says nothing.
pub const HISTORY: i32 = 10;
/// The most subsets: the rules compare them with each other.
pub const MOST_SUBSETS: usize = 500;
/// The most bytes of the workloads of all subsets together: they may be made at the same time, and in memory each is many times as
/// large.
const MOST_BYTES: usize = 16 << 20;
/// So many subsets are never too much: no object has so many bytes.
const FEW_SUBSETS: usize = 4;
/// Where a Pod says which nodes it requires.
pub(super) const REQUIRED_TERMS: &str =
    "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
/// `rescheduleCriticalSeconds` where the spec says nothing.
pub const RESCHEDULE_SECONDS: i32 = 30;
/// `unschedulableDuration` where the spec says nothing.
pub const UNSCHEDULABLE_SECONDS: i32 = 300;

/// The kind of the workloads of the subsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// StatefulSet of apps/v1.
    StatefulSet,
    /// StatefulSet of apps.kruise.io.
    AdvancedStatefulSet,
    /// CloneSet.
    CloneSet,
    /// Deployment.
    Deployment,
}

impl ChildKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::StatefulSet, Self::AdvancedStatefulSet, Self::CloneSet, Self::Deployment];

    /// The member of `spec.template`.
    pub fn member(self) -> &'static str {
        match self {
            Self::StatefulSet => "statefulSetTemplate",
            Self::AdvancedStatefulSet => "advancedStatefulSetTemplate",
            Self::CloneSet => "cloneSetTemplate",
            Self::Deployment => "deploymentTemplate",
        }
    }

    /// As in an object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::StatefulSet | Self::AdvancedStatefulSet => "StatefulSet",
            Self::CloneSet => "CloneSet",
            Self::Deployment => "Deployment",
        }
    }

    /// API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::StatefulSet | Self::Deployment => "apps",
            Self::AdvancedStatefulSet | Self::CloneSet => crate::api::apps::GROUP,
        }
    }

    /// The version in which it is written.
    pub fn version(self) -> &'static str {
        match self {
            Self::StatefulSet | Self::Deployment => "v1",
            Self::AdvancedStatefulSet => "v1beta1",
            Self::CloneSet => "v1alpha1",
        }
    }

    /// As in a path.
    pub fn plural(self) -> &'static str {
        match self {
            Self::StatefulSet | Self::AdvancedStatefulSet => "statefulsets",
            Self::CloneSet => "clonesets",
            Self::Deployment => "deployments",
        }
    }

    /// As OpenKruise's events name it.
    pub fn word(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::AdvancedStatefulSet => "AdvancedStatefulSet",
            Self::CloneSet => "CloneSet",
            Self::Deployment => "Deployment",
        }
    }

    /// Whether its Pods have ordinals, and are updated in their order.
    pub fn has_ordinals(self) -> bool {
        matches!(self, Self::StatefulSet | Self::AdvancedStatefulSet)
    }

    /// Whether a workload with this `spec` updates its Pods in an order of its own: neither what is down first nor by ordinals.
    pub fn has_own_order(self, spec: &Map<String, Value>) -> bool {
        let given = |at: &str| pointer(spec, at).filter(|value| !value.is_null());
        let is_something = |at: &str| given(at).is_some_and(|value| *value != json!({}) && *value != json!([]));
        match self {
            Self::StatefulSet | Self::Deployment => false,
            // An empty one too: what is updated already counts before any ordinal.
            Self::AdvancedStatefulSet => given("/updateStrategy/rollingUpdate/unorderedUpdate").is_some(),
            Self::CloneSet => {
                is_something("/updateStrategy/priorityStrategy") || is_something("/updateStrategy/scatterStrategy")
            }
        }
    }

    /// JSON pointer below `spec` to the number of Pods that it keeps on old revisions, if it can.
    pub fn partition_pointer(self) -> Option<&'static str> {
        match self {
            Self::StatefulSet | Self::AdvancedStatefulSet => Some("/updateStrategy/rollingUpdate/partition"),
            Self::CloneSet => Some("/updateStrategy/partition"),
            Self::Deployment => None,
        }
    }

    /// JSON pointer below `spec` to its maxUnavailable, if we may write another one.
    pub fn limit_pointer(self) -> Option<&'static str> {
        match self {
            Self::StatefulSet | Self::AdvancedStatefulSet => None,
            Self::CloneSet => Some("/updateStrategy/maxUnavailable"),
            Self::Deployment => Some("/strategy/rollingUpdate/maxUnavailable"),
        }
    }

    /// The maxUnavailable that the API server writes where nobody says one.
    pub fn default_limit(self) -> IntOrPercent {
        match self {
            Self::Deployment => IntOrPercent::Percent(25.0),
            Self::CloneSet => DEFAULT_MAX_UNAVAILABLE,
            Self::StatefulSet | Self::AdvancedStatefulSet => IntOrPercent::Int(1),
        }
    }
}

/// What the workloads of all subsets have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildTemplate {
    /// Their kind.
    pub kind: ChildKind,
    /// `metadata` of the template.
    pub metadata: Map<String, Value>,
    /// `spec` of the template.
    pub spec: Map<String, Value>,
}

impl ChildTemplate {
    /// Reads `spec.template`.
    ///
    /// # Errors
    /// It does not have exactly one of its members.
    pub fn of(template: &Value) -> Result<Self, Invalid> {
        let given = |kind: &ChildKind| template.get(kind.member()).is_some_and(|member| !member.is_null());
        let kinds: Vec<ChildKind> = ChildKind::ALL.into_iter().filter(given).collect();
        let [kind] = kinds[..] else {
            let members = ChildKind::ALL.map(ChildKind::member).join(", ");
            return Err(Invalid(format!("spec.template: want exactly one of {members}; there are {}", kinds.len())));
        };
        let member = |name: &str| {
            let member = template.get(kind.member()).and_then(|member| member.get(name));
            member.and_then(Value::as_object).cloned().unwrap_or_default()
        };
        Ok(Self { kind, metadata: member("metadata"), spec: member("spec") })
    }

    /// Seconds that a Pod is ready before it counts as available.
    pub fn min_ready_seconds(&self) -> i32 {
        let seconds = match self.kind {
            ChildKind::AdvancedStatefulSet => {
                self.spec.get("updateStrategy").and_then(|strategy| strategy.pointer("/rollingUpdate/minReadySeconds"))
            }
            _ => self.spec.get("minReadySeconds"),
        };
        seconds.and_then(Value::as_i64).and_then(|seconds| i32::try_from(seconds).ok()).unwrap_or(0)
    }

    /// Why workloads made of it update no Pod by themselves: a reason and a message.
    pub fn holds(&self) -> Option<(&'static str, &'static str)> {
        let text = |at: &str| pointer(&self.spec, at).and_then(Value::as_str);
        let is_true = |at: &str| pointer(&self.spec, at).and_then(Value::as_bool) == Some(true);
        let is_paused = match self.kind {
            ChildKind::StatefulSet => false,
            ChildKind::AdvancedStatefulSet => is_true("/updateStrategy/rollingUpdate/paused"),
            ChildKind::CloneSet => is_true("/updateStrategy/paused"),
            ChildKind::Deployment => is_true("/paused"),
        };
        if is_paused {
            return Some(("Paused", "the template is paused; Pods stay on the current revision"));
        }
        let is_on_delete = self.kind != ChildKind::Deployment && text("/updateStrategy/type") == Some(ON_DELETE);
        is_on_delete.then_some((ON_DELETE, "Pods are updated when they are deleted (updateStrategy.type OnDelete)"))
    }

    /// Its own maxUnavailable, out of so many.
    pub fn limit(&self, replicas: i32) -> i32 {
        let own = self.kind.limit_pointer().and_then(|at| pointer(&self.spec, at));
        let own = own.and_then(|value| IntOrPercent::parse(value).ok()).unwrap_or(self.kind.default_limit());
        let round = if self.kind == ChildKind::Deployment { Round::Down } else { Round::Up };
        own.resolve(replicas, round).clamp(0, replicas.max(0))
    }
}

/// A member of an object by a JSON pointer.
pub fn pointer<'v>(object: &'v Map<String, Value>, at: &str) -> Option<&'v Value> {
    let (first, rest) = at.strip_prefix('/')?.split_once('/').unwrap_or((at.strip_prefix('/')?, ""));
    let member = object.get(first)?;
    if rest.is_empty() { Some(member) } else { member.pointer(&format!("/{rest}")) }
}

/// One subset.
#[derive(Clone, Debug, PartialEq)]
pub struct SubsetSpec {
    /// Its name.
    pub name: String,
    /// Requirements on nodes by label.
    pub expressions: Vec<Value>,
    /// Requirements on nodes by field.
    pub fields: Vec<Value>,
    /// Further tolerations.
    pub tolerations: Vec<Value>,
    /// Exactly so many.
    pub fixed: Option<IntOrPercent>,
    /// At least so many.
    pub min: Option<IntOrPercent>,
    /// At most so many.
    pub max: Option<IntOrPercent>,
    /// Its patch.
    pub patch: Option<Value>,
    /// The patch as its annotation has it.
    pub patch_text: String,
}

/// The spec.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitedSpec {
    /// Its name.
    pub name: String,
    /// The total. None: every subset has a number.
    pub replicas: Option<i32>,
    /// Its Pods.
    pub selector: LabelSelector,
    /// `spec.template` as it is, for its revision.
    pub revision_of: Value,
    /// What all subsets have in common.
    pub template: ChildTemplate,
    /// The subsets in their order.
    pub subsets: Vec<SubsetSpec>,
    /// How replicas are divided.
    pub mode: AllocationMode,
    /// After how long a Pod without a place counts as failed.
    pub reschedule_after: Duration,
    /// For how long a subset gets no more Pods then.
    pub unschedulable_for: Duration,
    /// Pods kept on old revisions, by subset.
    pub partitions: BTreeMap<String, i32>,
    /// How many old revisions are kept.
    pub history: i32,
    /// How many Pods of all subsets a roll-out may have out of service.
    pub budget: Option<IntOrPercent>,
}

impl UnitedSpec {
    /// The selector alone, of an object that may not be followed as a whole.
    pub fn selector_of(object: &UnitedDeployment) -> &LabelSelector {
        &object.spec.selector
    }

    /// Reads an object.
    ///
    /// # Errors
    /// A field cannot be followed. Admission refuses those too; it may have been away.
    pub fn of(object: &UnitedDeployment) -> Result<Self, Invalid> {
        let spec = &object.spec;
        let template = ChildTemplate::of(&spec.template)?;
        if Selector::of(&spec.selector)?.is_empty() {
            return Err(Invalid("spec.selector: it is empty; an empty selector matches every Pod".into()));
        }
        let count = spec.topology.subsets.len();
        if count > MOST_SUBSETS {
            return Err(Invalid(format!("spec.topology.subsets: it has {count} entries; want up to {MOST_SUBSETS}")));
        }
        let mut subsets = Vec::new();
        for (index, subset) in spec.topology.subsets.iter().enumerate() {
            if spec.topology.subsets[..index].iter().any(|other| other.name == subset.name) {
                return Err(Invalid(format!("spec.topology.subsets[{index}].name: {:?} is there twice", subset.name)));
            }
            subsets.push(subset_spec(index, subset)?);
        }
        if let Some(why) = too_large(&spec.template, &template, &subsets) {
            return Err(Invalid(format!("spec.topology.subsets: {why}")));
        }
        let strategy = &spec.topology.schedule_strategy;
        let (mode, adaptive) = (mode(strategy, &subsets), strategy.adaptive.clone().unwrap_or_default());
        let seconds = |value: Option<i32>, default: i32| {
            Duration::from_secs(u64::try_from(value.unwrap_or(default)).unwrap_or(0))
        };
        let annotations = object.metadata.annotations.as_ref();
        let budget = annotations.and_then(|all| all.get(labels::UNITED_MAX_UNAVAILABLE)).map(|text| budget(text));
        let needs_total =
            mode != AllocationMode::Shares || subsets.iter().any(|s| !matches!(s.fixed, Some(IntOrPercent::Int(_))));
        Ok(Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            replicas: spec.replicas.or(needs_total.then_some(1)),
            selector: spec.selector.clone(),
            revision_of: spec.template.clone(),
            template,
            subsets,
            mode,
            reschedule_after: seconds(adaptive.reschedule_critical_seconds, RESCHEDULE_SECONDS),
            // 0 would have the same Pods looked at again at once, for ever.
            unschedulable_for: seconds(adaptive.unschedulable_duration, UNSCHEDULABLE_SECONDS)
                .max(Duration::from_secs(1)),
            partitions: spec.update_strategy.manual_update.clone().unwrap_or_default().partitions,
            history: spec.revision_history_limit.unwrap_or(HISTORY),
            budget: budget.transpose()?,
        })
    }

    /// The budget as a number out of `total`: at least 1, a part of a Pod is none.
    pub fn budget_of(&self, total: i32) -> Option<i32> {
        self.budget.map(|budget| at_least_one(budget, total))
    }

    /// Whether Pods that find no place move, or are made up for.
    pub fn is_adaptive(&self) -> bool {
        matches!(self.mode, AllocationMode::Adaptive | AllocationMode::Reserving)
    }
}

/// Reads the annotation with the budget of the whole.
///
/// # Errors
/// It is neither a number above 0 nor a percentage.
pub fn budget(text: &str) -> Result<IntOrPercent, Invalid> {
    let text = text.trim();
    let value = text.parse::<i32>().map_or_else(|_| Value::from(text), Value::from);
    let key = labels::UNITED_MAX_UNAVAILABLE;
    let wrong = || {
        Invalid(format!(
            "metadata.annotations[{key}]: {text:?} is not allowed; want a number of Pods above 0 or a percentage such as \"20%\""
        ))
    };
    let budget = IntOrPercent::parse(&value).map_err(|_| wrong())?;
    let is_something = match budget {
        IntOrPercent::Int(number) => number > 0,
        IntOrPercent::Percent(percent) => percent > 0.0,
    };
    is_something.then_some(budget).ok_or_else(wrong)
}

/// Why the workloads of all subsets are too large together, if they are. What a subset requires of nodes goes into each term of
/// the template.
fn too_large(whole: &Value, template: &ChildTemplate, subsets: &[SubsetSpec]) -> Option<String> {
    if subsets.len() <= FEW_SUBSETS {
        return None;
    }
    let bytes = |value: &Value| value.to_string().len();
    let terms = pointer(&template.spec, &format!("/template/spec{REQUIRED_TERMS}"));
    let terms = terms.and_then(Value::as_array).map_or(1, |terms| terms.len().max(1));
    let own = bytes(whole);
    let all = subsets.iter().fold(0_usize, |sum, subset| {
        let required: usize = subset.expressions.iter().chain(&subset.fields).map(bytes).sum();
        sum.saturating_add(own).saturating_add(required.saturating_mul(terms))
    });
    let count = subsets.len();
    (all > MOST_BYTES)
        .then(|| format!("{count} workloads of {all} bytes together are not allowed; want up to {MOST_BYTES}"))
}

fn subset_spec(index: usize, subset: &Subset) -> Result<SubsetSpec, Invalid> {
    let at = |field: &str| format!("topology.subsets[{index}].{field}");
    let share = |field: &str, value: &Option<_>| {
        value.as_ref().map(|value| number(&at(field), Some(value), IntOrPercent::Int(0))).transpose()
    };
    let list = |field: &str| {
        let list = subset.node_selector_term.as_ref().and_then(|term| term.get(field)).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let patch = subset.patch.clone().filter(|patch| !patch.is_null());
    Ok(SubsetSpec {
        name: subset.name.clone(),
        expressions: list("matchExpressions"),
        fields: list("matchFields"),
        tolerations: subset.tolerations.clone(),
        fixed: share("replicas", &subset.replicas)?,
        min: share("minReplicas", &subset.min_replicas)?,
        max: share("maxReplicas", &subset.max_replicas)?,
        patch_text: patch.as_ref().map(canonical_json::encode).unwrap_or_default(),
        patch,
    })
}

fn mode(strategy: &UnitedScheduleStrategy, subsets: &[SubsetSpec]) -> AllocationMode {
    let reserves = strategy.adaptive.as_ref().is_some_and(|adaptive| adaptive.reserve_unschedulable_pods);
    match strategy.type_ == "Adaptive" {
        true if reserves => AllocationMode::Reserving,
        true => AllocationMode::Adaptive,
        false if subsets.iter().any(|subset| subset.min.is_some() || subset.max.is_some()) => AllocationMode::Bounds,
        false => AllocationMode::Shares,
    }
}
