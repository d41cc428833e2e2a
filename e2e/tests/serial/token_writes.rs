//! What a stolen token can write: each line of the table in SECURITY.md is tried with a token of its account, what it admits
//! and what is next to it. Everything is a dry run, which passes through the same authorization and policies.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::images::remote;
use e2e::kit::{
    Build, Installed, Look, PATIENCE, Test, app, condition, crr, in_namespace, installed, pod, poll, restoring,
    workload,
};
use e2e::paths::SYSTEM;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::policies::{token_of, with_token};
use crate::resource_distribution;

const MANAGER: &str = "kruise-manager";
const WEBHOOK: &str = "kruise-webhook";
const KRUISE: &str = "apps.kruise.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const PATCHES: [&str; 4] = ["merge", "json", "strategic", "apply"];
/// An apply cannot say that something goes.
const WITH_NULL: [&str; 3] = ["merge", "json", "strategic"];
/// Lists are merged by keys in the others.
const WHOLE_LISTS: [&str; 2] = ["merge", "json"];

/// A kind: group, version, resource, kind.
type Kind = (&'static str, &'static str, &'static str, &'static str);
const POD: Kind = ("", "v1", "pods", "Pod");
const REVISION: Kind = ("apps", "v1", "controllerrevisions", "ControllerRevision");
const CLAIM: Kind = ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim");
const CONFIG_MAP: Kind = ("", "v1", "configmaps", "ConfigMap");
const SECRET: Kind = ("", "v1", "secrets", "Secret");
const TEMPLATE: Kind = ("", "v1", "podtemplates", "PodTemplate");
const CLONE_SET: Kind = (KRUISE, "v1alpha1", "clonesets", "CloneSet");
const ADVANCED: Kind = (KRUISE, "v1beta1", "statefulsets", "StatefulSet");
const STATEFUL_SET: Kind = ("apps", "v1", "statefulsets", "StatefulSet");
const DEPLOYMENT: Kind = ("apps", "v1", "deployments", "Deployment");
/// The kinds that a UnitedDeployment makes, and the names of their templates.
const SUBSETS: [(Kind, &str); 4] = [
    (CLONE_SET, "cloneSetTemplate"),
    (ADVANCED, "advancedStatefulSetTemplate"),
    (STATEFUL_SET, "statefulSetTemplate"),
    (DEPLOYMENT, "deploymentTemplate"),
];
const REQUEST: Kind = (KRUISE, "v1alpha1", "containerrecreaterequests", "ContainerRecreateRequest");
const JOB: Kind = (KRUISE, "v1alpha1", "imagepulljobs", "ImagePullJob");
const LIST_JOB: Kind = (KRUISE, "v1alpha1", "imagelistpulljobs", "ImageListPullJob");
const EPHEMERAL: Kind = (KRUISE, "v1alpha1", "ephemeraljobs", "EphemeralJob");
const BATCH_JOB: Kind = ("batch", "v1", "jobs", "Job");
/// Whether a Pod of a UnitedDeployment is kept although it finds no place.
const RESERVED: &str = "apps.kruise.io/united-deployment-reserved-pod";
/// The image that a sidecar names itself.
const EXITS: &str = "example.com/exit:1";
const BROADCAST: Kind = (KRUISE, "v1beta1", "broadcastjobs", "BroadcastJob");
const CRON: Kind = (KRUISE, "v1beta1", "advancedcronjobs", "AdvancedCronJob");
const MARKER: Kind = (KRUISE, "v1alpha1", "podprobemarkers", "PodProbeMarker");
const NODE_PROBES: Kind = (KRUISE, "v1alpha1", "nodepodprobes", "NodePodProbe");
const STATE: Kind = (KRUISE, "v1alpha1", "persistentpodstates", "PersistentPodState");
const MUTATING: Kind = (ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration");
const VALIDATING: Kind = (ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration");

enum Do {
    /// The object; its namespace may be named in it.
    Create(Value),
    /// Stored, not in a dry run.
    Store(Value),
    /// Members of the object as they are to be, and the types of patch that say so.
    Patch(&'static str, String, Value, &'static [&'static str]),
    Delete(String),
    Evict(String),
}

struct Case {
    account: &'static str,
    kind: Kind,
    what: &'static str,
    admitted: bool,
    action: Do,
}

impl Case {
    /// The line of the table.
    fn line(&self) -> (String, String, &'static str) {
        let (verb, sub) = match &self.action {
            Do::Create(_) | Do::Store(_) => ("create", ""),
            Do::Patch(sub, ..) => ("patch", *sub),
            Do::Delete(_) => ("delete", ""),
            Do::Evict(_) => ("create", "eviction"),
        };
        let group = if self.kind.0.is_empty() { String::new() } else { format!("{}/", self.kind.0) };
        let slash = if sub.is_empty() { "" } else { "/" };
        (self.account.to_owned(), format!("{group}{}{slash}{sub}", self.kind.2), verb)
    }
}

fn api(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    let (group, version, plural, name) = kind;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
    match (group, plural) {
        (ADMISSION, _) | (_, "nodepodprobes") => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// One patch of a type that makes members of an object what `change` says. None: the type cannot say it.
fn patch(type_: &str, kind: Kind, name: &str, live: &Value, change: &Value) -> Option<Patch<Value>> {
    let is_custom = [KRUISE].contains(&kind.0);
    let mut wanted = live.clone();
    merge(&mut wanted, change);
    Some(match type_ {
        "merge" => Patch::Merge(change.clone()),
        "json" => {
            let mut operations = Vec::new();
            for (key, change) in change.as_object().into_iter().flatten() {
                // The other members of the metadata are not to be said.
                let pointers = match change.as_object().filter(|_| key == "metadata") {
                    Some(members) => members.keys().map(|member| format!("/metadata/{member}")).collect(),
                    None => vec![format!("/{key}")],
                };
                for pointer in pointers {
                    let value = wanted.pointer(&pointer).cloned();
                    operations.push(json!({ "op": "add", "path": pointer, "value": value }));
                }
            }
            Patch::Json(serde_json::from_value(operations.into()).ok()?)
        }
        "strategic" if is_custom => return None,
        "strategic" => Patch::Strategic(change.clone()),
        _ => {
            let version = if kind.0.is_empty() { kind.1.to_owned() } else { format!("{}/{}", kind.0, kind.1) };
            let object = change.clone().with("/apiVersion", version).with("/kind", kind.3);
            Patch::Apply(object.with("/metadata/name", name))
        }
    })
}

/// RFC 7386.
fn merge(object: &mut Value, change: &Value) {
    let Some(change) = change.as_object() else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in change {
        match value {
            Value::Null => drop(object.as_object_mut().and_then(|members| members.remove(key))),
            value => merge(&mut object[key], value),
        }
    }
}

/// Tries a case in every way it can be said: what was said, and the answer.
async fn attempt(t: &Test, client: &Client, case: &Case) -> Result<Vec<(String, kube::Result<()>)>> {
    let post = PostParams { dry_run: !matches!(case.action, Do::Store(_)), field_manager: None };
    Ok(match &case.action {
        Do::Create(object) | Do::Store(object) => {
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(&t.namespace);
            let version = if case.kind.0.is_empty() { "v1".into() } else { format!("{}/{}", case.kind.0, case.kind.1) };
            let object = object.clone().with("/apiVersion", version).with("/kind", case.kind.3);
            let object = serde_json::from_value(object)?;
            vec![("create".into(), api(client, namespace, case.kind).create(&post, &object).await.map(drop))]
        }
        Do::Delete(name) => {
            let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
            let (namespace, name) = name.split_once('/').unwrap_or((&t.namespace, name));
            vec![("delete".into(), api(client, namespace, case.kind).delete(name, &params).await.map(drop))]
        }
        Do::Evict(name) => {
            let (namespace, name) = name.split_once('/').unwrap_or((&t.namespace, name));
            let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": name, "namespace": namespace }, "deleteOptions": { "dryRun": ["All"] } });
            let api = api(client, namespace, case.kind);
            let answer = api.create_subresource::<Value, Value>("eviction", name, &post, &eviction).await;
            vec![("evict".into(), answer.map(drop))]
        }
        Do::Patch(sub, name, change, types) => {
            let (namespace, name) = name.split_once('/').unwrap_or((&t.namespace, name));
            let live =
                serde_json::to_value(api(&t.client, namespace, case.kind).get(name).await.context(name.to_owned())?)?;
            let mut answers = Vec::new();
            for type_ in *types {
                let Some(patch) = patch(type_, case.kind, name, &live, change) else { continue };
                let apply = *type_ == "apply";
                let params = PatchParams {
                    dry_run: true,
                    force: apply,
                    field_manager: Some("test".into()),
                    ..PatchParams::default()
                };
                let api = api(client, namespace, case.kind);
                let answer = match *sub {
                    "" => api.patch(name, &params, &patch).await.map(drop),
                    sub => api.patch_subresource(sub, name, &params, &patch).await.map(drop),
                };
                answers.push(((*type_).to_owned(), answer));
            }
            answers
        }
    })
}

fn owner(set: &Value) -> Value {
    json!([{ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": set.text("/metadata/name"),
        "uid": set.text("/metadata/uid"), "controller": true, "blockOwnerDeletion": true }])
}

/// The conditions of an object with one of them as it is to be.
fn conditions(object: &Value, condition: Value) -> Value {
    let others = object.array("/status/conditions").iter().filter(|c| c["type"] != condition["type"]);
    json!({ "status": { "conditions": others.cloned().chain([condition.clone()]).collect::<Vec<_>>() } })
}

/// What is there for the manager to write to.
struct World {
    set: Value,
    /// A Pod of it.
    own: Value,
    /// A Pod of nobody.
    web: Value,
    /// One with a sidecar, of nobody.
    injected: Value,
    /// One whose container only looks like a sidecar.
    pretended: Value,
    revision: Value,
    /// A revision of our own namespace that nobody controls.
    orphan: Value,
    /// A Pod of our own namespace.
    system: String,
    image: String,
    node_probes: String,
    /// The workload of a subset, of each kind.
    subsets: Vec<Value>,
    /// An AdvancedCronJob, as the controller of Jobs.
    cron: Value,
}

/// A workload of each kind that a UnitedDeployment makes, and one of each kind that nobody controls.
async fn subsets(t: &Test) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (i, (kind, member)) in SUBSETS.into_iter().enumerate() {
        let name = format!("united-{i}");
        let plain = workload(kind.3, &name, 0, vec![app("main")]);
        let template = json!({ "metadata": { "labels": { "app": name } }, "spec": { "template": plain["spec"]["template"], "serviceName": name } });
        t.create(json!({ "kind": "UnitedDeployment", "metadata": { "name": name }, "spec": { "replicas": 0,
            "selector": { "matchLabels": { "app": name } }, "template": { member: template },
            "topology": { "subsets": [{ "name": "a" }] } } }))
            .await?;
        let version = format!("{}/{}", kind.0, kind.1);
        let plain = plain.with("/apiVersion", version).with("/metadata/name", format!("plain-{i}"));
        api(&t.client, &t.namespace, kind).create(&PostParams::default(), &serde_json::from_value(plain)?).await?;
        let of_subset = ListParams::default().labels(&format!("app={name},apps.kruise.io/subset-name=a"));
        let ready = |o: &Value| condition(o, "Ready") == "True";
        t.wait_for("UnitedDeployment", &name, "to be as its spec wants it", PATIENCE, ready).await?;
        let found = api(&t.client, &t.namespace, kind).list(&of_subset).await?.items;
        all.push(serde_json::to_value(found.first().context("the workload of a subset")?)?);
    }
    Ok(all)
}

fn batch_job(name: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name, "ownerReferences": owners },
        "spec": { "suspend": true, "template": { "spec": { "restartPolicy": "Never", "containers": [app("main")] } } } })
}

/// An AdvancedCronJob with a Job of it, a Job of nobody, and a BroadcastJob that goes on without Pods. Gives the first one
/// as a list of owners.
async fn jobs(t: &Test) -> Result<Value> {
    let template = json!({ "spec": { "restartPolicy": "Never", "nodeSelector": { "e2e/nowhere": "yes" }, "containers": [app("main")] } });
    let made = t
        .create(json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": CRON.3, "metadata": { "name": "cron" },
            "spec": { "schedule": "@daily", "paused": true, "template": { "jobTemplate": { "spec": { "template": template } } } } }))
        .await?;
    let cron = json!([{ "apiVersion": "apps.kruise.io/v1beta1", "kind": CRON.3, "name": "cron",
        "uid": made.text("/metadata/uid"), "controller": true }]);
    t.create(batch_job("of-cron", &cron)).await?;
    t.create(batch_job("of-nobody", &json!([]))).await?;
    t.create(json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": BROADCAST.3, "metadata": { "name": "sweep" },
        "spec": { "template": template, "completionPolicy": { "type": "Never" } } }))
        .await?;
    Ok(cron)
}

