//! Whether the runtime has an image, and one attempt to pull it: checks of the disk, credentials, the pull, its progress.
//!
//! Does not know the NodeImage: progress is handed to the caller, who also limits the time.

use std::time::Duration;

use kube::{Client as KubeClient, api::GetParams};
use tokio::time::Instant;

use super::{
    credentials::{self, PullSecrets},
    disk::Disk,
    progress::Progress,
};
use crate::{
    cri::{
        client::Client as CriClient,
        proto::{AuthConfig, PodSandboxConfig},
        types::CriError,
    },
    daemon::runtimes::Runtimes,
    domain::node::{
        pull_secrets::{Answer, Credential, Question},
        puller::{self as rules, Entry, Order, PullFailure},
    },
    k8s::path,
};

/// The images of this node, and what pulling one takes.
pub(super) struct Images {
    kube: KubeClient,
    node: String,
    runtimes: Runtimes,
    secrets: PullSecrets,
    disk: Disk,
    /// When it was asked whether the node is under DiskPressure, and the answer.
    pressure: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

/// An answer about the node holds so long: there may be hundreds of attempts a second.
const PRESSURE_HOLDS: Duration = Duration::from_secs(10);

/// What an attempt is about.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) order: &'a Order,
    /// The reference that is pulled.
    pub(super) image: &'a str,
    /// When the first attempt began.
    pub(super) begun: Instant,
    /// The end of its time.
    pub(super) until: Instant,
    /// What the attempt before ended with.
    pub(super) last_error: Option<&'a str>,
    /// Takes the percentage and the message for the status.
    pub(super) report: &'a (dyn Fn(i32, String) + Sync),
}

impl Images {
    pub(super) fn new(kube: KubeClient, node: String, runtimes: Runtimes, secrets: PullSecrets, disk: Disk) -> Self {
        Self { kube, node, runtimes, secrets, disk, pressure: tokio::sync::Mutex::default() }
    }

    /// The runtime that has the images. Where there are several, it is the first by name.
    fn runtime(&self) -> Option<CriClient> {
        self.runtimes.names().first().and_then(|name| self.runtimes.get(name))
    }

    /// How the status names the image, if the runtime has it.
    pub(super) async fn present(&self, entry: &Entry, image: &str) -> Result<Option<String>, CriError> {
        let Some(runtime) = self.runtime() else { return Ok(None) };
        let found = runtime.image_status(image).await?;
        let fits = |digests: &[String]| {
            entry.digest().is_none_or(|digest| digests.iter().any(|known| known.split('@').nth(1) == Some(digest)))
        };
        Ok(found.filter(|found| fits(&found.repo_digests)).map(|found| format!("{}@{}", entry.image, found.id)))
    }

    /// One attempt, within its time limit.
    pub(super) async fn pull(&self, attempt: &Attempt<'_>) -> Result<String, PullFailure> {
        let Attempt { order, image, .. } = *attempt;
        let nobody = || PullFailure("no container runtime answers on this node".into());
        let failed = |error: CriError| PullFailure(error.stable_text());
        let runtime = self.runtime().ok_or_else(nobody)?;
        if order.if_not_present
            && let Some(id) = self.present(&order.entry, image).await.map_err(failed)?
        {
            return Ok(id);
        }
        if let Some(short) = self.disk.is_short(&runtime).await {
            return Err(PullFailure(short));
        }
        if self.is_under_disk_pressure().await {
            return Err(PullFailure(rules::UNDER_DISK_PRESSURE.to_owned()));
        }
        let Answer { credentials, problems } =
            if order.has_secrets { self.credentials(attempt).await? } else { Answer::default() };
        let tries: Vec<Option<Credential>> =
            if credentials.is_empty() { vec![None] } else { credentials.into_iter().map(Some).collect() };
        let mut errors: Vec<String> = Vec::new();
        for credential in tries {
            let hidden = credential.as_ref().map(Credential::secrets).unwrap_or_default();
            let sandbox = PodSandboxConfig {
                labels: order.labels.clone().into_iter().collect(),
                annotations: order.annotations.clone().into_iter().collect(),
            };
            // The caller's limit is shorter.
            let pull =
                runtime.pull_image(image, credential.map(as_auth), sandbox, Duration::from_secs(u32::MAX.into()));
            let outcome = tokio::select! {
                outcome = pull => outcome,
                short = self.observe(attempt, &runtime) => return Err(PullFailure(short)),
            };
            match outcome {
                Ok(_) => return self.pulled(&order.entry, image).await,
                Err(error) => {
                    let error = rules::presentable(&error.stable_text(), &hidden);
                    if !errors.contains(&error) {
                        errors.push(error);
                    }
                }
            }
        }
        errors.extend(problems);
        Err(PullFailure(errors.join("; ")))
    }

