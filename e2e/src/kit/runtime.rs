//! The runtime's own record: starts and exits as containerd announces them, with its clock.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::Value;

use super::Look;
use crate::cmd::ctr;

/// A container's main process ended.
#[derive(Debug, Clone)]
pub struct Exit {
    pub container: String,
    pub at: Timestamp,
    pub status: i64,
}

/// Listens to containerd's events from its start to its end.
pub struct RuntimeEvents {
    child: Child,
    exits: Arc<Mutex<Vec<Exit>>>,
    starts: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

impl RuntimeEvents {
    pub fn listen() -> Result<Self> {
        let mut child = ctr(["events"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("the events")?).lines();
        let exits: Arc<Mutex<Vec<Exit>>> = Arc::default();
        let starts: Arc<Mutex<BTreeMap<String, Timestamp>>> = Arc::default();
        let (kept, kept_starts) = (Arc::clone(&exits), Arc::clone(&starts));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let (Some(exit), Ok(mut kept)) = (parse(&line), kept.lock()) {
                    kept.push(exit);
                }
                if let (Some((id, at)), Ok(mut starts)) = (parse_start(&line), kept_starts.lock()) {
                    starts.insert(id, at);
                }
            }
        });
        // the subscription has no answer of its own
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self { child, exits, starts })
    }

    /// When an instance was started, by its id.
    pub fn start(&self, id: &str) -> Option<Timestamp> {
        self.starts.lock().ok()?.get(id).copied()
    }

    /// Exits of a container's instance by its id.
    pub fn exits(&self, id: &str) -> Vec<Exit> {
        let exits = self.exits.lock().map(|e| e.clone()).unwrap_or_default();
        exits.into_iter().filter(|e| e.container == id).collect()
    }

    pub async fn exit(&self, id: &str, patience: Duration) -> Result<Exit> {
        let start = std::time::Instant::now();
        while start.elapsed() < patience {
            if let Some(exit) = self.exits(id).into_iter().next() {
                return Ok(exit);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{id} did not exit within {} s", patience.as_secs())
    }
}

impl Drop for RuntimeEvents {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `2026-01-02 03:04:05.123 +0000 UTC k8s.io /tasks/exit {"container_id":...,"id":...,"exited_at":...}`. A command that
/// ended inside a container (exec) has another id than the container.
fn parse(line: &str) -> Option<Exit> {
    let (_, rest) = line.split_once(" /tasks/exit ")?;
    let event: Value = serde_json::from_str(rest.trim()).ok()?;
    let container = event.text("/container_id");
    if event.text("/id") != container {
        return None;
    }
    let at = time(&event["exited_at"])?;
    Some(Exit { container: container.to_owned(), at, status: event.int("/exit_status") })
}

/// A time as containerd 1 writes it, or with seconds and nanoseconds apart as containerd 2 does.
fn time(time: &Value) -> Option<Timestamp> {
    match time.as_str() {
        Some(text) => text.parse().ok(),
        None => Timestamp::new(time["seconds"].as_i64()?, i32::try_from(time.int("/nanos")).ok()?).ok(),
    }
}

/// `2026-01-02 03:04:05.123 +0000 UTC k8s.io /tasks/start {"container_id":...,"pid":...}`: the line's own time counts.
fn parse_start(line: &str) -> Option<(String, Timestamp)> {
    let (head, rest) = line.split_once(" /tasks/start ")?;
    let event: Value = serde_json::from_str(rest.trim()).ok()?;
    let mut words = head.split(' ');
    let at = format!("{}T{}Z", words.next()?, words.next()?).parse().ok()?;
    (words.next()? == "+0000").then(|| (event.text("/container_id").to_owned(), at))
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_start};

    #[test]
    fn starts_have_the_time_of_their_line() {
        let line = r#"2026-01-02 03:04:05.123456789 +0000 UTC k8s.io /tasks/start {"container_id":"a","pid":7}"#;
        let (id, at) = parse_start(line).expect("a start");
        assert_eq!((id.as_str(), at.to_string().as_str()), ("a", "2026-01-02T03:04:05.123456789Z"));
    }

    #[test]
    fn exits_of_containers_are_taken_and_those_of_commands_are_not() {
        let line = |id: &str| {
            format!(
                r#"2026-01-02 03:04:05.123 +0000 UTC k8s.io /tasks/exit {{"container_id":"a","id":"{id}","pid":7,"exit_status":137,"exited_at":"2026-01-02T03:04:05.120Z"}}"#
            )
        };
        let exit = parse(&line("a")).expect("an exit");
        assert_eq!((exit.container.as_str(), exit.status), ("a", 137));
        assert!(parse(&line("command")).is_none());
    }

    #[test]
    fn exits_have_the_time_that_containerd_2_writes() {
        let line = r#"2026-01-02 03:04:05.2 +0000 UTC k8s.io /tasks/exit {"container_id":"a","id":"a","pid":7,"exited_at":{"seconds":1767323045,"nanos":120000000}}"#;
        let exit = parse(line).expect("an exit");
        assert_eq!((exit.at.to_string().as_str(), exit.status), ("2026-01-02T03:04:05.12Z", 0));
    }
}
