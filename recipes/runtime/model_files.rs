//! The files of a model's folder.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The files that decide what a target computes.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, |name| {
        name == "config.json" || name.contains(".safetensors")
    })
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
