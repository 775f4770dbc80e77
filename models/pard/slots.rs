//! The slots of a draft: what was observed and masks behind it, run in one pass.
use burn::prelude::*;

use crate::language_model::{logits, slot_logits};
use crate::mask::{token_ids, tree_mask, tree_positions};
use crate::target::{Caches, Capture, Target as _};
use crate::transformer::Transformer;
use crate::tree::chain;

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
    /// Of each token of the draft, `[slots, vocab]`: the head reads all slots at once.
    pub(super) logits: Option<Tensor<2>>,
    /// Length of the longest path to come.
    pub(super) planned: usize,
}

impl PardState {
    fn slots(&self) -> usize {
        match &self.logits {
            Some(logits) if self.pending.is_empty() => logits.dims()[0],
            _ => 0,
        }
    }

    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`.
    pub(super) fn slot_logits(
        &mut self,
        model: &Transformer,
        mask_token: u32,
        slot: usize,
        copies: usize,
    ) -> Tensor<2> {
        if self.slots() <= slot {
            self.run(model, mask_token, self.planned.max(slot + 1));
        }
        let Some(logits) = &self.logits else {
            unreachable!("they were just made");
        };
        slot_logits(logits, slot, copies)
    }

    /// Runs what was observed and not run yet, followed by masks, so that `slots` tokens can be drafted.
    fn run(&mut self, model: &Transformer, mask_token: u32, slots: usize) {
        let device = model.device();
        let pending = std::mem::take(&mut self.pending);
        let masks = slots - 1;
        let mut tokens = pending.clone();
        tokens.resize(pending.len() + masks, mask_token);
        let mut inputs = model.embed_known(token_ids(&tokens, &device));
        if let Some(added) = self.added(pending.len(), masks) {
            let added = added.cast(inputs.dtype());
            inputs = inputs + added;
        }
        let (parents, cached) = (chain(tokens.len()), self.caches.len);
        let states = model.states(
            inputs,
            tree_positions(&parents, cached, &device),
            &|window| tree_mask(&parents, cached, window, &device),
            Some(&mut self.caches),
            &Capture::default(),
        );
        self.caches.truncate(cached + pending.len());
        let (head, last) = (model.head(), states.last);
        self.logits = Some(match (pending.len(), self.logits.take()) {
            // Only masks were run; the first slot is that of the last observed token.
            (0, Some(before)) => {
                let first = before.narrow(0, 0, 1);
                Tensor::cat(vec![first, logits(&head, last)], 0)
            }
            (0, None) => panic!("drafting before anything was observed"),
            (observed, _) => logits(&head, last.narrow(1, observed - 1, slots)),
        });
    }

    /// The projected features of what is pending and of masks, which read those of the last observed token.
    fn added(&mut self, pending: usize, masks: usize) -> Option<Tensor<3>> {
        let parts = std::mem::take(&mut self.features);
        if let Some(part) = parts.last() {
            let last = part.dims()[1] - 1;
            self.feature = Some(part.clone().narrow(1, last, 1));
        }
        let carried = self.feature.clone()?;
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
