//! The pairs of Kubernetes and containerd that kruise-rs is tested with: the one list that the harness, `make versions` and
//! docs/versions.md go by.
//!
//! Kubernetes is built from its Go modules; containerd is Debian's package, or built from its Go module. Kubernetes 1.36 and
//! later do not support containerd 1.6.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};

/// Where containerd comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containerd {
    /// The package of Debian 12, which is 1.6.
    Debian,
    /// The Go module `github.com/containerd/containerd/v2` in this version.
    Module(&'static str),
}

/// One pair that is tested.
#[derive(Debug, PartialEq, Eq)]
pub struct Pair {
    /// As `KUBE=` names it.
    pub kube: &'static str,
    /// The version of `k8s.io/kubernetes`, without `v`.
    pub kubernetes: &'static str,
    pub containerd: Containerd,
    /// Why it cannot run on the machine that tests.
    pub impossible: Option<&'static str>,
}

const fn pair(kube: &'static str, kubernetes: &'static str, containerd: Containerd) -> Pair {
    Pair { kube, kubernetes, containerd, impossible: None }
}

const V2: Containerd = Containerd::Module("2.4.2");

/// Every pair, in the order of the table that `make versions` prints.
pub static PAIRS: [Pair; 6] = [
    pair("1.30", "1.30.14", Containerd::Debian),
    // a later one cannot be had: v0.32.13 of its module endpointslice is missing from Go's module proxy
    pair("1.32", "1.32.2", Containerd::Debian),
    pair("1.34", "1.34.4", Containerd::Debian),
    pair("1.34", "1.34.4", V2),
    pair("1.36", "1.36.3", V2),
    pair("1.37", "1.37.2", V2),
];

/// The pair of `make test`, and of every command that is not told another one.
pub fn usual() -> &'static Pair {
    &PAIRS[2]
}

impl Pair {
    /// As `CONTAINERD=` names its containerd.
    pub fn runtime(&self) -> &'static str {
        match self.containerd {
            Containerd::Debian => "1.6",
            Containerd::Module(_) => "2",
        }
    }

    /// Both names, as they are recorded in the state directory.
    pub fn name(&self) -> String {
        format!("{}+{}", self.kube, self.runtime())
    }

    /// The version of its containerd, as the table prints it.
    pub fn runtime_version(&self) -> &'static str {
        match self.containerd {
            Containerd::Debian => "1.6 (Debian 12)",
            Containerd::Module(version) => version,
        }
    }

    /// Of 1.34, the 34.
    pub fn minor(&self) -> u32 {
        self.kube.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
    }

    /// kubelet 1.35 and later do not start on version 1 of cgroups unless they are told to. 1.30 does not know the field.
    pub fn knows_fail_cgroup_v1(&self) -> bool {
        self.minor() >= 31
    }

    /// The daemon uses the container events of containerd since 2.0.
    pub fn has_container_events(&self) -> bool {
        matches!(self.containerd, Containerd::Module(_))
    }

    /// The feature gate ContainerRestartRules, which is there since 1.34.
    pub fn has_restart_rules(&self) -> bool {
        self.minor() >= 34
    }
}

/// One release that programs are built from.
#[derive(Debug, Clone)]
pub struct Release {
    /// `kubernetes` or `containerd`.
    pub product: &'static str,
    pub module: &'static str,
    /// Without `v`.
    pub version: &'static str,
    pub programs: &'static [&'static str],
    /// The import path of a program, whose name is `{}`.
    pub import: &'static str,
    /// Build tags, by blanks.
    pub tags: &'static str,
}

/// What a pair is built from.
pub fn releases(pair: &Pair) -> Vec<Release> {
    let kubernetes = Release {
        product: "kubernetes",
        module: "k8s.io/kubernetes",
        version: pair.kubernetes,
        programs: &["kube-apiserver", "kube-controller-manager", "kubelet", "kubectl", "kube-proxy", "kube-scheduler"],
        import: "k8s.io/kubernetes/cmd/{}",
        tags: "",
    };
    let containerd = match pair.containerd {
        Containerd::Debian => None,
        Containerd::Module(version) => Some(Release {
            product: "containerd",
            module: "github.com/containerd/containerd/v2",
            version,
            programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
            import: "github.com/containerd/containerd/v2/cmd/{}",
            // they need libraries in C, and are not used here
            tags: "no_btrfs no_devmapper no_zfs",
        }),
    };
    [kubernetes].into_iter().chain(containerd).collect()
}

