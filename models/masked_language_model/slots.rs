//! The slots of a draft: the text, a separator and masks, run in one pass.
use burn::prelude::*;

use super::blocks::{Blocks, Context};
use crate::language_model::{logits, slot_logits};
use crate::mask::{Mask, token_ids, tree_positions};
use crate::sight::Sight;
use crate::target::{Caches, Capture, Target as _};
use crate::transformer::Transformer;
use crate::tree::chain;

/// The sequence of a drafter that fills blocks of masks.
#[derive(Debug, Clone)]
pub struct MaskedState {
    /// Keys and values of the text, where they can be kept.
    caches: Option<Caches>,
    /// The text, as far as it is not in the caches.
    text: Vec<u32>,
    /// Those of each mask, `[slots, vocab]`, which the head reads at once; absent once more was observed.
    logits: Option<Tensor<2>>,
    /// Length of the longest path to come.
    planned: usize,
}

impl MaskedState {
    /// A sequence that starts with the token `first` and may grow to `capacity` tokens.
    pub(super) fn new(model: &Transformer, blocks: Blocks, capacity: usize, first: u32) -> Self {
        let layers = model.config().spec.layers;
        Self {
            caches: match blocks.context {
                Context::Bidirectional => None,
                Context::Causal => Some(Caches::new(layers, capacity)),
            },
            text: vec![first],
            logits: None,
            planned: 1,
        }
    }

    pub(super) fn observe(&mut self, tokens: &[u32]) {
        self.text.extend(tokens);
        self.logits = None;
    }

    /// Slots of another number are other slots.
    pub(super) fn plan(&mut self, depth: usize) {
        let depth = depth.max(1);
        if depth != self.planned {
            self.logits = None;
        }
        self.planned = depth;
    }

    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`.
    pub(super) fn slot_logits(
        &mut self,
        model: &Transformer,
        blocks: Blocks,
        slot: usize,
        copies: usize,
    ) -> Tensor<2> {
        let all = match self.logits.take() {
            Some(all) if slot < all.dims()[0] => all,
            _ => self.run(model, blocks, self.planned.max(slot + 1)),
        };
        let logits = slot_logits(&all, slot, copies);
        self.logits = Some(all);
        logits
    }

    /// Runs the text, as far as it is not in the caches, a separator and as many masks as there are `slots`. Returns the logits of
    /// all masks, `[slots, vocab]`.
    fn run(&mut self, model: &Transformer, blocks: Blocks, slots: usize) -> Tensor<2> {
        let device = model.device();
        let text = self.text.len();
        let mut tokens = self.text.clone();
        tokens.push(blocks.separator_token);
        tokens.resize(text + 1 + slots, blocks.mask_token);
        let cached = self.caches.as_ref().map_or(0, |caches| caches.len);
        let rows = tokens.len();
        let states = model.states(
            model.embed_known(token_ids(&tokens, &device)),
            tree_positions(&chain(rows), cached, &device),
            &|window| mask(blocks.context, [cached, text, rows], window, &device),
            self.caches.as_mut(),
            &Capture::default(),
        );
        if let Some(caches) = &mut self.caches {
            // The text has seen nothing of the block, whose keys and values go.
            caches.truncate(cached + text);
            self.text.clear();
        }
        logits(&model.head(), states.last.narrow(1, text + 1, slots))
    }
}

/// What a text of which `cached` places were run before, and a block behind it, see; `None` when nothing is hidden. Of
/// `[1, 1, rows, cached + rows]` entries, where there is a cache on a GPU of as many more keys as are taken of it and hidden.
fn mask(
    context: Context,
    [cached, text, rows]: [usize; 3],
    window: Option<usize>,
    device: &Device,
) -> Option<Mask> {
    let total = cached + rows;
    let window = window.unwrap_or(usize::MAX);
    let sees = (0..rows).map(|row| {
        let own = cached + row;
        let is_back = context == Context::Causal && row < text;
        let end = if is_back { own + 1 } else { total };
        Some((own + 1).saturating_sub(window)..end.min(own.saturating_add(window)))
    });
    match context {
        Context::Causal => Mask::of_cache([rows, total], sees, device),
        Context::Bidirectional => Mask::hiding(Sight::new([rows, total], sees), device),
    }
}
