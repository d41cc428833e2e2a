//! Which results are written to the status, and when.

use std::{collections::HashMap, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{task::JoinError, time::Instant};

use super::{GATHER, MESSAGE_PAUSE, Prober, STATE_PAUSE, backoff};
use crate::{
    api::apps::node_pod_probe::NodePodProbe,
    domain::node::probes::{
        UNKNOWN,
        node::{self, Changed, Tally},
    },
    runtime::apply::code,
};

impl Prober {
    /// The status has to be written, sooner or later.
    pub(super) fn note(&mut self, changed: Changed) {
        let now = Instant::now();
        let after = |pause: Duration| self.written.map_or(now, |written| written + pause).max(now + GATHER);
        match changed {
            Changed::Nothing => {}
            Changed::State => self.write_at(after(STATE_PAUSE)),
            Changed::Message => self.write_at(after(MESSAGE_PAUSE).max(now + STATE_PAUSE)),
        }
    }

    pub(super) fn write_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(super) fn write(&mut self) {
        self.due = None;
        let Some(object) = &self.object else { return };
        let now = Instant::now();
        let (mut ids, mut later): (HashMap<(&str, &str), &Tally>, Option<Instant>) = Default::default();
        for probe in self.probes.values() {
            // A result usually arrives within moments: until then the recorded one stays.
            match probe
                .unknown
                .map(|since| since + MESSAGE_PAUSE)
                .filter(|at| probe.tally.state == UNKNOWN && *at > now)
            {
                Some(at) => later = Some(later.map_or(at, |other| other.min(at))),
                None => drop(ids.insert((&probe.uid, &probe.name), &probe.tally)),
            }
        }
        self.due = later;
        let statuses = node::statuses(object, |uid, name| ids.get(&(uid, name)).copied());
        let recorded = object.status.as_ref().map(|status| &*status.pod_probe_statuses).unwrap_or_default();
        if recorded == statuses {
            return;
        }
        let meta = &object.metadata;
        let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
            "status": { "podProbeStatuses": statuses } });
        let (api, name) = (Api::<NodePodProbe>::all(self.kube.clone()), meta.name.clone().unwrap_or_default());
        self.written = Some(now);
        self.metrics.writes.inc();
        self.writes.spawn(async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await });
    }

    pub(super) fn wrote(&mut self, ended: Result<kube::Result<NodePodProbe>, JoinError>) {
        let now = Instant::now();
        match ended {
            Ok(Ok(object)) => {
                self.write_failures = 0;
                self.take_object(Some(Box::new(object)));
            }
            // The watch delivers the newer version, usually soon.
            Ok(Err(error)) if matches!(code(&error), Some(404 | 409)) => {
                let delay = self.write_failures.checked_sub(1).map_or(GATHER * 2, backoff);
                self.write_failures += 1;
                self.write_at(now + delay);
            }
            failed => {
                let delay = backoff(self.write_failures);
                self.write_failures += 1;
                let error = failed.map(Result::err);
                tracing::warn!(?error, retry_in = ?delay, "the results of probes are not written");
                self.write_at(now + delay);
            }
        }
    }
}
