//! The server against an API server that is a function: two namespaces, two nodes.

use std::sync::Mutex;

use axum::{body::Body, extract::connect_info::MockConnectInfo, http::Request};
use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;

/// Names of Secrets that were read.
type Reads = Arc<Mutex<Vec<String>>>;

fn docker_config(user: &str) -> String {
    let config = json!({"auths": {"r.example": {"username": user, "password": format!("{user}-password")}}});
    STANDARD.encode(config.to_string())
}

fn job(namespace: &str, image: &str, secret: &str) -> Value {
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
        "metadata": {"name": "pull", "namespace": namespace, "uid": format!("{namespace}-job")},
        "spec": {"image": image, "pullSecrets": [secret, "missing", "opaque", "closed"], "completionPolicy": {}}})
}

/// Node one pulls for team a, node two for team b; both from one repository.
fn node_image(name: &str, team: &str) -> Value {
    let secrets: Vec<Value> = ["a", "b"]
        .iter()
        .flat_map(|ns| ["s", "missing", "opaque", "closed"].map(|name| json!({"namespace": ns, "name": name})))
        .collect();
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": {"name": name},
        "spec": {"images": {"r.example/app": {"pullSecrets": secrets, "tags": [{"tag": team, "ownerReferences": [
            {"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": team, "name": "pull",
                "uid": format!("{team}-job")}]}]}}}})
}

/// Its entry was written by hand, beside Secrets by hand and Secrets of a job.
fn by_hand() -> Value {
    let secrets = json!([{"namespace": "a", "name": "s"}, {"namespace": "b", "name": "s", "mode": "job"},
        {"namespace": "a", "name": "missing"}]);
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": {"name": "hand"},
        "spec": {"images": {"r.example/app": {"pullSecrets": secrets, "tags": [{"tag": "v1"}]}}}})
}

fn answer_of_api(method: &str, path: &str, body: &[u8], reads: &Reads) -> (u16, Value) {
    let missing =
        || (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}));
    if method == "POST" {
        assert_eq!(path, "/apis/authentication.k8s.io/v1/tokenreviews");
        let mut review: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(review["spec"]["audiences"], json!([AUDIENCE]));
        let token = review["spec"]["token"].as_str().unwrap().to_owned();
        let mut extra =
            json!({"authentication.kubernetes.io/pod-name": ["daemon"], "authentication.kubernetes.io/pod-uid": ["u"]});
        if let Some(node) = token.strip_prefix("of ") {
            extra["authentication.kubernetes.io/node-name"] = json!([node]);
        }
        let user = if token == "somebody" {
            "system:serviceaccount:a:default"
        } else {
            "system:serviceaccount:kruise-system:kruise-daemon"
        };
        review["status"] = match token.as_str() {
            "bad" => json!({"authenticated": false, "error": "no such token"}),
            _ => json!({"authenticated": true, "audiences": [AUDIENCE], "user": {"username": user, "extra": extra}}),
        };
        return (201, review);
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["apis", _, _, "nodeimages", "one"] => (200, node_image("one", "a")),
        ["apis", _, _, "nodeimages", "two"] => (200, node_image("two", "b")),
        ["apis", _, _, "nodeimages", "hand"] => (200, by_hand()),
        ["apis", _, _, "namespaces", namespace, "imagepulljobs", "pull"] => {
            (200, job(namespace, &format!("r.example/app:{namespace}"), "s"))
        }
        ["api", "v1", "namespaces", namespace, "secrets", name] => {
            reads.lock().unwrap().push(format!("{namespace}/{name}"));
            let secret = |type_: &str, data: Value| {
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": type_, "data": data}),
                )
            };
            match *name {
                "s" => secret(
                    "kubernetes.io/dockerconfigjson",
                    json!({".dockerconfigjson": docker_config(&format!("user-{namespace}"))}),
                ),
                "opaque" => secret("Opaque", json!({"hidden": "aGlkZGVu"})),
                "closed" => (
                    403,
                    json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
                ),
                _ => missing(),
            }
        }
        ["api", "v1", "namespaces", "kruise-system", "pods", "daemon"] => {
            (200, json!({"metadata": {"name": "daemon", "uid": "u"}, "spec": {"nodeName": "two", "containers": []}}))
        }
        _ => missing(),
    }
}

