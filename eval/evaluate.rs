//! A drafter on sets of prompts: acceptance, speed, and whether the greedy output is the target's own.
use rand::{Rng as _, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::Mismatch;
use spectrain_data::seed::mix;
use spectrain_models::{Children, DraftShape, Proposer, Sampling};

use crate::bootstrap::bootstrap;
use crate::calibrate::measure as measure_ranks;
use crate::cost::Cost;
use crate::draft::{DraftChoice, DraftReport, MeasuredOn};
use crate::error::{Error, Result};
use crate::estimate::report::{Compared, EstimateReport};
use crate::estimate::{Estimable, Estimate, OwnText, estimate};
use crate::greedy_test::{Comparison, Place};
use crate::report::{DatasetReport, SecondsReport, SettingReport, Speedup};
use crate::sampling_test::{SamplingReport, SamplingTest};
use crate::speculate::{DecodeSettings, Decoder, Generation, Seconds};
use crate::statistics::Acceptance;
use crate::verify::{Verifier, VerifierChoice};

#[cfg(test)]
mod tests;

/// Tokens decoded before anything is measured, in which a device compiles and tunes its kernels.
const WARM_UP: usize = 16;
/// Tokens that the test of sampled output wants, and how often it continues each prompt for them at most. With so many it finds
/// a shift of three hundredths of the probability.
const TESTED_TOKENS: usize = 2000;
const MOST_ROUNDS: usize = 4;

/// Prompts of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptSet {
    /// The dataset.
    pub name: String,
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
}

/// How a drafter is evaluated: with every draft at every sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluateSettings {
    /// How tokens are chosen.
    pub samplings: Vec<Sampling>,
    /// What is drafted.
    pub drafts: Vec<DraftChoice>,
    /// What calibrated trees are measured on.
    pub calibration: CalibrationPrompts,
    /// Tokens after which an output ends.
    pub max_new_tokens: usize,
    /// Tokens that end an output.
    pub stop: Vec<u32>,
    /// What decides.
    pub verifier: VerifierChoice,
    /// Whether the prompts are also continued without a drafter, for the speed-up and the greedy comparison, and sampled
    /// outputs are tested against the target's distribution.
    pub baseline: bool,
    /// Seed of sampling and of the intervals. Each prompt of each setting has a generator of its own.
    pub seed: u64,
}

/// Prompts to calibrate trees on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CalibrationPrompts {
    /// Tokens of each prompt; as many are used as a tree asks for.
    pub prompts: Vec<Vec<u32>>,
    /// Which prompts these are.
    pub measured_on: MeasuredOn,
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluateProgress<'a> {
    /// Outputs decoded, and outputs tested.
    pub done: usize,
    /// All of them as far as is known: a test that needs more outputs adds to it.
    pub total: usize,
    /// The dataset of the last one.
    pub dataset: &'a str,
    /// What is done beside decoding; empty while decoding.
    pub what: &'a str,
}

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// One for each sampling and draft, in that order.
    pub settings: Vec<SettingReport>,
    /// The shapes that were drafted, one for each of `settings`.
    pub shapes: Vec<DraftShape>,
    /// The outputs, one list for each of `settings`, with one list for each set of prompts.
    pub outputs: Vec<Vec<Vec<Generation>>>,
    /// Greedy outputs against plain decoding, over all settings at temperature 0; empty without a baseline.
    pub greedy: Comparison,
}

