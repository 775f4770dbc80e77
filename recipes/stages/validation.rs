//! What a drafter in training is worth on conversations that it does not learn from.

use anyhow::{Context as _, Result};
use burn::tensor::DType;
use spectrain_eval::{Acceptance, Estimable, Reach, bootstrap, estimate, evenly};
use spectrain_train::{
    BatchSource, Error, Gain, LossReport, Samples, StepReport, Together, Train, TrainConfig,
    Validation,
};

use crate::runtime::interruption::interrupted;
use crate::runtime::prompts::{beside, distinct_tokens};
use crate::stages::answers::Answers;
use crate::stages::context::StageContext;
use crate::stages::evaluate::prompts::{Evaluated, decoded};
use crate::stages::prepare;

/// Validates the drafter of a stage.
pub(super) struct Validator<'a> {
    /// Type that the drafter computes in.
    pub(super) compute: DType,
    /// How much is validated.
    pub(super) config: &'a TrainConfig,
    /// Held-out conversations.
    pub(super) held_out: Samples,
    /// Their features.
    pub(super) source: Box<dyn BatchSource>,
    /// The target's answers to held-out prompts; none for what does not draft yet.
    pub(super) answers: Answers<'a>,
}

impl Validator<'_> {
    /// The loss on held-out conversations, τ on held-out prompts, and how much that is beyond τ of the best validation before.
    /// Batches and prompts are shared out among the ranks.
    pub(super) fn of(
        &mut self,
        trainee: &dyn Train,
        best: Option<&Validation>,
        together: &mut Together,
    ) -> spectrain_train::Result<Validation> {
        let reports = self.losses(trainee, together);
        let reports = together.gather_pieces(reports)?;
        let mut found = HeldOut::from_iter(reports).validation();
        let (length, decoded) = self.count(trainee, together)?;
        found.decoded = decoded;
        found.tau = tau(&found.decoded.iter().collect::<Vec<_>>());
        found.draft_length = found.tau.map(|_| length);
        found.tau_ci95 = bootstrap(&found.decoded, 0, tau);
        found.decoded_sha256 = found.tau.and_then(|_| self.answers.sha256());
        if let Some(best) = best.filter(|best| best.tau.is_some() && found.tau.is_some()) {
            found.gain = gain(&found, best);
            if found.gain.is_none() && together.leads() {
                tracing::warn!(
                    "the best weights so far were validated on other prompts or answers, so the loss decides between them and these"
                );
            }
        }
        Ok(found)
    }

    /// What the losses are on those held-out batches that are this rank's, each with its number.
    fn losses(
        &mut self,
        trainee: &dyn Train,
        together: &Together,
    ) -> spectrain_train::Result<Vec<(usize, LossReport)>> {
        let (mut samples, mut reports) = (0, Vec::new());
        for (number, packed) in self.held_out.epoch(0)?.into_iter().enumerate() {
            if samples >= self.config.validate_samples {
                break;
            }
            samples += packed.rows.iter().map(Vec::len).sum::<usize>();
            if !together.takes(number) {
                continue;
            }
            if interrupted() {
                return Err(Error::Interrupted);
            }
            reports.push((number, trainee.measure(&self.source.batch(packed)?)));
        }
        Ok(reports)
    }

    /// Tokens in the chains that are drafted, and of each prompt the tokens emitted and the passes that they take, greedily and
    /// with these chains: those of a decoder, from the answers that the target gave once. So the counts of two validations can be
    /// compared prompt by prompt.
    fn count(
        &mut self,
        trainee: &dyn Train,
        together: &mut Together,
    ) -> spectrain_train::Result<(usize, Vec<[u64; 2]>)> {
        let (Some(proposer), 1..) = (trainee.proposer(self.compute), self.answers.len()) else {
            return Ok((0, Vec::new()));
        };
        let length = match self.config.decode_draft_length {
            0 => proposer.draft_length(),
            length => Reach::of(proposer.as_ref()).chain(length),
        };
        let draft = Estimable::greedy_chain(length);
        self.answers.complete(together)?;
        let count = |prompt: usize| {
            if interrupted() {
                return Err(Error::Interrupted);
            }
            let text = self.answers.text(prompt);
            let found = text.map(|text| estimate(proposer.as_ref(), &text, &draft));
            let counts = match found.transpose() {
                Ok(found) => found.unwrap_or_default().acceptance,
                Err(error) => {
                    tracing::warn!(
                        "cannot compute how much is accepted on a validation prompt: {error}"
                    );
                    Acceptance::default()
                }
            };
            Ok((prompt, [counts.emitted as u64, counts.passes as u64]))
        };
        let prompts = (0..self.answers.len()).filter(|&prompt| together.takes(prompt));
        let counted = prompts.map(count).collect();
        Ok((length, together.gather_pieces(counted)?))
    }
}

