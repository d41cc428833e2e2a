//! Claims of Pods: who owns them, and how they grow.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    claim_template::ClaimTemplate,
    spec::{Retention, Spec},
};
use crate::k8s::claim::SizedClaim;

/// How long kubelet has to grow the file system of a volume that is in use, before its Pod is restarted for it.
pub const ONLINE_RESIZE: Duration = Duration::from_secs(120);

/// How long the update of a Pod in service waits for its claims to grow, from when that was first seen: longer than what
/// grows volumes usually takes, and no longer, because a corrected template must get to the Pod although nobody grows them.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How soon a claim that its StorageClass does not let grow is looked at again: a change of that class wakes no set.
pub const CLASS_LOOK: Duration = Duration::from_secs(60);

/// Whether a claim is as large as it asks to be.
pub fn is_grown(claim: &SizedClaim) -> bool {
    claim.capacity.is_some_and(|capacity| capacity >= claim.requested.unwrap_or(0))
}

/// How far a claim is from what its template asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It has it.
    Fits,
    /// It has to ask for more, or for less than it asked for in vain.
    Ask,
    /// It has asked, and the volume grows.
    Grows,
    /// The volume has grown, and its file system waits for a mount since then.
    AwaitsMount(Timestamp),
    /// It has to ask for more, and may not before it is bound to a volume.
    Unbound,
    /// It cannot get there while its StorageClass is as it is: why, in words that follow the name of the claim.
    Refused(String),
    /// It has another shape than its template, which no StorageClass mends: what a user can do, likewise.
    Misshapen(String),
    /// It has asked and will never get it: why, and what a user can do, likewise.
    Infeasible(String),
}

/// Decides how far a claim is. `class_expands` says whether its storage class lets volumes grow; None: not known.
pub fn growth(template: &ClaimTemplate, claim: &SizedClaim, class_expands: Option<bool>) -> Growth {
    let Some(wanted) = template.storage else { return Growth::Fits };
    if !template.has_shape_of(claim) {
        let why = "differs from its template in storageClassName or accessModes, which cannot be changed; delete the claim and its Pod, and both are created again";
        return Growth::Misshapen(why.into());
    }
    if claim.requested.unwrap_or(0) < wanted {
        return match class_expands {
            // Kubernetes lets only bound claims ask for another size.
            Some(true) if claim.capacity.is_none() => Growth::Unbound,
            Some(true) => Growth::Ask,
            Some(false) => Growth::Refused(format!(
                "cannot grow: StorageClass {} does not allow volume expansion",
                claim.storage_class.as_deref().unwrap_or_default()
            )),
            None => Growth::Refused("cannot grow: its StorageClass is not there".into()),
        };
    }
    // Kubernetes lets a claim that has not grown ask for less, as long as that is more than it has.
    let asked_in_vain = claim.grown_by.is_some() && claim.requested.unwrap_or(0) > wanted;
    if asked_in_vain && claim.capacity.is_some_and(|capacity| capacity < wanted) {
        return Growth::Ask;
    }
    if let Some(why) = claim.infeasible.as_ref().filter(|_| claim.capacity.is_some_and(|capacity| capacity < wanted)) {
        return Growth::Infeasible(format!(
            "cannot grow to what it asks for: {why}; put its template back to a smaller size that is more than the claim has"
        ));
    }
    match (claim.capacity, claim.resize_pending_since) {
        // It is bound to no volume yet, and will be to one that is large enough.
        (None, _) => Growth::Fits,
        (Some(capacity), _) if capacity >= wanted => Growth::Fits,
        (Some(_), Some(since)) => Growth::AwaitsMount(since),
        (Some(_), None) => Growth::Grows,
    }
}

/// Whether the set and the Pod own a claim. `is_surplus`: the Pod's ordinal is not wanted.
fn wanted_owners(retention: Retention, is_surplus: bool) -> (bool, bool) {
    let Retention { delete_with_set, delete_with_pod } = retention;
    (delete_with_set && !(delete_with_pod && is_surplus), delete_with_pod && is_surplus)
}

