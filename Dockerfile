# The image of kruise-rs: one static executable and nothing else.
#
#   docker build -t kruise-rs .                                  builds it from source
#   make image                                                   puts an executable built outside into it (`prebuilt`)

FROM scratch AS base
LABEL org.opencontainers.image.title="kruise-rs" org.opencontainers.image.licenses="Apache-2.0"
# Manager and webhook need no user of their own. The daemon's DaemonSet asks for root itself: the runtime's socket is root's.
USER 65532:65532
ENTRYPOINT ["/kruise-rs"]

# the context of this stage holds the executable alone
FROM base AS prebuilt
COPY --chmod=0755 kruise-rs /kruise-rs

# The digest is that of the index for all architectures. release.yml builds in the same image; src/supply_chain.rs
# compares the two.
FROM docker.io/library/rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY e2e e2e
COPY src src
# with an explicit target the flag leaves build scripts and derive macros alone
RUN host=$(rustc -vV | sed -n 's/^host: //p') \
 && case "$host" in x86_64-unknown-linux-gnu) fold=",'-C','link-arg=-Wl,--icf=all'" ;; esac \
 && cargo build --release --locked --bin kruise-rs --target "$host" \
      --config "target.$host.rustflags=['-C','target-feature=+crt-static','-C','force-frame-pointers=yes','-C','link-arg=-Wl,-z,pack-relative-relocs'${fold:-}]" \
 && cp "target/$host/release/kruise-rs" /kruise-rs

FROM base
COPY --from=build /kruise-rs /kruise-rs
