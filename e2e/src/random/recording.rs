//! Records what happens to the CloneSet, its Pods, its claims and its budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;

use super::{BUDGET, NAME};
use crate::history::History;
use crate::kit::{PATIENCE, Test};

/// Ends with the sequence.
pub(super) struct Task(pub(super) tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether the CloneSet owns an object; there is only one in the namespace.
fn is_ours(object: &DynamicObject) -> bool {
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "CloneSet" && owner.name == NAME)
}

/// Everything that happens to the CloneSet, its Pods and its claims from now on.
pub(super) struct Recording {
    history: Arc<Mutex<History>>,
    tasks: [Task; 4],
}

impl Recording {
    pub(super) async fn begin(t: &Test) -> Result<Self> {
        let history: Arc<Mutex<History>> = Arc::default();
        let (began, mut begun) = mpsc::channel(4);
        let follow = |kind: &str, note: fn(&mut History, Event<DynamicObject>)| {
            let (stream, kept, began) =
                (watcher(t.api(kind), watcher::Config::default()), history.clone(), began.clone());
            Task(tokio::spawn(async move {
                pin_mut!(stream);
                while let Some(event) = stream.next().await {
                    match event {
                        // once for each watch; later ones are not waited for
                        Ok(Event::InitDone) => drop(began.try_send(())),
                        Ok(event) => note(&mut kept.lock().unwrap_or_else(PoisonError::into_inner), event),
                        Err(_) => {}
                    }
                }
            }))
        };
        let clone_sets = follow("CloneSet", |history, event| {
            if let Event::Apply(object) | Event::InitApply(object) = event {
                history.clone_set(&object);
            }
        });
        let pods = follow("Pod", |history, event| match event {
            Event::Apply(pod) | Event::InitApply(pod) if is_ours(&pod) => history.pod(&pod),
            Event::Delete(pod) if is_ours(&pod) => history.gone(&pod),
            _ => {}
        });
        let claims = follow("PersistentVolumeClaim", |history, event| match event {
            Event::Apply(claim) | Event::InitApply(claim) => history.claim(&claim, is_ours(&claim)),
            Event::Delete(claim) => history.claim_gone(&claim),
            _ => {}
        });
        let budgets = follow(BUDGET, |history, event| match event {
            Event::Apply(budget) | Event::InitApply(budget) => history.budget(&budget),
            Event::Delete(budget) => history.budget_gone(&budget),
            Event::Init | Event::InitDone => {}
        });
        for _ in 0..4 {
            let next = tokio::time::timeout(PATIENCE, begun.recv()).await;
            next.context("a watch does not begin")?.context("a watch has ended")?;
        }
        Ok(Self { history, tasks: [clone_sets, pods, claims, budgets] })
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(self) -> History {
        drop(self.tasks);
        std::mem::take(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
