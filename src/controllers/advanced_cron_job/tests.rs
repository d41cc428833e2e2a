//! The controller against an API server in memory.

use std::collections::BTreeMap;

use axum::http::{Method, Request, request::Parts};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::in_memory,
    runtime::{events::Recorder, pass::AFTER_CONFLICT},
};

mod simulation;

const CRONS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/advancedcronjobs";
const JOBS: &str = "/apis/batch/v1/namespaces/ns/jobs";

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String)>,
    events: Vec<String>,
    /// The code of the answer to each creation.
    refuses: Option<u16>,
    /// What is created is stored, and the answer is lost.
    loses_answers: bool,
    /// The code of the answer to each deletion.
    refuses_deletion: Option<u16>,
    /// The code of the answer to each write of a status.
    refuses_status: Option<u16>,
    version: u64,
}

impl Server {
    fn answer(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        let path = request.uri.path().to_owned();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused =
            |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "test"}));
        if path.ends_with("/events") {
            self.events.push(format!("{} {}", body["reason"].as_str().unwrap(), body["message"].as_str().unwrap()));
            return (201, body);
        }
        if request.method != Method::GET {
            self.writes.push((request.method.clone(), path.clone()));
        }
        if path.ends_with("/status")
            && let Some(code) = self.refuses_status
        {
            return refused(code);
        }
        self.version += 1;
        let version = Value::from(self.version.to_string());
        let path = path.strip_suffix("/status").map_or(path.clone(), str::to_owned);
        match request.method.as_str() {
            "GET" => self.objects.get(&path).map_or_else(|| refused(404), |object| (200, object.clone())),
            "POST" => {
                if let Some(code) = self.refuses {
                    return refused(code);
                }
                let mut made = body;
                let path = format!("{path}/{}", made["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return refused(409);
                }
                made["metadata"]["uid"] = format!("uid-{}", self.version).into();
                made["metadata"]["resourceVersion"] = version;
                self.objects.insert(path, made.clone());
                if self.loses_answers { refused(504) } else { (201, made) }
            }
            "PATCH" => {
                let Some(object) = self.objects.get_mut(&path) else { return refused(404) };
                let wanted = body["metadata"]["resourceVersion"].clone();
                if wanted != Value::Null && wanted != object["metadata"]["resourceVersion"] {
                    return refused(409);
                }
                json_patch::merge(object, &body);
                object["metadata"]["resourceVersion"] = version;
                (200, object.clone())
            }
            "DELETE" if self.refuses_deletion.is_some() => refused(self.refuses_deletion.unwrap_or_default()),
            "DELETE" => match self.objects.remove(&path) {
                Some(_) => (200, json!({"kind": "Status", "status": "Success"})),
                None => refused(404),
            },
            _ => refused(405),
        }
    }
}

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        Self { controller: controller(&server), server, now: at("2026-01-01T00:00:00Z") }
    }

    /// Another process goes on: it has read everything anew.
    fn restart(&mut self) {
        self.controller = controller(&self.server);
        let objects = lock(&self.server).objects.clone();
        for (path, object) in objects {
            match path.starts_with(CRONS) {
                true => drop(self.controller.crons.upsert(serde_json::from_value(object).unwrap())),
                false => drop(self.controller.jobs.of(JobKind::Job).upsert(serde_json::from_value(object).unwrap())),
            }
        }
    }

    /// Another process, whose events are kept.
    fn hear_events(&mut self) {
        let server = self.server.clone();
        let mut context = in_memory::context(move |request, body| lock(&server).answer(request, body));
        let (recorder, send) = Recorder::new(context.client.clone(), "test", "", Default::default());
        tokio::spawn(send);
        context.events = recorder;
        self.controller = Controller::new(&context);
    }

    fn put(&self, spec: Value) {
        let mut server = lock(&self.server);
        server.version += 1;
        let path = format!("{CRONS}/cron");
        let mut cron = server.objects.get(&path).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
                "metadata": {"name": "cron", "namespace": "ns", "uid": "c", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"schedule": "0 * * * *", "template": {"jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}}}})
        });
        json_patch::merge(&mut cron["spec"], &spec);
        cron["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(path, cron.clone());
        drop(server);
        self.controller.crons.upsert(serde_json::from_value(cron).unwrap());
    }

    /// Ahead of the clock of timers: a pass takes no time.
    fn now(&self) -> Now {
        Now { wall: self.now, mono: Duration::from_secs(1_000_000) }
    }

    async fn pass(&self) -> kube::Result<Requeue> {
        let cron = self.controller.crons.get(&ObjectKey::new("ns", "cron")).unwrap();
        self.controller.status.forget();
        self.controller.pass(&cron, &TimeZone::UTC, self.now()).await
    }

    /// Until it waits; the result says for how long.
    async fn settle(&self) -> Requeue {
        for _ in 0..20 {
            match self.pass().await.unwrap() {
                Requeue::After(wait) if wait.is_zero() || wait == AFTER_CONFLICT => {}
                requeue => return requeue,
            }
        }
        panic!("it goes on and on: {:?}", lock(&self.server).writes);
    }

    async fn settle_at(&mut self, now: &str) -> Requeue {
        self.now = at(now);
        self.settle().await
    }

    fn jobs(&self) -> Vec<String> {
        let server = lock(&self.server);
        server.objects.keys().filter_map(|path| path.strip_prefix(JOBS)?.strip_prefix('/')).map(str::to_owned).collect()
    }

    fn job(&self, name: &str) -> Value {
        lock(&self.server).objects[&format!("{JOBS}/{name}")].clone()
    }

    fn end(&self, name: &str, how: &str) {
        let mut server = lock(&self.server);
        server.version += 1;
        let version = server.version.to_string();
        let job = server.objects.get_mut(&format!("{JOBS}/{name}")).unwrap();
        job["status"] =
            json!({"conditions": [{"type": how, "status": "True", "lastTransitionTime": "2026-01-01T01:00:09Z"}]});
        job["metadata"]["resourceVersion"] = version.into();
        let job = job.clone();
        drop(server);
        self.controller.jobs.of(JobKind::Job).upsert(serde_json::from_value(job).unwrap());
    }

    /// Somebody deletes a job.
    fn remove(&self, name: &str) {
        lock(&self.server).objects.remove(&format!("{JOBS}/{name}"));
        self.controller.jobs.of(JobKind::Job).remove(&ObjectKey::new("ns", name), None);
    }

    /// Somebody writes the last time into the status.
    fn set_last(&self, last: &str) {
        let path = format!("{CRONS}/cron");
        let patch = json!({"status": {"lastScheduleTime": last}});
        json_patch::merge(lock(&self.server).objects.get_mut(&path).unwrap(), &patch);
        self.put(json!({}));
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[&format!("{CRONS}/cron")]["status"].clone()
    }

    fn writes(&self) -> usize {
        lock(&self.server).writes.len()
    }
}

