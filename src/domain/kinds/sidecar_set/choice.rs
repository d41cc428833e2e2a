//! Which revision of a SidecarSet a new Pod gets.

use serde_json::Value;

use super::matching::Aim;
use crate::k8s::pod::Labels;

/// An older revision that new Pods are to get.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// The revision of this name.
    Name(String),
    /// The newest one with this custom version.
    CustomVersion(String),
}

/// What a new Pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing: injection is paused.
    Nothing,
    /// The SidecarSet as it is.
    Current,
    /// An older revision.
    Pinned(Pin),
}

/// The revision that a SidecarSet pins, whoever gets it: `injectionStrategy.revision`, or the same fields flat in
/// `injectionStrategy`. The name wins.
pub fn pin(spec: &Value) -> Option<Pin> {
    let strategy = &spec["injectionStrategy"];
    let text = |place: &Value, field: &str| place[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let of = |place: &Value| {
        let name = text(place, "revisionName").map(Pin::Name);
        name.or_else(|| text(place, "customVersion").map(Pin::CustomVersion))
    };
    of(&strategy["revision"]).or_else(|| of(strategy))
}

/// What a Pod with these labels gets. `draw` is below 100 and decides, for policy Partial, like a die.
pub fn choose(spec: &Value, labels: &Labels, draw: u32) -> Choice {
    let strategy = &spec["injectionStrategy"];
    if strategy["paused"] == true {
        return Choice::Nothing;
    }
    let Some(pin) = pin(spec) else { return Choice::Current };
    let update = &spec["updateStrategy"];
    let policy = [&strategy["revision"]["policy"], &strategy["policy"]];
    let is_partial = policy.iter().find_map(|policy| policy.as_str()) == Some("Partial");
    if update["paused"] == true || !is_partial {
        return Choice::Pinned(pin);
    }
    if !update["selector"].is_null() && !selects(&update["selector"], labels) {
        return Choice::Pinned(pin);
    }
    // A number says how many Pods there are to be, not which share of the new ones.
    let percent = update["partition"].as_str().and_then(|text| text.strip_suffix('%')?.parse::<u32>().ok());
    if draw < percent.unwrap_or_default() { Choice::Pinned(pin) } else { Choice::Current }
}

fn selects(selector: &Value, labels: &Labels) -> bool {
    use super::matching::{Match, Namespace};
    let spec = serde_json::json!({ "selector": selector });
    // One that cannot be read selects nothing.
    Aim::of(&spec).is_ok_and(|aim| aim.fits(Namespace { name: "", labels: None }, labels) == Match::Yes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chosen(injection: Value, update: Value, draw: u32) -> Choice {
        let labels = serde_json::from_value(json!({"app": "web"})).unwrap();
        choose(&json!({"injectionStrategy": injection, "updateStrategy": update}), &labels, draw)
    }

    #[test]
    fn a12_which_revision_is_injected() {
        let name = || Choice::Pinned(Pin::Name("r".into()));
        let by_name = json!({"revision": {"revisionName": "r", "customVersion": "v"}});
        let partial = json!({"revision": {"revisionName": "r", "policy": "Partial"}});
        let (web, db) = (json!({"matchLabels": {"app": "web"}}), json!({"matchLabels": {"app": "db"}}));
        for (injection, update, draw, wanted) in [
            (json!(null), json!(null), 0, Choice::Current),
            (json!({}), json!({"paused": true}), 0, Choice::Current),
            (json!({"revision": {}}), json!({}), 0, Choice::Current),
            (json!({"paused": true, "revision": {"revisionName": "r"}}), json!({}), 0, Choice::Nothing),
            (by_name.clone(), json!({}), 99, name()),
            (json!({"revision": {"customVersion": "v"}}), json!({}), 0, Choice::Pinned(Pin::CustomVersion("v".into()))),
            (json!({"revision": {"revisionName": "r", "policy": "Always"}}), json!({"selector": web}), 0, name()),
            (partial.clone(), json!({"paused": true}), 99, name()),
            (partial.clone(), json!({"selector": db}), 99, name()),
            (partial.clone(), json!({"selector": web}), 0, Choice::Current),
            (partial.clone(), json!({}), 0, Choice::Current),
            (partial.clone(), json!({"partition": 5}), 0, Choice::Current),
            (partial.clone(), json!({"partition": "30%"}), 29, name()),
            (partial.clone(), json!({"partition": "30%"}), 30, Choice::Current),
            (partial.clone(), json!({"partition": "0%"}), 0, Choice::Current),
            (partial, json!({"partition": "100%"}), 99, name()),
        ] {
            assert_eq!(chosen(injection.clone(), update.clone(), draw), wanted, "{injection} {update} {draw}");
        }
    }

    /// As OpenKruise's announcement of 1.3 shows it.
    #[test]
    fn decision_28_the_flat_form_is_read_too() {
        assert_eq!(chosen(json!({"customVersion": "v"}), json!({}), 0), Choice::Pinned(Pin::CustomVersion("v".into())));
        assert_eq!(chosen(json!({"revisionName": "r"}), json!({}), 0), Choice::Pinned(Pin::Name("r".into())));
    }
}
