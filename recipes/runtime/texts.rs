//! Texts that a target wrote, from stored features: what judges a drafter where the target itself is not there.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Result, bail};
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::features::{FeatureHeader, FeatureShards, Recorded, StoredSample};
use spectrain_eval::{Judges, OwnText};
use spectrain_models::{Capture, Features, TargetParts};

use crate::recipe::tables::FeatureMode;
use crate::runtime::bf16::tensor_of;
use crate::runtime::capture::stored::digest;
use crate::runtime::columns::{columns, pick};
use crate::runtime::prompts;

/// Stored features, read for one drafter.
pub struct StoredTexts<'a> {
    shards: FeatureShards,
    /// The sample that each conversation is.
    samples: Vec<usize>,
    target: &'a TargetParts,
    /// Where the captured layers that the drafter reads stand among the stored ones.
    columns: Vec<usize>,
    device: Device,
    /// Type that the drafter computes in.
    compute: DType,
}

impl<'a> StoredTexts<'a> {
    /// The features in `folder`, for a drafter that reads `capture` of the model that `target` is of. `proof` finds their files
    /// unaltered.
    ///
    /// # Errors
    /// Those of `proof`. The features are not of that model, lack a layer, or cannot be read.
    pub fn open(
        folder: &Path,
        capture: &Capture,
        target: &'a TargetParts,
        proof: impl FnOnce(&[Recorded]) -> Result<()>,
    ) -> Result<Self> {
        let shards = FeatureShards::open_with(folder, proof)?;
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
            samples: (0..shards.len()).collect(),
            compute: target.dtype(),
            device: target.embed_tokens.weight.val().device(),
            shards,
        })
    }

    /// The same without conversations that repeat an earlier one, and how many those are: where servers answered, those in which the
    /// target is asked the same; of imported texts those that are the same to their ends.
    pub fn without_repeats(mut self, mode: FeatureMode) -> (Self, usize) {
        let all = self.len();
        let mut seen = HashSet::new();
        let is_new = |&at: &usize| match mode {
            FeatureMode::Imported => seen.insert(digest(self.sample(at).tokens)),
            _ => seen.insert(digest(&self.asked(at))),
        };
        let new = (0..all).filter(is_new).map(|at| self.samples[at]);
        self.samples = new.collect();
        let repeated = all - self.len();
        (self, repeated)
    }

    /// The conversations of a run by which drafters are judged, and what was left out: those that repeat an earlier one, and of
    /// imported texts those in which nothing tells what the target was asked.
    pub fn judged(mut self, mode: FeatureMode) -> (Self, LeftOut) {
        let all = self.len();
        if mode == FeatureMode::Imported {
            let told_apart = |at: &usize| !is_whole(self.shards.get(*at).loss_mask);
            self.samples = self.samples.iter().copied().filter(told_apart).collect();
        }
        let whole = all - self.len();
        let (kept, repeated) = self.without_repeats(mode);
        (kept, LeftOut { whole, repeated })
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
        self.samples.len()
    }

    fn sample(&self, conversation: usize) -> StoredSample<'_> {
        self.shards.get(self.samples[conversation])
    }

    /// What the target is asked in a conversation: the tokens before its answers, and between them.
    pub fn asked(&self, conversation: usize) -> Vec<u32> {
        let StoredSample {
            tokens, loss_mask, ..
        } = self.sample(conversation);
        let mut asked = tokens.to_vec();
        // From the last answer on, as each makes the places behind it others.
        for [first, end] in answers(loss_mask).into_iter().rev() {
            asked.drain(first..end);
        }
        asked
    }

    /// The tokens up to the first answer in a conversation.
    pub fn prompt(&self, conversation: usize) -> Vec<u32> {
        let StoredSample {
            tokens, loss_mask, ..
        } = self.sample(conversation);
        let end = answers(loss_mask).first().map(|[first, _]| *first);
        tokens[..end.unwrap_or(tokens.len())].to_vec()
    }

    /// The answers in a conversation, each of two tokens or more and cut after `longest`, with what stands before it.
    pub fn answers(&self, conversation: usize, longest: Option<usize>) -> Vec<OwnText> {
        let stored = self.sample(conversation);
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
                judges: Judges::of_states(states.squeeze_dim(0), self.target.clone()),
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
        let captured = pick(&stored.captured.bits(), layers, &self.columns, d_model);
        Features {
            captured: if captured.is_empty() {
                Tensor::zeros([1, seq, 0], (&self.device, self.compute))
            } else {
                tensor(&captured, width)
            },
            last: tensor(&stored.last.bits(), d_model),
        }
    }
}

/// Whether a loss mask has every token that another stands before, so that nothing tells what the target was asked from its answers.
pub fn is_whole(loss_mask: &[u8]) -> bool {
    loss_mask.iter().skip(1).all(|bit| *bit != 0)
}

/// How many conversations drafters are not judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// Of which the loss mask [has every token](is_whole).
    pub whole: usize,
    /// That repeat others.
    pub repeated: usize,
}

impl LeftOut {
    /// What is said of them, where they are of `name`.
    pub fn told(self, name: &str) -> Vec<String> {
        let Self { whole, repeated } = self;
        let whole = (whole > 0).then(|| {
            format!(
                "texts of `{name}` with every token in the loss mask, in which nothing tells the target's answers from what it was \
                 asked, and which are left out: {whole}"
            )
        });
        let repeated = prompts::repeated(name, repeated);
        whole.into_iter().chain(repeated).collect()
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

    #[test]
    fn a_mask_is_whole_whatever_it_says_of_the_first_token() {
        assert!(is_whole(&[1, 1, 1]) && is_whole(&[0, 1, 1]));
        assert!(!is_whole(&[0, 0, 1]) && !is_whole(&[1, 0, 1]));
    }

    #[test]
    fn what_is_left_out_is_told() {
        let none = LeftOut {
            whole: 0,
            repeated: 0,
        };
        assert!(none.told("a").is_empty());
        let told = LeftOut { whole: 2, ..none }.told("a");
        assert!(
            told.len() == 1 && told[0].ends_with("left out: 2"),
            "{told:?}"
        );
    }
}