fn controller(server: &Arc<Mutex<Server>>) -> Controller {
    let server = server.clone();
    Controller::new(&in_memory::context(move |request, body| lock(&server).answer(request, body)))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const FIRST: &str = "cron-1767229200";
const SECOND: &str = "cron-1767232800";

#[tokio::test]
async fn c5_there_is_a_status_at_once_and_a_job_at_each_full_hour() {
    let mut world = World::new();
    world.put(json!({}));
    assert_eq!(world.settle().await, Requeue::After(Duration::from_secs(3600)));
    let status = world.status();
    assert_eq!((&status["type"], &status["nextScheduleTime"]), (&json!("Job"), &json!("2026-01-01T01:00:00Z")));
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(world.jobs(), Vec::<String>::new());

    let wait = world.settle_at("2026-01-01T01:00:00.250Z").await;
    assert_eq!(wait, Requeue::After(Duration::from_millis(3_599_750)));
    assert_eq!(world.jobs(), [FIRST]);
    let job = world.job(FIRST);
    assert_eq!((&job["metadata"]["labels"], &job["spec"]), (&json!({"a": "b"}), &json!({"x": 1})));
    assert_eq!(job["metadata"]["annotations"]["apps.kruise.io/scheduled-at"], "2026-01-01T01:00:00Z");
    let status = world.status();
    assert_eq!(status["lastScheduleTime"], "2026-01-01T01:00:00Z");
    assert_eq!((&status["active"][0]["name"], &status["active"][0]["apiVersion"]), (&json!(FIRST), &json!("batch/v1")));

    world.end(FIRST, "Complete");
    world.settle().await;
    assert_eq!(
        (&world.status()["active"], &world.status()["lastSuccessfulTime"]),
        (&Value::Null, &json!("2026-01-01T01:00:09Z"))
    );
    let writes = world.writes();
    world.settle().await;
    assert_eq!(world.writes(), writes, "there is nothing to write");
}

/// Both as OpenKruise has left them.
#[tokio::test]
async fn a_recorded_object_and_its_job_are_taken_over_and_its_next_slot_is_the_next_that_is_run() {
    let recorded = |text: &str, index: usize| serde_json::from_str::<Vec<Value>>(text).unwrap().remove(index);
    let cron = recorded(include_str!("../../api/apps/testdata/advanced_cron_jobs.json"), 0);
    let job = recorded(include_str!("../../api/apps/testdata/broadcast_jobs.json"), 1);
    let path = |what: &str| format!("/apis/apps.kruise.io/v1beta1/namespaces/golden/{what}");
    let mut world = World::new();
    {
        let mut server = lock(&world.server);
        server.version = 10_000;
        server.objects.insert(path("advancedcronjobs/cron"), cron.clone());
        server.objects.insert(path("broadcastjobs/cron-1795254600"), job.clone());
    }
    world.controller.crons.upsert(serde_json::from_value(cron).unwrap());
    world.controller.jobs.of(JobKind::BroadcastJob).upsert(serde_json::from_value(job.clone()).unwrap());
    for (now, last, posts) in
        [("2026-11-21T09:50:30Z", "2026-11-21T09:50:00Z", 0), ("2026-11-21T09:51:00Z", "2026-11-21T09:51:00Z", 1)]
    {
        world.now = at(now);
        for _ in 0..4 {
            let cron = world.controller.crons.get(&ObjectKey::new("golden", "cron")).unwrap();
            world.controller.status.forget();
            world.controller.pass(&cron, &TimeZone::UTC, world.now()).await.unwrap();
        }
        let server = lock(&world.server);
        let count = |method: Method| server.writes.iter().filter(|(how, _)| *how == method).count();
        assert_eq!((count(Method::POST), count(Method::DELETE)), (posts, 0), "{:?}", server.writes);
        // One at the takeover, and one for the slot.
        assert!(count(Method::PATCH) <= 1 + posts, "{:?}", server.writes);
        let status = &server.objects[&path("advancedcronjobs/cron")]["status"];
        assert_eq!((&status["lastScheduleTime"], &status["type"]), (&json!(last), &json!("BroadcastJob")));
        assert_eq!(status["lastSuccessfulTime"], "2026-11-21T09:50:02Z");
        assert_eq!(server.objects[&path("broadcastjobs/cron-1795254600")], job);
        assert_eq!(server.objects.contains_key(&path("broadcastjobs/cron-1795254660")), posts == 1);
    }
}

#[tokio::test]
async fn the_job_is_made_before_the_status_is_written() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    let before = world.writes();
    world.now = at("2026-01-01T01:00:00Z");
    assert_eq!(world.pass().await.unwrap(), Requeue::After(Duration::ZERO));
    let writes = lock(&world.server).writes[before..].to_vec();
    assert_eq!(writes, [(Method::POST, JOBS.to_owned())]);
}

