//! What the daemon does on its node: carries out the steps that `domain` decides, through `cri`.
//!
//! - [`recreate`]: ContainerRecreateRequests of this node.
//! - [`hooks`]: preStop hooks, run as kubelet runs them.
//! - [`runtimes`]: which runtimes are there, found again when they come and go.

use crate::k8s::rbac::Rule;

pub mod hooks;
pub mod recreate;
pub mod runtimes;

/// Everything the daemon may do in the API, cluster-wide. A policy limits the writes to its own node.
pub const RBAC: &[Rule] = &[
    Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["get", "list", "watch"]),
    Rule::new(&["apps.kruise.io"], &["containerrecreaterequests/status"], &["patch"]),
    Rule::new(&[""], &["pods"], &["list", "watch"]),
    Rule::new(&[""], &["events"], &["create"]),
];
