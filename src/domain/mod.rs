//! PURE rules that more than one role needs. No clock, no client, no `.await`: `now` is an argument.

pub mod budget;
pub mod clone_set;
pub mod container_meta;
pub mod images;
pub mod inplace;
pub mod launch_priority;
pub mod lifecycle;
pub mod pod_order;
pub mod probes;
pub mod pull_secrets;
pub mod puller;
pub mod readiness;
pub mod recreate;
pub mod refresh;
pub mod revisions;
pub mod unavailable_budget;
