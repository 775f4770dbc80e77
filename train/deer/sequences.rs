//! What a masked-diffusion drafter reads of a text in each stage: where the text is cut, and what is masked behind the cut.
use std::ops::Range;

use burn::prelude::*;
use spectrain_data::seed::{mix, uniform};
use spectrain_models::masked_language_model::{Blocks, Context, Place, Places};

use super::stage::DeerStage;
use crate::batch::Rows;

/// How texts are cut and masked.
#[derive(Debug, Clone)]
pub(super) struct Drawing {
    pub(super) stage: DeerStage,
    pub(super) least_masked: f64,
    pub(super) span: usize,
    pub(super) alpha: f64,
    pub(super) cuts: usize,
}

/// A mask that is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mask {
    /// Packed row that it stands in.
    pub(super) row: usize,
    /// Its place there.
    pub(super) column: usize,
    /// Place in the batch of the token that it predicts.
    pub(super) predicts: usize,
    /// Place in the batch of the first token of its block.
    pub(super) cut: usize,
    /// Share of the loss.
    pub(super) weight: f64,
}

/// The packed rows of a batch, cut and masked.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequences {
    rows: Vec<Vec<Place>>,
    /// Those that are judged, row by row.
    pub(super) masks: Vec<Mask>,
    /// What the weights are divided by: the tokens that might have been masked, or all weights.
    pub(super) whole: f64,
}

/// Numbers that are drawn for a block, by what they decide.
const AMOUNT: u64 = 1;
const TOKENS: u64 = 2;

/// How many masks of the last stage stand behind a cut.
#[derive(Debug, Clone, Copy)]
enum Amounts {
    /// As many as are drawn, at most a span.
    Drawn,
    /// So many: those of the longest draft.
    Whole(usize),
}

impl Drawing {
    /// The sequences of a batch, drawn from its seed; without one, in a validation, the same of each text every time, and as many
    /// masks behind each cut as the longest draft has: a mask sees all of its block, so that among more of them it is another
    /// than a decoder's. Texts without a place to draft at are left out.
    pub(super) fn draw(&self, rows: &Rows, blocks: &Blocks, seed: Option<u64>) -> Sequences {
        let amounts = match seed {
            Some(_) => Amounts::Drawn,
            None => Amounts::Whole(blocks.size),
        };
        let seed = seed.unwrap_or(0);
        let mut sequences = Sequences::default();
        let length = rows.layout.row_length;
        for row in 0..rows.layout.rows {
            let mut packed = Packed {
                rows,
                blocks,
                row,
                places: Vec::new(),
                masks: Vec::new(),
                document: 0,
            };
            let places = row * length..(row + 1) * length;
            let starts = places
                .filter(|&at| rows.layout.documents[at] != 0 && rows.layout.positions[at] == 0);
            for start in starts {
                let behind = self.of_text(rows, start, (mix(seed, start as u64), amounts));
                sequences.whole += behind.iter().map(|behind| behind.whole).sum::<f64>();
                packed.push(start, &behind, self.stage != DeerStage::Adapt);
            }
            sequences.rows.push(packed.places);
            sequences.masks.extend(packed.masks);
        }
        for mask in &mut sequences.masks {
            mask.weight /= sequences.whole;
        }
        sequences
    }

    /// What stands behind the cuts of the text that starts at `start`.
    fn of_text(&self, rows: &Rows, start: usize, (seed, amounts): (u64, Amounts)) -> Vec<Behind> {
        let length = (1..).find(|&by| !rows.reaches(start, by));
        let end = start + length.unwrap_or_default();
        let trained = |at: usize| rows.loss_mask[at];
        let of_block = |cut: usize| mix(seed, cut as u64);
        if self.stage == DeerStage::Adapt {
            // No row of the target comes before the first token.
            let replies: Vec<usize> = (start + 1..end).filter(|&at| trained(at)).collect();
            let first = replies.first();
            let noise = first.map(|&first| self.noise(first..end, &replies, of_block(first)));
            return noise.into_iter().collect();
        }
        let mut cuts: Vec<usize> = (start + 1..end)
            .filter(|&at| trained(at - 1) && trained(at))
            .collect();
        cuts.sort_by_cached_key(|&cut| of_block(cut));
        cuts.truncate(self.cuts);
        cuts.sort_unstable();
        let behind = cuts.into_iter().map(|cut| {
            let reply: Vec<usize> = (cut..end).take_while(|&at| trained(at)).collect();
            match self.stage {
                DeerStage::Refine => self.masks(cut..cut + reply.len(), (of_block(cut), amounts)),
                _ => self.noise(cut..cut + reply.len(), &reply, of_block(cut)),
            }
        });
        behind.collect()
    }

