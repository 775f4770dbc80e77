//! Before a GPU is relied on: what it computes at the shapes of the run must be what the CPU gives in f32.
//!
//! Wrong kernels have been seen to return plausible numbers; a run on them would waste days. Compared are sampled rows of the
//! product with each linear layer of the target, the hidden states and the likeliest tokens of short texts that begin rows of a whole
//! batch, a decode over a cache, and the loss and every gradient of a drafter's step. The host holds one layer of the target at
//! a time, beside its embedding and its head.

use anyhow::{Error, Result, anyhow};
use burn::prelude::Device;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{Capture, Transformer};
use spectrain_train::Objective;

use crate::families::shipped::Shipped;
use crate::stages::context::StageContext;
use crate::stages::self_check::by_layer::ByLayer;
use crate::stages::self_check::compare::{Tolerance, Wrong};
use crate::stages::self_check::states::Both;
use crate::stages::self_check::step::{Step, check_real_step};
use crate::stages::self_check::texts::{LONGEST, texts};

mod by_layer;
mod compare;
mod products;
mod states;
mod step;
mod texts;

pub use texts::Shape;

/// What is checked.
pub struct SelfCheck<'a> {
    context: &'a StageContext<'a>,
    /// On the device.
    target: &'a Transformer,
    capture: &'a Capture,
    shape: Shape,
    folder: ModelFolder,
    tolerance: Tolerance,
}

impl<'a> SelfCheck<'a> {
    /// Of a target on its device that captures these layers of batches of this shape.
    ///
    /// # Errors
    /// The target's folder cannot be read.
    pub fn new(
        context: &'a StageContext<'a>,
        target: &'a Transformer,
        capture: &'a Capture,
        shape: Shape,
    ) -> Result<Self> {
        Ok(Self {
            context,
            target,
            capture,
            shape,
            folder: ModelFolder::open(context.target_folder()?)?,
            tolerance: Tolerance::of(context.target_type.dtype),
        })
    }

    /// Checks the target.
    ///
    /// # Errors
    /// The device computes otherwise, or the target's folder cannot be read.
    pub fn target(&self) -> Result<()> {
        let (rows, by_layer) = (
            self.shape.rows * self.shape.length,
            ByLayer::open(&self.folder)?,
        );
        let products = products::check(self.target, &self.folder, rows, self.tolerance);
        let products = products.map_err(|error| self.told(error))?;
        let both = Both {
            target: self.target,
            by_layer: &by_layer,
            capture: self.capture,
            tolerance: self.tolerance,
        };
        let states = both.check(self.shape).map_err(|error| self.told(error))?;
        self.context.output.say(format!(
            "self-check: {} agrees with the CPU: {products} products over {rows} rows; {states}",
            self.context.device_name
        ));
        self.context.device.memory_cleanup();
        Ok(())
    }

    /// Checks a step of a drafter that can propose the tokens of `vocabulary`, and then does one over a whole batch.
    ///
    /// # Errors
    /// The device computes otherwise, or the target's folder cannot be read.
    pub fn step<D: Shipped, O: Objective<D>>(
        &self,
        drafter: &D::Config,
        objective: &dyn Fn() -> Result<O>,
        vocabulary: &DraftVocabulary,
    ) -> Result<()>
    where
        D::State: 'static,
    {
        let by_layer = ByLayer::open(&self.folder)?;
        let (short, recipe) = (
            Shape {
                rows: 2,
                length: LONGEST.min(self.shape.length),
            },
            self.context.recipe,
        );
        let mut batch = texts(short, by_layer.spec().vocab, &Device::flex());
        let features = by_layer.features(batch.tokens.clone(), &batch.layout, self.capture)?;
        batch.features = Some(features);
        let config = &recipe.train;
        let of = |parts: &_, batch: &_, compute| {
            Step::of::<D, O>(
                (drafter, objective()?),
                (parts, vocabulary),
                config,
                (batch, compute),
            )
        };
        let expected = of(by_layer.parts(), &batch, DType::F32)?;
        let parts = self.target.parts();
        let found = of(&parts, &batch, self.context.target_type.dtype)?;
        let agreed = found.agrees(&expected, self.tolerance);
        let agreed = agreed.map_err(|error| self.told(error))?;
        let whole = texts(self.shape, by_layer.spec().vocab, &self.context.device);
        let step = (drafter, objective()?);
        let real = (self.target, self.capture, vocabulary);
        check_real_step::<D, O>(step, real, config, whole).map_err(|error| self.told(error))?;
        let name = &self.context.device_name;
        self.context.output.say(format!(
            "self-check: {name} trains as the CPU does: {agreed}"
        ));
        self.context.device.memory_cleanup();
        Ok(())
    }

    /// An error with what follows from it.
    fn told(&self, error: Error) -> Error {
        let name = &self.context.device_name;
        match error.downcast::<Wrong>() {
            Ok(what) => {
                anyhow!("self-check: {what}; {name} computes wrongly and cannot be relied on")
            }
            Err(error) => error.context("self-check"),
        }
    }
}
