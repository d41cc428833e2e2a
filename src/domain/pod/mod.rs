//! One Pod: its readiness, its lifecycle state, its update in place, its order among others.

pub mod available;
pub mod environment;
pub mod inplace;
pub mod launch_priority;
pub mod lifecycle;
pub mod order;
pub mod placement;
pub mod readiness;
pub mod refresh;
pub mod requests;
pub mod runtime_meta;
pub mod sidecar_terminator;
pub mod unplaced;
