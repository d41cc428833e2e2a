//! Strategic merge patches on Pods and Pod templates, as the API server applies them: objects are merged, lists of named
//! things by their key, other lists are replaced, null removes.
//!
//! Pure, over raw JSON: fields that this release does not know are kept.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::invalid::Invalid;

/// The key by which the entries of a list are merged, for every such list of a Pod.
const KEYED: [(&str, &str); 16] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("imagePullSecrets", "name"),
    ("schedulingGates", "name"),
    ("resourceClaims", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("ownerReferences", "uid"),
    ("conditions", "type"),
    ("podIPs", "ip"),
];
/// Lists of texts that are merged.
const TEXTS: [&str; 1] = ["finalizers"];

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_TEXTS: &str = "$deleteFromPrimitiveList/";

type Object = Map<String, Value>;

/// A Pod template, or a Pod, with a patch.
///
/// # Errors
/// The patch does not fit: it is no object, an entry lacks its key, a directive is unknown. The message names the field.
pub fn apply(to: &Value, patch: &Value) -> Result<Value, Invalid> {
    let empty = Object::new();
    let to = to.as_object().unwrap_or(&empty);
    let Value::Object(patch) = patch else {
        return Err(Invalid("a patch has to be an object".into()));
    };
    Ok(merge(to, patch, "")?.unwrap_or_default().into())
}

fn at(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// None: the patch deletes it.
fn merge(to: &Object, patch: &Object, path: &str) -> Result<Option<Object>, Invalid> {
    let plain = |patch: &Object| cleaned(patch, path);
    match directive(patch, path)? {
        Some("delete") => return Ok(None),
        Some("replace") => return plain(patch).map(Some),
        _ => {}
    }
    let mut merged = to.clone();
    if let Some(retained) = patch.get(RETAIN) {
        let retained = retained.as_array().ok_or_else(|| Invalid(format!("{}: want a list", at(path, RETAIN))))?;
        // Both may be long: a set, and no search in a list for each.
        let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
        merged.retain(|key, _| retained.contains(key.as_str()));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_TEXTS) {
            if let Some(Value::Array(texts)) = merged.get_mut(list) {
                let gone: HashSet<String> = value.as_array().into_iter().flatten().map(Value::to_string).collect();
                texts.retain(|text| !gone.contains(&text.to_string()));
            }
            continue;
        }
        if let Some(list) = key.strip_prefix(ORDER) {
            // With the list itself in the patch, its entries are merged in this order.
            if !patch.contains_key(list)
                && let Some(Value::Array(entries)) = merged.get(list)
            {
                let ordered = List::of(list, &at(path, list)).ordered(entries, &[], value)?;
                merged.insert(list.to_owned(), ordered.into());
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        let path = at(path, key);
        let value = match (merged.get(key), value) {
            (_, Value::Null) => None,
            (Some(Value::Object(to)), Value::Object(patch)) => merge(to, patch, &path)?.map(Value::Object),
            (_, Value::Object(patch)) => merge(&Object::new(), patch, &path)?.map(Value::Object),
            (Some(Value::Array(to)), Value::Array(entries)) => {
                Some(List::of(key, &path).merged(to, entries, patch.get(&format!("{ORDER}{key}")))?.into())
            }
            (_, Value::Array(entries)) => {
                Some(List::of(key, &path).merged(&[], entries, patch.get(&format!("{ORDER}{key}")))?.into())
            }
            (_, other) => Some(other.clone()),
        };
        match value {
            Some(value) => merged.insert(key.clone(), value),
            None => merged.remove(key),
        };
    }
    Ok(Some(merged))
}

fn directive<'v>(patch: &'v Object, path: &str) -> Result<Option<&'v str>, Invalid> {
    match patch.get(DIRECTIVE) {
        None => Ok(None),
        Some(value) => match value.as_str() {
            Some(word @ ("delete" | "replace" | "merge")) => Ok(Some(word)),
            _ => {
                Err(Invalid(format!("{}: {value} is not allowed; want replace, merge or delete", at(path, DIRECTIVE))))
            }
        },
    }
}

/// A patch as a value: without directives and nulls.
fn cleaned(patch: &Object, path: &str) -> Result<Object, Invalid> {
    let mut plain = patch.clone();
    plain.remove(DIRECTIVE);
    Ok(merge(&Object::new(), &plain, path)?.unwrap_or_default())
}

/// How one list is merged.
struct List<'a> {
    path: &'a str,
    /// The key of its entries.
    key: Option<&'static str>,
    /// Whether its entries are texts that are merged.
    is_of_texts: bool,
}

impl<'a> List<'a> {
    fn of(field: &str, path: &'a str) -> Self {
        let key = KEYED.iter().find(|(list, _)| *list == field).map(|(_, key)| *key);
        Self { path, key, is_of_texts: TEXTS.contains(&field) }
    }

