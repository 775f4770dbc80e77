//! The tables of a recipe file that are the same for every drafter.

mod addresses;
mod data;
mod evaluate;
mod export;
mod features;
mod prompts;
mod regenerate;
mod synthetic;
mod target;
mod track;

pub use addresses::Addresses;
pub use data::DataTable;
pub use evaluate::{EvaluateTable, VerifierName};
pub use export::{Engine, ExportTable, ExportType};
pub use features::{FeatureMode, FeaturesTable};
pub use prompts::{ChosenSet, PromptEntry, PromptTable, Prompts};
pub use regenerate::{
    Asked, CONCURRENCY, FailedRows, LONGEST_ANSWER, NO_PARSER, OF_SERVERS, OWN_KEYS, RETRIES,
    RegenerateTable, TEMPLATE_KEY, TIMEOUT, WAIT, check_asked, check_template,
};
pub use synthetic::{MADE_POSITIONS, SyntheticTable};
pub use target::{TargetTable, TargetType};
pub use track::{EXPERIMENT, TrackTable, Tracker};
