//! Every label, annotation, finalizer and condition key, in one place.

/// Label on a request: UID of the Pod it means. Set at admission, immutable.
pub const CRR_POD_UID: &str = "crr.apps.kruise.io/pod-uid";
/// Label on a request: node of the Pod. Set at admission, immutable; the node's daemon selects by it.
pub const CRR_NODE_NAME: &str = "crr.apps.kruise.io/node-name";
/// Label on a request that has not ended: `true`. Set at admission, removed by the manager.
pub const CRR_ACTIVE: &str = "crr.apps.kruise.io/active";
/// Label on a request that the manager serves, with the value [`CRR_METHOD_POD_SPEC`]. Set at admission, immutable.
/// Such a request never has the label [`CRR_ACTIVE`], so that a daemon that does not know it leaves it alone.
pub const CRR_METHOD: &str = "crr.kruise.rs/method";
/// Value of [`CRR_METHOD`]: the manager spells the container's image differently.
pub const CRR_METHOD_POD_SPEC: &str = "PodSpec";
/// Annotation on a Pod: which spellings of its containers' images were used for restarts, and when.
pub const IMAGE_SPELLINGS: &str = "kruise.rs/image-spellings";
/// Annotation on a request: when the Pod was made NotReady for it (RFC 3339, UTC). Immutable once set.
pub const CRR_UNREADY_ACQUIRED: &str = "crr.apps.kruise.io/unready-acquired";
/// Finalizer on a request that may hold a NotReady key on its Pod.
pub const CRR_UNREADY_FINALIZER: &str = "crr.apps.kruise.io/unready-acquired";
/// Annotation through which OpenKruise's v1alpha1 daemon learns container states. Read-only for us.
pub const CRR_SYNC_CONTAINER_STATUSES: &str = "crr.apps.kruise.io/sync-container-statuses";
/// Label on virtual Nodes and, copied, on requests for their Pods.
pub const NODE_TYPE: &str = "type";
/// Value of [`NODE_TYPE`] for virtual Nodes.
pub const NODE_TYPE_VIRTUAL_KUBELET: &str = "virtual-kubelet";

/// Condition of a request: the Pod was made NotReady, the grace before the stop runs.
pub const CONDITION_PRE_RECREATE_GRACE: &str = "PreRecreateGrace";
/// Condition of a request: its daemon was gone for too long after a stop had been recorded. The message says why.
pub const CONDITION_DAEMON_GONE: &str = "DaemonGone";
/// Readiness gate and Pod condition through which Kruise makes a Pod NotReady.
pub const CONDITION_KRUISE_POD_READY: &str = "KruisePodReady";
/// Readiness gate and Pod condition of in-place updates.
pub const CONDITION_INPLACE_UPDATE_READY: &str = "InPlaceUpdateReady";
/// Pod condition that is True while kubelet restarts all containers of the Pod because a restart rule says so.
pub const CONDITION_ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
/// Pod condition that the sidecar terminator sets on Pods it has ended.
pub const CONDITION_SIDECAR_TERMINATED: &str = "SidecarTerminated";

/// Label on a request that a WorkloadRestart made: the WorkloadRestart's UID.
pub const WORKLOAD_RESTART: &str = "kruise.rs/workload-restart";
/// Label on a request that a WorkloadRestart made: the round, decimal.
pub const WORKLOAD_RESTART_ROUND: &str = "kruise.rs/workload-restart-round";
/// Annotation on a Pod: when its node was asked to refresh the Pod's volumes. Any change of it is such a request.
pub const VOLUMES_REFRESH: &str = "kruise.rs/volumes-refresh";
/// Label on ClusterRoles whose rules the manager gets too.
pub const AGGREGATE_TO_MANAGER: &str = "kruise.rs/aggregate-to-manager";
/// Label on ClusterRoles whose rules the webhook gets too.
pub const AGGREGATE_TO_WEBHOOK: &str = "kruise.rs/aggregate-to-webhook";
/// Condition of a WorkloadRestart: what it does or waits for.
pub const CONDITION_PROGRESSING: &str = "Progressing";
/// Condition of PodProbeMarkers: False while something of the spec is not carried out as it is written.
pub const CONDITION_AS_SPECIFIED: &str = "AsSpecified";
/// Condition of a WorkloadRestart: the round ended well.
pub const CONDITION_COMPLETE: &str = "Complete";
/// Condition of a WorkloadRestart: the round was given up.
pub const CONDITION_FAILED: &str = "Failed";
/// Condition of a WorkloadRestart: whether its triggers can be watched.
pub const CONDITION_TRIGGERS_READABLE: &str = "TriggersReadable";

