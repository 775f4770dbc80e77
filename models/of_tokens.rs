//! What passes over the same tokens share.
use burn::prelude::*;

/// What a pass of an unrolled drafter reads of tokens beside hidden states: of the tokens of a batch, or of those that the places of a step
/// read.
#[derive(Debug, Clone)]
pub struct OfTokens {
    /// `[batch, seq, width]` each: the embeddings alone, or what a drafter [makes](crate::unrolls::Unrolls::of_tokens) of them.
    pub states: Vec<Tensor<3>>,
    /// What it makes of its parameters besides, which is the same at all tokens; nothing beside embeddings.
    pub weights: Vec<Tensor<2>>,
}

impl OfTokens {
    /// `[batch, seq, d_model]`
    pub fn embedded(embedded: Tensor<3>) -> Self {
        Self {
            states: vec![embedded],
            weights: Vec::new(),
        }
    }

    /// The embeddings, where they are nothing else.
    ///
    /// # Panics
    /// They are what a drafter made of embeddings.
    pub fn into_embedded(mut self) -> Tensor<3> {
        match (self.states.pop(), self.weights.is_empty()) {
            (Some(embedded), true) => embedded,
            _ => panic!("what a drafter made of embeddings is read as such by another"),
        }
    }

    /// The same outside of any graph.
    pub fn without_autodiff(&self) -> Self {
        Self {
            states: outside(&self.states),
            weights: outside(&self.weights),
        }
    }
}

fn outside<const D: usize>(all: &[Tensor<D>]) -> Vec<Tensor<D>> {
    let plain = all.iter().map(|x| x.clone().without_autodiff());
    plain.collect()
}
