//! An API server in memory for random histories: watches that are late, writes that are refused, answers that are lost.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use axum::http::{Method, request::Parts};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    k8s::{pointer::patched, selector::Selector, time::rfc3339},
    liveness::{self, Acts, Driver, Limits, Model, Random},
    runtime::{
        clock,
        queue::Queue,
        random,
        watches::{Change, ObjectKey, Store, StoredObject},
    },
};

/// Writes that do not get through once a manager has ended.
const AFTER_THE_END: usize = 9;

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// It is not carried out.
    Error(u16),
    /// It is carried out, and the answer is lost.
    Lost,
}

/// The objects, by path.
pub(super) struct Server {
    pub(super) objects: BTreeMap<String, Arc<Value>>,
    version: u64,
    /// Paths whose changes watches have not delivered yet.
    pub(super) news: VecDeque<String>,
    /// What becomes of the next writes.
    pub(super) faults: VecDeque<Fault>,
    /// The manager ends after its next write.
    pub(super) ends: bool,
    pub(super) acts: Acts,
    /// Paths that nobody may read.
    pub(super) unreadable: Vec<&'static str>,
    /// How paths begin of which nobody gets an answer.
    pub(super) broken: Vec<&'static str>,
    /// Pods on a node end when their kubelet says so.
    pub(super) is_graceful: bool,
    /// Admission of new objects: changes one, or refuses it with a code.
    admit: fn(&mut Server, &mut Value) -> Result<(), u16>,
    /// Admission of changes, but for those of a status: what was there, and what is to be.
    pub(super) admit_change: fn(&mut Server, &Value, &Value) -> Result<(), u16>,
}

fn error(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": format!("code {code}")}))
}

/// The resource, and the name unless it is a list: `/apis/GROUP/VERSION[/namespaces/NAMESPACE]/RESOURCE[/NAME]`.
fn resource_and_name(path: &str) -> (&str, Option<&str>) {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = &parts[if parts[0] == "api" { 2 } else { 3 }..];
    let rest = if rest[0] == "namespaces" && rest.len() > 2 { &rest[2..] } else { rest };
    (rest[0], rest.get(1).copied())
}

/// The selector of a list by labels.
fn label_selector(parts: &Parts) -> Option<Selector> {
    let mut pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let (_, text) = pairs.find(|(key, _)| *key == "labelSelector")?;
    let text = text.replace('+', " ");
    let mut parts = text.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
        plain.push_str(&part[2..]);
    }
    Some(Selector::parse(&plain).unwrap())
}

