//! The trial of the services: ReplicatedPod, a kind that owns a number of Pods from a template, with revisions, status and
//! the conditions of kstatus. What its author writes is its schema, its plan and this thin shell.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::request::Parts;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{Api, CustomResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::{BY_CONTROLLER, Context, fake::Server, in_memory, owned_text};
use crate::{
    api::labels,
    domain::workload::{
        make::{self, PodParts},
        owner::OwnerRef,
        revisions::KnownRevision,
        status::{self, Progress},
    },
    k8s::{pod::PodView, revision},
    runtime::{
        clock, lock,
        pass::{Memories, Pass},
        pod_control::PodControl,
        queue::Requeue,
        revisions::{History, Naming, Revisions},
        slow_start::each,
        status_writer::StatusWriter,
        watches::{ObjectKey, Store},
    },
};

// Schema.

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "test.kruise.io", version = "v1", kind = "ReplicatedPod", namespaced, status = "ReplicatedPodStatus")]
struct ReplicatedPodSpec {
    replicas: usize,
    selector: LabelSelector,
    template: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct ReplicatedPodStatus {
    observed_generation: i64,
    replicas: usize,
    ready_replicas: usize,
    updated_replicas: usize,
    update_revision: String,
    collision_count: i32,
    conditions: Vec<Condition>,
}

// Plan: pure.

#[derive(Debug, Default)]
struct Plan {
    create: Vec<String>,
    delete: Vec<Arc<PodView>>,
}

fn is_ready(pod: &PodView) -> bool {
    pod.condition_is_true("Ready") && !pod.is_deleting()
}

fn is_on(pod: &PodView, update: &str) -> bool {
    pod.labels.get(labels::CONTROLLER_REVISION_HASH).is_some_and(|label| revision::is_same(label, update))
}

/// Pods `<name>-<number>`: what is missing is made, what is too much goes, and of the others one at a time is replaced.
fn plan(name: &str, replicas: usize, pods: &[Arc<PodView>], update: &str) -> Plan {
    let wanted: Vec<String> = (0..replicas).map(|number| format!("{name}-{number}")).collect();
    let (mut stays, mut delete): (Vec<_>, Vec<_>) =
        pods.iter().filter(|pod| !pod.is_deleting()).cloned().partition(|pod| wanted.iter().any(|w| w == pod.name()));
    let create: Vec<String> =
        wanted.into_iter().filter(|wanted| !pods.iter().any(|pod| pod.name() == wanted)).collect();
    // What is down goes first.
    stays.sort_by_key(|pod| is_ready(pod));
    let down = replicas - stays.iter().filter(|pod| is_ready(pod)).count();
    let next = stays.into_iter().find(|pod| !is_on(pod, update));
    delete.extend(next.filter(|pod| down == 0 || !is_ready(pod)));
    Plan { create, delete }
}

fn progress(spec: &ReplicatedPodSpec, status: &ReplicatedPodStatus, failure: Option<String>) -> Progress {
    let waits = |reason: &str, message: String| Progress::Waiting { reason: reason.into(), message };
    let counts = [status.replicas, status.updated_replicas, status.ready_replicas];
    match failure {
        Some(message) => waits("FailedWrite", message),
        None if counts == [spec.replicas; 3] => Progress::Available,
        None => waits("PodsNotReady", format!("{} of {} Pods are ready", status.ready_replicas, spec.replicas)),
    }
}

// Shell.

/// Generation, update revision, collisions and all revisions.
type Remembered = (i64, String, i32, Vec<KnownRevision>);

struct Controller {
    context: Context,
    objects: Arc<Store<ReplicatedPod>>,
    pods: PodControl,
    revisions: Revisions,
    statuses: StatusWriter,
    /// The revisions, for one generation.
    memories: Memories<Option<Remembered>>,
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            objects: Store::new(None),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            revisions: Revisions::new(context.client.clone()),
            statuses: StatusWriter::default(),
            memories: Memories::default(),
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(object) = self.objects.get(key) else { return Ok(Requeue::Await) };
        let owner = OwnerRef::of(object.as_ref());
        self.memories.enter(key, &owner.uid);
        let (update, collisions, known) = self.resolve(key, &object, &owner).await?;
        let pods = || self.context.pods.by_index(&BY_CONTROLLER, &owned_text(&owner.namespace, &owner.uid));
        let plan = plan(&owner.name, object.spec.replicas, &pods(), &update);
        let mut pass = Pass::default();
        let made = each(plan.create, |name| self.create(&object, &owner, name, &update)).await;
        let failed = pass.note(made.1.map_or(Ok(!made.0.is_empty()), Err));
        let deleted = each(plan.delete, |pod: Arc<PodView>| async move { self.pods.delete(&pod).await }).await;
        let failed = failed.or(pass.note(deleted.1.map_or(Ok(!deleted.0.is_empty()), Err)));
        pass.look_after(self.record(key, &object, &pods(), (&update, collisions), failed).await?);
        let live: Vec<_> =
            pods().iter().filter_map(|pod| pod.labels.get("controller-revision-hash").map(str::to_owned)).collect();
        let live: BTreeSet<&str> = live.iter().map(String::as_str).chain([update.as_str()]).collect();
        pass.note(self.revisions.truncate(&key.namespace, &known, &live, 1).await.map(|_| false));
        pass.end(|_| {})
    }

