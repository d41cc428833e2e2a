//! `kruise-rs daemon`: one per node.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{Api, Client, runtime::watcher::Config};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    api::{
        DEFAULT_NAMESPACE,
        crr::ContainerRecreateRequest,
        feature_gates::{FeatureGates, gate},
        labels,
    },
    cri::endpoint,
    daemon::{
        container_meta::{ContainerMeta, Gates},
        images::{
            self, Puller,
            credentials::{Address, PullSecrets},
        },
        prober::{self, Prober},
        recreate::{self, Recreator, is_work},
        runtimes::{self, Runtimes, Socket},
    },
    domain::node::pull_secrets,
    k8s::{
        account,
        pod::{PodObject, PodView},
    },
    manifests,
    runtime::{
        client,
        events::Recorder,
        guarded::Guarded,
        metrics::Metrics,
        own_policies,
        queue::{Backoff, Queue},
        serve::{self, Checks},
        shutdown::{self, Shutdown},
        watches::{self, Change, Store},
    },
};

/// Pods that may be in work at the same time; a node runs fewer.
const WORKERS: usize = 1024;

/// Where kubelet begins to remove images, by default. It stops at 80 %, so many disks stay between the two: with a lower limit
/// nothing would ever be pulled there.
const IMAGE_FS_LIMIT_PERCENT: u8 = 85;

const NODE_IMAGES: &str = "nodeimages.apps.kruise.io";

/// Flags of the daemon.
#[derive(Clone, Debug, clap::Args)]
pub struct DaemonArgs {
    /// Node to serve: only Pods and requests of this node are watched.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node: String,
    /// The only runtime socket to use, below the run directory or as an absolute path. Default: look for
    /// containerd, k3s, rke2, CRI-O and cri-dockerd.
    #[arg(long, default_value = "", value_name = "PATH")]
    pub socket_file: String,
    /// Directory below which runtime sockets are looked for. Default: /hostvarrun if it is there, else /run.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Address of /metrics, /healthz and /readyz. Loopback by default: nothing of the node is shown to the network.
    #[arg(long, default_value = "127.0.0.1:10221", value_name = "ADDR")]
    pub addr: String,
    /// Images that are pulled at the same time; 0 or less for no limit.
    #[arg(long, default_value_t = 4, allow_negative_numbers = true, value_name = "COUNT")]
    pub max_workers_for_pull_image: i32,
    /// Nothing is pulled while the file system that holds images is this full, in percent, and a pull under way is
    /// ended. 100 limits nothing.
    #[arg(long, default_value_t = IMAGE_FS_LIMIT_PERCENT, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub image_fs_limit_percent: u8,
    /// A path on the file system that holds images. Default: where the runtime says it keeps them, if that is visible,
    /// else /, which in a container lies on it.
    #[arg(long, value_name = "PATH")]
    pub image_fs_path: Option<PathBuf>,
    /// Namespace that kruise-rs is installed in: its managers serve registry credentials, and its Pods are not probed.
    #[arg(long, env = "POD_NAMESPACE", default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    pub pull_secrets_namespace: String,
    /// Address of their Service. Default: its name is looked up.
    #[arg(
        long,
        env = "KRUISE_PULL_SECRETS_SERVICE_HOST",
        default_value = "",
        hide_default_value = true,
        value_name = "HOST"
    )]
    pub pull_secrets_host: String,
    /// Port of their Service.
    #[arg(long, env = "KRUISE_PULL_SECRETS_SERVICE_PORT", default_value_t = 443, value_name = "PORT")]
    pub pull_secrets_port: u16,
    /// File with the token that this daemon shows them.
    #[arg(long, default_value = pull_secrets::TOKEN_FILE, value_name = "PATH")]
    pub pull_secrets_token_file: PathBuf,
}

