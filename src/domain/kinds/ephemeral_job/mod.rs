//! EphemeralJobs: what a job asks for ([`spec`]), which Pods get the containers now ([`plan`]), how far the containers of a
//! Pod are ([`state`]), and what the status says ([`status`]).
//!
//! What has ended in a Pod is final, so it is remembered by the Pod's UID and stays counted when the Pod goes. After a
//! restart of the manager the recorded counts stand for the Pods that have gone until then.

pub mod memory;
pub mod plan;
pub mod spec;
pub mod state;
mod status;

pub use self::status::for_newer_generation;

#[cfg(test)]
mod tests;
