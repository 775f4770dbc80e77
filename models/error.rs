use std::path::PathBuf;

use spectrain_checkpoints::Mismatch;

/// What can go wrong when a model is built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder, a tensor or a file could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] spectrain_checkpoints::Error),
    /// A draft vocabulary makes no sense.
    #[error(transparent)]
    Data(#[from] spectrain_data::Error),
    /// `config.json` lacks a key, or its value is of the wrong kind.
    #[error("`{file}`: key `{key}`: {mismatch}")]
    Config {
        /// The file.
        file: PathBuf,
        /// Dotted path of the key.
        key: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// An architecture no decoder here computes.
    #[error("`{file}`: {found}; supported: {supported}")]
    Architecture {
        /// The file.
        file: PathBuf,
        /// What it is, or what else is wrong with the file.
        found: String,
        /// The ones that are.
        supported: String,
    },
    /// Weights that are not those of which `config.json` speaks.
    #[error("`{file}`: {keys} does not fit the weights: {cause}")]
    Unfit {
        /// The file.
        file: PathBuf,
        /// The key, or the keys whose product does not fit.
        keys: &'static str,
        /// The tensor with its file, and what is wrong with it.
        cause: Box<spectrain_checkpoints::Error>,
    },
    /// Weights that nothing was written to.
    #[error(
        "`{file}`: every matrix of {of} holds nothing but zeros, found at `{tensor}`; a download that did not end leaves such a \
         file: get it again"
    )]
    Empty {
        /// The file.
        file: PathBuf,
        /// What is empty: a layer, or a tensor.
        of: String,
        /// A tensor of it.
        tensor: String,
    },
    /// A drafter without training does not fit its target.
    #[error("`[evaluate] training_free`: {0}")]
    TrainingFree(Mismatch),
    /// A drafter's settings do not fit its target.
    #[error("`[drafter] {key}`: {mismatch}")]
    Drafter {
        /// The key.
        key: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// That a drafter's key needs something else than what is found.
    pub(crate) fn of_key(
        key: &'static str,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Drafter {
            key,
            mismatch: Mismatch::new(expected.into(), found),
        }
    }
}

/// Fails unless the value of a drafter's key is a number above 0.
pub(crate) fn above_zero(key: &'static str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::of_key(key, "a number above 0", value))
}
