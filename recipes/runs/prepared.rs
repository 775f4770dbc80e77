//! What the stage `prepare` of a run has left, by its contents: files of any name may hold the same.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_data::day::Day;

use crate::runs::run_folder::{RunFolder, Status, manifest_in};
use crate::runs::stage_names;

/// What has a digest: the folder of the tokens of `data.train`, and that of `data.eval`.
const PARTS: [&str; 2] = ["train", "eval"];

/// The key of what the stage did that is the day that its chat template may have printed; none where that prints no day.
pub(crate) const DATE: &str = "date";

/// The day that texts of a run may have in them, once they are prepared, where its chat template prints one.
///
/// # Errors
/// The manifest of the stage cannot be read.
pub(crate) fn printed_day(run: &RunFolder) -> Result<Option<Day>> {
    let manifest = run.manifest(stage_names::PREPARE)?;
    let date = manifest.and_then(|mut manifest| Some(manifest.summary.get_mut(DATE)?.take()));
    Ok(date.and_then(|date: Value| serde_json::from_value(date).ok()))
}

/// SHA-256 of the tokens and loss masks that a run has prepared of `data.train` and `data.eval`, under `train` and `eval`; nothing
/// where none are known.
pub fn prepared_in(run: &Path) -> BTreeMap<String, String> {
    let manifest = manifest_in(run, stage_names::PREPARE).ok().flatten();
    let manifest = manifest.filter(|manifest| manifest.status == Status::Done);
    let outputs = manifest.map_or_else(BTreeMap::new, |manifest| manifest.outputs);
    let digest = |part: &str| {
        let folder = format!("{part}/");
        // What stands beside the shards says how they were made.
        let is_shard = |path: &str| path.starts_with(&folder) && path.ends_with(".parquet");
        let shards = outputs.iter().filter(|(path, _)| is_shard(path));
        let shards: Vec<&str> = shards.map(|(_, digest)| digest.as_str()).collect();
        let digest = sha256_bytes(shards.join(" ").as_bytes());
        (!shards.is_empty()).then(|| (part.to_owned(), digest))
    };
    PARTS.into_iter().filter_map(digest).collect()
}
