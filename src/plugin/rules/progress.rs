//! What is shown of a request while it runs, and how it ended.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

pub use super::outcome::{Line, Mark, Outcome, Waited};
use super::{
    JsonPointer,
    exit::Exit,
    rollout::{Rollout, Rolls},
    table::{self, age},
};
use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateState, Phase},
    domain::node::recreate::states_of,
    k8s::time::Now,
};

/// A request of either kind, or a workload with its roll-out, as it was seen.
#[derive(Clone, Debug)]
pub enum Watched {
    /// Restarts containers of one Pod.
    Request(Box<ContainerRecreateRequest>),
    /// Restarts the Pods of a workload.
    Workload(Value),
    /// Gets Pods to another revision.
    Rollout(Rollout),
}

/// A request of another shape than this release knows.
#[derive(Debug, thiserror::Error)]
#[error("request {name} cannot be read: {error}; a newer kubectl-kruise may know it")]
pub struct UnknownShape {
    name: String,
    error: serde_json::Error,
}

impl Watched {
    /// Reads an object by its kind.
    ///
    /// # Errors
    /// It is of another shape than this release knows.
    pub fn read(object: Value) -> Result<Self, UnknownShape> {
        if object.text("/kind") == "WorkloadRestart" {
            return Ok(Self::Workload(object));
        }
        if Rolls::of(&object).is_some() {
            return Ok(Self::Rollout(Rollout::new(object, None)));
        }
        let name = object.text("/metadata/name").to_owned();
        serde_json::from_value(object)
            .map(|request| Self::Request(Box::new(request)))
            .map_err(|error| UnknownShape { name, error })
    }

    /// The same thing as it is now.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn again(&self, object: Value) -> Result<Self, UnknownShape> {
        match self {
            Self::Rollout(rollout) => Ok(Self::Rollout(rollout.again(object))),
            Self::Request(_) | Self::Workload(_) => Self::read(object),
        }
    }

    /// What to show.
    pub fn lines(&self) -> Vec<Line> {
        match self {
            Self::Request(request) => lines_of_request(request),
            Self::Workload(object) => vec![line_of_workload(object)],
            Self::Rollout(rollout) => vec![rollout.line()],
        }
    }

    /// The last word, when waiting has ended.
    pub fn verdict(&self, reference: &str, waited: &Waited, elapsed: Duration, namespace: &str) -> String {
        match self {
            Self::Rollout(rollout) => rollout.verdict(waited, elapsed),
            Self::Workload(object) if *waited == Waited::Ended(Outcome::Succeeded) => {
                verdict(reference, waited, elapsed, namespace) + &all_left_out(object)
            }
            Self::Request(_) | Self::Workload(_) => verdict(reference, waited, elapsed, namespace),
        }
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Request(request) => outcome_of_request(request),
            Self::Workload(object) => outcome_of_workload(object),
            Self::Rollout(rollout) => rollout.outcome(),
        }
    }
}

fn lines_of_request(request: &ContainerRecreateRequest) -> Vec<Line> {
    let line = |state: &ContainerRecreateState| {
        let (mark, text) = match &state.phase {
            Phase::Succeeded if state.message.is_empty() => (Mark::Done, "restarted".to_owned()),
            Phase::Succeeded => (Mark::Done, state.message.clone()),
            Phase::Failed => (Mark::Failed, format!("failed: {}", or(&state.message, "no reason was given"))),
            Phase::Recreating => (Mark::Working, working(state)),
            // Another implementation leaves containers as they are when their request ends early.
            _ if request.is_completed() => (Mark::Failed, "not restarted".to_owned()),
            _ => (Mark::Waiting, waiting(request, state)),
        };
        Line { subject: format!("{}/{}", request.spec.pod_name, state.name), mark, text, bar: None }
    };
    states_of(request).iter().map(line).collect()
}

/// A container on its way, from what was recorded of it.
fn working(state: &ContainerRecreateState) -> String {
    let text = match state {
        _ if !state.message.is_empty() => return state.message.clone(),
        ContainerRecreateState { is_killed: false, .. } => "stopping",
        ContainerRecreateState { started_at: None, .. } => "stopped; waiting for kubelet to start it",
        _ => "started; waiting until it is ready",
    };
    text.to_owned()
}