    /// What distinguishes an entry.
    fn name(&self, entry: &Value) -> Result<String, Invalid> {
        let Some(key) = self.key else { return Ok(entry.to_string()) };
        let name = entry.get(key).filter(|name| !name.is_null()).map(Value::to_string);
        name.ok_or_else(|| Invalid(format!("{}: an entry has no {key}, by which this list is merged", self.path)))
    }

    fn merged(&self, to: &[Value], patch: &[Value], order: Option<&Value>) -> Result<Vec<Value>, Invalid> {
        if self.key.is_none() && !self.is_of_texts {
            let one = |entry: &Value| match entry {
                Value::Object(entry) => cleaned(entry, self.path).map(Value::Object),
                other => Ok(other.clone()),
            };
            return patch.iter().map(one).collect();
        }
        let (mut wanted, mut deleted, mut replaces) = (Vec::new(), HashSet::new(), false);
        for entry in patch {
            match entry.as_object().map(|entry| directive(entry, self.path)).transpose()?.flatten() {
                Some("delete") => {
                    deleted.insert(self.name(entry)?);
                }
                // An entry of its own that says that the list is replaced.
                Some("replace") if entry.as_object().is_some_and(|entry| entry.len() == 1) => replaces = true,
                _ => wanted.push(entry),
            }
        }
        let to = if replaces { &[] } else { to };
        let mut there = HashMap::new();
        for entry in to {
            there.insert(self.name(entry)?, entry);
        }
        let mut patched: Vec<Value> = Vec::new();
        let mut names = HashSet::new();
        for entry in wanted {
            let name = self.name(entry)?;
            let before = there.get(&name).and_then(|entry| entry.as_object());
            let entry = match entry {
                Value::Object(entry) => match merge(before.unwrap_or(&Object::new()), entry, self.path)? {
                    Some(entry) => Value::Object(entry),
                    None => continue,
                },
                other => other.clone(),
            };
            if names.insert(name) {
                patched.push(entry);
            }
        }
        let mut left = Vec::new();
        for entry in to {
            let name = self.name(entry)?;
            if !names.contains(&name) && !deleted.contains(&name) {
                left.push(entry.clone());
            }
        }
        match order {
            Some(order) => {
                let all: Vec<Value> = patched.into_iter().chain(left).collect();
                self.ordered(&all, to, order)
            }
            None => self.interleaved(patched, left, to),
        }
    }

    /// In the order that a patch gives; what it does not name keeps its place.
    fn ordered(&self, all: &[Value], to: &[Value], order: &Value) -> Result<Vec<Value>, Invalid> {
        let order = order.as_array().ok_or_else(|| Invalid(format!("{}: want the order as a list", self.path)))?;
        let mut places = HashMap::new();
        for (place, entry) in order.iter().enumerate() {
            places.insert(self.name(entry)?, place);
        }
        let (mut named, mut others) = (Vec::new(), Vec::new());
        for entry in all {
            match places.get(&self.name(entry)?) {
                Some(place) => named.push((*place, entry.clone())),
                None => others.push(entry.clone()),
            }
        }
        named.sort_by_key(|(place, _)| *place);
        let named = named.into_iter().map(|(_, entry)| entry).collect();
        self.interleaved(named, others, if to.is_empty() { all } else { to })
    }

