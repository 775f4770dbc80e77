//! All prompts once, one conversation after the other, and the test of what was sampled.
use std::time::Instant;

use rand::{RngExt as _, SeedableRng, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spectrain_data::seed::mix;
use spectrain_models::{DraftShape, Proposer, Sampling};

use crate::error::Result;
use crate::estimate::report::{Compared, EstimateReport};
use crate::estimate::text::{KnownTexts, OwnText};
use crate::estimate::{Estimable, Foreseen, foresee};
use crate::evaluate::contender::{Contender, rounds};
use crate::evaluate::journal::Journal;
use crate::evaluate::settings::{EvaluateProgress, EvaluateSettings, Warm};
use crate::evaluate::talks::{Round, Talks, WarmUp};
use crate::prompts::{Answer, Prompt, PromptSet, conversations};
use crate::reliability::CalibrationReport;
use crate::sampling_test::{SamplingReport, SamplingTest};
use crate::speculate::queue::PromptQueue;
use crate::speculate::{DecodeSettings, Decoder};
use crate::statistics::Acceptance;
use crate::verify::Verifier;

/// Tokens that the test of sampled output wants, and how often it continues each prompt for them at most. With so many it finds
/// a shift of three hundredths of the probability.
const TESTED_TOKENS: usize = 2000;
const MOST_ROUNDS: usize = 4;

/// What outputs say of a drafter without decoding; nothing where that cannot be said.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Estimates {
    /// Its acceptance.
    pub(super) report: Option<EstimateReport>,
    /// How it knows itself.
    pub(super) calibration: Option<CalibrationReport>,
    /// What shorter chains would take, from one token on: for each length the counts of each conversation; of chains alone, and with a
    /// baseline.
    pub(super) shorter: Vec<Vec<Acceptance>>,
}

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
    /// What the last drafts were estimated from.
    texts: KnownTexts,
    /// Has the target, and is asked whether to stop. Who decodes may read other hidden states.
    decoder: &'a Decoder<'a>,
    /// Where what is found is kept, if anybody may go on with it.
    journal: Option<&'a mut Journal>,
    progress: &'a mut dyn FnMut(EvaluateProgress),
}

impl<'a> Rounds<'a> {
    /// None yet, of a target that `decoder` decodes with.
    pub(super) fn new(
        decoder: &'a Decoder<'a>,
        contenders: &[Contender],
        sets: &'a [PromptSet],
        settings: &'a EvaluateSettings,
        mut journal: Option<&'a mut Journal>,
        progress: &'a mut dyn FnMut(EvaluateProgress),
    ) -> Self {
        if let Some(journal) = &mut journal {
            let drafted = contenders.iter().map(|of| (&of.name, &of.drafts));
            let asked = sets.iter().map(|set| (&set.name, set.sha256()));
            let (drafted, asked) = (Vec::from_iter(drafted), Vec::from_iter(asked));
            journal.depends_on(&format!("{settings:?} {drafted:?} {asked:?}"));
        }
        let prompts = sets.iter().flat_map(|set| &set.prompts);
        let rounds = rounds(contenders, &settings.samplings, settings.baseline);
        Self {
            sets,
            settings,
            seeds: 0,
            done: 0,
            total: rounds * prompts.map(Prompt::turns).sum::<usize>(),
            texts: KnownTexts::default(),
            decoder,
            journal,
            progress,
        }
    }

