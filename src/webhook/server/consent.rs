//! Asks the budgets of a Pod before it is taken out of service.

use crate::{
    budgets::Refusal,
    domain::budgets::unavailable::Operation,
    k8s::pod::PodView,
    webhook::{
        Context,
        server::review::{Admitted, Decision, Denied},
    },
};

/// Asks the budgets of a Pod.
///
/// # Errors
/// It has to stay in service.
pub async fn consent(context: &Context, pod: &PodView, operation: Operation, dry_run: bool) -> Decision {
    let Err(refusal) = context.budgets.take(pod, operation, dry_run).await else { return Ok(Admitted::unchanged()) };
    let message = refusal.message();
    if !dry_run {
        // It begins as OpenKruise's.
        let text = format!("openkruise pub prevents pod deletion: {} was refused: {message}", operation.label());
        context.events.warning(&pod.reference(), "PubPreventPodDeletion", &text);
    }
    Err(match (operation, refusal) {
        // As a PodDisruptionBudget answers: kubectl drain tries again.
        (Operation::Evict, _) => Denied::too_many_requests(message),
        (_, Refusal::Budget { .. }) => Denied::forbidden(message),
        (_, Refusal::Undecided(_)) => Denied::internal(message),
    })
}
