//! The server as a hostile client meets it: over TLS, on loopback.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use axum_server::{
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use jiff::Timestamp;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::{TlsConnector, client};

use crate::{
    api::feature_gates::FeatureGates,
    runtime::{
        certs::{self, tls_config},
        connections::{Gate, Limits},
    },
    webhook::{
        Context as WebhookContext,
        server::{Shared, metrics::Metrics, serve_within},
    },
};

const NAME: &str = "webhook.example";
const ME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Somebody else, for a server that distinguishes peers.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

struct TestServer {
    address: SocketAddr,
    connector: TlsConnector,
    _stop: watch::Sender<bool>,
    _task: Abort,
}

/// Ends a task with the test.
struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A limit that nobody has to keep.
const SHORT: Duration = Duration::from_millis(300);
/// A limit that a test waits for and that good clients keep, on a machine with much to do too.
const AMPLE: Duration = Duration::from_secs(5);
/// By when a limit has to have had its effect.
const IN_TIME: Duration = Duration::from_secs(200);
/// A limit that a test does not look at. Who is cut off in time is cut off by another one.
const ENDLESS: Duration = Duration::from_secs(300);

/// Limits of which none cuts anybody off in time.
fn patient() -> Limits {
    Limits { handshake: ENDLESS, request: ENDLESS, answer: ENDLESS, idle: ENDLESS, ..Limits::default() }
}

fn start(limits: Limits) -> TestServer {
    // No answer of these tests needs an API server.
    let client = crate::runtime::fake_api::nobody();
    let (stop, shutdown) = watch::channel(false);
    let context =
        Arc::new(WebhookContext::new(FeatureGates::default(), client, "kruise-system".into(), Default::default()).0);
    // Else each Pod would wait for their first list.
    context.sidecars.know_of_none();
    context.pod_states.know(&[]);
    context.spreads.know_of_none();
    let shared = Shared::new(context, Metrics::default(), shutdown);
    let (tls, connector) = both_ends();
    let listener = std::net::TcpListener::bind((ME, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move { serve_within(limits, listener, tls, shared).await.unwrap() });
    TestServer { address, connector, _stop: stop, _task: Abort(task) }
}

/// A certificate of ours, and a client that trusts its authority.
fn both_ends() -> (RustlsConfig, TlsConnector) {
    let now = Timestamp::from_second(1_760_000_000).unwrap();
    let days = Duration::from_secs(86_400);
    let certs::Plan::Write(renewal) = certs::plan(&certs::SecretData::new(), now, NAME, days) else { panic!() };
    let secret = certs::issue(&renewal, &certs::SecretData::new(), now, NAME).unwrap();
    let certs::Plan::Keep(material) = certs::plan(&secret, now, NAME, days) else { panic!() };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(material.ca_cert.as_bytes()).unwrap()).unwrap();
    // The certificate is of a fixed day: the client checks everything but the time.
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), certs::provider()).build();
    let client = ClientConfig::builder_with_provider(certs::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OnThatDay(verifier.unwrap(), now)))
        .with_no_client_auth();

    let server = RustlsConfig::from_config(Arc::new(tls_config(&material.certified).unwrap()));
    (server, TlsConnector::from(Arc::new(client)))
}

#[derive(Debug)]
struct OnThatDay(Arc<rustls::client::WebPkiServerVerifier>, Timestamp);

