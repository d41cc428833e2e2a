//! Generated from `proto/cri/v1/api.proto` at build time.
#![allow(missing_docs, unreachable_pub, clippy::all)]
tonic::include_proto!("runtime.v1");
