//! Where a runtime's socket may be.

use std::path::{Path, PathBuf};

/// Where our manifests mount the node's `/run` directories.
pub const HOST_RUN: &str = "/hostvarrun";

/// Places to look at below the run directory. All that answer are used; of two runtimes with the same name the first.
const CANDIDATES: [&str; 7] = [
    "containerd.sock",
    "containerd/containerd.sock",
    "k3s/containerd/containerd.sock", // k3s and rke2
    "crio.sock",
    "crio/crio.sock",
    "cri-dockerd.sock",
    "cri-dockerd/cri-dockerd.sock",
];

/// The sockets to try. `socket_file` (the flag `--socket-file`) names the only one: below the run directory, or
/// anywhere if it is absolute.
pub fn candidates(run_dir: &Path, socket_file: Option<&str>) -> Vec<PathBuf> {
    match socket_file {
        // `join` takes an absolute path as it is.
        Some(file) if !file.is_empty() => vec![run_dir.join(file)],
        _ => CANDIDATES.iter().map(|c| run_dir.join(c)).collect(),
    }
}

/// Whether the runtime's container events may be subscribed to without taking them from kubelet.
///
/// containerd before 2.0 hands each event to a single subscriber (1.7) or has none (1.6); cri-dockerd has none.
pub fn events_are_shared(runtime: &str, version: &str) -> bool {
    let major = version.trim_start_matches('v').split('.').next().and_then(|m| m.parse::<u32>().ok());
    match runtime {
        "containerd" => major.is_some_and(|m| m >= 2),
        "cri-o" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e16_sockets_in_sub_directories_and_of_k3s_are_found() {
        let all = candidates(Path::new("/hostvarrun"), None);
        for want in ["crio/crio.sock", "cri-dockerd/cri-dockerd.sock", "k3s/containerd/containerd.sock"] {
            assert!(all.contains(&Path::new("/hostvarrun").join(want)), "{want}");
        }
    }

    #[test]
    fn socket_file_names_the_only_socket() {
        assert_eq!(candidates(Path::new("/hostvarrun"), Some("a/b.sock")), [PathBuf::from("/hostvarrun/a/b.sock")]);
        assert_eq!(candidates(Path::new("/hostvarrun"), Some("/x/b.sock")), [PathBuf::from("/x/b.sock")]);
        assert_eq!(candidates(Path::new("/hostvarrun"), Some("")).len(), CANDIDATES.len());
    }

    #[test]
    fn events_only_where_they_are_not_stolen_from_kubelet() {
        for (runtime, version, shared) in [
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "v1.7.27", false),
            ("containerd", "v2.0.5", true),
            ("containerd", "2.1.0", true),
            ("containerd", "weird", false),
            ("cri-o", "1.32.1", true),
            ("docker", "28.0", false),
        ] {
            assert_eq!(events_are_shared(runtime, version), shared, "{runtime} {version}");
        }
    }
}
