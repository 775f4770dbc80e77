//! The slots of a draft: what was observed and masks behind it, run in one pass.
use burn::prelude::*;

use super::Pard;
use crate::language_model::slot_logits;
use crate::mask::{token_ids, tree_mask, tree_positions};
use crate::{Caches, Capture, Target as _, chain};

/// The sequence of a drafter that drafts in one pass.
#[derive(Debug, Clone)]
pub struct PardState {
    pub(super) caches: Caches,
    /// Observed and not run yet.
    pub(super) pending: Vec<u32>,
    /// Their projected features, `[1, .., d_model]`; one less than tokens where the first of all is among them.
    pub(super) features: Vec<Tensor<3>>,
    /// The last projected feature, `[1, 1, d_model]`.
    pub(super) feature: Option<Tensor<3>>,
    /// What the head reads for each token of the draft, `[1, slots, d_model]`.
    pub(super) slots: Option<Tensor<3>>,
    /// Length of the longest path to come.
    pub(super) planned: usize,
}

impl PardState {
    fn slots(&self) -> usize {
        match &self.slots {
            Some(slots) if self.pending.is_empty() => slots.dims()[1],
            _ => 0,
        }
    }
}

impl Pard {
    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`.
    pub(super) fn slot_logits(
        &self,
        state: &mut PardState,
        slot: usize,
        copies: usize,
    ) -> Tensor<2> {
        if state.slots() <= slot {
            self.run(state, state.planned.max(slot + 1));
        }
        let Some(slots) = &state.slots else {
            unreachable!("they were just made");
        };
        slot_logits(&self.model.head(), slots, slot, copies)
    }

    /// Runs what was observed and not run yet, followed by masks, so that `slots` tokens can be drafted.
    fn run(&self, state: &mut PardState, slots: usize) {
        let device = self.model.device();
        let pending = std::mem::take(&mut state.pending);
        let masks = slots - 1;
        let mut tokens = pending.clone();
        tokens.resize(pending.len() + masks, self.frozen.mask_token);
        let mut inputs = self.model.embed_known(token_ids(&tokens, &device));
        if let Some(added) = self.added(state, pending.len(), masks) {
            let added = added.cast(inputs.dtype());
            inputs = inputs + added;
        }
        let (parents, cached) = (chain(tokens.len()), state.caches.len);
        let states = self.model.states(
            inputs,
            tree_positions(&parents, cached, &device),
            &|window| tree_mask(&parents, cached, window, &device),
            Some(&mut state.caches),
            &Capture::default(),
        );
        state.caches.truncate(cached + pending.len());
        let last = states.last;
        state.slots = Some(match (pending.len(), &state.slots) {
            // Only masks were run; the first slot is that of the last observed token.
            (0, Some(before)) => Tensor::cat(vec![before.clone().narrow(1, 0, 1), last], 1),
            (0, None) => panic!("drafting before anything was observed"),
            (observed, _) => last.narrow(1, observed - 1, slots),
        });
    }

    /// The projected features of what is pending and of masks, which read those of the last observed token.
    fn added(&self, state: &mut PardState, pending: usize, masks: usize) -> Option<Tensor<3>> {
        let parts = std::mem::take(&mut state.features);
        if let Some(part) = parts.last() {
            let last = part.dims()[1] - 1;
            state.feature = Some(part.clone().narrow(1, last, 1));
        }
        let carried = state.feature.clone()?;
        let [_, _, width] = carried.dims();
        let known: usize = parts.iter().map(|part| part.dims()[1]).sum();
        let mut all = Vec::with_capacity(parts.len() + 2);
        if known < pending {
            // Nothing comes before the first token.
            let like = (&carried.device(), carried.dtype());
            all.push(Tensor::zeros([1, pending - known, width], like));
        }
        all.extend(parts);
        if masks > 0 {
            all.push(carried.expand([1, masks, width]));
        }
        Some(Tensor::cat(all, 1))
    }
}
