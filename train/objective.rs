use burn::module::{Module, ParamId};
use burn::prelude::*;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Batch, Result, Row, Statistics, VocabLoss};
use spectrain_models::weights::host_f32;

/// What a model of type `M` is trained to minimise.
pub trait Objective<M: Module>: Sized {
    /// The recipe's `[objective]` table.
    type Config: DeserializeOwned + Serialize + Clone + Send + Sync;

    /// Creates the objective.
    ///
    /// # Errors
    /// A setting makes no sense.
    fn new(config: &Self::Config) -> Result<Self>;

    /// The loss of `model` on `batch`, which is in the same graph as the model's parameters, if any.
    fn loss(&self, model: &M, batch: &Batch, statistics: Statistics) -> Loss;
}

/// A loss and what it is made of. Nothing is read from the device before it is asked for.
pub struct Loss {
    /// See [`VocabLoss::surrogate`].
    pub surrogate: Tensor<1>,
    /// See [`VocabLoss::head_gradient`].
    pub head_gradient: Option<(ParamId, Tensor<2>)>,
    /// Every position judged, with its step.
    pub rows: Vec<Row>,
    /// `[rows, 1]`: distance at each.
    values: Tensor<2>,
    /// `[rows, 2]`: see [`VocabLoss::statistics`].
    statistics: Option<Tensor<2>>,
}

/// A loss on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct LossReport {
    /// What is minimised.
    pub total: f64,
    /// One for each draft step.
    pub steps: Vec<StepReport>,
    /// 1 + Σ over steps of the share of positions where this step and all before it guess the target's most likely
    /// token: the mean acceptance length of a greedy chain on the text as it is. 1 without statistics.
    pub simulated_tau: f64,
    /// Positions behind [`Self::simulated_tau`].
    pub chains: usize,
}

/// Sums over the judged positions of a draft step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepReport {
    /// Positions.
    pub count: usize,
    /// Distances, without weights.
    pub loss: f64,
    /// Acceptance rates.
    pub alpha: f64,
    /// Positions where the most likely tokens agree.
    pub correct: f64,
    /// Positions where those of all steps before it agree: the ones a greedy decoder would get to.
    pub reached: usize,
    /// And those of this step too.
    pub kept: usize,
}

impl StepReport {
    /// Adds the sums of another batch.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.loss += other.loss;
        self.alpha += other.alpha;
        self.correct += other.correct;
        self.reached += other.reached;
        self.kept += other.kept;
    }
}

impl From<VocabLoss> for Loss {
    fn from(loss: VocabLoss) -> Self {
        Self {
            surrogate: loss.surrogate,
            head_gradient: loss.head_gradient,
            rows: loss.rows,
            values: loss.values,
            statistics: loss.statistics,
        }
    }
}

impl Loss {
    /// Reads the loss from the device.
    pub fn report(&self) -> LossReport {
        let values = host_f32(self.values.clone());
        let statistics = self.statistics.clone().map(host_f32);
        let depth = self.rows.iter().map(|row| row.step + 1).max().unwrap_or(0);
        let mut steps = vec![StepReport::default(); depth];
        let mut total = 0.0;
        // Steps in order for each position, so that a chain ends at its first miss.
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&i| (self.rows[i].position, self.rows[i].step));
        let (mut position, mut next) = (usize::MAX, 0);
        for i in order {
            let row = self.rows[i];
            total += row.weight as f64 * values[i] as f64;
            let step = &mut steps[row.step];
            step.count += 1;
            step.loss += values[i] as f64;
            let Some(statistics) = &statistics else {
                continue;
            };
            let correct = statistics[2 * i + 1];
            step.alpha += statistics[2 * i] as f64;
            step.correct += correct as f64;
            if row.position != position {
                (position, next) = (row.position, 0);
            }
            // A position that a step leaves out (its target token cannot be proposed, or the text ends) ends the chain.
            if row.step == next {
                step.reached += 1;
                if correct > 0.5 {
                    step.kept += 1;
                    next += 1;
                }
            }
        }
        let chains = steps.first().map_or(0, |step| step.reached);
        let kept: usize = steps.iter().map(|step| step.kept).sum();
        LossReport {
            total,
            simulated_tau: 1.0 + kept as f64 / chains.max(1) as f64,
            chains,
            steps,
        }
    }
}