    /// The tokens of `places`, of which each of `candidates` is masked with the same probability.
    fn noise(&self, places: Range<usize>, candidates: &[usize], seed: u64) -> Behind {
        let least = self.least_masked;
        let share = least + (1.0 - least) * unit(mix(seed, AMOUNT));
        let tokens = mix(seed, TOKENS);
        let slot = |at: usize| {
            let candidate = candidates.binary_search(&at).is_ok();
            if candidate && unit(mix(tokens, at as u64)) <= share {
                Slot::Mask(at, 1.0 / share)
            } else {
                Slot::Token(at)
            }
        };
        Behind {
            cut: places.start,
            slots: places.map(slot).collect(),
            whole: candidates.len() as f64,
        }
    }

    /// Masks, of which those over `reply` are judged, the first ones most.
    fn masks(&self, reply: Range<usize>, (seed, amounts): (u64, Amounts)) -> Behind {
        let cut = reply.start;
        let count = match amounts {
            Amounts::Drawn => 1 + (mix(seed, AMOUNT) % self.span as u64) as usize,
            Amounts::Whole(count) => count,
        };
        let weight = |at: usize| self.alpha.powi((cut + count - 1 - at) as i32);
        let judged = reply.start..reply.end.min(cut + count);
        let slot = |at: usize| {
            if judged.contains(&at) {
                Slot::Mask(at, weight(at))
            } else {
                Slot::Beyond
            }
        };
        Behind {
            cut,
            slots: (cut..cut + count).map(slot).collect(),
            whole: judged.clone().map(weight).sum(),
        }
    }
}

/// A number above 0 and at most 1.
fn unit(bits: u64) -> f64 {
    // One step above a number from 0 to below 1.
    uniform(bits) + f64::EPSILON / 2.0
}

/// What stands behind a cut of a text.
struct Behind {
    /// The first place that is cut off.
    cut: usize,
    slots: Vec<Slot>,
    /// What the weights of the masks are shares of.
    whole: f64,
}

/// A place behind a cut.
enum Slot {
    /// The token of a place.
    Token(usize),
    /// A mask that is judged, over a place and with a weight.
    Mask(usize, f64),
    /// A mask behind the end of the reply.
    Beyond,
}

/// A packed row in the making.
struct Packed<'a> {
    rows: &'a Rows,
    blocks: &'a Blocks,
    row: usize,
    places: Vec<Place>,
    masks: Vec<Mask>,
    /// Texts so far.
    document: u32,
}

impl Packed<'_> {
    /// Adds a text, which starts at `start`, with its blocks. A bidirectional text sees its block, so that each block has a
    /// text of its own; a causal one is there once.
    fn push(&mut self, start: usize, behind: &[Behind], separated: bool) {
        let texts = match self.blocks.context {
            Context::Bidirectional => 1,
            Context::Causal => behind.len().max(1),
        };
        for behind in behind.chunks(texts) {
            self.document += 1;
            let end = behind.iter().map(|behind| behind.cut).max();
            for at in start..end.unwrap_or(start) {
                let position = (at - start) as u32;
                self.place(self.rows.tokens[at], position, 0, position + 1);
            }
            for (number, behind) in behind.iter().enumerate() {
                self.push_block(start, number as u32 + 1, behind, separated);
            }
        }
    }

    fn push_block(&mut self, start: usize, block: u32, behind: &Behind, separated: bool) {
        let sees = (behind.cut - start) as u32;
        let mut position = sees;
        if separated {
            self.place(self.blocks.separator_token, position, block, sees);
            position += 1;
        }
        for slot in &behind.slots {
            let token = match *slot {
                Slot::Token(at) => self.rows.tokens[at],
                Slot::Mask(..) | Slot::Beyond => self.blocks.mask_token,
            };
            if let Slot::Mask(predicts, weight) = *slot {
                self.masks.push(Mask {
                    row: self.row,
                    column: self.places.len(),
                    predicts,
                    cut: behind.cut,
                    weight,
                });
            }
            self.place(token, position, block, sees);
            position += 1;
        }
    }

    fn place(&mut self, token: u32, position: u32, block: u32, sees: u32) {
        self.places.push(Place {
            token,
            document: self.document,
            position,
            block,
            sees,
        });
    }
}

impl Sequences {
    /// The rows as tensors.
    pub(super) fn places(&self, device: &Device) -> Places {
        Places::new(&self.rows, device)
    }
}