    async fn resolve(
        &self,
        key: &ObjectKey,
        object: &ReplicatedPod,
        owner: &OwnerRef,
    ) -> kube::Result<(String, i32, Vec<KnownRevision>)> {
        let generation = object.metadata.generation.unwrap_or_default();
        if let Some(Some((of, update, collisions, known))) = self.memories.with(key, |memory| memory.clone())
            && of == generation
        {
            return Ok((update, collisions, known));
        }
        let labels = object.spec.template.pointer("/metadata/labels").and_then(Value::as_object);
        let history = History {
            owner,
            selector: &object.spec.selector,
            naming: Naming::BY_DATA,
            labels: labels.cloned().unwrap_or_default(),
            annotations: Map::new(),
            newest_annotations: Map::new(),
        };
        let before = object.status.as_ref().map_or(0, |status| status.collision_count);
        let chosen = self.revisions.choose(&history, &revision::data(&object.spec.template), before).await?;
        let memory = Some((generation, chosen.name.clone(), chosen.collisions, chosen.known.clone()));
        self.memories.with(key, |m| *m = memory);
        Ok((chosen.name, chosen.collisions, chosen.known))
    }

    async fn create(&self, object: &ReplicatedPod, owner: &OwnerRef, name: String, update: &str) -> kube::Result<()> {
        let parts = PodParts {
            owner,
            generate_name: format!("{}-", owner.name),
            labels: vec![(labels::CONTROLLER_REVISION_HASH, update.to_owned())],
            annotations: Vec::new(),
            readiness_gates: &[],
            claims: Vec::new(),
            name,
        };
        self.pods.create(owner, &make::pod(&object.spec.template, parts)).await.map(drop)
    }

    async fn record(
        &self,
        key: &ObjectKey,
        object: &ReplicatedPod,
        pods: &[Arc<PodView>],
        (update, collisions): (&str, i32),
        failure: Option<String>,
    ) -> kube::Result<Option<Duration>> {
        let (now, recorded) = (clock::now(), object.status.clone().unwrap_or_default());
        let count = |fits: &dyn Fn(&PodView) -> bool| pods.iter().filter(|pod| fits(pod)).count();
        let mut wanted = ReplicatedPodStatus {
            observed_generation: object.metadata.generation.unwrap_or_default(),
            replicas: pods.len(),
            ready_replicas: count(&is_ready),
            updated_replicas: count(&|pod| is_on(pod, update)),
            update_revision: update.to_owned(),
            collision_count: collisions,
            conditions: Vec::new(),
        };
        let progress = progress(&object.spec, &wanted, failure);
        let before: Vec<status::Condition> = recorded.conditions.iter().cloned().map(read).collect();
        wanted.conditions = status::conditions(&progress, &before, now.wall).map(written).into();
        let api: Api<ReplicatedPod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let to = (&api, self.objects.as_ref());
        let can_wait = wanted.conditions == recorded.conditions;
        Ok(self.statuses.write(to, object, (&recorded, &wanted), can_wait, now).await?.look_after())
    }
}

fn read(condition: Condition) -> status::Condition {
    let Condition { type_, status, reason, message, last_transition_time, .. } = condition;
    status::Condition { type_, status, reason, message, last_transition_time: Some(last_transition_time.0) }
}

fn written(condition: status::Condition) -> Condition {
    let status::Condition { type_, status, reason, message, last_transition_time } = condition;
    let last_transition_time = Time(last_transition_time.unwrap_or_default());
    Condition { type_, status, reason, message, last_transition_time, observed_generation: None }
}

// The trial.

const OBJECT: &str = "/apis/test.kruise.io/v1/namespaces/ns/replicatedpods/web";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions/";

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
}

impl World {
    fn new(admit: fn(&mut Server, &mut Value) -> Result<(), u16>) -> Self {
        let server = Arc::new(Mutex::new(Server::new(admit)));
        let answers = server.clone();
        let context = in_memory::context(move |parts: &Parts, body: &[u8]| lock(&answers).answer(parts, body));
        Self { server, controller: Controller::new(&context) }
    }

