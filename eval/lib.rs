//! The speculative decoder, verification, acceptance statistics and reports.
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod best;
mod bootstrap;
mod by_dataset;
mod calibrate;
mod chi_square;
mod chosen;
mod compare;
mod cost;
mod counts;
mod csv;
mod curves;
mod deploy;
mod draft;
mod draw;
mod error;
mod estimate;
mod evaluate;
mod greedy_test;
mod groups;
mod html;
mod interval;
mod opinions;
mod paired;
mod picture;
mod prompts;
mod reliability;
mod report;
mod sample;
mod sampling_test;
pub mod served;
mod speculate;
mod spread;
mod statistics;
mod summary;
mod sweep;
mod texts;
mod token_class;
#[cfg(test)]
mod toy;
mod tune;
mod verify;

pub use bootstrap::bootstrap;
pub use by_dataset::by_dataset;
pub use calibrate::{RankTable, measure};
pub use chi_square::ChiSquare;
pub use compare::compare;
pub use counts::Counts;
pub use csv::{csv, paired_csv};
pub use curves::{Curves, ValidationPoint};
pub use deploy::report::{BestDraft, CandidateReport, CostSource, Over, Recommendation};
pub use deploy::servers::{DraftCost, of_servers};
pub use draft::{
    Calibration, ChainTokens, DraftChoice, DraftReport, MeasuredOn, Reach, Threshold, TunedReport,
    drafted,
};
pub use error::{Error, Result};
pub use estimate::report::EstimateReport;
pub use estimate::text::{Judges, OwnText};
pub use estimate::{Estimable, Estimate, estimate};
pub use evaluate::contender::Contender;
pub use evaluate::journal::Journal;
pub use evaluate::settings::{CalibrationPrompts, EvaluateProgress, EvaluateSettings};
pub use evaluate::{Evaluation, evaluate, evaluate_all};
pub use greedy_test::{Comparison, Difference, Place};
pub use groups::{GroupReport, Groups, Thinking};
pub use html::{page, page_with_curves};
pub use opinions::TrainedReport;
pub use paired::difference::{PairedReport, PairedVerdict};
pub use paired::parts::paired_parts;
pub use paired::{PairedReports, paired};
pub use picture::picture;
pub use prompts::{Answer, Later, Prompt, PromptSet, evenly};
pub use reliability::{CalibrationReport, Reliability, ReliabilityBin, ReliabilityReport};
pub use report::ends::EndsReport;
pub use report::words::NOTHING_ACCEPTED;
pub use report::{
    ChoosingPrompts, DatasetReport, DrafterReport, KnownPrompts, LosslessReport, Report,
    SecondsReport, SettingReport, Speedup, TargetReport,
};
pub use sample::report::{SamplePass, SampleReport};
pub use sample::{Sample, samples};
pub use sampling_test::{SamplingReport, TupleReport};
pub use speculate::{DecodeSettings, Decoder, Desk, Generation, Orders, PassRecord, Seconds};
pub use spread::SpreadReport;
pub use statistics::Acceptance;
pub use summary::summary;
pub use sweep::sweep;
pub use sweep::table::{SeedTau, Sweep, SweepDifference, SweepRow, SweepTable};
pub use sweep::variation::{TrainedSeed, Variation};
pub use texts::own::{ENOUGH, LEAST_LIKELIEST};
pub use texts::own_check::{OwnCheck, OwnFigures};
pub use texts::report::TextsReport;
pub use texts::{TextSettings, Texts};
pub use token_class::{ClassReport, TokenClass, TokenClasses};
pub use verify::{Block, Greedy, Rejection, TypicalLossy, Verdict, Verifier, VerifierChoice};
