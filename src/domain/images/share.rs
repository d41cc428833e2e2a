//! How much of one NodeImage the jobs of one namespace may take, so that those of others find room.
//!
//! The last places are kept for namespaces that have less than their share: whoever has its share gets more only while
//! there is more room than that.

use std::collections::BTreeMap;

use crate::{
    api::apps::node_image::{ImageSpec, MOST_IMAGES},
    k8s::node_image::Owner,
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

impl Places {
    /// Whether a namespace that has `own` of `all` that are taken may take another one.
    fn admit(self, own: usize, all: usize) -> Result<(), String> {
        let Self { what, most, share, kept } = self;
        if all >= most {
            return Err(format!("its NodeImage has {all} {what}, the most that there can be"));
        }
        if own >= share && all >= most - kept {
            return Err(format!(
                "its NodeImage has {all} {what}, {own} of them for this namespace; the last {kept} of {most} are for \
                 namespaces with fewer than {share}"
            ));
        }
        Ok(())
    }
}

/// Whether a job of a namespace may begin with an image on a node that has these.
///
/// # Errors
/// What there is too much of, and what is allowed.
pub fn admit(images: &BTreeMap<String, ImageSpec>, namespace: &str, image: &str) -> Result<(), String> {
    let is_own = |owner: &Owner| owner.is_job() && owner.namespace == namespace;
    let jobs_of = |spec: &ImageSpec| {
        let owners = spec.tags.iter().flat_map(|tag| &tag.owner_references);
        owners.fold((0, 0), |(own, all), owner| (own + usize::from(is_own(&Owner::from(owner))), all + 1))
    };
    let (mut own_images, mut own_jobs, mut all_jobs, mut has_image) = (0, 0, 0, false);
    for (name, spec) in images {
        let (own, all) = jobs_of(spec);
        own_images += usize::from(own > 0);
        own_jobs += own;
        all_jobs += all;
        has_image |= own > 0 && name == image;
    }
    if !has_image {
        // A repository that others have takes no new name, but it is the namespace's own when the others have gone.
        let all = images.len() - usize::from(images.contains_key(image));
        IMAGES.admit(own_images, all)?;
    }
    JOBS.admit(own_jobs, all_jobs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            admit(&images(&[("a", 200, 1)]), "a", "new").unwrap_err(),
            "its NodeImage has 200 images, 200 of them for this namespace; the last 64 of 256 are for namespaces with \
             fewer than 32"
        );
        assert_eq!(
            admit(&images(&[("a", 1, 1024)]), "b", "new").unwrap_err(),
            "its NodeImage has 1024 entries of jobs, the most that there can be"
        );
    }
}
