//! Writing a drafter's folder: nothing goes into it before everything was looked at.

use std::path::Path;

use serde_json::Value;

use crate::expected::{Expected, check_finite, check_tensors, specs};
use crate::folder::{WEIGHTS, write_folder};
use crate::tensors::NamedTensor;
use crate::{Result, json, seal};

/// The file in which writers keep where a drafter comes from.
pub(crate) const PROVENANCE: &str = "provenance.json";

/// Writes a folder, whole or not at all, that holds the tensors `expected` and no others, all finite and of their types.
/// `also` checks what more there is to check, given the file of weights for its errors. `provenance` is kept beside the
/// weights and in the configuration unless it is null.
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
    let provenance_file = json::to_bytes(provenance);
    let extra_files: &[(&str, &[u8])] = match provenance {
        Value::Null => &[],
        _ => &[(PROVENANCE, &provenance_file)],
    };
    let config = seal::sealed(config.clone(), tensors, provenance);
    write_folder(dir, &config, tensors, extra_files)
}
