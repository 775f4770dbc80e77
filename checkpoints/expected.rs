//! The tensors that a folder must hold, and whether it does. Engines load a folder with missing tensors without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::mismatch::Mismatch;
use crate::tensors::{NamedTensor, first_not_finite};

/// Name, shape and type of a tensor.
pub type TensorSpec = (String, Vec<usize>, DType);

/// The tensors a folder must hold, and those it may hold.
pub(crate) struct Expected {
    /// Must be there.
    pub(crate) required: Vec<TensorSpec>,
    /// May be there.
    pub(crate) optional: Vec<TensorSpec>,
}

/// Name, shape and type of each tensor.
pub(crate) fn specs(tensors: &[NamedTensor]) -> Vec<TensorSpec> {
    tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), tensor.shape.clone(), tensor.dtype))
        .collect()
}

/// Every required tensor is there, every tensor is known, and each has its shape and an accepted type.
pub(crate) fn check_tensors(
    file: &Path,
    present: &[TensorSpec],
    expected: &Expected,
    accepts: fn(DType, DType) -> bool,
) -> Result<()> {
    let known = expected.required.iter().chain(&expected.optional);
    let specs: BTreeMap<&str, &TensorSpec> = known.map(|spec| (spec.0.as_str(), spec)).collect();
    let names: BTreeSet<&str> = present.iter().map(|(name, ..)| name.as_str()).collect();
    let absent = expected
        .required
        .iter()
        .filter(|(name, ..)| !names.contains(name.as_str()));
    let missing: Vec<String> = absent.map(|(name, ..)| name.clone()).collect();
    let unknown = names.iter().filter(|name| !specs.contains_key(*name));
    let unexpected: Vec<String> = unknown.map(|name| (*name).to_string()).collect();
    let path = file.to_path_buf();
    if !missing.is_empty() || !unexpected.is_empty() {
        return Err(Error::Names {
            path,
            missing,
            unexpected,
        });
    }
    for (name, got_shape, got_type) in present {
        let (_, shape, dtype) = specs[name.as_str()];
        let name = name.clone();
        if got_shape != shape {
            return Err(Error::Shape {
                name,
                path,
                mismatch: Mismatch::new(format!("{:?}", shape), format!("{:?}", got_shape)),
            });
        }
        if !accepts(*got_type, *dtype) {
            return Err(Error::ElementType {
                name,
                path,
                mismatch: Mismatch::new(
                    if dtype.is_float() || !got_type.to_string().starts_with('F') {
                        dtype.to_string()
                    } else {
                        "F32, F16 or BF16".to_owned()
                    },
                    *got_type,
                ),
            });
        }
    }
    Ok(())
}

/// Weights that must be loaded start as NaN: none may have been left so.
pub(crate) fn check_finite(file: &Path, tensor: &NamedTensor) -> Result<()> {
    check_finite_bytes(file, &tensor.name, (tensor.dtype, &tensor.bytes))
}

/// The same for the elements of a tensor `name`.
pub(crate) fn check_finite_bytes(
    file: &Path,
    name: &str,
    (dtype, bytes): (DType, &[u8]),
) -> Result<()> {
    match first_not_finite(dtype, bytes) {
        None => Ok(()),
        Some(position) => Err(Error::Values {
            name: name.to_string(),
            path: file.to_path_buf(),
            reason: format!("element {position} is not a finite number"),
        }),
    }
}
