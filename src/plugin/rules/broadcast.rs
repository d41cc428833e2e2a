//! What `broadcast` makes, and how its nodes and their exit codes are shown.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::{
    JsonPointer,
    outcome::{Line, Mark, Outcome},
};
use crate::k8s::{invalid::Invalid, pod::PodView};

/// How the names of jobs without one of their own begin.
const PREFIX: &str = "broadcast-";
/// The container that runs the command.
const CONTAINER: &str = "main";
/// Nodes that a picture that moves shows.
const SHOWN: usize = 20;
/// Nodes that the last word names for each result.
const NAMED: usize = 10;
/// The longest text of others in a line, in characters.
const LONGEST: usize = 200;

/// What a user wants to run.
#[derive(Clone, Debug, Default)]
pub struct BroadcastOptions {
    /// Its name; None: the API server makes one.
    pub name: Option<String>,
    /// The image.
    pub image: String,
    /// `imagePullPolicy`.
    pub pull_policy: String,
    /// The command; none: that of the image.
    pub command: Vec<String>,
    /// Labels of the nodes.
    pub node_selector: BTreeMap<String, String>,
    /// On tainted and cordoned nodes too.
    pub tolerates_all: bool,
    /// As an administrator of the node, whose file system is at `/host`.
    pub of_host: bool,
    /// How many at a time: a number or a percentage.
    pub parallelism: Option<String>,
    /// `failurePolicy.type`.
    pub failure_policy: String,
    /// Seconds after which it has failed.
    pub deadline: Option<i64>,
    /// Seconds after its end when it is deleted; None: it is kept.
    pub ttl: Option<i64>,
}

/// The BroadcastJob.
pub fn job(namespace: &str, options: &BroadcastOptions) -> Value {
    let mut container = json!({"name": CONTAINER, "image": options.image, "imagePullPolicy": options.pull_policy});
    if !options.command.is_empty() {
        container["command"] = json!(options.command);
    }
    let mut pod = json!({"restartPolicy": "Never", "automountServiceAccountToken": false});
    if options.of_host {
        container["securityContext"] = json!({"privileged": true});
        container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
        pod["volumes"] = json!([{"name": "host", "hostPath": {"path": "/"}}]);
        for field in ["hostPID", "hostNetwork", "hostIPC"] {
            pod[field] = true.into();
        }
    }
    if !options.node_selector.is_empty() {
        pod["nodeSelector"] = json!(options.node_selector);
    }
    if options.tolerates_all {
        pod["tolerations"] = json!([{"operator": "Exists"}]);
    }
    pod["containers"] = json!([container]);
    let mut completion = Map::from_iter([("type".to_owned(), json!("Always"))]);
    completion.extend(options.deadline.map(|seconds| ("activeDeadlineSeconds".to_owned(), json!(seconds))));
    completion.extend(options.ttl.map(|seconds| ("ttlSecondsAfterFinished".to_owned(), json!(seconds))));
    let mut spec = json!({"template": {"spec": pod}, "completionPolicy": completion,
        "failurePolicy": {"type": options.failure_policy}});
    if let Some(most) = &options.parallelism {
        spec["parallelism"] = most.parse::<i32>().map_or_else(|_| json!(most), |number| json!(number));
    }
    let metadata = match &options.name {
        Some(name) => json!({"name": name, "namespace": namespace}),
        None => json!({"generateName": PREFIX, "namespace": namespace}),
    };
    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "metadata": metadata, "spec": spec})
}

/// Labels of nodes as `key=value`.
///
/// # Errors
/// It is of another form.
pub fn label(text: &str) -> Result<(String, String), Invalid> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Invalid(format!("{text:?}: want KEY=VALUE"))),
    }
}

/// The Pods of a job as they were seen, by node.
#[derive(Clone, Debug, Default)]
pub struct Broadcast {
    /// In the order in which they were first seen: each has its line.
    nodes: Vec<String>,
    pods: BTreeMap<String, PodLine>,
}

