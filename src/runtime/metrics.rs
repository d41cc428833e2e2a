//! Metrics in the OpenMetrics text form. Labels are bounded: never names of objects.

use std::{fmt, sync::Mutex};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry, Unit},
};

use super::lock;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of the reconcile counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReconcileLabels {
    /// Name of the controller.
    pub controller: &'static str,
    /// `success`, `requeue_after` or `error`.
    pub result: &'static str,
}

/// Labels of the counter of ended requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    /// `succeeded` or `failed`.
    pub result: &'static str,
}

/// The metrics of this process. Those that several parties touch are fields; others are registered by who keeps them.
pub struct Metrics {
    /// By name. What a manager registers in a later term of leadership takes the place of what it had.
    registered: Mutex<Vec<(String, Registry)>>,
    /// 1 while this process is the leader.
    pub is_leader: Gauge,
    /// Reconciles by controller and result.
    pub reconciles: Family<ReconcileLabels, Counter>,
    /// Requests seen to end, by result.
    pub requests_completed: Family<ResultLabels, Counter>,
    /// Events that were not sent, because there were too many.
    pub events_dropped: Counter,
    /// Admission policies over this process's account that are not in force.
    pub policies_missing: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut process = Registry::default();
        process.register_collector(Box::new(Process));
        let metrics = Self {
            registered: Mutex::new(vec![("process".into(), process)]),
            is_leader: Gauge::default(),
            reconciles: Family::default(),
            requests_completed: Family::default(),
            events_dropped: Counter::default(),
            policies_missing: Gauge::default(),
        };
        metrics.register(
            "kruise_events_dropped",
            "Events not sent because there were too many",
            &metrics.events_dropped,
        );
        metrics.register(
            "kruise_admission_policies_missing",
            "Admission policies over this process's account that are not in force",
            &metrics.policies_missing,
        );
        metrics
    }
}

impl Metrics {
    /// Registers what only the manager has.
    pub fn for_manager(&self) {
        self.register("kruise_manager_is_leader", "1 while this process is the leader", &self.is_leader);
        self.register("controller_runtime_reconcile", "Reconciles by controller and result", &self.reconciles);
        self.register(
            "kruise_container_recreate_requests_completed",
            "ContainerRecreateRequests seen to end, by result",
            &self.requests_completed,
        );
    }

    /// Adds a metric, in the place of one of the same name. A counter's name gets the suffix `_total` by itself.
    pub fn register(&self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        let mut registry = Registry::default();
        registry.register(name, help, metric.clone());
        self.put(name, registry);
    }

    /// Adds a gauge.
    pub fn register_gauge(&self, name: &str, help: &str, gauge: &Gauge) {
        self.register(name, help, gauge);
    }

    /// Adds a histogram of seconds; its name gets the suffix `_seconds`.
    pub fn register_seconds(&self, name: &str, help: &str, histogram: &Histogram) {
        let mut registry = Registry::default();
        registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        self.put(name, registry);
    }

    fn put(&self, name: &str, registry: Registry) {
        let mut registered = lock(&self.registered);
        match registered.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = registry,
            None => registered.push((name.to_owned(), registry)),
        }
    }

    /// The text that a scrape gets.
    ///
    /// # Errors
    /// If a metric cannot be written as text.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        for (_, registry) in lock(&self.registered).iter() {
            text::encode_registry(&mut out, registry)?;
        }
        text::encode_eof(&mut out)?;
        Ok(out)
    }
}

/// A histogram for durations from 5 ms to 80 s.
pub fn seconds_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 15))
}

/// Memory and processor time of this process, read when scraped.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(bytes) = read("/proc/self/status").as_deref().and_then(resident_bytes) {
            let gauge = ConstGauge::new(bytes);
            let name = "process_resident_memory";
            gauge.encode(encoder.encode_descriptor(
                name,
                "Resident memory",
                Some(&Unit::Bytes),
                gauge.metric_type(),
            )?)?;
        }
        if let Some(seconds) = read("/proc/self/stat").as_deref().and_then(cpu_seconds) {
            let counter = ConstCounter::new(seconds);
            let kind = counter.metric_type();
            let help = "Processor time, user and system";
            counter.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), kind)?)?;
        }
        Ok(())
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn resident_bytes(status: &str) -> Option<i64> {
    bytes_of(status, "VmRSS:")
}

fn bytes_of(status: &str, field: &str) -> Option<i64> {
    let kib: i64 = status.lines().find_map(|line| line.strip_prefix(field))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// What this process has allocated, in bytes. Its program and other files count for nothing, and swapped memory counts.
#[cfg(test)]
pub(crate) fn own_memory() -> usize {
    let status = read("/proc/self/status").unwrap();
    let bytes = |field: &str| usize::try_from(bytes_of(&status, field).unwrap()).unwrap();
    bytes("RssAnon:") + bytes("VmSwap:")
}

/// utime and stime are counted in hundredths of a second: Linux fixed what it shows to user space at 100 Hz.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_know() {
        let metrics = Metrics::default();
        metrics.for_manager();
        metrics.is_leader.set(1);
        let labels = ReconcileLabels { controller: "pod-readiness-controller", result: "success" };
        metrics.reconciles.get_or_create(&labels).inc();
        let stop = seconds_histogram();
        metrics.register_seconds("kruise_container_stop_duration", "Stops", &stop);
        stop.observe(0.02);
        let text = metrics.render().unwrap();
        for line in [
            "kruise_manager_is_leader 1",
            "controller_runtime_reconcile_total{controller=\"pod-readiness-controller\",result=\"success\"} 1",
            "kruise_events_dropped_total 0",
            "kruise_container_stop_duration_seconds_count 1",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_name_that_is_registered_again_is_reported_once_with_the_newer_value() {
        let metrics = Metrics::default();
        for value in [7, 1] {
            let counter: Counter = Counter::default();
            metrics.register("kruise_rounds", "Rounds", &counter);
            counter.inc_by(value);
        }
        let text = metrics.render().unwrap();
        let found: Vec<&str> = text.lines().filter(|line| line.contains("kruise_rounds")).collect();
        assert_eq!(found, ["# HELP kruise_rounds Rounds.", "# TYPE kruise_rounds counter", "kruise_rounds_total 1"]);
        assert_eq!(text.matches("# EOF").count(), 1);
    }

    #[test]
    fn proc_files_are_read_by_field() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    9000 kB\n"), Some(9_216_000));
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!((resident_bytes(""), cpu_seconds("x")), (None, None));
    }
}
