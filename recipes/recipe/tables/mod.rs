//! The tables of a recipe file that are the same for every drafter.

mod data;
mod evaluate;
mod export;
mod features;
mod prompts;
mod regenerate;
mod synthetic;
mod target;
mod track;

pub use data::DataTable;
pub use evaluate::{EvaluateTable, VerifierName};
pub use export::{Engine, ExportTable, ExportType};
pub use features::{FeatureMode, FeaturesTable};
pub use prompts::{ChosenSet, PromptEntry, PromptTable, Prompts};
pub use regenerate::{
    CONCURRENCY, LONGEST_ANSWER, OWN_KEYS, RETRIES, RegenerateTable, TIMEOUT, check_asked,
};
pub use synthetic::{MADE_POSITIONS, SyntheticTable};
pub use target::{TargetTable, TargetType};
pub use track::{EXPERIMENT, TrackTable, Tracker};
