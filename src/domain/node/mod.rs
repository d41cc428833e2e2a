//! What a daemon does on its node, and what the manager orders there.

pub mod backoff;
pub mod container_meta;
pub mod probes;
pub mod pull_secrets;
pub mod puller;
pub mod recreate;
mod texts;
