//! Certificates of our TLS servers: an own CA and a serving certificate, kept in a Secret.
//!
//! Pure but for the random numbers of new keys: [`plan`] says whether what the Secret holds can be served, [`issue`]
//! makes what it should hold. Private keys live in the Secret and in memory, never in a file.
//!
//! A CA is replaced with an overlap: the one before stays in the Secret, and thereby where clients look for it, for as
//! long as it is valid, so that no replica fails a call while it still serves the older certificate. The keys of the
//! Secret are OpenKruise's and what it issued is served as it is; only [`PREVIOUS_CA_CERT`] is ours.

use std::{collections::BTreeMap, str, sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::{
    RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use tokio::sync::watch;

use crate::k8s::certificate;

pub mod external;

/// Secret key of the CA's private key.
pub const CA_KEY: &str = "ca-key.pem";
/// Secret key of the CA's certificate.
pub const CA_CERT: &str = "ca-cert.pem";
/// Secret key of the certificate of the CA before this one.
pub const PREVIOUS_CA_CERT: &str = "ca-cert-previous.pem";
/// Secret keys of the serving certificate; both hold the same.
pub const CERT: [&str; 2] = ["tls.crt", "cert.pem"];
/// Secret keys of its private key; both hold the same.
pub const KEY: [&str; 2] = ["tls.key", "key.pem"];

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Validity of a serving certificate.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Validity of a CA.
pub const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY.as_secs());
/// A CA is replaced when less than this is left, so that it never ends before a certificate it signed.
pub const CA_RENEW_BEFORE: Duration = LEAF_VALIDITY;
/// Certificates begin this much in the past, for machines whose clocks are behind.
const BACKDATE: Duration = Duration::from_secs(60 * 60);

/// Serves from now on with this configuration. What is sent is there from the first call on, and changed in place after it.
pub fn serve(tls: &watch::Sender<Option<RustlsConfig>>, config: ServerConfig) {
    let config = Arc::new(config);
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
}

/// The content of the Secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// What to do about the Secret.
#[derive(Debug)]
pub enum Plan {
    /// Serve what it holds.
    Keep(Material),
    /// Write new content, made by [`issue`].
    Write(Renewal),
}

/// Why and how the content has to be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Whether the CA is replaced too.
    pub replace_ca: bool,
    /// For the log.
    pub reason: String,
}

/// What a replica serves with.
#[derive(Clone, Debug)]
pub struct Material {
    /// Certificate and private key, checked to belong together.
    pub certified: Arc<CertifiedKey>,
    /// The CA that signed it, in PEM.
    pub ca_cert: String,
    /// All CAs that clients have to trust, in PEM: this one, then the one before.
    pub ca_bundle: String,
    /// When the certificate ends.
    pub not_after: Timestamp,
}

/// Why certificates cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// The library refuses to make one.
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// A time outside of what certificates can express.
    #[error("cannot issue a certificate for the time {0}")]
    Time(Timestamp),
}