fn of_jobs(w: &World) -> Vec<Case> {
    let nobody = json!([]);
    let webhook = |what, admitted, action| Case { account: WEBHOOK, ..case(BATCH_JOB, what, admitted, action) };
    let p = |what, admitted, change| case(BROADCAST, what, admitted, Do::Patch("", "sweep".into(), change, &["merge"]));
    vec![
        case(BATCH_JOB, "of an AdvancedCronJob", true, Do::Create(batch_job("new", &w.cron))),
        case(BATCH_JOB, "of nobody", false, Do::Create(batch_job("new", &nobody))),
        case(BATCH_JOB, "of a CloneSet", false, Do::Create(batch_job("new", &owner(&w.set)))),
        case(BATCH_JOB, "of an AdvancedCronJob", true, Do::Delete("of-cron".into())),
        case(BATCH_JOB, "of nobody", false, Do::Delete("of-nobody".into())),
        webhook("in a dry run", true, Do::Create(batch_job("new", &nobody))),
        webhook("to be stored", false, Do::Store(batch_job("new", &nobody))),
        p("that it is paused", true, json!({ "spec": { "paused": true } })),
        p("how many Pods at a time", false, json!({ "spec": { "parallelism": 1 } })),
    ]
}

/// Workloads of subsets: those of UnitedDeployments, and no others.
fn of_subsets(w: &World) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (kind, _)) in SUBSETS.into_iter().enumerate() {
        let (ours, plain) = (&w.subsets[i], format!("plain-{i}"));
        let name = ours.text("/metadata/name").to_owned();
        let new = |owners: &Value| json!({ "metadata": { "name": "new", "ownerReferences": owners, "labels": ours["metadata"]["labels"] }, "spec": ours["spec"] });
        let owners = &ours["metadata"]["ownerReferences"];
        cases.push(case(kind, "of a UnitedDeployment", true, Do::Create(new(owners))));
        cases.push(case(kind, "of nobody", false, Do::Create(new(&json!([])))));
        let theirs = owner(&w.set);
        cases.push(case(kind, "of a CloneSet", false, Do::Create(new(&theirs))));
        let replicas = || json!({ "spec": { "replicas": 3 } });
        let merge = |name: &str, change| Do::Patch("", name.to_owned(), change, &["merge"]);
        cases.push(case(kind, "its replicas", true, merge(&name, replicas())));
        cases.push(case(kind, "the replicas of another one", false, merge(&plain, replicas())));
        cases.push(case(kind, "its owner", false, merge(&name, json!({ "metadata": { "ownerReferences": theirs } }))));
        let adoption = |owners: &Value| json!({ "metadata": { "ownerReferences": owners } });
        cases.push(case(kind, "adoption", true, merge(&plain, adoption(owners))));
        cases.push(case(kind, "adoption and more", false, merge(&plain, adoption(owners).with("/spec/replicas", 3))));
        cases.push(case(kind, "adoption by a CloneSet", false, merge(&plain, adoption(&theirs))));
        cases.push(case(kind, "of a UnitedDeployment", true, Do::Delete(name)));
        cases.push(case(kind, "another one", false, Do::Delete(plain)));
    }
    cases
}

