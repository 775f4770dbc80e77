//! All prompts once, one conversation after the other, and the test of what was sampled.
use std::time::Instant;

use rand::{RngExt as _, SeedableRng, rngs::StdRng};
use spectrain_data::seed::mix;
use spectrain_models::{DraftShape, Proposer, Sampling};

use crate::error::Result;
use crate::estimate::report::{Compared, EstimateReport};
use crate::estimate::text::OwnText;
use crate::estimate::{Estimable, estimate};
use crate::evaluate::contender::{Contender, rounds};
use crate::evaluate::settings::{EvaluateProgress, EvaluateSettings, Warm};
use crate::evaluate::talks::{Talks, WarmUp};
use crate::prompts::{Answer, Prompt, PromptSet, conversations};
use crate::reliability::CalibrationReport;
use crate::sampling_test::{SamplingReport, SamplingTest};
use crate::speculate::queue::PromptQueue;
use crate::speculate::{DecodeSettings, Decoder};
use crate::verify::Verifier;

/// Tokens that the test of sampled output wants, and how often it continues each prompt for them at most. With so many it finds
/// a shift of three hundredths of the probability.
const TESTED_TOKENS: usize = 2000;
const MOST_ROUNDS: usize = 4;

/// Continues the prompts of a queue.
type Decode<'a> = dyn FnMut(&mut dyn PromptQueue, Warm) -> Result<()> + 'a;

/// Continues all prompts, one round after the other, and tells the caller how far that is.
pub(super) struct Rounds<'a> {
    sets: &'a [PromptSet],
    settings: &'a EvaluateSettings,
    /// Rounds that have drawn: each has generators of its own, so that what they find is independent.
    seeds: u64,
    done: usize,
    total: usize,
    /// Tokens of the longest prompt after which the target has room for one more.
    longest: usize,
    progress: &'a mut dyn FnMut(EvaluateProgress),
}

impl<'a> Rounds<'a> {
    /// None yet, of a target that `decoder` decodes with.
    pub(super) fn new(
        decoder: &Decoder,
        contenders: &[Contender],
        sets: &'a [PromptSet],
        settings: &'a EvaluateSettings,
        progress: &'a mut dyn FnMut(EvaluateProgress),
    ) -> Self {
        let prompts = sets.iter().flat_map(|set| &set.prompts);
        let rounds = rounds(contenders, &settings.samplings, settings.baseline);
        Self {
            sets,
            settings,
            seeds: 0,
            done: 0,
            total: rounds * prompts.map(Prompt::turns).sum::<usize>(),
            longest: decoder.target.spec().max_positions.saturating_sub(1),
            progress,
        }
    }