/// Annotation on the mirror Pod of a static Pod: the UID under which the runtime knows the Pod.
pub const STATIC_POD_CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation that marks the mirror Pod of a static Pod.
pub const STATIC_POD_MIRROR: &str = "kubernetes.io/config.mirror";
/// What annotations with the AppArmor profile of a container begin with, before its name. The field is newer.
pub const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Likewise with its seccomp profile.
pub const SECCOMP_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// CRI label: Pod UID.
pub const CRI_POD_UID: &str = "io.kubernetes.pod.uid";
/// CRI label: Pod namespace.
pub const CRI_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// CRI label: Pod name.
pub const CRI_POD_NAME: &str = "io.kubernetes.pod.name";
/// CRI label: container name.
pub const CRI_CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// CRI annotation: kubelet's hash of the definition that the instance was made from, hexadecimal.
pub const CRI_CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// CRI annotation: restart count of the instance, decimal.
pub const CRI_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";

/// Label on our daemon's Pods, by which the manager finds them.
pub const DAEMON_SELECTOR: &str = "control-plane=daemon";
/// Label that every kruise-rs object of an installation carries.
pub const CONTROL_PLANE: &str = "control-plane";
/// Value of [`CONTROL_PLANE`] on the Pods of the daemon.
pub const CONTROL_PLANE_DAEMON: &str = "daemon";

