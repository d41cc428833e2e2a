//! `kruise-rs webhook`: admission. Several replicas, none of them a leader.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use kube::Client;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    api::{
        DEFAULT_NAMESPACE,
        feature_gates::{FeatureGates, gate},
    },
    k8s::account,
    manifests,
    runtime::{
        certificate_secret::CertificateSecret,
        certs, metrics, own_policies,
        serve::{self, Checks},
        shutdown::{self, Shutdown},
    },
    webhook::{
        Context, HANDLERS, SECRET, SERVICE,
        announced::Announced,
        server::{
            self, Shared,
            callers::Callers,
            configuration::Endpoint,
            external_certificates::{External, Source},
            failure_policies::FailurePolicies,
            installation::Installation,
            metrics::Metrics,
            scope::{self, Union},
        },
        sidecars::FIRST_LIST,
    },
};

const DEFAULT_RENEW_BEFORE: &str = "180d";

/// Flags of the webhook.
#[derive(Clone, Debug, clap::Args)]
pub struct WebhookArgs {
    /// Namespace that kruise-rs runs in.
    #[arg(long = "pod-namespace", env = "POD_NAMESPACE", default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    pub namespace: String,
    /// Port of the TLS server.
    #[arg(long, env = "WEBHOOK_PORT", default_value_t = 9876, value_name = "PORT")]
    pub webhook_port: u16,
    /// Host name or address under which the API server reaches this process directly, instead of through the Service.
    #[arg(long, env = "WEBHOOK_HOST", default_value = "", hide_default_value = true, value_name = "HOST")]
    pub webhook_host: String,
    /// Name of the Service in front of the webhook.
    #[arg(long, env = "SERVICE_NAME", default_value = SERVICE, value_name = "NAME")]
    pub service_name: String,
    /// Name of the Secret that holds the certificates.
    #[arg(long, env = "SECRET_NAME", default_value = SECRET, value_name = "NAME")]
    pub secret_name: String,
    /// How long before its end a serving certificate is renewed: a number and d (days), m (30 days) or y (365 days).
    #[arg(long, env = "CERTS_RENEW_BEFORE", default_value = DEFAULT_RENEW_BEFORE, value_name = "TIME")]
    pub certs_renew_before: String,
    /// What happens to requests while no webhook answers, where it is not to be the default: ENTRY=Fail or ENTRY=Ignore,
    /// with commas between them. An entry is one operation on one kind of object.
    #[arg(long, env = "KRUISE_FAILURE_POLICIES", default_value = "", hide_default_value = true, value_name = "LIST")]
    pub failure_policies: String,
    /// Directory with tls.crt, tls.key and ca.crt that somebody else renews, instead of the Secret. Only with the feature
    /// gate EnableExternalCerts.
    #[arg(long, env = "WEBHOOK_CERT_DIR", default_value = "", hide_default_value = true, value_name = "DIR")]
    pub webhook_cert_dir: String,
    /// File with the CA, in PEM, that has to have signed the certificates of those who call. Needs
    /// --webhook-client-name. It is read again every minute.
    #[arg(long, env = "WEBHOOK_CLIENT_CA", default_value = "", hide_default_value = true, value_name = "FILE")]
    pub webhook_client_ca: String,
    /// Name that the certificates of those who call have to have, as common name or DNS name. Needs
    /// --webhook-client-ca.
    #[arg(long, env = "WEBHOOK_CLIENT_NAME", default_value = "", hide_default_value = true, value_name = "NAME")]
    pub webhook_client_name: String,
    /// How long certificates and registration may take at start, for example 60s or 2m.
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    pub webhook_initialize_timeout: SignedDuration,
    /// Address of /metrics; 0 switches it off.
    #[arg(long, default_value = ":8080", value_name = "ADDR")]
    pub metrics_addr: String,
    /// Address of /healthz and /readyz; 0 switches them off.
    #[arg(long, default_value = ":8000", value_name = "ADDR")]
    pub health_probe_addr: String,
}

