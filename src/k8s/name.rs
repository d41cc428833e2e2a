//! Names of objects.

/// Whether a text can be the name of a Pod, a Node or most other objects: an RFC 1123 subdomain.
///
/// A name from a user becomes part of a URL, so this is also what keeps `../` out of our requests.
pub fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The longest value of a label.
pub const LONGEST_LABEL: usize = 63;

/// Whether a text can be the value of a label: empty, or up to 63 letters, digits, `-`, `_` and `.`, beginning and ending
/// with a letter or digit.
pub fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric());
    text.is_empty()
        || text.len() <= LONGEST_LABEL
            && ends(text.bytes().next())
            && ends(text.bytes().last())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Whether a text can be the key of a label or the name of a finalizer: `name` or `prefix/name`.
pub fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// What a name that is generated from `base` begins with: the API server cuts it so that five characters fit behind it.
pub fn generated_base(base: &str) -> &str {
    base.get(..LONGEST_LABEL - SUFFIX).unwrap_or(base)
}

/// Characters that are added to a base.
pub const SUFFIX: usize = 5;

/// A suffix from random bytes, of characters that make no words.
pub fn suffix(random: [u8; SUFFIX]) -> String {
    const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    random.iter().map(|byte| char::from(CHARACTERS[usize::from(*byte) % CHARACTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_labels() {
        for good in ["a", "A_b.c-9", &"a".repeat(63), "example.com/x", "kubernetes.io/A"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "A.com/x", "a/b/c", "-a", "a-", "a b", "ä", &"a".repeat(64)] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("1.2_x") && !is_label_value("a/b") && !is_label_value("_a"));
    }

    #[test]
    fn generated_names_fit_into_a_label() {
        assert_eq!(generated_base(&"x".repeat(300)).len() + SUFFIX, 63);
        assert_eq!(generated_base("web-"), "web-");
        assert_eq!((suffix([0, 1, 26, 27, 255]), suffix([0; 5])), ("bc9bq".into(), "bbbbb".into()));
    }

    #[test]
    fn subdomains() {
        for good in ["a", "web-0", "a.b-c.d9", &"a".repeat(253)] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a..b", "a/b", "../a", "a b", "a.", "ä", &"a".repeat(254)] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
    }
}
