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
use spectrain_data::tokens::TokenShards;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::listing::decoder as decoder_parameters;
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::weights::export;
use spectrain_models::{
    Bias, Capture, Drafter, FolderWeights, FreshConfig, Linear, LoraConfig, Scope, TargetParts,
    TargetSpec, Transformer, TransformerConfig, ignored_tensors,
};
use spectrain_train::{WorkRows, Workload};

use crate::families::drafter_folder::check_mask_token;
use crate::families::family::{Family, Writing};
use crate::families::footprint::{
    Activations, Attended, Footprint, LayerSizes, Packed, Sees, decoder,
};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;
use crate::runtime::sizes::known_sizes;
use crate::runtime::target::other_token;

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
        sizes(config).activations(target, work, (batch, Sees::Back))
    }
}

impl Shipped for LanguageModel {
    fn begin(config: &Self::Config, target: &TargetParts, _: &TokenShards) -> Result<()> {
        check_start(&config.model, target)
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

    fn warm_start(_: &Self::Config, _: &Path, _: &TargetParts, _: &Device) -> Result<Self> {
        bail!(
            "`start`: a language model starts from `[drafter] model`, which may be a drafter's folder"
        )
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

    fn footprint(config: &LanguageModelConfig, target: &TargetSpec) -> Result<Footprint> {
        Self::capture(config, target)?;
        sizes(config).footprint(target)
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
        sizes_of_pard(config).activations(target, work, (batch, Sees::Back))
    }
}

impl Shipped for Pard {
    fn begin(config: &Self::Config, target: &TargetParts, texts: &TokenShards) -> Result<()> {
        check_start(&config.model, target)?;
        check_mask_token(config.mask_token, texts)
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
        let mut known = ignored_tensors(&config);
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
            tracing::warn!(
                "`{}` was trained with the features of a target of another width; it drafts without them",
                folder.display()
            );
        }
        Ok(drafter)
    }

    fn warm_start(_: &Self::Config, _: &Path, _: &TargetParts, _: &Device) -> Result<Self> {
        bail!(
            "`start`: a language model starts from `[drafter] model`, which may be a drafter's folder"
        )
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
                let note =
                    "engines read no features of the target; there the drafter works without them";
                [vec![Launch::remark(note)], lines].concat()
            }
        })
    }

    fn footprint(config: &PardConfig, target: &TargetSpec) -> Result<Footprint> {
        let captured = Self::capture(config, target)?.layers.len() as u64;
        let of_model = sizes_of_pard(config).footprint(target)?;
        let width = if config.target_features {
            captured + 1
        } else {
            0
        };
        let (own, _) = sizes_of_pard(config).spec(target)?;
        Ok(Footprint {
            parameters: of_model.parameters + width * (target.d_model * own.d_model) as u64,
            captured,
            ..of_model
        })
    }
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
        "vLLM wants `\"use_heterogeneous_vocab\": true` too, as the drafter knows {} of the target's {} tokens",
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

pub(crate) fn not_for_this(folder: &Path) -> String {
    format!("the drafter `{}` is not for this target", folder.display())
}

/// Fails where the model to start from has other tokens than the target.
pub(crate) fn check_start(model: &str, target: &TargetParts) -> Result<()> {
    match model.is_empty() {
        true => Ok(()),
        false => check_tokenizer(&crate::runtime::target::resolve(model, None)?, target),
    }
}

/// Fails where a drafter's tokens are not the target's: the same ids must stand for the same texts. Without a tokenizer on
/// either side nothing can be said.
pub(crate) fn check_tokenizer(folder: &Path, target: &TargetParts) -> Result<()> {
    let Some(of_target) = &target.folder else {
        return Ok(());
    };
    let has_tokenizer = |folder: &Path| folder.join("tokenizer.json").exists();
    if !has_tokenizer(folder) || !has_tokenizer(of_target) {
        return Ok(());
    }
    match other_token(folder, of_target)? {
        None => Ok(()),
        Some(difference) => bail!(
            "{}: {difference}; a drafter needs the tokenizer of its target",
            not_for_this(folder)
        ),
    }
}

fn sizes(config: &LanguageModelConfig) -> Sizes<'_> {
    Sizes {
        model: &config.model,
        kept: config.keep_layers.len(),
        fresh: config.fresh.as_ref(),
        lora: config.lora.as_ref(),
    }
}

