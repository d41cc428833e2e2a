//! ControllerRevisions of a workload: found, chosen, made, adopted and truncated, for any kind that keeps its history in
//! them. Which revision is the right one is decided by [`domain::workload::revisions`](crate::domain::workload::revisions).

use std::{collections::BTreeSet, sync::Arc};

use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Map, Value, json};

use super::{apply::code, live, stored::only_version};
use crate::{
    api::labels,
    domain::workload::{
        make,
        owner::OwnerRef,
        revisions::{self, Choice, KnownRevision},
    },
    k8s::{name::is_dns_subdomain, path, revision, selector},
};

/// How a kind names its revisions.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// The label that holds the hash.
    pub hash_label: &'static str,
    /// The hash of data, after so many collisions.
    pub hash: fn(&Value, i32) -> String,
}

impl Naming {
    /// `<workload>-<hash>` with the hash in `controller.kubernetes.io/hash`: CloneSet and StatefulSet.
    pub const BY_DATA: Self = Self { hash_label: labels::REVISION_HASH, hash: revision::hash_of };

    /// The name of the revision with `data`.
    pub fn name(&self, owner: &str, data: &Value, collisions: i32) -> String {
        revision::name(owner, &(self.hash)(data, collisions))
    }
}

/// Whose revisions they are, and what is written into them.
#[derive(Clone, Debug)]
pub struct History<'a> {
    /// The workload.
    pub owner: &'a OwnerRef,
    /// The selector of its Pods, which its revisions match too.
    pub selector: &'a LabelSelector,
    /// How its revisions are named.
    pub naming: Naming,
    /// Labels of a new revision besides that of its hash.
    pub labels: Map<String, Value>,
    /// Annotations of a new revision.
    pub annotations: Map<String, Value>,
    /// Annotations of whatever revision is the newest: of a new one, and of an older one that becomes the newest again.
    pub newest_annotations: Map<String, Value>,
}

impl History<'_> {
    /// A new revision with `data`.
    fn wanted(&self, data: &Value, number: i64, collisions: i32) -> Value {
        let mut annotations = self.annotations.clone();
        annotations.extend(self.newest_annotations.clone());
        let hash = (self.naming.hash)(data, collisions);
        let hash = (self.naming.hash_label, hash.as_str());
        make::controller_revision(self.owner, &self.labels, &annotations, hash, data, number)
    }
}

/// The revision that a template is.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// How often the name of a new revision was taken, with those that were counted before.
    pub collisions: i32,
    /// Every revision of the workload, oldest first.
    pub known: Vec<KnownRevision>,
    /// The number that it has now, if it is an older one that became the newest again.
    pub rolled_back: Option<i64>,
}

/// What the status of a workload says of its revisions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded<'a> {
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// `status.currentRevision`.
    pub current: &'a str,
    /// `status.updateRevision`.
    pub update: &'a str,
    /// `status.collisionCount`.
    pub collisions: i32,
}

/// The revisions that a workload is between.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// The generation of the spec whose template the update revision has.
    pub generation: i64,
    /// Name of the one to get to.
    pub update: String,
    /// Name of the one to come from.
    pub current: String,
    /// How often the name of a new revision was taken.
    pub collisions: i32,
    /// All of them, oldest first. None while nobody has needed them.
    pub known: Option<Arc<Vec<KnownRevision>>>,
    /// The number that the update revision has now, if it was an older one and has just become the newest again.
    pub rolled_back: Option<i64>,
}

impl Resolved {
    /// The template of a revision.
    pub fn template(&self, name: &str) -> Option<Value> {
        self.find(name).and_then(|known| revision::template(&known.data))
    }

    /// A revision, by its full or its short name.
    pub fn find(&self, name: &str) -> Option<&KnownRevision> {
        self.all().iter().find(|known| revision::is_same(&known.name, name))
    }

    /// All of them, as far as they are known.
    pub fn all(&self) -> &[KnownRevision] {
        self.known.as_ref().map(|known| known.as_slice()).unwrap_or_default()
    }
}

/// Revisions that are read at a time.
const PAGE: u32 = 200;
/// Revisions without a controller that are adopted in one pass: the next ones go on with the others.
const MOST_ADOPTED: usize = 100;
/// Names that are tried for one new revision.
const MOST_NAMES: usize = 100;

/// The ControllerRevisions of the cluster.
#[derive(Clone)]
pub struct Revisions {
    client: Client,
}