#[tokio::test]
async fn e39_another_process_makes_no_second_job() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    world.now = at("2026-01-01T01:00:00Z");
    // The process ends before the status is written, and the next one has not seen the job.
    world.pass().await.unwrap();
    world.restart();
    world.controller.jobs.of(JobKind::Job).remove(&ObjectKey::new("ns", FIRST), None);
    world.settle().await;
    assert_eq!(
        (world.jobs(), &world.status()["lastScheduleTime"]),
        (vec![FIRST.to_owned()], &json!("2026-01-01T01:00:00Z"))
    );
}

#[tokio::test]
async fn e37_a_deleted_job_is_not_made_again_also_without_a_history() {
    let mut world = World::new();
    world.put(json!({"successfulJobsHistoryLimit": 0}));
    world.settle().await;
    world.settle_at("2026-01-01T01:00:00Z").await;
    world.end(FIRST, "Complete");
    world.settle().await;
    assert_eq!(world.jobs(), Vec::<String>::new());
    world.restart();
    world.settle_at("2026-01-01T01:30:00Z").await;
    assert_eq!(world.jobs(), Vec::<String>::new());
    // A clock that goes back.
    world.settle_at("2026-01-01T00:30:00Z").await;
    world.settle_at("2026-01-01T01:00:01Z").await;
    assert_eq!(world.jobs(), Vec::<String>::new());
    world.settle_at("2026-01-01T02:00:00Z").await;
    assert_eq!(world.jobs(), [SECOND]);
}