impl Release {
    /// The name of the directory with its programs.
    pub fn name(&self) -> String {
        format!("{}-{}", self.product, self.version)
    }

    /// For the linker: programs say their version, by which the daemon and clients go.
    pub fn flags(&self) -> String {
        match self.product {
            "kubernetes" => format!("-s -w{}", kubernetes_flags(self.version)),
            _ => format!("-s -w -X {}/version.Version={}", self.module, self.version),
        }
    }
}

/// What makes a program of Kubernetes say its version.
pub fn kubernetes_flags(version: &str) -> String {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let package = "k8s.io/component-base/version";
    format!(" -X {package}.gitVersion=v{version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}")
}

/// The pairs of these names, at least one; what is absent or empty may be anything.
pub fn fitting(kube: Option<&str>, containerd: Option<&str>) -> Result<Vec<&'static Pair>> {
    let given = |name: Option<&str>| name.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let (kube, containerd) = (given(kube), given(containerd));
    if let Some(kube) = &kube {
        ensure!(PAIRS.iter().any(|p| p.kube == kube), "KUBE={kube}: allowed is one of {}", kubes());
    }
    if let Some(containerd) = &containerd {
        let known = PAIRS.iter().any(|p| p.runtime() == containerd);
        ensure!(known, "CONTAINERD={containerd}: allowed is 1.6 or 2");
    }
    let fits = |p: &&Pair| {
        kube.as_ref().is_none_or(|kube| p.kube == kube) && containerd.as_ref().is_none_or(|c| p.runtime() == c)
    };
    let found: Vec<&'static Pair> = PAIRS.iter().filter(fits).collect();
    let (kube, containerd) = (kube.unwrap_or_default(), containerd.unwrap_or_default());
    ensure!(
        !found.is_empty(),
        "KUBE={kube} CONTAINERD={containerd}: not a pair that is tested; allowed is one of {}",
        all()
    );
    Ok(found)
}

/// The pair of these names; of several that fit, the usual one.
pub fn choose(kube: Option<&str>, containerd: Option<&str>) -> Result<&'static Pair> {
    let found = fitting(kube, containerd)?;
    let usual = found.iter().find(|p| **p == usual()).copied();
    let chosen = match (usual, found.as_slice()) {
        (Some(pair), _) | (None, &[pair]) => pair,
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|p| p.kube).collect();
            bail!("CONTAINERD={}: name KUBE too, one of {}", several[0].runtime(), names.join(", "))
        }
    };
    if let Some(reason) = chosen.impossible {
        bail!("KUBE={} CONTAINERD={}: cannot run here: {reason}", chosen.kube, chosen.runtime());
    }
    Ok(chosen)
}

/// The pair with this [`Pair::name`].
pub fn named(name: &str) -> Result<&'static Pair> {
    match PAIRS.iter().find(|p| p.name() == name.trim()) {
        Some(pair) => Ok(pair),
        None => bail!("{name}: not a pair that is tested; allowed is one of {}", all()),
    }
}

fn kubes() -> String {
    let mut kubes: Vec<&str> = PAIRS.iter().map(|p| p.kube).collect();
    kubes.dedup();
    kubes.join(", ")
}

fn all() -> String {
    PAIRS.iter().map(Pair::name).collect::<Vec<_>>().join(", ")
}

/// The file in the state directory that names the pair of the cluster.
const RECORD: &str = "pair";

/// Remembers the pair of a cluster for the commands and tests that follow.
pub fn record(state: &Path, pair: &Pair) -> Result<()> {
    Ok(fs::write(state.join(RECORD), pair.name())?)
}

