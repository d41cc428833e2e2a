//! The lists of a Pod with what SidecarSets add, and the smallest patch that leads there.

use serde_json::{Value, json};

use super::container::{items, name};

/// One container of the Pod that is to be.
pub(super) struct Slot {
    /// The container.
    pub value: Value,
    /// Which SidecarSet it is of; None: the Pod's own.
    pub set: Option<usize>,
    /// Its place in the list that the Pod has.
    place: Option<usize>,
}

/// A container that a SidecarSet adds.
pub(super) struct Added {
    /// The container.
    pub value: Value,
    /// Which SidecarSet.
    pub set: usize,
    /// Whether it stands before the Pod's own.
    pub is_before: bool,
}

/// The list that a Pod is to have: containers of a name that is there already take its place, the others stand before or
/// after the Pod's own, in their order.
pub(super) fn merged(spec: &Value, field: &str, added: Vec<Added>) -> Vec<Slot> {
    let own = items(spec, field).enumerate();
    let mut slots: Vec<Slot> = own.map(|(i, value)| Slot { value: value.clone(), set: None, place: Some(i) }).collect();
    let mut before = 0;
    for Added { value, set, is_before } in added {
        if let Some(slot) = slots.iter_mut().find(|slot| name(&slot.value) == name(&value)) {
            *slot = Slot { value, set: Some(set), place: slot.place };
            continue;
        }
        let slot = Slot { value, set: Some(set), place: None };
        if is_before {
            slots.insert(before, slot);
            before += 1;
        } else {
            slots.push(slot);
        }
    }
    slots
}

/// The patch that makes a list of a Pod's spec that of the slots.
pub(super) fn operations(spec: &Value, field: &str, slots: &[Slot]) -> Vec<Value> {
    if slots.iter().all(|slot| slot.set.is_none()) {
        return Vec::new();
    }
    let path = format!("/spec/{field}");
    if !spec[field].is_array() {
        let list: Vec<&Value> = slots.iter().map(|slot| &slot.value).collect();
        return vec![json!({ "op": "add", "path": path, "value": list })];
    }
    let mut operations = Vec::new();
    // By the places of the list that is there, so before anything is put in.
    for slot in slots.iter().filter(|slot| slot.set.is_some()) {
        if let Some(place) = slot.place
            && spec[field][place] != slot.value
        {
            operations.push(json!({ "op": "replace", "path": format!("{path}/{place}"), "value": slot.value }));
        }
    }
    let first = slots.iter().position(|slot| slot.place.is_some()).unwrap_or_default();
    for (i, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.place.is_none()) {
        let at = if i < first { i.to_string() } else { "-".to_owned() };
        operations.push(json!({ "op": "add", "path": format!("{path}/{at}"), "value": slot.value }));
    }
    operations
}

/// The patch that appends to a list of a Pod's spec.
pub(super) fn appended(spec: &Value, field: &str, more: Vec<Value>) -> Vec<Value> {
    if more.is_empty() {
        return Vec::new();
    }
    let path = format!("/spec/{field}");
    if !spec[field].is_array() {
        return vec![json!({ "op": "add", "path": path, "value": more })];
    }
    let add = |value| json!({ "op": "add", "path": format!("{path}/-"), "value": value });
    more.into_iter().map(add).collect()
}
