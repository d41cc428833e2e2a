//! Who may call the webhook, where the cluster can prove its API server: clients with a certificate of one CA and one
//! name.
//!
//! Both are needed. The CA of a cluster signs certificates of users, nodes and workloads too, so the CA alone would let
//! all of them in. The file is read again every minute, so that a CA can be replaced; one that cannot be read changes
//! nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::runtime::certs;

/// How often the file is read again.
const REREAD: Duration = Duration::from_secs(60);

/// Why callers cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// One flag without the other.
    #[error("{0} is set without {1}; want both: the CA of a cluster signs certificates of users too")]
    Half(&'static str, &'static str),
    /// The file is not there.
    #[error("--webhook-client-ca {0:?}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// It is no list of CAs.
    #[error("--webhook-client-ca {0:?}: {1}; want CA certificates in PEM")]
    Invalid(PathBuf, String),
}

/// Judges the certificates of clients.
#[derive(Debug)]
pub struct Callers {
    file: PathBuf,
    name: String,
    by_ca: RwLock<Arc<dyn ClientCertVerifier>>,
}

impl Callers {
    /// What `--webhook-client-ca` and `--webhook-client-name` ask for; None if neither is set.
    ///
    /// # Errors
    /// One is set without the other, or the file cannot be used.
    pub fn of(ca: &str, name: &str) -> Result<Option<Arc<Self>>, CallersError> {
        const FLAGS: [&str; 2] = ["--webhook-client-ca", "--webhook-client-name"];
        match (ca.is_empty(), name.is_empty()) {
            (true, true) => Ok(None),
            (false, true) => Err(CallersError::Half(FLAGS[0], FLAGS[1])),
            (true, false) => Err(CallersError::Half(FLAGS[1], FLAGS[0])),
            (false, false) => {
                let by_ca = RwLock::new(read(Path::new(ca))?);
                Ok(Some(Arc::new(Self { file: ca.into(), name: name.to_owned(), by_ca })))
            }
        }
    }

    /// Reads the file again and again, for ever.
    pub async fn follow(&self) {
        loop {
            tokio::time::sleep(REREAD).await;
            if let Err(error) = self.reload() {
                tracing::warn!(%error, "clients are judged by the CA that was read before");
            }
        }
    }

    fn reload(&self) -> Result<(), CallersError> {
        let newer = read(&self.file)?;
        *self.by_ca.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    fn by_ca(&self) -> Arc<dyn ClientCertVerifier> {
        self.by_ca.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, CallersError> {
    let pem = fs::read(file).map_err(|error| CallersError::Unreadable(file.into(), error))?;
    let invalid = |error: &dyn std::fmt::Display| CallersError::Invalid(file.into(), error.to_string());
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&pem) {
        roots.add(der.map_err(|error| invalid(&error))?).map_err(|error| invalid(&error))?;
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), certs::provider())
        .build()
        .map_err(|error| invalid(&error))
}

/// The names that a certificate is for: the common names of its subject, and its DNS names.
fn names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = parse_x509_certificate(der) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = common.map(str::to_owned).collect();
    if let Ok(Some(others)) = certificate.subject_alternative_name() {
        names.extend(others.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    names
}

impl ClientCertVerifier for Callers {
    /// None: the CA may change, and a client that has one certificate shows it without a hint.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.by_ca().verify_client_cert(end_entity, intermediates, now)?;
        let names = names(end_entity);
        if !names.contains(&self.name) {
            tracing::info!(?names, wanted = self.name, "a client of the right CA and another name was refused");
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_ca().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_ca().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_ca().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