/// Tokens emitted per pass, over all of these prompts.
fn tau(prompts: &[&[u64; 2]]) -> Option<f64> {
    let sum = |part: usize| prompts.iter().map(|counts| counts[part]).sum::<u64>();
    let (emitted, passes) = (sum(0), sum(1));
    (passes > 0).then(|| emitted as f64 / passes as f64)
}

/// What τ of `found` is beyond that of `best` on the same prompts. `None` where the prompts are not the same, or none.
fn gain(found: &Validation, best: &Validation) -> Option<Gain> {
    let (of, with) = (&found.decoded_sha256, &best.decoded_sha256);
    if of != with || found.decoded.len() != best.decoded.len() {
        return None;
    }
    let pairs: Vec<_> = found.decoded.iter().zip(&best.decoded).collect();
    let difference = |pairs: &[&(&[u64; 2], &[u64; 2])]| {
        let (found, best): (Vec<_>, Vec<_>) = pairs.iter().map(|&&pair| pair).unzip();
        Some(tau(&found)? - tau(&best)?)
    };
    let gain = difference(&pairs.iter().collect::<Vec<_>>())?;
    // Of one prompt nobody knows how others are: with 0 in the interval the loss decides.
    let unknown = [gain.min(0.0), gain.max(0.0)];
    Some(Gain {
        tau: gain,
        ci95: bootstrap(&pairs, 0, difference).unwrap_or(unknown),
    })
}

/// Prompts that the evaluation will not use, as far as there are any.
pub(super) fn validation_prompts(context: &StageContext, count: usize) -> Result<Vec<Vec<u32>>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let (prompts, _) = distinct_tokens(prepare::prompts(context.run)?);
    // Nothing is told of them here, so they need no name.
    let evaluated = Evaluated::of(context, "")
        .context("which held-out prompts validations leave to the evaluation")?;
    let others = beside(decoded(&evaluated.read), prompts.clone());
    let from = if others.is_empty() { prompts } else { others };
    Ok(evenly(from, count))
}

/// Sums over the held-out batches.
#[derive(Default)]
struct HeldOut {
    steps: Vec<StepReport>,
    /// Of the losses, each times what it is a mean over.
    loss: f64,
    /// Of that.
    counted: f64,
}

impl FromIterator<LossReport> for HeldOut {
    fn from_iter<I: IntoIterator<Item = LossReport>>(reports: I) -> Self {
        let mut sums = Self::default();
        reports.into_iter().for_each(|report| sums.add(&report));
        sums
    }
}

impl HeldOut {
    fn add(&mut self, report: &LossReport) {
        self.loss += report.total * report.counted;
        self.counted += report.counted;
        if self.steps.len() < report.steps.len() {
            self.steps.resize(report.steps.len(), StepReport::default());
        }
        for (sum, step) in self.steps.iter_mut().zip(&report.steps) {
            sum.add(step);
        }
    }

