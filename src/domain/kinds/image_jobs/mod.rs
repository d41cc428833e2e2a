//! Images on nodes ahead of time: which nodes a job selects, when an entry of a NodeImage is removed, and the status of a
//! job.
//!
//! [`job`] decides for one ImagePullJob which nodes begin next, [`node`] decides the spec of one NodeImage, [`list`] which
//! ImagePullJobs an ImageListPullJob has. [`rules`] is what admission and controllers refuse, [`share`] limits what one
//! namespace may use of a node.

pub mod job;
pub mod list;
pub mod list_spec;
pub mod node;
pub mod rules;
pub mod share;
