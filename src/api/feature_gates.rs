//! The table of feature gates: names and defaults of OpenKruise 1.9, the same for every role.
//!
//! Sources, later ones win: the table's default, the ConfigMap (through `KRUISE_FEATURE_GATES`), the flag
//! `--feature-gates`. After that [`FeatureGates::parse`] applies the dependencies between gates.

use std::{collections::BTreeMap, fmt};

/// How far a feature has come; `AllAlpha` and `AllBeta` switch whole stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for, may change.
    Alpha,
    /// Settled enough to be relied upon.
    Beta,
}

/// A known gate.
pub struct Gate {
    /// The name used in `--feature-gates`.
    pub name: &'static str,
    /// Whether it is on when nobody says otherwise.
    pub default: bool,
    /// Its stage.
    pub stage: Stage,
    /// What it switches.
    pub about: &'static str,
}

const fn on(name: &'static str, about: &'static str) -> Gate {
    Gate { name, default: true, stage: Stage::Beta, about }
}
const fn off(name: &'static str, about: &'static str) -> Gate {
    Gate { name, default: false, stage: Stage::Alpha, about }
}
const fn off_beta(name: &'static str, about: &'static str) -> Gate {
    Gate { name, default: false, stage: Stage::Beta, about }
}

/// Names of the gates that code asks for.
pub mod gate {
    /// Pod admission.
    pub const POD_WEBHOOK: &str = "PodWebhook";
    /// Everything that needs the daemon on the nodes.
    pub const KRUISE_DAEMON: &str = "KruiseDaemon";
    /// The daemon watches the Pods of its node and reports what their containers run.
    pub const DAEMON_WATCHING_POD: &str = "DaemonWatchingPod";
    /// Environments from metadata: their hashes, and restarts when they have changed.
    pub const IN_PLACE_UPDATE_ENV: &str = "InPlaceUpdateEnvFromMetadata";
    /// CloneSets have new images pulled before they update Pods in place.
    pub const PRE_DOWNLOAD: &str = "PreDownloadImageForInPlaceUpdate";
    /// DaemonSets pull images before an update.
    pub const PRE_DOWNLOAD_DAEMON_SET: &str = "PreDownloadImageForDaemonSetUpdate";
    /// Images are pulled on nodes ahead of time.
    pub const IMAGE_PULL_JOB: &str = "ImagePullJobGate";
    /// KruisePodReady for every Pod instead of only Pods of Kruise workloads.
    pub const KRUISE_POD_READINESS_GATE: &str = "KruisePodReadinessGate";
    /// Revision labels that hold only the hash.
    pub const CLONE_SET_SHORT_HASH: &str = "CloneSetShortHash";
    /// Raising the partition of a CloneSet rolls Pods back.
    pub const CLONE_SET_PARTITION_ROLLBACK: &str = "CloneSetPartitionRollback";
    /// Pods that wait for their update count as updated while a CloneSet is scaled.
    pub const PREPARING_UPDATE_AS_UPDATE: &str = "PreparingUpdateAsUpdate";
    /// A changed claim template recreates the Pods of a CloneSet.
    pub const RECREATE_ON_CLAIM_CHANGE: &str = "RecreatePodWhenChangeVCTInCloneSetGate";
    /// Processor and memory of Pods are changed in place.
    pub const RESIZE_IN_PLACE: &str = "InPlaceWorkloadVerticalScaling";
    /// Budgets guard deletion and eviction.
    pub const BUDGETS_GUARD_DELETION: &str = "PodUnavailableBudgetDeleteGate";
    /// Budgets guard updates in place, resizes and container restarts.
    pub const BUDGETS_GUARD_UPDATES: &str = "PodUnavailableBudgetUpdateGate";
    /// Resizes are operations of their own, which budgets guard when they are asked to.
    pub const POD_VERTICAL_SCALING: &str = "InPlacePodVerticalScaling";
    /// SidecarSets may patch annotations of Pods that no whitelist names.
    pub const SIDECAR_SET_METADATA: &str = "SidecarSetPatchPodMetadataDefaultsAllowed";
    /// Labels protect resources against deletion.
    pub const DELETION_PROTECTION: &str = "ResourcesDeletionProtection";
    /// Sidecars are injected sorted by name.
    pub const SORT_SIDECARS: &str = "EnableSortSidecarContainerByName";
    /// Sidecars end with the main containers of their Pods.
    pub const SIDECAR_TERMINATOR: &str = "SidecarTerminator";
    /// Secrets and ConfigMaps are copied into many namespaces.
    pub const RESOURCE_DISTRIBUTION: &str = "ResourceDistributionGate";
    /// Custom probes.
    pub const POD_PROBE_MARKER: &str = "PodProbeMarkerGate";
    /// Custom probes on serverless Pods.
    pub const SERVERLESS_PROBES: &str = "EnablePodProbeMarkerOnServerless";
    /// The webhook's certificates and registration are somebody else's to keep.
    pub const EXTERNAL_CERTS: &str = "EnableExternalCerts";
    /// Claims of a StatefulSet are deleted with it, or with their Pods, if it says so.
    pub const DELETE_CLAIMS: &str = "StatefulSetAutoDeletePVC";
    /// A StatefulSet may start at an ordinal other than 0.
    pub const START_ORDINAL: &str = "StatefulSetStartOrdinal";
    /// Claims of a StatefulSet grow with their templates.
    pub const RESIZE_CLAIMS: &str = "StatefulSetAutoResizePVCGate";
    /// Pods of a StatefulSet have a label with their ordinal.
    pub const POD_INDEX_LABEL: &str = "PodIndexLabel";
    /// Pods of workloads are spread over subsets.
    pub const WORKLOAD_SPREAD: &str = "WorkloadSpread";
    /// Templates are stored as they were written.
    pub const TEMPLATE_NO_DEFAULTS: &str = "TemplateNoDefaults";
}

