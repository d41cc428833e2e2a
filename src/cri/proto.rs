//! Generated from `proto/` at build time.
#![allow(missing_docs, unreachable_pub, clippy::all)]
tonic::include_proto!("runtime.v1");

/// containerd's content service.
pub mod content {
    tonic::include_proto!("containerd.services.content.v1");
}
