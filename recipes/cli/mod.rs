//! The command line.

pub mod arguments;
pub mod commands;
mod log;
pub mod run;
mod signals;
pub(crate) mod written;

pub use run::{Arguments, EXIT_STATUS, main};
