//! Kubernetes' protobuf, in which the API server answers with less work on both sides than in JSON.
//!
//! Only kinds that are built in have it. See `proto/kubernetes/` for what we read.

use std::{borrow::Cow, sync::Arc};

use bytes::{Buf, Bytes};
use jiff::Timestamp;
use prost::{DecodeError, Message};

use super::shared::{self, Text};

/// Generated from `proto/` at build time.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/kubernetes.v1.rs"));
}

/// The content type; that of a watch has a parameter.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What is kept of an object that comes in protobuf.
pub trait InProtobuf: Sized {
    /// What is read of it.
    type Message: Message + Default + Into<Self>;
}

/// What every object begins with that is no event of a watch.
const MAGIC: &[u8] = b"k8s\0";

/// An object in protobuf that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// Other bytes than an object begins with.
    #[error("no object in protobuf: it does not begin with \"k8s\\0\"")]
    NoMagic,
    /// Not what the definitions say.
    #[error("an object in protobuf: {0}")]
    Decode(#[from] DecodeError),
}

/// The object in its envelope, which is not looked at yet. What kind it is was asked for, and is not read again.
///
/// # Errors
/// These bytes are no object.
pub fn open(mut bytes: Bytes) -> Result<Bytes, Malformed> {
    if !bytes.starts_with(MAGIC) {
        return Err(Malformed::NoMagic);
    }
    bytes.advance(MAGIC.len());
    Ok(v1::Unknown::decode(bytes)?.raw.unwrap_or_default())
}

/// An object of whose kind there is no doubt.
///
/// # Errors
/// These bytes are no such object.
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Malformed> {
    Ok(M::decode(open(bytes)?)?)
}

/// A text as it is; what is no UTF-8 can only have been written by a client that broke the rules, and is shown as such.
pub(super) fn read(bytes: &Bytes) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The text, or an empty one.
pub(super) fn text(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(String::new, |bytes| read(&bytes).into_owned())
}

/// None: not there, or empty, which JSON leaves out.
pub(super) fn some_text(bytes: Option<Bytes>) -> Option<String> {
    bytes.filter(|bytes| !bytes.is_empty()).map(|bytes| read(&bytes).into_owned())
}

/// A text that many objects have.
pub(super) fn shared_text(bytes: Option<Bytes>) -> Option<Text> {
    bytes.map(|bytes| Text::from(&*read(&bytes)))
}

/// The one copy of a text, or of an empty one.
pub(super) fn interned(bytes: Option<Bytes>) -> Arc<str> {
    shared::text(&read(&bytes.unwrap_or_default()))
}

/// None: no time.
pub(super) fn timestamp(time: Option<v1::Time>) -> Option<Timestamp> {
    Timestamp::from_second(time?.seconds?).ok()
}