impl DaemonArgs {
    /// With nothing said but the node.
    pub fn of_node(node: String) -> Self {
        Self {
            node,
            socket_file: String::new(),
            run_dir: None,
            addr: "0".into(),
            max_workers_for_pull_image: 4,
            image_fs_limit_percent: IMAGE_FS_LIMIT_PERCENT,
            image_fs_path: None,
            pull_secrets_namespace: DEFAULT_NAMESPACE.into(),
            pull_secrets_host: String::new(),
            pull_secrets_port: 443,
            pull_secrets_token_file: pull_secrets::TOKEN_FILE.into(),
        }
    }
}

/// Runs until `shutdown` turns true.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn run(args: DaemonArgs, gates: FeatureGates, client: Client, shutdown: Shutdown) -> anyhow::Result<()> {
    anyhow::ensure!(!args.node.is_empty(), "--node (or NODE_NAME) is empty: want the name of this node");
    tracing::info!(node = args.node, %gates, "daemon starts");
    let metrics = Arc::new(Metrics::default());
    let views = Views {
        requests: Store::of_work([recreate::BY_POD], |r| !is_work(r)),
        pods: Store::new(None),
        runtimes: Runtimes::default(),
    };
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    serve_probes(&args.addr, views.checks(), &metrics, &shutdown, &mut tasks).await?;

    let (events, write_events) =
        Recorder::new(client.clone(), account::EVENTS_OF_REQUESTS, &args.node, metrics.events_dropped.clone());
    tasks.spawn(for_ever("events", write_events));
    let policies = own_policies::watch(
        client.clone(),
        manifests::policies_over(account::DAEMON),
        metrics.policies_missing.clone(),
    );
    tasks.spawn(async move {
        policies.await;
        Ok(())
    });

    let (changed, mut containers_changed) = mpsc::channel(256);
    let (first_answer, mut first_answers) = mpsc::channel::<()>(1);
    let run_dir = args.run_dir.clone().unwrap_or_else(default_run_dir);
    for (place, path) in endpoint::candidates(&run_dir, Some(&args.socket_file)).into_iter().enumerate() {
        let socket = Socket { path, place };
        let discovery = runtimes::discover(socket, views.runtimes.clone(), first_answer.clone(), changed.clone());
        tasks.spawn(for_ever("runtime", discovery));
    }
    drop((first_answer, changed));

    // What delays a restart is usually over within seconds, and a container that is down must not wait for long.
    let queue = Queue::new(Backoff { max: Duration::from_secs(10), ..Backoff::default() });
    let Views { requests, pods, runtimes } = views.clone();
    let meta = container_meta(&client, &gates, &views, &events);
    let puller = gates.enabled(gate::IMAGE_PULL_JOB).then(|| puller(&args, client.clone(), &views, &events, &metrics));
    let namespace = &args.pull_secrets_namespace;
    let (prober_handle, prober) =
        Prober::new(client.clone(), pods.clone(), runtimes.clone(), namespace, &events, &metrics);
    let recreator = Recreator::new(client.clone(), requests, pods, runtimes, queue.clone(), events, &metrics);
    let watched = Watched { recreator: recreator.clone(), meta: meta.clone(), prober: prober_handle };
    watch(&client, &args.node, &gates, &views, &watched, &mut tasks);
    let of_runtimes = recreator.clone();
    tasks.spawn(for_ever("runtime events", async move {
        while let Some(cri_uid) = containers_changed.recv().await {
            of_runtimes.containers_changed(&cri_uid);
        }
    }));

    let mut stop = shutdown.clone();
    tokio::select! {
        () = views.complete(&mut first_answers) => {}
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
        Some(ended) = tasks.join_next() => anyhow::bail!("a task of the daemon ended: {ended:?}"),
    }
    let pulls = pull(puller, client, shutdown.clone());
    // A stop that was begun is recorded: what is running when the process ends is carried on after its restart.
    let requests =
        queue.run(WORKERS, shutdown.clone(), move |uid, interrupt| recreator.clone().reconcile(uid, interrupt));
    let others = futures::future::join3(meta.run(shutdown.clone()), pulls, prober.run(shutdown.clone()));
    tokio::select! {
        _ = futures::future::join(requests, others) => {}
        _ = drained(shutdown) => tracing::info!("stops are still under way; they are carried on after the restart"),
        Some(ended) = tasks.join_next() => anyhow::bail!("a task of the daemon ended: {ended:?}"),
    }
    Ok(())
}

