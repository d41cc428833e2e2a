//! The probes themselves: a command in the container, a GET or a connection to the Pod's own address.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{
    cri::{client::Client, exec::Answer, types::CriError},
    daemon::hooks::{self, REDIRECTS},
    domain::node::probes::node::Handler,
    k8s::invalid::Invalid,
};

/// Bytes of an output that are read. A message holds fewer.
const KEEP: usize = 10 << 10;
/// The most that the head of an answer may take.
const HEAD: usize = 32 << 10;
/// The most that is read of a connection: a server could answer for ever before it comes to a body.
const MOST: usize = 256 << 10;

/// The result of one run of a probe.
#[derive(Debug)]
pub(super) enum Found {
    /// Success, with the output.
    Good(Vec<u8>),
    /// Failure.
    Bad(Vec<u8>),
    /// None: the runtime did not answer, or not about the container.
    Nothing(CriError),
}

/// A command in a container.
pub(super) async fn exec(client: &Client, id: &str, command: &[String], limit: Duration) -> Found {
    match client.exec_bounded(id, command, limit, KEEP).await {
        Ok(Answer::Exited { code: 0, stdout, .. }) => Found::Good(stdout),
        Ok(Answer::Exited { code, stdout, stderr }) => {
            let said = if stderr.is_empty() { stdout } else { stderr };
            Found::Bad(if said.is_empty() { format!("exited with {code}").into() } else { said })
        }
        Ok(Answer::TimedOut) => Found::Bad(format!("not finished within {} s", limit.as_secs()).into()),
        Err(error) if is_of_command(&error) => {
            Found::Bad(without_ids(&format!("the command cannot be run: {error}")).into())
        }
        Err(error) => Found::Nothing(error),
    }
}

/// What runtimes say, with codes that fit anything, when the command is at fault: there is no such program, it is none, or
/// it prints too much.
const OF_COMMAND: [&str; 4] =
    ["executable file not found", "no such file or directory", "exec format error", "message larger than max"];

/// Whether the command fails like this each time. Other errors come from the runtime, and say nothing about the container.
fn is_of_command(error: &CriError) -> bool {
    let CriError::Runtime { message, may_pass, .. } = error else { return false };
    let words = message.to_lowercase();
    !may_pass || OF_COMMAND.iter().any(|text| words.contains(text))
}

/// The runtime's message without ids of instances and calls, which differ each time: equal messages are reported once.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    parts
        .map(|part| {
            let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if is_id(word) { format!("ID{}", &part[word.len()..]) } else { part.to_owned() }
        })
        .collect()
}

/// A probe over the network.
pub(super) async fn network(handler: &Handler, ip: Result<IpAddr, Invalid>, limit: Duration) -> Found {
    let ip = match ip {
        Ok(ip) => ip,
        Err(Invalid(message)) => return Found::Bad(message.into()),
    };
    let probe = async {
        match handler {
            Handler::Tcp { port } => {
                TcpStream::connect((ip, *port)).await.map(|_| Found::Good(Vec::new())).map_err(|e| e.to_string())
            }
            Handler::Http { port, path, https, headers } => {
                http(SocketAddr::new(ip, *port), path, *https, headers).await
            }
            Handler::Impossible(message) => Err(message.clone()),
            Handler::Exec(_) => Err("a command is no probe over the network".into()),
        }
    };
    match tokio::time::timeout(limit, probe).await {
        Ok(Ok(found)) => found,
        Ok(Err(message)) => Found::Bad(message.into()),
        Err(_) => Found::Bad(format!("no answer within {} s", limit.as_secs()).into()),
    }
}

async fn http(to: SocketAddr, path: &str, https: bool, headers: &[(String, String)]) -> Result<Found, String> {
    let mut path = path.to_owned();
    for _ in 0..=REDIRECTS {
        let request = request(to, &path, headers)?;
        let host = request.headers().get(header::HOST).cloned();
        let stream = TcpStream::connect(to).await.map_err(|error| error.to_string())?;
        let stream = Bounded { stream, left: MOST };
        let got = match https {
            true => {
                let tls = tokio_rustls::TlsConnector::from(tls().map_err(|error| error.to_string())?);
                let stream = tls.connect(ServerName::from(to.ip()), stream).await;
                get(request, stream.map_err(|error| format!("TLS: {error}"))?).await?
            }
            false => get(request, stream).await?,
        };
        match got.redirect.as_deref().and_then(|location| hooks::own_path(location, to, host.as_ref(), https)) {
            Some(next) => path = next,
            None => {
                // A redirect to another host is not followed; the Pod has answered.
                let is_good = (200..400).contains(&got.status);
                let said = if is_good || !got.body.is_empty() {
                    got.body
                } else {
                    format!("HTTP status {}", got.status).into()
                };
                return Ok(if is_good { Found::Good(said) } else { Found::Bad(said) });
            }
        }
    }
    Err(format!("more than {REDIRECTS} redirects"))
}

