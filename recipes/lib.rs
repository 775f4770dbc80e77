//! Train the drafters of speculative decoding from one file, export them, and judge them.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![warn(clippy::print_stdout)]

pub mod cli;
pub mod errors;
pub mod families;
pub mod plan;
pub mod progress;
pub mod recipe;
pub mod runs;
pub mod runtime;
pub mod stages;
pub mod tracking;
pub mod trainers;