/// Label on a Pod and on its claims: the id that they share.
pub const INSTANCE_ID: &str = "apps.kruise.io/cloneset-instance-id";
/// Label on a Pod: the name of its revision, or its hash alone.
pub const CONTROLLER_REVISION_HASH: &str = "controller-revision-hash";
/// Label on a Pod: the hash of its revision.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Label on a Pod of a StatefulSet: its name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label on a Pod of a StatefulSet: its ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Annotation on a claim that a StatefulSet grows: the set's name.
pub const OWNED_BY_STATEFUL_SET: &str = "apps.kruise.io/owned-by-asts";
/// Label on a revision: its hash.
pub const REVISION_HASH: &str = "controller.kubernetes.io/hash";
/// Label on a Pod, whatever its value: it is to be deleted.
pub const SPECIFIED_DELETE: &str = "apps.kruise.io/specified-delete";
/// Annotation on a Pod that we marked with [`SPECIFIED_DELETE`] so that another one takes its place: the revision that
/// this one is to have. Marks without it are somebody else's.
pub const SPECIFIED_DELETE_FOR: &str = "kruise.rs/specified-delete-for";
/// Label on a CloneSet: `true` if Pods that wait for their preDelete hook do not count as replicas.
pub const EXCLUDE_PREPARING_DELETE: &str = "apps.kruise.io/cloneset-scaling-exclude-preparing-delete";
/// Annotation on a CloneSet: `true` has it adopt its Pods and claims that nobody controls, as a restore from a backup leaves
/// them.
pub const ADOPT_ORPHANS: &str = "kruise.rs/adopt-orphans";
/// Label on a Pod: its lifecycle state.
pub const LIFECYCLE_STATE: &str = "lifecycle.apps.kruise.io/state";
/// Annotation on a Pod: when its lifecycle state was written.
pub const LIFECYCLE_TIMESTAMP: &str = "lifecycle.apps.kruise.io/timestamp";
/// Annotation on a Pod: how far its update in place is.
pub const IN_PLACE_STATE: &str = "apps.kruise.io/inplace-update-state";
/// [`IN_PLACE_STATE`] as it was once called.
pub const IN_PLACE_STATE_LEGACY: &str = "inplace-update-state";
/// Annotation on a Pod: what its update in place will write when the grace is over.
pub const IN_PLACE_GRACE: &str = "apps.kruise.io/inplace-update-grace";
/// [`IN_PLACE_GRACE`] as it was once called.
pub const IN_PLACE_GRACE_LEGACY: &str = "inplace-update-grace";
/// Annotation on a Pod: what the daemon found its containers to run.
pub const RUNTIME_CONTAINERS_META: &str = "apps.kruise.io/runtime-containers-meta";
/// Annotation on a Pod into which SidecarSets were injected: their hashes. On a SidecarSet and its revisions: its hash.
pub const SIDECAR_SET_HASH: &str = "kruise.io/sidecarset-hash";
/// The same for the hash that images do not enter.
pub const SIDECAR_SET_HASH_WITHOUT_IMAGE: &str = "kruise.io/sidecarset-hash-without-image";
/// Annotation on a Pod: the SidecarSets that were injected, by name, with commas between them.
pub const SIDECAR_SETS_INJECTED: &str = "kruise.io/sidecarset-injected-list";
/// Annotation on a Pod: how far the updates in place of its sidecars are, by SidecarSet.
pub const SIDECAR_SET_IN_PLACE_STATE: &str = "kruise.io/sidecarset-inplace-update-state";
/// Annotation on a Pod: which of the two containers of each hot-upgraded sidecar works.
pub const SIDECAR_SET_WORKING: &str = "kruise.io/sidecarset-working-hotupgrade-container";
/// Annotation on a Pod, with the name of a container behind it: the version of that container of a hot-upgraded sidecar.
pub const SIDECAR_SET_VERSION_PREFIX: &str = "version.sidecarset.kruise.io/";
/// The same for the version of the other container of the two.
pub const SIDECAR_SET_VERSION_ALT_PREFIX: &str = "versionalt.sidecarset.kruise.io/";
/// Label on a revision of a SidecarSet: the SidecarSet's name.
pub const SIDECAR_SET_NAME: &str = "kruise.io/sidecarset-name";
/// Label on a revision of a SidecarSet, and on a SidecarSet of v1alpha1: the version that its author has given it.
pub const SIDECAR_SET_CUSTOM_VERSION: &str = "apps.kruise.io/sidecarset-custom-version";
/// Annotation on a Pod: the SidecarSets that select it and could not be injected when it was created, each with the reason.
pub const SIDECAR_SETS_LEFT_OUT: &str = "kruise.rs/sidecarset-left-out";
/// Annotation on a SidecarSet: what happens where a Pod has resources of its own, as a whole, and the sidecars do not fit
/// into them. `pad`, the default: the Pod's grow by the sidecars'; `share`: the sidecars live on the Pod's.
pub const POD_LEVEL_RESOURCES: &str = "kruise.rs/pod-level-resources";
/// Annotation on a Pod: what was done for that, in words. For people.
pub const POD_LEVEL_ADJUSTED: &str = "kruise.rs/pod-level-resources-adjusted";
/// Annotation on a SidecarSet, with the value `evict`: Pods that lack its containers are evicted, a few at a time, where their
/// controllers make others that have them.
pub const REPAIR_UNINJECTED: &str = "kruise.rs/repair-uninjected";
/// Annotation on a Pod in a dry run: it is tried whether a Pod like it would get its sidecars. No Pod that is stored has it.
pub const TRIAL: &str = "kruise.rs/trial";
/// Label on a Namespace, with the value [`SIDECARS_REQUIRED`]: no Pod is created there without its sidecars.
pub const SIDECARS: &str = "kruise.rs/sidecars";
/// Value of [`SIDECARS`].
pub const SIDECARS_REQUIRED: &str = "required";
/// Environment variable of injected containers, with the value `true`.
pub const ENV_IS_INJECTED: &str = "IS_INJECTED";
/// Environment variable of both containers of a hot-upgraded sidecar: the version of this one.
pub const ENV_SIDECAR_SET_VERSION: &str = "SIDECARSET_VERSION";
/// The same for the version of the other one.
pub const ENV_SIDECAR_SET_VERSION_ALT: &str = "SIDECARSET_VERSION_ALT";
/// Pod condition: whether each SidecarSet can update its sidecars in the Pod in place.
pub const CONDITION_SIDECAR_SET_UPGRADABLE: &str = "SidecarSetUpgradable";
/// Annotation on a Pod: what its deletion costs, compared with its equals.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation on a StatefulSet: changes of the template for single ordinals, as JSON.
pub const ORDINAL_OVERRIDES: &str = "kruise.rs/ordinal-overrides";
/// Annotation on a Pod of a StatefulSet: the hash of the override that it was made or updated with.
pub const ORDINAL_OVERRIDE_HASH: &str = "kruise.rs/ordinal-override-hash";
/// Annotation on a Pod of a StatefulSet: that override, as JSON. A later one changes the Pod from it.
pub const ORDINAL_OVERRIDE: &str = "kruise.rs/ordinal-override";
/// Annotation on a StatefulSet: a label of its Pods and values of it, `KEY=VALUE,VALUE`; Pods with these values are updated
/// last, in this order.
pub const UPDATE_ORDER: &str = "kruise.rs/update-order";
/// Annotation on a DaemonSet: `true` creates Pods only as far as the partition goes; v1alpha1's way to say
/// `scaleStrategy.partitionedScaling`.
pub const PROGRESSIVE_CREATE: &str = "daemonset.kruise.io/progressive-create-pod";
/// Annotation on a DaemonSet: `true` lets an update take an available Pod only while fewer Pods than maxUnavailable are
/// unavailable, old and new ones together, and a Pod that is down only while fewer new Pods than that are.
pub const STRICT_MAX_UNAVAILABLE: &str = "kruise.rs/strict-max-unavailable";
/// Annotation on a DaemonSet: `KEY=NUMBER`; of the nodes with the same value of the label KEY no more than NUMBER are without
/// an available Pod because of an update.
pub const MAX_UNAVAILABLE_PER_TOPOLOGY: &str = "kruise.rs/max-unavailable-per-topology";
/// Annotation on a DaemonSet: `true` keeps it away from a cordoned node from which its Pod was evicted, until the node is
/// uncordoned.
pub const STAY_AWAY_AFTER_EVICTION: &str = "kruise.rs/stay-away-after-eviction";
/// Annotation on a DaemonSet: seconds between NotReady and the change of an update in place.
pub const IN_PLACE_GRACE_SECONDS: &str = "kruise.rs/in-place-grace-period-seconds";
/// Label on a Pod of a DaemonSet with a strict limit: since when its node was not Ready when it was made or
/// updated in place, in seconds, if the node was lost before that.
pub const NODE_NOT_READY_SINCE: &str = "kruise.rs/node-not-ready-since";
/// Annotation on a Pod: `true` says to cluster-autoscaler that it belongs to a DaemonSet.
pub const AUTOSCALER_DAEMON_SET_POD: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";
/// Label on a Pod of a DaemonSet: the number in its annotation [`TEMPLATE_GENERATION`], as the built-in DaemonSet has it.
pub const POD_TEMPLATE_GENERATION: &str = "pod-template-generation";
/// Annotation on a DaemonSet: the number for [`POD_TEMPLATE_GENERATION`].
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// Annotation on a revision: the hash of the claim templates that it came with.
pub const CLAIM_TEMPLATES_HASH: &str = "kruise.io/cloneset-volumeclaimtemplate-hash";

