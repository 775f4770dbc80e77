//! Masked-diffusion drafters as folders and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_checkpoints::dialect::{Dialect, Reading};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::masked_language_model::{self, DEER, MaskedLayout};
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_eval::Reach;
use spectrain_models::masked_language_model::{
    Blocks, Context as Seen, MaskedLanguageModel, MaskedLanguageModelConfig,
};
use spectrain_models::{
    Capture, Drafter, FolderWeights, Scope, Start, StartConfig as _, TargetParts, TargetSpec,
    Transformer, TransformerConfig, ignored_tensors,
};
use spectrain_train::Workload;

use crate::families::described;
use crate::families::drafter_folder::{check_tokenizer, not_for_this, tokens_of};
use crate::families::family::{Family, Writing};
use crate::families::footprint::{Activations, Footprint, Packed, Sees};
use crate::families::language_model::{model_at_start, to_write};
use crate::families::shipped::{NamedBy, Shipped};
use crate::families::sizes_at_start::SizesAtStart;
use crate::recipe::tables::Engine;

impl Family for MaskedLanguageModel {
    const KIND: &'static str = "masked_language_model";
    const ENGINES: &'static [Engine] = &[];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&DEER, None)];
    const SAMPLES: &'static [&'static str] = &[
        "fresh = { layers = 2 }\nmask_token = 5\nseparator_token = 6\ncontext = \"causal\"",
        "fresh = { layers = 2 }\nmask_token = 5\nseparator_token = 6\ncontext = \"bidirectional\"",
    ];

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
        SizesAtStart(config.start()).activations(target, work, (batch, sees))
    }
}

impl Shipped for MaskedLanguageModel {
    fn model_at_start(config: &Self::Config) -> Option<Start<'_>> {
        model_at_start(config.start())
    }

    fn unheld(config: &Self::Config) -> Vec<(&'static str, u32)> {
        tokens_of([
            ("mask_token", config.mask_token),
            ("separator_token", config.separator_token),
        ])
    }

    fn check_start(_: &Self::Config, _: &Path, _: &TargetSpec) -> Result<()> {
        bail!(
            "`start`: a masked-diffusion drafter starts from `[drafter] model`, a language model or a drafter's folder"
        )
    }

    /// Any language model can become one, and has no tokens of its own then.
    fn at_start(folder: &Path, _: &TargetSpec) -> Result<NamedBy> {
        let opened = ModelFolder::open(folder)?;
        let mut config = MaskedLanguageModelConfig::default();
        if masked_language_model::recognises(opened.config()) {
            let (blocks, _) = read(&opened)?;
            config.mask_token = Some(blocks.mask_token);
            config.separator_token = Some(blocks.separator_token);
            (config.block_size, config.context) = (blocks.size, blocks.context);
        }
        described::beside_defaults::<Self>(&config).map(NamedBy::Model)
    }

    fn open(
        folder: &Path,
        _: Option<&Reading>,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        check_tokenizer(folder, target)?;
        let opened = ModelFolder::open(folder)?;
        let (blocks, decoder) = read(&opened)?;
        let config = TransformerConfig::read(&decoder, &folder.join(CONFIG))?;
        let ignored = ignored_tensors(&opened, &config)?;
        let mut weights = FolderWeights::new(&opened, "model.");
        let mut scope = Scope::root(&mut weights, device, DType::F32);
        let model = Transformer::new(&mut scope, config)?;
        weights.finish(&ignored)?;
        Self::of(model, target, blocks).with_context(|| not_for_this(folder))
    }

    fn write(&self, _: &Dialect, writing: &Writing) -> Result<()> {
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
        let mut to_write = to_write(&model, self.target(), writing.dtype)?;
        to_write.config = masked_language_model::to_json(&layout, to_write.config);
        Ok(to_write.write(writing.folder, writing.provenance)?)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(Capture::default())
    }

    /// Whatever it starts from, it drafts alike.
    fn reach(config: &MaskedLanguageModelConfig, target: &TargetSpec) -> Result<Reach> {
        described::reach::<Self>(&config.without_start(), target)
    }

    fn footprint(config: &MaskedLanguageModelConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        SizesAtStart(config.start()).footprint(target)
    }
}

/// How the drafter in a folder makes its blocks, and the `config.json` of its decoder.
fn read(folder: &ModelFolder) -> Result<(Blocks, Value)> {
    let (layout, decoder) = masked_language_model::read(folder)?;
    let context = serde_json::from_value(json!(layout.context)).with_context(|| {
        let file = folder.path().join(CONFIG);
        format!("`{}`: unknown context", file.display())
    })?;
    let blocks = Blocks {
        mask_token: layout.mask_token,
        separator_token: layout.separator_token,
        size: layout.block_size,
        context,
    };
    Ok((blocks, decoder))
}
