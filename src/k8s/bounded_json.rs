//! JSON of an object that somebody else wrote, as a tree that cannot grow out of proportion.
//!
//! An API server stores what is nested ten thousand levels deep, and an object of some megabytes. `{"":{}}` is seven bytes of text
//! and several hundred of memory. One such object must neither keep a list or a watch from bringing the others nor fill the memory
//! of a process.

use std::{cell::Cell, collections::BTreeMap, fmt};

use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, value::RawValue};

/// The deepest that an object may be nested. A Pod template has some ten levels; every parser of ours reads so many.
pub const MOST_LEVELS: usize = 100;

/// The largest tree, counted in parts of some sixty bytes: 6 MB. A Pod template has some hundred to some thousand, the inventory of
/// a node with 250 images in four versions each some 70,000.
pub const MOST_PARTS: usize = 100_000;

/// A map, or a structure in its place, counts as so many parts, however few it has.
pub const PARTS_OF_A_MAP: usize = 12;

/// Reads an object without its `metadata.managedFields`.
///
/// # Errors
/// It is no JSON, is nested deeper than [`MOST_LEVELS`] or has more than [`MOST_PARTS`].
pub fn read(text: &str) -> serde_json::Result<Value> {
    read_within(text, MOST_PARTS)
}

/// The same with another limit of its parts.
///
/// # Errors
/// See [`read`].
pub fn read_within(text: &str, most_parts: usize) -> serde_json::Result<Value> {
    part(text, &Cell::new(most_parts), Place::Object)
}

/// The same with `metadata.managedFields`, but for the fields in them, which may be nested as deep as one likes: who wrote the
/// object, and when.
///
/// # Errors
/// See [`read`].
pub fn read_with_managers(text: &str) -> serde_json::Result<Value> {
    part(text, &Cell::new(MOST_PARTS), Place::ObjectWithManagers)
}

fn part(text: &str, left: &Cell<usize>, place: Place) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Part { left, levels: MOST_LEVELS, place }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Where in an object a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Object,
    Metadata,
    ObjectWithManagers,
    MetadataWithManagers,
    Managers,
    Manager,
    Elsewhere,
}

#[derive(Clone, Copy)]
struct Part<'a> {
    left: &'a Cell<usize>,
    levels: usize,
    place: Place,
}

