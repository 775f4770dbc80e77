//! A drafter on sets of prompts: acceptance, speed, and whether the greedy output is the target's own.
use spectrain_checkpoints::Mismatch;
use spectrain_data::seed::mix;
use spectrain_models::{Children, DraftShape, Proposer, Sampling, Stop};

use crate::bootstrap::bootstrap;
use crate::calibrate::measure as measure_ranks;
use crate::cost::Cost;
use crate::deploy::measure::{Deployment, Judged};
use crate::deploy::report::Recommendation;
use crate::draft::{DraftChoice, DraftReport};
use crate::error::{Error, Result};
use crate::estimate::{Estimable, Estimate};
use crate::evaluate::contender::Contender;
use crate::evaluate::journal::Journal;
use crate::evaluate::pace::{Pace, Paces};
use crate::evaluate::rounds::Rounds;
use crate::evaluate::settings::{EvaluateProgress, EvaluateSettings, Warm};
use crate::greedy_test::{Comparison, Place};
use crate::groups::{Groups, groups};
use crate::prompts::{Answer, Prompt, PromptSet, conversations};
use crate::report::{DatasetReport, SecondsReport, SettingReport, Speedup};
use crate::sampling_test::SamplingTest;
use crate::speculate::queue::PromptQueue;
use crate::speculate::{Decoder, Seconds};
use crate::spread::{Decoded, spread};
use crate::statistics::Acceptance;
use crate::token_class::by_class;
use crate::tune::{Tuning, tune};
use crate::verify::Verifier;

pub(crate) mod contender;
pub(crate) mod journal;
mod pace;
pub(crate) mod rounds;
pub(crate) mod settings;
mod talks;
#[cfg(test)]
mod tests;

/// What an evaluation found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// Sequences that were decoded at a time: what was asked for, or all conversations where there are fewer.
    pub batch_size: usize,
    /// One for each sampling and draft, in that order.
    pub settings: Vec<SettingReport>,
    /// The shapes that were drafted, one for each of `settings`.
    pub shapes: Vec<DraftShape>,
    /// The outputs, one list for each of `settings`, with one list for each set of prompts: conversation by conversation, turn
    /// by turn.
    pub outputs: Vec<Vec<Vec<Answer>>>,
    /// What shorter chains would take over these outputs, one entry for each of `settings`: for each length from 1 on the counts of
    /// each conversation; empty where that is not known without decoding, of other drafts, and without a baseline.
    pub shorter: Vec<Vec<Vec<Acceptance>>>,
    /// Greedy outputs against plain decoding, over all settings at temperature 0; empty without a baseline.
    pub greedy: Comparison,
    /// What to deploy, one for each sampling and batch size; empty without a baseline.
    pub recommended: Vec<Recommendation>,
}

/// Continues all prompts in every setting with one drafter, which `sessions` puts to work on one more sequence.
///
/// # Errors
/// Those of [`evaluate_all`].
pub fn evaluate<'p>(
    decoder: &Decoder,
    sessions: &dyn Fn() -> Box<dyn Proposer + 'p>,
    sets: &[PromptSet],
    settings: &EvaluateSettings,
    progress: &mut dyn FnMut(EvaluateProgress),
) -> Result<Evaluation> {
    let contender = Contender {
        name: None,
        sessions,
        capture: decoder.capture,
        drafts: settings.drafts.clone(),
    };
    evaluate_all(decoder, &[contender], sets, settings, None, progress)
}

