//! Where features are that are not those of the samples to train on.

use std::path::{Path, PathBuf};

use crate::recipe::tables::EvaluateTable;
use crate::runs::stage_names;
use crate::stages::context::StageContext;

/// What says which features are in a folder of them, with a digest of each of its files.
pub const FEATURES: &str = "features.json";

/// Where the features of held-out samples are in the folder of the stage `features`.
pub const HELD_OUT: &str = "held_out";

/// The folder of the answers that were written at a temperature, in the stage `answers`.
pub fn answers_at(context: &StageContext, temperature: f64) -> PathBuf {
    at(context.run.path(), temperature)
}

/// Those in the folder of a run that were written at the first temperature of its evaluation.
pub fn first_answers(run: &Path, evaluate: &EvaluateTable) -> PathBuf {
    let first = evaluate.temperatures.first().copied();
    at(run, first.unwrap_or_default())
}

fn at(run: &Path, temperature: f64) -> PathBuf {
    run.join(stage_names::ANSWERS)
        .join(format!("T={temperature}"))
}
