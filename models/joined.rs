//! The passes of several sequences as one: their rows stand one behind the other.
use burn::prelude::*;

use crate::attention::SequenceRows;
use crate::mask::{Masks, tree_mask, tree_positions};
use crate::target::{Caches, Features, LogitRows, Pass, TargetOutput};

/// One of the sequences.
pub(crate) struct Joined<'a> {
    pub(crate) tokens: &'a [u32],
    /// `[1, tokens]`
    pub(crate) positions: Tensor<2, Int>,
    logits: LogitRows,
    masks: Masks,
    caches: &'a mut Caches,
}

impl<'a> Joined<'a> {
    /// Takes room in the caches for the rows of `pass`. `windows` are those of the layers.
    pub(crate) fn new(
        pass: Pass<'a>,
        caches: &'a mut Caches,
        windows: &[Option<usize>],
        device: &Device,
    ) -> Self {
        let cached = caches.len;
        caches.len += pass.tokens.len();
        let mask = |window| tree_mask(pass.parents, cached, window, device);
        Self {
            tokens: pass.tokens,
            positions: tree_positions(pass.parents, cached, device),
            logits: pass.logits,
            masks: Masks::new(windows, mask),
            caches,
        }
    }

    /// Its rows in a layer.
    pub(crate) fn rows(&mut self, layer: usize) -> SequenceRows<'_> {
        SequenceRows {
            count: self.tokens.len(),
            mask: self.masks.of(layer).as_ref(),
            cache: &mut self.caches.layers[layer],
        }
    }

    /// How many rows of logits are wanted of it; they are its last ones.
    fn wanted(&self) -> usize {
        match self.logits {
            LogitRows::All => self.tokens.len(),
            LogitRows::Last => 1,
        }
    }
}

/// Of the rows of all sequences those whose logits are wanted.
///
/// # Shapes
/// - rows: `[1, rows of all, d_model]`
/// - output: `[1, wanted, d_model]`
pub(crate) fn wanted(all: &[Joined], rows: Tensor<3>) -> Tensor<3> {
    if all.iter().all(|of| of.wanted() == of.tokens.len()) {
        return rows;
    }
    let mut start = 0;
    let parts = all.iter().map(|of| {
        start += of.tokens.len();
        rows.clone().narrow(1, start - of.wanted(), of.wanted())
    });
    Tensor::cat(parts.collect(), 1)
}

/// What each sequence has of the features of all rows and of the wanted logits.
///
/// # Shapes
/// - logits: `[1, wanted, vocab]`
pub(crate) fn apart(all: &[Joined], features: &Features, logits: &Tensor<3>) -> Vec<TargetOutput> {
    let (mut row, mut logit) = (0, 0);
    let one = |of: &Joined| {
        let (rows, wanted) = (of.tokens.len(), of.wanted());
        let own = |x: &Tensor<3>| x.clone().narrow(1, row, rows);
        let output = TargetOutput {
            logits: logits.clone().narrow(1, logit, wanted).squeeze_dim(0),
            features: Features {
                captured: own(&features.captured),
                last: own(&features.last),
            },
        };
        row += rows;
        logit += wanted;
        output
    };
    all.iter().map(one).collect()
}
