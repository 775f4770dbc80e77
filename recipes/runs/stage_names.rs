//! The names of stages, which are those of their folders in a run.
//!
//! A recipe that trains in several stages has their names, which its family says, in the place of [`TRAIN`].

/// Trains the target and makes up the data.
pub const SYNTHETIC: &str = "synthetic";

/// Has the target answer the conversations anew.
pub const REGENERATE: &str = "regenerate";

/// Makes tokens of conversations.
pub const PREPARE: &str = "prepare";

/// Stores the target's hidden states of what is trained on.
pub const FEATURES: &str = "features";

/// Stores what the target answers to held-out prompts.
pub const ANSWERS: &str = "answers";

/// Trains the drafter. The table of a recipe that says how has the same name.
pub const TRAIN: &str = "train";

/// Writes the drafter for engines.
pub const EXPORT: &str = "export";

/// Judges the drafter.
pub const EVALUATE: &str = "evaluate";

/// What a drafter that others trained has in the place of all stages: `spectrain import` writes it.
pub const IMPORT: &str = "import";
