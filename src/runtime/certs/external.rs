//! Certificates that somebody else renews, as cert-manager writes them. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::{CERT, KEY, Material, SecretData, pem_text, read_leaf, verify, with_line_end};
use crate::k8s::certificate;

/// Key, and name of the file, of the CA's certificate.
pub const CA: &str = "ca.crt";
/// What has to be there.
pub const KEYS: [&str; 3] = [CERT[0], KEY[0], CA];

/// Why what somebody else keeps cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Something is not there, or is empty.
    #[error("{} is missing; want {}, in PEM", .0.join(", "), KEYS.join(", "))]
    Missing(Vec<&'static str>),
    /// It is there and cannot be used.
    #[error("{0}")]
    Invalid(String),
}

/// What is to be served.
///
/// # Errors
/// A part is missing, key and certificate do not belong together, or no CA vouches for the certificate at this time and
/// under this name.
pub fn material(data: &SecretData, now: Timestamp, dns_name: &str) -> Result<Material, Unusable> {
    let missing: Vec<&str> = KEYS.into_iter().filter(|key| pem_text(data, key).is_none()).collect();
    if !missing.is_empty() {
        return Err(Unusable::Missing(missing));
    }
    let certified = read_leaf(data).map_err(|error| Unusable::Invalid(error.to_string()))?;
    let ca = pem_text(data, CA).unwrap_or_default();
    let invalid = |error: &dyn std::fmt::Display| Unusable::Invalid(format!("{CA}: {error}"));
    let authorities: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(ca.as_bytes()).collect::<Result<_, _>>().map_err(|error| invalid(&error))?;
    let mut refused = invalid(&"it holds no certificate");
    for authority in &authorities {
        let Err(error) = verify(&certified, authority, dns_name, now) else {
            let end = certified.end_entity_cert().ok().and_then(|der| certificate::end(der));
            let not_after = end.ok_or_else(|| Unusable::Invalid(format!("{}: it has no end", CERT[0])))?;
            let ca_cert = with_line_end(ca);
            return Ok(Material { certified: Arc::new(certified), ca_bundle: ca_cert.clone(), ca_cert, not_after });
        };
        refused = Unusable::Invalid(format!("{} is not good for {dns_name} at {now} by {CA}: {error}", CERT[0]));
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runtime::certs;

    const NAME: &str = "webhook.example.svc";

    fn now() -> Timestamp {
        Timestamp::from_second(1_760_000_000).unwrap()
    }

    fn secret(dns_name: &str) -> SecretData {
        let certs::Plan::Write(renewal) = certs::plan(&SecretData::new(), now(), dns_name, Duration::ZERO) else {
            panic!()
        };
        let made = certs::issue(&renewal, &SecretData::new(), now(), dns_name).unwrap();
        [("tls.crt", "tls.crt"), ("tls.key", "tls.key"), ("ca.crt", certs::CA_CERT)]
            .map(|(key, from)| (key.to_owned(), made[from].clone()))
            .into()
    }

    #[test]
    fn what_cert_manager_writes_is_served_until_it_ends() {
        let data = secret(NAME);
        let material = material(&data, now(), NAME).unwrap();
        assert_eq!(material.not_after.as_second() - now().as_second(), 365 * 86_400);
        let late = Timestamp::from_second(now().as_second() + 366 * 86_400).unwrap();
        let error = super::material(&data, late, NAME).unwrap_err().to_string();
        assert!(error.starts_with("tls.crt is not good for webhook.example.svc at 2026-"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let message = |missing: &str| format!("{missing} is missing; want tls.crt, tls.key, ca.crt, in PEM");
        let refused = |data: &SecretData| material(data, now(), NAME).unwrap_err().to_string();
        assert_eq!(refused(&SecretData::new()), message("tls.crt, tls.key, ca.crt"));
        let mut data = secret(NAME);
        data.insert("tls.key".into(), b" \n".to_vec());
        data.remove("ca.crt");
        assert_eq!(refused(&data), message("tls.key, ca.crt"));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let refused = |data: &SecretData| material(data, now(), NAME).unwrap_err().to_string();
        assert!(refused(&secret("other.example.svc")).starts_with("tls.crt is not good for webhook.example.svc at "));
        let with = |key: &str, value: Vec<u8>| {
            let mut data = secret(NAME);
            data.insert(key.into(), value);
            data
        };
        assert!(refused(&with("ca.crt", secret(NAME)["ca.crt"].clone())).contains("by ca.crt"), "another CA");
        assert!(refused(&with("tls.key", secret(NAME)["tls.key"].clone())).starts_with("tls.crt and tls.key: "));
        assert!(refused(&with("tls.crt", b"x".to_vec())).starts_with("tls.crt"));
        assert_eq!(refused(&with("ca.crt", b"x".to_vec())), "ca.crt: it holds no certificate");
    }
}
