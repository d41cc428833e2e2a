//! What the daemon of a node may learn and do with images: credentials of its own node alone, a disk that is not filled,
//! and what kubelet makes of private images that were pulled ahead of time.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use e2e::cmd::kubectl;
use e2e::config::PULLER;
use e2e::deploy::DAEMON_ARGS;
use e2e::images::push_new;
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, pod, poll, restoring};
use e2e::paths::{NODE, SYSTEM};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

const JOB: &str = "ImagePullJob";
const ACCOUNT: &str = "kruise-daemon";
const AUDIENCE: &str = "kruise-pull-secrets";
const OTHER_NODE: &str = "node-c";

/// Pushes an image to a repository that no other run has had, and returns its name and tag: what the node has from before
/// would be pulled no more.
async fn pushed(t: &Test, name: &str) -> Result<String> {
    let (paths, name) = (t.paths.clone(), format!("{name}-{}", t.namespace));
    let reference = format!("team/{name}:v1");
    tokio::task::spawn_blocking(move || push_new(&paths, &name, "v1", 1 << 18)).await??;
    Ok(reference)
}

fn job(name: &str, node: &str, image: &str) -> Value {
    json!({ "kind": JOB, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name }, "spec": {
        "image": image, "selector": { "names": [node] }, "completionPolicy": { "type": "Always" },
        "pullPolicy": { "timeoutSeconds": 30, "backoffLimit": 0 } } })
}

fn secret(password: &str) -> Value {
    let config = json!({ "auths": { "private.example": { "username": PULLER.0, "password": password } } });
    json!({ "kind": "Secret", "metadata": { "name": "registry" }, "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": config.to_string() } })
}

async fn over(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(JOB, name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await
}

/// A token for a Pod of an account, for an audience.
async fn token(t: &Test, account: &str, pod: Option<&str>, audience: Option<&str>) -> Result<String> {
    let mut args = vec!["-n", SYSTEM, "create", "token", account];
    args.extend(pod.iter().flat_map(|pod| ["--bound-object-kind=Pod", "--bound-object-name", pod]));
    args.extend(audience.iter().flat_map(|audience| ["--audience", audience]));
    let answer = t.run(kubectl(&t.paths, args)).await?;
    ensure!(answer.ok, "{}", answer.stderr);
    Ok(answer.stdout.trim().to_owned())
}

/// The code and the body of an answer of the managers.
async fn ask(t: &Test, ca: &Path, token: &str, image: &str) -> Result<(u16, String)> {
    let address = t.api_in(SYSTEM, "Service").get("kruise-pull-secrets").await?;
    let address = serde_json::to_value(address)?.text("/spec/clusterIP").to_owned();
    let kubeconfig: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "c", "cluster": { "server": format!("https://{address}"), "certificate-authority": ca,
            "tls-server-name": format!("kruise-pull-secrets.{SYSTEM}.svc") } }],
        "users": [{ "name": "u", "user": { "token": token } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }], "current-context": "x",
    }))?;
    let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
    let question = json!({ "image": image, "tag": "v1", "version": 0 }).to_string().into_bytes();
    let mut request = kube::core::Request::new("/v1").create(&kube::api::PostParams::default(), question)?;
    *request.uri_mut() = "/v1/credentials".parse()?;
    match client.request_text(request).await {
        Ok(text) => Ok((200, text)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        Err(error) => bail!("{error}"),
    }
}

/// Two namespaces, two nodes: the daemon of each gets what its own node pulls for its own namespace, and nobody else gets
/// anything.
#[tokio::test]
async fn a_daemon_gets_credentials_of_its_own_node_alone() -> Result<()> {
    in_namespace("pull-theirs", async |t| {
        let mut other = t.clone();
        other.namespace = format!("{}-b", t.namespace);
        t.create(json!({ "kind": "Namespace", "metadata": { "name": other.namespace } })).await?;
        let undo = async {
            let now = kube::api::DeleteParams::default().grace_period(0);
            t.api_in(SYSTEM, "Pod").delete("another-daemon", &now).await.ok();
            t.remove("Node", OTHER_NODE).await?;
            t.remove("NodeImage", OTHER_NODE).await?;
            t.remove("Namespace", &other.namespace).await
        };
        restoring(two_nodes(t, &other), undo).await
    })
    .await
}

