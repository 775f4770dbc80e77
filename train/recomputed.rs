//! The unrolled drafter with activations of one step at a time.
//!
//! Once the loss has been judged, the gradient of what the head reads at each step is a constant. So step `j` can be
//! differentiated alone, last step first: it is computed again from its inputs, the hidden states and the keys and values
//! of the steps before it and what all steps read of tokens, which enter as leaves of a graph of their own. What arrives at the
//! leaves is handed on. The last steps are kept, since they would be computed again at once.
use burn::prelude::*;
use spectrain_models::steps::Steps;
use spectrain_models::unrolled::{KeyAndValue, UnrolledCache};
use spectrain_models::unrolls::Unrolls;
use spectrain_models::weights::lift;
use spectrain_models::{Features, OfTokens};

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
    /// What all steps read of tokens, in a graph of its own.
    tokens: OfTokens,
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
    /// Leaves, where they were in a graph.
    tokens: OfTokens,
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
        (inputs, step): (&Steps, usize),
        tokens: &OfTokens,
        hidden: &Tensor<3>,
        cache: &UnrolledCache,
    ) -> Self {
        let device = inputs.device();
        let tokens = OfTokens {
            states: leaves(&tokens.states, &device),
            weights: leaves(&tokens.weights, &device),
        };
        let leaf = |x: &Tensor<4>| lift(x.clone(), &device).require_grad();
        let hidden = lift(hidden.clone(), &device).require_grad();
        let leaves = |(key, value): &KeyAndValue| (leaf(key), leaf(value));
        let layers = cache.layers().iter();
        let earlier: Vec<Vec<_>> = layers
            .map(|steps| steps[..step].iter().map(leaves).collect())
            .collect();
        let mut cache = UnrolledCache::from_layers(earlier.clone());
        let output = run(drafter, (inputs, step), &tokens, hidden.clone(), &mut cache);
        Self {
            hidden,
            tokens,
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

/// Gradients of the keys and of the values of one layer in one step.
type OfKeyAndValue = [Option<Tensor<4>>; 2];

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
        let mut hidden = plain.begin(&Features {
            captured: features.captured.clone().without_autodiff(),
            last: features.last.clone().without_autodiff(),
        });
        let tokens = drafter.of_tokens(inputs.embedded(hidden.dtype()));
        let plain_tokens = tokens.without_autodiff();
        let mut unrolled = Self {
            inputs,
            features: features.clone(),
            tokens,
            hidden: Vec::with_capacity(steps),
            cache: UnrolledCache::new(drafter.layers()),
            kept: Vec::with_capacity(KEPT),
        };
        let mut by_head = Vec::with_capacity(steps);
        for step in 0..steps {
            unrolled.hidden.push(hidden.clone());
            let output = if step + KEPT < steps {
                let at = (&plain_inputs, step);
                run(&plain, at, &plain_tokens, hidden, &mut unrolled.cache)
            } else {
                let kept = unrolled.step(drafter, step, &hidden);
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

    /// One of its steps, from `hidden`, in a graph of its own.
    fn step(&self, drafter: &impl Unrolls, step: usize, hidden: &Tensor<3>) -> Step {
        let at = (&self.inputs, step);
        Step::new(drafter, at, &self.tokens, hidden, &self.cache)
    }

    /// The gradients of all parameters below the head, from those of what the head reads.
    pub(crate) fn backward(mut self, drafter: &impl Unrolls, by_head: Vec<Tensor<2>>) -> Gradients {
        let mut gradients = Gradients::default();
        // By step and layer.
        let mut of_caches =
            vec![vec![OfKeyAndValue::default(); drafter.layers()]; self.hidden.len()];
        let mut of_next: Option<Tensor<3>> = None;
        let mut of_states = vec![None; self.tokens.states.len()];
        let mut of_weights = vec![None; self.tokens.weights.len()];
        for (number, by_head) in by_head.into_iter().enumerate().rev() {
            let step = match self.kept.pop() {
                Some(kept) => kept,
                None => self.step(drafter, number, &self.hidden[number]),
            };
            self.hidden.truncate(number);
            let mut surrogate =
                delivering_as_it_is(positions(drafter.normed(step.output.clone())), by_head);
            if let Some(gradient) = of_next.take() {
                let next = drafter.next(self.inputs.onward(number, step.output));
                surrogate = surrogate + delivering_as_it_is(next, gradient);
            }
            for ((key, value), gradients) in step.own.into_iter().zip(&mut of_caches[number]) {
                let terms = delivered([key, value], std::mem::take(gradients));
                surrogate = terms.fold(surrogate, Tensor::add);
            }
            let mut graph = surrogate.backward();
            of_next = step.hidden.grad_remove(&mut graph);
            take(&step.tokens.states, &mut of_states, &mut graph);
            take(&step.tokens.weights, &mut of_weights, &mut graph);
            for (layer, earlier) in step.earlier.iter().enumerate() {
                for ((key, value), sums) in earlier.iter().zip(&mut of_caches) {
                    take([key, value], &mut sums[layer], &mut graph);
                }
            }
            gradients.add(drafter, Some(graph), Vec::new());
        }
        let begun = of_next.map(|gradient| (drafter.begin(&self.features), gradient));
        // What has no parameters hands the features on as they are.
        let begun = begun.filter(|(begun, _)| begun.is_tracked());
        let begun = begun.map(|(begun, gradient)| delivering_as_it_is(begun, gradient));
        let terms = (begun.into_iter())
            .chain(delivered(self.tokens.states, of_states))
            .chain(delivered(self.tokens.weights, of_weights));
        if let Some(surrogate) = terms.reduce(Tensor::add) {
            gradients.add(drafter, Some(surrogate.backward()), Vec::new());
        }
        gradients
    }
}

/// The same tensors in a graph that begins with them, where they are in one that gradients go back through.
fn leaves<const D: usize>(all: &[Tensor<D>], device: &Device) -> Vec<Tensor<D>> {
    let leaf = |x: &Tensor<D>| {
        let leaf = lift(x.clone().without_autodiff(), device);
        leaf.set_require_grad(x.is_tracked())
    };
    all.iter().map(leaf).collect()
}

/// Adds what has arrived at leaves.
fn take<'a, const D: usize>(
    leaves: impl IntoIterator<Item = &'a Tensor<D>>,
    sums: &mut [Option<Tensor<D>>],
    graph: &mut burn::tensor::Gradients,
) {
    for (leaf, sum) in leaves.into_iter().zip(sums) {
        let more = leaf.grad_remove(graph);
        *sum = match (sum.take(), more) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
    }
}

/// What delivers gradients to tensors, where there are some.
fn delivered<const D: usize>(
    all: impl IntoIterator<Item = Tensor<D>>,
    gradients: impl IntoIterator<Item = Option<Tensor<D>>>,
) -> impl Iterator<Item = Tensor<1>> {
    let pairs = all.into_iter().zip(gradients);
    pairs.filter_map(|(x, gradient)| Some(delivering_as_it_is(x, gradient?)))
}

/// The output of a step, `[batch, seq, d_model]`, from `hidden` of the same shape.
///
/// `tokens` is what the drafter [makes](Unrolls::of_tokens) of those of the batch.
pub(crate) fn run(
    drafter: &impl Unrolls,
    (steps, step): (&Steps, usize),
    tokens: &OfTokens,
    hidden: Tensor<3>,
    cache: &mut UnrolledCache,
) -> Tensor<3> {
    let (tokens, rotation) = steps.inputs(step, tokens);
    drafter.output(tokens, hidden, &rotation, &steps.mask(step), cache)
}

/// What steps of `drafter` read of a batch, everywhere in it.
pub(crate) fn steps<'a>(drafter: &'a impl Unrolls, batch: &Batch) -> Steps<'a> {
    Steps::new(drafter, batch.tokens.clone(), batch.layout.clone())
}

/// The same, of the steps behind step 0 where one is among the judged `rows`.
pub(crate) fn steps_to_judge<'a>(
    drafter: &'a impl Unrolls,
    batch: &Batch,
    rows: &[JudgedRow],
) -> Steps<'a> {
    let mut wanted = vec![false; batch.rows.len()];
    let later = rows.iter().filter(|row| row.step > 0);
    later.for_each(|row| wanted[row.position] = true);
    steps(drafter, batch).wanted(&wanted)
}

/// `[batch, seq, d_model]` to `[batch * seq, d_model]`.
pub(crate) fn positions(hidden: Tensor<3>) -> Tensor<2> {
    hidden.flatten(0, 1)
}