impl rustls::client::danger::ServerCertVerifier for OnThatDay {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        let at = Duration::from_secs(self.1.as_second().unsigned_abs());
        let at = rustls_pki_types::UnixTime::since_unix_epoch(at);
        self.0.verify_server_cert(end_entity, intermediates, name, ocsp, at)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

type Client = client::TlsStream<TcpStream>;

impl TestServer {
    async fn tcp(&self, from: IpAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        socket.connect(self.address).await
    }
    async fn tls(&self, from: IpAddr) -> io::Result<Client> {
        self.connector.connect(ServerName::try_from(NAME).unwrap(), self.tcp(from).await?).await
    }
    /// One call on a connection of its own: the answer's code and body.
    async fn call(&self, body: &[u8]) -> (u16, String) {
        exchange(&mut self.tls(ME).await.unwrap(), body).await.unwrap()
    }
}

fn head(length: usize) -> String {
    format!(
        "POST /mutate-pod HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

async fn exchange(client: &mut Client, body: &[u8]) -> io::Result<(u16, String)> {
    client.write_all(head(body.len()).as_bytes()).await?;
    client.write_all(body).await?;
    answer(client).await
}

/// Reads one answer: its code and its body.
async fn answer(client: &mut Client) -> io::Result<(u16, String)> {
    let bad = |text: &str| io::Error::other(format!("not an answer: {text}"));
    let (mut data, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let text = String::from_utf8_lossy(&data).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let code = head.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(|| bad(head))?;
                return Ok((code, body.to_owned()));
            }
        }
        match client.read(&mut buffer).await? {
            0 => return Err(bad(&text)),
            n => data.extend_from_slice(&buffer[..n]),
        }
    }
}

fn review(object: &serde_json::Value) -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": "a", "object": object,
            "resource": {"group": "", "version": "v1", "resource": "pods"}}})
    .to_string()
    .into_bytes()
}

fn pod() -> Vec<u8> {
    review(&json!({"spec": {"containers": [{"name": "main"}]}, "metadata": {"ownerReferences": [
        {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "w", "uid": "o", "controller": true}]}}))
}