impl Part<'_> {
    fn take<E: Error>(self, parts: usize) -> Result<(), E> {
        match self.left.get().checked_sub(parts) {
            Some(left) => self.left.set(left),
            None => return Err(E::custom("it has too many values")),
        }
        Ok(())
    }

    /// What is within this, at `place`.
    fn within<E: Error>(self, place: Place) -> Result<Self, E> {
        match self.levels.checked_sub(1) {
            Some(levels) => Ok(Self { levels, place, ..self }),
            None => Err(E::custom(format_args!("it is nested deeper than {MOST_LEVELS} levels"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.take(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let place = if self.place == Place::Managers { Place::Manager } else { Place::Elsewhere };
        let within = self.within(place)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(within)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let within = self.within(Place::Elsewhere)?;
        // One was taken for it as for any value.
        self.take(PARTS_OF_A_MAP - 1)?;
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let place = match (self.place, key.as_str()) {
                (Place::Object, "metadata") => Place::Metadata,
                (Place::ObjectWithManagers, "metadata") => Place::MetadataWithManagers,
                (Place::MetadataWithManagers, "managedFields") => Place::Managers,
                (Place::Metadata, "managedFields") | (Place::Manager, "fieldsV1") => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => Place::Elsewhere,
            };
            let value = members.next_value_seed(Part { place, ..within })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The members of an object, each as text.
pub type Members<'a> = BTreeMap<String, &'a RawValue>;

/// The members of an object. None: it is none.
pub fn members(text: &str) -> Option<Members<'_>> {
    serde_json::from_str(text).ok()
}

/// Of the metadata of an object, whatever its form, only what identifies it and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Identity {
    /// Its name.
    #[serde(deserialize_with = "text")]
    pub name: Option<String>,
    /// Its namespace.
    #[serde(deserialize_with = "text")]
    pub namespace: Option<String>,
    /// Its UID.
    #[serde(deserialize_with = "text")]
    pub uid: Option<String>,
    /// Its version.
    #[serde(deserialize_with = "text")]
    pub resource_version: Option<String>,
    /// That of its spec.
    #[serde(deserialize_with = "text")]
    pub generation: Option<i64>,
}

/// What is of another type counts as nothing.
fn text<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(|value| serde_json::from_str(value.get()).ok())
}

/// What identifies an object, however deep and large the rest of it is. Empty: it is none.
pub fn identity(text: &str) -> Identity {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Identity,
    }
    serde_json::from_str::<Object>(text).unwrap_or_default().metadata
}

/// What of an object that would grow out of proportion can be had: of its metadata what identifies it, the time of its deletion,
/// labels and annotations, within `most_parts`; its spec, within as many; its other members, likewise. What does not fit is not
/// there. A spec that was stored by itself fits, whatever the metadata was padded with afterwards.
pub fn sparse(text: &str, most_parts: usize) -> Value {
    let fits = |value: &RawValue, left: &Cell<usize>| {
        let before = left.get();
        part(value.get(), left, Place::Elsewhere).inspect_err(|_| left.set(before)).ok()
    };
    let mut object = members(text).unwrap_or_default();
    let metadata = object.remove("metadata").and_then(|metadata| members(metadata.get())).unwrap_or_default();
    let (of_metadata, of_others) = (Cell::new(most_parts), Cell::new(most_parts));
    // What identifies it comes first.
    let needed = ["name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "labels", "annotations"];
    let pair = |key: &str| Some((key.to_owned(), fits(metadata.get(key)?, &of_metadata)?));
    let metadata: Map<String, Value> = needed.into_iter().filter_map(pair).collect();
    let spec = object.remove("spec").and_then(|spec| fits(spec, &Cell::new(most_parts)));
    let others = object.into_iter().filter_map(|(key, value)| Some((key, fits(value, &of_others)?)));
    let spec = spec.map(|spec| ("spec".to_owned(), spec));
    others.chain(spec).chain([("metadata".to_owned(), Value::Object(metadata))]).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_read_as_it_is_but_for_its_managed_fields() {
        let mut object = json!({"a": [1, -2, 0.5, 1e300, true, null, "x", {}, []], "n": u64::MAX, "m": i64::MIN, "": {"": "\u{2028}"},
            "metadata": {"name": "a", "labels": {"managedFields": "b"}}, "spec": {"metadata": {"managedFields": [1]}}});
        let wanted = object.clone();
        object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {}}}]);
        assert_eq!(read(&object.to_string()).unwrap(), wanted);
        for text in ["null", "7", "\"x\"", "[[]]"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for text in ["", "{", "{} {}", "[1,]", "nul"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_refused_whatever_its_depth() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(MOST_LEVELS)).is_ok());
        for levels in [MOST_LEVELS + 1, 127, 128, 129, 700_000] {
            let why = read(&nested(levels)).unwrap_err().to_string();
            assert!(why.starts_with("it is nested deeper than 100 levels"), "{why}");
        }
    }

    #[test]
    fn what_would_grow_out_of_proportion_is_refused() {
        let of = |item: &str, count: usize| format!("[{}{item}]", format!("{item},").repeat(count - 1));
        assert!(read(&of("1", MOST_PARTS - 1)).is_ok());
        assert!(read(&of(r#"{"":{}}"#, MOST_PARTS / 25)).is_ok());
        for text in [of("1", MOST_PARTS), of(r#"{"":{}}"#, MOST_PARTS / 24 + 1)] {
            let why = read(&text).unwrap_err().to_string();
            assert!(why.starts_with("it has too many values"), "{why}");
        }
        // Fields that the API server itself keeps there do not count.
        let fields = of(r#"{"f:a":{}}"#, MOST_PARTS);
        assert!(read(&format!(r#"{{"metadata":{{"managedFields":{fields}}}}}"#)).is_ok());
    }

    #[test]
    fn of_an_object_that_is_too_large_there_is_what_fits() {
        let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
        let text = format!(
            r#"{{"kind":"Pod","a":{deep},"spec":{{"b":1}},"metadata":{{"name":"a","labels":{{"c":"d"}},"ownerReferences":{deep},
            "managedFields":{deep},"annotations":{deep}}}}}"#
        );
        let wanted = json!({"kind": "Pod", "spec": {"b": 1}, "metadata": {"name": "a", "labels": {"c": "d"}}});
        assert_eq!(sparse(&text, 1000), wanted);
        assert_eq!(sparse(&text, 14)["spec"], json!({"b": 1}), "beside metadata that takes up all that it may");
        assert_eq!(sparse(&text, 12), json!({"kind": "Pod", "metadata": {"name": "a"}}));
        assert_eq!(sparse("7", 1000), json!({"metadata": {}}));
    }

    #[test]
    fn who_wrote_an_object_and_when_is_read_without_the_fields() {
        let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
        let text = format!(
            r#"{{"metadata":{{"managedFields":[{{"manager":"a","time":"b","fieldsV1":{deep}}}]}},"fieldsV1":1}}"#
        );
        let wanted = json!({"metadata": {"managedFields": [{"manager": "a", "time": "b"}]}, "fieldsV1": 1});
        assert_eq!(read_with_managers(&text).unwrap(), wanted);
    }

    #[test]
    fn what_identifies_an_object_is_read_whatever_else_it_holds() {
        let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
        let text = format!(
            r#"{{"spec":{deep},"metadata":{{"x":{deep},"name":"a","namespace":"b","uid":"c","resourceVersion":"7","generation":5}}}}"#
        );
        let text_of = |text: &str| Some(text.to_owned());
        let wanted = Identity {
            name: text_of("a"),
            namespace: text_of("b"),
            uid: text_of("c"),
            resource_version: text_of("7"),
            generation: Some(5),
        };
        assert_eq!(identity(&text), wanted);
        assert_eq!(identity(&text.replace("\"b\"", "7")), Identity { namespace: None, ..wanted });
        for text in ["7", "{}", r#"{"metadata":[]}"#, "null"] {
            assert_eq!(identity(text), Identity::default(), "{text}");
        }
    }
}
