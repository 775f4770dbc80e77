//! The map between the drafter's vocabulary and the target's.
//!
//! `d2t` holds offsets, not ids: token `i` of the drafter is token `i + d2t[i]` of the target. `t2d` says for each token
//! of the target whether the drafter has it.

use std::path::Path;

use super::Eagle3Layout;
use crate::tensors::NamedTensor;
use crate::{Error, Result};

/// `d2t` and `t2d` for a drafter whose token `i` is the target's token `target_ids[i]`.
///
/// # Panics
/// If an id is outside the target's vocabulary.
pub fn vocabulary_tensors(target_ids: &[usize], vocab_size: usize) -> (NamedTensor, NamedTensor) {
    let mut drafted = vec![false; vocab_size];
    for &id in target_ids {
        drafted[id] = true;
    }
    let offsets = target_ids
        .iter()
        .enumerate()
        .map(|(draft, &target)| target as i64 - draft as i64);
    let d2t = NamedTensor::from_i64("d2t", [target_ids.len()], offsets.collect());
    (d2t, NamedTensor::from_bool("t2d", [vocab_size], drafted))
}

/// Drops the map of a vocabulary that is the target's, which says nothing and which vLLM refuses. A map that says something
/// stays, and is refused as one too many.
pub(super) fn drop_identity(tensors: &mut Vec<NamedTensor>) -> Result<()> {
    let mut kept = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        let says_nothing = match tensor.name.as_str() {
            "d2t" => tensor.to_i64()?.iter().all(|&offset| offset == 0),
            "t2d" => tensor.bytes.iter().all(|&known| known != 0),
            _ => false,
        };
        if !says_nothing {
            kept.push(tensor);
        }
    }
    *tensors = kept;
    Ok(())
}

/// The target's id of each of the drafter's tokens, from `d2t`.
pub fn target_ids(d2t: &NamedTensor) -> Result<Vec<usize>> {
    let ids = d2t
        .to_i64()?
        .into_iter()
        .enumerate()
        .map(|(draft, offset)| {
            let id = offset
                .checked_add(draft as i64)
                .and_then(|id| usize::try_from(id).ok());
            id.ok_or_else(|| Error::Tensor {
                name: d2t.name.clone(),
                reason: format!("offset {offset} of draft token {draft} leads to no target token"),
            })
        });
    ids.collect()
}

/// Turns a `d2t` that holds the target's ids into one of offsets.
pub(super) fn make_offsets(tensors: &mut [NamedTensor]) -> Result<()> {
    for d2t in tensors.iter_mut().filter(|tensor| tensor.name == "d2t") {
        let ids = d2t.to_i64()?;
        let offsets = (0..).zip(ids).map(|(draft, id)| id.saturating_sub(draft));
        *d2t = NamedTensor::from_i64("d2t", d2t.shape.clone(), offsets.collect());
    }
    Ok(())
}

/// Checks that `d2t` leads to ascending ids within the target's vocabulary, and that `t2d` marks exactly these.
///
/// An offset that is shifted for all tokens alike is seen through `t2d` only.
pub(super) fn check(file: &Path, tensors: &[NamedTensor], layout: &Eagle3Layout) -> Result<()> {
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let Some(d2t) = find("d2t") else {
        return Ok(());
    };
    let wrong = |name: &str, reason: String| {
        Err(Error::Values {
            name: name.to_string(),
            path: file.to_path_buf(),
            reason,
        })
    };
    let ids = match target_ids(d2t) {
        Ok(ids) => ids,
        Err(Error::Tensor { name, reason }) => return wrong(&name, reason),
        Err(other) => return Err(other),
    };
    if let Some(draft) = ids.iter().position(|&id| id >= layout.vocab_size) {
        let (id, vocab) = (ids[draft], layout.vocab_size);
        return wrong(
            "d2t",
            format!("draft token {draft} is target token {id}; the target has {vocab}"),
        );
    }
    if let Some(draft) = ids.windows(2).position(|pair| pair[0] >= pair[1]) {
        let (id, next) = (ids[draft], ids[draft + 1]);
        return wrong(
            "d2t",
            format!(
                "target ids must ascend, but draft tokens {draft} and {} are {id} and {next}",
                draft + 1
            ),
        );
    }
    let Some(t2d) = find("t2d") else {
        return Ok(());
    };
    let drafted = t2d.to_bool()?;
    let marked: Vec<usize> = (0..drafted.len()).filter(|&id| drafted[id]).collect();
    if marked != ids {
        let first = marked
            .iter()
            .zip(&ids)
            .position(|(a, b)| a != b)
            .unwrap_or(marked.len().min(ids.len()));
        let reason = format!(
            "it does not mark the {} tokens that `d2t` leads to: they differ from draft token {first} on",
            ids.len()
        );
        return wrong("t2d", reason);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d2t_holds_offsets() {
        let (d2t, t2d) = vocabulary_tensors(&[1, 2, 5], 6);
        assert_eq!(d2t.to_i64().unwrap(), [1, 1, 3]);
        assert_eq!(
            t2d.to_bool().unwrap(),
            [false, true, true, false, false, true]
        );
        assert_eq!(target_ids(&d2t).unwrap(), [1, 2, 5]);
    }

    #[test]
    fn offsets_that_lead_nowhere_are_errors() {
        for offset in [-1, i64::MIN] {
            let d2t = NamedTensor::from_i64("d2t", [1], vec![offset]);
            assert!(
                target_ids(&d2t)
                    .unwrap_err()
                    .to_string()
                    .contains("no target token")
            );
        }
        let d2t = NamedTensor::from_i64("d2t", [2], vec![0, i64::MAX]);
        assert!(target_ids(&d2t).is_err());
    }
}
