//! One ImagePullJob: which nodes it wants, which of them begin next, and what its status says.

use std::collections::BTreeSet;

use super::rules;
use crate::{
    api::{
        apps::{
            image_pull_job::{
                CompletionPolicyType, DEFAULT_BACKOFF_LIMIT, DEFAULT_TIMEOUT_SECONDS, ImagePullJob, ImagePullJobStatus,
                SandboxConfig,
            },
            node_image::PullPhase,
        },
        labels,
    },
    k8s::{
        conditions::{self, Wanted},
        invalid::Invalid,
        node_image::NodeImageView,
        pod::Labels,
        selector::Selector,
        time::{self, Now},
    },
};
use std::time::Duration;

/// Nodes that a message names.
const NAMED: usize = 3;

/// A job as the rules read it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The image's name in NodeImages.
    pub image: String,
    /// Its tag or digest there.
    pub tag: String,
    /// The nodes.
    pub nodes: Nodes,
    /// How many pull at a time.
    pub parallelism: usize,
    /// Seconds that one attempt may take.
    pub timeout_seconds: i32,
    /// Attempts after the first.
    pub backoff_limit: i32,
    /// Seconds that the job may take.
    pub deadline_seconds: Option<i64>,
    /// Seconds that it is kept after its end.
    pub ttl_seconds: Option<i32>,
    /// It is over when all nodes are done.
    pub ends: bool,
    /// It is over.
    pub is_complete: bool,
    /// Secrets of its namespace.
    pub secrets: Vec<String>,
    /// For the runtime.
    pub sandbox: Option<SandboxConfig>,
    /// Always or IfNotPresent.
    pub image_pull_policy: String,
}

/// The nodes that a job wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Nodes {
    /// All of them.
    All,
    /// Those of these names.
    Names(BTreeSet<String>),
    /// Those with such labels.
    Labels(Selector),
    /// Those with such Pods.
    Pods(Selector),
}

impl Job {
    /// Reads a job.
    ///
    /// # Errors
    /// What admission would refuse: fields, values, what is allowed.
    pub fn of(job: &ImagePullJob) -> Result<Self, Invalid> {
        let spec = &job.spec;
        let problems = rules::of_job(spec);
        if !problems.is_empty() {
            let lines: Vec<String> = problems.into_iter().map(|(field, why)| format!("{field}: {why}")).collect();
            return Err(Invalid(lines.join("; ")));
        }
        let image = rules::image(&spec.image)?;
        let nodes = match (&spec.pod_selector, &spec.selector) {
            (Some(pods), _) => Nodes::Pods(Selector::of(pods)?),
            (None, None) => Nodes::All,
            (None, Some(selector)) => match &selector.names {
                Some(names) if !names.is_empty() => Nodes::Names(names.iter().cloned().collect()),
                _ => Nodes::Labels(Selector::of(&selector.labels())?),
            },
        };
        let policy = spec.pull_policy.clone().unwrap_or_default();
        let completion = &spec.completion_policy;
        Ok(Self {
            namespace: job.metadata.namespace.clone().unwrap_or_default(),
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
            image: image.familiar(),
            tag: image.slot().to_owned(),
            nodes,
            parallelism: rules::parallelism(spec.parallelism.as_ref())?,
            timeout_seconds: policy.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
            backoff_limit: policy.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT),
            deadline_seconds: completion.active_deadline_seconds,
            ttl_seconds: completion.ttl_seconds_after_finished,
            ends: completion.type_ == CompletionPolicyType::Always,
            is_complete: job.is_complete(),
            secrets: spec.pull_secrets.clone().unwrap_or_default(),
            sandbox: spec.sandbox_config.clone(),
            // Admission writes the default. A job that was stored without one pulls always, as it did with OpenKruise.
            image_pull_policy: spec.image_pull_policy.clone(),
        })
    }

    /// Whether a node is one of those that the job names itself. None: its Pods decide.
    pub fn selects(&self, name: &str, labels: &Labels) -> Option<bool> {
        match &self.nodes {
            Nodes::All => Some(true),
            Nodes::Names(names) => Some(names.contains(name)),
            Nodes::Labels(selector) => Some(selector.matches(labels)),
            Nodes::Pods(_) => None,
        }
    }

    /// Whether an entry of a node is still what the job wants. A node whose Pods have gone keeps its entry: Pods
    /// come and go.
    pub fn wants(&self, image: &str, tag: &str, node: &NodeImageView) -> bool {
        self.image == image
            && self.tag == tag
            && (self.is_complete || self.selects(node.name(), &node.labels).unwrap_or(true))
    }
}

