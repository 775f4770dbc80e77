//! Which drafter is trained with which objective.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use serde_json::Value;
use spectrain_checkpoints::dialect::{Dialect, Meaning, Reading};
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::unknown::{no_drafter, refuse_others};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, seal};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::hydra::Hydra;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::masked_language_model::MaskedLanguageModel;
use spectrain_models::medusa::Medusa;
use spectrain_models::pard::Pard;
use spectrain_models::peagle::PEagle;
use spectrain_models::weights::{export, held_in, import};
use spectrain_models::{Capture, Drafter, Proposer, Session, TargetParts, TargetSpec};
use spectrain_train::{
    BlockLoss, DeerLoss, Distill, FeatureRegression, HydraLoss, MedusaLoss, Objective, PEagleLoss,
    PardLoss, StagedBlockLoss, TrainingTimeTest, Workload,
};

use crate::families::described;
use crate::families::drafter_folder::cast;
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::families::shipped::{Shipped, Writing};
use crate::recipe::tables::{Engine, ExportTable};
use crate::recipe::{Document, ResolvedRecipe, Settings};
use crate::runtime::target::{TrainedFor, sha256, trained_for};
use crate::stages::{StageContext, train};

/// Every recipe there is. A folder is of the first that recognises it: a language model of one layer looks like an EAGLE-1
/// drafter of its authors.
pub const RECIPES: &[Recipe] = &[
    Recipe::of::<Eagle3, TrainingTimeTest>(
        "eagle3",
        "one decoder layer over fused hidden states, unrolled in training (EAGLE-3, EAGLE-3.1)",
    ),
    Recipe::of::<PEagle, PEagleLoss>(
        "peagle",
        "EAGLE-3's inputs with more layers, which draft all tokens in one pass (P-EAGLE)",
    ),
    Recipe::of::<Eagle1, FeatureRegression>(
        "eagle1",
        "one decoder layer that continues the target's last hidden states (EAGLE-1; HASS with passes)",
    ),
    Recipe::of::<Medusa, MedusaLoss>(
        "medusa",
        "a head for each draft depth over the target's last hidden state (Medusa-1)",
    ),
    Recipe::of::<Hydra, HydraLoss>(
        "hydra",
        "heads that also read the tokens drafted before (Hydra, Hydra++)",
    ),
    Recipe::of::<DFlash, BlockLoss>(
        "dflash",
        "a block of masks filled in one pass, with the target's hidden states in every layer (DFlash)",
    ),
    Recipe::of::<DFlash, StagedBlockLoss>(
        "dflash-deer",
        "the same drafter, aligned in the two stages of DEER",
    ),
    Recipe::of::<Pard, PardLoss>(
        "pard",
        "a language model that drafts all tokens in one pass (PARD; PARD-2 with target features)",
    ),
    Recipe::of::<MaskedLanguageModel, DeerLoss>(
        "deer",
        "a masked-diffusion language model that fills a block of masks, trained in three stages (DEER)",
    ),
    Recipe::of::<LanguageModel, Distill>(
        "distillspec",
        "a smaller language model, distilled from the target (DistillSpec, GKD)",
    ),
];

/// A drafter and the objective it is trained with, without their types.
pub struct Recipe {
    /// What `recipe = "..."` says in the file.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Reads a recipe file of this kind.
    pub read: fn(&Document) -> Result<ResolvedRecipe>,
    /// What reports call its drafter.
    pub kind: &'static str,
    /// What messages call it.
    pub family: &'static str,
    /// Whether a folder is of its drafter.
    pub recognises: fn(&ModelFolder) -> bool,
    /// See [`Shipped::BY_TEXT`].
    pub by_text: bool,
    /// See [`Shipped::SAMPLES`].
    pub samples: &'static [&'static str],
    /// The engines that load a layout of their own.
    pub apart: fn() -> Vec<Engine>,
    /// The engines that load its drafters, whatever their settings rule out.
    pub engines: &'static [Engine],
    /// Opens a drafter's folder.
    pub open: fn(&Path, Option<&Reading>, &TargetParts, &Device) -> Result<Box<dyn Trained>>,
    /// Every way in which a folder can be meant.
    pub meanings: fn(&ModelFolder, &Reading, Option<&[usize]>) -> Result<Vec<Meaning>>,
}

