//! Names of objects.

/// Whether a text can be the name of a Pod, a Node or most other objects: an RFC 1123 subdomain.
///
/// A name from a user becomes part of a URL, so this is also what keeps `../` out of our requests.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= LONGEST_NAME && name.split('.').all(is_dns_part)
}

/// Whether a text can be the name of a namespace: an RFC 1123 label.
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= LONGEST_LABEL && is_dns_part(name)
}

fn is_dns_part(part: &str) -> bool {
    !part.is_empty()
        && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !part.starts_with('-')
        && !part.ends_with('-')
}

/// The begin of a name, of so many bytes at most, to which a '-' and more can be added.
pub fn cut(name: &str, most: usize) -> &str {
    name.get(..most).unwrap_or(name).trim_end_matches(['-', '.'])
}

/// What a name has to be.
pub const WANT_SUBDOMAIN: &str = "an RFC 1123 subdomain: up to 253 lower-case letters, digits, '-' and '.', each part between dots beginning and ending with a letter or digit";
/// What the name of a namespace has to be.
pub const WANT_LABEL: &str =
    "an RFC 1123 label: up to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit";

/// A text that cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is not allowed; want {want}")]
pub struct BadName {
    /// The text, cut to its first 80 characters.
    pub shown: String,
    /// What is allowed.
    pub want: &'static str,
}

impl BadName {
    /// About this text.
    pub fn new(text: &str, want: &'static str) -> Self {
        Self { shown: text.chars().take(80).collect(), want }
    }
}

macro_rules! name_type {
    ($(#[$about:meta])* $name:ident, $is_valid:ident, $want:ident) => {
        $(#[$about])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Parses one.
            ///
            /// # Errors
            /// The text is not empty and cannot be a name.
            pub fn parse(text: &str) -> Result<Self, BadName> {
                match text.is_empty() || $is_valid(text) {
                    true => Ok(Self(text.to_owned())),
                    false => Err(BadName::new(text, $want)),
                }
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        /// As text, between quotes.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        #[cfg(test)]
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::parse(text).unwrap()
            }
        }
    };
}

name_type! {
    /// The name of an object, an RFC 1123 subdomain; empty where there is none yet.
    ObjectName, is_dns_subdomain, WANT_SUBDOMAIN
}
name_type! {
    /// The name of a namespace, an RFC 1123 label; empty for what is of the cluster.
    Namespace, is_dns_label, WANT_LABEL
}

/// The longest name of an object, in bytes.
pub const LONGEST_NAME: usize = 253;
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
    fn a_name_that_is_cut_ends_with_a_letter_or_digit() {
        for (name, most, want) in [
            ("web", 5, "web"),
            ("web-app", 5, "web-a"),
            ("web-app", 4, "web"),
            ("a.-b", 3, "a"),
            ("--", 2, ""),
            ("", 0, ""),
        ] {
            assert_eq!(cut(name, most), want, "{name}, {most}");
        }
    }

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
        assert!(is_dns_label(&"a".repeat(63)) && is_dns_label("kube-system"));
        for bad in ["", "a.b", "A", "default/podtemplates?x=", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }

    #[test]
    fn a_text_that_is_no_name_is_shown_with_what_is_allowed() {
        assert_eq!(&*ObjectName::parse("web.0").unwrap(), "web.0");
        assert!(ObjectName::parse("").unwrap().is_empty() && Namespace::parse("").unwrap().is_empty());
        let error = Namespace::parse("default/podtemplates?x=").unwrap_err().to_string();
        assert!(error.starts_with("\"default/podtemplates?x=\" is not allowed; want an RFC 1123 label"), "{error}");
        assert!(ObjectName::parse(&"/".repeat(10_000)).unwrap_err().to_string().len() < 400);
    }
}
