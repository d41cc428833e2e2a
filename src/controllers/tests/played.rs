//! What is played around a controller in random histories, whatever its kind: the kubelet of a Pod, what happens to Pods,
//! and the queue that says when the next pass is due.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::{
    api::labels,
    k8s::time::rfc3339,
    runtime::{clock, queue::Requeue},
};

/// The monotonic clock, which a history moves.
pub(in crate::controllers) fn mono() -> Duration {
    clock::now().mono
}

/// What played kubelets remember of Pods on their nodes, by UID.
#[derive(Default)]
pub(in crate::controllers) struct Kubelets(BTreeMap<String, Container>);

struct Container {
    image: String,
    up_at: Duration,
    stops_at: Option<Duration>,
}

/// How a Pod on a node is.
pub(in crate::controllers) enum Look {
    /// Nothing happens before then; None: before something else does.
    Waits(Option<Duration>),
    /// It has stopped, and is gone.
    Ended,
    /// It is to run.
    Lives(Living),
}

/// A Pod that is to run.
pub(in crate::controllers) struct Living {
    pub(in crate::controllers) image: String,
    /// Its container runs.
    pub(in crate::controllers) runs: bool,
    /// It runs, and all its readiness gates are open.
    pub(in crate::controllers) ready: bool,
    /// `status.containerStatuses` as they are.
    pub(in crate::controllers) statuses: Value,
    /// How long it still takes to start.
    pub(in crate::controllers) starts_in: Option<Duration>,
    conditions: Vec<Value>,
}

impl Living {
    /// Whether the Pod has a condition, with whatever status.
    pub(in crate::controllers) fn has(&self, type_: &str) -> bool {
        self.conditions.iter().any(|condition| condition["type"] == type_)
    }

    /// Whether a condition of the Pod is True.
    pub(in crate::controllers) fn is_true(&self, type_: &str) -> bool {
        is_true(&self.conditions, type_)
    }
}

fn is_true(conditions: &[Value], type_: &str) -> bool {
    conditions.iter().any(|condition| condition["type"] == type_ && condition["status"] == "True")
}

impl Kubelets {
    /// What is to be done about a Pod. To start and to stop take `pause`; an image whose name begins with `bad` never runs.
    pub(in crate::controllers) fn look(&mut self, pod: &Value, pause: Duration) -> Look {
        let now = mono();
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
        let first = || Container { image: image.clone(), up_at: now + pause, stops_at: None };
        let container = self.0.entry(uid).or_insert_with(first);
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let at = *container.stops_at.get_or_insert(now + pause);
            return if now < at { Look::Waits(Some(at - now)) } else { Look::Ended };
        }
        if pod["status"]["phase"] == "Failed" {
            return Look::Waits(None);
        }
        if container.image != image {
            (container.image, container.up_at) = (image.clone(), now + pause);
        }
        let (runs, up_at) = (now >= container.up_at && !image.starts_with("bad"), container.up_at);
        let statuses = json!([{"name": "main", "image": image, "imageID": format!("id-of-{image}"), "ready": runs,
            "containerID": if runs { format!("c://{image}/{}", up_at.as_millis()) } else { String::new() },
            "restartCount": 0, "state": if runs { json!({"running": {}}) } else { json!({"waiting": {}}) }}]);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let gates = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
        let is_open = |gate: &Value| is_true(&conditions, gate["conditionType"].as_str().unwrap());
        let ready = runs && gates.iter().all(is_open);
        let starts_in = (now < up_at).then(|| up_at - now);
        Look::Lives(Living { image, runs, ready, statuses, starts_in, conditions })
    }
}

/// What happens to Pods.
pub(in crate::controllers) const HARMS: [&str; 4] =
    ["fails", "is marked", "is deleted by a user", "is deleted by force, by a user"];

/// One of [`HARMS`], by its place. False: the Pod is not there any more.
pub(in crate::controllers) fn harm(what: usize, pod: &mut Value) -> bool {
    let is_bound = pod["spec"]["nodeName"].is_string();
    match what {
        0 if is_bound => pod["status"]["phase"] = "Failed".into(),
        0 => {}
        1 => pod["metadata"]["labels"][labels::SPECIFIED_DELETE] = "true".into(),
        2 => pod["metadata"]["deletionTimestamp"] = rfc3339(clock::now().wall).into(),
        _ => return false,
    }
    what != 2 || is_bound
}

/// When the next pass is due.
pub(in crate::controllers) struct Passes {
    /// None: when something happens.
    pub(in crate::controllers) due: Option<Duration>,
    at_once: usize,
}

impl Default for Passes {
    fn default() -> Self {
        Self { due: Some(Duration::ZERO), at_once: 0 }
    }
}

impl Passes {
    /// Something has happened.
    pub(in crate::controllers) fn wake(&mut self) {
        self.due = Some(Duration::ZERO);
    }

    /// After a pass.
    ///
    /// # Errors
    /// One follows the other without end.
    pub(in crate::controllers) fn note(&mut self, next: &kube::Result<Requeue>) -> Result<(), String> {
        let now = mono();
        self.due = match next {
            Ok(Requeue::Await) => None,
            Ok(Requeue::After(after)) => Some(now + *after),
            // The queue tries again, after a while.
            Err(_) => Some(now + Duration::from_secs(1)),
        };
        let is_at_once = next.as_ref().is_ok_and(|next| *next == Requeue::After(Duration::ZERO));
        self.at_once = if is_at_once { self.at_once + 1 } else { 0 };
        if self.at_once > 100 { Err("one pass follows the other without end".into()) } else { Ok(()) }
    }
}
