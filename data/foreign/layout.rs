//! What a folder of features is to whoever reads it, whatever its layout.

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use spectrain_checkpoints::{Mismatch, NamedTensor, regular};

use crate::error::{Error, Result};

/// The captured layers of a folder, as the folder says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidLayers {
    /// Of each slot but the last the 0-based layer whose output it is; -1 for the embedding.
    pub captured: Vec<i64>,
    /// The same of the last slot, where it is said.
    pub last: Option<i64>,
}

impl SaidLayers {
    /// Ids that count the layers that have run, as vLLM's connector and speculators do, of all slots.
    ///
    /// # Errors
    /// There are none.
    pub fn of_layers_run(ids: &[u32]) -> Option<Self> {
        let layer = |&id: &u32| i64::from(id) - 1;
        let (last, captured) = ids.split_last()?;
        Some(Self {
            captured: captured.iter().map(layer).collect(),
            last: Some(layer(last)),
        })
    }
}

/// Tokens of a sample, with its loss mask where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignText {
    /// `[seq]`
    pub tokens: Vec<u32>,
    /// `[seq]`, 1 where a token is trained on, else 0.
    pub loss_mask: Option<Vec<u8>>,
}

/// Hidden states of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignStates {
    /// `[seq, slots, d_model]`: the captured layers, and in the last slot the last hidden state, before or after the norm.
    pub states: NamedTensor,
    /// Bits of bf16, `[seq, d_model]`: the last hidden state after the norm, where the file has it in another tensor beside.
    pub normed: Option<Vec<u16>>,
}

/// A folder of features that another program captured.
pub trait ForeignFeatures {
    /// What the layout is called.
    fn layout(&self) -> &'static str;

    /// Samples with states.
    fn samples(&self) -> usize;

    /// Samples that the folder names and has no states of.
    fn without_states(&self) -> usize;

    /// Hidden states of each token: the captured layers and the last one.
    fn slots(&self) -> usize;

    /// Width of a hidden state.
    fn d_model(&self) -> usize;

    /// What the folder says of its layers, where it does.
    fn layers(&self) -> Option<&SaidLayers>;

    /// The tokens of a sample.
    ///
    /// # Errors
    /// A file cannot be read or is none of this layout.
    fn text(&self, sample: usize) -> Result<ForeignText>;

    /// The states of a sample.
    ///
    /// # Errors
    /// A file cannot be read or is none of this layout.
    fn states(&self, sample: usize) -> Result<ForeignStates>;
}

/// The file of this name in a folder.
///
/// # Errors
/// The name leads out of the folder, by itself or by a link.
pub(super) fn inside(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let outside = |found: &dyn std::fmt::Display| Error::File {
        path: folder.to_owned(),
        mismatch: Mismatch::new("files in this folder", found),
    };
    let mut parts = Path::new(name).components();
    let is_plain = matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none();
    if !is_plain {
        return Err(outside(&format!("`{name}`")));
    }
    regular::check_link(&path).map_err(|error| Error::read(&path, error))?;
    let real = |path: &Path| fs::canonicalize(path).map_err(|source| Error::read(path, source));
    if !real(&path)?.starts_with(real(folder)?) {
        return Err(outside(&format!("a link, `{name}`, that leads out of it")));
    }
    Ok(path)
}

/// A JSON file of at most so many bytes.
pub(super) fn read_json(path: &Path, most: u64) -> Result<Value> {
    let bytes = fs::metadata(path).map_err(|source| Error::read(path, source))?;
    if bytes.len() > most {
        let expected = format!("at most {most}");
        return Err(Error::altered(path, "bytes", expected, bytes.len()));
    }
    let text = fs::read(path).map_err(|source| Error::read(path, source))?;
    serde_json::from_slice(&text).map_err(|source| Error::read(path, source))
}

/// Numbers as tokens; nothing where one of them is none.
pub(super) fn as_tokens(numbers: impl IntoIterator<Item = i64>) -> Option<Vec<u32>> {
    numbers
        .into_iter()
        .map(|number| number.try_into().ok())
        .collect()
}

/// Numbers as a loss mask; nothing where one of them is neither 0 nor 1.
pub(super) fn as_mask(numbers: impl IntoIterator<Item = i64>) -> Option<Vec<u8>> {
    let bit = |number| match number {
        0 => Some(0),
        1 => Some(1),
        _ => None,
    };
    numbers.into_iter().map(bit).collect()
}
