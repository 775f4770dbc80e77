//! Prompts as a decoder asks for them: conversations whose later turns wait for the answers to the earlier ones.
use std::collections::VecDeque;

use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::answered::said;
use spectrain_data::seed::mix;
use spectrain_models::DraftShape;

use crate::error::{Error, Result};
use crate::evaluate::journal::Journal;
use crate::evaluate::settings::EvaluateSettings;
use crate::prompts::{Answer, PromptSet, conversations};
use crate::speculate::queue::{PromptQueue, Queued};
use crate::speculate::{Decoder, Generation};

/// How all prompts are continued once.
pub(super) struct Round<'a> {
    /// Asked whether to stop; who decodes may read other hidden states.
    pub(super) decoder: &'a Decoder<'a>,
    pub(super) settings: &'a EvaluateSettings,
    /// Tokens of the longest prompt after which the target has room for one more.
    pub(super) longest: usize,
    pub(super) seed: u64,
    /// What is drafted.
    pub(super) shape: &'a DraftShape,
    /// Where answers are kept, and those are that were given before.
    pub(super) journal: Option<&'a mut Journal>,
}

/// All conversations of some sets. Each turn has draws of its own, whatever is decoded beside it.
pub(super) struct Talks<'a> {
    round: Round<'a>,
    /// How many sets there are.
    sets: usize,
    talks: Vec<Talk<'a>>,
    /// Those with a turn that is to be decoded.
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
    /// The turn that is being answered, or is the next one to be.
    asked: Vec<u32>,
    said: Vec<Vec<u32>>,
    answers: Vec<Answer>,
}

impl Talk<'_> {
    /// The seed of the draws for the turn that is being answered, in a round with this seed.
    fn draws(&self, seed: u64) -> u64 {
        mix(seed, (self.before + self.said.len()) as u64)
    }

    /// What the answer to that turn depends on.
    fn identity(&self, seed: u64, shape: &DraftShape) -> String {
        format!("answer {} {shape:?} {:?}", self.draws(seed), self.asked)
    }
}

impl<'a> Talks<'a> {
    /// The turns that `same` was asked, or each with the answers to those before it. None can be decoded before these have
    /// [caught up](Self::catch_up).
    pub(super) fn new(
        sets: &'a [PromptSet],
        same: Option<&[Vec<Answer>]>,
        round: Round<'a>,
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
            round,
            sets: sets.len(),
            ready: VecDeque::new(),
            talks,
            done,
        }
    }

    /// Goes past what was answered before the evaluation was interrupted. Whether anything is left to decode.
    pub(super) fn catch_up(&mut self) -> Result<bool> {
        for ticket in 0..self.talks.len() {
            if self.is_left(ticket)? {
                self.ready.push_back(ticket);
            }
        }
        Ok(!self.ready.is_empty())
    }

    /// All answers, one list for each set.
    pub(super) fn answers(self) -> Vec<Vec<Answer>> {
        let mut answers = vec![Vec::new(); self.sets];
        for talk in self.talks {
            answers[talk.number].extend(talk.answers);
        }
        answers
    }

    /// Whether a turn of a conversation is left to decode, which is the one that is asked next: goes past those that were answered
    /// before.
    fn is_left(&mut self, ticket: usize) -> Result<bool> {
        loop {
            let asks = self.ask(ticket);
            if !asks.map_err(|error| self.blame(ticket, error))? {
                return Ok(false);
            }
            let Some(generation) = self.kept(ticket)? else {
                return Ok(true);
            };
            self.add(ticket, generation);
        }
    }

    /// Asks the next turn of a conversation. Whether there is one.
    fn ask(&mut self, ticket: usize) -> Result<bool> {
        let talk = &mut self.talks[ticket];
        let prompt = &talk.set.prompts[talk.place];
        let turn = talk.said.len();
        let asked = match &talk.same {
            Some(same) => same.get(turn).cloned(),
            None => prompt.next(&talk.said, self.round.longest)?,
        };
        let Some(asked) = asked else {
            // A turn that the target's context has no room for is not asked, nor is what follows it.
            (turn..prompt.turns()).for_each(|_| (self.done)(&talk.set.name));
            return Ok(false);
        };
        talk.asked = asked;
        Ok(true)
    }

    /// The answer to the turn that is being answered, where it was given before.
    fn kept(&mut self, ticket: usize) -> Result<Option<Generation>> {
        let Some(journal) = &mut self.round.journal else {
            return Ok(None);
        };
        self.round.decoder.check_interrupted()?;
        let talk = &self.talks[ticket];
        journal.take_output(&talk.identity(self.round.seed, self.round.shape))
    }

    /// Adds the answer to that turn to its conversation.
    fn add(&mut self, ticket: usize, generation: Generation) {
        let talk = &mut self.talks[ticket];
        let turn = talk.said.len();
        let said = said(&generation.tokens, &self.round.settings.stop);
        talk.said.push(said.to_vec());
        talk.answers.push(Answer {
            conversation: talk.place,
            turn,
            prompt: std::mem::take(&mut talk.asked),
            generation,
        });
        (self.done)(&talk.set.name);
    }
}

impl PromptQueue for Talks<'_> {
    fn next(&mut self) -> Result<Option<Queued>> {
        let next = self.ready.pop_front();
        Ok(next.map(|ticket| Queued {
            ticket,
            prompt: self.talks[ticket].asked.clone(),
            rng: StdRng::seed_from_u64(self.talks[ticket].draws(self.round.seed)),
        }))
    }

    fn answered(&mut self, ticket: usize, generation: Generation) -> Result<()> {
        if let Some(journal) = &mut self.round.journal {
            let talk = &self.talks[ticket];
            let of = talk.identity(self.round.seed, self.round.shape);
            journal.keep(&of, &generation)?;
        }
        self.add(ticket, generation);
        if self.is_left(ticket)? {
            // A conversation goes on before another one begins.
            self.ready.push_front(ticket);
        }
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
