//! Settings of another trainer by their names, and what they become that stands outside the tables of most keys.

use serde_json::{Map, Value};

/// The setting that stands for the processes that a launcher starts, such as `torchrun`.
pub(super) const PROCESSES: &str = "launched processes";

/// Keys of a recipe that `spectrain init` has options for: the target, its conversations and the run's name.
pub(crate) const TARGET: &str = "target.model";
pub(crate) const TRAIN: &str = "data.train";
pub(super) const PRESET: &str = "data.preset";
pub(super) const NAME: &str = "name";

/// What was given.
#[derive(Default)]
pub(super) struct Given {
    pub(super) settings: Map<String, Value>,
    /// What is to be told of how they were given.
    pub(super) notes: Vec<String>,
}