async fn world(t: &Test) -> Result<World> {
    let (subsets, cron) = (subsets(t).await?, jobs(t).await?);
    t.create(workload("CloneSet", "set", 1, vec![app("main")])).await?;
    let available = |o: &Value| o.int("/status/availableReplicas") == 1;
    let set = t.wait_for("CloneSet", "set", "to be available", PATIENCE, available).await?;
    let image = remote("pause");
    let web = pod("web", vec![json!({ "name": "main", "image": image })]);
    let web = t.start(web.with("/metadata/annotations", json!({ "theirs": "1" }))).await?;
    let with_sidecar = |name: &str| {
        let agent = json!({ "name": "agent", "image": image, "env": [{ "name": "IS_INJECTED", "value": "true" }] });
        pod(name, vec![json!({ "name": "main", "image": image }), agent])
    };
    let noted = json!({ "kruise.io/sidecarset-injected-list": "logs" });
    let mesh = json!([{ "name": "mesh", "image": image, "restartPolicy": "Always",
        "env": [{ "name": "IS_INJECTED", "value": "true" }] }]);
    let with_sidecar = |name: &str| with_sidecar(name).with("/spec/initContainers", mesh.clone());
    let injected = t.start(with_sidecar("injected").with("/metadata/annotations", noted)).await?;
    let pretended = t.start(with_sidecar("pretended")).await?;
    for (name, says, policy) in
        [("ends", "True", "Never"), ("ends-not", "false", "Never"), ("ends-never", "true", "Always")]
    {
        let env = json!([{ "name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": says }]);
        let sidecar = json!({ "name": "main", "image": image, "env": env });
        t.start(pod(name, vec![sidecar]).with("/spec/restartPolicy", policy)).await?;
    }
    let exits = json!([{ "name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE", "value": EXITS }]);
    t.start(pod("swaps", vec![json!({ "name": "main", "image": image, "env": exits })])).await?;
    let set_pod = t.list("Pod", "app=set").await?.remove(0);
    let revision = serde_json::to_value(
        api(&t.client, &t.namespace, REVISION)
            .list(&ListParams::default())
            .await?
            .items
            .first()
            .context("a revision")?,
    )?;
    let claim = |name: &str| {
        json!({ "metadata": { "name": name, "labels": { "apps.kruise.io/cloneset-instance-id": "x" } }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": { "requests": { "storage": "1Gi" } } } })
    };
    let namespace = t.kubectl(&["get", "namespace", &t.namespace, "-o", "jsonpath={.metadata.uid}"]).await?;
    let pod_owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": web.text("/metadata/uid") }]);
    for (kind, object) in [
        (CLAIM, claim("free")),
        (CLAIM, claim("theirs").with("/metadata/labels", json!({})).with("/metadata/ownerReferences", owner(&set))),
        (CLAIM, claim("owned").with("/metadata/ownerReferences", owner(&set))),
        (CLAIM, claim("data-db-0").with("/metadata/labels", json!({}))),
        (CONFIG_MAP, json!({ "metadata": { "name": "web-barrier", "ownerReferences": pod_owner } })),
        (CONFIG_MAP, json!({ "metadata": { "name": "theirs-barrier" } })),
        (REVISION, json!({ "metadata": { "name": "theirs" }, "revision": 1, "data": {} })),
        (SECRET, copy(&distributor("d"))),
        (SECRET, copy(&json!([])).with("/metadata/name", "mine")),
        (CONFIG_MAP, copy(&distributor("d"))),
        (CONFIG_MAP, copy(&json!([])).with("/metadata/name", "mine")),
        // Of no node; it goes with the namespace.
        (
            NODE_PROBES,
            json!({ "metadata": { "name": t.namespace, "ownerReferences": [{ "apiVersion": "v1", "kind": "Namespace",
                "name": t.namespace, "uid": namespace.trim() }] }, "spec": { "podProbes": [] } }),
        ),
        (
            JOB,
            json!({ "metadata": { "name": "job" }, "spec": { "image": "example.com/none:1",
            "selector": { "names": ["no-such-node"] }, "completionPolicy": { "type": "Always" } } }),
        ),
        (
            LIST_JOB,
            json!({ "metadata": { "name": "jobs" }, "spec": { "images": ["example.com/none:1"],
            "selector": { "names": ["no-such-node"] }, "completionPolicy": { "type": "Always" } } }),
        ),
        (
            EPHEMERAL,
            json!({ "metadata": { "name": "look" }, "spec": { "selector": { "matchLabels": { "app": "none" } },
            "template": { "ephemeralContainers": [{ "name": "look", "image": "example.com/none:1" }] } } }),
        ),
        (
            MARKER,
            json!({ "metadata": { "name": "marker" }, "spec": { "selector": { "matchLabels": { "app": "none" } },
            "probes": [{ "name": "p", "containerName": "main", "podConditionType": "example.com/p",
                "probe": { "tcpSocket": { "port": 1 } } }] } }),
        ),
    ] {
        let version = if kind.0.is_empty() { kind.1.to_owned() } else { format!("{}/{}", kind.0, kind.1) };
        let object = object.with("/apiVersion", version).with("/kind", kind.3);
        let object: DynamicObject = serde_json::from_value(object)?;
        api(&t.client, &t.namespace, kind).create(&PostParams::default(), &object).await.context(kind.3)?;
    }
    for pod in stuck_pods() {
        t.create(pod).await?;
    }
    t.start(of_subset("running", "apps/v9", "StatefulSet", json!({}))).await?;
    // The manager makes a PersistentPodState of its name.
    let asks = json!({ "kruise.io/auto-generate-persistent-pod-state": "true",
        "kruise.io/required-persistent-topology": "kubernetes.io/hostname" });
    t.create(workload("StatefulSet", "kept", 0, vec![app("main")]).with("/metadata/annotations", asks)).await?;
    t.wait_for(STATE.3, "kept", "to be made", PATIENCE, |_| true).await?;
    t.create(state("mine", "another", &json!([]))).await?;
    // It goes with the namespace, too.
    let of_namespace =
        json!([{ "apiVersion": "v1", "kind": "Namespace", "name": t.namespace, "uid": namespace.trim() }]);
    let orphan = json!({ "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {},
        "metadata": { "name": format!("orphan-{}", t.namespace), "ownerReferences": of_namespace } });
    let orphan: DynamicObject = serde_json::from_value(orphan)?;
    let orphan = api(&t.client, SYSTEM, REVISION).create(&PostParams::default(), &orphan).await.context("orphan")?;
    t.create(crr("once", "web", &["main"])).await?;
    t.succeeded("once").await?;
    let web = t.ready("web").await.unwrap_or(web);
    let system = t.list_in(SYSTEM, "Pod", "control-plane=webhook").await?.remove(0).text("/metadata/name").to_owned();
    let own = t.ready(set_pod.text("/metadata/name")).await?;
    let orphan = serde_json::to_value(orphan)?;
    Ok(World {
        set,
        own,
        web,
        injected,
        pretended,
        revision,
        orphan,
        system,
        image,
        node_probes: t.namespace.clone(),
        subsets,
        cron,
    })
}

/// A PersistentPodState for a StatefulSet.
fn state(name: &str, target: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": STATE.3,
        "metadata": { "name": name, "ownerReferences": owners },
        "spec": { "targetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": target },
            "requiredPersistentTopology": { "nodeTopologyKeys": ["kubernetes.io/hostname"] } } })
}

fn of_states() -> Vec<Case> {
    let owners = |version: &str, kind: &str, name: &str, controls: bool| json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": controls }]);
    let of_set = |name: &str| owners("apps/v1", "StatefulSet", name, true);
    let new = |what, admitted, object| case(STATE, what, admitted, Do::Create(object));
    let p = |what, admitted, name: &str, change| {
        case(STATE, what, admitted, Do::Patch("", name.to_owned(), change, &WHOLE_LISTS))
    };
    let topology = || json!({ "spec": { "requiredPersistentTopology": { "nodeTopologyKeys": ["zone"] } } });
    let ours = state("new", "new", &owners("apps.kruise.io/v1beta1", "StatefulSet", "new", true))
        .with("/spec/targetRef/apiVersion", "apps.kruise.io/v1beta1");
    vec![
        new("of its StatefulSet", true, state("new", "new", &of_set("new"))),
        new("of its Advanced StatefulSet", true, ours),
        new("of nobody", false, state("new", "new", &json!([]))),
        new("of another name", false, state("new", "other", &of_set("other"))),
        new("for another StatefulSet", false, state("new", "other", &of_set("new"))),
        new("of another group", false, state("new", "new", &owners("example.com/v1", "StatefulSet", "new", true))),
        new("of another kind", false, state("new", "new", &owners("apps/v1", "Deployment", "new", true))),
        new("not its controller", false, state("new", "new", &owners("apps/v1", "StatefulSet", "new", false))),
        case(STATE, "of its StatefulSet", true, Do::Delete("kept".into())),
        case(STATE, "of a user", false, Do::Delete("mine".into())),
        p("the spec of one it has made", true, "kept", topology()),
        p("the spec of a user's", false, "mine", topology()),
        p("a label", false, "kept", json!({ "metadata": { "labels": { "any": "1" } } })),
        p("an owner", false, "kept", json!({ "metadata": { "ownerReferences": [] } })),
        p("a finalizer", false, "kept", json!({ "metadata": { "finalizers": ["example.com/x"] } })),
        p("an owner of a user's", false, "mine", json!({ "metadata": { "ownerReferences": of_set("mine") } })),
    ]
}

