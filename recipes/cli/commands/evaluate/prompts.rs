//! The prompts that servers are asked.

use std::sync::Arc;

use spectrain_eval::served::asked::AskedReport;
use spectrain_eval::{Prompt, PromptSet};
use spectrain_models::Sampling;

use super::served_model::Asking;

/// All prompts, and how they are to be continued.
pub(super) struct ServedPrompts {
    /// The dataset of each conversation and its number there.
    pub(super) places: Vec<(String, usize)>,
    /// The conversations, most of which have one turn.
    pub(super) talks: Arc<[Prompt]>,
    /// What a report says of them, and where answers end.
    pub(super) asked: AskedReport,
}

impl ServedPrompts {
    /// Those of all datasets. Answers have at most so many tokens and end at one of `stop`, without which they end at their
    /// length alone.
    pub(super) fn new(sets: &[PromptSet], max_new_tokens: usize, stop: Vec<u32>) -> Self {
        let places = |set: &PromptSet| {
            let name = set.name.clone();
            (0..set.prompts.len()).map(move |number| (name.clone(), number))
        };
        Self {
            places: sets.iter().flat_map(places).collect(),
            talks: sets.iter().flat_map(|set| &set.prompts).cloned().collect(),
            asked: AskedReport::new(sets, max_new_tokens, stop),
        }
    }

    /// Turns of all conversations.
    pub(super) fn turns(&self) -> usize {
        self.talks.iter().map(Prompt::turns).sum()
    }

    /// How each is continued, with nothing in the server's cache of prompts.
    pub(super) fn asking(&self, sampling: Sampling) -> Asking {
        let unique: u128 = rand::random();
        let stop = self.asked.stop.clone();
        Asking {
            sampling,
            max_new_tokens: self.asked.max_new_tokens,
            stop: Some(stop).filter(|stop| !stop.is_empty()),
            cache: format!("spectrain-{unique:032x}"),
        }
    }
}