/// Continues all prompts in every setting with each of several drafters, whose own drafts take the place of those of
/// `settings`; without a drafter only once. What is decoded goes into `journal`, where there is one, and what is in it already is
/// not decoded again; passes of several batch sizes are timed anew.
///
/// # Errors
/// Nothing to evaluate, a draft that a drafter cannot make, a journal that cannot be written, or what [`Decoder::generate`] fails
/// with.
pub fn evaluate_all<'p>(
    decoder: &Decoder,
    contenders: &[Contender<'_, 'p>],
    sets: &[PromptSet],
    settings: &EvaluateSettings,
    journal: Option<&mut Journal>,
    progress: &mut dyn FnMut(EvaluateProgress),
) -> Result<Evaluation> {
    check(contenders, sets, settings)?;
    let settings = &settings.filled_by(sets);
    let mut rounds = Rounds::new(decoder, contenders, sets, settings, journal, progress);
    let mut evaluation = Evaluation {
        batch_size: settings.batch_size,
        ..Evaluation::default()
    };
    for sampling in &settings.samplings {
        let plain = settings.baseline.then(|| rounds.plain(decoder, sampling));
        let plain = plain.transpose()?;
        // At temperature 0 all drafters find the same answers, so they are asked the same turns.
        let mut same = plain.clone().filter(|_| sampling.is_greedy());
        for contender in contenders {
            let decoder = &decoder.reading(contender.capture);
            let first = evaluation.settings.len();
            let at_work = AtWork {
                decoder,
                contender,
                settings,
                sampling,
                plain: plain.as_deref(),
            };
            let mut proposers = at_work.proposers();
            for choice in contender.at(sampling) {
                at_work.judge(
                    &choice,
                    &mut proposers,
                    &mut rounds,
                    &mut same,
                    &mut evaluation,
                )?;
            }
            if let (Some(plain), true) = (&plain, first < evaluation.settings.len()) {
                predict(&mut evaluation, first, plain, contender, |judged| {
                    judged.measure(decoder, contender.sessions, settings, sampling)
                })?;
            }
        }
    }
    Ok(evaluation)
}

/// A drafter at work, with one way of sampling.
struct AtWork<'a, 'p> {
    decoder: &'a Decoder<'a>,
    contender: &'a Contender<'a, 'p>,
    settings: &'a EvaluateSettings,
    sampling: &'a Sampling,
    /// The answers without a drafter, where there are some.
    plain: Option<&'a [Vec<Answer>]>,
}

impl<'p> AtWork<'_, 'p> {
    /// One for each sequence that is decoded at a time.
    fn proposers(&self) -> Vec<Box<dyn Proposer + 'p>> {
        let size = self.settings.batch_size;
        (0..size).map(|_| (self.contender.sessions)()).collect()
    }

    /// Continues all prompts with one draft. At temperature 0 they are the turns of `same`, once these are known.
    fn judge(
        &self,
        choice: &DraftChoice,
        proposers: &mut [Box<dyn Proposer + 'p>],
        rounds: &mut Rounds,
        same: &mut Option<Vec<Vec<Answer>>>,
        evaluation: &mut Evaluation,
    ) -> Result<()> {
        let (decoder, settings, sampling) = (self.decoder, self.settings, self.sampling);
        let sets = rounds.sets();
        let by = proposers[0].as_mut();
        let (shape, draft) = settle(decoder, by, choice, (settings, sampling), rounds)?;
        let verifier = settings.verifier.at(sampling);
        let mut decode = |queue: &mut dyn PromptQueue, warm| {
            let decode = settings.decode(sampling, &shape, warm);
            decoder.generate_queued(proposers, verifier, queue, &decode)
        };
        let outputs = rounds.run(&mut decode, &shape, same.as_deref())?;
        let proposer = proposers[0].as_mut();
        if sampling.is_greedy() && same.is_none() {
            *same = Some(outputs.clone());
        }
        let tested = settings.baseline && !sampling.is_greedy() && !verifier.is_lossy();
        let tested = tested.then(|| {
            // Each setting draws for itself, so that their tests are independent.
            let seed = mix(settings.seed, evaluation.settings.len() as u64);
            let test = SamplingTest::new(*sampling, shape.length(), seed);
            let decode = settings.decode(sampling, &shape, Warm::Already);
            rounds.test(test, &outputs, (decoder, proposer, verifier), &decode)
        });
        let estimable = Estimable::of(&shape, sampling, verifier);
        let estimable = estimable.map(Estimable::with_confidence);
        let estimates = rounds.estimates(decoder, proposer, &outputs, estimable)?;
        let tested = tested.transpose()?;
        if let (Some(plain), true) = (self.plain, sampling.is_greedy()) {
            compare(&mut evaluation.greedy, decoder, sets, [&outputs, plain])?;
        }
        let of_target = decoder.target.parameters_per_pass() as f64;
        let share = proposer.parameters_per_pass() as f64 / of_target;
        let measured = measure(sets, (&outputs, self.plain), settings.batch_size);
        let classes = settings.classes.as_ref();
        let classes = classes.map(|classes| by_class(&outputs, classes, settings.seed));
        evaluation.settings.push(SettingReport {
            drafter: self.contender.name.clone(),
            ends: Some(settings.ends()),
            sampling: tested,
            estimate: estimates.report,
            calibration: estimates.calibration,
            groups: groups(sets, &outputs, settings.thinking, settings.seed),
            token_classes: classes.unwrap_or_default(),
            ..reported((sampling, verifier, draft), &measured, share, settings.seed)
        });
        evaluation.shapes.push(shape);
        evaluation.outputs.push(outputs);
        evaluation.shorter.push(estimates.shorter);
        Ok(())
    }
}

