//! Attention of a drafter unrolled on its own hidden states: step `j` at index `t` sees the keys of step 0 at indices up
//! to `t`, and those of the steps `1..=j` at `t` alone (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::prelude::*;

use crate::attend::{Projected, attend_in_blocks};
use crate::mask::Mask;

/// Keys and values of one layer in one step, `[batch, kv_heads, seq, d_head]` each.
pub type KeyAndValue = (Tensor<4>, Tensor<4>);

/// Keys and values of the steps so far.
#[derive(Debug, Clone)]
pub struct UnrolledCache {
    /// Of each layer those of every step.
    layers: Vec<Vec<KeyAndValue>>,
}

impl UnrolledCache {
    /// Before the first step of a drafter of so many layers.
    pub fn new(layers: usize) -> Self {
        Self {
            layers: vec![Vec::new(); layers],
        }
    }

    /// Of each layer the keys and values of every step so far.
    pub fn layers(&self) -> &[Vec<KeyAndValue>] {
        &self.layers
    }

    /// The cache after steps with these keys and values: of each layer those of every step.
    pub fn from_layers(layers: Vec<Vec<KeyAndValue>>) -> Self {
        Self { layers }
    }

    /// Adds a step: the keys and values of each layer.
    pub fn push(&mut self, step: impl IntoIterator<Item = KeyAndValue>) {
        for (layer, own) in self.layers.iter_mut().zip(step) {
            layer.push(own);
        }
    }

    /// Adds a step of one layer and attends from its queries.
    ///
    /// Each later step is one key more for each query. A query sees at most `window` positions back, the own one counted; `mask` says
    /// so for step 0.
    ///
    /// # Shapes
    /// - sinks: see [`Projects::sinks`](crate::attention::Projects::sinks)
    /// - mask: `[batch, 1, seq, seq]`, over the keys of step 0
    /// - output: `[batch, heads, seq, d_head]`
    pub fn attend(
        &mut self,
        layer: usize,
        projected: Projected,
        sinks: Option<Tensor<1>>,
        mask: &Mask,
        window: Option<usize>,
    ) -> Tensor<4> {
        let Projected { query, key, value } = projected;
        let steps = &mut self.layers[layer];
        steps.push((key, value));
        // A step stands one position behind the step before it.
        let first = window.map_or(1, |window| steps.len().saturating_sub(window).max(1));
        let (key, value) = &steps[0];
        attend_in_blocks(query, (key, value), &steps[first..], sinks, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attend::attend_to_cache;
    use crate::device::test_device;
    use crate::sight::Sight;
    use crate::weights::host_f32;

    const SEQ: usize = 3;

    /// Numbers between -1 and 1, `[1, heads, seq, d_head]`.
    fn numbers(seed: f32) -> Tensor<4> {
        let values: Vec<f32> = (0..2 * SEQ * 4)
            .map(|at| (at as f32 * 0.7 + seed).sin())
            .collect();
        let all = Tensor::<1>::from_floats(values.as_slice(), &test_device());
        all.reshape([1, 2, SEQ, 4])
    }

    fn step(number: usize) -> Projected {
        let of = |part: f32| numbers(10.0 * number as f32 + part);
        Projected {
            query: of(1.0),
            key: of(2.0),
            value: of(3.0),
        }
    }

    /// What a decoder attends to at index `at` of a step: of step 0 all up to there, of the later ones their own.
    fn decoded(step_number: usize, at: usize, sinks: Option<Tensor<1>>) -> Vec<f32> {
        let seen = |of: fn(Projected) -> Tensor<4>| {
            let first = of(step(0)).narrow(2, 0, at + 1);
            let later = (1..=step_number).map(|number| of(step(number)).narrow(2, at, 1));
            Tensor::cat(std::iter::once(first).chain(later).collect(), 2)
        };
        let query = step(step_number).query.narrow(2, at, 1);
        let keys_values = (seen(|step| step.key), seen(|step| step.value));
        host_f32(attend_to_cache(query, keys_values, sinks, None))
    }

    #[test]
    fn every_step_attends_with_the_sinks_that_decoding_has() {
        let device = test_device();
        let causal = Sight::new([SEQ, SEQ], (0..SEQ).map(|at| Some(0..at + 1)));
        let mask = Mask::new(causal, &device);
        let sinks = || Some(Tensor::<1>::from_floats([0.5, -1.0], &device));
        let (mut with, mut without) = (UnrolledCache::new(1), UnrolledCache::new(1));
        for number in 0..3 {
            let found = with.attend(0, step(number), sinks(), &mask, None);
            let plain = without.attend(0, step(number), None, &mask, None);
            for at in 0..SEQ {
                let own = |of: &Tensor<4>| host_f32(of.clone().narrow(2, at, 1));
                let expected = [decoded(number, at, sinks()), decoded(number, at, None)];
                for (found, expected) in [own(&found), own(&plain)].iter().zip(&expected) {
                    for (one, other) in found.iter().zip(expected) {
                        assert!((one - other).abs() < 2e-3, "{number} {at}: {one} {other}");
                    }
                }
                let apart = own(&found)
                    .iter()
                    .zip(own(&plain))
                    .any(|(one, other)| (one - other).abs() > 1e-2);
                assert!(apart, "{number} {at}");
            }
        }
    }
}
