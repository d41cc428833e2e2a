//! Limits: those of the API server, and what no object needs that it stores.

use serde_json::Value;

/// Bytes of all annotations of an object, keys and values together.
pub const MOST_ANNOTATIONS: usize = 256 << 10;

/// The most requirements on nodes that are put into the terms of one Pod in all. They go into each of its terms: of thousands of
/// both, which one object may have, there would be more than any memory holds.
pub const MOST_NODE_REQUIREMENTS: usize = 1_000;
/// How many bytes they have in all at most. One may have a list of values that is as long as an object can be.
pub const MOST_NODE_REQUIREMENT_BYTES: usize = 1 << 20;

/// Why these requirements are not put into so many terms, if they are not.
pub fn too_many_requirements(requirements: &[&[Value]], terms: usize) -> Option<String> {
    let of_pod = "nodeSelectorTerms of the Pod; want at most";
    let count: usize = requirements.iter().map(|list| list.len()).sum();
    if count.saturating_mul(terms) > MOST_NODE_REQUIREMENTS {
        return Some(format!(
            "{count} node requirements would be added to each of the {terms} {of_pod} {MOST_NODE_REQUIREMENTS} in all"
        ));
    }
    if terms < 2 {
        // There are no more than in the object that they come from.
        return None;
    }
    let bytes: usize = requirements.iter().copied().flatten().map(|requirement| requirement.to_string().len()).sum();
    (bytes.saturating_mul(terms) > MOST_NODE_REQUIREMENT_BYTES).then(|| {
        format!(
            "node requirements of {bytes} bytes would be added to each of the {terms} {of_pod} {MOST_NODE_REQUIREMENT_BYTES} bytes in all"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn few_requirements_with_long_lists_of_values_do_not_multiply_either() {
        let long = |bytes: usize| [json!({"values": ["x".repeat(bytes)]})];
        for (bytes, terms, is_too_much) in [
            (2 << 20, 0, false),
            (2 << 20, 1, false),
            (1_000, 1_000, false),
            (1_100, 1_000, true),
            (600 << 10, 2, true),
        ] {
            let why = too_many_requirements(&[&long(bytes), &[]], terms);
            assert_eq!(why.is_some(), is_too_much, "{bytes} {terms}: {why:?}");
        }
        assert_eq!(
            too_many_requirements(&[&long(2_000), &[]], 1_000).unwrap(),
            "node requirements of 2015 bytes would be added to each of the 1000 nodeSelectorTerms of the Pod; want at most 1048576 bytes in all"
        );
    }
}
