//! `doctor`: reads the objects of an installation and prints the findings of [`rules::doctor`](super::rules::doctor).
//!
//! The expected objects are the manifests that this program renders. Nothing is written; the only create is a dry run. If
//! the caller lacks a right, the check is reported as unknown and the command does not fail.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use console::{Color, Style};
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{
    connection::{Connection, ConnectionArgs},
    requests::create,
    rules::{
        JsonPointer,
        doctor::{self, Answer, Crd, Fact, Finding, Handshake, Lack, Limits, Right, Verdict},
        exit::{Exit, Stop, with_sources},
        request::{RestartOptions, for_pod},
    },
    view::print,
};
use crate::{
    api::{
        DEFAULT_NAMESPACE,
        feature_gates::{FeatureGates, gate},
        group_and_version,
        kinds::{KINDS, Kind, Protection},
        labels,
    },
    k8s::{account, certificate, path},
    manifests,
    runtime::clock,
};

/// Time limit of a TLS handshake: an address in the cluster either answers at once or cannot be reached from here.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);
/// A leader renews its Lease every 2 s and gives up after 10.
const LEASE_LIMIT: Duration = Duration::from_secs(12);
const LEASE_LOOK: Duration = Duration::from_millis(500);

/// Check the installation: webhook, certificates, daemon on each node, leader, resources, policies, rights, versions.
///
/// Exits with 1 if a check fails. What you may not read is shown as unknown.
/// With --return it lists instead what OpenKruise, to which you are about to go back, does not know of your objects.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// Namespace of the installation.
    #[arg(long, default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    system_namespace: String,
    /// Instead of the checks: list what is in objects of Kruise and not known to OpenKruise 1.9.
    #[arg(long = "return")]
    returning: bool,
    /// Print the findings as a list of objects.
    #[arg(short, long, value_enum, value_name = "FORMAT", value_parser = ["json", "yaml"])]
    output: Option<String>,
}

/// Reads paths of the API server.
struct Reader<'a> {
    client: &'a Client,
    system: &'a str,
}

impl Reader<'_> {
    async fn path(&self, path: &str) -> Fact {
        let failed = |error: &dyn std::error::Error| Lack::Failed(with_sources(error));
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| failed(&error))?;
        self.client.request(request).await.map_err(|error| lack(&error))
    }

    /// A list in pages, as kubectl reads it: a cluster may have thousands of nodes.
    async fn list(&self, path: &str) -> Fact {
        let separator = if path.contains('?') { '&' } else { '?' };
        let (mut items, mut next) = (Vec::new(), String::new());
        loop {
            let page = self.path(&format!("{path}{separator}limit=500{next}")).await?;
            items.extend_from_slice(page.list("/items"));
            match page.text("/metadata/continue") {
                "" => return Ok(json!({ "items": items })),
                token => next = format!("&continue={token}"),
            }
        }
    }

    /// An object in the namespace that kruise-rs runs in.
    async fn system(&self, group: &str, plural: &str, name: &str) -> Fact {
        self.path(&(path::in_namespace(group, "v1", self.system, plural) + &path::path([name]))).await
    }

    /// An object of the cluster.
    async fn cluster(&self, group: &str, plural: &str, name: &str) -> Fact {
        self.path(&(path::of_cluster(group, "v1", plural) + &path::path([name]))).await
    }
}

fn lack(error: &kube::Error) -> Lack {
    match error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => Lack::NotPermitted,
        kube::Error::Api(status) if status.code == 404 => Lack::NotFound,
        error => Lack::Failed(with_sources(error)),
    }
}

