//! An in-process runtime for tests: a real gRPC server on a socket of its own, or in memory, with containers and
//! faults that a test scripts. Under the feature `load` it is there for the program that plays thousands of nodes; it is
//! never in the product.

use std::{
    collections::HashMap,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{net::UnixListener, sync::mpsc, task::JoinHandle};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{UnboundedReceiverStream, UnixListenerStream},
};
use tonic::{Request, Response, Status, transport::server::Connected};

use super::{
    client::Client,
    proto::{image_service_server as image_server, runtime_service_server as server, *},
};

/// One thing that a client asked the fake to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// StopContainer with its timeout in seconds.
    Stop(String, i64),
    /// ExecSync with its command line.
    Exec(String, Vec<String>),
    /// The client left before the command in this container had ended.
    ExecCancelled(String),
    /// PullImage with its reference, the name of the user, and labels of the sandbox.
    Pull(String, String, Vec<(String, String)>),
    /// The client left before the pull of this reference had ended.
    PullCancelled(String),
}

/// What goes wrong with a call, until the test takes it back.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The runtime answers with this.
    Error(Status),
    /// The answer comes after this time.
    Late(Duration),
    /// No answer comes.
    Never,
}

/// How the environment of a container can be learnt.
#[derive(Clone, Debug)]
pub enum Environment {
    /// The runtime reports it, as containerd and CRI-O do.
    Reported(Vec<String>),
    /// The runtime does not, and the container has the program `env`, which prints this.
    Printed(String),
}

/// What the fake knows.
#[derive(Default)]
pub struct World {
    /// Faults by CRI method and what the call is about: a container's id, the UID of the Pod that is listed, or an image.
    pub faults: HashMap<(&'static str, String), Fault>,
    /// Containers by id.
    pub containers: HashMap<String, ContainerStatus>,
    /// What is said of a container, by its id, when everything is asked for; also the answer of the program `env` in it.
    pub environments: HashMap<String, Environment>,
    /// Images by reference.
    pub images: HashMap<String, Image>,
    /// Users that the registry of these references lets in; others may pull what is not listed.
    pub private: HashMap<String, (String, String)>,
    /// Calls with an effect, in order.
    pub calls: Vec<Call>,
    /// Answers to the next StopContainer calls; when empty, stops succeed.
    pub stop_errors: Vec<Status>,
    /// The answer to Version, for another runtime than the usual one.
    pub version: Option<VersionResponse>,
    /// Learns of every container that a StopContainer ended: who plays kubelet starts the next one.
    pub on_stop: Option<mpsc::UnboundedSender<ContainerStatus>>,
    /// For the next subscriptions to container events: what they bring. When empty, a subscriber hears nothing.
    pub events: Vec<mpsc::UnboundedReceiver<ContainerEventResponse>>,
    /// Calls of GetContainerEvents.
    pub subscriptions: usize,
}

/// The runtime. Ends when it is dropped.
pub struct FakeRuntime {
    /// Its socket; one in memory has none.
    pub socket: PathBuf,
    world: Arc<Mutex<World>>,
    task: JoinHandle<()>,
    _dir: Option<tempfile::TempDir>,
}

fn serve<I, S>(incoming: I) -> (Arc<Mutex<World>>, JoinHandle<()>)
where
    I: Stream<Item = std::io::Result<S>> + Send + 'static,
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Connected + Unpin + Send + 'static,
{
    let world = Arc::new(Mutex::new(World::default()));
    let service = server::RuntimeServiceServer::new(Service { world: world.clone() });
    let images = image_server::ImageServiceServer::new(Service { world: world.clone() });
    let task = tokio::spawn(async move {
        tonic::transport::Server::builder()
            .add_service(service)
            .add_service(images)
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    });
    (world, task)
}

impl FakeRuntime {
    /// Starts a runtime that calls itself `containerd`.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (world, task) = serve(UnixListenerStream::new(listener));
        Self { socket, world, task, _dir: Some(dir) }
    }

