//! PURE rules that more than one role needs. No clock, no client, no `.await`: `now` is an argument.

pub mod budgets;
pub mod deletion_protection;
pub mod kinds;
pub mod node;
pub mod pod;
pub mod workload;
