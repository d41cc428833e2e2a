//! A Pod as it comes from the API server, as JSON or as protobuf ([`super::protobuf`]), and what we keep of it.

use std::{borrow::Cow, fmt, num::NonZeroU32, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{
    ContainerState, ContainerStatusView, ContainerView, DISRUPTION_TARGET, EphemeralView, InPlaceNotes, LONGEST_NOTE,
    Labels, LastExit, OverrideNotes, Owner, POD_SCHEDULED, PodCondition, PodView, Rare, SidecarNotes, SpecView,
    SpreadNote, Waiting, variables::job_id,
};
use crate::{
    api::labels as keys,
    k8s::shared::{Pool, Text},
};

static OWNERS: Pool<Owner> = Pool::new();
static SPECS: Pool<SpecView> = Pool::new();
static CONDITIONS: Pool<[PodCondition]> = Pool::new();

pub(super) fn interned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    Ok(Option::<Text>::deserialize(deserializer)?.unwrap_or_default().into())
}

pub(super) fn has_pre_stop<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hooks {
        pre_stop: Option<IgnoredAny>,
    }
    Ok(Option::<Hooks>::deserialize(deserializer)?.is_some_and(|hooks| hooks.pre_stop.is_some()))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireMeta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<Text>,
    pub(super) uid: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) resource_version: Option<String>,
    pub(super) creation_timestamp: Option<Time>,
    pub(super) deletion_timestamp: Option<Time>,
    pub(super) labels: Option<Labels>,
    pub(super) annotations: Option<WireAnnotations>,
    pub(super) owner_references: Option<Vec<WireOwner>>,
    pub(super) finalizers: Option<Box<[Text]>>,
}

/// Only the annotations we read; the others are skipped without being allocated.
#[derive(Default)]
pub(super) struct WireAnnotations {
    config_hash: Option<Box<str>>,
    config_mirror: Option<Box<str>>,
    image_spellings: Option<Box<str>>,
    launch_completed: Option<Box<str>>,
    related_pub: Option<Box<str>>,
    no_protect: Option<Box<str>>,
    sidecar_set_hash: Option<Box<str>>,
    sidecar_set_hash_without_image: Option<Box<str>>,
    sidecar_sets_injected: Option<Box<str>>,
    sidecar_set_state: Option<Box<str>>,
    sidecar_set_working: Option<Box<str>>,
    deletion_cost: Option<Box<str>>,
    in_place_state: Option<Box<str>>,
    in_place_state_legacy: Option<Box<str>>,
    in_place_grace: Option<Box<str>>,
    in_place_grace_legacy: Option<Box<str>>,
    runtime_meta: Option<Box<str>>,
    specified_delete_for: Option<Box<str>>,
    probe_marked_by: Option<Box<str>>,
    override_hash: Option<Box<str>>,
    override_content: Option<Box<str>>,
    matched_spread: Option<Box<str>>,
}

impl WireAnnotations {
    /// Where the value of an annotation belongs, if we read it.
    pub(super) fn slot(&mut self, key: &str) -> Option<&mut Option<Box<str>>> {
        Some(match key {
            "kubernetes.io/config.hash" => &mut self.config_hash,
            "kubernetes.io/config.mirror" => &mut self.config_mirror,
            "kruise.rs/image-spellings" => &mut self.image_spellings,
            "apps.kruise.io/container-launch-priority-completed" => &mut self.launch_completed,
            "kruise.io/related-pub" => &mut self.related_pub,
            "pub.kruise.io/no-protect" => &mut self.no_protect,
            "kruise.io/sidecarset-hash" => &mut self.sidecar_set_hash,
            "kruise.io/sidecarset-hash-without-image" => &mut self.sidecar_set_hash_without_image,
            "kruise.io/sidecarset-injected-list" => &mut self.sidecar_sets_injected,
            "kruise.io/sidecarset-inplace-update-state" => &mut self.sidecar_set_state,
            "kruise.io/sidecarset-working-hotupgrade-container" => &mut self.sidecar_set_working,
            "controller.kubernetes.io/pod-deletion-cost" => &mut self.deletion_cost,
            "apps.kruise.io/inplace-update-state" => &mut self.in_place_state,
            "inplace-update-state" => &mut self.in_place_state_legacy,
            "apps.kruise.io/inplace-update-grace" => &mut self.in_place_grace,
            "inplace-update-grace" => &mut self.in_place_grace_legacy,
            "apps.kruise.io/runtime-containers-meta" => &mut self.runtime_meta,
            "kruise.rs/specified-delete-for" => &mut self.specified_delete_for,
            "kruise.rs/probe-marked-by" => &mut self.probe_marked_by,
            "kruise.rs/ordinal-override-hash" => &mut self.override_hash,
            "kruise.rs/ordinal-override" => &mut self.override_content,
            "apps.kruise.io/matched-workloadspread" => &mut self.matched_spread,
            _ => return None,
        })
    }

