//! `kruise-rs manager`: the controllers, on one replica at a time.

use std::{io, net::TcpListener, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::ArgAction;
use jiff::SignedDuration;
use kube::Client;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    api::{
        CRDS, DEFAULT_NAMESPACE,
        feature_gates::{FeatureGates, gate},
    },
    budgets::Budgets,
    controllers::{self, Context, ImageSettings, Registration, RequestSettings, Settings},
    domain::pull_secrets as rules,
    k8s::account,
    manifests,
    pull_secrets::{self, certificates, server},
    runtime::own_policies,
    runtime::{
        certificate_secret::CertificateSecret,
        certs::LEAF_VALIDITY,
        client,
        events::Recorder,
        fence::Fence,
        leader::{self, Elector, Timing},
        metrics::Metrics,
        serve::{self, Checks},
        shutdown::{self, Shutdown},
        stored_versions,
        watches::{self, Change, Store},
    },
};

/// How long reconciles that run at the stop may take to end. The Lease is released after that, not before.
const DRAIN: Duration = Duration::from_secs(8);
/// The least that `--daemon-gone-after` may be: an update of the daemon takes less.
const DAEMON_GONE_AFTER_LEAST: Duration = Duration::from_secs(60);

/// Flags of the manager.
#[derive(Clone, Debug, clap::Args)]
pub struct ManagerArgs {
    /// Namespace that kruise-rs runs in.
    #[arg(long = "pod-namespace", env = "POD_NAMESPACE", default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    pub own_namespace: String,
    /// Address of /metrics; 0 switches it off.
    #[arg(long, default_value = ":8080", value_name = "ADDR")]
    pub metrics_addr: String,
    /// Address of /healthz and /readyz; 0 switches them off.
    #[arg(long, default_value = ":8000", value_name = "ADDR")]
    pub health_probe_addr: String,
    /// Controllers to run: * for all, -NAME to leave one out.
    #[arg(long, default_value = "*", value_delimiter = ',', allow_hyphen_values = true, value_name = "NAMES")]
    pub controllers: Vec<String>,
    /// The only namespace to look at. Default: all.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAMESPACE")]
    pub namespace: String,
    /// ContainerRecreateRequests of one namespace that are reconciled at the same time; of all together, twice as many.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub crr_workers: u32,
    /// After this time without a ready kruise-daemon on its node, a ContainerRecreateRequest ends, or is left behind if a
    /// stop is on record. At least 1m.
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub daemon_gone_after: SignedDuration,
    /// CloneSets of one namespace that are reconciled at the same time; of all together, twice as many.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub cloneset_workers: u32,
    /// ImagePullJobs of one namespace that are reconciled at the same time; of all together, twice as many.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub imagepulljob_workers: u32,
    /// NodeImages that are written at the same time.
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodeimage_workers: u32,
    /// How long a Node is Ready before it gets a NodeImage.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub nodeimage_creation_delay: SignedDuration,
    /// Seconds that entries of NodeImages are kept beyond what their ImagePullJobs say.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..=2_678_400))]
    pub default_ttlseconds_for_always_nodeimage: i32,
    /// Nodes, and PodProbeMarkers of one namespace, that are reconciled at the same time.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub podprobemarker_workers: u32,
    /// Pods of CloneSets that wait for their deletion do not count as replicas.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_name = "BOOL")]
    pub cloneset_scaling_exclude_preparing_delete: bool,
    /// Act only while holding the Lease. Switch it off only where nothing else runs the controllers.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_name = "BOOL")]
    pub enable_leader_election: bool,
    /// Namespace of the Lease. Default: the one that kruise-rs runs in.
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// Name of the Lease. OpenKruise's manager uses the same: they never act together.
    #[arg(long, default_value = "kruise-manager", value_name = "NAME")]
    pub leader_election_id: String,
    /// Kind of the lock.
    #[arg(long, default_value = "leases", hide = true, value_parser = ["leases"])]
    pub leader_election_resource_lock: String,
    /// After this time without a change others take the Lease.
    #[arg(long, default_value = "15s", value_name = "DURATION")]
    pub leader_election_lease_duration: SignedDuration,
    /// After this time without a renewal the holder ends itself.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub leader_election_renew_deadline: SignedDuration,
    /// Time between two attempts.
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    pub leader_election_retry_period: SignedDuration,
    /// Port on which daemons are served registry credentials over TLS; 0 switches it off.
    #[arg(long, default_value_t = pull_secrets::PORT, value_name = "PORT")]
    pub serve_pull_secrets_port: u16,
}

