//! What the daemon does on its node: carries out the steps that `domain` decides, through `cri`.
//!
//! - [`recreate`]: ContainerRecreateRequests of this node.
//! - [`hooks`]: preStop hooks, run as kubelet runs them.
//! - [`runtimes`]: which runtimes are there, found again when they come and go.

pub mod hooks;
pub mod recreate;
pub mod runtimes;
