//! What stored features are of.

use anyhow::Result;
use spectrain_data::features::FeatureHeader;
use spectrain_models::Capture;

use crate::stages::context::StageContext;

/// What stored features must be of; the fingerprint is that of their texts.
pub fn header(
    context: &StageContext,
    capture: &Capture,
    tokens_fingerprint: String,
    d_model: usize,
) -> Result<FeatureHeader> {
    Ok(FeatureHeader {
        target_sha256: context.target_sha256()?,
        captured_layers: capture.layers.clone(),
        d_model,
        tokens_fingerprint,
    })
}