impl ManagerArgs {
    fn timing(&self) -> Timing {
        // A negative duration becomes zero, which the validation names.
        let duration = |signed: SignedDuration| signed.try_into().unwrap_or_default();
        Timing {
            lease_duration: duration(self.leader_election_lease_duration),
            renew_deadline: duration(self.leader_election_renew_deadline),
            retry_period: duration(self.leader_election_retry_period),
        }
    }

    fn images(&self) -> ImageSettings {
        ImageSettings {
            node_workers: self.nodeimage_workers.try_into().unwrap_or(8),
            creation_delay: self.nodeimage_creation_delay.try_into().unwrap_or_default(),
            default_ttl: self.default_ttlseconds_for_always_nodeimage,
        }
    }

    fn requests(&self) -> anyhow::Result<RequestSettings> {
        match Duration::try_from(self.daemon_gone_after) {
            Ok(daemon_gone_after) if daemon_gone_after >= DAEMON_GONE_AFTER_LEAST => {
                Ok(RequestSettings { daemon_gone_after })
            }
            _ => bail!("--daemon-gone-after: {:#}: want 1m or more", self.daemon_gone_after),
        }
    }

    fn workers(&self, controller: &Registration) -> usize {
        match controller.workers_flag {
            Some("cloneset-workers") => self.cloneset_workers.try_into().unwrap_or(controller.workers),
            Some("imagepulljob-workers") => self.imagepulljob_workers.try_into().unwrap_or(controller.workers),
            Some("crr-workers") => self.crr_workers.try_into().unwrap_or(controller.workers),
            Some("podprobemarker-workers") => self.podprobemarker_workers.try_into().unwrap_or(controller.workers),
            Some(_) | None => controller.workers,
        }
    }
}

/// Runs until `shutdown` turns true, then lets reconciles end and hands the Lease over.
///
/// # Errors
/// A flag makes no sense, an address is taken, leadership is lost: end the process with an error.
pub async fn run(args: ManagerArgs, gates: FeatureGates, client: Client, shutdown: Shutdown) -> anyhow::Result<()> {
    let timing = args.timing();
    timing.validate()?;
    let chosen = controllers::select(&args.controllers).map_err(anyhow::Error::msg)?;
    tracing::info!(%gates, namespace = args.own_namespace, "manager starts");
    let needed = CRDS.iter().filter(|crd| chosen.iter().any(|controller| controller.needs_crd == Some(crd.name)));
    stored_versions::check(&client, needed).await?;

    let metrics = Arc::new(Metrics::default());
    metrics.for_manager();
    let fence = Fence::default();
    if !args.enable_leader_election {
        fence.open_until(Duration::MAX);
    }
    let fenced = fence.around(&client);
    let (events, send_events) = Recorder::new(fenced.clone(), "kruise-manager", "", metrics.events_dropped.clone());
    let gates = Arc::new(gates);
    let budgets = Budgets::new(fenced.clone(), gates.clone());
    budgets.register(&metrics);
    let context = Context {
        client: fenced,
        budgets,
        pods: Store::new(Some(controllers::controller_uid)),
        events,
        metrics: metrics.clone(),
        namespace: args.own_namespace.as_str().into(),
        only_namespace: (!args.namespace.is_empty()).then(|| args.namespace.as_str().into()),
        gates,
        settings: Settings {
            exclude_preparing_delete: args.cloneset_scaling_exclude_preparing_delete,
            images: args.images(),
            requests: args.requests()?,
        },
    };
    let (leading, is_leading) = watch::channel(!args.enable_leader_election);

    let ready = Checks::default();
    {
        let (pods, is_leading) = (context.pods.clone(), is_leading.clone());
        ready.add("pods-synced", move || match *is_leading.borrow() && !pods.is_synced() {
            true => Err("leading, but the Pods have not all been read yet".into()),
            false => Ok(()),
        });
    }
    // Probes and metrics end with the process, not with the signal: the last seconds are worth seeing too.
    let (_serving, never) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if let Some(listener) = serve::listen(&args.health_probe_addr).await.context("--health-probe-addr")? {
        tasks.spawn(serve::serve(listener, serve::probes(Checks::default(), ready), never.clone()));
    }
    if let Some(listener) = serve::listen(&args.metrics_addr).await.context("--metrics-addr")? {
        tasks.spawn(serve::serve(listener, serve::metrics(metrics.clone()), never));
    }
    tasks.spawn(async move {
        send_events.await;
        Ok(())
    });
    {
        let (client, missing) = (client.clone(), metrics.policies_missing.clone());
        tasks.spawn(async move {
            own_policies::watch(client, manifests::policies_over(account::MANAGER), missing).await;
            Ok(())
        });
    }

    // Every replica serves: it writes nothing but its certificate, in a Secret that all of them share.
    if args.serve_pull_secrets_port != 0 && context.gates.enabled(gate::IMAGE_PULL_JOB) {
        let address = format!(":{}", args.serve_pull_secrets_port);
        if let Some(listener) = serve::listen(&address).await.context("--serve-pull-secrets-port")? {
            tasks.spawn(serve_pull_secrets(
                listener.into_std()?,
                client.clone(),
                &args.own_namespace,
                &metrics,
                shutdown.clone(),
            ));
        }
    }

    let (stop_election, election_stopped) = watch::channel(false);
    let election = async {
        if !args.enable_leader_election {
            shutdown::requested(election_stopped).await;
            return Ok(());
        }
        let namespace = args.leader_election_namespace.as_deref().unwrap_or(&args.own_namespace);
        let elector = Elector::new(client, namespace, &args.leader_election_id, leader::identity(), timing, fence);
        elector.run(leading, election_stopped).await
    };
    let mut election = pin!(election);
    let work = lead(&args, &chosen, &context, is_leading, shutdown.clone());
    tokio::select! {
        ended = &mut election => {
            ended?;
            bail!("the election ended");
        }
        ended = work => ended?,
        () = drained(shutdown) => tracing::warn!("reconciles are still running, leaving them"),
        Some(ended) = tasks.join_next() => bail!("a task of the manager ended: {ended:?}"),
    }
    metrics.is_leader.set(0);
    stop_election.send_replace(true);
    election.await?;
    Ok(())
}

