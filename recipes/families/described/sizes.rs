//! What is known of a drafter from its settings alone: what it can draft, and its sizes.

use anyhow::{Context as _, Result};
use spectrain_eval::Reach;
use spectrain_models::TargetSpec;
use spectrain_models::listing::{Parameter, hollow, parameters};
use spectrain_models::weights::CHOICE_BIAS;

use crate::families::family::Family;
use crate::families::footprint::{Footprint, in_matrices, values};

/// How many tokens a drafter of these settings proposes.
fn draft_vocab<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<usize> {
    let given = serde_json::to_value(config).context("cannot write the settings")?;
    Ok(match given["draft_vocab"].as_u64() {
        None | Some(0) => target.vocab,
        Some(size) => size as usize,
    })
}

/// What a drafter of these settings can draft, by the drafter itself without its weights.
///
/// # Errors
/// The settings do not fit the target.
pub(crate) fn reach<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<Reach> {
    let draft_vocab = draft_vocab::<D>(config, target)?;
    let drafter = hollow::<D>(config, target, draft_vocab)?;
    Ok(Reach::of_drafter(&drafter))
}

/// Sizes of a drafter, counted from the list of its parameters.
pub(crate) fn footprint<D: Family>(config: &D::Config, target: &TargetSpec) -> Result<Footprint> {
    let captured = D::capture(config, target)?.layers.len() as u64;
    let draft_vocab = draft_vocab::<D>(config, target)?;
    let listed = parameters::<D>(config, target, draft_vocab)?;
    let (untrained, listed): (Vec<_>, Vec<_>) = listed
        .into_iter()
        .partition(|(name, _)| name.ends_with(CHOICE_BIAS));
    let count = |(_, shape): &Parameter| values(shape);
    let of_head = listed
        .iter()
        .filter(|(name, _)| name.starts_with("lm_head"));
    Ok(Footprint {
        parameters: listed.iter().map(count).sum(),
        head: of_head.map(count).sum(),
        matrices: in_matrices(&listed),
        frozen: untrained.iter().map(count).sum(),
        idle: D::idle_parameters(config, target),
        draft_vocab: draft_vocab as u64,
        captured,
    })
}
