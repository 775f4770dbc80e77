//! Which drafter is trained with which objective.

use std::any::Any;
use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use schemars::SchemaGenerator;
use serde_json::Value;
use spectrain_checkpoints::dialect::Reading;
use spectrain_checkpoints::known::{self, dialect_of};
use spectrain_checkpoints::near::did_you_mean;
use spectrain_checkpoints::seal;
use spectrain_checkpoints::{Mismatch, ModelFolder};
use spectrain_models::deepseek_mtp::DeepseekMtp;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::hydra::Hydra;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::masked_language_model::MaskedLanguageModel;
use spectrain_models::medusa::Medusa;
use spectrain_models::mtp::Mtp;
use spectrain_models::pard::Pard;
use spectrain_models::peagle::PEagle;
use spectrain_models::qwen_mtp::QwenMtp;
use spectrain_models::redrafter::Redrafter;
use spectrain_models::{TargetParts, TargetSpec};
use spectrain_train::{
    BlockLoss, DeerLoss, Distill, FeatureRegression, HeadsLoss, Objective, PEagleLoss, PardLoss,
    StagedBlockLoss, TrainingTimeTest,
};

use crate::families::method::Typed;
use crate::families::shipped::{NamedBy, Shipped};
use crate::families::trained::{Loaded, Trained};
use crate::recipe::document::Document;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::schema::OwnTables;
use crate::recipe::settings::Settings;
use crate::recipe::tables::{Engine, ExportTable};
use crate::stages::context::StageContext;
use crate::stages::train;

