//! SidecarSet: which Pods get its containers, what is written into a Pod that is created, what identifies
//! it (hashes and revisions), and how Pods get to another image in place.

pub mod amount;
pub mod choice;
pub mod claims;
pub mod defaults;
pub mod expression;
pub mod hash;
pub mod inject;
pub mod matching;
pub mod metadata;
pub mod notes;
pub mod plan;
pub mod pod;
pub mod repair;
pub mod resources;
pub mod resting;
pub mod retries;
pub mod revision;
pub mod spec;
pub mod states;
pub mod status;
pub mod upgradable;
pub mod write;

#[cfg(test)]
mod tests;
