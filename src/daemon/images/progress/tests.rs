//! Bytes of pulls from a containerd that is played: a real gRPC server on a socket, with the content service alone.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use serde_json::{Value, json};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::{Stream, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status};

use super::*;
use crate::cri::{
    fake::FakeRuntime,
    proto::content::{
        Info, ListContentRequest, ListContentResponse, ListStatusesRequest, ListStatusesResponse, ReadContentRequest,
        ReadContentResponse, Status as Fetching,
        content_server::{Content as Service, ContentServer},
    },
};

const IMAGE: &str = "registry.example/team/app";

#[derive(Default)]
struct World {
    stored: Vec<Info>,
    fetching: Vec<Fetching>,
    blobs: HashMap<String, Vec<u8>>,
    /// Nothing is answered.
    silent: bool,
    /// containerd's namespace and the filter of each list.
    asked: Vec<(String, Vec<String>)>,
}

impl World {
    /// A blob of a repository of the registry of [`IMAGE`].
    fn store(&mut self, digest: &str, size: i64, path: &str, layers: &[&str]) {
        let source = ("containerd.io/distribution.source.registry.example".to_owned(), path.to_owned());
        let layers = layers.iter().enumerate().map(|(i, layer)| (format!("{LAYERS}{i}"), (*layer).to_owned()));
        let labels = std::iter::once(source).chain(layers).collect();
        self.stored.push(Info { digest: digest.to_owned(), size, labels });
    }

    fn manifest(&mut self, digest: &str, layers: &[(&str, u64)]) {
        let described: Vec<Value> =
            layers.iter().map(|(digest, size)| json!({"digest": digest, "size": size})).collect();
        let text = json!({"schemaVersion": 2, "layers": described}).to_string();
        let names: Vec<&str> = layers.iter().map(|(digest, _)| *digest).collect();
        self.store(digest, i64::try_from(text.len()).unwrap(), "team/app", &names);
        self.blobs.insert(digest.to_owned(), text.into_bytes());
    }

    fn fetch(&mut self, layers: &[(&str, i64)]) {
        let of =
            |(digest, offset): &(&str, i64)| Fetching { r#ref: format!("layer-{digest}"), offset: *offset, total: 0 };
        self.fetching = layers.iter().map(of).collect();
    }
}

struct Containerd {
    world: Arc<Mutex<World>>,
    runtime: Client,
    task: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Containerd {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("containerd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let world = Arc::new(Mutex::new(World::default()));
        let service = ContentServer::new(Played(world.clone()));
        let incoming = UnixListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
        let task = tokio::spawn(async move { server.await.unwrap() });
        Self { world, runtime: Client::new(socket), task, _dir: dir }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Played(Arc<Mutex<World>>);

impl Played {
    async fn answer(&self) -> MutexGuard<'_, World> {
        if self.0.lock().unwrap().silent {
            std::future::pending::<()>().await;
        }
        self.0.lock().unwrap()
    }
}

type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One part for each: the answer comes in several messages.
fn parts<T: Send + 'static>(parts: Vec<T>) -> Response<Parts<T>> {
    Response::new(Box::pin(tokio_stream::iter(parts.into_iter().map(Ok))))
}

#[tonic::async_trait]
impl Service for Played {
    type ListStream = Parts<ListContentResponse>;
    type ReadStream = Parts<ReadContentResponse>;

    async fn list(&self, request: Request<ListContentRequest>) -> Result<Response<Self::ListStream>, Status> {
        let namespace = request.metadata().get("containerd-namespace").and_then(|name| name.to_str().ok());
        let asked = (namespace.unwrap_or_default().to_owned(), request.get_ref().filters.clone());
        let mut world = self.answer().await;
        world.asked.push(asked);
        Ok(parts(world.stored.iter().map(|info| ListContentResponse { info: vec![info.clone()] }).collect()))
    }

    async fn read(&self, request: Request<ReadContentRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let digest = request.into_inner().digest;
        let world = self.answer().await;
        let bytes = world.blobs.get(&digest).ok_or_else(|| Status::not_found(digest))?;
        let part = |data: &[u8]| ReadContentResponse { offset: 0, data: data.to_vec() };
        Ok(parts(bytes.chunks(1 << 16).map(part).collect()))
    }

