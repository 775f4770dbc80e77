//! Writing a drafter's folder: nothing goes into it before everything was looked at.

use std::path::Path;

use serde_json::Value;

use crate::expected::{Expected, check_finite, check_tensors, specs};
use crate::folder::{WEIGHTS, write_folder};
use crate::tensors::NamedTensor;
use crate::{Result, seal};

/// Writes a folder, whole or not at all, that holds the tensors `expected` and no others, all finite and of their types.
/// `also` checks what more there is to check, given the file of weights for its errors. `provenance` is kept in the
/// configuration unless it is null; see [`seal`].
pub(crate) fn write(
    dir: &Path,
    config: &Value,
    tensors: &[NamedTensor],
    expected: &Expected,
    also: impl FnOnce(&Path) -> Result<()>,
    provenance: &Value,
) -> Result<()> {
    let weights = dir.join(WEIGHTS);
    check_tensors(&weights, &specs(tensors), expected, |got, asked| {
        got == asked
    })?;
    also(&weights)?;
    for tensor in tensors {
        check_finite(&weights, tensor)?;
    }
    let config = seal::sealed(config.clone(), tensors, &[], provenance);
    write_folder(dir, &config, tensors, &[])
}