/// Every gate, in the order of the documentation.
pub const GATES: &[Gate] = &[
    on(gate::POD_WEBHOOK, "Pod admission webhooks"),
    on(gate::KRUISE_DAEMON, "everything that needs the daemon on the nodes"),
    on(gate::DAEMON_WATCHING_POD, "the daemon watches the Pods of its node"),
    off(gate::CLONE_SET_SHORT_HASH, "the revision label holds only the hash"),
    off(
        gate::KRUISE_POD_READINESS_GATE,
        "inject KruisePodReady into all Pods, not only into those of Kruise workloads",
    ),
    off(gate::PRE_DOWNLOAD, "CloneSet and StatefulSet pull images before an in-place update"),
    off(gate::PRE_DOWNLOAD_DAEMON_SET, "the Advanced DaemonSet pulls images before an update"),
    on(
        "DaemonSetPruneIneligibleNodes",
        "without effect: nodes that do not fit an Advanced DaemonSet never use up its budget or its partition",
    ),
    off(gate::CLONE_SET_PARTITION_ROLLBACK, "raising a partition rolls Pods back"),
    off_beta(gate::DELETION_PROTECTION, "deletion protection of resources in use"),
    off(
        "DeletionProtectionForCRDCascadingGate",
        "without effect: ResourcesDeletionProtection is enough for CustomResourceDefinitions",
    ),
    on(gate::WORKLOAD_SPREAD, "spread the Pods of a workload over subsets"),
    on(gate::BUDGETS_GUARD_DELETION, "budgets guard deletion and eviction"),
    off(gate::BUDGETS_GUARD_UPDATES, "budgets guard in-place updates and resizes"),
    off(gate::POD_VERTICAL_SCALING, "the cluster can resize Pods in place"),
    off(gate::TEMPLATE_NO_DEFAULTS, "Pod and claim templates are not defaulted"),
    on(gate::IN_PLACE_UPDATE_ENV, "restart containers whose environment comes from changed metadata"),
    on(gate::DELETE_CLAIMS, "retention policy for claims of a StatefulSet"),
    off(gate::START_ORDINAL, "a StatefulSet may start at an ordinal other than 0"),
    off(gate::RESIZE_CLAIMS, "claims grow with their template"),
    on(gate::POD_INDEX_LABEL, "index label on the Pods of a StatefulSet"),
    off(gate::SIDECAR_SET_METADATA, "SidecarSets may patch Pod metadata without a whitelist"),
    off(gate::SIDECAR_TERMINATOR, "stop sidecars when the main containers of a job have ended"),
    off("EnableSortSidecarContainerByName", "inject sidecars sorted by name"),
    on(gate::POD_PROBE_MARKER, "custom probes"),
    off(gate::SERVERLESS_PROBES, "custom probes on serverless Pods"),
    off("EnhancedLivenessProbe", "liveness probes carried out by Kruise"),
    off("CloneSetEventHandlerOptimization", "fewer reconciles on Pod updates"),
    off(gate::PREPARING_UPDATE_AS_UPDATE, "Pods in state PreparingUpdate count as updated"),
    off(gate::RECREATE_ON_CLAIM_CHANGE, "a changed claim template recreates the Pods of a CloneSet"),
    off(gate::RESIZE_IN_PLACE, "workloads resize their Pods in place"),
    off(gate::IMAGE_PULL_JOB, "NodeImage, ImagePullJob and ImageListPullJob"),
    off(gate::RESOURCE_DISTRIBUTION, "ResourceDistribution: Secrets and ConfigMaps in many namespaces"),
    off(
        gate::EXTERNAL_CERTS,
        "the webhook serves certificates that somebody else renews, and leaves Secret and registration alone",
    ),
    off("ForceDeleteTimeoutExpectationGate", "drop scale expectations that timed out"),
];