#[tokio::test]
async fn e37_a_job_that_is_gone_before_its_slot_is_recorded_is_not_made_again() {
    for code in [500, 429, 409] {
        let mut world = World::new();
        world.put(json!({}));
        world.settle().await;
        world.now = at("2026-01-01T01:00:00Z");
        lock(&world.server).refuses_status = Some(code);
        world.pass().await.unwrap();
        assert_eq!(world.jobs(), [FIRST]);
        // Its TTL is over, or a user deletes it.
        world.remove(FIRST);
        for _ in 0..3 {
            assert_eq!(world.pass().await.is_err(), code != 409, "{code}");
        }
        lock(&world.server).refuses_status = None;
        world.settle().await;
        assert_eq!(world.status()["lastScheduleTime"], "2026-01-01T01:00:00Z", "{code}");
        let posted = |world: &World| lock(&world.server).writes.iter().filter(|(how, _)| how == Method::POST).count();
        assert_eq!((world.jobs(), posted(&world)), (Vec::new(), 1), "{code}");
        world.settle_at("2026-01-01T02:00:00Z").await;
        assert_eq!((world.jobs(), posted(&world)), (vec![SECOND.to_owned()], 2), "{code}");
    }
}

#[tokio::test]
async fn e37_also_of_a_job_that_another_process_has_made() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    world.now = at("2026-01-01T01:00:00Z");
    world.pass().await.unwrap();
    world.restart();
    lock(&world.server).refuses_status = Some(500);
    world.pass().await.unwrap_err();
    world.remove(FIRST);
    world.pass().await.unwrap_err();
    assert_eq!(world.jobs(), Vec::<String>::new());
}

#[tokio::test]
async fn a_last_time_that_was_recorded_and_corrected_is_not_written_over() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    // Our clock was ahead, and is set back.
    world.settle_at("2026-01-01T02:00:00Z").await;
    world.settle_at("2026-01-01T00:30:00Z").await;
    assert_eq!(world.status()["lastScheduleTime"], "2026-01-01T02:00:00Z");
    // While its job is there, that tells of the slot.
    world.set_last("2026-01-01T00:00:00Z");
    world.settle().await;
    assert_eq!(world.status()["lastScheduleTime"], "2026-01-01T02:00:00Z");
    world.remove(SECOND);
    world.set_last("2026-01-01T00:00:00Z");
    world.settle().await;
    assert_eq!(world.status()["lastScheduleTime"], "2026-01-01T00:00:00Z");
    world.settle_at("2026-01-01T01:00:00Z").await;
    assert_eq!(
        (world.jobs(), &world.status()["lastScheduleTime"]),
        (vec![FIRST.to_owned()], &json!("2026-01-01T01:00:00Z"))
    );
}

#[tokio::test]
async fn a_last_time_that_lies_ahead_is_reported_until_somebody_corrects_it() {
    let mut world = World::new();
    world.put(json!({}));
    world.set_last("2099-01-01T00:00:00Z");
    assert_eq!(world.settle_at("2026-01-01T01:00:00Z").await, Requeue::After(LONGEST_WAIT));
    let waits = world.status()["conditions"][1].clone();
    assert_eq!((&waits["status"], &waits["reason"]), (&json!("True"), &json!("LastScheduleAhead")));
    assert!(waits["message"].as_str().unwrap().ends_with("before 2099-01-01T00:00:00Z"), "{waits}");
    world.set_last("2026-01-01T00:00:00Z");
    world.settle().await;
    assert_eq!(
        (world.jobs(), &world.status()["conditions"][0]["reason"]),
        (vec![FIRST.to_owned()], &json!("Scheduled"))
    );
}

#[tokio::test]
async fn c5_with_forbid_a_job_waits_for_the_one_before() {
    let mut world = World::new();
    world.put(json!({"concurrencyPolicy": "Forbid"}));
    world.settle().await;
    world.settle_at("2026-01-01T01:00:00Z").await;
    world.settle_at("2026-01-01T02:00:00Z").await;
    assert_eq!(world.jobs(), [FIRST]);
    let condition = world.status()["conditions"][0].clone();
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Ready"), &json!("JobAlreadyActive")));
    world.now = at("2026-01-01T02:10:00Z");
    world.end(FIRST, "Failed");
    world.settle().await;
    assert_eq!(world.jobs(), [FIRST, SECOND]);
    assert_eq!(world.status()["conditions"][0]["reason"], "Scheduled");
}

