//! What `doctor` makes of an installation: each check judges facts that were read and says what to do.
//!
//! A fact that could not be read is never taken for good or bad: the check says `unknown` and why.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::version::Info;
use serde::Serialize;
use serde_json::Value;

use super::{Look, exit::Exit, table::columns};
use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels,
    },
    k8s::{account, certificate},
    runtime::{client::check_version, stored_versions},
};

/// Certificates that end sooner than this are worth a warning: they should have been renewed long before.
const ENDS_SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// More lines than this of one kind help nobody.
const MOST_NODES: usize = 10;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but somebody should look.
    Warn,
    /// Does not work.
    Fail,
    /// Could not be found out.
    Unknown,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub text: String,
    /// What to do; empty when nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// Why a fact is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The caller has no right to read it.
    NotPermitted,
    /// It does not exist.
    NotFound,
    /// Reading went wrong.
    Failed(String),
}

/// What was read, or why not.
pub type Fact = Result<Value, Lack>;

fn finding(check: &'static str, verdict: Verdict, text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict, text: text.into(), advice: advice.into() }
}

fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    finding(check, Verdict::Ok, text, "")
}

/// The finding for a fact that is not there, other than by not existing.
fn unknown(check: &'static str, what: &str, lack: &Lack) -> Finding {
    let why = match lack {
        Lack::NotPermitted => format!("not permitted to read {what}"),
        Lack::NotFound => format!("{what} does not exist"),
        Lack::Failed(error) => format!("{what}: {error}"),
    };
    finding(check, Verdict::Unknown, why, "")
}

/// The API server's version.
pub fn server(version: &Fact) -> Finding {
    const CHECK: &str = "API server";
    let info: Info = match version {
        Ok(version) => serde_json::from_value(version.clone()).unwrap_or_default(),
        Err(lack) => {
            let Finding { text, .. } = unknown(CHECK, "/version", lack);
            return finding(CHECK, Verdict::Fail, text, "check the kubeconfig, --context and the network");
        }
    };
    match check_version(&info) {
        Ok(_) => ok(CHECK, format!("Kubernetes {}", info.git_version)),
        Err(error) => finding(CHECK, Verdict::Fail, error.to_string(), "upgrade the cluster"),
    }
}

/// One custom resource definition: what should be served, what is, and the object itself.
#[derive(Clone, Debug)]
pub struct Crd {
    /// `<plural>.<group>`.
    pub name: String,
    /// Versions that this release installs.
    pub wanted: Vec<String>,
    /// The one of them that objects are stored as.
    pub stored: String,
    /// Versions that discovery lists.
    pub served: Result<Vec<String>, Lack>,
    /// The definition.
    pub object: Fact,
}

/// The custom resources.
pub fn custom_resources(crds: &[Crd]) -> Vec<Finding> {
    const CHECK: &str = "custom resource";
    let apply = "apply the manifests of this release: kubectl apply -k manifests/crds";
    crds.iter()
        .map(|Crd { name, wanted, stored, served, object }| {
            let served = match served {
                Ok(served) => served,
                Err(lack) => return unknown(CHECK, &format!("the versions of {name}"), lack),
            };
            if served.is_empty() {
                return finding(CHECK, Verdict::Fail, format!("{name} is not installed"), apply);
            }
            let missing: Vec<&str> = wanted.iter().filter(|v| !served.contains(v)).map(String::as_str).collect();
            if !missing.is_empty() {
                let text = format!("{name} is served as {}, not as {}", served.join(", "), missing.join(", "));
                return finding(CHECK, Verdict::Fail, text, apply);
            }
            let conversion = object.as_ref().map_or("", |crd| crd.text("/spec/conversion/strategy"));
            if conversion == "Webhook" {
                let text = format!("{name} is converted by a webhook, which another installation may have left");
                return finding(CHECK, Verdict::Warn, text, apply);
            }
            let ever = object.as_ref().map_or(&[][..], |crd| crd.list("/status/storedVersions"));
            let ever: Vec<&str> = ever.iter().filter_map(Value::as_str).collect();
            if let Some(reason) = stored_versions::refusal(name, wanted, stored, &ever) {
                return finding(CHECK, Verdict::Fail, reason, "the roles do not start before this is done");
            }
            ok(CHECK, format!("{name}: {}", served.join(", ")))
        })
        .collect()
}

