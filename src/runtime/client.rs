//! The client of the API server.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::http::{HeaderValue, Request, Response, header::USER_AGENT};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, Layer, Service};

use super::{
    clock, fence, levels, repeat,
    silence::{Limited, Limits},
    standstill,
};
use crate::k8s::{path, time::Now};

/// The oldest Kubernetes we run on: ValidatingAdmissionPolicy and matchConditions are needed.
pub const MINIMUM_VERSION: (u32, u32) = (1, 30);
/// How long an answer may take to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How to reach the API server.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// None: `KUBECONFIG`, `~/.kube/config` or the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig other than its current one.
    pub context: Option<String>,
    /// A user to act as, if the caller may.
    pub act_as: Option<String>,
    /// Groups to act as besides, if the caller may.
    pub act_as_groups: Vec<String>,
    /// What the API server's logs and metrics name us.
    pub user_agent: &'static str,
    /// Requests a second, on average; 0 or less: no limit but the server's own.
    pub qps: f32,
    /// Requests at once.
    pub burst: u32,
}

/// Why there is no usable API server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file cannot be used.
    #[error("kubeconfig {path}: {error}")]
    Kubeconfig {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The context is not there, or does not say how to reach a cluster.
    #[error("context {context:?}: {error}")]
    Context {
        /// Which one.
        context: String,
        /// What is wrong with it.
        error: String,
    },
    /// Neither a file nor a service account.
    #[error("no way to the API server is configured (--kubeconfig, KUBECONFIG, or run inside a cluster): {0}")]
    NoConfig(String),
    /// The configuration cannot be made a client.
    #[error("client of the API server: {0}")]
    Client(kube::Error),
    /// An answer, but no good one.
    #[error("API server version: {0}")]
    Version(kube::Error),
    /// The version is no number.
    #[error("API server version {0:?} cannot be read: want major and minor numbers")]
    UnreadableVersion(String),
    /// The version is too old.
    #[error("API server is Kubernetes {0}.{1}; kruise-rs needs {min}.{minor} or newer", min = MINIMUM_VERSION.0, minor = MINIMUM_VERSION.1)]
    TooOld(u32, u32),
}

/// Makes the cryptography provider known to everything that uses TLS. Call it once, first of all; later calls change
/// nothing.
pub fn install_crypto() {
    // An error says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client. Nothing is sent yet.
///
/// # Errors
/// If the configuration is missing or bad.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    install_crypto();
    let chosen = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match (&options.kubeconfig, &options.context) {
        (None, None) => Config::infer().await.map_err(|error| no_config(&error))?,
        (None, Some(context)) => {
            let bad = |error| ClientError::Context { context: context.clone(), error: without_content(&error) };
            Config::from_kubeconfig(&chosen).await.map_err(bad)?
        }
        (Some(path), _) => {
            let bad = |error| ClientError::Kubeconfig { path: path.clone(), error: without_content(&error) };
            let file = Kubeconfig::read_from(path).map_err(bad)?;
            Config::from_custom_kubeconfig(file, &chosen).await.map_err(bad)?
        }
    };
    act_as(&mut config, options);
    // `silence` limits every answer that somebody waits for. A limit of the connection itself would set a timer anew at each
    // event of each watch.
    config.read_timeout = None;
    // It would pass by the fence, and repeat an eviction that a budget refuses.
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(options.user_agent)));
    let builder = ClientBuilder::try_from(config).map_err(ClientError::Client)?;
    let throttled = builder.with_layer(&Throttle::new(options.qps, options.burst)).build();
    Ok(levels::readable(&repeat::repeating(&throttled)))
}

fn act_as(config: &mut Config, options: &ClientOptions) {
    if options.act_as.is_some() {
        config.auth_info.impersonate.clone_from(&options.act_as);
    }
    if !options.act_as_groups.is_empty() {
        config.auth_info.impersonate_groups = Some(options.act_as_groups.clone());
    }
}

/// What is wrong with a kubeconfig. Parsers quote the file, which may be any file and holds keys.
fn without_content(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => {
            let at = error.location().map(|at| format!(" (line {}, column {})", at.line(), at.column()));
            format!("no kubeconfig in YAML{}", at.unwrap_or_default())
        }
        KubeconfigError::ParseCertificates(_) => "a certificate in it is not PEM".into(),
        other => other.to_string(),
    }
}

