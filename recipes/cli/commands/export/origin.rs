//! What a run has recorded of the drafter that it trained.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::runs::hashes::HashMemory;
use crate::runs::places::EXPORTED;
use crate::stages::export::provenance_of;

/// What the stage `export` recorded, with what `evaluate` found, if it was of these weights and not of others before them.
pub(super) fn exported_from(run: &Path, weights: &Path) -> Result<Option<Value>> {
    let exported = run.join(EXPORTED);
    if !exported.exists() {
        return Ok(None);
    }
    let trained = HashMemory::default().of(weights)?;
    Ok(provenance_of(&exported)?.filter(|found| found["trained"] == trained))
}
