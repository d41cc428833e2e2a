//! Pods with resources of their own, as a whole: sidecars that ask for more than is left would make such a Pod invalid.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{container::name, merge::Slot};
use crate::{domain::kinds::sidecar_set::amount::Amount, k8s::pointer};

/// What happens to sidecars that do not fit into the resources of a Pod as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodLevel {
    /// The Pod's resources grow by the sidecars'.
    #[default]
    Pad,
    /// The sidecars have none of their own and live on the Pod's.
    Share,
}

const SHARE: &str = "share";

impl PodLevel {
    /// The values that the annotation may have.
    pub const NAMES: [&str; 2] = ["pad", SHARE];

    /// From the annotation of a SidecarSet. What is not known, where admission was not asked, is the default.
    pub fn of(annotation: Option<&str>) -> Self {
        if annotation == Some(SHARE) { Self::Share } else { Self::Pad }
    }
}

fn amount(value: &Value) -> Option<Amount> {
    match value {
        Value::String(text) => Amount::parse(text),
        Value::Number(number) => Amount::parse(&number.to_string()),
        _ => None,
    }
}

fn limit(object: &Value, resource: &str) -> Option<Amount> {
    amount(&object["resources"]["limits"][resource])
}

/// A container's request, and a Pod's: where there is none, the limit is one.
fn request(object: &Value, resource: &str) -> Option<Amount> {
    amount(&object["resources"]["requests"][resource]).or_else(|| limit(object, resource))
}

fn is_native(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// What all containers request together, as the scheduler counts.
fn total(init: &[Slot], regular: &[Slot], resource: &str, counts: impl Fn(&Slot) -> bool) -> i128 {
    let of = |slot: &Slot| match counts(slot) {
        true => request(&slot.value, resource).map_or(0, Amount::milli),
        false => 0,
    };
    let (mut native, mut most) = (0, 0);
    for slot in init {
        let own = of(slot);
        most = most.max(native + own);
        if is_native(&slot.value) {
            native += own;
        }
    }
    most.max(native + regular.iter().map(of).sum::<i128>())
}

/// Whether a Pod with these resources as a whole may have these containers, as far as `counts` says that they count.
fn fits(spec: &Value, init: &[Slot], regular: &[Slot], resource: &str, counts: impl Fn(&Slot) -> bool) -> bool {
    let is_within = request(spec, resource).is_none_or(|most| total(init, regular, resource, &counts) <= most.milli());
    let limits_are_within = limit(spec, resource).is_none_or(|most| {
        let slots = init.iter().chain(regular).filter(|slot| counts(slot));
        slots.filter_map(|slot| limit(&slot.value, resource)).all(|limit| limit.milli() <= most.milli())
    });
    is_within && limits_are_within
}

/// Makes sidecars and the Pod's own resources fit together; `of_set` says how a SidecarSet wants that. Returns the patch of
/// the Pod's own resources, and what was done, for people.
pub(super) fn adjust(
    spec: &Value,
    init: &mut [Slot],
    regular: &mut [Slot],
    of_set: impl Fn(usize) -> PodLevel,
) -> (Vec<Value>, Vec<String>) {
    let fields = ["limits", "requests"];
    let maps = |object: &Value| -> BTreeSet<String> {
        let maps = fields.iter().filter_map(|field| object["resources"][field].as_object());
        maps.flat_map(Map::keys).cloned().collect()
    };
    // Resources that no sidecar asks for stay as they are. A Pod may name tens of thousands: it is not validated yet.
    let injected = init.iter().chain(regular.iter()).filter(|slot| slot.set.is_some());
    let asked: BTreeSet<String> = injected.flat_map(|slot| maps(&slot.value)).collect();
    let resources: BTreeSet<String> = maps(spec).intersection(&asked).cloned().collect();
    let resources = resources.iter().map(String::as_str);
    let (mut operations, mut said) = (Vec::new(), Vec::new());
    for resource in resources {
        let is_own = |slot: &Slot| slot.set.is_none();
        if fits(spec, init, regular, resource, |_| true) || !fits(spec, init, regular, resource, is_own) {
            continue;
        }
        let mut shared = Vec::new();
        for slot in init.iter_mut().chain(regular.iter_mut()) {
            if slot.set.is_some_and(|set| of_set(set) == PodLevel::Share) && strip(&mut slot.value, resource) {
                shared.push(name(&slot.value).to_owned());
            }
        }
        if !shared.is_empty() {
            let list = shared.join(", ");
            said.push(format!("{resource} of {list} comes from the resources of the Pod as a whole"));
        }
        if !fits(spec, init, regular, resource, |_| true) {
            let (patch, raised) = padded(spec, init, regular, resource);
            operations.extend(patch);
            said.push(raised);
        }
    }
    (operations, said)
}

/// Takes request and limit away: a limit alone would be the request.
fn strip(container: &mut Value, resource: &str) -> bool {
    let mut changed = false;
    for field in ["limits", "requests"] {
        if let Some(amounts) = container["resources"][field].as_object_mut() {
            changed |= amounts.remove(resource).is_some();
        }
    }
    changed
}

/// The Pod's own resources, grown by those of the sidecars.
fn padded(spec: &Value, init: &[Slot], regular: &[Slot], resource: &str) -> (Vec<Value>, String) {
    let slots = || init.iter().filter(|slot| is_native(&slot.value)).chain(regular);
    let added = |of: fn(&Value, &str) -> Option<Amount>| -> i128 {
        let injected = slots().filter(|slot| slot.set.is_some());
        injected.filter_map(|slot| of(&slot.value, resource)).map(Amount::milli).sum()
    };
    let largest = init.iter().chain(regular).filter_map(|slot| limit(&slot.value, resource)).map(Amount::milli).max();
    let escaped = pointer::escaped(resource);
    let mut operations = Vec::new();
    let mut words = Vec::new();
    let mut least = 0;
    for (field, grow) in [("requests", added(request)), ("limits", added(|c, r| limit(c, r).or_else(|| request(c, r))))]
    {
        let Some(now) = amount(&spec["resources"][field][resource]) else { continue };
        let floor = match field {
            "requests" => total(init, regular, resource, |_| true),
            _ => largest.unwrap_or_default().max(total(init, regular, resource, |_| true)),
        };
        let milli = (now.milli() + grow).max(floor).max(least);
        least = milli;
        let Some(wanted) = now.with_milli(milli) else { continue };
        let path = format!("/spec/resources/{field}/{escaped}");
        operations.push(json!({ "op": "replace", "path": path, "value": wanted.to_string() }));
        words.push(format!("{field} from {now} to {wanted}"));
    }
    (operations, format!("{resource} of the Pod as a whole was raised: {}", words.join(", ")))
}
