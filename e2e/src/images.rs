//! Test images without a base image, for a machine that can pull none.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use crate::cmd::{CommandExt, cmd, ctr};
use crate::paths::{Paths, REGISTRY_PORT};

/// Ends at once on SIGTERM: the sandbox image, and the application of most tests.
pub const PAUSE: &str = "localhost/pause:e2e";
/// A shell and the usual programs. As PID 1 a shell needs `trap 'exit 0' TERM`, or a stop takes the whole grace period.
pub const BUSYBOX: &str = "docker.io/library/busybox:e2e";

/// A sidecar that hands its listening socket over to its twin (`images/relay.c`), as an image that is pulled. Tags that are
/// there: `e2e` and `v2`, which differ in their digests, and [`NO_RELAY`].
pub const RELAY: &str = "relay";
/// The tag of [`RELAY`] for the twin that is not at work.
pub const NO_RELAY: &str = "empty";

/// The same two as images that are pulled, by a name that is not Docker's: only a pulled image has a digest.
/// `pause` or `busybox`.
pub fn remote(name: &str) -> String {
    remote_tag(name, "e2e")
}

/// The same with another tag: `v2` is another image, with another digest; `same` is the one of [`remote`], with its digest.
pub fn remote_tag(name: &str, tag: &str) -> String {
    format!("registry.example/team/{name}:{tag}")
}

/// Builds the images, imports the local ones into containerd and pushes all to the loopback registry.
pub fn provide(paths: &Paths) -> Result<()> {
    let dir = paths.cluster.join("images");
    fs::create_dir_all(&dir)?;
    let (remote_pause, remote_busybox) = (remote("pause"), remote("busybox"));
    let (second_pause, second_busybox) = (remote_tag("pause", "v2"), remote_tag("busybox", "v2"));
    let (same_pause, same_busybox) = (remote_tag("pause", "same"), remote_tag("busybox", "same"));
    let [relay, second_relay, no_relay] = ["e2e", "v2", NO_RELAY].map(|tag| remote_tag(RELAY, tag));
    // The archive, the reference it is built with, and all under which it is pushed.
    for (name, reference, pushed) in [
        ("pause", PAUSE, vec![PAUSE]),
        ("busybox", BUSYBOX, vec![BUSYBOX]),
        ("remote-pause", &remote_pause, vec![&remote_pause, &same_pause]),
        ("remote-busybox", &remote_busybox, vec![&remote_busybox, &same_busybox]),
        ("second-pause", &second_pause, vec![&second_pause]),
        ("second-busybox", &second_busybox, vec![&second_busybox]),
        ("remote-relay", &relay, vec![&relay]),
        ("second-relay", &second_relay, vec![&second_relay]),
        ("no-relay", &no_relay, vec![&no_relay]),
    ] {
        let archive = dir.join(format!("{name}.tar"));
        if !archive.exists() {
            match name.rsplit('-').next() {
                Some("busybox") => busybox(&dir, reference, &archive)?,
                program => own_program(paths, &dir, program.unwrap_or(name), reference, &archive)?,
            }
        }
        if [PAUSE, BUSYBOX].contains(&reference) {
            ctr(["images", "import"]).arg(&archive).text()?;
        }
        for reference in pushed {
            let path = reference.split_once('/').map_or(reference, |(_, path)| path);
            cmd("skopeo", ["copy", "--quiet", "--dest-tls-verify=false"])
                .arg(format!("docker-archive:{}", archive.display()))
                .arg(format!("docker://127.0.0.1:{REGISTRY_PORT}/{path}"))
                .text()?;
        }
    }
    Ok(())
}

/// Pushes an image that nobody has had before, with so many random bytes, as `team/NAME:TAG`: what is pulled from one
/// repository is not downloaded again from another. Returns its digest.
pub fn push_new(paths: &Paths, name: &str, tag: &str, bytes: usize) -> Result<String> {
    // Quick to stop: as PID 1 it has no handler, and the tests do not wait for its end.
    push(paths, name, tag, bytes, &["/bin/busybox", "sleep", "600"])
}