    /// What is continued.
    pub(super) fn sets(&self) -> &'a [PromptSet] {
        self.sets
    }

    /// What `make` finds of this round, unless it was found before the evaluation was interrupted.
    pub(super) fn once<T: Serialize + DeserializeOwned>(
        &mut self,
        what: &str,
        make: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let Some(journal) = &mut self.journal else {
            return make(self);
        };
        let of = format!("{what} {}", self.seeds);
        if let Some(found) = journal.take(&of)? {
            return Ok(found);
        }
        let found = make(self)?;
        if let Some(journal) = &mut self.journal {
            journal.keep(&of, &found)?;
        }
        Ok(found)
    }

    /// Every prompt once, without drafts.
    pub(super) fn plain(
        &mut self,
        decoder: &Decoder,
        sampling: &Sampling,
    ) -> Result<Vec<Vec<Answer>>> {
        let settings = self.settings;
        let shape = &DraftShape::Chain { length: 0 };
        let mut decode = |queue: &mut dyn PromptQueue, warm| {
            let decode = settings.decode(sampling, shape, warm);
            decoder.plain_queued(settings.batch_size, queue, &decode)
        };
        self.run(&mut decode, shape, None)
    }

    /// Every prompt once with drafts of this shape: the turns that `same` was asked, or each with the answers to those before it.
    /// What was answered before the evaluation was interrupted is not decoded again.
    pub(super) fn run(
        &mut self,
        decode: &mut Decode,
        shape: &DraftShape,
        same: Option<&[Vec<Answer>]>,
    ) -> Result<Vec<Vec<Answer>>> {
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        let (sets, settings, decoder) = (self.sets, self.settings, self.decoder);
        // Lent to the talks, as who hears of them has the rest.
        let mut journal = self.journal.take();
        let mut done = |dataset: &str| {
            self.done += 1;
            self.tell(dataset, "");
        };
        let round = Round {
            decoder,
            settings,
            longest: decoder.target.spec().max_positions.saturating_sub(1),
            seed,
            shape,
            journal: journal.as_deref_mut(),
        };
        let mut talks = Talks::new(sets, same, round, &mut done);
        let decoded = decode_rest(&mut talks, WarmUp::new(sets, settings), decode);
        let answers = talks.answers();
        self.journal = journal;
        decoded.map(|()| answers)
    }

    /// What the same outputs say of the drafter without decoding.
    pub(super) fn estimates(
        &mut self,
        decoder: &Decoder,
        proposer: &dyn Proposer,
        outputs: &[Vec<Answer>],
        draft: Option<Estimable>,
    ) -> Result<Estimates> {
        let Some(draft) = draft.filter(|_| proposer.follows_text()) else {
            return Ok(Estimates::default());
        };
        self.once("estimates", |rounds| {
            rounds.estimated(decoder, proposer, outputs, &draft)
        })
    }

    fn estimated(
        &mut self,
        decoder: &Decoder,
        proposer: &dyn Proposer,
        outputs: &[Vec<Answer>],
        draft: &Estimable,
    ) -> Result<Estimates> {
        // Read where passes are timed, which takes plain decoding.
        let shorter = match self.settings.baseline {
            true => draft.shorter(),
            false => Vec::new(),
        };
        let mut of_shorter = vec![Vec::new(); shorter.len()];
        let mut seconds = 0.0;
        let all = outputs.iter().map(Vec::len).sum::<usize>();
        let (mut found, mut seen) = (Vec::new(), 0);
        let (sets, before) = (self.sets, std::mem::take(&mut self.texts));
        for (set, answers) in sets.iter().zip(outputs) {
            for turns in conversations(answers) {
                let mut compared = Compared::default();
                let mut of_each = vec![Acceptance::default(); shorter.len()];
                for turn in turns {
                    seen += 1;
                    let clock = Instant::now();
                    let foreseen = self.foreseen(decoder, proposer, (turn, &before), draft);
                    let foreseen =
                        foreseen.map_err(|error| error.at(&set.name, turn.conversation))?;
                    let Some((text, foreseen)) = foreseen else {
                        continue;
                    };
                    let estimate = foreseen.walk(proposer, &text, draft);
                    seconds += clock.elapsed().as_secs_f64();
                    compared.add(&turn.generation.passes, &estimate);
                    for (of_one, draft) in of_each.iter_mut().zip(&shorter) {
                        of_one.merge(&foreseen.walk(proposer, &text, draft).acceptance);
                    }
                    let what = format!("computing acceptance without decoding: {seen} of {all}");
                    self.tell(&set.name, &what);
                }
                found.push(compared);
                for (all, of_one) in of_shorter.iter_mut().zip(of_each) {
                    all.push(of_one);
                }
            }
        }
        let seed = self.settings.seed;
        Ok(Estimates {
            report: EstimateReport::of(&found, seconds, seed),
            calibration: Compared::calibration(&found, seed),
            shorter: of_shorter,
        })
    }

    /// What the drafter makes of one answer; nothing where no pass follows the prompt's. Texts of the drafts `before` are not read again.
    fn foreseen(
        &mut self,
        decoder: &Decoder,
        proposer: &dyn Proposer,
        (turn, before): (&Answer, &KnownTexts),
        draft: &Estimable,
    ) -> Result<Option<(OwnText, Foreseen)>> {
        let check = || decoder.check_interrupted();
        check()?;
        let (prompt, tokens) = (&turn.prompt, &turn.generation.tokens);
        let by = (decoder.target, decoder.capture);
        let longest = self.settings.max_new_tokens;
        let text = self.texts.read(before, by, prompt, tokens, longest);
        let Some(text) = text else { return Ok(None) };
        let foreseen = foresee(proposer, &text, draft, &check)?;
        Ok(Some((text, foreseen)))
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
        test: SamplingTest,
        outputs: &[Vec<Answer>],
        by: (&Decoder, &mut dyn Proposer, &dyn Verifier),
        decode: &DecodeSettings,
    ) -> Result<SamplingReport> {
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        self.once("test", |rounds| {
            rounds.tested((test, seed), outputs, by, decode)
        })
    }

    fn tested(
        &mut self,
        (mut test, seed): (SamplingTest, u64),
        outputs: &[Vec<Answer>],
        (decoder, proposer, verifier): (&Decoder, &mut dyn Proposer, &dyn Verifier),
        decode: &DecodeSettings,
    ) -> Result<SamplingReport> {
        let sets = self.sets;
        let most = MOST_ROUNDS * outputs.iter().map(Vec::len).sum::<usize>();
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

/// Decodes what is left of conversations, after some prompts that are not kept.
fn decode_rest(talks: &mut Talks, mut warm_up: WarmUp, decode: &mut Decode) -> Result<()> {
    if talks.catch_up()? {
        decode(&mut warm_up, Warm::Up)?;
        decode(talks, Warm::Already)?;
    }
    Ok(())
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