#[derive(Clone, Debug)]
struct PodLine {
    node: String,
    /// The better one of several of a node comes last.
    rank: (bool, bool, String),
    mark: Mark,
    text: String,
    exit: Option<i64>,
}

impl Broadcast {
    /// A Pod is there, or has changed.
    pub fn set(&mut self, pod: &Value) {
        let view: PodView = serde_json::from_value(pod.clone()).unwrap_or_default();
        let node = view.node_meant().to_owned();
        if node.is_empty() {
            return;
        }
        if !self.nodes.contains(&node) {
            self.nodes.push(node.clone());
        }
        let (mark, text, exit) = state(pod);
        let is_going = pod.pointer("/metadata/deletionTimestamp").is_some();
        let rank = (mark.is_over(), !is_going, pod.text("/metadata/creationTimestamp").to_owned());
        self.pods.insert(pod.text("/metadata/uid").to_owned(), PodLine { node, rank, mark, text, exit });
    }

    /// A Pod is gone.
    pub fn remove(&mut self, pod: &Value) {
        self.pods.remove(pod.text("/metadata/uid"));
    }

    /// These Pods are there and no others.
    pub fn keep(&mut self, uids: &HashSet<String>) {
        self.pods.retain(|uid, _| uids.contains(uid));
    }

    fn of_node(&self, node: &str) -> Option<&PodLine> {
        self.pods.values().filter(|seen| seen.node == node).max_by(|a, b| a.rank.cmp(&b.rank))
    }

    /// The lines of a picture that moves: the job, and the nodes that are worth a look.
    pub fn picture(&self, job: &Value) -> Vec<Line> {
        let mut nodes = self.lines();
        // What failed stays in view; what is done needs it least.
        nodes.sort_by_key(|line| match line.mark {
            Mark::Failed => 0,
            Mark::Working => 1,
            Mark::Waiting => 2,
            Mark::Done => 3,
        });
        let more = nodes.len().saturating_sub(SHOWN);
        nodes.truncate(SHOWN);
        let mut lines = vec![self.line_of_job(job)];
        lines.extend(nodes);
        if more > 0 {
            let text = format!("and {more} more nodes");
            lines.push(Line { subject: String::new(), mark: Mark::Waiting, text, bar: None });
        }
        lines
    }

    /// A line for each node, always in the same place.
    pub fn lines(&self) -> Vec<Line> {
        let line = |node: &String| {
            let gone = || (Mark::Waiting, "its Pod is gone".to_owned());
            let (mark, text) = self.of_node(node).map_or_else(gone, |seen| (seen.mark, seen.text.clone()));
            Line { subject: node.clone(), mark, text, bar: None }
        };
        self.nodes.iter().map(line).collect()
    }

    fn line_of_job(&self, job: &Value) -> Line {
        let count = |name: &str| u64::try_from(job.int(&format!("/status/{name}"))).unwrap_or_default();
        let (desired, active, failed) = (count("desired"), count("active"), count("failed"));
        let done = count("succeeded") + failed;
        let (mark, mut text) = match outcome(job) {
            Outcome::Open if job.text("/status/phase").is_empty() => (Mark::Waiting, "waiting to be taken up".into()),
            Outcome::Open => (Mark::Working, format!("{done} of {desired} nodes are done, {active} Pods are active")),
            Outcome::Succeeded => (Mark::Done, format!("{done} of {desired} nodes are done")),
            Outcome::Failed(why) | Outcome::Nothing(why) => (Mark::Failed, why),
        };
        if failed > 0 && matches!(mark, Mark::Working) {
            text = format!("{text}, {failed} failed");
        }
        Line { subject: job.text("/metadata/name").to_owned(), mark, text, bar: Some((done, desired)) }
    }

