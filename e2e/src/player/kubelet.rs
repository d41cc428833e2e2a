//! One played kubelet: what it writes next follows from what was seen of its Pod, without a clock or a client.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{BROKEN, Fault, Options};
use crate::kit::Look;

/// What is seen of a Pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) generation: i64,
    /// The played node that it is bound to; none: none of them.
    pub(super) node: Option<String>,
    /// Containers of the spec with their images.
    images: Vec<(String, String)>,
    /// The first readiness gate that is not True, with the message that kubelet has for it.
    closed_gate: Option<String>,
    phase: String,
    ready: String,
    containers_ready: String,
    /// The grace period of its deletion, if it is being deleted.
    deleting: Option<u64>,
}

impl Seen {
    pub(super) fn of(pod: &DynamicObject, nodes: &str) -> Self {
        let data = &pod.data;
        let condition = |kind: &str| {
            let conditions = data.array("/status/conditions");
            conditions.iter().find(|c| c.text("/type") == kind).map_or("", |c| c.text("/status"))
        };
        let closed_gate = data.array("/spec/readinessGates").iter().find_map(|gate| {
            let kind = gate.text("/conditionType");
            match condition(kind) {
                "True" => None,
                "" => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                status => Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {status}")),
            }
        });
        let containers = data.array("/spec/containers").iter();
        let meta = &pod.metadata;
        let grace = meta.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or_default();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            node: Some(data.text("/spec/nodeName")).filter(|node| node.starts_with(nodes)).map(str::to_owned),
            images: containers.map(|c| (c.text("/name").to_owned(), c.text("/image").to_owned())).collect(),
            closed_gate,
            phase: data.text("/status/phase").to_owned(),
            ready: condition("Ready").to_owned(),
            containers_ready: condition("ContainersReady").to_owned(),
            deleting: meta.deletion_timestamp.is_some().then_some(grace),
        }
    }
}

/// A container as its kubelet knows it.
#[derive(Debug, Clone, PartialEq)]
struct Instance {
    image: String,
    attempt: u64,
    /// When the next instance starts, if this one has ended.
    ended_until: Option<Instant>,
}

impl Instance {
    fn is_broken(&self) -> bool {
        self.image.ends_with(&format!(":{BROKEN}"))
    }

    fn is_up(&self) -> bool {
        self.ended_until.is_none() && !self.is_broken()
    }
}

/// What the kubelet of one Pod remembers.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// For its address.
    number: usize,
    start: Option<Instant>,
    end: Option<Instant>,
    failed: bool,
    /// The status says that containers are being created.
    is_announced: bool,
    /// The status says that they have ended for good.
    is_ended: bool,
    containers: Vec<Instance>,
    /// The containers and the generation that the status shows since the last write.
    written: Option<(Vec<Instance>, i64)>,
}

/// What comes next for a Pod.
#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    /// Nothing until something changes.
    Rest,
    /// Nothing until then.
    Until(Instant),
    /// This status.
    Write(Value),
    /// Its containers have ended: the Pod can go.
    Remove,
}

