//! Drafters whose next step reads their own hidden states, and can so be unrolled over whole rows at once
//! (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::DType;

use crate::attention::{Attends, Projects};
use crate::draft_state::{DraftPass, DraftState};
use crate::drafter::Drafter;
use crate::few_rows::product;
use crate::mask::{Mask, token_ids};
use crate::of_tokens::OfTokens;
use crate::rope::{Rope, Rotation};
use crate::target::Features;
use crate::tree::Tree;
use crate::unrolled::UnrolledCache;

/// A drafter that is unrolled on its own hidden states. Its pass is the same in training and in decoding; what it attends to
/// differs.
pub trait Unrolls: Drafter<State = DraftState> {
    /// What step 0 reads beside embeddings. `[batch, seq, d_model]`
    fn begin(&self, features: &Features) -> Tensor<3>;

    /// Decoder layers, each with keys and values of its own.
    fn layers(&self) -> usize {
        1
    }

    /// What a pass reads of tokens that have these embeddings, where several passes read the same tokens: what does not depend on hidden
    /// states, and so need not be computed in each of them.
    ///
    /// # Shapes
    /// - embedded: `[batch, seq, d_model]`
    fn of_tokens(&self, embedded: Tensor<3>) -> OfTokens {
        OfTokens::embedded(embedded)
    }

    /// One pass, whose attention is taken by `attend`, given the number of the layer, its attention and what that reads.
    ///
    /// # Shapes
    /// - tokens: the embedding of the token after each hidden state, or what is made [of it](Self::of_tokens)
    /// - hidden: `[batch, seq, d_model]`, what [`begin`](Self::begin) gives at step 0, [`next`](Self::next) after
    /// - output: `[batch, seq, d_model]`
    fn pass(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3>;

    /// The step behind those in `cache`, over whole packed rows.
    ///
    /// # Shapes
    /// - tokens, hidden, output: as of a [`pass`](Self::pass)
    /// - mask: `[batch, 1, seq, seq]`, what this step sees of the keys of step 0
    fn output(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        rotation: &Rotation,
        mask: &Mask,
        cache: &mut UnrolledCache,
    ) -> Tensor<3> {
        let window = self.sees_back();
        self.pass(tokens, hidden, |layer, attention, x| {
            attention.around(x, rotation, |projected| {
                cache.attend(layer, projected, attention.sinks(), mask, window)
            })
        })
    }

    /// The outputs behind some tokens that a decoder takes in, batch 1.
    fn decode(&self, tokens: &[u32], hidden: Tensor<3>, pass: DraftPass) -> Tensor<3> {
        let (device, target) = (hidden.device(), self.target());
        let rope = Rope::new(&target.spec.rope, self.turned(), &device);
        let rotation = rope.at(pass.positions.clone());
        let embedded = target.embed(token_ids(tokens, &device), &device);
        let mut embedded = embedded.cast(hidden.dtype());
        if self.starts_blank() {
            embedded = blank_at_start(embedded, pass.positions);
        }
        let tokens = OfTokens::embedded(embedded);
        self.pass(tokens, hidden, |layer, attention, x| {
            let cache = &mut pass.caches[layer];
            attention.forward(x, &rotation, pass.mask.as_ref(), Some(cache))
        })
    }

    /// What [`Drafter::observe`] does.
    fn take_in(&self, state: &mut DraftState, tokens: &[u32], features: &Features) {
        let hidden = self.begin(features);
        state.observe(tokens.len(), &hidden.device(), |pass| {
            self.decode(tokens, hidden, pass)
        });
    }

    /// What [`Drafter::node_logits`] gives.
    fn logits_behind(&self, state: &mut DraftState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let tokens: Vec<u32> = nodes.iter().map(|&node| tree.tokens[node]).collect();
        let outputs = state.draft(tree, nodes, |outputs, pass| {
            self.decode(&tokens, self.next(outputs), pass)
        });
        self.read(outputs)
    }

    /// What the next step reads in place of `hidden`. `[batch, seq, d_model]` to the same.
    fn next(&self, output: Tensor<3>) -> Tensor<3> {
        output
    }

    /// What the head reads of it. `[batch, seq, d_model]` to the same.
    fn normed(&self, output: Tensor<3>) -> Tensor<3> {
        output
    }

    /// The head's weight, `[d_model, draft_vocab]`; it takes gradients unless it is the target's.
    fn head(&self) -> Tensor<2>;

    /// The parameter that holds the head, unless the target's is shared.
    fn head_parameter(&self) -> Option<ParamId> {
        None
    }

    /// How many positions back a query sees, the own one counted; none for all.
    fn sees_back(&self) -> Option<usize> {
        None
    }

    /// Dimensions of a head that turn with its position, the first ones.
    fn turned(&self) -> usize {
        self.target().spec.d_head
    }

    /// Whether the first position of a text reads zeros in place of its token's embedding.
    fn starts_blank(&self) -> bool {
        false
    }

    /// The head's logits. `[1, rows, d_model]` to `[rows, draft_vocab]`, f32.
    fn read(&self, output: Tensor<3>) -> Tensor<2> {
        let normed: Tensor<2> = self.normed(output).squeeze_dim(0);
        product(normed, self.head()).cast(DType::F32)
    }
}

/// Embeddings with zeros at position 0.
///
/// # Shapes
/// - embedded, output: `[batch, seq, d_model]`
/// - positions: `[batch, seq]`
pub(crate) fn blank_at_start(embedded: Tensor<3>, positions: Tensor<2, Int>) -> Tensor<3> {
    let kept = positions.greater_elem(0).float().cast(embedded.dtype());
    embedded * kept.unsqueeze_dim(2)
}
