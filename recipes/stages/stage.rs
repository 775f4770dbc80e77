//! A step of a run.

use anyhow::Result;
use serde_json::Value;

use crate::recipe::resolved::ResolvedRecipe;
use crate::stages::context::StageContext;

/// A step of a run.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name and that of its folder.
    pub name: &'static str,
    /// Whether a recipe has this stage.
    pub wanted: fn(&ResolvedRecipe) -> bool,
    /// What of a recipe makes it exist, in words; nothing where every recipe has it.
    pub wanted_by: Option<&'static str>,
    /// Tables and keys of the recipe that it reads: if one changes, it runs again.
    pub reads: &'static [&'static str],
    /// Everything else that it reads.
    pub inputs: &'static [Input],
    /// What it does where it was interrupted.
    pub after_interruption: fn(&ResolvedRecipe) -> AfterInterruption,
    /// Whether what it has made is kept aside where it starts over, as it takes long to make and may be wanted again. Only of
    /// stages that go on.
    pub kept_aside: bool,
    /// Does it under its name, and returns what was done in numbers.
    pub run: fn(&StageContext, &'static str) -> Result<Value>,
}

/// What a stage does that was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterInterruption {
    /// It goes on from there.
    GoesOn,
    /// It takes what it has decoded, as far as that was by the same program on a machine of this kind.
    TakesWhatFits,
    /// It begins anew in an empty folder.
    StartsOver,
}

impl AfterInterruption {
    /// The same for people.
    pub fn told(self) -> &'static str {
        match self {
            Self::GoesOn => "goes on where it was interrupted",
            Self::TakesWhatFits => {
                "goes on with what this program has decoded on a machine like this one"
            }
            Self::StartsOver => "starts over after an interruption",
        }
    }
}

/// Something a stage reads besides the recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The target's configuration and weights.
    Target,
    /// The target's name, where the folder that is exported has it.
    TargetName,
    /// Configuration and weights of the targets in `evaluate.targets`.
    FurtherTargets,
    /// The target's tokenizer and chat template.
    Tokenizer,
    /// The conversations of `data.train`.
    GivenData,
    /// The conversations to train on: the given ones, or those that were answered anew.
    TrainData,
    /// The conversations to evaluate with.
    EvalData,
    /// The sets in `evaluate.prompts`, where some are named, and what makes them tokens.
    PromptSets,
    /// The recipe's chat template, where it has one.
    Template,
    /// The folders in `features.from` and `features.imported`.
    KnownFeatures,
    /// That answers are told by the loss masks of imported texts, where they are.
    AnswerMasks,
    /// The drafter that training starts from, where the recipe names one.
    Start,
    /// The language model of `drafter.model`, where training starts from it.
    Model,
    /// Which layers of the target the drafter reads: all that `[drafter]` says of features.
    CapturedLayers,
    /// The tokens at which the target stops.
    StopTokens,
    /// Where the target answers here: the tokens at which it stops, how it samples where `[regenerate]` does not say it, and the day that
    /// the chat template prints, if it prints one.
    OwnDecoding,
    /// Stored features of the samples to train on and of held-out ones, as far as they were made elsewhere.
    Features,
    /// The target's stored answers to held-out prompts, where it is not here itself.
    Answers(Temperatures),
    /// A file or folder that an earlier stage left, by its path within the run; not there if that stage is not wanted.
    Output(&'static str),
    /// The drafter of the training stage before this one, where there is one.
    Before,
    /// The drafter of the last training stage.
    Trained,
    /// The drafter that engines load, whatever an evaluation wrote into its folder.
    Exported,
}

/// The keys that say which model the target is.
const TARGET: &[&str] = &["target.model", "target.revision"];
/// The keys that say which conversations are trained on.
const GIVEN: &[&str] = &["data.train", "data.preset"];

impl Input {
    /// Tables and keys of the recipe that say what it is, or whether there is one: its contents tell whether it has changed.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Target | Self::TargetName | Self::Tokenizer | Self::StopTokens => TARGET,
            Self::FurtherTargets => &["evaluate.targets"],
            Self::GivenData | Self::TrainData => GIVEN,
            Self::EvalData => &["data.eval"],
            Self::PromptSets => &["evaluate.prompts"],
            Self::Template => &["data.template"],
            Self::KnownFeatures => &["features.from", "features.imported"],
            Self::Start => &["start"],
            Self::Model => &["drafter.model", "drafter.revision"],
            Self::CapturedLayers => &["drafter"],
            Self::OwnDecoding => &[
                "target.model",
                "target.revision",
                "data.template",
                "data.date",
            ],
            // What other stages left, which read what it goes by, and what the settings of the stage itself say.
            Self::AnswerMasks
            | Self::Features
            | Self::Answers(_)
            | Self::Output(_)
            | Self::Before
            | Self::Trained
            | Self::Exported => &[],
        }
    }
}

/// The temperatures of stored answers that a stage reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temperatures {
    /// 0, at which validations count, where answers were written at it and are not written anew for an evaluation.
    Validated,
    /// The first of the evaluation.
    First,
    /// Those of the evaluation.
    All,
}