impl Kubelet {
    /// Of the Pod with this number.
    pub(super) fn of(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// The status is written, for this generation of the Pod.
    pub(super) fn writes(&mut self, generation: i64) {
        self.written = Some((self.containers.clone(), generation));
    }

    /// The write has failed.
    pub(super) fn has_not_written(&mut self) {
        self.written = None;
    }

    pub(super) fn strike(&mut self, fault: Fault, now: Instant) {
        match fault {
            Fault::Fail => self.failed = true,
            Fault::Crash(down) => {
                if let Some(first) = self.containers.first_mut() {
                    first.ended_until = Some(now + down);
                }
            }
        }
    }

    /// `wall` is only written down.
    pub(super) fn turn(&mut self, seen: &Seen, options: &Options, now: Instant, wall: &str) -> Turn {
        if seen.node.is_none() {
            return Turn::Rest;
        }
        if let Some(grace) = seen.deleting {
            // 0: it was said already, finalizers hold it
            let end = *self.end.get_or_insert(now + options.stop.min(Duration::from_secs(grace)));
            return match grace {
                0 => Turn::Rest,
                _ if now < end => Turn::Until(end),
                _ if !options.stop.is_zero() && !self.containers.is_empty() && !self.is_ended => {
                    self.is_ended = true;
                    Turn::Write(self.ended(seen, wall))
                }
                _ => Turn::Remove,
            };
        }
        if ["Failed", "Succeeded"].contains(&seen.phase.as_str()) {
            return Turn::Rest;
        }
        if self.failed {
            return Turn::Write(json!({ "phase": "Failed", "reason": "Evicted", "message": "struck by the test",
                "conditions": [self.condition(seen, "Ready", false, "PodFailed", wall),
                    self.condition(seen, "ContainersReady", false, "PodFailed", wall)] }));
        }
        if self.containers.is_empty() {
            let start = *self.start.get_or_insert(now + options.start);
            if now < start {
                if !self.is_announced {
                    self.is_announced = true;
                    return Turn::Write(self.creating(seen, wall));
                }
                return Turn::Until(start);
            }
            let first =
                |(_, image): &(String, String)| Instance { image: image.clone(), attempt: 0, ended_until: None };
            self.containers = seen.images.iter().map(first).collect();
        }
        for (instance, (_, image)) in self.containers.iter_mut().zip(&seen.images) {
            if instance.image != *image && instance.ended_until.is_none() {
                instance.ended_until = Some(now + options.restart);
            }
            if instance.ended_until.is_some_and(|until| until <= now) {
                *instance = Instance { image: image.clone(), attempt: instance.attempt + 1, ended_until: None };
            }
        }
        let next = self.containers.iter().filter_map(|i| i.ended_until).min();
        let is_written = self.written.as_ref().is_some_and(|w| w.0 == self.containers && w.1 == seen.generation);
        let (containers_ready, ready) = self.readiness(seen);
        let text = |ready: bool| if ready { "True" } else { "False" };
        if is_written && seen.containers_ready == text(containers_ready) && seen.ready == text(ready) {
            return next.map_or(Turn::Rest, Turn::Until);
        }
        Turn::Write(self.status(seen, wall))
    }

    fn readiness(&self, seen: &Seen) -> (bool, bool) {
        let containers = self.containers.iter().all(Instance::is_up);
        (containers, containers && seen.closed_gate.is_none())
    }

    fn condition(&self, seen: &Seen, kind: &str, holds: bool, reason: &str, wall: &str) -> Value {
        let status = if holds { "True" } else { "False" };
        let mut condition = json!({ "type": kind, "status": status, "observedGeneration": seen.generation,
            "reason": if holds { Value::Null } else { reason.into() }, "message": null });
        let before = if kind == "Ready" { &seen.ready } else { &seen.containers_ready };
        if before != status {
            condition["lastTransitionTime"] = wall.into();
        }
        condition
    }

    /// What kubelet says first of a Pod.
    fn creating(&self, seen: &Seen, wall: &str) -> Value {
        let waiting = |(name, image): &(String, String)| {
            json!({ "name": name, "image": image, "imageID": "", "restartCount": 0, "ready": false, "started": false,
                "state": { "waiting": { "reason": "ContainerCreating" } } })
        };
        let condition =
            |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": wall });
        json!({ "phase": "Pending", "startTime": wall, "hostIP": "10.127.0.1", "hostIPs": [{ "ip": "10.127.0.1" }],
            "observedGeneration": seen.generation, "containerStatuses": seen.images.iter().map(waiting).collect::<Vec<_>>(),
            "conditions": [condition("PodReadyToStartContainers", "False"), condition("Initialized", "True"),
                self.condition(seen, "Ready", false, "ContainersNotReady", wall),
                self.condition(seen, "ContainersReady", false, "ContainersNotReady", wall)] })
    }

    /// What kubelet says last of a Pod.
    fn ended(&self, seen: &Seen, wall: &str) -> Value {
        let mut status = self.status(seen, wall);
        status["phase"] = "Succeeded".into();
        for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
            let terminated = json!({ "exitCode": 0, "reason": "Completed", "startedAt": wall, "finishedAt": wall,
                "containerID": container["containerID"] });
            container["state"] = json!({ "terminated": terminated });
            container["ready"] = false.into();
            container["started"] = false.into();
        }
        status["conditions"] = json!([
            self.condition(seen, "Ready", false, "PodCompleted", wall),
            self.condition(seen, "ContainersReady", false, "PodCompleted", wall)
        ]);
        status
    }

