//! A run's figures on a tracking server, beside its own files: sent while it runs, or later.

mod figures;
pub mod live;
mod mlflow;
mod server;
pub mod sync;
mod trackio;
mod web;
