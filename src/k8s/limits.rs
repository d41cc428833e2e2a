//! Limits: those of the API server, and what no object needs that it stores.

/// Bytes of all annotations of an object, keys and values together.
pub const MOST_ANNOTATIONS: usize = 256 << 10;

/// The most requirements on nodes that are put into the terms of one Pod in all. They go into each of its terms: of thousands of
/// both, which one object may have, there would be more than any memory holds.
pub const MOST_NODE_REQUIREMENTS: usize = 1_000;

/// Why so many requirements are not put into so many terms, if they are not.
pub fn too_many_requirements(requirements: usize, terms: usize) -> Option<String> {
    (requirements.saturating_mul(terms) > MOST_NODE_REQUIREMENTS).then(|| {
        format!(
            "{requirements} node requirements would be added to each of the {terms} nodeSelectorTerms of the Pod; want at most {MOST_NODE_REQUIREMENTS} in all"
        )
    })
}
