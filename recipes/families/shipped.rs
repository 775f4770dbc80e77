//! A drafter as a folder, and as sizes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::published::Family;
use spectrain_data::tokens::TokenShards;
use spectrain_models::weights::{TensorWeights, export};
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::footprint::{Activations, Footprint, Packed};
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