/// Runs until `shutdown` turns true, then until open requests are answered.
///
/// # Errors
/// A port is taken, or certificates and registration do not come about in time.
pub async fn run(args: WebhookArgs, gates: FeatureGates, client: Client, shutdown: Shutdown) -> anyhow::Result<()> {
    let endpoint = if args.webhook_host.is_empty() {
        Endpoint::Service { namespace: args.namespace.clone(), name: args.service_name.clone() }
    } else {
        Endpoint::Url { host: args.webhook_host.clone(), port: args.webhook_port }
    };
    let policies = FailurePolicies::parse(&args.failure_policies).context("--failure-policies")?;
    let callers = Callers::of(&args.webhook_client_ca, &args.webhook_client_name)?;
    let source = external_source(&args, &gates)?;
    tracing::info!(%gates, ?endpoint, client_certificates = callers.is_some(), "webhook starts");
    let all_metrics = Arc::new(metrics::Metrics::default());
    let metrics = Metrics::default();
    metrics.register(&all_metrics);

    let (tls, mut tls_ready) = watch::channel(None::<RustlsConfig>);
    let mut tasks = JoinSet::new();
    // Probes and metrics end with the process, not with the signal: the last seconds are worth seeing too.
    let (_hold, never) = watch::channel(false);
    let ready = ready(&tls_ready, &shutdown);
    serve_probes(&args, ready.clone(), &all_metrics, never, &mut tasks).await?;

    let listener = server::bind(args.webhook_port).with_context(|| format!("--webhook-port {}", args.webhook_port))?;
    let context = background(&args, &gates, &client, &all_metrics, callers.as_ref(), &ready, &mut tasks);
    let (problem, last_problem) = watch::channel(String::new());
    let limit = Duration::try_from(args.webhook_initialize_timeout).context("--webhook-initialize-timeout")?;
    // For Pods on their way out, and for new ones.
    let (for_budgets, for_new_pods) = (&context.for_budgets, &context.for_new_pods);
    let with_budgets = scope_of(vec![context.budgets.namespaces()], for_budgets, &mut tasks);
    let of_going = vec![context.budgets.namespaces(), context.spreads.counting()];
    let with_budgets_or_counting = scope_of(of_going, for_budgets, &mut tasks);
    let of_new = vec![context.sidecars.scope(), context.pod_states.scope(), context.spreads.scope()];
    let with_sidecars = scope_of(of_new, for_new_pods, &mut tasks);
    let registered = Registered {
        endpoint,
        policies,
        callers,
        source,
        with_budgets,
        with_budgets_or_counting,
        with_sidecars,
        registered_for_new_pods: for_new_pods.registered(),
        registered_for_budgets: for_budgets.registered(),
    };
    let nobody_keeps_it = [for_new_pods.registered(), for_budgets.registered()];
    let keep = registered.keep(args, gates, client, metrics.clone(), problem, tls);
    let leaving = shutdown.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = keep => Ok(()),
            // A replica that is on its way out leaves the registration to those that stay; it only answers.
            () = shutdown::requested(leaving) => {
                nobody_keeps_it.into_iter().for_each(|registered| drop(registered.send_replace(None)));
                std::future::pending().await
            }
        }
    });
    let mut stop = shutdown.clone();
    let tls = tokio::select! {
        first = tls_ready.wait_for(Option::is_some) => first.context("the installation ended")?.clone(),
        () = tokio::time::sleep(limit) => {
            let why = last_problem.borrow().clone();
            anyhow::bail!("certificates and registration did not come about within {} s: {why}", limit.as_secs())
        }
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
        Some(ended) = tasks.join_next() => anyhow::bail!("a task of the webhook ended: {ended:?}"),
    };
    let tls = tls.context("a certificate was just announced")?;
    let shared = Shared::new(context, metrics, shutdown);
    tokio::select! {
        served = server::serve(listener, tls, shared) => served.context("TLS server"),
        Some(ended) = tasks.join_next() => anyhow::bail!("a task of the webhook ended: {ended:?}"),
    }
}

/// Ready while the certificate is served and the process is not stopping.
fn ready(tls: &watch::Receiver<Option<RustlsConfig>>, shutdown: &Shutdown) -> Checks {
    let (ready, tls, shutdown) = (Checks::default(), tls.clone(), shutdown.clone());
    ready.add("webhook-ready", move || match (&*tls.borrow(), *shutdown.borrow()) {
        (_, true) => Some("stopping".into()),
        (None, _) => Some("the certificate is not served or not registered yet".into()),
        (Some(_), _) => None,
    });
    ready
}

async fn serve_probes(
    args: &WebhookArgs,
    ready: Checks,
    metrics: &Arc<metrics::Metrics>,
    never: Shutdown,
    tasks: &mut JoinSet<io::Result<()>>,
) -> anyhow::Result<()> {
    for (address, router) in [
        (&args.health_probe_addr, serve::probes(Checks::default(), ready)),
        (&args.metrics_addr, serve::metrics(metrics.clone())),
    ] {
        if let Some(listener) = serve::listen(address).await? {
            tasks.spawn(serve::serve(listener, router, never.clone()));
        }
    }
    Ok(())
}

