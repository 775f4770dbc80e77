use spectrain_checkpoints::Mismatch;
use spectrain_models::bounds::{self, Bounded, OutOfBounds};

/// What can go wrong in training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model.
    #[error(transparent)]
    Model(#[from] spectrain_models::Error),
    /// Tokens or stored features.
    #[error(transparent)]
    Data(#[from] spectrain_data::Error),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] spectrain_checkpoints::Error),
    /// A setting of the `[train]` or `[objective]` table makes no sense.
    #[error("`[{table}] {key}`: {mismatch}")]
    Setting {
        /// The table.
        table: &'static str,
        /// The key.
        key: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// The loss, a gradient or a parameter is not finite, or the loss has exploded.
    #[error("step {step}: {what}; batch: samples {samples:?}")]
    Diverged {
        /// Optimizer step, counted from 1.
        step: usize,
        /// What was seen.
        what: String,
        /// Samples of the batch.
        samples: Vec<usize>,
    },
    /// No sample is left.
    #[error("there is no sample to train on")]
    NoSamples,
    /// No position of several steps counted.
    #[error(
        "step {step}: no position in the {samples} samples of the last {steps} steps is trained on; look at their loss masks with `spectrain data lint`, and at the coverage of the draft vocabulary"
    )]
    NothingCounted {
        /// Optimizer step, counted from 1.
        step: usize,
        /// Steps without any.
        steps: usize,
        /// Samples in them.
        samples: usize,
    },
    /// Another rank.
    #[error("rank {rank} {what}")]
    Rank {
        /// Which one.
        rank: usize,
        /// What it did.
        what: String,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A run state on disk, the newest one or that of the best weights, cannot be read.
    #[error("{source}; if you remove `{path}`, training goes on from {before}", path = path.display())]
    Damaged {
        /// Its folder.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: spectrain_checkpoints::Error,
        /// The state that training goes on from without it.
        before: String,
    },
    /// The run state on disk is not of this training.
    #[error("`{path}`: {mismatch}")]
    State {
        /// The folder.
        path: std::path::PathBuf,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// The run state on disk is of a training of other settings or data.
    #[error("`{}` is the state of another training: {}", .path.display(), told(.keys))]
    OtherTraining {
        /// The folder.
        path: std::path::PathBuf,
        /// What differs: keys, each with what is asked for and what the state was trained with.
        keys: Vec<(String, Mismatch)>,
    },
    /// The process that makes features ended.
    #[error("cannot compute the target's features: {0}")]
    Features(String),
    /// A device had no memory left.
    #[error(
        "the device ran out of memory at about step {step}: lower `train.batch_tokens`, or set `objective.recompute` or \
         `train.gradient_checkpointing` where they are off"
    )]
    OutOfMemory {
        /// Optimizer step, counted from 1, in which that was noticed: it may have happened in one of those before.
        step: usize,
    },
    /// Device memory grows from interval to interval.
    #[error(
        "step {step}: device memory grew from {from_mib} to {to_mib} MiB over {intervals} log intervals; this looks like a leak"
    )]
    MemoryGrowth {
        /// Optimizer step.
        step: usize,
        /// At the first of the intervals.
        from_mib: u64,
        /// At the last.
        to_mib: u64,
        /// How many.
        intervals: usize,
    },
}

/// What differs, by keys.
fn told(keys: &[(String, Mismatch)]) -> String {
    let each = keys
        .iter()
        .map(|(key, mismatch)| format!("`{key}`: {mismatch}"));
    each.collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Something with another rank.
    pub(crate) fn rank(rank: usize, what: &str) -> Self {
        Self::Rank {
            rank,
            what: what.to_owned(),
        }
    }

    /// A device had no memory left behind so many steps.
    pub(crate) fn out_of_memory(done: usize) -> Self {
        Self::OutOfMemory { step: done + 1 }
    }

    /// A number of a table is out of its bounds.
    pub(crate) fn out_of_bounds(table: &'static str, out: OutOfBounds) -> Self {
        Self::Setting {
            table,
            key: out.key,
            mismatch: out.mismatch,
        }
    }

    /// Fails on numbers of `[objective]` that are out of their bounds.
    pub(crate) fn check_objective(numbers: impl IntoIterator<Item = Bounded>) -> Result<()> {
        bounds::check(numbers).map_err(|out| Self::out_of_bounds("objective", out))
    }

    /// A key of `[objective]` makes no sense.
    pub(crate) fn objective(key: &'static str, expected: &str, got: String) -> Self {
        Self::Setting {
            table: "objective",
            key,
            mismatch: Mismatch::new(expected, got),
        }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