/// How far a node is with a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Class {
    /// Its NodeImage has no entry for the job.
    Unassigned,
    /// Its NodeImage has an entry that has not ended.
    Pulling,
    /// It has the image.
    Succeeded,
    /// It could not pull it, and why.
    Failed(String),
}

/// How far a node is, after its NodeImage.
pub fn class(job: &Job, node: &NodeImageView) -> Class {
    let Some(entry) = node.tag(&job.image, &job.tag).filter(|entry| entry.is_owned_by(&job.uid)) else {
        return Class::Unassigned;
    };
    match entry.current().map(|status| (status.phase, &status.message)) {
        None | Some((PullPhase::Waiting | PullPhase::Pulling, _)) => Class::Pulling,
        Some((PullPhase::Succeeded, _)) => Class::Succeeded,
        Some((PullPhase::Failed, message)) => Class::Failed(message.as_str().to_owned()),
    }
}

/// A node that a job wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// How far it is; one whose entry is being written is pulling.
    pub class: Class,
    /// Why its NodeImage cannot have an entry, if so.
    pub refused: Option<String>,
}

/// Reason of a job that begins with no further node.
pub(super) const PAUSED: &str = "Paused";

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub struct ObservedJob<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its status as it is stored.
    pub status: &'a ImagePullJobStatus,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The nodes, in the order in which they are to begin.
    pub nodes: &'a [Node],
    /// Nodes that are about to get a NodeImage.
    pub joining: usize,
    /// How long ago the job began.
    pub age: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    /// Nodes that begin now.
    pub begin: Vec<String>,
    /// The status as it should be.
    pub status: ImagePullJobStatus,
    /// When to look again if nothing happens.
    pub next: Option<Duration>,
}

