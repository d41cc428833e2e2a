//! Workloads against the manager: it makes, changes and deletes those of the subsets of UnitedDeployments, and no others. It
//! adopts those that nobody controls. Changes of CloneSets are limited by the policy over specs.

use serde_json::{Value, json};

use super::cel::{self, by, equal, implies, is_of_united, must, resource_rule};
use crate::{
    api::apps,
    k8s::account::{self, MANAGER},
};

pub(super) fn spec() -> Value {
    let all = ["CREATE", "UPDATE", "DELETE"];
    let (was, is) = (is_of_united("oldObject"), is_of_united("object"));
    let is_adopted = cel::is_adopted_by_united();
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("apps", &["v1"], &all, &["deployments", "statefulsets"]),
            resource_rule(apps::GROUP, &["v1alpha1", "v1beta1"], &all, &["statefulsets"]),
            resource_rule(apps::GROUP, &["v1alpha1", "v1beta1"], &["CREATE", "DELETE"], &["clonesets"]),
        ] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            must(&format!("request.operation == 'CREATE' || {was} || ({is_adopted})"),
                "the manager changes and deletes only workloads that a UnitedDeployment controls"),
            must(&format!("request.operation == 'DELETE' || {is}"),
                "the manager makes and changes only workloads that a UnitedDeployment controls"),
            must(&format!("request.namespace != {}", account::NAMESPACE),
                "the manager makes no workloads in its own namespace"),
            implies("request.operation == 'UPDATE'", &format!("{} || ({is_adopted})", equal("metadata.ownerReferences", "[]")),
                "metadata.ownerReferences: the manager does not change them"),
            implies(&is_adopted, &cel::same_but_united(),
                "the manager adopts a workload for a UnitedDeployment by its owner reference, and changes nothing else of it with that"),
            implies("request.operation == 'UPDATE'", &equal("metadata.finalizers", "[]"),
                "metadata.finalizers: the manager does not change them"),
        ],
    })
}
