//! A feed-forward part of many experts, of which each token goes through a few (Shazeer et al.,
//! <https://arxiv.org/abs/1701.06538>), as in Qwen3-MoE (<https://arxiv.org/abs/2505.09388>): no expert is shared by all
//! tokens, and none is full.
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::activation::softmax;

use crate::device::is_cpu;
use crate::error::Result;
use crate::kernels::swiglu;
use crate::linear::{Bias, Linear};
use crate::products::{product, product_with_weight};
use crate::routing::ExpertsConfig;
use crate::weights::{Init, Scope};

/// `Σ w_e down_e(silu(gate_e(x)) * up_e(x))` over the `per_token` experts of the largest weights `w = softmax(gate(x))`.
#[derive(Module, Debug)]
pub struct SparseMlp {
    /// Tells which experts a token goes through.
    gate: Linear,
    experts: Experts,
    #[module(skip)]
    config: ExpertsConfig,
}

/// The matrices of all experts. They are frozen: no gradient is made for them, and no low-rank matrices stand beside them.
#[derive(Module, Debug)]
pub struct Experts {
    /// `[experts, d_model, d_ff]`
    gate_proj: Param<Tensor<3>>,
    /// `[experts, d_model, d_ff]`
    up_proj: Param<Tensor<3>>,
    /// `[experts, d_ff, d_model]`
    down_proj: Param<Tensor<3>>,
}

impl SparseMlp {
    /// The block `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter of an expert, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_model: usize, config: ExpertsConfig) -> Result<Self> {
        let ExpertsConfig { count, d_ff, .. } = config;
        // Rounding must not choose other experts.
        let mut router = scope.child("gate").shared();
        let gate = Linear::new(&mut router, d_model, count, Bias::Without)?;
        let mut scope = scope.child("experts");
        let mut of_all = |name, [d_in, d_out]: [usize; 2]| {
            let init = Init::Linear { fan_in: d_in };
            scope.stacked(name, count, [d_in, d_out], init)
        };
        let experts = Experts {
            gate_proj: of_all("gate_proj", [d_model, d_ff])?,
            up_proj: of_all("up_proj", [d_model, d_ff])?,
            down_proj: of_all("down_proj", [d_ff, d_model])?,
        };
        Ok(Self {
            gate,
            experts,
            config,
        })
    }

    /// `[batch, seq, d_model]` to the same. What a row gives does not depend on the rows beside it.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, d_model] = x.dims();
        let x = x.reshape([batch * seq, d_model]);
        let (weights, chosen) = self.route(x.clone());
        let of_each = if self.gathers(batch * seq, &x.device()) {
            self.experts.gathered(x, chosen)
        } else {
            self.experts.grouped(x, &on_host(chosen))
        };
        let weighed = of_each * weights.unsqueeze_dim(2); // [rows, per_token, d_model]
        weighed.sum_dim(1).reshape([batch, seq, d_model])
    }

    /// Whether the matrices of the experts are gathered for so many rows, in place of the rows of each expert.
    ///
    /// To sort rows by their experts the host has to know which these are. On the CPU that costs nothing, and each expert's
    /// matrices are read where they lie. A GPU would have to end what it does and wait for the host in every layer, and then
    /// gets three small products for each expert: much for the few rows of decoding, whose experts' matrices are copied side
    /// by side instead and multiplied at once. Copies of more than all experts would take more memory than the layer has, and
    /// with as many rows the wait is little beside the products.
    fn gathers(&self, rows: usize, device: &Device) -> bool {
        !is_cpu(device) && rows * self.config.per_token <= self.config.count
    }

    /// The experts of each row, and their weights in the type of `x`.
    ///
    /// # Shapes
    /// - x: `[rows, d_model]`
    /// - output: `[rows, per_token]`, twice
    fn route(&self, x: Tensor<2>) -> (Tensor<2>, Tensor<2, Int>) {
        let ExpertsConfig {
            count, per_token, ..
        } = self.config;
        let dtype = x.dtype();
        let probabilities = softmax(self.gate.forward(x).cast(DType::F32), 1);
        let (weights, chosen) = probabilities.topk_with_indices(per_token, 1);
        let weights = if self.config.normalised {
            weights.clone() / weights.sum_dim(1)
        } else {
            weights
        };
        // Nothing is the largest of what is no number, where activations have overflowed.
        (weights.cast(dtype), chosen.clamp(0, count as i64 - 1))
    }
}

impl Experts {
    /// See [`grouped`].
    fn grouped(&self, x: Tensor<2>, chosen: &[usize]) -> Tensor<3> {
        grouped(x, chosen, |expert, rows| self.of(expert, rows))
    }