fn waiting(request: &ContainerRecreateRequest, state: &ContainerRecreateState) -> String {
    let of_request = request.status.as_ref().map_or("", |status| status.message.as_str());
    match request.phase() {
        Phase::Empty => "waiting to be taken up",
        _ => or(&state.message, or(of_request, "waiting")),
    }
    .to_owned()
}

fn outcome_of_request(request: &ContainerRecreateRequest) -> Outcome {
    if !request.is_completed() {
        return Outcome::Open;
    }
    let states = states_of(request);
    let bad: Vec<&str> = states.iter().filter(|s| s.phase != Phase::Succeeded).map(|s| s.name.as_str()).collect();
    if bad.is_empty() {
        return Outcome::Succeeded;
    }
    let message = request.status.as_ref().map_or("", |status| status.message.as_str());
    let names = bad.join(", ");
    Outcome::Failed(if message.is_empty() { format!("not restarted: {names}") } else { message.to_owned() })
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// What a request restarts, as the user named it: `pod/web`, `deployment/api`, `-l app=web`.
pub fn target_of(object: &Value) -> String {
    if object.text("/kind") == "WorkloadRestart" {
        let kind = object.text("/spec/targetRef/kind").to_ascii_lowercase();
        return match object.text("/spec/targetRef/name") {
            "" => selected(&object["spec"]["selector"]),
            name => format!("{kind}/{name}"),
        };
    }
    format!("pod/{}", object.text("/spec/podName"))
}

/// A LabelSelector in a few characters.
fn selected(selector: &Value) -> String {
    let labels = selector.pointer("/matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    if !selector.list("/matchExpressions").is_empty() {
        parts.push("...".into());
    }
    format!("-l {}", parts.join(","))
}

fn outcome_of_workload(object: &Value) -> Outcome {
    if let Some(failed) = object.true_condition("Failed") {
        let message = or(failed.text("/message"), failed.text("/reason"));
        return Outcome::Failed(or(message, "no reason was given").to_owned());
    }
    match (object.true_condition("Complete"), object.int("/status/failed")) {
        (None, _) => Outcome::Open,
        (Some(_), _) if object.int("/status/total") == 0 && is_chosen_by_labels(object) => {
            Outcome::Nothing(format!("no Pod matches {}", target_of(object)))
        }
        (Some(_), 0) => Outcome::Succeeded,
        // Within its failure threshold: a good end, but not all that was asked for.
        (Some(complete), _) => Outcome::Failed(complete.text("/message").to_owned()),
    }
}

/// Whether it is for Pods that match something, and not for a workload, which may have no Pods on purpose.
fn is_chosen_by_labels(restart: &Value) -> bool {
    restart.text("/spec/targetRef/name").is_empty() || restart.text("/spec/targetRef/kind") == "SidecarSet"
}

/// What to add where no Pod needed a restart: nobody expects that.
fn all_left_out(restart: &Value) -> String {
    match (restart.int("/status/restarted"), restart.int("/status/skipped")) {
        (0, skipped @ 1..) => format!("; no Pod was restarted, {skipped} left out"),
        _ => String::new(),
    }
}

fn line_of_workload(object: &Value) -> Line {
    let count = |name: &str| u64::try_from(object.int(&format!("/status/{name}"))).unwrap_or_default();
    let (total, restarted) = (count("total"), count("restarted"));
    let mut text = format!("{restarted} of {total} Pods restarted");
    for (name, what) in [("restarting", "under way"), ("failed", "failed"), ("skipped", "left out")] {
        if count(name) > 0 {
            text = format!("{text}, {} {what}", count(name));
        }
    }
    let message = object.text("/status/message");
    let mark = match outcome_of_workload(object) {
        Outcome::Succeeded => Mark::Done,
        Outcome::Failed(why) => {
            text = format!("{text}; {why}");
            Mark::Failed
        }
        Outcome::Nothing(why) => {
            text = why;
            Mark::Failed
        }
        Outcome::Open if object.pointer("/status").is_none() => {
            text = "waiting to be taken up".into();
            Mark::Waiting
        }
        Outcome::Open => {
            if !message.is_empty() {
                text = format!("{text}; {message}");
            }
            Mark::Working
        }
    };
    Line { subject: target_of(object), mark, text, bar: Some((restarted + count("failed") + count("skipped"), total)) }
}

/// Remembers when each line was over, so that its time stands still.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    begun: Duration,
    over: BTreeMap<String, Duration>,
}

