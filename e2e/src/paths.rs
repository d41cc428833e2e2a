//! Where everything lies.

use std::path::{Path, PathBuf};

use crate::versions::{self, Pair, Release, releases};

/// Sockets and kubelet's files: a short path, because a unix socket's path has at most 107 characters.
pub const RUN: &str = "/run/kruise-e2e";
pub const BRIDGE: &str = "cni-e2e";
pub const NODE: &str = "node-a";
pub const POD_CIDR: &str = "10.244.0.0/23";
pub const API_PORT: u16 = 6443;
pub const ETCD_PORT: u16 = 2379;
pub const REGISTRY_PORT: u16 = 5050;
/// The same images, for [`crate::config::PULLER`] alone; the runtime knows it as `private.example`.
pub const PRIVATE_PORT: u16 = 5051;
/// [`crate::registry_proxy`]; the runtime knows it as `faulty.example`.
pub const FAULTY_PORT: u16 = 5052;
/// The namespace kruise-rs is installed in.
pub const SYSTEM: &str = "kruise-system";

#[derive(Debug, Clone)]
pub struct Paths {
    /// The repository.
    pub repo: PathBuf,
    /// `.cluster`: the programs of Kubernetes and etcd, kept from one run to the next.
    pub cluster: PathBuf,
    /// Everything of one run of the cluster; removed by `down`.
    pub state: PathBuf,
    /// The versions of Kubernetes and containerd.
    pub pair: &'static Pair,
}

impl Default for Paths {
    /// Of the cluster that is there, and of the usual pair when there is none.
    fn default() -> Self {
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let crate_dir = crate_dir.canonicalize().unwrap_or_else(|_| crate_dir.to_path_buf());
        let repo = crate_dir.parent().expect("the crate lies in the repository").to_path_buf();
        let cluster = repo.join(".cluster");
        let state = std::env::var_os("KRUISE_E2E_STATE").map(PathBuf::from).unwrap_or_else(|| cluster.join("state"));
        let pair = versions::recorded(&state).unwrap_or_else(versions::usual);
        Self { repo, cluster, state, pair }
    }
}

impl Paths {
    /// For a cluster of these versions.
    pub fn of(pair: &'static Pair) -> Self {
        Self { pair, ..Self::default() }
    }
    /// The programs that all pairs have in common.
    pub fn programs(&self) -> PathBuf {
        self.cluster.join("bin")
    }
    /// A program of Kubernetes in the version of the pair, or one that all pairs have in common.
    pub fn bin(&self, program: &str) -> PathBuf {
        let release = releases(self.pair).into_iter().find(|release| release.programs.contains(&program));
        release.map_or_else(|| self.programs(), |release| self.release(&release)).join(program)
    }
    /// The programs of one release of Kubernetes or containerd.
    pub fn release(&self, release: &Release) -> PathBuf {
        self.programs().join(release.name())
    }
    /// The directories of all that was built for this cluster, for `PATH`.
    pub fn search(&self) -> Vec<PathBuf> {
        let built = releases(self.pair);
        built.iter().map(|release| self.release(release)).chain([self.programs()]).collect()
    }
    /// A program of containerd: the one that was built, or the name of Debian's.
    pub fn runtime(&self, program: &str) -> PathBuf {
        match self.pair.containerd {
            versions::Containerd::Debian => program.into(),
            versions::Containerd::Module(_) => self.bin(program),
        }
    }
    pub fn kubeconfig(&self) -> PathBuf {
        std::env::var_os("KRUISE_E2E_KUBECONFIG")
            .map(PathBuf::from)
            .unwrap_or_else(|| self.state.join("admin.kubeconfig"))
    }
    pub fn kubectl_cache(&self) -> PathBuf {
        self.state.join("kubectl-cache")
    }
    pub fn logs(&self) -> PathBuf {
        self.state.join("log")
    }
    /// How long each test took, a line for each.
    pub fn durations(&self) -> PathBuf {
        self.state.join("durations")
    }
    /// The logs of the cluster that was removed last.
    pub fn kept_logs(&self) -> PathBuf {
        self.cluster.join("last-logs")
    }
    pub fn static_pods(&self) -> PathBuf {
        self.state.join("static-pods")
    }
    /// The executable that is in the image. Static, so it runs here too.
    pub fn product_executable(&self) -> PathBuf {
        self.repo.join("target/image/context/kruise-rs")
    }
    /// The docker-archive of kruise-rs that `image` writes and `deploy` imports.
    pub fn product_image(&self) -> PathBuf {
        self.repo.join("target/image/kruise-rs.tar")
    }
}

/// The directory of containerd's socket, which the daemon mounts.
pub fn containerd_dir() -> PathBuf {
    Path::new(RUN).join("containerd")
}

pub fn containerd_socket() -> PathBuf {
    containerd_dir().join("containerd.sock")
}
