//! What the folders of Medusa's and Hydra's heads have in common: checks, and a draft vocabulary as `token_map`.

use std::path::Path;

use serde_json::Value;

use crate::expected::{Expected, TensorSpec, check_tensors, specs};
use crate::folder::WEIGHTS;
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, checked};

/// The name of the tensor that holds the target's id of each draft token, ascending.
pub(crate) const TOKEN_MAP: &str = "token_map";

/// What a folder of heads must hold, and nothing else.
pub(crate) struct Contents {
    /// Its tensors.
    pub(crate) required: Vec<TensorSpec>,
    /// Size of the target's vocabulary.
    pub(crate) vocab_size: usize,
    /// Tokens that are drafted.
    pub(crate) draft_vocab_size: usize,
    /// The type of the weights.
    pub(crate) dtype: DType,
}

impl Contents {
    /// Fails for a layout that would be read as another one.
    pub(crate) fn check_layout(&self, dialect: &'static str, heads: usize) -> Result<()> {
        let wrong = |field, expected: String, got: String| {
            Err(Error::Layout {
                dialect,
                field,
                expected,
                got,
            })
        };
        if heads == 0 {
            return wrong("heads", "at least 1".to_string(), "0".to_string());
        }
        if self.draft_vocab_size > self.vocab_size {
            let expected = format!("at most {}", self.vocab_size);
            return wrong(
                "draft_vocab_size",
                expected,
                self.draft_vocab_size.to_string(),
            );
        }
        match self.dtype.is_float() {
            true => Ok(()),
            false => wrong(
                "dtype",
                "F32, F16 or BF16".to_string(),
                self.dtype.to_string(),
            ),
        }
    }

    /// Writes a folder, whole or not at all; `provenance` is kept beside the weights unless it is null.
    pub(crate) fn write(
        self,
        dir: &Path,
        config: &Value,
        tensors: &[NamedTensor],
        provenance: &Value,
    ) -> Result<()> {
        let expected = Expected {
            required: self.required,
            optional: Vec::new(),
        };
        let map = |weights: &Path| check_map(weights, tensors, self.vocab_size);
        checked::write(dir, config, tensors, &expected, map, provenance)
    }

    /// Checks what was read: floats and integers may be of any width.
    pub(crate) fn check_read(self, dir: &Path, tensors: &[NamedTensor]) -> Result<()> {
        let weights = dir.join(WEIGHTS);
        let expected = Expected {
            required: self.required,
            optional: Vec::new(),
        };
        check_tensors(
            &weights,
            &specs(tensors),
            &expected,
            |got, asked| match asked {
                DType::I64 => matches!(got, DType::I64 | DType::I32),
                _ => got.is_float(),
            },
        )?;
        check_map(&weights, tensors, self.vocab_size)
    }
}

/// The ids of a draft vocabulary ascend, and are tokens of the target.
fn check_map(file: &Path, tensors: &[NamedTensor], vocab_size: usize) -> Result<()> {
    let Some(map) = tensors.iter().find(|tensor| tensor.name == TOKEN_MAP) else {
        return Ok(());
    };
    let ids = map.to_i64()?;
    let inside = |&id: &i64| usize::try_from(id).is_ok_and(|id| id < vocab_size);
    match ids.iter().all(inside) && ids.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(Error::Values {
            name: map.name.clone(),
            path: file.to_path_buf(),
            reason: format!("expected ascending token ids below {vocab_size}"),
        }),
    }
}
