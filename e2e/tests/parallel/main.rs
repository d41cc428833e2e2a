//! Tests that share one cluster without disturbing each other: each has a namespace of its own.

#![allow(clippy::disallowed_methods, reason = "tests look at the clock")]

mod admission;
mod broadcast_job;
mod budgets;
mod chart;
mod clients;
mod clone_set;
mod clone_set_admission;
mod clone_set_hooks;
mod clone_set_inplace;
mod clone_set_orphans;
mod clone_set_random;
mod clone_set_rest;
mod clone_set_restart;
mod container_meta;
mod cron_job;
mod daemon_set;
mod ephemeral_job;
mod failure;
mod guide;
mod harness;
mod hostile_callers;
mod image_jobs;
mod image_pull;
mod launch_priority;
mod methods;
mod others;
mod output;
mod persistent_pod_state;
mod plugin;
mod plugin_rollout;
mod probes;
mod readiness;
mod restart;
mod revisions;
mod several;
mod sidecar_set;
mod sidecar_set_beside;
mod sidecar_set_hot;
mod stateful_set;
mod stateful_set_admission;
mod stateful_set_steps;
mod united_deployment;
mod workload_restart;
mod workload_spread;
