//! `kruise-rs manager`: the controllers, on one replica at a time.

use std::{
    collections::BTreeMap,
    io,
    net::TcpListener,
    pin::pin,
    sync::{Arc, LazyLock},
    time::Duration,
};

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
    controllers::{self, CONTROLLERS, Context, ImageSettings, Registration, RequestSettings, Settings},
    domain::node::pull_secrets as rules,
    k8s::{
        account,
        pod::{PodObject, PodView},
    },
    manifests,
    pull_secrets::{self, certificates, server},
    runtime::{
        certificate_secret::CertificateSecret,
        certs::LEAF_VALIDITY,
        client,
        ending::Ending,
        events::Recorder,
        fence::Fence,
        leader::{self, Elector, Timing},
        metrics::Metrics,
        nodes::Nodes,
        own_policies,
        serve::{self, Checks},
        shutdown::{self, Shutdown},
        standstill::{self, Health, Work},
        stored_versions,
        watches::{self, Change, Store},
    },
};

/// How long reconciles that run at the stop may take to end. The Lease is released after that, not before.
const DRAIN: Duration = Duration::from_secs(8);
/// The least that `--daemon-gone-after` may be: an update of the daemon takes less.
const DAEMON_GONE_AFTER_LEAST: Duration = Duration::from_secs(60);
/// After the API server could not say what it serves.
const AGAIN: Duration = Duration::from_secs(2);

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
    /// Of the controllers that have a flag for it.
    #[command(flatten)]
    pub workers: Workers,
    /// After this time without a ready kruise-daemon on its node, a ContainerRecreateRequest ends, or is left behind if a
    /// stop is on record. At least 1m.
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub daemon_gone_after: SignedDuration,
    /// NodeImages that are written at the same time.
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodeimage_workers: u32,
    /// How long a Node is Ready before it gets a NodeImage.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub nodeimage_creation_delay: SignedDuration,
    /// Seconds that entries of NodeImages are kept beyond what their ImagePullJobs say.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..=2_678_400))]
    pub default_ttlseconds_for_always_nodeimage: i32,
    /// Pods of CloneSets that wait for their deletion do not count as replicas.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_name = "BOOL")]
    pub cloneset_scaling_exclude_preparing_delete: bool,
    /// Pods of BroadcastJobs get to their nodes by the scheduler. false: they are bound to them when they are made.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_name = "BOOL")]
    pub assign_bcj_pods_by_scheduler: bool,
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
    /// After this time without a renewal the holder stands by.
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

    fn settings(&self) -> anyhow::Result<Settings> {
        Ok(Settings {
            exclude_preparing_delete: self.cloneset_scaling_exclude_preparing_delete,
            images: self.images(),
            requests: self.requests()?,
            binds_broadcast_pods: !self.assign_bcj_pods_by_scheduler,
        })
    }
}

