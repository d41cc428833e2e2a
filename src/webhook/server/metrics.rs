//! What the webhook role counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

use crate::runtime;

/// Labels of the request counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Path of the handler.
    pub webhook: &'static str,
    /// 200 for allowed, else the code of the refusal.
    pub code: u16,
    /// `allowed`, `patched`, `denied` or `error`.
    pub outcome: &'static str,
}

/// Labels of the latency histogram.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WebhookLabels {
    /// Path of the handler.
    pub webhook: &'static str,
}

/// The metrics, under the names that dashboards for OpenKruise know where there are such.
#[derive(Clone)]
pub struct Metrics {
    /// Admission requests by handler and outcome.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds from the whole request read to the answer.
    pub latency: Family<WebhookLabels, Histogram, fn() -> Histogram>,
    /// When the serving certificate ends, in seconds since 1970.
    pub certificate_expiry: Gauge,
    /// Entries that the webhook configurations lack and that nobody adds.
    pub entries_missing: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        // 0.5 ms to 8 s: most answers need no look-up.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.0005, 2.0, 15));
        Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(histogram),
            certificate_expiry: Gauge::default(),
            entries_missing: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Adds them to the metrics of this process.
    pub fn register(&self, all: &runtime::metrics::Metrics) {
        all.register(
            "controller_runtime_webhook_requests",
            "Admission requests by handler and outcome",
            &self.requests,
        );
        all.register(
            "controller_runtime_webhook_latency_seconds",
            "Time to answer an admission request",
            &self.latency,
        );
        all.register(
            "kruise_webhook_certificate_expiry_seconds",
            "When the serving certificate ends, since 1970",
            &self.certificate_expiry,
        );
        all.register(
            "kruise_webhook_entries_missing",
            "Entries that the webhook configurations lack and that nobody adds",
            &self.entries_missing,
        );
    }
}
