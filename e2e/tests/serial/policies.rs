//! What a stolen token can do: a daemon's reaches only the status of requests of its own node and one annotation of the
//! Pods there, a user's none of the fields we rely on.

use anyhow::{Context, Result, bail, ensure};
use e2e::cmd::{CommandExt, kubectl};
use e2e::images::remote;
use e2e::kit::{Build, Look, Test, app, crr, in_namespace, pod, restoring};
use e2e::paths::SYSTEM;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::{Value, json};

const ACCOUNT: &str = "kruise-daemon";
const OTHER_NODE: &str = "node-b";

/// A client that has nothing but this token.
pub(crate) async fn with_token(t: &Test, token: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(t.paths.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
    Ok(Client::try_from(config)?)
}

/// A token of the daemon's ServiceAccount, bound to a Pod as kubelet's are, or to nothing.
async fn token(t: &Test, bound_to: Option<&str>) -> Result<String> {
    token_of(t, ACCOUNT, bound_to).await
}

pub(crate) async fn token_of(t: &Test, account: &str, bound_to: Option<&str>) -> Result<String> {
    let mut args = vec!["-n", SYSTEM, "create", "token", account];
    if let Some(pod) = bound_to {
        args.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
    }
    let (paths, args) = (t.paths.clone(), args.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let text = tokio::task::spawn_blocking(move || kubectl(&paths, args).text()).await??;
    Ok(text.trim().to_owned())
}

fn requests(client: Client, namespace: &str, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kruise.io", version, "ContainerRecreateRequest");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk_with_plural(&kind, "containerrecreaterequests"))
}

/// The code and message of a write that must be refused.
fn refusal(result: kube::Result<impl std::fmt::Debug>) -> Result<(u16, String)> {
    match result {
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        other => bail!("not refused: {other:?}"),
    }
}

/// Takes away what a test has made of another node.
async fn no_other_node(t: &Test) -> Result<()> {
    let now = kube::api::DeleteParams::default().grace_period(0);
    t.api_in(SYSTEM, "Pod").delete("another-daemon", &now).await.ok();
    t.remove("NodePodProbe", OTHER_NODE).await?;
    t.remove("Node", OTHER_NODE).await
}

/// A Pod of the daemon's account on a node that does not exist as a machine.
async fn daemon_of_another_node(t: &Test) -> Result<Value> {
    t.create(json!({ "kind": "Node", "metadata": { "name": OTHER_NODE } })).await?;
    let other = pod("another-daemon", vec![app("daemon")])
        .with("/metadata/namespace", SYSTEM)
        .with("/spec/nodeName", OTHER_NODE)
        .with("/spec/serviceAccountName", ACCOUNT);
    t.create(other).await
}

#[tokio::test]
async fn a_daemons_token_writes_only_status_of_requests_of_its_own_node() -> Result<()> {
    in_namespace("own-node", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        let own_pod = t.node().daemon().await?.text("/metadata/name").to_owned();
        let own = with_token(t, &token(t, Some(&own_pod)).await?).await?;
        let unbound = with_token(t, &token(t, None).await?).await?;
        let body = async {
            let other_pod = daemon_of_another_node(t).await?;
            let other = with_token(t, &token(t, Some(other_pod.text("/metadata/name"))).await?).await?;
            let params = PatchParams::default();
            let note = |text: &str| Patch::Merge(json!({ "status": { "message": text } }));
            for version in ["v1alpha1", "v1beta1"] {
                let written =
                    requests(own.clone(), &t.namespace, version).patch_status("once", &params, &note(version)).await?;
                ensure!(written.data["status"]["message"] == version, "its own node is allowed: {written:?}");
                for (who, client) in [("another node", &other), ("no claim", &unbound)] {
                    let api = requests(client.clone(), &t.namespace, version);
                    let (code, message) = refusal(api.patch_status("once", &params, &note("stolen")).await)?;
                    ensure!(
                        code == 403 && message.contains("only report on requests of its own node"),
                        "{who}: {code} {message}"
                    );
                }
            }
            // Metadata and spec through the main resource: no right at all.
            let api = requests(own.clone(), &t.namespace, "v1alpha1");
            let label = Patch::Merge(json!({ "metadata": { "labels": { "crr.apps.kruise.io/node-name": "x" } } }));
            ensure!(refusal(api.patch("once", &params, &label).await)?.0 == 403, "metadata");
            // Through the status subresource they have no effect.
            let sneaky = json!({ "metadata": { "labels": { "crr.apps.kruise.io/node-name": OTHER_NODE } },
                "spec": { "podName": "other" }, "status": { "message": "" } });
            let after = api.patch_status("once", &params, &Patch::Merge(sneaky)).await?;
            assert_eq!(after.data["spec"]["podName"], "web");
            let node =
                after.metadata.labels.as_ref().and_then(|l| l.get("crr.apps.kruise.io/node-name")).context("label")?;
            assert_eq!(node, e2e::paths::NODE);
            Ok(())
        };
        restoring(body, no_other_node(t)).await
    })
    .await
}

#[tokio::test]
async fn a_daemons_token_has_no_right_on_secrets_or_on_pods_beyond_their_status() -> Result<()> {
    in_namespace("daemon-rights", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let own_pod = t.node().daemon().await?.text("/metadata/name").to_owned();
        let client = with_token(t, &token(t, Some(&own_pod)).await?).await?;
        let review = |verb: &str, group: &str, resource: &str, subresource: &str, namespace: &str| {
            json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace } } })
        };
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("authorization.k8s.io", "v1", "SelfSubjectAccessReview"));
        let api: Api<DynamicObject> = Api::all_with(client, &kind);
        for (allowed, verb, group, resource, subresource, namespace) in [
            (true, "watch", "", "pods", "", ""),
            (true, "patch", "apps.kruise.io", "containerrecreaterequests", "status", t.namespace.as_str()),
            (true, "patch", "apps.kruise.io", "nodepodprobes", "status", ""),
            (false, "patch", "apps.kruise.io", "nodepodprobes", "", ""),
            (false, "get", "", "secrets", "", SYSTEM),
            (false, "list", "", "secrets", "", ""),
            (false, "patch", "", "pods", "", t.namespace.as_str()),
            // one annotation of Pods on its own node, says a policy
            (true, "patch", "", "pods", "status", t.namespace.as_str()),
            (false, "update", "", "pods", "status", t.namespace.as_str()),
            (false, "delete", "", "pods", "", t.namespace.as_str()),
            (false, "create", "", "pods", "exec", t.namespace.as_str()),
            (false, "patch", "apps.kruise.io", "containerrecreaterequests", "", t.namespace.as_str()),
            (false, "create", "apps.kruise.io", "containerrecreaterequests", "", t.namespace.as_str()),
        ] {
            let question = serde_json::from_value(review(verb, group, resource, subresource, namespace))?;
            let answer = api.create(&PostParams::default(), &question).await?;
            assert_eq!(answer.data["status"]["allowed"], json!(allowed), "{verb} {group}/{resource}/{subresource}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_daemons_token_writes_one_annotation_of_the_pods_of_its_own_node() -> Result<()> {
    const OWN: &str = "apps.kruise.io/runtime-containers-meta";
    in_namespace("daemon-pods", async |t| {
        t.start(pod("web", vec![app("main")]).with("/metadata/annotations", json!({ "theirs": "1" }))).await?;
        let own_pod = t.node().daemon().await?.text("/metadata/name").to_owned();
        let own = with_token(t, &token(t, Some(&own_pod)).await?).await?;
        let unbound = with_token(t, &token(t, None).await?).await?;
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let params = PatchParams::default();
        let try_patch = async |client: &Client, patch: &Value| {
            let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), &t.namespace, &kind);
            pods.patch_status("web", &params, &Patch::Strategic(patch.clone())).await
        };
        let annotate = |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
        let body = async {
            let other_pod = daemon_of_another_node(t).await?;
            let other = with_token(t, &token(t, Some(other_pod.text("/metadata/name"))).await?).await?;
            for value in [json!("{}"), Value::Null, json!("{\"containers\":[]}")] {
                try_patch(&own, &annotate(OWN, value.clone())).await.with_context(|| value.to_string())?;
            }
            assert_eq!(t.get("Pod", "web").await?["metadata"]["annotations"][OWN], "{\"containers\":[]}");
            for (who, client) in [("another node", &other), ("no claim", &unbound)] {
                let (code, message) = refusal(try_patch(client, &annotate(OWN, json!("stolen"))).await)?;
                ensure!(
                    code == 403 && message.contains("only report on Pods of its own node"),
                    "{who}: {code} {message}"
                );
            }
            for (field, patch) in [
                ("annotations", annotate("theirs", json!("2"))),
                ("annotations", annotate("theirs", Value::Null)),
                ("annotations", annotate("new", json!("1"))),
                ("labels", json!({ "metadata": { "labels": { "app": "other" } } })),
                ("finalizers", json!({ "metadata": { "finalizers": ["x/y"] } })),
                ("status", json!({ "status": { "message": "stolen" } })),
                ("status", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })),
                ("status", json!({ "status": { "phase": "Failed" } })),
            ] {
                let (code, message) = refusal(try_patch(&own, &patch).await).with_context(|| patch.to_string())?;
                ensure!(code == 403 && message.contains(&format!("{field}: a daemon")), "{patch}: {code} {message}");
            }
            Ok(())
        };
        restoring(body, no_other_node(t)).await
    })
    .await
}