/// Predicts the speed-up of the settings from `first` on, and what to deploy.
fn predict(
    evaluation: &mut Evaluation,
    first: usize,
    plain: &[Vec<Answer>],
    contender: &Contender,
    measure: impl FnOnce(&Judged) -> Result<Deployment>,
) -> Result<()> {
    let drafts = evaluation.settings[first..].iter();
    let drafts = drafts.map(|setting| setting.draft.clone());
    let found = measure(&Judged {
        drafts: drafts.zip(evaluation.shapes[first..].to_vec()).collect(),
        outputs: &evaluation.outputs[first..],
        shorter: &evaluation.shorter[first..],
        plain,
    })?;
    let settings = evaluation.settings[first..].iter_mut();
    for (setting, predicted) in settings.zip(found.predicted) {
        if let (Some(speedup), Some((predicted, interval))) =
            (&mut setting.overall.speedup, predicted)
        {
            speedup.predict(predicted, interval);
        }
    }
    // What is deployed is the drafter that the report is of.
    if contender.name.is_none() {
        evaluation.recommended.extend(found.recommended);
    }
    Ok(())
}

/// What was measured of a setting. `share` is what a pass of the drafter reads of parameters, of those of the target.
pub(crate) fn reported(
    (sampling, verifier, draft): (&Sampling, &dyn Verifier, DraftReport),
    measured: &[(&PromptSet, Vec<Measured>)],
    share: f64,
    seed: u64,
) -> SettingReport {
    SettingReport {
        target: None,
        drafter: None,
        temperature: sampling.temperature,
        top_k: (sampling.top_k > 0).then_some(sampling.top_k),
        top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
        verifier: verifier.name().into(),
        lossy: verifier.is_lossy(),
        draft,
        ends: None,
        datasets: by_dataset(measured, share, seed),
        overall: overall(measured, share, seed),
        sampling: None,
        estimate: None,
        calibration: None,
        groups: Groups::default(),
        token_classes: Vec::new(),
    }
}

/// Compares greedy outputs with those of plain decoding.
fn compare(
    greedy: &mut Comparison,
    decoder: &Decoder,
    sets: &[PromptSet],
    [outputs, plain]: [&[Vec<Answer>]; 2],
) -> Result<()> {
    for (set, (outputs, plain)) in sets.iter().zip(outputs.iter().zip(plain)) {
        for (output, plain) in outputs.iter().zip(plain) {
            let place = Place {
                dataset: &set.name,
                prompt: output.conversation,
                turn: output.turn,
            };
            let pair = [&output.generation.tokens[..], &plain.generation.tokens[..]];
            greedy.add(decoder.target, place, &output.prompt, pair)?;
        }
    }
    Ok(())
}

