//! What engines go by of a target, beside its sizes.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use spectrain_checkpoints::beside::{
    TARGET_CLASS, TARGET_HEADS, TARGET_LATENT, TARGET_QUANTISED, TARGET_SCALES_LOGITS,
};
use spectrain_checkpoints::dialect::Settings;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_models::PartsConfig;

use crate::runtime::model_files::read_json;

/// What decides of a target, beside its sizes, which engines serve a drafter, and how. Where nothing is known of it, it is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetTraits {
    /// The name of its class.
    pub class: Option<String>,
    /// Whether its weights are quantised.
    pub is_quantised: bool,
    /// Whether its logits are more than its head's: times a factor of its configuration.
    pub scales_logits: bool,
    /// The width of its heads. What a drafter keeps of its target's sizes has the width of its own heads in that place.
    pub d_head: Option<usize>,
    /// Whether its attention is latent.
    pub is_latent: Option<bool>,
}

impl TargetTraits {
    /// Those of the target in a folder, by its configuration.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let config = read_json(&path)?;
        let parts = PartsConfig::read(&config, &path);
        Ok(Self {
            class: config["architectures"][0].as_str().map(str::to_owned),
            is_quantised: !config["quantization_config"].is_null(),
            scales_logits: parts.as_ref().is_ok_and(|parts| parts.head_scale != 1.0),
            d_head: parts.ok().map(|parts| parts.spec.d_head),
            is_latent: Some(has_rank(&config) || has_rank(&config["text_config"])),
        })
    }

    /// Adds them to a drafter's settings, by which dialects know them.
    pub(crate) fn tell(&self, settings: &mut Settings) {
        if let Some(class) = &self.class {
            settings.set(TARGET_CLASS, class.as_str());
        }
        settings.set(TARGET_QUANTISED, self.is_quantised);
        settings.set(TARGET_SCALES_LOGITS, self.scales_logits);
        settings.set(TARGET_HEADS, self.d_head);
        settings.set(TARGET_LATENT, self.is_latent);
    }
}

/// Whether a configuration has the width of the state of latent attention.
fn has_rank(config: &Value) -> bool {
    !config["kv_lora_rank"].is_null()
}
