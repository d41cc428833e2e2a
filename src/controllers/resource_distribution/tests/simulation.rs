//! Random histories: ResourceDistributions that change, go and are made again, two of them for one name, namespaces that come,
//! end, refuse and get other labels, copies that others change, delete or take for themselves, objects of others, an object that
//! is referred to and its loss, quotas, webhooks that do not answer, refused writes, late watches, managers that end between two
//! writes. On the way nothing of others is written. Once nothing stands in the way any more, every namespace that is to have a
//! copy has it, no other one has, and the status says so.
//!
//! The controller is the real one. What surrounds it is played; of Secrets no watch brings anything.

use std::collections::BTreeMap;

use super::*;
use crate::{
    controllers::fake::{Next, in_paused_time},
    domain::kinds::resource_distribution::copy::CopyView,
    k8s::time::rfc3339,
    liveness::{self, Acts, Driver, Limits, Model, Step},
    runtime::watches::StoredObject,
};

const NAMESPACES: &str = "/api/v1/namespaces/";
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The namespace of the object that is referred to.
const SOURCE: &str = "src";
/// What contents say.
const VALUES: [&str; 4] = ["MA==", "MQ==", "Mg==", "Mw=="];
const TEAM: &str = "team";
/// Where a copy says whose it is.
const FROM: &str = "/metadata/annotations/kruise.io~1resourcedistribution.resource.from";
const REFUSE: &str = "kruise.rs/refuse-distribution";

