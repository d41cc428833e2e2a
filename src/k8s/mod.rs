//! PURE Kubernetes vocabulary: compact views of core objects and predicates over them. No clock, no client.

pub mod account;
pub mod bounded_json;
pub mod canonical_json;
pub mod certificate;
pub mod claim;
pub mod conditions;
pub mod container_id;
#[cfg(test)]
pub(crate) mod damage;
pub mod hash;
pub mod image;
pub mod int_or_percent;
pub mod invalid;
pub mod limits;
pub mod members;
pub mod merge_patch;
pub mod name;
pub mod node;
pub mod node_image;
pub mod null;
pub mod owner;
pub mod path;
pub mod pod;
pub mod pod_template;
pub mod pointer;
pub mod process_hash;
pub mod protobuf;
pub mod quantity;
pub mod rbac;
pub mod revision;
pub mod selector;
pub mod shared;
pub mod strategic_merge;
pub mod time;
pub mod zones;
