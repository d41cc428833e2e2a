//! PURE rules that more than one role needs. No clock, no client, no `.await`: `now` is an argument.

pub mod budget;
pub mod readiness;
pub mod recreate;
