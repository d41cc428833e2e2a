//! How much of a pull has arrived, where the runtime is containerd: its own content service answers on the same socket.
//!
//! Nothing depends on it. Whatever goes wrong means that the bytes are not known.

use std::collections::HashMap;

use tonic::{
    Request, Status,
    metadata::MetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::{
    client::{Client, within},
    proto::content::{ListContentRequest, ListStatusesRequest, ReadContentRequest, content_client::ContentClient},
    types::CriError,
};

/// The namespace in which kubelet's images are.
const NAMESPACE: &str = "k8s.io";
const LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
/// Manifests are a few KiB; what is larger is not looked at.
const LARGEST_MANIFEST: usize = 1 << 20;
/// Content of one repository that is looked at.
const MOST_INFOS: usize = 4096;

/// Reads containerd's content store.
#[derive(Clone)]
pub struct Content {
    rpc: ContentClient<InterceptedService<Channel, InNamespace>>,
}

#[derive(Clone)]
struct InNamespace;

impl Interceptor for InNamespace {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
        Ok(request)
    }
}

/// Something that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its digest.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// What is known about it.
    pub labels: HashMap<String, String>,
}

impl Content {
    /// The content store behind the same socket.
    pub fn of(client: &Client) -> Self {
        Self { rpc: ContentClient::with_interceptor(client.channel(), InNamespace) }
    }

    /// What is stored of a repository, by the registry and the path in it.
    pub async fn of_repository(&self, registry: &str, path: &str) -> Result<Vec<Stored>, CriError> {
        let label = format!("containerd.io/distribution.source.{registry}");
        let request = ListContentRequest { filters: vec![format!("labels.{label:?}")] };
        let work = async {
            let mut stream = within("Content/List", LIMIT, self.rpc.clone().list(request)).await?;
            let mut found = Vec::new();
            while let Some(part) = stream.message().await.map_err(|status| broken("Content/List", &status))? {
                let infos = part.info.into_iter().filter(|info| {
                    // One blob may come from several repositories of the registry.
                    info.labels.get(&label).is_some_and(|paths| paths.split(',').any(|known| known == path))
                });
                found.extend(infos.map(|info| Stored {
                    digest: info.digest,
                    size: u64::try_from(info.size).unwrap_or_default(),
                    labels: info.labels,
                }));
                if found.len() > MOST_INFOS {
                    break;
                }
            }
            Ok(found)
        };
        in_time("Content/List", work).await
    }

    /// The bytes of something small that is stored.
    pub async fn read(&self, digest: &str) -> Result<Vec<u8>, CriError> {
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let work = async {
            let mut stream = within("Content/Read", LIMIT, self.rpc.clone().read(request)).await?;
            let mut bytes = Vec::new();
            while let Some(part) = stream.message().await.map_err(|status| broken("Content/Read", &status))? {
                bytes.extend(part.data);
                if bytes.len() > LARGEST_MANIFEST {
                    let message = format!("{digest} is larger than {LARGEST_MANIFEST} bytes");
                    return Err(CriError::Runtime { call: "Content/Read", message, may_pass: true });
                }
            }
            Ok(bytes)
        };
        in_time("Content/Read", work).await
    }

    /// What is being fetched: the end of each name is a digest; bytes that have arrived.
    pub async fn fetching(&self) -> Result<Vec<(String, u64)>, CriError> {
        let request = ListStatusesRequest { filters: Vec::new() };
        let answer = within("Content/ListStatuses", LIMIT, self.rpc.clone().list_statuses(request)).await?;
        Ok(answer.statuses.into_iter().map(|s| (s.r#ref, u64::try_from(s.offset).unwrap_or_default())).collect())
    }
}

async fn in_time<T>(call: &'static str, work: impl Future<Output = Result<T, CriError>>) -> Result<T, CriError> {
    let late = CriError::Timeout { call, seconds: LIMIT.as_secs() };
    tokio::time::timeout(LIMIT, work).await.unwrap_or(Err(late))
}

fn broken(call: &'static str, status: &Status) -> CriError {
    CriError::Unreachable { call, message: status.message().to_owned() }
}
