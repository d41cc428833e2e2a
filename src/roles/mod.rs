//! Composition roots: arguments -> clients -> tasks. No logic.

pub mod all;
pub mod daemon;
pub mod manager;
pub mod webhook;
