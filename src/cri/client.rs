//! A client of one runtime. Cheap to clone; reconnects by itself when the runtime was restarted.

use std::{collections::HashMap, error::Error as _, io, path::PathBuf, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use super::{
    exec,
    proto::{
        AuthConfig, Container, ContainerEventResponse, ContainerFilter, ContainerStatus, ContainerStatusRequest,
        ExecSyncRequest, ExecSyncResponse, GetEventsRequest, Image, ImageFsInfoRequest, ImageSpec, ImageStatusRequest,
        ListContainersRequest, PodSandboxConfig, PullImageRequest, StopContainerRequest, VersionRequest,
        VersionResponse, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
    },
    types::CriError,
};

/// For calls that only read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// On top of the time that a stop or a command may itself take.
const SLACK: Duration = Duration::from_secs(15);
/// What kubelet accepts; a node with many containers answers with more than gRPC's default.
const MAX_MESSAGE: usize = 16 << 20;

/// A runtime behind one socket.
#[derive(Clone)]
pub struct Client {
    rpc: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    channel: Channel,
}

impl Client {
    /// A client that connects when it is first used, and again whenever the connection is lost.
    pub fn new(socket: PathBuf) -> Self {
        Self::over(move || UnixStream::connect(socket.clone()))
    }

    /// A client of whatever `connect` connects to.
    pub fn over<C, F, S>(connect: C) -> Self
    where
        C: Fn() -> F + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The address is never used.
        let channel =
            Endpoint::from_static("http://runtime.invalid").connect_with_connector_lazy(service_fn(move |_: Uri| {
                let connection = connect();
                async move { connection.await.map(TokioIo::new) }
            }));
        Self {
            rpc: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel.clone()),
            channel,
        }
    }

    /// The connection, for what the runtime serves besides the Container Runtime Interface.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest { version: "0.1.0".into() };
        within("Version", READ_TIMEOUT, self.rpc.clone().version(request)).await
    }

    /// Every container whose labels contain this one.
    pub async fn list_containers(&self, label: &str, value: &str) -> Result<Vec<Container>, CriError> {
        let filter =
            ContainerFilter { label_selector: [(label.to_owned(), value.to_owned())].into(), ..Default::default() };
        let request = ListContainersRequest { filter: Some(filter) };
        Ok(within("ListContainers", READ_TIMEOUT, self.rpc.clone().list_containers(request)).await?.containers)
    }

    /// Status of one container, by its id inside the runtime.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = within("ContainerStatus", READ_TIMEOUT, self.rpc.clone().container_status(request)).await?;
        answer.status.ok_or_else(|| CriError::NotFound {
            call: "ContainerStatus",
            message: format!("container {id} has no status"),
        })
    }

    /// What the runtime says of a container when it is asked for all: texts by key, each runtime in its own form.
    pub async fn container_info(&self, id: &str) -> Result<HashMap<String, String>, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        Ok(within("ContainerStatus", READ_TIMEOUT, self.rpc.clone().container_status(request)).await?.info)
    }

    /// Stops a container: the stop signal, then SIGKILL after `grace` (whole seconds, rounded up; zero kills at once).
    /// Returns when it is dead. Once sent, the runtime carries the stop out even if nobody waits for the answer.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: ceil_seconds(grace) };
        within("StopContainer", grace.saturating_add(SLACK), self.rpc.clone().stop_container(request)).await.map(drop)
    }

    /// Runs a command in a container. The runtime ends it after `limit`; dropping the future ends it at once.
    pub async fn exec_sync(&self, id: &str, cmd: &[String], limit: Duration) -> Result<ExecSyncResponse, CriError> {
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd: cmd.to_vec(), timeout: ceil_seconds(limit) };
        within("ExecSync", limit.saturating_add(SLACK), self.rpc.clone().exec_sync(request)).await
    }

    /// The image that a reference names. None: it is not there.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>, CriError> {
        let request = ImageStatusRequest { image: Some(ImageSpec { image: image.to_owned() }) };
        match within("ImageStatus", READ_TIMEOUT, self.images.clone().image_status(request)).await {
            Ok(answer) => Ok(answer.image),
            Err(CriError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pulls an image and returns its name inside the runtime. The runtime ends the pull when the future is dropped,
    /// and it is dropped after `limit`.
    pub async fn pull_image(
        &self,
        image: &str,
        auth: Option<AuthConfig>,
        sandbox: PodSandboxConfig,
        limit: Duration,
    ) -> Result<String, CriError> {
        let request = PullImageRequest {
            image: Some(ImageSpec { image: image.to_owned() }),
            auth,
            // Some runtimes read it without looking whether it is there.
            sandbox_config: Some(sandbox),
        };
        Ok(within("PullImage", limit, self.images.clone().pull_image(request)).await?.image_ref)
    }

    /// Where on the node the runtime keeps images.
    pub async fn image_directory(&self) -> Result<Option<PathBuf>, CriError> {
        let answer =
            within("ImageFsInfo", READ_TIMEOUT, self.images.clone().image_fs_info(ImageFsInfoRequest {})).await?;
        let first = answer.image_filesystems.into_iter().next().and_then(|usage| usage.fs_id);
        Ok(first.map(|id| PathBuf::from(id.mountpoint)))
    }

    /// The same, for a command that may print anything: of each of its outputs the first `keep` bytes are kept, and no
    /// more is ever held.
    pub async fn exec_bounded(
        &self,
        id: &str,
        cmd: &[String],
        limit: Duration,
        keep: usize,
    ) -> Result<exec::Answer, CriError> {
        let (call, most) = ("ExecSync", limit.saturating_add(SLACK));
        let run = exec::run(self.channel.clone(), id, cmd, ceil_seconds(limit), keep);
        match tokio::time::timeout(most, run).await {
            Ok(answer) => answer.map_err(|status| classify(call, &status)),
            Err(_) => Err(CriError::Timeout { call, seconds: most.as_secs() }),
        }
    }

    /// The runtime's stream of container events. A runtime may answer no sooner than with its first event, so there is no
    /// time limit; a connection that breaks ends the call.
    pub async fn container_events(&self) -> Result<tonic::Streaming<ContainerEventResponse>, CriError> {
        let mut rpc = self.rpc.clone();
        let answer = rpc.get_container_events(GetEventsRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| classify("GetContainerEvents", &status))
    }
}

/// Runtimes count nanoseconds in 64 bits: what does not fit would wrap to a time in the past, and kill at once.
const MAX_SECONDS: i64 = i32::MAX as i64;

fn ceil_seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(MAX_SECONDS).min(MAX_SECONDS)
}

