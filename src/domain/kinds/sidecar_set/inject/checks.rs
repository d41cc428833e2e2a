//! What an API server would refuse of a Pod because of a sidecar. Such a sidecar is left out, so that the Pod is born.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::{
    container::{items, name},
    merge::Slot,
};
use crate::{domain::pod::launch_priority, k8s::invalid::Invalid};

/// What is wrong with a sidecar in a Pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Conflict {
    /// An init container and a container of one name.
    #[error("container {0}: the Pod has an init container and a container of this name")]
    Name(String),
    /// A mount of no volume.
    #[error("container {container} mounts volume {volume}, which neither the SidecarSet nor the Pod has")]
    NoVolume {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
    },
    /// A port of the node that the Pod uses already.
    #[error("container {container} uses port {port} of the node, as another container of the Pod does")]
    HostPort {
        /// The container.
        container: String,
        /// The port.
        port: u64,
    },
    /// A launch priority that is none.
    #[error("{0}")]
    Priority(String),
}

/// The first SidecarSet for whose sidecars the Pod would be refused, and why. `volumes` are the names of all volumes;
/// `reads_priorities`: the variables of containers say in which order they start.
pub(super) fn first(
    spec: &Value,
    init: &[Slot],
    regular: &[Slot],
    volumes: &BTreeSet<&str>,
    reads_priorities: bool,
) -> Result<(), (usize, Conflict)> {
    let mut of_init: HashMap<&str, &Slot> = HashMap::new();
    for slot in init {
        of_init.entry(name(&slot.value)).or_insert(slot);
    }
    for slot in regular {
        let same = of_init.get(name(&slot.value));
        if let Some(set) = same.and_then(|same| same.set.max(slot.set)) {
            return Err((set, Conflict::Name(name(&slot.value).to_owned())));
        }
    }
    for slot in init.iter().chain(regular) {
        let Some(set) = slot.set else { continue };
        let mounted = items(&slot.value, "volumeMounts").chain(items(&slot.value, "volumeDevices")).map(name);
        if let Some(volume) = mounted.into_iter().find(|volume| !volumes.contains(volume)) {
            let container = name(&slot.value).to_owned();
            return Err((set, Conflict::NoVolume { container, volume: volume.to_owned() }));
        }
    }
    for slot in regular.iter().filter(|_| reads_priorities) {
        if let (Some(set), Err(Invalid(why))) = (slot.set, launch_priority::priority(&slot.value)) {
            return Err((set, Conflict::Priority(why)));
        }
    }
    host_ports(spec, regular)
}

/// Ports of the node are told apart among regular containers alone. In a Pod on the node's network each port is one.
fn host_ports(spec: &Value, regular: &[Slot]) -> Result<(), (usize, Conflict)> {
    let on_host = spec["hostNetwork"] == true;
    let mut taken = BTreeSet::new();
    let (own, injected): (Vec<&Slot>, Vec<&Slot>) = regular.iter().partition(|slot| slot.set.is_none());
    for slot in own.into_iter().chain(injected) {
        for port in items(&slot.value, "ports") {
            let number = port["hostPort"].as_u64().filter(|number| *number != 0);
            let number = number.or_else(|| port["containerPort"].as_u64().filter(|_| on_host));
            let Some(number) = number else { continue };
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            let address = port["hostIP"].as_str().unwrap_or_default();
            if !taken.insert((number, protocol, address))
                && let Some(set) = slot.set
            {
                return Err((set, Conflict::HostPort { container: name(&slot.value).to_owned(), port: number }));
            }
        }
    }
    Ok(())
}
