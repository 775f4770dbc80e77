//! Names under which published folders hold the tensors of a drafter.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::folder::{ModelFolder, TensorInfo};
use crate::tensors::NamedTensor;

/// The target's embedding, which drafters' folders may repeat.
pub const EMBEDDING: &str = "embed_tokens.weight";

/// What trainers put before the names of a drafter's tensors: the class that wraps it.
const PREFIXES: [&str; 5] = [
    "model.",
    "draft_model.",
    "drafter.",
    "eagle_module.",
    "module.",
];

/// A name without what wraps the drafter.
pub(crate) fn unwrapped(name: &str) -> &str {
    let inner = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    inner.map_or(name, unwrapped)
}

/// The tensor of this name, whatever wraps it in the folder.
pub fn wrapped<'a>(folder: &'a ModelFolder, name: &str) -> Option<&'a TensorInfo> {
    folder.tensors().find(|info| unwrapped(&info.name) == name)
}

/// The stored name of each tensor by the one that `canonical` gives it. No two may get one name.
pub(crate) fn stored_names(
    folder: &ModelFolder,
    canonical: impl Fn(&str) -> String,
) -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for info in folder.tensors() {
        if let Some(first) = names.insert(canonical(&info.name), info.name.clone()) {
            let second = &info.name;
            let reason = format!("holds one tensor under two names, `{first}` and `{second}`");
            return Err(Error::Folder {
                path: info.file.clone(),
                reason,
            });
        }
    }
    Ok(names)
}

/// Reads tensors under their canonical names.
pub(crate) fn read_named(
    folder: &ModelFolder,
    names: &BTreeMap<String, String>,
) -> Result<Vec<NamedTensor>> {
    let read = |(name, stored): (&String, &String)| {
        Ok(NamedTensor {
            name: name.clone(),
            ..folder.read(stored)?
        })
    };
    names.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_taken_off_from_outside_in() {
        assert_eq!(unwrapped("module.draft_model.model.fc.weight"), "fc.weight");
        assert_eq!(
            unwrapped("midlayer.mlp.up_proj.weight"),
            "midlayer.mlp.up_proj.weight"
        );
        assert_eq!(unwrapped("models.fc.weight"), "models.fc.weight");
    }
}
