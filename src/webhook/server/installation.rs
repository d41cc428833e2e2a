//! Keeps the certificates, the registration and the TLS server in step, on every replica alike.
//!
//! Order is what makes a rotation fail no call: the API servers get a CA first, and only when they know it
//! is a certificate of that CA served. Replicas agree through the Secret; who loses a race reads what the winner wrote.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
    },
    core::v1::Secret,
};
use kube::{
    Api, Client,
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::domain::deletion_protection as protection;
use crate::{
    api::feature_gates::{FeatureGates, gate},
    k8s::{path, rbac::Rule},
    runtime::{
        certificate_secret::{CertificateSecret, SecretError},
        certs::{self, Material},
        clock,
    },
    webhook::{
        CONFIGURATION, SECRET, VALIDATING_CONFIGURATION,
        server::{
            callers::Callers,
            configuration::{self, Endpoint, Wanted},
            contest::Contest,
            failure_policies::FailurePolicies,
            handler::{Namespaces, Phase},
            leftovers,
            metrics::Metrics,
            retry::Retry,
            scope::{self, Lingering, Union},
        },
    },
};

/// How long API servers may take to follow a changed registration.
const SETTLE: Duration = Duration::from_secs(5);
/// How long they may take to follow a changed list of namespaces. If it takes longer, only requests in these first moments are
/// missed.
const FOLLOWED: Duration = Duration::from_millis(150);
/// Everything is looked at again this often, whatever the watches say; certificates age without an event.
const RESYNC: Duration = Duration::from_secs(10 * 60);
/// How often a lost race for a webhook configuration is run again within one pass.
const PATCH_ATTEMPTS: u32 = 4;

const GROUP: &[&str] = &["admissionregistration.k8s.io"];

const MUTATING: Rule =
    Rule::new(GROUP, &["mutatingwebhookconfigurations"], &["get", "list", "watch", "patch"]).named(&[CONFIGURATION]);
const VALIDATING: Rule = Rule::new(GROUP, &["validatingwebhookconfigurations"], &["get", "list", "watch", "patch"])
    .named(&[VALIDATING_CONFIGURATION]);
const BINDING: Rule = Rule::new(GROUP, &["validatingadmissionpolicybindings"], &["get", "list", "watch", "delete"])
    .named(&[protection::NAME]);
// A right to create cannot be limited by name. A binding is nothing without the policy that it names.
const NEW_BINDING: Rule = Rule::new(GROUP, &["validatingadmissionpolicybindings"], &["create"]);

/// What keeping the registration needs, cluster-wide.
pub const RBAC: &[Rule] = &[MUTATING, VALIDATING, BINDING, NEW_BINDING];
/// The same with certificates that somebody else renews: the registration is not ours to keep.
pub const EXTERNAL_RBAC: &[Rule] = &[BINDING, NEW_BINDING];

/// What keeping the certificates and the registration needs in our own namespace, besides what handlers read there.
pub const OWN_NAMESPACE_RBAC: &[Rule] =
    &[Rule::new(&[""], &["secrets"], &["get", "list", "watch", "patch"]).named(&[SECRET]), leftovers::LEASE];
/// The same with certificates that somebody else renews.
pub const EXTERNAL_OWN_NAMESPACE_RBAC: &[Rule] =
    &[Rule::new(&[""], &["secrets"], &["get", "list", "watch"]).named(&[SECRET])];

/// Why a pass did not succeed. All of them are tried again.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// What is served cannot be had from the Secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A configuration cannot be read or written.
    #[error("webhook configuration {0}: {1}")]
    Configuration(&'static str, kube::Error),
    /// A configuration is not there, and we may not create one.
    #[error("webhook configuration {0} does not exist; apply the manifests again")]
    NoConfiguration(&'static str),
    /// The binding of the policy that protects against deletion cannot be read or written.
    #[error("ValidatingAdmissionPolicyBinding {name}: {0}", name = protection::NAME)]
    Binding(kube::Error),
    /// A certificate cannot be served.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// What one replica keeps in step.
pub struct Installation {
    /// Client.
    pub client: Client,
    /// Where the certificates are, in our namespace.
    pub secret: CertificateSecret,
    /// How the API server reaches us.
    pub endpoint: Endpoint,
    /// The cluster's feature gates.
    pub gates: FeatureGates,
    /// What happens to requests while nobody answers, as far as it is set.
    pub policies: FailurePolicies,
    /// The namespaces that have budgets; None until they are known.
    pub with_budgets: watch::Receiver<Option<Union>>,
    /// Those, and the ones with a WorkloadSpread that counts Pods.
    pub with_budgets_or_counting: watch::Receiver<Option<Union>>,
    /// The namespaces in which there may be Pods for a SidecarSet; None until they are known.
    pub with_sidecars: watch::Receiver<Option<Union>>,
    /// Set to those of them that are in the registration.
    pub registered_for_new_pods: watch::Sender<Option<BTreeSet<String>>>,
    /// Set to the namespaces with budgets that are in the registration.
    pub registered_for_budgets: watch::Sender<Option<BTreeSet<String>>>,
    /// Who may call.
    pub callers: Option<Arc<Callers>>,
    /// Set to the end of the certificate.
    pub metrics: Metrics,
    /// The last error, for whoever waits for the first certificate.
    pub problem: watch::Sender<String>,
}

/// The namespaces that parts of the registration are for; None until they are known.
struct Scopes {
    with_budgets: Option<Union>,
    with_budgets_or_counting: Option<Union>,
    with_sidecars: Option<Union>,
}

/// What is remembered of one phase: namespaces that are listed and need not be, and what was written last.
#[derive(Default)]
struct Lasting {
    with_budgets: Lingering,
    with_budgets_or_counting: Lingering,
    with_sidecars: Lingering,
    contest: Contest,
}

impl Installation {
    /// Runs for ever. `tls` holds a configuration from the first success on and is changed in place after that.
    pub async fn run(&self, tls: &watch::Sender<Option<RustlsConfig>>) {
        let mut serving: Option<Material> = None;
        let (mut lingering, mut binding) = (<[Lasting; 2]>::default(), Contest::default());
        let (mut with_budgets, mut with_sidecars) = (self.with_budgets.clone(), self.with_sidecars.clone());
        let mut with_budgets_or_counting = self.with_budgets_or_counting.clone();
        let mut events = self.events();
        let mut retry = Retry::new();
        loop {
            let namespaces = Scopes {
                with_budgets: with_budgets.borrow_and_update().clone(),
                with_budgets_or_counting: with_budgets_or_counting.borrow_and_update().clone(),
                with_sidecars: with_sidecars.borrow_and_update().clone(),
            };
            let synced = match self.sync(&mut serving, tls, &namespaces, &mut lingering).await {
                Ok(wait) => {
                    let bound = bind(&self.client, &self.gates, &mut binding).await;
                    bound.map(|again| wait.into_iter().chain(again).min())
                }
                error => error,
            };
            let pass = synced.map(|wait| wait.unwrap_or(RESYNC).min(RESYNC));
            let wait = retry.wait(pass, "the webhook is not in step", &self.problem);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Some(()) = events.next() => {}
                Ok(()) = with_budgets.changed() => {}
                Ok(()) = with_budgets_or_counting.changed() => {}
                Ok(()) = with_sidecars.changed() => {}
            }
        }
    }

    /// Something that we keep may have changed.
    fn events(&self) -> BoxStream<'static, ()> {
        let only = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        // Failed watches back off and come back by themselves; the resync covers the time between.
        fn quiet<K>(api: Api<PartialObjectMeta<K>>, only: watcher::Config) -> BoxStream<'static, ()>
        where
            K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
        {
            let events = watcher(api, only).default_backoff().touched_objects();
            events.filter_map(async |result| result.ok().map(|_| ())).boxed()
        }
        let client = || self.client.clone();
        futures::stream::select_all([
            quiet::<Secret>(Api::namespaced(client(), &self.secret.namespace), only(&self.secret.name)),
            quiet::<MutatingWebhookConfiguration>(Api::all(client()), only(CONFIGURATION)),
            quiet::<ValidatingWebhookConfiguration>(Api::all(client()), only(VALIDATING_CONFIGURATION)),
            quiet::<ValidatingAdmissionPolicyBinding>(Api::all(client()), only(protection::NAME)),
        ])
        .boxed()
    }

    async fn sync(
        &self,
        serving: &mut Option<Material>,
        tls: &watch::Sender<Option<RustlsConfig>>,
        namespaces: &Scopes,
        lingering: &mut [Lasting; 2],
    ) -> Result<Option<Duration>, SyncError> {
        let material = self.secret.material(serving.as_ref()).await?;
        let mut ca_bundle = material.ca_bundle.clone();
        // What we still serve has to stay trusted, even if somebody emptied the Secret.
        if let Some(old) = serving.as_ref().filter(|old| !ca_bundle.contains(&old.ca_cert)) {
            ca_bundle.push_str(&old.ca_cert);
        }
        let (mut had_another_ca, mut wait) = (false, None::<Duration>);
        for (phase, lingering) in [Phase::Mutating, Phase::Validating].into_iter().zip(lingering) {
            let (another, again) = self.register(phase, &ca_bundle, namespaces, lingering).await?;
            had_another_ca |= another;
            wait = wait.into_iter().chain(again).min();
        }
        if serving.as_ref().is_some_and(|old| old.certified.cert == material.certified.cert) {
            return Ok(wait);
        }
        if had_another_ca || serving.as_ref().is_some_and(|old| old.ca_cert != material.ca_cert) {
            tokio::time::sleep(SETTLE).await;
        }
        let callers = self.callers.clone().map(|callers| callers as Arc<dyn ClientCertVerifier>);
        certs::serve(tls, certs::tls_config_for(&material.certified, callers)?);
        tracing::info!(not_after = %material.not_after, "serving a new certificate");
        self.metrics.certificate_expiry.set(material.not_after.as_second());
        *serving = Some(material);
        Ok(wait)
    }

    /// Brings the registration of one phase in line; returns whether API servers may still hold another CA, and when to look
    /// again at namespaces whose last budget has gone.
    async fn register(
        &self,
        phase: Phase,
        ca_bundle: &str,
        namespaces: &Scopes,
        lasting: &mut Lasting,
    ) -> Result<(bool, Option<Duration>), SyncError> {
        let (plural, name) = configuration_of(phase);
        let base = kube::core::Request::new(path::of_cluster(GROUP[0], "v1", plural));
        let failed = |error: kube::Error| match error {
            kube::Error::Api(status) if status.code == 404 => SyncError::NoConfiguration(name),
            error => SyncError::Configuration(name, error),
        };
        let build = |error| SyncError::Configuration(name, kube::Error::BuildRequest(error));
        let params = PatchParams { field_manager: Some("kruise-webhook".into()), ..PatchParams::default() };
        for attempt in 1.. {
            let current = read(&self.client, phase).await.map_err(failed)?;
            let now = clock::now().mono;
            let keep = |lingering: &mut Lingering, known: Option<&Union>, listed: Vec<String>| {
                known.map(|known| lingering.keep(&known.beside(&listed), listed, now)).unzip()
            };
            let selector = |lingering: &mut Lingering, known: Option<&Union>, namespaces| {
                let (wanted, wait) = keep(lingering, known, configuration::listed(&current, namespaces));
                (wanted.map(|wanted| scope::selector(&wanted, &self.secret.namespace)), wait.flatten())
            };
            let (with_budgets, wait) =
                selector(&mut lasting.with_budgets, namespaces.with_budgets.as_ref(), Namespaces::WithBudgets);
            let (with_budgets_or_counting, later) = selector(
                &mut lasting.with_budgets_or_counting,
                namespaces.with_budgets_or_counting.as_ref(),
                Namespaces::WithBudgetsOrCounting,
            );
            let wait = wait.into_iter().chain(later).min();
            let listed = configuration::listed_for_sidecars(&current);
            let (with_sidecars, later) = keep(&mut lasting.with_sidecars, namespaces.with_sidecars.as_ref(), listed);
            let wait = wait.into_iter().chain(later.flatten()).min();
            let left = configuration::leftovers(&current, phase, &self.endpoint);
            let keeps = leftovers::kept(&self.client, &self.secret.namespace, &left).await;
            let wait = leftovers::look_again(wait, &keeps);
            let wanted = Wanted {
                gates: &self.gates,
                endpoint: &self.endpoint,
                ca_bundle: Some(ca_bundle),
                policies: &self.policies,
                with_budgets: with_budgets.as_ref(),
                with_budgets_or_counting: with_budgets_or_counting.as_ref(),
                with_sidecars: with_sidecars.as_ref(),
                keeps: &keeps,
            };
            let operations = configuration::plan(&current, phase, &wanted);
            let held = lasting.contest.wait(&operations, now);
            if operations.is_empty() || !held.is_zero() {
                self.report_registered(phase, &current).await;
                return Ok((false, wait.into_iter().chain(undone(name, held)).min()));
            }
            let patch: json_patch::Patch = serde_json::from_value(operations.clone().into())
                .map_err(|error| SyncError::Configuration(name, kube::Error::SerdeError(error)))?;
            let patch = base.patch(name, &params, &Patch::<()>::Json(patch)).map_err(build)?;
            match self.client.request::<Value>(patch).await {
                Ok(written) => {
                    lasting.contest.note(&operations, now);
                    self.report_registered(phase, &written).await;
                    tracing::info!(configuration = name, "the webhook configuration was brought in line");
                    return Ok((configuration::had_another_ca(&current, &self.endpoint, ca_bundle), wait));
                }
                // Another replica was faster: the test of the version does not hold.
                Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) && attempt < PATCH_ATTEMPTS => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok((false, None))
    }

    /// Whoever waits for a namespace to be in the registration learns of it.
    async fn report_registered(&self, phase: Phase, configuration: &Value) {
        let (selected, registered) = match phase {
            Phase::Mutating => (configuration::selected_for_new_pods(configuration), &self.registered_for_new_pods),
            Phase::Validating => (configuration::selected_for_budgets(configuration), &self.registered_for_budgets),
        };
        let has_more = match (&*registered.borrow(), &selected) {
            (Some(known), Some(selected)) => !selected.is_subset(known),
            _ => false,
        };
        if has_more {
            tokio::time::sleep(FOLLOWED).await;
        }
        registered.send_replace(selected);
    }
}

/// The webhook configuration of one phase: its resource and its name.
const fn configuration_of(phase: Phase) -> (&'static str, &'static str) {
    match phase {
        Phase::Mutating => ("mutatingwebhookconfigurations", CONFIGURATION),
        Phase::Validating => ("validatingwebhookconfigurations", VALIDATING_CONFIGURATION),
    }
}

/// The live webhook configuration of one phase. Raw JSON: entries of others may have fields that this library does not know.
pub(super) async fn read(client: &Client, phase: Phase) -> kube::Result<Value> {
    let (plural, name) = configuration_of(phase);
    let base = kube::core::Request::new(path::of_cluster(GROUP[0], "v1", plural));
    let get = base.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    client.request(get).await
}

/// When a write is made again that somebody has undone, if it has to wait.
fn undone(name: &str, held: Duration) -> Option<Duration> {
    if held.is_zero() {
        return None;
    }
    tracing::warn!(configuration = name, retry_in = ?held,
        "somebody has undone what this replica has written; another replica may have other settings");
    Some(held)
}

/// The policy that protects against deletion is in force while its gate is on. Returns when to look again, if somebody has
/// undone it.
pub(super) async fn bind(
    client: &Client,
    gates: &FeatureGates,
    contest: &mut Contest,
) -> Result<Option<Duration>, SyncError> {
    let api = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    let is_there = api.get_metadata_opt(protection::NAME).await.map_err(SyncError::Binding)?.is_some();
    let wanted = gates.enabled(gate::DELETION_PROTECTION);
    let (change, now) = ([Value::from(wanted)], clock::now().mono);
    let held = contest.wait(&change, now);
    if wanted == is_there || !held.is_zero() {
        return Ok(if wanted == is_there { None } else { undone(protection::NAME, held) });
    }
    let done = match (wanted, is_there) {
        (true, false) => {
            let binding = json!({ "metadata": { "name": protection::NAME, "labels": { "app.kubernetes.io/name": "kruise-rs" } },
                "spec": protection::binding_spec() });
            let binding =
                serde_json::from_value(binding).map_err(|error| SyncError::Binding(kube::Error::SerdeError(error)))?;
            tracing::info!("deletion protection is on");
            api.create(&PostParams::default(), &binding).await.map(drop)
        }
        (false, true) => {
            tracing::info!("deletion protection is off");
            api.delete(protection::NAME, &DeleteParams::default()).await.map(drop)
        }
        (true, true) | (false, false) => Ok(()),
    };
    match done {
        Ok(()) => contest.note(&change, now),
        // Another replica was faster.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(SyncError::Binding(error)),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::Method;

    use super::*;
    use crate::runtime::{fake_api, lock};

    #[tokio::test]
    async fn a_binding_that_could_not_be_made_was_not_undone_by_anybody() {
        let code = Arc::new(Mutex::new(403_u16));
        let says = code.clone();
        let client = fake_api::answering(move |parts, body| {
            let failure = |code: u16, reason: &str| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "code": code, "reason": reason, "message": reason});
                (code, status)
            };
            let says = *lock(&says);
            match (&parts.method, says) {
                (&Method::POST, 201) => (201, serde_json::from_slice(body).unwrap()),
                (&Method::POST, code) => failure(code, "Forbidden"),
                // Somebody deletes it whenever it is there.
                _ => failure(404, "NotFound"),
            }
        });
        let gates = FeatureGates::parse(&["ResourcesDeletionProtection=true"], None).unwrap();
        let mut contest = Contest::default();
        for _ in 0..2 {
            assert!(matches!(bind(&client, &gates, &mut contest).await, Err(SyncError::Binding(_))));
        }
        *lock(&code) = 201;
        assert_eq!(bind(&client, &gates, &mut contest).await.unwrap(), None);
        assert!(bind(&client, &gates, &mut contest).await.unwrap().is_some(), "made, and undone at once");
    }
}