/// Decides for a job that is not over.
pub fn plan(observed: &ObservedJob<'_>, now: Now) -> JobPlan {
    let ObservedJob { job, status, generation, nodes, joining, age } = observed;
    let count = |class: fn(&Class) -> bool| nodes.iter().filter(|node| class(&node.class)).count();
    let pulling = count(|class| *class == Class::Pulling);
    let succeeded = count(|class| *class == Class::Succeeded);
    let unassigned = count(|class| *class == Class::Unassigned);
    let mut failed: BTreeSet<&str> =
        nodes.iter().filter(|node| matches!(node.class, Class::Failed(_))).map(|node| node.name.as_str()).collect();

    let mut next_status = (*status).clone();
    next_status.observed_generation = *generation;
    next_status.start_time.get_or_insert(time::whole_seconds(now.wall));
    next_status.desired = to_i32(nodes.len());
    next_status.active = to_i32(pulling);
    next_status.succeeded = to_i32(succeeded);

    let deadline =
        job.deadline_seconds.filter(|_| job.ends).and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
    let all_ended = pulling + unassigned == 0;
    let is_late = !all_ended && deadline.is_some_and(|deadline| *age >= deadline);
    // A cluster whose first nodes are just coming up is no cluster without nodes.
    let is_over = job.ends && (is_late || all_ended && !(nodes.is_empty() && *joining > 0));
    if is_late {
        let open = |node: &&Node| matches!(node.class, Class::Pulling | Class::Unassigned);
        failed.extend(nodes.iter().filter(open).map(|node| node.name.as_str()));
        next_status.active = 0;
    }
    next_status.failed = to_i32(failed.len());
    next_status.failed_nodes = failed.iter().map(|name| (*name).to_owned()).collect();

    let slots = job.parallelism.saturating_sub(pulling);
    let open = nodes.iter().filter(|node| node.class == Class::Unassigned && node.refused.is_none());
    let begin: Vec<String> = match is_over {
        true => Vec::new(),
        false => open.take(slots).map(|node| node.name.clone()).collect(),
    };
    next_status.active += to_i32(begin.len());

    next_status.message = if is_late {
        "job exceeds activeDeadlineSeconds".into()
    } else if is_over {
        "job has completed".into()
    } else if nodes.is_empty() {
        "job is running, no progress".into()
    } else {
        let done = (succeeded + failed.len()) as f64 / nodes.len() as f64;
        format!("job is running, progress {:.1}%", done * 100.0)
    };
    if is_over {
        next_status.completion_time = Some(time::whole_seconds(now.wall));
    }
    let (reason, message) = outcome(observed, is_late, is_over, pulling + begin.len(), unassigned - begin.len());
    let conditions = &mut next_status.conditions;
    let mut set = |type_: &str, status: bool| {
        conditions::set(conditions, type_, Wanted::new(status, reason, message.as_str()), *generation, now.wall);
    };
    set(labels::CONDITION_PROGRESSING, !is_over);
    if is_over {
        let type_ = if failed.is_empty() { labels::CONDITION_COMPLETE } else { labels::CONDITION_FAILED };
        set(type_, true);
    }
    let is_everywhere = !is_over && !nodes.is_empty() && succeeded == nodes.len();
    if is_everywhere || reason == PAUSED {
        // A job of type Never goes on for ever: it is done as long as every node has the image. What its spec holds is as it wants it.
        conditions::set_kstatus(conditions, (conditions::READY, reason, message.as_str()), *generation, now.wall);
    } else {
        conditions::set_kstatus_of_run(conditions, *generation, now.wall);
    }
    let next = deadline.filter(|_| !is_over).map(|deadline| deadline.saturating_sub(*age).max(Duration::from_secs(1)));
    JobPlan { begin, status: next_status, next }
}

/// Reason and message of the conditions. The message changes only with the reason, or when nodes fail.
fn outcome(
    observed: &ObservedJob<'_>,
    is_late: bool,
    is_over: bool,
    active: usize,
    waiting: usize,
) -> (&'static str, String) {
    let ObservedJob { job, nodes, joining, .. } = observed;
    if is_late {
        let seconds = job.deadline_seconds.unwrap_or_default();
        return ("DeadlineExceeded", format!("not every node had the image within {seconds} s{}", failures(nodes)));
    }
    if is_over {
        return match failures(nodes) {
            none if none.is_empty() && nodes.is_empty() => ("Completed", "no node is selected".into()),
            none if none.is_empty() => ("Completed", "every node has the image".into()),
            failures => ("PullsFailed", format!("not every node has the image{failures}")),
        };
    }
    let refused = nodes.iter().find_map(|node| node.refused.as_ref().map(|why| (&node.name, why)));
    match refused {
        Some((node, why)) => ("NodeRefuses", format!("node {node}: {why}")),
        None if nodes.is_empty() && *joining > 0 => {
            ("WaitingForNodes", "waiting until the nodes that joined are ready".into())
        }
        None if nodes.is_empty() => ("NoNodes", "no node is selected".into()),
        None if active > 0 => ("Pulling", format!("up to {} nodes pull at a time{}", job.parallelism, failures(nodes))),
        None if waiting > 0 => (PAUSED, "spec.parallelism is 0: no further node begins".into()),
        None => ("WaitingForNodes", format!("every node is done; others may join{}", failures(nodes))),
    }
}

