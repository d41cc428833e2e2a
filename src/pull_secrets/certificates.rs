//! Keeps the server's certificate and the CAs that daemons trust in step, on every replica alike.
//!
//! Daemons get a CA first, and only then is a certificate of it served.

use std::time::Duration;

use axum_server::tls_rustls::RustlsConfig;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    domain::node::pull_secrets::{CA, CONFIG_MAP},
    runtime::{
        certificate_secret::{CertificateSecret, SecretError},
        certs::{self, Material},
    },
};

/// Certificates age without an event, and a replica that has renewed one informs nobody.
const RESYNC: Duration = Duration::from_secs(10 * 60);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Why a pass did not succeed. All of them are tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is served cannot be had from the Secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Daemons cannot get the CA.
    #[error("ConfigMap {CONFIG_MAP}: {0}")]
    ConfigMap(kube::Error),
    /// A certificate cannot be served.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Runs for ever. `tls` holds a configuration from the first success on and is changed in place after that.
pub async fn keep(secret: CertificateSecret, tls: watch::Sender<Option<RustlsConfig>>) {
    let mut serving: Option<Material> = None;
    let mut retry = FIRST_RETRY;
    loop {
        let wait = match sync(&secret, &mut serving, &tls).await {
            Ok(()) => {
                retry = FIRST_RETRY;
                RESYNC
            }
            Err(error) => {
                tracing::warn!(%error, "daemons cannot be served registry credentials, trying again");
                let wait = retry;
                retry = (retry * 2).min(LAST_RETRY);
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn sync(
    secret: &CertificateSecret,
    serving: &mut Option<Material>,
    tls: &watch::Sender<Option<RustlsConfig>>,
) -> Result<(), Error> {
    let material = secret.material(serving.as_ref()).await?;
    let mut bundle = material.ca_bundle.clone();
    // What we still serve has to stay trusted, even if somebody emptied the Secret.
    if let Some(old) = serving.as_ref().filter(|old| !bundle.contains(&old.ca_cert)) {
        bundle.push_str(&old.ca_cert);
    }
    publish(secret, &bundle).await?;
    if serving.as_ref().is_some_and(|old| old.certified.cert == material.certified.cert) {
        return Ok(());
    }
    certs::serve(tls, certs::tls_config(&material.certified)?);
    tracing::info!(not_after = %material.not_after, "serving a new certificate for registry credentials");
    *serving = Some(material);
    Ok(())
}

async fn publish(secret: &CertificateSecret, bundle: &str) -> Result<(), Error> {
    let api = Api::<ConfigMap>::namespaced(secret.client.clone(), &secret.namespace);
    let current = api.get(CONFIG_MAP).await.map_err(Error::ConfigMap)?;
    if current.data.as_ref().and_then(|data| data.get(CA)).map(String::as_str) == Some(bundle) {
        return Ok(());
    }
    let metadata = json!({ "resourceVersion": current.metadata.resource_version });
    let patch = Patch::Merge(json!({ "metadata": metadata, "data": { CA: bundle } }));
    api.patch(CONFIG_MAP, &PatchParams::default(), &patch).await.map_err(Error::ConfigMap)?;
    Ok(())
}
