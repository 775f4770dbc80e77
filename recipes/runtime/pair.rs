//! A target and a drafter together.

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use burn::prelude::Device;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::{Error as FolderError, ModelFolder};
use spectrain_eval::{DecodeSettings, Decoder};
use spectrain_models::{
    Capture, DraftShape, FrozenType, Sampling, Target as _, Transformer, load_target,
};

use crate::families::registry::open_drafter;
use crate::families::trained::Trained;
use crate::runtime::interruption::interrupted;
use crate::runtime::target;

/// Tokens of a prompt that the target makes up.
const MADE_UP_TOKENS: usize = 24;

/// An error, with what can be done where a drafter's folder does not name the layers that it reads.
pub(crate) fn with_way_out(error: Error) -> Error {
    let is_of_layers = matches!(
        error.downcast_ref(),
        Some(FolderError::Key { key, .. }) if key.ends_with("layer_ids")
    );
    match is_of_layers {
        true => anyhow!(
            "{error:#}; `spectrain import --layers` takes the layers from you and makes a run that names them"
        ),
        false => error,
    }
}

/// A target and a drafter, ready to decode.
pub struct Pair {
    /// The target.
    pub target: Transformer,
    /// The drafter, held in the target's type.
    pub drafter: Box<dyn Trained>,
    /// What the drafter reads.
    pub capture: Capture,
    /// Tokens at which the target stops.
    pub stop: Vec<u32>,
}

impl Pair {
    /// Loads both.
    pub fn open(
        target: &Path,
        drafter: &Path,
        device: &Device,
        held: impl Into<FrozenType>,
    ) -> Result<Self> {
        Self::open_with_drafter(target, drafter, device, held).map(|(pair, _)| pair)
    }

    /// Loads both, and gives the drafter as its folder has it besides.
    pub fn open_with_drafter(
        target: &Path,
        drafter: &Path,
        device: &Device,
        held: impl Into<FrozenType>,
    ) -> Result<(Self, Box<dyn Trained>)> {
        let model = ModelFolder::open(target)?;
        let stop = target::stop_tokens(&model)?;
        let target = load_target(&model, device, held)?;
        let drafter = open_drafter(drafter, &target.parts(), device).map_err(with_way_out)?;
        Ok((Self::of(target, stop, drafter.as_ref())?, drafter))
    }

    /// Of a target in memory, with the tokens at which it stops.
    pub fn of(target: Transformer, stop: Vec<u32>, drafter: &dyn Trained) -> Result<Self> {
        Ok(Self {
            capture: drafter.capture()?,
            drafter: drafter.held_in(target.dtype()),
            target,
            stop,
        })
    }

    /// Takes another drafter in the place of this one.
    pub fn take(&mut self, drafter: &dyn Trained) -> Result<()> {
        self.capture = drafter.capture()?;
        self.drafter = drafter.held_in(self.target.dtype());
        Ok(())
    }

    /// The decoder.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(&self.target, &self.capture).unless(&interrupted)
    }

    /// Texts that the target itself makes up, one from each of some tokens of its vocabulary.
    pub fn generated_prompts(&self, count: usize) -> Result<Vec<Vec<u32>>> {
        let vocab = self.target.spec().vocab;
        let settings = DecodeSettings {
            max_new_tokens: MADE_UP_TOKENS
                .min(self.target.spec().max_positions / 4)
                .max(1),
            draft: DraftShape::Chain { length: 1 },
            sampling: Sampling::at(1.0),
            stop: Vec::new(),
            shadow: None,
        };
        let first = |number: usize| (number * vocab / count.max(1)) as u32;
        let text = |number: usize| {
            let mut rng = StdRng::seed_from_u64(number as u64);
            let mut text = vec![first(number)];
            text.extend(self.decoder().plain(&text, &settings, &mut rng)?.tokens);
            Ok(text)
        };
        (0..count).map(text).collect()
    }
}
