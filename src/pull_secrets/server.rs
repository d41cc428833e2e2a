//! The TLS server: one route.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::post,
};
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec},
        core::v1::Secret,
    },
};
use kube::{Api, Client, api::PostParams};

use super::{DAEMON_ACCOUNT, Metrics};
use crate::{
    api::apps::{image_pull_job::ImagePullJob, node_image::NodeImage},
    domain::node::{
        pull_secrets::{self as rules, AUDIENCE, Answer, Caller, Candidate, Leave, PATH, Question},
        puller::Entry,
    },
    k8s::pod::{PodObject, PodView},
    runtime::{
        apply::{code, said},
        connections::{self, Gate, Limits},
        places::Places,
        shutdown::{self, Shutdown},
    },
};

/// Bytes of a question.
const BODY_LIMIT: usize = 16 << 10;
/// Questions of daemons that are answered at the same time, in all and of one node. Each costs a few reads.
const AT_ONCE: usize = 32;
const OF_ONE_NODE: usize = 8;
/// Tokens that are reviewed at the same time, in all and of one address. Anybody can send one.
const REVIEWS: usize = 64;
const OF_ONE_PEER: usize = 8;
/// How long requests that have begun may take to end.
const FINISH: Duration = Duration::from_secs(5);

/// What answers rest on.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Our own namespace, where the daemons are.
    pub namespace: String,
    /// Counts answers.
    pub metrics: Metrics,
    /// For callers that have shown their node.
    answers: Places<String>,
    /// For those that have not yet.
    reviews: Places<IpAddr>,
}

impl Context {
    /// Puts the parts together.
    pub fn new(client: Client, namespace: String, metrics: Metrics) -> Arc<Self> {
        let (answers, reviews) = (Places::new(AT_ONCE, OF_ONE_NODE), Places::new(REVIEWS, OF_ONE_PEER));
        Arc::new(Self { client, namespace, metrics, answers, reviews })
    }
}

/// Why there are no credentials. What the caller gets to see is the code and a text without secrets.
#[derive(Debug)]
enum Refusal {
    /// The caller does not show who it is.
    Unknown(String),
    /// The caller may not have these.
    Forbidden(String),
    /// Not a question.
    Malformed(String),
    /// Something else is in the way; it may pass.
    Unavailable(String),
}

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        Self::Unavailable(said(&error))
    }
}

/// The routes.
pub fn router(context: Arc<Context>) -> Router {
    Router::new()
        .route(PATH, post(respond))
        .with_state(context)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn(connections::note_answer))
}

async fn respond(
    State(context): State<Arc<Context>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let result = match authenticate(&context, peer.ip().to_canonical(), &headers).await {
        Ok(node) => answer(&context, node, &body).await,
        Err(refusal) => Err(refusal),
    };
    let (result, response) = match result {
        Ok(answer) => {
            let body = serde_json::to_vec(&answer).unwrap_or_default();
            let kind = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            ("served", (kind, body).into_response())
        }
        Err(refusal) => {
            let (result, code, text) = match refusal {
                Refusal::Unknown(text) => ("refused", StatusCode::UNAUTHORIZED, text),
                Refusal::Forbidden(text) => ("refused", StatusCode::FORBIDDEN, text),
                Refusal::Malformed(text) => ("refused", StatusCode::BAD_REQUEST, text),
                Refusal::Unavailable(text) => ("error", StatusCode::SERVICE_UNAVAILABLE, text),
            };
            tracing::info!(code = code.as_u16(), reason = text, "no registry credentials served");
            (result, (code, text).into_response())
        }
    };
    context.metrics.count(result);
    response
}

/// The node of the caller. It takes no place of those who have one: somebody without a good token holds up its own
/// address at most.
async fn authenticate(context: &Context, peer: IpAddr, headers: &HeaderMap) -> Result<String, Refusal> {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| Refusal::Unknown("there is no token".into()))?;
    let _place = context.reviews.take(peer).await;
    node_of(context, token).await
}

