//! What the folders of Medusa and Hydra heads have in common.

use anyhow::{Context as _, Result, bail};
use spectrain_checkpoints::NamedTensor;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::TargetParts;
use spectrain_models::draft_heads::OutputHead;

use crate::families::drafter_folder::{is_copy, target_head};

/// Takes the draft vocabulary out of a folder's tensors.
pub(crate) fn take_vocabulary(
    tensors: &mut Vec<NamedTensor>,
    vocab: usize,
) -> Result<DraftVocabulary> {
    let Some(map) = take(tensors, "token_map") else {
        return Ok(DraftVocabulary::full(vocab));
    };
    let ids = map.to_i64()?.into_iter();
    let offsets: Vec<i64> = ids.zip(0..).map(|(id, draft)| id - draft).collect();
    Ok(DraftVocabulary::from_d2t(&offsets, vocab)?)
}

/// The draft vocabulary as a tensor, unless it is the whole one.
pub(crate) fn token_map(vocabulary: &DraftVocabulary) -> Option<NamedTensor> {
    let ids: Vec<i64> = vocabulary.target_ids().into_iter().map(i64::from).collect();
    (!vocabulary.is_full()).then(|| NamedTensor::from_i64("token_map", [ids.len()], ids))
}

/// Takes the target's head out of a folder's tensors, and fails unless it is this target's.
pub(crate) fn take_target_head(
    tensors: &mut Vec<NamedTensor>,
    target: &TargetParts,
    vocabulary: &DraftVocabulary,
) -> Result<()> {
    let found = take(tensors, "lm_head.weight").context("no `lm_head.weight`")?;
    match is_copy(&found, &target_head(target, vocabulary))? {
        true => Ok(()),
        false => bail!("`lm_head.weight`, which the heads share with their target, is another one"),
    }
}

/// Where the output layers come from, as the folder says it.
pub(crate) fn output_head(shared: bool) -> OutputHead {
    match shared {
        true => OutputHead::Shared,
        false => OutputHead::Own,
    }
}

fn take(tensors: &mut Vec<NamedTensor>, name: &str) -> Option<NamedTensor> {
    let at = tensors.iter().position(|tensor| tensor.name == name)?;
    Some(tensors.remove(at))
}
