//! Drafters that are language models of their own, PARD's included, as ordinary folders and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use spectrain_checkpoints::dialect::{Dialect, Reading, Settings};
use spectrain_checkpoints::language_model::{
    self, LANGUAGE_MODEL, LanguageModelFolder, PARD, TARGET_PROJ,
};
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};
use spectrain_eval::Reach;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig, feature_width};
use spectrain_models::weights::export;
use spectrain_models::{
    Bias, Capture, Drafter, FolderWeights, Linear, Scope, Start, StartConfig as _, TargetParts,
    TargetSpec, Transformer, TransformerConfig, ignored_tensors,
};
use spectrain_train::Workload;

use crate::families::described;
use crate::families::drafter_folder::{check_tokenizer, not_for_this, tokens_of};
use crate::families::family::{Family, Writing};
use crate::families::footprint::{Activations, Footprint, Packed, Sees};
use crate::families::shipped::{NamedBy, Shipped};
use crate::families::sizes_at_start::SizesAtStart;
use crate::recipe::tables::Engine;

impl Family for LanguageModel {
    const KIND: &'static str = "language_model";
    const ENGINES: &'static [Engine] = &[
        Engine::Vllm,
        Engine::Sglang,
        Engine::Hf,
        Engine::TensorrtLlm,
        Engine::LlamaCpp,
    ];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&LANGUAGE_MODEL, None)];
    const SAMPLES: &'static [&'static str] = &[
        "fresh = { layers = 2 }",
        "fresh = { layers = 1 }\nlora = { rank = 2 }",
    ];

    fn activations(
        config: &LanguageModelConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        SizesAtStart(config.start()).activations(target, work, (batch, Sees::Back))
    }
}

impl Shipped for LanguageModel {
    fn model_at_start(config: &Self::Config) -> Option<Start<'_>> {
        model_at_start(config.start())
    }

    fn open(
        folder: &Path,
        _: Option<&Reading>,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        check_tokenizer(folder, target)?;
        let model = spectrain_models::load_target(&ModelFolder::open(folder)?, device, DType::F32)?;
        Self::of(model, target).with_context(|| not_for_this(folder))
    }

    fn check_start(_: &Self::Config, _: &Path, _: &TargetSpec) -> Result<()> {
        bail!(
            "`start`: a language model starts from `[drafter] model`, which may be a drafter's folder"
        )
    }

    /// Any language model can be one.
    fn at_start(_: &Path, _: &TargetSpec) -> Result<NamedBy> {
        Ok(NamedBy::Model(Vec::new()))
    }

    fn write(&self, _: &Dialect, writing: &Writing) -> Result<()> {
        let model = self.merged()?;
        let to_write = to_write(&model, self.target(), writing.dtype)?;
        Ok(to_write.write(writing.folder, writing.provenance)?)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(Capture::default())
    }

    fn launch_lines(&self, dialect: &Dialect, writing: &Writing) -> Result<Vec<Launch>> {
        let lines = commands(dialect, writing);
        Ok(with_remark(lines, self.model().config(), self.target()))
    }

    /// Whatever it starts from, it drafts alike.
    fn reach(_: &LanguageModelConfig, target: &TargetSpec) -> Result<Reach> {
        let fresh = LanguageModelConfig::default().without_start();
        described::reach::<Self>(&fresh, target)
    }

    fn footprint(config: &LanguageModelConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        SizesAtStart(config.start()).footprint(target)
    }
}

impl Family for Pard {
    const KIND: &'static str = "pard";
    /// Served as the language model that it is.
    const ENGINES: &'static [Engine] = LanguageModel::ENGINES;
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&PARD, None)];
    const SAMPLES: &'static [&'static str] = &[
        "fresh = { layers = 2 }\nmask_token = 5",
        "fresh = { layers = 2 }\nmask_token = 5\ntarget_features = true",
    ];

    fn activations(
        config: &PardConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        SizesAtStart(config.start()).activations(target, work, (batch, Sees::Back))
    }
}

