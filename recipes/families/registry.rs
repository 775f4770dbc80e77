//! Which drafter is trained with which objective.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use schemars::SchemaGenerator;
use serde_json::Value;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, seal};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::hydra::Hydra;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::masked_language_model::MaskedLanguageModel;
use spectrain_models::medusa::Medusa;
use spectrain_models::pard::Pard;
use spectrain_models::weights::{TensorWeights, export, held_in, import};
use spectrain_models::{Capture, Drafter, Proposer, Session, TargetParts, TargetSpec};
use spectrain_train::{
    BlockLoss, DeerLoss, Distill, FeatureRegression, HydraLoss, MedusaLoss, Objective, PardLoss,
    StagedBlockLoss, TrainingTimeTest, Workload,
};

use crate::families::drafter_folder::cast;
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::recipe::schema::OwnTables;
use crate::recipe::tables::{Engine, ExportTable};
use crate::recipe::{Document, ResolvedRecipe, Settings};
use crate::stages::{StageContext, train};

/// Every recipe there is. A new one is added here, and its folders, where they are of a new kind, to [`Family`].
pub const RECIPES: &[Recipe] = &[
    Recipe::of::<Eagle3, TrainingTimeTest>(
        "eagle3",
        "one decoder layer over fused hidden states, unrolled in training (EAGLE-3, EAGLE-3.1)",
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
    /// What a folder of its drafter is known by.
    pub family: Family,
    /// The engines that load its drafters, whatever their settings rule out.
    pub engines: &'static [Engine],
    /// The schema of its own tables.
    pub schema: fn(&mut SchemaGenerator) -> OwnTables,
    /// Opens a drafter's folder.
    pub open: fn(&Path, &TargetParts, &Device) -> Result<Box<dyn Trained>>,
}

/// A drafter with what the program needs of it beyond training and decoding: its files.
pub trait Shipped: Drafter + 'static {
    /// What reports call it.
    const KIND: &'static str;

    /// What a folder of this kind is known by.
    const FAMILY: Family;

    /// The engines that load drafters of this kind, whatever their settings rule out.
    const ENGINES: &'static [Engine];

    /// The folders that some engines load in the place of the usual one.
    const LAYOUTS: &'static [Layout<Self>];

    /// Fails where what the settings let it start from is not for this target, or not for these texts.
    fn begin(config: &Self::Config, target: &TargetParts, texts: &TokenShards) -> Result<()>;

    /// Reads a drafter's folder, ours or a published one.
    fn open(folder: &Path, target: &TargetParts, device: &Device) -> Result<Self>;

    /// Reads a drafter's folder for training to start from, where its settings are those of `config`.
    fn warm_start(
        config: &Self::Config,
        folder: &Path,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        let drafter = Self::open(folder, target, device)?;
        check_start(config, &drafter, folder, (target, device))?;
        Ok(drafter)
    }

    /// Writes the usual folder, which most serving engines load, whole or not at all.
    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()>;

    /// The hidden states that it reads.
    fn captured(&self) -> Result<Capture>;

    /// Commands that serve `target` with the drafter in the usual folder, one for each engine.
    fn launch_lines(&self, folder: &Path, target: &str, draft_length: usize)
    -> Result<Vec<Launch>>;

    /// Sizes, for an estimate before anything is loaded.
    fn footprint(config: &Self::Config, target: &TargetSpec) -> Result<Footprint>;

    /// What a step of training keeps, for an estimate before anything is loaded.
    fn activations(
        config: &Self::Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations>;
}

/// A folder that an engine loads in the place of the usual one.
pub struct Layout<D> {
    /// The engine.
    pub engine: Engine,
    /// Writes it, whole or not at all.
    pub write: fn(&D, &Writing) -> Result<()>,
    /// The command that serves it.
    pub launch: fn(&D, &Writing) -> Launch,
}

/// What goes into a folder beside a drafter's tensors.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Type of the weights.
    pub dtype: DType,
    /// Hub id or folder of the target, which some layouts name.
    pub target: &'a str,
    /// Tokens to draft by default.
    pub draft_length: usize,
    /// Where the drafter comes from.
    pub provenance: &'a Value,
}

