//! The webhook's certificates: changed under load, and expired.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, cmd, kubectl};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restoring};
use e2e::paths::SYSTEM;
use k8s_openapi::ByteString;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{CRR, WEBHOOK};

const SECRET: &str = "kruise-webhook-certs";
const NAME: &str = "kruise-webhook-service.kruise-system.svc";
const PORT: u16 = 9876;

/// One entry of the Secret, decoded; empty if it is not there.
async fn secret(t: &Test, key: &str) -> Result<String> {
    let template = format!("go-template={{{{with index .data \"{key}\"}}}}{{{{. | base64decode}}}}{{{{end}}}}");
    let answer = t.run(kubectl(&t.paths, ["-n", SYSTEM, "get", "secret", SECRET, "-o", &template])).await?;
    ensure!(answer.ok, "{}", answer.stderr);
    Ok(answer.stdout.trim().to_owned())
}

async fn patch_secret(t: &Test, patch: Value) -> Result<()> {
    t.api_in(SYSTEM, "Secret").patch(SECRET, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The certificate that a replica serves to somebody who trusts this CA and checks the name.
async fn served(t: &Test, replica: &Value, ca: &Path) -> Result<String> {
    let address = format!("{}:{PORT}", replica.text("/status/podIP"));
    let mut client = cmd("openssl", ["s_client", "-connect", &address, "-servername", NAME]);
    client.args(["-verify_return_error", "-verify_hostname", NAME, "-CAfile"]).arg(ca);
    let answer = t.run(client).await?;
    ensure!(answer.ok, "{address}: {}", answer.stderr);
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let from = answer.stdout.find(begin).context("a certificate")?;
    let to = answer.stdout.find(end).context("its end")?;
    Ok(format!("{}{end}", &answer.stdout[from..to]))
}

/// Waits until the Secret holds another certificate than `before` and every replica serves it.
async fn until_all_serve_another(t: &Test, dir: &Path, before: &str) -> Result<String> {
    poll("every replica to serve the new certificate", PATIENCE, async || {
        let (leaf, ca) = (secret(t, "tls.crt").await?, secret(t, "ca-cert.pem").await?);
        ensure!(!leaf.is_empty() && leaf != before, "no new certificate is there");
        let file = dir.join("current-ca.crt");
        fs::write(&file, &ca)?;
        for replica in t.node().replicas(WEBHOOK).await? {
            ensure!(served(t, &replica, &file).await? == leaf, "{} does not yet", replica.text("/metadata/name"));
        }
        Ok(())
    })
    .await?;
    secret(t, "tls.crt").await
}

/// So many calls may get no answer in time while a busy machine stands still, if they succeed when they are tried again. A
/// replica that lets calls hang when it goes makes more of them.
const MOST_LATE: usize = 4;

/// Whether a call has had no answer in time. What a certificate is to blame for, or a port at which nobody listens, is no such
/// failure.
fn is_late(error: &kube::Error) -> bool {
    let error = error.to_string();
    let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
    // Every failure of a webhook has the URL of the call with its `timeout`.
    has(&["deadline exceeded", "Timeout", "timed out"]) && !has(&["x509", "certificate", "tls", "TLS", "refused"])
}

/// Requests created in server-side dry runs, ten a second each by two clients, until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    late: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(t: &Test) -> Result<Self> {
        let mut load = Self {
            stop: Arc::default(),
            calls: Arc::default(),
            late: Arc::default(),
            failures: Arc::default(),
            tasks: Vec::new(),
        };
        let request = crr("dry", "web", &["main"]).with("/metadata/namespace", t.namespace.as_str());
        let request: DynamicObject = serde_json::from_value(request)?;
        for _ in 0..2 {
            let (api, request) = (t.api(CRR), request.clone());
            let (stop, calls, failures) = (load.stop.clone(), load.calls.clone(), load.failures.clone());
            let late = load.late.clone();
            load.tasks.push(tokio::spawn(async move {
                let dry = PostParams { dry_run: true, ..PostParams::default() };
                let begun = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let mut answer = api.create(&dry, &request).await;
                    while answer.as_ref().is_err_and(is_late) && late.fetch_add(1, Ordering::Relaxed) < MOST_LATE {
                        answer = api.create(&dry, &request).await;
                    }
                    if let Err(error) = answer
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(format!("after {:.1} s: {error}", begun.elapsed().as_secs_f64()));
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }));
        }
        Ok(load)
    }

    /// That none has failed.
    async fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await?;
        }
        let failures = self.failures.lock().map(|f| f.clone()).unwrap_or_default();
        let calls = self.calls.load(Ordering::Relaxed);
        ensure!(failures.is_empty(), "{} of {calls} calls failed: {failures:#?}", failures.len());
        println!("rotation: {calls} calls, {} of them late", self.late.load(Ordering::Relaxed));
        Ok(())
    }
}

