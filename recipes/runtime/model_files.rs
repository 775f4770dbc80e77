//! The files of a model's folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::folder::{CONFIG, INDEX, weight_map};
use spectrain_checkpoints::known::layer_beside_target;
use spectrain_models::is_part;

/// The files that decide what a target computes.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, |name| {
        name == "config.json" || name.contains(".safetensors")
    })
}

/// Those of them that decide what a drafter shares of a target: of weights in shards the shards with its embedding, norm or head.
/// What else of the model is on this machine changes nothing.
pub fn part_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files_with(folder, is_part)
}

/// The configuration, the index and the shards with a tensor that is `wanted`; of a model in one file all.
fn files_with(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let Some(shards) = weight_map(folder)? else {
        return weight_files(folder);
    };
    let shards = shards.into_iter().filter(|(name, _)| wanted(name));
    let shards: BTreeSet<String> = shards.map(|(_, shard)| shard).collect();
    files(folder, |name| {
        [CONFIG, INDEX].contains(&name) || shards.contains(name)
    })
}

/// Those that decide what a drafter computes: of a layer in its target's folder, where weights are in shards, the shards with it.
pub fn drafter_files(folder: &Path) -> Result<Vec<PathBuf>> {
    match layer_beside_target(folder)? {
        None => weight_files(folder),
        Some(own) => files_with(folder, |name| own.contains(name)),
    }
}

/// The files that decide how a target's text becomes tokens.
pub fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    const NAMES: [&str; 4] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "config.json",
    ];
    files(folder, |name| NAMES.contains(&name))
}

fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry =
            entry.with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
        if wanted(&entry.file_name().to_string_lossy()) {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.is_empty() {
        bail!(
            "`{}` holds no model: expected `config.json` and `*.safetensors`",
            folder.display()
        );
    }
    Ok(files)
}

/// A JSON file.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read `{}`", path.display()))
}
