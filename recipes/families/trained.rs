//! A drafter that was read from a folder, without its type.

use std::path::Path;

use anyhow::{Result, bail};
use burn::tensor::DType as BurnDType;
use serde_json::Value;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::weights::{export, held_in, import};
use spectrain_models::{Capture, Drafter, Proposer, Session};

use crate::families::family::Writing;
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

/// A drafter that was read from a folder, without its type.
pub trait Trained {
    /// What reports call it.
    fn kind(&self) -> &'static str;
    /// What people call it: one of several names where the kind has several.
    fn called(&self) -> Result<&'static str>;
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
    /// Whether an engine loads another folder than the usual one; see [`Family::DIALECTS`](super::family::Family::DIALECTS).
    fn has_layout_for(&self, engine: Engine) -> bool;
    /// Writes the folder that an engine loads.
    fn write_for(&self, engine: Engine, writing: &Writing) -> Result<()>;
    /// The commands for the folder that an engine loads; for the usual one those of other engines too.
    fn launch_lines(&self, engine: Engine, writing: &Writing) -> Result<Vec<Launch>>;
    /// See [`Shipped::against`].
    fn against(&self, engine: Engine) -> Result<Vec<(String, Value)>>;
}

/// A drafter that was read.
pub(crate) struct Loaded<D: Drafter>(pub(crate) D);

impl<D: Shipped> Trained for Loaded<D> {
    fn kind(&self) -> &'static str {
        D::KIND
    }

    fn called(&self) -> Result<&'static str> {
        self.0.called()
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
        let layout = D::DIALECTS.first().map(|(layout, _)| layout);
        let rounded = |tensor: NamedTensor| {
            let dtype = layout.map_or(dtype, |layout| layout.written_as(&tensor.name, dtype));
            tensor.cast(dtype)?.cast(DType::F32)
        };
        let tensors = self.tensors().into_iter().map(rounded);
        let tensors = tensors.collect::<spectrain_checkpoints::Result<_>>()?;
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
                bail!(
                    "the speculators library has no layout for {} drafters",
                    D::KIND
                )
            }
            None => self.0.write(D::DIALECTS[0].0, writing),
        }
    }

    fn launch_lines(&self, engine: Engine, writing: &Writing) -> Result<Vec<Launch>> {
        let dialect = dialect_for::<D>(engine).unwrap_or(D::DIALECTS[0].0);
        self.0.launch_lines(dialect, writing)
    }

    fn against(&self, engine: Engine) -> Result<Vec<(String, Value)>> {
        self.0.against(engine)
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
