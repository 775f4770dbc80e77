//! The unrolled drafter with activations of one step at a time.
//!
//! Once the loss has been judged, the gradient of what the head reads at each step is a constant. So step `j` can be
//! differentiated alone, last step first: it is computed again from its inputs, the hidden states and the keys and values
//! of the steps before it, which enter as leaves of a graph of their own. What arrives at the leaves is handed on.
use burn::prelude::*;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::unrolled::UnrolledCache;
use spectrain_models::weights::lift;

use crate::Batch;
use crate::optimizer::Gradients;
use crate::training_time_test::{Steps, features, positions};
use crate::vocab_loss::dot;

/// The inputs of every step, in no graph, and what its backward pass needs.
pub(crate) struct Unrolled<'a> {
    batch: &'a Batch,
    /// `[batch, seq, d_model]`, one for each step.
    hidden: Vec<Tensor<3>>,
    cache: UnrolledCache,
}

/// Gradients of a step's keys and values.
type OfKeyAndValue = Option<(Tensor<4>, Tensor<4>)>;

impl<'a> Unrolled<'a> {
    /// Runs `drafter`, whose parameters are in a graph, outside of it over `batch`. Also returns what the head reads at
    /// each step, `[batch * seq, d_model]`.
    pub(crate) fn new(drafter: &Eagle3, batch: &'a Batch, steps: usize) -> (Self, Vec<Tensor<2>>) {
        let plain = drafter.valid();
        let inputs = Steps::new(&plain, &batch.without_autodiff());
        let mut unrolled = Self {
            batch,
            hidden: Vec::with_capacity(steps),
            cache: UnrolledCache::default(),
        };
        let mut by_head = Vec::with_capacity(steps);
        let mut hidden = plain.fuse(features(batch).captured.clone().without_autodiff());
        for step in 0..steps {
            unrolled.hidden.push(hidden.clone());
            let output = inputs.run(&plain, step, hidden, &mut unrolled.cache);
            by_head.push(positions(plain.normed(output.clone())));
            hidden = plain.feedback(output);
        }
        (unrolled, by_head)
    }

    /// The gradients of all parameters below the head, from those of what the head reads.
    pub(crate) fn backward(self, drafter: &Eagle3, by_head: Vec<Tensor<2>>) -> Gradients {
        let mut gradients = Gradients::default();
        let inputs = Steps::new(drafter, self.batch);
        let device = self.batch.tokens.device();
        let leaf = |x: &Tensor<4>| lift(x.clone(), &device).require_grad();
        let mut of_caches: Vec<OfKeyAndValue> = vec![None; self.hidden.len()];
        let mut of_next: Option<Tensor<3>> = None;
        let steps = self.hidden.into_iter().zip(by_head);
        for (step, (hidden, by_head)) in steps.enumerate().rev() {
            let earlier: Vec<_> = self.cache.steps()[..step]
                .iter()
                .map(|(key, value)| (leaf(key), leaf(value)))
                .collect();
            let hidden = lift(hidden, &device).require_grad();
            let mut cache = UnrolledCache::from_steps(earlier.clone());
            let output = inputs.run(drafter, step, hidden.clone(), &mut cache);
            let mut surrogate = dot(positions(drafter.normed(output.clone())), by_head);
            if let Some(gradient) = of_next.take() {
                surrogate = surrogate + dot(drafter.feedback(output), gradient);
            }
            if let (Some((key, value)), Some((to_key, to_value))) =
                (cache.steps().last().cloned(), of_caches[step].take())
            {
                surrogate = surrogate + dot(key, to_key) + dot(value, to_value);
            }
            drop(cache);
            let mut graph = surrogate.backward();
            of_next = hidden.grad_remove(&mut graph);
            for ((key, value), sum) in earlier.iter().zip(&mut of_caches) {
                let both = key
                    .grad_remove(&mut graph)
                    .zip(value.grad_remove(&mut graph));
                *sum = match (sum.take(), both) {
                    (Some((keys, values)), Some((key, value))) => {
                        Some((keys + key, values + value))
                    }
                    (before, new) => before.or(new),
                };
            }
            gradients.add(drafter, Some(graph), Vec::new());
        }
        if let Some(gradient) = of_next {
            let fused = drafter.fuse(features(self.batch).captured.clone());
            gradients.add(drafter, Some(dot(fused, gradient).backward()), Vec::new());
        }
        gradients
    }
}
