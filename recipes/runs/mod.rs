//! The folders of runs: what is in them, whether it is still true, and the drafters found there.

pub mod curves;
pub mod drafter_at;
pub(crate) mod files;
pub(crate) mod hashes;
mod hashing;
pub mod outdated;
pub mod places;
pub mod prepared;
pub mod run_folder;
pub mod training_time;
