use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::packing::{self, PackedBatch, RowLayout};
use spectrain_data::tokens::TokenShards;
use spectrain_models::{Features, Layout, weights::lift};

/// Packed rows of tokens, on the host.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Samples of every row.
    pub packed: PackedBatch,
    /// Documents and positions within them, row by row.
    pub layout: RowLayout,
    /// `rows * row_length` token ids; 0 in padding.
    pub tokens: Vec<u32>,
    /// Whether the token is in the loss mask.
    pub loss_mask: Vec<bool>,
}

impl Rows {
    /// The rows of `packed` with the samples of `shards`.
    pub fn new(
        packed: PackedBatch,
        shards: &TokenShards,
        lengths: &[usize],
        length: usize,
    ) -> Self {
        let layout = packing::layout(&packed, lengths, length);
        let mut tokens = Vec::with_capacity(layout.documents.len());
        let mut loss_mask = Vec::with_capacity(layout.documents.len());
        for (row, samples) in packed.rows.iter().enumerate() {
            for &sample in samples {
                let view = shards.get(sample);
                tokens.extend_from_slice(view.tokens);
                loss_mask.extend(view.loss_mask.iter().map(|&bit| bit != 0));
            }
            tokens.resize((row + 1) * length, 0);
            loss_mask.resize((row + 1) * length, false);
        }
        Self {
            packed,
            layout,
            tokens,
            loss_mask,
        }
    }

    /// Positions, padding included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens that are not padding.
    pub fn real_tokens(&self) -> usize {
        self.layout
            .documents
            .iter()
            .filter(|&&document| document != 0)
            .count()
    }

    /// Samples of the batch, for messages.
    pub fn samples(&self) -> Vec<usize> {
        self.packed.rows.iter().flatten().copied().collect()
    }

    /// Whether `position + by` is in the same row and document as `position`, and that is not padding.
    pub fn reaches(&self, position: usize, by: usize) -> bool {
        let length = self.layout.row_length;
        let to = position + by;
        let documents = &self.layout.documents;
        to / length == position / length
            && documents[position] != 0
            && documents.get(to) == Some(&documents[position])
    }

    /// Whether a decoder that has committed the token at `position` may draft the `by` tokens behind it: they and that token
    /// are in the loss mask without a gap. Behind a gap, which is another turn, nothing is drafted from before it.
    pub fn drafts(&self, position: usize, by: usize) -> bool {
        let wanted = position..position + by + 1;
        self.reaches(position, by) && self.loss_mask[wanted].iter().all(|&trained| trained)
    }
}

/// A batch: packed rows and the target's features over them.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The rows on the host.
    pub rows: Rows,
    /// `[batch, seq]`
    pub tokens: Tensor<2, Int>,
    /// Documents and positions.
    pub layout: Layout,
    /// Absent when what is trained reads no features.
    pub features: Option<Features>,
    /// Seed of what is random in a training step on it. None where nothing may be, as in a validation: see [`Self::in_training`].
    pub seed: Option<u64>,
    /// The training step that it is of. None in a validation.
    pub step: Option<Step>,
}

/// A training step among all of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its number, from 0.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Batch {
    /// The rows as tensors on `device`, without features, as a validation reads them.
    pub fn new(rows: Rows, device: &Device) -> Self {
        let shape = [rows.layout.rows, rows.layout.row_length];
        let ints = |values: &[u32]| {
            let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
            Tensor::<1, Int>::from_ints(values.as_slice(), device).reshape(shape)
        };
        Self {
            tokens: ints(&rows.tokens),
            layout: Layout::new(rows.layout.clone(), device),
            rows,
            features: None,
            seed: None,
            step: None,
        }
    }

    /// The same batch, to be trained on in this `step` with what `seed` draws. Without it objectives take a batch for one of a
    /// validation: they draw nothing, weigh draft steps by fixed weights, and have weights of losses where these end.
    pub fn in_training(self, seed: u64, step: Step) -> Self {
        Self {
            seed: Some(seed),
            step: Some(step),
            ..self
        }
    }

    /// The features that an objective reads.
    ///
    /// # Panics
    /// The batch has none.
    pub fn features(&self) -> &Features {
        match &self.features {
            Some(features) => features,
            None => panic!("this objective reads the target's features, and the batch has none"),
        }
    }

    /// The same batch as part of the graph that parameters on `device` are in.
    pub fn lift(&self, device: &Device) -> Self {
        Self {
            rows: self.rows.clone(),
            tokens: lift(self.tokens.clone(), device),
            layout: self.layout.moved(|positions| lift(positions, device)),
            features: self.features.as_ref().map(|features| Features {
                captured: lift(features.captured.clone(), device),
                last: lift(features.last.clone(), device),
            }),
            seed: self.seed,
            step: self.step,
        }
    }
}

/// Features as storage holds them: rounded to bf16, computed with in `compute`.
pub(crate) fn as_stored(features: Features, compute: DType) -> Features {
    let round = |x: Tensor<3>| x.cast(DType::BF16).cast(compute);
    Features {
        captured: round(features.captured),
        last: round(features.last),
    }
}
