//! The webhook: its registration, its certificates, who answers behind its Service, and the way of one request.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::Value;

use super::{Fact, Finding, Lack, Verdict, finding, ok, unknown};
use crate::{api::kinds::KINDS, k8s::certificate, plugin::rules::JsonPointer};

/// Certificates that end sooner than this are worth a warning: they should have been renewed long before.
const ENDS_SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The check of entries that are not ours.
const OTHERS: &str = "other webhooks";
/// How many Services of other webhooks are looked at.
pub const MOST_SERVICES: usize = 50;

/// Checks the registration of the webhooks. `wanted` are the entries of this release; `is_shipped` tells, by the name of an
/// entry, whether the manifests contain it. The running webhook adds the others.
pub fn webhook_configuration(
    kind: &str,
    config: &Fact,
    wanted: &[Value],
    is_shipped: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    const CHECK: &str = "webhook configuration";
    let config = match config {
        Ok(config) => config,
        Err(Lack::NotFound) => {
            let text = format!("the {kind} does not exist: requests are neither checked nor completed");
            return vec![finding(
                CHECK,
                Verdict::Fail,
                text,
                "apply the manifests of this release: kubectl apply -k manifests/",
            )];
        }
        Err(lack) => return vec![unknown(CHECK, &format!("the {kind}"), lack)],
    };
    let entries = config.list("/webhooks");
    let mut findings = Vec::new();
    for wanted in wanted {
        let name = wanted.text("/name");
        let Some(entry) = entries.iter().find(|entry| entry.text("/name") == name) else {
            let advice = if is_shipped(name) {
                "kubectl apply -k manifests/, then look at the webhook's log"
            } else {
                "the running webhook adds it: look at its log (kubectl -n kruise-system logs -l control-plane=webhook); with \
                 EnableExternalCerts it adds none: apply the component external-certs"
            };
            findings.push(match wanted.text("/failurePolicy") {
                "Fail" => finding(CHECK, Verdict::Fail, format!("{name} is missing"), advice),
                _ => finding(CHECK, Verdict::Warn, format!("{name} is missing, or its feature gate is off"), advice),
            });
            continue;
        };
        if entry.text("/clientConfig/caBundle").is_empty() {
            let advice = "the webhook role writes it: kubectl -n kruise-system logs -l control-plane=webhook";
            findings.push(finding(CHECK, Verdict::Fail, format!("{name} has no CA bundle"), advice));
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, format!("{kind}: {} entries, each with a CA", wanted.len())));
    }
    findings
}

/// Entries of our configurations that another program has left there, each with the kinds that this release does not serve.
/// Who calls them gets no answer. With certificates that somebody else renews, the webhook writes no registration.
pub fn leftovers(left: &[(String, Vec<String>)], is_external: bool) -> Vec<Finding> {
    let judge = |(name, kinds): &(String, Vec<String>)| {
        let text = format!("{name} calls the webhook, which does not know it: another program has left it");
        let advice = match kinds.as_slice() {
            _ if is_external => {
                "with EnableExternalCerts the webhook writes no registration: remove the entry yourself, by \
                                 kubectl edit"
                    .to_owned()
            }
            [] => "the webhook removes it when no other program holds the Lease kruise-manager".to_owned(),
            kinds => format!(
                "this release does not serve {}; the webhook removes it when there are none and no other program holds \
                 the Lease kruise-manager",
                kinds.join(", ")
            ),
        };
        finding("webhook configuration", Verdict::Warn, text, advice)
    };
    left.iter().map(judge).collect()
}

/// A Service that entries of webhook configurations call about Pods or our kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The entries, as CONFIGURATION/ENTRY.
    pub entries: Vec<String>,
    /// Whether requests are refused while it does not answer.
    pub fails: bool,
    /// Whether it is a name of something outside of the cluster (ExternalName), which has no EndpointSlices.
    pub is_elsewhere: bool,
}

