//! Kubernetes Events, written in the background.
//!
//! Publishing never waits: a full queue drops the event and counts it. An event is a courtesy; losing one must not
//! hold up a restart, and a flood of them must not load the API server.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event as CoreEvent, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::mpsc, time::Instant};

use super::clock;

/// Events that may wait for the API server.
const QUEUE: usize = 1024;
/// The API server refuses longer messages.
const MAX_MESSAGE: usize = 1024;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// An object may cause so many events at once ...
const BURST: f64 = 25.0;
/// ... and so many a second from then on.
const PER_SECOND: f64 = 1.0;
/// Objects that were quiet for this long are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is about.
    pub regarding: ObjectReference,
    /// `Normal` or `Warning`.
    pub type_: &'static str,
    /// A CamelCase reason from a fixed set.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl Event {
    /// Something went as it should.
    pub fn normal(regarding: ObjectReference, reason: &'static str, message: String) -> Self {
        Self { regarding, type_: "Normal", reason, message }
    }
    /// Something that somebody should look at.
    pub fn warning(regarding: ObjectReference, reason: &'static str, message: String) -> Self {
        Self { regarding, type_: "Warning", reason, message }
    }
}

/// Publishes events of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder, and the task that writes what it publishes; the task ends when the last recorder is dropped.
    ///
    /// `component` and `host` become the event's source.
    pub fn new(client: Client, component: &str, host: Option<String>) -> (Self, impl Future<Output = ()> + use<>) {
        let (queue, events) = mpsc::channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let source = EventSource { component: Some(component.to_owned()), host };
        let task = write_all(client, source, events, dropped.clone());
        (Self { queue, dropped }, task)
    }

    /// A recorder for tests, and what it publishes.
    #[cfg(test)]
    pub fn test() -> (Self, mpsc::Receiver<Event>) {
        let (queue, events) = mpsc::channel(QUEUE);
        (Self { queue, dropped: Arc::default() }, events)
    }

    /// Publishes an event, now or never.
    pub fn publish(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many events were dropped or could not be written since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

async fn write_all(client: Client, source: EventSource, mut events: mpsc::Receiver<Event>, dropped: Arc<AtomicU64>) {
    let mut buckets = Buckets::default();
    let mut sequence = 0_u64;
    while let Some(event) = events.recv().await {
        let uid = event.regarding.uid.clone().unwrap_or_default();
        if !buckets.admit(&uid, Instant::now()) {
            dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        sequence += 1;
        let now = clock::now().wall;
        let nanosecond = u64::try_from(now.as_nanosecond()).unwrap_or_default();
        let object = core_event(&event, &source, Time(now), nanosecond.wrapping_add(sequence));
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let api: Api<CoreEvent> = Api::namespaced(client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &object).await {
            // Expected for an object whose namespace is being deleted.
            tracing::debug!(%error, reason = event.reason, "event not written");
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The API object. `unique` makes its name one that no other event has.
fn core_event(event: &Event, source: &EventSource, now: Time, unique: u64) -> CoreEvent {
    // Cluster-scoped objects have their events in `default`, as in Kubernetes itself.
    let namespace = event.regarding.namespace.clone().unwrap_or_else(|| "default".into());
    CoreEvent {
        metadata: ObjectMeta {
            name: Some(event_name(event.regarding.name.as_deref().unwrap_or_default(), unique)),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: event.regarding.clone(),
        type_: Some(event.type_.into()),
        reason: Some(event.reason.into()),
        message: Some(cut(&event.message, MAX_MESSAGE).to_owned()),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..CoreEvent::default()
    }
}

fn event_name(object: &str, unique: u64) -> String {
    let suffix = format!(".{unique:016x}");
    let stem = cut(object, MAX_NAME - suffix.len()).trim_end_matches(['.', '-']);
    format!("{stem}{suffix}")
}

/// The longest prefix of at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A token bucket per object, so that one object in trouble cannot crowd out the others.
#[derive(Default)]
struct Buckets {
    by_uid: HashMap<String, (f64, Instant)>,
    swept: Option<Instant>,
}

impl Buckets {
    fn admit(&mut self, uid: &str, now: Instant) -> bool {
        if self.swept.is_none_or(|swept| now - swept > FORGET_AFTER) {
            self.by_uid.retain(|_, (_, seen)| now - *seen < FORGET_AFTER);
            self.swept = Some(now);
        }
        let (tokens, seen) = self.by_uid.entry(uid.to_owned()).or_insert((BURST, now));
        *tokens = (*tokens + (now - *seen).as_secs_f64() * PER_SECOND).min(BURST);
        *seen = now;
        let admitted = *tokens >= 1.0;
        if admitted {
            *tokens -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_name_at_253_characters_has_a_valid_name() {
        let name = event_name(&"a".repeat(253), 1);
        assert_eq!(name.len(), 253);
        assert!(name.ends_with(".0000000000000001"));
        assert_eq!(event_name("web", 10), "web.000000000000000a");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("abc", 5), "abc");
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_cannot_flood_the_api_server() {
        let mut buckets = Buckets::default();
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| buckets.admit("a", start)).count(), 25);
        assert!(buckets.admit("b", start));
        assert!(buckets.admit("a", start + Duration::from_secs(1)));
        assert!(!buckets.admit("a", start + Duration::from_secs(1)));
        buckets.admit("c", start + FORGET_AFTER * 3);
        assert_eq!(buckets.by_uid.len(), 1);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (recorder, _events) = Recorder::test();
        for _ in 0..QUEUE + 3 {
            recorder.publish(Event::normal(ObjectReference::default(), "Test", String::new()));
        }
        assert_eq!(recorder.dropped(), 3);
    }
}
