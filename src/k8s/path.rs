//! Paths of API requests. Every path that this program writes itself is built here.
//!
//! kube's typed `Api` puts names into URLs as they are. A name that comes from input is therefore parsed
//! ([`super::name`]) before it gets there; what is built here is percent-encoded as well.

use std::{borrow::Cow, fmt::Write as _};

/// The API group of core resources.
pub const CORE: &str = "";

/// The path of these segments, each percent-encoded: none of them can add a segment or a query.
pub fn path<'s>(segments: impl IntoIterator<Item = &'s str>) -> String {
    let mut path = String::new();
    for text in segments {
        path.push('/');
        path.push_str(&segment(text));
    }
    path
}

/// The path of an API version: `/api/v1`, or `/apis/GROUP/VERSION`.
pub fn version(group: &str, version: &str) -> String {
    match group {
        CORE => path(["api", version]),
        _ => path(["apis", group, version]),
    }
}

/// The path of the objects of one kind, `plural`, that are of the cluster.
pub fn of_cluster(group: &str, version: &str, plural: &str) -> String {
    self::version(group, version) + &path([plural])
}

/// The path of the objects of one kind, `plural`, in a namespace.
pub fn in_namespace(group: &str, version: &str, namespace: &str, plural: &str) -> String {
    self::version(group, version) + &path(["namespaces", namespace, plural])
}

/// The path of Pods in a namespace.
pub fn pods(namespace: &str) -> String {
    in_namespace(CORE, "v1", namespace, "pods")
}

/// One segment, percent-encoded. Names of objects stay as they are. What is empty, `.` or `..` would change the path
/// around it; it becomes a name that no object can have.
pub fn segment(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if !["", ".", ".."].contains(&text) && text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::new();
    if ["", ".", ".."].contains(&text) {
        encoded.push_str("%20");
    }
    for byte in text.bytes() {
        match is_plain(byte) {
            true => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            false => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    Cow::Owned(encoded)
}

/// Why a request is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not sent: it does not have the form of an API path")]
pub struct NoApiPath(String);

/// Subresources that this program reads or writes, its command line included.
pub const SUBRESOURCES: &[&str] =
    &["status", "scale", "eviction", "resize", "ephemeralcontainers", "token", "log", "exec", "approval"];

/// The last check before a request is sent: whether it goes to one collection, object or subresource, with a query that is
/// encoded. A name with `/`, `?` or `#` that nobody has parsed makes a URL of another form. Paths outside of `/api` and
/// `/apis` are not judged.
///
/// # Errors
/// It has another form.
pub fn check(path: &str, query: Option<&str>) -> Result<(), NoApiPath> {
    let refuse = || Err(NoApiPath(format!("{path}{}", query.map(|query| format!("?{query}")).unwrap_or_default())));
    let is_encoded =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:*+%&=,()!'@".contains(&byte));
    if !query.is_none_or(is_encoded) {
        return refuse();
    }
    let mut segments = path.split('/').skip(1).peekable();
    let rest: Vec<&str> = match segments.next() {
        Some("api") => segments.skip(1).collect(),
        Some("apis") => segments.skip(2).collect(),
        _ => return Ok(()),
    };
    let is_good = |segment: &&str| !["", ".", ".."].contains(segment) && is_encoded(segment);
    let below = match rest.as_slice() {
        ["namespaces", _, below @ ..] if !below.is_empty() && !matches!(below, ["status" | "finalize"]) => below,
        all => all,
    };
    match below {
        _ if !path.split('/').skip(1).all(|segment| is_good(&segment)) => refuse(),
        [] | [_] | [_, _] => Ok(()),
        [_, _, subresource] if SUBRESOURCES.contains(subresource) => Ok(()),
        _ => refuse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_valid_names_are_as_one_would_write_them() {
        assert_eq!(pods("shop"), "/api/v1/namespaces/shop/pods");
        assert_eq!(of_cluster("a.io", "v1", "widgets"), "/apis/a.io/v1/widgets");
        assert_eq!(in_namespace("a.io", "v1beta1", "b", "widgets"), "/apis/a.io/v1beta1/namespaces/b/widgets");
        assert!(matches!(segment("web-0.x~y:z_1"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_segment_can_add_a_segment_or_a_query() {
        for (text, encoded) in [
            ("default/podtemplates?x=", "default%2Fpodtemplates%3Fx%3D"),
            ("a#b", "a%23b"),
            ("a%2Fb", "a%252Fb"),
            ("a b\n", "a%20b%0A"),
            ("é", "%C3%A9"),
            ("..", "%20.."),
            (".", "%20."),
            ("", "%20"),
        ] {
            assert_eq!(segment(text), encoded, "{text}");
            assert_eq!(pods(text).split(['/', '?', '#']).count(), pods("a").split('/').count(), "{text}");
        }
    }

    #[test]
    fn only_requests_with_the_form_of_an_api_path_are_sent() {
        for good in [
            "/version",
            "/api/v1",
            "/api/v1/pods",
            "/api/v1/namespaces",
            "/api/v1/namespaces/shop",
            "/api/v1/namespaces/shop/status",
            "/api/v1/namespaces/shop/pods",
            "/api/v1/namespaces/shop/pods/web-0",
            "/api/v1/namespaces/shop/pods/web-0/status",
            "/api/v1/namespaces/status/pods/web-0/eviction",
            "/api/v1/namespaces/shop/pods/web-0/ephemeralcontainers",
            "/api/v1/nodes/n1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/apps/v1/namespaces/shop/deployments/web/scale",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        ] {
            assert_eq!(check(good, Some("dryRun=All&labelSelector=a%3Db%2Cc+in+%28d%29")), Ok(()), "{good}");
        }
        for bad in [
            "/api/v1/namespaces/default/pods/x/podtemplates",
            "/api/v1/namespaces/default/pods/../secrets/x",
            "/api/v1/namespaces//pods",
            "/api/v1/namespaces/a/pods/b/c/d",
            "/apis/apps/v1/namespaces/a/b/deployments/c/scale/x",
            "/api/v1/nodes/n1/proxy",
        ] {
            assert!(check(bad, None).is_err(), "{bad}");
        }
        // What the body's namespace `default/podtemplates?x=` once made.
        assert!(check("/api/v1/namespaces/default/podtemplates", Some("x=/podtemplates?dryRun=All")).is_err());
    }
}
