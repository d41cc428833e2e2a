//! The revisions of a workload: what there were, and which one to go back to.

use serde_json::{Value, json};

use super::{
    JsonPointer,
    exit::{Exit, Stop},
    rollout::{Holds, Pin, Write, addressed, is_observed, is_paused, wanted_revision},
    table::{clean, columns},
};
use crate::{
    api::labels::SIDECAR_SET_CUSTOM_VERSION,
    domain::kinds::sidecar_set::{defaults, revision as of_sidecars},
    k8s::{pointer::escaped, revision},
};

/// Says why a revision came to be. Workloads hand theirs down to their revisions.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";
/// The name that the author of a SidecarSet gives to its containers as they are.
const VERSION: &str = "/spec/customVersion";

/// One ControllerRevision.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Its number.
    pub number: i64,
    /// Its name.
    pub name: String,
    /// The whole object.
    pub object: Value,
    /// What it holds.
    pub holds: Holds,
}

impl Revision {
    /// The template, or the members of the spec of a SidecarSet.
    pub fn content(&self) -> Option<Value> {
        content(self.holds, &self.object["data"])
    }

    fn cause(&self) -> &str {
        let annotations = self.object.pointer("/metadata/annotations");
        annotations.and_then(|all| all.get(CHANGE_CAUSE)).and_then(Value::as_str).unwrap_or("<none>")
    }

    fn images(&self) -> String {
        let image = |container: &Value| format!("{}={}", container.text("/name"), container.text("/image"));
        let lists: &[&str] = match self.holds {
            Holds::Template => &["containers"],
            Holds::Sidecars => &["initContainers", "containers"],
        };
        let list = |list: &&str| self.object.list(&format!("/data{}/{list}", self.holds.at()));
        lists.iter().flat_map(list).map(image).collect::<Vec<_>>().join(",")
    }

    /// The name that the author of a SidecarSet has given to it.
    fn custom_version(&self) -> &str {
        let labels = self.object.pointer("/metadata/labels");
        labels.and_then(|all| all.get(SIDECAR_SET_CUSTOM_VERSION)).and_then(Value::as_str).unwrap_or_default()
    }
}

/// What the data of a revision holds. None: it is no revision of such a kind.
fn content(holds: Holds, data: &Value) -> Option<Value> {
    match holds {
        Holds::Template => revision::template(data),
        Holds::Sidecars => of_sidecars::restore(data).map(Value::Object),
    }
}

/// The data of the revision that a workload is.
fn data_of(workload: &Value) -> Value {
    match Holds::of(workload) {
        Holds::Template => revision::data(&workload["spec"]["template"]),
        Holds::Sidecars => of_sidecars::data(&defaults::effective(workload).0),
    }
}

/// The revisions of a workload among those of a namespace, oldest first.
pub fn of(workload: &Value, all: Vec<Value>) -> Vec<Revision> {
    let uid = workload.text("/metadata/uid");
    let is_mine = |object: &Value| {
        let mut owners = object.list("/metadata/ownerReferences").iter();
        owners.any(|owner| owner["controller"] == true && owner.text("/uid") == uid)
    };
    let read = |object: Value| Revision {
        number: object.int("/revision"),
        name: object.text("/metadata/name").to_owned(),
        object,
        holds: Holds::of(workload),
    };
    let mut found: Vec<Revision> = all.into_iter().filter(is_mine).map(read).collect();
    let order = |revision: &Revision| {
        let created = revision.object.text("/metadata/creationTimestamp").to_owned();
        (revision.number, created, revision.name.clone())
    };
    found.sort_by_key(order);
    found
}

/// The revision that the spec asks for; None: it has none yet.
fn current<'a>(workload: &Value, revisions: &'a [Revision]) -> Option<&'a Revision> {
    // Only the controller can say for sure which revision a template is, and as soon as it has looked it does.
    let name = wanted_revision(workload);
    if is_observed(workload) && !name.is_empty() {
        return revisions.iter().find(|revision| revision.name == name);
    }
    let data = data_of(workload);
    revisions.iter().rev().find(|revision| revision.object["data"] == data)
}

/// The revision with a number.
///
/// # Errors
/// There is none; which there are.
pub fn numbered(workload: &Value, revisions: &[Revision], number: i64) -> Result<Pin, Stop> {
    find(workload, revisions, number).map(|revision| Pin { number, name: revision.name.clone() })
}

