//! Texts that a target wrote, from stored features: what judges a drafter where the target itself is not there.

use std::path::Path;

use anyhow::{Result, bail};
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::features::{FeatureHeader, FeatureShards, StoredSample};
use spectrain_eval::{Judges, OwnText};
use spectrain_models::{Capture, Features, TargetParts};

use crate::runtime::bf16::tensor_of;
use crate::runtime::columns::{columns, pick};

/// Stored features, read for one drafter.
pub struct StoredTexts<'a> {
    shards: FeatureShards,
    target: &'a TargetParts,
    /// Where the captured layers that the drafter reads stand among the stored ones.
    columns: Vec<usize>,
    device: Device,
    /// Type that the drafter computes in.
    compute: DType,
}

impl<'a> StoredTexts<'a> {
    /// The features in `folder`, for a drafter that reads `capture` of the model that `target` is of.
    pub fn open(folder: &Path, capture: &Capture, target: &'a TargetParts) -> Result<Self> {
        let shards = FeatureShards::open(folder)?;
        let header = shards.header();
        if header.d_model != target.spec.d_model {
            bail!(
                "`{}`: `d_model`: expected {} as the target has, found {}",
                folder.display(),
                target.spec.d_model,
                header.d_model
            );
        }
        let Some(columns) = columns(&capture.layers, &header.captured_layers) else {
            bail!(
                "`{}`: `captured_layers`: expected the layers {:?}, which the drafter reads, found {:?}",
                folder.display(),
                capture.layers,
                header.captured_layers
            );
        };
        let vocab = target.spec.vocab;
        for sample in 0..shards.len() {
            let tokens = shards.get(sample).tokens;
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
                bail!(
                    "`{}`: sample {sample}: expected tokens below {vocab}, found {token}",
                    folder.display()
                );
            }
        }
        Ok(Self {
            columns,
            target,
            compute: target.embed_tokens.weight.val().dtype(),
            device: target.embed_tokens.weight.val().device(),
            shards,
        })
    }

    /// What the features were computed from.
    pub fn header(&self) -> &FeatureHeader {
        self.shards.header()
    }

    /// Whether there is no conversation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many conversations there are.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// The answers in a conversation, each of two tokens or more and cut after `longest`, with what stands before it.
    pub fn answers(&self, conversation: usize, longest: Option<usize>) -> Vec<OwnText> {
        let stored = self.shards.get(conversation);
        let spans = answers(stored.loss_mask);
        if spans.is_empty() {
            return Vec::new();
        }
        let features = self.features(&stored);
        let text = |[first, end]: [usize; 2]| {
            let limit = longest.map(|longest| first + longest);
            let end = limit.map_or(end, |limit| end.min(limit));
            let states = features.last.clone().narrow(1, first, end - 1 - first);
            OwnText {
                tokens: stored.tokens[..end].to_vec(),
                first,
                limit: limit
                    .unwrap_or(usize::MAX)
                    .min(self.target.spec.max_positions),
                features: Features {
                    captured: features.captured.clone().narrow(1, 0, end - 1),
                    last: features.last.clone().narrow(1, 0, end - 1),
                },
                judges: Judges::of_states(states.squeeze_dim(0), self.target),
            }
        };
        let long = |&[first, end]: &[usize; 2]| {
            let end = longest.map_or(end, |longest| end.min(first + longest));
            end >= first + 2
        };
        spans.into_iter().filter(long).map(text).collect()
    }

    fn features(&self, stored: &StoredSample) -> Features {
        let header = self.shards.header();
        let (seq, d_model) = (stored.tokens.len(), header.d_model);
        let tensor = |bits: &[u16], width: usize| {
            tensor_of(bits, [1, seq, width], &self.device).cast(self.compute)
        };
        let width = self.columns.len() * d_model;
        let layers = header.captured_layers.len();
        let captured = pick(stored.captured, layers, &self.columns, d_model);
        Features {
            captured: if captured.is_empty() {
                Tensor::zeros([1, seq, 0], (&self.device, self.compute))
            } else {
                tensor(&captured, width)
            },
            last: tensor(stored.last, d_model),
        }
    }
}

/// The first token of each answer and the one behind its last: the runs of tokens that are trained on, behind a first token of
/// the prompt.
fn answers(loss_mask: &[u8]) -> Vec<[usize; 2]> {
    let mut spans: Vec<[usize; 2]> = Vec::new();
    for (at, _) in loss_mask
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, bit)| **bit != 0)
    {
        match spans.last_mut() {
            Some([_, end]) if *end == at => *end += 1,
            _ => spans.push([at, at + 1]),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_run_of_trained_tokens_behind_a_prompt() {
        assert_eq!(answers(&[0, 0, 1, 1, 0, 1]), [[2, 4], [5, 6]]);
        assert_eq!(
            answers(&[1, 1, 0]),
            [[1, 2]],
            "the first token has nothing before it"
        );
        assert!(answers(&[0, 0]).is_empty() && answers(&[]).is_empty());
    }
}