#[tokio::test]
async fn c5_with_replace_the_one_before_is_deleted() {
    let mut world = World::new();
    world.put(json!({"concurrencyPolicy": "Replace"}));
    world.settle().await;
    world.now = at("2026-01-01T01:00:00Z");
    world.pass().await.unwrap();
    // The slot of the one that goes is recorded first.
    world.now = at("2026-01-01T02:00:00Z");
    let before = world.writes();
    world.settle().await;
    let methods: Vec<Method> = lock(&world.server).writes[before..].iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(methods, [Method::PATCH, Method::DELETE, Method::POST, Method::PATCH]);
    assert_eq!(world.jobs(), [SECOND]);
    assert_eq!(world.status()["active"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn f45_an_unknown_zone_makes_no_job_and_says_so() {
    let mut world = World::new();
    world.put(json!({"timeZone": "Mars/Olympus"}));
    assert_eq!(world.settle().await, Requeue::Await);
    world.settle_at("2026-01-01T05:00:00Z").await;
    assert_eq!(world.jobs(), Vec::<String>::new());
    let stalled = &world.status()["conditions"][2];
    assert_eq!(
        (&stalled["type"], &stalled["status"], &stalled["reason"]),
        (&json!("Stalled"), &json!("True"), &json!("UnknownTimeZone"))
    );
    world.put(json!({"timeZone": "Asia/Kolkata"}));
    world.settle().await;
    // 01:00 and on in Kolkata is half past an hour in UTC.
    assert_eq!(world.jobs(), ["cron-1767241800"]);
}

#[tokio::test]
async fn a_refused_job_is_reported_and_tried_again() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    lock(&world.server).refuses = Some(403);
    world.now = at("2026-01-01T01:00:00Z");
    assert!(world.pass().await.is_err());
    let condition = world.status()["conditions"][1].clone();
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Reconciling"), &json!("True"), &json!("FailedCreate"))
    );
    assert!(condition["message"].as_str().unwrap().contains("Job cron-1767229200"), "{condition}");
    assert_eq!(world.status()["lastScheduleTime"], Value::Null);
    lock(&world.server).refuses = None;
    world.settle().await;
    assert_eq!(world.jobs(), [FIRST]);
    assert_eq!(world.status()["conditions"][1]["status"], "False");
}

#[tokio::test]
async fn somebody_elses_job_of_that_name_is_left_alone() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    let theirs = json!({"metadata": {"name": FIRST, "namespace": "ns", "uid": "x", "resourceVersion": "3"}});
    lock(&world.server).objects.insert(format!("{JOBS}/{FIRST}"), theirs.clone());
    world.now = at("2026-01-01T01:00:00Z");
    assert_eq!(world.settle().await, Requeue::After(Duration::from_secs(10)));
    assert_eq!(world.job(FIRST), theirs);
    assert!(world.status()["conditions"][1]["message"].as_str().unwrap().contains("belongs to somebody else"));
    // Nor does one of ours count whose annotation somebody has removed.
    let mut ours = theirs.clone();
    ours["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
        "name": "cron", "uid": "c", "controller": true}]);
    lock(&world.server).objects.insert(format!("{JOBS}/{FIRST}"), ours);
    assert_eq!(world.settle().await, Requeue::After(Duration::from_secs(10)));
    assert!(world.status()["conditions"][1]["message"].as_str().unwrap().contains("lacks the annotation"));
    // The next time is not in the way.
    world.settle_at("2026-01-01T02:00:00Z").await;
    assert_eq!(world.jobs(), [FIRST, SECOND]);
}

#[tokio::test]
async fn jobs_of_another_namespace_with_the_uid_are_nobodys() {
    let mut world = World::new();
    world.put(json!({"concurrencyPolicy": "Replace"}));
    world.settle().await;
    let theirs = json!({"metadata": {"name": FIRST, "namespace": "elsewhere", "uid": "x", "resourceVersion": "3",
        "annotations": {"apps.kruise.io/scheduled-at": "2026-01-01T01:00:00Z"},
        "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob", "name": "cron", "uid": "c", "controller": true}]}});
    world.controller.jobs.of(JobKind::Job).upsert(serde_json::from_value(theirs).unwrap());
    world.settle_at("2026-01-01T01:00:00Z").await;
    assert_eq!(world.jobs(), [FIRST], "a job of that name elsewhere takes no slot");
    let active = world.status()["active"].clone();
    assert_eq!((active.as_array().unwrap().len(), &active[0]["namespace"]), (1, &json!("ns")));
}

#[tokio::test]
async fn the_history_is_kept_while_it_is_paused() {
    let mut world = World::new();
    world.put(json!({"failedJobsHistoryLimit": 0}));
    world.settle().await;
    world.settle_at("2026-01-01T01:00:00Z").await;
    world.put(json!({"paused": true}));
    world.end(FIRST, "Failed");
    assert_eq!(world.settle_at("2026-01-01T05:00:00Z").await, Requeue::Await);
    assert_eq!(world.jobs(), Vec::<String>::new());
    assert_eq!(world.status()["nextScheduleTime"], Value::Null);
    assert_eq!(world.status()["conditions"][0]["reason"], "Paused");
}

