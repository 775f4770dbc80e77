//! Model folders in and out, engine dialects, and the state a run resumes from.
//!
//! Tensors here are names, shapes and bytes: no numeric back end is involved. Everything that is written appears under
//! its name complete or not at all, and everything that is read is checked before a tensor leaves this crate.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod absent;
pub mod atomic;
pub mod beside;
pub mod columns;
mod config;
pub mod deepseek_mtp;
pub mod dflash;
pub mod dialect;
mod dtype;
pub mod eagle1;
pub mod eagle3;
mod error;
mod expected;
pub mod folder;
pub mod hash;
pub mod hub;
pub mod hydra;
pub mod into_target;
mod json;
pub mod keys;
pub mod known;
pub mod language_model;
mod latent;
pub mod launch;
pub mod masked_language_model;
pub mod medusa;
mod mismatch;
pub mod mtp;
pub mod names;
pub mod near;
pub mod once;
pub mod peagle;
mod printable;
pub mod qwen_mtp;
pub mod redrafter;
pub mod regular;
pub mod replaced;
pub mod rotary;
pub mod seal;
pub mod sealed_lines;
pub mod speculators;
pub mod state;
pub mod tensors;

pub use config::Rope;
pub use dtype::DType;
pub use error::{Error, Result};
pub use expected::TensorSpec;
pub use folder::{ModelFolder, TensorInfo, write_folder};
pub use hub::{HubOptions, resolve, resolve_parts};
pub use mismatch::Mismatch;
pub use printable::{printable, printable_lines};
pub use tensors::{NamedTensor, write_safetensors};
