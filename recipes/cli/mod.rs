//! The command line.

pub mod arguments;
pub mod commands;
pub mod progress;
pub mod run;

pub use run::{Arguments, EXIT_STATUS, main};