impl Server {
    pub(super) fn new(admit: fn(&mut Self, &mut Value) -> Result<(), u16>) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 0,
            news: VecDeque::new(),
            faults: VecDeque::new(),
            ends: false,
            acts: Acts::default(),
            unreadable: Vec::new(),
            broken: Vec::new(),
            is_graceful: false,
            admit,
            admit_change: |_, _, _| Ok(()),
        }
    }

    pub(super) fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = rfc3339(clock::now().wall).into();
        }
        self.objects.insert(path.to_owned(), Arc::new(object.clone()));
        self.news.push_back(path.to_owned());
        object
    }

    /// Merges changes over what is there.
    pub(super) fn change(&mut self, path: &str, changes: &Value) {
        let Some(object) = self.objects.get(path) else { return };
        let mut object = Value::clone(object);
        json_patch::merge(&mut object, changes);
        self.put(path, object);
    }

    pub(super) fn remove(&mut self, path: &str) {
        if self.objects.remove(path).is_some() {
            self.news.push_back(path.to_owned());
        }
    }

    /// Those whose paths begin so.
    pub(super) fn of(&self, prefix: &str) -> Vec<(String, Arc<Value>)> {
        let found = self.objects.range(prefix.to_owned()..).take_while(|(path, _)| path.starts_with(prefix));
        found.map(|(path, object)| (path.clone(), object.clone())).collect()
    }

    /// Some of the next writes fail.
    pub(super) fn fail(&mut self, random: &mut Random) -> String {
        let fault = match random.below(5) {
            0 => Fault::Lost,
            1 => Fault::Error(500),
            2 => Fault::Error(403),
            _ => Fault::Error(409),
        };
        let times = 1 + random.below(4);
        self.faults.extend(std::iter::repeat_n(fault, times));
        format!("{times} times {fault:?}")
    }

    /// The manager ends after the next write, of which it does not hear; those after it do not get through.
    pub(super) fn end_soon(&mut self) {
        self.faults.clear();
        self.faults.push_back(Fault::Lost);
        self.faults.extend([Fault::Error(500); AFTER_THE_END]);
        self.ends = true;
    }

    /// From now on every write gets through.
    pub(super) fn let_through(&mut self) {
        self.faults.clear();
        self.ends = false;
    }

    /// Whether it has ended now. What the next one writes gets through.
    pub(super) fn has_ended(&mut self) -> bool {
        if !self.ends || self.faults.len() > AFTER_THE_END {
            return false;
        }
        self.let_through();
        self.acts.note("managers that ended between writes");
        true
    }

    /// Takes the next change that one of the watches brings: its path. `watch` tells which one brings a path.
    pub(super) fn next_news<W: PartialEq>(&mut self, random: &mut Random, watch: impl Fn(&str) -> W) -> String {
        let of = watch(&self.news[random.below(self.news.len())]);
        let index = self.news.iter().position(|path| watch(path) == of).unwrap_or_default();
        self.news.remove(index).unwrap_or_default()
    }

    /// What the API server answers.
    pub(super) fn answer(&mut self, parts: &Parts, body: &[u8]) -> (u16, Value) {
        if parts.method == Method::GET {
            if self.unreadable.contains(&parts.uri.path()) {
                return error(403);
            }
            if self.broken.iter().any(|path| parts.uri.path().starts_with(path)) {
                return error(500);
            }
            let (code, mut answer) = self.read(parts.uri.path());
            if let Some(items) = answer["items"].as_array_mut() {
                let selector = label_selector(parts);
                items.retain(|item| {
                    let labels = serde_json::from_value(item["metadata"]["labels"].clone()).unwrap_or_default();
                    selector.as_ref().is_none_or(|selector| selector.matches(&labels))
                });
            }
            return (code, answer);
        }
        match self.faults.pop_front() {
            // What is made conflicts only with what is there.
            Some(Fault::Error(409)) if parts.method == Method::POST => self.write(parts, body),
            Some(Fault::Error(code)) => {
                self.acts.note("refused writes");
                error(code)
            }
            Some(Fault::Lost) => {
                self.acts.note("lost answers");
                self.write(parts, body);
                error(504)
            }
            None => self.write(parts, body),
        }
    }

    fn read(&self, path: &str) -> (u16, Value) {
        let (resource, name) = resource_and_name(path);
        if name.is_some() {
            return self.objects.get(path).map_or_else(|| error(404), |object| (200, Value::clone(object)));
        }
        // There is one group for every resource that is listed.
        let is_listed = |there: &str| {
            let is_in = !path.contains("/namespaces/") || there.starts_with(&format!("{path}/"));
            is_in && resource_and_name(there).0 == resource
        };
        let listed = self.objects.iter().filter(|(path, _)| is_listed(path));
        let items: Vec<Value> = listed.map(|(_, object)| Value::clone(object)).collect();
        (200, json!({"kind": "List", "metadata": {"resourceVersion": self.version.to_string()}, "items": items}))
    }

    fn write(&mut self, parts: &Parts, body: &[u8]) -> (u16, Value) {
        let is_dry_run = parts.uri.query().is_some_and(|query| query.contains("dryRun=All"));
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        let path = parts.uri.path();
        if parts.method == Method::POST {
            if let (Value::Null, Some(base)) = (&body["metadata"]["name"], body["metadata"]["generateName"].as_str()) {
                body["metadata"]["name"] = format!("{base}{}", self.version).into();
            }
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if self.objects.contains_key(&path) {
                return error(409);
            }
            return match (self.admit)(self, &mut body) {
                Ok(()) => (201, self.put(&path, body)),
                Err(code) => error(code),
            };
        }
        let (path, of_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
        let Some(before) = self.objects.get(path).cloned() else { return error(404) };
        let precondition = if parts.method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] };
        for field in ["uid", "resourceVersion"] {
            if !precondition[field].is_null() && precondition[field] != before["metadata"][field] {
                return error(409);
            }
        }
        let has_kubelet = self.is_graceful && before["spec"]["nodeName"].is_string();
        if parts.method == Method::DELETE {
            if has_kubelet {
                let mut ending = Value::clone(&before);
                if ending["metadata"]["deletionTimestamp"].is_null() {
                    ending["metadata"]["deletionTimestamp"] = rfc3339(clock::now().wall).into();
                }
                return (200, self.put(path, ending));
            }
            self.remove(path);
            return (200, Value::clone(&before));
        }
        let mut after = Value::clone(&before);
        let content = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if content == "application/strategic-merge-patch+json" {
            strategic(&mut after, &body);
            keep(if of_status { "spec" } else { "status" }, &before, &mut after);
        } else if content == "application/json-patch+json" {
            if !patched(&mut after, &body) {
                return error(422);
            }
            keep(if of_status { "spec" } else { "status" }, &before, &mut after);
        } else if of_status {
            json_patch::merge(&mut after, &json!({"status": body["status"]}));
        } else {
            body.as_object_mut().unwrap().remove("status");
            json_patch::merge(&mut after, &body);
        }
        if let (Some(generation), "pods") = (before["metadata"]["generation"].as_i64(), resource_and_name(path).0)
            && after["spec"] != before["spec"]
        {
            after["metadata"]["generation"] = (generation + 1).into();
        }
        if !of_status && let Err(code) = (self.admit_change)(self, &before, &after) {
            return error(code);
        }
        if is_dry_run {
            return (200, after);
        }
        let is_held = after["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty());
        if !after["metadata"]["deletionTimestamp"].is_null() && !is_held && !has_kubelet {
            self.remove(path);
            return (200, after);
        }
        (200, self.put(path, after))
    }
}