/// What the handlers share, and the tasks behind it: events, the check of our own policies, budgets, the callers' CA.
fn background(
    args: &WebhookArgs,
    gates: &FeatureGates,
    client: &Client,
    metrics: &Arc<metrics::Metrics>,
    callers: Option<&Arc<Callers>>,
    ready: &Checks,
    tasks: &mut JoinSet<io::Result<()>>,
) -> Arc<Context> {
    let namespace: Arc<str> = args.namespace.as_str().into();
    let (context, send_events) = Context::new(gates.clone(), client.clone(), namespace, metrics.events_dropped.clone());
    let context = Arc::new(context);
    context.budgets.register(metrics);
    context.sidecars.register(metrics);
    context.pod_states.register(metrics);
    context.spreads.register(metrics);
    let mut spawn = |task: BoxFuture<'static, ()>| {
        tasks.spawn(async move {
            task.await;
            Ok(())
        });
    };
    spawn(Box::pin(send_events));
    let policies = manifests::policies_over(account::WEBHOOK);
    spawn(Box::pin(own_policies::watch(client.clone(), policies, metrics.policies_missing.clone())));
    if HANDLERS.iter().any(|h| h.namespaces.are_listed() && h.is_active(gates)) {
        let (budgets, known) = (context.budgets.clone(), context.budgets.clone());
        let reading = "the PodUnavailableBudgets are still being read";
        ready.add_at_most(FIRST_LIST, "podunavailablebudgets-read", reading, move || known.is_known());
        spawn(Box::pin(async move { budgets.follow().await }));
    }
    if HANDLERS.iter().any(|h| h.injects && h.is_active(gates)) {
        let (sidecars, known) = (context.sidecars.clone(), context.sidecars.clone());
        ready.add("sidecarsets-read", move || {
            let is_reading = !known.is_synced() && !known.is_late();
            is_reading.then(|| "the SidecarSets are still being read".into())
        });
        spawn(Box::pin(async move { sidecars.follow().await }));
        let states = context.pod_states.clone();
        spawn(Box::pin(async move { states.follow().await }));
        let (spreads, known) = (context.spreads.clone(), context.spreads.clone());
        let reading = "the WorkloadSpreads are still being read";
        ready.add_at_most(FIRST_LIST, "workloadspreads-read", reading, move || known.is_known());
        spawn(Box::pin(async move { spreads.follow().await }));
    }
    let announced = context.clone();
    spawn(Box::pin(async move {
        tokio::join!(announced.for_new_pods.forget(), announced.for_budgets.forget());
    }));
    if let Some(callers) = callers.cloned() {
        spawn(Box::pin(async move { callers.follow().await }));
    }
    context
}

/// Namespaces that several parts know of.
type Scopes = Vec<watch::Receiver<Option<BTreeSet<String>>>>;

/// The namespaces in which the API server is to call, as one channel.
fn scope_of(
    sources: Scopes,
    announced: &Announced,
    tasks: &mut JoinSet<io::Result<()>>,
) -> watch::Receiver<Option<Union>> {
    let (union, scope) = watch::channel(None);
    let announced = announced.scope();
    tasks.spawn(async move {
        scope::unite(sources, announced, union).await;
        Ok(())
    });
    scope
}

/// What the registration of the webhook says.
struct Registered {
    endpoint: Endpoint,
    policies: FailurePolicies,
    callers: Option<Arc<Callers>>,
    /// Where certificates are that somebody else renews.
    source: Option<Source>,
    with_budgets: watch::Receiver<Option<Union>>,
    with_budgets_or_counting: watch::Receiver<Option<Union>>,
    with_sidecars: watch::Receiver<Option<Union>>,
    registered_for_new_pods: watch::Sender<Option<BTreeSet<String>>>,
    registered_for_budgets: watch::Sender<Option<BTreeSet<String>>>,
}

