//! How much of one NodeImage the jobs of one namespace may take, so that those of others find room.
//!
//! The last places are kept for namespaces that have less than their share: whoever has its share gets more only while
//! there is more room than that. Bytes are counted because etcd refuses objects of more than 1.5 MiB: a NodeImage that is
//! larger could not be written for anybody.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
};

use k8s_openapi::api::core::v1::ObjectReference;
use serde::Serialize;

use crate::{
    api::apps::{
        image_pull_job::SandboxConfig,
        node_image::{ImageSpec, ImageTagSpec, MOST_IMAGES, OF_JOB, SecretReference},
    },
    k8s::{canonical_json, node_image::Owner},
};

/// Places of one kind.
#[derive(Clone, Copy, Debug)]
struct Places {
    what: &'static str,
    most: usize,
    /// What a namespace gets as long as there is room at all.
    share: usize,
    /// What is kept for those that have less than their share.
    kept: usize,
}

/// Names of repositories.
const IMAGES: Places = Places { what: "images", most: MOST_IMAGES, share: 32, kept: 64 };
/// Jobs that want an image: each is a reference in an entry. They bound tags and owners, of which names say nothing.
const JOBS: Places = Places { what: "entries of jobs", most: 1024, share: 128, kept: 256 };
/// Bytes of the spec, of the status without messages, and of the names in `managedFields`. The rest of 1.5 MiB is for
/// labels and messages.
const BYTES: Places = Places { what: "bytes", most: 1 << 20, share: 128 << 10, kept: 384 << 10 };

/// Bytes of an image besides its name, tags, Secrets and sandboxConfig.
const AROUND_IMAGE: usize = 256;
/// The name of an image stands in spec and status, and for both of them in `managedFields`.
const TIMES_OF_NAME: usize = 4;
/// Bytes of a tag and of its status, besides the tag itself and the owners.
const AROUND_TAG: usize = 512;
/// Bytes of a reference to an owner, besides its values.
const AROUND_OWNER: usize = 96;
/// Bytes of a reference to a Secret, besides its values.
const AROUND_SECRET: usize = 40;

impl Places {
    /// Whether a namespace that has `own` of `all` that are taken may take `more`.
    fn admit(self, own: usize, all: usize, more: usize) -> Result<(), NoRoom> {
        let Self { what, most, share, kept } = self;
        if all + more > most {
            return Err(NoRoom::Node { what, all, more, most });
        }
        if own + more > share && all + more > most - kept {
            return Err(NoRoom::Namespace { what, all, own, more, kept, most, share });
        }
        Ok(())
    }
}

/// Why a node takes no further image of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The NodeImage is full.
    #[error("its NodeImage has {all} {what}, and the job takes {more} more; there can be {most}")]
    Node {
        /// Of what.
        what: &'static str,
        /// What there is.
        all: usize,
        /// What the job takes.
        more: usize,
        /// What there can be.
        most: usize,
    },
    /// The namespace has its share.
    #[error(
        "its NodeImage has {all} {what}, {own} of them for this namespace, and the job takes {more} more; the last {kept} \
         of {most} are reserved for namespaces with at most {share}"
    )]
    Namespace {
        /// Of what.
        what: &'static str,
        /// What there is.
        all: usize,
        /// What of it is the namespace's.
        own: usize,
        /// What the job takes.
        more: usize,
        /// What is kept for namespaces with less than their share.
        kept: usize,
        /// What there can be.
        most: usize,
        /// The share of a namespace.
        share: usize,
    },
}

impl NoRoom {
    /// The same for a job that takes another number.
    fn taking(self, job: usize) -> Self {
        match self {
            Self::Node { what, all, most, .. } => Self::Node { what, all, more: job, most },
            Self::Namespace { what, all, own, kept, most, share, .. } => {
                Self::Namespace { what, all, own, more: job, kept, most, share }
            }
        }
    }
}

/// What a job asks of a node.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The image's name in NodeImages.
    pub image: &'a str,
    /// Its tag or digest there.
    pub tag: &'a str,
    /// The reference to the job.
    pub owner: &'a ObjectReference,
    /// Names of Secrets.
    pub secrets: &'a [String],
    /// For the runtime.
    pub sandbox: Option<&'a SandboxConfig>,
}

