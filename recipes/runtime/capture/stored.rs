//! Hidden states that were captured, in the form in which features are stored.

use anyhow::{Result, bail};
use spectrain_checkpoints::DType;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_data::features::StoredSample;
use spectrain_models::TargetParts;

use super::proof::LastState;
use super::server::Captured;
use super::states::slot;
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
            captured: (&self.captured).into(),
            last: (&self.last).into(),
        }
    }
}

/// What a text is known by among those that are stored.
pub fn digest(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    sha256_bytes(&bytes)
}

/// The states of a sample, zeros for the last token of an answer, behind which nothing is drafted. The first slots are those of so
/// many captured `layers`. The last slot is the last state, which `target` makes what its head reads; where it is before the final
/// norm it may be that of a captured layer, too.
///
/// # Errors
/// A number is infinite or none, or a state is all 0.
pub fn bits(
    captured: &Captured,
    layers: usize,
    last_state: LastState,
    target: &TargetParts,
) -> Result<Bits> {
    let states = &captured.states.states;
    let [tokens, slots, d_model] = [0, 1, 2].map(|axis| states.shape[axis]);
    debug_assert!(tokens <= captured.tokens.len());
    debug_assert!([slots - 1, slots].contains(&layers));
    let (width, last_slot) = (layers * d_model, (slots - 1) * d_model);
    let rounded = states.clone().cast(DType::BF16)?;
    let rounded: Vec<u16> = words(&rounded.bytes);
    // Of the last token of an answer some servers hand out a state that they have not computed.
    let computed = tokens.min(captured.tokens.len().saturating_sub(1)) * slots * d_model;
    check_states(&rounded[..computed], [slots, d_model])?;
    check_numbers(&rounded, [slots, d_model])?;
    let rows = rounded.chunks(slots * d_model);
    let (mut kept, mut last) = (
        Vec::with_capacity(tokens * width),
        Vec::with_capacity(tokens * d_model),
    );
    for row in rows {
        kept.extend_from_slice(&row[..width]);
        last.extend_from_slice(&row[last_slot..]);
    }
    if last_state == LastState::BeforeNorm {
        // Normed in the server's own precision, and rounded once.
        let device = target.norm.weight.val().device();
        let states = slot(states, slots - 1, &device);
        last = bits_of(target.norm.forward(states));
    }
    let all = captured.tokens.len();
    kept.resize(all * width, 0);
    last.resize(all * d_model, 0);
    Ok(Bits {
        captured: kept,
        last,
    })
}

/// Fails where states `[tokens, slots, d_model]` are none: not finite, or all 0.
///
/// # Errors
/// The first such state, by its token.
pub fn check_states(bits: &[u16], [slots, d_model]: [usize; 2]) -> Result<()> {
    check_numbers(bits, [slots, d_model])?;
    let is_empty = |state: &[u16]| state.iter().all(|bits| bits & 0x7fff == 0);
    if let Some(at) = bits.chunks(d_model).position(is_empty) {
        bail!(
            "token {}: hidden states: expected numbers other than 0, found a state that is all 0",
            at / slots
        );
    }
    Ok(())
}

fn check_numbers(bits: &[u16], [slots, d_model]: [usize; 2]) -> Result<()> {
    match no_number(bits) {
        None => Ok(()),
        Some(at) => bail!(
            "token {}: hidden states: expected numbers, found one that is none",
            at / (slots * d_model)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_none_is_told_by_its_token() {
        let one: u16 = 0x3f80;
        // Two slots of two numbers for each of three tokens.
        let whole = [one; 12];
        check_states(&whole, [2, 2]).unwrap();
        let told = |at: std::ops::Range<usize>, bits: u16| {
            let mut states = whole;
            states[at].fill(bits);
            let checked = check_states(&states, [2, 2]);
            checked.err().map(|error| error.to_string())
        };
        // One number may be 0.
        assert_eq!(told(6..7, 0), None);
        for zero in [0, 0x8000] {
            let empty = told(6..8, zero).unwrap();
            assert!(empty.starts_with("token 1: "), "{empty}");
            assert!(empty.ends_with("all 0"), "{empty}");
        }
        for none in [0x7f80, 0xff80, 0x7fc0] {
            let found = told(9..10, none).unwrap();
            assert!(found.starts_with("token 2: "), "{found}");
            assert!(found.ends_with("none"), "{found}");
        }
    }
}
