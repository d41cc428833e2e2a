//! What SidecarSets note on a Pod: which of them were injected, by which hash and revision, and which containers of
//! hot-upgraded sidecars work. In the words of OpenKruise, whose older form is read too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

use crate::{
    api::labels::{SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SET_WORKING, SIDECAR_SETS_INJECTED},
    k8s::{invalid::Invalid, null, pod::PodView, time::rfc3339},
};

/// What the two annotations with hashes say of one SidecarSet.
///
/// Go writes null for a time that was never set and for a list that is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// When it was written, RFC 3339. Left out when unknown: OpenKruise cannot read an empty time.
    #[serde(deserialize_with = "null::as_default", skip_serializing_if = "String::is_empty")]
    pub update_timestamp: String,
    /// The hash.
    #[serde(deserialize_with = "null::as_default")]
    pub hash: String,
    /// The SidecarSet.
    #[serde(deserialize_with = "null::as_default")]
    pub sidecar_set_name: String,
    /// The containers and native sidecars as the SidecarSet names them, sorted.
    #[serde(deserialize_with = "null::as_default")]
    pub sidecar_list: Vec<String>,
    /// The revision; only beside the hash that images enter.
    #[serde(deserialize_with = "null::as_default", skip_serializing_if = "String::is_empty")]
    pub controller_revision: String,
    /// What other releases have added.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Notes by SidecarSet, as one annotation holds them.
pub type Notes = BTreeMap<String, Note>;

/// What stands in an annotation that may be in the older form, a hash by name.
enum Stored {
    Hash(String),
    Note(Note),
}

impl Stored {
    fn note(self, set: &str) -> Note {
        match self {
            Self::Note(note) => note,
            Self::Hash(hash) => Note { hash, sidecar_set_name: set.to_owned(), ..Note::default() },
        }
    }
}

