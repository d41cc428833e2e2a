//! What is read of certificates.

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject};

/// When a certificate ends; None if it cannot be read.
pub fn end(der: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// When each certificate of a PEM text ends.
///
/// # Errors
/// What cannot be read.
pub fn ends(pem: &str) -> Result<Vec<Timestamp>, String> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|der| end(&der.map_err(|error| error.to_string())?).ok_or_else(|| "not a certificate".to_owned()))
        .collect()
}
