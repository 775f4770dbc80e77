//! What the stage `prepare` of a run has left, by its contents: files of any name may hold the same.

use std::collections::BTreeMap;
use std::path::Path;

use spectrain_checkpoints::hash::sha256_bytes;

use crate::runs::run_folder::{Status, manifest_in};

/// What has a digest: the folder of the tokens of `data.train`, and that of `data.eval`.
const PARTS: [&str; 2] = ["train", "eval"];

/// SHA-256 of the tokens and loss masks that a run has prepared of `data.train` and `data.eval`, under `train` and `eval`; nothing
/// where none are known.
pub fn prepared_in(run: &Path) -> BTreeMap<String, String> {
    let manifest = manifest_in(run, "prepare").ok().flatten();
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
