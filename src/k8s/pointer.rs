//! JSON pointers (RFC 6901), as JSON patches use them.

/// A key as a part of a JSON pointer.
pub fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Applies a JSON patch as the API server does: a test for null passes where there is nothing. False: it cannot be applied.
#[cfg(test)]
pub(crate) fn patched(object: &mut serde_json::Value, patch: &serde_json::Value) -> bool {
    let is_met = |operation: &serde_json::Value| {
        let path = operation["path"].as_str().unwrap_or_default();
        operation["op"] == "test" && operation["value"].is_null() && object.pointer(path).is_none()
    };
    let open: Vec<_> = patch.as_array().unwrap().iter().filter(|operation| !is_met(operation)).cloned().collect();
    let patch: json_patch::Patch = serde_json::from_value(open.into()).unwrap();
    json_patch::patch(object, &patch).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_part_of_a_pointer() {
        assert_eq!(escaped("apps.kruise.io/a~b"), "apps.kruise.io~1a~0b");
    }
}
