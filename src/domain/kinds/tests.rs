//! What the kinds have in common: whatever the state, one condition tells tools how far an object is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    broadcast_job, clone_set, cron_job, daemon_set, ephemeral_job, image_jobs, persistent_pod_state,
    resource_distribution, sidecar_set, stateful_set, united_deployment, workload_restart, workload_spread,
};
use crate::{
    api::{
        apps::{
            advanced_cron_job::AdvancedCronJob,
            broadcast_job::{BroadcastJob, BroadcastJobStatus},
            clone_set::{CloneSet, CloneSetStatus},
            daemon_set::DaemonSet,
            ephemeral_job::EphemeralJob,
            image_list_pull_job::ImageListPullJob,
            image_pull_job::{ImagePullJob, ImagePullJobStatus},
            persistent_pod_state::PersistentPodStateStatus,
            resource_distribution::ResourceDistributionStatus,
            sidecar_set::SidecarSetStatus,
            united_deployment::{UnitedDeployment, UnitedDeploymentStatus},
            workload_spread::WorkloadSpreadStatus,
        },
        labels::{CONDITION_COMPLETE, CONDITION_FAILED, CONDITION_PROGRESSING},
        wr::WorkloadRestartStatus,
    },
    domain::{
        node::backoff::Failures,
        workload::{
            conditions::{self, FAILED_CREATE, FAILED_UPDATE},
            owner::OwnerRef,
            status::{KSTATUS, Progress, READY, RECONCILING, STALLED},
            steps::Wait,
            turns::Turns,
        },
    },
    k8s::{conditions as k8s_conditions, node::NodeView, time::Now},
};

/// The condition that is to be true, and a status.
type Said = (&'static str, Value);

fn now() -> Now {
    Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), mono: Duration::from_secs(1_000) }
}

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn why() -> String {
    "why".to_owned()
}

