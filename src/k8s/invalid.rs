//! What cannot be read of an object, or of the command line.

/// A field, an annotation or a flag that does not say what it should, in words that name the value and what is allowed.
/// Nothing is done by such a value: it is reported, and waits for another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// One field that does not fit the rest of its object, for whoever reports fields and messages apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// Its path.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl From<InvalidField> for Invalid {
    fn from(InvalidField { field, why }: InvalidField) -> Self {
        Self(format!("{field}: {why}"))
    }
}

/// All of them in one message.
impl From<Vec<InvalidField>> for Invalid {
    fn from(fields: Vec<InvalidField>) -> Self {
        let all: Vec<String> = fields.into_iter().map(|field| Self::from(field).0).collect();
        Self(all.join("; "))
    }
}

impl From<Invalid> for String {
    fn from(Invalid(why): Invalid) -> Self {
        why
    }
}
