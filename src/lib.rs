//! kruise-rs: restart containers inside running Pods, and the OpenKruise API, in one executable.

pub mod budgets;
pub mod cli;
pub mod controllers;
pub mod cri;
pub mod daemon;
pub mod domain;
pub mod k8s;
pub mod manifests;
pub mod plugin;
pub mod pull_secrets;
pub mod reference;
pub mod roles;
pub mod runtime;
pub mod webhook;

#[doc(inline)]
pub use kruise_rs_api as api;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod docs;

#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "the end-to-end tests include this file as well")]
mod liveness;

#[cfg(test)]
mod supply_chain;

#[cfg(test)]
mod tidy;

#[cfg(test)]
mod simulation;
