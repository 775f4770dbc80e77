//! What the head of XPress makes of a whole block, as the speculators library computes it
//! (<https://github.com/vllm-project/speculators>).
//!
//! Place `k` of a block, its anchor's being 0, reads the code of the token before its own, its hidden state and the mean of those
//! of the block: `a_k = W [D h_k; G h̄; E[x_{k-1}]]`. Places are mixed back, each channel by itself: `c_k = a_k + Σ_{j ≤ k} L_kj a_j`.
//! The bias on the logits of a place is of `c_k` behind a gated feed-forward part; place 0 has none, and is only mixed into others.
use burn::module::Param;
use burn::prelude::*;

use crate::error::Result;
use crate::kernels::swiglu;
use crate::linear::Linear;
use crate::weights::{Init, Scope};

/// How wide the normal distribution is that its parameters are drawn from.
pub(super) const DRAWN: Init = Init::Normal(0.02);

/// Sizes of a [`Refiner`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RefinerSizes {
    pub(super) d_model: usize,
    pub(super) rank: usize,
    pub(super) d_ff: usize,
    /// Places of a block.
    pub(super) block: usize,
}

/// See the module. A fresh one mixes nothing.
#[derive(Module, Debug)]
pub struct Refiner {
    /// `D`
    down_h: Linear,
    /// `G`
    down_g: Linear,
    /// `W`
    in_proj: Linear,
    /// `L`, `[rank, block_size, block_size]`; what is above the diagonal counts nothing.
    mix_l: Param<Tensor<3>>,
    mlp_gate: Linear,
    mlp_up: Linear,
    mlp_down: Linear,
}

impl Refiner {
    /// The part `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(scope: &mut Scope, sizes: RefinerSizes) -> Result<Self> {
        let RefinerSizes {
            d_model,
            rank,
            d_ff,
            block,
        } = sizes;
        Ok(Self {
            down_h: drawn(scope, "down_h", [d_model, rank])?,
            down_g: drawn(scope, "down_g", [d_model, rank])?,
            in_proj: drawn(scope, "in_proj", [3 * rank, rank])?,
            mix_l: scope.tensor("mix_l", [rank, block, block], Init::Constant(0.0))?,
            mlp_gate: drawn(scope, "mlp_gate", [rank, d_ff])?,
            mlp_up: drawn(scope, "mlp_up", [rank, d_ff])?,
            mlp_down: drawn(scope, "mlp_down", [d_ff, rank])?,
        })
    }

    /// What does not depend on any token.
    ///
    /// # Shapes
    /// - hidden: `[blocks, block_size, d_model]`, of all places
    /// - output: `[blocks, block_size, 2 * rank]`
    pub(super) fn places(&self, hidden: Tensor<3>) -> Tensor<3> {
        let [blocks, size, _] = hidden.dims();
        let mean = self.down_g.forward(hidden.clone().mean_dim(1)); // [blocks, 1, rank]
        let own = self.down_h.forward(hidden);
        let [_, _, rank] = own.dims();
        Tensor::cat(vec![own, mean.expand([blocks, size, rank])], 2)
    }

    /// What the matrix of the bias is applied to.
    ///
    /// # Shapes
    /// - places: `[blocks, size, 2 * rank]`, the first of those that [`places`](Self::places) has made
    /// - codes: `[blocks, size, rank]`, of the token before that of each place
    /// - output: `[blocks, size, rank]`
    pub(super) fn forward(&self, places: Tensor<3>, codes: Tensor<3>) -> Tensor<3> {
        let read = (self.in_proj).forward(Tensor::cat(vec![places, codes], 2));
        let mixed = read.clone() + self.mixed(read);
        let gate = self.mlp_gate.forward(mixed.clone());
        let inner = swiglu(gate, self.mlp_up.forward(mixed.clone()));
        mixed + self.mlp_down.forward(inner)
    }

    /// `Σ_{j ≤ k} L_kj a_j` for each place. `[blocks, size, rank]` to the same.
    fn mixed(&self, read: Tensor<3>) -> Tensor<3> {
        let [_, size, _] = read.dims();
        let [rank, block, _] = self.mix_l.dims();
        let counts = (0..size * size).map(|at| f32::from(u8::from(at % size <= at / size)));
        let counts: Vec<f32> = counts.collect();
        let counts = Tensor::<1>::from_floats(counts.as_slice(), &self.mix_l.device());
        let counts: Tensor<3> = counts.reshape([1, size, size]);
        let mix = self.mix_l.val();
        let mix = if size < block {
            mix.slice([0..rank, 0..size, 0..size])
        } else {
            mix
        };
        let mix = mix.clone() * counts.cast(mix.dtype());
        // Channel by channel: [rank, size, size] by [rank, size, blocks].
        let by_channel = mix.cast(read.dtype()).matmul(read.permute([2, 1, 0]));
        by_channel.permute([2, 1, 0])
    }
}

/// A matrix without a bias of the part `name`.
fn drawn(scope: &mut Scope, name: &str, sizes: [usize; 2]) -> Result<Linear> {
    Ok(Linear {
        weight: scope.child(name).transposed("weight", sizes, DRAWN)?,
        bias: None,
        lora: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::{RandomWeights, host_f32};

    /// One of two channels whose mixing is `mix`, and whose other matrices are random.
    fn refiner(mix: [f32; 8]) -> Refiner {
        let device = test_device();
        let mut random = RandomWeights::new(5);
        let mut scope = Scope::root(&mut random, &device, spectrain_checkpoints::DType::F32);
        let sizes = RefinerSizes {
            d_model: 3,
            rank: 2,
            d_ff: 4,
            block: 2,
        };
        let mix = Tensor::<1>::from_floats(mix, &device).reshape([2, 2, 2]);
        Refiner {
            mix_l: Param::from_tensor(mix),
            ..Refiner::new(&mut scope, sizes).unwrap()
        }
    }

    #[test]
    fn a_place_takes_of_those_before_it_and_of_itself_and_each_channel_for_itself() {
        let device = test_device();
        // Of the first channel what stands above the diagonal is not 0.
        let refiner = refiner([0.5, 9.0, 2.0, -1.0, 0.0, 0.0, 3.0, 0.25]);
        let read = Tensor::<1>::from_floats([1.0, 10.0, 2.0, 20.0], &device);
        let mixed = host_f32(refiner.mixed(read.reshape([1, 2, 2])));
        // Channel 0: 0.5 · 1 and 2 · 1 - 1 · 2; channel 1: 0 and 3 · 10 + 0.25 · 20.
        assert_eq!(mixed, [0.5, 0.0, 0.0, 35.0]);
    }

    #[test]
    fn the_first_places_are_the_same_without_those_behind_them() {
        let device = test_device();
        let refiner = refiner([0.5, 9.0, 2.0, -1.0, 0.0, 0.0, 3.0, 0.25]);
        let numbers = |shape: [usize; 3]| -> Tensor<3> {
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|at| (at as f32 * 0.7).sin()).collect();
            Tensor::<1>::from_floats(values.as_slice(), &device).reshape(shape)
        };
        let places = refiner.places(numbers([2, 2, 3]));
        let codes = numbers([2, 2, 2]);
        let whole = refiner.forward(places.clone(), codes.clone());
        let first = |x: Tensor<3>| x.narrow(1, 0, 1);
        let alone = host_f32(refiner.forward(first(places), first(codes)));
        let expected = host_f32(first(whole));
        let apart = alone.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-6, "{alone:?} {expected:?}");
    }
}
