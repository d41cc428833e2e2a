//! Writes only while the Lease is ours.
//!
//! A process that was stopped for longer than the Lease lasts does not know it when it goes on: what it had begun would
//! still be sent, while another one leads. So every write asks, right before it is sent, whether the time is over for
//! which the last renewal was good.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::{Method, Request};
use kube::{Client, client::Body};

use super::{clock, ending::Ending};
use crate::k8s::time::Now;

/// Whether we may write. Closed at first.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    /// On our monotonic clock, in milliseconds.
    until: Arc<AtomicU64>,
    /// Whether the term that it is for is over, for good.
    over: Arc<AtomicBool>,
}

impl Fence {
    /// We may write until then.
    pub fn open_until(&self, mono: Duration) {
        self.until.store(mono.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A fence that is open while this one is, until its own term is over: what was begun in one term is not sent in the
    /// next.
    pub fn term(&self) -> Self {
        Self { until: self.until.clone(), over: Arc::default() }
    }

    /// Closes this fence for good, and no other.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether both are of the same term.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.over, &other.over)
    }

    pub(super) fn is_open(&self, now: Now) -> bool {
        !self.over.load(Ordering::Relaxed) && now.mono < Duration::from_millis(self.until.load(Ordering::Relaxed))
    }

    /// The same client, but what it writes is held to this fence, and nothing is made in vain in namespaces that end.
    pub fn around(&self, client: &Client, ending: &Ending) -> Client {
        let (inner, fence, ending) = (client.clone(), self.clone(), ending.clone());
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.extensions_mut().insert(fence.clone());
            let (inner, ending) = (inner.clone(), ending.clone());
            async move { ending.send(&inner, request).await }
        });
        Client::new(service, client.default_namespace())
    }
}

/// What a request needs to be sent. To be asked after everything that delays it.
pub(super) struct Ticket(Option<Fence>);

impl Ticket {
    /// Reads, and clients without a fence, need nothing.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let writes = *request.method() != Method::GET;
        Self(request.extensions().get::<Fence>().filter(|_| writes).cloned())
    }

    pub(super) fn is_good(&self) -> bool {
        self.0.as_ref().is_none_or(|fence| fence.is_open(clock::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_closed_at_first_and_closes_by_itself() {
        let at = |seconds| Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Duration::from_secs(seconds) };
        let fence = Fence::default();
        assert!(!fence.is_open(at(1)));
        fence.open_until(Duration::from_secs(10));
        assert!(fence.is_open(at(9)) && !fence.is_open(at(10)));
        fence.open_until(Duration::MAX);
        assert!(fence.is_open(at(1 << 30)));
    }

    #[test]
    fn what_was_begun_in_one_term_is_not_sent_in_the_next() {
        let now = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Duration::from_secs(1) };
        let fence = Fence::default();
        let first = fence.term();
        assert!(!first.is_open(now), "nobody leads yet");
        fence.open_until(Duration::MAX);
        assert!(first.is_open(now) && first.clone().is(&first));
        first.clone().end();
        let second = fence.term();
        assert!(!first.is_open(now) && second.is_open(now) && fence.is_open(now) && !second.is(&first));
    }
}