    fn validation(&self) -> Validation {
        let share = |part: f64, whole: usize| part / whole.max(1) as f64;
        let each = |of: &dyn Fn(&StepReport) -> f64| self.steps.iter().map(of).collect();
        let mut found = Validation {
            // Not a number where nothing was measured.
            loss: self.loss / self.counted,
            alpha: each(&StepReport::mean_alpha),
            agreement: each(&StepReport::agreement),
            recall: self.steps.iter().map_while(StepReport::recall).collect(),
            ..Validation::default()
        };
        let chains = self.steps.first().map_or(0, |step| step.reached);
        if chains > 0 {
            let kept: usize = self.steps.iter().map(|step| step.kept).sum();
            let reached = self.steps.iter().take_while(|step| step.reached > 0);
            let kept_of = |step: &StepReport| share(step.kept as f64, step.reached);
            found.conditional = reached.map(kept_of).collect();
            found.simulated_tau = Some(1.0 + share(kept as f64, chains));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Counts of prompts whose passes emit `emitted[i]` tokens for every 10 passes.
    fn decoded(emitted: impl Iterator<Item = u64>) -> Validation {
        counted(emitted.map(|emitted| [emitted, 10]).collect())
    }

    /// A validation that has counted this.
    fn counted(decoded: Vec<[u64; 2]>) -> Validation {
        Validation {
            decoded,
            decoded_sha256: Some("prompts".into()),
            ..Validation::default()
        }
    }

    fn report(total: f64, counted: f64) -> LossReport {
        LossReport {
            total,
            terms: 0.0,
            parts: BTreeMap::new(),
            changing: BTreeMap::new(),
            counted,
            steps: Vec::new(),
            measured: true,
            simulated_tau: 1.0,
            chains: 0,
        }
    }

    #[test]
    fn batches_weigh_in_the_loss_by_the_positions_that_count_in_them() {
        let of = |reports: &[LossReport]| HeldOut::from_iter(reports.iter().cloned()).validation();
        // One of 30 positions, one of 10, and one of none.
        let found = of(&[report(1.0, 30.0), report(3.0, 10.0), report(0.0, 0.0)]);
        assert_eq!(found.loss, 1.5);
        assert!(of(&[]).loss.is_nan());
        assert!(of(&[report(0.0, 0.0)]).loss.is_nan());
    }

    #[test]
    fn a_simulated_tau_is_found_where_chains_were_followed() {
        let step = StepReport {
            count: 4,
            alpha: 2.0,
            ..StepReport::default()
        };
        let of = |steps: Vec<StepReport>| {
            let report = LossReport {
                steps,
                ..report(1.0, 4.0)
            };
            HeldOut::from_iter([report]).validation()
        };
        let none = of(vec![step]);
        assert_eq!((none.alpha, none.conditional), (vec![0.5], vec![]));
        assert_eq!(none.simulated_tau, None);
        let [first, second] = [(4, 3), (3, 1)].map(|(reached, kept)| StepReport {
            reached,
            kept,
            ..step
        });
        let found = of(vec![first, second]);
        assert_eq!(found.conditional, [3.0 / 4.0, 1.0 / 3.0]);
        assert_eq!(found.simulated_tau, Some(2.0));
        // Of a step that no chain came to nothing is known; that none left the one before is.
        let missed = StepReport { kept: 0, ..second };
        let found = of(vec![first, missed, step]);
        assert_eq!(found.conditional, [3.0 / 4.0, 0.0]);
        assert_eq!(found.alpha, [0.5; 3]);
    }

    #[test]
    fn agreement_and_recall_are_shares_of_all_positions() {
        let step = |count, correct, recalled| StepReport {
            count,
            correct,
            recalled,
            ..StepReport::default()
        };
        let of = |batches: [Vec<StepReport>; 2]| {
            let reports = batches.map(|steps| LossReport {
                steps,
                ..report(1.0, 4.0)
            });
            HeldOut::from_iter(reports).validation()
        };
        let first = vec![step(4, 1.0, Some(3))];
        let found = of([first, vec![step(4, 2.0, Some(3)), step(2, 1.0, Some(2))]]);
        assert_eq!(found.agreement, [3.0 / 8.0, 0.5]);
        assert_eq!(found.recall, [0.75, 1.0]);
        // There is nothing to choose from.
        let found = of([vec![step(4, 1.0, None)], vec![step(4, 2.0, None)]]);
        assert_eq!((found.agreement, found.recall), (vec![3.0 / 8.0], vec![]));
    }

    #[test]
    fn prompts_that_differ_among_themselves_do_not_hide_a_gain_on_each() {
        let of_one = |more: u64| decoded((0..64).map(|at| 15 + at % 30 + more));
        let found = gain(&of_one(2), &of_one(0)).unwrap();
        assert!((found.tau - 0.2).abs() < 1e-9, "{found:?}");
        let [low, high] = found.ci95;
        assert!(
            (low - 0.2).abs() < 1e-9 && (high - 0.2).abs() < 1e-9,
            "{found:?}"
        );
        // Of one validation alone the interval is wider than the gain.
        let [low, high] = bootstrap(&of_one(0).decoded, 0, tau).unwrap();
        assert!(high - low > 0.2, "{low} {high}");
    }

    #[test]
    fn a_gain_on_half_of_the_prompts_and_a_loss_on_the_others_is_none() {
        let best = decoded((0..64).map(|_| 30));
        let found = decoded((0..64).map(|at| if at % 2 == 0 { 36 } else { 25 }));
        let found = gain(&found, &best).unwrap();
        assert!(found.tau > 0.0 && found.ci95[0] < 0.0, "{found:?}");
    }

    #[test]
    fn a_gain_on_one_prompt_is_not_sure() {
        let [found, best] = [[30, 10], [20, 10]].map(|counts| counted(vec![counts]));
        let found = gain(&found, &best).unwrap();
        assert_eq!((found.tau, found.ci95), (1.0, [0.0, 1.0]));
    }

    #[test]
    fn validations_of_other_prompts_are_not_compared() {
        let of = |count: usize| decoded((0..count).map(|_| 30));
        assert_eq!(gain(&of(3), &of(4)), None);
        assert_eq!(gain(&of(0), &of(0)), None);
        // A prompt that was not decoded has no passes.
        let [none, some] = [[0, 0], [30, 10]].map(|counts| counted(vec![counts]));
        assert_eq!(gain(&none, &some), None);
        // As many prompts, but others, or nobody knows which: earlier versions did not say.
        assert!(gain(&of(3), &of(3)).is_some());
        for decoded_sha256 in [Some("others".to_owned()), None] {
            let best = Validation {
                decoded_sha256,
                ..of(3)
            };
            assert_eq!(gain(&of(3), &best), None);
        }
    }
}
