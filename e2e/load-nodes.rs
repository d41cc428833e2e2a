//! `load-nodes`: plays nodes for `make bench-load`, with the product's own daemon on each of them.
//!
//! `serve` runs, for every node of one shard, a fake runtime and the real daemon role with a token, connections and watches
//! of its own. Of kubelet it plays what a restart needs: when a container was stopped it says so in the Pod's status, waits,
//! starts the next instance in the runtime and says that too. Nodes, and Pods up to their first start, are kwok's.
//!
//! `stop` and `pull` are yardsticks of the other bench: they stop containers of a real runtime, all at once, and pull
//! images, with nothing else.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use futures::{StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kruise_rs::{
    api::feature_gates::FeatureGates,
    cri::{
        client::Client as CriClient,
        fake::FakeRuntime,
        proto::{ContainerStatus, PodSandboxConfig},
    },
    k8s::{
        pod::{PodObject, PodView},
        time::rfc3339,
    },
    roles::daemon::{self, DaemonArgs},
    runtime::{
        client::{self, ClientOptions},
        clock, shutdown,
        telemetry::{self, LogFormat},
        watches::{self, Change, Store},
    },
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

const SYSTEM: &str = "kruise-system";
const DAEMON_ACCOUNT: &str = "kruise-daemon";
/// Daemons that are started at the same time.
const STARTS: usize = 16;
/// More nodes than one process has file descriptors for is a mistake.
const MOST_NODES: usize = 2000;

#[derive(Parser)]
#[command(about = "Plays nodes for the load bench", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Play the nodes that carry the label e2e/shard=SHARD, and the Pods that carry it
    Serve {
        /// Of a user who may do everything
        #[arg(long)]
        kubeconfig: PathBuf,
        /// Which part of the nodes
        #[arg(long)]
        shard: usize,
        /// How many nodes that are
        #[arg(long)]
        nodes: usize,
        /// Milliseconds from the end of an instance to the start of the next one
        #[arg(long)]
        restart_delay: u64,
        /// Threads for everything
        #[arg(long, default_value_t = 1)]
        threads: usize,
    },
    /// Read lines of ids of containers, and stop all of a line at once; for each line, how many were stopped
    Stop {
        /// The runtime's socket
        #[arg(long)]
        socket: PathBuf,
        /// Grace period in seconds
        #[arg(long)]
        grace: u64,
    },
    /// Read images, one a line, and pull each; for each the milliseconds that took
    Pull {
        /// The runtime's socket
        #[arg(long)]
        socket: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    let what = Arguments::parse().what;
    let threads = match &what {
        What::Serve { threads, .. } => *threads,
        What::Stop { .. } | What::Pull { .. } => 1,
    };
    telemetry::init(LogFormat::Text, 0)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads.max(1)).enable_all().build()?;
    runtime.block_on(async {
        match what {
            What::Serve { kubeconfig, shard, nodes, restart_delay, .. } => {
                serve(kubeconfig, shard, nodes, Duration::from_millis(restart_delay)).await
            }
            What::Pull { socket } => pull(socket).await,
            What::Stop { socket, grace } => stop(socket, Duration::from_secs(grace)).await,
        }
    })
}

