use super::*;

const NAME: &str = "kruise-webhook-service.kruise-system.svc";
const RENEW: Duration = Duration::from_secs(180 * 24 * 3600);

fn day(n: u64) -> Timestamp {
    "2027-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + DAY * u32::try_from(n).unwrap()
}

fn fresh(now: Timestamp) -> SecretData {
    issue(&Renewal { replace_ca: true, reason: String::new() }, &SecretData::new(), now, NAME).unwrap()
}

fn renewal(data: &SecretData, now: Timestamp) -> Renewal {
    match plan(data, now, NAME, RENEW) {
        Plan::Write(renewal) => renewal,
        Plan::Keep(_) => panic!("kept"),
    }
}

fn material(data: &SecretData, now: Timestamp) -> Material {
    match plan(data, now, NAME, RENEW) {
        Plan::Keep(material) => material,
        Plan::Write(renewal) => panic!("{}", renewal.reason),
    }
}

/// As OpenKruise writes it: RSA 2048, PKCS#1.
fn of_openkruise() -> SecretData {
    let (key, cert) = (include_str!("testdata/rsa-leaf.key"), include_str!("testdata/rsa-leaf.crt"));
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    [("ca-cert.pem", include_str!("testdata/rsa-ca.crt")), ("ca-key.pem", key)]
        .into_iter()
        .chain([("tls.crt", cert), ("cert.pem", cert), ("tls.key", key), ("key.pem", key)])
        .map(|(name, pem)| (name.to_owned(), pem.as_bytes().to_vec()))
        .collect()
}

#[test]
fn an_empty_secret_is_filled() {
    let renewal = renewal(&SecretData::new(), day(0));
    assert!(renewal.replace_ca);
    let data = issue(&renewal, &SecretData::new(), day(0), NAME).unwrap();
    assert_eq!(
        data.keys().collect::<Vec<_>>(),
        ["ca-cert.pem", "ca-key.pem", "cert.pem", "key.pem", "tls.crt", "tls.key"]
    );
    let material = material(&data, day(0));
    assert_eq!(material.not_after, day(365));
    assert_eq!(material.ca_bundle.as_bytes(), data[CA_CERT]);
}

#[test]
fn an_emptied_secret_is_filled_without_forgetting_the_ca_that_is_served() {
    let served = material(&fresh(day(0)), day(0)).ca_cert;
    let renewal = renewal(&SecretData::new(), day(1));
    let base = with_served_ca(&renewal, &SecretData::new(), Some(&served));
    let new = material(&issue(&renewal, &base, day(1), NAME).unwrap(), day(1));
    assert_ne!(new.ca_cert, served);
    assert_eq!(new.ca_bundle, new.ca_cert + &served);
}

#[test]
fn a_renewal_under_the_same_ca_has_no_other_ca_to_remember() {
    let data = fresh(day(0));
    let leaf = Renewal { replace_ca: false, reason: String::new() };
    assert_eq!(with_served_ca(&leaf, &data, Some("other")), data);
}

