//! Where features are that are not those of the samples to train on.

use std::path::PathBuf;

use crate::stages::context::StageContext;

/// Where the features of held-out samples are in the folder of the stage `features`.
pub const HELD_OUT: &str = "held_out";

/// The folder of the answers that were written at a temperature, in the stage `answers`.
pub fn answers_at(context: &StageContext, temperature: f64) -> PathBuf {
    context.folder("answers").join(format!("T={temperature}"))
}