impl Stopwatch {
    /// Starts now.
    pub fn new(now: Now) -> Self {
        Self { begun: now.mono, over: BTreeMap::new() }
    }

    /// The time to show for a line.
    pub fn time(&mut self, line: &Line, now: Now) -> Duration {
        let elapsed = self.elapsed(now);
        if line.mark.is_over() { *self.over.entry(line.subject.clone()).or_insert(elapsed) } else { elapsed }
    }

    /// Since the start.
    pub fn elapsed(&self, now: Now) -> Duration {
        now.mono.saturating_sub(self.begun)
    }
}

/// A line where nothing moves: time, subject, text.
pub fn plain(line: &Line, elapsed: Duration) -> String {
    format!("{:>7}  {}  {}", table::span(elapsed), line.subject, line.text)
}

/// The exit code for all that was waited for: the worst of them.
pub fn exit_of(waited: &[Waited]) -> Exit {
    let one = |waited: &Waited| match waited {
        Waited::Ended(Outcome::Succeeded) => Exit::Success,
        Waited::Ended(Outcome::Nothing(_)) => Exit::NotFound,
        Waited::Ended(_) | Waited::Gone => Exit::Failed,
        Waited::TimedOut => Exit::TimedOut,
        Waited::Interrupted => Exit::Interrupted,
    };
    let exits: Vec<Exit> = waited.iter().map(one).collect();
    // What failed is known; what is still open may yet go well.
    [Exit::Failed, Exit::NotFound, Exit::Interrupted, Exit::TimedOut]
        .into_iter()
        .find(|exit| exits.contains(exit))
        .unwrap_or(Exit::Success)
}

/// The last word on one request. `namespace` is for commands that the user can copy.
pub fn verdict(reference: &str, waited: &Waited, elapsed: Duration, namespace: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or_default();
    let elapsed = table::span(elapsed);
    let go_on = format!(
        "it goes on. Follow it: kubectl kruise status {name} -n {namespace} --wait; \
         take it back: kubectl kruise cancel {name} -n {namespace}"
    );
    match waited {
        Waited::Ended(Outcome::Succeeded) => format!("{reference} succeeded in {elapsed}"),
        Waited::Ended(Outcome::Failed(why)) => format!("{reference} failed after {elapsed}: {why}"),
        Waited::Ended(Outcome::Nothing(why)) => format!("{reference} ended after {elapsed}: {why}"),
        Waited::Ended(Outcome::Open) => format!("{reference} is open after {elapsed}"),
        Waited::Gone => format!("{reference} was deleted before it ended"),
        Waited::TimedOut => format!("{reference} has not ended after {elapsed}; {go_on}"),
        Waited::Interrupted => format!("{reference}: stopped watching after {elapsed}; {go_on}"),
    }
}

/// Columns of `status`.
pub const STATUS_HEADER: &[&str] = &["NAME", "TARGET", "DONE", "RESULT", "AGE", "MESSAGE"];

