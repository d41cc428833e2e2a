//! Our accounts in the CEL of admission policies: by the name of the ServiceAccount, in whatever namespace.
//!
//! The manifests are static and kustomize does not rewrite what is inside an expression, so the namespace is taken from the
//! caller's own username: a policy holds wherever the installation is.

/// ServiceAccount of the manager.
pub const MANAGER: &str = "kruise-manager";
/// ServiceAccount of the webhook.
pub const WEBHOOK: &str = "kruise-webhook";
/// ServiceAccount of the daemon.
pub const DAEMON: &str = "kruise-daemon";

/// The components that the daemon's events name, one per controller: a policy admits these and no others.
pub const DAEMON_COMPONENTS: [&str; 4] = [EVENTS_OF_REQUESTS, EVENTS_OF_IMAGES, EVENTS_OF_PROBES, EVENTS_OF_CONTAINERS];
/// Component of events about restarts.
pub const EVENTS_OF_REQUESTS: &str = "kruise-daemon-crr";
/// Component of events about images.
pub const EVENTS_OF_IMAGES: &str = "kruise-daemon-imagepuller";
/// Component of events about probes.
pub const EVENTS_OF_PROBES: &str = "kruise-daemon-podprobe";
/// Component of events about what containers run.
pub const EVENTS_OF_CONTAINERS: &str = "kruise-daemon-containermeta";

const USERNAME: &str = "request.userInfo.username";

/// The namespace of a caller that is a ServiceAccount.
pub const NAMESPACE: &str = "request.userInfo.username.split(':')[2]";

/// Whether the caller is one of these accounts.
pub fn is_one_of(accounts: &[&str]) -> String {
    // Neither namespaces nor names of ServiceAccounts have colons.
    let ends: Vec<String> = accounts.iter().map(|account| format!("{USERNAME}.endsWith(':{account}')")).collect();
    let ends = ends.join(" || ");
    let ends = if accounts.len() > 1 { format!("({ends})") } else { ends };
    format!("{USERNAME}.startsWith('system:serviceaccount:') && {ends}")
}

/// Whether an expression of [`is_one_of`] names a user, for example `system:serviceaccount:kruise-system:kruise-manager`.
pub fn names(expression: &str, username: &str) -> bool {
    let mut parts = username.strip_prefix("system:serviceaccount:").into_iter().flat_map(|rest| rest.splitn(2, ':'));
    let (Some(_), Some(account)) = (parts.next(), parts.next()) else { return false };
    expression.contains(&format!("{USERNAME}.endsWith(':{account}')"))
}

/// Whether a user name is that of one of our accounts, in the namespace of the installation.
pub fn is(username: &str, namespace: &str, account: &str) -> bool {
    let mut parts = username.strip_prefix("system:serviceaccount:").into_iter().flat_map(|rest| rest.splitn(2, ':'));
    parts.next() == Some(namespace) && parts.next() == Some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_named_in_every_namespace_and_by_no_part_of_its_name() {
        let both = is_one_of(&[MANAGER, DAEMON]);
        for (expression, username, want) in [
            (is_one_of(&[MANAGER]), "system:serviceaccount:kruise-system:kruise-manager", true),
            (is_one_of(&[MANAGER]), "system:serviceaccount:elsewhere:kruise-manager", true),
            (is_one_of(&[MANAGER]), "system:serviceaccount:kruise-system:prefix-kruise-manager", false),
            (is_one_of(&[MANAGER]), "system:serviceaccount:kruise-system:manager", false),
            (is_one_of(&[MANAGER]), "kruise-manager", false),
            (is_one_of(&[MANAGER]), "oidc:kruise-manager", false),
            (both.clone(), "system:serviceaccount:a:kruise-daemon", true),
            (both, "system:serviceaccount:a:kruise-webhook", false),
        ] {
            assert_eq!(names(&expression, username), want, "{expression} {username}");
        }
    }

    #[test]
    fn an_account_is_ours_in_the_namespace_of_the_installation_alone() {
        for (username, want) in [
            ("system:serviceaccount:kruise-system:kruise-manager", true),
            ("system:serviceaccount:elsewhere:kruise-manager", false),
            ("system:serviceaccount:kruise-system:kruise-manager-2", false),
            ("system:serviceaccount:kruise-system:a:kruise-manager", false),
            ("kruise-system:kruise-manager", false),
            ("", false),
        ] {
            assert_eq!(is(username, "kruise-system", MANAGER), want, "{username}");
        }
    }
}