/// Why a certificate or key in the Secret cannot be used.
#[derive(Debug, thiserror::Error)]
enum BadContent {
    #[error("the Secret has no {0}")]
    Missing(&'static str),
    #[error("{0}: {1}")]
    Pem(&'static str, rustls_pki_types::pem::Error),
    #[error("{0}")]
    Certificate(String),
    #[error("it is no CA certificate")]
    NoCa,
    #[error("{cert} and {key}: {0}", cert = CERT[0], key = KEY[0])]
    KeyPair(rustls::Error),
    #[error("{0}")]
    Chain(String),
}

/// Judges the content of the Secret. `renew_before` longer than half a serving certificate's life counts as half, else
/// every new certificate would be due at once.
pub fn plan(data: &SecretData, now: Timestamp, dns_name: &str, renew_before: Duration) -> Plan {
    let write = |replace_ca, reason: String| Plan::Write(Renewal { replace_ca, reason });
    let Some(ca_cert) = pem_text(data, CA_CERT) else {
        return write(true, format!("the Secret has no {CA_CERT}"));
    };
    let ca = match Ca::read(ca_cert) {
        Ok(ca) => ca,
        Err(error) => return write(true, format!("{CA_CERT}: {error}")),
    };
    if ca.not_after < after(now, CA_RENEW_BEFORE) {
        return write(true, format!("the CA ends at {}", ca.not_after));
    }
    // A CA that we cannot sign with still vouches for the certificate it signed.
    let cannot_sign = !ca.signs_with(pem_text(data, CA_KEY).unwrap_or_default());
    let certified = match read_leaf(data) {
        Ok(certified) => certified,
        Err(error) => return write(cannot_sign, error.to_string()),
    };
    let renew_before = renew_before.min(LEAF_VALIDITY / 2);
    for at in [now, after(now, renew_before)] {
        if let Err(error) = verify(&certified, &ca.der, dns_name, at) {
            return write(cannot_sign, format!("{} is not good for {dns_name} at {at}: {error}", CERT[0]));
        }
    }
    let not_after = certified.end_entity_cert().ok().and_then(|der| certificate::end(der)).unwrap_or(now);
    let mut ca_bundle = with_line_end(ca_cert);
    if let Some(previous) = pem_text(data, PREVIOUS_CA_CERT)
        && is_valid_ca(previous, now)
    {
        ca_bundle.push_str(&with_line_end(previous));
    }
    Plan::Keep(Material { certified: Arc::new(certified), ca_cert: with_line_end(ca_cert), ca_bundle, not_after })
}

/// What a renewal starts from. A CA that is replaced is remembered as the one before; if somebody has emptied the Secret,
/// that is the one we still serve with: every replica has to keep it trusted until the last one has changed over.
pub fn with_served_ca(renewal: &Renewal, data: &SecretData, served: Option<&str>) -> SecretData {
    let mut data = data.clone();
    if let Some(served) = served.filter(|_| renewal.replace_ca) {
        data.insert(CA_CERT.into(), served.as_bytes().to_vec());
    }
    data
}

/// Makes the content that a renewal asks for.
///
/// # Errors
/// The library refuses; nothing that a caller could mend.
pub fn issue(renewal: &Renewal, data: &SecretData, now: Timestamp, dns_name: &str) -> Result<SecretData, CertError> {
    let mut new = SecretData::new();
    let previous = if renewal.replace_ca { CA_CERT } else { PREVIOUS_CA_CERT };
    if let Some(previous) = pem_text(data, previous)
        && is_valid_ca(previous, now)
    {
        new.insert(PREVIOUS_CA_CERT.into(), with_line_end(previous).into_bytes());
    }
    let (ca_key, ca_cert) = match (pem_text(data, CA_KEY), pem_text(data, CA_CERT)) {
        (Some(key), Some(cert)) if !renewal.replace_ca => (key.to_owned(), cert.to_owned()),
        _ => new_ca(now)?,
    };
    let issuer = Issuer::from_ca_cert_pem(&ca_cert, KeyPair::from_pem(&ca_key)?)?;

    let mut params = CertificateParams::new(vec![dns_name.to_owned(), "localhost".to_owned()])?;
    params.distinguished_name = common_name(dns_name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, now, LEAF_VALIDITY)?;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?;

    new.insert(CA_KEY.into(), ca_key.into_bytes());
    new.insert(CA_CERT.into(), ca_cert.into_bytes());
    for name in CERT {
        new.insert(name.into(), cert.pem().into_bytes());
    }
    for name in KEY {
        new.insert(name.into(), key.serialize_pem().into_bytes());
    }
    Ok(new)
}

/// Reads `CERTS_RENEW_BEFORE`: a whole number and `d` (days), `m` (30 days) or `y` (365 days).
pub fn parse_renew_before(text: &str) -> Option<Duration> {
    let (number, days) = match text.strip_suffix('d') {
        Some(number) => (number, 1),
        None => match text.strip_suffix('m') {
            Some(number) => (number, 30),
            None => (text.strip_suffix('y')?, 365),
        },
    };
    let number: u32 = number.parse().ok()?;
    DAY.checked_mul(number.checked_mul(days)?)
}

fn new_ca(now: Timestamp) -> Result<(String, String), CertError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("webhook-cert-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, CA_VALIDITY)?;
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok((key.serialize_pem(), cert.pem()))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, validity: Duration) -> Result<(), CertError> {
    let seconds = u64::try_from(now.as_second()).map_err(|_| CertError::Time(now))?;
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = now - BACKDATE;
    params.not_after = now + validity;
    Ok(())
}

/// A CA certificate that was read.
struct Ca {
    der: CertificateDer<'static>,
    not_after: Timestamp,
    public_key: Vec<u8>,
}

impl Ca {
    fn read(pem: &str) -> Result<Self, BadContent> {
        let broken = |error: &dyn std::fmt::Display| BadContent::Certificate(error.to_string());
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| broken(&error))?;
        let (_, cert) = x509_parser::parse_x509_certificate(&der).map_err(|error| broken(&error))?;
        if !cert.is_ca() {
            return Err(BadContent::NoCa);
        }
        let not_after = cert.validity().not_after.timestamp();
        let not_after = Timestamp::from_second(not_after).map_err(|error| broken(&error))?;
        let public_key = cert.public_key().raw.to_vec();
        Ok(Self { der, not_after, public_key })
    }

    /// Whether this is its key, of a kind that we can sign with.
    fn signs_with(&self, key: &str) -> bool {
        KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == self.public_key)
    }
}

