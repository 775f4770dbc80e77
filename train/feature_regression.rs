//! Regression of the target's next hidden state, with a cross-entropy through the target's head (EAGLE-1,
//! <https://arxiv.org/abs/2401.15077>), and the same over several passes on the drafter's own predictions (HASS,
//! <https://arxiv.org/abs/2408.15766>).
//!
//! HASS shifts predictions to the right and keeps rows where they are; here rows stay with the feature they start from
//! and tokens shift to the left, as in EAGLE-3. Row `r` of its pass `m` is index `r - m` of step `m` here: the same keys
//! at the same distances. Its code multiplies scores by a 0/1 mask, which leaves hidden keys with `exp(0)` in the
//! softmax; here the mask is added, as in decoding.
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::steps::Steps;
use spectrain_models::unrolled::UnrolledCache;
use spectrain_models::unrolls::Unrolls as _;
use spectrain_models::{Drafter as _, Picks};

use crate::batch::{Batch, Rows, Step};
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::{Judge, Statistics};
use crate::noise::Noise;
use crate::objective::{Loss, Objective};
use crate::recomputed::{positions, run, steps, steps_to_judge};
use crate::row::{JudgedRow, Places};
use crate::teacher::{Teacher, indices};
use crate::training_time_test::MaskAlign;
use crate::vocab_loss::{JudgedRows, LossHead, VocabLoss, judged_loss, surrogate};
use crate::weight::{Weight, changing, vanish_together};
use crate::workload::{WorkRows, Workload};

/// The `[objective]` table of an EAGLE-1 recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeatureRegressionConfig {
    /// Draft steps unrolled in training; EAGLE-1 takes 1, HASS 3.
    pub passes: usize,
    /// Whether each pass sends no gradient back into the predictions that it reads, as in HASS.
    pub detach: bool,
    /// Factor on the distance between predicted and true hidden states.
    pub regression_weight: Weight,
    /// Factor on the divergence between the distributions that the target's head computes from these hidden states.
    pub class_weight: Weight,
    /// The divergence that `class_weight` multiplies; `"soft_ce"` has the value that the papers use.
    pub divergence: Divergence,
    /// Factor on `-Σ p log q` over the target's most likely tokens; HASS takes 1.
    pub top_k_weight: Weight,
    /// How many of the target's most likely tokens `top_k_weight` refers to.
    pub top_k: usize,
    /// Which tokens have to be in the loss mask for a position to count.
    pub mask_align: MaskAlign,
    /// Noise on the true hidden states that the drafter reads, in training only.
    pub noise: Noise,
}

