//! Waits for requests and roll-outs, and shows their progress.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{BoxStream, select_all},
};
use kube::{
    Client,
    api::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    requests::{api_of, reference, resource_for, value},
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error, with_sources},
        progress::{Line, Outcome, Stopwatch, UnknownShape, Waited, Watched, exit_of},
    },
    view::View,
};
use crate::runtime::clock;

/// How often a picture that moves is drawn.
pub(super) const FRAME: Duration = Duration::from_millis(100);

/// More objects of one collection than these share a watch.
const SINGLY: usize = 20;

/// What became of objects, by their places; None: it is gone.
type News = Vec<(usize, Option<DynamicObject>)>;

struct Followed {
    object: Value,
    seen: Watched,
    /// How it ended for us, and after which time.
    waited: Option<(Waited, Duration)>,
    watch: Stopwatch,
}

/// Waits until every request has ended, the time is up or the user interrupts. Gives the objects as last seen and the
/// exit code; the outcome of each has been printed.
///
/// # Errors
/// A request cannot be watched or read.
pub(super) async fn follow(
    client: &Client,
    objects: Vec<Value>,
    timeout: Option<Duration>,
    view: &mut View,
) -> Result<(Vec<Value>, Exit), Stop> {
    let failed = |error: UnknownShape| Stop::new(Exit::Failed, error.to_string());
    let read = |object: Value| Ok((object.clone(), Watched::read(object).map_err(failed)?));
    let seen = objects.into_iter().map(read).collect::<Result<_, Stop>>()?;
    follow_seen(client, seen, timeout, view).await
}

/// The same, for what was read already.
///
/// # Errors
/// As [`follow`].
pub(super) async fn follow_seen(
    client: &Client,
    objects: Vec<(Value, Watched)>,
    timeout: Option<Duration>,
    view: &mut View,
) -> Result<(Vec<Value>, Exit), Stop> {
    // Before anything is shown: whoever sees a line may interrupt.
    let handler = signal(SignalKind::interrupt());
    let mut interrupts = handler.map_err(|error| Stop::new(Exit::Failed, format!("signal handler: {error}")))?;
    let started = Stopwatch::new(clock::now());
    let mut events = select_all(watches(client, &objects));
    let followed = |(object, seen)| Followed { object, seen, waited: None, watch: started.clone() };
    let mut all: Vec<Followed> = objects.into_iter().map(followed).collect();
    let mut frames = tokio::time::interval(FRAME);
    let time_up = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(time_up);
    let mut lost = false;
    loop {
        view.update(&lines(&mut all))?;
        if all.iter().all(|one| one.waited.is_some()) {
            break;
        }
        tokio::select! {
            Some((resource, event)) = events.next() => match event {
                Ok(news) => {
                    if !news.is_empty() && std::mem::take(&mut lost) {
                        view.line("connected again")?;
                    }
                    for (place, object) in news {
                        let object = object.map(|object| value(object, &resource)).transpose()?;
                        all[place].take(object)?;
                    }
                }
                Err(error) => {
                    let error = refused(error)?;
                    if !std::mem::replace(&mut lost, true) {
                        view.line(&format!("connection lost, trying again: {}", with_sources(&error)))?;
                    }
                }
            },
            _ = frames.tick(), if view.is_live() => {}
            () = &mut time_up => give_up(&mut all, &Waited::TimedOut),
            _ = interrupts.recv() => give_up(&mut all, &Waited::Interrupted),
        }
    }
    view.finish(&lines(&mut all))?;
    for one in &all {
        if let Some((waited, time)) = &one.waited {
            let namespace = one.object.text("/metadata/namespace");
            view.line(&one.seen.verdict(&reference(&one.object), waited, *time, namespace))?;
        }
    }
    let waited: Vec<Waited> = all.iter().filter_map(|one| Some(one.waited.clone()?.0)).collect();
    Ok((all.into_iter().map(|one| one.object).collect(), exit_of(&waited)))
}

/// Watches for all objects. An API server has bounds for how many one user may begin at once.
fn watches(
    client: &Client,
    objects: &[(Value, Watched)],
) -> Vec<BoxStream<'static, (ApiResource, watcher::Result<News>)>> {
    let mut collections: BTreeMap<String, Vec<(usize, &Value)>> = BTreeMap::new();
    for (place, (object, _)) in objects.iter().enumerate() {
        collections.entry(api_of(client, object).resource_url().to_owned()).or_default().push((place, object));
    }
    let mut streams = Vec::new();
    for members in collections.into_values() {
        if members.len() > SINGLY {
            let first = members[0].1;
            let (resource, mut collection) = (resource_for(first), Collection::of(&members));
            let stream = watcher::watcher(api_of(client, first), watcher::Config::default()).default_backoff();
            let news = move |event: watcher::Result<Event<DynamicObject>>| {
                (resource.clone(), event.map(|event| collection.take(event)))
            };
            streams.push(stream.map(news).boxed());
            continue;
        }
        for (place, object) in members {
            let resource = resource_for(object);
            let stream = watcher::watch_object(api_of(client, object), object.text("/metadata/name"));
            let news = move |event: watcher::Result<Option<DynamicObject>>| {
                (resource.clone(), event.map(|object| vec![(place, object)]))
            };
            streams.push(stream.default_backoff().map(news).boxed());
        }
    }
    streams
}