type Objects = BTreeMap<String, Arc<Value>>;

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The namespaces that a user wants.
#[derive(Clone, Debug, PartialEq)]
enum Targets {
    List(Vec<&'static str>),
    Labelled,
    AllBut(Vec<&'static str>),
}

impl Targets {
    fn any(random: &mut Random) -> Self {
        let some = |random: &mut Random| NAMES.into_iter().filter(|_| random.chance(50)).collect();
        match random.below(5) {
            0..=2 => Self::List(some(random)),
            3 => Self::Labelled,
            _ => Self::AllBut(some(random)),
        }
    }

    fn object(&self) -> Value {
        let list = |names: &[&str]| json!({"list": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
        match self {
            Self::List(names) => json!({"includedNamespaces": list(names)}),
            Self::Labelled => json!({"namespaceLabelSelector": {"matchLabels": {TEAM: "x"}}}),
            Self::AllBut(names) => json!({"allNamespaces": true, "excludedNamespaces": list(names)}),
        }
    }

    fn wants(&self, name: &str, has_label: bool) -> bool {
        match self {
            Self::List(names) => names.contains(&name),
            Self::Labelled => has_label,
            Self::AllBut(names) => !names.contains(&name),
        }
    }
}

/// What a user has asked for.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    uid: String,
    generation: i64,
    value: usize,
    targets: Targets,
    is_reference: bool,
}

impl Asked {
    fn wants(&self, name: &str, has_label: bool) -> bool {
        self.targets.wants(name, has_label) && !(self.is_reference && name == SOURCE)
    }
}

/// A pass: whose, what it knew to be wanted, and what was there before and after.
struct PassSeen {
    name: String,
    /// What it knew, and the namespaces that it knew to be wanted and there.
    known: Option<(Asked, Vec<String>)>,
    before: Objects,
    after: Objects,
}

struct History {
    world: World,
    kind: &'static str,
    plural: &'static str,
    /// By name.
    asked: BTreeMap<&'static str, Asked>,
    /// By UID and generation.
    all: BTreeMap<(String, i64), Asked>,
    made: i64,
    /// Changes and faults so far.
    changes: usize,
    pass: Option<PassSeen>,
}

#[derive(Debug)]
enum Effect {
    /// Its owner is no more.
    Collect(String),
    /// A namespace that is being deleted is gone, with everything in it.
    End(String),
}

impl History {
    fn new(random: &mut Random) -> Self {
        let (kind, plural) = [("Secret", "secrets"), ("ConfigMap", "configmaps")][random.below(2)];
        let world = World::new();
        lock(&world.record).has_namespaces = true;
        let (asked, all) = Default::default();
        let mut history = Self { world, kind, plural, asked, all, made: 0, changes: 0, pass: None };
        for name in NAMES {
            history.make_namespace(name, random);
        }
        let is_reference = random.chance(40);
        if is_reference {
            history.make_namespace(SOURCE, random);
            history.put_source(random);
        }
        let names: &[&str] = if random.chance(60) { &["r", "s"] } else { &["r"] };
        for &name in names {
            let targets = Targets::any(random);
            history.ask(name, targets, is_reference && name == "r", random);
        }
        history.restart_manager();
        history
    }

    fn told(&self) -> String {
        format!("{} {:?}", self.kind, self.asked)
    }

    fn note(&self, act: &'static str) {
        lock(&self.world.server).acts.note(act);
    }

    fn objects(&self) -> Objects {
        lock(&self.world.server).objects.clone()
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.world.server).objects.get(path).cloned()
    }

    fn path(&self, namespace: &str) -> String {
        format!("{NAMESPACES}{namespace}/{}/c", self.plural)
    }

    fn make_namespace(&self, name: &str, random: &mut Random) {
        let mut labels = json!({});
        if name != SOURCE && random.chance(50) {
            labels[TEAM] = "x".into();
        }
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        lock(&self.world.server).put(&format!("{NAMESPACES}{name}"), object);
    }

    fn body(&self, value: usize) -> Value {
        let mut body = json!({"apiVersion": "v1", "kind": self.kind, "data": {"k": VALUES[value]}});
        if self.kind == "Secret" {
            body["type"] = "Opaque".into();
        }
        body
    }

    fn put_source(&self, random: &mut Random) {
        let mut object = self.body(random.below(VALUES.len()));
        object["metadata"] = json!({"name": "c", "namespace": SOURCE});
        lock(&self.world.server).put(&self.path(SOURCE), object);
    }

    /// A user makes one, or one of the same name again.
    fn ask(&mut self, name: &'static str, targets: Targets, is_reference: bool, random: &mut Random) {
        self.made += 1;
        let uid = format!("uid-{name}-{}", self.made);
        let asked = Asked { uid, generation: 0, value: random.below(VALUES.len()), targets, is_reference };
        self.asked.insert(name, asked);
        self.apply(name);
    }

    /// A user writes it.
    fn apply(&mut self, name: &'static str) {
        let Some(asked) = self.asked.get_mut(name) else { return };
        asked.generation += 1;
        // In the namespace of the source there is an object of its name.
        if let (Targets::AllBut(but), true) = (&mut asked.targets, !asked.is_reference)
            && !but.contains(&SOURCE)
        {
            but.push(SOURCE);
        }
        let asked = asked.clone();
        let mut spec = json!({"targets": asked.targets.object()});
        if asked.is_reference {
            spec["resourceRef"] = json!({"kind": self.kind, "namespace": SOURCE, "name": "c"});
        } else {
            spec["resource"] = self.body(asked.value);
            spec["resource"]["metadata"] = json!({"name": "c"});
        }
        let path = format!("{DISTRIBUTIONS}/{name}");
        let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution",
            "metadata": {"name": name, "uid": asked.uid, "generation": asked.generation}, "spec": spec});
        if let Some(before) = self.get(&path).filter(|before| text(before, "/metadata/uid") == asked.uid) {
            object["status"] = before["status"].clone();
            object["metadata"]["creationTimestamp"] = before["metadata"]["creationTimestamp"].clone();
        }
        self.all.insert((asked.uid.clone(), asked.generation), asked);
        lock(&self.world.server).put(&path, object);
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&self, path: &str) {
        let (now, controller) = (self.get(path), &self.world.controller);
        let name = path.rsplit('/').next().unwrap_or_default();
        macro_rules! deliver {
            ($store:expr, $key:expr, $object:expr, $on_change:expr) => {{
                let uid = now.as_ref().map(|now| text(now, "/metadata/uid").to_owned());
                match $store.get(&$key).filter(|old| old.object_uid() != uid.as_deref()) {
                    Some(old) => $store.see_gone(&$key, old.object_uid(), |change| $on_change(&change)),
                    // An answer may have said so before.
                    None if now.is_none() => $store.see_gone(&$key, None, |change| $on_change(&change)),
                    None => {}
                }
                if let Some(now) = &now {
                    $store.see($object(Value::clone(now)), |change| $on_change(&change));
                }
            }};
        }
        if path.starts_with(DISTRIBUTIONS) {
            let of = |object: Value| serde_json::from_value::<ResourceDistribution>(object).unwrap();
            deliver!(controller.distributions, ObjectKey::new("", name), of, |change: &Change<
                '_,
                ResourceDistribution,
            >| {
                controller.take_note(change)
            });
            return;
        }
        let parts: Vec<&str> = path.trim_start_matches(NAMESPACES).split('/').collect();
        let [namespace, _, name] = parts[..] else {
            deliver!(controller.namespaces, ObjectKey::new("", name), view_of, |change: &Change<'_, NamespaceView>| {
                controller.namespace_changed(change)
            });
            return;
        };
        if path == self.path(SOURCE) {
            self.deliver_source();
        }
        if self.kind == "ConfigMap" {
            let store = controller.watched.show(name);
            let of = |object: Value| CopyView::from(serde_json::from_value::<CopyObject>(object).unwrap());
            deliver!(store, ObjectKey::new(namespace, name), of, |change: &Change<'_, CopyView>| {
                controller.copy_changed(name, change);
            });
        }
    }

    fn deliver_source(&self) {
        let kind = if self.kind == "Secret" { ResourceKind::Secret } else { ResourceKind::ConfigMap };
        let content = match self.get(&self.path(SOURCE)) {
            Some(object) => {
                let mut data = Value::clone(&object);
                for member in ["metadata", "apiVersion", "kind"] {
                    data.as_object_mut().unwrap().remove(member);
                }
                SourceContent::Present(Arc::new(data))
            }
            None => SourceContent::Missing,
        };
        let controller = &self.world.controller;
        if let Some(after) = controller.watched.show_source(kind, SOURCE, "c", content) {
            controller.wake(kind, "c", after);
        }
    }

    fn restart_manager(&mut self) {
        lock(&self.world.record).writes_left = None;
        self.world.controller = manager(&self.world.server, &self.world.record);
        self.world.controller.watched.show("c");
        lock(&self.world.server).news.clear();
        self.note("managers that started anew");
        for path in self.objects().keys() {
            self.deliver(path);
        }
        self.deliver_source();
    }

    /// One of the watches brings its next change.
    fn deliver_next(&self, random: &mut Random) -> String {
        let path = lock(&self.world.server)
            .next_news(random, |path: &str| (path.starts_with(DISTRIBUTIONS), path.split('/').count()));
        self.deliver(&path);
        format!("delivered {path}")
    }

    fn surroundings(&self) -> Vec<Effect> {
        let objects = self.objects();
        let mut effects = Vec::new();
        for (path, object) in &objects {
            if path.starts_with(NAMESPACES) && path.split('/').count() == 5 {
                if !object["metadata"]["deletionTimestamp"].is_null() {
                    effects.push(Effect::End(path.clone()));
                }
            } else if path.starts_with(NAMESPACES) && is_of_distribution(object) {
                let owner = text(object, "/metadata/ownerReferences/0/uid");
                if !self.asked.values().any(|asked| asked.uid == owner) {
                    effects.push(Effect::Collect(path.clone()));
                }
            }
        }
        effects
    }

    fn play(&self, effect: &Effect) {
        let mut server = lock(&self.world.server);
        match effect {
            Effect::Collect(path) => server.remove(path),
            Effect::End(path) => {
                let inside = server.of(&format!("{path}/"));
                inside.iter().for_each(|(path, _)| server.remove(path));
                server.remove(path);
            }
        }
    }

    async fn reconcile(&mut self, key: ObjectKey) -> String {
        let before = self.objects();
        let controller = &self.world.controller;
        let known = controller.distributions.get(&key).and_then(|object| {
            let at = (object.metadata.uid.clone()?, object.metadata.generation?);
            self.all.get(&at).cloned()
        });
        let known = known.map(|asked| {
            let namespaces = controller.namespaces.list();
            let is_wanted = |facts: &NamespaceFacts| {
                let has_label = facts.labels.get(TEAM) == Some("x");
                asked.wants(&facts.name, has_label) && !facts.refuses && !facts.is_ending
            };
            let wanted = namespaces.iter().filter(|namespace| is_wanted(&namespace.facts));
            let wanted = wanted.map(|namespace| namespace.facts.name.to_string()).collect();
            (asked, wanted)
        });
        let from = lock(&self.world.record).writes.len();
        let next = controller.reconcile(&key).await;
        let writes = lock(&self.world.record).writes[from..].join("; ");
        let said = format!("pass of {key}: {:?} {writes}", next.as_ref().map_err(ToString::to_string));
        self.pass = Some(PassSeen { name: key.name.to_string(), known, before, after: self.objects() });
        self.world.controller.queue.done(key, next);
        if lock(&self.world.record).writes_left == Some(0) {
            self.note("managers that ended between writes");
            self.restart_manager();
            return format!("{said}; the manager has ended, and starts anew");
        }
        said
    }

    fn turn_distribution(&mut self, random: &mut Random) -> String {
        let name = ["r", "r", "s"][random.below(3)];
        let Some(asked) = self.asked.get_mut(name) else {
            let targets = Targets::any(random);
            self.ask(name, targets, false, random);
            self.note("made again");
            return format!("{name} is made");
        };
        match random.below(7) {
            0 => {
                self.asked.remove(name);
                lock(&self.world.server).remove(&format!("{DISTRIBUTIONS}/{name}"));
                self.note("deleted");
                return format!("{name} is deleted");
            }
            1 | 2 => {
                asked.value = random.below(VALUES.len());
                self.note("contents");
            }
            _ => {
                asked.targets = Targets::any(random);
                self.note("targets");
            }
        }
        self.apply(name);
        format!("{:?}", self.asked[name])
    }

    fn turn_source(&self, random: &mut Random) -> String {
        if !self.asked.values().any(|asked| asked.is_reference) {
            return "nothing".into();
        }
        if self.get(&format!("{NAMESPACES}{SOURCE}")).is_some() && random.chance(60) {
            self.put_source(random);
            self.note("sources changed");
            return "the source is written".into();
        }
        lock(&self.world.server).remove(&self.path(SOURCE));
        self.note("sources lost");
        "the source is gone".into()
    }

    fn turn_namespace(&self, random: &mut Random) -> String {
        let is_gone = |name: &&str| self.get(&format!("{NAMESPACES}{name}")).is_none();
        let gone = NAMES.into_iter().find(|name| is_gone(name) && random.chance(50));
        let name = gone.unwrap_or_else(|| NAMES[random.below(NAMES.len())]);
        let path = format!("{NAMESPACES}{name}");
        let Some(there) = self.get(&path) else {
            self.note("namespaces made");
            self.make_namespace(name, random);
            return format!("{name} is made");
        };
        let mut server = lock(&self.world.server);
        let turned = |pointer: &str, value: &str| {
            if there.pointer(pointer).is_some() { Value::Null } else { Value::from(value) }
        };
        match random.below(4) {
            0 => {
                server.acts.note("namespaces deleted");
                server.change(&path, &json!({"metadata": {"deletionTimestamp": rfc3339(clock::now().wall)}}));
                format!("{name} is being deleted")
            }
            1 | 2 => {
                server.acts.note("labels");
                server.change(&path, &json!({"metadata": {"labels": {TEAM: turned("/metadata/labels/team", "x")}}}));
                format!("{name} gets another label")
            }
            _ => {
                server.acts.note("refusals");
                let refuses = turned("/metadata/annotations/kruise.rs~1refuse-distribution", "true");
                server.change(&path, &json!({"metadata": {"annotations": {REFUSE: refuses}}}));
                format!("{name} refuses: {}", there["metadata"]["annotations"][REFUSE].is_null())
            }
        }
    }

    /// Others write what has the name of the copies.
    fn turn_copy(&self, random: &mut Random) -> String {
        let name = NAMES[random.below(NAMES.len())];
        let path = self.path(name);
        if self.get(&format!("{NAMESPACES}{name}")).is_none() {
            return "no namespace".into();
        }
        let Some(there) = self.get(&path) else {
            if random.chance(50) {
                let object = json!({"apiVersion": "v1", "kind": self.kind,
                    "metadata": {"name": "c", "namespace": name}, "data": {"theirs": "MQ=="}});
                lock(&self.world.server).put(&path, object);
                self.note("objects of others");
            }
            return format!("{name}: an object of others");
        };
        let mut server = lock(&self.world.server);
        match random.below(6) {
            0 | 1 => {
                server.acts.note("copies deleted by others");
                server.remove(&path);
            }
            2 | 3 => {
                server.acts.note("copies changed by others");
                server.change(&path, &json!({"data": {"k": null, "x": "eA=="}}));
            }
            4 if is_of_distribution(&there) => {
                server.acts.note("annotations taken off");
                server.change(&path, &json!({"metadata": {"annotations": null}}));
            }
            5 if is_of_distribution(&there) => {
                server.acts.note("copies that others took for themselves");
                server.change(&path, &json!({"metadata": {"ownerReferences": null}}));
            }
            _ => server.remove(&path),
        }
        format!("{name}: others write")
    }

    /// After it has converged nothing is written any more, and a new manager writes nothing either.
    async fn rest(&mut self, random: &mut Random) -> Result<(), String> {
        for what in ["it has come to rest", "a new manager has started"] {
            let before = lock(&self.world.record).writes.len();
            self.idle(random).await?;
            let writes = lock(&self.world.record).writes[before..].to_vec();
            if !writes.is_empty() {
                return Err(format!("after {what} there are writes: {writes:?}"));
            }
            self.restart_manager();
        }
        Ok(())
    }

    async fn idle(&mut self, random: &mut Random) -> Result<(), String> {
        let mut pauses = 0;
        for _ in 0..3000 {
            match self.step(random).await? {
                Step::Worked(_) => {}
                Step::Idle(Some(after)) if pauses < 80 => {
                    self.advance(after.max(Duration::from_millis(1))).await;
                    pauses += 1;
                }
                Step::Idle(_) => return Ok(()),
            }
        }
        Err("it does not come to rest".into())
    }
}

