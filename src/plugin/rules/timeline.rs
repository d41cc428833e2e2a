//! What `describe` says: one request, what happened to it and when, and its events.

use std::{fmt::Write as _, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    JsonPointer,
    progress::{Outcome, Watched, target_of},
    table::{age, columns},
};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateState},
        labels,
    },
    domain::node::recreate::states_of,
    k8s::{
        container_id,
        time::{Now, rfc3339},
    },
};

/// The whole text. `events` are those about the request.
pub fn describe(object: &Value, events: &[Value], now: Now) -> String {
    let mut text = String::new();
    let field = |name: &str, value: &str| match value {
        "" => String::new(),
        value => format!("{:<13}{value}\n", format!("{name}:")),
    };
    text += &field("Name", object.text("/metadata/name"));
    text += &field("Namespace", object.text("/metadata/namespace"));
    text += &field("Kind", object.text("/kind"));
    let node = object.pointer("/metadata/labels").map_or("", |l| l[labels::CRR_NODE_NAME].as_str().unwrap_or_default());
    let on_node = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    text += &field("Target", &(target_of(object) + &on_node));
    if let Some(created) = time(object, "/metadata/creationTimestamp") {
        text += &field("Created", &format!("{} ({} ago)", rfc3339(created), age(now.since(created))));
    }
    match Watched::read(object.clone()) {
        Ok(seen) => {
            text += &field("Result", &result(object, &seen));
            text += &field("Strategy", &strategy(object));
            match &seen {
                Watched::Request(request) => text += &request_timeline(request),
                Watched::Workload(object) => text += &workload_timeline(object),
                Watched::Rollout(_) => {}
            }
        }
        Err(error) => text += &field("Result", &error.to_string()),
    }
    text += &event_table(events, now);
    text
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    object.text(pointer).parse().ok()
}

fn result(object: &Value, seen: &Watched) -> String {
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some();
    match seen.outcome() {
        Outcome::Succeeded => "Succeeded".into(),
        Outcome::Failed(why) => format!("Failed: {why}"),
        Outcome::Nothing(why) => why,
        Outcome::Open if deleting => "being deleted".into(),
        Outcome::Open => match object.text("/status/phase") {
            "" => "open, not taken up yet".into(),
            phase => format!("open ({phase})"),
        },
    }
}

/// What was asked for beyond the defaults, on one line.
fn strategy(object: &Value) -> String {
    let mut parts = Vec::new();
    for (prefix, at) in [("", "/spec/strategy"), ("", "/spec")] {
        for (name, value) in object.pointer(at).and_then(Value::as_object).into_iter().flatten() {
            match value {
                Value::Number(_) | Value::Bool(_) => parts.push(format!("{prefix}{name}={value}")),
                Value::String(text) if name != "podName" => parts.push(format!("{prefix}{name}={text}")),
                _ => {}
            }
        }
    }
    parts.join(", ")
}

struct TimelineRow {
    at: Timestamp,
    container: String,
    what: String,
}

/// Steps in the order of their times, with the time since the step before and since the first.
fn steps_table(mut steps: Vec<TimelineRow>) -> String {
    // Times have whole seconds; what happened within one second keeps its natural order.
    steps.sort_by_key(|step| step.at);
    let Some(first) = steps.first().map(|step| step.at) else { return String::new() };
    let seconds = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
    let mut before = first;
    let mut rows = Vec::new();
    for step in steps {
        let plus = format!("+{}s", seconds(before, step.at).as_secs());
        let total = format!("{}s", seconds(first, step.at).as_secs());
        before = step.at;
        rows.push(vec![rfc3339(step.at), plus, total, step.container, step.what]);
    }
    format!("\n{}", columns(&["TIME", "STEP", "TOTAL", "CONTAINER", "WHAT"], &rows))
}

