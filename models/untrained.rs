use spectrain_checkpoints::NamedTensor;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::error::Result;
use crate::target::TargetParts;
use crate::weights::{Init, RandomWeights, Weights, host_f32};

/// Rows as wide as `shape` says: of what a head reads behind the hidden state it starts to take nothing.
fn wider(rows: Vec<f32>, shape: &[usize]) -> Vec<f32> {
    let &[count, width] = shape else { return rows };
    if rows.len() == count * width {
        return rows;
    }
    let mut wide = vec![0.0; count * width];
    for (wide, row) in wide.chunks_mut(width).zip(rows.chunks(rows.len() / count)) {
        wide[..row.len()].copy_from_slice(row);
    }
    wide
}

/// Random parameters, except for embeddings, and heads and the norm before them that start as the target's.
pub(crate) struct Untrained<'a> {
    pub(crate) random: RandomWeights,
    /// What the names of such heads start with, if there are any.
    pub(crate) heads: Option<&'static str>,
    /// Whether the final norm starts as the target's: what a head of the target's rows has been trained on.
    pub(crate) norm: bool,
    pub(crate) target: &'a TargetParts,
    pub(crate) vocabulary: &'a DraftVocabulary,
}

impl<'a> Untrained<'a> {
    /// Those drawn from `seed` of a drafter that uses the target's own head.
    pub(crate) fn beside_head(
        seed: u64,
        target: &'a TargetParts,
        vocabulary: &'a DraftVocabulary,
    ) -> Self {
        Self {
            random: RandomWeights::new(seed),
            heads: None,
            norm: true,
            target,
            vocabulary,
        }
    }
}

impl Weights for Untrained<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let known = match name {
            "embed_tokens.weight" => Some(host_f32(self.target.embed_tokens.weight.val())),
            "norm.weight" | "final_layernorm.weight"
                if self.norm && self.target.norm.weight.is_initialized() =>
            {
                let mut weight = host_f32(self.target.norm.weight.val());
                // A parameter that is the weight less 1 would start at 0 by itself.
                if init == Init::Constant(0.0) {
                    weight.iter_mut().for_each(|weight| *weight -= 1.0);
                }
                Some(weight)
            }
            _ => None,
        };
        if let Some(values) = known {
            return Ok(NamedTensor::from_f32(name, shape, values));
        }
        if !self.heads.is_some_and(|heads| name.starts_with(heads)) {
            return self.random.tensor(name, shape, init);
        }
        let values = if name.ends_with(".bias") {
            // The target's head has none.
            vec![0.0; shape[0]]
        } else {
            let rows = host_f32(self.target.head_rows(self.vocabulary).transpose());
            wider(rows, shape)
        };
        Ok(NamedTensor::from_f32(name, shape, values))
    }
}
