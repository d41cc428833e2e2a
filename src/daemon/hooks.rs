//! preStop hooks: `exec`, `httpGet` and `sleep`, run as kubelet runs them. `tcpSocket` is part of the API, but fails here
//! as it does in kubelet.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header, response::Parts};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{ContainerPort, HTTPGetAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, InvalidMessage, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};

use crate::{
    cri::{client::Client, exec::Answer},
    domain::node::recreate::node::{HOOK_LEFT_OUT, Hook, Kill},
    k8s::{invalid::Invalid, pod::PodView},
    runtime::fair_places::Places,
};

/// Longest part of each output of a command that is kept; it goes into an event.
const OUTPUT_KEPT: usize = 256;
/// Bytes of the head of an HTTP response that are read.
const HEAD_KEPT: usize = 64 << 10;
/// Redirects that are followed, to the Pod itself only.
pub(super) const REDIRECTS: usize = 10;

/// A hook is cancelled after this time, however long its grace period, so that one that hangs does not block others.
const PLACE_HELD: Duration = Duration::from_secs(10 * 60);

/// A hook that failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why, for an event and the log.
    pub message: String,
    /// It was not begun, because other hooks took all places for the whole grace period.
    pub left_out: bool,
}

/// Runs the hook that comes before a stop, for as long as its grace allows; waiting for a place counts. A hook that needs
/// a place is cancelled after [`PLACE_HELD`]. A failed hook never prevents the stop.
///
/// # Errors
/// The hook failed, was not finished in time, or found no place.
pub async fn before_stop(
    hook: &Hook,
    kill: &Kill,
    cri: &Client,
    id: &str,
    pod: &PodView,
    places: &Places,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut left_out = false;
    let work = async {
        // A hook that only sleeps needs no place.
        let place = if hook.handler.exec.is_some() || hook.handler.http_get.is_some() {
            left_out = true;
            let place = places.take(pod.namespace()).await;
            left_out = false;
            Some(place)
        } else {
            None
        };
        // A limit of zero would be none.
        let limit = kill.grace.saturating_sub(begun.elapsed()).max(Duration::from_secs(1));
        if place.is_none() || limit <= PLACE_HELD {
            return run(hook, cri, id, &pod.pod_ip, limit).await;
        }
        let taken = Instant::now();
        let result = tokio::time::timeout(PLACE_HELD, run(hook, cri, id, &pod.pod_ip, PLACE_HELD)).await;
        match result {
            // The runtime has the same timeout: whichever expires first, the reason is the same.
            Ok(result) if result.is_ok() || taken.elapsed() < PLACE_HELD => result,
            _ => Err(format!("cancelled: not finished after {} s, the longest time for a hook", PLACE_HELD.as_secs())),
        }
    };
    let failure = match tokio::time::timeout(kill.grace, work).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) if left_out => HOOK_LEFT_OUT.to_owned(),
        Err(_) => format!("not finished after the grace period of {} s", kill.grace.as_secs()),
    };
    // The runtime's message may contain the container id; the API server aggregates only events of equal text.
    let message = format!("preStop hook of container {}: {}", kill.container, failure.replace(id, &kill.container));
    Err(Failure { message, left_out })
}

/// Runs a hook to its end; the caller bounds the time by dropping the future.
///
/// `id` is the container's id in the runtime. `pod_ip` is the Pod's address, and the only one that is connected to: the
/// daemon is on the host network and must not reach other addresses for users.
///
/// # Errors
/// A sentence for the event `FailedPreStopHook`. A failed hook never prevents the stop.
pub async fn run(hook: &Hook, cri: &Client, id: &str, pod_ip: &str, limit: Duration) -> Result<(), String> {
    let handler = &hook.handler;
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let answer = cri.exec_bounded(id, &command, limit, OUTPUT_KEPT).await;
        match answer.map_err(|e| format!("exec {command:?}: {e}"))? {
            Answer::Exited { code: 0, .. } => Ok(()),
            Answer::Exited { code, stdout, stderr } => {
                let output = [stdout, stderr].concat();
                Err(format!("exec {command:?} exited with {code}: {}", String::from_utf8_lossy(&output)))
            }
            Answer::TimedOut => Err(format!("exec {command:?}: not finished after {} s", limit.as_secs())),
        }
    } else if let Some(get) = &handler.http_get {
        http_get(get, &hook.ports, pod_ip).await.map_err(|e| format!("httpGet: {e}"))
    } else if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        Ok(())
    } else if handler.tcp_socket.is_some() {
        Err("tcpSocket is not supported as a preStop hook (kubelet does not run it either)".into())
    } else {
        Err("the hook has none of exec, httpGet and sleep".into())
    }
}

