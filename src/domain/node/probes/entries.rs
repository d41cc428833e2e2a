//! The manager's part of a NodePodProbe: the whole of what has to be probed, from scratch each time.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::Value;

use super::{budget, full_name, name_of};
use crate::{
    api::apps::{
        node_pod_probe::{ContainerProbe, PodProbe},
        pod_probe_marker::PodProbeMarker,
    },
    k8s::pod::PodView,
};

/// Numbers of the ports that containers have names for.
pub type Ports = BTreeMap<(String, String), i64>;

/// The named ports of a Pod.
pub fn ports_of(pod: &Value) -> Ports {
    let mut ports = Ports::new();
    for list in ["/spec/initContainers", "/spec/containers"] {
        for container in pod.pointer(list).and_then(Value::as_array).into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            for port in container["ports"].as_array().into_iter().flatten() {
                if let (Some(port_name), Some(number)) = (port["name"].as_str(), port["containerPort"].as_i64()) {
                    ports.insert((name.to_owned(), port_name.to_owned()), number);
                }
            }
        }
    }
    ports
}

/// The port of a probe that is a name and no number.
fn named_port(probe: &Value) -> Option<(&'static str, &str)> {
    let of = |handler: &'static str| {
        let name = probe.get(handler)?.get("port")?.as_str()?;
        Some((handler, name))
    };
    of("httpGet").or_else(|| of("tcpSocket"))
}

/// Whether the Pod's own definition has to be read for the entry.
pub fn needs_ports(markers: &[&PodProbeMarker]) -> bool {
    let mut probes = markers.iter().flat_map(|marker| &marker.spec.probes);
    probes.any(|probe| named_port(&probe.probe).is_some_and(|(_, name)| name.parse::<u16>().is_err()))
}

/// Probes of a Pod that are looked at. More have no room, however small they are.
const MOST: usize = 256;
/// Bytes of the probes of a Pod that are looked at; [`budget::share`] chooses among them.
const MOST_BYTES: usize = 4 * budget::POD;

/// What is probed in a Pod for these PodProbeMarkers, which select it; perhaps nothing. And the names and bytes of probes
/// that cannot have room in any case: they are not even copied. Of those that are too many, one of each PodProbeMarker.
pub fn entry(pod: &PodView, markers: &[&PodProbeMarker], ports: &Ports) -> (PodProbe, Vec<(String, usize)>) {
    let (mut probes, mut left_out): (Vec<ContainerProbe>, Vec<(String, usize)>) = Default::default();
    let mut copied = 0;
    for marker in markers {
        for wanted in &marker.spec.probes {
            let name = full_name(name_of(marker), &wanted.name);
            if pod.container(&wanted.container_name).is_none() || probes.iter().any(|probe| probe.name == name) {
                continue;
            }
            let bytes = budget::at_least(&wanted.probe) + name.len() + wanted.container_name.len();
            if probes.len() >= MOST {
                left_out.push((name, bytes));
                break;
            }
            if bytes > budget::POD || copied + bytes > MOST_BYTES {
                left_out.push((name, bytes));
                continue;
            }
            let mut probe = wanted.probe.clone();
            if let Some((handler, port)) = named_port(&wanted.probe) {
                let declared = (wanted.container_name.clone(), port.to_owned());
                let number = port.parse::<u16>().ok().map(i64::from).or_else(|| ports.get(&declared).copied());
                // Nobody can probe it: the container has no port of that name.
                let Some(number) = number else { continue };
                probe[handler]["port"] = number.into();
            }
            copied += bytes;
            probes.push(ContainerProbe { name, container_name: wanted.container_name.clone(), probe });
        }
    }
    let entry = PodProbe {
        name: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        uid: pod.uid().to_owned(),
        ip: pod.pod_ip.to_string(),
        probes,
    };
    (entry, left_out)
}

/// A fingerprint of an entry without its probes.
pub fn fingerprint_of_head(entry: &PodProbe) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&entry.name, &entry.namespace, &entry.uid, &entry.ip).hash(&mut hasher);
    hasher.finish()
}

/// A fingerprint of a probe: equal ones have the same, whatever the order of the members of their objects.
pub fn fingerprint(probe: &ContainerProbe) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&probe.name, &probe.container_name).hash(&mut hasher);
    hash_value(&probe.probe, &mut hasher);
    hasher.finish()
}

fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            members.sort_by_key(|(key, _)| *key);
            members.len().hash(hasher);
            for (key, value) in members {
                key.hash(hasher);
                hash_value(value, hasher);
            }
        }
        Value::Array(list) => {
            list.len().hash(hasher);
            list.iter().for_each(|value| hash_value(value, hasher));
        }
        other => other.to_string().hash(hasher),
    }
}