    /// Whether kubelet reports that this node has too little space on its disk. What cannot be learnt limits nothing.
    async fn is_under_disk_pressure(&self) -> bool {
        let mut known = self.pressure.lock().await;
        if let Some((asked, answer)) = *known
            && asked.elapsed() < PRESSURE_HOLDS
        {
            return answer;
        }
        let answer = self.ask_for_disk_pressure().await;
        *known = Some((Instant::now(), answer));
        answer
    }

    async fn ask_for_disk_pressure(&self) -> bool {
        let nodes = kube::core::Request::new(path::of_cluster(path::CORE, "v1", "nodes"));
        // From the API server's memory.
        let Ok(request) = nodes.get(&self.node, &GetParams::any()) else { return false };
        match self.kube.request::<serde_json::Value>(request).await {
            Ok(node) => rules::is_under_disk_pressure(&node),
            Err(error) => {
                tracing::warn!(%error, "whether the node is under DiskPressure is not known");
                false
            }
        }
    }

    async fn pulled(&self, entry: &Entry, image: &str) -> Result<String, PullFailure> {
        let why = match (self.present(entry, image).await, entry.digest()) {
            (Ok(Some(id)), _) => return Ok(id),
            (Ok(None), Some(digest)) => format!("what the registry gave for {image} does not have the digest {digest}"),
            (Ok(None), None) => format!("the runtime pulled {image}, and does not have it"),
            (Err(error), _) => error.stable_text(),
        };
        Err(PullFailure(why))
    }

    /// Asks the manager until it answers. Shortly before the attempt's time limit the last error is returned.
    async fn credentials(&self, attempt: &Attempt<'_>) -> Result<Answer, PullFailure> {
        let Entry { image, tag } = attempt.order.entry.clone();
        let question = Question { image, tag, version: attempt.order.version };
        let mut failed = 0;
        loop {
            let error = match self.secrets.ask(&question).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failed += 1;
            let pause = rules::pause(failed);
            if !error.may_pass || Instant::now() + pause + credentials::LIMIT >= attempt.until {
                return Err(PullFailure(error.message));
            }
            tracing::info!(error = error.message, "no answer about registry credentials, asking again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Monitors a running pull. Ends only when too little space is left, with the message for the status.
    async fn observe(&self, attempt: &Attempt<'_>, runtime: &CriClient) -> String {
        let mut progress = Progress::of(runtime, &attempt.order.entry.image);
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if let Some(short) = self.disk.is_short(runtime).await {
                return short;
            }
            let arrived = progress.look().await;
            let percent = arrived.map_or(0, |arrived| arrived.percent());
            let message = rules::progress_message(attempt.begun.elapsed(), arrived, attempt.last_error);
            (attempt.report)(percent, message);
        }
    }
}

fn as_auth(credential: Credential) -> AuthConfig {
    let Credential { username, password, server_address, identity_token, registry_token } = credential;
    AuthConfig { username, password, auth: String::new(), server_address, identity_token, registry_token }
}
