//! Which Pods a budget covers, and how many there should be.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, ResourceExt};

use super::{Budgets, is_replica_set, lock, scope_of, totals::Asked};
use crate::{
    api::{group_of, policy::pod_unavailable_budget::PodUnavailableBudget},
    domain::budgets::unavailable::{Total, index::Cover},
    k8s::{
        pod::{Labels, PodView},
        selector::{self, Selector},
    },
    runtime::{
        clock,
        replicas::Kind,
        watches::ObjectKey,
        workload::{self, Scope, Workload},
    },
};

/// How the Pods of a budget are found.
#[derive(Clone, Debug, PartialEq)]
pub enum Members {
    /// Those with fitting labels.
    Selector(Selector),
    /// Those of a workload, and a selector for lists.
    Scope(Scope, String),
    /// The Pods of a workload that cannot be read: those that it controls directly, and those whose annotation names the
    /// budget.
    ByName {
        /// API group.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// The budget.
        budget: String,
    },
    /// None.
    Nothing,
}

impl Members {
    /// A selector that selects all of them in a list.
    pub(super) fn listing(&self, budget: &PodUnavailableBudget) -> Option<String> {
        let text = match self {
            Self::Selector(_) => budget.spec.selector.as_ref().map(selector::text_of).unwrap_or_default(),
            Self::Scope(_, listing) => listing.clone(),
            Self::ByName { .. } | Self::Nothing => String::new(),
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Workloads that were read lately.
pub struct Workloads {
    client: Client,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    by_name: HashMap<[String; 4], (Duration, Workload)>,
    /// Incremented whenever an entry is dropped: a response that was requested before may be outdated.
    forgotten: u64,
}

/// Maximum number of cached workloads; with more, the cache is emptied.
const REMEMBERED: usize = 2000;

impl Workloads {
    /// None read yet.
    pub(super) fn new(client: Client) -> Self {
        Self { client, read: Mutex::default() }
    }

    /// Reads a workload, or returns the cached one if it is not older than `age`.
    async fn read(
        &self,
        namespace: &str,
        (api_version, kind, name): (&str, &str, &str),
        age: Duration,
    ) -> kube::Result<Workload> {
        let key = [namespace, api_version, kind, name].map(str::to_owned);
        let now = clock::now().mono;
        let forgotten = {
            let read = lock(&self.read);
            match read.by_name.get(&key) {
                Some((then, workload)) if now.saturating_sub(*then) < age => return Ok(workload.clone()),
                _ => read.forgotten,
            }
        };
        let workload = workload::read(&self.client, namespace, (api_version, kind, name)).await?;
        let mut read = lock(&self.read);
        if read.by_name.len() >= REMEMBERED {
            read.by_name.clear();
        }
        if read.forgotten == forgotten {
            read.by_name.insert(key, (now, workload.clone()));
        }
        Ok(workload)
    }

    /// Drops a workload from the cache.
    pub(super) fn forget(&self, named: Kind, workload: &ObjectKey) {
        let is_meant = |[namespace, api_version, kind, name]: &[String; 4]| {
            *namespace == *workload.namespace
                && *name == *workload.name
                && Kind::of(group_of(api_version), kind) == Some(named)
        };
        let mut read = lock(&self.read);
        read.by_name.retain(|key, _| !is_meant(key));
        read.forgotten += 1;
    }
}

/// Whether an owner is this workload; the version does not count.
fn is_named(api_version: &str, own_kind: &str, own_name: &str, (group, kind, name): (&str, &str, &str)) -> bool {
    group_of(api_version) == group && own_kind == kind && own_name == name
}

impl Budgets {
    /// Which Pods a budget covers, and how many there should be unless that depends on the Pods.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn members(
        &self,
        budget: &PodUnavailableBudget,
        age: Duration,
    ) -> kube::Result<(Members, Option<Total>)> {
        let namespace = budget.namespace().unwrap_or_default();
        let (group, kind, name) = match Cover::of(&budget.spec) {
            Cover::Target { group, kind, name } => (group, kind, name),
            Cover::Selector(selector) => return Ok((Members::Selector(selector), None)),
            Cover::Nothing(why) => return Ok((Members::Nothing, Some(Total::Unknown("InvalidSpec", why)))),
        };
        let api_version = budget.spec.target_ref.as_ref().map_or("", |target| &target.api_version);
        Ok(match self.workloads.read(&namespace, (api_version, &kind, &name), age).await? {
            Workload::Found { is_going: true, .. } => {
                let why = format!("spec.targetRef: {kind} {name:?} is being deleted");
                (Members::ByName { group, kind, name, budget: budget.name_any() }, Some(Total::NoWorkload(why)))
            }
            Workload::Found { scope, listing, desired, .. } => {
                let total = match desired {
                    Some(desired) => Total::Known(desired.try_into().unwrap_or(i32::MAX)),
                    None => Total::Unknown(
                        "NoReplicas",
                        format!("spec.targetRef: {kind} {name:?} does not say how many Pods it wants"),
                    ),
                };
                (Members::Scope(scope, listing), Some(total))
            }
            Workload::Missing(why) => {
                (Members::ByName { group, kind, name, budget: budget.name_any() }, Some(Total::NoWorkload(why)))
            }
            // By the selector that was found while it could be read, or that the manager has found.
            Workload::Unreadable(reason, why) => {
                let members = match scope_of(budget) {
                    Some(selector) => {
                        let listing = budget.status.as_ref().and_then(|status| status.selector.clone());
                        Members::Scope(Scope::Labels(selector), listing.unwrap_or_default())
                    }
                    None => Members::ByName { group, kind, name, budget: budget.name_any() },
                };
                (members, Some(Total::Unknown(reason, why)))
            }
        })
    }

    /// Those of some Pods that a budget covers.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn of_members(
        &self,
        namespace: &str,
        members: &Members,
        mut pods: Vec<Arc<PodView>>,
    ) -> kube::Result<Vec<Arc<PodView>>> {
        pods.retain(|pod| {
            let owner = pod.controller.as_ref();
            match members {
                Members::Selector(selector) | Members::Scope(Scope::Labels(selector), _) => {
                    selector.matches(&pod.labels)
                }
                Members::Scope(Scope::Owner(uid), _) => owner.is_some_and(|owner| owner.uid == *uid),
                Members::Scope(Scope::Deployment(_, selector), _) => {
                    owner.is_some_and(|owner| is_replica_set(owner)) && selector.matches(&pod.labels)
                }
                // Those of ReplicaSets are handled below.
                Members::ByName { group, kind, name, budget } => {
                    pod.related_pub.as_ref().is_some_and(|related| related.as_str() == budget)
                        || owner.is_some_and(|owner| {
                            is_replica_set(owner)
                                || is_named(&owner.api_version, &owner.kind, &owner.name, (group, kind, name))
                        })
                }
                Members::Nothing => false,
            }
        });
        match members {
            Members::Scope(Scope::Deployment(uid, _), _) => {
                let ours = self.replica_sets(namespace, &pods, |above| above.uid == *uid).await?;
                pods.retain(|pod| pod.controller.as_ref().is_some_and(|owner| ours.contains(&owner.uid)));
            }
            Members::ByName { group, kind, name, budget } => {
                let is_target = |above: &OwnerReference| {
                    is_named(&above.api_version, &above.kind, &above.name, (group, kind, name))
                };
                let ours = self.replica_sets(namespace, &pods, is_target).await?;
                pods.retain(|pod| {
                    let is_of_target = pod.controller.as_ref().is_some_and(|owner| {
                        ours.contains(&owner.uid)
                            || is_named(&owner.api_version, &owner.kind, &owner.name, (group, kind, name))
                    });
                    is_of_target || pod.related_pub.as_ref().is_some_and(|related| related.as_str() == budget)
                });
            }
            _ => {}
        }
        Ok(pods)
    }

    /// The UIDs of the ReplicaSets of some Pods whose own controller fits.
    async fn replica_sets(
        &self,
        namespace: &str,
        pods: &[Arc<PodView>],
        fits: impl Fn(&OwnerReference) -> bool,
    ) -> kube::Result<BTreeSet<String>> {
        let owners = pods.iter().filter_map(|pod| pod.controller.as_ref()).filter(|owner| is_replica_set(owner));
        let sets: BTreeMap<&str, &str> = owners.map(|owner| (owner.uid.as_str(), owner.name.as_str())).collect();
        let mut found = BTreeSet::new();
        for (set, name) in sets {
            let above = self.owners.of(&self.client, namespace, name, set).await?;
            if above.is_some_and(|above| fits(&above)) {
                found.insert(set.to_owned());
            }
        }
        Ok(found)
    }

    /// The sum of the replicas of the workloads of some Pods. A Pod without a controller counts as one, and so does each Pod
    /// of a workload that the budget covers only partly: how large that part should be is not known.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn total_of(
        &self,
        budget: &ObjectKey,
        members: &Members,
        pods: &[Arc<PodView>],
        age: Duration,
    ) -> kube::Result<Total> {
        let namespace = &*budget.namespace;
        let covers_all = |labels: &Option<Labels>| match (members, labels) {
            (Members::Selector(selector), Some(labels)) => selector.matches(labels),
            _ => true,
        };
        let mut sum = pods.iter().filter(|pod| pod.controller.is_none() && pod.is_active()).count();
        let owners: BTreeMap<&str, _> =
            pods.iter().filter_map(|pod| pod.controller.as_ref()).map(|owner| (owner.uid.as_str(), owner)).collect();
        let (mut counted, mut unknown) = (BTreeSet::new(), None);
        let mut asked = Asked::default();
        for (uid, owner) in owners {
            let own = (owner.api_version.clone(), owner.kind.clone(), owner.name.clone());
            let above = match is_replica_set(owner) {
                true => self.owners.of(&self.client, namespace, &owner.name, uid).await?,
                false => None,
            };
            let above = above.map(|above| (above.api_version, above.kind, above.name));
            let mut known = false;
            // In a chain of owners the topmost workload that can be read gives the number.
            for (api_version, kind, name) in above.into_iter().chain([own]) {
                if counted.contains(&(api_version.clone(), kind.clone(), name.clone())) {
                    known = true;
                    break;
                }
                asked.add(namespace, group_of(&api_version), &kind, &name);
                match self.workloads.read(namespace, (&api_version, &kind, &name), age).await? {
                    // Its Pods are counted below.
                    Workload::Found { labels, is_going: false, .. } if !covers_all(&labels) => break,
                    Workload::Found { is_going, desired, .. } => {
                        sum += desired.filter(|_| !is_going).unwrap_or(0);
                        counted.insert((api_version, kind, name));
                        known = true;
                        break;
                    }
                    Workload::Missing(_) => {
                        known = true;
                        break;
                    }
                    Workload::Unreadable("Forbidden", why) => unknown = Some(("Forbidden", why)),
                    // A kind that does not say how many it wants.
                    Workload::Unreadable(..) => {}
                }
            }
            if !known {
                let is_its = |pod: &&Arc<PodView>| pod.controller.as_ref().is_some_and(|o| o.uid == uid);
                sum += pods.iter().filter(is_its).filter(|pod| pod.is_active()).count();
            }
        }
        self.ask_about(budget, asked);
        let sum = sum.try_into().unwrap_or(i32::MAX);
        Ok(match unknown {
            None => Total::Known(sum),
            Some((reason, why)) => Total::Estimated(sum, reason, why.replace("spec.targetRef", "a workload")),
        })
    }
}