/// Every recipe there is. A new one is added here.
pub const RECIPES: &[Recipe] = &[
    Recipe::of::<Eagle3, TrainingTimeTest>(
        "eagle3",
        "one decoder layer over fused hidden states, unrolled in training (EAGLE-3, EAGLE-3.1)",
        &[
            "[objective]\ndraft_steps = 4\nout_of_vocab = \"keep\"",
            "[drafter]\nlayers = 3\nwindow = 200\nhead_norm = true\nfc_norm = true\nnorm_output = true\nnorm_before_residual = true\n[objective]\ndraft_steps = 4\nrecompute = false",
        ],
    ),
    Recipe::of::<PEagle, PEagleLoss>(
        "peagle",
        "EAGLE-3's inputs with more layers, which draft all tokens in one pass (P-EAGLE)",
        &[
            "[drafter]\nmask_token = 47\nlayers = 3\nnorm_before_residual = true\n[objective]\ndraft_tokens = 4",
            "[drafter]\nmask_token = 47\nlayers = 2\nhead_norm = true\nwindow = 200\n[objective]\ndraft_tokens = 4",
        ],
    ),
    Recipe::of::<Eagle1, FeatureRegression>(
        "eagle1",
        "one decoder layer that continues the target's last hidden states (EAGLE-1; HASS with passes)",
        &["[objective]\npasses = 3"],
    ),
    Recipe::of::<Eagle1, TrainingTimeTest>(
        "eagle1-ttt",
        "EAGLE-1's layer, trained as EAGLE-3 is: unrolled, by the target's distributions alone",
        &["[objective]\ndraft_steps = 4\nrecompute = false"],
    ),
    Recipe::of::<Mtp, TrainingTimeTest>(
        "mtp",
        "the target's own layer of multi-token prediction, or a new one, unrolled in training (MTP, FastMTP)",
        &[
            "[objective]\ndraft_steps = 4\nrecompute = false",
            "[drafter]\nafter_final_norm = true\n[objective]\ndraft_steps = 4",
        ],
    ),
    Recipe::of::<QwenMtp, TrainingTimeTest>(
        "mtp-qwen",
        "Qwen3.5's and Qwen3-Next's layer of multi-token prediction, the target's own or a new one (MTP, FastMTP)",
        &[
            "[objective]\ndraft_steps = 4\nrecompute = false",
            "[drafter]\nexperts = { count = 5, per_token = 2, d_ff = 24 }\n[objective]\ndraft_steps = 4",
        ],
    ),
    Recipe::of::<DeepseekMtp, TrainingTimeTest>(
        "mtp-deepseek",
        "DeepSeek-V3's and GLM-4.5's layer of multi-token prediction, the target's own or a new one (MTP, FastMTP)",
        &[
            "[drafter]\nexperts = { count = 6, per_token = 2, d_ff = 24 }\n[objective]\ndraft_steps = 4\nrecompute = false",
            "[drafter]\nlatent = { q_rank = 24, kv_rank = 16, d_fixed = 10, d_turned = 4 }\n\
             experts = { count = 8, per_token = 2, d_ff = 24, groups = 4, groups_per_token = 2 }\n[objective]\ndraft_steps = 4",
        ],
    ),
    Recipe::of::<Medusa, HeadsLoss>(
        "medusa",
        "a head for each draft depth over the target's last hidden state (Medusa-1)",
        &["[drafter]\nmedusa_heads = 3\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0"],
    ),
    Recipe::of::<Hydra, HeadsLoss>(
        "hydra",
        "heads that also read the tokens drafted before (Hydra, Hydra++)",
        &[
            "[drafter]\nhydra_heads = 3\nhead_layers = 2\nprefix_layer = true\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<Redrafter, HeadsLoss>(
        "redrafter",
        "one head for all draft steps, over a recurrent cell that reads the tokens drafted before (ReDrafter)",
        &[
            "[drafter]\ndraft_tokens = 4\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\ndraft_tokens = 3\nhead_layers = 1\nrecurrent = false\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<DFlash, BlockLoss>(
        "dflash",
        "a block of masks filled in one pass, with the target's hidden states in every layer (DFlash)",
        &[
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 6\n[objective]\nslot_weights = \"uniform\"\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 5\ncausal = true\nwindow = 200\nsinks = true\n[objective]\nslot_weights = \"uniform\"\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nconv_taps = 2\nconv_group = 4\nmarkov_rank = 8\nsample_from_anchor = true\n[objective]\nslot_weights = \"uniform\"\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nlayers = 3\nmask_token = 47\nblock_size = 5\nwindow = 100\nfull_layers = [2]\ncausal = true\nfull_layers_see_block = true\n[objective]\nslot_weights = \"uniform\"\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nmarkov_rank = 8\nmarkov = \"domino\"\nmarkov_state = 24\nsample_from_anchor = true\n[objective]\nslot_weights = \"uniform\"\nbase_weight = 1.0\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 6\nmarkov_rank = 8\nmarkov = \"xpress\"\nmarkov_passes = 2\n[objective]\nslot_weights = \"uniform\"\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<DFlash, StagedBlockLoss>(
        "dflash-deer",
        "the same drafter, aligned in the two stages of DEER",
        &[
            "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 6\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<Pard, PardLoss>(
        "pard",
        "a language model that drafts all tokens in one pass (PARD; PARD-2 with target features)",
        &[
            "[drafter]\nmask_token = 47\nfresh = { layers = 2 }\ntarget_features = false\n[objective]\ndraft_tokens = 4\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nmask_token = 47\nfresh = { layers = 2 }\ntarget_features = true\n[objective]\ndraft_tokens = 4\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<MaskedLanguageModel, DeerLoss>(
        "deer",
        "a masked-diffusion language model that fills a block of masks, trained in three stages (DEER)",
        &[
            "[drafter]\nmask_token = 47\nseparator_token = 46\nblock_size = 1\nfresh = { layers = 2 }\ncontext = \"bidirectional\"\n[objective]\nspan = 1\ncuts = 9\nlabel_weight = 0.0\nteacher_weight = 1.0",
            "[drafter]\nmask_token = 47\nseparator_token = 46\nblock_size = 1\nfresh = { layers = 2 }\ncontext = \"causal\"\n[objective]\nspan = 2\ncuts = 9\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
    Recipe::of::<LanguageModel, Distill>(
        "distillspec",
        "a smaller language model, distilled from the target (DistillSpec, GKD)",
        &[
            "[drafter]\nfresh = { layers = 2 }\n[objective]\nlabel_weight = 0.0\nteacher_weight = 1.0",
        ],
    ),
];

/// How a recipe for a target names the drafter in a folder.
type AtStart = fn(&Path, &TargetSpec) -> Result<NamedBy>;

/// The keys of a drafter in a target's folder, if there is one.
type BesideTarget = fn(&Path) -> Result<Option<Vec<(String, Value)>>>;

/// Opens a drafter's folder, as is said or as is likeliest.
type Open = fn(&Path, Option<&Reading>, &TargetParts, &Device) -> Result<Box<dyn Trained>>;

/// A drafter and the objective it is trained with, without their types.
pub struct Recipe {
    /// What `recipe = "..."` says in the file.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Reads a recipe file of this kind.
    pub read: fn(&Document) -> Result<ResolvedRecipe>,
    /// What messages call its drafter.
    pub family: &'static str,
    /// The engines that load its drafters, whatever their settings rule out.
    pub engines: &'static [Engine],
    /// The schema of its own tables.
    pub schema: fn(&mut SchemaGenerator) -> OwnTables,
    /// The stages of its training, in order; see [`Objective::STAGES`].
    pub stages: &'static [&'static str],
    /// Runs a stage of its training.
    pub train: fn(&StageContext, &str) -> Result<Value>,
    /// Opens a drafter's folder.
    pub open: Open,
    /// `[drafter]` and `[objective]` tables with which every test over the registry trains it, for the target of
    /// [`Family::SAMPLES`](crate::families::family::Family::SAMPLES). All that judges is the target's distribution, by its
    /// Kullback–Leibler divergence.
    pub trials: &'static [&'static str],
    /// See [`Family::SAMPLES`](crate::families::family::Family::SAMPLES).
    pub samples: &'static [&'static str],
    /// The engines that load a layout of their own.
    pub apart: fn() -> Vec<Engine>,
    /// See [`Shipped::beside_target`].
    pub beside_target: BesideTarget,
    /// See [`Shipped::at_start`].
    pub at_start: AtStart,
}

impl Recipe {
    const fn of<D, O>(
        name: &'static str,
        about: &'static str,
        trials: &'static [&'static str],
    ) -> Self
    where
        D: Shipped,
        O: Objective<D> + 'static,
        D::Config: Settings,
        O::Config: Settings,
    {
        Self {
            name,
            about,
            trials,
            read: |document| {
                let mut file = document.file::<D::Config, O::Config>(O::STAGES)?;
                let given = |key: &str| document.sets(&format!("objective.{key}"));
                O::fill(&mut file.objective, &given);
                D::check(&file.drafter).map_err(|error| document.refuse(error.into()))?;
                O::new(&file.objective).map_err(|error| document.refuse(error))?;
                check_export::<D>(&file.export.to).map_err(|error| document.refuse(error))?;
                let method = Typed::<D, O> {
                    drafter: file.drafter.clone(),
                    objective: file.objective.clone(),
                };
                file.resolve(Box::new(method))
            },
            train: |context, stage| {
                let method: &dyn Any = &*context.recipe.method;
                let Some(method) = method.downcast_ref::<Typed<D, O>>() else {
                    unreachable!("each recipe has the method that its `read` has made");
                };
                train::run::<D, O>(context, stage, &method.drafter, &method.objective)
            },
            family: D::DIALECTS[0].0.family,
            engines: D::ENGINES,
            stages: O::STAGES,
            schema: |generator| OwnTables::of::<D::Config, O::Config>(generator),
            open: |folder, reading, target, device| {
                Ok(Box::new(Loaded(D::open(folder, reading, target, device)?)))
            },
            samples: D::SAMPLES,
            beside_target: D::beside_target,
            at_start: D::at_start,
            apart: || {
                let engines = D::DIALECTS.iter().filter_map(|(_, engine)| *engine);
                engines.collect()
            },
        }
    }

    /// The schemas of the keys of its `[drafter]` table and of its `[objective]` table, each by the name of its key.
    pub(crate) fn keys(&self) -> [Value; 2] {
        let mut generator = SchemaGenerator::default();
        let own = (self.schema)(&mut generator);
        [own.drafter, own.objective].map(|schema| {
            let name = schema.get("$ref").and_then(Value::as_str);
            let name = name.and_then(|path| path.rsplit('/').next());
            let defined = name.and_then(|name| generator.definitions().get(name));
            let table = defined.unwrap_or_else(|| schema.as_value());
            table["properties"].clone()
        })
    }
}

/// Fails for an engine that loads no drafter of this kind. The two that are there unless a recipe says otherwise are
/// remarked upon when the drafter is written: they are those of most kinds.
fn check_export<D: Shipped>(engines: &[Engine]) -> spectrain_train::Result<()> {
    let usual = ExportTable::default().to;
    if engines.len() == usual.len() && usual.iter().all(|engine| engines.contains(engine)) {
        return Ok(());
    }
    match engines.iter().find(|engine| !D::ENGINES.contains(engine)) {
        None => Ok(()),
        Some(other) => Err(spectrain_train::Error::Setting {
            table: "export",
            key: "to",
            mismatch: Mismatch::new(
                match D::ENGINES {
                    [] => format!("nothing: no engine loads {} drafters", D::KIND),
                    known => {
                        let names = known.iter().map(|engine| format!("`\"{}\"`", engine.key()));
                        let names = names.collect::<Vec<_>>().join(", ");
                        format!("engines that load {} drafters: {names}", D::KIND)
                    }
                },
                format!("`\"{}\"`", other.key()),
            ),
        }),
    }
}

/// The recipe of this name.
pub fn find(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name)
}

/// Runs a stage of the training of a recipe.
pub fn train(context: &StageContext, stage: &str) -> Result<Value> {
    let name = &context.recipe.recipe;
    let recipe = find(name).with_context(|| format!("there is no recipe `{name}`"))?;
    let _precision = context.target_type.precision.scope();
    (recipe.train)(context, stage)
}

/// The tables that only one kind of recipe has, each with the kinds in whose table there is this key.
pub(crate) fn with_key(key: &str) -> [(&'static str, Vec<&'static str>); 2] {
    let mut found = [("drafter", Vec::new()), ("objective", Vec::new())];
    for recipe in RECIPES {
        for (keys, (_, kinds)) in recipe.keys().iter().zip(&mut found) {
            if keys.get(key).is_some() {
                kinds.push(recipe.name);
            }
        }
    }
    found
}

/// The end of a message about an unknown recipe: the names of all, and the one that may be meant.
pub fn known(given: &str) -> String {
    let near = did_you_mean(given, RECIPES.iter().map(|recipe| recipe.name));
    format!("known recipes: {}{near}", names())
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
    open_as(folder, None, target, device)
}

/// The same as `reading` says or, where that says nothing, as is likeliest.
pub fn open_as(
    folder: &Path,
    reading: Option<&Reading>,
    target: &TargetParts,
    device: &Device,
) -> Result<Box<dyn Trained>> {
    let model = known::open_folder(folder)?;
    seal::check(&model)?;
    (of_drafter(&model)?.open)(folder, reading, target, device)
}

/// The first recipe that trains drafters such as the one in a folder.
pub fn of_drafter(folder: &ModelFolder) -> Result<&'static Recipe> {
    let family = dialect_of(folder)?.family;
    let recipe = RECIPES.iter().find(|recipe| recipe.family == family);
    recipe.with_context(|| format!("no recipe trains {family} drafters"))
}
