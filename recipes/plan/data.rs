//! How much there is to train on.

use std::path::Path;

use spectrain_data::tokens::TokenIndex;

use crate::recipe::ResolvedRecipe;
use crate::run_folder::{Status, manifest_in};

/// Bytes of text for a token, where only the size of a file is known.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of the training data: counted by `prepare`, or from the size of the file.
pub(super) fn data_tokens(recipe: &ResolvedRecipe, run: &Path) -> Option<u64> {
    let done = manifest_in(run, "prepare")
        .ok()?
        .is_some_and(|manifest| manifest.status == Status::Done);
    let index = std::fs::read_to_string(run.join("prepare/train/tokens.json")).ok();
    let index = index.and_then(|text| serde_json::from_str::<TokenIndex>(&text).ok());
    if let (true, Some(index)) = (done, index) {
        return Some(index.tokens);
    }
    let data = recipe.data.train.as_ref()?;
    let length = |path: &Path| std::fs::metadata(path).map(|data| data.len());
    let bytes = match std::fs::read_dir(data) {
        Ok(entries) => entries
            .flatten()
            .filter_map(|entry| length(&entry.path()).ok())
            .sum(),
        Err(_) => length(data).ok()?,
    };
    Some(bytes / BYTES_PER_TOKEN)
}
