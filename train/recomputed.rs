//! The unrolled drafter with activations of one step at a time.
//!
//! Once the loss has been judged, the gradient of what the head reads at each step is a constant. So step `j` can be
//! differentiated alone, last step first: it is computed again from its inputs, the hidden states and the keys and values
//! of the steps before it, which enter as leaves of a graph of their own. What arrives at the leaves is handed on. The last
//! steps are kept, since they would be computed again at once.
use burn::prelude::*;
use spectrain_models::Features;
use spectrain_models::steps::Steps;
use spectrain_models::unrolled::{KeyAndValue, UnrolledCache};
use spectrain_models::unrolls::Unrolls;
use spectrain_models::weights::lift;

use crate::batch::Batch;
use crate::delivered::delivering_as_it_is;
use crate::optimizer::Gradients;
use crate::row::JudgedRow;

/// Steps at the end whose graphs are kept from the forward pass: they are the first to be differentiated, before the
/// gradients of the parameters need their memory.
pub(crate) const KEPT: usize = 2;

/// The inputs of every step, in no graph, and what its backward pass needs.
pub(crate) struct Unrolled<'a> {
    inputs: Steps<'a>,
    /// What it starts from.
    features: Features,
    /// What each step reads, `[batch, seq, d_model]`, or of the places alone where it runs.
    hidden: Vec<Tensor<3>>,
    cache: UnrolledCache,
    /// The last steps, in step order.
    kept: Vec<Step>,
}

/// One step in a graph of its own.
struct Step {
    /// A leaf, `[batch, seq, d_model]`.
    hidden: Tensor<3>,
    /// Of each layer the keys and values of the steps before it: leaves.
    earlier: Vec<Vec<KeyAndValue>>,
    /// Its own keys and values, of each layer.
    own: Vec<KeyAndValue>,
    /// `[batch, seq, d_model]`, before the final norm.
    output: Tensor<3>,
}

impl Step {
    /// Runs step `step`, before which come those with the keys and values in `cache`; what is there of later ones is left out.
    fn new(
        drafter: &impl Unrolls,
        inputs: &Steps,
        step: usize,
        hidden: &Tensor<3>,
        cache: &UnrolledCache,
    ) -> Self {
        let device = inputs.device();
        let leaf = |x: &Tensor<4>| lift(x.clone(), &device).require_grad();
        let hidden = lift(hidden.clone(), &device).require_grad();
        let leaves = |(key, value): &KeyAndValue| (leaf(key), leaf(value));
        let layers = cache.layers().iter();
        let earlier: Vec<Vec<_>> = layers
            .map(|steps| steps[..step].iter().map(leaves).collect())
            .collect();
        let mut cache = UnrolledCache::from_layers(earlier.clone());
        let output = run(drafter, inputs, step, hidden.clone(), &mut cache);
        Self {
            hidden,
            earlier,
            own: cache
                .layers()
                .iter()
                .map(|steps| steps[step].clone())
                .collect(),
            output,
        }
    }
}

/// Gradients of the keys and values of one layer in one step.
type OfKeyAndValue = Option<KeyAndValue>;

impl<'a> Unrolled<'a> {
    /// Runs `drafter`, whose parameters are in a graph, over a batch with these features, where its `inputs` say. Also returns what the
    /// head reads at each of so many `steps`, `[places, d_model]`, in no graph.
    pub(crate) fn new(
        drafter: &'a impl Unrolls,
        inputs: Steps<'a>,
        features: &Features,
        steps: usize,
    ) -> (Self, Vec<Tensor<2>>) {
        let plain = drafter.valid();
        let plain_inputs = inputs.without_autodiff();
        let mut unrolled = Self {
            inputs,
            features: features.clone(),
            hidden: Vec::with_capacity(steps),
            cache: UnrolledCache::new(drafter.layers()),
            kept: Vec::with_capacity(KEPT),
        };
        let mut by_head = Vec::with_capacity(steps);
        let mut hidden = plain.begin(&Features {
            captured: unrolled.features.captured.clone().without_autodiff(),
            last: unrolled.features.last.clone().without_autodiff(),
        });
        for step in 0..steps {
            unrolled.hidden.push(hidden.clone());
            let output = if step + KEPT < steps {
                run(&plain, &plain_inputs, step, hidden, &mut unrolled.cache)
            } else {
                let kept = Step::new(drafter, &unrolled.inputs, step, &hidden, &unrolled.cache);
                let plain = |(key, value): &KeyAndValue| {
                    let (key, value) = (key.clone(), value.clone());
                    (key.without_autodiff(), value.without_autodiff())
                };
                unrolled.cache.push(kept.own.iter().map(plain));
                let output = kept.output.clone().without_autodiff();
                unrolled.kept.push(kept);
                output
            };
            by_head.push(positions(plain.normed(output.clone())));
            hidden = plain.next(plain_inputs.onward(step, output));
        }
        (unrolled, by_head)
    }