/// The Services that entries of any configuration call about Pods or our kinds, but for `own`, which other checks look at.
pub fn called(configs: &[Fact], own: (&str, &str)) -> Vec<Called> {
    let mut found: Vec<Called> = Vec::new();
    for config in configs.iter().flatten().flat_map(|list| list.list("/items")) {
        for entry in config.list("/webhooks").iter().filter(|entry| entry.list("/rules").iter().any(is_of_interest)) {
            let service = ["namespace", "name"].map(|field| entry.text(&format!("/clientConfig/service/{field}")));
            if service[1].is_empty() || (service[0], service[1]) == own {
                continue;
            }
            let at = found.iter().position(|called| [called.namespace.as_str(), &called.name] == service);
            let at = at.unwrap_or_else(|| {
                let [namespace, name] = service.map(str::to_owned);
                found.push(Called { namespace, name, entries: Vec::new(), fails: false, is_elsewhere: false });
                found.len() - 1
            });
            if let Some(called) = found.get_mut(at) {
                called.entries.push(format!("{}/{}", config.text("/metadata/name"), entry.text("/name")));
                // Absent means Fail.
                called.fails |= entry.text("/failurePolicy") != "Ignore";
            }
        }
    }
    found
}

/// Webhook configurations that cannot be listed: nothing is known of the entries in them.
pub fn unlisted(plurals: &[&str], configs: &[Fact]) -> Vec<Finding> {
    let unlisted = |(plural, configs): (&&str, &Fact)| match configs {
        Ok(_) => None,
        Err(lack) => Some(unknown(OTHERS, &format!("the {plural}"), lack)),
    };
    plurals.iter().zip(configs).filter_map(unlisted).collect()
}

/// What is not looked at of what other entries call about Pods or our kinds: Services beyond a number, and URLs. `ours` are
/// the names of our configurations, which other checks look at.
pub fn not_looked_at(configs: &[Fact], ours: &[&str], services: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let more = services.saturating_sub(MOST_SERVICES);
    if more > 0 {
        let services = if more == 1 { "Service is called" } else { "Services are called" };
        let looked = if more == 1 { "was" } else { "were" };
        let text = format!("{more} more {services} about Pods or our kinds, and {looked} not looked at");
        findings.push(finding(OTHERS, Verdict::Unknown, text, ""));
    }
    let lists = configs.iter().flatten().flat_map(|list| list.list("/items"));
    let entries = lists
        .filter(|config| !ours.contains(&config.text("/metadata/name")))
        .flat_map(|config| config.list("/webhooks"))
        .filter(|entry| entry.list("/rules").iter().any(is_of_interest));
    let urls = entries.filter(|entry| !entry.text("/clientConfig/url").is_empty()).count();
    if urls > 0 {
        let entries = if urls == 1 { "entry calls" } else { "entries call" };
        let text = format!("{urls} {entries} a URL about Pods or our kinds: who answers there cannot be seen");
        findings.push(finding(OTHERS, Verdict::Unknown, text, ""));
    }
    findings
}

/// Whether a rule is about Pods or kinds of ours.
fn is_of_interest(rule: &Value) -> bool {
    let ours = || KINDS.iter().filter(|kind| kind.definition.is_some());
    // Before the subresource: `*`, `*/*` and `*/status` name every kind.
    let plurals: Vec<&str> = rule
        .list("/resources")
        .iter()
        .filter_map(Value::as_str)
        .map(|resource| resource.split('/').next().unwrap_or_default())
        .collect();
    let names = |plural: &str| plurals.contains(&plural) || plurals.contains(&"*");
    rule.list("/apiGroups").iter().filter_map(Value::as_str).any(|group| match group {
        "" => names("pods"),
        "*" => names("pods") || ours().any(|kind| names(kind.plural)),
        group => ours().any(|kind| kind.group == group),
    })
}

