//! Which registry credentials a daemon may have: for an open entry of its own NodeImage, the Secrets that a running job of
//! the Secret's namespace names, and of these only the credentials for the image. An entry that no job wants gets the Secrets
//! that were written by hand beside it: an admission policy asks their author for the right to get them.

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use serde::{Deserialize, Serialize};

use super::puller::Entry;
use crate::{
    api::apps::{
        image_pull_job::ImagePullJob,
        node_image::{NodeImage, SecretReference},
    },
    k8s::{
        image::ImageRef,
        name::{is_dns_label, is_dns_subdomain},
        node_image::Owner,
    },
};

/// The audience of the daemons' tokens.
pub const AUDIENCE: &str = "kruise-pull-secrets";
/// The Service in front of the managers.
pub const SERVICE: &str = "kruise-pull-secrets";
/// The ConfigMap with the CAs of the managers' certificate, which daemons read.
pub const CONFIG_MAP: &str = "kruise-pull-secrets-ca";
/// Its key.
pub const CA: &str = "ca.crt";
/// Where a daemon finds its token.
pub const TOKEN_FILE: &str = "/var/run/secrets/kruise.rs/pull-secrets/token";
/// What is asked.
pub const PATH: &str = "/v1/credentials";

/// The name under which daemons reach the managers, and that the certificate is for.
pub fn dns_name(namespace: &str) -> String {
    format!("{SERVICE}.{namespace}.svc")
}

const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// What a daemon asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The repository, as it stands in the NodeImage.
    pub image: String,
    /// The tag or digest.
    pub tag: String,
    /// The version of the entry.
    pub version: i64,
}

/// What it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    /// In the order in which they are to be tried.
    pub credentials: Vec<Credential>,
    /// What is wrong with Secrets that were named; never their content.
    pub problems: Vec<String>,
}

/// What a registry wants to see.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Credential {
    /// Name.
    pub username: String,
    /// Password.
    pub password: String,
    /// Where it may be used, if the Secret says that.
    pub server_address: String,
    /// A token that is exchanged for one of the registry.
    pub identity_token: String,
    /// A token of the registry.
    pub registry_token: String,
}

/// Debug output hides the value.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(...)")
    }
}

impl Credential {
    fn is_empty(&self) -> bool {
        [&self.username, &self.password, &self.identity_token, &self.registry_token].iter().all(|part| part.is_empty())
    }

    /// A value that must not appear in any text.
    pub fn secrets(&self) -> Vec<String> {
        let joined = STANDARD.encode(format!("{}:{}", self.username, self.password));
        [self.password.clone(), self.identity_token.clone(), self.registry_token.clone(), joined]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect()
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The daemon of this node.
    OfNode(String),
    /// The daemon in this Pod, by name and UID; the token does not name the node.
    InPod(String, String),
}

/// Why a token is not accepted; for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownCaller {
    /// The API server refuses it, with its words.
    #[error("{0}")]
    NotAuthenticated(String),
    /// It was made for somebody else.
    #[error("the token is not meant for {AUDIENCE}")]
    OtherAudience,
    /// It is no daemon's.
    #[error("{user:?} is not {account}")]
    OtherAccount {
        /// Whose it is.
        user: String,
        /// Whose it should be.
        account: String,
    },
    /// It does not name the daemon's Pod.
    #[error("the token is not bound to a Pod")]
    NoPod,
}

/// The caller that a TokenReview identifies. `account` is the daemon's user name.
///
/// # Errors
/// Why the token is not accepted; for the log.
pub fn caller(review: &TokenReviewStatus, account: &str) -> Result<Caller, UnknownCaller> {
    if review.authenticated != Some(true) {
        return Err(UnknownCaller::NotAuthenticated(
            review.error.clone().unwrap_or_else(|| "the token is not valid".into()),
        ));
    }
    // An API server that does not know audiences answers without any.
    if !review.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(UnknownCaller::OtherAudience);
    }
    let user = review.user.clone().unwrap_or_default();
    if user.username.as_deref() != Some(account) {
        let (user, account) = (user.username.unwrap_or_default(), account.to_owned());
        return Err(UnknownCaller::OtherAccount { user, account });
    }
    let extra = user.extra.unwrap_or_default();
    let one = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() && (key == POD_UID || is_dns_subdomain(value)) => Some(value.clone()),
        _ => None,
    };
    match (one(NODE_NAME), one(POD_NAME), one(POD_UID)) {
        (Some(node), Some(_), Some(_)) => Ok(Caller::OfNode(node)),
        (None, Some(pod), Some(uid)) => Ok(Caller::InPod(pod, uid)),
        _ => Err(UnknownCaller::NoPod),
    }
}

/// A Secret that an entry may be pulled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// On what that rests.
    pub leave: Leave,
}

