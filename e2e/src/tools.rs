//! What a new machine lacks: Debian packages, and programs that are built as ordinary Go tools: etcd and others from the
//! modules pinned in `tools/*/go.mod`, Kubernetes and containerd in the versions of a pair ([`releases`]). Everything that
//! is there already is left alone within a second.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::clients;
use crate::cmd::{CommandExt, cmd};
use crate::go_build::Build;
use crate::paths::Paths;
use crate::{releases, versions};

const PACKAGES: &[&str] = &[
    "buildah",
    "busybox-static",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "docker-registry",
    "gcc",
    "iproute2",
    "iptables",
    "libc6-dev",
    "openssl",
    "runc",
    "skopeo",
];

/// What the end-to-end tests alone need.
const TEST_PACKAGES: &[&str] = &["python3-venv"];

/// A module that is kept in the repository, with its `go.mod`.
struct Module {
    dir: &'static str,
    programs: &'static [&'static str],
    /// The import path of a program; `{}` is its name, where there are several.
    import: &'static str,
    used_by: UsedBy,
}

/// Who needs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedBy {
    /// Every cluster.
    Cluster,
    /// The end-to-end tests alone.
    Tests,
    /// The figures with thousands of nodes.
    Load,
}

const MODULES: &[Module] = &[
    Module { dir: "etcd", programs: &["etcd"], import: "go.etcd.io/etcd/server/v3", used_by: UsedBy::Cluster },
    // the last kubectl that takes every DaemonSet that owns a Pod for one of apps/v1
    Module {
        dir: "kubectl-1.33",
        programs: &["kubectl-1.33"],
        import: "k8s.io/kubernetes/cmd/kubectl",
        used_by: UsedBy::Tests,
    },
    Module { dir: "argocd", programs: &["argocd-health"], import: ".", used_by: UsedBy::Tests },
    Module { dir: "helm", programs: &["helm"], import: "helm.sh/helm/v4/cmd/helm", used_by: UsedBy::Tests },
    Module {
        dir: "vpa",
        programs: &["vpa-updater"],
        import: "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater",
        used_by: UsedBy::Tests,
    },
    Module { dir: "kwok", programs: &["kwok"], import: "sigs.k8s.io/kwok/cmd/kwok", used_by: UsedBy::Load },
];

/// Installs and builds what a cluster and these others need and is missing, Kubernetes and containerd as the pair says.
pub fn install(paths: &Paths, others: &[UsedBy]) -> Result<()> {
    packages()?;
    for module in MODULES.iter().filter(|m| m.used_by == UsedBy::Cluster || others.contains(&m.used_by)) {
        build_module(paths, module)?;
    }
    for release in versions::releases(paths.pair) {
        releases::provide(paths, &release)?;
    }
    if others.contains(&UsedBy::Tests) {
        promtool(paths)?;
        debian(TEST_PACKAGES)?;
        clients::install(paths)?;
    }
    Ok(())
}

/// Builds the program that runs health checks as Argo CD does.
pub fn argocd_health(paths: &Paths) -> Result<()> {
    MODULES.iter().filter(|module| module.dir == "argocd").try_for_each(|module| build_module(paths, module))
}

/// Takes promtool out of Debian's package of Prometheus, which is not installed: installing it would start a server.
pub fn promtool(paths: &Paths) -> Result<()> {
    let program = paths.bin("promtool");
    if program.exists() {
        return Ok(());
    }
    let folder = paths.cluster.join("prometheus");
    fs::create_dir_all(&folder)?;
    fs::create_dir_all(paths.bin(""))?;
    // The lists of packages may be older than the package that they name.
    let download = || cmd("apt-get", ["download", "-q", "prometheus"]).current_dir(&folder).text();
    if download().is_err() {
        cmd("apt-get", ["update", "-q"]).text()?;
        download()?;
    }
    let files = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
    let package = files.iter().map(|file| file.path()).find(|path| path.extension().is_some_and(|e| e == "deb"));
    let package = package.context("apt-get download prometheus: no package came")?;
    cmd("dpkg-deb", ["-x"]).arg(&package).arg(&folder).text()?;
    fs::copy(folder.join("usr/bin/promtool"), &program)?;
    fs::remove_dir_all(folder)?;
    println!("took promtool out of the package prometheus");
    Ok(())
}

/// Installs the Debian packages of a cluster that are missing.
pub fn packages() -> Result<()> {
    debian(PACKAGES)
}

/// Installs the browser that looks at the site.
pub fn chromium() -> Result<()> {
    debian(&["chromium", "fonts-dejavu-core"])
}

fn debian(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|p| !is_installed(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if Path::new("/etc/debian_version").exists() {
        println!("apt-get install {}", missing.join(" "));
    } else {
        bail!("this is not Debian; install what these packages hold, by hand: {}", missing.join(" "));
    }
    let apt = |args: &[&str]| {
        let mut command = cmd("apt-get", args);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.text()
    };
    apt(&["update", "-q"])?;
    let mut args = vec!["install", "-q", "-y", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args)?;
    Ok(())
}

fn is_installed(package: &str) -> bool {
    cmd("dpkg-query", ["-W", "-f", "${db:Status-Status}", package])
        .answer()
        .is_ok_and(|a| a.ok && a.stdout == "installed")
}

fn build_module(paths: &Paths, module: &Module) -> Result<()> {
    let sources = paths.repo.join("e2e/tools").join(module.dir);
    let pinned = fs::read_to_string(sources.join("go.mod")).with_context(|| format!("read {}", sources.display()))?;
    // what was built is remembered as the go.mod it was built from, and a program of our own as its source too
    let pinned = pinned + &fs::read_to_string(sources.join("main.go")).unwrap_or_default();
    let stamp = paths.bin(&format!(".{}.go.mod", module.dir));
    let there = module.programs.iter().all(|p| paths.bin(p).exists());
    if there && fs::read_to_string(&stamp).is_ok_and(|built| built == pinned) {
        return Ok(());
    }
    let version = version_of(&pinned, "k8s.io/kubernetes");
    let flags = version.map(|version| versions::kubernetes_flags(version.trim_start_matches('v'))).unwrap_or_default();
    let build = Build {
        sources,
        into: paths.programs(),
        programs: module.programs,
        import: module.import,
        tags: "",
        flags: format!("-s -w{flags}"),
    };
    build.run()?;
    fs::write(stamp, pinned)?;
    Ok(())
}

fn version_of(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        let version = line.strip_prefix(module)?.strip_prefix(' ')?;
        Some(version.split_whitespace().next()?.to_owned()).filter(|v| v.starts_with('v'))
    })
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn the_version_is_that_of_the_module_and_not_of_one_with_a_longer_name() {
        let text = "require (\n\tk8s.io/kubernetes/x v0.1.0 // indirect\n\tk8s.io/kubernetes v1.2.3 // indirect\n)";
        assert_eq!(version_of(text, "k8s.io/kubernetes").as_deref(), Some("v1.2.3"));
        assert_eq!(version_of(text, "k8s.io/other"), None);
    }
}