/// Gates for features that leave no object of their own, and that nothing here carries out.
const WITHOUT_EFFECT: &[&str] = &["EnhancedLivenessProbe"];

/// Gates that are forced off while another one is off.
const NEEDS: &[(&str, &[&str])] = &[
    (
        gate::POD_WEBHOOK,
        &[
            gate::KRUISE_POD_READINESS_GATE,
            gate::BUDGETS_GUARD_DELETION,
            gate::BUDGETS_GUARD_UPDATES,
            "WorkloadSpread",
            gate::SIDECAR_SET_METADATA,
            "EnhancedLivenessProbe",
            gate::SERVERLESS_PROBES,
        ],
    ),
    (
        gate::KRUISE_DAEMON,
        &[
            gate::PRE_DOWNLOAD,
            gate::PRE_DOWNLOAD_DAEMON_SET,
            gate::DAEMON_WATCHING_POD,
            gate::IN_PLACE_UPDATE_ENV,
            gate::POD_PROBE_MARKER,
            gate::SIDECAR_TERMINATOR,
            gate::IMAGE_PULL_JOB,
            "EnhancedLivenessProbe",
        ],
    ),
    (gate::DELETION_PROTECTION, &["DeletionProtectionForCRDCascadingGate"]),
];

/// Why a list of gates was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GateError {
    /// A part is not `NAME=true` or `NAME=false`.
    #[error("feature gate {0:?}: want NAME=true or NAME=false")]
    Malformed(String),
    /// No such gate.
    #[error("unknown feature gate {0:?}; known are AllAlpha, AllBeta, {known}", known = GATES.iter().map(|g| g.name).collect::<Vec<_>>().join(", "))]
    Unknown(String),
}

/// The state of every gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl Default for FeatureGates {
    fn default() -> Self {
        Self(GATES.iter().map(|g| (g.name, g.default)).collect())
    }
}

impl FeatureGates {
    /// Every gate on, whatever it needs.
    pub fn all_on() -> Self {
        Self(GATES.iter().map(|gate| (gate.name, true)).collect())
    }

    /// Reads `A=true,B=false` lists, later lists winning, then applies the dependencies.
    ///
    /// `custom_resources` is the legacy environment variable `CUSTOM_RESOURCE_ENABLE`: a non-empty comma list without
    /// `SidecarSet` makes the default of `PodWebhook` false.
    ///
    /// # Errors
    /// A malformed part or an unknown gate, named.
    pub fn parse(lists: &[&str], custom_resources: Option<&str>) -> Result<Self, GateError> {
        let mut gates = Self::default();
        if custom_resources
            .is_some_and(|list| !list.is_empty() && !list.split(',').any(|kind| kind.trim() == "SidecarSet"))
        {
            gates.0.insert(gate::POD_WEBHOOK, false);
        }
        for list in lists {
            let mut named = Vec::new();
            for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let malformed = || GateError::Malformed(part.to_owned());
                let (name, value) = part.split_once('=').ok_or_else(malformed)?;
                let value = match value.trim().to_ascii_lowercase().as_str() {
                    "true" | "1" | "t" => true,
                    "false" | "0" | "f" => false,
                    _ => return Err(malformed()),
                };
                match name.trim() {
                    "AllAlpha" => gates.set_stage(Stage::Alpha, value),
                    "AllBeta" => gates.set_stage(Stage::Beta, value),
                    name => {
                        let known =
                            GATES.iter().find(|g| g.name == name).ok_or_else(|| GateError::Unknown(name.into()))?;
                        named.push((known.name, value));
                    }
                }
            }
            // A gate that is named wins over AllAlpha and AllBeta wherever it stands in the list.
            gates.0.extend(named);
        }
        gates.apply_dependencies();
        Ok(gates)
    }

    /// All gates of a stage but EnableExternalCerts: it does not add a feature, it says who supplies the certificates.
    /// Switched on with a whole stage, and nobody supplying them, no webhook would answer.
    fn set_stage(&mut self, stage: Stage, value: bool) {
        for known in GATES.iter().filter(|g| g.stage == stage && g.name != gate::EXTERNAL_CERTS) {
            self.0.insert(known.name, value);
        }
    }

    fn apply_dependencies(&mut self) {
        for (needed, dependents) in NEEDS {
            if !self.enabled(needed) {
                for dependent in *dependents {
                    self.0.insert(dependent, false);
                }
            }
        }
        if self.enabled(gate::PRE_DOWNLOAD) || self.enabled(gate::PRE_DOWNLOAD_DAEMON_SET) {
            self.0.insert(gate::IMAGE_PULL_JOB, true);
        }
    }

    /// Gates that are on by somebody's choice and for whose objects nothing is done: OpenKruise would act.
    pub fn without_effect(&self) -> Vec<&'static str> {
        WITHOUT_EFFECT.iter().copied().filter(|name| self.enabled(name)).collect()
    }

    /// Whether a gate is on. A name that is not in the table is off.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.get(name).copied().unwrap_or(false)
    }
}

