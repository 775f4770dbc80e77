//! Train the drafters of speculative decoding from one file, export them, and judge them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod cli;
pub mod commands;
pub mod device;
mod dflash;
mod draft_heads;
pub mod drafter_at;
mod drafter_folder;
mod eagle1;
mod eagle3;
pub mod footprint;
mod hashes;
mod hydra;
pub mod judge;
mod known_targets;
mod language_model;
mod masked_language_model;
mod medusa;
pub mod plan;
pub mod preflight;
pub mod progress;
pub mod recipe;
pub mod registry;
pub mod run_folder;
pub mod self_check;
pub mod stages;
pub mod tables;
pub mod target;
mod target_sizes;
