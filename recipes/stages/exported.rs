//! What `export` has recorded of the folders that it left.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use spectrain_checkpoints::printable;

use crate::runs::run_folder::RunFolder;
use crate::stages::card::{Facts, recorded};

/// A folder that the stage left.
pub(super) struct Written {
    /// Its path within the run.
    pub(super) folder: String,
    /// What its card says; none where an older version left it.
    pub(super) facts: Option<Facts>,
}

impl Written {
    /// One with a card.
    pub(super) fn new(folder: String, facts: Facts) -> Self {
        Self {
            folder,
            facts: Some(facts),
        }
    }
}

/// The folders that the stage left.
pub(super) fn written(run: &RunFolder) -> Result<Vec<Written>> {
    let parts = parts(run)?.into_iter();
    let named = parts.filter_map(|part| {
        Some(Written {
            folder: part["folder"].as_str()?.to_owned(),
            facts: recorded(&part),
        })
    });
    Ok(named.collect())
}

/// The commands that serve what the stage left, for a shell: those for each folder behind its name.
pub fn commands_again(run: &RunFolder) -> Result<String> {
    let mut text = String::new();
    for part in parts(run)? {
        let folder = run.path().join(part["folder"].as_str().unwrap_or_default());
        text.push_str(&format!("# {}{}\n", folder.display(), seen_from(&folder)));
        let lines = part["launch"].as_array().into_iter().flatten();
        for line in lines.filter_map(Value::as_str) {
            text.push_str(&format!("{}\n", printable(line)));
        }
        text.push('\n');
    }
    Ok(text)
}

/// The folder in which commands hold that name this one, where they hold in one alone.
pub(crate) fn seen_from(folder: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) if folder.is_relative() => format!(", in {}", here.display()),
        _ => String::new(),
    }
}

/// What the stage recorded, for each folder that it wrote.
fn parts(run: &RunFolder) -> Result<Vec<Value>> {
    let Some(manifest) = run.manifest("export")? else {
        return Ok(Vec::new());
    };
    let further = manifest.summary["further"].as_array().cloned();
    let parts = std::iter::once(manifest.summary).chain(further.unwrap_or_default());
    Ok(parts.filter(|part| part["folder"].is_string()).collect())
}