    /// What is continued.
    pub(super) fn sets(&self) -> &'a [PromptSet] {
        self.sets
    }

    /// Every prompt once, without drafts.
    pub(super) fn plain(
        &mut self,
        decoder: &Decoder,
        sampling: &Sampling,
    ) -> Result<Vec<Vec<Answer>>> {
        let settings = self.settings;
        let mut decode = |queue: &mut dyn PromptQueue, warm| {
            let draft = &DraftShape::Chain { length: 0 };
            let decode = settings.decode(sampling, draft, warm);
            decoder.plain_queued(settings.batch_size, queue, &decode)
        };
        self.run(&mut decode, None)
    }

    /// Every prompt once, after some that are not kept: the turns that `same` was asked, or each with the answers to those
    /// before it.
    pub(super) fn run(
        &mut self,
        decode: &mut Decode,
        same: Option<&[Vec<Answer>]>,
    ) -> Result<Vec<Vec<Answer>>> {
        decode(&mut WarmUp::new(self.sets, self.settings), Warm::Up)?;
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        let (sets, settings, longest) = (self.sets, self.settings, self.longest);
        let mut done = |dataset: &str| {
            self.done += 1;
            self.tell(dataset, "");
        };
        let mut talks = Talks::new(sets, same, (settings, longest, seed), &mut done);
        decode(&mut talks, Warm::Already)?;
        Ok(talks.answers())
    }

    /// What the same outputs say of the drafter without decoding: its acceptance, and how it knows itself; nothing where that
    /// cannot be said.
    pub(super) fn estimates(
        &mut self,
        decoder: &Decoder,
        proposer: &dyn Proposer,
        outputs: &[Vec<Answer>],
        draft: Option<Estimable>,
    ) -> Result<(Option<EstimateReport>, Option<CalibrationReport>)> {
        let Some(draft) = draft.filter(|_| proposer.follows_text()) else {
            return Ok((None, None));
        };
        let (sets, longest) = (self.sets, self.settings.max_new_tokens);
        let clock = Instant::now();
        let all = outputs.iter().map(Vec::len).sum::<usize>();
        let (mut found, mut seen) = (Vec::new(), 0);
        for (set, answers) in sets.iter().zip(outputs) {
            for turns in conversations(answers) {
                let mut compared = Compared::default();
                for turn in turns {
                    decoder.check_interrupted()?;
                    seen += 1;
                    let (prompt, tokens) = (&turn.prompt, &turn.generation.tokens);
                    let text =
                        OwnText::read(decoder.target, decoder.capture, prompt, tokens, longest);
                    let Some(text) = text else { continue };
                    let estimate = estimate(proposer, &text, &draft);
                    let estimate = estimate.map_err(|error| error.at(&set.name, turn.conversation));
                    compared.add(&turn.generation.passes, &estimate?);
                    let what = format!("computing acceptance without decoding: {seen} of {all}");
                    self.tell(&set.name, &what);
                }
                found.push(compared);
            }
        }
        let seconds = clock.elapsed().as_secs_f64();
        let seed = self.settings.seed;
        let calibration = Compared::calibration(&found, seed);
        Ok((EstimateReport::of(&found, seconds, seed), calibration))
    }

    /// Tells the caller how far it is.
    pub(super) fn tell(&mut self, dataset: &str, what: &str) {
        (self.progress)(EvaluateProgress {
            done: self.done,
            total: self.total,
            dataset,
            what,
        });
    }

    /// Whether sampled outputs, drawn anew, follow the target's distribution: after as many of the prompts of
    /// `outputs` as it takes for enough tokens that the target is unsure of.
    pub(super) fn test(
        &mut self,
        mut test: SamplingTest,
        outputs: &[Vec<Answer>],
        (decoder, proposer, verifier): (&Decoder, &mut dyn Proposer, &dyn Verifier),
        decode: &DecodeSettings,
    ) -> Result<SamplingReport> {
        let sets = self.sets;
        let most = MOST_ROUNDS * outputs.iter().map(Vec::len).sum::<usize>();
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        let places = sets.iter().zip(outputs);
        let places = places.flat_map(|(set, answers)| answers.iter().map(move |at| (set, at)));
        for (number, (set, answer)) in places.cycle().take(most).enumerate() {
            let mut rng = StdRng::seed_from_u64(mix(seed, number as u64));
            let proposer: &mut dyn Proposer = &mut *proposer;
            let by = (decoder, proposer, verifier);
            add_output(&mut test, by, &answer.prompt, decode, &mut rng)
                .map_err(|error| error.at(&set.name, answer.conversation))?;
            let found = test.tokens();
            self.tell(
                &set.name,
                &format!("testing the distribution: {found} of {TESTED_TOKENS} tokens"),
            );
            if found >= TESTED_TOKENS {
                break;
            }
        }
        Ok(test.report())
    }
}

/// Adds an output of the drafter to a test.
fn add_output(
    test: &mut SamplingTest,
    (decoder, proposer, verifier): (&Decoder, &mut dyn Proposer, &dyn Verifier),
    prompt: &[u32],
    decode: &DecodeSettings,
    rng: &mut StdRng,
) -> Result<()> {
    let decode = DecodeSettings {
        shadow: Some(rng.random()),
        ..decode.clone()
    };
    let output = decoder.generate(proposer, verifier, prompt, &decode, rng)?;
    // Where a verifier looks ahead, which draft a token belongs to is not settled before it is drawn.
    let shadows = if verifier.decides_in_order() {
        &output.shadows[..]
    } else {
        &[]
    };
    test.add(decoder.target, prompt, &output.tokens, shadows)
}
