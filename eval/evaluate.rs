//! A drafter on sets of prompts: acceptance, speed, and whether the greedy output is the target's own.
use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{DraftShape, Proposer, Sampling};

use crate::{
    Acceptance, Comparison, DatasetReport, DecodeSettings, Decoder, Error, Generation, Result,
    Seconds, SecondsReport, SettingReport, Speedup, VerifierChoice, bootstrap,
};

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
    pub drafts: Vec<DraftShape>,
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
    /// Greedy outputs against plain decoding, over all settings at temperature 0; empty without a baseline.
    pub greedy: Comparison,
}

/// Continues all prompts in every setting.
///
/// # Errors
/// Nothing to evaluate, or what [`Decoder::generate`] fails with.
pub fn evaluate(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    sets: &[PromptSet],
    settings: &EvaluateSettings,
    progress: &mut dyn FnMut(Progress),
) -> Result<Evaluation> {
    check(sets, settings)?;
    let prompts: usize = sets.iter().map(|set| set.prompts.len()).sum();
    let rounds = settings.drafts.len() + usize::from(settings.baseline);
    let mut advance = Advance {
        done: 0,
        total: prompts * rounds * settings.samplings.len(),
        progress,
    };
    let mut evaluation = Evaluation {
        settings: Vec::new(),
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
        for draft in &settings.drafts {
            let verifier = settings.verifier.at(sampling);
            let outputs = run(
                sets,
                settings.seed,
                &mut advance,
                &mut |prompt, rng, warm| {
                    let decode = settings.decode(sampling, draft, warm);
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
                temperature: sampling.temperature,
                top_k: (sampling.top_k > 0).then_some(sampling.top_k),
                top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
                verifier: verifier.name().into(),
                draft: draft.into(),
                datasets: by_dataset(&measured, settings.seed),
                overall: overall(&measured, settings.seed),
            });
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

fn by_dataset(measured: &[(&str, Vec<Measured>)], seed: u64) -> Vec<DatasetReport> {
    let summary = |(name, prompts): &(&str, Vec<Measured>)| {
        summarise(name, &prompts.iter().collect::<Vec<_>>(), seed)
    };
    measured.iter().map(summary).collect()
}

fn overall(measured: &[(&str, Vec<Measured>)], seed: u64) -> DatasetReport {
    let pooled: Vec<&Measured> = measured.iter().flat_map(|(_, prompts)| prompts).collect();
    summarise("overall", &pooled, seed)
}

fn summarise(name: &str, prompts: &[&Measured], seed: u64) -> DatasetReport {
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
            model: None,
            memory_bound: None,
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

#[cfg(test)]
mod tests {
    use spectrain_models::Capture;

    use super::*;
    use crate::toy::{Style, ToyDrafter, ToyTarget};

    fn sets() -> Vec<PromptSet> {
        let set = |name: &str, prompts: &[&[u32]]| PromptSet {
            name: name.into(),
            prompts: prompts.iter().map(|prompt| prompt.to_vec()).collect(),
        };
        vec![
            set("one", &[&[1], &[2, 3], &[4, 0, 1]]),
            set("two", &[&[3, 3]]),
        ]
    }

    fn settings() -> EvaluateSettings {
        EvaluateSettings {
            samplings: vec![Sampling::GREEDY, Sampling::at(1.0)],
            drafts: vec![
                DraftShape::Chain { length: 2 },
                DraftShape::Chain { length: 4 },
            ],
            max_new_tokens: 24,
            stop: Vec::new(),
            verifier: VerifierChoice::Exact,
            baseline: true,
            seed: 11,
        }
    }

    fn evaluated(style: Style, settings: &EvaluateSettings) -> Result<Evaluation> {
        let target = ToyTarget::default();
        let capture = Capture::default();
        let decoder = Decoder {
            target: &target,
            capture: &capture,
        };
        let mut seen = Vec::new();
        let mut drafter = ToyDrafter::new(style);
        let evaluation = evaluate(&decoder, &mut drafter, &sets(), settings, &mut |progress| {
            seen.push((progress.done, progress.total));
        })?;
        let total = seen.len();
        let expected: Vec<(usize, usize)> = (1..=total).map(|done| (done, total)).collect();
        assert_eq!(seen, expected);
        Ok(evaluation)
    }

    #[test]
    fn every_setting_is_reported_with_consistent_numbers() {
        let evaluation = evaluated(Style::Random, &settings()).unwrap();
        assert_eq!(evaluation.settings.len(), 4);
        for setting in &evaluation.settings {
            let overall = &setting.overall;
            assert_eq!(overall.prompts, 4);
            assert_eq!(overall.tokens, 4 * 23);
            let sums = setting
                .datasets
                .iter()
                .map(|dataset| dataset.passes)
                .sum::<u64>();
            assert_eq!(overall.passes, sums);
            let tau = 1.0 + overall.survival.iter().sum::<f64>();
            assert!((overall.tau.unwrap() - tau).abs() < 1e-12);
            let [low, high] = overall.tau_ci95.unwrap();
            assert!(low <= tau && tau <= high);
            assert!(overall.speedup.unwrap().wall > 0.0);
            assert!(overall.seconds.autoregressive.unwrap() > 0.0);
        }
        let verifiers = evaluation
            .settings
            .iter()
            .map(|setting| setting.verifier.as_str());
        assert_eq!(
            verifiers.collect::<Vec<_>>(),
            ["greedy", "greedy", "rejection", "rejection"]
        );
    }

    #[test]
    fn greedy_outputs_are_compared_with_plain_ones() {
        let evaluation = evaluated(Style::Random, &settings()).unwrap();
        let expected = Comparison {
            mismatches: 0,
            tokens: 2 * 4 * 24,
        };
        assert_eq!(evaluation.greedy, expected);
    }

    #[test]
    fn acceptance_does_not_change_from_run_to_run() {
        let (a, b) = (
            evaluated(Style::Random, &settings()),
            evaluated(Style::Random, &settings()),
        );
        for (a, b) in a.unwrap().settings.iter().zip(&b.unwrap().settings) {
            let numbers = |dataset: &DatasetReport| {
                let tau = (dataset.tau, dataset.tau_ci95);
                (tau, dataset.alpha_ci95, dataset.accepted_histogram.clone())
            };
            assert_eq!(numbers(&a.overall), numbers(&b.overall));
        }
    }

    #[test]
    fn the_target_as_its_own_drafter_is_always_accepted() {
        for setting in &evaluated(Style::Oracle, &settings()).unwrap().settings {
            assert_eq!(setting.overall.alpha, Some(1.0));
            assert_eq!(setting.overall.alpha_ci95, Some([1.0, 1.0]));
        }
    }

    #[test]
    fn without_a_baseline_there_is_no_speed_up_and_nothing_is_compared() {
        let settings = EvaluateSettings {
            baseline: false,
            ..settings()
        };
        let evaluation = evaluated(Style::Random, &settings).unwrap();
        assert_eq!(evaluation.greedy, Comparison::default());
        let overall = &evaluation.settings[0].overall;
        assert_eq!(
            (overall.speedup, overall.seconds.autoregressive),
            (None, None)
        );
    }

    #[test]
    fn a_failure_names_dataset_and_prompt() {
        let error = evaluated(Style::SampledTree, &settings())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(
                "dataset `one`, prompt 0: verifier `rejection`: expected a chain or a deterministic"
            ),
            "{error}"
        );
        let none = EvaluateSettings {
            drafts: Vec::new(),
            ..settings()
        };
        let error = evaluated(Style::Random, &none).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`drafts`: expected at least one, got none"
        );
    }
}