fn request(to: SocketAddr, path: &str, headers: &[(String, String)]) -> Result<Request<Empty<Bytes>>, Invalid> {
    let uri: Uri = path.parse().map_err(|error| Invalid(format!("httpGet.path {path:?}: {error}")))?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    let fields = request.headers_mut();
    for (name, value) in headers {
        let wrong = |why: &str| Invalid(format!("httpGet.httpHeaders {name:?} {why}"));
        let field: HeaderName = name.parse().map_err(|_| wrong("is no name of a header"))?;
        let value: HeaderValue = value.parse().map_err(|_| wrong("has no value of a header"))?;
        fields.append(field, value);
    }
    fields.entry(header::USER_AGENT).or_insert(HeaderValue::from_static("kube-probe/kruise-rs"));
    match fields.get(header::ACCEPT).map(HeaderValue::is_empty) {
        None => drop(fields.insert(header::ACCEPT, HeaderValue::from_static("*/*"))),
        // As kubelet: an empty one leaves it out.
        Some(true) => drop(fields.remove(header::ACCEPT)),
        Some(false) => {}
    }
    fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    // One of them, the first; whatever it says, the Pod's own address is dialled.
    let host = match fields.get(header::HOST).filter(|host| !host.is_empty()) {
        Some(host) => host.clone(),
        None => to.to_string().parse().map_err(|_| Invalid(format!("{to} is no value of a header")))?,
    };
    fields.insert(header::HOST, host);
    Ok(request)
}

/// A connection of which only so much is read.
struct Bounded {
    stream: TcpStream,
    left: usize,
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other(format!("more than {MOST} bytes"))));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

struct Got {
    status: u16,
    /// The header Location of an answer that has one and means it.
    redirect: Option<String>,
    body: Vec<u8>,
}