fn context(reads: &Reads) -> Arc<Context> {
    let reads = reads.clone();
    let service = tower::service_fn(move |http: Request<kube::client::Body>| {
        let reads = reads.clone();
        async move {
            let (parts, body) = http.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            if parts.method == "POST" && String::from_utf8_lossy(&body).contains("never reviewed") {
                std::future::pending::<()>().await;
            }
            let (code, object) = answer_of_api(parts.method.as_str(), parts.uri.path(), &body, &reads);
            let response = axum::http::Response::builder().status(code);
            let body = kube::client::Body::from(object.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(response.body(body).unwrap())
        }
    });
    Context::new(Client::new(service, "default"), "kruise-system".into(), Metrics::default())
}

async fn ask(context: &Arc<Context>, token: &str, tag: &str) -> (u16, String) {
    let body = json!({"image": "r.example/app", "tag": tag, "version": 0}).to_string();
    send(context, Some(token), body).await
}

async fn send(context: &Arc<Context>, token: Option<&str>, body: String) -> (u16, String) {
    send_from(context, [192, 0, 2, 1], token, body).await
}

async fn send_from(context: &Arc<Context>, peer: [u8; 4], token: Option<&str>, body: String) -> (u16, String) {
    let mut request = Request::post(PATH);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let router = router(context.clone()).layer(MockConnectInfo(SocketAddr::from((peer, 40000))));
    let response = router.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn f6_neither_of_two_nodes_and_namespaces_sees_what_is_the_others() {
    let reads = Reads::default();
    let context = context(&reads);
    for (node, team, other) in [("one", "a", "b"), ("two", "b", "a")] {
        let (code, body) = ask(&context, &format!("of {node}"), team).await;
        assert_eq!(code, 200, "{body}");
        let answer: Answer = serde_json::from_str(&body).unwrap();
        let users: Vec<&str> = answer.credentials.iter().map(|c| c.username.as_str()).collect();
        assert_eq!(users, [format!("user-{team}")]);
        assert!(!body.contains(&format!("user-{other}")));
        let read = std::mem::take(&mut *reads.lock().unwrap());
        assert_eq!(read.len(), 4);
        assert!(read.iter().all(|name| name.starts_with(&format!("{team}/"))), "{read:?}");

        let (code, body) = ask(&context, &format!("of {node}"), other).await;
        assert_eq!((code, reads.lock().unwrap().len()), (403, 0), "{body}");
        assert!(body.contains("there is no entry r.example/app"), "{body}");
    }
}

/// The author's right was asked for when it was written.
#[tokio::test]
async fn an_entry_by_hand_gets_the_secrets_by_hand_and_none_of_a_job() {
    let reads = Reads::default();
    let (code, body) = ask(&context(&reads), "of hand", "v1").await;
    assert_eq!(code, 200, "{body}");
    let answer: Answer = serde_json::from_str(&body).unwrap();
    let users: Vec<&str> = answer.credentials.iter().map(|c| c.username.as_str()).collect();
    assert_eq!((users, answer.problems), (vec!["user-a"], vec!["Secret a/missing: it does not exist".to_owned()]));
    assert_eq!(*reads.lock().unwrap(), ["a/s", "a/missing"]);
}

#[tokio::test]
async fn f9_what_is_wrong_with_secrets_is_reported() {
    let (_, body) = ask(&context(&Reads::default()), "of one", "a").await;
    let answer: Answer = serde_json::from_str(&body).unwrap();
    assert_eq!(
        answer.problems,
        [
            "Secret a/missing: it does not exist",
            "Secret a/opaque: its type is \"Opaque\": want kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg",
            "Secret a/closed: the manager lacks the right to get secrets (name closed, namespace a): bind ClusterRole kruise-manager-pull-secrets there, or a Role with that rule",
        ]
    );
}

/// Tokens of API servers that do not name the node.
#[tokio::test]
async fn without_a_node_in_the_token_the_pod_decides() {
    let (code, body) = ask(&context(&Reads::default()), "plain", "b").await;
    assert!(code == 200 && body.contains("user-b"), "{body}");
}

#[tokio::test]
async fn nobody_else_gets_anything() {
    let reads = Reads::default();
    let context = context(&reads);
    assert_eq!(ask(&context, "bad", "a").await, (401, "no such token".into()));
    assert_eq!(ask(&context, "somebody", "a").await.0, 401);
    assert_eq!(send(&context, None, "{}".into()).await.0, 401);
    assert_eq!(ask(&context, "of three", "a").await, (403, "there is no NodeImage three".into()));
    assert_eq!(
        send(&context, Some("of one"), "{\"password".into()).await,
        (400, "want JSON with image, tag and version".into())
    );
    assert_eq!(send(&context, Some("of one"), "x".repeat(BODY_LIMIT + 1)).await.0, 413);
    assert!(reads.lock().unwrap().is_empty());
}

#[tokio::test]
async fn callers_without_a_good_token_hold_up_no_daemon() {
    let context = context(&Reads::default());
    let strangers: Vec<_> = (0..200)
        .map(|_| {
            let context = context.clone();
            let send = async move { send_from(&context, [192, 0, 2, 66], Some("never reviewed"), "{}".into()).await };
            tokio::spawn(send)
        })
        .collect();
    tokio::task::yield_now().await;
    let answer = tokio::time::timeout(Duration::from_secs(10), ask(&context, "of one", "a")).await;
    assert_eq!(answer.expect("the daemon waits for strangers").0, 200);
    // Without a token nothing is looked up, so nothing is waited for.
    let refused = send_from(&context, [192, 0, 2, 66], None, "{}".into());
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), refused).await.expect("it waits").0, 401);
    strangers.iter().for_each(tokio::task::JoinHandle::abort);
}
