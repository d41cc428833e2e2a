//! Claim templates: the names of the claims that are made from one, and what they ask for.

use std::collections::BTreeSet;

use serde_json::Value;

use super::numbering;
use crate::k8s::{
    claim::{SizedClaim, amount},
    name::{LONGEST_LABEL, is_dns_label},
};

/// One of `spec.volumeClaimTemplates`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimTemplate {
    /// Its name, which is that of the volume.
    pub name: String,
    /// `spec.storageClassName`.
    pub storage_class: Option<String>,
    /// `spec.accessModes`.
    pub access_modes: Vec<String>,
    /// `spec.resources.requests.storage`, in billionths.
    pub storage: Option<i128>,
    /// The template itself.
    pub raw: Value,
}

impl ClaimTemplate {
    /// From the spec.
    pub fn of(raw: &Value) -> Self {
        let text = |path: &str| raw.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let modes = raw.pointer("/spec/accessModes").and_then(Value::as_array).into_iter().flatten();
        Self {
            name: text("/metadata/name").unwrap_or_default(),
            storage_class: text("/spec/storageClassName"),
            access_modes: modes.filter_map(Value::as_str).map(str::to_owned).collect(),
            storage: raw.pointer("/spec/resources/requests/storage").and_then(amount),
            raw: raw.clone(),
        }
    }

    /// The name of the claim of a Pod.
    pub fn claim_name(&self, set: &str, ordinal: i32) -> String {
        format!("{}-{}", self.name, numbering::pod_name(set, ordinal))
    }

    /// Whether a claim has the storage class and the access modes of the template: neither can be changed.
    pub(super) fn has_shape_of(&self, claim: &SizedClaim) -> bool {
        let same_class = match (&self.storage_class, &claim.storage_class) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        same_class && self.access_modes == claim.access_modes
    }

    /// Whether a claim has what the template asks for.
    pub fn is_compatible(&self, claim: &SizedClaim) -> bool {
        self.has_shape_of(claim) && claim.requested.unwrap_or(0) >= self.storage.unwrap_or(0)
    }
}

/// Why Pods with claims of these templates would be refused for ever, if they would: a template's name is that of a volume,
/// and part of the name of each claim.
pub fn wrong_name(templates: &[ClaimTemplate]) -> Option<String> {
    let mut names = BTreeSet::new();
    let wrong = |name: &str| {
        let shown: String = name.chars().take(LONGEST_LABEL).collect();
        let dots = if shown.len() < name.len() { "..." } else { "" };
        format!("{shown:?}{dots} is not allowed; want up to {LONGEST_LABEL} lower-case letters, digits and '-'")
    };
    templates.iter().enumerate().find_map(|(i, ClaimTemplate { name, .. })| {
        let field = format!("spec.volumeClaimTemplates[{i}].metadata.name");
        if !is_dns_label(name) {
            Some(format!("{field}: {}", wrong(name)))
        } else if names.insert(name) {
            None
        } else {
            Some(format!("{field}: {name:?} is there twice; want each name once"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_template_that_no_pod_could_have_is_named() {
        let named = |names: &[&str]| {
            let template = |name: &&str| ClaimTemplate { name: (*name).to_owned(), ..ClaimTemplate::default() };
            wrong_name(&names.iter().map(template).collect::<Vec<_>>())
        };
        let longest = "d".repeat(63);
        assert_eq!(named(&["data", "logs", &longest]), None);
        for odd in ["", "Data", "a.b", "-a", "a_b"] {
            let why = format!(
                "spec.volumeClaimTemplates[1].metadata.name: {odd:?} is not allowed; want up to 63 lower-case letters, digits and '-'"
            );
            assert_eq!(named(&["data", odd]), Some(why));
        }
        let why = named(&[&"d".repeat(300)]).unwrap();
        assert!(why.contains(&format!("{longest:?}... is not allowed")), "{why}");
        assert_eq!(
            named(&["data", "data"]).unwrap(),
            "spec.volumeClaimTemplates[1].metadata.name: \"data\" is there twice; want each name once"
        );
    }
}