impl Ask<'_> {
    /// Bytes that the NodeImage grows by.
    fn bytes(&self, images: &BTreeMap<String, ImageSpec>) -> usize {
        let image = images.get(self.image);
        let has_tag = image.is_some_and(|image| image.tags.iter().any(|tag| tag.tag == self.tag));
        let has_secret = |name: &String| {
            let is_it = |secret: &SecretReference| secret.namespace == self.namespace && secret.name == *name;
            image.is_some_and(|image| image.pull_secrets.iter().any(is_it))
        };
        let secrets = self.secrets.iter().filter(|name| !has_secret(name));
        let sandbox_now = image.map_or(0, |image| sandbox(image.sandbox_config.as_ref()));
        (if image.is_none() { around_image(self.image) } else { 0 })
            + (if has_tag { 0 } else { around_tag(self.tag) })
            + bytes_of_owner(self.owner)
            + secrets.map(|name| AROUND_SECRET + self.namespace.len() + name.len() + OF_JOB.len()).sum::<usize>()
            + sandbox(self.sandbox).saturating_sub(sandbox_now)
    }
}

/// Bytes of a value as the API server stores it.
fn encoded(value: &impl Serialize) -> usize {
    serde_json::to_value(value).map_or(0, |value| canonical_json::encode(&value).len())
}

/// Bytes of a sandboxConfig as the API server stores it.
pub fn sandbox(config: Option<&SandboxConfig>) -> usize {
    config.map_or(0, encoded)
}

fn around_image(name: &str) -> usize {
    AROUND_IMAGE + TIMES_OF_NAME * name.len()
}

fn around_tag(tag: &str) -> usize {
    AROUND_TAG + 2 * tag.len()
}

fn bytes_of_owner(owner: &ObjectReference) -> usize {
    let ObjectReference { api_version, field_path, kind, name, namespace, resource_version, uid } = owner;
    let fields = [api_version, field_path, kind, name, namespace, resource_version, uid];
    AROUND_OWNER + fields.into_iter().flatten().map(String::len).sum::<usize>()
}

fn bytes_of_tag(tag: &ImageTagSpec) -> usize {
    let unknown = if tag.unknown.is_empty() { 0 } else { encoded(&tag.unknown) };
    let of_policy = tag.pull_policy.as_ref().filter(|policy| !policy.unknown.is_empty());
    around_tag(&tag.tag) + unknown + of_policy.map_or(0, |policy| encoded(&policy.unknown))
}

/// What is taken of a NodeImage.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// By the namespace.
    own: usize,
    /// By everybody.
    all: usize,
}

impl AddAssign for Taken {
    fn add_assign(&mut self, more: Self) {
        self.own += more.own;
        self.all += more.all;
    }
}

/// Jobs that want an image.
fn jobs_of(image: &ImageSpec, namespace: &str) -> Taken {
    let is_own = |owner: &ObjectReference| {
        owner.namespace.as_deref().unwrap_or_default() == namespace && Owner::from(owner).is_job()
    };
    let mut taken = Taken::default();
    for owner in image.tags.iter().flat_map(|tag| &tag.owner_references) {
        taken += Taken { own: usize::from(is_own(owner)), all: 1 };
    }
    taken
}

/// Bytes of an image. What belongs to nobody alone is split between the namespaces whose jobs want the image.
fn bytes_of(name: &str, image: &ImageSpec, namespace: &str) -> Taken {
    let mut taken = Taken::default();
    let mut namespaces = BTreeSet::new();
    let mut shared = around_image(name) + sandbox(image.sandbox_config.as_ref());
    if !image.unknown.is_empty() {
        shared += encoded(&image.unknown);
    }
    for tag in &image.tags {
        shared += bytes_of_tag(tag);
        for owner in &tag.owner_references {
            let bytes = bytes_of_owner(owner);
            let of = owner.namespace.as_deref().unwrap_or_default();
            taken.all += bytes;
            taken.own += if of == namespace { bytes } else { 0 };
            namespaces.insert(of);
        }
    }
    for secret in &image.pull_secrets {
        let bytes = AROUND_SECRET + secret.namespace.len() + secret.name.len() + secret.mode.len();
        taken.all += bytes;
        taken.own += if secret.namespace == namespace { bytes } else { 0 };
    }
    taken.all += shared;
    taken.own += if namespaces.contains(namespace) { shared.div_ceil(namespaces.len()) } else { 0 };
    taken
}

