//! Which WorkloadSpread a Pod is for.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::spec::named_target;
use crate::{
    api::{apps::workload_spread::WorkloadSpread, group_of},
    domain::workload::target::{self, WorkloadTarget},
    k8s::{
        invalid::Invalid,
        pod::{Labels, Owner},
        selector::Selector,
    },
};

/// An object in the chain of controllers above a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Above {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl Above {
    /// What controls an object.
    pub fn of(object: &Value) -> Option<Self> {
        let mut owners = object.pointer("/metadata/ownerReferences")?.as_array()?.iter();
        let owner = owners.find(|owner| owner["controller"] == true)?;
        let text = |key: &str| owner[key].as_str().unwrap_or_default().to_owned();
        let above = Self { api_version: text("apiVersion"), kind: text("kind"), name: text("name"), uid: text("uid") };
        (!above.kind.is_empty() && !above.name.is_empty()).then_some(above)
    }

    /// The controller of a Pod.
    pub fn of_pod(owner: &Owner) -> Self {
        let Owner { api_version, kind, name, uid } = owner.clone();
        Self { api_version, kind, name, uid }
    }

    /// Its API group.
    pub fn group(&self) -> &str {
        group_of(&self.api_version)
    }

    /// Whether a WorkloadSpread is for it. The version does not count.
    pub fn is_target_of(&self, spread: &WorkloadSpread) -> bool {
        let is_this = |target: WorkloadTarget<'_>| {
            (target.group, target.kind, target.name) == (self.group(), &*self.kind, &*self.name)
        };
        named_target(spread).is_ok_and(is_this)
    }
}

/// Whether the filter of a WorkloadSpread lets a Pod with these labels through. One that cannot be read lets none.
pub fn selects(spread: &WorkloadSpread, labels: &Labels) -> bool {
    let selector = spread.spec.target_filter.as_ref().and_then(|filter| filter.selector.as_ref());
    selector.is_none_or(|selector| Selector::of(selector).is_ok_and(|selector| selector.matches(labels)))
}

/// Whether two are for one target.
pub fn has_same_target(a: &WorkloadSpread, b: &WorkloadSpread) -> bool {
    target::is_same_target(named_target(a), named_target(b))
}

/// Whether a Pod may be for both.
pub fn overlap(a: &WorkloadSpread, b: &WorkloadSpread) -> bool {
    let selector = |of: &WorkloadSpread| -> Result<Option<Selector>, Invalid> {
        of.spec.target_filter.as_ref().and_then(|filter| filter.selector.as_ref()).map(Selector::of).transpose()
    };
    let disjoint = match (selector(a), selector(b)) {
        (Ok(Some(a)), Ok(Some(b))) => a.is_disjoint(&b),
        // What cannot be read is for no Pod.
        (Err(_), _) | (_, Err(_)) => true,
        _ => false,
    };
    has_same_target(a, b) && !disjoint
}

/// The order in which WorkloadSpreads get Pods that several may be for: the oldest first, then by name.
fn age(spread: &WorkloadSpread) -> (Option<Timestamp>, Option<&str>) {
    let created = spread.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, spread.metadata.name.as_deref())
}

/// Sorts them: the oldest one is asked first.
pub fn by_age(spreads: &mut [Arc<WorkloadSpread>]) {
    spreads.sort_by(|a, b| age(a).cmp(&age(b)));
}

/// Whether another one of its namespace has the Pods that may be for both.
pub fn stands_before(other: &WorkloadSpread, spread: &WorkloadSpread) -> bool {
    other.metadata.deletion_timestamp.is_none()
        && other.metadata.name != spread.metadata.name
        && age(other) < age(spread)
}

/// The one that a Pod with these labels is for, by the chain of controllers above the Pod. They are sorted by age. How near
/// a target is to the Pod does not count.
pub fn choose<'s>(
    spreads: &'s [Arc<WorkloadSpread>],
    chain: &[Above],
    labels: &Labels,
) -> Option<&'s Arc<WorkloadSpread>> {
    let is_above = |spread: &WorkloadSpread| chain.iter().any(|above| above.is_target_of(spread));
    spreads.iter().find(|spread| is_above(spread) && selects(spread, labels))
}

/// The name of an older one that may be for the same Pods.
pub fn older<'a>(spread: &WorkloadSpread, others: impl IntoIterator<Item = &'a WorkloadSpread>) -> Option<String> {
    let has_them = |other: &&WorkloadSpread| stands_before(other, spread) && overlap(other, spread);
    others.into_iter().filter(has_them).min_by(|a, b| age(a).cmp(&age(b)))?.metadata.name.clone()
}
