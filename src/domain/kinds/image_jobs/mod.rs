//! Images on nodes ahead of time: what a job wants of which node, when an entry of a NodeImage goes, and what the status
//! of a job says.
//!
//! [`job`] decides for one ImagePullJob which nodes begin next, [`node`] what stands in one NodeImage, [`list`] which
//! ImagePullJobs an ImageListPullJob has. [`rules`] is what admission and controllers refuse, [`share`] what one namespace
//! may take of a node.

pub mod job;
pub mod list;
pub mod node;
pub mod rules;
pub mod share;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::k8s::time::{self, Now};

/// Puts a condition in place of the one of its type; the time of its last change stays if its status does.
fn set_condition(conditions: &mut Vec<Condition>, generation: Option<i64>, type_: &str, says: Says<'_>, now: Now) {
    let Says { status, reason, message } = says;
    let status = if status { "True" } else { "False" };
    let before = conditions.iter().position(|condition| condition.type_ == type_);
    let since = before.map(|at| &conditions[at]).filter(|condition| condition.status == status);
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since
            .map_or_else(|| Time(time::whole_seconds(now.wall)), |condition| condition.last_transition_time.clone()),
    };
    match before {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// What a condition says.
#[derive(Clone, Copy)]
struct Says<'a> {
    status: bool,
    reason: &'a str,
    message: &'a str,
}
