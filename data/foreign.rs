//! Features that other programs captured and left on the disk, read as they are. What their numbers mean is not taken from any
//! name here: whoever reads them finds that out with the target.

use std::path::Path;

use spectrain_checkpoints::Mismatch;

use crate::error::{Error, Result};

mod deepspec;
mod layout;
mod pickles;
mod rows;
mod speculators;

pub use layout::{ForeignFeatures, ForeignStates, ForeignText, SaidLayers};
pub use pickles::PICKLE_CONVERTER;
pub use speculators::{LAST_NORMED, LAYERS, RowsWriter};

/// Opens the features in `folder`: those of vLLM's connector or speculators, whose rows may be in the folder `rows`, or those of
/// DeepSpec.
///
/// # Errors
/// The folder is none of these, holds pickles, or says things that do not go together.
pub fn open(folder: &Path, rows: Option<&Path>) -> Result<Box<dyn ForeignFeatures>> {
    pickles::refuse_file(folder)?;
    let is_there = |name: &str| folder.join(name).exists();
    if is_there(deepspec::MANIFEST) && is_there(deepspec::INDEX) {
        if let Some(rows) = rows {
            return Err(Error::File {
                path: rows.to_owned(),
                mismatch: Mismatch::new(
                    "no rows beside DeepSpec's features, which have their own loss masks",
                    "a folder of them",
                ),
            });
        }
        return Ok(Box::new(deepspec::DeepSpec::open(folder)?));
    }
    if let Some(found) = speculators::Speculators::find(folder, rows)? {
        return Ok(Box::new(found));
    }
    pickles::refuse_folder(folder)?;
    Err(Error::File {
        path: folder.to_owned(),
        mismatch: Mismatch::new(
            "`hs_*.safetensors` of vLLM's connector or speculators, or `manifest.json` and `samples.idx` of DeepSpec",
            "none of these",
        ),
    })
}

#[cfg(test)]
mod tests;
