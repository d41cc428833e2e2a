//! Users and stolen tokens get no further than their own rights: authors of PodProbeMarkers and NodeImages, owners of requests,
//! daemons that write Events, and jobs that pull images.

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, kubectl};
use e2e::kit::{Build, Look, PATIENCE, Test, app, crr, in_namespace, pod, poll, restoring};
use e2e::paths::{NODE, SYSTEM};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde::Deserialize as _;
use serde_json::{Value, json};

const MARKER: &str = "PodProbeMarker";
const CRR: &str = "ContainerRecreateRequest";
const AUTHOR_ROLE: &str = "kruise-podprobemarker-author";

async fn client(t: &Test, change: impl FnOnce(AuthInfo) -> AuthInfo) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(t.paths.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info = change(config.auth_info);
    Ok(Client::try_from(config)?)
}

/// Somebody without any right but those that the test grants.
async fn user(t: &Test, name: &str) -> Result<Client> {
    client(t, |admin| AuthInfo { impersonate: Some(name.to_owned()), ..admin }).await
}

/// A token of the daemons' account, bound to a Pod as kubelet's are, or to nothing.
async fn daemon(t: &Test, pod: Option<&str>) -> Result<Client> {
    let mut args = vec!["-n", SYSTEM, "create", "token", "kruise-daemon"];
    if let Some(pod) = pod {
        args.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
    }
    let (paths, args) = (t.paths.clone(), args.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let token = tokio::task::spawn_blocking(move || kubectl(&paths, args).text()).await??;
    client(t, |_| AuthInfo { token: Some(token.trim().to_owned().into()), ..AuthInfo::default() }).await
}

fn objects(client: &Client, t: &Test, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, version, kind);
    Api::namespaced_with(client.clone(), &t.namespace, &ApiResource::from_gvk_with_plural(&kind, plural))
}

fn markers(client: &Client, t: &Test) -> Api<DynamicObject> {
    objects(client, t, "apps.kruise.io", "v1alpha1", MARKER, "podprobemarkers")
}

/// Code and message of a refusal; None: it went through.
fn refusal<T>(result: kube::Result<T>) -> Result<Option<(u16, String)>> {
    match result {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message.clone()))),
        Err(error) => Err(error.into()),
    }
}

fn refused<T>(result: kube::Result<T>, why: &str) -> Result<()> {
    let (code, message) = refusal(result)?.with_context(|| format!("not refused: {why}"))?;
    ensure!(code == 403 && message.contains(why), "want {why:?}: {code} {message}");
    Ok(())
}

/// Grants rules to a user in the namespace.
async fn grant(t: &Test, name: &str, user: &str, rules: Value) -> Result<()> {
    t.create(json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name }, "rules": rules }))
        .await?;
    bind(t, name, user, "Role", name).await
}

