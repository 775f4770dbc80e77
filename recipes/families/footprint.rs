//! How large drafters are and what a step of their training keeps, counted in values from sizes alone. Products that grow with
//! the square of a row are floating-point numbers: they have no end to run over.
//!
//! What the backward pass keeps is counted as the layers are written: the input of every matrix product, what a norm reads and
//! what it has scaled, the factors of products. All of it is in the type that is computed in; weights are kept as they are, so nothing is
//! counted for them. `tests/memory.rs` compares with what is really allocated.

use anyhow::Result;
use spectrain_models::listing::Parameter;
use spectrain_models::{MixtureConfig, TargetSpec};
use spectrain_train::{Kind, OptimizerConfig, WorkRows, Workload};

/// Sizes of a drafter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footprint {
    /// Trained parameters.
    pub parameters: u64,
    /// Of these, the head's.
    pub head: u64,
    /// Of the trained ones, those of matrices from states to states ([`Kind::Matrix`]).
    pub matrices: u64,
    /// Parameters of its own that are not trained.
    pub frozen: u64,
    /// Of the trained ones, those of experts that a token does not go through.
    pub idle: u64,
    /// Tokens it can propose.
    pub draft_vocab: u64,
    /// Captured layers.
    pub captured: u64,
}

impl Footprint {
    /// Values that an optimiser with these settings keeps of the gradients of all trained parameters.
    pub fn kept_by(&self, optimizer: &OptimizerConfig) -> u64 {
        // What has a row for each token and what is no matrix at all are moved alike.
        let others = self.parameters - self.matrices;
        optimizer.kept(Kind::Matrix) * self.matrices + optimizer.kept(Kind::Table) * others
    }

    /// The same where so many tokens can be proposed.
    pub fn with_vocabulary(self, draft_vocab: u64) -> Self {
        let head = self.head / self.draft_vocab.max(1) * draft_vocab;
        Self {
            parameters: self.parameters - self.head + head,
            head,
            draft_vocab,
            ..self
        }
    }
}

/// A batch of packed rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Packed rows.
    pub rows: u64,
    /// Positions of each.
    pub length: u64,
}

impl Packed {
    /// Positions.
    pub fn positions(self) -> u64 {
        self.rows * self.length
    }
}

/// What a step of training keeps in memory, in values, for the whole batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Activations {
    /// Kept for the backward pass by all passes that are held.
    pub kept: f64,
    /// Kept of passes that are not held.
    pub carried: f64,
    /// Scores of attention of each query, of all heads of a layer.
    pub scores: f64,
    /// The same of all layers together.
    pub all_scores: f64,
    /// Width of a head.
    pub d_head: u64,
    /// Queries of a row.
    pub queries: f64,
    /// Keys and values of a layer that those have, of all heads.
    pub keys_values: f64,
    /// Values of a layer that are kept no more when its scores are differentiated: those of its feed-forward part.
    pub given_back: f64,
    /// Rows whose logits are judged together.
    pub judged: f64,
    /// How often rows are judged besides, each time by the whole head and by what judges.
    pub again: f64,
    /// Width of what the output layer reads, where it is not the target's.
    pub read: u64,
    /// Rows that went through the layers, of all passes.
    pub rows: f64,
    /// Whether a selector or a lattice chooses from the likeliest tokens of each row, which is measured by itself.
    pub selects: bool,
    /// Multiplications of a forward pass, of the whole batch, besides one of each row with each parameter.
    pub further: f64,
}

/// Rows that go through a layer, and what they see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attended {
    /// Rows.
    pub rows: f64,
    /// Queries that share their keys.
    pub queries: f64,
    /// Keys that those have.
    pub keys: f64,
    /// Scores that are kept, for each head.
    pub kept: f64,
}

/// What a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// What comes before it.
    Back,
    /// Everything.
    Everywhere,
}

impl Attended {
    /// Rows of `width` places each that see their own.
    pub fn within(rows: u64, width: f64) -> Self {
        let places = rows as f64 * width;
        Self {
            rows: places,
            queries: width,
            keys: width,
            kept: 0.0,
        }
    }

    /// The rows of a workload that go through a language model in a batch. Texts before several cuts are there for each where
    /// everything is seen.
    pub fn of(work: &Workload, batch: Packed, sees: Sees) -> Self {
        let length = batch.length as f64;
        match work.rows {
            WorkRows::Texts | WorkRows::Blocks(_) => Self::within(batch.rows, length),
            WorkRows::Extended(rows) => Self::within(batch.rows, length * rows),
            WorkRows::Behind { cuts, places } => {
                let cuts = (cuts as f64).min(length);
                let blocks = blocks(cuts, places);
                let width = match sees {
                    Sees::Everywhere => before(cuts, length) + blocks,
                    Sees::Back => length + blocks,
                };
                Self::within(batch.rows, width)
            }
        }
    }
}

/// Places of the texts before some cuts, each of which is drawn from a row: two standard deviations above the mean, which some row
/// of a training comes to.
fn before(cuts: f64, length: f64) -> f64 {
    let drawn = cuts * length / 2.0 + 2.0 * length * (cuts / 12.0).sqrt();
    drawn.min(cuts * length)
}