async fn http_get(get: &HTTPGetAction, ports: &[ContainerPort], pod_ip: &str) -> Result<(), String> {
    let ip: IpAddr = pod_ip.parse().map_err(|_| format!("the Pod has no usable address (podIP {pod_ip:?})"))?;
    if let Some(host) = get.host.as_deref().filter(|host| !host.is_empty() && *host != pod_ip) {
        return Err(format!("host {host:?} is not the Pod's own address {pod_ip}; only that one is called"));
    }
    let to = SocketAddr::new(ip, resolve_port(&get.port, ports)?);
    let mut https = match get.scheme.as_deref().unwrap_or("HTTP") {
        scheme if scheme.eq_ignore_ascii_case("http") => false,
        scheme if scheme.eq_ignore_ascii_case("https") => true,
        scheme => return Err(format!("scheme {scheme:?}: want HTTP or HTTPS")),
    };
    let (mut path, mut with_credentials) = (get.path.clone().unwrap_or_default(), true);
    for _ in 0..=REDIRECTS {
        let mut request = build_request(get, &path, to)?;
        if !with_credentials {
            request.headers_mut().remove(header::AUTHORIZATION);
        }
        let host = request.headers().get(header::HOST).cloned();
        let stream = TcpStream::connect(to).await.map_err(|e| format!("{to}: {e}"))?;
        let answer = if https {
            let tls = unverified_tls().map_err(|e| e.to_string())?;
            let tls = tokio_rustls::TlsConnector::from(Arc::new(tls));
            match tls.connect(ServerName::from(ip), stream).await {
                Ok(stream) => send(request, stream).await?,
                // As kubelet, whose old releases never used TLS here: hooks written for them may say HTTPS and mean HTTP.
                Err(error) if speaks_no_tls(&error) => {
                    (https, with_credentials) = (false, false);
                    continue;
                }
                Err(error) => return Err(format!("{to}: TLS: {error}")),
            }
        } else {
            send(request, stream).await?
        };
        let location = redirect(answer.status, &answer.headers);
        match location.and_then(|location| own_path(location, to, host.as_ref(), https)) {
            Some(next) => path = next,
            // A redirect to another host is not followed; the Pod has answered. kubelet says nothing about bad codes; the
            // author of a hook is better off with an event.
            None if (200..400).contains(&answer.status.as_u16()) => return Ok(()),
            None => return Err(format!("answered with HTTP status {}", answer.status.as_u16())),
        }
    }
    Err(format!("more than {REDIRECTS} redirects"))
}

