//! The lattices of blocks and the paths through them: which tokens they are of, and how they decide on drafts.
use burn::prelude::*;
use burn::tensor::DType;

use super::DFlash;
use super::lattice::{LatticeRead, PathScores, candidates};
use super::selector::over_vocabulary;
use super::slots::Slots;
use crate::along::rows_at_a_time;
use crate::experts::on_host;
use crate::few_rows::product;
use crate::weights::lift;

/// A slot whose logits are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathSlot {
    pub(super) block: usize,
    pub(super) slot: usize,
    /// The token before it.
    pub(super) before: u32,
}

/// The paths through the lattices of some blocks, outside of any graph.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    /// `[blocks * slots, top_k]`
    ids: Tensor<2, Int>,
    /// The same, side by side.
    tokens: Vec<usize>,
    scores: PathScores,
    slots: usize,
}

impl Paths {
    /// The logits of slots, f32: minus infinity for what is none of their candidates. `[wanted, vocab]`
    pub(super) fn logits(&self, wanted: &[PathSlot], vocab: usize) -> Tensor<2> {
        let device = self.ids.device();
        let [_, top_k] = self.ids.dims();
        let rows = |of: &dyn Fn(&PathSlot) -> usize| -> Tensor<1, Int> {
            let rows: Vec<i64> = wanted.iter().map(|slot| of(slot) as i64).collect();
            Tensor::from_ints(rows.as_slice(), &device)
        };
        let of_slot = |wanted: &PathSlot| wanted.block * self.slots + wanted.slot;
        let of_scores = |wanted: &PathSlot| {
            let place = wanted.slot.checked_sub(1).and_then(|_| {
                let candidates = &self.tokens[(of_slot(wanted) - 1) * top_k..][..top_k];
                candidates
                    .iter()
                    .position(|&one| one == wanted.before as usize)
            });
            self.scores.row(wanted.block, wanted.slot, place)
        };
        let ids = self.ids.clone().select(0, rows(&of_slot));
        let chosen = self.scores.scores.clone().select(0, rows(&of_scores));
        over_vocabulary(ids, chosen, vocab)
    }
}

impl DFlash {
    /// The lattice of paths, where it has one.
    pub fn lattice(&self) -> Option<&super::Lattice> {
        self.lattice.as_ref()
    }

    /// The scores of paths through these candidates of whole blocks.
    ///
    /// # Shapes
    /// - ids: `[blocks * slots, top_k]`, the likeliest tokens of each slot, the likeliest first, in no graph
    /// - log_p: the same, their log-probabilities, f32
    /// - hidden: `[blocks, slots, d_model]`, what the head reads
    /// - before: `[blocks, d_model]`, the row of the context before each anchor, whatever it is where none `is_there`
    ///
    /// # Panics
    /// It has no lattice.
    pub fn path_scores(
        &self,
        (ids, log_p): (Tensor<2, Int>, Tensor<2>),
        hidden: Tensor<3>,
        (before, is_there): (Tensor<2>, &[bool]),
    ) -> PathScores {
        let Some(lattice) = &self.lattice else {
            unreachable!("only drafters with a lattice have paths");
        };
        let [blocks, slots, _] = hidden.dims();
        let device = hidden.device();
        let top_k = lattice.top_k();
        let is_there: Vec<f32> = is_there.iter().map(|&is| f32::from(u8::from(is))).collect();
        let is_there = Tensor::<1>::from_floats(is_there.as_slice(), &device);
        let tokens = ids.reshape([blocks, slots * top_k]);
        let embedded = self.frozen.target.embed(tokens, &self.fc.weight.device());
        lattice.scores(LatticeRead {
            embedded: lift(embedded.without_autodiff(), &device),
            log_p: log_p.reshape([blocks, slots, top_k]),
            before: before.cast(hidden.dtype()),
            hidden,
            is_there: is_there.unsqueeze_dim(1),
        })
    }

    /// The paths through the only block that is filled, behind the context's last row `before`; nothing without a lattice.
    pub(super) fn paths_of_block(&self, slots: &Slots, before: Option<Tensor<3>>) -> Option<Paths> {
        self.lattice.as_ref()?;
        let is_there = [before.is_some()];
        let before = match before {
            Some(row) => row.squeeze_dim(1),
            None => slots.hidden.clone().narrow(1, 0, 1).squeeze_dim(1),
        };
        Some(self.paths(slots, before, &is_there))
    }

    /// The paths through blocks behind `places` of a text; nothing without a lattice.
    ///
    /// # Shapes
    /// - context: `[1, seq, d_model]`
    pub(super) fn paths_behind(
        &self,
        slots: &Slots,
        context: &Tensor<3>,
        places: &[usize],
    ) -> Option<Paths> {
        self.lattice.as_ref()?;
        let rows: Vec<i64> = places
            .iter()
            .map(|place| place.saturating_sub(1) as i64)
            .collect();
        let rows = Tensor::<1, Int>::from_ints(rows.as_slice(), &context.device());
        let before: Tensor<2> = context.clone().squeeze_dim(0);
        let is_there: Vec<bool> = places.iter().map(|&place| place > 0).collect();
        Some(self.paths(slots, before.select(0, rows), &is_there))
    }

    /// The paths through whole blocks.
    fn paths(&self, slots: &Slots, before: Tensor<2>, is_there: &[bool]) -> Paths {
        let [_, count, _] = slots.hidden.dims();
        let top_k = self.lattice.as_ref().map_or(1, super::Lattice::top_k);
        let states: Tensor<2> = slots.hidden.clone().flatten(0, 1);
        let head = self.target_head();
        let [rows, _] = states.dims();
        let at_a_time = rows_at_a_time(head.dims()[1]);
        let parts = (0..rows).step_by(at_a_time).map(|start| {
            let some = states.clone().narrow(0, start, at_a_time.min(rows - start));
            candidates(product(some, head.clone()).cast(DType::F32), top_k)
        });
        let (ids, log_p): (Vec<_>, Vec<_>) = parts.unzip();
        let (ids, log_p) = (Tensor::cat(ids, 0), Tensor::cat(log_p, 0));
        let tokens = on_host(ids.clone());
        let scores = self.path_scores(
            (ids.clone(), log_p),
            slots.hidden.clone(),
            (before, is_there),
        );
        Paths {
            ids,
            tokens,
            scores,
            slots: count,
        }
    }
}
