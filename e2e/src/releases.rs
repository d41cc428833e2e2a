//! Kubernetes and containerd as Go modules, in the versions of a pair.
//!
//! Their `go.mod` is not kept: it follows from the version alone. `k8s.io/kubernetes` v1.X.Y goes with v0.X.Y of each module
//! in its staging directory, and what else they need in which version, `go` finds out in one way only (minimal version
//! selection). The checksums are kept in `tools/NAME/VERSION.sum`: `go` compares what it has downloaded with them, and a module
//! that is not in the list is an error here.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::cmd::{CommandExt, cmd, tail};
use crate::go_build::Build;
use crate::paths::Paths;
use crate::versions::{Pair, Release, releases};

/// The list of checksums that is kept of a release.
fn checksums(paths: &Paths, release: &Release) -> PathBuf {
    paths.repo.join("e2e/tools").join(release.product).join(format!("{}.sum", release.version))
}

/// Builds the programs of a release, unless they are there.
pub fn provide(paths: &Paths, release: &Release) -> Result<()> {
    let kept = checksums(paths, release);
    let sums = fs::read_to_string(&kept).with_context(|| format!("read {}", kept.display()))?;
    let into = paths.release(release);
    let (stamp, flags) = (into.join(".made-of"), release.flags());
    let made_of = format!("{} v{} {:?} {flags}\n{sums}", release.module, release.version, release.tags);
    let there = release.programs.iter().all(|program| into.join(program).exists());
    if there && fs::read_to_string(&stamp).is_ok_and(|before| before == made_of) {
        return Ok(());
    }
    let sources = resolve(paths, release, &sums)?;
    let resolved = fs::read_to_string(sources.join("go.sum"))?;
    ensure!(
        resolved == sums,
        "{} {} needs modules whose checksums are not in {}: {}\n`e2e checksums` writes the file anew",
        release.module,
        release.version,
        kept.display(),
        unknown(&sums, &resolved)
    );
    let (programs, import, tags) = (release.programs, release.import, release.tags);
    println!("building {}, which takes minutes the first time", release.name());
    Build { sources, into, programs, import, tags, flags }.run()?;
    Ok(fs::write(stamp, made_of)?)
}

/// Writes the checksums of every release of these pairs anew, for a list that has changed. What is downloaded is compared with
/// Go's public checksum database.
pub fn record_checksums(paths: &Paths, pairs: &[&Pair]) -> Result<()> {
    let by_name: BTreeMap<String, Release> =
        pairs.iter().flat_map(|pair| releases(pair)).map(|release| (release.name(), release)).collect();
    for release in by_name.into_values() {
        let kept = checksums(paths, &release);
        fs::create_dir_all(kept.parent().context("a file has a directory")?)?;
        let sources = resolve(paths, &release, "")?;
        fs::copy(sources.join("go.sum"), &kept)?;
        println!("{}", kept.display());
    }
    Ok(())
}

/// Makes the module, with all that its programs need in `go.mod` and their checksums in `go.sum`.
fn resolve(paths: &Paths, release: &Release, sums: &str) -> Result<PathBuf> {
    let sources = paths.cluster.join("modules").join(release.name());
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources)?;
    fs::write(sources.join("go.mod"), format!("module {}\n", module_name(release)))?;
    fs::write(sources.join("go.sum"), sums)?;
    let go = |args: &[&str]| -> Result<String> {
        let answer = cmd("go", args).current_dir(&sources).env("CGO_ENABLED", "0").answer()?;
        if !answer.ok {
            bail!("go {} in {}:\n{}", args.join(" "), sources.display(), tail(&answer.stderr, 10));
        }
        Ok(answer.stdout)
    };
    let wanted = format!("{}@v{}", release.module, release.version);
    let theirs = go(&["list", "-m", "-f", "{{.GoMod}}", &wanted])?;
    let theirs = fs::read_to_string(theirs.trim()).with_context(|| format!("read {}", theirs.trim()))?;
    fs::write(sources.join("go.mod"), go_mod(release, &theirs)?)?;
    let programs: Vec<String> = release.programs.iter().map(|program| release.import.replace("{}", program)).collect();
    let mut args = vec!["list", "-mod=mod", "-deps", "-tags", release.tags, "-f", "{{with .Error}}{{.}}{{end}}"];
    args.extend(programs.iter().map(String::as_str));
    go(&args)?;
    Ok(sources)
}

