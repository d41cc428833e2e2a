//! What is read of certificates.

use jiff::Timestamp;
use rustls_pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};

/// When a certificate ends; None if it cannot be read.
pub fn end(der: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Why the certificates of a PEM text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It is no PEM text.
    #[error("{0}")]
    Pem(pem::Error),
    /// A section of it holds something else.
    #[error("not a certificate")]
    Other,
}

/// When each certificate of a PEM text ends.
///
/// # Errors
/// What cannot be read.
pub fn ends(text: &str) -> Result<Vec<Timestamp>, CertificateError> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .map(|der| end(&der.map_err(CertificateError::Pem)?).ok_or(CertificateError::Other))
        .collect()
}