#[tokio::test]
async fn a_daemons_token_writes_only_status_of_the_probes_of_its_own_node() -> Result<()> {
    in_namespace("own-probes", async |t| {
        let own_pod = t.node().daemon().await?.text("/metadata/name").to_owned();
        let own = with_token(t, &token(t, Some(&own_pod)).await?).await?;
        let unbound = with_token(t, &token(t, None).await?).await?;
        let kind = GroupVersionKind::gvk("apps.kruise.io", "v1alpha1", "NodePodProbe");
        let kind = ApiResource::from_gvk_with_plural(&kind, "nodepodprobes");
        let body = async {
            t.create(json!({ "kind": "Node", "metadata": { "name": OTHER_NODE } })).await?;
            t.create(json!({ "kind": "NodePodProbe", "metadata": { "name": OTHER_NODE }, "spec": {} })).await?;
            let status = json!([{ "name": "p", "namespace": "a", "uid": "u", "probeStates": [] }]);
            let stolen = Patch::Merge(json!({ "status": { "podProbeStatuses": status } }));
            for (who, client) in [("another node", &own), ("no claim", &unbound)] {
                let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
                let (code, message) = refusal(api.patch_status(OTHER_NODE, &PatchParams::default(), &stolen).await)?;
                ensure!(
                    code == 403 && message.contains("only report on probes of its own node"),
                    "{who}: {code} {message}"
                );
            }
            Ok(())
        };
        restoring(body, no_other_node(t)).await
    })
    .await
}