/// Who lets a Secret be used for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// One of these jobs of its namespace that want the entry, if it runs and names the Secret: their names and UIDs.
    Jobs(Vec<(String, String)>),
    /// Whoever wrote it into the NodeImage: the policy `kruise-nodeimage-authors` has asked for the right to get it.
    Author,
}

/// An entry of a node that needs no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWanted {
    /// It does not exist.
    #[error("there is no {0}")]
    Absent(String),
    /// The daemon asks about what is not wanted any more, or not known yet.
    #[error("{entry} has version {is}, not {asked}")]
    OtherVersion {
        /// What it is about.
        entry: String,
        /// Its version.
        is: i64,
        /// That of the question.
        asked: i64,
    },
    /// The pull has ended.
    #[error("{0} is complete")]
    Complete(String),
}

/// The Secrets that may be used for an entry.
///
/// # Errors
/// The entry does not exist, has another version, or is complete.
pub fn candidates(object: &NodeImage, question: &Question) -> Result<Vec<Candidate>, NotWanted> {
    let Question { image, tag, version } = question;
    let named = || format!("entry {image}, {tag} of this node");
    let spec = object.spec.images.get(image).ok_or_else(|| NotWanted::Absent(named()))?;
    let entry = spec.tags.iter().find(|t| t.tag == *tag).ok_or_else(|| NotWanted::Absent(named()))?;
    if entry.version != *version {
        return Err(NotWanted::OtherVersion { entry: named(), is: entry.version, asked: *version });
    }
    let recorded = object.status.as_ref().and_then(|status| status.of(image, tag, *version));
    if recorded.is_some_and(|status| status.completion_time.is_some()) {
        return Err(NotWanted::Complete(named()));
    }
    let jobs: Vec<Owner> = entry.owner_references.iter().map(Owner::from).filter(Owner::is_job).collect();
    let leave = |secret: &SecretReference| {
        if jobs.is_empty() {
            // What jobs name is theirs, and copies are OpenKruise's.
            return secret.mode.is_empty().then_some(Leave::Author);
        }
        let of_namespace = jobs.iter().filter(|job| job.namespace == secret.namespace && is_dns_subdomain(&job.name));
        let named: Vec<_> = of_namespace.map(|job| (job.name.clone(), job.uid.clone())).collect();
        (!named.is_empty()).then_some(Leave::Jobs(named))
    };
    let mut found: Vec<Candidate> = Vec::new();
    for secret in &spec.pull_secrets {
        // Anybody's text, of which a path is made.
        if !is_dns_label(&secret.namespace) || !is_dns_subdomain(&secret.name) {
            continue;
        }
        let is_new = !found.iter().any(|known| known.namespace == secret.namespace && known.name == secret.name);
        if let Some(leave) = leave(secret).filter(|_| is_new) {
            found.push(Candidate { namespace: secret.namespace.clone(), name: secret.name.clone(), leave });
        }
    }
    Ok(found)
}

/// What is missing when the manager may not read a Secret: an administrator has given it the right in some namespaces only.
pub fn lacks_right(namespace: &str, name: &str) -> String {
    format!(
        "the manager lacks the right to get secrets (name {name}, namespace {namespace}): bind ClusterRole kruise-manager-pull-secrets there, or a Role with that rule"
    )
}

/// Whether a job, as it is now, lets its Secret be used for the entry.
pub fn allows(job: &ImagePullJob, uid: &str, secret: &str, entry: &Entry) -> bool {
    let names = job.spec.pull_secrets.iter().flatten().any(|name| name == secret);
    let same_image = ImageRef::parse(&job.spec.image).is_some_and(|reference| {
        let slot = reference.digest.unwrap_or_else(|| reference.tag_or_default());
        let repository = ImageRef::parse(&entry.image).map(|image| image.repository());
        slot == entry.tag && repository == Some(reference.repository())
    });
    job.metadata.uid.as_deref() == Some(uid) && !job.is_deleting() && !job.is_complete() && names && same_image
}

/// One registry in a Secret, as Docker's configuration file has it.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entered {
    username: String,
    password: String,
    auth: String,
    serveraddress: String,
    identitytoken: String,
    registrytoken: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: Option<BTreeMap<String, Entered>>,
}

const DOCKER_CONFIG_JSON: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
const DOCKER_CFG: (&str, &str) = ("kubernetes.io/dockercfg", ".dockercfg");

