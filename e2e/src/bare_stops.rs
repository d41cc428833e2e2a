//! The yardstick of `make bench`: containers stopped by the runtime alone.
//!
//! `load-nodes stop` sends StopContainer over a connection that is there already, as the daemon does. The clock of a stop is
//! read before the call, like that of a request.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cmd::cmd;
use crate::load;
use crate::paths::{Paths, containerd_socket};

/// Of the Pods that are made by `kit::pod`, in seconds.
const GRACE: u64 = 2;

/// A client of the runtime that stops containers and does nothing else.
pub(crate) struct BareStops {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    asked: usize,
}

impl BareStops {
    /// Starts it, and waits until it is connected.
    ///
    /// # Errors
    /// The program is missing, or the runtime does not answer it.
    pub(crate) fn connect(paths: &Paths) -> Result<Self> {
        let mut child = cmd(load::program(paths)?, ["stop", &format!("--grace={GRACE}"), "--socket"])
            .arg(containerd_socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("standard input")?;
        let output = BufReader::new(child.stdout.take().context("standard output")?);
        let mut stops = Self { child, input, output, asked: 0 };
        ensure!(stops.line()? == "connected", "the bare stops cannot be made");
        Ok(stops)
    }

    /// Has these containers stopped, all at once, and does not wait for it. The moment before the call.
    ///
    /// # Errors
    /// The program has ended.
    pub(crate) fn stop(&mut self, ids: &[&str]) -> Result<Instant> {
        let before = Instant::now();
        writeln!(self.input, "{}", ids.join(" "))?;
        self.input.flush()?;
        self.asked += ids.len();
        Ok(before)
    }

    /// Waits until all stops were answered.
    ///
    /// # Errors
    /// One of them failed.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.input);
        let mut stopped = 0;
        for line in self.output.lines() {
            let line = line?;
            let count = line.strip_prefix("stopped ").and_then(|count| count.parse::<usize>().ok());
            stopped += count.with_context(|| format!("the bare stops say {line:?}"))?;
        }
        ensure!(self.child.wait()?.success(), "the bare stops failed");
        ensure!(stopped == self.asked, "{stopped} of {} containers were stopped", self.asked);
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}