fn find<'a>(workload: &Value, revisions: &'a [Revision], number: i64) -> Result<&'a Revision, Stop> {
    if revisions.is_empty() {
        return Err(Stop::new(Exit::NotFound, format!("no rollout history found for {}", quoted(workload))));
    }
    let numbers: Vec<String> = revisions.iter().map(|revision| revision.number.to_string()).collect();
    let none = || {
        let text = format!(
            "unable to find specified revision {number} in the history of {}; there are {}",
            quoted(workload),
            numbers.join(", ")
        );
        Stop::new(Exit::NotFound, text)
    };
    revisions.iter().rev().find(|revision| revision.number == number).ok_or_else(none)
}

fn quoted(workload: &Value) -> String {
    format!("{} {:?}", workload.text("/kind").to_ascii_lowercase(), workload.text("/metadata/name"))
}

/// What `undo` comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Undo {
    /// This write, to the revision of this number.
    Back(Write, i64),
    /// Nothing: the workload is on the revision of this number.
    IsThere(i64),
}

/// Goes back to the revision of a number, or with 0 to the one before the present one.
///
/// The template is replaced as a whole: what it has beyond the old one has to go.
///
/// # Errors
/// There is no such revision, or the roll-out is paused.
pub fn undo(workload: &Value, revisions: &[Revision], number: i64) -> Result<Undo, Stop> {
    let current = current(workload, revisions);
    let goal = if number > 0 {
        find(workload, revisions, number)?
    } else {
        let before = revisions.iter().rev().find(|revision| current.is_none_or(|now| now.name != revision.name));
        before.ok_or_else(|| {
            Stop::new(Exit::NotFound, format!("no last revision to roll back to: {} has one only", quoted(workload)))
        })?
    };
    if is_paused(workload) {
        let kind = workload.text("/kind").to_ascii_lowercase();
        let text = format!(
            "you cannot rollback a paused {kind}; resume it first with 'kubectl kruise rollout resume {}' and try again",
            addressed(workload)
        );
        return Err(Stop::new(Exit::Failed, text));
    }
    let what = match goal.holds {
        Holds::Template => "template",
        Holds::Sidecars => "containers",
    };
    let unreadable = || Stop::new(Exit::Failed, format!("revision {} holds no {what}", goal.name));
    let wanted = goal.content().ok_or_else(unreadable)?;
    let is_current = current.is_some_and(|now| now.name == goal.name);
    if is_current || content(goal.holds, &data_of(workload)).as_ref() == Some(&wanted) {
        return Ok(Undo::IsThere(goal.number));
    }
    let operations = match goal.holds {
        Holds::Template => vec![json!({ "op": "replace", "path": "/spec/template", "value": wanted })],
        Holds::Sidecars => sidecars_back(workload, goal, &wanted),
    };
    Ok(Undo::Back(Write::json(workload, true, operations), goal.number))
}

/// Gives a SidecarSet the members of its spec that a revision holds, and takes away those that it does not.
fn sidecars_back(set: &Value, goal: &Revision, wanted: &Value) -> Vec<Value> {
    let is_given = |path: &str| set.pointer(path).is_some_and(|value| !value.is_null());
    let mut operations = Vec::new();
    for member in of_sidecars::RECORDED {
        let path = format!("/spec/{member}");
        match wanted.get(member) {
            Some(value) => operations.push(json!({ "op": "add", "path": path, "value": value })),
            None if is_given(&path) => operations.push(json!({ "op": "remove", "path": path })),
            None => {}
        }
    }
    // The name of what the containers were must not become that of what they are now. Admission keeps the label in step.
    let label = format!("/metadata/labels/{}", escaped(SIDECAR_SET_CUSTOM_VERSION));
    match goal.custom_version() {
        _ if !is_given(VERSION) && !is_given(&label) => {}
        "" => {
            let given = [VERSION, label.as_str()].into_iter().filter(|path| is_given(path));
            operations.extend(given.map(|path| json!({ "op": "remove", "path": path })));
        }
        version => {
            operations.push(json!({ "op": "add", "path": VERSION, "value": version }));
            if is_given(&label) {
                operations.push(json!({ "op": "add", "path": label, "value": version }));
            }
        }
    }
    operations
}