async fn pull(socket: PathBuf) -> anyhow::Result<()> {
    let client = CriClient::new(socket);
    client.version().await?;
    for image in std::io::stdin().lock().lines() {
        let begun = tokio::time::Instant::now();
        client.pull_image(image?.trim(), None, PodSandboxConfig::default(), Duration::from_secs(600)).await?;
        println!("{}", begun.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(())
}

async fn stop(socket: PathBuf, grace: Duration) -> anyhow::Result<()> {
    let client = Arc::new(CriClient::new(socket));
    client.version().await?; // so that the connection is there
    println!("connected");
    let mut stops = JoinSet::new();
    // The reader blocks this thread; the stops have one of their own, and no line waits for the one before.
    for line in std::io::stdin().lock().lines() {
        let ids: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let client = client.clone();
        stops.spawn(async move {
            future::try_join_all(ids.iter().map(|id| client.stop_container(id, grace))).await?;
            println!("stopped {}", ids.len());
            anyhow::Ok(())
        });
    }
    while let Some(stopped) = stops.join_next().await {
        stopped??;
    }
    Ok(())
}

/// A stop on one of the nodes.
struct Stopped {
    runtime: Arc<FakeRuntime>,
    container: ContainerStatus,
}

async fn serve(kubeconfig: PathBuf, shard: usize, nodes: usize, restart_delay: Duration) -> anyhow::Result<()> {
    ensure!(nodes <= MOST_NODES, "--nodes {nodes}: want at most {MOST_NODES}");
    let options = |path: PathBuf, user_agent| ClientOptions {
        kubeconfig: Some(path),
        context: None,
        act_as: None,
        act_as_groups: Vec::new(),
        user_agent,
        qps: 0.0,
        burst: 50,
    };
    let admin = client::connect(&options(kubeconfig.clone(), "load-nodes")).await?;
    let stop = shutdown::on_signals()?;
    let daemons = daemon_pods(&admin, shard, nodes).await?;

    let dir = tempfile::tempdir()?;
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let start = |(node, pod): (String, PodView)| {
        let (admin, dir, kubeconfig, stopped) = (admin.clone(), dir.path(), &kubeconfig, stopped.clone());
        async move {
            let token = token(&admin, &pod).await.with_context(|| format!("token for node {node}"))?;
            let path = dir.join(format!("{node}.kubeconfig"));
            std::fs::write(&path, with_token(kubeconfig, &token)?)?;
            let client = client::connect(&options(path, "kruise-daemon")).await?;
            let runtime = Arc::new(FakeRuntime::start());
            anyhow::Ok((node, client, runtime, stopped))
        }
    };
    let started: Vec<_> = stream::iter(daemons).map(start).buffer_unordered(STARTS).try_collect().await?;
    let mut runtimes = HashMap::new();
    for (node, client, runtime, stopped) in started {
        let (on_stop, mut ended) = mpsc::unbounded_channel();
        runtime.world().on_stop = Some(on_stop);
        let args =
            DaemonArgs { socket_file: runtime.socket.display().to_string(), ..DaemonArgs::of_node(node.clone()) };
        tasks.spawn(daemon::run(args, FeatureGates::default(), client, stop.clone()));
        runtimes.insert(node, runtime.clone());
        tasks.spawn(async move {
            while let Some(container) = ended.recv().await {
                let _ = stopped.send(Stopped { runtime: runtime.clone(), container });
            }
            Ok(())
        });
    }
    println!("shard {shard}: {} daemons started", runtimes.len());
    std::io::stdout().flush()?;

    let played: Arc<Mutex<HashMap<String, ()>>> = Arc::default();
    let config = watcher::Config::default().labels(&format!("e2e/shard={shard}"));
    let pods = Store::new(None);
    let follow = watches::watch(Api::<PodObject>::all(admin.clone()), config, pods, |change| {
        let Change::Applied { new, .. } = change else { return };
        let new = &new.view;
        let Some(runtime) = runtimes.get(&*new.node_name) else { return };
        for container in new.container_statuses.iter().filter(|c| c.restart_count == 0) {
            let Some((_, id)) = container.container_id.split_once("://") else { continue };
            if played.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), ()).is_none() {
                runtime.run(id, new.namespace(), new.uid(), &container.name, 0);
                let pod = ("io.kubernetes.pod.name".to_owned(), new.name().to_owned());
                if let Some(status) = runtime.world().containers.get_mut(id) {
                    status.labels.extend([pod]);
                }
            }
        }
    });
    let kubelet = async {
        while let Some(Stopped { runtime, container }) = stops.recv().await {
            let admin = admin.clone();
            tokio::spawn(async move { restart(&admin, &runtime, &container, restart_delay).await });
        }
    };
    tokio::select! {
        () = follow => bail!("the watch of Pods ended"),
        () = kubelet => bail!("every runtime is gone"),
        () = shutdown::requested(stop.clone()) => Ok(()),
        Some(ended) = tasks.join_next() => bail!("a daemon ended: {ended:?}"),
    }
}