/// Which nodes failed and why: a few of them.
fn failures(nodes: &[Node]) -> String {
    let mut failed = nodes.iter().filter_map(|node| match &node.class {
        Class::Failed(why) => Some((&node.name, why)),
        _ => None,
    });
    let mut text = String::new();
    for (name, why) in failed.by_ref().take(NAMED) {
        let why: String = why.chars().take(200).collect();
        text += &format!("; {name}: {why}");
    }
    match failed.count() {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// The status of a job that cannot be carried out as it is written.
pub fn invalid(status: &ImagePullJobStatus, generation: Option<i64>, why: &str, now: Now) -> ImagePullJobStatus {
    let mut status = status.clone();
    let message: String = why.chars().take(1024).collect();
    status.message = message.clone();
    status.observed_generation = generation;
    let invalid = Wanted::new(false, "Invalid", message);
    conditions::set(&mut status.conditions, labels::CONDITION_PROGRESSING, invalid, generation, now.wall);
    conditions::set_kstatus_of_run(&mut status.conditions, generation, now.wall);
    status
}

/// The status of a job that is over and whose spec has changed since. None: nothing of it changes.
pub fn for_newer_generation(status: &ImagePullJobStatus, generation: Option<i64>) -> Option<ImagePullJobStatus> {
    let newer = conditions::newer_generation(status.observed_generation, generation)?;
    let mut status = ImagePullJobStatus { observed_generation: Some(newer), ..status.clone() };
    conditions::still_hold(&mut status.conditions, Some(newer));
    Some(status)
}

/// Whether a status has to be written at once: more than numbers have changed.
pub fn is_news(before: &ImagePullJobStatus, after: &ImagePullJobStatus) -> bool {
    let words = |status: &ImagePullJobStatus| {
        let conditions = status.conditions.iter().map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()));
        let times = (status.start_time, status.completion_time);
        (times, status.observed_generation, conditions.collect::<Vec<_>>())
    };
    words(before) != words(after)
}

fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value) -> Job {
        let mut whole = json!({"image": "app:v1"});
        json_patch::merge(&mut whole, &spec);
        let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": {"name": "j", "namespace": "a", "uid": "u"}, "spec": whole});
        Job::of(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn now() -> Now {
        Now { wall: "2026-01-01T00:00:00.7Z".parse().unwrap(), mono: Duration::from_secs(1000) }
    }

    /// One letter a node: `u`nassigned, `p`ulling, `s`ucceeded, `f`ailed, `r`efused.
    fn nodes(letters: &str) -> Vec<Node> {
        let of = |(i, letter): (usize, char)| Node {
            name: format!("n{i}"),
            class: match letter {
                'p' => Class::Pulling,
                's' => Class::Succeeded,
                'f' => Class::Failed("no such image".into()),
                _ => Class::Unassigned,
            },
            refused: (letter == 'r').then(|| "it has 256 images".to_owned()),
        };
        letters.chars().enumerate().map(of).collect()
    }

    fn planned(job: &Job, letters: &str, age: u64) -> JobPlan {
        let (status, nodes) = (ImagePullJobStatus::default(), nodes(letters));
        let age = Duration::from_secs(age);
        plan(&ObservedJob { job, status: &status, generation: Some(2), nodes: &nodes, joining: 0, age }, now())
    }

    fn counts(status: &ImagePullJobStatus) -> (i32, i32, i32, i32) {
        (status.desired, status.active, status.succeeded, status.failed)
    }

    #[test]
    fn e6_parallelism_is_never_exceeded() {
        for (parallelism, letters, begins, active) in [
            (json!(null), "uuu", vec!["n0"], 1),
            (json!(2), "uuu", vec!["n0", "n1"], 2),
            (json!("2"), "puu", vec!["n1"], 2),
            (json!(2), "ppuu", vec![], 2),
            (json!(1), "ppuu", vec![], 2),
            (json!(2), "sfuupu", vec!["n2"], 2),
            (json!(0), "uu", vec![], 0),
            (json!(9), "uru", vec!["n0", "n2"], 2),
        ] {
            let plan = planned(&job(json!({"parallelism": parallelism})), letters, 0);
            assert_eq!(plan.begin, begins, "{parallelism} {letters}");
            assert_eq!(plan.status.active, active, "{parallelism} {letters}");
            assert_eq!(plan.status.completion_time, None);
        }
    }

    #[test]
    fn what_a_job_came_to_holds_for_a_spec_that_is_changed_after_its_end() {
        let over = planned(&job(json!({})), "ss", 0).status;
        assert!(over.completion_time.is_some());
        assert_eq!(for_newer_generation(&over, Some(2)), None);
        let again = for_newer_generation(&over, Some(3)).unwrap();
        assert_eq!((again.observed_generation, again.completion_time), (Some(3), over.completion_time));
        assert!(again.conditions.len() > 3 && again.conditions.iter().all(|c| c.observed_generation == Some(3)));
        let of_openkruise = ImagePullJobStatus { observed_generation: None, ..over };
        assert_eq!(for_newer_generation(&of_openkruise, Some(3)), None);
    }

    #[test]
    fn decision_32_a_job_that_its_spec_holds_is_ready() {
        let true_one = |parallelism: i32, letters: &str| {
            let status = planned(&job(json!({"parallelism": parallelism})), letters, 0).status;
            let all = status.conditions.into_iter();
            let mut found = all.filter(|c| conditions::KSTATUS.contains(&&*c.type_) && c.status == "True");
            found.next().map(|c| (c.type_, c.reason)).unwrap()
        };
        let is = |type_: &str, reason: &str| (type_.to_owned(), reason.to_owned());
        assert_eq!(true_one(0, "suu"), is("Ready", "Paused"));
        assert_eq!(true_one(0, "spu"), is("Reconciling", "Pulling"), "what was begun goes on");
        assert_eq!(true_one(1, "suu"), is("Reconciling", "Pulling"));
    }

    #[test]
    fn the_status_shows_how_far_it_is() {
        let plan = planned(&job(json!({"parallelism": 2})), "sfpuuuuu", 0);
        assert_eq!(counts(&plan.status), (8, 2, 1, 1));
        assert_eq!(plan.status.message, "job is running, progress 25.0%");
        assert_eq!(plan.status.failed_nodes, ["n1"]);
        assert_eq!(plan.status.start_time, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        let progressing = &plan.status.conditions[0];
        assert_eq!((progressing.type_.as_str(), progressing.status.as_str()), ("Progressing", "True"));
        assert_eq!(progressing.message, "up to 2 nodes pull at a time; n1: no such image");
    }

    #[test]
    fn a_job_is_over_when_every_node_is_done() {
        let plan = planned(&job(json!({})), "sss", 0);
        assert_eq!(counts(&plan.status), (3, 0, 3, 0));
        assert_eq!(plan.status.message, "job has completed");
        assert!(plan.status.completion_time.is_some() && plan.next.is_none());
        let condition =
            |plan: &JobPlan, type_: &str| plan.status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        assert!(condition(&plan, "Complete") && !condition(&plan, "Failed") && !condition(&plan, "Progressing"));
        let plan = planned(&job(json!({})), "sfs", 0);
        assert!(condition(&plan, "Failed") && !condition(&plan, "Complete"));
        assert_eq!(plan.status.message, "job has completed");
        let none = planned(&job(json!({})), "", 0);
        assert!(none.status.completion_time.is_some(), "no node is selected");
    }

    #[test]
    fn a_cluster_whose_first_nodes_come_up_is_waited_for() {
        let (job, status) = (job(json!({})), ImagePullJobStatus::default());
        let observed =
            ObservedJob { job: &job, status: &status, generation: None, nodes: &[], joining: 1, age: Duration::ZERO };
        let plan = plan(&observed, now());
        assert_eq!((plan.status.completion_time, plan.status.conditions[0].reason.as_str()), (None, "WaitingForNodes"));
        assert_eq!(plan.status.message, "job is running, no progress");
    }

    #[test]
    fn a_job_of_type_never_goes_on() {
        let plan = planned(&job(json!({"completionPolicy": {"type": "Never"}})), "ssf", 1_000_000);
        assert_eq!((plan.status.completion_time, plan.next), (None, None));
        assert_eq!(plan.status.conditions[0].reason, "WaitingForNodes");
        let plan = planned(&job(json!({"completionPolicy": {"type": "Never"}})), "ssfu", 1_000_000);
        assert_eq!(plan.begin, ["n3"], "a node that joined");
    }

    #[test]
    fn at_its_deadline_what_is_open_has_failed() {
        let job = job(
            json!({"pullPolicy": {"timeoutSeconds": 10}, "completionPolicy": {"activeDeadlineSeconds": 30}, "parallelism": 5}),
        );
        let before = planned(&job, "spu", 29);
        assert_eq!((before.begin.len(), before.next), (1, Some(Duration::from_secs(1))));
        let after = planned(&job, "spuf", 30);
        assert_eq!(counts(&after.status), (4, 0, 1, 3));
        assert_eq!((after.begin.len(), after.status.message.as_str()), (0, "job exceeds activeDeadlineSeconds"));
        assert_eq!(after.status.failed_nodes, ["n1", "n2", "n3"]);
        assert!(after.status.completion_time.is_some());
        let all_done = planned(&job, "ss", 30);
        assert_eq!(all_done.status.message, "job has completed");
    }

    #[test]
    fn many_failures_make_no_endless_message() {
        let plan = planned(&job(json!({})), &"f".repeat(1000), 0);
        let failed = plan.status.conditions.iter().find(|c| c.type_ == "Failed").unwrap();
        assert!(failed.message.ends_with("; n2: no such image; and 997 more"), "{}", failed.message);
        assert_eq!(plan.status.failed_nodes.len(), 1000);
    }

    #[test]
    fn f14_a_node_that_can_take_no_more_is_named() {
        let plan = planned(&job(json!({"parallelism": 5})), "sr", 0);
        let progressing = &plan.status.conditions[0];
        assert_eq!(
            (progressing.reason.as_str(), progressing.message.as_str()),
            ("NodeRefuses", "node n1: it has 256 images")
        );
        assert_eq!(plan.status.completion_time, None);
    }

    #[test]
    fn numbers_alone_are_no_news() {
        let job = job(json!({"parallelism": 2}));
        let (a, b) = (planned(&job, "ppu", 0).status, planned(&job, "spu", 0).status);
        assert!(a != b && !is_news(&a, &b));
        assert!(is_news(&a, &planned(&job, "sss", 0).status));
    }

    #[test]
    fn f16_nodes_are_selected_by_name_by_label_or_all() {
        let node: NodeImageView =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}})).unwrap();
        for (selector, want) in [
            (json!(null), Some(true)),
            (json!({}), Some(true)),
            (json!({"names": ["n0", "n1"]}), Some(true)),
            (json!({"names": ["n0"]}), Some(false)),
            (json!({"matchLabels": {"zone": "a"}}), Some(true)),
            (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), Some(false)),
        ] {
            assert_eq!(job(json!({"selector": selector})).selects(node.name(), &node.labels), want, "{selector}");
        }
        assert_eq!(job(json!({"podSelector": {}})).selects(node.name(), &node.labels), None);
    }

    #[test]
    fn f1_a_digest_is_kept_whole() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let job = job(json!({"image": format!("docker.io/library/busybox:1@{digest}")}));
        assert_eq!((job.image.as_str(), job.tag.as_str()), ("busybox", digest.as_str()));
    }
}