/// Places of some blocks together, each of which separates itself from the text and has as many masks, up to the others of
/// `places`, as is drawn: two standard deviations above the mean, which some batch of a training comes to.
fn blocks(cuts: f64, places: usize) -> f64 {
    let (separators, masks) = (places.min(1) as f64, places.saturating_sub(1) as f64);
    let drawn = cuts * (masks + 1.0) / 2.0 + masks * (cuts / 3.0).sqrt();
    cuts * separators + drawn.min(cuts * masks)
}

/// How many of these parameters, by name and shape, are those of matrices from states to states.
pub fn in_matrices(listed: &[Parameter]) -> u64 {
    let matrices = listed
        .iter()
        .filter(|(name, shape)| Kind::of(name, shape) == Kind::Matrix);
    matrices.map(|(_, shape)| values(shape)).sum()
}

/// How many values a parameter of this shape has.
pub fn values(shape: &[usize]) -> u64 {
    shape.iter().map(|&size| size as u64).product()
}

/// Sizes of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSizes {
    /// Width of the residual stream.
    pub d_model: u64,
    /// Feed-forward width.
    pub d_ff: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub d_head: u64,
    /// Whether queries and keys are normed.
    pub head_norms: bool,
}

impl LayerSizes {
    /// Those of a drafter's layer with normed heads whose feed-forward width, query heads and key and value heads are given,
    /// or the target's.
    ///
    /// # Errors
    /// They do not go together.
    pub fn of(target: &TargetSpec, [d_ff, heads, kv_heads]: [usize; 3]) -> Result<Self> {
        let sizes = target.layer_sizes(d_ff, heads, kv_heads)?;
        let [d_ff, heads, kv_heads] = sizes.map(|size| size as u64);
        Ok(Self {
            d_model: target.d_model as u64,
            d_ff,
            heads,
            kv_heads,
            d_head: target.d_head as u64,
            head_norms: true,
        })
    }

    /// Puts experts, if there are any, in the place of the feed-forward part. Gives the values of a row that are kept beside those
    /// of a feed-forward part of as much width.
    pub fn with_experts(&mut self, experts: Option<MixtureConfig>) -> u64 {
        let Some(experts) = experts else {
            return 0;
        };
        let times = experts.per_token as u64;
        self.d_ff = times * experts.d_ff as u64 + experts.shared_d_ff as u64;
        // Of each expert that a row goes through the row, what comes of it and that weighed; what the shared one gives and that
        // weighed; logits and scores.
        (3 * times + 2) * self.d_model + 2 * experts.count as u64
    }

    /// Width of all queries.
    pub fn queries(&self) -> u64 {
        self.heads * self.d_head
    }

    /// Width of all keys, and of all values.
    pub fn keys(&self) -> u64 {
        self.kv_heads * self.d_head
    }

    /// Values kept of each row beside its scores.
    pub fn kept_of_row(&self) -> u64 {
        let norms = u64::from(self.head_norms);
        // What each of the two norms reads and gives; factors and product of the gated unit; queries and the means of values, by
        // head and once more by row; keys and values; what the norms of heads read.
        4 * self.d_model + 3 * self.d_ff + (3 + norms) * self.queries() + (2 + norms) * self.keys()
    }

    /// Values that such a layer keeps.
    pub fn kept(&self, attended: Attended) -> f64 {
        attended.rows * self.kept_of_row() as f64 + self.heads as f64 * attended.kept
    }
}

/// What the layers of a decoder keep.
pub fn decoder(
    layer: &LayerSizes,
    layers: u64,
    work: &Workload,
    attended: Attended,
) -> Activations {
    let passes = work.passes as f64 * attended.rows;
    Activations {
        kept: work.held as f64 * layers as f64 * layer.kept(attended),
        carried: 0.0,
        scores: layer.heads as f64 * attended.keys,
        all_scores: (layers * layer.heads) as f64 * attended.keys,
        d_head: layer.d_head,
        queries: attended.queries,
        keys_values: (2 * layer.keys()) as f64 * attended.keys,
        given_back: attended.rows * (3 * layer.d_ff + 2 * layer.d_model) as f64,
        judged: passes * work.judged,
        again: 0.0,
        read: 0,
        rows: passes,
        selects: false,
        further: 0.0,
    }
}

/// What an unrolled drafter of one layer keeps; of each row `more` values beside the layer's.
pub fn unrolled(layer: &LayerSizes, more: u64, work: &Workload, batch: Packed) -> Activations {
    unrolled_stack((layer, more), (layer, 0), work, batch)
}

/// The same with so many layers behind the first.
pub fn unrolled_stack(
    (layer, more): (&LayerSizes, u64),
    (further, count): (&LayerSizes, u64),
    work: &Workload,
    batch: Packed,
) -> Activations {
    let attended = Attended::of(work, batch, Sees::Back);
    let one = decoder(layer, 1, work, attended);
    let others = decoder(further, count, work, attended);
    let keys = layer.keys() + count * further.keys();
    Activations {
        kept: one.kept + others.kept + work.held as f64 * attended.rows * more as f64,
        carried: carried_of_unrolled(layer.d_model + 2 * keys, work, attended),
        all_scores: one.all_scores + others.all_scores,
        ..one
    }
}

/// What the backward pass of an unrolled drafter computes its steps again from: `values` of each row, its hidden state and the keys and
/// values of all layers, of the steps that are not held. What the head reads of them is there while it is judged.
fn carried_of_unrolled(values: u64, work: &Workload, attended: Attended) -> f64 {
    let again = work.passes.saturating_sub(work.held) as f64;
    again * attended.rows * values as f64
}