fn sizes_of_pard(config: &PardConfig) -> Sizes<'_> {
    Sizes {
        model: &config.model,
        kept: config.keep_layers.len(),
        fresh: config.fresh.as_ref(),
        lora: config.lora.as_ref(),
    }
}

/// Rows that are judged where only masks behind cuts are.
fn judged(work: &Workload, batch: Packed) -> Option<f64> {
    let positions = batch.positions() as f64;
    match work.rows {
        WorkRows::Behind { cuts, places } if places > 1 => {
            let masks = batch.rows as f64 * cuts as f64 * (places - 1) as f64;
            Some(masks.min(positions))
        }
        _ => None,
    }
}

/// What the parameters are counted from.
pub(crate) struct Sizes<'a> {
    pub(crate) model: &'a str,
    /// Layers that are kept; 0 for all.
    pub(crate) kept: usize,
    pub(crate) fresh: Option<&'a FreshConfig>,
    pub(crate) lora: Option<&'a LoraConfig>,
}

impl Sizes<'_> {
    pub(crate) fn footprint(&self, target: &TargetSpec) -> Result<Footprint> {
        let mut structure = self.structure(target)?;
        if self.kept > 0 {
            structure.spec.layers = self.kept;
            structure.windows.truncate(self.kept);
        }
        let (d, vocab) = (structure.spec.d_model as u64, structure.spec.vocab as u64);
        let listed = decoder_parameters(&structure)?;
        let all = listed.iter().map(|(_, shape)| product(shape)).sum();
        let linear = listed
            .iter()
            .filter(|(name, _)| name.ends_with("_proj.weight"));
        // Two thin matrices beside each linear layer.
        let ends: u64 = linear
            .map(|(_, shape)| shape.iter().sum::<usize>() as u64)
            .sum();
        let (parameters, frozen) = match self.lora {
            Some(lora) => (lora.rank as u64 * ends, all),
            None => (all, 0),
        };
        Ok(Footprint {
            parameters,
            head: if self.lora.is_some() { 0 } else { vocab * d },
            frozen,
            // It proposes the tokens it knows; none is chosen by how often it occurs.
            draft_vocab: target.vocab as u64,
            captured: 0,
        })
    }

    /// What a step of training keeps where the drafter sees `sees` of its texts.
    pub(crate) fn activations(
        &self,
        target: &TargetSpec,
        work: &Workload,
        (batch, sees): (Packed, Sees),
    ) -> Result<Activations> {
        let (spec, _) = self.spec(target)?;
        let layers = if self.kept > 0 {
            self.kept
        } else {
            spec.layers
        };
        // Whether a model from a folder norms its heads is not known here; that is little beside the rest.
        let layer = LayerSizes::of(&spec, [0; 3])?;
        let attended = Attended::of(work, batch, sees);
        let all = decoder(&layer, layers as u64, work, attended);
        Ok(Activations {
            // The last norm.
            kept: all.kept + attended.rows * (3 * layer.d_model) as f64,
            judged: judged(work, batch).unwrap_or(all.judged),
            ..all
        })
    }

    fn spec(&self, target: &TargetSpec) -> Result<(TargetSpec, bool)> {
        let structure = self.structure(target)?;
        Ok((structure.spec, structure.tied_head))
    }

    /// The structure at the start. Of a cut target only the sizes are known here; it counts as having a head of its own.
    fn structure(&self, target: &TargetSpec) -> Result<TransformerConfig> {
        if let Some(fresh) = self.fresh {
            return Ok(fresh.structure(target)?);
        }
        let (spec, tied_head) = match self.model {
            "" => (target.clone(), false),
            model => known_sizes(model, None).with_context(|| {
                format!("the sizes of `{model}` are known once it is on this machine")
            })?,
        };
        Ok(TransformerConfig {
            windows: vec![None; spec.layers],
            spec,
            qkv_bias: Bias::Without,
            output_bias: Bias::Without,
            mlp_bias: Bias::Without,
            head_norm: false,
            tied_head,
        })
    }
}

fn product(shape: &[usize]) -> u64 {
    shape.iter().map(|&size| size as u64).product()
}
