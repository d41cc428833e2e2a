//! cri
pub mod proto;
