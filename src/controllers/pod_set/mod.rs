//! What the controllers of StatefulSets and DaemonSets do alike in a pass: step aside for the built-in object, adopt and
//! release Pods, bring each Pod's own state up to date, try steps within the limits, report refusals, write the status.
//! What differs, the rules above all, is in the folder of each kind. CloneSets share the update of one Pod in place and what
//! follows from the outcome of a step (`in_place.rs`).

mod in_place;
mod metrics;
mod record;
mod single;
mod steps;

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{api::GetParams, core::Request};
use serde_json::Value;

pub use self::{
    in_place::{InPlaceUpdate, Tried, kept_by_budgets, leaves_room, may_be_done},
    metrics::{SetMetrics, Write},
    record::{SetStatus, counted_generation, words_cleared},
    single::{POD_WORKERS, Together},
    steps::{AboutStep, PodStep, Waves},
};
use super::{BY_CONTROLLER, BY_NAMESPACE, Context, owned_text};
use crate::{
    budgets::refusals::{Refusals, WAITS_FOR_BUDGET},
    domain::workload::{owner::OwnerRef, status::Progress, steps::Wait},
    k8s::{path, pod::PodView, selector::Selector},
    runtime::{
        apply::{code, said},
        in_place::InPlace,
        pass::{self, AFTER_REFUSAL, Memories},
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        status_writer::StatusWriter,
        watches::{Change, ObjectKey, Store, StoredName, StoredObject},
    },
};

/// Between the end of a built-in object and the pass that takes over.
const ADOPTION_PAUSE: Duration = Duration::from_secs(1);
/// Between two passes while everything waits: its template may change, and Pods that go with it wake nobody.
pub const ASIDE_PAUSE: Duration = Duration::from_secs(5);

/// What is remembered of a set, whatever its kind. Everything can be lost.
#[derive(Default)]
pub struct Common {
    /// Versions of Pods that were read as a whole and have to wait, by UID.
    pub waits_in: HashMap<String, String>,
    /// Pods that may be made at the same time, as the last ones went.
    window: usize,
    /// How many Pods there are, or are to be.
    pub pods: usize,
    /// Whether the last pass had no Pod to create, update or delete. Kinds that do not say so are never at rest.
    pub is_at_rest: bool,
    /// Whether a budget kept a Pod in service in the last pass that wanted to take one out.
    is_refused: bool,
    /// The generation for which all Pods were searched for orphans.
    searched: Option<i64>,
    /// UID and generation of the built-in object of the same name that was found to select other Pods.
    apart: Option<(String, i64)>,
    /// By what single Pods are refreshed, while there are so many that a pass over all of them takes its time.
    single: Option<Arc<single::By>>,
}

/// Why nothing is made, updated or deleted. What a single Pod needs by itself is done all the same: one whose update in place
/// has begun would stay out of service.
pub struct Aside {
    /// What the condition says.
    pub progress: Progress,
    /// What comes of the pass.
    pub then: kube::Result<Requeue>,
}

/// What the controllers of one kind share.
pub struct PodSets<M> {
    context: Context,
    /// The kind, and its plural in paths; the built-in kind has the same.
    kind: (&'static str, &'static str),
    /// The writer of Pods.
    pub pods: Arc<PodControl>,
    /// The writer of updates in place.
    pub in_place: InPlace,
    /// What is remembered of each set.
    pub memories: Memories<M>,
    /// What is counted.
    pub metrics: SetMetrics,
    /// Pods of large sets: what one Pod needs for itself does not wait for a pass over all of them.
    pub pod_queue: Arc<Queue<ObjectKey>>,
    status: StatusWriter,
    /// The built-in objects of this kind.
    built_in: Arc<Store<StoredName>>,
}

impl<M: Default + AsMut<Common>> PodSets<M> {
    /// For a kind, given by its name and its plural.
    pub fn new(context: &Context, kind: (&'static str, &'static str)) -> Self {
        let client = &context.client;
        let pods = Arc::new(PodControl::new(client.clone(), context.pods.clone(), context.events.clone()));
        Self {
            context: context.clone(),
            kind,
            in_place: InPlace::new(client.clone(), pods.clone()),
            pods,
            memories: Memories::default(),
            metrics: SetMetrics::new(context, kind.0),
            pod_queue: Queue::new(Backoff::default()),
            status: StatusWriter::default(),
            built_in: Store::new(None),
        }
    }

