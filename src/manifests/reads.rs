//! What each account of ours may read, as RBAC grants it: `SECURITY.md` is rendered from it.

use std::collections::BTreeSet;

use super::{renewed, roles::roles};
use crate::{
    controllers::resource_distribution,
    k8s::{account::MANAGER, rbac::Rule},
    pull_secrets,
};

const BEGIN: &str = "<!-- Written by `make manifests` from the rights of the roles. -->\n";
const END: &str = "<!-- end of the table of reads -->\n";
const FINDS: [&str; 2] = ["list", "watch"];
/// Of more named objects than these only their number is shown.
const MOST_NAMES: usize = 2;

/// What some rules let an account read.
#[derive(Debug, Default, PartialEq)]
struct Reads {
    /// Resources of which it reads all objects.
    all: BTreeSet<String>,
    /// Those of which it reads objects whose names it knows.
    single: BTreeSet<String>,
    /// Objects that RBAC names.
    named: BTreeSet<String>,
}

impl Reads {
    fn of(rules: &[Rule]) -> Self {
        let mut reads = Self::default();
        for rule in rules {
            let finds = rule.verbs.iter().any(|verb| FINDS.contains(verb));
            if !finds && !rule.verbs.contains(&"get") {
                continue;
            }
            for (group, resource) in rule.groups.iter().flat_map(|g| rule.resources.iter().map(move |r| (*g, *r))) {
                let group = if group.is_empty() { String::new() } else { format!("{group}/") };
                let resource = format!("`{group}{resource}`");
                match (rule.resource_names, finds) {
                    ([], true) => reads.all.insert(resource),
                    ([], false) => reads.single.insert(resource),
                    (names, _) if names.len() <= MOST_NAMES => {
                        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                        reads.named.insert(format!("{resource} {}", names.join(" and ")))
                    }
                    (names, _) => reads.named.insert(format!("{} of {resource}", names.len())),
                };
            }
        }
        let Self { all, single, named: _ } = &mut reads;
        single.retain(|resource| !all.contains(resource));
        reads
    }
}

/// The table as Markdown.
fn markdown() -> String {
    let mut text = String::from("| account | where | all of | single ones of | by name |\n|---|---|---|---|---|\n");
    let mut add = |account: &str, place: &str, rules: &[Rule]| {
        let Reads { all, single, named } = Reads::of(rules);
        let [all, single, named] = [all, single, named].map(|some| some.into_iter().collect::<Vec<_>>().join(", "));
        text += &format!("| `{account}` | {place} | {all} | {single} | {named} |\n");
    };
    for role in roles() {
        add(role.account, "the cluster", &role.cluster_rules);
        add(role.account, "its own namespace", &role.own_namespace_rules);
    }
    for (component, rules) in
        [("pull-secrets", pull_secrets::SECRETS_RBAC), ("resource-distribution", resource_distribution::COPIES_RBAC)]
    {
        add(MANAGER, &format!("the cluster, with the component `{component}`"), rules);
    }
    text
}

/// A page with the table between its markers made new. None: it has no markers.
pub(super) fn renew(page: &str) -> Option<String> {
    renewed(page, (BEGIN, END), &markdown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_read_as_a_whole_and_names_are_shown_while_they_are_few() {
        let rules = [
            Rule::new(&[""], &["pods", "nodes"], &["get"]),
            Rule::new(&["apps", "apps.kruise.io"], &["statefulsets"], &["list", "watch"]),
            Rule::new(&[""], &["pods"], &["list"]),
            Rule::new(&[""], &["events"], &["create"]),
            Rule::new(&[""], &["secrets"], &["get", "patch"]).named(&["a"]),
            Rule::new(&[""], &["configmaps"], &["get"]).named(&["a", "b", "c"]),
        ];
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
        let wanted = Reads {
            all: texts(&["`apps.kruise.io/statefulsets`", "`apps/statefulsets`", "`pods`"]),
            single: texts(&["`nodes`"]),
            named: texts(&["3 of `configmaps`", "`secrets` `a`"]),
        };
        assert_eq!(Reads::of(&rules), wanted);
    }

    #[test]
    fn security_has_the_reads_of_today() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/SECURITY.md")).unwrap();
        assert!(renew(&page) == Some(page), "SECURITY.md is stale; mend with `make manifests`");
    }

    /// As the page says beside the table.
    #[test]
    fn nobody_lists_secrets_and_the_daemon_reads_none() {
        let is_of_secrets = |resource: &String| resource.starts_with("`secrets`");
        for role in roles() {
            for rules in [&role.cluster_rules, &role.own_namespace_rules] {
                let Reads { all, single, named } = Reads::of(rules);
                assert!(!all.iter().chain(&single).any(is_of_secrets), "{}", role.account);
                assert!(role.name != "daemon" || !named.iter().any(is_of_secrets), "{named:?}");
            }
        }
        assert!(!Reads::of(resource_distribution::COPIES_RBAC).all.iter().any(is_of_secrets));
    }
}
