//! Pods that hold up the roll-out of a built-in StatefulSet: under OrderedReady it waits for every Pod that is not Ready, also
//! for one that only its update would cure.

use super::{
    child::ChildSeen,
    make,
    plan::UnitedSeen,
    spec::{ChildKind, SubsetSpec, pointer},
};
use crate::k8s::pod::PodView;

/// The update revision of a workload whose Pods may be stuck. None: of another kind, on its way out, not rolling out by itself, or
/// what it does now is not yet about what was last written: a Pod that is deleted then would come back as it was.
pub fn update_revision<'c>(child: &'c ChildSeen, subset: &SubsetSpec, seen: UnitedSeen<'_>) -> Option<&'c str> {
    let spec = child.object.get("spec")?.as_object()?;
    let may_be = child.kind == Some(ChildKind::StatefulSet)
        && !child.is_deleting
        && child.is_observed()
        && child.is_for(seen.update, subset)
        && make::rolls(ChildKind::StatefulSet, spec);
    let revision = child.status.get("updateRevision")?.as_str()?;
    (may_be && !revision.is_empty()).then_some(revision)
}

/// Whether a Pod of such a workload is to be updated, and is not Ready: deleted, it comes back updated. The partition counts
/// from the first ordinal.
pub fn is_stuck(child: &ChildSeen, update_revision: &str, pod: &PodView) -> bool {
    let Some(spec) = child.object.get("spec").and_then(serde_json::Value::as_object) else { return false };
    let start = pointer(spec, "/ordinals/start").and_then(serde_json::Value::as_i64).unwrap_or(0);
    let place = pod.name().strip_prefix(&*child.name).and_then(|rest| rest.strip_prefix('-'));
    let Some(place) = place.and_then(|ordinal| ordinal.parse::<i64>().ok()) else { return false };
    let wanted = make::partition(ChildKind::StatefulSet, spec)..i64::from(child.replicas());
    let revision = pod.labels.get(crate::api::labels::CONTROLLER_REVISION_HASH);
    // Finished ones are replaced without us.
    !pod.is_deleting()
        && !pod.is_finished()
        && wanted.contains(&place.saturating_sub(start))
        && revision.is_some_and(|revision| revision != update_revision)
        && !pod.condition_is_true("Ready")
}
