//! Attention that reads two halves, side by side, of which one is the same in several passes: what queries, keys and values are of that
//! half is computed once.
use burn::prelude::*;

use super::{Attention, Projects};
use crate::attend::Projected;
use crate::few_rows::product;
use crate::linear::{Linear, by_rows};
use crate::of_tokens::OfTokens;
use crate::rope::Rotation;

impl Attention {
    /// What queries, keys and values are of the first half of what the layer reads, and what their second half is multiplied with.
    ///
    /// # Shapes
    /// - first: `[batch, seq, d_input / 2]`
    ///
    /// # Panics
    /// The layer is gated, or adapted.
    pub(crate) fn of_first_half(&self, first: Tensor<3>) -> OfTokens {
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj];
        assert!(
            self.gate_proj.is_none() && layers.iter().all(|layer| layer.lora.is_none()),
            "a gate, or what is adapted, reads both halves"
        );
        let [.., half] = first.dims();
        let of_half = |layer: &Linear, at| layer.weight.val().narrow(0, at, half);
        let state = |layer: &Linear| {
            by_rows(first.clone(), |rows| {
                layer.biased(product(rows, of_half(layer, 0)))
            })
        };
        OfTokens {
            states: layers.map(state).into(),
            weights: layers.map(|layer| of_half(layer, half)).into(),
        }
    }
}

/// An [`Attention`] that reads the second half alone.
pub(crate) struct SecondHalf<'a> {
    pub(crate) attention: &'a Attention,
    /// What is [of the first half](Attention::of_first_half).
    pub(crate) first: OfTokens,
}

impl Projects for SecondHalf<'_> {
    fn project(&self, x: Tensor<3>, rotation: &Rotation) -> Projected {
        let OfTokens { states, weights } = &self.first;
        let part = |at: usize| {
            let second = by_rows(x.clone(), |rows| product(rows, weights[at].clone()));
            second + states[at].clone()
        };
        self.attention.at_positions([0, 1, 2].map(part), rotation)
    }

    fn joined(&self, x: Tensor<3>, context: Tensor<4>) -> Tensor<3> {
        self.attention.joined(x, context)
    }

    fn sinks(&self) -> Option<Tensor<1>> {
        self.attention.sinks()
    }
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::DType;

    use super::*;
    use crate::attention::AttentionConfig;
    use crate::device::{bound_of_products, test_device};
    use crate::linear::Bias;
    use crate::rope::{Rope, RopeConfig, RopeScaling};
    use crate::weights::{RandomWeights, Scope, host_f32};

    fn attention(qkv_bias: Bias, head_norm: bool, device: &Device) -> Attention {
        let config = AttentionConfig {
            d_input: 2 * 48,
            d_model: 48,
            heads: 4,
            kv_heads: 2,
            d_head: 16,
            qkv_bias,
            output_bias: Bias::Without,
            head_norm: head_norm.then_some(1e-6.into()),
            gated: false,
            sinks: false,
        };
        let mut random = RandomWeights::new(3);
        Attention::new(&mut Scope::root(&mut random, device, DType::F32), &config).unwrap()
    }

    fn numbers(seed: usize) -> Tensor<3> {
        let values = (0..2 * 301 * 48).map(|at| ((at * 7919 + seed) % 6007) as f32 / 3003.5 - 1.0);
        let data = TensorData::new(values.collect::<Vec<_>>(), [2, 301, 48]);
        Tensor::from_data(data, &test_device())
    }

    #[test]
    fn queries_keys_and_values_of_halves_are_those_of_both_side_by_side() {
        let device = test_device();
        let rope = RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        };
        let positions = Tensor::arange(0..301, &device).unsqueeze();
        let rotation = Rope::new(&rope, 16, &device).at(positions);
        for (bias, head_norm) in [(Bias::Without, false), (Bias::With, true)] {
            let attention = &attention(bias, head_norm, &device);
            let (first, second) = (numbers(1), numbers(2));
            let both = Tensor::cat(vec![first.clone(), second.clone()], 2);
            let halves = SecondHalf {
                attention,
                first: attention.of_first_half(first),
            };
            let all = |of: Projected| [of.query, of.key, of.value];
            let found = all(halves.project(second, &rotation));
            let expected = all(attention.project(both, &rotation));
            for (found, expected) in found.into_iter().zip(expected) {
                assert_eq!(found.dims(), expected.dims());
                let pairs = host_f32(found).into_iter().zip(host_f32(expected));
                let apart = pairs.fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
                assert!(apart < bound_of_products(1e-5), "{bias:?}: {apart}");
            }
        }
    }
}