#[tokio::test]
async fn while_the_status_is_refused_the_history_is_trimmed_of_what_is_recorded() {
    let mut world = World::new();
    world.put(json!({"failedJobsHistoryLimit": 0, "successfulJobsHistoryLimit": 0}));
    world.settle().await;
    for (slot, name, how) in [("2026-01-01T01:00:00Z", FIRST, "Failed"), ("2026-01-01T02:00:00Z", SECOND, "Complete")] {
        world.settle_at(slot).await;
        lock(&world.server).refuses_status = Some(422);
        world.end(name, how);
        assert!(world.pass().await.is_err());
        // A success is not in the status yet; what failed is never recorded.
        let kept: &[&str] = if how == "Failed" { &[] } else { &[SECOND] };
        assert_eq!(world.jobs(), kept);
        lock(&world.server).refuses_status = None;
    }
    let before = world.writes();
    world.pass().await.unwrap();
    let methods: Vec<Method> = lock(&world.server).writes[before..].iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(methods, [Method::PATCH, Method::DELETE], "in the same pass");
    assert_eq!(world.status()["lastSuccessfulTime"], "2026-01-01T01:00:09Z");
}

#[tokio::test(start_paused = true)]
async fn after_an_error_a_slot_that_is_due_does_not_wait_for_the_back_off() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    // What the watch has put in.
    while let Some(key) = world.controller.queue.begin() {
        world.controller.queue.done::<kube::Error>(key, Ok(Requeue::Await));
    }
    lock(&world.server).refuses_status = Some(500);
    // The status changes with it.
    world.put(json!({"schedule": "0,30 * * * *"}));
    world.now = at("2026-01-01T00:29:58Z");
    assert!(world.pass().await.is_err());
    assert_eq!(world.controller.queue.begin(), None);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.controller.queue.begin(), Some(ObjectKey::new("ns", "cron")));
}

#[tokio::test(start_paused = true)]
async fn a_slot_does_not_wait_for_what_the_pass_before_has_taken() {
    let world = World::new();
    world.put(json!({}));
    world.settle().await;
    tokio::time::advance(Duration::from_secs(100)).await;
    let cron = world.controller.crons.get(&ObjectKey::new("ns", "cron")).unwrap();
    for (took, wait) in [(0, 60), (7, 53), (60, 0), (90, 0)] {
        let mono = clock::now().mono.saturating_sub(Duration::from_secs(took));
        let began = Now { wall: at("2026-01-01T00:59:00Z"), mono };
        let next = world.controller.pass(&cron, &TimeZone::UTC, began).await.unwrap();
        assert_eq!(next, Requeue::After(Duration::from_secs(wait)), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_jobs_that_are_due_are_made_before_any_status_and_as_many_at_a_time_as_pods_are() {
    let due = 480;
    let server: Arc<Mutex<Server>> = Arc::default();
    let answers = server.clone();
    let mut context = in_memory::context(move |request, body| lock(&answers).answer(request, body));
    let inner = context.client.clone();
    let slow = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            inner.send(request).await
        }
    });
    context.client = kube::Client::new(slow, "default");
    let controller = Arc::new(Controller::new(&context));
    for index in 0..due {
        let name = format!("cron-{index}");
        let cron = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "generation": 1,
                "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"schedule": "0 0 1 1 *", "template": {"jobTemplate": {"spec": {"x": 1}}}}});
        controller.crons.upsert(serde_json::from_value(cron).unwrap());
        controller.queue.add(ObjectKey::new("ns", &name));
    }
    let (stop, shutdown) = tokio::sync::watch::channel(false);
    let run = controller.queue.run(REGISTRATION.workers, shutdown, |key: ObjectKey, _| {
        let this = controller.clone();
        async move { this.reconcile(&key).await }
    });
    let begun = clock::now().mono;
    let made = async {
        while lock(&server).writes.len() < due {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send(true).unwrap();
        clock::now().mono - begun
    };
    let ((), took) = tokio::join!(run, made);
    let writes = lock(&server).writes.clone();
    assert!(writes[..due].iter().all(|(method, path)| *method == Method::POST && path == JOBS));
    assert!(took < Duration::from_millis(1100), "ten times 48, a tenth of a second each: {took:?}");
}

#[tokio::test]
async fn f36_after_a_conflict_the_next_pass_writes_the_status() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    world.now = at("2026-01-01T01:00:00Z");
    world.pass().await.unwrap();
    // Somebody else wrote it, and the watch has not brought that.
    let path = format!("{CRONS}/cron");
    {
        let mut server = lock(&world.server);
        let cron = server.objects.get_mut(&path).unwrap();
        cron["metadata"]["resourceVersion"] = "900".into();
        cron["metadata"]["labels"] = json!({"a": "b"});
        server.version = 900;
    }
    assert_eq!(world.pass().await.unwrap(), Requeue::After(AFTER_CONFLICT));
    assert_eq!(world.status()["lastScheduleTime"], Value::Null);
    world.pass().await.unwrap();
    assert_eq!(world.status()["lastScheduleTime"], "2026-01-01T01:00:00Z");
    assert_eq!(lock(&world.server).objects[&path]["metadata"]["labels"], json!({"a": "b"}));
}