/// Fails unless a drafter of these settings has the parameters and captured layers of the one that was read.
pub(crate) fn check_start<D: Shipped>(
    config: &D::Config,
    drafter: &D,
    folder: &Path,
    (target, device): (&TargetParts, &Device),
) -> Result<()> {
    let other = || {
        format!(
            "the drafter `{}` has other settings than `[drafter]`",
            folder.display()
        )
    };
    let mut weights = TensorWeights::new(export(drafter), folder.display().to_string());
    D::new(config, target, drafter.vocabulary(), &mut weights, device).with_context(other)?;
    if let Some(name) = weights.left().first() {
        bail!("{}: tensor `{name}` is not one of them", other());
    }
    let asked = D::footprint(config, &target.spec)?.draft_vocab as usize;
    let kept = drafter.vocabulary().len();
    // Where no size is asked for, the one that is there is kept.
    if asked != kept && asked != target.spec.vocab {
        bail!("{}: `draft_vocab`: expected {asked}, found {kept}", other());
    }
    let (expected, found) = (D::capture(config, &target.spec)?, drafter.captured()?);
    if expected != found {
        bail!(
            "{}: captured layers: expected {:?}, found {:?}",
            other(),
            expected.layers,
            found.layers
        );
    }
    Ok(())
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
    /// See [`Shipped::FAMILY`].
    fn family(&self) -> Family;
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
    /// See [`Shipped::write`].
    fn write(&self, folder: &Path, dtype: DType, provenance: &Value) -> Result<()>;
    /// Whether an engine loads another folder than the usual one; see [`Shipped::LAYOUTS`].
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
            family: D::FAMILY,
            engines: D::ENGINES,
            schema: |generator| OwnTables::of::<D::Config, O::Config>(generator, O::STAGES),
            open: |folder, target, device| Ok(Box::new(Loaded(D::open(folder, target, device)?))),
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

/// Opens any drafter's folder, ours or a published one.
pub fn open_drafter(
    folder: &Path,
    target: &TargetParts,
    device: &Device,
) -> Result<Box<dyn Trained>> {
    let model = ModelFolder::open(folder)?;
    seal::check(&model)?;
    let family = Family::of(&model)?;
    let recipe = RECIPES.iter().find(|recipe| recipe.family == family);
    let recipe = recipe.with_context(|| format!("no recipe trains {family} drafters"))?;
    (recipe.open)(folder, target, device)
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

    fn family(&self) -> Family {
        D::FAMILY
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
        self.0.write(folder, dtype, provenance)
    }

    fn has_layout_for(&self, engine: Engine) -> bool {
        self.layout_for(engine).is_some()
    }

    fn write_for(&self, engine: Engine, writing: &Writing) -> Result<()> {
        match self.layout_for(engine) {
            Some(layout) => (layout.write)(&self.0, writing),
            None if engine == Engine::Speculators => {
                bail!("{} drafters have no layout of speculators", D::KIND)
            }
            None => self.write(writing.folder, writing.dtype, writing.provenance),
        }
    }

    fn launch_lines(&self, engine: Engine, writing: &Writing) -> Result<Vec<Launch>> {
        match self.layout_for(engine) {
            Some(layout) => Ok(vec![(layout.launch)(&self.0, writing)]),
            None => {
                let (target, length) = (writing.target, writing.draft_length);
                self.0.launch_lines(writing.folder, target, length)
            }
        }
    }
}

impl<D: Shipped> Loaded<D> {
    fn layout_for(&self, engine: Engine) -> Option<&'static Layout<D>> {
        D::LAYOUTS.iter().find(|layout| layout.engine == engine)
    }
}
