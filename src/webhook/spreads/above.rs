//! What stands above a Pod: its controller, what controls that, and so on, as far as somebody asks; and targets that are read.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{Spreads, Unplaced, WHITELIST_AGE};
use crate::{
    api::{
        apps::{self, workload_spread::WorkloadSpread},
        labels,
    },
    domain::{
        kinds::workload_spread::{
            count::{of_ordinal, schedulable},
            matching::Above,
            replicas,
            spec::{SpreadSpec, TargetKind, named_target},
        },
        workload::numbering::{Ordinals, Reserved},
    },
    k8s::invalid::Invalid,
    runtime::{
        apply::said,
        clock, kruise_configuration as configuration,
        object::{self, Found},
    },
};

/// The most controllers above a Pod that are looked at.
const HIGHEST: usize = 5;

impl Spreads {
    /// The chain of controllers above a Pod, as far as some of these may be for one of them. They are sorted by age, and where
    /// one is found only an older one is looked for.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub(super) async fn above(
        &self,
        namespace: &str,
        owner: Above,
        spreads: &[Arc<WorkloadSpread>],
    ) -> Result<Vec<Above>, Unplaced> {
        let mut chain = vec![owner];
        let mut open = spreads;
        while let Some(top) = chain.last().cloned()
            && chain.len() < HIGHEST
        {
            open = open.iter().position(|spread| top.is_target_of(spread)).map_or(open, |found| &open[..found]);
            let is_for = |spread: &WorkloadSpread, kind: TargetKind| TargetKind::of_target(spread) == Some(kind);
            let has_custom = open.iter().any(|spread| is_for(spread, TargetKind::Custom));
            // The name of a Deployment's ReplicaSet begins with that of the Deployment.
            let may_be_of_deployment = |set: &str| {
                open.iter().filter(|spread| is_for(spread, TargetKind::Deployment)).any(|spread| {
                    set.strip_prefix(spread.spec.target_ref.name.as_str()).is_some_and(|rest| rest.starts_with('-'))
                })
            };
            let is_set = TargetKind::of(top.group(), &top.kind) == TargetKind::ReplicaSet;
            let next = if is_set && (has_custom || may_be_of_deployment(&top.name)) {
                let read = self.replica_sets.of(&self.client, namespace, &top.name, &top.uid).await;
                let failed = |error| Unplaced::ApiServer(format!("ReplicaSet {}: {}", top.name, said(&error)));
                let owner = read.map_err(failed)?;
                owner.map(|owner| Above {
                    api_version: owner.api_version,
                    kind: owner.kind,
                    name: owner.name,
                    uid: owner.uid,
                })
            } else if has_custom {
                let is_known = TargetKind::of(top.group(), &top.kind) != TargetKind::Custom;
                match is_known || configuration::names_between(&self.whitelist().await?, top.group(), &top.kind) {
                    true => self
                        .read(namespace, (&top.api_version, &top.kind, &top.name))
                        .await?
                        .as_ref()
                        .and_then(Above::of),
                    false => None,
                }
            } else {
                None
            };
            let Some(next) = next else { break };
            chain.push(next);
        }
        Ok(chain)
    }

    /// Read now or a moment ago. Whoever comes while it is being read waits for that.
    async fn whitelist(&self) -> Result<Arc<str>, Unplaced> {
        let mut known = self.whitelist.lock().await;
        let now = clock::now().mono;
        if let Some((_, text)) = known.as_ref().filter(|(read, _)| now < *read + WHITELIST_AGE) {
            return Ok(text.clone());
        }
        let text = configuration::text(&self.client, &self.own_namespace, configuration::SPREAD_TARGETS).await;
        let text = text.map_err(|error| {
            Unplaced::ApiServer(format!("the ConfigMap {} could not be read: {}", configuration::NAME, said(&error)))
        })?;
        let text: Arc<str> = text.unwrap_or_default().into();
        *known = Some((now, text.clone()));
        Ok(text)
    }

    /// An object. None: it is not there.
    async fn read(&self, namespace: &str, names: (&str, &str, &str)) -> Result<Option<Value>, Unplaced> {
        let (_, kind, name) = names;
        let failed = |why: &str| Unplaced::ApiServer(format!("{kind} {name:?} could not be read: {why}"));
        let read = object::read(&self.client, namespace, names).await.map_err(|error| failed(&said(&error)))?;
        if let Some(why) = read.refusal("Kruise's webhook", labels::AGGREGATE_TO_WEBHOOK) {
            return Err(failed(&why));
        }
        Ok(match read {
            Found::Object(object) => Some(object),
            Found::Missing | Found::Forbidden(..) | Found::Impossible => None,
        })
    }

    /// The target of a WorkloadSpread.
    ///
    /// # Errors
    /// It can name none, or it cannot be read.
    pub(super) async fn target(&self, spread: &WorkloadSpread) -> Result<Option<Value>, Unplaced> {
        let target = named_target(spread).map_err(|Invalid(why)| Unplaced::Unusable(why))?;
        let namespace = spread.metadata.namespace.as_deref().unwrap_or_default();
        self.read(namespace, target.names()).await
    }

    /// How many Pods the target wants now; one that is not there wants none.
    ///
    /// # Errors
    /// It cannot be read, or does not say it.
    pub(super) async fn total(&self, spread: &WorkloadSpread, spec: &SpreadSpec) -> Result<i32, Unplaced> {
        let Some(target) = self.target(spread).await? else { return Ok(0) };
        let configured = match spec.target_kind {
            TargetKind::Custom => configuration::replicas_path(&self.whitelist().await?, &spec.group, &spec.kind),
            _ => None,
        };
        replicas::total(spec, &target, configured.as_deref()).map_err(|Invalid(why)| Unplaced::Unusable(why))
    }

    /// The subset of a Pod of a StatefulSet.
    ///
    /// # Errors
    /// The StatefulSet cannot be read, its ordinals cannot, or no subset has room.
    pub(super) async fn by_ordinal(
        &self,
        spread: &WorkloadSpread,
        spec: &SpreadSpec,
        pod: &Value,
    ) -> Result<usize, Unplaced> {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let ordinal = name.rsplit_once('-').and_then(|(_, digits)| digits.parse::<i32>().ok()).unwrap_or(-1);
        let target = self.target(spread).await?.unwrap_or_default();
        let number =
            |pointer: &str| target.pointer(pointer).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok());
        let reserved = target.pointer("/spec/reserveOrdinals").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
        let reserved: Vec<IntOrString> = serde_json::from_value(reserved)
            .map_err(|error| Unplaced::Unusable(format!("spec.reserveOrdinals: {error}")))?;
        let reserved = Reserved::parse(&reserved).map_err(|Invalid(why)| Unplaced::Unusable(why))?;
        // Without its gate an Advanced StatefulSet does not look at it.
        let has_start = self.has_start_ordinals || spec.group != apps::GROUP;
        let start = number("/spec/ordinals/start").filter(|_| has_start).unwrap_or_default();
        // Whether it is wanted does not matter: its place is that of its number.
        let ordinals = Ordinals::new(i32::MAX, start, &reserved);
        let status = spread.status.clone().unwrap_or_default();
        let place = if ordinal < 0 { -1 } else { ordinals.place(ordinal) };
        of_ordinal(&spec.limits(0), &schedulable(spec, &status), place).ok_or(Unplaced::Full)
    }
}