    /// What one expert makes of some rows. `[rows, d_model]` to the same.
    fn of(&self, expert: usize, x: Tensor<2>) -> Tensor<2> {
        let with_matrix = |x: Tensor<2>, all: &Param<Tensor<3>>| {
            let own = all.val().narrow(0, expert, 1);
            product_with_weight(x, own.squeeze_dim::<2>(0))
        };
        let gate = with_matrix(x.clone(), &self.gate_proj);
        let up = with_matrix(x, &self.up_proj);
        with_matrix(swiglu(gate, up), &self.down_proj)
    }

    /// The same as [`grouped`](Self::grouped), with a copy of its expert's matrices for each row and expert.
    ///
    /// # Shapes
    /// - x: `[rows, d_model]`
    /// - chosen: `[rows, per_token]`
    /// - output: `[rows, per_token, d_model]`
    fn gathered(&self, x: Tensor<2>, chosen: Tensor<2, Int>) -> Tensor<3> {
        let ([rows, d_model], [_, per_token]) = (x.dims(), chosen.dims());
        let (pairs, dtype) = (rows * per_token, x.dtype());
        let chosen = chosen.reshape([pairs]);
        let matrices = |all: &Param<Tensor<3>>| all.val().select(0, chosen.clone()).cast(dtype);
        let x: Tensor<3> = x.unsqueeze_dim(1);
        let x = x
            .expand([rows, per_token, d_model])
            .reshape([pairs, 1, d_model]);
        let gate = product(x.clone(), matrices(&self.gate_proj)); // [pairs, 1, d_ff]
        let up = product(x, matrices(&self.up_proj));
        let down = product(swiglu(gate, up), matrices(&self.down_proj));
        down.reshape([rows, per_token, d_model])
    }
}

/// What the chosen experts make of each row: rows that go through the same expert stand side by side, and are multiplied with
/// its matrices at once.
///
/// # Shapes
/// - x: `[rows, d_model]`
/// - chosen: `rows * per_token` experts, those of the first row first
/// - output of `of`, which makes of some rows what an expert makes of them: as its input
/// - output: `[rows, per_token, d_model]`
pub(crate) fn grouped(
    x: Tensor<2>,
    chosen: &[usize],
    of: impl Fn(usize, Tensor<2>) -> Tensor<2>,
) -> Tensor<3> {
    let ([rows, d_model], device) = (x.dims(), x.device());
    let per_token = chosen.len() / rows;
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    order.sort_by_key(|&at| chosen[at]);
    let mut places = vec![0; chosen.len()];
    for (place, &at) in order.iter().enumerate() {
        places[at] = place;
    }
    let sorted = x.select(0, indices(order.iter().map(|at| at / per_token), &device));
    let groups: Vec<&[usize]> = order
        .chunk_by(|&one, &other| chosen[one] == chosen[other])
        .collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let mut parts = Vec::with_capacity(groups.len());
    parted(sorted, &lengths, &mut parts);
    let parts = groups.iter().zip(parts);
    let parts = parts.map(|(group, own)| of(chosen[group[0]], own));
    let sorted = Tensor::cat(parts.collect(), 0);
    sorted
        .select(0, indices(places.into_iter(), &device))
        .reshape([rows, per_token, d_model])
}

/// Parts of so many rows each. They are taken out of halves, of halves: the backward pass makes as many rows as a part is taken out
/// of, and there may be hundreds of parts.
fn parted(x: Tensor<2>, lengths: &[usize], parts: &mut Vec<Tensor<2>>) {
    if lengths.len() < 2 {
        parts.push(x);
        return;
    }
    let (first, second) = lengths.split_at(lengths.len() / 2);
    let [before, behind] = [first, second].map(|half| half.iter().sum::<usize>());
    parted(x.clone().narrow(0, 0, before), first, parts);
    parted(x.narrow(0, before, behind), second, parts);
}

fn indices(values: impl Iterator<Item = usize>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.map(|value| value as i64).collect();
    Tensor::from_ints(values.as_slice(), device)
}