/// What the model judges.
struct Seen {
    objects: Objects,
    asked: BTreeMap<&'static str, Asked>,
    plural: &'static str,
    /// Nobody has anything to do, or to hear of, at this moment.
    is_quiet: bool,
    changes: usize,
    pass: Option<PassSeen>,
}

impl Driver for History {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        self.changes += 1;
        Ok(match random.below(20) {
            0..=4 => self.turn_distribution(random),
            5 | 6 => self.turn_source(random),
            7..=9 => self.turn_namespace(random),
            10..=13 => self.turn_copy(random),
            14 | 15 => lock(&self.world.server).fail(random),
            16 => {
                let mut record = lock(&self.world.record);
                let name = NAMES[random.below(NAMES.len())].to_owned();
                if random.chance(50) {
                    record.full = vec![name]
                } else {
                    record.broken = vec![name]
                }
                format!("no quota in {:?}, no answer in {:?}", record.full, record.broken)
            }
            17 => {
                let writes = random.below(4);
                lock(&self.world.record).writes_left = Some(writes);
                format!("the manager ends after {writes} writes")
            }
            18 => {
                self.restart_manager();
                "a new manager".into()
            }
            _ => {
                let mut record = lock(&self.world.record);
                (record.full, record.broken) = Default::default();
                "quota and answers everywhere".into()
            }
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.changes += 1;
        lock(&self.world.server).faults.clear();
        {
            let mut record = lock(&self.world.record);
            (record.full, record.broken) = Default::default();
        }
        if lock(&self.world.record).writes_left.is_some() {
            self.restart_manager();
        }
        if self.asked.values().any(|asked| asked.is_reference) && self.get(&self.path(SOURCE)).is_none() {
            self.put_source(&mut Random(0));
        }
        Ok(format!("{:?}", self.asked))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        let effects = self.surroundings();
        let has_news = !lock(&self.world.server).news.is_empty();
        Ok(match Next::choose(random, effects.len(), has_news, &self.world.controller.queue) {
            Next::Pass(key) => Step::Worked(self.reconcile(key).await),
            Next::Effect(index) => {
                self.play(&effects[index]);
                Step::Worked(format!("{:?}", effects[index]))
            }
            Next::News => Step::Worked(self.deliver_next(random)),
            Next::Nothing => Step::Idle(self.world.controller.queue.next_in()),
        })
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let has_news = !lock(&self.world.server).news.is_empty();
        let is_quiet = !has_news && self.world.controller.queue.depth() == 0 && self.surroundings().is_empty();
        let (objects, asked, pass) = (self.objects(), self.asked.clone(), self.pass.take());
        Ok(Seen { objects, asked, plural: self.plural, is_quiet, changes: self.changes, pass })
    }
}

/// Whose copy an object is.
fn owner(object: &Value) -> &str {
    if is_of_distribution(object) { text(object, "/metadata/ownerReferences/0/name") } else { "" }
}

/// What is promised, in plain terms.
#[derive(Default)]
struct Promises {
    /// After how many changes it has come to rest. Whoever looks again then has something to do for a moment.
    rested: Option<usize>,
    acts: Acts,
}

impl Promises {
    fn pass(&mut self, pass: &PassSeen) -> Vec<String> {
        let mut wrongs = Vec::new();
        let is_inside = |path: &&String| path.starts_with(NAMESPACES);
        for (path, object) in pass.before.iter().filter(|(path, _)| is_inside(path)) {
            let now = pass.after.get(path);
            if now == Some(object) {
                continue;
            }
            if path.split('/').count() == 5 || owner(object) != pass.name {
                wrongs.push(format!("{path} is not a copy of {}, and has become {now:?}: {object}", pass.name));
            }
            let Some((known, wanted)) = &pass.known else { continue };
            let namespace = path.split('/').nth(4).unwrap_or_default();
            if now.is_none() {
                self.acts.note("copies deleted");
                if wanted.iter().any(|wanted| wanted == namespace) {
                    wrongs.push(format!("{path} is deleted and is wanted: {known:?}"));
                }
            }
        }
        for (path, object) in pass.after.iter().filter(|(path, _)| is_inside(path)) {
            let before = pass.before.get(path);
            if before.is_some_and(|before| before["data"] == object["data"]) {
                continue;
            }
            self.acts.note(if before.is_some() { "copies changed" } else { "copies made" });
            let namespace = path.split('/').nth(4).unwrap_or_default();
            let Some((known, wanted)) = &pass.known else {
                wrongs.push(format!("{path} is written by a pass over nothing"));
                continue;
            };
            if owner(object) != pass.name || !wanted.iter().any(|wanted| wanted == namespace) {
                wrongs.push(format!("{path} is written and not wanted in {wanted:?}: {object}"));
            }
            if !known.is_reference && object["data"] != json!({"k": VALUES[known.value]}) {
                wrongs.push(format!("{path} is written as {object}, and the content is {known:?}"));
            }
        }
        wrongs
    }
}

/// The namespaces that are there.
fn namespaces(seen: &Seen) -> Vec<&Value> {
    let all = seen.objects.iter().filter(|(path, _)| path.starts_with(NAMESPACES) && path.split('/').count() == 5);
    all.map(|(_, object)| object.as_ref()).collect()
}

fn copy_in<'a>(seen: &'a Seen, namespace: &str) -> Option<&'a Value> {
    Some(seen.objects.get(&format!("{NAMESPACES}{namespace}/{}/c", seen.plural))?.as_ref())
}