/// The owner reference of a copy. The garbage collector leaves alone what is owned by a version that is not served.
fn distributor(name: &str) -> Value {
    json!([{ "apiVersion": "apps.kruise.io/v9", "kind": "ResourceDistribution", "name": name, "uid": "u", "controller": true }])
}

/// A Secret or ConfigMap on which somebody has put a label.
fn copy(owners: &Value) -> Value {
    json!({ "metadata": { "name": "copy", "ownerReferences": owners, "labels": { "theirs": "1" } }, "data": { "k": "eA==" } })
}

/// Copies of ResourceDistributions, which the component lets the manager write.
fn of_copies(w: &World) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [SECRET, CONFIG_MAP] {
        let new = |owners: &Value| copy(owners).with("/metadata/name", "new");
        let create = |what, admitted, object| case(kind, what, admitted, Do::Create(object));
        let p = |what, admitted, name: &str, change, types: &'static [&'static str]| {
            case(kind, what, admitted, Do::Patch("", name.to_owned(), change, types))
        };
        let data = || json!({ "data": { "k": "eQ==" } });
        let owners = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
        let foreign = distributor("d").with("/0/apiVersion", "example.com/v1");
        let mut both = distributor("d").as_array().cloned().unwrap_or_default();
        both.push(json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": w.web.text("/metadata/uid") }));
        cases.extend([
            create("of a ResourceDistribution", true, new(&distributor("d"))),
            create(
                "of a ResourceDistribution in kube-system",
                true,
                new(&distributor("d")).with("/metadata/namespace", "kube-system"),
            ),
            create(
                "of a ResourceDistribution in our namespace",
                false,
                new(&distributor("d")).with("/metadata/namespace", SYSTEM),
            ),
            create("of nobody", false, new(&json!([]))),
            create("of another group", false, new(&foreign)),
            create("of another kind", false, new(&distributor("d").with("/0/kind", "CloneSet"))),
            create("not its controller", false, new(&distributor("d").with("/0/controller", false))),
            p("the content of a copy", true, "copy", data(), &PATCHES),
            p("the content of another one", false, "mine", data(), &PATCHES),
            p("a label of a copy", true, "copy", json!({ "metadata": { "labels": { "any": "1" } } }), &PATCHES),
            p("a label of others", false, "copy", json!({ "metadata": { "labels": { "theirs": null } } }), &WITH_NULL),
            p("adoption", false, "mine", owners(distributor("d")), &WHOLE_LISTS),
            p("release", false, "copy", owners(json!([])), &WHOLE_LISTS),
            p("another ResourceDistribution", false, "copy", owners(distributor("e")), &WHOLE_LISTS),
            p("one made again", true, "copy", owners(distributor("d").with("/0/uid", "v")), &WHOLE_LISTS),
            p("another owner", false, "copy", owners(both.into()), &WHOLE_LISTS),
            case(kind, "a copy", true, Do::Delete("copy".into())),
            case(kind, "another one", false, Do::Delete("mine".into())),
        ]);
    }
    for type_ in ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"] {
        let account = json!({ "kubernetes.io/service-account.name": "default" });
        let token = copy(&distributor("d")).with("/metadata/name", "new").with("/metadata/annotations", account);
        cases.push(case(SECRET, "one that makes a token", false, Do::Create(token.with("/type", type_))));
    }
    let label = || json!({ "metadata": { "labels": { "any": "1" } } });
    for (what, admitted, name) in
        [("its certificates", true, "kruise-pull-secrets-certs"), ("the webhook's", false, "kruise-webhook-certs")]
    {
        cases.push(case(SECRET, what, admitted, Do::Patch("", format!("{SYSTEM}/{name}"), label(), &PATCHES)));
    }
    cases
}

/// A Pod with the labels of a subset. The garbage collector leaves alone what is owned by a version that is not served.
fn of_subset(name: &str, version: &str, kind: &str, labels: Value) -> Value {
    let owner = json!([{ "apiVersion": version, "kind": kind, "name": "db", "uid": "u", "controller": true }]);
    let mut pod = pod(name, vec![app("main")]).with("/metadata/ownerReferences", owner);
    let all = json!({ "apps.kruise.io/subset-name": "a", "apps.kruise.io/controller-revision-hash": "web-1" });
    for (key, value) in [all, labels].iter().flat_map(|all| all.as_object().into_iter().flatten()) {
        pod["metadata"]["labels"][key] = value.clone();
    }
    pod["metadata"]["labels"].as_object_mut().into_iter().for_each(|all| all.retain(|_, value| !value.is_null()));
    pod
}

/// Pods that are not Ready, because they find no node.
fn stuck_pods() -> Vec<Value> {
    let nowhere = |pod: Value| pod.with("/spec/nodeSelector", json!({ "e2e/nowhere": "yes" }));
    let all = [
        of_subset("stuck", "apps/v9", "StatefulSet", json!({})),
        of_subset("stuck-set", "apps/v9", "ReplicaSet", json!({})),
        of_subset("stuck-group", "example.com/v9", "StatefulSet", json!({})),
        of_subset("stuck-subset", "apps/v9", "StatefulSet", json!({ "apps.kruise.io/subset-name": null })),
        of_subset(
            "stuck-revision",
            "apps/v9",
            "StatefulSet",
            json!({ "apps.kruise.io/controller-revision-hash": null }),
        ),
    ];
    all.into_iter().map(nowhere).collect()
}

/// Deletions of Pods that hold up a roll-out: of a built-in StatefulSet, of a subset, and not Ready.
fn of_stuck() -> Vec<Case> {
    let delete = |what, admitted, name: &str| case(POD, what, admitted, Do::Delete(name.to_owned()));
    vec![
        delete("of a subset, not Ready", true, "stuck"),
        delete("of a subset, Ready", false, "running"),
        delete("of a ReplicaSet", false, "stuck-set"),
        delete("of a StatefulSet of another group", false, "stuck-group"),
        delete("of no subset", false, "stuck-subset"),
        delete("of no revision of a UnitedDeployment", false, "stuck-revision"),
    ]
}

fn case(kind: Kind, what: &'static str, admitted: bool, action: Do) -> Case {
    Case { account: MANAGER, kind, what, admitted, action }
}

