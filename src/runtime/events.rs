//! Events (core/v1) for people. Sending never holds anybody up: a full queue drops and counts.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use kube::{Api, Client, Resource, api::PostParams};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use super::{apply::namespace_is_ending, clock};
use crate::k8s::{name::is_dns_label, time::Now};

/// Events waiting to be sent.
const QUEUE: usize = 512;
/// Events that one object may have at once, and per second after that.
const BURST: f64 = 25.0;
const PER_SECOND: f64 = 1.0;
/// Longest message the API server takes.
const MESSAGE_MAX: usize = 1024;
/// Longest object name.
const NAME_MAX: usize = 253;

/// Sends events. Cheap to clone.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    queue: mpsc::Sender<Event>,
    source: EventSource,
    limits: Mutex<Limits>,
    dropped: Counter,
    sequence: AtomicU64,
}

/// What an event is about.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference {
        // The object's own version, so that a later reader knows what it was.
        resource_version: object.meta().resource_version.clone(),
        ..object.object_ref(&())
    }
}

impl Recorder {
    /// A recorder whose events name `component` (and `host`, if not empty) as their source, and the task that sends
    /// them.
    pub fn new(
        client: Client,
        component: &str,
        host: &str,
        dropped: Counter,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (recorder, queue) = Self::with_queue(component, host, dropped);
        (recorder, send(client, queue))
    }

    fn with_queue(component: &str, host: &str, dropped: Counter) -> (Self, mpsc::Receiver<Event>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let source =
            EventSource { component: Some(component.to_owned()), host: (!host.is_empty()).then(|| host.to_owned()) };
        let limits = Mutex::new(Limits::default());
        (Self(Arc::new(Inner { queue, source, limits, dropped, sequence: AtomicU64::new(0) })), receiver)
    }

    /// A recorder of another component in the same process, sent by the same task.
    pub fn named(&self, component: &str) -> Self {
        let inner = &self.0;
        let source = EventSource { component: Some(component.to_owned()), ..inner.source.clone() };
        let (queue, dropped) = (inner.queue.clone(), inner.dropped.clone());
        Self(Arc::new(Inner { queue, source, limits: Mutex::default(), dropped, sequence: AtomicU64::new(0) }))
    }

    /// Emits an event of type Normal.
    pub fn normal(&self, about: &ObjectReference, reason: &str, message: &str) {
        self.record("Normal", about, reason, message);
    }

    /// Emits an event of type Warning.
    pub fn warning(&self, about: &ObjectReference, reason: &str, message: &str) {
        self.record("Warning", about, reason, message);
    }

    fn record(&self, type_: &str, about: &ObjectReference, reason: &str, message: &str) {
        let inner = &self.0;
        let now = clock::now();
        let object = about.uid.as_deref().or(about.name.as_deref()).unwrap_or_default();
        let allowed = inner.limits.lock().unwrap_or_else(PoisonError::into_inner).allow(object, now);
        let event = || {
            let unique = now.wall.as_nanosecond() as u64 ^ inner.sequence.fetch_add(1, Ordering::Relaxed) << 48;
            event(&inner.source, type_, about, reason, message, now, unique)
        };
        if !allowed || inner.queue.try_send(event()).is_err() {
            inner.dropped.inc();
            tracing::debug!(reason, message, name = about.name, "event dropped");
        }
    }
}

fn event(
    source: &EventSource,
    type_: &str,
    about: &ObjectReference,
    reason: &str,
    message: &str,
    now: Now,
    unique: u64,
) -> Event {
    let name = event_name(about.name.as_deref().unwrap_or("unknown"), unique);
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".into())),
            ..ObjectMeta::default()
        },
        involved_object: about.clone(),
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(cut(message, MESSAGE_MAX).to_owned()),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        count: Some(1),
        first_timestamp: Some(Time(now.wall)),
        last_timestamp: Some(Time(now.wall)),
        event_time: None::<MicroTime>,
        ..Event::default()
    }
}

