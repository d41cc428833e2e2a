use std::sync::Mutex;

use axum::http;
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

const NAME: &str = "webhook.example.svc";

/// An API server with one Secret, in which everything but a read is an error of the program.
struct Server {
    secret: Mutex<Option<SecretData>>,
    /// The answer to who reads a webhook configuration.
    registration: Mutex<(u16, Value)>,
    asked: Mutex<Vec<String>>,
}

impl Server {
    fn client(self: &Arc<Self>) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (code, body) = server.answer(request.method(), request.uri().path());
                let response = http::Response::builder().status(code);
                Ok::<_, std::convert::Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &http::Method, path: &str) -> (u16, Value) {
        self.asked.lock().unwrap().push(format!("{method} {path}"));
        if path.contains("webhookconfigurations/") {
            return self.registration.lock().unwrap().clone();
        }
        match (path, &*self.secret.lock().unwrap()) {
            ("/api/v1/namespaces/kruise-system/secrets/certs", Some(data)) => {
                let data: serde_json::Map<String, Value> =
                    data.iter().map(|(key, value)| (key.clone(), STANDARD.encode(value).into())).collect();
                (200, json!({"metadata": {"name": "certs"}, "data": data}))
            }
            _ => failure(404, "NotFound"),
        }
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}))
}

fn made(dns_name: &str) -> SecretData {
    let (now, none) = (clock::now().wall, SecretData::new());
    let certs::Plan::Write(renewal) = certs::plan(&none, now, dns_name, Duration::ZERO) else { panic!() };
    let made = certs::issue(&renewal, &none, now, dns_name).unwrap();
    [("tls.crt", "tls.crt"), ("tls.key", "tls.key"), ("ca.crt", certs::CA_CERT)]
        .map(|(key, from)| (key.to_owned(), made[from].clone()))
        .into()
}

fn external(client: Client, source: Source) -> External {
    External {
        client,
        source,
        endpoint: Endpoint::Service { namespace: "example".into(), name: "webhook".into() },
        gates: FeatureGates::parse(&["EnableExternalCerts=true"], None).unwrap(),
        callers: None,
        metrics: Metrics::default(),
        problem: watch::Sender::default(),
    }
}

fn from_secret(data: Option<SecretData>) -> (Arc<Server>, External) {
    let registration = Mutex::new(failure(404, "NotFound"));
    let server = Arc::new(Server { secret: Mutex::new(data), registration, asked: Mutex::default() });
    let source = Source::Secret { namespace: "kruise-system".into(), name: "certs".into() };
    let external = external(server.client(), source);
    (server, external)
}

#[tokio::test]
async fn nothing_is_served_before_there_is_a_certificate_and_a_bad_one_takes_nothing_away() {
    let (server, external) = from_secret(None);
    let (tls, ready) = watch::channel(None);
    let mut serving = None;
    let mut error = async |data: Option<SecretData>| {
        *server.secret.lock().unwrap() = data;
        external.sync(&mut serving, &tls).await.map_err(|error| error.to_string())
    };
    let missing = error(None).await.unwrap_err();
    assert!(missing.starts_with("Secret certs in namespace kruise-system does not exist"), "{missing}");
    let mut half = made(NAME);
    half.remove("tls.key");
    assert_eq!(
        error(Some(half)).await.unwrap_err(),
        "Secret certs in namespace kruise-system: tls.key is missing; want tls.crt, tls.key, ca.crt, in PEM"
    );
    assert!(error(Some(made("other.svc"))).await.unwrap_err().contains("tls.crt is not good for webhook.example.svc"));
    assert!(ready.borrow().is_none());

    error(Some(made(NAME))).await.unwrap();
    let first = ready.borrow().clone().unwrap().get_inner();
    let end = external.metrics.certificate_expiry.get();
    assert!(end > clock::now().wall.as_second() + 364 * 86_400, "{end}");
    error(Some(SecretData::new())).await.unwrap_err();
    assert!(Arc::ptr_eq(&first, &ready.borrow().clone().unwrap().get_inner()), "the one before stays");
    error(Some(made(NAME))).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &ready.borrow().clone().unwrap().get_inner()), "a renewed one is taken over");
}

#[tokio::test]
async fn neither_the_secret_nor_the_registration_is_written_to_serve_a_certificate() {
    let (server, external) = from_secret(Some(made(NAME)));
    let (tls, _ready) = watch::channel(None);
    external.sync(&mut None, &tls).await.unwrap();
    assert_eq!(
        *server.asked.lock().unwrap(),
        [
            "GET /api/v1/namespaces/kruise-system/secrets/certs".to_owned(),
            format!(
                "GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{}",
                crate::domain::deletion_protection::NAME
            ),
        ]
    );
}

