//! What can go wrong between a conversation and a batch of tokens.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::near::if_missing;

use crate::json::{check, fault};
use crate::words::counted;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, where, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("`{}`: {source}{}", path.display(), if_missing(path, source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A row of a dataset is not one of the accepted shapes.
    #[error("{location}: {mismatch}")]
    Row {
        /// File and line or row.
        location: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// A row of a dataset is not JSON.
    #[error("{location} is not JSON: {fault}")]
    NotJson {
        /// File and line or row.
        location: String,
        /// What is wrong with it, and at which column.
        fault: String,
    },

    /// A row is a conversation, and there is no chat template to render it with.
    #[error(
        "{location}: a conversation needs a chat template, and the target has none: name a file with \
         `data.template = \"FILE\"` in a recipe or `--template FILE` behind `spectrain data`, or put \
         `chat_template.jinja` into the target's folder"
    )]
    NoTemplate {
        /// File and line or row.
        location: String,
    },

    /// A dataset without a single row, or a folder without a file that could hold one.
    #[error("`{}`: the dataset is empty: expected {expected}", path.display())]
    EmptyDataset {
        /// The file or folder.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },

    /// A dataset of the hub cannot be had, or has no such rows.
    #[error("`{address}`: {reason}")]
    HubData {
        /// As it was asked for.
        address: String,
        /// What was expected and found.
        reason: String,
    },

    /// A file of a dataset or model folder cannot be understood as a whole.
    #[error("`{}`: {mismatch}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// A row was read, but could not be turned into tokens.
    #[error("{location}: {source}")]
    At {
        /// File and line or row.
        location: String,
        /// What failed there.
        source: Box<Error>,
    },

    /// The tokenizer refused a text or a training corpus.
    #[error("tokenizer: {message}")]
    Tokenizer {
        /// What the tokenizer said.
        message: String,
    },

    /// The chat template does not compile.
    #[error("chat template line {line}: {message}")]
    TemplateSyntax {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },

    /// The chat template failed on a conversation, or refused it with `raise_exception`.
    #[error("chat template: {message}")]
    TemplateRender {
        /// What is wrong, or what the template says.
        message: String,
    },

    /// The chat template did not come to an end.
    #[error(
        "chat template: stopped after {limit} instructions: it loops without end on this conversation"
    )]
    TemplateEndless {
        /// How many instructions it was allowed.
        limit: u64,
    },

    /// The assistant's part of a conversation cannot be found in its rendering.
    #[error(
        "message {number} (assistant): its text cannot be located in the rendered conversation: {reason}; \
         a template with `{{% generation %}}` blocks says where it is",
        number = message + 1
    )]
    TurnNotFound {
        /// Index of the message, from 0.
        message: usize,
        /// What does not fit.
        reason: &'static str,
    },

    /// A token id that the target does not have.
    #[error(
        "{location}: token {token} is outside the target's vocabulary of {vocab}: the tokenizer is not the target's"
    )]
    TokenOutsideVocabulary {
        /// File and line or row.
        location: String,
        /// The first such token.
        token: u32,
        /// The target's vocabulary size.
        vocab: usize,
    },

    /// Preparation left nothing to train on.
    #[error("no sample is left of the {} read: {reasons}", counted(*read, "row"))]
    NothingKept {
        /// Rows read.
        read: u64,
        /// How many were left out, and why.
        reasons: String,
    },

    /// A dataset that has nothing to train on, whatever it is answered.
    #[error(
        "{data}: expected an answer that is trained on, found {} with {} that are only context, as their messages say (`weight`, \
         `train` or `training`)",
        counted(*rows, "row"),
        counted(*answers, "answer")
    )]
    NothingTrained {
        /// The dataset.
        data: String,
        /// Its rows.
        rows: u64,
        /// Their answers that are only context, those included that are still to be written in the places of such.
        answers: u64,
    },

    /// A dataset of which nothing can be kept for the evaluation.
    #[error(
        "no prompt can be held out for the evaluation: expected at least 2 different ones, found {prompts}; name prompts with `data.eval`"
    )]
    NothingToHoldOut {
        /// Different prompts.
        prompts: usize,
    },

    /// A shard or its index could not be written.
    #[error("could not write `{}`: {source}", path.display())]
    Write {
        /// The file under the name it would have got.
        path: PathBuf,
        /// What the operating system or the format said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A shard or its index could not be read.
    #[error("could not read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system or the format said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A shard or its index is not what was written: cut short, altered or of another version.
    #[error("`{}`: {what}: {mismatch}", path.display())]
    Altered {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// Stored features were computed from something else.
    #[error("`{}`: `{key}`: {mismatch}", path.display())]
    FeatureHeader {
        /// The index of the features.
        path: PathBuf,
        /// The first key that differs.
        key: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// Stored features whose computation has not come to its end.
    #[error("`{}`: the features are unfinished: they are of {} so far; the command that writes them goes on from there", folder.display(), counted(*samples, "sample"))]
    FeaturesUnfinished {
        /// Their folder.
        folder: PathBuf,
        /// Samples in finished shards.
        samples: u64,
    },

    /// A journal of answers to other conversations, or of answers that were asked for in another way.
    #[error("the journal `{}` is of other answers: `{key}`: {mismatch}", path.display())]
    OtherJournal {
        /// The journal.
        path: PathBuf,
        /// The first key that differs.
        key: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// A journal of these answers whose first line is damaged, as a digest in it tells.
    #[error("the first line of the journal `{}` is damaged, and the lines below it are not read without: expected `{expected}`", path.display())]
    AlteredJournal {
        /// The journal.
        path: PathBuf,
        /// The line, as it was written.
        expected: String,
    },

    /// A journal that another process writes to.
    #[error("the journal `{}` is in use by another process", path.display())]
    JournalInUse {
        /// The journal.
        path: PathBuf,
    },

    /// A file where answers are to be written, and no journal that says they were.
    #[error("`{}` is there already, and no journal beside it says that it holds regenerated answers", path.display())]
    ForeignOutput {
        /// The file.
        path: PathBuf,
    },

    /// Nothing was handed to a shard writer.
    #[error("`{}`: no sample to write", folder.display())]
    NoSamples {
        /// The folder that stays empty.
        folder: PathBuf,
    },

    /// The parts of a sample do not fit together.
    #[error("sample {sample}: {what}: {mismatch}")]
    Sample {
        /// Its number, from 0.
        sample: u64,
        /// The part.
        what: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },

    /// A packing without room for anything.
    #[error(
        "packing: expected at least one row of at least one token, found {} of {row_length}",
        counted(*rows as u64, "row")
    )]
    EmptyPacking {
        /// Rows of a batch.
        rows: usize,
        /// Tokens of a row.
        row_length: usize,
    },

    /// A draft vocabulary that the target's vocabulary or the counts do not allow.
    #[error("draft vocabulary: {what}: {mismatch}")]
    Vocabulary {
        /// What is wrong.
        what: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
}

impl Error {
    /// Whether it is one row that cannot be used, and others of its file may be.
    pub fn is_of_row(&self) -> bool {
        matches!(
            self,
            Self::Row { .. } | Self::NotJson { .. } | Self::At { .. }
        )
    }

    /// Whether it is a file that cannot be read, or not to its end.
    pub fn is_of_file(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::File { .. })
    }

    /// A row that cannot be read, of which `mismatch` says why if its text is JSON.
    pub(crate) fn row(location: impl Display, text: &str, mismatch: Mismatch) -> Self {
        let location = location.to_string();
        match check(text.trim()) {
            Ok(()) => Self::Row { location, mismatch },
            Err(error) => Self::NotJson {
                location,
                fault: fault(&error),
            },
        }
    }

    pub(crate) fn write(
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Write {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn read(
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Read {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn altered(
        path: &Path,
        what: &'static str,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Self::Altered {
            path: path.to_owned(),
            what,
            mismatch: Mismatch::new(expected, found),
        }
    }

    pub(crate) fn sample(
        sample: u64,
        what: &'static str,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Self::Sample {
            sample,
            what,
            mismatch: Mismatch::new(expected, found),
        }
    }

    pub(crate) fn vocabulary(
        what: impl Display,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Self::Vocabulary {
            what: what.to_string(),
            mismatch: Mismatch::new(expected, found),
        }
    }

    /// Wraps what failed in a row with where that stands.
    pub fn at(location: impl Display) -> impl FnOnce(Self) -> Self {
        move |source| Self::At {
            location: location.to_string(),
            source: Box::new(source),
        }
    }

    /// Wraps an operating-system error with the path it happened at.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }
}