pub(super) async fn run(args: DoctorArgs, connection: &ConnectionArgs) -> Result<Exit, Stop> {
    let connection = connection.open().await?;
    let mut findings = match args.returning {
        true => examine_return(&connection, &args.system_namespace).await,
        false => examine(&connection, &args.system_namespace).await,
    };
    for finding in &mut findings {
        finding.advice = finding.advice.replace(DEFAULT_NAMESPACE, &args.system_namespace);
    }
    match args.output.as_deref() {
        None => print(&doctor::report(&findings, painted))?,
        Some(format) => {
            let text = match format {
                "yaml" => serde_yaml::to_string(&findings).map_err(|e| e.to_string()),
                _ => serde_json::to_string_pretty(&findings).map(|text| text + "\n").map_err(|e| e.to_string()),
            };
            print(&text.map_err(|error| Stop::new(Exit::Failed, error))?)?;
        }
    }
    Ok(doctor::exit(&findings))
}

fn painted(verdict: Verdict, word: &str) -> String {
    let color = match verdict {
        Verdict::Ok => Color::Green,
        Verdict::Warn => Color::Yellow,
        Verdict::Fail => Color::Red,
        Verdict::Unknown => Color::Magenta,
    };
    Style::new().fg(color).apply_to(word).to_string()
}

const ADMISSION: &str = "admissionregistration.k8s.io";

const LEASE: [&str; 3] = ["coordination.k8s.io", "leases", "kruise-manager"];

async fn examine(connection: &Connection, system: &str) -> Vec<Finding> {
    let read = Reader { client: &connection.client, system };
    let server = doctor::server(&read.path("/version").await);
    if server.verdict == Verdict::Fail {
        return vec![server];
    }
    let wanted = manifests::objects();
    let mut findings = vec![server];
    let watched = Instant::now();
    let first_lease = read.system(LEASE[0], LEASE[1], LEASE[2]).await;

    let crds: Vec<Crd> = join_all(KINDS.iter().filter_map(|kind| custom_resource(&read, kind))).await;
    findings.extend(doctor::custom_resources(&crds));

    let (gates_finding, gates) =
        doctor::feature_gates(&read.system(path::CORE, "configmaps", "kruise-feature-gates").await);
    for (check, name) in [("manager", "kruise-controller-manager"), ("webhook", "kruise-webhook")] {
        let object = read.system("apps", "deployments", name).await;
        findings.push(doctor::deployment(name, check, &object));
    }
    examine_webhook(&read, &gates, &mut findings).await;
    findings.push(doctor::admission(&admission(connection).await));
    examine_policies(&read, &wanted, &gates, &mut findings).await;

    let nodes = read.list(&path::of_cluster(path::CORE, "v1", "nodes")).await;
    let pods_path = path::pods(system) + "?labelSelector=";
    let daemon_pods = read.list(&format!("{pods_path}control-plane%3Ddaemon")).await;
    let daemon_set = read.system("apps", "daemonsets", "kruise-daemon").await;
    findings.extend(doctor::daemons(&nodes, &daemon_pods, &daemon_set, &gates));

    let pods = read.list(&format!("{pods_path}app.kubernetes.io%2Fname%3Dkruise-rs")).await;
    findings.push(doctor::versions(&pods, env!("CARGO_PKG_VERSION")));
    findings.push(gates_finding);
    findings.push(leader(&read, &first_lease, watched).await);

    let workloads = crds.iter().any(|crd| crd.name.starts_with("workloadrestarts."));
    findings.push(doctor::rights(&connection.namespace, &rights(connection, workloads).await));
    findings
}

/// What OpenKruise does not know of the objects of our kinds.
async fn examine_return(connection: &Connection, system: &str) -> Vec<Finding> {
    let read = Reader { client: &connection.client, system };
    let mut kinds = Vec::new();
    // A label of a Namespace may say that no Pod is created there without its sidecars.
    for kind in KINDS.iter().filter(|kind| kind.definition.is_some() || kind.kind == "Namespace") {
        let version = kind.versions.first().copied().unwrap_or_default();
        kinds.push((*kind, read.list(&path::of_cluster(kind.group, version, kind.plural)).await));
    }
    doctor::returning(&kinds)
}

fn of_kind<'a>(objects: &'a [Value], kind: &'static str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object.text("/kind") == kind)
}

