//! The speculative decoder, verification, acceptance statistics and reports.
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod bootstrap;
mod calibrate;
mod compare;
mod cost;
mod draft;
mod error;
mod evaluate;
mod lossless;
mod report;
mod speculate;
mod statistics;
#[cfg(test)]
mod toy;
mod verify;

pub use bootstrap::bootstrap;
pub use calibrate::{RankTable, measure};
pub use compare::compare;
pub use draft::{Calibration, DraftChoice, DraftReport, MeasuredOn};
pub use error::{Error, Result};
pub use evaluate::{
    CalibrationPrompts, EvaluateSettings, Evaluation, Progress, PromptSet, evaluate,
};
pub use lossless::{ChiSquare, Comparison, SamplingTest, chi_square, sampling_test};
pub use report::{
    DatasetReport, DrafterReport, LosslessReport, Report, SecondsReport, SettingReport, Speedup,
    TargetReport,
};
pub use speculate::{DecodeSettings, Decoder, Generation, PassRecord, Seconds};
pub use statistics::{Acceptance, expected_emitted, macro_tau};
pub use verify::{Block, Greedy, Rejection, TypicalLossy, Verdict, Verifier, VerifierChoice};