/// Whether the server ends the connection, before this test loses patience.
async fn is_cut_off(client: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(IN_TIME, client.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn the_first_answer_does_not_wait_until_the_handshake_is_acknowledged() {
    let (tls, connector) = both_ends();
    let listener = tokio::net::TcpListener::bind((ME, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let stream = stream.into_std().unwrap();
    let same_socket = stream.try_clone().unwrap();
    let gate = Gate::new(RustlsAcceptor::new(tls), patient());
    let (client, served) = tokio::join!(
        connector.connect(ServerName::try_from(NAME).unwrap(), client),
        gate.accept(TcpStream::from_std(stream).unwrap(), ())
    );
    assert!(client.is_ok() && served.is_ok());
    assert!(same_socket.nodelay().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_limited_in_length_depth_and_values() {
    let server = start(patient());
    assert_eq!(server.call(&pod()).await.0, 200);

    let mut client = server.tls(ME).await.unwrap();
    client.write_all(head((20 << 20) + 1).as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 413, "refused before it is read");

    // Without a length, it is counted as it comes.
    let mut client = server.tls(ME).await.unwrap();
    let chunked = head(0).replace("content-length: 0", "transfer-encoding: chunked");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 1 << 16], b"\r\n"].concat();
    client.write_all(chunked.as_bytes()).await.unwrap();
    let mut refused = (0, String::new());
    for _ in 0..400 {
        // Once it has refused, the server may close while we still write.
        if client.write_all(&chunk).await.is_err() {
            break;
        }
    }
    if let Ok(answer) = answer(&mut client).await {
        refused = answer;
    }
    assert!([0, 413].contains(&refused.0), "{refused:?}");
    assert_eq!(server.call(&pod()).await.0, 200, "and others are served");

    for body in ["{\"request\":{\"object\":".to_owned() + &"[".repeat(90_000), "[".repeat(100_001)] {
        assert_eq!(server.call(body.as_bytes()).await.0, 400);
    }
    let dense = review(&json!(vec![0; 1 << 19]));
    let (code, body) = server.call(&dense).await;
    assert!(code == 200 && body.contains("the object would take too much memory: it has too many values"), "{body}");
    let long =
        String::from_utf8(pod()).unwrap().replace("\"uid\":\"u\"", &format!("\"uid\":\"{}\"", "u".repeat(1 << 20)));
    let (code, body) = server.call(long.as_bytes()).await;
    assert!(code == 400 && body.starts_with("request.uid: \"uuu") && body.len() < 200, "{code} {body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_cut_off() {
    // No handshake.
    let server = start(Limits { handshake: SHORT, ..patient() });
    assert!(is_cut_off(&mut server.tcp(ME).await.unwrap()).await);
    // No request after the handshake.
    let server = start(Limits { idle: SHORT, ..patient() });
    assert!(is_cut_off(&mut server.tls(ME).await.unwrap()).await);
    // A head without its body.
    let server = start(Limits { request: SHORT, ..patient() });
    let mut client = server.tls(ME).await.unwrap();
    client.write_all(head(10).as_bytes()).await.unwrap();
    assert!(is_cut_off(&mut client).await);
    // Byte by byte: no pause is long, the whole is.
    for lead in [String::new(), head(1 << 20)] {
        let (mut reading, mut writing) = tokio::io::split(server.tls(ME).await.unwrap());
        let trickle = tokio::spawn(async move {
            let _ = writing.write_all(lead.as_bytes()).await;
            while writing.write_all(b"x").await.is_ok() && writing.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(is_cut_off(&mut reading).await);
        trickle.abort();
    }
    // Silence after an answer.
    let server = start(Limits { idle: AMPLE, ..patient() });
    let mut client = server.tls(ME).await.unwrap();
    assert_eq!(exchange(&mut client, &pod()).await.unwrap().0, 200);
    assert!(is_cut_off(&mut client).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_on_one_connection_each_have_their_own_time() {
    let server = start(Limits { request: AMPLE, ..patient() });
    let mut client = server.tls(ME).await.unwrap();
    // From the first to the last it is longer than one may take.
    for _ in 0..4 {
        tokio::time::sleep(AMPLE * 2 / 5).await;
        assert_eq!(exchange(&mut client, &pod()).await.unwrap().0, 200);
    }
}

/// API servers dial ahead in a burst. A call on such a connection is not repeated when the server has closed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_may_wait_for_its_first_request_as_for_any_other() {
    let server = start(Limits { handshake: AMPLE, request: AMPLE, ..patient() });
    let mut client = server.tls(ME).await.unwrap();
    tokio::time::sleep(AMPLE + SHORT).await;
    assert_eq!(exchange(&mut client, &pod()).await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_cut_off() {
    let server = start(Limits { per_peer: 1, answer: SHORT, ..patient() });
    let (_reading, mut writing) = tokio::io::split(server.tls(ME).await.unwrap());
    // Answers fill the buffers of both kernels, then the server waits for us, then it has had enough.
    let request = [head(pod().len()).as_bytes(), &pod()].concat();
    let flood = async { while writing.write_all(&request).await.is_ok() && writing.flush().await.is_ok() {} };
    tokio::time::timeout(IN_TIME, flood).await.expect("the server goes on answering nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_cannot_take_every_connection() {
    let server = start(Limits { connections: 6, per_peer: 4, ..patient() });
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(server.tls(OTHER).await.unwrap());
    }
    assert!(server.tls(OTHER).await.is_err(), "its share is taken");
    let mine = server.tls(ME).await.unwrap();
    let _mine_too = server.tls(ME).await.unwrap();
    assert!(server.tls(ME).await.is_err(), "all are taken");
    // A place is free again when a connection ends.
    drop(mine);
    let free = async {
        while server.tls(ME).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(IN_TIME, free).await.unwrap();
}

#[tokio::test]
async fn tls_before_1_2_is_refused() {
    let server = start(patient());
    for minor in [1u8, 2] {
        // A ClientHello of TLS 1.0 or 1.1 with one cipher suite of that time, and no extension.
        let hello = [&[3, minor][..], &[7; 32], &[0, 0, 2, 0xc0, 0x13, 1, 0]].concat();
        let length = u8::try_from(hello.len()).unwrap();
        let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length], hello.as_slice()].concat();
        let mut tcp = server.tcp(ME).await.unwrap();
        tcp.write_all(&record).await.unwrap();
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer).await;
        // An alert, fatal.
        assert_eq!((answer.first(), answer.get(5)), (Some(&21), Some(&2)), "{answer:?}");
    }
}

/// From /proc/self/status, in MiB.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// What the flood is made of.
fn waves() -> Vec<Vec<u8>> {
    vec![
        pod(),
        review(&json!(vec![0; 1 << 20])),
        ["{\"request\":{\"object\":", &"[".repeat(50_000)].concat().into_bytes(),
        pod(),
        vec![b' '; 2 << 20],
        b"{\"request\":".to_vec(),
        review(&json!({"spec": {"readinessGates": vec![json!({}); 4000]}})),
        review(&json!({"spec": {"containers": vec![json!({"name": "x".repeat(1000)}); 1000]}})),
    ]
}

/// The limits of a server whose clients have this patience. With three seconds all times are those of the product.
fn limits_for(patience: Duration) -> Limits {
    let usual = Limits::default();
    Limits {
        per_peer: 256,
        handshake: usual.handshake.max(patience),
        request: usual.request.max(patience),
        answer: usual.answer.max(patience),
        idle: usual.idle.max(patience),
        ..usual
    }
}

/// Makes `KRUISE_FLOOD` calls (10,000), while others hold connections, while one client who means well calls too.
/// In a process of its own, see below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the long flood, for `make soak`"]
async fn flood() {
    const CALLS_PER_CONNECTION: usize = 20;
    let calls: usize = std::env::var("KRUISE_FLOOD").map_or(10_000, |text| text.parse().unwrap());
    // The API server waits for three seconds. The short flood runs beside all other tests on whatever machine there is.
    let patience = std::env::var("KRUISE_FLOOD_PATIENCE").map_or(3, |text| text.parse().unwrap());
    let patience = Duration::from_secs(patience);
    let server = Arc::new(start(limits_for(patience)));
    let mut holders = Vec::new();
    for _ in 0..150 {
        holders.push(server.tcp(OTHER).await.unwrap());
    }
    let waves = Arc::new(waves());
    let mut flood = JoinSet::new();
    let (mut started, mut answered, mut after_warm_up, mut slowest) = (0, 0, 0, Duration::ZERO);
    while answered < calls {
        while flood.len() < 24 && started < calls {
            let (server, waves, from) = (server.clone(), waves.clone(), started);
            started += CALLS_PER_CONNECTION;
            flood.spawn(async move {
                let mut client = None;
                for n in from..from + CALLS_PER_CONNECTION {
                    // A refused call may end its connection.
                    let mut open = match client.take() {
                        Some(open) => open,
                        None => match server.tls(OTHER).await {
                            Ok(open) => open,
                            Err(_) => continue,
                        },
                    };
                    if exchange(&mut open, &waves[n % waves.len()]).await.is_ok() {
                        client = Some(open);
                    }
                }
                CALLS_PER_CONNECTION
            });
        }
        let begun = Instant::now();
        let healthy = tokio::time::timeout(patience, server.call(&pod())).await;
        assert_eq!(healthy.expect("a healthy call had no answer in time").0, 200);
        slowest = slowest.max(begun.elapsed());
        while let Some(done) = flood.try_join_next() {
            answered += done.unwrap();
        }
        if after_warm_up == 0 && answered * 5 >= calls {
            after_warm_up = memory("VmRSS");
        }
    }
    let (end, peak) = (memory("VmRSS"), memory("VmHWM"));
    println!(
        "{answered} calls; slowest healthy call {slowest:?}; MiB after a fifth {after_warm_up}, at the end {end}, at most {peak}"
    );
    // A short flood is hardly more than a warm-up, beside other tests: its peak alone is looked at, and less closely.
    let is_short = calls < 10_000;
    assert!(is_short || end <= after_warm_up + 64, "memory grew from {after_warm_up} to {end} MiB");
    let most = if is_short { 600 } else { 400 };
    assert!(peak <= most, "{peak} MiB, client included");
}

/// A process of its own, since memory is counted by process.
#[test]
fn a_short_flood_neither_fills_memory_nor_starves_others() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "webhook::server::tests::connections::flood", "--ignored", "--nocapture"]);
    let output = command.env("KRUISE_FLOOD", "1000").env("KRUISE_FLOOD_PATIENCE", "120").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
