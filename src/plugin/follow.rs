//! Waits for requests and roll-outs, and shows their progress.

use std::time::Duration;

use futures::{StreamExt, stream::select_all};
use kube::{
    Client,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    requests::{api_of, reference, resource_for, value},
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error, with_sources},
        progress::{Line, Outcome, Stopwatch, Waited, Watched, exit_of},
    },
    view::View,
};
use crate::runtime::clock;

/// How often a picture that moves is drawn.
pub(super) const FRAME: Duration = Duration::from_millis(100);

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
    let read = |object: Value| Ok((object.clone(), Watched::read(object).map_err(|e| Stop::new(Exit::Failed, e))?));
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
    let mut all = Vec::new();
    let mut streams = Vec::new();
    for (index, (object, seen)) in objects.into_iter().enumerate() {
        let name = object.text("/metadata/name").to_owned();
        let resource = resource_for(&object);
        let stream = watcher::watch_object(api_of(client, &object), &name).default_backoff();
        streams.push(stream.map(move |event| (index, resource.clone(), event)).boxed());
        all.push(Followed { object, seen, waited: None, watch: started.clone() });
    }
    let mut events = select_all(streams);
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
            Some((index, resource, event)) = events.next() => match event {
                Ok(object) => {
                    if std::mem::take(&mut lost) {
                        view.line("connected again")?;
                    }
                    let object = object.map(|object| value(object, &resource)).transpose()?;
                    all[index].take(object)?;
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
        self.seen = self.seen.again(object.clone()).map_err(|error| Stop::new(Exit::Failed, error))?;
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