fn of_pods(w: &World) -> Vec<Case> {
    let own = w.own.text("/metadata/name").to_owned();
    let web = || "web".to_owned();
    let new = |name: &str| pod(name, vec![app("main")]);
    let of_set = |name: &str| new(name).with("/metadata/ownerReferences", owner(&w.set));
    let with_image = |image: String| {
        let mut containers = w.web["spec"]["containers"].clone();
        containers[0]["image"] = image.into();
        json!({ "spec": { "containers": containers } })
    };
    let digest = format!("@sha256:{}", "0123456789abcdef".repeat(4));
    let meta = |field: &str, key: &str, value: &str| json!({ "metadata": { field: { key: value } } });
    let p = |what, admitted, name: String, change| case(POD, what, admitted, Do::Patch("", name, change, &PATCHES));
    let lists =
        |what, admitted, name: String, change| case(POD, what, admitted, Do::Patch("", name, change, &WHOLE_LISTS));
    let e = |what, admitted, name: String, env: Value| {
        let container = json!([{ "name": "e", "image": "example.com/none:1", "env": env }]);
        let change = json!({ "spec": { "ephemeralContainers": container } });
        case(POD, what, admitted, Do::Patch("ephemeralcontainers", name, change, &["merge", "strategic"]))
    };
    let trial = |name: &str| new(name).with("/metadata/annotations", json!({ "kruise.rs/trial": "true" }));
    let foreign = of_set("foreign").with("/metadata/ownerReferences/0/apiVersion", "example.com/v1");
    let of_subset = |label: &str| {
        let note = json!({ "apps.kruise.io/matched-workloadspread": "{}" });
        json!({ "metadata": { "annotations": note, "labels": { label: "a" } } })
    };
    let adopted = json!({ "metadata": { "ownerReferences": owner(&w.set), "labels": { "apps.kruise.io/cloneset-instance-id": "x" } } });
    let swap = |name: &str, to: &str| {
        let change = json!({ "spec": { "containers": [{ "name": "main", "image": to }] } });
        Do::Patch("", name.to_owned(), change, &["strategic"])
    };
    vec![
        case(POD, "of a CloneSet", true, Do::Create(of_set("new"))),
        case(
            POD,
            "of any version",
            true,
            Do::Create(of_set("new").with("/metadata/ownerReferences/0/apiVersion", "apps.kruise.io/v9")),
        ),
        case(POD, "in kube-system", true, Do::Create(of_set("new").with("/metadata/namespace", "kube-system"))),
        case(POD, "of nobody", false, Do::Create(new("new"))),
        case(POD, "of another group", false, Do::Create(foreign)),
        case(
            POD,
            "of another kind",
            false,
            Do::Create(of_set("new").with("/metadata/ownerReferences/0/kind", "ImagePullJob")),
        ),
        case(
            POD,
            "not its controller",
            false,
            Do::Create(of_set("new").with("/metadata/ownerReferences/0/controller", false)),
        ),
        case(POD, "in our namespace", false, Do::Create(of_set("new").with("/metadata/namespace", SYSTEM))),
        case(POD, "tried", true, Do::Create(trial("new"))),
        case(POD, "tried and stored", false, Do::Store(trial("new"))),
        case(POD, "tried in our namespace", false, Do::Create(trial("new").with("/metadata/namespace", SYSTEM))),
        case(POD, "the image that ends a sidecar", true, swap("swaps", EXITS)),
        case(POD, "an image that the variable does not name", false, swap("swaps", "example.com/exit:2")),
        case(POD, "an image that no variable names", false, swap("ends", EXITS)),
        case(POD, "of nobody", true, Do::Evict(web())),
        case(POD, "in our namespace", false, Do::Evict(format!("{SYSTEM}/{}", w.system))),
        case(POD, "of a CloneSet", true, Do::Delete(own.clone())),
        case(POD, "of nobody", false, Do::Delete(web())),
        case(POD, "in our namespace", false, Do::Delete(format!("{SYSTEM}/{}", w.system))),
        p("its label", true, own.clone(), meta("labels", "any", "1")),
        p("its annotation", true, own.clone(), meta("annotations", "any", "1")),
        lists("release", true, own.clone(), json!({ "metadata": { "ownerReferences": [] } })),
        lists(
            "release and more",
            false,
            own.clone(),
            json!({ "metadata": { "ownerReferences": [], "labels": { "x": "1" } } }),
        ),
        p("adoption", true, web(), adopted.clone()),
        p("adoption and more", false, web(), adopted.with("/metadata/annotations", json!({ "x": "1" }))),
        p("another spelling", true, web(), with_image(format!("{}{digest}", w.image))),
        p("spellings", true, web(), meta("annotations", "kruise.rs/image-spellings", "{}")),
        p("budget", true, web(), meta("annotations", "kruise.io/related-pub", "b")),
        p("deletion cost", true, web(), meta("annotations", "controller.kubernetes.io/pod-deletion-cost", "100")),
        p("subset", true, web(), meta("annotations", "apps.kruise.io/matched-workloadspread", "{}")),
        p("subset and its labels", true, web(), of_subset("example.com/zone")),
        p("subset and a label of the system", false, web(), of_subset("kubernetes.io/zone")),
        p("subset and its revision", false, web(), of_subset("pod-template-hash")),
        p("reserved", true, web(), meta("labels", RESERVED, "true")),
        p(
            "reserved and another label",
            false,
            web(),
            meta("labels", RESERVED, "true").with("/metadata/labels/app", "other"),
        ),
        p("reserved, in our namespace", false, format!("{SYSTEM}/{}", w.system), meta("labels", RESERVED, "true")),
        p("two digests", false, web(), with_image(format!("{}@evil.example/x{digest}", w.image))),
        p("another image", false, web(), with_image(format!("evil.example/{}{digest}", w.image))),
        p("another tag", false, web(), with_image(w.image.replace(":e2e", ":other"))),
        p("a label", false, web(), meta("labels", "app", "other")),
        p("an annotation", false, web(), meta("annotations", "theirs", "2")),
        p("one of ours that is not listed", false, web(), meta("annotations", "kruise.rs/other", "2")),
        p("a finalizer", false, web(), json!({ "metadata": { "finalizers": ["example.com/x"] } })),
        p("a deadline", false, web(), json!({ "spec": { "activeDeadlineSeconds": 1 } })),
        p(
            "in our namespace",
            false,
            format!("{SYSTEM}/{}", w.system),
            meta("annotations", "kruise.io/related-pub", "b"),
        ),
        e("of a job", true, web(), json!([{ "name": "KRUISE_EJOB_ID", "value": "u" }])),
        e("of no job", false, web(), json!([])),
        e("without a job's UID", false, web(), json!([{ "name": "KRUISE_EJOB_ID", "value": "" }])),
        e(
            "in our namespace",
            false,
            format!("{SYSTEM}/{}", w.system),
            json!([{ "name": "KRUISE_EJOB_ID", "value": "u" }]),
        ),
        case(POD, "of a CloneSet", true, Do::Patch("resize", own, resources(&w.own), &["strategic"])),
        case(POD, "of nobody", false, Do::Patch("resize", web(), resources(&w.web), &["strategic"])),
    ]
}

/// What the update of a SidecarSet changes, and what is next to it.
fn of_sidecars(w: &World) -> Vec<Case> {
    let p = |what, admitted, name: &str, change| {
        case(POD, what, admitted, Do::Patch("", name.to_owned(), change, &PATCHES))
    };
    let with_image_in = |list: &str, pod: &Value, container: &str| {
        let mut containers = pod["spec"][list].clone();
        for found in containers.as_array_mut().into_iter().flatten().filter(|found| found["name"] == container) {
            found["image"] = "registry.example/agent:2".into();
        }
        json!({ "spec": { list: containers } })
    };
    let with_image = |pod: &Value, container: &str| with_image_in("containers", pod, container);
    let with_native = |pod: &Value| with_image_in("initContainers", pod, "mesh");
    let meta = |field: &str, key: &str, value: &str| json!({ "metadata": { field: { key: value } } });
    let mut cases = vec![
        p("the image of a sidecar", true, "injected", with_image(&w.injected, "agent")),
        p("the image beside a sidecar", false, "injected", with_image(&w.injected, "main")),
        p("the image of no sidecar", false, "pretended", with_image(&w.pretended, "agent")),
        p("the image of a native sidecar", true, "injected", with_native(&w.injected)),
        p("the image of no native sidecar", false, "pretended", with_native(&w.pretended)),
        p("what is to be merged", true, "injected", meta("annotations", "example.com/any", "1")),
        p("what is to be merged elsewhere", false, "pretended", meta("annotations", "example.com/any", "1")),
        p("beside a sidecar: one of Kubernetes", false, "injected", meta("annotations", "kubernetes.io/other", "1")),
        p("beside a sidecar: one of ours", false, "injected", meta("annotations", "kruise.rs/other", "1")),
        p("beside a sidecar: a label", false, "injected", meta("labels", "example.com/any", "1")),
        p("beside a sidecar: a deadline", false, "injected", json!({ "spec": { "activeDeadlineSeconds": 1 } })),
    ];
    for key in [
        "kruise.io/sidecarset-hash",
        "kruise.io/sidecarset-hash-without-image",
        "kruise.io/sidecarset-injected-list",
        "kruise.io/sidecarset-inplace-update-state",
        "kruise.io/sidecarset-working-hotupgrade-container",
        "version.sidecarset.kruise.io/agent-1",
        "versionalt.sidecarset.kruise.io/agent-1",
    ] {
        cases.push(p("a note of SidecarSets", true, "injected", meta("annotations", key, "{}")));
        cases.push(p("a note of SidecarSets elsewhere", false, "pretended", meta("annotations", key, "{}")));
    }
    cases
}

fn resources(pod: &Value) -> Value {
    let name = pod.text("/spec/containers/0/name");
    json!({ "spec": { "containers": [{ "name": name, "resources": {} }] } })
}

