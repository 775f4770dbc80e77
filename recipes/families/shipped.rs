//! A drafter with what the program needs of it beyond training and decoding: its folders, its commands and its sizes.

use std::path::Path;

use anyhow::Result;
use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::dialect::{Dialect, Reading};
use spectrain_checkpoints::launch::Launch;
use spectrain_eval::Reach;
use spectrain_models::{Capture, Start, TargetParts, TargetSpec};

use crate::families::described;
use crate::families::family::{Family, Writing};
use crate::families::footprint::Footprint;
use crate::families::target_traits::TargetTraits;
use crate::recipe::tables::Engine;

/// The key of a recipe that names a drafter which training starts from, with the keys of `[drafter]` that describe that drafter,
/// beside the defaults.
pub enum NamedBy {
    /// `start`.
    Start(Vec<(String, Value)>),
    /// `[drafter] model`.
    Model(Vec<(String, Value)>),
}

/// What dialects and the list of its parameters say of a drafter; language models say some of it otherwise.
pub trait Shipped: Family {
    /// Whether the class of its target decides which engines serve it, and how.
    const BESIDE_CLASS: bool = false;

    /// What it starts from, where `[drafter]` names a language model for that.
    fn model_at_start(config: &Self::Config) -> Option<Start<'_>> {
        let _ = config;
        None
    }

    /// Tokens that no text may hold, each with the key of `[drafter]` that names it.
    fn unheld(config: &Self::Config) -> Vec<(&'static str, u32)> {
        let _ = config;
        Vec::new()
    }

    /// The keys of `[objective]` that nothing reads with a drafter of these settings, each with what is so with that drafter.
    fn unread(config: &Self::Config) -> Vec<(&'static str, &'static str)> {
        let _ = config;
        Vec::new()
    }

    /// The keys of `[drafter]` that are set and that nothing reads, each with what another key says that rules it out.
    fn idle_keys(config: &Self::Config) -> Vec<(&'static str, &'static str)> {
        let _ = config;
        Vec::new()
    }

    /// The settings with what is read in the place of keys that were left out, as far as no target is needed to know it.
    fn explicit(config: &Self::Config) -> Self::Config {
        config.clone()
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

    /// Fails unless training can start from a drafter's folder: its settings are those of `config`. Its weights are not read.
    fn check_start(config: &Self::Config, folder: &Path, target: &TargetSpec) -> Result<()> {
        described::check_start::<Self>(config, folder, target)
    }

    /// The keys of `[drafter]` that describe the drafter in a target's folder, beside the defaults; nothing where there is none.
    fn beside_target(folder: &Path) -> Result<Option<Vec<(String, Value)>>> {
        described::beside_target::<Self>(folder)
    }

    /// How a recipe for a target of these sizes names the drafter in a folder, so that training starts from it.
    ///
    /// # Errors
    /// The folder holds none of this kind.
    fn at_start(folder: &Path, target: &TargetSpec) -> Result<NamedBy> {
        described::at_start::<Self>(folder, target).map(NamedBy::Start)
    }

    /// Writes a folder in one of [`Family::DIALECTS`], whole or not at all.
    fn write(&self, dialect: &Dialect, writing: &Writing) -> Result<()> {
        described::write(self, dialect, writing)
    }

    /// What messages call it.
    fn called(&self) -> Result<&'static str> {
        let usual = Self::DIALECTS[0].0;
        match usual.called {
            Some(called) => Ok(called(&described::settings(self)?)),
            None => Ok(usual.family),
        }
    }

    /// Commands that serve it from a folder in one of [`Family::DIALECTS`].
    fn launch_lines(&self, dialect: &Dialect, writing: &Writing) -> Result<Vec<Launch>> {
        let mut settings = described::settings(self)?;
        described::set_target(&mut settings, self.target())?;
        let (folder, target) = (writing.folder, writing.target);
        Ok(dialect.launch_lines(&settings, folder, target, writing.draft_length))
    }

    /// The keys of `[drafter]` with their values, each of which by itself keeps an engine from loading it.
    fn against(&self, engine: Engine) -> Result<Vec<(String, Value)>> {
        let mut settings = described::settings(self)?;
        described::set_target(&mut settings, self.target())?;
        described::against::<Self>(self.config(), &settings, engine)
    }

    /// That no engine serves it, beside a target of these traits or any, and why; nothing where one does, or where its settings decide
    /// it.
    fn unserved(config: &Self::Config, target: &TargetTraits) -> Result<Option<String>> {
        let why = |target: &TargetTraits| described::unserved_beside::<Self>(config, target);
        // The remark in place of commands says it.
        if Self::ENGINES.is_empty() {
            return why(&TargetTraits::default());
        }
        let beside = || {
            if Self::BESIDE_CLASS {
                return target.class.as_ref().map_or(Ok(None), |_| why(target));
            }
            // That none does because of the settings is said where the engines are named.
            if !target.scales_logits || why(&TargetTraits::default())?.is_some() {
                return Ok(None);
            }
            why(&TargetTraits {
                class: None,
                ..target.clone()
            })
        };
        Ok(beside()?.map(|why| format!("no engine would serve this drafter: {why}")))
    }

    /// Those of the engines `to` that are not known to load a drafter of these settings beside a target of these sizes and traits, and
    /// those that are; of language models, and where the class decides it and is not known, nothing of either.
    ///
    /// # Errors
    /// An engine of `to` loads a layout that has no place for such a drafter.
    fn check_export(
        config: &Self::Config,
        to: &[Engine],
        spec: &TargetSpec,
        target: &TargetTraits,
    ) -> Result<[Vec<Engine>; 2]> {
        match (Self::BESIDE_CLASS, &target.class) {
            (true, None) => Ok(Default::default()),
            _ => described::check_export::<Self>(config, to, spec, target),
        }
    }

    /// The hidden states that it reads.
    fn captured(&self) -> Result<Capture> {
        Ok(Self::capture(self.config(), &self.target().spec)?)
    }

    /// What it can draft, before there is one.
    fn reach(config: &Self::Config, target: &TargetSpec) -> Result<Reach> {
        described::reach::<Self>(config, target)
    }

    /// Sizes, for an estimate before anything is loaded.
    fn footprint(config: &Self::Config, target: &TargetSpec) -> Result<Footprint> {
        described::footprint::<Self>(config, target)
    }
}
