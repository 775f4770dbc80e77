//! What stored features are of.

use std::path::Path;

use anyhow::Result;
use spectrain_data::features::{FeatureHeader, StoredType};
use spectrain_models::Capture;

use crate::stages::context::StageContext;

/// What features stored in `folder` must be of; the fingerprint is that of their texts.
pub fn header(
    context: &StageContext,
    folder: &Path,
    capture: &Capture,
    tokens_fingerprint: String,
    d_model: usize,
) -> Result<FeatureHeader> {
    Ok(FeatureHeader {
        target_sha256: context.target_sha256()?,
        captured_layers: capture.layers.clone(),
        d_model,
        tokens_fingerprint,
        dtype: stored_type(context, folder),
    })
}

/// What hidden states are written in: those to train on as the recipe says, and all others, which are few, exactly.
fn stored_type(context: &StageContext, folder: &Path) -> StoredType {
    if folder == context.features_folder() {
        context.recipe.features.dtype
    } else {
        StoredType::Bf16
    }
}
