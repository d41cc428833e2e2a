//! The rules of CloneSet: what one pass over it does, and what its status says.

pub mod adopt;
pub mod diff;
pub mod make;
pub mod one_update;
pub mod plan;
pub mod pre_download;
pub mod room;
pub mod scale;
pub mod spec;
pub mod status;
pub mod update;
