//! Played daemons for images: NodeImages without a Node, and answers to what the manager writes into them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::kit::{Look, Test};

/// Label on NodeImages that are played, with the name of their set.
pub const PLAYED: &str = "e2e/played-images";
/// Writes at a time.
const AT_ONCE: usize = 16;

/// Makes NodeImages `NAME-0000` and so on, for nodes that do not exist; returns NAME, the value of their label.
pub async fn played(t: &Test, count: usize) -> Result<String> {
    let set = t.namespace.clone();
    let make = |i: usize| {
        let labels = json!({ PLAYED: set, "apps.kruise.io/fake-nodeimage": "true" });
        let object = json!({ "kind": "NodeImage", "metadata": { "name": format!("{set}-{i:04}"), "labels": labels }, "spec": {} });
        async move { t.create(object).await.map(drop) }
    };
    stream::iter(0..count).map(make).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    Ok(set)
}

#[derive(Default)]
struct Play {
    /// What the spec of each node has, by image, tag and version, and whether it has ended.
    nodes: BTreeMap<String, HashMap<(String, String, i64), bool>>,
    /// Images that are answered, and the share that fails.
    answers: HashMap<String, f64>,
    /// All images are answered, and none fails.
    all: bool,
    most: usize,
}

impl Play {
    fn open(&self) -> usize {
        self.nodes.values().filter(|entries| entries.values().any(|ended| !ended)).count()
    }
}

/// Daemons of a set of NodeImages.
pub struct Daemons {
    set: String,
    play: Arc<Mutex<Play>>,
    changed: Arc<tokio::sync::Notify>,
    task: JoinHandle<()>,
}

impl Daemons {
    /// Starts them. `answered` other than `0..0`: every image is pulled at once.
    pub fn start(t: &Test, set: &str, answered: Range<usize>) -> Self {
        let play = Arc::new(Mutex::new(Play { all: !answered.is_empty(), ..Play::default() }));
        let changed = Arc::new(tokio::sync::Notify::new());
        let (of_task, wake, t, of_set) = (play.clone(), changed.clone(), t.clone(), set.to_owned());
        let task = tokio::spawn(async move {
            let api = t.api("NodeImage");
            let events =
                watcher::watcher(api.clone(), watcher::Config::default().labels(&format!("{PLAYED}={of_set}")));
            pin_mut!(events);
            let mut known: BTreeMap<String, Value> = BTreeMap::new();
            loop {
                let next = tokio::select! {
                    event = events.next() => event,
                    () = wake.notified() => None,
                };
                let mut dirty: Vec<String> = Vec::new();
                match next {
                    Some(Ok(Event::Apply(o) | Event::InitApply(o))) => {
                        let name = o.metadata.name.clone().unwrap_or_default();
                        known.insert(name.clone(), serde_json::to_value(o).unwrap_or_default());
                        dirty.push(name);
                    }
                    Some(Ok(Event::Delete(o))) => drop(known.remove(&o.metadata.name.unwrap_or_default())),
                    Some(_) => {}
                    None => dirty.extend(known.keys().cloned()),
                }
                for name in dirty {
                    let status = {
                        let mut play = of_task.lock().unwrap_or_else(PoisonError::into_inner);
                        look(&mut play, &name, &known[&name])
                    };
                    if let Some(status) = status {
                        let patch = Patch::Merge(json!({ "status": status }));
                        // A conflict or a deletion comes back as an event.
                        let _ = api.patch_status(&name, &PatchParams::default(), &patch).await;
                    }
                }
            }
        });
        Self { set: set.to_owned(), play, changed, task }
    }

    /// From now on this image is pulled; this share of the nodes fails.
    pub fn answer(&self, image: &str, failing: f64) {
        self.play.lock().unwrap_or_else(PoisonError::into_inner).answers.insert(image.to_owned(), failing);
        self.changed.notify_one();
    }

    /// The most nodes that were at it at a time.
    pub fn most(&self) -> usize {
        self.play.lock().unwrap_or_else(PoisonError::into_inner).most
    }

