//! Keys of `[train]` that a recipe takes from another one, by what they say.

use crate::families::registry::Recipe;

/// The table of a training.
pub(super) const TRAIN: &str = "train";
/// The table of what its stages change in it, where it has several.
pub(super) const STAGES: &str = "stages";

/// The rate of matrices, which goes with the root of the target's width.
pub(super) const MATRIX_RATE: &str = "matrix_learning_rate";
/// Peak learning rates.
pub(super) const RATES: [&str; 3] = ["learning_rate", MATRIX_RATE, "table_learning_rate"];
/// What else decides how a gradient moves the weights.
const MOVES: [&str; 13] = [
    "optimizer",
    "muon_momentum",
    "schedule",
    "decay_ratio",
    "decay_shape",
    "min_lr_ratio",
    "max_grad_norm",
    "clip_value",
    "weight_decay",
    "beta1",
    "beta2",
    "epsilon",
    "ema_decay",
];
/// All that is said of the optimiser.
const OPTIMISER: [&[&str]; 2] = [&RATES, &MOVES];

/// How long it trains, in steps or in passes over the data.
pub(super) const LENGTH: [&str; 2] = [STEPS, EPOCHS];
/// Steps.
pub(super) const STEPS: &str = "steps";
/// Passes over the data, which may be a fraction.
pub(super) const EPOCHS: &str = "epochs";
/// Steps of the warm-up.
pub(super) const WARM_UP: &str = "warmup_steps";
/// The same as a share of all, and what a step is made of.
const OF_STEPS: [&str; 3] = ["warmup_ratio", "batch_tokens", "gradient_accumulation"];

/// The keys of the optimiser, of the length and of what a step is made of.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let optimiser = OPTIMISER.into_iter().flatten().copied();
    optimiser.chain(LENGTH).chain([WARM_UP]).chain(OF_STEPS)
}

/// The tables of the trainings of a kind of recipe: `train`, and behind it those of its stages, where it has several.
pub(super) fn training_tables(kind: &Recipe) -> Vec<String> {
    let stages = Some(kind.stages).filter(|stages| stages.len() > 1);
    let stages = stages.into_iter().flatten();
    let stages = stages.map(|stage| format!("{STAGES}.{stage}"));
    [TRAIN.to_owned()].into_iter().chain(stages).collect()
}

/// The tables of what is trained of a kind of recipe: each of several stages is a training.
pub(super) fn trainings(kind: &Recipe) -> Vec<String> {
    let mut tables = training_tables(kind);
    if tables.len() > 1 {
        tables.remove(0);
    }
    tables
}

/// All that is said of the optimiser, by the tables of the trainings of a kind of recipe.
pub(super) fn optimiser(kind: &Recipe) -> impl Iterator<Item = (String, &'static [&'static str])> {
    let tables = training_tables(kind).into_iter();
    tables.flat_map(|table| OPTIMISER.map(|names| (table.clone(), names)))
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;
    use super::*;
    use crate::families::registry::{RECIPES, find};

    /// Keys that change nothing of what a step learns: how the training is watched, ended and saved, and what the device keeps.
    const OTHERS: [&str; 11] = [
        "gradient_checkpointing",
        "log_every",
        "validate_every",
        "validate_samples",
        "decode_prompts",
        "decode_tokens",
        "decode_draft_length",
        "patience",
        "save_every",
        "keep",
        "explosion",
    ];

    #[test]
    fn every_key_of_a_training_is_taken_or_changes_nothing_of_what_is_learnt() {
        let mut known: Vec<&str> = all().chain(OTHERS).collect();
        let mut names = Keys::of(&RECIPES[0]).names(TRAIN);
        known.sort_unstable();
        names.sort_unstable();
        assert_eq!(known, names);
    }

    #[test]
    fn only_several_stages_have_tables_of_their_own() {
        let tables = |kind: &str| training_tables(find(kind).unwrap());
        assert_eq!(tables("eagle3"), ["train"]);
        let deer = ["train", "stages.adapt", "stages.align", "stages.refine"];
        assert_eq!(tables("deer"), deer);
        assert_eq!(trainings(find("eagle3").unwrap()), ["train"]);
        assert_eq!(trainings(find("deer").unwrap()), deer[1..]);
    }
}