/// The registration of the webhook, its certificates, and who answers.
async fn examine_webhook(read: &Reader<'_>, gates: &FeatureGates, findings: &mut Vec<Finding>) {
    let registrations = manifests::registrations(gates);
    let mut configs = Vec::new();
    for wanted in &registrations {
        let kind = wanted.text("/kind");
        let plural = format!("{}s", kind.to_lowercase());
        let config = read.cluster(ADMISSION, &plural, wanted.text("/metadata/name")).await;
        findings.extend(doctor::webhook_configuration(kind, &config, wanted.list("/webhooks"), manifests::is_shipped));
        if let Ok(config) = &config {
            let left = manifests::leftovers(kind, config, read.system);
            findings.extend(doctor::leftovers(&left, gates.enabled(gate::EXTERNAL_CERTS)));
        }
        configs.push(config);
    }
    let now = clock::now().wall;
    let bundle = doctor::ca_bundle(&configs);
    findings.extend(doctor::ca_certificates(&bundle, now));

    // The Service that the registrations name; others belong to other roles.
    let first = registrations.iter().flat_map(|wanted| wanted.list("/webhooks")).next();
    let service = first.map_or("", |entry| entry.text("/clientConfig/service/name"));
    let slices = path::in_namespace("discovery.k8s.io", "v1", read.system, "endpointslices");
    let slices = read.path(&format!("{slices}?labelSelector=kubernetes.io%2Fservice-name%3D{service}")).await;
    findings.push(doctor::endpoints(&slices));
    if !bundle.is_empty() {
        let dns_name = format!("{service}.{}.svc", read.system);
        let addresses = doctor::addresses(&slices).into_iter().take(8);
        let handshakes = addresses.map(|(host, port)| handshake(host, port, &bundle, &dns_name));
        findings.extend(doctor::serving_certificates(&join_all(handshakes).await, now));
    }
    let plurals = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let all = plurals.map(|plural| async move { read.list(&path::of_cluster(ADMISSION, "v1", plural)).await });
    let (all, own) = (join_all(all).await, (read.system, service));
    let ours = registrations.each_ref().map(|wanted| wanted.text("/metadata/name"));
    findings.extend(doctor::unlisted(&plurals, &all));
    findings.extend(doctor::strays(&all, own, &ours, |path| manifests::serves(path, gates)));
    let called = doctor::called(&all, own);
    findings.extend(doctor::not_looked_at(&all, &ours, called.len()));
    findings.extend(doctor::unanswered(&answering(read, called).await));
}

/// Who answers behind the Services that other entries call about Pods or our kinds.
async fn answering(read: &Reader<'_>, called: Vec<doctor::Called>) -> Vec<(doctor::Called, Fact)> {
    // More than these nobody reads.
    let slices = called.into_iter().take(doctor::MOST_SERVICES).map(|called| async move {
        let slices = path::in_namespace("discovery.k8s.io", "v1", &called.namespace, "endpointslices");
        let label = format!("kubernetes.io%2Fservice-name%3D{}", called.name);
        let slices = read.path(&format!("{slices}?labelSelector={label}")).await;
        let service = path::in_namespace(path::CORE, "v1", &called.namespace, "services");
        let service = read.path(&(service + &path::path([called.name.as_str()]))).await;
        let is_elsewhere = service.is_ok_and(|service| service.text("/spec/type") == "ExternalName");
        (doctor::Called { is_elsewhere, ..called }, slices)
    });
    join_all(slices).await
}