/// Whether a handshake failed because the other side does not speak TLS at all.
fn speaks_no_tls(error: &io::Error) -> bool {
    let why = error.get_ref().and_then(|why| why.downcast_ref::<TlsError>());
    matches!(why, Some(TlsError::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// The header Location of an answer that has one and means it.
pub(super) fn redirect(status: StatusCode, headers: &HeaderMap) -> Option<&str> {
    let means_it = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    headers.get(header::LOCATION).filter(|_| means_it)?.to_str().ok()
}

/// Where a redirect leads, if that is the Pod itself, by its address or the name that the request gave it, by the same
/// scheme.
pub(super) fn own_path(location: &str, to: SocketAddr, name: Option<&HeaderValue>, https: bool) -> Option<String> {
    let uri: Uri = location.parse().ok()?;
    let scheme = if https { "https" } else { "http" };
    let default = if https { 443 } else { 80 };
    let is_own = match (uri.scheme_str(), uri.host()) {
        (None, None) => true,
        (Some(of), Some(host)) => {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let is_address = bare.parse() == Ok(to.ip()) && uri.port_u16().unwrap_or(default) == to.port();
            let authority = uri.authority().map_or(host, |authority| authority.as_str());
            of == scheme
                && (is_address || name.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(authority.as_bytes())))
        }
        _ => false,
    };
    let path = uri.path_and_query().map(ToString::to_string)?;
    // Two slashes begin a host.
    (is_own && path.starts_with('/') && !path.starts_with("//")).then_some(path)
}

fn build_request(get: &HTTPGetAction, path: &str, to: SocketAddr) -> Result<Request<Empty<Bytes>>, Invalid> {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let uri: Uri = path.parse().map_err(|e| Invalid(format!("path {path:?}: {e}")))?;
    let mut request = Request::get(uri);
    for header in get.http_headers.iter().flatten() {
        request = request.header(header.name.as_str(), header.value.as_str());
    }
    let mut request = request.body(Empty::new()).map_err(|e| Invalid(format!("httpHeaders: {e}")))?;
    let headers = request.headers_mut();
    let own_host = to.to_string();
    if !headers.contains_key(header::HOST) {
        let host = own_host.parse().map_err(|_| Invalid(format!("host {own_host:?} is not a header value")))?;
        headers.insert(header::HOST, host);
    }
    headers.entry(header::USER_AGENT).or_insert(header::HeaderValue::from_static("kube-lifecycle/kruise"));
    headers.entry(header::ACCEPT).or_insert(header::HeaderValue::from_static("*/*"));
    Ok(request)
}

/// A number, a number as text, or the name of one of the container's ports.
fn resolve_port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, Invalid> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match ports.iter().find(|p| p.name.as_ref() == Some(name)) {
            Some(port) => port.container_port,
            None => {
                let unknown = || Invalid(format!("port {name:?}: the container has no port of that name"));
                name.parse().map_err(|_| unknown())?
            }
        },
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Invalid(format!("port {number}: want 1 to 65535"))),
    }
}

async fn send<S>(request: Request<Empty<Bytes>>, stream: S) -> Result<Parts, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = hyper::client::conn::http1::Builder::new().max_buf_size(HEAD_KEPT).clone();
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let answer = sender.send_request(request);
    tokio::pin!(answer, connection);
    loop {
        tokio::select! {
            answer = &mut answer => return answer.map(|a| a.into_parts().0).map_err(|e| e.to_string()),
            end = &mut connection => if let Err(e) = end { return Err(e.to_string()) },
        }
    }
}

/// TLS without verification: kubelet does not verify the certificates of its hooks either.
pub(super) fn unverified_tls() -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
        .with_no_client_auth())
}

