//! What the program needs of a drafter and its objective.

use std::any::Any;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use serde_json::Value;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::published::Family;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::weights::{TensorWeights, export, held_in, import};
use spectrain_models::{Capture, Drafter, Proposer, Session, TargetParts, TargetSpec};
use spectrain_train::{Objective, Workload};

use crate::families::drafter_folder::cast;
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::recipe::settings::Settings;
use crate::recipe::tables::Engine;

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
pub trait Method: Any + Send + Sync {
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

/// A drafter and an objective with their tables.
pub(crate) struct Typed<D: Drafter, O: Objective<D>> {
    pub(crate) drafter: D::Config,
    pub(crate) objective: O::Config,
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
}

/// A drafter that was read.
pub(crate) struct Loaded<D: Drafter>(pub(crate) D);

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
