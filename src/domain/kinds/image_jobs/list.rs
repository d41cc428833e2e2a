//! One ImageListPullJob: which ImagePullJobs it has, and what its status says.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::{job::PAUSED, list_spec::ListSpec};
use crate::{
    api::{
        apps::{
            image_list_pull_job::{FailedImageStatus, ImageListPullJob, ImageListPullJobStatus},
            image_pull_job::{ImagePullJob, ImagePullJobStatus},
        },
        labels,
    },
    k8s::{
        conditions::{self, Wanted},
        hash,
        name::{LONGEST_NAME, cut},
        time::{self, Now},
    },
};

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPlan {
    /// Jobs to make.
    pub create: Vec<ImagePullJob>,
    /// Jobs to delete.
    pub delete: Vec<Arc<ImagePullJob>>,
    /// Jobs that stay and lack the label of the list, or have that of an earlier template.
    pub relabel: Vec<Arc<ImagePullJob>>,
    /// The status as it should be.
    pub status: ImageListPullJobStatus,
}

/// Decides for a list that is neither over nor being deleted. `children` are its jobs.
pub fn plan(list: &ImageListPullJob, spec: &ListSpec, children: &[Arc<ImagePullJob>], now: Now) -> ListPlan {
    let mut by_image: BTreeMap<&str, Vec<&Arc<ImagePullJob>>> = BTreeMap::new();
    for child in children {
        by_image.entry(&child.spec.image).or_default().push(child);
    }
    let mut plan = ListPlan { status: list.status.clone().unwrap_or_default(), ..ListPlan::default() };
    let mut current = Vec::new();
    for image in &spec.images {
        let mut of_image = by_image.remove(image.as_str()).unwrap_or_default();
        // Of two the older one stays.
        of_image.sort_by_key(|child| (child.metadata.creation_timestamp.clone(), child.metadata.name.clone()));
        let mut fits = None;
        let mut goes = false;
        for child in of_image {
            if child.is_deleting() {
                goes = true;
            } else if fits.is_none() && spec.wants(&child.spec) {
                fits = Some(child);
            } else {
                goes = true;
                plan.delete.push(child.clone());
            }
        }
        match fits {
            Some(child) => current.push(child.clone()),
            // One after the other: two jobs for one image would both pull.
            None if goes => {}
            None => plan.create.push(child(list, spec, image)),
        }
    }
    let left_over = by_image.into_values().flatten().filter(|child| !child.is_deleting());
    plan.delete.extend(left_over.cloned());
    // After a move back, OpenKruise would delete and re-create a job with another label.
    plan.relabel.extend(current.iter().filter(|child| !spec.has_labelled(&child.metadata)).cloned());
    status(list, spec, &current, &mut plan.status, now);
    plan
}

fn status(
    list: &ImageListPullJob,
    spec: &ListSpec,
    children: &[Arc<ImagePullJob>],
    status: &mut ImageListPullJobStatus,
    now: Now,
) {
    let begun: Vec<_> = children
        .iter()
        .filter_map(|child| Some((child, child.status.as_ref()?)))
        .filter(|(_, status)| status.start_time.is_some())
        .collect();
    let count = |is: &dyn Fn(&ImagePullJobStatus) -> bool| {
        i32::try_from(begun.iter().filter(|(_, status)| is(status)).count()).unwrap_or(i32::MAX)
    };
    // A job that waits for its first nodes has none, and is not done.
    let is_done = |child: &ImagePullJobStatus| {
        child.desired == child.succeeded + child.failed && (!spec.ends || child.completion_time.is_some())
    };
    status.start_time.get_or_insert(time::whole_seconds(now.wall));
    status.desired = i32::try_from(spec.images.len()).unwrap_or(i32::MAX);
    status.active = count(&|child| child.active > 0);
    status.completed = count(&is_done);
    status.succeeded = count(&|child| is_done(child) && child.desired == child.succeeded);
    let failed = begun.iter().filter(|(_, status)| status.failed > 0).map(|(child, _)| {
        let name = child.metadata.name.clone().unwrap_or_default();
        let message = format!("some nodes could not pull it: kubectl describe imagepulljob {name} says which and why");
        FailedImageStatus { image_pull_job: name, name: child.spec.image.clone(), message }
    });
    status.failed_image_statuses = failed.collect();

    let is_over = spec.ends && status.completed == status.desired;
    if is_over {
        status.completion_time = Some(time::whole_seconds(now.wall));
    }
    // What its spec holds is as it wants it.
    let is_paused = |child: &ImagePullJobStatus| {
        child.conditions.iter().any(|c| c.type_ == conditions::READY && c.status == "True" && c.reason == PAUSED)
    };
    let waits = |child: &ImagePullJobStatus| !is_done(child) && !is_paused(child);
    let all_stand = count(&|_| true) == status.desired && count(&waits) == 0;
    let is_held = !is_over && all_stand && count(&is_paused) > 0;
    set_conditions(list, status, (is_over, is_held), now);
}