/// The Pods of the DaemonSet on this shard's nodes, by node, once all of them are there.
async fn daemon_pods(admin: &Client, shard: usize, nodes: usize) -> anyhow::Result<Vec<(String, PodView)>> {
    let shard = ListParams::default().labels(&format!("e2e/shard={shard}"));
    let ours: Api<k8s_openapi::api::core::v1::Node> = Api::all(admin.clone());
    let ours: Vec<String> =
        ours.list_metadata(&shard).await?.items.into_iter().filter_map(|n| n.metadata.name).collect();
    ensure!(ours.len() == nodes, "{} nodes carry the label of this shard, want {nodes}", ours.len());
    let pods: Api<PodObject> = Api::namespaced(admin.clone(), SYSTEM);
    let all = pods.list(&ListParams::default().labels("control-plane=daemon")).await?.items;
    let mut by_node: HashMap<String, PodView> =
        all.into_iter().map(|p| (p.view.node_name.to_string(), p.view)).collect();
    let found = ours.into_iter().filter_map(|node| by_node.remove_entry(&node)).collect::<Vec<_>>();
    ensure!(found.len() == nodes, "the daemon's DaemonSet has Pods on {} of {nodes} nodes", found.len());
    Ok(found)
}

/// A token as kubelet asks for it: bound to the Pod, which names the node.
async fn token(admin: &Client, pod: &PodView) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), SYSTEM);
    let bound = BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod.name().into()),
        uid: Some(pod.uid().into()),
    };
    let request = TokenRequest {
        spec: TokenRequestSpec {
            bound_object_ref: Some(bound),
            expiration_seconds: Some(4 * 3600),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = accounts.create_token_request(DAEMON_ACCOUNT, &PostParams::default(), &request).await?;
    Ok(answer.status.context("the answer has no token")?.token)
}

/// The same cluster for another user. JSON is YAML.
fn with_token(kubeconfig: &PathBuf, token: &str) -> anyhow::Result<String> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let cluster = file.clusters.first().context("no cluster in the kubeconfig")?;
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [{"name": "daemon", "user": {"token": token}}],
        "contexts": [{"name": "daemon", "context": {"cluster": cluster.name, "user": "daemon"}}],
        "current-context": "daemon",
    });
    Ok(document.to_string())
}

/// What kubelet does about a container that has ended.
async fn restart(admin: &Client, runtime: &FakeRuntime, ended: &ContainerStatus, delay: Duration) {
    let label = |key: &str| ended.labels.get(key).cloned().unwrap_or_default();
    let (namespace, pod) = (label("io.kubernetes.pod.namespace"), label("io.kubernetes.pod.name"));
    let (uid, name) = (label("io.kubernetes.pod.uid"), label("io.kubernetes.container.name"));
    let attempt = ended.metadata.as_ref().map_or(0, |m| m.attempt);
    let api: Api<PodObject> = Api::namespaced(admin.clone(), &namespace);
    let due = tokio::time::Instant::now() + delay;
    let finished = rfc3339(now());
    let terminated = json!({"terminated": {"exitCode": ended.exit_code, "reason": "Error", "finishedAt": finished,
        "startedAt": finished, "containerID": format!("containerd://{}", ended.id)}});
    let old = json!({"name": name, "ready": false, "started": false, "restartCount": attempt,
        "containerID": format!("containerd://{}", ended.id), "state": {"running": null, "terminated": terminated["terminated"]}});
    report(&api, &pod, &old, "False").await;

    tokio::time::sleep_until(due).await;
    let id = format!("{uid}-{name}-{}-{:020}", attempt + 1, 0);
    runtime.run(&id, &namespace, &uid, &name, attempt + 1);
    if let Some(status) = runtime.world().containers.get_mut(&id) {
        status.labels.extend([("io.kubernetes.pod.name".to_owned(), pod.clone())]);
    }
    runtime.world().containers.remove(&ended.id);
    let new = json!({"name": name, "ready": true, "started": true, "restartCount": attempt + 1,
        "containerID": format!("containerd://{id}"), "lastState": terminated,
        "state": {"terminated": null, "running": {"startedAt": rfc3339(now())}}});
    report(&api, &pod, &new, "True").await;
}

fn now() -> Timestamp {
    clock::now().wall
}

/// Writes a container's part of the Pod's status, until it is written or the Pod is gone.
async fn report(api: &Api<PodObject>, pod: &str, container: &Value, ready: &str) {
    let at = rfc3339(now());
    let condition = |type_: &str| json!({"type": type_, "status": ready, "lastTransitionTime": at});
    let status = json!({"status": {"containerStatuses": [container],
        "conditions": [condition("Ready"), condition("ContainersReady")]}});
    loop {
        match api.patch_status(pod, &PatchParams::default(), &Patch::Strategic(status.clone())).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => return,
            Ok(_) => return,
            Err(error) => tracing::warn!(pod, %error, "status not written, trying again"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