/// The reference by which the set owns a claim.
pub fn set_owner(spec: &Spec) -> OwnerReference {
    OwnerReference {
        api_version: "apps.kruise.io/v1beta1".into(),
        kind: "StatefulSet".into(),
        name: spec.name.clone(),
        uid: spec.uid.clone(),
        ..OwnerReference::default()
    }
}

fn pod_owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn is_of_pod(owner: &OwnerReference, pod: &str) -> bool {
    owner.api_version == "v1" && owner.kind == "Pod" && owner.name == pod
}

/// The owners of a claim that is made for a Pod to come.
pub fn owners_of_new(spec: &Spec) -> Vec<OwnerReference> {
    let is_set = spec.retention.is_some_and(|retention| wanted_owners(retention, false).0);
    is_set.then(|| set_owner(spec)).into_iter().collect()
}

/// The owners that a claim of a Pod is to have, if they are not right. Others' references stay. Without gate
/// StatefulSetAutoDeletePVC only what was written while it was on is taken back, so that no claim of a wanted Pod goes.
pub fn mended_owners(
    spec: &Spec,
    claim: &SizedClaim,
    (pod, uid): (&str, &str),
    is_surplus: bool,
) -> Option<Vec<OwnerReference>> {
    let is_set = |owner: &OwnerReference| owner.uid == spec.uid;
    let mut owners: Vec<OwnerReference> = claim.owners().to_vec();
    let (by_set, by_pod) = match spec.retention {
        Some(retention) => wanted_owners(retention, is_surplus),
        None if is_surplus => return None,
        None => (owners.iter().any(is_set), false),
    };
    if !by_set {
        owners.retain(|owner| !is_set(owner));
    } else if !owners.iter().any(is_set) {
        owners.push(set_owner(spec));
    }
    if !by_pod {
        // One of an earlier Pod of this name too: the claim would go although the present one uses it.
        owners.retain(|owner| owner.uid != uid && !is_of_pod(owner, pod));
    } else if !owners.iter().any(|owner| owner.uid == uid) {
        owners.push(pod_owner(pod, uid));
    }
    (owners != claim.owners()).then_some(owners)
}

