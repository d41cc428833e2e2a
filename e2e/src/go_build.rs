//! Building programs of Go modules.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::cmd::{CommandExt, cmd, tail};

/// One call of `go build`.
pub(crate) struct Build {
    /// The directory with `go.mod`.
    pub(crate) sources: PathBuf,
    pub(crate) into: PathBuf,
    pub(crate) programs: &'static [&'static str],
    /// The import path of a program; `{}` is its name, where there are several.
    pub(crate) import: &'static str,
    /// Build tags, by blanks.
    pub(crate) tags: &'static str,
    /// For the linker.
    pub(crate) flags: String,
}

impl Build {
    pub(crate) fn run(&self) -> Result<()> {
        fs::create_dir_all(&self.into)?;
        let (start, names) = (Instant::now(), self.programs.join(", "));
        let mut go =
            cmd("go", ["build", "-mod=readonly", "-trimpath", "-tags", self.tags, "-ldflags", &self.flags, "-o"]);
        match self.programs {
            [program] => go.arg(self.into.join(program)).arg(self.import),
            // One call for all of them: while one is linked, which takes one processor, others are compiled.
            programs => {
                // `go` takes a path for a directory when it ends like one
                go.arg(self.into.join("")).args(programs.iter().map(|program| self.import.replace("{}", program)))
            }
        };
        let answer = go.current_dir(&self.sources).env("CGO_ENABLED", "0").answer()?;
        if !answer.ok {
            bail!("cannot build {names}:\n{}", tail(&answer.stderr, 30));
        }
        println!("built {names} in {} s", start.elapsed().as_secs());
        Ok(())
    }
}
