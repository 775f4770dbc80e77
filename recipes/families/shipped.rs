//! What the program needs of a drafter beyond training and decoding: its files, its engines and its sizes.

use std::path::Path;

use anyhow::Result;
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::dialect::{Dialect, Reading};
use spectrain_checkpoints::launch::Launch;
use spectrain_data::tokens::TokenShards;
use spectrain_models::{Capture, Drafter, TargetParts, TargetSpec};
use spectrain_train::Workload;

use crate::families::described;
use crate::families::footprint::{Activations, Footprint, Packed};
use crate::recipe::tables::Engine;

/// A drafter with what the program needs of it beyond training and decoding: its files.
pub trait Shipped: Drafter<Config: Default> + 'static {
    /// What reports call it.
    const KIND: &'static str;

    /// The engines that load drafters of this kind, whatever their settings rule out.
    const ENGINES: &'static [Engine];

    /// The layouts of its folders: the usual one, then each that an engine loads in its place.
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)];

    /// `[drafter]` tables that show it in its forms, for a target of at least 48 tokens and 6 layers of width 32: every test
    /// over the registry tries them.
    const SAMPLES: &'static [&'static str];

    /// Its settings with all sizes filled in.
    fn config(&self) -> &Self::Config;

    /// The target's frozen pieces.
    fn target(&self) -> &TargetParts;

    /// Fails where what the settings let it start from is not for this target, or not for these texts.
    fn begin(config: &Self::Config, target: &TargetParts, texts: &TokenShards) -> Result<()> {
        let _ = (config, target, texts);
        Ok(())
    }

    /// Reads a drafter's folder, ours or a published one, as `reading` says or, where it says nothing, as is likeliest.
    fn open(
        folder: &Path,
        reading: Option<&Reading>,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        described::open(folder, reading, target, device)
    }

    /// Reads a drafter's folder for training to start from, where its settings are those of `config`.
    fn warm_start(
        config: &Self::Config,
        folder: &Path,
        target: &TargetParts,
        device: &Device,
    ) -> Result<Self> {
        let drafter = Self::open(folder, None, target, device)?;
        described::check_start(config, &drafter, folder, &target.spec)?;
        Ok(drafter)
    }

    /// Writes a folder in one of [`Self::DIALECTS`], whole or not at all.
    fn write(&self, dialect: &Dialect, writing: &Writing) -> Result<()> {
        described::write(self, dialect, writing)
    }

    /// Commands that serve it from a folder in one of [`Self::DIALECTS`].
    fn launch_lines(&self, dialect: &Dialect, writing: &Writing) -> Result<Vec<Launch>> {
        let (settings, length) = (described::settings(self)?, writing.draft_length);
        Ok((dialect.launch)(
            &settings,
            writing.folder,
            writing.target,
            length,
        ))
    }

    /// The hidden states that it reads.
    fn captured(&self) -> Result<Capture> {
        Ok(Self::capture(self.config(), &self.target().spec)?)
    }

    /// Sizes, for an estimate before anything is loaded.
    fn footprint(config: &Self::Config, target: &TargetSpec) -> Result<Footprint> {
        described::footprint::<Self>(config, target)
    }

    /// What a step of training keeps, for an estimate before anything is loaded.
    fn activations(
        config: &Self::Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations>;
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
