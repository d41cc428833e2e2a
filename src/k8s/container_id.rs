//! Ids of containers as the status of a Pod has them: `<runtime>://<id>`.

/// The name of the runtime, for example `containerd`, `cri-o` or `docker`, and the id inside it. None: the text is not of this form.
pub fn split(id: &str) -> Option<(&str, &str)> {
    id.split_once("://").filter(|(runtime, inside)| !runtime.is_empty() && !inside.is_empty())
}

/// The id inside its runtime; the whole text if it names no runtime.
pub fn without_runtime(id: &str) -> &str {
    split(id).map_or(id, |(_, inside)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_have_a_runtime_and_an_id() {
        assert_eq!(split("containerd://abc"), Some(("containerd", "abc")));
        assert_eq!(without_runtime("containerd://abc"), "abc");
        for bad in ["", "abc", "://abc", "containerd://"] {
            assert_eq!((split(bad), without_runtime(bad)), (None, bad));
        }
    }
}