/// A recipe's drafter and objective with their tables, without their types.
pub trait Method: Send + Sync {
    /// The hidden states the drafter reads.
    fn capture(&self, target: &TargetSpec) -> Result<Capture>;
    /// Sizes of the drafter.
    fn footprint(&self, target: &TargetSpec) -> Result<Footprint>;
    /// See [`Objective::workload`].
    fn workload(&self, stage: &str) -> Workload;
    /// What a step of a stage of the training keeps.
    fn activations(&self, target: &TargetSpec, stage: &str, batch: Packed) -> Result<Activations>;
    /// See [`Shipped::KIND`].
    fn kind(&self) -> &'static str;
    /// An untrained drafter with random parameters.
    fn fresh(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Trained>>;
    /// See [`Objective::STAGES`].
    fn stages(&self) -> &'static [&'static str];
    /// See [`Objective::settings_of`].
    fn objective_of(&self, stage: &str) -> Result<Value>;
    /// Runs one of these stages.
    fn train(&self, context: &StageContext, stage: &str) -> Result<Value>;
}

/// A drafter that was read from a folder, without its type.
pub trait Trained {
    /// What reports call it.
    fn kind(&self) -> &'static str;
    /// The hidden states that it reads.
    fn capture(&self) -> Result<Capture>;
    /// Parameters of its own.
    fn parameters(&self) -> u64;
    /// Puts it to work.
    fn session(&self) -> Box<dyn Proposer>;
    /// Its parameters.
    fn tensors(&self) -> Vec<NamedTensor>;
    /// The tokens it can propose.
    fn vocabulary(&self) -> &DraftVocabulary;
    /// The same drafter with its parameters held in `dtype`, and so computing in it, as engines do that serve it with a target
    /// of that type. [`tensors`](Self::tensors) are to be taken before.
    fn held_in(&self, dtype: BurnDType) -> Box<dyn Trained>;
    /// The same drafter with its parameters rounded to `dtype`.
    fn rounded(&self, dtype: DType) -> Result<Box<dyn Trained>>;
    /// See [`write_usual`].
    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()>;
    /// Whether an engine loads another folder than the usual one; see [`Shipped::DIALECTS`].
    fn has_layout_for(&self, engine: Engine) -> bool;
    /// Writes the folder that an engine loads.
    fn write_for(&self, engine: Engine, writing: &Writing) -> Result<()>;
    /// The commands for the folder that an engine loads; for the usual one those of other engines too.
    fn launch_lines(&self, engine: Engine, writing: &Writing) -> Result<Vec<Launch>>;
}

impl Recipe {
    const fn of<D, O>(name: &'static str, about: &'static str) -> Self
    where
        D: Shipped,
        O: Objective<D> + 'static,
        D::Config: Settings,
        O::Config: Settings,
    {
        Self {
            name,
            about,
            read: |document| {
                let file = document.file::<D::Config, O::Config>(O::STAGES)?;
                D::check(&file.drafter).map_err(|error| document.refuse(error.into()))?;
                O::new(&file.objective).map_err(|error| document.refuse(error))?;
                check_export::<D>(&file.export.to).map_err(|error| document.refuse(error))?;
                let method = Typed::<D, O> {
                    drafter: file.drafter.clone(),
                    objective: file.objective.clone(),
                };
                file.resolve(Box::new(method))
            },
            kind: D::KIND,
            family: D::DIALECTS[0].0.name,
            recognises: |folder| {
                let mut dialects = D::DIALECTS.iter();
                dialects.any(|(dialect, _)| (dialect.recognises)(folder))
            },
            by_text: D::BY_TEXT,
            samples: D::SAMPLES,
            apart: || {
                let engines = D::DIALECTS.iter().filter_map(|(_, engine)| *engine);
                engines.collect()
            },
            engines: D::ENGINES,
            open: |folder, reading, target, device| {
                Ok(Box::new(Loaded(D::open(folder, reading, target, device)?)))
            },
            meanings: |folder, reading, captured_layers| {
                let dialect = described::dialect_of::<D>(folder)?;
                Ok(dialect.meanings(folder, reading, captured_layers)?)
            },
        }
    }
}

