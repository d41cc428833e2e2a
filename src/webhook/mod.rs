//! The webhook role: admission over TLS.
//!
//! Owns the entries of [`CONFIGURATION`] and [`VALIDATING_CONFIGURATION`] that point at its Service, the Secret that holds
//! its certificates, and the binding of the policy that protects against deletion. Never touches entries of others.
//! Handlers are pure functions over raw JSON with a thin shell for their reads.
//!
//! To add a handler: write its file under `kinds` and one entry in [`HANDLERS`], for a kind of ours with
//! [`Handler::pair`]. Routes, registration and RBAC follow from the table.

pub mod announced;
pub mod broadcast_job_spec;
pub mod image_job_spec;
pub mod kinds;
pub mod pod_states;
pub mod server;
pub mod sidecars;
pub mod spreads;
pub mod template;
pub mod validate;
pub mod workload;

use std::sync::{Arc, LazyLock};

use prometheus_client::metrics::counter::Counter;

use self::{
    announced::Announced,
    kinds::{
        advanced_cron_job, broadcast_job, clone_set, container_recreate_request, daemon_set, deletion_protection,
        ephemeral_job, image_pull_job, persistent_pod_state, pod, pod_budget, pod_probe_marker, pod_unavailable_budget,
        resource_distribution, serverless_probes, sidecar_set, stateful_set, united_deployment, workload_spread,
    },
    pod_states::PodStates,
    server::handler::{Handle, Handler, Names, Namespaces, Operation, Phase, Target, not_being_deleted, spec_changed},
    sidecars::Sidecars,
    spreads::Spreads,
};
use crate::{
    api::{
        apps,
        feature_gates::{FeatureGates, gate},
        policy,
    },
    budgets::Budgets,
    runtime::{events::Recorder, kruise_configuration},
};

/// The MutatingWebhookConfiguration that manifests install and the webhook role keeps up to date.
pub const CONFIGURATION: &str = "kruise-mutating-webhook-configuration";
/// The ValidatingWebhookConfiguration, likewise.
pub const VALIDATING_CONFIGURATION: &str = "kruise-validating-webhook-configuration";
/// The Service in front of the webhook role.
pub const SERVICE: &str = "kruise-webhook-service";
/// The Secret with the certificates.
pub const SECRET: &str = "kruise-webhook-certs";

/// What handlers share.
pub struct Context {
    /// The cluster's feature gates.
    pub gates: FeatureGates,
    /// For live reads.
    pub client: kube::Client,
    /// Our own namespace, where the daemons are.
    pub namespace: Arc<str>,
    /// The PodUnavailableBudgets.
    pub budgets: Arc<Budgets>,
    /// The SidecarSets.
    pub sidecars: Arc<Sidecars>,
    /// The PersistentPodStates.
    pub pod_states: Arc<PodStates>,
    /// The WorkloadSpreads.
    pub spreads: Arc<Spreads>,
    /// Namespaces in which the API server has to ask about new Pods.
    pub for_new_pods: Announced,
    /// Namespaces in which it has to ask PodUnavailableBudgets.
    pub for_budgets: Announced,
    /// For events.
    pub events: Recorder,
}

impl Context {
    /// A context, and the task that sends its events.
    pub fn new(
        gates: FeatureGates,
        client: kube::Client,
        namespace: Arc<str>,
        events_dropped: Counter,
    ) -> (Self, impl Future<Output = ()>) {
        let budgets = Budgets::new(client.clone(), Arc::new(gates.clone()));
        let sidecars = Sidecars::new(client.clone(), &gates, namespace.clone());
        let pod_states = PodStates::new(client.clone());
        let (events, send) = Recorder::new(client.clone(), "kruise-webhook", "", events_dropped);
        let spreads = Spreads::new(client.clone(), &gates, namespace.clone(), events.clone());
        let (for_new_pods, for_budgets) = Default::default();
        let context = Self {
            gates,
            client,
            namespace,
            budgets,
            sidecars,
            pod_states,
            spreads,
            for_new_pods,
            for_budgets,
            events,
        };
        (context, send)
    }
}

