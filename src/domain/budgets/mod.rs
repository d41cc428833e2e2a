//! How many Pods may be out of service at a time.

pub mod disruption;
pub mod unavailable;
