//! NodePodProbes against the manager: daemons run the commands in them, so none is for a Pod of our own namespace.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule};
use crate::{
    api::apps,
    k8s::account::{self, MANAGER},
};

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule(apps::GROUP, &["v1alpha1", "v1beta1"], &["CREATE", "UPDATE"], &["nodepodprobes"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [must(
            &format!("object.spec.?podProbes.orValue([]).all(p, p.?namespace.orValue('') != {})", account::NAMESPACE),
            "spec.podProbes: the manager has no Pod of the namespace probed that Kruise is installed in",
        )],
    })
}
