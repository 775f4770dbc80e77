//! Settings of another trainer by their names, and what they become that stands outside the tables of most keys.

use std::collections::BTreeSet;

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
    /// Those that nobody wrote: the program has them by default.
    pub(super) implied: BTreeSet<String>,
    /// The programs that are called before the one that trains, by what stands before the names of their flags.
    pub(super) called: BTreeSet<&'static str>,
    /// What is to be told of how they were given.
    pub(super) notes: Vec<String>,
}

impl Given {
    /// Sets one that somebody wrote.
    pub(super) fn set(&mut self, name: String, value: Value) {
        self.implied.remove(&name);
        self.settings.insert(name, value);
    }

    /// Takes one away.
    pub(super) fn unset(&mut self, name: &str) {
        self.implied.remove(name);
        self.settings.remove(name);
    }

    /// Whether somebody wrote a setting.
    pub(super) fn wrote(&self, name: &str) -> bool {
        self.settings.contains_key(name) && !self.implied.contains(name)
    }

    /// How many settings somebody wrote.
    pub(super) fn written(&self) -> usize {
        self.settings.len() - self.implied.len()
    }
}
