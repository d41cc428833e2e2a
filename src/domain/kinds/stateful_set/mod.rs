//! The rules of the Advanced StatefulSet: which ordinals there are, what one pass does, what becomes of claims, and what
//! the set says of itself.
//!
//! ```text
//! StatefulSet ──spec.rs──▶ Spec (normalised) ──┐
//! PodView ──────pod.rs───▶ Pod ────────────────┼─▶ pass.rs: scale.rs, then update.rs ─▶ Plan ─▶ the controller
//! claims ───────claims.rs▶ Claim ──────────────┘
//!                                              └─▶ status.rs
//! ```

pub mod claim_template;
pub mod claims;
pub mod make;
pub mod order;
pub mod pass;
pub mod plan;
pub mod pod;
pub mod pre_download;
pub mod room;
mod scale;
pub mod spec;
pub mod status;
mod update;

pub use crate::domain::workload::numbering;

#[cfg(test)]
mod tests;