    /// What few Pods have in their annotations.
    fn rare(&mut self) -> Rare {
        Rare {
            config_hash: self.config_hash.take(),
            ordinal_override: self.ordinal_override(),
            specified_delete_for: up_to(LONGEST_NOTE, self.specified_delete_for.take()),
            image_spellings: up_to(LONGEST_NOTE, self.image_spellings.take()),
            spread: up_to(LONGEST_NOTE, self.matched_spread.take())
                .and_then(|text| SpreadNote::parse(&text))
                .map(Box::new),
            probe_marked_by: up_to(LONGEST_NOTE, self.probe_marked_by.take())
                .as_deref()
                .filter(|names| !names.is_empty())
                .map(Text::from),
            ..Rare::default()
        }
    }

    /// What SidecarSets have noted, if one was injected.
    fn sidecar_sets<'s>(
        &mut self,
        statuses: impl Iterator<Item = &'s WireContainerStatus>,
    ) -> Option<Box<SidecarNotes>> {
        self.sidecar_sets_injected.as_ref()?;
        let annotations = [
            (keys::SIDECAR_SET_HASH, self.sidecar_set_hash.clone()),
            (keys::SIDECAR_SET_HASH_WITHOUT_IMAGE, self.sidecar_set_hash_without_image.take()),
            (keys::SIDECAR_SETS_INJECTED, self.sidecar_sets_injected.take()),
            (keys::SIDECAR_SET_IN_PLACE_STATE, self.sidecar_set_state.take()),
            (keys::SIDECAR_SET_WORKING, self.sidecar_set_working.take()),
        ];
        let is_cut = annotations.iter().any(|(_, text)| text.as_ref().is_some_and(|text| text.len() > LONGEST_NOTE));
        let kept = annotations.into_iter().filter_map(|(key, text)| Some((key, up_to(LONGEST_NOTE, text)?)));
        let images = statuses.map(|s| (s.name.clone(), s.image.clone().unwrap_or_default()));
        Some(Box::new(SidecarNotes { annotations: kept.collect(), is_cut, running_images: images.collect() }))
    }

    fn ordinal_override(&mut self) -> Option<Box<OverrideNotes>> {
        let notes = OverrideNotes {
            hash: up_to(OverrideNotes::LONGEST_HASH, self.override_hash.take()),
            content: up_to(OverrideNotes::LONGEST_CONTENT, self.override_content.take()).map(Arc::from),
        };
        (notes != OverrideNotes::default()).then(|| Box::new(notes))
    }

    /// When the last update in place began, in seconds.
    fn updated_in_place(&self) -> Option<NonZeroU32> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct State {
            update_timestamp: Timestamp,
        }
        let state = self.in_place_state.as_deref().or(self.in_place_state_legacy.as_deref());
        let state = state.filter(|text| text.len() <= InPlaceNotes::LONGEST)?;
        let State { update_timestamp } = serde_json::from_str(state).ok()?;
        NonZeroU32::new(update_timestamp.as_second().try_into().ok()?)
    }

    /// The notes of an update in place that is not done, as far as a Pod shows: its state is neither Updating, nor is a
    /// change pending, nor the gate closed, when it is.
    fn in_place(
        &mut self,
        labels: &Labels,
        conditions: &[PodCondition],
        statuses: &Option<Vec<WireContainerStatus>>,
        (generation, observed_generation): (Option<i64>, Option<i64>),
    ) -> Option<Box<InPlaceNotes>> {
        let longest = InPlaceNotes::LONGEST;
        let readable = |text: Box<str>| if text.len() > longest { Box::default() } else { text };
        let state = self.in_place_state.take().or_else(|| self.in_place_state_legacy.take()).map(readable);
        let grace = self.in_place_grace.take().or_else(|| self.in_place_grace_legacy.take()).map(readable);
        let gate = conditions.iter().find(|c| c.type_ == keys::CONDITION_INPLACE_UPDATE_READY);
        let is_done = labels.get(keys::LIFECYCLE_STATE) != Some("Updating") && gate.is_none_or(|c| c.status == "True");
        if grace.is_none() && (state.is_none() || is_done) {
            return None;
        }
        let images = statuses.iter().flatten().map(|s| (s.name.clone(), s.image.clone().unwrap_or_default()));
        Some(Box::new(InPlaceNotes {
            state,
            grace,
            runtime_meta: up_to(longest, self.runtime_meta.take()),
            running_images: images.collect(),
            generation,
            observed_generation,
        }))
    }
}

