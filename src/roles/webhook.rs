//! `kruise-rs webhook`: admission. Several replicas, none of them a leader.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use jiff::SignedDuration;
use kube::Client;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    api::{DEFAULT_NAMESPACE, feature_gates::FeatureGates},
    runtime::{
        certificate_secret::CertificateSecret,
        certs, metrics,
        serve::{self, Checks},
        shutdown,
    },
    webhook::{
        Context, HANDLERS, Namespaces, SECRET, SERVICE,
        configuration::Endpoint,
        failure_policies::FailurePolicies,
        installation::Installation,
        metrics::Metrics,
        server::{self, Shared},
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
pub async fn run(
    args: WebhookArgs,
    gates: FeatureGates,
    client: Client,
    shutdown: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let endpoint = if args.webhook_host.is_empty() {
        Endpoint::Service { namespace: args.namespace.clone(), name: args.service_name.clone() }
    } else {
        Endpoint::Url { host: args.webhook_host.clone(), port: args.webhook_port }
    };
    let policies = FailurePolicies::parse(&args.failure_policies).context("--failure-policies")?;
    tracing::info!(%gates, ?endpoint, "webhook starts");
    let all_metrics = Arc::new(metrics::Metrics::default());
    let metrics = Metrics::default();
    metrics.register(&all_metrics);

    let (tls, mut tls_ready) = watch::channel(None::<RustlsConfig>);
    let ready = Checks::default();
    {
        let (tls, shutdown) = (tls_ready.clone(), shutdown.clone());
        ready.add("webhook-ready", move || match (&*tls.borrow(), *shutdown.borrow()) {
            (_, true) => Err("stopping".into()),
            (None, _) => Err("the certificate is not served or not registered yet".into()),
            (Some(_), _) => Ok(()),
        });
    }
    // Probes and metrics end with the process, not with the signal: the last seconds are worth seeing too.
    let (_hold, never) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for (address, router) in [
        (&args.health_probe_addr, serve::probes(Checks::default(), ready)),
        (&args.metrics_addr, serve::metrics(all_metrics.clone())),
    ] {
        if let Some(listener) = serve::listen(address).await? {
            tasks.spawn(serve::serve(listener, router, never.clone()));
        }
    }

    let listener = server::bind(args.webhook_port).with_context(|| format!("--webhook-port {}", args.webhook_port))?;
    let namespace: Arc<str> = args.namespace.as_str().into();
    let dropped = all_metrics.events_dropped.clone();
    let (context, send_events) = Context::new(gates.clone(), client.clone(), namespace, dropped);
    let context = Arc::new(context);
    context.budgets.register(&all_metrics);
    tasks.spawn(async move {
        send_events.await;
        Ok(())
    });
    let with_budgets = context.budgets.namespaces();
    if HANDLERS.iter().any(|h| h.namespaces == Namespaces::WithBudgets && h.is_active(&gates)) {
        let budgets = context.budgets.clone();
        tasks.spawn(async move {
            budgets.follow().await;
            Ok(())
        });
    }
    let secret = CertificateSecret {
        client: client.clone(),
        namespace: args.namespace,
        name: args.secret_name,
        dns_name: endpoint.dns_name(),
        renew_before: renew_before(&args.certs_renew_before),
    };
    let installation = Installation {
        client: client.clone(),
        secret,
        endpoint,
        gates: gates.clone(),
        policies,
        with_budgets,
        metrics: metrics.clone(),
    };
    let leaving = shutdown.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = installation.run(&tls) => Ok(()),
            // A replica that is on its way out leaves the registration to those that stay; it only answers.
            () = shutdown::requested(leaving) => std::future::pending().await,
        }
    });
    let limit = Duration::try_from(args.webhook_initialize_timeout).context("--webhook-initialize-timeout")?;
    let mut stop = shutdown.clone();
    let tls = tokio::select! {
        first = tls_ready.wait_for(Option::is_some) => first.context("the installation ended")?.clone(),
        () = tokio::time::sleep(limit) => {
            anyhow::bail!("certificates and registration did not come about within {} s; the warnings above say why", limit.as_secs())
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

    #[test]
    fn flags_have_the_known_defaults() {
        use clap::{Args as _, FromArgMatches as _};
        let command = WebhookArgs::augment_args(clap::Command::new("webhook"));
        let args = WebhookArgs::from_arg_matches(&command.get_matches_from(["webhook"])).unwrap();
        assert_eq!((args.webhook_port, args.namespace.as_str()), (9876, "kruise-system"));
        assert_eq!((args.metrics_addr.as_str(), args.health_probe_addr.as_str()), (":8080", ":8000"));
        assert_eq!(args.webhook_initialize_timeout, SignedDuration::from_secs(60));
    }
}