/// The shape to draft, measured where it has to be, and what the report says of it.
fn settle(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    choice: &DraftChoice,
    asked: (&EvaluateSettings, &Sampling),
    rounds: &mut Rounds,
) -> Result<(DraftShape, DraftReport)> {
    if let Some(found) = choice.shape().zip(choice.report(asked.1)) {
        return Ok(found);
    }
    let draft = rounds.once("draft", |rounds| {
        let mut told = |what: &str| rounds.tell("", what);
        measured_draft(decoder, proposer, choice, asked, &mut told)
    })?;
    let shape = match &draft {
        &DraftReport::Confident {
            length,
            by,
            threshold,
            ..
        } => DraftShape::Confident {
            length,
            stop: Stop { by, threshold },
        },
        DraftReport::Calibrated { tree, .. } => DraftShape::Static {
            tree: tree.clone(),
            children: Children::Top,
        },
        _ => unreachable!("all others have a shape"),
    };
    Ok((shape, draft))
}

/// The draft that is best by a measurement. `told` hears how far that is.
fn measured_draft(
    decoder: &Decoder,
    proposer: &mut dyn Proposer,
    choice: &DraftChoice,
    (settings, sampling): (&EvaluateSettings, &Sampling),
    told: &mut dyn FnMut(&str),
) -> Result<DraftReport> {
    let measured_on = settings.calibration.measured_on;
    let prompts = settings.calibration.of(choice.prompts().unwrap_or(0));
    if prompts.is_empty() {
        return Err(Error::Setting {
            key: "drafts",
            mismatch: Mismatch::new("prompts to calibrate a tree or tune a threshold on", "none"),
        });
    }
    let decode = settings.decode(sampling, &DraftShape::Chain { length: 0 }, Warm::Already);
    let calibration = match choice {
        &DraftChoice::Confident { length, by, .. } => {
            let tuning = Tuning {
                length,
                by,
                prompts: &prompts,
                measured_on,
                decode,
                seed: settings.seed,
            };
            let (stop, tuned) = tune(decoder, proposer, &tuning, told)?;
            let shape = DraftShape::Confident { length, stop };
            return Ok(DraftReport::tuned(&shape, tuned));
        }
        DraftChoice::Calibrated(calibration) => calibration,
        _ => unreachable!("all others have a shape"),
    };
    let table = measure_ranks(
        decoder,
        proposer,
        &prompts,
        (&decode, settings.seed),
        calibration,
        told,
    )?;
    let tree = table.best_tree(calibration.nodes);
    Ok(DraftReport::Calibrated {
        nodes: tree.len(),
        asked: Some(calibration.nodes),
        ranks: calibration.ranks,
        depth: calibration.depth,
        prompts: prompts.len(),
        measured_on,
        tree,
    })
}

fn check(contenders: &[Contender], sets: &[PromptSet], settings: &EvaluateSettings) -> Result<()> {
    for (key, empty) in [
        ("prompts", sets.iter().all(|set| set.prompts.is_empty())),
        ("temperatures", settings.samplings.is_empty()),
        ("drafts", contenders.iter().all(|of| of.drafts.is_empty())),
        ("batch_size", settings.batch_size == 0),
    ] {
        if empty {
            return Err(Error::Setting {
                key,
                mismatch: Mismatch::new("at least one", "none"),
            });
        }
    }
    for contender in contenders {
        let reach = contender.reach();
        for draft in &contender.drafts {
            draft.suits(&reach)?;
        }
    }
    Ok(())
}

/// Counts and times of one conversation, all of its turns together.
#[derive(Default)]
pub(crate) struct Measured {
    acceptance: Acceptance,
    /// The same turn by turn, as far as the spread depends on it.
    decoded: Decoded,
    /// Passes of the drafter, one after the other.
    draft_passes: u64,
    seconds: Seconds,
    drafted: Paces,
    /// Without a drafter.
    plain: Option<Paces>,
}

