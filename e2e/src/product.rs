//! The image of kruise-rs: a static executable built by cargo, put into an empty image by buildah.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cmd::{CommandExt, cmd, tail};
use crate::images::sha256;
use crate::paths::Paths;
use crate::sbom;

/// `docker.io/kruise-rs/kruise-rs:vVERSION`, the version being this workspace's.
pub fn reference() -> String {
    format!("docker.io/kruise-rs/kruise-rs:v{}", env!("CARGO_PKG_VERSION"))
}

/// Builds the static executable from the sources in `repo`. Neither the place of the sources nor that of cargo's files is
/// in it: the same sources and compiler give the same bytes.
pub fn executable(repo: &Path, target: &Path, profile: &str) -> Result<PathBuf> {
    let host = host()?;
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))?;
    // With an explicit target the flag holds for the executable only; build scripts and derive macros cannot be static.
    // Set this way and not by RUSTFLAGS, it also leaves the other builds' artefacts valid. Packed relocations: all of them
    // are read at start, so they count as memory in use, and packed they are a fortieth. Frame pointers: without them the
    // unwinding tables follow every push and pop, and the program is 4 % larger. Of functions with the same code one is kept:
    // 3 % of the program. GNU's linker, which Rust uses for other targets, cannot do that.
    let fold = if host == "x86_64-unknown-linux-gnu" { "'-C','link-arg=-Wl,--icf=all'," } else { "" };
    let flags = format!(
        "target.{host}.rustflags=['-C','target-feature=+crt-static','-C','force-frame-pointers=yes',\
         '-C','link-arg=-Wl,-z,pack-relative-relocs',{fold}\
         '--remap-path-prefix={}=/kruise-rs','--remap-path-prefix={home}=/cargo',\
         '--remap-path-prefix={}=/target']",
        repo.display(),
        target.display()
    );
    cmd("cargo", ["build", "--profile", profile, "--locked", "--package", "kruise-rs", "--bin", "kruise-rs"])
        .args(["--target", &host, "--config", &flags])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(repo)
        .show()?;
    Ok(target.join(host).join(profile).join("kruise-rs"))
}

fn host() -> Result<String> {
    let version = cmd("rustc", ["-vV"]).text()?;
    version.lines().find_map(|l| l.strip_prefix("host: ")).map(str::to_owned).context("rustc names no host")
}

/// Of what the image and the list beside it are made.
fn made_of(paths: &Paths, executable: &Path) -> Result<String> {
    let mut text = reference();
    for file in [executable, &paths.repo.join("Dockerfile"), &paths.repo.join("Cargo.lock")] {
        text += &format!(" {}", sha256(file)?);
    }
    Ok(text)
}

/// Builds the static executable and the image, as a docker-archive in target/image/kruise-rs.tar, and beside it the list
/// of what the executable is made of. An image of the same executable is left as it is.
pub fn build(paths: &Paths) -> Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths.repo.join("target"), Into::into);
    let profile = std::env::var("KRUISE_E2E_PROFILE").unwrap_or_else(|_| "release".into());
    let executable = executable(&paths.repo, &target, &profile)?;

    let dir = paths.product_image().parent().context("the image has a directory")?.to_path_buf();
    let (made_of, stamp) = (made_of(paths, &executable)?, dir.join("made-of"));
    if paths.product_image().exists() && fs::read_to_string(&stamp).is_ok_and(|before| before == made_of) {
        println!("{}  is that of the executable", paths.product_image().display());
        return Ok(());
    }
    let _ = fs::remove_file(&stamp);
    let context = dir.join("context");
    fs::create_dir_all(&context)?;
    fs::copy(&executable, context.join("kruise-rs")).with_context(|| format!("copy {}", executable.display()))?;
    let archive = paths.product_image();
    let _ = fs::remove_file(&archive);

    // a storage of its own: nothing is left in the machine's
    let buildah = |args: &[&str]| -> Result<()> {
        let mut command = cmd("buildah", ["--root"]);
        command.arg(dir.join("storage")).arg("--runroot").arg(dir.join("run"));
        command.args(["--storage-driver", "vfs"]).args(args);
        let answer = command.current_dir(&paths.repo).answer()?;
        anyhow::ensure!(answer.ok, "{command:?} failed:\n{}{}", tail(&answer.stdout, 10), tail(&answer.stderr, 20));
        Ok(())
    };
    let context = context.display().to_string();
    buildah(&[
        "build",
        "--quiet",
        "--isolation=chroot",
        "--timestamp=0",
        "--target=prebuilt",
        "--file=Dockerfile",
        "--tag",
        &reference(),
        &context,
    ])?;
    buildah(&["push", "--quiet", &reference(), &format!("docker-archive:{}:{}", archive.display(), reference())])?;
    // the archive is all that is kept
    let _ = buildah(&["rmi", "--all", "--force"]);
    let _ = fs::remove_dir_all(dir.join("storage"));
    let _ = fs::remove_dir_all(dir.join("run"));

    let sbom = archive.with_extension("cdx.json");
    sbom::write(paths, &host()?, &executable, &sbom)?;
    fs::write(stamp, made_of)?;
    println!("{}", sbom.display());
    println!(
        "{}  {:.1} MB, executable {:.1} MB",
        archive.display(),
        fs::metadata(&archive)?.len() as f64 / 1e6,
        fs::metadata(&executable)?.len() as f64 / 1e6
    );
    Ok(())
}
