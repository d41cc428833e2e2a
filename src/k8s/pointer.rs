//! JSON pointers (RFC 6901), as JSON patches use them.

/// A key as a part of a JSON pointer.
pub fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_part_of_a_pointer() {
        assert_eq!(escaped("apps.kruise.io/a~b"), "apps.kruise.io~1a~0b");
    }
}
