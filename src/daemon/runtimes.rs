//! The container runtimes of the node. A socket that is absent at start is tried again until it answers. A runtime that
//! stops answering stays listed, and its client reconnects.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::stops::Stops;
use crate::{
    cri::{
        client::Client,
        endpoint::events_are_shared,
        proto::{ContainerEventType, VersionResponse},
        types::CriError,
    },
    runtime::fair_places::Places,
};

/// How long to wait before a socket that did not answer is tried again.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// How long to wait before a broken event stream is opened again.
const EVENTS_RETRY: Duration = Duration::from_secs(5);
/// preStop hooks that are run at once: each is a process in a container, or a connection to one.
const HOOKS: usize = 32;

/// The runtimes that have answered, by the name that container ids carry.
#[derive(Clone)]
pub struct Runtimes {
    known: Arc<RwLock<BTreeMap<String, Client>>>,
    count: Arc<watch::Sender<usize>>,
    /// Stops in progress, of all tasks: every task that can stop a container has access to them.
    pub stops: Arc<Stops>,
    /// Places for preStop hooks, of all tasks.
    pub hooks: Places,
}

impl Default for Runtimes {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            stops: Arc::default(),
            hooks: Places::new(HOOKS),
        }
    }
}

impl Runtimes {
    /// The runtime with this name.
    pub fn get(&self, name: &str) -> Option<Client> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Names of all runtimes.
    pub fn names(&self) -> Vec<String> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Adds a runtime.
    pub fn insert(&self, name: String, client: Client) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(name, client);
        self.count.send_replace(known.len());
    }

    /// Waits until at least one runtime has answered.
    pub async fn wait_for_any(&self) {
        let mut count = self.count.subscribe();
        // The sender lives as long as `self`.
        let _ = count.wait_for(|count| *count > 0).await;
    }
}

/// Tries one socket until it answers, then follows its container events, unless the runtime would withhold them from
/// kubelet.
/// `first_look` is dropped after the first try, `changed` gets the UID of a Pod whose containers changed.
pub async fn discover(
    socket: PathBuf,
    runtimes: Runtimes,
    first_look: mpsc::Sender<()>,
    changed: mpsc::Sender<String>,
) {
    let mut client = None;
    let mut first_look = Some(first_look);
    let (client, version) = loop {
        match probe(&socket, &mut client).await {
            Ok(found) => break found,
            Err(error) => {
                if first_look.take().is_some() {
                    tracing::debug!(socket = %socket.display(), %error, "no runtime here yet");
                }
                tokio::time::sleep(PROBE_EVERY).await;
            }
        }
    };
    let events = events_are_shared(&version.runtime_name, &version.runtime_version);
    tracing::info!(
        socket = %socket.display(), runtime = version.runtime_name, version = version.runtime_version, events,
        "container runtime found"
    );
    runtimes.insert(version.runtime_name, client.clone());
    drop(first_look);
    if events {
        follow_events(client, changed).await;
    }
    std::future::pending().await
}

/// Most of the sockets never exist: no client is created for them.
async fn probe(socket: &Path, client: &mut Option<Client>) -> Result<(Client, VersionResponse), CriError> {
    if !socket.exists() {
        return Err(CriError::Unreachable { call: "Version", message: "no such file".into() });
    }
    let client = client.get_or_insert_with(|| Client::new(socket.to_owned()));
    Ok((client.clone(), client.version().await?))
}