/// Annotation on a StatefulSet: `true` makes a PersistentPodState of its name.
pub const AUTO_GENERATE_STATE: &str = "kruise.io/auto-generate-persistent-pod-state";
/// Annotation on a StatefulSet with [`AUTO_GENERATE_STATE`]: keys of node labels, with commas between them, that the nodes of
/// a Pod have to share.
pub const REQUIRED_TOPOLOGY: &str = "kruise.io/required-persistent-topology";
/// The same for those that they should share.
pub const PREFERRED_TOPOLOGY: &str = "kruise.io/preferred-persistent-topology";
/// The same for the annotations that a Pod gets back.
pub const PERSISTENT_ANNOTATIONS: &str = "kruise.io/persistent-pod-annotations";
/// Annotation on a Pod: the PersistentPodState whose records it was created with.
pub const INJECTED_STATE: &str = "kruise.io/injected-persistent-pod-state";
/// Annotation on a Pod with [`INJECTED_STATE`]: the node labels that its node selector has from there, with commas between
/// them.
pub const RESTORED_TOPOLOGY: &str = "kruise.rs/restored-topology";
/// Annotation on a PersistentPodState: after so many seconds without being Ready a node holds no Pod any more.
pub const CLEAR_AFTER_NOT_READY: &str = "kruise.rs/clear-after-node-not-ready-seconds";

