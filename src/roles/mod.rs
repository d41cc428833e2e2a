//! Composition roots: arguments -> clients -> tasks. No logic.

pub mod daemon;
pub mod manager;
pub mod webhook;