    /// Entries of the patch in its order, and the others: before an entry that was behind them.
    fn interleaved(&self, patched: Vec<Value>, left: Vec<Value>, before: &[Value]) -> Result<Vec<Value>, Invalid> {
        let mut places = HashMap::new();
        for (place, entry) in before.iter().enumerate() {
            places.insert(self.name(entry)?, place);
        }
        let mut all = Vec::with_capacity(patched.len() + left.len());
        let mut left = left.into_iter().peekable();
        for entry in patched {
            if let Some(place) = places.get(&self.name(&entry)?) {
                while let Some(other) = left.peek() {
                    if places.get(&self.name(other)?).is_none_or(|of_other| of_other >= place) {
                        break;
                    }
                    all.extend(left.next());
                }
            }
            all.push(entry);
        }
        all.extend(left);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"metadata": {"labels": {"app": "web"}, "finalizers": ["a", "b"]}, "spec": {
            "priorityClassName": "low", "tolerations": [{"key": "a"}], "newer": {"x": 1},
            "containers": [
                {"name": "main", "image": "i:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["x"]},
                {"name": "log", "image": "l:1"}],
            "volumes": [{"name": "v", "emptyDir": {}}]}})
    }
    fn patched(patch: Value) -> Value {
        apply(&pod(), &patch).unwrap()
    }

    #[test]
    fn objects_are_merged_null_removes_and_what_is_not_named_stays() {
        let merged =
            patched(json!({"metadata": {"labels": {"zone": "a", "app": null}}, "spec": {"priorityClassName": "high"}}));
        assert_eq!(merged["metadata"]["labels"], json!({"zone": "a"}));
        assert_eq!(
            (&merged["spec"]["priorityClassName"], &merged["spec"]["newer"]),
            (&json!("high"), &json!({"x": 1}))
        );
        assert_eq!(patched(json!({})), pod());
        let new = patched(json!({"spec": {"affinity": {"nodeAffinity": {"a": 1, "b": null}}}}));
        assert_eq!(new["spec"]["affinity"], json!({"nodeAffinity": {"a": 1}}), "a null is stored nowhere");
    }

    #[test]
    fn named_entries_are_merged_and_other_lists_replaced() {
        let merged = patched(json!({"spec": {"tolerations": [{"key": "b"}], "containers": [
            {"name": "main", "resources": {"limits": {"cpu": "1"}}, "args": ["y"], "env": [{"name": "B", "value": "3"}, {"name": "C"}]}]}}));
        assert_eq!(merged["spec"]["tolerations"], json!([{"key": "b"}]));
        let main = &merged["spec"]["containers"][0];
        assert_eq!(
            (&main["image"], &main["args"], &main["resources"]["limits"]["cpu"]),
            (&json!("i:1"), &json!(["y"]), &json!("1"))
        );
        assert_eq!(main["env"], json!([{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C"}]));
        assert_eq!(merged["spec"]["containers"][1]["name"], "log");
    }

    #[test]
    fn a_new_entry_comes_before_what_the_patch_does_not_name() {
        let merged =
            patched(json!({"spec": {"containers": [{"name": "side", "image": "s"}, {"name": "log", "image": "l:2"}]}}));
        let names: Vec<&Value> = merged["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(names, ["side", "main", "log"]);
        assert_eq!(merged["spec"]["containers"][2]["image"], "l:2");
    }

    #[test]
    fn directives_delete_replace_and_order() {
        let merged = patched(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}, "spec": {
            "containers": [{"name": "log", "$patch": "delete"}],
            "volumes": [{"$patch": "replace"}, {"name": "w", "emptyDir": {}}],
            "newer": {"$patch": "replace", "y": 2}}}));
        assert_eq!(merged["spec"]["containers"].as_array().unwrap().len(), 1);
        assert_eq!(merged["spec"]["volumes"], json!([{"name": "w", "emptyDir": {}}]));
        assert_eq!((&merged["spec"]["newer"], &merged["metadata"]["finalizers"]), (&json!({"y": 2}), &json!(["b"])));
        let gone = patched(
            json!({"spec": {"newer": {"$patch": "delete"}, "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
        );
        assert!(gone["spec"].get("newer").is_none());
        assert_eq!(gone["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/x"}}]));
        let ordered = patched(json!({"spec": {"$setElementOrder/containers": [{"name": "log"}, {"name": "main"}]}}));
        assert_eq!(ordered["spec"]["containers"][0]["name"], "log");
        let texts = patched(json!({"metadata": {"finalizers": ["c", "a"]}}));
        assert_eq!(texts["metadata"]["finalizers"], json!(["c", "a", "b"]));
    }

    /// Both lists may have as many entries as an object holds: one is never searched for each entry of the other.
    #[test]
    fn long_lists_of_what_goes_and_what_stays_are_applied() {
        let many = |from: usize, to: usize| (from..to).map(|i| json!(format!("a{i}"))).collect::<Vec<_>>();
        let map: Object = (0..30_000).map(|i| (format!("a{i}"), json!(1))).collect();
        let template = json!({"spec": {"args": many(0, 30_000), "map": map}});
        let mut retained = many(29_999, 60_000);
        retained.push(json!(5));
        let patch =
            json!({"spec": {"$deleteFromPrimitiveList/args": many(1, 40_000), "map": {"$retainKeys": retained}}});
        assert_eq!(apply(&template, &patch).unwrap(), json!({"spec": {"args": ["a0"], "map": {"a29999": 1}}}));
        // Numbers and texts are told apart.
        let patch = json!({"spec": {"$deleteFromPrimitiveList/args": ["1", 2, null]}});
        let template = json!({"spec": {"args": [1, "1", 2, "2", null]}});
        assert_eq!(apply(&template, &patch).unwrap(), json!({"spec": {"args": [1, "2"]}}));
    }

    #[test]
    fn a_patch_that_does_not_fit_is_refused_by_field() {
        for (patch, says) in [
            (json!([]), "object"),
            (json!({"spec": {"containers": [{"image": "x"}]}}), "spec.containers: an entry has no name"),
            (json!({"spec": {"$patch": "drop"}}), "spec.$patch: \"drop\" is not allowed"),
            (json!({"spec": {"volumes": [{"name": "v", "$retainKeys": 1}]}}), "spec.volumes.$retainKeys: want a list"),
        ] {
            let error = apply(&pod(), &patch).unwrap_err().to_string();
            assert!(error.contains(says), "{patch}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_patch_twice_is_the_patch_once(image in "[a-z]{1,4}", env in proptest::collection::btree_map("[A-D]", "[0-9]", 0..4), label in "[a-z]{1,3}") {
            let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let patch = json!({"metadata": {"labels": {"x": label}}, "spec": {"containers": [{"name": "main", "image": image, "env": env}]}});
            let once = patched(patch.clone());
            prop_assert_eq!(apply(&once, &patch).unwrap(), once);
        }
    }
}