/// Entries of configurations with other names than ours that call our own Service where it serves nothing: they are
/// answered, but not about a request, and nobody removes them.
pub fn strays(configs: &[Fact], own: (&str, &str), ours: &[&str], is_served: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for config in configs.iter().flatten().flat_map(|list| list.list("/items")) {
        let name = config.text("/metadata/name");
        if ours.contains(&name) {
            continue;
        }
        for entry in config.list("/webhooks") {
            let of_service = |field: &str| entry.text(&format!("/clientConfig/service/{field}"));
            let path = of_service("path");
            if (of_service("namespace"), of_service("name")) != own || is_served(path) {
                continue;
            }
            // Absent means Fail.
            let (verdict, then) = match entry.text("/failurePolicy") {
                "Ignore" => (Verdict::Warn, "its requests go on without an answer"),
                _ => (Verdict::Fail, "its requests are refused"),
            };
            let entry = entry.text("/name");
            let text = format!("{name}/{entry} calls the webhook at {path:?}, where nothing is served: {then}");
            let advice = "if the program that has made it is not installed any more, delete its webhook configuration";
            findings.push(finding(OTHERS, verdict, text, advice));
        }
    }
    findings
}

/// Services that nobody answers behind, with the EndpointSlices of each.
pub fn unanswered(services: &[(Called, Fact)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (Called { namespace, name, entries, fails, is_elsewhere }, slices) in services {
        if *is_elsewhere {
            let text = format!("Service {namespace}/{name} is an ExternalName: who answers there cannot be seen");
            findings.push(finding(OTHERS, Verdict::Unknown, text, ""));
        } else if let Err(lack) = slices {
            findings.push(unknown(OTHERS, &format!("the EndpointSlices of Service {namespace}/{name}"), lack));
        } else if ready_addresses(slices).next().is_none() {
            let (verdict, then) = match fails {
                true => (Verdict::Fail, "their requests are refused"),
                false => (Verdict::Warn, "their requests go on after a time-out"),
            };
            let text = format!("nobody answers behind Service {namespace}/{name} for {}: {then}", entries.join(", "));
            let advice = format!(
                "start the program that serves them (kubectl -n {namespace} get service,pods), or, if it is not installed \
                 any more, delete its webhook configuration"
            );
            findings.push(finding(OTHERS, verdict, text, advice));
        }
    }
    if findings.is_empty() && !services.is_empty() {
        let text = format!("{} Services are called about Pods or our kinds, and answer", services.len());
        findings.push(ok(OTHERS, text));
    }
    findings
}

/// All CAs that the registrations trust, in PEM.
pub fn ca_bundle(configs: &[Fact]) -> String {
    let mut bundles: Vec<String> = configs
        .iter()
        .flatten()
        .flat_map(|config| config.list("/webhooks"))
        .filter_map(|entry| STANDARD.decode(entry.text("/clientConfig/caBundle")).ok())
        .filter_map(|pem| String::from_utf8(pem).ok())
        .filter(|pem| !pem.trim().is_empty())
        .collect();
    bundles.sort();
    bundles.dedup();
    bundles.join("\n")
}

/// The CAs of the registration.
pub fn ca_certificates(bundle: &str, now: Timestamp) -> Option<Finding> {
    const CHECK: &str = "webhook CA";
    if bundle.is_empty() {
        return None;
    }
    let ends = match certificate::ends(bundle) {
        Ok(ends) if !ends.is_empty() => ends,
        Ok(_) => return Some(finding(CHECK, Verdict::Fail, "the CA bundle holds no certificate", RENEW)),
        Err(error) => return Some(finding(CHECK, Verdict::Fail, format!("the CA bundle: {error}"), RENEW)),
    };
    // An old CA may end beside its successor.
    ends.into_iter().max().map(|end| validity(CHECK, "", end, now))
}

const RENEW: &str = "the webhook role renews it: kubectl -n kruise-system logs -l control-plane=webhook";

fn validity(check: &'static str, at: &str, end: Timestamp, now: Timestamp) -> Finding {
    let left = end.duration_since(now);
    let days = left.as_hours() / 24;
    let at = if at.is_empty() { String::new() } else { format!("{at}: ") };
    if left.is_negative() {
        finding(check, Verdict::Fail, format!("{at}ended at {end}"), RENEW)
    } else if left < jiff::SignedDuration::try_from(ENDS_SOON).unwrap_or_default() {
        finding(check, Verdict::Warn, format!("{at}ends in {days} days, at {end}"), RENEW)
    } else {
        ok(check, format!("{at}valid for {days} days"))
    }
}

/// Ready addresses behind a Service, from its EndpointSlices, each with its slice.
fn ready_addresses(slices: &Fact) -> impl Iterator<Item = (&Value, &str)> {
    let slices = slices.as_ref().map_or(&[][..], |slices| slices.list("/items")).iter();
    slices.flat_map(|slice| {
        // Absent means ready.
        let is_ready =
            |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
        let addresses =
            slice.list("/endpoints").iter().filter(is_ready).flat_map(|endpoint| endpoint.list("/addresses"));
        addresses.filter_map(move |address| Some((slice, address.as_str()?)))
    })
}

/// Ready addresses and ports behind a Service, from its EndpointSlices. One without a number has every port.
pub fn addresses(slices: &Fact) -> Vec<(String, u16)> {
    let mut found = BTreeSet::new();
    for (slice, address) in ready_addresses(slices) {
        let ports = slice.list("/ports").iter().filter_map(|port| u16::try_from(port.int("/port")).ok());
        found.extend(ports.map(|port| (address.to_owned(), port)));
    }
    found.into_iter().collect()
}

/// Who answers behind the webhook's Service.
pub fn endpoints(slices: &Fact) -> Finding {
    const CHECK: &str = "webhook endpoints";
    if let Err(lack) = slices {
        return unknown(CHECK, "the EndpointSlices of the webhook's Service", lack);
    }
    match addresses(slices).as_slice() {
        [] => finding(
            CHECK,
            Verdict::Fail,
            "nobody answers behind the webhook's Service: requests are refused",
            "kubectl -n kruise-system get pods -l control-plane=webhook",
        ),
        [only] => finding(
            CHECK,
            Verdict::Warn,
            format!("one replica answers ({}); while it is away, requests are refused", only.0),
            "kubectl -n kruise-system scale deployment kruise-webhook --replicas=2",
        ),
        many => ok(CHECK, format!("{} replicas answer", many.len())),
    }
}

/// A TLS handshake with one replica, trusting the registered CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// It went well; when the certificate ends.
    Valid(Timestamp),
    /// The certificate is not one that an API server accepts.
    Refused(String),
    /// From here the address cannot be reached, which says nothing about the cluster.
    Unreachable(String),
}