fn request_timeline(request: &ContainerRecreateRequest) -> String {
    let mut steps = Vec::new();
    let mut step = |at: Option<Timestamp>, container: &str, what: String| {
        if let Some(at) = at {
            steps.push(TimelineRow { at, container: container.to_owned(), what });
        }
    };
    let created = request.metadata.creation_timestamp.as_ref().map(|at| at.0);
    step(created, "", "request created".into());
    let unready = request.metadata.annotations.as_ref().and_then(|a| a.get(labels::CRR_UNREADY_ACQUIRED));
    step(unready.and_then(|at| at.parse().ok()), "", "Pod made NotReady".into());
    let states = states_of(request);
    for state in &states {
        for (at, what) in steps_of(state) {
            step(at, &state.name, what);
        }
    }
    if let Some(status) = &request.status {
        step(status.completion_time, "", "request completed".into());
    }
    let mut text = steps_table(steps);
    let mut rows = Vec::new();
    for state in &states {
        let mut note = state.message.clone();
        if note.is_empty() {
            note = match (short(&state.previous_container_id), short(&state.container_id)) {
                (old, new) if old.is_empty() && new.is_empty() => String::new(),
                (old, new) if new.is_empty() => format!("instance {old}"),
                (old, new) => format!("instance {old} replaced by {new}"),
            };
        }
        rows.push(vec![state.name.clone(), phase(state), note]);
    }
    let _ = write!(text, "\n{}", columns(&["CONTAINER", "PHASE", "MESSAGE"], &rows));
    text
}

fn phase(state: &ContainerRecreateState) -> String {
    match state.phase.as_str() {
        "" => "Pending".to_owned(),
        phase => phase.to_owned(),
    }
}

/// What was recorded of one container. The stop of a container without a hook begins with the stop signal.
fn steps_of(state: &ContainerRecreateState) -> [(Option<Timestamp>, String); 5] {
    let stop = if state.hook_started_at.is_some() { "stop begins" } else { "stop signal sent" };
    [
        (state.kill_started_at, stop.to_owned()),
        (state.hook_started_at, "preStop hook started".to_owned()),
        (state.killed_at, "old instance is gone".to_owned()),
        (state.started_at, "new instance started".to_owned()),
        (state.ready_at, "new instance ready".to_owned()),
    ]
}

/// `containerd://0123456789abcdef...` as people compare it.
fn short(id: &str) -> String {
    container_id::without_runtime(id).chars().take(12).collect()
}

fn workload_timeline(object: &Value) -> String {
    let mut steps = Vec::new();
    for (pointer, what) in [
        ("/metadata/creationTimestamp", "restart created"),
        ("/status/startTime", "restart begun"),
        ("/status/completionTime", "restart completed"),
    ] {
        if let Some(at) = time(object, pointer) {
            steps.push(TimelineRow { at, container: String::new(), what: what.to_owned() });
        }
    }
    let mut text = steps_table(steps);
    let rows: Vec<Vec<String>> = object
        .list("/status/conditions")
        .iter()
        .map(|c| ["/type", "/status", "/reason", "/message"].map(|f| c.text(f).to_owned()).to_vec())
        .collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n{}", columns(&["CONDITION", "STATUS", "REASON", "MESSAGE"], &rows));
    }
    for line in Watched::Workload(object.clone()).lines() {
        let _ = write!(text, "\n{}: {}\n", line.subject, line.text);
    }
    text
}