/// Annotation on a copy of a Secret or ConfigMap: the name of its ResourceDistribution.
pub const DISTRIBUTED_FROM: &str = "kruise.io/resourcedistribution.resource.from";
/// Annotation on a copy of a Secret or ConfigMap: a hash of what it was made from.
pub const DISTRIBUTED_HASH: &str = "kruise.io/resourcedistribution.resource.hashcode";
/// Label or annotation on a Namespace: with `true` no ResourceDistribution copies anything into it.
pub const REFUSE_DISTRIBUTION: &str = "kruise.rs/refuse-distribution";

/// Annotation on a Pod: `Ordered` starts its containers one after the other, as they are listed.
pub const LAUNCH_PRIORITY: &str = "apps.kruise.io/container-launch-priority";
/// Value of [`LAUNCH_PRIORITY`].
pub const LAUNCH_PRIORITY_ORDERED: &str = "Ordered";
/// Annotation on a Pod: `true` once its launch priorities have done their work.
pub const LAUNCH_PRIORITY_COMPLETED: &str = "apps.kruise.io/container-launch-priority-completed";
/// Annotation on a Pod: the launch priority that may start now. A change of it makes kubelet look again at once.
pub const LAUNCH_PRIORITY_OPENED: &str = "kruise.rs/launch-priority-opened";
/// Environment variable of a container: its launch priority.
pub const ENV_LAUNCH_PRIORITY: &str = "KRUISE_CONTAINER_PRIORITY";
/// Environment variable of a container that holds it back: it refers to a key that is not there yet.
pub const ENV_LAUNCH_BARRIER: &str = "KRUISE_CONTAINER_BARRIER";

/// Environment variable of a container: with `true` it is ended when the main containers of its Pod have ended.
pub const ENV_TERMINATE_SIDECAR: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
/// The same on virtual nodes: the image that takes the place of the container's own then, and that exits at once.
pub const ENV_TERMINATE_SIDECAR_WITH_IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
/// Environment variable beside [`ENV_TERMINATE_SIDECAR`]: with `true` the exit code of the sidecar says nothing about the Pod.
pub const ENV_IGNORE_EXIT_CODE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";
/// Environment variable of an ephemeral container: the UID of the EphemeralJob that added it.
pub const ENV_EPHEMERAL_JOB: &str = "KRUISE_EJOB_ID";
/// Finalizer that OpenKruise puts on EphemeralJobs. Nothing can be taken out of Pods again: it is only ever taken away.
pub const EPHEMERAL_JOB_FINALIZER: &str = "apps.kruise.io/ephemeralcontainers-cleanup";
/// Label on a request that the sidecar terminator made: the UID of its Pod.
pub const SIDECAR_TERMINATION: &str = "kruise.rs/sidecar-termination";

/// Annotation on a workload: nodes that pull a new image at a time, before Pods are updated to it.
pub const PRE_DOWNLOAD_PARALLELISM: &str = "apps.kruise.io/image-predownload-parallelism";
/// Annotation on a workload: seconds that one such attempt may take.
pub const PRE_DOWNLOAD_TIMEOUT: &str = "apps.kruise.io/image-predownload-timeout-seconds";
/// Annotation on a workload: how many Pods have to be ready on the new revision first.
pub const PRE_DOWNLOAD_MIN_UPDATED_READY: &str = "apps.kruise.io/image-predownload-min-updated-ready-pods";
/// Label on a revision: its images are pulled by ImagePullJobs. The doubled "pre" is how it was once spelled.
pub const PRE_DOWNLOAD_CREATED: &str = "apps.kruise.io/pre-predownload-created";
/// Label on a revision: pulling its images beforehand is not worth while.
pub const PRE_DOWNLOAD_IGNORED: &str = "apps.kruise.io/image-predownload-ignored";