#[tokio::test]
async fn f42_the_end_of_a_job_wakes_its_cron() {
    let mut world = World::new();
    world.put(json!({}));
    world.settle().await;
    world.settle_at("2026-01-01T01:00:00Z").await;
    let job = |end: Value| {
        let mut job = world.job(FIRST);
        json_patch::merge(&mut job, &json!({"status": {"conditions": end}}));
        Arc::new(serde_json::from_value::<Child>(job).unwrap())
    };
    let (before, ended) = (job(json!([])), job(json!([{"type": "Complete", "status": "True"}])));
    let of_others = json!({"metadata": {"name": "x", "namespace": "ns", "uid": "x"}});
    let of_others = Arc::new(serde_json::from_value::<Child>(of_others).unwrap());
    let queue = &world.controller.queue;
    for (old, new, woken) in [(&before, &ended, true), (&of_others, &of_others, false)] {
        world.controller.job_changed(&Change::Applied { old: Some(old), new, initial: false });
        let key = queue.begin();
        assert_eq!(key, woken.then(|| ObjectKey::new("ns", "cron")));
        key.into_iter().for_each(|key| queue.done::<kube::Error>(key, Ok(Requeue::Await)));
    }
}

#[tokio::test]
async fn missed_times_are_counted_once() {
    let mut world = World::new();
    world.put(json!({"startingDeadlineSeconds": 30}));
    world.settle().await;
    for _ in 0..3 {
        world.settle_at("2026-01-01T05:30:00Z").await;
    }
    assert_eq!(world.controller.metrics.missed.get(), 5);
    world.settle_at("2026-01-01T06:01:00Z").await;
    assert_eq!(world.controller.metrics.missed.get(), 6);
    assert_eq!(world.jobs(), Vec::<String>::new());
}

#[tokio::test]
async fn f43_what_one_process_has_told_as_missed_is_not_told_by_the_next() {
    let mut world = World::new();
    world.put(json!({"startingDeadlineSeconds": 30}));
    world.settle().await;
    world.settle_at("2026-01-01T05:30:00Z").await;
    assert_eq!(world.controller.metrics.missed.get(), 5);
    // Each process counts from zero.
    for (now, missed) in [
        ("2026-01-01T05:30:01Z", 0),
        ("2026-01-01T05:45:00Z", 0),
        ("2026-01-01T06:01:00Z", 1),
        ("2026-01-01T09:01:00Z", 3),
        ("2026-01-01T09:02:00Z", 0),
    ] {
        world.restart();
        for _ in 0..2 {
            world.settle_at(now).await;
        }
        assert_eq!(world.controller.metrics.missed.get(), missed, "{now}");
    }
    // The job that is made was not missed.
    world.settle_at("2026-01-01T10:00:00Z").await;
    assert_eq!((world.controller.metrics.missed.get(), world.jobs().len()), (0, 1));
}

/// What was due when the status was written may have become late while nobody was there.
#[tokio::test]
async fn f43_a_job_that_was_refused_until_its_process_ended_is_reported_as_missed_by_the_next() {
    let mut world = World::new();
    world.put(json!({"startingDeadlineSeconds": 30}));
    world.settle().await;
    lock(&world.server).refuses = Some(403);
    world.now = at("2026-01-01T01:00:00Z");
    assert!(world.pass().await.is_err());
    assert_eq!(world.status()["nextScheduleTime"], "2026-01-01T02:00:00Z");
    world.restart();
    world.settle_at("2026-01-01T01:30:00Z").await;
    assert_eq!(world.controller.metrics.missed.get(), 1);
}