fn event_table(events: &[Value], now: Now) -> String {
    let mut sorted: Vec<(Option<Timestamp>, &Value)> = events
        .iter()
        .map(|event| {
            let times = ["/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
            (times.iter().find_map(|pointer| time(event, pointer)), event)
        })
        .collect();
    sorted.sort_by_key(|(at, _)| *at);
    if sorted.is_empty() {
        return "\nEvents:      none\n".to_owned();
    }
    let row = |(at, event): &(Option<Timestamp>, &Value)| {
        let about = match event.text("/involvedObject/kind") {
            kind @ ("Pod" | "WorkloadRestart") => format!("{}/", kind.to_ascii_lowercase()),
            _ => String::new(),
        };
        let about = if about.is_empty() { about } else { about + event.text("/involvedObject/name") + ": " };
        vec![
            at.map_or(String::new(), |at| age(now.since(at))),
            event.text("/type").to_owned(),
            event.text("/reason").to_owned(),
            about + event.text("/message").trim(),
        ]
    };
    format!("\n{}", columns(&["EVENT AGE", "TYPE", "REASON", "MESSAGE"], &sorted.iter().map(row).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Now {
        Now { wall: "2026-01-01T00:05:00Z".parse().unwrap(), mono: Duration::from_secs(1) }
    }

    #[test]
    fn a_finished_request_shows_where_the_time_went() {
        let object = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": { "name": "web-x", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "crr.apps.kruise.io/node-name": "node-a" },
                "annotations": { "crr.apps.kruise.io/unready-acquired": "2026-01-01T00:00:00Z" } },
            "spec": { "podName": "web", "containers": [{ "name": "main" }, { "name": "other" }],
                "strategy": { "failurePolicy": "Fail", "unreadyGracePeriodSeconds": 3 }, "activeDeadlineSeconds": 60 },
            "status": { "phase": "Completed", "message": "container other: kill container error: no",
                "completionTime": "2026-01-01T00:00:09Z",
                "containerRecreateStates": [
                    { "name": "main", "phase": "Succeeded", "isKilled": true,
                        "previousContainerID": "containerd://0123456789abcdef", "containerID": "containerd://fedcba9876543210",
                        "killStartedAt": "2026-01-01T00:00:03Z", "hookStartedAt": "2026-01-01T00:00:03Z",
                        "killedAt": "2026-01-01T00:00:05Z", "startedAt": "2026-01-01T00:00:06Z",
                        "readyAt": "2026-01-01T00:00:08Z" },
                    { "name": "other", "phase": "Failed", "message": "kill container error: no",
                        "killStartedAt": "2026-01-01T00:00:05Z" }] },
        });
        let event = json!({ "type": "Normal", "reason": "Killing", "message": "Stopping container main",
            "lastTimestamp": "2026-01-01T00:00:03Z", "involvedObject": { "kind": "ContainerRecreateRequest", "name": "web-x" } });
        insta::assert_snapshot!(describe(&object, &[event], now()), @r"
        Name:        web-x
        Namespace:   shop
        Kind:        ContainerRecreateRequest
        Target:      pod/web on node node-a
        Created:     2026-01-01T00:00:00Z (5m ago)
        Result:      Failed: container other: kill container error: no
        Strategy:    failurePolicy=Fail, unreadyGracePeriodSeconds=3, activeDeadlineSeconds=60

        TIME                   STEP   TOTAL   CONTAINER   WHAT
        2026-01-01T00:00:00Z   +0s    0s                  request created
        2026-01-01T00:00:00Z   +0s    0s                  Pod made NotReady
        2026-01-01T00:00:03Z   +3s    3s      main        stop begins
        2026-01-01T00:00:03Z   +0s    3s      main        preStop hook started
        2026-01-01T00:00:05Z   +2s    5s      main        old instance is gone
        2026-01-01T00:00:05Z   +0s    5s      other       stop signal sent
        2026-01-01T00:00:06Z   +1s    6s      main        new instance started
        2026-01-01T00:00:08Z   +2s    8s      main        new instance ready
        2026-01-01T00:00:09Z   +1s    9s                  request completed

        CONTAINER   PHASE       MESSAGE
        main        Succeeded   instance 0123456789ab replaced by fedcba987654
        other       Failed      kill container error: no

        EVENT AGE   TYPE     REASON    MESSAGE
        4m57s       Normal   Killing   Stopping container main
        ");
    }

    #[test]
    fn a_request_that_nobody_took_up_says_so() {
        let object = json!({ "kind": "ContainerRecreateRequest", "apiVersion": "apps.kruise.io/v1alpha1",
            "metadata": { "name": "web-x", "namespace": "shop", "creationTimestamp": "2026-01-01T00:04:58Z" },
            "spec": { "podName": "web", "containers": [{ "name": "main" }] } });
        insta::assert_snapshot!(describe(&object, &[], now()), @r"
        Name:        web-x
        Namespace:   shop
        Kind:        ContainerRecreateRequest
        Target:      pod/web
        Created:     2026-01-01T00:04:58Z (2s ago)
        Result:      open, not taken up yet

        TIME                   STEP   TOTAL   CONTAINER   WHAT
        2026-01-01T00:04:58Z   +0s    0s                  request created

        CONTAINER   PHASE     MESSAGE
        main        Pending

        Events:      none
        ");
    }
}
