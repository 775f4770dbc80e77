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
use crate::products::{Precision, product, product_with_weight};
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

/// How rows go through their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The rows of an expert together, expert by expert.
    Grouped,
    /// With a copy of its expert's matrices for each row and expert, all at once.
    Gathered,
    /// All rows through all experts at once, of which each row takes its own.
    All,
}

impl Way {
    /// The way of so many rows, `d_model` wide, through which the fewest bytes of matrices go, unless the rows are too many for
    /// [`All`](Self::All) or would take too much memory.
    fn by_bytes([rows, d_model]: [usize; 2], config: &ExpertsConfig) -> Self {
        let ExpertsConfig {
            count, per_token, ..
        } = *config;
        if COPIED * rows * per_token <= count {
            Self::Gathered
        } else if rows <= MOST_THROUGH_ALL && count * rows * d_model <= MOST_REPEATED {
            Self::All
        } else {
            Self::Grouped
        }
    }
}

/// How often the bytes of a matrix go through memory that is copied for a product: they are read, written, and read again.
const COPIED: usize = 3;

/// Rows that go through all experts on a GPU, at most. Up to about as many, reading the matrices of a layer takes as long as
/// multiplying with all of them, a few hundred microseconds, where [`Way::Grouped`] would be three launches for each expert and a wait
/// for the host, some ten milliseconds.
const MOST_THROUGH_ALL: usize = 256;

/// Elements of the rows that go through all experts, once for each expert, at most: those of 256 rows with 128 experts and a width of
/// 2,048. In bf16 they take 134 MB, and as much what the experts make of them; with what stands between, twice 50 MB at a `d_ff` of 768,
/// it is about 370 MB.
const MOST_REPEATED: usize = 1 << 26;

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
        let of_each = match self.way(&x) {
            Way::Grouped => self.experts.grouped(x, &on_host(chosen)),
            Way::Gathered => self.experts.gathered(x, chosen),
            Way::All => self.experts.of_all(x, chosen),
        };
        let weighed = of_each * weights.unsqueeze_dim(2); // [rows, per_token, d_model]
        weighed.sum_dim(1).reshape([batch, seq, d_model])
    }

    /// The way of such rows.
    ///
    /// To sort rows by their experts the host has to know which these are. On the CPU that costs nothing, and each expert's
    /// matrices are read where they lie. A GPU would have to end what it does and wait for the host in every layer, and then
    /// gets three small products for each expert: much for the rows of a decoder. A graph would keep what is made of all experts.
    fn way(&self, x: &Tensor<2>) -> Way {
        if is_cpu(&x.device()) {
            return Way::Grouped;
        }
        match Way::by_bytes(x.dims(), &self.config) {
            Way::All if x.is_autodiff() => Way::Grouped,
            way => way,
        }
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
        let probabilities = {
            // Rounding must not choose other experts.
            let _exactly = Precision::F32.scope();
            softmax(self.gate.forward(x).cast(DType::F32), 1)
        };
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

    /// The same as [`gathered`](Self::gathered), with every row multiplied with the matrices of every expert, where these lie. Of
    /// what the others make nothing is read, so it may be infinite.
    fn of_all(&self, x: Tensor<2>, chosen: Tensor<2, Int>) -> Tensor<3> {
        let ([rows, d_model], [_, per_token]) = (x.dims(), chosen.dims());
        let [count, _, _] = self.gate_proj.dims();
        let x = x.unsqueeze_dim::<3>(0).repeat_dim(0, count); // [experts, rows, d_model]
        let gate = product_with_weight(x.clone(), self.gate_proj.val());
        let up = product_with_weight(x, self.up_proj.val());
        let down = product_with_weight(swiglu(gate, up), self.down_proj.val());
        // Those of an expert stand together.
        let row = Tensor::<1, Int>::arange(0..rows as i64, (&chosen.device(), chosen.dtype()));
        let places = chosen.mul_scalar(rows as i64) + row.unsqueeze_dim::<2>(1);
        let own = down
            .reshape([count * rows, d_model])
            .select(0, places.reshape([rows * per_token]));
        own.reshape([rows, per_token, d_model])
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
    fn rows_go_through_their_experts_as_computed_by_hand_whichever_way() {
        for normalised in [true, false] {
            for per_token in [1, 2, 3, 7] {
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
                let gathered = layer.experts.gathered(x.clone(), chosen.clone());
                assert_near(&host_f32(gathered), &host_f32(grouped.clone()));
                let of_all = layer.experts.of_all(x, chosen);
                assert_near(&host_f32(of_all), &host_f32(grouped));
            }
        }
    }

    #[test]
    fn the_way_of_rows_is_that_of_the_fewest_bytes_and_not_of_all_experts_for_many() {
        // Qwen3-30B-A3B, whose width is 2048.
        let config = ExpertsConfig {
            count: 128,
            per_token: 8,
            d_ff: 768,
            normalised: true,
        };
        let way = |rows| Way::by_bytes([rows, 2048], &config);
        assert_eq!([1, 5].map(way), [Way::Gathered; 2]);
        // Chains of five, in a batch of four too, a tree of 25 and one of 60, each behind a committed token.
        assert_eq!([6, 17, 24, 26, 61, 4 * 61, 256].map(way), [Way::All; 7]);
        assert_eq!([257, 4096].map(way), [Way::Grouped; 2]);
        // At twice the width, half as many rows take as much memory; at half of it, more rows are still too many.
        let way = |rows, d_model| Way::by_bytes([rows, d_model], &config);
        assert_eq!([way(128, 4096), way(129, 4096)], [Way::All, Way::Grouped]);
        assert_eq!([way(256, 1024), way(257, 1024)], [Way::All, Way::Grouped]);
        // Each row takes all experts.
        let all = ExpertsConfig {
            per_token: 128,
            ..config
        };
        assert_eq!(Way::by_bytes([1, 2048], &all), Way::All);
    }

    #[test]
    fn the_cpu_and_a_graph_read_no_expert_that_no_row_goes_through() {
        let layer = layer(SEVEN);
        let few = rows(40);
        let is_cpu = is_cpu(&test_device());
        let expected = if is_cpu { Way::Grouped } else { Way::All };
        assert_eq!(layer.way(&few), expected);
        assert_eq!(layer.way(&few.autodiff()), Way::Grouped);
    }

    #[test]
    fn what_a_row_does_not_go_through_may_overflow() {
        let mut layer = layer(ExpertsConfig {
            per_token: 1,
            ..SEVEN
        });
        let x = rows(20);
        let (_, chosen) = layer.route(x.clone());
        let expected = layer.experts.of_all(x.clone(), chosen.clone());
        let taken = on_host(chosen.clone());
        let idle = (0..SEVEN.count).find(|expert| !taken.contains(expert));
        let one = idle.unwrap_or(taken[0]);
        let infinite = layer.experts.up_proj.val();
        let [_, d_in, d_out] = infinite.dims();
        let places = [one..one + 1, 0..d_in, 0..d_out];
        let infinite = infinite.slice_fill(places, f32::INFINITY);
        layer.experts.up_proj = Param::from_tensor(infinite);
        let found = host_f32(layer.experts.of_all(x, chosen));
        let rows = found.chunks(D_MODEL).zip(taken);
        for ((found, expert), expected) in rows.zip(host_f32(expected).chunks(D_MODEL)) {
            if expert != one {
                assert_near(found, expected);
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