/// What was decoded so many sequences at a time, with a drafter and without.
fn measure<'a>(
    sets: &'a [PromptSet],
    (outputs, plain): (&[Vec<Answer>], Option<&[Vec<Answer>]>),
    batch_size: usize,
) -> Vec<(&'a PromptSet, Vec<Measured>)> {
    let of_set = |(number, set): (usize, &'a PromptSet)| {
        let mut plain = plain.map(|plain| conversations(&plain[number]));
        let measured = conversations(&outputs[number]).map(|turns| {
            let plain = plain.as_mut().map(|plain| plain.next().unwrap_or_default());
            Measured::of(
                &set.prompts[turns[0].conversation],
                (turns, plain),
                batch_size,
            )
        });
        (set, measured.collect())
    };
    sets.iter().enumerate().map(of_set).collect()
}

impl Measured {
    fn of(
        prompt: &Prompt,
        (turns, plain): (&[Answer], Option<&[Answer]>),
        batch_size: usize,
    ) -> Self {
        let passes = || turns.iter().flat_map(|turn| &turn.generation.passes);
        let mut measured = Self {
            acceptance: Acceptance::default(),
            decoded: Decoded {
                turns: turns.iter().map(|turn| turn.generation.counts()).collect(),
                left_out: (prompt.turns() - turns.len()) as u64,
                speedup: None,
            },
            draft_passes: passes().map(|pass| pass.draft_passes as u64).sum(),
            seconds: turns.iter().map(|turn| turn.generation.seconds()).sum(),
            drafted: Paces::of(turns, batch_size),
            plain: plain.map(|plain| Paces::of(plain, batch_size)),
        };
        passes().for_each(|pass| measured.acceptance.add(pass));
        measured.decoded.speedup = speedup(std::iter::once(&measured), |paces| paces.all);
        measured
    }

    /// Adds a turn that was not decoded.
    pub(crate) fn add_expected(&mut self, turn: &Estimate) {
        self.acceptance.merge(&turn.acceptance);
        self.decoded.turns.push(turn.acceptance.counts());
    }

    /// Draft steps that were judged.
    pub(crate) fn judged(&self) -> f64 {
        self.acceptance.tested.iter().sum()
    }
}

fn by_dataset(
    measured: &[(&PromptSet, Vec<Measured>)],
    share: f64,
    seed: u64,
) -> Vec<DatasetReport> {
    let summary = |(set, prompts): &(&PromptSet, Vec<Measured>)| {
        let prompts: Vec<_> = prompts.iter().collect();
        let counts = prompts.iter().map(|prompt| prompt.decoded.counts());
        DatasetReport {
            counts: counts.collect(),
            prompts_sha256: Some(set.sha256()),
            ..summarise(&set.name, &prompts, share, seed)
        }
    };
    measured.iter().map(summary).collect()
}

fn overall(measured: &[(&PromptSet, Vec<Measured>)], share: f64, seed: u64) -> DatasetReport {
    let pooled: Vec<&Measured> = measured.iter().flat_map(|(_, prompts)| prompts).collect();
    summarise("overall", &pooled, share, seed)
}