/// The same without a program: it is good for an image volume alone.
pub fn push_data(paths: &Paths, name: &str, tag: &str, bytes: usize) -> Result<String> {
    push(paths, name, tag, bytes, &[])
}

fn push(paths: &Paths, name: &str, tag: &str, bytes: usize, command: &[&str]) -> Result<String> {
    use std::io::Read;
    let dir = paths.cluster.join("images");
    let root = empty_root(&dir, name)?;
    let mut content = Vec::with_capacity(bytes);
    fs::File::open("/dev/urandom")?.take(u64::try_from(bytes)?).read_to_end(&mut content)?;
    fs::write(root.join("content"), content)?;
    if !command.is_empty() {
        let program = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
        fs::copy(program.context("busybox-static is not installed")?, root.join("bin/busybox"))?;
    }
    let archive = dir.join(format!("{name}-{tag}.tar"));
    write(&root, &remote_tag(name, tag), command, &archive)?;
    let digest_file = archive.with_extension("digest");
    cmd("skopeo", ["copy", "--quiet", "--dest-tls-verify=false", "--digestfile"])
        .arg(&digest_file)
        .arg(format!("docker-archive:{}", archive.display()))
        .arg(format!("docker://127.0.0.1:{REGISTRY_PORT}/team/{name}:{tag}"))
        .text()?;
    fs::remove_file(&archive)?;
    let digest = fs::read_to_string(&digest_file)?;
    fs::remove_file(digest_file)?;
    Ok(digest.trim().to_owned())
}

/// One of the programs in `e2e/images`.
fn own_program(paths: &Paths, dir: &Path, name: &str, reference: &str, archive: &Path) -> Result<()> {
    let root = empty_root(dir, name)?;
    let source = paths.repo.join(format!("e2e/images/{name}.c"));
    cmd("gcc", ["-O2", "-static", "-s", "-o"]).arg(root.join(name)).arg(source).text()?;
    write(&root, reference, &[&format!("/{name}")], archive)
}

fn busybox(dir: &Path, reference: &str, archive: &Path) -> Result<()> {
    let root = empty_root(dir, "busybox")?;
    let program = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    let program = program.context("busybox-static is not installed")?;
    fs::copy(program, root.join("bin/busybox"))?;
    for applet in cmd(program, ["--list"]).text()?.lines().filter(|a| *a != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    write(&root, reference, &["/bin/sh"], archive)
}

fn empty_root(dir: &Path, name: &str) -> Result<std::path::PathBuf> {
    let root = dir.join(format!("{name}.root"));
    let _ = fs::remove_dir_all(&root);
    for part in ["bin", "tmp", "etc", "var", "run"] {
        fs::create_dir_all(root.join(part))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
    Ok(root)
}

/// One layer, one configuration, as `docker save` writes them.
fn write(root: &Path, reference: &str, command: &[&str], archive: &Path) -> Result<()> {
    let work = root.with_extension("archive");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let layer = work.join("layer.tar");
    tar(root, &layer)?;
    let config = serde_json::to_vec(&json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Cmd": command, "Env": ["PATH=/bin"], "Labels": { "ref": reference } },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer)?)] },
        "history": [{}],
    }))?;
    fs::write(work.join("config.json"), config)?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"] }]);
    fs::write(work.join("manifest.json"), serde_json::to_vec(&manifest)?)?;
    tar(&work, archive)?;
    fs::remove_dir_all(&work)?;
    fs::remove_dir_all(root)?;
    Ok(())
}

fn tar(dir: &Path, archive: &Path) -> Result<()> {
    let names: Vec<_> = fs::read_dir(dir)?.map(|e| e.map(|e| e.file_name())).collect::<Result<_, _>>()?;
    cmd("tar", ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-cf"])
        .arg(archive)
        .arg("-C")
        .arg(dir)
        .args(names)
        .text()
        .map(drop)
}

pub fn sha256(file: &Path) -> Result<String> {
    let text = cmd("sha256sum", ["--"]).arg(file).text()?;
    Ok(text.split_whitespace().next().context("sha256sum said nothing")?.to_owned())
}
