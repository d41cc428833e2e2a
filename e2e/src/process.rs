//! The long-running programs of the cluster. Each is recorded as "pid start-time", so that a process id used again by
//! somebody else is never taken for ours.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cmd::signal;
use crate::paths::Paths;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks after boot, field 22 of /proc/PID/stat.
    pub started: u64,
}

impl Process {
    /// The process with this id, unless it has ended. A zombie has, but only when its last thread is gone: until then
    /// its ports are taken.
    pub fn of(pid: u32) -> Option<Self> {
        let (state, _, started) = stat(pid)?;
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        let ended = state == 'X' || (state == 'Z' && threads() <= 1);
        (!ended).then_some(Self { pid, started })
    }
    pub fn alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
    pub fn signal(self, name: &str) {
        if self.alive() {
            // it may end between the look and the signal
            let _ = signal(self.pid, name);
        }
    }
    /// The most memory that it ever had, in bytes.
    pub fn peak_memory(self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).context("its status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmHWM")?;
        Ok(kilobytes << 10)
    }
    /// Asks, waits, forces.
    pub fn stop(self, patience: Duration) {
        self.signal("CONT");
        self.signal("TERM");
        if !self.wait_end(patience) {
            self.signal("KILL");
            self.wait_end(Duration::from_secs(5));
        }
    }
    pub fn wait_end(self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.alive() {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// State, parent and start time of a process.
fn stat(pid: u32) -> Option<(char, u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name is in parentheses and may hold anything, blanks and parentheses too
    let fields: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
    Some((fields.first()?.chars().next()?, fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

fn all_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Processes whose command line fits, oldest first.
pub fn find(fits: impl Fn(&[&str]) -> bool) -> Vec<Process> {
    let mut found: Vec<Process> = all_pids()
        .into_iter()
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let args: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
            !args[0].is_empty() && fits(&args)
        })
        .filter_map(Process::of)
        .collect();
    found.sort_by_key(|p| p.started);
    found
}

/// Children, their children and so on.
pub fn descendants(roots: &[Process]) -> Vec<Process> {
    let parents: Vec<(u32, u32)> = all_pids().into_iter().filter_map(|p| Some((p, stat(p)?.1))).collect();
    let mut family: Vec<u32> = roots.iter().map(|p| p.pid).collect();
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family.split_off(roots.len()).into_iter().filter_map(Process::of).collect()
}

/// Starts a program of the cluster in a process group of its own, its output in `log/NAME.log`.
pub fn start(paths: &Paths, name: &str, command: &mut Command) -> Result<Process> {
    let log_path = paths.logs().join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(&log_path).context("open the log")?;
    let child = command
        .current_dir(&paths.state)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in the terminal is for the harness alone
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {command:?}"))?;
    let process =
        Process::of(child.id()).with_context(|| format!("{name} ended at once, see {}", log_path.display()))?;
    fs::write(pid_file(paths, name), format!("{} {}", process.pid, process.started))?;
    // reaped when this process lives longer than the program, so that it is not taken for a running one
    std::thread::spawn(move || {
        let mut child = child;
        let _ = child.wait();
    });
    Ok(process)
}

fn pid_file(paths: &Paths, name: &str) -> std::path::PathBuf {
    paths.state.join("pid").join(name)
}

/// The names of all programs that were started and not stopped.
pub fn recorded_names(paths: &Paths) -> Vec<String> {
    let entries = fs::read_dir(paths.state.join("pid")).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// The recorded program, if it still runs.
pub fn running(paths: &Paths, name: &str) -> Option<Process> {
    recorded(&pid_file(paths, name)).filter(|p| p.alive())
}

fn recorded(file: &Path) -> Option<Process> {
    let text = fs::read_to_string(file).ok()?;
    let (pid, started) = text.trim().split_once(' ')?;
    Some(Process { pid: pid.parse().ok()?, started: started.parse().ok()? })
}

pub fn stop(paths: &Paths, name: &str, patience: Duration) {
    if let Some(process) = running(paths, name) {
        process.stop(patience);
    }
    let _ = fs::remove_file(pid_file(paths, name));
}

/// Tries until it works; the error is the last one, after `patience` or when a program of `needs` has ended.
pub fn until<T>(
    what: &str,
    patience: Duration,
    needs: &[Process],
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let ended = needs.iter().any(|p| !p.alive());
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if ended || start.elapsed() > patience => {
                let why = if ended { "it has ended" } else { "too long" };
                bail!("waited {:.1} s for {what}, {why}: {error:#}", start.elapsed().as_secs_f64())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