fn no_config(error: &InferConfigError) -> ClientError {
    let kubeconfig = std::error::Error::source(error).and_then(|source| source.downcast_ref::<KubeconfigError>());
    ClientError::NoConfig(match kubeconfig {
        Some(quoting @ (KubeconfigError::Parse(_) | KubeconfigError::ParseCertificates(_))) => {
            format!("kubeconfig: {}", without_content(quoting))
        }
        _ => error.to_string(),
    })
}

/// Waits for an answer of the API server and checks that it is new enough. An API server that cannot be reached is
/// asked again; `on_retry` learns why.
///
/// # Errors
/// If the server is too old or refuses to answer.
pub async fn check_server(client: &Client, on_retry: impl Fn(&kube::Error)) -> Result<(u32, u32), ClientError> {
    let mut delay = Duration::from_millis(250);
    loop {
        match client.apiserver_version().await {
            Ok(info) => return check_version(&info),
            Err(error) if can_pass(&error) => on_retry(&error),
            Err(error) => return Err(ClientError::Version(error)),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(Duration::from_secs(8));
    }
}

/// Whether an error may be gone with the next attempt: no answer, or one that says that the API server or what stands
/// before it has trouble.
pub fn can_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

/// Reads a version and checks that it is new enough. Providers decorate the numbers: `30+`, `1.30.5-gke.100`. Only
/// leading digits count.
///
/// # Errors
/// If it is too old or no version.
pub fn check_version(info: &Info) -> Result<(u32, u32), ClientError> {
    let number = |text: &str| {
        let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    match (number(&info.major), number(&info.minor)) {
        (Some(major), Some(minor)) if (major, minor) >= MINIMUM_VERSION => Ok((major, minor)),
        (Some(major), Some(minor)) => Err(ClientError::TooOld(major, minor)),
        _ => Err(ClientError::UnreadableVersion(format!("{}.{}", info.major, info.minor))),
    }
}

/// Whether the API server serves a custom resource, named `<plural>.<group>`, in any version.
///
/// # Errors
/// Those of the API server.
pub async fn serves(client: &Client, name: &str) -> kube::Result<bool> {
    let Some((plural, group)) = name.split_once('.') else { return Ok(false) };
    let groups = client.list_api_groups().await?.groups;
    for version in groups.iter().filter(|g| g.name == group).flat_map(|g| &g.versions) {
        let resources = client.list_api_group_resources(&version.group_version).await?.resources;
        if resources.iter().any(|r| r.name == plural) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Delays requests beyond a rate, and gives up on an answer that does not begin, or that stops.
#[derive(Clone)]
pub(super) struct Throttle(Option<Arc<Mutex<Bucket>>>);

impl Throttle {
    pub(super) fn new(qps: f32, burst: u32) -> Self {
        let bucket = || Bucket::new(qps.into(), burst.max(1).into(), clock::now());
        Self((qps > 0.0).then(|| Arc::new(Mutex::new(bucket()))))
    }

    fn delay(&self, path: &str) -> Duration {
        // The Lease must be renewed in time whatever else goes on; events have a limit of their own.
        let exempt = path.starts_with("/apis/coordination.k8s.io/") || path.ends_with("/events");
        match &self.0 {
            Some(bucket) if !exempt => bucket.lock().unwrap_or_else(PoisonError::into_inner).reserve(clock::now()),
            _ => Duration::ZERO,
        }
    }
}

impl<S> Layer<S> for Throttle {
    type Service = Throttled<S>;
    fn layer(&self, inner: S) -> Self::Service {
        Throttled { inner, throttle: self.clone() }
    }
}

pub(super) struct Throttled<S> {
    inner: S,
    throttle: Throttle,
}

impl<S, B> Service<Request<Body>> for Throttled<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<Limited<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Names were parsed before they became part of a URL; one that was not does no harm.
        if let Err(error) = path::check(request.uri().path(), request.uri().query()) {
            return Box::pin(async move { Err(error.into()) });
        }
        let delay = self.throttle.delay(request.uri().path());
        let ticket = fence::Ticket::of(&request);
        let limits = Limits::of(request.uri());
        // Nothing is sent before the first poll, which the delay holds back.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if !ticket.is_good() {
                return Err("not sent: the Lease is not ours any longer".into());
            }
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
            // This runs in the task of whoever asks.
            standstill::moved();
            match answer {
                Ok(answer) => answer.map(|answer| answer.map(|body| Limited::new(body, limits))).map_err(Into::into),
                Err(_) => Err(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()).into()),
            }
        })
    }
}

