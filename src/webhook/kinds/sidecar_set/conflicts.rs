//! Whether two SidecarSets for the same Pods can stand beside each other.

use serde_json::Value;

use crate::{
    api::apps::sidecar_set::{PATCH_OVERWRITE, PATCH_RETAIN},
    domain::kinds::sidecar_set::{
        claims::{LISTS, annotations, containers, items},
        matching::Aim,
    },
    webhook::{
        server::review::Cause,
        sidecars::Stored,
        validate::{Findings, show_text},
    },
};

/// The most findings: one is enough to refuse a SidecarSet, and more than these nobody reads.
const MOST: usize = 20;

/// Judges a SidecarSet beside others, but for what stood there before: `old` is what is stored of it.
pub(super) fn judge(set: &Value, old: Option<&Value>, others: &[Stored], found: &mut Findings) {
    for other in others {
        let mut new = compare(set, other);
        if let Some(old) = old.filter(|_| !new.causes.is_empty()) {
            new.leave_out(&compare(old, other));
        }
        found.causes.extend(new.causes);
        if found.causes.len() >= MOST {
            found.causes.truncate(MOST);
            return;
        }
    }
}

/// Judges a SidecarSet beside another one.
fn compare(set: &Value, other: &Stored) -> Findings {
    let mut found = Findings::default();
    let Stored { name, aim, spec: other } = other;
    let is_itself = set.pointer("/metadata/name").is_some_and(|own| *own == **name);
    let set = &set["spec"];
    // One that cannot be read is refused for that.
    if is_itself || Aim::of(set).map_or(true, |own| own.is_disjoint(aim)) {
        return found;
    }
    for list in LISTS {
        let theirs = containers(other, list);
        for (i, own) in containers(set, list) {
            if theirs.iter().any(|(_, their)| *their == own) {
                let message =
                    format!("{} is a container of SidecarSet {name} too, for some of the same Pods", show_text(&own));
                found.causes.push(Cause { field: format!("spec.{list}[{i}].name"), message });
            }
        }
    }
    let theirs = items(other, "volumes");
    for (i, volume) in items(set, "volumes").iter().enumerate() {
        if theirs.iter().any(|other| other["name"] == volume["name"] && other != volume) {
            let message =
                format!("{} is another volume in SidecarSet {name}, for some of the same Pods", volume["name"]);
            found.causes.push(Cause { field: format!("spec.volumes[{i}].name"), message });
        }
    }
    let theirs = annotations(other);
    for (key, policy) in annotations(set) {
        let Some(other) = theirs.get(&key) else { continue };
        let both_write = policy != PATCH_RETAIN && other != PATCH_RETAIN;
        if both_write && (policy == PATCH_OVERWRITE || other == PATCH_OVERWRITE) {
            let message = format!("annotation {key} is written by SidecarSet {name} too, for some of the same Pods");
            found.causes.push(Cause { field: "spec.patchPodMetadata".into(), message });
        }
    }
    found
}
