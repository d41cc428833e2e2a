//! What UnitedDeployments and WorkloadSpreads do alike for a subset: the condition whether its Pods find a place, and the
//! nodes that they are held to.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    api::apps::united_deployment::UnitedCondition,
    k8s::{invalid::Invalid, limits::too_many_requirements, members::append, time::whole_seconds},
};

/// Its type.
pub const SCHEDULABLE: &str = "Schedulable";

/// The condition as it is now. `old` is the one before, whose time is kept while the status stays the same.
pub fn schedulable(
    old: Option<&UnitedCondition>,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> UnitedCondition {
    let status = if is_true { "True" } else { "False" };
    let kept = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time);
    UnitedCondition {
        type_: SCHEDULABLE.into(),
        status: status.into(),
        last_transition_time: kept.or_else(|| Some(whole_seconds(now))),
        reason: reason.into(),
        message: message.into(),
    }
}

/// Puts requirements on nodes, `matchExpressions` and `matchFields`, into each of the terms: terms are alternatives.
///
/// # Errors
/// That would be too many.
pub fn require_in_each(terms: &mut Value, expressions: &[Value], fields: &[Value]) -> Result<(), Invalid> {
    let many = terms.as_array().map_or(0, Vec::len);
    if let Some(why) = too_many_requirements(&[expressions, fields], many) {
        return Err(Invalid(why));
    }
    for term in terms.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        append(term, "matchExpressions", expressions);
        append(term, "matchFields", fields);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::limits::MOST_NODE_REQUIREMENTS;

    #[test]
    fn requirements_go_into_each_term_unless_they_would_be_too_many() {
        let mut terms = json!([{"matchExpressions": ["a"]}, {"matchFields": ["f"]}]);
        require_in_each(&mut terms, &[json!("b")], &[]).unwrap();
        assert_eq!(terms, json!([{"matchExpressions": ["a", "b"]}, {"matchExpressions": ["b"], "matchFields": ["f"]}]));
        require_in_each(&mut terms, &[], &[json!("g")]).unwrap();
        assert_eq!(terms[1]["matchFields"], json!(["f", "g"]));
        let (before, many) = (terms.clone(), vec![json!("x"); MOST_NODE_REQUIREMENTS]);
        assert!(require_in_each(&mut terms, &many, &[]).is_err());
        assert_eq!(terms, before);
    }
}
