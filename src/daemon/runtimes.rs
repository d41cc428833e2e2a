//! The container runtimes of the node. A socket that is absent at start is tried again until it answers. A runtime that
//! stops answering stays listed, and its client reconnects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::metadata,
    ops::ControlFlow,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

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
/// A runtime that starts answers within this time after its socket was seen. One that does not is no runtime until it answers.
const START_UP: Duration = Duration::from_secs(60);
/// How long to wait before a broken event stream is opened again.
const EVENTS_RETRY: Duration = Duration::from_secs(5);
/// How long to wait before a runtime whose events belong to kubelet is asked again which release it is.
const VERSION_AGAIN: Duration = Duration::from_secs(60);
/// preStop hooks that are run at once: each is a process in a container, or a connection to one.
const HOOKS: usize = 32;

/// Where to look for a runtime.
#[derive(Clone, Debug, Default)]
pub struct Socket {
    /// Its file.
    pub path: PathBuf,
    /// Of two runtimes with the same name the one with the lower place is used.
    pub place: usize,
}

/// The runtimes that have answered.
#[derive(Default)]
struct Known {
    /// By the name that container ids carry.
    by_name: BTreeMap<String, (Socket, Client)>,
    /// The daemon asks them: none takes the place of another one any more.
    in_use: bool,
}

/// The runtimes that have answered, by the name that container ids carry.
#[derive(Clone)]
pub struct Runtimes {
    known: Arc<RwLock<Known>>,
    /// Sockets whose runtimes may be starting: they exist, and have not answered yet.
    unanswered: Arc<Mutex<BTreeSet<PathBuf>>>,
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
            unanswered: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            stops: Arc::default(),
            hooks: Places::new(HOOKS),
        }
    }
}

impl Runtimes {
    /// The runtime with this name.
    pub fn get(&self, name: &str) -> Option<Client> {
        self.known().by_name.get(name).map(|(_, client)| client.clone())
    }

    /// Names of all runtimes.
    pub fn names(&self) -> Vec<String> {
        self.known().by_name.keys().cloned().collect()
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sockets whose runtimes may be starting, for messages. None: of all runtimes it is known who they are.
    pub fn unanswered(&self) -> Option<String> {
        let unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        let paths: Vec<String> = unanswered.iter().map(|path| path.display().to_string()).collect();
        (!paths.is_empty()).then(|| paths.join(", "))
    }

    /// Notes whether behind a socket that has not answered yet a runtime may be starting.
    pub(super) fn note_unanswered(&self, socket: &Path, may_be_starting: bool) {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if may_be_starting {
            unanswered.insert(socket.to_owned());
        } else {
            unanswered.remove(socket);
        }
    }

    /// Adds a runtime.
    pub fn insert(&self, name: String, client: Client) {
        self.offer(name, Socket::default(), client);
    }

    /// Adds a runtime, unless one with the same name is in use or has a lower place. Returns the socket that is not used
    /// then, or not any more.
    fn offer(&self, name: String, socket: Socket, client: Client) -> Option<Socket> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.by_name.get(&name).is_some_and(|(other, _)| known.in_use || other.place < socket.place) {
            return Some(socket);
        }
        let before = known.by_name.insert(name, (socket, client));
        self.count.send_replace(known.by_name.len());
        before.map(|(socket, _)| socket)
    }

    /// Whether a socket that is not used leads to another runtime than the one that is used under this name. A link to the socket of
    /// a runtime, or its directory mounted twice, is the same runtime.
    fn is_another(&self, name: &str, unused: &Path) -> bool {
        let used = self.known().by_name.get(name).map(|(socket, _)| socket.path.clone());
        let file = |path: &Path| metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let used = used.and_then(|used| file(&used));
        used.is_none() || used != file(unused)
    }

    /// From now on the runtimes are asked about containers. One that comes later under a name that is taken is not used: it
    /// does not know the containers of the other one, and they would look as if they had ended.
    pub fn use_begins(&self) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).in_use = true;
    }

    /// Waits until at least one runtime has answered.
    pub async fn wait_for_any(&self) {
        let mut count = self.count.subscribe();
        // The sender lives as long as `self`.
        let _ = count.wait_for(|count| *count > 0).await;
    }
}

