//! Where a batch takes its prompts from.
use rand::rngs::StdRng;

use super::generation::Generation;
use crate::error::{Error, Result};

/// A prompt to continue.
pub(crate) struct Queued {
    /// The number by which the queue knows it.
    pub(crate) ticket: usize,
    pub(crate) prompt: Vec<u32>,
    /// What draws its tokens.
    pub(crate) rng: StdRng,
}

/// Prompts for the places of a batch.
pub(crate) trait PromptQueue {
    /// The next prompt; none where there is none before one of those under way is answered.
    fn next(&mut self) -> Result<Option<Queued>>;

    /// Takes what was decoded after a prompt.
    fn answered(&mut self, ticket: usize, generation: Generation) -> Result<()>;

    /// The same error, of a prompt.
    fn blame(&self, ticket: usize, error: Error) -> Error;
}

/// Prompts one after the other, none of which waits for another.
pub(crate) struct Listed {
    prompts: std::vec::IntoIter<(Vec<u32>, StdRng)>,
    generations: Vec<Option<Generation>>,
}

impl Listed {
    pub(crate) fn new(prompts: Vec<(Vec<u32>, StdRng)>) -> Self {
        Self {
            prompts: prompts.into_iter(),
            generations: Vec::new(),
        }
    }

    /// What was decoded, in the order of the prompts.
    pub(crate) fn generations(self) -> Vec<Generation> {
        self.generations.into_iter().flatten().collect()
    }
}

impl PromptQueue for Listed {
    fn next(&mut self) -> Result<Option<Queued>> {
        let ticket = self.generations.len();
        let next = self.prompts.next().map(|(prompt, rng)| Queued {
            ticket,
            prompt,
            rng,
        });
        if next.is_some() {
            self.generations.push(None);
        }
        Ok(next)
    }

    fn answered(&mut self, ticket: usize, generation: Generation) -> Result<()> {
        self.generations[ticket] = Some(generation);
        Ok(())
    }

    fn blame(&self, _: usize, error: Error) -> Error {
        error
    }
}