/// Serves registry credentials to daemons, for ever.
fn serve_pull_secrets(
    listener: TcpListener,
    client: Client,
    namespace: &str,
    all_metrics: &Metrics,
    shutdown: Shutdown,
) -> impl Future<Output = io::Result<()>> + use<> {
    let metrics = pull_secrets::Metrics::default();
    metrics.register(all_metrics);
    let secret = CertificateSecret {
        client: client.clone(),
        namespace: namespace.to_owned(),
        name: pull_secrets::SECRET.into(),
        dns_name: rules::dns_name(namespace),
        renew_before: LEAF_VALIDITY / 2,
    };
    let context = server::Context::new(client, namespace.to_owned(), metrics);
    async move {
        let (tls, mut ready) = watch::channel(None);
        let serving = async {
            let tls = ready.wait_for(Option::is_some).await.map(|tls| tls.clone());
            // Without one nobody is left who could make a certificate: the process ends.
            if let Ok(Some(tls)) = tls {
                server::serve(listener, tls, context, shutdown).await?;
            }
            // After the shutdown others end the process.
            std::future::pending().await
        };
        tokio::select! {
            result = serving => result,
            () = certificates::keep(secret, tls) => Ok(()),
        }
    }
}

async fn drained(shutdown: Shutdown) {
    shutdown::requested(shutdown).await;
    tokio::time::sleep(DRAIN).await;
}

/// Waits for the Lease, then runs the controllers until the shutdown.
async fn lead(
    args: &ManagerArgs,
    chosen: &[&'static Registration],
    context: &Context,
    mut is_leading: watch::Receiver<bool>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    tokio::select! {
        leads = is_leading.wait_for(|leads| *leads) => { leads?; }
        () = shutdown::requested(shutdown.clone()) => return Ok(()),
    }
    context.metrics.is_leader.set(1);

    let mut handlers = Vec::new();
    let mut running = JoinSet::new();
    for controller in chosen {
        let name = controller.name;
        if let Some(gate) = controller.gate.filter(|gate| !context.gates.enabled(gate)) {
            tracing::info!(controller = name, gate, "not started: its feature gate is off");
            continue;
        }
        if let Some(crd) = controller.needs_crd
            && !client::serves(&context.client, crd).await.with_context(|| format!("looking for {crd}"))?
        {
            tracing::warn!(
                controller = name,
                crd,
                "not started: its custom resource is not installed; install it and restart"
            );
            continue;
        }
        let started = (controller.start)(context, args.workers(controller), shutdown.clone());
        handlers.push(started.on_pod);
        running.spawn(started.run);
    }
    let on_change = move |change: Change<'_, _>| {
        for handler in &mut handlers {
            handler(&change);
        }
    };
    let pods = watches::watch_pods(context.api(), None, context.pods.clone(), on_change);
    let ended = async {
        while let Some(ended) = running.join_next().await {
            ended.context("a controller failed")?;
            if !*shutdown.borrow() {
                bail!("a controller ended");
            }
        }
        // Without a controller the manager still answers probes.
        shutdown::requested(shutdown.clone()).await;
        Ok(())
    };
    tokio::select! {
        () = pods => bail!("the watch of Pods ended"),
        ended = ended => ended,
    }
}