/// Tokens for requests; it goes below zero, which is the queue of those that wait.
struct Bucket {
    qps: f64,
    burst: f64,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    fn new(qps: f64, burst: f64, now: Now) -> Self {
        Self { qps, burst, tokens: burst, at: now.mono }
    }

    /// Takes a token; how long to wait until it is there.
    fn reserve(&mut self, now: Now) -> Duration {
        let passed = now.mono.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now.mono);
        self.tokens = (self.tokens + passed * self.qps).min(self.burst) - 1.0;
        Duration::try_from_secs_f64(-self.tokens / self.qps).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ending::Ending;

    #[test]
    fn versions_of_all_providers_are_read() {
        let check = |major: &str, minor: &str| {
            check_version(&Info { major: major.into(), minor: minor.into(), ..Info::default() })
        };
        assert_eq!(check("1", "30").unwrap(), (1, 30));
        assert_eq!(check("1", "34+").unwrap(), (1, 34));
        assert_eq!(check("2", "0-eks").unwrap(), (2, 0));
        assert_eq!(
            check("1", "29+").unwrap_err().to_string(),
            "API server is Kubernetes 1.29; kruise-rs needs 1.30 or newer"
        );
        assert!(check("", "").unwrap_err().to_string().contains("cannot be read"));
    }

