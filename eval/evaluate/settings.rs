//! How a drafter is evaluated.
use spectrain_models::{DraftShape, Sampling};

use crate::draft::{DraftChoice, MeasuredOn};
use crate::groups::Thinking;
use crate::prompts::{PromptSet, evenly};
use crate::report::ends::EndsReport;
use crate::speculate::DecodeSettings;
use crate::token_class::TokenClasses;
use crate::verify::VerifierChoice;

/// Tokens decoded before anything is measured, in which a device compiles and tunes its kernels.
const WARM_UP: usize = 16;

/// How a drafter is evaluated: with every draft at every sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluateSettings {
    /// How tokens are chosen.
    pub samplings: Vec<Sampling>,
    /// What is drafted.
    pub drafts: Vec<DraftChoice>,
    /// What calibrated trees and tuned thresholds are found on.
    pub calibration: CalibrationPrompts,
    /// Sequences decoded at a time, at least 1, with a drafter and without; of fewer conversations all of them.
    pub batch_size: usize,
    /// Tokens after which an output ends.
    pub max_new_tokens: usize,
    /// Tokens that end an output.
    pub stop: Vec<u32>,
    /// The tokens around what the target thinks, where its tokenizer has them.
    pub thinking: Option<Thinking>,
    /// What kind of token each is, where acceptance is wanted by it.
    pub classes: Option<TokenClasses>,
    /// What decides.
    pub verifier: VerifierChoice,
    /// Whether the prompts are also continued without a drafter, for the speed-up and the greedy comparison, and sampled
    /// outputs are tested against the target's distribution.
    pub baseline: bool,
    /// Seed of sampling and of the intervals. Each prompt of each setting has a generator of its own.
    pub seed: u64,
}

/// Prompts to calibrate trees and tune thresholds on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CalibrationPrompts {
    /// Tokens of each prompt that there is.
    pub prompts: Vec<Vec<u32>>,
    /// Which prompts these are.
    pub measured_on: MeasuredOn,
}

impl CalibrationPrompts {
    /// Those that a draft is found on which asks for `count`, whatever others ask for: that many at most, spread evenly.
    pub fn of(&self, count: usize) -> Vec<Vec<u32>> {
        let prompts = evenly(self.prompts.iter().collect(), count);
        prompts.into_iter().cloned().collect()
    }
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluateProgress<'a> {
    /// Outputs decoded, of which each setting has one for each turn.
    pub done: usize,
    /// All outputs that will be decoded: the same from the beginning on.
    pub total: usize,
    /// The dataset of the last output; empty where what is done is of none.
    pub dataset: &'a str,
    /// What is done beside decoding outputs, and how far that is; empty while decoding.
    pub what: &'a str,
}

/// Whether the device has seen this kind of work before.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Warm {
    Up,
    Already,
}

impl EvaluateSettings {
    /// The same with no more sequences at a time than there are conversations: a batch is never larger.
    pub(super) fn filled_by(&self, sets: &[PromptSet]) -> Self {
        let conversations = sets.iter().map(|set| set.prompts.len()).sum();
        Self {
            batch_size: self.batch_size.min(conversations),
            ..self.clone()
        }
    }

    /// Where outputs end.
    pub(crate) fn ends(&self) -> EndsReport {
        EndsReport {
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
        }
    }

    pub(crate) fn decode(
        &self,
        sampling: &Sampling,
        draft: &DraftShape,
        warm: Warm,
    ) -> DecodeSettings {
        DecodeSettings {
            max_new_tokens: match warm {
                Warm::Up => self.max_new_tokens.min(WARM_UP),
                Warm::Already => self.max_new_tokens,
            },
            draft: draft.clone(),
            sampling: *sampling,
            stop: self.stop.clone(),
            shadow: None,
        }
    }
}