/// What the daemon knows of its node.
#[derive(Clone)]
struct Views {
    requests: Arc<Store<ContainerRecreateRequest>>,
    pods: Arc<Store<PodView>>,
    runtimes: Runtimes,
}

impl Views {
    /// Whether the daemon is ready.
    fn checks(&self) -> Checks {
        let ready = Checks::default();
        let Self { requests, pods, runtimes } = self.clone();
        let synced = |what: &str, yes: bool| (!yes).then(|| format!("the first list of {what} is not complete"));
        ready.add("requests", move || synced("requests", requests.is_synced()));
        ready.add("pods", move || synced("Pods", pods.is_synced()));
        let none = || "no container runtime has answered yet".to_owned();
        ready.add("runtime", move || runtimes.names().is_empty().then(none));
        ready
    }

    /// Resolves when both watches have listed everything and each socket that exists has answered once: with half a view
    /// of the node a request could be judged wrongly.
    async fn complete(&self, first_answers: &mut mpsc::Receiver<()>) {
        let _ = first_answers.recv().await;
        self.runtimes.wait_for_any().await;
        self.requests.wait_synced().await;
        self.pods.wait_synced().await;
        self.runtimes.use_begins();
        tracing::info!(requests = self.requests.len(), pods = self.pods.len(), "daemon is ready");
    }
}

/// Serves probes and metrics, if the address is not switched off.
async fn serve_probes(
    address: &str,
    ready: Checks,
    metrics: &Arc<Metrics>,
    shutdown: &Shutdown,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let Some(listener) = serve::listen(address).await.context("--addr")? else { return Ok(()) };
    let router = serve::probes(Checks::default(), ready).merge(serve::metrics(metrics.clone()));
    let serving = serve::serve(listener, router, shutdown.clone());
    tasks.spawn(async move {
        serving.await.context("HTTP server")?;
        // It ends in order only when the process is asked to stop; the queue then ends the process.
        std::future::pending().await
    });
    Ok(())
}

fn container_meta(client: &Client, gates: &FeatureGates, views: &Views, events: &Recorder) -> Arc<ContainerMeta> {
    let enabled = Gates {
        watch_pods: gates.enabled(gate::DAEMON_WATCHING_POD),
        environment: gates.enabled(gate::IN_PLACE_UPDATE_ENV),
    };
    ContainerMeta::new(client.clone(), views.pods.clone(), views.runtimes.clone(), events, enabled)
}

fn puller(args: &DaemonArgs, client: Client, views: &Views, events: &Recorder, metrics: &Metrics) -> Arc<Puller> {
    let address = Address {
        namespace: args.pull_secrets_namespace.clone(),
        host: args.pull_secrets_host.clone(),
        port: args.pull_secrets_port,
        token_file: args.pull_secrets_token_file.clone(),
    };
    let settings = images::Settings {
        node: args.node.clone(),
        workers: usize::try_from(args.max_workers_for_pull_image).unwrap_or(0),
        image_fs_limit_percent: args.image_fs_limit_percent,
        image_fs_path: args.image_fs_path.clone(),
        space: images::disk::space,
    };
    let secrets = PullSecrets::new(client.clone(), address);
    Puller::new(client, views.runtimes.clone(), events, settings, secrets, metrics)
}

/// Who gets the changes of requests and Pods.
struct Watched {
    recreator: Arc<Recreator>,
    meta: Arc<ContainerMeta>,
    prober: prober::Handle,
}