    /// The status as kubelet writes it: a strategic merge patch, so that conditions of others stay.
    fn status(&self, seen: &Seen, wall: &str) -> Value {
        let (containers_ready, ready) = self.readiness(seen);
        let containers = self.containers.iter().zip(&seen.images).map(|(instance, (name, _))| {
            let up = instance.is_up();
            let id = |attempt: u64| format!("containerd://{}", digits(&[&seen.uid, name, &attempt.to_string()]));
            let terminated = |attempt: u64| {
                json!({ "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": wall, "finishedAt": wall,
                "containerID": id(attempt) } })
            };
            if instance.is_broken() && instance.ended_until.is_none() {
                return json!({ "name": name, "image": instance.image, "imageID": "", "containerID": "",
                    "restartCount": instance.attempt, "ready": false, "started": false,
                    "state": { "waiting": { "reason": "ErrImagePull", "message": "there is no such image" } } });
            }
            let state = if up { json!({ "running": { "startedAt": wall } }) } else { terminated(instance.attempt) };
            let last = if instance.attempt > 0 { terminated(instance.attempt - 1) } else { json!({}) };
            json!({ "name": name, "image": instance.image, "imageID": image_id(&instance.image),
                "containerID": id(instance.attempt), "restartCount": instance.attempt, "ready": up, "started": up,
                "state": state, "lastState": last })
        });
        // a Pod whose containers have not all run once is still about to begin
        let is_pending = self.containers.iter().any(|i| i.is_broken() && i.attempt == 0);
        let phase = if is_pending { "Pending" } else { "Running" };
        let mut status = json!({ "phase": phase, "containerStatuses": containers.collect::<Vec<_>>(),
            "observedGeneration": seen.generation });
        let mut conditions = Vec::new();
        if self.written.as_ref().is_none_or(|(containers, _)| containers.is_empty()) {
            let at = self.number + 1;
            let ip = format!("10.{}.{}.{}", 128 + at / 62_500 % 100, at / 250 % 250, at % 250 + 1);
            for (key, value) in [("startTime", json!(wall)), ("hostIP", json!("10.127.0.1")), ("podIP", json!(ip))] {
                status[key] = value;
            }
            status["hostIPs"] = json!([{ "ip": "10.127.0.1" }]);
            status["podIPs"] = json!([{ "ip": ip }]);
            for kind in ["PodReadyToStartContainers", "Initialized"] {
                conditions.push(json!({ "type": kind, "status": "True", "lastTransitionTime": wall }));
            }
        }
        let reason = if containers_ready { "ReadinessGatesNotReady" } else { "ContainersNotReady" };
        let mut condition = self.condition(seen, "Ready", ready, reason, wall);
        if let (true, Some(gate)) = (containers_ready, &seen.closed_gate) {
            condition["message"] = gate.as_str().into();
        }
        conditions.push(condition);
        conditions.push(self.condition(seen, "ContainersReady", containers_ready, "ContainersNotReady", wall));
        status["conditions"] = conditions.into();
        status
    }
}

/// The image id that a container of this image shows: the same for the same name, as a tag that is never moved.
pub fn image_id(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let repository = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    };
    format!("{repository}@sha256:{}", digits(&[image]))
}

/// 64 hexadecimal digits that only these words have.
fn digits(words: &[&str]) -> String {
    (0..4_u8)
        .map(|part| {
            let mut hasher = DefaultHasher::new();
            (part, words).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        })
        .collect()
}