/// `<object>.<hex>`: unique, a valid name, and recognisable.
fn event_name(object: &str, unique: u64) -> String {
    let suffix = format!(".{unique:016x}");
    let kept = cut(object, NAME_MAX - suffix.len());
    // What is cut must not end in a dot or a dash: a part of a DNS name cannot.
    format!("{}{suffix}", kept.trim_end_matches(['.', '-']))
}

fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text[..end]
}

/// A token bucket for each object that had events lately.
#[derive(Default)]
struct Limits(HashMap<String, (f64, Duration)>);

impl Limits {
    fn allow(&mut self, object: &str, now: Now) -> bool {
        let refilled = |tokens: f64, since: Duration| {
            (tokens + now.mono.saturating_sub(since).as_secs_f64() * PER_SECOND).min(BURST)
        };
        if self.0.len() >= 1024 {
            self.0.retain(|_, (tokens, since)| refilled(*tokens, *since) < BURST);
        }
        let (tokens, since) = self.0.entry(object.to_owned()).or_insert((BURST, now.mono));
        *tokens = refilled(*tokens, *since);
        *since = now.mono;
        let allowed = *tokens >= 1.0;
        if allowed {
            *tokens -= 1.0;
        }
        allowed
    }
}

async fn send(client: Client, mut queue: mpsc::Receiver<Event>) {
    while let Some(event) = queue.recv().await {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        if !is_dns_label(&namespace) {
            tracing::warn!(namespace, reason = event.reason, "event not sent: there can be no such namespace");
            continue;
        }
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let (reason, name) = (&event.reason, &event.involved_object.name);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            Err(error) if namespace_is_ending(&error) => tracing::debug!(namespace, reason, name, "event not sent"),
            // An API server that is away: nobody waits for this one.
            Err(error) => tracing::warn!(%error, reason, name, "event not sent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Now {
        Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), mono: Duration::from_millis(millis) }
    }
    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            uid: Some("u".into()),
            field_path: Some("spec.containers{main}".into()),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn names_stay_valid_whatever_the_object_is_called() {
        assert_eq!(event_name("web-0", 0xab), "web-0.00000000000000ab");
        let long = format!("{}-.{}", "a".repeat(234), "b".repeat(17));
        let name = event_name(&long, 1);
        assert_eq!(name, format!("{}.0000000000000001", "a".repeat(234)));
        assert_eq!(event_name(&"a".repeat(253), 1).len(), 253);
    }

    #[test]
    fn one_object_never_floods() {
        let mut limits = Limits::default();
        assert_eq!((0..100).filter(|_| limits.allow("u", at(1000))).count(), 25);
        assert!(limits.allow("other", at(1000)));
        assert_eq!((0..100).filter(|_| limits.allow("u", at(3000))).count(), 2);
        for i in 0..3000 {
            limits.allow(&i.to_string(), at(10_000 + i * 1000));
        }
        assert!(limits.0.len() <= 1024, "objects that are quiet are forgotten");
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let dropped = Counter::default();
        let (recorder, mut queue) = Recorder::with_queue("kruise-manager", "n1", dropped.clone());
        for i in 0..QUEUE + 5 {
            let mut about = about("p");
            about.uid = Some(i.to_string());
            recorder.normal(&about, "Killing", "Stopping container main");
        }
        assert_eq!(dropped.get(), 5);
        let event = queue.recv().await.unwrap();
        assert_eq!(event.source.unwrap().host.as_deref(), Some("n1"));
        assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{main}"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
        assert_ne!(event.metadata.name, queue.recv().await.unwrap().metadata.name);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let message = "ü".repeat(1000);
        let made = event(&EventSource::default(), "Normal", &about("p"), "R", &message, at(1), 1);
        assert_eq!(made.message.unwrap().len(), 1024);
    }
}