/// A text that is no longer than so many bytes.
fn up_to(longest: usize, text: Option<Box<str>>) -> Option<Box<str>> {
    text.filter(|text| text.len() <= longest)
}

impl<'de> Deserialize<'de> for WireAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
        struct Slots;
        impl<'de> Visitor<'de> for Slots {
            type Value = WireAnnotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut annotations = WireAnnotations::default();
                while let Some(Key(key)) = map.next_key()? {
                    match annotations.slot(&key) {
                        Some(slot) => *slot = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(annotations)
            }
        }
        deserializer.deserialize_map(Slots)
    }
}

/// The deletion cost that an annotation gives: a 32-bit decimal without `+` and leading zeros; anything else counts as
/// none.
pub(super) fn deletion_cost(annotation: Option<&str>) -> i32 {
    let digits = annotation.map_or("", |text| text.strip_prefix('-').unwrap_or(text));
    let canonical = digits == "0" || !digits.starts_with(['0', '+', '-']);
    annotation.filter(|_| canonical).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The fields of [`Owner`] once more: flattening them would hold every owner reference twice while it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireOwner {
    pub(super) controller: Option<bool>,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireSpec {
    pub(super) node_name: Option<Text>,
    pub(super) affinity: Option<WireAffinity>,
    pub(super) restart_policy: Option<Text>,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) readiness_gates: Option<Vec<WireGate>>,
    pub(super) containers: Option<Vec<ContainerView>>,
    pub(super) init_containers: Option<Vec<ContainerView>>,
    pub(super) ephemeral_containers: Option<Vec<WireEphemeral>>,
    pub(super) volumes: Option<Vec<WireVolume>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireEphemeral {
    pub(super) name: Text,
    #[serde(rename = "env", deserialize_with = "job_id")]
    pub(super) job: Option<Box<str>>,
}

/// Ephemeral containers with the states that kubelet has reported of them.
fn ephemeral(containers: Vec<WireEphemeral>, statuses: Vec<WireContainerStatus>) -> Box<[EphemeralView]> {
    let mut states: Vec<(Text, ContainerState)> =
        statuses.into_iter().map(|status| (status.name, status.state.unwrap_or_default().into())).collect();
    let view = |WireEphemeral { name, job }: WireEphemeral| {
        let at = states.iter().position(|(of, _)| *of == name);
        let state = at.map(|at| states.swap_remove(at).1).unwrap_or_default();
        EphemeralView { name, job, state }
    };
    containers.into_iter().map(view).collect()
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireAffinity {
    pub(super) node_affinity: Option<WireNodeAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(super) required: Option<WireNodeSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireNodeSelector {
    pub(super) node_selector_terms: Option<Vec<WireTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireTerm {
    pub(super) match_fields: Option<Vec<WireRequirement>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireRequirement {
    pub(super) key: Text,
    pub(super) operator: Text,
    pub(super) values: Option<Vec<Text>>,
}

/// The node that a field of the affinity names.
fn aim(affinity: Option<WireAffinity>) -> Option<Text> {
    let terms = affinity?.node_affinity?.required?.node_selector_terms?;
    let fields = terms.into_iter().filter_map(|term| term.match_fields).flatten();
    let mut names = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    match <[Text; 1]>::try_from(names.next()?.values?) {
        Ok([name]) => Some(name),
        Err(_) => None,
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireVolume {
    pub(super) name: String,
    pub(super) persistent_volume_claim: Option<WireClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireClaim {
    pub(super) claim_name: String,
}

/// The volumes whose claim is named after the volume and the Pod.
fn own_claims(pod: &str, volumes: Vec<WireVolume>) -> Vec<String> {
    let is_own = |WireVolume { name, persistent_volume_claim }: &WireVolume| {
        let claim = persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()).unwrap_or_default();
        let rest = claim.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('-'));
        !pod.is_empty() && rest == Some(pod)
    };
    let mut names: Vec<String> = volumes.into_iter().filter(is_own).map(|volume| volume.name).collect();
    names.sort_unstable();
    names
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireGate {
    pub(super) condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireStatus {
    pub(super) phase: Option<Text>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    pub(super) observed_generation: Option<i64>,
    pub(super) conditions: Option<Vec<WireCondition>>,
    pub(super) container_statuses: Option<Vec<WireContainerStatus>>,
    pub(super) init_container_statuses: Option<Vec<WireContainerStatus>>,
    pub(super) ephemeral_container_statuses: Option<Vec<WireContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireCondition {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) status: String,
    pub(super) message: String,
    pub(super) reason: String,
    pub(super) last_transition_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainerStatus {
    pub(super) name: Text,
    pub(super) image: Option<Text>,
    #[serde(rename = "containerID")]
    pub(super) container_id: Option<String>,
    #[serde(rename = "imageID", deserialize_with = "interned")]
    pub(super) image_id: Arc<str>,
    pub(super) ready: bool,
    pub(super) started: Option<bool>,
    pub(super) restart_count: i32,
    pub(super) state: Option<WireState>,
    pub(super) last_state: Option<WireState>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireState {
    pub(super) waiting: Option<WireWaiting>,
    pub(super) running: Option<WireRunning>,
    pub(super) terminated: Option<WireTerminated>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireWaiting {
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireRunning {
    pub(super) started_at: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireTerminated {
    pub(super) exit_code: i32,
    pub(super) finished_at: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WirePod {
    pub(super) metadata: WireMeta,
    pub(super) spec: WireSpec,
    pub(super) status: WireStatus,
}

impl<'de> Deserialize<'de> for PodView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        WirePod::deserialize(deserializer).map(Self::from)
    }
}

/// The conditions without what nobody reads of them, and since when Ready is as it is.
fn kept(all: Vec<WireCondition>) -> (Vec<PodCondition>, Option<Timestamp>) {
    let mut ready_since = None;
    let mut conditions = Vec::new();
    for condition in all {
        let WireCondition { type_, status, mut message, mut reason, last_transition_time } = condition;
        let is_data = match &*type_ {
            keys::CONDITION_KRUISE_POD_READY => true,
            keys::CONDITION_SIDECAR_SET_UPGRADABLE => message.len() <= LONGEST_NOTE,
            _ => false,
        };
        if !is_data {
            message = String::new();
        }
        if type_ != DISRUPTION_TARGET && type_ != POD_SCHEDULED {
            reason = String::new();
        }
        if type_ == "Ready" {
            ready_since = last_transition_time;
        }
        conditions.push(PodCondition { type_, status, reason, message });
    }
    (conditions, ready_since)
}

impl From<WirePod> for PodView {
    fn from(WirePod { metadata: meta, spec, status }: WirePod) -> Self {
        let mut annotations = meta.annotations.unwrap_or_default();
        let mut labels = meta.labels.unwrap_or_default();
        let mut sidecars = spec.init_containers.unwrap_or_default();
        sidecars.retain(|c| c.restart_policy.as_deref() == Some("Always"));
        let mut init_statuses = status.init_container_statuses.unwrap_or_default();
        let is_plain = |s: &&WireContainerStatus| !sidecars.iter().any(|c| c.name == s.name);
        let init_restarts = init_statuses.iter().filter(is_plain).map(|s| s.restart_count).fold(0, i32::saturating_add);
        init_statuses.retain(|s| sidecars.iter().any(|c| c.name == s.name));
        let (conditions, ready_since) = kept(status.conditions.unwrap_or_default());
        let generations = (meta.generation, status.observed_generation);
        let updated_in_place = annotations.updated_in_place();
        let mut rare = annotations.rare();
        rare.in_place = annotations.in_place(&labels, &conditions, &status.container_statuses, generations);
        rare.sidecar_sets = annotations.sidecar_sets(status.container_statuses.iter().flatten().chain(&init_statuses));
        rare.init_restarts = init_restarts;
        rare.deleted = meta.deletion_timestamp.map(|time| time.0);
        rare.finalizers = meta.finalizers.unwrap_or_default();
        rare.ephemeral = ephemeral(
            spec.ephemeral_containers.unwrap_or_default(),
            status.ephemeral_container_statuses.unwrap_or_default(),
        );
        let node_name = spec.node_name.unwrap_or_default();
        rare.aims_at = if node_name.is_empty() { aim(spec.affinity).filter(|node| !node.is_empty()) } else { None };
        let own_claims = own_claims(meta.name.as_deref().unwrap_or_default(), spec.volumes.unwrap_or_default());
        let gates = spec.readiness_gates.unwrap_or_default().into_iter().map(|gate| gate.condition_type);
        let spec = SpecView {
            restart_policy: spec.restart_policy.unwrap_or_default(),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            readiness_gates: gates.collect(),
            own_claims: own_claims.into(),
            containers: spec.containers.unwrap_or_default().into(),
            sidecars: sidecars.into(),
        };
        let statuses = status.container_statuses.unwrap_or_default().into_iter().chain(init_statuses);
        let name: Arc<str> = meta.name.unwrap_or_default().into();
        // A StatefulSet writes the name into a label, too.
        labels.share(&name);
        Self {
            name,
            namespace: meta.namespace.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default().into(),
            resource_version: meta.resource_version.unwrap_or_default().into(),
            created: meta.creation_timestamp.map(|time| time.0),
            controller: meta.owner_references.unwrap_or_default().into_iter().find(|o| o.controller == Some(true)).map(
                |WireOwner { api_version, kind, name, uid, .. }| OWNERS.share(Owner { api_version, kind, name, uid }),
            ),
            rare: (rare != Rare::default()).then(|| Box::new(rare)),
            deletion_cost: deletion_cost(annotations.deletion_cost.as_deref()),
            updated_in_place,
            launch_completed: annotations.launch_completed.as_deref() == Some("true"),
            related_pub: up_to(LONGEST_NOTE, annotations.related_pub)
                .as_deref()
                .filter(|name| !name.is_empty())
                .map(Text::from),
            no_protect: annotations.no_protect.as_deref() == Some("true"),
            kubelet_is_behind: matches!(generations, (Some(asked), Some(seen)) if seen < asked),
            is_mirror: annotations.config_mirror.is_some(),
            has_sidecar_set: annotations.sidecar_set_hash.is_some(),
            is_daemon: labels.get(keys::CONTROL_PLANE) == Some(keys::CONTROL_PLANE_DAEMON),
            labels,
            node_name,
            spec: SPECS.share(spec),
            phase: status.phase.unwrap_or_default(),
            ready_since,
            pod_ip: status.pod_ip.unwrap_or_default().into(),
            conditions: CONDITIONS.share(conditions),
            container_statuses: statuses.map(ContainerStatusView::from).collect(),
        }
    }
}

impl From<WireContainerStatus> for ContainerStatusView {
    fn from(status: WireContainerStatus) -> Self {
        let last_exit = status.last_state.and_then(|state| state.terminated);
        Self {
            name: status.name,
            container_id: status.container_id.unwrap_or_default().into(),
            ready: status.ready,
            is_starting: status.started == Some(false),
            restart_count: status.restart_count,
            image_id: status.image_id,
            last_exit: last_exit
                .map(|exit| Box::new(LastExit { exit_code: exit.exit_code, finished_at: exit.finished_at })),
            state: status.state.unwrap_or_default().into(),
        }
    }
}

impl From<WireState> for ContainerState {
    fn from(state: WireState) -> Self {
        match state {
            WireState { running: Some(running), .. } => Self::Running { started_at: running.started_at },
            WireState { terminated: Some(exit), .. } => Self::Terminated { exit_code: exit.exit_code },
            WireState { waiting: Some(waiting), .. } => Self::Waiting(Box::new(Waiting {
                reason: waiting.reason.unwrap_or_default(),
                message: waiting.message.unwrap_or_default(),
            })),
            WireState { waiting: None, running: None, terminated: None } => Self::Unknown,
        }
    }
}