impl fmt::Display for FeatureGates {
    /// Only the gates that differ from their default, for the log line at start.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed: Vec<String> = GATES
            .iter()
            .filter(|g| self.enabled(g.name) != g.default)
            .map(|g| format!("{}={}", g.name, self.enabled(g.name)))
            .collect();
        f.write_str(if changed.is_empty() { "defaults" } else { "" })?;
        f.write_str(&changed.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_1_9() {
        let gates = FeatureGates::parse(&[], None).unwrap();
        assert_eq!(GATES.len(), 34 + 1, "and one of a later release");
        assert!(gates.enabled("PodWebhook") && gates.enabled("KruiseDaemon") && !gates.enabled("ImagePullJobGate"));
        assert_eq!(gates.to_string(), "defaults");
    }

    #[test]
    fn a_later_list_wins_and_dependencies_follow() {
        let gates = FeatureGates::parse(&["KruiseDaemon=true", "KruiseDaemon=false"], None).unwrap();
        assert!(!gates.enabled("KruiseDaemon") && !gates.enabled("DaemonWatchingPod"));
        let gates = FeatureGates::parse(&["PreDownloadImageForInPlaceUpdate=true"], None).unwrap();
        assert!(gates.enabled("ImagePullJobGate"));
        let gates = FeatureGates::parse(&["PodWebhook=false,ResourcesDeletionProtection=true"], None).unwrap();
        assert!(!gates.enabled("WorkloadSpread") && gates.enabled("ResourcesDeletionProtection"));
    }

    #[test]
    fn a_named_gate_wins_over_its_stage() {
        let gates = FeatureGates::parse(&["CloneSetShortHash=false,AllAlpha=true"], None).unwrap();
        assert!(!gates.enabled("CloneSetShortHash") && gates.enabled("TemplateNoDefaults"));
    }

    #[test]
    fn external_certificates_are_switched_by_their_name_only() {
        let on = |list| FeatureGates::parse(&[list], None).unwrap().enabled("EnableExternalCerts");
        assert!(!on("AllAlpha=true"));
        assert!(on("AllAlpha=true,EnableExternalCerts=true"));
        assert!(on("EnableExternalCerts=true,AllAlpha=false"));
    }

    #[test]
    fn gates_that_do_nothing_are_reported_when_they_are_on() {
        assert_eq!(FeatureGates::default().without_effect(), Vec::<&str>::new());
        let on = FeatureGates::parse(&["SidecarTerminator=true,EnhancedLivenessProbe=true"], None).unwrap();
        assert_eq!(on.without_effect(), ["EnhancedLivenessProbe"]);
        assert!(WITHOUT_EFFECT.iter().all(|name| GATES.iter().any(|gate| gate.name == *name)));
        let without_daemon = FeatureGates::parse(&["SidecarTerminator=true,KruiseDaemon=false"], None).unwrap();
        assert_eq!(without_daemon.without_effect(), Vec::<&str>::new());
    }

    #[test]
    fn unknown_feature_gate_is_named() {
        let error = FeatureGates::parse(&["Nope=true"], None).unwrap_err();
        assert!(error.to_string().starts_with("unknown feature gate \"Nope\"; known are AllAlpha"), "{error}");
        assert_eq!(FeatureGates::parse(&["PodWebhook"], None), Err(GateError::Malformed("PodWebhook".into())));
        assert_eq!(
            FeatureGates::parse(&["PodWebhook=maybe"], None),
            Err(GateError::Malformed("PodWebhook=maybe".into()))
        );
    }

    #[test]
    fn custom_resource_enable_without_sidecar_set_turns_the_pod_webhook_default_off() {
        assert!(!FeatureGates::parse(&[], Some("CloneSet")).unwrap().enabled("PodWebhook"));
        assert!(FeatureGates::parse(&["PodWebhook=true"], Some("CloneSet")).unwrap().enabled("PodWebhook"));
        assert!(FeatureGates::parse(&[], Some("CloneSet,SidecarSet")).unwrap().enabled("PodWebhook"));
    }
}
