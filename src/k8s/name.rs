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

#[cfg(test)]
mod tests {
    use super::*;

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
