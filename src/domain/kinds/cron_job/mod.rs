//! AdvancedCronJob: when a job is made from its template, and which of its jobs are kept.
//!
//! [`schedule`] says which moments a schedule means, [`spec`] reads the stored object, [`plan`] decides what is to be done now,
//! [`make`] writes a job, [`status`] is what is recorded.
//!
//! A run is known by its slot, the moment for which it was planned. The name of its job follows from the slot, so that it
//! cannot be made twice; the newest slot of all jobs and of the status is never gone back behind.

pub mod make;
pub mod plan;
pub mod schedule;
pub mod spec;
pub mod status;
