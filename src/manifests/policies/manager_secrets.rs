//! Secrets against the manager: it writes the copies of ResourceDistributions, and its own certificates.

use serde_json::{Value, json};

use super::cel::{self, by, must, resource_rule};
use crate::{
    domain::kinds::resource_distribution::content::FORBIDDEN_TYPES,
    k8s::account::{self, MANAGER},
    pull_secrets::SECRET,
};

pub(super) fn spec() -> Value {
    let is_own = format!(
        "request.operation == 'UPDATE' && object.metadata.name == '{SECRET}' && request.namespace == {}",
        account::NAMESPACE
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["secrets"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            must(&format!("({is_own}) || ({})", cel::is_distributed()),
                &format!("the manager writes only Secrets that a ResourceDistribution controls, before and after, outside of the namespace that Kruise is installed in, and there {SECRET}")),
            must(&format!("request.operation == 'DELETE' || !(object.?type.orValue('') in {})", cel::list(&FORBIDDEN_TYPES)),
                "type: the manager writes no Secrets from which tokens are made"),
        ],
    })
}
