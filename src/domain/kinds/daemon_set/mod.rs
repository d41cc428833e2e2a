//! The rules of the Advanced DaemonSet: which nodes have a Pod, what one pass does, and what the set says of itself.

pub mod placement;
pub mod spec;