fn module_name(release: &Release) -> String {
    format!("kruise-rs.test/{}", release.product)
}

/// The module that needs nothing but this release, from the `go.mod` of the release.
fn go_mod(release: &Release, theirs: &str) -> Result<String> {
    let go = theirs.lines().find(|line| line.starts_with("go ")).context("a go.mod names its version of Go")?;
    let mut text =
        format!("module {}\n\n{go}\n\nrequire {} v{}\n", module_name(release), release.module, release.version);
    let staged = theirs.lines().filter_map(|line| {
        let (name, place) = line.trim().trim_start_matches("replace ").split_once(" => ")?;
        place.starts_with("./staging/").then_some(name)
    });
    for name in staged {
        let version = release.version.strip_prefix("1.").context("Kubernetes is at 1.x")?;
        text += &format!("\nreplace {name} => {name} v0.{version}\n");
    }
    Ok(text)
}

/// The lines that are new, a few of them.
fn unknown(kept: &str, now: &str) -> String {
    let new: Vec<&str> = now.lines().filter(|line| !kept.lines().any(|old| old == *line)).collect();
    let names: Vec<String> = new.iter().map(|l| l.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    match names.as_slice() {
        [] => "none, but some are not needed any more".into(),
        few if few.len() <= 5 => few.join(", "),
        many => format!("{} and {} others", many[..4].join(", "), many.len() - 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::PAIRS;

    fn release(pair: &str, product: &str) -> Release {
        let pair = crate::versions::named(pair).unwrap();
        releases(pair).into_iter().find(|release| release.product == product).unwrap()
    }

    #[test]
    fn a_staged_module_of_kubernetes_goes_with_its_version() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
                      replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n\
                      \texample.com/x => ./elsewhere\n)\nreplace k8s.io/one => ./staging/src/k8s.io/one\n";
        assert_eq!(
            go_mod(&release("1.37+2", "kubernetes"), theirs).unwrap(),
            "module kruise-rs.test/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.37.2\n\n\
             replace k8s.io/api => k8s.io/api v0.37.2\n\nreplace k8s.io/kms => k8s.io/kms v0.37.2\n\n\
             replace k8s.io/one => k8s.io/one v0.37.2\n"
        );
        assert!(go_mod(&release("1.37+2", "kubernetes"), "module x\n").is_err(), "without a version of Go");
    }

    #[test]
    fn containerd_is_built_for_pairs_of_its_second_version_alone() {
        let names: Vec<Vec<String>> =
            PAIRS.iter().map(|pair| releases(pair).iter().map(Release::name).collect()).collect();
        assert_eq!(names[2], ["kubernetes-1.34.4"]);
        assert_eq!(names[5], ["kubernetes-1.37.2", "containerd-2.4.2"]);
        let theirs = "module github.com/containerd/containerd/v2\n\ngo 1.26.6\n";
        assert_eq!(
            go_mod(&release("1.34+2", "containerd"), theirs).unwrap(),
            "module kruise-rs.test/containerd\n\ngo 1.26.6\n\nrequire github.com/containerd/containerd/v2 v2.4.2\n"
        );
    }

    #[test]
    fn checksums_of_every_release_are_kept_and_name_it() {
        let paths = Paths::default();
        for release in PAIRS.iter().flat_map(releases) {
            let sums = fs::read_to_string(checksums(&paths, &release)).unwrap();
            for kind in ["", "/go.mod"] {
                let line = format!("{} v{}{kind} h1:", release.module, release.version);
                assert!(sums.lines().any(|l| l.starts_with(&line)), "{}: {line}", release.name());
            }
        }
    }

    #[test]
    fn checksums_that_are_not_known_are_named() {
        assert_eq!(unknown("a v1 h1:x\n", "a v1 h1:x\nb v1 h1:y\nc v2/go.mod h1:z\n"), "b v1, c v2/go.mod");
        assert_eq!(unknown("a v1 h1:x\nb v1 h1:y\n", "a v1 h1:x\n"), "none, but some are not needed any more");
        let many: String = (0..7).map(|i| format!("m{i} v1 h1:x\n")).collect();
        assert_eq!(unknown("", &many), "m0 v1, m1 v1, m2 v1, m3 v1 and 3 others");
    }
}