    /// Reads or changes what is remembered of a set; the default while nothing is.
    fn with<R: Default>(&self, key: &ObjectKey, f: impl FnOnce(&mut Common) -> R) -> R {
        self.memories.with(key, |memory| f(memory.as_mut())).unwrap_or_default()
    }

    /// The Pods that a set controls.
    pub fn owned(&self, owner: &OwnerRef) -> Vec<Arc<PodView>> {
        let owned = owned_text(&owner.namespace, &owner.uid);
        self.context.pods.select_by_index(&BY_CONTROLLER, &owned, |pod| owner.controls(pod))
    }

    /// The built-in objects of this kind, which a watch has to bring.
    pub fn built_in(&self) -> &Arc<Store<StoredName>> {
        &self.built_in
    }

    /// A built-in object that comes, goes or gets another spec is news for the set of its name. Those of its Pods that nobody
    /// controls any more come by another watch: when it is gone, they get some time to be seen and adopted.
    pub fn built_in_changed<K: StoredObject>(
        &self,
        change: &Change<'_, StoredName>,
        sets: &Store<K>,
        queue: &Queue<ObjectKey>,
    ) {
        let has_set = |name: &StoredName| Some(name.object_key()).filter(|key| sets.get(key).is_some());
        match change {
            Change::Applied { old: Some(old), new, .. } if old.spec() == new.spec() => {}
            Change::Applied { new, .. } => has_set(new).into_iter().for_each(|key| queue.add(key)),
            Change::Deleted(old) => has_set(old).into_iter().for_each(|key| queue.add_after(key, ADOPTION_PAUSE)),
            Change::Undecodable { .. } => {}
        }
    }

    /// Why a set steps aside: a built-in object of the same kind and name selects its Pods, or the other way round, and both
    /// would make and delete them; or nobody can say whether that is so. None: it goes on.
    ///
    /// That there is no such object is known by a watch, which may be late. So a pass that searches for Pods to adopt, as the
    /// first one of each generation does, reads it anyway, as every pass does while the watch fails.
    pub async fn aside(&self, key: &ObjectKey, of: (&LabelSelector, &Value), generation: Option<i64>) -> Option<Aside> {
        let was_searched = generation.is_some() && self.with(key, |memory| memory.searched == generation);
        if was_searched && self.is_known_apart(key) {
            return None;
        }
        let (kind, name) = (self.kind.0, &key.name);
        match self.overlaps(key, of).await {
            Ok(false) => None,
            Ok(true) => Some(Aside {
                progress: Progress::Stalled {
                    reason: format!("BuiltIn{kind}"),
                    message: format!(
                        "the built-in {kind} {name} (apps/v1) selects the same Pods; delete it with --cascade=orphan to have its Pods taken over"
                    ),
                },
                then: Ok(Requeue::After(ASIDE_PAUSE)),
            }),
            Err(error) => Some(Aside {
                progress: Progress::Waiting {
                    reason: format!("BuiltIn{kind}Unknown"),
                    message: format!(
                        "no Pod is created, updated or deleted while it cannot be read whether the built-in {kind} {name} (apps/v1) selects the same Pods: {}",
                        said(&error)
                    ),
                },
                then: Err(error),
            }),
        }
    }

    /// Whether the watch says that there is no such object, or that it is as it was when it selected other Pods.
    fn is_known_apart(&self, key: &ObjectKey) -> bool {
        let is_as_before = |named: Arc<StoredName>| {
            let apart = self.with(key, |memory| memory.apart.clone());
            apart.is_some_and(|(uid, generation)| named.spec() == (Some(&uid), Some(generation)))
        };
        self.built_in.is_current() && self.built_in.get(key).is_none_or(is_as_before)
    }

    /// Reads whether there is such an object that selects the same Pods. One that selects others is remembered.
    async fn overlaps(&self, key: &ObjectKey, of: (&LabelSelector, &Value)) -> kube::Result<bool> {
        let other = self.read_built_in(key).await?;
        let overlaps = select_alike(of, &other);
        let meta = &other["metadata"];
        let spec = meta["uid"].as_str().map(str::to_owned).zip(meta["generation"].as_i64());
        self.with(key, |memory| memory.apart = spec.filter(|_| !overlaps));
        Ok(overlaps)
    }

