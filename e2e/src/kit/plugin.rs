//! `kubectl kruise`, run by the cluster's own kubectl: the executable of the image under the plugin's name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Test;
use crate::cmd::{Answer, cmd, environment};
use crate::paths::Paths;

/// `kubectl kruise ARGS...` with the credentials of the cluster.
pub fn plugin_command(paths: &Paths, args: &[&str]) -> Result<Command> {
    let dir = installed(paths)?;
    let mut command = cmd(paths.bin("kubectl"), ["kruise"]);
    command.args(args);
    environment(paths, &mut command);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{}:{path}", dir.display(), paths.cluster.join("bin").display()));
    Ok(command)
}

/// A directory with the plugin as a user installs it: two links.
fn installed(paths: &Paths) -> Result<PathBuf> {
    let executable = paths.product_executable();
    ensure!(executable.exists(), "{} is missing: run `e2e image`", executable.display());
    let dir = paths.state.join("plugin");
    fs::create_dir_all(&dir)?;
    for name in ["kubectl-kruise", "kubectl_complete-kruise"] {
        match symlink(&executable, dir.join(name)) {
            // another test was faster
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            result => result.with_context(|| format!("link {name}"))?,
        }
    }
    Ok(dir)
}

impl Test {
    /// `kubectl kruise ARGS... -n NAMESPACE` to its end.
    pub async fn plugin(&self, args: &[&str]) -> Result<Answer> {
        let args: Vec<&str> = args.iter().copied().chain(["-n", &self.namespace]).collect();
        self.run(plugin_command(&self.paths, &args)?).await
    }

    /// The same; an error unless it ends with this exit code.
    pub async fn plugin_exits(&self, code: i32, args: &[&str]) -> Result<Answer> {
        let answer = self.plugin(args).await?;
        ensure!(
            answer.code == Some(code),
            "kubectl kruise {} ended with {:?}, expected {code}\n--- standard output\n{}\n--- standard error\n{}",
            args.join(" "),
            answer.code,
            answer.stdout.trim_end(),
            answer.stderr.trim_end()
        );
        Ok(answer)
    }
}