async fn two_nodes(t: &Test, other: &Test) -> Result<()> {
    t.create(json!({ "kind": "Node", "metadata": { "name": OTHER_NODE } })).await?;
    t.create(json!({ "kind": "NodeImage", "metadata": { "name": OTHER_NODE }, "spec": {} })).await?;
    // A Pod of the daemon's account on a node that is no machine.
    let another = pod("another-daemon", vec![app("daemon")])
        .with("/metadata/namespace", SYSTEM)
        .with("/spec/nodeName", OTHER_NODE)
        .with("/spec/serviceAccountName", ACCOUNT);
    t.create(another).await?;
    let (mine, theirs) = ("private.example/team/mine", "private.example/team/theirs");
    // The registry does not know this password: the entry stays open while the daemon tries again and again.
    t.create(secret("password-of-a")).await?;
    let stubborn = job("pull", NODE, &format!("{mine}:v1")).with("/spec/pullPolicy/backoffLimit", 1000);
    t.create(stubborn.with("/spec/pullSecrets", json!(["registry"]))).await?;
    other.create(secret("password-of-b")).await?;
    other
        .create(job("pull", OTHER_NODE, &format!("{theirs}:v1")).with("/spec/pullSecrets", json!(["registry"])))
        .await?;
    for (node, image) in [(NODE, mine), (OTHER_NODE, theirs)] {
        let is_there = |o: &Value| o.pointer("/spec/images").is_some_and(|images| images.get(image).is_some());
        t.wait_for("NodeImage", node, "to list the image", PATIENCE, is_there).await?;
    }

    let map = serde_json::to_value(t.api_in(SYSTEM, "ConfigMap").get("kruise-pull-secrets-ca").await?)?;
    let ca = std::env::temp_dir().join(format!("{}-ca.crt", t.namespace));
    fs::write(&ca, map.text("/data/ca.crt"))?;
    let own = t.node().daemon().await?.text("/metadata/name").to_owned();
    let of_own = token(t, ACCOUNT, Some(&own), Some(AUDIENCE)).await?;
    let of_other = token(t, ACCOUNT, Some("another-daemon"), Some(AUDIENCE)).await?;
    // Any manager may be asked, and those that do not lead learn of jobs a moment later.
    for (token, image, has, has_not) in
        [(&of_own, mine, "password-of-a", "password-of-b"), (&of_other, theirs, "password-of-b", "password-of-a")]
    {
        poll("a manager to serve the credentials", PATIENCE, async || {
            let (code, body) = ask(t, &ca, token, image).await?;
            ensure!(code == 200 && body.contains(has) && !body.contains(has_not), "{code}: {body}");
            Ok(())
        })
        .await?;
    }
    for (what, token, image, want) in [
        ("the image of the other node", of_own.clone(), theirs, 403),
        ("and the other way round", of_other, mine, 403),
        ("a token for the API server", token(t, ACCOUNT, Some(&own), None).await?, mine, 401),
        ("a token of no Pod", token(t, ACCOUNT, None, Some(AUDIENCE)).await?, mine, 401),
        ("another account", token(t, "kruise-webhook", None, Some(AUDIENCE)).await?, mine, 401),
        ("no token", "none".to_owned(), mine, 401),
    ] {
        let (code, body) = ask(t, &ca, &token, image).await?;
        ensure!(code == want && !body.contains("password"), "{what}: {code}: {body}");
    }
    // The job is gone: so is what it let others have.
    t.remove(JOB, "pull").await?;
    t.gone(JOB, "pull").await?;
    poll("the credentials to be kept back", PATIENCE, async || {
        let (code, body) = ask(t, &ca, &of_own, mine).await?;
        ensure!(!body.contains("password"), "{code}: {body}");
        Ok(())
    })
    .await?;
    fs::remove_file(ca)?;
    Ok(())
}

