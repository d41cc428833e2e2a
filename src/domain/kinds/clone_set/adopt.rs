//! Pods and claims of a CloneSet that nobody controls: a restore from a backup and a deletion with `--cascade=orphan` leave
//! them so. OpenKruise makes others beside them. Here an annotation of the CloneSet has them adopted.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::make;
use crate::{
    api::{apps::clone_set::CloneSet, labels},
    domain::workload::claims,
    k8s::{claim::ClaimView, pod::PodView, selector::Selector},
};

/// What a CloneSet adopts.
pub struct Adoption<'a> {
    name: &'a str,
    selector: Selector,
    /// The names of its claim templates.
    templates: Vec<&'a str>,
    /// Claims without a Pod are given to a new one.
    reuses_claims: bool,
}

impl<'a> Adoption<'a> {
    /// Whether a CloneSet with this metadata asks for it.
    pub fn is_wanted(metadata: &ObjectMeta) -> bool {
        let wanted = metadata.annotations.as_ref().and_then(|all| all.get(labels::ADOPT_ORPHANS));
        wanted.is_some_and(|wanted| wanted == "true") && metadata.deletion_timestamp.is_none()
    }

    /// None: the CloneSet adopts nothing.
    pub fn of(clone_set: &'a CloneSet) -> Option<Self> {
        let metadata = &clone_set.metadata;
        if !Self::is_wanted(metadata) {
            return None;
        }
        // Without a selector nobody could say which Pods are meant.
        let selector = Selector::of(&clone_set.spec.selector).ok().filter(|selector| !selector.is_empty())?;
        let templates = claims::templates(clone_set.spec.volume_claim_templates.as_ref());
        Some(Self {
            name: metadata.name.as_deref()?,
            selector,
            templates: templates.iter().map(claims::template_name).collect(),
            reuses_claims: !clone_set.spec.scale_strategy.disable_pvc_reuse,
        })
    }

    /// Whether a Pod of the CloneSet's namespace is to be adopted: it has the name and the id of an instance, and goes on.
    pub fn takes_pod(&self, pod: &PodView) -> bool {
        let id = pod.labels.get(labels::INSTANCE_ID).unwrap_or_default();
        pod.controller.is_none()
            && pod.is_active()
            && !id.is_empty()
            && pod.name() == make::pod_name(self.name, id)
            && self.selector.matches(&pod.labels)
    }

    /// Whether a claim of the CloneSet's namespace is its own, by its name, and nobody controls it.
    pub fn is_own_claim(&self, claim: &ClaimView) -> bool {
        let id = claim.instance_id.as_str();
        claim.controller_uid.is_none()
            && !claim.is_deleting()
            && !id.is_empty()
            && self.templates.iter().any(|template| claim.name() == make::claim_name(template, self.name, id))
    }

    /// Whether a claim is to be adopted. `instances` are the ids of the Pods that the CloneSet has: where claims are not used
    /// again, it would delete those of other ids.
    pub fn takes_claim(&self, claim: &ClaimView, instances: &BTreeSet<&str>) -> bool {
        self.is_own_claim(claim) && (self.reuses_claims || instances.contains(claim.instance_id.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn clone_set(changes: Value) -> CloneSet {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": {"kruise.rs/adopt-orphans": "true"}},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
        });
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }

    fn other_owner(is_controller: bool) -> Value {
        json!([{"apiVersion": "example.com/v1", "kind": "Other", "name": "o", "uid": "o", "controller": is_controller}])
    }

    #[test]
    fn a_clone_set_adopts_only_when_it_says_so_and_is_there_to_stay() {
        for (changes, adopts) in [
            (json!({}), true),
            (json!({"metadata": {"annotations": null}}), false),
            (json!({"metadata": {"annotations": {"kruise.rs/adopt-orphans": "false"}}}), false),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
            (json!({"spec": {"selector": {"matchLabels": null}}}), false),
            (json!({"spec": {"volumeClaimTemplates": null}}), true),
        ] {
            assert_eq!(Adoption::of(&clone_set(changes.clone())).is_some(), adopts, "{changes}");
        }
    }

    #[test]
    fn a_pod_is_adopted_by_its_name_its_id_and_the_selector_while_it_goes_on() {
        let set = clone_set(json!({}));
        let adoption = Adoption::of(&set).unwrap();
        for (changes, takes) in [
            (json!({}), true),
            (json!({"metadata": {"ownerReferences": other_owner(false)}}), true),
            (json!({"metadata": {"ownerReferences": other_owner(true)}}), false),
            (json!({"metadata": {"labels": {"app": "other"}}}), false),
            (json!({"metadata": {"labels": {"apps.kruise.io/cloneset-instance-id": null}}}), false),
            (json!({"metadata": {"labels": {"apps.kruise.io/cloneset-instance-id": "xxxxx"}}}), false),
            (json!({"metadata": {"name": "other-abcde"}}), false),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
            (json!({"status": {"phase": "Failed"}}), false),
            (json!({"status": {"phase": "Succeeded"}}), false),
            (json!({"status": {"phase": "Running"}}), true),
        ] {
            let mut pod = json!({"metadata": {"name": "web-abcde", "namespace": "ns", "uid": "p",
                "labels": {"app": "web", "apps.kruise.io/cloneset-instance-id": "abcde"}}});
            json_patch::merge(&mut pod, &changes);
            assert_eq!(adoption.takes_pod(&serde_json::from_value(pod).unwrap()), takes, "{changes}");
        }
    }

    #[test]
    fn a_claim_is_adopted_by_its_name_and_without_reuse_only_with_its_pod() {
        let (reuses, deletes) =
            (clone_set(json!({})), clone_set(json!({"spec": {"scaleStrategy": {"disablePVCReuse": true}}})));
        let (reuses, deletes) = (Adoption::of(&reuses).unwrap(), Adoption::of(&deletes).unwrap());
        let (with_pod, without) = (BTreeSet::from(["abcde"]), BTreeSet::from(["fghij"]));
        for (changes, is_own) in [
            (json!({}), true),
            (json!({"ownerReferences": other_owner(false)}), true),
            (json!({"ownerReferences": other_owner(true)}), false),
            (json!({"name": "logs-web-abcde"}), false),
            (json!({"name": "data-other-abcde"}), false),
            (json!({"name": "data-web-fghij"}), false),
            (json!({"labels": null}), false),
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), false),
        ] {
            let mut metadata = json!({"name": "data-web-abcde", "namespace": "ns", "uid": "c",
                "labels": {"apps.kruise.io/cloneset-instance-id": "abcde"}});
            json_patch::merge(&mut metadata, &changes);
            let claim: ClaimView = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            assert_eq!(reuses.takes_claim(&claim, &without), is_own, "{changes}");
            assert_eq!(deletes.takes_claim(&claim, &with_pod), is_own, "{changes}");
            assert!(!deletes.takes_claim(&claim, &without), "{changes}");
        }
    }
}