/// How many objects each controller reconciles at the same time: the flags `--cloneset-workers` and so on of the table
/// [`CONTROLLERS`].
#[derive(Clone, Debug, Default)]
pub struct Workers(BTreeMap<&'static str, u32>);

impl Workers {
    /// What the flag of a controller says, or its own number.
    fn of(&self, controller: &Registration) -> usize {
        let set = controller.workers_flag.and_then(|flag| self.0.get(flag));
        set.and_then(|count| usize::try_from(*count).ok()).unwrap_or(controller.workers)
    }

    /// The value of a flag.
    #[cfg(test)]
    pub fn get(&self, flag: &str) -> Option<u32> {
        self.0.get(flag).copied()
    }
}

impl clap::FromArgMatches for Workers {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let flags = CONTROLLERS.iter().filter_map(|controller| controller.workers_flag);
        Ok(Self(flags.filter_map(|flag| Some((flag, *matches.get_one::<u32>(flag)?))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl clap::Args for Workers {
    fn augment_args(command: clap::Command) -> clap::Command {
        // clap keeps references.
        static DEFAULTS: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
            let flags = CONTROLLERS.iter().filter_map(|c| Some((c.workers_flag?, c.workers.to_string())));
            flags.collect()
        });
        command.args(CONTROLLERS.iter().filter_map(|controller| {
            let flag = controller.workers_flag?;
            let help = format!(
                "Objects of one namespace that {} reconciles at the same time; of all together, twice as many",
                controller.name
            );
            let default = DEFAULTS.get(flag).map_or("3", String::as_str);
            let parser = clap::value_parser!(u32).range(1..);
            let arg = clap::Arg::new(flag).long(flag).value_name("COUNT").value_parser(parser);
            Some(arg.default_value(default).help(help))
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Runs until `shutdown` turns true, then lets reconciles end and hands the Lease over. An outage of the API server ends
/// nothing: who cannot renew the Lease stands by.
///
/// # Errors
/// A flag makes no sense, an address is taken, work stands still: end the process with an error.
pub async fn run(args: ManagerArgs, gates: FeatureGates, client: Client, shutdown: Shutdown) -> anyhow::Result<()> {
    let timing = args.timing();
    timing.validate()?;
    let chosen = controllers::select(&args.controllers)?;
    tracing::info!(%gates, namespace = args.own_namespace, "manager starts");
    for gate in gates.without_effect() {
        tracing::warn!(gate, "this feature gate is on but has no effect in kruise-rs: do not rely on it");
    }
    let needed = CRDS.iter().filter(|crd| chosen.iter().any(|controller| controller.needs_crd == Some(crd.name)));
    tokio::select! {
        checked = stored_versions::check(&client, needed) => checked?,
        () = shutdown::requested(shutdown.clone()) => return Ok(()),
    }

    let metrics = Arc::new(Metrics::default());
    metrics.for_manager();
    let fence = Fence::default();
    let (term, is_leading) = watch::channel(None);
    if !args.enable_leader_election {
        fence.open_until(Duration::MAX);
        term.send_replace(Some(fence.term()));
    }
    let ending = Ending::default();
    let (events, send_events) =
        Recorder::new(fence.around(&client, &ending), "kruise-manager", "", metrics.events_dropped.clone());
    let leader = Leader {
        args: &args,
        chosen,
        client: client.clone(),
        gates: Arc::new(gates),
        events,
        metrics: metrics.clone(),
        settings: args.settings()?,
        ending,
        work: Work::default(),
        pods: watch::Sender::new(None),
    };
    let health = Health::default();
    let checks = (leader.health(&health), leader.ready(&is_leading));

    // Probes and metrics end with the process, not with the signal: the last seconds are worth seeing too.
    let (_serving, never) = watch::channel(false);
    let mut tasks = leader.background(checks, send_events, never, shutdown.clone()).await?;

    let (stop_election, election_stopped) = watch::channel(false);
    let election = async {
        if !args.enable_leader_election {
            return shutdown::requested(election_stopped).await;
        }
        let namespace = args.leader_election_namespace.as_deref().unwrap_or(&args.own_namespace);
        let id = &args.leader_election_id;
        Elector::new(client.clone(), namespace, id, leader::identity(), timing, fence).run(term, election_stopped).await
    };
    let mut election = pin!(election);
    let mut stuck = None;
    tokio::select! {
        () = &mut election => bail!("the election ended"),
        ended = leader.lead(is_leading, shutdown.clone()) => ended?,
        () = drained(shutdown) => tracing::warn!("reconciles are still running, leaving them"),
        why = standstill::stands_still(&leader.work, &client) => {
            health.fail(why.clone());
            stuck = Some(why);
        }
        Some(ended) = tasks.join_next() => bail!("a task of the manager ended: {ended:?}"),
    }
    // Another manager does not have to wait for the Lease to run out, also if this one is stuck.
    metrics.is_leader.set(0);
    stop_election.send_replace(true);
    election.await;
    stuck.map_or(Ok(()), |why| Err(anyhow::Error::msg(why)))
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

/// What leads while the Lease is ours.
struct Leader<'a> {
    args: &'a ManagerArgs,
    chosen: Vec<&'static Registration>,
    client: Client,
    gates: Arc<FeatureGates>,
    events: Recorder,
    metrics: Arc<Metrics>,
    settings: Settings,
    /// Namespaces that end stay known over terms: they never recover.
    ending: Ending,
    work: Work,
    /// The Pods of the term that runs.
    pods: watch::Sender<Option<Arc<Store<PodView>>>>,
}

impl Leader<'_> {
    fn health(&self, health: &Health) -> Checks {
        let (checks, health) = (Checks::default(), health.clone());
        checks.add("work", move || health.problem());
        checks
    }

    fn ready(&self, is_leading: &watch::Receiver<Option<Fence>>) -> Checks {
        let (checks, pods, is_leading) = (Checks::default(), self.pods.subscribe(), is_leading.clone());
        checks.add("pods-synced", move || {
            let is_synced = pods.borrow().as_ref().is_some_and(|pods| pods.is_synced());
            let is_early = is_leading.borrow().is_some() && !is_synced;
            is_early.then(|| "leading, but the Pods have not all been read yet".into())
        });
        checks
    }

    /// What runs whoever leads: probes, metrics, events, the look at our own policies, and registry credentials.
    async fn background(
        &self,
        checks: (Checks, Checks),
        send_events: impl Future<Output = ()> + Send + 'static,
        never: Shutdown,
        shutdown: Shutdown,
    ) -> anyhow::Result<JoinSet<io::Result<()>>> {
        let mut tasks = JoinSet::new();
        if let Some(listener) = serve::listen(&self.args.health_probe_addr).await.context("--health-probe-addr")? {
            tasks.spawn(serve::serve(listener, serve::probes(checks.0, checks.1), never.clone()));
        }
        if let Some(listener) = serve::listen(&self.args.metrics_addr).await.context("--metrics-addr")? {
            tasks.spawn(serve::serve(listener, serve::metrics(self.metrics.clone()), never));
        }
        tasks.spawn(async move {
            send_events.await;
            Ok(())
        });
        let (asks, missing) = (self.client.clone(), self.metrics.policies_missing.clone());
        tasks.spawn(async move {
            own_policies::watch(asks, manifests::policies_over(account::MANAGER), missing).await;
            Ok(())
        });

        // Every replica serves: it writes nothing but its certificate, in a Secret that all of them share.
        if self.args.serve_pull_secrets_port != 0 && self.gates.enabled(gate::IMAGE_PULL_JOB) {
            let address = format!(":{}", self.args.serve_pull_secrets_port);
            if let Some(listener) = serve::listen(&address).await.context("--serve-pull-secrets-port")? {
                tasks.spawn(serve_pull_secrets(
                    listener.into_std()?,
                    self.client.clone(),
                    &self.args.own_namespace,
                    &self.metrics,
                    shutdown,
                ));
            }
        }
        Ok(tasks)
    }

    /// Leads in each term until it is over, until the shutdown. A later term begins with nothing of an earlier one:
    /// another manager may have acted meanwhile.
    async fn lead(&self, mut is_leading: watch::Receiver<Option<Fence>>, shutdown: Shutdown) -> anyhow::Result<()> {
        loop {
            let fence = tokio::select! {
                fence = is_leading.wait_for(Option::is_some) => fence?.clone().context("no fence")?,
                () = shutdown::requested(shutdown.clone()) => return Ok(()),
            };
            self.metrics.is_leader.set(1);
            let is_over = |now: &Option<Fence>| now.as_ref().is_none_or(|now| !now.is(&fence));
            tokio::select! {
                ended = self.term(&fence, shutdown.clone()) => return ended,
                over = is_leading.wait_for(is_over) => drop(over?),
            }
            self.metrics.is_leader.set(0);
            self.pods.send_replace(None);
            tracing::info!("controllers stopped, standing by");
        }
    }

    /// What the controllers of one term share.
    fn context(&self, fence: &Fence) -> Context {
        let fenced = fence.around(&self.client, &self.ending);
        let budgets = Budgets::new(fenced.clone(), self.gates.clone());
        budgets.register(&self.metrics);
        let args = self.args;
        Context {
            nodes: Nodes::new(fenced.clone()),
            client: fenced,
            budgets,
            pods: controllers::pod_store(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            work: self.work.clone(),
            namespace: args.own_namespace.as_str().into(),
            only_namespace: (!args.namespace.is_empty()).then(|| args.namespace.as_str().into()),
            gates: self.gates.clone(),
            settings: self.settings,
        }
    }

    /// Runs the controllers until the shutdown.
    async fn term(&self, fence: &Fence, shutdown: Shutdown) -> anyhow::Result<()> {
        let context = self.context(fence);
        self.pods.send_replace(Some(context.pods.clone()));
        let (mut on_pod, mut on_node) = (Vec::new(), Vec::new());
        let mut running = JoinSet::new();
        for controller in &self.chosen {
            if !self.is_wanted(controller).await {
                continue;
            }
            let started = controller.make(&context, self.args.workers.of(controller), shutdown.clone());
            on_pod.extend(started.on_pod);
            on_node.extend(started.on_node);
            running.spawn(started.run);
        }
        let report_pod = move |change: Change<'_, _>| on_pod.iter_mut().for_each(|handler| handler(&change));
        let api = context.api::<PodObject, _>();
        // Tasks of their own: an event wakes its watch, and not all that is waited for here.
        let (pods, nodes) = (context.pods.clone(), context.nodes.clone());
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            watches::watch_in_protobuf(api, None, pods, |pod| pod, report_pod).await;
            "Pods"
        });
        watching.spawn(async move {
            nodes.watch(move |change| on_node.iter_mut().for_each(|handler| handler(change))).await;
            "Nodes"
        });
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
            Some(ended) = watching.join_next() => bail!("the watch of {} ended", ended.context("a watch failed")?),
            ended = ended => ended,
        }
    }

    /// Whether its feature gate is on and its custom resource is there. An API server that cannot be asked is asked again.
    async fn is_wanted(&self, controller: &Registration) -> bool {
        let name = controller.name;
        if let Some(gate) = controller.gate.filter(|gate| !self.gates.enabled(gate)) {
            tracing::info!(controller = name, gate, "not started: its feature gate is off");
            return false;
        }
        let Some(crd) = controller.needs_crd else { return true };
        loop {
            match client::serves(&self.client, crd).await {
                Ok(true) => return true,
                Ok(false) => {
                    tracing::warn!(
                        controller = name,
                        crd,
                        "not started: its custom resource is not installed; install it and restart"
                    );
                    return false;
                }
                Err(error) => tracing::warn!(controller = name, crd, %error, "looking for the custom resource, again"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