const PODS: Target = Target::created("", &["v1"], "pods");

const REQUESTS: Target = Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "containerrecreaterequests");

/// Image jobs of both kinds are admitted alike.
const IMAGE_JOBS: Target = Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "imagepulljobs");

/// A call that protects against deletion.
const fn protection(name: &'static str, paths: &'static [&'static str], target: Target, handle: Handle) -> Handler {
    Handler::validating(name, paths, target.on(Operation::Delete).of_cluster(), handle)
        .fails_closed()
        .labelled(deletion_protection::CASCADING)
        .gated(gate::DELETION_PROTECTION)
        .when(deletion_protection::match_conditions)
}

/// A call that asks the budgets of a Pod, in namespaces that have one. For Pods that go, also where a WorkloadSpread counts them.
const fn guard(name: &'static str, paths: &'static [&'static str], target: Target, gate: &'static str) -> Handler {
    Handler::validating(name, paths, target, pod_budget::handle)
        .gated(gate)
        .within(Namespaces::WithBudgets)
        .writes()
        .rbac(pod_budget::RBAC)
}

/// Every admission webhook by its subject. The order is that of the entries in the configurations.
const TABLE: &[&[Handler]] = &[
    &[Handler::mutating("mpod.kb.io", &["/mutate-pod"], PODS, pod::handle)
        .gated(gate::POD_WEBHOOK)
        .within(Namespaces::Ordinary)
        .timeout(3)
        .when(pod::match_conditions)
        .injects()
        .writes()
        .rbac(sidecars::RBAC)
        .own_namespace_rbac(pod::OWN_NAMESPACE_RBAC)],
    // With KruiseDaemon off it stays registered and says why it refuses.
    &[
        Handler::mutating(
            "mcontainerrecreaterequest.kb.io",
            &[
                "/mutate-apps-kruise-io-containerrecreaterequest",
                "/mutate-apps-kruise-io-v1alpha1-containerrecreaterequest",
            ],
            REQUESTS,
            container_recreate_request::handle,
        )
        .fails_closed()
        .writes()
        .rbac(container_recreate_request::RBAC)
        .own_namespace_rbac(container_recreate_request::OWN_NAMESPACE_RBAC),
        Handler::mutating(
            "mcontainerrecreaterequest-update.kb.io",
            &["/mutate-apps-kruise-io-containerrecreaterequest-update"],
            REQUESTS.on(Operation::Update),
            container_recreate_request::handle_update,
        )
        .when(spec_changed),
    ],
    // The only entry for Pods that fails closed: in namespaces that are labelled for it. With PodWebhook off it stays registered, as it
    // is shipped, and lets every Pod through.
    &[Handler::mutating("mpod-required.kb.io", &["/mutate-pod-required"], PODS, pod::handle_required)
        .fails_closed()
        .within(Namespaces::SidecarsRequired)
        .timeout(5)
        .writes()
        .rbac(sidecars::RBAC)
        .own_namespace_rbac(pod::OWN_NAMESPACE_RBAC)],
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "mcloneset.kb.io",
            update: "mcloneset-update.kb.io",
            // The last two are what a registration of OpenKruise that nobody has removed may still call.
            create_paths: &[
                "/mutate-apps-kruise-io-v1alpha1-cloneset",
                "/mutate-apps-kruise-io-cloneset",
                "/validate-apps-kruise-io-v1alpha1-cloneset",
                "/validate-apps-kruise-io-cloneset",
            ],
            update_path: &["/mutate-apps-kruise-io-v1alpha1-cloneset-update"],
        },
        Target::created(apps::GROUP, &["v1alpha1"], "clonesets"),
        clone_set::handle,
        clone_set::RBAC,
    ),
    &STATEFUL_SETS,
    &DAEMON_SETS,
    &SIDECAR_SETS,
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "mbroadcastjob.kb.io",
            update: "mbroadcastjob-update.kb.io",
            create_paths: &["/mutate-apps-kruise-io-broadcastjob", "/validate-apps-kruise-io-broadcastjob"],
            update_path: &["/mutate-apps-kruise-io-broadcastjob-update"],
        },
        Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "broadcastjobs"),
        broadcast_job::handle,
        broadcast_job::RBAC,
    ),
    &UNITED_DEPLOYMENTS,
    // Deletion protection calls the webhook only where something has to be counted; the rest is a policy of the API
    // server. The administrator adds the rights to list custom resources.
    &[
        protection(
            "vnamespace.kb.io",
            &["/validate-namespace"],
            Target::created("", &["v1"], "namespaces"),
            deletion_protection::handle_namespace,
        )
        .rbac(deletion_protection::NAMESPACE_RBAC),
        protection(
            "vcustomresourcedefinition.kb.io",
            &["/validate-customresourcedefinition"],
            Target::created("apiextensions.k8s.io", &["v1"], "customresourcedefinitions"),
            deletion_protection::handle_definition,
        ),
    ],
    // The first path for deletions is what a registration of OpenKruise calls for all operations on Pods.
    &[
        Handler::mutating("mpod-budget.kb.io", &["/mutate-pod-budget"], PODS, pod_budget::relate)
            .gated(gate::POD_WEBHOOK)
            .within(Namespaces::WithBudgets)
            .timeout(3)
            .rbac(pod_budget::RBAC),
        guard("vpod-delete.kb.io", &["/validate-pod"], PODS.on(Operation::Delete), gate::BUDGETS_GUARD_DELETION)
            .within(Namespaces::WithBudgetsOrCounting)
            .when(pod_budget::on_delete),
        guard(
            "vpod-eviction.kb.io",
            &["/validate-pod-eviction"],
            PODS.at("pods/eviction"),
            gate::BUDGETS_GUARD_DELETION,
        )
        .within(Namespaces::WithBudgetsOrCounting),
        guard("vpod-update.kb.io", &["/validate-pod-update"], PODS.on(Operation::Update), gate::BUDGETS_GUARD_UPDATES)
            .when(pod_budget::on_update),
        guard(
            "vpod-resize.kb.io",
            &["/validate-pod-resize"],
            PODS.at("pods/resize").on(Operation::Update),
            gate::BUDGETS_GUARD_UPDATES,
        )
        .when(pod_budget::on_update),
    ],
    &POD_UNAVAILABLE_BUDGETS,
    // The node of a new Pod is not known yet: with the gate on, all Pods are looked at.
    &[Handler::mutating(
        "mpod-serverless-probes.kb.io",
        &["/mutate-pod-serverless-probes"],
        PODS,
        serverless_probes::handle,
    )
    .gated(gate::SERVERLESS_PROBES)
    .within(Namespaces::NotSystem)
    .timeout(3)
    .rbac(serverless_probes::RBAC)],
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "madvancedcronjob.kb.io",
            update: "madvancedcronjob-update.kb.io",
            create_paths: &["/mutate-apps-kruise-io-advancedcronjob", "/validate-apps-kruise-io-advancedcronjob"],
            update_path: &["/mutate-apps-kruise-io-advancedcronjob-update"],
        },
        Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "advancedcronjobs"),
        advanced_cron_job::handle,
        advanced_cron_job::RBAC,
    ),
    // With their gates off, image jobs and PodProbeMarkers stay registered and say why they refuse.
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "mimagepulljob-v1beta1.kb.io",
            update: "mimagepulljob-update.kb.io",
            create_paths: &["/mutate-apps-kruise-io-imagepulljob", "/validate-apps-kruise-io-imagepulljob"],
            update_path: &["/mutate-apps-kruise-io-imagepulljob-update"],
        },
        IMAGE_JOBS,
        image_pull_job::handle,
        &[],
    ),
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "mimagelistpulljob-v1beta1.kb.io",
            update: "mimagelistpulljob-update.kb.io",
            create_paths: &["/mutate-apps-kruise-io-imagelistpulljob", "/validate-apps-kruise-io-imagelistpulljob"],
            update_path: &["/mutate-apps-kruise-io-imagelistpulljob-update"],
        },
        IMAGE_JOBS.at("imagelistpulljobs"),
        image_pull_job::handle,
        &[],
    ),
    &Handler::pair(
        Phase::Mutating,
        Names {
            create: "mephemeraljob.kb.io",
            update: "mephemeraljob-update.kb.io",
            create_paths: &[
                "/mutate-apps-kruise-io-v1alpha1-ephemeraljob",
                "/validate-apps-kruise-io-v1alpha1-ephemeraljob",
            ],
            update_path: &["/mutate-apps-kruise-io-v1alpha1-ephemeraljob-update"],
        },
        Target::created(apps::GROUP, &["v1alpha1"], "ephemeraljobs"),
        ephemeral_job::handle,
        ephemeral_job::RBAC,
    ),
    &Handler::pair(
        Phase::Validating,
        Names {
            create: "vpodprobemarker.kb.io",
            update: "vpodprobemarker-update.kb.io",
            create_paths: &["/validate-apps-kruise-io-podprobemarker"],
            update_path: &["/validate-apps-kruise-io-podprobemarker-update"],
        },
        Target::created(apps::GROUP, &["v1alpha1"], "podprobemarkers"),
        pod_probe_marker::handle,
        &[],
    ),
    &PERSISTENT_POD_STATES,
    &RESOURCE_DISTRIBUTIONS,
    &WORKLOAD_SPREADS,
];