/// Tries one socket until it answers, then follows its container events, while the runtime does not withhold them from
/// kubelet. Of two runtimes with the same name that answer before any is used, the first in the order of the candidates is.
/// `first_look` is dropped after the first try, `changed` gets the UID of a Pod whose containers changed.
pub async fn discover(socket: Socket, runtimes: Runtimes, first_look: mpsc::Sender<()>, changed: mpsc::Sender<String>) {
    let mut client = None;
    let mut first_look = Some(first_look);
    let mut seen: Option<Instant> = None;
    let (client, version) = loop {
        match probe(&socket.path, &mut client).await {
            Ok(found) => break found,
            Err(error) => {
                seen = socket.path.exists().then(|| seen.unwrap_or_else(Instant::now));
                // One that refuses the call has answered: it is no runtime.
                let is_new = seen.is_some_and(|at| at.elapsed() < START_UP);
                runtimes.note_unanswered(&socket.path, error.may_pass() && is_new);
                if first_look.take().is_some() {
                    tracing::debug!(socket = %socket.path.display(), %error, "no runtime here yet");
                }
                tokio::time::sleep(PROBE_EVERY).await;
            }
        }
    };
    let events = events_are_shared(&version.runtime_name, &version.runtime_version);
    tracing::info!(
        socket = %socket.path.display(), runtime = version.runtime_name, version = version.runtime_version, events,
        "container runtime found"
    );
    let path = socket.path.clone();
    let unused = runtimes.offer(version.runtime_name.clone(), socket, client.clone());
    let mut is_known = false;
    if let Some(unused) = unused {
        if runtimes.is_another(&version.runtime_name, &unused.path) {
            tracing::warn!(
                unused = %unused.path.display(), runtime = version.runtime_name,
                "two sockets lead to runtimes of this name, and this one is not used; set --socket-file to choose one, and restart the daemon"
            );
        } else {
            tracing::debug!(unused = %unused.path.display(), "this socket is that of a runtime that is known");
            is_known = unused.path == path;
        }
    }
    // Only after the runtime is registered, so that the socket is always either registered or unanswered.
    runtimes.note_unanswered(&path, false);
    drop(first_look);
    // Whoever registered it follows its events.
    if !is_known {
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
        // Asked each time: a stream also ends when the runtime is replaced by another release of it.
        let pause = match client.version().await {
            Ok(version) if events_are_shared(&version.runtime_name, &version.runtime_version) => {
                if follow_stream(&client, &version.runtime_name, &changed).await.is_break() {
                    return;
                }
                EVENTS_RETRY
            }
            Ok(_) => VERSION_AGAIN,
            Err(error) => {
                tracing::debug!(%error, "no container events: who answers is not known");
                EVENTS_RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Until the stream ends. Break: the daemon is shutting down.
async fn follow_stream(client: &Client, runtime: &str, changed: &mpsc::Sender<String>) -> ControlFlow<()> {
    // Some runtimes answer with the first event: on a quiet node that takes long, and says nothing.
    match client.container_events().await {
        Ok(mut stream) => {
            let mut is_first = true;
            while let Ok(Some(event)) = stream.message().await {
                // That they are asked for says little: CRI-O sends none unless its setting is on.
                if std::mem::take(&mut is_first) {
                    tracing::info!(runtime, "container events arrive");
                }
                let pod_uid = event.pod_sandbox_status.and_then(|s| s.metadata).map(|m| m.uid);
                let matters = event.container_event_type != i32::from(ContainerEventType::ContainerCreatedEvent);
                if let Some(pod_uid) = pod_uid.filter(|_| matters)
                    && changed.send(pod_uid).await.is_err()
                {
                    return ControlFlow::Break(());
                }
            }
        }
        Err(error) => tracing::debug!(%error, "no container events"),
    }
    ControlFlow::Continue(())
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
        let socket = Socket { path: late.clone(), place: 0 };
        let task = tokio::spawn(discover(socket, runtimes.clone(), mpsc::channel(1).0, changed));
        let runtime = FakeRuntime::start();
        std::os::unix::fs::symlink(&runtime.socket, &late).unwrap();
        runtimes.wait_for_any().await;
        assert_eq!(runtimes.names(), ["containerd"]);
        task.abort();
    }

    fn release(name: &str, version: &str, api: &str) -> VersionResponse {
        VersionResponse {
            version: "0.1.0".into(),
            runtime_name: name.into(),
            runtime_version: version.into(),
            runtime_api_version: api.into(),
        }
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
            let (sender, subscription) = mpsc::unbounded_channel();
            {
                let mut world = runtime.world();
                world.version = Some(release(name, version, api));
                world.events.push(subscription);
            }
            for (kind, pod) in [
                (ContainerEventType::ContainerCreatedEvent, "created"),
                (ContainerEventType::ContainerStoppedEvent, "stopped"),
                (ContainerEventType::ContainerStartedEvent, "started"),
            ] {
                sender.send(event(kind, pod)).unwrap();
            }
            let runtimes = Runtimes::default();
            let (changed, mut events) = mpsc::channel(10);
            // It goes when the runtime has been listed, just before its events are asked for.
            let (first_look, mut looked) = mpsc::channel(1);
            let task = tokio::spawn(discover(
                Socket { path: runtime.socket.clone(), place: 0 },
                runtimes.clone(),
                first_look,
                changed,
            ));
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
            assert_eq!(runtime.world().subscriptions, usize::from(followed), "{name} {version}");
            task.abort();
        }
    }

    /// CRI-O ends each stream at once unless its setting `enable_pod_events` is on.
    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_ends_each_stream_at_once_is_asked_again_now_and_then() {
        let (runtime, client) = FakeRuntime::in_memory();
        let (changed, mut events) = mpsc::channel(10);
        runtime.world().version = Some(release("cri-o", "1.32.1", "v1"));
        runtime.world().events.extend((0..4).map(|_| mpsc::unbounded_channel().1));
        let task = tokio::spawn(follow_events(client, changed));
        tokio::time::sleep(EVENTS_RETRY * 3 + EVENTS_RETRY / 2).await;
        assert_eq!(runtime.world().subscriptions, 4);
        let (sender, subscription) = mpsc::unbounded_channel();
        runtime.world().events.push(subscription);
        sender.send(event(ContainerEventType::ContainerStoppedEvent, "pod")).unwrap();
        assert_eq!(events.recv().await.as_deref(), Some("pod"), "it has been switched on");
        task.abort();
    }

    /// containerd 1.7 gives each event to one subscriber, and kubelet would go without.
    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_replaced_is_asked_which_release_it_is_before_its_events() {
        let (runtime, client) = FakeRuntime::in_memory();
        let is = |version: &str| runtime.world().version = Some(release("containerd", version, "v1"));
        let (changed, mut heard) = mpsc::channel(1);
        let subscribed = || {
            let (events, subscription) = mpsc::unbounded_channel();
            runtime.world().events.push(subscription);
            events
        };
        is("2.1.0");
        let events = subscribed();
        let task = tokio::spawn(follow_events(client, changed));
        events.send(event(ContainerEventType::ContainerStoppedEvent, "u1")).unwrap();
        assert_eq!(heard.recv().await.as_deref(), Some("u1"));
        is("v1.7.27");
        drop(events);
        let events = subscribed();
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        assert_eq!(runtime.world().subscriptions, 1);
        is("2.1.0");
        events.send(event(ContainerEventType::ContainerStoppedEvent, "u2")).unwrap();
        assert_eq!(heard.recv().await.as_deref(), Some("u2"), "it was upgraded again");
        assert_eq!(runtime.world().subscriptions, 2);
        task.abort();
    }

    fn used(runtimes: &Runtimes) -> usize {
        runtimes.known().by_name["containerd"].0.place
    }

    /// The place of the socket that is not used.
    fn offered(runtimes: &Runtimes, name: &str, place: usize) -> Option<usize> {
        let socket = Socket { path: format!("/run/{place}").into(), place };
        let client = Client::new(socket.path.clone());
        runtimes.offer(name.into(), socket, client).map(|unused| unused.place)
    }

    #[tokio::test]
    async fn of_two_runtimes_with_the_same_name_the_first_candidate_is_used_whoever_answers_first() {
        for order in [[0, 1], [1, 0]] {
            let runtimes = Runtimes::default();
            let unused = order.map(|place| offered(&runtimes, "containerd", place));
            assert_eq!((used(&runtimes), unused), (0, [None, Some(1)]), "{order:?}");
        }
    }

    /// As `/run/containerd.sock` on some nodes, which is a link to `containerd/containerd.sock`.
    #[tokio::test]
    async fn a_link_to_the_socket_of_a_runtime_is_no_second_runtime() {
        let (runtime, other) = (FakeRuntime::start(), FakeRuntime::start());
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link.sock");
        std::os::unix::fs::symlink(&runtime.socket, &link).unwrap();
        let runtimes = Runtimes::default();
        let mut tasks = Vec::new();
        for (place, path) in [&runtime.socket, &link].into_iter().enumerate() {
            let (first_look, mut looked) = mpsc::channel(1);
            let socket = Socket { path: path.clone(), place };
            tasks.push(tokio::spawn(discover(socket, runtimes.clone(), first_look, mpsc::channel(1).0)));
            assert_eq!(looked.recv().await, None);
        }
        assert_eq!((used(&runtimes), runtimes.names()), (0, vec!["containerd".to_owned()]));
        let gone = dir.path().join("gone.sock");
        for (path, is_another) in [(&link, false), (&runtime.socket, false), (&other.socket, true), (&gone, true)] {
            assert_eq!(runtimes.is_another("containerd", path), is_another, "{}", path.display());
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// A request that has asked one of them for its container would take the silence of the other for the end of it.
    #[tokio::test]
    async fn a_runtime_that_is_in_use_is_not_replaced_by_one_with_the_same_name() {
        for place in [0, 1, 2] {
            let runtimes = Runtimes::default();
            assert_eq!(offered(&runtimes, "containerd", 1), None);
            runtimes.use_begins();
            assert_eq!((offered(&runtimes, "containerd", place), used(&runtimes)), (Some(place), 1), "{place}");
            assert_eq!(offered(&runtimes, "cri-o", place), None, "another name is free");
            assert_eq!(runtimes.names(), ["containerd", "cri-o"]);
        }
    }

    #[tokio::test]
    async fn a_socket_that_exists_is_unanswered_until_it_answers() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("late.sock");
        let runtimes = Runtimes::default();
        let (first_look, mut first_looks) = mpsc::channel(1);
        let discovery =
            discover(Socket { path: socket.clone(), place: 0 }, runtimes.clone(), first_look, mpsc::channel(1).0);
        // Nobody listens here.
        std::fs::write(&socket, "").unwrap();
        let task = tokio::spawn(discovery);
        assert_eq!(first_looks.recv().await, None);
        assert_eq!(runtimes.unanswered(), Some(socket.display().to_string()));
        let runtime = FakeRuntime::start();
        std::fs::remove_file(&socket).unwrap();
        std::os::unix::fs::symlink(&runtime.socket, &socket).unwrap();
        runtimes.wait_for_any().await;
        while runtimes.unanswered().is_some() {
            tokio::task::yield_now().await;
        }
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_nobody_serves_is_waited_for_only_as_long_as_a_runtime_takes_to_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dead.sock");
        std::fs::write(&path, "").unwrap();
        let runtimes = Runtimes::default();
        let socket = Socket { path: path.clone(), place: 0 };
        let task = tokio::spawn(discover(socket, runtimes.clone(), mpsc::channel(1).0, mpsc::channel(1).0));
        let is_late_after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            runtimes.unanswered().is_some()
        };
        assert!(is_late_after(45).await);
        assert!(!is_late_after(30).await);
        std::fs::remove_file(&path).unwrap();
        assert!(!is_late_after(15).await);
        std::fs::write(&path, "").unwrap();
        assert!(is_late_after(15).await, "the socket is a new one");
        task.abort();
    }

    /// As containerd does it: its answer begins with the first event. A call that is given up keeps its subscription.
    #[tokio::test(start_paused = true)]
    async fn a_quiet_runtime_is_subscribed_to_once_and_its_first_event_is_heard() {
        let (runtime, client) = FakeRuntime::in_memory();
        runtime.world().version = Some(release("containerd", "2.1.0", "v1"));
        let (events, subscription) = mpsc::unbounded_channel();
        runtime.world().events.push(subscription);
        let (changed, mut heard) = mpsc::channel(1);
        let task = tokio::spawn(follow_events(client, changed));
        tokio::time::sleep(Duration::from_secs(24 * 60 * 60)).await;
        for uid in ["u1", "u2"] {
            events.send(event(ContainerEventType::ContainerStoppedEvent, uid)).unwrap();
            assert_eq!(heard.recv().await.as_deref(), Some(uid));
        }
        assert_eq!(runtime.world().subscriptions, 1);
        // An end of the stream is followed by another call.
        drop(events);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(runtime.world().subscriptions, 2);
        task.abort();
    }
}