pub(super) async fn within<T>(
    call: &'static str,
    limit: Duration,
    rpc: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, CriError> {
    match tokio::time::timeout(limit, rpc).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(classify(call, &status)),
        Err(_) => Err(CriError::Timeout { call, seconds: limit.as_secs() }),
    }
}

/// In an error without a code: the same call may succeed later. containerd wraps the errors of its shims this way.
const PASSING: [&str; 6] =
    ["deadline exceeded", "failed to get task", "busy", "unavailable", "try again", "connection refused"];
/// In an error without a code: the container is not there. Older containerd says the first, cri-dockerd the second.
const UNKNOWN: [&str; 2] = ["not found", "no such container"];
/// In an error without a code: the same call is refused each time.
const REFUSED: [&str; 4] = ["permission denied", "operation not permitted", "invalid argument", "not implemented"];

/// By code first. A status that the runtime sent has no source; one that the transport made up carries the transport's
/// error.
fn classify(call: &'static str, status: &Status) -> CriError {
    let message = status.message().to_owned();
    let may_pass = match status.code() {
        Code::NotFound => return CriError::NotFound { call, message },
        Code::Unavailable | Code::Cancelled => return CriError::Unreachable { call, message },
        _ if status.source().is_some() => return CriError::Unreachable { call, message },
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::OutOfRange
        | Code::Unimplemented => false,
        Code::Unknown => {
            let words = message.to_lowercase();
            let says = |list: &[&str]| list.iter().any(|text| words.contains(text));
            // A container without the program that was to be run: "executable file not found in $PATH".
            let no_program = words.contains("executable file not found");
            let passing = says(&PASSING);
            if !passing && !no_program && says(&UNKNOWN) {
                return CriError::NotFound { call, message };
            }
            passing || !(no_program || says(&REFUSED))
        }
        _ => true,
    };
    CriError::Runtime { call, message, may_pass }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_is_rounded_up_to_whole_seconds() {
        assert_eq!(ceil_seconds(Duration::ZERO), 0);
        assert_eq!(ceil_seconds(Duration::from_millis(1)), 1);
        assert_eq!(ceil_seconds(Duration::from_secs(30)), 30);
        assert_eq!(ceil_seconds(Duration::MAX), MAX_SECONDS);
    }

    #[test]
    fn errors_are_distinguished() {
        let not_found = classify("StopContainer", &Status::unknown("an error: container \"x\": not found"));
        assert!(matches!(not_found, CriError::NotFound { .. }));
        let words = "OCI runtime exec failed: exec: \"true\": executable file not found in $PATH: unknown";
        assert!(matches!(classify("ExecSync", &Status::unknown(words)), CriError::Runtime { .. }));
        assert!(classify("StopContainer", &Status::unavailable("connection refused")).is_transient());
        assert!(!classify("StopContainer", &Status::internal("boom")).is_transient());
    }

    /// As the runtimes word it, each in its own way. These are literals, written by hand: no runtime was asked for them.
    #[test]
    fn every_runtime_says_in_its_own_way_that_a_container_is_not_there() {
        for (runtime, status) in [
            ("containerd", Status::not_found("an error occurred when try to find container \"41a\": not found")),
            ("containerd, older", Status::unknown("an error occurred when try to find container \"41a\": not found")),
            (
                "CRI-O",
                Status::not_found("could not find container \"41a\": container with ID starting with 41a not found"),
            ),
            ("cri-dockerd", Status::not_found("Error response from daemon: No such container: 41a")),
            ("cri-dockerd, a status", Status::unknown("Error: No such container: 41a")),
            (
                "cri-dockerd, older",
                Status::unknown("Error response from daemon: {\"message\":\"No such container: 41a\"}"),
            ),
        ] {
            let error = classify("ContainerStatus", &status);
            assert!(matches!(error, CriError::NotFound { .. }), "{runtime}: {error:?}");
        }
    }

    #[test]
    fn only_refusals_and_unknown_containers_are_final() {
        let text = |words: &str| Status::unknown(words);
        for (status, may_pass) in [
            (text("failed to get task for container c0: context deadline exceeded"), true),
            (text("failed to stop: ttrpc: connection refused"), true),
            (text("task is busy"), true),
            (text("boom"), true),
            (Status::new(Code::DeadlineExceeded, "context deadline exceeded"), true),
            (Status::new(Code::Internal, "boom"), true),
            (Status::new(Code::ResourceExhausted, "too many"), true),
            (Status::unavailable("restarting"), true),
            (Status::cancelled("restarting"), true),
            (Status::invalid_argument("deadline exceeded"), false),
            (Status::permission_denied("no"), false),
            (Status::unimplemented("no"), false),
            (Status::not_found("no such container"), false),
            (text("an error: container \"x\": not found"), false),
            (text("runc did not terminate: kill: Operation not permitted"), false),
        ] {
            assert_eq!(classify("StopContainer", &status).may_pass(), may_pass, "{status:?}");
        }
    }

    #[tokio::test]
    async fn an_absent_socket_is_unreachable_not_a_failure_of_a_container() {
        let dir = tempfile::tempdir().unwrap();
        let error = Client::new(dir.path().join("none.sock")).version().await.unwrap_err();
        assert!(matches!(error, CriError::Unreachable { .. }), "{error:?}");
    }
}
