//! Image references: `name[:tag][@digest]`, and when two of them name the same repository.

/// The longest reference that is looked at; the API server stores longer ones, no registry has them.
const LONGEST: usize = 1024;
/// The longest tag that a registry allows.
pub const LONGEST_TAG: usize = 128;

/// The parts of a reference, each exactly as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRef<'a> {
    /// Registry and path, for example `busybox` or `registry.example:5000/team/app`.
    pub name: &'a str,
    /// What follows the colon.
    pub tag: Option<&'a str>,
    /// What follows the `@`, for example `sha256:...`.
    pub digest: Option<&'a str>,
}

impl<'a> ImageRef<'a> {
    /// Takes a reference apart. None: it is none, or names an image by its id.
    pub fn parse(text: &'a str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let path_starts = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[path_starts..].find(':') {
            Some(colon) => (&rest[..path_starts + colon], Some(&rest[path_starts + colon + 1..])),
            None => (rest, None),
        };
        let plain = |part: &str| {
            part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
                && part.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
                && part.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
        };
        // Only the registry may have a port, or be an IPv6 address.
        let registry =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
        let name_is_good = match name.split_once('/') {
            Some((first, path)) => (plain(first) || registry(first)) && path.split('/').all(plain),
            None => plain(name) && name != "sha256" && !is_id(name),
        };
        let good = name_is_good && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
        good.then_some(Self { name, tag, digest })
    }

    /// The repository in full: `busybox` is `docker.io/library/busybox`. For comparisons only.
    pub fn repository(&self) -> String {
        let (registry, path) = match self.name.split_once('/') {
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
            _ => ("docker.io", self.name),
        };
        let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
        let library = if registry == "docker.io" && !path.contains('/') { "library/" } else { "" };
        format!("{registry}/{library}{path}")
    }

    /// The repository as NodeImages name it: `docker.io/library/busybox` is `busybox`, `docker.io/a/b` is `a/b`.
    pub fn familiar(&self) -> String {
        let full = self.repository();
        let hub = full.strip_prefix("docker.io/");
        hub.map_or(full.as_str(), |path| path.strip_prefix("library/").unwrap_or(path)).to_owned()
    }

    /// What NodeImages have as the tag: the digest if there is one, else the tag.
    pub fn slot(&self) -> &'a str {
        self.digest.unwrap_or_else(|| self.tag_or_default())
    }

    /// Its tag, or the one that is meant when there is none.
    pub fn tag_or_default(&self) -> &'a str {
        self.tag.unwrap_or("latest")
    }
}

/// Whether a text can be a tag.
pub fn is_tag(text: &str) -> bool {
    let first = text.as_bytes().first().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    first && text.len() <= LONGEST_TAG && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
            && !algorithm.is_empty()
            && hex.len() >= 32
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_taken_apart() {
        let with = |rest: &str| format!("{rest}@{D}");
        for (text, name, tag, digest) in [
            ("busybox", "busybox", None, None),
            ("busybox:1.36", "busybox", Some("1.36"), None),
            ("localhost:5000/a/b", "localhost:5000/a/b", None, None),
            ("localhost:5000/a/b:t", "localhost:5000/a/b", Some("t"), None),
            (&with("registry.example/app:v1"), "registry.example/app", Some("v1"), Some(D)),
            (&with("[::1]:5000/app"), "[::1]:5000/app", None, Some(D)),
        ] {
            assert_eq!(ImageRef::parse(text), Some(ImageRef { name, tag, digest }), "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let id = "0123456789abcdef".repeat(4);
        let long = "a".repeat(1025);
        for text in [
            "",
            ":t",
            "a:",
            "a@",
            "a@sha256:12",
            "a//b",
            "/a",
            "a/",
            "a b",
            "a/b:c:d",
            "a@b@c",
            D,
            &id,
            &long,
            "ä",
            "a/b/c:d/e f",
        ] {
            assert_eq!(ImageRef::parse(text), None, "{text}");
        }
    }

    #[test]
    fn e12_the_short_forms_of_docker_hub_are_one_repository() {
        let repository = |text: &str| ImageRef::parse(text).unwrap().repository();
        for same in ["busybox", "library/busybox", "docker.io/busybox", "index.docker.io/library/busybox:1"] {
            assert_eq!(repository(same), "docker.io/library/busybox", "{same}");
        }
        assert_eq!(repository("team/app"), "docker.io/team/app");
        assert_eq!(repository("localhost/app"), "localhost/app");
        assert_eq!(repository("r.example/app"), "r.example/app");
    }

    #[test]
    fn node_images_have_the_familiar_name_and_the_digest_or_the_tag() {
        let digest = format!("busybox:1@{D}");
        for (text, name, slot) in [
            ("busybox", "busybox", "latest"),
            ("docker.io/library/busybox:1.35", "busybox", "1.35"),
            ("index.docker.io/busybox", "busybox", "latest"),
            ("docker.io/team/app:v1", "team/app", "v1"),
            ("team/app", "team/app", "latest"),
            ("localhost:5000/library/app:v1", "localhost:5000/library/app", "v1"),
            ("registry.example/app", "registry.example/app", "latest"),
            (&digest, "busybox", D),
        ] {
            let image = ImageRef::parse(text).unwrap();
            assert_eq!((image.familiar().as_str(), image.slot()), (name, slot), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_parts_make_the_whole(text in "[a-z.:/@_-]{0,20}(:[a-z0-9]{1,4})?(@sha256:[0-9a-f]{64})?") {
            if let Some(ImageRef { name, tag, digest }) = ImageRef::parse(&text) {
                let tag = tag.map_or(String::new(), |tag| format!(":{tag}"));
                let digest = digest.map_or(String::new(), |digest| format!("@{digest}"));
                prop_assert_eq!(format!("{name}{tag}{digest}"), text);
            }
        }
    }
}