impl Registered {
    /// Keeps certificates and registration as they should be, for ever.
    fn keep(
        self,
        args: WebhookArgs,
        gates: FeatureGates,
        client: Client,
        metrics: Metrics,
        problem: watch::Sender<String>,
        tls: watch::Sender<Option<RustlsConfig>>,
    ) -> BoxFuture<'static, ()> {
        let callers = self.callers;
        if let Some(source) = self.source {
            let external = External { client, source, endpoint: self.endpoint, gates, callers, metrics, problem };
            return Box::pin(async move { external.run(&tls).await });
        }
        let secret = CertificateSecret {
            client: client.clone(),
            namespace: args.namespace,
            name: args.secret_name,
            dns_name: self.endpoint.dns_name(),
            renew_before: renew_before(&args.certs_renew_before),
        };
        let installation = Installation {
            client,
            secret,
            endpoint: self.endpoint,
            gates,
            policies: self.policies,
            with_budgets: self.with_budgets,
            with_budgets_or_counting: self.with_budgets_or_counting,
            with_sidecars: self.with_sidecars,
            registered_for_new_pods: self.registered_for_new_pods,
            registered_for_budgets: self.registered_for_budgets,
            callers,
            metrics,
            problem,
        };
        Box::pin(async move { installation.run(&tls).await })
    }
}

/// Where certificates are that somebody else renews; None while they are ours to make.
fn external_source(args: &WebhookArgs, gates: &FeatureGates) -> anyhow::Result<Option<Source>> {
    let directory = &args.webhook_cert_dir;
    if !gates.enabled(gate::EXTERNAL_CERTS) {
        anyhow::ensure!(
            directory.is_empty(),
            "--webhook-cert-dir {directory:?}: it needs the feature gate {}, which is off",
            gate::EXTERNAL_CERTS
        );
        return Ok(None);
    }
    anyhow::ensure!(
        args.failure_policies.is_empty(),
        "--failure-policies {:?}: with the feature gate {} the webhook does not write its registration; set failurePolicy \
         in the overlay that ships it",
        args.failure_policies,
        gate::EXTERNAL_CERTS
    );
    Ok(Some(match directory.is_empty() {
        true => Source::Secret { namespace: args.namespace.clone(), name: args.secret_name.clone() },
        false => Source::Directory(directory.into()),
    }))
}

/// A value that cannot be read falls back to the default, as it does in OpenKruise.
fn renew_before(text: &str) -> Duration {
    certs::parse_renew_before(text).unwrap_or_else(|| {
        tracing::warn!(
            value = text,
            default = DEFAULT_RENEW_BEFORE,
            "CERTS_RENEW_BEFORE: want for example 180d, 6m or 1y"
        );
        certs::parse_renew_before(DEFAULT_RENEW_BEFORE).unwrap_or(certs::LEAF_VALIDITY / 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renew_before_falls_back() {
        assert_eq!(renew_before("30d"), Duration::from_secs(30 * 24 * 3600));
        assert_eq!(renew_before("soon"), Duration::from_secs(180 * 24 * 3600));
    }

    fn args(flags: &[&str]) -> WebhookArgs {
        use clap::{Args as _, FromArgMatches as _};
        let command = WebhookArgs::augment_args(clap::Command::new("webhook"));
        let flags = std::iter::once("webhook").chain(flags.iter().copied());
        WebhookArgs::from_arg_matches(&command.get_matches_from(flags)).unwrap()
    }

    #[test]
    fn settings_of_the_registration_and_of_certificates_go_with_their_gate() {
        let on = FeatureGates::parse(&["EnableExternalCerts=true"], None).unwrap();
        let off = FeatureGates::default();
        let source = |flags: &[&str], gates| external_source(&args(flags), gates).map_err(|error| error.to_string());
        assert_eq!(source(&[], &off), Ok(None));
        let secret = Source::Secret { namespace: "kruise-system".into(), name: "kruise-webhook-certs".into() };
        assert_eq!(source(&[], &on), Ok(Some(secret)));
        let dir = ["--webhook-cert-dir", "/certs"];
        assert_eq!(source(&dir, &on), Ok(Some(Source::Directory("/certs".into()))));
        assert!(source(&dir, &off).unwrap_err().contains("needs the feature gate EnableExternalCerts"));
        let policies = ["--failure-policies", "vnamespace.kb.io=Ignore"];
        assert!(source(&policies, &on).unwrap_err().starts_with("--failure-policies \"vnamespace.kb.io=Ignore\""));
        assert_eq!(source(&policies, &off), Ok(None));
    }

    #[test]
    fn flags_have_the_known_defaults() {
        let args = args(&[]);
        assert_eq!((args.webhook_port, args.namespace.as_str()), (9876, "kruise-system"));
        assert_eq!((args.metrics_addr.as_str(), args.health_probe_addr.as_str()), (":8080", ":8000"));
        assert_eq!(args.webhook_initialize_timeout, SignedDuration::from_secs(60));
    }
}