/// The certificates that are served.
pub fn serving_certificates(handshakes: &[(String, Handshake)], now: Timestamp) -> Vec<Finding> {
    const CHECK: &str = "serving certificate";
    let judge = |(address, handshake): &(String, Handshake)| match handshake {
        Handshake::Valid(end) => validity(CHECK, address, *end, now),
        Handshake::Refused(error) => finding(CHECK, Verdict::Fail, format!("{address}: {error}"), RENEW),
        Handshake::Unreachable(_) => finding(
            CHECK,
            Verdict::Unknown,
            format!("{address} cannot be reached from here; the admission check below goes through the API server"),
            "",
        ),
    };
    handshakes.iter().map(judge).collect()
}

/// What came of a request, in a dry run, for a Pod that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 201 if it was accepted.
    pub code: u16,
    /// The words.
    pub message: String,
}

/// The whole way of an admission: API server, Service, TLS, handler. Our handler refuses a Pod that does not exist.
pub fn admission(answer: &Result<Answer, Lack>) -> Finding {
    const CHECK: &str = "admission";
    let answer = match answer {
        Ok(answer) => answer,
        Err(lack) => return unknown(CHECK, "the answer to a dry run", lack),
    };
    let by_webhook = answer.message.contains("admission webhook") && answer.message.contains("denied the request");
    match answer.code {
        201 => finding(
            CHECK,
            Verdict::Fail,
            "a request for a Pod that does not exist was accepted: the webhook is not called",
            "see the webhook configuration above",
        ),
        // With the daemon's gate off every request is refused, by the webhook all the same.
        400 | 403 if by_webhook => ok(CHECK, "the webhook answers a dry run"),
        403 => finding(CHECK, Verdict::Unknown, "not permitted to create a ContainerRecreateRequest", ""),
        404 => {
            finding(CHECK, Verdict::Fail, "ContainerRecreateRequests are not served", "see the custom resources above")
        }
        _ => finding(CHECK, Verdict::Fail, answer.message.clone(), "kubectl -n kruise-system get pods,endpointslices"),
    }
}