/// A field is as it was before, or is not there.
fn keep(field: &str, before: &Value, after: &mut Value) {
    match before.get(field) {
        Some(value) => after[field] = value.clone(),
        None => drop(after.as_object_mut().unwrap().remove(field)),
    }
}

/// A strategic merge, as far as these tests need one.
pub(super) fn strategic(object: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in change {
        let object = object.as_object_mut().unwrap();
        let merge_key = match key.as_str() {
            "conditions" => "type",
            "containers" | "initContainers" => "name",
            "ownerReferences" => "uid",
            "finalizers" => "",
            _ if value.is_null() => {
                object.remove(key);
                continue;
            }
            _ => {
                strategic(object.entry(key).or_insert(Value::Null), value);
                continue;
            }
        };
        let list = object.entry(key).or_insert_with(|| json!([])).as_array_mut().unwrap();
        let entries = value.as_array().unwrap();
        if entries.iter().any(|entry| entry["$patch"] == "replace") {
            *list = entries.iter().filter(|entry| entry["$patch"].is_null()).cloned().collect();
            continue;
        }
        for entry in entries {
            if merge_key.is_empty() {
                // Of plain values each is there once.
                if !list.contains(entry) {
                    list.push(entry.clone());
                }
            } else if entry["$patch"] == "delete" {
                list.retain(|old| old[merge_key] != entry[merge_key]);
            } else if let Some(old) = list.iter_mut().find(|old| old[merge_key] == entry[merge_key]) {
                strategic(old, entry);
            } else {
                list.push(json!({}));
                strategic(list.last_mut().unwrap(), entry);
            }
        }
    }
}

/// What the watch of a kind brings of one object: what there is now.
pub(super) fn bring<K>(store: &Store<K>, key: &ObjectKey, now: Option<&Value>, on_change: impl Fn(&Change<'_, K>))
where
    K: StoredObject + DeserializeOwned,
{
    let uid = now.and_then(|now| now["metadata"]["uid"].as_str());
    match store.get(key) {
        Some(old) if old.object_uid() != uid => store.see_gone(key, old.object_uid(), |change| on_change(&change)),
        // An answer may have said so before.
        None if now.is_none() => store.see_gone(key, None, |change| on_change(&change)),
        _ => {}
    }
    if let Some(now) = now {
        store.see(serde_json::from_value(now.clone()).unwrap(), |change| on_change(&change));
    }
}

/// What comes next in a history.
pub(super) enum Next {
    /// A pass of the controller.
    Pass(ObjectKey),
    /// One of so many effects of what surrounds it.
    Effect(usize),
    /// A watch brings a change.
    News,
    /// There is nothing to do now.
    Nothing,
}

impl Next {
    /// Each of so many effects is as likely as a change that a watch brings, if there are any, and as a pass.
    pub(super) fn choose(random: &mut Random, effects: usize, has_news: bool, queue: &Queue<ObjectKey>) -> Self {
        let others = effects + usize::from(has_news);
        let mut choice = random.below(others + 1);
        if choice == others {
            if let Some(key) = queue.begin() {
                return Self::Pass(key);
            }
            if others == 0 {
                return Self::Nothing;
            }
            choice = random.below(others);
        }
        if choice < effects { Self::Effect(choice) } else { Self::News }
    }
}

/// Plays one history of a controller, from `begin` on, in a runtime whose clock is paused. `beginning` says how it began, for the
/// message of a failure.
pub(super) fn history<D, M>(
    seed: u64,
    limits: &Limits,
    begin: impl FnOnce(&mut Random) -> (D, M),
    beginning: impl FnOnce(&D) -> String,
    acts: impl FnOnce(D, M) -> Acts,
) -> Result<Acts, String>
where
    D: Driver,
    M: Model<Seen = D::Seen>,
{
    in_paused_time(seed, async {
        let (mut driver, mut model) = begin(&mut Random(seed));
        let beginning = beginning(&driver);
        let run = liveness::run(seed, limits, &mut driver, &mut model).await;
        run.map_err(|why| format!("{why}\nbegan as {beginning}"))?;
        Ok(acts(driver, model))
    })
}

/// Runs a history in a runtime whose clock is paused. The seed decides the time at which it begins and every random number, so
/// that it is the same each time.
pub(super) fn in_paused_time<F: Future>(seed: u64, history: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        random::seed(seed);
        // At any hour of a week and in any season; objects have times in whole seconds.
        let weeks_and_hours = i64::try_from(seed % 40).unwrap() * (13 * 7 * 24 + 5) * 3600;
        clock::begin(Timestamp::from_second(1_767_225_600 + weeks_and_hours).unwrap());
        history.await
    })
}
