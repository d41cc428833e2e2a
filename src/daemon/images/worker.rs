//! Carries out one order: attempts with pauses between them, within its limits, and the report of its end.
//!
//! A worker that was stopped reports nothing any more.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use super::{Puller, attempt::Attempt};
use crate::{
    domain::node::puller::{self as rules, Entry, Order, OrderState, PullFailure},
    k8s::invalid::Invalid,
    runtime::{clock, events::reference},
};

/// Which worker.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) entry: Entry,
    /// That of its job.
    pub(super) generation: u64,
}

impl Puller {
    /// Carries out one order.
    pub(super) async fn work(self: Arc<Self>, worker: Worker) {
        self.to_an_end(&worker, self.take_steps(&worker)).await;
    }

    /// Takes steps; the order has failed if they panic.
    pub(super) async fn to_an_end(&self, worker: &Worker, steps: impl Future<Output = ()>) {
        let Some(order) = self.order(worker) else { return };
        let _end = EndOfPanic { puller: self, worker, order: &order };
        steps.await;
    }

    async fn take_steps(&self, worker: &Worker) {
        let Some(order) = self.order(worker) else { return };
        let image = match worker.entry.reference() {
            Ok(image) => image,
            Err(Invalid(message)) => return self.finish(worker, &order, None, Err(PullFailure(message))),
        };
        // An attempt that needs no pull needs no place.
        if order.if_not_present
            && let Ok(Some(id)) = self.images.present(&worker.entry, &image).await
        {
            return self.finish(worker, &order, None, Ok(id));
        }
        let mut place = self.places.acquire().await.ok();
        let (started, begun) = (clock::now().wall, Instant::now());
        let report = move |percent, message| self.set(worker, OrderState::Pulling { started, percent, message });
        report(0, String::new());
        self.changed.notify_one();
        tracing::info!(image, version = order.version, "pulling");

        let (mut failed, mut last_error) = (0, None::<String>);
        let (order, result) = loop {
            let Some(order) = self.order(worker) else { return };
            let Some(limit) = order.next_attempt(failed, begun.elapsed()) else {
                let mut message = last_error.unwrap_or_else(|| "there was no time for an attempt".into());
                if order.is_overdue(begun.elapsed()) {
                    message = format!("activeDeadlineSeconds are over; {message}");
                }
                break (order, Err(PullFailure(message)));
            };
            let (until, last_error_was) = (Instant::now() + limit, last_error.as_deref());
            let attempt =
                Attempt { order: &order, image: &image, begun, until, last_error: last_error_was, report: &report };
            self.metrics.running.inc();
            let running = Running(&self.metrics.running);
            let outcome = tokio::time::timeout(limit, self.images.pull(&attempt)).await;
            drop(running);
            let error = match outcome {
                Ok(Ok(id)) => break (order, Ok(id)),
                Ok(Err(PullFailure(error))) => rules::shortened(&error),
                Err(_) => format!("the attempt took longer than {} s", limit.as_secs_f32().ceil()),
            };
            tracing::info!(image, attempt = failed + 1, of = order.attempts, error, "not pulled");
            failed += 1;
            last_error = Some(error);
            if order.next_attempt(failed, begun.elapsed()).is_some() {
                // Others may pull meanwhile.
                place.take();
                tokio::time::sleep(rules::pause(failed)).await;
                place = self.places.acquire().await.ok();
            }
        };
        drop(place);
        self.finish(worker, &order, Some((started, begun)), result);
    }

    fn finish(
        &self,
        worker: &Worker,
        order: &Order,
        begun: Option<(jiff::Timestamp, Instant)>,
        result: Result<String, PullFailure>,
    ) {
        if self.order(worker).is_none() {
            return;
        }
        let completed = clock::now().wall;
        let started = begun.map_or(completed, |(started, _)| started);
        let Entry { image, tag } = &worker.entry;
        let about = self.shared().object.as_ref().map(|object| reference(&**object));
        match (&result, begun) {
            (Ok(id), Some((_, since))) => {
                let took = since.elapsed();
                self.metrics.count("succeeded");
                self.metrics.seconds.observe(took.as_secs_f64());
                tracing::info!(image, tag, id, ?took, "pulled");
                let message = format!("Image {image}, {tag} was pulled in {:.1} s", took.as_secs_f64());
                if let Some(about) = about {
                    self.events.normal(&about, "PullImageSucceed", &message);
                }
            }
            (Ok(id), None) => {
                self.metrics.count("present");
                tracing::info!(image, tag, id, "it is there already");
                if let Some(about) = about {
                    let message = format!("Image {image}, {tag} is there already");
                    self.events.normal(&about, "PullImageSucceed", &message);
                }
            }
            (Err(error), _) => {
                self.metrics.count("failed");
                tracing::warn!(image, tag, %error, "given up");
                let message = format!("Image {image}, {tag} was not pulled on node {}: {error}", self.settings.node);
                for about in order.owners.iter().chain(&about) {
                    self.events.warning(about, "PullImageFailed", &message);
                }
            }
        }
        self.set(worker, OrderState::Ended { started, completed, result });
        self.changed.notify_one();
    }

    /// The current order of a worker. None: it was stopped.
    fn order(&self, worker: &Worker) -> Option<Arc<Order>> {
        let shared = self.shared();
        let job = shared.jobs.get(&worker.entry).filter(|job| job.generation == worker.generation)?;
        Some(job.order.clone())
    }

    fn set(&self, worker: &Worker, state: OrderState) {
        let mut shared = self.shared();
        if let Some(job) = shared.jobs.get_mut(&worker.entry).filter(|job| job.generation == worker.generation) {
            job.state = state;
        }
    }
}

/// Counts a pull as running, until it is dropped.
struct Running<'a>(&'a Gauge);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Without it an order whose worker panicked would be reported as running for ever.
struct EndOfPanic<'a> {
    puller: &'a Puller,
    worker: &'a Worker,
    order: &'a Order,
}

impl Drop for EndOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = "the daemon met an error of its own (a panic); its log says where".to_owned();
            self.puller.finish(self.worker, self.order, None, Err(PullFailure(error)));
        }
    }
}
