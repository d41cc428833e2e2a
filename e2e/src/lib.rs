//! A real Kubernetes node on this machine, kruise-rs deployed on it from its own image and manifests, and the toolkit
//! that the end-to-end tests are written with.
//!
//! In reading order: [`paths`] says where everything lies, [`tools`] installs what a new machine lacks, [`images`]
//! makes the test images and [`product`] the image of kruise-rs, [`cluster`] starts and removes the node, [`deploy`]
//! puts kruise-rs on it, [`demo`] shows a restart, [`record`] paints its picture for the README, [`bench`], [`load`]
//! and [`scale`] measure, with what `measure` and [`audit`] have in common, [`clients`] are programs that use the API as others do, [`player`] plays the nodes for Pods by the thousand and
//! [`node_images`] those for images, [`random`] makes random histories of CloneSets and [`history`] holds them against
//! a model, [`suite`] is `make test`, and [`kit`] is for the tests. [`versions`] lists the pairs of Kubernetes and containerd
//! that a cluster may be made of, [`releases`] builds them, and [`matrix`] is `make versions`, which runs [`core_tests`] on all.
//!
//! One cluster per machine: ports, the bridge and `/run/kruise-e2e` are fixed.

#![allow(
    clippy::disallowed_methods,
    reason = "tests look at the clock; only the product's rules take `now` as an argument"
)]

mod at_once;
pub mod audit;
mod bare_stops;
pub mod bench;
mod bench_budgets;
mod bench_images;
mod bench_methods;
mod bench_probes;
pub mod bench_workload;
pub mod clients;
pub mod cluster;
pub mod cmd;
pub mod config;
pub mod core_tests;
pub mod demo;
pub mod deploy;
mod go_build;
pub mod guide;
pub mod history;
pub mod images;
pub mod kit;
#[path = "../../src/liveness.rs"]
#[allow(dead_code, unreachable_pub, reason = "the unit tests of the product include this file as well")]
mod liveness;
pub mod load;
pub mod matrix;
mod measure;
pub mod node_images;
pub mod others;
pub mod paths;
pub mod player;
pub mod process;
pub mod product;
pub mod random;
pub mod record;
pub mod registry_proxy;
pub mod releases;
pub mod reproducible;
pub mod sbom;
pub mod scale;
mod scale_images;
pub mod site;
pub mod spread_limits;
pub mod suite;
pub mod tools;
pub mod versions;
