//! What kinds of drafters there are, with the folders and the sizes of each.

pub(crate) mod commands;
mod deepseek_mtp;
pub(crate) mod described;
mod dflash;
pub(crate) mod drafter_folder;
mod eagle1;
mod eagle3;
pub mod family;
pub mod footprint;
mod hydra;
mod language_model;
mod masked_language_model;
mod medusa;
pub mod method;
pub(crate) mod model_at_start;
mod mtp;
mod peagle;
mod qwen_mtp;
mod redrafter;
pub mod registry;
pub mod shipped;
mod sizes_at_start;
pub mod target_traits;
pub mod trained;
