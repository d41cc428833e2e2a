//! The Container Runtime Interface: finding a runtime's socket, talking to it, and a fake of it for tests.
//!
//! LEAF: imports nothing of ours. Only CRI v1; only the calls that some role makes.

pub mod client;
pub mod content;
pub mod endpoint;
pub mod exec;
#[cfg(any(test, feature = "load"))]
pub mod fake;
pub mod proto;
pub mod types;
