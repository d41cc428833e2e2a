//! Asks the manager for registry credentials.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    domain::node::pull_secrets::{Answer, CA, CONFIG_MAP, PATH, Question, dns_name},
    k8s::invalid::Invalid,
    runtime::{apply::said, certs},
};

/// For one question.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of an answer. A Secret is at most 1 MiB.
const LARGEST_ANSWER: usize = 4 << 20;
/// Characters of an error that is passed on.
const LONGEST_ERROR: usize = 300;

/// Where the managers are.
#[derive(Clone, Debug)]
pub struct Address {
    /// Their namespace.
    pub namespace: String,
    /// The address of their Service, if kubelet gave it. Else, and if nobody answers there, its name is looked up.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The file with the token of this Pod.
    pub token_file: PathBuf,
}

/// Asks.
pub struct PullSecrets {
    kube: Client,
    address: Address,
}

/// Why there is no answer.
#[derive(Debug)]
pub struct Unanswered {
    /// Whether it is worth asking again soon.
    pub may_pass: bool,
    /// For people.
    pub message: String,
}

impl PullSecrets {
    /// Puts the parts together.
    pub fn new(kube: Client, address: Address) -> Self {
        Self { kube, address }
    }

    /// Asks once.
    ///
    /// # Errors
    /// Nobody answers, or the answer is no.
    pub async fn ask(&self, question: &Question) -> Result<Answer, Unanswered> {
        let late = || Err(format!("no answer within {} s", LIMIT.as_secs()));
        let asked = tokio::time::timeout(LIMIT, self.send(question)).await.unwrap_or_else(|_| late());
        let unanswered = |may_pass, what: &str| {
            let message = format!("registry credentials cannot be had from the manager: {what}");
            Unanswered { may_pass, message }
        };
        match asked {
            Ok((StatusCode::OK, body)) => {
                // The parser's words could quote credentials.
                serde_json::from_slice(&body).map_err(|_| unanswered(false, "its answer cannot be read"))
            }
            Ok((code, body)) => {
                let text: String = String::from_utf8_lossy(&body).chars().take(LONGEST_ERROR).collect();
                Err(unanswered(code.is_server_error(), &format!("{text} ({})", code.as_u16())))
            }
            Err(error) => Err(unanswered(true, &error)),
        }
    }

    async fn send(&self, question: &Question) -> Result<(StatusCode, Bytes), String> {
        let Address { namespace, host, port, token_file } = &self.address;
        let dns_name = dns_name(namespace);
        // Read each time: kubelet renews it.
        let token = tokio::fs::read_to_string(token_file).await;
        let token = token.map_err(|error| format!("the token {}: {error}", token_file.display()))?;
        let api: Api<ConfigMap> = Api::namespaced(self.kube.clone(), namespace);
        let map = api
            .get(CONFIG_MAP)
            .await
            .map_err(|error| format!("ConfigMap {namespace}/{CONFIG_MAP}: {}", said(&error)))?;
        let bundle = map.data.and_then(|mut data| data.remove(CA)).unwrap_or_default();
        let tls = trusting(&bundle).map_err(|error| format!("ConfigMap {namespace}/{CONFIG_MAP}: {error}"))?;

        let mut stream = Err("there is no address".to_owned());
        for host in [host, &dns_name].into_iter().filter(|host| !host.is_empty()) {
            stream = connect(host, *port).await.map_err(|error| format!("{host}, port {port}: {error}"));
            if stream.is_ok() {
                break;
            }
        }
        let name = ServerName::try_from(dns_name.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(tls).connect(name, stream?).await.map_err(|error| format!("TLS: {error}"))?;
        let body = serde_json::to_vec(question).map_err(|error| error.to_string())?;
        let request = Request::post(PATH)
            .header(header::HOST, dns_name)
            .header(header::AUTHORIZATION, format!("Bearer {}", token.trim()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            // What is wrong with it could show the token.
            .map_err(|_| "the token cannot be sent".to_owned())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let code = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
            Ok((code, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        tokio::pin!(exchange, connection);
        tokio::select! {
            answer = &mut exchange => answer,
            end = &mut connection => {
                end.map_err(|error| error.to_string())?;
                exchange.await
            }
        }
    }
}

async fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let late = || Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection within 3 s"));
    tokio::time::timeout(Duration::from_secs(3), TcpStream::connect((host, port))).await.unwrap_or_else(|_| late())
}

/// TLS that trusts these CAs and nobody else.
fn trusting(bundle: &str) -> Result<Arc<ClientConfig>, Invalid> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        let certificate = certificate.map_err(|error| Invalid(error.to_string()))?;
        roots.add(certificate).map_err(|error| Invalid(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(Invalid("it holds no CA yet".into()));
    }
    let config = ClientConfig::builder_with_provider(certs::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Invalid(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
