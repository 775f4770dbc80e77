//! The prompts that servers are asked.

use spectrain_eval::PromptSet;
use spectrain_models::Sampling;

use super::served_model::Asking;

/// All prompts, and how they are to be continued.
pub(super) struct ServedPrompts<'a> {
    /// The dataset of each and its number there.
    pub(super) places: Vec<(&'a str, usize)>,
    /// The tokens of each; of a conversation of several turns those up to the first answer.
    pub(super) tokens: Vec<&'a [u32]>,
    /// Tokens of an answer, at most.
    pub(super) max_new_tokens: usize,
    /// Tokens at which an answer ends; without them it ends at its length alone.
    pub(super) stop: Option<Vec<u32>>,
}

impl<'a> ServedPrompts<'a> {
    /// Those of all datasets.
    pub(super) fn new(
        sets: &'a [PromptSet],
        max_new_tokens: usize,
        stop: Option<Vec<u32>>,
    ) -> Self {
        let all = || {
            sets.iter()
                .flat_map(|set| set.prompts.iter().enumerate().map(move |at| (set, at)))
        };
        Self {
            places: all()
                .map(|(set, (number, _))| (&set.name[..], number))
                .collect(),
            tokens: all().map(|(_, (_, prompt))| &prompt.tokens[..]).collect(),
            max_new_tokens,
            stop,
        }
    }

    /// How each is continued, with nothing in the server's cache of prompts.
    pub(super) fn asking(&self, sampling: Sampling) -> Asking<'_> {
        let unique: u128 = rand::random();
        Asking {
            sampling,
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.as_deref(),
            cache: format!("spectrain-{unique:032x}"),
        }
    }
}