/// What was refused in one pass over a node. Jobs that begin in it only take places: who was refused is refused again, and
/// nothing is measured for that. Thousands of jobs of one namespace may ask.
#[derive(Debug, Default)]
pub struct Refusals {
    /// By namespace, and whether the image is there for others.
    images: BTreeMap<(String, bool), NoRoom>,
    jobs: BTreeMap<String, NoRoom>,
    /// With the number that was too much. A job that begins may make room: its sandboxConfig is in the place of another one.
    bytes: BTreeMap<String, (usize, NoRoom)>,
}

impl Refusals {
    /// Why a job is refused, if one before it was refused for the same reason.
    fn again(&self, ask: &Ask<'_>, has_image: bool, is_there: bool, bytes: usize) -> Option<NoRoom> {
        let of_image = || self.images.get(&(ask.namespace.to_owned(), is_there));
        if !has_image && let Some(why) = of_image() {
            return Some(why.clone());
        }
        if let Some(why) = self.jobs.get(ask.namespace) {
            return Some(why.clone());
        }
        let (least, why) = self.bytes.get(ask.namespace)?;
        (bytes >= *least).then(|| why.clone().taking(bytes))
    }
}

/// Whether a job of a namespace may begin with an image on a node that has these.
///
/// # Errors
/// What there is too much of, and what is allowed.
pub fn admit(images: &BTreeMap<String, ImageSpec>, ask: &Ask<'_>, refusals: &mut Refusals) -> Result<(), NoRoom> {
    let (namespace, more) = (ask.namespace, ask.bytes(images));
    let there = images.get(ask.image);
    let (is_there, has_image) = (there.is_some(), there.is_some_and(|image| jobs_of(image, namespace).own > 0));
    if let Some(why) = refusals.again(ask, has_image, is_there, more) {
        return Err(why);
    }
    let (mut own_images, mut jobs, mut bytes) = (0, Taken::default(), Taken::default());
    for (name, image) in images {
        let of_image = jobs_of(image, namespace);
        own_images += usize::from(of_image.own > 0);
        jobs += of_image;
        bytes += bytes_of(name, image, namespace);
    }
    if !has_image {
        // A repository that others have takes no new name, but it is the namespace's own when the others have gone.
        let all = images.len() - usize::from(is_there);
        IMAGES.admit(own_images, all, 1).inspect_err(|why| {
            refusals.images.insert((namespace.to_owned(), is_there), why.clone());
        })?;
    }
    JOBS.admit(jobs.own, jobs.all, 1).inspect_err(|why| {
        refusals.jobs.insert(namespace.to_owned(), why.clone());
    })?;
    BYTES.admit(bytes.own, bytes.all, more).inspect_err(|why| {
        refusals.bytes.insert(namespace.to_owned(), (more, why.clone()));
    })?;
    refusals.bytes.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner(namespace: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("apps.kruise.io/v1beta1".into()),
            kind: Some("ImagePullJob".into()),
            namespace: Some(namespace.into()),
            name: Some("j".into()),
            uid: Some("0123".into()),
            ..ObjectReference::default()
        }
    }

    fn admit(images: &BTreeMap<String, ImageSpec>, namespace: &str, image: &str) -> Result<(), NoRoom> {
        let owner = owner(namespace);
        let ask = Ask { namespace, image, tag: "v1", owner: &owner, secrets: &[], sandbox: None };
        super::admit(images, &ask, &mut Refusals::default())
    }

    /// Repositories with entries for jobs: names are `PREFIX0`, `PREFIX1`, ...
    fn images(of: &[(&str, usize, usize)]) -> BTreeMap<String, ImageSpec> {
        let mut images = BTreeMap::new();
        for (namespace, count, jobs) in of {
            for i in 0..*count {
                let owner = |j| {
                    json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": namespace,
                    "name": "j", "uid": format!("{namespace}-{i}-{j}")})
                };
                let owners: Vec<_> = (0..*jobs).map(owner).collect();
                let spec = json!({"tags": [{"tag": "v1", "ownerReferences": owners}]});
                images.insert(format!("{namespace}{i}"), serde_json::from_value(spec).unwrap());
            }
        }
        images
    }

    #[test]
    fn a_namespace_with_its_share_leaves_the_last_places_to_others() {
        for (taken, namespace, image, allowed) in [
            (vec![], "a", "new", true),
            (vec![("a", 191, 1)], "a", "new", true),
            (vec![("a", 192, 1)], "a", "new", false),
            (vec![("a", 192, 1)], "a", "a7", true),
            (vec![("a", 192, 1)], "b", "new", true),
            (vec![("a", 192, 1)], "b", "a7", true),
            (vec![("a", 192, 1), ("b", 31, 1)], "b", "new", true),
            (vec![("a", 192, 1), ("b", 32, 1)], "b", "new", false),
            (vec![("a", 192, 1), ("b", 32, 1)], "c", "new", true),
            (vec![("a", 192, 1), ("b", 32, 1), ("c", 32, 1)], "d", "new", false),
            // Jobs, whatever their images.
            (vec![("a", 1, 767)], "a", "a0", true),
            (vec![("a", 1, 768)], "a", "a0", false),
            (vec![("a", 1, 768)], "b", "a0", true),
            (vec![("a", 1, 768), ("b", 1, 128)], "b", "b0", false),
            (vec![("a", 1, 1024)], "b", "new", false),
        ] {
            let result = admit(&images(&taken), namespace, image);
            assert_eq!(result.is_ok(), allowed, "{taken:?} {namespace} {image}: {result:?}");
        }
    }

    #[test]
    fn who_was_refused_in_a_pass_is_refused_again_without_a_look_at_the_node() {
        let large =
            SandboxConfig { labels: None, annotations: Some(BTreeMap::from([("a".to_owned(), "x".repeat(4000))])) };
        let mut full = images(&[("a", 160, 1)]);
        full.values_mut().for_each(|image| image.sandbox_config = Some(large.clone()));
        let (of_images, of_jobs, of_bytes) = (images(&[("a", 192, 1)]), images(&[("a", 1, 768)]), full);
        let (owner, empty) = (owner("a"), BTreeMap::new());
        let ask = |namespace, image, sandbox| Ask { namespace, image, tag: "v1", owner: &owner, secrets: &[], sandbox };
        for (what, node, image, sandbox) in [
            ("images", &of_images, "new", None),
            ("entries of jobs", &of_jobs, "a0", None),
            ("bytes", &of_bytes, "new", Some(&large)),
        ] {
            let mut refusals = Refusals::default();
            let why = super::admit(node, &ask("a", image, sandbox), &mut refusals).unwrap_err();
            assert!(why.to_string().contains(&format!(" {what}, ")), "{why}");
            // The empty node shows that nobody has looked.
            assert!(super::admit(&empty, &ask("a", "newer", sandbox), &mut refusals).is_err(), "{what}");
            assert_eq!(super::admit(&empty, &ask("b", "newer", sandbox), &mut refusals), Ok(()), "{what}");
        }
        // A job that takes less may fit, also one for an image that the namespace has.
        let mut refusals = Refusals::default();
        assert!(super::admit(&of_bytes, &ask("a", "new", Some(&large)), &mut refusals).is_err());
        assert_eq!(super::admit(&empty, &ask("a", "newer", None), &mut refusals), Ok(()));
        assert!(super::admit(&of_images, &ask("a", "new", None), &mut refusals).is_err());
        assert_eq!(super::admit(&of_images, &ask("a", "a7", None), &mut refusals), Ok(()));
    }

    #[test]
    fn what_others_wrote_counts_for_no_namespace() {
        let mut taken = images(&[("a", 200, 1)]);
        for image in taken.values_mut() {
            image.tags[0].owner_references[0].kind = Some("Other".into());
        }
        assert_eq!(admit(&taken, "a", "new"), Ok(()));
    }

    #[test]
    fn refusals_say_how_much_is_allowed() {
        assert_eq!(
            admit(&images(&[("a", 200, 1)]), "a", "new").unwrap_err().to_string(),
            "its NodeImage has 200 images, 200 of them for this namespace, and the job takes 1 more; the last 64 of 256 \
             are reserved for namespaces with at most 32"
        );
        assert_eq!(
            admit(&images(&[("a", 1, 1024)]), "b", "new").unwrap_err().to_string(),
            "its NodeImage has 1024 entries of jobs, and the job takes 1 more; there can be 1024"
        );
    }

    #[test]
    fn a_namespace_with_its_share_of_bytes_leaves_the_last_ones_to_others() {
        let large =
            SandboxConfig { labels: None, annotations: Some(BTreeMap::from([("a".to_owned(), "x".repeat(4000))])) };
        let secrets: Vec<String> = (0..16).map(|i| format!("{i:0>253}")).collect();
        for (sandbox, secrets) in [(Some(&large), &[][..]), (None, &secrets[..]), (Some(&large), &secrets[..])] {
            let mut images: BTreeMap<String, ImageSpec> = BTreeMap::new();
            let mut begin = |namespace: &str, image: &str| {
                let owner = owner(namespace);
                let ask = Ask { namespace, image, tag: "v1", owner: &owner, secrets, sandbox };
                super::admit(&images, &ask, &mut Refusals::default())?;
                let secrets: Vec<_> =
                    secrets.iter().map(|name| json!({"namespace": namespace, "name": name})).collect();
                let spec = json!({"pullSecrets": secrets, "sandboxConfig": sandbox, "tags": [{"tag": "v1", "ownerReferences": [owner]}]});
                images.insert(image.into(), serde_json::from_value(spec).unwrap());
                Ok::<_, NoRoom>(())
            };
            let greedy = (0..192).take_while(|i| begin("greedy", &format!("g{i}")).is_ok()).count();
            assert!((50..160).contains(&greedy), "{greedy}");
            for namespace in ["b", "c"] {
                for i in 0..10 {
                    assert_eq!(begin(namespace, &format!("{namespace}{i}")), Ok(()));
                }
            }
            let why = begin("greedy", "g-new").unwrap_err();
            assert!(
                why.to_string().contains(" bytes, ") && why.to_string().contains("for namespaces with at most 131072"),
                "{why}"
            );
            assert!(encoded(&images) <= BYTES.most);
        }
    }

    #[test]
    fn nobody_is_charged_for_all_of_what_others_wrote_into_a_shared_image() {
        let sandbox = json!({"annotations": {"a": "x".repeat(4000)}});
        let spec =
            json!({"sandboxConfig": sandbox, "tags": [{"tag": "v1", "ownerReferences": [owner("a"), owner("b")]}]});
        let image: ImageSpec = serde_json::from_value(spec).unwrap();
        let (a, b, c) = (bytes_of("app", &image, "a"), bytes_of("app", &image, "b"), bytes_of("app", &image, "c"));
        assert_eq!((a.own, c.own), (b.own, 0));
        assert!((a.all..=a.all + 1).contains(&(a.own + b.own)), "{a:?} {b:?}");
    }

    #[test]
    fn sizes_are_those_of_the_stored_object() {
        let long = "r".repeat(1000);
        for (name, text) in [("app", "x"), (long.as_str(), "<"), ("reg.example/a", "\u{2028}ü")] {
            let spec = json!({
                "pullSecrets": [{"namespace": "a", "name": "s"}, {"namespace": "b", "name": "t".repeat(253)}],
                "sandboxConfig": {"annotations": {"a": text.repeat(300)}},
                "newer": text.repeat(100),
                "tags": [{"tag": "v1", "createdAt": "2026-01-01T00:00:00Z", "imagePullPolicy": "IfNotPresent", "version": 12,
                    "ownerReferences": [owner("a"), owner("b")],
                    "pullPolicy": {"timeoutSeconds": i32::MAX, "backoffLimit": i32::MAX, "ttlSecondsAfterFinished": i32::MAX, "activeDeadlineSeconds": i64::MAX}}],
            });
            let image: ImageSpec = serde_json::from_value(spec.clone()).unwrap();
            let status = json!({"tags": [{"tag": "v1", "phase": "Succeeded", "progress": 100, "version": 12, "imageID": "i".repeat(71),
                "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z"}]});
            let stored = encoded(&json!({"spec": {name: spec}, "status": {name: status}}));
            let counted = bytes_of(name, &image, "a").all;
            assert!((stored..stored + 2 * name.len() + 400).contains(&counted), "{name}: {counted}, stored {stored}");
        }
    }
}