/// The elements of indices on the host, in row order.
pub(crate) fn on_host(indices: Tensor<2, Int>) -> Vec<usize> {
    let values = indices.into_data();
    values.iter::<i64>().map(|value| value as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{bound_of_products, test_device};
    use crate::weights::{RandomWeights, host_f32};

    const D_MODEL: usize = 10;

    fn layer(config: ExpertsConfig) -> SparseMlp {
        let device = test_device();
        let mut random = RandomWeights::new(3);
        let mut scope = Scope::root(&mut random, &device, spectrain_checkpoints::DType::F32);
        SparseMlp::new(&mut scope, D_MODEL, config).unwrap()
    }

    const SEVEN: ExpertsConfig = ExpertsConfig {
        count: 7,
        per_token: 3,
        d_ff: 5,
        normalised: true,
    };

    fn rows(count: usize) -> Tensor<2> {
        let values =
            (0..count * D_MODEL).map(|at| ((at * at * 7 + 3 * at) % 31) as f32 / 8.0 - 2.0);
        let values: Vec<f32> = values.collect();
        Tensor::<1>::from_floats(values.as_slice(), &test_device()).reshape([count, D_MODEL])
    }

    fn assert_near(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let most = bound_of_products(1e-5);
            assert!((found - expected).abs() < most, "{found}, {expected}");
        }
    }

    /// `x W` with a matrix of `[experts, d_in, d_out]`, number by number.
    fn product(x: &[f32], matrices: &Param<Tensor<3>>, expert: usize) -> Vec<f32> {
        let [_, d_in, d_out] = matrices.val().dims();
        let all = host_f32(matrices.val());
        let own = &all[expert * d_in * d_out..(expert + 1) * d_in * d_out];
        (0..d_out)
            .map(|to| (0..d_in).map(|from| x[from] * own[from * d_out + to]).sum())
            .collect()
    }

    /// The formula of [`SparseMlp`], token by token and expert by expert.
    fn by_hand(layer: &SparseMlp, x: &[f32]) -> Vec<f32> {
        let gate = layer.gate.weight.val();
        let router = Param::from_tensor(gate.unsqueeze_dim::<3>(0));
        let scores: Vec<f32> = product(x, &router, 0).iter().map(|s| s.exp()).collect();
        let mut best: Vec<usize> = (0..scores.len()).collect();
        best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        best.truncate(layer.config.per_token);
        let sum: f32 = if layer.config.normalised {
            best.iter().map(|&expert| scores[expert]).sum()
        } else {
            scores.iter().sum()
        };
        let mut out = vec![0.0; x.len()];
        for expert in best {
            let gate = product(x, &layer.experts.gate_proj, expert);
            let up = product(x, &layer.experts.up_proj, expert);
            let inner = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
            let down = product(&inner.collect::<Vec<_>>(), &layer.experts.down_proj, expert);
            for (sum_of_row, value) in out.iter_mut().zip(down) {
                *sum_of_row += scores[expert] / sum * value;
            }
        }
        out
    }

    #[test]
    fn rows_go_through_their_experts_as_computed_by_hand_in_groups_and_gathered() {
        for normalised in [true, false] {
            for per_token in [1, 3, 7] {
                let layer = layer(ExpertsConfig {
                    per_token,
                    normalised,
                    ..SEVEN
                });
                let x = rows(37);
                let values = host_f32(x.clone());
                let by_hand: Vec<f32> = values
                    .chunks(D_MODEL)
                    .flat_map(|row| by_hand(&layer, row))
                    .collect();
                let forward = layer.forward(x.clone().unsqueeze_dim(0));
                assert_near(&host_f32(forward), &by_hand);
                let (_, chosen) = layer.route(x.clone());
                let grouped = layer.experts.grouped(x.clone(), &on_host(chosen.clone()));
                let gathered = layer.experts.gathered(x, chosen);
                assert_near(&host_f32(gathered), &host_f32(grouped));
            }
        }
    }

    #[test]
    fn weights_of_the_chosen_experts_sum_to_one_only_where_that_is_asked_for() {
        let sums = |normalised| {
            let (weights, _) = layer(ExpertsConfig {
                normalised,
                ..SEVEN
            })
            .route(rows(5));
            host_f32(weights.sum_dim(1))
        };
        assert_near(&sums(true), &[1.0; 5]);
        assert!(
            sums(false).iter().all(|&sum| sum < 0.95),
            "{:?}",
            sums(false)
        );
    }

    #[test]
    fn a_row_gives_the_same_alone_and_among_others() {
        let layer = layer(SEVEN);
        let all = host_f32(layer.forward(rows(11).unsqueeze_dim(0)));
        for row in 0..11 {
            let alone = layer.forward(rows(11).narrow(0, row, 1).unsqueeze_dim(0));
            assert_near(&host_f32(alone), &all[row * D_MODEL..(row + 1) * D_MODEL]);
        }
    }

    #[test]
    fn overflowed_rows_are_no_numbers_and_no_panic() {
        let broken = rows(4) * f32::INFINITY;
        let found = host_f32(layer(SEVEN).forward(broken.unsqueeze_dim(0)));
        assert!(found.iter().all(|value| value.is_nan()));
    }
}
