//! A registry with faults: a proxy before the loopback registry that is slow, fails, or changes what it hands out.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::paths::{FAULTY_PORT, REGISTRY_PORT};

/// What goes wrong with a repository.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Blobs arrive with so many bytes a second.
    Slow(usize),
    /// So many requests are answered with 500.
    Failing(usize),
    /// The last byte of every manifest is another one.
    Corrupt,
}

#[derive(Default)]
struct State {
    /// By the path of the repository.
    faults: BTreeMap<String, Fault>,
    /// Clients that left before they had all of a blob.
    left: BTreeMap<String, usize>,
}

/// Serves `faulty.example` for the runtime of the cluster, until it is dropped.
pub struct RegistryProxy {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl RegistryProxy {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, FAULTY_PORT)).await.context("the port of the proxy")?;
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                // a client that leaves is what some tests are about
                tokio::spawn(async move { serve(client, &state).await.ok() });
            }
        });
        Ok(Self { state, task })
    }

    /// From now on this goes wrong with a repository, named by its path.
    pub fn set(&self, repository: &str, fault: Fault) {
        if let Ok(mut state) = self.state.lock() {
            state.faults.insert(repository.to_owned(), fault);
        }
    }

    /// How often a client has left before it had all of a blob of this repository.
    pub fn left(&self, repository: &str) -> usize {
        self.state.lock().map_or(0, |state| state.left.get(repository).copied().unwrap_or_default())
    }
}

impl Drop for RegistryProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request, then the connection ends.
async fn serve(mut client: TcpStream, state: &Mutex<State>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let found = {
        let mut state = state.lock().map_err(|_| anyhow::anyhow!("a test panicked"))?;
        let fits = |name: &str| path.starts_with(&format!("/v2/{name}/"));
        let found = state.faults.iter_mut().find(|(name, _)| fits(name));
        found.map(|(name, fault)| {
            let now = *fault;
            if let Fault::Failing(left) = fault {
                *left = left.saturating_sub(1);
            }
            (name.clone(), now)
        })
    };
    if let Some((_, Fault::Failing(1..))) = found {
        let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        client.write_all(answer.as_bytes()).await?;
        return Ok(client.shutdown().await?);
    }
    let mut registry = TcpStream::connect((Ipv4Addr::LOCALHOST, REGISTRY_PORT)).await?;
    let lines = head.lines().filter(|line| !line.is_empty() && !line.to_lowercase().starts_with("connection:"));
    let mut request = lines.collect::<Vec<_>>().join("\r\n");
    request.push_str("\r\nConnection: close\r\n\r\n");
    registry.write_all(request.as_bytes()).await?;
    match found {
        Some((name, Fault::Slow(bytes))) if path.contains("/blobs/") => {
            let mut buffer = vec![0; (bytes / 20).max(1)];
            loop {
                let count = registry.read(&mut buffer).await?;
                if count == 0 {
                    return Ok(client.shutdown().await?);
                }
                if client.write_all(&buffer[..count]).await.is_err() {
                    if let Ok(mut state) = state.lock() {
                        *state.left.entry(name).or_default() += 1;
                    }
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Some((_, Fault::Corrupt)) if path.contains("/manifests/") => {
            let mut answer = Vec::new();
            registry.read_to_end(&mut answer).await?;
            // A HEAD has no body, and ends with a line end as a manifest does not.
            if let Some(last) = answer.last_mut().filter(|_| !head.starts_with("HEAD")) {
                *last = b' ';
            }
            client.write_all(&answer).await?;
            Ok(client.shutdown().await?)
        }
        _ => {
            tokio::io::copy(&mut registry, &mut client).await?;
            Ok(client.shutdown().await?)
        }
    }
}
