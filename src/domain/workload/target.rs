//! The workload that an object names in `spec.targetRef`. Everything that acts on a target reads it in this form: a stored
//! reference that admission would refuse names none, and its owner reports why.

use crate::{
    api::group_and_version,
    k8s::{
        invalid::{Invalid, InvalidField},
        name::is_dns_subdomain,
    },
};

/// A workload in the namespace of the object that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadTarget<'a> {
    /// Group and version.
    pub api_version: &'a str,
    /// API group; empty for core.
    pub group: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Name.
    pub name: &'a str,
}

impl<'a> WorkloadTarget<'a> {
    /// Parses a reference.
    ///
    /// # Errors
    /// Naming each field that can be that of no workload, its value and what is allowed.
    pub fn parse(api_version: &'a str, kind: &'a str, name: &'a str) -> Result<Self, Invalid> {
        let problems = problems(api_version, kind, name);
        if !problems.is_empty() {
            return Err(problems.into());
        }
        Ok(Self { api_version, group: group_and_version(api_version).0, kind, name })
    }

    /// API version, kind and name, as look-ups take them.
    pub fn names(self) -> (&'a str, &'a str, &'a str) {
        (self.api_version, self.kind, self.name)
    }

    /// Whether another reference means the same workload. The version does not count.
    pub fn is_same(self, other: WorkloadTarget<'_>) -> bool {
        (self.group, self.kind, self.name) == (other.group, other.kind, other.name)
    }

    /// The text by which those that name a workload are indexed.
    pub fn key(self, namespace: &str) -> String {
        target_key(namespace, (self.group, self.kind, self.name))
    }
}

/// Whether two references mean the same workload. One that names none means no workload.
pub fn is_same_target(a: Result<WorkloadTarget<'_>, Invalid>, b: Result<WorkloadTarget<'_>, Invalid>) -> bool {
    matches!((a, b), (Ok(a), Ok(b)) if a.is_same(b))
}

/// The text by which those that name a workload are indexed. No part of it has a slash.
pub fn target_key(namespace: &str, (group, kind, name): (&str, &str, &str)) -> String {
    format!("{namespace}/{group}/{kind}/{name}")
}

/// What is wrong with a reference.
pub fn problems(api_version: &str, kind: &str, name: &str) -> Vec<InvalidField> {
    let (group, version) = group_and_version(api_version);
    let is_kind = kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_version = (group.is_empty() || is_dns_subdomain(group)) && is_dns_subdomain(version);
    let fields = [
        ("apiVersion", api_version, is_version, "GROUP/VERSION, such as apps/v1"),
        ("kind", kind, is_kind, "letters and digits, such as StatefulSet"),
        ("name", name, is_dns_subdomain(name), "the name of a workload"),
    ];
    let wrong = fields.into_iter().filter_map(|(field, value, is_allowed, want)| {
        let why = match value.is_empty() {
            true => "it is empty; want that of a workload".to_owned(),
            false if is_allowed => return None,
            false => format!("{:?} is not allowed; want {want}", value.chars().take(80).collect::<String>()),
        };
        Some(InvalidField { field: format!("spec.targetRef.{field}"), why })
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_can_name_no_workload_is_refused_with_field_value_and_what_is_allowed() {
        for (api_version, kind, name, want) in [
            ("apps/v1", "Deployment", "web", ""),
            ("v1", "ReplicationController", "web.old", ""),
            ("example.com/v1", "My-Kind", "a", ""),
            ("", "Deployment", "web", "spec.targetRef.apiVersion: it is empty; want that of a workload"),
            (
                "../v1",
                "Deployment",
                "web",
                "spec.targetRef.apiVersion: \"../v1\" is not allowed; want GROUP/VERSION, such as apps/v1",
            ),
            (
                "apps/v1/x",
                "Deployment",
                "web",
                "spec.targetRef.apiVersion: \"apps/v1/x\" is not allowed; want GROUP/VERSION, such as apps/v1",
            ),
            (
                "apps/v1",
                "a/b",
                "../x",
                "spec.targetRef.kind: \"a/b\" is not allowed; want letters and digits, such as StatefulSet; \
                 spec.targetRef.name: \"../x\" is not allowed; want the name of a workload",
            ),
        ] {
            let parsed = WorkloadTarget::parse(api_version, kind, name);
            let why = parsed.as_ref().map_or_else(|Invalid(why)| why.as_str(), |_| "");
            assert_eq!(why, want, "{api_version} {kind} {name}");
        }
    }

    #[test]
    fn the_version_does_not_count() {
        let target = |api_version| WorkloadTarget::parse(api_version, "StatefulSet", "db").unwrap();
        assert!(target("apps.kruise.io/v1alpha1").is_same(target("apps.kruise.io/v1beta1")));
        assert!(!target("apps.kruise.io/v1alpha1").is_same(target("apps/v1")));
        let none = || WorkloadTarget::parse("", "StatefulSet", "db");
        assert!(is_same_target(Ok(target("apps/v1")), Ok(target("apps/v1beta1"))));
        assert!(!is_same_target(none(), none()) && !is_same_target(Ok(target("apps/v1")), none()));
        assert_eq!(target("apps/v1").key("ns"), "ns/apps/StatefulSet/db");
        assert_eq!(target("v1").key("ns"), "ns//StatefulSet/db");
    }
}
