//! A run's figures in a tracker, beside its own files: sent while it runs, or later.

mod figures;
pub mod live;
mod mlflow;
mod records;
mod server;
pub mod sync;
mod trackio;
mod wandb;
mod web;
