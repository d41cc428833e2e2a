//! An update of one Pod in place, as the controllers of CloneSets, StatefulSets and DaemonSets carry it out: what is asked
//! first, and what events say.

use crate::{
    budgets::{
        Budgets,
        refusals::{Refusals, Verdict},
    },
    domain::{budgets::unavailable::Operation, pod::inplace::UpdateSpec, workload::owner::OwnerRef},
    k8s::pod::PodView,
    runtime::{
        apply::{is_refusal, said},
        in_place::{InPlace, Target},
        pod_control::PodControl,
    },
};

/// What came of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It was done.
    Done,
    /// The Pod has changed, or is being written by another task: the next pass decides anew.
    Nothing,
    /// A budget keeps the Pod. The room that it was to take is free.
    Refused,
    /// No budget could decide, and others would fare no better: that is looked at again later.
    Undecided,
}

impl Tried {
    /// Done, or nothing.
    pub fn of(done: bool) -> Self {
        if done { Self::Done } else { Self::Nothing }
    }
}

/// Whether the room of a step that was tried is free for another Pod.
pub fn leaves_room(tried: &kube::Result<Tried>) -> bool {
    match tried {
        Ok(tried) => *tried == Tried::Refused,
        Err(error) => is_refusal(error),
    }
}

/// Whether a step that was tried was done, or nobody knows whether it was. Then no further Pods are chosen to be updated in
/// this pass: the next one uses the room of Pods that became available meanwhile.
pub fn may_be_done(tried: &kube::Result<Tried>) -> bool {
    match tried {
        Ok(tried) => *tried == Tried::Done,
        Err(error) => !is_refusal(error),
    }
}

/// What came of a step that the budgets of its Pod do not let be taken. None: they do, and have recorded it unless it is a dry
/// run.
pub async fn kept_by_budgets(
    budgets: &Budgets,
    view: &PodView,
    (operation, refusals): (Option<Operation>, &Refusals),
    dry_run: bool,
) -> Option<Tried> {
    match budgets.may_take(view, (operation?, dry_run), refusals).await {
        Verdict::Yes => None,
        Verdict::No => Some(Tried::Refused),
        Verdict::Undecided => Some(Tried::Undecided),
    }
}

/// One Pod that is to be updated in place.
pub struct InPlaceUpdate<'a> {
    /// The writer of Pods, and that of updates in place.
    pub writers: (&'a PodControl, &'a InPlace),
    /// For events.
    pub owner: &'a OwnerRef,
    /// The Pod.
    pub view: &'a PodView,
    /// The name of the revision that it leads to, and the labels of Pods on it.
    pub revision: (&'a str, Target<'a>),
    /// What is changed.
    pub spec: &'a UpdateSpec,
    /// Whether changes of its workload were refused a short time ago, see [`InPlace::is_in_doubt`].
    pub is_in_doubt: bool,
}

impl InPlaceUpdate<'_> {
    /// What is asked before budgets record a consent: of a Pod in doubt, whether they would give it, and then whether the
    /// change would be accepted. What came of an update that goes no further, or None.
    ///
    /// # Errors
    /// The change would be refused, which an event says.
    pub async fn kept(&self, budgets: &Budgets, asked: (Option<Operation>, &Refusals)) -> kube::Result<Option<Tried>> {
        if !self.is_in_doubt {
            return Ok(None);
        }
        if let Some(kept) = kept_by_budgets(budgets, self.view, asked, true).await {
            return Ok(Some(kept));
        }
        let may = self.writers.1.may_begin(self.view, self.revision.1, self.spec).await;
        let may = may.inspect_err(|error| self.report_refused(error))?;
        Ok((!may).then_some(Tried::Nothing))
    }

    /// Takes the Pod out of service, then changes it, or says in an annotation what it will be changed to. False: it has
    /// changed meanwhile.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409. An event says why.
    pub async fn begin(&self) -> kube::Result<bool> {
        let (pods, in_place) = self.writers;
        let begun = in_place.begin(self.view, self.revision.1, (self.spec, self.is_in_doubt)).await;
        match &begun {
            Ok(true) => {
                let (name, revision) = (self.view.name(), self.revision.0);
                let message = format!("successfully update pod {name} in-place(revision {revision})");
                pods.normal(self.owner, "SuccessfulUpdatePodInPlace", &message);
            }
            Ok(false) => {}
            Err(error) => self.report_refused(error),
        }
        begun
    }

    fn report_refused(&self, error: &kube::Error) {
        let (name, revision, why) = (self.view.name(), self.revision.0, said(error));
        let message = format!("failed to update pod {name} in-place(revision {revision}): {why}");
        self.writers.0.warning(self.owner, "FailedUpdatePodInPlace", &message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_refused_leaves_its_room_and_what_may_be_done_ends_the_choice() {
        let failure = |code: u16| {
            let status = json!({"code": code, "message": "no"});
            Err(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))
        };
        for (tried, leaves, may) in [
            (Ok(Tried::Done), false, true),
            (Ok(Tried::Nothing), false, false),
            (Ok(Tried::Refused), true, false),
            (Ok(Tried::Undecided), false, false),
            (failure(403), true, false),
            (failure(429), true, false),
            (failure(500), false, true),
            (Err(kube::Error::Service("lost".into())), false, true),
        ] {
            assert_eq!((leaves_room(&tried), may_be_done(&tried)), (leaves, may), "{tried:?}");
        }
    }
}
