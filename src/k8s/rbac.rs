//! What a part of the program may do in the API, written beside the code that does it. `manifests/` is rendered from it.

/// One rule of a Role or ClusterRole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API groups; the core group is the empty text.
    pub groups: &'static [&'static str],
    /// Resources, subresources as `pods/status`.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Object names, or empty for all. `create` cannot be limited by name.
    pub resource_names: &'static [&'static str],
}

impl Rule {
    /// A rule for all objects of some resources of one kind of group.
    pub const fn new(
        groups: &'static [&'static str],
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self { groups, resources, verbs, resource_names: &[] }
    }

    /// The same rule for the named objects only.
    pub const fn named(self, names: &'static [&'static str]) -> Self {
        Self { resource_names: names, ..self }
    }
}
