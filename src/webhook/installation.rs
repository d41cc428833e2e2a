//! Keeps the certificates, the registration and the TLS server in step, on every replica alike.
//!
//! Order is what makes a rotation fail no call: the API servers are told about a CA first, and only when they know it
//! is a certificate of that CA served. Replicas agree through the Secret; who loses a race reads what the winner wrote.

use std::{sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use kube::{
    Api, Client,
    api::{GetParams, Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    api::feature_gates::FeatureGates,
    k8s::rbac::Rule,
    runtime::{
        certificate_secret::{CertificateSecret, SecretError},
        certs::{self, Material},
    },
    webhook::{
        CONFIGURATION, SECRET,
        configuration::{self, Endpoint},
        metrics::Metrics,
    },
};

/// How long API servers may take to follow a changed registration.
const SETTLE: Duration = Duration::from_secs(5);
/// Everything is looked at again this often, whatever the watches say; certificates age without an event.
const RESYNC: Duration = Duration::from_secs(10 * 60);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What keeping the registration needs, cluster-wide.
pub const RBAC: &[Rule] = &[Rule::new(
    &["admissionregistration.k8s.io"],
    &["mutatingwebhookconfigurations"],
    &["get", "list", "watch", "patch"],
)
.named(&[CONFIGURATION])];

/// What keeping the certificates needs in our own namespace.
pub const OWN_NAMESPACE_RBAC: &[Rule] = &[
    Rule::new(&[""], &["secrets"], &["get", "list", "watch", "patch"]).named(&[SECRET]),
    // Whether a daemon is ready on a node, for requests of method Auto.
    Rule::new(&[""], &["pods"], &["list"]),
];

/// Why a pass did not succeed. All of them are tried again.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// What is served cannot be had from the Secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The configuration cannot be read or written.
    #[error("MutatingWebhookConfiguration {CONFIGURATION}: {0}")]
    Configuration(kube::Error),
    /// The configuration is not there, and we may not create one.
    #[error("MutatingWebhookConfiguration {CONFIGURATION} does not exist; apply the manifests again")]
    NoConfiguration,
    /// A certificate cannot be served.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// What one replica keeps in step.
pub struct Installation {
    /// Client.
    pub client: Client,
    /// Where the certificates are.
    pub secret: CertificateSecret,
    /// How the API server reaches us.
    pub endpoint: Endpoint,
    /// The cluster's feature gates.
    pub gates: FeatureGates,
    /// Told when the certificate ends.
    pub metrics: Metrics,
}

impl Installation {
    /// Runs for ever. `tls` holds a configuration from the first success on and is changed in place after that.
    pub async fn run(&self, tls: &watch::Sender<Option<RustlsConfig>>) {
        let mut serving: Option<Material> = None;
        let mut events = self.events();
        let mut retry = FIRST_RETRY;
        loop {
            let wait = match self.sync(&mut serving, tls).await {
                Ok(()) => {
                    retry = FIRST_RETRY;
                    RESYNC
                }
                Err(error) => {
                    tracing::warn!(%error, "the webhook is not in step, trying again");
                    let wait = retry;
                    retry = (retry * 2).min(LAST_RETRY);
                    wait
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Some(()) = events.next() => {}
            }
        }
    }

    /// Something about the two objects may have changed.
    fn events(&self) -> BoxStream<'static, ()> {
        let only = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let secret = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), &self.secret.namespace);
        let secret = watcher(secret, only(&self.secret.name));
        let configuration = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(self.client.clone());
        let configuration = watcher(configuration, only(CONFIGURATION));
        // Failed watches back off and come back by themselves; the resync covers the time between.
        let quiet = |stream: BoxStream<'static, Result<(), watcher::Error>>| {
            stream.filter_map(async |result| result.ok()).boxed()
        };
        futures::stream::select(
            quiet(secret.default_backoff().touched_objects().map_ok(|_| ()).boxed()),
            quiet(configuration.default_backoff().touched_objects().map_ok(|_| ()).boxed()),
        )
        .boxed()
    }

    async fn sync(
        &self,
        serving: &mut Option<Material>,
        tls: &watch::Sender<Option<RustlsConfig>>,
    ) -> Result<(), SyncError> {
        let material = self.secret.material(serving.as_ref()).await?;
        let mut ca_bundle = material.ca_bundle.clone();
        // What we still serve has to stay trusted, even if somebody emptied the Secret.
        if let Some(old) = serving.as_ref().filter(|old| !ca_bundle.contains(&old.ca_cert)) {
            ca_bundle.push_str(&old.ca_cert);
        }
        let had_another_ca = self.register(&ca_bundle).await?;
        if serving.as_ref().is_some_and(|old| old.certified.cert == material.certified.cert) {
            return Ok(());
        }
        if had_another_ca || serving.as_ref().is_some_and(|old| old.ca_cert != material.ca_cert) {
            tokio::time::sleep(SETTLE).await;
        }
        let config = Arc::new(certs::tls_config(&material.certified)?);
        tls.send_if_modified(|current| match current {
            Some(current) => {
                current.reload_from_config(config);
                false
            }
            None => {
                *current = Some(RustlsConfig::from_config(config));
                true
            }
        });
        tracing::info!(not_after = %material.not_after, "serving a new certificate");
        self.metrics.certificate_expiry.set(material.not_after.as_second());
        *serving = Some(material);
        Ok(())
    }

    /// Brings the registration in line; tells whether API servers may still hold another CA.
    async fn register(&self, ca_bundle: &str) -> Result<bool, SyncError> {
        let base =
            kube::core::Request::new("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations".to_owned());
        let failed = |error: kube::Error| match error {
            kube::Error::Api(status) if status.code == 404 => SyncError::NoConfiguration,
            error => SyncError::Configuration(error),
        };
        let build = |error| SyncError::Configuration(kube::Error::BuildRequest(error));
        // Raw JSON: entries of others may have fields that this library does not know.
        let get = base.get(CONFIGURATION, &GetParams::default()).map_err(build)?;
        let current: Value = self.client.request(get).await.map_err(failed)?;
        let operations = configuration::plan(&current, &self.gates, &self.endpoint, ca_bundle);
        if operations.is_empty() {
            return Ok(false);
        }
        let patch: json_patch::Patch = serde_json::from_value(operations.into())
            .map_err(|error| SyncError::Configuration(kube::Error::SerdeError(error)))?;
        let params = PatchParams { field_manager: Some("kruise-webhook".into()), ..PatchParams::default() };
        let patch = base.patch(CONFIGURATION, &params, &Patch::<()>::Json(patch)).map_err(build)?;
        let _: Value = self.client.request(patch).await.map_err(failed)?;
        tracing::info!("the webhook configuration was brought in line");
        Ok(configuration::had_another_ca(&current, &self.endpoint, ca_bundle))
    }
}