#[tokio::test]
async fn fields_that_we_rely_on_cannot_be_changed_by_users() -> Result<()> {
    in_namespace("own-fields", async |t| {
        // The finalizer of somebody else keeps the request where it is; it must come off at the end.
        t.start(pod("web", vec![app("main")])).await?;
        t.create(crr("once", "web", &["main"]).with("/metadata/finalizers", json!(["example.com/test"]))).await?;
        t.succeeded("once").await?;
        let api = requests(t.client.clone(), &t.namespace, "v1beta1");
        for (field, change) in [
            ("crr.apps.kruise.io/pod-uid", json!({ "labels": { "crr.apps.kruise.io/pod-uid": "x" } })),
            ("crr.apps.kruise.io/node-name", json!({ "labels": { "crr.apps.kruise.io/node-name": null } })),
            ("crr.apps.kruise.io/active", json!({ "labels": { "crr.apps.kruise.io/active": "true" } })),
            ("type=virtual-kubelet", json!({ "labels": { "type": "virtual-kubelet" } })),
            (
                "crr.apps.kruise.io/unready-acquired",
                json!({ "annotations": { "crr.apps.kruise.io/unready-acquired": "2026-01-01T00:00:00Z" } }),
            ),
        ] {
            t.wait_for("ContainerRecreateRequest", "once", "to lose its active label", e2e::kit::PATIENCE, |o| {
                !o.has("/metadata/labels/crr.apps.kruise.io~1active")
            })
            .await?;
            let patch = Patch::Merge(json!({ "metadata": change }));
            let (code, message) = refusal(api.patch("once", &PatchParams::default(), &patch).await)?;
            ensure!(code == 403 && message.contains(field), "{field}: {code} {message}");
        }
        let harmless = Patch::Merge(json!({ "metadata": { "labels": { "team": "a" } } }));
        api.patch("once", &PatchParams::default(), &harmless).await?;
        t.remove("ContainerRecreateRequest", "once").await?;
        let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        api.patch("once", &PatchParams::default(), &release).await?;
        t.gone("ContainerRecreateRequest", "once").await
    })
    .await
}

#[tokio::test]
async fn a_managers_token_spells_images_of_pods_differently_and_changes_nothing_else_of_them() -> Result<()> {
    in_namespace("manager-pods", async |t| {
        let image = remote("pause");
        let web = pod("web", vec![json!({ "name": "main", "image": image })]);
        t.start(web.with("/metadata/annotations", json!({ "theirs": "1" }))).await?;
        let manager = with_token(t, &token_of(t, "kruise-manager", None).await?).await?;
        let kind = GroupVersionKind::gvk("", "v1", "Pod");
        let pods: Api<DynamicObject> =
            Api::namespaced_with(manager, &t.namespace, &ApiResource::from_gvk_with_plural(&kind, "pods"));
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        let try_patch = async |patch: Value| pods.patch("web", &dry, &Patch::Strategic(patch)).await;
        let with_image = |image: String| json!({ "spec": { "containers": [{ "name": "main", "image": image }] } });
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let bare = image.strip_suffix(":e2e").context("a tag")?;
        for good in [format!("{image}@{digest}"), format!("{bare}@{digest}"), format!("{bare}:e2e-r1@{digest}")] {
            try_patch(with_image(good.clone())).await.with_context(|| good)?;
        }
        try_patch(json!({ "metadata": { "annotations": { "kruise.rs/image-spellings": "{}" } } })).await?;
        let patches = [
            with_image(format!("{bare}:other")),
            with_image(format!("registry.example/team/evil@{digest}")),
            with_image(format!("evil.example/{image}@{digest}")),
            json!({ "metadata": { "labels": { "app": "other" } } }),
            json!({ "metadata": { "annotations": { "theirs": "2" } } }),
            json!({ "metadata": { "annotations": { "theirs": null } } }),
            json!({ "metadata": { "annotations": { "new": "1" } } }),
            json!({ "metadata": { "finalizers": ["x/y"] } }),
        ];
        for patch in patches {
            let (code, message) = refusal(try_patch(patch.clone()).await).with_context(|| patch.to_string())?;
            ensure!(code == 403 && message.contains("the manager"), "{patch}: {code} {message}");
        }
        Ok(())
    })
    .await
}