async fn bind(t: &Test, name: &str, user: &str, kind: &str, role: &str) -> Result<()> {
    let group = "rbac.authorization.k8s.io";
    t.create(json!({ "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": group, "kind": kind, "name": role },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": user }] }))
        .await?;
    Ok(())
}

fn marker(name: &str, probe: Value, policy: Option<Value>) -> Value {
    let mut probe = json!({ "name": "idle", "containerName": "main", "podConditionType": "e2e/idle", "probe": probe });
    if let Some(policy) = policy {
        probe["markerPolicy"] = policy;
    }
    json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": MARKER, "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": "nobody" } }, "probes": [probe] } })
}

fn exec() -> Value {
    json!({ "exec": { "command": ["cat", "/etc/passwd"] } })
}

fn connect() -> Value {
    json!({ "tcpSocket": { "port": 80 } })
}

fn policy() -> Value {
    json!([{ "state": "Succeeded", "labels": { "app": "theirs" } }])
}

async fn creates(client: &Client, t: &Test, object: Value) -> kube::Result<DynamicObject> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    markers(client, t).create(&dry, &serde_json::from_value(object).map_err(kube::Error::SerdeError)?).await
}

const ON_MARKERS: &str = "podprobemarkers";

fn all_of_markers() -> Value {
    let verbs = ["get", "create", "update", "patch", "delete"];
    json!([{ "apiGroups": ["apps.kruise.io"], "resources": [ON_MARKERS], "verbs": verbs }])
}

#[tokio::test]
async fn the_author_of_a_probe_needs_its_rights_or_the_verb_probe() -> Result<()> {
    in_namespace("probe-author", async |t| {
        let author = user(t, "author").await?;
        grant(t, "author", "author", all_of_markers()).await?;
        poll("the author's rights", PATIENCE, async || {
            creates(&author, t, marker("a", connect(), None))
                .await
                .context("a probe that needs no other right")
                .map(drop)
        })
        .await?;
        refused(creates(&author, t, marker("a", exec(), None)).await, "create pods/exec")?;
        refused(creates(&author, t, marker("a", connect(), Some(policy()))).await, "patch pods")?;
        let noted = marker("a", connect(), None)
            .with("/metadata/annotations", json!({ "kruise.rs/probe-marks": "{\"labels\":[\"app\"]}" }));
        refused(creates(&author, t, noted).await, "kruise.rs/probe-marks is written by Kruise")?;

        let runs = json!([{ "apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"] }]);
        grant(t, "runs", "author", runs).await?;
        poll("the right to run commands", PATIENCE, async || {
            creates(&author, t, marker("a", exec(), None)).await.context("exec with create pods/exec").map(drop)
        })
        .await?;
        refused(creates(&author, t, marker("a", exec(), Some(policy()))).await, "patch pods")?;

        let patches = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["patch"] }]);
        grant(t, "patches", "author", patches).await?;
        poll("the right to patch Pods", PATIENCE, async || {
            creates(&author, t, marker("a", exec(), Some(policy()))).await.context("both with both").map(drop)
        })
        .await?;

        // As an operator gets it.
        let operator = user(t, "operator").await?;
        grant(t, "operator", "operator", all_of_markers()).await?;
        bind(t, "operator-probes", "operator", "ClusterRole", AUTHOR_ROLE).await?;
        poll("the verb", PATIENCE, async || {
            creates(&operator, t, marker("a", exec(), Some(policy()))).await.context("both with the verb").map(drop)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_stored_probe_and_its_finalizers_need_no_right_but_its_spec_does() -> Result<()> {
    in_namespace("probe-stored", async |t| {
        let author = user(t, "author").await?;
        grant(t, "author", "author", all_of_markers()).await?;
        t.create(marker("stored", exec(), Some(policy())).with("/metadata/finalizers", json!(["example.com/test"])))
            .await?;
        let api = markers(&author, t);
        let params = PatchParams::default();
        let patch = async |patch: Value| api.patch("stored", &params, &Patch::Merge(patch)).await;
        poll("the author's rights", PATIENCE, async || {
            patch(json!({ "metadata": { "labels": { "team": "a" } } })).await.context("a label").map(drop)
        })
        .await?;
        let mut probes = marker("stored", exec(), Some(policy()))["spec"]["probes"].clone();
        probes[0]["probe"]["periodSeconds"] = 7.into();
        refused(patch(json!({ "spec": { "probes": probes } })).await, "create pods/exec")?;
        let note = json!({ "kruise.rs/probe-marks": "{\"labels\":[\"app\"]}" });
        refused(patch(json!({ "metadata": { "annotations": note } })).await, "is written by Kruise")?;
        // What needs no right is taken, although it was more before.
        patch(json!({ "spec": marker("stored", connect(), None)["spec"] })).await?;
        patch(json!({ "metadata": { "finalizers": ["example.com/test", "example.com/other"] } })).await?;
        api.delete("stored", &Default::default()).await?;
        patch(json!({ "metadata": { "finalizers": null } })).await?;
        t.gone(MARKER, "stored").await
    })
    .await
}

#[tokio::test]
async fn keys_of_kubernetes_and_kruise_are_refused_in_probes() -> Result<()> {
    in_namespace("probe-keys", async |t| {
        for (field, key) in [
            ("labels", "pod-template-hash"),
            ("labels", "node.kubernetes.io/x"),
            ("annotations", "apps.kruise.io/x"),
            ("annotations", "kruise.rs/x"),
        ] {
            let policy = json!([{ "state": "Failed", field: { key: "x" } }]);
            let (code, message) = t.refused(marker("bad", connect(), Some(policy))).await?;
            let named = format!("markerPolicy[0].{field}[{key}]");
            ensure!(
                code == 400 && message.contains(&named) && message.contains("a key of your own"),
                "{code} {message}"
            );
        }
        for condition in ["DisruptionTarget", "apps.kruise.io/x"] {
            let bad = marker("bad", connect(), None).with("/spec/probes/0/podConditionType", condition);
            let (code, message) = t.refused(bad).await?;
            ensure!(code == 400 && message.contains("podConditionType"), "{code} {message}");
        }
        let cost = json!([{ "state": "Failed", "annotations": { "controller.kubernetes.io/pod-deletion-cost": "1" } }]);
        t.create(marker("good", connect(), Some(cost))).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_request_that_is_being_deleted_keeps_its_labels() -> Result<()> {
    in_namespace("deleting-request", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        t.create(crr("once", "web", &["main"]).with("/metadata/finalizers", json!(["example.com/test"]))).await?;
        t.succeeded("once").await?;
        t.remove(CRR, "once").await?;
        let api = objects(&t.client, t, "apps.kruise.io", "v1alpha1", CRR, "containerrecreaterequests");
        let patch = async |patch: Value| api.patch("once", &PatchParams::default(), &Patch::Merge(patch)).await;
        for label in ["crr.apps.kruise.io/pod-uid", "crr.apps.kruise.io/node-name"] {
            refused(patch(json!({ "metadata": { "labels": { label: "x" } } })).await, label)?;
            let both = json!({ "metadata": { "labels": { label: null }, "finalizers": null } });
            refused(patch(both).await, label)?;
        }
        patch(json!({ "metadata": { "finalizers": null } })).await?;
        t.gone(CRR, "once").await
    })
    .await
}

#[tokio::test]
async fn a_key_whose_request_does_not_exist_is_swept() -> Result<()> {
    in_namespace("swept", async |t| {
        let gate = json!([{ "conditionType": "KruisePodReady" }]);
        t.start(pod("web", vec![app("main")]).with("/spec/readinessGates", gate)).await?;
        let key = |agent: &str, name: &str| json!({ "userAgent": agent, "key": format!("{}/{name}", t.namespace) });
        let keys = json!([key(CRR, "gone"), key("Lifecycle", "theirs")]).to_string();
        let held =
            json!({ "status": { "conditions": [{ "type": "KruisePodReady", "status": "False", "message": keys }] } });
        t.api("Pod").patch_status("web", &PatchParams::default(), &Patch::Strategic(held)).await?;
        let message = |pod: &Value| {
            let conditions = pod.array("/status/conditions").iter();
            conditions
                .filter(|c| c.text("/type") == "KruisePodReady")
                .map(|c| c.text("/message").to_owned())
                .collect::<String>()
        };
        let left = json!([key("Lifecycle", "theirs")]).to_string();
        let sorted = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        t.wait_for("Pod", "web", "to lose the key of no request", PATIENCE, |p| sorted(&message(p)) == sorted(&left))
            .await?;
        t.wait_events("Pod", "web", |events| events.iter().any(|event| event.contains("UnreadyReleased"))).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_daemons_events_name_its_own_node() -> Result<()> {
    in_namespace("daemon-events", async |t| {
        let own_pod = t.node().daemon().await?.text("/metadata/name").to_owned();
        let (own, unbound) = (daemon(t, Some(&own_pod)).await?, daemon(t, None).await?);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let tell = async |client: &Client, host: &str, instance: &str, component: &str| {
            let event = json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": "x.1", "namespace": t.namespace },
                "involvedObject": { "kind": "Pod", "namespace": t.namespace, "name": "x" }, "reason": "Test", "message": "x", "type": "Normal",
                "source": { "component": component, "host": host }, "reportingComponent": component, "reportingInstance": instance });
            let event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
            objects(client, t, "", "v1", "Event", "events").create(&dry, &event).await
        };
        tell(&own, NODE, NODE, "kruise-daemon-crr").await?;
        let why = "name its own node";
        for (client, host, instance) in [
            (&own, "node-b", "node-b"),
            (&own, NODE, "node-b"),
            (&own, "node-b", NODE),
            (&own, "", ""),
            (&unbound, NODE, NODE),
            (&unbound, "", ""),
        ] {
            refused(tell(client, host, instance, "kruise-daemon-crr").await, why)?;
        }
        for component in ["kruise-manager", "kruise-daemon-other", "kruise-daemon"] {
            refused(tell(&own, NODE, NODE, component).await, "want one of kruise-daemon-crr")?;
        }
        Ok(())
    })
    .await
}

/// What is there of an image is for all of its tags: each change of it asks for the right to get its Secrets.
#[tokio::test]
async fn the_author_of_a_node_image_needs_the_right_to_get_its_secrets() -> Result<()> {
    in_namespace("image-author", async |t| {
        let role = json!([{ "apiGroups": ["apps.kruise.io"], "resources": ["nodeimages"], "verbs": ["get", "create", "patch"] }]);
        t.create(json!({ "kind": "ClusterRole", "metadata": { "name": t.namespace }, "rules": role })).await?;
        let bound = ["create", "clusterrolebinding", &t.namespace, "--clusterrole", &t.namespace, "--user=author"];
        t.kubectl(&bound).await?;
        let undo = async {
            t.kubectl(&["delete", "clusterrolebinding", &t.namespace]).await?;
            t.remove("ClusterRole", &t.namespace).await?;
            t.remove("NodeImage", &t.namespace).await
        };
        restoring(secrets_by_hand(t), undo).await
    })
    .await
}

async fn secrets_by_hand(t: &Test) -> Result<()> {
    let author = user(t, "author").await?;
    let kind = GroupVersionKind::gvk("apps.kruise.io", "v1beta1", "NodeImage");
    let api: Api<DynamicObject> = Api::all_with(author, &ApiResource::from_gvk_with_plural(&kind, "nodeimages"));
    let (dry, name) = (PatchParams { dry_run: true, ..PatchParams::default() }, t.namespace.as_str());
    let secret = |name: &str| json!({ "namespace": t.namespace, "name": name });
    let image = |secrets: &[&str], tag: &str| {
        let secrets: Vec<Value> = secrets.iter().map(|name| secret(name)).collect();
        json!({ "spec": { "images": { "private.example/app": { "pullSecrets": secrets, "tags": [{ "tag": tag }] } } } })
    };
    // For no node; the label keeps it.
    let labels = json!({ "apps.kruise.io/fake-nodeimage": "true" });
    t.create(
        image(&["stored"], "v1")
            .with("/kind", "NodeImage")
            .with("/metadata", json!({ "name": name, "labels": labels })),
    )
    .await?;
    // The manager's own writes are not asked for it.
    let written = |o: &Value| o.has("/spec/images/private.example~1app/tags/0/createdAt");
    t.wait_for("NodeImage", name, "to be completed by the manager", PATIENCE, written).await?;
    let patch = async |patch: Value| api.patch(name, &dry, &Patch::Merge(patch)).await;
    let other = json!({ "spec": { "images": { "registry.example/other": { "tags": [{ "tag": "v1" }] } } } });
    poll("the author's rights", PATIENCE, async || {
        patch(other.clone()).await.context("an image without Secrets").map(drop)
    })
    .await?;
    let refused_for = |name: &str| format!("require permission to get Secret {}/{name}", t.namespace);
    // Another tag gets what was stored; so would one that is no job's any more.
    refused(patch(image(&["stored"], "v2")).await, &refused_for("stored"))?;
    refused(patch(image(&["registry"], "v1")).await, &refused_for("registry"))?;
    let of_job = json!([secret("stored").with("/mode", "job"), secret("registry")]);
    let of_job = json!({ "spec": { "images": { "private.example/app": { "pullSecrets": of_job } } } });
    refused(patch(of_job).await, &refused_for("registry"))?;
    // Metadata, and less than before.
    patch(json!({ "metadata": { "labels": { "team": "a" } } })).await?;
    patch(json!({ "spec": { "images": { "private.example/app": { "pullSecrets": null } } } })).await?;
    patch(json!({ "spec": { "images": { "private.example/app": null } } })).await?;

    let gets =
        json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["registry"] }]);
    grant(t, "gets", "author", gets).await?;
    poll("the right to get one Secret", PATIENCE, async || {
        patch(image(&["registry"], "v2")).await.context("with the right").map(drop)
    })
    .await?;
    refused(patch(image(&["registry", "stored"], "v2")).await, &refused_for("stored"))?;
    let gets = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }]);
    grant(t, "gets-all", "author", gets).await?;
    let four = ["a", "b", "a", "c", "d", "d"];
    poll("the right to get all of them", PATIENCE, async || {
        patch(image(&four, "v2")).await.context("four Secrets, some of them twice").map(drop)
    })
    .await?;
    for (secrets, why) in [
        (json!(["a", "b", "c", "d", "e"].map(secret)), "want at most 4 different Secrets"),
        (json!([{ "namespace": t.namespace, "name": "a,b" }]), "want namespace and name of a Secret"),
        (json!([{ "name": "a" }]), "want namespace and name of a Secret"),
    ] {
        let change = json!({ "spec": { "images": { "private.example/app": { "pullSecrets": secrets } } } });
        let (code, message) = refusal(patch(change).await)?.with_context(|| format!("not refused: {why}"))?;
        ensure!(code == 422 && message.contains(why), "want {why:?}: {code} {message}");
    }
    Ok(())
}