    fn apply(&self, replicas: usize, image: &str) {
        let generation =
            lock(&self.server).of(OBJECT).first().map_or(0, |(_, old)| old["metadata"]["generation"].as_i64().unwrap());
        let object = json!({"apiVersion": "test.kruise.io/v1", "kind": "ReplicatedPod",
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": generation + 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}], "newer": 1}}}});
        let mut server = lock(&self.server);
        if generation == 0 {
            server.put(OBJECT, object);
        } else {
            server.change(OBJECT, &object);
        }
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        let server = lock(&self.server);
        for (_, pod) in server.of(PODS) {
            self.controller.context.pods.upsert(serde_json::from_value(Value::clone(&pod)).unwrap());
        }
        let object = &server.objects[OBJECT];
        self.controller.objects.upsert(serde_json::from_value(Value::clone(object)).unwrap());
    }

    /// Passes, kubelets and time, until nothing is written any more. The most Pods that were not ready at a time after
    /// the first second.
    async fn settle(&self) -> usize {
        let mut most = 0;
        for round in 0..40 {
            self.deliver();
            // A refusal backs off; here it is tried again.
            let _ = self.controller.reconcile(&ObjectKey::new("ns", "web")).await;
            most = most.max(self.start_all(round > 0));
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        most
    }

    /// Kubelets start every Pod that is down; how many were, if they count.
    fn start_all(&self, counts: bool) -> usize {
        let mut server = lock(&self.server);
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let down: Vec<String> =
            server.of(PODS).into_iter().filter(|(_, pod)| pod["status"].is_null()).map(|(path, _)| path).collect();
        down.iter().for_each(|path| server.change(path, &ready));
        if counts { down.len() } else { 0 }
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[OBJECT]["status"].clone()
    }

    fn images(&self) -> Vec<String> {
        let pods = lock(&self.server).of(PODS);
        pods.iter().map(|(_, pod)| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()).collect()
    }

    fn condition(&self, type_: &str) -> (String, String) {
        let status = self.status();
        let condition = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == type_).unwrap().clone();
        let text = |key: &str| condition[key].as_str().unwrap().to_owned();
        (text("status"), text("message"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_kind_makes_its_pods_says_how_far_it_is_and_rests() {
    let world = World::new(|_, _| Ok(()));
    world.apply(3, "i:1");
    world.settle().await;
    assert_eq!(world.images(), ["i:1"; 3]);
    let pods = lock(&world.server).of(PODS);
    assert_eq!(pods[0].1["spec"]["newer"], 1, "fields that this release does not know are kept");
    assert_eq!(pods[0].1["metadata"]["ownerReferences"][0]["uid"], "u");
    let status = world.status();
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"], &status["updatedReplicas"]),
        (&json!(3), &json!(3), &json!(3))
    );
    assert_eq!(world.condition("Ready").0, "True");
    let before = lock(&world.server).objects.clone();
    world.settle().await;
    assert_eq!(lock(&world.server).objects, before, "nothing more is written");
}

#[tokio::test(start_paused = true)]
async fn a_new_kind_replaces_one_pod_at_a_time_and_keeps_a_limited_history() {
    let world = World::new(|_, _| Ok(()));
    for (image, revisions) in [("i:1", 1), ("i:2", 2), ("i:3", 2), ("i:2", 2)] {
        world.apply(3, image);
        let down = world.settle().await;
        assert!(down <= 1 || image == "i:1", "{down}");
        assert_eq!(world.images(), [image; 3]);
        assert_eq!(lock(&world.server).of(REVISIONS).len(), revisions, "{image}");
        assert_eq!(world.condition("Ready").0, "True");
    }
    world.apply(1, "i:2");
    world.settle().await;
    assert_eq!(world.images(), ["i:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_pod_of_a_new_kind_keeps_none_of_the_others() {
    let world = World::new(|_, object| if object["metadata"]["name"] == "web-1" { Err(403) } else { Ok(()) });
    world.apply(3, "i:1");
    world.settle().await;
    assert_eq!(world.images().len(), 2);
    let (ready, message) = world.condition("Reconciling");
    assert!(ready == "True" && message.contains("403"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_an_earlier_attempt_has_made_is_taken_for_the_new_one_and_a_strangers_is_not() {
    for (uid, error) in [("u", None), ("another", Some(409))] {
        let world = World::new(|_, _| Ok(()));
        world.apply(1, "i:1");
        let owner = json!([{"apiVersion": "test.kruise.io/v1", "kind": "ReplicatedPod", "name": "web", "uid": uid, "controller": true}]);
        let there = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
            "metadata": {"name": "web-0", "namespace": "ns", "ownerReferences": owner}});
        lock(&world.server).put(&format!("{PODS}web-0"), there);
        let object: ReplicatedPod = serde_json::from_value(Value::clone(&lock(&world.server).objects[OBJECT])).unwrap();
        let made = world.controller.create(&object, &OwnerRef::of(&object), "web-0".into(), "web-1").await;
        assert_eq!(made.err().and_then(|error| crate::runtime::apply::code(&error)), error, "{uid}");
        assert_eq!(world.controller.context.pods.list().len(), 1, "the store knows it in any case");
    }
}