/// Sets what the conditions say, by the numbers of the status. `is_held`: nothing goes on, because its spec says so.
fn set_conditions(
    list: &ImageListPullJob,
    status: &mut ImageListPullJobStatus,
    (is_over, is_held): (bool, bool),
    now: Now,
) {
    let broken = status.failed_image_statuses.len();
    let (reason, message) = match (is_over, broken) {
        _ if is_held => (PAUSED, "spec.parallelism is 0: no further node begins".to_owned()),
        (true, 0) => ("Completed", "every node has every image".to_owned()),
        (true, _) => ("PullsFailed", format!("{broken} of {} images are not on every node", status.desired)),
        (false, 0) => ("Pulling", "images are being pulled".to_owned()),
        (false, _) => ("Pulling", format!("images are being pulled; {broken} are not on every node")),
    };
    let generation = list.metadata.generation;
    status.observed_generation = generation;
    let mut set = |type_: &str, is_true: bool| {
        let wanted = Wanted::new(is_true, reason, message.as_str());
        conditions::set(&mut status.conditions, type_, wanted, generation, now.wall);
    };
    set(labels::CONDITION_PROGRESSING, !is_over);
    if is_over {
        let type_ = if broken == 0 { labels::CONDITION_COMPLETE } else { labels::CONDITION_FAILED };
        set(type_, true);
    }
    let is_everywhere = !is_over && broken == 0 && status.desired > 0 && status.succeeded == status.desired;
    if is_everywhere {
        // A list of type Never goes on for ever: it is done as long as every node has every image.
        let done = (conditions::READY, "Completed", "every node has every image");
        conditions::set_kstatus(&mut status.conditions, done, generation, now.wall);
    } else if is_held {
        conditions::set_kstatus(&mut status.conditions, (conditions::READY, reason, &message), generation, now.wall);
    } else {
        conditions::set_kstatus_of_run(&mut status.conditions, generation, now.wall);
    }
}

/// The status of a list that cannot be carried out as it is written.
pub fn invalid(list: &ImageListPullJob, why: &str, now: Now) -> ImageListPullJobStatus {
    let (mut status, generation) = (list.status.clone().unwrap_or_default(), list.metadata.generation);
    let message: String = why.chars().take(1024).collect();
    status.observed_generation = generation;
    let invalid = Wanted::new(false, "Invalid", message);
    conditions::set(&mut status.conditions, labels::CONDITION_PROGRESSING, invalid, generation, now.wall);
    conditions::set_kstatus_of_run(&mut status.conditions, generation, now.wall);
    status
}

/// The status of a list that is over and whose spec has changed since. None: it is about this generation, or of a release that
/// does not say which. What it came to does not hold for images or nodes that none of its jobs was for.
pub fn for_newer_generation(
    list: &ImageListPullJob,
    spec: &ListSpec,
    children: &[Arc<ImagePullJob>],
    now: Now,
) -> Option<ImageListPullJobStatus> {
    let status = list.status.as_ref()?;
    let newer = conditions::newer_generation(status.observed_generation, list.metadata.generation)?;
    let mut status = ImageListPullJobStatus { observed_generation: Some(newer), ..status.clone() };
    let generation = Some(newer);
    let has_job =
        |image: &String| children.iter().any(|child| child.spec.image == *image && spec.has_nodes_of(&child.spec));
    match spec.images.iter().find(|image| !has_job(image)) {
        None => {
            conditions::still_hold(&mut status.conditions, generation);
            conditions::set_kstatus_of_run(&mut status.conditions, generation, now.wall);
        }
        Some(image) => {
            let message = format!(
                "the list has ended, and {image} is not pulled to the nodes that it names now; create another ImageListPullJob"
            );
            let true_one = (conditions::STALLED, "Ended", message.as_str());
            conditions::set_kstatus(&mut status.conditions, true_one, generation, now.wall);
        }
    }
    Some(status)
}