#[test]
fn what_openkruise_wrote_is_served_as_it_is() {
    let material = material(&of_openkruise(), day(0));
    assert_eq!(material.ca_bundle.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(material.not_after > day(10_000));
}

#[test]
fn a_ca_that_cannot_sign_is_replaced_with_overlap_when_its_leaf_has_to_be() {
    let mut data = of_openkruise();
    data.remove("tls.crt");
    let renewal = renewal(&data, day(0));
    assert!(renewal.replace_ca, "{}", renewal.reason);
    let new = issue(&renewal, &data, day(0), NAME).unwrap();
    assert_eq!(new[PREVIOUS_CA_CERT].trim_ascii(), data[CA_CERT].trim_ascii());
    let material = material(&new, day(0));
    assert_eq!(material.ca_bundle.matches("BEGIN CERTIFICATE").count(), 2);
    assert!(material.ca_bundle.starts_with(&material.ca_cert));
}

#[test]
fn a_leaf_is_renewed_in_time_under_the_same_ca() {
    let data = fresh(day(0));
    material(&data, day(184));
    let renewal = renewal(&data, day(186));
    assert!(!renewal.replace_ca, "{}", renewal.reason);
    let new = issue(&renewal, &data, day(186), NAME).unwrap();
    assert_eq!((&new[CA_KEY], &new[CA_CERT]), (&data[CA_KEY], &data[CA_CERT]));
    assert_ne!(new[CERT[0]], data[CERT[0]]);
    assert_eq!(material(&new, day(186)).not_after, day(186 + 365));
    assert!(!new.contains_key(PREVIOUS_CA_CERT));
}

/// E30 of SidecarSet.
#[test]
fn sw_e30_a_ca_is_replaced_a_year_before_its_end_and_overlaps_until_its_end() {
    let mut data = fresh(day(0));
    for n in [180, 360, 3280] {
        let now = day(n);
        let Plan::Write(renewal) = plan(&data, now, NAME, RENEW) else { continue };
        data = issue(&renewal, &data, now, NAME).unwrap();
    }
    assert!(!data.contains_key(PREVIOUS_CA_CERT));
    let old_ca = data[CA_CERT].clone();
    let renewal = renewal(&data, day(3286));
    assert!(renewal.replace_ca, "{}", renewal.reason);
    let mut data = issue(&renewal, &data, day(3286), NAME).unwrap();
    assert_eq!(data[PREVIOUS_CA_CERT], old_ca);
    assert_eq!(material(&data, day(3286)).ca_bundle.matches("BEGIN").count(), 2);
    // The next serving certificate keeps the overlap, the one after the end of the old CA drops it.
    for (n, overlap) in [(3480, true), (3670, false)] {
        let Plan::Write(renewal) = plan(&data, day(n), NAME, RENEW) else { panic!("kept on day {n}") };
        assert!(!renewal.replace_ca);
        data = issue(&renewal, &data, day(n), NAME).unwrap();
        assert_eq!(data.contains_key(PREVIOUS_CA_CERT), overlap, "day {n}");
    }
}

#[test]
fn broken_content_is_renewed() {
    let good = fresh(day(0));
    let other = fresh(day(0));
    let with = |key: &str, value: &[u8]| {
        let mut data = good.clone();
        data.insert(key.to_owned(), value.to_vec());
        data
    };
    for (data, replace_ca, reason) in [
        (with(CERT[0], b"x"), false, "tls.crt and tls.key: "),
        (with(CERT[0], b""), false, "the Secret has no tls.crt"),
        (with(KEY[0], &[0xff]), false, "the Secret has no tls.key"),
        (with(KEY[0], &other[KEY[0]]), false, "tls.crt and tls.key: "),
        (with(CA_CERT, b"x"), true, "ca-cert.pem: "),
        (with(CA_CERT, &good[CERT[0]]), true, "ca-cert.pem: it is no CA certificate"),
        // Somebody else's CA without its key: nothing can be signed under it.
        (with(CA_CERT, &other[CA_CERT]), true, "tls.crt is not good for kruise-webhook-service.kruise-system.svc"),
    ] {
        let renewal = renewal(&data, day(0));
        assert_eq!(renewal.replace_ca, replace_ca, "{}", renewal.reason);
        assert!(renewal.reason.starts_with(reason), "{}", renewal.reason);
        material(&issue(&renewal, &data, day(0), NAME).unwrap(), day(0));
    }
}

#[test]
fn another_dns_name_needs_another_leaf() {
    let data = fresh(day(0));
    for name in ["kruise-webhook-service.other.svc", "203.0.113.7"] {
        let Plan::Write(renewal) = plan(&data, day(0), name, RENEW) else { panic!("kept for {name}") };
        assert!(!renewal.replace_ca);
        let new = issue(&renewal, &data, day(0), name).unwrap();
        assert!(matches!(plan(&new, day(0), name, RENEW), Plan::Keep(_)), "{name}");
    }
}

#[test]
fn a_renewal_is_never_due_at_once() {
    let data = fresh(day(0));
    assert!(matches!(plan(&data, day(0), NAME, LEAF_VALIDITY * 5), Plan::Keep(_)));
}

#[test]
fn renew_before_texts() {
    assert_eq!(parse_renew_before("180d"), Some(DAY * 180));
    assert_eq!(parse_renew_before("6m"), Some(DAY * 180));
    assert_eq!(parse_renew_before("1y"), Some(DAY * 365));
    for bad in ["", "d", "10", "1w", "-1d", "1.5d", "99999999999d", "4294967295y"] {
        assert_eq!(parse_renew_before(bad), None, "{bad}");
    }
}
