use std::path::PathBuf;
use std::{fmt, io};

use spectrain_checkpoints::Mismatch;

/// What can go wrong when a drafter is run or judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be decoded with.
    #[error("`{key}`: {mismatch}")]
    Setting {
        /// The key.
        key: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A report that was judged on other prompts than the one that it is compared with.
    #[error("`baseline`: {mismatch}")]
    OtherPrompts {
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A prompt that the target cannot continue.
    #[error("prompt: {mismatch}")]
    Prompt {
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// Which prompt of a dataset failed.
    #[error("dataset `{dataset}`, prompt {prompt}: {source}")]
    At {
        /// The dataset.
        dataset: String,
        /// 0-based index of the prompt.
        prompt: usize,
        /// What failed there.
        source: Box<Error>,
    },
    /// A turn of a conversation that cannot be asked.
    #[error("turn {turn}: {source}")]
    Turn {
        /// The turn, from 1.
        turn: usize,
        /// What failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A draft that the verifier cannot judge, or that is no tree.
    #[error("verifier `{verifier}`: {mismatch}")]
    Draft {
        /// The verifier.
        verifier: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A draft deeper than the decoder asked for.
    #[error("draft: expected at most {requested} steps, found {found}")]
    DraftLength {
        /// Steps asked for.
        requested: usize,
        /// Steps drafted.
        found: usize,
    },
    /// A drafter whose logits are no distribution.
    #[error(
        "logits of the drafter: expected finite values, found not-a-number or infinity: its weights are broken, or too large"
    )]
    DraftLogits,
    /// Logits that are no distribution.
    #[error(
        "logits of row {row} of a target pass: expected finite values, found not-a-number or infinity"
    )]
    Logits {
        /// The row of the pass.
        row: usize,
    },
    /// What a server says, where it should say something else.
    #[error("{what}: {mismatch}")]
    Server {
        /// The place.
        what: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A server that ends an answer with a message.
    #[error("the server says: {0}")]
    Refused(String),
    /// Whoever asked for it asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The device failed, which is noticed when a result is read from it.
    #[error("reading from the device: {0}")]
    Device(String),
    /// A file of what an evaluation has found so far.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    Journal {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why that failed.
        source: io::Error,
    },
    /// A report that is not JSON, or not of the shape of schema 1.
    #[error("report: {0}")]
    Json(#[from] serde_json::Error),
    /// A report of a schema this version does not know.
    #[error("report: `schema`: {mismatch}")]
    Schema {
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
}

impl Error {
    /// That a report cannot be compared with another.
    pub(crate) fn unpaired(expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        Self::Setting {
            key: "baseline",
            mismatch: Mismatch::new(expected, found),
        }
    }

    /// The same error, of a prompt of a dataset.
    pub(crate) fn at(self, dataset: &str, prompt: usize) -> Self {
        Self::At {
            dataset: dataset.into(),
            prompt,
            source: Box::new(self),
        }
    }

    /// Whether it says no more than that whoever asked for it asked to stop.
    pub fn is_interruption(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::At { source, .. } => source.is_interruption(),
            _ => false,
        }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
