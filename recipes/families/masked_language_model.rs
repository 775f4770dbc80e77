//! Masked-diffusion drafters as folders and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::masked_language_model::{self, MaskedLayout};
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::tokens::TokenShards;
use spectrain_models::masked_language_model::{
    Blocks, Context as Seen, MaskedLanguageModel, MaskedLanguageModelConfig,
};
use spectrain_models::{
    Capture, Drafter, FolderWeights, Scope, TargetParts, TargetSpec, Transformer,
    TransformerConfig, ignored_tensors,
};
use spectrain_train::Workload;

use crate::families::drafter_folder::check_unheld;
use crate::families::footprint::{Activations, Footprint, Packed, Sees};
use crate::families::language_model::{
    Sizes, check_start, check_tokenizer, not_for_this, to_write,
};
use crate::families::shipped::{Layout, Shipped};
use crate::recipe::tables::Engine;

impl Shipped for MaskedLanguageModel {
    const KIND: &'static str = "masked_language_model";
    const FAMILY: Family = Family::Deer;
    const ENGINES: &'static [Engine] = &[];
    const LAYOUTS: &'static [Layout<Self>] = &[];

    fn begin(config: &Self::Config, target: &TargetParts, texts: &TokenShards) -> Result<()> {
        check_start(&config.model, target)?;
        check_unheld("mask_token", config.mask_token, texts)?;
        check_unheld("separator_token", config.separator_token, texts)
    }

    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self> {
        check_tokenizer(folder, target)?;
        let opened = ModelFolder::open(folder)?;
        let (layout, decoder) = masked_language_model::read(&opened)?;
        let file = folder.join("config.json");
        let context = serde_json::from_value(json!(layout.context))
            .with_context(|| format!("`{}`: unknown context", file.display()))?;
        let config = TransformerConfig::read(&decoder, &file)?;
        let ignored = ignored_tensors(&config);
        let mut weights = FolderWeights::new(&opened, "model.");
        let mut scope = Scope::root(&mut weights, device, DType::F32);
        let model = Transformer::new(&mut scope, config)?;
        weights.finish(&ignored)?;
        let blocks = Blocks {
            mask_token: layout.mask_token,
            separator_token: layout.separator_token,
            size: layout.block_size,
            context,
        };
        Self::of(model, target, blocks).with_context(|| not_for_this(folder))
    }

    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()> {
        let (model, blocks) = (self.merged()?, self.blocks());
        let layout = MaskedLayout {
            mask_token: blocks.mask_token,
            separator_token: blocks.separator_token,
            block_size: blocks.size,
            context: match json!(blocks.context) {
                Value::String(context) => context,
                other => unreachable!("a context is written as {other}"),
            },
        };
        let mut to_write = to_write(&model, self.target(), dtype)?;
        to_write.config = masked_language_model::to_json(&layout, to_write.config);
        Ok(to_write.write(folder, provenance)?)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(Capture::default())
    }

    fn launch_lines(&self, _: &Path, _: &str, _: usize) -> Result<Vec<Launch>> {
        Ok(masked_language_model::launch_lines())
    }

    fn footprint(config: &MaskedLanguageModelConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        sizes(config).footprint(target)
    }

    fn activations(
        config: &MaskedLanguageModelConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let sees = match config.context {
            Seen::Bidirectional => Sees::Everywhere,
            Seen::Causal => Sees::Back,
        };
        sizes(config).activations(target, work, (batch, sees))
    }
}

fn sizes(config: &MaskedLanguageModelConfig) -> Sizes<'_> {
    Sizes {
        model: &config.model,
        kept: config.keep_layers.len(),
        fresh: config.fresh.as_ref(),
        lora: config.lora.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::drafter_folder::samples::{target, vocabulary};
    use spectrain_models::masked_language_model::Context;
    use spectrain_models::weights::export;
    use spectrain_models::{FreshConfig, LoraConfig};

    fn config() -> MaskedLanguageModelConfig {
        MaskedLanguageModelConfig {
            fresh: Some(FreshConfig::default()),
            mask_token: Some(3),
            separator_token: Some(4),
            ..Default::default()
        }
    }

    fn drafter(config: &MaskedLanguageModelConfig) -> MaskedLanguageModel {
        let device = Device::flex();
        MaskedLanguageModel::fresh(config, &target(), &vocabulary(0), 3, &device).unwrap()
    }

    #[test]
    fn a_drafter_read_back_has_the_same_tensors_and_settings() {
        let root = tempfile::tempdir().unwrap();
        let causal = MaskedLanguageModelConfig {
            context: Context::Causal,
            block_size: 5,
            lora: Some(LoraConfig::default()),
            ..config()
        };
        for (number, config) in [config(), causal].iter().enumerate() {
            let folder = root.path().join(number.to_string());
            let written = drafter(config);
            written.write(&folder, DType::F32, &Value::Null).unwrap();
            let read = MaskedLanguageModel::open(&folder, &target(), &Device::flex()).unwrap();
            assert_eq!(export(read.model()), export(&written.merged().unwrap()));
            assert_eq!(read.blocks(), written.blocks());
            let family = Family::of(&ModelFolder::open(&folder).unwrap()).unwrap();
            assert_eq!(family, Family::Deer);
        }
    }

    #[test]
    fn the_footprint_counts_the_parameters_that_there_are() {
        let expected: usize = export(&drafter(&config()))
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>())
            .sum();
        let footprint = MaskedLanguageModel::footprint(&config(), &target().spec).unwrap();
        assert_eq!(footprint.parameters, expected as u64);
    }
}
