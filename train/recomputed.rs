//! The unrolled drafter with activations of one step at a time.
//!
//! Once the loss has been judged, the gradient of what the head reads at each step is a constant. So step `j` can be
//! differentiated alone, last step first: it is computed again from its inputs, the hidden states and the keys and values
//! of the steps before it, which enter as leaves of a graph of their own. What arrives at the leaves is handed on. The last
//! steps are kept, since they would be computed again at once.
use burn::prelude::*;
use spectrain_models::Features;
use spectrain_models::steps::Steps;
use spectrain_models::unrolled::UnrolledCache;
use spectrain_models::unrolls::Unrolls;
use spectrain_models::weights::lift;

use crate::batch::Batch;
use crate::optimizer::Gradients;
use crate::vocab_loss::dot;

/// Steps at the end whose graphs are kept from the forward pass: they are the first to be differentiated, before the
/// gradients of the parameters need their memory.
pub(crate) const KEPT: usize = 2;

/// The inputs of every step, in no graph, and what its backward pass needs.
pub(crate) struct Unrolled<'a> {
    inputs: Steps<'a>,
    /// What it starts from.
    features: Features,
    /// `[batch, seq, d_model]`, one for each step.
    hidden: Vec<Tensor<3>>,
    cache: UnrolledCache,
    /// The last steps, in step order.
    kept: Vec<Step>,
}

/// One step in a graph of its own.
struct Step {
    /// A leaf, `[batch, seq, d_model]`.
    hidden: Tensor<3>,
    /// Keys and values of the steps before it: leaves.
    earlier: Vec<(Tensor<4>, Tensor<4>)>,
    /// Its own keys and values.
    own: (Tensor<4>, Tensor<4>),
    /// `[batch, seq, d_model]`, before the final norm.
    output: Tensor<3>,
}

impl Step {
    /// Runs the step that follows those with the keys and values `earlier`.
    fn new(
        drafter: &impl Unrolls,
        inputs: &Steps,
        hidden: &Tensor<3>,
        earlier: &[(Tensor<4>, Tensor<4>)],
    ) -> Self {
        let device = inputs.device();
        let leaf = |x: &Tensor<4>| lift(x.clone(), &device).require_grad();
        let hidden = lift(hidden.clone(), &device).require_grad();
        let step = earlier.len();
        let earlier: Vec<_> = earlier.iter().map(|(k, v)| (leaf(k), leaf(v))).collect();
        let mut cache = UnrolledCache::from_steps(earlier.clone());
        let output = run(drafter, inputs, step, hidden.clone(), &mut cache);
        Self {
            hidden,
            earlier,
            own: cache.steps()[step].clone(),
            output,
        }
    }
}

/// Gradients of a step's keys and values.
type OfKeyAndValue = Option<(Tensor<4>, Tensor<4>)>;

impl<'a> Unrolled<'a> {
    /// Runs `drafter`, whose parameters are in a graph, over `batch`. Also returns what the head reads at each step,
    /// `[batch * seq, d_model]`, in no graph.
    pub(crate) fn new(
        drafter: &'a impl Unrolls,
        batch: &Batch,
        steps: usize,
    ) -> (Self, Vec<Tensor<2>>) {
        let plain = drafter.valid();
        let inputs = Steps::new(drafter, batch.tokens.clone(), batch.layout.clone());
        let plain_inputs = inputs.without_autodiff();
        let mut unrolled = Self {
            inputs,
            features: batch.features().clone(),
            hidden: Vec::with_capacity(steps),
            cache: UnrolledCache::default(),
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
                let earlier = unrolled.cache.steps();
                let kept = Step::new(drafter, &unrolled.inputs, &hidden, earlier);
                let (key, value) = kept.own.clone();
                let own = (key.without_autodiff(), value.without_autodiff());
                unrolled.cache.push(own);
                let output = kept.output.clone().without_autodiff();
                unrolled.kept.push(kept);
                output
            };
            by_head.push(positions(plain.normed(output.clone())));
            hidden = plain.next(output);
        }
        (unrolled, by_head)
    }

    /// The gradients of all parameters below the head, from those of what the head reads.
    pub(crate) fn backward(mut self, drafter: &impl Unrolls, by_head: Vec<Tensor<2>>) -> Gradients {
        let mut gradients = Gradients::default();
        let mut of_caches: Vec<OfKeyAndValue> = vec![None; self.hidden.len()];
        let mut of_next: Option<Tensor<3>> = None;
        for (number, by_head) in by_head.into_iter().enumerate().rev() {
            let earlier = &self.cache.steps()[..number];
            let step = match self.kept.pop() {
                Some(kept) => kept,
                None => Step::new(drafter, &self.inputs, &self.hidden[number], earlier),
            };
            self.hidden.truncate(number);
            let mut surrogate = dot(positions(drafter.normed(step.output.clone())), by_head);
            if let Some(gradient) = of_next.take() {
                surrogate = surrogate + dot(drafter.next(step.output), gradient);
            }
            if let Some((to_key, to_value)) = of_caches[number].take() {
                let (key, value) = step.own;
                surrogate = surrogate + dot(key, to_key) + dot(value, to_value);
            }
            let mut graph = surrogate.backward();
            of_next = step.hidden.grad_remove(&mut graph);
            for ((key, value), sum) in step.earlier.iter().zip(&mut of_caches) {
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
        if let Some(gradient) = of_next.filter(|_| drafter.begins_with_parameters()) {
            let begun = drafter.begin(&self.features);
            gradients.add(drafter, Some(dot(begun, gradient).backward()), Vec::new());
        }
        gradients
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

/// `[batch, seq, d_model]` to `[batch * seq, d_model]`.
pub(crate) fn positions(hidden: Tensor<3>) -> Tensor<2> {
    hidden.flatten(0, 1)
}
