//! Hidden states that were captured, in the form in which features are stored.

use anyhow::{Result, bail};
use spectrain_checkpoints::DType;
use spectrain_data::features::StoredSample;
use spectrain_models::TargetParts;

use super::file::slot;
use super::proof::LastState;
use super::server::Captured;
use crate::runtime::bf16::{bits_of, no_number, words};

/// Bits of bf16, as features are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bits {
    /// `[tokens, layers * d_model]`
    pub captured: Vec<u16>,
    /// `[tokens, d_model]`, after the final norm.
    pub last: Vec<u16>,
}

impl Bits {
    /// A sample of these tokens and this loss mask, with these states.
    pub fn sample<'a>(&'a self, tokens: &'a [u32], loss_mask: &'a [u8]) -> StoredSample<'a> {
        StoredSample {
            tokens,
            loss_mask,
            captured: &self.captured,
            last: &self.last,
        }
    }
}

/// The states of a sample, zeros for the last token of an answer, behind which nothing is drafted; `target` makes the last one what
/// its head reads.
///
/// # Errors
/// A number is infinite or none.
pub fn bits(captured: &Captured, last_state: LastState, target: &TargetParts) -> Result<Bits> {
    let states = &captured.states.states;
    let [tokens, slots, d_model] = [0, 1, 2].map(|axis| states.shape[axis]);
    let layers = (slots - 1) * d_model;
    debug_assert!(tokens <= captured.tokens.len());
    let rounded = states.clone().cast(DType::BF16)?;
    let rounded: Vec<u16> = words(&rounded.bytes);
    if let Some(at) = no_number(&rounded) {
        bail!(
            "hidden states: expected numbers, found one that is none at token {}",
            at / (slots * d_model)
        );
    }
    let rows = rounded.chunks(slots * d_model);
    let (mut kept, mut last) = (
        Vec::with_capacity(tokens * layers),
        Vec::with_capacity(tokens * d_model),
    );
    for row in rows {
        kept.extend_from_slice(&row[..layers]);
        last.extend_from_slice(&row[layers..]);
    }
    if last_state == LastState::BeforeNorm {
        // Normed in the server's own precision, and rounded once.
        let device = target.norm.weight.val().device();
        let states = slot(states, slots - 1, &device);
        last = bits_of(target.norm.forward(states));
    }
    let all = captured.tokens.len();
    kept.resize(all * layers, 0);
    last.resize(all * d_model, 0);
    Ok(Bits {
        captured: kept,
        last,
    })
}
