//! A feed-forward part of many experts that is trained, of which each token goes through a few and one more that all tokens
//! share (DeepSeekMoE, <https://arxiv.org/abs/2401.06066>), as in Qwen3-Next, Qwen3.5-MoE, DeepSeek-V3 and GLM-4.5. Experts that
//! stay as they are, a frozen target's, are a [`SparseMlp`](crate::experts::SparseMlp).
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::activation::{sigmoid, softmax};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::error::Result;
use crate::experts::{grouped, on_host};
use crate::linear::{Bias, Linear};
use crate::mlp::Mlp;
use crate::products::Precision;
use crate::weights::{CHOICE_BIAS, Init, Scope};

/// The table `[drafter.experts]`. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertsTable {
    /// How many experts there are: `num_experts` of the target.
    pub count: usize,
    /// How many each token goes through: `num_experts_per_tok` of the target. 0 takes 8, or all if there are fewer.
    pub per_token: usize,
    /// Width inside an expert: `moe_intermediate_size` of the target. 0 shares the target's feed-forward width out among those
    /// that a token goes through.
    pub d_ff: usize,
    /// Width inside the expert that all tokens share: `shared_expert_intermediate_size` of the target. 0 takes that of the
    /// others.
    pub shared_d_ff: usize,
}

impl Default for ExpertsTable {
    fn default() -> Self {
        Self {
            count: 64,
            per_token: 0,
            d_ff: 0,
            shared_d_ff: 0,
        }
    }
}

impl ExpertsTable {
    /// Fails on what makes no sense for any target.
    pub(crate) fn check(&self) -> Result<()> {
        bounds::check([
            bounds::up_to("experts.count", self.count, bounds::EXPERTS),
            bounds::or_none("experts.per_token", self.per_token, self.count),
            bounds::or_none("experts.d_ff", self.d_ff, bounds::FEED_FORWARD),
            bounds::or_none(
                "experts.shared_d_ff",
                self.shared_d_ff,
                bounds::FEED_FORWARD,
            ),
        ])?;
        Ok(())
    }

    /// With all sizes, for a target of this feed-forward width.
    pub(crate) fn filled(&self, d_ff: usize) -> Self {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let per_token = or(self.per_token, self.count.min(8));
        let d_ff = or(self.d_ff, d_ff.div_ceil(per_token));
        Self {
            count: self.count,
            per_token,
            d_ff,
            shared_d_ff: or(self.shared_d_ff, d_ff),
        }
    }

    /// The sizes.
    pub(crate) fn sizes(&self) -> MixtureConfig {
        MixtureConfig {
            count: self.count,
            per_token: self.per_token,
            d_ff: self.d_ff,
            shared_d_ff: self.shared_d_ff,
            scoring: Scoring::Softmax,
        }
    }
}

/// Sizes of a [`MixtureMlp`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixtureConfig {
    /// How many experts there are.
    pub count: usize,
    /// How many a token goes through.
    pub per_token: usize,
    /// Width inside each of them.
    pub d_ff: usize,
    /// Width inside the expert that all tokens share.
    pub shared_d_ff: usize,
    /// How experts are chosen and weighed.
    pub scoring: Scoring,
}

/// How the experts of a token are chosen and weighed, by what `gate x` says of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scoring {
    /// The largest of its softmax, whose sum is made 1; the shared expert counts as much as a gate of its own says (Qwen3-Next).
    Softmax,
    /// The largest of its sigmoid and a bias that is not trained, among those of the best groups; weighed by the sigmoid alone,
    /// whose sum is made `scale`; the shared expert counts in full (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section
    /// 2.1.2).
    Sigmoid {
        /// Groups of as many experts each. The two best experts tell how good a group is.
        groups: usize,
        /// How many of them a token's experts may be in.
        groups_per_token: usize,
        /// What the weights sum to.
        scale: f64,
    },
}

impl MixtureConfig {
    /// Parameters of the experts that a token does not go through, in a layer of width `d_model`.
    pub fn idle_parameters(&self, d_model: usize) -> u64 {
        (self.count - self.per_token) as u64 * 3 * d_model as u64 * self.d_ff as u64
    }
}

/// `Σ w_e mlp_e(x) + g shared(x)`, where the sum is over the `per_token` experts that [`Scoring`] chooses, and `g` is
/// `sigmoid(shared_expert_gate x)` or 1.
///
/// Each expert is a module of its own, so that the backward pass touches only those that some row of a batch went through,
/// rows of padding included; the others have no gradient, and the optimiser leaves them and what it keeps of them as they are.
#[derive(Module, Debug)]
pub struct MixtureMlp {
    /// Tells which experts a token goes through.
    gate: Linear,
    experts: Vec<Mlp>,
    shared_expert: Mlp,
    /// Tells how much of the shared expert a token gets; absent where it gets all.
    shared_expert_gate: Option<Linear>,
    /// `[experts]`, what is added before experts are chosen by sigmoids. It evened out how often each was chosen while the target
    /// was trained, and takes no gradient.
    e_score_correction_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    per_token: usize,
    #[module(skip)]
    scoring: Scoring,
}