/// Changes the flags of the daemon.
async fn daemon_flags(t: &Test, flags: &[&str]) -> Result<()> {
    let args: Vec<&str> = match flags {
        [] => DAEMON_ARGS.to_vec(),
        _ => std::iter::once("daemon").chain(flags.iter().copied()).collect(),
    };
    let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "daemon", "args": args }] } } } });
    let (patch, daemons) = (patch.to_string(), "daemonset/kruise-daemon");
    for args in [
        vec!["-n", SYSTEM, "patch", daemons, "-p", &patch],
        vec!["-n", SYSTEM, "rollout", "status", daemons, "--timeout=60s"],
    ] {
        let answer = t.run(kubectl(&t.paths, args)).await?;
        ensure!(answer.ok, "{}", answer.stderr);
    }
    t.node().daemon_ready().await
}

#[tokio::test]
async fn nothing_is_pulled_onto_a_disk_that_is_too_full() -> Result<()> {
    in_namespace("pull-disk", async |t| {
        let image = format!("registry.example/{}", pushed(t, "disk").await?);
        let body = async {
            daemon_flags(t, &["--image-fs-limit-percent=1"]).await?;
            t.create(job("full", NODE, &image)).await?;
            let job = over(t, "full").await?;
            ensure!(job.int("/status/failed") == 1, "{job:#}");
            let node = t.get("NodeImage", NODE).await?.to_string();
            ensure!(node.contains("the file system that holds images is ") && node.contains("from 1% on"), "{node}");
            Ok(())
        };
        restoring(body, daemon_flags(t, &[])).await?;
        t.create(job("room", NODE, &image).with("/spec/imagePullPolicy", "Always")).await?;
        let job = over(t, "room").await?;
        ensure!(job.int("/status/succeeded") == 1, "{job:#}");
        Ok(())
    })
    .await
}

/// kubelet with another configuration, until the end of `body`.
async fn with_kubelet(t: &Test, more: &str, body: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let file = t.paths.state.join("kubelet.yaml");
    let before = fs::read_to_string(&file)?;
    let gates = "featureGates: {ContainerRestartRules: true}";
    ensure!(before.contains(gates), "kubelet.yaml has other gates");
    let with = async {
        fs::write(&file, before.replace(gates, more))?;
        t.node().restart("kubelet", "TERM").await?;
        body().await
    };
    let undo = async {
        fs::write(&file, &before)?;
        t.node().restart("kubelet", "TERM").await
    };
    restoring(with, undo).await
}

#[tokio::test]
async fn a_private_image_on_the_node_is_open_to_its_pods_unless_kubelet_verifies() -> Result<()> {
    in_namespace("pull-open", async |t| {
        let image = &format!("private.example/{}", pushed(t, "open").await?);
        t.create(secret(PULLER.1)).await?;
        t.create(job("open", NODE, image).with("/spec/pullSecrets", json!(["registry"]))).await?;
        let done = over(t, "open").await?;
        ensure!(done.int("/status/succeeded") == 1, "{done:#}");
        let user = |name: &str| pod(name, vec![json!({ "name": "main", "image": image, "imagePullPolicy": "IfNotPresent" })]);
        t.start(user("without-secret")).await?;

        let verifying = "featureGates: {ContainerRestartRules: true, KubeletEnsureSecretPulledImages: true}\n\
            imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
            preloadedImagesVerificationAllowlist: [localhost/*, docker.io/*, docker.io/library/*, docker.io/kruise-rs/*]";
        with_kubelet(t, verifying, async || {
            t.create(user("refused")).await?;
            let waits = |o: &Value| {
                let reason = o.text("/status/containerStatuses/0/state/waiting/reason");
                ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
            };
            t.wait_for("Pod", "refused", "to be refused the image", PATIENCE, waits).await?;
            t.start(user("with-secret").with("/spec/imagePullSecrets", json!([{ "name": "registry" }]))).await?;
            Ok(())
        })
        .await
    })
    .await
}
