//! What cannot be read of an object.

/// A field or an annotation that does not say what it should, in words that name the value and what is allowed. Nothing is
/// done by such a value: it is reported, and waits for another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl From<Invalid> for String {
    fn from(Invalid(why): Invalid) -> Self {
        why
    }
}