    /// Removes the NodeImages.
    pub async fn remove(self, t: &Test) -> Result<()> {
        self.task.abort();
        let labels = ListParams::default().labels(&format!("{PLAYED}={}", self.set));
        // Without the label the manager would do it too.
        t.api("NodeImage").delete_collection(&DeleteParams::default(), &labels).await?;
        Ok(())
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes an object over; the status that its daemon would write now, if it is another one.
fn look(play: &mut Play, name: &str, object: &Value) -> Option<Value> {
    let ended = |image: &str, tag: &str, version: i64| {
        let statuses = object.pointer("/status/imageStatuses").and_then(|all| all.get(image)?.get("tags")?.as_array());
        let mut statuses = statuses.into_iter().flatten();
        statuses.any(|s| s.text("/tag") == tag && s.int("/version") == version && s.has("/completionTime"))
    };
    let no_images = serde_json::Map::new();
    let images = object.pointer("/spec/images").and_then(Value::as_object).unwrap_or(&no_images);
    let entries = images.iter().flat_map(|(image, spec)| spec.array("/tags").iter().map(move |tag| (image, tag)));
    let entries: Vec<(String, String, i64)> =
        entries.map(|(image, tag)| (image.clone(), tag.text("/tag").to_owned(), tag.int("/version"))).collect();
    let states = entries.iter().map(|entry| (entry.clone(), ended(&entry.0, &entry.1, entry.2))).collect();
    play.nodes.insert(name.to_owned(), states);
    play.most = play.most.max(play.open());

    let number: usize = name.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let mut is_new = false;
    let mut statuses = serde_json::Map::new();
    let (mut succeeded, mut failed, mut pulling) = (0, 0, 0);
    for (image, tag, version) in &entries {
        let failing = if play.all { Some(0.0) } else { play.answers.get(image).copied() };
        let old = object.pointer("/status/imageStatuses").and_then(|all| all.get(image)?.get("tags")?.as_array());
        let old = old.into_iter().flatten().find(|s| s.text("/tag") == tag && s.int("/version") == *version);
        let status = match (old, failing) {
            (Some(old), _) if old.has("/completionTime") => old.clone(),
            (_, Some(share)) => {
                is_new = true;
                let fails = share > 0.0 && number.is_multiple_of((1.0 / share) as usize);
                let phase = if fails { "Failed" } else { "Succeeded" };
                let mut status =
                    json!({ "tag": tag, "version": version, "phase": phase, "startTime": now, "completionTime": now });
                if fails {
                    status["message"] = "played failure".into();
                }
                status
            }
            (Some(old), None) => old.clone(),
            (None, None) => {
                is_new = true;
                json!({ "tag": tag, "version": version, "phase": "Pulling", "startTime": now })
            }
        };
        match status.text("/phase") {
            "Succeeded" => succeeded += 1,
            "Failed" => failed += 1,
            _ => pulling += 1,
        }
        let tags = statuses.entry(image.clone()).or_insert_with(|| json!({ "tags": [] }));
        tags["tags"].as_array_mut()?.push(status);
    }
    if let Some(gone) = object.pointer("/status/imageStatuses").and_then(Value::as_object) {
        for image in gone.keys().filter(|image| !images.contains_key(*image)) {
            is_new = true;
            statuses.insert(image.clone(), Value::Null);
        }
    }
    is_new.then(|| {
        json!({ "desired": entries.len(), "succeeded": succeeded, "failed": failed, "pulling": pulling, "waiting": 0, "imageStatuses": statuses })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_played_daemon_answers_once() {
        let mut play = Play { all: true, ..Play::default() };
        let mut object = json!({ "spec": { "images": { "a": { "tags": [{ "tag": "v1", "version": 2 }] } } } });
        let status = look(&mut play, "n-0003", &object).unwrap();
        assert_eq!((status.int("/succeeded"), status.text("/imageStatuses/a/tags/0/phase")), (1, "Succeeded"));
        assert_eq!((play.open(), play.most), (1, 1));
        object["status"] = status;
        assert_eq!(look(&mut play, "n-0003", &object), None);
        assert_eq!(play.open(), 0);
        object["spec"] = json!({});
        assert_eq!(look(&mut play, "n-0003", &object).unwrap()["imageStatuses"], json!({ "a": null }));
    }

    #[test]
    fn it_waits_until_it_may_answer_and_fails_a_share() {
        let mut play = Play::default();
        let object = json!({ "spec": { "images": { "a": { "tags": [{ "tag": "v1" }] } } } });
        assert_eq!(look(&mut play, "n-0000", &object).unwrap().int("/pulling"), 1);
        play.answers.insert("a".into(), 0.2);
        assert_eq!(look(&mut play, "n-0000", &object).unwrap().int("/failed"), 1);
        assert_eq!(look(&mut play, "n-0001", &object).unwrap().int("/succeeded"), 1);
    }
}
