//! Changes of a StatefulSet's template for single ordinals: the annotation `kruise.rs/ordinal-overrides`.
//!
//! ```json
//! [{"ordinals": "0-1", "containers": {"main": {"image": "db:2", "resources": {"limits": {"memory": "8Gi"}}}},
//!   "nodeSelector": {"disk": "fast"}}]
//! ```
//!
//! They are laid over the template of the revision that a Pod is made of or updated to, and are no part of the revision's
//! data: its name and bytes stay those that OpenKruise computes. A Pod carries its override and the hash of it, so that a
//! change of the annotation concerns only the ordinals whose override it changes, and what changes in a Pod is known.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::numbering::ordinal_range;
use crate::{
    api::labels,
    k8s::{
        canonical_json, hash,
        name::{is_label_value, is_qualified_name},
        pod::OverrideNotes,
        quantity,
    },
};

/// The most entries of one annotation: each is tried with a dry run when it is written.
pub const MOST: usize = 32;

/// What is different for some ordinals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// By container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ContainerChange>,
    /// Laid over the node selector of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// What is different in a container or init container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerChange {
    /// Instead of the image of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Laid over the resources of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesChange>,
}

/// Amounts by resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourcesChange {
    /// Laid over the limits of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    /// Laid over the requests of the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
}

/// A change and its ordinals.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The smallest ordinal.
    first: i64,
    /// The largest ordinal. It is less than the smallest one if there is none.
    last: i64,
    /// What is different.
    pub change: Change,
    /// The hash that its Pods carry.
    hash: String,
}

/// The overrides of a StatefulSet, in the order of the annotation. No two of them have an ordinal in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(Vec<Override>);

/// What is wrong with an annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}{message}")]
pub struct Problem {
    /// Where, for example `[0].ordinals: `; empty for the whole.
    pub at: String,
    /// What, and what is allowed.
    pub message: String,
}

impl Problem {
    fn new(at: String, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

impl Overrides {
    /// Reads the value of the annotation. An empty one has no overrides.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(annotation: &str) -> Result<Self, Vec<Problem>> {
        if annotation.trim().is_empty() {
            return Ok(Self::default());
        }
        let entries: Vec<Map<String, Value>> = serde_json::from_str(annotation).map_err(|error| {
            vec![Problem::new(
                String::new(),
                format!(
                    "it is no JSON list of objects; want [{{\"ordinals\": \"0-2\", \"containers\": {{...}}}}]: {error}"
                ),
            )]
        })?;
        let mut problems = Vec::new();
        if entries.len() > MOST {
            problems.push(Problem::new(String::new(), format!("it has {} entries; want up to {MOST}", entries.len())));
        }
        let mut overrides: Vec<Override> = Vec::new();
        for (i, mut entry) in entries.into_iter().take(MOST).enumerate() {
            let ordinals = entry.remove("ordinals").unwrap_or_default();
            let range = ordinal_range(&ordinals)
                .map_err(|message| problems.push(Problem::new(format!("[{i}].ordinals: "), message)));
            let change = match serde_json::from_value::<Change>(Value::Object(entry)) {
                Ok(change) => change,
                Err(error) => {
                    problems.push(Problem::new(format!("[{i}]: "), error.to_string()));
                    continue;
                }
            };
            check(i, &change, &mut problems);
            let text = change.text();
            if text.len() > OverrideNotes::LONGEST_CONTENT {
                problems.push(Problem::new(
                    format!("[{i}]: "),
                    format!("it has {} bytes; want up to {}", text.len(), OverrideNotes::LONGEST_CONTENT),
                ));
            }
            let Ok((first, last)) = range else { continue };
            if let Some(other) = overrides.iter().position(|other| first <= other.last && other.first <= last) {
                problems.push(Problem::new(
                    format!("[{i}].ordinals: "),
                    format!("{ordinals} has ordinals of [{other}]; want each ordinal in one entry"),
                ));
            }
            overrides.push(Override { first, last, change, hash: hash_of(text) });
        }
        if problems.is_empty() { Ok(Self(overrides)) } else { Err(problems) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in the order of the annotation.
    pub fn iter(&self) -> impl Iterator<Item = &Override> {
        self.0.iter()
    }

    /// What is different for an ordinal.
    pub fn of(&self, ordinal: i32) -> Option<&Change> {
        self.entry(ordinal).map(|entry| &entry.change)
    }

    /// The hash that a Pod with this ordinal is to carry; empty without an override.
    pub fn hash(&self, ordinal: i32) -> &str {
        self.entry(ordinal).map_or("", |entry| &entry.hash)
    }

    fn entry(&self, ordinal: i32) -> Option<&Override> {
        self.0.iter().find(|entry| (entry.first..=entry.last).contains(&i64::from(ordinal)))
    }

    /// The template of a Pod: a template of the set with the override of an ordinal.
    pub fn laid_over<'t>(&self, template: &'t Value, ordinal: i32) -> Cow<'t, Value> {
        laid_over(template, self.hash(ordinal), self.of(ordinal))
    }

    /// Containers that the overrides name and the template does not have.
    pub fn missing(&self, template: &Value) -> Vec<Problem> {
        let names: Vec<&str> = ["containers", "initContainers"]
            .into_iter()
            .filter_map(|list| template.get("spec")?.get(list)?.as_array())
            .flatten()
            .filter_map(|container| container.get("name")?.as_str())
            .collect();
        let all =
            self.0.iter().enumerate().flat_map(|(i, entry)| entry.change.containers.keys().map(move |name| (i, name)));
        all.filter(|(_, name)| !names.contains(&name.as_str()))
            .map(|(i, name)| {
                let want = names.join(", ");
                Problem::new(
                    format!("[{i}].containers: "),
                    format!("the template has no container {name:?}; want one of {want}"),
                )
            })
            .collect()
    }
}

impl Change {
    /// Lays the change over a template.
    pub fn apply(&self, template: &mut Value) {
        let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) else { return };
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let change = container.get("name").and_then(Value::as_str).and_then(|name| self.containers.get(name));
                if let (Some(change), Some(container)) = (change.cloned(), container.as_object_mut()) {
                    change.apply(container);
                }
            }
        }
        lay(spec, "nodeSelector", &self.node_selector);
    }

    fn hash(&self) -> String {
        hash_of(self.text())
    }

    fn text(&self) -> String {
        canonical_json::encode(&serde_json::to_value(self).unwrap_or_default())
    }
}

