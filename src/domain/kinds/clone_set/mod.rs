//! The rules of CloneSet: what one pass over it does, and what it says of itself. Their controller comes later; other
//! kinds share the order of Pods and the updates in place.

pub mod diff;
pub mod make;
pub mod one_update;
pub mod plan;
pub mod pre_download;
pub mod room;
pub mod scale;
pub mod status;
pub mod update;