impl Revisions {
    /// Nothing is read before it is needed.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        // Raw: the data of a revision is whatever the template was.
        let kind = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("apps", "v1", "ControllerRevision"),
            "controllerrevisions",
        );
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    /// The revisions of a workload, oldest first. Those that nobody controls are adopted.
    ///
    /// # Errors
    /// Those of the API server, 409 of an adoption included; another one if there are more to adopt than one call does.
    pub async fn list(&self, of: &History<'_>) -> kube::Result<Vec<KnownRevision>> {
        let api = self.api(&of.owner.namespace);
        let mut params = ListParams::default().labels(&selector::text_of(of.selector)).limit(PAGE);
        let (mut known, mut adopted) = (Vec::new(), 0);
        loop {
            let page = api.list(&params).await?;
            for object in &page.items {
                match controller_uid(object) {
                    Some(uid) if uid == of.owner.uid => known.push(known_of(object)),
                    Some(_) => {}
                    None if adopted == MOST_ADOPTED => return Err(more_to_adopt()),
                    None => {
                        let taken = self.adopt(&api, of.owner, object).await?;
                        adopted += usize::from(taken.is_some());
                        known.extend(taken);
                    }
                }
            }
            // What is more than may be kept is not read into memory all at once.
            let most = usize::try_from(2 * revisions::MOST_KEPT).unwrap_or_default();
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty() && known.len() < most);
            if params.continue_token.is_none() {
                break;
            }
        }
        revisions::sort(&mut known);
        Ok(known)
    }

    /// A revision that a workload controls, by its name, whatever labels it has. None: there is none.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn find(&self, owner: &OwnerRef, name: &str) -> kube::Result<Option<KnownRevision>> {
        if !is_dns_subdomain(name) {
            return Ok(None);
        }
        let found = self.api(&owner.namespace).get_opt(name).await?;
        Ok(found.filter(|found| controller_uid(found) == Some(owner.uid.as_str())).map(|found| known_of(&found)))
    }

    /// Finds out which revisions a workload with this template is between, and makes a new one for a new template. Nothing
    /// is read while the status says that the spec has been seen and every name fits. `remembered` is what the last pass
    /// has found.
    ///
    /// # Errors
    /// As for [`Self::choose`].
    pub async fn resolve(
        &self,
        of: &History<'_>,
        template: &Value,
        recorded: Recorded<'_>,
        remembered: Option<Resolved>,
    ) -> kube::Result<Resolved> {
        let mut resolved = match remembered.filter(|resolved| resolved.generation == recorded.generation) {
            Some(resolved) => Resolved { rolled_back: None, ..resolved },
            None => {
                let data = revision::data(template);
                let update = of.naming.name(&of.owner.name, &data, recorded.collisions);
                let Recorded { generation, collisions, .. } = recorded;
                let resolved = Resolved { generation, update, collisions, ..Resolved::default() };
                match recorded.observed_generation == generation && recorded.update == resolved.update {
                    true => resolved,
                    false => self.rechosen(of, &data, resolved).await?,
                }
            }
        };
        // With one revision in play its name is all there is to know.
        if !revision::is_same(recorded.current, &resolved.update) {
            resolved = self.with_known(of, template, resolved).await?;
        }
        let current = resolved.find(recorded.current).filter(|_| !recorded.current.is_empty());
        resolved.current = current.map_or_else(|| resolved.update.clone(), |known| known.name.clone());
        Ok(resolved)
    }

    async fn rechosen(&self, of: &History<'_>, data: &Value, resolved: Resolved) -> kube::Result<Resolved> {
        let Chosen { name, collisions, known, rolled_back } = self.choose(of, data, resolved.collisions).await?;
        Ok(Resolved { update: name, collisions, known: Some(Arc::new(known)), rolled_back, ..resolved })
    }

    /// The same with all revisions at hand. The update revision is made again if somebody has deleted it.
    ///
    /// # Errors
    /// As for [`Self::choose`].
    pub async fn with_known(&self, of: &History<'_>, template: &Value, resolved: Resolved) -> kube::Result<Resolved> {
        if resolved.known.is_some() {
            return Ok(resolved);
        }
        let known = self.list(of).await?;
        match known.iter().any(|known| known.name == resolved.update && !known.is_deleting) {
            true => Ok(Resolved { known: Some(Arc::new(known)), ..resolved }),
            false => self.rechosen(of, &revision::data(template), resolved).await,
        }
    }

    /// Deletes revisions beyond the history limit. When all Pods are on their revision, the other revisions are forgotten.
    /// `pods` are the revisions of the Pods.
    ///
    /// # Errors
    /// As for [`Self::truncate`].
    pub async fn tidy<'p>(
        &self,
        namespace: &str,
        resolved: &Resolved,
        pods: impl Iterator<Item = &'p str>,
        limit: i32,
    ) -> kube::Result<Resolved> {
        let mut live: BTreeSet<&str> = pods.collect();
        let is_settled = revision::is_same(&resolved.update, &resolved.current)
            && live.iter().all(|live| revision::is_same(live, &resolved.update));
        live.extend([resolved.update.as_str(), resolved.current.as_str()]);
        let left = self.truncate(namespace, resolved.all(), &live, limit).await?;
        Ok(Resolved { known: (!is_settled).then(|| Arc::new(left)), ..resolved.clone() })
    }

    /// Chooses the revision with `data`: the one that there is, made the newest if it is not, or a new one. `collisions` is
    /// the count in the workload's status.
    ///
    /// # Errors
    /// Those of the API server; 409 while a revision of the same name and data is being deleted.
    pub async fn choose(&self, of: &History<'_>, data: &Value, collisions: i32) -> kube::Result<Chosen> {
        let mut known = self.list(of).await?;
        let mut chosen = Chosen { name: String::new(), collisions, known: Vec::new(), rolled_back: None };
        match revisions::choose(&known, data) {
            Choice::Newest(index) => chosen.name.clone_from(&known[index].name),
            Choice::Again(index, number) => {
                chosen.name.clone_from(&known[index].name);
                chosen.rolled_back = Some(number);
                let mut patch = json!({"revision": number});
                if !of.newest_annotations.is_empty() {
                    patch["metadata"] = json!({"annotations": of.newest_annotations});
                }
                let api = self.api(&of.owner.namespace);
                known[index] = known_of(&api.patch(&chosen.name, &PatchParams::default(), &Patch::Merge(patch)).await?);
            }
            Choice::Make { number } => {
                let (made, after) = self.make(of, data, number, collisions).await?;
                chosen.collisions = after;
                chosen.name.clone_from(&made.name);
                known.retain(|known| known.name != made.name);
                known.push(made);
            }
        }
        revisions::sort(&mut known);
        Ok(Chosen { known, ..chosen })
    }

    /// Makes a revision, under another name as long as somebody else has the one that was to be. With it how often names
    /// were taken by then.
    ///
    /// # Errors
    /// As for [`Self::choose`], and 409 when very many names are taken.
    pub async fn make(
        &self,
        of: &History<'_>,
        data: &Value,
        number: i64,
        mut collisions: i32,
    ) -> kube::Result<(KnownRevision, i32)> {
        let api = self.api(&of.owner.namespace);
        let mut names = 0;
        loop {
            names += 1;
            let wanted = of.wanted(data, number, collisions);
            let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let taken = match self.create(&of.owner.namespace, &wanted).await {
                Ok(made) => {
                    let OwnerRef { kind, namespace, name: owner, .. } = of.owner;
                    tracing::info!(kind, namespace, owner, revision = name, number, "new revision");
                    return Ok((known_of(&made), collisions));
                }
                Err(error) if code(&error) == Some(409) => error,
                Err(error) => return Err(error),
            };
            if names == MOST_NAMES {
                return Err(taken);
            }
            // None: gone meanwhile.
            let Some(there) = api.get_opt(&name).await? else { continue };
            let owner = controller_uid(&there);
            let is_ours = owner.is_some_and(|uid| uid == of.owner.uid);
            if !revisions::is_same_data(&known_of(&there).data, data) || (owner.is_some() && !is_ours) {
                // That of a namesake that was deleted goes with it, whatever its data.
                collisions += 1;
            } else if there.metadata.deletion_timestamp.is_some() {
                // The name will be free again.
                return Err(taken);
            } else if is_ours {
                return Ok((known_of(&there), collisions));
            } else if let Some(adopted) = self.adopt(&api, of.owner, &there).await? {
                return Ok((adopted, collisions));
            } else {
                return Err(taken);
            }
        }
    }

    /// Makes the first revision of a new workload without reading what there is. None: the name is taken.
    ///
    /// # Errors
    /// Those of the API server, but that one.
    pub async fn make_first(&self, of: &History<'_>, data: &Value) -> kube::Result<Option<KnownRevision>> {
        match self.create(&of.owner.namespace, &of.wanted(data, 1, 0)).await {
            Ok(made) => Ok(Some(known_of(&made))),
            Err(error) if code(&error) == Some(409) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends it in the bytes that are to be stored.
    async fn create(&self, namespace: &str, controller_revision: &Value) -> kube::Result<DynamicObject> {
        let request = Request::post(path::in_namespace("apps", "v1", namespace, "controllerrevisions"))
            .header(CONTENT_TYPE, "application/json")
            .body(revision::body(controller_revision))
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    /// Takes over a revision that nobody controls, as one that was orphaned: only those of our own may be changed or
    /// deleted. None: it cannot be adopted now.
    async fn adopt(
        &self,
        api: &Api<DynamicObject>,
        owner: &OwnerRef,
        orphan: &DynamicObject,
    ) -> kube::Result<Option<KnownRevision>> {
        let metadata = &orphan.metadata;
        if metadata.deletion_timestamp.is_some() || !live::may_adopt(&self.client, owner).await? {
            return Ok(None);
        }
        let mut owners = vec![owner.controller()];
        owners.extend(metadata.owner_references.iter().flatten().map(|owner| json!(owner)));
        let patch = json!({"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "ownerReferences": owners}});
        let name = metadata.name.as_deref().unwrap_or_default();
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(adopted) => Ok(Some(known_of(&adopted))),
            Err(error) if code(&error) == Some(404) => Ok(None),
            // Without it the list is not complete, and Pods of it would count as outdated.
            Err(error) => Err(error),
        }
    }

    /// Deletes the oldest revisions beyond the history limit; those of `live` count as in use and stay. Returns what is
    /// left. One that is refused keeps none of the others.
    ///
    /// # Errors
    /// The first one of the API server, when everything has been tried.
    pub async fn truncate(
        &self,
        namespace: &str,
        known: &[KnownRevision],
        live: &BTreeSet<&str>,
        limit: i32,
    ) -> kube::Result<Vec<KnownRevision>> {
        self.delete(namespace, known, revisions::superfluous(known, live, limit)).await
    }

    /// Deletes some of the revisions that are `known`. Returns what is left. One that is refused keeps none of the others.
    ///
    /// # Errors
    /// The first one of the API server, when everything has been tried.
    pub async fn delete(
        &self,
        namespace: &str,
        known: &[KnownRevision],
        superfluous: Vec<&KnownRevision>,
    ) -> kube::Result<Vec<KnownRevision>> {
        let api = self.api(namespace);
        let (mut left, mut failure) = (known.to_vec(), None);
        for old in superfluous {
            match api.delete(&old.name, &only_version(&old.uid, old.version.as_deref())).await {
                // What somebody has changed meanwhile is looked at when the revisions are read again.
                Err(error) if !matches!(code(&error), Some(404 | 409)) => failure = failure.or(Some(error)),
                _ => left.retain(|known| known.name != old.name),
            }
        }
        failure.map_or(Ok(left), Err)
    }
}

fn more_to_adopt() -> kube::Error {
    let message = format!("{MOST_ADOPTED} ControllerRevisions without a controller were adopted, and there are more");
    kube::Error::Service(message.into())
}

fn controller_uid(object: &DynamicObject) -> Option<&str> {
    let mut owners = object.metadata.owner_references.iter().flatten().filter(|owner| owner.controller == Some(true));
    owners.next().map(|owner| owner.uid.as_str())
}

fn known_of(object: &DynamicObject) -> KnownRevision {
    KnownRevision {
        name: object.metadata.name.clone().unwrap_or_default(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        version: object.metadata.resource_version.clone(),
        number: object.data.get("revision").and_then(Value::as_i64).unwrap_or(0),
        created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
        data: object.data.get("data").cloned().unwrap_or_default(),
        claims_hash: object.metadata.annotations.as_ref().and_then(|a| a.get(labels::CLAIM_TEMPLATES_HASH)).cloned(),
        custom_version: object
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(labels::SIDECAR_SET_CUSTOM_VERSION))
            .cloned(),
        is_deleting: object.metadata.deletion_timestamp.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex};

    use http::Response;
    use http_body_util::BodyExt;
    use kube::client::Body;
    use std::sync::Arc;

    use super::*;

    /// Decision 34.
    #[tokio::test]
    async fn the_data_of_a_new_revision_is_sent_as_go_encodes_it() {
        let sent: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = sent.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = log.clone();
            async move {
                assert_eq!(request.uri().path(), "/apis/apps/v1/namespaces/a/controllerrevisions");
                let bytes = request.into_body().collect().await.unwrap().to_bytes().to_vec();
                log.lock().unwrap().push(String::from_utf8(bytes.clone()).unwrap());
                Ok::<_, Infallible>(Response::builder().status(201).body(Body::from(bytes)).unwrap())
            }
        });
        let owner = OwnerRef {
            kind: "StatefulSet".into(),
            name: "db".into(),
            uid: "u".into(),
            namespace: "a".into(),
            ..OwnerRef::default()
        };
        let of = History {
            owner: &owner,
            selector: &LabelSelector::default(),
            naming: Naming::BY_DATA,
            labels: Map::new(),
            annotations: Map::new(),
            newest_annotations: Map::new(),
        };
        let data = revision::data(&json!({"spec": {"args": ["a<b>&c\u{2028}\u{2029}"]}}));
        let (known, collisions) = Revisions::new(Client::new(service, "a")).make(&of, &data, 1, 0).await.unwrap();
        assert_eq!((known.data, collisions), (data, 0));
        let sent = sent.lock().unwrap();
        let want = r#""data":{"spec":{"template":{"$patch":"replace","spec":{"args":["a\u003cb\u003e\u0026c\u2028\u2029"]}}}}"#;
        assert!(sent.len() == 1 && sent[0].contains(want), "{sent:?}");
    }
}
