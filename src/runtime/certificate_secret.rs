//! A Secret in which replicas share the certificates of a TLS server: who loses a race reads what the winner wrote.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    certs::{self, Material, Plan, SecretData},
    clock,
};

/// How often a lost race for the Secret is run again within one pass.
const SECRET_ATTEMPTS: u32 = 5;

/// Why certificates cannot be had from the Secret. Worth trying again.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The Secret cannot be read or written.
    #[error("Secret {name} in namespace {namespace}: {error}")]
    Secret {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// What the API server says.
        error: kube::Error,
    },
    /// The Secret is not there, and we may not create one.
    #[error("Secret {name} in namespace {namespace} does not exist; apply the manifests again")]
    NoSecret {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// Another replica was faster every time.
    #[error("Secret {0} keeps changing")]
    Contended(String),
    /// A certificate cannot be made.
    #[error(transparent)]
    Certificate(#[from] certs::CertError),
}

/// The Secret, and what it is to hold.
pub struct CertificateSecret {
    /// Client.
    pub client: Client,
    /// Our namespace.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// The name under which clients reach the server.
    pub dns_name: String,
    /// How long before its end a serving certificate is renewed.
    pub renew_before: Duration,
}

impl CertificateSecret {
    /// What the Secret holds, renewed if need be. `serving` is what this replica serves now.
    ///
    /// # Errors
    /// The Secret cannot be read or written.
    pub async fn material(&self, serving: Option<&Material>) -> Result<Material, SecretError> {
        let api = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let failed = |error| SecretError::Secret { namespace: self.namespace.clone(), name: self.name.clone(), error };
        let dns_name = &self.dns_name;
        for _ in 0..SECRET_ATTEMPTS {
            let Some(secret) = api.get_opt(&self.name).await.map_err(failed)? else {
                return Err(SecretError::NoSecret { namespace: self.namespace.clone(), name: self.name.clone() });
            };
            let data: SecretData = secret.data.unwrap_or_default().into_iter().map(|(key, v)| (key, v.0)).collect();
            let now = clock::now().wall;
            let renewal = match certs::plan(&data, now, dns_name, self.renew_before) {
                Plan::Keep(material) => return Ok(material),
                Plan::Write(renewal) => renewal,
            };
            tracing::info!(reason = %renewal.reason, replace_ca = renewal.replace_ca, "issuing a certificate");
            let base = certs::with_served_ca(&renewal, &data, serving.map(|serving| serving.ca_cert.as_str()));
            let new = certs::issue(&renewal, &base, now, dns_name)?;
            let patch = secret_patch(&data, &new, secret.metadata.resource_version.as_deref());
            match api.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(SecretError::Contended(self.name.clone()))
    }
}

/// A merge patch that holds only on the version that was read, and takes away keys that are gone.
fn secret_patch(old: &SecretData, new: &SecretData, resource_version: Option<&str>) -> Value {
    let gone = (old.contains_key(certs::PREVIOUS_CA_CERT) && !new.contains_key(certs::PREVIOUS_CA_CERT))
        .then_some((certs::PREVIOUS_CA_CERT, Value::Null));
    let data: BTreeMap<&str, Value> =
        new.iter().map(|(key, value)| (key.as_str(), json!(STANDARD.encode(value)))).chain(gone).collect();
    json!({ "metadata": { "resourceVersion": resource_version }, "data": data })
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;

    use super::*;
    use crate::runtime::lock;

    #[test]
    fn a_secret_is_patched_on_the_version_that_was_read() {
        let data = |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), b"x".to_vec())).collect::<SecretData>();
        let patch = secret_patch(&data(&["ca-cert-previous.pem", "mine"]), &data(&["tls.crt"]), Some("5"));
        assert_eq!(
            patch,
            json!({"metadata": {"resourceVersion": "5"}, "data": {"tls.crt": "eA==", "ca-cert-previous.pem": null}})
        );
    }

    /// D39 of SidecarSet: of replicas that start at once one writes; the other gets a 409 and reads what that has written.
    #[tokio::test]
    async fn d39_replicas_that_start_at_once_serve_the_same_certificate() {
        const REPLICAS: usize = 2;
        let secret = Arc::new(Mutex::new(json!({"metadata": {"name": "certs", "resourceVersion": "1"}, "data": {}})));
        let (answers, reads) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let together = Arc::new(tokio::sync::Barrier::new(REPLICAS));
        let (stored, log) = (secret.clone(), answers.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (secret, answers, together) = (stored.clone(), log.clone(), together.clone());
            let is_first = request.method() == Method::GET && reads.fetch_add(1, Ordering::Relaxed) < REPLICAS;
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, answer) = {
                    let mut secret = lock(&secret);
                    let patch: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let version = secret["metadata"]["resourceVersion"].clone();
                    if parts.method == Method::GET {
                        (200, secret.clone())
                    } else if patch["metadata"]["resourceVersion"] == version {
                        json_patch::merge(&mut secret, &patch);
                        secret["metadata"]["resourceVersion"] = "2".into();
                        (200, secret.clone())
                    } else {
                        (409, json!({"kind": "Status", "status": "Failure", "code": 409, "message": "changed"}))
                    }
                };
                if is_first {
                    // Nobody writes before all have read that there is nothing.
                    together.wait().await;
                }
                lock(&answers).push(format!("{} {code}", parts.method));
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        let replica = || CertificateSecret {
            client: client.clone(),
            namespace: "kruise-system".into(),
            name: "certs".into(),
            dns_name: "webhook.example.svc".into(),
            renew_before: Duration::ZERO,
        };
        let (one, other) = (replica(), replica());
        let (one, other) = tokio::join!(one.material(None), other.material(None));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((&one.certified.cert, &one.ca_bundle), (&other.certified.cert, &other.ca_bundle));
        let mut answers = lock(&answers).clone();
        answers.sort();
        assert_eq!(answers, ["GET 200", "GET 200", "GET 200", "GET 200", "PATCH 200", "PATCH 409"]);
    }
}