/// What is wrong with a Secret, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableSecret {
    /// It is of a type for something else.
    #[error("its type is {0:?}: want {json} or {cfg}", json = DOCKER_CONFIG_JSON.0, cfg = DOCKER_CFG.0)]
    OtherType(String),
    /// It lacks the key of its type.
    #[error("it has no key {0}")]
    NoKey(&'static str),
    /// What stands under its key cannot be read.
    #[error("{0} is not the JSON of a Docker configuration")]
    NotDocker(&'static str),
    /// A user name and password that cannot be read.
    #[error("auth is not base64 of name:password")]
    Auth,
    /// One of its registries.
    #[error("its entry for {pattern}: {problem}")]
    Entry {
        /// The registry, as the Secret names it.
        pattern: String,
        /// What is wrong there.
        problem: Box<Self>,
    },
}

/// The credentials of a Secret that fit an image, the closest first.
///
/// # Errors
/// What is wrong with the Secret, without what is in it.
pub fn matching(
    type_: &str,
    data: &BTreeMap<String, impl AsRef<[u8]>>,
    image: &str,
) -> Result<Vec<Credential>, UnusableSecret> {
    let entries = entered(type_, data)?;
    let Some(repository) = ImageRef::parse(image).map(|image| image.repository()) else { return Ok(Vec::new()) };
    let mut fitting: Vec<(String, Credential)> = Vec::new();
    for (key, entered) in entries {
        let pattern = bare(&key);
        if fits(&pattern, &repository) {
            let credential = credential(entered)
                .map_err(|problem| UnusableSecret::Entry { pattern: pattern.clone(), problem: Box::new(problem) })?;
            if !credential.is_empty() {
                fitting.push((pattern, credential));
            }
        }
    }
    fitting.sort_by_key(|(pattern, _)| (Reverse(pattern.len()), pattern.contains('*')));
    Ok(fitting.into_iter().map(|(_, credential)| credential).collect())
}

fn entered(
    type_: &str,
    data: &BTreeMap<String, impl AsRef<[u8]>>,
) -> Result<BTreeMap<String, Entered>, UnusableSecret> {
    let content = |key: &'static str| data.get(key).ok_or(UnusableSecret::NoKey(key));
    // The parser's words could quote what is in the Secret.
    let broken = UnusableSecret::NotDocker;
    let (known, key) = match type_ {
        _ if type_ == DOCKER_CONFIG_JSON.0 => DOCKER_CONFIG_JSON,
        _ if type_ == DOCKER_CFG.0 => DOCKER_CFG,
        _ => {
            return Err(UnusableSecret::OtherType(type_.to_owned()));
        }
    };
    let bytes = content(key)?.as_ref();
    if known == DOCKER_CFG.0 {
        return serde_json::from_slice(bytes).map_err(|_| broken(key));
    }
    let config: DockerConfig = serde_json::from_slice(bytes).map_err(|_| broken(key))?;
    Ok(config.auths.unwrap_or_default())
}

fn credential(entered: Entered) -> Result<Credential, UnusableSecret> {
    let (mut username, mut password) = (entered.username, entered.password);
    if username.is_empty() && password.is_empty() && !entered.auth.is_empty() {
        let decoded = STANDARD.decode(entered.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or(UnusableSecret::Auth)?;
        let (name, rest) = decoded.split_once(':').ok_or(UnusableSecret::Auth)?;
        (username, password) = (name.to_owned(), rest.trim_end_matches('\0').to_owned());
    }
    Ok(Credential {
        username,
        password,
        server_address: entered.serveraddress,
        identity_token: entered.identitytoken,
        registry_token: entered.registrytoken,
    })
}

/// The key of a registry without scheme and the version of its protocol.
fn bare(key: &str) -> String {
    let key = key.trim();
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = path.trim_matches('/');
    let path = ["v1", "v2"]
        .iter()
        .find_map(|version| match path.strip_prefix(version) {
            Some("") => Some(""),
            Some(rest) => rest.strip_prefix('/'),
            None => None,
        })
        .unwrap_or(path);
    let host = if ["index.docker.io", "registry-1.docker.io"].contains(&host) { "docker.io" } else { host };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Whether `registry.example/team` is meant for `registry.example/team/app`: the host label by label, where `*` stands for
/// any, and the path part by part.
fn fits(pattern: &str, repository: &str) -> bool {
    let (host_pattern, path_pattern) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
    let split = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name.to_lowercase(), port.to_owned()),
        _ => (host.to_lowercase(), String::new()),
    };
    let ((name_pattern, port_pattern), (name, port)) = (split(host_pattern), split(host));
    let (wanted, labels): (Vec<&str>, Vec<&str>) = (name_pattern.split('.').collect(), name.split('.').collect());
    let same_host = port_pattern == port
        && wanted.len() == labels.len()
        && wanted.iter().zip(&labels).all(|(pattern, label)| label_fits(pattern, label));
    let same_path = path_pattern.is_empty()
        || path.strip_prefix(path_pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    same_host && same_path
}

/// One label of a host; `*` stands for any text in it.
fn label_fits(pattern: &str, label: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = label.strip_prefix(first) else { return false };
    let others: Vec<&str> = parts.collect();
    let Some((last, middle)) = others.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
