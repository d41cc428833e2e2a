//! When a container is probed, and how its results are processed.

use std::cmp::Reverse;

use tokio::{
    task::{Id, JoinError},
    time::Instant,
};

use super::{GATHER, GRID, Prober, Run, RunLabels, STATE_PAUSE, Slow, backoff, handlers, handlers::Found};
use crate::{
    domain::node::probes::{
        FAILED, SUCCEEDED, UNKNOWN,
        node::{self, Changed, Handler, Look, Tally},
        slots::Turn,
    },
    k8s::{container_id, pod::PodView},
    runtime::{clock, events::Recorder, retry::jitter},
};

/// Entries of the heap beyond four for each probe; when there are more, those that are not current are removed.
const SPARE: usize = 64;

impl Prober {
    /// Looks at the container of a probe, and probes it if it is due.
    pub(super) fn look(&mut self, id: u64) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        // Until the Pod is known, its next change triggers the probe.
        let Some(pod) = self.pods.get(&probe.pod).filter(|pod| pod.uid() == &*probe.uid) else { return };
        let now = clock::now();
        if let Some(adopted) =
            probe.recorded.take().and_then(|recorded| Tally::adopt(&recorded, &pod, &probe.container))
        {
            probe.tally = adopted;
        }
        let (look, instance) = node::look(&pod, &probe.container, &probe.settings, now);
        let changed = match look {
            Look::NotStarted => Changed::Nothing,
            Look::NotRunning => probe.tally.not_running(&probe.container, now),
            Look::TooEarly(_) | Look::Due => probe.tally.begin(instance, now),
        };
        if changed == Changed::Message && probe.tally.state == UNKNOWN {
            probe.unknown = Some(Instant::now());
        }
        if changed == Changed::State {
            emit_event(&self.events, &pod, &probe.tally);
        }
        let at = match look {
            Look::NotStarted | Look::NotRunning | Look::TooEarly(None) => None,
            Look::TooEarly(Some(left)) => Some(Instant::now() + left),
            Look::Due => Some(probe.next),
        };
        let is_free = probe.running.is_none() && !probe.is_waiting;
        self.note(changed);
        match at {
            Some(at) if is_free && at <= Instant::now() => self.begin(id, &pod, instance.to_owned()),
            Some(at) if is_free => self.schedule(id, at),
            // A probe that runs is looked at again when it ends, one without a time when the Pod changes.
            _ => {}
        }
    }

    /// Looks at it again at this time, if not before.
    pub(super) fn schedule(&mut self, id: u64, at: Instant) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        let since = at.saturating_duration_since(self.begin).as_millis();
        let steps = u32::try_from(since.div_ceil(GRID.as_millis())).unwrap_or(u32::MAX);
        let at = self.begin + GRID * steps;
        if probe.queued.is_some_and(|queued| queued <= at) {
            return;
        }
        probe.turn += 1;
        probe.queued = Some(at);
        self.heap.push(Reverse((at, id, probe.turn)));
        if self.heap.len() > 4 * self.probes.len() + SPARE {
            let probes = &self.probes;
            let is_current = |id: &u64, turn: u64| probes.get(id).is_some_and(|probe| probe.turn == turn);
            self.heap.retain(|Reverse((_, id, turn))| is_current(id, *turn));
        }
    }

    /// Starts a probe that is due, unless the runtime is overloaded or its namespace already has its share.
    fn begin(&mut self, id: u64, pod: &PodView, instance: String) {
        let Some(probe) = self.probes.get(&id) else { return };
        let (handler, limit) = (probe.settings.handler.clone(), probe.settings.timeout);
        let namespace = probe.pod.namespace.clone();
        let now = Instant::now();
        let task = match &handler {
            Handler::Exec(command) => {
                let Some((runtime, in_runtime)) = container_id::split(&instance) else { return };
                let key = (runtime.to_owned(), namespace.clone());
                if let Some(slow) = self.slow.get(&key).filter(|slow| slow.until > now) {
                    let at = slow.until + jitter(GATHER * 10);
                    return self.schedule(id, at);
                }
                let Some(client) = self.runtimes.get(runtime) else { return self.schedule(id, now + STATE_PAUSE) };
                if !self.has_turn(id, &namespace, true) {
                    return;
                }
                let (command, in_runtime) = (command.clone(), in_runtime.to_owned());
                self.runs.spawn(async move { handlers::exec(&client, &in_runtime, &command, limit).await })
            }
            other => {
                if !self.has_turn(id, &namespace, false) {
                    return;
                }
                let (other, ip) = (other.clone(), node::address(&pod.pod_ip));
                self.runs.spawn(async move { handlers::network(&other, ip, limit).await })
            }
        };
        self.running.insert(task.id(), Run { probe: id, namespace, instance, handler });
        if let Some(probe) = self.probes.get_mut(&id) {
            // The period is kept; missed probes are not run later.
            probe.next = (probe.next + probe.settings.period).max(now + probe.settings.period / 2);
            probe.running = Some(task);
        }
    }

    /// Whether it has a slot; otherwise it waits for one.
    fn has_turn(&mut self, id: u64, namespace: &str, is_exec: bool) -> bool {
        let slots = if is_exec { &mut self.execs } else { &mut self.network };
        match slots.ask(namespace, id) {
            Turn::Begin => {}
            Turn::Instead(other) => {
                if let Some(running) = self.probes.get(&other).and_then(|other| other.running.as_ref()) {
                    running.abort();
                }
            }
            Turn::Wait => {
                if let Some(probe) = self.probes.get_mut(&id) {
                    probe.is_waiting = true;
                }
                return false;
            }
        }
        true
    }

    /// Ends a run of a probe, and its waiting for one. Its task comes to [`Self::finish`] yet.
    pub(super) fn abort(&mut self, id: u64) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        if let Some(running) = &probe.running {
            running.abort();
        }
        if std::mem::take(&mut probe.is_waiting) {
            let namespace = probe.pod.namespace.clone();
            self.execs.forget(&namespace, id);
            self.network.forget(&namespace, id);
        }
    }

    /// Looks at probes that wait, as long as there are slots for them.
    pub(super) fn begin_waiting(&mut self) {
        while let Some(id) = self.execs.next_waiting().or_else(|| self.network.next_waiting()) {
            if let Some(probe) = self.probes.get_mut(&id) {
                probe.is_waiting = false;
                self.look(id);
            }
        }
    }

    pub(super) fn finish(&mut self, ended: Result<(Id, Found), JoinError>) {
        let (task, found, is_aborted) = match ended {
            Ok((task, found)) => (task, Some(found), false),
            Err(error) => (error.id(), None, error.is_cancelled()),
        };
        let Some(run) = self.running.remove(&task) else { return };
        let is_exec = matches!(run.handler, Handler::Exec(_));
        let slots = if is_exec { &mut self.execs } else { &mut self.network };
        slots.end(&run.namespace, run.probe);
        if is_exec {
            self.judge_runtime(&run, found.as_ref());
        }
        if !is_aborted {
            self.count(&run, found.as_ref());
        }
        self.take_result(&run, found);
        self.begin_waiting();
    }

    fn count(&self, run: &Run, found: Option<&Found>) {
        let result = match found {
            Some(Found::Good(_)) => "succeeded",
            Some(Found::Bad(_)) => "failed",
            _ => "error",
        };
        let handler = match &run.handler {
            Handler::Exec(_) => "exec",
            Handler::Http { .. } => "http",
            Handler::Tcp { .. } => "tcp",
            Handler::Impossible(_) => "none",
        };
        self.metrics.runs.get_or_create(&RunLabels { handler, result }).inc();
    }

    fn take_result(&mut self, run: &Run, found: Option<Found>) {
        let Some(probe) = self.probes.get_mut(&run.probe) else { return };
        probe.running = None;
        let is_meant = probe.tally.instance == run.instance && probe.settings.handler == run.handler;
        let now = clock::now();
        let changed = match found {
            Some(Found::Good(output)) if is_meant => probe.tally.note(true, &output, &probe.settings, now),
            Some(Found::Bad(output)) if is_meant => probe.tally.note(false, &output, &probe.settings, now),
            Some(Found::Nothing(error)) => {
                tracing::debug!(pod = %probe.pod, probe = %probe.name, %error, "not probed");
                Changed::Nothing
            }
            _ => Changed::Nothing,
        };
        if changed == Changed::State
            && let Some(pod) = self.pods.get(&probe.pod)
        {
            emit_event(&self.events, &pod, &probe.tally);
        }
        self.note(changed);
        self.look(run.probe);
    }

    /// After a timeout of the runtime no commands of the namespace are sent for a while, longer each time. Other namespaces
    /// are not affected: a single container can make the runtime's calls for it hang, while those for others succeed.
    fn judge_runtime(&mut self, run: &Run, found: Option<&Found>) {
        let Some((runtime, _)) = container_id::split(&run.instance) else { return };
        let key = (runtime.to_owned(), run.namespace.clone());
        match found {
            Some(Found::Nothing(error)) if error.is_transient() => {
                let now = Instant::now();
                let slow = self.slow.entry(key).or_insert(Slow { failures: 0, until: now });
                // Probes that were started together and fail together count as one failure.
                if slow.until <= now {
                    let delay = backoff(slow.failures);
                    slow.failures += 1;
                    slow.until = now + delay;
                    self.metrics.backoffs.inc();
                    let namespace = &*run.namespace;
                    tracing::warn!(runtime, namespace, %error, retry_in = ?delay, "the runtime runs no commands; probes wait");
                }
            }
            Some(Found::Good(_) | Found::Bad(_)) if self.slow.remove(&key).is_some() => {
                tracing::info!(runtime, namespace = &*run.namespace, "the runtime runs commands again");
            }
            _ => {}
        }
    }
}

fn emit_event(events: &Recorder, pod: &PodView, tally: &Tally) {
    match tally.state {
        SUCCEEDED => events.normal(&pod.reference(), "KruiseProbeSucceeded", &tally.message),
        FAILED => events.warning(&pod.reference(), "KruiseProbeFailed", &tally.message),
        _ => {}
    }
}
