//! The annotation `kruise.io/sidecarset-inplace-update-state`: what containers ran before their last update, by SidecarSet.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{
    api::labels::SIDECAR_SET_IN_PLACE_STATE,
    k8s::{invalid::Invalid, null},
};

/// What a container ran before it was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Before {
    /// As in the Pod's status.
    #[serde(rename = "imageID", deserialize_with = "null::as_default")]
    pub image_id: String,
    /// The instance, by which an update is seen to end whose new image has the digest of the old one. OpenKruise does not
    /// write it.
    #[serde(rename = "containerID", deserialize_with = "null::as_default", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// What the spec said when kubelet made that instance: for the same text it makes no other one. OpenKruise does not
    /// write it.
    #[serde(deserialize_with = "null::as_default", skip_serializing_if = "String::is_empty")]
    pub image: String,
}

impl Before {
    /// Whether this image is what the instance was made of, and a container has gone back to it before kubelet acted: no other
    /// instance is awaited.
    pub fn is_back_to(&self, image: &str) -> bool {
        self.container_id.is_empty() && !self.image.is_empty() && self.image == image
    }
}

/// The last update by one SidecarSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastUpdate {
    /// The hash that the Pod was updated to.
    #[serde(deserialize_with = "null::as_default")]
    pub revision: String,
    /// When, RFC 3339. Left out when unknown: OpenKruise cannot read an empty time.
    #[serde(deserialize_with = "null::as_default", skip_serializing_if = "String::is_empty")]
    pub update_timestamp: String,
    /// By container.
    #[serde(deserialize_with = "not_null")]
    pub last_container_statuses: BTreeMap<String, Before>,
    /// The Pod was out of service when it was updated, and no update by the SidecarSet was noted on it before: it does not count
    /// against `maxUnavailable` until it has been in service. OpenKruise does not write it.
    #[serde(deserialize_with = "null::as_default", skip_serializing_if = "std::ops::Not::not")]
    pub was_unavailable: bool,
    /// What other releases have added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl LastUpdate {
    /// Whether the Pod was out of service before the update, and its condition Ready has not changed after that. What is down
    /// after it has been in service may be so because of the update.
    pub fn found_it_down(&self, ready_since: Option<Timestamp>) -> bool {
        let is_later = |since| self.update_timestamp.parse::<Timestamp>().is_ok_and(|updated| since > updated);
        self.was_unavailable && !ready_since.is_some_and(is_later)
    }
}

/// The members of a map that are not null. Go writes null for a map that is empty.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error> {
    null::as_default(deserializer).map(there)
}

fn there<T>(map: BTreeMap<String, Option<T>>) -> BTreeMap<String, T> {
    map.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// The states by SidecarSet.
pub type States = BTreeMap<String, LastUpdate>;

/// Reads the annotation.
///
/// # Errors
/// It has not the form that it should have.
pub fn read(annotations: &Map<String, Value>) -> Result<States, Invalid> {
    match annotations.get(SIDECAR_SET_IN_PLACE_STATE).and_then(Value::as_str).filter(|text| !text.trim().is_empty()) {
        None => Ok(States::new()),
        Some(text) => {
            let states: Result<Option<BTreeMap<_, _>>, _> = serde_json::from_str(text);
            states.map(|states| there(states.unwrap_or_default())).map_err(|error| {
                Invalid(format!(
                    "annotation {SIDECAR_SET_IN_PLACE_STATE}: want a JSON object of updates by SidecarSet: {error}"
                ))
            })
        }
    }
}

/// Writes the annotation.
pub fn write(states: &States, annotations: &mut Map<String, Value>) {
    // Serializing text by text cannot fail.
    let text = serde_json::to_string(states).unwrap_or_default();
    annotations.insert(SIDECAR_SET_IN_PLACE_STATE.into(), text.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenKruise 1.9 wrote it.
    const RECORDED: &str = r#"{"golden-sidecar":{"revision":"4zddf87v28f8xb64fvf4vz77422f4cx4c85w558vdzd7969dxvc4x56df4zd8zbf","updateTimestamp":"2026-11-21T09:51:19Z","lastContainerStatuses":{"agent":{"imageID":"docker.io/library/busybox@sha256:3b0d6fa5f8064ef8a018573b55b6106323d4779a938e5b028a5e13a6b9096a60"}}}}"#;

    #[test]
    fn the_recorded_state_is_written_back_byte_for_byte() {
        let mut annotations = Map::from_iter([(SIDECAR_SET_IN_PLACE_STATE.to_owned(), RECORDED.into())]);
        let states = read(&annotations).unwrap();
        assert!(states["golden-sidecar"].last_container_statuses["agent"].image_id.ends_with("a60"));
        write(&states, &mut annotations);
        assert_eq!(annotations[SIDECAR_SET_IN_PLACE_STATE], RECORDED);
    }

    #[test]
    fn what_others_have_added_stays_and_what_cannot_be_read_is_named() {
        let of = |text: &str| read(&Map::from_iter([(SIDECAR_SET_IN_PLACE_STATE.to_owned(), text.into())]));
        let states = of(r#"{"a":{"lastContainerStatuses":null,"wasUnavailable":null,"more":1}}"#).unwrap();
        assert_eq!(serde_json::to_value(&states).unwrap()["a"]["more"], 1);
        assert_eq!(of("").unwrap(), States::new());
        assert!(of("[]").unwrap_err().0.contains("want a JSON object"));
        let text = r#"{"a":{"revision":null,"updateTimestamp":null,"lastContainerStatuses":{"c":null,"d":{"imageID":null}}},"b":null}"#;
        let states = of(text).unwrap();
        assert_eq!(states["a"].last_container_statuses, [("d".to_owned(), Before::default())].into());
        assert_eq!((states["a"].update_timestamp.as_str(), states.len()), ("", 1));
        assert_eq!(of("null").unwrap(), States::new());
    }
}