/// Continues all prompts in every setting.
///
/// # Errors
/// Nothing to evaluate, a draft that the drafter cannot make, or what [`Decoder::generate`] fails with.
pub fn evaluate(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    sets: &[PromptSet],
    settings: &EvaluateSettings,
    progress: &mut dyn FnMut(EvaluateProgress),
) -> Result<Evaluation> {
    check(sets, settings)?;
    for choice in &settings.drafts {
        choice.suits(proposer)?;
    }
    let mut rounds = Rounds {
        sets,
        settings,
        seeds: 0,
        done: 0,
        total: settings.rounds() * sets.iter().map(|set| set.prompts.len()).sum::<usize>(),
        progress,
    };
    let mut evaluation = Evaluation {
        settings: Vec::new(),
        shapes: Vec::new(),
        outputs: Vec::new(),
        greedy: Comparison::default(),
    };
    for sampling in &settings.samplings {
        let plain = settings.baseline.then(|| rounds.plain(decoder, sampling));
        let plain = plain.transpose()?;
        for choice in settings.drafts.iter().flat_map(|draft| draft.at(sampling)) {
            let (shape, draft) = settle(decoder, proposer, &choice, settings, sampling)?;
            let verifier = settings.verifier.at(sampling);
            let mut generate = |prompt: &[u32], rng: &mut StdRng, warm| {
                let decode = settings.decode(sampling, &shape, warm);
                decoder.generate(proposer, verifier, prompt, &decode, rng)
            };
            let outputs = rounds.run(&mut generate)?;
            let tested = settings.baseline && !sampling.is_greedy() && !verifier.is_lossy();
            let tested = tested.then(|| {
                // Each setting draws for itself, so that their tests are independent.
                let seed = mix(settings.seed, evaluation.settings.len() as u64);
                let mut test = SamplingTest::new(*sampling, shape.length(), seed);
                rounds.test(&mut test, &mut |prompt, rng, test| {
                    let decode = settings.decode(sampling, &shape, Warm::Already);
                    add_output(test, (decoder, proposer, verifier), prompt, decode, rng)
                })
            });
            let estimable = Estimable::of(&shape, sampling, verifier);
            let estimated = estimable
                .map(|draft| rounds.estimates(decoder, proposer, &outputs, &draft))
                .transpose()?;
            if let (Some(plain), true) = (&plain, sampling.is_greedy()) {
                compare(&mut evaluation.greedy, decoder, sets, [&outputs, plain])?;
            }
            let share = proposer.parameters_per_pass() as f64 / decoder.target.parameters() as f64;
            let measured = measure(sets, &outputs, plain.as_deref());
            evaluation.settings.push(SettingReport {
                target: None,
                temperature: sampling.temperature,
                top_k: (sampling.top_k > 0).then_some(sampling.top_k),
                top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
                verifier: verifier.name().into(),
                lossy: verifier.is_lossy(),
                draft,
                datasets: by_dataset(&measured, share, settings.seed),
                overall: overall(&measured, share, settings.seed),
                sampling: tested.transpose()?,
                estimate: estimated.flatten(),
            });
            evaluation.shapes.push(shape);
            evaluation.outputs.push(outputs);
        }
    }
    Ok(evaluation)
}