    /// The gradients of all parameters below the head, from those of what the head reads.
    pub(crate) fn backward(mut self, drafter: &impl Unrolls, by_head: Vec<Tensor<2>>) -> Gradients {
        let mut gradients = Gradients::default();
        // By step and layer.
        let mut of_caches = vec![vec![OfKeyAndValue::None; drafter.layers()]; self.hidden.len()];
        let mut of_next: Option<Tensor<3>> = None;
        for (number, by_head) in by_head.into_iter().enumerate().rev() {
            let step = match self.kept.pop() {
                Some(kept) => kept,
                None => {
                    let hidden = &self.hidden[number];
                    Step::new(drafter, &self.inputs, number, hidden, &self.cache)
                }
            };
            self.hidden.truncate(number);
            let mut surrogate =
                delivering_as_it_is(positions(drafter.normed(step.output.clone())), by_head);
            if let Some(gradient) = of_next.take() {
                let next = drafter.next(self.inputs.onward(number, step.output));
                surrogate = surrogate + delivering_as_it_is(next, gradient);
            }
            for (own, gradients) in step.own.into_iter().zip(&mut of_caches[number]) {
                if let Some((to_key, to_value)) = gradients.take() {
                    let (key, value) = own;
                    surrogate = surrogate
                        + delivering_as_it_is(key, to_key)
                        + delivering_as_it_is(value, to_value);
                }
            }
            let mut graph = surrogate.backward();
            of_next = step.hidden.grad_remove(&mut graph);
            for (layer, earlier) in step.earlier.iter().enumerate() {
                for ((key, value), sums) in earlier.iter().zip(&mut of_caches) {
                    let key = key.grad_remove(&mut graph);
                    let both = key.zip(value.grad_remove(&mut graph));
                    sums[layer] = sum(sums[layer].take(), both);
                }
            }
            gradients.add(drafter, Some(graph), Vec::new());
        }
        if let Some(gradient) = of_next {
            let begun = drafter.begin(&self.features);
            // What has no parameters hands the features on as they are.
            if begun.is_tracked() {
                gradients.add(
                    drafter,
                    Some(delivering_as_it_is(begun, gradient).backward()),
                    Vec::new(),
                );
            }
        }
        gradients
    }
}

fn sum(before: OfKeyAndValue, new: OfKeyAndValue) -> OfKeyAndValue {
    match (before, new) {
        (Some((keys, values)), Some((key, value))) => Some((keys + key, values + value)),
        (before, new) => before.or(new),
    }
}

/// The output of a step, `[batch, seq, d_model]`, from `hidden` of the same shape.
pub(crate) fn run(
    drafter: &impl Unrolls,
    steps: &Steps,
    step: usize,
    hidden: Tensor<3>,
    cache: &mut UnrolledCache,
) -> Tensor<3> {
    let (embedded, rotation) = steps.inputs(step, hidden.dtype());
    drafter.output(embedded, hidden, &rotation, &steps.mask(step), cache)
}

/// What steps of `drafter` read of a batch, everywhere in it.
pub(crate) fn steps<'a>(drafter: &'a impl Unrolls, batch: &Batch) -> Steps<'a> {
    Steps::new(drafter, batch.tokens.clone(), batch.layout.clone())
}

/// Of each of so many positions whether a step behind step 0 is judged there.
pub(crate) fn wanted_later(rows: &[JudgedRow], positions: usize) -> Vec<bool> {
    let mut wanted = vec![false; positions];
    let later = rows.iter().filter(|row| row.step > 0);
    later.for_each(|row| wanted[row.position] = true);
    wanted
}

/// `[batch, seq, d_model]` to `[batch * seq, d_model]`.
pub(crate) fn positions(hidden: Tensor<3>) -> Tensor<2> {
    hidden.flatten(0, 1)
}
