//! What an administrator has set for the time when no replica of the webhook answers, per entry: one operation on one
//! kind of object.

use std::collections::BTreeMap;

use crate::webhook::{
    HANDLERS,
    server::handler::{Handler, Namespaces, OnFailure, Operation},
};

impl OnFailure {
    /// As a registration has it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// The entry that writes fields of a request which the daemon trusts: the instance to stop and its preStop hook. While it
/// fails open, the author of a request can write them.
const TRUSTED: &str = "mcontainerrecreaterequest.kb.io";

/// The failure policies that an entry may have.
pub fn allowed(handler: &Handler) -> &'static [OnFailure] {
    match handler.target.operation {
        // Removing a finalizer has to pass while the webhook is down.
        Operation::Update => &[OnFailure::Ignore],
        _ if handler.name == TRUSTED => &[OnFailure::Fail],
        // The label of these namespaces says that no Pod is created without its sidecars.
        _ if handler.namespaces == Namespaces::SidecarsRequired => &[OnFailure::Fail],
        _ => &[OnFailure::Fail, OnFailure::Ignore],
    }
}

/// What was set, by the name of the entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailurePolicies(BTreeMap<&'static str, OnFailure>);

/// Why a setting was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FailurePolicyError {
    /// A part is not `ENTRY=Fail` or `ENTRY=Ignore`.
    #[error("failure policy {0:?}: want ENTRY=Fail or ENTRY=Ignore")]
    Malformed(String),
    /// No such entry.
    #[error("failure policy {0:?}: no such entry; there are {known}", known = HANDLERS.iter().map(|h| h.name).collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// Updates have to pass, or nobody could take a finalizer away.
    #[error(
        "failure policy {0}=Fail is not allowed: it is called for updates, and they have to pass when the webhook is down; want Ignore"
    )]
    Update(&'static str),
    /// Requests have to be checked, or their authors choose the instance to stop and the hook that runs before.
    #[error(
        "failure policy {0}=Ignore is not allowed: users could then write the instance ids and preStop hooks of requests \
         themselves; remove it from the setting (key failure-policies of the ConfigMap kruise-feature-gates)"
    )]
    Trusted(&'static str),
    /// Where sidecars are required, no Pod is created without them.
    #[error(
        "failure policy {0}=Ignore is not allowed: the label kruise.rs/sidecars: required of a namespace says that no Pod is \
         created there without its sidecars; take the label away where it may be, and remove the entry from the setting (key \
         failure-policies of the ConfigMap kruise-feature-gates)"
    )]
    Required(&'static str),
}

impl FailurePolicies {
    /// Reads `ENTRY=Fail,ENTRY=Ignore`.
    ///
    /// # Errors
    /// A malformed part, an unknown entry, or one that may not fail closed.
    pub fn parse(list: &str) -> Result<Self, FailurePolicyError> {
        let mut policies = BTreeMap::new();
        for part in list.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()) {
            let malformed = || FailurePolicyError::Malformed(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(malformed)?;
            let policy = match value.trim() {
                "Fail" => OnFailure::Fail,
                "Ignore" => OnFailure::Ignore,
                _ => return Err(malformed()),
            };
            let name = name.trim();
            let handler = HANDLERS.iter().find(|h| h.name == name);
            let handler = handler.ok_or_else(|| FailurePolicyError::Unknown(name.to_owned()))?;
            if !allowed(handler).contains(&policy) {
                return Err(match handler.target.operation {
                    Operation::Update => FailurePolicyError::Update(handler.name),
                    _ if handler.name == TRUSTED => FailurePolicyError::Trusted(handler.name),
                    _ => FailurePolicyError::Required(handler.name),
                });
            }
            policies.insert(handler.name, policy);
        }
        Ok(Self(policies))
    }

    /// What was set for a handler, or the only policy that it may have; None leaves what its entry says.
    pub fn of(&self, handler: &Handler) -> Option<OnFailure> {
        match allowed(handler) {
            [only] => Some(*only),
            _ => self.0.get(handler.name).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(policies: &FailurePolicies, name: &str) -> Option<OnFailure> {
        policies.of(HANDLERS.iter().find(|h| h.name == name).unwrap())
    }

    #[test]
    fn each_entry_has_a_setting_of_its_own() {
        let policies = FailurePolicies::parse(" vnamespace.kb.io = Ignore,\nmpod.kb.io=Fail, ").unwrap();
        assert_eq!(of(&policies, "vnamespace.kb.io"), Some(OnFailure::Ignore));
        assert_eq!(of(&policies, "mpod.kb.io"), Some(OnFailure::Fail));
        assert_eq!(of(&policies, "mcloneset.kb.io"), None);
        assert_eq!(FailurePolicies::parse(""), Ok(FailurePolicies::default()));
    }

    #[test]
    fn an_entry_with_one_allowed_policy_always_has_it() {
        let none = FailurePolicies::default();
        assert_eq!(of(&none, TRUSTED), Some(OnFailure::Fail));
        assert_eq!(of(&none, "mpod-required.kb.io"), Some(OnFailure::Fail));
        assert_eq!(of(&none, "mcloneset-update.kb.io"), Some(OnFailure::Ignore));
        for handler in HANDLERS.iter() {
            assert!(allowed(handler).contains(&handler.on_failure), "{}", handler.name);
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, message) in [
            ("vnamespace.kb.io", "failure policy \"vnamespace.kb.io\": want ENTRY=Fail or ENTRY=Ignore"),
            ("vnamespace.kb.io=fail", "failure policy \"vnamespace.kb.io=fail\": want ENTRY=Fail or ENTRY=Ignore"),
            ("nobody=Fail", "failure policy \"nobody\": no such entry; there are mpod.kb.io, "),
            ("mcloneset-update.kb.io=Fail", "failure policy mcloneset-update.kb.io=Fail is not allowed: "),
            (
                "mcontainerrecreaterequest.kb.io=Ignore",
                "failure policy mcontainerrecreaterequest.kb.io=Ignore is not allowed: users could then write the instance \
                 ids and preStop hooks of requests themselves; remove it from the setting (key failure-policies of the \
                 ConfigMap kruise-feature-gates)",
            ),
            (
                "mpod-required.kb.io=Ignore",
                "failure policy mpod-required.kb.io=Ignore is not allowed: the label kruise.rs/sidecars: required of a namespace",
            ),
        ] {
            let error = FailurePolicies::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
