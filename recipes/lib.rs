//! Train the drafters of speculative decoding from one file, export them, and judge them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod families;
pub mod plan;
pub mod recipe;
pub mod runs;
pub mod runtime;
pub mod stages;
