//! The folders of runs: what is in them, and whether it is still true.

pub mod curves;
pub(crate) mod files;
pub(crate) mod hashes;
mod hashing;
pub mod places;
pub mod prepared;
pub mod run_folder;
pub mod stage_names;
pub mod training_time;
