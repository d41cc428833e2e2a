//! The registration of our webhooks in the API server.
//!
//! [`render`] makes an entry from the table; [`plan`] compares a live configuration with the table and gives the
//! smallest JSON patch. Of entries that are there only `clientConfig`, `rules` and `matchConditions` are ours, the
//! namespaces of those that are for budgets, and failure policies that are set ([`FailurePolicies`]). Time-outs, the other
//! selectors and failure policies that are not set are the installer's to change. Entries that point at others are left
//! alone, unless they have the name of one of ours.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    api::{apps, feature_gates::FeatureGates, kinds::KINDS, policy},
    webhook::{
        HANDLERS,
        announced::ANY,
        server::{
            failure_policies::{self, FailurePolicies},
            handler::{Handler, Level, Namespaces, OnFailure, Operation, Phase},
            scope,
        },
    },
};

/// How the API server reaches us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through a Service, port 443.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Directly, for an API server outside of the cluster network.
    Url {
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Endpoint {
    /// The name that the serving certificate has to carry.
    pub fn dns_name(&self) -> String {
        match self {
            Self::Service { namespace, name } => format!("{name}.{namespace}.svc"),
            Self::Url { host, port: _ } => host.clone(),
        }
    }

    fn client_config(&self, path: &str, ca_bundle: Option<&str>) -> Value {
        let mut config = match self {
            Self::Service { namespace, name } => {
                json!({ "service": { "namespace": namespace, "name": name, "port": 443, "path": path } })
            }
            Self::Url { host, port } => json!({ "url": format!("https://{host}:{port}{path}") }),
        };
        if let Some(pem) = ca_bundle {
            config["caBundle"] = STANDARD.encode(pem).into();
        }
        config
    }

    /// Whether an entry calls us.
    fn is_called_by(&self, entry: &Value) -> bool {
        let config = &entry["clientConfig"];
        match self {
            Self::Service { namespace, name } => {
                config["service"]["namespace"] == *namespace && config["service"]["name"] == *name
            }
            Self::Url { host, port } => {
                config["url"].as_str().is_some_and(|url| url.starts_with(&format!("https://{host}:{port}/")))
            }
        }
    }
}

/// What a registration should be.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The cluster's feature gates.
    pub gates: &'a FeatureGates,
    /// How the API server reaches us.
    pub endpoint: &'a Endpoint,
    /// Whom it is to trust. Manifests leave it out, so that applying them again keeps the one that is there.
    pub ca_bundle: Option<&'a str>,
    /// What the administrator has set.
    pub policies: &'a FailurePolicies,
    /// The selector of the namespaces with budgets; None while they are not known, then what is there stays.
    pub with_budgets: Option<&'a Value>,
    /// The selector of those and of the ones with a WorkloadSpread that counts Pods.
    pub with_budgets_or_counting: Option<&'a Value>,
    /// The namespaces in which there may be Pods for a SidecarSet; None while they are not known, then what is there stays.
    pub with_sidecars: Option<&'a BTreeSet<String>>,
    /// Names of entries that are not in the table and stay nevertheless; see [`leftovers`].
    pub keeps: &'a BTreeSet<String>,
}

impl<'a> Wanted<'a> {
    /// The selector of namespaces that are listed.
    fn listed(&self, namespaces: Namespaces) -> Option<&'a Value> {
        match namespaces {
            Namespaces::WithBudgets => self.with_budgets,
            Namespaces::WithBudgetsOrCounting => self.with_budgets_or_counting,
            Namespaces::All | Namespaces::NotSystem | Namespaces::Ordinary | Namespaces::SidecarsRequired => None,
        }
    }
}

/// An entry that calls us and is in no release of ours: another program has left it, for example OpenKruise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its name.
    pub name: String,
    /// The kinds of Kruise's API groups that it is called for and that we do not serve.
    pub kinds: Vec<NotServed>,
}

/// A kind of Kruise's API groups that we do not serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotServed {
    /// API group.
    pub group: String,
    /// As in a path.
    pub plural: String,
}

impl std::fmt::Display for NotServed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.plural, self.group)
    }
}

/// Entries of a configuration that call us and are not in the table.
pub fn leftovers(current: &Value, phase: Phase, endpoint: &Endpoint) -> Vec<Leftover> {
    let is_known = |name: &str| HANDLERS.iter().any(|handler| handler.phase == phase && handler.name == name);
    let entries = current["webhooks"].as_array().into_iter().flatten();
    let left = entries.filter(|entry| endpoint.is_called_by(entry));
    let named =
        left.map(|entry| (entry["name"].as_str().unwrap_or_default(), entry)).filter(|(name, _)| !is_known(name));
    named.map(|(name, entry)| Leftover { name: name.to_owned(), kinds: not_served(entry) }).collect()
}

