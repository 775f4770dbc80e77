//! Drafts of XPress: guessed at once, by the target's head alone, and refined in passes, each of which reads the tokens that the one
//! before has made (Jacobi). A place sees only those before it, so each pass settles one more token, and as many passes as slots
//! make what would be drafted one after the other. vLLM looks for the tokens of a slot among its 512 likeliest guesses, unless
//! `xpress_topc` is 0; here, as then, among all.
use burn::prelude::*;
use burn::tensor::DType;

use super::DFlash;
use super::slots::Slots;
use crate::experts::on_host;
use crate::few_rows::product;
use crate::mask::token_ids;
use crate::reductions::likeliest;

/// Drafts of some blocks, `slots` tokens each, one behind the other.
#[derive(Debug, Clone)]
pub(super) struct Refined {
    /// The tokens that the last pass has read: those of the pass before.
    read: Vec<u32>,
    /// Those that it has made.
    drafted: Vec<u32>,
}

impl Refined {
    /// What the slots up to that behind a path of the only block read, an anchor and tokens, in place of it: where the path is what
    /// was drafted, what the last pass has read.
    pub(super) fn before(&self, path: &[u32]) -> Vec<u32> {
        let behind = path.len() - 1;
        if path[1..] == self.drafted[..behind] {
            [&path[..1], &self.read[..behind]].concat()
        } else {
            path.to_vec()
        }
    }
}

impl DFlash {
    /// Whether drafts of `slots` tokens are not what they would be one after the other.
    pub fn is_unsettled(&self, slots: usize) -> bool {
        let config = &self.frozen.config;
        config.refines() && config.refining_passes() < slots
    }

    /// The drafts of blocks as decoders make them. `rows` logits are in memory at a time.
    ///
    /// # Shapes
    /// - anchors: `[blocks, 1]`
    pub(super) fn refined(&self, slots: &Slots, anchors: Tensor<2, Int>, rows: usize) -> Refined {
        let passes = self.frozen.config.refining_passes();
        let mut tokens = self.refinements(slots, anchors, (passes, rows));
        let ids = |tokens: Option<Tensor<2, Int>>| {
            let tokens = tokens.map(on_host).unwrap_or_default();
            tokens.into_iter().map(|token| token as u32).collect()
        };
        let drafted = ids(tokens.pop());
        Refined {
            read: ids(tokens.pop()),
            drafted,
        }
    }

    /// What is guessed of slots, and what each of so many passes makes of it. Nothing where the drafter has no XPress' head. `rows`
    /// logits are in memory at a time.
    ///
    /// # Shapes
    /// - anchors: `[blocks, 1]`
    /// - output: `[blocks, slots]` each, one more than passes
    pub fn refinements(
        &self,
        slots: &Slots,
        anchors: Tensor<2, Int>,
        (passes, rows): (usize, usize),
    ) -> Vec<Tensor<2, Int>> {
        let Some(markov) = self.markov_head.as_ref().filter(|_| self.refines()) else {
            return Vec::new();
        };
        let [blocks, count, _] = slots.hidden.dims();
        let head = self.target_head();
        let at_a_time = (rows / count).max(1);
        let mut made: Vec<Vec<Tensor<2, Int>>> = vec![Vec::new(); passes + 1];
        for start in (0..blocks).step_by(at_a_time) {
            let some = at_a_time.min(blocks - start);
            let slots = slots.of_blocks(start, some);
            let anchors = anchors.clone().narrow(0, start, some);
            let hidden: Tensor<2> = slots.hidden.clone().flatten(0, 1);
            let guessed = product(hidden, head.clone()).cast(DType::F32);
            let mut tokens = likeliest(guessed.clone()).reshape([some, count]);
            for made in &mut made[..passes] {
                made.push(tokens.clone());
                let previous = shifted(anchors.clone(), tokens);
                let states = self.markov_states(markov, &slots, previous);
                let logits = markov.bias(states.flatten(0, 1)) + guessed.clone();
                tokens = likeliest(logits).reshape([some, count]);
            }
            made[passes].push(tokens);
        }
        let joined = made.into_iter().map(|parts| Tensor::cat(parts, 0));
        joined.collect()
    }

    /// Whether drafts are guessed at once and refined in passes.
    pub fn refines(&self) -> bool {
        self.frozen.config.refines()
    }

    /// [`widened`](Self::widened) of slots that follow these tokens in a decoder's draft: where a draft is refined in fewer passes
    /// than it has tokens, a slot may have read others. `rows` logits are in memory at a time.
    ///
    /// # Shapes
    /// - previous: `[blocks, slots]`
    /// - output: `[blocks, slots, d_model or d_model + rank]`
    pub fn as_drafted(&self, slots: &Slots, previous: &[u32], rows: usize) -> Tensor<3> {
        let [blocks, count, _] = slots.hidden.dims();
        let device = slots.hidden.device();
        let table = |tokens: &[u32]| token_ids(tokens, &device).reshape([blocks, count]);
        let Some(markov) = self
            .markov_head
            .as_ref()
            .filter(|_| self.is_unsettled(count))
        else {
            return self.widened(slots, table(previous));
        };
        let refined = self.refined(slots, table(previous).narrow(1, 0, 1), rows);
        let paths = || previous.chunks(count).enumerate();
        let read = paths().flat_map(|(block, path)| {
            let read = &refined.read[block * count..];
            [&path[..1], &read[..count - 1]].concat()
        });
        let read: Vec<u32> = read.collect();
        // Of each slot the row that follows these tokens: behind the others, where they are what was drafted.
        let row = |(block, path): (usize, &[u32])| {
            let drafted = &refined.drafted[block * count..];
            let same = path[1..].iter().zip(drafted);
            let same = same.take_while(|(one, other)| one == other).count();
            let first = block * count;
            let behind = move |slot: usize| if slot <= same { blocks * count } else { 0 };
            (0..count).map(move |slot| (behind(slot) + first + slot) as i64)
        };
        let rows: Vec<i64> = paths().flat_map(row).collect();
        let rows = Tensor::<1, Int>::from_ints(rows.as_slice(), &device);
        let states = |before: &[u32]| self.markov_states(markov, slots, table(before));
        let both = Tensor::cat(vec![states(previous), states(&read)], 0); // [2 * blocks, slots, rank]
        let [_, _, rank] = both.dims();
        let both: Tensor<2> = both.flatten(0, 1);
        slots.beside(both.select(0, rows).reshape([blocks, count, rank]))
    }
}

/// The token before each slot of blocks: the anchor, and those of all slots but the last.
fn shifted(anchors: Tensor<2, Int>, tokens: Tensor<2, Int>) -> Tensor<2, Int> {
    let [_, count] = tokens.dims();
    Tensor::cat(vec![anchors, tokens], 1).narrow(1, 0, count)
}