/// Admission policies, and what else limits our accounts.
async fn examine_policies(read: &Reader<'_>, wanted: &[Value], gates: &FeatureGates, findings: &mut Vec<Finding>) {
    let mut policies = Vec::new();
    for (kind, plural) in [
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ] {
        for object in of_kind(wanted, kind) {
            let name = object.text("/metadata/name");
            let there = read.cluster(ADMISSION, plural, name).await.map(drop);
            policies.push((format!("{kind} {name}"), there));
        }
    }
    findings.extend(doctor::policies(&policies));
    findings.extend(doctor::limits(&limits(read).await));
    let mut bindings = Vec::new();
    for (kind, plural) in [("ClusterRoleBinding", "clusterrolebindings"), ("RoleBinding", "rolebindings")] {
        bindings.push((kind, read.list(&path::of_cluster("rbac.authorization.k8s.io", "v1", plural)).await));
    }
    findings.extend(doctor::foreign_bindings(read.system, &manifests::bindings(), &bindings));
    let (binding, gate) = manifests::GATED_BINDING;
    let there = read.cluster(ADMISSION, "validatingadmissionpolicybindings", binding).await.map(drop);
    findings.push(doctor::gated_binding(binding, gate, gates.enabled(gate), &there));
    if !gates.enabled(gate) {
        findings.extend(doctor::unprotected(&labelled(read).await));
    }
    let rights = manifests::GATED_RIGHTS;
    let there = read.cluster("rbac.authorization.k8s.io", "clusterrolebindings", rights.1).await.map(drop);
    findings.extend(doctor::gated_rights(rights, gates.enabled(rights.2), &there));
}

/// Objects with the label of deletion protection, one of each kind at most.
async fn labelled(read: &Reader<'_>) -> Vec<(&'static str, Fact)> {
    let kinds = KINDS.iter().filter(|kind| kind.protection != Protection::None).map(|kind| async move {
        let version = kind.versions.first().copied().unwrap_or_default();
        let list = path::of_cluster(kind.group, version, kind.plural);
        let label = path::segment(labels::DELETE_PROTECTION);
        (kind.kind, read.path(&format!("{list}?limit=1&labelSelector={label}")).await)
    });
    join_all(kinds).await
}

/// Whether the Lease is renewed: by now the leader has done it, or will within its own limits.
async fn leader(read: &Reader<'_>, first: &Fact, watched: Instant) -> Finding {
    let lease = async || read.system(LEASE[0], LEASE[1], LEASE[2]).await;
    let mut last = lease().await;
    while let (Ok(first), Ok(now)) = (first, &last)
        && first.pointer("/spec/renewTime") == now.pointer("/spec/renewTime")
        && watched.elapsed() < LEASE_LIMIT
    {
        tokio::time::sleep(LEASE_LOOK).await;
        last = lease().await;
    }
    doctor::lease(first, &last, watched.elapsed())
}

/// The accounts of the installation, as its workloads name them, and the policies that are to limit each.
async fn limits(read: &Reader<'_>) -> Vec<Limits> {
    let mut found = Vec::new();
    for (workload, account) in [
        (("deployments", "kruise-controller-manager"), account::MANAGER),
        (("deployments", "kruise-webhook"), account::WEBHOOK),
        (("daemonsets", "kruise-daemon"), account::DAEMON),
    ] {
        // A missing workload is reported by another check.
        let Ok(object) = read.system("apps", workload.0, workload.1).await else { continue };
        let runs_as = object.text("/spec/template/spec/serviceAccountName");
        let username = format!("system:serviceaccount:{}:{runs_as}", read.system);
        let mut policies = Vec::new();
        for name in manifests::policies_over(account) {
            policies.push((name, read.cluster(ADMISSION, "validatingadmissionpolicies", name).await));
        }
        found.push(Limits { username, policies });
    }
    found
}

fn custom_resource(read: &Reader<'_>, kind: &'static Kind) -> Option<impl Future<Output = Crd>> {
    let definition = kind.definition?;
    Some(async move {
        let served = served(read, kind.group, kind.plural).await;
        let object = read.cluster("apiextensions.k8s.io", "customresourcedefinitions", definition.name).await;
        Crd { name: definition.name, wanted: definition.versions, served, object }
    })
}