/// Whether a claim goes with a Pod of this name: with the present one, or with an earlier one, and then it is about to go.
pub fn goes_with(claim: &SizedClaim, pod: &str) -> bool {
    claim.owners().iter().any(|owner| is_of_pod(owner, pod))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::tests::fixtures::*, *};

    fn template(storage: &str) -> ClaimTemplate {
        ClaimTemplate::of(&json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast", "resources": {"requests": {"storage": storage}}}}))
    }
    fn retained(delete_with_set: bool, delete_with_pod: bool) -> Spec {
        Spec { retention: Some(Retention { delete_with_set, delete_with_pod }), ..spec(json!({})) }
    }
    fn kinds(owners: Option<Vec<OwnerReference>>) -> Option<Vec<String>> {
        owners.map(|owners| owners.into_iter().map(|owner| owner.kind).collect())
    }

    #[test]
    fn the_table_of_retention() {
        let set = || "StatefulSet".to_owned();
        let pod = || "Pod".to_owned();
        for ((with_set, with_pod), up, down) in [
            ((false, false), vec![], vec![]),
            ((true, false), vec![set()], vec![set()]),
            ((false, true), vec![], vec![pod()]),
            ((true, true), vec![set()], vec![pod()]),
        ] {
            let spec = retained(with_set, with_pod);
            let bare = claim("data-web-0", "1Gi", "1Gi");
            for (is_surplus, want) in [(false, up), (true, down)] {
                let owners = mended_owners(&spec, &bare, ("web-0", "uid-0"), is_surplus);
                assert_eq!(kinds(owners.clone()).unwrap_or_default(), want, "{with_set} {with_pod} {is_surplus}");
                let mut mended = bare.clone();
                mended.metadata.owner_references = Some(owners.unwrap_or_default());
                assert_eq!(mended_owners(&spec, &mended, ("web-0", "uid-0"), is_surplus), None);
            }
        }
    }

    #[test]
    fn edge_08_claims_need_neither_a_policy_nor_type_metadata() {
        let none = Spec { retention: None, ..spec(json!({})) };
        let bare = claim("data-web-0", "1Gi", "1Gi");
        for is_surplus in [false, true] {
            assert_eq!(mended_owners(&none, &bare, ("web-0", "uid-0"), is_surplus), None);
        }
        assert_eq!(owners_of_new(&none), []);
        let owner = set_owner(&retained(true, false));
        assert_eq!((owner.api_version.as_str(), owner.kind.as_str()), ("apps.kruise.io/v1beta1", "StatefulSet"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
    }

    #[test]
    fn shortfall_10_1_22_only_an_owner_of_kind_pod_makes_a_claim_stale() {
        let owned = |kind: &str, api_version: &str| {
            let mut claim = claim("data-web-0", "1Gi", "1Gi");
            let owner = OwnerReference {
                kind: kind.into(),
                api_version: api_version.into(),
                name: "web-0".into(),
                uid: "gone".into(),
                ..OwnerReference::default()
            };
            claim.metadata.owner_references = Some(vec![owner]);
            claim
        };
        assert!(goes_with(&owned("Pod", "v1"), "web-0"));
        assert!(!goes_with(&owned("Backup", "example.com/v1"), "web-0"));
        assert!(!goes_with(&owned("Pod", "v1"), "web-1"));
        // The Pod is there again: the claim stays, and so do the references of others.
        let spec = retained(false, true);
        assert_eq!(mended_owners(&spec, &owned("Pod", "v1"), ("web-0", "new"), false), Some(vec![]));
        assert_eq!(mended_owners(&spec, &owned("Backup", "example.com/v1"), ("web-0", "new"), false), None);
    }

    #[test]
    fn how_far_a_claim_is() {
        let (ten, template) = (claim("data-web-0", "10Gi", "10Gi"), template("20Gi"));
        assert_eq!(growth(&template, &ten, Some(true)), Growth::Ask);
        assert!(matches!(growth(&template, &ten, Some(false)), Growth::Refused(why) if why.contains("fast")));
        assert!(matches!(growth(&template, &ten, None), Growth::Refused(_)));
        let asked = claim("data-web-0", "20Gi", "10Gi");
        assert_eq!(growth(&template, &asked, None), Growth::Grows, "no class is asked for what was asked already");
        let since = Timestamp::UNIX_EPOCH;
        let waits = SizedClaim { resize_pending_since: Some(since), ..asked.clone() };
        assert_eq!(growth(&template, &waits, None), Growth::AwaitsMount(since));
        assert_eq!(growth(&template, &claim("data-web-0", "20Gi", "20Gi"), None), Growth::Fits);
        assert_eq!(growth(&template, &SizedClaim { capacity: None, ..asked }, None), Growth::Fits, "not bound yet");
        let shaped = SizedClaim { storage_class: Some("slow".into()), ..ten.clone() };
        assert!(matches!(growth(&template, &shaped, Some(true)), Growth::Misshapen(_)));
        let unnamed = SizedClaim { storage_class: None, ..ten };
        assert_eq!(growth(&template, &unnamed, Some(true)), Growth::Ask);
        let unbound = SizedClaim { capacity: None, ..unnamed };
        assert_eq!(growth(&template, &unbound, Some(true)), Growth::Unbound);
        assert!(matches!(growth(&template, &unbound, Some(false)), Growth::Refused(_)), "it would never grow");
    }

    #[test]
    fn shortfall_10_1_11_a_template_that_shrinks_again_is_fitted_by_a_claim_that_cannot_get_larger() {
        let stuck = claim("data-web-0", "20Gi", "10Gi");
        assert_eq!(growth(&template("10Gi"), &stuck, None), Growth::Fits);
        assert!(template("10Gi").is_compatible(&stuck) && !is_grown(&stuck));
    }
}