/// One row of `status`.
pub fn status_row(object: &Value, now: Now) -> Vec<String> {
    let short = if object.text("/kind") == "WorkloadRestart" { "wr" } else { "crr" };
    let name = format!("{short}/{}", object.text("/metadata/name"));
    let created = object.text("/metadata/creationTimestamp").parse().map_or(String::new(), |at| age(now.since(at)));
    let (done, result, message) = match Watched::read(object.clone()) {
        Err(error) => (String::new(), "Unreadable".to_owned(), error.to_string()),
        Ok(seen) => {
            let lines = seen.lines();
            let done = match lines.first().and_then(|line| line.bar) {
                Some((done, all)) => format!("{done}/{all}"),
                None => format!("{}/{}", lines.iter().filter(|l| l.mark == Mark::Done).count(), lines.len()),
            };
            let deleting = object.pointer("/metadata/deletionTimestamp").is_some();
            match seen.outcome() {
                Outcome::Succeeded => (done, "Succeeded".into(), String::new()),
                Outcome::Failed(why) => (done, "Failed".into(), why),
                Outcome::Nothing(why) => (done, "NoPods".into(), why),
                Outcome::Open => {
                    let now = lines.iter().find(|line| line.mark == Mark::Working);
                    let line = now.or_else(|| lines.iter().find(|line| !line.mark.is_over()));
                    let result = match (deleting, line.map(|line| line.mark)) {
                        (true, _) => "Deleting",
                        (_, Some(Mark::Working)) => "Running",
                        _ => "Waiting",
                    };
                    (done, result.into(), line.map(|line| line.text.clone()).unwrap_or_default())
                }
            }
        }
    };
    vec![name, target_of(object), done, result, created, message]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(super) fn at(millis: u64) -> Now {
        Now { wall: "2026-01-01T00:01:00Z".parse().unwrap(), mono: Duration::from_millis(1000 + millis) }
    }

    fn request(status: Value) -> Value {
        let mut object = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": { "name": "web-x", "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "podName": "web", "containers": [{ "name": "main" }, { "name": "other" }] } });
        if !status.is_null() {
            object["status"] = status;
        }
        object
    }
    fn states(phase: &str, message: &str, states: Value) -> Value {
        request(json!({ "phase": phase, "message": message, "containerRecreateStates": states }))
    }
    fn shown(object: Value) -> Vec<String> {
        let lines = Watched::read(object).unwrap().lines();
        lines.iter().map(|line| format!("{:?} {} {}", line.mark, line.subject, line.text)).collect()
    }

    #[test]
    fn each_state_has_its_line() {
        let table = [
            (request(Value::Null), "Waiting web/main waiting to be taken up"),
            (
                states("Pending", "waiting for request web-a of the same Pod", json!([])),
                "Waiting web/main waiting for request web-a of the same Pod",
            ),
            (
                states(
                    "Recreating",
                    "",
                    json!([{ "name": "main", "phase": "Pending",
                    "message": "waiting until the Pod has been NotReady for 5 s" }]),
                ),
                "Waiting web/main waiting until the Pod has been NotReady for 5 s",
            ),
            (states("Recreating", "", json!([{ "name": "main", "phase": "Recreating" }])), "Working web/main stopping"),
            (
                states("Recreating", "", json!([{ "name": "main", "phase": "Recreating", "isKilled": true }])),
                "Working web/main stopped; waiting for kubelet to start it",
            ),
            (
                states(
                    "Recreating",
                    "",
                    json!([{ "name": "main", "phase": "Recreating", "isKilled": true,
                    "message": "stopped; kubelet: CrashLoopBackOff: back-off 20s restarting failed container" }]),
                ),
                "Working web/main stopped; kubelet: CrashLoopBackOff: back-off 20s restarting failed container",
            ),
            (
                states(
                    "Recreating",
                    "",
                    json!([{ "name": "main", "phase": "Recreating", "isKilled": true,
                    "startedAt": "2026-01-01T00:00:00Z" }]),
                ),
                "Working web/main started; waiting until it is ready",
            ),
            (states("Recreating", "", json!([{ "name": "main", "phase": "Succeeded" }])), "Done web/main restarted"),
            (
                states(
                    "Recreating",
                    "",
                    json!([{ "name": "main", "phase": "Succeeded", "message": "already recreated" }]),
                ),
                "Done web/main already recreated",
            ),
            (
                states("Completed", "", json!([{ "name": "main", "phase": "Failed", "message": "pod has gone" }])),
                "Failed web/main failed: pod has gone",
            ),
            (states("Completed", "", json!([])), "Failed web/main not restarted"),
            (
                states("Recreating", "", json!([{ "name": "main", "phase": "PhaseOfTomorrow" }])),
                "Waiting web/main waiting",
            ),
        ];
        for (object, line) in table {
            let lines = shown(object);
            assert_eq!((lines[0].as_str(), lines.len()), (line, 2));
        }
    }

    #[test]
    fn completed_is_not_succeeded() {
        let outcome = |object| Watched::read(object).unwrap().outcome();
        let main = |phase: &str| json!({ "name": "main", "phase": phase });
        let both = |phase: &str| json!([main(phase), { "name": "other", "phase": "Succeeded" }]);
        assert_eq!(outcome(request(Value::Null)), Outcome::Open);
        assert_eq!(outcome(states("Recreating", "", both("Succeeded"))), Outcome::Open);
        assert_eq!(outcome(states("Completed", "", both("Succeeded"))), Outcome::Succeeded);
        assert_eq!(outcome(states("Completed", "", both("Failed"))), Outcome::Failed("not restarted: main".into()));
        assert_eq!(
            outcome(states("Completed", "pod has gone", json!([]))),
            Outcome::Failed("pod has gone".into()),
            "a request that never began"
        );
    }

    #[test]
    fn an_unreadable_request_says_so() {
        let error = Watched::read(request(json!({ "phase": 7 }))).unwrap_err().to_string();
        assert!(error.starts_with("request web-x cannot be read: "), "{error}");
    }

    fn workload(status: Value) -> Value {
        json!({ "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart", "metadata": { "name": "api-y" },
            "spec": { "targetRef": { "kind": "Deployment", "name": "api" } }, "status": status })
    }

    #[test]
    fn a_workload_has_a_bar() {
        let condition = |type_: &str, message: &str| json!([{ "type": type_, "status": "True", "reason": "R", "message": message }]);
        for (status, text, mark, bar) in [
            (
                json!({ "total": 10, "restarted": 3, "restarting": 2 }),
                "3 of 10 Pods restarted, 2 under way",
                Mark::Working,
                (3, 10),
            ),
            (
                json!({ "total": 10, "restarted": 10, "conditions": condition("Complete", "") }),
                "10 of 10 Pods restarted",
                Mark::Done,
                (10, 10),
            ),
            (
                json!({ "total": 10, "restarted": 9, "failed": 1, "conditions": condition("Complete", "9 of 10") }),
                "9 of 10 Pods restarted, 1 failed; 9 of 10",
                Mark::Failed,
                (10, 10),
            ),
            (
                json!({ "total": 10, "restarted": 3, "failed": 1, "conditions": condition("Failed", "too many") }),
                "3 of 10 Pods restarted, 1 failed; too many",
                Mark::Failed,
                (4, 10),
            ),
        ] {
            let line = &Watched::read(workload(status)).unwrap().lines()[0];
            assert_eq!((line.text.as_str(), line.mark, line.bar), (text, mark, Some(bar)));
            assert_eq!(line.subject, "deployment/api");
        }
    }

    #[test]
    fn a_restart_of_no_pod_is_no_success() {
        let complete = |target: Value, (total, restarted, skipped): (i64, i64, i64)| {
            let conditions = json!([{ "type": "Complete", "status": "True", "reason": "R", "message": "" }]);
            Watched::read(json!({ "kind": "WorkloadRestart", "spec": target, "status":
                { "total": total, "restarted": restarted, "skipped": skipped, "conditions": conditions } }))
            .unwrap()
        };
        let selector = json!({ "selector": { "matchLabels": { "app": "web" } } });
        let sidecars = json!({ "targetRef": { "kind": "SidecarSet", "name": "logs" } });
        let deployment = json!({ "targetRef": { "kind": "Deployment", "name": "api" } });
        let nothing = |why: &str| Outcome::Nothing(why.into());
        for (target, counts, outcome, verdict) in [
            (&selector, (0, 0, 0), nothing("no Pod matches -l app=web"), "ended after 1.0s: no Pod matches -l app=web"),
            (
                &sidecars,
                (0, 0, 0),
                nothing("no Pod matches sidecarset/logs"),
                "ended after 1.0s: no Pod matches sidecarset/logs",
            ),
            // Scaled to 0.
            (&deployment, (0, 0, 0), Outcome::Succeeded, "succeeded in 1.0s"),
            (&selector, (2, 2, 0), Outcome::Succeeded, "succeeded in 1.0s"),
            (&selector, (2, 0, 2), Outcome::Succeeded, "succeeded in 1.0s; no Pod was restarted, 2 left out"),
            (&selector, (2, 1, 1), Outcome::Succeeded, "succeeded in 1.0s"),
        ] {
            let seen = complete(target.clone(), counts);
            assert_eq!(seen.outcome(), outcome, "{target} {counts:?}");
            let told = seen.verdict("wr/x", &Waited::Ended(outcome), Duration::from_secs(1), "shop");
            assert_eq!(told, format!("wr/x {verdict}"));
        }
        let none = complete(selector, (0, 0, 0));
        assert_eq!((none.lines()[0].mark, none.lines()[0].text.as_str()), (Mark::Failed, "no Pod matches -l app=web"));
    }

    #[test]
    fn a_selector_is_named_by_its_labels() {
        let target =
            |selector: Value| target_of(&json!({ "kind": "WorkloadRestart", "spec": { "selector": selector } }));
        assert_eq!(target(json!({ "matchLabels": { "app": "web", "tier": "a" } })), "-l app=web,tier=a");
        assert_eq!(target(json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{}] })), "-l app=web,...");
    }

    #[test]
    fn the_time_of_what_is_over_stands_still() {
        let line = |mark| Line { subject: "web/main".into(), mark, text: "x".into(), bar: None };
        let mut watch = Stopwatch::new(at(0));
        assert_eq!(watch.time(&line(Mark::Working), at(500)).as_millis(), 500);
        assert_eq!(watch.time(&line(Mark::Done), at(700)).as_millis(), 700);
        assert_eq!(watch.time(&line(Mark::Done), at(900)).as_millis(), 700);
        assert_eq!(plain(&line(Mark::Done), Duration::from_millis(700)), "   0.7s  web/main  x");
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let ok = || Waited::Ended(Outcome::Succeeded);
        let failed = || Waited::Ended(Outcome::Failed("x".into()));
        for (waited, exit) in [
            (vec![], Exit::Success),
            (vec![ok(), ok()], Exit::Success),
            (vec![ok(), failed()], Exit::Failed),
            (vec![ok(), Waited::Gone], Exit::Failed),
            (vec![Waited::TimedOut, ok()], Exit::TimedOut),
            (vec![Waited::TimedOut, failed()], Exit::Failed),
            (vec![Waited::Interrupted, ok()], Exit::Interrupted),
            (vec![Waited::Ended(Outcome::Nothing("x".into())), ok()], Exit::NotFound),
            (vec![Waited::Ended(Outcome::Nothing("x".into())), Waited::TimedOut], Exit::NotFound),
            (vec![Waited::Ended(Outcome::Nothing("x".into())), failed()], Exit::Failed),
        ] {
            assert_eq!(exit_of(&waited), exit, "{waited:?}");
        }
    }

    #[test]
    fn who_stops_waiting_learns_how_to_go_on() {
        let text = verdict("crr/web-x", &Waited::Interrupted, Duration::from_secs(3), "shop");
        assert_eq!(
            text,
            "crr/web-x: stopped watching after 3.0s; it goes on. Follow it: kubectl kruise status web-x -n shop --wait; \
             take it back: kubectl kruise cancel web-x -n shop"
        );
    }

    #[test]
    fn a_row_says_what_matters_now() {
        let rows = [
            states(
                "Completed",
                "",
                json!([{ "name": "main", "phase": "Succeeded" }, { "name": "other", "phase": "Succeeded" }]),
            ),
            states(
                "Recreating",
                "",
                json!([{ "name": "main", "phase": "Succeeded" }, { "name": "other", "phase": "Recreating" }]),
            ),
            states(
                "Completed",
                "container main: it crashed",
                json!([{ "name": "main", "phase": "Failed", "message": "it crashed" }]),
            ),
            request(Value::Null),
            workload(json!({ "total": 10, "restarted": 3 })),
            request(json!({ "phase": 7 })),
        ]
        .map(|object| status_row(&object, at(0)));
        let text = table::columns(STATUS_HEADER, &rows);
        insta::assert_snapshot!(text, @r#"
        NAME        TARGET           DONE   RESULT       AGE   MESSAGE
        crr/web-x   pod/web          2/2    Succeeded    60s
        crr/web-x   pod/web          1/2    Running      60s   stopping
        crr/web-x   pod/web          0/2    Failed       60s   container main: it crashed
        crr/web-x   pod/web          0/2    Waiting      60s   waiting to be taken up
        wr/api-y    deployment/api   3/10   Running            3 of 10 Pods restarted
        crr/web-x   pod/web                 Unreadable   60s   request web-x cannot be read: invalid type: integer `7`, expected a string; a newer kubectl-kruise may know it
        "#);
    }
}
