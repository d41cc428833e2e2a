//! The twin of a hot-upgraded sidecar that is not at work, and whether it has its empty image.

use super::{
    notes::PodNotes,
    spec::{Sidecar, Spec},
    states::States,
};

/// The twin that is not at work.
#[derive(Clone, Debug)]
pub struct Resting {
    /// Its name.
    pub name: String,
    /// The name of the other one.
    pub working: String,
    /// It has an empty image: it is not reset.
    pub is_empty: bool,
}

impl Resting {
    /// That of a sidecar in a Pod whose containers have these images. `states` are the last updates; None: they cannot be read.
    /// None: the sidecar has no twins, or nothing says which one works.
    pub fn of<'i>(
        spec: &Spec,
        sidecar: &Sidecar,
        (notes, states): (&PodNotes, Option<&States>),
        image: impl Fn(&str) -> Option<&'i str>,
    ) -> Option<Self> {
        let empty = sidecar.empty_image.as_ref()?;
        let working = notes.working.get(&sidecar.name)?.clone();
        let name = sidecar.twins().into_iter().find(|twin| *twin != working)?;
        let is_empty =
            image(&name).is_some_and(|image| image == empty || was_empty(spec, (notes, states), &working, image));
        Some(Self { name, working, is_empty })
    }
}

/// Whether a Pod was made with other containers, and this was the empty image then: it is that of a twin that has never
/// worked, or the one that the working twin had before its turn. Such a twin rests. A reset to the image that is empty now
/// would change all Pods at once, and no update in place gets them to the containers as they are now.
fn was_empty(spec: &Spec, (notes, states): (&PodNotes, Option<&States>), working: &str, image: &str) -> bool {
    let note = notes.hashes_without_image.get(&spec.name);
    let is_other = note.is_some_and(|note| note.hash != spec.hashes.without_image);
    let Some(states) = states.filter(|_| is_other) else { return false };
    let before = states.get(&spec.name).and_then(|state| state.last_container_statuses.get(working));
    before.is_none_or(|before| before.image == image)
}