#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ExecAction, HTTPHeader, LifecycleHandler, SleepAction, TCPSocketAction};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::cri::fake::{Call, FakeRuntime};

    fn hook(handler: LifecycleHandler) -> Hook {
        let named = ContainerPort { name: Some("web".into()), container_port: 8080, ..Default::default() };
        Hook { handler, ports: vec![named] }
    }

    async fn run_it(handler: LifecycleHandler, pod_ip: &str) -> (Result<(), String>, Vec<Call>) {
        let runtime = FakeRuntime::start();
        let client = Client::new(runtime.socket.clone());
        let result = run(&hook(handler), &client, "c1", pod_ip, Duration::from_secs(5)).await;
        let calls = runtime.world().calls.clone();
        (result, calls)
    }

    fn http(port: IntOrString, host: Option<&str>) -> LifecycleHandler {
        let get =
            HTTPGetAction { port, host: host.map(Into::into), path: Some("/drain?a=b".into()), ..Default::default() };
        LifecycleHandler { http_get: Some(get), ..Default::default() }
    }

    #[tokio::test]
    async fn exec_runs_the_command_in_the_container() {
        let exec = ExecAction { command: Some(vec!["drain".into(), "now".into()]) };
        let (result, calls) = run_it(LifecycleHandler { exec: Some(exec), ..Default::default() }, "").await;
        assert_eq!(result, Ok(()));
        assert_eq!(calls, [Call::Exec("c1".into(), vec!["drain".into(), "now".into()])]);
    }

    #[tokio::test]
    async fn http_get_goes_to_the_pod_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = i32::from(listener.local_addr().unwrap().port());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 1024];
            let n = stream.read(&mut buffer).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&buffer[..n]).into_owned()
        });
        let (result, _) = run_it(http(IntOrString::Int(port), None), "127.0.0.1").await;
        assert_eq!(result, Ok(()));
        let request = server.await.unwrap();
        assert!(request.starts_with("GET /drain?a=b HTTP/1.1\r\n"), "{request}");
        assert!(request.to_lowercase().contains(&format!("host: 127.0.0.1:{port}")), "{request}");
    }

    /// A server on loopback that gives each connection the next answer; its port, and what each of them sent.
    async fn server(answers: &[&str]) -> (i32, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = i32::from(listener.local_addr().unwrap().port());
        let whole = |head: &&str| format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
        let answers: Vec<String> = answers.iter().map(whole).collect();
        let served = tokio::spawn(async move {
            let mut sent = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 16 << 10];
                let n = stream.read(&mut buffer).await.unwrap();
                sent.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            sent
        });
        (port, served)
    }

    #[tokio::test]
    async fn redirects_to_the_pod_itself_are_followed_as_by_kubelet() {
        let twice = &["/drain?a=b", "/drain/"][..];
        for (answers, result, paths) in [
            (&["301 M\r\nlocation: /drain/", "204 No"][..], Ok(()), twice),
            (&["308 P\r\nlocation: /drain/", "500 Oh"], Err("httpGet: answered with HTTP status 500"), twice),
            (&["302 F\r\nlocation: /drain?a=b"; 11], Err("httpGet: more than 10 redirects"), &["/drain?a=b"; 11]),
            // To somebody else, and a code that is no redirect.
            (&["302 F\r\nlocation: http://192.0.2.1/x"], Ok(()), &["/drain?a=b"]),
            (&["201 C\r\nlocation: /drain/"], Ok(()), &["/drain?a=b"]),
        ] {
            let (port, served) = server(answers).await;
            let (found, _) = run_it(http(IntOrString::Int(port), None), "127.0.0.1").await;
            assert_eq!(found, result.map_err(str::to_owned), "{answers:?}");
            let sent = served.await.unwrap();
            let asked: Vec<&str> = sent.iter().map(|head| head.split(' ').nth(1).unwrap_or_default()).collect();
            assert_eq!(asked, paths, "{answers:?}");
        }
    }

    #[tokio::test]
    async fn a_pod_that_speaks_no_tls_is_asked_without_it_and_without_credentials_as_by_kubelet() {
        let (port, served) = server(&["400 Bad Request", "204 No"]).await;
        let header = HTTPHeader { name: "Authorization".into(), value: "Basic eA==".into() };
        let get = HTTPGetAction {
            port: IntOrString::Int(port),
            path: Some("/drain".into()),
            scheme: Some("HTTPS".into()),
            http_headers: Some(vec![header]),
            ..Default::default()
        };
        let (found, _) = run_it(LifecycleHandler { http_get: Some(get), ..Default::default() }, "127.0.0.1").await;
        assert_eq!(found, Ok(()));
        let sent = served.await.unwrap();
        assert!(sent[1].starts_with("GET /drain HTTP/1.1\r\n"), "{sent:?}");
        assert!(!sent[1].to_lowercase().contains("authorization"), "{sent:?}");
    }

    #[tokio::test]
    async fn http_get_to_any_other_host_is_refused() {
        let (result, _) = run_it(http(IntOrString::Int(80), Some("169.254.169.254")), "127.0.0.1").await;
        assert!(result.unwrap_err().contains("is not the Pod's own address"));
    }

    #[tokio::test]
    async fn http_get_without_a_pod_address_says_so() {
        let (result, _) = run_it(http(IntOrString::Int(80), None), "").await;
        assert!(result.unwrap_err().contains("no usable address"));
    }

    #[tokio::test]
    async fn tcp_socket_fails_as_in_kubelet() {
        let tcp = TCPSocketAction { port: IntOrString::Int(1), ..Default::default() };
        let (result, _) = run_it(LifecycleHandler { tcp_socket: Some(tcp), ..Default::default() }, "127.0.0.1").await;
        assert!(result.unwrap_err().starts_with("tcpSocket is not supported"));
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_sleeps() {
        let sleep = SleepAction { seconds: 7 };
        let before = tokio::time::Instant::now();
        let handler = LifecycleHandler { sleep: Some(sleep), ..Default::default() };
        let client = Client::new("/nowhere".into());
        run(&hook(handler), &client, "c1", "", Duration::from_secs(9)).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(7));
    }

    fn pod(namespace: &str) -> PodView {
        serde_json::from_value(serde_json::json!({"metadata": {"name": "web", "namespace": namespace}})).unwrap()
    }

    fn exec(command: &str) -> Hook {
        let exec = ExecAction { command: Some(vec![command.into()]) };
        hook(LifecycleHandler { exec: Some(exec), ..Default::default() })
    }

    async fn before(id: &str, namespace: &str, cri: &Client, places: &Places) -> Result<(), Failure> {
        let kill = Kill { container: "main".into(), id: id.into(), hook: None, grace: Duration::from_secs(30) };
        before_stop(&exec("drain"), &kill, cri, id, &pod(namespace), places).await
    }

    #[tokio::test(start_paused = true)]
    async fn hooks_that_hang_leave_places_for_others_and_waiting_ends_with_the_grace_period() {
        let (runtime, cri) = FakeRuntime::in_memory();
        let places = Places::new(4);
        for id in ["c1", "c2", "c3"] {
            runtime.world().faults.insert(("ExecSync", id.into()), crate::cri::fake::Fault::Never);
        }
        let start = Instant::now();
        let [first, second, third, other] =
            [("c1", "a"), ("c2", "a"), ("c3", "a"), ("d1", "b")].map(|(id, namespace)| {
                let (cri, places) = (cri.clone(), places.clone());
                async move { (before(id, namespace, &cri, &places).await, start.elapsed()) }
            });
        let (first, second, third, other) = tokio::join!(first, second, third, other);
        assert!(other.0.is_ok() && other.1 < Duration::from_secs(1), "{other:?}: the other namespace does not wait");
        let left_out = |result: &Result<(), Failure>| result.as_ref().is_err_and(|failure| failure.left_out);
        assert_eq!([&first, &second, &third].map(|result| left_out(&result.0)), [false, false, true]);
        let failure = third.0.unwrap_err();
        assert_eq!(failure.message, format!("preStop hook of container main: {HOOK_LEFT_OUT}"));
        assert!(third.1 < Duration::from_secs(31), "{:?}", third.1);
        let ran = runtime.world().calls.len();
        assert_eq!(ran, 3, "the one that was left out was not begun");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_that_hangs_holds_its_place_for_ten_minutes_whatever_its_grace_period() {
        let (runtime, cri) = FakeRuntime::in_memory();
        runtime.world().faults.insert(("ExecSync", "c1".into()), crate::cri::fake::Fault::Never);
        // Two places: a namespace gets one.
        let places = Places::new(2);
        let start = Instant::now();
        let of = |id: &'static str| {
            let (cri, places) = (cri.clone(), places.clone());
            async move {
                let grace = Duration::from_secs(1_000_000);
                let kill = Kill { container: "main".into(), id: id.into(), hook: None, grace };
                let result = before_stop(&exec("drain"), &kill, &cri, id, &pod("a"), &places).await;
                (result.map_err(|failure| (failure.message, failure.left_out)), start.elapsed())
            }
        };
        let (hanging, next) = tokio::join!(of("c1"), of("c2"));
        let message =
            "preStop hook of container main: cancelled: not finished after 600 s, the longest time for a hook";
        assert_eq!(hanging.0, Err((message.to_owned(), false)));
        assert_eq!(next.0, Ok(()));
        let ten_minutes = Duration::from_secs(600)..Duration::from_secs(602);
        assert!(ten_minutes.contains(&hanging.1) && ten_minutes.contains(&next.1), "{:?} {:?}", hanging.1, next.1);
        let sleep = LifecycleHandler { sleep: Some(SleepAction { seconds: 700 }), ..Default::default() };
        let kill = Kill { container: "main".into(), id: "c3".into(), hook: None, grace: Duration::from_secs(1000) };
        let slept = before_stop(&hook(sleep), &kill, &cri, "c3", &pod("a"), &places).await;
        assert_eq!(slept, Ok(()), "a hook that only sleeps holds no place");
    }

    /// A runtime whose commands all print 15 MB, of which it holds only one piece.
    async fn printing_runtime(listener: tokio::net::UnixListener) {
        use futures::stream;
        use http_body_util::StreamBody;
        use hyper::body::Frame;
        const PRINTED: usize = 15 << 20;
        const PIECE: usize = 64 << 10;
        // Field 1 with its length, then the bytes: an ExecSyncResponse.
        let mut head = vec![0x0a];
        let mut length = PRINTED;
        while length >= 0x80 {
            head.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        head.push(length as u8);
        let size = u32::try_from(head.len() + PRINTED).unwrap().to_be_bytes();
        let head = Bytes::from([&[0][..], &size, &head].concat());
        let piece = Bytes::from(vec![b'x'; PIECE]);
        let answer = move || {
            let (head, piece) = (head.clone(), piece.clone());
            async move {
                let pieces = stream::iter(std::iter::repeat_n(piece, PRINTED / PIECE));
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                let frames = futures::StreamExt::chain(stream::iter([head]), pieces);
                let frames = futures::StreamExt::map(frames, Frame::data);
                let frames = futures::StreamExt::chain(frames, stream::iter([Frame::trailers(trailers)]));
                let frames = futures::StreamExt::map(frames, Ok::<_, std::convert::Infallible>);
                let body = axum::body::Body::new(StreamBody::new(frames));
                http::Response::builder().header("content-type", "application/grpc").body(body).unwrap()
            }
        };
        axum::serve(listener, axum::Router::new().fallback(answer)).await.unwrap();
    }

    /// Peak of this process' memory, in KiB.
    fn peak() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The daemon's limit is 128 MiB. Measured in a process of its own: other tests would count too.
    #[test]
    fn a_hundred_hooks_that_print_15_mb_each_stay_within_the_memory_of_the_daemon() {
        const CHILD: &str = "KRUISE_TEST_HOOKS_CHILD";
        if std::env::var_os(CHILD).is_none() {
            let name =
                "daemon::hooks::tests::a_hundred_hooks_that_print_15_mb_each_stay_within_the_memory_of_the_daemon";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("cri.sock");
            let server = tokio::spawn(printing_runtime(tokio::net::UnixListener::bind(&socket).unwrap()));
            let (cri, places) = (Client::new(socket), crate::daemon::runtimes::Runtimes::default().hooks);
            let hooks = (0..100).map(|i| {
                let (cri, places) = (cri.clone(), places.clone());
                async move {
                    let id = format!("c{i}");
                    // On a machine with much to do the last of them waits for long.
                    let grace = Duration::from_secs(600);
                    let kill = Kill { container: "main".into(), id: id.clone(), hook: None, grace };
                    before_stop(&exec("drain"), &kill, &cri, &id, &pod(&format!("n{}", i % 3)), &places).await
                }
            });
            let results = futures::future::join_all(hooks).await;
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            server.abort();
        });
        // The program counts too. What the hooks print that run at once is hundreds of MiB.
        assert!(peak() < 96 << 10, "peak of {} KiB", peak());
    }

    #[test]
    fn ports_by_number_by_text_and_by_name() {
        let ports = hook(LifecycleHandler::default()).ports;
        for (port, want) in [
            (IntOrString::Int(80), Ok(80)),
            (IntOrString::String("web".into()), Ok(8080)),
            (IntOrString::String("81".into()), Ok(81)),
        ] {
            assert_eq!(resolve_port(&port, &ports), want);
        }
        assert!(resolve_port(&IntOrString::String("nope".into()), &ports).is_err());
        assert!(resolve_port(&IntOrString::Int(70000), &ports).is_err());
    }
}