/// Starts the watches of the API server.
fn watch(
    client: &Client,
    node: &str,
    gates: &FeatureGates,
    views: &Views,
    watched: &Watched,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) {
    let Watched { recreator, meta, prober } = watched;
    let requests = watch_requests(client.clone(), node.to_owned(), views.requests.clone(), recreator.clone());
    tasks.spawn(for_ever("watch of requests", requests));
    if gates.enabled(gate::POD_PROBE_MARKER) {
        let probes = prober.clone().follow(client.clone(), node.to_owned());
        tasks.spawn(for_ever("watch of the NodePodProbe", probes));
    }
    let (pods, recreator) = (views.pods.clone(), recreator.clone());
    let pods = watch_pods(client.clone(), node.to_owned(), pods, recreator, meta.clone(), prober.clone());
    tasks.spawn(for_ever("watch of Pods", pods));
}

/// Pulls images, once NodeImages are installed.
async fn pull(puller: Option<Arc<Puller>>, kube: Client, shutdown: Shutdown) {
    let Some(puller) = puller else { return };
    let mut pause = Duration::from_secs(1);
    loop {
        match client::serves(&kube, NODE_IMAGES).await {
            Ok(true) => return puller.run(shutdown).await,
            Ok(false) => {
                tracing::warn!(crd = NODE_IMAGES, "no images are pulled: its custom resource is not installed")
            }
            Err(error) => tracing::warn!(%error, "looking for {NODE_IMAGES}"),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(60)),
            () = shutdown::requested(shutdown.clone()) => return,
        }
    }
}

/// A task that must not end before the process does.
async fn for_ever(what: &'static str, task: impl Future<Output = ()>) -> anyhow::Result<()> {
    task.await;
    anyhow::bail!("{what}: ended by itself")
}

/// Resolves some seconds after shutdown began: the time in which stops under way may still end.
async fn drained(mut shutdown: Shutdown) {
    let _ = shutdown.wait_for(|stop| *stop).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
}

fn default_run_dir() -> PathBuf {
    let mounted = PathBuf::from(endpoint::HOST_RUN);
    if mounted.is_dir() { mounted } else { PathBuf::from("/run") }
}

async fn watch_requests(
    client: Client,
    node: String,
    requests: Arc<Store<ContainerRecreateRequest>>,
    recreator: Arc<Recreator>,
) {
    // One watch for those that we serve and those that the manager serves, so that none overtakes another.
    let selector = format!("{}={node}", labels::CRR_NODE_NAME);
    let api: Api<Guarded<ContainerRecreateRequest>> = Api::all(client);
    let config = Config::default().labels(&selector);
    watches::watch_guarded(api, config, requests, |change| match change {
        Change::Applied { new, .. } if !is_work(new) => recreator.request_gone(new),
        Change::Applied { new, .. } => recreator.request_changed(new),
        Change::Deleted(old) => recreator.request_gone(old),
        Change::Undecodable { key, error } => {
            tracing::error!(request = %key, error, "this request cannot be read and is not served");
        }
    })
    .await;
}

async fn watch_pods(
    client: Client,
    node: String,
    pods: Arc<Store<PodView>>,
    recreator: Arc<Recreator>,
    meta: Arc<ContainerMeta>,
    prober: prober::Handle,
) {
    let on_node = format!("spec.nodeName={node}");
    let api: Api<PodObject> = Api::all(client);
    let as_it_comes = |pod: PodView| pod;
    watches::watch_in_protobuf(api, Some(on_node), pods, as_it_comes, |change| match change {
        Change::Applied { new, .. } => {
            recreator.pod_changed(new.uid());
            meta.pod_changed(new);
            prober.pod_changed(new.uid());
        }
        Change::Deleted(old) => {
            recreator.pod_changed(old.uid());
            meta.pod_gone(old);
            prober.pod_changed(old.uid());
        }
        Change::Undecodable { key, error } => tracing::error!(pod = %key, error, "this Pod cannot be read"),
    })
    .await;
}
