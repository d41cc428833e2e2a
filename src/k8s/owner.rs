//! Of which kind the owners of an object are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::api::group_of;

/// Whether `apiVersion` and `kind` of a reference are of a group and a kind, in whatever version. The group of core is empty.
pub fn is_kind((api_version, kind): (&str, &str), of: (&str, &str)) -> bool {
    (group_of(api_version), kind) == of
}

/// Whether an owner is of a group and a kind.
pub fn is_of(owner: &OwnerReference, of: (&str, &str)) -> bool {
    is_kind((&owner.api_version, &owner.kind), of)
}

/// Whether an owner is of a group and a kind, and controls the object.
pub fn controls(owner: &OwnerReference, of: (&str, &str)) -> bool {
    owner.controller == Some(true) && is_of(owner, of)
}

/// The owner that controls an object, if it is of a group and a kind.
pub fn controller_of<'m>(metadata: &'m ObjectMeta, of: (&str, &str)) -> Option<&'m OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| controls(owner, of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::apps;

    fn owner(api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference { api_version: api_version.into(), kind: kind.into(), ..OwnerReference::default() }
    }

    #[test]
    fn the_group_has_to_be_the_same_and_the_version_does_not_count() {
        const SET: (&str, &str) = (apps::GROUP, "StatefulSet");
        for (api_version, kind, of, want) in [
            ("apps.kruise.io/v1beta1", "StatefulSet", SET, true),
            ("apps.kruise.io/v2", "StatefulSet", SET, true),
            ("apps.kruise.io.x/v1", "StatefulSet", SET, false),
            ("apps.kruise.io", "StatefulSet", SET, false),
            ("apps/v1", "StatefulSet", SET, false),
            ("apps.kruise.io/v1beta1", "CloneSet", SET, false),
            ("v1", "Pod", ("", "Pod"), true),
            ("apps/v1", "Pod", ("", "Pod"), false),
        ] {
            assert_eq!(is_of(&owner(api_version, kind), of), want, "{api_version} {kind}");
        }
    }

    #[test]
    fn only_an_owner_that_controls_is_a_controller() {
        let of = ("apps", "ReplicaSet");
        let plain = owner("apps/v1", "ReplicaSet");
        let controlling = OwnerReference { controller: Some(true), ..plain.clone() };
        let other = OwnerReference { controller: Some(true), ..owner("example.com/v1", "ReplicaSet") };
        for (owners, want) in [
            (vec![], None),
            (vec![plain.clone()], None),
            (vec![other.clone()], None),
            (vec![plain, controlling.clone()], Some(&controlling)),
        ] {
            let metadata = ObjectMeta { owner_references: Some(owners), ..ObjectMeta::default() };
            assert_eq!(controller_of(&metadata, of), want);
        }
    }
}
