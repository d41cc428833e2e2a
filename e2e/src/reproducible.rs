//! Whether the executable can be made again: two clean builds, in different directories, have to be equal byte by byte.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cmd::{CommandExt, cmd};
use crate::images::sha256;
use crate::paths::Paths;
use crate::product;

/// Builds twice and compares.
pub fn check(paths: &Paths) -> Result<()> {
    let base = paths.repo.join("target/reproducible");
    let dirs = ["a", "somewhere/else"].map(|name| base.join(name));
    // Both copies first: somebody may edit while the first one is built.
    for dir in &dirs {
        let _ = fs::remove_dir_all(dir);
        copy(&paths.repo, dir)?;
    }
    let mut sums = Vec::new();
    for dir in dirs {
        let executable = product::executable(&dir, &dir.join("target"), "release")?;
        sums.push(sha256(&executable)?);
        println!("{}  {}", sums[sums.len() - 1], executable.display());
    }
    ensure!(
        sums.windows(2).all(|pair| pair[0] == pair[1]),
        "two builds of the same sources differ: see {}",
        base.display()
    );
    fs::remove_dir_all(&base).with_context(|| base.display().to_string())
}

/// The sources as they are now, without what git ignores.
fn copy(repo: &Path, to: &Path) -> Result<()> {
    let files =
        cmd("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(repo).text()?;
    for file in files.split('\0').filter(|file| repo.join(file).is_file()) {
        let target = to.join(file);
        fs::create_dir_all(target.parent().context("a file has a folder")?)?;
        fs::copy(repo.join(file), &target).with_context(|| file.to_owned())?;
    }
    Ok(())
}