impl Default for FeatureRegressionConfig {
    fn default() -> Self {
        Self {
            passes: 1,
            detach: true,
            regression_weight: Weight::Fixed(1.0),
            class_weight: Weight::Fixed(0.1),
            divergence: Divergence::Kl,
            top_k_weight: Weight::Fixed(0.0),
            top_k: 10,
            mask_align: MaskAlign::Label,
            noise: Noise::default(),
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct FeatureRegression {
    config: FeatureRegressionConfig,
}

impl Objective<Eagle1> for FeatureRegression {
    type Config = FeatureRegressionConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let setting = |key, expected: &str, got| Err(Error::objective(key, expected, got));
        Error::check_objective([
            bounds::up_to("passes", config.passes, bounds::DRAFT),
            bounds::up_to("top_k", config.top_k, bounds::VOCABULARY),
        ])?;
        config.regression_weight.check("regression_weight")?;
        config.class_weight.check("class_weight")?;
        config.top_k_weight.check("top_k_weight")?;
        if let Some(when) = vanish_together(&config.weights().map(|(_, weight)| weight)) {
            let expected = format!("above 0{when}, unless another of the weights is");
            let got = config.regression_weight.to_string();
            return setting("regression_weight", &expected, got);
        }
        if let Some((expected, got)) = config.divergence.problem() {
            return setting("divergence", &expected, got);
        }
        config.noise.check()?;
        Ok(Self {
            config: config.clone(),
        })
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload {
            passes: config.passes,
            held: config.passes,
            rows: WorkRows::Texts,
            judged: 1.0,
            judges: if config.top_k_weight.largest() > 0.0 {
                // No divergence takes more.
                Divergence::TopK(config.top_k).judges()
            } else {
                config.divergence.judges()
            },
            again: 0,
            guessed: 0,
        }
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &Eagle1, batch: &Batch, statistics: Statistics) -> Loss {
        let last = batch.features().last.clone().without_autodiff();
        let rows = self.rows(&batch.rows);
        let steps = steps_to_judge(drafter, batch, &rows);
        let predicted = self.unroll_through(drafter, batch, &steps);
        let teacher = Teacher::new(last.clone(), drafter.target(), drafter.vocabulary());
        let judged = |divergence: &Divergence, factor: f64, statistics| -> VocabLoss {
            let head = LossHead {
                weight: drafter.head(),
                bias: None,
                trained: None,
            };
            let judge = Judge::Target {
                teacher: &teacher,
                divergence,
            };
            let judged = JudgedRows {
                factor,
                picks: Some(steps.picks()),
                ..JudgedRows::new(rows.clone(), judge, statistics)
            };
            judged_loss(&predicted, head, judged)
        };
        let (config, step) = (&self.config, batch.step);
        let class = judged(
            &config.divergence.at(step),
            config.class_weight.at(step),
            statistics,
        );
        let mut loss = Loss::from(class).named(CLASS);
        loss.changing = config.changing(step);
        if rows.is_empty() {
            return loss;
        }
        let weight = config.top_k_weight.at(step);
        if weight > 0.0 {
            let divergence = Divergence::TopK(config.top_k);
            loss.add_term(TOP_K, judged(&divergence, weight, Statistics::Loss));
        }
        let weight = config.regression_weight.at(step);
        if weight > 0.0 {
            let (value, surrogate) = regression(&predicted, last, &rows, (weight, steps.picks()));
            loss.add_scalar(REGRESSION, surrogate, value, weight);
        }
        loss
    }
}

/// The names of the parts of the loss.
const REGRESSION: &str = "regression";
const CLASS: &str = "class";
const TOP_K: &str = "top_k";

impl FeatureRegressionConfig {
    /// The weights of the parts of the loss by their names.
    fn weights(&self) -> [(&'static str, Weight); 3] {
        [
            (REGRESSION, self.regression_weight),
            (CLASS, self.class_weight),
            (TOP_K, self.top_k_weight),
        ]
    }

    /// What changes over the steps, with what it is at one of them.
    fn changing(&self, step: Option<Step>) -> Vec<(&'static str, f64)> {
        let of_divergence = self.divergence.changing(step);
        changing(&self.weights(), step)
            .chain(of_divergence)
            .collect()
    }
}

impl FeatureRegression {
    /// The features predicted by each pass: `passes` times `[batch * seq, d_model]`. Index `t` of pass `j` predicts the
    /// feature of `x_{t+1+j}` from that of `x_t` and the tokens `x_{t+1}..=x_{t+1+j}`; the head reads `x_{t+2+j}` from it.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn unroll(&self, drafter: &Eagle1, batch: &Batch) -> Vec<Tensor<2>> {
        self.unroll_through(drafter, batch, &steps(drafter, batch))
    }

    /// The same of the places where `steps` run.
    fn unroll_through(&self, drafter: &Eagle1, batch: &Batch, steps: &Steps) -> Vec<Tensor<2>> {
        let mut cache = UnrolledCache::new(drafter.layers());
        let mut features = batch.features().last.clone(); // [batch, seq, d_model]
        if let Some(seed) = batch.seed {
            features = self.config.noise.add(features, &batch.rows.layout, seed);
        }
        let tokens = drafter.of_tokens(steps.embedded(features.dtype()));
        let mut predicted = Vec::with_capacity(self.config.passes);
        for pass in 0..self.config.passes {
            let output = run(drafter, (steps, pass), &tokens, features, &mut cache);
            predicted.push(positions(output.clone()));
            let read = if self.config.detach {
                output.detach()
            } else {
                output
            };
            features = steps.onward(pass, read);
        }
        predicted
    }

    /// The positions that count, each with the target's position that judges it: `t + 1 + j` in pass `j`. Their weights
    /// make the mean of each pass.
    fn rows(&self, batch: &Rows) -> Vec<JudgedRow> {
        let pass = |step: usize| {
            let counts = |&position: &usize| self.config.mask_align.counts(batch, position, step);
            let counted: Vec<usize> = (0..batch.len()).filter(counts).collect();
            let weight = 1.0 / counted.len().max(1) as f32;
            let row = move |position: usize| JudgedRow {
                step,
                position,
                teacher: position + 1 + step,
                weight,
            };
            counted.into_iter().map(row)
        };
        (0..self.config.passes).flat_map(pass).collect()
    }
}

/// `Σ weight · mean over the width of SmoothL1(predicted, true)`, and a [surrogate](Loss::surrogate) with its gradients times
/// `factor`.
///
/// # Shapes
/// - predicted: `[positions, d_model]` for each pass, those behind the first of the places that are picked
/// - last: `[batch, seq, d_model]`
/// - output: `[1]` twice
fn regression(
    predicted: &[Tensor<2>],
    last: Tensor<3>,
    rows: &[JudgedRow],
    (factor, picks): (f64, &Picks),
) -> (Tensor<1>, Tensor<1>) {
    let [positions, d_model] = predicted[0].dims();
    let device = last.device();
    let all = Places::new(predicted, Some(picks));
    let places: Vec<usize> = rows.iter().map(|row| all.of(row)).collect();
    let judges: Vec<usize> = rows.iter().map(|row| row.teacher).collect();
    let weights: Vec<f32> = rows.iter().map(|row| row.weight / d_model as f32).collect();
    let weights = Tensor::<1>::from_floats(weights.as_slice(), &device).unsqueeze_dim::<2>(1);
    let states = predicted.iter().map(|p| p.clone().without_autodiff());
    let states = Tensor::cat(states.collect(), 0).select(0, indices(&places, &device));
    let judges = last
        .reshape([positions, d_model])
        .select(0, indices(&judges, &device));
    let difference = states.cast(DType::F32) - judges.cast(DType::F32); // [rows, d_model]
    let value = (smooth_l1(difference.clone()) * weights.clone()).sum();
    // Its slope is the difference, cut at ±1.
    let gradient = difference.clamp(-1.0, 1.0) * (weights * factor);
    let gradient = gradient.cast(predicted[0].dtype());
    (value, surrogate(predicted, gradient, &places, &all))
}

/// `x² / 2` up to 1, `|x| - 1 / 2` beyond: the smooth L1 distance with β = 1.
fn smooth_l1(x: Tensor<2>) -> Tensor<2> {
    let size = x.abs();
    let near = size.clone().clamp_max(1.0);
    near.clone() * (size - near * 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    #[test]
    fn the_smooth_l1_distance_is_a_parabola_between_two_lines() {
        let x = Tensor::<2>::from_floats([[-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0]], &test_device());
        let expected = [2.5, 0.5, 0.125, 0.0, 0.03125, 0.5, 1.5];
        assert_eq!(host_f32(smooth_l1(x)), expected);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let refused = |config: FeatureRegressionConfig| {
            FeatureRegression::new(&config).unwrap_err().to_string()
        };
        let default = FeatureRegressionConfig::default;
        let wrong = [
            (
                "passes",
                FeatureRegressionConfig {
                    passes: 0,
                    ..default()
                },
            ),
            (
                "top_k",
                FeatureRegressionConfig {
                    top_k: 0,
                    ..default()
                },
            ),
            (
                "class_weight",
                FeatureRegressionConfig {
                    class_weight: f64::NAN.into(),
                    ..default()
                },
            ),
            (
                "regression_weight",
                FeatureRegressionConfig {
                    regression_weight: 0.0.into(),
                    class_weight: 0.0.into(),
                    ..default()
                },
            ),
            (
                "divergence",
                FeatureRegressionConfig {
                    divergence: Divergence::Jsd(1.0),
                    ..default()
                },
            ),
            (
                "noise",
                FeatureRegressionConfig {
                    noise: Noise {
                        std: -0.1,
                        ..Noise::default()
                    },
                    ..default()
                },
            ),
        ];
        for (key, config) in wrong {
            let error = refused(config);
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