/// Adds an output of the drafter to a test.
fn add_output(
    test: &mut SamplingTest,
    (decoder, proposer, verifier): (&Decoder, &mut dyn Proposer, &dyn Verifier),
    prompt: &[u32],
    decode: DecodeSettings,
    rng: &mut StdRng,
) -> Result<()> {
    let decode = DecodeSettings {
        shadow: Some(rng.random()),
        ..decode
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

/// Compares greedy outputs with those of plain decoding.
fn compare(
    greedy: &mut Comparison,
    decoder: &Decoder,
    sets: &[PromptSet],
    [outputs, plain]: [&[Vec<Generation>]; 2],
) -> Result<()> {
    for (set, (outputs, plain)) in sets.iter().zip(outputs.iter().zip(plain)) {
        for (index, (output, plain)) in outputs.iter().zip(plain).enumerate() {
            let place = Place {
                dataset: &set.name,
                prompt: index,
            };
            let pair = [&output.tokens[..], &plain.tokens[..]];
            greedy.add(decoder.target, place, &set.prompts[index], pair)?;
        }
    }
    Ok(())
}

impl EvaluateSettings {
    /// How many times all prompts are continued.
    fn rounds(&self) -> usize {
        let of = |sampling: &Sampling| {
            let drafts = self.drafts.iter().map(|draft| draft.at(sampling).len());
            drafts.sum::<usize>() + usize::from(self.baseline)
        };
        self.samplings.iter().map(of).sum()
    }

    fn decode(&self, sampling: &Sampling, draft: &DraftShape, warm: Warm) -> DecodeSettings {
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

/// The shape to draft, measured where it has to be, and what the report says of it.
fn settle(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    choice: &DraftChoice,
    settings: &EvaluateSettings,
    sampling: &Sampling,
) -> Result<(DraftShape, DraftReport)> {
    if let Some(found) = choice.shape().zip(choice.report(sampling)) {
        return Ok(found);
    }
    let DraftChoice::Calibrated(calibration) = choice else {
        unreachable!("only a calibrated tree has no shape");
    };
    let CalibrationPrompts {
        prompts,
        measured_on,
    } = &settings.calibration;
    let prompts = &prompts[..calibration.prompts.min(prompts.len())];
    if prompts.is_empty() {
        return Err(Error::Setting {
            key: "drafts",
            mismatch: Mismatch::new("prompts to calibrate a tree on", "none"),
        });
    }
    let decode = settings.decode(sampling, &DraftShape::Chain { length: 0 }, Warm::Already);
    let table = measure_ranks(
        decoder,
        proposer,
        prompts,
        &decode,
        calibration,
        settings.seed,
    )?;
    let tree = table.best_tree(calibration.nodes);
    let report = DraftReport::Calibrated {
        nodes: tree.len(),
        ranks: calibration.ranks,
        depth: calibration.depth,
        prompts: prompts.len(),
        measured_on: *measured_on,
        tree: tree.clone(),
    };
    let children = Children::Top;
    Ok((DraftShape::Static { tree, children }, report))
}

fn check(sets: &[PromptSet], settings: &EvaluateSettings) -> Result<()> {
    for (key, empty) in [
        ("prompts", sets.iter().all(|set| set.prompts.is_empty())),
        ("temperatures", settings.samplings.is_empty()),
        ("drafts", settings.drafts.is_empty()),
    ] {
        if empty {
            return Err(Error::Setting {
                key,
                mismatch: Mismatch::new("at least one", "none"),
            });
        }
    }
    Ok(())
}

/// Whether the device has seen this kind of work before.
#[derive(Debug, Clone, Copy)]
enum Warm {
    Up,
    Already,
}

/// Continues one prompt.
type Generate<'a> = dyn FnMut(&[u32], &mut StdRng, Warm) -> Result<Generation> + 'a;

/// Continues one prompt, and adds the output to a test.
type Draw<'a> = dyn FnMut(&[u32], &mut StdRng, &mut SamplingTest) -> Result<()> + 'a;

/// Continues all prompts, one round after the other, and tells the caller how far that is.
struct Rounds<'a> {
    sets: &'a [PromptSet],
    settings: &'a EvaluateSettings,
    /// Rounds that have drawn: each has generators of its own, so that what they find is independent.
    seeds: u64,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(EvaluateProgress),
}

impl Rounds<'_> {
    /// Every prompt once, without drafts.
    fn plain(&mut self, decoder: &Decoder, sampling: &Sampling) -> Result<Vec<Vec<Generation>>> {
        let settings = self.settings;
        self.run(&mut |prompt, rng, warm| {
            let draft = &DraftShape::Chain { length: 0 };
            decoder.plain(prompt, &settings.decode(sampling, draft, warm), rng)
        })
    }

    /// Every prompt once, after one that is not kept.
    fn run(&mut self, generate: &mut Generate) -> Result<Vec<Vec<Generation>>> {
        if let Some((set, prompt)) =
            (self.sets.iter()).find_map(|set| Some((set, set.prompts.first()?)))
        {
            let mut rng = StdRng::seed_from_u64(self.settings.seed);
            generate(prompt, &mut rng, Warm::Up).map_err(|error| error.at(&set.name, 0))?;
        }
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        let sets = self.sets;
        let mut outputs = Vec::with_capacity(sets.len());
        let mut index = 0;
        for set in sets {
            let mut of_set = Vec::with_capacity(set.prompts.len());
            for (place, prompt) in set.prompts.iter().enumerate() {
                let mut rng = StdRng::seed_from_u64(mix(seed, index));
                index += 1;
                let output = generate(prompt, &mut rng, Warm::Already);
                of_set.push(output.map_err(|error| error.at(&set.name, place))?);
                self.advance(&set.name, "");
            }
            outputs.push(of_set);
        }
        Ok(outputs)
    }

    /// What the same outputs say of the drafter without decoding.
    fn estimates(
        &mut self,
        decoder: &Decoder,
        proposer: &mut dyn Proposer,
        outputs: &[Vec<Generation>],
        draft: &Estimable,
    ) -> Result<Option<EstimateReport>> {
        let (sets, longest) = (self.sets, self.settings.max_new_tokens);
        let mut found: Vec<(Acceptance, Estimate)> = Vec::new();
        for (set, outputs) in sets.iter().zip(outputs) {
            for (place, (prompt, output)) in set.prompts.iter().zip(outputs).enumerate() {
                decoder.check_interrupted()?;
                let (target, capture) = (decoder.target, decoder.capture);
                let Some(text) = OwnText::read(target, capture, prompt, &output.tokens, longest)
                else {
                    continue;
                };
                let estimate = estimate(proposer, &text, draft);
                let estimate = estimate.map_err(|error| error.at(&set.name, place))?;
                found.push((Acceptance::of(&output.passes), estimate));
                self.total += 1;
                self.advance(&set.name, "computing acceptance without decoding");
            }
        }
        let compared: Vec<_> = (found.iter())
            .map(|(decoded, estimate)| Compared { decoded, estimate })
            .collect();
        Ok(EstimateReport::of(&compared, self.settings.seed))
    }

    fn advance(&mut self, dataset: &str, what: &str) {
        self.done += 1;
        self.total = self.total.max(self.done);
        (self.progress)(EvaluateProgress {
            done: self.done,
            total: self.total,
            dataset,
            what,
        });
    }

    /// Whether sampled outputs, which `draw` draws anew, follow the target's distribution: of as many prompts as it takes for
    /// enough tokens that the target is unsure of.
    fn test(&mut self, test: &mut SamplingTest, draw: &mut Draw) -> Result<SamplingReport> {
        let sets = self.sets;
        let prompts = |set: &'_ PromptSet| set.prompts.len();
        let most = MOST_ROUNDS * sets.iter().map(prompts).sum::<usize>();
        let seed = mix(self.settings.seed, self.seeds);
        self.seeds += 1;
        let places = sets
            .iter()
            .flat_map(|set| set.prompts.iter().enumerate().map(move |at| (set, at)));
        for (number, (set, (place, prompt))) in places.cycle().take(most).enumerate() {
            let mut rng = StdRng::seed_from_u64(mix(seed, number as u64));
            draw(prompt, &mut rng, test).map_err(|error| error.at(&set.name, place))?;
            let found = test.tokens();
            self.total += 1;
            self.advance(
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

/// One prompt's counts and times.
struct Measured {
    acceptance: Acceptance,
    /// Passes of the drafter, one after the other.
    draft_passes: u64,
    seconds: Seconds,
    /// Tokens and seconds of the passes without a drafter.
    plain: Option<(u64, f64)>,
}

fn measure<'a>(
    sets: &'a [PromptSet],
    outputs: &[Vec<Generation>],
    plain: Option<&[Vec<Generation>]>,
) -> Vec<(&'a str, Vec<Measured>)> {
    let one = |set: usize, prompt: usize, output: &Generation| Measured {
        acceptance: Acceptance::of(&output.passes),
        draft_passes: (output.passes.iter())
            .map(|pass| pass.draft_passes as u64)
            .sum(),
        seconds: output.seconds(),
        plain: plain.map(|plain| {
            let plain = &plain[set][prompt];
            (plain.passes.len() as u64, plain.seconds().total())
        }),
    };
    let of_set = |(set, outputs): (usize, &Vec<Generation>)| {
        let prompts = outputs.iter().enumerate();
        let measured = prompts.map(|(prompt, output)| one(set, prompt, output));
        (sets[set].name.as_str(), measured.collect())
    };
    outputs.iter().enumerate().map(of_set).collect()
}

fn by_dataset(measured: &[(&str, Vec<Measured>)], share: f64, seed: u64) -> Vec<DatasetReport> {
    let summary = |(name, prompts): &(&str, Vec<Measured>)| {
        summarise(name, &prompts.iter().collect::<Vec<_>>(), share, seed)
    };
    measured.iter().map(summary).collect()
}

fn overall(measured: &[(&str, Vec<Measured>)], share: f64, seed: u64) -> DatasetReport {
    let pooled: Vec<&Measured> = measured.iter().flat_map(|(_, prompts)| prompts).collect();
    summarise("overall", &pooled, share, seed)
}

/// `share` is what a pass of the drafter reads of parameters, of those of the target.
fn summarise(name: &str, prompts: &[&Measured], share: f64, seed: u64) -> DatasetReport {
    let pooled = pool(prompts.iter().copied());
    let interval = |statistic: fn(&Acceptance) -> Option<f64>| {
        bootstrap(prompts, seed, |drawn| {
            statistic(&pool(drawn.iter().copied().copied()))
        })
    };
    let mut seconds = Seconds::default();
    for prompt in prompts {
        seconds.draft += prompt.seconds.draft;
        seconds.verify += prompt.seconds.verify;
        seconds.other += prompt.seconds.other;
    }
    let plain: Option<Vec<(u64, f64)>> = prompts.iter().map(|prompt| prompt.plain).collect();
    let cost = cost(prompts);
    DatasetReport {
        name: name.into(),
        prompts: prompts.len() as u64,
        tokens: pooled.emitted as u64,
        passes: pooled.passes as u64,
        tau: pooled.tau(),
        tau_ci95: interval(Acceptance::tau),
        alpha: pooled.alpha(),
        alpha_ci95: interval(Acceptance::alpha),
        conditional: pooled.conditional(),
        survival: pooled.survival(),
        draft_tokens_per_pass: pooled.draft_tokens_per_pass(),
        accepted_histogram: pooled.histogram.iter().map(|&count| count as u64).collect(),
        speedup: wall_speedup(prompts.iter().copied()).map(|wall| Speedup {
            wall,
            wall_ci95: bootstrap(prompts, seed, |drawn| {
                wall_speedup(drawn.iter().copied().copied())
            }),
            model: cost.and_then(|cost| cost.by_time()),
            memory_bound: cost.and_then(|cost| cost.by_parameters(share)),
        }),
        seconds: SecondsReport {
            draft: seconds.draft,
            verify: seconds.verify,
            other: seconds.other,
            autoregressive: plain.map(|plain| plain.iter().map(|(_, seconds)| seconds).sum()),
        },
    }
}

fn pool<'a>(prompts: impl Iterator<Item = &'a Measured>) -> Acceptance {
    Acceptance::pooled(prompts.map(|prompt| &prompt.acceptance))
}

/// What the cost model reads. `None` when a prompt was not continued without a drafter.
fn cost(prompts: &[&Measured]) -> Option<Cost> {
    let mut cost = Cost::default();
    for prompt in prompts {
        let (plain_passes, plain_seconds) = prompt.plain?;
        cost.passes += prompt.acceptance.passes as u64;
        cost.emitted += prompt.acceptance.emitted as u64;
        cost.draft_passes += prompt.draft_passes;
        cost.draft_seconds += prompt.seconds.draft;
        cost.plain_passes += plain_passes;
        cost.plain_seconds += plain_seconds;
    }
    Some(cost)
}

/// Tokens per second of the passes with a drafter, over the same without: ratio of the pooled rates. `None` when a
/// prompt was not continued without one, or nothing was decoded.
fn wall_speedup<'a>(prompts: impl Iterator<Item = &'a Measured>) -> Option<f64> {
    let (mut tokens, mut seconds, mut plain_tokens, mut plain_seconds) = (0.0, 0.0, 0, 0.0);
    for prompt in prompts {
        let (of_prompt, took) = prompt.plain?;
        tokens += prompt.acceptance.emitted;
        seconds += prompt.seconds.total();
        plain_tokens += of_prompt;
        plain_seconds += took;
    }
    let measured = tokens > 0.0 && plain_tokens > 0 && seconds > 0.0 && plain_seconds > 0.0;
    measured.then(|| (tokens / seconds) / (plain_tokens as f64 / plain_seconds))
}