/// Without the copy by which serde tries one form after the other.
impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Stored;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a hash, or an object with one")
            }
            fn visit_str<E: de::Error>(self, hash: &str) -> Result<Stored, E> {
                Ok(Stored::Hash(hash.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Stored, A::Error> {
                Note::deserialize(MapAccessDeserializer::new(map)).map(Stored::Note)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Reads one of the two annotations with hashes.
///
/// # Errors
/// It has neither of its two forms.
pub fn notes(annotations: &Map<String, Value>, key: &str) -> Result<Notes, Invalid> {
    let Some(text) = text(annotations, key) else { return Ok(Notes::new()) };
    let stored: Option<BTreeMap<String, Option<Stored>>> = serde_json::from_str(text)
        .map_err(|error| Invalid(format!("annotation {key}: want a JSON object of hashes by SidecarSet: {error}")))?;
    let note = |(name, stored): (String, Option<Stored>)| {
        let note = stored?.note(&name);
        Some((name, note))
    };
    Ok(stored.unwrap_or_default().into_iter().filter_map(note).collect())
}

/// The same of one SidecarSet.
fn notes_of(annotations: &Map<String, Value>, key: &str, set: &str) -> Result<Notes, Invalid> {
    Ok(notes(annotations, key)?.remove_entry(set).into_iter().collect())
}

/// What is noted of one SidecarSet in both annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected<'a> {
    /// The SidecarSet.
    pub name: &'a str,
    /// Its hash.
    pub hash: &'a str,
    /// Its hash without images.
    pub hash_without_image: &'a str,
    /// Its containers and native sidecars.
    pub sidecars: BTreeSet<&'a str>,
    /// The name of its revision; empty if it has none.
    pub revision: &'a str,
}

/// The annotations of a Pod that SidecarSets write, read as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNotes {
    /// By hash.
    pub hashes: Notes,
    /// By the hash without images.
    pub hashes_without_image: Notes,
    /// Names of SidecarSets.
    pub injected: BTreeSet<String>,
    /// The working container of each hot-upgraded sidecar.
    pub working: BTreeMap<String, String>,
}

impl PodNotes {
    /// Reads them.
    ///
    /// # Errors
    /// An annotation has not the form that it should have.
    pub fn read(annotations: &Map<String, Value>) -> Result<Self, Invalid> {
        Ok(Self {
            hashes: notes(annotations, SIDECAR_SET_HASH)?,
            hashes_without_image: notes(annotations, SIDECAR_SET_HASH_WITHOUT_IMAGE)?,
            injected: injected(annotations),
            working: working(annotations)?,
        })
    }

    /// Reads them, and keeps what they say of one SidecarSet.
    ///
    /// # Errors
    /// An annotation has not the form that it should have, also where it tells of others.
    pub fn of_set(annotations: &Map<String, Value>, set: &str) -> Result<Self, Invalid> {
        let list = text(annotations, SIDECAR_SETS_INJECTED).unwrap_or_default();
        Ok(Self {
            hashes: notes_of(annotations, SIDECAR_SET_HASH, set)?,
            hashes_without_image: notes_of(annotations, SIDECAR_SET_HASH_WITHOUT_IMAGE, set)?,
            injected: names(list).filter(|name| *name == set).map(str::to_owned).collect(),
            working: working(annotations)?,
        })
    }

    /// The containers and native sidecars that a SidecarSet put into the Pod: the name in the SidecarSet, and that in the Pod,
    /// which of twins is the name of the one at work.
    pub fn sidecars_of(&self, set: &str) -> Vec<(&str, &str)> {
        let note = self.hashes.get(set).filter(|_| self.injected.contains(set));
        let list = note.map(|note| note.sidecar_list.as_slice()).unwrap_or_default();
        list.iter().map(|name| (name.as_str(), self.working.get(name).unwrap_or(name).as_str())).collect()
    }

    /// Notes that a SidecarSet was injected. What was noted of others stays.
    pub fn add(&mut self, set: &Injected<'_>, now: Timestamp) {
        let note = |hash: &str, revision: &str| Note {
            update_timestamp: rfc3339(now),
            hash: hash.to_owned(),
            sidecar_set_name: set.name.to_owned(),
            sidecar_list: set.sidecars.iter().map(|&name| name.to_owned()).collect(),
            controller_revision: revision.to_owned(),
            rest: Map::new(),
        };
        self.hashes.insert(set.name.to_owned(), note(set.hash, set.revision));
        self.hashes_without_image.insert(set.name.to_owned(), note(set.hash_without_image, ""));
        self.injected.insert(set.name.to_owned());
    }

    /// Writes them.
    pub fn write(&self, annotations: &mut Map<String, Value>) {
        // Serializing text by text cannot fail.
        let json = |notes: &Notes| serde_json::to_string(notes).unwrap_or_default().into();
        annotations.insert(SIDECAR_SET_HASH.into(), json(&self.hashes));
        annotations.insert(SIDECAR_SET_HASH_WITHOUT_IMAGE.into(), json(&self.hashes_without_image));
        let injected: Vec<&str> = self.injected.iter().map(String::as_str).collect();
        annotations.insert(SIDECAR_SETS_INJECTED.into(), injected.join(",").into());
        if !self.working.is_empty() {
            let working = serde_json::to_string(&self.working).unwrap_or_default();
            annotations.insert(SIDECAR_SET_WORKING.into(), working.into());
        }
    }
}

fn working(annotations: &Map<String, Value>) -> Result<BTreeMap<String, String>, Invalid> {
    let Some(text) = text(annotations, SIDECAR_SET_WORKING) else { return Ok(BTreeMap::new()) };
    let working: Option<BTreeMap<String, Option<String>>> = serde_json::from_str(text).map_err(|error| {
        let want = "want a JSON object of containers by sidecar";
        Invalid(format!("annotation {SIDECAR_SET_WORKING}: {want}: {error}"))
    })?;
    Ok(working.into_iter().flatten().filter_map(|(name, twin)| Some((name, twin?))).collect())
}

/// The names of the SidecarSets that were injected.
pub fn injected(annotations: &Map<String, Value>) -> BTreeSet<String> {
    names(text(annotations, SIDECAR_SETS_INJECTED).unwrap_or_default()).map(str::to_owned).collect()
}

/// The names in the annotation that lists the SidecarSets that were injected.
pub fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The most SidecarSets that one Pod is found by. Admission injects fewer.
const MOST_INJECTED: usize = 200;

/// The names of the SidecarSets that were injected into a Pod, as it says itself.
pub fn injected_into(pod: &PodView) -> impl Iterator<Item = &str> {
    let notes = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.annotations.iter());
    let lists = notes.filter(|(key, _)| *key == SIDECAR_SETS_INJECTED);
    lists.flat_map(|(_, list)| names(list)).take(MOST_INJECTED)
}

fn text<'a>(annotations: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    annotations.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    fn set<'a>(name: &'a str, sidecars: &[&'a str]) -> Injected<'a> {
        let sidecars = sidecars.iter().copied().collect();
        Injected { name, hash: "h", hash_without_image: "w", sidecars, revision: "r" }
    }

    const NOW: &str = "2026-11-21T09:49:19Z";

    #[test]
    fn notes_are_written_as_openkruise_writes_them() {
        let mut annotations = map(json!({"their": "1"}));
        let mut notes = PodNotes::read(&annotations).unwrap();
        notes.add(&set("mesh", &["proxy", "agent"]), NOW.parse().unwrap());
        notes.working.insert("proxy".into(), "proxy-1".into());
        notes.write(&mut annotations);
        assert_eq!(
            annotations[SIDECAR_SET_HASH],
            r#"{"mesh":{"updateTimestamp":"2026-11-21T09:49:19Z","hash":"h","sidecarSetName":"mesh","sidecarList":["agent","proxy"],"controllerRevision":"r"}}"#
        );
        assert_eq!(
            annotations[SIDECAR_SET_HASH_WITHOUT_IMAGE],
            r#"{"mesh":{"updateTimestamp":"2026-11-21T09:49:19Z","hash":"w","sidecarSetName":"mesh","sidecarList":["agent","proxy"]}}"#
        );
        assert_eq!(annotations[SIDECAR_SETS_INJECTED], "mesh");
        assert_eq!(annotations[SIDECAR_SET_WORKING], r#"{"proxy":"proxy-1"}"#);
        assert_eq!(annotations["their"], "1");
        assert_eq!(PodNotes::read(&annotations).unwrap(), notes);
    }

    #[test]
    fn the_containers_of_a_set_are_those_at_work() {
        let mut notes = PodNotes::default();
        notes.add(&set("mesh", &["proxy", "agent"]), NOW.parse().unwrap());
        notes.working.insert("proxy".into(), "proxy-2".into());
        assert_eq!(notes.sidecars_of("mesh"), [("agent", "agent"), ("proxy", "proxy-2")]);
        assert!(notes.sidecars_of("logs").is_empty());
        notes.injected.clear();
        assert!(notes.sidecars_of("mesh").is_empty(), "what no SidecarSet put there is none of its");
    }

    #[test]
    fn d1_the_older_form_is_read_and_written_anew() {
        let mut annotations = map(json!({SIDECAR_SET_HASH: r#"{"old":"abc","mesh":"x"}"#,
            SIDECAR_SET_HASH_WITHOUT_IMAGE: r#"{"old":"def"}"#, SIDECAR_SETS_INJECTED: "old"}));
        let mut notes = PodNotes::read(&annotations).unwrap();
        assert_eq!((notes.hashes["old"].hash.as_str(), notes.hashes["old"].sidecar_set_name.as_str()), ("abc", "old"));
        notes.add(&set("mesh", &[]), NOW.parse().unwrap());
        notes.write(&mut annotations);
        let written: Value = serde_json::from_str(annotations[SIDECAR_SET_HASH].as_str().unwrap()).unwrap();
        assert_eq!((&written["old"]["hash"], &written["mesh"]["hash"]), (&json!("abc"), &json!("h")));
        assert_eq!(annotations[SIDECAR_SETS_INJECTED], "mesh,old");
        assert_eq!(
            written["old"].get("updateTimestamp"),
            None,
            "OpenKruise cannot read an empty time, nor then any other entry"
        );
    }

    #[test]
    fn d6_others_stay_and_the_list_is_a_sorted_union() {
        let mut notes = PodNotes::read(&map(json!({SIDECAR_SETS_INJECTED: "z, b,b,"}))).unwrap();
        notes.add(&set("m", &[]), NOW.parse().unwrap());
        let mut annotations = Map::new();
        notes.write(&mut annotations);
        assert_eq!(annotations[SIDECAR_SETS_INJECTED], "b,m,z");
        assert!(!annotations.contains_key(SIDECAR_SET_WORKING));
    }

    #[test]
    fn what_other_releases_have_noted_stays() {
        let text = r#"{"a":{"updateTimestamp":"t","hash":"h","sidecarSetName":"a","sidecarList":null,"new":{"x":1}}}"#;
        let notes = PodNotes::read(&map(json!({SIDECAR_SET_HASH: text}))).unwrap();
        let mut annotations = Map::new();
        notes.write(&mut annotations);
        let written: Value = serde_json::from_str(annotations[SIDECAR_SET_HASH].as_str().unwrap()).unwrap();
        assert_eq!((&written["a"]["new"], &written["a"]["sidecarList"]), (&json!({"x": 1}), &json!([])));
    }

    #[test]
    fn what_is_neither_a_hash_nor_a_note_cannot_be_read() {
        for other in ["5", "true", "[]", r#"{"hash":5}"#] {
            let text = format!(r#"{{"a":{other}}}"#);
            assert!(PodNotes::read(&map(json!({SIDECAR_SET_HASH: text}))).is_err(), "{other}");
        }
    }

    #[test]
    fn of_one_set_is_read_what_is_read_of_all() {
        let hashes = r#"{"a":{"hash":"h","sidecarList":["c"],"new":[1]},"b":"older","c":null,
            "d":{"updateTimestamp":null,"hash":"x","sidecarList":null}}"#;
        let annotations = map(json!({SIDECAR_SET_HASH: hashes, SIDECAR_SET_HASH_WITHOUT_IMAGE: r#"{"a":"w"}"#,
            SIDECAR_SETS_INJECTED: "a, b", SIDECAR_SET_WORKING: r#"{"x":"x-1"}"#}));
        let all = PodNotes::read(&annotations).unwrap();
        for set in ["a", "b", "c", "d", "none"] {
            let one = PodNotes::of_set(&annotations, set).unwrap();
            assert_eq!(one.hashes.get(set), all.hashes.get(set));
            assert_eq!(one.hashes_without_image.get(set), all.hashes_without_image.get(set));
            assert_eq!((one.injected.contains(set), &one.working), (all.injected.contains(set), &all.working));
            assert!(one.hashes.len() <= 1 && one.injected.len() <= 1, "of others nothing is kept");
        }
        for (text, is_readable) in [
            ("null", true),
            ("no json", false),
            ("5", false),
            (r#"{"a":"h"} x"#, false),
            (r#"{"b":5}"#, false),
            (r#"{"b":{"hash":5}}"#, false),
            (r#"{"b":{"sidecarList":"x"}}"#, false),
        ] {
            let annotations = map(json!({SIDECAR_SET_HASH: text}));
            let found = [PodNotes::of_set(&annotations, "a").is_ok(), PodNotes::read(&annotations).is_ok()];
            assert_eq!(found, [is_readable; 2], "{text}");
        }
    }

    #[test]
    fn nulls_of_go_are_read_as_what_is_empty() {
        let text = r#"{"a":{"updateTimestamp":null,"hash":"h","sidecarSetName":"a","sidecarList":["c"],"controllerRevision":null},
            "b":null,"c":"older"}"#;
        let of =
            |text: &str| PodNotes::read(&map(json!({SIDECAR_SET_HASH: text, SIDECAR_SETS_INJECTED: "a"}))).unwrap();
        let notes = of(text);
        assert_eq!((notes.hashes["a"].hash.as_str(), notes.hashes["c"].hash.as_str()), ("h", "older"));
        assert_eq!(notes.sidecars_of("a"), [("c", "c")]);
        assert!(notes.hashes["a"].update_timestamp.is_empty() && !notes.hashes.contains_key("b"));
        let nothing = r#"{"a":{"updateTimestamp":null,"hash":null,"sidecarSetName":null,"sidecarList":null}}"#;
        assert_eq!(of(nothing).hashes["a"], Note::default());
        assert!(of("null").hashes.is_empty());
        let working = |text: &str| PodNotes::read(&map(json!({SIDECAR_SET_WORKING: text}))).unwrap().working;
        assert_eq!(working(r#"{"mesh":"mesh-1","old":null}"#), [("mesh".into(), "mesh-1".into())].into());
        assert!(working("null").is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (key, text) in [
            (SIDECAR_SET_HASH, "x"),
            (SIDECAR_SET_HASH, r#"{"a":1}"#),
            (SIDECAR_SET_WORKING, "[]"),
            (SIDECAR_SET_HASH_WITHOUT_IMAGE, "[1]"),
        ] {
            let error = PodNotes::read(&map(json!({key: text}))).unwrap_err().0;
            assert!(error.starts_with(&format!("annotation {key}: want a JSON object")), "{error}");
        }
        assert_eq!(PodNotes::read(&map(json!({SIDECAR_SET_HASH: ""}))), Ok(PodNotes::default()));
    }
}