/// Annotations of ours are judged with the spec.
const STATEFUL_SETS: [Handler; 2] = {
    let names = Names {
        create: "mstatefulset.kb.io",
        update: "mstatefulset-update.kb.io",
        create_paths: &["/mutate-apps-kruise-io-statefulset", "/validate-apps-kruise-io-statefulset"],
        update_path: &["/mutate-apps-kruise-io-statefulset-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "statefulsets");
    let [create, update] = Handler::pair(Phase::Mutating, names, target, stateful_set::handle, stateful_set::RBAC);
    [create, update.when(stateful_set::on_update)]
};

/// The same for DaemonSets.
const DAEMON_SETS: [Handler; 2] = {
    let names = Names {
        create: "mdaemonset.kb.io",
        update: "mdaemonset-update.kb.io",
        create_paths: &["/mutate-apps-kruise-io-daemonset", "/validate-apps-kruise-io-daemonset"],
        update_path: &["/mutate-apps-kruise-io-daemonset-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "daemonsets");
    let [create, update] = Handler::pair(Phase::Mutating, names, target, daemon_set::handle, daemon_set::RBAC);
    [create, update.when(daemon_set::on_update)]
};

/// Their hashes are annotations, their version may be a label.
const SIDECAR_SETS: [Handler; 2] = {
    let names = Names {
        create: "msidecarset.kb.io",
        update: "msidecarset-update.kb.io",
        create_paths: &["/mutate-apps-kruise-io-sidecarset", "/validate-apps-kruise-io-sidecarset"],
        update_path: &["/mutate-apps-kruise-io-sidecarset-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1", "v1beta1"], "sidecarsets").of_cluster();
    let [create, update] = Handler::pair(Phase::Mutating, names, target, sidecar_set::handle, sidecar_set::RBAC);
    Handler::both_own_namespace_rbac([create, update.when(sidecar_set::on_update)], sidecar_set::OWN_NAMESPACE_RBAC)
};

/// An annotation of theirs is judged with the spec.
const PERSISTENT_POD_STATES: [Handler; 2] = {
    let names = Names {
        create: "vpersistentpodstate.kb.io",
        update: "vpersistentpodstate-update.kb.io",
        create_paths: &["/validate-apps-kruise-io-persistentpodstate"],
        update_path: &["/validate-apps-kruise-io-persistentpodstate-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1"], "persistentpodstates");
    let handle = persistent_pod_state::handle;
    let [create, update] = Handler::pair(Phase::Validating, names, target, handle, pod_states::RBAC);
    Handler::both_own_namespace_rbac([create, update.when(not_being_deleted)], &[kruise_configuration::READ])
};

/// With its gate off it stays registered and says why it refuses.
const RESOURCE_DISTRIBUTIONS: [Handler; 2] = Handler::pair(
    Phase::Validating,
    Names {
        create: "vresourcedistribution.kb.io",
        update: "vresourcedistribution-update.kb.io",
        // The second is what OpenKruise's next release registers.
        create_paths: &[
            "/validate-apps-kruise-io-v1alpha1-resourcedistribution",
            "/validate-apps-kruise-io-resourcedistribution",
        ],
        update_path: &["/validate-apps-kruise-io-v1alpha1-resourcedistribution-update"],
    },
    Target::created(apps::GROUP, &["v1alpha1"], "resourcedistributions").of_cluster(),
    resource_distribution::handle,
    &[],
);

/// The annotation with the budget of the whole is judged with the spec.
const UNITED_DEPLOYMENTS: [Handler; 2] = {
    let names = Names {
        create: "muniteddeployment.kb.io",
        update: "muniteddeployment-update.kb.io",
        create_paths: &[
            "/mutate-apps-kruise-io-v1alpha1-uniteddeployment",
            "/mutate-apps-kruise-io-uniteddeployment",
            "/validate-apps-kruise-io-v1alpha1-uniteddeployment",
            "/validate-apps-kruise-io-uniteddeployment",
        ],
        update_path: &["/mutate-apps-kruise-io-v1alpha1-uniteddeployment-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1"], "uniteddeployments");
    let handle = united_deployment::handle;
    let [create, update] = Handler::pair(Phase::Mutating, names, target, handle, united_deployment::RBAC);
    [create, update.when(united_deployment::on_update)]
};

/// Annotations of budgets are judged too: an update may matter with the same spec.
const POD_UNAVAILABLE_BUDGETS: [Handler; 2] = {
    let names = Names {
        create: "vpodunavailablebudget.kb.io",
        update: "vpodunavailablebudget-update.kb.io",
        create_paths: &["/validate-policy-kruise-io-podunavailablebudget"],
        update_path: &["/validate-policy-kruise-io-podunavailablebudget-update"],
    };
    let target = Target::created(policy::GROUP, &["v1alpha1"], "podunavailablebudgets");
    let handle = pod_unavailable_budget::handle;
    let [create, update] = Handler::pair(Phase::Validating, names, target, handle, pod_budget::RBAC);
    [create, update.when(not_being_deleted)]
};

/// With its gate off it stays registered and says why it refuses.
const WORKLOAD_SPREADS: [Handler; 2] = {
    let names = Names {
        create: "vworkloadspread.kb.io",
        update: "vworkloadspread-update.kb.io",
        create_paths: &["/validate-apps-kruise-io-v1alpha1-workloadspread", "/validate-apps-kruise-io-workloadspread"],
        update_path: &["/validate-apps-kruise-io-v1alpha1-workloadspread-update"],
    };
    let target = Target::created(apps::GROUP, &["v1alpha1"], "workloadspreads");
    let pair = Handler::pair(Phase::Validating, names, target, workload_spread::handle, workload_spread::RBAC);
    Handler::both_own_namespace_rbac(pair, &[kruise_configuration::READ])
};

/// Every admission webhook.
pub static HANDLERS: LazyLock<Vec<Handler>> = LazyLock::new(|| TABLE.concat());