/// The registration of the webhooks. `wanted` are the entries that this release installs.
pub fn webhook_configuration(kind: &str, config: &Fact, wanted: &[Value]) -> Vec<Finding> {
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
            findings.push(match wanted.text("/failurePolicy") {
                "Fail" => {
                    let advice = "kubectl apply -k manifests/, then look at the webhook's log";
                    finding(CHECK, Verdict::Fail, format!("{name} is missing"), advice)
                }
                _ => finding(CHECK, Verdict::Warn, format!("{name} is missing, or its feature gate is off"), ""),
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

/// Ready addresses behind a Service, from its EndpointSlices.
pub fn addresses(slices: &Fact) -> Vec<(String, u16)> {
    let mut found = BTreeSet::new();
    for slice in slices.as_ref().map_or(&[][..], |slices| slices.list("/items")) {
        let ports = slice.list("/ports").iter().filter_map(|port| u16::try_from(port.int("/port")).ok());
        let ports: Vec<u16> = ports.collect();
        for endpoint in slice.list("/endpoints") {
            // Absent means ready.
            if endpoint.pointer("/conditions/ready").and_then(Value::as_bool) == Some(false) {
                continue;
            }
            for address in endpoint.list("/addresses").iter().filter_map(Value::as_str) {
                found.extend(ports.iter().map(|port| (address.to_owned(), *port)));
            }
        }
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

/// One Deployment of the installation.
pub fn deployment(name: &str, check: &'static str, object: &Fact) -> Finding {
    let object = match object {
        Ok(object) => object,
        Err(Lack::NotFound) => {
            let text = format!("Deployment {name} does not exist");
            return finding(
                check,
                Verdict::Fail,
                text,
                "apply the manifests of this release: kubectl apply -k manifests/",
            );
        }
        Err(lack) => return unknown(check, &format!("Deployment {name}"), lack),
    };
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let ready = object.int("/status/readyReplicas");
    let text = format!("{ready} of {wanted} replicas are ready");
    let advice = format!("kubectl -n kruise-system describe deployment {name}");
    if ready == 0 {
        finding(check, Verdict::Fail, text, advice)
    } else if ready < wanted {
        finding(check, Verdict::Warn, text, advice)
    } else {
        ok(check, text)
    }
}

/// The leader of the managers. The times in a Lease are another machine's clock; what counts is that it changes.
pub fn lease(first: &Fact, last: &Fact, watched: Duration) -> Finding {
    const CHECK: &str = "leader";
    let (first, last) = match (first, last) {
        (Ok(first), Ok(last)) => (first, last),
        (Err(Lack::NotFound), _) | (_, Err(Lack::NotFound)) => {
            return finding(
                CHECK,
                Verdict::Fail,
                "the Lease does not exist",
                "apply the manifests of this release: kubectl apply -k manifests/",
            );
        }
        (Err(lack), _) | (_, Err(lack)) => return unknown(CHECK, "the Lease kruise-manager", lack),
    };
    let advice = "kubectl -n kruise-system logs -l control-plane=controller-manager";
    let holder = last.text("/spec/holderIdentity");
    if holder.is_empty() {
        return finding(
            CHECK,
            Verdict::Fail,
            "no manager holds the Lease: deadlines, NotReady keys and TTLs wait",
            advice,
        );
    }
    if first.pointer("/spec/renewTime") == last.pointer("/spec/renewTime") {
        let text = format!("{holder} holds the Lease and has not renewed it in {} s", watched.as_secs());
        return finding(CHECK, Verdict::Fail, text, advice);
    }
    ok(CHECK, holder)
}

/// The daemon on every Linux node, and the runtime that it has to reach to be ready.
pub fn daemons(nodes: &Fact, pods: &Fact, daemon_set: &Fact, gates: &FeatureGates) -> Vec<Finding> {
    const CHECK: &str = "daemon";
    if !gates.enabled(gate::KRUISE_DAEMON) {
        return vec![finding(
            CHECK,
            Verdict::Warn,
            "the feature gate KruiseDaemon is off: only requests of method PodSpec work",
            "",
        )];
    }
    let daemon_set = match daemon_set {
        Err(Lack::NotFound) => {
            let advice = "apply the manifests of this release: kubectl apply -k manifests/overlays/RUNTIME";
            return vec![finding(CHECK, Verdict::Fail, "DaemonSet kruise-daemon does not exist", advice)];
        }
        other => other,
    };
    let (Ok(nodes), Ok(pods)) = (nodes, pods) else {
        return vec![match daemon_set {
            Ok(set) => {
                let (ready, wanted) = (set.int("/status/numberReady"), set.int("/status/desiredNumberScheduled"));
                let text = format!("ready on {ready} of {wanted} nodes (not permitted to look at each)");
                match ready < wanted {
                    true => {
                        finding(CHECK, Verdict::Fail, text, "kubectl -n kruise-system describe daemonset kruise-daemon")
                    }
                    false => ok(CHECK, text),
                }
            }
            Err(lack) => unknown(CHECK, "DaemonSet kruise-daemon", lack),
        }];
    };
    let label = |node: &Value, key: &str| node["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
    let mine = |node: &&Value| {
        label(node, "kubernetes.io/os") == "linux"
            && label(node, labels::NODE_TYPE) != labels::NODE_TYPE_VIRTUAL_KUBELET
    };
    let linux: Vec<&Value> = nodes.list("/items").iter().filter(mine).collect();
    let mut bad = Vec::new();
    let mut runtimes = BTreeSet::new();
    for node in &linux {
        let name = node.text("/metadata/name");
        let here = pods
            .list("/items")
            .iter()
            .find(|pod| pod.text("/spec/nodeName") == name && pod.pointer("/metadata/deletionTimestamp").is_none());
        match here {
            None => bad.push(finding(
                CHECK,
                Verdict::Fail,
                format!("{name}: no daemon runs there; requests for its Pods are not carried out"),
                "kubectl -n kruise-system describe daemonset kruise-daemon",
            )),
            Some(pod) if !is_ready(pod) => bad.push(finding(
                CHECK,
                Verdict::Fail,
                format!("{name}: {}", why_not_ready(pod)),
                format!("kubectl -n kruise-system logs {}", pod.text("/metadata/name")),
            )),
            Some(_) => {
                runtimes.insert(node.text("/status/nodeInfo/containerRuntimeVersion").to_owned());
            }
        }
    }
    let good = linux.len() - bad.len();
    let more = bad.len().saturating_sub(MOST_NODES);
    bad.truncate(MOST_NODES);
    if more > 0 {
        bad.push(finding(CHECK, Verdict::Fail, format!("{more} more nodes are like that"), ""));
    }
    if good > 0 || bad.is_empty() {
        bad.insert(0, ok(CHECK, format!("ready on {good} of {} Linux nodes", linux.len())));
    }
    if !runtimes.is_empty() {
        let names = runtimes.into_iter().collect::<Vec<_>>().join(", ");
        bad.push(ok("runtime socket", format!("every daemon that is ready has reached its runtime: {names}")));
    }
    bad
}

fn is_ready(pod: &Value) -> bool {
    pod.list("/status/conditions").iter().any(|c| c.text("/type") == "Ready" && c.text("/status") == "True")
}

/// A Pod of the daemon is ready when it has reached the container runtime.
fn why_not_ready(pod: &Value) -> String {
    let waiting = pod.list("/status/containerStatuses").iter().find_map(|s| s.pointer("/state/waiting"));
    match waiting {
        Some(waiting) => {
            format!("{}: {}", waiting.text("/reason"), waiting.text("/message")).trim_end_matches(": ").into()
        }
        None => "the daemon is not ready: it does not reach the container runtime's socket, or still starts".into(),
    }
}

/// Every role should run the same image. `own` is the version of this program.
pub fn versions(pods: &Fact, own: &str) -> Finding {
    const CHECK: &str = "versions";
    let pods = match pods {
        Ok(pods) => pods.list("/items"),
        Err(lack) => return unknown(CHECK, "the Pods of the installation", lack),
    };
    let mut seen = BTreeSet::new();
    let mut image_ids = BTreeSet::new();
    for pod in pods {
        let role = pod["metadata"]["labels"][labels::CONTROL_PLANE].as_str().unwrap_or_default();
        if role.is_empty() || pod.pointer("/metadata/deletionTimestamp").is_some() {
            continue;
        }
        for container in pod.list("/spec/containers") {
            seen.insert((tag(container.text("/image")).to_owned(), role.to_owned()));
        }
        image_ids.extend(pod.list("/status/containerStatuses").iter().map(|s| s.text("/imageID").to_owned()));
    }
    image_ids.remove("");
    let tags: BTreeSet<&str> = seen.iter().map(|(tag, _)| tag.as_str()).collect();
    let advice = "apply the manifests of one release, then kubectl -n kruise-system rollout status";
    match tags.into_iter().collect::<Vec<_>>().as_slice() {
        [] => finding(
            CHECK,
            Verdict::Fail,
            "no Pod of kruise-rs runs",
            "apply the manifests of this release: kubectl apply -k manifests/",
        ),
        [tag] if image_ids.len() > 1 => {
            finding(CHECK, Verdict::Warn, format!("all roles run {tag}, but not the same image behind it"), advice)
        }
        [tag] if tag.trim_start_matches('v') == own => ok(CHECK, format!("all roles and this command are {own}")),
        [tag] => {
            let text = format!("all roles run {tag}, this command is {own}");
            finding(CHECK, Verdict::Warn, text, "use the plugin of the installed release")
        }
        _ => {
            let list: Vec<String> = seen.iter().map(|(tag, role)| format!("{role} {tag}")).collect();
            finding(CHECK, Verdict::Warn, format!("roles differ: {}", list.join(", ")), advice)
        }
    }
}

/// The tag of an image reference, or what stands in its place. The manifests of a release have tag and digest.
fn tag(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    let (name, digest) = last.split_once('@').map_or((last, None), |(name, digest)| (name, Some(digest)));
    name.split_once(':').map(|(_, tag)| tag).or(digest).unwrap_or(image)
}

/// Admission policies and their bindings: kind and name of each, and whether it is there.
pub fn policies(found: &[(String, Result<(), Lack>)]) -> Vec<Finding> {
    const CHECK: &str = "admission policies";
    let mut findings = Vec::new();
    for (name, there) in found {
        match there {
            Ok(()) => {}
            Err(Lack::NotFound) => findings.push(finding(
                CHECK,
                Verdict::Fail,
                format!("{name} does not exist: what it protects can be changed by anybody who may write it"),
                "apply the manifests of this release: kubectl apply -k manifests/",
            )),
            Err(lack) => return vec![unknown(CHECK, "ValidatingAdmissionPolicies", lack)],
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, format!("{} policies and bindings", found.len())));
    }
    findings
}

/// A role's account and the policies that are to limit it.
pub struct Limits {
    /// As the API server knows it.
    pub username: String,
    /// Names of the policies, and what is there.
    pub policies: Vec<(&'static str, Fact)>,
}

/// Whether the policies name the accounts that the roles run as. Policies that are missing are the finding of another
/// check.
pub fn limits(accounts: &[Limits]) -> Vec<Finding> {
    const CHECK: &str = "limits of accounts";
    let mut findings = Vec::new();
    for Limits { username, policies } in accounts {
        for (name, policy) in policies {
            let Ok(policy) = policy else { continue };
            let conditions = policy.list("/spec/matchConditions");
            if !conditions.iter().any(|condition| account::names(condition.text("/expression"), username)) {
                let text = format!(
                    "ValidatingAdmissionPolicy {name} does not name {username}: a stolen token of it is not limited"
                );
                let advice = "apply the manifests of this release, and keep the names of their ServiceAccounts";
                findings.push(finding(CHECK, Verdict::Fail, text, advice));
            }
        }
    }
    if findings.is_empty() && !accounts.is_empty() {
        let names: Vec<&str> = accounts.iter().map(|account| account.username.as_str()).collect();
        findings.push(ok(CHECK, names.join(", ")));
    }
    findings
}

/// Bindings that give our accounts rights beyond those of the manifests, for example OpenKruise's, whose accounts have the
/// same names. `lists` holds ClusterRoleBindings and RoleBindings; `wanted` are the bindings of the manifests and of their
/// components, `system` the namespace of the installation. Roles that users bind in their own namespaces are not named.
pub fn foreign_bindings(system: &str, wanted: &[Value], lists: &[(&'static str, Fact)]) -> Vec<Finding> {
    const CHECK: &str = "rights of accounts";
    const ACCOUNTS: [&str; 3] = [account::MANAGER, account::WEBHOOK, account::DAEMON];
    let is_ours = |kind: &str, name: &str, role: &str| {
        wanted.iter().any(|object| {
            object.text("/kind") == kind
                && object.text("/metadata/name") == name
                && object.text("/roleRef/name") == role
        })
    };
    let account_of = |subject: &Value| match subject.text("/kind") {
        "ServiceAccount" if subject.text("/namespace") == system => {
            ACCOUNTS.into_iter().find(|account| subject.text("/name") == *account)
        }
        "User" => {
            let name = subject.text("/name").strip_prefix("system:serviceaccount:")?.strip_prefix(system)?;
            ACCOUNTS.into_iter().find(|account| name.strip_prefix(':') == Some(account))
        }
        _ => None,
    };
    let mut findings = Vec::new();
    for (kind, list) in lists {
        let list = match list {
            Ok(list) => list,
            Err(lack) => return vec![unknown(CHECK, "ClusterRoleBindings and RoleBindings", lack)],
        };
        for binding in list.list("/items") {
            let (name, namespace) = (binding.text("/metadata/name"), binding.text("/metadata/namespace"));
            let role = (binding.text("/roleRef/kind"), binding.text("/roleRef/name"));
            let mut accounts: Vec<&str> = binding.list("/subjects").iter().filter_map(account_of).collect();
            accounts.dedup();
            // A Role of a namespace of users is how the guides have them let the manager read their Secrets.
            let is_grant = *kind == "RoleBinding" && role.0 == "Role" && namespace != system;
            if accounts.is_empty() || is_grant || is_ours(kind, name, role.1) {
                continue;
            }
            let (place, option) = match namespace {
                "" => (String::new(), String::new()),
                namespace => (format!("{namespace}/"), format!("-n {namespace} ")),
            };
            let text = format!(
                "{kind} {place}{name} gives {} the rights of {} {}: it is not one of the manifests",
                accounts.join(", "),
                role.0,
                role.1
            );
            let advice =
                format!("if it was OpenKruise's, delete it: kubectl {option}delete {} {name}", kind.to_lowercase());
            findings.push(finding(CHECK, Verdict::Warn, text, advice));
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, "no binding but those of the manifests"));
    }
    findings
}

/// A binding that the webhook role keeps: it is there while its feature gate is on.
pub fn gated_binding(name: &str, gate: &str, is_on: bool, there: &Result<(), Lack>) -> Finding {
    const CHECK: &str = "deletion protection";
    let advice = "the webhook role keeps it: kubectl -n kruise-system logs -l control-plane=webhook";
    match (is_on, there) {
        (true, Ok(())) => ok(CHECK, format!("in force ({gate} is on)")),
        (false, Err(Lack::NotFound)) => ok(CHECK, format!("not asked for ({gate} is off)")),
        (true, Err(Lack::NotFound)) => {
            let text = format!(
                "{gate} is on, but ValidatingAdmissionPolicyBinding {name} does not exist: labels protect nothing"
            );
            finding(CHECK, Verdict::Fail, text, advice)
        }
        (false, Ok(())) => {
            let text = format!("{gate} is off, but ValidatingAdmissionPolicyBinding {name} still protects by labels");
            finding(CHECK, Verdict::Warn, text, advice)
        }
        (_, Err(lack)) => unknown(CHECK, "ValidatingAdmissionPolicyBindings", lack),
    }
}

/// The feature gates of the installation, as its roles read them.
pub fn feature_gates(config_map: &Fact) -> (Finding, FeatureGates) {
    const CHECK: &str = "feature gates";
    let list = match config_map {
        Ok(config_map) => config_map.text("/data/feature-gates"),
        Err(Lack::NotFound) => "",
        Err(lack) => return (unknown(CHECK, "ConfigMap kruise-feature-gates", lack), FeatureGates::default()),
    };
    match FeatureGates::parse(&[list], None) {
        Ok(gates) => (ok(CHECK, gates.to_string()), gates),
        Err(error) => {
            let advice = "kubectl -n kruise-system edit configmap kruise-feature-gates; no role starts with this";
            (finding(CHECK, Verdict::Fail, error.to_string(), advice), FeatureGates::default())
        }
    }
}

/// One right of the caller.
#[derive(Clone, Debug)]
pub struct Right {
    /// Verb and resource.
    pub what: String,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether the caller has it; None: that could not be found out.
    pub allowed: Option<bool>,
}

/// What the caller may do in a namespace.
pub fn rights(namespace: &str, rights: &[Right]) -> Finding {
    const CHECK: &str = "your rights";
    if rights.iter().any(|right| right.allowed.is_none()) {
        return finding(CHECK, Verdict::Unknown, "the API server does not say", "");
    }
    let missing: Vec<String> = rights
        .iter()
        .filter(|right| right.allowed == Some(false))
        .map(|right| format!("{} (for {})", right.what, right.purpose))
        .collect();
    if missing.is_empty() {
        return ok(CHECK, format!("restart, follow and cancel in namespace {namespace}"));
    }
    let text = format!("in namespace {namespace} you may not {}", missing.join(", "));
    finding(CHECK, Verdict::Warn, text, "ask for a Role with these rights, if you need them")
}

/// The whole report.
pub fn report(findings: &[Finding], paint: impl Fn(Verdict, &str) -> String) -> String {
    let word = |verdict| match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
        Verdict::Unknown => "unknown",
    };
    let mut rows = Vec::new();
    for finding in findings {
        rows.push(vec![word(finding.verdict).to_owned(), finding.check.to_owned(), finding.text.clone()]);
        if !finding.advice.is_empty() {
            rows.push(vec![String::new(), String::new(), format!("-> {}", finding.advice)]);
        }
    }
    let verdicts = findings.iter().flat_map(|f| [Some(f.verdict), (!f.advice.is_empty()).then_some(Verdict::Ok)]);
    let table = columns(&[], &rows);
    // Colours last: they have no width, but characters.
    let lines = table.lines().zip(verdicts.flatten()).map(|(line, verdict)| {
        let width = word(verdict).len();
        match line.starts_with(word(verdict)) {
            true => format!("{}{}\n", paint(verdict, &line[..width]), &line[width..]),
            false => format!("{line}\n"),
        }
    });
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    format!(
        "{}\n{} ok, {} to look at, {} failed, {} unknown\n",
        lines.collect::<String>(),
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail),
        count(Verdict::Unknown)
    )
}

/// 1 if any check failed.
pub fn exit(findings: &[Finding]) -> Exit {
    if findings.iter().any(|finding| finding.verdict == Verdict::Fail) { Exit::Failed } else { Exit::Success }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }
    fn said(finding: &Finding) -> String {
        format!("{:?} {}", finding.verdict, finding.text)
    }
    fn all_said(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(said).collect()
    }

    #[test]
    fn an_account_that_a_policy_does_not_name_is_a_failure() {
        let policy =
            |expression: String| Ok(json!({"spec": {"matchConditions": [{"name": "by", "expression": expression}]}}));
        let of = |namespace: &str, policy: Fact| {
            let username = format!("system:serviceaccount:{namespace}:kruise-manager");
            all_said(&limits(&[Limits { username, policies: vec![("p", policy)] }]))
        };
        let ours = account::is_one_of(&[account::MANAGER]);
        assert_eq!(of("elsewhere", policy(ours)), ["Ok system:serviceaccount:elsewhere:kruise-manager"]);
        let exact = "request.userInfo.username == 'system:serviceaccount:kruise-system:kruise-manager'";
        assert_eq!(
            of("elsewhere", policy(exact.into())),
            [
                "Fail ValidatingAdmissionPolicy p does not name system:serviceaccount:elsewhere:kruise-manager: a stolen token of it is not limited"
            ]
        );
        assert_eq!(of("a", Err(Lack::NotFound)), ["Ok system:serviceaccount:a:kruise-manager"]);
        assert_eq!(limits(&[]), []);
    }

    #[test]
    fn bindings_of_our_accounts_that_the_manifests_do_not_have_are_named() {
        let binding = |name: &str, role: &str, subject: Value| {
            json!({ "metadata": { "name": name }, "subjects": [subject],
                "roleRef": { "kind": "ClusterRole", "name": role } })
        };
        let account =
            |namespace: &str, name: &str| json!({ "kind": "ServiceAccount", "namespace": namespace, "name": name });
        let user = |name: &str| json!({ "kind": "User", "name": name });
        let mut in_namespace = binding("a", "edit", account("kruise-system", "kruise-webhook"));
        in_namespace["metadata"]["namespace"] = json!("team");
        let role_in = |namespace: &str, name: &str| {
            let mut binding = binding(name, name, account("kruise-system", "kruise-manager"));
            binding["metadata"]["namespace"] = json!(namespace);
            binding["roleRef"]["kind"] = json!("Role");
            binding
        };
        let (grant, election) = (role_in("team", "kruise-triggers"), role_in("kruise-system", "election"));
        let wanted = crate::manifests::bindings();
        let ours: Vec<Value> = wanted.iter().filter(|o| o.text("/kind") == "ClusterRoleBinding").cloned().collect();
        assert!(ours.len() >= 5, "{ours:?}");
        let others = vec![
            binding("kruise-manager-rolebinding", "kruise-manager-role", account("kruise-system", "kruise-manager")),
            binding("u", "view", user("system:serviceaccount:kruise-system:kruise-daemon")),
            binding("v", "view", user("system:serviceaccount:kruise-systems:kruise-daemon")),
            binding("w", "view", account("elsewhere", "kruise-manager")),
            binding("x", "view", account("kruise-system", "default")),
        ];
        let found = |cluster: Vec<Value>, namespaced: Vec<Value>| {
            let lists = [
                ("ClusterRoleBinding", Ok(json!({ "items": cluster }))),
                ("RoleBinding", Ok(json!({ "items": namespaced }))),
            ];
            foreign_bindings("kruise-system", &wanted, &lists)
        };
        let findings = found([ours.clone(), others].concat(), vec![in_namespace, grant, election]);
        assert_eq!(
            all_said(&findings),
            [
                "Warn ClusterRoleBinding kruise-manager-rolebinding gives kruise-manager the rights of ClusterRole kruise-manager-role: it is not one of the manifests",
                "Warn ClusterRoleBinding u gives kruise-daemon the rights of ClusterRole view: it is not one of the manifests",
                "Warn RoleBinding team/a gives kruise-webhook the rights of ClusterRole edit: it is not one of the manifests",
                "Warn RoleBinding kruise-system/election gives kruise-manager the rights of Role election: it is not one of the manifests",
            ]
        );
        assert!(findings[0].advice.ends_with("kubectl delete clusterrolebinding kruise-manager-rolebinding"));
        assert!(findings[2].advice.ends_with("kubectl -n team delete rolebinding a"));
        assert_eq!(all_said(&found(ours, vec![])), ["Ok no binding but those of the manifests"]);
        let unreadable = foreign_bindings("kruise-system", &wanted, &[("RoleBinding", Err(Lack::NotPermitted))]);
        assert_eq!(unreadable[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn what_may_not_be_read_is_unknown_in_every_check() {
        let no: Fact = Err(Lack::NotPermitted);
        let gates = FeatureGates::default();
        let crd = Crd {
            name: "a.b".into(),
            wanted: vec![],
            stored: String::new(),
            served: Err(Lack::NotPermitted),
            object: no.clone(),
        };
        let mut all = vec![
            endpoints(&no),
            lease(&no, &no, Duration::ZERO),
            versions(&no, "1"),
            deployment("d", "manager", &no),
            admission(&Err(Lack::NotPermitted)),
            feature_gates(&no).0,
        ];
        all.extend(custom_resources(&[crd]));
        all.extend(webhook_configuration("MutatingWebhookConfiguration", &no, &[]));
        all.push(gated_binding("b", "G", true, &Err(Lack::NotPermitted)));
        all.extend(daemons(&no, &no, &no, &gates));
        all.extend(policies(&[("p".into(), Err(Lack::NotPermitted))]));
        for finding in &all {
            assert_eq!(finding.verdict, Verdict::Unknown, "{finding:?}");
            assert!(finding.text.starts_with("not permitted to read "), "{finding:?}");
        }
        assert_eq!(exit(&all), Exit::Success);
    }

    #[test]
    fn an_old_server_fails() {
        let version = |major: &str, minor: &str, git: &str| {
            Ok(json!({ "major": major, "minor": minor, "gitVersion": git, "buildDate": "", "compiler": "",
                "gitCommit": "", "gitTreeState": "", "goVersion": "", "platform": "" }))
        };
        assert_eq!(said(&server(&version("1", "34", "v1.34.1"))), "Ok Kubernetes v1.34.1");
        assert_eq!(server(&version("1", "29", "v1.29.0")).verdict, Verdict::Fail);
        assert_eq!(server(&Err(Lack::Failed("refused".into()))).verdict, Verdict::Fail);
    }

    #[test]
    fn a_resource_has_to_be_served_in_all_its_versions() {
        let crd = |served: &[&str], strategy: &str| Crd {
            name: "x.y".into(),
            wanted: vec!["v1alpha1".into(), "v1beta1".into()],
            stored: "v1alpha1".into(),
            served: Ok(served.iter().map(|v| (*v).to_owned()).collect()),
            object: Ok(json!({ "spec": { "conversion": { "strategy": strategy } },
                "status": { "storedVersions": if strategy == "Old" { json!(["v1", "v1alpha1"]) } else { json!(["v1beta1"]) } } })),
        };
        let findings = custom_resources(&[
            crd(&["v1alpha1", "v1beta1"], "None"),
            crd(&[], "None"),
            crd(&["v1alpha1"], "None"),
            crd(&["v1alpha1", "v1beta1"], "Webhook"),
        ]);
        let old = custom_resources(&[crd(&["v1alpha1", "v1beta1"], "Old")]).remove(0);
        assert!(
            said(&old).starts_with("Fail CustomResourceDefinition x.y: status.storedVersions holds v1,"),
            "{old:?}"
        );
        assert_eq!(
            all_said(&findings),
            [
                "Ok x.y: v1alpha1, v1beta1",
                "Fail x.y is not installed",
                "Fail x.y is served as v1alpha1, not as v1beta1",
                "Warn x.y is converted by a webhook, which another installation may have left",
            ]
        );
    }

    #[test]
    fn a_missing_entry_matters_by_its_failure_policy() {
        let wanted = [
            json!({ "name": "pods", "failurePolicy": "Ignore" }),
            json!({ "name": "requests", "failurePolicy": "Fail" }),
        ];
        let entry = |name: &str, ca: &str| json!({ "name": name, "clientConfig": { "caBundle": ca } });
        for (config, expected) in [
            (
                Ok(json!({ "webhooks": [entry("pods", "x"), entry("requests", "x")] })),
                vec!["Ok MutatingWebhookConfiguration: 2 entries, each with a CA"],
            ),
            (
                Ok(json!({ "webhooks": [entry("other", "x")] })),
                vec!["Warn pods is missing, or its feature gate is off", "Fail requests is missing"],
            ),
            (
                Ok(json!({ "webhooks": [entry("pods", "x"), entry("requests", "")] })),
                vec!["Fail requests has no CA bundle"],
            ),
            (
                Err(Lack::NotFound),
                vec![
                    "Fail the MutatingWebhookConfiguration does not exist: requests are neither checked nor completed",
                ],
            ),
        ] {
            assert_eq!(all_said(&webhook_configuration("MutatingWebhookConfiguration", &config, &wanted)), expected);
        }
    }

    #[test]
    fn certificates_are_judged_by_what_is_left_of_them() {
        let days = |days: i64| now().checked_add(jiff::SignedDuration::from_hours(days * 24)).unwrap();
        let handshakes = [
            ("a:1".to_owned(), Handshake::Valid(days(200))),
            ("b:1".to_owned(), Handshake::Valid(days(10))),
            ("c:1".to_owned(), Handshake::Valid(days(-1))),
            ("d:1".to_owned(), Handshake::Refused("unknown issuer".into())),
            ("e:1".to_owned(), Handshake::Unreachable("timed out".into())),
        ];
        let findings = serving_certificates(&handshakes, now());
        let verdicts: Vec<Verdict> = findings.iter().map(|f| f.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warn, Verdict::Fail, Verdict::Fail, Verdict::Unknown]);
        assert_eq!(findings[0].text, "a:1: valid for 200 days");
        assert_eq!(ca_certificates("", now()), None);
        assert_eq!(ca_certificates("rubbish", now()).unwrap().verdict, Verdict::Fail);
    }

    #[test]
    fn the_ca_bundle_is_read_from_every_entry_once() {
        let ca = include_str!("../../runtime/certs/testdata/rsa-ca.crt");
        let entry = json!({ "clientConfig": { "caBundle": STANDARD.encode(ca) } });
        let config = Ok(json!({ "webhooks": [entry, entry, { "clientConfig": { "caBundle": "%%%" } }] }));
        let bundle = ca_bundle(&[config.clone(), Err(Lack::NotFound), config]);
        assert_eq!(bundle.trim(), ca.trim());
        let end = certificate::ends(&bundle).unwrap()[0];
        assert_eq!(ca_certificates(&bundle, end).unwrap().verdict, Verdict::Warn);
    }

    fn slices(endpoints: Value) -> Fact {
        Ok(json!({ "items": [{ "ports": [{ "port": 9876 }], "endpoints": endpoints }] }))
    }

    #[test]
    fn endpoints_count_when_they_are_ready() {
        let endpoint =
            |address: &str, ready: Value| json!({ "addresses": [address], "conditions": { "ready": ready } });
        for (endpoints_, verdict) in [
            (json!([]), Verdict::Fail),
            (json!([endpoint("10.0.0.1", json!(false))]), Verdict::Fail),
            (json!([endpoint("10.0.0.1", json!(true))]), Verdict::Warn),
            (json!([endpoint("10.0.0.1", json!(true)), endpoint("10.0.0.2", Value::Null)]), Verdict::Ok),
        ] {
            assert_eq!(endpoints(&slices(endpoints_.clone())).verdict, verdict, "{endpoints_}");
        }
        assert_eq!(endpoints(&Ok(json!({ "items": [] }))).verdict, Verdict::Fail);
    }

    #[test]
    fn admission_is_proved_by_a_refusal_of_our_own() {
        let answer = |code, message: &str| said(&admission(&Ok(Answer { code, message: message.into() })));
        let ours = "admission webhook \"mcontainerrecreaterequest.kb.io\" denied the request: spec.podName: no Pod";
        assert_eq!(answer(400, ours), "Ok the webhook answers a dry run");
        assert_eq!(answer(403, ours), "Ok the webhook answers a dry run");
        assert!(answer(201, "").starts_with("Fail "));
        assert!(answer(403, "cannot create resource").starts_with("Unknown not permitted"));
        assert_eq!(answer(500, "failed calling webhook: x509"), "Fail failed calling webhook: x509");
        assert!(answer(404, "").starts_with("Fail "));
    }

    #[test]
    fn a_lease_that_changes_is_alive_whatever_the_clocks_say() {
        let held = |holder: &str, time: &str| Ok(json!({ "spec": { "holderIdentity": holder, "renewTime": time } }));
        let watched = Duration::from_secs(15);
        assert_eq!(said(&lease(&held("m-1", "a"), &held("m-1", "b"), watched)), "Ok m-1");
        assert_eq!(
            said(&lease(&held("m-1", "a"), &held("m-1", "a"), watched)),
            "Fail m-1 holds the Lease and has not renewed it in 15 s"
        );
        assert_eq!(lease(&held("m-1", "a"), &held("", "b"), watched).verdict, Verdict::Fail);
        assert_eq!(lease(&Err(Lack::NotFound), &held("", "b"), watched).verdict, Verdict::Fail);
    }

    #[test]
    fn every_linux_node_needs_a_ready_daemon() {
        let node = |name: &str, os: &str| {
            json!({ "metadata": { "name": name, "labels": { "kubernetes.io/os": os } },
                "status": { "nodeInfo": { "containerRuntimeVersion": "containerd://1.6" } } })
        };
        let pod = |node: &str, ready: &str| {
            json!({ "metadata": { "name": format!("d-{node}") }, "spec": { "nodeName": node },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
        };
        let on = FeatureGates::default();
        let nodes =
            Ok(json!({ "items": [node("a", "linux"), node("b", "linux"), node("c", "linux"), node("w", "windows")] }));
        let mut waiting = pod("b", "False");
        waiting["status"]["containerStatuses"] =
            json!([{ "state": { "waiting": { "reason": "ErrImagePull", "message": "no" } } }]);
        let pods = Ok(json!({ "items": [pod("a", "True"), waiting] }));
        let set = Ok(json!({ "status": { "numberReady": 1, "desiredNumberScheduled": 3 } }));
        assert_eq!(
            all_said(&daemons(&nodes, &pods, &set, &on)),
            [
                "Ok ready on 1 of 3 Linux nodes",
                "Fail b: ErrImagePull: no",
                "Fail c: no daemon runs there; requests for its Pods are not carried out",
                "Ok every daemon that is ready has reached its runtime: containerd://1.6",
            ]
        );
        let blind = daemons(&Err(Lack::NotPermitted), &pods, &set, &on);
        assert_eq!(all_said(&blind), ["Fail ready on 1 of 3 nodes (not permitted to look at each)"]);
        let gone = daemons(&nodes, &Ok(json!({})), &Err(Lack::NotFound), &on);
        assert_eq!(all_said(&gone), ["Fail DaemonSet kruise-daemon does not exist"]);
        let off = FeatureGates::parse(&["KruiseDaemon=false"], None).unwrap();
        assert_eq!(daemons(&nodes, &pods, &set, &off)[0].verdict, Verdict::Warn);
    }

    #[test]
    fn a_thousand_broken_nodes_do_not_fill_the_screen() {
        let node =
            |i: usize| json!({ "metadata": { "name": format!("n{i}"), "labels": { "kubernetes.io/os": "linux" } } });
        let nodes = Ok(json!({ "items": (0..1000).map(node).collect::<Vec<_>>() }));
        let findings = daemons(&nodes, &Ok(json!({ "items": [] })), &Ok(json!({})), &FeatureGates::default());
        assert_eq!((findings.len(), findings[10].text.as_str()), (11, "990 more nodes are like that"));
    }

    #[test]
    fn roles_of_one_release_agree() {
        let pod = |role: &str, image: &str, id: &str| {
            json!({ "metadata": { "labels": { "control-plane": role } }, "spec": { "containers": [{ "image": image }] },
                "status": { "containerStatuses": [{ "imageID": id }] } })
        };
        let items = |items: Value| Ok(json!({ "items": items }));
        let a = "docker.io/kruise-rs/kruise-rs:v0.1.0";
        for (pods, expected) in [
            (json!([pod("webhook", a, "i"), pod("daemon", a, "i")]), "Ok all roles and this command are 0.1.0"),
            (
                json!([pod("webhook", a, "i"), pod("daemon", a, "j")]),
                "Warn all roles run v0.1.0, but not the same image behind it",
            ),
            (
                json!([pod("webhook", a, "i"), pod("daemon", "localhost:5000/k:v0.2.0", "j")]),
                "Warn roles differ: webhook v0.1.0, daemon v0.2.0",
            ),
            (
                json!([
                    pod("webhook", &format!("{a}@sha256:1"), "i"),
                    pod("daemon", "localhost:5000/k:v0.1.0@sha256:1", "i")
                ]),
                "Ok all roles and this command are 0.1.0",
            ),
            (json!([pod("daemon", "k@sha256:1", "i")]), "Warn all roles run sha256:1, this command is 0.1.0"),
            (json!([pod("daemon", "k:v9", "j")]), "Warn all roles run v9, this command is 0.1.0"),
            (json!([]), "Fail no Pod of kruise-rs runs"),
        ] {
            assert_eq!(said(&versions(&items(pods), "0.1.0")), expected);
        }
    }

    #[test]
    fn a_binding_is_there_while_its_gate_is_on() {
        for (is_on, there, expected) in [
            (true, Ok(()), "Ok in force (Gate is on)"),
            (false, Err(Lack::NotFound), "Ok not asked for (Gate is off)"),
            (
                true,
                Err(Lack::NotFound),
                "Fail Gate is on, but ValidatingAdmissionPolicyBinding b does not exist: labels protect nothing",
            ),
            (false, Ok(()), "Warn Gate is off, but ValidatingAdmissionPolicyBinding b still protects by labels"),
        ] {
            assert_eq!(said(&gated_binding("b", "Gate", is_on, &there)), expected);
        }
    }

    #[test]
    fn unknown_gates_and_missing_rights_are_named() {
        let config_map = |gates: &str| Ok(json!({ "data": { "feature-gates": gates } }));
        let (finding, gates) = feature_gates(&config_map("KruiseDaemon=false"));
        assert!(finding.verdict == Verdict::Ok && !gates.enabled("KruiseDaemon"));
        let (finding, _) = feature_gates(&config_map("Nope=true"));
        assert!(finding.verdict == Verdict::Fail && finding.text.starts_with("unknown feature gate \"Nope\""));
        let right = |what: &str, allowed| Right { what: what.into(), purpose: "restart", allowed };
        assert_eq!(
            said(&rights("shop", &[right("create a", Some(true)), right("delete b", Some(false))])),
            "Warn in namespace shop you may not delete b (for restart)"
        );
        assert_eq!(rights("shop", &[right("create a", None)]).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_report_reads_well() {
        let findings = [
            ok("API server", "Kubernetes v1.34.1"),
            finding("daemon", Verdict::Fail, "node-b: no daemon runs there", "kubectl describe daemonset"),
            unknown("leader", "the Lease", &Lack::NotPermitted),
        ];
        insta::assert_snapshot!(report(&findings, |_, word| word.to_owned()), @r"
        ok        API server   Kubernetes v1.34.1
        FAIL      daemon       node-b: no daemon runs there
                               -> kubectl describe daemonset
        unknown   leader       not permitted to read the Lease

        1 ok, 0 to look at, 1 failed, 1 unknown
        ");
        assert_eq!(exit(&findings), Exit::Failed);
    }
}
