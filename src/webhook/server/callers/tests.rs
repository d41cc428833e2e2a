use std::net::{Ipv4Addr, SocketAddr};

use axum_server::tls_rustls::RustlsConfig;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ClientConfig;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{
    api::feature_gates::FeatureGates,
    runtime::{clock, connections::Limits},
    webhook::{
        Context,
        server::{Shared, metrics::Metrics, serve_within},
    },
};

const SERVER: &str = "webhook.example.svc";
const NAME: &str = "kube-apiserver-webhooks";

/// A CA that signs certificates of clients.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("cluster CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for this common name and these DNS names, with its key.
    fn client(&self, name: &str, dns: &[&str]) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(dns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = subject(name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// The webhook's own server, and what a client needs to trust it.
struct Server {
    address: SocketAddr,
    roots: Arc<RootCertStore>,
    _stop: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    fn start(callers: Option<Arc<Callers>>) -> Self {
        let (now, none) = (clock::now().wall, certs::SecretData::new());
        let certs::Plan::Write(renewal) = certs::plan(&none, now, SERVER, Duration::ZERO) else { panic!() };
        let secret = certs::issue(&renewal, &none, now, SERVER).unwrap();
        let certs::Plan::Keep(material) = certs::plan(&secret, now, SERVER, Duration::ZERO) else { panic!() };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(material.ca_cert.as_bytes()).unwrap()).unwrap();

        let client = crate::runtime::fake_api::nobody();
        let context = Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default()).0;
        let (stop, shutdown) = tokio::sync::watch::channel(false);
        let shared = Shared::new(Arc::new(context), Metrics::default(), shutdown);
        let callers = callers.map(|callers| callers as Arc<dyn ClientCertVerifier>);
        let tls = RustlsConfig::from_config(Arc::new(certs::tls_config_for(&material.certified, callers).unwrap()));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(serve_within(Limits::default(), listener, tls, shared));
        Self { address, roots: roots.into(), _stop: stop, task }
    }

    /// Whether a client with this certificate is answered.
    async fn answers(&self, shown: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>) -> bool {
        let builder = ClientConfig::builder_with_provider(certs::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = match shown {
            Some((cert, key)) => builder.with_client_auth_cert(vec![cert], key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(SERVER).unwrap();
        let Ok(mut tls) = TlsConnector::from(Arc::new(config)).connect(name, tcp).await else { return false };
        // With TLS 1.3 the client's part of the handshake is over before the server has judged its certificate.
        let _ = tls.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer).await;
        answer.starts_with(b"HTTP/1.1 200 ")
    }
}

struct Files {
    _directory: tempfile::TempDir,
    ca: String,
}

fn file(text: &str) -> Files {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.crt");
    fs::write(&ca, text).unwrap();
    Files { ca: ca.to_str().unwrap().to_owned(), _directory: directory }
}

#[tokio::test]
async fn only_a_client_with_the_right_ca_and_the_right_name_is_answered() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let files = file(&ours.pem);
    let callers = Callers::of(&files.ca, NAME).unwrap();
    let server = Server::start(callers);
    assert!(!server.answers(None).await, "no certificate");
    assert!(!server.answers(Some(theirs.client(NAME, &[]))).await, "another CA");
    assert!(!server.answers(Some(ours.client("system:node:n1", &["n1"]))).await, "a user of the same CA");
    assert!(!server.answers(Some(ours.client("", &["kube-apiserver-webhooks.example"]))).await, "a longer name");
    assert!(server.answers(Some(ours.client(NAME, &[]))).await, "the common name");
    assert!(server.answers(Some(ours.client("other", &[NAME]))).await, "a DNS name");
}

#[tokio::test]
async fn without_the_flags_nobody_has_to_show_a_certificate() {
    assert!(Callers::of("", "").unwrap().is_none());
    assert!(Server::start(None).answers(None).await);
}

#[tokio::test]
async fn the_ca_can_be_replaced_and_a_bad_file_changes_nothing() {
    let (before, after) = (Authority::new(), Authority::new());
    let files = file(&before.pem);
    let callers = Callers::of(&files.ca, NAME).unwrap().unwrap();
    let server = Server::start(Some(callers.clone()));
    for bad in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        fs::write(&files.ca, bad).unwrap();
        assert!(callers.reload().is_err(), "{bad}");
        assert!(server.answers(Some(before.client(NAME, &[]))).await);
    }
    fs::write(&files.ca, &after.pem).unwrap();
    callers.reload().unwrap();
    assert!(server.answers(Some(after.client(NAME, &[]))).await);
    assert!(!server.answers(Some(before.client(NAME, &[]))).await);
}

#[test]
fn one_flag_without_the_other_and_a_bad_file_are_errors_at_start() {
    let error = |ca: &str, name: &str| Callers::of(ca, name).unwrap_err().to_string();
    let half = error("", "x");
    assert!(half.starts_with("--webhook-client-name is set without --webhook-client-ca; want both"), "{half}");
    let half = error("/ca.crt", "");
    assert!(half.starts_with("--webhook-client-ca is set without --webhook-client-name; want both"), "{half}");
    assert!(error("/does/not/exist", "x").starts_with("--webhook-client-ca \"/does/not/exist\": "));
    let files = file("no PEM");
    assert!(error(&files.ca, "x").ends_with("want CA certificates in PEM"), "{}", error(&files.ca, "x"));
}
