//! Servers that speak the OpenAI protocol, asked by `data regenerate` and by `evaluate`.

pub mod client;
pub mod key;
pub mod pool;
pub(crate) mod protocol;
pub mod waiting;
