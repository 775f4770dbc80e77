//! How much there is to train on.

use std::path::Path;

use spectrain_data::rows;
use spectrain_data::sources::Source;
use spectrain_data::tokens::TokenIndex;

use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::run_folder::{Status, manifest_in};

/// Bytes of text for a token, where only the size of a file is known.
const BYTES_PER_TOKEN: u64 = 4;

/// The training data as `prepare` counted it.
pub(super) fn prepared(run: &Path) -> Option<TokenIndex> {
    let manifest = manifest_in(run, "prepare").ok()??;
    if manifest.status != Status::Done {
        return None;
    }
    let index = std::fs::read_to_string(run.join("prepare/train/tokens.json")).ok()?;
    serde_json::from_str(&index).ok()
}

/// Tokens of the training data: counted by `prepare`, or from the size of the file.
pub(super) fn data_tokens(recipe: &ResolvedRecipe, run: &Path) -> Option<u64> {
    if let Some(index) = prepared(run) {
        return Some(index.tokens);
    }
    let mut bytes = 0.0;
    for Source { path, weight } in recipe.data.train.as_ref()?.each() {
        let files = rows::files(path).ok()?;
        let lengths = files
            .iter()
            .map(|file| Some(std::fs::metadata(file).ok()?.len()));
        bytes += lengths.sum::<Option<u64>>()? as f64 * weight;
    }
    Some(bytes as u64 / BYTES_PER_TOKEN)
}
