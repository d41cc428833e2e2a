//! What all kinds that own Pods share: what they write into the objects that they make, and the arithmetic of roll-outs.

pub mod allocation;
pub mod claims;
pub mod conditions;
pub mod make;
pub mod numbering;
pub mod overrides;
pub mod owner;
pub mod pod_order;
pub mod pre_download;
pub mod revisions;
pub mod rollout;
pub mod status;
pub mod steps;
pub mod subset;
pub mod target;
pub mod turns;
pub mod update_order;
