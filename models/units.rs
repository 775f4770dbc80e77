//! What the inputs of a matrix are measured in.
//!
//! EAGLE-1 and Hydra put embeddings beside hidden states and give both to one matrix as they are; ReDrafter's cell reads embeddings
//! alone, beside its own state. Embeddings of language models
//! are small, a fiftieth of a normed state say: at the start their tokens have no say in what comes out, and an optimiser that moves
//! all elements of the matrix alike (AdamW), or all its directions (Muon), takes as many steps as they are smaller to mend that.
//! So such a matrix starts as if its inputs were of size 1, and moves so: by the gradient of, and in, weights times their units.
//! Nothing else changes, and nothing of it is in the drafter's folder.
use burn::prelude::*;
use spectrain_checkpoints::NamedTensor;

use crate::error::Result;
use crate::target::TargetParts;
use crate::weights::{Init, Weights, host_f32};

/// A matrix by its name, and the size of each of its inputs.
pub type Units = (String, Vec<f32>);

/// Tokens by whose embeddings a table is measured, at most.
const MEASURED: usize = 4096;

/// Root mean squares of what a target hands to drafters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sizes {
    /// Embeddings.
    pub(crate) embedding: f32,
    /// Last hidden states, behind the final norm.
    pub(crate) state: f32,
}

impl Sizes {
    /// Those of a target; of one without values, 1.
    pub(crate) fn of(target: &TargetParts) -> Self {
        if !target.embed_tokens.weight.is_initialized() || !target.norm.weight.is_initialized() {
            return Self {
                embedding: 1.0,
                state: 1.0,
            };
        }
        let vocab = target.spec.vocab;
        let tokens = (0..vocab).step_by(vocab.div_ceil(MEASURED));
        let tokens: Vec<i64> = tokens.map(|token| token as i64).collect();
        let device = target.embed_tokens.weight.device();
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device).unsqueeze();
        Self {
            embedding: size(target.embed(tokens, &device)),
            state: size(target.norm.weight.val()),
        }
    }
}

/// The root mean square, the same on every device; of zeros 1, as nothing is measured in them.
fn size<const D: usize>(values: Tensor<D>) -> f32 {
    let values = host_f32(values);
    let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    match (squares / values.len().max(1) as f64).sqrt() as f32 {
        found if found > 0.0 => found,
        _ => 1.0,
    }
}

/// Parameters of `drawn`, where what is drawn for matrices with units is as if their inputs were of size 1.
pub(crate) struct InUnits<W> {
    pub(crate) drawn: W,
    pub(crate) units: Vec<Units>,
}

impl<W: Weights> Weights for InUnits<W> {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let drawn = self.drawn.tensor(name, shape, init)?;
        let Some((_, units)) = self.units.iter().find(|(matrix, _)| matrix == name) else {
            return Ok(drawn);
        };
        // Rows of a file's matrix are outputs.
        let mut values = drawn.to_f32()?;
        for row in values.chunks_exact_mut(units.len()) {
            for (value, unit) in row.iter_mut().zip(units) {
                *value /= unit;
            }
        }
        Ok(NamedTensor::from_f32(name, shape, values))
    }
}
