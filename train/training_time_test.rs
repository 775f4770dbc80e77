//! Training-time test: the drafter is unrolled on its own hidden states, as it will be when it drafts
//! (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2; FastMTP, <https://arxiv.org/abs/2509.18362>, the same for the
//! layer of multi-token prediction).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;
use spectrain_models::steps::Steps;
use spectrain_models::unrolled::UnrolledCache;
use spectrain_models::unrolls::Unrolls;

use crate::batch::{Batch, Rows};
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::{Judge, Statistics};
use crate::objective::{Loss, Objective};
use crate::passes::by_passes;
use crate::recomputed::{KEPT, Unrolled, positions, run, steps, steps_to_judge};
use crate::row::JudgedRow;
use crate::teacher::Teacher;
use crate::token_loss::TEACHER;
use crate::vocab_loss::{
    HeadParameter, JudgedRows, LossHead, Wanted, judged_loss, vocab_gradients,
};
use crate::weighing::{Divisor, Scope, Weigh, Weighing, reach};
use crate::workload::{WorkRows, Workload};

/// The `[objective]` table of a recipe whose drafter is unrolled. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingTimeTestConfig {
    /// Draft steps unrolled in training.
    pub draft_steps: usize,
    /// How much each draft step counts. Validations weigh steps by `"decay"` in place of `"reach"` and `"passes"`, with which a
    /// better drafter may have a larger loss.
    pub step_weights: StepWeights,
    /// The loss of draft step *j*, counted from 0, is weighted by `decay`^*j*; above 0, at most 1.
    pub decay: f64,
    /// With `"reach"` and `"passes"`: each acceptance rate `α` is replaced by `(1 - certainty) α + certainty`.
    pub certainty: f64,
    /// The divergence minimised at each position.
    pub divergence: Divergence,
    /// Which tokens have to be in the loss mask for a position to count.
    pub mask_align: MaskAlign,
    /// What the sum of a step's losses is divided by.
    pub reduction: Reduction,
    /// What happens to positions where the drafter cannot propose the target's most likely token.
    pub out_of_vocab: OutOfVocab,
    /// Whether the backward pass computes the unrolled steps again, one at a time: far less memory for about a tenth
    /// more time.
    pub recompute: bool,
}

/// How much each draft step counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepWeights {
    /// By `decay`, the same at all positions (the paper).
    Decay,
    /// By how many tokens from this step on a decoder is expected to accept, given the drafter's own acceptance rates at the
    /// position: `Σ_{m >= j} Π_{i <= m} α_i`. With `divergence = "nla"` and `certainty = 0` the gradient is that of the
    /// expected number of accepted tokens.
    Reach,
    /// By the passes that the step saves over the whole text: `-∂W / ∂ log α`, where `W` is the number of passes that a decoder
    /// is expected to take, given the drafter's own acceptance rates. The weight of a step depends on how likely a decoder is
    /// to reach it and on what it saves by getting past it. With `divergence = "nla"` and `certainty = 0` the gradient has the
    /// direction of the gradient of τ.
    Passes,
}

/// Which positions count. The feature of `x_t` and the token `x_{t+1+j}` predict `x_{t+2+j}` at step `j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaskAlign {
    /// The token to predict and all tokens drafted before it, without a gap: the positions where a decoder would draft.
    Label,
    /// The token of the hidden state, as in the code of EAGLE and SpecForge.
    Feature,
}

/// What the sum of a step's losses is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The positions that count.
    Counted,
    /// All positions of the batch, padding included, as EAGLE and SpecForge do.
    All,
}

/// What becomes of positions whose target token cannot be proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutOfVocab {
    /// They do not count.
    Drop,
    /// They count, with the target's distribution renormalised over the drafter's tokens.
    Keep,
}

impl MaskAlign {
    /// Whether a position counts at a step.
    pub(crate) fn counts(self, batch: &Rows, position: usize, step: usize) -> bool {
        match self {
            Self::Label => {
                batch.reaches(position, 2 + step) && batch.drafts(position + 1, 1 + step)
            }
            Self::Feature => batch.reaches(position, 1 + step) && batch.loss_mask[position + step],
        }
    }
}