    /// The built-in object of the same kind and name; null if there is none.
    async fn read_built_in(&self, key: &ObjectKey) -> kube::Result<Value> {
        let sets = path::in_namespace("apps", "v1", &key.namespace, self.kind.1);
        let request = Request::new(sets).get(&key.name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.context.client.request(request).await {
            Err(error) if code(&error) == Some(404) => Ok(Value::Null),
            read => read,
        }
    }

    /// Adopts and releases Pods. One that cannot be keeps nothing from being done. `may_be_its_own` says of a Pod that
    /// nobody controls and that the selector matches whether the set may have it. All Pods are searched once for each
    /// generation, and after [`Self::search_again`].
    pub async fn claim(
        &self,
        (key, owner, generation): (&ObjectKey, &OwnerRef, Option<i64>),
        selector: &Selector,
        may_be_its_own: impl Fn(&PodView) -> bool,
        pass: &mut Pass,
    ) {
        for pod in self.owned(owner) {
            if selector.matches(&pod.labels) {
                continue;
            }
            match self.pods.release(owner, &pod).await {
                // The store shows something else by now.
                Ok(released) => pass.common.again |= !released,
                Err(error) => pass.note(Err(error)),
            }
        }
        let was_searched = self.with(key, |memory| std::mem::replace(&mut memory.searched, generation) == generation);
        if was_searched && generation.is_some() {
            return;
        }
        let mut orphans = self.context.pods.by_index(&BY_NAMESPACE, &owner.namespace);
        orphans.retain(|pod| {
            pod.controller.is_none() && !pod.is_deleting() && may_be_its_own(pod) && selector.matches(&pod.labels)
        });
        for orphan in orphans {
            match self.pods.adopt(owner, &orphan).await {
                Ok(true) => {}
                // It cannot be adopted now: nothing may ever change in it, so it is looked for again.
                Ok(false) => {
                    self.search_again(key);
                    pass.common.look_after(Some(AFTER_REFUSAL));
                }
                Err(error) => {
                    self.search_again(key);
                    pass.note(Err(error));
                }
            }
        }
    }

    /// The next pass of a set looks for Pods to adopt among all Pods.
    pub fn search_again(&self, key: &ObjectKey) {
        self.with(key, |memory| memory.searched = None);
    }

    /// Emits an event for the first Pod that a budget keeps, when none was kept before, and looks again soon.
    pub fn report_refusals(&self, key: &ObjectKey, owner: &OwnerRef, pass: &mut Pass) {
        let remember = |kept| self.with(key, |memory| Some(std::mem::replace(&mut memory.is_refused, kept)));
        pass.refusals.report((&self.pods, owner), &mut pass.common, remember);
    }
}

/// Whether another object selects the Pods of a template, or a selector those of the other one's template.
fn select_alike((selector, template): (&LabelSelector, &Value), other: &Value) -> bool {
    let selects = |selector: &Value, template: &Value| {
        let selector = serde_json::from_value(selector.clone()).ok().and_then(|s| Selector::of(&s).ok());
        let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
        let labels = serde_json::from_value(labels).unwrap_or_default();
        selector.is_some_and(|selector| selector.matches(&labels))
    };
    let ours = serde_json::to_value(selector).unwrap_or_default();
    let spec = &other["spec"];
    spec.is_object() && (selects(&spec["selector"], template) || selects(&ours, &spec["template"]))
}

/// What comes of one pass.
#[derive(Default)]
pub struct Pass {
    /// When to look again, and the first failure.
    pub common: pass::Pass,
    /// Why Pods, or what belongs to them, could not be created.
    pub create_error: Option<String>,
    /// Why they could not be changed or deleted.
    pub update_error: Option<String>,
    /// What budgets have said.
    pub refusals: Refusals,
}

impl Pass {
    /// Takes note of what came of a change, or of a deletion.
    pub fn note(&mut self, result: kube::Result<bool>) {
        let failure = self.common.note(result);
        self.update_error = self.update_error.take().or(failure);
    }

    /// Takes note of what could not be created.
    pub fn failed_to_create(&mut self, what: &str, error: kube::Error) {
        let failure = self.common.note(Err(error));
        let message = failure.map(|why| format!("{what} could not be created: {why}"));
        self.create_error = self.create_error.take().or(message);
    }

    /// What is waited for, if a budget keeps a Pod.
    pub fn kept(&self) -> Option<Wait> {
        self.refusals.kept().map(|message| Wait { reason: WAITS_FOR_BUDGET, message })
    }
}
