//! Images on nodes ahead of time: what a job wants of which node, when an entry of a NodeImage goes, and what the status
//! of a job says.
//!
//! [`job`] decides for one ImagePullJob which nodes begin next, [`node`] what stands in one NodeImage, [`list`] which
//! ImagePullJobs an ImageListPullJob has. [`rules`] is what admission and controllers refuse, [`share`] what one namespace
//! may take of a node.

pub mod job;
pub mod list;
pub mod node;
pub mod rules;
pub mod share;