fn hash_of(text: String) -> String {
    hash::safe_encode(hash::fnv1_32(text.into_bytes()))
}

/// The override that a Pod was made or updated with, as its annotations say. Each pass compares the hash; what it stands
/// for is read only to update a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Applied {
    hash: String,
    content: Option<Arc<str>>,
}

impl Applied {
    /// From the values of both annotations.
    pub fn of(hash: Option<&str>, content: Option<Arc<str>>) -> Self {
        Self { hash: hash.unwrap_or_default().to_owned(), content }
    }

    /// After a patch of the Pod's metadata is written.
    pub fn after(self, metadata: &Value) -> Self {
        let annotations = metadata.get("annotations");
        let text = |key: &str| annotations.and_then(|all| all.get(key));
        match text(labels::ORDINAL_OVERRIDE_HASH) {
            None => self,
            Some(hash) => {
                Self::of(hash.as_str(), text(labels::ORDINAL_OVERRIDE).and_then(Value::as_str).map(Arc::from))
            }
        }
    }

    /// Whether it is the one that the ordinal is to have.
    pub fn is_for(&self, overrides: &Overrides, ordinal: i32) -> bool {
        self.hash == overrides.hash(ordinal)
    }

    /// The template that a Pod was made of. None: what the override was is not known any more.
    pub fn laid_over<'t>(&self, template: &'t Value) -> Option<Cow<'t, Value>> {
        if self.hash.is_empty() {
            return Some(laid_over(template, "", None));
        }
        let change = serde_json::from_str::<Change>(self.content.as_deref()?).ok()?;
        // The two annotations have to fit each other: anybody who may write the Pod can change one of them.
        (change.hash() == self.hash).then(|| laid_over(template, &self.hash, Some(&change)))
    }
}