impl MixtureMlp {
    /// The block `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter of an expert, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_model: usize, config: MixtureConfig) -> Result<Self> {
        let gate = |scope: &mut Scope, name, width| {
            Linear::new(&mut scope.child(name), d_model, width, Bias::Without)
        };
        let expert = |scope: &mut Scope, name: String, d_ff| {
            Mlp::new(&mut scope.child(name), d_model, d_ff, Bias::Without)
        };
        let router = gate(scope, "gate", config.count)?;
        let experts = (0..config.count)
            .map(|index| expert(scope, format!("experts.{index}"), config.d_ff))
            .collect::<Result<_>>()?;
        let shared_expert = expert(scope, "shared_expert".to_owned(), config.shared_d_ff)?;
        let (shared_expert_gate, e_score_correction_bias) = match config.scoring {
            Scoring::Softmax => (Some(gate(scope, "shared_expert_gate", 1)?), None),
            Scoring::Sigmoid { .. } => {
                let bias = scope.vector(CHOICE_BIAS, config.count, Init::Constant(0.0))?;
                (None, Some(bias))
            }
        };
        Ok(Self {
            gate: router,
            experts,
            shared_expert,
            shared_expert_gate,
            e_score_correction_bias,
            per_token: config.per_token,
            scoring: config.scoring,
        })
    }

    /// `[batch, seq, d_model]` to the same. What a row gives does not depend on the rows beside it.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let mut shared = self.shared_expert.forward(x.clone());
        if let Some(gate) = &self.shared_expert_gate {
            shared = shared * share(gate, x.clone());
        }
        let x = x.reshape([batch * seq, d_model]);
        let (weights, chosen) = self.route(x.clone());
        let of_each = grouped(x, &chosen, |expert, rows| {
            let rows: Tensor<3> = rows.unsqueeze_dim(0);
            self.experts[expert].forward(rows).squeeze_dim(0)
        });
        let weighed = of_each * weights.unsqueeze_dim(2); // [rows, per_token, d_model]
        weighed.sum_dim(1).reshape([batch, seq, d_model]) + shared
    }

    /// The experts of each row, those of the first row first, and their weights in the type of `x`. Weights take gradients,
    /// the choice does not.
    ///
    /// # Shapes
    /// - x: `[rows, d_model]`
    /// - output: `[rows, per_token]`, and as many experts
    fn route(&self, x: Tensor<2>) -> (Tensor<2>, Vec<usize>) {
        let dtype = x.dtype();
        let logits = {
            // Rounding must not choose other experts.
            let _exactly = Precision::F32.scope();
            self.gate.forward(x.cast(DType::F32))
        };
        let (scores, scale) = match self.scoring {
            Scoring::Softmax => (softmax(logits, 1), 1.0),
            Scoring::Sigmoid { scale, .. } => (sigmoid(logits), scale),
        };
        let by = self.chosen_by(scores.clone().detach());
        let (_, chosen) = by.topk_with_indices(self.per_token, 1);
        // Nothing is the largest of what is no number, where activations have overflowed.
        let chosen = chosen.clamp(0, self.experts.len() as i64 - 1);
        let weights = scores.gather(1, chosen.clone());
        let weights = weights.clone() / weights.sum_dim(1) * scale;
        (weights.cast(dtype), on_host(chosen))
    }

    /// What the experts of each row are the largest of. `[rows, experts]` to the same.
    fn chosen_by(&self, scores: Tensor<2>) -> Tensor<2> {
        let Scoring::Sigmoid {
            groups,
            groups_per_token,
            ..
        } = self.scoring
        else {
            return scores;
        };
        let scores = match &self.e_score_correction_bias {
            Some(bias) => scores + bias.val().detach().cast(DType::F32).unsqueeze(),
            None => scores,
        };
        if groups_per_token >= groups {
            return scores;
        }
        let [rows, experts] = scores.dims();
        let size = experts / groups;
        let by_group = scores.clone().reshape([rows, groups, size]);
        let worth: Tensor<2> = by_group.topk(size.min(2), 2).sum_dim(2).squeeze_dim(2);
        let least = worth.clone().topk(groups_per_token, 1);
        let least = least.narrow(1, groups_per_token - 1, 1);
        let is_left_out: Tensor<3, Bool> =
            worth.lower(least.expand([rows, groups])).unsqueeze_dim(2);
        let is_left_out = is_left_out
            .expand([rows, groups, size])
            .reshape([rows, experts]);
        scores.mask_fill(is_left_out, f32::NEG_INFINITY)
    }
}