fn name_of(namespace: &Value) -> &str {
    text(namespace, "/metadata/name")
}

fn refuses(namespace: &Value) -> bool {
    namespace["metadata"]["annotations"][REFUSE] == "true"
}

fn is_wanted(asked: &Asked, namespace: &Value) -> bool {
    asked.wants(name_of(namespace), namespace["metadata"]["labels"][TEAM] == "x")
}

impl Promises {
    fn missing_of_copies(&self, seen: &Seen, missing: &mut Vec<String>) {
        let source = copy_in(seen, SOURCE).map(|source| source["data"].clone());
        for namespace in namespaces(seen) {
            let name = name_of(namespace);
            let wanting = seen.asked.iter().filter(|(_, asked)| is_wanted(asked, namespace) && !refuses(namespace));
            let wanting: Vec<&str> = wanting.map(|(name, _)| *name).collect();
            let Some(object) = copy_in(seen, name) else {
                if !wanting.is_empty() {
                    missing.push(format!("{name} has no copy, and {wanting:?} want one"));
                }
                continue;
            };
            let Some(asked) = seen.asked.get(owner(object)) else { continue };
            let data = if asked.is_reference { source.clone() } else { Some(json!({"k": VALUES[asked.value]})) };
            if !wanting.contains(&owner(object))
                || Some(&object["data"]) != data.as_ref()
                || text(object, "/metadata/ownerReferences/0/uid") != asked.uid
                || text(object, FROM) != owner(object)
            {
                missing.push(format!("{name} has {object}, wanted by {wanting:?} as {data:?}"));
            }
        }
    }