/// Annotation on a Pod: the name of the PodUnavailableBudget that protects it.
pub const RELATED_PUB: &str = "kruise.io/related-pub";
/// Annotation on a Pod: `true` takes it out of the protection of budgets.
pub const PUB_NO_PROTECT: &str = "pub.kruise.io/no-protect";
/// Annotation on a PodUnavailableBudget: what it protects against, some of DELETE, EVICT, UPDATE and RESIZE.
pub const PUB_PROTECT_OPERATIONS: &str = "kruise.io/pub-protect-operations";
/// Annotation on a PodUnavailableBudget: the number of Pods that there should be, instead of what workloads say.
pub const PUB_PROTECT_TOTAL_REPLICAS: &str = "pub.kruise.io/protect-total-replicas";
/// Beginning of labels that take a Pod out of service, whatever follows.
pub const UNAVAILABLE_POD_PREFIX: &str = "unavailable-pod.kruise.io/";
/// Condition of a PodProbeMarker: False while it names keys or conditions that no probe writes.
pub const CONDITION_ACCEPTED: &str = "Accepted";
/// Condition of a PodUnavailableBudget: whether its Pods and their number could be found.
pub const CONDITION_RESOLVED: &str = "Resolved";
/// Condition of a PodUnavailableBudget: whether it guards updates in place, resizes and container restarts.
pub const CONDITION_PROTECTS_UPDATES: &str = "ProtectsUpdates";
/// Label on an object that is not to be deleted: [`DELETE_PROTECTION_ALWAYS`] or [`DELETE_PROTECTION_CASCADING`].
pub const DELETE_PROTECTION: &str = "policy.kruise.io/delete-protection";
/// Value of [`DELETE_PROTECTION`]: not while it has this label.
pub const DELETE_PROTECTION_ALWAYS: &str = "Always";
/// Value of [`DELETE_PROTECTION`]: not while something that is in use would go with it.
pub const DELETE_PROTECTION_CASCADING: &str = "Cascading";
/// Finalizer on a PodProbeMarker: what it wrote on Pods is removed first.
pub const PROBE_CLEANUP_FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";
/// Annotation on a PodProbeMarker: the labels, annotations and conditions that its Pods may carry from it.
pub const PROBE_MARKS: &str = "kruise.rs/probe-marks";
/// Annotation on a Pod: names of the PodProbeMarkers whose labels, annotations and conditions it may carry, sorted, with
/// commas between them.
pub const PROBE_MARKED_BY: &str = "kruise.rs/probe-marked-by";
/// Annotation of a serverless Pod: what the provider of its node is to probe.
pub const SERVERLESS_PROBES: &str = "kruise.io/podprobe";
/// Annotation beside it: the PodProbeMarkers that the Pod was created under, sorted, with commas between them.
pub const SERVERLESS_PROBE_MARKERS: &str = "kruise.io/podprobemarker-list";

/// Finalizer that OpenKruise puts on ImagePullJobs for the copies of their Secrets. There are no such copies here: it is
/// only ever taken away.
pub const IMAGE_PULL_JOB_FINALIZER: &str = "apps.kruise.io/deletion-protection";
/// Annotation of the jobs of an AdvancedCronJob: the time for which one was made.
pub const SCHEDULED_AT: &str = "apps.kruise.io/scheduled-at";
/// Annotation of a job that somebody had made of a CronJob or AdvancedCronJob outside its schedule; the value is `manual`.
pub const CRON_JOB_INSTANTIATE: &str = "cronjob.kubernetes.io/instantiate";
/// Label on a NodeImage: it stays although no Node has its name.
pub const FAKE_NODE_IMAGE: &str = "apps.kruise.io/fake-nodeimage";
/// Annotation that the daemon gives to the runtime with every pull.
pub const PULLING_IMAGE_BY: &str = "apps.kruise.io/pulling-image-by";
/// Value of [`PULLING_IMAGE_BY`].
pub const PULLING_IMAGE_BY_DAEMON: &str = "kruise-daemon";
/// Label on a Pod of a BroadcastJob: the name of the job.
pub const BROADCAST_JOB_NAME: &str = "broadcastjob-name";
/// Label on a Pod of a BroadcastJob: the UID of the job.
pub const BROADCAST_JOB_UID: &str = "broadcastjob-controller-uid";
/// Annotation on a BroadcastJob of failure policy Pause: how many failed Pods do not pause it again. It has been paused for them,
/// or they had failed while it was paused.
pub const PAUSED_AT_FAILED: &str = "kruise.rs/paused-at-failed";
/// Label on a Pod of a BroadcastJob that was stopped and has failed: the reason.
pub const STOPPED_FOR: &str = "kruise.rs/stopped-for";
/// Value of [`STOPPED_FOR`]: its containers were restarted more often than `failurePolicy.restartLimit` allows.
pub const STOPPED_FOR_RESTARTS: &str = "RestartLimitExceeded";
/// Annotation on an EphemeralJob: which Pods its counts of ended ones contain, so that they stay exact when Pods go and end
/// while no manager runs.
pub const COUNTED_PODS: &str = "kruise.rs/counted-pods";
/// Annotation of our webhook configurations, by an administrator: where API servers reach the webhook without the Service,
/// as `https://HOST:PORT`. The webhook registers no other URL.
pub const WEBHOOK_URL: &str = "kruise.rs/webhook-url";