impl Default for TrainingTimeTestConfig {
    fn default() -> Self {
        Self {
            draft_steps: 7,
            step_weights: StepWeights::Decay,
            decay: 0.8,
            certainty: 0.5,
            divergence: Divergence::Kl,
            mask_align: MaskAlign::Label,
            reduction: Reduction::Counted,
            out_of_vocab: OutOfVocab::Drop,
            recompute: true,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct TrainingTimeTest {
    config: TrainingTimeTestConfig,
}

impl<D: Unrolls> Objective<D> for TrainingTimeTest {
    type Config = TrainingTimeTestConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let setting = |key, expected: &str, got| Err(Error::objective(key, expected, got));
        Error::check_objective([bounds::up_to(
            "draft_steps",
            config.draft_steps,
            bounds::DRAFT,
        )])?;
        if !(config.decay > 0.0 && config.decay <= 1.0) {
            return setting("decay", "above 0 and at most 1", config.decay.to_string());
        }
        if !(0.0..=1.0).contains(&config.certainty) {
            return setting("certainty", "from 0 to 1", config.certainty.to_string());
        }
        if config.step_weights != StepWeights::Decay && config.reduction == Reduction::All {
            let expected = "`counted`, since these `step_weights` are divided by their sum";
            return setting("reduction", expected, "all".into());
        }
        if let Some((expected, got)) = config.divergence.problem() {
            return setting("divergence", &expected, got);
        }
        Ok(Self {
            config: config.clone(),
        })
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload {
            passes: config.draft_steps,
            held: if config.recompute {
                config.draft_steps.min(KEPT)
            } else {
                config.draft_steps
            },
            rows: WorkRows::Texts,
            judged: 1.0,
            judges: config.divergence.judges(),
            again: 0,
            guessed: 0,
        }
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &D, batch: &Batch, statistics: Statistics) -> Loss {
        let last = batch.features().last.clone().without_autodiff();
        let mut teacher = Teacher::new(last, drafter.target(), drafter.vocabulary());
        let step_weights = self.step_weights(batch);
        let (rows, missed) = self.rows(&batch.rows, &mut teacher, step_weights);
        let divergence = self.config.divergence.at(batch.step);
        let judge = Judge::Target {
            teacher: &teacher,
            divergence: &divergence,
        };
        let certainty = self.config.certainty;
        let reach = |rows: &mut [JudgedRow], found: &[[f32; 2]]| {
            by_reach(rows, found, certainty as f32);
        };
        let passes = |rows: &mut [JudgedRow], found: &[[f32; 2]]| {
            by_passes(rows, found, &missed, certainty);
        };
        let by_position = Scope::Group(&|row| row.position);
        let weigh: Option<(Scope, &Weigh)> = match step_weights {
            StepWeights::Decay => None,
            StepWeights::Reach => Some((by_position, &reach)),
            StepWeights::Passes => Some((Scope::All, &passes)),
        };
        let weighing = weigh.map(|(scope, weigh)| Weighing {
            scope,
            weigh,
            divisor: Divisor::Weights,
        });
        let steps = steps_to_judge(drafter, batch, &rows);
        let picks = steps.picks().clone();
        let judged = JudgedRows {
            weighing,
            picks: Some(&picks),
            ..JudgedRows::new(rows, judge, statistics)
        };
        let head = LossHead {
            weight: drafter.head(),
            bias: None,
            trained: drafter.head_parameter().map(HeadParameter::Weight),
        };
        let mut loss = if self.config.recompute && batch.tokens.is_autodiff() {
            let (unrolled, hidden) =
                Unrolled::new(drafter, steps, batch.features(), self.config.draft_steps);
            let mut judged = vocab_gradients(hidden, head, judged, Wanted::Gradients);
            let gradients = std::mem::take(&mut judged.hidden_gradients);
            let mut loss = Loss::from(judged).named(TEACHER);
            if !gradients.is_empty() {
                loss.gradients = unrolled.backward(drafter, gradients);
            }
            loss
        } else {
            let hidden = self.unroll_through(drafter, batch, &steps);
            Loss::from(judged_loss(&hidden, head, judged)).named(TEACHER)
        };
        loss.missed = missed;
        loss.changing = self.config.divergence.changing(batch.step);
        if self.config.reduction == Reduction::All {
            loss.counted = batch.rows.len() as f64;
        }
        loss
    }
}

impl TrainingTimeTest {
    /// What the head reads at each step: `steps` times `[batch * seq, d_model]`. Index `t` of step `j` predicts
    /// `x_{t+2+j}` from the feature of `x_t` and the tokens `x_{t+1}..=x_{t+1+j}`.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn unroll(&self, drafter: &impl Unrolls, batch: &Batch) -> Vec<Tensor<2>> {
        self.unroll_through(drafter, batch, &steps(drafter, batch))
    }

    /// The same of the places where `steps` run.
    fn unroll_through(
        &self,
        drafter: &impl Unrolls,
        batch: &Batch,
        steps: &Steps,
    ) -> Vec<Tensor<2>> {
        let mut cache = UnrolledCache::new(drafter.layers());
        let mut hidden = drafter.begin(batch.features()); // [batch, seq, d_model]
        let tokens = drafter.of_tokens(steps.embedded(hidden.dtype()));
        let mut normed = Vec::with_capacity(self.config.draft_steps);
        for step in 0..self.config.draft_steps {
            let output = run(drafter, (steps, step), &tokens, hidden, &mut cache);
            normed.push(positions(drafter.normed(output.clone())));
            hidden = drafter.next(steps.onward(step, output));
        }
        normed
    }

    /// How steps are weighed. By the drafter's own acceptance rates a better drafter might have the larger loss, as later steps
    /// begin to count; so outside of training, where there is no seed, they are weighed by the decay.
    fn step_weights(&self, batch: &Batch) -> StepWeights {
        match batch.seed {
            Some(_) => self.config.step_weights,
            None => StepWeights::Decay,
        }
    }

    /// The positions that count, each with the target's position that judges it: `t + 1 + j` at step `j`. And step and
    /// position of those left out because the target's token cannot be proposed.
    fn rows(
        &self,
        batch: &Rows,
        teacher: &mut Teacher,
        step_weights: StepWeights,
    ) -> (Vec<JudgedRow>, Vec<(usize, usize)>) {
        let counts = |position, step| self.config.mask_align.counts(batch, position, step);
        let positions = 0..batch.len();
        let mut rows: Vec<JudgedRow> = (0..self.config.draft_steps)
            .flat_map(|step| positions.clone().map(move |position| (step, position)))
            .filter(|&(step, position)| counts(position, step))
            .map(|(step, position)| JudgedRow {
                step,
                position,
                teacher: position + 1 + step,
                weight: 0.0,
            })
            .collect();
        let missed = self.drop_out_of_vocab(&mut rows, teacher);
        if step_weights != StepWeights::Decay {
            rows.sort_by_key(|row| (row.position, row.step));
            return (rows, missed);
        }
        let mut counted = vec![0usize; self.config.draft_steps];
        rows.iter().for_each(|row| counted[row.step] += 1);
        for row in &mut rows {
            let divisor = match self.config.reduction {
                Reduction::Counted => counted[row.step],
                Reduction::All => batch.len(),
            };
            row.weight = (self.config.decay.powi(row.step as i32) / divisor as f64) as f32;
        }
        (rows, missed)
    }

    fn drop_out_of_vocab(
        &self,
        rows: &mut Vec<JudgedRow>,
        teacher: &mut Teacher,
    ) -> Vec<(usize, usize)> {
        teacher.find_proposable(rows.iter().map(|row| row.teacher));
        if self.config.out_of_vocab == OutOfVocab::Keep {
            return Vec::new();
        }
        let out = |row: &mut JudgedRow| !teacher.can_be_met(row.teacher);
        rows.extract_if(.., out)
            .map(|row| (row.step, row.position))
            .collect()
    }
}

/// Weighs the steps of each position: `w_j = Σ_{m >= j} Π_{i <= m} α_i`, with `α` mixed with certainty. A step that does not
/// count is reached by none.
fn by_reach(rows: &mut [JudgedRow], mut found: &[[f32; 2]], certainty: f32) {
    for steps in rows.chunk_by_mut(|one, other| one.position == other.position) {
        let (here, rest) = found.split_at(steps.len());
        found = rest;
        let places = steps.iter().zip(here).enumerate();
        let kept = places.map(|(at, (row, [alpha, _]))| match row.step == at {
            true => (1.0 - certainty) * alpha + certainty,
            false => 0.0,
        });
        let weights = reach(&kept.collect::<Vec<_>>());
        for (row, weight) in steps.iter_mut().zip(weights) {
            row.weight = weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_weigh_as_much_as_decoders_get_to_them_and_beyond() {
        let row = |(position, step)| JudgedRow {
            step,
            position,
            teacher: 0,
            weight: 0.0,
        };
        // Of position 7 the second step does not count, so the third is never reached.
        let mut rows = [(3, 0), (3, 1), (3, 2), (7, 0), (7, 2), (9, 1), (11, 0)].map(row);
        let found = [0.5, 0.5, 1.0, 0.25, 1.0, 1.0, 0.0].map(|alpha| [alpha, 1.0]);
        let weights = |rows: &[JudgedRow]| rows.iter().map(|row| row.weight).collect::<Vec<_>>();
        by_reach(&mut rows, &found, 0.0);
        assert_eq!(weights(&rows), [1.0, 0.5, 0.25, 0.25, 0.0, 0.0, 0.0]);
        by_reach(&mut rows, &found, 0.5);
        // Mixed: 0.75, 0.75, 1; 0.625; 0.5.
        assert_eq!(weights(&rows), [1.875, 1.125, 0.5625, 0.625, 0.0, 0.0, 0.5]);
    }
}