/// The job for an image. Its name is derived from its content, so that it cannot be created twice.
fn child(list: &ImageListPullJob, spec: &ListSpec, image: &str) -> ImagePullJob {
    let job = spec.job(image);
    let name = list.metadata.name.as_deref().unwrap_or_default();
    let uid = list.metadata.uid.as_deref().unwrap_or_default();
    let what = format!("{uid} {}", serde_json::to_string(&job).unwrap_or_default());
    let suffix = format!(
        "{}{}",
        hash::safe_encode(hash::fnv1a_32(what.bytes())),
        hash::safe_encode(hash::fnv1_32(what.bytes()))
    );
    let metadata = ObjectMeta {
        name: Some(format!("{}-{suffix}", cut(name, LONGEST_NAME - 1 - suffix.len()))),
        // As on OpenKruise's jobs. The API server does not use it where there is a name, and still checks its length.
        generate_name: Some(format!("{}-", cut(name, LONGEST_NAME - 1))),
        namespace: list.metadata.namespace.clone(),
        labels: Some(BTreeMap::from([(labels::CONTROLLER_REVISION_HASH.to_owned(), spec.hash.clone())])),
        owner_references: Some(vec![OwnerReference {
            api_version: "apps.kruise.io/v1beta1".into(),
            kind: "ImageListPullJob".into(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    };
    ImagePullJob { metadata, spec: job, status: None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn now() -> Now {
        Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), mono: Duration::from_secs(1) }
    }

    fn list(spec: Value) -> ImageListPullJob {
        let mut whole = json!({"images": ["a:1", "b:1"]});
        json_patch::merge(&mut whole, &spec);
        serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob",
            "metadata": {"name": "list", "namespace": "ns", "uid": "l1"}, "spec": whole}))
        .unwrap()
    }

    fn plan(list: &ImageListPullJob, children: &[Arc<ImagePullJob>], now: Now) -> ListPlan {
        super::plan(list, &ListSpec::of(list), children, now)
    }

    fn with_status(mut child: ImagePullJob, status: Value) -> Arc<ImagePullJob> {
        child.status = Some(serde_json::from_value(status).unwrap());
        Arc::new(child)
    }

    fn done(desired: i32, failed: i32) -> Value {
        json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z", "desired": desired, "succeeded": desired - failed, "failed": failed})
    }

    #[test]
    fn recorded_children_are_those_that_we_would_make() {
        let recorded: Vec<ImageListPullJob> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/image_list_pull_jobs.json")).unwrap();
        let children: Vec<ImagePullJob> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/image_pull_jobs.json")).unwrap();
        let children: Vec<Arc<ImagePullJob>> = children.into_iter().skip(1).map(Arc::new).collect();
        let plan = plan(&recorded[0], &children, now());
        assert_eq!((plan.create.len(), plan.delete.len(), plan.relabel.len()), (0, 0, 0));
        assert_eq!((plan.status.completed, plan.status.succeeded, plan.status.desired), (2, 2, 2));
    }

    #[test]
    fn a9_5_a_job_that_we_make_has_the_metadata_of_a_recorded_one() {
        let recorded: Vec<ImageListPullJob> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/image_list_pull_jobs.json")).unwrap();
        let theirs: Vec<ImagePullJob> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/image_pull_jobs.json")).unwrap();
        for (ours, theirs) in plan(&recorded[0], &[], now()).create.into_iter().zip(&theirs[1..]) {
            let (ours, theirs) = (ours.metadata, theirs.metadata.clone());
            assert_eq!(ours.generate_name.as_deref(), Some("pulls-"));
            assert!(ours.name.is_some_and(|name| name.starts_with("pulls-")));
            assert_eq!(
                (ours.generate_name, ours.labels, ours.owner_references, ours.annotations),
                (theirs.generate_name, theirs.labels, theirs.owner_references, theirs.annotations)
            );
        }
    }

    #[test]
    fn a9_5_f13_jobs_that_stay_get_the_label_of_the_list() {
        let of_ttl = |seconds: i64| list(json!({"completionPolicy": {"ttlSecondsAfterFinished": seconds}}));
        let (before, after) = (of_ttl(60), of_ttl(90));
        let hash = |list: &ImageListPullJob| Some(ListSpec::of(list).hash);
        assert_ne!(hash(&before), hash(&after));
        let made = plan(&before, &[], now()).create;
        // The label that the second job has, its list, and the jobs that get the label of the list.
        for (label, of, wanted) in [
            (hash(&before), &before, vec![]),
            (hash(&before), &after, vec!["a:1", "b:1"]),
            (hash(&after), &after, vec!["a:1"]),
            (None, &before, vec!["b:1"]),
            (Some("of-others".into()), &before, vec!["b:1"]),
        ] {
            let mut second = made[1].clone();
            let label = label.map(|hash| BTreeMap::from([(labels::CONTROLLER_REVISION_HASH.to_owned(), hash)]));
            second.metadata.labels.clone_from(&label);
            let plan = plan(of, &[Arc::new(made[0].clone()), Arc::new(second)], now());
            let found: Vec<&str> = plan.relabel.iter().map(|job| job.spec.image.as_str()).collect();
            assert_eq!((found, plan.create.len(), plan.delete.len()), (wanted, 0, 0), "{label:?}");
        }
    }

    #[test]
    fn a9_5_jobs_that_go_get_no_label() {
        let before = list(json!({}));
        let mut made = plan(&before, &[], now()).create;
        made[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let children: Vec<_> = made.into_iter().map(Arc::new).collect();
        let plan = plan(&list(json!({"parallelism": 5})), &children, now());
        assert_eq!((plan.relabel.len(), plan.delete.len(), plan.create.len()), (0, 1, 0));
    }

    #[test]
    fn every_image_has_one_job() {
        let list = list(
            json!({"completionPolicy": {"type": "Always", "ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 900}}),
        );
        let made = plan(&list, &[], now()).create;
        let images: Vec<&str> = made.iter().map(|job| job.spec.image.as_str()).collect();
        assert_eq!(images, ["a:1", "b:1"]);
        let completion = &made[0].spec.completion_policy;
        assert_eq!(
            (completion.ttl_seconds_after_finished, completion.active_deadline_seconds),
            (None, Some(900)),
            "f12"
        );
        let owner = &made[0].metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.uid.as_str(), owner.controller), ("l1", Some(true)));
        assert_eq!(made[0].metadata.name, plan(&list, &[], now()).create[0].metadata.name);
        assert_ne!(made[0].metadata.name, made[1].metadata.name);
        let children: Vec<_> = made.into_iter().map(Arc::new).collect();
        let again = plan(&list, &children, now());
        assert_eq!((again.create.len(), again.delete.len(), again.status.completed), (0, 0, 0));
    }

    #[test]
    fn a_changed_template_replaces_the_jobs_and_a_removed_image_deletes_one() {
        let before = list(json!({}));
        let children: Vec<_> = plan(&before, &[], now()).create.into_iter().map(Arc::new).collect();
        let changed = plan(&list(json!({"parallelism": 5})), &children, now());
        assert_eq!((changed.delete.len(), changed.create.len()), (2, 0), "the old ones go first");
        let fewer = plan(&list(json!({"images": ["b:1"]})), &children, now());
        assert_eq!((fewer.create.len(), fewer.delete.len()), (0, 1));
        assert_eq!(fewer.delete[0].spec.image, "a:1");
    }

    #[test]
    fn e17_defaults_that_were_not_written_make_no_other_job() {
        let list = list(json!({}));
        let mut children: Vec<ImagePullJob> = plan(&list, &[], now()).create;
        children[0].spec.pull_policy =
            serde_json::from_value(json!({"timeoutSeconds": 600, "backoffLimit": 3})).unwrap();
        children[0].spec.image_pull_policy = "IfNotPresent".into();
        children[1].spec.completion_policy.ttl_seconds_after_finished = Some(60);
        let children: Vec<_> = children.into_iter().map(Arc::new).collect();
        let plan = plan(&list, &children, now());
        assert_eq!((plan.create.len(), plan.delete.len()), (0, 0));
    }

    #[test]
    fn a_list_is_over_when_all_its_jobs_are() {
        let list = list(json!({}));
        let children = plan(&list, &[], now()).create;
        let one = [
            with_status(children[0].clone(), done(3, 0)),
            with_status(
                children[1].clone(),
                json!({"startTime": "2026-01-01T00:00:00Z", "desired": 3, "active": 1, "succeeded": 1}),
            ),
        ];
        let status = plan(&list, &one, now()).status;
        assert_eq!((status.desired, status.active, status.completed, status.succeeded), (2, 1, 1, 1));
        assert!(status.completion_time.is_none());
        let both = [one[0].clone(), with_status(children[1].clone(), done(3, 2))];
        let status = plan(&list, &both, now()).status;
        assert_eq!((status.completed, status.succeeded), (2, 1));
        assert!(status.completion_time.is_some());
        let failed = &status.failed_image_statuses[0];
        assert_eq!((failed.name.as_str(), Some(&failed.image_pull_job)), ("b:1", children[1].metadata.name.as_ref()));
        assert!(
            status.conditions.iter().any(|c| c.type_ == "Failed" && c.message == "1 of 2 images are not on every node")
        );
    }

    #[test]
    fn decision_32_a_list_that_its_spec_holds_is_ready() {
        let list = list(json!({"parallelism": 0}));
        let made = plan(&list, &[], now()).create;
        let paused = json!({"startTime": "2026-01-01T00:00:00Z", "desired": 3, "succeeded": 1, "conditions": [
            {"type": "Ready", "status": "True", "reason": "Paused", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let pulling = json!({"startTime": "2026-01-01T00:00:00Z", "desired": 3, "active": 1});
        for (first, second, wanted) in [
            (&paused, Some(&paused), ("Ready", "Paused")),
            (&paused, Some(&done(3, 0)), ("Ready", "Paused")),
            // What was begun goes on, and what has not begun is not known.
            (&paused, Some(&pulling), ("Reconciling", "Pulling")),
            (&paused, None, ("Reconciling", "Pulling")),
            (&done(3, 0), Some(&done(3, 1)), ("Stalled", "PullsFailed")),
        ] {
            let first = with_status(made[0].clone(), first.clone());
            let second = match second {
                Some(status) => with_status(made[1].clone(), status.clone()),
                None => Arc::new(made[1].clone()),
            };
            let conditions = plan(&list, &[first, second], now()).status.conditions;
            let is_one = |type_: &str| conditions::KSTATUS.contains(&type_);
            let mut true_ones = conditions.iter().filter(|c| is_one(&c.type_) && c.status == "True");
            let found = true_ones.next().map(|c| (c.type_.as_str(), c.reason.as_str()));
            assert_eq!((found, true_ones.next()), (Some(wanted), None));
        }
    }

    #[test]
    fn a_list_of_type_never_goes_on() {
        let list = list(json!({"completionPolicy": {"type": "Never"}}));
        let children = plan(&list, &[], now()).create;
        let children: Vec<_> = children.into_iter().map(|child| with_status(child, done(1, 0))).collect();
        assert_eq!(plan(&list, &children, now()).status.completion_time, None);
    }

    #[test]
    fn a_long_name_is_cut_and_stays_its_own() {
        let mut list = list(json!({}));
        list.metadata.name = Some("x".repeat(253));
        let made = plan(&list, &[], now()).create;
        assert_eq!(made[0].metadata.name.as_ref().unwrap().len(), 253);
        assert_ne!(made[0].metadata.name, made[1].metadata.name);
        assert_eq!(made[0].metadata.generate_name.as_ref().unwrap().len(), 253, "the API server judges it too");
    }
}
