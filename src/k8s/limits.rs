//! Limits of the API server.

/// Bytes of all annotations of an object, keys and values together.
pub const MOST_ANNOTATIONS: usize = 256 << 10;
