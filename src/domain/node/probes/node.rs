//! The daemon's part: when a probe is due, how its results are counted, and what of them is reported.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::{FAILED, LONGEST_TIMEOUT, SUCCEEDED, UNKNOWN, budget, readable};
use crate::{
    api::apps::node_pod_probe::{ContainerProbeState, NodePodProbe, PodProbeStatus},
    k8s::{
        invalid::Invalid,
        pod::{ContainerState, PodView},
        time::{Now, whole_seconds},
    },
};

/// How a container is probed.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler {
    /// A command in it.
    Exec(Vec<String>),
    /// A GET to the Pod's address.
    Http {
        /// 1 to 65535.
        port: u16,
        /// Begins with a slash.
        path: String,
        /// HTTPS; the certificate is not verified.
        https: bool,
        /// Header fields; Host changes what the request says, not where it goes.
        headers: Vec<(String, String)>,
    },
    /// A connection to the Pod's address.
    Tcp {
        /// 1 to 65535.
        port: u16,
    },
    /// One that cannot be carried out, and why.
    Impossible(String),
}

/// A probe with its defaults, which are not kubelet's.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What is done.
    pub handler: Handler,
    /// From the start of the container.
    pub initial_delay: Duration,
    /// Between two probes.
    pub period: Duration,
    /// For one of them, at most [`super::LONGEST_TIMEOUT`].
    pub timeout: Duration,
    /// Results in a row that make it Succeeded.
    pub success_threshold: u32,
    /// Results in a row that make it Failed.
    pub failure_threshold: u32,
}

/// A day: nobody means more, and clocks can hold it.
const LONGEST: i32 = 24 * 60 * 60;

impl Settings {
    /// Reads a probe.
    pub fn of(probe: &Value) -> Self {
        let (probe, wrong) = match serde_json::from_value::<Probe>(probe.clone()) {
            Ok(probe) => (probe, None),
            Err(error) => (Probe::default(), Some(format!("the probe cannot be read: {error}"))),
        };
        let seconds =
            |value: Option<i32>| Duration::from_secs(value.unwrap_or(1).clamp(1, LONGEST).unsigned_abs().into());
        let threshold = |value: Option<i32>| value.unwrap_or(1).max(1).unsigned_abs();
        Self {
            handler: wrong.map_or_else(|| handler(&probe), Handler::Impossible),
            initial_delay: seconds(probe.initial_delay_seconds),
            period: seconds(probe.period_seconds),
            timeout: seconds(probe.timeout_seconds).min(LONGEST_TIMEOUT),
            success_threshold: threshold(probe.success_threshold),
            failure_threshold: threshold(probe.failure_threshold),
        }
    }
}

fn handler(probe: &Probe) -> Handler {
    let made = match (&probe.exec, &probe.http_get, &probe.tcp_socket) {
        (Some(exec), None, None) => match exec.command.clone().unwrap_or_default() {
            command if command.is_empty() => Err(Invalid("exec.command is empty; want a command".into())),
            command => Ok(Handler::Exec(command)),
        },
        (None, Some(get), None) => http(get),
        (None, None, Some(socket)) => port(&socket.port).map(|port| Handler::Tcp { port }),
        (None, None, None) => Err(Invalid("the probe has none of exec, httpGet and tcpSocket".into())),
        _ => Err(Invalid("the probe has more than one of exec, httpGet and tcpSocket".into())),
    };
    made.unwrap_or_else(|Invalid(why)| Handler::Impossible(why))
}

fn http(get: &HTTPGetAction) -> Result<Handler, Invalid> {
    let path = get.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let https = match get.scheme.as_deref().unwrap_or("HTTP") {
        scheme if scheme.eq_ignore_ascii_case("http") => false,
        scheme if scheme.eq_ignore_ascii_case("https") => true,
        scheme => return Err(Invalid(format!("httpGet.scheme {scheme:?}: want HTTP or HTTPS"))),
    };
    let headers = get.http_headers.iter().flatten();
    Ok(Handler::Http {
        port: port(&get.port)?,
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        https,
        headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
    })
}

fn port(port: &IntOrString) -> Result<u16, Invalid> {
    let number = match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(text) => text.parse().ok(),
    };
    number.filter(|number| *number > 0).ok_or_else(|| Invalid(format!("port {port:?}: want 1 to 65535")))
}

/// The only address that is dialled: the Pod's own, as kubelet reported it. Never one that is the node to itself.
///
/// # Errors
/// It has none.
pub fn address(pod_ip: &str) -> Result<IpAddr, Invalid> {
    let ip: Option<IpAddr> = pod_ip.parse().ok();
    let is_usable = |ip: &IpAddr| {
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !link_local
    };
    ip.filter(is_usable).ok_or_else(|| Invalid(format!("the Pod has no usable address (podIP {pod_ip:?})")))
}

/// What the state of a container says about a probe of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It has not been started yet.
    NotStarted,
    /// It is not running.
    NotRunning,
    /// Its startup probe has not succeeded, or its initial delay is not over.
    TooEarly(Option<Duration>),
    /// It can be probed.
    Due,
}