async fn get<S>(request: Request<Empty<Bytes>>, stream: S) -> Result<Got, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut client = hyper::client::conn::http1::Builder::new();
    let (mut sender, connection) =
        client.max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let redirect = hooks::redirect(answer.status(), answer.headers()).map(str::to_owned);
        let (mut body, mut from) = (Vec::new(), answer.into_body());
        while body.len() < KEEP
            && let Some(frame) = from.frame().await
        {
            // What has come is enough.
            let Ok(frame) = frame else { break };
            if let Some(data) = frame.data_ref() {
                body.extend_from_slice(&data[..data.len().min(KEEP - body.len())]);
            }
        }
        Ok(Got { status, redirect, body })
    };
    tokio::pin!(answer, connection);
    let mut is_open = true;
    loop {
        tokio::select! {
            biased;
            got = &mut answer => return got,
            // The answer sees its end too, which may have all that it needs.
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

/// Certificates are not verified, as kubelet does not. Made once: each has a session cache.
fn tls() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, rustls::Error>> = OnceLock::new();
    CONFIG.get_or_init(|| hooks::unverified_tls().map(Arc::new)).clone()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpSocket},
    };
    use tonic::Status;

    use super::*;
    use crate::domain::node::probes::node::address;

    /// A server on loopback that gives each connection the next answer, and the requests that it got.
    async fn server(answers: Vec<Vec<u8>>) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap() == 1 {
                    head.extend(byte);
                }
                requests.push(String::from_utf8(head).unwrap());
                let _ = stream.write_all(&answer).await;
            }
            requests
        });
        (to, served)
    }

    fn answer(head: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }

    async fn probe(to: SocketAddr, headers: &[(&str, &str)], limit: Duration) -> Found {
        let headers = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let handler = Handler::Http { port: to.port(), path: "/x?y=1".into(), https: false, headers };
        network(&handler, Ok(to.ip()), limit).await
    }

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn only_what_the_command_is_to_blame_for_is_a_failure() {
        use crate::cri::fake::{FakeRuntime, Fault};
        let unknown = |words: &str| Status::unknown(words);
        let runc = "OCI runtime exec failed: exec failed: unable to start container process: exec";
        for (status, is_bad) in [
            (unknown(&format!("{runc}: \"ask\": executable file not found in $PATH: unknown")), true),
            (unknown(&format!("{runc}: \"/ask\": stat /ask: no such file or directory: unknown")), true),
            (unknown(&format!("{runc} /ask: exec format error")), true),
            (unknown(&format!("{runc}: \"/ask\": permission denied: unknown")), true),
            (Status::permission_denied("no"), true),
            (Status::invalid_argument("no command"), true),
            (Status::resource_exhausted("grpc: trying to send message larger than max (17000000 vs. 16777216)"), true),
            (unknown("failed to get task for container m1: context deadline exceeded"), false),
            (unknown("container is in CONTAINER_EXITED state"), false),
            (unknown("boom"), false),
            (Status::internal("boom"), false),
            (Status::resource_exhausted("too many commands"), false),
            (Status::unavailable("restarting"), false),
            (Status::not_found("m1"), false),
        ] {
            let (runtime, client) = FakeRuntime::in_memory();
            runtime.world().faults.insert(("ExecSync", "m1".into()), Fault::Error(status.clone()));
            let found = exec(&client, "m1", &["ask".into()], LIMIT).await;
            assert_eq!(matches!(found, Found::Bad(_)), is_bad, "{status:?}: {found:?}");
            assert_eq!(matches!(found, Found::Nothing(_)), !is_bad, "{status:?}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_get_goes_to_the_pod_with_its_own_name_and_the_body_is_the_message() {
        let (to, served) = server(vec![answer("200 OK", b"fine")]).await;
        let found = probe(to, &[("X-Who", "me"), ("Accept", "")], LIMIT).await;
        assert!(matches!(&found, Found::Good(body) if body == b"fine"), "{found:?}");
        let head = served.await.unwrap().remove(0).to_lowercase();
        assert!(head.starts_with("get /x?y=1 http/1.1\r\n") && head.contains("x-who: me\r\n"), "{head}");
        assert!(head.contains(&format!("host: {to}\r\n")) && !head.contains("accept:"), "{head}");
    }

    #[tokio::test]
    async fn a_host_of_the_probe_is_sent_to_the_pod_itself() {
        let there = answer("302 F\r\nlocation: http://shop.example/next", b"");
        let (to, served) = server(vec![there, answer("200 OK", b"shop")]).await;
        let found = probe(to, &[("Host", "shop.example"), ("host", "other.example")], LIMIT).await;
        assert!(matches!(&found, Found::Good(body) if body == b"shop"), "{found:?}");
        let requests = served.await.unwrap();
        for head in requests.iter().map(|head| head.to_lowercase()) {
            assert!(head.contains("host: shop.example\r\n") && !head.contains("other.example"), "{head}");
        }
        assert!(requests[1].starts_with("GET /next "), "{requests:?}");
    }

    #[tokio::test]
    async fn codes_and_redirects_count_as_for_kubelet() {
        for (head, good) in [
            ("204 No", true),
            ("399 X", true),
            ("404 Not Found", false),
            ("500 Oh", false),
            // to somebody else: not followed
            ("302 Found\r\nlocation: http://192.0.2.1/x", true),
            ("302 Found\r\nlocation: //192.0.2.1/x", true),
        ] {
            let (to, _served) = server(vec![answer(head, b"")]).await;
            let found = probe(to, &[], LIMIT).await;
            assert_eq!(matches!(found, Found::Good(_)), good, "{head}: {found:?}");
        }
        let (to, served) = server(vec![answer("302 F\r\nlocation: /next", b""), answer("500 Oh", b"no")]).await;
        assert!(matches!(probe(to, &[], LIMIT).await, Found::Bad(body) if body == b"no"));
        assert!(served.await.unwrap()[1].starts_with("GET /next "));
        let (to, _served) = server(vec![answer("302 F\r\nlocation: /x", b""); 20]).await;
        assert!(matches!(probe(to, &[], LIMIT).await, Found::Bad(m) if m == b"more than 10 redirects"));
    }

    #[test]
    fn the_runtimes_words_are_the_same_each_time() {
        let said = |id: &str| format!("failed to start exec \"{id}\": exec: \"/no\": no such file: {id}");
        let one = without_ids(&said(&"0123456789abcdef".repeat(4)));
        assert_eq!(one, "failed to start exec \"ID\": exec: \"/no\": no such file: ID");
        assert_eq!(without_ids("a deadbeef, ü"), "a deadbeef, ü");
    }

    #[tokio::test]
    async fn a_huge_body_is_read_no_further_than_the_limit() {
        let (to, _served) = server(vec![answer("200 OK", &vec![b'x'; 4 << 20])]).await;
        assert!(matches!(probe(to, &[], LIMIT).await, Found::Good(body) if body.len() == KEEP));
    }

    #[tokio::test]
    async fn a_server_that_never_comes_to_its_answer_is_read_no_further_than_the_limit() {
        let (to, served) = server(vec!["HTTP/1.1 100 Continue\r\n\r\n".repeat(400_000).into_bytes()]).await;
        let found = probe(to, &[], Duration::from_secs(60)).await;
        assert!(matches!(&found, Found::Bad(_)), "{found:?}");
        assert!(!format!("{found:?}").contains("no answer within"), "{found:?}");
        served.await.unwrap();
    }

    #[tokio::test]
    async fn silence_a_closed_port_and_a_missing_address_fail() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let found = probe(silent.local_addr().unwrap(), &[], Duration::from_millis(50)).await;
        assert!(matches!(&found, Found::Bad(m) if m.starts_with(b"no answer within")), "{found:?}");
        let tcp = Handler::Tcp { port: silent.local_addr().unwrap().port() };
        let ip = Ok([127, 0, 0, 1].into());
        assert!(matches!(network(&tcp, ip.clone(), LIMIT).await, Found::Good(body) if body.is_empty()));
        // It holds the port and does not listen, so nobody does.
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let tcp = Handler::Tcp { port: closed.local_addr().unwrap().port() };
        let found = network(&tcp, ip, LIMIT).await;
        assert!(matches!(&found, Found::Bad(m) if !m.starts_with(b"no answer within")), "{found:?}");
        let found = network(&tcp, address(""), LIMIT).await;
        assert!(matches!(&found, Found::Bad(m) if m.starts_with(b"the Pod has no usable address")), "{found:?}");
    }
}