/// Files of a test; they go with it.
struct Files(PathBuf);

impl Files {
    fn new(t: &Test) -> Result<Self> {
        let dir = std::env::temp_dir().join(&t.namespace);
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn certificates_change_under_load_without_a_failed_call() -> Result<()> {
    in_namespace("rotation", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let files = Files::new(t)?;
        let body = async {
            let (first, first_ca) = (secret(t, "tls.crt").await?, secret(t, "ca-cert.pem").await?);
            // The certificate alone.
            patch_secret(t, json!({ "data": { "tls.crt": null, "cert.pem": null } })).await?;
            let second = until_all_serve_another(t, &files.0, &first).await?;
            assert_eq!(secret(t, "ca-cert.pem").await?, first_ca, "its CA stays");
            // Everything.
            let keys = ["ca-cert.pem", "ca-key.pem", "tls.crt", "cert.pem", "tls.key", "key.pem"];
            let nothing: Value = keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
            patch_secret(t, json!({ "data": nothing })).await?;
            until_all_serve_another(t, &files.0, &second).await?;
            ensure!(secret(t, "ca-cert.pem").await? != first_ca, "its CA is another one");
            assert_eq!(secret(t, "ca-cert-previous.pem").await?, first_ca, "the one before stays trusted");
            // Connections that were open all the time prove nothing about the certificate: these are new ones.
            for replica in t.node().replicas(WEBHOOK).await? {
                let old = replica.text("/metadata/name");
                t.api_in(SYSTEM, "Pod").delete(old, &Default::default()).await?;
                poll("three others to be Ready", PATIENCE, async || {
                    let now = t.node().replicas(WEBHOOK).await?;
                    let ready =
                        now.iter().filter(|p| p.text("/metadata/name") != old && condition(p, "Ready") == "True");
                    let ready = ready.count();
                    ensure!(ready == 3, "{ready} are");
                    Ok(())
                })
                .await?;
            }
            Ok(())
        };
        let under_load = async {
            let load = Load::start(t)?;
            restoring(body, load.end()).await
        };
        t.node().with_replicas(WEBHOOK, 3, under_load).await
    })
    .await
}

/// A server with a certificate that has expired, at the webhook's port of this machine.
struct Expired(Child);

impl Drop for Expired {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a certificate of the installation's own CA that ended yesterday: `leaf.crt` and `leaf.key`.
async fn expired_certificate(t: &Test, dir: &Path) -> Result<()> {
    for (file, key) in [("ca.crt", "ca-cert.pem"), ("ca.key", "ca-key.pem")] {
        fs::write(dir.join(file), secret(t, key).await? + "\n")?;
    }
    fs::write(dir.join("leaf.ext"), format!("subjectAltName=DNS:{NAME}\nextendedKeyUsage=serverAuth\n"))?;
    let openssl = |args: &str| cmd("openssl", args.split(' ')).current_dir(dir).text().map(drop);
    openssl("ecparam -genkey -name prime256v1 -noout -out leaf.key")?;
    openssl("req -new -key leaf.key -subj /CN=webhook -out leaf.csr")?;
    openssl("x509 -req -in leaf.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days -1 -extfile leaf.ext -out leaf.crt")
}

#[tokio::test]
async fn an_expired_certificate_refuses_requests_clearly_and_mends_itself() -> Result<()> {
    in_namespace("expired", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let files = Files::new(t)?;
        expired_certificate(t, &files.0).await?;
        let leaf = fs::read_to_string(files.0.join("leaf.crt"))?;
        let address = t.get("Pod", "web").await?.text("/status/hostIP").to_owned();
        let slices = t.api_in(SYSTEM, "EndpointSlice");
        let body = async {
            t.node().scale(WEBHOOK, 0).await?;
            // As a webhook that could not renew for a year: the registration is right, what it serves is over.
            let mut server = cmd("openssl", ["s_server", "-quiet", "-cert", "leaf.crt", "-key", "leaf.key", "-accept"]);
            server.arg(PORT.to_string()).current_dir(&files.0);
            let _server = Expired(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
            t.create(json!({
                "kind": "EndpointSlice",
                "metadata": { "name": "expired", "namespace": SYSTEM,
                    "labels": { "kubernetes.io/service-name": "kruise-webhook-service" } },
                "addressType": "IPv4",
                "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
                "ports": [{ "name": "webhook", "port": PORT, "protocol": "TCP" }],
            }))
            .await?;
            poll("the API server to meet the certificate", PATIENCE, async || {
                let (code, message) = t.refused(crr("r", "web", &["main"])).await?;
                let clear = message.contains("mcontainerrecreaterequest.kb.io") && message.contains("has expired");
                ensure!(code == 500 && clear, "{code} {message}");
                Ok(())
            })
            .await?;
            let owner = json!([{ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "LaterKind", "name": "x",
                "uid": "00000000-0000-0000-0000-000000000001", "controller": true }]);
            t.start(pod("owned", vec![app("main")]).with("/metadata/ownerReferences", owner)).await?;
            t.start(pod("plain", vec![app("main")])).await?;
            t.patch("Pod", "plain", json!({ "metadata": { "labels": { "changed": "yes" } } })).await?;
            t.remove("Pod", "plain").await?;
            t.gone("Pod", "plain").await?;
            let key = fs::read_to_string(files.0.join("leaf.key"))?;
            let expired = json!({ "tls.crt": leaf, "cert.pem": leaf, "tls.key": key, "key.pem": key });
            patch_secret(t, json!({ "stringData": expired })).await
        };
        let undo = async {
            slices.delete("expired", &Default::default()).await.ok();
            t.node().scale(WEBHOOK, 2).await.map(drop)
        };
        restoring(body, undo).await?;
        poll("it to be renewed", PATIENCE, async || {
            ensure!(secret(t, "tls.crt").await? != leaf.trim(), "it is the one that has expired");
            Ok(())
        })
        .await?;
        t.webhook_answers().await?;
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await.map(drop)
    })
    .await
}

/// Makes a CA of somebody else's in `dir`: `others.crt` and `others.key`.
fn others_ca(dir: &Path) -> Result<()> {
    let openssl = |args: &str| cmd("openssl", args.split(' ')).current_dir(dir).text().map(drop);
    openssl("ecparam -genkey -name prime256v1 -noout -out others.key")?;
    openssl("req -x509 -new -key others.key -subj /CN=others -days 30 -out others.crt")
}

/// What somebody else's renewal puts into the Secret: a new certificate of that CA.
async fn renewed_by_others(t: &Test, dir: &Path) -> Result<String> {
    fs::write(dir.join("leaf.ext"), format!("subjectAltName=DNS:{NAME}\nextendedKeyUsage=serverAuth\n"))?;
    let openssl = |args: &str| cmd("openssl", args.split(' ')).current_dir(dir).text().map(drop);
    openssl("ecparam -genkey -name prime256v1 -noout -out leaf.key")?;
    openssl("req -new -key leaf.key -subj /CN=webhook -out leaf.csr")?;
    openssl(
        "x509 -req -in leaf.csr -CA others.crt -CAkey others.key -CAcreateserial -days 30 -extfile leaf.ext -out leaf.crt",
    )?;
    let text = |file: &str| fs::read_to_string(dir.join(file));
    let leaf = text("leaf.crt")?;
    let data = json!({ "tls.crt": leaf, "tls.key": text("leaf.key")?, "ca.crt": text("others.crt")? });
    patch_secret(t, json!({ "stringData": data })).await?;
    Ok(leaf.trim().to_owned())
}

async fn until_all_serve(t: &Test, leaf: &str, ca: &Path) -> Result<()> {
    poll("every replica to serve the certificate of others", PATIENCE, async || {
        for replica in t.node().replicas(WEBHOOK).await? {
            ensure!(served(t, &replica, ca).await? == leaf, "{} does not yet", replica.text("/metadata/name"));
        }
        Ok(())
    })
    .await
}

/// Writes the CA into the registration, as cert-manager does. The versions of both configurations.
async fn inject(t: &Test, ca: &str) -> Result<Vec<String>> {
    let bundle = serde_json::to_value(ByteString(ca.as_bytes().to_vec()))?;
    let mut versions = Vec::new();
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        for mut configuration in t.list(kind, "").await? {
            let name = configuration.text("/metadata/name").to_owned();
            let entries = configuration["webhooks"].as_array_mut().context("webhooks")?;
            let ours = |e: &Value| e.text("/clientConfig/service/namespace") == SYSTEM;
            if !entries.iter().any(ours) {
                continue;
            }
            entries.iter_mut().for_each(|entry| entry["clientConfig"]["caBundle"] = bundle.clone());
            let patched = t.patch(kind, &name, json!({ "webhooks": entries })).await?;
            versions.push(patched.text("/metadata/resourceVersion").to_owned());
        }
    }
    ensure!(versions.len() == 2, "{} configurations are registered", versions.len());
    Ok(versions)
}

/// The API server asks the webhook, and trusts what it serves.
async fn is_asked(t: &Test) -> Result<()> {
    let (_, message) = t.refused(crr("asked", "nobody", &["main"])).await?;
    ensure!(message.contains("is no Pod in namespace"), "{message}");
    Ok(())
}

/// Replaces the webhooks by ones with this template, with `between` while there are none.
async fn replaced(t: &Test, replicas: u32, template: Value, between: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    t.node().scale(WEBHOOK, 0).await?;
    let put = json!([{ "op": "replace", "path": "/spec/template", "value": template }]);
    let put = Patch::Json::<()>(serde_json::from_value(put)?);
    t.api_in(SYSTEM, "Deployment").patch(WEBHOOK, &PatchParams::default(), &put).await?;
    between().await?;
    t.node().scale(WEBHOOK, replicas).await.map(drop)
}

#[tokio::test]
async fn certificates_that_somebody_else_renews_are_served_and_nothing_is_written() -> Result<()> {
    in_namespace("external-certificates", async |t| {
        let files = Files::new(t)?;
        others_ca(&files.0)?;
        let (ca_file, ca) = (files.0.join("others.crt"), fs::read_to_string(files.0.join("others.crt"))?);
        let deployment = serde_json::to_value(t.api_in(SYSTEM, "Deployment").get(WEBHOOK).await?)?;
        let (before, replicas) = (deployment["spec"]["template"].clone(), deployment.int("/spec/replicas"));
        let replicas = u32::try_from(replicas)?;
        let old = serde_json::to_value(t.api_in(SYSTEM, "Secret").get(SECRET).await?)?["data"].clone();
        let mut template = before.clone();
        let args = template["spec"]["containers"][0]["args"].as_array_mut().context("args")?;
        args.push("--feature-gates=EnableExternalCerts=true".into());
        let body = async {
            let mut first = String::new();
            replaced(t, replicas, template, async || {
                first = renewed_by_others(t, &files.0).await?;
                Ok(())
            })
            .await?;
            until_all_serve(t, &first, &ca_file).await?;
            let versions = inject(t, &ca).await?;
            poll("the API server to trust the CA", PATIENCE, async || is_asked(t).await).await?;

            let second = renewed_by_others(t, &files.0).await?;
            assert_ne!(second, first);
            until_all_serve(t, &second, &ca_file).await?;
            is_asked(t).await?;
            // One that cannot be served takes nothing away.
            patch_secret(t, json!({ "stringData": { "tls.crt": "nonsense" } })).await?;
            is_asked(t).await?;
            until_all_serve(t, &second, &ca_file).await?;
            let put = t.api_in(SYSTEM, "Secret").get(SECRET).await?.metadata.resource_version;
            until_all_serve(t, &second, &ca_file).await?;
            let now = t.api_in(SYSTEM, "Secret").get(SECRET).await?.metadata.resource_version;
            assert_eq!(now, put, "nobody but this test writes the Secret");
            assert_eq!(inject(t, &ca).await?, versions, "nobody has written the registration");
            anyhow::Ok(())
        };
        let undo = async {
            replaced(t, replicas, before, async || {
                let mut data = old.clone();
                for key in ["tls.crt", "tls.key", "ca.crt"] {
                    if data.get(key).is_none() {
                        data[key] = Value::Null;
                    }
                }
                patch_secret(t, json!({ "data": data })).await
            })
            .await?;
            poll("the webhook to write its own registration again", PATIENCE, async || is_asked(t).await).await
        };
        restoring(body, undo).await
    })
    .await
}