/// Of each conversation its counts, so that the intervals are over conversations. `share` is what a pass of the drafter reads of parameters, of those of the target.
fn summarise(name: &str, prompts: &[&Measured], share: f64, seed: u64) -> DatasetReport {
    let pooled = pool(prompts.iter().copied());
    let interval = |statistic: fn(&Acceptance) -> Option<f64>| {
        bootstrap(prompts, seed, |drawn| {
            statistic(&pool(drawn.iter().copied().copied()))
        })
    };
    let seconds: Seconds = prompts.iter().map(|prompt| prompt.seconds).sum();
    let decoded: Vec<&Decoded> = prompts.iter().map(|prompt| &prompt.decoded).collect();
    let cost = cost(prompts);
    let is_thin = |prompt: &&Measured| prompt.drafted.full != prompt.drafted.all;
    // Where all batches are full it is the same.
    let full = (prompts.iter().any(is_thin))
        .then(|| measured_speedup(prompts, seed, |paces| paces.full))
        .flatten();
    DatasetReport {
        name: name.into(),
        prompts: (prompts
            .iter()
            .map(|prompt| prompt.decoded.turns.len() as u64))
        .sum(),
        tokens: whole(pooled.emitted),
        passes: whole(pooled.passes),
        tau: pooled.tau(),
        tau_ci95: interval(Acceptance::tau),
        alpha: pooled.alpha(),
        alpha_ci95: interval(Acceptance::alpha),
        alpha_analytic: None,
        conditional: pooled.conditional(),
        survival: pooled.survival(),
        draft_tokens_per_pass: pooled.draft_tokens_per_pass(),
        accepted_histogram: pooled.histogram.iter().copied().map(whole).collect(),
        speedup: measured_speedup(prompts, seed, |paces| paces.all).map(|(wall, wall_ci95)| {
            Speedup {
                wall,
                wall_ci95,
                full_batches: full.map(|(found, _)| found),
                full_batches_ci95: full.and_then(|(_, interval)| interval),
                model: cost.and_then(|cost| cost.by_time()),
                memory_bound: cost.and_then(|cost| cost.by_parameters(share)),
                ..Speedup::default()
            }
        }),
        seconds: SecondsReport {
            draft: seconds.draft,
            verify: seconds.verify,
            other: seconds.other,
            autoregressive: pace(prompts.iter().copied(), |paces| paces.all)
                .map(|[_, plain]| plain.seconds),
        },
        spread: spread(&decoded, seed),
        counts: Vec::new(),
        prompts_sha256: None,
    }
}

/// The whole number nearest to a count, which is none where it is expected and not decoded.
fn whole(count: f64) -> u64 {
    count.round() as u64
}

fn pool<'a>(prompts: impl Iterator<Item = &'a Measured>) -> Acceptance {
    Acceptance::pooled(prompts.map(|prompt| &prompt.acceptance))
}

/// What the cost model reads. `None` when a prompt was not continued without a drafter.
fn cost(prompts: &[&Measured]) -> Option<Cost> {
    let mut cost = Cost::default();
    for prompt in prompts {
        let plain = prompt.plain?.all;
        cost.passes += prompt.acceptance.passes as u64;
        cost.emitted += prompt.acceptance.emitted as u64;
        cost.draft_passes += prompt.draft_passes;
        cost.draft_seconds += prompt.seconds.draft;
        cost.plain_passes += plain.counts.passes as u64;
        cost.plain_seconds += plain.seconds;
    }
    Some(cost)
}

/// The pace with a drafter, and that without. `None` when a prompt was not continued without one.
fn pace<'a>(
    prompts: impl Iterator<Item = &'a Measured>,
    of: fn(&Paces) -> Pace,
) -> Option<[Pace; 2]> {
    let [mut drafted, mut plain] = [Pace::default(); 2];
    for prompt in prompts {
        drafted = drafted + of(&prompt.drafted);
        plain = plain + of(prompt.plain.as_ref()?);
    }
    Some([drafted, plain])
}

/// Tokens per second of the passes with a drafter, over the same without: ratio of the pooled rates.
fn speedup<'a>(prompts: impl Iterator<Item = &'a Measured>, of: fn(&Paces) -> Pace) -> Option<f64> {
    let [drafted, plain] = pace(prompts, of)?;
    drafted.over(plain)
}

/// The same and its interval.
fn measured_speedup(
    prompts: &[&Measured],
    seed: u64,
    of: fn(&Paces) -> Pace,
) -> Option<(f64, Option<[f64; 2]>)> {
    let found = speedup(prompts.iter().copied(), of)?;
    let interval = bootstrap(prompts, seed, |drawn| {
        speedup(drawn.iter().copied().copied(), of)
    });
    Some((found, interval))
}
