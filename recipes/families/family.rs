//! What is told of a kind of drafter in one place: its names, engines, layouts, samples and what its training keeps.

use std::path::Path;

use anyhow::Result;
use schemars::JsonSchema;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_models::{Drafter, TargetSpec};
use spectrain_train::Workload;

use crate::families::footprint::{Activations, Packed};
use crate::recipe::tables::Engine;

/// A kind of drafter.
pub trait Family: Drafter<Config: Default + JsonSchema> + 'static {
    /// What reports call it.
    const KIND: &'static str;

    /// The engines that load drafters of this kind, whatever their settings rule out.
    const ENGINES: &'static [Engine];

    /// The layouts of its folders: the usual one, then each that an engine loads in its place.
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)];

    /// `[drafter]` tables that show it in its forms, for a target of at least 48 tokens and 6 layers of width 32: every test
    /// over the registry tries them.
    const SAMPLES: &'static [&'static str];

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