async fn follow_events(client: Client, changed: mpsc::Sender<String>) {
    loop {
        match client.container_events().await {
            Ok(mut stream) => {
                while let Ok(Some(event)) = stream.message().await {
                    let pod_uid = event.pod_sandbox_status.and_then(|s| s.metadata).map(|m| m.uid);
                    let matters = event.container_event_type != i32::from(ContainerEventType::ContainerCreatedEvent);
                    if let Some(pod_uid) = pod_uid.filter(|_| matters)
                        && changed.send(pod_uid).await.is_err()
                    {
                        return; // the daemon is shutting down
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "no container events"),
        }
        tokio::time::sleep(EVENTS_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::{
        fake::FakeRuntime,
        proto::{ContainerEventResponse, PodSandboxMetadata, PodSandboxStatus},
    };

    #[tokio::test]
    async fn a_runtime_whose_socket_appears_later_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let late = dir.path().join("late.sock");
        let runtimes = Runtimes::default();
        let (changed, _events) = mpsc::channel(1);
        let task = tokio::spawn(discover(late.clone(), runtimes.clone(), mpsc::channel(1).0, changed));
        let runtime = FakeRuntime::start();
        std::os::unix::fs::symlink(&runtime.socket, &late).unwrap();
        runtimes.wait_for_any().await;
        assert_eq!(runtimes.names(), ["containerd"]);
        task.abort();
    }

    fn event(kind: ContainerEventType, pod: &str) -> ContainerEventResponse {
        let metadata = PodSandboxMetadata { uid: pod.into(), ..Default::default() };
        ContainerEventResponse {
            container_event_type: kind.into(),
            pod_sandbox_status: Some(PodSandboxStatus { metadata: Some(metadata), ..Default::default() }),
            ..Default::default()
        }
    }

    /// What the runtimes answer to Version, as `crictl version` prints it: container ids begin with the name, and events are
    /// asked for where kubelet does not lose them.
    #[tokio::test]
    async fn runtimes_go_by_their_name_and_events_are_followed_where_all_get_them() {
        for (name, version, api, followed) in [
            ("containerd", "1.6.20~ds1", "v1", false),
            ("containerd", "v1.7.27", "v1", false),
            ("containerd", "2.4.2", "v1", true),
            ("cri-o", "1.32.1", "v1", true),
            // cri-dockerd answers with the version of Docker
            ("docker", "27.4.1", "v1", false),
            ("docker", "20.10.17", "1.41.0", false),
        ] {
            let runtime = FakeRuntime::start();
            {
                let mut world = runtime.world();
                world.version = Some(VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: name.into(),
                    runtime_version: version.into(),
                    runtime_api_version: api.into(),
                });
                world.events = vec![
                    event(ContainerEventType::ContainerCreatedEvent, "created"),
                    event(ContainerEventType::ContainerStoppedEvent, "stopped"),
                    event(ContainerEventType::ContainerStartedEvent, "started"),
                ];
            }
            let runtimes = Runtimes::default();
            let (changed, mut events) = mpsc::channel(10);
            // It goes when the runtime has been listed, just before its events are asked for.
            let (first_look, mut looked) = mpsc::channel(1);
            let task = tokio::spawn(discover(runtime.socket.clone(), runtimes.clone(), first_look, changed));
            assert_eq!(looked.recv().await, None);
            assert_eq!(runtimes.names(), [name], "{name} {version}");
            if followed {
                assert_eq!(events.recv().await.as_deref(), Some("stopped"), "{name} {version}");
                assert_eq!(events.recv().await.as_deref(), Some("started"), "{name} {version}");
            } else {
                // On the same connection a call for events would have come before this one.
                runtimes.get(name).unwrap().version().await.unwrap();
                assert_eq!(events.try_recv(), Err(mpsc::error::TryRecvError::Empty), "{name} {version}");
            }
            assert_eq!(runtime.world().event_streams, usize::from(followed), "{name} {version}");
            task.abort();
        }
    }

    /// CRI-O ends each stream at once unless its setting `enable_pod_events` is on.
    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_ends_each_stream_at_once_is_asked_again_now_and_then() {
        let (runtime, client) = FakeRuntime::in_memory();
        let (changed, mut events) = mpsc::channel(10);
        let task = tokio::spawn(follow_events(client, changed));
        tokio::time::sleep(EVENTS_RETRY * 3 + EVENTS_RETRY / 2).await;
        assert_eq!(runtime.world().event_streams, 4);
        runtime.world().events = vec![event(ContainerEventType::ContainerStoppedEvent, "pod")];
        assert_eq!(events.recv().await.as_deref(), Some("pod"), "it has been switched on");
        task.abort();
    }
}