/// What comes next for a Pod whose kubelet is silent: the node controller says that it is not Ready.
pub(super) fn silence(seen: &Seen, until: Instant, wall: &str) -> Turn {
    if seen.ready != "True" {
        return Turn::Until(until);
    }
    Turn::Write(json!({ "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": wall }] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: &str = "2026-01-01T00:00:00Z";

    fn seen(image: &str, gate: Option<&str>) -> Seen {
        Seen {
            name: "p".into(),
            uid: "u".into(),
            node: Some("n".into()),
            images: vec![("main".into(), image.into())],
            closed_gate: gate.map(str::to_owned),
            generation: 1,
            ..Seen::default()
        }
    }

    fn written(turn: Turn) -> Value {
        match turn {
            Turn::Write(status) => status,
            other => panic!("not a write: {other:?}"),
        }
    }

    fn condition(status: &Value, kind: &str) -> (String, String) {
        let found = status.array("/conditions").iter().find(|c| c.text("/type") == kind).expect("the condition");
        (found.text("/status").to_owned(), found.text("/message").to_owned())
    }

    /// What the API server makes of a write, as far as turns look at it.
    fn apply(kubelet: &mut Kubelet, seen: &mut Seen, status: &Value) {
        kubelet.writes(seen.generation);
        seen.ready = condition(status, "Ready").0;
        seen.containers_ready = condition(status, "ContainersReady").0;
        seen.phase = status.text("/phase").to_owned();
    }

    #[test]
    fn a_pod_is_ready_when_its_containers_are_and_every_gate_is_true() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:v1", Some("not yet"));
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "ContainersReady"), ("True".into(), String::new()));
        assert_eq!(condition(&status, "Ready"), ("False".into(), "not yet".into()));
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);

        pod.closed_gate = None;
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "Ready").0, "True");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
    }

    #[test]
    fn a_changed_image_is_another_instance_after_the_moment_of_a_restart() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let options = Options { restart: Duration::from_secs(2), ..Options::default() };
        let mut pod = seen("r.example:5000/app:v1", None);
        let first = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &first);
        pod.images[0].1 = "r.example:5000/app:v2".into();
        pod.generation = 2;
        let down = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &down);
        let container = |status: &Value, field: &str| status.text(&format!("/containerStatuses/0/{field}")).to_owned();
        assert_eq!(container(&down, "imageID"), container(&first, "imageID"));
        assert_eq!(condition(&down, "Ready").0, "False");
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + options.restart));

        let up = written(kubelet.turn(&pod, &options, now + options.restart, WALL));
        assert!(container(&up, "imageID").starts_with("r.example:5000/app@sha256:"), "{up}");
        assert_ne!(container(&up, "imageID"), container(&first, "imageID"));
        assert_ne!(container(&up, "containerID"), container(&first, "containerID"));
        assert_eq!(up.int("/containerStatuses/0/restartCount"), 1);
        assert_eq!((condition(&up, "Ready").0.as_str(), up.int("/observedGeneration")), ("True", 2));
    }

    #[test]
    fn without_a_moment_a_restart_is_one_write() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:v1", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        pod.images[0].1 = "app:v2".into();
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.int("/containerStatuses/0/restartCount"), 1);
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
    }

    #[test]
    fn a_deleted_pod_goes_after_its_stop_or_its_grace_period_and_once() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let options = Options { stop: Duration::from_secs(5), ..Options::default() };
        let mut pod = Seen { deleting: Some(2), ..seen("app", None) };
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + Duration::from_secs(2)));
        assert_eq!(kubelet.turn(&pod, &options, now + Duration::from_secs(2), WALL), Turn::Remove);
        pod.deleting = Some(0);
        assert_eq!(kubelet.turn(&pod, &options, now + Duration::from_secs(3), WALL), Turn::Rest);
    }

    #[test]
    fn a_crash_comes_back_and_a_failure_does_not() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        let down = Duration::from_secs(1);
        kubelet.strike(Fault::Crash(down), now);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        let status = written(kubelet.turn(&pod, &options, now + down, WALL));
        assert_eq!(
            (condition(&status, "Ready").0.as_str(), status.int("/containerStatuses/0/restartCount")),
            ("True", 1)
        );
        apply(&mut kubelet, &mut pod, &status);
        kubelet.strike(Fault::Fail, now);
        let status = written(kubelet.turn(&pod, &options, now + down, WALL));
        assert_eq!(status.text("/phase"), "Failed");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now + down, WALL), Turn::Rest);
    }

    #[test]
    fn a_kubelet_that_takes_its_time_says_so_before_the_start_and_at_the_end() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let (start, stop) = (Duration::from_secs(1), Duration::from_millis(250));
        let options = Options { start, stop, ..Options::default() };
        let mut pod = seen("app:v1", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.text("/phase"), "Pending");
        assert_eq!(status.text("/containerStatuses/0/state/waiting/reason"), "ContainerCreating");
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + start));
        let status = written(kubelet.turn(&pod, &options, now + start, WALL));
        assert_eq!((status.text("/phase"), condition(&status, "Ready").0.as_str()), ("Running", "True"));
        assert!(!status.text("/podIP").is_empty() && condition(&status, "PodReadyToStartContainers").0 == "True");
        apply(&mut kubelet, &mut pod, &status);
        pod.deleting = Some(30);
        let later = now + start;
        assert_eq!(kubelet.turn(&pod, &options, later, WALL), Turn::Until(later + stop));
        let status = written(kubelet.turn(&pod, &options, later + stop, WALL));
        assert_eq!(status.text("/phase"), "Succeeded");
        assert_eq!(status.text("/containerStatuses/0/state/terminated/reason"), "Completed");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, later + stop, WALL), Turn::Remove);
    }

    #[test]
    fn what_cannot_be_pulled_waits_and_a_mended_image_starts() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:broken", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.text("/phase"), "Pending");
        assert_eq!(status.text("/containerStatuses/0/state/waiting/reason"), "ErrImagePull");
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
        pod.images[0].1 = "app:v1".into();
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!((status.text("/phase"), condition(&status, "Ready").0.as_str()), ("Running", "True"));
    }

    #[test]
    fn pods_on_a_silent_node_are_not_ready_until_it_is_back() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        let until = now + Duration::from_secs(2);
        let status = written(silence(&pod, until, WALL));
        assert_eq!(condition(&status, "Ready").0, "False");
        pod.ready = "False".into();
        assert_eq!(silence(&pod, until, WALL), Turn::Until(until));
        let status = written(kubelet.turn(&pod, &options, until, WALL));
        assert_eq!(condition(&status, "Ready").0, "True", "kubelet says it again");
    }

    #[test]
    fn pods_of_other_nodes_are_left_alone() {
        let pod = Seen { node: None, ..seen("app", None) };
        let turn = Kubelet::default().turn(&pod, &Options::default(), Instant::now(), WALL);
        assert_eq!(turn, Turn::Rest);
    }
}