async fn answer(context: &Context, node: String, body: &[u8]) -> Result<Answer, Refusal> {
    let _place = context.answers.take(node.clone()).await;
    // The parser's words could quote what somebody sent by mistake.
    let question: Question =
        serde_json::from_slice(body).map_err(|_| Refusal::Malformed("want JSON with image, tag and version".into()))?;

    let images: Api<NodeImage> = Api::all(context.client.clone());
    let object = images.get_opt(&node).await?;
    let object = object.ok_or_else(|| Refusal::Forbidden(format!("there is no NodeImage {node}")))?;
    let candidates = rules::candidates(&object, &question).map_err(|why| Refusal::Forbidden(why.to_string()))?;
    let entry = Entry { image: question.image, tag: question.tag };

    let mut answer = Answer::default();
    for candidate in candidates {
        if !may_be_used(context, &candidate, &entry).await? {
            continue;
        }
        let named = |problem: &str| format!("Secret {}/{}: {problem}", candidate.namespace, candidate.name);
        let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &candidate.namespace);
        let secret = match secrets.get_opt(&candidate.name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                answer.problems.push(named("it does not exist"));
                continue;
            }
            // An administrator has let the manager read the Secrets of some namespaces only.
            Err(error) if code(&error) == Some(403) => {
                answer.problems.push(named(&rules::lacks_right(&candidate.namespace, &candidate.name)));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let data: BTreeMap<String, Vec<u8>> =
            secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect();
        match rules::matching(secret.type_.as_deref().unwrap_or("Opaque"), &data, &entry.image) {
            Ok(found) if found.is_empty() => {
                answer.problems.push(named("it has nothing for the registry of this image"))
            }
            Ok(found) => answer.credentials.extend(found),
            Err(problem) => answer.problems.push(named(&problem.to_string())),
        }
    }
    tracing::info!(
        node,
        image = entry.image,
        tag = entry.tag,
        found = answer.credentials.len(),
        problems = answer.problems.len(),
        "registry credentials served"
    );
    Ok(answer)
}

/// Whether a job lets a Secret be used as it is now, or its author does.
async fn may_be_used(context: &Context, candidate: &Candidate, entry: &Entry) -> kube::Result<bool> {
    let named = match &candidate.leave {
        Leave::Jobs(named) => named,
        Leave::Author => return Ok(true),
    };
    let jobs: Api<ImagePullJob> = Api::namespaced(context.client.clone(), &candidate.namespace);
    for (name, uid) in named {
        let job = jobs.get_opt(name).await?;
        if job.is_some_and(|job| rules::allows(&job, uid, &candidate.name, entry)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The node whose daemon has the token.
async fn node_of(context: &Context, token: &str) -> Result<String, Refusal> {
    let reviews: Api<TokenReview> = Api::all(context.client.clone());
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.into()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviewed = reviews.create(&PostParams::default(), &review).await?;
    let account = format!("system:serviceaccount:{}:{DAEMON_ACCOUNT}", context.namespace);
    match rules::caller(&reviewed.status.unwrap_or_default(), &account)
        .map_err(|why| Refusal::Unknown(why.to_string()))?
    {
        Caller::OfNode(node) => Ok(node),
        Caller::InPod(name, uid) => {
            let pods: Api<PodObject> = Api::namespaced(context.client.clone(), &context.namespace);
            let pod = pods.get_opt(&name).await?.map(PodView::from).filter(|pod| pod.uid() == uid);
            let node = pod.map(|pod| pod.node_name.as_str().to_owned()).filter(|node| !node.is_empty());
            node.ok_or_else(|| Refusal::Unknown(format!("there is no Pod {name} of this token on a node")))
        }
    }
}

/// Serves until the shutdown, then lets requests finish.
///
/// # Errors
/// The listener breaks.
pub async fn serve(
    listener: TcpListener,
    tls: RustlsConfig,
    context: Arc<Context>,
    shutdown: Shutdown,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle = Handle::new();
    let stop = {
        let handle = handle.clone();
        async move {
            shutdown::requested(shutdown).await;
            handle.graceful_shutdown(Some(FINISH));
            std::future::pending().await
        }
    };
    let limits = Limits::default();
    let gate = Gate::new(RustlsAcceptor::new(tls), limits);
    let mut server = axum_server::from_tcp(listener)?.acceptor(gate).handle(handle).http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
    tokio::select! {
        result = server.serve(router(context).into_make_service_with_connect_info::<SocketAddr>()) => result,
        never = stop => never,
    }
}

#[cfg(test)]
mod tests;