/// Fails unless each of the three conditions is there once with a reason, and this one alone is true.
#[track_caller]
fn assert_one_is_true(what: &str, wanted: &str, status: &Value) {
    let conditions = status["conditions"].as_array().unwrap_or_else(|| panic!("{what}: no conditions: {status}"));
    for type_ in KSTATUS {
        let found: Vec<&Value> = conditions.iter().filter(|condition| condition["type"] == type_).collect();
        let [condition] = found[..] else { panic!("{what}: {type_} is there {} times: {status}", found.len()) };
        let is = if type_ == wanted { "True" } else { "False" };
        assert_eq!(condition["status"], is, "{what}: {type_}, and {wanted} is to be True: {status}");
        assert!(condition["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{what}: {condition}");
    }
}

#[test]
fn decision_32_each_kind_says_with_exactly_one_condition_how_far_it_is() {
    let kinds = [
        ("broadcast_job", of_broadcast_jobs()),
        ("clone_set", of_clone_sets()),
        ("cron_job", of_cron_jobs()),
        ("daemon_set", of_daemon_sets()),
        ("ephemeral_job", of_ephemeral_jobs()),
        ("image_jobs", of_image_jobs()),
        ("image_jobs", of_image_lists()),
        ("persistent_pod_state", of_pod_states()),
        ("resource_distribution", of_distributions()),
        ("sidecar_set", of_sidecar_sets()),
        ("stateful_set", of_stateful_sets()),
        ("united_deployment", of_united_deployments()),
        ("workload_restart", of_restarts()),
        ("workload_spread", of_spreads()),
    ];
    for (kind, said) in &kinds {
        for (i, (wanted, status)) in said.iter().enumerate() {
            assert_one_is_true(&format!("{kind}, state {i}"), wanted, status);
        }
        for type_ in KSTATUS {
            assert!(said.iter().any(|(wanted, _)| *wanted == type_), "{kind}: no state is {type_}");
        }
    }
    let folders = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let missing: Vec<&str> = folders.filter(|folder| !kinds.iter().any(|(kind, _)| kind == folder)).collect();
    assert!(missing.is_empty(), "put their states into the table: {missing:?}");
}

fn of_broadcast_jobs() -> Vec<Said> {
    let run = |spec: Value| {
        let mut job = json!({"metadata": {"name": "job", "namespace": "ns", "uid": "j", "generation": 1},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        json_patch::merge(&mut job["spec"], &spec);
        let job: BroadcastJob = read(job);
        let spec = broadcast_job::spec::BroadcastSpec::of(&job, false).unwrap();
        let node: NodeView = read(json!({"metadata": {"name": "n"}}));
        let nodes = [broadcast_job::pod::BroadcastNode::of(&node, &spec)];
        let (recorded, tries) = (BroadcastJobStatus::default(), Failures::default());
        let observed = broadcast_job::plan::BroadcastObserved {
            spec: &spec,
            recorded: &recorded,
            nodes: &nodes,
            pods: &[],
            age: Duration::ZERO,
            ended: Duration::ZERO,
            tries: &tries,
            now: now(),
        };
        let plan = broadcast_job::plan::plan(&observed);
        json!(broadcast_job::status::status(&observed, &plan, 1, None))
    };
    vec![
        (READY, run(json!({"parallelism": 0}))),
        (READY, run(json!({"paused": true}))),
        (RECONCILING, run(json!({}))),
        (STALLED, json!(broadcast_job::status::invalid(&BroadcastJobStatus::default(), 1, why(), now()))),
    ]
}

fn of_clone_sets() -> Vec<Said> {
    use clone_set::status::{self, Outcome};

    use crate::domain::workload::status::DEFAULTS_UNKNOWN;
    let with = |replicas: i32, outcome: &Outcome| {
        let set: CloneSet = read(json!({"metadata": {"name": "web", "generation": 3},
            "spec": {"replicas": replicas, "selector": {}, "template": {}}}));
        let spec = clone_set::spec::Spec::of(&set);
        let revisions = ("web-1", "web-2");
        json!(status::status((&set, &spec), (&[], 0), revisions, String::new(), outcome, now().wall).0)
    };
    let impossible = Outcome { impossible: Some(why()), ..Outcome::default() };
    let unresolved = status::unresolved(&CloneSetStatus::default(), (DEFAULTS_UNKNOWN, why()), "why", now().wall);
    vec![
        (READY, with(0, &Outcome::default())),
        (RECONCILING, with(2, &Outcome::default())),
        (RECONCILING, json!(unresolved)),
        (STALLED, with(2, &impossible)),
    ]
}

fn of_cron_jobs() -> Vec<Said> {
    let run = |schedule: &str, trouble: Option<&str>| {
        let cron: AdvancedCronJob =
            read(json!({"metadata": {"name": "cron", "namespace": "ns", "uid": "u", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": schedule, "template": {"jobTemplate": {"spec": {}}}}}));
        let spec = cron_job::spec::CronSpec::of(&cron.spec, &TimeZone::UTC);
        let remembered = cron_job::plan::Remembered::default();
        let plan = cron_job::plan::plan(&cron, spec.as_ref().ok(), &[], remembered, now().wall);
        json!(cron_job::status::status(&cron, spec.as_ref(), (&plan, &[]), trouble, now().wall))
    };
    vec![
        (READY, run("0 * * * *", None)),
        (RECONCILING, run("0 * * * *", Some("quota"))),
        (STALLED, run("0 0 30 2 *", None)),
    ]
}

/// As the controllers of StatefulSets and DaemonSets write it.
fn merged(progress: &Progress) -> Value {
    let none = [(FAILED_CREATE, None), (FAILED_UPDATE, None)];
    json!({ "conditions": conditions::merged(&[], progress, none, now()) })
}

fn wait() -> Wait {
    Wait { reason: "Reason", message: why() }
}

fn of_daemon_sets() -> Vec<Said> {
    use daemon_set::plan::{Observed, Outline};
    let set: DaemonSet = read(json!({"metadata": {"name": "agent", "uid": "set"}, "spec": {"selector": {},
        "template": {"spec": {"containers": [{"name": "main", "image": "i:1"}]}}}}));
    let spec = daemon_set::spec::Spec::of(&set).unwrap();
    let (failures, outages, turns) = (Failures::default(), BTreeMap::new(), Turns::default());
    let observed = Observed {
        spec: &spec,
        nodes: &[],
        pods: &[],
        update: "1",
        update_since: None,
        revisions: &[],
        allowed: None,
        failures: &failures,
        outages: &outages,
        turns: &turns,
        now: now(),
    };
    let outline = Outline { wait: None, impossible: None, is_idle: true, is_held: false };
    let of = |outline: &Outline| {
        let counts = daemon_set::status::counts(&observed);
        merged(&daemon_set::status::progress(&observed, &counts, outline))
    };
    vec![
        (READY, of(&outline)),
        (RECONCILING, of(&Outline { is_idle: false, ..outline.clone() })),
        (RECONCILING, of(&Outline { wait: Some(wait()), ..outline.clone() })),
        (STALLED, of(&Outline { impossible: Some(wait()), ..outline.clone() })),
    ]
}

fn of_stateful_sets() -> Vec<Said> {
    use stateful_set::{plan::Plan, spec::Spec, status::Counts};
    let of = |replicas: i32, plan: &Plan| {
        let spec = Spec { replicas, ..Spec::default() };
        merged(&stateful_set::status::progress(&spec, &Counts::default(), plan))
    };
    vec![
        (READY, of(0, &Plan::default())),
        (RECONCILING, of(1, &Plan::default())),
        (RECONCILING, of(0, &Plan { wait: Some(wait()), ..Plan::default() })),
        (STALLED, of(1, &Plan { impossible: Some(wait()), ..Plan::default() })),
    ]
}

fn of_ephemeral_jobs() -> Vec<Said> {
    let run = |spec: Value| {
        let mut whole = json!({"selector": {"matchLabels": {"app": "web"}},
            "template": {"ephemeralContainers": [{"name": "look", "image": "busybox"}]}});
        json_patch::merge(&mut whole, &spec);
        let job: EphemeralJob = read(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob",
            "metadata": {"name": "j", "namespace": "ns", "uid": "u", "generation": 1}, "spec": whole}));
        let mut memory = ephemeral_job::memory::EphemeralMemory::default();
        json!(ephemeral_job::plan::plan(&job, &[], &mut memory, Duration::ZERO, now()).status)
    };
    vec![
        (READY, run(json!({"paused": true}))),
        (READY, run(json!({"parallelism": 0}))),
        (READY, run(json!({"replicas": 0}))),
        (RECONCILING, run(json!({}))),
        (STALLED, run(json!({"template": {"ephemeralContainers": []}}))),
    ]
}

fn of_image_jobs() -> Vec<Said> {
    use image_jobs::job::{self, Class, Node, ObservedJob};
    let run = |class: Class| {
        let job: ImagePullJob = read(json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
            "metadata": {"name": "j", "namespace": "a", "uid": "u"}, "spec": {"image": "app:v1"}}));
        let job = job::Job::of(&job).unwrap();
        let (status, nodes) = (ImagePullJobStatus::default(), [Node { name: "n".into(), class, refused: None }]);
        let observed = ObservedJob {
            job: &job,
            status: &status,
            generation: Some(1),
            nodes: &nodes,
            joining: 0,
            age: Duration::ZERO,
        };
        json!(job::plan(&observed, now()).status)
    };
    vec![
        (READY, run(Class::Succeeded)),
        (RECONCILING, run(Class::Unassigned)),
        (STALLED, run(Class::Failed(why()))),
        (STALLED, json!(job::invalid(&ImagePullJobStatus::default(), Some(1), "why", now()))),
    ]
}

fn of_image_lists() -> Vec<Said> {
    use image_jobs::list;
    let whole: ImageListPullJob = read(json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob",
        "metadata": {"name": "list", "namespace": "ns", "uid": "l"}, "spec": {"images": ["a:1"]}}));
    let spec = image_jobs::list_spec::ListSpec::of(&whole);
    let run = |children: &[Arc<ImagePullJob>]| list::plan(&whole, &spec, children, now());
    let began = run(&[]);
    let done = |succeeded: i32| {
        let end = "2026-01-01T00:00:00Z";
        let status = json!({"startTime": end, "completionTime": end, "desired": 1, "succeeded": succeeded, "failed": 1 - succeeded});
        let child = ImagePullJob { status: Some(read(status)), ..began.create[0].clone() };
        json!(run(&[Arc::new(child)]).status)
    };
    vec![
        (READY, done(1)),
        (RECONCILING, json!(began.status)),
        (STALLED, done(0)),
        (STALLED, json!(list::invalid(&whole, "why", now()))),
    ]
}

fn of_pod_states() -> Vec<Said> {
    use persistent_pod_state::plan::{self, Hindrance, StateFacts, StatePlan, StateTargetView};
    let of = |outcome: Result<(&StatePlan, &StateFacts), &Hindrance>| {
        json!(plan::status(None, outcome, &PersistentPodStateStatus::default(), Some(1), now().wall))
    };
    let (plan, missing) = (StatePlan::default(), StateFacts::default());
    let there = StateFacts { target: Some(StateTargetView::default()), ..StateFacts::default() };
    vec![
        (READY, of(Ok((&plan, &there)))),
        (RECONCILING, of(Ok((&plan, &missing)))),
        (STALLED, of(Err(&Hindrance::Invalid(why())))),
    ]
}

fn of_distributions() -> Vec<Said> {
    use resource_distribution::{
        plan::Counts,
        status::{self, About, Situation},
    };
    let of = |counts: &Counts, situation: &Situation| {
        let before = ResourceDistributionStatus::default();
        let about = About { generation: 1, has_reference: true, is_watched: true, before: &before };
        json!(status::status(counts, situation, about, now().wall))
    };
    let (none, one) = (Counts::default(), Counts { waiting: 1, ..Counts::default() });
    vec![
        (READY, of(&none, &Situation::Working)),
        (RECONCILING, of(&one, &Situation::Working)),
        (RECONCILING, of(&none, &Situation::Unwatched)),
        (RECONCILING, of(&none, &Situation::Reference("Reason", why()))),
        (STALLED, of(&none, &Situation::Invalid(why()))),
    ]
}

fn of_sidecar_sets() -> Vec<Said> {
    use sidecar_set::{
        plan::{Counts, Held, Plan},
        status::{self, Facts},
    };
    let before = SidecarSetStatus::default();
    let of = |plan: &Plan| json!(status::status(plan, &Facts::default(), &before, now().wall));
    let waiting = Plan { counts: Counts { matched: 1, ..Counts::default() }, ..Plan::default() };
    vec![
        (READY, of(&Plan::default())),
        (READY, of(&Plan { held: Some(Held::Paused), ..waiting.clone() })),
        (RECONCILING, of(&waiting)),
        (RECONCILING, json!(status::unresolved("why", 1, &before, now().wall))),
        (STALLED, json!(status::invalid("why", 1, &before, now().wall))),
    ]
}

fn of_united_deployments() -> Vec<Said> {
    use united_deployment::{
        plan::{UnitedPlan, UnitedSeen},
        spec::UnitedSpec,
        status::{self, PassFailures},
    };
    let object = |replicas: i32| -> UnitedDeployment {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}}}});
        read(json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 1}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {"cloneSetTemplate": template},
            "topology": {"subsets": []}}}))
    };
    let recorded = UnitedDeploymentStatus::default();
    let of = |replicas: i32, plan: &UnitedPlan| {
        let (object, failures) = (object(replicas), PassFailures::default());
        let (spec, owner) = (UnitedSpec::of(&object).unwrap(), OwnerRef::of(&object));
        let seen = UnitedSeen { owner: &owner, children: &[], recorded: &recorded, update: "r" };
        json!(status::status(&spec, 1, seen, plan, &failures, now()))
    };
    let whole = object(1);
    let spec = UnitedSpec::of(&whole).unwrap();
    let impossible = UnitedPlan { impossible: Some(("Reason", why())), ..UnitedPlan::default() };
    vec![
        (READY, of(0, &UnitedPlan::default())),
        (RECONCILING, of(1, &UnitedPlan::default())),
        (RECONCILING, json!(status::failed(&recorded, 1, &spec, ("Reason", "why"), now()))),
        (STALLED, of(1, &impossible)),
        (STALLED, json!(status::invalid(&recorded, 1, UnitedSpec::selector_of(&whole), "why", now()))),
    ]
}

