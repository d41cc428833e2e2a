//! What all kinds that own Pods share.

pub mod revisions;