    async fn list_statuses(&self, _: Request<ListStatusesRequest>) -> Result<Response<ListStatusesResponse>, Status> {
        Ok(Response::new(ListStatusesResponse { statuses: self.answer().await.fetching.clone() }))
    }
}

fn arrived(bytes: u64, total: u64) -> Option<Arrived> {
    Some(Arrived { bytes, total })
}

#[tokio::test]
async fn f19_bytes_are_those_of_the_manifest_whose_layers_are_being_fetched() {
    let containerd = Containerd::start();
    let mut progress = Progress::of(&containerd.runtime, IMAGE);
    assert_eq!(progress.look().await, None, "nothing is there yet");
    {
        let mut world = containerd.world();
        world.manifest("sha256:old", &[("sha256:base", 100), ("sha256:gone", 900)]);
        world.manifest("sha256:new", &[("sha256:base", 100), ("sha256:app", 50), ("sha256:data", 850)]);
        world.fetch(&[("sha256:elsewhere", 7)]);
    }
    assert_eq!(progress.look().await, None, "what arrives is of another image");
    {
        let mut world = containerd.world();
        world.store("sha256:base", 100, "team/other,team/app", &[]);
        // The same bytes of a repository that is not ours are not here for us.
        world.store("sha256:data", 850, "team/application", &[]);
        world.fetch(&[("sha256:app", 20), ("sha256:elsewhere", 7)]);
    }
    assert_eq!(progress.look().await, arrived(120, 1000));
    {
        let mut world = containerd.world();
        world.store("sha256:app", 50, "team/app", &[]);
        world.fetch(&[("sha256:data", 400)]);
    }
    assert_eq!(progress.look().await, arrived(550, 1000));
    containerd.world().fetch(&[("sha256:data", i64::MAX)]);
    assert_eq!(progress.look().await, arrived(1000, 1000), "never more than there is");
    containerd.world().fetch(&[("sha256:data", -1), ("no digest", 5)]);
    assert_eq!(progress.look().await, arrived(150, 1000));
    let asked = containerd.world().asked.last().cloned().unwrap();
    let filter = r#"labels."containerd.io/distribution.source.registry.example""#;
    assert_eq!(asked, ("k8s.io".to_owned(), vec![filter.to_owned()]));
}

#[tokio::test]
async fn names_are_those_that_containerd_gives_to_images_of_docker() {
    let containerd = Containerd::start();
    Progress::of(&containerd.runtime, "busybox").look().await;
    let asked = containerd.world().asked.last().cloned().unwrap();
    assert_eq!(asked.1, [r#"labels."containerd.io/distribution.source.docker.io""#]);
}

#[tokio::test]
async fn a_runtime_without_the_service_is_asked_once() {
    let fake = FakeRuntime::start();
    let mut progress = Progress::of(&Client::new(fake.socket.clone()), IMAGE);
    assert_eq!(progress.look().await, None);
    assert!(progress.content.is_none());
    assert_eq!(progress.look().await, None);
}

#[tokio::test]
async fn what_is_late_or_down_may_answer_the_next_time() {
    let containerd = Containerd::start();
    let mut progress = Progress::of(&containerd.runtime, IMAGE);
    {
        let mut world = containerd.world();
        world.manifest("sha256:new", &[("sha256:app", 50)]);
        world.fetch(&[("sha256:app", 20)]);
        world.silent = true;
    }
    tokio::time::pause();
    assert_eq!(progress.look().await, None);
    tokio::time::resume();
    containerd.world().silent = false;
    assert_eq!(progress.look().await, arrived(20, 50));
    containerd.task.abort();
    let mut of_nobody = Progress::of(&Client::new("/nowhere/containerd.sock".into()), IMAGE);
    assert_eq!(of_nobody.look().await, None);
    assert!(of_nobody.content.is_some());
}

#[tokio::test]
async fn content_that_is_no_manifest_says_nothing() {
    for (name, blob) in [
        ("text", b"no manifest".to_vec()),
        ("list", json!({"manifests": []}).to_string().into_bytes()),
        ("negative", json!({"layers": [{"digest": "sha256:app", "size": -1}]}).to_string().into_bytes()),
        ("empty", json!({"layers": []}).to_string().into_bytes()),
        ("huge", vec![b' '; 3 << 20]),
    ] {
        let containerd = Containerd::start();
        let mut progress = Progress::of(&containerd.runtime, IMAGE);
        {
            let mut world = containerd.world();
            world.manifest("sha256:new", &[("sha256:app", 50)]);
            world.blobs.insert("sha256:new".into(), blob);
            world.fetch(&[("sha256:app", 20)]);
        }
        assert_eq!(progress.look().await, None, "{name}");
        assert_eq!(progress.look().await, None, "{name}, again");
    }
}
