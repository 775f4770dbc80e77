//! Drafters whose next step reads their own hidden states, and can so be unrolled over whole rows at once
//! (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::DType;

use crate::drafter::Drafter;
use crate::few_rows::product;
use crate::mask::Mask;
use crate::rope::Rotation;
use crate::target::Features;
use crate::unrolled::UnrolledCache;

/// A drafter that is unrolled on its own hidden states.
pub trait Unrolls: Drafter {
    /// What step 0 reads beside embeddings. `[batch, seq, d_model]`
    fn begin(&self, features: &Features) -> Tensor<3>;

    /// Whether [`begin`](Self::begin) has parameters.
    fn begins_with_parameters(&self) -> bool {
        false
    }

    /// Step `cache.len()`, over whole packed rows.
    ///
    /// # Shapes
    /// - embedded: `[batch, seq, d_model]`, of the token after each hidden state
    /// - hidden: `[batch, seq, d_model]`, what [`begin`](Self::begin) gives at step 0, [`next`](Self::next) after
    /// - mask: `[batch, 1, seq, seq]`, what this step sees of the keys of step 0
    /// - output: `[batch, seq, d_model]`
    fn output(
        &self,
        embedded: Tensor<3>,
        hidden: Tensor<3>,
        rotation: &Rotation,
        mask: &Mask,
        cache: &mut UnrolledCache,
    ) -> Tensor<3>;

    /// What the step behind it reads in place of `hidden`. `[batch, seq, d_model]` to the same.
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