/// The versions in which discovery lists a resource. Everybody may read discovery.
async fn served(read: &Reader<'_>, group: &str, plural: &str) -> Result<Vec<String>, Lack> {
    let group = match read.path(&path::path(["apis", group])).await {
        Ok(group) => group,
        Err(Lack::NotFound) => return Ok(Vec::new()),
        Err(lack) => return Err(lack),
    };
    let mut served = Vec::new();
    for version in group.list("/versions") {
        let (group, version_name) = group_and_version(version.text("/groupVersion"));
        let resources = read.path(&path::version(group, version_name)).await?;
        if resources.list("/resources").iter().any(|resource| resource.text("/name") == plural) {
            served.push(version.text("/version").to_owned());
        }
    }
    served.sort();
    Ok(served)
}

/// Asks, in a dry run, for the restart of a Pod that does not exist.
async fn admission(connection: &Connection) -> Result<Answer, Lack> {
    let mut request = json!(for_pod("kruise-doctor", &["none".to_owned()], &RestartOptions::default()));
    request["metadata"]["namespace"] = connection.namespace.as_str().into();
    match create(connection, &request, true).await {
        Ok(_) => Ok(Answer { code: 201, message: String::new() }),
        Err(kube::Error::Api(status)) => Ok(Answer { code: status.code, message: status.message.clone() }),
        Err(error) => Err(lack(&error)),
    }
}

/// What the caller needs for the other commands, in the namespace that is meant.
async fn rights(connection: &Connection, workloads: bool) -> Vec<Right> {
    let api: Api<SelfSubjectAccessReview> = Api::all(connection.client.clone());
    let ask = async |verb: &str, group: &str, resource: &str, purpose: &'static str| {
        let attributes = ResourceAttributes {
            namespace: Some(connection.namespace.clone()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await;
        let allowed = answer.ok().and_then(|review| review.status).map(|status| status.allowed);
        let dot = if group.is_empty() { "" } else { "." };
        Right { what: format!("{verb} {resource}{dot}{group}"), purpose, allowed }
    };
    let mut found = Vec::new();
    for (verb, group, resource, purpose) in [
        ("get", "", "pods", "restart without -c"),
        ("create", "apps.kruise.io", "containerrecreaterequests", "restart pod/..."),
        ("get", "apps.kruise.io", "containerrecreaterequests", "status and describe"),
        ("list", "apps.kruise.io", "containerrecreaterequests", "status and --wait"),
        ("watch", "apps.kruise.io", "containerrecreaterequests", "--wait"),
        ("delete", "apps.kruise.io", "containerrecreaterequests", "cancel"),
        ("list", "", "events", "describe"),
        ("create", "kruise.rs", "workloadrestarts", "restart of workloads and selectors"),
    ] {
        if resource == "workloadrestarts" && !workloads {
            continue;
        }
        found.push(ask(verb, group, resource, purpose).await);
    }
    found
}

/// Does what an API server does before it calls a webhook: connects, and checks the certificate against the CA.
async fn handshake(host: String, port: u16, bundle: &str, dns_name: &str) -> (String, Handshake) {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let result = tokio::time::timeout(HANDSHAKE_LIMIT, shake(&address, bundle, dns_name)).await;
    let result = result.unwrap_or_else(|_| Err(Handshake::Unreachable("no answer".into())));
    (address, result.map_or_else(|bad| bad, Handshake::Valid))
}

async fn shake(address: &str, bundle: &str, dns_name: &str) -> Result<jiff::Timestamp, Handshake> {
    let refused = |error: &dyn std::error::Error| Handshake::Refused(with_sources(error));
    let stream = TcpStream::connect(address).await.map_err(|error| Handshake::Unreachable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok) {
        // A certificate that cannot be parsed is reported by another check.
        let _ = roots.add(der);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(dns_name.to_owned()).map_err(|error| refused(&error))?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| match error.kind() {
        // A closed connection says nothing about the certificate.
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => refused(&error),
        _ => Handshake::Unreachable(error.to_string()),
    })?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let end = certificates.first().and_then(certificate::end);
    end.ok_or_else(|| Handshake::Refused("the certificate cannot be read".into()))
}
