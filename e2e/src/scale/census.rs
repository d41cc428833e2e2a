//! Pods as a watch shows them, counted while they come and go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, pin_mut};
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;

use super::IMAGES;
use crate::kit::{Look, Test};

/// What a watch shows of one Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) ready: bool,
    /// The image of its container as its status has it.
    pub(super) runs: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) total: usize,
    pub(super) ready: usize,
    /// Ready with the second image.
    pub(super) updated: usize,
}

impl Counts {
    fn add(&mut self, pod: &Shown) {
        self.total += 1;
        self.ready += usize::from(pod.ready);
        self.updated += usize::from(pod.ready && pod.runs == IMAGES[1]);
    }

    fn take(&mut self, pod: &Shown) {
        self.total -= 1;
        self.ready -= usize::from(pod.ready);
        self.updated -= usize::from(pod.ready && pod.runs == IMAGES[1]);
    }
}

/// Counts the Pods with the label app=NAME while they come and go.
pub(super) struct Census {
    counts: watch::Receiver<Counts>,
    kept: Arc<Mutex<Kept>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Kept {
    pods: HashMap<String, watch::Sender<Shown>>,
    counts: Counts,
    /// The fewest that were ready.
    lowest: usize,
}

impl Census {
    pub(super) async fn begin(t: &Test, app: &str) -> Result<Self> {
        let stream = watcher::watcher(t.api("Pod"), watcher::Config::default().labels(&format!("app={app}")));
        let (send, counts) = watch::channel(Counts::default());
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let of_task = Arc::clone(&kept);
        let (listed, is_listed) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            pin_mut!(stream);
            let mut listed = Some(listed);
            while let Some(event) = stream.next().await {
                let Ok(event) = event else { continue };
                let mut kept = of_task.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Event::Apply(pod) | Event::InitApply(pod) => {
                        let statuses = pod.data.array("/status/conditions");
                        let ready = statuses.iter().any(|c| c.text("/type") == "Ready" && c.text("/status") == "True");
                        let runs = pod.data.text("/status/containerStatuses/0/image").to_owned();
                        kept.show(pod.metadata.name.unwrap_or_default(), Shown { ready, runs });
                    }
                    Event::Delete(pod) => kept.leave(&pod.metadata.name.unwrap_or_default()),
                    Event::Init => {}
                    Event::InitDone => drop(listed.take().map(|listed| listed.send(()))),
                }
                kept.lowest = kept.lowest.min(kept.counts.ready);
                send.send_replace(kept.counts);
            }
        });
        is_listed.await.context("the watch of Pods began")?;
        Ok(Self { counts, kept, task })
    }

    pub(super) async fn until(
        &self,
        what: &str,
        patience: Duration,
        fits: impl Fn(&Counts) -> bool,
    ) -> Result<Instant> {
        let mut counts = self.counts.clone();
        let found = tokio::time::timeout(patience, counts.wait_for(|c| fits(c))).await.map(|seen| seen.map(drop));
        let now = Instant::now();
        match found {
            Ok(seen) => seen.context("the watch of Pods ended")?,
            Err(_) => bail!("waited {} s for {what}: {:?}", patience.as_secs(), *self.counts.borrow()),
        }
        Ok(now)
    }

    /// From now on counts the fewest that are ready.
    pub(super) fn begin_lowest(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.lowest = kept.counts.ready;
    }

    pub(super) fn lowest(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).lowest
    }

    pub(super) fn pod(&self, name: &str) -> Result<watch::Receiver<Shown>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.pods.get(name).with_context(|| format!("Pod {name} is not there"))?.subscribe())
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kept {
    fn show(&mut self, name: String, shown: Shown) {
        match self.pods.get(&name) {
            Some(pod) => {
                let before = pod.send_replace(shown.clone());
                self.counts.take(&before);
            }
            None => drop(self.pods.insert(name, watch::channel(shown.clone()).0)),
        }
        self.counts.add(&shown);
    }

    fn leave(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            let before = pod.borrow().clone();
            self.counts.take(&before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_as_they_change_and_go() {
        let mut kept = Kept::default();
        let shown = |ready: bool, runs: &str| Shown { ready, runs: runs.to_owned() };
        kept.show("a".into(), shown(false, IMAGES[0]));
        kept.show("b".into(), shown(true, IMAGES[1]));
        kept.show("a".into(), shown(true, IMAGES[0]));
        assert_eq!(kept.counts, Counts { total: 2, ready: 2, updated: 1 });
        kept.leave("b");
        kept.leave("b");
        assert_eq!(kept.counts, Counts { total: 1, ready: 1, updated: 0 });
    }
}
