//! The table of controllers, and a kind that exists for its trial alone.

pub(super) mod played;
pub(super) mod recorded;
mod replicated_pod;

use super::*;

fn names(wanted: &[&str]) -> Result<Vec<&'static str>, UnknownController> {
    let wanted: Vec<String> = wanted.iter().map(|s| (*s).to_owned()).collect();
    Ok(select(&wanted)?.into_iter().map(|c| c.name).collect())
}

#[test]
fn controllers_are_chosen_by_name() {
    let (crr, readiness) = ("containerrecreaterequest-controller", "pod-readiness-controller");
    let clone_set = "cloneset-controller";
    let all: Vec<&str> = CONTROLLERS.iter().map(|c| c.name).collect();
    assert!(all.contains(&crr) && all.contains(&readiness));
    let others: Vec<&str> = all.iter().copied().filter(|name| *name != readiness).collect();
    assert_eq!(names(&["*"]).unwrap(), all);
    assert_eq!(names(&["*", "-pod-readiness"]).unwrap(), others);
    assert_eq!(names(&["-pod-readiness", "*"]).unwrap(), others);
    assert_eq!(names(&["pod-readiness-controller"]).unwrap(), [readiness]);
    assert_eq!(names(&[]).unwrap(), Vec::<&str>::new());
    assert_eq!(names(&["cloneset"]).unwrap(), [clone_set]);
    assert!(names(&["cron"]).unwrap_err().to_string().contains("unknown controller \"cron\"; known are *, cloneset"));
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = CONTROLLERS.iter().map(|c| c.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CONTROLLERS.len());
}

#[tokio::test]
async fn events_name_the_controller_that_they_are_of() {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ObjectReference;
    use serde_json::Value;

    fn start(context: &Context, _: usize, _: Shutdown) -> Started {
        let about = ObjectReference {
            kind: Some("CloneSet".into()),
            namespace: Some("ns".into()),
            name: Some("web".into()),
            ..ObjectReference::default()
        };
        context.events.normal(&about, "Made", "it is made");
        Started::new(std::future::ready(()))
    }

    let sent: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = sent.clone();
    let context = in_memory::context(move |_, body| {
        let event: Value = serde_json::from_slice(body).unwrap();
        lock(&seen).push(event.clone());
        (201, event)
    });
    let (events, send) = Recorder::new(context.client.clone(), "kruise-manager", "", Default::default());
    tokio::spawn(send);
    let context = Context { events, ..context };
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    // Those of which events of OpenKruise 1.9 were recorded.
    for name in [
        "broadcastjob-controller",
        "cloneset-controller",
        "daemonset-controller",
        "statefulset-controller",
        "uniteddeployment-controller",
    ] {
        let controller = CONTROLLERS.iter().find(|controller| controller.name == name).unwrap();
        drop(Registration { start, ..*controller }.make(&context, 1, shutdown.clone()));
        while lock(&sent).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let event = lock(&sent).remove(0);
        assert_eq!([&event["source"]["component"], &event["reportingComponent"]], [name; 2]);
    }
}

#[tokio::test]
async fn a_runner_works_when_everything_is_in_view_and_ends_with_the_shutdown() {
    use std::sync::Mutex;

    use kube::runtime::watcher::Config;
    use serde_json::json;

    use crate::{
        api::apps::clone_set::CloneSet,
        runtime::{
            lock,
            queue::{Backoff, Queue, Requeue},
        },
    };

    let is_open = Arc::new(Mutex::new(false));
    let answers = is_open.clone();
    let context = in_memory::context_of_some(move |parts, _| {
        let object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"selector": {}, "template": {}}});
        let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        let is_hidden = parts.uri.path().contains("imagepulljobs") && !*lock(&answers);
        let items = if parts.uri.path().contains("clonesets") { vec![object] } else { Vec::new() };
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items});
        match (is_watch, is_hidden) {
            (true, _) => None,
            (false, true) => Some((500, json!({"code": 500, "message": "not yet"}))),
            (false, false) => Some((200, list)),
        }
    });
    let (stop, shutdown) = tokio::sync::watch::channel(false);
    let queue: Arc<Queue<ObjectKey>> = Queue::new(Backoff::default());
    let (sets, jobs): (Arc<Store<CloneSet>>, _) = (Store::new(None), Store::new(None));
    let (wakes, done) = (queue.clone(), Arc::new(Mutex::new(Vec::new())));
    let runner = Runner::new(&context, "trial", shutdown)
        .watch_guarded(context.api(), Config::default(), &sets, move |change| {
            if let Change::Applied { new, .. } = change {
                wakes.add(ObjectKey::of(new.as_ref()));
            }
        })
        .watch_guarded(
            context.api(),
            Config::default(),
            &jobs,
            |_: Change<'_, crate::api::apps::image_pull_job::ImagePullJob>| {},
        );
    let notes = done.clone();
    let note = move |key: ObjectKey| {
        let notes = notes.clone();
        async move {
            lock(&notes).push(key.to_string());
            Ok(Requeue::Await)
        }
    };
    let (begun, other) = (done.clone(), Queue::new(Backoff::default()));
    other.add(ObjectKey::new("ns", "of the other queue"));
    let runner =
        runner.and_queue("trial", other, 1, note.clone()).when_in_view(move || lock(&begun).push("in view".into()));
    let running = tokio::spawn(runner.run(queue, 2, note));
    sets.wait_synced().await;
    tokio::task::yield_now().await;
    assert!(lock(&done).is_empty(), "half a view");
    *lock(&is_open) = true;
    while lock(&done).len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut seen = lock(&done).clone();
    assert_eq!(seen.remove(0), "in view", "once, and before the first reconcile");
    seen.sort();
    assert_eq!(seen, ["ns/of the other queue", "ns/web"]);
    stop.send(true).unwrap();
    running.await.unwrap();
}
