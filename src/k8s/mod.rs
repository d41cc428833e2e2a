//! PURE Kubernetes vocabulary: compact views of core objects and predicates over them. No clock, no client.

pub mod amount;
pub mod certificate;
pub mod image;
pub mod merge_patch;
pub mod name;
pub mod pod;
pub mod rbac;
pub mod selector;
pub mod shared;
pub mod time;