/// The revisions as a table.
pub fn table(revisions: &[Revision]) -> String {
    let row = |revision: &Revision| {
        vec![revision.number.to_string(), revision.name.clone(), revision.cause().to_owned(), revision.images()]
    };
    columns(&["REVISION", "NAME", "CHANGE-CAUSE", "IMAGES"], &revisions.iter().map(row).collect::<Vec<_>>())
}

/// One revision with its content; `yaml` is the content.
pub fn details(reference: &str, revision: &Revision, yaml: &str) -> String {
    let lines: String = yaml.lines().map(|line| format!("  {}\n", clean(line))).collect();
    let what = match revision.holds {
        Holds::Template => "Pod Template",
        Holds::Sidecars => "Sidecars",
    };
    format!(
        "{reference} with revision #{}\nName:          {}\nChange-Cause:  {}\n{what}:\n{lines}",
        revision.number,
        clean(&revision.name),
        clean(revision.cause())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(changes: Value) -> Value {
        let mut object = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": { "name": "web", "uid": "u", "generation": 2 },
            "spec": { "replicas": 3, "template": template("c") },
            "status": { "observedGeneration": 2, "updateRevision": "web-3" } });
        json_patch::merge(&mut object, &changes);
        object
    }
    fn template(image: &str) -> Value {
        json!({ "metadata": { "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "main", "image": image }, { "name": "side", "image": "s" }] } })
    }
    fn object(number: i64, name: &str, image: &str) -> Value {
        json!({ "metadata": { "name": name, "annotations": { "kubernetes.io/change-cause": format!("to {image}") },
                "ownerReferences": [{ "controller": true, "uid": "u" }] },
            "revision": number, "data": revision::data(&template(image)) })
    }
    fn three() -> Vec<Revision> {
        of(&workload(json!({})), vec![object(3, "web-3", "c"), object(1, "web-1", "a"), object(2, "web-2", "b")])
    }
    /// The image that the template gets, or what is said.
    fn said(workload: &Value, revisions: &[Revision], number: i64) -> String {
        match undo(workload, revisions, number) {
            Err(stop) => format!("{:?}: {}", stop.exit, stop.message),
            Ok(Undo::IsThere(number)) => format!("is at {number}"),
            Ok(Undo::Back(write, number)) => {
                let changed = write.applied(workload).unwrap();
                format!("{number}: {}", changed.text("/spec/template/spec/containers/0/image"))
            }
        }
    }

    #[test]
    fn revisions_are_those_of_the_workload_in_their_order() {
        let mut of_another = object(9, "web-9", "z");
        of_another["metadata"]["ownerReferences"][0]["uid"] = "other".into();
        let mut not_controlled = object(9, "web-8", "z");
        not_controlled["metadata"]["ownerReferences"][0]["controller"] = Value::Null;
        let all =
            vec![object(10, "web-b", "c"), of_another, json!({}), json!(3), object(9, "web-a", "a"), not_controlled];
        let names: Vec<String> = of(&workload(json!({})), all).into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["web-a", "web-b"]);
    }

    #[test]
    fn undo_goes_to_the_revision_before_or_to_a_number() {
        let all = three();
        let now = workload(json!({}));
        let paused = json!({ "spec": { "updateStrategy": { "paused": true } } });
        // The roll-out to `b` is in the middle, and somebody has asked for `d` a moment ago.
        let just_changed = workload(json!({ "metadata": { "generation": 3 }, "spec": { "template": template("d") } }));
        let back_at_1 = workload(json!({ "metadata": { "generation": 3 }, "spec": { "template": template("a") } }));
        for (workload, revisions, number, expected) in [
            (&now, &all[..], 0, "2: b"),
            (&now, &all[..], 1, "1: a"),
            (&now, &all[..], 3, "is at 3"),
            (
                &now,
                &all[..],
                7,
                "NotFound: unable to find specified revision 7 in the history of cloneset \"web\"; there are 1, 2, 3",
            ),
            (&now, &all[2..], 0, "NotFound: no last revision to roll back to: cloneset \"web\" has one only"),
            (&now, &[], 1, "NotFound: no rollout history found for cloneset \"web\""),
            (&just_changed, &all[..], 0, "3: c"),
            (&back_at_1, &all[..], 0, "3: c"),
            (&back_at_1, &all[..], 1, "is at 1"),
            (
                &workload(paused),
                &all[..],
                1,
                "Failed: you cannot rollback a paused cloneset; resume it first with \
                 'kubectl kruise rollout resume cloneset/web' and try again",
            ),
        ] {
            assert_eq!(said(workload, revisions, number), expected);
        }
    }

    #[test]
    fn undo_of_a_paused_workload_names_the_command_that_resumes_it() {
        for (kind, name) in [("StatefulSet", "statefulset.apps.kruise.io"), ("DaemonSet", "daemonset.apps.kruise.io")] {
            let paused = workload(json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": kind,
                "metadata": { "namespace": "shop" },
                "spec": { "updateStrategy": { "rollingUpdate": { "paused": true } } } }));
            let told = undo(&paused, &three(), 1).unwrap_err().message;
            let command = format!("'kubectl kruise rollout resume {name}/web -n shop'");
            assert!(told.contains(&command), "{told}");
        }
    }

    #[test]
    fn undo_takes_away_what_the_old_template_did_not_have_and_touches_nothing_else() {
        let mut newer = template("c");
        newer["spec"]["hostNetwork"] = true.into();
        newer["spec"]["containers"][0]["invented"] = json!({ "deep": [1, { "x": null }] });
        let before =
            workload(json!({ "spec": { "template": newer, "updateStrategy": { "partition": 2 }, "new": [1] } }));
        let mut old = object(2, "web-2", "b");
        old["data"]["spec"]["template"]["spec"]["fieldOfTomorrow"] = json!({ "a": [{}] });
        let revisions = of(&before, vec![old, object(3, "web-3", "c")]);
        let Undo::Back(write, 2) = undo(&before, &revisions, 0).unwrap() else { panic!("a write") };
        let after = write.applied(&before).unwrap();
        let mut expected = before.clone();
        expected["spec"]["template"] = template("b");
        expected["spec"]["template"]["spec"]["fieldOfTomorrow"] = json!({ "a": [{}] });
        assert_eq!(after, expected, "no $patch either");
        // Somebody else was faster.
        let newer = workload(json!({ "metadata": { "generation": 3 } }));
        assert!(write.applied(&newer).is_err());
        let another = workload(json!({ "metadata": { "uid": "another" } }));
        assert!(write.applied(&another).is_err());
    }

    #[test]
    fn a_revision_without_a_template_is_no_goal() {
        let mut odd = object(2, "web-2", "b");
        odd["data"] = json!({ "spec": [] });
        let revisions = of(&workload(json!({})), vec![odd, object(3, "web-3", "c")]);
        assert_eq!(said(&workload(json!({})), &revisions, 2), "Failed: revision web-2 holds no template");
        assert!(table(&revisions).contains("web-2"));
    }

    #[test]
    fn the_revision_before_that_of_a_daemon_set_is_found_though_its_status_has_a_hash_alone() {
        let set = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 2 },
            "spec": { "template": template("c") }, "status": { "observedGeneration": 2, "updateRevision": "3" } });
        assert_eq!(said(&set, &of(&set, vec![object(2, "web-2", "b"), object(3, "web-3", "c")]), 0), "2: b");
    }

    fn sidecar_set(spec: Value) -> Value {
        let mut set = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": { "name": "logs", "uid": "u", "generation": 2, "labels": { "a": "b" } },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "containers": [{ "name": "agent", "image": "a:2" }],
                "volumes": [{ "name": "v", "emptyDir": {} }], "updateStrategy": { "partition": 1 } },
            "status": { "observedGeneration": 2, "latestRevision": "logs-2" } });
        json_patch::merge(&mut set["spec"], &spec);
        set
    }

    fn of_sidecar_set(number: i64, spec: &Value, version: &str) -> Value {
        let mut made = json!({ "metadata": { "name": format!("logs-{number}"), "labels": {},
                "ownerReferences": [{ "controller": true, "uid": "u" }] },
            "revision": number, "data": of_sidecars::data(&defaults::defaulted(spec, None)) });
        if !version.is_empty() {
            made["metadata"]["labels"][SIDECAR_SET_CUSTOM_VERSION] = version.into();
        }
        made
    }

    #[test]
    fn undo_of_a_sidecar_set_replaces_what_a_revision_holds_and_nothing_else() {
        let set = sidecar_set(json!({}));
        let before = json!({ "containers": [{ "name": "agent", "image": "a:1" }],
            "initContainers": [{ "name": "setup", "image": "s:1" }] });
        let revisions = of(&set, vec![of_sidecar_set(1, &before, ""), of_sidecar_set(2, &set["spec"], "")]);
        let Undo::Back(write, 1) = undo(&set, &revisions, 0).unwrap() else { panic!("a write") };
        let after = write.applied(&set).unwrap();
        assert_eq!(after.text("/spec/containers/0/image"), "a:1");
        assert_eq!(after.text("/spec/initContainers/0/name"), "setup");
        assert_eq!(after["spec"].get("volumes"), None, "it had none");
        assert_eq!(after["spec"].get("$patch"), None);
        for kept in ["selector", "updateStrategy"] {
            assert_eq!(after["spec"][kept], set["spec"][kept]);
        }
        assert_eq!((&after["metadata"], after["spec"].get("customVersion")), (&set["metadata"], None));
        assert_eq!(said(&set, &revisions, 2), "is at 2");
        // It was changed back a moment ago, and the controller has not looked.
        let mut changed = set.clone();
        changed["metadata"]["generation"] = 3.into();
        assert_eq!(said(&changed, &revisions, 2), "is at 2");
        let odd = of(
            &set,
            vec![
                json!({ "metadata": { "name": "logs-1", "ownerReferences": [{ "controller": true, "uid": "u" }] },
            "revision": 1, "data": { "spec": { "template": {} } } }),
                of_sidecar_set(2, &set["spec"], ""),
            ],
        );
        assert_eq!(said(&set, &odd, 1), "Failed: revision logs-1 holds no containers");
    }

    #[test]
    fn undo_of_a_sidecar_set_takes_its_custom_version_back_too() {
        let before = json!({ "containers": [{ "name": "agent", "image": "a:1" }] });
        let back = |named: &str, labelled: &str, was: &str| {
            let mut set = sidecar_set(json!({}));
            if !named.is_empty() {
                set["spec"]["customVersion"] = named.into();
            }
            if !labelled.is_empty() {
                set["metadata"]["labels"][SIDECAR_SET_CUSTOM_VERSION] = labelled.into();
            }
            let revisions = of(&set, vec![of_sidecar_set(1, &before, was), of_sidecar_set(2, &set["spec"], named)]);
            let Undo::Back(write, 1) = undo(&set, &revisions, 0).unwrap() else { panic!("a write") };
            let after = write.applied(&set).unwrap();
            let label = after["metadata"]["labels"][SIDECAR_SET_CUSTOM_VERSION].as_str().unwrap_or_default().to_owned();
            (after.text("/spec/customVersion").to_owned(), label)
        };
        let pair = |version: &str, label: &str| (version.to_owned(), label.to_owned());
        assert_eq!(back("", "", "v1"), pair("", ""), "nobody names versions");
        assert_eq!(back("v2", "", "v1"), pair("v1", ""));
        assert_eq!(back("v2", "v2", "v1"), pair("v1", "v1"));
        assert_eq!(back("", "v2", "v1"), pair("v1", "v1"), "as OpenKruise's v1alpha1 stores it");
        assert_eq!(back("v2", "v2", ""), pair("", ""));
        assert_eq!(back("", "v2", ""), pair("", ""));
    }

    #[test]
    fn the_history_of_a_sidecar_set_shows_its_containers() {
        let set = sidecar_set(json!({ "initContainers": [{ "name": "mesh", "image": "m:1" }] }));
        let revisions = of(&set, vec![of_sidecar_set(2, &set["spec"], "")]);
        insta::assert_snapshot!(table(&revisions), @r"
        REVISION   NAME     CHANGE-CAUSE   IMAGES
        2          logs-2   <none>         mesh=m:1,agent=a:2
        ");
        assert!(details("sidecarset.apps.kruise.io/logs", &revisions[0], "a: b").ends_with("Sidecars:\n  a: b\n"));
    }

    #[test]
    fn the_history_is_a_table() {
        let mut all = three();
        all[0].object["metadata"]["annotations"] = Value::Null;
        insta::assert_snapshot!(table(&all), @r"
        REVISION   NAME    CHANGE-CAUSE   IMAGES
        1          web-1   <none>         main=a,side=s
        2          web-2   to b           main=b,side=s
        3          web-3   to c           main=c,side=s
        ");
        insta::assert_snapshot!(details("cloneset.apps.kruise.io/web", &all[1], "spec:\n  a: b\u{1b}[2J\n"), @r"
        cloneset.apps.kruise.io/web with revision #2
        Name:          web-2
        Change-Cause:  to b
        Pod Template:
          spec:
            a: b [2J
        ");
    }
}
