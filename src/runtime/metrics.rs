//! What is measured. Labels are bounded: never a name of an object.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

type Labels<const N: usize> = [(&'static str, String); N];

const SECONDS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 120.0];

/// All metrics of a process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    is_leader: Gauge,
    reconciles: Family<Labels<2>, Counter>,
    requests_completed: Family<Labels<1>, Counter>,
    stop_seconds: Histogram,
    restart_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let is_leader = Gauge::default();
        registry.register("kruise_manager_is_leader", "1 while this process runs the controllers", is_leader.clone());
        let reconciles = Family::default();
        registry.register("controller_runtime_reconcile", "Reconciles by controller and result", reconciles.clone());
        let requests_completed = Family::default();
        registry.register(
            "kruise_containerrecreaterequests_completed",
            "ContainerRecreateRequests that ended, by result",
            requests_completed.clone(),
        );
        let stop_seconds = Histogram::new(SECONDS);
        registry.register(
            "kruise_container_stop_seconds",
            "Time from the start of preStop to the end of the container",
            stop_seconds.clone(),
        );
        let restart_seconds = Histogram::new(SECONDS);
        registry.register(
            "kruise_container_restart_seconds",
            "Time from the end of the old instance to the new one being ready",
            restart_seconds.clone(),
        );
        let registry = Arc::new(Mutex::new(registry));
        Self { registry, is_leader, reconciles, requests_completed, stop_seconds, restart_seconds }
    }
}

impl Metrics {
    /// Adds a metric that one role alone has.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }
    /// Whether this process leads.
    pub fn leader(&self, leads: bool) {
        self.is_leader.set(i64::from(leads));
    }
    /// A reconcile ended. `result` is `success`, `requeue_after` or `error`.
    pub fn reconciled(&self, controller: &'static str, result: &'static str) {
        self.reconciles.get_or_create(&[("controller", controller.into()), ("result", result.into())]).inc();
    }
    /// A request ended. `result` is `succeeded` or `failed`.
    pub fn request_completed(&self, result: &'static str) {
        self.requests_completed.get_or_create(&[("result", result.into())]).inc();
    }
    /// A container was stopped.
    pub fn container_stop_seconds(&self, took: Duration) {
        self.stop_seconds.observe(took.as_secs_f64());
    }
    /// A container came back.
    pub fn container_restart_seconds(&self, took: Duration) {
        self.restart_seconds.observe(took.as_secs_f64());
    }
    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_dashboards_know() {
        let metrics = Metrics::default();
        metrics.leader(true);
        metrics.reconciled("crr", "success");
        let text = metrics.render();
        assert!(text.contains("kruise_manager_is_leader 1"), "{text}");
        assert!(text.contains("controller_runtime_reconcile_total{controller=\"crr\",result=\"success\"} 1"), "{text}");
    }
}
