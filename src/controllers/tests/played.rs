//! What is played around a controller in random histories, whatever its kind: the kubelet of a Pod, what happens to Pods,
//! and the queue that says when the next pass is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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
pub(in crate::controllers) struct Kubelets {
    pods: BTreeMap<String, Remembered>,
    tells: Tells,
    /// Nodes whose kubelets ignore new images of init containers.
    pub(in crate::controllers) old_nodes: BTreeSet<String>,
    /// Containers that run and are not ready, with the UIDs of their Pods.
    pub(in crate::controllers) unready: BTreeSet<(String, String)>,
}

/// What the status of a container that does not run has as its image ID, and as its container ID.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controllers) enum Tells {
    /// The image that is to run, and no container.
    #[default]
    Next,
    /// Those of the instance that ended.
    Before,
    /// Neither.
    Nothing,
}

#[derive(Default)]
struct Remembered {
    containers: BTreeMap<String, Container>,
    stops_at: Option<Duration>,
}

#[derive(Clone)]
struct Container {
    image: String,
    up_at: Duration,
    restarts: u64,
    /// Image ID and container ID of the last instance that ran.
    ran: (String, String),
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
    /// Of its first container.
    pub(in crate::controllers) image: String,
    /// Its containers run.
    pub(in crate::controllers) runs: bool,
    /// They are ready, and all its readiness gates are open.
    pub(in crate::controllers) ready: bool,
    /// `status.containerStatuses` as they are.
    pub(in crate::controllers) statuses: Value,
    /// `status.initContainerStatuses` of native sidecars.
    pub(in crate::controllers) init_statuses: Value,
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

/// What the runtime knows an image by: names that end alike are one image, with a digest and without.
pub(in crate::controllers) fn known_as(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    name.rsplit('/').next().unwrap_or(name)
}

/// The digest that the runtime reports of an image that it knows.
fn digest_of(known: &str) -> String {
    let hex: String = known.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex:0>64}")
}

impl Container {
    /// Its status, and how long it still takes to start.
    fn status(&mut self, name: &str, tells: Tells) -> (Value, Option<Duration>) {
        let now = mono();
        let known = known_as(&self.image);
        let runs = now >= self.up_at && !known.starts_with("bad");
        let id = format!("id-of-{known}@{}", digest_of(known));
        if runs {
            self.ran = (id.clone(), format!("c://{}/{}", self.image, self.up_at.as_millis()));
        }
        let (image_id, container_id) = match tells {
            _ if runs => self.ran.clone(),
            Tells::Before => self.ran.clone(),
            Tells::Next => (id, String::new()),
            Tells::Nothing => Default::default(),
        };
        let state = if runs { json!({"running": {}}) } else { json!({"waiting": {}}) };
        let status = json!({"name": name, "image": known, "imageID": image_id, "ready": runs,
            "containerID": container_id, "restartCount": self.restarts, "state": state});
        (status, (now < self.up_at).then(|| self.up_at - now))
    }
}

impl Remembered {
    /// The status of a container, and how long it still takes to start. Another image takes `pause` to start, unless it is
    /// ignored.
    fn run(
        &mut self,
        container: &Value,
        (pause, ignores): (Duration, bool),
        tells: Tells,
    ) -> (Value, Option<Duration>) {
        let text = |key: &str| container[key].as_str().unwrap().to_owned();
        let (name, image, up_at) = (text("name"), text("image"), mono() + pause);
        let first = || Container { image: image.clone(), up_at, restarts: 0, ran: Default::default() };
        let known = self.containers.entry(name.clone()).or_insert_with(first);
        if known.image != image && !ignores {
            (known.image, known.up_at) = (image, up_at);
        }
        known.status(&name, tells)
    }
}

impl Kubelets {
    /// Those that tell this of containers that do not run.
    pub(in crate::controllers) fn telling(tells: Tells) -> Self {
        Self { tells, ..Self::default() }
    }

    /// What is to be done about a Pod. To start and to stop take `pause`; an image whose name begins with `bad` never runs.
    pub(in crate::controllers) fn look(&mut self, pod: &Value, pause: Duration) -> Look {
        let now = mono();
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let known = self.pods.entry(uid.clone()).or_default();
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let at = *known.stops_at.get_or_insert(now + pause);
            return if now < at { Look::Waits(Some(at - now)) } else { Look::Ended };
        }
        if pod["status"]["phase"] == "Failed" {
            return Look::Waits(None);
        }
        let list = |field: &str| pod["spec"][field].as_array().into_iter().flatten();
        let native = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
        let ignores = self.old_nodes.contains(pod["spec"]["nodeName"].as_str().unwrap_or_default());
        let (mut statuses, mut init_statuses, mut starts_in) = (Vec::new(), Vec::new(), None);
        let (mut runs, mut is_unready) = (true, false);
        for (container, is_init) in list("containers").map(|c| (c, false)).chain(native.map(|c| (c, true))) {
            let (mut status, wait) = known.run(container, (pause, is_init && ignores), self.tells);
            runs &= status["ready"] == true;
            if self.unready.contains(&(uid.clone(), container["name"].as_str().unwrap().to_owned())) {
                (status["ready"], is_unready) = (false.into(), true);
            }
            starts_in = [starts_in, wait].into_iter().flatten().min();
            if is_init { init_statuses.push(status) } else { statuses.push(status) }
        }
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let gates = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
        let is_open = |gate: &Value| is_true(&conditions, gate["conditionType"].as_str().unwrap());
        let ready = runs && !is_unready && gates.iter().all(is_open);
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
        let (statuses, init_statuses) = (statuses.into(), init_statuses.into());
        Look::Lives(Living { image, runs, ready, statuses, init_statuses, starts_in, conditions })
    }

    /// An instance of a container ends, and the next one runs the same image at once; whatever its spec says by now, kubelet
    /// has not seen it. The new status of the container; None: it does not run.
    pub(in crate::controllers) fn crash(&mut self, uid: &str, container: &str) -> Option<Value> {
        let tells = self.tells;
        let known = self.pods.get_mut(uid)?.containers.get_mut(container)?;
        let now = mono();
        if now <= known.up_at || known_as(&known.image).starts_with("bad") {
            return None;
        }
        (known.up_at, known.restarts) = (now, known.restarts + 1);
        Some(known.status(container, tells).0)
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