fn is_valid_ca(pem: &str, now: Timestamp) -> bool {
    Ca::read(pem).is_ok_and(|ca| ca.not_after > now)
}

fn read_leaf(data: &SecretData) -> Result<CertifiedKey, BadContent> {
    let cert = pem_text(data, CERT[0]).ok_or(BadContent::Missing(CERT[0]))?;
    let key = pem_text(data, KEY[0]).ok_or(BadContent::Missing(KEY[0]))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(cert.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| BadContent::Pem(CERT[0], error))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| BadContent::Pem(KEY[0], error))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(BadContent::KeyPair)
}

/// The cryptography of all our TLS.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS 1.2 and later with one certificate.
///
/// # Errors
/// The library refuses the versions; it does not.
pub fn tls_config(certified: &Arc<CertifiedKey>) -> Result<ServerConfig, rustls::Error> {
    tls_config_for(certified, None)
}

/// The same, for clients that have to show a certificate if there is somebody to judge it.
///
/// # Errors
/// The library refuses the versions; it does not.
pub fn tls_config_for(
    certified: &Arc<CertifiedKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13, &TLS12])?;
    let judges = clients.is_some();
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::clone(certified))));
    if judges {
        // A resumed session would not be judged again after its CA was taken away.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// What a client that trusts the CA would say.
fn verify(leaf: &CertifiedKey, ca: &CertificateDer<'_>, dns_name: &str, at: Timestamp) -> Result<(), BadContent> {
    let broken = |error: &dyn std::fmt::Display| BadContent::Chain(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone().into_owned()).map_err(|error| broken(&error))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
        .build()
        .map_err(|error| broken(&error))?;
    let name = ServerName::try_from(dns_name).map_err(|error| broken(&error))?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default()));
    let (end_entity, intermediates) = leaf.cert.split_first().ok_or_else(|| broken(&"no certificate"))?;
    verifier.verify_server_cert(end_entity, intermediates, &name, &[], at).map_err(|error| broken(&error))?;
    Ok(())
}

fn pem_text<'d>(data: &'d SecretData, key: &str) -> Option<&'d str> {
    data.get(key).and_then(|bytes| str::from_utf8(bytes).ok()).filter(|text| !text.trim().is_empty())
}

fn with_line_end(pem: &str) -> String {
    format!("{}\n", pem.trim())
}

fn after(now: Timestamp, duration: Duration) -> Timestamp {
    now.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