/// A template with an override, which its annotations name. Those of a template itself are not meant, and are left out.
fn laid_over<'t>(template: &'t Value, hash: &str, change: Option<&Change>) -> Cow<'t, Value> {
    let annotations = template.pointer("/metadata/annotations").and_then(Value::as_object);
    let keys = [labels::ORDINAL_OVERRIDE_HASH, labels::ORDINAL_OVERRIDE];
    if change.is_none() && !annotations.is_some_and(|all| keys.iter().any(|key| all.contains_key(*key))) {
        return Cow::Borrowed(template);
    }
    let mut annotations = annotations.cloned().unwrap_or_default();
    annotations.retain(|key, _| !keys.contains(&key.as_str()));
    let mut template = template.clone();
    if let Some(change) = change {
        change.apply(&mut template);
        annotations
            .extend(keys.into_iter().zip([hash.to_owned(), change.text()]).map(|(k, v)| (k.to_owned(), v.into())));
    }
    if let Some(template) = template.as_object_mut() {
        let metadata = template.entry("metadata").or_insert(Value::Null);
        if !metadata.is_object() {
            *metadata = json!({});
        }
        metadata["annotations"] = annotations.into();
    }
    Cow::Owned(template)
}

impl ContainerChange {
    fn apply(&self, container: &mut Map<String, Value>) {
        if let Some(image) = &self.image {
            container.insert("image".into(), image.as_str().into());
        }
        let Some(change) = &self.resources else { return };
        let resources = container.entry("resources").or_insert(Value::Null);
        if !resources.is_object() {
            *resources = Value::Object(Map::new());
        }
        if let Some(resources) = resources.as_object_mut() {
            lay(resources, "limits", &change.limits);
            lay(resources, "requests", &change.requests);
        }
    }
}

fn lay(parent: &mut Map<String, Value>, key: &str, members: &BTreeMap<String, String>) {
    if members.is_empty() {
        return;
    }
    let object = parent.entry(key).or_insert(Value::Null);
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Some(object) = object.as_object_mut() {
        object.extend(members.iter().map(|(key, value)| (key.clone(), value.as_str().into())));
    }
}