    /// One that is reached through memory: with sockets, tokio's paused clock would run ahead of every answer.
    pub fn in_memory() -> (Self, Client) {
        let (connections, incoming) = mpsc::unbounded_channel();
        let (world, task) = serve(UnboundedReceiverStream::new(incoming).map(std::io::Result::Ok));
        let client = Client::over(move || {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let sent = connections.send(theirs).map_err(|_| std::io::ErrorKind::ConnectionRefused.into());
            std::future::ready(sent.map(|()| ours))
        });
        (Self { socket: PathBuf::new(), world, task, _dir: None }, client)
    }

    /// Looks at, or changes, the world.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Adds a running container the way kubelet labels it.
    pub fn run(&self, id: &str, namespace: &str, pod_uid: &str, name: &str, restart_count: u32) {
        let labels = [
            ("io.kubernetes.pod.uid", pod_uid),
            ("io.kubernetes.pod.namespace", namespace),
            ("io.kubernetes.container.name", name),
        ];
        let mut world = self.world();
        let order = i64::try_from(world.containers.len()).unwrap() + 1;
        let status = ContainerStatus {
            id: id.into(),
            metadata: Some(ContainerMetadata { name: name.into(), attempt: restart_count }),
            state: ContainerState::ContainerRunning.into(),
            created_at: order * 1_000_000_000,
            started_at: order * 1_000_000_000,
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            annotations: [("io.kubernetes.container.restartCount".to_owned(), restart_count.to_string())].into(),
            ..Default::default()
        };
        world.containers.insert(id.into(), status);
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Service {
    world: Arc<Mutex<World>>,
}

impl Service {
    /// What the test wants to go wrong with this call.
    async fn fault(&self, call: &'static str, about: &str) -> Result<(), Status> {
        let fault = self.world.lock().unwrap().faults.get(&(call, about.to_owned())).cloned();
        match fault {
            None => Ok(()),
            Some(Fault::Error(status)) => Err(status),
            Some(Fault::Late(time)) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Some(Fault::Never) => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl server::RuntimeService for Service {
    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;

    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        let usual = || VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "containerd".into(),
            runtime_version: "1.6.20".into(),
            runtime_api_version: "v1".into(),
        };
        Ok(Response::new(self.world.lock().unwrap().version.clone().unwrap_or_else(usual)))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let StopContainerRequest { container_id, timeout } = request.into_inner();
        self.world.lock().unwrap().calls.push(Call::Stop(container_id.clone(), timeout));
        self.fault("StopContainer", &container_id).await?;
        let mut world = self.world.lock().unwrap();
        if !world.stop_errors.is_empty() {
            return Err(world.stop_errors.remove(0));
        }
        let container = world.containers.get_mut(&container_id).ok_or_else(|| Status::not_found(container_id))?;
        container.state = ContainerState::ContainerExited.into();
        container.exit_code = 143;
        let ended = container.clone();
        if let Some(on_stop) = &world.on_stop {
            // Nobody listens any more: the fake is about to go.
            let _ = on_stop.send(ended);
        }
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let wanted = request.into_inner().filter.unwrap_or_default().label_selector;
        for pod in wanted.values() {
            self.fault("ListContainers", pod).await?;
        }
        let world = self.world.lock().unwrap();
        let matches = |c: &&ContainerStatus| wanted.iter().all(|(k, v)| c.labels.get(k) == Some(v));
        let containers = world.containers.values().filter(matches).map(|c| Container {
            id: c.id.clone(),
            metadata: c.metadata.clone(),
            state: c.state,
            created_at: c.created_at,
            labels: c.labels.clone(),
            annotations: c.annotations.clone(),
            ..Default::default()
        });
        Ok(Response::new(ListContainersResponse { containers: containers.collect() }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let ContainerStatusRequest { container_id: id, verbose } = request.into_inner();
        self.fault("ContainerStatus", &id).await?;
        let world = self.world.lock().unwrap();
        let info = match world.environments.get(&id).filter(|_| verbose) {
            Some(Environment::Reported(env)) => {
                let spec = serde_json::json!({"pid": 7, "runtimeSpec": {"process": {"args": ["/app"], "env": env}}});
                [("info".to_owned(), spec.to_string())].into()
            }
            _ => HashMap::new(),
        };
        let status = world.containers.get(&id).cloned().ok_or_else(|| Status::not_found(id))?;
        Ok(Response::new(ContainerStatusResponse { status: Some(status), info }))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        let ExecSyncRequest { container_id, cmd, .. } = request.into_inner();
        self.world.lock().unwrap().calls.push(Call::Exec(container_id.clone(), cmd));
        let mut running = Executing { world: self.world.clone(), container: container_id.clone(), ended: false };
        let faulty = self.fault("ExecSync", &container_id).await;
        running.ended = true;
        faulty?;
        match self.world.lock().unwrap().environments.get(&container_id) {
            Some(Environment::Printed(text)) => {
                let stdout = text.clone().into_bytes();
                Ok(Response::new(ExecSyncResponse { stdout, ..Default::default() }))
            }
            _ => Ok(Response::new(ExecSyncResponse::default())),
        }
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let events = {
            let mut world = self.world.lock().unwrap();
            world.subscriptions += 1;
            if world.events.is_empty() { None } else { Some(world.events.remove(0)) }
        };
        let Some(mut events) = events else { return std::future::pending().await };
        // As runtimes in Go do, whose answers begin with the first message.
        let first = events.recv().await;
        let all = tokio_stream::iter(first).chain(UnboundedReceiverStream::new(events));
        let stream: Self::GetContainerEventsStream = Box::pin(all.map(Ok));
        Ok(Response::new(stream))
    }
}

/// Records that a command was given up, unless it is forgotten before.
struct Executing {
    world: Arc<Mutex<World>>,
    container: String,
    ended: bool,
}

impl Drop for Executing {
    fn drop(&mut self) {
        if !self.ended {
            self.world.lock().unwrap().calls.push(Call::ExecCancelled(self.container.clone()));
        }
    }
}

/// Records that a pull was given up, unless it is forgotten before.
struct Pulling {
    world: Arc<Mutex<World>>,
    image: String,
    ended: bool,
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if !self.ended {
            self.world.lock().unwrap().calls.push(Call::PullCancelled(self.image.clone()));
        }
    }
}

#[tonic::async_trait]
impl image_server::ImageService for Service {
    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let image = request.into_inner().image.unwrap_or_default().image;
        self.fault("ImageStatus", &image).await?;
        let found = self.world.lock().unwrap().images.get(&image).cloned();
        Ok(Response::new(ImageStatusResponse { image: found }))
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> Result<Response<PullImageResponse>, Status> {
        let PullImageRequest { image, auth, sandbox_config } = request.into_inner();
        let image = image.unwrap_or_default().image;
        let sandbox = sandbox_config.ok_or_else(|| Status::internal("no sandbox"))?;
        let auth = auth.unwrap_or_default();
        let mut config: Vec<(String, String)> = sandbox.labels.into_iter().chain(sandbox.annotations).collect();
        config.sort();
        self.world.lock().unwrap().calls.push(Call::Pull(image.clone(), auth.username.clone(), config));
        let mut pulling = Pulling { world: self.world.clone(), image: image.clone(), ended: false };
        let fault = self.fault("PullImage", &image).await;
        pulling.ended = true;
        fault?;
        let mut world = self.world.lock().unwrap();
        if let Some((user, password)) = world.private.get(&image)
            && (*user != auth.username || *password != auth.password)
        {
            // Some registries and their storage put what they were sent into their errors.
            let address = format!("https://auth.example/token?account={}&secret={}", auth.username, auth.password);
            return Err(Status::unknown(format!("failed to pull: {address}: 401 for {}", auth.password)));
        }
        let number = world.images.len();
        let repository = image.split([':', '@']).next().unwrap_or_default();
        let known = Image {
            id: format!("sha256:{number:064}"),
            repo_tags: vec![image.clone()],
            repo_digests: vec![format!("{repository}@sha256:{:064x}", number + 1)],
            size: 1,
        };
        let id = world.images.entry(image).or_insert(known).id.clone();
        Ok(Response::new(PullImageResponse { image_ref: id }))
    }

    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> Result<Response<ImageFsInfoResponse>, Status> {
        let fs_id = Some(FilesystemIdentifier { mountpoint: "/not/in/this/container".into() });
        Ok(Response::new(ImageFsInfoResponse { image_filesystems: vec![FilesystemUsage { fs_id }] }))
    }
}
