//! A drafter on sets of prompts: acceptance, speed, and whether the greedy output is the target's own.
use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{Children, DraftShape, Proposer, Sampling};

use crate::{
    Acceptance, Comparison, DatasetReport, DecodeSettings, Decoder, DraftChoice, DraftReport,
    Error, Generation, MeasuredOn, Result, Seconds, SecondsReport, SettingReport, Speedup,
    VerifierChoice, bootstrap, cost::Cost, measure as measure_ranks,
};

#[cfg(test)]
mod tests;

/// Tokens decoded before anything is measured, in which a device compiles and tunes its kernels.
const WARM_UP: usize = 16;

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
    /// Whether the prompts are also continued without a drafter, for the speed-up and the greedy comparison.
    pub baseline: bool,
    /// Seed of sampling and of the intervals. Each prompt has a generator of its own.
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
pub struct Progress<'a> {
    /// Outputs finished.
    pub done: usize,
    /// Outputs in all.
    pub total: usize,
    /// The dataset of the last one.
    pub dataset: &'a str,
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
    progress: &mut dyn FnMut(Progress),
) -> Result<Evaluation> {
    check(sets, settings)?;
    for choice in &settings.drafts {
        choice.suits(proposer)?;
    }
    let prompts: usize = sets.iter().map(|set| set.prompts.len()).sum();
    let rounds = settings.drafts.len() + usize::from(settings.baseline);
    let mut advance = Advance {
        done: 0,
        total: prompts * rounds * settings.samplings.len(),
        progress,
    };
    let share = proposer.parameters_per_pass() as f64 / decoder.target.parameters() as f64;
    let mut evaluation = Evaluation {
        settings: Vec::new(),
        shapes: Vec::new(),
        outputs: Vec::new(),
        greedy: Comparison::default(),
    };
    for sampling in &settings.samplings {
        let plain = match settings.baseline {
            true => Some(run(
                sets,
                settings.seed,
                &mut advance,
                &mut |prompt, rng, warm| {
                    let draft = &DraftShape::Chain { length: 0 };
                    decoder.plain(prompt, &settings.decode(sampling, draft, warm), rng)
                },
            )?),
            false => None,
        };
        for choice in &settings.drafts {
            let (shape, draft) = settle(decoder, proposer, choice, settings, sampling)?;
            let verifier = settings.verifier.at(sampling);
            let outputs = run(
                sets,
                settings.seed,
                &mut advance,
                &mut |prompt, rng, warm| {
                    let decode = settings.decode(sampling, &shape, warm);
                    decoder.generate(proposer, verifier, prompt, &decode, rng)
                },
            )?;
            if let (Some(plain), true) = (&plain, sampling.is_greedy()) {
                for (output, plain) in outputs.iter().flatten().zip(plain.iter().flatten()) {
                    evaluation.greedy.add(&output.tokens, &plain.tokens);
                }
            }
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
            });
            evaluation.shapes.push(shape);
            evaluation.outputs.push(outputs);
        }
    }
    Ok(evaluation)
}

impl EvaluateSettings {
    fn decode(&self, sampling: &Sampling, draft: &DraftShape, warm: Warm) -> DecodeSettings {
        DecodeSettings {
            max_new_tokens: match warm {
                Warm::Up => self.max_new_tokens.min(WARM_UP),
                Warm::Already => self.max_new_tokens,
            },
            draft: draft.clone(),
            sampling: *sampling,
            stop: self.stop.clone(),
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
    let calibration = match (choice, choice.shape()) {
        (DraftChoice::Calibrated(calibration), _) => calibration,
        (_, Some(shape)) => {
            let report = DraftReport::of(&shape);
            return Ok((shape, report));
        }
        (_, None) => unreachable!("only a calibrated tree has no shape"),
    };
    let CalibrationPrompts {
        prompts,
        measured_on,
    } = &settings.calibration;
    let prompts = &prompts[..calibration.prompts.min(prompts.len())];
    if prompts.is_empty() {
        return Err(Error::Setting {
            key: "drafts",
            expected: "prompts to calibrate a tree on".into(),
            got: "none".into(),
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
                expected: "at least one".into(),
                got: "none".into(),
            });
        }
    }
    Ok(())
}

/// Counts finished outputs for the caller.
struct Advance<'a> {
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(Progress),
}

/// Whether the device has seen this kind of work before.
#[derive(Debug, Clone, Copy)]
enum Warm {
    Up,
    Already,
}

/// Continues one prompt.
type Generate<'a> = dyn FnMut(&[u32], &mut StdRng, Warm) -> Result<Generation> + 'a;

/// Every prompt once, after one that is not kept.
fn run(
    sets: &[PromptSet],
    seed: u64,
    advance: &mut Advance,
    generate: &mut Generate,
) -> Result<Vec<Vec<Generation>>> {
    let mut seeds = seed..;
    let mut next_rng = || StdRng::seed_from_u64(seeds.next().unwrap_or(seed));
    let mut cold = true;
    let mut outputs = Vec::with_capacity(sets.len());
    for set in sets {
        let mut of_set = Vec::with_capacity(set.prompts.len());
        for (index, prompt) in set.prompts.iter().enumerate() {
            let at = |source| Error::At {
                dataset: set.name.clone(),
                prompt: index,
                source: Box::new(source),
            };
            if std::mem::take(&mut cold) {
                generate(prompt, &mut StdRng::seed_from_u64(seed), Warm::Up).map_err(at)?;
            }
            of_set.push(generate(prompt, &mut next_rng(), Warm::Already).map_err(at)?);
            advance.done += 1;
            (advance.progress)(Progress {
                done: advance.done,
                total: advance.total,
                dataset: &set.name,
            });
        }
        outputs.push(of_set);
    }
    Ok(outputs)
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
        tokens: pooled.emitted,
        passes: pooled.passes,
        tau: pooled.tau(),
        tau_ci95: interval(Acceptance::tau),
        alpha: pooled.alpha(),
        alpha_ci95: interval(Acceptance::alpha),
        conditional: pooled.conditional(),
        survival: pooled.survival(),
        draft_tokens_per_pass: pooled.draft_tokens_per_pass(),
        accepted_histogram: pooled.histogram,
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
        cost.passes += prompt.acceptance.passes;
        cost.emitted += prompt.acceptance.emitted;
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
    let (mut tokens, mut seconds, mut plain_tokens, mut plain_seconds) = (0, 0.0, 0, 0.0);
    for prompt in prompts {
        let (of_prompt, took) = prompt.plain?;
        tokens += prompt.acceptance.emitted;
        seconds += prompt.seconds.total();
        plain_tokens += of_prompt;
        plain_seconds += took;
    }
    let measured = tokens > 0 && plain_tokens > 0 && seconds > 0.0 && plain_seconds > 0.0;
    measured.then(|| (tokens as f64 / seconds) / (plain_tokens as f64 / plain_seconds))
}