/// Label on the workload of a subset, on its selector and on its Pods: the name of the subset of a UnitedDeployment.
pub const SUBSET_NAME: &str = "apps.kruise.io/subset-name";
/// Label on the workload of a subset and on its Pods: the ControllerRevision of the UnitedDeployment.
pub const UNITED_REVISION: &str = "apps.kruise.io/controller-revision-hash";
/// Annotation on the workload of a subset: the patch of the subset, as text.
pub const SUBSET_PATCH: &str = "apps.kruise.io/subset-patch";
/// Label on Pods of a UnitedDeployment that keeps Pods which find no place: whether this is one of them.
pub const RESERVED_POD: &str = "apps.kruise.io/united-deployment-reserved-pod";
/// Annotation on a UnitedDeployment: how many Pods of all its subsets together a roll-out may have out of service.
pub const UNITED_MAX_UNAVAILABLE: &str = "kruise.rs/max-unavailable";
/// Annotation on the workload of a subset: the maxUnavailable that was written into it instead of that of the template.
pub const SUBSET_MAX_UNAVAILABLE: &str = "kruise.rs/subset-max-unavailable";

/// Annotation on a Pod: the WorkloadSpread and the subset that it was created in or belongs to, as JSON.
pub const MATCHED_SPREAD: &str = "apps.kruise.io/matched-workloadspread";
/// Annotation on a WorkloadSpread, with the value `true` in any case: Pods that were there before it, and those that the
/// webhook has missed, get no labels and annotations of the patches.
pub const IGNORE_PATCH_METADATA: &str = "workloadspread.kruise.io/ignore-patch-existing-pods-metadata";

/// Domains of labels and annotations that Kubernetes and Kruise write, their subdomains included.
pub const SYSTEM_DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "kruise.io", "kruise.rs"];

/// Whether a domain is another one or below it.
pub fn is_below(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Those of them that are Kruise's.
const KRUISE_DOMAINS: [&str; 2] = ["kruise.io", "kruise.rs"];

/// Whether the key of a label or annotation is of a domain of Kubernetes or Kruise.
pub fn is_of_system(key: &str) -> bool {
    is_of(key, &SYSTEM_DOMAINS)
}

/// Whether the key of a label or annotation is of a domain of Kruise.
pub fn is_of_kruise(key: &str) -> bool {
    is_of(key, &KRUISE_DOMAINS)
}

fn is_of(key: &str, domains: &[&str]) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domains.iter().any(|parent| is_below(domain, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_kubernetes_and_kruise_are_known_by_their_domain() {
        for (key, wanted) in [
            ("kruise.io/sidecarset-hash", true),
            ("apps.kruise.io/container-launch-priority", true),
            ("kubernetes.io/x", true),
            ("a.b.k8s.io/x", true),
            ("kruise.rs/x", true),
            ("notkruise.io/x", false),
            ("kruise.io", false),
            ("kruise.io.example.com/x", false),
            ("example.com/kruise.io", false),
            ("x", false),
        ] {
            assert_eq!(is_of_system(key), wanted, "{key}");
            assert_eq!(is_of_kruise(key), wanted && key.contains("kruise."), "{key}");
        }
    }
}
