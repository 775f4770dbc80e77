//! The slots of a draft: the text, a separator and masks, run in one pass.
use burn::prelude::*;

use super::{Context, MaskedLanguageModel};
use crate::language_model::slot_logits;
use crate::mask::{token_ids, tree_positions};
use crate::{Caches, Capture, Mask, Target as _, chain};

/// The sequence of a drafter that fills blocks of masks.
#[derive(Debug, Clone)]
pub struct MaskedState {
    /// Keys and values of the text, where they can be kept.
    caches: Option<Caches>,
    /// The text, as far as it is not in the caches.
    text: Vec<u32>,
    /// What the head reads at each mask, `[1, slots, d_model]`; absent once more was observed.
    slots: Option<Tensor<3>>,
    /// Length of the longest path to come.
    planned: usize,
}

impl MaskedState {
    pub(super) fn observe(&mut self, tokens: &[u32]) {
        self.text.extend(tokens);
        self.slots = None;
    }

    /// Slots of another number are other slots.
    pub(super) fn plan(&mut self, depth: usize) {
        let depth = depth.max(1);
        if depth != self.planned {
            self.slots = None;
        }
        self.planned = depth;
    }
}

impl MaskedLanguageModel {
    pub(super) fn begin(&self, capacity: usize, first: u32) -> MaskedState {
        let layers = self.model.config().spec.layers;
        MaskedState {
            caches: match self.frozen.blocks.context {
                Context::Bidirectional => None,
                Context::Causal => Some(Caches::new(layers, capacity)),
            },
            text: vec![first],
            slots: None,
            planned: 1,
        }
    }

    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`.
    pub(super) fn slot_logits(
        &self,
        state: &mut MaskedState,
        slot: usize,
        copies: usize,
    ) -> Tensor<2> {
        let slots = match state.slots.take() {
            Some(slots) if slot < slots.dims()[1] => slots,
            _ => self.run(state, state.planned.max(slot + 1)),
        };
        let logits = slot_logits(&self.model.head(), &slots, slot, copies);
        state.slots = Some(slots);
        logits
    }

    /// Runs the text, as far as it is not in the caches, a separator and as many masks as there are `slots`.
    fn run(&self, state: &mut MaskedState, slots: usize) -> Tensor<3> {
        let (device, blocks) = (self.model.device(), self.frozen.blocks);
        let text = state.text.len();
        let mut tokens = state.text.clone();
        tokens.push(blocks.separator_token);
        tokens.resize(text + 1 + slots, blocks.mask_token);
        let cached = state.caches.as_ref().map_or(0, |caches| caches.len);
        let rows = tokens.len();
        let states = self.model.states(
            self.model.embed_known(token_ids(&tokens, &device)),
            tree_positions(&chain(rows), cached, &device),
            &|window| mask(blocks.context, [cached, text, rows], window, &device),
            state.caches.as_mut(),
            &Capture::default(),
        );
        if let Some(caches) = &mut state.caches {
            // The text has seen nothing of the block, whose keys and values go.
            caches.truncate(cached + text);
            state.text.clear();
        }
        states.last.narrow(1, text + 1, slots)
    }
}

/// What a text of which `cached` places were run before, and a block behind it, see; `None` when nothing is hidden.
///
/// # Shapes
/// - output: `[1, 1, rows, cached + rows]`
fn mask(
    context: Context,
    [cached, text, rows]: [usize; 3],
    window: Option<usize>,
    device: &Device,
) -> Option<Mask> {
    let total = cached + rows;
    let window = window.unwrap_or(usize::MAX);
    let sees = |row: usize, key: usize| {
        let ahead = context == Context::Causal && row < text && key > cached + row;
        !ahead && (cached + row).abs_diff(key) < window
    };
    let entries: Vec<f32> = (0..rows * total)
        .map(|at| match sees(at / total, at % total) {
            true => 0.0,
            false => f32::NEG_INFINITY,
        })
        .collect();
    if entries.iter().all(|&entry| entry == 0.0) {
        return None;
    }
    let mask = Tensor::<1>::from_floats(entries.as_slice(), device);
    Some(Mask::of(mask.reshape([1, 1, rows, total])))
}
