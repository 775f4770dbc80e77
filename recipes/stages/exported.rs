//! What `export` has recorded of the folders that it left.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::runs::run_folder::RunFolder;
use crate::runs::stage_names;
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

/// The key of what recorded commands name. Earlier versions did not record it, or not all of it.
pub(super) const NAMED: &str = "launch_names";

/// What commands for a folder name; `draft_length` is that of the recipe's first chain, 0 where it is the drafter's own.
pub(super) fn named(folder: &Path, target: &str, draft_length: usize) -> Value {
    let drafter = folder.display().to_string();
    json!({"drafter": drafter, "target": target, "draft_length": draft_length})
}

/// The folder in which commands hold that name this one, where they hold in one alone.
pub(crate) fn seen_from(folder: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) if folder.is_relative() => format!(", in {}", here.display()),
        _ => String::new(),
    }
}

/// What the stage recorded, for each folder that it wrote.
pub(super) fn parts(run: &RunFolder) -> Result<Vec<Value>> {
    let Some(manifest) = run.manifest(stage_names::EXPORT)? else {
        return Ok(Vec::new());
    };
    let further = manifest.summary["further"].as_array().cloned();
    let parts = std::iter::once(manifest.summary).chain(further.unwrap_or_default());
    Ok(parts.filter(|part| part["folder"].is_string()).collect())
}