fn of_restarts() -> Vec<Said> {
    let of = |type_: &str, is_true: bool, reason: &str| {
        let mut status = WorkloadRestartStatus::default();
        let wanted = k8s_conditions::Wanted::new(is_true, reason, "");
        k8s_conditions::set(&mut status.conditions, type_, wanted, Some(1), now().wall);
        workload_restart::set_kstatus(&mut status, now());
        json!(status)
    };
    vec![
        (READY, of(CONDITION_COMPLETE, true, "Reason")),
        (READY, of(CONDITION_PROGRESSING, false, "Paused")),
        (RECONCILING, of(CONDITION_PROGRESSING, true, "Reason")),
        (STALLED, of(CONDITION_FAILED, true, "Reason")),
    ]
}

fn of_spreads() -> Vec<Said> {
    use workload_spread::{
        plan::SpreadPlan,
        status::{self, SpreadHindrance},
    };
    let of = |outcome: Result<&SpreadPlan, &SpreadHindrance>| {
        let outcome = outcome.map_err(|hindrance| (hindrance, None));
        json!(status::status(None, outcome, &WorkloadSpreadStatus::default(), Some(1), now().wall))
    };
    vec![
        (READY, of(Ok(&SpreadPlan::default()))),
        (RECONCILING, of(Ok(&SpreadPlan { coming: 1, ..SpreadPlan::default() }))),
        (RECONCILING, of(Err(&SpreadHindrance::Missing))),
        (STALLED, of(Err(&SpreadHindrance::Invalid(why())))),
    ]
}
