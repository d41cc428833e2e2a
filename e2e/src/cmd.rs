//! Running other programs, with errors that say what was run and what it answered.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths::{Paths, containerd_socket};

/// What a program answered, whether it succeeded or not.
#[derive(Debug, Clone)]
pub struct Answer {
    pub ok: bool,
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub trait CommandExt {
    /// Runs to the end and keeps the output; an error only when it cannot be started.
    fn answer(&mut self) -> Result<Answer>;
    /// Runs to the end; standard output, or an error with the standard error.
    fn text(&mut self) -> Result<String>;
    /// Runs to the end with the output passed through.
    fn show(&mut self) -> Result<()>;
    /// Runs to the end with the output passed through; whether it succeeded, and its standard output.
    fn show_and_keep(&mut self) -> Result<(bool, String)>;
    /// Runs to the end with `input` as standard input; standard output, or an error with the standard error.
    fn feed(&mut self, input: &str) -> Result<String>;
}

impl CommandExt for Command {
    fn answer(&mut self) -> Result<Answer> {
        let out = self.stdin(Stdio::null()).output().with_context(|| format!("start {self:?}"))?;
        Ok(Answer {
            ok: out.status.success(),
            code: out.status.code(),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        })
    }

    fn text(&mut self) -> Result<String> {
        let answer = self.answer()?;
        if !answer.ok {
            bail!("{self:?} failed: {}{}", answer.stderr.trim(), tail(&answer.stdout, 20));
        }
        Ok(answer.stdout)
    }

    fn show(&mut self) -> Result<()> {
        let status = self.stdin(Stdio::null()).status().with_context(|| format!("start {self:?}"))?;
        if !status.success() {
            bail!("{self:?} failed: {status}");
        }
        Ok(())
    }

    fn show_and_keep(&mut self) -> Result<(bool, String)> {
        let child = self.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = child.spawn().with_context(|| format!("start {self:?}"))?;
        let mut from = child.stdout.take().context("standard output")?;
        let (mut kept, mut part) = (Vec::new(), [0; 8192]);
        loop {
            let read = from.read(&mut part)?;
            if read == 0 {
                break;
            }
            std::io::stdout().write_all(&part[..read])?;
            std::io::stdout().flush()?;
            kept.extend_from_slice(&part[..read]);
        }
        Ok((child.wait()?.success(), String::from_utf8_lossy(&kept).into_owned()))
    }

    fn feed(&mut self, input: &str) -> Result<String> {
        let mut child = self
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {self:?}"))?;
        let mut stdin = child.stdin.take().context("standard input")?;
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let out = child.wait_with_output()?;
        let written = writer.join().map_err(|_| anyhow::anyhow!("the writing thread panicked"))?;
        if !out.status.success() {
            bail!("{self:?} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        written?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

pub fn cmd<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: I) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// The cluster's own kubectl with the cluster's credentials.
pub fn kubectl<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(paths: &Paths, args: I) -> Command {
    with_credentials(paths, "kubectl", args)
}

/// The same of Kubernetes 1.33, whose `drain` takes every DaemonSet for one of apps/v1.
pub fn kubectl_1_33<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(paths: &Paths, args: I) -> Command {
    with_credentials(paths, "kubectl-1.33", args)
}

fn with_credentials<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(paths: &Paths, program: &str, args: I) -> Command {
    let mut command = cmd(paths.bin(program), args);
    environment(paths, &mut command);
    command
}

/// For programs that use kubectl: the cluster's own, its credentials, and a cache that goes with the cluster (every
/// cluster has the same address).
pub fn environment(paths: &Paths, command: &mut Command) {
    command
        .env("PATH", search_path(paths))
        .env("KUBECONFIG", paths.kubeconfig())
        .env("KUBECACHEDIR", paths.kubectl_cache());
}

/// The value of `PATH` that finds the cluster's programs first.
pub fn search_path(paths: &Paths) -> std::ffi::OsString {
    let before = std::env::var_os("PATH").unwrap_or_default();
    let all = paths.search().into_iter().chain(std::env::split_paths(&before));
    // a directory with a colon in its name cannot be in it at all
    std::env::join_paths(all).unwrap_or(before)
}

/// containerd's own client on the cluster's socket, in the namespace of Kubernetes.
pub fn ctr<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = Command::new(Paths::default().runtime("ctr"));
    command.arg("-a").arg(containerd_socket()).args(["-n", "k8s.io"]).args(args);
    command
}

/// Sends a signal. Without unsafe code only a shell can: its `kill` is built in, so this needs no package.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    cmd("sh", ["-c", &format!("kill -s {name} {pid}")]).text().map(drop)
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
