//! What a masked-diffusion drafter reads of a text in each stage: where the text is cut, and what is masked behind the cut.
use std::ops::Range;

use burn::prelude::*;
use spectrain_data::seed::mix;
use spectrain_models::masked_language_model::{Blocks, Place, Places};

use super::DeerStage;
use crate::batch::Rows;

/// How texts are cut and masked.
#[derive(Debug, Clone)]
pub(super) struct Drawing {
    pub(super) stage: DeerStage,
    pub(super) least_masked: f64,
    pub(super) span: usize,
    pub(super) alpha: f64,
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
}

/// Numbers that are drawn for a text, by what they decide.
const CUT: u64 = 0;
const AMOUNT: u64 = 1;
const TOKENS: u64 = 2;

impl Drawing {
    /// The sequences of a batch. Texts without a place to draft at are left out.
    pub(super) fn draw(&self, rows: &Rows, blocks: &Blocks, seed: u64) -> Sequences {
        let mut sequences = Sequences::default();
        // What the weights are divided by: the tokens that might have been masked, or all weights.
        let mut whole = 0.0;
        let length = rows.layout.row_length;
        for row in 0..rows.layout.rows {
            let mut packed = Vec::new();
            let places = row * length..(row + 1) * length;
            let starts = places
                .filter(|&at| rows.layout.documents[at] != 0 && rows.layout.positions[at] == 0);
            for start in starts {
                let text = Text {
                    rows,
                    blocks,
                    start,
                };
                let seed = mix(seed, start as u64);
                let Some(drawn) = self.of_text(&text, seed) else {
                    continue;
                };
                whole += drawn.whole;
                let column = packed.len();
                sequences
                    .masks
                    .extend(drawn.masks.into_iter().map(|mask| Mask {
                        row,
                        column: column + mask.column,
                        ..mask
                    }));
                packed.extend(drawn.places);
            }
            sequences.rows.push(packed);
        }
        for mask in &mut sequences.masks {
            mask.weight /= whole;
        }
        sequences
    }

    fn of_text(&self, text: &Text, seed: u64) -> Option<Drawn> {
        let (start, end) = (text.start, text.end());
        let mask = &text.rows.loss_mask;
        if self.stage == DeerStage::Adapt {
            // No row of the target comes before the first token.
            let replies: Vec<usize> = (start + 1..end).filter(|&at| mask[at]).collect();
            let block = *replies.first()?..end;
            return Some(text.noise(None, block, &replies, self.share(seed), mix(seed, TOKENS)));
        }
        let cuts: Vec<usize> = (start + 1..end)
            .filter(|&at| mask[at - 1] && mask[at])
            .collect();
        let drawn = mix(seed, CUT) % (cuts.len() as u64).max(1);
        let cut = *cuts.get(drawn as usize)?;
        let left = (cut..end).take_while(|&at| mask[at]).count();
        let separator = Some(text.blocks.separator_token);
        Some(match self.stage {
            DeerStage::Refine => {
                let masks = 1 + (mix(seed, AMOUNT) % self.span as u64) as usize;
                text.masks(separator, cut..cut + left, masks, self.alpha)
            }
            _ => {
                let reply: Vec<usize> = (cut..cut + left).collect();
                let share = self.share(seed);
                text.noise(separator, cut..cut + left, &reply, share, mix(seed, TOKENS))
            }
        })
    }

    /// The share of a text's tokens that is masked.
    fn share(&self, seed: u64) -> f64 {
        self.least_masked + (1.0 - self.least_masked) * unit(mix(seed, AMOUNT))
    }
}

/// A number above 0 and at most 1.
fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A text of a batch.
struct Text<'a> {
    rows: &'a Rows,
    blocks: &'a Blocks,
    /// Its first place.
    start: usize,
}

/// What is read of a text.
struct Drawn {
    places: Vec<Place>,
    /// With their places in the text.
    masks: Vec<Mask>,
    /// What the weights of the masks are shares of.
    whole: f64,
}

impl Text<'_> {
    /// The place after its last one.
    fn end(&self) -> usize {
        let length = (1..).find(|&by| !self.rows.reaches(self.start, by));
        self.start + length.unwrap_or_default()
    }

    /// The text up to `cut` and what separates the block from it.
    fn before(&self, cut: usize, separator: Option<u32>) -> Drawn {
        let mut drawn = Drawn {
            places: Vec::new(),
            masks: Vec::new(),
            whole: 0.0,
        };
        for at in self.start..cut {
            self.push(&mut drawn, self.rows.tokens[at], false);
        }
        if let Some(separator) = separator {
            self.push(&mut drawn, separator, true);
        }
        drawn
    }

    fn push(&self, drawn: &mut Drawn, token: u32, in_block: bool) {
        drawn.places.push(Place {
            token,
            document: self.rows.layout.documents[self.start],
            position: drawn.places.len() as u32,
            in_block,
        });
    }

    fn push_mask(&self, drawn: &mut Drawn, cut: usize, predicts: usize, weight: f64) {
        drawn.masks.push(Mask {
            row: 0,
            column: drawn.places.len(),
            predicts,
            cut,
            weight,
        });
        self.push(drawn, self.blocks.mask_token, true);
    }

    /// The tokens of `block`, of which each of `candidates` is masked with probability `share`.
    fn noise(
        &self,
        separator: Option<u32>,
        block: Range<usize>,
        candidates: &[usize],
        share: f64,
        seed: u64,
    ) -> Drawn {
        let cut = block.start;
        let mut drawn = self.before(cut, separator);
        drawn.whole = candidates.len() as f64;
        for at in block {
            let masked =
                candidates.binary_search(&at).is_ok() && unit(mix(seed, at as u64)) <= share;
            match masked {
                true => self.push_mask(&mut drawn, cut, at, 1.0 / share),
                false => self.push(&mut drawn, self.rows.tokens[at], true),
            }
        }
        drawn
    }

    /// `count` masks, of which those over `reply` are judged, the first ones most.
    fn masks(
        &self,
        separator: Option<u32>,
        reply: Range<usize>,
        count: usize,
        alpha: f64,
    ) -> Drawn {
        let cut = reply.start;
        let mut drawn = self.before(cut, separator);
        for (place, at) in (cut..cut + count).enumerate() {
            if !reply.contains(&at) {
                self.push(&mut drawn, self.blocks.mask_token, true);
                continue;
            }
            let weight = alpha.powi((count - 1 - place) as i32);
            drawn.whole += weight;
            self.push_mask(&mut drawn, cut, at, weight);
        }
        drawn
    }
}

impl Sequences {
    /// The rows as tensors.
    pub(super) fn places(&self, device: &Device) -> Places {
        Places::new(&self.rows, device)
    }
}
