//! The list of shards, `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde_json::Value;

use super::parts::{INDEX, WEIGHTS};
use crate::error::{Error, Result};
use crate::json;
use crate::printable::printable;
use crate::regular;

/// Which shard holds which tensor, of a model in a folder; `None` for a model in one file. The shards need not be there.
///
/// # Errors
/// The index is not there or names a file outside the folder.
pub fn weight_map(folder: &Path) -> Result<Option<BTreeMap<String, String>>> {
    if regular::is_there(&folder.join(WEIGHTS)) {
        return Ok(None);
    }
    read(&folder.join(INDEX)).map(Some)
}

/// Which shard holds which tensor. Every shard is a plain file name: nothing outside the folder can be named.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let index = json::read(path)?;
    let invalid = |reason: String| Error::Index {
        path: path.to_path_buf(),
        reason,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(invalid(
            "key `weight_map`: expected a table of tensor names and file names".to_string(),
        ));
    };
    let mut shards = BTreeMap::new();
    for (name, shard) in map {
        let Some(shard) = shard.as_str() else {
            return Err(invalid(format!(
                "tensor `{}`: expected a file name, found `{}`",
                printable(name),
                printable(&shard.to_string())
            )));
        };
        if !is_plain_name(shard) || !shard.ends_with(".safetensors") {
            return Err(invalid(format!(
                "tensor `{}`: expected the name of a .safetensors file in the same folder, found `{}`",
                printable(name),
                printable(shard)
            )));
        }
        shards.insert(name.clone(), shard.to_string());
    }
    Ok(shards)
}

/// The shards with a tensor that is `wanted`, as an index names them, in alphabetical order.
pub(crate) fn shard_files(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<BTreeSet<String>> {
    let shards = read(path)?.into_iter();
    Ok(shards
        .filter(|(name, _)| wanted(name))
        .map(|(_, shard)| shard)
        .collect())
}

/// Whether a name stays in the folder it is joined to, and can be printed as it is.
pub(super) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!(parts.next(), Some(Component::Normal(part)) if part == name);
    one && parts.next().is_none() && !name.contains(['/', '\\', ':']) && printable(name) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_stay_in_the_folder() {
        assert!(is_plain_name("model-00001-of-00002.safetensors"));
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/x",
            "a/b",
            "a/",
            "./a",
            "a\\b",
            "c:x",
            "a\0",
            "a\u{1b}[2J",
        ] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