    fn missing_of_status(&self, seen: &Seen, (name, asked): (&str, &Asked), missing: &mut Vec<String>) {
        let status = &seen.objects[&format!("{DISTRIBUTIONS}/{name}")]["status"];
        let all = namespaces(seen);
        let names = |is: &dyn Fn(&Value) -> bool| -> Vec<String> {
            let found = all.iter().filter(|namespace| is_wanted(asked, namespace) && is(namespace));
            found.map(|namespace| name_of(namespace).to_owned()).collect()
        };
        let refused = names(&refuses);
        let conflicts = names(&|namespace| {
            let object = copy_in(seen, name_of(namespace));
            !refuses(namespace) && object.is_some_and(|object| owner(object) != name)
        });
        let is_there = |name: &str| all.iter().any(|there| name_of(there) == name);
        let gone: Vec<String> = match &asked.targets {
            Targets::List(names) => names.iter().filter(|n| !is_there(n)).map(|n| (*n).to_owned()).collect(),
            Targets::Labelled | Targets::AllBut(_) => Vec::new(),
        };
        let served = names(&|namespace| !refuses(namespace)).len();
        let numbers = json!([served + gone.len(), served - conflicts.len(), conflicts.len() + gone.len()]);
        let told = json!([status["desired"], status["succeeded"], status["failed"]]);
        if numbers != told || status["observedGeneration"] != asked.generation {
            missing.push(format!("{name} at {} is {numbers}, and the status says {status}", asked.generation));
        }
        let condition = |type_: &str| {
            let mut all = status["conditions"].as_array().into_iter().flatten();
            all.find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
        };
        if (condition("Ready")["status"] == "True") != (conflicts.is_empty() && gone.is_empty()) {
            missing.push(format!("{name}: {}", condition("Ready")));
        }
        for (type_, wanted) in
            [("ConflictOccurred", conflicts), ("NamespaceNotExists", gone), ("NamespaceRefused", refused)]
        {
            let told = condition(type_)["failedNamespace"].as_array().cloned().unwrap_or_default();
            if json!(told) != json!(wanted) {
                missing.push(format!("{name}: {wanted:?} and not {}", condition(type_)));
            }
        }
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let wrongs = seen.pass.as_ref().map(|pass| self.pass(pass)).unwrap_or_default();
        if seen.is_quiet && self.missing(seen).is_empty() {
            self.rested = Some(seen.changes);
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        if !seen.is_quiet && self.rested != Some(seen.changes) {
            return vec!["there is something to do".into()];
        }
        let mut missing = Vec::new();
        self.missing_of_copies(seen, &mut missing);
        for (name, asked) in &seen.asked {
            self.missing_of_status(seen, (name, asked), &mut missing);
        }
        missing
    }
}

#[test]
fn simulation_of_resource_distributions() {
    let acts = liveness::seeds(60, "simulation_of_resource_distributions", |seed| {
        in_paused_time(seed, async {
            let (mut history, mut promises) = (History::new(&mut Random(seed)), Promises::default());
            let began = history.told();
            let run = liveness::run(seed, &Limits::default(), &mut history, &mut promises).await;
            run.map_err(|why| format!("{why}\nbegan as {began}"))?;
            history.rest(&mut Random(seed)).await?;
            let mut acts = lock(&history.world.server).acts.clone();
            acts.merge(promises.acts);
            Ok(acts)
        })
    });
    acts.require(&[
        ("targets", 150),
        ("contents", 60),
        ("deleted", 30),
        ("made again", 20),
        ("sources changed", 30),
        ("sources lost", 15),
        ("namespaces made", 12),
        ("namespaces deleted", 35),
        ("labels", 70),
        ("refusals", 25),
        ("objects of others", 50),
        ("copies deleted by others", 30),
        ("copies changed by others", 30),
        ("annotations taken off", 10),
        ("copies that others took for themselves", 10),
        ("refused writes", 50),
        ("managers that ended between writes", 20),
        ("managers that started anew", 100),
        // What came of it.
        ("copies made", 300),
        ("copies changed", 100),
        ("copies deleted", 100),
    ]);
}