    /// The last word: which nodes ended in which way, the good ones as a number only.
    pub fn summary(&self) -> Vec<String> {
        let mut results: BTreeMap<(bool, Option<i64>, &str), Vec<&str>> = BTreeMap::new();
        for node in &self.nodes {
            let Some(seen) = self.of_node(node) else { continue };
            let is_good = seen.mark == Mark::Done;
            results.entry((!is_good, seen.exit, seen.text.as_str())).or_default().push(node);
        }
        let of = |((is_bad, _, text), mut nodes): ((bool, Option<i64>, &str), Vec<&str>)| {
            nodes.sort_unstable();
            let count = nodes.len();
            let what = if count == 1 { "node" } else { "nodes" };
            if !is_bad {
                return format!("{text}: {count} {what}");
            }
            let more = count.saturating_sub(NAMED);
            let named = nodes.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{text}: {count} {what}: {named}{rest}")
        };
        results.into_iter().map(of).collect()
    }
}

/// How a job has ended, if it has. One that a failure has paused waits for its user.
pub fn outcome(job: &Value) -> Outcome {
    if let Some(failed) = job.true_condition("Failed") {
        return Outcome::Failed(failed.text("/message").to_owned());
    }
    if let Some(stalled) = job.true_condition("Stalled") {
        return Outcome::Failed(stalled.text("/message").to_owned());
    }
    match (job.true_condition("Complete"), job.int("/status/failed")) {
        (None, _) => Outcome::Open,
        (Some(_), 0) => Outcome::Succeeded,
        (Some(_), failed) => Outcome::Failed(format!("{failed} of {} nodes failed", job.int("/status/desired"))),
    }
}

/// Whether a job has been taken up and has no node.
pub fn has_no_node(job: &Value) -> bool {
    job.int("/status/observedGeneration") > 0 && job.int("/status/desired") == 0
}

