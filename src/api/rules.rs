//! Texts of rules (CEL) by which fields stay what they are.
//!
//! A client in Go leaves out what is zero or empty, whatever the object had that it read. So absent is the same as zero
//! here: else each of its updates would be refused, that of a finalizer included.
//!
//! `has(x) ? x : []` and not `x.orValue([])`: the API server has a limit for the estimated cost of a rule, and knows how
//! long the first can be.

/// A member of the object at `at` stays: `at` is empty for the object that has the rule, or `.member`.
pub(super) fn stays(at: &str, member: &str, zero: &str) -> String {
    let of = |root: &str| format!("(has({root}{at}.{member}) ? {root}{at}.{member} : {zero})");
    format!("{} == {}", of("self"), of("oldSelf"))
}

/// The label selector at `at` stays.
pub(super) fn selector_stays(at: &str) -> String {
    format!("{} && {}", stays(at, "matchLabels", "{}"), stays(at, "matchExpressions", "[]"))
}

/// A member that is a label selector, or absent, stays. An empty selector is not the same as none.
pub(super) fn optional_selector_stays(member: &str) -> String {
    let at = format!(".{member}");
    format!("has(self{at}) == has(oldSelf{at}) && (!has(self{at}) || ({}))", selector_stays(&at))
}

/// A value of each item `i` of a list stays, in the order of the list.
pub(super) fn items_stay(list: &str, value: &str) -> String {
    format!("self.{list}.map(i, {value}) == oldSelf.{list}.map(i, {value})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What they mean is proven by the API server alone.
    #[test]
    fn absent_is_the_same_as_empty() {
        for (rule, text) in [
            (stays("", "a", "0"), "(has(self.a) ? self.a : 0) == (has(oldSelf.a) ? oldSelf.a : 0)"),
            (stays(".b", "a", "[]"), "(has(self.b.a) ? self.b.a : []) == (has(oldSelf.b.a) ? oldSelf.b.a : [])"),
            (
                selector_stays(""),
                "(has(self.matchLabels) ? self.matchLabels : {}) == (has(oldSelf.matchLabels) ? oldSelf.matchLabels : {}) \
                 && (has(self.matchExpressions) ? self.matchExpressions : []) == (has(oldSelf.matchExpressions) ? oldSelf.matchExpressions : [])",
            ),
            (
                optional_selector_stays("s"),
                "has(self.s) == has(oldSelf.s) && (!has(self.s) || (\
                 (has(self.s.matchLabels) ? self.s.matchLabels : {}) == (has(oldSelf.s.matchLabels) ? oldSelf.s.matchLabels : {}) \
                 && (has(self.s.matchExpressions) ? self.s.matchExpressions : []) == (has(oldSelf.s.matchExpressions) ? oldSelf.s.matchExpressions : [])))",
            ),
            (items_stay("list", "i.name"), "self.list.map(i, i.name) == oldSelf.list.map(i, i.name)"),
        ] {
            assert_eq!(rule, text);
        }
    }
}