/// Fails for an engine that loads no drafter of this kind. The two that are there unless a recipe says otherwise are
/// remarked upon when the drafter is written: they are those of most kinds.
fn check_export<D: Shipped>(engines: &[Engine]) -> spectrain_train::Result<()> {
    if engines == ExportTable::default().to {
        return Ok(());
    }
    match engines.iter().find(|engine| !D::ENGINES.contains(engine)) {
        None => Ok(()),
        Some(other) => Err(spectrain_train::Error::Setting {
            table: "export",
            key: "to",
            expected: match D::ENGINES {
                [] => format!("nothing: no engine loads {} drafters", D::KIND),
                known => {
                    let names = known.iter().map(|engine| format!("`\"{}\"`", engine.key()));
                    let names = names.collect::<Vec<_>>().join(", ");
                    format!("engines that load {} drafters: {names}", D::KIND)
                }
            },
            got: format!("`\"{}\"`", other.key()),
        }),
    }
}

/// The recipe of this name.
pub fn find(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name)
}

/// The names of all recipes, for messages.
pub fn names() -> String {
    let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
    names.join(", ")
}

/// The recipe whose drafter a folder holds, ours or a published one.
///
/// # Errors
/// It is of no drafter that there is.
pub fn recipe_of(folder: &ModelFolder) -> Result<&'static Recipe> {
    let mut families: Vec<&str> = RECIPES.iter().map(|recipe| recipe.family).collect();
    families.dedup();
    let families = families.join(", ");
    refuse_others(folder, &families)?;
    let mut recipes = RECIPES.iter();
    let found = recipes.find(|recipe| (recipe.recognises)(folder));
    Ok(found.ok_or_else(|| no_drafter(folder, &families))?)
}

/// Opens any drafter's folder, ours or a published one.
pub fn open_drafter(
    folder: &Path,
    target: &TargetParts,
    device: &Device,
) -> Result<Box<dyn Trained>> {
    let model = ModelFolder::open(folder)?;
    seal::check(&model)?;
    (recipe_of(&model)?.open)(folder, None, target, device)
}

/// Whether a drafter needs nothing of its target but the text: it drafts for any target with its tokens.
pub fn drafts_by_text(drafter: &ModelFolder) -> bool {
    recipe_of(drafter).is_ok_and(|recipe| recipe.by_text)
}

/// The target that a drafter's folder says it was trained for, where that has other weights than the one in `target` and
/// the drafter reads what it computes.
pub fn other_target(drafter: &ModelFolder, target: &Path) -> Result<Option<TrainedFor>> {
    match trained_for(drafter) {
        Some(named) if !drafts_by_text(drafter) && named.sha256 != sha256(target)? => {
            Ok(Some(named))
        }
        _ => Ok(None),
    }
}

struct Typed<D: Drafter, O: Objective<D>> {
    drafter: D::Config,
    objective: O::Config,
}