/// How far a Pod is, and the exit code of its container.
fn state(pod: &Value) -> (Mark, String, Option<i64>) {
    let statuses = ["/status/initContainerStatuses", "/status/containerStatuses"].map(|at| pod.list(at));
    let all = || statuses.iter().copied().flatten();
    let code = |status: &Value| status.pointer("/state/terminated/exitCode").and_then(Value::as_i64);
    let exit = pod.list("/status/containerStatuses").iter().find_map(code);
    // Of an init container too.
    let bad = all().filter_map(code).find(|code| *code != 0);
    let ended = |code: i64| {
        let mut reasons = all().map(|status| status.text("/state/terminated/reason"));
        match reasons.find(|reason| !["", "Completed", "Error"].contains(reason)) {
            Some(reason) => format!("exit code {code} ({reason})"),
            None => format!("exit code {code}"),
        }
    };
    let said = |object: &Value| {
        let (reason, message) = (object.text("/reason"), object.text("/message"));
        let text = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
        text.chars().take(LONGEST).collect::<String>()
    };
    let is_going = pod.pointer("/metadata/deletionTimestamp").is_some();
    match (pod.text("/status/phase"), exit) {
        ("Succeeded", _) => (Mark::Done, ended(exit.unwrap_or_default()), Some(exit.unwrap_or_default())),
        ("Failed", _) => {
            // Evicted, or its time was over: the exit code says less.
            let text = match (said(&pod["status"]), bad) {
                (why, _) if !why.is_empty() => why,
                (_, Some(code)) => ended(code),
                _ => "failed".to_owned(),
            };
            (Mark::Failed, text, bad)
        }
        _ if is_going => (Mark::Waiting, "is being deleted".to_owned(), None),
        ("Running", None) => (Mark::Working, "running".to_owned(), None),
        ("Running", Some(code)) => (Mark::Working, ended(code), exit),
        _ => {
            let waiting =
                all().find_map(|status| status.pointer("/state/waiting").filter(|w| !w.text("/reason").is_empty()));
            let is_unscheduled = |c: &&Value| c.text("/type") == "PodScheduled" && c.text("/status") == "False";
            let unscheduled = pod.list("/status/conditions").iter().find(is_unscheduled);
            let text = match (unscheduled, waiting) {
                (Some(condition), _) => said(condition),
                (None, Some(waiting)) => said(waiting),
                (None, None) => "waiting to be started".to_owned(),
            };
            (Mark::Waiting, text, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, node: &str, status: Value) -> Value {
        json!({"metadata": {"name": format!("p-{uid}"), "namespace": "ns", "uid": uid,
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": node, "containers": []}, "status": status})
    }

    fn ended(phase: &str, code: i64, reason: &str) -> Value {
        json!({"phase": phase, "containerStatuses": [{"name": "main",
            "state": {"terminated": {"exitCode": code, "reason": reason}}}]})
    }

    fn lines(broadcast: &Broadcast) -> Vec<String> {
        broadcast.lines().iter().map(|line| format!("{} {:?} {}", line.subject, line.mark, line.text)).collect()
    }

    #[test]
    fn a_job_is_made_of_what_was_asked_for() {
        let options = BroadcastOptions {
            image: "busybox".into(),
            pull_policy: "IfNotPresent".into(),
            failure_policy: "Continue".into(),
            ..Default::default()
        };
        let plain = job("ns", &options);
        assert_eq!(
            plain,
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob",
                "metadata": {"generateName": "broadcast-", "namespace": "ns"},
                "spec": {"completionPolicy": {"type": "Always"}, "failurePolicy": {"type": "Continue"},
                    "template": {"spec": {"restartPolicy": "Never", "automountServiceAccountToken": false,
                        "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent"}]}}}})
        );
        let all = job(
            "ns",
            &BroadcastOptions {
                name: Some("sweep".into()),
                command: vec!["rm".into(), "-r".into()],
                node_selector: [("disk".to_owned(), "ssd".to_owned())].into(),
                tolerates_all: true,
                of_host: true,
                parallelism: Some("10%".into()),
                deadline: Some(60),
                ttl: Some(3600),
                ..options.clone()
            },
        );
        let spec = &all["spec"]["template"]["spec"];
        assert_eq!((&all["metadata"]["name"], &all["spec"]["parallelism"]), (&json!("sweep"), &json!("10%")));
        assert_eq!(
            all["spec"]["completionPolicy"],
            json!({"type": "Always", "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 3600})
        );
        assert_eq!(
            (&spec["nodeSelector"], &spec["tolerations"]),
            (&json!({"disk": "ssd"}), &json!([{"operator": "Exists"}]))
        );
        assert_eq!(
            (&spec["hostPID"], &spec["containers"][0]["securityContext"]),
            (&json!(true), &json!({"privileged": true}))
        );
        assert_eq!(spec["containers"][0]["command"], json!(["rm", "-r"]));
        let three = job("ns", &BroadcastOptions { parallelism: Some("3".into()), ..options });
        assert_eq!(three["spec"]["parallelism"], 3);
    }

    #[test]
    fn a_label_has_a_key_and_a_value() {
        assert_eq!(label("disk=ssd"), Ok(("disk".into(), "ssd".into())));
        assert_eq!(label("a/b="), Ok(("a/b".into(), String::new())));
        assert!(label("disk").unwrap_err().0.contains("want KEY=VALUE") && label("=x").is_err());
    }

    #[test]
    fn each_node_has_its_exit_code_or_what_it_waits_for() {
        let mut broadcast = Broadcast::default();
        let waits = json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]});
        let unscheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "too little cpu"}]});
        for (uid, node, status) in [
            ("1", "n1", ended("Succeeded", 0, "Completed")),
            ("2", "n2", ended("Failed", 3, "Error")),
            ("3", "n3", ended("Failed", 137, "OOMKilled")),
            ("4", "n4", json!({"phase": "Failed", "reason": "Evicted", "message": "disk is full"})),
            ("5", "n5", json!({"phase": "Running"})),
            ("6", "n6", waits),
            ("7", "n7", unscheduled),
            ("8", "n8", json!({})),
            (
                "9",
                "n9",
                json!({"phase": "Failed", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 4, "reason": "Error"}}}]}),
            ),
            ("10", "", json!({"phase": "Pending"})),
        ] {
            broadcast.set(&pod(uid, node, status));
        }
        assert_eq!(
            lines(&broadcast),
            [
                "n1 Done exit code 0",
                "n2 Failed exit code 3",
                "n3 Failed exit code 137 (OOMKilled)",
                "n4 Failed Evicted: disk is full",
                "n5 Working running",
                "n6 Waiting ImagePullBackOff: no such image",
                "n7 Waiting Unschedulable: too little cpu",
                "n8 Waiting waiting to be started",
                "n9 Failed exit code 4",
            ]
        );
        broadcast.remove(&pod("8", "n8", json!({})));
        assert_eq!(lines(&broadcast)[7], "n8 Waiting its Pod is gone");
        broadcast.keep(&["1".to_owned()].into());
        assert_eq!(broadcast.summary(), ["exit code 0: 1 node"]);
    }

    #[test]
    fn a_node_that_is_run_again_shows_what_counts() {
        let mut broadcast = Broadcast::default();
        let mut going = pod("1", "n", json!({"phase": "Running"}));
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:05Z".into();
        broadcast.set(&going);
        assert_eq!(lines(&broadcast), ["n Waiting is being deleted"]);
        broadcast.set(&pod("2", "n", json!({"phase": "Running"})));
        assert_eq!(lines(&broadcast), ["n Working running"]);
        broadcast.set(&pod("2", "n", ended("Failed", 2, "Error")));
        assert_eq!(lines(&broadcast), ["n Failed exit code 2"]);
    }

    #[test]
    fn a_picture_of_many_nodes_keeps_what_failed_in_view_and_the_summary_names_it() {
        let mut broadcast = Broadcast::default();
        for i in 0..40 {
            let status = if i >= 25 { ended("Failed", 3, "Error") } else { ended("Succeeded", 0, "Completed") };
            broadcast.set(&pod(&format!("{i:02}"), &format!("n{i:02}"), status));
        }
        let job = json!({"metadata": {"name": "sweep"}, "status": {"phase": "running", "desired": 50, "active": 10,
            "succeeded": 25, "failed": 15}});
        let picture = broadcast.picture(&job);
        assert_eq!(picture.len(), 22);
        assert_eq!(
            (picture[0].subject.as_str(), picture[0].text.as_str(), picture[0].bar),
            ("sweep", "40 of 50 nodes are done, 10 Pods are active, 15 failed", Some((40, 50)))
        );
        assert!(picture[1..16].iter().all(|line| line.mark == Mark::Failed));
        assert_eq!(picture[21].text, "and 20 more nodes");
        let named: Vec<String> = (25..35).map(|i| format!("n{i}")).collect();
        assert_eq!(
            broadcast.summary(),
            ["exit code 0: 25 nodes".to_owned(), format!("exit code 3: 15 nodes: {} and 5 more", named.join(", "))]
        );
    }

    #[test]
    fn a_job_ends_well_when_every_node_has() {
        let of = |conditions: Value, failed: i64| {
            outcome(&json!({"status": {"conditions": conditions, "desired": 4, "failed": failed}}))
        };
        let condition = |type_: &str| json!([{"type": type_, "status": "True", "message": "why"}]);
        assert_eq!(of(json!([]), 0), Outcome::Open);
        assert_eq!(of(condition("Reconciling"), 2), Outcome::Open);
        assert_eq!(of(condition("Complete"), 0), Outcome::Succeeded);
        assert_eq!(of(condition("Complete"), 2), Outcome::Failed("2 of 4 nodes failed".into()));
        for bad in ["Failed", "Stalled"] {
            assert_eq!(of(condition(bad), 1), Outcome::Failed("why".into()));
        }
        assert!(has_no_node(&json!({"status": {"observedGeneration": 1, "desired": 0}})));
        assert!(!has_no_node(&json!({})) && !has_no_node(&json!({"status": {"observedGeneration": 1, "desired": 1}})));
    }
}
