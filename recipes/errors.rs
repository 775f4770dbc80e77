//! The error of a wrong request.

/// A request that makes no sense, whatever else is on the disk: the program ends with 2, as for an unknown argument.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);
