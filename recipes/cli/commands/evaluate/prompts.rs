//! The prompts that servers are asked.

use std::sync::Arc;

use spectrain_eval::{Prompt, PromptSet};
use spectrain_models::Sampling;

use super::served_model::Asking;

/// All prompts, and how they are to be continued.
pub(super) struct ServedPrompts {
    /// The dataset of each conversation and its number there.
    pub(super) places: Vec<(String, usize)>,
    /// The conversations, most of which have one turn.
    pub(super) talks: Arc<[Prompt]>,
    /// Tokens of an answer, at most.
    pub(super) max_new_tokens: usize,
    /// Tokens at which an answer ends; without them it ends at its length alone.
    pub(super) stop: Option<Vec<u32>>,
}

impl ServedPrompts {
    /// Those of all datasets.
    pub(super) fn new(sets: &[PromptSet], max_new_tokens: usize, stop: Option<Vec<u32>>) -> Self {
        let places = |set: &PromptSet| {
            let name = set.name.clone();
            (0..set.prompts.len()).map(move |number| (name.clone(), number))
        };
        Self {
            places: sets.iter().flat_map(places).collect(),
            talks: sets.iter().flat_map(|set| &set.prompts).cloned().collect(),
            max_new_tokens,
            stop,
        }
    }

    /// Turns of all conversations.
    pub(super) fn turns(&self) -> usize {
        self.talks.iter().map(Prompt::turns).sum()
    }

    /// How each is continued, with nothing in the server's cache of prompts.
    pub(super) fn asking(&self, sampling: Sampling) -> Asking {
        let unique: u128 = rand::random();
        Asking {
            sampling,
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
            cache: format!("spectrain-{unique:032x}"),
        }
    }
}
