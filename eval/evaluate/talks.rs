//! Prompts as a decoder asks for them: conversations whose later turns wait for the answers to the earlier ones.
use std::collections::VecDeque;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::seed::mix;

use crate::error::{Error, Result};
use crate::evaluate::settings::EvaluateSettings;
use crate::prompts::{Answer, PromptSet, conversations, said};
use crate::speculate::Generation;
use crate::speculate::queue::{PromptQueue, Queued};

/// All conversations of some sets. Each turn has draws of its own, whatever is decoded beside it.
pub(super) struct Talks<'a> {
    settings: &'a EvaluateSettings,
    /// Tokens of the longest prompt after which the target has room for one more.
    longest: usize,
    seed: u64,
    /// How many sets there are.
    sets: usize,
    talks: Vec<Talk<'a>>,
    /// Those whose next turn can be asked.
    ready: VecDeque<usize>,
    /// Called with its dataset for each turn that is answered or left out.
    done: &'a mut dyn FnMut(&str),
}

/// One conversation.
struct Talk<'a> {
    set: &'a PromptSet,
    /// The set's place.
    number: usize,
    /// The place in the set.
    place: usize,
    /// Turns of all conversations before it.
    before: usize,
    /// What others were asked in its place, if it is to be asked the same.
    same: Option<Vec<Vec<u32>>>,
    /// The turn that is being answered.
    asked: Vec<u32>,
    said: Vec<Vec<u32>>,
    answers: Vec<Answer>,
}

impl<'a> Talks<'a> {
    /// The turns that `same` was asked, or each with the answers to those before it.
    pub(super) fn new(
        sets: &'a [PromptSet],
        same: Option<&[Vec<Answer>]>,
        (settings, longest, seed): (&'a EvaluateSettings, usize, u64),
        done: &'a mut dyn FnMut(&str),
    ) -> Self {
        let mut talks = Vec::new();
        let mut before = 0;
        for (number, set) in sets.iter().enumerate() {
            let mut same = same.map(|same| conversations(&same[number]));
            for (place, prompt) in set.prompts.iter().enumerate() {
                let same = same.as_mut().map(|same| {
                    let turns = same.next().unwrap_or_default().iter();
                    turns.map(|turn| turn.prompt.clone()).collect()
                });
                talks.push(Talk {
                    set,
                    number,
                    place,
                    before,
                    same,
                    asked: Vec::new(),
                    said: Vec::new(),
                    answers: Vec::new(),
                });
                before += prompt.turns();
            }
        }
        Self {
            settings,
            longest,
            seed,
            sets: sets.len(),
            ready: (0..talks.len()).collect(),
            talks,
            done,
        }
    }

    /// All answers, one list for each set.
    pub(super) fn answers(self) -> Vec<Vec<Answer>> {
        let mut answers = vec![Vec::new(); self.sets];
        for talk in self.talks {
            answers[talk.number].extend(talk.answers);
        }
        answers
    }

    /// The next turn of a conversation; none where it ends.
    fn turn(&mut self, ticket: usize) -> Result<Option<Vec<u32>>> {
        let talk = &mut self.talks[ticket];
        let prompt = &talk.set.prompts[talk.place];
        let turn = talk.said.len();
        let asked = match &talk.same {
            Some(same) => same.get(turn).cloned(),
            None => prompt.next(&talk.said, self.longest)?,
        };
        match &asked {
            Some(asked) => talk.asked.clone_from(asked),
            // A turn that the target's context has no room for is not asked, nor is what follows it.
            None => (turn..prompt.turns()).for_each(|_| (self.done)(&talk.set.name)),
        }
        Ok(asked)
    }
}

impl PromptQueue for Talks<'_> {
    fn next(&mut self) -> Result<Option<Queued>> {
        while let Some(ticket) = self.ready.pop_front() {
            let turn = self.turn(ticket);
            if let Some(prompt) = turn.map_err(|error| self.blame(ticket, error))? {
                let talk = &self.talks[ticket];
                let index = (talk.before + talk.said.len()) as u64;
                return Ok(Some(Queued {
                    ticket,
                    prompt,
                    rng: StdRng::seed_from_u64(mix(self.seed, index)),
                }));
            }
        }
        Ok(None)
    }

    fn answered(&mut self, ticket: usize, generation: Generation) -> Result<()> {
        let talk = &mut self.talks[ticket];
        let turn = talk.said.len();
        talk.said
            .push(said(&generation.tokens, &self.settings.stop));
        talk.answers.push(Answer {
            conversation: talk.place,
            turn,
            prompt: std::mem::take(&mut talk.asked),
            generation,
        });
        (self.done)(&talk.set.name);
        // A conversation goes on before another one begins.
        self.ready.push_front(ticket);
        Ok(())
    }

    fn blame(&self, ticket: usize, error: Error) -> Error {
        let talk = &self.talks[ticket];
        error.at(&talk.set.name, talk.place)
    }
}

/// The first prompts, as many as are decoded at a time, in which a device compiles and tunes its kernels.
pub(super) struct WarmUp<'a> {
    seed: u64,
    prompts: Vec<(&'a PromptSet, usize)>,
    next: usize,
}

impl<'a> WarmUp<'a> {
    pub(super) fn new(sets: &'a [PromptSet], settings: &EvaluateSettings) -> Self {
        let places = |set: &'a PromptSet| (0..set.prompts.len()).map(move |place| (set, place));
        Self {
            seed: settings.seed,
            prompts: sets
                .iter()
                .flat_map(places)
                .take(settings.batch_size)
                .collect(),
            next: 0,
        }
    }
}

impl PromptQueue for WarmUp<'_> {
    fn next(&mut self) -> Result<Option<Queued>> {
        let Some((set, place)) = self.prompts.get(self.next) else {
            return Ok(None);
        };
        let ticket = self.next;
        self.next += 1;
        Ok(Some(Queued {
            ticket,
            prompt: set.prompts[*place].tokens.clone(),
            rng: StdRng::seed_from_u64(self.seed),
        }))
    }

    fn answered(&mut self, _: usize, _: Generation) -> Result<()> {
        Ok(())
    }

    fn blame(&self, ticket: usize, error: Error) -> Error {
        let (set, place) = self.prompts[ticket];
        error.at(&set.name, place)
    }
}
