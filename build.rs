//! Compiles the definitions of the runtime's interfaces and of the API server's answers to `OUT_DIR` without needing
//! `protoc`. Writes nothing into the tree.

fn main() -> anyhow::Result<()> {
    let protos =
        ["proto/cri/v1/api.proto", "proto/containerd/content/v1/content.proto", "proto/kubernetes/v1/objects.proto"];
    for proto in protos {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure().bytes(".kubernetes.v1").compile_fds(descriptors)?;
    Ok(())
}