fn of_pod_status(w: &World) -> Vec<Case> {
    let own = w.own.text("/metadata/name").to_owned();
    let s = |what, admitted, name: &str, change| {
        case(POD, what, admitted, Do::Patch("status", name.to_owned(), change, &PATCHES))
    };
    let condition = |type_: &str, status: &str| {
        conditions(&w.web, json!({ "type": type_, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" }))
    };
    let meta = |field: &str, key: &str, value: &str| json!({ "metadata": { field: { key: value } } });
    let phase = |phase: &str| json!({ "status": { "phase": phase } });
    let lists = |what, change| case(POD, what, false, Do::Patch("status", "web".into(), change, &WHOLE_LISTS));
    let mut cases = vec![
        s("our condition", true, "web", condition("KruisePodReady", "False")),
        s("a probe's condition", true, "web", condition("example.com/idle", "True")),
        s("the condition of SidecarSets", true, "web", condition("SidecarSetUpgradable", "True")),
        s("Ready to False", true, "web", condition("Ready", "False")),
        s("Ready to True, anew", false, "web", condition("Ready", "True")),
        s("a probe's label", true, "web", meta("labels", "example.com/idle", "1")),
        s("a cost", true, "web", meta("annotations", "controller.kubernetes.io/pod-deletion-cost", "1")),
        s(
            "launch priority",
            true,
            "web",
            meta("annotations", "apps.kruise.io/container-launch-priority-completed", "true"),
        ),
        s("volumes", true, "web", meta("annotations", "kruise.rs/volumes-refresh", "1")),
        s("lifecycle", true, &own, meta("labels", "lifecycle.apps.kruise.io/state", "Normal")),
        s("a workload's label", false, "web", meta("labels", "pod-template-hash", "1")),
        s("a label of Kubernetes", false, "web", meta("labels", "batch.kubernetes.io/job-name", "1")),
        s("lifecycle of others", false, "web", meta("labels", "lifecycle.apps.kruise.io/state", "Normal")),
        s("an annotation of Kubernetes", false, "web", meta("annotations", "kubernetes.io/other", "1")),
        s("finalizers", false, "web", json!({ "metadata": { "finalizers": ["example.com/x"] } })),
        s("phase", false, "web", phase("Failed")),
        s("phase, with a sidecar of the terminator", true, "ends", phase("Succeeded")),
        s("phase, with a sidecar of the terminator", true, "ends", phase("Failed")),
        s("another phase", false, "ends", phase("Pending")),
        s("phase, where the variable says no", false, "ends-not", phase("Succeeded")),
        s("phase, of a Pod that does not end", false, "ends-never", phase("Succeeded")),
        lists("podIP", json!({ "status": { "podIP": "192.0.2.1", "podIPs": [{ "ip": "192.0.2.1" }] } })),
        lists("hostIP", json!({ "status": { "hostIP": "192.0.2.1", "hostIPs": [{ "ip": "192.0.2.1" }] } })),
        s(
            "container statuses",
            false,
            "web",
            json!({ "status": { "containerStatuses": [{ "name": "main", "ready": true,
            "restartCount": 9, "image": "i", "imageID": "i", "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } }] } }),
        ),
    ];
    for type_ in ["PodScheduled", "ContainersReady", "Initialized", "DisruptionTarget"] {
        for name in ["web", own.as_str()] {
            let of = if name == "web" { &w.web } else { &w.own };
            let condition = json!({ "type": type_, "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z" });
            cases.push(s("a condition of others", false, name, conditions(of, condition)));
        }
    }
    let own_namespace = format!("{SYSTEM}/{}", w.system);
    cases.push(s("in our namespace", false, &own_namespace, meta("labels", "example.com/idle", "1")));
    cases
}

fn of_other_kinds(w: &World) -> Vec<Case> {
    let revision = w.revision.text("/metadata/name").to_owned();
    let new_revision =
        |owners: Value| json!({ "metadata": { "name": "new", "ownerReferences": owners }, "revision": 1, "data": {} });
    let claim = |owners: Value| {
        json!({ "metadata": { "name": "new", "ownerReferences": owners }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none", "resources": { "requests": { "storage": "1Gi" } } } })
    };
    let web = || json!([{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": w.web.text("/metadata/uid") }]);
    let set_of_apps =
        json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true }]);
    let kruise_set = |name: &str| json!([{ "apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": name, "uid": "u" }]);
    let pod_of_set = |name: &str| json!([{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u" }]);
    let named_claim = |name: &str, owners: Value| claim(owners).with("/metadata/name", name);
    let owned_by = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
    let map = |name: &str, namespace: Option<&str>, owners: Value| {
        let map = json!({ "metadata": { "name": name, "ownerReferences": owners } });
        namespace.map_or(map.clone(), |namespace| map.with("/metadata/namespace", namespace))
    };
    let template = || json!({ "metadata": { "name": "new" }, "template": { "metadata": {}, "spec": { "containers": [{ "name": "c", "image": "i" }] } } });
    let label = || json!({ "metadata": { "labels": { "any": "1" } } });
    let p = |kind, what, admitted, name: &str, change| {
        case(kind, what, admitted, Do::Patch("", name.to_owned(), change, &PATCHES))
    };
    let orphan = format!("{SYSTEM}/{}", w.orphan.text("/metadata/name"));
    let mut of_sidecar_set = w.orphan.array("/metadata/ownerReferences").to_vec();
    of_sidecar_set.push(json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": "s", "uid": "s",
        "controller": true }));
    let of_sidecar_set = Value::from(of_sidecar_set);
    let mut cases = vec![
        case(REVISION, "of a CloneSet", true, Do::Create(new_revision(owner(&w.set)))),
        case(REVISION, "of nobody", false, Do::Create(new_revision(json!([])))),
        case(REVISION, "of a StatefulSet", false, Do::Create(new_revision(set_of_apps.clone()))),
        case(REVISION, "of a CloneSet", true, Do::Delete(revision.clone())),
        case(REVISION, "of nobody", false, Do::Delete("theirs".into())),
        p(REVISION, "of a CloneSet", true, &revision, label()),
        p(REVISION, "of nobody", false, "theirs", label()),
        p(REVISION, "adoption", true, "theirs", json!({ "metadata": { "ownerReferences": owner(&w.set) } })),
        p(REVISION, "adoption and more", false, "theirs", label().with("/metadata/ownerReferences", owner(&w.set))),
        p(REVISION, "adoption by a SidecarSet", true, &orphan, owned_by(of_sidecar_set.clone())),
        p(
            REVISION,
            "adoption by a SidecarSet and more",
            false,
            &orphan,
            label().with("/metadata/ownerReferences", of_sidecar_set.clone()),
        ),
        p(REVISION, "adoption by a SidecarSet elsewhere", false, "theirs", owned_by(of_sidecar_set)),
        case(CLAIM, "of a CloneSet", true, Do::Create(claim(owner(&w.set)))),
        case(CLAIM, "of nobody", true, Do::Create(claim(json!([])))),
        case(CLAIM, "of a StatefulSet", false, Do::Create(claim(set_of_apps.clone()))),
        case(CLAIM, "of the set in its name", true, Do::Create(named_claim("data-db-1", kruise_set("db")))),
        case(CLAIM, "of a set not in its name", false, Do::Create(named_claim("data-db-1", kruise_set("other")))),
        case(CLAIM, "of a StatefulSet", false, Do::Delete("data-db-0".into())),
        p(CLAIM, "its set", true, "data-db-0", owned_by(kruise_set("db"))),
        p(CLAIM, "another set", false, "data-db-0", owned_by(kruise_set("b"))),
        p(CLAIM, "its Pod", true, "data-db-0", owned_by(pod_of_set("db-0"))),
        p(CLAIM, "another Pod", false, "data-db-0", owned_by(pod_of_set("db-1"))),
        p(CLAIM, "the set of a claim that has none in its name", false, "theirs", owned_by(kruise_set("db"))),
        p(
            CLAIM,
            "who grows it",
            true,
            "data-db-0",
            json!({ "metadata": { "annotations": { "apps.kruise.io/owned-by-asts": "db" } } }),
        ),
        p(CLAIM, "another annotation", false, "data-db-0", json!({ "metadata": { "annotations": { "any": "1" } } })),
        p(
            CLAIM,
            "our label, on a claim without it",
            false,
            "data-db-0",
            json!({ "metadata": { "labels": { "apps.kruise.io/cloneset-instance-id": "x" } } }),
        ),
        case(CLAIM, "of a CloneSet", true, Do::Delete("owned".into())),
        case(CLAIM, "of nobody", false, Do::Delete("free".into())),
        case(CLAIM, "without our label", false, Do::Delete("theirs".into())),
        p(CLAIM, "a Pod as owner", true, "free", json!({ "metadata": { "ownerReferences": web() } })),
        p(CLAIM, "a CloneSet as owner", true, "free", json!({ "metadata": { "ownerReferences": owner(&w.set) } })),
        p(CLAIM, "another owner", false, "free", json!({ "metadata": { "ownerReferences": set_of_apps } })),
        p(CLAIM, "an owner, without our label", false, "theirs", json!({ "metadata": { "ownerReferences": web() } })),
        p(
            CLAIM,
            "our label",
            true,
            "free",
            json!({ "metadata": { "labels": { "apps.kruise.io/cloneset-instance-id": "y" } } }),
        ),
        p(CLAIM, "a label", false, "free", label()),
        p(CLAIM, "an annotation", false, "owned", json!({ "metadata": { "annotations": { "any": "1" } } })),
        p(CLAIM, "a finalizer", false, "owned", json!({ "metadata": { "finalizers": ["example.com/x"] } })),
        p(CLAIM, "its volume", false, "owned", json!({ "spec": { "volumeName": "other" } })),
        case(CONFIG_MAP, "a barrier", true, Do::Create(map("web-barrier", Some("kube-system"), web()))),
        case(CONFIG_MAP, "a barrier of nobody", false, Do::Create(map("x-barrier", None, json!([])))),
        case(CONFIG_MAP, "a barrier of another Pod", false, Do::Create(map("x-barrier", None, web()))),
        case(CONFIG_MAP, "another name", false, Do::Create(map("web", None, web()))),
        case(CONFIG_MAP, "coredns", false, Do::Create(map("coredns", Some("kube-system"), json!([])))),
        p(CONFIG_MAP, "a barrier", true, "web-barrier", json!({ "data": { "p_1": "true" } })),
        p(CONFIG_MAP, "one that only has the name", false, "theirs-barrier", json!({ "data": { "p_1": "true" } })),
        p(
            CONFIG_MAP,
            "the CAs",
            true,
            &format!("{SYSTEM}/kruise-pull-secrets-ca"),
            json!({ "metadata": { "labels": { "any": "1" } } }),
        ),
        p(
            CONFIG_MAP,
            "another one of ours",
            false,
            &format!("{SYSTEM}/kruise-feature-gates"),
            json!({ "data": { "feature-gates": "" } }),
        ),
        case(TEMPLATE, "in a dry run", true, Do::Create(template())),
        case(TEMPLATE, "stored", false, Do::Store(template())),
        p(
            CLONE_SET,
            "its template",
            false,
            "set",
            json!({ "spec": { "template": { "metadata": { "labels": { "x": "1" } } } } }),
        ),
        p(CLONE_SET, "its replicas", false, "set", json!({ "spec": { "replicas": 5 } })),
        p(CLONE_SET, "its annotation", true, "set", json!({ "metadata": { "annotations": { "any": "1" } } })),
        p(
            CLONE_SET,
            "a Pod to delete",
            false,
            "set",
            // The webhook refuses names of no Pod before the policy is asked.
            json!({ "spec": { "scaleStrategy": { "podsToDelete": [w.own.text("/metadata/name")] } } }),
        ),
    ];
    let gone = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone" }]);
    // What the schema lets through; of a request it lets nothing through.
    for (kind, name, finalizer, spec) in [
        (CLONE_SET, "set", "", json!({ "minReadySeconds": 1 })),
        (REQUEST, "once", "crr.apps.kruise.io/unready-acquired", Value::Null),
        (JOB, "job", "apps.kruise.io/deletion-protection", json!({ "parallelism": 7 })),
        (LIST_JOB, "jobs", "", json!({ "parallelism": 7 })),
        (EPHEMERAL, "look", "apps.kruise.io/ephemeralcontainers-cleanup", json!({ "parallelism": 7 })),
        (
            MARKER,
            "marker",
            "kruise.io/node-pod-probe-cleanup",
            json!({ "probes": [{ "name": "q", "containerName": "main",
            "podConditionType": "example.com/p", "probe": { "tcpSocket": { "port": 2 } } }] }),
        ),
    ] {
        let lists =
            |what, admitted, change| case(kind, what, admitted, Do::Patch("", name.to_owned(), change, &WHOLE_LISTS));
        cases.push(p(kind, "metadata", true, name, label()));
        cases.push(p(kind, "an owner", false, name, json!({ "metadata": { "ownerReferences": gone } })));
        cases.push(p(kind, "a finalizer", false, name, json!({ "metadata": { "finalizers": ["example.com/x"] } })));
        if !finalizer.is_empty() {
            cases.push(lists("our finalizer", true, json!({ "metadata": { "finalizers": [finalizer] } })));
        }
        if !spec.is_null() {
            cases.push(p(kind, "spec", false, name, json!({ "spec": spec })));
        }
    }
    let probes = |namespace: &str| {
        json!({ "spec": { "podProbes": [{ "name": "web", "namespace": namespace, "uid": "u", "IP": "192.0.2.1",
            "probes": [{ "name": "m#p", "containerName": "main", "probe": { "exec": { "command": ["true"] } } }] }] } })
    };
    let new_probes = |namespace: &str| probes(namespace).with("/metadata/name", "no-such-node");
    cases.push(case(NODE_PROBES, "of others", true, Do::Create(new_probes("default"))));
    cases.push(case(NODE_PROBES, "in our namespace", false, Do::Create(new_probes(SYSTEM))));
    cases.push(p(NODE_PROBES, "of others", true, &w.node_probes, probes("default")));
    cases.push(p(NODE_PROBES, "in our namespace", false, &w.node_probes, probes(SYSTEM)));
    cases
}

/// The webhook's own configurations.
/// What belongs to a workload, for each kind of ours that makes Pods: those of whose `finalizers` the table has a line, but
/// SidecarSet, which owns nothing outside of our own namespace.
fn of_kinds(t: &Test) -> Result<Vec<Case>> {
    let text = fs::read_to_string(t.paths.repo.join("SECURITY.md"))?;
    let makes_pods =
        |kind: &&Installed| text.contains(&format!("| `{}/{}/finalizers` | update |", kind.group, kind.plural));
    let kinds: Vec<&Installed> = installed().iter().filter(makes_pods).collect();
    ensure!(kinds.len() >= 2, "{} kinds make Pods", kinds.len());
    let of_kind = |kind: &Installed| {
        let owner = |group: &str, controls: bool| {
            let version = format!("{group}/{}", kind.version);
            json!([{ "apiVersion": version, "kind": kind.kind, "name": "any", "uid": "u", "controller": controls }])
        };
        let owned = |object: Value, owners: Value| object.with("/metadata/ownerReferences", owners);
        let revision = || json!({ "metadata": { "name": "new" }, "revision": 1, "data": {} });
        let claim = || {
            json!({ "metadata": { "name": "new" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": { "requests": { "storage": "1Gi" } } } })
        };
        let (ours, theirs, plain) = (owner(&kind.group, true), owner("example.com", true), owner(&kind.group, false));
        let mut cases = Vec::new();
        let (what_of_ours, makes_pods) = match kind.kind.as_str() {
            "SidecarSet" => ("of a SidecarSet", false),
            "UnitedDeployment" => ("of a UnitedDeployment", false),
            "AdvancedCronJob" => ("of an AdvancedCronJob", false),
            "ResourceDistribution" => ("of a ResourceDistribution", false),
            _ => ("of each kind that makes Pods", true),
        };
        for (of, object) in [(POD, pod("new", vec![app("main")])), (REVISION, revision()), (CLAIM, claim())] {
            for (what, admitted, owners) in [
                (what_of_ours, makes_pods, &ours),
                ("of a kind of that name in another group", false, &theirs),
                ("of each kind, which does not control it", false, &plain),
            ] {
                // Its revisions are its own, its Pods and claims belong to its workloads.
                let admitted = admitted || (kind.kind == "UnitedDeployment" && of == REVISION && owners == &ours);
                // Claims of StatefulSets are owned by the set in their name, and controlled by nobody.
                if of == CLAIM && what.ends_with("control it") {
                    continue;
                }
                cases.push(case(of, what, admitted, Do::Create(owned(object.clone(), owners.clone()))));
            }
        }
        cases
    };
    Ok(kinds.into_iter().flat_map(of_kind).collect())
}

async fn of_registrations(t: &Test) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (kind, name, fail_open) in [
        (MUTATING, "kruise-mutating-webhook-configuration", "mcloneset-update.kb.io"),
        (VALIDATING, "kruise-validating-webhook-configuration", ""),
    ] {
        let live = serde_json::to_value(api(&t.client, "", kind).get(name).await?)?;
        let entries = live.array("/webhooks").to_vec();
        // One that need not be asked about everything.
        let place = entries.iter().position(|entry| entry["name"] != "mcontainerrecreaterequest.kb.io");
        let Some(i) = place else { continue };
        let first = &entries[i];
        let foreign = first.clone().with("/name", "evil.example.com");
        let with = |i: usize, pointer: &str, value: Value| {
            let mut entries = entries.clone();
            entries[i] = entries[i].clone().with(pointer, value);
            json!({ "webhooks": entries })
        };
        let mut add = |what, admitted, change: Value| {
            let action = Do::Patch("", name.to_owned(), change, &WHOLE_LISTS);
            cases.push(Case { account: WEBHOOK, kind, what, admitted, action });
        };
        add("CA", true, with(i, "/clientConfig/caBundle", first["clientConfig"]["caBundle"].clone()));
        add("time-out", true, with(i, "/timeoutSeconds", json!(7)));
        add("namespaces", true, with(i, "/namespaceSelector", json!({ "matchLabels": { "a": "b" } })));
        add("condition", true, with(i, "/matchConditions", json!([{ "name": "a", "expression": "true" }])));
        let mut others = entries.clone();
        others.remove(i);
        add("removal", true, json!({ "webhooks": others }));
        add("rules", false, with(i, "/rules/0/operations", json!(["*"])));
        add("resources", false, with(i, "/rules/0/resources", json!(["secrets"])));
        add("path", false, with(i, "/clientConfig/service/path", json!("/other")));
        add("service", false, with(i, "/clientConfig/service/name", json!("other")));
        add("namespace", false, with(i, "/clientConfig/service/namespace", json!("default")));
        let path = first.text("/clientConfig/service/path");
        add("url", false, with(i, "/clientConfig", json!({ "url": format!("https://evil.example{path}") })));
        add(
            "url, with its own leave",
            false,
            with(i, "/clientConfig", json!({ "url": format!("https://evil.example{path}") }))
                .with("/metadata/annotations/kruise.rs~1webhook-url", "https://evil.example"),
        );
        add(
            "another entry",
            false,
            json!({ "webhooks": entries.iter().cloned().chain([foreign]).collect::<Vec<_>>() }),
        );
        let gone = json!([{ "apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone" }]);
        add("an owner", false, json!({ "metadata": { "ownerReferences": gone } }));
        if let Some(i) = entries.iter().position(|entry| entry["name"] == "mcontainerrecreaterequest.kb.io") {
            let nobody = || json!({ "matchLabels": { "a": "b" } });
            add("requests of some namespaces", false, with(i, "/namespaceSelector", nobody()));
            add("some requests", false, with(i, "/objectSelector", nobody()));
            add("no request", false, with(i, "/matchConditions", json!([{ "name": "a", "expression": "false" }])));
            add("two versions as one", false, with(i, "/rules/0/apiVersions", json!(["v1alpha1,v1beta1"])));
            let mut others = entries.clone();
            others.remove(i);
            add("requests never", false, json!({ "webhooks": others }));
        }
        if let Some(i) = entries.iter().position(|entry| entry["name"] == fail_open) {
            add("an update that fails closed", false, with(i, "/failurePolicy", json!("Fail")));
        }
    }
    let template = || json!({ "metadata": { "name": "new" }, "template": { "metadata": {}, "spec": { "containers": [{ "name": "c", "image": "i" }] } } });
    cases.push(Case { account: WEBHOOK, ..case(TEMPLATE, "in a dry run", true, Do::Create(template())) });
    cases.push(Case { account: WEBHOOK, ..case(TEMPLATE, "stored", false, Do::Store(template())) });
    Ok(cases)
}

/// The lines with a policy in SECURITY.md: account, resource, verb. Daemons have tests of their own, bound to a node.
fn lines(t: &Test) -> Result<BTreeSet<(String, String, String)>> {
    let text = fs::read_to_string(t.paths.repo.join("SECURITY.md"))?;
    let mut found = BTreeSet::new();
    let table = text.lines().skip_while(|line| !line.starts_with("| account | resource | verbs |"));
    for line in table.filter(|line| line.starts_with("| `kruise-")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [account, resource, verbs, _, policy] = cells.as_slice() else { continue };
        if !policy.is_empty() && *account != "kruise-daemon" {
            found.extend(verbs.split(", ").map(|v| ((*account).to_owned(), (*resource).to_owned(), v.to_owned())));
        }
    }
    ensure!(!found.is_empty(), "no table of writes in SECURITY.md");
    Ok(found)
}

#[tokio::test]
async fn a_token_writes_what_its_line_admits_and_nothing_next_to_it() -> Result<()> {
    in_namespace("token-writes", async |t| {
        // Lines that a component grants are tried too.
        let body = async {
            resource_distribution::component(t, true).await?;
            each_line(t).await
        };
        restoring(body, resource_distribution::component(t, false)).await
    })
    .await
}

async fn each_line(t: &Test) -> Result<()> {
    let w = world(t).await?;
    let manager = with_token(t, &token_of(t, MANAGER, None).await?).await?;
    let webhook = with_token(t, &token_of(t, WEBHOOK, None).await?).await?;
    let of_pods = [of_pods(&w), of_stuck(), of_sidecars(&w), of_pod_status(&w)].into_iter().flatten();
    let others = [of_other_kinds(&w), of_copies(&w), of_kinds(t)?, of_states(), of_subsets(&w), of_jobs(&w)];
    let others = others.into_iter().flatten().chain(of_registrations(t).await?);
    let cases: Vec<Case> = of_pods.chain(others).collect();
    let mut wrong = Vec::new();
    let (mut admitted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for case in &cases {
        let client = if case.account == MANAGER { &manager } else { &webhook };
        let (account, resource, verb) = case.line();
        for (how, answer) in attempt(t, client, case).await.with_context(|| format!("{resource}: {}", case.what))? {
            let is_refused = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403);
            if case.admitted != answer.is_ok() || case.admitted == is_refused {
                let answer = answer.err().map_or_else(|| "admitted".into(), |error| error.to_string());
                wrong.push(format!("{account} {verb} {resource}, {} ({how}): {answer}", case.what));
            }
        }
        let set = if case.admitted { &mut admitted } else { &mut refused };
        set.insert((account, resource, verb.to_owned()));
    }
    ensure!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    for line in lines(t)? {
        ensure!(refused.contains(&line), "nothing is refused: {line:?}");
        // What a Pod of no CloneSet may not be resized to, one of a CloneSet need not be able to either.
        ensure!(admitted.contains(&line), "nothing is admitted: {line:?}");
    }
    Ok(())
}

#[tokio::test]
async fn no_token_replaces_pods_or_deletes_collections() -> Result<()> {
    in_namespace("token-verbs", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        for account in [MANAGER, WEBHOOK, "kruise-daemon"] {
            let client = with_token(t, &token_of(t, account, None).await?).await?;
            let is_forbidden = |answer: kube::Result<()>| matches!(answer, Err(kube::Error::Api(s)) if s.code == 403);
            for kind in [
                POD, REVISION, CLAIM, CONFIG_MAP, SECRET, TEMPLATE, CLONE_SET, REQUEST, JOB, LIST_JOB, EPHEMERAL,
                MARKER, STATE,
            ] {
                let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
                let api = api(&client, &t.namespace, kind);
                let answer = api.delete_collection(&dry, &ListParams::default()).await.map(drop);
                ensure!(is_forbidden(answer), "{account} deletes a collection of {}", kind.2);
                let object = json!({ "apiVersion": kind.1, "kind": kind.3, "metadata": { "name": "web" } });
                let params = PostParams { dry_run: true, ..PostParams::default() };
                let answer = api.replace("web", &params, &serde_json::from_value(object)?).await.map(drop);
                ensure!(is_forbidden(answer), "{account} replaces {}", kind.2);
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_account_of_an_installation_in_another_namespace_is_limited_too() -> Result<()> {
    in_namespace("token-elsewhere", async |t| {
        let binding = format!("e2e-{}", t.namespace);
        t.kubectl(&["create", "serviceaccount", MANAGER]).await?;
        let account = format!("--serviceaccount={}:{MANAGER}", t.namespace);
        t.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=kruise-manager", &account]).await?;
        let body = async {
            let token = t.kubectl(&["create", "token", MANAGER]).await?;
            let client = with_token(t, token.trim()).await?;
            let set = json!({ "metadata": { "name": "set", "uid": "u" } });
            let of_set = pod("new", vec![app("main")]).with("/metadata/ownerReferences", owner(&set));
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            // The binding counts after a moment.
            poll("the account to have its rights", PATIENCE, async || {
                api(&client, "default", POD).create(&dry, &serde_json::from_value(of_set.clone())?).await?;
                Ok(())
            })
            .await?;
            for (what, namespace, object, words) in [
                ("of nobody", "default", pod("new", vec![app("main")]), "only Pods that a workload"),
                ("in its own namespace", t.namespace.as_str(), of_set.clone(), "namespace that Kruise is installed in"),
            ] {
                let answer = api(&client, namespace, POD).create(&dry, &serde_json::from_value(object)?).await;
                let Err(kube::Error::Api(status)) = answer else { anyhow::bail!("{what}: admitted") };
                ensure!(status.code == 403 && status.message.contains(words), "{what}: {status:?}");
            }
            Ok(())
        };
        restoring(body, async { t.kubectl(&["delete", "clusterrolebinding", &binding]).await.map(drop) }).await
    })
    .await
}