/// Looks at a container, by what kubelet reports of it; and the id of its instance.
pub fn look<'p>(pod: &'p PodView, container: &str, settings: &Settings, now: Now) -> (Look, &'p str) {
    let Some(status) = pod.container_status(container) else { return (Look::NotStarted, "") };
    let id = &*status.container_id;
    let look = match &status.state {
        _ if id.is_empty() => Look::NotStarted,
        ContainerState::Running { .. } if status.is_starting => Look::TooEarly(None),
        ContainerState::Running { started_at } => {
            let age = started_at.map_or(settings.initial_delay, |started| now.since(started));
            match settings.initial_delay.checked_sub(age).filter(|left| !left.is_zero()) {
                Some(left) => Look::TooEarly(Some(left)),
                None => Look::Due,
            }
        }
        _ => Look::NotRunning,
    };
    (look, id)
}

/// The state of one probe of one instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Id of the instance; empty before the first.
    pub instance: String,
    /// Succeeded, Failed or Unknown; empty while there is nothing to report.
    pub state: &'static str,
    /// What was said with it.
    pub message: String,
    /// When state or message were found.
    pub probed: Option<Timestamp>,
    /// When the state changed.
    pub transition: Option<Timestamp>,
    streak: (bool, u32),
}

/// What a new result changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Nothing.
    Nothing,
    /// The message, or a container began of which nothing is known: that can wait a little.
    Message,
    /// The state.
    State,
}

impl Tally {
    /// What was reported before the daemon was started, if it is of the instance that still runs.
    pub fn adopt(recorded: &ContainerProbeState, pod: &PodView, container: &str) -> Option<Self> {
        let status = pod.container_status(container)?;
        let ContainerState::Running { started_at: Some(started) } = &status.state else { return None };
        let state = [SUCCEEDED, FAILED].into_iter().find(|state| *state == recorded.state)?;
        let transition = recorded.last_transition_time.filter(|at| *at >= whole_seconds(*started))?;
        Some(Self {
            instance: status.container_id.to_string(),
            state,
            message: recorded.message.clone(),
            probed: recorded.last_probe_time,
            transition: Some(transition),
            streak: (state == SUCCEEDED, 0),
        })
    }

    /// Another instance: nothing is known of it.
    pub fn begin(&mut self, instance: &str, now: Now) -> Changed {
        if self.instance == instance {
            return Changed::Nothing;
        }
        self.instance = instance.to_owned();
        self.reset(now)
    }

    /// Nothing is known any more.
    pub fn reset(&mut self, now: Now) -> Changed {
        self.streak = (false, 0);
        self.put(UNKNOWN, String::new(), now, true)
    }

    /// The container does not run.
    pub fn not_running(&mut self, container: &str, now: Now) -> Changed {
        self.streak = (false, 0);
        self.put(FAILED, format!("Container({container}) is Non-running"), now, false)
    }

    /// One result. Below its threshold it changes nothing.
    pub fn note(&mut self, is_good: bool, output: &[u8], settings: &Settings, now: Now) -> Changed {
        let count = if self.streak.0 == is_good { self.streak.1.saturating_add(1) } else { 1 };
        self.streak = (is_good, count);
        let (state, threshold) = match is_good {
            true => (SUCCEEDED, settings.success_threshold),
            false => (FAILED, settings.failure_threshold),
        };
        // What has been reported already has passed its threshold.
        if count < threshold && self.state != state {
            return Changed::Nothing;
        }
        self.put(state, readable(output), now, false)
    }

    fn put(&mut self, state: &'static str, message: String, now: Now, is_new: bool) -> Changed {
        if self.state == state && self.message == message && !is_new {
            return Changed::Nothing;
        }
        self.probed = Some(whole_seconds(now.wall));
        self.message = message;
        if self.state == state && !is_new {
            return Changed::Message;
        }
        self.transition = self.probed;
        self.state = state;
        // Mostly something is known within moments; nothing has to be reported before that.
        if state == UNKNOWN { Changed::Message } else { Changed::State }
    }

    fn as_state(&self, name: &str) -> ContainerProbeState {
        ContainerProbeState {
            name: name.to_owned(),
            state: self.state.to_owned(),
            last_probe_time: self.probed,
            last_transition_time: self.transition,
            message: self.message.clone(),
        }
    }
}

/// The results that belong in a NodePodProbe: of every probe in its spec what `tally` knows, else what was there; nothing
/// else. Messages are cut when they are too many. The same results give the same value, so that it is written only when
/// something has changed.
pub fn statuses<'t>(object: &NodePodProbe, tally: impl Fn(&str, &str) -> Option<&'t Tally>) -> Vec<PodProbeStatus> {
    let recorded = |uid: &str, name: &str| {
        let status = object.status.as_ref()?.pod_probe_statuses.iter().find(|status| status.uid == uid)?;
        status.probe_states.iter().find(|state| state.name == name).cloned()
    };
    let mut statuses = Vec::new();
    for pod in &object.spec.pod_probes {
        let states = pod.probes.iter().filter_map(|probe| {
            let known = tally(&pod.uid, &probe.name).filter(|tally| !tally.state.is_empty());
            known.map(|tally| tally.as_state(&probe.name)).or_else(|| recorded(&pod.uid, &probe.name))
        });
        let probe_states: Vec<ContainerProbeState> = states.collect();
        if !probe_states.is_empty() {
            statuses.push(PodProbeStatus {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
                probe_states,
            });
        }
    }
    budget::cut_messages(&mut statuses);
    statuses
}
