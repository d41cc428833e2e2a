//! Certificates that somebody else renews (gate EnableExternalCerts): from the Secret, or from a directory.
//!
//! - Owns: nothing. The registration is shipped complete ([`configuration::complete`](super::configuration::complete)),
//!   whoever renews the certificates writes the CA into it, and this role has no right to. Where it may read the registration,
//!   the component `external-certs` is not installed: then entries that are missing are reported, since nobody adds them, and
//!   those that another program has left, since nobody removes them.
//! - Never: serves before there is a certificate that `ca.crt` vouches for. One that is bad takes nothing away: the one
//!   before stays.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use rustls::server::danger::ClientCertVerifier;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    api::feature_gates::FeatureGates,
    runtime::{
        certs::{
            self, Material, SecretData,
            external::{KEYS, Unusable, material},
        },
        clock,
    },
    webhook::server::{
        callers::Callers,
        configuration::{self, Endpoint},
        contest::Contest,
        handler::Phase,
        installation,
        metrics::Metrics,
        retry::Retry,
    },
};

/// How often the certificates are looked at whatever the watch says. Files have no watch.
const RESYNC: Duration = Duration::from_secs(60);

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A Secret.
    Secret {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// A directory with a file for each key.
    Directory(PathBuf),
}

/// Why nothing new is served. Worth trying again.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    /// The Secret cannot be read.
    #[error("Secret {name} in namespace {namespace}: {error}")]
    Secret {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// What the API server says.
        error: kube::Error,
    },
    /// The Secret is not there.
    #[error("Secret {name} in namespace {namespace} does not exist; with EnableExternalCerts somebody else makes it")]
    NoSecret {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// A file cannot be read.
    #[error("--webhook-cert-dir: {0:?}: {1}")]
    File(PathBuf, io::Error),
    /// What was read cannot be served.
    #[error("{0}: {1}")]
    Unusable(String, Unusable),
    /// The library refuses it.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The binding of the policy that protects against deletion.
    #[error(transparent)]
    Binding(#[from] installation::SyncError),
}

/// Names of entries of the webhook configurations that were reported last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReportedEntries {
    /// That are not there.
    missing: Vec<&'static str>,
    /// That call the webhook, which does not know them.
    left: Vec<String>,
}

/// What one replica serves.
pub struct External {
    /// Client.
    pub client: Client,
    /// Where the certificates are.
    pub source: Source,
    /// How the API server reaches us: the certificate has to be for that name.
    pub endpoint: Endpoint,
    /// The cluster's feature gates.
    pub gates: FeatureGates,
    /// Who may call.
    pub callers: Option<Arc<Callers>>,
    /// Set to the end of the certificate.
    pub metrics: Metrics,
    /// The last error, for whoever waits for the first certificate.
    pub problem: watch::Sender<String>,
}

impl External {
    /// Runs for ever. `tls` holds a configuration from the first certificate on and is changed in place after that.
    pub async fn run(&self, tls: &watch::Sender<Option<RustlsConfig>>) {
        let mut serving: Option<Material> = None;
        let mut events = self.events();
        let mut retry = Retry::new();
        let (mut reported, mut may_look) = (ReportedEntries::default(), true);
        loop {
            let pass = self.sync(&mut serving, tls).await.map(|()| RESYNC);
            let wait = retry.wait(pass, "no new certificate is served", &self.problem);
            may_look = may_look && self.report_entries(&mut reported).await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Some(()) = events.next() => {}
            }
        }
    }

    async fn sync(
        &self,
        serving: &mut Option<Material>,
        tls: &watch::Sender<Option<RustlsConfig>>,
    ) -> Result<(), ExternalError> {
        let data = self.read().await?;
        let found = material(&data, clock::now().wall, &self.endpoint.dns_name());
        let found = found.map_err(|error| ExternalError::Unusable(self.source.to_string(), error))?;
        if serving.as_ref().is_none_or(|old| old.certified.cert != found.certified.cert) {
            let callers = self.callers.clone().map(|callers| callers as Arc<dyn ClientCertVerifier>);
            certs::serve(tls, certs::tls_config_for(&found.certified, callers)?);
            tracing::info!(not_after = %found.not_after, "serving a new certificate");
            self.metrics.certificate_expiry.set(found.not_after.as_second());
            *serving = Some(found);
        }
        // It is looked at once a minute.
        installation::bind(&self.client, &self.gates, &mut Contest::default()).await?;
        Ok(())
    }

    /// Reports entries that nobody adds: the manifests have all of them only with the component `external-certs`; and those that
    /// nobody removes. `reported` is what was reported last. False: the registration cannot be read, as with that component,
    /// which ships it complete.
    async fn report_entries(&self, reported: &mut ReportedEntries) -> bool {
        let mut now = ReportedEntries::default();
        for phase in [Phase::Mutating, Phase::Validating] {
            let current = match installation::read(&self.client, phase).await {
                Ok(current) => current,
                Err(kube::Error::Api(status)) if status.code == 403 => return false,
                Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
                Err(error) => {
                    tracing::warn!(%error, "looking for the entries of the webhook configurations");
                    return true;
                }
            };
            now.missing.extend(configuration::missing(&current, phase, &self.gates));
            let left = configuration::leftovers(&current, phase, &self.endpoint);
            now.left.extend(left.into_iter().map(|left| left.name));
        }
        let ReportedEntries { missing, left } = &now;
        self.metrics.entries_missing.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
        if !missing.is_empty() && *missing != reported.missing {
            tracing::error!(
                ?missing,
                "the webhook configurations lack entries, and with EnableExternalCerts the webhook adds none: apply the component \
                 external-certs (with Helm: externalCerts.enabled=true)"
            );
        }
        if !left.is_empty() && *left != reported.left {
            tracing::warn!(
                entries = ?left,
                "another program has left entries that call the webhook, and with EnableExternalCerts the webhook removes none: \
                 remove them yourself, by kubectl edit"
            );
        }
        *reported = now;
        true
    }

    async fn read(&self) -> Result<SecretData, ExternalError> {
        match &self.source {
            Source::Secret { namespace, name } => {
                let api = Api::<Secret>::namespaced(self.client.clone(), namespace);
                let (namespace, name) = (namespace.clone(), name.clone());
                match api.get_opt(&name).await {
                    Ok(Some(secret)) => {
                        Ok(secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect())
                    }
                    Ok(None) => Err(ExternalError::NoSecret { namespace, name }),
                    Err(error) => Err(ExternalError::Secret { namespace, name, error }),
                }
            }
            Source::Directory(directory) => {
                let mut data = SecretData::new();
                for key in KEYS {
                    let file = directory.join(key);
                    match std::fs::read(&file) {
                        Ok(bytes) => drop(data.insert(key.to_owned(), bytes)),
                        // It is named with all others that are missing.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(ExternalError::File(file, error)),
                    }
                }
                Ok(data)
            }
        }
    }

    /// The Secret may have changed. Failed watches come back by themselves; the resync covers the time between.
    fn events(&self) -> BoxStream<'static, ()> {
        let Source::Secret { namespace, name } = &self.source else { return futures::stream::pending().boxed() };
        let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client.clone(), namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher(api, only).default_backoff().touched_objects();
        events.filter_map(async |result| result.ok().map(|_| ())).boxed()
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Secret { namespace, name } => write!(f, "Secret {name} in namespace {namespace}"),
            Self::Directory(directory) => write!(f, "--webhook-cert-dir {directory:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