/// `sigmoid(gate x)` for a gate of one column, in the type of `x`. It is summed up in f32 and is no product of matrices: for one that is
/// a column wide not every device has a kernel.
///
/// # Shapes
/// - x: `[batch, seq, d_model]`
/// - output: `[batch, seq, 1]`
fn share(gate: &Linear, x: Tensor<3>) -> Tensor<3> {
    let dtype = x.dtype();
    let column: Tensor<3> = gate
        .weight
        .val()
        .transpose()
        .cast(DType::F32)
        .unsqueeze_dim(0);
    sigmoid((x.cast(DType::F32) * column).sum_dim(2)).cast(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{bound_of_products, test_device};
    use crate::weights::{RandomWeights, held_in, host_f32};

    const D_MODEL: usize = 10;
    const SEVEN: MixtureConfig = MixtureConfig {
        count: 7,
        per_token: 3,
        d_ff: 5,
        shared_d_ff: 6,
        scoring: Scoring::Softmax,
    };

    fn layer(config: MixtureConfig, device: &Device) -> MixtureMlp {
        let mut random = RandomWeights::new(3);
        let mut scope = Scope::root(&mut random, device, spectrain_checkpoints::DType::F32);
        MixtureMlp::new(&mut scope, D_MODEL, config).unwrap()
    }

    fn rows(count: usize, device: &Device) -> Tensor<3> {
        let values =
            (0..count * D_MODEL).map(|at| ((at * at * 7 + 3 * at) % 31) as f32 / 8.0 - 2.0);
        let values: Vec<f32> = values.collect();
        Tensor::<1>::from_floats(values.as_slice(), device).reshape([1, count, D_MODEL])
    }

    /// The same with every expert computed for every row and weights of 0 where a row does not go through it.
    fn of_all(layer: &MixtureMlp, x: Tensor<3>) -> Tensor<3> {
        let logits = layer.gate.forward(x.clone());
        let mut shared = layer.shared_expert.forward(x.clone());
        let (scores, scale) = match layer.scoring {
            Scoring::Softmax => (softmax(logits, 2), 1.0),
            Scoring::Sigmoid { scale, .. } => (sigmoid(logits), scale),
        };
        if let Some(gate) = &layer.shared_expert_gate {
            shared = shared * sigmoid(gate.forward(x.clone()));
        }
        let [_, rows, experts] = scores.dims();
        let values = host_f32(scores.clone());
        let taken: Vec<f32> = values
            .chunks(experts)
            .flat_map(|row| taken(layer, row))
            .collect();
        let taken = Tensor::<1>::from_floats(taken.as_slice(), &x.device());
        let weights = scores * taken.reshape([1, rows, experts]);
        let weights = weights.clone() / weights.sum_dim(2) * scale;
        let mut out = shared;
        for (index, expert) in layer.experts.iter().enumerate() {
            out = out + expert.forward(x.clone()) * weights.clone().narrow(2, index, 1);
        }
        out
    }

    /// 1 for each expert that a row of scores goes through, 0 for the others.
    fn taken(layer: &MixtureMlp, scores: &[f32]) -> Vec<f32> {
        let mut by = scores.to_vec();
        if let Some(bias) = &layer.e_score_correction_bias {
            for (score, bias) in by.iter_mut().zip(host_f32(bias.val())) {
                *score += bias;
            }
        }
        if let Scoring::Sigmoid {
            groups,
            groups_per_token,
            ..
        } = layer.scoring
        {
            let size = by.len() / groups;
            let worth = |group: usize| {
                let mut own = by[group * size..(group + 1) * size].to_vec();
                own.sort_by(|a, b| b.total_cmp(a));
                own.iter().take(2).sum::<f32>()
            };
            let mut order: Vec<usize> = (0..groups).collect();
            order.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
            for &group in &order[groups_per_token..] {
                by[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
            }
        }
        let mut order: Vec<usize> = (0..by.len()).collect();
        order.sort_by(|&a, &b| by[b].total_cmp(&by[a]));
        let mut taken = vec![0.0; by.len()];
        for &expert in &order[..layer.per_token] {
            taken[expert] = 1.0;
        }
        taken
    }

    fn assert_near(found: Tensor<1>, expected: Tensor<1>) {
        let (found, expected) = (host_f32(found), host_f32(expected));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let bound = bound_of_products(1e-5) * expected.abs().max(1.0);
            assert!((found - expected).abs() < bound, "{found}, {expected}");
        }
    }

    #[test]
    fn values_and_gradients_are_those_of_all_experts_weighed_by_zero_where_they_are_not_chosen() {
        let device = test_device().autodiff();
        let grouped = |groups, groups_per_token| Scoring::Sigmoid {
            groups,
            groups_per_token,
            scale: 2.5,
        };
        let cases = [
            (7, 1, Scoring::Softmax),
            (7, 3, Scoring::Softmax),
            (7, 7, Scoring::Softmax),
            (7, 3, grouped(1, 1)),
            (12, 3, grouped(4, 2)),
            (6, 2, grouped(3, 1)),
            (5, 2, grouped(5, 3)),
        ];
        for (count, per_token, scoring) in cases {
            let mut layer = layer(
                MixtureConfig {
                    count,
                    per_token,
                    scoring,
                    ..SEVEN
                },
                &device,
            );
            let bias = (0..count).map(|expert| ((expert * 5) % 7) as f32 / 20.0);
            let bias = Tensor::from_floats(bias.collect::<Vec<_>>().as_slice(), &device);
            let biased = |_| Param::from_tensor(bias);
            layer.e_score_correction_bias = layer.e_score_correction_bias.map(biased);
            let x = || rows(37, &device).require_grad();
            let (sparse_x, dense_x) = (x(), x());
            let (sparse, dense) = (
                layer.forward(sparse_x.clone()),
                of_all(&layer, dense_x.clone()),
            );
            assert_near(sparse.clone().flatten(0, 2), dense.clone().flatten(0, 2));
            // Squares, so that each value counts otherwise.
            let mut sparse = sparse.powi_scalar(2).sum().backward();
            let mut dense = dense.powi_scalar(2).sum().backward();
            let of_x = |x: Tensor<3>, graph| x.grad_remove(graph).unwrap().flatten(0, 2);
            assert_near(of_x(sparse_x, &mut sparse), of_x(dense_x, &mut dense));
            let linears = [&layer.gate].into_iter().chain(&layer.shared_expert_gate);
            let of_experts = layer.experts.iter().chain([&layer.shared_expert]);
            for linear in linears.chain(of_experts.flat_map(Mlp::linears)) {
                let weight = || linear.weight.val();
                let Some(expected) = weight().grad_remove(&mut dense) else {
                    panic!("every expert is in the graph")
                };
                // With one expert a token its weight is 1 whatever the gate says.
                match weight().grad_remove(&mut sparse) {
                    Some(found) => assert_near(found.flatten(0, 1), expected.flatten(0, 1)),
                    None => assert!(host_f32(expected).iter().all(|&value| value == 0.0)),
                }
            }
        }
    }

    #[test]
    fn experts_that_no_row_goes_through_have_no_gradient() {
        let device = test_device().autodiff();
        let layer = layer(SEVEN, &device);
        let x = rows(1, &device);
        let mut graph = layer.forward(x).sum().backward();
        let weights = layer.experts.iter().flat_map(Mlp::linears);
        let found: Vec<bool> = weights
            .map(|linear| linear.weight.val().grad_remove(&mut graph).is_some())
            .collect();
        let touched = found.iter().filter(|&&touched| touched).count();
        assert_eq!(touched, 3 * SEVEN.per_token, "{found:?}");
    }

    #[test]
    fn what_experts_are_chosen_by_is_not_rounded_with_the_weights() {
        let device = test_device();
        let scoring = Scoring::Sigmoid {
            groups: 1,
            groups_per_token: 1,
            scale: 1.0,
        };
        let mut layer = layer(MixtureConfig { scoring, ..SEVEN }, &device);
        // Apart by less than bf16 tells apart.
        let bias: Vec<f32> = (0..7).map(|expert| 30.0 + expert as f32 / 1000.0).collect();
        let values = Tensor::from_floats(bias.as_slice(), &device);
        layer.e_score_correction_bias = Some(Param::from_tensor(values));
        let held = held_in(layer, DType::BF16);
        assert_eq!(held.gate.weight.val().dtype(), DType::BF16);
        assert_eq!(host_f32(held.e_score_correction_bias.unwrap().val()), bias);
    }

    #[test]
    fn a_row_gives_the_same_alone_and_among_others() {
        let device = test_device();
        let layer = layer(SEVEN, &device);
        let all = layer.forward(rows(11, &device));
        for row in 0..11 {
            let alone = layer.forward(rows(11, &device).narrow(1, row, 1));
            let expected = all.clone().narrow(1, row, 1);
            assert_near(alone.flatten(0, 2), expected.flatten(0, 2));
        }
    }

    #[test]
    fn overflowed_rows_are_no_numbers_and_no_panic() {
        let device = test_device();
        let broken = rows(4, &device) * f32::INFINITY;
        let found = host_f32(layer(SEVEN, &device).forward(broken));
        assert!(found.iter().all(|value| value.is_nan()));
    }
}