/// The objects of the guide's allow-list.
fn allow_list(t: &Test) -> Result<[Value; 2]> {
    let page = std::fs::read_to_string(t.paths.repo.join("docs/images.md"))?;
    let blocks = page.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let block =
        blocks.into_iter().find(|block| block.contains("ValidatingAdmissionPolicyBinding")).context("no example")?;
    let objects = serde_yaml::Deserializer::from_str(block).map(Value::deserialize).collect::<Result<Vec<_>, _>>()?;
    objects.try_into().map_err(|objects| anyhow::anyhow!("want a policy and its binding: {objects:?}"))
}

#[tokio::test]
async fn the_allow_list_of_the_guide_refuses_other_images() -> Result<()> {
    in_namespace("allow-list", async |t| {
        let [policy, mut binding] = allow_list(t)?;
        let name = policy.text("/metadata/name").to_owned();
        binding["spec"]["matchResources"] =
            json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": t.namespace } } });
        // The name is the guide's: an earlier run that was ended may have left them.
        t.remove("ValidatingAdmissionPolicyBinding", &name).await?;
        t.remove("ValidatingAdmissionPolicy", &name).await?;
        let result = async {
            t.create(policy).await?;
            t.create(binding).await?;
            let nowhere = json!({ "names": ["no-such-node"] });
            let job = |image: &str| json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": { "name": "one" },
                "spec": { "image": image, "selector": nowhere, "completionPolicy": { "type": "Never" } } });
            let list = |image: &str| json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob", "metadata": { "name": "list" },
                "spec": { "images": ["registry.example/shop/web:v1", image], "selector": nowhere, "completionPolicy": { "type": "Never" } } });
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            let create = async |object: Value, plural: &str| {
                let kind = object.text("/kind").to_owned();
                let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
                objects(&t.client, t, "apps.kruise.io", "v1beta1", &kind, plural).create(&dry, &object).await
            };
            poll("the policy to be in force", PATIENCE, async || {
                let result = create(job("evil.example/miner:v1"), "imagepulljobs").await;
                let (code, message) = refusal(result)?.context("another image was allowed")?;
                ensure!(code >= 400 && message.contains("evil.example/miner:v1"), "{code} {message}");
                Ok(())
            })
            .await?;
            ensure!(refusal(create(list("evil.example/miner:v1"), "imagelistpulljobs").await)?.is_some(), "a list");
            ensure!(refusal(create(job("registry.example/shopping/x:v1"), "imagepulljobs").await)?.is_some(), "a prefix");
            create(job("registry.example/shop/web:v2"), "imagepulljobs").await?;
            create(list("registry.example/shop/api:v2"), "imagelistpulljobs").await?;
            anyhow::Ok(())
        }
        .await;
        t.remove("ValidatingAdmissionPolicyBinding", &name).await?;
        t.remove("ValidatingAdmissionPolicy", &name).await?;
        result
    })
    .await
}