impl<D, O> Method for Typed<D, O>
where
    D: Shipped,
    O: Objective<D> + 'static,
    D::Config: Settings,
    O::Config: Settings,
{
    fn capture(&self, target: &TargetSpec) -> Result<Capture> {
        Ok(D::capture(&self.drafter, target)?)
    }

    fn footprint(&self, target: &TargetSpec) -> Result<Footprint> {
        D::footprint(&self.drafter, target)
    }

    fn workload(&self, stage: &str) -> Workload {
        O::workload(&self.objective, stage)
    }

    fn activations(&self, target: &TargetSpec, stage: &str, batch: Packed) -> Result<Activations> {
        D::activations(&self.drafter, target, &self.workload(stage), batch)
    }

    fn kind(&self) -> &'static str {
        D::KIND
    }

    fn fresh(
        &self,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        device: &Device,
    ) -> Result<Box<dyn Trained>> {
        let fresh = D::fresh(&self.drafter, target, vocabulary, 11, device)?;
        Ok(Box::new(Loaded(fresh)))
    }

    fn stages(&self) -> &'static [&'static str] {
        O::STAGES
    }

    fn objective_of(&self, stage: &str) -> Result<Value> {
        let settings = O::settings_of(&self.objective, stage);
        serde_json::to_value(settings).context("cannot write the settings of the objective")
    }

    fn train(&self, context: &StageContext, stage: &str) -> Result<Value> {
        train::run::<D, O>(context, stage, &self.drafter, &self.objective)
    }
}

struct Loaded<D: Drafter>(D);

impl<D: Shipped> Trained for Loaded<D> {
    fn kind(&self) -> &'static str {
        D::KIND
    }

    fn capture(&self) -> Result<Capture> {
        self.0.captured()
    }

    fn parameters(&self) -> u64 {
        self.0.num_params() as u64
    }

    fn session(&self) -> Box<dyn Proposer> {
        // Tensors are shared, not copied.
        Box::new(Session::new(self.0.clone()))
    }

    fn tensors(&self) -> Vec<NamedTensor> {
        export(&self.0)
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        self.0.vocabulary()
    }

    fn held_in(&self, dtype: BurnDType) -> Box<dyn Trained> {
        Box::new(Loaded(held_in(self.0.clone(), dtype)))
    }

    fn rounded(&self, dtype: DType) -> Result<Box<dyn Trained>> {
        let tensors = cast(cast(self.tensors(), dtype)?, DType::F32)?;
        Ok(Box::new(Loaded(import(
            self.0.clone(),
            tensors,
            "the trained drafter",
        )?)))
    }

    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()> {
        write_usual(&self.0, folder, dtype, provenance)
    }

    fn has_layout_for(&self, engine: Engine) -> bool {
        dialect_for::<D>(engine).is_some()
    }

    fn write_for(&self, engine: Engine, writing: &Writing) -> Result<()> {
        match dialect_for::<D>(engine) {
            Some(dialect) => self.0.write(dialect, writing),
            None if engine == Engine::Speculators => {
                bail!("{} drafters have no layout of speculators", D::KIND)
            }
            None => self.0.write(D::DIALECTS[0].0, writing),
        }
    }

    fn launch_lines(&self, engine: Engine, writing: &Writing) -> Result<Vec<Launch>> {
        let dialect = dialect_for::<D>(engine).unwrap_or(D::DIALECTS[0].0);
        self.0.launch_lines(dialect, writing)
    }
}

/// The layout that an engine loads in the place of the usual one.
fn dialect_for<D: Shipped>(engine: Engine) -> Option<&'static Dialect> {
    let mut dialects = D::DIALECTS.iter();
    let found = dialects.find(|(_, of)| *of == Some(engine));
    found.map(|(dialect, _)| *dialect)
}

/// Writes the usual folder, which most serving engines load, whole or not at all.
pub fn write_usual<D: Shipped>(
    drafter: &D,
    folder: &Path,
    dtype: DType,
    provenance: &Value,
) -> Result<()> {
    let writing = Writing {
        folder,
        dtype,
        // It names neither.
        target: "",
        draft_length: 0,
        provenance,
    };
    drafter.write(D::DIALECTS[0].0, &writing)
}
