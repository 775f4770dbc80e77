//! What is read of a target that is not computed here.

use std::collections::BTreeSet;

use serde::Serialize;
use spectrain_checkpoints::folder::weight_map;
use spectrain_models::PartsConfig;

use crate::recipe::resolved::ResolvedRecipe;
use crate::runtime::model_files::read_json;
use crate::runtime::sizes::folder_of;

/// What is read of a target.
#[derive(Debug, Serialize)]
pub(super) struct Read {
    /// The embedding, the norm and the head by their names, each with the shard that has it.
    tensors: Vec<(String, Option<String>)>,
    /// How many shards have them.
    shards: usize,
    /// How many shards there are; 0 where the model is one file.
    of: usize,
    /// What the drafter goes without.
    remarks: Vec<String>,
}

/// What is read of a target that is not computed here, where its configuration and its list of shards are on this machine.
pub(super) fn read_of(recipe: &ResolvedRecipe) -> Option<Read> {
    if recipe.features.mode.computes_target() {
        return None;
    }
    let folder = folder_of(recipe.model()?, recipe.target.revision.as_deref())?;
    let file = folder.join("config.json");
    let config = PartsConfig::read(&read_json(&file).ok()?, &file).ok()?;
    let Some(map) = weight_map(&folder).ok()? else {
        return Some(Read {
            tensors: Vec::new(),
            shards: 0,
            of: 0,
            remarks: config.remarks,
        });
    };
    let names = config.names(&file, &|name| map.contains_key(name)).ok()?;
    let names: BTreeSet<String> = names.into_iter().collect();
    let tensors = names
        .into_iter()
        .map(|name| (map.get(&name).cloned(), name));
    let tensors: Vec<_> = tensors.map(|(shard, name)| (name, shard)).collect();
    let read: BTreeSet<_> = tensors
        .iter()
        .filter_map(|(_, shard)| shard.as_ref())
        .collect();
    Some(Read {
        shards: read.len(),
        of: map.values().collect::<BTreeSet<_>>().len(),
        tensors,
        remarks: config.remarks,
    })
}

impl Read {
    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, shard) in &self.tensors {
            lines.push(format!(
                "`{name}` in `{}`",
                shard.as_deref().unwrap_or_default()
            ));
        }
        lines.push(match self.of {
            0 => "its embedding, norm and head, of one file".into(),
            of => format!(
                "{} of {of} shards; the others need not be here",
                self.shards
            ),
        });
        lines.extend(self.remarks.iter().cloned());
        lines
    }
}