/// The status must not say that nothing is due: the next process goes by it.
#[tokio::test]
async fn f43_times_missed_while_a_job_could_not_be_replaced_are_told_by_the_next_process() {
    let mut world = World::new();
    world.put(json!({"concurrencyPolicy": "Replace"}));
    world.settle().await;
    world.settle_at("2026-01-01T01:00:00Z").await;
    lock(&world.server).refuses_deletion = Some(403);
    for hour in 2..=5 {
        world.now = at(&format!("2026-01-01T0{hour}:00:00Z"));
        // The slot of the job that goes is recorded first.
        while world.pass().await.is_ok() {}
    }
    let condition = world.status()["conditions"][1].clone();
    assert_eq!(condition["reason"], "FailedCreate", "{condition}");
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("a job that is to be replaced cannot be deleted: "), "{message}");
    lock(&world.server).refuses_deletion = None;
    world.restart();
    world.settle_at("2026-01-01T05:30:00Z").await;
    assert_eq!(world.jobs(), ["cron-1767243600"]);
    assert_eq!(world.controller.metrics.missed.get(), 3, "those of two, three and four o'clock");
}

/// The answer to its creation says that the latest job is there, or what is found when it is sent again, or the watch.
#[tokio::test(start_paused = true)]
async fn c5_6_the_latest_job_and_what_was_missed_before_it_are_told_once_however_it_is_seen_to_be_there() {
    for seen_by in ["answer", "retry", "watch"] {
        let mut world = World::new();
        world.hear_events();
        world.put(json!({}));
        world.settle().await;
        world.now = at("2026-01-01T05:30:00Z");
        let is_lost = seen_by != "answer";
        lock(&world.server).loses_answers = is_lost;
        assert_eq!(world.pass().await.is_err(), is_lost, "{seen_by}");
        assert_eq!(world.jobs().len(), 1, "{seen_by}");
        assert_eq!(world.controller.metrics.missed.get(), if is_lost { 0 } else { 4 }, "{seen_by}");
        lock(&world.server).loses_answers = false;
        if seen_by == "watch" {
            let job = serde_json::from_value(world.job(&world.jobs()[0])).unwrap();
            world.controller.jobs.of(JobKind::Job).upsert(job);
        }
        for _ in 0..2 {
            world.settle().await;
        }
        // Events are sent by a task of their own.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let events: Vec<String> = lock(&world.server).events.clone();
        let missed: Vec<&String> = events.iter().filter(|event| event.starts_with("MissedSchedule")).collect();
        let (first, last) = ("2026-01-01T01:00:00Z", "2026-01-01T05:00:00Z");
        let want = format!("MissedSchedule missed 4 since {first}: only the latest job, of {last}, was made");
        assert_eq!(missed, [&want], "{seen_by}: {events:?}");
        let made: Vec<&String> = events.iter().filter(|event| event.starts_with("SuccessfulCreate")).collect();
        let want = format!("SuccessfulCreate created Job {} for {last}", world.jobs()[0]);
        assert_eq!(made, [&want], "{seen_by}: {events:?}");
        let of_jobs = KindLabels { kind: "Job" };
        assert_eq!(world.controller.metrics.made.get_or_create(&of_jobs).get(), 1, "{seen_by}");
        assert_eq!((world.controller.metrics.missed.get(), world.jobs().len()), (4, 1), "{seen_by}");
        assert_eq!(world.status()["lastScheduleTime"], last, "{seen_by}");
    }
}

#[test]
fn a_clock_that_is_set_is_noticed() {
    let now = |wall: &str, mono: u64| Now { wall: at(wall), mono: Duration::from_secs(mono) };
    let before = now("2026-01-01T00:00:00Z", 100);
    for (wall, mono, wanted) in [
        ("2026-01-01T00:00:02Z", 102, false),
        ("2026-01-01T00:00:02.9Z", 102, false),
        ("2026-01-01T01:00:02Z", 102, true),
        ("2025-12-31T23:59:00Z", 102, true),
        // A machine that slept: neither clock went on, or both.
        ("2026-01-01T00:10:00Z", 700, false),
    ] {
        assert_eq!(was_set(before, now(wall, mono)), wanted, "{wall} {mono}");
    }
}

/// What a pass notes after the watch has told of the deletion would be kept for ever.
#[tokio::test]
async fn nothing_is_remembered_of_one_that_was_deleted_during_a_pass() {
    let key = ObjectKey::new("ns", "cron");
    let deleted = key.clone();
    let controller = in_memory::deleting_while_asked(403, Controller::new, move |controller| {
        controller.crons.remove(&deleted, None);
        lock(&controller.memories).remove(&deleted);
    });
    let cron = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
        "metadata": {"name": "cron", "namespace": "ns", "uid": "c", "generation": 1, "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"schedule": "* * * * *", "template": {"jobTemplate": {"spec": {"x": 1}}}}});
    controller.crons.upsert(serde_json::from_value(cron).unwrap());
    assert!(controller.reconcile(&key).await.is_err());
    assert!(controller.crons.is_empty() && lock(&controller.memories).is_empty());
}
