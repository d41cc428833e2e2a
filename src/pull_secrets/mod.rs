//! Registry credentials for the daemons, served by the manager: daemons have no right on Secrets.
//!
//! A daemon asks over TLS, with a token that is bound to its Pod and good for nothing else, for one entry of its own
//! NodeImage. Every replica of the manager answers; it holds no credentials, but reads the Secret when it is asked, and
//! lists or watches none. What is decided is in `domain::pull_secrets`. Credentials are in no object, log, event or error.
//!
//! Owns: the Secret with the server's certificates and the ConfigMap with the CAs that vouch for them.

pub mod certificates;
pub mod server;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use crate::{domain::node::pull_secrets::CONFIG_MAP, k8s::rbac::Rule, runtime::metrics::Metrics as AllMetrics};

/// The Secret with the certificates.
pub const SECRET: &str = "kruise-pull-secrets-certs";
/// The port of the managers.
pub const PORT: u16 = 9877;
/// The daemons' ServiceAccount, in our own namespace.
pub const DAEMON_ACCOUNT: &str = "kruise-daemon";

/// What serving needs in the API, cluster-wide.
pub const RBAC: &[Rule] = &[
    Rule::new(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
    Rule::new(&["apps.kruise.io"], &["nodeimages", "imagepulljobs"], &["get"]),
];

/// The same for the Secrets themselves. It is a role of its own, so that an administrator can bind it in some namespaces
/// instead of all.
pub const SECRETS_RBAC: &[Rule] = &[Rule::new(&[""], &["secrets"], &["get"])];

/// What it needs in our own namespace.
pub const OWN_NAMESPACE_RBAC: &[Rule] = &[
    Rule::new(&[""], &["secrets"], &["get", "patch"]).named(&[SECRET]),
    Rule::new(&[""], &["configmaps"], &["get", "patch"]).named(&[CONFIG_MAP]),
];

/// Counts answers.
#[derive(Clone, Default)]
pub struct Metrics {
    answers: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: &'static str,
}

impl Metrics {
    /// Makes them part of `/metrics`.
    pub fn register(&self, all: &AllMetrics) {
        all.register(
            "kruise_pull_secret_requests",
            "Requests of daemons for registry credentials, by result",
            &self.answers,
        );
    }

    fn count(&self, result: &'static str) {
        self.answers.get_or_create(&Labels { result }).inc();
    }
}