    #[tokio::test]
    async fn an_error_of_a_kubeconfig_quotes_nothing_of_the_file() {
        let path = std::env::temp_dir().join(format!("kruise-kubeconfig-{}", std::process::id()));
        for content in
            ["users: hunter2-secret", "hunter2-secret", "users: [\n  - hunter2-secret: {", "a: b\n\thunter2-secret: 1"]
        {
            std::fs::write(&path, content).unwrap();
            let options = ClientOptions {
                kubeconfig: Some(path.clone()),
                context: None,
                act_as: None,
                act_as_groups: Vec::new(),
                user_agent: "test",
                qps: 0.0,
                burst: 1,
            };
            let error = connect(&options).await.err().expect("no kubeconfig");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("no kubeconfig in YAML"), "{shown}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn who_is_acted_as_is_what_the_flags_say_and_otherwise_the_kubeconfig() {
        let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
        let mut options = ClientOptions {
            kubeconfig: None,
            context: None,
            act_as: None,
            act_as_groups: Vec::new(),
            user_agent: "test",
            qps: 0.0,
            burst: 1,
        };
        config.auth_info.impersonate = Some("of-file".into());
        let said = |config: &Config| {
            let (user, groups) = (&config.auth_info.impersonate, &config.auth_info.impersonate_groups);
            (user.clone().unwrap_or_default(), groups.clone().unwrap_or_default().join(","))
        };
        act_as(&mut config, &options);
        assert_eq!(said(&config), ("of-file".into(), String::new()));
        options.act_as = Some("jane".into());
        options.act_as_groups = vec!["dev".into(), "ops".into()];
        act_as(&mut config, &options);
        assert_eq!(said(&config), ("jane".into(), "dev,ops".into()));
    }

    #[test]
    fn trouble_of_the_api_server_passes_and_a_refusal_does_not() {
        let answer = |code| kube::Error::Api(kube::core::Status::failure("no", "No").with_code(code).boxed());
        assert!([429, 500, 503].into_iter().all(|code| can_pass(&answer(code))));
        assert!(![401, 403, 404].into_iter().any(|code| can_pass(&answer(code))));
        assert!(can_pass(&kube::Error::Service("connection refused".into())));
    }

    #[test]
    fn a_burst_passes_and_the_rest_queues() {
        let at = |millis| Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Duration::from_millis(millis) };
        let mut bucket = Bucket::new(10.0, 2.0, at(1000));
        assert_eq!(bucket.reserve(at(1000)), Duration::ZERO);
        assert_eq!(bucket.reserve(at(1000)), Duration::ZERO);
        assert_eq!(bucket.reserve(at(1000)), Duration::from_millis(100));
        assert_eq!(bucket.reserve(at(1000)), Duration::from_millis(200));
        assert_eq!(bucket.reserve(at(1200)), Duration::from_millis(100));
        assert_eq!(bucket.reserve(at(60_000)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_begin_is_given_up() {
        let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, BoxError>>());
        let mut service = Throttle::new(0.0, 0).layer(silent);
        let error = service.call(Request::new(Body::empty())).await.err().unwrap();
        assert_eq!(error.to_string(), "no answer within 60 s");
    }

    #[tokio::test]
    async fn a_url_that_is_no_api_path_is_not_sent() {
        let served = tower::service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(Body::empty())));
        let mut service = Throttle::new(0.0, 0).layer(served);
        let mut send = async |uri: &str| service.call(Request::get(uri).body(Body::empty()).unwrap()).await;
        send("/api/v1/namespaces/default/podtemplates?dryRun=All&fieldValidation=Warn").await.unwrap();
        let error = send("/api/v1/namespaces/default/podtemplates?x=/podtemplates?dryRun=All").await.unwrap_err();
        assert!(error.to_string().ends_with("is not sent: it does not have the form of an API path"), "{error}");
        send("/api/v1/namespaces/a/pods/../secrets/x").await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_had_to_wait_is_not_sent_once_the_lease_may_be_lost() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let sent = sent.clone();
            tower::service_fn(move |request: Request<Body>| {
                sent.lock().unwrap().push(request.method().clone());
                std::future::ready(Ok::<_, BoxError>(axum::http::Response::new(Body::from(b"{}".to_vec()))))
            })
        };
        // One request a second.
        let inner = Client::new(Throttle::new(1.0, 1).layer(Lazy(server)), "default");
        let fence = fence::Fence::default();
        let client = fence.around(&inner, &Ending::default());
        let send = |method: &str| {
            let request = Request::builder().method(method).uri("/api/v1/pods").body(Body::empty()).unwrap();
            client.send(request)
        };
        assert!(send("PATCH").await.is_err(), "not the leader yet");
        fence.open_until(clock::now().mono + Duration::from_secs(5));
        send("PATCH").await.unwrap();
        let (first, late) = tokio::join!(send("POST"), async {
            tokio::time::sleep(Duration::from_millis(3500)).await;
            tokio::join!(send("DELETE"), send("PUT"))
        });
        assert!(first.is_ok());
        assert!(late.0.is_ok() != late.1.is_ok(), "the second one has to wait for too long: {late:?}");
        send("GET").await.unwrap();
        assert_eq!(sent.lock().unwrap().len(), 4);
        let error = send("PATCH").await.unwrap_err().to_string();
        assert!(error.contains("the Lease is not ours"), "{error}");
    }

    /// Calls the inner service when the answer is first polled, as a real client sends.
    struct Lazy<S>(S);

    impl<S> Service<Request<Body>> for Lazy<S>
    where
        S: Service<Request<Body>> + Clone + Send + 'static,
        S::Future: Send,
    {
        type Response = S::Response;
        type Error = S::Error;
        type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;
        fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
            self.0.poll_ready(context)
        }
        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let mut service = self.0.clone();
            Box::pin(async move { service.call(request).await })
        }
    }

    #[test]
    fn the_lease_and_events_never_wait() {
        let throttle = Throttle::new(0.001, 1);
        assert_eq!(throttle.delay("/api/v1/pods"), Duration::ZERO);
        assert!(throttle.delay("/api/v1/pods") > Duration::from_secs(1));
        assert_eq!(throttle.delay("/apis/coordination.k8s.io/v1/namespaces/a/leases/b"), Duration::ZERO);
        assert_eq!(throttle.delay("/api/v1/namespaces/a/events"), Duration::ZERO);
    }
}