#[tokio::test]
async fn entries_that_nobody_adds_are_reported_until_they_are_there_or_cannot_be_seen() {
    let (server, external) = from_secret(None);
    let mut reported = ReportedEntries::default();
    let mut look = async |answer: (u16, Value)| {
        *server.registration.lock().unwrap() = answer;
        let again = external.report_entries(&mut reported).await;
        (again, reported.missing.clone(), external.metrics.entries_missing.get())
    };
    let wanted: Vec<&str> = [Phase::Mutating, Phase::Validating]
        .into_iter()
        .flat_map(|phase| configuration::missing(&Value::Null, phase, &external.gates))
        .collect();
    assert!(wanted.contains(&"mpod.kb.io") && wanted.contains(&"vpodunavailablebudget.kb.io"), "{wanted:?}");
    let count = i64::try_from(wanted.len()).unwrap();
    assert_eq!(look(failure(404, "NotFound")).await, (true, wanted.clone(), count), "no configuration at all");
    assert_eq!(look(failure(500, "InternalError")).await, (true, wanted.clone(), count), "nothing new is known");
    let with = |names: &[&str]| {
        let entries: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        (200, json!({"metadata": {"name": "x"}, "webhooks": entries}))
    };
    let (again, missing, _) = look(with(&["mcontainerrecreaterequest.kb.io"])).await;
    assert!(again && missing.len() == wanted.len() - 1, "what the manifests have without the component: {missing:?}");
    assert_eq!(look(with(&wanted)).await, (true, vec![], 0));
    assert!(!look(failure(403, "Forbidden")).await.0, "the rights of the component");
    assert!(server.asked.lock().unwrap().iter().all(|asked| asked.starts_with("GET ")));
}

/// Another program has left them, for example OpenKruise.
#[tokio::test]
async fn entries_that_nobody_removes_are_reported_where_they_can_be_seen() {
    let (server, external) = from_secret(None);
    let calls = |name: &str, namespace: &str| {
        let service = json!({"namespace": namespace, "name": "webhook", "path": "/x"});
        json!({"name": name, "clientConfig": {"service": service}})
    };
    let known = configuration::missing(&Value::Null, Phase::Mutating, &external.gates)[0];
    let mut reported = ReportedEntries::default();
    let mut look = async |answer: (u16, Value)| {
        *server.registration.lock().unwrap() = answer;
        let again = external.report_entries(&mut reported).await;
        (again, reported.left.clone())
    };
    for (entries, want) in [
        (vec![], vec![]),
        (vec![calls(known, "example")], vec![known]),
        (vec![calls("old.kb.io", "elsewhere")], vec![]),
        (vec![calls("old.kb.io", "example"), calls("older.kb.io", "example")], vec!["old.kb.io", "older.kb.io"]),
    ] {
        let answer = (200, json!({"metadata": {"name": "x"}, "webhooks": entries}));
        // It is the answer for both configurations, and a name that one of them has is left in the other one.
        let times = if want == [known] { 1 } else { 2 };
        let want: Vec<String> = want.repeat(times).into_iter().map(str::to_owned).collect();
        assert_eq!(look(answer).await, (true, want), "{entries:?}");
    }
    assert!(!look(failure(403, "Forbidden")).await.0, "the rights of the component");
    assert_eq!(reported.left.len(), 4, "nothing new is known");
}

#[tokio::test]
async fn files_are_read_again_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = from_secret(None);
    let external = external(server.client(), Source::Directory(directory.path().into()));
    let (tls, ready) = watch::channel(None);
    let mut serving = None;
    let error = external.sync(&mut serving, &tls).await.unwrap_err().to_string();
    assert!(error.ends_with("tls.crt, tls.key, ca.crt is missing; want tls.crt, tls.key, ca.crt, in PEM"), "{error}");
    let write = || {
        for (key, value) in made(NAME) {
            std::fs::write(directory.path().join(key), value).unwrap();
        }
    };
    write();
    external.sync(&mut serving, &tls).await.unwrap();
    let first = ready.borrow().clone().unwrap().get_inner();
    external.sync(&mut serving, &tls).await.unwrap();
    assert!(Arc::ptr_eq(&first, &ready.borrow().clone().unwrap().get_inner()), "nothing has changed");
    // Whoever renews them is in the middle of it: a new certificate, and the key of the old one.
    std::fs::write(directory.path().join("tls.crt"), &made(NAME)["tls.crt"]).unwrap();
    let error = external.sync(&mut serving, &tls).await.unwrap_err().to_string();
    assert!(error.contains("tls.key") || error.contains("tls.crt"), "{error}");
    std::fs::remove_file(directory.path().join("ca.crt")).unwrap();
    let error = external.sync(&mut serving, &tls).await.unwrap_err().to_string();
    assert!(error.contains("ca.crt is missing"), "{error}");
    assert!(Arc::ptr_eq(&first, &ready.borrow().clone().unwrap().get_inner()), "the one before stays");
    write();
    external.sync(&mut serving, &tls).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &ready.borrow().clone().unwrap().get_inner()));
}