/// The pair of the cluster with this state, if there is one.
pub fn recorded(state: &Path) -> Option<&'static Pair> {
    named(&fs::read_to_string(state.join(RECORD)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_found_by_what_is_given() {
        for (kube, containerd, found) in [
            (None, None, "1.34+1.6"),
            (Some(""), Some(""), "1.34+1.6"),
            (Some("1.34"), None, "1.34+1.6"),
            (Some("1.34"), Some("2"), "1.34+2"),
            (Some("1.37"), None, "1.37+2"),
            (Some("1.37"), Some("2"), "1.37+2"),
            (Some(" 1.30 "), Some("1.6"), "1.30+1.6"),
            (None, Some("1.6"), "1.34+1.6"),
        ] {
            assert_eq!(choose(kube, containerd).unwrap().name(), found, "{kube:?} {containerd:?}");
        }
    }

    #[test]
    fn what_is_not_in_the_list_is_refused_with_what_is_allowed() {
        for (kube, containerd, error) in [
            (Some("1.31"), None, "KUBE=1.31: allowed is one of 1.30, 1.32, 1.34, 1.36, 1.37"),
            (Some("1.37.2"), None, "KUBE=1.37.2: allowed is one of 1.30, 1.32, 1.34, 1.36, 1.37"),
            (None, Some("1.7"), "CONTAINERD=1.7: allowed is 1.6 or 2"),
            (None, Some("2"), "CONTAINERD=2: name KUBE too, one of 1.34, 1.36, 1.37"),
            (
                Some("1.37"),
                Some("1.6"),
                "KUBE=1.37 CONTAINERD=1.6: not a pair that is tested; allowed is one of 1.30+1.6, 1.32+1.6, 1.34+1.6, \
                 1.34+2, 1.36+2, 1.37+2",
            ),
        ] {
            assert_eq!(choose(kube, containerd).unwrap_err().to_string(), error);
        }
        let names = |kube, containerd| fitting(kube, containerd).unwrap().iter().map(|p| p.name()).collect::<Vec<_>>();
        assert_eq!(names(None, Some("2")), ["1.34+2", "1.36+2", "1.37+2"], "`make versions` runs several");
        assert_eq!(names(Some("1.34"), Some("")), ["1.34+1.6", "1.34+2"]);
        assert_eq!(names(None, None).len(), PAIRS.len());
    }

    #[test]
    fn a_record_is_read_as_the_pair_that_was_written() {
        let state = std::env::temp_dir().join(format!("kruise-e2e-versions-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        let read: Vec<_> = PAIRS
            .iter()
            .map(|pair| {
                record(&state, pair).unwrap();
                recorded(&state).unwrap().name()
            })
            .collect();
        fs::write(state.join(RECORD), "1.99+9").unwrap();
        let unknown = recorded(&state);
        fs::remove_dir_all(&state).unwrap();
        assert_eq!(read, PAIRS.iter().map(Pair::name).collect::<Vec<_>>());
        assert_eq!(unknown, None, "of a list that has changed since");
    }

    #[test]
    fn settings_go_by_the_minor_version() {
        let facts: Vec<_> =
            PAIRS.iter().map(|p| (p.minor(), p.knows_fail_cgroup_v1(), p.has_restart_rules())).collect();
        assert_eq!(
            facts,
            [
                (30, false, false),
                (32, true, false),
                (34, true, true),
                (34, true, true),
                (36, true, true),
                (37, true, true)
            ]
        );
        for pair in &PAIRS {
            assert!(pair.kubernetes.starts_with(&format!("{}.", pair.kube)), "{}", pair.name());
        }
    }

    #[test]
    fn programs_say_their_version() {
        let flags = releases(named("1.30+1.6").unwrap())[0].flags();
        assert!(flags.contains("version.gitVersion=v1.30.14 ") && flags.ends_with("version.gitMinor=30"), "{flags}");
        let flags = releases(named("1.36+2").unwrap())[1].flags();
        assert_eq!(flags, "-s -w -X github.com/containerd/containerd/v2/version.Version=2.4.2");
    }
}