impl Shipped for Pard {
    fn model_at_start(config: &Self::Config) -> Option<Start<'_>> {
        model_at_start(config.start())
    }

    fn unheld(config: &Self::Config) -> Vec<(&'static str, u32)> {
        tokens_of([("mask_token", config.mask_token)])
    }

    fn open(
        folder: &Path,
        _: Option<&Reading>,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        check_tokenizer(folder, target)?;
        let opened = ModelFolder::open(folder)?;
        let mask_token = language_model::read_mask_token(&opened)?;
        let mut weights = FolderWeights::new(&opened, "model.");
        let file = folder.join("config.json");
        let config = TransformerConfig::read(opened.config(), &file)?;
        let mut known = ignored_tensors(&opened, &config)?;
        known.push(TARGET_PROJ.to_owned());
        let d_model = config.spec.d_model;
        let mut scope = Scope::root(&mut weights, device, DType::F32);
        let model = Transformer::new(&mut scope, config)?;
        let projection = match opened.info(TARGET_PROJ) {
            Err(_) => None,
            Ok(info) => {
                let width = info.shape.last().copied().unwrap_or(0);
                let mut weights = FolderWeights::new(&opened, "");
                let mut scope = Scope::root(&mut weights, device, DType::F32);
                let scope = &mut scope.child("target_proj");
                Some(Linear::new(scope, width, d_model, Bias::Without)?)
            }
        };
        weights.finish(&known)?;
        let drafter = Self::of(model, projection, target, mask_token)
            .with_context(|| not_for_this(folder))?;
        if drafter.target_proj().is_some() && !drafter.reads_features() {
            warn_of_width(folder);
        }
        Ok(drafter)
    }

    fn check_start(_: &Self::Config, _: &Path, _: &TargetSpec) -> Result<()> {
        bail!(
            "`start`: a language model starts from `[drafter] model`, which may be a drafter's folder"
        )
    }

    /// Any language model can become one, and has no mask token then.
    fn at_start(folder: &Path, target: &TargetSpec) -> Result<NamedBy> {
        let opened = ModelFolder::open(folder)?;
        let mask_token = language_model::mask_token(opened.config());
        let mask_token = mask_token.map(|_| language_model::read_mask_token(&opened));
        let projection = opened.info(TARGET_PROJ).ok();
        let width = projection.and_then(|info| info.shape.last().copied());
        let target_features = width == Some(feature_width(target));
        if projection.is_some() && !target_features {
            warn_of_width(folder);
        }
        let config = PardConfig {
            mask_token: mask_token.transpose()?,
            target_features,
            ..PardConfig::default()
        };
        described::beside_defaults::<Self>(&config).map(NamedBy::Model)
    }

    fn write(&self, _: &Dialect, writing: &Writing) -> Result<()> {
        let model = self.merged()?;
        let mut to_write = to_write(&model, self.target(), writing.dtype)?;
        to_write.mask_token = Some(self.mask_token());
        if let Some(projection) = self.target_proj() {
            let weight = export(projection).into_iter();
            to_write.tensors.extend(weight.map(|tensor| NamedTensor {
                name: TARGET_PROJ.into(),
                ..tensor
            }));
        }
        Ok(to_write.write(writing.folder, writing.provenance)?)
    }

    fn captured(&self) -> Result<Capture> {
        Ok(self.capture_of_target())
    }

    fn launch_lines(&self, dialect: &Dialect, writing: &Writing) -> Result<Vec<Launch>> {
        let lines = commands(dialect, writing);
        let lines = with_remark(lines, self.model().config(), self.target());
        Ok(match self.target_proj() {
            None => lines,
            Some(_) => {
                let note = "engines do not give the drafter the target's hidden states; there it drafts without them";
                [vec![Launch::remark(note)], lines].concat()
            }
        })
    }

    /// Whatever it starts from, it drafts alike.
    fn reach(config: &PardConfig, target: &TargetSpec) -> Result<Reach> {
        described::reach::<Self>(&config.without_start(), target)
    }

    fn footprint(config: &PardConfig, target: &TargetSpec) -> Result<Footprint> {
        let captured = Self::capture(config, target)?.layers.len() as u64;
        let of_model = SizesAtStart(config.start()).footprint(target)?;
        let width = if config.target_features {
            feature_width(target)
        } else {
            0
        };
        let own = SizesAtStart(config.start()).spec(target)?;
        let projection = (width * own.d_model) as u64;
        Ok(Footprint {
            parameters: of_model.parameters + projection,
            matrices: of_model.matrices + projection,
            captured,
            ..of_model
        })
    }
}

/// Warns of a drafter whose projection fits no hidden states of the target.
fn warn_of_width(folder: &Path) {
    tracing::warn!(
        "`{}` was trained with the hidden states of a target of another width; it drafts without hidden states",
        folder.display()
    );
}

/// The commands of a dialect, which depend on no setting.
fn commands(dialect: &Dialect, writing: &Writing) -> Vec<Launch> {
    let (settings, length) = (Settings::default(), writing.draft_length);
    (dialect.launch)(&settings, writing.folder, writing.target, length)
}

/// The commands, behind a remark where vLLM needs one more setting.
fn with_remark(lines: Vec<Launch>, own: &TransformerConfig, target: &TargetParts) -> Vec<Launch> {
    if own.spec.vocab == target.spec.vocab {
        return lines;
    }
    let remark = format!(
        "vLLM needs `\"use_heterogeneous_vocab\": true` too, because the drafter knows only {} of the target's {} tokens",
        own.spec.vocab, target.spec.vocab
    );
    // With that setting vLLM refuses to draw.
    let lines = lines.into_iter().map(Launch::likeliest_alone);
    std::iter::once(Launch::remark(&remark))
        .chain(lines)
        .collect()
}

pub(crate) fn to_write<'a>(
    model: &Transformer,
    target: &'a TargetParts,
    dtype: DType,
) -> Result<LanguageModelFolder<'a>> {
    Ok(LanguageModelFolder {
        config: model.config().to_json()?,
        tensors: language_model::named(export(model)),
        dtype,
        mask_token: None,
        target: target.folder.as_deref(),
    })
}

/// A start from `[drafter] model`, where one is named.
pub(crate) fn model_at_start(start: Start<'_>) -> Option<Start<'_>> {
    Some(start).filter(|start| !start.model.is_empty())
}
