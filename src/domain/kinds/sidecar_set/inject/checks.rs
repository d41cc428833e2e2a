//! What an API server would refuse of a Pod because of a sidecar. Such a sidecar is left out, so that the Pod is born.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::{
    Set,
    container::{items, name},
    fields::Surroundings,
    merge::Slot,
};
use crate::{
    api::labels::{APP_ARMOR_PREFIX, POD_DELETION_COST, STATIC_POD_MIRROR},
    domain::pod::launch_priority,
    k8s::invalid::Invalid,
};

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
    /// A volume of another sort than it is used as.
    #[error("container {container} uses volume {volume} as {wanted}, which the Pod's volume of this name cannot be")]
    OtherVolume {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
        /// What it would have to be.
        wanted: &'static str,
    },
    /// A volume that is mounted and used as a device, or twice as a device.
    #[error("container {container} uses volume {volume} as a device and once more")]
    DeviceTwice {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
    },
    /// A port of the node that the Pod uses already.
    #[error("container {container} uses port {port} of the node, which is used already in the Pod")]
    HostPort {
        /// The container.
        container: String,
        /// The port.
        port: u64,
    },
    /// A port of the node for another one of a container.
    #[error(
        "container {container} uses port {port} of the node for its port {own}; in a Pod on the node's network both are one"
    )]
    OtherPort {
        /// The container.
        container: String,
        /// The port of the node.
        port: u64,
        /// That of the container.
        own: u64,
    },
    /// A field that this Pod cannot have.
    #[error("container {container}: {field} is not possible in this Pod: {why}")]
    Field {
        /// The container.
        container: String,
        /// The field.
        field: String,
        /// Why.
        why: &'static str,
    },
    /// An annotation that the API server judges.
    #[error("patchPodMetadata: annotation {0} is not possible on this Pod with this value")]
    Annotation(String),
    /// A launch priority that is none.
    #[error("{0}")]
    Priority(String),
}

/// The first SidecarSet for whose sidecars the Pod would be refused, and why. `volumes` are all of them by name;
/// `reads_priorities`: the variables of containers say in which order they start.
pub(super) fn first(
    spec: &Value,
    surroundings: &Surroundings<'_>,
    (init, regular): (&[Slot], &[Slot]),
    volumes: &BTreeMap<&str, &Value>,
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
        uses(&slot.value, volumes).map_err(|conflict| (set, conflict))?;
        if let Some((field, why)) = surroundings.misfit(&slot.value) {
            return Err((set, Conflict::Field { container: name(&slot.value).to_owned(), field, why }));
        }
    }
    for slot in regular.iter().filter(|_| reads_priorities) {
        if let (Some(set), Err(Invalid(why))) = (slot.set, launch_priority::priority(&slot.value)) {
            return Err((set, Conflict::Priority(why)));
        }
    }
    // One init container at a time has its ports.
    init.iter().try_for_each(|slot| host_ports(spec, std::slice::from_ref(slot)))?;
    regular.iter().try_for_each(|slot| same_ports(spec, slot))?;
    host_ports(spec, regular)
}

/// The volumes that variables of a container are read from.
pub(super) fn read_volumes(container: &Value) -> impl Iterator<Item = &str> {
    items(container, "env").filter_map(|variable| variable["valueFrom"]["fileKeyRef"]["volumeName"].as_str())
}

/// Whether a sidecar can use its volumes as it does.
fn uses(container: &Value, volumes: &BTreeMap<&str, &Value>) -> Result<(), Conflict> {
    let mounts = || items(container, "volumeMounts").map(name);
    let devices = || items(container, "volumeDevices").map(name);
    let own = || name(container).to_owned();
    let mut used = mounts().chain(devices()).chain(read_volumes(container));
    if let Some(volume) = used.find(|volume| !volumes.contains_key(volume)) {
        return Err(Conflict::NoVolume { container: own(), volume: volume.to_owned() });
    }
    let is_of = |volume: &str, sort: &str| volumes.get(volume).is_some_and(|volume| !volume[sort].is_null());
    let is_claim = |volume: &str| is_of(volume, "persistentVolumeClaim") || is_of(volume, "ephemeral");
    if let Some(volume) = devices().find(|&volume| !is_claim(volume)) {
        return Err(Conflict::OtherVolume { container: own(), volume: volume.to_owned(), wanted: "a device" });
    }
    if let Some(volume) = read_volumes(container).find(|&volume| !is_of(volume, "emptyDir")) {
        return Err(Conflict::OtherVolume { container: own(), volume: volume.to_owned(), wanted: "an emptyDir" });
    }
    let mut taken: BTreeSet<&str> = mounts().collect();
    match devices().find(|&volume| !taken.insert(volume)) {
        Some(volume) => Err(Conflict::DeviceTwice { container: own(), volume: volume.to_owned() }),
        None => Ok(()),
    }
}

/// The first SidecarSet that gives the Pod an annotation by which it would be refused. `before` are those of the Pod.
pub(super) fn given(
    before: &Value,
    annotations: &Map<String, Value>,
    sets: &[&Set<'_>],
    slots: (&[Slot], &[Slot]),
) -> Result<(), (usize, Conflict)> {
    for (key, value) in annotations.iter().filter(|(key, value)| before[key.as_str()] != **value) {
        let text = value.as_str().unwrap_or_default();
        let fits = match key.strip_prefix(APP_ARMOR_PREFIX) {
            Some(container) => slots.0.iter().chain(slots.1).any(|slot| name(&slot.value) == container),
            None if key == POD_DELETION_COST => is_cost(text),
            None => key != STATIC_POD_MIRROR,
        };
        let gives = |set: &&Set<'_>| {
            items(set.spec, "patchPodMetadata").any(|patch| !patch["annotations"][key.as_str()].is_null())
        };
        if !fits && let Some(set) = sets.iter().rposition(gives) {
            return Err((set, Conflict::Annotation(key.clone())));
        }
    }
    Ok(())
}

/// As the API server reads it: 32 bits, without a plus and leading zeros.
fn is_cost(text: &str) -> bool {
    let begins_well = text == "0" || text.starts_with('-') || text.starts_with(|c: char| ('1'..='9').contains(&c));
    begins_well && text.parse::<i32>().is_ok()
}

/// In a Pod on the node's network each port of a regular container is that of the node.
fn same_ports(spec: &Value, slot: &Slot) -> Result<(), (usize, Conflict)> {
    let Some(set) = slot.set.filter(|_| spec["hostNetwork"] == true) else { return Ok(()) };
    for port in items(&slot.value, "ports") {
        if let (Some(port), Some(own)) = (port["hostPort"].as_u64(), port["containerPort"].as_u64())
            && port != 0
            && port != own
        {
            return Err((set, Conflict::OtherPort { container: name(&slot.value).to_owned(), port, own }));
        }
    }
    Ok(())
}

/// Ports of the node are told apart among the regular containers, and in each init container. In a Pod on the node's network
/// each port is one.
fn host_ports(spec: &Value, slots: &[Slot]) -> Result<(), (usize, Conflict)> {
    let on_host = spec["hostNetwork"] == true;
    let mut taken = BTreeSet::new();
    let (own, injected): (Vec<&Slot>, Vec<&Slot>) = slots.iter().partition(|slot| slot.set.is_none());
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