fn check(i: usize, change: &Change, problems: &mut Vec<Problem>) {
    if *change == Change::default() {
        problems.push(Problem::new(format!("[{i}]: "), "it changes nothing; want containers or nodeSelector"));
    }
    for (name, container) in &change.containers {
        let at = format!("[{i}].containers.{name}");
        if container.image.as_deref().is_some_and(|image| image.trim().is_empty()) {
            problems.push(Problem::new(format!("{at}.image: "), "it is empty; want an image"));
        }
        if *container == ContainerChange::default() {
            problems.push(Problem::new(format!("{at}: "), "it changes nothing; want image or resources"));
        }
        let resources = container.resources.iter();
        let amounts = resources.flat_map(|resources| {
            let of = |key: &'static str, amounts: &'_ BTreeMap<String, String>| {
                amounts.iter().map(|(resource, amount)| (key, resource.clone(), amount.clone())).collect::<Vec<_>>()
            };
            [of("limits", &resources.limits), of("requests", &resources.requests)].concat()
        });
        for (key, resource, amount) in amounts {
            if quantity::parse(&amount).is_none_or(|amount| amount < 0) {
                problems.push(Problem::new(
                    format!("{at}.resources.{key}.{resource}: "),
                    format!("{amount:?} is not allowed; want an amount such as \"500m\" or \"2Gi\""),
                ));
            }
        }
    }
    for (key, value) in &change.node_selector {
        if !is_qualified_name(key) || !is_label_value(value) {
            problems.push(Problem::new(
                format!("[{i}].nodeSelector: "),
                format!("{key:?}: {value:?} is no label of a node"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({"metadata": {"labels": {"app": "db"}}, "spec": {
            "initContainers": [{"name": "init", "image": "init:1"}],
            "containers": [
                {"name": "main", "image": "db:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
                {"name": "agent", "image": "agent:1", "resources": {}}],
            "nodeSelector": {"zone": "a"}}})
    }
    fn parsed(value: &Value) -> Overrides {
        Overrides::parse(&value.to_string()).unwrap()
    }
    fn problems(value: &Value) -> Vec<String> {
        Overrides::parse(&value.to_string()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_override_is_laid_over_the_template() {
        let overrides = parsed(&json!([{"ordinals": "1-2", "nodeSelector": {"disk": "fast"}, "containers": {
            "main": {"image": "db:2", "resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "2"}}},
            "init": {"image": "init:2"}}}, {"ordinals": 7, "containers": {"agent": {"resources": {"limits": {"cpu": "1"}}}}}]));
        assert_eq!((overrides.of(0), overrides.of(3), overrides.of(8)), (None, None, None));
        let mut changed = template();
        overrides.of(2).unwrap().apply(&mut changed);
        assert_eq!(
            changed,
            json!({"metadata": {"labels": {"app": "db"}}, "spec": {
                "initContainers": [{"name": "init", "image": "init:2"}],
                "containers": [
                    {"name": "main", "image": "db:2", "resources": {"limits": {"cpu": "1", "memory": "8Gi"}, "requests": {"cpu": "2"}}},
                    {"name": "agent", "image": "agent:1", "resources": {}}],
                "nodeSelector": {"zone": "a", "disk": "fast"}}})
        );
        let mut other = template();
        overrides.of(7).unwrap().apply(&mut other);
        assert_eq!(other["spec"]["containers"][1]["resources"], json!({"limits": {"cpu": "1"}}));
        assert!(overrides.missing(&template()).is_empty());
    }

    #[test]
    fn ordinals_are_read_as_those_that_are_reserved() {
        let entry = |ordinals: &str| json!({"ordinals": ordinals, "nodeSelector": {"a": "b"}});
        let overrides = parsed(&json!([entry("5-4294967295"), entry("2147483648-9999999999"), entry("0-3")]));
        let has = [0, 3, 4, 5, i32::MAX].map(|ordinal| overrides.of(ordinal).is_some());
        assert_eq!(has, [true, true, false, true, true]);
        let behind = parsed(&json!([entry("2147483648-2147483648"), entry("2147483648-4294967295")]));
        assert_eq!((behind.iter().count(), behind.of(i32::MAX)), (2, None), "they have no ordinal in common, and none");
        let both = json!([entry("0-4294967295"), entry("7-8")]);
        assert_eq!(problems(&both), ["[1].ordinals: \"7-8\" has ordinals of [0]; want each ordinal in one entry"]);
    }

    #[test]
    fn a_template_of_another_shape_stays() {
        let overrides =
            parsed(&json!([{"ordinals": 0, "nodeSelector": {"a": "b"}, "containers": {"main": {"image": "i"}}}]));
        for odd in [json!(null), json!({}), json!({"spec": 1}), json!({"spec": {"containers": {}}})] {
            let mut changed = odd.clone();
            overrides.of(0).unwrap().apply(&mut changed);
            assert_eq!(changed.pointer("/spec/containers"), odd.pointer("/spec/containers"));
        }
    }

    #[test]
    fn a_pod_shows_the_override_that_it_was_made_with() {
        let overrides = parsed(&json!([{"ordinals": 1, "containers": {"main": {"image": "db:2"}}}]));
        let (template, of) = (template(), |pod: &Value| {
            let text = |key: &str| pod["metadata"]["annotations"][key].as_str().map(str::to_owned);
            let content = text(labels::ORDINAL_OVERRIDE).map(Arc::from);
            Applied::of(text(labels::ORDINAL_OVERRIDE_HASH).as_deref(), content)
        });
        let (plain, changed) = (overrides.laid_over(&template, 0), overrides.laid_over(&template, 1));
        assert!(matches!(plain, Cow::Borrowed(_)), "nothing is copied");
        assert_eq!(changed["spec"]["containers"][0]["image"], "db:2");
        assert!(of(&plain).is_for(&overrides, 0) && !of(&plain).is_for(&overrides, 1));
        assert!(of(&changed).is_for(&overrides, 1) && !of(&changed).is_for(&overrides, 0));
        assert_eq!(of(&changed).laid_over(&template).as_deref(), Some(&*changed));

        let mut edited = changed.clone().into_owned();
        edited["metadata"]["annotations"][labels::ORDINAL_OVERRIDE] = "{}".into();
        assert!(of(&edited).is_for(&overrides, 1), "the hash decides");
        assert_eq!(of(&edited).laid_over(&template), None, "from what it comes nobody knows");
        assert_eq!(of(&changed).after(&json!({"labels": {"a": "b"}})), of(&changed));
        let gone = json!({"annotations": {labels::ORDINAL_OVERRIDE_HASH: null, labels::ORDINAL_OVERRIDE: null}});
        assert_eq!(of(&changed).after(&gone), Applied::default());
        assert_eq!(Applied::default().after(&changed["metadata"]), of(&changed));
    }

    #[test]
    fn annotations_of_a_template_are_no_override() {
        let mut template = template();
        template["metadata"]["annotations"] = json!({labels::ORDINAL_OVERRIDE_HASH: "x", "note": "y"});
        let pod = Overrides::default().laid_over(&template, 0);
        assert_eq!(pod["metadata"]["annotations"], json!({"note": "y"}));
        assert_eq!(Overrides::default().laid_over(&json!(null), 0).as_ref(), &json!(null));
    }

    #[test]
    fn the_hash_is_that_of_the_change_and_not_of_the_range() {
        let change = json!({"containers": {"main": {"image": "db:2"}}});
        let entry = |ordinals: Value, change: &Value| {
            let mut entry = change.clone();
            entry["ordinals"] = ordinals;
            entry
        };
        let narrow = parsed(&json!([entry(json!(1), &change)]));
        let wide = parsed(&json!([entry(json!("0-9"), &change)]));
        assert_eq!(narrow.hash(1), wide.hash(1));
        assert_eq!((narrow.hash(0), narrow.hash(1).is_empty()), ("", false));
        let other = parsed(&json!([entry(json!(1), &json!({"containers": {"main": {"image": "db:3"}}}))]));
        assert_ne!(narrow.hash(1), other.hash(1));
        assert_eq!(parsed(&json!([])).hash(1), "");
        assert!(Overrides::parse(" ").unwrap().is_empty());
    }

    #[test]
    fn an_entry_is_as_long_as_a_pod_may_carry_and_no_longer() {
        let with = |length: usize| {
            let change = |image: usize| json!({"containers": {"main": {"image": "i".repeat(image)}}});
            let mut entry = change(length - change(0).to_string().len());
            entry["ordinals"] = 1.into();
            json!([{"ordinals": 0, "nodeSelector": {"a": "b"}}, entry])
        };
        let longest = OverrideNotes::LONGEST_CONTENT;
        assert_eq!(parsed(&with(longest)).of(1).unwrap().text().len(), longest);
        assert_eq!(problems(&with(longest + 1)), ["[1]: it has 8193 bytes; want up to 8192"]);
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let entry = |ordinals: Value| json!([{"ordinals": ordinals, "nodeSelector": {"a": "b"}}]);
        for odd in [json!("5"), json!("3-1"), json!("a-b"), json!(-1), json!(1.5), json!({}), json!("1-2-3")] {
            let problems = problems(&entry(odd.clone()));
            assert!(
                problems[0].starts_with("[0].ordinals: ") && problems[0].contains(&odd.to_string()),
                "{problems:?}"
            );
        }
        assert!(problems(&json!([{"nodeSelector": {"a": "b"}}]))[0].contains("it is missing"));
        assert!(problems(&json!([{"ordinals": 1}]))[0].contains("it changes nothing"));
        assert!(
            problems(&json!([{"ordinals": 1, "containers": {"main": {}}}]))[0]
                .contains("containers.main: it changes nothing")
        );
        assert!(problems(&json!([{"ordinals": 1, "containers": {"main": {"image": " "}}}]))[0].contains("it is empty"));
        assert!(
            problems(&json!([{"ordinals": 1, "containers": {"main": {"imag": "x"}}}]))[0]
                .contains("unknown field `imag`")
        );
        assert!(problems(&json!([{"ordinals": 1, "replicas": 3}]))[0].contains("unknown field `replicas`"));
        assert!(problems(&json!([{"ordinals": 1, "nodeSelector": {"a b": "c"}}]))[0].contains("no label of a node"));
        let amounts = json!([{"ordinals": 1, "containers": {"main": {"resources": {"limits": {"cpu": "x"}, "requests": {"cpu": "-1"}}}}}]);
        assert_eq!(problems(&amounts).len(), 2, "all of them at once");
        let twice =
            json!([{"ordinals": "1-3", "nodeSelector": {"a": "b"}}, {"ordinals": 3, "nodeSelector": {"a": "b"}}]);
        assert_eq!(problems(&twice), ["[1].ordinals: 3 has ordinals of [0]; want each ordinal in one entry"]);
        assert!(problems(&json!({"ordinals": 1}))[0].contains("no JSON list"));
        let many: Vec<Value> = (0..=MOST).map(|i| json!({"ordinals": i, "nodeSelector": {"a": "b"}})).collect();
        assert!(problems(&many.into())[0].contains("want up to 32"));
        assert!(Overrides::parse("[").is_err());
        let unknown = parsed(&json!([{"ordinals": 1, "containers": {"other": {"image": "x"}}}]));
        assert_eq!(
            unknown.missing(&template())[0].to_string(),
            "[0].containers: the template has no container \"other\"; want one of main, agent, init"
        );
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in ".{0,200}") {
            let _ = Overrides::parse(&text);
        }
    }
}