/// The kinds of Kruise's API groups among those that an entry is called for, that we do not serve.
pub fn not_served(entry: &Value) -> Vec<NotServed> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let is_served = |group: &str, plural: &str| {
        KINDS.iter().any(|kind| kind.definition.is_some() && kind.group == group && kind.plural == plural)
    };
    let mut found = Vec::new();
    for rule in entry["rules"].as_array().into_iter().flatten() {
        let resources = texts(rule, "resources");
        for group in texts(rule, "apiGroups").into_iter().filter(|group| GROUPS.contains(&group.as_str())) {
            for resource in &resources {
                let plural = resource.split('/').next().unwrap_or_default();
                // `*` names none: every kind of OpenKruise is served.
                if plural != "*" && !is_served(&group, plural) {
                    found.push(NotServed { group: group.clone(), plural: plural.to_owned() });
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Kruise's API groups.
const GROUPS: [&str; 2] = [apps::GROUP, policy::GROUP];

/// Whether the entry of a handler has to fail closed and has one form, whatever gates, settings and lists of namespaces say. Such
/// entries are shipped, so that they refuse before the first webhook runs.
pub fn is_fixed(handler: &Handler) -> bool {
    matches!(failure_policies::allowed(handler), [OnFailure::Fail])
        && handler.gate.is_none()
        && !handler.namespaces.are_listed()
        && !handler.injects
        && (handler.match_conditions)(&FeatureGates::all_on()).is_empty()
}

/// The entry of one handler.
pub fn render(handler: &Handler, wanted: &Wanted<'_>) -> Value {
    let own_namespace = own_namespace(wanted.endpoint);
    let namespaces = match handler.namespaces {
        Namespaces::All => json!({}),
        Namespaces::NotSystem => scope::not_system(own_namespace),
        Namespaces::Ordinary => scope::ordinary(own_namespace),
        Namespaces::SidecarsRequired => scope::sidecars_required(own_namespace),
        Namespaces::WithBudgets | Namespaces::WithBudgetsOrCounting => {
            wanted.listed(handler.namespaces).cloned().unwrap_or_else(scope::nobody)
        }
    };
    let mut entry = json!({
        "name": handler.name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": wanted.endpoint.client_config(path(handler), wanted.ca_bundle),
        "failurePolicy": wanted.policies.of(handler).unwrap_or(handler.on_failure).text(),
        "matchConditions": conditions(handler, wanted.gates, wanted.with_sidecars.unwrap_or(&BTreeSet::new())),
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces,
        "objectSelector": handler.label.map_or_else(|| json!({}), |(key, value)| json!({ "matchLabels": { key: value } })),
        "rules": rules(handler),
        "sideEffects": if handler.writes { "NoneOnDryRun" } else { "None" },
        "timeoutSeconds": handler.timeout_seconds,
    });
    if handler.phase == Phase::Mutating {
        entry["reinvocationPolicy"] = "Never".into();
    }
    entry
}

/// Everything that there can be of one phase, for an installation whose registration the running webhook does not keep:
/// the entries of all gates, each under the widest condition, and those for budgets for all namespaces but the system's.
/// Handlers whose gate is off let everything through.
pub fn complete(phase: Phase, endpoint: &Endpoint, own_namespace: &str) -> Vec<Value> {
    let gates = FeatureGates::all_on();
    let with_budgets = scope::not_system(own_namespace);
    let wanted = Wanted {
        gates: &gates,
        endpoint,
        ca_bundle: None,
        policies: &FailurePolicies::default(),
        with_budgets: Some(&with_budgets),
        with_budgets_or_counting: Some(&with_budgets),
        with_sidecars: Some(&BTreeSet::from([ANY.to_owned()])),
        keeps: &BTreeSet::new(),
    };
    HANDLERS.iter().filter(|handler| handler.phase == phase).map(|handler| render(handler, &wanted)).collect()
}

/// The entries of one phase that do not depend on a list of namespaces.
pub fn unlisted(phase: Phase, wanted: &Wanted<'_>) -> Vec<Value> {
    HANDLERS
        .iter()
        .filter(|handler| handler.phase == phase && !handler.namespaces.are_listed())
        .filter(|handler| handler.is_active(wanted.gates))
        .map(|handler| render(handler, wanted))
        .collect()
}

fn own_namespace(endpoint: &Endpoint) -> &str {
    match endpoint {
        Endpoint::Service { namespace, name: _ } => namespace,
        Endpoint::Url { .. } => crate::api::DEFAULT_NAMESPACE,
    }
}

/// The path that an entry calls.
pub fn path(handler: &Handler) -> &'static str {
    handler.paths.first().copied().unwrap_or_default()
}

/// What an entry is called for: one rule.
pub fn rules(handler: &Handler) -> Value {
    let target = handler.target;
    let operation = match target.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    };
    let scope = match target.level {
        Level::Namespaced => "Namespaced",
        Level::Cluster => "Cluster",
    };
    json!([{ "apiGroups": [target.group], "apiVersions": target.versions, "operations": [operation],
        "resources": [target.resource], "scope": scope }])
}

fn conditions(handler: &Handler, gates: &FeatureGates, with_sidecars: &BTreeSet<String>) -> Value {
    let besides = scope::condition(with_sidecars).filter(|_| handler.injects);
    (handler.match_conditions)(gates)
        .into_iter()
        .map(|condition| {
            let expression = match &besides {
                Some(besides) => format!("{} || ({besides})", condition.expression),
                None => condition.expression,
            };
            json!({ "name": condition.name, "expression": expression })
        })
        .collect()
}

/// The live entries of handlers of one sort.
fn entries_of(current: &Value, is: impl Fn(&Handler) -> bool) -> impl Iterator<Item = &Value> {
    let entries = current["webhooks"].as_array().into_iter().flatten();
    entries.filter(move |entry| HANDLERS.iter().any(|handler| is(handler) && entry["name"] == handler.name))
}

/// The namespaces that the entry for new Pods is called in because of SidecarSets.
pub fn listed_for_sidecars(current: &Value) -> Vec<String> {
    let conditions = entries_of(current, |handler| handler.injects)
        .flat_map(|entry| entry["matchConditions"].as_array().into_iter().flatten());
    conditions.flat_map(|condition| scope::listed_in(condition["expression"].as_str().unwrap_or_default())).collect()
}

/// The JSON patch that brings a live configuration of one phase in line; empty if nothing differs.
///
/// It is tied to the version that was looked at: a patch by index must not hit a list that somebody has changed.
pub fn plan(current: &Value, phase: Phase, wanted: &Wanted<'_>) -> Vec<Value> {
    let no_entries = Vec::new();
    let entries = current["webhooks"].as_array().unwrap_or(&no_entries);
    let of_phase = || HANDLERS.iter().filter(|handler| handler.phase == phase);
    let active: Vec<&Handler> = of_phase().filter(|handler| handler.is_active(wanted.gates)).collect();
    let mut operations = Vec::new();
    let mut removals = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let name = entry["name"].as_str().unwrap_or_default();
        let Some(handler) = active.iter().find(|handler| handler.name == name) else {
            // It calls us, but nobody answers there: switched off by a gate, or left by another release or program.
            let is_left = wanted.endpoint.is_called_by(entry) && !wanted.keeps.contains(name);
            if is_left || of_phase().any(|handler| handler.name == name) {
                removals.push(json!({ "op": "remove", "path": format!("/webhooks/{i}") }));
            }
            continue;
        };
        let no_conditions = json!([]);
        let conditions_now = entry.get("matchConditions").unwrap_or(&no_conditions);
        let there = BTreeSet::from_iter(listed_for_sidecars(current));
        let with_sidecars = wanted.with_sidecars.unwrap_or(&there);
        let mut fields = vec![
            ("clientConfig", &entry["clientConfig"], wanted.endpoint.client_config(path(handler), wanted.ca_bundle)),
            ("rules", &entry["rules"], rules(handler)),
            ("matchConditions", conditions_now, conditions(handler, wanted.gates, with_sidecars)),
        ];
        if let Some(selector) = wanted.listed(handler.namespaces) {
            fields.push(("namespaceSelector", &entry["namespaceSelector"], selector.clone()));
        }
        let selector: Option<fn(&str) -> Value> = match handler.namespaces {
            Namespaces::NotSystem => Some(scope::not_system),
            Namespaces::Ordinary => Some(scope::ordinary),
            Namespaces::SidecarsRequired => Some(scope::sidecars_required),
            Namespaces::All | Namespaces::WithBudgets | Namespaces::WithBudgetsOrCounting => None,
        };
        if let Some(selector) = selector
            && entry["namespaceSelector"] == selector(crate::api::DEFAULT_NAMESPACE)
        {
            // kustomize's `namespace` does not change selectors. One that the installer has written stays.
            let own = selector(own_namespace(wanted.endpoint));
            fields.push(("namespaceSelector", &entry["namespaceSelector"], own));
        }
        if let Some(policy) = wanted.policies.of(handler) {
            fields.push(("failurePolicy", &entry["failurePolicy"], policy.text().into()));
        }
        for (field, now, wanted) in fields {
            if *now != wanted {
                operations.push(json!({ "op": "add", "path": format!("/webhooks/{i}/{field}"), "value": wanted }));
            }
        }
    }
    // From the back, so that the indexes before stay right.
    operations.extend(removals.into_iter().rev());
    let missing: Vec<Value> = active
        .iter()
        .filter(|handler| !entries.iter().any(|entry| entry["name"] == handler.name))
        .map(|handler| render(handler, wanted))
        .collect();
    if current["webhooks"].is_array() {
        operations
            .extend(missing.into_iter().map(|entry| json!({ "op": "add", "path": "/webhooks/-", "value": entry })));
    } else if !missing.is_empty() {
        operations.push(json!({ "op": "add", "path": "/webhooks", "value": missing }));
    }
    if !operations.is_empty() {
        let version = &current["metadata"]["resourceVersion"];
        operations.insert(0, json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
    }
    operations
}

/// The entries of one phase that these gates want and that a live configuration does not have.
pub fn missing(current: &Value, phase: Phase, gates: &FeatureGates) -> Vec<&'static str> {
    let is_there = |name: &str| current["webhooks"].as_array().into_iter().flatten().any(|entry| entry["name"] == name);
    let wanted = HANDLERS.iter().filter(|handler| handler.phase == phase && handler.is_active(gates));
    wanted.map(|handler| handler.name).filter(|name| !is_there(name)).collect()
}

/// The namespaces that entries for those list now.
pub fn listed(current: &Value, namespaces: Namespaces) -> Vec<String> {
    let entries = entries_of(current, |handler| handler.namespaces == namespaces);
    entries.flat_map(|entry| scope::selected(&entry["namespaceSelector"])).collect()
}

/// The namespaces in which every entry for PodUnavailableBudgets is called, [`ANY`](crate::webhook::announced::ANY) for all.
/// None: there is no such entry.
pub fn selected_for_budgets(current: &Value) -> Option<BTreeSet<String>> {
    let entries = entries_of(current, |handler| handler.namespaces.are_listed());
    let selected = entries.map(|entry| BTreeSet::from_iter(scope::selected(&entry["namespaceSelector"])));
    selected.reduce(|some, others| match (some.contains(ANY), others.contains(ANY)) {
        (true, _) => others,
        (_, true) => some,
        (false, false) => some.intersection(&others).cloned().collect(),
    })
}

/// The namespaces about whose new Pods we are asked because of SidecarSets and the like, [`ANY`] for all. None: about none.
pub fn selected_for_new_pods(current: &Value) -> Option<BTreeSet<String>> {
    let is_there = entries_of(current, |handler| handler.injects).next().is_some();
    is_there.then(|| listed_for_sidecars(current).into_iter().collect())
}

/// Whether API servers may still hold another CA for one of our entries than the given ones.
pub fn had_another_ca(current: &Value, endpoint: &Endpoint, ca_bundle: &str) -> bool {
    let wanted = STANDARD.encode(ca_bundle);
    current["webhooks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| endpoint.is_called_by(entry))
        .any(|entry| entry["clientConfig"]["caBundle"].as_str().is_some_and(|now| !now.is_empty() && now != wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 2] = [Phase::Mutating, Phase::Validating];

    fn endpoint() -> Endpoint {
        Endpoint::Service { namespace: "kruise-system".into(), name: "kruise-webhook-service".into() }
    }

    /// Everything that there can be.
    fn all_gates() -> FeatureGates {
        FeatureGates::parse(&["AllAlpha=true,AllBeta=true"], None).unwrap()
    }

    fn names(phase: Phase) -> Vec<&'static str> {
        HANDLERS.iter().filter(|h| h.phase == phase).map(|h| h.name).collect()
    }

    struct Setting {
        gates: FeatureGates,
        endpoint: Endpoint,
        policies: FailurePolicies,
        with_budgets: Option<Value>,
        with_budgets_or_counting: Option<Value>,
        with_sidecars: Option<BTreeSet<String>>,
        keeps: BTreeSet<String>,
    }

    impl Setting {
        fn of(gates: FeatureGates) -> Self {
            let policies = FailurePolicies::default();
            Self {
                gates,
                endpoint: endpoint(),
                policies,
                with_budgets: None,
                with_budgets_or_counting: None,
                with_sidecars: None,
                keeps: BTreeSet::new(),
            }
        }
        fn wanted<'a>(&'a self, ca_bundle: Option<&'a str>) -> Wanted<'a> {
            Wanted {
                gates: &self.gates,
                endpoint: &self.endpoint,
                ca_bundle,
                policies: &self.policies,
                with_budgets: self.with_budgets.as_ref(),
                with_budgets_or_counting: self.with_budgets_or_counting.as_ref(),
                with_sidecars: self.with_sidecars.as_ref(),
                keeps: &self.keeps,
            }
        }
        fn installed(&self, phase: Phase) -> Value {
            json!({ "metadata": { "resourceVersion": "7" }, "webhooks": unlisted(phase, &self.wanted(None)) })
        }
        fn plan(&self, config: &Value, phase: Phase) -> Vec<Value> {
            plan(config, phase, &self.wanted(Some("PEM")))
        }
        fn patched(&self, mut config: Value, phase: Phase) -> Value {
            let patch: json_patch::Patch = serde_json::from_value(self.plan(&config, phase).into()).unwrap();
            json_patch::patch(&mut config, &patch).unwrap();
            config
        }
    }

    fn entries(config: &Value) -> Vec<&str> {
        config["webhooks"].as_array().into_iter().flatten().map(|entry| entry["name"].as_str().unwrap()).collect()
    }

    /// D36 and E36 of SidecarSet: what is as it should be is not written again, and a patch names what it changes.
    #[test]
    fn sw_d36_e36_only_the_ca_and_what_is_for_budgets_is_missing_after_an_installation() {
        let all = Setting::of(all_gates());
        for phase in PHASES {
            let operations = all.plan(&all.installed(phase), phase);
            let paths: Vec<&str> = operations.iter().map(|o| o["path"].as_str().unwrap()).collect();
            let for_budgets = HANDLERS.iter().filter(|h| h.phase == phase && h.namespaces.are_listed()).count();
            let ca = (0..names(phase).len() - for_budgets).map(|i| format!("/webhooks/{i}/clientConfig"));
            let wanted: Vec<String> = std::iter::once("/metadata/resourceVersion".to_owned())
                .chain(ca)
                .chain(std::iter::repeat_n("/webhooks/-".to_owned(), for_budgets))
                .collect();
            assert_eq!(paths, wanted);
            let done = all.patched(all.installed(phase), phase);
            assert_eq!(done["webhooks"][0]["clientConfig"]["caBundle"], "UEVN");
            assert_eq!(all.plan(&done, phase), Vec::<Value>::new());
            assert!(had_another_ca(&done, &endpoint(), "NEW") && !had_another_ca(&done, &endpoint(), "PEM"));
        }
    }

    /// As the manifests ship them: the fixed entries, or no list at all.
    #[test]
    fn what_is_missing_is_added_at_once_and_what_is_there_stays() {
        let all = Setting::of(all_gates());
        let sorted = |config: &Value| BTreeSet::from_iter(entries(config).into_iter().map(str::to_owned));
        for phase in PHASES {
            let full = all.patched(all.installed(phase), phase);
            let mut config = full.clone();
            let fixed: Vec<&str> = HANDLERS.iter().filter(|h| is_fixed(h)).map(|h| h.name).collect();
            assert_eq!(fixed, ["mcontainerrecreaterequest.kb.io", "mpod-required.kb.io"]);
            let shipped = |entry: &Value| fixed.iter().any(|name| entry["name"] == *name);
            config["webhooks"].as_array_mut().unwrap().retain(shipped);
            if entries(&config).is_empty() {
                config.as_object_mut().unwrap().remove("webhooks");
            }
            let completed = all.patched(config, phase);
            assert_eq!(sorted(&completed), sorted(&full));
            assert_eq!(all.plan(&completed, phase), Vec::<Value>::new());
        }
    }

    #[test]
    fn what_is_missing_is_named_by_what_the_gates_want() {
        let (all, off) = (Setting::of(all_gates()), FeatureGates::parse(&["PodWebhook=false"], None).unwrap());
        for phase in PHASES {
            assert_eq!(missing(&Value::Null, phase, &all.gates), names(phase));
            let mut config = all.patched(all.installed(phase), phase);
            assert_eq!(missing(&config, phase, &all.gates), [""; 0]);
            let first = config["webhooks"].as_array_mut().unwrap().remove(0);
            assert_eq!(missing(&config, phase, &all.gates), [first["name"].as_str().unwrap()]);
            assert_eq!(missing(&config, phase, &off), [""; 0], "it belongs to a gate that is off");
        }
    }

    /// E32 of SidecarSet: there is no stored template, entries are compared by their names.
    #[test]
    fn sw_e32_what_the_installer_changed_and_foreign_entries_stay() {
        let setting = Setting::of(FeatureGates::default());
        let mut config = setting.patched(setting.installed(Phase::Mutating), Phase::Mutating);
        let at = entries(&config).iter().position(|name| *name == "mcloneset.kb.io").unwrap();
        for (field, value) in
            [("failurePolicy", json!("Ignore")), ("timeoutSeconds", json!(5)), ("namespaceSelector", json!({"a": 1}))]
        {
            config["webhooks"][at][field] = value;
        }
        config["webhooks"].as_array_mut().unwrap().push(json!({ "name": "other.example.com", "clientConfig": {
            "service": { "namespace": "other", "name": "webhook", "path": "/mutate-pod" } } }));
        assert_eq!(setting.plan(&config, Phase::Mutating), Vec::<Value>::new());
    }

    /// D38 of SidecarSet.
    #[test]
    fn sw_d38_in_another_namespace_than_the_shipped_one_selectors_name_it() {
        let shipped = Setting::of(FeatureGates::default());
        let mut elsewhere = Setting::of(FeatureGates::default());
        elsewhere.endpoint = Endpoint::Service { namespace: "elsewhere".into(), name: "kruise-webhook-service".into() };
        let selector = |config: &Value, name: &str| {
            let entries = config["webhooks"].as_array().unwrap();
            entries.iter().find(|entry| entry["name"] == name).unwrap()["namespaceSelector"].clone()
        };
        let mut config = elsewhere.patched(shipped.installed(Phase::Mutating), Phase::Mutating);
        assert_eq!(selector(&config, "mpod.kb.io"), scope::ordinary("elsewhere"));
        assert_eq!(selector(&config, "mpod-required.kb.io"), scope::sidecars_required("elsewhere"));
        assert_eq!(elsewhere.plan(&config, Phase::Mutating), Vec::<Value>::new());
        // one that the installer has written
        let index = entries(&config).iter().position(|name| *name == "mpod.kb.io").unwrap();
        config["webhooks"][index]["namespaceSelector"] = json!({ "matchLabels": { "a": "b" } });
        assert_eq!(elsewhere.plan(&config, Phase::Mutating), Vec::<Value>::new());
    }

    #[test]
    fn new_pods_are_asked_about_where_there_may_be_a_sidecar_set() {
        let mut setting = Setting::of(FeatureGates::default());
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
        let condition = |config: &Value| {
            let entries = config["webhooks"].as_array().unwrap();
            let entry = entries.iter().find(|entry| entry["name"] == "mpod.kb.io").unwrap();
            entry["matchConditions"][0]["expression"].as_str().unwrap().to_owned()
        };
        let shipped = setting.patched(setting.installed(Phase::Mutating), Phase::Mutating);
        assert!(listed_for_sidecars(&shipped).is_empty());
        setting.with_sidecars = names(&["shop"]);
        let shop = setting.patched(shipped.clone(), Phase::Mutating);
        assert_eq!(condition(&shop), format!("{} || (request.namespace in ['shop'])", condition(&shipped)));
        assert_eq!(listed_for_sidecars(&shop), ["shop"]);
        assert_eq!(setting.plan(&shop, Phase::Mutating), Vec::<Value>::new());
        setting.with_sidecars = None;
        assert_eq!(setting.plan(&shop, Phase::Mutating), Vec::<Value>::new(), "not known yet: what is there stays");
        setting.with_sidecars = names(&[ANY]);
        assert!(condition(&setting.patched(shop.clone(), Phase::Mutating)).ends_with(" || (true)"));
        setting.with_sidecars = names(&[]);
        assert_eq!(setting.patched(shop, Phase::Mutating), shipped);
        let everything = complete(Phase::Mutating, &endpoint(), "kruise-system");
        let pods = everything.iter().find(|entry| entry["name"] == "mpod.kb.io").unwrap();
        assert!(pods["matchConditions"][0]["expression"].as_str().unwrap().ends_with(" || (true)"));
    }

    /// Whoever waits for its namespace must find it, whatever the gates are.
    #[test]
    fn what_is_called_in_which_namespaces_is_read_from_the_registration() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (shop, two) = (names(&["shop"]), names(&["bank", "shop"]));
        // By default no entry is for the namespaces of budgets alone.
        for (gates, without_list) in [(FeatureGates::default(), names(&[ANY])), (all_gates(), two.clone())] {
            let mut setting = Setting::of(gates);
            setting.with_sidecars = Some(shop.clone());
            setting.with_budgets = Some(scope::selector(&two, "own"));
            setting.with_budgets_or_counting = Some(scope::selector(&two, "own"));
            let registered = |setting: &Setting, phase| setting.patched(setting.installed(phase), phase);
            assert_eq!(selected_for_budgets(&registered(&setting, Phase::Validating)), Some(two.clone()));
            assert_eq!(selected_for_new_pods(&registered(&setting, Phase::Mutating)), Some(shop.clone()));
            setting.with_budgets_or_counting = Some(scope::not_system("own"));
            assert_eq!(selected_for_budgets(&registered(&setting, Phase::Validating)), Some(without_list));
            setting.with_budgets_or_counting = Some(scope::selector(&shop, "own"));
            assert_eq!(selected_for_budgets(&registered(&setting, Phase::Validating)), Some(shop.clone()));
            setting.with_budgets_or_counting = Some(scope::nobody());
            assert_eq!(selected_for_budgets(&registered(&setting, Phase::Validating)), Some(names(&[])));
        }
        let none = json!({ "webhooks": [] });
        assert_eq!((selected_for_budgets(&none), selected_for_new_pods(&none)), (None, None));
    }

    /// D37 of SidecarSet.
    #[test]
    fn sw_d37_gates_remove_and_bring_back_entries() {
        let on = Setting::of(FeatureGates::default());
        let off = Setting::of(FeatureGates::parse(&["PodWebhook=false"], None).unwrap());
        let without = off.patched(on.installed(Phase::Mutating), Phase::Mutating);
        assert!(!entries(&without).contains(&"mpod.kb.io"));
        assert!(entries(&without).contains(&"mpod-required.kb.io"), "no gate takes away what is shipped");
        let back = on.patched(without, Phase::Mutating);
        assert!(entries(&back).contains(&"mpod.kb.io"));
        assert_eq!(on.plan(&back, Phase::Mutating), Vec::<Value>::new());
        let empty = json!({"metadata": {"resourceVersion": "1"}});
        let protection = ["vnamespace.kb.io", "vcustomresourcedefinition.kb.io"];
        assert!(!entries(&on.patched(empty.clone(), Phase::Validating)).iter().any(|name| protection.contains(name)));
        let all = Setting::of(all_gates());
        for phase in PHASES {
            assert_eq!(entries(&all.patched(empty.clone(), phase)), names(phase));
        }
        let protected = all.patched(empty, Phase::Validating);
        assert!(protection.iter().all(|name| entries(&protected).contains(name)));
        assert!(!entries(&on.patched(protected, Phase::Validating)).iter().any(|name| protection.contains(name)));
    }

    #[test]
    fn the_readiness_gate_for_all_pods_changes_the_condition() {
        let some = Setting::of(FeatureGates::default());
        let all = Setting::of(FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap());
        let condition = |config: &Value| {
            let conditions = config["webhooks"][0]["matchConditions"].as_array().unwrap();
            assert_eq!(conditions.len(), 1);
            conditions[0]["expression"].as_str().unwrap().contains("ownerReferences")
        };
        let config = all.patched(some.installed(Phase::Mutating), Phase::Mutating);
        assert!(!condition(&config));
        assert!(condition(&some.patched(config, Phase::Mutating)));
    }

    #[test]
    fn entries_of_another_release_that_call_us_in_vain_are_removed() {
        let setting = Setting::of(FeatureGates::default());
        for phase in PHASES {
            let mut config = setting.installed(phase);
            let left = json!({"name": "mother.kb.io", "clientConfig": {"service":
                {"namespace": "kruise-system", "name": "kruise-webhook-service", "path": "/mutate-apps-kruise-io-other"}}});
            config["webhooks"].as_array_mut().unwrap().splice(0..0, [left.clone(), left]);
            assert!(!entries(&setting.patched(config.clone(), phase)).contains(&"mother.kb.io"));
            // As long as another program is in charge, or a kind is installed that nobody else serves.
            let mut keeping = Setting::of(FeatureGates::default());
            keeping.keeps = ["mother.kb.io".to_owned()].into();
            let kept = keeping.patched(config.clone(), phase);
            assert_eq!(entries(&kept).iter().filter(|name| **name == "mother.kb.io").count(), 2);
            assert_eq!(kept["webhooks"][0], config["webhooks"][0], "as it is");
        }
    }

    #[test]
    fn what_another_program_has_left_is_reported_with_the_kinds_that_nobody_serves() {
        let calls = |namespace: &str, path: &str| {
            json!({"service":
            {"namespace": namespace, "name": "kruise-webhook-service", "path": path}})
        };
        let rule = |group: &str, versions: &[&str], resources: &[&str]| {
            json!({"apiGroups": [group],
            "apiVersions": versions, "operations": ["CREATE", "UPDATE"], "resources": resources})
        };
        let entry = |name: &str, rules: Value| json!({"name": name, "clientConfig": calls("kruise-system", "/x"), "rules": rules});
        let kind = |group: &str, plural: &str| NotServed { group: group.into(), plural: plural.into() };
        let later_kinds = rule("apps.kruise.io", &["v1alpha1", "v1beta1"], &["laterkinds", "laterkinds/status"]);
        let mut foreign = entry("vlaterkind.kb.io", json!([later_kinds]));
        foreign["clientConfig"] = calls("elsewhere", "/x");
        for (entry, expected) in [
            (entry("vlaterkind.kb.io", json!([later_kinds])), Some(vec![kind("apps.kruise.io", "laterkinds")])),
            (entry("vother.kb.io", json!([rule("apps.kruise.io", &["v1alpha1"], &["clonesets"])])), Some(vec![])),
            (entry("vpods.kb.io", json!([rule("", &["v1"], &["pods"])])), Some(vec![])),
            (
                entry("vlater.kb.io", json!([rule("policy.kruise.io", &["*"], &["laterkinds"])])),
                Some(vec![kind("policy.kruise.io", "laterkinds")]),
            ),
            (entry("vbare.kb.io", Value::Null), Some(vec![])),
            (entry("vnamespace.kb.io", json!([rule("", &["v1"], &["namespaces"])])), None),
            (foreign, None),
        ] {
            let current = json!({"webhooks": [entry]});
            let left = leftovers(&current, Phase::Validating, &endpoint());
            let found = left.into_iter().next().map(|left| left.kinds);
            assert_eq!(found, expected, "{entry}");
        }
        let all = json!({"webhooks": [entry("vall.kb.io", json!([rule("apps.kruise.io", &["*"], &["*"])]))]});
        assert_eq!(leftovers(&all, Phase::Validating, &endpoint())[0].kinds, []);
    }

    #[test]
    fn a_host_replaces_the_service() {
        let mut setting = Setting::of(FeatureGates::default());
        let config = setting.installed(Phase::Mutating);
        setting.endpoint = Endpoint::Url { host: "203.0.113.7".into(), port: 9876 };
        assert_eq!(
            setting.patched(config, Phase::Mutating)["webhooks"][0]["clientConfig"],
            json!({"url": "https://203.0.113.7:9876/mutate-pod", "caBundle": "UEVN"})
        );
    }

    #[test]
    fn a_failure_policy_that_is_set_holds_and_no_other_is_touched() {
        let mut setting = Setting::of(all_gates());
        setting.policies = FailurePolicies::parse("vnamespace.kb.io=Ignore").unwrap();
        let mut config = setting.patched(json!({"metadata": {"resourceVersion": "1"}}), Phase::Validating);
        let of = |config: &Value, name: &str| {
            let entries = config["webhooks"].as_array().unwrap();
            entries.iter().find(|entry| entry["name"] == name).unwrap()["failurePolicy"].clone()
        };
        assert_eq!(of(&config, "vnamespace.kb.io"), "Ignore");
        assert_eq!(of(&config, "vcustomresourcedefinition.kb.io"), "Fail");
        for entry in config["webhooks"].as_array_mut().unwrap() {
            entry["failurePolicy"] = if entry["name"] == "vnamespace.kb.io" { "Fail" } else { "Ignore" }.into();
        }
        let config = setting.patched(config, Phase::Validating);
        assert_eq!(of(&config, "vnamespace.kb.io"), "Ignore", "set");
        assert_eq!(of(&config, "vcustomresourcedefinition.kb.io"), "Ignore", "the installer's");
    }

    #[test]
    fn requests_are_checked_whatever_the_stored_failure_policy_says() {
        let setting = Setting::of(all_gates());
        let mut config = setting.patched(json!({"metadata": {"resourceVersion": "1"}}), Phase::Mutating);
        for entry in config["webhooks"].as_array_mut().unwrap() {
            entry["failurePolicy"] = "Ignore".into();
        }
        let config = setting.patched(config, Phase::Mutating);
        let fails = config["webhooks"].as_array().unwrap().iter().filter(|entry| entry["failurePolicy"] == "Fail");
        let fails: Vec<&Value> = fails.map(|entry| &entry["name"]).collect();
        assert_eq!(fails, ["mcontainerrecreaterequest.kb.io", "mpod-required.kb.io"]);
    }

    #[test]
    fn entries_for_budgets_see_the_namespaces_that_have_some_and_at_first_none() {
        let mut setting = Setting::of(all_gates());
        let of = |config: &Value, namespaces: Namespaces| -> Vec<Value> {
            let is_ours = |name: &Value| HANDLERS.iter().any(|h| h.namespaces == namespaces && *name == h.name);
            let entries = config["webhooks"].as_array().into_iter().flatten();
            entries.filter(|entry| is_ours(&entry["name"])).map(|entry| entry["namespaceSelector"].clone()).collect()
        };
        let shop = scope::selector(&["shop".to_owned()].into(), "kruise-system");
        let both = scope::selector(&["shop".to_owned(), "train".to_owned()].into(), "kruise-system");
        let (budgets, counting) = (Namespaces::WithBudgets, Namespaces::WithBudgetsOrCounting);
        for phase in PHASES {
            (setting.with_budgets, setting.with_budgets_or_counting) = (None, None);
            let config = setting.patched(json!({"metadata": {"resourceVersion": "1"}}), phase);
            for namespaces in [budgets, counting] {
                assert!(of(&config, namespaces).iter().all(|selector| *selector == scope::nobody()));
            }
            (setting.with_budgets, setting.with_budgets_or_counting) = (Some(shop.clone()), Some(both.clone()));
            let config = setting.patched(config, phase);
            assert!(of(&config, budgets).iter().all(|selector| *selector == shop));
            assert!(of(&config, counting).iter().all(|selector| *selector == both));
            assert_eq!(setting.plan(&config, phase), Vec::<Value>::new());
            (setting.with_budgets, setting.with_budgets_or_counting) = (None, None);
            assert_eq!(setting.plan(&config, phase), Vec::<Value>::new(), "not known is not none");
            assert!(listed(&config, budgets).iter().all(|namespace| namespace == "shop"));
            let both = listed(&config, counting);
            assert!(both.is_empty() || ["shop", "train"].iter().all(|name| both.iter().any(|listed| listed == name)));
        }
        let called: Vec<&str> = HANDLERS.iter().filter(|h| h.namespaces == counting).map(|h| h.name).collect();
        assert_eq!(called, ["vpod-delete.kb.io", "vpod-eviction.kb.io"], "nothing else is counted");
    }

    /// E34 and E35 of SidecarSet.
    #[test]
    fn sw_e34_e35_entries_have_short_timeouts_and_resizes_are_asked_about() {
        let setting = Setting::of(all_gates());
        let empty = json!({"metadata": {"resourceVersion": "1"}});
        let mut resources = BTreeSet::new();
        for phase in PHASES {
            let config = setting.patched(empty.clone(), phase);
            for entry in config["webhooks"].as_array().unwrap() {
                assert!((1..=10).contains(&entry["timeoutSeconds"].as_i64().unwrap()), "{}", entry["name"]);
                let rules = entry["rules"].as_array().unwrap().iter();
                resources.extend(
                    rules.flat_map(|rule| rule["resources"].as_array().unwrap().clone()).map(|r| r.to_string()),
                );
            }
        }
        assert!(resources.contains(r#""pods/resize""#), "{resources:?}");
    }

    #[test]
    fn a_webhook_that_fails_closed_never_stands_in_the_way_of_a_repair() {
        for handler in HANDLERS.iter() {
            let operation = handler.target.operation;
            let fails_closed = handler.on_failure == OnFailure::Fail;
            let spares_deleted = |object: &str| {
                let conditions = (handler.match_conditions)(&FeatureGates::default());
                let wanted = format!("!has({object}.metadata.deletionTimestamp)");
                conditions.iter().any(|c| c.expression.ends_with(&wanted))
            };
            match operation {
                Operation::Create => {}
                Operation::Update => {
                    assert!(!fails_closed, "{}", handler.name);
                    assert!(spares_deleted("object"), "{}: finalizers have to go", handler.name);
                }
                Operation::Delete => {
                    assert!(spares_deleted("oldObject"), "{}: the last delete has to pass", handler.name);
                    assert!(!fails_closed || handler.label.is_some(), "{}: only what is labelled", handler.name);
                }
            }
            let is_of_pods = handler.target.group.is_empty() && handler.target.level == Level::Namespaced;
            let is_required = handler.namespaces == Namespaces::SidecarsRequired;
            assert!(!is_of_pods || fails_closed == is_required, "{}", handler.name);
            assert!(!is_of_pods || handler.namespaces != Namespaces::All, "{}", handler.name);
            assert!(handler.timeout_seconds <= 10, "{}", handler.name);
        }
    }
}
