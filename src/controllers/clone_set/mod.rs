//! The rules of CloneSet. Pure so far: the controller that carries them out is not part of this release.

pub mod diff;
pub mod plan;
pub mod status;