/// Some objects of a collection that is watched as a whole.
struct Collection {
    /// By their names.
    places: BTreeMap<String, Vec<usize>>,
    /// Those that the list under way has not had yet.
    unseen: BTreeSet<usize>,
}

impl Collection {
    fn of(members: &[(usize, &Value)]) -> Self {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, object) in members {
            places.entry(object.text("/metadata/name").to_owned()).or_default().push(*place);
        }
        Self { places, unseen: BTreeSet::new() }
    }

    /// What an event says of the objects.
    fn take(&mut self, event: Event<DynamicObject>) -> News {
        let (object, is_there) = match event {
            Event::Init => {
                self.unseen = self.places.values().flatten().copied().collect();
                return News::new();
            }
            Event::InitDone => {
                return std::mem::take(&mut self.unseen).into_iter().map(|place| (place, None)).collect();
            }
            Event::InitApply(object) | Event::Apply(object) => (object, true),
            Event::Delete(object) => (object, false),
        };
        let places = object.metadata.name.as_ref().and_then(|name| self.places.get(name)).cloned().unwrap_or_default();
        for place in &places {
            self.unseen.remove(place);
        }
        places.into_iter().map(|place| (place, is_there.then(|| object.clone()))).collect()
    }
}

impl Followed {
    fn take(&mut self, object: Option<Value>) -> Result<(), Stop> {
        if self.waited.is_some() {
            return Ok(());
        }
        let mine = object.filter(|object| object.text("/metadata/uid") == self.object.text("/metadata/uid"));
        let Some(object) = mine else {
            self.end(Waited::Gone);
            return Ok(());
        };
        let seen = self.seen.again(object.clone());
        self.seen = seen.map_err(|error| Stop::new(Exit::Failed, error.to_string()))?;
        self.object = object;
        let outcome = self.seen.outcome();
        if outcome != Outcome::Open {
            self.end(Waited::Ended(outcome));
        }
        Ok(())
    }

    fn end(&mut self, how: Waited) {
        self.waited = Some((how, self.watch.elapsed(clock::now())));
    }
}

fn give_up(all: &mut [Followed], why: &Waited) {
    for one in all.iter_mut().filter(|one| one.waited.is_none()) {
        one.end(why.clone());
    }
}

fn lines(all: &mut [Followed]) -> Vec<(Line, Duration)> {
    let now = clock::now();
    let with_time = |one: &mut Followed| {
        let lines = one.seen.lines().into_iter();
        lines.map(|line| (line.clone(), one.watch.time(&line, now))).collect::<Vec<_>>()
    };
    all.iter_mut().flat_map(with_time).collect()
}

/// An error that trying again does not mend.
pub(super) fn refused(error: watcher::Error) -> Result<watcher::Error, Stop> {
    let what = "watching stopped, what was asked for goes on";
    match &error {
        watcher::Error::InitialListFailed(cause @ kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(cause @ kube::Error::Api(status))
            if matches!(status.code, 401 | 403) =>
        {
            Err(of_error(what, cause))
        }
        _ => Ok(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{plugin::requests::resource, runtime::fake_api};

    fn restarts(count: usize) -> Vec<(Value, Watched)> {
        let restart = |number: usize| {
            json!({ "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
                "metadata": { "name": format!("r-{number}"), "namespace": "shop" } })
        };
        (0..count).map(|number| (restart(number), Watched::read(restart(number)).unwrap())).collect()
    }

    #[tokio::test]
    async fn many_objects_of_a_collection_share_a_watch() {
        let client = fake_api::nobody();
        for (count, expected) in [(0, 0), (1, 1), (SINGLY, SINGLY), (SINGLY + 1, 1), (500, 1)] {
            assert_eq!(watches(&client, &restarts(count)).len(), expected, "{count}");
        }
        let mut two = restarts(SINGLY + 2);
        two[0].0["metadata"]["namespace"] = "other".into();
        assert_eq!(watches(&client, &two).len(), 2, "by namespace");
    }

    #[test]
    fn objects_of_a_collection_are_told_apart_by_their_names() {
        let objects = restarts(2);
        let mut collection = Collection::of(&[(0, &objects[0].0), (1, &objects[1].0), (2, &objects[0].0)]);
        let object = |name: &str| DynamicObject::new(name, &resource("WorkloadRestart"));
        for (event, news) in [
            (Event::Init, vec![]),
            (Event::InitApply(object("r-0")), vec![(0, true), (2, true)]),
            (Event::InitApply(object("other")), vec![]),
            // The list did not have it.
            (Event::InitDone, vec![(1, false)]),
            (Event::Apply(object("r-1")), vec![(1, true)]),
            (Event::Apply(object("other")), vec![]),
            (Event::Delete(object("r-0")), vec![(0, false), (2, false)]),
            (Event::Init, vec![]),
            (Event::InitApply(object("r-1")), vec![(1, true)]),
            (Event::InitDone, vec![(0, false), (2, false)]),
        ] {
            let told: Vec<(usize, bool)> =
                collection.take(event.clone()).into_iter().map(|(place, object)| (place, object.is_some())).collect();
            assert_eq!(told, news, "{event}");
        }
    }
}
